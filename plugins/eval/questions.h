/*
 * Questions, as data: JSON lines
 *
 *     {"prompt": "..", "choices": ["..", ".."], "answer": 1}
 *     {"prompt": "..", "answer": ".."}
 *
 * of one kind in a file. A prompt and a choice are encoded together; what the choice adds to the
 * tokens of the prompt is scored. White space at the end of a prompt belongs to the choice. A
 * question without choices has its answer as the only one, and the answer that the model writes is
 * compared with it.
 */
#ifndef QUESTIONS_H
#define QUESTIONS_H

#include <ctitan/model.h>

/* A sequence that is scored by its tokens from number `from` on. */
struct sequence {
    int32_t *tokens;
    int64_t count, from;
    double logp, wrong, token; /* scores.h; set by task_score */
};

struct choice {
    struct sequence whole;
    size_t bytes; /* of its text */
};

struct question {
    struct choice *choice;
    size_t count, answer;
    /* Without choices: the prompt's `given` tokens, with room for what the model writes behind
       them, and the text that is expected. */
    struct sequence *written;
    int64_t given;
    const char *expected;
};

/* The text that the model may write, and how it is compared. */
struct writing {
    int64_t tokens;   /* at most */
    const char *stop; /* text that ends an answer; "": none */
    const int32_t *ends;
    size_t ends_count;
    bool ignore_case, ignore_punctuation, ignore_numbers;
};

/* A task: the data that is scored, batch by batch. */
struct ct_data {
    struct ct_arena arena;
    const char *name, *path;
    const struct ct_tokenizer_ops *tokenizer;
    int64_t seq_len, vocabulary, limit; /* limit: of questions; 0: all */
    const struct writing *writing;
    struct question *question;
    size_t count, room;
    bool writes; /* its questions have no choices */
    int32_t *encoded;
    size_t encoded_room;

    struct ct_evaluation *evaluation;
    int64_t samples;         /* of a batch */
    int64_t sequences;       /* of those, which are scored; the others have no labels */
    struct sequence **queue; /* what is scored, `queued` of them */
    size_t queued;
    double *score; /* of a batch */
};

extern const struct ct_data_ops questions_ops;

/* Read the file. The first six fields of task are set, and writing. CT_ECONFIG: a line is no
   question. */
int questions_read(struct ct_data *task);

/* The scores of the sequences of the queue. On all ranks. */
int task_score(struct ct_data *task);
/* The model's answers to questions without choices, whose expected answers were scored: how many
   are right. On all ranks. */
int task_write(struct ct_data *task, size_t *right);
/* Whether a text that the model wrote is the expected one; part: whether it may still become it. */
bool answer_is(const struct writing *how, const char *text, size_t size, const char *expected,
               bool part);

#endif
