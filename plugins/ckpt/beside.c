/*
 * The small files that a folder of the model has beside weights, such as the tokenizer's, in a
 * checkpoint's folder hf. index.json has the size and the XXH3 of each. With them, `export` needs
 * nothing but the checkpoint.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "ckpt.h"

static const char *path_of(struct ct_arena *arena, const char *folder, const char *name)
{
    return ct_arena_printf(arena, "%s/" CKPT_BESIDE "/%s", folder, name);
}

int ckpt_beside_write(const struct ckpt *c, const char *folder)
{
    struct ct_arena scratch = {0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->beside.count; i++)
        rc = ct_file_write(path_of(&scratch, folder, c->beside.list[i].name),
                           c->beside.list[i].data, c->beside.list[i].size);
    ct_arena_finish(&scratch);
    return rc;
}

int ckpt_beside_read(struct ckpt *c)
{
    for (size_t i = 0; i < c->beside.count; i++) {
        struct ct_small_file *f = &c->beside.list[i];
        const char *path = path_of(c->arena, c->path, f->name);
        char *text;
        size_t size;
        int rc = ct_file_read(c->arena, path, CT_SMALL_FILE_MOST, &text, &size);

        if (rc < 0)
            return ct_context(rc == CT_ENOENT || rc == CT_EINVAL ? CT_EDAMAGED : rc, "%s", c->path);
        if (size != f->size || ckpt_hash(text, size) != c->beside_hash[i])
            return ct_fail(CT_EDAMAGED, "%s: its checksum is wrong", path);
        f->data = text;
    }
    return 0;
}
