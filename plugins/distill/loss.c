/*
 * The loss of a token, from the logits z of the model and numbers t of the teacher: its logits, or
 * its log-probabilities, of all tokens of the vocabulary or of the k that are likeliest, S.
 *
 *   p   softmax of t / T over S
 *   q   softmax of z / T: over the vocabulary (forward), or over S (reverse)
 *   D   sum over S of p log(p / q) (forward), or of q log(q / p) (reverse)
 *   H   the cross entropy of the label, at temperature 1
 *
 *   loss = h H + (1 - h) T^2 D
 *
 * T is the temperature, and h the weight of the hard loss. T^2 makes the gradient of D independent
 * of T, to first order (Hinton et al. 2015). A teacher's number of -inf is none.
 *
 * One code serves the reference and the kernel for CPUs: they differ in where numbers are read
 * from, and in the precision of exp.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/number.h>

#include "distill.h"

enum { LOGITS, LABELS, TEACHER, IDS };
enum { LOSS, DIVERGENCE, ENTROPY, LSE, WARM, EACH };

static const struct ct_option attributes[] = {
    CT_OPT_FLOAT(struct distill, temperature, "temperature", "1", 1e-3, 1e3,
                 "Both models' logits are divided by it"),
    CT_OPT_FLOAT(struct distill, hard, "hard", "0", 0, 1, "Weight of the cross entropy"),
    CT_OPT_BOOL(struct distill, reverse, "reverse", "false", "The reverse divergence"),
    {0}};

/* ---- a token ---- */

/* A row of numbers, one of the three. */
struct numbers {
    const double *exact;
    const float *single;
    const uint16_t *half; /* bfloat16 */
};

static inline double at(const struct numbers *x, int64_t i)
{
    return x->exact ? x->exact[i] : x->single ? (double)x->single[i] : ct_bf16_to_f32(x->half[i]);
}

struct token {
    struct numbers logits, teacher;
    const double *exact_ids; /* both NULL: the teacher has all tokens, in order */
    const int32_t *ids;
    int64_t vocabulary, k, label;
};

static inline int64_t id_at(const struct token *t, int64_t n)
{
    return t->exact_ids ? (int64_t)t->exact_ids[n] : t->ids ? t->ids[n] : n;
}

static inline double power(const struct token *t, double x)
{
    return t->logits.exact ? exp(x) : (double)expf((float)x);
}

/* log of the sum of exp(x / T) over the vocabulary. */
static double sum_all(const struct token *t, const struct numbers *x, double temperature)
{
    double most = -INFINITY, sum = 0;

    for (int64_t n = 0; n < t->vocabulary; n++)
        most = fmax(most, at(x, n));
    for (int64_t n = 0; n < t->vocabulary; n++)
        sum += power(t, (at(x, n) - most) / temperature);
    return most / temperature + log(sum);
}

/* The same over the teacher's tokens: of its numbers, or of the model's logits. */
static double sum_chosen(const struct token *t, bool of_teacher, double temperature)
{
    double most = -INFINITY, sum = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t n = 0; n < t->k; n++) {
            double x = of_teacher ? at(&t->teacher, n) : at(&t->logits, id_at(t, n));

            if (at(&t->teacher, n) == -INFINITY)
                continue;
            if (pass)
                sum += power(t, (x - most) / temperature);
            else
                most = fmax(most, x);
        }
    return most / temperature + log(sum);
}

struct sums {
    double lse, warm, each; /* log-sums at temperature 1 and T; the divergence */
};

static struct sums measure(const struct distill *a, const struct token *t)
{
    struct sums s = {.lse = sum_all(t, &t->logits, 1)};
    double of_teacher = sum_chosen(t, true, a->temperature);

    s.warm = a->reverse            ? sum_chosen(t, false, a->temperature)
             : a->temperature == 1 ? s.lse
                                   : sum_all(t, &t->logits, a->temperature);
    for (int64_t n = 0; n < t->k; n++) {
        double p = at(&t->teacher, n) / a->temperature - of_teacher;
        double q = at(&t->logits, id_at(t, n)) / a->temperature - s.warm;

        if (at(&t->teacher, n) != -INFINITY)
            s.each += a->reverse ? power(t, q) * (q - p) : power(t, p) * (p - q);
    }
    return s;
}

static double loss_of(const struct distill *a, const struct token *t, const struct sums *s)
{
    return a->hard * (s->lse - at(&t->logits, t->label)) +
           (1 - a->hard) * a->temperature * a->temperature * s->each;
}

