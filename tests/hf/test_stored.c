/*
 * Parameters in tensors of files: parts that follow each other or take turns, transposed or not.
 */
#include <ctitan/lib/stored.h>

#include "plugin_under_test.h"

static const struct ct_stored_rule rules[] = {
    {".gate", ".gate_up", true, 0, 2, .interleaved = true},
    {".up", ".gate_up", true, 1, 2, .interleaved = true},
    {".gate_bias", ".gate_up_bias", false, 0, 2, .interleaved = true},
    {".up_bias", ".gate_up_bias", false, 1, 2, .interleaved = true},
    {".down", ".down", true, 0, 0},
    {".q", ".qkv", true, 0, 3},
    {".k", ".qkv", true, 1, 3},
    {".v", ".qkv", true, 2, 3},
    {".plain", ".plain", false, 0, 0},
    {0},
};

/* The number of element [i, j, k] in the tensor, from the rule's words. */
static int64_t number_of(const struct ct_stored_rule *r, const int64_t *shape, int ndim,
                         const int64_t *at)
{
    int64_t index[3], size[3], number = 0, swapped;
    int d = r->interleaved;

    for (int i = 0; i < ndim; i++)
        index[i] = at[i], size[i] = shape[i];
    if (r->parts) {
        index[d] = r->interleaved ? at[d] * r->parts + r->part : at[d] + r->part * shape[d];
        size[d] *= r->parts;
    }
    if (r->transposed) {
        swapped = index[ndim - 1], index[ndim - 1] = index[ndim - 2], index[ndim - 2] = swapped;
        swapped = size[ndim - 1], size[ndim - 1] = size[ndim - 2], size[ndim - 2] = swapped;
    }
    for (int i = 0; i < ndim; i++)
        number = number * size[i] + index[i];
    return number;
}

static int64_t below(int64_t limit)
{
    static uint64_t state = 7;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % limit;
}

/* Each element of a box is found where the whole tensor has it, and written there alone. */
static void check_box(const struct ct_stored_rule *r, const struct ct_state *param,
                      const struct ct_stored_box *box, size_t item)
{
    struct ct_arena arena = {0};
    struct ct_weight w = ct_stored_tensor(&arena, r, param, 0);
    struct ct_stored_box t = ct_stored_to_tensor(r, param, box), back, whole = {.ndim = w.ndim};
    int64_t all = ct_shape_count(w.ndim, w.shape), count = ct_shape_count(box->ndim, box->shape);
    struct ct_stored_places places;
    char *tensor = calloc((size_t)all, item), *dense = calloc((size_t)count, item);
    char *again = calloc((size_t)all, item);
    int64_t begin = below(count + 1), written = 0;

    memcpy(whole.shape, w.shape, sizeof(w.shape));
    assert_true(ct_stored_to_param(r, param, 0, &t, &back));
    assert_memory_equal(back.shape, box->shape, sizeof(*box->shape) * (size_t)box->ndim);
    assert_memory_equal(back.offset, box->offset, sizeof(*box->offset) * (size_t)box->ndim);
    for (int64_t i = 0; i < all; i++)
        memcpy(tensor + (size_t)i * item, &(int64_t){i + 1}, item);
    places = ct_stored_places(r, param, box, &whole);
    ct_stored_gather(&places, 0, count, item, tensor, dense);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[CT_MAX_DIMS], rest = i, found = 0;

        for (int d = box->ndim - 1; d >= 0; d--) {
            at[d] = box->offset[d] + rest % box->shape[d];
            rest /= box->shape[d];
        }
        memcpy(&found, dense + (size_t)i * item, item);
        assert_int_equal(found, (number_of(r, param->shape, param->ndim, at) + 1) &
                                    (item == 8 ? -1 : ((int64_t)1 << 8 * item) - 1));
    }
    ct_stored_scatter(&places, 0, begin, item, dense, again);
    ct_stored_scatter(&places, begin, count - begin, item, dense + (size_t)begin * item, again);
    for (int64_t i = 0; i < all; i++)
        if (memcmp(again + (size_t)i * item, &(int64_t){0}, item)) {
            assert_memory_equal(again + (size_t)i * item, tensor + (size_t)i * item, item);
            written++;
        }
    if (item > 1)
        assert_int_equal(written, count);
    free(tensor);
    free(dense);
    free(again);
    ct_arena_finish(&arena);
}

static void elements_are_where_the_rule_says(void **state)
{
    static const struct {
        const char *name;
        int ndim;
        int64_t shape[3];
    } params[] = {
        {"x.gate", 3, {3, 5, 130}}, {"x.up", 3, {2, 70, 3}},  {"x.gate_bias", 2, {3, 5}},
        {"x.up_bias", 2, {4, 3}},   {"x.down", 3, {2, 3, 4}}, {"x.q", 2, {6, 4}},
        {"x.k", 2, {6, 4}},         {"x.v", 2, {3, 65}},      {"x.plain", 3, {2, 3, 4}},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(params); i++) {
        struct ct_state param = {.name = params[i].name, .ndim = params[i].ndim};
        const struct ct_stored_rule *rule = ct_stored_rule(rules, param.name);

        memcpy(param.shape, params[i].shape, sizeof(params[i].shape));
        for (int n = 0; n < 20; n++) {
            struct ct_stored_box box = {.ndim = param.ndim};

            for (int d = 0; d < box.ndim; d++) {
                box.offset[d] = n ? below(param.shape[d]) : 0;
                box.shape[d] = n ? 1 + below(param.shape[d] - box.offset[d]) : param.shape[d];
            }
            check_box(rule, &param, &box, (size_t)1 << n % 4);
        }
    }
}

/* Each part of a tensor's rows has its own elements. */
static void parts_of_a_row_are_all_of_it(void **state)
{
    struct ct_state gate = {.name = "x.gate_bias", .ndim = 2, .shape = {2, 3}};
    struct ct_stored_box row = {2, {1, 6}, {1, 0}}, few = {2, {1, 3}, {1, 1}}, box;

    (void)state;
    for (int part = 0; part < 2; part++) {
        assert_true(ct_stored_to_param(&rules[2 + part], &gate, 0, &row, &box));
        assert_int_equal(box.offset[0], 1);
        assert_int_equal(box.shape[1], 3);
    }
    assert_true(ct_stored_to_param(&rules[2], &gate, 0, &few, &box)); /* 1 2 3: 2 is gate's 1 */
    assert_int_equal(box.offset[1], 1);
    assert_int_equal(box.shape[1], 1);
    assert_true(ct_stored_to_param(&rules[3], &gate, 0, &few, &box)); /* 1 and 3: up's 0 and 1 */
    assert_int_equal(box.offset[1], 0);
    assert_int_equal(box.shape[1], 2);
    few.shape[1] = 1;
    assert_false(ct_stored_to_param(&rules[2], &gate, 0, &few, &box));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_are_where_the_rule_says),
                                       cmocka_unit_test(parts_of_a_row_are_all_of_it)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
