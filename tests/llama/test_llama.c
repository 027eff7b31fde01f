/*
 * llama: published sizes, as graphs that take no memory; TorchTitan's initialisation; FLOPs; and
 * config.json, written, read, and refused where it asks for what the model does not do.
 */
#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/config.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/ops.h>

#include "plugin_under_test.h"

static const char *folder;

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    return 0;
}

static const struct ct_model_ops *llama(void)
{
    return test_offer(test_plugin("llama"), CT_MODEL);
}

static struct ct_model *model; /* the one that was created last */

static int create(void)
{
    llama()->destroy(model);
    model = NULL;
    return llama()->create(NULL, &model);
}

static void configure(const char *flavor, const char *init_from)
{
    ct_config.model.flavor = flavor;
    ct_config.model.init_from = init_from;
    if (create() < 0)
        fail_msg("%s", ct_error_message());
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    llama()->destroy(model);
    model = NULL;
    return 0;
}

static struct ct_graph *build(struct ct_arena *arena, struct ct_model_request request)
{
    struct ct_graph *graph = ct_graph_create(arena, "llama");

    if (llama()->build(model, graph, &request) < 0 || ct_graph_verify(graph, stderr) < 0)
        fail_msg("%s", ct_error_message());
    return graph;
}

static int64_t count_parameters(const struct ct_graph *graph)
{
    int64_t total = 0;

    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            total += ct_shape_count(graph->values[i]->ndim, graph->values[i]->shape);
    return total;
}

static int64_t parameters(void)
{
    struct ct_arena arena = {0};
    int64_t total =
        count_parameters(build(&arena, (struct ct_model_request){.batch = 1, .seq_len = 8192}));

    ct_arena_finish(&arena);
    return total;
}

static void test_published_sizes(void **state)
{
    static const struct {
        const char *flavor;
        int64_t parameters;
    } published[] = {{"debug", 6163712}, {"1B", 1235814400},   {"3B", 3212749824},
                     {"8B", 8030261248}, {"70B", 70553706496}, {"405B", 405853388800}};

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    for (size_t i = 0; i < CT_COUNT(published); i++) {
        configure(published[i].flavor, "");
        assert_int_equal(parameters(), published[i].parameters);
    }
}

static void test_unknown_flavor(void **state)
{
    (void)state;
    ct_config.model.flavor = "7B";
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("debug, 1B, 3B, 8B, 70B and 405B");
}

/* TorchTitan: 6 per parameter outside the embedding, 12 L H d s for attention. */
static void test_flops(void **state)
{
    double whole, halved;

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    configure("8B", "");
    llama()->flops_per_token(model, 8192, &whole, &halved);
    assert_true(whole == 6 * (8030261248.0 - 128256.0 * 4096) + 12.0 * 32 * 4096 * 8192);
    assert_true(whole - halved == 6.0 * 32 * 4096 * 8192);
    configure("1B", "");
    llama()->flops_per_token(model, 8192, &whole, &halved);
    assert_true(whole == 6 * 1235814400.0 + 12.0 * 16 * 2048 * 8192);
}

static void models_of_two_sizes_live_side_by_side(void **state)
{
    struct ct_model *small;
    double whole, halved;

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    ct_config.model.flavor = "debug";
    ct_config.model.init_from = "";
    assert_int_equal(llama()->create(NULL, &small), 0);
    configure("8B", "");
    assert_int_equal(llama()->vocabulary(small), 2048);
    assert_int_equal(llama()->vocabulary(model), 128256);
    llama()->flops_per_token(small, 8192, &whole, &halved);
    assert_true(whole == 6 * (6163712 - 2048.0 * 256) + 12.0 * 6 * 256 * 8192);
    assert_int_equal(parameters(), 8030261248);
    llama()->destroy(small);
}

static void assert_init(const struct ct_graph *graph, const char *name, double std, double truncate)
{
    ct_for_each_op (op, graph) {
        if (op->section->part != CT_PART_INIT || strcmp(op->in[0]->name, name))
            continue;
        if (std == 0) {
            assert_string_equal(op->type->name, "init_constant");
            assert_true(ct_op_float(op, "value") == 1);
            return;
        }
        assert_string_equal(op->type->name, "init_normal");
        assert_true(fabs(ct_op_float(op, "std") - std) < 1e-12);
        assert_true(ct_op_float(op, "truncate") == truncate);
        return;
    }
    fail_msg("nothing fills %s", name);
}

