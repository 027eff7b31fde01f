/*
 * Targets of fuzzing: everything that parses a file. A target takes any bytes; it must return, in
 * bounded time and memory, whatever they are. A program runs the target that it is named after:
 * fuzz_recipe runs recipe.
 *
 * Built with -Dfuzz=true by clang, a program is libFuzzer's:
 *
 *     CC=clang meson setup fuzz -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false
 *     ninja -C fuzz && fuzz/tests/fuzz/fuzz_tokenizer -max_total_time=3600 NEW_CORPUS SEEDS
 *
 * Else driver.c mutates the seeds for a number of rounds.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/lib/jinja.h>
#include <ctitan/app/verify.h>
#include <ctitan/file.h>
#include <ctitan/lib/flight.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/recipe.h>
#include <ctitan/text.h>

#include "../../plugins/bpe/tokenizer.h"
#include "../../plugins/ckpt/ckpt.h"
#ifdef CT_FUZZ_TAR
#include "../../plugins/tar/read.h"
#endif
#include "../../plugins/text/chat.h"
#include "../../plugins/text/unpack.h"
#include "../../plugins/tokens/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Not named as what a run would leave there: tests of communicators look for that meanwhile. */
static char folder[] = "/dev/shm/fuzz-XXXXXX";

static void remove_folder(void)
{
    static const char *const names[] = {"model.safetensors",
                                        "config.json",
                                        "tokenizer.json",
                                        "schedule.csv",
                                        "a.bin",
                                        "a.idx",
                                        "index.json",
                                        "rank-00000.safetensors",
                                        "flight/rank-0.ring",
                                        "flight/rank-1.ring",
                                        "trace.json",
                                        "flight"};
    char path[64];

    for (size_t i = 0; i < CT_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
}

/* The bytes as a file; the path is valid until the next call. */
static const char *as_file(const char *name, const void *data, size_t size)
{
    static char path[64];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    out = fopen(path, "wb");
    if (!out || fwrite(data, 1, size, out) != size || fclose(out))
        abort();
    return path;
}

static char *as_text(struct ct_arena *arena, const void *data, size_t size)
{
    char *text = ct_arena_alloc(arena, size + 1);

    memcpy(text, data, size);
    return text;
}

/* ---- targets ---- */

static void recipe(const uint8_t *data, size_t size)
{
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;

    ct_recipe_parse(&arena, "fuzz.ini", as_text(&arena, data, size), &recipe);
    ct_arena_finish(&arena);
}

static void graph(const uint8_t *data, size_t size)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;

    ct_stream("gather", CT_STREAM_KEEPS);
    graph = ct_graph_parse(&arena, as_text(&arena, data, size));
    if (graph && ct_graph_verify(graph, NULL) == 0)
        ct_graph_text(graph, &arena);
    ct_arena_finish(&arena);
}

static void schedule(const uint8_t *data, size_t size)
{
    struct ct_arena arena = {0};
    struct ct_schedule *schedule;

    ct_schedule_read_csv(&arena, as_file("schedule.csv", data, size), -1, -1, -1, &schedule);
    ct_arena_finish(&arena);
}

static void safetensors(const uint8_t *data, size_t size)
{
    struct ct_weights *weights;

    as_file("model.safetensors", data, size);
    if (ct_weights_open(folder, &weights) == 0) {
        for (size_t i = 0; i < ct_weights_count(weights); i++) {
            const struct ct_weight *w = ct_weights_at(weights, i);
            int64_t offset[CT_MAX_DIMS] = {0}, one[CT_MAX_DIMS];
            float first;

            for (int d = 0; d < CT_MAX_DIMS; d++)
                one[d] = 1;
            if (ct_shape_count(w->ndim, w->shape) > 0)
                ct_weights_read(w, offset, one, CT_F32, &first);
        }
        ct_weights_close(weights);
    }
}

static void config(const uint8_t *data, size_t size)
{
    struct sizes {
        int64_t hidden;
        double epsilon;
        bool tied;
        struct ct_rope rope;
        struct ct_hf_layers layers;
    } sizes = {0};
    static const struct ct_hf_key keys[] = {
        {"hidden_size|n_embd", CT_HF_SIZE, offsetof(struct sizes, hidden), -1},
        {"rms_norm_eps", CT_HF_NUMBER, offsetof(struct sizes, epsilon), 1e-5},
        {"tie_word_embeddings", CT_HF_BOOL, offsetof(struct sizes, tied), 0},
        {"rope_theta", CT_HF_ROPE, offsetof(struct sizes, rope), 10000},
        {"mlp_only_layers", CT_HF_LAYERS, offsetof(struct sizes, layers), 0},
        {0}};
    static const struct ct_hf_fixed fixed[] = {{"hidden_act", "\"silu\"", false}, {0}};
    const struct ct_hf_config table = {"llama", "LlamaForCausalLM", keys, fixed};

    as_file("config.json", data, size);
    ct_hf_read_config(&table, folder, &sizes);
}

