/*
 * Second sets of weights. A set with a folder is read from it whenever the run opens; checkpoints
 * keep a hash of the folder, so that a run goes on with the same weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <ctitan/calling.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/state.h>
#include <ctitan/text.h>

#include "run/weights.h"

struct ct_run_set {
    const struct ct_weight_set *set;
    uint64_t hash, kept; /* of the folder: now, and when the run began */
};

static bool has_folder(const struct ct_weight_set *set)
{
    return set->folder && *set->folder;
}

bool ct_state_reloads(const struct ct_state *state)
{
    return state->set && has_folder(state->set);
}

/* ---- the model of a folder ---- */

/* The forward of a model as text, without the ops that fill parameters. To be freed. */
static int print_forward(const struct ct_run *run, struct ct_model *model,
                         const struct ct_model_request *request, char **text)
{
    struct ct_model_request all = *request;
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "forward");
    struct ct_calling before;
    size_t size;
    FILE *out;
    int rc;

    *text = NULL;
    graph->mesh = run->mesh;
    graph->streams = run->streams;
    all.logits = all.loss = true;
    before = ct_calling_begin("model", NULL);
    rc = run->model_ops->build(model, graph, &all);
    ct_calling_end(&before);
    ct_for_each_op_safe (op, graph)
        if (op->section->part == CT_PART_INIT)
            ct_graph_remove(graph, op);
    out = rc == 0 ? open_memstream(text, &size) : NULL;
    if (out)
        ct_graph_print(graph, out);
    if (rc == 0 && (!out || fclose(out)))
        rc = ct_fail(CT_ENOMEM, "the text of a forward");
    ct_arena_finish(&arena);
    return rc;
}

/* The same of the model of a set's folder, whose config.json says how it is created. */
static int print_other(struct ct_run *run, const struct ct_weight_set *set,
                       const struct ct_model_request *request, char **text)
{
    const struct ct_model_ops *ops = run->model_ops;
    struct ct_config before = ct_config;
    struct ct_model *model = NULL;
    int rc;

    *text = NULL;
    ct_config.model.init_from = set->folder;
    rc = ops->create(run, &model);
    if (rc == 0)
        rc = print_forward(run, model, request, text);
    if (model && ops->destroy)
        ops->destroy(model);
    run->model_ops = ops;
    ct_config = before;
    return rc;
}

static int fail_first(const char *own, const char *other)
{
    size_t same = 0, line = 0, sizes[2];

    for (; own[same] && own[same] == other[same]; same++)
        if (own[same] == '\n')
            line = same + 1;
    sizes[0] = strcspn(own + line, "\n");
    sizes[1] = strcspn(other + line, "\n");
    return ct_fail(CT_ECONFIG,
                   "it is of a model with another forward than this run's: \"%.*s\", here "
                   "\"%.*s\"",
                   (int)sizes[1], other + line, (int)sizes[0], own + line);
}

static int compare_forward(struct ct_run *run, const struct ct_weight_set *set,
                           const struct ct_model_request *request)
{
    char *own = NULL, *other = NULL;
    int rc = print_forward(run, run->model, request, &own);

    if (rc == 0)
        rc = print_other(run, set, request, &other);
    if (rc == 0 && strcmp(own, other) != 0)
        rc = fail_first(own, other);
    free(own);
    free(other);
    return rc;
}

/* ---- the sets of a run ---- */

static const struct ct_run_set *find(const struct ct_run *run, const struct ct_weight_set *set)
{
    for (size_t i = 0; i < run->weight_set_count; i++)
        if (run->weight_sets[i].set == set)
            return &run->weight_sets[i];
    return NULL;
}

static int check_set(struct ct_run *run, const struct ct_weight_set *set,
                     const struct ct_model_request *request)
{
    if (!has_folder(set)) {
        ct_state_follow(ct_arena_printf(&run->arena, "%s.", set->name));
        return 0;
    }
    if (!run->model_ops->weights || !run->model_ops->weights->load_set)
        return ct_fail(CT_ECONFIG,
                       "the model %s reads no second set of weights (`load_set` of struct "
                       "ct_weights_ops)",
                       ct_config.model.name);
    return compare_forward(run, set, request);
}

int ct_run_note_sets(struct ct_run *run, const struct ct_graph *graph,
                     const struct ct_model_request *request)
{
    size_t room = run->weight_set_count;
    int rc;

    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_weight_set *set = graph->values[i]->set;

        if (!set || find(run, set))
            continue;
        rc = check_set(run, set, request);
        if (rc < 0)
            return ct_context(rc, "%s = %s", set->option, has_folder(set) ? set->folder : "");
        run->weight_sets = ct_arena_grow(&run->arena, run->weight_sets, &room,
                                         run->weight_set_count + 1, sizeof(*run->weight_sets));
        run->weight_sets[run->weight_set_count++] = (struct ct_run_set){.set = set};
    }
    return 0;
}

/* ---- folders ---- */

/* A hash of the values in lines "reads WHAT: VALUE": not of the folder's own path. */
static uint64_t hash_values(const char *text)
{
    uint64_t hash = 0;

    for (const char *end; *text; text = *end ? end + 1 : end) {
        const char *value = text;

        end = text + strcspn(text, "\n");
        for (const char *at = text; at < end; at++)
            if (*at == ':')
                value = at;
        hash = XXH3_64bits_withSeed(value, (size_t)(end - value), hash);
    }
    return hash;
}

static int identify(struct ct_run *run, struct ct_run_set *s, FILE *all)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    int rc = out ? run->model_ops->weights->identify(s->set->folder, out)
                 : ct_fail(CT_ENOMEM, "what is compared of %s", s->set->folder);

    if (out && fclose(out) && rc == 0)
        rc = ct_fail(CT_ENOMEM, "what is compared of %s", s->set->folder);
    if (rc == 0) {
        s->hash = s->kept = hash_values(text);
        fputs(text, all);
        ct_run_keep(run, ct_arena_printf(&run->arena, "weights.%s", s->set->name), &s->kept,
                    sizeof(s->kept));
    }
    free(text);
    return rc < 0 ? ct_context(rc, "%s = %s", s->set->option, s->set->folder) : 0;
}

int ct_run_identify_sets(struct ct_run *run, FILE *out)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < run->weight_set_count; i++)
        if (has_folder(run->weight_sets[i].set))
            rc = identify(run, &run->weight_sets[i], out);
    return rc;
}

int ct_run_load_sets(struct ct_run *run)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < run->weight_set_count; i++) {
        const struct ct_weight_set *set = run->weight_sets[i].set;

        if (has_folder(set))
            rc = ct_context(run->model_ops->weights->load_set(run, set), "%s = %s", set->option,
                            set->folder);
    }
    return rc;
}

int ct_run_check_sets(const struct ct_run *run)
{
    for (size_t i = 0; i < run->weight_set_count; i++) {
        const struct ct_run_set *s = &run->weight_sets[i];

        if (s->kept != s->hash)
            return ct_fail(CT_ECONFIG,
                           "%s = %s: the folder has other files than when this run began: give it "
                           "as it was, or begin a new run in another [job] dump_folder",
                           s->set->option, s->set->folder);
    }
    return 0;
}

/* ---- where weights come from ---- */

static char noted[CT_PATH_ROOM];

void ct_weights_note(const char *path)
{
    snprintf(noted, sizeof(noted), "%s", path);
}

const char *ct_weights_noted(void)
{
    return noted;
}
