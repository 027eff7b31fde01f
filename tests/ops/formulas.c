/*
 * Reference kernels against formulas written another way, and against what must hold whatever the
 * numbers are.
 */
#include <complex.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/rng.h>

#include "plugin_ops.h"

static void create(struct ct_trial *m, const char *type, const char *attrs, const char *inputs)
{
    if (ct_trial_create(m, &(struct ct_sample){type, attrs, inputs}, CT_F64) < 0)
        fail_msg("%s", ct_error_message());
}

static double *numbers(struct ct_trial *m, const struct ct_value *v)
{
    return ct_trial_tensor(m, v)->data;
}

static double *in(struct ct_trial *m, int i)
{
    return numbers(m, m->op->in[i]);
}

static int32_t *integers(struct ct_trial *m, int i)
{
    return ct_trial_tensor(m, m->op->in[i])->data;
}

static int32_t *integers_out(struct ct_trial *m, int i)
{
    return ct_trial_tensor(m, m->op->out[i])->data;
}

static double *out(struct ct_trial *m, int i)
{
    return numbers(m, m->op->out[i]);
}

static void run(struct ct_trial *m)
{
    if (ct_trial_run(m, m->op) < 0)
        fail_msg("%s: %s", m->op->type->name, ct_error_message());
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

/* ---- attention ---- */

enum { B = 2, T = 6, H = 4, G = 2, D = 4, V = 3 };

/* softmax(mask + q k^T / root of d) v, with the whole matrix of weights made. sink[h] is one more
   score, which adds no value; NULL: there is none. */
static void naive_attention(struct ct_trial *m, bool documents, const double *sink,
                            double o[B][T][H][V], double lse[B][H][T])
{
    double(*q)[T][H][D] = (void *)in(m, 0), (*k)[T][G][D] = (void *)in(m, 1);
    double(*v)[T][G][V] = (void *)in(m, 2);

    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < T; i++) {
                double weight[T] = {0}, sum = sink ? exp(sink[h]) : 0;

                for (int j = 0; j < T; j++) {
                    double score = 0;

                    for (int d = 0; d < D; d++)
                        score += q[b][i][h][d] * k[b][j][h / 2][d];
                    if (j <= i &&
                        (!documents || integers(m, 3)[b * T + i] == integers(m, 3)[b * T + j]))
                        sum += weight[j] = exp(score / 2);
                }
                lse[b][h][i] = log(sum);
                for (int d = 0; d < V; d++) {
                    o[b][i][h][d] = 0;
                    for (int j = 0; j < T; j++)
                        o[b][i][h][d] += weight[j] / sum * v[b][j][h / 2][d];
                }
            }
}

static void check_attention(const char *inputs, bool documents)
{
    double o[B][T][H][V], lse[B][H][T];
    struct ct_trial m;

    create(&m, "attention", NULL, inputs);
    run(&m);
    naive_attention(&m, documents, NULL, o, lse);
    for (int i = 0; i < B * T * H * V; i++)
        near(out(&m, 0)[i], (&o[0][0][0][0])[i]);
    for (int i = 0; i < B * T * H; i++)
        near(out(&m, 1)[i], (&lse[0][0][0])[i]);
    ct_trial_finish(&m);
}

static void attention_follows_its_formula(void **state)
{
    (void)state;
    check_attention("real[2,6,4,4] real[2,6,2,4] real[2,6,2,3] -", false);
    check_attention("real[2,6,4,4] real[2,6,2,4] real[2,6,2,3] document[2,6]", true);
}

/* A softmax over the scores and one more. */
static void attention_sink_follows_its_formula(void **state)
{
    double o[B][T][H][V], lse[B][H][T];
    struct ct_trial m, sink;

    (void)state;
    create(&m, "attention", NULL, "real[2,6,4,4] real[2,6,2,4] real[2,6,2,3] document[2,6]");
    create(&sink, "attention_sink", NULL, "real[2,6,4,3] given[2,4,6] real[4]");
    run(&m);
    naive_attention(&m, true, in(&sink, 2), o, lse);
    memcpy(in(&sink, 0), out(&m, 0), sizeof(o));
    memcpy(in(&sink, 1), out(&m, 1), sizeof(lse));
    run(&sink);
    for (int i = 0; i < B * T * H * V; i++)
        near(out(&sink, 0)[i], (&o[0][0][0][0])[i]);
    ct_trial_finish(&m);
    ct_trial_finish(&sink);
}

/* Sinks far above and below all scores; a query that sees nothing. */
static void attention_sink_is_stable(void **state)
{
    static const double lse[] = {0, 0, 1e5, -INFINITY}, sink[] = {1e5, -1e5, 1e5, -INFINITY};
    static const double weight[] = {0, 1, 0.5, 0};
    struct ct_trial m, grad;

    (void)state;
    create(&m, "attention_sink", NULL, "real[1,1,4,1] given[1,4,1] real[4]");
    create(&grad, "attention_sink_grad", NULL, "real[1,1,4,1] real[1,1,4,1] given[1,4,1] real[4]");
    memcpy(in(&m, 1), lse, sizeof(lse));
    memcpy(in(&m, 2), sink, sizeof(sink));
    memcpy(in(&grad, 2), lse, sizeof(lse));
    memcpy(in(&grad, 3), sink, sizeof(sink));
    run(&m);
    run(&grad);
    for (int i = 0; i < 4; i++) {
        near(out(&m, 0)[i], weight[i] * in(&m, 0)[i]);
        near(out(&grad, 0)[i], weight[i] * in(&grad, 0)[i]);
        near(out(&grad, 1)[i], (weight[i] - 1) * in(&grad, 0)[i] * in(&grad, 1)[i]);
    }
    ct_trial_finish(&m);
    ct_trial_finish(&grad);
}

/* Scores of 1e5 must not overflow, and pick the largest. */
static void attention_is_stable(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "attention", NULL, "real[1,2,1,1] real[1,2,1,1] real[1,2,1,1] -");
    in(&m, 0)[1] = 1e5;
    in(&m, 1)[0] = -1;
    in(&m, 1)[1] = 1;
    run(&m);
    near(out(&m, 0)[0], in(&m, 2)[0]);
    near(out(&m, 0)[1], in(&m, 2)[1]);
    near(out(&m, 1)[1], 1e5);
    ct_trial_finish(&m);
}

/* Equal keys: the mean of the values so far. */
static void attention_on_equal_keys_is_a_mean(void **state)
{
    struct ct_trial m;
    double sum = 0;

    (void)state;
    create(&m, "attention", NULL, "real[1,5,1,1] real[1,5,1,1] real[1,5,1,1] -");
    for (int i = 0; i < 5; i++)
        in(&m, 1)[i] = 0.5;
    run(&m);
    for (int i = 0; i < 5; i++) {
        sum += in(&m, 2)[i];
        near(out(&m, 0)[i], sum / (i + 1));
        near(out(&m, 1)[i], in(&m, 0)[i] * 0.5 + log(i + 1));
    }
    ct_trial_finish(&m);
}