static void test_initialisation(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    configure("debug", "");
    graph = build(&arena, (struct ct_model_request){.batch = 2, .seq_len = 16});
    assert_init(graph, "model.embed_tokens.weight", 1, 0);
    assert_init(graph, "model.layers.3.self_attn.q_proj.weight", 0.02, 0);
    assert_init(graph, "model.layers.3.self_attn.k_proj.weight", 0.02, 0);
    assert_init(graph, "model.layers.3.self_attn.v_proj.weight", 0.02, 0);
    assert_init(graph, "model.layers.3.mlp.gate_proj.weight", 0.02, 0);
    assert_init(graph, "model.layers.0.self_attn.o_proj.weight", 0.02 / sqrt(2), 0);
    assert_init(graph, "model.layers.3.mlp.up_proj.weight", 0.02 / sqrt(8), 0);
    assert_init(graph, "model.layers.5.mlp.down_proj.weight", 0.02 / sqrt(12), 0);
    assert_init(graph, "model.layers.5.input_layernorm.weight", 0, 0);
    assert_init(graph, "model.norm.weight", 0, 0);
    assert_init(graph, "lm_head.weight", 1.0 / 16, 3);
    TEST_OPTIONS(test_plugin("llama"), "tie_embeddings=true");
    configure("debug", "");
    graph = build(&arena, (struct ct_model_request){.batch = 2, .seq_len = 16});
    assert_init(graph, "model.embed_tokens.weight", 1.0 / 16, 3);
    assert_null(ct_graph_find(graph, "lm_head.weight"));
    ct_arena_finish(&arena);
}

static void test_overrides(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    struct ct_value *v;

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=768", "n_layers=2", "n_heads=12", "n_kv_heads=4",
                 "vocab_size=300");
    configure("8B", "");
    graph = build(&arena, (struct ct_model_request){
                              .batch = 3, .seq_len = 5, .logits = true, .documents = true});
    v = ct_graph_fetched(graph, "logits");
    assert_non_null(v);
    assert_int_equal(v->shape[0], 3);
    assert_int_equal(v->shape[1], 5);
    assert_int_equal(v->shape[2], 300);
    assert_null(ct_graph_find(graph, "labels"));
    assert_non_null(ct_graph_find(graph, "documents"));
    v = ct_graph_find(graph, "model.layers.1.self_attn.k_proj.weight");
    assert_int_equal(v->shape[0], 4 * 64);
    v = ct_graph_find(graph, "model.layers.1.mlp.up_proj.weight");
    assert_int_equal(v->shape[0], 2048);
    assert_null(ct_graph_find(graph, "model.layers.2.mlp.up_proj.weight"));
    ct_arena_finish(&arena);
    TEST_OPTIONS(test_plugin("llama"), "n_kv_heads=3");
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("evenly");
    TEST_OPTIONS(test_plugin("llama"), "dim=100");
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("does not divide");
}

static void write_config_text(const char *text)
{
    char path[4200];

    snprintf(path, sizeof(path), "%s/config.json", folder);
    test_write(path, text, strlen(text));
}

static void test_config_round_trip(void **state)
{
    static const char *const flavors[] = {"debug", "3B", "8B"};
    char path[4200], *first, *second;
    size_t size;
    FILE *out;

    (void)state;
    snprintf(path, sizeof(path), "%s/config.json", folder);
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    for (size_t i = 0; i < CT_COUNT(flavors); i++) {
        configure(flavors[i], "");
        out = open_memstream(&first, &size);
        assert_int_equal(ct_hf_write_config(llama()->description, model, out), 0);
        fclose(out);
        write_config_text(first);
        configure("", folder);
        out = open_memstream(&second, &size);
        assert_int_equal(ct_hf_write_config(llama()->description, model, out), 0);
        fclose(out);
        assert_string_equal(first, second);
        free(first);
        free(second);
    }
}

#define SIZES                                                                                      \
    "\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"      \
    "\"num_hidden_layers\":1,\"num_attention_heads\":4"

#define YARN "\"rope_type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":16"

#define LONG(near, far)                                                                            \
    "\"rope_type\":\"longrope\",\"original_max_position_embeddings\":16,\"short_factor\":[" near   \
    "],\"long_factor\":[" far "]"

