#!/bin/bash
# words.sh SOURCE: a comment has a subject and a verb, or is a noun phrase. None begins with a relative clause or a bare genitive.
# Messages get the end of a noun behind its number from ct_plural.
set -uo pipefail
cd "$1" || exit
mapfile -t files < <(find . \( -name .git -o -name 'build*' -o -name subprojects \) -prune -o -type f -print | sort | xargs -d '\n' grep -lIE '(/\*|//|#|^ *\*) +(What|Of|Those|That)( |$)')
found=$( ((${#files[@]} == 0)) || awk '
    FNR == 1 { before = ""; c = FILENAME ~ /\.(c|h|cu|cuh|inc|def)$/; script = FILENAME ~ /(\.(sh|py|ini|build)|\/[^.\/]*)$/ }
    c && (/(\/\*|\/\/) *(What|Of|Those|That)( |$)/ || before ~ /\/\*+$/ && /^ *\* +(What|Of|Those|That)( |$)/) ||
        script && /(^|[ \t])# *(What|Of|Those|That)( |$)/ && (before !~ /^ *#/ || before ~ /^#!/) { print FILENAME ":" FNR ":" $0 }
    { before = $0 }' "${files[@]}")
[[ ! $found ]] || { echo "$found"; echo "$(wc -l <<<"$found") comments begin with What, Of, Those or That: give each a subject and a verb"; exit 1; }
found=$(grep -rnE '== 1 \? "" : "s"|[>!]=? 1 \? "s" : ""' core lib cli plugins models --include='*.[ch]' | grep -v '^core/include/ctitan/error.h:')
[[ ! $found ]] || { echo "$found"; echo "ct_plural gives the end of a noun behind its number"; exit 1; }
