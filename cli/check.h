/* Declarations that the parts of `ctitan check` share. */
#ifndef CT_CLI_CHECK_H
#define CT_CLI_CHECK_H

#include <ctitan/arena.h>
#include <ctitan/plugin.h>
#include <ctitan/verb.h>

#define CHECK_STEPS 4   /* of each run */
#define CHECK_TOKENS 16 /* of a sequence */
#define CHECK_VOCABULARY 96

struct check {
    struct ct_arena arena;
    const struct ct_plugin *plugin;
    const char *name;        /* of the plugin, as given */
    const char *path;        /* absolute, of the plugin */
    const char *const *sets; /* "section.key=value", as given and as chosen; NULL ends */
    size_t set_count, set_room;
    size_t set_given;      /* of them, the first ones: as given */
    struct ct_texts with;  /* more plugins, their names */
    double tolerance;      /* of losses and norms against a run without the plugin, relative */
    double mesh_tolerance; /* of those on meshes against one rank */
    bool quick;            /* without runs */
    bool json;             /* results as JSON */
    bool allow_untried;    /* what cannot be tried is no failure */
    char *folder;          /* of runs; NULL: not made yet */
    int passed, failed, untried;
};

/* ---- results ---- */

enum check_result_kind { CHECK_OK, CHECK_FAILED, CHECK_UNTRIED, CHECK_NOTE };
/* Results of c, which stays, are said as lines, or as one JSON object with its counts. */
void check_say_begin(const struct check *c);
bool check_says_json(void);
/* A result that c has counted. why: NULL: nothing to add. */
void check_say(enum check_result_kind kind, const char *what, const char *why);
/* End the JSON, if a result was said. */
void check_say_end(void);

/* Say and count a result. rc 0: what was shown; negative: why it failed, from the error. */
void check_result(struct check *c, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Something that cannot be tried here, why, and how it can be: the check fails unless that is
   allowed. */
void check_untried(struct check *c, const char *what, const char *why);
/* Something that needs no trial, or that another check tries. */
void check_note(const char *what, const char *why);

/* Remember what is called next: a crash of it is reported as its failure. */
void check_calling(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Catch crashes of plugins' code from now on: a failed check, with exit status 1. */
void check_catch_crashes(void);
/* Leave them to the system again: in a child, whose parent looks at how it ends. */
void check_leave_crashes(void);

bool check_offers(const struct ct_plugin *plugin, enum ct_kind kind);
/* A device that can be opened, of the plugin or of any other in the folders; NULL: there is none,
   the failure says why. */
struct ct_device *check_open_device(const char *name);

/* Checks of one offer. They say their results themselves; negative: the check itself failed. */
int check_schedule(struct check *c, const struct ct_offer *offer);
int check_data(struct check *c, const struct ct_offer *offer);
int check_tokenizer(struct check *c, const struct ct_offer *offer);
int check_lr_schedule(struct check *c, const struct ct_offer *offer);
int check_device(struct check *c, const struct ct_offer *offer);
int check_compiler(struct check *c, const struct ct_offer *offer);
int check_axis(struct check *c, const struct ct_offer *offer);
int check_verb(struct check *c, const struct ct_offer *offer);
/* Checks the declared needs. CT_EINVAL: the message says what is wrong. */
int check_needs(const struct check *c);
int check_transform(struct check *c, const struct ct_offer *offer);
int check_hook(struct check *c, const struct ct_offer *offer);

/* Train with the plugin on several meshes, and compare with one rank. */
int check_runs(struct check *c);
bool check_has_runs(const struct ct_plugin *plugin);
/* Whether they have the plugin called name, be it as another one's usual company. */
bool check_runs_load(struct check *c, const char *name);
void check_runs_finish(struct check *c);

#endif