#define LLAMA3(factor)                                                                             \
    "\"rope_type\":\"llama3\",\"factor\":" factor ",\"low_freq_factor\":1,\"high_freq_factor\":4"

static void test_config_variants(void **state)
{
    static const struct {
        const char *text, *message; /* NULL: fine */
    } cases[] = {
        {"{" SIZES "}", NULL},
        {"{" SIZES ",\"rope_scaling\":null,\"head_dim\":null,\"pretraining_tp\":2}", NULL},
        {"{" SIZES ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}", NULL},
        {"{" SIZES ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
         NULL},
        {"{" SIZES ",\"max_position_embeddings\":9,"
         "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}",
         "low_freq_factor is missing"},
        {"{" SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL},
        {"{" SIZES ",\"rope_scaling\":{\"factor\":2}}", "no rope_type"},
        {"{" SIZES ",\"rope_scaling\":[2]}", "rope_scaling is not an object"},
        {"{" SIZES ",\"rope_scaling\":{\"rope_type\":1}}", "rope_scaling: rope_type is not a"},
        {"{" SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"},"
         "\"rope_scaling\":{\"rope_type\":\"ntk\",\"factor\":2}}",
         "rope_scaling: rope_type ntk is not supported; llama3, yarn, linear, dynamic, longrope "
         "and default are"},
        {"{" SIZES ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}}", NULL},
        {"{" SIZES ",\"rope_scaling\":{" YARN ",\"mscale\":\"1\",\"mscale_all_dim\":1}}",
         "mscale is not a positive number"},
        {"{" SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"mscale_all_dim\":1}}",
         "mscale_all_dim of rope_type linear is not supported"},
        {"{" SIZES ",\"rope_scaling\":{" LONG("1,2,3,4", "1,2,3,4") "}}", NULL},
        {"{" SIZES ",\"rope_scaling\":{" LONG("1,2,3,4", "1,2,3,4") ",\"mscale\":1}}",
         "mscale of rope_type longrope is not supported"},
        {"{" SIZES ",\"rope_scaling\":{" LONG("1,2", "1,2,3,4") "}}",
         "short_factor of rope has 2 numbers; 8 rotated features need 4"},
        {"{" SIZES ",\"rope_scaling\":{" LONG("1,2,3,4", "1,2,3,4,5") "}}",
         "long_factor of rope has 5 numbers; 8 rotated features need 4"},
        {"{" SIZES ",\"head_dim\":0}", "head_dim is 0; expected 1 to"},
        {"{" SIZES ",\"num_key_value_heads\":\"auto\"}",
         "num_key_value_heads is not a whole number"},
        {"{" SIZES ",\"rope_scaling\":{" YARN ",\"attention_factor\":\"1\"}}",
         "attention_factor is not a positive number"},
        {"{" SIZES ",\"rope_scaling\":{" YARN ",\"truncate\":0}}", "truncate is neither true nor"},
        {"{" SIZES ",\"rope_scaling\":{" YARN ",\"attention_factor\":1,\"beta_slow\":33}}",
         "beta_slow is above beta_fast"},
        {"{" SIZES ",\"rope_scaling\":{\"type\":\"yarn\",\"mscale\":1}}", "factor is missing"},
        {"{" SIZES ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}}", NULL},
        {"{" SIZES ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":0.5}}",
         "rope_parameters: a factor of 0.5 is below 1"},
        {"{" SIZES ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
         "full_attention"},
        {"{" SIZES ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
         "partial_rotary_factor = 0.5 is not supported"},
        {"{" SIZES ",\"partial_rotary_factor\":0.1}", "partial_rotary_factor = 0.1 is not"},
        {"{" SIZES ",\"rope_scaling\":{" LLAMA3("0.5") "},\"max_position_embeddings\":9}",
         "a factor of 0.5 is below 1"},
        {"{" SIZES ",\"rope_scaling\":{" LLAMA3("8") "}}",
         "original_max_position_embeddings is missing"},
        {"{" SIZES ",\"is_causal\":false}", "is_causal = false"},
        {"{" SIZES ",\"is_causal\":true,\"hidden_act\":\"swish\"}", NULL},
        {"{" SIZES ",\"attention_bias\":true,\"mlp_bias\":true}", NULL},
        {"{" SIZES ",\"hidden_act\":\"gelu\"}", "hidden_act = \"gelu\""},
        {"{" SIZES ",\"sliding_window\":4096}", "sliding_window = 4096"},
        {"{" SIZES ",\"quantization_config\":{\"bits\":4}}", "quantization_config"},
        {"{" SIZES ",\"num_key_value_heads\":3}", "evenly"},
        {"{" SIZES ",\"num_key_value_heads\":\"2\"}", "num_key_value_heads is not a whole number"},
        {"{" SIZES ",\"rms_norm_eps\":-1}", "rms_norm_eps is not a positive number"},
        {"{" SIZES ",\"tie_word_embeddings\":1}", "tie_word_embeddings"},
        {"{\"model_type\":\"llama\"}", "vocab_size is missing"},
        {"{\"model_type\":\"mistral\"}", "mistral"},
        {"{}", "model_type is missing"},
        {"[1]", "not a JSON object"},
        {"{", "config.json:1"},
    };

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    ct_config.model.init_from = folder;
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("config.json: No such file");
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        write_config_text(cases[i].text);
        if (create() != (cases[i].message ? CT_ECONFIG : 0))
            fail_msg("%s: %s", cases[i].text, ct_error_message());
        if (cases[i].message)
            assert_message(cases[i].message);
    }
}

