#!/bin/bash
# A tokenizer of a third party: a text takes fewer tokens than bytes, and a model trains on them.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" digraphs

tokens() { sed -nE 's/.*, ([0-9]+) tokens, .*samples an epoch.*/\1/p' "$1.log"; }
train bytes
train pairs --without bytes --with digraphs
echo "$(tokens bytes) bytes, $(tokens pairs) tokens"
((10 * $(tokens pairs) < 8 * $(tokens bytes)))
train many --without bytes --with digraphs -n 2 --with fsdp
close <(values many loss) <(values pairs loss)
