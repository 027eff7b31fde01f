/*
 * safetensors: what is written reads back, whole and in shards, in every dtype; a folder of shards
 * is one set of weights; no mutation of a file does worse than a clear failure; and a head that
 * is tied to the embedding is the embedding.
 */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/log.h>

#include "plugin_under_test.h"

static const char *folder;
static char path[4096];

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    return 0;
}

static void write_raw(const char *name, const char *header, size_t length, size_t data)
{
    size_t size = 8 + strlen(header) + data;
    unsigned char *file = calloc(1, size + 1);
    char full[8192];

    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, strlen(header));
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    test_write(full, file, size);
    free(file);
}

static void test_round_trip(void **state)
{
    float numbers[24], back[24];
    uint8_t odd[3] = {1, 2, 255};
    double scalar = -0.1;
    const struct ct_weight weights[] = {
        {"odd \"name\"", CT_U8, 1, {3}, odd},
        {"numbers", CT_F32, 3, {2, 3, 4}, numbers},
        {"scalar", CT_F64, 0, {0}, &scalar},
        {"none", CT_F32, 2, {0, 5}, numbers},
    };
    struct ct_weights *w;
    double half;

    (void)state;
    for (int i = 0; i < 24; i++)
        numbers[i] = (float)i * 1.25f;
    assert_int_equal(ct_safetensors_write(path, weights, 4), 0);
    assert_int_equal(ct_weights_open(folder, &w), 0);
    assert_int_equal(ct_weights_count(w), 4);
    for (int i = 0; i < 4; i++) {
        const struct ct_weight *found = ct_weights_find(w, weights[i].name);

        assert_non_null(found);
        assert_int_equal(found->dtype, weights[i].dtype);
        assert_int_equal(found->ndim, weights[i].ndim);
        assert_memory_equal(found->shape, weights[i].shape, sizeof(int64_t) * (size_t)found->ndim);
        assert_memory_equal(found->data, weights[i].data,
                            (size_t)ct_shape_count(found->ndim, found->shape) *
                                ct_dtype_size(found->dtype));
        assert_int_equal((uintptr_t)found->data % ct_dtype_size(found->dtype), 0);
    }
    assert_null(ct_weights_find(w, "other"));
    assert_int_equal(ct_weights_read(ct_weights_find(w, "numbers"), (int64_t[]){0, 0, 0},
                                     (int64_t[]){2, 3, 4}, CT_F32, back),
                     0);
    assert_memory_equal(back, numbers, sizeof(back));
    assert_int_equal(ct_weights_read(ct_weights_find(w, "scalar"), NULL, NULL, CT_F64, &half), 0);
    assert_true(half == scalar);
    ct_weights_close(w);
}

/* Only the part for text of a model for several kinds of input is read. */
static void test_text(void **state)
{
    static const char *const names[][2] = {
        {"language_model.model.norm.weight", "language_model.lm_head.weight"},
        {"model.language_model.norm.weight", "lm_head.weight"}};
    float numbers[2] = {1, 2};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(names); i++) {
        const struct ct_weight weights[] = {
            {names[i][0], CT_F32, 1, {2}, numbers},
            {"vision_model.layernorm.weight", CT_F32, 1, {2}, numbers},
            {"model.visual.norm.weight", CT_F32, 1, {2}, numbers},
            {"mtp.norm.weight", CT_F32, 1, {2}, numbers},
            {names[i][1], CT_F32, 1, {1}, numbers + 1},
        };
        struct ct_weights *w;

        assert_int_equal(ct_safetensors_write(path, weights, CT_COUNT(weights)), 0);
        assert_int_equal(ct_weights_open(folder, &w), 0);
        assert_int_equal(ct_weights_count(w), 2);
        assert_non_null(ct_weights_find(w, "model.norm.weight"));
        assert_non_null(ct_weights_find(w, "lm_head.weight"));
        ct_weights_close(w);
    }
}

