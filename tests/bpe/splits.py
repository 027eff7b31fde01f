#!/usr/bin/env python3
"""splits.py > splits.json: regular expressions that Oniguruma reads otherwise than PCRE2, texts, and
the ids that the tokenizers library gives them with tokenizer.json."""
import json
import os
import random

from tokenizers import Regex, Tokenizer, pre_tokenizers

EXPRESSIONS = [
    r"\s+$", r"^.+", r".+$", r"$\n^", r"(?m).+", r"(?m:t.h)|.", r"(?mi:T.)", r"(?m-i:e.)|n(?-m:.)", r"(?i)t|in",
    r"th{,1}", r"h{,2}?e", r"e{,}", r"\v+", r"[\v\n]+", r"\x{0074}+", r"l*", r"t??", r"e|", r"|th", r"(?=e)", r"(?<=t)",
    r"^", r"$", r"(?=(\d{3})+(?!\d))", r"\s*$",
]
PARTS = ["the", " the", "th", "in", "er", "  ", "\n", "\r\n", " ", "e", "ll", "12", "345", "T", "\v", "\u2028", "é"]


def main():
    library = Tokenizer.from_file(os.path.join(os.path.dirname(__file__), "tokenizer.json"))
    draw = random.Random(1)
    cases = []
    for expression in EXPRESSIONS:
        for behavior, invert in (("isolated", False), ("removed", True)):
            split = pre_tokenizers.Split(Regex(expression), behavior, invert)
            level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            library.pre_tokenizer = pre_tokenizers.Sequence([split, level])
            texts = ["".join(draw.choices(PARTS, k=14)) for _ in range(4)] + ["the\n"]
            ids = [library.encode(text, add_special_tokens=False).ids for text in texts]
            cases.append({"pre_tokenizer": json.loads(library.to_str())["pre_tokenizer"],
                          "texts": [{"text": t, "ids": i} for t, i in zip(texts, ids)]})
    print("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]")


main()
