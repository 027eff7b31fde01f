/*
 * index.json: what a checkpoint holds.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>

#include "ckpt.h"

#define FORMAT "ctitan checkpoint"
#define VERSION 1
#define LIMIT ((size_t)1 << 30)                 /* bytes of an index, a header or a chunk */
#define MOST ((size_t)1 << 58)                  /* bytes of a file, elements of a tensor */
#define HASH "\n\"xxh3\":\"%016" PRIx64 "\"}\n" /* its last line */
#define HASH_BYTES 28

/* ---- writing ---- */

static json_t *numbers(int count, const int64_t *list)
{
    json_t *array = json_array();

    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_integer(list[i]));
    return array;
}

static json_t *hash_text(uint64_t hash)
{
    char text[17];

    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    return json_string(text);
}

static json_t *hex(const unsigned char *data, size_t bytes)
{
    char *text = calloc(bytes * 2 + 1, 1);
    json_t *value;

    for (size_t i = 0; text && i < bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", data[i]);
    value = json_string(text ? text : "");
    free(text);
    return value;
}

static json_t *pack_tensors(const struct ckpt *c)
{
    json_t *all = json_object();

    for (size_t i = 0; i < c->tensor_count; i++) {
        const struct ct_checkpoint_tensor *t = &c->tensors[i];

        json_t *tensor =
            json_pack("{s:s, s:s, s:o}", "role", t->role == CT_ROLE_PARAM ? "parameter" : "state",
                      "dtype", ct_dtype_name(t->dtype), "shape", numbers(t->ndim, t->shape));

        if (t->absent)
            json_object_set_new(tensor, "absent", json_true());
        if (t->follows)
            json_object_set_new(tensor, "follows", json_true());
        json_object_set_new(all, t->name, tensor);
    }
    return all;
}

static json_t *pack_file(const struct ckpt_file *f, size_t chunk)
{
    json_t *boxes = json_array(), *hashes = json_array(), *file;

    for (size_t i = 0; i < f->box_count; i++) {
        const struct ckpt_box *b = &f->boxes[i];

        json_array_append_new(boxes, json_pack("{s:s, s:o, s:o}", "tensor", b->name, "offset",
                                               numbers(b->ndim, b->offset), "shape",
                                               numbers(b->ndim, b->shape)));
    }
    for (size_t n = 0; n < ckpt_chunks(f, chunk); n++)
        json_array_append_new(hashes, hash_text(f->hash[n]));
    file = json_pack("{s:s, s:I, s:o, s:I, s:o, s:o}", "name", f->name, "header",
                     (json_int_t)f->header, "header_xxh3", hash_text(f->header_hash), "bytes",
                     (json_int_t)f->bytes, "boxes", boxes, "xxh3", hashes);
    if (file && f->host)
        json_object_set_new(file, "host", ct_json_text(f->host));
    return file;
}

static const char *const data_keys[] = {
    [CKPT_TRAINING] = "data", [CKPT_VALIDATION] = "validation_data"};

static void pack_data(json_t *root, const struct ckpt *c)
{
    for (int i = 0; i < CKPT_DATA; i++)
        if (c->data[i])
            json_object_set_new(root, data_keys[i],
                                json_pack("{s:o, s:I, s:I}", "hash", hash_text(c->data[i]->hash),
                                          "documents", (json_int_t)c->data[i]->documents, "tokens",
                                          (json_int_t)c->data[i]->tokens));
}

static json_t *pack_beside(const struct ckpt *c)
{
    json_t *all = json_object();

    for (size_t i = 0; i < c->beside.count; i++) {
        const struct ct_small_file *f = &c->beside.list[i];

        json_object_set_new(all, f->name,
                            json_pack("{s:I, s:o}", "bytes", (json_int_t)f->size, "xxh3",
                                      hash_text(ckpt_hash(f->data, f->size))));
    }
    return all;
}

static json_t *pack(const struct ckpt *c)
{
    const struct ct_progress *p = &c->progress;
    json_t *files = json_array(), *kept = json_object(), *root;

    for (size_t i = 0; i < c->file_count; i++)
        if (c->files[i].box_count)
            json_array_append_new(files, pack_file(&c->files[i], c->chunk));
    for (size_t i = 0; i < c->kept_count; i++)
        json_object_set_new(kept, c->kept[i].name, hex(c->kept[i].data, c->kept[i].bytes));
    root = json_pack(
        "{s:s, s:i, s:{s:I, s:I, s:I, s:I}, s:I, s:b, s:I, s:s, s:s, s:I, s:o, s:o, s:o}", "format",
        FORMAT, "version", VERSION, "progress", "step", (json_int_t)p->step, "updates",
        (json_int_t)p->updates, "tokens", (json_int_t)p->tokens, "samples", (json_int_t)p->samples,
        "time", (json_int_t)c->time, "model_only", (int)c->model_only, "world",
        (json_int_t)c->world, "mesh", c->mesh, "recipe", c->recipe, "chunk", (json_int_t)c->chunk,
        "tensors", pack_tensors(c), "kept", kept, "files", files);
    if (root && c->batch)
        json_object_set_new(root, "batch", json_integer(c->batch));
    if (root && c->config)
        json_object_set_new(root, "config", json_string(c->config));
    if (root && c->beside.count)
        json_object_set_new(root, CKPT_BESIDE, pack_beside(c));
    if (root)
        pack_data(root, c);
    return root;
}

int ckpt_index_text(struct ct_arena *arena, const struct ckpt *c, char **text, size_t *size)
{
    json_t *root = pack(c);
    char *packed = root ? json_dumps(root, JSON_COMPACT) : NULL;
    size_t used = packed ? strlen(packed) : 0;

    json_decref(root);
    if (!packed)
        return ct_fail(CT_ENOMEM, INDEX);
    packed[used - 1] = ','; /* in the place of the last brace */
    *text = ct_arena_printf(arena, "%s" HASH, packed, ckpt_hash(packed, used));
    *size = used + HASH_BYTES;
    free(packed);
    return 0;
}

int ckpt_index_write(const char *text, size_t size, const char *folder)
{
    struct ct_arena scratch = {0};
    int rc = ct_file_write(ct_arena_printf(&scratch, "%s/" INDEX, folder), text, size);

    ct_arena_finish(&scratch);
    return rc;
}

/* ---- tensors by name ---- */

static int by_name(const void *a, const void *b)
{
    const struct ct_checkpoint_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static void sort_tensors(struct ckpt *c)
{
    c->by_name = ct_arena_array(c->arena, const struct ct_checkpoint_tensor *, c->tensor_count + 1);
    for (size_t i = 0; i < c->tensor_count; i++)
        c->by_name[i] = &c->tensors[i];
    qsort(c->by_name, c->tensor_count, sizeof(*c->by_name), by_name);
}

const struct ct_checkpoint_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    const struct ct_checkpoint_tensor wanted = {.name = name}, *key = &wanted, **found;

    found = bsearch(&key, c->by_name, c->tensor_count, sizeof(*c->by_name), by_name);
    return found ? *found : NULL;
}

/* ---- reading ---- */

static int read_numbers(const json_t *array, int *count, int64_t *list)
{
    if (!json_is_array(array) || json_array_size(array) > CT_MAX_DIMS)
        return ct_fail(CT_EDAMAGED, "expected up to %d numbers", CT_MAX_DIMS);
    *count = (int)json_array_size(array);
    for (int i = 0; i < *count; i++) {
        list[i] = json_integer_value(json_array_get(array, (size_t)i));
        if (list[i] < 0)
            return ct_fail(CT_EDAMAGED, "a number below 0");
    }
    return 0;
}

static int read_bytes(const json_t *object, const char *key, size_t most, size_t *bytes)
{
    json_int_t value = json_integer_value(json_object_get(object, key));

    if (value < 0 || (size_t)value > most)
        return ct_fail(CT_EDAMAGED, "%s: %lld is not between 0 and %zu", key, (long long)value,
                       most);
    *bytes = (size_t)value;
    return 0;
}

static uint64_t hash_value(const json_t *text)
{
    return strtoull(json_string_value(text) ? json_string_value(text) : "", NULL, 16);
}

static int check_elements(const struct ct_checkpoint_tensor *t)
{
    int64_t most = (int64_t)MOST;

    for (int d = 0; d < t->ndim; d++)
        most /= t->shape[d] ? t->shape[d] : 1;
    return most ? 0 : ct_fail(CT_EDAMAGED, "%s has more than %zu elements", t->name, MOST);
}

static int read_tensor(struct ckpt *c, const char *name, const json_t *value)
{
    struct ct_checkpoint_tensor *t = &c->tensors[c->tensor_count++];
    const char *role = json_string_value(json_object_get(value, "role"));
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    int rc;

    t->name = ct_arena_strdup(c->arena, name);
    t->role = role && !strcmp(role, "parameter") ? CT_ROLE_PARAM : CT_ROLE_STATE;
    t->absent = json_is_true(json_object_get(value, "absent"));
    t->follows = json_is_true(json_object_get(value, "follows"));
    if (ct_dtype_parse(dtype ? dtype : "", &t->dtype) < 0)
        return ct_context(CT_EDAMAGED, "%s", name);
    rc = read_numbers(json_object_get(value, "shape"), &t->ndim, t->shape);
    return rc < 0 ? rc : check_elements(t);
}

static int read_box(const struct ckpt *c, struct ckpt_file *f, const json_t *value, size_t *at)
{
    struct ckpt_box *b = &f->boxes[f->box_count++];
    const char *name = json_string_value(json_object_get(value, "tensor"));
    const struct ct_checkpoint_tensor *t = name ? ckpt_find(c, name) : NULL;
    int offsets, rc;

    if (!t)
        return ct_fail(CT_EDAMAGED, "%s is not in the list of tensors", name ? name : "a box");
    *b = (struct ckpt_box){.name = t->name, .dtype = t->dtype, .at = *at, .tensor = t};
    rc = read_numbers(json_object_get(value, "offset"), &offsets, b->offset);
    if (rc == 0)
        rc = read_numbers(json_object_get(value, "shape"), &b->ndim, b->shape);
    if (rc < 0 || b->ndim != t->ndim || offsets != t->ndim)
        return ct_fail(CT_EDAMAGED, "a box of %s has other dimensions", name);
    for (int d = 0; d < b->ndim; d++)
        if (b->shape[d] < 1 || b->shape[d] > t->shape[d] ||
            b->offset[d] > t->shape[d] - b->shape[d])
            return ct_fail(CT_EDAMAGED, "a box of %s is not inside it", name);
    b->bytes = ct_dtype_bytes(b->dtype, b->ndim, b->shape);
    *at += b->bytes;
    return *at > MOST ? ct_fail(CT_EDAMAGED, "%s: more than %zu bytes", f->name, MOST) : 0;
}

bool ckpt_is_host(const char *name)
{
    return *name && *name != '-' &&
           name[strspn(
               name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:")] == '\0';
}

/* The file must be there, or on another host, in its whole length. */
static int check_size(const struct ckpt *c, struct ckpt_file *f)
{
    const char *path = ct_arena_printf(c->arena, "%s/%s", c->path, f->name);
    struct stat st;
    int tries = 0, rc;

    do
        rc = stat(path, &st);
    while (rc < 0 && ct_file_again(&tries));
    f->absent = rc < 0 && errno == ENOENT && f->host;
    if (f->absent)
        return 0;
    if (rc < 0)
        return ct_fail(errno == ENOENT ? CT_EDAMAGED : CT_EIO, "%s: %s", path, strerror(errno));
    if ((size_t)st.st_size != f->header + f->bytes)
        return ct_fail(CT_EDAMAGED, "%s has %lld bytes instead of %zu", path, (long long)st.st_size,
                       f->header + f->bytes);
    return 0;
}

static int read_file(struct ckpt *c, const json_t *value)
{
    struct ckpt_file *f = &c->files[c->file_count++];
    const char *name = json_string_value(json_object_get(value, "name"));
    const char *host = json_string_value(json_object_get(value, "host"));
    const json_t *boxes = json_object_get(value, "boxes"), *hashes = json_object_get(value, "xxh3");
    size_t at = 0;
    int rc = 0;

    if (!name || !*name || strchr(name, '/'))
        return ct_fail(CT_EDAMAGED, "a file without a name");
    if (host && !ckpt_is_host(host))
        return ct_fail(CT_EDAMAGED, "%s: \"%s\" is not the name of a host", name, host);
    *f = (struct ckpt_file){
        .name = ct_arena_strdup(c->arena, name),
        .host = host ? ct_arena_strdup(c->arena, host) : NULL,
        .header_hash = hash_value(json_object_get(value, "header_xxh3")),
        .boxes = ct_arena_array(c->arena, struct ckpt_box, json_array_size(boxes) + 1),
        .hash = ct_arena_array(c->arena, uint64_t, json_array_size(hashes) + 1)};
    rc = read_bytes(value, "header", LIMIT, &f->header);
    if (rc == 0)
        rc = read_bytes(value, "bytes", MOST, &f->bytes);
    for (size_t i = 0; rc == 0 && i < json_array_size(boxes); i++)
        rc = read_box(c, f, json_array_get(boxes, i), &at);
    if (rc == 0 && (at != f->bytes || json_array_size(hashes) != ckpt_chunks(f, c->chunk)))
        rc = ct_fail(CT_EDAMAGED, "%s: its boxes do not add up to %zu bytes", name, f->bytes);
    for (size_t n = 0; rc == 0 && n < json_array_size(hashes); n++)
        f->hash[n] = hash_value(json_array_get(hashes, n));
    return rc < 0 ? rc : check_size(c, f);
}

static void read_kept(struct ckpt *c, const char *name, const char *text)
{
    size_t bytes = strlen(text) / 2;
    unsigned char *data = ct_arena_alloc(c->arena, bytes + 1);
    unsigned byte;

    for (size_t i = 0; i < bytes && sscanf(text + 2 * i, "%2x", &byte) == 1; i++)
        data[i] = (unsigned char)byte;
    c->kept[c->kept_count++] = (struct ckpt_kept){ct_arena_strdup(c->arena, name), data, bytes};
}

/* The boxes of a tensor do not overlap, so it is whole if their elements are as many as its own. */
static int check_whole(const struct ckpt *c)
{
    struct ct_arena scratch = {0};
    int64_t *found = ct_arena_array(&scratch, int64_t, c->tensor_count + 1);
    int rc = 0;

    for (size_t i = 0; i < c->file_count; i++)
        for (size_t k = 0; k < c->files[i].box_count; k++) {
            const struct ckpt_box *b = &c->files[i].boxes[k];

            found[b->tensor - c->tensors] += ct_shape_count(b->ndim, b->shape);
        }
    for (size_t i = 0; rc == 0 && i < c->tensor_count; i++)
        if (found[i] != ct_shape_count(c->tensors[i].ndim, c->tensors[i].shape))
            rc = ct_fail(CT_EDAMAGED, "a part of %s is missing", c->tensors[i].name);
    ct_arena_finish(&scratch);
    return rc;
}

static const char *text_of(struct ckpt *c, const json_t *root, const char *key)
{
    const char *text = json_string_value(json_object_get(root, key));

    return text ? ct_arena_strdup(c->arena, text) : NULL;
}

/* Older checkpoints have none. */
static void read_data(struct ckpt *c, const json_t *root)
{
    for (int i = 0; i < CKPT_DATA; i++) {
        const json_t *value = json_object_get(root, data_keys[i]);
        struct ckpt_data *identity = ct_arena_alloc(c->arena, sizeof(*identity));

        identity->hash = hash_value(json_object_get(value, "hash"));
        identity->documents = json_integer_value(json_object_get(value, "documents"));
        identity->tokens = json_integer_value(json_object_get(value, "tokens"));
        c->data[i] = value ? identity : NULL;
    }
}

static int read_beside(struct ckpt *c, json_t *all)
{
    const char *name;
    json_t *value;
    int rc = 0;

    c->beside.list = ct_arena_array(c->arena, struct ct_small_file, json_object_size(all) + 1);
    c->beside_hash = ct_arena_array(c->arena, uint64_t, json_object_size(all) + 1);
    json_object_foreach(all, name, value)
    {
        if (!*name || strchr(name, '/'))
            return ct_fail(CT_EIO, "a file without a name");
        c->beside.list[c->beside.count].name = ct_arena_strdup(c->arena, name);
        c->beside_hash[c->beside.count] = hash_value(json_object_get(value, "xxh3"));
        rc =
            read_bytes(value, "bytes", CT_SMALL_FILE_MOST, &c->beside.list[c->beside.count++].size);
        if (rc < 0)
            return ct_context(rc, "%s", name);
    }
    return 0;
}

static int unpack(struct ckpt *c, const json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    json_t *tensors = json_object_get(root, "tensors"), *files = json_object_get(root, "files");
    json_t *kept = json_object_get(root, "kept"), *value;
    json_int_t p[4], time, world, chunk, version = 0;
    const char *key;
    int model_only, rc = 0;

    if (!format || strcmp(format, FORMAT))
        return ct_fail(CT_EDAMAGED, "it is not the index of a checkpoint");
    version = json_integer_value(json_object_get(root, "version"));
    if (version != VERSION)
        return ct_fail(CT_ECONFIG, "version %lld of the format; this program reads version %d",
                       (long long)version, VERSION);
    if (json_unpack((json_t *)(uintptr_t)root, "{s:{s:I, s:I, s:I, s:I}, s:I, s:b, s:I, s:I}",
                    "progress", "step", &p[0], "updates", &p[1], "tokens", &p[2], "samples", &p[3],
                    "time", &time, "model_only", &model_only, "world", &world, "chunk",
                    &chunk) < 0 ||
        chunk < 1 || !json_is_object(tensors) || !json_is_array(files))
        return ct_fail(CT_EDAMAGED, "entries are missing");
    c->progress = (struct ct_progress){p[0], p[1], p[2], p[3]};
    c->time = time;
    c->world = world;
    c->batch = json_integer_value(json_object_get(root, "batch"));
    c->model_only = model_only;
    if ((size_t)chunk > LIMIT)
        return ct_fail(CT_EDAMAGED, "a chunk has more than %zu bytes", LIMIT);
    c->chunk = (size_t)chunk;
    c->mesh = text_of(c, root, "mesh");
    c->recipe = text_of(c, root, "recipe");
    c->config = text_of(c, root, "config");
    read_data(c, root);
    c->tensors =
        ct_arena_array(c->arena, struct ct_checkpoint_tensor, json_object_size(tensors) + 1);
    c->files = ct_arena_array(c->arena, struct ckpt_file, json_array_size(files) + 1);
    c->kept = ct_arena_array(c->arena, struct ckpt_kept, json_object_size(kept) + 1);
    json_object_foreach(tensors, key, value)
    {
        rc = read_tensor(c, key, value);
        if (rc < 0)
            return rc;
    }
    sort_tensors(c);
    for (size_t i = 0; rc == 0 && i < json_array_size(files); i++)
        rc = read_file(c, json_array_get(files, i));
    if (rc == 0)
        rc = read_beside(c, json_object_get(root, CKPT_BESIDE));
    json_object_foreach(kept, key, value)
        read_kept(c, key, json_string_value(value) ? json_string_value(value) : "");
    return rc < 0 ? rc : check_whole(c);
}

/* The last line is the hash of what is before it. */
static int check_hash(const char *text, size_t size)
{
    char line[HASH_BYTES + 1];

    if (size <= HASH_BYTES)
        return ct_fail(CT_EDAMAGED, "it is not complete");
    snprintf(line, sizeof(line), HASH, ckpt_hash(text, size - HASH_BYTES));
    return memcmp(line, text + size - HASH_BYTES, HASH_BYTES) == 0
               ? 0
               : ct_fail(CT_EDAMAGED, "its checksum is wrong");
}

bool ckpt_is_bad(int rc)
{
    return rc == CT_EDAMAGED || rc == CT_ENOENT;
}

int ckpt_index_read(struct ct_arena *arena, const char *folder, char **text, size_t *size)
{
    const char *path = ct_arena_printf(arena, "%s/" INDEX, folder);
    int rc = ct_file_read(arena, path, LIMIT, text, size);

    if (rc < 0)
        return rc == CT_EINVAL ? CT_EDAMAGED : rc;
    rc = check_hash(*text, *size);
    return rc < 0 ? ct_context(rc, "%s", path) : 0;
}

int ckpt_open_text(struct ct_arena *arena, const char *folder, const char *text, size_t size,
                   struct ckpt *c)
{
    json_t *root = NULL;
    int rc = 0;

    *c = (struct ckpt){.arena = arena, .path = ct_arena_strdup(arena, folder)};
    if (ct_json_read(text, size, NULL, CT_JSON_UNIQUE, &root) < 0)
        rc = CT_EDAMAGED;
    if (rc == 0)
        rc = unpack(c, root);
    json_decref(root);
    return rc < 0 ? ct_context(rc, "%s/" INDEX, folder) : 0;
}

int ckpt_open(struct ct_arena *arena, const char *folder, struct ckpt *c)
{
    char *text;
    size_t size;
    int rc = ckpt_index_read(arena, folder, &text, &size);

    *c = (struct ckpt){.arena = arena, .path = ct_arena_strdup(arena, folder)};
    return rc < 0 ? rc : ckpt_open_text(arena, folder, text, size, c);
}
