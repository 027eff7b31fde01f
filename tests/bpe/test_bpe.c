/*
 * bpe against the tokenizers library: bpe/cases.json holds variants of bpe/tokenizer.json, texts,
 * and the ids that the library (0.23) gives them; bpe/splits.json the same for regular expressions,
 * bpe/variants.json for tokenizers in SentencePiece's manner, with the texts that ids become.
 * Then `ctitan tokenize`, tiktoken's list, and files that must be refused.
 */
#include <stdint.h>

#include <jansson.h>

#include <ctitan/file.h>
#include <ctitan/lib/chat.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

#include "plugin_under_test.h"

#define ROOM 4096

static const char *program, *sources, *folder;
static struct ct_arena arena;

static const struct ct_tokenizer_ops *bpe(void)
{
    return test_offer(test_plugin("bpe"), CT_TOKENIZER);
}

static json_t *read_json(const char *name)
{
    json_error_t error;
    json_t *json =
        json_load_file(ct_arena_printf(&arena, "%s/%s", sources, name), JSON_ALLOW_NUL, &error);

    if (!json)
        fail_msg("%s:%d: %s", name, error.line, error.text);
    return json;
}

/* The merges "a b" as ["a", "b"]. */
static json_t *pairs(const json_t *merges)
{
    json_t *result = json_array();

    for (size_t i = 0; i < json_array_size(merges); i++) {
        const char *text = json_string_value(json_array_get(merges, i));
        const char *space = strchr(text, ' ');

        json_array_append_new(result, json_pack("[s#, s]", text, (int)(space - text), space + 1));
    }
    return result;
}

/* tokenizer.json with a patch: keys are replaced, those of the model one by one. */
static json_t *patched(const json_t *patch)
{
    json_t *root = read_json("tokenizer.json"), *value, *model = json_object_get(root, "model");
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)patch, key, value)
    {
        if (!strcmp(key, "model"))
            assert_int_equal(json_object_update(model, value), 0);
        else
            assert_int_equal(json_object_set(root, key, value), 0);
    }
    if (json_is_string(json_object_get(model, "merges"))) {
        json_t *whole = read_json("tokenizer.json");
        const json_t *merges = json_object_get(json_object_get(whole, "model"), "merges");

        assert_int_equal(json_object_set_new(model, "merges", pairs(merges)), 0);
        json_decref(whole);
    }
    return root;
}

static int open_text(const char *name, const char *text, size_t size)
{
    const char *path = ct_arena_printf(&arena, "%s/%s", folder, name);

    test_write(path, text, size);
    TEST_OPTIONS(test_plugin("bpe"), ct_arena_printf(&arena, "path=%s", path));
    return bpe()->open();
}

static int open_patched(const json_t *patch)
{
    json_t *root = patched(patch);
    char *text = json_dumps(root, JSON_COMPACT);
    int rc = open_text("tokenizer.json", text, strlen(text));

    free(text);
    json_decref(root);
    return rc;
}

static void check_ids(const char *name, const json_t *want, const int32_t *ids, int64_t count)
{
    assert_int_equal(count, json_array_size(want));
    for (int64_t i = 0; i < count; i++)
        if (ids[i] != json_integer_value(json_array_get(want, (size_t)i)))
            fail_msg("%s: token %lld is %d", name, (long long)i, ids[i]);
}

static void check_text(const char *name, const json_t *text, const json_t *want)
{
    size_t size = json_string_length(text);
    int32_t ids[ROOM] = {0}, first = -1;
    int64_t count = bpe()->encode(json_string_value(text), size, ids, ROOM);

    check_ids(name, want, ids, count);
    assert_int_equal(bpe()->encode(json_string_value(text), size, NULL, 0), count);
    assert_int_equal(bpe()->encode(json_string_value(text), size, &first, count > 0), count);
    if (count)
        assert_int_equal(first, ids[0]);
}

static void ids_are_those_of_the_library(void **state)
{
    json_t *cases = read_json("cases.json");

    (void)state;
    assert_int_equal(json_array_size(cases), 12);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *variant = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(variant, "name"));
        const json_t *texts = json_object_get(variant, "texts");

        if (open_patched(json_object_get(variant, "patch")) < 0)
            fail_msg("%s: %s", name, ct_error_message());
        for (size_t t = 0; t < json_array_size(texts); t++)
            check_text(name, json_object_get(json_array_get(texts, t), "text"),
                       json_object_get(json_array_get(texts, t), "ids"));
    }
    json_decref(cases);
}

/* A case of variants.json: a base with a patch, as above. */
static json_t *variant_tokenizer(const json_t *cases, const json_t *one)
{
    const json_t *base = json_object_get(json_object_get(cases, "bases"),
                                         json_string_value(json_object_get(one, "base")));
    json_t *root = json_deep_copy(base), *patch = json_deep_copy(json_object_get(one, "patch"));
    json_t *model = json_object_get(patch, "model");

    if (model)
        assert_int_equal(json_object_update(json_object_get(root, "model"), model), 0);
    json_object_del(patch, "model");
    assert_int_equal(json_object_update(root, patch), 0);
    json_decref(patch);
    return root;
}

/* The text of all tokens, which arrive one by one. */
static void check_decoding(const char *name, const json_t *want, const int32_t *ids, int64_t count)
{
    struct ct_decoding *decoding;
    const char *text;
    char all[ROOM];
    size_t size = 0;

    assert_int_equal(bpe()->decoding_open(&decoding), 0);
    for (int64_t i = 0; i <= count; i++) {
        int64_t n = bpe()->decoding_add(decoding, ids + i, i < count, i == count, &text);

        assert_in_range(n, 0, sizeof(all) - size - 1);
        memcpy(all + size, text, (size_t)n);
        size += (size_t)n;
    }
    all[size] = '\0';
    if (size != json_string_length(want) || memcmp(all, json_string_value(want), size))
        fail_msg("%s: \"%s\" is decoded as \"%s\"", name, json_string_value(want), all);
    bpe()->decoding_close(decoding);
}

