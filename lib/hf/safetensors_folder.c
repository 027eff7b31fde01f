/*
 * Weights in several files: which file has what, their names, and the index.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/safetensors.h>

#define INDEX "model.safetensors.index.json"

static size_t weight_bytes(const struct ct_weight *weight)
{
    return (size_t)ct_shape_count(weight->ndim, weight->shape) * ct_dtype_size(weight->dtype);
}

struct ct_safetensors_files ct_safetensors_divide(struct ct_arena *arena,
                                                  const struct ct_weight *weights, size_t count,
                                                  size_t most)
{
    struct ct_safetensors_files files = {1, ct_arena_array(arena, size_t, count + 2)};
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        size_t more = weight_bytes(&weights[i]);

        if (bytes && bytes + more > most) {
            files.first[files.count++] = i;
            bytes = 0;
        }
        bytes += more;
    }
    files.first[files.count] = count;
    return files;
}

void ct_safetensors_name(char name[CT_SAFETENSORS_NAME], size_t file, size_t count)
{
    if (count == 1)
        snprintf(name, CT_SAFETENSORS_NAME, "model.safetensors");
    else
        snprintf(name, CT_SAFETENSORS_NAME, "model-%05zu-of-%05zu.safetensors", file + 1, count);
}

static char *make_index(const struct ct_weight *weights, const struct ct_safetensors_files *files)
{
    json_t *map = json_object(), *root;
    char name[CT_SAFETENSORS_NAME], *text;
    json_int_t total = 0;

    for (size_t f = 0; f < files->count; f++) {
        ct_safetensors_name(name, f, files->count);
        for (size_t i = files->first[f]; i < files->first[f + 1]; i++) {
            json_object_set_new(map, weights[i].name, json_string(name));
            total += (json_int_t)weight_bytes(&weights[i]);
        }
    }
    root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
    text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return text;
}

static int write_index(const char *path, const struct ct_weight *weights,
                       const struct ct_safetensors_files *files)
{
    char *text = make_index(weights, files);
    int rc = text ? ct_file_write(path, text, strlen(text)) : ct_fail(CT_ENOMEM, "%s", path);

    free(text);
    return rc;
}

/* Files of a former index that the new one does not name. */
static void remove_listed(const char *folder, const char *path, size_t count)
{
    json_t *root = NULL, *value;
    char name[CT_SAFETENSORS_NAME], old[CT_PATH_ROOM];
    const char *key;

    if (ct_json_read_file(path, 0, &root) < 0)
        return; /* there is none, or it lists nothing */
    json_object_foreach(json_object_get(root, "weight_map"), key, value)
    {
        const char *file = json_string_value(value);
        size_t number, of;

        if (!file || sscanf(file, "model-%zu-of-%zu.safetensors", &number, &of) != 2 || !number)
            continue;
        ct_safetensors_name(name, number - 1, of);
        if (of == count || of == 1 || strcmp(name, file) ||
            (size_t)snprintf(old, sizeof(old), "%s/%s", folder, file) >= sizeof(old))
            continue;
        unlink(old);
    }
    json_decref(root);
}

int ct_safetensors_complete(const char *folder, const struct ct_weight *weights,
                            const struct ct_safetensors_files *files)
{
    char index[CT_PATH_ROOM], single[CT_PATH_ROOM];
    int rc = 0;

    if ((size_t)snprintf(index, sizeof(index), "%s/" INDEX, folder) >= sizeof(index) ||
        (size_t)snprintf(single, sizeof(single), "%s/model.safetensors", folder) >= sizeof(single))
        return ct_fail(CT_ECONFIG, "%s: too long a path", folder);
    remove_listed(folder, index, files->count);
    if (files->count > 1)
        rc = write_index(index, weights, files);
    if (rc == 0 && unlink(files->count > 1 ? single : index) < 0 && errno != ENOENT)
        rc = ct_fail(CT_EIO, "%s: an old file stays: %s", folder, strerror(errno));
    return rc;
}

struct shifted {
    ct_safetensors_source *produce;
    void *context;
    size_t first;
};

static int produce_shifted(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    const struct shifted *s = context;

    return s->produce(s->first + index, sink, s->context);
}

int ct_safetensors_write_folder(const char *folder, const struct ct_weight *weights, size_t count,
                                size_t most, ct_safetensors_source *produce, void *context)
{
    struct ct_arena arena = {0};
    struct ct_safetensors_files files = ct_safetensors_divide(&arena, weights, count, most);
    char name[CT_SAFETENSORS_NAME];
    int rc = 0;

    for (size_t f = 0; f < files.count; f++) {
        struct shifted s = {produce, context, files.first[f]};
        int one;

        ct_safetensors_name(name, f, files.count);
        one = ct_safetensors_write_from(
            folder && rc == 0 ? ct_arena_printf(&arena, "%s/%s", folder, name) : NULL,
            weights + s.first, files.first[f + 1] - s.first, produce_shifted, &s);
        rc = rc == 0 ? one : rc;
    }
    if (rc == 0 && folder)
        rc = ct_safetensors_complete(folder, weights, &files);
    ct_arena_finish(&arena);
    return rc;
}
