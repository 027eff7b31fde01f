/*
 * The graph by tp_async: which collectives become pipelines, in how many chunks, why the
 * others do not; and that, in the program, chunks are exchanged beside products.
 */
#include "plugin_under_test.h"

#include <ctitan/app/verify.h>
#include <ctitan/config.h>
#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/file.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "support.h"

/* One layer's two pairs: a gather that feeds two weights, and a scattered sum of two products. */
static const char layer[] =
    "graph \"layer\"\n"
    "mesh tp=2\n"
    "input %x : float32[1,16,4] [-, tp, -]\n"
    "param %w0 : float32[8,4] [tp, -]\n"
    "param %w1 : float32[6,4] [tp, -]\n"
    "param %w2 : float32[4,8] [-, tp]\n"
    "param %w3 : float32[4,6] [-, tp]\n"
    "F layers.0 %whole = all_gather(%x) {axes=\"tp\", dim=1} : float32[1,16,4]\n"
    "F layers.0 %a, %b = linear(%whole, %w0, %w1) : float32[1,16,8] [-, -, tp], float32[1,16,6] "
    "[-, -, tp]\n"
    "F layers.0 %c = linear(%a, %w2) : float32[1,16,4] +{tp}\n"
    "F layers.0 %d = linear(%b, %w3) : float32[1,16,4] +{tp}\n"
    "F layers.0 %sum = add(%c, %d) : float32[1,16,4] +{tp}\n"
    "F layers.0 %y = reduce_scatter(%sum) {axes=\"tp\", dim=1} : float32[1,16,4] [-, tp, -]\n"
    "fetch y = %y\n";

static int apply(struct ct_graph *g, const char *const *settings)
{
    const struct ct_plugin *plugin = test_plugin("tp_async");
    int rc;

    test_options(plugin, settings);
    rc = test_transform(plugin, "tp_async")->apply(g, NULL);
    if (rc == 0)
        assert_ok(ct_graph_verify(g, stderr));
    return rc;
}
#define APPLY(g, ...) apply(g, (const char *const[]){__VA_ARGS__, NULL})

static void graph_is_as_agreed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layer);
    const char *text;

    (void)state;
    assert_ok(APPLY(g, "chunks=2", "own_first=never"));
    text = ct_graph_text(g, &arena);
    assert_golden("layer.txt", text);
    assert_string_equal(ct_graph_text(parse(&arena, text), &arena), text);
    ct_arena_finish(&arena);
}

static void ring_is_as_agreed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layer);
    const char *text;

    (void)state;
    assert_ok(APPLY(g, "chunks=1", "own_first=always"));
    text = ct_graph_text(g, &arena);
    assert_golden("ring.txt", text);
    assert_string_equal(ct_graph_text(parse(&arena, text), &arena), text);
    ct_arena_finish(&arena);
}

/* ---- order in the program ---- */

static bool waits_for(const struct ct_instruction *i, int32_t event)
{
    for (const int32_t *w = i->waits; event >= 0 && w && *w >= 0; w++)
        if (*w == event)
            return true;
    return false;
}

/* Must instruction b come after a: by its stream, by events, or by others between? */
static bool ordered(const struct ct_program *p, size_t a, size_t b)
{
    bool after[256] = {false};

    assert_true(p->step_count <= CT_COUNT(after));
    after[a] = true;
    for (size_t n = a + 1; n <= b; n++)
        for (size_t m = a; m < n && !after[n]; m++)
            after[n] = after[m] && (p->step[m].stream == p->step[n].stream ||
                                    waits_for(&p->step[n], p->step[m].signal));
    return after[b];
}

/* The instruction that makes the value of that name. */
static size_t made(const struct ct_program *p, const char *name)
{
    for (size_t n = 0; n < p->step_count; n++)
        for (int i = 0; i < p->step[n].op->outs; i++)
            if (!strcmp(p->step[n].op->out[i]->name, name))
                return n;
    fail_msg("nothing makes %s", name);
    return 0;
}

static bool side_by_side(const struct ct_program *p, const char *a, const char *b)
{
    size_t x = made(p, a), y = made(p, b);

    return x < y ? !ordered(p, x, y) : !ordered(p, y, x);
}

/* The gather of a chunk and the products of the one before; the scatter of a chunk and the products
   of the next. Every chunk's own product does wait for its gather, and its scatter for it. */
