/*
 * Saving a run's weights as a Hugging Face folder. Rank 0 writes a tensor some rows at a time. It
 * receives each box of those rows from one rank that holds it.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/comm.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>

/* Rows are assembled in windows of this many bytes; a longer row gets its own. */
#define WINDOW ((size_t)16 << 20)

struct save {
    struct ct_run *run;
    struct ct_group *world;
    const struct ct_state **params; /* by index of the weights */
    struct ct_weight *weights;
    size_t count;
    char *window, *box;
    size_t room; /* bytes of each */
};

/* Some rows of a tensor, or their part in a rank's shard; offsets are in the whole. */
struct part {
    int ndim;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
};

static size_t bytes_of(const struct part *p, enum ct_dtype dtype)
{
    return (size_t)ct_shape_count(p->ndim, p->shape) * ct_dtype_size(dtype);
}

/* Copy a dense box to its position in a dense window. */
static void place_box(char *window, const struct part *w, const char *box, const struct part *b,
                      size_t item)
{
    int n = b->ndim;
    int64_t inner = n ? b->shape[n - 1] : 1, rows = ct_shape_count(n, b->shape) / inner;

    for (int64_t r = 0; r < rows; r++) {
        int64_t rest = r, at = n ? b->offset[n - 1] - w->offset[n - 1] : 0;
        int64_t stride = n ? w->shape[n - 1] : 1;

        for (int d = n - 2; d >= 0; d--) {
            at += (b->offset[d] - w->offset[d] + rest % b->shape[d]) * stride;
            rest /= b->shape[d];
            stride *= w->shape[d];
        }
        memcpy(window + (size_t)at * item, box + (size_t)(r * inner) * item, (size_t)inner * item);
    }
}

/* The part of the window that `rank` must send; false: nothing. */
static bool box_of(const struct save *s, const struct ct_state *param, int64_t rank,
                   const struct part *window, struct part *box)
{
    struct part shard = {.ndim = param->ndim};

    if (!ct_run_shard(s->run, param, rank, shard.shape, shard.offset) ||
        !ct_run_shard_first(s->run, param, rank))
        return false;
    *box = shard;
    if (param->ndim) {
        int64_t begin = shard.offset[0], end = begin + shard.shape[0];
        int64_t from = window->offset[0], to = from + window->shape[0];

        box->offset[0] = begin > from ? begin : from;
        box->shape[0] = (end < to ? end : to) - box->offset[0];
    }
    for (int d = 0; d < box->ndim; d++)
        if (box->shape[d] <= 0)
            return false;
    return true;
}

/* Read this rank's own box from the device. */
static int read_box(const struct save *s, const struct ct_state *param, const struct part *box)
{
    int64_t offset[CT_MAX_DIMS] = {0};

    ct_run_shard(s->run, param, s->run->rank, NULL, offset);
    for (int d = 0; d < box->ndim; d++)
        offset[d] = box->offset[d] - offset[d];
    return ct_run_read(s->run, param, offset, box->shape, s->box);
}

/* Move one rank's box to rank 0, which copies it into the window. */
static int move_box(const struct save *s, const struct ct_state *param, int64_t rank,
                    const struct part *window, const struct part *box)
{
    size_t bytes = bytes_of(box, param->dtype);
    int64_t me = s->run->rank;
    int rc = 0;

    if (me != 0 && me != rank)
        return 0;
    if (me == rank)
        rc = read_box(s, param, box);
    else
        rc = ct_group_receive(s->world, s->box, bytes, (int)rank, 0);
    if (rc == 0 && me != 0)
        return ct_group_send(s->world, s->box, bytes, 0, 0);
    if (rc == 0)
        place_box(s->window, window, s->box, box, ct_dtype_size(param->dtype));
    return rc;
}

static int gather_window(const struct save *s, const struct ct_state *param,
                         const struct part *window)
{
    struct part box;
    int rc = 0;

    for (int64_t rank = 0; rc == 0 && rank < s->run->world; rank++)
        if (box_of(s, param, rank, window, &box))
            rc = move_box(s, param, rank, window, &box);
    return rc;
}

/* The first rows of a tensor that fit into `bytes`, at least one. */
static struct part first_rows(const struct ct_state *param, size_t bytes)
{
    struct part w = {.ndim = param->ndim};
    int64_t rows;

