#!/bin/bash
# new.sh BUILD [--quick]: what `ctitan new KIND NAME` writes is made against an installed ctitan, and passes
# `ctitan check` [--quick]. A plugin that was harmed does not.
set -euo pipefail

source "$(dirname "$0")/installed.sh" "$1" "$(dirname "$0")/../.."
flags='-std=gnu11 -O2 -Wall -Wextra -Werror -fvisibility=hidden -fPIC'

# A compiler is for a device: that of the example plain.
cp -r "$(find "$installed" -path '*/examples/plain')" plain
make -s -C plain CC="${CC:-cc}" CFLAGS="$flags"

kinds=$("$ctitan" help --bash | sed -nE 's/^ *new:\) first="([a-z_ ]*)".*/\1/p')
(($(wc -w <<<"$kinds") == 16))
for kind in $kinds; do
    name=my_$kind
    "$ctitan" new "$kind" "$name" >log
    make -s -C "$name" CC="${CC:-cc}" CFLAGS="$flags"
    CTITAN_PLUGIN_PATH=$work/$name:$work/plain "$ctitan" check ${2-} "$name/$name.so" >log || { cat log; exit 1; }
    grep -q "^$name: .* 0 failed" log || { cat log; exit 1; }
    grep -q "my_$kind" "$name/$name.c"
    # Verbs are not tried, and these only by runs.
    case ${2-}$kind in
    verb | --quickverb | --quicktransform | --quickoptimizer | --quickaxis | --quickhook | --quickcommunicator | --quickorder) ;;
    *) grep -q '^ok ' log || [[ $kind == schedule ]] || { cat log; exit 1; } ;;
    esac
    tail -n 1 log
done

# An op that is its formula: kernels of it and of its gradient were written, and another formula gives others.
"$ctitan" check --quick my_op/my_op.so >log
grep -qE '^ok .*kernel (avx2|portable) of my_op_grad on cpu' log || { cat log; exit 1; }
sed -i 's|CT_FORMULA(".*")|CT_FORMULA("y = tanh(x / row_max(x)) + no")|' my_op/my_op.c
if make -s -C my_op CC="${CC:-cc}" CFLAGS="$flags" >log 2>&1; then cat log; exit 1; fi
grep -q 'formula-kernels: .*the name is not defined before this' log || { cat log; exit 1; }
sed -i 's|CT_FORMULA(".*")|CT_FORMULA("y = x + bend")|; s|"x\[\.\] T -> y\[\.\] T"|"x[.] d -> y[.] d"|' my_op/my_op.c
if make -s -C my_op CC="${CC:-cc}" CFLAGS="$flags" >log 2>&1; then cat log; exit 1; fi
grep -q 'formula-kernels: op type my_op: operand 0 has the dtype float64' log || { cat log; exit 1; }

# Kernels for both devices.
"$ctitan" new op my_clip --cuda >log
grep -q check-simulated log
make -s -C my_clip CC="${CC:-cc}" CFLAGS="$flags"
"$ctitan" check ${2-} --allow-untried my_clip/my_clip.so >log || { cat log; exit 1; }
grep -q '^ok .*kernel avx2 of my_clip_grad on cpu' log || grep -q '^ok .*kernel portable of my_clip_grad on cpu' log
if command -v "${CXX:-c++}" >/dev/null; then
    make -s -C my_clip check-simulated CC="${CC:-cc}" CXX="${CXX:-c++}" CTITAN="$ctitan" check_options=--quick >log ||
        { cat log; exit 1; }
    grep -q '^ok .*kernel elements of my_clip on cuda' log || { cat log; exit 1; }
fi
if grep -r softsign my_clip/*.c my_clip/*.h my_clip/*.cu my_clip/Makefile; then exit 1; fi

# Its place in the build tree, and what is refused.
(cd "$work" && "$build/ctitan" new data built >/dev/null && cmp built/built.c <(sed 's/my_data/built/g' my_data/my_data.c))
refused() {
    local words=$1
    shift
    if "$ctitan" new "$@" >log 2>&1; then exit 1; fi
    grep -q -- "$words" log || { cat log; exit 1; }
}
refused 'new modle: expected model, op, .* did you mean model?' modle mine
refused 'exists already' data built
refused 'lower-case letters' data ../mine
refused 'NAME is missing' data
refused '--cuda is for ops' data mine --cuda
refused 'begins with a letter' op 1mine --cuda

export CTITAN_PLUGIN_PATH=$work/my_schedule
"$ctitan" check my_schedule/my_schedule.so >log
grep -q 'schedule my_schedule: [0-9]* cases verified' log
"$ctitan" schedule my_schedule --ranks 4 --microbatches 8 | grep '33 time, of which 9 (27.3%) is bubble'

# Backwards that come before their forwards are found, and the case is named.
sed -i 's/CT_ACTION_B, rank, m)/CT_ACTION_B, rank, request->microbatches - 1 - m)/' my_schedule/my_schedule.c
make -s -C my_schedule CC="${CC:-cc}"
if "$ctitan" check my_schedule/my_schedule.so >log 2>&1; then
    cat log
    exit 1
fi
grep '1 ranks, 1 stages, 2 microbatches: my_schedule: stage 0 microbatch 1: F' log || { cat log; exit 1; }
