/*
 * Tar files by libarchive, which knows the formats of POSIX, GNU and their forerunners.
 *
 * A tar file has checksums of its headers alone. This reads its members in turn and checks that
 * nothing of the file is passed over: each member is whole, and behind the last one is the end of
 * an archive and nothing else. Files that are joined are read one after the other.
 */
#include <locale.h>
#include <stdio.h>

#include <archive.h>
#include <archive_entry.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "read.h"

#define BLOCK 512 /* bytes of a header, and of what ends an archive at least */

struct tar {
    const struct ct_reading *reading;
    struct archive *archive;
    size_t at;    /* of the header that is read */
    size_t links; /* and devices: members that have no text of their own */
    char first_link[256];
};

/* ---- failures ---- */

static const char *reason(const struct tar *t)
{
    const char *why = archive_error_string(t->archive);

    return why ? why : "libarchive does not say why";
}

/* member NULL: where a header was expected. */
static int damaged(const struct tar *t, const char *member, const char *why)
{
    return member ? ct_fail(CT_ECONFIG,
                            "the tar file is damaged in member %s, whose header is at "
                            "byte %zu: %s",
                            member, t->at, why)
                  : ct_fail(CT_ECONFIG, "the tar file is damaged at byte %zu: %s", t->at, why);
}

/* ---- members ---- */

static int take(const struct tar *t, const char *name, const char *data, size_t size)
{
    const struct ct_reader_text text = {
        .size = sizeof(text), .name = name, .data = data, .bytes = size};

    return t->reading->take(t->reading->context, &text);
}

/* The bytes of a member that is not sparse lie together behind its header. */
static int read_file(struct tar *t, struct archive_entry *entry, const char *name)
{
    size_t at = (size_t)archive_filter_bytes(t->archive, 0), left = t->reading->bytes - at;
    la_int64_t size = archive_entry_size(entry);

    if (archive_entry_sparse_count(entry))
        return ct_fail(CT_ECONFIG,
                       "member %s is sparse, which is not supported: make the archive "
                       "without --sparse",
                       name);
    if (at > t->reading->bytes || size < 0 || (size_t)size > left)
        return damaged(t, name, "the file ends within it: it is truncated");
    if (archive_read_data_skip(t->archive) != ARCHIVE_OK)
        return damaged(t, name, reason(t));
    return take(t, name, (const char *)t->reading->data + at, (size_t)size);
}

static int read_member(struct tar *t, struct archive_entry *entry)
{
    const char *name = archive_entry_pathname_utf8(entry);

    name = name ? name : archive_entry_pathname(entry);
    if (!name || !*name)
        return damaged(t, NULL, "a member has no name that can be read");
    if (archive_entry_filetype(entry) == AE_IFDIR)
        return 0;
    if (archive_entry_filetype(entry) == AE_IFREG && !archive_entry_hardlink(entry))
        return read_file(t, entry, name);
    if (!t->links++)
        snprintf(t->first_link, sizeof(t->first_link), "%s", name);
    return 0;
}

/* ---- the file ---- */

/* Behind the last member there are zeros alone, a block of them at least. */
static int check_end(const struct tar *t)
{
    const char *data = t->reading->data;
    size_t size = t->reading->bytes;

    if (t->at > size || size - t->at < BLOCK)
        return damaged(t, NULL, "it ends without the mark of an end: it is truncated");
    for (size_t i = t->at; i < size; i++)
        if (data[i])
            return ct_fail(CT_ECONFIG,
                           "the tar file is damaged at byte %zu: it goes on behind its "
                           "end",
                           i);
    return 0;
}

static int next_header(struct tar *t, struct archive_entry **entry)
{
    t->at = (size_t)archive_filter_bytes(t->archive, 0);
    return archive_read_next_header(t->archive, entry);
}

static int read_all(struct tar *t)
{
    struct archive_entry *entry;
    int rc = 0, got = ARCHIVE_OK;

    if (archive_read_open_memory(t->archive, t->reading->data, t->reading->bytes) != ARCHIVE_OK)
        return ct_fail(CT_ECONFIG, "it is no tar file: %s", reason(t));
    while (rc == 0 && (got = next_header(t, &entry)) == ARCHIVE_OK)
        rc = read_member(t, entry);
    if (rc < 0)
        return rc;
    return got == ARCHIVE_EOF ? check_end(t) : damaged(t, NULL, reason(t));
}

/* libarchive turns names into the locale's characters, and calls a file damaged if it lacks one. */
int tar_read(const struct ct_reading *reading)
{
    struct tar t = {.reading = reading, .archive = archive_read_new()};
    locale_t names = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = (locale_t)0;
    int rc = 0;

    if (!t.archive)
        return ct_fail(CT_ENOMEM, "libarchive");
    if (archive_read_support_format_tar(t.archive) != ARCHIVE_OK ||
        archive_read_set_format_option(t.archive, "tar", "read_concatenated_archives", "1") !=
            ARCHIVE_OK)
        rc = ct_fail(CT_EINVAL, "libarchive: %s", reason(&t));
    if (names)
        before = uselocale(names);
    if (rc == 0)
        rc = read_all(&t);
    if (names)
        uselocale(before);
    if (names)
        freelocale(names);
    if (rc == 0 && t.links)
        ct_warn("%s: links and devices in it are not read: %zu, the first is %s", reading->path,
                t.links, t.first_link);
    archive_read_free(t.archive);
    return rc;
}
