/*
 * Chooses the saved values by rule: TorchTitan's modes.
 *
 *   none   everything
 *   full   of every layer, the values used outside it; the backward recomputes the rest
 *   layer  the same for every k-th layer
 *   op     the results of listed ops
 *
 * Saved results of the ops that [sac] offload lists lie in host memory.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "sac.h"

/* ---- whole layers ---- */

bool sac_leaves(const struct sac *s, const struct ct_value *v)
{
    int layer = s->layer_of[v->id];

    ct_for_each_use (use, v) {
        const struct ct_op *op = use->op;

        if (op->section->part != CT_PART_F && op->section->part != CT_PART_POST)
            continue;
        if (op->section->part == CT_PART_POST || op->outs == 0 ||
            s->layer_of[op->out[0]->id] != layer)
            return true;
    }
    return v->fetch_count > 0;
}

/* Keep only the values that leave the layer. */
static void keep_boundary(struct sac *s, int layer)
{
    for (size_t i = 0; i < s->forward->value_count; i++)
        if (s->layer_of[i] == layer && s->may[i])
            s->kept[i] = false;
    for (size_t i = 0; i < s->forward->value_count; i++)
        if (s->layer_of[i] == layer && sac_leaves(s, s->forward->values[i]))
            s->kept[s->root[i]->id] = true;
}

/* "layers.3" is the fourth layer, whichever stage has it. */
static int64_t number(const struct sac_layer *layer)
{
    return 1 + strtoll(strrchr(layer->name, '.') + 1, NULL, 10);
}

static void choose_layers(struct sac *s, int64_t every)
{
    for (int n = 0; n < s->layers; n++)
        if (number(&s->layer[n]) % every == 0)
            keep_boundary(s, n);
}

/* ---- listed ops ---- */

/* TorchTitan's list. "/2": every second one of a layer is recomputed. all_to_all is that of the
   core, exchange that of experts, and amax the maximum by which Float8 scales. */
static const char default_ops[] = "linear/2, attention, reduce_scatter, all_to_all, exchange, amax";

struct listed {
    char *name;
    int every;  /* 0: all are kept; k: all except every k-th */
    int count;  /* in this layer, so far */
    bool found; /* in a layer */
};

struct list {
    struct listed *item;
    size_t count, room;
};

static int read_item(struct list *list, struct ct_arena *arena, char *text, const char *check)
{
    struct listed item = {.name = text + strspn(text, " \t")};
    char *slash;

    item.name[strcspn(item.name, " \t")] = '\0';
    slash = strchr(item.name, '/');
    if (slash) {
        char *end;

        *slash++ = '\0';
        item.every = (int)strtol(slash, &end, 10);
        if (item.every < 2 || *end)
            return ct_fail(CT_ECONFIG, "[sac] %s: %s/%s: expected a number, at least 2", check,
                           item.name, slash);
    }
    if (check && !ct_op_find(item.name))
        return ct_context(CT_ECONFIG, "[sac] %s", check);
    list->item =
        ct_arena_grow(arena, list->item, &list->room, list->count + 1, sizeof(*list->item));
    list->item[list->count++] = item;
    return 0;
}

/* check: the text is the user's, as the value of that key. */
static int read_list(struct sac *s, struct list *list, const char *text, const char *check)
{
    char *rest = ct_arena_strdup(&s->scratch, text);
    int rc = 0;

    while (rc == 0 && rest && *rest)
        rc = read_item(list, &s->scratch, strsep(&rest, ","), check);
    return rc;
}

/* Is name one of the words of a type's name, or several in a row, as "linear" in "linear_float8"?
   Variants of an op are named after it. */
static bool stands_for(const char *name, const char *type)
{
    size_t length = strlen(name);

    for (const char *at = type; (at = strstr(at, name)); at++)
        if ((at == type || strchr("_.", at[-1])) && (!at[length] || strchr("_.", at[length])))
            return true;
    return false;
}

