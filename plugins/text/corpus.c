#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistr.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>

#include "binary.h"
#include "corpus.h"
#include "members.h"
#include "name.h"
#include "spool.h"
#include "stream.h"
#include "unpack.h"

#define STANDARD_INPUT "/dev/stdin"

struct corpus_file {
    const char *path; /* or a command */
    bool stream;
};

static void add_path(struct corpus *c, const char *path, bool stream)
{
    c->files =
        ct_arena_grow(&c->arena, c->files, &c->file_room, c->file_count + 1, sizeof(*c->files));
    c->files[c->file_count++] =
        (struct corpus_file){.path = ct_arena_strdup(&c->arena, path), .stream = stream};
}

/* A pipe that the recipe names itself, not one of a folder. */
static int add_special(struct corpus *c, const FTSENT *entry)
{
    if (S_ISFIFO(entry->fts_statp->st_mode) && entry->fts_level == 0) {
        add_path(c, entry->fts_path, true);
        return 0;
    }
    return ct_fail(CT_ECONFIG, "%s is not a regular file, but a %s", entry->fts_path,
                   S_ISFIFO(entry->fts_statp->st_mode)
                       ? "pipe in a folder: name it in path, or take it away"
                       : "device or a socket: write what it gives to a file or a pipe, and name "
                         "that");
}

/* Add a file, or all files below a folder. */
static int add_tree(struct corpus *c, char *path)
{
    size_t before = c->file_count;
    FTS *tree = fts_open((char *[]){path, NULL}, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry;
    int rc = 0;

    if (!tree)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    while (rc == 0 && (entry = fts_read(tree))) {
        if (entry->fts_level > 0 && entry->fts_name[0] == '.')
            fts_set(tree, entry, FTS_SKIP);
        else if (entry->fts_info == FTS_F)
            add_path(c, entry->fts_path, false);
        else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR ||
                 entry->fts_info == FTS_NS)
            rc = ct_fail(CT_ECONFIG, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
        else if (entry->fts_info == FTS_DEFAULT)
            rc = add_special(c, entry);
    }
    fts_close(tree);
    if (rc == 0 && c->file_count == before)
        rc = ct_fail(CT_ECONFIG, "%s: the folder has no files", path);
    return rc;
}

static int add_pattern(struct corpus *c, const char *pattern)
{
    char **paths = NULL;
    size_t count = 0;
    int rc;

    if (!strcmp(pattern, "-"))
        return add_tree(c, (char[]){STANDARD_INPUT});
    rc = ct_file_find(&c->arena, pattern, &paths, &count);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = add_tree(c, paths[i]);
    return rc;
}

char *corpus_next_item(struct ct_arena *arena, const char **list)
{
    const char *from = *list + strspn(*list, ", \t\n"), *to = from;

    for (int depth = 0; *to && (*to != ',' || depth); to++)
        depth += (*to == '{') - (*to == '}' && depth);
    *list = to;
    while (to > from && strchr(" \t\n", to[-1]))
        to--;
    return to > from ? ct_arena_printf(arena, "%.*s", (int)(to - from), from) : NULL;
}

int corpus_check_list(const char *list)
{
    bool empty = true;

    for (int depth = 0;; list++) {
        bool ends = !*list || (*list == ',' && !depth);

        if (ends && empty)
            return ct_fail(CT_ECONFIG, "an item is empty: names are separated by one comma");
        if (!*list)
            return 0;
        depth += (*list == '{') - (*list == '}' && depth);
        empty = ends || (empty && strchr(" \t\n", *list));
    }
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct corpus_file *)a)->path, ((const struct corpus_file *)b)->path);
}

static int find_files(struct corpus *c, const char *paths)
{
    const char *again = NULL;
    size_t kept = 0;
    char *item;

    while ((item = corpus_next_item(&c->arena, &paths))) {
        int rc = add_pattern(c, item);

        if (rc < 0)
            return rc;
    }
    if (!c->file_count)
        return ct_fail(CT_ECONFIG, "it is empty");
    qsort(c->files, c->file_count, sizeof(*c->files), by_path);
    for (size_t i = 0; i < c->file_count; i++)
        if (!kept || strcmp(c->files[kept - 1].path, c->files[i].path))
            c->files[kept++] = c->files[i];
        else
            again = c->files[i].path;
    if (again)
        ct_info("text: %s%s is named more than once, and read once", again,
                c->file_count - kept > 1 ? ", and others," : "");
    c->file_count = kept;
    return 0;
}

