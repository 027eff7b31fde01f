#!/usr/bin/env python3
"""A model of transformers, trained by PyTorch: the peer of bench/step's other models.

    python3 bench/peers/transformers_models.py CONFIG NAME float32|bfloat16 --threads N [--steps N] [--rounds N --beside COMMAND]

CONFIG is a folder with a config.json, as `bench/step NAME --config` prints it. Tokens, AdamW, clipping, turns and output are those
of torch_llama.py. bfloat16 runs on bfloat16 copies of float32 weights, or under autocast; experts run one after the other
(eager) or as grouped products. Each way trains two steps first, and the fastest is compared; "way" in the output names it.
"""
import argparse
import os
import statistics
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_llama as peer

SIZE = dict(seq=512, batch=4)  # of bench/step's models with these names


class Model(torch.nn.Module):
    """The sum of the losses of tokens, as the model of torch_llama gives it."""

    def __init__(self, folder, experts):
        super().__init__()
        self.inner = None
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
    def __init__(self, a, way):
        copies, experts = way
        narrow = a.dtype == 'bfloat16'
        self.model = Model(a.config, experts)
        self.weights = peer.Weights(self.model, narrow and copies)
        self.optimizer = torch.optim.AdamW(self.weights.kept, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        vocabulary = self.model.inner.config.vocab_size
        self.tokens = torch.randint(0, vocabulary, (SIZE['batch'], SIZE['seq'] + 1))
        self.microbatch, self.autocast = SIZE['batch'], narrow and not copies
        self.loss = None
        self.steps(1)
        self.usual = min(self.steps(2))


def fastest(a):
    mixture = any(key in AutoConfig.from_pretrained(a.config).to_dict()
                  for key in ('num_experts', 'num_local_experts', 'n_routed_experts'))
    ways = [(copies, experts) for copies in ((True, False) if a.dtype == 'bfloat16' else (False,))
            for experts in (('eager', 'grouped_mm') if mixture else (None,))]
    best = None
    for way in ways:
        try:
            run = Run(a, way)
        except ValueError:
            continue
        if best is None or run.usual < best[0].usual:
            best = run, way
    a.compile = False
    a.model = a.name
    print('way: ' + ' '.join(filter(None, ['copies' if best[1][0] else 'autocast' if a.dtype == 'bfloat16' else '', best[1][1] or ''])),
          file=sys.stderr)
    return best[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('config')
    ap.add_argument('name')
    ap.add_argument('dtype', choices=['float32', 'bfloat16'])
    ap.add_argument('--threads', type=int, required=True)
    ap.add_argument('--steps', type=int, default=3)
    ap.add_argument('--rounds', type=int, default=1)
    ap.add_argument('--beside')
    a = ap.parse_args()
    a.device = 'cpu'
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    run = fastest(a)
    if a.beside:
        peer.take_turns(a, SIZE, run)
    else:
        peer.report(a, SIZE, run, statistics.median(run.steps(a.steps)))


if __name__ == '__main__':
    main()
