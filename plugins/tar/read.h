#ifndef READ_H
#define READ_H

#include <ctitan/reader.h>

/* As ct_reader_ops.read: the regular members of a tar file. */
int tar_read(const struct ct_reading *reading);

#endif
