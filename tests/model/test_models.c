/*
 * deepseek_v3, gpt2, gpt_oss, llama4, qwen3 and qwen3_moe: published sizes, as graphs that take no
 * memory; what a config.json may not ask for.
 */
#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/config.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "plugin_under_test.h"

static const struct ct_model_ops *ops_of(const char *name)
{
    return test_offer(test_plugin(name), CT_MODEL);
}

static int64_t parameters(const char *name, const char *flavor)
{
    const struct ct_model_ops *ops = ops_of(name);
    struct ct_model_request request = {.batch = 1, .seq_len = 64};
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, name);
    struct ct_model *model;
    int64_t total = 0;

    ct_config.model.flavor = flavor;
    ct_config.model.init_from = "";
    if (ops->create(NULL, &model) < 0 || ops->build(model, graph, &request) < 0 ||
        ct_graph_verify(graph, stderr) < 0)
        fail_msg("%s", ct_error_message());
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            total += ct_shape_count(graph->values[i]->ndim, graph->values[i]->shape);
    ops->destroy(model);
    ct_arena_finish(&arena);
    return total;
}

static void sizes_equal_the_published_ones(void **state)
{
    static const struct {
        const char *model, *flavor;
        int64_t parameters;
    } published[] = {
        {"gpt2", "124M", 124439808},
        {"gpt2", "355M", 354823168},
        {"gpt2", "774M", 774030080},
        {"gpt2", "1558M", 1557611200},
        {"qwen3", "0.6B", 596049920},
        {"qwen3", "1.7B", 1720574976},
        {"qwen3", "4B", 4022468096},
        {"qwen3", "8B", 8190735360},
        {"qwen3", "14B", 14768307200},
        {"qwen3", "32B", 32762123264},
        {"deepseek_v3", "16B-A3B", 15960110208},
        {"deepseek_v3", "671B-A37B", 671026419200},
        {"deepseek_v3", "1T-A32B", 1026408232448},
        {"gpt_oss", "20B", 20914757184},
        {"gpt_oss", "120B", 116829156672},
        {"llama4", "17Bx16E", 107769861120},
        {"llama4", "17Bx128E", 400711848960},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(published); i++) {
        TEST_OPTIONS(test_plugin(published[i].model), "dim=0");
        assert_int_equal(parameters(published[i].model, published[i].flavor),
                         published[i].parameters);
    }
}

/* A token's FLOPs are three times those of the forward's ops. Weights of norms
   count there, a `share` at most. Destroys the model. */
static void check_flops(const struct ct_model_ops *ops, struct ct_model *model, double share)
{
    struct ct_model_request request = {.batch = 2, .seq_len = 256};
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "flops");
    double sum = 0, whole, halved;

    assert_int_equal(ops->build(model, graph, &request), 0);
    ct_for_each_op (op, graph)
        sum += op->section->part == CT_PART_F ? ct_op_flops(graph, op, 0) : 0;
    ops->flops_per_token(model, request.seq_len, &whole, &halved);
    assert_float_equal(3 * sum / (2 * 256) / halved, 1, share);
    assert_true(whole > halved);
    ops->destroy(model);
    ct_arena_finish(&arena);
}

static void flops_are_those_of_the_graph(void **state)
{
    static const struct {
        const char *name, *option;
    } models[] = {
        {"gpt2", "dim=0"},
        {"qwen3", "dim=0"},
        {"qwen3_moe", "dim=0"},
        {"deepseek_v3", "dim=0"},
        {"gpt_oss", "dim=0"},
        {"llama4", "attention_chunk_size=256"}, /* ops do not know of chunks */
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(models); i++) {
        const struct ct_model_ops *ops = ops_of(models[i].name);
        struct ct_model *model;

        TEST_OPTIONS(test_plugin(models[i].name), models[i].option);
        ct_config.model.flavor = "debug";
        ct_config.model.init_from = "";
        assert_int_equal(ops->create(NULL, &model), 0);
        check_flops(ops, model, 1e-3);
    }
}