/* Spans are within the text, and in order. */
static void check_spans(const char *name, const json_t *text, const int32_t *ids, int64_t count)
{
    struct ct_text_span spans[ROOM];
    int32_t again[ROOM];
    size_t size = json_string_length(text);

    assert_int_equal(bpe()->encode_spans(json_string_value(text), size, again, spans, ROOM), count);
    assert_memory_equal(again, ids, (size_t)count * sizeof(*ids));
    for (int64_t i = 0; i < count; i++)
        if (spans[i].begin > spans[i].end || spans[i].end > size ||
            (i && spans[i].begin < spans[i - 1].begin))
            fail_msg("%s: token %lld of \"%s\" stands for [%zu, %zu)", name, (long long)i,
                     json_string_value(text), spans[i].begin, spans[i].end);
}

static void variants_are_those_of_the_library(void **state)
{
    json_t *cases = read_json("variants.json"), *one, *row;
    size_t i, k;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(cases, "cases")), 19);
    json_array_foreach(json_object_get(cases, "cases"), i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        json_t *root = variant_tokenizer(cases, one);
        char *file = json_dumps(root, JSON_COMPACT);

        if (open_text("tokenizer.json", file, strlen(file)) < 0)
            fail_msg("%s: %s", name, ct_error_message());
        json_array_foreach(json_object_get(one, "texts"), k, row)
        {
            const json_t *text = json_array_get(row, 0);
            int32_t ids[ROOM] = {0};
            int64_t count =
                bpe()->encode(json_string_value(text), json_string_length(text), ids, ROOM);

            check_ids(ct_arena_printf(&arena, "%s: %s", name, json_string_value(text)),
                      json_array_get(row, 1), ids, count);
            check_decoding(name, json_array_get(row, 2), ids, count);
            check_spans(name, text, ids, count);
        }
        free(file);
        json_decref(root);
    }
    json_decref(cases);
}

/* splits.json: expressions that Oniguruma, which the library uses, reads otherwise than PCRE2. */
static void expressions_split_as_in_the_library(void **state)
{
    json_t *cases = read_json("splits.json"), *one, *text;
    size_t i, k;

    (void)state;
    assert_int_equal(json_array_size(cases), 50);
    json_array_foreach(cases, i, one)
    {
        json_t *split = json_object_get(one, "pre_tokenizer");
        json_t *patch = json_pack("{s: O}", "pre_tokenizer", split);
        char *name = json_dumps(split, JSON_COMPACT);

        if (open_patched(patch) < 0)
            fail_msg("%s: %s", name, ct_error_message());
        json_array_foreach(json_object_get(one, "texts"), k, text)
            check_text(name, json_object_get(text, "text"), json_object_get(text, "ids"));
        free(name);
        json_decref(patch);
    }
    json_decref(cases);
}

/* Every token's bytes are the text again, where nothing normalises it. */
static void ids_become_their_text(void **state)
{
    const char text[] = "caf\xc3\xa9 <tool> \xf0\x9f\x98\x80\x00\n";
    int32_t ids[ROOM];
    char out[ROOM];
    int size = 0;
    int64_t count;

    (void)state;
    assert_int_equal(open_patched(NULL), 0);
    count = bpe()->encode(text, sizeof(text), ids, ROOM);
    for (int64_t i = 0; i < count; i++)
        size += bpe()->decode(ids[i], out + size, sizeof(out) - (size_t)size);
    assert_int_equal(size, sizeof(text));
    assert_memory_equal(out, text, sizeof(text));
    assert_int_equal(bpe()->decode((int32_t)bpe()->vocabulary(), out, ROOM), CT_EINVAL);
    assert_int_equal(bpe()->decode(-1, out, ROOM), CT_EINVAL);
    assert_int_equal(bpe()->decode(ids[count - 1], out, 0), CT_EINVAL);
}

static void check_same(const char *broken, size_t size, const char *whole)
{
    int32_t a[64], b[64];
    int64_t count = bpe()->encode(broken, size, a, 64);

    assert_int_equal(bpe()->encode(whole, strlen(whole), b, 64), count);
    assert_memory_equal(a, b, (size_t)count * sizeof(*a));
}

static void broken_text_is_repaired(void **state)
{
    (void)state;
    assert_int_equal(open_patched(NULL), 0);
    check_same("a\xffz", 3, "a\xef\xbf\xbdz");
    check_same("\xf0\x9f\x98", 3, "\xef\xbf\xbd");
    check_same("\xf4\xbf\xc0z", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz");
    check_same("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

/* One character 200,000 times: no merges in quadratic time. */
static void very_long_words_are_encoded(void **state)
{
    const size_t size = 200000;
    char *text = malloc(size);

    (void)state;
    assert_non_null(text);
    assert_int_equal(open_patched(NULL), 0);
    memset(text, 'a', size);
    assert_in_range(bpe()->encode(text, size, NULL, 0), 1, size);
    memset(text, ' ', size);
    assert_in_range(bpe()->encode(text, size, NULL, 0), 1, size);
    free(text);
}

/* ---- begin and end ---- */

static void templates_add_their_beginning_and_end(void **state)
{
    const struct ct_plugin *plugin = test_plugin("bpe");

    (void)state;
    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "path=%s", sources));
    assert_int_equal(bpe()->open(), 0);
    assert_int_equal(bpe()->bos(), 676);
    assert_int_equal(bpe()->eos(), 677);
    assert_int_equal(bpe()->vocabulary(), 679);
    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "path=%s", sources), "add_eos=false",
                 "bos_token=<tool>");
    assert_int_equal(bpe()->open(), 0);
    assert_int_equal(bpe()->bos(), 678);
    assert_int_equal(bpe()->eos(), -1);
    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "path=%s", sources), "bos_token=<|end|>");
    assert_int_equal(bpe()->open(), 0);
    assert_int_equal(bpe()->bos(), -1); /* it would follow itself */
    assert_int_equal(bpe()->eos(), 677);
    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "path=%s", sources), "bos_token=<nothing>");
    assert_int_equal(bpe()->open(), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "<nothing>"));
    assert_int_equal(open_patched(NULL), 0); /* no tokenizer_config.json there */
    assert_int_equal(bpe()->bos(), -1);
}

