#!/usr/bin/env python3
"""make.py FOLDER: writes tiny models of transformers, as save_pretrained does with its defaults, into
FOLDER/NAME, each with a tokenizer, a chat template and a generation_config.json."""
import sys

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = ["The quick brown fox jumps over the lazy dog. " * 3,
        "A model learns to write, word by word, line by line.", "Numbers: 0 1 2 3 4 5 6 7 8 9"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>\n{% endfor %}"


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|begin|>", "<|end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin|>", eos_token="<|end|>",
                                      pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    return fast


ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "vocab_size": 320}
tiny = {**ids, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1}
made = {
    "llama": hf.LlamaForCausalLM(hf.LlamaConfig(**tiny)),
    "qwen3": hf.Qwen3ForCausalLM(hf.Qwen3Config(**tiny, head_dim=8)),
    "gpt2": hf.GPT2LMHeadModel(hf.GPT2Config(**ids, n_embd=16, n_layer=2, n_head=2, n_positions=64)),
    "qwen3_moe": hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(
        **tiny, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)),
}
for name, model in made.items():
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.7
    model.to(torch.bfloat16).save_pretrained(f"{sys.argv[1]}/{name}")
    tokenizer().save_pretrained(f"{sys.argv[1]}/{name}")
