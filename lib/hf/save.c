/*
 * Saving a run's weights as a Hugging Face folder. Rank 0 writes a tensor some rows at a time. It
 * receives each box of those rows from one rank that holds it, in the parameter's layout, and puts
 * it to its place in the tensor's.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/state.h>

/* Rows are assembled in windows of this many bytes; a longer row gets its own. */
#define WINDOW ((size_t)16 << 20)

/* A tensor to write: the parameter in it, or the first one, and which of the parameter's tensors
   it is. */
struct output {
    const struct ct_state *param;
    int64_t index;
};

struct save {
    struct ct_run *run;
    struct ct_group *world;
    struct ct_state *params; /* to save, under the names of parameters */
    size_t param_count;
    struct ct_arena arena;
    struct output *outputs; /* by index of the weights */
    struct ct_weight *weights;
    size_t count;
    char *rows, *window, *box;
    size_t room; /* bytes of each */
};

static size_t bytes_of(const struct ct_stored_box *p, enum ct_dtype dtype)
{
    return (size_t)ct_shape_count(p->ndim, p->shape) * ct_dtype_size(dtype);
}

/* Copy a dense box to its position in a dense window. */
static void place_box(char *window, const struct ct_stored_box *w, const char *box,
                      const struct ct_stored_box *b, size_t item)
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
                   const struct ct_stored_box *window, struct ct_stored_box *box)
{
    box->ndim = param->ndim;
    if (!ct_run_shard(s->run, param, rank, box->shape, box->offset) ||
        !ct_run_shard_first(s->run, param, rank))
        return false;
    for (int d = 0; d < box->ndim; d++) {
        int64_t begin = box->offset[d], end = begin + box->shape[d];
        int64_t from = window->offset[d], to = from + window->shape[d];

        box->offset[d] = begin > from ? begin : from;
        box->shape[d] = (end < to ? end : to) - box->offset[d];
        if (box->shape[d] <= 0)
            return false;
    }
    return true;
}

/* Read this rank's own box from the device. */
static int read_box(const struct save *s, const struct ct_state *param,
                    const struct ct_stored_box *box)
{
    int64_t offset[CT_MAX_DIMS] = {0};

    ct_run_shard(s->run, param, s->run->rank, NULL, offset);
    for (int d = 0; d < box->ndim; d++)
        offset[d] = box->offset[d] - offset[d];
    return ct_run_read(s->run, param, offset, box->shape, s->box);
}

/* Move one rank's box to rank 0, which copies it into the window. */
static int move_box(const struct save *s, const struct ct_state *param, int64_t rank,
                    const struct ct_stored_box *window, const struct ct_stored_box *box)
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
                         const struct ct_stored_box *window)
{
    struct ct_stored_box box;
    int rc = 0;

    for (int64_t rank = 0; rc == 0 && rank < s->run->world; rank++)
        if (box_of(s, param, rank, window, &box))
            rc = move_box(s, param, rank, window, &box);
    return rc;
}

/* The parameter that is part i of the tensor of another one. */
static const struct ct_state *part_of(const struct save *s, const struct ct_state *first, int i)
{
    const struct ct_stored_rule *own = ct_stored_rule(s->run->model_ops->stored, first->name);
    int base = (int)(strlen(first->name) - strlen(own ? own->suffix : ""));
    char name[512] = "";

    if (i == 0)
        return first;
    for (const struct ct_stored_rule *r = s->run->model_ops->stored; r->suffix; r++)
        if (r->stored && !strcmp(r->stored, own->stored) && r->part == i) {
            snprintf(name, sizeof(name), "%.*s%s", base, first->name, r->suffix);
            break;
        }
    for (size_t k = 0; k < s->param_count; k++)
        if (!strcmp(s->params[k].name, name))
            return &s->params[k];
    return NULL;
}

/* Gather one parameter's share of some rows of a tensor, and put it to its place in s->rows. */
static int gather_part(const struct save *s, const struct output *o, const struct ct_state *param,
                       const struct ct_stored_box *rows)
{
    const struct ct_stored_rule *rule = ct_stored_rule(s->run->model_ops->stored, param->name);
    size_t item = ct_dtype_size(param->dtype);
    struct ct_stored_places places;
    struct ct_stored_box window;
    int rc;

    if (!ct_stored_to_param(rule, param, o->index, rows, &window))
        return 0;
    rc = gather_window(s, param, &window);
    if (rc < 0 || s->run->rank)
        return rc;
    places = ct_stored_places(rule, param, &window, rows);
    ct_stored_scatter(&places, 0, ct_shape_count(window.ndim, window.shape), item, s->window,
                      s->rows);
    return 0;
}

/* The first rows of a tensor that fit into `bytes`, at least one. */
static struct ct_stored_box first_rows(const struct ct_weight *weight, size_t bytes)
{
    struct ct_stored_box w = {.ndim = weight->ndim};
    int64_t rows;

    memcpy(w.shape, weight->shape, sizeof(w.shape));
    if (!w.ndim || !w.shape[0])
        return w;
    w.shape[0] = 1;
    rows = (int64_t)(bytes / (bytes_of(&w, weight->dtype) + !bytes_of(&w, weight->dtype)));
    w.shape[0] = rows < 1 ? 1 : rows < weight->shape[0] ? rows : weight->shape[0];
    return w;
}

