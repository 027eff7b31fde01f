#!/usr/bin/env python3
"""Writes variants.json and ../sentencepiece/{tokenizer.model,cases.json}: small tokenizers as the
libraries train them, variants of their steps, and the ids and texts that the libraries give.

    python3 tests/bpe/variants.py      (tokenizers 0.23.3, sentencepiece 0.2.3)
"""
import base64, io, json, os, random, sys

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

here = os.path.dirname(os.path.abspath(__file__))
corpus = [l for l in open(here + '/../../CONTRIBUTING.md').read().split('\n') if l] + ['café naïve 日本 日本'] * 3

plain = [''.join(c for c in l.lower() if c in 'abcdefghijklmnopqrstuvwxyz ') for l in corpus]

# Two characters that become one, one that disappears, one that becomes several, one that becomes a space.
rules = {'A\u030a': '\u00c5', '\u00ad': '', '½': '1/2', '\u00a0': ' ', '①': '1', '\r\n': ' '}


def train_sentencepiece(kind):
    tsv = '/tmp/variants-rules.tsv'
    with open(tsv, 'w') as out:
        for key, value in rules.items():
            out.write(' '.join('%X' % ord(c) for c in key) + '\t' + ' '.join('%X' % ord(c) for c in value) + '\n')
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(plain), model_writer=model, model_type=kind, vocab_size=300, byte_fallback=True,
        normalization_rule_tsv=tsv, user_defined_symbols=['<tool>'], character_coverage=1.0, minloglevel=2,
        hard_vocab_limit=False)
    return model.getvalue()