    memcpy(w.shape, param->shape, sizeof(w.shape));
    if (!w.ndim || !w.shape[0])
        return w;
    w.shape[0] = 1;
    rows = (int64_t)(bytes / (bytes_of(&w, param->dtype) + !bytes_of(&w, param->dtype)));
    w.shape[0] = rows < 1 ? 1 : rows < param->shape[0] ? rows : param->shape[0];
    return w;
}

/* A failure to write is stored in the sink, so that the other ranks can finish sending. */
static int produce(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    const struct save *s = context;
    const struct ct_state *param = s->params[index];
    struct part window = first_rows(param, WINDOW);
    int64_t step = window.ndim ? window.shape[0] : 1, rows = window.ndim ? param->shape[0] : 1;
    int rc = 0;

    for (int64_t at = 0; rc == 0 && at < rows; at += step) {
        if (window.ndim) {
            window.offset[0] = at;
            window.shape[0] = rows - at < step ? rows - at : step;
        }
        rc = gather_window(s, param, &window);
        if (rc == 0 && s->run->rank == 0)
            ct_safetensors_put(sink, s->window, bytes_of(&window, param->dtype));
    }
    return rc;
}

static int make_list(struct save *s)
{
    struct ct_run *run = s->run;

    s->params = calloc(run->state_count + 1, sizeof(const struct ct_state *));
    s->weights = calloc(run->state_count + 1, sizeof(*s->weights));
    if (!s->params || !s->weights)
        return ct_fail(CT_ENOMEM, "a list of %zu tensors", run->state_count);
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *from = &run->states[i];
        struct ct_weight *w = &s->weights[s->count];
        struct part rows = first_rows(from, WINDOW);

        if (from->role != CT_ROLE_PARAM)
            continue;
        s->params[s->count++] = from;
        *w = (struct ct_weight){.name = from->name, .dtype = from->dtype, .ndim = from->ndim};
        memcpy(w->shape, from->shape, sizeof(w->shape));
        if (s->room < bytes_of(&rows, from->dtype))
            s->room = bytes_of(&rows, from->dtype);
    }
    s->box = malloc(s->room + 1);
    s->window = run->rank == 0 ? malloc(s->room + 1) : NULL;
    if (s->box && (s->window || run->rank))
        return 0;
    return ct_fail(CT_ENOMEM, "%zu bytes to put a tensor together", s->room);
}

static int save_config(const struct ct_run *run, const char *folder)
{
    struct ct_new_file file;
    char path[4200];
    int rc;

    snprintf(path, sizeof(path), "%s/config.json", folder);
    if (!run->model_ops->write_config)
        return ct_fail(CT_EINVAL, "the model writes no config.json");
    rc = ct_file_begin(&file, path);
    return rc < 0 ? rc : ct_file_end(&file, run->model_ops->write_config(run->model, file.out));
}

/* All ranks fail if one does, each with its own message if it has one. */
static int agree(const struct save *s, int rc)
{
    int32_t failed = rc < 0, any = 0;
    char message[1024];
    int sum;

    snprintf(message, sizeof(message), "%s", ct_error_message());
    sum = ct_group_all_reduce(s->world, &failed, &any, 1, CT_I32, CT_REDUCE_MAX);
    if (rc < 0)
        return ct_fail(rc, "%s", message);
    if (sum < 0)
        return sum;
    return any ? ct_fail(CT_EPEER, "another rank failed") : 0;
}

static int save(struct save *s, const char *folder)
{
    char path[4200];
    int rc = make_list(s);

    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    if (rc == 0 && s->run->rank == 0)
        rc = ct_file_make_folder(folder);
    rc = agree(s, rc);
    if (rc < 0)
        return rc;
    rc = ct_safetensors_write_from(s->run->rank == 0 ? path : NULL, s->weights, s->count, produce,
                                   s);
    if (rc == 0 && s->run->rank == 0)
        rc = save_config(s->run, folder);
    return agree(s, rc);
}

int ct_hf_save(struct ct_run *run, const char *folder)
{
    struct save s = {.run = run, .world = ct_run_world(run)};
    int rc = save(&s, folder);

    free(s.params);
    free(s.weights);
    free(s.window);
    free(s.box);
    return rc < 0 ? ct_context(rc, "saving the model in %s", folder) : 0;
}
