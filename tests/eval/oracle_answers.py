"""Questions whose answers a model writes, and their scores, by transformers and in float64, as lm-evaluation-harness defines them.

    oracle_answers.py FOLDER QUESTIONS ANSWERS OUT      ANSWERS: lines of prompts and answers; OUT: "loss exact_match", and then with
                                                        ignore_case, ignore_punctuation and ignore_numbers

Of each three questions one has the answer that the model writes, one that with other letters, punctuation and digits, and one another.
"""
import json
import string
import sys

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

TOKENS, STOP = 6, "then"
folder, questions, answers, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
ends = json.load(open(folder + "/generation_config.json")).get("eos_token_id")
ends = ends if isinstance(ends, list) else [ends]


def encode(text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def write(prompt):
    ids, given = encode(prompt), len(encode(prompt))
    with torch.no_grad():
        while len(ids) - given < TOKENS:
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if token in ends:
                break
            ids.append(token)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    return whole[len(tokenizer.decode(ids[:given], skip_special_tokens=False)):].split(STOP)[0]


def loss(prompt, answer):
    first, whole = len(encode(prompt.rstrip())), encode(prompt + answer)
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([whole])).logits[0, :-1], -1)
    return -sum(logp[i - 1, whole[i]].item() for i in range(first, len(whole))), len(whole) - first


def same(a, b, plain):
    if not plain:
        for remove in (string.punctuation, string.digits):
            a, b = (x.lower().translate(str.maketrans("", "", remove)) for x in (a, b))
    return a.strip() == b.strip()


total, count, right, lines = 0, 0, [0, 0], 0
with open(answers, "w") as file:
    for i, line in enumerate(open(questions)):
        prompt = json.loads(line)["prompt"]
        written = write(prompt)
        answer = (written, written.upper() + "!7", written + " a hill")[i % 3]
        if not answer.strip():
            continue
        file.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
        nll, labels = loss(prompt, answer)
        total, count, lines = total + nll, count + labels, lines + 1
        for k in range(2):
            right[k] += same(written, answer, k == 0)
with open(out, "w") as file:
    file.write(f"{total / count:.12g} {right[0] / lines:.12g}\n{total / count:.12g} {right[1] / lines:.12g}\n")
