/* See tuning.h. */
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/lib/facts.h>
#include <ctitan/log.h>

#include "tuning.h"

#define LINE 160
#define KERNELS 11 /* rises when own kernels, or how they are timed, change: old facts are wrong */

static bool identifies(const char *line, const char *colon)
{
    static const char *const keys[] = {"cpu family", "model", "model name"};

    for (size_t i = 0; i < CT_COUNT(keys); i++)
        if (strcspn(line, "\t:") == strlen(keys[i]) && !strncmp(line, keys[i], strlen(keys[i])))
            return colon != NULL;
    return false;
}

/* "25-17-amd-epyc": virtual machines give processors of several kinds one name. */
static void processor(char *text, size_t size)
{
    FILE *in = fopen("/proc/cpuinfo", "r");
    char line[LINE];
    size_t n = 0;

    *text = '\0';
    while (in && fgets(line, sizeof(line), in) && *line != '\n') {
        const char *colon = strchr(line, ':');

        if (identifies(line, colon))
            n = ct_facts_name(text, n, size, colon + 1);
    }
    if (in)
        fclose(in);
    while (n && text[n - 1] == '-')
        text[--n] = '\0';
    if (!n)
        ct_facts_name(text, 0, size, "unknown");
}

static bool is_speed(const char *value)
{
    char *end;
    double x = strtod(value, &end);

    return end > value && !*end && x > 0 && isfinite(x);
}

/* Facts of this processor, this oneDNN and these kernels; NULL: out of memory. */
static struct ct_facts *facts_here(void)
{
    static struct ct_facts *facts;
    const dnnl_version_t *v = dnnl_version();
    char file[LINE + 64], model[LINE];

    if (facts)
        return facts;
    processor(model, sizeof(model));
    snprintf(file, sizeof(file), "%s-onednn-%d.%d.%d-kernels-%d.txt", model, v->major, v->minor,
             v->patch, KERNELS);
    return facts = ct_facts_create("cpu", file, is_speed);
}

struct question {
    const char *name;
    double (*measure)(void *context);
    void *context;
};

static int measure_speed(void *context, char value[CT_FACT_ROOM])
{
    const struct question *q = context;
    double speed = q->measure(q->context);

    snprintf(value, CT_FACT_ROOM, "%.4g", speed);
    if (speed < 0)
        ct_warn("cpu: the speed %s cannot be measured (out of memory?); this process takes the "
                "default",
                q->name);
    return speed < 0 ? -1 : 0;
}

double cpu_tuned(const char *name, double (*measure)(void *context), void *context)
{
    struct ct_facts *facts = ct_config.deterministic ? NULL : facts_here();
    const char *value =
        facts ? ct_fact(facts, name, measure_speed, &(struct question){name, measure, context})
              : NULL;

    return value ? strtod(value, NULL) : -1;
}
