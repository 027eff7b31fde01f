/*
 * `ctitan check`: results, as lines for people or as one JSON object. Each is written when it is
 * there, since code of the plugin may end the process. What is being called is kept as text, so
 * that the handler of the signal only has to write it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/lib/json.h>

#include "check.h"
#include "crash.h"

static const struct check *told; /* whose results are said */
static int said;

/* Text that the handler writes before and after the name of the signal. */
static struct {
    char before[4096], after[256];
} crash;

static const struct {
    const char *line, *json;
} results[] = {
    [CHECK_OK] = {"ok      ", "ok"},
    [CHECK_FAILED] = {"FAILED  ", "failed"},
    [CHECK_UNTRIED] = {"untried ", "untried"},
    [CHECK_NOTE] = {"note    ", "note"},
};

#define CRASHED "it crashes ("
#define CRASHED_END "); nothing after it was tried. `gdb --args ctitan check ..` shows where"

void check_say_begin(const struct check *c)
{
    told = c;
}

bool check_says_json(void)
{
    return told->json;
}

/* text, or "null", for putting into JSON; to be freed. */
static char *quoted(const char *text)
{
    json_t *string = ct_json_text(text);
    char *out = json_dumps(string, JSON_ENCODE_ANY);

    json_decref(string);
    return out;
}

/* The beginning of the object, or what separates two results. */
static int print_before(char *text, size_t room)
{
    char *plugin = quoted(told->name);
    int used = said ? snprintf(text, room, ",\n    ")
                    : snprintf(text, room, "{\n  \"plugin\": %s,\n  \"results\": [\n    ",
                               plugin ? plugin : "null");

    free(plugin);
    return used < (int)room ? used : (int)room - 1;
}

static void print_end(char *text, size_t room, int crashed)
{
    snprintf(text, room, "\n  ],\n  \"passed\": %d,\n  \"failed\": %d,\n  \"untried\": %d\n}\n",
             told->passed, told->failed + crashed, told->untried);
}

static void say_json(enum check_result_kind kind, const char *what, const char *why)
{
    json_t *one = json_pack("{s:s, s:o, s:o}", "result", results[kind].json, "what",
                            ct_json_text(what), "why", ct_json_text(why));
    char before[4096];

    print_before(before, sizeof(before));
    fputs(before, stdout);
    json_dumpf(one, stdout, 0);
    json_decref(one);
}

void check_say(enum check_result_kind kind, const char *what, const char *why)
{
    if (told->json)
        say_json(kind, what, why);
    else
        printf("%s%s%s%s\n", results[kind].line, what, why ? ": " : "", why ? why : "");
    said++;
    fflush(stdout);
}

void check_say_end(void)
{
    char text[256];

    if (!said || !told->json)
        return;
    print_end(text, sizeof(text), 0);
    fputs(text, stdout);
}

/* ---- crashes ---- */

void check_calling(const char *format, ...)
{
    char calling[512], *what;
    int used = 0;
    va_list list;

    fflush(stdout);
    va_start(list, format);
    vsnprintf(calling, sizeof(calling), format, list);
    va_end(list);
    if (!told->json) {
        snprintf(crash.before, sizeof(crash.before), "FAILED  %s: " CRASHED, calling);
        snprintf(crash.after, sizeof(crash.after), CRASHED_END "\n");
        return;
    }
    what = quoted(calling);
    used = print_before(crash.before, sizeof(crash.before));
    snprintf(crash.before + used, sizeof(crash.before) - (size_t)used,
             "{\"result\": \"failed\", \"what\": %s, \"why\": \"" CRASHED, what ? what : "null");
    used = snprintf(crash.after, sizeof(crash.after), CRASHED_END "\"}");
    print_end(crash.after + used, sizeof(crash.after) - (size_t)used, 1);
    free(what);
}

static void crashed(int number)
{
    crash_say(STDOUT_FILENO, crash.before);
    crash_say(STDOUT_FILENO, crash_name(number));
    crash_say(STDOUT_FILENO, crash.after);
    _exit(1);
}

void check_leave_crashes(void)
{
    crash_leave(crashed);
}

void check_catch_crashes(void)
{
    crash_catch(crashed);
}