int corpus_add(struct corpus *c, const struct document *document)
{
    int rc = c->take(c->context, document);

    c->count++;
    c->taken = rc < 0;
    return rc;
}

static int add_part(struct corpus *c, const char *from, const char *to)
{
    return corpus_add(c, &(struct document){.text = from, .size = (size_t)(to - from)});
}

static bool is_blank(const char *line, const char *end)
{
    while (line < end && strchr(" \t\r\n", *line) && *line)
        line++;
    return line == end;
}

/* Lines are collected into a document until it is complete. */
static int add_text(struct corpus *c, const char *text, size_t size)
{
    const char *at = text, *end = at + size, *begin = NULL;
    enum corpus_split split = c->request->split;
    int rc = 0;

    if (split == CORPUS_DOCUMENT)
        return size ? add_part(c, text, end) : 0;
    while (rc == 0 && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *next = newline ? newline + 1 : end;
        bool blank = is_blank(at, next);

        if (begin && (blank || split == CORPUS_LINE)) {
            rc = add_part(c, begin, at);
            begin = NULL;
        }
        if (!blank && !begin)
            begin = at;
        at = next;
    }
    return rc == 0 && begin ? add_part(c, begin, end) : rc;
}

static size_t count_lines(const char *from, const char *to)
{
    size_t lines = 1;

    while ((from = memchr(from, '\n', (size_t)(to - from)))) {
        from++;
        lines++;
    }
    return lines;
}

/* Most tokenizers read U+FFFD in the place of bytes that are not UTF-8. */
static void count_broken(struct corpus *c, const char *path, const char *text, size_t size)
{
    const char *at = text, *end = text + size;

    while (at < end && (at = (const char *)u8_check((const uint8_t *)at, (size_t)(end - at)))) {
        if (!c->broken++) {
            c->broken_path = ct_arena_strdup(&c->arena, path);
            c->broken_line = count_lines(text, at);
        }
        at++;
    }
}

static enum corpus_format format_of(const struct corpus *c, const char *path)
{
    return c->request->format != CORPUS_AUTO ? c->request->format
           : name_is_json(path)              ? CORPUS_JSONL
                                             : CORPUS_TEXT;
}

static int add_documents(struct corpus *c, const char *path, const char *text, size_t size)
{
    enum corpus_format format = format_of(c, path);
    size_t mark = size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* byte order mark */
    int rc;

    text += mark;
    size -= mark;
    rc = binary_refuse(path, text, size, format == CORPUS_TEXT);
    if (rc < 0)
        return rc;
    if (format == CORPUS_TEXT && !c->request->any_bytes)
        count_broken(c, path, text, size);
    return format == CORPUS_TEXT ? add_text(c, text, size)
                                 : corpus_add_lines(c, path, text, size, 1, format);
}

static int add_unpacked(struct corpus *c, const char *path, const char *data, size_t size)
{
    const struct ct_offer *reader = ct_reader_find(path, name_length(path));

    return reader ? members_add(c, reader, path, data, size) : add_documents(c, path, data, size);
}

static int add_packed(struct corpus *c, const char *path, const char *data, size_t size)
{
    struct spool text;
    int rc = spool_open(&text, c->request->spool);

    if (rc == 0)
        rc = ct_context(unpack(data, size, &text), "%s", path);
    if (rc == 0)
        rc = add_unpacked(c, path, text.data, text.size);
    spool_close(&text);
    return rc;
}

int corpus_add_file(struct corpus *c, const char *path, const char *data, size_t size)
{
    return unpack_is_packed(data, size) ? add_packed(c, path, data, size)
                                        : add_unpacked(c, path, data, size);
}

/* Adds a file that is read once; it is complete before the first document is taken from it. */
static int add_stream(struct corpus *c, const char *path)
{
    bool command = c->request->command;
    const char *name = command ? "its output" : path;
    struct spool text;
    int rc = spool_open(&text, c->request->spool);

    ct_info(command ? "text: reading the output of `%s`" : "text: reading %s until its writer ends",
            path);
    if (rc == 0)
        rc = command ? stream_run(path, &text) : stream_read(path, &text);
    if (rc == 0)
        rc = spool_map(&text);
    if (rc == 0 && !text.size)
        rc = ct_fail(CT_ECONFIG, "%s is empty", name);
    if (rc == 0)
        rc = corpus_add_file(c, name, text.data, text.size);
    spool_close(&text);
    return rc;
}

