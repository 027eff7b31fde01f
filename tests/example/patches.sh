#!/bin/bash
# Patches of images as an input of a model: it tells what it saw, and has one rank's losses on every mesh.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" patches

sed -i 's/ llama,/ patches,/; s/, text, bytes//; s/^name = llama/name = patches/; /^\[llama\]/,/^vocab_size/d; /^\[text\]/,+1d' recipe.ini
sed -i 's/^seq_len.*/seq_len = 8/; s/^steps.*/steps = 80/' recipe.ini
printf '[adamw]\nlr = 0.01\n' >>recipe.ini
train_to one
values loss one/metrics.jsonl >expected
# Four of five labels are random, and known from the image alone: without it the loss would be 0.8 log(12) = 1.99 at best.
awk '{ last = $1 } END { exit !(last < 1) }' expected
for mesh in '-n 2 --with fsdp' '-n 2 --with tp --set tp.degree=2' '-n 2 --with cp --set cp.degree=2' \
    '-n 2 --with pp --set pp.degree=2 --set pp.microbatch_size=1'; do
    read -ra arguments <<<"$mesh"
    rm -rf many
    train_to many --set training.steps=6 --set lr_scheduler.total_steps=80 "${arguments[@]}"
    near <(values loss many/metrics.jsonl) <(head -n 6 expected) 1e-5
    echo "$mesh: one rank's losses"
done

# The source has no such stream; and nobody feeds an image where a model generates.
sed 's/"patches", CT_F32/"images", CT_F32/' "$source/examples/patches/patches.c" >patches/patches.c
make -s -C patches CC="${CC:-cc} -Werror"
if "$ctitan" train recipe.ini >log 2>&1; then exit 1; fi
grep -q 'nobody feeds an input "patches"; the data source has tokens, labels, images; the run makes' log || { cat log; exit 1; }
