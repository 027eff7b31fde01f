#!/bin/bash
# headers.sh SOURCE: each public header can be the first that a file includes, in C11, C++17 and C++20.
# lib/vector.h is text for kernels in C: what includes it defines the width of vectors first.
set -uo pipefail
cd "$1" || exit
compilers=("gcc -x c -std=c11" "g++ -x c++ -std=c++17" "g++ -x c++ -std=c++20")
command -v "g++" >/dev/null || { echo "no C++ compiler"; exit 77; }
status=0
while read -r header; do
    [[ $header != ctitan/lib/vector.h ]] || continue
    for compiler in "${compilers[@]}"; do
        $compiler -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Icore/include -Ilib/include - \
            <<<"#include <$header>" || { echo "$header does not compile alone: $compiler"; status=1; }
    done
    grep -q '^CT_BEGIN_DECLS$' "core/include/$header" "lib/include/$header" 2>/dev/null ||
        [[ $header == ctitan/base.h ]] || { echo "$header lacks CT_BEGIN_DECLS"; status=1; }
done < <(find core/include lib/include -name '*.h' | sed 's,.*/include/ctitan,ctitan,' | sort)
exit $status
