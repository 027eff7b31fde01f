/*
 * The verifier: every fault that it knows, made one at a time, is named with the op and the value;
 * several faults are all listed.
 */
#include <stdio.h>

#include <ctitan/app/verify.h>

#include "support.h"

static const char *const sound = "graph \"g\"\n"
                                 "mesh dp=2 tp=2\n"
                                 "param %w : float32[4,4]\n"
                                 "state %m : float32[4,4]\n"
                                 "input %x : float32[2,4]\n"
                                 "scalar %lr : float64[]\n"
                                 "init - init_constant(%w)\n"
                                 "pre - %wb = cast(%w) {dtype=\"float64\"} : float64[4,4]\n"
                                 "F a %xb = cast(%x) {dtype=\"float64\"} : float64[2,4]\n"
                                 "F a %y = linear(%xb, %wb) : float64[2,4]\n"
                                 "F a %z = add(%y, %xb) : float64[2,4]\n"
                                 "W a %dw = linear_dw(%xb, %y) : float64[4,4]\n"
                                 "post - %n = squared_norm(%dw) : float64[]\n"
                                 "fetch z = %z\n"
                                 "fetch n = %n\n"
                                 "grad %w = %dw\n";

static struct ct_value *value(struct ct_graph *graph, const char *name)
{
    struct ct_value *v = ct_graph_find(graph, name);

    assert_non_null(v);
    return v;
}

static struct ct_value *stranger(struct ct_graph *graph)
{
    struct ct_graph *other = ct_graph_create(graph->arena, "other");

    return ct_graph_source(other, CT_ROLE_STATE, "stranger", CT_F64, 2, (int64_t[]){2, 4});
}

static void take_a_stranger(struct ct_graph *g)
{
    ct_op_set_input(value(g, "z")->producer, 0, stranger(g));
}

static void make_a_stranger(struct ct_graph *g)
{
    value(g, "z")->producer->out[0] = stranger(g);
}

static void use_before_definition(struct ct_graph *g)
{
    struct ct_op *y = value(g, "y")->producer, *z = value(g, "z")->producer;

    ct_op_move(g, y, z->next);
}

static void use_what_post_makes(struct ct_graph *g)
{
    ct_op_set_part(g, value(g, "n")->producer, CT_PART_F);
    ct_op_set_part(g, value(g, "dw")->producer, CT_PART_POST);
}

static void use_a_weight_gradient_in_I(struct ct_graph *g)
{
    ct_op_set_part(g, value(g, "n")->producer, CT_PART_I);
}

static void feed_pre(struct ct_graph *g)
{
    ct_op_set_part(g, value(g, "xb")->producer, CT_PART_PRE);
}

static void feed_post(struct ct_graph *g)
{
    ct_op_set_part(g, value(g, "xb")->producer, CT_PART_POST);
}

static void update_an_input(struct ct_graph *g)
{
    ct_op_set_input(g->first, 0, value(g, "x"));
}

static void update_a_scalar(struct ct_graph *g)
{
    ct_op_set_input(g->first, 0, value(g, "lr"));
}

static void update_in_forward(struct ct_graph *g)
{
    ct_op_set_part(g, g->first, CT_PART_F);
}

static void define_twice(struct ct_graph *g)
{
    value(g, "z")->producer->out[0] = value(g, "y");
}

static void forget_the_producer(struct ct_graph *g)
{
    value(g, "z")->producer = value(g, "y")->producer;
}

static void cut_by_an_axis_twice(struct ct_graph *g)
{
    struct ct_sharding *s = &value(g, "z")->sharding;

    s->count[0] = s->count[1] = 1;
    s->axis[0][0] = s->axis[1][0] = 1;
}

static void cut_what_is_not_there(struct ct_graph *g)
{
    ct_sharding_split(&value(g, "m")->sharding, 2, 0);
}

static void cut_outside_the_mesh(struct ct_graph *g)
{
    ct_sharding_split(&value(g, "w")->sharding, 0, 5);
}

static void mix_dtypes(struct ct_graph *g)
{
    ct_op_set_input(value(g, "y")->producer, 1, value(g, "w"));
}

static void leave_out_an_operand(struct ct_graph *g)
{
    ct_op_set_input(value(g, "z")->producer, 1, NULL);
}

static void change_a_dtype(struct ct_graph *g)
{
    value(g, "z")->dtype = CT_F32;
}

static void change_a_shape(struct ct_graph *g)
{
    value(g, "z")->shape[1] = 5;
}

static void change_a_rank(struct ct_graph *g)
{
    value(g, "n")->ndim = 1;
    value(g, "n")->shape[0] = 1;
}

static void lose_the_role(struct ct_graph *g)
{
    value(g, "m")->role = CT_ROLE_TEMP;
}

static void empty_a_dimension(struct ct_graph *g)
{
    value(g, "m")->shape[1] = 0;
}

static void overflow_a_count(struct ct_graph *g)
{
    value(g, "m")->shape[0] = value(g, "m")->shape[1] = (int64_t)1 << 40;
}

