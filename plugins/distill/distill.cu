/*
 * The loss of a token and its gradient (loss.c has the formulas): a block for each row of logits,
 * then one that sums.
 */
#include <ctitan/lib/cuda/tokens.cuh>

#include "distill_cuda.h"

/* A token: logits, and the teacher's numbers and their tokens. */
template <typename T> struct token {
    const distill_call &a;
    const T *x;
    const int32_t *ids;
    int64_t row;

    DEVICE_MEMBER int64_t id(int64_t n) const
    {
        return ids ? ids[n] : n;
    }

    DEVICE_MEMBER float logit(int64_t n) const
    {
        return to_float(x[id(n)]);
    }

    DEVICE_MEMBER float number(int64_t n) const
    {
        float one[1];

        load_as<1>(a.teacher_kind, a.teacher, row * a.k + n, one);
        return one[0];
    }
};

template <typename T> struct teachers_numbers {
    const token<T> &t;
    DEVICE_MEMBER float operator()(int64_t n) const
    {
        return t.number(n);
    }
};

/* The model's logits of the teacher's tokens. */
template <typename T> struct chosen_logits {
    const token<T> &t;
    DEVICE_MEMBER float operator()(int64_t n) const
    {
        return t.number(n) == -INFINITY ? -INFINITY : t.logit(n);
    }
};

template <typename T> DEVICE token<T> own_token(const distill_call &a)
{
    int64_t row = blockIdx.x;

    return {a, logits_at<T>(a.in, row), a.ids ? a.ids + row * a.k : NULL, row};
}

/* Whether a row counts and has numbers in range, for all threads alike. */
template <typename T> DEVICE bool counts(const token<T> &t)
{
    const distill_call &a = t.a;
    bool masked = label_at(a.in, t.row) == CT_CUDA_TOKEN_MASKED, sound = !masked;

    for (int64_t n = threadIdx.x; !masked && n < a.k; n += blockDim.x)
        sound &= in_range(CT_CUDA_FAULT_TOKEN, t.id(n), t.row, a.in.vocabulary, a.in.fault);
    return !__syncthreads_or(!sound);
}

/* The divergence of a row, from the log-sums of both. */
template <typename T> DEVICE double divergence(const token<T> &t, double of_teacher, double warm)
{
    const distill_call &a = t.a;
    double sum = 0;

    for (int64_t n = threadIdx.x; n < a.k; n += blockDim.x) {
        float number = t.number(n);
        double p = number * a.inverse - of_teacher, q = t.logit(n) * a.inverse - warm;

        if (number != -INFINITY)
            sum += a.reverse ? expf((float)q) * (q - p) : expf((float)p) * (p - q);
    }
    return block_sum(sum);
}

template <typename T> DEVICE void rows(const distill_call &a)
{
    token<T> t = own_token<T>(a);
    double *to = a.numbers + t.row * DISTILL_NUMBERS, lse = 0, warm = 0, each = 0, entropy = 0;
    bool is = counts(t);

    if (is) {
        double of_teacher = block_log_sum(a.k, a.inverse, teachers_numbers<T>{t});

        lse = block_log_sum(a.in.vocabulary, 1.0, logits_of<T>{t.x});
        warm = a.reverse            ? block_log_sum(a.k, a.inverse, chosen_logits<T>{t})
               : a.temperature == 1 ? lse
                                    : block_log_sum(a.in.vocabulary, a.inverse, logits_of<T>{t.x});
        each = divergence(t, of_teacher, warm);
        entropy = lse - to_float(t.x[a.in.labels[t.row]]);
    }
    if (threadIdx.x != 0)
        return;
    a.lse[t.row] = (float)lse;
    a.warm[t.row] = (float)warm;
    a.each[t.row] = (float)each;
    to[0] = a.hard * entropy + (1 - a.hard) * a.temperature * a.temperature * each;
    to[1] = each;
    to[2] = entropy;
}

/* ---- the gradient: slope_of_all and slope_of_one of loss.c ---- */

template <typename T> DEVICE double slope_of_all(const token<T> &t, int64_t id)
{
    const distill_call &a = t.a;
    double z = to_float(t.x[id]), slope = 0;

    if (a.hard > 0)
        slope = a.hard * (expf((float)(z - a.lse[t.row])) - (id == a.in.labels[t.row]));
    if (!a.reverse)
        slope += (1 - a.hard) * a.temperature * expf((float)(z * a.inverse - a.warm[t.row]));
    return slope;
}

template <typename T> DEVICE double slope_of_one(const token<T> &t, double of_teacher, int64_t n)
{
    const distill_call &a = t.a;
    float number = t.number(n);
    double p = number * a.inverse - of_teacher;
    double q = t.logit(n) * a.inverse - a.warm[t.row];

    if (number == -INFINITY)
        return 0;
    return (1 - a.hard) * a.temperature *
           (a.reverse ? expf((float)q) * (q - p - a.each[t.row]) : -expf((float)p));
}

/* The slope of the teacher's token n, which may come again; false: it came before. */
template <typename T>
DEVICE bool slope_of_chosen(const token<T> &t, double of_teacher, int64_t n, double &slope)
{
    slope = slope_of_all(t, t.id(n));
    for (int64_t i = 0; i < t.a.k; i++) {
        if (t.id(i) != t.id(n))
            continue;
        if (i < n)
            return false;
        slope += slope_of_one(t, of_teacher, i);
    }
    return true;
}

template <typename T> DEVICE void grad_rows(const distill_call &a)
{
    token<T> t = own_token<T>(a);
    T *to = (T *)a.dlogits + t.row * a.in.vocabulary;
    double scale = load_scalar(a.dloss, a.dloss_kind), of_teacher = 0, slope;
    bool is = counts(t);

    if (is)
        of_teacher = block_log_sum(a.k, a.inverse, teachers_numbers<T>{t});
    for (int64_t n = threadIdx.x; n < a.in.vocabulary; n += blockDim.x) {
        slope = is ? slope_of_all(t, n) : 0.0;
        if (is && !a.ids && n < a.k)
            slope += slope_of_one(t, of_teacher, n);
        to[n] = from_float<T>((float)(scale * slope));
    }
    __syncthreads();
    for (int64_t n = threadIdx.x; is && a.ids && n < a.k; n += blockDim.x)
        if (slope_of_chosen(t, of_teacher, n, slope))
            to[t.id(n)] = from_float<T>((float)(scale * slope));
}

#define ROWS(T, dtype)                                                                             \
    KERNEL(distill_rows_##dtype, distill_call, CT_CUDA_TOKEN_THREADS)                              \
    {                                                                                              \
        rows<T>(a);                                                                                \
    }                                                                                              \
    KERNEL(distill_grad_rows_##dtype, distill_call, CT_CUDA_TOKEN_THREADS)                         \
    {                                                                                              \
        grad_rows<T>(a);                                                                           \
    }
FOR_DTYPES(ROWS)

KERNEL(distill_sums, ct_cuda_token_sums, CT_CUDA_TOKEN_THREADS)
{
    sum_tokens(a);
}
