/*
 * The text files that [text] path names, and the documents in them.
 *
 * Files are found once, and sorted by path. The numbering of documents therefore depends only on
 * the files' names and contents. Reading hands over one document after the other; of the text, no
 * more than a file's pages or a line's document is in memory. Files may be compressed by gzip or
 * zstd; their first bytes tell, and what is no text is refused by them. Those called NAME.jsonl,
 * NAME.ndjson or NAME.json (or NAME.jsonl.gz ..) hold an object of JSON on each line, whose field
 * is a document. Files of other forms go to the readers that plugins offer (members.h). The output
 * of a process, a pipe and standard input (the path "-") are read once.
 */
#ifndef CORPUS_H
#define CORPUS_H

#include <ctitan/arena.h>

enum corpus_format {
    CORPUS_AUTO, /* by the file's name */
    CORPUS_TEXT,
    CORPUS_JSONL,
    /* JSON lines of which a part is trained on: see chat.h */
    CORPUS_CHAT,
    CORPUS_SHAREGPT,
    CORPUS_PROMPT,
    CORPUS_ALPACA,
    CORPUS_IDS,
};

struct chat_request;

enum corpus_split {
    CORPUS_DOCUMENT,  /* a file is a document */
    CORPUS_PARAGRAPH, /* lines between empty lines, with their newlines */
    CORPUS_LINE,      /* each line that is not empty, with its newline */
};

/* Items of a list that are read after a corpus. They are checked before the first that is read. */
struct corpus_later {
    const char *items;
    bool checked;
};

/* Key of a corpus to be found. */
struct corpus_request {
    const char *option; /* whose value the paths are, for messages: "[text] path" */
    enum corpus_format format;
    enum corpus_split split;         /* of text */
    const char *field;               /* of JSON lines */
    const struct chat_request *chat; /* NULL: all is trained on */
    const char *key;                 /* names all else that determines the tokens */
    bool command;                    /* the paths are a command, whose output is read */
    const char *stream_key;          /* names what is read once; "": a command does so alone */
    bool no_bos;                /* the tokenizer's token for that does not begin conversations */
    bool skip;                  /* malformed lines, instead of failing */
    bool weights;               /* of labels, are kept */
    bool any_bytes;             /* the tokenizer has tokens for bytes that are not UTF-8, too */
    const char *spool;          /* folder for what is unpacked */
    struct corpus_later *later; /* what is read after these paths; NULL: nothing */
};

/* The text has parts, which end at `ends`: every second one, from the first, is a prompt. A token
   of prompts alone is no label. NULL: one part, which is trained on. Or it has tokens, ~token for
   one that is no label. */
struct document {
    const char *text;
    size_t size; /* bytes, or tokens */
    const size_t *ends;
    size_t parts;
    bool closed; /* with parts: the token that ends a document follows */
    const int32_t *ids;
    const float *weights; /* of the parts, or of the ids; NULL: 1 */
};

struct corpus {
    struct ct_arena arena;
    const struct corpus_request *request;
    struct corpus_file *files;
    size_t file_count, file_room;
    size_t streams; /* of the files: those that are read once */
    /* In the last reading: documents, lines that were skipped, bytes of text that are not UTF-8 */
    size_t count, malformed, broken;
    const char *broken_path; /* of the first of these bytes */
    size_t broken_line;
    int (*take)(void *context, const struct document *document);
    void *context;
    bool taken; /* the last failure is none of the line alone: it is not skipped */
};

/*
 * paths is a command, or a list of files, folders (all files below them except hidden ones) and
 * shell patterns, including braces, separated by commas. CT_ECONFIG: a path that names nothing, or
 * an alternative in braces; a stream whose format or key is not known.
 */
int corpus_open(struct corpus *corpus, const struct corpus_request *request, const char *paths);
/* Call take with each document, in order. A document lasts as long as the call. CT_ECONFIG: an
   empty file, no document, a malformed line or file. What can be seen at the beginning of a file,
   or of one of `later` that is not checked yet, is refused before the first call. */
int corpus_read(struct corpus *corpus, int (*take)(void *context, const struct document *document),
                void *context);
/* The i-th of file_count files, or its command. */
const char *corpus_path(const struct corpus *corpus, size_t i);
bool corpus_is_stream(const struct corpus *corpus, size_t i);
void corpus_close(struct corpus *corpus);

/* The next item of a comma-separated list, ignoring commas in braces; NULL after the last. */
char *corpus_next_item(struct ct_arena *arena, const char **list);
/* CT_ECONFIG: an item of the list is empty. */
int corpus_check_list(const char *list);

/* Hand over a document. */
int corpus_add(struct corpus *corpus, const struct document *document);
/* Hand over the documents of a file's bytes, packed or not. path tells the format, and appears in
   messages. */
int corpus_add_file(struct corpus *corpus, const char *path, const char *data, size_t size);
/* Hand over the documents of JSON lines. path appears in messages, and the number of the first
   line. */
int corpus_add_lines(struct corpus *corpus, const char *path, const char *text, size_t size,
                     size_t first, enum corpus_format format);

#endif
