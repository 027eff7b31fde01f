#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "axes.h"

#define HEIGHT 260.0
#define POINTS 2000 /* drawn of a series, at most */
#define MARKS 120
#define Y_TICKS 6
#define BROAD_LEFT 84.0 /* of the plot */
#define NARROW_LEFT 68.0

static void include(double value, double *from, double *to)
{
    if (!isfinite(value))
        return;
    *from = fmin(*from, value);
    *to = fmax(*to, value);
}

/* The sum of the first series up to and with `last`, at point n. */
static double stacked(const struct ct_chart *c, size_t last, size_t n)
{
    double sum = 0;

    for (size_t s = 0; s <= last; s++)
        sum += c->series[s].y[n];
    return sum;
}

/* false: there is nothing to draw. */
static bool find_ranges(const struct ct_chart *c, bool stack, struct axes *a)
{
    a->x_from = a->y_from = INFINITY;
    a->x_to = a->y_to = -INFINITY;
    a->x_whole = true;
    for (size_t s = 0; s < c->count; s++)
        for (size_t n = 0; n < c->series[s].count; n++) {
            include(c->series[s].x[n], &a->x_from, &a->x_to);
            a->x_whole &= c->series[s].x[n] == floor(c->series[s].x[n]);
            include(stack ? stacked(c, s, n) : c->series[s].y[n], &a->y_from, &a->y_to);
        }
    if (!isfinite(a->x_from) || !isfinite(a->y_from))
        return false;
    if (c->from_zero || stack)
        include(0, &a->y_from, &a->y_to);
    a->y_step = axes_round(&a->y_from, &a->y_to, Y_TICKS);
    if (!(a->x_to > a->x_from))
        a->x_to = a->x_from + 1;
    return true;
}

static bool begin(const struct ct_chart *c, bool stack, struct axes *a, FILE *out)
{
    const char **name = calloc(c->count + 1, sizeof(*name));

    *a = (struct axes){.width = c->narrow ? NARROW : WIDTH,
                       .left = c->narrow ? NARROW_LEFT : BROAD_LEFT,
                       .narrow = c->narrow,
                       .print = c->print,
                       .out = out};
    if (!name || !find_ranges(c, stack, a)) {
        free(name);
        fputs("<p>Nothing was logged.</p>\n", out);
        return false;
    }
    for (size_t s = 0; s < c->count; s++)
        name[s] = c->series[s].name;
    a->left = fmax(a->left, axes_y_width(a));
    a->top = axes_open(a, c->title, name, NULL, c->count, HEIGHT + 40);
    a->bottom = a->top + HEIGHT;
    free(name);
    axes_y_ticks(a, c->y_name);
    axes_x_ticks(a, c->x_name);
    return true;
}

static size_t stride(size_t count)
{
    return count / POINTS + 1;
}

/* ---- marks ---- */

/* The point of a series at x; SIZE_MAX: none. */
static size_t find(const struct ct_chart_series *s, double x)
{
    for (size_t n = 0; n < s->count; n++)
        if (s->x[n] == x)
            return n;
    return SIZE_MAX;
}

/* The same; of dots, which lie between the marks, the last one after `before`. */
static size_t find_since(const struct ct_chart_series *s, double before, double x)
{
    size_t found = SIZE_MAX;

    if (!s->dots)
        return find(s, x);
    for (size_t n = 0; n < s->count; n++)
        if (s->x[n] > before && s->x[n] <= x)
            found = n;
    return found;
}

static void say(const struct ct_chart *c, double before, double x, FILE *out)
{
    const char *between = ":";
    char text[32];

    fputs("<title>", out);
    ct_chart_escape(c->x_name, out);
    fprintf(out, " %s", axes_number(x, text));
    for (size_t s = 0; s < c->count; s++) {
        size_t n = find_since(&c->series[s], before, x);

        if (n == SIZE_MAX || !isfinite(c->series[s].y[n]))
            continue;
        fprintf(out, "%s ", between);
        ct_chart_escape(c->series[s].name, out);
        fprintf(out, " %s", (c->print ? c->print : axes_number)(c->series[s].y[n], text));
        between = ",";
    }
    for (size_t i = 0; i < c->notes; i++)
        if (c->note[i].x >= before && c->note[i].x < x) {
            fputs("; ", out);
            ct_chart_escape(c->note[i].text, out);
        }
    fputs("</title>", out);
}

