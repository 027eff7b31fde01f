/*
 * `ctitan tokenize`: text from stdin, as token ids.
 */
#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>

#include "bpe.h"

enum { TOKENIZER = 256, SPECIAL, OUTPUT };

struct request {
    const char *tokenizer, *output;
    bool special;
};

static const struct option options[] = {{"tokenizer", required_argument, NULL, TOKENIZER},
                                        {"special", no_argument, NULL, SPECIAL},
                                        {"output", required_argument, NULL, OUTPUT},
                                        {0}};

static int parse(int argc, char **argv, struct request *r)
{
    int option;

    optind = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == TOKENIZER)
            r->tokenizer = optarg;
        else if (option == OUTPUT)
            r->output = optarg;
        else if (option == SPECIAL)
            r->special = true;
        else
            return ct_fail(CT_ECONFIG, "`ctitan help tokenize` shows the arguments");
    }
    if (optind < argc)
        return ct_fail(CT_ECONFIG,
                       "'%s': tokenize takes no file; it reads the text from standard input",
                       argv[optind]);
    return r->tokenizer ? 0
                        : ct_fail(CT_ECONFIG, "--tokenizer FILE_OR_FOLDER is missing; give "
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
    return rc;
}

const struct ct_verb_ops tokenize_verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "convert text to token ids",
    .usage = "--tokenizer FILE_OR_FOLDER [--special] [--output FILE] < TEXT > IDS",
    .run = run};
