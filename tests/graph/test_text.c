/*
 * The text form of graphs: what is printed parses back to the same, faults name their line, and no
 * text at all can crash the parser, the verifier or the printer.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/input.h>
#include <ctitan/rng.h>
#include <ctitan/text.h>

#include "support.h"

static void assert_round_trip(const struct ct_graph *graph)
{
    struct ct_arena arena = {0};
    char *text = ct_graph_text(graph, &arena);
    struct ct_graph *copy = parse(&arena, text);

    assert_string_equal(ct_graph_text(copy, &arena), text);
    assert_ok(ct_graph_verify(copy, stderr));
    assert_int_equal(copy->value_count, graph->value_count);
    assert_int_equal(copy->seed, graph->seed);
    ct_arena_finish(&arena);
}

static void models_round_trip(void **state)
{
    static const struct tiny sizes[] = {{0},
                                        {.tied = true, .documents = true, .sinks = true},
                                        {.logits = true, .layers = 1, .dtype = CT_BF16}};
    struct ct_arena arena = {0};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(sizes); i++) {
        struct ct_graph *graph = tiny_llama(&arena, sizes[i]);

        assert_round_trip(graph);
        if (sizes[i].logits)
            continue;
        assert_ok(ct_differentiate(graph));
        assert_round_trip(graph);
    }
    ct_arena_finish(&arena);
}

/* One of everything that the text can say. */
static struct ct_graph *one_of_everything(struct ct_arena *arena)
{
    static const uint64_t last[] = {(uint64_t)1 << 63};
    struct ct_graph *graph = ct_graph_create(arena, "everything");
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "layers.0");
    int64_t x_shape[] = {4, 6, 2, 8}, w_shape[] = {8, 8};
    struct ct_value *x, *w, *y;

    graph->seed = 123456789;
    graph->mesh = (struct ct_mesh){3, {{"dp_shard", 2}, {"cp", 2}, {"tp", 4}}};
    x = ct_graph_source(graph, CT_ROLE_INPUT, "x", CT_BF16, 4, x_shape);
    w = ct_graph_source(graph, CT_ROLE_PARAM, "w", CT_F32, 2, w_shape);
    ct_graph_source(graph, CT_ROLE_STATE, "w.m", CT_F32, 2, w_shape);
    ct_graph_source(graph, CT_ROLE_SCALAR, "lr", CT_F64, 0, NULL);
    ct_sharding_split(&x->sharding, 0, 0);
    ct_sharding_split(&x->sharding, 1, 1);
    ct_sharding_split(&w->sharding, 0, 2);
    ct_sharding_split(&w->sharding, 0, 0);
    w->sharding.unreduced = 1u << 1;

    b.why = "an absent input, and attributes of three types";
    y = ct_rope(&b, "y", x, NULL,
                &(struct ct_rope){.theta = 1e6,
                                  .factor = 1,
                                  .low_freq_factor = 1,
                                  .high_freq_factor = 4,
                                  .original_max_position = 77,
                                  .inverse = true});
    y->producer->stream = ct_stream("gather", CT_STREAM_KEEPS);
    ct_builder_set_part(&b, CT_PART_PRE);
    b.region = "";
    b.why = NULL;
    y = ct_cast(&b, "w.bf16", w, CT_BF16);
    y->opaque_bytes = 4096;
    y->producer->section = ct_graph_section_named(graph, "2UNSHARD", CT_PART_PRE, 2);
    assert_false(y->producer->section->main);
    w->holders = (struct ct_ranks){last, 1};
    graph->seed = UINT64_MAX;
    graph->partition_axis = 1;
    ct_builder_set_part(&b, CT_PART_POST);
    y = ct_emit1(&b, "embedding_grad", "table",
                 (struct ct_value *[]){
                     x, ct_graph_source(graph, CT_ROLE_STATE, "index", CT_I32, 3, x_shape)},
                 2, &(struct ct_embedding_grad){.rows = 8, .padding = -1});
    assert_non_null(y);
    y->producer->section = ct_graph_section(graph, CT_PART_W, 3);
    assert_true(y->producer->section->main);
    y->dtype = CT_F64;
    y->dtype_fixed = true;
    ct_value_set_grad(w, y);
    ct_graph_fetch(graph, "table", y);
    ct_graph_fetch_loss(graph, "more", y, ct_graph_find(graph, "lr"), 0.25);
    assert_ok(b.status);
    return graph;
}

