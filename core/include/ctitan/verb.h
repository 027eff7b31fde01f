/*
 * Arguments of verbs: one table per verb.
 *
 * A row says everything about an argument: its name, its letter, the name of its value, one
 * sentence, what values it takes, and where they go. Parsing, `ctitan VERB --help`, the manual page
 * and the completions of shells are made from it.
 *
 *     struct request { const char *folder; bool force; int64_t steps; };
 *     static const struct ct_argument arguments[] = {
 *         CT_ARG_WORD(struct request, folder, "FOLDER", "The folder to write"),
 *         CT_ARG_FLAG(struct request, force, "force", 'f', "Replace what is in the folder"),
 *         CT_ARG_INT(struct request, steps, "steps", 0, "N", 1, 1e6, "Steps to read"),
 *         {0}};
 *     static const struct ct_verb_ops verb = {
 *         .size = sizeof(verb), .summary = "write a folder", .run = run, .arguments = arguments,
 *         .examples = CT_NAMES("ctitan mine out", "ctitan mine out --force")};
 *
 * A plugin's table is read from its file without loading the plugin. It must therefore be a
 * constant of the plugin itself.
 */
#ifndef CT_VERB_H
#define CT_VERB_H

#include <ctitan/arena.h>
#include <ctitan/model.h>
#include <ctitan/option.h>
#include <ctitan/plugin.h>

CT_BEGIN_DECLS

/* Texts in their order. */
struct ct_texts {
    const char **at;
    size_t count, room;
};

/* Take a value of an option that may be given several times. at: the row's field; option: as it was
   written, "--set"; value: "" if the option has none. CT_ECONFIG. */
typedef int ct_argument_taker(void *at, struct ct_arena *arena, const char *option,
                              const char *value);

/* kind, type of the field */
enum ct_argument_kind {
    CT_ARGUMENT_FLAG,    /* bool; has no value */
    CT_ARGUMENT_TEXT,    /* const char * */
    CT_ARGUMENT_TEXTS,   /* struct ct_texts; may be given several times */
    CT_ARGUMENT_INTEGER, /* int64_t, from min to max */
    CT_ARGUMENT_NUMBER,  /* double, from min to max */
    CT_ARGUMENT_BYTES,   /* double: "80G", "1.5e9" */
    CT_ARGUMENT_CHOICE,  /* const char *, one of choices */
    CT_ARGUMENT_TAKE,    /* any: `take` is called; may be given several times */
};

/* Fields are only ever appended. */
struct ct_argument {
    size_t size;       /* set by the macros below */
    const char *name;  /* "max-restarts": the option --max-restarts; "RECIPE": a word */
    const char *value; /* its name: "RANKS"; NULL: an option without a value, or a word */
    const char *doc;   /* one sentence, no final stop */
    enum ct_argument_kind kind;
    char letter;         /* 'n': also -n; 0: none */
    size_t offset;       /* of the field */
    double min, max;     /* of numbers; of words: how many there must and may be */
    const char *choices; /* "ls|verify" */
    ct_argument_taker *take;
};

#define CT_ARG_FLAG(T, f, name, letter, doc)                                                       \
    {                                                                                              \
        sizeof(struct ct_argument), name, NULL, doc, CT_ARGUMENT_FLAG, letter,                     \
            CT_OPT_AT(T, f, bool), 0, 0, NULL, NULL                                                \
    }
#define CT_ARG_TEXT(T, f, name, letter, value, doc)                                                \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_TEXT, letter,                    \
            CT_OPT_AT(T, f, const char *), 0, 0, NULL, NULL                                        \
    }
#define CT_ARG_TEXTS(T, f, name, letter, value, doc)                                               \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_TEXTS, letter,                   \
            CT_OPT_AT(T, f, struct ct_texts), 0, 0, NULL, NULL                                     \
    }
#define CT_ARG_INT(T, f, name, letter, value, min, max, doc)                                       \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_INTEGER, letter,                 \
            CT_OPT_AT(T, f, int64_t), min, max, NULL, NULL                                         \
    }
