#include <stdarg.h>
#include <string.h>

#include <ctitan/error.h>

#include "ir/faults.h"

void ct_fault(struct ct_faults *f, const char *fmt, ...)
{
    char line[sizeof(f->first)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (f->report)
        fprintf(f->report, "%s\n", line);
    if (f->count++ == 0)
        memcpy(f->first, line, sizeof(line));
}

int ct_faults_end(const struct ct_faults *f)
{
    return f->count ? ct_fail(CT_EINVAL, "%s%s", f->first, f->count > 1 ? " (and more)" : "") : 0;
}
