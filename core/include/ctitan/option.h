/*
 * Options: one table per configuration struct.
 *
 * A table is the only description of an option. The INI reader, the command line, `ctitan help`,
 * attributes in graph text and the run's saved recipe are all produced from it, so a default or a
 * range is written once. Defaults are strings and are parsed like a user's value.
 *
 * Strings and choices are not copied: the text that a field is set from must outlive the struct.
 */
#ifndef CT_OPTION_H
#define CT_OPTION_H

#include <math.h> /* a range may end at INFINITY */

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* The last four are for attributes of ops only. Their values are written as in graph text;
   ct_attribute_set and ct_attribute_format (text.h) read and write them. */
enum ct_option_type {
    CT_BOOL,
    CT_INT,
    CT_FLOAT,
    CT_STRING,
    CT_CHOICE,        /* one of several words, kept as text */
    CT_ENUM,          /* one of several words, kept as its position among them */
    CT_ATTR_DTYPE,    /* enum ct_dtype */
    CT_ATTR_SHAPE,    /* struct ct_shape */
    CT_ATTR_AXES,     /* ct_axes */
    CT_ATTR_SHARDING, /* struct ct_target */
};

struct ct_option {
    size_t size;          /* set by the macros below */
    const char *name;     /* as in the INI file: "weight_decay" */
    const char *fallback; /* NULL: the user must set it */
    const char *doc;      /* one sentence, no final stop */
    enum ct_option_type type;
    size_t offset;       /* of the field in the struct */
    double min, max;     /* inclusive; numbers only */
    const char *choices; /* "stop|skip"; CT_CHOICE and CT_ENUM only */
};

/* The field's C type is checked at compile time: a mismatch does not build. */
#define CT_OPT_AT(T, f, type) _Generic(((T *)0)->f, type : offsetof(T, f))

#define CT_OPT_BOOL(T, f, name, fallback, doc)                                                     \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_BOOL, CT_OPT_AT(T, f, bool), 0, 0, NULL  \
    }
#define CT_OPT_INT(T, f, name, fallback, min, max, doc)                                            \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_INT, CT_OPT_AT(T, f, int64_t), min, max, \
            NULL                                                                                   \
    }
#define CT_OPT_FLOAT(T, f, name, fallback, min, max, doc)                                          \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_FLOAT, CT_OPT_AT(T, f, double), min,     \
            max, NULL                                                                              \
    }
#define CT_OPT_STRING(T, f, name, fallback, doc)                                                   \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_STRING, CT_OPT_AT(T, f, const char *),   \
            0, 0, NULL                                                                             \
    }
#define CT_OPT_CHOICE(T, f, name, fallback, choices, doc)                                          \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_CHOICE, CT_OPT_AT(T, f, const char *),   \
            0, 0, choices                                                                          \
    }
/* f: an enum whose constants number the choices from 0. */
#define CT_OPT_ENUM(T, f, name, fallback, choices, doc)                                            \
    {                                                                                              \
        sizeof(struct ct_option), name, fallback, doc, CT_ENUM, CT_OPT_AT(T, f, unsigned), 0, 0,   \
            choices                                                                                \
    }

/*
 * Set every field to its fallback, or to zero if it has none: then the user must set it.
 * CT_ECONFIG: an option refuses its own fallback.
 */
CT_API int ct_options_reset(const struct ct_option *table, void *config);
CT_API int ct_option_reset(const struct ct_option *option, void *config);

/*
 * Set one field from text. where names the source in a failure: "a.ini:41". CT_ECONFIG: no option
 * of that name (the message has the nearest), or text of the wrong type, out of range, or not a
 * choice.
 */
CT_API int ct_options_set(const struct ct_option *table, void *config, const char *name,
                          const char *text, const char *where);

/* The option called name, or NULL. */
CT_API const struct ct_option *ct_option_find(const struct ct_option *table, const char *name);

/* The values that an option takes, for messages: "0 to 1", "at least 1", "stop, skip"; "": any. */
CT_API int ct_option_range(const struct ct_option *option, char *text, size_t room);
/*
 * The one of count names that is nearest to word, or NULL if none is near: within an edit distance
 * of a third of the word, where swapped neighbours count once.
 */
CT_API const char *ct_nearest(const char *word, const char *const *names, size_t count);
/* "; did you mean NAME?", for the end of a message, or "". Valid until the thread's next call. */
CT_API const char *ct_did_you_mean(const char *word, const char *const *names, size_t count);

CT_END_DECLS

#ifdef __cplusplus /* which has no _Generic */
template <typename Type, typename Field> struct ct_option_field;
/* An enum, which is an unsigned in C. */
template <typename Type, typename Field> struct ct_option_field<Type, Field &> {
    static_assert(__is_same(Type, unsigned) && __is_enum(Field) && sizeof(Field) == sizeof(Type),
                  "the field has another type than the option");
    static constexpr size_t at(size_t offset)
    {
        return offset;
    }
};
template <typename Type> struct ct_option_field<Type, Type &> {
    static constexpr size_t at(size_t offset)
    {
        return offset;
    }
};
#undef CT_OPT_AT
#define CT_OPT_AT(T, f, type) ct_option_field<type, decltype((((T *)0)->f))>::at(offsetof(T, f))
#endif

#endif