#define CT_ARG_FLOAT(T, f, name, letter, value, min, max, doc)                                     \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_NUMBER, letter,                  \
            CT_OPT_AT(T, f, double), min, max, NULL, NULL                                          \
    }
#define CT_ARG_BYTES(T, f, name, letter, value, doc)                                               \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_BYTES, letter,                   \
            CT_OPT_AT(T, f, double), 0, 0, NULL, NULL                                              \
    }
#define CT_ARG_CHOICE(T, f, name, letter, choices, doc)                                            \
    {                                                                                              \
        sizeof(struct ct_argument), name, choices, doc, CT_ARGUMENT_CHOICE, letter,                \
            CT_OPT_AT(T, f, const char *), 0, 0, choices, NULL                                     \
    }
/* value NULL: the option has none. */
#define CT_ARG_TAKE(T, f, name, letter, value, doc, function)                                      \
    {                                                                                              \
        sizeof(struct ct_argument), name, value, doc, CT_ARGUMENT_TAKE, letter, offsetof(T, f), 0, \
            0, NULL, function                                                                      \
    }
/* Words that stand without a dash, in the order of their rows: one that must be there, one that may
   be, one of several choices, and from least to most of them. */
#define CT_ARG_WORD(T, f, name, doc)                                                               \
    {                                                                                              \
        sizeof(struct ct_argument), name, NULL, doc, CT_ARGUMENT_TEXT, 0,                          \
            CT_OPT_AT(T, f, const char *), 1, 1, NULL, NULL                                        \
    }
#define CT_ARG_OPTIONAL(T, f, name, doc)                                                           \
    {                                                                                              \
        sizeof(struct ct_argument), name, NULL, doc, CT_ARGUMENT_TEXT, 0,                          \
            CT_OPT_AT(T, f, const char *), 0, 1, NULL, NULL                                        \
    }
#define CT_ARG_CHOSEN(T, f, name, choices, doc)                                                    \
    {                                                                                              \
        sizeof(struct ct_argument), name, NULL, doc, CT_ARGUMENT_CHOICE, 0,                        \
            CT_OPT_AT(T, f, const char *), 1, 1, choices, NULL                                     \
    }
#define CT_ARG_WORDS(T, f, name, least, most, doc)                                                 \
    {                                                                                              \
        sizeof(struct ct_argument), name, NULL, doc, CT_ARGUMENT_TEXTS, 0,                         \
            CT_OPT_AT(T, f, struct ct_texts), least, most, NULL, NULL                              \
    }

/*
 * Parse argv[1] and what follows into the struct at `into`, by a table that {0} ends. Fields of
 * arguments that are not given stay as they are. Options may stand before and behind words, as
 * "--steps 3", "--steps=3", "-n 3" or "-n3"; all behind "--" are words. The options that every verb
 * has (ct_arguments_common) are passed over. Texts are not copied. CT_ECONFIG; the message says
 * what is written wrongly and names the nearest option.
 */
CT_API int ct_arguments_parse(const struct ct_argument *table, int argc, char **argv,
                              struct ct_arena *arena, void *into);

/* The first argument that the table has no room for: an option that it does not have, or a word too
   many. Returns its index in argv, or 0. */
CT_API int ct_arguments_unknown(const struct ct_argument *table, int argc, char **argv);

/* Options that every verb has. */
struct ct_common_arguments {
    bool help, quiet, verbose;
};
CT_API extern const struct ct_argument ct_common_arguments[];
/* Find those among argv[1] and what follows. table NULL: nothing is known of the other options. */
CT_API void ct_arguments_common(const struct ct_argument *table, int argc, char **argv,
                                struct ct_common_arguments *common);

/* Whether the row is a word, not an option. */
CT_API bool ct_argument_is_word(const struct ct_argument *argument);
/* Writes a row as the usage shows it: "-n RANKS", "--json", "FOLDER", "ls|verify" unless there are
   many choices; with long_name also its other name: "-n, --ranks RANKS". */
CT_API int ct_argument_print(const struct ct_argument *argument, bool long_name, char *text,
                             size_t room);

CT_END_DECLS

#endif
