/*
 * CUDA's language for kernels, as far as the plugins' use it, in terms of the simulator.
 */
#ifndef CT_CUDA_SIMULATED_CUH
#define CT_CUDA_SIMULATED_CUH

#include <math.h>
#include <string.h>

#include <ctitan/lib/cuda/simulator.h>

#define KERNEL(name, type, threads)                                                                \
    extern "C" __attribute__((visibility("default"))) const size_t name##_bytes;                   \
    const size_t name##_bytes = sizeof(struct type);                                               \
    static void name##_body(const struct type &a);                                                 \
    extern "C" __attribute__((visibility("default"))) void name(const void *arguments)             \
    {                                                                                              \
        struct type copy;                                                                          \
        memcpy((void *)&copy, arguments, sizeof(copy));                                            \
        name##_body(copy);                                                                         \
    }                                                                                              \
    static void name##_body(const struct type &a)
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define DYNAMIC_SHARED(type, name) type *name = (type *)simulated_shared

#define __shared__ static
#define threadIdx simulated_thread
#define blockIdx simulated_block
#define blockDim simulated_threads
#define gridDim simulated_blocks

#define __syncthreads simulated_barrier
#define __syncthreads_or simulated_barrier_or
#define __syncwarp simulated_warp_barrier
#define __popc __builtin_popcount

template <typename T> static inline T __shfl_xor_sync(unsigned lanes, T x, int mask)
{
    uint64_t bits = 0;

    (void)lanes;
    memcpy(&bits, &x, sizeof(x));
    bits = simulated_shuffle_xor(bits, mask);
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t __ballot_sync(unsigned lanes, bool x)
{
    (void)lanes;
    return simulated_ballot(x);
}

template <typename T> static inline T __shfl_up_sync(unsigned lanes, T x, unsigned by)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&x, sizeof(x));
    unsigned lane = simulated_thread.x % 32;

    (void)lanes;
    memcpy(&x, all[lane < by ? lane : lane - by], sizeof(x));
    return x;
}

template <typename T> static inline T __shfl_sync(unsigned lanes, T x, int lane)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&x, sizeof(x));

    (void)lanes;
    memcpy(&x, all[lane % 32], sizeof(x));
    return x;
}

/* Register i holds element pair lane % 4 of row lane / 4 of the 8 x 8 matrix whose rows are where
   lanes 8 i to 8 i + 7 say; transposed: of its transpose. */
static inline void simulated_load_matrices(uint32_t (&r)[4], const void *row, bool transposed)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&row, sizeof(row));
    unsigned lane = simulated_thread.x % 32, pair = lane % 4 * 2;

    for (int i = 0; i < 4; i++) {
        uint32_t word = 0;

        for (unsigned half = 0; half < 2; half++) {
            unsigned at_row = transposed ? pair + half : lane / 4;
            const uint16_t *from;

            memcpy(&from, all[8 * i + (int)at_row], sizeof(from));
            word |= (uint32_t)from[transposed ? lane / 4 : pair + half] << 16 * half;
        }
        r[i] = word;
    }
}

/* c += a b, 16 x 8 x 16, with the lanes' elements as mma.m16n8k16 has them. */
static inline void simulated_multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    uint32_t mine[SIMULATED_WORDS] = {a[0], a[1], a[2], a[3], b0, b1};
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(mine, sizeof(mine));
    unsigned lane = simulated_thread.x % 32;

    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;

        for (unsigned k = 0; k < 16; k++) {
            uint32_t x = all[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2];
            uint32_t y = all[column * 4 + k % 8 / 2][4 + k / 8];
            uint32_t x_bits = k % 2 ? x & 0xffff0000u : x << 16;
            uint32_t y_bits = k % 2 ? y & 0xffff0000u : y << 16;
            float xf, yf;

            memcpy(&xf, &x_bits, sizeof(xf));
            memcpy(&yf, &y_bits, sizeof(yf));
            c[i] += xf * yf;
        }
    }
}

/* ---- products of warpgroups ---- */

/* An operand of wgmma lies as its descriptor says (PTX ISA: bits 0 to 13 its address, 16 to 29 and
   32 to 45 the two distances, all in 16 bytes, 62 and 63 the swizzle), here always in rows of 128
   bytes, whose chunks of 16 bytes are permuted by bits 7 to 9 of their addresses. */
struct simulated_operand {
    uint64_t start, leading, stride;
    bool turned, known; /* known: the descriptor is one of these */
};

static inline struct simulated_operand simulated_describe(uint64_t descriptor, bool turned)
{
    struct simulated_operand o = {(descriptor & 0x3fff) << 4, (descriptor >> 16 & 0x3fff) << 4,
                                  (descriptor >> 32 & 0x3fff) << 4, turned,
                                  (descriptor & ~0x3fff3fff3fffull) == 1ull << 62};

    return o;
}

/* Bytes from `byte` on of row i; turned, of depth `byte` / 2. */
static inline const unsigned char *simulated_at(const struct simulated_operand *o, unsigned i,
                                                unsigned byte)
{
    uint64_t k = byte / 2;
    uint64_t at =
        o->start + (o->turned ? i / 64 * o->leading + i % 64 * 2 + k / 8 * o->stride + k % 8 * 128
                              : i / 8 * o->stride + i % 8 * 128 + byte);

    return simulated_shared + (at ^ (at >> 7 & 7) << 4);
}

/* Row and column of sum i of a thread. */
static inline unsigned simulated_sum_row(unsigned i)
{
    return simulated_thread.x / 32 % 4 * 16 + i / 2 % 2 * 8 + simulated_thread.x % 32 / 4;
}

static inline unsigned simulated_sum_column(unsigned i)
{
    return i / 4 * 8 + simulated_thread.x % 4 * 2 + i % 2;
}

