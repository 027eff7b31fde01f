/*
 * Readers: what is in files that are not text themselves, such as archives and tables.
 *
 * A data source of text gives each file to the reader that has its suffix (ct_reader_find), and
 * takes from it one text after the other: the members of an archive, or the rows of a table as JSON
 * lines. The offer's name is that of the form. A recipe lists plugins of readers as it lists
 * all others, and the source knows none of them.
 */
#ifndef CT_READER_H
#define CT_READER_H

#include <ctitan/plugin.h>

CT_BEGIN_DECLS

/* A text in a file. It lasts as long as the call that it is handed over by. */
struct ct_reader_text {
    size_t size;      /* of this struct */
    const char *name; /* of the member, whose suffix tells its format; NULL: none, with `lines` */
    const char *data;
    size_t bytes;
    bool lines;    /* JSON lines, whatever the name */
    int64_t first; /* number of its first line in the member, from 1; 0: 1 */
};

/* One reading of one file, for the reader. */
struct ct_reading {
    size_t size;      /* of this struct */
    const char *path; /* in messages */
    const void *data; /* the whole file, after gzip or zstd */
    size_t bytes;
    /* Fields that are read from objects on JSON lines; others may be left out. Ended by NULL. */
    const char *const *fields;
    int (*take)(void *context, const struct ct_reader_text *text);
    void *context;
};

struct ct_reader_ops {
    size_t size;                 /* of this struct */
    const char *const *suffixes; /* of names of files, ".zip"; NULL ends */
    int version;                 /* changes with the text that it makes of a file */
    /* Call take with each text, in the order of the file, and return its failure as it is. The same
       file gives the same texts. CT_ECONFIG: the file is damaged; the message says where, without
       the path. */
    int (*read)(const struct ct_reading *reading);
};

/* The reader of files whose names end as the first `length` bytes of path do, among those of
   plugins that are loaded; NULL: none. */
CT_API const struct ct_offer *ct_reader_find(const char *path, size_t length);

CT_END_DECLS

#endif
