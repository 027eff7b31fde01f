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

# folder_of PAGE: sets `folder`.
folder_of() {
    folder=.
    [[ $1 != */* ]] || folder=${1%/*}
}

# Links of the pages, relative to each, and what they name in code quotes.
for page in README.md CHANGELOG.md CONTRIBUTING.md docs/*.md docs/*/*.md; do
    folder_of "$page"
    while read -r target; do
        [[ -e $folder/$target || -e $target ]] || complain "$page names $target"
    done < <(
        grep -oE '\]\([^)#:]+\)' "$page" | tr -d '()]'
        # shellcheck disable=SC2016
        grep -oE '`(core|cli|plugins|models|recipes|examples|tests|scripts|docs|bench)/[a-z0-9_./-]*`' \
            "$page" | tr -d '`'
    )
done

# Anchors: a heading of the page, or of the page in front of the #.
declare -A anchors=()
find_anchors() {
    [[ -v anchors[$1] ]] || anchors[$1]=$'\n'$(grep -E '^##* ' "$1" | sed -E 's/^#+ //' | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-')$'\n' || :
}
for page in README.md docs/*.md docs/*/*.md; do
    folder_of "$page"
    while IFS='#' read -r target anchor; do
        target_page=${target:+$folder/}${target:-$page}
        find_anchors "$target_page"
        [[ ${anchors[$target_page]} == *$'\n'"$anchor"$'\n'* ]] || complain "$page names $target#$anchor"
    done < <(grep -oE '\]\([^)#:]*#[^)]+\)' "$page" | tr -d '()]')
done

# The release is that of meson.build, and its ABI that of the header.
version=$(sed -nE "s/^  version: '(.*)',$/\1/p" meson.build)
abi=$(awk '/^#define CT_ABI_(MAJOR|MINOR) / { printf "%s%s", point, $3; point = "." }' core/include/ctitan/plugin.h)
[[ $(grep -m 1 '^## ' CHANGELOG.md) == "## $version" ]] || complain "the newest of CHANGELOG.md is not $version"
grep -qF "The ABI is $abi." CHANGELOG.md || complain "CHANGELOG.md does not say that the ABI is $abi"
grep -qF "version(\"$version\", tag=\"v$version\")" scripts/spack/package.py || complain "scripts/spack/package.py is not of $version"

# Commands stand in blocks that run.sh runs, or that say why not; docs/plugins.md has the examples, which tests/example builds.
while read -r line; do
    complain "a command outside of a block of sh: $line"
done < <(grep -nE '^    (build/)?ctitan [a-z]+ ' README.md docs/*.md docs/*/*.md | grep -v '^docs/plugins.md')
for page in README.md docs/*.md docs/tutorials/*.md; do
    ! grep -qx '```sh' "$page" || grep -qF "'$page'" tests/pages/meson.build || complain "no test runs the commands of $page"
done

# Verbs.
grep -ohE '`ctitan [a-z]+' README.md docs/*.md docs/*/*.md | cut -d' ' -f2 | sort -u | while read -r verb; do
    "$ctitan" help "$verb" >/dev/null || exit 1
done || complain "the pages name a verb that is not there"

# help_of NAME: sets `usage` to what `ctitan help NAME` says; false if it is not there.
declare -A said=()
help_of() {
    [[ -v said[$1] ]] || said[$1]=$("$ctitan" help "$1" 2>/dev/null) || said[$1]=
    usage=${said[$1]}
    [[ $usage ]]
}

# Commands: an option is of its verb, --set names an option of a section, --with and --without a plugin.
pages=(README.md docs/*.md docs/*/*.md recipes/*.ini recipes/*/*.ini)
while read -r verb rest; do
    help_of "$verb" || continue
    while read -r option; do
        [[ $usage =~ $option([^a-zA-Z0-9_]|$) ]] || complain "the pages say ctitan $verb $option"
    done < <(grep -oE -e ' --[a-z][a-z-]*' <<<" $rest" | sort -u)
done < <(sed -e ':a;/\\$/{N;s/\\\n[; ]*/ /;ba}' "${pages[@]}" | grep -ohE '\bctitan [a-z]+ [^`|#;>)]*' | cut -d' ' -f2- | sort -u)
# Plugins that the pages make have sections of their own.
new=$(cat "${pages[@]}" | grep -oE 'ctitan new [a-z_]+ [a-z0-9_]+' | cut -d' ' -f4)
while IFS=. read -r section key; do
    grep -qxF "$section" <<<"$new" || { help_of "$section" && [[ $'\n'$usage == *$'\n'"  $key = "* ]]; } || complain "the pages set $section.$key"
done < <(grep -ohE -e '--([ab]-)?set [a-z0-9_]+\.[a-z0-9_]+=' "${pages[@]}" | cut -d' ' -f2 | tr -d = | grep -v '^section.key$' | sort -u)
while read -r plugin; do
    [[ -e examples/$plugin ]] || grep -qxF "$plugin" <<<"$new" || help_of "$plugin" || complain "the pages load $plugin"
done < <(grep -ohE -e '--([ab]-)?with(out)? [a-z0-9_,]+\b' "${pages[@]}" | cut -d' ' -f2 | tr , '\n' | sort -u)

# Options in code quotes, as `[section] key, key` or `[section] key = value`, of sections that are there.
while read -r section keys; do
    help_of "$section" || continue
    for key in ${keys//,/ }; do
        [[ $'\n'$usage == *$'\n'"  $key = "* ]] || complain "the pages name [$section] $key"
    done
done < <(grep -ohE '`\[[a-z0-9_]+\] [a-z0-9_]+(, [a-z0-9_]+)*( = [^`]*)?`' README.md docs/*.md docs/*/*.md | sed -E 's/ = .*//' | tr -d '`[]' | sort -u)

exit $status
