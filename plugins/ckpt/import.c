/*
 * A Hugging Face folder as a checkpoint. Boxes are written from the mapped files. Where each index
 * of a parameter's first dimension is a tensor of its own, each is a box in a file of its own,
 * since a file has one box of a parameter.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/verb.h>

#include "ckpt.h"

#define MOST_FILES 65536

struct import {
    struct ckpt *c;
    const struct ct_stored_rule *rules;
    size_t tensor_room, file_room, *box_room, rooms;
    size_t *boxes; /* by tensor: how many it has */
    size_t boxes_room;
};

static struct ckpt_tensor *tensor_called(struct import *m, const char *name)
{
    struct ckpt *c = m->c;

    for (size_t i = c->tensor_count; i-- > 0;)
        if (!strcmp(c->tensors[i].name, name))
            return &c->tensors[i];
    c->tensors = ct_arena_grow(c->arena, c->tensors, &m->tensor_room, c->tensor_count + 1,
                               sizeof(*c->tensors));
    m->boxes =
        ct_arena_grow(c->arena, m->boxes, &m->boxes_room, c->tensor_count + 1, sizeof(*m->boxes));
    m->boxes[c->tensor_count] = 0;
    c->tensors[c->tensor_count] = (struct ckpt_tensor){.name = name, .role = CT_ROLE_PARAM};
    return &c->tensors[c->tensor_count++];
}

static struct ckpt_file *file_of(struct import *m, size_t index)
{
    struct ckpt *c = m->c;

    while (c->file_count <= index) {
        c->files =
            ct_arena_grow(c->arena, c->files, &m->file_room, c->file_count + 1, sizeof(*c->files));
        m->box_room =
            ct_arena_grow(c->arena, m->box_room, &m->rooms, c->file_count + 1, sizeof(size_t));
        m->box_room[c->file_count] = 0;
        c->files[c->file_count] = (struct ckpt_file){
            .name = ct_arena_printf(c->arena, "rank-%05zu.safetensors", c->file_count)};
        c->file_count++;
    }
    return &c->files[index];
}

/* Data of a tensor of files, or the tensor itself where its elements lie otherwise. */
static struct ckpt_box make_box(struct ct_arena *arena, const struct ct_weight *w,
                                const struct ct_stored_held *held)
{
    struct ckpt_box b = {.name = held->name, .dtype = w->dtype, .ndim = held->box.ndim};

    memcpy(b.shape, held->box.shape, sizeof(b.shape));
    memcpy(b.offset, held->box.offset, sizeof(b.offset));
    b.bytes = (size_t)ct_shape_count(b.ndim, b.shape) * ct_dtype_size(b.dtype);
    b.data = w->data;
    if (held->dense) {
        b.data += (size_t)held->places.first * ct_dtype_size(w->dtype);
    } else {
        b.places = ct_arena_copy(arena, &held->places, sizeof(held->places));
        b.weight = w;
    }
    return b;
}

/* A box has the index of its file along the first dimension: 0, or the number of its tensor. */
static int add_box(void *context, const struct ct_weight *w, const struct ct_stored_held *held)
{
    struct import *m = context;
    int64_t index = held->box.ndim ? held->box.offset[0] : 0;
    struct ckpt_box b = make_box(m->c->arena, w, held);
    struct ckpt_tensor *t;
    struct ckpt_file *file;

    if (index >= MOST_FILES)
        return ct_fail(CT_ECONFIG, "%s is not what its name says", w->name);
    t = tensor_called(m, held->name);
    file = file_of(m, (size_t)index);
    if (t->ndim &&
        (t->ndim != b.ndim || t->dtype != b.dtype ||
         memcmp(t->shape + 1, b.shape + 1, sizeof(*b.shape) * (size_t)(b.ndim - 1)) != 0))
        return ct_fail(CT_ECONFIG, "%s has another shape than others of its kind", w->name);
    if (t->shape[0] < b.offset[0] + b.shape[0] || !t->ndim)
        memcpy(t->shape, b.shape, sizeof(b.shape));
    t->shape[0] = index && t->shape[0] < index + 1 ? index + 1 : t->shape[0];
    t->ndim = b.ndim;
    t->dtype = b.dtype;
    m->boxes[t - m->c->tensors]++;
    file->boxes = ct_arena_grow(m->c->arena, file->boxes, &m->box_room[index], file->box_count + 1,
                                sizeof(b));
    file->boxes[file->box_count++] = b;
    return 0;
}