/* 16 depths of a row in bfloat16 */
static inline void simulated_load_row(const struct simulated_operand *o, unsigned i, float (&x)[16])
{
    for (unsigned k = 0; k < 16; k++) {
        uint16_t half;
        uint32_t bits;

        memcpy(&half, simulated_at(o, i, 2 * k), sizeof(half));
        bits = o->known ? (uint32_t)half << 16 : 0x7fc00000;
        memcpy(&x[k], &bits, sizeof(bits));
    }
}

/* 64 x 256 x 16 */
static inline void simulated_multiply(const struct simulated_product *p)
{
    struct simulated_operand a = simulated_describe(p->a, p->a_turned);
    struct simulated_operand b = simulated_describe(p->b, p->b_turned);
    float x[2][16], y[16];

    for (unsigned half = 0; half < 2; half++)
        simulated_load_row(&a, simulated_sum_row(2 * half), x[half]);
    for (unsigned j = 0; j < 64; j++) {
        unsigned i = j / 2 * 4 + j % 2; /* of the first row; the other's is 2 later */

        simulated_load_row(&b, simulated_sum_column(i), y);
        for (unsigned half = 0; half < 2; half++)
            for (unsigned k = 0; k < 16; k++)
                p->sums[i + 2 * half] += x[half][k] * y[k];
    }
}

static inline void simulated_wgmma(float (&c)[128], uint64_t a, uint64_t b, bool a_turned,
                                   bool b_turned)
{
    struct simulated_product p = {simulated_multiply, c, a, b, a_turned, b_turned, true};

    simulated_begin_product(&p);
}

/* Numbers of e4m3, by code, and the powers of two of their leading bits, no less than the smallest
   normal number's; of 0 far below. */
struct simulated_numbers {
    float value[256];
    int16_t exponent[256];

    __attribute__((no_sanitize("thread"))) simulated_numbers()
    {
        for (unsigned code = 0; code < 256; code++) {
            int power = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
            float size =
                power ? ldexpf((float)(8 + mantissa), power - 10) : (float)mantissa * 0x1p-9f;

            if ((code & 127) == 127)
                size = NAN;
            value[code] = code & 128 ? -size : size;
            exponent[code] = (int16_t)(size == 0 ? -512 : power ? power - 7 : -6);
        }
    }
};

/* Made once, by any thread: no race of a kernel (simulator/races.h). */
__attribute__((no_sanitize("thread"))) static inline const struct simulated_numbers &
simulated_numbers_of_codes()
{
    static const struct simulated_numbers numbers;

    return numbers;
}

/* 32 depths of a row in 8 bits */
struct simulated_codes {
    float value[32];
    int16_t exponent[32];
};

static inline void simulated_load_codes(const struct simulated_operand *o, unsigned i,
                                        struct simulated_codes *x)
{
    const struct simulated_numbers &numbers = simulated_numbers_of_codes();

    for (unsigned chunk = 0; chunk < 32; chunk += 16) {
        const unsigned char *code = simulated_at(o, i, chunk);

        for (unsigned k = 0; k < 16; k++) {
            x->value[chunk + k] = o->known ? numbers.value[code[k]] : NAN;
            x->exponent[chunk + k] = numbers.exponent[code[k]];
        }
    }
}

static inline float simulated_add_codes(float sum, const struct simulated_codes *x,
                                        const struct simulated_codes *y)
{
    float product[32];
    int16_t most = -1024;

    for (int k = 0; k < 32; k++) {
        int16_t e = (int16_t)(x->exponent[k] + y->exponent[k]);

        most = e > most ? e : most;
        product[k] = x->value[k] * y->value[k];
    }
    if (simulated_exact) {
        for (int k = 0; k < 32; k++)
            sum += product[k];
        return sum;
    }
    return simulated_add_products(sum, product, 32, most);
}

/* 64 x 128 x 32, of codes */
static inline void simulated_multiply_codes(const struct simulated_product *p)
{
    struct simulated_operand a = simulated_describe(p->a, false);
    struct simulated_operand b = simulated_describe(p->b, false);
    struct simulated_codes x[2], y;

    for (unsigned half = 0; half < 2; half++)
        simulated_load_codes(&a, simulated_sum_row(2 * half), &x[half]);
    for (unsigned j = 0; j < 32; j++) {
        unsigned i = j / 2 * 4 + j % 2;

        simulated_load_codes(&b, simulated_sum_column(i), &y);
        for (unsigned half = 0; half < 2; half++) {
            float *sum = &p->sums[i + 2 * half];

            *sum = simulated_add_codes(p->adds ? *sum : 0, &x[half], &y);
        }
    }
}

static inline void simulated_wgmma_codes(float (&c)[64], uint64_t a, uint64_t b, bool adds)
{
    struct simulated_product p = {simulated_multiply_codes, c, a, b, false, false, adds};

    simulated_begin_product(&p);
}

static inline int min(int x, int y)
{
    return x < y ? x : y;
}

static inline int max(int x, int y)
{
    return x > y ? x : y;
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* Atomic accesses are no races (simulator/races.h). */
#define SIMULATED_ATOMIC __attribute__((no_sanitize("thread"))) static inline

SIMULATED_ATOMIC int atomicMin(int *at, int x)
{
    int old = *at;

    *at = x < old ? x : old;
    return old;
}

SIMULATED_ATOMIC int atomicAdd(int *at, int x)
{
    int old = *at;

    *at = old + x;
    return old;
}

/* Rounded apart: the compiler of the device joins products and sums. */
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}

static inline float __fadd_rn(float x, float y)
{
    return x + y;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(M_PI * (double)x);
    *c = (float)cos(M_PI * (double)x);
}

#endif
