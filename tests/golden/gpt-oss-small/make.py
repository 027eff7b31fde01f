"""make.py: writes hf/ and expected.json. Needs torch, transformers and numpy; float64, but for the angles of rope, which
transformers computes in float32."""
import json, os
import numpy, torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

here = os.path.dirname(os.path.abspath(__file__))
c = json.load(open(here + '/case.json'))
n, batch = c['training']['seq_len'], c['training']['global_batch_size']
torch.set_num_threads(1)
torch.manual_seed(c['seed'])
config = GptOssConfig(
    vocab_size=288, hidden_size=64, intermediate_size=24, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, head_dim=16,
    num_local_experts=8, num_experts_per_tok=3, sliding_window=20, swiglu_limit=2.0, max_position_embeddings=512, bos_token_id=0,
    eos_token_id=0, pad_token_id=None, tie_word_embeddings=False,
    rope_parameters={'rope_type': 'yarn', 'rope_theta': 150000.0, 'factor': 8.0, 'beta_fast': 4.0, 'beta_slow': 1.0, 'truncate': False,
                     'original_max_position_embeddings': 64})
model = GptOssForCausalLM(config)
with torch.no_grad():
    for name, p in model.named_parameters():
        if name.endswith('sinks'):
            p.normal_(0.5, 1)
        elif name.endswith('norm.weight'):
            p.normal_(1, 0.1)
        elif 'mlp.router' in name:
            p.normal_(0, 0.2)
        elif 'gate_up_proj' in name:
            p.normal_(0, 0.12)
        else:
            p.normal_(0, 0.06)
model.save_pretrained(here + '/hf')
os.remove(here + '/hf/generation_config.json')


def norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


gate, clamped, margins = gpt_oss.GptOssExperts._apply_gate, [], []


def count(self, gate_up):
    g, u = gate_up[..., ::2], gate_up[..., 1::2]
    clamped.append((g.gt(self.limit).double().mean().item() + u.abs().gt(self.limit).double().mean().item()) / 2)
    margins.append(min((g - self.limit).abs().min().item(), (u.abs() - self.limit).abs().min().item()))
    return gate(self, gate_up)


def route(module, args, out):
    best = out[0].detach().sort(-1, descending=True).values
    margins.append((best[:, module.top_k - 1] - best[:, module.top_k]).min().item())


gpt_oss.GptOssRMSNorm.forward, gpt_oss.GptOssExperts._apply_gate = norm, count
model = GptOssForCausalLM.from_pretrained(here + '/hf', dtype=torch.float64, attn_implementation='eager', experts_implementation='eager')
for m in model.modules():
    if isinstance(m, gpt_oss.GptOssTopKRouter):
        m.register_forward_hook(route)
ids = torch.from_numpy(numpy.fromfile(here + '/tokens.bin', '<u4').astype('int64'))
prompt = json.load(open(here + '/../qwen3-moe-small/expected.json'))['greedy']['prompt']
text = list(prompt)
with torch.no_grad():
    for i in range(24):
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        first = logits if i == 0 else first
        text.append(logits.argmax().item())
greedy = {'prompt': prompt, 'continuation': text[len(prompt):], 'last_logits': first.tolist()}
t = c['training']
rates = json.load(open(here + '/../qwen3-moe-small/expected.json'))['steps']
optimizer = torch.optim.AdamW(model.parameters(), lr=t['lr'], betas=(t['beta1'], t['beta2']), eps=t['eps'], weight_decay=t['weight_decay'])
margins.clear()
steps, norms = [], {}
for step in range(1, t['steps'] + 1):
    windows = [ids[i * n:i * n + n + 1] for i in range((step - 1) * batch, step * batch)]
    x, y = torch.stack([w[:-1] for w in windows]), torch.stack([w[1:] for w in windows])
    loss = torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    if step == 1:
        norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t['max_norm']).item()
    lr = rates[step - 1]['lr']
    optimizer.param_groups[0]['lr'] = lr
    optimizer.step()
    steps.append({'step': step, 'loss': loss.item(), 'grad_norm': norm, 'lr': lr})
json.dump({'steps': steps, 'first_step_grad_norms': norms, 'greedy': greedy}, open(here + '/expected.json', 'w'), indent=1)
print(steps[0], steps[-1], 'clamped:', sum(clamped) / len(clamped), 'nearest to a limit or another choice:', min(margins))