static void leave_the_sections(struct ct_graph *g)
{
    static const struct ct_section foreign = {"F", CT_PART_F, CT_NO_GROUP, 0};

    value(g, "z")->producer->section = &foreign;
}

static void fill_too_late(struct ct_graph *g)
{
    struct ct_builder b = ct_builder_at_end(g, CT_PART_INIT, "");

    ct_init_constant(&b, value(g, "w"), 1);
}

static void leave_the_streams(struct ct_graph *g)
{
    value(g, "z")->producer->stream = CT_STREAMS;
}

static void fetch_nothing(struct ct_graph *g)
{
    ct_graph_remove(g, value(g, "z")->producer);
}

static void grade_with_nothing(struct ct_graph *g)
{
    ct_value_set_grad(value(g, "m"), stranger(g));
}

static void grade_in_another_shape(struct ct_graph *g)
{
    ct_value_set_grad(value(g, "w"), value(g, "xb"));
}

static void fetch_what_is_used(struct ct_graph *g)
{
    ct_graph_fetch(g, "y", value(g, "y"));
}

static void sum_what_is_used(struct ct_graph *g)
{
    ct_op_set_input(value(g, "n")->producer, 0, value(g, "y"));
}

static const struct {
    const char *says;
    void (*harm)(struct ct_graph *graph);
} cases[] = {
    {"add(z): input 0, %stranger, is not a value of this graph", take_a_stranger},
    {"add: output %stranger is not a value of this graph", make_a_stranger},
    {"add(z): %y is used before it is defined", use_before_definition},
    {"squared_norm(n): part F cannot use %dw of part post", use_what_post_makes},
    {"squared_norm(n): part I cannot use %dw of part W", use_a_weight_gradient_in_I},
    {"cast(xb): part pre cannot use %x, an input of each microbatch", feed_pre},
    {"cast(xb): part post cannot use %x, an input of each microbatch", feed_post},
    {"init_constant(x): updates %x, which is neither a parameter nor a state", update_an_input},
    {"init_constant(lr): updates %lr, which is neither a parameter nor a state", update_a_scalar},
    {"init_constant(w): updates %w in part F", update_in_forward},
    {"add: %y is defined twice", define_twice},
    {"add: %z does not name this op as its producer", forget_the_producer},
    {"add: %z: axis tp appears twice", cut_by_an_axis_twice},
    {"%m: dimension 2 is split, but there are only 2", cut_what_is_not_there},
    {"%w: axis 5 is outside the mesh of 2", cut_outside_the_mesh},
    {"linear(%y)", mix_dtypes},
    {"add(%z)", leave_out_an_operand},
    {"add: %z is float32, its inputs make it float64", change_a_dtype},
    {"add: the shape of %z is not what its inputs make it", change_a_shape},
    {"squared_norm: the shape of %n is not what its inputs make it", change_a_rank},
    {"%m has no producer and no role", lose_the_role},
    {"%m: dimension 1 is 0", empty_a_dimension},
    {"%m has more elements than can be counted", overflow_a_count},
    {"add(z): its section is not of this graph", leave_the_sections},
    {"init_constant(w): init ops come in front of all others", fill_too_late},
    {"add(z): there is no stream 12", leave_the_streams},
    {"fetch z: %z is not made by any op", fetch_nothing},
    {"%m: its gradient, %stranger, is not made by any op", grade_with_nothing},
    {"%w: its gradient, %xb, has another shape", grade_in_another_shape},
    {"add(z): uses %y of one microbatch, but post or a fetch takes its sum over all",
     fetch_what_is_used},
    {"linear_dw(dw): uses %y of one microbatch, but post or a fetch takes its sum over all",
     sum_what_is_used},
};

/* The report on a graph that has faults, in its arena. */
static const char *report_on(const struct ct_graph *graph)
{
    char *text, *copy;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    int rc = ct_graph_verify(graph, out);

    fclose(out);
    assert_true(rc == (*text ? CT_EINVAL : 0));
    copy = ct_arena_strdup(graph->arena, text);
    free(text);
    return copy;
}

static void a_sound_graph_passes(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_ok(ct_graph_verify(parse(&arena, sound), stderr));
    ct_arena_finish(&arena);
}

static void each_fault_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph = parse(&arena, sound);
        const char *report;

        cases[i].harm(graph);
        report = report_on(graph);
        if (!strstr(report, cases[i].says))
            fail_msg("\"%s\" is not in\n%s", cases[i].says, report);
        ct_arena_finish(&arena);
    }
}

static void all_faults_are_listed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, sound);
    const char *report;

    (void)state;
    update_an_input(graph);
    change_a_dtype(graph);
    empty_a_dimension(graph);
    leave_the_sections(graph);
    report = report_on(graph);
    assert_message("%m: dimension 1 is 0 (and more)");
    assert_non_null(strstr(report, "updates %x"));
    assert_non_null(strstr(report, "%z is float32"));
    assert_non_null(strstr(report, "dimension 1 is 0"));
    assert_non_null(strstr(report, "its section is not of this graph"));
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_graph_passes),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(all_faults_are_listed),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