/* Create a model by the text of a config.json. */
static int create_for(struct ct_run *run, const char *text, const char *name,
                      struct ct_model **model)
{
    const char *folder = test_folder();
    char path[4200];
    int rc;

    snprintf(path, sizeof(path), "%s/config.json", folder);
    TEST_OPTIONS(test_plugin(name), "dim=0");
    test_write(path, text, strlen(text));
    ct_config.model.init_from = folder;
    rc = ops_of(name)->create(run, model);
    test_remove(folder);
    return rc;
}

static int create_from(const char *text, const char *name, struct ct_model **model)
{
    return create_for(NULL, text, name, model);
}

#define DEEPSEEK                                                                                   \
    "\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,"       \
    "\"num_attention_heads\":4,\"qk_rope_head_dim\":4,\"qk_nope_head_dim\":8,\"v_head_dim\":8,"    \
    "\"kv_lora_rank\":16,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"topk_group\":1,"       \
    "\"moe_intermediate_size\":16"

#define QWEN3                                                                                      \
    "\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"      \
    "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":4"

#define GPT_OSS                                                                                    \
    "\"model_type\":\"gpt_oss\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"    \
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_local_experts\":4"

#define LLAMA4                                                                                     \
    "\"model_type\":\"llama4_text\",\"vocab_size\":64,\"hidden_size\":32,\"num_hidden_layers\":3"

static void flops_of_windows_are_those_of_the_graph(void **state)
{
    static const char text[] =
        "{" QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":0}";
    struct ct_model *model;

    (void)state;
    assert_int_equal(create_from(text, "qwen3", &model), 0);
    check_flops(ops_of("qwen3"), model, 1e-2);
}

static void lists_of_divisors_have_a_limit(void **state)
{
    static const char begin[] = "{" GPT_OSS ",\"rope_scaling\":{\"rope_type\":\"longrope\","
                                "\"original_max_position_embeddings\":64,\"short_factor\":[1";
    static const char end[] = "],\"long_factor\":[1]}}";
    size_t count = 50000;
    char *text = malloc(sizeof(begin) + 2 * count + sizeof(end)), *at = stpcpy(text, begin);
    struct ct_model *model;

    (void)state;
    for (size_t i = 0; i < count; i++)
        at = stpcpy(at, ",1");
    strcpy(at, end);
    assert_int_equal(create_from(text, "gpt_oss", &model), CT_ECONFIG);
    assert_message("short_factor is not a list of numbers, at most 50000");
    free(text);
}

static void keep_line(enum ct_log_level level, const char *line, void *context)
{
    if (level == CT_LOG_WARNING)
        strcat(context, line);
}

/* A rotary embedding has no last position, but the model was made for some. */
static void sequences_beyond_the_positions_are_warned_of(void **state)
{
    static const char text[] = "{" GPT_OSS ",\"max_position_embeddings\":16}";
    char said[1024] = "";
    struct ct_run run = {.rank = 0};
    struct ct_model *model;

    (void)state;
    ct_log_to(keep_line, said, CT_LOG_WARNING);
    for (ct_config.training.seq_len = 16; ct_config.training.seq_len < 18;
         ct_config.training.seq_len++) {
        assert_string_equal(said, "");
        assert_int_equal(create_for(&run, text, "gpt_oss", &model), 0);
        ops_of("gpt_oss")->destroy(model);
    }
    ct_log_to(NULL, NULL, CT_LOG_INFO);
    assert_non_null(strstr(said, "seq_len = 17 is beyond the 16 positions of the model"));
}

