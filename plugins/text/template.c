/*
 * What a folder's own chat template, a program in Jinja, says about the format that is used instead
 * of it: conversations in another format than the folder's would teach the model another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/log.h>

#include "chat.h"

/* Parts of known templates that no format here writes. */
static const struct {
    const char *mark, *what;
} left_out[] = {
    {"<think>", "blocks of <think>"},
    {"Cutting Knowledge Date", "a date in the system message"},
    {"You are Qwen", "a system message where there is none"},
    {"tool_calls", "calls of tools"},
};

/* The template in a folder, to be freed; NULL: none. */
static char *folder_template(const char *folder, char *path)
{
    char *text = NULL;
    json_t *config, *value;
    FILE *file;
    size_t size = 0;

    snprintf(path, CT_PATH_ROOM, "%s/chat_template.jinja", folder);
    file = fopen(path, "re");
    if (file) {
        if (getdelim(&text, &size, '\0', file) < 0) {
            free(text);
            text = NULL;
        }
        fclose(file);
        return text;
    }
    snprintf(path, CT_PATH_ROOM, "%s/tokenizer_config.json", folder);
    if (ct_json_read_file(path, 0, &config) < 0)
        return NULL;
    value = json_object_get(config, "chat_template");
    if (json_is_string(value))
        text = strdup(json_string_value(value));
    else if (value) /* several, by name: as they are written */
        text = json_dumps(value, JSON_ENSURE_ASCII);
    json_decref(config);
    return text;
}

int chat_compare(const struct chat_template *chat, const char *folder)
{
    char path[CT_PATH_ROOM], *text = folder && *folder ? folder_template(folder, path) : NULL;
    int rc = 0;

    if (!text)
        return 0;
    for (const char *const *token = chat->tokens; rc == 0 && *token; token++)
        if (!strstr(text, *token))
            rc = ct_fail(CT_ECONFIG,
                         "[text] template = %s, but the chat template of %s has no %s: this model "
                         "knows another format; if it shall learn %s, set [text] "
                         "any_template = true",
                         chat->name, path, *token, chat->name);
    for (size_t i = 0; rc == 0 && i < CT_COUNT(left_out); i++)
        if (strstr(text, left_out[i].mark))
            ct_warn("the chat template of %s also writes %s; [text] template = %s does not", path,
                    left_out[i].what, chat->name);
    free(text);
    return rc;
}
