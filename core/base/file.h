/* Functions that the sources about files share. */
#ifndef CT_BASE_FILE_H
#define CT_BASE_FILE_H

#include <stdint.h>

/* A number of this host, of its name: temporary names in a folder that hosts share differ by it. */
uint32_t ct_file_host(void);

#endif
