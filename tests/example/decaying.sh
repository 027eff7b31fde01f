#!/bin/bash
# A recurrence of a third party: sequences are generated in parts, as without caches, on one rank and on two.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" decaying

# A model whose layers sum their tokens.
cp -r "$source/examples/palm" palm
sed -i 's/^    return ct_add(&m->b, NULL, x, linear(m, ffn, "down".*/    x = ct_add(\&m->b, NULL, x, linear(m, ffn, "down", dim, 4 * dim));\n    return ct_emit1(\&m->b, "decaying", NULL, \&x, 1, NULL);/' palm/palm.c
grep -q decaying palm/palm.c
make -s -C palm CC="${CC:-cc}"
export CTITAN_PLUGIN_PATH+=:$work/palm
sed -i 's/^load = .*/&, decaying, ckpt/; s/^\(load = .*\)llama/\1palm/; s/^name = llama/name = palm/; s/^\[llama\]/[palm]/; s/^n_layers = 4/n_layers = 2/' recipe.ini
train_to one
train_to many -n 2 --with cp --set cp.degree=2
values loss one/metrics.jsonl >expected
values loss many/metrics.jsonl >losses
near losses expected 1e-5

# write ARGUMENT..: a short prompt, and one longer than a chunk of tokens.
prompt=$(seq -s, 30 220)
write() {
    "$ctitan" generate recipe.ini --set job.dump_folder=one --set training.seq_len=256 --greedy --tokens 20 --prompt-ids 7 \
        --prompt-ids "$prompt" "$@" 2>log || { cat log; exit 1; }
}
write --no-cache >expected
write >wrote
cmp expected wrote
write -n 2 --with tp --set tp.degree=2 >wrote
cmp expected wrote

# Without `cache`, it is refused.
sed -i '/\.cache = cache,/d; /^static int cache(/,/^}/d' decaying/decaying.c
make -s -C decaying CC="${CC:-cc}"
if "$ctitan" generate recipe.ini --set job.dump_folder=one --prompt-ids 7 >log 2>&1; then cat log; exit 1; fi
grep -q 'decaying depends on positions and has no `cache`: use --no-cache' log || { cat log; exit 1; }