/* Blocks of MXFP4 and their scales are one weight; its numbers are those of the format. */
static void test_mxfp4(void **state)
{
    unsigned char blocks[2 * 2 * 16], scales[] = {127, 126, 130, 0};
    static const float numbers[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    const struct ct_weight weights[] = {{"w_blocks", CT_U8, 3, {2, 2, 16}, blocks},
                                        {"w_scales", CT_U8, 2, {2, 2}, scales}};
    const struct ct_weight *w;
    struct ct_weights *all;
    float back[2 * 3];

    (void)state;
    for (int i = 0; i < 64; i++)
        blocks[i] = (unsigned char)(i * 37);
    assert_int_equal(ct_safetensors_write(path, weights, 2), 0);
    assert_int_equal(ct_weights_open(folder, &all), 0);
    assert_int_equal(ct_weights_count(all), 1);
    w = ct_weights_find(all, "w");
    assert_true(w && w->ndim == 2 && w->shape[0] == 2 && w->shape[1] == 64);
    for (int64_t at = 0; at < 62; at++) {
        assert_int_equal(ct_weights_read(w, (int64_t[]){0, at}, (int64_t[]){2, 3}, CT_F32, back),
                         0);
        for (int i = 0; i < 6; i++) {
            int64_t number = i / 3 * 64 + at + i % 3;
            int code = blocks[number / 2] >> (number % 2 ? 4 : 0) & 15;
            float want = ldexpf(numbers[code & 7], scales[number / 32] - 127);

            assert_true(back[i] == (code & 8 ? -want : want));
        }
    }
    ct_weights_close(all);
}

/* The scale 255 is NaN, which a block then is. */
static void test_mxfp4_nan(void **state)
{
    unsigned char blocks[2 * 16], scales[] = {255, 254};
    const struct ct_weight weights[] = {{"w_blocks", CT_U8, 3, {1, 2, 16}, blocks},
                                        {"w_scales", CT_U8, 2, {1, 2}, scales}};
    struct ct_weights *all;
    float back[64];

    (void)state;
    memset(blocks, 0x22, sizeof(blocks));
    assert_int_equal(ct_safetensors_write(path, weights, 2), 0);
    assert_int_equal(ct_weights_open(folder, &all), 0);
    assert_int_equal(ct_weights_read(ct_weights_find(all, "w"), (int64_t[]){0, 0},
                                     (int64_t[]){1, 64}, CT_F32, back),
                     0);
    assert_true(isnan(back[0]) && isnan(back[31]));
    assert_true(back[32] == 0x1p127F && back[63] == 0x1p127F);
    ct_weights_close(all);
}

/* Blocks or scales alone, and such that do not fit. */
static void test_damaged_mxfp4(void **state)
{
    unsigned char bytes[2 * 2 * 32] = {0};
    const struct ct_weight cases[][2] = {
        {{"w_blocks", CT_U8, 3, {2, 2, 16}, bytes}, {"x", CT_U8, 1, {1}, bytes}},
        {{"w_blocks", CT_U8, 3, {2, 2, 16}, bytes}, {"w_scales", CT_U8, 2, {2, 1}, bytes}},
        {{"w_blocks", CT_U8, 3, {2, 2, 16}, bytes}, {"w_scales", CT_U8, 3, {2, 2, 1}, bytes}},
        {{"w_blocks", CT_U8, 3, {2, 2, 16}, bytes}, {"w_scales", CT_F32, 2, {2, 2}, bytes}},
        {{"w_blocks", CT_U8, 3, {2, 4, 8}, bytes}, {"w_scales", CT_U8, 2, {2, 4}, bytes}},
        {{"w_blocks", CT_U8, 1, {16}, bytes}, {"w_scales", CT_U8, 0, {0}, bytes}},
        {{"w_blocks", CT_U8, 3, {0, (int64_t)1 << 59, 16}, bytes},
         {"w_scales", CT_U8, 2, {0, (int64_t)1 << 59}, bytes}},
        {{"w_scales", CT_U8, 2, {2, 2}, bytes}, {"x", CT_U8, 1, {1}, bytes}},
    };
    struct ct_weights *all;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        assert_int_equal(ct_safetensors_write(path, cases[i], 2), 0);
        assert_int_equal(ct_weights_open(folder, &all), CT_ECONFIG);
        assert_non_null(strstr(ct_error_message(), cases[i][0].name));
        assert_non_null(strstr(ct_error_message(), "MXFP4"));
    }
}

