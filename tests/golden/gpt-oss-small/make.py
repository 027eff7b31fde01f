"""make.py: writes hf/ and expected.json. Needs torch, transformers and numpy; float64, but for the angles of rope, which
transformers computes in float32."""
import json, os, sys
import torch
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(here + '/..')
import oracle

c = json.load(open(here + '/case.json'))
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
expected = oracle.write_text(model)
margins.clear()
expected = {**oracle.train(model, here), **expected}
json.dump(expected, open(here + '/expected.json', 'w'), indent=1)
print(expected['steps'][0], expected['steps'][-1], 'clamped:', sum(clamped) / len(clamped), 'nearest to a limit or another choice:', min(margins))
