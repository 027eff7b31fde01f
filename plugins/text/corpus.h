/*
 * The text files that [text] path names, and the documents in them.
 *
 * Files are found once, mapped, and sorted by path. The numbering of documents therefore depends
 * only on the files' names and contents.
 */
#ifndef CORPUS_H
#define CORPUS_H

#include <ctitan/arena.h>

enum corpus_split {
    CORPUS_DOCUMENT,  /* a file is a document */
    CORPUS_PARAGRAPH, /* lines between empty lines, with their newlines */
    CORPUS_LINE,      /* each line that is not empty, with its newline */
};

struct document {
    const char *text;
    size_t size;
};

struct corpus {
    struct ct_arena arena;
    struct corpus_file *files;
    size_t file_count, file_room;
    struct document *documents;
    size_t count, room;
};

/*
 * paths is a comma-separated list of files, folders (all files below them except hidden ones) and
 * shell patterns, including braces. CT_ECONFIG: a path that names nothing, an empty file, no
 * document.
 */
int corpus_open(struct corpus *corpus, const char *paths, enum corpus_split split);
void corpus_close(struct corpus *corpus);

#endif