static void mark(const struct ct_chart *c, const struct axes *a, double before, double x,
                 double width, bool stack)
{
    double at = axes_x(a, x);

    fputs("<g class='mark'>", a->out);
    say(c, before, x, a->out);
    fprintf(a->out,
            "<rect class='hit' x='%.1f' y='%.1f' width='%.1f' height='%.1f'/>"
            "<line class='at' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>",
            at - width / 2, a->top, width, a->bottom - a->top, at, at, a->top, a->bottom);
    for (size_t s = 0; s < c->count; s++) {
        size_t n = find(&c->series[s], x);

        if (n == SIZE_MAX || !isfinite(c->series[s].y[n]))
            continue;
        fprintf(a->out, "<circle class='s%zu' cx='%.1f' cy='%.1f' r='4'/>", s % CT_CHART_COLOURS,
                at, axes_y(a, stack ? stacked(c, s, n) : c->series[s].y[n]));
    }
    fputs("</g>\n", a->out);
}

/* At points of the series that has most. */
static void draw_marks(const struct ct_chart *c, const struct axes *a, bool stack)
{
    const struct ct_chart_series *most = &c->series[0];
    size_t every;

    for (size_t s = 1; s < c->count; s++)
        if (c->series[s].count > most->count)
            most = &c->series[s];
    every = most->count / MARKS + 1;
    for (size_t n = 0; n < most->count; n += every)
        mark(c, a, n ? most->x[n - every] : -INFINITY, most->x[n],
             (a->width - a->left - RIGHT) * (double)every /
                 (double)(most->count > 1 ? most->count : 1),
             stack);
}

/* ---- lines ---- */

static void draw_line(const struct ct_chart_series *s, size_t colour, const struct axes *a)
{
    bool pen = false;
    size_t drawn = 0;

    fprintf(a->out, "<path class='line s%zu' d='", colour % CT_CHART_COLOURS);
    for (size_t n = 0; n < s->count; n += stride(s->count)) {
        if (!isfinite(s->y[n])) {
            pen = false;
            continue;
        }
        fprintf(a->out, "%s%.1f %.1f", pen ? "L" : "M", axes_x(a, s->x[n]), axes_y(a, s->y[n]));
        pen = true;
        drawn++;
    }
    fputs("'/>\n", a->out);
    for (size_t n = 0; n < s->count && (s->dots || drawn == 1); n += stride(s->count))
        if (isfinite(s->y[n]))
            fprintf(a->out, "<circle class='s%zu' cx='%.1f' cy='%.1f' r='3.5'/>\n",
                    colour % CT_CHART_COLOURS, axes_x(a, s->x[n]), axes_y(a, s->y[n]));
}

static void draw_notes(const struct ct_chart *c, const struct axes *a)
{
    for (size_t i = 0; i < c->notes; i++)
        if (c->note[i].x >= a->x_from && c->note[i].x <= a->x_to)
            fprintf(a->out,
                    "<line class='note line s%d' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>\n",
                    c->note[i].series % CT_CHART_COLOURS, axes_x(a, c->note[i].x),
                    axes_x(a, c->note[i].x), a->top, a->bottom);
}

void ct_chart_lines(const struct ct_chart *chart, FILE *out)
{
    struct axes a;

    if (!begin(chart, false, &a, out))
        return;
    for (size_t s = 0; s < chart->count; s++)
        draw_line(&chart->series[s], s, &a);
    draw_notes(chart, &a);
    draw_marks(chart, &a, false);
    axes_close(&a);
}

/* ---- areas ---- */

static void draw_area(const struct ct_chart *c, size_t s, const struct axes *a)
{
    size_t count = c->series[0].count;

    fprintf(a->out, "<path class='s%zu' d='", s % CT_CHART_COLOURS);
    for (size_t n = 0; n < count; n++)
        fprintf(a->out, "%s%.1f %.1f", n ? "L" : "M", axes_x(a, c->series[0].x[n]),
                axes_y(a, stacked(c, s, n)));
    for (size_t n = count; n-- > 0;)
        fprintf(a->out, "L%.1f %.1f", axes_x(a, c->series[0].x[n]),
                axes_y(a, s ? stacked(c, s - 1, n) : 0));
    fputs("Z'/>\n", a->out);
}

void ct_chart_areas(const struct ct_chart *chart, FILE *out)
{
    struct axes a;

    if (!begin(chart, true, &a, out))
        return;
    for (size_t s = 0; s < chart->count; s++)
        draw_area(chart, s, &a);
    draw_marks(chart, &a, true);
    axes_close(&a);
}
