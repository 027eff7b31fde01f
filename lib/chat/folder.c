/*
 * Checks a format against the folder's own chat template, a program in Jinja, that it is used
 * instead of: conversations in another format than the folder's would teach the model another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/json.h>
#include <ctitan/log.h>

#include "folder.h"

/* Parts of known templates that no format here writes. */
static const struct {
    const char *mark, *what;
} left_out[] = {
    {"<think>", "blocks of <think>"},
    {"Cutting Knowledge Date", "a date in the system message"},
    {"You are Qwen", "a system message where there is none"},
    {"tool_calls", "calls of tools"},
};

char *chat_folder_template(const char *folder, char *path)
{
    char *text = NULL;
    json_t *config, *value;
    FILE *file;
    size_t size = 0;

    snprintf(path, CT_PATH_ROOM, "%s/chat_template.jinja", folder);
    if (ct_file_open_stream(path, &file) == 0) {
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

/* The first token of a format that the template does not have; NULL: it has all. */
static const char *lacking(const struct ct_chat_format *format, const char *text)
{
    for (const char *const *token = format->tokens; *token; token++)
        if (!strstr(text, *token))
            return *token;
    return NULL;
}

static void warn(const struct ct_chat_format *format, const char *text, const char *path)
{
    for (size_t i = 0; i < CT_COUNT(left_out); i++)
        if (strstr(text, left_out[i].mark))
            ct_warn("the chat template of %s also writes %s; the format %s does not", path,
                    left_out[i].what, format->name);
}

int ct_chat_compare(const struct ct_chat_format *format, const char *folder)
{
    char path[CT_PATH_ROOM], *text = folder && *folder ? chat_folder_template(folder, path) : NULL;
    const char *token;
    int rc = 0;

    if (!text)
        return 0;
    token = lacking(format, text);
    if (token)
        rc = ct_fail(CT_ECONFIG,
                     "[text] template = %s, but the chat template of %s has no %s: this model "
                     "knows another format; if it shall learn %s, set [text] any_template = true",
                     format->name, path, token, format->name);
    else
        warn(format, text, path);
    free(text);
    return rc;
}

static bool writes_bos(const char *text)
{
    return strstr(text, "bos_token") != NULL;
}

bool ct_chat_begins(const struct ct_chat_format *format, const char *folder)
{
    char path[CT_PATH_ROOM], *text = folder && *folder ? chat_folder_template(folder, path) : NULL;
    bool begins = text && !lacking(format, text) ? writes_bos(text) : format->bos;

    free(text);
    return begins;
}
