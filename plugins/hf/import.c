/*
 * A Hugging Face folder as a checkpoint of any plugin. Boxes are written from the mapped files:
 * where each index of a parameter's first dimension is a tensor of its own, each is a box.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/checkpoint.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/verb.h>

#include "hf.h"

#define MOST_BOXES 65536 /* of a parameter */

struct import {
    struct ct_arena *arena;
    struct ct_checkpoint c;
    const struct ct_stored_rule *rules;
    struct ct_checkpoint_box *boxes;
    size_t tensor_room, box_count, box_room;
    int64_t *rows; /* by tensor: of the first dimension, in its boxes */
    size_t row_room;
};

/* Its index; a new one has no shape yet. */
static size_t tensor_called(struct import *m, const char *name)
{
    struct ct_checkpoint *c = &m->c;

    for (size_t i = c->count; i-- > 0;)
        if (!strcmp(c->tensors[i].name, name))
            return i;
    c->tensors =
        ct_arena_grow(m->arena, c->tensors, &m->tensor_room, c->count + 1, sizeof(*c->tensors));
    m->rows = ct_arena_grow(m->arena, m->rows, &m->row_room, c->count + 1, sizeof(*m->rows));
    m->rows[c->count] = 0;
    c->tensors[c->count] = (struct ct_checkpoint_tensor){.name = name, .role = CT_ROLE_PARAM};
    return c->count++;
}

/* Elements of a tensor of files that lie otherwise than in the parameter. */
struct elsewhere {
    struct ct_stored_places places;
    const struct ct_weight *weight;
};

static void read_elsewhere(const void *context, int64_t at, int64_t count, void *to)
{
    const struct elsewhere *e = context;

    ct_stored_read(&e->places, at, count, e->weight, to);
}

static struct ct_checkpoint_box make_box(struct ct_arena *arena, const struct ct_weight *w,
                                         const struct ct_stored_held *held)
{
    struct elsewhere e = {held->places, w};
    struct ct_checkpoint_box b = {0};

    memcpy(b.shape, held->box.shape, sizeof(b.shape));
    memcpy(b.offset, held->box.offset, sizeof(b.offset));
    if (held->dense) {
        b.data = (const char *)w->data + (size_t)held->places.first * ct_dtype_size(w->dtype);
    } else {
        b.read = read_elsewhere;
        b.context = ct_arena_copy(arena, &e, sizeof(e));
    }
    return b;
}

/* Let the tensor have the box: its shape is that of all boxes together. */
static int widen_tensor(struct ct_checkpoint_tensor *t, const struct ct_weight *w,
                        const struct ct_stored_box *b)
{
    int64_t rows = b->ndim ? b->offset[0] + b->shape[0] : 1;

    if (t->ndim &&
        (t->ndim != b->ndim || t->dtype != w->dtype ||
         memcmp(t->shape + 1, b->shape + 1, sizeof(*b->shape) * (size_t)(b->ndim - 1)) != 0))
        return ct_fail(CT_ECONFIG, "%s has another shape than others of its kind", w->name);
    rows = rows > t->shape[0] ? rows : t->shape[0];
    memcpy(t->shape, b->shape, sizeof(t->shape));
    if (b->ndim)
        t->shape[0] = rows;
    t->ndim = b->ndim;
    t->dtype = w->dtype;
    return 0;
}

static int add_box(void *context, const struct ct_weight *w, const struct ct_stored_held *held)
{
    struct import *m = context;
    size_t tensor;
    int rc;

    if (held->box.ndim && held->box.offset[0] >= MOST_BOXES)
        return ct_fail(CT_ECONFIG, "%s is not what its name says", w->name);
    tensor = tensor_called(m, held->name);
    rc = widen_tensor(&m->c.tensors[tensor], w, &held->box);
    if (rc < 0)
        return rc;
    m->rows[tensor] += held->box.shape[0];
    m->boxes = ct_arena_grow(m->arena, m->boxes, &m->box_room, m->box_count + 1, sizeof(*m->boxes));
    m->boxes[m->box_count] = make_box(m->arena, w, held);
    m->boxes[m->box_count++].tensor = tensor;
    return 0;
}

static int take_weights(struct import *m, const struct ct_weights *weights)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ct_weights_count(weights); i++) {
        const struct ct_weight *w = ct_weights_at(weights, i);

        if (ct_shape_count(w->ndim, w->shape))
            rc = ct_stored_each_held(m->arena, m->rules, w, add_box, m);
    }
    for (size_t i = 0; rc == 0 && i < m->c.count; i++)
        if (m->rows[i] != m->c.tensors[i].shape[0])
            rc = ct_fail(CT_ECONFIG, "%s: the folder has %lld of its %lld rows",
                         m->c.tensors[i].name, (long long)m->rows[i],
                         (long long)m->c.tensors[i].shape[0]);
    return rc;
}

static int import(struct import *m, const struct ct_weights *weights, const char *folder,
                  const char *ignore)
{
    int rc;

    ct_config.model_ignore = ignore;
    rc = ct_hf_config_as_numbers(m->arena, folder, weights, &m->c.config);

    if (rc == 0)
        rc = ct_hf_rules(m->c.config, m->arena, &m->rules);
    if (rc == 0 && ct_weights_quantised(weights) && !m->rules)
        rc = ct_fail(CT_ECONFIG, "tensors in MXFP4 need the config.json of their model, which says "
                                 "how they lie");
    if (rc == 0)
        rc = ct_hf_read_files(m->arena, folder, &m->c.files);
    if (rc == 0)
        rc = take_weights(m, weights);
    return rc < 0 || !m->c.config ? rc : ct_hf_check_whole(folder, ignore, weights);
}

struct request {
    struct ct_arena arena;
    const char *folder, *checkpoints, *ignore;
    bool force;
};

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct request, folder, "HF_FOLDER", "The Hugging Face folder to read"),
    CT_ARG_WORD(struct request, checkpoints, "CHECKPOINTS", "Folder to write the checkpoint to"),
    CT_ARG_TEXT(struct request, ignore, "ignore", 0, "KEYS",
                "Keys of config.json to ignore, as [model] ignore"),
    CT_ARG_FLAG(struct request, force, "force", 0, "Replace a checkpoint that is there"),
    {0}};

static int run_import(int argc, char **argv)
{
    struct request r = {0};
    struct import m = {.arena = &r.arena};
    const struct ct_checkpoint_ops *format;
    struct ct_weights *weights = NULL;
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc == 0)
        rc = ct_checkpoints_find("import needs", &format);
    if (rc < 0)
        goto out;
    rc = ct_weights_open(r.folder, &weights);
    if (rc == 0)
        rc = import(&m, weights, r.folder, r.ignore ? r.ignore : "");
    if (rc == 0)
        rc = format->write(m.arena, r.checkpoints, r.force, &m.c, m.boxes, m.box_count);
    if (rc == 0)
        printf("%s: %zu parameters of %s\n", m.c.path, m.c.count, r.folder);
    else
        ct_context(rc, "importing %s", r.folder);
out:
    ct_weights_close(weights);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct ct_verb_ops hf_import = {
    .size = sizeof(hf_import),
    .summary = "write a Hugging Face folder's weights as a checkpoint to start from",
    .run = run_import,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan import ~/models/Llama-3.2-1B outputs/mine/checkpoint",
                         "ctitan import model outputs/mine/checkpoint --force")};
