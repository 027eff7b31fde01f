/*
 * Shapes and dtypes of outputs, and what each op type says about inputs that do not fit.
 */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/rule.h>
#include <ctitan/text.h>

#include "plugin_ops.h"

struct infer_case {
    const char *type, *attrs, *inputs; /* "float32[2,3] int32[2] -": named a, b, c, .. */
    const char *expect;                /* outputs in the same way, or the whole message */
};

static const struct infer_case good[] = {
    {"embedding", NULL, "int32[2,3] bfloat16[9,4]", "bfloat16[2,3,4]"},
    {"embedding_grad", "rows=9", "float32[2,3,4] int32[2,3]", "float32[9,4]"},
    {"embedding_grad", "rows=9 padding=8", "float32[2,3,4] int32[2,3]", "float32[9,4]"},
    {"linear", NULL, "bfloat16[2,3,4] bfloat16[5,4]", "bfloat16[2,3,5]"},
    {"linear", NULL, "float32[3,4] float32[5,4] float32[6,4]", "float32[3,5] float32[3,6]"},
    {"linear_dx", NULL, "float32[3,5] float32[3,6] float32[5,4] float32[6,4]", "float32[3,4]"},
    {"linear_dw", NULL, "float32[2,3,4] float32[2,3,5] float32[2,3,6]",
     "float32[5,4] float32[6,4]"},
    {"rms_norm", NULL, "bfloat16[2,3,4] bfloat16[4]", "bfloat16[2,3,4] float32[2,3]"},
    {"rms_norm", NULL, "float64[4] float64[4]", "float64[4] float64[]"},
    {"add_rms_norm", NULL, "float16[3,4] float16[3,4] float16[4]",
     "float16[3,4] float16[3,4] float32[3]"},
    {"rms_norm_grad", NULL, "bfloat16[3,4] bfloat16[3,4] bfloat16[4] float32[3] -",
     "bfloat16[3,4] bfloat16[4]"},
    {"rms_norm_grad", NULL, "float32[3,4] float32[3,4] float32[4] float32[3] float32[3,4]",
     "float32[3,4] float32[4]"},
    {"rms_norm.largest", NULL, "bfloat16[2,3,4] bfloat16[4]",
     "bfloat16[2,3,4] float32[2,3] float32[2,3]"},
    {"add_rms_norm.largest", NULL, "bfloat16[3,4] bfloat16[3,4] bfloat16[4]",
     "bfloat16[3,4] bfloat16[3,4] float32[3] float32[3]"},
    {"rms_norm_grad.largest", NULL, "bfloat16[3,4] bfloat16[3,4] bfloat16[4] float32[3] -",
     "bfloat16[3,4] bfloat16[4] float32[3]"},
    {"swiglu.largest", NULL, "float32[2,3] float32[2,3]", "float32[2,3] float32[2]"},
    {"swiglu_grad.largest", NULL, "float32[2,3] float32[2,3] float32[2,3]",
     "float32[2,3] float32[2,3] float32[2] float32[2]"},
    {"add", NULL, "float32[] float32[]", "float32[]"},
    {"rms_norm_plain", NULL, "bfloat16[2,3,4]", "bfloat16[2,3,4] float32[2,3]"},
    {"rms_norm_plain_grad", NULL, "bfloat16[3,4] bfloat16[3,4] float32[3]", "bfloat16[3,4]"},
    {"temper", NULL, "bfloat16[2,3,4,6] -", "bfloat16[2,3,4,6]"},
    {"temper", NULL, "float32[2,3,4,6] int32[2,3]", "float32[2,3,4,6]"},
    {"document_chunks", NULL, "int32[2,3] - int32[2,3]", "int32[2,3]"},
    {"scale_rows", NULL, "bfloat16[2,3,4] float32[2,3]", "bfloat16[2,3,4]"},
    {"scale_rows_grad", NULL, "float64[3,4] float64[3,4] float64[3]", "float64[3,4] float64[3]"},
    {"ones", NULL, "float64[2,3,1]", "float64[2,3,1]"},
    {"rope", NULL, "float32[2,3,4,6] -", "float32[2,3,4,6]"},
    {"rope", NULL, "float32[2,3,4,6] int32[2,3]", "float32[2,3,4,6]"},
    {"rope", "first=3", "float32[2,3,4,7]", "float32[2,3,4,7]"},
    {"split", "widths=4,1", "bfloat16[2,3,5]", "bfloat16[2,3,4] bfloat16[2,3,1]"},
    {"split_grad", "widths=4,1", "bfloat16[2,3,4] bfloat16[2,3,1]", "bfloat16[2,3,5]"},
    {"split_grad", "widths=4,1,2", "- - float32[3,2]", "float32[3,7]"},
    {"expand_latent", "keys=2", "bfloat16[2,3,4,5] bfloat16[2,3,6]",
     "bfloat16[2,3,4,8] bfloat16[2,3,4,3]"},
    {"expand_latent_grad", "keys=2 values=3 shared=6", "bfloat16[2,3,4,8] bfloat16[2,3,4,3]",
     "bfloat16[2,3,4,5] bfloat16[2,3,6]"},
    {"expand_latent_grad", "keys=2 values=3 shared=6", "- float32[2,3,4,3]",
     "float32[2,3,4,5] float32[2,3,6]"},
    {"causal_conv", NULL, "bfloat16[2,3,5] bfloat16[5,4]", "bfloat16[2,3,5]"},
    {"causal_conv_grad", NULL, "float32[2,3,5] float32[2,3,5] float32[5,4] int32[2,3]",
     "float32[2,3,5] float32[5,4] float32[5]"},
    {"state_scan", NULL,
     "bfloat16[2,3,4,5] bfloat16[2,3,4] bfloat16[4] bfloat16[2,3,2,6] bfloat16[2,3,2,6] "
     "bfloat16[4] bfloat16[4]",
     "bfloat16[2,3,4,5]"},
    {"state_scan_grad", NULL,
     "float32[2,3,4,5] float32[2,3,4,5] float32[2,3,4] float32[4] float32[2,3,2,6] "
     "float32[2,3,2,6] float32[4] float32[4] int32[2,3]",
     "float32[2,3,4,5] float32[2,3,4] float32[4] float32[2,3,2,6] float32[2,3,2,6] float32[4] "
     "float32[4]"},
    {"gated_delta", NULL,
     "bfloat16[2,3,2,5] bfloat16[2,3,2,5] bfloat16[2,3,4,6] float32[2,3,4] float32[2,3,4]",
     "bfloat16[2,3,4,6]"},
    {"gated_delta_grad", NULL,
     "float64[2,3,4,6] float64[2,3,2,5] float64[2,3,2,5] float64[2,3,4,6] float64[2,3,4] "
     "float64[2,3,4]",
     "float64[2,3,2,5] float64[2,3,2,5] float64[2,3,4,6] float64[2,3,4] float64[2,3,4]"},
    {"causal_conv_carry", "tokens=3", "bfloat16[2,4,5,6]", "bfloat16[2,4,1,3,6]"},
    {"causal_conv_dstate", NULL, "bfloat16[2,4,5,6] bfloat16[6,4] int32[2,4,5]",
     "float32[2,4,1,3,6]"},
    {"state_scan_carry", NULL,
     "bfloat16[2,3,4,5] bfloat16[2,3,4] bfloat16[4] bfloat16[2,3,2,6] bfloat16[4]",
     "float32[2,4,1,1] float32[2,4,5,6]"},
    {"state_scan_dstate", NULL,
     "bfloat16[2,3,4,5] bfloat16[2,3,4] bfloat16[4] bfloat16[2,3,2,6] bfloat16[4]",
     "float32[2,4,5,6]"},
    {"gated_delta_carry", NULL, "bfloat16[2,3,2,5] bfloat16[2,3,4,6] float32[2,3,4] float32[2,3,4]",
     "float32[2,4,5,5] float32[2,4,5,6]"},
    {"gated_delta_dstate", NULL,
     "float64[2,3,4,6] float64[2,3,2,5] float64[2,3,2,5] float64[2,3,4] float64[2,3,4]",
     "float64[2,4,5,6]"},
    {"fold_states", NULL, "float32[2,3,4,5,5] float32[2,3,4,5,6] int32[2,3,2]",
     "float32[2,3,4,5,6]"},
    {"fold_states", "back=true", "- bfloat16[2,3,4,5,6]", "bfloat16[2,3,4,5,6]"},
    {"document_ends", NULL, "int32[2,3,8]", "int32[2,3,2]"},
    {"cast_like", NULL, "bfloat16[2,3] float32[4]", "float32[2,3]"},
    {"straight_through", NULL, "bfloat16[2,3] bfloat16[2,3]", "bfloat16[2,3]"},
    {"cache_write", NULL, "bfloat16[2,8,2,4] bfloat16[2,3,2,4] int32[2,3]", ""},
    {"sigmoid", NULL, "bfloat16[2,3]", "float32[2,3]"},
    {"sigmoid_grad", NULL, "float32[2,3] float32[2,3] bfloat16[2,3]", "bfloat16[2,3]"},
    {"decay", NULL, "bfloat16[2,3] bfloat16[3] bfloat16[3]", "float32[2,3]"},
    {"decay_grad", NULL, "float32[2,3] bfloat16[2,3] bfloat16[3] bfloat16[3]",
     "bfloat16[2,3] bfloat16[3] bfloat16[3]"},
    {"copy_heads", "heads=6", "bfloat16[2,3,2,5]", "bfloat16[2,3,6,5]"},
    {"copy_heads_grad", "groups=2", "float32[3,4,5]", "float32[3,2,5]"},
    {"attention", NULL, "bfloat16[2,3,4,8] bfloat16[2,3,2,8] bfloat16[2,3,2,8] -",
     "bfloat16[2,3,4,8] float32[2,4,3]"},
    {"attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8] float32[2,3,4,8] "
     "float32[2,4,3] int32[2,3]",
     "float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8]"},
    {"attention", NULL,
     "bfloat16[2,3,4,8] bfloat16[2,5,2,8] bfloat16[2,5,2,8] int32[2,3] int32[2,5] int32[2,3] "
     "int32[2,5]",
     "bfloat16[2,3,4,8] float32[2,4,3]"},
    {"attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,5,2,8] float32[2,5,2,8] float32[2,3,4,8] "
     "float32[2,4,3] - - int32[2,3]",
     "float32[2,3,4,8] float32[2,5,2,8] float32[2,5,2,8]"},
    {"attention", NULL, "bfloat16[2,3,4,8] bfloat16[2,5,2,8] bfloat16[2,5,2,6]",
     "bfloat16[2,3,4,6] float32[2,4,3]"},
    {"attention_grad", NULL,
     "float32[2,3,4,6] float32[2,3,4,8] float32[2,5,2,8] float32[2,5,2,6] float32[2,3,4,6] "
     "float32[2,4,3]",
     "float32[2,3,4,8] float32[2,5,2,8] float32[2,5,2,6]"},
    {"ring_attention", NULL, "bfloat16[2,3,4,8] bfloat16[2,3,2,8] bfloat16[2,3,2,6]",
     "bfloat16[2,3,4,6] float32[2,4,3]"},
    {"ring_attention_grad", NULL,
     "float32[2,3,4,6] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,6] float32[2,3,4,6] "
     "float32[2,4,3]",
     "float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,6]"},
    {"ring_attention", NULL, "bfloat16[2,3,4,8] bfloat16[2,3,2,8] bfloat16[2,3,2,8] int32[2,3]",
     "bfloat16[2,3,4,8] float32[2,4,3]"},
    {"ring_attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8] float32[2,3,4,8] "
     "float32[2,4,3] - int32[2,3]",
     "float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8]"},
    {"attention_merge", NULL, "bfloat16[2,3,4,8] float32[2,4,3] bfloat16[2,3,4,8] float32[2,4,3]",
     "bfloat16[2,3,4,8] float32[2,4,3]"},
    {"attention_sink", NULL, "bfloat16[2,3,4,8] float32[2,4,3] bfloat16[4]", "bfloat16[2,3,4,8]"},
    {"attention_sink_grad", NULL, "bfloat16[2,3,4,8] bfloat16[2,3,4,8] float32[2,4,3] bfloat16[4]",
     "bfloat16[2,3,4,8] bfloat16[4]"},
    {"bias", NULL, "bfloat16[2,3,4] bfloat16[4]", "bfloat16[2,3,4]"},
    {"bias_grad", NULL, "bfloat16[2,3,4]", "bfloat16[4]"},
    {"layer_norm", NULL, "bfloat16[2,3,4] bfloat16[4] bfloat16[4]",
     "bfloat16[2,3,4] float32[2,3] float32[2,3]"},
    {"layer_norm", NULL, "float64[4] float64[4]", "float64[4] float64[] float64[]"},
    {"layer_norm_grad", NULL, "bfloat16[3,4] bfloat16[3,4] bfloat16[4] float32[3] float32[3]",
     "bfloat16[3,4] bfloat16[4] bfloat16[4]"},
    {"mul", NULL, "bfloat16[2,3] bfloat16[2,3]", "bfloat16[2,3]"},
    {"scale", "factor=2", "float32[]", "float32[]"},
    {"silu", NULL, "float32[2,3]", "float32[2,3]"},
    {"silu_grad", NULL, "float32[2,3] float32[2,3]", "float32[2,3]"},
    {"gelu", "approximate=tanh", "bfloat16[2,3]", "bfloat16[2,3]"},
    {"gelu_grad", NULL, "float32[2,3] float32[2,3]", "float32[2,3]"},
    {"top_k", "k=2", "bfloat16[2,3,8]", "float32[2,3,2] int32[2,3,2]"},
    {"top_k", "k=2 scores=sigmoid groups=4 groups_chosen=1", "bfloat16[3,8] float32[8]",
     "float32[3,2] int32[3,2]"},
    {"top_k_grad", NULL, "float32[2,3] int32[2,3] float32[2,8]", "float32[2,8]"},
    {"balanced_top_k_grad", NULL, "float32[2,3,2] int32[2,3,2] bfloat16[2,3,8] float32[2,8]",
     "bfloat16[2,3,8]"},
    {"expert_load", NULL, "int32[2,3,2] float32[2,3,8]", "float32[2,8] float32[8]"},
    {"expert_excess", NULL, "int32[2,3,2] bfloat16[2,3,8]", "float32[8]"},
    {"softmax_sum", NULL, "bfloat16[2,3,8]", "float32[8]"},
    {"softmax_sum_grad", NULL, "float32[8] bfloat16[2,3,8]", "bfloat16[2,3,8]"},
    {"balance_loss", NULL, "float32[8] float32[8]", "float32[]"},
    {"balanced", NULL, "bfloat16[2,3] float32[8] float32[8]", "bfloat16[2,3]"},
    {"experts", NULL,
     "float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] float32[5,8,4]",
     "float32[2,3,8]"},
    {"experts_dx", NULL,
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float32[2,3,8] float32[2,3,2]"},
    {"experts_dw", NULL,
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float32[5,4,8] float32[5,4,8] float32[5,8,4]"},
    {"experts_dw", "limit=7",
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4] float32[5,4] float32[5,4]",
     "float32[5,4,8] float32[5,4,8] float32[5,8,4] float32[5,4] float32[5,4]"},
    {"experts_grad", NULL,
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float32[2,3,8] float32[2,3,2] float32[5,4,8] float32[5,4,8] float32[5,8,4]"},
    {"experts_grad", "limit=7",
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4] float32[5,4] float32[5,4]",
     "float32[2,3,8] float32[2,3,2] float32[5,4,8] float32[5,4,8] float32[5,8,4] float32[5,4] "
     "float32[5,4]"},
    {"expert_bias", NULL, "float32[2,3,2] int32[2,3,2] bfloat16[5,8]", "bfloat16[2,3,8]"},
    {"expert_bias_dweights", NULL, "bfloat16[2,3,8] int32[2,3,2] bfloat16[5,8]", "float32[2,3,2]"},
    {"expert_bias_dbias", NULL, "bfloat16[2,3,8] float32[2,3,2] int32[2,3,2] bfloat16[5,8]",
     "bfloat16[5,8]"},
    {"softmax", NULL, "bfloat16[2,3]", "bfloat16[2,3]"},
    {"softmax_grad", NULL, "float32[2,3] float32[2,3]", "float32[2,3]"},
    {"init_uniform", "low=-1", "bfloat16[2,3]", ""},
    {"swiglu", NULL, "float32[2,3] float32[2,3]", "float32[2,3]"},
    {"swiglu_grad", NULL, "float32[2,3] float32[2,3] float32[2,3]", "float32[2,3] float32[2,3]"},
    {"view", "shape=2,12", "int32[2,3,4]", "int32[2,12]"},
    {"view", "shape=", "float32[1,1]", "float32[]"},
    {"view", "shape=1,2,3", "float32[2,3]", "float32[1,2,3]"},
    {"narrow", "dim=1 from=2 size=3", "int32[2,5,4]", "int32[2,3,4]"},
    {"pad", "dim=1 from=1 size=4", "int32[2,3]", "int32[2,4]"},
    {"concat", "dim=1", "int32[2,5] int32[2,1]", "int32[2,6]"},
    {"cast", "dtype=bfloat16", "float32[2,3]", "bfloat16[2,3]"},
    {"linear_cross_entropy", NULL, "bfloat16[2,3,4] bfloat16[9,4] int32[2,3]", "float32[]"},
    {"linear_cross_entropy_grad", NULL, "float32[] bfloat16[2,3,4] bfloat16[9,4] int32[2,3]",
     "bfloat16[2,3,4] bfloat16[9,4] float32[]"},
    {"linear_cross_entropy_dx", NULL, "float32[] bfloat16[2,3,4] bfloat16[9,4] int32[2,3]",
     "bfloat16[2,3,4] float32[]"},
    {"cross_entropy", NULL, "bfloat16[2,3,9] int32[2,3]", "float32[] float32[2,3]"},
    {"cross_entropy_grad", NULL, "float32[] bfloat16[2,3,9] int32[2,3] float32[2,3]",
     "bfloat16[2,3,9]"},
    {"cross_entropy_partial", "shards=3", "bfloat16[2,3,9] int32[2,3]", "float32[2,3,3,3]"},
    {"cross_entropy_partial", "shards=2", "float32[2,9] int32[2]", "float32[2,2,3]"},
    {"cross_entropy_partial", NULL, "float64[9] int32[]", "float64[1,3]"},
    {"cross_entropy_partial_grad", NULL,
     "float32[2,3,3,3] float32[2,3,3,3] bfloat16[2,3,9] int32[2,3]", "bfloat16[2,3,9]"},
    {"cross_entropy_merge", NULL, "float32[2,3,4,3] int32[2,3]", "float32[] float32[2,3]"},
    {"cross_entropy_merge_grad", NULL, "float32[] float32[2,3,4,3] int32[2,3] float32[2,3]",
     "float32[2,3,4,3]"},
    {"tp_async.ring_sum", NULL, "bfloat16[2,3] bfloat16[2,3] bfloat16[2,3]", "bfloat16[2,3]"},
    {"squared_norm", NULL, "float32[2,3] bfloat16[4] float64[]", "float64[]"},
    {"clip_coefficient", NULL, "float64[] float64[]", "float32[] float32[]"},
    {"sign_step", "rate=1", "float32[] float32[3] bfloat16[3] float32[] float32[]", ""},
    {"reciprocal", NULL, "float32[]", "float32[]"},
    {"load", NULL, "bfloat16@[2,3]", "bfloat16[2,3]"},
    {"store", NULL, "int32@[2,3] int32[2,3]", ""},
    {"offload", NULL, "float32[2,3]", "float32[2,3]"},
    {"init_normal", NULL, "float32[2,3]", ""},
    {"init_constant", NULL, "bfloat16[2,3]", ""},
    {"cast_into", NULL, "bfloat16[2,3] float32[2,3]", ""},
    {"float8.experts", "recipe=blockwise",
     "bfloat16[2,3,8] float32[2,3,2] int32[2,3,2] bfloat16[5,4,8] bfloat16[5,4,8] bfloat16[5,8,4]",
     "bfloat16[2,3,8]"},
    {"float8.experts_dx", NULL,
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float32[2,3,8] float32[2,3,2]"},
    {"float8.experts_grad", NULL,
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float32[2,3,8] float32[2,3,2] float32[5,4,8] float32[5,4,8] float32[5,8,4]"},
    {"float8.experts_dw", "limit=7",
     "float32[2,3,8] float32[2,3,8] float32[2,3,2] int32[2,3,2] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4] float32[5,4] float32[5,4]",
     "float32[5,4,8] float32[5,4,8] float32[5,8,4] float32[5,4] float32[5,4]"},
    {"float8_amax", "grid=1,1,1", "bfloat16[2,3,4]", "float32[1,1,1]"},
    {"float8_amax", "grid=2,3,2", "float32[2,3,4]", "float32[2,3,2]"},
    {"float8_scale", NULL, "float32[2,1]", "float32[2,1]"},
    {"nvfp4_scale", "share=rows", "float32[32,2] float32[1,1]", "float32[32,2]"},
    {"nvfp4_quantise", NULL, "bfloat16[2,4,32] float32[2,4,2] int32[2,4]", "float8_e4m3[2,4,32]"},
    {"float8.hadamard", NULL, "bfloat16[2,32,3]", "bfloat16[2,32,3]"},
    {"float8_quantise", NULL, "bfloat16[2,3,4] float32[1,1,1]", "float8_e4m3[2,3,4]"},
    {"float8_quantise", "dtype=float8_e5m2", "bfloat16[2,3,4] float32[2,3,1]",
     "float8_e5m2[2,3,4]"},
    {"float8_amax_scale", "grid=2,3,1", "bfloat16[2,3,4]", "float32[2,3,1] float32[2,3,1]"},
    {"float8_amax_both", NULL, "bfloat16[2,3,4]", "float32[2,3,1] float32[1,1,4]"},
    {"float8_line_scales", NULL, "bfloat16[2,3,4]",
     "float32[2,3,1] float32[2,3,1] float32[1,1,4] float32[1,1,4]"},
    {"float8_scale_both", NULL, "float32[2,1]", "float32[2,1] float32[2,1]"},
    {"float8_transpose", NULL, "float8_e5m2[2,3,4]", "float8_e5m2[4,2,3]"},
    {"float8_quantise_transposed", NULL, "bfloat16[2,3,4] float32[1,1,4]", "float8_e4m3[4,2,3]"},
    {"float8_quantise_both", "dtype=float8_e5m2", "bfloat16[2,3,4] float32[2,3,1] float32[1,1,4]",
     "float8_e5m2[2,3,4] float8_e5m2[4,2,3]"},
    {"linear_float8", NULL, "float8_e4m3[2,3,4] float8_e4m3[5,4] float32[1,1,1] float32[5,1]",
     "bfloat16[2,3,5]"},
    {"linear_float8_dx", "transposed=true",
     "float8_e5m2[2,3,5] float8_e4m3[4,5] float32[2,3,1] float32[1,4] float32[2,3,1] float32[1,4]",
     "bfloat16[2,3,4]"},
    {"linear_float8_dw", "transposed=true", "float8_e4m3[4,2,3] float8_e5m2[5,2,3]",
     "bfloat16[5,4]"},
    {"linear_float8_dx", "dtype=float32",
     "float8_e5m2[2,3,5] float8_e4m3[5,4] float32[2,3,1] float32[1,4]", "float32[2,3,4]"},
    {"linear_float8_dw", NULL, "float8_e4m3[2,3,4] float8_e5m2[2,3,5]", "bfloat16[5,4]"},
    {"linear_nvfp4", NULL,
     "float8_e4m3[2,3,32] float8_e4m3[5,32] float32[2,3,2] float32[5,2] float32[1,1,1] "
     "float32[1,1]",
     "bfloat16[2,3,5]"},
    {"linear_nvfp4_dx", "dtype=float32", "float8_e4m3[2,3,16] float8_e4m3[16,4]", "float32[2,3,4]"},
    {"linear_nvfp4_dw", NULL, "float8_e4m3[2,16,4] float8_e4m3[2,16,5]", "bfloat16[5,4]"},
    {NULL},
};

static const struct infer_case bad[] = {
    {"embedding", NULL, "float32[2,3] float32[9,4]",
     "embedding(%embedding): tokens %a is float32, not int32"},
    {"embedding", NULL, "int32[2,3] float32[9]",
     "embedding(%embedding): table %b [9] must have 2 dimensions"},
    {"embedding", NULL, "int32[2,3]",
     "embedding(%embedding): takes (tokens i, table T -> y T), not 1 input"},
    {"embedding_grad", "rows=9", "float32[2,3,4] int32[2,4]",
     "embedding_grad(%embedding_grad): leading dimension 1 is 3 in dy %a [2,3,4], but 4 in tokens "
     "%b [2,4]"},
    {"embedding_grad", NULL, "float32[2,4] int32[2]",
     "embedding_grad(%embedding_grad): rows = 0: expected at least 1"},
    {"embedding_grad", "rows=9 padding=9", "float32[2,4] int32[2]",
     "embedding_grad(%embedding_grad): padding = 9: the table has 9 rows"},
    {"embedding", "padding=9", "int32[2,3] float32[9,4]",
     "embedding(%embedding): padding = 9: the table has 9 rows"},
    {"linear", NULL, "float32[2,4] bfloat16[3,4]",
     "linear(%linear): w.0 %b is bfloat16, not float32 as x %a needs"},
    {"linear", NULL, "float32[2,4] float32[3,4] float32[3,5]",
     "linear(%linear): k is 4 in x %a [2,4], but 5 in w.1 %c [3,5]"},
    {"linear", NULL, "int32[2,4] int32[3,4]",
     "linear(%linear): x %a is int32, not a floating-point dtype"},
    {"linear", NULL, "float32[] float32[3,4]",
     "linear(%linear): x %a [] must have at least 1 dimension"},
    {"linear", NULL, "- float32[3,4]", "linear(%linear): x is missing"},
    {"linear", NULL, "float32[3,4]", "linear(%a): takes (x T, *w T -> *y T), not 1 input"},
    {"linear_dx", NULL, "float32[2,3] float32[2,5] float32[3,4]",
     "linear_dx(%linear_dx): takes (*dy T, *w T -> dx T), not 3 inputs"},
    {"linear_dx", NULL, "float32[2,3] float32[2,5] float32[3,4] float32[3,4]",
     "linear_dx(%linear_dx): n is 5 in dy.1 %b [2,5], but 3 in w.1 %d [3,4]"},
    {"linear_dw", NULL, "float32[2,4] float32[3,5]",
     "linear_dw(%linear_dw): leading dimension 0 is 2 in x %a [2,4], but 3 in dy.0 %b [3,5]"},
    {"rms_norm", NULL, "float32[2,4] float32[5]",
     "rms_norm(%rms_norm): K is 4 in x %a [2,4], but 5 in w %b [5]"},
    {"add_rms_norm", NULL, "float32[2,4] float32[3,4] float32[4]",
     "add_rms_norm(%add_rms_norm): leading dimension 0 is 2 in x %a [2,4], but 3 in r %b [3,4]"},
    {"rms_norm_grad", NULL, "bfloat16[3,4] bfloat16[3,4] bfloat16[4] bfloat16[3] -",
     "rms_norm_grad(%rms_norm_grad): rstd %d is bfloat16, not float32 as dy %a needs"},
    {"rms_norm_grad", NULL, "float32[3,4] float32[3,4] float32[4] - -",
     "rms_norm_grad(%rms_norm_grad): rstd is missing"},
    {"rms_norm.largest", NULL, "float32[2,4] float32[5]",
     "rms_norm.largest(%rms_norm.largest): K is 4 in x %a [2,4], but 5 in w %b [5]"},
    {"add_rms_norm.largest", NULL, "float32[2,4] float32[3,4] float32[4]",
     "add_rms_norm.largest(%add_rms_norm.largest): leading dimension 0 is 2 in x %a [2,4], but 3 "
     "in r %b [3,4]"},
    {"rms_norm_grad.largest", NULL, "float32[3,4] float32[3,4] float32[4] - -",
     "rms_norm_grad.largest(%rms_norm_grad.largest): rstd is missing"},
    {"swiglu.largest", NULL, "float32[2,3] float32[2]",
     "swiglu.largest(%swiglu.largest): up %b [2] must have 2 dimensions"},
    {"swiglu_grad.largest", NULL, "float32[2,3] float32[2,3] -",
     "swiglu_grad.largest(%swiglu_grad.largest): up is missing"},
    {"add", NULL, "float32[2,3] float32[3]", "add(%add): y %b [3] must have 2 dimensions"},
    {"tp_async.ring_sum", NULL, "float32[2,3] float32[2,4]",
     "tp_async.ring_sum(%tp_async.ring_sum): leading dimension 1 is 3 in x.0 %a [2,3], but 4 in "
     "x.1 %b [2,4]"},
    {"rope", NULL, "float32[2,3,4,5] -", "rope(%rope): the head size 5 is odd"},
    {"rope", NULL, "float32[2,3,4] -", "rope(%rope): x %a [2,3,4] must have 4 dimensions"},
    {"rope", NULL, "float32[2,3,4,6] int32[2,4]",
     "rope(%rope): t is 3 in x %a [2,3,4,6], but 4 in positions %b [2,4]"},
    {"rope", "factor=2 low_freq_factor=5", "float32[2,3,4,6] -",
     "rope(%rope): low_freq_factor 5 is above high_freq_factor 4"},
    {"rms_norm_plain", NULL, "int32[2,4]",
     "rms_norm_plain(%rms_norm_plain): x %a is int32, not a floating-point dtype"},
    {"rms_norm_plain_grad", NULL, "float32[3,4] float32[3,4] float32[4]",
     "rms_norm_plain_grad(%rms_norm_plain_grad): leading dimension 0 is 3 in dy %a [3,4], but 4 in "
     "rstd %c [4]"},
    {"temper", NULL, "float32[2,3,4] -", "temper(%temper): x %a [2,3,4] must have 4 dimensions"},
    {"scale_rows_grad", NULL, "float32[3,4] float32[3,5] float32[3]",
     "scale_rows_grad(%scale_rows_grad): N is 4 in dy %a [3,4], but 5 in x %b [3,5]"},
    {"ones", NULL, "int32[2,4]", "ones(%ones): x %a is int32, not a floating-point dtype"},
    {"document_chunks", NULL, "int32[2,3] int32[2,4]",
     "document_chunks(%document_chunks): t is 3 in tokens %a [2,3], but 4 in positions %b [2,4]"},
    {"scale_rows", NULL, "bfloat16[3,4] bfloat16[3]",
     "scale_rows(%scale_rows): w %b is bfloat16, not float32 as x %a needs"},
    {"rope", "first=6", "float32[2,3,4,6] -",
     "rope(%rope): the first rotated feature is 6, but the head size 6"},
    {"rope", "first=1", "float32[2,3,4,6] -",
     "rope(%rope): the head size 6 from feature 1 on is odd"},
    {"rope", "first=2 rotated=6", "float32[2,3,4,6] -",
     "rope(%rope): 6 features from 2 on are more than the head size 6"},
    {"rope", "rotated=3", "float32[2,3,4,6] -",
     "rope(%rope): 3 features cannot be rotated in pairs"},
    {"rope", "scaling=longrope divisors=1:2", "float32[2,3,4,6] -",
     "rope(%rope): longrope needs 3 divisors above 0, not 1:2"},
    {"rope", "scaling=longrope divisors=1:2:3:4", "float32[2,3,4,6] -",
     "rope(%rope): longrope needs 3 divisors above 0, not 1:2:3:4"},
    {"rope", "factor=2 scaling=yarn beta_slow=33", "float32[2,3,4,6] -",
     "rope(%rope): beta_slow 33 is above beta_fast 32"},
    {"rope", "factor=2 scaling=yarn original_max_position=0", "float32[2,3,4,6] -",
     "rope(%rope): yarn needs a theta above 1 and an original_max_position, not 10000 and 0"},
    {"split", "widths=4,2", "float32[2,3,5]",
     "split(%split): widths 4,2 do not fit %a, whose last dimension has 5"},
    {"split", NULL, "float32[2,3,5]",
     "split(%a): widths  do not fit %a, whose last dimension has 5"},
    {"split", "widths=2", "float32[]", "split(%split): x %a [] must have at least 1 dimension"},
    {"split_grad", "widths=4,2", "float32[2,4]", "split_grad(%split_grad): 1 gradients of 2 parts"},
    {"split_grad", "widths=4,2", "- -", "split_grad(%split_grad): no gradient of a part is given"},
    {"split_grad", "widths=4,2", "float32[2,4] float32[2,3]",
     "split_grad(%split_grad): widths 4,2 do not fit %b, whose last dimension has 3"},
    {"split_grad", "widths=4,2", "float32[2,4] float32[3,2]",
     "split_grad(%split_grad): widths 4,2 do not fit %b, whose last dimension has 2"},
    {"expand_latent", "keys=5", "float32[2,3,4,5] float32[2,3,6]",
     "expand_latent(%expand_latent): keys = 5, but a head of kv %a has 5 features"},
    {"expand_latent", "keys=2", "float32[2,3,4,5] float32[2,2,6]",
     "expand_latent(%expand_latent): t is 3 in kv %a [2,3,4,5], but 2 in shared %b [2,2,6]"},
    {"expand_latent_grad", "keys=2 values=3 shared=6", "float32[2,3,4,7] -",
     "expand_latent_grad(%expand_latent_grad): a head of %a has 7 features, not 8"},
    {"expand_latent_grad", "keys=2 values=3 shared=6", "- float32[2,3,4,4]",
     "expand_latent_grad(%expand_latent_grad): a head of %b has 4 features, not 3"},
    {"expand_latent_grad", "keys=2 values=3 shared=6", "- -",
     "expand_latent_grad(%expand_latent_grad): neither dk nor dv is given"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,3,3,8] float32[2,3,3,8] -",
     "attention(%attention): h = 4 is not a multiple of g = 3"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,3,2,8] float32[2,3,1,8] -",
     "attention(%attention): g is 2 in k %b [2,3,2,8], but 1 in v %c [2,3,1,8]"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,3,2,6] float32[2,3,2,6] -",
     "attention(%attention): D is 8 in q %a [2,3,4,8], but 6 in k %b [2,3,2,6]"},
    {"attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,6] float32[2,3,4,8] "
     "float32[2,4,3] -",
     "attention_grad(%attention_grad): V is 8 in do %a [2,3,4,8], but 6 in v %d [2,3,2,6]"},
    {"attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8] float32[2,3,4,8] "
     "float32[2,3,4] -",
     "attention_grad(%attention_grad): h is 4 in do %a [2,3,4,8], but 3 in lse %f [2,3,4]"},
    {"bias", NULL, "float32[2,3] float32[4]",
     "bias(%bias): n is 3 in x %a [2,3], but 4 in row %b [4]"},
    {"bias_grad", NULL, "int32[2,3]",
     "bias_grad(%bias_grad): dy %a is int32, not a floating-point dtype"},
    {"layer_norm", NULL, "float32[2,4] float32[4] float32[5]",
     "layer_norm(%layer_norm): K is 4 in x %a [2,4], but 5 in bias %c [5]"},
    {"layer_norm_grad", NULL, "float32[3,4] float32[3,4] float32[4] float32[3] float32[2]",
     "layer_norm_grad(%layer_norm_grad): leading dimension 0 is 3 in dy %a [3,4], but 2 in rstd %e "
     "[2]"},
    {"mul", NULL, "float32[2,3] float32[2,4]",
     "mul(%mul): leading dimension 1 is 3 in x %a [2,3], but 4 in y %b [2,4]"},
    {"scale", NULL, "float32[2] float32[2]", "scale(%scale): takes (x T -> y T), not 2 inputs"},
    {"silu", NULL, "int32[2]", "silu(%silu): x %a is int32, not a floating-point dtype"},
    {"silu_grad", NULL, "float32[2] bfloat16[2]",
     "silu_grad(%silu_grad): x %b is bfloat16, not float32 as dy %a needs"},
    {"gelu", NULL, "int32[2]", "gelu(%gelu): x %a is int32, not a floating-point dtype"},
    {"gelu_grad", NULL, "float32[2] float32[3]",
     "gelu_grad(%gelu_grad): leading dimension 0 is 2 in dy %a [2], but 3 in x %b [3]"},
    {"top_k", "k=9", "float32[2,8]", "top_k(%top_k): k = 9 of 8 experts"},
    {"balanced_top_k_grad", NULL, "float32[2,3,2] int32[2,3,2] float32[2,3,8] float32[2,7]",
     "balanced_top_k_grad(%balanced_top_k_grad): E is 8 in x %c [2,3,8], but 7 in load %d [2,7]"},
    {"expert_load", NULL, "int32[2,3,2] float32[2,4,8]",
     "expert_load(%expert_load): t is 3 in ids %a [2,3,2], but 4 in x %b [2,4,8]"},
    {"top_k", "k=2 balance=1", "float32[2,8]",
     "top_k(%top_k): balance needs logits [b, t, e], but these have 2 dimensions"},
    {"top_k", NULL, "bfloat16[2,8] bfloat16[8]",
     "top_k(%top_k): bias %b is bfloat16, not float32 as x %a needs"},
    {"top_k", NULL, "float32[2,8] float32[7]",
     "top_k(%top_k): E is 8 in x %a [2,8], but 7 in bias %b [7]"},
    {"top_k", "k=2 balance=1 scores=sigmoid", "float32[2,3,8]",
     "top_k(%top_k): balance needs scores=softmax: it is that of probabilities"},
    {"balanced_top_k_grad", "scores=sigmoid balance=1",
     "float32[2,3,2] int32[2,3,2] float32[2,3,8] float32[2,8]",
     "balanced_top_k_grad(%balanced_top_k_grad): balance needs scores=softmax: it is that of "
     "probabilities"},
    {"top_k", "groups=3 groups_chosen=1", "float32[2,8]",
     "top_k(%top_k): 8 experts are not 3 equal groups of at least 2"},
    {"top_k", "groups=8 groups_chosen=1", "float32[2,8]",
     "top_k(%top_k): 8 experts are not 8 equal groups of at least 2"},
    {"top_k", "groups=4", "float32[2,8]", "top_k(%top_k): groups_chosen = 0 of 4 groups"},
    {"top_k", "groups=4 groups_chosen=5", "float32[2,8]",
     "top_k(%top_k): groups_chosen = 5 of 4 groups"},
    {"top_k", "groups_chosen=1", "float32[2,8]", "top_k(%top_k): groups_chosen = 1 of 0 groups"},
    {"top_k", "k=5 groups=4 groups_chosen=2", "float32[2,8]",
     "top_k(%top_k): k = 5 of the 4 experts in 2 groups"},
    {"expert_excess", NULL, "int32[2,3,2] float32[2,4,8]",
     "expert_excess(%expert_excess): leading dimension 1 is 3 in ids %a [2,3,2], but 4 in x %b "
     "[2,4,8]"},
    {"softmax_sum", NULL, "int32[2,8]",
     "softmax_sum(%softmax_sum): x %a is int32, not a floating-point dtype"},
    {"softmax_sum_grad", NULL, "float32[7] float32[2,8]",
     "softmax_sum_grad(%softmax_sum_grad): E is 7 in dsum %a [7], but 8 in x %b [2,8]"},
    {"balance_loss", NULL, "float32[8] float32[7]",
     "balance_loss(%balance_loss): E is 8 in load %a [8], but 7 in score %b [7]"},
    {"balanced", NULL, "float32[2,3] float32[8] float32[7]",
     "balanced(%balanced): E is 8 in load %b [8], but 7 in score %c [7]"},
    {"top_k_grad", NULL, "float32[2,3] int32[2,2] float32[2,8]",
     "top_k_grad(%top_k_grad): K is 3 in dweights %a [2,3], but 2 in ids %b [2,2]"},
    {"experts", NULL,
     "float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] float32[5,8,4]",
     "experts(%experts): K is 2 in weights %b [2,2], but 3 in ids %c [2,3]"},
    {"experts_dx", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "experts_dx(%experts_dx): K is 2 in weights %c [2,2], but 3 in ids %d [2,3]"},
    {"experts_dw", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "experts_dw(%experts_dw): K is 2 in weights %c [2,2], but 3 in ids %d [2,3]"},
    {"experts_grad", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "experts_grad(%experts_grad): K is 2 in weights %c [2,2], but 3 in ids %d [2,3]"},
    {"experts", NULL,
     "float32[2,8] float32[2,3] int32[2,3] float32[5,4,8] float32[5,4,8] float32[5,8,4] "
     "float32[5,4] -",
     "experts(%experts): takes both gate_bias and up_bias, or none"},
    {"experts", NULL,
     "float32[2,8] float32[2,3] int32[2,3] float32[5,4,8] float32[5,4,8] float32[5,8,4] "
     "float32[5,4] float32[5,4] float32[5,4] float32[5,4]",
     "experts(%experts): takes gate_bias and up_bias once"},
    {"experts_dw", NULL,
     "float32[2,8] float32[2,8] float32[2,3] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4] - float32[5,4]",
     "experts_dw(%experts_dw): takes both gate_bias and up_bias, or none"},
    {"expert_bias", NULL, "float32[2,3] int32[2,2] float32[5,8]",
     "expert_bias(%expert_bias): K is 3 in weights %a [2,3], but 2 in ids %b [2,2]"},
    {"expert_bias_dweights", NULL, "float32[2,8] int32[2,2] float32[5,4]",
     "expert_bias_dweights(%expert_bias_dweights): N is 8 in dy %a [2,8], but 4 in bias %c [5,4]"},
    {"expert_bias_dbias", NULL, "float32[2,8] float32[2,3] int32[2,2] float32[5,8]",
     "expert_bias_dbias(%expert_bias_dbias): K is 3 in weights %b [2,3], but 2 in ids %c [2,2]"},
    {"softmax", NULL, "float32[]", "softmax(%softmax): x %a [] must have at least 1 dimension"},
    {"softmax_grad", NULL, "float32[2] float32[3]",
     "softmax_grad(%softmax_grad): K is 2 in dy %a [2], but 3 in y %b [3]"},
    {"init_uniform", NULL, "float32[2] float32[2]", "init_uniform(%a): takes (p F), not 2 inputs"},
    {"swiglu", NULL, "float32[2,3] float32[2,4]",
     "swiglu(%swiglu): leading dimension 1 is 3 in gate %a [2,3], but 4 in up %b [2,4]"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,5,4,8] float32[2,5,4,8] int32[2,3]",
     "attention(%attention): 3 queries and 5 keys share documents"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,5,4,8] float32[2,5,4,8] - int32[2,5]",
     "attention(%attention): k_documents without documents"},
    {"attention", "softcap=1 alibi=8", "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,4,8]",
     "attention(%attention): softcap and alibi exclude each other"},
    {"causal_conv", NULL, "float32[2,3,5] float32[4,4]",
     "causal_conv(%causal_conv): c is 5 in x %a [2,3,5], but 4 in w %b [4,4]"},
    {"causal_conv_grad", NULL, "float32[2,3,5] float32[2,4,5] float32[5,4]",
     "causal_conv_grad(%causal_conv_grad): T is 3 in dy %a [2,3,5], but 4 in x %b [2,4,5]"},
    {"state_scan", NULL,
     "float32[2,3,4,5] float32[2,3,4] float32[4] float32[2,3,3,6] float32[2,3,3,6] float32[4] "
     "float32[4]",
     "state_scan(%state_scan): h = 4 is not a multiple of g = 3"},
    {"state_scan_grad", NULL,
     "float32[2,3,4,5] float32[2,3,4,5] float32[2,3,4] float32[4] float32[2,3,2,6] "
     "float32[2,3,2,7] float32[4] float32[4]",
     "state_scan_grad(%state_scan_grad): N is 6 in B %e [2,3,2,6], but 7 in C %f [2,3,2,7]"},
    {"gated_delta", NULL,
     "float32[2,3,2,5] float32[2,3,2,5] float32[2,3,3,6] float32[2,3,3] float32[2,3,3]",
     "gated_delta(%gated_delta): h = 3 is not a multiple of g = 2"},
    {"gated_delta_grad", NULL,
     "float32[2,3,4,6] float32[2,3,2,5] float32[2,3,2,4] float32[2,3,4,6] float32[2,3,4] "
     "float32[2,3,4]",
     "gated_delta_grad(%gated_delta_grad): K is 5 in q %b [2,3,2,5], but 4 in k %c [2,3,2,4]"},
    {"causal_conv_carry", NULL, "int32[2,4,5]",
     "causal_conv_carry(%causal_conv_carry): x %a is int32, not a floating-point dtype"},
    {"causal_conv_dstate", NULL, "float32[2,4,5] float32[6,4]",
     "causal_conv_dstate(%causal_conv_dstate): c is 5 in dy %a [2,4,5], but 6 in w %b [6,4]"},
    {"state_scan_carry", NULL,
     "float32[2,3,4,5] float32[2,3,4] float32[4] float32[2,3,3,6] float32[4]",
     "state_scan_carry(%state_scan_carry): h = 4 is not a multiple of g = 3"},
    {"state_scan_dstate", NULL,
     "float32[2,3,4,5] float32[2,3,4] float32[3] float32[2,3,2,6] float32[4]",
     "state_scan_dstate(%state_scan_dstate): h is 4 in dy %a [2,3,4,5], but 3 in a_log %c [3]"},
    {"gated_delta_carry", NULL, "float32[2,3,2,5] float32[2,3,3,6] float32[2,3,3] float32[2,3,3]",
     "gated_delta_carry(%gated_delta_carry): h = 3 is not a multiple of g = 2"},
    {"gated_delta_dstate", NULL,
     "float32[2,3,4,6] float32[2,3,2,5] float32[2,3,2,4] float32[2,3,4] float32[2,3,4]",
     "gated_delta_dstate(%gated_delta_dstate): K is 5 in q %b [2,3,2,5], but 4 in k %c [2,3,2,4]"},
    {"fold_states", NULL, "float32[2,3,4,6,6] float32[2,3,4,5,6]",
     "fold_states(%fold_states): keeps is no factor, and no square of gain's rows"},
    {"document_ends", NULL, "float32[2,3]",
     "document_ends(%document_ends): documents %a is float32, not int32"},
    {"cast_like", NULL, "int32[2,3] float32[4]",
     "cast_like(%cast_like): x %a is int32, not a floating-point dtype"},
    {"straight_through", NULL, "float32[2,3] float32[2,4]",
     "straight_through(%straight_through): leading dimension 1 is 3 in y %a [2,3], but 4 in x %b "
     "[2,4]"},
    {"cache_write", NULL, "float32[2,8,2,4] float32[2,3,2,5] int32[2,3]",
     "cache_write(%a): d is 4 in cache %a [2,8,2,4], but 5 in x %b [2,3,2,5]"},
    {"sigmoid", NULL, "int32[2,3]", "sigmoid(%sigmoid): x %a is int32, not a floating-point dtype"},
    {"sigmoid_grad", NULL, "float32[2,4] float32[2,3] float32[2,3]",
     "sigmoid_grad(%sigmoid_grad): leading dimension 1 is 4 in dy %a [2,4], but 3 in y %b [2,3]"},
    {"decay", NULL, "float32[2,3] float32[4] float32[3]",
     "decay(%decay): h is 3 in x %a [2,3], but 4 in a %b [4]"},
    {"decay_grad", NULL, "float32[2,3] float32[2,3] float32[4] float32[3]",
     "decay_grad(%decay_grad): h is 3 in dy %a [2,3], but 4 in a %c [4]"},
    {"copy_heads", "heads=3", "float32[2,3,2,5]",
     "copy_heads(%copy_heads): 3 heads cannot be copies of 2"},
    {"copy_heads_grad", "groups=3", "float32[3,4,5]",
     "copy_heads_grad(%copy_heads_grad): 4 heads cannot be copies of 3"},
    {"attention", "blockwise=true", "float32[2,3,4,8] float32[2,5,4,8] float32[2,5,4,8]",
     "attention(%attention): 3 queries and 5 keys are not blocks of a whole"},
    {"attention", NULL, "float32[2,3,4,8] float32[2,5,4,8] float32[2,5,4,8] - - - int32[2,3]",
     "attention(%attention): S is 5 in k %b [2,5,4,8], but 3 in k_positions %g [2,3]"},
    {"ring_attention", NULL, "float32[2,3,4,8] float32[2,5,4,8] float32[2,5,4,8]",
     "ring_attention(%ring_attention): t is 3 in q %a [2,3,4,8], but 5 in k %b [2,5,4,8]"},
    {"ring_attention_grad", NULL,
     "float32[2,3,4,8] float32[2,3,4,8] float32[2,3,2,8] float32[2,3,2,8] float32[2,3,4,8] "
     "float32[2,3,3]",
     "ring_attention_grad(%ring_attention_grad): h is 4 in do %a [2,3,4,8], but 3 in lse %f "
     "[2,3,3]"},
    {"attention_merge", NULL, "float32[2,3,4,8] float32[2,4,3] bfloat16[2,3,4,8] float32[2,4,3]",
     "attention_merge(%attention_merge): other %c is bfloat16, not float32 as o %a needs"},
    {"attention_sink", NULL, "float32[2,3,4,8] float32[2,3,4] float32[4]",
     "attention_sink(%attention_sink): h is 4 in o %a [2,3,4,8], but 3 in lse %b [2,3,4]"},
    {"attention_sink_grad", NULL, "float32[2,3,4,8] float32[2,3,4,8] float32[2,4,3] float32[3]",
     "attention_sink_grad(%attention_sink_grad): h is 4 in dy %a [2,3,4,8], but 3 in sink %d [3]"},
    {"swiglu_grad", NULL, "float32[2,3] float32[2,3] float32[]",
     "swiglu_grad(%swiglu_grad): up %c [] must have 2 dimensions"},
    {"view", "shape=2,13", "float32[2,3,4]",
     "view(%view): x %a [2,3,4] has 24 elements, [2,13] has 26"},
    {"view", "shape=4,6", "float32[6,4]",
     "view(%view): x %a [6,4] to [4,6] splits or merges more than one run"},
    {"view", "shape=2,x", "float32[2,3]", "view: shape: shape \"2,x\" is not a list of sizes"},
    {"view", "shape=-2,-3", "float32[2,3]", "view: shape: shape \"-2,-3\" is not a list of sizes"},
    {"view", "shape=1,1,1,1,1,1,1", "float32[1]",
     "view: shape: shape \"1,1,1,1,1,1,1\" has more than 6 dimensions"},
    {"narrow", "dim=2", "float32[2,3]", "narrow(%narrow): dim = 2, but x %a has 2 dimensions"},
    {"narrow", "dim=1 from=2 size=2", "float32[2,3]",
     "narrow(%narrow): 2 from 2 on: dimension 1 of x %a has 3"},
    {"pad", "dim=1 from=2 size=4", "float32[2,3]",
     "pad(%pad): dimension 1 of x %a has 3: it does not fit into 4 from 2 on"},
    {"concat", "dim=1", "float32[2,3] float32[3,3]",
     "concat(%concat): x %a and %b differ in more than dimension 1"},
    {"concat", NULL, "float32[2,3] float32[2]",
     "concat(%concat): x %a and %b differ in more than dimension 0"},
    {"cast", "dtype=int32", "float32[2]", "cast(%cast): int32 is not a floating-point dtype"},
    {"cast", NULL, "float32[2]", "cast(%cast): no dtype is given"},
    {"cast", "dtype=float32", "int32[2]", "cast(%cast): x %a is int32, not a floating-point dtype"},
    {"linear_cross_entropy", NULL, "float32[2,4] float32[9,4] int32[3]",
     "linear_cross_entropy(%linear_cross_entropy): leading dimension 0 is 2 in x %a [2,4], but 3 "
     "in "
     "labels %c [3]"},
    {"linear_cross_entropy_grad", NULL, "float32[1] float32[2,4] float32[9,4] int32[2]",
     "linear_cross_entropy_grad(%linear_cross_entropy_grad): dloss %a [1] must have 0 dimensions"},
    {"linear_cross_entropy_dx", NULL, "float32[1] float32[2,4] float32[9,4] int32[2]",
     "linear_cross_entropy_dx(%linear_cross_entropy_dx): dloss %a [1] must have 0 dimensions"},
    {"cross_entropy", NULL, "float32[2,9] float32[2]",
     "cross_entropy(%cross_entropy): labels %b is float32, not int32"},
    {"cross_entropy_grad", NULL, "float32[] float32[2,9] int32[2] float64[2]",
     "cross_entropy_grad(%cross_entropy_grad): lse %d is float64, not float32 as logits %b needs"},
    {"cross_entropy_partial", "shards=2", "float32[2,9] int32[3]",
     "cross_entropy_partial(%cross_entropy_partial): leading dimension 0 is 2 in logits %a [2,9], "
     "but 3 in labels %b [3]"},
    {"cross_entropy_partial_grad", NULL, "float32[2,3,3] float32[2,2,3] float32[2,6] int32[2]",
     "cross_entropy_partial_grad(%cross_entropy_partial_grad): p is 3 in dstats %a [2,3,3], but 2 "
     "in stats %b [2,2,3]"},
    {"cross_entropy_partial_grad", NULL, "float32[2,2,2] float32[2,2,2] float32[2,6] int32[2]",
     "cross_entropy_partial_grad(%cross_entropy_partial_grad): %b has 2 numbers of a shard, not 3"},
    {"cross_entropy_merge", NULL, "float32[2,3,2] int32[2]",
     "cross_entropy_merge(%cross_entropy_merge): %a has 2 numbers of a shard, not 3"},
    {"cross_entropy_merge", NULL, "float32[3] int32[]",
     "cross_entropy_merge(%cross_entropy_merge): stats %a [3] must have at least 2 dimensions"},
    {"cross_entropy_merge_grad", NULL, "float32[] float32[2,3,4] int32[2] float32[2]",
     "cross_entropy_merge_grad(%cross_entropy_merge_grad): %b has 4 numbers of a shard, not 3"},
    {"squared_norm", NULL, "int32[3]",
     "squared_norm(%squared_norm): x.0 %a is int32, not a floating-point dtype"},
    {"clip_coefficient", NULL, "float64[] float32[]",
     "clip_coefficient(%clip_coefficient): s.1 %b is float32, not float64"},
    {"sign_step", NULL, "float32[] float32[3] float32[2]",
     "sign_step(%a): leading dimension 0 is 3 in p.0 %b [3], but 2 in g.0 %c [2]"},
    {"reciprocal", NULL, "int32[]",
     "reciprocal(%reciprocal): x %a is int32, not a floating-point dtype"},
    {"load", NULL, "float32[2]", "load(%load): %a is not offloaded"},
    {"store", NULL, "float32[2] float32[2]", "store(%a): %a is not offloaded"},
    {"store", NULL, "float32@[2] float32@[2]", "store(%a): %b is offloaded"},
    {"store", NULL, "float32@[2] float32[3]",
     "store(%a): leading dimension 0 is 2 in y %a [2], but 3 in x %b [3]"},
    {"offload", NULL, "float32@[2]", "offload(%offload): %a is offloaded"},
    {"init_normal", NULL, "int32[2]", "init_normal(%a): p %a is int32, not a floating-point dtype"},
    {"float8.experts", NULL,
     "float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] float32[5,8,4]",
     "float8.experts(%float8.experts): K is 2 in weights %b [2,2], but 3 in ids %c [2,3]"},
    {"float8.experts", NULL,
     "float32[2,8] float32[2,3] int32[2,3] float32[5,4,8] float32[5,4,8] float32[5,8,4] "
     "float32[5,4] -",
     "float8.experts(%float8.experts): takes both gate_bias and up_bias, or none"},
    {"float8.experts_dx", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float8.experts_dx(%float8.experts_dx): K is 2 in weights %c [2,2], but 3 in ids %d [2,3]"},
    {"float8.experts_grad", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float8.experts_grad(%float8.experts_grad): K is 2 in weights %c [2,2], but 3 in ids %d "
     "[2,3]"},
    {"float8.experts_dw", NULL,
     "float32[2,8] float32[2,8] float32[2,2] int32[2,3] float32[5,4,8] float32[5,4,8] "
     "float32[5,8,4]",
     "float8.experts_dw(%float8.experts_dw): K is 2 in weights %c [2,2], but 3 in ids %d [2,3]"},
    {"float8_amax", "grid=2", "float32[2,3]",
     "float8_amax(%float8_amax): grid has 1 dimensions, and %a has 2"},
    {"float8_amax", "grid=1,2", "float32[2,3]",
     "float8_amax(%float8_amax): grid: 2 cells along dimension 1 of %a, which has 3"},
    {"float8_amax", "grid=1,3,1", "float32[2,3,4]",
     "float8_amax(%float8_amax): grid: the cells of %a are not blocks of rows"},
    {"nvfp4_scale", "share=columns", "float32[2,30] float32[1,1]",
     "nvfp4_scale(%nvfp4_scale): %a has 30 cells along dimension 1: no multiple of 16"},
    {"nvfp4_quantise", NULL, "float32[2,32] float32[2,2] int32[3]",
     "nvfp4_quantise(%nvfp4_quantise): %c does not number the rows of %a"},
    {"float8.hadamard", NULL, "float32[2,24,3]",
     "float8.hadamard(%float8.hadamard): %a: tokens are transformed in blocks of 16"},
    {"float8_scale", NULL, "int32[2]",
     "float8_scale(%float8_scale): amax %a is int32, not float32"},
    {"float8_quantise", "dtype=float32", "float32[2,3] float32[1,1]",
     "float8_quantise(%float8_quantise): float32 is not an 8-bit floating-point dtype"},
    {"float8_quantise", NULL, "float32[2,3] float32[3]",
     "float8_quantise(%float8_quantise): its grid has 1 dimensions, and %a has 2"},
    {"float8_amax_scale", "grid=2", "float32[2,3]",
     "float8_amax_scale(%float8_amax_scale): grid has 1 dimensions, and %a has 2"},
    {"float8_amax_both", NULL, "float32[2]", "float8_amax_both(%float8_amax_both): %a has no rows"},
    {"float8_line_scales", NULL, "float32[2]",
     "float8_line_scales(%float8_line_scales): %a has no rows"},
    {"float8_scale_both", NULL, "int32[2]",
     "float8_scale_both(%float8_scale_both): amax %a is int32, not float32"},
    {"float8_transpose", NULL, "float8_e4m3[2]",
     "float8_transpose(%float8_transpose): %a has no rows"},
    {"float8_quantise_transposed", NULL, "float32[2,3] float32[3]",
     "float8_quantise_transposed(%float8_quantise_transposed): its grid has 1 dimensions, and %a "
     "has 2"},
    {"float8_quantise_both", NULL, "float32[2,3] float32[1,1] float32[1,2]",
     "float8_quantise_both(%float8_quantise_both): its grid: 2 cells along dimension 1 of %a, "
     "which has 3"},
    {"linear_float8", "transposed=true", "float8_e4m3[2,3] float8_e4m3[4,3]",
     "linear_float8(%linear_float8): both operands are summed over along their rows already"},
    {"linear_float8_dx", "transposed=true", "float8_e4m3[2,3] float8_e4m3[3,4]",
     "linear_float8_dx(%linear_float8_dx): %a and %b do not fit"},
    {"linear_float8", NULL, "float8_e4m3[2,3] float8_e4m3[4,5]",
     "linear_float8(%linear_float8): %a and %b do not fit"},
    {"linear_float8_dx", NULL, "float8_e4m3[2,3] float8_e4m3[4,3]",
     "linear_float8_dx(%linear_float8_dx): %a and %b do not fit"},
    {"linear_float8_dw", NULL, "float8_e4m3[2,3] float8_e4m3[4,3]",
     "linear_float8_dw(%linear_float8_dw): %a and %b do not fit"},
    {"linear_nvfp4", NULL, "float8_e4m3[2,3] float8_e4m3[4,5]",
     "linear_nvfp4(%linear_nvfp4): %a and %b do not fit"},
    {"linear_nvfp4", NULL,
     "float8_e4m3[2,32] float8_e4m3[4,32] float32[2,2] float32[4,2] float32[2,3] float32[1,1]",
     "linear_nvfp4(%linear_nvfp4): its grid: 3 cells along dimension 1 of %a, which has 32"},
    {"linear_nvfp4_dx", NULL, "float8_e4m3[2,3] float8_e4m3[4,3]",
     "linear_nvfp4_dx(%linear_nvfp4_dx): %a and %b do not fit"},
    {"linear_nvfp4_dw", NULL, "float8_e4m3[2,3] float8_e4m3[4,3]",
     "linear_nvfp4_dw(%linear_nvfp4_dw): %a and %b do not fit"},
    {"linear_float8", NULL, "float8_e4m3[3] float8_e4m3[4,3]",
     "linear_float8(%linear_float8): %a and %b have 1 and 2 dimensions"},
    {"cast_into", NULL, "bfloat16[2,3] float32[2,4]",
     "cast_into(%a): leading dimension 1 is 3 in copy %a [2,3], but 4 in p %b [2,4]"},
    {"init_constant", NULL, "float32[2] float32[2]",
     "init_constant(%a): takes (p F), not 2 inputs"},
    {NULL},
};