static void everything_round_trips(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = one_of_everything(&arena), *copy;

    (void)state;
    assert_golden("everything.graph", ct_graph_text(graph, &arena));
    assert_round_trip(graph);
    copy = parse(&arena, ct_graph_text(graph, &arena));
    assert_int_equal(copy->partition_axis, 1);
    assert_true(ct_graph_find(copy, "w")->holders.word[0] == (uint64_t)1 << 63);
    assert_true(copy->seed == UINT64_MAX);
    assert_int_equal(copy->mesh.count, 3);
    assert_int_equal(copy->mesh.axis[2].size, 4);
    assert_true(ct_sharding_equal(&ct_graph_find(copy, "w")->sharding,
                                  &ct_graph_find(graph, "w")->sharding));
    assert_int_equal(ct_graph_find(copy, "y")->producer->stream,
                     ct_stream("gather", CT_STREAM_KEEPS));
    assert_null(ct_graph_find(copy, "y")->producer->in[1]);
    assert_true(ct_op_bool(ct_graph_find(copy, "y")->producer, "inverse"));
    assert_int_equal(ct_graph_find(copy, "w.bf16")->opaque_bytes, 4096);
    assert_string_equal(ct_graph_find(copy, "w.bf16")->producer->section->name, "2UNSHARD");
    assert_int_equal(ct_graph_find(copy, "w.bf16")->producer->section->part, CT_PART_PRE);
    assert_int_equal(ct_graph_find(copy, "w.bf16")->producer->section->group, 2);
    assert_string_equal(ct_graph_find(copy, "table")->producer->section->name, "3W");
    assert_ptr_equal(ct_graph_find(copy, "w")->grad, ct_graph_find(copy, "table"));
    ct_arena_finish(&arena);
}

/* An op may have any number of operands: an optimizer's update has four for each parameter. */
static void inputs_and_means_round_trip(void **state)
{
    static const char text[] = "graph \"g\"\n"
                               "input %patches : float32[2,3,4] sequence=2\n"
                               "input %images : float32[2,3] sequence=-1\n"
                               "scalar %pairs : float32[]\n"
                               "F - %loss = squared_norm(%patches) : float32[]\n"
                               "fetch loss = %loss / pairs\n"
                               "fetch pairs = %pairs\n";
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);

    (void)state;
    assert_string_equal(ct_graph_text(graph, &arena), text);
    assert_int_equal(ct_input_sequence(ct_graph_find(graph, "patches")), 2);
    assert_int_equal(ct_input_sequence(ct_graph_find(graph, "images")), -1);
    assert_string_equal(ct_graph_fetched_over(graph, "loss"), "pairs");
    assert_null(ct_graph_fetched_over(graph, "pairs"));
    ct_arena_finish(&arena);
}

static void long_operand_lists_round_trip(void **state)
{
    enum { MANY = 6000 };
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "long");
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_PRE, "");
    struct ct_value **in = ct_arena_array(&arena, struct ct_value *, MANY);

    (void)state;
    for (int i = 0; i < MANY; i++)
        in[i] = ct_graph_source(graph, CT_ROLE_PARAM, ct_arena_printf(&arena, "p.%d", i), CT_F32, 1,
                                &(int64_t){1});
    ct_graph_fetch(graph, "sum", ct_emit1(&b, "squared_norm", "sum", in, MANY, NULL));
    assert_ok(b.status);
    assert_round_trip(graph);
    ct_arena_finish(&arena);
}

static void comments_and_blanks_are_ignored(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, "# what follows is small\n"
                                           "\n"
                                           "graph \"g\" seed=3\n"
                                           "  param %p : float32[2,3]\n"
                                           "\tpre - %c = cast( %p ) {dtype=\"bfloat16\"} :"
                                           " bfloat16[2,3] ; because\n"
                                           "fetch c = %c");

    (void)state;
    assert_int_equal(graph->seed, 3);
    assert_string_equal(ct_graph_find(graph, "c")->producer->why, "because");
    assert_string_equal(ct_graph_find(graph, "c")->producer->region, "");
    assert_ok(ct_graph_verify(graph, stderr));
    ct_arena_finish(&arena);
}

/* ---- faults ---- */

