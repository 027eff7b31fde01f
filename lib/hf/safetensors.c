/*
 * A folder is a set of mapped files. Each header is parsed once and checked against the file before
 * a tensor is handed out: dtypes, shapes, and that the tensors cover the data section without
 * overlap or hole. After that, reading a tensor fails only through a caller's error.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/log.h>

#include "safetensors_format.h"

#define HEADER_MAX ((size_t)100 << 20) /* the format's own limit */
#define HASHED ((size_t)4096)          /* bytes at the beginning and in the middle of a tensor */
#define SINGLE "model.safetensors"

struct file {
    const char *path, *name;
    const unsigned char *base;
    size_t size, data; /* of the file; start of its data section */
};

struct entry {
    struct ct_weight weight; /* first member: entries are handed out as weights */
    size_t file, bytes;
};

struct note {
    const char *key, *value;
};

struct ct_weights {
    struct ct_arena arena;
    struct note *notes;
    size_t note_count, note_room;
    struct file *files;
    size_t file_count, file_room;
    struct entry *entries; /* sorted by name, once open; on the heap, as there may be many */
    size_t count, room;
};

static int map_file(struct file *file)
{
    const void *base;
    int rc = ct_file_map(file->path, &base, &file->size);

    file->base = base;
    if (rc == 0 && file->size < CT_SAFETENSORS_PREFIX) {
        ct_file_unmap(base, file->size);
        rc = ct_fail(CT_ECONFIG, "%s: %zu bytes are too few for a safetensors file", file->path,
                     file->size);
    }
    return rc;
}

static int parse_shape(const struct file *file, const char *name, const json_t *json,
                       struct ct_weight *weight, size_t *bytes)
{
    size_t total = ct_dtype_size(weight->dtype);
    json_t *item;
    size_t i;

    if (!json_is_array(json) || json_array_size(json) > CT_MAX_DIMS)
        return ct_fail(CT_ECONFIG, "%s: %s: shape is not a list of up to %d sizes", file->path,
                       name, CT_MAX_DIMS);
    weight->ndim = (int)json_array_size(json);
    json_array_foreach(json, i, item)
    {
        json_int_t size = json_is_integer(item) ? json_integer_value(item) : -1;

        if (size < 0 || __builtin_mul_overflow(total, (size_t)size, &total) || total > INT64_MAX)
            return ct_fail(CT_ECONFIG, "%s: %s: size number %zu of the shape is invalid",
                           file->path, name, i);
        weight->shape[i] = size;
    }
    *bytes = total;
    return 0;
}

static int parse_offsets(const struct file *file, const char *name, const json_t *json, size_t need,
                         size_t *begin)
{
    size_t room = file->size - file->data;
    json_int_t from, to;

    if (!json_is_array(json) || json_array_size(json) != 2 ||
        !json_is_integer(json_array_get(json, 0)) || !json_is_integer(json_array_get(json, 1)))
        return ct_fail(CT_ECONFIG, "%s: %s: data_offsets are not two integers", file->path, name);
    from = json_integer_value(json_array_get(json, 0));
    to = json_integer_value(json_array_get(json, 1));
    if (from < 0 || to < from || (size_t)to > room)
        return ct_fail(CT_ECONFIG,
                       "%s: %s: bytes %lld to %lld are outside the data section of %zu bytes (is "
                       "the file truncated?)",
                       file->path, name, (long long)from, (long long)to, room);
    if ((size_t)(to - from) != need)
        return ct_fail(CT_ECONFIG, "%s: %s: has %lld bytes, its shape and dtype need %zu",
                       file->path, name, (long long)(to - from), need);
    *begin = (size_t)from;
    return 0;
}

/* Room for one more entry. */
static int grow(struct ct_weights *w)
{
    size_t room = w->room ? 2 * w->room : 256;
    struct entry *entries;

    if (w->count < w->room)
        return 0;
    entries = realloc(w->entries, sizeof(*entries) * room);
    if (!entries)
        return ct_fail(CT_ENOMEM, "a list of %zu tensors", room);
    w->entries = entries;
    w->room = room;
    return 0;
}

