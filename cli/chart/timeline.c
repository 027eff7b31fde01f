#include <math.h>
#include <stdio.h>
#include <string.h>

#include "axes.h"

#define ROW 24.0
#define THINNEST 0.4 /* of a box that is drawn */
#define DIGIT 6.5    /* about the width of one in a box */

static int colour_of(const struct ct_chart_timeline *c, int kind)
{
    return (c->colour ? c->colour[kind] : kind) % CT_CHART_COLOURS;
}

static void draw_span(const struct ct_chart_timeline *c, const struct axes *a,
                      const struct ct_chart_span *s)
{
    double x = axes_x(a, s->start), width = axes_x(a, s->end) - x, y = a->top + ROW * s->row;

    fprintf(a->out, "<rect class='mark s%d%s' x='%.2f' y='%.1f' width='%.2f' height='%.1f'><title>",
            colour_of(c, s->kind), s->faint ? " faint" : "", x, y + 2, fmax(width, THINNEST),
            ROW - 4);
    ct_chart_escape(s->label, a->out);
    fputs("</title></rect>\n", a->out);
    if (s->text && width > 4 + DIGIT * (double)strlen(s->text)) {
        fprintf(a->out, "<text class='in%s' x='%.2f' y='%.1f'>", s->faint ? " faintly" : "",
                x + width / 2, y + ROW / 2 + 4);
        ct_chart_escape(s->text, a->out);
        fputs("</text>\n", a->out);
    }
}

void ct_chart_timeline(const struct ct_chart_timeline *c, FILE *out)
{
    struct axes a = {.width = c->width > 0 ? c->width + ROW_NAMES + RIGHT
                              : c->narrow  ? NARROW
                                           : WIDTH,
                     .left = ROW_NAMES,
                     .narrow = c->narrow,
                     .file = c->file,
                     .x_to = c->end > 0 ? c->end : 1,
                     .out = out};

    a.top = axes_open(&a, c->title, c->kind, c->colour, (size_t)c->kinds,
                      ROW * c->rows + (c->file ? 66 : 44));
    a.bottom = a.top + ROW * c->rows;
    axes_x_ticks(&a, c->x_name);
    for (int row = 0; row < c->rows; row++) {
        fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='end'>", a.left - 6,
                a.top + ROW * row + ROW / 2 + 4);
        ct_chart_escape(c->row[row], out);
        fputs("</text>\n", out);
    }
    for (size_t i = 0; i < c->count; i++)
        draw_span(c, &a, &c->span[i]);
    if (c->file) {
        fprintf(out, "<text x='%.1f' y='%.1f'>", a.left, a.bottom + 52);
        ct_chart_escape(c->title, out);
        fputs("</text>\n", out);
    }
    axes_close(&a);
}
