#include <stdio.h>

#include "cli.h"

static const char *scaled(double value, double base, const char *const *units, char text[32])
{
    const char *const *unit = units;

    while (value >= base && unit[1]) {
        value /= base;
        unit++;
    }
    snprintf(text, 32, "%.*f %s", unit > units && value < 100 ? 2 : 0, value, *unit);
    return text;
}

const char *human_bytes(double bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL};

    return scaled(bytes, 1024, units, text);
}

const char *human_count(double count, char text[32])
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P", "E", NULL};

    return scaled(count, 1000, units, text);
}