static int parse_tensor(struct ct_weights *w, size_t file_index, const char *name,
                        const json_t *json)
{
    const struct file *file = &w->files[file_index];
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    struct entry entry = {.file = file_index};
    size_t begin = 0;
    int rc;

    if (!dtype || json_object_size(json) != 3)
        return ct_fail(CT_ECONFIG, "%s: %s: not an object of dtype, shape and data_offsets",
                       file->path, name);
    if (ct_safetensors_dtype(dtype, &entry.weight.dtype) < 0)
        return ct_fail(CT_ECONFIG, "%s: %s: dtype %s is not supported", file->path, name, dtype);
    rc = parse_shape(file, name, json_object_get(json, "shape"), &entry.weight, &entry.bytes);
    if (rc < 0)
        return rc;
    rc = parse_offsets(file, name, json_object_get(json, "data_offsets"), entry.bytes, &begin);
    if (rc < 0)
        return rc;
    entry.weight.name = ct_arena_strdup(&w->arena, name);
    entry.weight.data = file->base + file->data + begin;
    rc = grow(w);
    if (rc == 0)
        w->entries[w->count++] = entry;
    return rc;
}

static int by_address(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->weight.data, q = (uintptr_t)y->weight.data;

    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ct_weight *)a)->name, ((const struct ct_weight *)b)->name);
}

/* Entries from `first` on, all of one file, must cover every byte of its data section once. */
static int check_coverage(struct ct_weights *w, size_t first, const struct file *file)
{
    const unsigned char *at = file->base + file->data, *end = file->base + file->size;

    if (w->count > first)
        qsort(w->entries + first, w->count - first, sizeof(*w->entries), by_address);
    for (size_t i = first; i < w->count; i++) {
        const struct entry *entry = &w->entries[i];

        if ((const unsigned char *)entry->weight.data != at)
            return ct_fail(CT_ECONFIG, "%s: %s %s", file->path, entry->weight.name,
                           (const unsigned char *)entry->weight.data < at
                               ? "overlaps another tensor"
                               : "follows bytes that belong to no tensor");
        at += entry->bytes;
    }
    if (at != end)
        return ct_fail(CT_ECONFIG, "%s: %zu bytes at its end belong to no tensor", file->path,
                       (size_t)(end - at));
    return 0;
}

static int take_metadata(struct ct_weights *w, const struct file *file, const json_t *json)
{
    const char *key;
    json_t *value;

    if (!json_is_object(json))
        return ct_fail(CT_ECONFIG, "%s: __metadata__ is not an object", file->path);
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        if (!json_is_string(value))
            return ct_fail(CT_ECONFIG, "%s: __metadata__: %s is not a string", file->path, key);
        w->notes =
            ct_arena_grow(&w->arena, w->notes, &w->note_room, w->note_count + 1, sizeof(*w->notes));
        w->notes[w->note_count++] = (struct note){
            ct_arena_strdup(&w->arena, key), ct_arena_strdup(&w->arena, json_string_value(value))};
    }
    return 0;
}

struct parsing {
    struct ct_weights *weights;
    size_t file;
};

static int parse_member(const char *key, const json_t *value, void *context)
{
    const struct parsing *p = context;

    return strcmp(key, "__metadata__")
               ? parse_tensor(p->weights, p->file, key, value)
               : take_metadata(p->weights, &p->weights->files[p->file], value);
}

/* Entries from `first` on, all of one file, must have different names. */
static int check_unique(struct ct_weights *w, size_t first, const struct file *file)
{
    if (w->count > first)
        qsort(w->entries + first, w->count - first, sizeof(*w->entries), by_name);
    for (size_t i = first + 1; i < w->count; i++)
        if (!by_name(&w->entries[i - 1], &w->entries[i]))
            return ct_fail(CT_ECONFIG, "%s: duplicate tensor %s", file->path,
                           w->entries[i].weight.name);
    return 0;
}

static int parse_header(struct ct_weights *w, size_t file_index)
{
    struct file *file = &w->files[file_index];
    uint64_t length = 0;
    size_t first = w->count;
    int rc;

    for (int i = 0; i < CT_SAFETENSORS_PREFIX; i++)
        length |= (uint64_t)file->base[i] << 8 * i;
    if (length > HEADER_MAX || length > file->size - CT_SAFETENSORS_PREFIX)
        return ct_fail(CT_ECONFIG, "%s: a header of %llu bytes does not fit in a file of %zu bytes",
                       file->path, (unsigned long long)length, file->size);
    file->data = CT_SAFETENSORS_PREFIX + (size_t)length;
    rc = ct_json_each((const char *)file->base + CT_SAFETENSORS_PREFIX, (size_t)length,
                      ct_arena_printf(&w->arena, "%s, header", file->path), CT_JSON_UNIQUE,
                      parse_member, &(struct parsing){w, file_index});
    if (rc == 0)
        rc = check_unique(w, first, file);
    return rc < 0 ? rc : check_coverage(w, first, file);
}