/* Values that config.json leaves out are those that transformers assumes. */
static void test_config_fallbacks(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    struct ct_value *k;

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    write_config_text("{" SIZES "}");
    configure("", folder);
    graph = build(&arena, (struct ct_model_request){.batch = 1, .seq_len = 8});
    k = ct_graph_find(graph, "model.layers.0.self_attn.k_proj.weight");
    assert_int_equal(k->shape[0], 32);
    ct_for_each_op (op, graph) {
        if (!strcmp(op->type->name, "rope")) {
            assert_true(ct_op_float(op, "theta") == 10000);
            assert_true(ct_op_float(op, "factor") == 1);
        }
        if (strstr(op->type->name, "rms_norm"))
            assert_true(ct_op_float(op, "eps") == 1e-6);
    }
    ct_arena_finish(&arena);
}

struct rope_case {
    const char *text;
    double theta, factor, original;
    double beta_fast, beta_slow, mscale_all_dim, amplitude; /* of YaRN */
    bool fractional;
};

static void check_rope(const struct rope_case *c)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = build(&arena, (struct ct_model_request){.batch = 1, .seq_len = 8});
    int seen = 0;

    ct_for_each_op (op, graph) {
        const struct ct_rope *rope = op->attrs;
        double amplitude = c->amplitude > 0 ? c->amplitude : 1;

        if (op->type == &ct_op_attention && op->section->part == CT_PART_F && c->amplitude > 0)
            assert_float_equal(ct_op_float(op, "scale"), amplitude * amplitude / sqrt(8), 1e-6);
        if (op->section->part != CT_PART_F || strcmp(op->type->name, "rope"))
            continue;
        assert_true(rope->theta == c->theta && rope->factor == c->factor);
        assert_int_equal(rope->original_max_position, c->original);
        assert_int_equal(rope->scaling, c->beta_fast > 0 ? CT_ROPE_YARN : CT_ROPE_LLAMA3);
        assert_true(rope->beta_fast == c->beta_fast && rope->beta_slow == c->beta_slow);
        assert_true(rope->mscale_all_dim == c->mscale_all_dim);
        assert_true(rope->fractional == c->fractional);
        seen++;
    }
    assert_int_equal(seen, 2);
    ct_arena_finish(&arena);
}

