/*
 * Messages between two members: a channel for each ordered pair, with a ring of packets.
 *
 * A small message is copied into a packet, and its sender continues. A large message is a packet
 * with the buffer's location. The receiver copies the data from there in one copy, and the sender
 * waits until it has. If that memory is not accessible, a large message is split into packets.
 * Channels share nothing with the slots of collectives. Each member has a doorbell, rung by every
 * event on its channels.
 */
#include <string.h>

#include <ctitan/error.h>

#include "local.h"

/* One direction of a call, and its progress. */
struct transfer {
    struct channel *channel;
    struct doorbell *bell; /* doorbell of the peer */
    char *ring, *data;
    size_t bytes, done;
    int peer, tag;
    bool active, started, direct;
    uint32_t last; /* number of packets received when a direct send is complete */
};

static struct transfer make_transfer(const struct ct_call *c, bool sends)
{
    struct group *g = (struct group *)c->group;
    size_t n = (size_t)g->base.size, me = (size_t)g->base.position;
    size_t other = (size_t)(sends ? c->to : c->from);
    size_t index = sends ? me * n + other : other * n + me;

    return (struct transfer){.channel = &g->channels[index],
                             .bell = &g->inboxes[other].bell,
                             .ring = g->rings + index * PACKETS * PACKET_BYTES,
                             .data = sends ? (char *)(uintptr_t)c->in : c->out,
                             .bytes = sends ? ct_call_in_bytes(c) : ct_call_out_bytes(c),
                             .peer = (int)other,
                             .tag = c->tag,
                             .active = true};
}

static uint32_t posted(const struct transfer *t)
{
    return atomic_load_explicit(&t->channel->posted, memory_order_acquire);
}

static uint32_t taken(const struct transfer *t)
{
    return atomic_load_explicit(&t->channel->taken, memory_order_acquire);
}

static void post(struct group *g, struct transfer *t)
{
    uint32_t number = posted(t);
    struct packet *p = &t->channel->packets[number % PACKETS];
    size_t left = t->bytes - t->done, part = left < PACKET_BYTES ? left : PACKET_BYTES;

    p->bytes = t->bytes;
    p->tag = t->tag;
    p->place = local_place(g->comm, t->data, t->bytes);
    t->direct = t->bytes > PACKET_BYTES && (p->place.region >= 0 || g->comm->single_copy);
    p->part = t->direct ? 0 : (uint32_t)part;
    if (t->direct)
        part = t->bytes;
    else if (part)
        memcpy(t->ring + number % PACKETS * PACKET_BYTES, t->data + t->done, part);
    t->done += part;
    t->last = number + 1;
    atomic_store_explicit(&t->channel->posted, number + 1, memory_order_release);
    local_ring(t->bell);
}

/* True if there was progress. */
static int progress_send(struct group *g, struct transfer *t)
{
    if (t->done < t->bytes || !t->started) {
        if (posted(t) - taken(t) == PACKETS)
            return false;
        post(g, t);
        t->started = true;
        t->active = t->direct || t->done < t->bytes;
        return true;
    }
    if ((int32_t)(taken(t) - t->last) < 0)
        return false;
    t->active = false;
    return true;
}

static int progress_receive(struct group *g, struct transfer *t)
{
    uint32_t number = taken(t);
    const struct packet *p = &t->channel->packets[number % PACKETS];
    size_t part;
    int rc = 0;

    if (posted(t) == number)
        return false;
    if (p->bytes != t->bytes || p->tag != t->tag)
        return local_fail(g->comm,
                          "group '%s': rank %d sends %llu bytes (tag %d), but rank %d receives %zu "
                          "(tag %d)",
                          g->base.name, g->ranks[t->peer], (unsigned long long)p->bytes, p->tag,
                          g->comm->base.rank, t->bytes, t->tag);
    part = p->part;
    if (part)
        memcpy(t->data + t->done, t->ring + number % PACKETS * PACKET_BYTES, part);
    else if (t->bytes) {
        rc = local_read(g, t->peer, p->place, 0, t->bytes, t->data);
        part = t->bytes;
    }
    t->done += part;
    t->active = t->done < t->bytes;
    atomic_store_explicit(&t->channel->taken, number + 1, memory_order_release);
    local_ring(t->bell);
    return rc < 0 ? rc : true;
}

static bool find_missing(struct group *g)
{
    bool any = false;

    for (int i = 0; i < g->base.size; i++) {
        const struct transfer *s = g->sending, *r = g->receiving;

        g->missing[i] = (s && s->active && s->peer == i && posted(s) != taken(s)) ||
                        (r && r->active && r->peer == i && posted(r) == taken(r));
        any |= g->missing[i];
    }
    return any;
}

static int move(struct group *g)
{
    int sent = 0, received = 0;

    if (g->sending && g->sending->active)
        sent = progress_send(g, g->sending);
    if (sent >= 0 && g->receiving && g->receiving->active)
        received = progress_receive(g, g->receiving);
    return sent < 0 ? sent : received < 0 ? received : sent + received;
}

static bool moving(const struct group *g)
{
    return (g->sending && g->sending->active) || (g->receiving && g->receiving->active);
}

static int move_all(struct group *g)
{
    struct doorbell *bell = &g->inboxes[g->base.position].bell;
    struct patience p = {0};
    int rc = local_failed(g);

    while (rc >= 0 && moving(g)) {
        uint32_t seen = atomic_load_explicit(&bell->word, memory_order_acquire);

        rc = move(g);
        if (rc > 0)
            local_rest(&p, bell);
        else if (rc == 0 && local_pause(g->comm, &p, bell, seen))
            rc = local_look(g, p.deadline, find_missing);
    }
    local_rest(&p, bell);
    g->sending = g->receiving = NULL;
    local_note_done(g);
    return rc < 0 ? rc : 0;
}

int local_message(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    struct transfer sending = {0}, receiving = {0};

    if (c->kind != CT_CALL_RECEIVE) {
        sending = make_transfer(c, true);
        g->sending = &sending;
    }
    if (c->kind != CT_CALL_SEND) {
        receiving = make_transfer(c, false);
        g->receiving = &receiving;
    }
    local_note(g, c->kind, c->kind == CT_CALL_SEND ? c->to : c->from,
               c->kind == CT_CALL_SEND ? sending.bytes : receiving.bytes);
    return move_all(g);
}
