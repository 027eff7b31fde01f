/*
 * Files of a Hugging Face folder beside its weights.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/json.h>
#include <ctitan/log.h>
#include <ctitan/model.h>

#include "parts.h"

#define CONFIG_MOST ((size_t)1 << 20) /* bytes of a config.json */

static bool ends_in_one(const char *name, const char *const *ends, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ct_ends_in(name, ends[i]))
            return true;
    return false;
}

/* Not weights in any format, their indexes, or what a training leaves. */
static bool is_beside(const char *name)
{
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",     ".pt",   ".pth",
                                       ".ckpt",        ".h5",         ".msgpack", ".gguf", ".onnx",
                                       ".npz",         ".onnx_data",  ".tflite",  ".tmp"};
    static const char *const names[] = {"config.json", CT_PEFT_CONFIG, "trainer_state.json"};

    for (size_t i = 0; i < CT_COUNT(names); i++)
        if (!strcmp(name, names[i]))
            return false;
    return *name != '.' && !ends_in_one(name, ends, CT_COUNT(ends));
}

static bool is_of_tokenizer(const char *name)
{
    static const char *const ends[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "tokenizer.model",
                                       "vocab.json",
                                       "vocab.txt",
                                       "merges.txt",
                                       "added_tokens.json",
                                       ".tiktoken",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "spiece.model",
                                       "sentencepiece.bpe.model"};

    return ends_in_one(name, ends, CT_COUNT(ends));
}

/* ---- reading ---- */

static void add(struct ct_arena *arena, struct ct_small_files *files, struct ct_small_file file)
{
    struct ct_small_file *list = ct_arena_array(arena, struct ct_small_file, files->count + 1);

    if (files->count)
        memcpy(list, files->list, sizeof(*list) * files->count);
    list[files->count++] = file;
    files->list = list;
}

static size_t bytes_of(const struct ct_small_files *files)
{
    size_t bytes = 0;

    for (size_t i = 0; i < files->count; i++)
        bytes += files->list[i].size;
    return bytes;
}

static int read_one(struct ct_arena *arena, const char *folder, const char *name,
                    struct ct_small_files *files)
{
    const char *path = ct_arena_printf(arena, "%s/%s", folder, name);
    struct ct_small_file file = {.name = ct_arena_strdup(arena, name)};
    struct stat st;
    char *text;
    int rc;

    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if ((size_t)st.st_size > CT_SMALL_FILE_MOST ||
        bytes_of(files) + (size_t)st.st_size > CT_HF_FILES_MOST) {
        ct_warn("%s has %lld bytes: too many for a file beside weights, so models that are saved "
                "lack it",
                path, (long long)st.st_size);
        return 0;
    }
    rc = ct_file_read(arena, path, CT_SMALL_FILE_MOST, &text, &file.size);
    file.data = text;
    if (rc == 0)
        add(arena, files, file);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ct_small_file *)a)->name, ((const struct ct_small_file *)b)->name);
}

static int read_files(struct ct_arena *arena, const char *folder, bool (*wanted)(const char *name),
                      struct ct_small_files *files)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int rc = 0;

    *files = (struct ct_small_files){0};
    if (!dir)
        return ct_fail(CT_ENOENT, "%s: %s", folder, strerror(errno));
    while (rc == 0 && (entry = readdir(dir)))
        if (is_beside(entry->d_name) && wanted(entry->d_name))
            rc = read_one(arena, folder, entry->d_name, files);
    closedir(dir);
    if (files->count)
        qsort(files->list, files->count, sizeof(*files->list), by_name);
    return rc;
}

int ct_hf_read_files(struct ct_arena *arena, const char *folder, struct ct_small_files *files)
{
    return read_files(arena, folder, is_beside, files);
}

/* ---- comparison with other copies ---- */

static void identify(const char *folder, const struct ct_small_files *files, FILE *out)
{
    for (size_t i = 0; i < files->count; i++)
        fprintf(out, "reads %s/%s: hash %016" PRIx64 "\n", folder, files->list[i].name,
                (uint64_t)XXH3_64bits(files->list[i].data, files->list[i].size));
}