static void exchanges_run_beside_products(void **state)
{
    enum { CHUNKS = 4 };
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layer);
    struct machine m;

    (void)state;
    assert_ok(APPLY(g, "chunks=4", "own_first=never"));
    machine_lower(&m, g, NULL, 1, FORWARD);
    for (int c = 0; c < CHUNKS; c++) {
        const char *gather = ct_arena_printf(&arena, "whole.chunk%d", c);
        const char *product = ct_arena_printf(&arena, "a.chunk%d", c);
        const char *sum = ct_arena_printf(&arena, "d.chunk%d", c); /* is added to c */
        const char *scatter = ct_arena_printf(&arena, "y.chunk%d", c);

        assert_int_equal(m.program->step[made(m.program, gather)].stream,
                         ct_stream("chunk", CT_STREAM_KEEPS));
        assert_int_equal(m.program->step[made(m.program, scatter)].stream,
                         ct_stream("chunk", CT_STREAM_KEEPS));
        assert_false(side_by_side(m.program, gather, product));
        assert_false(side_by_side(m.program, sum, scatter));
        if (c + 1 == CHUNKS)
            break;
        assert_true(made(m.program, ct_arena_printf(&arena, "whole.chunk%d", c + 1)) <
                    made(m.program, product));
        assert_true(
            side_by_side(m.program, ct_arena_printf(&arena, "whole.chunk%d", c + 1), product));
        assert_true(side_by_side(m.program, scatter, ct_arena_printf(&arena, "c.chunk%d", c + 1)));
    }
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* Own rows, chunk 0, wait for no exchange of the gather, and no exchange of the scatter waits for
   them. */
static void own_rows_wait_for_no_rank(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layer);
    struct machine m;

    (void)state;
    assert_ok(APPLY(g, "chunks=2", "own_first=always"));
    machine_lower(&m, g, NULL, 1, FORWARD);
    for (int e = 1; e <= 2; e++) {
        const char *gathered = ct_arena_printf(&arena, "whole.chunk%d", e);
        const char *scattered = ct_arena_printf(&arena, "y.chunk%d", e);

        assert_int_equal(m.program->step[made(m.program, gathered)].stream,
                         ct_stream("chunk", CT_STREAM_KEEPS));
        assert_true(e > 1 || side_by_side(m.program, gathered, "a.chunk0"));
        assert_true(e < 2 || side_by_side(m.program, gathered, "a.chunk1"));
        assert_false(side_by_side(m.program, gathered, ct_arena_printf(&arena, "a.chunk%d", e)));
        assert_true(side_by_side(m.program, scattered, "d.chunk0"));
        assert_false(side_by_side(m.program, scattered, ct_arena_printf(&arena, "d.chunk%d", e)));
    }
    assert_true(made(m.program, "whole.chunk1") < made(m.program, "a.chunk0"));
    assert_true(made(m.program, "d.chunk2") < made(m.program, "d.chunk0"));
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static const struct ct_value *value(const struct machine *m, const char *name)
{
    const struct ct_value *v = ct_graph_find(m->graph, name);

    if (!v)
        fail_msg("there is no %s", name);
    return v;
}

static int64_t offset(const struct machine *m, const char *name)
{
    return (int64_t)m->program->offsets[value(m, name)->id];
}

/* Own rows lie at another place of the whole on each rank, and are computed there. (Those of b are
   not aligned.) */
static void parts_of_a_ring_are_not_copied(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = parse(&arena, layer);
        struct machine m;
        ptrdiff_t row;

        assert_ok(APPLY(g, "chunks=1", "own_first=always"));
        machine_lower_rank(&m, g, rank);
        for (size_t n = 0; n < m.program->step_count; n++)
            assert_false(m.program->step[n].op->type->part &&
                         *m.program->step[n].op->out[0]->name == 'a');
        row = 4 * m.program->tensors[value(&m, "a")->id].stride[1];
        assert_int_equal(offset(&m, "a.chunk0") - offset(&m, "a"), 8 * rank * row);
        assert_int_equal(offset(&m, "a.chunk1") - offset(&m, "a"), 8 * (1 - rank) * row);
        machine_finish(&m);
        ct_arena_finish(&arena);
    }
}

/* ---- choices ---- */

static int chunks_with(const char *const *settings)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layer);
    int count;

    assert_ok(apply(g, settings));
    count = (int)count_ops(g, "all_gather");
    assert_int_equal(count_ops(g, "reduce_scatter"), count);
    if (!count) { /* a ring */
        count = (int)count_ops(g, "permute");
        assert_int_equal(count % 2, 0);
        count /= -2;
    }
    ct_arena_finish(&arena);
    return count;
}
#define CHUNKS_WITH(...) chunks_with((const char *const[]){__VA_ARGS__, NULL})

