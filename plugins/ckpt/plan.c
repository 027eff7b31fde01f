/*
 * Which rank writes what. Every rank can tell for every other, without communication: ranks that
 * hold equal shards of a state divide its rows, or take turns in writing small states whole.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/recipe.h>
#include <ctitan/state.h>

#include "ckpt.h"

#define SMALL ((size_t)64 << 10) /* bytes of a shard that one rank writes alone */

static enum ct_dtype dtype_of(const struct ct_run *run, const struct ct_state *s,
                              const struct ckpt_what *what)
{
    return ct_stored_dtype(ct_stored_rule(run->model_ops->stored, s->name), s->dtype,
                           s->role == CT_ROLE_PARAM ? what->dtype : -1);
}

static bool is_written(const struct ct_state *s, const struct ckpt_what *what)
{
    return (!what->model_only || s->role == CT_ROLE_PARAM) && !ct_state_reloads(s);
}

double ckpt_state_bytes(const struct ct_run *run, const struct ct_state *s,
                        const struct ckpt_what *what)
{
    if (!is_written(s, what))
        return 0;
    return (double)ct_dtype_bytes(dtype_of(run, s, what), s->ndim, s->shape);
}

struct ckpt_what ckpt_what_of(bool model_only)
{
    static const int dtypes[] = {
        [CKPT_SAME] = -1, [CKPT_F32] = CT_F32, [CKPT_BF16] = CT_BF16, [CKPT_F16] = CT_F16};

    return (struct ckpt_what){.model_only = model_only,
                              .dtype = model_only ? dtypes[ckpt_config.export_dtype] : -1};
}

/* The rows of a state that rank writes, as a box; false: none. */
static bool box_of(const struct ct_run *run, size_t index, int64_t rank,
                   const struct ckpt_what *what, struct ckpt_box *box)
{
    const struct ct_state *s = &run->states[index];
    int64_t number, copies, rows, begin, end;
    size_t row;

    *box = (struct ckpt_box){
        .name = s->name, .dtype = dtype_of(run, s, what), .ndim = s->ndim, .state = s};
    if (!is_written(s, what) || !ct_run_shard(run, s, rank, box->shape, box->offset))
        return false;
    copies = ct_run_shard_copies(run, s, rank, &number);
    rows = s->ndim ? box->shape[0] : 1;
    if (!rows || !ct_shape_count(s->ndim, box->shape))
        return false;
    row = ct_dtype_bytes(s->dtype, s->ndim, box->shape) / (size_t)rows;
    if (!s->ndim || row * (size_t)rows <= SMALL) {
        begin = 0;
        end = number == (int64_t)index % copies ? rows : 0;
    } else {
        begin = rows * number / copies;
        end = rows * (number + 1) / copies;
    }
    if (begin == end)
        return false;
    if (s->ndim) {
        box->shape[0] = end - begin;
        box->offset[0] += begin;
    }
    box->from = (size_t)begin * row;
    box->bytes = ct_dtype_bytes(box->dtype, box->ndim, box->shape);
    return true;
}

/* Elements of a box in one byte of the file. */
static int64_t in_byte(const struct ckpt_box *b, int dim)
{
    int bits = ct_dtype_bits(b->dtype);

    return bits < 8 && dim == b->ndim - 1 ? 8 / bits : 1;
}

/* {"NAME": {"saved_offsets": [..]}, ..}; to be freed. */
static char *sharding_info(const struct ckpt_file *file)
{
    json_t *all = json_object();
    char *text;

    for (size_t i = 0; i < file->box_count; i++) {
        const struct ckpt_box *b = &file->boxes[i];
        json_t *offsets = json_array();

        for (int d = 0; d < b->ndim; d++)
            json_array_append_new(offsets, json_integer(b->offset[d] / in_byte(b, d)));
        json_object_set_new(all, b->name, json_pack("{s:o}", "saved_offsets", offsets));
    }
    text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

int ckpt_make_header(struct ckpt_file *file, char **header)
{
    struct ct_weight *weights = calloc(file->box_count + 1, sizeof(*weights));
    char *info = sharding_info(file);
    const char *metadata[] = {"DCP_SHARDING_INFO", info, "DCP_VERSION", "1.0", NULL};

    int rc = weights && info ? 0 : CT_ENOMEM;

    *header = NULL;
    for (size_t i = 0; weights && i < file->box_count; i++) {
        const struct ckpt_box *b = &file->boxes[i];
        struct ct_tensor dense = ct_tensor_dense(NULL, b->dtype, b->ndim, b->shape);
        struct ct_tensor t = ct_tensor_packed(&dense); /* safetensors has no smaller elements */

        weights[i] = (struct ct_weight){.name = b->name, .dtype = t.dtype, .ndim = t.ndim};
        memcpy(weights[i].shape, t.shape, sizeof(t.shape));
    }
    rc = rc < 0 ? ct_fail(rc, "%zu tensors", file->box_count)
                : ct_safetensors_header(weights, file->box_count, metadata, PAGE, header,
                                        &file->header);
    free(weights);
    free(info);
    if (rc < 0)
        return ct_context(rc, "the header of %s", file->name);
    file->header_hash = ckpt_hash(*header, file->header);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    size_t x = ((const struct ckpt_box *)a)->at, y = ((const struct ckpt_box *)b)->at;

    return (x > y) - (x < y);
}

/* Largest elements first, as in the header: every box is aligned to its elements. Then whole blocks
   of the disk, which can be written from where they lie. */
void ckpt_place(struct ct_arena *arena, struct ckpt_file *file)
{
    for (size_t order = 0; order < 8; order++)
        for (size_t i = 0; i < file->box_count; i++) {
            struct ckpt_box *b = &file->boxes[i];

            if (ct_dtype_bytes(b->dtype, 0, NULL) == (size_t)8 >> order / 2 &&
                (b->bytes % BLOCK != 0) == order % 2) {
                b->at = file->bytes;
                file->bytes += b->bytes;
            }
        }
    if (file->box_count)
        qsort(file->boxes, file->box_count, sizeof(*file->boxes), by_place);
    file->hash = ct_arena_array(arena, uint64_t, ckpt_chunks(file, CHUNK) + 1);
}

int ckpt_plan(struct ct_arena *arena, const struct ct_run *run, int64_t rank,
              const struct ckpt_what *what, struct ckpt_file *file, char **header)
{
    char *text;
    int rc;

    *file = (struct ckpt_file){
        .name = ct_arena_printf(arena, "rank-%05lld.safetensors", (long long)rank),
        .boxes = ct_arena_array(arena, struct ckpt_box, run->state_count + 1)};
    for (size_t i = 0; i < run->state_count; i++)
        file->box_count += box_of(run, i, rank, what, &file->boxes[file->box_count]);
    ckpt_place(arena, file);
    rc = ckpt_make_header(file, &text);
    if (rc == 0 && header)
        *header = text;
    else
        free(text);
    return rc;
}

static void describe_tensors(const struct ct_run *run, const struct ckpt_what *what, struct ckpt *c)
{
    c->tensors = ct_arena_array(c->arena, struct ct_checkpoint_tensor, run->state_count + 1);
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *s = &run->states[i];
        struct ct_checkpoint_tensor *t = &c->tensors[c->tensor_count];

        if (!is_written(s, what))
            continue;
        *t = (struct ct_checkpoint_tensor){s->name, s->role, dtype_of(run, s, what),
                                           s->ndim, {0},     false};
        memcpy(t->shape, s->shape, sizeof(t->shape));
        t->absent = ct_stored_absent(ct_stored_rule(run->model_ops->stored, s->name));
        t->follows = ct_state_followed(s->name) != NULL;
        c->tensor_count++;
    }
}

