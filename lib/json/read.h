#ifndef JSON_READ_H
#define JSON_READ_H

#include <stdbool.h>

#include <jansson.h>

/* ct_json_read. *early: the text ends before the value does. */
int json_read_early(const char *text, size_t size, const char *name, unsigned flags, json_t **value,
                    bool *early);

#endif