/* Every shard of a tensor, against its definition. */
static void test_shards(void **state)
{
    float numbers[60], back[60];
    const struct ct_weight weight = {"w", CT_F32, 3, {3, 4, 5}, numbers};

    (void)state;
    for (int i = 0; i < 60; i++)
        numbers[i] = (float)i;
    for (int code = 0; code < 6 * 10 * 15; code++) {
        static const int64_t begins[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 1}, {1, 2},
                                            {2, 1}, {0, 4}, {1, 3}, {2, 2}, {3, 1},
                                            {0, 5}, {1, 4}, {2, 3}, {3, 2}, {4, 1}};
        const int64_t *a = begins[code % 6], *b = begins[code / 6 % 10], *c = begins[code / 60];
        int64_t offset[] = {a[0], b[0], c[0]}, shape[] = {a[1], b[1], c[1]}, at = 0;

        assert_int_equal(ct_weights_read(&weight, offset, shape, CT_F32, back), 0);
        for (int64_t i = 0; i < shape[0]; i++)
            for (int64_t j = 0; j < shape[1]; j++)
                for (int64_t k = 0; k < shape[2]; k++)
                    assert_true(back[at++] == (float)(((a[0] + i) * 4 + b[0] + j) * 5 + c[0] + k));
    }
    assert_int_equal(
        ct_weights_read(&weight, (int64_t[]){0, 2, 0}, (int64_t[]){1, 3, 5}, CT_F32, back),
        CT_EINVAL);
    assert_message("outside dimension 1");
    assert_int_equal(
        ct_weights_read(&weight, (int64_t[]){0, 0, 0}, (int64_t[]){0, 4, 5}, CT_F32, back), 0);
}

/* All 65536 halves of both kinds become the float that ct_tensor_load says; from any address. */
static void test_conversion(void **state)
{
    static unsigned char halves[2 * 65536 + 1];
    static float floats[65536];
    static uint16_t back[65536];
    const enum ct_dtype kinds[] = {CT_BF16, CT_F16};
    int64_t zero = 0, count = 65536;

    (void)state;
    for (int i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;

        memcpy(halves + 1 + 2 * i, &h, 2);
    }
    for (size_t kind = 0; kind < 2; kind++) {
        const struct ct_weight weight = {"h", kinds[kind], 1, {65536}, halves + 1};
        const struct ct_weight wide = {"f", CT_F32, 1, {65536}, floats};

        assert_int_equal(ct_weights_read(&weight, &zero, &count, CT_F32, floats), 0);
        for (int i = 0; i < 65536; i++) {
            uint16_t h = (uint16_t)i;
            struct ct_tensor t = ct_tensor_dense(&h, kinds[kind], 0, NULL);
            double value = ct_tensor_load(&t, 0);

            assert_true((double)floats[i] == value || (isnan(floats[i]) && isnan(value)));
        }
        assert_int_equal(ct_weights_read(&wide, &zero, &count, kinds[kind], back), 0);
        for (int i = 0; i < 65536; i++)
            assert_true(back[i] == i || isnan(floats[i]));
    }
}