/* ---- ctitan tokenize ---- */

static int tokenize(const char *arguments, const char *text)
{
    test_write(ct_arena_printf(&arena, "%s/text", folder), text, strlen(text));
    return system(ct_arena_printf(&arena, "cd '%s' && '%s' tokenize %s <text >ids 2>error", folder,
                                  program, arguments)) /
           256;
}

static const char *slurp(const char *name, size_t *size)
{
    char *text;

    assert_int_equal(
        ct_file_read(&arena, ct_arena_printf(&arena, "%s/%s", folder, name), 1 << 20, &text, size),
        0);
    return text;
}

static void check_lines(const char *name, const json_t *want)
{
    size_t size;
    const char *at = slurp("ids", &size);

    for (size_t i = 0; i < json_array_size(want); i++) {
        char *end;
        json_int_t id = strtoll(at, &end, 10);

        if (id != json_integer_value(json_array_get(want, i)) || *end != '\n')
            fail_msg("%s: line %zu is %.20s", name, i, at);
        at = end + 1;
    }
    assert_int_equal(*at, 0);
}

static void the_verb_writes_ids_and_files(void **state)
{
    json_t *cases = read_json("cases.json");
    size_t size;

    (void)state;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *variant = json_array_get(cases, i);
        const json_t *text = json_array_get(json_object_get(variant, "texts"), 0);

        assert_int_equal(open_patched(json_object_get(variant, "patch")), 0);
        assert_int_equal(
            tokenize("--tokenizer . --special", json_string_value(json_object_get(text, "text"))),
            0);
        check_lines(json_string_value(json_object_get(variant, "name")),
                    json_object_get(variant, "special"));
    }
    assert_int_equal(open_patched(NULL), 0);
    assert_int_equal(tokenize("--tokenizer tokenizer.json --output out.bin", " the the\n"), 0);
    assert_memory_equal(slurp("out.bin", &size), "\x08\x01\0\0\x08\x01\0\0\xc6\0\0\0", 12);
    assert_int_equal(size, 12);
    assert_int_equal(tokenize("--tokenizer nowhere", ""), 2);
    assert_non_null(strstr(slurp("error", &size), "nowhere"));
    assert_int_equal(tokenize("", ""), 2);
    assert_non_null(strstr(slurp("error", &size), "--tokenizer"));
    json_decref(cases);
}

/* ---- conversations, with [text] format = chat ---- */

/* A text, and which of its bytes are an answer's. */
struct expected {
    char text[4096];
    bool answer[4096];
    size_t size;
};

static void expect(struct expected *e, const char *text, bool answer)
{
    assert_in_range(e->size + strlen(text), 0, sizeof(e->text) - 1);
    for (; *text; text++) {
        e->answer[e->size] = answer;
        e->text[e->size++] = *text;
    }
}

static void keep_line(enum ct_log_level level, const char *line, void *context)
{
    if (level == CT_LOG_WARNING)
        strcat(context, line);
}

/* Bytes that a tokenizer reads as U+FFFD are counted, where they are read and where their tokens
   are found again. */
static void open_latin(const struct ct_tokenizer_ops *tokenizer, char said[1024])
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    const char *path = ct_arena_printf(&arena, "%s/latin.txt", folder);
    struct ct_data *data;

    *said = '\0';
    ct_log_to(keep_line, said, CT_LOG_WARNING);
    TEST_OPTIONS(test_plugin("text"), ct_arena_printf(&arena, "path=%s", path), "format=auto",
                 ct_arena_printf(&arena, "cache=%s/cache", folder));
    assert_int_equal(
        text->open(&(struct ct_data_request){.seq_len = 1, .tokenizer = tokenizer}, &data), 0);
    text->close(data);
    ct_log_to(NULL, NULL, CT_LOG_INFO);
}

static void broken_text_is_counted(void **state)
{
    char said[1024];

    (void)state;
    test_write(ct_arena_printf(&arena, "%s/latin.txt", folder), "one\ncaf\xe9 cr\xe8me \xc3\xa9\n",
               18);
    open_latin(bpe(), said);
    assert_non_null(strstr(said, "latin.txt:2: not UTF-8; of the text 2 bytes are not"));
    open_latin(bpe(), said);
    assert_non_null(strstr(said, "2 bytes that are not UTF-8 were read as U+FFFD"));
    open_latin(test_offer(test_plugin("bytes"), CT_TOKENIZER), said);
    assert_string_equal(said, "");
    TEST_OPTIONS(test_plugin("text"), "path=x", "cache=none");
}

static void open_chat(const char *template, const char *line, struct ct_data **data)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    const char *path = ct_arena_printf(&arena, "%s/chat.jsonl", folder);

    test_write(path, line, strlen(line));
    TEST_OPTIONS(test_plugin("text"), ct_arena_printf(&arena, "path=%s", path), "format=chat",
                 "packing=concat", "repeat=false", "shuffle=false",
                 ct_arena_printf(&arena, "template=%s", template));
    if (text->open(&(struct ct_data_request){.seq_len = 1, .tokenizer = bpe()}, data) < 0)
        *data = NULL;
}

