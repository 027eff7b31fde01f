#!/usr/bin/env python3
"""The same Llama, trained by PyTorch: the peer that bench/step and scripts/gpu-check compare with.

    python3 bench/peers/torch_llama.py debug|124m|1b-layer|1b float32|bfloat16 --threads N [--device cpu|cuda] [--compile]
        [--steps N] [--microbatch N] [--rounds N --beside COMMAND]

Prints one JSON object: tokens per second (median step), seconds per step, peak bytes (resident, or of the
device). RMSNorm, RoPE, SwiGLU, causal attention by scaled_dot_product_attention, AdamW, clipping by norm;
bfloat16 means autocast over float32 weights on the CPU, and bfloat16 copies of float32 weights on a GPU, as
FSDP's mixed precision makes them. --compile compiles each block, and the head with its loss, as
TorchTitan does. A step takes as many sequences at a time as --microbatch says, or as fit into memory.

--beside COMMAND takes turns with another program on the same cores, N rounds of it: COMMAND runs between steps of this one,
and each round prints what it printed, and the median of the steps before and after it.
"""
import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

SIZES = {
    'debug': dict(dim=256, layers=6, heads=16, ffn=768, vocab=2048, seq=256, batch=8),
    '124m': dict(dim=768, layers=12, heads=12, ffn=2048, vocab=32000, seq=512, batch=4),
    '1b-layer': dict(dim=2048, layers=1, heads=16, ffn=8192, vocab=128256, seq=512, batch=2),
    '1b': dict(dim=2048, layers=16, heads=16, ffn=8192, vocab=128256, seq=4096, batch=8, kv_heads=8, tied=True),
}


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend(q, k, v):
    if q.shape[1] != k.shape[1]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
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
    def __init__(self, dim, heads, ffn, kv_heads):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.size = dim // heads
        self.q, self.o = linear(dim, dim), linear(dim, dim)
        self.k, self.v = (linear(dim, kv_heads * self.size) for _ in range(2))
        self.gate, self.up, self.down = linear(dim, ffn), linear(dim, ffn), linear(ffn, dim)
        self.norm1, self.norm2 = Norm(dim), Norm(dim)

    def forward(self, x, cos, sin):
        b, t, dim = x.shape
        h = self.norm1(x)
        q, k, v = (w(h).view(b, t, -1, self.size).transpose(1, 2) for w in (self.q, self.k, self.v))
        a = attend(rotate(q, cos, sin).type_as(v), rotate(k, cos, sin).type_as(v), v)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Head(torch.nn.Module):
    def __init__(self, dim, vocab):
        super().__init__()
        self.norm = Norm(dim)
        self.linear = torch.nn.Linear(dim, vocab, bias=False)

    def forward(self, x, labels):
        logits = self.linear(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction='sum')


class Llama(torch.nn.Module):
    def __init__(self, dim, layers, heads, ffn, vocab, seq, batch, kv_heads=0, tied=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, dim)
        torch.nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = torch.nn.ModuleList(Block(dim, heads, ffn, kv_heads or heads) for _ in range(layers))
        self.head = Head(dim, vocab)
        if tied:
            self.head.linear.weight = self.embedding.weight
        half = dim // heads // 2
        angle = torch.outer(torch.arange(seq), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer('cos', torch.cat((angle, angle), -1).cos())
        self.register_buffer('sin', torch.cat((angle, angle), -1).sin())

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(x, labels)

    def compile_parts(self):
        for module in [*self.layers, self.head]:
            module.compile()


class Weights:
    """What the optimizer works on: the model's own parameters, or float32 masters of bfloat16 ones."""

    def __init__(self, model, masters):
        self.used = list(model.parameters())
        self.kept = [p.detach().float().requires_grad_() for p in self.used] if masters else self.used
        if masters:
            for p in self.used:
                p.data = p.data.bfloat16()

    def take_gradients(self):
        for kept, used in zip(self.kept, self.used):
            if kept is not used:
                kept.grad = used.grad.float() if kept.grad is None else kept.grad.add_(used.grad)
                used.grad = None

    def hand_back(self):
        if self.kept is not self.used:
            with torch.no_grad():
                torch._foreach_copy_(self.used, self.kept)


def step(model, weights, optimizer, tokens, microbatch, autocast):
    count = tokens.shape[0] * (tokens.shape[1] - 1)
    total = 0.0
    for shard in tokens.split(microbatch):
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            loss = model(shard[:, :-1], shard[:, 1:]) / count
        loss.backward()
        weights.take_gradients()
        total = total + loss.detach()
    torch.nn.utils.clip_grad_norm_(weights.kept, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    weights.hand_back()
    return float(total)  # waits for the device


class Run:
    """A model in training on random tokens."""

    def __init__(self, a, size, microbatch):
        narrow = a.dtype == 'bfloat16'
        self.model = Llama(**size).to(a.device)
        self.weights = Weights(self.model, narrow and a.device == 'cuda')
        if a.compile:
            self.model.compile_parts()
        options = dict(fused=True) if torch.__version__ >= '2.4' else {}
        self.optimizer = torch.optim.AdamW(self.weights.kept, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **options)
        self.tokens = torch.randint(0, size['vocab'], (size['batch'], size['seq'] + 1), device=a.device)
        self.microbatch, self.autocast = microbatch, narrow and a.device == 'cpu'
        self.loss = None
        self.steps(2)

    def steps(self, count):
        """Seconds of each."""
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.loss = step(self.model, self.weights, self.optimizer, self.tokens, self.microbatch, self.autocast)
            times.append(time.perf_counter() - begin)
        return times


def peak(device):
    return torch.cuda.max_memory_allocated() if device == 'cuda' else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def report(a, size, run, seconds):
    print(json.dumps(dict(peer='torch ' + torch.__version__, model=a.model, dtype=a.dtype, device=a.device, compiled=a.compile,
                          threads=a.threads, microbatch=run.microbatch, loss=run.loss, peak_bytes=peak(a.device), step_seconds=seconds,
                          tokens_per_second=size['batch'] * size['seq'] / seconds)), flush=True)


def take_turns(a, size, run):
    environment = {name: value for name, value in os.environ.items() if name != 'GLIBC_TUNABLES'}  # this program's own
    before = run.steps(a.steps)
    for _ in range(a.rounds):
        print(subprocess.run(a.beside, shell=True, check=True, capture_output=True, text=True, env=environment).stdout, end='')
        after = run.steps(a.steps)
        report(a, size, run, statistics.median(before + after))
        before = after


def largest(a, size, run=Run):
    """The first that fits: the whole batch, half of it, ..."""
    microbatch = a.microbatch or size['batch']
    while True:
        try:
            return run(a, size, microbatch)
        except torch.OutOfMemoryError:
            if a.microbatch or microbatch == 1:
                raise
        gc.collect()
        torch.cuda.empty_cache()
        microbatch //= 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('model', choices=SIZES)
    ap.add_argument('dtype', choices=['float32', 'bfloat16'])
    ap.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    ap.add_argument('--compile', action='store_true')
    ap.add_argument('--steps', type=int, default=6)
    ap.add_argument('--threads', type=int, required=True)
    ap.add_argument('--microbatch', type=int, default=0)
    ap.add_argument('--rounds', type=int, default=1)
    ap.add_argument('--beside')
    a = ap.parse_args()
    size = SIZES[a.model]
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    run = largest(a, size)
    if a.beside:
        take_turns(a, size, run)
    else:
        report(a, size, run, statistics.median(run.steps(a.steps)))


if __name__ == '__main__':
    main()
