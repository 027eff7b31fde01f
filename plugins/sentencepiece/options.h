/*
 * A model file's options for decoding, in its protocol buffer (sentencepiece_model.proto).
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <ctitan/base.h>

struct model_options {
    bool strips_one;     /* the space that a text begins with was put there by the model .. */
    bool strips_all;     /* .. or it removes all of them */
    const char *unknown; /* text for the unknown piece */
    size_t unknown_size;
};

/* unknown points into model. A damaged model gives the defaults. */
struct model_options model_options_read(const char *model, size_t size);

#endif