/* ---- rope ---- */

/* Pair i as a complex number, times exp(i position frequency). */
static void rope_is_a_rotation(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "rope", "theta=100", "real[2,4,2,6] position[2,4]");
    run(&m);
    for (int row = 0; row < 16; row++)
        for (int i = 0; i < 3; i++) {
            const double *x = in(&m, 0) + row * 6, *y = out(&m, 0) + row * 6;
            double angle = integers(&m, 1)[row / 2] / pow(100, i / 3.0);
            double complex z = (x[i] + I * x[i + 3]) * cexp(I * angle);

            near(y[i], creal(z));
            near(y[i + 3], cimag(z));
        }
    ct_trial_finish(&m);
}

/* The pairs beside each other, from feature 2 on; what is before that is copied. */
static void rope_rotates_neighbours(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "rope", "theta=100 first=2 interleaved=true", "real[2,4,2,8] position[2,4]");
    run(&m);
    for (int row = 0; row < 16; row++) {
        const double *x = in(&m, 0) + row * 8, *y = out(&m, 0) + row * 8;

        near(y[0], x[0]);
        near(y[1], x[1]);
        for (int i = 0; i < 3; i++) {
            double angle = integers(&m, 1)[row / 2] / pow(100, i / 3.0);
            double complex z = (x[2 + 2 * i] + I * x[3 + 2 * i]) * cexp(I * angle);

            near(y[2 + 2 * i], creal(z));
            near(y[3 + 2 * i], cimag(z));
        }
    }
    ct_trial_finish(&m);
}

static void rope_counts_positions(void **state)
{
    struct ct_trial given, counted;

    (void)state;
    create(&given, "rope", "theta=100", "real[2,4,2,6] position[2,4]");
    create(&counted, "rope", "theta=100", "real[2,4,2,6] -");
    for (int i = 0; i < 8; i++)
        integers(&given, 1)[i] = i % 4;
    memcpy(in(&counted, 0), in(&given, 0), 96 * sizeof(double));
    run(&given);
    run(&counted);
    for (int i = 0; i < 96; i++)
        near(out(&counted, 0)[i], out(&given, 0)[i]);
    ct_trial_finish(&given);
    ct_trial_finish(&counted);
}

/* ---- other ops of positions ---- */

static void temper_follows_its_formula(void **state)
{
    struct ct_trial given, counted;

    (void)state;
    create(&given, "temper", "scale=0.5 every=3", "real[2,4,2,3] position[2,4]");
    create(&counted, "temper", "scale=0.5 every=3", "real[2,4,2,3] -");
    for (int i = 0; i < 8; i++)
        integers(&given, 1)[i] = 100 * i;
    run(&given);
    run(&counted);
    for (int i = 0; i < 48; i++) {
        int token = i / 6;

        near(out(&given, 0)[i],
             in(&given, 0)[i] * (1 + 0.5 * log(1 + floor((100 * token + 1) / 3.0))));
        near(out(&counted, 0)[i],
             in(&counted, 0)[i] * (1 + 0.5 * log(1 + floor((token % 4 + 1) / 3.0))));
    }
    ct_trial_finish(&given);
    ct_trial_finish(&counted);
}

/* Documents of any number, the last of which is beyond what their product could hold. */
static void document_chunks_differ_where_they_should(void **state)
{
    static const int32_t documents[] = {7, 7, 7, 7, 8, INT32_MAX, INT32_MAX, INT32_MAX};
    static const int32_t positions[] = {0, 1, 2, 3, 0, 0, 1, 2};
    static const int group[] = {0, 0, 1, 1, 2, 3, 3, 4};
    struct ct_trial m, counted;

    (void)state;
    create(&m, "document_chunks", "tokens=2 most=4", "index[1,8] position[1,8] document[1,8]");
    create(&counted, "document_chunks", "tokens=3", "index[2,4]");
    memcpy(integers(&m, 1), positions, sizeof(positions));
    memcpy(integers(&m, 2), documents, sizeof(documents));
    run(&m);
    run(&counted);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 8; k++)
            assert_int_equal(integers_out(&m, 0)[i] == integers_out(&m, 0)[k],
                             group[i] == group[k]);
    for (int i = 0; i < 8; i++)
        assert_int_equal(integers_out(&counted, 0)[i], i % 4 / 3);
    ct_trial_finish(&m);
    ct_trial_finish(&counted);
}

static void rope_inverse_undoes_rope(void **state)
{
    struct ct_trial m, back;

    (void)state;
    create(&m, "rope", "theta=100 factor=4 original_max_position=16",
           "real[2,4,2,6] position[2,4]");
    create(&back, "rope", "theta=100 factor=4 original_max_position=16 inverse=true",
           "real[2,4,2,6] position[2,4]");
    run(&m);
    memcpy(in(&back, 0), out(&m, 0), 96 * sizeof(double));
    run(&back);
    for (int i = 0; i < 96; i++)
        near(out(&back, 0)[i], in(&m, 0)[i]);
    ct_trial_finish(&m);
    ct_trial_finish(&back);
}

/* Values of an independent implementation of the published rule, for Llama 3.1 8B and 3.2 1B. */
static void rope_frequencies_equal_published_values(void **state)
{
    static const struct {
        int64_t head_size, pair;
        double factor, frequency;
    } known[] = {
        {128, 0, 8, 1.0},
        {128, 1, 8, 0.8146172338565447},
        {128, 28, 8, 0.0032114459947525913},
        {128, 29, 8, 0.002166570763503359},
        {128, 30, 8, 0.0013718935677611381},
        {128, 34, 8, 0.00017850781276799638},
        {128, 35, 8, 9.556212353964683e-05},
        {128, 48, 8, 6.647869871181236e-06},
        {128, 63, 8, 3.068925988914511e-07},
        {64, 14, 32, 0.0032114459947525913},
        {64, 15, 32, 0.001290547928209264},
        {64, 17, 32, 9.70828780262767e-05},
        {64, 18, 32, 1.9461638184831125e-05},
        {64, 31, 32, 9.418306725434909e-08},
    };
    struct ct_rope plain = {.theta = 500000, .factor = 1};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(known); i++) {
        struct ct_rope rope = {.theta = 500000,
                               .factor = known[i].factor,
                               .low_freq_factor = 1,
                               .high_freq_factor = 4,
                               .original_max_position = 8192};

        near(ct_rope_frequency(&rope, known[i].head_size, known[i].pair) / known[i].frequency, 1);
    }
    near(ct_rope_frequency(&plain, 4, 1), 1 / sqrt(500000));
}

