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

#include "safetensors_format.h"

struct files {
    size_t count, *first; /* file i has the weights [first[i], first[i + 1]) */
};

static struct files divide(struct ct_arena *arena, const struct ct_weight *weights, size_t count,
                           size_t most)
{
    struct files files = {1, ct_arena_array(arena, size_t, count + 2)};
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        size_t more = ct_safetensors_bytes(&weights[i]);

        if (bytes && bytes + more > most) {
            files.first[files.count++] = i;
            bytes = 0;
        }
        bytes += more;
    }
    files.first[files.count] = count;
    return files;
}

#define NAME_ROOM 64

static void name_file(char name[NAME_ROOM], size_t file, size_t count)
{
    if (count == 1)
        snprintf(name, NAME_ROOM, "model.safetensors");
    else
        snprintf(name, NAME_ROOM, "model-%05zu-of-%05zu.safetensors", file + 1, count);
}

static int make_index(const struct ct_weight *weights, const struct files *files, char **text)
{
    json_t *map = json_object(), *root;
    char name[NAME_ROOM];
    json_int_t total = 0;
    int rc = 0;

    for (size_t f = 0; f < files->count; f++) {
        name_file(name, f, files->count);
        for (size_t i = files->first[f]; i < files->first[f + 1]; i++) {
            if (json_object_set_new(map, weights[i].name, json_string(name)) < 0)
                rc = ct_fail(CT_EINVAL, "%s: the name is not UTF-8", weights[i].name);
            total += (json_int_t)ct_safetensors_bytes(&weights[i]);
        }
    }
    root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total, "weight_map", map);
    *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    return rc == 0 && !*text ? ct_fail(CT_ENOMEM, "an index") : rc;
}

static int write_index(const char *path, const struct ct_weight *weights, const struct files *files)
{
    char *text;
    int rc = ct_context(make_index(weights, files, &text), "%s", path);

    if (rc == 0)
        rc = ct_file_write(path, text, strlen(text));
    free(text);
    return rc;
}

/* Files of a former index that the new one does not name. */
static void remove_listed(const char *folder, const char *path, size_t count)
{
    json_t *root = NULL, *value;
    char name[NAME_ROOM], old[CT_PATH_ROOM];
    const char *key;

    if (ct_json_read_file(path, 0, &root) < 0)
        return; /* there is none, or it lists nothing */
    json_object_foreach(json_object_get(root, "weight_map"), key, value)
    {
        const char *file = json_string_value(value);
        size_t number, of;

        if (!file || sscanf(file, "model-%zu-of-%zu.safetensors", &number, &of) != 2 || !number)
            continue;
        name_file(name, number - 1, of);
        if (of == count || of == 1 || strcmp(name, file) ||
            (size_t)snprintf(old, sizeof(old), "%s/%s", folder, file) >= sizeof(old))
            continue;
        unlink(old);
    }
    json_decref(root);
}

/* Everything but the files of weights. */
static int complete(const char *folder, const struct ct_weight *weights, const struct files *files)
{
    char index[CT_PATH_ROOM], single[CT_PATH_ROOM];
    int rc = 0;

    if ((size_t)snprintf(index, sizeof(index), "%s/" CT_SAFETENSORS_INDEX, folder) >=
            sizeof(index) ||
        (size_t)snprintf(single, sizeof(single), "%s/model.safetensors", folder) >= sizeof(single))
        return ct_fail(CT_ECONFIG, "%s: too long a path", folder);
    remove_listed(folder, index, files->count);
    if (files->count > 1)
        rc = write_index(index, weights, files);
    if (rc == 0 && unlink(files->count > 1 ? single : index) < 0 && errno != ENOENT)
        rc = ct_fail(CT_EIO, "%s: an old file stays: %s", folder, strerror(errno));
    return rc;
}

struct produced {
    ct_safetensors_source *produce;
    void *context;
    size_t first;
    int failed; /* to produce: then other ranks do not wait */
};

static int produce_shifted(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    struct produced *p = context;

    return p->failed = p->produce(p->first + index, sink, p->context);
}

/* Produce all weights; the files have temporary names. *begun: how many there are. */
static int write_files(struct ct_arena *arena, const char *folder, const struct ct_weight *weights,
                       const struct files *files, struct ct_new_file *file, size_t *begun,
                       struct produced *p)
{
    char name[NAME_ROOM];
    struct ct_error_kept kept = {0};
    int rc = 0;

    for (size_t f = 0; f < files->count && !p->failed; f++) {
        bool writes = folder && rc == 0;
        int one;

        p->first = files->first[f];
        name_file(name, f, files->count);
        one = ct_safetensors_begin_from(
            &file[f], writes ? ct_arena_printf(arena, "%s/%s", folder, name) : NULL,
            weights + p->first, files->first[f + 1] - p->first, produce_shifted, p);
        *begun += writes && one == 0;
        if (rc == 0 && one < 0)
            kept = ct_error_keep();
        rc = rc == 0 ? one : rc;
    }
    return rc < 0 ? ct_error_restore(rc, &kept) : 0;
}

int ct_safetensors_write_folder(const char *folder, const struct ct_weight *weights, size_t count,
                                size_t most, ct_safetensors_source *produce,
                                int (*check)(void *context), void *context)
{
    struct ct_arena arena = {0};
    struct files files = divide(&arena, weights, count, most);
    struct ct_new_file *file = calloc(files.count, sizeof(*file));
    struct produced p = {produce, context, 0, 0};
    size_t begun = 0;
    int rc = file ? 0
                  : ct_fail(CT_ENOMEM, "%zu file%s in %s", files.count, ct_plural(files.count),
                            folder ? folder : "");

    if (rc == 0)
        rc = write_files(&arena, folder, weights, &files, file, &begun, &p);
    if (rc == 0 && folder && check)
        rc = check(context);
    for (size_t f = 0; f < begun; f++)
        rc = ct_file_end(&file[f], rc);
    if (rc == 0 && folder)
        rc = complete(folder, weights, &files);
    free(file);
    ct_arena_finish(&arena);
    return rc < 0 ? rc : (int)files.count;
}
