"""make.py > expected.json: the case of this folder, or of the one that is given, whose config.json has a pad_token_id: torch's
embedding gives that row no gradient. Needs torch, transformers and numpy; float64."""
import json, os, sys
import torch
from transformers import AutoModelForCausalLM

here = os.path.dirname(os.path.abspath(__file__))
sys.path.append(here + '/..')
import oracle

folder = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else here
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(folder + '/hf', dtype=torch.float64, attn_implementation='eager')
json.dump(oracle.train(model, folder), sys.stdout, indent=1)
