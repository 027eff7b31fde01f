#!/usr/bin/env python3
"""oracle.py CTITAN [CASE..]: writes CASE.expected for the cases of the file `cases`: multi-token prediction in PyTorch.

ctitan writes the initial weights as a folder. Its layers, those of predictions too, are transformers'
own classes; what joins them is here (DeepSeek-AI 2024, section 2.2). A line has the loss of a step
without predictions, the norm of the gradients of all, and the sum of each depth's losses over the
number of tokens. With document=N, each N tokens of the file are a document, computed by itself. The test `predictions` compares ctitan's own runs with these."""
import json
import os
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers

here = os.path.dirname(os.path.abspath(__file__))
data = f"{here}/../../golden/llama-gqa"
SEQ, BATCH, STEPS, LR = 40, 4, 6, 0.002
IGNORED = -100


def folder_of(ctitan, work, settings):
    words = [word for one in settings for word in ("--set", one)]
    with open(f"{work}/recipe.ini", "w") as recipe:
        recipe.write(f"[plugins]\nload = cpu, {settings[0].split('=')[1]}, tokens, adamw\n")
    more = {"model.save_to": f"{work}/hf", "job.dump_folder": f"{work}/out", "training.seq_len": SEQ, "training.steps": 1,
            "training.mixed_precision_param": "float32", "adamw.lr": 0, "tokens.path": f"{data}/tokens.bin"}
    done = subprocess.run([ctitan, "train", f"{work}/recipe.ini", *words, *[w for k, v in more.items() for w in ("--set", f"{k}={v}")]],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return f"{work}/hf"


class Predictor:
    """The model and its depths, from a folder."""

    def __init__(self, folder, depths):
        config = json.load(open(f"{folder}/config.json"))
        tensors = safetensors.torch.load_file(f"{folder}/model.safetensors")
        self.layers, self.qwen = config["num_hidden_layers"], any(name.startswith("mtp.") for name in tensors)
        renamed = {(name.replace("mtp.layers.", "model.layers.") if not name.startswith("mtp.layers.") else
                    f"model.layers.{self.layers + int(name.split('.')[2])}." + name.split(".", 3)[3]): t for name, t in tensors.items()}
        # The depths' layers become layers of the model, so that transformers reads them.
        config["num_hidden_layers"] = self.layers + depths
        for key in ("layer_types", "mlp_only_layers"):
            if key == "layer_types" and key in config:
                config[key] += ["full_attention"] * depths
        os.mkdir(f"{folder}-joined")
        json.dump(config, open(f"{folder}-joined/config.json", "w"))
        safetensors.torch.save_file(renamed, f"{folder}-joined/model.safetensors", {"format": "pt"})
        self.model, report = transformers.AutoModelForCausalLM.from_pretrained(
            f"{folder}-joined", attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"], report
        self.blocks = self.model.model.layers[self.layers:]
        self.model.config.num_hidden_layers = self.layers
        self.model.model.layers = self.model.model.layers[:self.layers]
        if not self.qwen:  # what files have twice
            for k in range(depths):
                where = f"model.layers.{self.layers + k}."
                assert torch.equal(tensors[where + "embed_tokens.weight"], tensors["model.embed_tokens.weight"])
                assert torch.equal(tensors[where + "shared_head.head.weight"], tensors["lm_head.weight"])
        self.own, self.depth = {}, []
        for k in range(depths):
            names = ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"]
            if not self.qwen:
                names = [f"model.layers.{self.layers + k}.{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")]
            for name in names:
                self.own.setdefault(name, torch.nn.Parameter(tensors[f"{name}.weight"].float()))
            self.depth.append([self.own[name] for name in names])
        self.eps = config["rms_norm_eps"]

    def parameters(self):
        return [*self.model.parameters(), *self.blocks.parameters(), *self.own.values()]

    def norm(self, x, weight):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1 + weight if self.qwen else weight)

    def logits(self, tokens):
        """Of the model, and of each depth k, whose token i is one for token i + k + 1; the last k predict nothing."""
        length = tokens.shape[1]
        hidden = self.model.model(tokens, use_cache=False).last_hidden_state
        result = [self.model.lm_head(hidden)]
        positions = torch.arange(length)[None]
        rope = self.model.model.rotary_emb(hidden, positions)
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
        for k, (block, weights) in enumerate(zip(self.blocks, self.depth), 1):
            ahead = torch.zeros_like(tokens)
            ahead[:, :length - k] = tokens[:, k:]
            pair = [self.norm(self.model.model.embed_tokens(ahead), weights[0]), self.norm(hidden, weights[1])]
            hidden = torch.cat(pair, -1) @ weights[2].T
            hidden = block(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rope)
            hidden = self.norm(hidden[0] if isinstance(hidden, tuple) else hidden, weights[3])
            result.append(self.model.lm_head(hidden))
        return result

    def losses(self, tokens, labels):
        """Sums over tokens: of the model, then of each depth."""
        sums = []
        for k, logits in enumerate(self.logits(tokens)):
            ahead = torch.full_like(labels, IGNORED)
            ahead[:, :max(labels.shape[1] - k, 0)] = labels[:, k:]
            sums.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ahead.flatten(), ignore_index=IGNORED, reduction="sum"))
        return torch.stack(sums)


def documents_of(row, labels, first, size):
    """The documents in a sequence whose first token is number `first` of the file; their last tokens have no label."""
    starts = [0] + [i for i in range(1, len(row)) if (first + i) % size == 0] + [len(row)]
    for a, b in zip(starts, starts[1:]):
        own = labels[a:b].clone()
        if (first + b) % size == 0:
            own[-1] = IGNORED
        yield row[None, a:b], own[None]


def main():
    ctitan, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    tokens = torch.tensor(numpy.fromfile(f"{data}/tokens.bin", dtype="<u4").astype("int64"))
    torch.set_num_threads(1)
    for line in open(f"{here}/cases"):
        name, depths, weight, *settings = line.split()
        depths, weight, size = int(depths), float(weight), 0
        if only and name not in only:
            continue
        if settings[-1].startswith("document="):
            size = int(settings.pop().split("=")[1])
        with tempfile.TemporaryDirectory() as work:
            predictor = Predictor(folder_of(ctitan, work, [one.replace("@", f"{here}/..") for one in settings]), depths)
        optimizer = torch.optim.AdamW(predictor.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
        with open(f"{here}/{name}.expected", "w") as out:
            for step in range(STEPS):
                rows = [tokens[(step * BATCH + i) * SEQ:(step * BATCH + i + 1) * SEQ + 1] for i in range(BATCH)]
                rows = torch.stack(rows)
                parts = [(rows[:, :-1], rows[:, 1:])]
                if size:
                    parts = [part for i, row in enumerate(rows)
                             for part in documents_of(row[:-1], row[1:], (step * BATCH + i) * SEQ, size)]
                sums = sum(predictor.losses(*part) for part in parts)
                means = sums / sum((labels != IGNORED).sum() for _, labels in parts)
                optimizer.zero_grad()
                (means[0] + weight * means[1:].mean()).backward()
                norm = torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
                optimizer.step()
                out.write(" ".join(f"{x:.9g}" for x in [means[0].item(), norm.item(), *means[1:].tolist()]) + "\n")
        print(name)


main()