/* Values of transformers' _compute_yarn_parameters in float64: DeepSeek-V3's; gpt-oss's, whose
   limits are not rounded; limits that are cut off at the first pair; and two that are one. */
static void yarn_frequencies_equal_those_of_transformers(void **state)
{
    static const struct ct_rope v3 = {
        .theta = 10000, .factor = 40, .original_max_position = 4096, .scaling = CT_ROPE_YARN};
    static const struct ct_rope gpt_oss = {.theta = 150000,
                                           .factor = 32,
                                           .original_max_position = 4096,
                                           .scaling = CT_ROPE_YARN,
                                           .fractional = true};
    static const struct ct_rope early = {.theta = 500,
                                         .factor = 4,
                                         .original_max_position = 3,
                                         .scaling = CT_ROPE_YARN,
                                         .beta_fast = 32,
                                         .beta_slow = 1};
    static const struct ct_rope sudden = {.theta = 10000,
                                          .factor = 4,
                                          .original_max_position = 32,
                                          .scaling = CT_ROPE_YARN,
                                          .beta_fast = 2,
                                          .beta_slow = 1.9};
    static const struct {
        const struct ct_rope *rope;
        int64_t rotated, pair;
        double frequency;
    } known[] = {
        {&v3, 64, 0, 1.0},
        {&v3, 64, 10, 0.056234132519034905},
        {&v3, 64, 11, 0.03900692656714386},
        {&v3, 64, 16, 0.0055},
        {&v3, 64, 22, 0.0001778279410038922},
        {&v3, 64, 23, 3.33380358040831e-05},
        {&v3, 64, 31, 3.33380358040831e-06},
        {&gpt_oss, 64, 8, 0.050813274815461475},
        {&gpt_oss, 64, 9, 0.03170569618466377},
        {&gpt_oss, 64, 12, 0.006794959489732219},
        {&gpt_oss, 64, 17, 0.00012931870124506317},
        {&gpt_oss, 64, 18, 3.8308812373753384e-05},
        {&early, 16, 0, 1.0},
        {&early, 16, 1, 0.11496582445669257},
        {&early, 16, 7, 0.0010872796380204927},
        {&sudden, 8, 0, 1.0},
        {&sudden, 8, 1, 0.025},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(known); i++)
        near(ct_rope_frequency(known[i].rope, known[i].rotated, known[i].pair) / known[i].frequency,
             1);
}

/* PyTorch's numbers in float64 for a batch of three tokens with three heads of queries and one of
   keys: input k has the values amplitude[k] sin(rate[k] (i + 1)). */
static const struct {
    const char *how;
    double o[18], lse[9], dq[18], dk[6], dv[6];
} scored[] = {
    {
        "softcap=0.5",
        {0.863209366649, -0.871575772414, 0.863209366649, -0.871575772414, 0.863209366649,
         -0.871575772414, 0.244724579198, 0.389788238917, 0.609352604013, -0.353849563268,
         0.635465803899, -0.407105926601, 0.134866587063, -0.00470029834787, 0.00602272014266,
         0.314475390268, -0.0663221243489, 0.253616673526},
        {0.498316387541, 0.812781996847, 1.11157266979, 0.496604715748, 0.738152469185,
         1.05169236377, -0.488497630477, 0.813065219976, 1.09800676536},
        {0, 0, 0, 0, 0, 0, -0.0030408595832, -0.00269886657926, 0.291840429329, 0.196187982208,
         -0.00117485905419, -0.000945800393301, 0.641734715691, 0.563515848116, -0.000863621097222,
         -0.00147009790446, 0.145564796464, 0.353574062724},
        {0.0587939885004, 0.0133600333496, -0.0291830141545, 0.0461480957966, -0.0724114514664,
         0.00218543137668},
        {0.777943044429, -0.514527076885, -0.499712073504, 0.382052512368, -0.119504876473,
         -0.252156802769},
    },
    {
        "alibi=8",
        {0.863209366649, -0.871575772414, 0.863209366649, -0.871575772414, 0.863209366649,
         -0.871575772414, 0.0391996313931, 0.808944502501, 0.686898717166, -0.512000383358,
         0.843731990375, -0.831852788169, 0.122402782578, 0.0153987469805, 0.0110247691125,
         0.805155218791, -0.20421692905, 0.384221686497},
        {1.59628212235, 1.77108562418, 1.02570244109, 1.42049168335, 0.731550378163, 2.11672786808,
         -1.11340829648, 1.74286265123, 0.915869157864},
        {0, 0, 0, 0, 0, 0, -0.120639572668, -0.102202488503, 0.768468079058, 0.651024769716,
         -0.0972339821209, -0.0823739235812, 0.710270809299, 0.635631709914, -0.0776181256172,
         -0.102214118123, 0.36143595206, 0.66375593996},
        {0.0759509565985, 0.0900071405239, 0.00377650322805, -0.105804280465, -0.0797274598265,
         0.0157971399408},
        {0.919461591477, -0.649055696875, -0.539834534156, 0.72617539511, -0.22090096287,
         -0.461751065522},
    },
};

static void fill(double *x, int n, double rate, double amplitude)
{
    for (int i = 0; i < n; i++)
        x[i] = amplitude * sin(rate * (i + 1));
}

static void all_near(const double *got, const double *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-10))
            fail_msg("number %d: %.12g is not %.12g", i, got[i], want[i]);
}

static void changed_scores_are_as_in_pytorch(void **state)
{
    static const char q[] = "real[1,3,3,2]", k[] = "real[1,3,1,2]";
    struct ct_trial m, back;
    char inputs[160];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(scored); i++) {
        snprintf(inputs, sizeof(inputs), "%s %s %s -", q, k, k);
        create(&m, "attention", scored[i].how, inputs);
        fill(in(&m, 0), 18, 0.7, 1);
        fill(in(&m, 1), 6, 1.3, 2);
        fill(in(&m, 2), 6, 2.1, 1);
        run(&m);
        all_near(out(&m, 0), scored[i].o, 18);
        all_near(out(&m, 1), scored[i].lse, 9);
        snprintf(inputs, sizeof(inputs), "%s %s %s %s %s statistic[1,3,3]", q, q, k, k, q);
        create(&back, "attention_grad", scored[i].how, inputs);
        fill(in(&back, 0), 18, 1.7, 1);
        for (int n = 0; n < 3; n++)
            memcpy(in(&back, 1 + n), in(&m, n), sizeof(double) * (n ? 6 : 18));
        memcpy(in(&back, 4), out(&m, 0), sizeof(double) * 18);
        memcpy(in(&back, 5), out(&m, 1), sizeof(double) * 9);
        run(&back);
        all_near(out(&back, 0), scored[i].dq, 18);
        all_near(out(&back, 1), scored[i].dk, 6);
        all_near(out(&back, 2), scored[i].dv, 6);
        ct_trial_finish(&m);
        ct_trial_finish(&back);
    }
}