/* The text is encoded as a whole; a token with a byte of an answer is a label. */
static void check_chat(struct ct_data *data, const struct expected *e)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    int32_t ids[1024], token, label;
    int64_t count = bpe()->encode(e->text, e->size, ids, CT_COUNT(ids));
    char bytes[256];
    size_t at = 0;

    assert_non_null(data);
    assert_in_range(count, 2, CT_COUNT(ids));
    for (int64_t i = 0; i < count; i++) {
        int size = bpe()->decode(ids[i], bytes, sizeof(bytes));
        bool trained = memchr(e->answer + at, true, (size_t)size);

        if (i > 0) {
            assert_int_equal(text->read_streams(data, i - 1, (void *const[]){&token, &label, NULL}),
                             0);
            assert_int_equal(token, ids[i - 1]);
            assert_int_equal(label, trained ? ids[i] : -100);
        }
        at += (size_t)size;
    }
    assert_int_equal(at, e->size);
    assert_int_equal(text->read_streams(data, count - 1, (void *const[]){&token, &label, NULL}), 1);
    text->close(data);
}

static const char chat_line[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"},"
    "{\"role\": \"user\", \"content\": \"hi \"},{\"role\": \"assistant\", \"content\": "
    "\" yes\\n\"},{\"role\": \"user\", \"content\": \"more\"},{\"role\": \"assistant\", "
    "\"content\": \"no\"}]}\n";

static int open_with_tokens(const char *const *tokens)
{
    json_t *list = json_array(), *patch = json_pack("{s: o}", "added_tokens", list);
    int rc;

    for (int i = 0; tokens[i]; i++)
        json_array_append_new(list, json_pack("{s: i, s: s, s: b}", "id", 676 + i, "content",
                                              tokens[i], "special", 1));
    rc = open_patched(patch);
    json_decref(patch);
    return rc;
}

static void chatml_masks_what_is_no_answer(void **state)
{
    static const char *const tokens[] = {"<|im_start|>", "<|im_end|>", NULL};
    struct expected e = {0};
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(tokens), 0);
    expect(&e, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <|im_end|>\n", false);
    expect(&e, "<|im_start|>assistant\n", false);
    expect(&e, " yes\n<|im_end|>", true);
    expect(&e, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n", false);
    expect(&e, "no<|im_end|>", true);
    expect(&e, "\n", false);
    open_chat("chatml", chat_line, &data);
    check_chat(data, &e);
    e.size = 0; /* the newline of the header and that of the answer are one token, a label */
    expect(&e, "<|im_start|>assistant\n", false);
    expect(&e, "\nHi<|im_end|>", true);
    expect(&e, "\n", false);
    open_chat("chatml", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\\nHi\"}]}",
              &data);
    check_chat(data, &e);
    open_chat("llama3", chat_line, &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(), "<|start_header_id|>"));
    open_chat("chatml", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(),
                           "chat.jsonl:1: no message has the role \"assistant\"; "
                           "the roles are \"user\""));
    open_chat("chatml", "{\"messages\": [{\"role\": \"user\"}, {\"content\": \"x\"}]}", &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(), "chat.jsonl:1: message 2 has no \"role\""));
    open_chat("chatml", "{\"messages\": [{\"role\": \"assistant\"}]}", &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(), "both strings"));
    open_chat("chatml", "{\"messages\": 5}", &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(), "not a list"));
}

/* The template of init_from's folder counts, in its config or in a file of its own. */
static void a_folder_names_its_template(void **state)
{
    static const char *const tokens[] = {"<|im_start|>", "<|im_end|>", NULL};
    static const char own[] = "{{ '<|im_start|>' + role + '<think>' + text + '<|im_end|>' }}";
    static const char other[] = "{\"chat_template\": \"{{ '[INST]' + text + '[/INST]' }}\"}";
    const char *jinja = ct_arena_printf(&arena, "%s/chat_template.jinja", folder);
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(tokens), 0);
    test_write(ct_arena_printf(&arena, "%s/tokenizer_config.json", folder), other, strlen(other));
    ct_config.model.init_from = folder;
    open_chat("chatml", chat_line, &data);
    assert_null(data);
    assert_non_null(strstr(ct_error_message(), "tokenizer_config.json has no <|im_start|>"));
    test_write(jinja, own, strlen(own));
    open_chat("chatml", chat_line, &data);
    assert_non_null(data);
    ((const struct ct_data_ops *)test_offer(test_plugin("text"), CT_DATA))->close(data);
    ct_config.model.init_from = NULL;
    remove(jinja);
}

static void a_damaged_file_is_no_absent_template(void **state)
{
    static const char damaged[] = "{\"chat_template\": \"<|im_start|><|im_end|>\",}";
    static const char template[] = "<|im_start|><|im_end|>";
    const char *config = ct_arena_printf(&arena, "%s/tokenizer_config.json", folder);
    const char *jinja = ct_arena_printf(&arena, "%s/chat_template.jinja", folder);
    const struct ct_chat_format *chatml = ct_chat_find("chatml");
    struct ct_chat_template *chat;

    (void)state;
    assert_int_equal(ct_chat_compare(chatml, folder), 0);
    assert_false(ct_chat_has_template(folder));
    test_write(jinja, "", 0);
    assert_int_equal(ct_chat_compare(chatml, folder), 0);
    assert_false(ct_chat_has_template(folder));
    remove(jinja);
    test_write(config, damaged, strlen(damaged));
    assert_int_equal(ct_chat_compare(chatml, folder), CT_ECONFIG);
    assert_message("tokenizer_config.json");
    assert_int_equal(ct_chat_begins(chatml, folder), CT_ECONFIG);
    assert_true(ct_chat_has_template(folder));
    assert_int_equal(ct_chat_template_open(&arena, folder, "", &chat), CT_ECONFIG);
    assert_message("tokenizer_config.json");
    test_write(jinja, template, strlen(template)); /* whose tokens the config names */
    assert_int_equal(ct_chat_compare(chatml, folder), 0);
    assert_int_equal(ct_chat_template_open(&arena, folder, "", &chat), CT_ECONFIG);
    assert_message("tokenizer_config.json");
    remove(config);
    remove(jinja);
}

