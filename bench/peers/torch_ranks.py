#!/usr/bin/env python3
"""The Llama of torch_llama.py on several ranks of this machine, by PyTorch over gloo: the peer of `bench/compare --ranks`.

    python3 bench/peers/torch_ranks.py debug|124m float32|bfloat16 fsdp|hsdp|tp|1f1b --ranks N [--threads T] [--compile] [--steps N]
        [--rank R --at ADDRESS:PORT]

With --rank this process is one rank, and --at is where the first one listens, for ranks of several hosts; otherwise it starts all.
hsdp is fsdp in two groups of neighbours, with copies. fsdp is FSDP2 (fully_shard by block, bfloat16 parameters and float32 reductions), tp is DTensor's plan of TorchTitan with loss
parallel, 1f1b is torch.distributed.pipelining with microbatches of two sequences. Each rank has its own process and T threads.
Prints one JSON object: the median step, seconds from the command to the end of the first step, and the largest process.
"""
import time

began = time.time()

import argparse  # noqa: E402: what importing takes counts
import contextlib
import json
import os
import resource
import statistics
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from torch_llama import SIZES, Llama

MICROBATCH = 2  # sequences of a pipeline


class Stage(torch.nn.Module):
    """The layers of one rank of a pipeline; embedding and head on the first and the last."""

    def __init__(self, model, rank, ranks):
        super().__init__()
        layers = len(model.layers)
        self.embedding = model.embedding if rank == 0 else None
        self.layers = model.layers[layers * rank // ranks:layers * (rank + 1) // ranks]
        self.head = model.head if rank + 1 == ranks else None
        self.register_buffer('cos', model.cos)
        self.register_buffer('sin', model.sin)

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head.linear(self.head.norm(x)) if self.head else x


def shard_fully(model, mesh, dtype):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in [*model.layers, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)


def split_tensors(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    for layer in model.layers:
        parallelize_module(layer, mesh, {**{name: ColwiseParallel() for name in ('q', 'k', 'v', 'gate', 'up')},
                                         **{name: RowwiseParallel() for name in ('o', 'down')}})
    parallelize_module(model, mesh, {
        'embedding': RowwiseParallel(input_layouts=Replicate()),
        'head.linear': ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})


def clip(parameters):
    """To a norm of 1. torch's own function takes either plain tensors or DTensors."""
    groups = [[p for p in parameters if isinstance(p, DTensor) == kind] for kind in (False, True)]
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups if group]
    total = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    for group in groups:
        if group:
            torch.nn.utils.clip_grads_with_norm_(group, 1.0, total)


def compile_layers(a, model):
    for layer in model.layers if a.compile else ():
        layer.compile()


def stepper(a, model, rank, size):
    """A function that runs the forward and backward of a step."""
    dtype = torch.bfloat16 if a.dtype == 'bfloat16' else torch.float32
    shards = a.how in ('fsdp', 'hsdp')
    if a.how == 'hsdp':
        mesh = init_device_mesh('cpu', (2, a.ranks // 2), mesh_dim_names=('replicate', 'shard'))
    else:
        mesh = init_device_mesh('cpu', (a.ranks,))
    generator = torch.Generator().manual_seed(rank if shards else 0)
    batch = size['batch'] // a.ranks if shards else size['batch']
    tokens = torch.randint(0, size['vocab'], (batch, size['seq'] + 1), generator=generator)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    autocast = torch.autocast('cpu', torch.bfloat16, enabled=dtype == torch.bfloat16 and not shards)
    loss_context = contextlib.nullcontext

    if a.how == '1f1b':
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        module = Stage(model, rank, a.ranks)
        compile_layers(a, module)
        stage = PipelineStage(module, rank, a.ranks, torch.device('cpu'))
        loss = lambda y, t: F.cross_entropy(y.flatten(0, 1).float(), t.flatten(), reduction='sum') / labels.numel()
        schedule = Schedule1F1B(stage, size['batch'] // MICROBATCH, loss_fn=loss, scale_grads=False)

        def run():
            with autocast:
                schedule.step(*([inputs] if rank == 0 else []), **({'target': labels} if rank + 1 == a.ranks else {}))
        return run, module
    compile_layers(a, model)
    if shards:
        shard_fully(model, mesh, dtype)
    else:
        from torch.distributed.tensor.parallel import loss_parallel
        split_tensors(model, mesh)
        loss_context = loss_parallel

    def run():
        with loss_context():
            with autocast:
                loss = model(inputs, labels) / labels.numel()
            loss.backward()
    return run, model


def worker(rank, a, store, results):
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    dist.init_process_group('gloo', init_method=f'tcp://{a.at}' if a.at else 'file://' + store, rank=rank, world_size=a.ranks)
    size = SIZES[a.model]
    run, model = stepper(a, Llama(**size), rank, size)
    parameters = list(model.parameters())
    kinds = [[p for p in parameters if isinstance(p, DTensor) == kind] for kind in (False, True)]
    optimizer = torch.optim.AdamW([{'params': k} for k in kinds if k], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, first = [], 0
    for _ in range(a.steps + 2):
        dist.barrier()
        begin = time.perf_counter()
        run()
        clip(parameters)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - begin)
        first = first or time.time() - a.began
    memory = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024], dtype=torch.int64)
    dist.all_reduce(memory, dist.ReduceOp.MAX)
    if rank == 0:
        results(dict(step_seconds=statistics.median(times[2:]), first_step_seconds=first, peak_bytes=int(memory)))
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('model', choices=['debug', '124m'])
    ap.add_argument('dtype', choices=['float32', 'bfloat16'])
    ap.add_argument('how', choices=['fsdp', 'hsdp', 'tp', '1f1b'])
    ap.add_argument('--ranks', type=int, default=2)
    ap.add_argument('--threads', type=int, default=1)
    ap.add_argument('--steps', type=int, default=6)
    ap.add_argument('--compile', action='store_true')
    ap.add_argument('--rank', type=int)
    ap.add_argument('--at')
    a = ap.parse_args()
    a.began = began
    say = lambda row: print(json.dumps(dict(peer='torch ' + torch.__version__, how=a.how, compiled=a.compile, **row)))
    if a.rank is not None:
        worker(a.rank, a, '', say)
        return
    results = torch.multiprocessing.get_context('spawn').SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, (a, os.path.join(folder, 'store'), results.put), a.ranks)
    say(results.get())


if __name__ == '__main__':
    main()
