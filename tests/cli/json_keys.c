/*
 * json_keys FILE: the keys of a JSON object, a line each: "ranks[].step". Equal keys of an object,
 * text that is not UTF-8, and anything that is not JSON are failures.
 * json_keys FILE KEY: the values of a key, a line each.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

static const char *wanted;

static void print_leaf(const char *path, const json_t *value)
{
    if (wanted && strcmp(wanted, path) != 0)
        return;
    if (!wanted)
        printf("%s\n", path);
    else if (json_is_string(value))
        printf("%s\n", json_string_value(value));
    else if (json_is_number(value))
        printf("%.17g\n", json_number_value(value));
    else
        printf("%s\n", json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
}

static void print_value(const char *path, json_t *value)
{
    char longer[1024];
    const char *key;
    json_t *inner;
    size_t i;

    json_object_foreach(value, key, inner)
    {
        snprintf(longer, sizeof(longer), "%s%s%s", path, *path ? "." : "", key);
        print_value(longer, inner);
    }
    json_array_foreach(value, i, inner)
    {
        snprintf(longer, sizeof(longer), "%s[]", path);
        print_value(longer, inner);
    }
    if (!json_is_object(value) && !json_is_array(value))
        print_leaf(path, value);
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *value = argc > 1 ? json_load_file(argv[1], JSON_REJECT_DUPLICATES, &error) : NULL;

    if (!json_is_object(value)) {
        fprintf(stderr, "%s:%d:%d: %s\n", argv[1], error.line, error.column, error.text);
        return 1;
    }
    wanted = argc > 2 ? argv[2] : NULL;
    print_value("", value);
    json_decref(value);
    return 0;
}
