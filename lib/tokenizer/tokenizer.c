#include <string.h>
#include <sys/stat.h>

#include <jansson.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/tokenizer.h>

int ct_tokenizer_find(struct ct_arena *arena, const char *path,
                      const struct ct_tokenizer_file *files, const char *lacking, const char **file)
{
    struct stat s;

    *file = path;
    if (stat(path, &s) < 0)
        return ct_fail(CT_ENOENT, "no file or folder %s", path);
    if (!S_ISDIR(s.st_mode))
        return 0;
    for (; files->name; files++) {
        *file = ct_arena_printf(arena, "%s/%s", path, files->name);
        if (stat(*file, &s) == 0)
            return 0;
    }
    return ct_fail(CT_ENOENT, "%s in %s", lacking, path);
}

int ct_tokenizer_config(struct ct_arena *arena, const char *file, json_t **config,
                        const char **path)
{
    const char *slash = strrchr(file, '/');
    struct stat s;

    *config = NULL;
    *path = ct_arena_printf(arena, "%.*stokenizer_config.json", slash ? (int)(slash - file) + 1 : 0,
                            file);
    return stat(*path, &s) < 0 ? 0 : ct_json_read_file(*path, 0, config);
}

const char *ct_tokenizer_special(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);

    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

uint64_t ct_tokenizer_meanings(const struct ct_tokenizer_ops *tokenizer)
{
    uint64_t hash = (uint64_t)tokenizer->vocabulary();
    char text[4096];

    for (int64_t i = 0; i < tokenizer->vocabulary(); i++) {
        int size = tokenizer->decode((int32_t)i, text, sizeof(text));
        size_t used = size < 0 ? 0 : (size_t)size < sizeof(text) ? (size_t)size : sizeof(text);

        hash = XXH3_64bits_withSeed(text, used, hash + 1);
    }
    return hash;
}