/* By the op's own entry, or else by the first that stands for it. */
static bool is_listed(const struct list *list, const struct ct_op *op)
{
    struct listed *best = NULL;

    for (size_t i = 0; i < list->count; i++) {
        struct listed *item = &list->item[i];

        if (!stands_for(item->name, op->type->name))
            continue;
        item->found = true;
        if (!best || (strcmp(best->name, op->type->name) && !strcmp(item->name, op->type->name)))
            best = item;
    }
    return best && (!best->every || ++best->count % best->every);
}

/* A rank of a pipeline has some layers only: others may have an op that they lack. */
static int check_found(const struct sac *s, const struct list *list, const char *key)
{
    for (size_t i = 0; i < list->count; i++)
        if (!list->item[i].found &&
            !(s->graph->partition_axis >= 0 && ct_op_find(list->item[i].name)))
            return ct_fail(CT_ECONFIG,
                           "[sac] %s: no layer has an op %s; `ctitan explain` shows those it has",
                           key, list->item[i].name);
    return 0;
}

/* Mark the values that the listed ops of layers make. */
static void mark_listed(const struct sac *s, struct list *list, bool *marked)
{
    int layer = -1;

    ct_for_each_op (op, s->forward) {
        if (op->section->part != CT_PART_F || !op->outs || s->layer_of[op->out[0]->id] < 0)
            continue;
        if (s->layer_of[op->out[0]->id] != layer)
            for (size_t i = 0; i < list->count; i++)
                list->item[i].count = 0;
        layer = s->layer_of[op->out[0]->id];
        if (is_listed(list, op))
            for (int i = 0; i < op->outs; i++)
                marked[s->root[op->out[i]->id]->id] = true;
    }
}

/* The sum, or the maximum, over ranks of a result that is kept takes its place: it has as many
   bytes, and nothing is communicated again. */
static void keep_reduced(struct sac *s)
{
    ct_for_each_op (op, s->forward) {
        if (op->type != &ct_op_all_reduce || op->section->part != CT_PART_F)
            continue;
        for (int i = 0; i < op->outs; i++)
            if (s->layer_of[op->out[i]->id] >= 0 && s->kept[s->root[op->in[i]->id]->id])
                s->kept[op->out[i]->id] = true;
    }
}

int sac_keep_listed(struct sac *s, const char *ops)
{
    bool given = strcmp(ops, "default") != 0;
    struct list list = {0};
    int rc = read_list(s, &list, given ? ops : default_ops, given ? "save_ops" : NULL);

    for (int n = 0; n < s->layers; n++)
        keep_boundary(s, n);
    if (rc == 0)
        mark_listed(s, &list, s->kept);
    keep_reduced(s);
    return rc == 0 && given ? check_found(s, &list, "save_ops") : rc;
}

int sac_find_leaving(struct sac *s)
{
    bool *listed = ct_arena_array(&s->scratch, bool, s->forward->value_count + 1);
    bool all = !strcmp(sac_config.offload, "all");
    struct list list = {0};
    int rc = all ? 0 : read_list(s, &list, sac_config.offload, "offload");

    s->offloads = all || list.count;
    if (rc == 0)
        mark_listed(s, &list, listed);
    if (rc == 0)
        rc = check_found(s, &list, "offload");
    for (size_t i = 0; i < s->count; i++)
        s->may_leave[i] = (all || listed[i]) && s->root[i] == s->forward->values[i] && s->may[i] &&
                          !s->must[i] && s->layer_of[i] >= 0;
    return rc;
}

/* ---- the mode ---- */

void sac_settle(struct sac *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->must[i] && s->may[i])
            s->kept[i] = false;
    for (size_t i = 0; i < s->forward->value_count; i++) {
        s->kept[i] = s->kept[s->root[i]->id];
        s->away[i] = s->kept[i] && s->away[s->root[i]->id];
    }
}

int sac_choose_by_rule(struct sac *s)
{
    int rc = 0;

    memset(s->kept, true, s->forward->value_count);
    memcpy(s->away, s->may_leave, s->forward->value_count);
    if (sac_config.mode == SAC_FULL)
        choose_layers(s, 1);
    else if (sac_config.mode == SAC_LAYER)
        choose_layers(s, sac_config.every);
    else if (sac_config.mode == SAC_OP)
        rc = sac_keep_listed(s, sac_config.save_ops);
    sac_settle(s);
    return rc;
}
