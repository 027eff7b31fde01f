/* What printing and parsing of graphs share. */
#ifndef CT_TEXT_INTERNAL_H
#define CT_TEXT_INTERNAL_H

#include <ctitan/device/device.h>
#include <ctitan/lib/text.h>

extern const char *const ct_text_streams[CT_STREAMS];

/* Whether name is that of a main section: a part, or a group's number and a part. */
bool ct_text_main_section(const char *name, enum ct_part *part, int *group);

#endif