static int map_file(const char *path, const void **base, size_t *size)
{
    int rc = ct_file_map(path, base, size);

    if (rc == 0 && !*base)
        rc = ct_fail(CT_ECONFIG, "%s is empty", path);
    return rc == CT_ENOENT ? CT_ECONFIG : rc;
}

/* Refuse by its first bytes. */
static int check_file(const struct corpus *c, const char *path)
{
    const void *base;
    size_t size;
    int rc = map_file(path, &base, &size);

    if (rc < 0)
        return rc;
    if (!unpack_is_packed(base, size) && !ct_reader_find(path, name_length(path)))
        rc = binary_refuse(path, base, size, format_of(c, path) == CORPUS_TEXT);
    ct_file_unmap(base, size);
    return rc;
}

static int add_file(struct corpus *c, const char *path)
{
    const void *base;
    size_t size;
    int rc = map_file(path, &base, &size);

    if (rc < 0)
        return rc;
    rc = corpus_add_file(c, path, base, size);
    ct_file_unmap(base, size);
    return rc;
}

static bool tells_format(const char *path)
{
    return name_is_json(path) || ct_reader_find(path, name_length(path));
}

/* A stream whose name tells no format, and a pipe of any name, are to be described. */
static int check_stream(struct corpus *c, const struct corpus_file *file)
{
    const char *name = c->request->command ? "a command's output" : file->path;

    if (!file->stream)
        return 0;
    c->streams++;
    if (c->request->format == CORPUS_AUTO && (c->request->command || !tells_format(file->path)))
        return ct_fail(CT_ECONFIG,
                       "%s has no name that tells its format: set [text] format to jsonl, text, "
                       "chat ..",
                       name);
    if (!c->request->command && !*c->request->stream_key)
        return ct_fail(CT_ECONFIG,
                       "%s is a pipe, which is read only once: set [text] command_key to a name "
                       "for what comes through it, under which its tokens are found again",
                       name);
    return 0;
}

int corpus_open(struct corpus *c, const struct corpus_request *request, const char *paths)
{
    int rc;

    *c = (struct corpus){.request = request};
    if (request->command)
        add_path(c, paths, true);
    rc = request->command ? 0 : find_files(c, paths);
    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = check_stream(c, &c->files[i]);
    if (rc < 0)
        corpus_close(c);
    return rc;
}

static int check_files(const struct corpus *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = c->files[i].stream ? 0 : check_file(c, c->files[i].path);
    return rc;
}

static int check_later(const struct corpus_request *request)
{
    const char *list = request->later ? request->later->items : NULL;
    struct ct_arena scratch = {0};
    struct corpus later;
    char *item;
    int rc = 0;

    if (!request->later || request->later->checked)
        return 0;
    request->later->checked = true;
    while (rc == 0 && (item = corpus_next_item(&scratch, &list))) {
        rc = corpus_open(&later, request, item);
        if (rc == 0)
            rc = check_files(&later);
        corpus_close(&later);
    }
    ct_arena_finish(&scratch);
    return rc;
}

int corpus_read(struct corpus *c, int (*take)(void *context, const struct document *document),
                void *context)
{
    int rc = check_files(c);

    if (rc == 0)
        rc = check_later(c->request);
    c->take = take;
    c->context = context;
    c->count = c->malformed = c->broken = 0;
    for (size_t i = 0; rc >= 0 && i < c->file_count; i++)
        rc = c->files[i].stream ? add_stream(c, c->files[i].path) : add_file(c, c->files[i].path);
    if (rc >= 0 && c->malformed)
        ct_warn("%zu malformed lines were skipped", c->malformed);
    if (rc >= 0 && c->broken)
        ct_warn(
            "%s:%zu: not UTF-8; of the text %zu bytes are not, and the tokenizer reads U+FFFD in "
            "their place: convert it, as in `iconv -f LATIN1 -t UTF-8 IN >OUT`",
            c->broken_path, c->broken_line, c->broken);
    if (rc >= 0 && !c->count)
        rc = ct_fail(CT_ECONFIG, "nothing but white space in %zu file%s", c->file_count,
                     ct_plural((int64_t)c->file_count));
    return rc;
}

const char *corpus_path(const struct corpus *c, size_t i)
{
    return c->files[i].path;
}

bool corpus_is_stream(const struct corpus *c, size_t i)
{
    return c->files[i].stream;
}

void corpus_close(struct corpus *c)
{
    ct_arena_finish(&c->arena);
    *c = (struct corpus){0};
}