static const struct fault {
    const char *text, *where, *says;
} faults[] = {
    {"nonsense", "line 1: ", "a line cannot begin with \"nonsense\""},
    {"graph g", "line 1: ", "expected \""},
    {"graph \"g\" seed=x", "line 1: ", "expected a number at \"x\""},
    {"graph \"g\" pages=3", "line 1: ", "expected the end of the line at \"pages=3\""},
    {"\n\nmesh tp", "line 3: ", "expected ="},
    {"mesh tp=two", "line 1: ", "expected a number at \"two\""},
    {"mesh a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1", "line 1: ", "at most 8 axes"},
    {"param p : float32[2]", "line 1: ", "expected % at \"p : float32[2]\""},
    {"param %p float32[2]", "line 1: ", "expected : at \"float32[2]\""},
    {"param %p : float33[2]", "line 1: ", "float32"},
    {"param %p : float32[2", "line 1: ", "expected a number"},
    {"param %p : float32[1,1,1,1,1,1,1]", "line 1: ", "at most 6 dimensions"},
    {"param %p : float32[-1]", "line 1: ", "expected a number at \"-1]\""},
    {"param %p : float32[2] [tp]", "line 1: ", "tp"},
    {"param %p : float32[2] opaque<many>", "line 1: ", "expected a number at \"many>\""},
    {"param %p : float32[2]\nparam %p : float32[2]", "line 2: ", "%p is defined twice"},
    {"param %p : float32[2]\npre - %p = reciprocal(%p) : float32[2]",
     "line 2: ", "%p is defined twice"},
    {"F - %y = reciprocal(%x) : float32[2]", "line 1: ", "%x is used but not defined"},
    {"param %p : float32[2]\nF - %y = recipocal(%p) : float32[2]", "line 2: ", "recipocal"},
    {"param %p : float32[2]\nF - %y, %z = reciprocal(%p) : float32[2], float32[2]",
     "line 2: ", "reciprocal has 1 outputs, not 2"},
    {"param %p : float32[2]\nF - %y = reciprocal(%p, %p) : float32[2]", "line 2: ", "reciprocal"},
    {"param %p : float32[2]\nF - %y = reciprocal(%p", "line 2: ", "expected %"},
    {"param %p : float32[2]\nF - %y = add(%p, %p) {a=1} : float32[2]",
     "line 2: ", "add has no attributes"},
    {"param %p : float32[2]\nF - %y = cast(%p) {dtipe=\"float32\"} : float32[2]",
     "line 2: ", "dtipe"},
    {"param %p : float32[2]\nF - %y = cast(%p) {dtype=\"float32} : float32[2]",
     "line 2: ", "expected \" at \"\""},
    {"param %p : float32[2]\nF - %y = cast(%p) {dtype \"float32\"} : float32[2]",
     "line 2: ", "expected = at"},
    {"param %p : float32[2]\nF - %y = reciprocal(%p)", "line 2: ", "expected : at"},
    {"param %p : float32[2]\nF - /nowhere %y = reciprocal(%p) : float32[2]",
     "line 2: ", "expected a stream at \"nowhere"},
    {"section 1X part=F group=x\nparam %p : float32[2]", "line 1: ", "expected a number at \"x"},
    {"param %p : float32[2]\nF", "line 2: ", "expected a region"},
    {"fetch loss", "line 1: ", "expected ="},
    {"fetch loss = %loss", "line 1: ", "%loss is used but not defined"},
    {"param %p : float32[2]\ngrad %p = %q", "line 2: ", "%q is used but not defined"},
    {"param %p : float32[2] trailing", "line 1: ", "expected the end of the line"},
};

static void faults_name_their_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(faults); i++) {
        struct ct_arena arena = {0};

        if (ct_graph_parse(&arena, faults[i].text))
            fail_msg("parsed: %s", faults[i].text);
        if (strncmp(ct_error_message(), faults[i].where, strlen(faults[i].where)) ||
            !strstr(ct_error_message(), faults[i].says))
            fail_msg("%s\nsays    %s\nand not %s%s", faults[i].text, ct_error_message(),
                     faults[i].where, faults[i].says);
        ct_arena_finish(&arena);
    }
}

/* ---- fuzzing ---- */

static const char *const tokens[] = {
    "%",  "!",    "[",        "]",     "(",    ")",    "=",    ":", "_", "-",
    "@9", "/p2p", "opaque<1", "{",     "}",    "\"",   "\n",   ",", "0", "99999999999999999999",
    "+{", "[tp.", "param",    "fetch", "grad", "tied", "int32"};

static void mutate(char *text, size_t room, uint64_t seed, uint64_t round)
{
    for (uint64_t i = 0; i < 1 + round % 4; i++) {
        struct ct_philox r = ct_philox(seed, round, i);
        size_t length = strlen(text), at = r.v[0] % (length + 1), n = r.v[1] % 9;
        const char *token = tokens[r.v[2] % CT_COUNT(tokens)];
        size_t size = strlen(token);

        if (r.v[3] % 3 == 0 && at < length) {
            text[at] = (char)(1 + r.v[2] % 126);
        } else if (r.v[3] % 3 == 1) {
            n = n < length - at ? n : length - at;
            memmove(text + at, text + at + n, length - at - n + 1);
        } else if (length + size < room) {
            memmove(text + at + size, text + at, length - at + 1);
            memcpy(text + at, token, size);
        }
    }
}