int ct_hf_identify(const char *folder, FILE *out)
{
    struct ct_arena arena = {0};
    struct ct_small_files config = {0}, files;
    struct ct_weights *weights = NULL;
    int rc = read_one(&arena, folder, "config.json", &config);

    if (rc == 0)
        rc = read_files(&arena, folder, is_of_tokenizer, &files);
    if (rc == 0)
        rc = ct_weights_open(folder, &weights);
    if (rc == 0) {
        identify(folder, &config, out);
        ct_weights_identify(weights, out);
        identify(folder, &files, out);
    }
    ct_weights_close(weights);
    ct_arena_finish(&arena);
    return rc;
}

/* ---- of the run ---- */

static struct {
    struct ct_arena arena;
    struct ct_small_files files;
    bool first; /* those of [model] init_from */
} noted;

int ct_hf_note_files(const char *folder)
{
    const char *from = ct_config.model.init_from; /* NULL: no recipe */
    bool first = from && !strcmp(folder, from);

    if (noted.files.count && (noted.first || !first))
        return 0;
    ct_arena_finish(&noted.arena);
    noted.first = first;
    return ct_hf_read_files(&noted.arena, folder, &noted.files);
}

/* The tokenizer that a path of the recipe leads to. A file of any other name gets that of its
   form. */
static int read_tokenizer(struct ct_arena *arena, const char *path, struct ct_small_files *files)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *folder = ".";
    bool json = ct_ends_in(name, ".json");
    struct stat st;
    int rc;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return read_files(arena, path, is_of_tokenizer, files);
    if (slash)
        folder = ct_arena_printf(arena, "%.*s/", (int)(slash - path), path);
    if (is_of_tokenizer(name))
        return read_files(arena, folder, is_of_tokenizer, files);
    *files = (struct ct_small_files){0};
    rc = read_one(arena, folder, name, files);
    if (files->count)
        files->list->name = json ? "tokenizer.json" : "tokenizer.model";
    return rc;
}

int ct_hf_files_of(struct ct_arena *arena, const struct ct_run *run, struct ct_small_files *files)
{
    const struct ct_tokenizer_ops *t = run->tokenizer;
    const char *path = t && t->path ? t->path() : "";
    int rc = 0;

    *files = (struct ct_small_files){0};
    if (*path)
        rc = read_tokenizer(arena, path, files);
    for (size_t i = 0; i < noted.files.count; i++)
        if (!*path || !is_of_tokenizer(noted.files.list[i].name))
            add(arena, files, noted.files.list[i]);
    return rc;
}

/* ---- config.json ---- */

char *hf_print(struct ct_arena *arena, const json_t *root)
{
    char *text = NULL, *copy = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    int rc = out ? ct_json_write(root, out) : -1;

    if (out && fclose(out) == 0 && rc == 0)
        copy = ct_arena_strdup(arena, text);
    free(text);
    return copy;
}

static void set_token(json_t *root, const char *key, int32_t id)
{
    if (id >= 0 && !json_object_get(root, key))
        json_object_set_new(root, key, json_integer(id));
}

/* NULL: the model's folders are of another format, or it does not describe them. */
static const struct ct_hf_config *described(const struct ct_run *run)
{
    const struct ct_weights_ops *w = run->model_ops->weights;
    bool ours = w && (w->load == ct_hf_load || w->save == ct_hf_save ||
                      w->small_files == ct_hf_small_files);

    return ours ? run->model_ops->description : NULL;
}

int hf_make_config(struct ct_arena *arena, const struct ct_run *run,
                   const struct ct_hf_config *config, const char **text)
{
    char *memory = NULL;
    size_t size;
    FILE *out;
    json_t *root = NULL;
    int rc;

    out = open_memstream(&memory, &size);
    rc = out ? ct_hf_write_config(config, run->model, out) : ct_fail(CT_ENOMEM, "config.json");
    if (out && fclose(out) && rc == 0)
        rc = ct_fail(CT_ENOMEM, "config.json");
    if (rc == 0)
        rc = ct_json_read(memory, size, "config.json", CT_JSON_LITERALS, &root);
    if (root && run->tokenizer && !*ct_config.model.init_from) {
        set_token(root, "bos_token_id", run->tokenizer->bos());
        set_token(root, "eos_token_id",
                  run->tokenizer->end ? run->tokenizer->end() : run->tokenizer->eos());
    }
    if (rc == 0 && !(*text = hf_print(arena, root)))
        rc = ct_fail(CT_ENOMEM, "config.json");
    json_decref(root);
    free(memory);
    return rc;
}