/* ---- its gradient ---- */

/* The derivative by the logit of token n, without the term of the teacher's logit of it. */
static inline double slope_of_all(const struct distill *a, const struct token *t,
                                  const struct sums *s, int64_t n)
{
    double z = at(&t->logits, n);
    double hard = a->hard > 0 ? a->hard * (power(t, z - s->lse) - (n == t->label)) : 0;

    return a->reverse
               ? hard
               : hard + (1 - a->hard) * a->temperature * power(t, z / a->temperature - s->warm);
}

/* The term of the teacher's entry n. */
static double slope_of_one(const struct distill *a, const struct token *t, const struct sums *s,
                           double of_teacher, int64_t n)
{
    double p = at(&t->teacher, n) / a->temperature - of_teacher;
    double q = at(&t->logits, id_at(t, n)) / a->temperature - s->warm;

    if (at(&t->teacher, n) == -INFINITY)
        return 0;
    return (1 - a->hard) * a->temperature *
           (a->reverse ? power(t, q) * (q - p - s->each) : -power(t, p));
}

/* Whether a token is among the teacher's before number n. */
static bool was_before(const struct token *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (id_at(t, i) == id_at(t, n))
            return true;
    return false;
}

/* The derivative by the logit of the teacher's token n, which is its first of this id. */
static double slope_of_chosen(const struct distill *a, const struct token *t, const struct sums *s,
                              double of_teacher, int64_t n)
{
    double slope = slope_of_all(a, t, s, id_at(t, n));

    for (int64_t i = n; i < t->k; i++)
        if (id_at(t, i) == id_at(t, n))
            slope += slope_of_one(a, t, s, of_teacher, i);
    return slope;
}

/* ---- what may be wrong with a token ---- */

static bool is_masked(const struct token *t)
{
    return t->label == CT_MASKED;
}

static bool is_sound(const struct token *t)
{
    bool sound = t->label >= 0 && t->label < t->vocabulary;

    for (int64_t n = 0; n < t->k; n++)
        sound &= id_at(t, n) >= 0 && id_at(t, n) < t->vocabulary;
    return sound;
}

static int refuse(const struct token *t, int64_t i)
{
    if (t->label < 0 || t->label >= t->vocabulary)
        return ct_fail(CT_EINVAL, "label %lld of token %lld: expected 0 to %lld, or %d",
                       (long long)t->label, (long long)i, (long long)t->vocabulary - 1, CT_MASKED);
    return ct_fail(CT_EINVAL,
                   "token %lld has a number of the teacher for a token beyond the vocabulary of "
                   "%lld",
                   (long long)i, (long long)t->vocabulary);
}

/* ---- the reference ---- */

/* Token i; operands from number `first` on, and the teacher's ids. */
static struct token exact_token(const struct ct_launch *l, const struct ct_reference *r, int first,
                                const double *ids, int64_t i)
{
    int64_t v = ct_columns(&l->in[first + LOGITS]), k = ct_columns(&l->in[first + TEACHER]);

    return (struct token){.logits.exact = r->in[first + LOGITS] + i * v,
                          .teacher.exact = r->in[first + TEACHER] + i * k,
                          .exact_ids = ids ? ids + i * k : NULL,
                          .vocabulary = v,
                          .k = k,
                          .label = (int64_t)r->in[first + LABELS][i]};
}

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct distill *a = l->op->attrs;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_rows(&l->in[LOGITS]); i++) {
        struct token t = exact_token(l, &r, 0, r.in[IDS], i);
        struct sums s;

        if (is_masked(&t))
            continue;
        if (!is_sound(&t)) {
            rc = refuse(&t, i);
            continue;
        }
        s = measure(a, &t);
        *r.out[LOSS] += loss_of(a, &t, &s);
        *r.out[DIVERGENCE] += s.each;
        *r.out[ENTROPY] += s.lse - at(&t.logits, t.label);
        r.out[LSE][i] = s.lse;
        r.out[WARM][i] = s.warm;
        r.out[EACH][i] = s.each;
    }
    return ct_reference_end(&r, rc);
}

