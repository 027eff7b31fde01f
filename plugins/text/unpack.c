#include <stdlib.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include <ctitan/error.h>

#include "unpack.h"

#define FIRST_ROOM ((size_t)1 << 20)
#define MOST_TIMES 256 /* text seldom shrinks to a tenth; what shrinks more than this is a bomb */

struct unpacking {
    char *text;
    size_t used, room, most;
};

static bool is_zstd(const char *data, size_t size)
{
    return size >= 4 && !memcmp(data, "\x28\xB5\x2F\xFD", 4);
}

bool unpack_is_packed(const char *data, size_t size)
{
    return is_zstd(data, size) || (size >= 2 && !memcmp(data, "\x1F\x8B", 2));
}

static int grow(struct unpacking *u)
{
    size_t room = u->room ? 2 * u->room : FIRST_ROOM;
    char *text;

    if (u->used < u->room)
        return 0;
    if (room > u->most)
        return ct_fail(CT_ECONFIG, "it expands to more than %d times its size, so it is not text",
                       MOST_TIMES);
    text = realloc(u->text, room);
    if (!text)
        return ct_fail(CT_ENOMEM, "%zu bytes of text", room);
    u->text = text;
    u->room = room;
    return 0;
}

static int unpack_zstd(struct unpacking *u, const char *data, size_t size)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {data, size, 0};
    size_t left = 1;
    int rc = stream ? 0 : ct_fail(CT_ENOMEM, "zstd");

    while (rc == 0 && (in.pos < size || (left && u->used == u->room))) {
        ZSTD_outBuffer out;

        rc = grow(u);
        if (rc < 0)
            break;
        out = (ZSTD_outBuffer){u->text + u->used, u->room - u->used, 0};
        left = ZSTD_decompressStream(stream, &out, &in);
        u->used += out.pos;
        if (ZSTD_isError(left))
            rc = ct_fail(CT_ECONFIG, "zstd: %s", ZSTD_getErrorName(left));
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
        size_t chunk = left < 1u << 30 ? left : 1u << 30, room;

        if (!z.avail_in) {
            z.avail_in = (uInt)chunk;
            left -= chunk;
        }
        if (end == Z_STREAM_END)
            inflateReset(&z);
        rc = grow(u);
        if (rc < 0)
            break;
        room = u->room - u->used < 1u << 30 ? u->room - u->used : 1u << 30;
        z.next_out = (Bytef *)u->text + u->used;
        z.avail_out = (uInt)room;
        end = inflate(&z, Z_NO_FLUSH);
        u->used += room - z.avail_out;
        if (end == Z_BUF_ERROR && !z.avail_in && !left)
            rc = ct_fail(CT_ECONFIG, "gzip: the file is truncated");
        else if (end != Z_OK && end != Z_STREAM_END && end != Z_BUF_ERROR)
            rc = ct_fail(CT_ECONFIG, "gzip: %s", z.msg ? z.msg : zError(end));
    }
    inflateEnd(&z);
    return rc;
}

int unpack(const char *data, size_t size, char **text, size_t *text_size)
{
    struct unpacking u = {.most = MOST_TIMES * (size < FIRST_ROOM / 16 ? FIRST_ROOM / 16 : size)};
    int rc = is_zstd(data, size) ? unpack_zstd(&u, data, size) : unpack_gzip(&u, data, size);

    *text = u.text;
    *text_size = u.used;
    if (rc < 0) {
        free(u.text);
        *text = NULL;
    }
    return rc;
}
