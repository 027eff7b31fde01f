#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "named.h"

int named_write(const struct ct_run *run, FILE *out)
{
    json_t *object = json_object();
    char *text;

    for (size_t i = 0; i < run->metric_count; i++)
        json_object_set_new(object, run->metrics[i].name,
                            isfinite(run->metrics[i].value) ? json_real(run->metrics[i].value)
                                                            : json_null());
    text = json_dumps(object, JSON_REAL_PRECISION(17));
    json_decref(object);
    if (!text)
        return ct_fail(CT_ENOMEM, "the metrics of a step");
    if (run->metric_count)
        fprintf(out, ", \"metrics\": %s", text);
    free(text);
    return 0;
}

void named_log(const struct ct_run *run)
{
    struct ct_arena scratch = {0};
    const char *text = "";

    for (size_t i = 0; i < run->metric_count; i++)
        text = ct_arena_printf(&scratch, "%s%s%s: %.5g", text, i ? "  " : "", run->metrics[i].name,
                               run->metrics[i].value);
    if (run->metric_count)
        ct_info("%s", text);
    ct_arena_finish(&scratch);
}