/* Inputs of the gradient: dloss, three operands of the loss, three of its outputs, and ids. */
enum { GRAD_LOGITS = 1, GRAD_LSE = 4, GRAD_WARM, GRAD_EACH, GRAD_IDS };

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct distill *a = l->op->attrs;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_rows(&l->in[GRAD_LOGITS]); i++) {
        const struct sums s = {r.in[GRAD_LSE][i], r.in[GRAD_WARM][i], r.in[GRAD_EACH][i]};
        struct token t = exact_token(l, &r, GRAD_LOGITS, r.in[GRAD_IDS], i);
        double *d = r.out[0] + i * t.vocabulary, of_teacher;

        if (is_masked(&t))
            continue;
        if (!is_sound(&t)) {
            rc = refuse(&t, i);
            continue;
        }
        of_teacher = sum_chosen(&t, true, a->temperature);
        for (int64_t n = 0; n < t.vocabulary; n++)
            d[n] = *r.in[0] * slope_of_all(a, &t, &s, n);
        for (int64_t n = 0; n < t.k; n++)
            d[id_at(&t, n)] += *r.in[0] * slope_of_one(a, &t, &s, of_teacher, n);
    }
    return ct_reference_end(&r, rc);
}

static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[LOSS])
        return 0;
    return ct_emit_gradients(v, &distill_grad_type,
                             (struct ct_value *[]){v->dout[LOSS], op->in[LOGITS], op->in[LABELS],
                                                   op->in[TEACHER], op->out[LSE], op->out[WARM],
                                                   op->out[EACH],
                                                   op->ins > IDS ? op->in[IDS] : NULL},
                             8, op->attrs, (int[]){LOGITS}, 1);
}

/* Capital letters are whole on every rank: the vocabulary, and what the teacher has of a token. */
const struct ct_op_type distill_type = {
    .size = sizeof(struct ct_op_type),
    .name = "distill",
    .summary = "sums over tokens of a mean of divergence from a teacher and cross entropy, of both",
    .signature = "logits[.V] T, labels[.] i, teacher[.K] F, ?ids[.K] i -> loss[] W, "
                 "divergence[] W, entropy[] W, lse[.] W, warm[.] W, each[.] W",
    .attrs = attributes,
    .attrs_size = sizeof(struct distill),
    .vjp = vjp,
    .reference = forward,
    .samples =
        "temperature=1.7 hard=0.3 @flops=0: real[2,4,6] label[2,4] given[2,4,3] small[2,4,3]; "
        "temperature=0.8 hard=0.2 reverse=true @flops=0: real[2,4,6] label[2,4] given[2,4,3] "
        "small[2,4,3]; @flops=0: real[2,4,6] label[2,4] given[2,4,6]; "
        "temperature=2 reverse=true @flops=0: real[2,4,6] label[2,4] given[2,4,6]",
};

const struct ct_op_type distill_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "distill_grad",
    .summary = "gradient of distill",
    .signature = "dloss[] F, logits[.V] T, labels[.] i, teacher[.K] F, lse[.] W, warm[.] W, "
                 "each[.] W, ?ids[.K] i -> dlogits[.V] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct distill),
    .reference = backward,
    .samples =
        "temperature=1.7 hard=0.3 @flops=0: positive[] real[2,4,6] label[2,4] given[2,4,3] "
        "statistic[2,4] statistic[2,4] statistic[2,4] small[2,4,3]; "
        "temperature=0.8 hard=0.2 reverse=true @flops=0: positive[] real[2,4,6] label[2,4] "
        "given[2,4,3] statistic[2,4] statistic[2,4] statistic[2,4] small[2,4,3]; "
        "temperature=2 reverse=true @flops=0: positive[] real[2,4,6] label[2,4] given[2,4,6] "
        "statistic[2,4] statistic[2,4] statistic[2,4]",
};

/* ---- kernels for CPUs ---- */

static struct numbers row_of(const struct ct_tensor *t, int64_t i)
{
    size_t begin = (size_t)(i * ct_columns(t));

    return t->dtype == CT_F32 ? (struct numbers){.single = (const float *)t->data + begin}
                              : (struct numbers){.half = (const uint16_t *)t->data + begin};
}

static struct token token_at(const struct ct_launch *l, int first, int ids, int64_t i)
{
    struct token t = {.logits = row_of(&l->in[first + LOGITS], i),
                      .teacher = row_of(&l->in[first + TEACHER], i),
                      .vocabulary = ct_columns(&l->in[first + LOGITS]),
                      .k = ct_columns(&l->in[first + TEACHER]),
                      .label = ((const int32_t *)l->in[first + LABELS].data)[i]};

    if (ids < l->op->ins && l->op->in[ids])
        t.ids = (const int32_t *)l->in[ids].data + i * t.k;
    return t;
}