/* Number i of six heads is a copy of number i / 3 of two; gradients add up. */
static void copies_of_heads_follow_their_formula(void **state)
{
    struct ct_trial m, back;

    (void)state;
    create(&m, "copy_heads", "heads=6", "real[2,3,2,5]");
    run(&m);
    create(&back, "copy_heads_grad", "groups=2", "real[2,3,6,5]");
    run(&back);
    for (int row = 0; row < 6; row++)
        for (int g = 0; g < 2; g++)
            for (int i = 0; i < 5; i++) {
                double sum = 0;

                for (int h = 3 * g; h < 3 * g + 3; h++) {
                    near(out(&m, 0)[(row * 6 + h) * 5 + i], in(&m, 0)[(row * 2 + g) * 5 + i]);
                    sum += in(&back, 0)[(row * 6 + h) * 5 + i];
                }
                near(out(&back, 0)[(row * 2 + g) * 5 + i], sum);
            }
    ct_trial_finish(&m);
    ct_trial_finish(&back);
}

/* ---- latent attention ---- */

/* One head: [keys, values] and what is shared. */
static void expand_latent_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "expand_latent", "keys=2", "real[2,3,4,5] real[2,3,2]");
    run(&m);
    for (int row = 0; row < 24; row++) {
        const double *kv = in(&m, 0) + row * 5, *shared = in(&m, 1) + row / 4 * 2;

        for (int i = 0; i < 2; i++) {
            near(out(&m, 0)[row * 4 + i], kv[i]);
            near(out(&m, 0)[row * 4 + 2 + i], shared[i]);
        }
        for (int i = 0; i < 3; i++)
            near(out(&m, 1)[row * 3 + i], kv[2 + i]);
    }
    ct_trial_finish(&m);
}

static void split_is_undone_by_its_gradient(void **state)
{
    struct ct_trial m, back;

    (void)state;
    create(&m, "split", "widths=3,1,2", "real[2,4,6]");
    create(&back, "split_grad", "widths=3,1,2", "real[2,4,3] real[2,4,1] real[2,4,2]");
    run(&m);
    near(out(&m, 1)[5], in(&m, 0)[5 * 6 + 3]);
    for (int i = 0; i < 3; i++)
        memcpy(in(&back, i), out(&m, i), sizeof(double) * 8 * (size_t)m.op->out[i]->shape[2]);
    run(&back);
    for (int i = 0; i < 48; i++)
        near(out(&back, 0)[i], in(&m, 0)[i]);
    ct_trial_finish(&m);
    ct_trial_finish(&back);
}

/* ---- norms ---- */

static void rms_norm_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "rms_norm", "eps=0.01", "real[2,4,6] real[6]");
    run(&m);
    for (int row = 0; row < 8; row++) {
        double norm = 0;

        for (int i = 0; i < 6; i++)
            norm = hypot(norm, in(&m, 0)[row * 6 + i]);
        norm = sqrt(norm * norm / 6 + 0.01);
        near(out(&m, 1)[row], 1 / norm);
        for (int i = 0; i < 6; i++)
            near(out(&m, 0)[row * 6 + i], in(&m, 0)[row * 6 + i] / norm * in(&m, 1)[i]);
    }
    ct_trial_finish(&m);
}

/* Equal elements c: each becomes w, whatever c is, when eps is 0. */
static void rms_norm_of_a_constant_is_its_weight(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "rms_norm", "eps=0", "real[1,4] real[4]");
    for (int i = 0; i < 4; i++)
        in(&m, 0)[i] = 1e-8;
    run(&m);
    for (int i = 0; i < 4; i++)
        near(out(&m, 0)[i], in(&m, 1)[i]);
    ct_trial_finish(&m);
}

/* In bfloat16 the norm is that of the sum as it is stored. */
static void rms_norm_plain_is_rms_norm_of_ones(void **state)
{
    struct ct_trial m, plain;

    (void)state;
    create(&m, "rms_norm", "eps=0.01", "real[2,4,6] real[6]");
    create(&plain, "rms_norm_plain", "eps=0.01", "real[2,4,6]");
    for (int i = 0; i < 6; i++)
        in(&m, 1)[i] = 1;
    memcpy(in(&plain, 0), in(&m, 0), 48 * sizeof(double));
    run(&m);
    run(&plain);
    for (int i = 0; i < 48; i++)
        near(out(&plain, 0)[i], out(&m, 0)[i]);
    for (int i = 0; i < 8; i++)
        near(out(&plain, 1)[i], out(&m, 1)[i]);
    ct_trial_finish(&m);
    ct_trial_finish(&plain);
}

static void scale_rows_follows_its_formula(void **state)
{
    struct ct_trial m, ones;

    (void)state;
    create(&m, "scale_rows", NULL, "real[2,4,6] statistic[2,4]");
    create(&ones, "ones", NULL, "real[2,4,1]");
    run(&m);
    run(&ones);
    for (int i = 0; i < 48; i++)
        near(out(&m, 0)[i], in(&m, 0)[i] * in(&m, 1)[i / 6]);
    for (int i = 0; i < 8; i++)
        near(ct_tensor_load(ct_trial_tensor(&ones, ones.op->out[0]), i), 1);
    ct_trial_finish(&m);
    ct_trial_finish(&ones);
}

static void add_rms_norm_rounds_the_sum(void **state)
{
    struct ct_sample s = {"add_rms_norm", "eps=0", "real[1,2] real[1,2] real[2]"};
    struct ct_trial m;
    struct ct_tensor *t[3];

    (void)state;
    assert_int_equal(ct_trial_create(&m, &s, CT_BF16), 0);
    for (int i = 0; i < 3; i++)
        t[i] = ct_trial_tensor(&m, m.op->in[i]);
    for (int i = 0; i < 2; i++) {
        ct_tensor_store(t[0], i, 1);
        ct_tensor_store(t[1], i,
                        i ? 0x1p-9 : 0x1p-7); /* the first shows in the sum, the second not */
        ct_tensor_store(t[2], i, 1);
    }
    run(&m);
    near(ct_tensor_load(ct_trial_tensor(&m, m.op->out[1]), 0), 1 + 0x1p-7);
    near(ct_tensor_load(ct_trial_tensor(&m, m.op->out[1]), 1), 1);
    near(ct_tensor_load(ct_trial_tensor(&m, m.op->out[2]), 0),
         (float)(1 / sqrt(((1 + 0x1p-7) * (1 + 0x1p-7) + 1) / 2)));
    ct_trial_finish(&m);
}

/* ---- losses ---- */

