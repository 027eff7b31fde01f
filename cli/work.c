#include "work.h"
#include "chart/chart.h"

#include <string.h>

const char *const work_names[WORK_KINDS] = {"forward", "backward", "gradients of weights",
                                            "optimizer and other", "communication"};
const int work_colours[WORK_KINDS] = {CT_CHART_FORWARD, CT_CHART_BACKWARD, CT_CHART_WEIGHTS,
                                      CT_CHART_OTHER, CT_CHART_COMMUNICATION};

enum work_kind work_of(const char *section, bool communicates)
{
    section += strspn(section, "0123456789");
    if (communicates)
        return WORK_COMMUNICATION;
    if (!strcmp(section, "F"))
        return WORK_FORWARD;
    if (!strcmp(section, "I") || !strcmp(section, "B"))
        return WORK_BACKWARD;
    return !strcmp(section, "W") ? WORK_WEIGHTS : WORK_REST;
}
