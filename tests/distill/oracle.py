"""Losses and gradient norms of distillation by PyTorch and transformers, in float64, and the file of the teacher.

    oracle.py FOLDER case DIR                               documents.jsonl and teacher.top, of a teacher made of random numbers
    oracle.py FOLDER losses FILE T HARD forward|reverse K OUT      a line "loss norm divergence cross_entropy" for each of four steps
    oracle.py FOLDER top FILE K OUT                         the K likeliest tokens of FOLDER's model for each label of FILE's documents

Documents are pairs that fill a row, in the order of the file. The teacher's logits depend on the last token alone.
"""
import json
import struct
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

ROWS, SEQ, STORED, VOCABULARY = 8, 24, 6, 320
folder, what = sys.argv[1:3]


def teacher_table():
    return torch.from_numpy(np.random.default_rng(3).normal(size=(VOCABULARY, VOCABULARY)) * 2)


def row_of(pair):
    """Tokens and labels of two documents."""
    tokens, labels = [], []
    for d in pair:
        tokens += d["ids"]
        labels += d["labels"][1:] + [-100]
    return tokens, labels


def hash_of(tokens, labels):
    last = max(i for i, label in enumerate(labels) if label != -100)
    h = 0xcbf29ce484222325
    for pair in list(zip(tokens, labels))[:last + 1]:
        for value in pair:
            h = ((h ^ (value & 0xffffffff)) * 0x100000001b3) & 0xffffffffffffffff
    return h


def likeliest(logits, k):
    top = torch.topk(torch.log_softmax(logits, -1), k)
    return top.indices, top.values


def write(path, hashes, ids, logps):
    """A file of samples."""
    arrays = [("hash", "I64", np.array(hashes, "<u8")), ("ids", "I32", ids.astype("<i4")), ("logps", "F32", logps.astype("<f4"))]
    header, at = {}, 0
    for name, dtype, a in arrays:
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for _, _, a in arrays))


def make_case(out):
    rng, table, hashes = np.random.default_rng(1), teacher_table(), []
    ids, logps = np.zeros((ROWS, SEQ, STORED)), np.zeros((ROWS, SEQ, STORED))
    with open(out + "/documents.jsonl", "w") as file:
        for row in range(ROWS):
            first, pair = int(rng.integers(6, 19)), []
            for size in (first, SEQ - first):
                tokens = [int(x) for x in rng.integers(4, VOCABULARY, size)]
                trained = int(rng.integers(1, size - 2))
                pair.append({"ids": tokens, "labels": [-100] * trained + tokens[trained:]})
                file.write(json.dumps(pair[-1]) + "\n")
            tokens, labels = row_of(pair)
            hashes.append(hash_of(tokens, labels))
            for i, label in enumerate(labels):
                if label != -100:
                    ids[row, i], logps[row, i] = (x.numpy() for x in likeliest(table[tokens[i]], STORED))
    order = rng.permutation(ROWS)  # that of the file does not matter
    write(out + "/teacher.top", [hashes[i] for i in order], ids[order], logps[order])


def documents(path):
    return [json.loads(line) for line in open(path)]


def losses(path, temperature, hard, kind, k, out):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0)
    table = teacher_table()
    with open(out, "w") as file:
        for _ in range(4):
            optimizer.zero_grad()
            divergence, entropy, count = 0, 0, 0
            for d in documents(path):
                tokens, labels = torch.tensor(d["ids"]), torch.tensor(d["labels"][1:])
                kept = labels != -100
                logits = model(tokens[None]).logits[0, :-1][kept]
                ids, logps = likeliest(table[tokens[:-1][kept]], k)
                p = torch.log_softmax(logps.float().double() / temperature, -1)  # float32 is what is stored
                if kind == "forward":
                    q = torch.log_softmax(logits / temperature, -1).gather(-1, ids)
                    divergence = divergence + (p.exp() * (p - q)).sum()
                else:
                    q = torch.log_softmax(logits.gather(-1, ids) / temperature, -1)
                    divergence = divergence + (q.exp() * (q - p)).sum()
                entropy = entropy + torch.nn.functional.cross_entropy(logits, labels[kept], reduction="sum")
                count += int(kept.sum())
            loss = (hard * entropy + (1 - hard) * temperature**2 * divergence) / count
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            file.write(" ".join(f"{x.item():.12g}" for x in (loss, norm, divergence / count, entropy / count)) + "\n")


def top(path, k, out):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with open(out, "w") as file, torch.no_grad():
        for d in documents(path):
            logits = model(torch.tensor([d["ids"]])).logits[0, :-1]
            for i, label in enumerate(d["labels"][1:]):
                if label != -100:
                    ids, logps = likeliest(logits[i], k)
                    file.write(" ".join(f"{a} {b:.7g}" for a, b in zip(ids.tolist(), logps.tolist())) + "\n")


if what == "case":
    make_case(sys.argv[3])
elif what == "losses":
    losses(sys.argv[3], float(sys.argv[4]), float(sys.argv[5]), sys.argv[6], int(sys.argv[7]), sys.argv[8])
else:
    top(sys.argv[3], int(sys.argv[4]), sys.argv[5])