static void cross_entropy_follows_its_formula(void **state)
{
    struct ct_trial m;
    double loss = 0;

    (void)state;
    create(&m, "cross_entropy", NULL, "real[2,4,6] label[2,4]");
    run(&m);
    for (int i = 0; i < 8; i++) {
        const double *logits = in(&m, 0) + i * 6;
        double product = 0;

        for (int k = 0; k < 6; k++)
            product += exp(logits[k]);
        near(out(&m, 1)[i], log(product));
        if (integers(&m, 1)[i] >= 0)
            loss -= log(exp(logits[integers(&m, 1)[i]]) / product);
    }
    near(*out(&m, 0), loss);
    ct_trial_finish(&m);
}

static void cross_entropy_of_equal_logits_is_a_logarithm(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "cross_entropy", NULL, "real[3,6] label[3]"); /* the middle one is masked */
    for (int i = 0; i < 18; i++)
        in(&m, 0)[i] = 1000;
    run(&m);
    near(*out(&m, 0), 2 * log(6));
    ct_trial_finish(&m);
}

/* The joined op is linear, then cross_entropy. */
static void linear_cross_entropy_equals_both_ops(void **state)
{
    struct ct_trial joined, linear, loss;

    (void)state;
    create(&joined, "linear_cross_entropy", NULL, "real[2,4,4] real[6,4] label[2,4]");
    create(&linear, "linear", NULL, "real[2,4,4] real[6,4]");
    create(&loss, "cross_entropy", NULL, "real[2,4,6] label[2,4]");
    run(&joined);
    memcpy(in(&linear, 0), in(&joined, 0), 32 * sizeof(double));
    memcpy(in(&linear, 1), in(&joined, 1), 24 * sizeof(double));
    run(&linear);
    memcpy(in(&loss, 0), out(&linear, 0), 48 * sizeof(double));
    memcpy(integers(&loss, 1), integers(&joined, 2), 8 * sizeof(int32_t));
    run(&loss);
    near(*out(&joined, 0), *out(&loss, 0));
    ct_trial_finish(&joined);
    ct_trial_finish(&linear);
    ct_trial_finish(&loss);
}

/* Statistics of shards, merged, give what the whole gives. */
static void check_shards(const char *attrs, double scale)
{
    struct ct_trial whole, shards;
    struct ct_builder b;
    struct ct_op *merge;

    create(&whole, "cross_entropy", NULL, "real[2,4,6] label[2,4]");
    create(&shards, "cross_entropy_partial", attrs, "real[2,4,6] label[2,4]");
    for (int i = 0; i < 2 * 4 * 6; i++)
        in(&shards, 0)[i] = in(&whole, 0)[i] *= scale;
    b = ct_builder_at_end(shards.graph, CT_PART_F, "");
    merge = ct_emit(&b, "cross_entropy_merge", NULL,
                    (struct ct_value *[]){shards.op->out[0], shards.op->in[1]}, 2, NULL);
    assert_non_null(merge);
    run(&whole);
    assert_int_equal(ct_trial_run_from(&shards, shards.op), 0);
    near(*numbers(&shards, merge->out[0]), *out(&whole, 0));
    for (int i = 0; i < 2 * 4; i++)
        near(numbers(&shards, merge->out[1])[i], out(&whole, 1)[i]);
    ct_trial_finish(&whole);
    ct_trial_finish(&shards);
}

static void cross_entropy_in_shards_equals_the_whole(void **state)
{
    (void)state;
    check_shards(NULL, 1);
    check_shards("shards=2", 1);
    check_shards("shards=3", 3000); /* far beyond what exp can hold */
    check_shards("shards=6", 1);
}

/* ---- the choice of experts ---- */

enum { TOKENS = 5, EXPERTS = 12, GROUPS = 4, EACH = EXPERTS / GROUPS, CHOSEN = 4 };

static double score_at(const double *x, int e, bool sigmoid)
{
    double sum = 0;

    for (int i = 0; i < EXPERTS; i++)
        sum += exp(x[i]);
    return sigmoid ? 0.5 + 0.5 * tanh(x[e] / 2) : exp(x[e]) / sum;
}

static double group_score(const double *rank, int group)
{
    double most = -INFINITY;

    for (int i = group * EACH; i < (group + 1) * EACH; i++)
        for (int j = group * EACH; j < i; j++)
            most = fmax(most, rank[i] + rank[j]);
    return most;
}

/* How many experts are chosen before expert e: -1 if its group is not one of the best two. */
static int place_of(const double *rank, int e)
{
    bool best[GROUPS];
    int place = 0;

    for (int g = 0; g < GROUPS; g++) {
        int above = 0;

        for (int other = 0; other < GROUPS; other++)
            above += group_score(rank, other) > group_score(rank, g);
        best[g] = above < 2;
    }
    for (int i = 0; i < EXPERTS; i++)
        place += best[i / EACH] && rank[i] > rank[e];
    return best[e / EACH] ? place : -1;
}

static void check_choice(const char *attrs, bool sigmoid, bool biased, bool normalised)
{
    struct ct_trial m;
    int excluded = 0;

    create(&m, "top_k", attrs, biased ? "real[5,12] given[12]" : "real[5,12]");
    run(&m);
    for (int t = 0; t < TOKENS; t++) {
        const double *x = in(&m, 0) + t * EXPERTS;
        const int32_t *ids = (int32_t *)ct_trial_tensor(&m, m.op->out[1])->data + t * CHOSEN;
        double rank[EXPERTS], sum = 0;

        for (int e = 0; e < EXPERTS; e++)
            rank[e] = score_at(x, e, sigmoid) + (biased ? in(&m, 1)[e] : 0);
        for (int i = 0; i < CHOSEN; i++)
            sum += score_at(x, ids[i], sigmoid);
        for (int i = 0; i < CHOSEN; i++) {
            assert_int_equal(place_of(rank, ids[i]), i);
            near(out(&m, 0)[t * CHOSEN + i],
                 2.5 * score_at(x, ids[i], sigmoid) / (normalised ? sum : 1));
        }
        for (int e = 0; e < EXPERTS; e++)
            excluded += place_of(rank, e) < 0;
    }
    assert_int_equal(excluded, TOKENS * EXPERTS / 2);
    ct_trial_finish(&m);
}

static void top_k_follows_its_formula(void **state)
{
    (void)state;
    check_choice("k=4 groups=4 groups_chosen=2 scale=2.5 scores=sigmoid", true, true, true);
    check_choice("k=4 groups=4 groups_chosen=2 scale=2.5 scores=sigmoid", true, false, true);
    check_choice("k=4 groups=4 groups_chosen=2 scale=2.5", false, true, true);
    check_choice("k=4 groups=4 groups_chosen=2 scale=2.5 normalised=false", false, false, false);
}

