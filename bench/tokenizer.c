/*
 * How fast bpe encodes text, on one core.
 *
 *     build/bench/tokenizer TOKENIZER TEXT...
 *
 * Prints the time until the tokenizer is open, and two rates of the texts joined: of a tokenizer
 * that has seen none of them, and of one that has. A tokenizer keeps the parts of words that it has
 * encoded, so a corpus is encoded at the first rate; give some MB of text that do not repeat. The
 * best of five rounds counts, in CPU time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <ctitan/error.h>

#include "../plugins/bpe/tokenizer.h"

#define ROUNDS 5

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int read_texts(char **paths, struct text *text)
{
    char buffer[65536];
    size_t got;
    int rc = 0;

    for (char **path = paths; rc == 0 && *path; path++) {
        FILE *in = fopen(*path, "rb");

        if (!in)
            return ct_fail(CT_ENOENT, "%s", *path);
        while (rc == 0 && (got = fread(buffer, 1, sizeof(buffer), in)) > 0)
            rc = text_append(text, buffer, got);
        fclose(in);
    }
    return rc < 0 || text->size ? rc : ct_fail(CT_EINVAL, "no text");
}

/* The shortest time of opening, and of encoding for the first and the second time. */
struct times {
    double open, encode[2];
};

static void shorten(double *best, double begin)
{
    double seconds = cpu_seconds() - begin;

    if (*best == 0 || seconds < *best)
        *best = seconds;
}

static int measure(const char *path, const struct text *text, struct ids *ids, struct times *times)
{
    struct tokenizer tokenizer = {0};
    double begin = cpu_seconds();
    int rc = tokenizer_open(&tokenizer, path);

    shorten(&times->open, begin);
    for (int i = 0; rc == 0 && i < 2; i++) {
        ids->count = 0;
        begin = cpu_seconds();
        rc = tokenizer_encode(&tokenizer, text->data, text->size, false, ids);
        shorten(&times->encode[i], begin);
    }
    tokenizer_close(&tokenizer);
    return rc;
}

static void report(const struct text *text, const struct ids *ids, const struct times *times)
{
    static const char *const names[] = {"new text", "known text"};
    double bytes = (double)text->size, tokens = (double)ids->count;

    printf("open after %.3f s; %.1f MB of text, %.2f bytes a token\n", times->open, 1e-6 * bytes,
           bytes / tokens);
    for (int i = 0; i < 2; i++)
        printf("%-12s %6.1f MB/s, %.1f million tokens/s\n", names[i],
               1e-6 * bytes / times->encode[i], 1e-6 * tokens / times->encode[i]);
}

int main(int argc, char **argv)
{
    struct text text = {0};
    struct times times = {0};
    struct ids ids = {0};
    int rc;

    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer TOKENIZER TEXT...\n");
        return 2;
    }
    rc = read_texts(argv + 2, &text);
    ids = (struct ids){malloc(text.size * sizeof(int32_t) + 1), 0, text.size};
    for (int i = 0; rc == 0 && i < ROUNDS; i++)
        rc = ids.at ? measure(argv[1], &text, &ids, &times)
                    : ct_fail(CT_ENOMEM, "%zu tokens", text.size);
    if (rc == 0)
        report(&text, &ids, &times);
    if (rc < 0)
        fprintf(stderr, "tokenizer: %s\n", ct_error_message());
    free(ids.at);
    text_finish(&text);
    return rc < 0;
}
