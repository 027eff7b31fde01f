#!/bin/bash
# headers.sh SOURCE: each public header can be the first that a file includes, and all are C11, C++17 and C++20.
# lib/vector.h and those in lib/cpu/ are text for kernels in C: what includes the first defines the width of vectors.
# Those in lib/cuda/ are text for kernels for CUDA, which declare no functions of ctitan.
set -uo pipefail
cd "$1" || exit
command -v "g++" >/dev/null || { echo "no C++ compiler"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
while read -r header; do
    [[ $header != ctitan/lib/vector.h && $header != ctitan/lib/cpu/* ]] || continue
    echo "#include <$header>" >"$work/${header//\//,}.c"
    grep -q '^CT_BEGIN_DECLS$' "core/include/$header" "lib/include/$header" 2>/dev/null ||
        [[ $header == ctitan/base.h || $header == ctitan/lib/cuda/* ]] || { echo "$header lacks CT_BEGIN_DECLS"; status=1; }
done < <(find core/include lib/include -name '*.h' | sed 's,.*/include/ctitan,ctitan,' | sort)
cat "$work"/*.c >"$work/all.cc"
compile() {
    "$@" -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Icore/include -Ilib/include ||
        { echo "does not compile: ${*:1:4}"; status=1; }
}
compile gcc -x c -std=c11 "$work"/*.c
for standard in c++17 c++20; do compile g++ -x c++ -std=$standard "$work/all.cc"; done
exit $status
