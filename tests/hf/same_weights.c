/*
 * same_weights A B: whether two Hugging Face folders have the same tensors, to the last bit.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>

static bool same(const struct ct_weight *a, const struct ct_weight *b)
{
    return b && a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)a->ndim) &&
           !memcmp(a->data, b->data,
                   (size_t)ct_shape_count(a->ndim, a->shape) * ct_dtype_size(a->dtype));
}

int main(int argc, char **argv)
{
    struct ct_weights *a = NULL, *b = NULL;
    int bad;

    if (argc != 3 || ct_weights_open(argv[1], &a) < 0 || ct_weights_open(argv[2], &b) < 0) {
        printf("%s\n", argc == 3 ? ct_error_message() : "same_weights A B");
        return 2;
    }
    bad = ct_weights_count(a) != ct_weights_count(b);
    for (size_t i = 0; i < ct_weights_count(a); i++) {
        const struct ct_weight *w = ct_weights_at(a, i);

        if (!same(w, ct_weights_find(b, w->name))) {
            printf("%s differs\n", w->name);
            bad = 1;
        }
    }
    ct_weights_close(a);
    ct_weights_close(b);
    return bad;
}
