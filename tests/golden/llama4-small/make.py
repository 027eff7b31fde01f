"""make.py: writes hf/ and expected.json. Needs torch, transformers and numpy; float64, but for the angles of rope, which
transformers computes in float32."""
import json, os, sys
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig
from transformers.models.llama4 import modeling_llama4 as llama4

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(here + '/..')
import oracle

c = json.load(open(here + '/case.json'))
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
expected = oracle.write_text(model)
expected = {**oracle.train(model, here), **expected}
json.dump(expected, open(here + '/expected.json', 'w'), indent=1)
print(expected['steps'][0], expected['steps'][-1], 'choices apart by', min(nearest), expected['first_step_grad_norms'])
