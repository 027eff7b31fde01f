/*
 * Launches of kernels of losses of tokens: rows of logits, then sums by sequence.
 */
#include <assert.h>

#include <ctitan/input.h>
#include <ctitan/lib/cuda_tokens.h>
#include <ctitan/op_author.h>

enum { ROWS, SUMS }; /* functions */

static const struct ct_cuda_size threads = {CT_CUDA_TOKEN_THREADS, 1, 1};

_Static_assert(CT_CUDA_TOKEN_MASKED == CT_MASKED, "the label of tokens that do not count");

int ct_cuda_prepare_tokens(struct ct_prepare *p, const struct ct_cuda_code *code, int logits,
                           int numbers, const char *const *names)
{
    const struct ct_tensor *x = &p->in[logits];

    p->workspace = (size_t)(ct_rows(x) * numbers) * sizeof(double);
    return ct_cuda_prepare(p, code, x->dtype, names);
}

struct ct_cuda_tokens ct_cuda_tokens(const struct ct_launch *l, int logits)
{
    return (struct ct_cuda_tokens){.logits = l->in[logits].data,
                                   .labels = l->in[logits + 1].data,
                                   .vocabulary = ct_columns(&l->in[logits]),
                                   .fault = ct_cuda_of(l->device)->fault};
}

int ct_cuda_launch_tokens(const struct ct_launch *l, int logits, const void *arguments)
{
    return ct_cuda_launch(l, ct_cuda_function(l, ROWS),
                          (struct ct_cuda_size){(unsigned)ct_rows(&l->in[logits]), 1, 1}, threads,
                          0, arguments);
}

int ct_cuda_sum_tokens(const struct ct_launch *l, int logits, int count, int64_t sequences)
{
    struct ct_cuda_token_sums a = {.numbers = l->workspace,
                                   .tokens = ct_rows(&l->in[logits]) / sequences,
                                   .count = count,
                                   .kind = ct_cuda_float_of(l->out[0].dtype)};

    assert(count <= CT_CUDA_TOKEN_NUMBERS && sequences > 0);
    for (int i = 0; i < count; i++)
        a.sum[i] = l->out[i].data;
    return ct_cuda_launch(l, ct_cuda_function(l, SUMS),
                          (struct ct_cuda_size){(unsigned)sequences, 1, 1}, threads, 0, &a);
}
