/*
 * The relay: lines of children, each tagged with its name. A message that several of them print is
 * relayed once. Words of a rank to the launcher (ct_launch_tell) are lines between a mark and their
 * end, anywhere on standard error; they are taken out.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>

#include "launched.h"

#define MARK '\036' /* begins words */
#define WORDS 400

/* Is the text, or may what it begins become, a "ctitan: .." message, printed before failing? */
static bool may_be_message(const struct children *all, const char *text, size_t length)
{
    size_t n = strlen(all->program);

    return !strncmp(text, all->program, length < n ? length : n) && (length <= n || text[n] == ':');
}

/* Keep the last line that says something, of those that run several ranks the last message:
   mpirun draws lines below its words, and has many of its own. */
static void keep_last(const struct children *all, struct launched *c, const char *line,
                      size_t length)
{
    size_t i = 0;

    while (length && (line[length - 1] == '\n' || line[length - 1] == ' '))
        length--;
    while (i < length && ispunct((unsigned char)line[i]))
        i++;
    if (i == length || (all->many && c->complained && !may_be_message(all, line, length)))
        return;
    length = length < LAUNCHED_LAST ? length : LAUNCHED_LAST - 1;
    memcpy(c->last, line, length);
    c->last[length] = '\0';
    c->echoed = false;
}

/* Is it a message that another rank has printed, too? */
static bool is_echo(const struct children *all, struct launched *c)
{
    if (!may_be_message(all, c->last, strlen(c->last) + 1))
        return false;
    c->complained = true;
    for (int i = 0; i < all->count; i++)
        if (&all->at[i] != c && !strcmp(all->at[i].last, c->last))
            return true;
    return false;
}

static void end_line(const struct children *all, struct launched *c, struct stream *s,
                     size_t length)
{
    size_t n = strlen(c->tag);
    char whole[sizeof(c->tag) + LAUNCHED_LINE + 1];

    if (s == &c->err) {
        keep_last(all, c, s->line, length);
        c->echoed = may_be_message(all, s->line, length) && is_echo(all, c);
    }
    if (!(s == &c->err && c->echoed) && s->raw) {
        ct_outlet_write(s->to, s->line + s->shown, length - s->shown);
    } else if (!(s == &c->err && c->echoed)) {
        memcpy(whole, c->tag, n);
        memcpy(whole + n, s->line, length);
        n += length;
        if (whole[n - 1] != '\n')
            whole[n++] = '\n';
        ct_outlet_write(s->to, whole, n);
    }
    s->used -= length;
    s->shown = 0;
    memmove(s->line, s->line + length, s->used);
}

static void take_lines(const struct children *all, struct launched *c, struct stream *s)
{
    const char *end;

    while ((end = memchr(s->line, '\n', s->used)))
        end_line(all, c, s, (size_t)(end - s->line) + 1);
    if (s->used == LAUNCHED_LINE)
        end_line(all, c, s, LAUNCHED_LINE);
}

/* ---- words ---- */

bool ct_launch_hears(void)
{
    return getenv("CTITAN_START") != NULL;
}

void ct_launch_tell(int rank, const char *text)
{
    char line[WORDS + 32];
    int n;

    if (!ct_launch_hears())
        return;
    n = snprintf(line, sizeof(line), "%c%d %.*s", MARK, rank, WORDS, text);
    for (int i = 0; i < n; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[n++] = '\n';
    /* Perhaps within a line of another thread; a pipe with room takes all of it. */
    if (poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, 0) == 1)
        (void)!write(STDERR_FILENO, line, (size_t)n);
}

static void take_words(const struct children *all, const struct stream *s, char *words, char *end)
{
    char *text;
    long rank = strtol(words + 1, &text, 10);

    if (!all->hear) {
        ct_outlet_write(s->to, words, (size_t)(end - words) + 1);
        return;
    }
    *end = '\0';
    if (text > words + 1 && *text == ' ' && rank >= 0 && rank < 1 << 24)
        all->hear(all->context, (int)rank, text + 1);
}

/* Take all words out of a stream. Returns the bytes before words that have no end yet. */
static size_t sort_out(const struct children *all, struct stream *s)
{
    char *words;

    while ((words = memchr(s->line, MARK, s->used))) {
        size_t at = (size_t)(words - s->line);
        char *end = memchr(words, '\n', s->used - at);

        if (!end)
            return at;
        take_words(all, s, words, end);
        s->used -= (size_t)(end - words) + 1;
        memmove(words, end + 1, s->used - at);
    }
    return s->used;
}

/* ---- streams ---- */

/* Relays what one read gives. Returns its bytes; 0: the stream has ended. */
static ssize_t relay_some(const struct children *all, struct launched *c, struct stream *s)
{
    ssize_t n = read(s->from, s->line + s->used, LAUNCHED_LINE - s->used);
    size_t plain, before, gone;

    if (n <= 0)
        return n;
    s->used += (size_t)n;
    plain = s == &c->err ? sort_out(all, s) : s->used;
    before = s->used;
    take_lines(all, c, s);
    gone = before - s->used; /* a full line may have words that have no end */
    plain = plain > gone ? plain - gone : 0;
    if (s->raw && plain > s->shown && !(s->shown == 0 && may_be_message(all, s->line, plain))) {
        ct_outlet_write(s->to, s->line + s->shown, plain - s->shown);
        s->shown = plain;
    }
    return n;
}

bool launched_relay(const struct children *all, struct launched *c, struct stream *s)
{
    ssize_t n = relay_some(all, c, s);

    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void launched_close(const struct children *all, struct launched *c, struct stream *s)
{
    if (s->from < 0)
        return;
    if (s->used)
        end_line(all, c, s, s->used);
    close(s->from);
    s->from = -1;
}

/* Its own children may hold the pipe open, and write on: no more than it holds now is relayed. */
void launched_drain(const struct children *all, struct launched *c, struct stream *s)
{
    int left = 0;

    if (s->from >= 0 && ioctl(s->from, FIONREAD, &left) < 0)
        left = 0;
    while (left > 0) {
        ssize_t n = relay_some(all, c, s);

        if (n <= 0 && !(n < 0 && errno == EINTR))
            break;
        left -= n > 0 ? (int)n : 0;
    }
    launched_close(all, c, s);
}
