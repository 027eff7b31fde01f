#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/lib/rates.h>

#include "axes.h"

#define LETTER 7.2 /* about the width of one */

void ct_chart_escape(const char *text, FILE *out)
{
    static const char *const entity[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};

    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < 128 && entity[c])
            fputs(entity[c], out);
        else if (c < ' ' && c != '\n' && c != '\t')
            fputs("\xef\xbf\xbd", out); /* HTML has no other control characters */
        else
            fputc(c, out);
    }
}

double axes_x(const struct axes *a, double value)
{
    return a->left + (value - a->x_from) / (a->x_to - a->x_from) * (a->width - a->left - RIGHT);
}

double axes_y(const struct axes *a, double value)
{
    return a->bottom - (value - a->y_from) / (a->y_to - a->y_from) * (a->bottom - a->top);
}

const char *axes_number(double value, char text[32])
{
    double size = fabs(value);

    if (size >= 1e3 && size < 1e15 && (size >= 1e4 || value == floor(value)))
        ct_grouped((int64_t)llround(value), text);
    else
        snprintf(text, 32, "%.4g", value);
    return text;
}

double axes_round(double *from, double *to, int ticks)
{
    double span = *to - *from, step, power;

    if (!(span > 0))
        span = fabs(*to) > 0 ? fabs(*to) * 0.1 : 1;
    power = pow(10, floor(log10(span / ticks)));
    step = span / ticks / power;
    step = (step <= 1 ? 1 : step <= 2 ? 2 : step <= 5 ? 5 : 10) * power;
    *from = floor(*from / step + 1e-9) * step;
    *to = ceil(*to / step - 1e-9) * step;
    if (!(*to > *from))
        *to = *from + step;
    return step;
}

/* ---- parts ---- */

static double legend_left(const struct axes *a)
{
    return a->narrow ? 4 : a->left;
}

static double legend(const struct axes *a, const char *const *name, const int *colour, size_t names)
{
    double left = legend_left(a), x = left, y = 14;

    for (size_t i = 0; i < names; i++) {
        double width = 34 + LETTER * (double)strlen(name[i]);

        if (x > left && x + width > a->width) {
            x = left;
            y += LEGEND_LINE;
        }
        fprintf(
            a->out,
            "<rect class='s%zu' x='%.1f' y='%.1f' width='14' height='10'/><text x='%.1f' y='%.1f'>",
            (colour ? (size_t)colour[i] : i) % CT_CHART_COLOURS, x, y - 9, x + 19, y);
        ct_chart_escape(name[i], a->out);
        fputs("</text>\n", a->out);
        x += width;
    }
    return y + 12;
}

double axes_height(const struct axes *a, const char *const *name, size_t names, double height)
{
    double width = 0, lines = 1, left = legend_left(a);

    for (size_t i = 0; i < names; i++) {
        double more = 34 + LETTER * (double)strlen(name[i]);

        lines += width > 0 && left + width + more > a->width;
        width = width > 0 && left + width + more > a->width ? more : width + more;
    }
    return height + lines * LEGEND_LINE + 6;
}

double axes_open(const struct axes *a, const char *title, const char *const *name,
                 const int *colour, size_t names, double height)
{
    fprintf(a->out,
            "<svg class='chart %s' role='img' tabindex='0' viewBox='0 0 %.0f %.0f' aria-label='",
            a->narrow ? "narrow" : "broad", a->width, axes_height(a, name, names, height));
    ct_chart_escape(title, a->out);
    fputs("'>\n", a->out);
    return legend(a, name, colour, names);
}

int axes_text(const struct axes *a, const char *text, double y, bool draw)
{
    double left = legend_left(a);
    size_t room = (size_t)((a->width - left) / LETTER);
    int lines = 0;

    while (*text) {
        size_t length = strlen(text), end = length;

        for (end = length > room ? room : length; end < length && end > 0 && text[end] != ' ';)
            end--;
        end = end ? end : length;
        if (draw) {
            fprintf(a->out, "<text x='%.1f' y='%.1f'>", left, y + 18 * lines);
            for (size_t i = 0; i < end; i++)
                ct_chart_escape((const char[]){text[i], '\0'}, a->out);
            fputs("</text>\n", a->out);
        }
        text += end + strspn(text + end, " ");
        lines++;
    }
    return lines;
}