/* transformers' initial value of a parameter, by initializer_range = 0.02. */
static void check_initial(const char *model, const struct ct_value *p, const struct ct_op *fill)
{
    bool deep = !strcmp(model, "gpt2") && strstr(p->name, ".c_proj.weight");
    bool router = !strcmp(model, "gpt_oss") && strstr(p->name, "router.bias");
    bool norm = strstr(p->name, "norm") || strstr(p->name, ".ln_");

    if (p->ndim == 1 && !router && !strstr(p->name, "sinks")) {
        bool one = norm && strstr(p->name, ".weight");

        assert_ptr_equal(fill->type, &ct_op_init_constant);
        assert_true(((const struct ct_init_constant *)fill->attrs)->value == one);
    } else if (strstr(p->name, "_proj_bias") || strstr(p->name, "proj.bias")) {
        assert_ptr_equal(fill->type, &ct_op_init_constant);
    } else {
        const struct ct_init_normal *normal = fill->attrs;

        assert_ptr_equal(fill->type, &ct_op_init_normal);
        assert_float_equal(normal->std, deep ? 0.02 / sqrt(2 * 6) : 0.02, 1e-12);
        assert_float_equal(normal->truncate, 0, 0);
    }
}

static void initial_weights_follow_initializer_range(void **state)
{
    static const char *const models[] = {"llama",       "gpt2",    "qwen3", "qwen3_moe",
                                         "deepseek_v3", "gpt_oss", "llama4"};
    struct ct_model_request request = {.batch = 1, .seq_len = 64};

    (void)state;
    ct_config.initializer_range = 0.02;
    ct_config.model.flavor = "debug";
    ct_config.model.init_from = "";
    for (size_t i = 0; i < CT_COUNT(models); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph = ct_graph_create(&arena, models[i]);
        struct ct_model *model;
        size_t filled = 0;

        TEST_OPTIONS(test_plugin(models[i]), "dim=0");
        assert_int_equal(ops_of(models[i])->create(NULL, &model), 0);
        assert_int_equal(ops_of(models[i])->build(model, graph, &request), 0);
        ct_for_each_op (op, graph)
            if (op->section->part == CT_PART_INIT && op->in[0]->role == CT_ROLE_PARAM) {
                check_initial(models[i], op->in[0], op);
                filled++;
            }
        assert_true(filled > 20);
        ops_of(models[i])->destroy(model);
        ct_arena_finish(&arena);
    }
    ct_config.initializer_range = 0;
}

