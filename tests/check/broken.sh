#!/bin/bash
# broken.sh CTITAN FOLDER: `ctitan check` finds the fault of each broken plugin, and says what is wrong.
set -uo pipefail
ctitan=$1 folder=$2 status=0
many=$(for _ in {1..50}; do echo --set training.seed=7; done)
while IFS='|' read -r name words; do
    case $name in
    transform | model | optimizer | hook | order | late | unmasked | writes | twice | unreduced) how= ;; # only runs show it
    communicator) how=$many ;; # all of which the runs get, and -n after them
    transport) how='--tolerance 1' ;; # which meshes do not have
    *) how=--quick ;;
    esac
    if "$ctitan" check "$folder/broken_$name.so" $how >"$folder/$name.log" 2>&1; then
        echo "broken_$name passes"
        status=1
    elif grep -qE "^FAILED .*$words" "$folder/$name.log"; then
        echo "broken_$name: $(grep -cE '^FAILED' "$folder/$name.log") found"
    else
        echo "broken_$name: nothing says \"$words\":"
        cat "$folder/$name.log"
        status=1
    fi
done <<'END'
gradient|op broken_gradient.*gradient of input 0, element 0: .* by differences of the reference it is
sharding|op broken_sharding.*factor n split over two ranks
accumulation|op broken_accumulation.*accumulating: .*output 0
undeclared|op broken_undeclared.*input, which is not declared as updated, 1, element 0: 7
kernel|kernel plain of broken_kernel on cpu.*element 5
model|model broken_model.*gradient of table in a random direction
transform|one rank, against a run without it: the loss of step 1
optimizer|on one sample: the loss falls: .*it should fall
data|sample 5 differs when read in another order
end|sample [0-9]+ is past the end of the data, but the later sample [0-9]+ is not
labels|sample 0: label 0 is 0, and the next token is 1: labels are tokens shifted by one
tokenizer|tokenizer broken_tokenizer.*is decoded as
hook|one rank, against a run without it: it ended with status 1: .*the hook's disk is full
lr_schedule|the factor of step 0 of 1 changes from call to call
device|device broken_device.*data changed between `copy_in` and `copy_out`
communicator|fsdp on 2 ranks, against one rank: it ended with status 1: .*the ranks cannot find each other
schedule|schedule broken_schedule: 1 ranks, 1 stages, 1 microbatches: .*stage 0 microbatch 0: F
endless|schedule broken_endless: 1 ranks, 1 stages, 1 microbatches: .*adds more than 64 actions to a list
order|one rank, against a run without it: it ended with status 1: .*the order of the step never runs section I, microbatch 3
axis|axis broken_axis: degree -2, place 150: .*it must be at least 1
verb|verb broken_verb: .*it takes the argument --no-such-option
transport|tp on 2 ranks, against one rank: the norm of the gradient in step 1
compiler|compiler cpu.*`version` changes from call to call
overrun|kernel plain of broken_overrun.*: it writes to byte 192 of output 0: it has 192 bytes
gaps|kernel plain of broken_gaps.*with gaps between rows: it writes to byte [0-9]+ of output 0: that is between two rows
workspace|kernel plain of broken_workspace.*: it writes to byte 64 of the workspace: `prepare` asks for 64 bytes
positions|op broken_positions.*with sequences in another order
notanumber|op broken_notanumber.*the reference gives NaN on these inputs
narrow|op broken_narrow.*an output is float32 whatever the inputs are
crash|kernel plain of broken_crash: .*: it crashes .SIGSEGV
missing|optimizer broken_missing: the optimizer updates no parameter layers.0.weight
unskipped|optimizer broken_unskipped: a step with a negative `clip`
state|optimizer broken_state: the step after one with a negative `clip`
plan|model broken_plan: no pattern of its shard_plan fits the parameter head
names|model broken_names: two parameters are called table
needs|transform broken_needs: it needs "gradient", which no transform .* gives
phase|transform broken_phase: its phase is 77
events|hook broken_events: its `events` are 0
late|one rank, against a run without it: it ended with status 2: .*the hook's disk is full
tenfold|op broken_tenfold.*.flops. says 3840, and the products of its signature take 384
uncounted|op broken_uncounted.*its signature multiplies matrices, about 384 FLOPs, and it has no .flops.
not_flops|op broken_not_flops.*.flops. says nan
negative|op broken_negative.*.flops. says -384
one_document|kernel plain of broken_one_document.*, dense, float32: output 0, element 15
uncleared|kernel plain of broken_uncleared.*: -?nan, and the reference computes
shared|kernel plain of broken_shared.*two ranges of ct_parallel.*both write byte [0-9]+ of a variable of its file
overlap|kernel plain of broken_overlap.*(output 0, element|both write byte 48 of an operand)
lost|kernel plain of broken_lost.*two ranges of ct_parallel.*both write byte [0-9]+ of a variable of the function
model_tenfold|model broken_model_tenfold: .flops_per_token. gives
model_nan|model broken_model_nan: .flops_per_token. gives [0-9]+, and -?nan
model_documents|model broken_model_documents: with documents: tokens of one document change the loss
last_parameter|optimizer broken_last_parameter: .*leaves element 0 of layers.1.weight as it is
last_element|optimizer broken_last_element: .*leaves element 23 of layers.0.weight as it is
unmasked|one rank, with documents, against a run without it: the loss of step 1
beyond|sample 4: label 15 is 20: expected a token
special|tokenizer broken_special: .*bos is 256: expected -1, or 0 to 255
last_factor|the factor of step 9 of 10 is -?nan
unknown_event|hook broken_unknown_event: its .events. have bits that are no event
writes|one rank, against a run without it: the (loss|norm of the gradient) .*step 3
forgets|schedule broken_forgets: 1 ranks, 1 stages, 1 microbatches
deadlock|schedule broken_deadlock: 2 ranks, 2 stages, 2 microbatches
unreduced|fsdp on 2 ranks, against one rank: the norm of the gradient in step 1
idle|compiler cpu
dirty|device broken_dirty.*reserved memory is not zeroed: byte 65535
unaligned|device broken_unaligned.*reserved memory begins at .* not a multiple of 4096
restless|axis broken_restless: .*changes from call to call
twice|one rank, against a run without it: it ended with status
falls|verb broken_falls: .*it is ended by signal 11
needed|plugin broken_needed: it needs "devic:cpu", and there is no kind of offer devic
END
refused() { # WORDS ARGUMENT..: status 2, and the words are said
    "$ctitan" check "${@:2}" >"$folder/refused.log" 2>&1
    if [[ $? != 2 ]] || ! grep -qF -- "$1" "$folder/refused.log"; then
        echo "check ${*:2}: not refused with \"$1\":"
        cat "$folder/refused.log"
        status=1
    fi
}
refused 'no section adamv; did you mean adamw?' adamw --set adamv.lr=1
refused 'no section trainig; did you mean training?' adamw --set trainig.steps=1
refused 'the check does not load plugin tp; add --with tp' adamw --set tp.degree=2
refused 'plugin 1f1b has no options' 1f1b --set 1f1b.x=1
refused 'no option named isaa; did you mean isa?' adamw --set cpu.isaa=1

