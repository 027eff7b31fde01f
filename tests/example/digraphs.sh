#!/bin/bash
# A tokenizer of a third party: a text takes fewer tokens than bytes, and a model trains on them.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" digraphs

tokens() { sed -nE 's/.*, ([0-9]+) tokens, .*samples an epoch.*/\1/p' "$1.log"; }
train_to bytes
train_to pairs --without bytes --with digraphs
echo "$(tokens bytes) bytes, $(tokens pairs) tokens"
((10 * $(tokens pairs) < 8 * $(tokens bytes)))
train_to many --without bytes --with digraphs -n 2 --with fsdp
near <(values loss many/metrics.jsonl) <(values loss pairs/metrics.jsonl) 1e-5
