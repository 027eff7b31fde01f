#!/bin/bash
# plugins.sh SOURCE: docs/plugins.md says what the headers say. Its code is text of the examples or of the headers, and
# what it names is declared.
set -euo pipefail
cd "$1"
page=docs/plugins.md status=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

headers() { find core/include lib/include -name '*.h' | sort; }
spaces() { tr -s ' \t\n\\' ' '; }

# Code blocks, without commands, line by line and without regard to where lines break.
{ cat examples/*/*.c examples/*/Makefile && headers | xargs cat; } | spaces >"$scratch/text"
sed -nE 's,/\*.*\*/,,; s/^    +//p' "$page" | grep -vE '^(ctitan|make|meson|CTITAN_PLUGIN_PATH=|\.\.\.$)' | while IFS= read -r line; do
    grep -qF -- "$(spaces <<<"$line" | sed 's/ $//')" "$scratch/text" || echo "no example has: $line"
done >"$scratch/faults"

# Names of functions, structs, constants: macros, and what is left when macros have been expanded.
headers | grep -v lib/vector.h | sed -E 's,.*include/(ctitan/.*),#include <\1>,' |
    ${CC:-cc} -Icore/include -Ilib/include -E -dD -x c - | grep -oE '\w+' | sort -u >"$scratch/declared"
grep -ohE '\b(ct|CT)_\w*[A-Za-z0-9]\b(\.\.|_)?' "$page" | grep -vE '(\.\.|_)$' | sort -u |
    comm -23 - "$scratch/declared" | sed 's/^/no header declares: /' >>"$scratch/faults"

# Fields and words in code quotes: of a header, an example, or the name of a plugin, transform or option.
{ cat "$scratch/declared" && cat examples/*/*.c plugins/*/*.[ch] models/*/*.c cli/*.c lib/*/*.c core/*/*.c lib/kit/*.mk.in lib/include/ctitan/lib/cuda/*.cuh | grep -oE '\w+'; } | sort -u >"$scratch/known"
grep -oE '`[^`]*`' "$page" | grep -E '^`[a-z_.>-]+`$' | grep -oE '[a-z_]+' | sort -u |
    comm -23 - "$scratch/known" | sed 's/^/nothing is called: /' >>"$scratch/faults"
cat "$scratch/faults"
[[ ! -s $scratch/faults ]]