/* Map and parse a file; *index is its position in w->files. */
static int add_path(struct ct_weights *w, const char *path, const char *name, size_t *index)
{
    struct file *file;
    int rc;

    w->files =
        ct_arena_grow(&w->arena, w->files, &w->file_room, w->file_count + 1, sizeof(*w->files));
    file = &w->files[w->file_count];
    *file = (struct file){.path = path, .name = ct_arena_strdup(&w->arena, name)};
    rc = map_file(file);
    if (rc < 0)
        return rc;
    *index = w->file_count++;
    return parse_header(w, *index);
}

/* The same for the file called name, once. */
static int add_file(struct ct_weights *w, const char *folder, const char *name, size_t *index)
{
    for (size_t i = 0; i < w->file_count; i++)
        if (!strcmp(w->files[i].name, name)) {
            *index = i;
            return 0;
        }
    return add_path(w, ct_arena_printf(&w->arena, "%s/%s", folder, name), name, index);
}

/* After sorting: names are unique, and the index (if any) agrees with the files. */
static int check_names(const struct ct_weights *w, const char *path, json_t *map)
{
    for (size_t i = 0; i < w->count; i++) {
        const struct entry *entry = &w->entries[i];
        const char *name = entry->weight.name, *file = w->files[entry->file].name;
        const char *expected = map ? json_string_value(json_object_get(map, name)) : file;

        if (i && !strcmp(w->entries[i - 1].weight.name, name))
            return ct_fail(CT_ECONFIG, "%s: %s is in two files", path, name);
        if (!expected || strcmp(expected, file))
            return ct_fail(CT_ECONFIG, "%s: %s is in %s, but the index lists another file", path,
                           name, file);
    }
    if (map && json_object_size(map) != w->count)
        return ct_fail(CT_ECONFIG, "%s: the index lists %zu tensors, but the files have %zu", path,
                       json_object_size(map), w->count);
    return 0;
}

static int add_shards(struct ct_weights *w, const char *folder, const char *path, json_t *map)
{
    const char *key;
    json_t *value;
    size_t index;

    if (!json_is_object(map))
        return ct_fail(CT_ECONFIG, "%s: there is no weight_map", path);
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        int rc;

        if (!name || !*name || strchr(name, '/'))
            return ct_fail(CT_ECONFIG, "%s: %s: not a file of this folder", path, key);
        rc = add_file(w, folder, name, &index);
        if (rc < 0)
            return ct_context(rc, "%s", path);
    }
    if (w->count)
        qsort(w->entries, w->count, sizeof(*w->entries), by_name);
    return check_names(w, path, map);
}

static int open_index(struct ct_weights *w, const char *folder, const char *path)
{
    json_t *root;
    int rc = ct_json_read_file(path, CT_JSON_UNIQUE, &root);

    if (rc < 0)
        return rc;
    rc = add_shards(w, folder, path, json_object_get(root, "weight_map"));
    json_decref(root);
    return rc;
}

static int open_folder(struct ct_weights *w, const char *folder)
{
    const char *index = ct_arena_printf(&w->arena, "%s/" CT_SAFETENSORS_INDEX, folder);
    const char *name = SINGLE;
    size_t file;
    int rc;

    if (!access(index, F_OK))
        return open_index(w, folder, index);
    if (access(ct_arena_printf(&w->arena, "%s/" SINGLE, folder), F_OK))
        name = CT_PEFT_WEIGHTS;
    if (access(ct_arena_printf(&w->arena, "%s/%s", folder, name), F_OK))
        return ct_fail(CT_ENOENT, "%s: neither " SINGLE " nor " CT_SAFETENSORS_INDEX " is there",
                       folder);
    rc = add_file(w, folder, name, &file);
    if (rc < 0)
        return rc;
    if (w->count)
        qsort(w->entries, w->count, sizeof(*w->entries), by_name);
    return 0;
}

/* ---- MXFP4 ---- */

#define BLOCKS "_blocks"
#define SCALES "_scales"
#define BLOCK 32 /* numbers with one scale */