/* The first token of a conversation. */
static int32_t first_of_chat(void)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    struct ct_data *data;
    int32_t token, label;

    open_chat("chatml", chat_line, &data);
    assert_non_null(data);
    assert_int_equal(text->read_streams(data, 0, (void *const[]){&token, &label, NULL}), 0);
    text->close(data);
    return token;
}

/* apply_chat_template adds no beginning of its own. */
static void a_conversation_begins_as_its_template(void **state)
{
    static const char *const tokens[] = {"<|im_start|>", "<|im_end|>", "<s>", NULL};
    static const char with[] = "{{ bos_token + '<|im_start|>' + role + text + '<|im_end|>' }}";
    static const char config[] = "{\"bos_token\": \"<s>\"}";
    const char *jinja = ct_arena_printf(&arena, "%s/chat_template.jinja", folder);

    (void)state;
    test_write(ct_arena_printf(&arena, "%s/tokenizer_config.json", folder), config, strlen(config));
    assert_int_equal(open_with_tokens(tokens), 0);
    assert_int_equal(bpe()->bos(), 678);
    assert_int_equal(first_of_chat(), 676);
    ct_config.model.init_from = folder;
    test_write(jinja, with, strlen(with));
    assert_int_equal(first_of_chat(), 678);
    test_write(jinja, "<|im_start|><|im_end|>", 22);
    assert_int_equal(first_of_chat(), 676);
    ct_config.model.init_from = NULL;
    assert_true(ct_chat_begins(ct_chat_find("llama3"), NULL));
}

static void llama3_masks_what_is_no_answer(void **state)
{
    static const char *const tokens[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                         NULL};
    struct expected e = {0};
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(tokens), 0);
    expect(&e, "<|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|>", false);
    expect(&e, "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", false);
    expect(&e, "<|start_header_id|>assistant<|end_header_id|>\n\n", false);
    expect(&e, "yes<|eot_id|>", true);
    expect(&e, "<|start_header_id|>user<|end_header_id|>\n\nmore<|eot_id|>", false);
    expect(&e, "<|start_header_id|>assistant<|end_header_id|>\n\n", false);
    expect(&e, "no<|eot_id|>", true);
    open_chat("llama3", chat_line, &data);
    check_chat(data, &e);
}

/* chat.json: what transformers writes for some conversations, and what of it is generated. */
static void templates_write_what_transformers_writes(void **state)
{
    static const char *const tokens[] = {"<|im_start|>",      "<|im_end|>", "<|start_header_id|>",
                                         "<|end_header_id|>", "<|eot_id|>", NULL};
    json_t *root = read_json("chat.json"), *cases = json_object_get(root, "cases"), *one, *segment;
    size_t i, k;

    (void)state;
    assert_int_equal(open_with_tokens(tokens), 0);
    assert_true(json_array_size(cases) >= 18);
    json_array_foreach(cases, i, one)
    {
        json_t *messages = json_object_get(one, "messages");
        json_t *object = json_pack("{s: O}", "messages", messages);
        char *line = json_dumps(object, JSON_COMPACT);
        struct expected e = {0};
        struct ct_data *data;

        json_array_foreach(json_object_get(one, "segments"), k, segment)
            expect(&e, json_string_value(json_array_get(segment, 0)),
                   json_is_true(json_array_get(segment, 1)));
        open_chat(json_string_value(json_object_get(one, "template")), line, &data);
        check_chat(data, &e);
        free(line);
        json_decref(object);
    }
    json_decref(root);
}

/* ---- other forms, and the folder's template run ---- */

static const char *const chatml_tokens[] = {"<|im_start|>", "<|im_end|>", NULL};

/* The line as [text] options say, which are two. */
static void open_line(const char *line, const char *one, const char *two, struct ct_data **data)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    const char *path = ct_arena_printf(&arena, "%s/line.jsonl", folder);

    test_write(path, line, strlen(line));
    TEST_OPTIONS(test_plugin("text"), ct_arena_printf(&arena, "path=%s", path), "packing=concat",
                 "repeat=false", "shuffle=false", "cache=none", one, two);
    if (text->open(&(struct ct_data_request){.seq_len = 1, .tokenizer = bpe()}, data) < 0)
        *data = NULL;
}

#define TURN(role, text, more) "{\"role\": \"" role "\", \"content\": \"" text "\"" more "}"
#define QUESTION "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

/* Lines of all forms that are the same conversation. */
static void forms_are_conversations(void **state)
{
    static const char *const forms[][3] = {
        {"format=sharegpt", "fields=",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", "
         "\"value\": \"yes\"}], \"id\": 1e999}"},
        {"format=alpaca",
         "fields=", "{\"instruction\": \"hi\", \"input\": \"\", \"output\": \"yes\"}"},
        {"format=prompt", "fields=",
         "{\"prompt\": [" TURN("user", "hi", "") "], \"completion\": [" TURN("assistant", "yes",
                                                                             "") "]}"},
        {"format=chat", "fields=messages=turns, role=who, content=what",
         "{\"turns\": [{\"who\": \"user\", \"what\": \"hi\"}, {\"who\": \"assistant\", \"what\": "
         "\"yes\"}], \"n\": 123456789012345678901234567890}"}};

    (void)state;
    assert_int_equal(open_with_tokens(chatml_tokens), 0);
    for (size_t i = 0; i < CT_COUNT(forms); i++) {
        struct expected e = {0};
        struct ct_data *data;

        expect(&e, QUESTION, false);
        expect(&e, "yes<|im_end|>", true);
        expect(&e, "\n", false);
        open_line(forms[i][2], forms[i][0], forms[i][1], &data);
        check_chat(data, &e);
    }
}

