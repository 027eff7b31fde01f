/*
 * The page for programs.
 */
#include <jansson.h>

#include <ctitan/lib/json.h>

#include "analyse.h"

static json_t *rank_json(const struct ct_flight_run *run, int rank)
{
    const struct ct_flight_header *h = run->rank[rank].h;
    char text[512];

    if (!h)
        return json_pack("{s:i, s:s}", "rank", rank, "state", "no record");
    ct_flight_describe_position(run, rank, text, sizeof(text));
    return json_pack("{s:i, s:s, s:i, s:o, s:I, s:o, s:o}", "rank", rank, "state",
                     ct_flight_state_of(run, rank), "process", (int)h->pid, "host",
                     ct_json_text(h->host), "step", (json_int_t)h->position.step, "position",
                     ct_json_text(text), "message",
                     ct_json_text(h->state == CT_FLIGHT_FAILED ? h->message : NULL));
}

static json_t *group_json(const struct ct_flight_run *run, const struct ct_flight_members *m)
{
    json_t *ranks = json_array();
    int64_t least, most;

    ct_flight_calls_ended(run, m, &least, &most);
    for (int i = 0; i < m->size; i++)
        json_array_append_new(ranks, json_integer(m->ranks[i]));
    return json_pack("{s:o, s:i, s:o, s:I, s:I}", "name", ct_json_text(m->name), "number",
                     m->instance + 1, "ranks", ranks, "ended_on_all", (json_int_t)least,
                     "ended_on_some", (json_int_t)most);
}

static json_t *guilty_json(const struct ct_flight_verdict *v)
{
    json_t *guilty = json_array();

    for (int r = 0; r < v->ranks; r++)
        if (v->guilty[r])
            json_array_append_new(guilty, json_integer(r));
    return guilty;
}

int ct_flight_json(const struct ct_flight_run *run, const struct ct_flight_verdict *v, FILE *out)
{
    const struct ct_flight_header *any = NULL;
    json_t *ranks = json_array(), *groups = json_array();
    char rule[8];

    snprintf(rule, sizeof(rule), "R%d", (int)v->rule);
    for (int r = 0; r < run->world; r++) {
        any = any ? any : run->rank[r].h;
        json_array_append_new(ranks, rank_json(run, r));
    }
    for (int g = 0; g < run->group_count; g++)
        json_array_append_new(groups, group_json(run, &run->group[g]));
    return ct_json_print(
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job", ct_json_text(any ? any->job : ""),
                  "time", ct_json_number(run->now), "rule", ct_json_text(v->rule ? rule : NULL),
                  "guilty", guilty_json(v), "verdict", ct_json_text(v->text), "ranks", ranks,
                  "groups", groups),
        out);
}
