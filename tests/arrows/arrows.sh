#!/bin/bash
# arrows.sh SOURCE BUILD: who may know whom, read from the sources; and tests/places, which names tests for places.
#
#   1  A folder of core/ includes headers of itself and of the folders below it, never of lib/.
#   2  A public header of the core includes headers of its own folder and below; see `folder_of`.
#   3  A folder of lib/, plugins/ and models/, and cli/, includes its own headers and public ones.
#      A folder of lib/ includes public headers of the folders below it, see `lib_order`.
#   4  Headers of programs (app/) are included by programs, core and lib, never by plugins and models.
#   5  The core's code names no technique and no model.
#   6  The core's code names no op but its own, and recognises none by its name. Keys and values of recipes may be
#      words that name ops too.
#   7  Only lib/json reads JSON with jansson's own functions.
#   8  Each folder of core, lib, plugins and models has a suite of its name or a row in tests/places. It and tests/slow
#      name tests that are there.
#   9  lib names no plugin; cli names those that `known` lists.
#  10  An op of lib/ops that one model alone uses belongs to that model; models/decoder is many.
set -uo pipefail
cd "$1" || exit
build=$2

order=(base ir shard plugin comm lower recipe run train)
lib_order=(kit facts cpu rows cuda json tokenizer jinja patterns numa outlet secret launch ops chat hf checkpoint samples decoder mixture measure trace flight machine pipeline generate check formulas)
techniques='ddp|hsdp|offloaded|pipeline|pipelines|zero_bubble|unshard|reshard|experts|ring|ulysses'
# But for names that are common words, or the name of a phase. The core's stages are those of a recipe, [stage.N].
for plugin in plugins/*/ models/*/; do
    plugin=$(basename "$plugin")
    case $plugin in
    metrics | profile | text | tokens | bytes | local | describe | fuse | eval) ;;
    *) techniques+="|$plugin" ;;
    esac
done

# Functions that are called for every include set `found`: a $(..) would be a process each.

# The folder of the core to which a public header belongs.
folder_of() {
    found=unknown
    case $1 in
    app/exhausted.h | app/sorted.h | arena.h | base.h | clock.h | error.h | file.h | hook.h | host.h | log.h | number.h | option.h | option_use.h | rng.h | space.h) found=base ;;
    app/verify.h | calling.h | core_ops.h | device/comm.h | device/device.h | graph.h | input.h | mesh.h | op.h | op_author.h | pass.h | pointwise.h | rule.h | sharding.h | stream.h | tensor.h | text.h) found=ir ;;
    config.h | model.h | objective.h | plugin.h | plugins.h | reader.h | verb.h) found=plugin ;;
    collective.h | comm.h) found='comm' ;;
    app/segments.h | program.h) found=lower ;;
    recipe.h | stage.h) found=recipe ;;
    run.h | state.h) found=run ;;
    train.h) found=train ;;
    esac
}

# The folder of lib to which a public header belongs: that of its name, but for these.
lib_folder_of() {
    case $1 in
    compiler.h | cpu/rows.h) found=rows ;;
    vector.h) found=cpu ;;
    cuda_tokens.h) found=cuda ;;
    flight_record.h) found=flight ;;
    hf_config.h | hf_recipe.h | safetensors.h | stored.h) found=hf ;;
    names.h | norm.h) found=ops ;;
    rates.h) found=measure ;;
    terminal.h) found=launch ;;
    app/simulate.h) found=pipeline ;;
    cpu/* | cuda/*) found=${1%%/*} ;;
    *) found=${1##*/} found=${found%.h} ;;
    esac
}

