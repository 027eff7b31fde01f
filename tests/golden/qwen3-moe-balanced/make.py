"""make.py [COEFFICIENT] > expected.json: the case of qwen3-moe-small with transformers' load-balancing loss, of each
sequence and layer, averaged. Needs torch, transformers and numpy; float64. With COEFFICIENT 0, the losses of qwen3-moe-small."""
import json, os, sys
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(here + '/..')
import oracle

coefficient = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
c = json.load(open(here + '/case.json'))['training']
n, batch = c['seq_len'], c['global_batch_size']
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(here + '/hf', dtype=torch.float64, attn_implementation='eager', experts_implementation='eager')
experts, chosen = model.config.num_experts, model.config.num_experts_per_tok
balance = 0


def loss_of(model, x, y):
    global balance
    out = model(input_ids=x, output_router_logits=True, use_cache=False)
    each = [load_balancing_loss_func((layer.view(batch, n, -1)[s],), experts, chosen)
            for layer in out.router_logits for s in range(batch)]
    balance = sum(each) / len(each)
    return torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten())


json.dump(oracle.train(model, here, loss_of, added=lambda: coefficient * balance), sys.stdout, indent=1)
