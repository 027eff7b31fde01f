#!/bin/bash
# check.sh SOURCE CTITAN: what the pages and recipes name is there.
set -euo pipefail
ctitan=$(realpath "$2")
cd "$1"
status=0

complain() {
    echo "$*"
    status=1
}

# Links of the pages, relative to each, and what they name in code quotes.
for page in README.md docs/*.md; do
    while read -r target; do
        [[ -e $(dirname "$page")/$target || -e $target ]] || complain "$page names $target"
    done < <(
        grep -oE '\]\([^)#:]+\)' "$page" | tr -d '()]'
        # shellcheck disable=SC2016
        grep -oE '`(core|cli|plugins|models|recipes|examples|tests|scripts|docs|bench)/[a-z0-9_./-]*`' \
            "$page" | tr -d '`'
    )
done

# Verbs.
grep -ohE '`ctitan [a-z]+' README.md docs/*.md | cut -d' ' -f2 | sort -u | while read -r verb; do
    "$ctitan" help "$verb" >/dev/null || exit 1
done || complain "the pages name a verb that is not there"

# Commands: an option is of its verb, --set names an option of a section, --with and --without a plugin.
pages=(README.md docs/*.md recipes/*.ini recipes/*/*.ini)
while read -r verb rest; do
    usage=$("$ctitan" help "$verb" 2>/dev/null) || continue
    while read -r option; do
        grep -q -e "$option\b" <<<"$usage" || complain "the pages say ctitan $verb $option"
    done < <(grep -oE -e ' --[a-z][a-z-]*' <<<" $rest" | sort -u)
done < <(sed -e ':a;/\\$/{N;s/\\\n[; ]*/ /;ba}' "${pages[@]}" | grep -ohE '\bctitan [a-z]+ [^`|#;>)]*' | cut -d' ' -f2- | sort -u)
while IFS=. read -r section key; do
    grep -qE "^  $key = " <<<"$("$ctitan" help "$section")" || complain "the pages set $section.$key"
done < <(grep -ohE -e '--([ab]-)?set [a-z0-9_]+\.[a-z0-9_]+=' "${pages[@]}" | cut -d' ' -f2 | tr -d = | grep -v '^section.key$' | sort -u)
while read -r plugin; do
    [[ -e examples/$plugin ]] || "$ctitan" help "$plugin" >/dev/null || complain "the pages load $plugin"
done < <(grep -ohE -e '--([ab]-)?with(out)? [a-z0-9_]+\b' "${pages[@]}" | cut -d' ' -f2 | sort -u)

# Every recipe can be planned, on a stand-in for its data and on the ranks that it names.
tokens=$(mktemp)
trap 'rm -f "$tokens"' EXIT
head -c 100000 /dev/zero >"$tokens"
for recipe in recipes/*.ini; do
    data=(--set model.init_from=)
    if grep -q '^init_from = models/base' "$recipe"; then
        data=(--set model.init_from=tests/generate/folder)
    fi
    if grep -q '^\[text\]' "$recipe"; then
        data+=(--without text --with tokens)
    fi
    if grep -q '^\[dpo\]' "$recipe"; then
        data+=(--without dpo --unset objective.name --with tokens)
    fi
    data+=(--set "tokens.path=$tokens")
    if grep -q '^validation_path' "$recipe"; then
        data+=(--set "tokens.validation_path=$tokens")
    fi
    world=$(sed -nE 's/^;.*--world ([0-9]+).*/\1/p' "$recipe" | head -n 1)
    "$ctitan" plan "$recipe" "${data[@]}" --world "${world:-1}" >/dev/null || complain "ctitan plan $recipe fails"
done
exit $status