/* A failure to write is stored in the sink, so that the other ranks can finish sending. */
static int produce(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    const struct save *s = context;
    const struct output *o = &s->outputs[index];
    const struct ct_weight *weight = &s->weights[index];
    const struct ct_stored_rule *rule = ct_stored_rule(s->run->model_ops->stored, o->param->name);
    struct ct_stored_box window = first_rows(weight, WINDOW);
    int64_t step = window.ndim ? window.shape[0] : 1, rows = window.ndim ? weight->shape[0] : 1;
    int rc = 0;

    for (int64_t at = 0; rc == 0 && at < rows; at += step) {
        if (window.ndim) {
            window.offset[0] = at;
            window.shape[0] = rows - at < step ? rows - at : step;
        }
        rc = gather_part(s, o, o->param, &window);
        for (int i = 1; rc == 0 && rule && i < rule->parts; i++)
            rc = gather_part(s, o, part_of(s, o->param, i), &window);
        if (rc == 0 && s->run->rank == 0)
            ct_safetensors_put(sink, s->rows, bytes_of(&window, weight->dtype));
    }
    return rc;
}

/* All tensors of a parameter; none if it is in that of another one. */
static int add_outputs(struct save *s, const struct ct_state *param)
{
    const struct ct_stored_rule *rule = ct_stored_rule(s->run->model_ops->stored, param->name);

    for (int i = 1; rule && i < rule->parts; i++)
        if (rule->part == 0 && !part_of(s, param, i))
            return ct_fail(CT_EINVAL, "no parameter gives part %d of the tensor for %s", i,
                           param->name);
    if (rule && rule->part)
        return 0;
    for (int64_t i = 0; i < ct_stored_count(rule, param); i++) {
        struct ct_weight *w = &s->weights[s->count];
        struct ct_stored_box rows;

        *w = ct_stored_tensor(&s->arena, rule, param, i);
        rows = first_rows(w, WINDOW);
        if (s->room < bytes_of(&rows, w->dtype))
            s->room = bytes_of(&rows, w->dtype);
        s->outputs[s->count++] = (struct output){param, i};
    }
    return 0;
}

/* Parameters, or the states whose names begin with prefix. */
static void choose(struct save *s, const char *prefix)
{
    const struct ct_run *run = s->run;
    size_t skipped = prefix ? strlen(prefix) : 0;

    s->params = ct_arena_array(&s->arena, struct ct_state, run->state_count + 1);
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *state = &run->states[i];

        if (prefix ? strncmp(state->name, prefix, skipped) != 0 : state->role != CT_ROLE_PARAM)
            continue;
        if (ct_stored_absent(ct_stored_rule(run->model_ops->stored, state->name + skipped)))
            continue;
        s->params[s->param_count] = *state;
        s->params[s->param_count++].name += skipped;
    }
}

static int make_list(struct save *s)
{
    const struct ct_run *run = s->run;
    size_t count = 1;
    int rc = 0;

    for (size_t i = 0; i < s->param_count; i++)
        count += (size_t)ct_stored_count(ct_stored_rule(run->model_ops->stored, s->params[i].name),
                                         &s->params[i]);
    s->outputs = ct_arena_array(&s->arena, struct output, count);
    s->weights = ct_arena_array(&s->arena, struct ct_weight, count);
    for (size_t i = 0; rc == 0 && i < s->param_count; i++)
        rc = add_outputs(s, &s->params[i]);
    if (rc < 0)
        return rc;
    s->box = malloc(s->room + 1);
    s->window = run->rank == 0 ? malloc(s->room + 1) : NULL;
    s->rows = run->rank == 0 ? malloc(s->room + 1) : NULL;
    if (s->box && ((s->window && s->rows) || run->rank))
        return 0;
    return ct_fail(CT_ENOMEM, "%zu bytes to put a tensor together", s->room);
}

/* Everything but the weights. */
static int complete(struct save *s, const char *folder)
{
    struct ct_hf_files files;
    const char *config;
    int rc = ct_hf_config_of(&s->arena, s->run, &config);

    if (rc == 0)
        rc = ct_hf_files_of(&s->arena, s->run, &files);
    if (rc == 0)
        rc = ct_hf_complete(folder, s->weights, s->count, config, &files);
    return rc < 0 ? rc : ct_hf_note_target(s->run, folder);
}

static int save(struct save *s, const char *folder)
{
    int rc = make_list(s);

    if (rc == 0 && s->run->rank == 0)
        rc = ct_hf_take_target(s->run, folder);
    rc = ct_group_agree(s->world, rc);
    if (rc < 0)
        return rc;
    rc = ct_safetensors_write_folder(s->run->rank == 0 ? folder : NULL, s->weights, s->count,
                                     (size_t)(ct_config.model.max_shard_size * 1e9), produce, s);
    if (rc == 0 && s->run->rank == 0)
        rc = complete(s, folder);
    return ct_group_agree(s->world, rc);
}

int ct_hf_save_states(struct ct_run *run, const char *prefix, const char *folder)
{
    struct save s = {.run = run, .world = ct_run_world(run)};
    int rc;

    choose(&s, prefix);
    rc = save(&s, folder);
    ct_arena_finish(&s.arena);
    free(s.rows);
    free(s.window);
    free(s.box);
    return rc < 0 ? ct_context(rc, "saving the model in %s", folder) : 0;
}

int ct_hf_save(struct ct_run *run, const char *folder)
{
    return ct_hf_save_states(run, NULL, folder);
}

const struct ct_weights_ops ct_hf_weights = {
    .size = sizeof(ct_hf_weights),
    .load = ct_hf_load,
    .save = ct_hf_save,
    .identify = ct_hf_identify,
};
