#!/bin/bash
# Arithmetic sequences: the same samples on every mesh, and after a resume; a model learns them.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" counting

sed -i 's/text, bytes/counting/; /^\[text\]/,+1d' recipe.ini
train_to one --set counting.modulus=5 --set training.steps=60 --set adamw.lr=0.003
values loss one/metrics.jsonl >expected
for mesh in '-n 2 --with fsdp' '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=2'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many --set counting.modulus=5 --set adamw.lr=0.003 --set training.steps=60 "${arguments[@]}"
    near <(values loss many/metrics.jsonl | head -n 6) <(head -n 6 expected) 1e-5
done
# From the logarithm of all tokens of the vocabulary to that of few.
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 60 && first > 5.7 && last < 1.9) }' expected
if "$ctitan" train recipe.ini --with counting --set counting.modulus=1000 --set job.dump_folder=large >log 2>&1; then
    exit 1
fi
grep -q 1000 log || { cat log; exit 1; }