static void parts_are_trained_on(void **state)
{
    static const char line[] =
        "{\"messages\": [" TURN("user", "hi", "") ", " TURN("assistant", "yes",
                                                            ", \"train\": true") ", " //
        TURN("user", "hi", "") ", " TURN("assistant", "no", ", \"weight\": 1") "]}";
    static const struct {
        const char *option;
        bool first, second, rest;
    } cases[] = {{"train_on=assistant", true, true, false},
                 {"train_on=last", false, true, false},
                 {"train_on=field", true, false, false},
                 {"train_on=all", true, true, true}};
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(chatml_tokens), 0);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct expected e = {0};

        expect(&e, QUESTION, cases[i].rest);
        expect(&e, "yes<|im_end|>", cases[i].first);
        expect(&e, "\n" QUESTION, cases[i].rest);
        expect(&e, "no<|im_end|>", cases[i].second);
        expect(&e, "\n", cases[i].rest);
        open_line(line, "format=chat", cases[i].option, &data);
        check_chat(data, &e);
    }
    open_line("{\"messages\": [" TURN("assistant", "no", ", \"weight\": 0.5") "]}", "format=chat",
              "train_on=last", &data);
    assert_null(data);
    assert_message("neither 0 nor 1");
    for (int refused = 0; refused < 2; refused++) {
        open_line(
            "{\"tools\": [{\"name\": \"t\"}], \"messages\": [" TURN("assistant", "no", "") "]}",
            "format=chat", refused ? "fields=" : "fields=tools=none", &data);
        assert_int_equal(data == NULL, refused);
        if (data)
            text->close(data);
    }
    assert_message("line.jsonl:1: \"tools\": the form chatml writes none");
}

/* The completion alone is trained on, and written in a form whose tokens there are. */
static void prompts_of_messages_are_read(void **state)
{
    static const char line[] =
        "{\"prompt\": [" TURN("user", "hi", "") ", " TURN("assistant", "yes",
                                                          ", \"train\": true") ", " //
        TURN("user", "hi", "") "], \"completion\": [" TURN("assistant", "no",
                                                           ", \"train\": true") "]}";
    static const char *const trains[] = {"train_on=assistant", "train_on=last", "train_on=field",
                                         "train_on=all"};
    static const char *const none[] = {NULL};
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(chatml_tokens), 0);
    for (size_t i = 0; i < CT_COUNT(trains); i++) {
        struct expected e = {0};

        expect(&e, QUESTION "yes<|im_end|>\n" QUESTION, i == 3);
        expect(&e, "no<|im_end|>", true);
        expect(&e, "\n", i == 3);
        open_line(line, "format=prompt", trains[i], &data);
        check_chat(data, &e);
    }
    open_line("{\"prompt\": [" TURN("assistant", "yes", "") "], \"completion\": [" //
              TURN("user", "hi", "") "]}",
              "format=prompt", "train_on=assistant", &data);
    assert_null(data);
    assert_message("no message of the \"completion\" has the role \"assistant\"");
    assert_int_equal(open_with_tokens(none), 0);
    open_line(line, "format=prompt", "malformed=skip", &data);
    assert_null(data);
    assert_message("the tokenizer has no token <|im_start|> of its own");
    TEST_OPTIONS(test_plugin("text"), "malformed=stop");
}

static void prompts_and_ids_are_read(void **state)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    const int32_t labels[] = {-100, 7, 8};
    struct expected e = {0};
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(chatml_tokens), 0);
    expect(&e, "one ", false);
    expect(&e, "two", true);
    open_line("{\"prompt\": \"one \", \"completion\": \"two\"}", "format=prompt", "fields=", &data);
    check_chat(data, &e);
    open_line("{\"ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8]}", "format=ids",
              "fields=", &data);
    assert_non_null(data);
    for (int i = 0; i < 3; i++) {
        int32_t token, label;

        assert_int_equal(text->read_streams(data, i, (void *const[]){&token, &label, NULL}), 0);
        assert_int_equal(token, 5 + i);
        assert_int_equal(label, labels[i]);
    }
    text->close(data);
    open_line("{\"ids\": [5, 6], \"labels\": [6, -100]}", "format=ids", "fields=", &data);
    assert_null(data);
    assert_message("expected the token at its place, 5, or -100");
    open_line("{\"ids\": [0, 6], \"labels\": [\"x\", 6]}", "format=ids", "fields=", &data);
    assert_null(data);
    assert_message("\"labels\"[0] is no whole number");
    open_line("{\"ids\": [5000000]}", "format=ids", "fields=", &data);
    assert_null(data);
    assert_message("no token of the vocabulary");
    open_line("{\"ids\": [1]}", "format=ids", "fields=tokens=ids", &data);
    assert_null(data);
    assert_message("[text] fields: 'tokens=ids'");
}

static const char plain_template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
static const char marked_template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + "
    "'<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}";