int ct_hf_config_of(struct ct_arena *arena, const struct ct_run *run, const char **text)
{
    return described(run) ? hf_make_config(arena, run, described(run), text)
                          : ct_fail(CT_EINVAL, "the model describes no config.json");
}

int ct_hf_small_files(struct ct_arena *arena, const struct ct_run *run, const char **config,
                      struct ct_small_files *files)
{
    int rc;

    *config = NULL;
    *files = (struct ct_small_files){0};
    if (!described(run))
        return 0;
    rc = ct_hf_config_of(arena, run, config);
    return rc < 0 ? rc : ct_hf_files_of(arena, run, files);
}

int ct_hf_config_as_numbers(struct ct_arena *arena, const char *folder,
                            const struct ct_weights *weights, const char **text)
{
    const char *path = ct_arena_printf(arena, "%s/config.json", folder);
    json_t *root = NULL;
    char *own;
    size_t size;
    int rc = ct_file_read(arena, path, CONFIG_MOST, &own, &size);

    *text = NULL;
    if (rc < 0)
        return rc == CT_ENOENT ? 0 : rc;
    *text = own;
    if (!ct_weights_quantised(weights))
        return 0;
    rc = ct_json_read(own, size, path, CT_JSON_LITERALS, &root);
    if (rc == 0 && !json_is_object(root))
        rc = ct_fail(CT_ECONFIG, "%s is not an object", path);
    if (rc == 0) {
        json_object_del(root, "quantization_config");
        *text = hf_print(arena, root);
        rc = *text ? 0 : ct_fail(CT_ENOMEM, "%s", path);
    }
    json_decref(root);
    return rc;
}

/* The dtype that most bytes of numbers have. */
static enum ct_dtype dtype_of(const struct ct_weight *weights, size_t count)
{
    double bytes[CT_DTYPE_COUNT] = {0};
    enum ct_dtype most = CT_F32;

    for (size_t i = 0; i < count; i++)
        if (ct_dtype_is_float(weights[i].dtype))
            bytes[weights[i].dtype] += (double)ct_shape_count(weights[i].ndim, weights[i].shape) *
                                       (double)ct_dtype_size(weights[i].dtype);
    for (int d = 0; d < CT_DTYPE_COUNT; d++)
        if (bytes[d] > bytes[most])
            most = (enum ct_dtype)d;
    return most;
}

/* transformers 5 calls it dtype; a file of version 4 keeps its name. */
static int set_dtype(json_t *root, enum ct_dtype dtype)
{
    int failed = 0;

    if (json_object_get(root, "torch_dtype"))
        failed |= json_object_set_new(root, "torch_dtype", json_string(ct_dtype_name(dtype)));
    if (json_object_get(root, "dtype") || !json_object_get(root, "torch_dtype"))
        failed |= json_object_set_new(root, "dtype", json_string(ct_dtype_name(dtype)));
    return failed;
}

static int write_config(const char *folder, const char *config, enum ct_dtype dtype)
{
    struct ct_arena arena = {0};
    json_t *root, *part;
    const char *text;
    int rc = ct_json_read(config, strlen(config), "config.json", CT_JSON_LITERALS, &root);
    int failed = 0;

    if (rc < 0)
        return rc;
    part = json_object_get(root, "text_config");
    if (json_object_get(part, "dtype") || json_object_get(part, "torch_dtype"))
        failed |= set_dtype(part, dtype);
    failed |= set_dtype(root, dtype);
    text = failed ? NULL : hf_print(&arena, root);
    rc = text ? ct_file_write(ct_arena_printf(&arena, "%s/config.json", folder), text, strlen(text))
              : ct_fail(CT_ENOMEM, "config.json");
    json_decref(root);
    ct_arena_finish(&arena);
    return rc;
}

int ct_hf_complete(const char *folder, const struct ct_weight *weights, size_t count,
                   const char *config, const struct ct_small_files *files)
{
    struct ct_arena arena = {0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < files->count; i++)
        rc = ct_file_write(ct_arena_printf(&arena, "%s/%s", folder, files->list[i].name),
                           files->list[i].data, files->list[i].size);
    ct_arena_finish(&arena);
    return rc == 0 && config ? write_config(folder, config, dtype_of(weights, count)) : rc;
}
