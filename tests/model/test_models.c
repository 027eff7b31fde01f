/*
 * gpt2, qwen3 and qwen3_moe: published sizes, as graphs that take no memory; what a config.json may
 * not ask for.
 */
#include <ctitan/lib/ops.h>
#include <ctitan/lib/app/verify.h>
#include <ctitan/recipe.h>

#include "../plugin_under_test.h"

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
        {"gpt2", "124M", 124439808},   {"gpt2", "355M", 354823168},  {"gpt2", "774M", 774030080},
        {"gpt2", "1558M", 1557611200}, {"qwen3", "0.6B", 596049920}, {"qwen3", "1.7B", 1720574976},
        {"qwen3", "4B", 4022468096},   {"qwen3", "8B", 8190735360},  {"qwen3", "14B", 14768307200},
        {"qwen3", "32B", 32762123264},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(published); i++) {
        TEST_OPTIONS(test_plugin(published[i].model), "dim=0");
        assert_int_equal(parameters(published[i].model, published[i].flavor),
                         published[i].parameters);
    }
}

static void what_is_not_supported_is_refused(void **state)
{
    static const struct {
        const char *model, *text, *message;
    } cases[] = {
        {"gpt2", "{\"model_type\":\"llama\"}", "model_type is llama; this plugin builds gpt2"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}",
         "activation_function = \"relu\" is not supported"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_head\":5}", "does not divide by 5 heads"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"tie_word_embeddings\":false}", "tie_word_embeddings"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}",
         "scale_attn_by_inverse_layer_idx"},
        {"qwen3", "{\"model_type\":\"qwen2\"}", "model_type is qwen2"},
        {"qwen3", "{\"model_type\":\"qwen3\",\"use_sliding_window\":true}", "use_sliding_window"},
        {"qwen3", "{\"model_type\":\"qwen3\",\"attention_bias\":true}", "attention_bias"},
        {"qwen3", "{\"model_type\":\"qwen3\"}", "vocab_size is missing"},
        {"qwen3_moe", "{\"model_type\":\"qwen3_moe\",\"output_router_logits\":true}",
         "output_router_logits"},
    };
    const char *folder = test_folder();
    char path[4200];

    (void)state;
    snprintf(path, sizeof(path), "%s/config.json", folder);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_model *model;

        TEST_OPTIONS(test_plugin(cases[i].model), "dim=0");
        test_write(path, cases[i].text, strlen(cases[i].text));
        ct_config.model.init_from = folder;
        assert_int_equal(ops_of(cases[i].model)->create(NULL, &model), CT_ECONFIG);
        assert_message(cases[i].message);
    }
    test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_equal_the_published_ones),
                                       cmocka_unit_test(what_is_not_supported_is_refused)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