static void what_is_not_supported_is_refused(void **state)
{
    static const struct {
        const char *model, *text, *message;
    } cases[] = {
        {"gpt2", "{\"model_type\":\"llama\"}", "model_type is llama; this plugin builds gpt2"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}",
         "activation_function = \"relu\" is not supported"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_layer\":2147483646}",
         "n_layer|num_hidden_layers is 2147483646; expected 1 to 1024"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_embd\":2147483648}",
         "n_embd|hidden_size is 2147483648; expected 1 to 2147483646"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"vocab_size\":-1}", "vocab_size is -1; expected"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_head\":5}", "does not divide by 5 heads"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"tie_word_embeddings\":false}", "tie_word_embeddings"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}", "scale_attn_weights"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"is_causal\":false}", "is_causal"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_head\":12,\"num_attention_heads\":6}",
         "n_head|num_attention_heads: these names of one setting have different values"},
        {"qwen3", "{\"model_type\":\"qwen3\",\"is_causal\":false}", "is_causal"},
        {"qwen3_moe", "{\"model_type\":\"qwen3_moe\",\"is_causal\":false}", "is_causal"},
        {"qwen3", "{\"model_type\":\"qwen2\"}", "model_type is qwen2"},
        {"qwen3", "{" QWEN3 ",\"use_sliding_window\":1}", "use_sliding_window"},
        {"qwen3", "{" QWEN3 ",\"attention_bias\":1}", "attention_bias"},
        {"qwen3", "{" QWEN3 ",\"layer_types\":[\"sliding_attention\"]}",
         "layer_types: layer 0 is sliding_attention, but there is no window"},
        {"qwen3", "{\"model_type\":\"qwen3\"}", "vocab_size is missing"},
        {"deepseek_v3", "{\"model_type\":\"deepseek_v3\",\"topk_method\":\"greedy\"}",
         "topk_method"},
        {"deepseek_v3", "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"num_key_value_heads\":2}",
         "4 heads of queries, but 2 of keys and values"},
        {"deepseek_v3",
         "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":40,\"original_max_position_embeddings\":16}}",
         "yarn with an attention factor of 1.36889 is not supported: mscale and "
         "mscale_all_dim must be equal, or attention_factor 1"},
        {"deepseek_v3", "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"n_group\":3}",
         "8 experts are not 3 equal groups of at least 2"},
        {"gpt_oss", "{" GPT_OSS ",\"attention_bias\":false}", "attention_bias = false"},
        {"gpt_oss", "{" GPT_OSS ",\"is_causal\":false}", "is_causal = false"},
        {"gpt_oss", "{" GPT_OSS ",\"pad_token_id\":64}",
         "pad_token_id = 64 is not in a vocabulary of 64"},
        {"llama4", "{" LLAMA4 ",\"is_causal\":false}", "is_causal = false"},
        {"llama4", "{" LLAMA4 ",\"pad_token_id\":-65}",
         "pad_token_id = -65 is not in a vocabulary of 64"},
        {"llama4", "{" LLAMA4 ",\"pad_token_id\":1.5}", "pad_token_id is not a token"},
        {"gpt_oss", "{" GPT_OSS ",\"layer_types\":[\"full_attention\"]}",
         "layer_types is not a list of num_hidden_layers"},
        {"gpt_oss",
         "{" GPT_OSS ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"linear\"]}",
         "layer_types: layer 2 is linear; sliding_attention|full_attention are supported"},
        {"gpt_oss", "{" GPT_OSS ",\"num_experts\":5}", "have different values"},
        {"gpt_oss",
         "{" GPT_OSS ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,"
         "\"original_max_position_embeddings\":1e300}}",
         "original_max_position_embeddings is not a whole number"},
        {"gpt_oss",
         "{" GPT_OSS ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2],"
         "\"long_factor\":[1,2],\"original_max_position_embeddings\":1e300}}",
         "original_max_position_embeddings is not a whole number"},
        {"gpt_oss", "{" GPT_OSS ",\"num_experts_per_tok\":5}",
         "a token cannot choose 5 of 4 experts"},
        {"llama4", "{" LLAMA4 ",\"num_experts_per_tok\":7}",
         "a token chooses 7 experts whose inputs are scaled: at most 6"},
        {"llama4", "{" LLAMA4 ",\"attention_bias\":true}", "attention_bias = true"},
        {"llama4",
         "{" LLAMA4 ",\"attention_chunk_size\":null,\"layer_types\":[\"chunked_attention\","
         "\"full_attention\",\"full_attention\"]}",
         "attention_chunk_size is null"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[1,0,-1]}",
         "no_rope_layers: entry 2 is neither 0 nor 1"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[1,0]}",
         "no_rope_layers is not a list of num_hidden_layers"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[1,0,2]}",
         "no_rope_layers: entry 2 is neither 0 nor 1"},
        {"llama4",
         "{" LLAMA4 ",\"layer_types\":[\"full_attention\",\"sliding_attention\","
         "\"full_attention\"]}",
         "layer 1 is sliding_attention; chunked_attention|full_attention are supported"},
        {"llama4",
         "{\"model_type\":\"llama4\",\"quantization_config\":{\"quant_method\":\"fp8\"},"
         "\"text_config\":{" LLAMA4 "}}",
         "quantization_config"},
        {"llama4", "{\"model_type\":\"llama4\"}", "model_type is llama4; this plugin builds"},
        {"llama4", "{" LLAMA4 ",\"moe_layers\":[-1]}", "moe_layers: entry 0 is not a layer"},
        {"deepseek_v3", "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"n_group\":8}",
         "8 experts are not 8 equal groups of at least 2"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_model *model;

        assert_int_equal(create_from(cases[i].text, cases[i].model, &model), CT_ECONFIG);
        assert_message(cases[i].message);
    }
}

