/*
 * Room on disks.
 */
#ifndef CT_SPACE_H
#define CT_SPACE_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Bytes that this process may still write in a folder. CT_EIO: it cannot be looked at. */
CT_API int ct_file_room(const char *folder, double *bytes);

CT_END_DECLS

#endif
