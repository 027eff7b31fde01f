#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

#include "resume.h"

#define LARGEST ((size_t)1 << 20) /* of a recipe */

static struct {
    struct ct_arena arena;
    char *former;    /* recipe of the last start; NULL: there is none, or it has been told */
    int64_t trained; /* the last step */
    bool went_on;    /* elsewhere than after the last step */
    int64_t after;
} now;

void resume_open(void)
{
    char path[CT_PATH_ROOM];
    size_t size;

    snprintf(path, sizeof(path), "%s/recipe.ini", ct_config.job.dump_folder);
    if (ct_file_read(&now.arena, path, LARGEST, &now.former, &size) < 0)
        now.former = NULL;
}

void resume_step(int64_t step)
{
    if (step != now.trained + 1) {
        now.went_on = true;
        now.after = step - 1;
    }
    now.trained = step;
}

struct told {
    const struct ct_recipe *recipe;
    json_t *changed;
};

static void tell(const char *section, const char *key, const char *before, const char *after,
                 void *context)
{
    const struct told *told = context;
    bool plugin = !strcmp(section, "plugins");
    const char *name = ct_arena_printf(&now.arena, plugin ? "plugin %s%s%s" : "%s%s%s",
                                       plugin ? "" : section, plugin ? "" : ".", key);

    if (strcmp(section, "job") && !ct_recipe_given(told->recipe, section, key))
        json_object_set_new(told->changed, name, json_pack("[s, s]", before, after));
}

static json_t *changes(const struct ct_run *run)
{
    struct told told = {run->recipe, json_object()};
    char *text = NULL;
    size_t size;
    FILE *in = open_memstream(&text, &size);

    ct_recipe_print_resolved(run->recipe, in);
    fclose(in);
    if (now.former &&
        ct_recipe_differences("the former recipe.ini", now.former, text, tell, &told) < 0)
        ct_warn("%s", ct_error_message());
    free(text);
    now.former = NULL;
    return told.changed;
}

int resume_write(const struct ct_run *run, FILE *out)
{
    json_t *changed;
    char *text;

    if (!now.went_on)
        return 0;
    now.went_on = false;
    changed = changes(run);
    text = json_dumps(changed, JSON_COMPACT);
    json_decref(changed);
    if (!text)
        return ct_fail(CT_ENOMEM, "metrics.jsonl");
    fprintf(out, ", \"resumed_after\": %lld, \"ranks\": %lld, \"changed\": %s",
            (long long)now.after, (long long)run->world, text);
    free(text);
    return 0;
}

void resume_close(void)
{
    ct_arena_finish(&now.arena);
    now.former = NULL;
}