#define NEVER "own_first=never"
#define RING(exchanges) (-(exchanges))

/* A gather sends 128 bytes beside 896 operations. */
static void rates_decide_on_chunks(void **state)
{
    (void)state;
    assert_int_equal(CHUNKS_WITH("link=1", "tflops=1"), 1);
    assert_int_equal(CHUNKS_WITH(NEVER, "link=1", "tflops=1", "chunk_cost=0"), 8);
    assert_int_equal(CHUNKS_WITH(NEVER, "link=0.001", "tflops=0.000007", "chunk_cost=20"), 3);
    assert_int_equal(CHUNKS_WITH(NEVER, "machine=" GOLDEN_FOLDER "/machine.ini"), 4);
    assert_int_equal(CHUNKS_WITH(NEVER, "machine=" GOLDEN_FOLDER "/machine.ini", "chunks=5"), 5);
    assert_int_equal(CHUNKS_WITH(NEVER, "link=1", "tflops=1", "chunks=5"), 5);
    assert_int_equal(CHUNKS_WITH(NEVER, "chunks=1000"), 8);
    assert_int_equal(CHUNKS_WITH("chunks=1"), 1);
    assert_int_equal(CHUNKS_WITH("link=0.001", "tflops=0.000007", "chunk_cost=20"), RING(2));
    assert_int_equal(CHUNKS_WITH("link=0.001", "tflops=1", "chunk_cost=0"), RING(8));
    assert_int_equal(CHUNKS_WITH("machine=" GOLDEN_FOLDER "/machine.ini"), RING(3));
    assert_int_equal(CHUNKS_WITH("own_first=always", "link=1", "tflops=1"), 1);
    assert_int_equal(CHUNKS_WITH("own_first=always", "chunks=1"), RING(1));
    assert_int_equal(CHUNKS_WITH("own_first=always", "chunks=1000"), RING(8));
}

/* The layer with every `was` replaced; text: room for twice its size. */
static const char *changed(const char *was, const char *is, char *text)
{
    const char *from = layer, *at;

    *text = '\0';
    while ((at = strstr(from, was))) {
        strncat(text, from, (size_t)(at - from));
        strcat(text, is);
        from = at + strlen(was);
    }
    return strcat(text, from);
}

/* Whole sequences are contiguous: only the input and what is fetched, which have memory of their
   own, are copied. */
static void chunks_of_sequences_are_not_copied(void **state)
{
    char text[2 * sizeof(layer)];
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, changed("[1,16,", "[8,16,", text));
    struct machine m;
    int copies = 0;

    (void)state;
    assert_ok(APPLY(g, "chunks=4", "own_first=never"));
    assert_true(count_ops(g, "narrow") >= 8 && count_ops(g, "concat") >= 2);
    machine_lower(&m, g, NULL, 1, FORWARD);
    for (size_t n = 0; n < m.program->step_count; n++) {
        const struct ct_op *op = m.program->step[n].op;

        copies += op->type == &ct_op_narrow || op->type == &ct_op_concat;
    }
    assert_int_equal(copies, 5);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* With the line that says why a collective stays one. */
