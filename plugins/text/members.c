/*
 * The texts in files that are not text themselves, which plugins read (reader.h).
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "chat.h"
#include "members.h"
#include "name.h"

struct members {
    struct corpus *corpus;
    struct ct_arena arena;
    const char *path;
    size_t taken, left_out;
    const char *first; /* of those that are left out */
    bool failed;       /* in taking a text */
};

/* Fields of the objects on lines: all names that any format knows. */
static const char *const *find_fields(const struct corpus_request *r, struct ct_arena *arena)
{
    const char **fields = ct_arena_array(arena, const char *, CHAT_FIELDS + 3), **end = fields;

    if (!r->chat) {
        *end++ = r->field;
        return fields;
    }
    for (int i = 0; i < CHAT_FIELDS; i++)
        if (r->chat->field[i])
            *end++ = r->chat->field[i];
    *end++ = "weights";
    return fields;
}

static int take_lines(struct members *m, const struct ct_reader_text *text)
{
    enum corpus_format format = m->corpus->request->format;

    m->taken++;
    if (format == CORPUS_TEXT)
        return ct_fail(CT_ECONFIG,
                       "%s has rows, and [text] format is text: set it to jsonl, chat ..", m->path);
    return corpus_add_lines(m->corpus, m->path, text->data, text->bytes,
                            text->first ? (size_t)text->first : 1,
                            format == CORPUS_AUTO ? CORPUS_JSONL : format);
}

/* As in a folder, what is hidden is not read. */
static bool is_hidden(const char *name)
{
    for (const char *at = name; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (*at == '.' && strncmp(at, "./", 2) && strncmp(at, "../", 3))
            return true;
    }
    return false;
}

static int take_member(struct members *m, const struct ct_reader_text *text)
{
    struct ct_arena scratch = {0};
    const char *path;
    int rc;

    if (is_hidden(text->name) || (!name_is_json(text->name) && !name_is_text(text->name))) {
        if (!m->left_out++)
            m->first = ct_arena_strdup(&m->arena, text->name);
        return 0;
    }
    m->taken++;
    path = ct_arena_printf(&scratch, "%s: %s", m->path, text->name);
    rc = text->bytes ? corpus_add_file(m->corpus, path, text->data, text->bytes)
                     : ct_fail(CT_ECONFIG, "%s is empty", path);
    ct_arena_finish(&scratch);
    return rc;
}

static int take(void *context, const struct ct_reader_text *text)
{
    struct members *m = context;
    int rc;

    if (!text->lines && !text->name)
        return ct_fail(CT_EINVAL, "its reader hands over a text without a name");
    rc = text->lines ? take_lines(m, text) : take_member(m, text);
    m->failed = rc < 0;
    return rc;
}

static void report(const struct members *m)
{
    if (m->left_out)
        ct_warn("%s: members that are not read, as their names are hidden or end in none of .txt, "
                ".jsonl, .ndjson and .json: %zu, the first is %s",
                m->path, m->left_out, m->first);
}

int members_add(struct corpus *c, const struct ct_offer *reader, const char *path, const char *data,
                size_t size)
{
    const struct ct_reader_ops *ops = reader->ops;
    struct members m = {.corpus = c, .path = path};
    const struct ct_reading reading = {.size = sizeof(reading),
                                       .path = path,
                                       .data = data,
                                       .bytes = size,
                                       .fields = find_fields(c->request, &m.arena),
                                       .take = take,
                                       .context = &m};
    int rc = ops->read(&reading);

    if (rc < 0 && !m.failed)
        ct_context(rc, "%s", path);
    if (rc == 0)
        report(&m);
    if (rc == 0 && !m.taken)
        rc = ct_fail(CT_ECONFIG,
                     "%s has no member whose name ends in .txt, .jsonl, .ndjson or "
                     ".json, and no rows",
                     path);
    ct_arena_finish(&m.arena);
    return rc;
}
