#include <math.h>
#include <stdio.h>
#include <string.h>

#include "axes.h"

#define ROW 24.0
#define THINNEST 0.4 /* of a box that is drawn */
#define DIGIT 6.5    /* about the width of one in a box */
#define LINE 18.0    /* of the title below */
#define LEAST 900.0  /* pixels of a drawing whose boxes have no text, where the window is small */

static int colour_of(const struct ct_chart_timeline *c, int kind)
{
    return (c->colour ? c->colour[kind] : kind) % CT_CHART_COLOURS;
}

static void draw_span(const struct ct_chart_timeline *c, const struct axes *a,
                      const struct ct_chart_span *s)
{
    double x = axes_x(a, s->start), width = axes_x(a, s->end) - x, y = a->top + ROW * s->row;

    if (a->file && a->narrow) { /* no mouse shows a title there */
        fprintf(a->out, "<rect class='s%d%s' x='%.1f' y='%.0f' width='%.1f' height='%.0f'/>\n",
                colour_of(c, s->kind), s->faint ? " faint" : "", x, y + 2, fmax(width, THINNEST),
                ROW - 4);
        return;
    }
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

static struct axes axes_of(const struct ct_chart_timeline *c, bool narrow, FILE *out)
{
    return (struct axes){.width = narrow         ? NARROW
                                  : c->width > 0 ? c->width + ROW_NAMES + RIGHT
                                                 : WIDTH,
                         .left = ROW_NAMES,
                         .narrow = narrow,
                         .file = c->file,
                         .x_to = c->end > 0 ? c->end : 1,
                         .out = out};
}

static double height_below_legend(const struct ct_chart_timeline *c, const struct axes *a)
{
    return ROW * c->rows + 44 + (c->file ? 4 + LINE * axes_text(a, c->title, 0, false) : 0);
}

static void draw(const struct ct_chart_timeline *c, struct axes *a)
{
    a->top =
        axes_open(a, c->title, c->kind, c->colour, (size_t)c->kinds, height_below_legend(c, a));
    a->bottom = a->top + ROW * c->rows;
    axes_x_ticks(a, c->x_name);
    for (int row = 0; row < c->rows; row++) {
        fprintf(a->out, "<text x='%.1f' y='%.1f' text-anchor='end'>", a->left - 6,
                a->top + ROW * row + ROW / 2 + 4);
        ct_chart_escape(c->row[row], a->out);
        fputs("</text>\n", a->out);
    }
    for (size_t i = 0; i < c->count; i++)
        draw_span(c, a, &c->span[i]);
    if (c->file)
        axes_text(a, c->title, a->bottom + 52, true);
    axes_close(a);
}

static double height_of(const struct ct_chart_timeline *c, const struct axes *a)
{
    return axes_height(a, c->kind, (size_t)c->kinds, height_below_legend(c, a));
}

static bool has_texts(const struct ct_chart_timeline *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->span[i].text)
            return true;
    return false;
}

static void draw_file(const struct ct_chart_timeline *c, FILE *out)
{
    struct axes broad = axes_of(c, false, out), narrow = axes_of(c, true, out);
    double least = has_texts(c) ? broad.width : fmin(broad.width, LEAST);

    axes_open_file(&broad, height_of(c, &broad), &narrow, height_of(c, &narrow), least, c->title);
    draw(c, &broad);
    draw(c, &narrow);
    fputs("</svg>\n", out);
}

void ct_chart_timeline(const struct ct_chart_timeline *c, FILE *out)
{
    struct axes a = axes_of(c, c->narrow, out);

    if (c->file)
        draw_file(c, out);
    else
        draw(c, &a);
}
