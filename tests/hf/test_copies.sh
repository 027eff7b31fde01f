#!/bin/bash
# test_copies.sh CTITAN DATA: two ranks that see different copies of what they read do not train. Each rank runs in a folder of its
# own, as on two hosts, with relative paths.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1") data=$(realpath "$2")
enter
file=model.safetensors

# copies: equal folders 0 and 1, with a recipe that reads what lies beside it.
copies() {
    rm -rf 0 1
    mkdir 0
    cp -r "$data/hf" "$data/tokens.bin" 0
    chmod -R u+w 0
    recipe model.init_from=hf tokens.path=tokens.bin training.steps=1 "$@"
    mv recipe.ini 0
    cp -r 0 1
}

# pair: both ranks train; the status is that of rank 0.
pair() {
    local rank
    for rank in 1 0; do
        (cd $rank && RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$((20000 + $$ % 20000)) \
            timeout "$limit" "$ctitan" train recipe.ini --with fsdp >log 2>&1 </dev/null) &
    done
    wait $!
    status=$?
    wait
    cat 0/log >log
    return $status
}

# differ WHAT: neither rank trains, and both say what differs.
differ() {
    fails 2 "the ranks read different files: rank 0 has $1.*, rank 1 $1.*; give all hosts the same files$" pair &&
        grep -qE "rank 0 has $1" 1/log
}

# change AT [FILE]: another byte of the file of rank 1.
change() {
    printf '\125' | dd of="1/${2-hf/$file}" bs=1 seek="$1" conv=notrunc status=none
}

copies
pair
tell 'equal copies train'

begin=$((8 + $(od -An -tu8 -N8 "1/hf/$file")))
change $((begin + 1))
differ "hf/$file, tensor [a-z_.]*: hash [0-9a-f]{16}"
tell 'another weight'

copies
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.01/' 1/hf/config.json
! cmp -s 0/hf/config.json 1/hf/config.json && differ 'hf/config.json: hash [0-9a-f]{16}'
tell 'another config.json'

copies
change 0 tokens.bin
differ 'the data of \[tokens\]: hash [0-9a-f]{16}, [0-9]+ tokens'
tell 'other data of the same size'

# The message names the files that rank 1 lacks, and those that it has instead.
copies
echo '{}' >0/hf/tokenizer_config.json
fails 2 'the ranks read different files: rank 0 has hf/tokenizer_config.json: hash .*, rank 1 the data of \[tokens\]' pair
tell 'a file that one rank lacks'

copies +ckpt ckpt.initial_load_path=other
cp -r 0/hf 0/other
cp -r 0/hf 1/other
change $((begin + 1)) "other/$file"
differ "other/$file, tensor [a-z_.]*: hash"
tell 'other weights to begin with instead'

finish
