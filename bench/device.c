/*
 * Rates of a device's kernels at the shapes of a 1B Llama (16 heads of 128, vocabulary 128256).
 *
 * Usage: device NAME [--seconds S] [--set KEY=VALUE]... [CASE]
 *
 * Each case is one op, lowered COPIES times into one program, so that starting and waiting count
 * little. Operands are random. The best of the runs that fit into a tenth of a second counts; with
 * --seconds, the mean of the second half of so many seconds: --seconds 60 is at the temperature and
 * the power of a training. Memory-bound ops print the share of the best bandwidth
 * that this same program saw a copy or an addition reach; matrix products and attention print
 * FLOP/s, those of causal attention for the keys that are seen, within documents if there are any.
 * One line for each: name | milliseconds | rate | share | clock, power, temperature (of an NVIDIA
 * GPU).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>
#include <ctitan/program.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "clocks.h"

#define COPIES 8
#define VOCABULARY 128256
#define DOCUMENT 512 /* tokens of a document, give or take half of them */

/* `op` has # where the number of the copy goes. published: what NVIDIA says that cuDNN 9.19 does on
   an H200, in TFLOP/s; 0: nothing is known. limit: integers are below it; 0: below VOCABULARY. */
static const struct bench_case {
    const char *name, *sources, *op;
    int published, limit;
} cases[] = {
#define ROWS "bfloat16[4,4096,2048]"
    {"copy", "input %x : float32[268435456]\n",
     "F - %y# = cast(%x) {dtype=\"float32\"} : float32[268435456]\n", 0},
    {"add", "input %x : " ROWS "\ninput %y : " ROWS "\n", "F - %z# = add(%x, %y) : " ROWS "\n", 0},
    {"cast of weights", "param %w : float32[16384,2048]\n",
     "F - %n# = cast(%w) {dtype=\"bfloat16\"} : bfloat16[16384,2048]\n", 0},
    {"add and norm", "input %x : " ROWS "\ninput %r : " ROWS "\nparam %w : bfloat16[2048]\n",
     "F - %y#, %sum#, %rstd# = add_rms_norm(%x, %r, %w) {eps=1e-5} : " ROWS ", " ROWS
     ", float32[4,4096]\n",
     0},
    {"norm, backward",
     "input %dy : " ROWS "\ninput %x : " ROWS "\ninput %r : " ROWS
     "\nparam %w : bfloat16[2048]\ninput %rstd : float32[4,4096]\n",
     "F - %dx#, %dw# = rms_norm_grad(%dy, %x, %w, %rstd, %r) : " ROWS ", float32![2048]\n", 0},
    {"norm, backward, 8192 wide",
     "input %dy : bfloat16[4096,8192]\ninput %x : bfloat16[4096,8192]\n"
     "input %r : bfloat16[4096,8192]\nparam %w : bfloat16[8192]\ninput %rstd : float32[4096]\n",
     "F - %dx#, %dw# = rms_norm_grad(%dy, %x, %w, %rstd, %r) : bfloat16[4096,8192], "
     "float32![8192]\n",
     0},
#define OF_HEADS "bfloat16[4,4096,16,128]"
    {"norm of heads", "input %x : " OF_HEADS "\nparam %w : bfloat16[128]\n",
     "F - %y#, %rstd# = rms_norm(%x, %w) {eps=1e-5} : " OF_HEADS ", float32[4,4096,16]\n", 0, 0},
    {"norm of heads, backward",
     "input %dy : " OF_HEADS "\ninput %x : " OF_HEADS
     "\nparam %w : bfloat16[128]\ninput %rstd : float32[4,4096,16]\n",
     "F - %dx#, %dw# = rms_norm_grad(%dy, %x, %w, %rstd) : " OF_HEADS ", float32![128]\n", 0, 0},
#define WIDE "bfloat16[4,4096,8192]"
    {"swiglu", "input %g : " WIDE "\ninput %u : " WIDE "\n",
     "F - %z# = swiglu(%g, %u) : " WIDE "\n", 0},
    {"swiglu, backward", "input %dz : " WIDE "\ninput %g : " WIDE "\ninput %u : " WIDE "\n",
     "F - %dg#, %du# = swiglu_grad(%dz, %g, %u) : " WIDE ", " WIDE "\n", 0},
    {"rope", "input %x : bfloat16[4,4096,16,128]\n",
     "F - %y# = rope(%x, _) {theta=500000} : bfloat16[4,4096,16,128]\n", 0},
    {"rope, latent", "input %x : bfloat16[2,4096,32,192]\n",
     "F - %y# = rope(%x, _) {theta=10000, first=128, interleaved=true} : "
     "bfloat16[2,4096,32,192]\n",
     0},
    {"split", "input %x : bfloat16[4,4096,576]\n",
     "F - %p#, %q# = split(%x) {widths=\"512,64\"} : bfloat16[4,4096,512], bfloat16[4,4096,64]\n",
     0},
    {"expand_latent", "input %kv : bfloat16[2,4096,32,256]\ninput %s : bfloat16[2,4096,64]\n",
     "F - %k#, %v# = expand_latent(%kv, %s) {keys=128} : bfloat16[2,4096,32,192], "
     "bfloat16[2,4096,32,128]\n",
     0},
    {"expand_latent, backward",
     "input %dk : bfloat16[2,4096,32,192]\ninput %dv : bfloat16[2,4096,32,128]\n",
     "F - %dkv#, %ds# = expand_latent_grad(%dk, %dv) {keys=128, values=128, shared=64} : "
     "bfloat16[2,4096,32,256], bfloat16[2,4096,64]\n",
     0},
    {"attention_sink",
     "input %o : bfloat16[2,4096,64,64]\ninput %l : float32[2,64,4096]\nparam %s : bfloat16[64]\n",
     "F - %y# = attention_sink(%o, %l, %s) : bfloat16[2,4096,64,64]\n", 0},
    {"attention_sink, backward",
     "input %dy : bfloat16[2,4096,64,64]\ninput %y : bfloat16[2,4096,64,64]\n"
     "input %l : float32[2,64,4096]\nparam %s : bfloat16[64]\n",
     "I - %do#, %ds# = attention_sink_grad(%dy, %y, %l, %s) : bfloat16[2,4096,64,64], "
     "float32![64]\n",
     0},
    {"rms_norm_plain", "input %x : bfloat16[2,4096,40,128]\n",
     "F - %y#, %r# = rms_norm_plain(%x) : bfloat16[2,4096,40,128], float32[2,4096,40]\n", 0},
    {"rms_norm_plain, backward",
     "input %x : bfloat16[2,4096,40,128]\ninput %dy : bfloat16[2,4096,40,128]\n"
     "input %r : float32[2,4096,40]\n",
     "I - %dx# = rms_norm_plain_grad(%dy, %x, %r) : bfloat16[2,4096,40,128]\n", 0},
    {"temper", "input %x : bfloat16[2,4096,40,128]\n",
     "F - %y# = temper(%x) : bfloat16[2,4096,40,128]\n", 0},
    {"scale_rows", "input %x : bfloat16[2,4096,5120]\ninput %w : float32[2,4096]\n",
     "F - %y# = scale_rows(%x, %w) : bfloat16[2,4096,5120]\n", 0},
    {"scale_rows, backward",
     "input %x : bfloat16[2,4096,5120]\ninput %dy : bfloat16[2,4096,5120]\n"
     "input %w : float32[2,4096]\n",
     "I - %dx#, %dw# = scale_rows_grad(%dy, %x, %w) : bfloat16[2,4096,5120], float32[2,4096]\n", 0},
    {"embedding", "input %tokens : int32[4,4096]\nparam %t : bfloat16[128256,2048]\n",
     "F - %y# = embedding(%tokens, %t) : " ROWS "\n", 0},
    {"embedding, backward", "input %tokens : int32[4,4096]\ninput %dy : " ROWS "\n",
     "F - %dt# = embedding_grad(%dy, %tokens) {rows=128256} : float32![128256,2048]\n", 0},
    {"norm of gradients", "state %g : float32[268435456]\n",
     "F - %s# = squared_norm(%g) : float64[]\n", 0},
    {"adamw",
     "scalar %lr : float64[]\nscalar %step : float64[]\nscalar %clip : float32[]\n"
     "param %p : float32[67108864]\nstate %g : float32[67108864]\nstate %m : float32[67108864]\n"
     "state %v : float32[67108864]\n",
     "F - adamw(%lr, %step, %clip, %p, %g, %m, %v)\n", 0},
    {"adamw with a copy",
     "scalar %lr : float64[]\nscalar %step : float64[]\nscalar %clip : float32[]\n"
     "param %p : float32[67108864]\nstate %g : float32[67108864]\nstate %m : float32[67108864]\n"
     "state %v : float32[67108864]\nstate %c : bfloat16![67108864]\n",
     "F - adamw.copies(%lr, %step, %clip, %p, %g, %m, %v, %c)\n", 0},
    {"float8 largest magnitude", "input %x : " WIDE "\n",
     "F - %m# = float8_amax(%x) {grid=\"1,1,1\"} : float32[1,1,1]\n", 0},
    {"float8 largest magnitude, rows", "input %x : " WIDE "\n",
     "F - %m# = float8_amax(%x) {grid=\"4,4096,1\"} : float32[4,4096,1]\n", 0},
    {"float8 largest magnitude, columns", "input %x : " WIDE "\n",
     "F - %m# = float8_amax(%x) {grid=\"1,1,8192\"} : float32[1,1,8192]\n", 0},
    {"float8 largest magnitude, columns, 2048 wide", "input %x : " ROWS "\n",
     "F - %m# = float8_amax(%x) {grid=\"1,1,2048\"} : float32[1,1,2048]\n", 0},
    {"float8 largest magnitude, in swiglu", "input %g : " WIDE "\ninput %u : " WIDE "\n",
     "F - %z#, %l# = swiglu.largest(%g, %u) : " WIDE ", float32[4,4096]\n", 0},
    {"float8 largest magnitude, in swiglu, backward",
     "input %dz : " WIDE "\ninput %g : " WIDE "\ninput %u : " WIDE "\n",
     "F - %dg#, %du#, %l#, %m# = swiglu_grad.largest(%dz, %g, %u) : " WIDE ", " WIDE
     ", float32[4,4096], float32[4,4096]\n",
     0},
    {"float8 largest magnitude, in add and norm",
     "input %x : " ROWS "\ninput %r : " ROWS "\nparam %w : bfloat16[2048]\n",
     "F - %y#, %sum#, %rstd#, %l# = add_rms_norm.largest(%x, %r, %w) {eps=1e-5} : " ROWS ", " ROWS
     ", float32[4,4096], float32[4,4096]\n",
     0},
    {"float8 largest magnitude, in norm, backward",
     "input %dy : " ROWS "\ninput %x : " ROWS "\ninput %r : " ROWS
     "\nparam %w : bfloat16[2048]\ninput %rstd : float32[4,4096]\n",
     "F - %dx#, %dw#, %l# = rms_norm_grad.largest(%dy, %x, %w, %rstd, %r) : " ROWS
     ", float32![2048], float32[4,4096]\n",
     0},
    {"float8 scale by largest magnitudes of rows", "input %l : float32[4,4096]\n",
     "F - %s#, %i# = float8_amax_scale(%l) {grid=\"1,1,1\"} : float32[1,1,1], float32[1,1,1]\n", 0},
    {"float8 largest magnitude, rows and columns", "input %x : " WIDE "\n",
     "F - %r#, %c# = float8_amax_both(%x) : float32[4,4096,1], float32[1,1,8192]\n", 0},
    {"float8 scales, rows and columns", "input %x : " WIDE "\n",
     "F - %r#, %i#, %c#, %j# = float8_line_scales(%x) {rule=\"power_of_two\"} : "
     "float32[4,4096,1], float32[4,4096,1], float32[1,1,8192], float32[1,1,8192]\n",
     0},
    {"float8 rounding", "input %x : " WIDE "\nparam %s : float32[1,1,1]\n",
     "F - %q# = float8_quantise(%x, %s) : float8_e4m3[4,4096,8192]\n", 0},
    {"float8 rounding, both layouts", "input %x : " WIDE "\nparam %s : float32[1,1,1]\n",
     "F - %q#, %t# = float8_quantise_both(%x, %s) : float8_e4m3[4,4096,8192], "
     "float8_e4m3[8192,4,4096]\n",
     0},
    {"float8 rounding, both layouts, rows and columns",
     "input %x : " WIDE "\nparam %s : float32[4,4096,1]\nparam %t : float32[1,1,8192]\n",
     "F - %q#, %u# = float8_quantise_both(%x, %s, %t) : float8_e4m3[4,4096,8192], "
     "float8_e4m3[8192,4,4096]\n",
     0},
    {"float8 rounding, transposed", "input %x : " WIDE "\nparam %s : float32[1,1,1]\n",
     "F - %t# = float8_quantise_transposed(%x, %s) : float8_e4m3[8192,4,4096]\n", 0},
    {"float8 transpose", "input %q : float8_e4m3[4,4096,8192]\n",
     "F - %t# = float8_transpose(%q) : float8_e4m3[8192,4,4096]\n", 0},
    {"float8 rounding by columns", "input %x : " WIDE "\nparam %s : float32[1,1,8192]\n",
     "F - %q# = float8_quantise(%x, %s) : float8_e4m3[4,4096,8192]\n", 0},

/* clang-format off */
#define PRODUCTS(what, n, k)                                                                       \
    {"linear, " what,                                                                              \
     "input %x : bfloat16[4,4096," #k "]\n"                                                        \
     "param %w : bfloat16[" #n "," #k "]\n",                                                       \
     "F - %y# = linear(%x, %w) : bfloat16[4,4096," #n "]\n", 0},                            \
    {"linear dx, " what,                                                                           \
     "input %dy : bfloat16[4,4096," #n "]\n"                                                       \
     "param %w : bfloat16[" #n "," #k "]\n",                                                       \
     "F - %dx# = linear_dx(%dy, %w) : bfloat16[4,4096," #k "]\n", 0},                       \
    {"linear dw, " what,                                                                           \
     "input %x : bfloat16[4,4096," #k "]\n"                                                        \
     "input %dy : bfloat16[4,4096," #n "]\n",                                                      \
     "F - %dw# = linear_dw(%x, %dy) : float32![" #n "," #k "]\n", 0},                       \
    {"float8 linear, " what,                                                                       \
     "input %a : float8_e4m3[4,4096," #k "]\n"                                                     \
     "param %b : float8_e4m3[" #n "," #k "]\n"                                                     \
     "input %as : float32[1,1,1]\nparam %bs : float32[1,1]\n",                                     \
     "F - %c# = linear_float8(%a, %b, %as, %bs) {fast_accumulation=true} : "                       \
     "bfloat16[4,4096," #n "]\n", 0},                                                              \
    {"float8 linear by rows, " what,                                                               \
     "input %a : float8_e4m3[4,4096," #k "]\n"                                                     \
     "param %b : float8_e4m3[" #n "," #k "]\n"                                                     \
     "input %as : float32[4,4096,1]\nparam %bs : float32[" #n ",1]\n",                             \
     "F - %c# = linear_float8(%a, %b, %as, %bs) {fast_accumulation=true} : "                       \
     "bfloat16[4,4096," #n "]\n", 0},                                                              \
    {"float8 linear dx, " what,                                                                    \
     "input %a : float8_e5m2[4,4096," #n "]\n"                                                     \
     "param %b : float8_e4m3[" #k "," #n "]\n"                                                     \
     "input %as : float32[1,1,1]\nparam %bs : float32[1,1]\n",                                     \
     "F - %c# = linear_float8_dx(%a, %b, %as, %bs) {transposed=true} : bfloat16[4,4096," #k "]\n", \
     0},                                                                                           \
    {"float8 linear dw, " what,                                                                    \
     "input %a : float8_e4m3[" #k ",4,4096]\n"                                                     \
     "param %b : float8_e5m2[" #n ",4,4096]\n"                                                     \
     "input %as : float32[1,1,1]\nparam %bs : float32[1,1,1]\n",                                   \
     "F - %c# = linear_float8_dw(%a, %b, %as, %bs) {transposed=true} : float32![" #n "," #k "]\n", \
     0},
    PRODUCTS("q k v", 4096, 2048)
    PRODUCTS("o", 2048, 2048)
    PRODUCTS("gate up", 16384, 2048)
    PRODUCTS("down", 2048, 8192)
    {"linear dw, k", "input %x : " ROWS "\ninput %dy : bfloat16[4,4096,1024]\n",
     "F - %dw# = linear_dw(%x, %dy) : float32![1024,2048]\n", 0},
    {"head and loss, both ways",
     "input %x : bfloat16[2,4096,2048]\nparam %w : bfloat16[128256,2048]\n"
     "input %labels : int32[2,4096]\nscalar %dloss : float32[]\n",
     "F - %dx#, %dw#, %loss# = linear_cross_entropy_grad(%dloss, %x, %w, %labels) : "
     "bfloat16[2,4096,2048], float32![128256,2048], float32[]\n", 0},

#define MIXTURE                                                                                    \
    "input %x : " ROWS "\ninput %w : float32[4,4096,8]\ninput %ids : int32[4,4096,8]\n"            \
    "param %g : bfloat16[64,768,2048]\nparam %u : bfloat16[64,768,2048]\n"                         \
    "param %d : bfloat16[64,2048,768]\n"
#define MIXTURE_GRADIENTS                                                                          \
    ROWS ", float32[4,4096,8], float32![64,768,2048], float32![64,768,2048], "                     \
    "float32![64,2048,768]\n"
#define EXPERTS(what, op, how)                                                                     \
    {what, MIXTURE, "F - %y# = " op "(%x, %w, %ids, %g, %u, %d)" how " : " ROWS "\n", 0, 64},      \
    {what ", backward", MIXTURE "input %dy : " ROWS "\n",                                          \
     "I - %dx#, %dw#, %dg#, %du#, %dd# = " op "_grad(%dy, %x, %w, %ids, %g, %u, %d)" how " : "     \
     MIXTURE_GRADIENTS, 0, 64},
    EXPERTS("experts, 8 of 64", "experts", "")
    EXPERTS("experts, 8 of 64, rowwise", "float8.experts", " {recipe=rowwise}")
    EXPERTS("experts, 8 of 64, blockwise", "float8.experts", " {recipe=blockwise}")

#define HEADS(b, t, h) "bfloat16[" #b "," #t "," #h ",128]"
#define ROW(b, t, h) "float32[" #b "," #h "," #t "]"
#define ATTENTION(what, b, t, h, g, forward, backward)                                             \
    {"attention, " what,                                                                           \
     "input %q : " HEADS(b, t, h) "\n"                                                             \
     "input %k : " HEADS(b, t, g) "\n"                                                             \
     "input %v : " HEADS(b, t, g) "\n",                                                            \
     "F - %o#, %lse# = attention(%q, %k, %v) : " HEADS(b, t, h) ", " ROW(b, t, h) "\n",            \
     forward},                                                                               \
    {"attention backward, " what,                                                                  \
     "input %do : " HEADS(b, t, h) "\n"                                                            \
     "input %q : " HEADS(b, t, h) "\n"                                                             \
     "input %k : " HEADS(b, t, g) "\n"                                                             \
     "input %v : " HEADS(b, t, g) "\n"                                                             \
     "input %o : " HEADS(b, t, h) "\n"                                                             \
     "input %lse : " ROW(b, t, h) "\n",                                                            \
     "F - %dq#, %dk#, %dv# = attention_grad(%do, %q, %k, %v, %o, %lse) : "                         \
     HEADS(b, t, h) ", " HEADS(b, t, g) ", " HEADS(b, t, g) "\n",                                  \
     backward},
    ATTENTION("16 heads, 4096", 4, 4096, 16, 8, 0, 0)
    ATTENTION("64 heads, 4096", 1, 4096, 64, 8, 591, 474)
    ATTENTION("64 heads, 8192", 1, 8192, 64, 8, 644, 541)

#define PACKED "bfloat16[8,4096,16,128]"
    {"attention, documents of 512",
     "input %q : " PACKED "\ninput %k : " PACKED "\ninput %v : " PACKED "\n"
     "input %documents : int32[8,4096]\n",
     "F - %o#, %lse# = attention(%q, %k, %v, %documents) : " PACKED ", float32[8,16,4096]\n", 0},
    {"attention backward, documents",
     "input %do : " PACKED "\ninput %q : " PACKED "\ninput %k : " PACKED "\n"
     "input %v : " PACKED "\ninput %o : " PACKED "\ninput %lse : float32[8,16,4096]\n"
     "input %documents : int32[8,4096]\n",
     "F - %dq#, %dk#, %dv# = attention_grad(%do, %q, %k, %v, %o, %lse, %documents) : "
     PACKED ", " PACKED ", " PACKED "\n", 0},
};
/* clang-format on */

static char *numbered(struct ct_arena *arena, const struct bench_case *c)
{
    size_t room = strlen(c->sources) + 64 + COPIES * (strlen(c->op) + 32), used;
    char *text = ct_arena_alloc(arena, room);

    used = (size_t)snprintf(text, room, "graph \"bench\"\n%s", c->sources);
    for (int i = 0; i < COPIES; i++)
        for (const char *at = c->op; *at; at++)
            if (*at == '#')
                used += (size_t)sprintf(text + used, "_%d", i);
            else
                text[used++] = *at;
    text[used] = '\0';
    return text;
}

/* ---- contents ---- */

static int limit; /* of integers, in the case that is measured */

/* Where document number n begins, among the tokens of all sequences. */
static int64_t document_begin(int64_t n)
{
    return n * DOCUMENT + ct_philox(5, 0, (uint64_t)n).v[0] % (DOCUMENT / 2);
}

/* The document of token i. */
static int64_t document_of(int64_t i)
{
    int64_t n = i / DOCUMENT;

    return i < document_begin(n) ? n : n + 1;
}

static double content(const struct ct_value *v, int64_t i)
{
    uint32_t random = ct_philox(7, v->id, (uint64_t)i).v[0];

    if (v->role == CT_ROLE_SCALAR)
        return 1;
    if (!strcmp(v->name, "documents"))
        return (double)document_of(i);
    return random % (uint32_t)limit;
}

/* ---- rates ---- */

static double bytes_of(const struct ct_value *v)
{
    return (double)ct_shape_count(v->ndim, v->shape) * (double)ct_dtype_size(v->dtype);
}

/* A copy of adamw's is the fifth of five operands. */
static bool is_only_written(const struct ct_op *op, int i)
{
    return !strcmp(op->type->name, "adamw.copies") && i >= 3 && (i - 3) % 5 == 4;
}

/* Bytes that have to move: every operand once; of a table, the rows that are looked up. */

static double moved(const struct ct_op *op)
{
    bool looks_up = !strcmp(op->type->name, "embedding");
    double bytes = 0;

    for (int i = 0; i < op->outs; i++)
        bytes += bytes_of(op->out[i]) * (looks_up ? 2 : 1);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && !(looks_up && i == 1))
            bytes +=
                bytes_of(op->in[i]) * (ct_op_mutates(op, i) && !is_only_written(op, i) ? 2 : 1);
    return bytes;
}

static struct ct_tensor *tensors(struct ct_arena *arena, struct ct_value *const *v, int count)
{
    struct ct_tensor *t = ct_arena_array(arena, struct ct_tensor, count + 1);

    for (int i = 0; i < count; i++)
        if (v[i])
            t[i] = ct_tensor_dense(NULL, v[i]->dtype, v[i]->ndim, v[i]->shape);
    return t;
}

/* The share of causal pairs of these sequences that are in one document. */
static double share_of_documents(const struct ct_value *documents)
{
    int64_t tokens = documents->shape[1], begin = 0, pairs = 0, all = documents->shape[0] * tokens;

    for (int64_t i = 0; i < all; i++) {
        if (i % tokens == 0 || document_of(i) != document_of(i - 1))
            begin = i;
        pairs += i - begin + 1;
    }
    return (double)pairs / ((double)all * (double)tokens / 2);
}

static double flops(struct ct_arena *arena, const struct ct_op *op)
{
    double share = 1;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && !strcmp(op->in[i]->name, "documents"))
            share = share_of_documents(op->in[i]);
    return op->type->flops ? share * op->type->flops(op, tensors(arena, op->in, op->ins),
                                                     tensors(arena, op->out, op->outs))
                           : 0;
}

static void print_rate(const struct bench_case *c, double seconds, double work, double bytes,
                       const char *clocks)
{
    static double bandwidth;
    double rate = bytes / seconds;

    printf("%-34s | %8.3f ms | ", c->name, seconds * 1e3);
    if (work > 0) {
        printf("%7.1f TFLOP/s", work / seconds * 1e-12);
        if (c->published)
            printf(" | NVIDIA says %d of an H200", c->published);
        printf("%s\n", clocks);
        return;
    }
    if (!strcmp(c->name, "copy") || (!strcmp(c->name, "add") && rate > bandwidth))
        bandwidth = rate;
    printf("%7.1f GB/s", rate * 1e-9);
    if (bandwidth > 0)
        printf(" | %3.0f %% of measured bandwidth", 100 * rate / bandwidth);
    printf("%s\n", clocks);
}

#define BRIEF 0.1

static double enough; /* --seconds; 0: not given */

static int run_case(struct ct_device *device, const struct bench_case *c)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_parse(&arena, numbered(&arena, c));
    struct ct_measured measured = {0};
    char clocks[128];
    double seconds = enough > 0 ? enough : BRIEF, step;
    int rc;

    limit = c->limit ? c->limit : VOCABULARY;
    clocks_begin();
    rc = graph ? ct_measure_graph(graph, device, content, seconds, &measured)
               : ct_context(CT_EINVAL, "%s", c->name);
    clocks_end(enough > 0 ? seconds / 2 : INFINITY, clocks, sizeof(clocks));
    step = (enough > 0 ? measured.lasting : measured.best) / COPIES;
    if (rc == 0)
        print_rate(c, step, flops(&arena, graph->first), moved(graph->first), clocks);
    ct_arena_finish(&arena);
    return rc;
}

/* ---- starting ---- */

static int load(const char *name, char **assignments, int count)
{
    const struct ct_plugin *plugin;
    int rc = ct_plugin_find(name, &plugin);

    if (rc >= 0 && plugin->options)
        rc = ct_options_reset(plugin->options, plugin->config);
    for (int i = 0; rc >= 0 && i < count; i++) {
        char *value = strchr(assignments[i], '=');

        if (!value)
            return ct_fail(CT_EINVAL, "%s: expected KEY=VALUE", assignments[i]);
        *value = '\0';
        rc = ct_options_set(plugin->options, plugin->config, assignments[i], value + 1, "--set");
    }
    return rc < 0 ? rc : ct_plugin_register(plugin);
}

static int start(int argc, char **argv, const char **filter, struct ct_device **device)
{
    const struct ct_offer *offer;
    char *assignments[16];
    int count = 0, rc;

    if (argc < 2)
        return ct_fail(CT_EINVAL, "usage: device NAME [--seconds S] [--set KEY=VALUE]... [CASE]");
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--set") && i + 1 < argc && count < (int)CT_COUNT(assignments))
            assignments[count++] = argv[++i];
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc && atof(argv[i + 1]) > 0)
            enough = atof(argv[++i]);
        else
            *filter = argv[i];
    }
    rc = load(argv[1], assignments, count);
    if (rc >= 0)
        rc = load("adamw", NULL, 0);
    if (rc >= 0)
        rc = load("float8", NULL, 0);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, argv[1], &offer);
    if (rc < 0)
        return rc;
    return ((const struct ct_device_ops *)offer->ops)
        ->open(&(struct ct_device_request){0, 1}, device);
}

/* A case that fails says so, and the next one runs. */
int main(int argc, char **argv)
{
    struct ct_device_info info;
    struct ct_device *device;
    const char *filter = NULL;
    int failed = 0;

    if (ct_ops_register() < 0 || start(argc, argv, &filter, &device) < 0) {
        fprintf(stderr, "device: %s\n", ct_error_message());
        return 1;
    }
    device->ops->info(device, CT_BF16, &info);
    printf("%s\n", info.name);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        if (filter && !strstr(cases[i].name, filter))
            continue;
        if (run_case(device, &cases[i]) < 0) {
            printf("%-34s | failed: %s\n", cases[i].name, ct_error_message());
            failed = 1;
        }
        fflush(stdout);
    }
    device->ops->close(device);
    return failed;
}
