/* The options of [text], and its data, which open.c opens. */
#ifndef TEXT_H
#define TEXT_H

#include "chat.h"
#include "mixture.h"
#include "source.h"

struct text_config {
    const char *path, *command, *command_key, *validation_path, *weights, *field, *cache, *spool,
        *fields, *date;
    enum { TEMPLATE_AUTO, TEMPLATE_FOLDER, TEMPLATE_CHATML, TEMPLATE_LLAMA3 } template;
    enum { TEXT_STOP, TEXT_SKIP } malformed;
    unsigned split, format, packing, too_long, document_mask, train_on;
    int64_t packing_window;
    bool any_template, repeat, shuffle, label_weights, per_sequence, balance;
    double validation_fraction;
};
extern struct text_config text_config;

struct ct_data {
    struct source *sources;
    size_t count;
    int64_t vocabulary;
    int64_t seq_len;
    int32_t *spare; /* tokens and labels of a sample that nobody takes */
    struct ct_arena arena;
    struct chat_request chat;
    struct mixture mixture; /* if count > 1 */
    int64_t end;            /* the first sample that the mixture lacks */
};

/* Whether only a part of the tokens is trained on. */
bool text_is_labelled(void);
bool text_has_messages(void);
bool text_has_documents(void);
enum packing_how text_packing(void);
/* CT_ECONFIG: an option is set that the others leave no effect. */
int text_check_use(void);
/* Whether the chat template of the model's folder writes conversations. */
bool text_runs_template(void);
/* The table in which conversations are written; NULL: the folder's template writes them. */
const char *text_format(void);

/* set: NULL: of the options' own data. */
int text_open_set(const struct ct_data_request *request, const struct ct_validation_set *set,
                  struct ct_data **data);
int text_open(const struct ct_data_request *request, struct ct_data **data);
void text_close(struct ct_data *data);
/* Samples of an epoch. */
int64_t text_samples(const struct ct_data *data);

#endif
