#include <math.h>
#include <stdio.h>

#include "axes.h"

#define ROW 24.0
#define THINNEST 0.4 /* of a box that is drawn */

void ct_chart_timeline(const struct ct_chart_timeline *c, FILE *out)
{
    struct axes a = {.x_to = c->end > 0 ? c->end : 1, .out = out};

    a.top = axes_open(c->title, c->kind, (size_t)c->kinds, ROW * c->rows + 44, out);
    a.bottom = a.top + ROW * c->rows;
    axes_x_ticks(&a, c->x_name);
    for (int row = 0; row < c->rows; row++) {
        fprintf(out, "<text x='%.1f' y='%.1f' text-anchor='end'>", LEFT - 6,
                a.top + ROW * row + ROW / 2 + 4);
        ct_chart_escape(c->row[row], out);
        fputs("</text>\n", out);
    }
    for (size_t i = 0; i < c->count; i++) {
        const struct ct_chart_span *s = &c->span[i];
        double x = axes_x(&a, s->start), width = axes_x(&a, s->end) - x;

        fprintf(out, "<rect class='mark s%d' x='%.2f' y='%.1f' width='%.2f' height='%.1f'><title>",
                s->kind % CT_CHART_COLOURS, x, a.top + ROW * s->row + 2, fmax(width, THINNEST),
                ROW - 4);
        ct_chart_escape(s->label, out);
        fputs("</title></rect>\n", out);
    }
    axes_close(out);
}
