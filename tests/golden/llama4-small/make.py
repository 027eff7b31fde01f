"""make.py: writes hf/ and expected.json. Needs torch, transformers and numpy; float64, but for the angles of rope, which
transformers computes in float32."""
import json, os
import numpy, torch
from transformers import Llama4ForCausalLM, Llama4TextConfig
from transformers.models.llama4 import modeling_llama4 as llama4

here = os.path.dirname(os.path.abspath(__file__))
c = json.load(open(here + '/case.json'))
n, batch = c['training']['seq_len'], c['training']['global_batch_size']
torch.set_num_threads(1)
torch.manual_seed(c['seed'])
# Layer 2 has no rope, layers 1 and 3 are mixtures; chunks end within sequences.
config = Llama4TextConfig(
    vocab_size=288, hidden_size=64, intermediate_size=24, intermediate_size_mlp=48, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, head_dim=16, num_local_experts=6, num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=3,
    attention_chunk_size=20, floor_scale=8, attn_scale=0.3, max_position_embeddings=512, bos_token_id=0, eos_token_id=0, pad_token_id=None,
    tie_word_embeddings=False,
    rope_parameters={'rope_type': 'llama3', 'rope_theta': 10000.0, 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 1.0,
                     'original_max_position_embeddings': 64})
model = Llama4ForCausalLM(config)
with torch.no_grad():
    for name, p in model.named_parameters():
        if name.endswith('norm.weight'):
            p.normal_(1, 0.1)
        elif 'router' in name:
            p.normal_(0, 0.3)
        else:
            p.normal_(0, 0.06)
model.save_pretrained(here + '/hf')
os.remove(here + '/hf/generation_config.json')


def norm(self, x):
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    return x * self.weight if hasattr(self, 'weight') else x


def rotate(q, k, angles):
    def turn(x):
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * angles[:, :, None, :]).flatten(3)
    return turn(q), turn(k)


nearest = []


def route(self, x):
    logits = torch.nn.functional.linear(x, self.weight)
    best, ids = torch.topk(logits, self.top_k + 1, dim=1)
    nearest.append((best[:, -2] - best[:, -1]).min().item())
    chosen = torch.full_like(logits, float('-inf')).scatter_(1, ids[:, :-1], best[:, :-1])
    return torch.sigmoid(chosen), logits


llama4.Llama4TextRMSNorm.forward = llama4.Llama4TextL2Norm.forward = norm
llama4.apply_rotary_emb, llama4.Llama4Router.forward = rotate, route
model = Llama4ForCausalLM.from_pretrained(here + '/hf', dtype=torch.float64, attn_implementation='eager')
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
print(steps[0], steps[-1], 'choices apart by', min(nearest), norms)
