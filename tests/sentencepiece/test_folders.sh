#!/bin/bash
# test_folders.sh CTITAN FOLDER MODEL: a folder of transformers is trained on text and generates with each kind of tokenizer that it may
# have, and nothing names a plugin for it. MODEL has tokenizer.model of SentencePiece.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1") folder=$(realpath "$2") model=$(realpath "$3")
enter

mark=$'\xe2\x96\x81'
for ((i = 0; i < 20; i++)); do echo 'ab abba'; done > text
small() { # the model, what comes before it
    cat <<END
{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "post_processor": null,
"pre_tokenizer": {"type": "Metaspace", "replacement": "$mark", "prepend_scheme": "always", "split": true},
"decoder": {"type": "Metaspace", "replacement": "$mark", "prepend_scheme": "always", "split": true}, "model": $1}
END
}

runs() { # name, ids of "ab ba"
    local with=$work/$1
    [[ $("$ctitan" tokenize --tokenizer "$with" <<< 'ab ba' | paste -sd' ') == "$2" ]] || fail "$1: ids of tokenize"
    [[ $("$ctitan" tokenize --tokenizer "$with" --decode <<< "$2") == 'ab ba'* ]] || fail "$1: text of tokenize --decode"
    "$ctitan" train "$with" --with text,adamw --set text.path=text --set text.cache=none --set training.steps=2 \
        --set training.seq_len=8 --set job.dump_folder="run-$1" > said 2>&1 || fail "$1: $(cat said)"
    recipe -local -llama -tokens -metrics +text -model.name model.init_from="$with" job.dump_folder="run2-$1" training.seq_len=8 \
        -training.local_batch_size training.steps=2 text.path=text text.cache=none
    "$ctitan" train recipe.ini > said 2>&1 || fail "$1, without a name: $(cat said)"
    "$ctitan" generate "$with" --prompt 'ab ba' --tokens 3 --greedy > wrote 2> said || fail "$1: $(cat said)"
    [[ $(cat wrote) == 'ab ba'* ]] || fail "$1: generate wrote $(cat wrote)"
}

for kind in bpe unigram sentencepiece; do
    mkdir "$work/$kind"
    cp "$folder"/config.json "$folder"/*.safetensors "$work/$kind"
done
small '{"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "'$mark'": 1, "a": 2, "b": 3, "ab": 4}, "merges": [["a", "b"]]}' \
    > "$work/bpe/tokenizer.json"
small '{"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["'$mark'", -2], ["a", -2], ["b", -2], ["ab", -3], ["'$mark'ab", -4]]}' \
    > "$work/unigram/tokenizer.json"
cp "$model/tokenizer.model" "$work/sentencepiece"
runs bpe '1 4 1 3 2 0'
runs unigram '5 1 3 2 0'
runs sentencepiece "$("$ctitan" tokenize --tokenizer "$model/tokenizer.model" <<< 'ab ba' | paste -sd' ')"
