#!/usr/bin/env python3
"""Fine-tuning by transformers, and by peft: the peer of bench/finetune/run.

    peer.py model FOLDER ADAPTER    writes a small model with random weights, and adapters for it
    peer.py data FILE               writes 512 conversations as lines of ids, of which the last half is trained on
    peer.py train FOLDER ADAPTER FILE full|lora float32|bfloat16 BATCH STEPS THREADS
    peer.py peak COMMAND..          runs a command, and prints the bytes of memory that it had at most

train prints a line for each step: its seconds, its tokens without padding, and its loss; then the bytes of memory that it had at most.
Sequences of a batch are padded to the longest of them. bfloat16 means autocast over float32 weights.
"""
import json
import random
import resource
import subprocess
import sys
import time

SIZES = dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6, vocab_size=8192,
             max_position_embeddings=2048)
LINES, LONGEST = 512, 512


def peak(who):
    return resource.getrusage(who).ru_maxrss * 1024


def model(folder, adapter):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    net = LlamaForCausalLM(LlamaConfig(**SIZES))
    net.save_pretrained(folder)
    net = get_peft_model(net, LoraConfig(r=8, lora_alpha=16, target_modules='all-linear', task_type='CAUSAL_LM'))
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if 'lora_B' in name:
                weight.normal_(0, 0.01)
    net.save_pretrained(adapter)


def data(file):
    draw = random.Random(1)
    with open(file, 'w') as out:
        for _ in range(LINES):
            size = min(LONGEST, int(draw.lognormvariate(4.8, 0.7)) + 16)
            ids = [draw.randrange(SIZES['vocab_size']) for _ in range(size)]
            labels = [-100 if i < size // 2 else t for i, t in enumerate(ids)]
            out.write(json.dumps({'ids': ids, 'labels': labels}) + '\n')


def batch_of(lines):
    import torch
    width = max(len(line['ids']) for line in lines)
    pad = lambda values, by: values + [by] * (width - len(values))
    return {'input_ids': torch.tensor([pad(line['ids'], 0) for line in lines]),
            'labels': torch.tensor([pad(line['labels'], -100) for line in lines]),
            'attention_mask': torch.tensor([pad([1] * len(line['ids']), 0) for line in lines])}


def train(folder, adapter, file, how, dtype, batch, steps, threads):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    lines = [json.loads(line) for line in open(file)]
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if how == 'lora':
        from peft import PeftModel
        net = PeftModel.from_pretrained(net, adapter, is_trainable=True)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    net.train()
    for step in range(steps):
        chosen = [lines[(step * batch + i) % len(lines)] for i in range(batch)]
        begin = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'bfloat16'):
            loss = net(**batch_of(chosen)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(time.perf_counter() - begin, sum(len(line['ids']) for line in chosen), loss.item(), flush=True)
    print(peak(resource.RUSAGE_SELF))


if sys.argv[1] == 'train':
    train(*sys.argv[2:7], *map(int, sys.argv[7:]))
elif sys.argv[1] == 'peak':
    status = subprocess.call(sys.argv[2:], stdout=sys.stderr)
    print(peak(resource.RUSAGE_CHILDREN))
    sys.exit(status)
else:
    {'model': model, 'data': data}[sys.argv[1]](*sys.argv[2:])