/* The least that a config.json of deepseek_v3 must say. */
#define DEEPSEEK_WIDTHS                                                                            \
    "\"model_type\":\"deepseek_v3\",\"vocab_size\":64,\"hidden_size\":32,"                         \
    "\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4"

/* Other names and values of the same thing, and what is meant where nothing is said, as in
   transformers 5.24. */
static void what_means_the_same_is_accepted(void **state)
{
    static const struct {
        const char *model, *text, *written; /* written: a line of what is written */
    } cases[] = {
        {"qwen3",
         "{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,"
         "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4}",
         "\"head_dim\": 128"},
        {"qwen3", "{" QWEN3 "}", "\"max_position_embeddings\": 32768"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_pytorch_tanh\"}",
         "\"activation_function\": \"gelu_pytorch_tanh\""},
        {"gpt2", "{\"model_type\":\"gpt2\",\"num_attention_heads\":6}",
         "\"num_attention_heads\": 6,"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_head\":6,\"num_attention_heads\":6}",
         "\"n_head\": 6,"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"hidden_size\":60,\"n_head\":6}",
         "\"hidden_size\": 60,"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"num_hidden_layers\":5}", "\"num_hidden_layers\": 5,"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"max_position_embeddings\":50}",
         "\"max_position_embeddings\": 50,"},
        {"qwen3", "{" QWEN3 ",\"use_sliding_window\":false,\"sliding_window\":4096}",
         "\"use_sliding_window\": false"},
        {"qwen3", "{" QWEN3 ",\"hidden_act\":\"swish\"}", "\"hidden_act\": \"swish\""},
        {"deepseek_v3", "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"n_group\":1}",
         "\"q_lora_rank\": 1536,"},
        {"deepseek_v3",
         "{\"model_type\":\"deepseek_v3\"," DEEPSEEK ",\"n_group\":1,\"q_lora_rank\":null}",
         "\"q_lora_rank\": null,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"qk_rope_head_dim\": 64,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"qk_nope_head_dim\": 128,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"v_head_dim\": 128,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"kv_lora_rank\": 512,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"n_routed_experts\": 256,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"num_experts_per_tok\": 8,"},
        {"deepseek_v3", "{" DEEPSEEK_WIDTHS "}", "\"moe_intermediate_size\": 2048,"},
        {"gpt_oss", "{" GPT_OSS "}",
         "\"sliding_attention\",\n    \"full_attention\",\n    \"sliding_attention\"\n"},
        {"gpt_oss",
         "{" GPT_OSS ",\"layer_types\":[\"full_attention\",\"full_attention\","
         "\"sliding_attention\"],\"sliding_window\":7}",
         "\"full_attention\",\n    \"full_attention\",\n    \"sliding_attention\"\n"},
        {"gpt_oss", "{" GPT_OSS ",\"rope_theta\":777}", "\"rope_theta\": 777"},
        {"gpt_oss", "{" GPT_OSS ",\"pad_token_id\":0}", "\"pad_token_id\": 0"},
        {"llama4", "{" LLAMA4 ",\"pad_token_id\":63}", "\"pad_token_id\": 63"},
        {"llama4", "{" LLAMA4 ",\"pad_token_id\":-1}", "\"pad_token_id\": -1"},
        {"gpt_oss", "{" GPT_OSS ",\"rope_scaling\":{\"rope_type\":\"default\"}}",
         "\"rope_type\": \"default\""},
        {"gpt_oss", "{" GPT_OSS ",\"rope_parameters\":{}}", "\"rope_parameters\": {}"},
        {"gpt_oss", "{" GPT_OSS ",\"rope_parameters\":null}", "\"rope_parameters\": null"},
        {"gpt_oss",
         "{" GPT_OSS ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1,"
         "\"original_max_position_embeddings\":64,\"attention_factor\":1.25}}",
         "\"attention_factor\": 1.25"},
        {"llama4", "{" LLAMA4 "}", "\"moe_layers\": null,"},
        {"llama4",
         "{\"model_type\":\"llama4\",\"vision_config\":{},\"text_config\":{" LLAMA4
         ",\"floor_scale\":9}}",
         "\"floor_scale\": 9,"},
        {"llama4", "{" LLAMA4 ",\"attention_chunk_size\":null}", "\"attention_chunk_size\": null,"},
        {"llama4", "{" LLAMA4 "}", "\"attention_chunk_size\": 8192,"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[0,1,1,0]}",
         "\"no_rope_layers\": [\n    0,\n    1,\n    1,\n    0\n  ]"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[]}", "\"no_rope_layers\": [],"},
        {"llama4", "{" LLAMA4 ",\"moe_layers\":[]}", "\"moe_layers\": [],"},
        {"llama4", "{" LLAMA4 ",\"no_rope_layers\":[0,1,1]}",
         "\"no_rope_layers\": [\n    0,\n    1,\n    1\n"},
        {"llama4",
         "{" LLAMA4 ",\"layer_types\":[\"chunked_attention\",\"full_attention\","
         "\"chunked_attention\"]}",
         "\"chunked_attention\",\n    \"full_attention\",\n    \"chunked_attention\"\n"},
        {"llama4",
         "{" LLAMA4 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":16,"
         "\"low_freq_factor\":1,\"high_freq_factor\":1,"
         "\"original_max_position_embeddings\":8192}}",
         "\"high_freq_factor\": 1,"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_model_request request = {.batch = 1, .seq_len = 8};
        struct ct_arena arena = {0};
        struct ct_model *model;
        char *written;
        size_t size;
        FILE *out = open_memstream(&written, &size);

        if (create_from(cases[i].text, cases[i].model, &model) < 0)
            fail_msg("%s", ct_error_message());
        assert_int_equal(
            ops_of(cases[i].model)->build(model, ct_graph_create(&arena, "case"), &request), 0);
        ct_arena_finish(&arena);
        assert_int_equal(ct_hf_write_config(ops_of(cases[i].model)->description, model, out), 0);
        fclose(out);
        if (!strstr(written, cases[i].written))
            fail_msg("%s: %s", cases[i].text, written);
        ops_of(cases[i].model)->destroy(model);
        free(written);
    }
}

