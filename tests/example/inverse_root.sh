#!/bin/bash
# A learning-rate schedule of a third party replaces [lr_scheduler], on any number of ranks.
set -euo pipefail
. "$(dirname "$0")/installed.sh" "$1" "$2" inverse_root

for ranks in '' '-n 2 --with fsdp'; do
    read -ra arguments <<<"$ranks"
    rm -rf run
    train run --with inverse_root --set inverse_root.warmup_steps=2 --set adamw.lr=0.001 "${arguments[@]}"
    values run lr >got
    awk 'BEGIN { for (s = 1; s <= 6; s++) printf "%.9g\n", s < 2 ? 0.0005 : 0.001 / sqrt(s / 2) }' >expected
    close got expected
done