static void tokenizer(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello, it's <|begin|> caf\xc3\xa9 12345\r\n  \xe6\x97\xa5 end";
    struct ct_text_span spans[256];
    int32_t tokens[256];
    struct tokenizer t;
    struct ids ids = {tokens, 0, CT_COUNT(tokens), spans};
    struct decoding decoding = {0};
    size_t count;

    if (tokenizer_open(&t, as_file("tokenizer.json", data, size)) < 0)
        return;
    tokenizer_encode(&t, text, sizeof(text), true, &ids);
    count = ids.count < ids.room ? ids.count : ids.room;
    for (size_t i = 0; i < count; i++)
        if (spans[i].begin > spans[i].end || spans[i].end > sizeof(text))
            abort();
    tokenizer_decode(&t, &decoding, tokens, count, true);
    decoding_finish(&decoding);
    tokenizer_close(&t);
}

static void encode(const uint8_t *data, size_t size)
{
    static struct tokenizer t;
    struct ids ids = {0};

    if (!t.vocabulary.count && tokenizer_open(&t, CT_FUZZ_TOKENIZER) < 0)
        abort();
    if (tokenizer_encode(&t, (const char *)data, size, true, &ids) < 0)
        abort();
}

static int ignore(void *context, const struct document *document)
{
    (void)context, (void)document;
    return 0;
}

static void lines(const uint8_t *data, size_t size)
{
    for (int chat = 0; chat < 2; chat++) {
        enum corpus_format format = chat ? CORPUS_CHAT : CORPUS_JSONL;
        struct chat_request how = {.format = ct_chat_find("llama3")};
        const struct corpus_request request = {
            .format = format, .field = "text", .chat = &how, .skip = true};
        struct corpus corpus = {.request = &request, .take = ignore};

        if (chat_fields(&corpus.arena, format, "", how.field) < 0)
            abort();
        corpus_add_lines(&corpus, "fuzz.jsonl", (const char *)data, size, 1, format);
        corpus_close(&corpus);
    }
}

/* A template of a conversation of two turns with tools. */
static void template(const uint8_t *data, size_t size)
{
    static json_t *variables;
    struct ct_arena arena = {0};
    struct ct_jinja_text text;
    struct ct_jinja *jinja;

    if (!variables)
        variables = json_pack("{s: [{s: s, s: s}, {s: s, s: s}], s: b, s: [{s: s, s: f}]}",
                              "messages", "role", "user", "content", "h\u00e9 <b>", "role",
                              "assistant", "content", "yes </think> no", "add_generation_prompt", 1,
                              "tools", "name", "f", "x", 1.5);
    if (ct_jinja_read(&arena, "fuzz", (const char *)data, size, &jinja) == 0)
        (void)ct_jinja_render(jinja, variables, "2026-11-28", &arena, &text);
    ct_arena_finish(&arena);
}

static void packed(const uint8_t *data, size_t size)
{
    struct spool text = {0};

    if (unpack_is_packed((const char *)data, size) && spool_open(&text, "/tmp") == 0)
        (void)unpack((const char *)data, size, &text);
    spool_close(&text);
}

#ifdef CT_FUZZ_TAR
static int take_text(void *context, const struct ct_reader_text *text)
{
    size_t *sum = context;

    *sum += strlen(text->name);
    for (size_t i = 0; i < text->bytes; i++)
        *sum += (unsigned char)text->data[i]; /* all of it is there */
    return 0;
}

static void tar(const uint8_t *data, size_t size)
{
    size_t sum = 0;
    const struct ct_reading reading = {.size = sizeof(reading),
                                       .path = "fuzz.tar",
                                       .data = data,
                                       .bytes = size,
                                       .take = take_text,
                                       .context = &sum};

    (void)tar_read(&reading);
}
#endif

/* The bytes as Megatron's index of a small file, and as tokens themselves. */
static void tokens(const uint8_t *data, size_t size)
{
    static const char some[64];
    struct token_file file;
    const char *path;

    as_file("a.idx", data, size);
    path = as_file("a.bin", some, sizeof(some));
    if (token_file_open(&file, path) == 0) {
        for (int64_t i = 0; i < file.count; i++)
            if (file.documents)
                token_file_document(&file, i);
        token_file_close(&file);
    }
    path = as_file("a.bin", data, size);
    if (token_file_open(&file, path) == 0) {
        if (file.count > 0)
            token_file_at(&file, file.count - 1);
        token_file_close(&file);
    }
}