/* With marks, and without them by its prefixes; one whose beginning changes is refused. */
static void the_template_of_a_folder_is_run(void **state)
{
    static const char *const refused[][2] = {
        {"{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
         "mark that with {% generation %} in the template"},
        {"{{ messages|groupby('x') }}", "chat_template.jinja:1: the filter groupby"},
        {"{{ raise_exception('no system') }}", "the template refuses this: no system"}};
    const char *const sources_[] = {plain_template, marked_template};
    const char *jinja = ct_arena_printf(&arena, "%s/chat_template.jinja", folder);
    struct ct_data *data;

    (void)state;
    assert_int_equal(open_with_tokens(chatml_tokens), 0);
    ct_config.model.init_from = folder;
    for (size_t i = 0; i < CT_COUNT(sources_); i++) {
        struct expected e = {0};

        test_write(jinja, sources_[i], strlen(sources_[i]));
        expect(&e, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <|im_end|>\n",
               false);
        expect(&e, "<|im_start|>assistant\n", false);
        expect(&e, " yes\n<|im_end|>", true);
        expect(&e, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n", false);
        expect(&e, "no<|im_end|>", true);
        expect(&e, "\n", false);
        open_line(chat_line, "format=chat", "template=auto", &data);
        check_chat(data, &e);
    }
    for (size_t i = 0; i < CT_COUNT(refused); i++) {
        test_write(jinja, refused[i][0], strlen(refused[i][0]));
        open_line(chat_line, "format=chat", "template=auto", &data);
        assert_null(data);
        assert_message(refused[i][1]);
    }
    remove(jinja);
    remove(ct_arena_printf(&arena, "%s/tokenizer_config.json", folder));
    open_line(chat_line, "format=chat", "template=folder", &data);
    assert_null(data);
    assert_message("has no chat template");
    ct_config.model.init_from = NULL;
}

/* ---- tiktoken ---- */

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* All bytes, then "ab", "cd", "abcd" and "bc". */
static void write_tiktoken(FILE *out)
{
    for (int b = 0; b < 256; b++)
        fprintf(out, "%c%c== %d\n", base64[b >> 2], base64[(b & 3) << 4], b);
    fputs("YWI= 256\nY2Q= 257\nYWJjZA== 258\nYmM= 259\n", out);
}

static void tiktoken_lists_are_read(void **state)
{
    const char text[] = "abc abcd <|eot_id|>bc";
    const int32_t want[] = {256, 'c', ' ', 258, ' ', 269, 259};
    char *list;
    size_t size;
    int32_t ids[32];
    FILE *out = open_memstream(&list, &size);

    (void)state;
    write_tiktoken(out);
    fclose(out);
    assert_int_equal(open_text("tokenizer.model", list, size), 0);
    assert_int_equal(bpe()->vocabulary(), 260 + 256);
    assert_int_equal(bpe()->bos(), 260);
    assert_int_equal(bpe()->eos(), 261);
    assert_int_equal(bpe()->encode(text, strlen(text), ids, 32), CT_COUNT(want));
    assert_memory_equal(ids, want, sizeof(want));
    assert_int_equal(bpe()->encode("abcd", 4, ids, 32), 1);
    assert_int_equal(ids[0], 258);
    list[size - 2] = '8';
    assert_int_equal(open_text("tokenizer.model", list, size), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "line 260"));
    assert_int_equal(open_text("tokenizer.model", "\x0a\x0b", 2), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "SentencePiece"));
    assert_int_equal(open_text("tokenizer.model", "", 0), CT_ECONFIG);
    free(list);
}

/* ---- what is refused ---- */

#define SPLIT(expression)                                                                          \
    "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" expression             \
    "\"}, \"behavior\": \"Isolated\"}}"

static const struct {
    const char *patch, *message;
} refusals[] = {
    {"{\"normalizer\": {\"type\": \"Lowercase\"}}", "normalizer: type: 'Lowercase'"},
    {"{\"normalizer\": {\"type\": \"NFC\", \"x\": 1}}", "normalizer: NFC: x = 1"},
    {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAA\"}}",
     "Precompiled: precompiled_charsmap"},
    {"{\"pre_tokenizer\": {\"type\": \"Metaspace\"}}", "Metaspace: replacement = ''"},
    {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", "
     "\"prepend_scheme\": \"last\"}}",
     "prepend_scheme: 'last'"},
    {"{\"pre_tokenizer\": {\"type\": \"Punctuation\"}}", "pre_tokenizer: type: 'Punctuation'"},
    {"{\"pre_tokenizer\": null}", "ByteLevel"},
    {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
     "\"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"MergedWithAll\"}]}}",
     "MergedWithAll"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": "
     "\"Isolated\"}}",
     "(a"},
    {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, "
     "\"behavior\": \"Isolated\"}}",
     "intersection"},
    {SPLIT("a{2}+"), "{2}+ in a regular expression"},
    {SPLIT("a{2}?"), "{2}? in a regular expression"},
    {SPLIT("\\\\pL+"), "\\p without braces"},
    {SPLIT("(?s:.)"), "the option s"},
    {SPLIT("a(?i)b|c"), "an option in the middle of an alternative"},
    {SPLIT("(?i:\xc3\x9f)"), "beyond ASCII with (?i)"},
    {SPLIT("(?i)[\xc3\x9f]"), "beyond ASCII with (?i)"},
    {SPLIT("(?i:(?:S)t)"), "st with (?i)"},
    {SPLIT("(?i:[\\\\p{Lu}])"), "\\p with (?i)"},
    {"{\"post_processor\": {\"type\": \"BertProcessing\"}}", "post_processor: 'BertProcessing'"},
    {"{\"decoder\": {\"type\": \"WordPiece\"}}", "decoder: type: 'WordPiece'"},
    {"{\"model\": {\"type\": \"WordLevel\"}}", "model: type: 'WordLevel'"},
    {"{\"model\": {\"type\": \"Unigram\"}}", "model: "},
    {"{\"decoder\": {\"type\": \"Fuse\"}}", "decoder: type = 'Fuse'"},
    {"{\"padding_side\": \"left\"}", "padding_side = \"left\""},
    {"{\"model\": {\"dropout\": 0.1}}", "dropout"},
    {"{\"version\": \"2.0\"}", "version"},
    {"{\"model\": {\"end_of_word_suffix\": \"</w>\"}}", "end_of_word_suffix"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}", "no token for byte 0x00"},
    {"{\"model\": {\"vocab\": {\"a\": 99999999999}}}", "not a number below"},
    {"{\"model\": {\"vocab\": {\"a\": -1}}}", "not a number below"},
    {"{\"model\": {\"vocab\": {\"a\": 5, \"b\": 5}}}", "same id"},
    {"{\"model\": {\"merges\": [\"a b c\"]}}", "merge 0"},
    {"{\"model\": {\"merges\": [[\"a\"]]}}", "merge 0"},
    {"{\"model\": {\"merges\": [[\"!\", \"!!!!!!\"]]}}", "'!!!!!!' is not in the vocabulary"},
    {"{\"model\": {\"merges\": [[\"!\", \"~\"]]}}", "makes '!~'"},
    {"{\"model\": {\"merges\": null}}", "merges is missing"},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<x>\"}]}", "same id"},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"a\"}]}", "but 64 in the vocabulary"},
    {"{\"added_tokens\": [{\"id\": 1e99, \"content\": \"<x>\"}]}", "added_tokens: id of entry 0"},
    {"{\"added_tokens\": [{\"id\": 700}]}", "no content"},
};