/* Equal ranks: the lower index, of groups and of experts; NaN comes last. */
static void top_k_orders_equal_ranks(void **state)
{
    static const double logits[] = {NAN, -1, 2, 2, 2, 2, -INFINITY, -INFINITY};
    static const int32_t want[] = {2, 3, 1, 0};
    struct ct_trial m;

    (void)state;
    create(&m, "top_k", "k=4 groups=2 groups_chosen=1 scores=sigmoid", "real[1,8]");
    memcpy(in(&m, 0), logits, sizeof(logits));
    run(&m);
    assert_memory_equal(ct_trial_tensor(&m, m.op->out[1])->data, want, sizeof(want));
    assert_true(isnan(out(&m, 0)[0]));
    ct_trial_finish(&m);
}

static void expert_excess_adds_up_to_nothing(void **state)
{
    struct ct_trial m;
    double sum = 0;

    (void)state;
    create(&m, "expert_excess", NULL, "small[2,4,3] real[2,4,6]");
    run(&m);
    for (int e = 0; e < 6; e++) {
        double choices = 0;

        for (int i = 0; i < 24; i++)
            choices += integers(&m, 0)[i] == e;
        near(out(&m, 0)[e], 6 * choices - 24);
        sum += out(&m, 0)[e];
    }
    near(sum, 0);
    ct_trial_finish(&m);
}

/* ---- experts ---- */

/* Is x beyond the limits? They bind for about half of the hidden layers. */
static bool clamp(double *x, double low, double high)
{
    double y = fmax(low, fmin(high, *x));
    bool bound = y != *x;

    *x = y;
    return bound;
}

/* The term of choice i in feature c of its token, and how many limits bind. */
static double expert_adds(struct ct_trial *m, int i, int c, int *bound)
{
    int e = integers(m, 2)[i];
    const double *x = in(m, 0) + i / 2 * 4;
    double sum = 0;

    for (int j = 0; j < 3; j++) {
        double g = in(m, 6)[e * 3 + j], u = in(m, 7)[e * 3 + j];

        for (int n = 0; n < 4; n++) {
            g += in(m, 3)[(e * 3 + j) * 4 + n] * x[n];
            u += in(m, 4)[(e * 3 + j) * 4 + n] * x[n];
        }
        *bound += clamp(&g, -INFINITY, 0.75) + clamp(&u, -0.75, 0.75);
        sum += in(m, 5)[(e * 4 + c) * 3 + j] * g / (1 + exp(-1.702 * g)) * (u + 1);
    }
    return in(m, 1)[i] * sum;
}

static void experts_follow_their_formula(void **state)
{
    struct ct_trial m;
    int bound = 0;

    (void)state;
    create(&m, "experts", "alpha=1.702 limit=0.75 offset=1",
           "real[5,4] statistic[5,2] index[5,2] real[6,3,4] real[6,3,4] real[6,4,3] real[6,3] "
           "real[6,3]");
    run(&m);
    for (int i = 0; i < 20; i++)
        near(out(&m, 0)[i], expert_adds(&m, i / 4 * 2, i % 4, &bound) +
                                expert_adds(&m, i / 4 * 2 + 1, i % 4, &bound));
    assert_in_range(bound, 60, 180);
    ct_trial_finish(&m);
}

/* The gradient of one expert of width 1 with the limit 2, whose other numbers are 1. */
static double limited_dx(double gate, double up)
{
    struct ct_trial m;
    double dx;

    create(&m, "experts_dx", "limit=2",
           "real[1,1] real[1,1] statistic[1,1] index[1,1] real[6,1,1] real[6,1,1] real[6,1,1]");
    for (int i = 0; i < m.op->ins; i++)
        for (int j = 0; i != 3 && j < (i < 3 ? 1 : 6); j++)
            in(&m, i)[j] = i == 4 ? gate : i == 5 ? up : 1;
    run(&m);
    dx = out(&m, 0)[0];
    ct_trial_finish(&m);
    return dx;
}

/* At a limit, but not beyond. */
static void gradients_pass_limits(void **state)
{
    double s = 1 / (1 + exp(-2)), dg = s * (1 + 2 * (1 - s)), du = 2 * s;

    (void)state;
    near(limited_dx(2, 2), 2 * 2 * dg + 2 * du);
    near(limited_dx(2, -2), 2 * -2 * dg - 2 * du);
    near(limited_dx(3, -2), -2 * du);
    near(limited_dx(2, -3), 2 * -2 * dg);
    near(limited_dx(2, 3), 2 * 2 * dg);
}

static void expert_bias_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "expert_bias", NULL, "statistic[5,2] index[5,2] real[6,3]");
    integers(&m, 1)[7] = CT_NO_EXPERT;
    run(&m);
    for (int t = 0; t < 5; t++)
        for (int c = 0; c < 3; c++) {
            int32_t first = integers(&m, 1)[2 * t], second = integers(&m, 1)[2 * t + 1];
            double want = in(&m, 0)[2 * t] * in(&m, 2)[first * 3 + c];

            if (t != 3)
                want += in(&m, 0)[2 * t + 1] * in(&m, 2)[second * 3 + c];
            near(out(&m, 0)[3 * t + c], want);
        }
    ct_trial_finish(&m);
}

