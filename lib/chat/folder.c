/*
 * Checks a format against the folder's own chat template, a program in Jinja, that it is used
 * instead of: conversations in another format than the folder's would teach the model another one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

static int take_value(const json_t *value, const char *path, char **text)
{
    if (!value || json_is_null(value))
        return CT_ENOENT;
    if (json_is_string(value))
        *text = strdup(json_string_value(value));
    else /* several, by name: as they are written */
        *text = json_dumps(value, JSON_ENSURE_ASCII);
    return *text ? 0 : ct_fail(CT_ECONFIG, "%s: chat_template is no text", path);
}

/* An empty file is no template. */
static int read_all(FILE *file, const char *path, char **text)
{
    size_t room = 0;

    errno = 0;
    if (getdelim(text, &room, '\0', file) > 0 && **text)
        return 0;
    free(*text);
    *text = NULL;
    return ferror(file) ? ct_fail(CT_EIO, "%s: %s", path, strerror(errno)) : CT_ENOENT;
}

int chat_folder_template(const char *folder, char *path, char **text)
{
    struct stat s;
    json_t *config;
    FILE *file;
    int rc;

    *text = NULL;
    if (!folder || !*folder || stat(folder, &s) < 0 || !S_ISDIR(s.st_mode))
        return CT_ENOENT;
    snprintf(path, CT_PATH_ROOM, "%s/chat_template.jinja", folder);
    rc = ct_file_open_stream(path, &file);
    if (rc == 0) {
        rc = read_all(file, path, text);
        fclose(file);
    }
    if (rc != CT_ENOENT)
        return rc;
    snprintf(path, CT_PATH_ROOM, "%s/tokenizer_config.json", folder);
    rc = ct_json_read_file(path, 0, &config);
    if (rc < 0)
        return rc;
    rc = take_value(json_object_get(config, "chat_template"), path, text);
    json_decref(config);
    return rc;
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
    char path[CT_PATH_ROOM], *text;
    int rc = chat_folder_template(folder, path, &text);
    const char *token;

    if (rc < 0)
        return rc == CT_ENOENT ? 0 : rc;
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

int ct_chat_begins(const struct ct_chat_format *format, const char *folder)
{
    char path[CT_PATH_ROOM], *text;
    int rc = chat_folder_template(folder, path, &text);
    bool begins = rc == 0 && !lacking(format, text) ? writes_bos(text) : format->bos;

    free(text);
    return rc < 0 && rc != CT_ENOENT ? rc : begins;
}