# without_options PLUGIN WORDS..: what needs no option is tried all the same, and what is missing is said.
without_options() {
    # shellcheck disable=SC2086
    "$ctitan" check $1 >"$folder/bare.log" 2>&1
    for words in "${@:2}"; do
        grep -qE "$words" "$folder/bare.log" && continue
        echo "check $1 does not say \"$words\":"
        cat "$folder/bare.log"
        status=1
    done
}
without_options bpe '^untried tokenizer bpe: neither .bpe. path nor' '0 failed'
without_options 'bpe --set bpe.path=/dev/null --quick' '^FAILED +tokenizer bpe: .*it cannot be opened'
without_options dpo '^untried data source dpo: set dpo.path' '^ok +op kto:' '0 failed'
without_options weighted '^untried runs: .*nobody feeds an input "weights"' '0 failed'
without_options lora '^note .*--tolerance 1 accepts'

# An untried op is no pass, unless that is allowed.
refuse_untried() { "$ctitan" check "$folder/broken_declines.so" --quick "$@" >"$folder/declines.log" 2>&1; }
if refuse_untried || ! refuse_untried --allow-untried || ! grep -q '^untried kernel plain of broken_declines' "$folder/declines.log"; then
    echo "a kernel that accepts nothing passes, or cannot be allowed:"
    cat "$folder/declines.log"
    status=1
fi

# A failed check of one kind keeps no other from being made.
grep -q '^ok *fsdp on 2 ranks' "$folder/model.log" || { cat "$folder/model.log"; status=1; }
exit $status