static void what_is_not_supported_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(refusals); i++) {
        json_error_t error;
        json_t *patch = json_loads(refusals[i].patch, 0, &error);

        if (!patch)
            fail_msg("%s: %s", refusals[i].patch, error.text);
        if (open_patched(patch) != CT_ECONFIG)
            fail_msg("accepted: %s", refusals[i].patch);
        if (!strstr(ct_error_message(), refusals[i].message))
            fail_msg("%s: %s", refusals[i].patch, ct_error_message());
        json_decref(patch);
    }
}

static void malformed_files_are_refused(void **state)
{
    enum { DEEP = 1 << 20 };
    char *deep = malloc(DEEP);

    (void)state;
    assert_non_null(deep);
    for (int i = 0; i < DEEP; i++)
        deep[i] = "{\"a\":"[i % 5];
    assert_int_equal(open_text("tokenizer.json", deep, DEEP), CT_ECONFIG);
    assert_int_equal(open_text("tokenizer.json", "{\"model\": ", 10), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "column 10"));
    assert_int_equal(open_text("tokenizer.json", "{}", 2), CT_ECONFIG);
    TEST_OPTIONS(test_plugin("bpe"), "path=/nowhere");
    assert_int_equal(bpe()->open(), CT_ENOENT);
    TEST_OPTIONS(test_plugin("bpe"), "path=");
    ct_config.model.init_from = "";
    assert_int_equal(bpe()->open(), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "init_from"));
    free(deep);
}

static void no_dropout_is_accepted(void **state)
{
    json_t *patch = json_pack("{s: {s: f}}", "model", "dropout", 0.0);

    (void)state;
    if (open_patched(patch) < 0)
        fail_msg("%s", ct_error_message());
    json_decref(patch);
}

/* As transformers saves them beside a model that was fine-tuned. */
static void truncation_and_padding_are_of_no_text(void **state)
{
    json_t *patch =
        json_pack("{s: {s: i, s: s}, s: {s: {s: i}, s: i}}", "truncation", "max_length", 2,
                  "direction", "Right", "padding", "strategy", "Fixed", 50, "pad_id", 0);
    int32_t ids[ROOM], plain[ROOM];
    const char *text = "the cat in the hat";
    int64_t count, want;

    (void)state;
    assert_int_equal(open_patched(NULL), 0);
    want = bpe()->encode(text, strlen(text), plain, ROOM);
    assert_true(want > 2);
    assert_int_equal(open_patched(patch), 0);
    count = bpe()->encode(text, strlen(text), ids, ROOM);
    assert_int_equal(count, want);
    assert_memory_equal(ids, plain, (size_t)count * sizeof(*ids));
    json_decref(patch);
}

/* An expression that backtracks for ever ends with an error. */
static void endless_expressions_are_refused(void **state)
{
    json_t *patch = json_pack("{s: {s: s, s: [{s: s, s: {s: s}, s: s}, {s: s, s: b, s: b}]}}",
                              "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
                              "pattern", "Regex", "(a+)+$|(a|aa)+\\1b", "behavior", "Isolated",
                              "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    char text[64];

    (void)state;
    assert_non_null(patch);
    assert_int_equal(open_patched(patch), 0);
    memset(text, 'a', sizeof(text));
    text[63] = '!';
    assert_int_equal(bpe()->encode(text, sizeof(text), NULL, 0), CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "too long"));
    json_decref(patch);
}

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ids_are_those_of_the_library, set_up, tear_down),
        cmocka_unit_test_setup_teardown(variants_are_those_of_the_library, set_up, tear_down),
        cmocka_unit_test_setup_teardown(expressions_split_as_in_the_library, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ids_become_their_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_text_is_repaired, set_up, tear_down),
        cmocka_unit_test_setup_teardown(broken_text_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(very_long_words_are_encoded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(templates_add_their_beginning_and_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_verb_writes_ids_and_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(chatml_masks_what_is_no_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_conversation_begins_as_its_template, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_names_its_template, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_file_is_no_absent_template, set_up, tear_down),
        cmocka_unit_test_setup_teardown(llama3_masks_what_is_no_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(forms_are_conversations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_are_trained_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(prompts_of_messages_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(prompts_and_ids_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_template_of_a_folder_is_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(templates_write_what_transformers_writes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(tiktoken_lists_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_supported_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_dropout_is_accepted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(truncation_and_padding_are_of_no_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(malformed_files_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(endless_expressions_are_refused, set_up, tear_down),
    };

    if (argc != 3)
        return 2;
    program = realpath(argv[1], NULL);
    sources = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
