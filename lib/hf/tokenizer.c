/*
 * The tokenizer that reads what is in a folder.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>

static bool is_file(const char *path, const char *begins)
{
    char bytes[16];
    size_t size = strlen(begins), got;
    struct stat s;
    FILE *in;

    if (stat(path, &s) < 0 || !S_ISREG(s.st_mode) || !(in = fopen(path, "rb")))
        return false;
    got = fread(bytes, 1, size < sizeof(bytes) ? size : sizeof(bytes), in);
    fclose(in);
    return got == size && !memcmp(bytes, begins, size);
}

/* A file of any name may be the one that is described; in a folder it has that name. */
static bool is_there(struct ct_arena *arena, const char *path, const struct ct_tokenizer_file *file)
{
    const char *end = strrchr(file->name, '.'), *given = strrchr(path, '.');
    struct stat s;

    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        return is_file(ct_arena_printf(arena, "%s/%s", path, file->name), file->begins);
    return end && given && !strcmp(end, given) && is_file(path, file->begins);
}

const char *ct_hf_tokenizer(struct ct_arena *arena, const char *path)
{
    const char **names, *best = NULL;
    size_t count = ct_plugin_names(arena, &names);
    const struct ct_plugin *plugin;
    int order = 0;

    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_describe(names[i], &plugin) < 0)
            continue;
        for (const struct ct_offer *o = plugin->offers; o && o->kind != CT_NOTHING; o++) {
            const struct ct_tokenizer_ops *ops = o->ops;

            if (o->kind != CT_TOKENIZER)
                continue;
            for (const struct ct_tokenizer_file *f = ops->files; f && f->name; f++)
                if ((!best || f->order < order) && is_there(arena, path, f)) {
                    best = names[i];
                    order = f->order;
                }
        }
    }
    return best;
}