static void test_partial_reads(void **state)
{
    float a = 1, b = 2;
    char shard[4200], index[4200];
    struct ct_weights *w;

    (void)state;
    snprintf(shard, sizeof(shard), "%s/one", folder);
    assert_int_equal(ct_safetensors_write(shard, &(struct ct_weight){"a", CT_F32, 0, {0}, &a}, 1),
                     0);
    snprintf(shard, sizeof(shard), "%s/two", folder);
    assert_int_equal(ct_safetensors_write(shard, &(struct ct_weight){"b", CT_F32, 0, {0}, &b}, 1),
                     0);
    snprintf(index, sizeof(index), "%s/model.safetensors.index.json", folder);
#define INDEX(text) test_write(index, text, strlen(text))
    INDEX("{\"metadata\":{}, \"weight_map\":{\"b\":\"two\",\"a\":\"one\"}}");
    assert_int_equal(ct_weights_open(folder, &w), 0);
    assert_true(*(const float *)ct_weights_find(w, "a")->data == 1);
    assert_true(*(const float *)ct_weights_find(w, "b")->data == 2);
    ct_weights_close(w);
    INDEX("{\"weight_map\":{\"b\":\"one\",\"a\":\"one\"}}");
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    INDEX("{\"weight_map\":{\"b\":\"two\",\"a\":\"one\",\"c\":\"one\"}}");
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    assert_message("the index lists 3 tensors, but the files have 2");
    INDEX("{\"weight_map\":{\"b\":\"two\",\"a\":\"three\"}}");
    assert_int_equal(ct_weights_open(folder, &w), CT_ENOENT);
    assert_message("three");
    INDEX("{\"weight_map\":{\"b\":\"../two\"}}");
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    assert_message("not a file of this folder");
    INDEX("{\"weight_map\":");
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    remove(index);
    assert_int_equal(ct_weights_open(folder, &w), CT_ENOENT);
    assert_message("model.safetensors");
}

static void test_bad_headers(void **state)
{
    static const struct {
        const char *header, *message;
        size_t data;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "outside", 7},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "1 bytes at its end",
         9},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "need 8", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "outside", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "no tensor", 8},
        {"{\"a\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}", "dtype I16", 2},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "shape is invalid",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
         "shape is invalid", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "6 sizes",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         "overlaps", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "duplicate", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "not an object of dtype", 4},
        {"{\"a\":7}", "not an object of dtype", 4},
        {"[]", "not a JSON object", 0},
        {"{\"__metadata__\":{\"a\":1}}", "not a string", 0},
        {"{\"__metadata__\":[]}", "not an object", 0},
        {"{", "header:1:", 0},
        {"{} {}", "header:1:4:", 0},
        {"{\"__metadata__\":{},}", "header:1:20:", 0},
        {"{\"__metadata__\":{}", "header:1:", 0},
        {"{\"__metadata__\" {}}", "header:1:", 0},
        {"{\"__metadata__\":{]}", "header:1:", 0},
    };
    struct ct_weights *w;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        write_raw("model.safetensors", cases[i].header, strlen(cases[i].header), cases[i].data);
        assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
        assert_null(w);
        assert_message(cases[i].message);
        assert_message(path);
    }
    write_raw("model.safetensors", "{}", 3, 0);
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    assert_message("does not fit");
    write_raw("model.safetensors", "{}", SIZE_MAX, 0);
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    test_write(path, "1234567", 7);
    assert_int_equal(ct_weights_open(folder, &w), CT_ECONFIG);
    assert_message("too few");
}

/* ---- many tensors ---- */

static size_t json_bytes, json_peak; /* that values of JSON have, and had at most */

static void *count_malloc(size_t bytes)
{
    size_t *memory = malloc(bytes + 16);

    assert_non_null(memory);
    *memory = bytes;
    json_bytes += bytes;
    json_peak = json_bytes > json_peak ? json_bytes : json_peak;
    return memory + 2;
}

static void count_free(void *data)
{
    if (!data)
        return;
    json_bytes -= *((size_t *)data - 2);
    free((size_t *)data - 2);
}

