/*
 * Tokenizers of SentencePiece's own files, through its library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <unistr.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/tokenizer.h>
#include <ctitan/recipe.h>
#include <ctitan/plugin.h>

#include "library.h"
#include "options.h"

#define MARK "\xE2\x96\x81" /* U+2581, in the place of a space */
#define REPLACEMENT "\xEF\xBF\xBD"
#define FILE_BYTES ((size_t)256 << 20)

static struct config {
    const char *path;
    bool add_bos, add_eos;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", "",
                  "tokenizer.model, or a folder with it; empty: [model] init_from"),
    CT_OPT_BOOL(struct config, add_bos, "add_bos", "true",
                "Begin each document of the data with the token for that"),
    CT_OPT_BOOL(struct config, add_eos, "add_eos", "true",
                "End each document of the data with the token for that"),
    {0},
};

static const struct ct_tokenizer_file files[] = {{"tokenizer.model", "\n", 1},
                                                 {"spiece.model", "\n", 1},
                                                 {"sentencepiece.bpe.model", "\n", 1},
                                                 {0}};

/* The tokenizer that is open. */
static struct {
    struct ct_arena arena;
    struct library *library;
    struct model_options options;
    int32_t bos, eos;
    bool prompt_bos, prompt_eos; /* belong around a prompt */
    uint64_t identity;
} open_model;

/* ---- opening ---- */

static int read_model(const char *file)
{
    enum { VERSION = 1 }; /* counts the changes of this code that change ids */
    size_t size;
    char *model;
    int rc = ct_file_read(&open_model.arena, file, FILE_BYTES, &model, &size);

    if (rc == 0)
        rc = ct_context(library_open(&open_model.library, model, size), "%s", file);
    if (rc < 0)
        return rc;
    open_model.options = model_options_read(model, size);
    open_model.identity = XXH3_64bits_withSeed(model, size, VERSION);
    return 0;
}

static int read_named(const json_t *root, const char *key, int32_t *id)
{
    const char *content = ct_tokenizer_special(root, key);

    if (!content)
        return 0;
    *id = library_find(open_model.library, content);
    return *id >= 0
               ? 0
               : ct_fail(CT_ECONFIG, "%s is '%s', which is not in the vocabulary", key, content);
}

/* Tokens that are added to those of the model's file have ids of their own, which are not here. */
static int check_added(const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens_decoder"), *token;
    const char *id;

    json_object_foreach((json_t *)(uintptr_t)added, id, token)
    {
        const char *content = json_string_value(json_object_get(token, "content"));

        if (strtol(id, NULL, 10) >= library_count(open_model.library))
            return ct_fail(CT_ECONFIG,
                           "added_tokens_decoder: %.16s = '%.64s' is not supported: the model has "
                           "%d tokens",
                           id, content ? content : "", (int)library_count(open_model.library));
    }
    return 0;
}

static int read_config(const char *file)
{
    const char *path;
    json_t *root;
    int rc = ct_tokenizer_config(&open_model.arena, file, &root, &path);

    if (rc < 0 || !root)
        return rc;
    open_model.prompt_bos = !json_is_false(json_object_get(root, "add_bos_token"));
    open_model.prompt_eos = json_is_true(json_object_get(root, "add_eos_token"));
    rc = read_named(root, "bos_token", &open_model.bos);
    if (rc == 0)
        rc = read_named(root, "eos_token", &open_model.eos);
    if (rc == 0)
        rc = check_added(root);
    json_decref(root);
    return ct_context(rc, "%s", path);
}