/* The rope that transformers 5.24 makes of it; and what is written means the same. */
static void rope_is_that_of_transformers(void **state)
{
    static const struct rope_case cases[] = {
        {"\"rope_theta\":777", 777, 1, 0},
        {"\"rope_theta\":777,\"rope_scaling\":{}", 777, 1, 0},
        {"\"rope_theta\":777,\"rope_parameters\":{}", 777, 1, 0},
        {"\"rope_parameters\":{\"rope_theta\":777}", 777, 1, 0},
        {"\"rope_parameters\":{\"rope_theta\":777},\"rope_theta\":555", 777, 1, 0},
        {"\"rope_parameters\":{\"rope_theta\":null},\"rope_theta\":777", 777, 1, 0},
        {"\"rope_parameters\":{\"rope_theta\":777},\"rope_scaling\":{\"type\":\"default\"}", 10000,
         1, 0},
        {"\"rope_parameters\":{\"rope_theta\":777},\"rope_theta\":555,\"rope_scaling\":{" LLAMA3(
             "8") ",\"original_max_position_embeddings\":16}",
         555, 8, 16},
        {"\"rope_parameters\":{\"rope_theta\":777," LLAMA3("8") "},\"rope_scaling\":{" LLAMA3(
             "4") ",\"rope_theta\":555,\"original_max_position_embeddings\":16}",
         555, 4, 16},
        {"\"original_max_position_embeddings\":64,\"rope_scaling\":{" LLAMA3(
             "8") ",\"original_max_position_embeddings\":16}",
         10000, 8, 64},
        {"\"max_position_embeddings\":32,\"rope_scaling\":{" LLAMA3("8") "}", 10000, 8, 32},
        {"\"max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
         "\"attention_factor\":1.0}",
         10000, 2, 32, 32, 1, 0, 1},
        {"\"rope_parameters\":{" YARN ",\"rope_theta\":777,\"mscale\":0.7,\"mscale_all_dim\":0.7,"
         "\"beta_fast\":8,\"beta_slow\":2}",
         777, 40, 16, 8, 2, 0.7, 1},
        {"\"rope_scaling\":{" YARN "}", 10000, 40, 16, 32, 1, 0, 1.368887945411394},
        {"\"rope_scaling\":{" YARN ",\"mscale_all_dim\":1,\"truncate\":false}", 10000, 40, 16, 32,
         1, 1, 1.368887945411394, true},
        {"\"rope_scaling\":{" YARN ",\"mscale\":1,\"mscale_all_dim\":0.5}", 10000, 40, 16, 32, 1,
         0.5, 1.155723},
        {"\"rope_scaling\":{" YARN ",\"mscale\":1,\"mscale_all_dim\":1,\"attention_factor\":1.25}",
         10000, 40, 16, 32, 1, 1, 1.25},
    };

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        char text[1024], *written;
        size_t size;
        FILE *out = open_memstream(&written, &size);

        snprintf(text, sizeof(text), "{" SIZES ",%s}", cases[i].text);
        write_config_text(text);
        configure("", folder);
        check_rope(&cases[i]);
        assert_int_equal(ct_hf_write_config(llama()->description, model, out), 0);
        fclose(out);
        write_config_text(written);
        configure("", folder);
        check_rope(&cases[i]);
        free(written);
    }
    TEST_OPTIONS(test_plugin("llama"), "rope_factor=0.5");
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("rope_factor = 0.5 is below 1");
}

/* Numbers that C cannot hold are written as they were read; one that is used is refused. */
static void test_config_numbers(void **state)
{
    static const char *const others[] = {"\"model_max_length\": 1000000000000000019884624838656",
                                         "\"most\": Infinity", "\"id\": 12345678901234567891",
                                         "\"tiny\": 1e-05"};
    char *written;
    size_t size;
    FILE *out = open_memstream(&written, &size);

    (void)state;
    TEST_OPTIONS(test_plugin("llama"), "dim=0");
    ct_config.model_ignore = "most, id, tiny";
    write_config_text("{" SIZES ",\"model_max_length\":1000000000000000019884624838656,"
                      "\"most\":Infinity,\"id\":12345678901234567891,\"tiny\":1e-05}");
    configure("", folder);
    assert_int_equal(create(), 0);
    assert_int_equal(ct_hf_write_config(llama()->description, model, out), 0);
    fclose(out);
    for (size_t i = 0; i < CT_COUNT(others); i++)
        if (!strstr(written, others[i]))
            fail_msg("%s is not in %s", others[i], written);
    free(written);
    write_config_text("{" SIZES ",\"rope_theta\":Infinity}");
    assert_int_equal(create(), CT_ECONFIG);
    assert_message("rope_theta is not a positive number");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_published_sizes),
                                       TEST(test_unknown_flavor),
                                       TEST(test_flops),
                                       TEST(test_initialisation),
                                       TEST(test_overrides),
                                       TEST(test_config_round_trip),
                                       TEST(test_config_numbers),
                                       TEST(models_of_two_sizes_live_side_by_side),
                                       TEST(test_config_variants),
                                       TEST(test_config_fallbacks),
                                       TEST(rope_is_that_of_transformers)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
