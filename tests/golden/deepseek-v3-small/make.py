"""make.py: writes hf/ and expected.json. Needs torch, transformers and numpy; float64, but for the router and the angles of rope,
which transformers computes in float32. Between steps, each expert's bias moves by 1e-3 against the sign of its excess of choices."""
import json, os, sys
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(here + '/..')
import oracle

c = json.load(open(here + '/case.json'))
torch.set_num_threads(1)
torch.manual_seed(c['seed'])
config = DeepseekV3Config(
    vocab_size=288, hidden_size=64, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=3, first_k_dense_replace=1,
    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
    n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.7,
    max_position_embeddings=512, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    rope_parameters={'rope_type': 'yarn', 'rope_theta': 10000.0, 'factor': 8.0, 'beta_fast': 4.0, 'beta_slow': 1.0, 'mscale': 0.8,
                     'mscale_all_dim': 0.8, 'original_max_position_embeddings': 64})
model = DeepseekV3ForCausalLM(config)
routers = [m for m in model.modules() if isinstance(m, DeepseekV3TopkRouter)]
with torch.no_grad():
    for name, p in model.named_parameters():
        if p.ndim > 1:
            p.normal_(0, 0.06)
        else:
            p.normal_(1, 0.1)
    for r in routers:
        r.weight.normal_(0, 0.2)
        r.e_score_correction_bias.normal_(0, 0.02)
model.save_pretrained(here + '/hf')
os.remove(here + '/hf/generation_config.json')
model = DeepseekV3ForCausalLM.from_pretrained(here + '/hf', dtype=torch.float64, attn_implementation='eager', experts_implementation='eager')
routers = [m for m in model.modules() if isinstance(m, DeepseekV3TopkRouter)]
chosen = {}
for i, r in enumerate(routers):
    r.register_forward_hook(lambda module, args, out, i=i: chosen.__setitem__(i, out[2].detach()))


def correct():
    for i, r in enumerate(routers):
        load = torch.bincount(chosen[i].flatten(), minlength=config.n_routed_experts)
        r.e_score_correction_bias -= 1e-3 * torch.sign(load - load.double().mean())


expected = oracle.train(model, here, after_step=correct)
json.dump(expected, open(here + '/expected.json', 'w'), indent=1)
print(expected['steps'][0], expected['steps'][-1], [r.e_score_correction_bias.tolist() for r in routers])
