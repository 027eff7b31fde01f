/*
 * Parts of the verb `generate`: answers, which are texts that grow, where they stop, conversations,
 * and what its ranks read.
 */
#ifndef CT_CLI_GENERATE_H
#define CT_CLI_GENERATE_H

#include <ctitan/arena.h>
#include <ctitan/lib/chat.h>
#include <ctitan/run.h>

#define STOPS 64

struct stops {
    int32_t *ids;
    size_t ids_count;
    const char *texts[STOPS];
    size_t count, longest; /* of texts; bytes */
};

bool stops_have(const struct stops *stops, int32_t token);

struct answer {
    char *text;
    size_t size, room;
    size_t shown; /* bytes that have been printed */
};

/* Append text. true: a stop is in the answer now; the answer ends before it. */
bool answer_add(struct ct_arena *arena, struct answer *answer, const struct stops *stops,
                const char *text, size_t size);
/* Print what is new. While the answer goes on, this leaves out what may become a stop, and the
   bytes of a character that is not whole. CT_EIO. */
int answer_show(struct answer *answer, const struct stops *stops, bool ended);

/* The next line of standard input, without its end, on all ranks of the run; rank 0 reads it. 1; 0:
   there is none; or a failure. *line is malloc'ed, of *room bytes. */
int ranks_read_line(const struct ct_run *run, char **line, size_t *room);

struct chat {
    const struct ct_chat_format *format; /* NULL: a folder's template is run, or there is none */
    struct ct_chat_template *template;
    struct json_t *messages; /* so far, for the template */
    bool begins;             /* with the tokenizer's bos */
    int32_t end;             /* token that ends a turn; -1: unknown */
};

/* The format of the recipe's data, else the chat template of the first folder that has one.
   CT_ECONFIG: there is none, or it cannot be run. */
int chat_open(struct ct_arena *arena, const char *const *folders, size_t count,
              const struct ct_tokenizer_ops *tokenizer, struct chat *chat);
void chat_close(struct chat *chat);
/* A user's turn, and the beginning of the answer; behind the end of the former answer, unless that
   is NULL: then it is the first turn. */
int chat_turn(struct ct_arena *arena, struct chat *chat, const char *text,
              const struct answer *former, const char **turn);

#endif
