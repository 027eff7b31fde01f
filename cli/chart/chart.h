/*
 * Charts as SVG inside a page of HTML: lines, stacked areas, timelines. A timeline may also be a
 * file of its own.
 *
 * A chart is one <svg> that fills its container's width. A file holds a broad and a narrow drawing,
 * too. A page draws each twice, also `narrow`:
 * the style shows the one that suits the screen, so that a phone has letters of the usual size and
 * scrolls nothing sideways. Colours are the classes s0 to s7 of ct_chart_style, which has a light
 * and a dark set; lines differ by their dashes too. A chart can be focused, and holds marks (class
 * "mark", in order) with what there is to say in a <title>: without a script they are seen under
 * the mouse, and ct_chart_script walks through them by arrow keys and shows their text in the
 * <output> that follows the chart. All text is escaped.
 */
#ifndef CT_CHART_H
#define CT_CHART_H

#include <stdio.h>

#include <ctitan/base.h>

#define CT_CHART_COLOURS 8

struct ct_chart_series {
    const char *name;
    const double *x, *y; /* x rises; y NAN: a gap */
    size_t count;
    bool dots; /* dots instead of a line */
};

/* Something that happened at x: a line across the plot. */
struct ct_chart_note {
    double x;
    int series;       /* whose colour it has */
    const char *text; /* is said with the first mark after x */
};

struct ct_chart {
    const char *title, *x_name, *y_name;
    const struct ct_chart_series *series;
    size_t count;
    const struct ct_chart_note *note;
    size_t notes;
    bool from_zero; /* of the y axis */
    bool narrow;    /* for a screen as wide as a phone's */
    /* A value of the y axis as text; NULL: a number of four digits. */
    const char *(*print)(double value, char text[32]);
};

void ct_chart_lines(const struct ct_chart *chart, FILE *out);
/* Series above each other. All have the x of the first, and no gaps. */
void ct_chart_areas(const struct ct_chart *chart, FILE *out);

/* The colours of a step's work, the same in every picture. */
enum ct_chart_work {
    CT_CHART_FORWARD = 0,
    CT_CHART_BACKWARD = 2, /* whole */
    CT_CHART_INPUTS = 5,   /* the half for gradients of inputs */
    CT_CHART_WEIGHTS = 1,  /* the half for gradients of weights */
    CT_CHART_BOTH = 3,     /* a forward and a backward together */
    CT_CHART_OTHER = 4,    /* before and after the microbatches: the optimizer and the like */
    CT_CHART_COMMUNICATION = 6,
};

/* A box in a row. */
struct ct_chart_span {
    int row, kind;
    double start, end;
    const char *label, *text; /* under the mouse; in the box, where it is wide enough, or NULL */
    bool faint;
};

struct ct_chart_timeline {
    const char *title, *x_name;
    const char *const *row, *const *kind; /* names; kinds by colour */
    const int *colour;                    /* of each kind; NULL: in order */
    int rows, kinds;
    double end;   /* of the x axis, which begins at 0 */
    double width; /* of the rows; 0: the usual */
    bool file;    /* a file of its own, with its title below */
    bool narrow;  /* for a screen as wide as a phone's; width is 0 */
    const struct ct_chart_span *span;
    size_t count;
};

void ct_chart_timeline(const struct ct_chart_timeline *chart, FILE *out);

/* For the <style> and the <script> of the page. */
const char *ct_chart_style(void);
const char *ct_chart_script(void);

/* Text for HTML, in elements and quoted attributes. */
void ct_chart_escape(const char *text, FILE *out);

#endif
