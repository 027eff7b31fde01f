/*
 * pack_mxfp4 FOLDER PACKED DENSE: writes a Hugging Face folder's tensors twice, with other numbers
 * in those of three dimensions: in PACKED these are MXFP4, as gpt-oss is published, blocks along
 * the last but one dimension; in DENSE the same numbers in float32. config.json is not written.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/safetensors.h>

static uint64_t state = 1;

static unsigned char draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned char)(state >> 56);
}

/* Not -0, which an update by 0 may turn into 0. */
static unsigned char draw_code(void)
{
    unsigned char code = draw() & 15;

    return code == 8 ? 0 : code;
}

/* w[e, n, o]: blocks[e, o, n/32, 16], scales[e, o, n/32], and dense as w. */
static void make(struct ct_arena *arena, const struct ct_weight *w, struct ct_weight *blocks,
                 struct ct_weight *scales, struct ct_weight *dense)
{
    static const float numbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    int64_t e = w->shape[0], n = w->shape[1], o = w->shape[2], count = e * o * n;
    unsigned char *bytes = ct_arena_alloc(arena, (size_t)count / 2);
    unsigned char *powers = ct_arena_alloc(arena, (size_t)count / 32);
    float *values = ct_arena_alloc(arena, (size_t)count * sizeof(float));

    for (int64_t i = 0; i < count / 2; i++)
        bytes[i] = draw_code() | (unsigned char)(draw_code() << 4);
    for (int64_t i = 0; i < count / 32; i++)
        powers[i] = 118 + draw() % 8;
    for (int64_t i = 0; i < count; i++) { /* in the order of the blocks */
        int code = i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
        float value = ldexpf(numbers[code & 7], powers[i / 32] - 127);
        int64_t row = i / n % o, column = i % n;

        values[(i / (n * o) * n + column) * o + row] = code & 8 ? -value : value;
    }
    *dense = (struct ct_weight){w->name, CT_F32, 3, {e, n, o}, values};
    *blocks = (struct ct_weight){
        ct_arena_printf(arena, "%s_blocks", w->name), CT_U8, 4, {e, o, n / 32, 16}, bytes};
    *scales = (struct ct_weight){
        ct_arena_printf(arena, "%s_scales", w->name), CT_U8, 3, {e, o, n / 32}, powers};
}

static int write(const char *folder, const struct ct_weight *weights, size_t count)
{
    struct ct_arena arena = {0};
    int rc = ct_file_make_folder(folder);

    if (rc == 0)
        rc = ct_safetensors_write(ct_arena_printf(&arena, "%s/model.safetensors", folder), weights,
                                  count);
    ct_arena_finish(&arena);
    return rc;
}

int main(int argc, char **argv)
{
    struct ct_arena arena = {0};
    struct ct_weight *packed, *dense;
    struct ct_weights *from;
    size_t count = 0, all;

    if (argc != 4 || ct_weights_open(argv[1], &from) < 0) {
        printf("%s\n", argc == 4 ? ct_error_message() : "pack_mxfp4 FOLDER PACKED DENSE");
        return 2;
    }
    all = ct_weights_count(from);
    packed = ct_arena_array(&arena, struct ct_weight, 2 * all);
    dense = ct_arena_array(&arena, struct ct_weight, all);
    for (size_t i = 0; i < all; i++) {
        const struct ct_weight *w = ct_weights_at(from, i);

        packed[count] = dense[i] = *w;
        if (w->ndim == 3) {
            make(&arena, w, &packed[count], &packed[count + 1], &dense[i]);
            count++;
        }
        count++;
    }
    if (write(argv[2], packed, count) < 0 || write(argv[3], dense, all) < 0) {
        printf("%s\n", ct_error_message());
        return 1;
    }
    ct_weights_close(from);
    ct_arena_finish(&arena);
    return 0;
}
