#!/usr/bin/env python3
"""chat.py > chat.json: conversations as transformers writes them with published templates, in segments
that are trained on (what {% generation %} marks) or not. Needs transformers."""
import json
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    # The documentation's ChatML.
    "chatml": """{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}{%- if message['role'] == 'assistant' %}{%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}{%- else %}{{- message['content'] + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}""",
    # Qwen2.5's, without its branch for tools.
    "qwen": """{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}{%- endif %}{%- for message in messages %}{%- if (message.role == "user") or (message.role == "system" and not loop.first) %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- elif message.role == "assistant" %}{{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}{%- endif %}{%- endfor %}""",
    # Llama 3's; the tokenizer adds the token that begins a text.
    "llama3": """{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}{%- if message['role'] == 'assistant' %}{%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}{%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}""",
}

CONVERSATIONS = [
    [("user", "hi"), ("assistant", "yes")],
    [("system", "be brief"), ("user", "hi "), ("assistant", " yes\n"), ("user", "more"), ("assistant", "no")],
    [("system", " \n "), ("user", "\n\ta\n\nb "), ("assistant", "\n\n"), ("assistant", "two in a row")],
    [("user", "Grüße, 世界 🌍\u00a0"), ("assistant", "“quoted” <b>&amp;</b> {{ braces }} {% no %}")],
    [("system", "s"), ("assistant", "the first word"), ("user", "the last")],
    [("system", ""), ("user", ""), ("assistant", "")],
    [("user", "u"), ("system", "in between"), ("tool", "{\"a\": 1}"), ("assistant", "done")],
]


def segments(text, generated):
    parts, at = [], 0
    for begin, end in generated:
        parts += [[text[at:begin], False], [text[begin:end], True]]
        at = end
    return parts + [[text[at:], False]]


cases = []
for name, template in TEMPLATES.items():
    for turns in CONVERSATIONS:
        if name == "qwen" and (turns[0][0] != "system" or any(role == "tool" for role, _ in turns)):
            continue  # it would add a system message; tools have a form of their own
        messages = [{"role": role, "content": content} for role, content in turns]
        rendered, generated = render_jinja_template(
            conversations=[messages], chat_template=template, return_assistant_tokens_mask=True)
        cases.append({"template": "chatml" if name == "qwen" else name, "of": name,
                      "messages": messages, "segments": segments(rendered[0], generated[0])})
json.dump({"transformers": transformers.__version__, "cases": cases}, sys.stdout, indent=1, ensure_ascii=False)
print()
