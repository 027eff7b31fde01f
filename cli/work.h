/* The kinds of a step's work, as pictures show them. */
#ifndef CT_CLI_WORK_H
#define CT_CLI_WORK_H

#include <stdbool.h>

enum work_kind {
    WORK_FORWARD,
    WORK_BACKWARD, /* whole, or of the inputs alone */
    WORK_WEIGHTS,  /* its half for weights' gradients */
    WORK_REST,     /* before and after the microbatches: the optimizer and the like */
    WORK_COMMUNICATION,
    WORK_KINDS
};

extern const char *const work_names[WORK_KINDS];
extern const int work_colours[WORK_KINDS]; /* enum ct_chart_work */

/* The kind of what a section does: "1F", "W", "0SEND_F". */
enum work_kind work_of(const char *section, bool communicates);

#endif
