#include <math.h>
#include <stdio.h>

#include <ctitan/lib/rates.h>

/* "1:02:03", "02:03" */
static const char *duration(double seconds, char text[32])
{
    long long s = seconds > 0 && seconds < 1e12 ? (long long)seconds : 0;

    if (s >= 3600)
        snprintf(text, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, 32, "%02lld:%02lld", s / 60, s % 60);
    return text;
}

const char *ct_grouped(int64_t value, char text[32])
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%lld", (long long)value), used = 0;

    for (int i = 0; i < length; i++) {
        text[used++] = digits[i];
        if (digits[i] != '-' && i + 1 < length && (length - i - 1) % 3 == 0)
            text[used++] = ',';
    }
    text[used] = '\0';
    return text;
}

int ct_pace_print(const struct ct_pace *p, char *text, size_t room)
{
    double left = (double)(p->steps - p->step) * p->seconds_per_step;
    char steps[32] = "", rest[48] = "", time[32], speed[32];

    if (p->steps > 0)
        snprintf(steps, sizeof(steps), "/%lld", (long long)p->steps);
    if (p->steps > 0 && p->seconds_per_step > 0)
        snprintf(rest, sizeof(rest), ", %s left", duration(left, time));
    return snprintf(text, room, "step %lld%s  loss %.5f  %s tokens/s  %s elapsed%s",
                    (long long)p->step, steps, p->loss,
                    ct_grouped(llround(fmin(fmax(p->tokens_per_second, 0), 1e15)), speed),
                    duration(p->elapsed, time), rest);
}