def charsmap(model):
    """Field 2 of the normalizer_spec, field 3 of the model."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]; at += 1
                value |= (byte & 127) << shift; shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
            else:
                size = varint() if key & 7 == 2 else 4 if key & 7 == 5 else 8
                yield key >> 3, data[at:at + size]
                at += size
    return dict(fields(dict((k, v) for k, v in fields(model) if k == 3)[3]))[2]


def train_bpe():
    tokenizer = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never', split=True)
    specials = ['<unk>', '<s>', '</s>'] + ['<0x%02X>' % b for b in range(256)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=430, special_tokens=specials, show_progress=False))
    root = json.loads(tokenizer.to_str())
    added = [dict(t, normalized=False) for t in root['added_tokens'][:3]]
    root['added_tokens'] = added + [
        {'id': 430, 'content': '[INST]', 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': True, 'special': False},
        {'id': 431, 'content': '<tool>', 'single_word': False, 'lstrip': True, 'rstrip': False, 'normalized': False, 'special': False}]
    return root


def train_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=180, unk_token='<unk>', special_tokens=['<unk>', '</s>'], show_progress=False))
    root = json.loads(tokenizer.to_str())
    root['model']['vocab'] += [['<0x%02X>' % b, 0.0] for b in range(256)]
    for entry in root['model']['vocab']:
        entry[1] = round(entry[1], 4)
    return root


mark = '▁'
metaspace = lambda scheme, split: {'type': 'Metaspace', 'replacement': mark, 'prepend_scheme': scheme, 'split': split}
sequence = lambda key, *members: {'type': 'Sequence', key: list(members)}
replace = lambda pattern, content: {'type': 'Replace', 'pattern': pattern, 'content': content}
spaces = replace({'String': mark}, ' ')
strip = lambda start, stop: {'type': 'Strip', 'content': ' ', 'start': start, 'stop': stop}
split = lambda pattern, behavior, invert=False: {'type': 'Split', 'pattern': pattern, 'behavior': behavior, 'invert': invert}
fallback, fuse = {'type': 'ByteFallback'}, {'type': 'Fuse'}
llama = sequence('decoders', spaces, fallback, fuse, strip(1, 0))


def variants(small_map):
    bpe = lambda name, normalizer, pre, decoder=llama, **model: (name, 'bpe', dict(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, **({'model': model} if model else {})))
    uni = lambda name, normalizer, pre, decoder, **model: (name, 'unigram', dict(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, **({'model': model} if model else {})))
    compiled = {'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(small_map).decode()}
    yield bpe('llama', sequence('normalizers', {'type': 'Prepend', 'prepend': mark}, replace({'String': ' '}, mark)), None)
    yield bpe('mistral', None, metaspace('first', False))
    yield bpe('gemma', replace({'String': ' '}, mark), split({'String': ' '}, 'MergedWithPrevious'), sequence('decoders', spaces, fallback, fuse))
    yield bpe('stripped first', sequence('normalizers', {'type': 'Strip', 'strip_left': True, 'strip_right': False}, {'type': 'NFKC'}), metaspace('first', True), sequence('decoders', fallback, fuse, spaces, strip(2, 0)))
    yield bpe('nmt first', sequence('normalizers', {'type': 'Nmt'}, replace({'Regex': ' {2,}'}, ' ')), metaspace('first', False), {'type': 'Metaspace', 'replacement': mark, 'prepend_scheme': 'never', 'split': True})
    yield bpe('unknown', None, metaspace('never', True), None, byte_fallback=False)
    yield bpe('unknown apart', None, metaspace('never', True), sequence('decoders', strip(1, 0), spaces), byte_fallback=False, fuse_unk=False)
    for behavior in ('Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous', 'Isolated'):
        for invert in (False, True):
            yield bpe(f'{behavior} {invert}', None, split({'Regex': '[aeiou ]'}, behavior, invert), replace({'Regex': 'e+'}, 'E'))
    yield uni('t5', sequence('normalizers', compiled, replace({'Regex': ' {2,}'}, ' ')), sequence('pretokenizers', {'type': 'WhitespaceSplit'}, metaspace('always', True)), {'type': 'Metaspace', 'replacement': mark, 'prepend_scheme': 'always', 'split': True}, byte_fallback=False)
    yield uni('bytes', compiled, metaspace('always', False), sequence('decoders', fallback, {'type': 'Metaspace', 'replacement': mark, 'prepend_scheme': 'first', 'split': True}), byte_fallback=True)


texts = ['', ' ', '  ', 'a', ' a', 'a ', 'the plugin', '  two  spaces ', 'a<tool>b', 'a <tool> b', '<tool>a', '[INST] a [INST]', 'a[INST]b', '<s>a</s>', '<unk>',
         'café ½ ①\u00adÅ A\u030a A\u030aﬁ', '日本語 and 漢字', '<0x41><0x0A>', 'a\nb\r\nc\td', mark + 'a' + mark + mark, '😀👍🏽 naïve', '\u00a0x\u3000y', 'x\x00y\x7f\u200b',
         'aeiou queue  e ee', 'Each commit builds and passes.\n    A function does one thing']


def noise(rng):
    words = ['the', ' ', '  ', 'commit', 'é', '日', '😀', '\u0301', '<tool>', '[INST]', mark, '\n', 'ﬁ', '½', '\u00ad', '<0x41>', '\u3000', 'zq', '</s>', '①\u0301']
    return ''.join(rng.choice(words) for _ in range(rng.randint(1, 12)))


def main():
    rng = random.Random(7)
    words = texts + [noise(rng) for _ in range(25)]
    model = train_sentencepiece('unigram')
    bases = {'bpe': train_bpe(), 'unigram': train_unigram()}
    cases = []
    for name, base, patch in variants(charsmap(model)):
        root = json.loads(json.dumps(bases[base]))
        root['model'].update(patch.get('model', {}))
        root.update({k: v for k, v in patch.items() if k != 'model'})
        tokenizer = Tokenizer.from_str(json.dumps(root))
        rows = []
        for text in words:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
        cases.append({'name': name, 'base': base, 'patch': patch, 'texts': rows})
    json.dump({'bases': bases, 'cases': cases}, open(here + '/variants.json', 'w'), separators=(',', ':'))
    folder = here + '/../sentencepiece'
    open(folder + '/tokenizer.model', 'wb').write(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    rows = [[t, processor.encode(t), processor.decode(processor.encode(t))] for t in words]
    json.dump(rows, open(folder + '/cases.json', 'w'), separators=(',', ':'))


if __name__ == '__main__':
    main()
