# shellcheck shell=bash
# What the test programs in bash share. A program begins with
#
#     source "$(dirname "$0")/../lib/test.sh"
#     ctitan=$(realpath "$1") data=$(realpath "$2")
#     enter
#
# and ends with `finish`. It prints TAP. DATA is a folder of tests/golden.
set -u
shopt -s lastpipe # the last command of a pipe may set variables
here=$(realpath "$(dirname "$0")")
count=0 bad=0
limit=60 # seconds for a run of ctitan: nothing here comes near

# enter: goes to an empty folder, $work, which is removed at the end.
enter() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit
}

# ---- verdicts ----

# tell NAME [WORDS]: the status of the command before, as a line of TAP; if it is not 0, with the words, or the end of the files
# `why` and `log`. No $(..) in the arguments: its status would take the place of the command's.
tell() {
    local status=$?
    count=$((count + 1))
    if ((status == 0)); then
        echo "ok $count - $1"
    else
        bad=$((bad + 1))
        echo "not ok $count - $1${2:+: $2}"
        [[ ${2-} ]] || tail -qn 5 why log 2>/dev/null | sed 's/^/# /'
    fi
}

# check NAME CONDITION: a condition of awk, which is the name, too.
check() {
    awk "BEGIN { exit !($2) }"
    tell "$1: $2"
}

# try NAME COMMAND..: the status of the command, with what it printed, on one line.
try() {
    local words
    count=$((count + 1))
    if words=$("${@:2}" </dev/null); then
        echo "ok $count - $1${words:+: $words}"
    else
        bad=$((bad + 1))
        echo "not ok $count - $1: ${words//$'\n'/ | }"
    fi
}