/* Every kernel that takes labels or tokens refuses one that is outside, and names it. */
static void indices_out_of_range_are_refused(void **state)
{
    static const struct {
        struct ct_sample sample;
        int input, value;
        const char *message;
    } bad[] = {
        {{"embedding", NULL, "index[4] real[6,2]"}, 0, 6, "token 6 at position 2 is not below 6"},
        {{"embedding", NULL, "index[4] real[6,2]"}, 0, -1, "token -1 at position 2 is not below 6"},
        {{"embedding_grad", "rows=6", "real[4,2] index[4]"}, 1, 6, "token 6 at position 2"},
        {{"cross_entropy", NULL, "real[4,6] label[4]"}, 1, 6, "label 6 at position 2"},
        {{"cross_entropy", NULL, "real[4,6] label[4]"}, 1, -1, "label -1 at position 2"},
        {{"cross_entropy_grad", NULL, "real[] real[4,6] label[4] real[4]"}, 2, 7, "label 7"},
        {{"cross_entropy_partial", "shards=2", "real[4,6] label[4]"},
         1,
         6,
         "label 6 at position 2"},
        {{"cross_entropy_partial", "shards=2", "real[4,6] label[4]"}, 1, -1, "label -1"},
        {{"cross_entropy_partial_grad", NULL, "real[4,2,3] real[4,2,3] real[4,6] label[4]"},
         3,
         6,
         "label 6"},
        {{"linear_cross_entropy", NULL, "real[4,2] real[6,2] label[4]"}, 2, 99, "label 99"},
        {{"linear_cross_entropy_grad", NULL, "real[] real[4,2] real[6,2] label[4]"},
         3,
         -2,
         "label -2"},
        {{"expert_bias", NULL, "real[2,2] index[2,2] real[6,3]"}, 1, 6, "expert 6 at position 2"},
        {{"expert_bias", NULL, "real[2,2] index[2,2] real[6,3]"}, 1, -2, "expert -2"},
        {{"expert_bias_dweights", NULL, "real[2,3] index[2,2] real[6,3]"}, 1, 6, "expert 6"},
        {{"expert_bias_dbias", NULL, "real[2,3] real[2,2] index[2,2] real[6,3]"}, 2, 6, "expert 6"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        struct ct_trial m;

        assert_int_equal(ct_trial_create(&m, &bad[i].sample, CT_F64), 0);
        integers(&m, bad[i].input)[2] = bad[i].value;
        assert_int_equal(ct_trial_run(&m, m.op), CT_EINVAL);
        if (!strstr(ct_error_message(), bad[i].message))
            fail_msg("\"%s\" is not in \"%s\"", bad[i].message, ct_error_message());
        ct_trial_finish(&m);
    }
}

/* ---- the small ones ---- */

static void linear_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "linear", NULL, "real[3,2] real[1,2] real[2,2]");
    run(&m);
    for (int i = 0; i < 3; i++) {
        const double *x = in(&m, 0) + 2 * i, *v = in(&m, 1), *w = in(&m, 2);

        near(out(&m, 0)[i], x[0] * v[0] + x[1] * v[1]);
        near(out(&m, 1)[2 * i], x[0] * w[0] + x[1] * w[1]);
        near(out(&m, 1)[2 * i + 1], x[0] * w[2] + x[1] * w[3]);
    }
    ct_trial_finish(&m);
}

static void embedding_copies_rows(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "embedding", NULL, "index[2,4] real[6,3]");
    run(&m);
    for (int i = 0; i < 24; i++)
        near(out(&m, 0)[i], in(&m, 1)[integers(&m, 0)[i / 3] * 3 + i % 3]);
    ct_trial_finish(&m);
}

static void swiglu_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "swiglu", NULL, "real[4] real[4]");
    in(&m, 0)[0] = 0;
    in(&m, 0)[1] = log(3); /* sigmoid 3/4 */
    in(&m, 0)[2] = -1000;
    in(&m, 0)[3] = 1000;
    run(&m);
    near(out(&m, 0)[0], 0);
    near(out(&m, 0)[1], 0.75 * log(3) * in(&m, 1)[1]);
    near(out(&m, 0)[2], 0);
    near(out(&m, 0)[3], 1000 * in(&m, 1)[3]);
    ct_trial_finish(&m);
}

static void check_clip(double max_norm, double a, double b, double norm, double coefficient)
{
    struct ct_trial m;

    create(&m, "clip_coefficient", NULL, "square[] square[]");
    *(double *)m.op->attrs = max_norm; /* its only attribute */
    *in(&m, 0) = a;
    *in(&m, 1) = b;
    run(&m);
    assert_true(*(float *)(void *)out(&m, 0) == (float)norm || isnan(norm));
    assert_true(*(float *)(void *)out(&m, 1) == (float)coefficient);
    ct_trial_finish(&m);
}

static void clip_coefficient_follows_its_formula(void **state)
{
    (void)state;
    check_clip(1, 9, 16, 5, 1 / (5 + 1e-6));
    check_clip(10, 9, 16, 5, 1);
    check_clip(0, 9, 16, 5, 1);
    check_clip(1, 0, 0, 0, 1);
    check_clip(1, INFINITY, 1, INFINITY, -1);
    check_clip(0, NAN, 1, NAN, -1);
}

static void sign_step_follows_its_formula(void **state)
{
    static const double before[] = {1, 2, 3}, g[] = {-5, 0, 0.125}, steps[] = {0.5, 0, -0.5};

    (void)state;
    for (int clip = 1; clip >= -1; clip -= 2) {
        struct ct_trial m;

        create(&m, "sign_step", "rate=0.5", "factor[] real[3] real[3]");
        *(float *)(void *)in(&m, 0) = (float)clip;
        memcpy(in(&m, 1), before, sizeof(before));
        memcpy(in(&m, 2), g, sizeof(g));
        run(&m);
        for (int i = 0; i < 3; i++)
            assert_true(in(&m, 1)[i] == before[i] + (clip > 0) * steps[i]);
        ct_trial_finish(&m);
    }
}

static void squared_norm_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "squared_norm", NULL, "real[2] real[] real[1,1]");
    in(&m, 0)[0] = 1;
    in(&m, 0)[1] = -2;
    *in(&m, 1) = 3;
    *in(&m, 2) = -4;
    run(&m);
    near(*out(&m, 0), 30);
    ct_trial_finish(&m);
}

static void init_normal_has_its_moments(void **state)
{
    uint64_t stream = ct_rng_stream("in0");
    double mean = 0, square = 0;
    struct ct_trial m;
    bool redrawn = false;

    (void)state;
    create(&m, "init_normal", "std=3 truncate=1.5 seed=11", "real[100,100]");
    run(&m);
    for (uint64_t i = 0; i < 10000; i++) {
        double x = in(&m, 0)[i], n = 2;
        uint64_t draws = 0;

        for (; fabs(n) > 1.5; draws++)
            n = (double)ct_normal(11, stream + draws * 0x9E3779B97F4A7C15u, i);
        near(x, 3 * n);
        redrawn |= draws > 2;
        mean += x / 1e4;
        square += x * x / 1e4;
    }
    assert_true(redrawn);
    assert_true(fabs(mean) < 0.1);
    /* variance of a normal truncated at 1.5: 1 - 2 * 1.5 phi(1.5) / (2 Phi(1.5) - 1) */
    assert_true(fabs(square / 9 - 0.5513) < 0.03);
    ct_trial_finish(&m);
}

static void init_constant_fills(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "init_constant", "value=-2.5", "real[3]");
    run(&m);
    for (int i = 0; i < 3; i++)
        near(in(&m, 0)[i], -2.5);
    ct_trial_finish(&m);
}

/* ---- activations ---- */

static double applied(const char *type, const char *attrs, double x)
{
    struct ct_trial m;
    double y;

    create(&m, type, attrs, "real[1]");
    in(&m, 0)[0] = x;
    run(&m);
    y = out(&m, 0)[0];
    ct_trial_finish(&m);
    return y;
}

/* x / (1 + e^-x), x erfc(-x / root 2) / 2, and that by tanh. */
static void activations_follow_their_formulas(void **state)
{
    (void)state;
    near(applied("silu", NULL, 1), 0.7310585786300049);
    near(applied("silu", NULL, -20), -4.122307236380407e-08);
    near(applied("gelu", NULL, 1), 0.8413447460685429);
    near(applied("gelu", NULL, -3), -0.004049694094890287);
    near(applied("gelu", "approximate=tanh", 1), 0.8411919906082768);
    near(applied("scale", "factor=-2.5", 3), -7.5);
}

