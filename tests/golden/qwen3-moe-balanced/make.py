"""make.py [COEFFICIENT] > expected.json: the case of qwen3-moe-small with transformers' load-balancing loss, of each
sequence and layer, averaged. Needs torch, transformers and numpy; float64. With COEFFICIENT 0, the losses of qwen3-moe-small."""
import json, os, sys
import numpy, torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

here = os.path.dirname(os.path.abspath(__file__))
coefficient = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
c = json.load(open(here + '/case.json'))['training']
n, batch = c['seq_len'], c['global_batch_size']
torch.set_num_threads(1)
ids = torch.from_numpy(numpy.fromfile(here + '/tokens.bin', '<u4').astype('int64'))
model = AutoModelForCausalLM.from_pretrained(here + '/hf', dtype=torch.float64, attn_implementation='eager', experts_implementation='eager')
rates = json.load(open(here + '/../qwen3-moe-small/expected.json'))['steps']
experts, chosen = model.config.num_experts, model.config.num_experts_per_tok
optimizer = torch.optim.AdamW(model.parameters(), lr=c['lr'], betas=(c['beta1'], c['beta2']), eps=c['eps'], weight_decay=c['weight_decay'])
steps, norms, first = [], {}, 0
for step in range(1, c['steps'] + 1):
    windows = [ids[i * n:i * n + n + 1] for i in range((step - 1) * batch, step * batch)]
    x, y = torch.stack([w[:-1] for w in windows]), torch.stack([w[1:] for w in windows])
    out = model(input_ids=x, output_router_logits=True, use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten())
    balance = [load_balancing_loss_func((layer.view(batch, n, -1)[s],), experts, chosen)
               for layer in out.router_logits for s in range(batch)]
    balance = sum(balance) / len(balance)
    optimizer.zero_grad()
    (loss + coefficient * balance).backward()
    if step == 1:
        norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c['max_norm']).item()
    lr = rates[step - 1]['lr']
    optimizer.param_groups[0]['lr'] = lr
    optimizer.step()
    steps.append({'step': step, 'loss': loss.item(), 'grad_norm': norm, 'lr': lr})
    print(step, loss.item(), balance.item(), file=sys.stderr)
json.dump({'steps': steps, 'first_step_grad_norms': norms}, sys.stdout, indent=1)
