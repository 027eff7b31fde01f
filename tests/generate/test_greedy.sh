#!/bin/bash
# test_greedy.sh CTITAN CASE..: the most likely continuation, and the logits after the prompt, are those of an
# independent implementation; with a cache as without, beyond the context, and with prompts of other lengths beside.
source "$(dirname "$0")/../lib/test.sh"
set -euo pipefail
ctitan=$(realpath "$1")
mapfile -t cases < <(realpath "${@:2}")
enter

# list CASE KEY: a list of expected.json.
list() { tr -d ' \n' < "$1/expected.json" | sed "s/.*\"$2\":\[\([^]]*\)\].*/\1/"; }

write() { "$ctitan" generate recipe.ini --greedy "$@" 2> log || fail "$(cat log)"; }

same() {
    [[ $1 == "$2" ]] || fail "$3: '$1' instead of '$2'"
}

for data in "${cases[@]}"; do
    recipe -local -tokens -adamw -metrics -training.local_batch_size -training.steps training.mixed_precision_param=float32
    prompt=$(list "$data" prompt)
    want=$(list "$data" continuation)
    same "$(write --prompt-ids "$prompt" --tokens 24)" "$want" "$data"
    same "$(write --prompt-ids "$prompt" --tokens 24 --no-cache)" "$want" "$data without a cache"

    write --prompt-ids "$prompt" --tokens 0 --logits logits > /dev/null
    list "$data" last_logits | tr , '\n' > expected
    tr ' ' '\n' < logits | paste - expected | awk -v data="$data" '
        NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { print data ": logits differ by " most + 0; exit bad || NR < 100 || most > 1e-4 }'

    # Three prompts at once, one of them longer than a chunk of the context, as each alone.
    long=$prompt,$want,$prompt
    write --prompt-ids 7 --prompt-ids "$long" --prompt-ids "$prompt" --tokens 9 > together
    for ids in 7 "$long" "$prompt"; do write --prompt-ids "$ids" --tokens 9; done > alone
    cmp together alone

    # Beyond the context of 64, with the logits of the last half of it.
    write --prompt-ids "$prompt" --tokens 90 > far
    [ "$(tr , '\n' < far | wc -l)" = 90 ]
    case $(cat far) in "$want"*) ;; *) fail "$data: beyond the context" ;; esac
done
never run generate recipe.ini --prompt-ids 1,99999
grep -q 'outside the model' log
