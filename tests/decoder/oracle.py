#!/usr/bin/env python3
"""oracle.py CTITAN [CASE..]: writes expected/CASE for the cases of the file `cases`, by transformers, and
continued/CASE for those with the config.json of the family.

ctitan writes the initial weights of a case as a folder; transformers loads it without a warning, and
trains it on the same tokens. A line has the loss and the norm of the gradients of a step, and the
auxiliary loss of experts where the model has one. With other weights it continues PROMPT with the
most likely tokens, up to one that rounding could change. The test `families` compares ctitan's own runs with
these. It needs transformers and torch."""
import json
import os
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

here = os.path.dirname(os.path.abspath(__file__))
data = f"{here}/../golden/llama-gqa"
SEQ, BATCH, STEPS, LR = 40, 4, 6, 0.002
PROMPT, LONGEST, GAP = [5, 17, 250, 3, 99, 180, 42], 20, 2e-3
STRONG = 0.2  # deviation of weights with which tokens depend on all before them


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")


def settings_of(family):
    """Of a description, or of a plugin."""
    path = f"{here}/families/{family}"
    if os.path.exists(f"{path}.settings"):
        return open(f"{path}.settings").read().split()
    return ["model.name=decoder", f"decoder.family={path}.ini", "model.flavor=small"]


def folder_of(ctitan, work, family, members, deviation=0):
    """The initial weights, of a deviation where it is not 0; members of JSON change config.json."""
    settings = settings_of(family) + [f"model.initializer_range={deviation}"]
    with open(f"{work}/recipe.ini", "w") as recipe:
        recipe.write(f"""[plugins]
load = cpu, {settings[0].split("=")[1]}, tokens, adamw
[model]
save_to = {work}/hf
[job]
dump_folder = {work}/out
[training]
seq_len = {SEQ}
steps = 1
mixed_precision_param = float32
[adamw]
lr = 0
[tokens]
path = {data}/tokens.bin
""")
    run(ctitan, "train", f"{work}/recipe.ini", *[word for one in settings for word in ("--set", one)])
    path = f"{work}/hf/config.json"
    config = json.load(open(path))
    config.update(json.loads("{" + members + "}"))
    json.dump(config, open(path, "w"))
    return f"{work}/hf"


@torch.no_grad()
def continued(model):
    """The most likely tokens behind PROMPT, as long as they are that by GAP."""
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + LONGEST:
        best = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float().topk(2)
        if best.values[0] - best.values[1] < GAP:
            break
        tokens.append(int(best.indices[0]))
    return tokens[len(PROMPT):]


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), f"{folder}: {report}"
    return model


def write_continued(ctitan, name, family):
    with tempfile.TemporaryDirectory() as work:
        answer = continued(load(folder_of(ctitan, work, family, "", STRONG)).eval())
    assert len(answer) >= 5, f"{name}: {answer}"
    with open(f"{here}/continued/{name}", "w") as out:
        out.write(",".join(map(str, answer)) + "\n")


def main():
    ctitan, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    tokens = torch.tensor(numpy.fromfile(f"{data}/tokens.bin", dtype="<u4").astype("int64"))
    torch.set_num_threads(1)
    for line in open(f"{here}/cases"):
        name, family, members = (line.split(None, 2) + ["", ""])[:3]
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as work:
            model = load(folder_of(ctitan, work, family, members.strip()))
        if not members:
            write_continued(ctitan, name, family)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
        with open(f"{here}/expected/{name}", "w") as out:
            for step in range(STEPS):
                rows = [tokens[(step * BATCH + i) * SEQ:(step * BATCH + i + 1) * SEQ + 1] for i in range(BATCH)]
                rows = torch.stack(rows)
                out_of = model(rows[:, :-1], use_cache=False)
                loss = torch.nn.functional.cross_entropy(out_of.logits.float().flatten(0, 1), rows[:, 1:].flatten())
                auxiliary = getattr(out_of, "aux_loss", None)
                optimizer.zero_grad()
                (loss if auxiliary is None else loss + model.config.router_aux_loss_coef * auxiliary).backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                out.write(f"{loss.item():.9g} {norm.item():.9g}")
                out.write("\n" if auxiliary is None else f" {auxiliary.item():.9g}\n")
        print(name)


main()