static int take_weights(struct import *m, const struct ct_weights *weights)
{
    struct ckpt *c = m->c;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ct_weights_count(weights); i++) {
        const struct ct_weight *w = ct_weights_at(weights, i);

        if (ct_shape_count(w->ndim, w->shape))
            rc = ct_stored_each_held(c->arena, m->rules, w, add_box, m);
    }
    for (size_t i = 0; rc == 0 && i < c->tensor_count; i++)
        if (m->boxes[i] > 1 && (int64_t)m->boxes[i] != c->tensors[i].shape[0])
            rc = ct_fail(CT_ECONFIG, "%s: %zu of its %lld tensors are there", c->tensors[i].name,
                         m->boxes[i], (long long)c->tensors[i].shape[0]);
    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        ckpt_place(c->arena, &c->files[i]);
    c->world = (int64_t)c->file_count;
    return rc;
}

static int write_file(struct ckpt *c, struct ckpt_file *file, const char *temporary)
{
    struct ckpt_write w = {.file = file, .ring = {aligned_alloc(PAGE, 2 * CHUNK), 2, CHUNK}};
    char *header = NULL;
    int rc = w.ring.memory ? ckpt_make_header(file, &header) : ct_fail(CT_ENOMEM, "a ring");

    w.path = ct_arena_printf(c->arena, "%s/%s", temporary, file->name);
    w.header = header;
    if (rc == 0)
        rc = ckpt_write(&w);
    free(header);
    free(w.ring.memory);
    return rc;
}

static int write_all(struct ckpt *c, const char *path)
{
    const char *temporary = ct_arena_printf(c->arena, "%s.tmp-%ld", path, (long)getpid());
    int rc = ct_file_make_folder(temporary);
    char *text;
    size_t size;

    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = write_file(c, &c->files[i], temporary);
    if (rc == 0)
        rc = ckpt_beside_write(c, temporary);
    if (rc == 0)
        rc = ckpt_index_text(c->arena, c, &text, &size);
    if (rc == 0)
        rc = ckpt_index_write(text, size, temporary);
    return rc < 0 ? rc : ckpt_publish(temporary, path);
}

static int import(struct ckpt *c, const struct ct_weights *weights, const char *folder,
                  const char *path)
{
    struct import m = {.c = c};
    int rc = ct_hf_config_as_numbers(c->arena, folder, weights, &c->config);

    if (rc == 0)
        rc = ct_hf_rules(c->config, c->arena, &m.rules);
    if (rc == 0 && ct_weights_quantised(weights) && !m.rules)
        rc = ct_fail(CT_ECONFIG, "tensors in MXFP4 need the config.json of their model, which says "
                                 "how they lie");
    if (rc == 0)
        rc = ct_hf_read_files(c->arena, folder, &c->beside);
    if (rc == 0)
        rc = take_weights(&m, weights);
    return rc < 0 ? rc : write_all(c, path);
}

struct request {
    struct ct_arena arena;
    const char *folder, *checkpoints;
    bool force;
};

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct request, folder, "HF_FOLDER", "The Hugging Face folder to read"),
    CT_ARG_WORD(struct request, checkpoints, "CHECKPOINTS", "Folder to write the checkpoint to"),
    CT_ARG_FLAG(struct request, force, "force", 0, "Replace a checkpoint that is there"),
    {0}};

static int run_import(int argc, char **argv)
{
    struct ct_arena scratch = {0};
    struct request r = {0};
    struct ckpt c = {.arena = &scratch,
                     .progress = {.step = 1},
                     .time = (int64_t)time(NULL),
                     .model_only = true,
                     .mesh = "imported",
                     .recipe = "",
                     .chunk = CHUNK};
    struct ct_weights *weights = NULL;
    const char *path;
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc < 0)
        return rc;
    path = ckpt_step_path(&scratch, r.checkpoints, 0);
    if (!access(path, F_OK) && !r.force)
        rc = ct_fail(CT_ECONFIG,
                     "there is %s already: give another folder, or --force to replace "
                     "it",
                     path);
    if (rc == 0)
        rc = ct_weights_open(r.folder, &weights);
    if (rc == 0)
        rc = import(&c, weights, r.folder, path);
    if (rc == 0)
        printf("%s: %zu parameters of %s\n", path, c.tensor_count, r.folder);
    else
        ct_context(rc, "importing %s", r.folder);
    ct_weights_close(weights);
    ct_arena_finish(&scratch);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct ct_verb_ops ckpt_import = {
    .size = sizeof(ckpt_import),
    .summary = "write a Hugging Face folder's weights as a checkpoint to start from",
    .run = run_import,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan import ~/models/Llama-3.2-1B outputs/mine/checkpoint",
                         "ctitan import model outputs/mine/checkpoint --force")};
