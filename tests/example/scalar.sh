#!/bin/bash
# A compiler of a third party, for the device of another one: what fuse writes is compiled by it, and the losses are
# those without.
set -euo pipefail
check_options=(--allow-untried) # its device is of another plugin; tried below
. "$(dirname "$0")/installed.sh" "$1" "$2" scalar

cp -r "$source/examples/plain" plain
make -s -C plain CC="${CC:-cc} -Werror"
if "$ctitan" check --quick scalar/scalar.so >log 2>&1; then cat log; exit 1; fi
grep -q '^untried compiler plain: ' log || { cat log; exit 1; }
export CTITAN_PLUGIN_PATH=$work/scalar:$work/plain
"$ctitan" check --quick scalar/scalar.so >log || { cat log; exit 1; }
(($(grep -c '^ok      compiler plain: ' log) == 6)) || { cat log; exit 1; }

sed -i 's/^steps = .*/steps = 3/; s/^n_layers = .*/n_layers = 2/' recipe.ini
export XDG_CACHE_HOME=$work/cache
train_to plainly --without cpu --with plain
values loss plainly/metrics.jsonl >expected
for dtype in float32 bfloat16; do
    train_to "fused_$dtype" --without cpu --with plain --with scalar --with fuse --set fuse.always=true \
        --set "training.mixed_precision_param=$dtype"
    values loss "fused_$dtype/metrics.jsonl" >"losses_$dtype"
done
near losses_float32 expected 1e-5
paste losses_bfloat16 expected | awk '{ d = $1 - $2; if (d * d > 1e-4) exit 1 }'
"$ctitan" plan recipe.ini --without cpu --with plain --with scalar --with fuse --set fuse.always=true --program >plan
grep -q 'fused (compiled)' plan
