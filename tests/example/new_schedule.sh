#!/bin/bash
# new_schedule.sh BUILD: what `ctitan new schedule` writes is made against an installed ctitan, passes
# `ctitan check`, and can be used by its name; harmed, it does not pass.
set -euo pipefail

build=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

DESTDIR=$root meson install -C "$build" --no-rebuild --quiet >/dev/null
pc=$(find "$root" -name ctitan.pc)
library=$(dirname "$(find "$root" -name libctitan.so)")
ctitan=$(find "$root" -path '*/bin/ctitan')
export PKG_CONFIG_LIBDIR=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$root LD_LIBRARY_PATH=$library
export CTITAN_PLUGIN_PATH=$root/mine

cd "$root"
"$ctitan" new schedule mine
make -s -C mine CC="${CC:-cc}" CFLAGS="-std=gnu11 -O2 -Wall -Wextra -Werror -fvisibility=hidden -fPIC"
"$ctitan" check mine/mine.so | tee log
grep -q 'schedule mine: 164 cases verified' log
grep -q 'microbatches on 8 ranks: at least 8 are needed' <("$ctitan" schedule mine --ranks 8 --microbatches 4 2>&1)
"$ctitan" schedule mine --ranks 4 --microbatches 8 | grep '33 time, of which 9 (27.3%) is bubble'

# Backwards that come before their forwards are found, and the case is named.
sed -i 's/CT_ACTION_B, rank, backward/CT_ACTION_B, rank, microbatches - 1 - backward/' mine/mine.c
make -s -C mine CC="${CC:-cc}"
if "$ctitan" check mine/mine.so >log 2>&1; then
    cat log
    exit 1
fi
grep '1 ranks, 1 stages, 2 microbatches: mine: stage 0 microbatch 1: F (action 3' log || { cat log; exit 1; }
