"""Scores of multiple-choice questions by transformers, in float64: loss, acc and acc_norm as lm-evaluation-harness defines them.

    oracle.py FOLDER QUESTIONS OUT      a line "loss acc acc_norm"
"""
import json
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

folder, questions, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
acc, acc_norm, nll, tokens, count = 0, 0, 0, 0, 0
for line in open(questions):
    q = json.loads(line)
    answer = q["answer"] if isinstance(q["answer"], int) else q["choices"].index(q["answer"])
    scores = []
    for choice in q["choices"]:
        prompt = tokenizer.encode(q["prompt"].rstrip(), add_special_tokens=False).ids
        whole = tokenizer.encode(q["prompt"] + choice, add_special_tokens=False).ids
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([whole])).logits[0, :-1], -1)
        own = [logp[i, whole[i + 1]].item() for i in range(len(prompt) - 1, len(whole) - 1)]
        scores.append((sum(own), len(choice.encode()), len(own)))
    acc += max(range(len(scores)), key=lambda i: scores[i][0]) == answer
    acc_norm += max(range(len(scores)), key=lambda i: scores[i][0] / scores[i][1]) == answer
    nll -= scores[answer][0]
    tokens += scores[answer][2]
    count += 1
with open(out, "w") as file:
    file.write(f"{nll / tokens:.12g} {acc / count:.12g} {acc_norm / count:.12g}\n")