# The places of folders in their orders.
declare -A core_level=() lib_level=()
for folder in "${order[@]}"; do core_level[$folder]=${#core_level[@]}; done
for folder in "${lib_order[@]}"; do lib_level[$folder]=${#lib_level[@]}; done

# own_folder FILE: the folder of core or lib to which a file belongs.
own_folder() {
    case $1 in
    core/include/ctitan/*) folder_of "${1#core/include/ctitan/}" ;;
    lib/include/ctitan/lib/*) lib_folder_of "${1#lib/include/ctitan/lib/}" ;;
    *) found=${1#*/} found=${found%%/*} ;;
    esac
}

# included FILE...: "FILE KIND HEADER" for each include, in the order of the files; KIND: < or ".
included() {
    grep -HE '^[[:space:]]*#[[:space:]]*include' "$@" |
        sed -nE 's/^([^:]*):[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]+)[>"].*/\1 \2 \3/p'
}

# core_folder INCLUDED OWN: the folder of the core that an included header is of; "" if it is none.
core_folder() {
    found=
    case $1 in
    ctitan/*) if [[ -e core/include/$1 ]]; then folder_of "${1#ctitan/}"; else found=lib; fi ;;
    */*) [[ ! -e core/$1 ]] || found=${1%%/*} ;;
    *) [[ ! -e core/$2/$1 ]] || found=$2 ;;
    esac
}

check_core() {
    local file own last='' header found
    mapfile -t files < <(find core -name '*.[ch]' | sort)
    while read -r file _ header; do
        if [[ $file != "$last" ]]; then
            own_folder "$file"
            last=$file own=$found
            [[ $own != unknown ]] || echo "$file is in no folder: add it to folder_of"
        fi
        core_folder "$header" "$own"
        [[ ! $found ]] || ((${core_level[$found]-99} <= ${core_level[$own]-99})) || echo "$file includes $header"
    done < <(included "${files[@]}")
}

check_lib() {
    local file own header found
    mapfile -t files < <(find lib -name '*.[ch]' | sort)
    while read -r file _ header; do
        [[ $header == ctitan/lib/* && -e lib/include/$header ]] || continue
        own_folder "$file"
        own=$found
        lib_folder_of "${header#ctitan/lib/}"
        ((${lib_level[$found]-99} <= ${lib_level[$own]-99})) ||
            echo "$file includes $header, which is above it in lib_order"
    done < <(included "${files[@]}")
    for file in lib/*/; do
        file=${file%/} own=${file##*/}
        [[ $own == include || ${lib_level[$own]-} ]] || echo "$file is not in lib_order"
    done
}

# Quoted headers lie in the folder, or below it, of the file that includes them.
check_others() {
    local file home kind header
    mapfile -t files < <(find cli lib/[a-hj-z]* plugins models -name '*.[ch]' -o -name '*.cu' | sort)
    while read -r file kind header; do
        case $file in
        cli/*) home=cli ;;
        *) home=${file#*/} home=${file%%/*}/${home%%/*} ;;
        esac
        if [[ $kind == '"' && $header == *..* ]]; then
            [[ $(realpath -q --relative-to=. "${file%/*}/$header") == "$home"/* ]] || echo "$file includes $header"
        elif [[ $kind == '"' ]]; then
            [[ -e ${file%/*}/$header || -e $home/$header ]] || echo "$file includes $header"
        fi
        [[ ! $header =~ ^(ir|shard|lower|comm|plugin|recipe|run|train|base)/ ]] || echo "$file includes $header"
        [[ $file != plugins/* && $file != models/* || $header != ctitan/app/* && $header != ctitan/lib/app/* ]] ||
            echo "$file includes $header"
    done < <(included "${files[@]}")
}

# uncommented: the sources whose names are read, without comments and includes: "FILE:TEXT". One run of the preprocessor reads them all.
uncommented() {
    xargs -d '\n' awk 'FNR == 1 { print "\n@ " FILENAME } { print }' | gcc -fpreprocessed -dD -E -P -w -x c - |
        awk '/^@ / { file = $2; next } !/^#include/ { print file ":" $0 }'
}

# Names of the ops that are defined in the given folders.
ops_of() {
    grep -rhoE 'struct ct_op_type [a-z_0-9]+(\[\])? = \{|\.name = "[a-z_0-9.]+"' "$@" --include='*.c' |
        awk -F'"' '/ct_op_type/ { op = 1; next } op && NF > 1 { print $2; op = 0 }' | sort -u
}

# Functions of formulas, which ops may be named after.
functions() {
    sed -nE 's/^ *X\([A-Z_0-9]+, "([a-z_0-9]+)".*/\1/p' core/include/ctitan/pointwise.h
}

check_words() {
    local foreign
    foreign=$(comm -13 <({ ops_of core; functions; } | sort -u) <(ops_of lib plugins models) | paste -sd'|')
    find core -name '*.[ch]' | sort | uncommented >"$scratch"
    awk -v words="$techniques" '
        BEGIN { n = split(words, list, "|"); for (i = 1; i <= n; i++) wanted[list[i]] }
        {
            colon = index($0, ":"); file = substr($0, 1, colon - 1); text = tolower(substr($0, colon + 1))
            gsub(/"float8_e(4m3|5m2)"/, "", text) # number formats
            n = split(text, word, /[^a-z0-9]+/)
            for (i = 1; i <= n; i++) if (word[i] in wanted) print file " names " word[i]
        }' "$scratch" | sort -u
    grep -v '^core/recipe/' "$scratch" | grep -oE "^[^:]*:|\"($foreign)\"" |
        awk '/:$/ { file = substr($0, 1, length($0) - 1); next } { gsub(/"/, ""); print file " names the op " $0 }' |
        sort -u
    grep -E 'strn?cmp\([^;]*type->name' "$scratch" | cut -d: -f1 | sort -u | grep -vx core/ir/op.c |
        sed 's/$/ compares the name of an op/'
}

# Plugins that lib/ and cli/ name: "NAME", or an option "NAME.KEY =". Nothing in lib does; tune and check try recipes of their own, and
# so do these. (runs.c reads a key of metrics.jsonl.)
known='cli/args.c:fuse cli/compare.c:metrics cli/data_teacher.c:cpu cli/describe.c:cpu cli/describe.c:fsdp
    cli/report_timeline.c:cpu cli/report_timeline.c:cuda cli/runs.c:metrics'
check_plugins() {
    local words
    words=$(printf '%s\n' plugins/*/ models/*/ | xargs -n1 basename | grep -vxE 'text|tokens|bytes|describe|eval|tar|decoder|float8|offload' | paste -sd'|')
    find cli lib -name '*.c' ! -path cli/tune.c ! -path cli/check_runs.c | sort | uncommented |
        grep -oE "^[^:]*:|\"($words)(\"|\.[a-z_]+ ?=)|CT_ARG_[A-Z]+\([^\"]*\"" |
        awk '/:$/ { file = $0; next } !/^CT_ARG/ { sub(/^"/, ""); sub(/[".].*/, ""); print file $0 }' |
        sort -u | grep -vxF "$(tr -s ' ' '\n' <<<"$known")" | sed 's/\(.*\):\(.*\)/\1 names the plugin \2/'
}

check_places() {
    local tests folder
    tests=$(meson introspect --tests "$build" |
        grep -oE '"(name|suite)": ("[^"]*"|\[[^]]*\])' |
        sed -E -e 's/^"name": "(.*)"$/\1/;t' -e 's/^"suite": \[//' -e 's/"ctitan:([^"]*)",?/@\1\n/g' -e 's/[]" ]*$//' |
        sed 's/^ *//' | sort -u)
    for folder in lib/*/ plugins/*/ models/*/; do
        grep -qx "@$(basename "$folder")" <<<"$tests" ||
            awk -v path="$folder" '!/^#/ && $1 ~ "/" && index(path, $1) == 1 { found = 1 } END { exit !found }' tests/places ||
            echo "$folder has no suite of its name, and tests/places no row for it"
    done
    comm -13 <(echo "$tests") <({
        sed -e '/^#/d' -e 's/^[^ ]* *//' tests/places | tr ';' '\n' | sed 's/^ *//;s/ *$//'
        sed -e '/^#/d' -e 's/^[0-9]* *//' tests/slow
    } | sort -u) |
        grep -vE 'cuda|nccl|mpi' | # a build may lack these
        sed 's/^/tests\/places or tests\/slow names a test that is not there: /'
}

# Ops that have one user, a model: one whose kernels stand among those of plugins/cpu and plugins/cuda, as its rows do, and the
# latent attention of the decoder to come.
of_one_model=' document_chunks expand_latent '

# "OP PLACE" for the places that use ops, other than those that define them or have their kernels.
users() {
    grep -roE '\bct_[a-z_0-9]+\(|\bct_op_[a-z_0-9]+\b|"[a-z_0-9]+"' lib plugins models cli --include='*.c' --include='*.ini' |
        grep -vE '^(lib/ops|lib/check|plugins/cpu|plugins/cuda)/' |
        sed -nE 's,^([^/:]*/[^/:]*)[^:]*:(.*)$,\2 \1,; s/^ct_op_([a-z_0-9]+)\(? /\1 /p; s/^ct_([a-z_0-9]+)\( /\1 /p; s/^"([a-z_0-9]+)" /\1 /p' | sort -u
}

check_ops() {
    local op place alone
    local -A places=()
    while read -r op place; do places[$op]+=" $place"; done < <(users)
    while read -r op; do
        place=${places[$op]-} place=${place# }
        alone=false
        [[ $place == models/* && $place != models/decoder && $place != *' '* ]] && alone=true
        if [[ $of_one_model == *" $op "* ]]; then
            $alone || echo "the op $op has other users than one model: take it out of of_one_model"
        elif $alone; then
            echo "the op $op of lib/ops has one user, $place, and belongs there"
        fi
    done < <(sed -n '/define CT_LIB_OPS(X)/,/^$/p' lib/include/ctitan/lib/ops.h | grep -oE 'X\([a-z_0-9]+\)' | sed 's/X(\(.*\))/\1/')
}

check_json() {
    grep -rnE '\bjson_load[a-z_]* *\(' core cli lib plugins models examples bench --include='*.[ch]' | grep -v '^lib/json/' |
        sed -E 's/^([^:]*:[0-9]+):.*/\1 reads JSON without lib\/json/'
}

# Checkpoints are of any format of weights.
check_formats() {
    grep -lE 'lib/hf[a-z_]*\.h>' plugins/ckpt/*.[ch] lib/checkpoint/*.c lib/include/ctitan/lib/checkpoint.h | sed 's/$/ knows the folders of Hugging Face/'
}

# Who lacks a plugin reads in verbs/ which one has a verb: the plugin's meson.build says it.
check_verbs() {
    comm -23 <(grep -roE '\{CT_VERB, "[a-z_]+"' plugins models --include='*.c' | sed -E 's,^[a-z]+/([a-z0-9_]+)/.*"([a-z_]+)"$,\2 \1,' | sort) \
        <(grep -hE '^plugin_verbs \+=' plugins/*/meson.build models/*/meson.build | grep -oE "'[a-z_]+': '[a-z0-9_]+'" | tr -d "':" | sort) |
        sed 's/\(.*\) \(.*\)/no meson.build adds the verb \1 of \2 to plugin_verbs/'
}

scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
faults=$({ check_core; check_lib; check_others; check_words; check_plugins; check_json; check_places; check_ops; check_formats; check_verbs; } | sort -u)
[[ ! $faults ]] || { printf '%s\n' "$faults"; exit 1; }
