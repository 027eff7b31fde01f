#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>

#include "events.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* of protobuf fields */
enum { DT_STRING = 7, SESSION_START = 1 };                /* of tensorflow */

/* ---- messages ---- */

struct message {
    FILE *out;
    char *data;
    size_t size;
};

static void begin(struct message *m)
{
    m->out = open_memstream(&m->data, &m->size);
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        putc((int)(value & 0x7F) | 0x80, m->out);
    putc((int)value, m->out);
}

static void put_tag(struct message *m, unsigned field, unsigned type)
{
    put_varint(m, field << 3 | type);
}

static void put_bytes(struct message *m, unsigned field, const void *data, size_t size)
{
    put_tag(m, field, BYTES);
    put_varint(m, size);
    fwrite(data, 1, size, m->out);
}

static void put_string(struct message *m, unsigned field, const char *text)
{
    put_bytes(m, field, text, strlen(text));
}

static void put_double(struct message *m, unsigned field, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits = htole64(bits);
    put_tag(m, field, FIXED64);
    fwrite(&bits, sizeof(bits), 1, m->out);
}

static void put_float(struct message *m, unsigned field, double value)
{
    float narrow = (float)value;
    uint32_t bits;

    memcpy(&bits, &narrow, sizeof(bits));
    bits = htole32(bits);
    put_tag(m, field, FIXED32);
    fwrite(&bits, sizeof(bits), 1, m->out);
}

static void put_number(struct message *m, unsigned field, uint64_t value)
{
    put_tag(m, field, VARINT);
    put_varint(m, value);
}

/* Put inner as a field, and free it. */
static void put_message(struct message *m, unsigned field, struct message *inner)
{
    fclose(inner->out);
    put_bytes(m, field, inner->data, inner->size);
    free(inner->data);
}

/* ---- records ---- */

/* CRC-32C (Castagnoli), masked as in records of TensorFlow. */
static uint32_t checksum(const void *data, size_t size)
{
    const unsigned char *at = data;
    uint32_t crc = UINT32_MAX;

    while (size--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return htole32((crc >> 15 | crc << 17) + 0xA282EAD8u);
}

static int write_record(FILE *out, struct message *m)
{
    uint64_t size;
    uint32_t size_sum, sum;
    bool failed;

    fclose(m->out);
    size = htole64(m->size);
    size_sum = checksum(&size, sizeof(size));
    sum = checksum(m->data, m->size);
    failed = fwrite(&size, sizeof(size), 1, out) != 1 ||
             fwrite(&size_sum, sizeof(size_sum), 1, out) != 1 ||
             fwrite(m->data, 1, m->size, out) != m->size ||
             fwrite(&sum, sizeof(sum), 1, out) != 1 || fflush(out);
    free(m->data);
    return failed ? ct_fail(CT_EIO, "cannot write TensorBoard's events: %s", strerror(errno)) : 0;
}

/* An event of now: 1 wall_time. */
static void begin_event(struct message *m)
{
    begin(m);
    put_double(m, 1, ct_wall_clock());
}

/* 3 file_version */
int events_begin(FILE *out)
{
    struct message event;

    begin_event(&event);
    put_string(&event, 3, "brain.Event:2");
    return write_record(out, &event);
}

/* 2 step, 7 session_log {1 status: START} */
int events_restart(FILE *out, int64_t step)
{
    struct message event, session;

    begin_event(&event);
    put_number(&event, 2, (uint64_t)step);
    begin(&session);
    put_number(&session, 1, SESSION_START);
    put_message(&event, 7, &session);
    return write_record(out, &event);
}

/* 2 step, 5 summary {1 value {1 tag, 2 simple_value}} */
int events_scalars(FILE *out, int64_t step, const struct events_scalar *scalars, size_t count)
{
    struct message event, summary, value;

    begin_event(&event);
    put_number(&event, 2, (uint64_t)step);
    begin(&summary);
    for (size_t i = 0; i < count; i++) {
        begin(&value);
        put_string(&value, 1, scalars[i].tag);
        put_float(&value, 2, scalars[i].value);
        put_message(&summary, 1, &value);
    }
    put_message(&event, 5, &summary);
    return write_record(out, &event);
}

/* A tensor of one string: 1 dtype, 2 shape {2 dim {1 size}}, 8 string_val. */
static void put_text(struct message *m, unsigned field, const char *text, size_t size)
{
    struct message tensor, shape, dim;

    begin(&tensor);
    put_number(&tensor, 1, DT_STRING);
    begin(&shape);
    begin(&dim);
    put_number(&dim, 1, 1);
    put_message(&shape, 2, &dim);
    put_message(&tensor, 2, &shape);
    put_bytes(&tensor, 8, text, size);
    put_message(m, field, &tensor);
}

/* 5 summary {1 value {1 tag, 8 tensor, 9 metadata {1 plugin_data {1 plugin_name}}}} */
int events_text(FILE *out, const char *tag, const char *text, size_t size)
{
    struct message event, summary, value, metadata, plugin;

    begin_event(&event);
    begin(&summary);
    begin(&value);
    put_string(&value, 1, tag);
    put_text(&value, 8, text, size);
    begin(&metadata);
    begin(&plugin);
    put_string(&plugin, 1, "text");
    put_message(&metadata, 1, &plugin);
    put_message(&value, 9, &metadata);
    put_message(&summary, 1, &value);
    put_message(&event, 5, &summary);
    return write_record(out, &event);
}
