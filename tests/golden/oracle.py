"""What the make.py of the cases share: training by torch, and what a model writes. Needs torch and numpy."""
import json, os
import numpy, torch

here = os.path.dirname(os.path.abspath(__file__))
reference = json.load(open(here + '/qwen3-moe-small/expected.json'))  # learning rates, and a prompt


def cross_entropy(model, x, y):
    return torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten())


def train(model, folder, loss_of=cross_entropy, added=lambda: 0, after_step=lambda: None):
    """Steps and norms of the case in `folder`. added(): what the gradient is of, too; it is called after loss_of."""
    t = json.load(open(folder + '/case.json'))['training']
    n, batch = t['seq_len'], t['global_batch_size']
    ids = torch.from_numpy(numpy.fromfile(folder + '/tokens.bin', '<u4').astype('int64'))
    optimizer = torch.optim.AdamW(model.parameters(), lr=t['lr'], betas=(t['beta1'], t['beta2']), eps=t['eps'], weight_decay=t['weight_decay'])
    steps, norms = [], {}
    for step in range(1, t['steps'] + 1):
        windows = [ids[i * n:i * n + n + 1] for i in range((step - 1) * batch, step * batch)]
        loss = loss_of(model, torch.stack([w[:-1] for w in windows]), torch.stack([w[1:] for w in windows]))
        optimizer.zero_grad()
        (loss + added()).backward()
        if step == 1:
            norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t['max_norm']).item()
        lr = optimizer.param_groups[0]['lr'] = reference['steps'][step - 1]['lr']
        optimizer.step()
        after_step()
        steps.append({'step': step, 'loss': loss.item(), 'grad_norm': norm, 'lr': lr})
    return {'steps': steps, 'first_step_grad_norms': norms}


def write_text(model, count=24):
    """The likeliest tokens after a prompt, and the logits of the first."""
    prompt = reference['greedy']['prompt']
    text = list(prompt)
    with torch.no_grad():
        for i in range(count):
            logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
            first = logits if i == 0 else first
            text.append(logits.argmax().item())
    return {'greedy': {'prompt': prompt, 'continuation': text[len(prompt):], 'last_logits': first.tolist()}}
