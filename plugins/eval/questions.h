/*
 * Questions with answers to choose from, as data: JSON lines
 *
 *     {"prompt": "..", "choices": ["..", ".."], "answer": 1}
 *
 * A prompt and a choice are encoded together; what the choice adds to the tokens of the prompt is
 * scored. White space at the end of a prompt belongs to the choice.
 */
#ifndef QUESTIONS_H
#define QUESTIONS_H

#include <ctitan/model.h>

struct choice {
    int32_t *tokens; /* of the sequence */
    int64_t count, prompt;
    size_t bytes; /* of its text */
    double logp;  /* sum over its tokens; set by whoever scores it */
};

struct question {
    struct choice *choice;
    size_t count, answer;
};

/* A task: the data that is scored, batch by batch. */
struct ct_data {
    struct ct_arena arena;
    const char *name, *path;
    const struct ct_tokenizer_ops *tokenizer;
    int64_t seq_len, vocabulary;
    int64_t samples; /* of a batch: the first is a choice, and the others have no labels */
    struct question *question;
    size_t count, room;
    struct choice **all; /* in order */
    size_t choices;
    struct ct_evaluation *evaluation;
};

extern const struct ct_data_ops questions_ops;

/* Read the file, `limit` questions of it; 0: all. task->tokenizer, path, seq_len and vocabulary are
   set. CT_ECONFIG: a line is no question. */
int questions_read(struct ct_data *task, int64_t limit);

#endif