/* Emit the case's op. */
static int emit(const struct infer_case *c, struct ct_arena *arena, struct ct_op **op)
{
    struct ct_graph *graph = ct_graph_create(arena, "infer");
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    const struct ct_op_type *type = ct_op_find(c->type);
    const char *p = c->inputs;
    char *attrs = ct_arena_strdup(arena, c->attrs ? c->attrs : ""), *word, *save;
    void *values = ct_arena_alloc(arena, type->attrs_size + 1);
    int64_t shape[CT_MAX_DIMS];
    struct ct_value *in[16];
    char dtype[32], name[2] = "a";
    int ins = 0, rank, rc;

    for (; ct_sample_operand(&p, dtype, &rank, shape); ins++, name[0]++) {
        enum ct_dtype d = CT_F32;
        bool offloaded = dtype[strlen(dtype) - 1] == '@';

        dtype[strlen(dtype) - offloaded] = '\0';
        assert_true(rank < 0 || ct_dtype_parse(dtype, &d) == 0);
        in[ins] = rank < 0 ? NULL : ct_graph_source(graph, CT_ROLE_INPUT, name, d, rank, shape);
        if (in[ins])
            in[ins]->space = offloaded ? CT_SPACE_HOST : CT_SPACE_DEVICE;
    }
    if (type->attrs)
        assert_int_equal(ct_attributes_reset(type->attrs, values), 0);
    for (word = strtok_r(attrs, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');

        *value++ = '\0';
        rc = ct_attribute_set(NULL, type->attrs, values, word, value, c->type);
        if (rc < 0)
            return rc;
    }
    *op = ct_emit(&b, c->type, NULL, in, ins, values);
    return b.status;
}

static void check_outputs(const struct infer_case *c, const struct ct_op *op)
{
    const char *p = c->expect;
    int64_t shape[CT_MAX_DIMS];
    char dtype[32];
    int rank, n = 0;

    for (; ct_sample_operand(&p, dtype, &rank, shape); n++) {
        const struct ct_value *v = op->out[n];

        assert_true(n < op->outs);
        assert_string_equal(ct_dtype_name(v->dtype), dtype);
        assert_int_equal(v->ndim, rank);
        for (int d = 0; d < rank; d++)
            assert_int_equal(v->shape[d], shape[d]);
    }
    assert_int_equal(op->outs, n);
}

static void outputs_have_inferred_shapes(void **state)
{
    (void)state;
    for (const struct infer_case *c = good; c->type; c++) {
        struct ct_arena arena = {0};
        struct ct_op *op;

        if (emit(c, &arena, &op) < 0)
            fail_msg("%s(%s): %s", c->type, c->inputs, ct_error_message());
        check_outputs(c, op);
        ct_arena_finish(&arena);
    }
}

static void refusals_name_the_operand(void **state)
{
    (void)state;
    for (const struct infer_case *c = bad; c->type; c++) {
        struct ct_arena arena = {0};
        struct ct_op *op;

        if (emit(c, &arena, &op) != CT_EINVAL)
            fail_msg("%s(%s) was taken", c->type, c->inputs);
        assert_string_equal(ct_error_message(), c->expect);
        ct_arena_finish(&arena);
    }
}

static bool lists(const struct infer_case *cases, const char *type)
{
    for (; cases->type; cases++)
        if (!strcmp(cases->type, type))
            return true;
    return false;
}

/* Builders of plugins, unlike texts, have no range of attributes. */
static void builders_take_no_part_before_the_first(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "infer");
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *x = ct_graph_source(graph, CT_ROLE_INPUT, "x", CT_F32, 2, (int64_t[]){2, 3});

    (void)state;
    ct_pad(&b, "y", x, 1, -1, 4);
    assert_int_equal(b.status, CT_EINVAL);
    assert_non_null(
        strstr(ct_error_message(), "dimension 1 of x %x has 3: it does not fit into 4 from -1 on"));
    ct_arena_finish(&arena);
}