/* A header is read tensor by tensor: its values never are in memory all at once. */
static void test_many_tensors(void **state)
{
    enum { MANY = 20000 };
    char *header = malloc((size_t)MANY * 64 + 2), *at = header;
    struct ct_weights *w;
    int rc;

    (void)state;
    for (int i = 0; i < MANY; i++)
        at += sprintf(at, "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? ',' : '{', i, i, i + 1);
    strcpy(at, " }");
    write_raw("model.safetensors", header, strlen(header), MANY);
    free(header);
    json_peak = 0;
    json_set_alloc_funcs(count_malloc, count_free);
    rc = ct_weights_open(folder, &w);
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(rc, 0);
    assert_int_equal(ct_weights_count(w), MANY);
    assert_string_equal(ct_weights_find(w, "t19999")->name, "t19999");
    assert_int_equal(json_bytes, 0);
    assert_in_range(json_peak, 1, 16384);
    ct_weights_close(w);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void mutate(unsigned char *file, size_t *size, uint32_t *random)
{
    static const char tokens[] = "{}[]\",:0129-eF\\u";

    for (uint32_t n = 1 + next_random(random) % 3; n > 0; n--) {
        size_t at = next_random(random) % *size;

        switch (next_random(random) % 5) {
        case 0:
            file[at] ^= (unsigned char)(1u << next_random(random) % 8);
            break;
        case 1:
            file[at] = (unsigned char)tokens[next_random(random) % (sizeof(tokens) - 1)];
            break;
        case 2:
            *size = at + 1;
            break;
        case 3:
            file[next_random(random) % 8 % *size] = (unsigned char)next_random(random);
            break;
        default:
            memmove(file + at, file + at + 1, *size - at - 1);
            *size -= *size > 1;
        }
    }
}

static volatile unsigned char sink;

/* Whatever opens is whole: every byte that a tensor claims can be read. */
static void use_all(struct ct_weights *w)
{
    for (size_t i = 0; i < ct_weights_count(w); i++) {
        const struct ct_weight *weight = ct_weights_at(w, i);
        size_t bytes =
            (size_t)ct_shape_count(weight->ndim, weight->shape) * ct_dtype_size(weight->dtype);

        for (size_t j = 0; j < bytes; j++)
            sink ^= ((const unsigned char *)weight->data)[j];
    }
}

static void test_mutations(void **state)
{
    unsigned char original[4096], file[4096];
    float numbers[20] = {1};
    const struct ct_weight weights[] = {{"model.embed", CT_F32, 2, {4, 5}, numbers},
                                        {"model.norm", CT_BF16, 1, {5}, numbers}};
    uint32_t random = 1;
    size_t size, opened = 0;
    FILE *in;

    (void)state;
    assert_int_equal(ct_safetensors_write(path, weights, 2), 0);
    in = fopen(path, "r");
    size = fread(original, 1, sizeof(original), in);
    fclose(in);
    for (int i = 0; i < 5000; i++) {
        size_t length = size;
        struct ct_weights *w;
        int rc;

        memcpy(file, original, size);
        mutate(file, &length, &random);
        test_write(path, file, length);
        rc = ct_weights_open(folder, &w);
        if (rc == 0) {
            use_all(w);
            ct_weights_close(w);
            opened++;
        } else {
            assert_int_equal(rc, CT_ECONFIG);
            assert_message(path);
        }
    }
    assert_in_range(opened, 1, 4500);
}

static void test_write_is_whole(void **state)
{
    char inside[8192];
    float a = 1;

    (void)state;
    snprintf(inside, sizeof(inside), "%s/absent/model.safetensors", folder);
    assert_int_equal(ct_safetensors_write(inside, &(struct ct_weight){"a", CT_F32, 0, {0}, &a}, 1),
                     CT_EIO);
    assert_message("absent");
}

static void what_the_format_lacks_is_refused(void **state)
{
    static const struct {
        const char *name;
        enum ct_dtype dtype;
    } wrong[] = {{"packed", CT_U4}, {"caf\xe9", CT_U8}};
    unsigned char bytes[8] = {0};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(wrong); i++) {
        const struct ct_weight weights[] = {{"a", CT_U8, 1, {8}, bytes},
                                            {wrong[i].name, wrong[i].dtype, 1, {8}, bytes}};

        remove(path);
        assert_int_equal(ct_safetensors_write(path, weights, 2), CT_EINVAL);
        assert_message(wrong[i].name);
        assert_int_equal(access(path, F_OK), -1);
    }
}

static void count_warning(enum ct_log_level level, const char *line, void *context)
{
    (void)line;
    *(int *)context += level == CT_LOG_WARNING;
}

/* A model with a config of that many bytes is saved. Returns how many warnings there were. */
static int note_model(const char *model, size_t bytes)
{
    static const char config[100] = "";
    struct ct_run run = {.began = 1};
    char name[8300];
    int warnings = 0;

    snprintf(name, sizeof(name), "%s/config.json", model);
    test_write(name, config, bytes);
    ct_log_to(count_warning, &warnings, CT_LOG_WARNING);
    ct_hf_note_target(&run, model);
    ct_log_to(NULL, NULL, CT_LOG_WARNING);
    return warnings;
}

static void a_folder_is_recorded_once(void **state)
{
    const char *before = ct_config.job.dump_folder;
    struct ct_arena arena = {0};
    char model[8192], other[8192], record[8192], end[16384], *text;
    size_t size, lines = 0;

    (void)state;
    ct_config.job.dump_folder = folder;
    snprintf(model, sizeof(model), "%s/model", folder);
    snprintf(other, sizeof(other), "%s/model-2", folder);
    snprintf(record, sizeof(record), "%s/saved_models", folder);
    assert_int_equal(ct_file_make_folder(model), 0);
    assert_int_equal(ct_file_make_folder(other), 0);
    assert_int_equal(note_model(other, 1), 0);
    for (size_t i = 1; i < 5; i++)
        assert_int_equal(note_model(model, i), 0);
    assert_int_equal(ct_file_read(&arena, record, 1 << 20, &text, &size), 0);
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 2);
    snprintf(end, sizeof(end), " 4 %s\n", model);
    assert_string_equal(text + size - strlen(end), end);
    assert_int_equal(truncate(record, 2 << 20), 0);
    assert_int_equal(note_model(model, 5), 1);
    ct_config.job.dump_folder = before;
    ct_arena_finish(&arena);
}

