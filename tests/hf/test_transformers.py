#!/usr/bin/env python3
"""test_transformers.py CTITAN CASE..: folders that ctitan writes load in transformers, and its
models give the logits that ctitan computes from the same folder.

Each case's model is trained for three steps on four ranks (fsdp x tp), and written by save_to (in
several files), by export, by export in bfloat16, and through import. Status 77 (skipped) where
transformers or torch is missing."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}: the test needs transformers and torch")
    sys.exit(77)

RECIPE = """
[job]
dump_folder = {work}/out
[plugins]
load = cpu, local, {model}, tokens, adamw, fsdp, tp, ckpt
[model]
name = {model}
init_from = {data}/hf
save_to = {work}/saved
max_shard_size = 0.0003
[training]
seq_len = 32
local_batch_size = 4
steps = 3
mixed_precision_param = float32
[lr_scheduler]
warmup_steps = 0
[tokens]
path = {data}/tokens.bin
[tp]
degree = 2
[ckpt]
interval = 3
"""


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def own_logits(ctitan, work, folder, prompt, dtype):
    run(ctitan, "generate", f"{work}/recipe.ini", "--greedy", "--prompt-ids",
        ",".join(map(str, prompt)), "--tokens", 0, "--logits", f"{work}/logits",
        "--without", "fsdp", "--without", "tp", "--without", "local", "--without", "ckpt",
        "--set", f"model.init_from={folder}", "--set", "model.save_to=", "--set", f"training.dtype={dtype}")
    return torch.tensor([float(x) for x in open(f"{work}/logits").read().split()])


def their_logits(folder, prompt, dtype):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in report.items() if v}
    if wrong:
        sys.exit(f"{folder}: transformers tells of {wrong}")
    with torch.no_grad():
        return model.eval()(torch.tensor([prompt])).logits[0, -1].float()


def check(ctitan, work, data):
    model = json.load(open(f"{data}/case.json")).get("model", "llama")
    prompt = json.load(open(f"{data}/expected.json")).get("greedy", {}).get("prompt", [1, 2, 3, 4, 5, 6])
    with open(f"{work}/recipe.ini", "w") as recipe:
        recipe.write(RECIPE.format(work=work, model=model, data=data))
    run(ctitan, "train", f"{work}/recipe.ini", "-n", 4)
    run(ctitan, "export", f"{work}/out", f"{work}/exported")
    run(ctitan, "export", f"{work}/out", f"{work}/narrow", "--dtype", "bfloat16", "--max-shard-size", "0.0001")
    run(ctitan, "import", f"{work}/saved", f"{work}/imported")
    run(ctitan, "export", f"{work}/imported", f"{work}/again")
    before = their_logits(f"{data}/hf", prompt, torch.float32)
    for name in "saved", "exported", "narrow", "again":
        folder = f"{work}/{name}"
        own = own_logits(ctitan, work, folder, prompt, "float32")
        their = their_logits(folder, prompt, torch.float32)
        worst = (own - their).abs().max().item()
        moved = (before - their).abs().max().item()
        print(f"{data}: {name}: logits within {worst:.2g}; training moved them by {moved:.2g}")
        if not (worst <= 1e-4 and moved > 1e-2 and len(own) == len(their)):
            sys.exit("that is too much, or too little")


def main():
    ctitan = os.path.realpath(sys.argv[1])
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for data in map(os.path.realpath, sys.argv[2:]):
        with tempfile.TemporaryDirectory() as work:
            check(ctitan, work, data)


main()
