/* Processes that a launcher starts, and the relay of what they print. */
#ifndef LAUNCHED_H
#define LAUNCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define LAUNCHED_LINE 4096
#define LAUNCHED_LAST 400 /* characters kept of the last line */

/* One output stream of a child, relayed line by line. */
struct stream {
    int from, to;       /* from -1: closed */
    bool raw;           /* relay data as it arrives, other than lines that may repeat a message */
    size_t used, shown; /* bytes of the line; those of a raw one that are relayed */
    char line[LAUNCHED_LINE];
};

struct launched {
    char name[64]; /* "rank 3" */
    char tag[32];  /* before its lines; empty: none */
    pid_t pid;
    bool running;
    bool follows; /* failed because of another one */
    int status;
    int orders;    /* a socket whose other end is its standard input; -1: it gets signals */
    int ends_by;   /* the signal that asks it to end in order; 0: any */
    double killed; /* when it was ordered to kill; 0: not yet */
    struct stream out, err;
    char last[LAUNCHED_LAST]; /* last line on standard error */
    bool echoed;              /* another child had printed it before */
    bool complained;          /* a message of the program: a rank that it runs has failed */
};

struct children {
    struct launched *at;
    int count;
    const char *program;                                     /* begins messages, before a colon */
    bool many;                                               /* each of them runs several ranks */
    void (*hear)(void *context, int rank, const char *text); /* see struct ct_launch_request */
    void *context;
};

/* Relay what has come. False: the stream has ended. */
bool launched_relay(const struct children *all, struct launched *child, struct stream *stream);
/* Relay the line that has no end yet, and close the stream. */
void launched_close(const struct children *all, struct launched *child, struct stream *stream);
/* Relay what an ended child's pipe holds, and close it. */
void launched_drain(const struct children *all, struct launched *child, struct stream *stream);

#endif
