/*
 * Saving a run's weights as a Hugging Face folder. Rank 0 writes, and receives each box from one
 * rank that holds it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/space.h>
#include <ctitan/state.h>

#include "parts.h"
#include "safetensors_format.h"

struct save {
    struct ct_run *run;
    struct ct_group *world;
    const struct ct_stored_rule *rules;
    struct ct_state *params; /* to save, under the names of parameters */
    size_t param_count;
    struct ct_arena arena;
    struct ct_hf_writer writer;
    char *box; /* of the writer's room */
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

/* Decode a box of this rank's shard, in the dtype of the parameter in files. */
static int read_numbers(const struct save *s, const struct ct_state *param, const int64_t *offset,
                        const struct ct_stored_box *box)
{
    int64_t count = ct_shape_count(box->ndim, box->shape), zero = 0;
    float *numbers = malloc((size_t)count * sizeof(*numbers) + 1);
    struct ct_weight weight = {param->name, CT_F32, 1, {count}, numbers};
    const struct ct_state *codes = ct_run_state(s->run, param->name);
    int rc = numbers ? 0 : ct_fail(CT_ENOMEM, "%lld numbers of %s", (long long)count, param->name);

    if (rc == 0)
        rc = codes->coding->decode(s->run, codes, offset, box->shape, numbers);
    if (rc == 0)
        rc = ct_weights_read(&weight, &zero, &count, param->dtype, s->box);
    free(numbers);
    return rc;
}

/* Read this rank's own box from the device. */
static int read_box(const struct save *s, const struct ct_state *param,
                    const struct ct_stored_box *box)
{
    int64_t offset[CT_MAX_DIMS] = {0};

    ct_run_shard(s->run, param, s->run->rank, NULL, offset);
    for (int d = 0; d < box->ndim; d++)
        offset[d] = box->offset[d] - offset[d];
    return param->coding ? read_numbers(s, param, offset, box)
                         : ct_run_read(s->run, param, offset, box->shape, s->box);
}

/* Move one rank's box to rank 0, which copies it into the window. */
static int move_box(const struct save *s, const struct ct_state *param, int64_t rank,
                    const struct ct_stored_box *window, const struct ct_stored_box *box, void *to)
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
    if (rc == 0 && to)
        place_box(to, window, s->box, box, ct_dtype_size(param->dtype));
    return rc;
}

/* Gather a box of a parameter on rank 0. */
static int gather_box(void *context, const struct ct_state *param,
                      const struct ct_stored_box *window, void *to)
{
    struct save *s = context;
    struct ct_stored_box box;
    int rc = 0;

    for (int64_t rank = 0; rc == 0 && rank < s->run->world; rank++)
        if (box_of(s, param, rank, window, &box))
            rc = move_box(s, param, rank, window, &box, to);
    return rc;
}

/* A part for text that is written without the others is of a type, and so in a layout, of its
   own. */
static int find_rules(struct save *s)
{
    const struct ct_hf_config *config = s->run->model_ops->description;
    const char *text;
    int rc;

    s->rules = s->run->model_ops->stored;
    if (!config || !config->alone[0] || ct_hf_is_part(s->run))
        return 0;
    rc = ct_hf_config_of(&s->arena, s->run, &text);
    return rc < 0 ? rc : ct_hf_rules(text, &s->arena, &s->rules);
}

/* Parameters, or the states with prefix in the place of those that have one. */
static void choose(struct save *s, const char *prefix)
{
    const struct ct_run *run = s->run;

    s->params = ct_arena_array(&s->arena, struct ct_state, run->state_count + 1);
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *param = &run->states[i], *state = NULL;
        struct ct_state *to = &s->params[s->param_count];

        if (param->role != CT_ROLE_PARAM || ct_stored_absent(ct_stored_rule(s->rules, param->name)))
            continue;
        if (prefix)
            state = ct_run_state(run, ct_arena_printf(&s->arena, "%s%s", prefix, param->name));
        *to = state ? *state : *param;
        to->name += state ? strlen(prefix) : 0;
        if (to->coding) /* decoded when it is read */
            to->dtype = ct_config.training.dtype;
        s->param_count++;
    }
}

static int make_list(struct save *s)
{
    int rc = ct_hf_writer_init(&s->writer, s->rules, s->params, s->param_count, s->run->rank == 0);

    if (rc < 0)
        return rc;
    s->box = malloc(s->writer.room + 1);
    return s->box ? 0 : ct_fail(CT_ENOMEM, "%zu bytes of a tensor", s->writer.room);
}

static int config_of(struct save *s, const char **config)
{
    return ct_hf_is_part(s->run) ? hf_whole_config(&s->arena, s->run, config)
                                 : ct_hf_config_of(&s->arena, s->run, config);
}