/* A name that is NULL, or lies where names are made, is an error. */
static void names_of_a_layer_are_those_of_parts(void **state)
{
    static const struct {
        const char *name, *weight, *message;
        bool made;
    } cases[] = {
        {"o", "self_attn.o_proj", NULL, false},
        {"o", "self_attn.o_proj", "layer 2: layers.2.o is no name of a part", true},
        {NULL, "self_attn.o_proj", "layer 2: NULL is no name of a part", false},
        {"o", NULL, "layer 2: NULL is no name of a part", false},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph = ct_graph_create(&arena, "names");
        struct ct_decoder d = {.b = ct_builder_at_end(graph, CT_PART_F, "layers.2"), .layer = 2};
        struct ct_value *x = ct_parameter(&d.b, "x", 2, (int64_t[]){4, 8}, CT_INIT_ONE), *y;
        const char *name = cases[i].made ? ct_decoder_named(&d, cases[i].name) : cases[i].name;

        y = ct_decoder_linear(&d, name, x, cases[i].weight, 3, 8, 1);
        if (cases[i].message) {
            assert_null(y);
            assert_int_equal(d.b.status, CT_EINVAL);
            assert_message(cases[i].message);
        } else {
            assert_int_equal(d.b.status, 0);
            assert_string_equal(y->name, "layers.2.o");
        }
        ct_arena_finish(&arena);
    }
}

