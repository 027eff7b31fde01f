/*
 * Rotary embedding, rotate-half: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s), where x1 and x2 are the
 * halves of a head and c, s the cosine and sine of position times frequency (Su et al. 2021).
 *
 * The angle is reduced in float64 and its sine and cosine are computed for each token; all heads of
 * the token share them. That costs less than reading a table would.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include "runs.h"
#include "vector.h"

#define PAIRS 1024 /* at most, in a head */

struct state {
    int64_t angles; /* pairs in a head; or, if a head is one vector, its elements */
    bool vector;
    double *turns; /* by angle: quarter turns per position; padded to whole vectors */
    float *sign;   /* of the sine */
};

typedef double vd __attribute__((vector_size(8 * CPU_LANES)));

/* Sine and cosine of quarter turns: minimax on [-1/2, 1/2] turned by the number of whole ones. */
CPU_INLINE void sine_cosine(const double *turns, double position, vf *sine, vf *cosine)
{
    vd angle, whole;
    vf r, z, s, c;
    vi quadrant;

    memcpy(&angle, turns, sizeof(angle));
    angle *= position;
    whole = angle + 0x1.8p52 - 0x1.8p52;
    quadrant = __builtin_convertvector(whole, vi);
    r = __builtin_convertvector(angle - whole, vf);
    z = r * r;
    s = ((-4.6016578875e-3f * z + 7.9680032769e-2f) * z - 6.4596346023e-1f) * z + 1.5707963217f;
    c = ((9.0376654164e-4f * z - 2.0860165111e-2f) * z + 2.5366922597e-1f) * z - 1.2337005426f;
    s = s * r;
    c = c * z + 1.0f;
    *sine = (vf)((vi)v_select((quadrant & 1) != 0, c, s) ^ ((quadrant & 2) << 30));
    *cosine = (vf)((vi)v_select((quadrant & 1) != 0, s, c) ^ (((quadrant + 1) & 2) << 30));
}

struct angles {
    float cosine[PAIRS], sine[PAIRS];
};

static void turn(const struct state *s, int64_t position, struct angles *a)
{
    for (int64_t i = 0; i < s->angles; i += CPU_LANES) {
        vf sine, cosine;

        sine_cosine(s->turns + i, (double)position, &sine, &cosine);
        v_store(a->sine + i, sine * v_load(s->sign + i));
        v_store(a->cosine + i, cosine);
    }
}

CPU_INLINE void rotate(enum ct_dtype dtype, const void *x, void *y, int64_t half,
                       const struct angles *a)
{
    int64_t upper = half * (int64_t)(dtype == CT_F32 ? sizeof(float) : sizeof(uint16_t));
    const void *x_upper = (const char *)x + upper;
    void *y_upper = (char *)y + upper;

    for (int64_t i = 0; i < half; i += CPU_LANES) {
        vf c = v_load(a->cosine + i), s = v_load(a->sine + i);
        vf x1 = v_get(dtype, x, i, half), x2 = v_get(dtype, x_upper, i, half);

        v_put(dtype, y, i, half, x1 * c - x2 * s);
        v_put(dtype, y_upper, i, half, x2 * c + x1 * s);
    }
}

/* A head that is one vector: y = x cosine + (halves of x swapped) sine, the first half of it
 * negated. */
#if CPU_LANES == 16
#define V_SWAP 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#elif CPU_LANES == 8
#define V_SWAP 4, 5, 6, 7, 0, 1, 2, 3
#else
#define V_SWAP 2, 3, 0, 1
#endif

CPU_INLINE void rotate_vector(enum ct_dtype dtype, const void *x, void *y, vf cosine, vf sine)
{
    vf v = v_get(dtype, x, 0, CPU_LANES);
    vf swapped = __builtin_shufflevector(v, v, V_SWAP);

    v_put(dtype, y, 0, CPU_LANES, v * cosine + swapped * sine);
}

CPU_INLINE void rotate_heads(enum ct_dtype dtype, const struct state *s, const struct ct_tensor *x,
                             const struct ct_tensor *y, const char *from, char *to,
                             const struct angles *a)
{
    int64_t size = dtype == CT_F32 ? 4 : 2, heads = x->shape[2];
    int64_t x_step = x->stride[2] * size, y_step = y->stride[2] * size;
    vf cosine = v_load(a->cosine), sine = v_load(a->sine);

    if (s->vector)
        for (int64_t h = 0; h < heads; h++, from += x_step, to += y_step)
            rotate_vector(dtype, from, to, cosine, sine);
    else
        for (int64_t h = 0; h < heads; h++, from += x_step, to += y_step)
            rotate(dtype, from, to, s->angles, a);
}

/* first: position of token 0 where positions are counted. */
static void rotate_token(const struct ct_launch *launch, int64_t b, int64_t t, int64_t first)
{
    const struct state *s = launch->state;
    const struct ct_tensor *x = launch->in, *y = launch->out, *p = x + 1;
    bool positions = launch->ins > 1 && p->data;
    int64_t size = (int64_t)ct_dtype_size(x->dtype);
    const char *from = (const char *)x->data + (b * x->stride[0] + t * x->stride[1]) * size;
    char *to = (char *)y->data + (b * y->stride[0] + t * y->stride[1]) * size;
    struct angles angles;

    turn(s, positions ? ((const int32_t *)p->data)[b * p->stride[0] + t * p->stride[1]] : first + t,
         &angles);
    if (x->dtype == CT_F32)
        rotate_heads(CT_F32, s, x, y, from, to, &angles);
    else
        rotate_heads(CT_BF16, s, x, y, from, to, &angles);
}

bool CPU_ISA(cpu_rope_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *x = prepare->in;
    const struct ct_rope *rope = prepare->op->attrs;
    bool positions = prepare->ins > 1 && prepare->present[1];

    return !rope->first && !rope->interleaved && cpu_is_compute_dtype(x->dtype) &&
           prepare->out->dtype == x->dtype && x->ndim == 4 && x->shape[3] % 2 == 0 &&
           x->shape[3] / 2 <= PAIRS && (!positions || prepare->in[1].dtype == CT_I32);
}

int CPU_ISA(cpu_rope_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    const struct ct_rope *rope = prepare->op->attrs;
    int64_t size = prepare->in->shape[3], half = size / 2;
    float sign = rope->inverse ? -1 : 1;

    s->vector = size == CPU_LANES;
    s->angles = s->vector ? size : half;
    s->turns = ct_arena_array(prepare->arena, double, s->angles + CPU_LANES);
    s->sign = ct_arena_array(prepare->arena, float, s->angles + CPU_LANES);
    for (int64_t i = 0; i < s->angles; i++) {
        s->turns[i] = ct_rope_frequency(rope, size, i % half) * M_2_PI;
        s->sign[i] = s->vector && i < half ? -sign : sign;
    }
    prepare->state = s;
    return 0;
}

int CPU_ISA(cpu_rope_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *x = launch->in;
    int64_t batch = x->shape[0], tokens = x->shape[1];
    int64_t first = ct_launch_offset(launch, launch->op->in[0], 1);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(x)))
    for (int64_t i = 0; i < batch * tokens; i++)
        rotate_token(launch, i / tokens, i % tokens, first);
    return 0;
}
