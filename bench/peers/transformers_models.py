#!/usr/bin/env python3
"""A model of transformers, trained by PyTorch: the peer of bench/step's other models.

    python3 bench/peers/transformers_models.py CONFIG NAME float32|bfloat16 --threads N [--way WAY] [--steps N]
        [--device cpu|cuda] [--seq N] [--batch N] [--microbatch N] [--compile] [--rounds N --beside COMMAND]

CONFIG is a folder with a config.json, as `bench/step NAME --config` prints it. Tokens, AdamW, clipping, turns and output are those
of torch_llama.py. A way is two words with a comma between: bfloat16 runs on bfloat16 `copies` of float32 weights or under
`autocast`; experts run one after the other (`eager`), or as grouped products (`grouped_mm`). Without --way each trains three
steps first, in a process of its own, and the fastest is taken. It is named on stderr. --compile compiles each layer.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_llama as peer


class Model(torch.nn.Module):
    """The sum of the losses of tokens, as the model of torch_llama gives it."""

    def __init__(self, folder, experts):
        super().__init__()
        self.inner = failure = None
        for attention in ('sdpa', 'eager'):  # not every model has both, or ways to run experts
            try:
                config = AutoConfig.from_pretrained(folder)
                ways = dict(experts_implementation=experts) if experts else {}
                self.inner = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32, **ways)
                break
            except ValueError as e:
                failure = e
        if self.inner is None:
            raise failure
        self.inner.train()

    def forward(self, tokens, labels):
        logits = self.inner(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction='sum')


class Run(peer.Run):
    def __init__(self, a, size, microbatch):
        weights, experts = a.way.split(',')
        copies, narrow = weights == 'copies', a.dtype == 'bfloat16'
        with torch.device(a.device):
            self.model = Model(a.config, experts)
        self.weights = peer.Weights(self.model, narrow and copies)
        if a.compile:
            for layer in self.model.inner.model.layers:
                layer.compile()
        self.optimizer = torch.optim.AdamW(self.weights.kept, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        vocabulary = self.model.inner.config.vocab_size
        self.tokens = torch.randint(0, vocabulary, (size['batch'], size['seq'] + 1), device=a.device)
        self.microbatch, self.autocast = microbatch, narrow and not copies
        self.loss = None
        self.steps(1)


def ways_of(a):
    config = AutoConfig.from_pretrained(a.config).to_dict()
    mixture = any(key in config for key in ('num_experts', 'num_local_experts', 'n_routed_experts'))
    return [f'{weights},{experts}' for weights in (('copies', 'autocast') if a.dtype == 'bfloat16' else ('',))
            for experts in (('eager', 'grouped_mm') if mixture else ('',))]


def seconds_of(a, way):
    """Of a step; infinite if the model cannot run so."""
    command = [sys.executable, __file__, a.config, a.name, a.dtype, '--threads', str(a.threads), '--way', way, '--steps', '2',
               '--device', a.device, '--seq', str(a.seq), '--batch', str(a.batch), '--microbatch', str(a.microbatch),
               *(['--compile'] if a.compile else [])]
    out = subprocess.run(command, capture_output=True, text=True)
    return json.loads(out.stdout)['step_seconds'] if out.returncode == 0 else float('inf')


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('config')
    ap.add_argument('name')
    ap.add_argument('dtype', choices=['float32', 'bfloat16'])
    ap.add_argument('--threads', type=int, required=True)
    ap.add_argument('--steps', type=int, default=3)
    ap.add_argument('--rounds', type=int, default=1)
    ap.add_argument('--beside')
    ap.add_argument('--way')
    ap.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    ap.add_argument('--seq', type=int, default=512)  # as bench/step's models with these names
    ap.add_argument('--batch', type=int, default=4)
    ap.add_argument('--microbatch', type=int, default=0)
    ap.add_argument('--compile', action='store_true')
    a = ap.parse_args()
    a.model, size = a.name, dict(seq=a.seq, batch=a.batch)
    if not a.way:
        a.way = min(ways_of(a), key=lambda way: seconds_of(a, way))
        print('way: ' + a.way, file=sys.stderr)
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    run = peer.largest(a, size, Run)
    if a.beside:
        peer.take_turns(a, size, run)
    else:
        peer.report(a, size, run, statistics.median(run.steps(a.steps)))


if __name__ == '__main__':
    main()