/* Names of weights are those of families, which may be of any length. */
static void names_are_not_cut(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "names");
    struct ct_decoder d = {.b = ct_builder_at_end(graph, CT_PART_F, "layers.2"), .layer = 2};
    struct ct_value *x = ct_parameter(&d.b, "x", 2, (int64_t[]){4, 8}, CT_INIT_ONE), *y;
    char part[201];

    (void)state;
    memset(part, 'a', 200);
    part[200] = '\0';
    y = ct_decoder_biased(&d, part, x, part, 3, 8, 1, 0);
    assert_int_equal(d.b.status, 0);
    assert_string_equal(y->name, ct_arena_printf(&arena, "layers.2.%s", part));
    assert_non_null(ct_graph_find(graph, ct_arena_printf(&arena, "model.layers.2.%s.bias", part)));
    assert_non_null(
        ct_graph_find(graph, ct_arena_printf(&arena, "model.layers.2.%s.weight", part)));
    ct_arena_finish(&arena);
}

static void experts_without_a_gate_have_no_other_form(void **state)
{
    static const struct ct_decoder_sizes sizes = {.dim = 4, .layers = 1};
    struct ct_model_request request = {.batch = 1, .seq_len = 2};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph = ct_graph_create(&arena, "mixture");
        struct ct_mixture m = {.experts = 2,
                               .expert_dim = 4,
                               .choice = {.k = 1},
                               .squared = true,
                               .scaled_inputs = i == 1,
                               .biased = i == 2};
        struct ct_decoder d = {.b = ct_builder_at_end(graph, CT_PART_F, "layers.0"),
                               .sizes = &sizes,
                               .request = &request};
        struct ct_value *h =
            ct_graph_source(graph, CT_ROLE_PARAM, "h", CT_F32, 3, (int64_t[]){1, 2, 4});

        assert_true((ct_decoder_mixture_of(&d, h, &m) != NULL) == (i == 0));
        assert_int_equal(d.b.status, i ? CT_EINVAL : 0);
        assert_true(!i || strstr(ct_error_message(), "experts without a gate"));
        ct_arena_finish(&arena);
    }
}

/* A model without a table of config.json, or without flavors, is told so. */
static void sizes_are_from_flavors_and_a_description(void **state)
{
    struct ct_model_ops bare = *ops_of("gpt2");
    char *sizes = malloc(bare.flavor_size);

    (void)state;
    bare.description = NULL;
    ct_config.model.flavor = "debug";
    ct_config.model.init_from = "";
    assert_int_equal(ct_hf_sizes(&bare, "bare", sizes), 0);
    ct_config.model.init_from = "/nowhere";
    assert_fails(ct_hf_sizes(&bare, "bare", sizes), CT_ECONFIG, "bare reads no config.json");
    bare.flavors = NULL;
    assert_fails(ct_hf_sizes(&bare, "bare", sizes), CT_ECONFIG, "bare has no flavors");
    ct_config.model.init_from = ct_config.model.flavor = "";
    free(sizes);
}

/* A format with a `save` of its own around ct_hf_save describes models, too. */
static void a_format_that_reads_folders_describes_them(void **state)
{
    static const struct ct_hf_key keys[] = {{0}};
    static const struct ct_hf_fixed fixed[] = {{0}};
    static const struct ct_hf_config config = {"x", "X", keys, fixed};
    struct ct_weights_ops format = {.size = sizeof(format), .load = ct_hf_load};
    struct ct_model_ops ops = {.description = &config, .weights = &format};
    const struct ct_run run = {.model_ops = &ops};
    struct ct_arena arena = {0};
    const char *text;

    (void)state;
    ct_config.model.init_from = "";
    assert_int_equal(ct_hf_config_of(&arena, &run, &text), 0);
    assert_non_null(strstr(text, "\"model_type\": \"x\""));
    format.load = NULL;
    assert_fails(ct_hf_config_of(&arena, &run, &text), CT_EINVAL, "describes no config.json");
    ct_arena_finish(&arena);
}

static const struct ct_hf_fixed none_fixed[] = {{0}};

