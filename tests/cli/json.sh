#!/bin/bash
# json.sh CTITAN DATA KEYS DOC FALLS: every verb's --json is one object, with the keys that DOC (docs/json.md) lists, for odd names
# as well. KEYS: json_keys; FALLS: a plugin that crashes when it is loaded.
# shellcheck source=tests/lib/test.sh
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=$(realpath "$2") keys=$(realpath "$3") doc=$(realpath "$4") falls=$(realpath "$5")
enter

# documented VERB: its keys, optional ones with "?".
documented() {
    awk -F '|' -v verb="\`$1\`" '$2 ~ /[a-z]/ { gsub(/^ | $/, "", $2); here = $2 == verb } here { print $3 }' "$doc" | grep -o '`[^`]*`' |
        tr -d '`' | sort -u
}

# same VERB ARGUMENT..: the keys of its output are the documented ones.
same() {
    local verb=$1
    shift
    "$ctitan" "$@" --json >out 2>log </dev/null
    "$keys" out 2>why | sort -u >is
    [[ -s is ]] || { tail -n 2 why log; return 1; }
    documented "$verb" | tr -d '?' | sort -u | comm -13 - is | sed 's/^/not documented: /' >differ
    documented "$verb" | grep -v '^?' | sort -u | comm -23 - is | sed 's/^/missing: /' >>differ
    head -n 3 differ
    [[ ! -s differ ]]
}

value() { "$keys" out "$1"; }

odd=$'an "odd\\\xff name'
mkdir "$odd" && echo none >"$odd/$odd.so"
recipe +ckpt +flight_recorder +fsdp training.steps=2 ckpt.interval=1
train -n 2
tell "two ranks train, with checkpoints and the flight recorder"
cp -r out run && rm -rf out

mkdir absent && echo 'it needs a ghost: install the Debian package ghost-dev' >absent/ghost.absent
mkdir absent/adamw && echo 'stale' >absent/adamw/adamw.absent
export CTITAN_PLUGIN_PATH=$PWD/absent
try "plugins: keys" same plugins plugins
[[ $(value 'absent[].name' | grep -x 'ghost\|adamw') == ghost && $(value 'absent[].why') == *'package ghost-dev'* ]]
tell "a plugin that is not installed is listed with what it needs, one that is there is not"
"$ctitan" plugins | grep -q '^ghost  *absent  *it needs a ghost'
tell "the same for people"
run plan recipe.ini --with ghost
[[ $? == 2 ]] && grep -q 'plugin ghost is not installed: it needs a ghost: install the Debian package ghost-dev$' log
tell "whoever asks for it is told so"
run plan recipe.ini --set model.name=ghost
[[ $? == 2 ]] && grep -q 'needs the model ghost, and plugin ghost is not installed: it needs a ghost: install' log
tell "so is who asks for what it may offer"
unset CTITAN_PLUGIN_PATH
CTITAN_PLUGIN_PATH=$odd try "plugins with an odd name: keys" same plugins plugins
[[ $(value 'plugins[].name') == *$'an "odd\\\xef\xbf\xbd name'* && $(value 'plugins[].failure') == *'an "odd'* ]]
tell "the name has U+FFFD where it is not UTF-8"
CTITAN_PLUGIN_PATH=$odd "$ctitan" doctor --json >out 2>log
[[ $? == 2 && $(value 'plugins[].failure' | grep -c odd) == 1 ]]
tell "doctor has status 2, and the failure of a plugin that cannot be loaded"
try "doctor: keys" same doctor doctor
run doctor --describe x --json
[[ $? == 2 ]] && grep -q 'leave --json out' log
tell "doctor --describe refuses --json"

try "flight: keys" same flight flight run
[[ $(value 'ranks[].state' | sort -u) == ended && $(value rule) == null ]]
tell "flight: both ranks ended, and no rule decides"
mkdir hollow && echo none >hollow/flight_recorder.so
CTITAN_PLUGIN_PATH=$PWD/hollow "$ctitan" flight run >out 2>log && grep -q '^  rank 1 .* ended' out
tell "flight: records are read where no recorder can be loaded"
cp -r run "$odd/run"
try "ckpt ls: keys" same 'ckpt ls' ckpt ls "$odd/run"
[[ $(value 'checkpoints[].step' | tr '\n' ' ') == '1 2 ' ]]
tell "ckpt ls: the steps"
try "ckpt show: keys" same 'ckpt show' ckpt show "$odd/run"
sum=$("$ctitan" ckpt show run | grep -o '^[0-9]* parameters')
[[ "$(value parameters) parameters" == "$sum" ]]
tell "ckpt show: the parameters"
first=$(ls -d run/checkpoint/step-* | head -n 1) second=$(ls -d run/checkpoint/step-* | tail -n 1)
try "ckpt diff: keys" same 'ckpt diff' ckpt diff "$first" "$second"
[[ $(value 'tensors[].name' | wc -l) == $("$ctitan" ckpt diff "$first" "$second" 2>/dev/null | grep -c 'elements differ') ]]
tell "ckpt diff: as many tensors as in lines"
try "ckpt verify: keys" same 'ckpt verify' ckpt verify run
try "ckpt gather: keys" same 'ckpt gather' ckpt gather run --to gathered
file=$(find "$second" -name '*.safetensors' | head -n 1)
printf x | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 1)) conv=notrunc status=none
"$ctitan" ckpt verify run --json >out 2>log
[[ $? == 1 && $(value 'checkpoints[].undamaged' | tr '\n' ' ') == 'true false ' && $(value 'checkpoints[].failures[]') == *"$(basename "$file")"* ]]
tell "ckpt verify: the damaged one, with the file"

try "schedule: keys" same schedule schedule 1f1b -n 2 --microbatches 2
[[ $(value time) == 9 && $(value bubble) == 3 && $(value 'ranks[].actions[].action' | wc -l) == 8 ]]
tell "schedule: time, bubble and actions"
"$ctitan" schedule 1f1b -n 2 --microbatches 2 --write-csv "$odd.csv" >log
try "schedule of a file with an odd name: keys" same schedule schedule --csv "$odd.csv"

try "check: keys" same check check adamw --quick
[[ $(value failed) == 0 && $(value 'results[].result' | grep -c ok) == $(value passed) ]]
tell "check: counts"
try "check of a plugin that crashes: keys" same check check "$falls" --quick
[[ $(value failed) == 1 && $(value 'results[].why') == *'it crashes (SIGSEGV'* ]]
tell "check: the crash"
run check no_such_plugin --json
[[ $? == 2 ]] && ! grep -q '{' log
tell "a failure before the first result prints no JSON"
finish
