#include <stdlib.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include <ctitan/error.h>

#include "unpack.h"

#define CHUNK ((size_t)1 << 18)
#define SMALLEST ((size_t)1 << 16) /* what shrinks to less may expand as if it had this size */
#define MOST_TIMES 256 /* text seldom shrinks to a tenth; what shrinks more than this is a bomb */

struct unpacking {
    struct spool *text;
    size_t most;
    char chunk[CHUNK];
};

static bool is_zstd(const char *data, size_t size)
{
    return size >= 4 && !memcmp(data, "\x28\xB5\x2F\xFD", 4);
}

bool unpack_is_packed(const char *data, size_t size)
{
    return is_zstd(data, size) || (size >= 2 && !memcmp(data, "\x1F\x8B", 2));
}

static int put(struct unpacking *u, size_t size)
{
    if (size > u->most - u->text->size)
        return ct_fail(CT_ECONFIG, "it expands to more than %d times its size, so it is not text",
                       MOST_TIMES);
    return spool_write(u->text, u->chunk, size);
}

static int unpack_zstd(struct unpacking *u, const char *data, size_t size)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {data, size, 0};
    ZSTD_outBuffer out = {u->chunk, CHUNK, 0};
    size_t left = 1;
    int rc = stream ? 0 : ct_fail(CT_ENOMEM, "zstd");

    while (rc == 0 && (in.pos < size || (left && out.pos == CHUNK))) {
        out.pos = 0;
        left = ZSTD_decompressStream(stream, &out, &in);
        rc = ZSTD_isError(left) ? ct_fail(CT_ECONFIG, "zstd: %s", ZSTD_getErrorName(left))
                                : put(u, out.pos);
    }
    if (rc == 0 && left)
        rc = ct_fail(CT_ECONFIG, "zstd: the file is truncated");
    ZSTD_freeDStream(stream);
    return rc;
}

/* A file may be several compressed ones, one after the other. */
static int unpack_gzip(struct unpacking *u, const char *data, size_t size)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)data};
    size_t left = size;
    int end = Z_OK, rc = inflateInit2(&z, 16 + MAX_WBITS) == Z_OK ? 0 : ct_fail(CT_ENOMEM, "zlib");

    while (rc == 0 && (end != Z_STREAM_END || z.avail_in || left)) {
        size_t chunk = left < 1u << 30 ? left : 1u << 30;

        if (!z.avail_in) {
            z.avail_in = (uInt)chunk;
            left -= chunk;
        }
        if (end == Z_STREAM_END)
            inflateReset(&z);
        z.next_out = (Bytef *)u->chunk;
        z.avail_out = CHUNK;
        end = inflate(&z, Z_NO_FLUSH);
        rc = put(u, CHUNK - z.avail_out);
        if (rc < 0)
            break;
        if (end == Z_BUF_ERROR && !z.avail_in && !left)
            rc = ct_fail(CT_ECONFIG, "gzip: the file is truncated");
        else if (end != Z_OK && end != Z_STREAM_END && end != Z_BUF_ERROR)
            rc = ct_fail(CT_ECONFIG, "gzip: %s", z.msg ? z.msg : zError(end));
    }
    inflateEnd(&z);
    return rc;
}

int unpack(const char *data, size_t size, struct spool *text)
{
    struct unpacking *u = malloc(sizeof(*u));
    int rc;

    if (!u)
        return ct_fail(CT_ENOMEM, "a compressed file");
    u->text = text;
    u->most = MOST_TIMES * (size < SMALLEST ? SMALLEST : size);
    rc = is_zstd(data, size) ? unpack_zstd(u, data, size) : unpack_gzip(u, data, size);
    free(u);
    return rc < 0 ? rc : spool_map(text);
}
