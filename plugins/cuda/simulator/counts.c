/* How often the simulated libraries were called. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/lib/cuda/simulator.h>

#define NAMES 1024

static struct {
    char name[80];
    long calls;
} counts[NAMES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void simulated_count(const char *format, ...)
{
    static int wanted = -1;
    char name[sizeof(counts->name)];
    va_list arguments;
    int i = 0;

    if (wanted < 0)
        wanted = getenv("SIMULATOR_COUNTS") != NULL;
    if (!wanted)
        return;
    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    while (i < NAMES - 1 && counts[i].calls && strcmp(counts[i].name, name) != 0)
        i++;
    memcpy(counts[i].name, name, sizeof(name));
    counts[i].calls++;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *folder = getenv("SIMULATOR_COUNTS"), *rank = getenv("RANK");
    char path[4096];
    FILE *file;

    if (!folder || !counts[0].calls)
        return;
    snprintf(path, sizeof(path), "%s.%s", folder, rank ? rank : "0");
    file = fopen(path, "w");
    for (int i = 0; file && i < NAMES && counts[i].calls; i++)
        fprintf(file, "%ld %s\n", counts[i].calls, counts[i].name);
    if (file)
        fclose(file);
}