static void reasons_are_said(void **state)
{
    static const struct {
        const char *was, *is, *says;
    } cases[] = {
        {"[1,16,", "[1,15,", "tp_async: at once, as the sequence is split unevenly"},
        {"[1,16,", "[1,2,", "tp_async: at once, as a rank has only one row"},
        {"%sum = add(%c, %d) :", "%sum = scale(%c) {factor=2} :",
         "tp_async: at once, as %sum is made by scale"},
        {"fetch y = %y",
         "F layers.0 %e = scale(%c) {factor=2} : float32[1,16,4] +{tp}\nfetch y = %y",
         "tp_async: at once, as %c is used by others, too"},
        {"%a, %b = linear(%whole, %w0, %w1)",
         "%z = silu(%whole) : float32[1,16,4]\nF layers.0 %a, %b = linear(%z, %w0, %w1)",
         "tp_async: at once, as no product takes it by rows"},
        {"%y = ", "%y = ", "tp_async: at once, as chunks do not pay"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        char text[2 * sizeof(layer)];
        struct ct_graph *g = parse(&arena, changed(cases[i].was, cases[i].is, text));

        if (i + 1 == CT_COUNT(cases))
            assert_ok(APPLY(g, "link=1000"));
        else
            assert_ok(APPLY(g, "chunks=4"));
        if (!strstr(ct_graph_text(g, &arena), cases[i].says))
            fail_msg("\"%s\" is not in\n%s", cases[i].says, ct_graph_text(g, &arena));
        ct_arena_finish(&arena);
    }
}

/* As is what [tp_async] itself rules out. */
static void what_settings_rule_out_is_said(void **state)
{
    static const struct {
        const char *batch, *own_first, *chunks, *says;
    } cases[] = {
        {"[2,15,", "own_first=always", "chunks=0", "a ring needs sequences that are split evenly"},
        {"[2,15,", "own_first=always", "chunks=4", "a ring needs sequences that are split evenly"},
        {"[2,15,", "own_first=auto", "chunks=1", "[tp_async] chunks = 1\n"},
        {"[2,16,", "own_first=never", "chunks=1", "[tp_async] chunks = 1\n"},
        {"[2,16,", "own_first=auto", "chunks=1", "[tp_async] chunks = 1, and a ring does not pay"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        char text[2 * sizeof(layer)];
        struct ct_graph *g = parse(&arena, changed("[1,16,", cases[i].batch, text));

        assert_ok(APPLY(g, "link=1000", cases[i].own_first, cases[i].chunks));
        if (!strstr(ct_graph_text(g, &arena), cases[i].says))
            fail_msg("\"%s\" is not in\n%s", cases[i].says, ct_graph_text(g, &arena));
        ct_arena_finish(&arena);
    }
}

/* Measurements, which may be others tomorrow, are refused only where they decide. */
static void a_deterministic_run_chooses_by_no_measurement(void **state)
{
    static const char *const decided[] = {"own_first=never", "own_first=always"};
    struct ct_arena arena = {0};
    const char *folder = test_folder(), *path = ct_arena_printf(&arena, "%s/m.ini", folder);
    const char *machine = ct_arena_printf(&arena, "machine=%s", path);
    char *text;
    size_t size;

    (void)state;
    assert_ok(ct_file_read(&arena, GOLDEN_FOLDER "/machine.ini", 1 << 16, &text, &size));
    text = ct_arena_printf(&arena, "%s\n[calls]\nsilu = 8,4:float32 1e-3\n", text);
    test_write(path, text, strlen(text));
    ct_config.deterministic = true;
    for (size_t i = 0; i < CT_COUNT(decided); i++) {
        assert_ok(APPLY(parse(&arena, layer), machine, decided[i], "chunks=2"));
        assert_int_equal(APPLY(parse(&arena, layer), machine, decided[i]), CT_ECONFIG);
    }
    assert_int_equal(APPLY(parse(&arena, layer), machine, "chunks=2"), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "the pipelines would depend on what was measured"));
    ct_config.deterministic = false;
    test_remove(folder);
    ct_arena_finish(&arena);
}

static void without_sequence_parallelism_it_is_refused(void **state)
{
    static const char whole[] = "graph \"whole\"\n"
                                "mesh tp=2\n"
                                "input %x : float32[1,16,4]\n"
                                "param %w : float32[8,4] [tp, -]\n"
                                "param %w2 : float32[4,8] [-, tp]\n"
                                "F layers.0 %a = linear(%x, %w) : float32[1,16,8] [-, -, tp]\n"
                                "F layers.0 %sum = linear(%a, %w2) : float32[1,16,4] +{tp}\n"
                                "F layers.0 %y = all_reduce(%sum) {axes=\"tp\"} : float32[1,16,4]\n"
                                "fetch loss = %y\n";
    struct ct_arena arena = {0};
    char *tokens = ct_arena_strdup(&arena, whole); /* of `generate`: no loss */

    (void)state;
    memcpy(strstr(tokens, "loss"), "last", 4);
    assert_ok(APPLY(parse(&arena, tokens), "chunks=2"));
    assert_int_equal(APPLY(parse(&arena, whole), "chunks=2"), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "%y is all-reduced along tp"));
    assert_non_null(strstr(ct_error_message(), "set [tp] sequence_parallel = true"));
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_is_as_agreed),
        cmocka_unit_test(ring_is_as_agreed),
        cmocka_unit_test(exchanges_run_beside_products),
        cmocka_unit_test(own_rows_wait_for_no_rank),
        cmocka_unit_test(parts_of_a_ring_are_not_copied),
        cmocka_unit_test(rates_decide_on_chunks),
        cmocka_unit_test(chunks_of_sequences_are_not_copied),
        cmocka_unit_test(reasons_are_said),
        cmocka_unit_test(what_settings_rule_out_is_said),
        cmocka_unit_test(a_deterministic_run_chooses_by_no_measurement),
        cmocka_unit_test(without_sequence_parallelism_it_is_refused),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
