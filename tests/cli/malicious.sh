#!/bin/bash
# malicious.sh CTITAN: files that lie about what they contain. Each is refused with a message that has the words of
# the last argument, within 10 s and 3 GB of address space.
source "$(dirname "$0")/../lib/test.sh"
ctitan=$(realpath "$1")
enter

repeated() { head -c "$1" /dev/zero | tr '\0' "$2"; } # COUNT CHARACTER
word() { # NUMBER [BITS]: its 8 bytes
    local i
    for ((i = 0; i < ${2:-64}; i += 8)); do printf "\\x$(printf %02x $(($1 >> i & 255)))"; done
}
half() { word "$1" 32; }
header() { word ${#1} && printf %s "$1"; } # JSON: the beginning of a safetensors file

# refused NAME WORDS ARGUMENT..: with status 1 or 2, or with $allowed
refused() {
    local rc
    (ulimit -v 3000000 && exec timeout 10 "$ctitan" "${@:3}") >out 2>log </dev/null
    rc=$?
    echo "exit status $rc, expected \"$2\"" >why
    # shellcheck disable=SC2053 # a pattern
    [[ $rc == ${allowed:-[12]} ]] && grep -q '^ctitan: ' log && grep -q -- "$2" out log
    tell "$1"
}

# begin FILE WORD..: a recipe of a small model.
begin() {
    recipe -local -metrics -job.dump_folder -model.init_from -training.local_batch_size training.seq_len=16 training.steps=1 llama.dim=16 llama.n_layers=1 \
        llama.n_heads=2 llama.vocab_size=320 "${@:2}"
    mv recipe.ini "$1"
}
begin lines.ini -tokens +text +bytes text.path=data.jsonl
begin tokens.ini tokens.path=t.bin
begin folder.ini tokens.path=zeros.bin -llama.{dim,n_layers,n_heads,vocab_size}
repeated 4000 '\0' >zeros.bin
mkdir hf tk

# ---- weights: from stdin, FILE NAME WORDS ----

cat >good.json <<'END'
{"model_type":"llama","hidden_size":16,"num_hidden_layers":1,"num_attention_heads":2,"vocab_size":320,
"intermediate_size":48,"rms_norm_eps":1e-5,"rope_theta":10000}
END
folder() {
    rm -rf hf/*
    cp good.json hf/config.json
    cat >"hf/$1"
    allowed=2 refused "$2" "$3" train folder.ini --set model.init_from=hf
}
weights() { folder model.safetensors "$@"; }
w=model.embed_tokens.weight
{ word 9223372036854775807 && echo '{}'; } | weights 'header of 2^63' 'does not fit in a file of 11 bytes'
{ word 1000 && echo '{}'; } | weights 'header past the end' 'a header of 1000 bytes does not fit'
header "{\"a\":$(repeated 100000 '[')" | weights 'deep header' 'maximum parsing depth'
header "{\"$w\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,4],\"data_offsets\":[0,8]}}" |
    weights 'overflowing shape' "$w: size number 0 of the shape is invalid"
header "{\"$w\":{\"dtype\":\"F32\",\"shape\":[320,16],\"data_offsets\":[0,20480]}}" |
    weights 'data past the end' 'bytes 0 to 20480 are outside'
header "{\"$w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}" | weights 'negative offset' 'bytes -4 to 0 are outside'
header "{\"$w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18446744073709551608,4]}}" | weights 'offset of 2^64' 'data_offsets are not two integers'
{ header '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}' &&
    repeated 12 '\0'; } | weights overlap 'b overlaps another tensor'
{ header '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}' &&
    repeated 16 '\0'; } | weights 'twice' 'duplicate tensor a'
weights 'empty file' '0 bytes are too few' </dev/null

index() { folder model.safetensors.index.json "$@"; }
for path in ../../../etc/passwd /etc/passwd sub/../../x; do
    echo "{\"weight_map\":{\"$w\":\"$path\"}}" | index "index with $path" 'not a file of this folder'
done
echo "{\"weight_map\":{\"$w\":5}}" | index 'index of numbers' 'not a file of this folder'
repeated 100000 '[' | index 'deep index' 'maximum parsing depth'

config() { folder config.json "$@"; }
repeated 100000 '[' | config 'deep config' 'maximum parsing depth'
sed 's/"hidden_size":16/"hidden_size":1000000000000000000/' good.json | config 'large width' 'hidden_size is 1000000000000000000; expected 1 to 2147483646'
sed 's/_layers":1/_layers":2147483647/' good.json | config 'many layers' 'num_hidden_layers is 2147483647; expected 1 to 1024'
sed 's/_heads":2/_heads":-2/' good.json | config 'negative heads' 'num_attention_heads is -2; expected 1 to 2147483646'

# ---- tokenizers ----

tokenizer() {
    cat >tk/tokenizer.json
    refused "$1" "$2" tokenize --tokenizer tk/tokenizer.json
}
bpe() { printf '{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":%s,"merges":%s}}' "$@"; }
repeated 100000 '[' | tokenizer 'deep tokenizer' tokenizer.json
bpe '{"a":2147483647,"b":0}' '[]' | tokenizer 'large id' tokenizer.json
bpe '{"a":-1,"b":0}' '[]' | tokenizer 'negative id' tokenizer.json
bpe '{"a":0,"b":0}' '[]' | tokenizer 'id twice' tokenizer.json
bpe '{"a":0,"b":1}' '["a c"]' | tokenizer 'merge of nothing' tokenizer.json
bpe '{"a":0,"b":1}' '[["a"]]' | tokenizer 'half a merge' tokenizer.json
tiktoken() {
    cat >tk/x.model
    refused "$1" "$2" tokenize --tokenizer tk/x.model
}
echo 'QQ== 99999999999' | tiktoken 'large rank' 'line 1: expected rank 0'
repeated 3000000 A | tiktoken 'long token' 'line 1: expected a token in base64'

# ---- data ----

lines() {
    cat >data.jsonl
    refused "$1" "$2" train lines.ini
}
{ printf '{"text": ' && repeated 1000000 '['; } | lines 'deep line' 'data.jsonl:1: .*maximum parsing depth'
{ printf '{"text": "' && repeated 20000000 a; } | lines 'line without an end' 'data.jsonl:1: .*premature end'
echo '{"text": 5}' | lines 'number as text' 'data.jsonl:1: .*is not a string'
printf '\x1f\x8b\x08\0garbage' >x.gz
refused 'broken gzip' 'x.gz: gzip' train lines.ini --set text.path=x.gz
repeated 300000000 '\0' | gzip -9 >x.gz
refused 'gzip bomb' 'expands to more than' train lines.ini --set text.path=x.gz
# 40 MB of zstd's blocks that say "128 KB of one byte": 4 bytes each, after the frame's head.
{ printf '\x28\xb5\x2f\xfd\x00\x58' && for _ in {1..4000}; do printf '\x02\x00\x10\x00'; done; } >x.zst
refused 'zstd bomb' 'expands to more than' train lines.ini --set text.path=x.zst

tokens() {
    cat >t.idx
    repeated 100 '\0' >t.bin
    refused "$1" "$2" train tokens.ini
}
megatron() { printf 'MMIDIDX\0\0' && word 1 && printf "$1"; }
{ megatron '\x08' && word 9223372036854775807 && word 9223372036854775807; } | tokens 'Megatron: counts' 'do not fit in its 34 bytes'
{ megatron '\x08' && word 1 && word 1 && half 2147483647 && word 0 && word 0; } | tokens 'Megatron: a length' 'lists 2147483647 tokens'
{ megatron '\x63' && word 1 && word 1; } | tokens 'Megatron: a type' 'type 99'
rm t.idx
{ half 20240520 && half 1 && half 4294967295 && repeated 1012 '\0'; } >t.bin
refused "llm.c: a count" '4294967295 tokens of 2 bytes' train tokens.ini

# ---- checkpoints ----

"$ctitan" train tokens.ini --set tokens.path=zeros.bin --with ckpt --set ckpt.interval=1 --set job.dump_folder=run >log 2>&1 ||
    fail "$(cat log)"
checkpoint() {
    rm -rf bad
    cp -r run/checkpoint/step-1 bad
    cat >bad/index.json
    refused "$1" "$2" ckpt verify bad
}
good=run/checkpoint/step-1/index.json
repeated 100000 '[' | checkpoint 'deep index of a checkpoint' 'checksum is wrong'
sed 's,rank-00000.safetensors,../run/x,g' $good | checkpoint 'checkpoint with a path' 'checksum is wrong'
sed 's/"world":1/"world":1000000000/' $good | checkpoint 'checkpoint of many ranks' 'checksum is wrong'
head -c 1000 $good | checkpoint 'half an index' 'index.json'

# ---- recipes and schedules ----

{ printf '[plugins]\nload = ' && repeated 5000000 a; } >x.ini
refused 'long recipe' 'x.ini has 5000017 bytes' plan x.ini
{ printf '[plugins]\nload = ' && repeated 100000 a; } >x.ini
refused 'long line' 'x.ini:2' plan x.ini
schedule() {
    cat >x.csv
    refused "$1" "$2" schedule --csv x.csv
}
echo '999999999999F0' | schedule 'large stage' 'number of the stage is too large'
echo '0F999999999' | schedule 'large microbatch' 'below 1048576'
repeated 3000000 , | schedule 'only commas' 'no action'

# ---- pipes that nobody writes to, in the place of each file ----

piped() { # FILE WORDS ARGUMENT..: the file is a pipe while this runs
    [[ ! -e $1 ]] || mv "$1" former
    mkfifo "$1"
    refused "$1 is a pipe" "${2:-$1 is not a regular file}" "${@:3}"
    rm "$1"
    [[ ! -e former ]] || mv former "$1"
}
"$ctitan" train tokens.ini --set tokens.path=zeros.bin --set model.save_to=hf --set job.dump_folder=saved --set model.overwrite=true >log 2>&1 || fail "$(cat log)"
allowed=2
for file in config.json model.safetensors model.safetensors.index.json; do
    piped hf/$file '' train folder.ini --set model.init_from=hf
done
piped hf/tokenizer.json '' train lines.ini --set model.init_from=hf --without bytes --with bpe
piped zeros.bin '' train folder.ini
piped data.jsonl 'data.jsonl is a pipe, which is read only once: set \[text\] command_key' train lines.ini
piped x.csv '' schedule --csv x.csv
piped machine.ini '' plan folder.ini --device ./machine.ini
allowed=1
piped run/checkpoint/step-1/index.json '' ckpt verify run
piped run/checkpoint/step-1/rank-00000.safetensors 'rank-00000.safetensors has 0 bytes' ckpt verify run
finish
