/* A team of the cpu plugin whose threads run one after the other, the last one first, or all at
   once: no result may depend on who runs when. */
#ifndef TESTS_PRODUCTS_TEAM_H
#define TESTS_PRODUCTS_TEAM_H

#include "cpu.h"

static int threads = 1;
static bool at_once;

int cpu_threads(void)
{
    return threads;
}

void cpu_parallel(void (*body)(void *context, int thread, int threads), void *context)
{
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (at_once)
    for (int i = threads - 1; i >= 0; i--)
        body(context, i, threads);
}

#endif