/* The scales of a tensor that is blocks; NULL: it is not. */
static bool ends_with(const struct ct_weight *w, const char *suffix)
{
    return w->dtype == CT_U8 && ct_ends_in(w->name, suffix);
}

static bool are_pair(const struct ct_weight *blocks, const struct ct_weight *scales)
{
    int last = blocks->ndim - 1;
    int64_t size;

    return scales && scales->dtype == CT_U8 && last >= 1 && blocks->shape[last] == BLOCK / 2 &&
           scales->ndim == last &&
           !memcmp(scales->shape, blocks->shape, sizeof(*scales->shape) * (size_t)last) &&
           !__builtin_mul_overflow(blocks->shape[last - 1], (int64_t)BLOCK, &size);
}

/* The scales of blocks. CT_ECONFIG: none fit. */
static int find_scales(struct ct_weights *w, const char *folder, const struct ct_weight *blocks,
                       const struct ct_weight **scales)
{
    const char *name = ct_arena_printf(&w->arena, "%.*s" SCALES,
                                       (int)(strlen(blocks->name) - strlen(BLOCKS)), blocks->name);

    *scales = ct_weights_find(w, name);
    if (are_pair(blocks, *scales))
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: %s is not MXFP4: it needs blocks of %d bytes, and in %s a byte for each",
                   folder, blocks->name, BLOCK / 2, name);
}

static void join_pair(struct ct_weights *w, struct ct_weight *blocks,
                      const struct ct_weight *scales)
{
    blocks->ndim = scales->ndim;
    blocks->shape[blocks->ndim - 1] *= BLOCK;
    blocks->shape[blocks->ndim] = 0;
    blocks->dtype = CT_BF16;
    blocks->scales = scales->data;
    blocks->name = ct_arena_printf(&w->arena, "%.*s", (int)(strlen(scales->name) - strlen(SCALES)),
                                   scales->name);
}

/* Make one weight of each pair. */
static int join_pairs(struct ct_weights *w, const char *folder)
{
    bool *drop = ct_arena_array(&w->arena, bool, w->count + 1);
    const struct ct_weight **scales =
        ct_arena_array(&w->arena, const struct ct_weight *, w->count + 1);
    size_t kept = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < w->count; i++)
        if (ends_with(&w->entries[i].weight, BLOCKS)) {
            rc = find_scales(w, folder, &w->entries[i].weight, &scales[i]);
            if (rc == 0)
                drop[(const struct entry *)(const void *)scales[i] - w->entries] = true;
        }
    for (size_t i = 0; rc == 0 && i < w->count; i++)
        if (ends_with(&w->entries[i].weight, SCALES) && !drop[i])
            rc = ct_fail(CT_ECONFIG, "%s: there are no blocks of MXFP4 to %s", folder,
                         w->entries[i].weight.name);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < w->count; i++)
        if (scales[i])
            join_pair(w, &w->entries[i].weight, scales[i]);
    for (size_t i = 0; i < w->count; i++)
        if (!drop[i])
            w->entries[kept++] = w->entries[i];
    if (kept == w->count)
        return 0;
    w->count = kept;
    if (w->count)
        qsort(w->entries, w->count, sizeof(*w->entries), by_name);
    for (size_t i = 1; i < w->count; i++)
        if (!by_name(&w->entries[i - 1], &w->entries[i]))
            return ct_fail(CT_ECONFIG, "%s: %s is there as a tensor and as blocks", folder,
                           w->entries[i].weight.name);
    return 0;
}

/* ---- models for several kinds of input ---- */

/* "language_model.NAME", or "model.language_model.REST", which is model.REST. */
const char *ct_weights_text_name(const char *name)
{
    static const char *const before[] = {"language_model.", "model.language_model."};

    for (size_t i = 0; i < CT_COUNT(before); i++)
        if (!strncmp(name, before[i], strlen(before[i])))
            return name + strlen(before[i]) - (i ? strlen("model.") : 0);
    return NULL;
}

/* If there are weights of a part for text, keep these alone, by their names in it, and a head
   beside it. Names stay in order. */
