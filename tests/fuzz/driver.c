/*
 * driver ROUNDS FILE..: runs a target on each file, and then on mutations of them, the same in each
 * run. A file that is absent is an error. The target fails by crashing or hanging: each input is
 * kept in a file of the build while it runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/rng.h>

#define LARGEST (1u << 16)
#define SECONDS 10 /* for one input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

struct input {
    uint8_t *data;
    size_t size;
};

static struct input read_input(const char *path)
{
    FILE *in = fopen(path, "rb");
    struct input input = {malloc(LARGEST), 0};

    if (!in || !input.data) {
        perror(path);
        exit(2);
    }
    input.size = fread(input.data, 1, LARGEST, in);
    fclose(in);
    return input;
}

static void put(struct input *to, size_t at, const uint8_t *data, size_t size)
{
    if (to->size + size > LARGEST)
        return;
    memmove(to->data + at + size, to->data + at, to->size - at);
    memcpy(to->data + at, data, size);
    to->size += size;
}

static void take(struct input *to, size_t at, size_t size)
{
    size = size < to->size - at ? size : to->size - at;
    memmove(to->data + at, to->data + at + size, to->size - at - size);
    to->size -= size;
}

/* One change: of a bit, a number, or a stretch that is taken away, doubled or from another seed. */
static void change(struct input *to, const struct input *other, struct ct_philox r)
{
    static const uint32_t numbers[] = {0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
    size_t at = r.v[0] % (to->size + 1), size = 1 + r.v[1] % 32, from;

    switch (r.v[2] % 6) {
    case 0:
        if (at < to->size)
            to->data[at] ^= (uint8_t)(1u << r.v[1] % 8);
        break;
    case 1:
        if (at + 4 <= to->size)
            memcpy(to->data + at, &numbers[r.v[1] % 7], 4);
        break;
    case 2:
        take(to, at, size);
        break;
    case 3:
        take(to, at, to->size / 2);
        break;
    case 4:
        if (at + size <= to->size && to->size + size <= LARGEST) {
            uint8_t copy[32];

            memcpy(copy, to->data + at, size);
            put(to, at, copy, size);
        }
        break;
    default:
        from = r.v[3] % (other->size + 1);
        put(to, at, other->data + from, size < other->size - from ? size : other->size - from);
    }
}

static void run(const struct input *input)
{
    alarm(SECONDS);
    LLVMFuzzerTestOneInput(input->data, input->size);
    alarm(0);
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    size_t count = argc > 2 ? (size_t)argc - 2 : 0;
    struct input *seeds = calloc(count + 1, sizeof(*seeds)), input = {malloc(LARGEST), 0};

    if (!count || !seeds || !input.data || LLVMFuzzerInitialize(&argc, &argv))
        return 2;
    for (size_t i = 0; i < count; i++) {
        seeds[i] = read_input(argv[2 + i]);
        run(&seeds[i]);
    }
    for (uint64_t round = 0; round < rounds; round++) {
        const struct input *seed = &seeds[round % count];

        memcpy(input.data, seed->data, seed->size);
        input.size = seed->size;
        for (uint64_t i = 0; i < 1 + round / count % 5; i++) {
            struct ct_philox r = ct_philox(1, round, i);

            change(&input, &seeds[r.v[1] % count], r);
        }
        run(&input);
    }
    for (size_t i = 0; i < count; i++)
        free(seeds[i].data);
    free(seeds);
    free(input.data);
    return 0;
}