static void the_root_says_whether_a_head_is_tied(void **state)
{
    static const struct ct_hf_key keys[] = {{"tie_word_embeddings", CT_HF_BOOL, 0, 1}, {0}};
    static const struct ct_hf_config config = {"x_text", "X", keys, none_fixed, .outer = "x"};
    static const struct {
        const char *text;
        bool tied;
    } cases[] = {
        {"{\"model_type\":\"x\",\"text_config\":{\"model_type\":\"x_text\"}}", true},
        {"{\"model_type\":\"x\",\"tie_word_embeddings\":false,"
         "\"text_config\":{\"model_type\":\"x_text\"}}",
         false},
        {"{\"model_type\":\"x\",\"tie_word_embeddings\":true,"
         "\"text_config\":{\"model_type\":\"x_text\",\"tie_word_embeddings\":false}}",
         true},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        bool tied = !cases[i].tied;

        assert_int_equal(ct_hf_read_config_text(&config, cases[i].text, "x", &tied), 0);
        assert_int_equal(tied, cases[i].tied);
    }
}

static void a_temperature_needs_whole_tokens(void **state)
{
    static const struct ct_hf_key keys[] = {{"rope_theta", CT_HF_ROPE, 0, 10000}, {0}};
    static const struct ct_hf_config config = {
        "x", "X", keys, none_fixed, .tempers = true, .ignored = "max_position_embeddings"};
    struct ct_rope rope = {0};

#define TEMPER(after, more)                                                                        \
    "{\"model_type\":\"x\",\"rope_parameters\":{\"rope_type\":\"default\","                        \
    "\"llama_4_scaling_beta\":0.1" after "}" more "}"
    (void)state;
    assert_fails(ct_hf_read_config_text(
                     &config, TEMPER(",\"original_max_position_embeddings\":0.5", ""), "x", &rope),
                 CT_ECONFIG, "original_max_position_embeddings is not a whole number");
    assert_fails(ct_hf_read_config_text(&config, TEMPER("", ""), "x", &rope), CT_ECONFIG,
                 "original_max_position_embeddings is missing");
    assert_int_equal(
        ct_hf_read_config_text(&config, TEMPER("", ",\"max_position_embeddings\":64"), "x", &rope),
        0);
    assert_int_equal(rope.original_max_position, 64);
}

static void a_part_that_is_left_out_is_written_as_files_have_it(void **state)
{
    static const struct ct_hf_key keys[] = {
        {"end", CT_HF_PART, 0, 0, "-1"}, {"window", CT_HF_PART, 0, 0, "!slides"}, {0}};
    static const struct ct_hf_config config = {"x", "X", keys, none_fixed};
    int64_t none = 0;
    char *written;
    size_t size;
    FILE *out = open_memstream(&written, &size);

    (void)state;
    ct_config.model.init_from = "";
    assert_int_equal(ct_hf_write_config(&config, &none, out), 0);
    fclose(out);
    assert_non_null(strstr(written, "\"end\": -1"));
    assert_non_null(strstr(written, "\"window\": null"));
    free(written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_equal_the_published_ones),
        cmocka_unit_test(flops_are_those_of_the_graph),
        cmocka_unit_test(flops_of_windows_are_those_of_the_graph),
        cmocka_unit_test(lists_of_divisors_have_a_limit),
        cmocka_unit_test(initial_weights_follow_initializer_range),
        cmocka_unit_test(what_is_not_supported_is_refused),
        cmocka_unit_test(what_means_the_same_is_accepted),
        cmocka_unit_test(sequences_beyond_the_positions_are_warned_of),
        cmocka_unit_test(names_of_a_layer_are_those_of_parts),
        cmocka_unit_test(names_are_not_cut),
        cmocka_unit_test(sizes_are_from_flavors_and_a_description),
        cmocka_unit_test(the_root_says_whether_a_head_is_tied),
        cmocka_unit_test(a_temperature_needs_whole_tokens),
        cmocka_unit_test(a_part_that_is_left_out_is_written_as_files_have_it),
        cmocka_unit_test(a_format_that_reads_folders_describes_them),
        cmocka_unit_test(experts_without_a_gate_have_no_other_form)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
