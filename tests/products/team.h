/* A team of the cpu plugin whose threads run one after the other, the last one first: no result may
   depend on who runs when. */
#ifndef TESTS_PRODUCTS_TEAM_H
#define TESTS_PRODUCTS_TEAM_H

#include "cpu.h"

static int threads = 1;

int cpu_threads(void)
{
    return threads;
}

void cpu_parallel(void (*body)(void *context, int thread, int threads), void *context)
{
    for (int i = threads - 1; i >= 0; i--)
        body(context, i, threads);
}

#endif