static const char *mesh_text(struct ct_arena *arena, const struct ct_mesh *mesh)
{
    const char *text = "";

    for (int a = 0; a < mesh->count; a++)
        text = ct_arena_printf(arena, "%s%s%s=%lld", text, a ? " " : "", mesh->axis[a].name,
                               (long long)mesh->axis[a].size);
    return *text ? text : "one rank";
}

/* The text that print writes, in arena. */
static int printed(struct ct_arena *arena, int (*print)(struct ct_run *run, FILE *out),
                   struct ct_run *run, const char **text)
{
    size_t size;
    char *memory = NULL;
    FILE *out = open_memstream(&memory, &size);
    int rc = out ? print(run, out) : ct_fail(CT_ENOMEM, "a text");

    if (out && fclose(out) && rc == 0)
        rc = ct_fail(CT_ENOMEM, "a text");
    if (rc == 0)
        *text = ct_arena_strdup(arena, memory);
    free(memory);
    return rc;
}

static int print_recipe(struct ct_run *run, FILE *out)
{
    ct_recipe_print_resolved(run->recipe, out);
    return 0;
}

int ckpt_recipe_text(struct ct_arena *arena, struct ct_run *run, const char **text)
{
    return printed(arena, print_recipe, run, text);
}

/* Add data to the identity of several; a single one has its own. */
static void add_data(struct ckpt_data *sum, const struct ct_run *run, const struct ct_data *data)
{
    struct ckpt_data one = {0};

    if (!data)
        return;
    one.hash = run->data_ops->identity(data, &one.documents, &one.tokens);
    sum->hash = sum->hash * UINT64_C(0x9e3779b97f4a7c15) + one.hash;
    sum->documents += one.documents;
    sum->tokens += one.tokens;
}

const struct ckpt_data *ckpt_identify(struct ct_arena *arena, const struct ct_run *run, int which)
{
    bool trained = which == CKPT_TRAINING;
    struct ckpt_data *identity;

    if (!run->data_ops->identity ||
        (trained ? !run->data : !run->validation_data && !run->set_count))
        return NULL;
    identity = ct_arena_alloc(arena, sizeof(*identity));
    add_data(identity, run, trained ? run->data : run->validation_data);
    for (size_t i = 0; !trained && i < run->set_count; i++)
        add_data(identity, run, run->sets[i].data);
    return identity;
}

int ckpt_describe(struct ct_arena *arena, struct ct_run *run, const struct ckpt_what *what,
                  struct ckpt *c)
{
    const struct ct_weights_ops *weights = run->model_ops->weights;
    int rc;

    *c = (struct ckpt){.arena = arena,
                       .progress = run->progress,
                       .world = run->world,
                       .batch = ckpt_batch(run),
                       .time = (int64_t)time(NULL),
                       .model_only = what->model_only,
                       .mesh = mesh_text(arena, &run->mesh),
                       .chunk = CHUNK};
    describe_tensors(run, what, c);
    for (int i = 0; i < CKPT_DATA; i++)
        c->data[i] = ckpt_identify(arena, run, i);
    c->kept = ct_arena_array(arena, struct ckpt_kept, run->kept_count + 1);
    for (; c->kept_count < run->kept_count; c->kept_count++) {
        const struct ct_kept *k = &run->kept[c->kept_count];

        c->kept[c->kept_count] =
            (struct ckpt_kept){k->name, ct_arena_copy(arena, k->data, k->bytes), k->bytes};
    }
    rc = ckpt_recipe_text(arena, run, &c->recipe);
    if (rc == 0 && weights && weights->small_files)
        rc = weights->small_files(arena, run, &c->config, &c->beside);
    return rc;
}
