#!/bin/bash
# manual.sh CTITAN: the manual page formats without warnings and has every verb and option; bash completes verbs,
# their options, settings and plugins; zsh and fish get the same options.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1")
enter

"$ctitan" help --man >ctitan.1
"$ctitan" help --bash >ctitan.bash
if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww -z ctitan.1 2>warnings
    cat warnings
    [[ ! -s warnings ]]
fi
bash -n ctitan.bash

text=$(sed 's/\\-/-/g; s/\\e/\\/g; s/\\&//g' ctitan.1)
"$ctitan" help --zsh >_ctitan
"$ctitan" help --fish >ctitan.fish
if command -v zsh >/dev/null; then zsh -n _ctitan; fi
if command -v fish >/dev/null; then fish -n ctitan.fish; fi

has() { # FILE TEXT
    grep -qF -e "$2" "$1" || fail "${1##*/} lacks: $2"
}
verbs=0
for verb in $("$ctitan" help | sed -nE '/^Sections/q; s/^  ([a-z]+) +[a-z].*/\1/p' | grep -vx ctitan); do
    usage=$("$ctitan" help "$verb" | sed -nE "s/^usage: ctitan //p")
    grep -qxF ".SS ctitan $usage" <<<"$text" || fail "the page lacks: $usage"
    has ctitan.fish "__fish_use_subcommand -fa $verb -d '"
    "$ctitan" "$verb" --help | sed -nE 's/^ +((-[a-z], )?--[a-z-]+( [^ ]+)?)(  .*)?$/\1/p' | while IFS= read -r label; do
        grep -qxF ".B $label" <<<"$text" || fail "the page lacks $verb's $label"
        option=${label##*--}
        has ctitan.fish "__fish_seen_subcommand_from $verb' -l ${option%% *} "
        has _ctitan "'*--${option%% *}["
    done
    ((++verbs))
done
((verbs > 18))
for section in training comm adamw pp; do
    "$ctitan" help $section | sed -nE 's/^  ([a-z_]+ = .*)/.B \1/p' | while IFS= read -r option; do
        grep -qxF "$option" <<<"$text" || fail "the page lacks: $option"
    done
done

compopt() { :; } # is known only while a key completes
# shellcheck disable=SC1091
. ./ctitan.bash
# completes WORDS FOUND..: the last of the words, as typed so far, is completed to all of these and no others.
completes() {
    read -ra COMP_WORDS <<<"$1"
    [[ $1 != *' ' ]] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    shift
    COMPREPLY=()
    _ctitan
    [[ "${COMPREPLY[*]}" == "$*" ]] || fail "${COMP_WORDS[*]}: ${COMPREPLY[*]}, not $*"
}
completes 'ctitan tr' train
completes './ctitan pl' plan plugins
completes 'ctitan flig' flight
completes 'ctitan train x.ini --max' --max-restarts
completes 'ctitan compare a b --a-' --a-set --a-unset --a-with --a-without
completes 'ctitan train x.ini --unset training.ste' training.steps
completes 'ctitan train x.ini --set adamw.bet' adamw.beta1= adamw.beta2=
completes 'ctitan train x.ini --set training.ste' training.steps=
completes 'ctitan train x.ini --with fs' fsdp
completes 'ctitan help val' validation
completes 'ctitan check qwen3_' qwen3_moe
completes 'ctitan new op' op optimizer
completes 'ctitan ckpt sh' show
completes 'ctitan ckpt diff --ver' --verbose
completes 'ctitan export a b --dtype bf' bfloat16
completes 'ctitan check x --with fs' fsdp
completes 'ctitan schedule 1f1b --set pp.deg' pp.degree=
completes 'ctitan lora merge x y --unset fsdp.shard' fsdp.shard_degree
completes 'ctitan train '
