/*
 * How fast bpe encodes text, on one core.
 *
 *     build/bench/tokenizer TOKENIZER TEXT...
 *
 * The texts are joined and repeated to 8 MB. The best of five rounds counts, in CPU time. The first
 * line is a cold start: the time until the tokenizer is open.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <ctitan/error.h>

#include "../plugins/bpe/tokenizer.h"

#define BYTES ((size_t)8 << 20)
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

static int measure(struct tokenizer *t, const struct text *text)
{
    struct ids ids = {malloc(text->size * sizeof(int32_t)), 0, text->size};
    double best = 1e9;
    int rc = ids.at ? 0 : ct_fail(CT_ENOMEM, "%zu tokens", text->size);

    for (int i = 0; rc == 0 && i < ROUNDS; i++) {
        double begin = cpu_seconds();

        ids.count = 0;
        rc = tokenizer_encode(t, text->data, text->size, false, &ids);
        best = cpu_seconds() - begin < best ? cpu_seconds() - begin : best;
    }
    free(ids.at);
    if (rc == 0)
        printf("%.1f MB/s, %.1f million tokens/s, %.2f bytes a token\n",
               1e-6 * (double)text->size / best, 1e-6 * (double)ids.count / best,
               (double)text->size / (double)ids.count);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenizer tokenizer = {0};
    struct text text = {0};
    double begin = cpu_seconds();
    int rc;

    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer TOKENIZER TEXT...\n");
        return 2;
    }
    rc = tokenizer_open(&tokenizer, argv[1]);
    if (rc == 0)
        printf("open after %.3f s, %zu tokens\n", cpu_seconds() - begin,
               tokenizer.vocabulary.count);
    while (rc == 0 && text.size < BYTES)
        rc = read_texts(argv + 2, &text);
    if (rc == 0)
        rc = measure(&tokenizer, &text);
    if (rc < 0)
        fprintf(stderr, "tokenizer: %s\n", ct_error_message());
    text_finish(&text);
    tokenizer_close(&tokenizer);
    return rc < 0;
}