static int open_tokenizer(void)
{
    const char *path = *config.path ? config.path : ct_config.model.init_from, *file;
    int rc;

    if (!*path)
        return ct_fail(CT_ECONFIG, "neither [sentencepiece] path nor [model] init_from is set: set "
                                   "one of them to a tokenizer");
    library_close(open_model.library);
    open_model.library = NULL;
    open_model.prompt_bos = true;
    open_model.prompt_eos = false;
    rc = ct_tokenizer_find(&open_model.arena, path, files, "no tokenizer.model is", &file);
    if (rc == 0)
        rc = read_model(file);
    if (rc == 0) {
        open_model.bos = library_bos(open_model.library);
        open_model.eos = library_eos(open_model.library);
        rc = read_config(file);
    }
    return ct_context(rc,
                      *config.path ? "[sentencepiece] path" : "sentencepiece: [model] init_from");
}

/* ---- encoding ---- */

static int64_t vocabulary(void)
{
    return library_count(open_model.library);
}

static int32_t bos(void)
{
    return config.add_bos ? open_model.bos : -1;
}

static int32_t eos(void)
{
    return config.add_eos ? open_model.eos : -1;
}

static int32_t end(void)
{
    return open_model.eos;
}

static int64_t encode_spans(const char *text, size_t size, int32_t *tokens,
                            struct ct_text_span *spans, size_t room)
{
    return library_encode(open_model.library, text, size, tokens, spans, room);
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    return encode_spans(text, size, tokens, NULL, room);
}

static int64_t encode_prompt(const char *text, size_t size, int32_t *tokens, size_t room)
{
    int before = open_model.prompt_bos && open_model.bos >= 0;
    int after = open_model.prompt_eos && open_model.eos >= 0;
    bool first = before && tokens && room > 0;
    int64_t count = encode(text, size, first ? tokens + 1 : tokens, room - (size_t)first);

    if (first)
        tokens[0] = open_model.bos;
    if (after && tokens && (size_t)(count + before) < room)
        tokens[count + before] = open_model.eos;
    return count + before + after;
}

/* ---- decoding ---- */

struct ct_decoding {
    struct {
        char *data;
        size_t size, room;
    } out;
    char bytes[4]; /* of a character that is not whole */
    size_t byte_count;
    bool begun; /* no space is stripped any more */
};

static int put(struct ct_decoding *d, const char *text, size_t size)
{
    size_t room = d->out.room ? d->out.room : 256;
    char *moved;

    while (room < d->out.size + size)
        room *= 2;
    if (room > d->out.room) {
        moved = realloc(d->out.data, room);
        if (!moved)
            return ct_fail(CT_ENOMEM, "%zu bytes of text", room);
        d->out.data = moved;
        d->out.room = room;
    }
    memcpy(d->out.data + d->out.size, text, size);
    d->out.size += size;
    d->begun |= size > 0;
    return 0;
}

/* Whole characters of the bytes that are held; a byte that begins none is U+FFFD. */
static int put_bytes(struct ct_decoding *d, bool ended)
{
    int rc = 0;

    while (rc == 0 && d->byte_count) {
        ucs4_t character;
        int size = u8_mbtoucr(&character, (const uint8_t *)d->bytes, d->byte_count);
        size_t taken = size > 0 ? (size_t)size : 1;

        if (size == -2 && !ended) /* it may become one */
            return 0;
        rc = size > 0 ? put(d, d->bytes, taken) : put(d, REPLACEMENT, strlen(REPLACEMENT));
        d->byte_count -= taken;
        memmove(d->bytes, d->bytes + taken, d->byte_count);
    }
    return rc;
}

static int put_plain(struct ct_decoding *d, const char *piece, size_t size)
{
    const size_t mark = strlen(MARK);
    bool stripped = false;
    int rc = 0;

    if (!d->begun && open_model.options.strips_one && size >= mark && !memcmp(piece, MARK, mark)) {
        piece += mark;
        size -= mark;
        stripped = !open_model.options.strips_all;
    }
    for (size_t at = 0, next; rc == 0 && at < size; at = next) {
        bool space = size - at >= mark && !memcmp(piece + at, MARK, mark);

        next = at + (space ? mark : 1);
        rc = put(d, space ? " " : piece + at, 1);
    }
    d->begun |= stripped;
    return rc;
}

