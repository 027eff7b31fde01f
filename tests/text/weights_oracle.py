"""Losses and gradient norms of weighted labels by PyTorch and transformers, in float64: all documents are a step.

    weights_oracle.py FOLDER LINES labels|sequences OUT      a line "loss norm" for each of three steps
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM

folder, lines, what, out = sys.argv[1:]
lines = [json.loads(line) for line in open(lines)]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
with open(out, "w") as file:
    for _ in range(3):
        optimizer.zero_grad()
        total, weights = 0, 0
        for line in lines:
            ids = torch.tensor([line["ids"]])
            own = torch.tensor(line["weights"][1:], dtype=torch.float64)
            if what == "sequences" and own.sum() > 0:
                own = own / own.sum()
            logp = torch.log_softmax(model(ids).logits[0, :-1], -1)
            total = total - (own * logp[torch.arange(len(own)), ids[0, 1:]]).sum()
            weights = weights + own.sum()
        loss = total / weights
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        file.write(f"{loss.item():.12g} {norm.item():.12g}\n")