/* Load a model that has an embedding only. */
static int load_besides(struct ct_weight other, int *warnings)
{
    const float table[] = {1, 2, 3, 4, 5, 6};
    const struct ct_weight weights[] = {{"model.embed_tokens.weight", CT_F32, 2, {3, 2}, table},
                                        other};
    struct ct_state embedding = {.name = "model.embed_tokens.weight",
                                 .role = CT_ROLE_PARAM,
                                 .ndim = 2,
                                 .shape = {3, 2},
                                 .dtype = CT_F32};
    const struct ct_model_ops ops = {.size = sizeof(ops)};
    struct ct_run run = {.model_ops = &ops, .states = &embedding, .state_count = 1};

    int rc;

    assert_int_equal(ct_safetensors_write(path, weights, 2), 0);
    *warnings = 0;
    ct_log_to(count_warning, warnings, CT_LOG_WARNING);
    rc = ct_hf_load(&run, folder);
    ct_log_to(NULL, NULL, CT_LOG_WARNING);
    return rc;
}

/* transformers uses a head that a file has besides the embedding, even if they are tied. */
static void a_tied_head_must_be_the_embedding(void **state)
{
    const float same[] = {1, 2, 3, 4, 5, 6}, other[] = {1, 2, 3, 4, 5, 7};
    const uint16_t bf16[] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};

    const struct {
        struct ct_weight weight;
        int rc, warnings;
    } cases[] = {
        {{"lm_head.weight", CT_F32, 2, {3, 2}, same}, 0, 0},
        {{"lm_head.weight", CT_BF16, 2, {3, 2}, bf16}, 0, 0},
        {{"lm_head.weight", CT_F32, 2, {3, 2}, other}, CT_ECONFIG, 0},
        {{"lm_head.weight", CT_F32, 2, {2, 3}, same}, CT_ECONFIG, 0},
        {{"another.weight", CT_F32, 2, {3, 2}, other}, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        int warnings;

        assert_int_equal(load_besides(cases[i].weight, &warnings), cases[i].rc);
        assert_int_equal(warnings, cases[i].warnings);
        if (cases[i].rc < 0)
            assert_message("lm_head.weight differs from model.embed_tokens.weight");
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_round_trip),
                                       TEST(test_mxfp4),
                                       TEST(test_mxfp4_nan),
                                       TEST(what_the_format_lacks_is_refused),
                                       TEST(test_damaged_mxfp4),
                                       TEST(test_text),
                                       TEST(test_shards),
                                       TEST(test_conversion),
                                       TEST(test_partial_reads),
                                       TEST(test_bad_headers),
                                       TEST(test_many_tensors),
                                       TEST(test_mutations),
                                       TEST(test_write_is_whole),
                                       TEST(a_folder_is_recorded_once),
                                       TEST(a_tied_head_must_be_the_embedding)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
