/*
 * --until and [training] stop_after: the time at which a run ends. The first process of a job sets
 * it for all others, and for those that start the job again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ctitan/config.h>
#include <ctitan/error.h>

#include "cli.h"

#define UNTIL "CTITAN_UNTIL" /* seconds since 1970, for processes of the job */

/* "14:30": the next time that clocks show that here. */
static time_t next_time_of_day(int hour, int minute)
{
    time_t now = time(NULL), then;
    struct tm day;

    localtime_r(&now, &day);
    day.tm_hour = hour;
    day.tm_min = minute;
    day.tm_sec = 0;
    day.tm_isdst = -1;
    then = mktime(&day);
    if (then <= now) {
        day.tm_mday++;
        day.tm_isdst = -1;
        then = mktime(&day);
    }
    return then;
}

static int read_time(const char *option, const char *text, time_t *then)
{
    char unit = '\0', rest = '\0';
    double amount;
    int hour, minute;

    if (sscanf(text, "%2d:%2d%c", &hour, &minute, &rest) == 2 && hour >= 0 && hour < 24 &&
        minute >= 0 && minute < 60) {
        *then = next_time_of_day(hour, minute);
        return 0;
    }
    if (sscanf(text, "+%lf%c%c", &amount, &unit, &rest) == 2 && amount >= 0 && amount < 1e6 &&
        unit && strchr("smhd", unit)) {
        double seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 86400;

        *then = time(NULL) + (time_t)(amount * seconds);
        return 0;
    }
    return ct_fail(CT_ECONFIG,
                   "%s %s: expected a time like 14:30, or how long from now like +90m (s, m, h or "
                   "d)",
                   option, text);
}

static int set(const char *option, const char *text)
{
    char number[32];
    time_t then = 0;
    int rc;

    if (!text || !*text || getenv(UNTIL))
        return 0;
    rc = read_time(option, text, &then);
    if (rc < 0)
        return rc;
    snprintf(number, sizeof(number), "%lld", (long long)then);
    setenv(UNTIL, number, 1);
    return 0;
}

int until_set(const char *text)
{
    int rc = set("--until", text);

    return rc < 0 ? rc : set("[training] stop_after =", ct_config.stop_after);
}

bool until_passed(void)
{
    const char *text = getenv(UNTIL);

    return text && (long long)time(NULL) >= strtoll(text, NULL, 10);
}
