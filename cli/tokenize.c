/*
 * `ctitan tokenize`: text from stdin as token ids, and the reverse.
 */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/plugins.h>
#include <ctitan/model.h>

#include "cli.h"

struct request {
    struct ct_arena arena;
    const char *tokenizer, *output;
    bool special, decode;
};

static const struct ct_argument arguments[] = {
    CT_ARG_TEXT(struct request, tokenizer, "tokenizer", 0, "FILE_OR_FOLDER",
                "tokenizer.json, tokenizer.model or their folder; required"),
    CT_ARG_FLAG(struct request, special, "special", 0,
                "Add the tokens that belong around a prompt, like the one that begins it"),
    CT_ARG_FLAG(struct request, decode, "decode", 0, "Read ids, and print their text"),
    CT_ARG_TEXT(struct request, output, "output", 0, "FILE",
                "Write the ids there as uint32, as [tokens] path reads them"),
    {0}};

static int parse(int argc, char **argv, struct request *r)
{
    int rc = ct_arguments_parse(arguments, argc, argv, &r->arena, r);

    if (rc < 0)
        return rc;
    if (!r->tokenizer)
        return ct_fail(CT_ECONFIG, "tokenize: --tokenizer FILE_OR_FOLDER is missing; give "
                                   "tokenizer.json, tokenizer.model or their folder");
    if (r->decode && (r->special || r->output))
        return ct_fail(CT_ECONFIG, "tokenize: --decode prints text; --special and --output are "
                                   "about ids");
    return 0;
}

/* ---- the tokenizer ---- */

static int open_tokenizer(struct request *r, const struct ct_tokenizer_ops **ops)
{
    const char *name = ct_hf_tokenizer(&r->arena, r->tokenizer);
    const struct ct_plugin *plugin;
    int rc;

    *ops = NULL;
    if (!name)
        return ct_fail(access(r->tokenizer, F_OK) ? CT_ENOENT : CT_ECONFIG,
                       "tokenize: no plugin reads a tokenizer from %s: it needs tokenizer.json or "
                       "tokenizer.model (`ctitan plugins` lists what is built)",
                       r->tokenizer);
    rc = ct_plugin_find(name, &plugin);
    if (rc == 0)
        rc = ct_options_reset(plugin->options, plugin->config);
    if (rc == 0)
        rc = ct_options_set(plugin->options, plugin->config, "path", r->tokenizer, "--tokenizer");
    for (const struct ct_offer *o = rc < 0 ? NULL : plugin->offers; o && o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TOKENIZER)
            *ops = o->ops;
    if (rc == 0 && !*ops)
        rc = ct_fail(CT_EABI, "plugin %s has lost its tokenizer", name);
    return rc == 0 && (*ops)->open ? (*ops)->open() : rc;
}

static int read_all(struct request *r, char **text, size_t *size)
{
    size_t room = 0, got;

    *text = NULL;
    *size = 0;
    do {
        *text = ct_arena_grow(&r->arena, *text, &room, *size + 65536, 1);
        got = fread(*text + *size, 1, 65535, stdin);
        *size += got;
    } while (got);
    (*text)[*size] = '\0';
    return ferror(stdin) ? ct_fail(CT_EIO, "stdin: %s", strerror(errno)) : 0;
}

/* ---- ids ---- */

struct ids {
    int32_t *at;
    size_t count;
};

/* Text seldom has more tokens than a third of its bytes; if it has, it is encoded again. */
static int encode_all(struct request *r, const struct ct_tokenizer_ops *t, const char *text,
                      size_t size, struct ids *ids)
{
    int64_t (*encode)(const char *, size_t, int32_t *, size_t) =
        r->special && t->prompt ? t->prompt : t->encode;
    size_t first = r->special && !t->prompt && t->bos() >= 0, room = size / 3 + 64;
    int64_t count;

    for (;;) {
        ids->at = ct_arena_array(&r->arena, int32_t, room + first);
        if (first)
            ids->at[0] = t->bos();
        count = encode(text, size, ids->at + first, room);
        if (count < 0)
            return (int)count;
        if ((size_t)count <= room)
            break;
        room = (size_t)count;
    }
    ids->count = (size_t)count + first;
    return 0;
}

static int write_ids(const struct ids *ids, const char *output)
{
    struct ct_new_file file;
    bool failed = false;
    int rc;

    if (!output) {
        for (size_t i = 0; i < ids->count; i++)
            printf("%d\n", (int)ids->at[i]);
        return 0; /* main reports what stdout did not take */
    }
    rc = ct_file_begin(&file, output);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ids->count; i++) {
        uint32_t id = htole32((uint32_t)ids->at[i]);

        failed |= fwrite(&id, sizeof(id), 1, file.out) != 1;
    }
    return ct_file_end(&file, failed ? ct_fail(CT_EIO, "%s: %s", output, strerror(errno)) : 0);
}

/* ---- text ---- */

static int print_decoded(const struct ct_tokenizer_ops *t, struct ct_decoding *d, int32_t id,
                         bool ended)
{
    const char *text;
    int64_t size = t->decoding_add(d, &id, !ended, ended, &text);

    if (size > 0)
        fwrite(text, 1, (size_t)size, stdout);
    return size < 0 ? (int)size : 0;
}

static int decode_all(const struct ct_tokenizer_ops *t, const char *text)
{
    struct ct_decoding *decoding = NULL;
    char *end;
    int rc = t->decoding_open ? t->decoding_open(&decoding)
                              : ct_fail(CT_ECONFIG, "tokenize: --decode: this tokenizer has none");

    while (rc == 0 && *(text += strspn(text, " \t\r\n,"))) {
        long id = strtol(text, &end, 10);

        if (end == text || id < 0 || id > INT32_MAX)
            rc = ct_fail(CT_EINVAL, "tokenize: --decode: expected an id at '%.16s'", text);
        else
            rc = print_decoded(t, decoding, (int32_t)id, false);
        text = end;
    }
    if (rc == 0)
        rc = print_decoded(t, decoding, 0, true);
    if (decoding)
        t->decoding_close(decoding);
    return rc;
}

static int tokenize(int argc, char **argv)
{
    const struct ct_tokenizer_ops *ops;
    struct request r = {0};
    struct ids ids = {0};
    char *text;
    size_t size;
    int rc = parse(argc, argv, &r);

    if (rc == 0)
        rc = open_tokenizer(&r, &ops);
    if (rc == 0)
        rc = read_all(&r, &text, &size);
    if (rc == 0 && r.decode)
        rc = decode_all(ops, text);
    else if (rc == 0)
        rc = encode_all(&r, ops, text, size, &ids);
    if (rc == 0 && !r.decode)
        rc = write_ids(&ids, r.output);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct verb verb_tokenize = {
    .name = "tokenize",
    .summary = "convert text from standard input to token ids, or ids to text",
    .run = tokenize,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan tokenize --tokenizer model < book.txt",
                         "ctitan tokenize --tokenizer model --output tokens.bin < book.txt",
                         "ctitan tokenize --tokenizer model --decode < ids.txt")};
