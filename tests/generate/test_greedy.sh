#!/bin/sh
# test_greedy.sh CTITAN CASE..: the most likely continuation, and the logits after the prompt, are those of an
# independent implementation; with a cache as without, beyond the context, and with prompts of other lengths beside.
set -eu

ctitan=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# list CASE KEY: a list of expected.json.
list() { tr -d ' \n' < "$1/expected.json" | sed "s/.*\"$2\":\[\([^]]*\)\].*/\1/"; }

write() { "$ctitan" generate "$work/recipe.ini" --greedy "$@" 2> "$work/log" || { cat "$work/log"; exit 1; }; }

same() {
    [ "$1" = "$2" ] || { echo "$3: '$1' instead of '$2'"; exit 1; }
}

for data; do
    model=$(sed -n 's/.*"model": *"\(.*\)".*/\1/p' "$data/case.json")
    cat > "$work/recipe.ini" <<END
[job]
dump_folder = $work/out
[plugins]
load = cpu, $model
[model]
name = $model
init_from = $data/hf
[training]
seq_len = 64
mixed_precision_param = float32
END
    prompt=$(list "$data" prompt)
    want=$(list "$data" continuation)
    same "$(write --prompt-ids "$prompt" --tokens 24)" "$want" "$data"
    same "$(write --prompt-ids "$prompt" --tokens 24 --no-cache)" "$want" "$data without a cache"

    write --prompt-ids "$prompt" --tokens 0 --logits "$work/logits" > /dev/null
    list "$data" last_logits | tr , '\n' > "$work/expected"
    tr ' ' '\n' < "$work/logits" | paste - "$work/expected" | awk -v data="$data" '
        NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { print data ": logits differ by " most + 0; exit bad || NR < 100 || most > 1e-4 }'

    # Three prompts at once, one of them longer than a chunk of the context, as each alone.
    long=$prompt,$want,$prompt
    write --prompt-ids 7 --prompt-ids "$long" --prompt-ids "$prompt" --tokens 9 > "$work/together"
    for ids in 7 "$long" "$prompt"; do write --prompt-ids "$ids" --tokens 9; done > "$work/alone"
    cmp "$work/together" "$work/alone"

    # Beyond the context of 64, with the logits of the last half of it.
    write --prompt-ids "$prompt" --tokens 90 > "$work/far"
    [ "$(tr , '\n' < "$work/far" | wc -l)" = 90 ]
    case $(cat "$work/far") in "$want"*) ;; *) echo "$data: beyond the context"; exit 1 ;; esac
done
"$ctitan" generate "$work/recipe.ini" --prompt-ids 1,99999 > /dev/null 2> "$work/log" && exit 1
grep -q 'outside the model' "$work/log"
