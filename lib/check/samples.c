/*
 * Samples of an op type: those that it gives, or one that its signature determines.
 *
 * A signature says how many dimensions each input has and which are equal. Sizes are small, even,
 * and differ between factors. Inputs that repeat do so twice. A signature does not say what
 * integers mean, so they are 0 and 1, which are valid indices of everything.
 */
#include <ctype.h>
#include <string.h>

#include <ctitan/error.h>

#include "machine.h"

struct text {
    struct ct_line inputs;
    int64_t size[128]; /* of a factor, by its letter; 0: not seen */
    int seen;
};

static int64_t size_of(struct text *t, int letter)
{
    static const int64_t sizes[] = {6, 4, 2, 8};

    if (!t->size[letter])
        t->size[letter] = sizes[t->seen++ % (int)CT_COUNT(sizes)];
    return t->size[letter];
}

static const char *fill_of(const char *name, size_t length, char dtype)
{
    switch (dtype) {
    case 'd':
        return "square";
    case 'f':
        return "factor";
    case 'W':
        return "statistic";
    case 'i':
        if (memmem(name, length, "position", 8))
            return "position";
        return memmem(name, length, "document", 8) ? "packed" : "small";
    default:
        return "real";
    }
}

static void add_dimension(struct text *t, char letter, bool first)
{
    const char *comma = first ? "" : ",";

    if (letter == '.')
        ct_line_add(&t->inputs, "%s2,4", comma);
    else
        ct_line_add(&t->inputs, "%s%lld", comma,
                    (long long)size_of(t, (unsigned char)letter & 127));
}

/* One operand: "?!x[.k] T". Returns the end of its text. */
static const char *add_operand(struct text *t, const char *at)
{
    const char *name = at += strspn(at, " ?!("), *factors;
    size_t length = strcspn(at, "[ ");
    char dtype;

    factors = at + length;
    at = *factors == '[' ? strchr(factors, ']') + 1 : factors;
    at += strspn(at, " ");
    dtype = *at++;
    ct_line_add(&t->inputs, "%s%s[", t->inputs.used ? " " : "", fill_of(name, length, dtype));
    for (const char *f = factors + 1; *factors == '[' && *f != ']'; f++)
        add_dimension(t, *f, f == factors + 1);
    ct_line_add(&t->inputs, "]");
    return at + strspn(at, " )");
}

/* The operands of a unit, which ends at the bracket that closes it, or is one operand. */
static const char *add_unit(struct text *t, const char *at)
{
    const char *begin = at + strspn(at, " *");
    bool repeated = memchr(at, '*', (size_t)(begin - at)) != NULL;
    const char *end = begin, *close = *begin == '(' ? strchr(begin, ')') : begin;

    for (int i = 0; i < (repeated ? 2 : 1); i++) {
        end = add_operand(t, begin);
        while (end < close)
            end = add_operand(t, end + strspn(end, " ,"));
    }
    return end;
}

/* "h:g" after the bar: the first is a multiple of the second. */
static void set_tie(struct text *t, const char *signature)
{
    const char *clause = strchr(signature, '|'), *colon = clause ? strchr(clause, ':') : NULL;

    if (colon && isalpha((unsigned char)colon[-1]) && isalpha((unsigned char)colon[1])) {
        t->size[(unsigned char)colon[-1] & 127] = 4;
        t->size[(unsigned char)colon[1] & 127] = 2;
    }
}

static int derive(const struct ct_op_type *type, struct ct_arena *arena, struct ct_sample *sample)
{
    char inputs[1024] = "";
    struct text t = {.inputs = {inputs, sizeof(inputs), 0}};
    const char *at = type->signature, *end = strstr(at, "->");

    if (!end)
        end = at + strcspn(at, "|");
    if (!memchr(at, '[', (size_t)(end - at)))
        return ct_fail(CT_EINVAL,
                       "op %s: its signature \"%s\" has no dimensions, so no sample can be derived "
                       "from it; give one in .samples",
                       type->name, type->signature);
    set_tie(&t, type->signature);
    while (at < end && *(at += strspn(at, " ,")) && at < end)
        at = add_unit(&t, at);
    *sample = (struct ct_sample){.type = type->name, .inputs = ct_arena_strdup(arena, inputs)};
    return 0;
}

/* "real[2,3] index[] -" */
static bool well_formed(const char *at)
{
    while (*(at += strspn(at, " "))) {
        size_t word = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        int dims = 0;

        if (!word || word > 31) {
            if (*at != '-')
                return false;
            at++;
            continue;
        }
        at += word;
        if (*at++ != '[')
            return false;
        for (; isdigit((unsigned char)*at) && dims < CT_MAX_DIMS; dims++) {
            at += strspn(at, "0123456789");
            at += *at == ',';
        }
        if (*at++ != ']')
            return false;
    }
    return true;
}

/* "@replaced=t": what is no attribute. Blanks it out. */
static int take_words(const struct ct_op_type *type, char *text, struct ct_sample *sample)
{
    for (char *at = strchr(text, '@'); at; at = strchr(text, '@')) {
        size_t length = strcspn(at, " ");

        if (!strncmp(at, "@joint", length))
            sample->joint = true;
        else if (!strncmp(at, "@replaced=", 10))
            sample->replaced = at[10];
        else if (!strncmp(at, "@gradients=", 11))
            sample->gradients = (unsigned)strtoul(at + 11, NULL, 10);
        else if (!strncmp(at, "@inner_roundings=", 17))
            sample->inner_roundings = atoi(at + 17);
        else if (!strncmp(at, "@step=", 6))
            sample->step = strtod(at + 6, NULL);
        else if (!strncmp(at, "@flops=", 7)) {
            sample->counted = true;
            sample->flops = strtod(at + 7, NULL);
        } else
            return ct_fail(CT_EINVAL, "op %s: sample: unknown fill %.*s", type->name, (int)length,
                           at);
        memset(at, ' ', length);
    }
    return 0;
}

/* "k=2: real[4,6]" */
static int parse(const struct ct_op_type *type, struct ct_arena *arena, char *text,
                 struct ct_sample *sample)
{
    char *colon = strrchr(text, ':'); /* attributes may have some, too */
    int rc = 0;

    *sample = (struct ct_sample){.type = type->name};
    if (colon) {
        *colon = '\0';
        rc = take_words(type, text, sample);
        sample->attrs = ct_arena_strdup(arena, text + strspn(text, " "));
        text = colon + 1;
    }
    sample->inputs = ct_arena_strdup(arena, text + strspn(text, " "));
    if (rc < 0)
        return rc;
    return well_formed(sample->inputs)
               ? 0
               : ct_fail(CT_EINVAL, "op %s: sample \"%s\": expected inputs as in \"real[2,3] -\"",
                         type->name, sample->inputs);
}

int ct_samples_of(const struct ct_op_type *type, struct ct_arena *arena, struct ct_sample **samples)
{
    const char *given = ct_op_type_whole(type)->samples;
    char *text = ct_arena_strdup(arena, given ? given : ""), *save = NULL;
    struct ct_sample *list = ct_arena_array(arena, struct ct_sample, strlen(text) + 2);
    int rc = 0, count = 0;

    *samples = list;
    if (!given)
        return derive(type, arena, list);
    for (char *one = strtok_r(text, ";", &save); rc == 0 && one; one = strtok_r(NULL, ";", &save))
        rc = parse(type, arena, one, &list[count++]);
    return rc;
}