static void measure_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;

    for (int64_t i = begin; i < end; i++) {
        struct token t = token_at(l, 0, IDS, i);
        struct sums s = {0};

        if (!is_masked(&t) && is_sound(&t))
            s = measure(l->op->attrs, &t);
        ((float *)l->out[LSE].data)[i] = (float)s.lse;
        ((float *)l->out[WARM].data)[i] = (float)s.warm;
        ((float *)l->out[EACH].data)[i] = (float)s.each;
    }
}

static int run_forward(const struct ct_launch *l)
{
    const float *lse = l->out[LSE].data, *each = l->out[EACH].data;
    double loss = 0, divergence = 0, entropy = 0;

    ct_parallel(l, ct_rows(&l->in[LOGITS]), measure_rows, (void *)(uintptr_t)l);
    for (int64_t i = 0; i < ct_rows(&l->in[LOGITS]); i++) {
        struct token t = token_at(l, 0, IDS, i);
        struct sums s = {.lse = (double)lse[i], .each = (double)each[i]};

        if (is_masked(&t))
            continue;
        if (!is_sound(&t))
            return refuse(&t, i);
        loss += loss_of(l->op->attrs, &t, &s);
        divergence += s.each;
        entropy += s.lse - at(&t.logits, t.label);
    }
    ct_tensor_store(&l->out[LOSS], 0, loss);
    ct_tensor_store(&l->out[DIVERGENCE], 0, divergence);
    ct_tensor_store(&l->out[ENTROPY], 0, entropy);
    return 0;
}

static void put(const struct ct_tensor *t, int64_t i, double x)
{
    if (t->dtype == CT_F32)
        ((float *)t->data)[i] = (float)x;
    else
        ((uint16_t *)t->data)[i] = ct_f32_to_bf16((float)x);
}

static void slope_row(const struct ct_launch *l, const struct token *t, const struct sums *s,
                      int64_t i)
{
    const struct distill *a = l->op->attrs;
    double scale = ct_tensor_load(&l->in[0], 0), of_teacher = sum_chosen(t, true, a->temperature);
    int64_t first = i * t->vocabulary;

    for (int64_t n = 0; n < t->vocabulary; n++) {
        double slope = slope_of_all(a, t, s, n);

        if (!t->ids && n < t->k)
            slope += slope_of_one(a, t, s, of_teacher, n);
        put(&l->out[0], first + n, scale * slope);
    }
    for (int64_t n = 0; t->ids && n < t->k; n++)
        if (!was_before(t, n))
            put(&l->out[0], first + id_at(t, n), scale * slope_of_chosen(a, t, s, of_teacher, n));
}

static void slope_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const float *lse = l->in[GRAD_LSE].data, *warm = l->in[GRAD_WARM].data;
    const float *each = l->in[GRAD_EACH].data;

    for (int64_t i = begin; i < end; i++) {
        struct token t = token_at(l, GRAD_LOGITS, GRAD_IDS, i);
        const struct sums s = {(double)lse[i], (double)warm[i], (double)each[i]};

        if (!is_masked(&t) && is_sound(&t))
            slope_row(l, &t, &s, i);
        else
            for (int64_t n = 0; n < t.vocabulary; n++)
                put(&l->out[0], i * t.vocabulary + n, 0);
    }
}

/* The forward has refused tokens that are not sound. */
static int run_backward(const struct ct_launch *l)
{
    ct_parallel(l, ct_rows(&l->in[GRAD_LOGITS]), slope_rows, (void *)(uintptr_t)l);
    return 0;
}

static bool is_short(const struct ct_tensor *t)
{
    return t->dtype == CT_F32 || t->dtype == CT_BF16;
}

static bool accepts_forward(const struct ct_prepare *p)
{
    return is_short(&p->in[LOGITS]) && is_short(&p->in[TEACHER]) && p->out[LSE].dtype == CT_F32;
}

static bool accepts_backward(const struct ct_prepare *p)
{
    return is_short(&p->in[GRAD_LOGITS]) && is_short(&p->in[GRAD_LOGITS + TEACHER]) &&
           p->in[GRAD_LSE].dtype == CT_F32;
}

const struct ct_kernel distill_kernels[] = {
    CT_KERNEL("distill", "rows", 0, accepts_forward, NULL, run_forward),
    CT_KERNEL("distill_grad", "rows", 0, accepts_backward, NULL, run_backward),
    {0}};
