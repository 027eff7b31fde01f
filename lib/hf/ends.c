/*
 * The tokens at which a Hugging Face folder's model ends its text.
 */
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/json.h>

static int bad(const char *path)
{
    return ct_fail(CT_ECONFIG, "%s: eos_token_id: expected an id, or a list of ids", path);
}

/* Ids of "eos_token_id": 3 or [3, 1]. */
static int read_value(struct ct_arena *arena, const char *path, json_t *value, int32_t **ids,
                      size_t *count)
{
    json_t *list = json_is_array(value) ? json_incref(value) : json_pack("[O]", value);
    size_t n = json_array_size(list);
    int rc = 0;

    *ids = ct_arena_array(arena, int32_t, n + 1);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));

        if (!json_is_integer(json_array_get(list, i)) || id > INT32_MAX || id < INT32_MIN)
            rc = bad(path);
        (*ids)[i] = (int32_t)id;
    }
    *count = n;
    json_decref(list);
    return rc;
}

static int read_file(struct ct_arena *arena, const char *path, int32_t **ids, size_t *count)
{
    json_t *root, *value;
    int rc;

    if (access(path, R_OK))
        return 0;
    rc = ct_json_read_file(path, 0, &root);
    if (rc < 0)
        return rc;
    value = json_object_get(root, "eos_token_id");
    if (value && !json_is_null(value))
        rc = read_value(arena, path, value, ids, count);
    json_decref(root);
    return rc;
}

int ct_hf_read_ends(struct ct_arena *arena, const char *folder, int32_t **ids, size_t *count)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    int rc = 0;

    *ids = NULL;
    *count = 0;
    for (size_t i = 0; rc == 0 && !*count && i < CT_COUNT(names); i++)
        rc = read_file(arena, ct_arena_printf(arena, "%s/%s", folder, names[i]), ids, count);
    return rc;
}
