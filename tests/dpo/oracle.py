"""Losses and gradient norms of KTO and ORPO by PyTorch and transformers, in float64, as trl writes the two losses.

    oracle.py FOLDER REFERENCE PAIRS kto|kto_weights|orpo OUT      a line "loss norm" for each of four steps
    oracle.py FOLDER REFERENCE PAIRS lines OUT                     the lines of KTO, with log-probabilities of the reference

All of PAIRS are a step. For KTO even pairs give prompt and chosen answer, odd ones prompt and rejected answer.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM

folder, reference, pairs, what, out = sys.argv[1:]
pairs = [json.loads(line) for line in open(pairs)]
beta = 0.3


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")


def logps(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    of = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return of[torch.arange(len(ids[0]) - 1), ids[0, 1:]]


def answer_logp(model, prompt, answer):
    return logps(model, prompt, answer)[len(prompt) - 1:].sum()


lines = [(p["prompt"], p["rejected" if i % 2 else "chosen"], i % 2 == 0) for i, p in enumerate(pairs)]
mismatched = [(lines[i][0], lines[i - 1][1]) for i in range(len(lines))]
if what == "lines":
    model = load(reference)
    with open(out, "w") as file, torch.no_grad():
        for (prompt, answer, label), other in zip(lines, mismatched):
            stored = [round(answer_logp(model, *x).item(), 6) for x in ((prompt, answer), other)]
            file.write(json.dumps({"prompt": prompt, "completion": answer, "label": label, "reference": stored}) + "\n")
    sys.exit()

weights = (1.5, 0.5) if what == "kto_weights" else (1, 1)
model = load(folder)
if what != "orpo":
    frozen = load(reference)
    with torch.no_grad():
        own = [answer_logp(frozen, p, a) for p, a, _ in lines]
        others = [answer_logp(frozen, *x) for x in mismatched]
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), eps=1e-6, weight_decay=0)


def kto():
    with torch.no_grad():
        kl = sum(answer_logp(model, *x) - r for x, r in zip(mismatched, others)) / len(lines)
        kl = kl.clamp(min=0)
    loss = 0
    for (prompt, answer, label), r in zip(lines, own):
        x = answer_logp(model, prompt, answer) - r
        loss += weights[not label] * (1 - torch.sigmoid(beta * (x - kl if label else kl - x)))
    return loss / len(lines)


def orpo():
    entropy, tokens, odds = 0, 0, 0
    for p in pairs:
        whole = logps(model, p["prompt"], p["chosen"])
        entropy, tokens = entropy - whole.sum(), tokens + len(whole)
        c, r = (answer_logp(model, p["prompt"], p[k]) / len(p[k]) for k in ("chosen", "rejected"))
        ratio = (c - r) - (torch.log1p(-torch.exp(c)) - torch.log1p(-torch.exp(r)))
        odds -= torch.nn.functional.logsigmoid(ratio)
    return entropy / tokens + beta * odds / len(pairs)


with open(out, "w") as file:
    for _ in range(4):
        optimizer.zero_grad()
        loss = orpo() if what == "orpo" else kto()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        file.write(f"{loss.item():.12g} {norm.item():.12g}\n")
