/* The formats of files, by their names without what a compressor adds to them. */
#ifndef NAME_H
#define NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of a name without .gz, .zst or .zstd at its end. */
size_t name_length(const char *path);
/* It ends in .jsonl, .ndjson or .json: an object of JSON is on each line. */
bool name_is_json(const char *path);
/* It ends in .txt. */
bool name_is_text(const char *path);

#endif
