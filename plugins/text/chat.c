#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/jinja.h>

#include "fields.h"

/* ---- what is trained on ---- */

static bool is_assistant(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && !strcmp(role, "assistant");
}

static float weight_of(const json_t *message)
{
    const json_t *weight = json_object_get(message, "weight");

    return json_is_number(weight) ? (float)json_number_value(weight) : 1;
}

static int check_weight(const json_t *message, bool any)
{
    const json_t *weight = json_object_get(message, "weight");
    float value = weight_of(message);

    if (!weight || json_is_null(weight) || (json_is_number(weight) && (value == 0 || value == 1)))
        return 0;
    if (!any)
        return ct_fail(CT_ECONFIG, "a message's \"weight\" is neither 0 nor 1: others need [text] "
                                   "label_weights = true");
    return json_is_number(weight) && value > 0 && value < 1e6F
               ? 0
               : ct_fail(CT_ECONFIG, "a message's \"weight\": expected a number from 0 to 1e6");
}

/* Whether a message is trained on; last: the assistant's last one. */
static bool is_trained(const struct chat_request *r, const json_t *message, bool last)
{
    if (!is_assistant(message) || weight_of(message) == 0)
        return false;
    return r->train == CHAT_FIELD  ? json_is_true(json_object_get(message, r->field[CHAT_TRAIN]))
           : r->train == CHAT_LAST ? last
                                   : true;
}

/* The roles that there are, in the order in which they first come. */
static int no_assistant(const json_t *messages)
{
    struct ct_arena arena = {0};
    const char *roles = "";
    int rc;

    for (size_t i = 0, k; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");

        for (k = 0; !json_equal(role, json_object_get(json_array_get(messages, k), "role")); k++)
            ;
        if (k == i)
            roles = ct_arena_printf(&arena, "%s%s\"%s\"", roles, *roles ? ", " : "",
                                    json_string_value(role));
    }
    rc = ct_fail(CT_ECONFIG, "no message has the role \"assistant\"%s%s",
                 *roles ? "; the roles are " : "", roles);
    ct_arena_finish(&arena);
    return rc;
}

/* The first `prompted` messages are of a prompt, whose completion alone is trained on. */
static int choose(const struct chat_request *r, bool weights, const json_t *messages,
                  size_t prompted, bool *trained)
{
    size_t count = json_array_size(messages), last = count;
    bool some = r->train == CHAT_ALL || r->train == CHAT_FIELD, answers = false;
    int rc = 0;

    for (size_t i = 0; i < count; i++) {
        const json_t *message = json_array_get(messages, i);

        if (!json_is_string(json_object_get(message, "role")))
            return ct_fail(CT_ECONFIG, "message %zu has no \"%s\", or it is not a string", i + 1,
                           r->field[CHAT_ROLE]);
        answers |= is_assistant(message) && i >= prompted;
        last = is_assistant(message) ? i : last;
        rc = rc < 0 ? rc : check_weight(message, weights);
    }
    for (size_t i = 0; i < count; i++)
        trained[i] = i >= prompted && is_trained(r, json_array_get(messages, i), i == last);
    if (rc == 0 && !some && !answers)
        rc = prompted ? ct_fail(CT_ECONFIG, "no message of the \"%s\" has the role \"assistant\"",
                                r->field[CHAT_COMPLETION])
                      : no_assistant(messages);
    return rc;
}

/* ---- text ---- */

struct writer {
    struct ct_arena *arena;
    char *data;
    size_t size, room;
    size_t *ends;   /* of parts that are trained on and parts that are not, by turns */
    float *weights; /* of the parts */
    size_t parts, parts_room, weights_room;
};

static void put(struct writer *w, const char *text, size_t size)
{
    if (!size)
        return;
    w->data = ct_arena_grow(w->arena, w->data, &w->room, w->size + size, 1);
    memcpy(w->data + w->size, text, size);
    w->size += size;
}

static void put_text(struct writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void end_part(struct writer *w, size_t end, float weight)
{
    w->ends = ct_arena_grow(w->arena, w->ends, &w->parts_room, w->parts + 1, sizeof(*w->ends));
    w->weights =
        ct_arena_grow(w->arena, w->weights, &w->weights_room, w->parts + 1, sizeof(*w->weights));
    w->weights[w->parts] = weight;
    w->ends[w->parts++] = end;
}

static int write_turn(struct writer *w, const struct ct_chat_format *format, const json_t *message,
                      bool trained)
{
    const json_t *text = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    const char *content = json_string_value(text);
    size_t size = json_string_length(text);

    if (!role || !content)
        return ct_fail(CT_ECONFIG, "a message without \"role\" and \"content\", both strings");
    if (format->strip)
        ct_chat_strip(&content, &size);
    put_text(w, format->begin);
    put_text(w, role);
    put_text(w, format->middle);
    if (trained)
        end_part(w, w->size, weight_of(message));
    put(w, content, size);
    put_text(w, format->end);
    if (trained)
        end_part(w, w->size, weight_of(message));
    put_text(w, format->after);
    return 0;
}

static int read_tools(const struct chat_request *r, const json_t *object, json_t **tools)
{
    const char *field = r->field[CHAT_TOOLS];
    int rc = ct_chat_read_tools(json_object_get(object, field), tools);

    return rc < 0 ? ct_context(rc, "\"%s\"", field) : 0;
}

/* Training would show calls of tools that the text does not describe. */
static int refuse_tools(const struct chat_request *r, const json_t *object)
{
    json_t *tools;
    int rc = read_tools(r, object, &tools);

    if (rc == 0 && json_array_size(tools))
        rc = ct_fail(CT_ECONFIG,
                     "\"%s\": the form %s writes none: use the chat template of a folder, or leave "
                     "them out by naming a field that no line has: [text] fields = tools=none",
                     r->field[CHAT_TOOLS], r->format->name);
    json_decref(tools);
    return rc;
}

static int write_format(struct writer *w, const struct chat_request *r, const json_t *object,
                        const json_t *messages, const bool *trained)
{
    int rc = refuse_tools(r, object);

    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++)
        rc = write_turn(w, r->format, json_array_get(messages, i),
                        trained[i] && r->train != CHAT_ALL);
    return rc;
}