static void keep_text(struct ct_weights *w, const char *folder)
{
    size_t kept = 0, parts = 0;

    for (size_t i = 0; i < w->count; i++)
        parts += ct_weights_text_name(w->entries[i].weight.name) != NULL;
    for (size_t i = 0; parts && i < w->count; i++) {
        const char *name = w->entries[i].weight.name, *text = ct_weights_text_name(name);

        if (!text && strncmp(name, "lm_head.", strlen("lm_head.")) != 0)
            continue;
        w->entries[kept] = w->entries[i];
        w->entries[kept++].weight.name = text ? text : name;
    }
    if (parts && kept < w->count)
        ct_info("%s: only the part for text, language_model.*, is read, and not %zu other tensors",
                folder, w->count - kept);
    w->count = parts ? kept : w->count;
}

/* The weights, or, if rc says that they failed, nothing. */
static int hand_out(struct ct_weights *w, int rc, struct ct_weights **weights)
{
    if (rc < 0)
        ct_weights_close(w);
    *weights = rc < 0 ? NULL : w;
    return rc;
}

static int open_parts(const char *folder, bool whole, struct ct_weights **weights)
{
    struct ct_weights *w = calloc(1, sizeof(*w));
    int rc;

    *weights = NULL;
    if (!w)
        return ct_fail(CT_ENOMEM, "weights of %s", folder);
    rc = open_folder(w, folder);
    if (rc == 0 && !whole)
        rc = join_pairs(w, folder);
    if (rc == 0 && !whole)
        keep_text(w, folder);
    return hand_out(w, rc, weights);
}

int ct_weights_open(const char *folder, struct ct_weights **weights)
{
    return open_parts(folder, false, weights);
}

int ct_weights_open_whole(const char *folder, struct ct_weights **weights)
{
    return open_parts(folder, true, weights);
}

int ct_weights_open_file(const char *path, struct ct_weights **weights)
{
    struct ct_weights *w = calloc(1, sizeof(*w));
    const char *own;
    size_t index;

    *weights = NULL;
    if (!w)
        return ct_fail(CT_ENOMEM, "tensors of %s", path);
    own = ct_arena_strdup(&w->arena, path);
    return hand_out(w, add_path(w, own, own, &index), weights);
}

const char *ct_weights_metadata(const struct ct_weights *w, const char *key)
{
    for (size_t i = 0; i < w->note_count; i++)
        if (!strcmp(w->notes[i].key, key))
            return w->notes[i].value;
    return NULL;
}

void ct_weights_release(const struct ct_weights *w)
{
    for (size_t i = 0; i < w->file_count; i++)
        madvise((void *)(uintptr_t)w->files[i].base, w->files[i].size, MADV_DONTNEED);
}

void ct_weights_close(struct ct_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->file_count; i++)
        ct_file_unmap(w->files[i].base, w->files[i].size);
    free(w->entries);
    ct_arena_finish(&w->arena);
    free(w);
}

size_t ct_weights_count(const struct ct_weights *w)
{
    return w->count;
}

const struct ct_weight *ct_weights_at(const struct ct_weights *w, size_t index)
{
    return &w->entries[index].weight;
}

const struct ct_weight *ct_weights_find(const struct ct_weights *w, const char *name)
{
    const struct ct_weight key = {.name = name};

    return w->count ? bsearch(&key, w->entries, w->count, sizeof(*w->entries), by_name) : NULL;
}

bool ct_weights_quantised(const struct ct_weights *w)
{
    for (size_t i = 0; i < w->count; i++)
        if (w->entries[i].weight.scales)
            return true;
    return false;
}

/* ---- comparison with other copies ---- */

static uint64_t hash_parts(const unsigned char *data, size_t bytes, uint64_t seed)
{
    size_t part = bytes < HASHED ? bytes : HASHED;

    if (!part)
        return seed;
    seed = XXH3_64bits_withSeed(data, part, seed);
    return XXH3_64bits_withSeed(data + (bytes - part) / 2, part, seed);
}

void ct_weights_identify(const struct ct_weights *w, FILE *out)
{
    for (size_t i = 0; i < w->file_count; i++)
        fprintf(out, "reads %s, header: hash %016" PRIx64 "\n", w->files[i].path,
                (uint64_t)XXH3_64bits(w->files[i].base, w->files[i].data));
    for (size_t i = 0; i < w->count; i++) {
        const struct entry *e = &w->entries[i];
        uint64_t hash = hash_parts(e->weight.data, e->bytes, 0);

        if (e->weight.scales)
            hash = hash_parts(e->weight.scales, e->bytes / (BLOCK / 2), hash);
        fprintf(out, "reads %s, tensor %s: hash %016" PRIx64 "\n", w->files[e->file].path,
                e->weight.name, hash);
    }
}
