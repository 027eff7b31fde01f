/*
 * The text files that [text] path names, and the documents in them.
 *
 * Files are found once, mapped, and sorted by path. The numbering of documents therefore depends
 * only on the files' names and contents. Files may be compressed by gzip or zstd; their first bytes
 * tell. Those called NAME.jsonl, NAME.ndjson or NAME.json (or NAME.jsonl.gz ..) hold an object of
 * JSON on each line, whose field is a document.
 */
#ifndef CORPUS_H
#define CORPUS_H

#include <ctitan/arena.h>

enum corpus_format {
    CORPUS_AUTO, /* by the file's name */
    CORPUS_TEXT,
    CORPUS_JSONL,
    CORPUS_CHAT, /* JSON lines whose field is a conversation: see chat.h */
};

enum corpus_split {
    CORPUS_DOCUMENT,  /* a file is a document */
    CORPUS_PARAGRAPH, /* lines between empty lines, with their newlines */
    CORPUS_LINE,      /* each line that is not empty, with its newline */
};

/* What is to be found. */
struct corpus_request {
    enum corpus_format format;
    enum corpus_split split; /* of text */
    const char *field;       /* of JSON lines */
    const struct chat_template *chat;
    bool skip; /* malformed lines, instead of failing */
};

/* The text is encoded in parts, which end at `ends`: every second one, from the first, is a
   prompt, whose tokens are no labels. NULL: one part, which is trained on. */
struct document {
    const char *text;
    size_t size;
    const size_t *ends;
    size_t parts;
};

struct corpus {
    struct ct_arena arena;
    const struct corpus_request *request;
    struct corpus_file *files;
    size_t file_count, file_room;
    struct document *documents;
    size_t count, room, malformed;
};

/*
 * paths is a list of files, folders (all files below them except hidden ones) and shell patterns,
 * including braces, separated by commas. CT_ECONFIG: a path that names nothing, an empty file, no
 * document, a malformed line or file.
 */
int corpus_open(struct corpus *corpus, const struct corpus_request *request, const char *paths);
void corpus_close(struct corpus *corpus);

/* The next item of a comma-separated list, ignoring commas in braces; NULL after the last. */
char *corpus_next_item(struct ct_arena *arena, const char **list);

/* Add a document, whose text stays where it is. */
struct document *corpus_add(struct corpus *corpus, const char *text, size_t size);
/* Add the documents of a file of JSON lines. path appears in messages. */
int corpus_add_lines(struct corpus *corpus, const char *path, const char *text, size_t size,
                     bool chat);

#endif
