/*
 * `ctitan tokenize`: text from stdin, as token ids.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/verb.h>

#include "bpe.h"

struct request {
    struct ct_arena arena;
    const char *tokenizer, *output;
    bool special;
};

static const struct ct_argument arguments[] = {
    CT_ARG_TEXT(struct request, tokenizer, "tokenizer", 0, "FILE_OR_FOLDER",
                "tokenizer.json, tokenizer.model or their folder; required"),
    CT_ARG_FLAG(struct request, special, "special", 0, "Read <|..|> as special tokens"),
    CT_ARG_TEXT(struct request, output, "output", 0, "FILE",
                "Write the ids there as uint32, as [tokens] path reads them"),
    {0}};

static int parse(int argc, char **argv, struct request *r)
{
    int rc = ct_arguments_parse(arguments, argc, argv, &r->arena, r);

    if (rc < 0 || r->tokenizer)
        return rc;
    return ct_fail(CT_ECONFIG, "tokenize: --tokenizer FILE_OR_FOLDER is missing; give "
                               "tokenizer.json, tokenizer.model or their folder");
}

static int read_all(struct text *text)
{
    char buffer[65536];
    ssize_t got;
    int rc = 0;

    while (rc == 0 && (got = read(STDIN_FILENO, buffer, sizeof(buffer))) != 0) {
        if (got > 0)
            rc = text_append(text, buffer, (size_t)got);
        else if (errno != EINTR)
            rc = ct_fail(CT_EIO, "stdin: %s", strerror(errno));
    }
    return rc;
}

/* Text seldom has more tokens than a third of its bytes; if it has, it is encoded again. */
static int encode_all(struct tokenizer *t, const struct text *text, bool special, struct ids *ids)
{
    size_t room = text->size / 3 + 64;
    int rc;

    do {
        free(ids->at);
        *ids = (struct ids){malloc(room * sizeof(*ids->at)), 0, room, NULL};
        if (!ids->at)
            return ct_fail(CT_ENOMEM, "%zu tokens", room);
        rc = tokenizer_encode(t, text->data, text->size, special, ids);
        room = ids->count;
    } while (rc == 0 && ids->count > ids->room);
    return rc;
}

static int write_ids(const struct ids *ids, const char *output)
{
    struct ct_new_file file;
    bool failed = false;
    int rc;

    if (!output) {
        for (size_t i = 0; i < ids->count; i++)
            printf("%d\n", (int)ids->at[i]);
        return 0; /* main reports what stdout did not take */
    }
    rc = ct_file_begin(&file, output);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ids->count; i++) {
        uint32_t id = htole32((uint32_t)ids->at[i]);

        failed |= fwrite(&id, sizeof(id), 1, file.out) != 1;
    }
    return ct_file_end(&file, failed ? ct_fail(CT_EIO, "%s: %s", output, strerror(errno)) : 0);
}

static int run(int argc, char **argv)
{
    struct request r = {0};
    struct tokenizer tokenizer = {0};
    struct text text = {0};
    struct ids ids = {0};
    int rc = parse(argc, argv, &r);

    if (rc == 0)
        rc = tokenizer_open(&tokenizer, r.tokenizer);
    if (rc == 0)
        rc = read_all(&text);
    if (rc == 0)
        rc = encode_all(&tokenizer, &text, r.special, &ids);
    if (rc == 0)
        rc = write_ids(&ids, r.output);
    free(ids.at);
    text_finish(&text);
    tokenizer_close(&tokenizer);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct ct_verb_ops tokenize_verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "convert text from standard input to token ids",
    .run = run,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan tokenize --tokenizer model < book.txt",
                         "ctitan tokenize --tokenizer model --output tokens.bin < book.txt")};
