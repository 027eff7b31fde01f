/* The frame of a chart: scales, grid, legend, marks. In units of the SVG's view box. */
#ifndef CT_CHART_AXES_H
#define CT_CHART_AXES_H

#include "chart.h"

#define WIDTH 760.0     /* unless the chart has its own */
#define NARROW 340.0    /* of a phone */
#define ROW_NAMES 104.0 /* left of a timeline */
#define RIGHT 16.0
#define LEGEND_LINE 20.0

struct axes {
    double width, left; /* of the chart; of the plot */
    bool narrow;
    bool file;                         /* in a file of its own, not a part of a page */
    double top, bottom;                /* of the plot */
    double x_from, x_to, y_from, y_to; /* values at its edges */
    double y_step;                     /* between ticks */
    bool x_whole;                      /* x has whole numbers alone, and so have its ticks */
    const char *(*print)(double value, char text[32]);
    FILE *out;
};

/* Width, or height with its ticks below, of all that is drawn. */
double axes_x(const struct axes *a, double value);
double axes_y(const struct axes *a, double value);

/* "0.0123", "12,300" */
const char *axes_number(double value, char text[32]);
/* Let a range of values begin and end at round numbers; returns the distance of its ticks. */
double axes_round(double *from, double *to, int ticks);

/* Open the <svg>, with `height` below the legend, and draw the legend: names in the given colours,
   or in order if that is NULL. Returns where it ends. */
double axes_open(const struct axes *a, const char *title, const char *const *name,
                 const int *colour, size_t names, double height);
/* The height of all that, in the same unit. */
double axes_height(const struct axes *a, const char *const *name, size_t names, double height);
/* Draw text from y on, in lines that end within the chart. Returns the number of lines. */
int axes_text(const struct axes *a, const char *text, double y, bool draw);
/* Begin a file with a broad and a narrow drawing, which follow, and "</svg>". least: pixels to
   which the broad one shrinks with its window. */
void axes_open_file(const struct axes *broad, double height, const struct axes *narrow,
                    double narrow_height, double least, const char *title);
/* The width that the labels of y need left of the plot, with the axis' name. */
double axes_y_width(const struct axes *a);
void axes_x_ticks(const struct axes *a, const char *name);
void axes_y_ticks(const struct axes *a, const char *name);
void axes_close(const struct axes *a);

#endif