static int find_piece(int32_t token, const char **piece, size_t *size, enum piece_kind *kind)
{
    *piece = NULL;
    *size = 0;
    *kind = PIECE_PLAIN;
    if (token < 0 || token >= library_count(open_model.library))
        return ct_fail(CT_EINVAL, "token %d is not in the vocabulary of %d", (int)token,
                       (int)library_count(open_model.library));
    *piece = library_piece(open_model.library, token, size, kind);
    return 0;
}

/* The byte that <0x41> names. */
static char byte_of(const char *piece)
{
    return (char)strtol(piece + 3, NULL, 16);
}

static int put_piece(struct ct_decoding *d, int32_t token)
{
    enum piece_kind kind;
    const char *piece;
    size_t size;
    int rc = find_piece(token, &piece, &size, &kind);

    if (rc < 0)
        return rc;
    if (kind == PIECE_BYTE) {
        d->bytes[d->byte_count++] = byte_of(piece);
        return put_bytes(d, false);
    }
    rc = put_bytes(d, true);
    if (rc < 0 || kind == PIECE_CONTROL)
        return rc;
    return kind == PIECE_UNKNOWN
               ? put(d, open_model.options.unknown, open_model.options.unknown_size)
               : put_plain(d, piece, size);
}

static int decoding_open(struct ct_decoding **d)
{
    *d = calloc(1, sizeof(**d));
    return *d ? 0 : ct_fail(CT_ENOMEM, "decoding");
}

static int64_t decoding_add(struct ct_decoding *d, const int32_t *tokens, size_t count, bool ended,
                            const char **text)
{
    int rc = 0;

    d->out.size = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put_piece(d, tokens[i]);
    if (rc == 0 && ended)
        rc = put_bytes(d, true);
    *text = d->out.data ? d->out.data : "";
    return rc < 0 ? rc : (int64_t)d->out.size;
}

static void decoding_close(struct ct_decoding *d)
{
    if (d)
        free(d->out.data);
    free(d);
}

static int put_raw(struct ct_decoding *d, int32_t token)
{
    enum piece_kind kind;
    const char *piece;
    size_t size;
    int rc = find_piece(token, &piece, &size, &kind);

    if (rc < 0 || kind != PIECE_BYTE)
        return rc < 0 ? rc : put_piece(d, token);
    return put(d, (char[]){byte_of(piece)}, 1);
}

/* Within a text, where nothing is stripped. */
static int decode(int32_t token, char *text, size_t room)
{
    struct ct_decoding d = {.begun = true};
    int rc = put_raw(&d, token);
    size_t size = d.out.size;

    if (rc == 0 && size > room)
        rc = ct_fail(CT_EINVAL, "no room for the %zu bytes of token %d", size, (int)token);
    if (rc == 0 && size)
        memcpy(text, d.out.data, size);
    free(d.out.data);
    return rc < 0 ? rc : (int)size;
}

static uint64_t identity(void)
{
    return open_model.identity;
}

static const char *path(void)
{
    return config.path;
}

static const struct ct_tokenizer_ops ops = {.size = sizeof(struct ct_tokenizer_ops),
                                            .vocabulary = vocabulary,
                                            .bos = bos,
                                            .eos = eos,
                                            .encode = encode,
                                            .decode = decode,
                                            .open = open_tokenizer,
                                            .identity = identity,
                                            .end = end,
                                            .prompt = encode_prompt,
                                            .encode_spans = encode_spans,
                                            .path = path,
                                            .decoding_open = decoding_open,
                                            .decoding_add = decoding_add,
                                            .decoding_close = decoding_close,
                                            .files = files};

CT_PLUGIN(.name = "sentencepiece", .version = "1.0",
          .summary = "Tokenizers of SentencePiece (tokenizer.model), through its library",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TOKENIZER, "sentencepiece", &ops}));
