/*
 * Rotary embedding: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s). Here c and s are cosine and sine of
 * position times frequency (Su et al. 2021). x1 and x2 are the halves of a head, or neighbours.
 *
 * The angle is reduced in float64 and its sine and cosine are computed for each token; all heads of
 * the token share them. That costs less than reading a table would.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define ANGLES 2048 /* at most, in a head */

/* The rotated part of a head. */
enum form {
    HALVES,
    ONE_VECTOR, /* halves of one vector */
    NEIGHBOURS,
};

struct state {
    enum form form;
    int64_t first, size; /* of the rotated elements of a head */
    int64_t rest;        /* elements behind them */
    int64_t angles;      /* pairs; for one vector, its elements */
    double *turns;       /* by angle: quarter turns per position; padded to whole vectors */
    float *sign;         /* of the sine, times the magnitude */
    float magnitude;     /* of the cosine */
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
    float cosine[ANGLES], sine[ANGLES]; /* by element for one vector and neighbours, else by pair */
};

/* Lanes of a vector that is the halves of a head, swapped; of neighbours, swapped; and those of
   pairs, each twice, from the first and from the middle one on. */
#if CPU_LANES == 16
#define V_SWAP 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#define V_NEIGHBOURS 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define V_LOWER 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7
#define V_UPPER 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15
#elif CPU_LANES == 8
#define V_SWAP 4, 5, 6, 7, 0, 1, 2, 3
#define V_NEIGHBOURS 1, 0, 3, 2, 5, 4, 7, 6
#define V_LOWER 0, 0, 1, 1, 2, 2, 3, 3
#define V_UPPER 4, 4, 5, 5, 6, 6, 7, 7
#else
#define V_SWAP 2, 3, 0, 1
#define V_NEIGHBOURS 1, 0, 3, 2
#define V_LOWER 0, 0, 1, 1
#define V_UPPER 2, 2, 3, 3
#endif

/* Angles of pairs from i on, for both elements of each; the first one's sine is negated. */
CPU_INLINE void spread(struct angles *a, int64_t i, vf sine, vf cosine)
{
    vu first = (vu)(v_iota() + 1) << 31;

    v_store(a->sine + 2 * i, (vf)((vu)__builtin_shufflevector(sine, sine, V_LOWER) ^ first));
    v_store(a->sine + 2 * i + CPU_LANES,
            (vf)((vu)__builtin_shufflevector(sine, sine, V_UPPER) ^ first));
    v_store(a->cosine + 2 * i, __builtin_shufflevector(cosine, cosine, V_LOWER));
    v_store(a->cosine + 2 * i + CPU_LANES, __builtin_shufflevector(cosine, cosine, V_UPPER));
}

static void turn(const struct state *s, int64_t position, struct angles *a)
{
    for (int64_t i = 0; i < s->angles; i += CPU_LANES) {
        vf sine, cosine;

        sine_cosine(s->turns + i, (double)position, &sine, &cosine);
        sine *= v_load(s->sign + i);
        cosine *= s->magnitude;
        if (s->form == NEIGHBOURS) {
            spread(a, i, sine, cosine);
            continue;
        }
        v_store(a->sine + i, sine);
        v_store(a->cosine + i, cosine);
    }
}

CPU_INLINE void rotate_halves(enum ct_dtype dtype, const void *x, void *y, int64_t half,
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
CPU_INLINE void rotate_vector(enum ct_dtype dtype, const void *x, void *y, vf cosine, vf sine)
{
    vf v = v_get(dtype, x, 0, CPU_LANES);
    vf swapped = __builtin_shufflevector(v, v, V_SWAP);

    v_put(dtype, y, 0, CPU_LANES, v * cosine + swapped * sine);
}

CPU_INLINE void rotate_neighbours(enum ct_dtype dtype, const void *x, void *y, int64_t n,
                                  const struct angles *a)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf v = v_get(dtype, x, i, n);
        vf swapped = __builtin_shufflevector(v, v, V_NEIGHBOURS);

        v_put(dtype, y, i, n, v * v_load(a->cosine + i) + swapped * v_load(a->sine + i));
    }
}

CPU_INLINE void rotate_head(enum ct_dtype dtype, const struct state *s, const char *x, char *y,
                            const struct angles *a)
{
    if (s->form == NEIGHBOURS)
        rotate_neighbours(dtype, x, y, s->size, a);
    else if (s->form == HALVES)
        rotate_halves(dtype, x, y, s->angles, a);
    else
        rotate_vector(dtype, x, y, v_load(a->cosine), v_load(a->sine));
}

CPU_INLINE void rotate_heads(enum ct_dtype dtype, const struct state *s, const struct ct_tensor *x,
                             const struct ct_tensor *y, const char *from, char *to,
                             const struct angles *a)
{
    int64_t size = dtype == CT_F32 ? 4 : 2, heads = x->shape[2], first = s->first * size;
    int64_t x_step = x->stride[2] * size, y_step = y->stride[2] * size;
    int64_t end = first + s->size * size, rest = s->rest * size;
    vf cosine = v_load(a->cosine), sine = v_load(a->sine);

    if ((first || rest) && from != to)
        for (int64_t h = 0; h < heads; h++, from += x_step, to += y_step) {
            memcpy(to, from, (size_t)first);
            memcpy(to + end, from + end, (size_t)rest);
            rotate_head(dtype, s, from + first, to + first, a);
        }
    else if (s->form == ONE_VECTOR)
        for (int64_t h = 0; h < heads; h++, from += x_step, to += y_step)
            rotate_vector(dtype, from + first, to + first, cosine, sine);
    else
        for (int64_t h = 0; h < heads; h++, from += x_step, to += y_step)
            rotate_head(dtype, s, from + first, to + first, a);
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

static int64_t rotated(const struct ct_prepare *prepare)
{
    const struct ct_rope *rope = prepare->op->attrs;

    return rope->rotated ? rope->rotated : prepare->in->shape[3] - rope->first;
}

bool CPU_ISA(cpu_rope_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *x = prepare->in;
    bool positions = prepare->ins > 1 && prepare->present[1];

    return cpu_is_compute_dtype(x->dtype) && prepare->out->dtype == x->dtype && x->ndim == 4 &&
           rotated(prepare) % 2 == 0 && rotated(prepare) <= ANGLES &&
           (!positions || prepare->in[1].dtype == CT_I32);
}

int CPU_ISA(cpu_rope_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    const struct ct_rope *rope = prepare->op->attrs;
    int64_t size = rotated(prepare), half = size / 2;
    float sign;

    s->form = rope->interleaved ? NEIGHBOURS : size == CPU_LANES ? ONE_VECTOR : HALVES;
    s->first = rope->first;
    s->size = size;
    s->rest = prepare->in->shape[3] - rope->first - size;
    s->magnitude = rope->magnitude > 0 ? (float)rope->magnitude : 1;
    sign = rope->inverse ? -s->magnitude : s->magnitude;
    s->angles = s->form == ONE_VECTOR ? size : half;
    s->turns = ct_arena_array(prepare->arena, double, s->angles + CPU_LANES);
    s->sign = ct_arena_array(prepare->arena, float, s->angles + CPU_LANES);
    for (int64_t i = 0; i < s->angles; i++) {
        s->turns[i] = ct_rope_frequency(rope, size, i % half) * M_2_PI;
        s->sign[i] = s->form == ONE_VECTOR && i < half ? -sign : sign;
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
