/*
 * The mean of scales. Double quantisation takes it off first, so its last bit shows in codes: it is
 * computed in the order of torch's sum (aten/src/ATen/native/cpu/SumKernel.cpp): LANES sums side by
 * side, each of ROWS, each in LEVELS that are added to the next when they are full.
 */
#include <string.h>

#include "qlora.h"

#define LANES 8
#define ROWS 4
#define LEVELS 4

struct sums {
    float at[ROWS][LANES];
};

static void add(struct sums *to, const struct sums *from)
{
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < LANES; i++)
            to->at[r][i] += from->at[r][i];
}

static void add_numbers(struct sums *to, const float *x, int lanes)
{
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < lanes; i++)
            to->at[r][i] += x[r * lanes + i];
}

static int power_of(int64_t size)
{
    int log = 0;

    while ((int64_t)1 << log < size)
        log++;
    return log / LEVELS > 4 ? log / LEVELS : 4;
}

/* Sums of size times ROWS vectors. */
static struct sums add_levels(const float *x, int64_t size, int lanes)
{
    struct sums level[LEVELS] = {0};
    int power = power_of(size);
    int64_t step = (int64_t)1 << power, i = 0;

    while (i + step <= size) {
        for (int64_t k = 0; k < step; k++, i++)
            add_numbers(&level[0], x + i * ROWS * lanes, lanes);
        for (int j = 1; j < LEVELS; j++) {
            add(&level[j], &level[j - 1]);
            memset(&level[j - 1], 0, sizeof(level[j - 1]));
            if (i & (step - 1) << j * power)
                break;
        }
    }
    for (; i < size; i++)
        add_numbers(&level[0], x + i * ROWS * lanes, lanes);
    for (int j = 1; j < LEVELS; j++)
        add(&level[0], &level[j]);
    return level[0];
}

float qlora_mean(const float *x, int64_t n)
{
    int lanes = n < LANES ? 1 : LANES;
    int64_t vectors = n / lanes, size = vectors / ROWS;
    struct sums s = add_levels(x, size, lanes);
    float sum = 0;

    for (int64_t v = size * ROWS; v < vectors; v++)
        for (int i = 0; i < lanes; i++)
            s.at[0][i] += x[v * lanes + i];
    for (int r = 1; r < ROWS; r++)
        for (int i = 0; i < lanes; i++)
            s.at[0][i] += s.at[r][i];
    for (int64_t i = vectors * lanes; i < n; i++)
        sum += x[i];
    for (int i = 0; i < lanes; i++)
        sum += s.at[0][i];
    return sum / (float)n;
}