# each FILE COMMAND [all | NAME..]: tries COMMAND with each line of FILE, which begins with its name: the others are its words. Lines
# whose name begins with "+" are for "all", or asked for by name; with names, no others are tried.
each() {
    local file=$1 command=$2 name words
    shift 2
    while read -r name words; do
        [[ $name && $name != \#* ]] || continue
        [[ $name != +* || $# != 0 ]] || continue
        name=${name#+}
        (($# == 0)) || [[ $* == all || " $* " == *" $name "* ]] || continue
        # shellcheck disable=SC2086
        try "$name" "$command" $words
    done <"$file"
}

# skip WHY: the end of a program that cannot run here.
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}

finish() {
    echo "1..$count"
    exit $((bad > 0 || count == 0))
}

# ---- programs of `set -e`, which end at the first fault ----

# fail WORDS: the end of the program.
fail() {
    echo "FAILED: $*"
    exit 1
}

# never COMMAND..: the command fails. (`! COMMAND` ends no program.)
never() {
    ! "$@"
}

# ---- recipes and runs ----

# recipe WORD..: writes recipe.ini, which trains the small model of $data in float32 and bfloat16 on the CPU, or as the words say.
# SECTION.KEY=VALUE: a setting; -SECTION.KEY: none; +PLUGIN, -PLUGIN: loaded, not loaded. A flavor has the place of $data's weights.
recipe() {
    local word key section model=llama plugins order=()
    local -A value=() lines=()
    [[ ! -f ${data-}/case.json || ! $(<"$data/case.json") =~ '"model": '*'"'([^'"']*)'"' ]] || model=${BASH_REMATCH[1]}
    for word; do [[ $word != model.name=* ]] || model=${word#*=}; done
    plugins=" cpu local ${model:=llama} tokens adamw metrics "
    for word; do
        case $word in
        +*) plugins+="${word#+} " ;;
        -*.*) ;;
        -*) plugins=${plugins/ ${word#-} / } ;;
        esac
    done
    read -ra order <<<"$plugins"
    printf -v plugins '%s, ' "${order[@]}"
    set -- job.dump_folder="$work/out" plugins.load="${plugins%, }" model.name="$model" \
        training.seq_len=64 training.local_batch_size=2 training.steps=4 "$@"
    [[ $* == *model.flavor=* ]] || set -- model.init_from="${data-}/hf" "$@"
    [[ " ${order[*]} " != *' tokens '* ]] || set -- tokens.path="${data-}/tokens.bin" tokens.repeat=true "$@"
    [[ " ${order[*]} " != *' metrics '* ]] || set -- metrics.log_freq=1 metrics.peak_tflops=1 "$@"
    order=()
    for word; do
        key=${word%%=*}
        case $word in
        -*.*) unset "value[${word#-}]" ;;
        *.*=*) value[$key]=${word#*=} order+=("$key") ;;
        esac
    done
    for key in "${order[@]}"; do # its lines, in the order of the words
        [[ -v value[$key] ]] || continue
        lines[${key%%.*}]+="${key#*.} = ${value[$key]}"$'\n'
        unset "value[$key]"
    done
    for key in "${order[@]}"; do
        section=${key%%.*}
        [[ ! ${lines[$section]-} ]] || printf '[%s]\n%s' "$section" "${lines[$section]}"
        unset "lines[$section]"
    done >recipe.ini
}

# arguments_of RANKS PLUGINS SETTING..: sets the array `arguments` of ctitan. PLUGINS: names with commas; -: none; -NAME: without it.
arguments_of() {
    local ranks=$1 plugin
    arguments=()
    for plugin in ${2//,/ }; do
        case $plugin in
        -) ;;
        -*) arguments+=(--without "${plugin#-}") ;;
        *) arguments+=(--with "$plugin") ;;
        esac
    done
    for setting in "${@:3}"; do arguments+=(--set "$setting"); done
    ((ranks == 1)) || arguments+=(-n "$ranks")
}

# run VERB..: ctitan, whose output is in `log`.
run() {
    timeout "$limit" "$ctitan" "$@" >log 2>&1 </dev/null
}

# train ARGUMENT..: the recipe.
train() {
    run train recipe.ini "$@"
}

# train_to FOLDER ARGUMENT..: the recipe, into the dump folder, with FOLDER.log. It succeeds, or the program ends.
train_to() {
    timeout $((limit * 4)) "$ctitan" train recipe.ini --set "job.dump_folder=$1" "${@:2}" >"$1.log" 2>&1 || fail "$(cat "$1.log")"
}

# fails STATUS WORDS COMMAND..: the command has the status, and the extended regular expression is in `log`.
fails() {
    local status=0
    "${@:3}" || status=$?
    [[ $status == "$1" ]] && grep -qE -- "$2" log
}

# wait_for SECONDS COMMAND..: until the command is true; false if it is not by then.
wait_for() {
    local end=$((SECONDS + $1))
    until "${@:2}" 2>/dev/null; do
        ((SECONDS < end)) || return 1
        sleep 0.02
    done
}

# ---- documents ----

# little BYTES NUMBER..: each in so many bytes, the lowest first.
little() {
    local bytes=$1 i text
    shift
    for value; do
        text=
        for ((i = 0; i < bytes; i++)); do printf -v text '%s\\x%02x' "$text" $((value >> 8 * i & 255)); done
        printf '%b' "$text"
    done
}

# megatron LENGTH: the tokens of $data as Megatron's files, documents.bin and documents.idx, in documents of so many.
megatron() {
    local tokens length=$1 lengths i
    ln -s "$data/tokens.bin" documents.bin
    tokens=$(($(stat -L -c %s documents.bin) / 4))
    mapfile -t lengths < <(for ((i = 0; i < tokens; i += length)); do echo $((tokens - i < length ? tokens - i : length)); done)
    {
        printf 'MMIDIDX\0\0'
        little 8 1
        little 1 4
        little 8 ${#lengths[@]} $((${#lengths[@]} + 1))
        little 4 "${lengths[@]}"
        for i in "${!lengths[@]}"; do little 8 $((4 * length * i)); done
        for ((i = 0; i <= ${#lengths[@]}; i++)); do little 8 $i; done
    } >documents.idx
}

# ---- numbers ----

# values KEY.. FILE: the values of the keys of each line of JSON that has them all, with blanks between.
values() {
    local IFS=' '
    awk -v keys="${*:1:$#-1}" '
        BEGIN { n = split(keys, key, " ") }
        {
            row = ""
            for (i = 1; i <= n; i++) {
                if (!match($0, "\"" key[i] "\": *[^,}]*")) next
                value = substr($0, RSTART, RLENGTH)
                sub(/^[^:]*: */, "", value)
                row = row (i > 1 ? " " : "") value
            }
            print row
        }' "${!#}"
}

# The largest relative difference of the numbers of the files A and B, or <(..); 9 if they have not as many, or what is none.
of_numbers='
    BEGIN {
        while ((getline line <ARGV[1]) > 0) a[++n] = line
        while ((getline line <ARGV[2]) > 0) b[++m] = line
        if (n == 0 || n != m) worst = 9
        for (row = 1; row <= n; row++) {
            $0 = a[row] " " b[row]
            if (NF == 0 || NF % 2 || columns && NF != columns || /[^-+0-9.e ]/) worst = 9
            columns = NF
            for (i = 1; i <= NF / 2; i++) {
                d = $i - $(i + NF / 2)
                size = $(i + NF / 2)
                if (d < 0) d = -d
                if (size < 0) size = -size
                if (d > worst * size) worst = size > 0 ? d / size : 9
            }
        }
'
difference() { # A B
    awk "$of_numbers"' print worst + 0 }' "$1" "$2"
}

# near A B TOLERANCE: their relative difference is less than the tolerance; else what it is.
near() {
    awk "$of_numbers"' if (worst < ARGV[3] + 0) exit 0; print ARGV[1] " differs from " ARGV[2] " by " worst + 0; exit 1 }' "$1" "$2" "$3"
}