/* Both drawings fill the file, which is as large as the one that the screen shows. A phone takes a
   file for a page of a desk's width, so its own width is asked for, too. */
void axes_open_file(const struct axes *broad, double height, const struct axes *narrow,
                    double narrow_height, double least, const char *title)
{
    FILE *out = broad->out;

    fprintf(out,
            "<svg class='chart file' role='img' xmlns='http://www.w3.org/2000/svg' width='%.0f' "
            "height='%.0f' aria-label='",
            broad->width, height);
    ct_chart_escape(title, out);
    fprintf(out,
            "'>\n<style>%s.chart.file{--w:max(%.0fpx,min(100vw,%.0fpx));width:var(--w);"
            "height:calc(var(--w)*%.4f);min-width:0;max-width:none;color:#1c1e21;background:#fff}\n"
            "@media screen and (max-width:40rem),screen and (max-device-width:40rem){"
            ".chart.file{--w:100vw;height:calc(100vw*%.4f)}.chart.narrow{display:block}"
            ".chart.broad{display:none}}\n"
            "@media (prefers-color-scheme:dark){.chart.file{color:#e8eaed;background:#15171a}}"
            "</style>\n",
            ct_chart_style(), least, broad->width, height / broad->width,
            narrow_height / narrow->width);
}

void axes_x_ticks(const struct axes *a, const char *name)
{
    double from = a->x_from, to = a->x_to, step;
    char text[32];

    step = axes_round(&from, &to, a->narrow ? 5 : 8);
    if (a->x_whole && step < 1) {
        step = 1;
        from = a->x_from;
    }
    fputs("<g class='axis'>\n", a->out);
    for (double at = from; at <= a->x_to + step * 1e-6; at += step) {
        double x = axes_x(a, at);

        if (at < a->x_from - step * 1e-6)
            continue;
        fprintf(a->out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>"
                "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n",
                x, x, a->top, a->bottom, x, a->bottom + 16,
                axes_number(fabs(at) < step * 1e-6 ? 0 : at, text));
    }
    fprintf(a->out, "<text x='%.1f' y='%.1f' text-anchor='end'>", a->width - RIGHT, a->bottom + 32);
    ct_chart_escape(name, a->out);
    fputs("</text></g>\n", a->out);
}

#define NAME_WIDTH 20.0 /* of the axis' name, which stands upright */
#define TICK_GAP 6.0    /* between a label and the plot */

static const char *y_label(const struct axes *a, double at, char text[32])
{
    return (a->print ? a->print : axes_number)(fabs(at) < a->y_step * 1e-6 ? 0 : at, text);
}

double axes_y_width(const struct axes *a)
{
    size_t longest = 0;
    char text[32];

    for (double at = a->y_from; at <= a->y_to + a->y_step * 1e-6; at += a->y_step) {
        size_t length = strlen(y_label(a, at, text));

        longest = length > longest ? length : longest;
    }
    return NAME_WIDTH + LETTER * (double)longest + TICK_GAP;
}

void axes_y_ticks(const struct axes *a, const char *name)
{
    double step = a->y_step;
    char text[32];

    fputs("<g class='axis'>\n", a->out);
    for (double at = a->y_from; at <= a->y_to + step * 1e-6; at += step)
        fprintf(a->out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>"
                "<text x='%.1f' y='%.1f' text-anchor='end'>%s</text>\n",
                a->left, a->width - RIGHT, axes_y(a, at), axes_y(a, at), a->left - TICK_GAP,
                axes_y(a, at) + 4, y_label(a, at, text));
    fprintf(a->out, "<text transform='translate(14 %.1f) rotate(-90)' text-anchor='middle'>",
            (a->top + a->bottom) / 2);
    ct_chart_escape(name, a->out);
    fputs("</text></g>\n", a->out);
}

void axes_close(const struct axes *a)
{
    fputs("</svg>\n", a->out);
    if (!a->file)
        fputs("<output class='say' aria-live='polite'></output>\n", a->out);
}

/* ---- for the page ---- */