static void every_type_has_cases(void **state)
{
    (void)state;
    for (size_t i = 0; ct_op_at(i); i++) {
        const struct ct_op_type *type = ct_op_at(i);

        if (type->reference && (!lists(good, type->name) || !lists(bad, type->name)))
            fail_msg("op type %s is not tested", type->name);
    }
}

/* A transform's dtype stays, where the type can give any. */
static void fixed_dtypes_stay(void **state)
{
    static const struct infer_case dw = {"linear_dw", NULL, "bfloat16[2,4] bfloat16[2,3]", NULL};
    static const struct infer_case dx = {"linear_dx", NULL, "bfloat16[2,3] bfloat16[3,4]", NULL};
    struct ct_arena arena = {0};
    struct ct_op *op;

    (void)state;
    assert_int_equal(emit(&dw, &arena, &op), 0);
    op->out[0]->dtype = CT_F32;
    assert_int_equal(ct_op_infer(op), 0);
    assert_int_equal(op->out[0]->dtype, CT_BF16);
    op->out[0]->dtype = CT_F32;
    op->out[0]->dtype_fixed = true;
    assert_int_equal(ct_op_infer(op), 0);
    assert_int_equal(op->out[0]->dtype, CT_F32);
    assert_int_equal(emit(&dx, &arena, &op), 0);
    op->out[0]->dtype = CT_F32;
    op->out[0]->dtype_fixed = true;
    assert_int_equal(ct_op_infer(op), 0);
    assert_int_equal(op->out[0]->dtype, CT_BF16);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_have_inferred_shapes),
        cmocka_unit_test(refusals_name_the_operand),
        cmocka_unit_test(builders_take_no_part_before_the_first),
        cmocka_unit_test(every_type_has_cases),
        cmocka_unit_test(fixed_dtypes_stay),
    };
    if (REGISTER_OPS("cp", "float8", "tp", "tp_async") < 0)
        return 1;
    return cmocka_run_group_tests_name("op shapes and dtypes", tests, NULL, NULL);
}