static void softmax_follows_its_formula(void **state)
{
    struct ct_trial m;

    (void)state;
    create(&m, "softmax", NULL, "real[3,5]");
    for (int i = 0; i < 5; i++)
        in(&m, 0)[i] = 30 + log(1 + i);
    run(&m);
    for (int i = 0; i < 5; i++)
        near(out(&m, 0)[i], (1 + i) / 15.0);
    ct_trial_finish(&m);
}

static void layer_norm_follows_its_formula(void **state)
{
    struct ct_trial m;
    double sum = 0, square = 0;

    (void)state;
    create(&m, "layer_norm", "eps=0", "real[2,6] real[6] real[6]");
    run(&m);
    for (int i = 0; i < 6; i++) {
        double x = (out(&m, 0)[i] - in(&m, 2)[i]) / in(&m, 1)[i];

        sum += x;
        square += x * x;
        near(out(&m, 1)[0] + x / out(&m, 2)[0], in(&m, 0)[i]);
    }
    near(sum, 0);
    near(square, 6);
    ct_trial_finish(&m);
}

/* A window as wide as the sequence hides nothing, one of 1 leaves a token its own value. */
static void windows_limit_what_a_query_sees(void **state)
{
    static const char operands[] = "real[2,6,2,4] real[2,6,2,4] real[2,6,2,4] -";
    struct ct_trial whole, wide, self;

    (void)state;
    create(&whole, "attention", NULL, operands);
    create(&wide, "attention", "window=6", operands);
    create(&self, "attention", "window=1 causal=false", operands);
    run(&whole);
    run(&wide);
    run(&self);
    for (int i = 0; i < 96; i++) {
        near(out(&wide, 0)[i], out(&whole, 0)[i]);
        near(out(&self, 0)[i], in(&self, 2)[i]);
    }
    ct_trial_finish(&whole);
    ct_trial_finish(&wide);
    ct_trial_finish(&self);
}

/* Queries that see all keys do not depend on the keys' order. */
static void without_a_mask_the_order_of_keys_does_not_matter(void **state)
{
    struct ct_trial m;
    double before[8];

    (void)state;
    create(&m, "attention", "causal=false scale=0.7",
           "real[1,2,1,4] real[1,2,1,4] real[1,2,1,4] -");
    run(&m);
    memcpy(before, out(&m, 0), sizeof(before));
    for (int input = 1; input < 3; input++)
        for (int i = 0; i < 4; i++) {
            double at = in(&m, input)[i];

            in(&m, input)[i] = in(&m, input)[4 + i];
            in(&m, input)[4 + i] = at;
        }
    run(&m);
    for (int i = 0; i < 8; i++)
        near(out(&m, 0)[i], before[i]);
    ct_trial_finish(&m);
}

static void init_uniform_has_its_moments(void **state)
{
    struct ct_trial m;
    double sum = 0, least = 9, most = -9;

    (void)state;
    create(&m, "init_uniform", "low=-1 high=3 seed=11", "real[100,100]");
    run(&m);
    for (int i = 0; i < 10000; i++) {
        sum += in(&m, 0)[i];
        least = fmin(least, in(&m, 0)[i]);
        most = fmax(most, in(&m, 0)[i]);
    }
    assert_true(fabs(sum / 10000 - 1) < 0.05);
    assert_true(least > -1 && least < -0.99 && most < 3 && most > 2.99);
    ct_trial_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_follows_its_formula),
        cmocka_unit_test(attention_sink_follows_its_formula),
        cmocka_unit_test(attention_sink_is_stable),
        cmocka_unit_test(attention_is_stable),
        cmocka_unit_test(attention_on_equal_keys_is_a_mean),
        cmocka_unit_test(rope_is_a_rotation),
        cmocka_unit_test(rope_rotates_neighbours),
        cmocka_unit_test(rope_counts_positions),
        cmocka_unit_test(rope_inverse_undoes_rope),
        cmocka_unit_test(temper_follows_its_formula),
        cmocka_unit_test(document_chunks_differ_where_they_should),
        cmocka_unit_test(rope_frequencies_equal_published_values),
        cmocka_unit_test(yarn_frequencies_equal_those_of_transformers),
        cmocka_unit_test(expand_latent_follows_its_formula),
        cmocka_unit_test(changed_scores_are_as_in_pytorch),
        cmocka_unit_test(copies_of_heads_follow_their_formula),
        cmocka_unit_test(split_is_undone_by_its_gradient),
        cmocka_unit_test(rms_norm_follows_its_formula),
        cmocka_unit_test(rms_norm_of_a_constant_is_its_weight),
        cmocka_unit_test(rms_norm_plain_is_rms_norm_of_ones),
        cmocka_unit_test(scale_rows_follows_its_formula),
        cmocka_unit_test(add_rms_norm_rounds_the_sum),
        cmocka_unit_test(cross_entropy_follows_its_formula),
        cmocka_unit_test(cross_entropy_of_equal_logits_is_a_logarithm),
        cmocka_unit_test(cross_entropy_in_shards_equals_the_whole),
        cmocka_unit_test(activations_follow_their_formulas),
        cmocka_unit_test(softmax_follows_its_formula),
        cmocka_unit_test(layer_norm_follows_its_formula),
        cmocka_unit_test(windows_limit_what_a_query_sees),
        cmocka_unit_test(without_a_mask_the_order_of_keys_does_not_matter),
        cmocka_unit_test(init_uniform_has_its_moments),
        cmocka_unit_test(linear_cross_entropy_equals_both_ops),
        cmocka_unit_test(indices_out_of_range_are_refused),
        cmocka_unit_test(linear_follows_its_formula),
        cmocka_unit_test(embedding_copies_rows),
        cmocka_unit_test(swiglu_follows_its_formula),
        cmocka_unit_test(top_k_follows_its_formula),
        cmocka_unit_test(top_k_orders_equal_ranks),
        cmocka_unit_test(expert_excess_adds_up_to_nothing),
        cmocka_unit_test(experts_follow_their_formula),
        cmocka_unit_test(gradients_pass_limits),
        cmocka_unit_test(expert_bias_follows_its_formula),
        cmocka_unit_test(clip_coefficient_follows_its_formula),
        cmocka_unit_test(sign_step_follows_its_formula),
        cmocka_unit_test(squared_norm_follows_its_formula),
        cmocka_unit_test(init_normal_has_its_moments),
        cmocka_unit_test(init_constant_fills),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("op formulas", tests, NULL, NULL);
}