const char *ct_chart_style(void)
{
    return ":root{--s0:#0067a8;--s1:#c45500;--s2:#00795a;--s3:#9a4a8c;--s4:#8a6d00;--s5:#2a8ab8;"
           "--s6:#7a7a7a;--s7:#b02a37;--grid:#dcdcdc;--in:#fff}\n"
           "@media (prefers-color-scheme:dark){:root{--s0:#5db2f0;--s1:#f09a4a;--s2:#3fc49a;"
           "--s3:#d894c8;--s4:#d8bb3c;--s5:#8cd4f4;--s6:#a8a8a8;--s7:#f08080;--grid:#3a3d42;--in:#"
           "15171a}}\n"
           ".chart{width:100%;min-width:36rem;max-width:60rem;display:block;font:13px sans-serif}\n"
           ".chart.narrow,.chart.narrow+.say{display:none}\n"
           "@media screen and (max-width:40rem){.chart.narrow,.chart.narrow+.say{display:block}"
           ".chart.narrow{min-width:0}.chart.broad,.chart.broad+.say{display:none}}\n"
           ".chart text{fill:currentColor}\n"
           ".chart .grid{stroke:var(--grid);stroke-width:1}\n"
           ".chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
           ".s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}"
           ".s4{fill:var(--s4)}.s5{fill:var(--s5)}.s6{fill:var(--s6)}.s7{fill:var(--s7)}\n"
           ".line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1);stroke-dasharray:7 3}"
           ".line.s2{stroke:var(--s2);stroke-dasharray:2 2}"
           ".line.s3{stroke:var(--s3);stroke-dasharray:9 3 2 3}"
           ".line.s4{stroke:var(--s4);stroke-dasharray:12 4}"
           ".line.s5{stroke:var(--s5);stroke-dasharray:4 4}"
           ".line.s6{stroke:var(--s6);stroke-dasharray:1 3}"
           ".line.s7{stroke:var(--s7);stroke-dasharray:6 2 2 2 2 2}\n"
           ".faint{fill-opacity:.55}.chart text.in{font-size:11px;text-anchor:middle;"
           "pointer-events:none;fill:var(--in)}.chart text.faintly{fill:currentColor}\n"
           ".chart .note{stroke-width:1.2;stroke-dasharray:3 3}\n"
           ".mark .hit{fill:transparent}.mark .at{stroke:currentColor;stroke-width:1;opacity:0}"
           ".mark circle{opacity:0}\n"
           ".mark:hover .at,.mark.on .at,.mark:hover circle,.mark.on circle{opacity:1}\n"
           "rect.mark:hover,rect.mark.on{stroke:currentColor;stroke-width:2}\n"
           ".chart:focus-visible{outline:3px solid var(--s0);outline-offset:2px}\n"
           ".say{display:block;min-height:1.4em;font-variant-numeric:tabular-nums}\n"
           "@media print{.chart{break-inside:avoid;min-width:0}.say{display:none}}\n";
}

const char *ct_chart_script(void)
{
    return "document.querySelectorAll('svg.chart').forEach(function(svg){\n"
           " var marks=svg.querySelectorAll('.mark'),at=-1;\n"
           " var say=svg.nextElementSibling;\n"
           " function go(n){if(!marks.length)return;\n"
           "  if(at>=0)marks[at].classList.remove('on');\n"
           "  at=Math.max(0,Math.min(marks.length-1,n));marks[at].classList.add('on');\n"
           "  say.textContent=marks[at].querySelector('title').textContent;}\n"
           " svg.addEventListener('keydown',function(e){\n"
           "  var step={ArrowRight:1,ArrowLeft:-1,PageDown:10,PageUp:-10}[e.key];\n"
           "  if(step)go(at+step);else if(e.key=='Home')go(0);else if(e.key=='End')"
           "go(marks.length-1);else return;\n"
           "  e.preventDefault();});\n"
           " svg.addEventListener('focus',function(){if(at<0)say.textContent="
           "'Arrow keys move through the chart.';});\n"
           " marks.forEach(function(mark,n){mark.addEventListener('mouseenter',"
           "function(){go(n);});});\n"
           "});\n"
           "addEventListener('beforeprint',function(){document.querySelectorAll('details.chart-"
           "table')"
           ".forEach(function(d){d.open=true;});});\n";
}