/* Everything but the weights. */
static int complete(struct save *s, const char *folder)
{
    struct ct_small_files files;
    const char *config;
    int rc = config_of(s, &config);

    if (rc == 0)
        rc = ct_hf_files_of(&s->arena, s->run, &files);
    if (rc == 0)
        rc = ct_hf_complete(folder, s->writer.weights, s->writer.count, config, &files);
    if (rc == 0)
        ct_hf_note_target(s->run, folder);
    return rc;
}

static int save(struct save *s, const char *folder)
{
    int rc = make_list(s);

    if (rc == 0 && s->run->rank == 0 && ct_hf_is_part(s->run))
        rc = hf_add_parts(&s->writer);
    if (rc == 0 && s->run->rank == 0)
        rc = ct_hf_take_target(s->run, folder);
    rc = ct_group_agree(s->world, rc);
    if (rc < 0)
        return rc;
    rc = ct_hf_write(&s->writer, s->run->rank == 0 ? folder : NULL,
                     (size_t)(ct_config.model.max_shard_size * 1e9),
                     &(struct ct_hf_source){.read = gather_box, .context = s});
    if (rc == 0 && s->run->rank == 0)
        rc = complete(s, folder);
    return ct_group_agree(s->world, rc);
}

int ct_hf_save_states(struct ct_run *run, const char *prefix, const char *folder)
{
    struct save s = {.run = run, .world = ct_run_world(run)};
    int rc = ct_group_agree(s.world, find_rules(&s));

    if (rc == 0) {
        choose(&s, prefix);
        rc = save(&s, folder);
    }
    ct_hf_writer_finish(&s.writer);
    ct_arena_finish(&s.arena);
    free(s.box);
    return rc < 0 ? ct_context(rc, "saving the model in %s", folder) : 0;
}

int ct_hf_save(struct ct_run *run, const char *folder)
{
    return ct_hf_save_states(run, NULL, folder);
}

/* ---- before the first step ---- */

int ct_hf_check_room(struct ct_run *run, const char *what, const char *folder, double bytes)
{
    double others, room;
    char beside[80] = "";
    int rc = ct_file_make_folder(folder);

    if (rc == 0)
        rc = ct_file_room(folder, &room);
    if (rc < 0)
        return rc;
    others = ct_run_foreseen_last(run, folder);
    ct_run_foresee(run, &(struct ct_written){what, folder, bytes, 1, 1, true});
    if (bytes + others <= room)
        return 0;
    if (others > 0)
        snprintf(beside, sizeof(beside), " beside the %.3g GB of other folders", 1e-9 * others);
    return ct_fail(CT_ECONFIG, "the %s need %.3g GB%s, and the disk has room for %.3g GB", what,
                   1e-9 * bytes, beside, 1e-9 * room);
}

/* All files at once: none gets its name before the last one is written. */
static int check_room(const struct save *s, const char *folder)
{
    double bytes = 0;

    for (size_t i = 0; i < s->writer.count; i++)
        bytes += (double)ct_safetensors_bytes(&s->writer.weights[i]);
    return ct_hf_check_room(s->run, "weights", folder, bytes);
}

static int check_files(struct save *s, const char *folder)
{
    struct ct_small_files files;
    const char *config;
    int rc = config_of(s, &config);

    if (rc == 0 && ct_hf_is_part(s->run))
        rc = hf_add_parts(&s->writer);
    if (rc == 0)
        rc = ct_hf_files_of(&s->arena, s->run, &files);
    return rc < 0 ? ct_context(CT_ECONFIG, "the model %s", ct_config.model.name)
                  : check_room(s, folder);
}

int ct_hf_check_states(struct ct_run *run, const char *prefix, const char *folder)
{
    struct save s = {.run = run, .world = ct_run_world(run)};
    int rc = ct_group_agree(s.world, find_rules(&s));

    if (rc == 0)
        choose(&s, prefix);
    if (rc == 0)
        rc = ct_hf_writer_init(&s.writer, s.rules, s.params, s.param_count, false);
    if (rc == 0 && run->rank == 0)
        rc = check_files(&s, folder);
    rc = ct_group_agree(s.world, rc);
    ct_hf_writer_finish(&s.writer);
    ct_arena_finish(&s.arena);
    return rc;
}

int ct_hf_check_save(struct ct_run *run, const char *folder)
{
    return ct_hf_check_states(run, NULL, folder);
}

const struct ct_weights_ops ct_hf_weights = {
    .size = sizeof(ct_hf_weights),
    .load = ct_hf_load,
    .save = ct_hf_save,
    .identify = ct_hf_identify,
    .load_set = ct_hf_load_set,
    .small_files = ct_hf_small_files,
    .take_small_files = ct_hf_note_files,
    .check_save = ct_hf_check_save,
};