static int write_template(struct writer *w, const struct chat_request *r, const json_t *object,
                          const json_t *messages, const bool *trained)
{
    struct ct_text_span *spans;
    struct ct_jinja_text text;
    json_t *tools;
    int rc = read_tools(r, object, &tools);

    if (rc < 0)
        return rc;
    if (r->train == CHAT_ALL)
        rc = ct_chat_template_render(r->template, messages, tools, false, w->arena, &text);
    else
        rc = ct_chat_template_spans(r->template, messages, trained, tools, w->arena, &text, &spans);
    json_decref(tools);
    if (rc < 0)
        return rc;
    put(w, text.data, text.size);
    for (size_t i = 0; r->train != CHAT_ALL && i < json_array_size(messages); i++)
        if (trained[i]) {
            end_part(w, spans[i].begin, 0);
            end_part(w, spans[i].end, weight_of(json_array_get(messages, i)));
        }
    return 0;
}

static int add_messages(struct corpus *c, const json_t *object, const json_t *messages,
                        size_t prompted, struct ct_arena *arena)
{
    const struct chat_request *r = c->request->chat;
    bool *trained = ct_arena_array(arena, bool, json_array_size(messages) + 1);
    struct writer w = {.arena = arena};
    int rc = choose(r, c->request->weights, messages, prompted, trained);

    if (rc == 0 && r->unfit) {
        c->taken = true; /* no line of messages is better */
        rc = ct_fail(CT_ECONFIG, "%s", r->unfit);
    }
    if (rc == 0)
        rc = r->template ? write_template(&w, r, object, messages, trained)
                         : write_format(&w, r, object, messages, trained);
    if (rc < 0)
        return rc;
    if (r->train == CHAT_ALL)
        end_part(&w, 0, 0);
    end_part(&w, w.size, 1);
    return corpus_add(c, &(struct document){.text = w.data ? w.data : "",
                                            .size = w.size,
                                            .ends = w.ends,
                                            .parts = w.parts,
                                            .weights = w.weights});
}

/* ---- a line ---- */

/* Texts as they are: the completion is trained on, with the token that ends a document. */
static int add_prompt(struct corpus *c, const json_t *prompt, const json_t *completion,
                      struct ct_arena *arena)
{
    enum chat_train train = c->request->chat->train;
    struct writer w = {.arena = arena};

    if (train == CHAT_LAST || train == CHAT_FIELD)
        return ct_fail(CT_ECONFIG,
                       "[text] train_on = %s has no effect on a prompt and a "
                       "completion that are texts: the completion is trained on",
                       train == CHAT_LAST ? "last" : "field");
    put(&w, json_string_value(prompt), json_string_length(prompt));
    end_part(&w, train == CHAT_ALL ? 0 : w.size, 0);
    put(&w, json_string_value(completion), json_string_length(completion));
    end_part(&w, w.size, 1);
    return corpus_add(c, &(struct document){.text = w.data ? w.data : "",
                                            .size = w.size,
                                            .ends = w.ends,
                                            .parts = w.parts,
                                            .closed = true});
}

static int add_object(struct corpus *c, const json_t *object, enum corpus_format format,
                      struct ct_arena *arena)
{
    const struct chat_request *r = c->request->chat;
    const json_t *prompt = json_object_get(object, r->field[CHAT_PROMPT]);
    const json_t *completion = json_object_get(object, r->field[CHAT_COMPLETION]);
    struct document document;
    json_t *messages;
    size_t prompted;
    int rc;

    if (format == CORPUS_IDS) {
        rc = fields_ids(object, r->field, r->vocabulary, c->request->weights, arena, &document);
        return rc < 0 ? rc : corpus_add(c, &document);
    }
    if (format == CORPUS_PROMPT && json_is_string(prompt) && json_is_string(completion))
        return add_prompt(c, prompt, completion, arena);
    rc = fields_messages(object, format, r->field, &messages, &prompted);
    if (rc < 0)
        return rc;
    rc = add_messages(c, object, messages, prompted, arena);
    json_decref(messages);
    return rc;
}

int chat_add(struct corpus *c, const json_t *object, enum corpus_format format)
{
    struct ct_arena arena = {0};
    int rc = add_object(c, object, format, &arena);

    ct_arena_finish(&arena);
    return rc;
}
