#!/bin/bash
# A learning-rate schedule of a third party replaces [lr_scheduler], whose keys are refused then, on any number
# of ranks.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" inverse_root

status=0
"$ctitan" train recipe.ini --with inverse_root 2>refused || status=$?
[[ $status == 2 ]]
grep -qF '[lr_scheduler] warmup_steps has no effect, as plugin inverse_root gives the learning rate' refused
sed -i '/^\[lr_scheduler\]/,/^warmup_steps/d' recipe.ini
for ranks in '' '-n 2 --with fsdp'; do
    read -ra arguments <<<"$ranks"
    rm -rf run
    train_to run --with inverse_root --set inverse_root.warmup_steps=2 --set adamw.lr=0.001 "${arguments[@]}"
    values lr run/metrics.jsonl >got
    awk 'BEGIN { for (s = 1; s <= 6; s++) printf "%.9g\n", s < 2 ? 0.0005 : 0.001 / sqrt(s / 2) }' >expected
    near got expected 1e-5
done