/* The bytes as an index without its last line, which is their hash. */
static void checkpoint(const uint8_t *data, size_t size)
{
    struct ct_arena arena = {0};
    char *text = ct_arena_alloc(&arena, size + 64);
    struct ckpt c;

    memcpy(text, data, size);
    size += (size_t)snprintf(text + size, 64, "\n\"xxh3\":\"%016" PRIx64 "\"}\n",
                             ckpt_hash(data, size));
    as_file("index.json", text, size);
    if (truncate(as_file("rank-00000.safetensors", "", 0), CT_FUZZ_FILE) < 0)
        abort();
    if (ckpt_open(&arena, folder, &c) == 0)
        for (size_t i = 0; i < c.tensor_count; i++)
            if (ckpt_find(&c, c.tensors[i].name) != &c.tensors[i])
                abort();
    ct_arena_finish(&arena);
}

/* The second rank's file is as it was written. */
static void copy_ring(void)
{
    struct ct_arena arena = {0};
    struct ct_flight_run run;
    char *text;
    size_t size;

    if (ct_file_read(&arena, CT_FUZZ_RING, 1 << 20, &text, &size) < 0)
        abort();
    as_file("flight/rank-1.ring", text, size);
    ct_arena_finish(&arena);
    if (ct_flight_run_open(folder, false, &run) < 0) /* of an earlier layout: nothing is reached */
        abort();
    ct_flight_run_close(&run);
}

/* The ways to tell what a run did. */
static void explain_flight(struct ct_flight_run *run)
{
    static struct ct_flight_verdict verdict;
    FILE *out = fopen("/dev/null", "w");

    if (!out || !run->world)
        abort();
    ct_flight_analyse(run, &verdict);
    ct_flight_page(run, &verdict, out);
    if (ct_flight_json(run, &verdict, out) < 0)
        abort();
    fclose(out);
}

/* The bytes as the file of the first of two ranks; of the second there is a good one. */
static void flight(const uint8_t *data, size_t size)
{
    json_t *trace;
    struct ct_flight_run run;
    char path[64];

    snprintf(path, sizeof(path), "%s/flight", folder);
    if (mkdir(path, 0700) == 0)
        copy_ring();
    as_file("flight/rank-0.ring", data, size);
    if (ct_flight_run_open(folder, false, &run) < 0)
        return;
    explain_flight(&run);
    snprintf(path, sizeof(path), "%s/trace.json", folder);
    if (ct_flight_trace(&run, path) < 0 || ct_json_read_file(path, 0, &trace) < 0)
        abort();
    json_decref(trace);
    ct_flight_run_close(&run);
    snprintf(path, sizeof(path), "%s/flight/rank-0.ring", folder);
    if (ct_flight_run_open_rank(path, &run) < 0)
        return;
    for (int g = 0; g < run.group_count; g++)
        for (int i = 0; i < run.group[g].size; i++)
            if (run.group[g].ranks[i] >= run.world)
                abort();
    explain_flight(&run);
    ct_flight_run_close(&run);
}

static const struct target {
    const char *program;
    void (*run)(const uint8_t *data, size_t size);
} targets[] = {
    {"fuzz_recipe", recipe},
    {"fuzz_graph", graph},
    {"fuzz_schedule", schedule},
    {"fuzz_config", config},
    {"fuzz_tokenizer", tokenizer},
    {"fuzz_encode", encode},
    {"fuzz_lines", lines},
    {"fuzz_safetensors", safetensors},
    {"fuzz_packed", packed},
    {"fuzz_tokens", tokens},
    {"fuzz_checkpoint", checkpoint},
    {"fuzz_flight", flight},
    {"fuzz_template", template},
#ifdef CT_FUZZ_TAR
    {"fuzz_tar", tar},
#endif
};
static const struct target *target; /* of this program */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < CT_COUNT(targets); i++)
        if (!strcmp(targets[i].program, program_invocation_short_name))
            target = &targets[i];
    if (!target) {
        fprintf(stderr, "%s: no target is named so\n", program_invocation_short_name);
        return 1;
    }
    if (!mkdtemp(folder) || ct_ops_register() < 0)
        return 1;
    return atexit(remove_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    target->run(data, size);
    return 0;
}
