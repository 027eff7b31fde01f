#!/bin/bash
# out_of_tree.sh BUILD SOURCE: installs the build into a folder, makes examples/sgd against what was
# installed, and trains with it; and a model by a description of its family, that of docs/models.md.
set -euo pipefail

. "$(dirname "$0")/installed.sh" "$1" "$2" sgd

recipe -tokens -adamw -local +text +bytes +sgd -model.init_from llama.dim=32 llama.n_layers=1 llama.n_heads=2 llama.vocab_size=320 \
    -training.local_batch_size training.steps=40 training.mixed_precision_param=float32 text.path="$source/core" sgd.lr=0.5 \
    lr_scheduler.warmup_steps=5

# expect WORDS COMMAND...: its output has them.
expect() {
    local words=$1
    shift
    "$@" >log 2>&1 || { cat log; exit 1; }
    grep -q -- "$words" log || {
        echo "\"$words\" is not in the output of: $*"
        cat log
        exit 1
    }
}

expect 'Stochastic gradient descent' "$ctitan" plugins
expect 'Momentum: fraction of the last step that is added' "$ctitan" help sgd
expect 'op sgd: lr\[\] d' "$ctitan" check sgd
expect 'kernel plain of sgd on cpu' "$ctitan" check sgd/sgd.so
expect 'sgd(%lr, ' "$ctitan" explain recipe.ini
expect 'sgd (plain)' "$ctitan" plan recipe.ini --program
expect 'done: 40 steps' "$ctitan" train recipe.ini
awk -F'"loss": ' '
    { split($2, loss, ","); if (NR == 1) first = loss[1]; last = loss[1] }
    END {
        printf "loss from %s to %s in %d steps\n", first, last, NR
        exit !(NR == 40 && last < 0.8 * first)
    }' out/metrics.jsonl

# A kernel of no op, and an op without a reference, are found.
harmed() {
    local change=$1 words=$2
    rm -rf harmed
    cp -r sgd harmed
    sed -i "$change" harmed/sgd.c
    touch harmed/sgd.c
    make -s -C harmed CC="${CC:-cc}" CFLAGS='-std=gnu11 -O2 -w -fvisibility=hidden -fPIC'
    if "$ctitan" check harmed/sgd.so >log 2>&1; then cat log; exit 1; fi
    grep -q "$words" log || { cat log; exit 1; }
}
harmed 's/.op = "sgd"/.op = "sdg"/' 'kernel plain on cpu: .*sdg'
harmed 's/.reference = reference,//' 'op sgd has no reference'

mkdir -p own/families
sed -n '/^```ini breeze.ini$/,/^```$/{/^```/d;p}' "$source/docs/models.md" >own/families/breeze.ini
(($(wc -l <own/families/breeze.ini) <= 40))
export CTITAN_PLUGIN_PATH=$work/own
rm -rf out
recipe -tokens -local +text +bytes model.name=decoder decoder.family=breeze model.flavor=small decoder.dim=32 decoder.n_layers=2 \
    decoder.n_heads=2 decoder.n_kv_heads=1 decoder.ffn_dim=64 decoder.vocab_size=320 -training.local_batch_size training.steps=2 \
    training.mixed_precision_param=float32 text.path="$source/core"
expect 'done: 2 steps' "$ctitan" train recipe.ini