/* Whatever happens to a text, it parses or it does not; what parses can be verified and printed,
   and if it is without fault, comes back. */
static void mutations_do_no_harm(void **state)
{
    enum { ROUNDS = 3000 };
    struct ct_arena arena = {0};
    struct ct_graph *seeds[] = {one_of_everything(&arena),
                                tiny_llama(&arena, (struct tiny){.layers = 1, .tied = true})};
    int parsed = 0, sound = 0;

    (void)state;
    assert_ok(ct_differentiate(seeds[1]));
    for (size_t s = 0; s < CT_COUNT(seeds); s++) {
        const char *text = ct_graph_text(seeds[s], &arena);
        size_t room = strlen(text) + 256;
        char *copy = malloc(room);

        for (uint64_t round = 0; round < ROUNDS; round++) {
            struct ct_arena scratch = {0};
            struct ct_graph *graph;

            strcpy(copy, text);
            mutate(copy, room, 1 + s, round);
            graph = ct_graph_parse(&scratch, copy);
            parsed += graph != NULL;
            if (graph && ct_graph_verify(graph, NULL) == 0) {
                sound++;
                assert_round_trip(graph);
            }
            ct_arena_finish(&scratch);
        }
        free(copy);
    }
    assert_in_range(parsed, 50, 2 * ROUNDS - 50);
    assert_in_range(sound, 20, parsed);
    ct_arena_finish(&arena);
}

/* The functions for transforms add ops with the attributes that they were given. */
static void functions_emit_what_text_says(void **state)
{
    static const char *const lines[] = {
        "%gathered = all_gather(%x) {axes=\"tp\", dim=1} : float32[2,4]",
        "%cut, %cut.1 = reduce_scatter(%x, %y) {axes=\"tp\"} : float32[2,4], float32[2,4]",
        "%reduced = all_reduce(%x) {axes=\"tp\", reduction=\"max\"} : float32[2,4]",
        "%permuted = permute(%x) {axes=\"tp\", shift=-1} : float32[2,4]",
        "%turned = all_to_all(%x) {axes=\"tp\", to=1} : float32[2,4]",
        "%own = slice(%x) {axes=\"tp\", dim=1} : float32[2,4]",
        "%shares = softmax(%x) : float32[2,4]"};
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_create(&arena, "emitted");
    struct ct_builder b = ct_builder_at_end(g, CT_PART_F, "");
    const int64_t shape[] = {2, 4};
    const char *text, *at;
    struct ct_value *x[2];

    (void)state;
    g->mesh = (struct ct_mesh){.count = 1, .axis = {{"tp", 2}}};
    x[0] = ct_graph_source(g, CT_ROLE_INPUT, "x", CT_F32, 2, shape);
    x[1] = ct_graph_source(g, CT_ROLE_INPUT, "y", CT_F32, 2, shape);
    assert_non_null(ct_all_gather(&b, "gathered", x, 1, 1, 1));
    assert_non_null(ct_reduce_scatter(&b, "cut", x, 2, 1, 0, CT_REDUCE_SUM));
    assert_non_null(ct_all_reduce(&b, "reduced", x, 1, 1, CT_REDUCE_MAX));
    assert_non_null(ct_permute(&b, "permuted", x, 1, 1, -1));
    assert_non_null(ct_all_to_all(&b, "turned", x[0], 1, 0, 1));
    assert_non_null(ct_slice(&b, "own", x[0], 1, 1));
    assert_non_null(ct_softmax(&b, "shares", x[0]));
    assert_ok(b.status);
    at = text = ct_graph_text(g, &arena);
    for (size_t i = 0; at && i < CT_COUNT(lines); i++) {
        at = strstr(at, lines[i]);
        if (!at)
            fail_msg("no line \"%s\" in\n%s", lines[i], text);
    }
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_emit_what_text_says),
        cmocka_unit_test(models_round_trip),
        cmocka_unit_test(everything_round_trips),
        cmocka_unit_test(inputs_and_means_round_trip),
        cmocka_unit_test(long_operand_lists_round_trip),
        cmocka_unit_test(comments_and_blanks_are_ignored),
        cmocka_unit_test(faults_name_their_line),
        cmocka_unit_test(mutations_do_no_harm),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
