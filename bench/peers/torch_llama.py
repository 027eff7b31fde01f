#!/usr/bin/env python3
"""The same Llama, trained by PyTorch on the CPU: the peer that bench/step compares with.

    python3 bench/peers/torch_llama.py debug|124m float32|bfloat16 [--compile] [--steps N] [--threads N]

Prints one JSON object: tokens per second (median step), seconds per step, peak resident bytes. RMSNorm,
RoPE, SwiGLU, causal attention by scaled_dot_product_attention, AdamW, clipping by norm; bfloat16 means
autocast over float32 weights, as PyTorch users train on a CPU.
"""
import argparse
import json
import resource
import statistics
import time

import torch
import torch.nn.functional as F

SIZES = {
    'debug': dict(dim=256, layers=6, heads=16, ffn=768, vocab=2048, seq=256, batch=8),
    '124m': dict(dim=768, layers=12, heads=12, ffn=2048, vocab=32000, seq=512, batch=4),
}


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend(q, k, v):
    if hasattr(F, 'scaled_dot_product_attention'):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    t, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / d ** 0.5
    mask = torch.full((t, t), float('-inf')).triu(1).type_as(scores)
    return (scores + mask).softmax(-1).type_as(v) @ v


class Norm(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return h.type_as(x) * self.weight


class Block(torch.nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.heads = heads
        self.q, self.k, self.v, self.o = (linear(dim, dim) for _ in range(4))
        self.gate, self.up, self.down = linear(dim, ffn), linear(dim, ffn), linear(ffn, dim)
        self.norm1, self.norm2 = Norm(dim), Norm(dim)

    def forward(self, x, cos, sin):
        b, t, dim = x.shape
        h = self.norm1(x)
        q, k, v = (w(h).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        a = attend(rotate(q, cos, sin).type_as(v), rotate(k, cos, sin).type_as(v), v)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(torch.nn.Module):
    def __init__(self, dim, layers, heads, ffn, vocab, seq, batch):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, dim)
        self.layers = torch.nn.ModuleList(Block(dim, heads, ffn) for _ in range(layers))
        self.norm = Norm(dim)
        self.head = torch.nn.Linear(dim, vocab, bias=False)
        half = dim // heads // 2
        angle = torch.outer(torch.arange(seq), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer('cos', torch.cat((angle, angle), -1).cos())
        self.register_buffer('sin', torch.cat((angle, angle), -1).sin())

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('model', choices=SIZES)
    ap.add_argument('dtype', choices=['float32', 'bfloat16'])
    ap.add_argument('--compile', action='store_true')
    ap.add_argument('--steps', type=int, default=6)
    ap.add_argument('--threads', type=int, default=2)
    a = ap.parse_args()
    size = SIZES[a.model]
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = Llama(**size)
    step_model = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True) \
        if torch.__version__ >= '2.4' else torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, size['vocab'], (size['batch'], size['seq'] + 1))
    times = []
    for _ in range(a.steps + 2):
        begin = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, enabled=a.dtype == 'bfloat16'):
            loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times[2:])
    print(json.dumps(dict(peer='torch ' + torch.__version__, model=a.model, dtype=a.dtype, compiled=a.compile, threads=a.threads,
                          tokens_per_second=size['batch'] * size['seq'] / seconds, step_seconds=seconds, loss=float(loss),
                          peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))


main()
