#!/usr/bin/env python3
"""oracle.py [--write] [N]: N random conversations (200) for each template, rendered by transformers' apply_chat_template,
and by the test program beside it in the build, which compares. --write: cases.json, a few of them, for the suite.

    python3 tests/jinja/oracle.py build/tests/jinja/test_jinja        (needs transformers and jinja2)
"""
import json, os, random, subprocess, sys, tempfile
from transformers.utils.chat_template_utils import render_jinja_template

here = os.path.dirname(os.path.abspath(__file__))
WORDS = ['alpha', 'beta', "it's", 'a "b"', '<x>', '&', 'é', '日本', '😀', '\\', '{{ no }}', '\n', '\n\n', '  ', '\t', 'eee', '0.5', '</think>', '<think>', 'z']
TOOLS = [{'type': 'function', 'function': {'name': 'weather', 'description': 'The "weather".', 'parameters': {'type': 'object', 'properties': {
    'place': {'type': 'string'}, 'days': {'type': 'integer'}, 'units': {'enum': ['c', 'f']}, 'list': {'type': 'array', 'items': {'type': 'float'}}}, 'required': ['place']}}},
    {'type': 'function', 'function': {'name': 'now', 'description': '', 'parameters': {'type': 'object', 'properties': {}}, 'return': {'type': 'string'}}}]


def text(r):
    return ''.join(r.choice(WORDS) + r.choice(['', ' ']) for _ in range(r.randint(0, 9)))


def content(r, parts):
    if parts and r.random() < 0.2:
        return [{'type': 'text', 'text': text(r)} if r.random() < 0.8 else {'type': 'image', 'text': ''} for _ in range(r.randint(1, 3))]
    return text(r)


def conversation(r):
    messages = []
    plain, parts = r.random() < 0.5, r.random() < 0.3
    if r.random() < 0.5:
        messages.append({'role': 'system', 'content': text(r)})
    for _ in range(r.randint(1, 4)):
        messages.append({'role': 'user', 'content': content(r, parts)})
        if not plain and r.random() < 0.4:
            calls = [{'id': 'c%d' % i, 'type': 'function', 'function': {'name': 'weather', 'arguments': {'place': text(r), 'days': r.randint(-2, 5), 'f': r.choice([0.1, 2.0, 1e20, True, None])}}}
                     for i in range(r.randint(1, 2))]
            messages.append({'role': 'assistant', 'content': text(r), 'tool_calls': calls})
            messages += [{'role': 'tool', 'content': text(r)} for _ in calls]
        if plain or r.random() < 0.8:
            messages.append({'role': 'assistant', 'content': text(r)})
    variables = {'messages': messages, 'add_generation_prompt': r.random() < 0.3, 'bos_token': '<s>', 'eos_token': '</s>'}
    if r.random() < 0.4:
        variables['tools'] = TOOLS[:r.randint(1, 2)]
    if r.random() < 0.2:
        variables['enable_thinking'] = False
    if r.random() < 0.3:
        variables['date_string'] = '1 Jan 2025'
    return variables


def spans_in_bytes(text, spans):
    return [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans]


def case(name, source, variables):
    v = json.loads(json.dumps(variables))
    out = {'template': name, 'variables': variables}
    messages, tools = v.pop('messages'), v.pop('tools', None)
    v.setdefault('date_string', '26 Jul 2024')
    variables.setdefault('date_string', '26 Jul 2024')
    if tools is None:
        variables['tools'] = None  # as apply_chat_template hands it over
    try:
        marks = '{% generation' in source
        rendered, spans = render_jinja_template([messages], tools=tools, chat_template=source, return_assistant_tokens_mask=marks, **v)
        out['text'] = rendered[0]
        out['answers'] = spans_in_bytes(rendered[0], spans[0]) if marks else []
    except Exception as e:
        out['error'] = str(e)
    return out


def main():
    args = [a for a in sys.argv[1:] if not a.startswith('--')]
    write, count = '--write' in sys.argv, int(args[1]) if len(args) > 1 else 200
    sources = {f[:-6]: open(os.path.join(here, 'templates', f)).read() for f in sorted(os.listdir(os.path.join(here, 'templates')))}
    cases = []
    for name, source in sources.items():
        r = random.Random(name)
        for _ in range(6 if write else count):
            cases.append(case(name, source, conversation(r)))
    path = os.path.join(here, 'cases.json') if write else tempfile.mktemp()
    with open(path, 'w') as f:
        f.write('[\n' + ',\n'.join(json.dumps(c, ensure_ascii=False) for c in cases) + '\n]\n')
    failed = sum('error' in c for c in cases)
    print(len(cases), 'cases,', failed, 'of them refused by the template')
    if not write:
        sys.exit(subprocess.run([args[0], path, os.path.join(here, 'templates')]).returncode)


main()
