/*
 * Greetings, by which rank 0 and a client show each other that they know the job's secret.
 *
 *     client  its nonce
 *     rank 0  its nonce, and a code of both nonces; with munge, the secret in a credential
 *     client  another code of both
 *     rank 0  the same greeting again: the client is known
 *
 * The secret itself is never sent. Without a secret, codes are made with an empty key, so that a
 * rank that has one and a rank that has none refuse each other. A rank with munge refuses a rank 0
 * without: anybody may be that.
 */
#include <string.h>

#include "cluster.h"

enum { NONCE, CODE, KNOWN }; /* what has been sent so far */

static void make_code(const struct greeter *g, const char *who, uint8_t code[CT_CODE_BYTES])
{
    struct {
        char who[16];
        uint8_t client[CT_CODE_BYTES], server[CT_CODE_BYTES];
    } text = {{0}, {0}, {0}};
    const char *secret = *g->key ? g->key : g->secret;

    memcpy(text.who, who, strlen(who));
    memcpy(text.client, g->client ? g->mine : g->other, sizeof(text.client));
    memcpy(text.server, g->client ? g->other : g->mine, sizeof(text.server));
    ct_code(secret, strlen(secret), &text, sizeof(text), code);
}

static int check_code(const struct greeter *g, const char *who, const uint8_t code[CT_CODE_BYTES])
{
    uint8_t right[CT_CODE_BYTES];

    make_code(g, who, right);
    return ct_code_is(right, code) ? 0 : ct_fail(CT_ECONFIG, "another secret");
}

/* A client's own secret goes first. */
static int take_credential(struct greeter *g, struct greeting *m)
{
    m->credential[CT_CREDENTIAL_ROOM - 1] = '\0';
    if (*g->secret)
        return 0;
    if (*m->credential)
        return ct_munge_unwrap(m->credential, g->key);
    return g->munge ? ct_fail(CT_EIO, "rank 0 sends no credential of munge, which runs on this "
                                      "host: start munged on its host too, or give all ranks of "
                                      "the job a secret (CTITAN_SECRET)")
                    : 0;
}

/* m: rank 0's last greeting, and then the one to send. */
static int greet_server(struct greeter *g, struct greeting *m)
{
    int rc = 0;

    if (g->stage == NONCE) {
        rc = ct_random(g->mine, sizeof(g->mine));
        memcpy(m->nonce, g->mine, sizeof(m->nonce));
    } else if (g->stage == CODE) {
        memcpy(g->other, m->nonce, sizeof(g->other));
        rc = take_credential(g, m);
        if (rc == 0)
            rc = check_code(g, "rank 0", m->code);
        make_code(g, "client", m->code);
        memcpy(m->nonce, g->mine, sizeof(m->nonce));
    }
    return rc;
}

/* m: the client's greeting, and then the answer. */
static int greet_client(struct greeter *g, struct greeting *m)
{
    int rc;

    if (g->stage == CODE)
        return check_code(g, "client", m->code);
    memcpy(g->other, m->nonce, sizeof(g->other));
    rc = ct_random(g->mine, sizeof(g->mine));
    memcpy(m->nonce, g->mine, sizeof(m->nonce));
    make_code(g, "rank 0", m->code);
    m->credential[0] = '\0';
    if (rc == 0 && g->munge)
        rc = ct_munge_wrap(g->secret, m->credential);
    return rc;
}

int nccl_greet(struct greeter *greeter, struct greeting *greeting)
{
    int rc = greeter->client ? greet_server(greeter, greeting) : greet_client(greeter, greeting);

    if (rc == 0 && greeter->stage < KNOWN)
        greeter->stage++;
    return rc;
}

bool nccl_is_known(const struct greeter *greeter)
{
    return greeter->stage == KNOWN;
}
