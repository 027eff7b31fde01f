/* Timelines of schedules: one row per rank, from left to right, as text or as SVG. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ctitan/lib/file.h>
#include <ctitan/lib/pipeline.h>

#include "cli.h"

/* ---- appearance ---- */

struct look {
    enum ct_action_type type;
    char letter;
    const char *name;
    int terminal[2]; /* of 256 colours, for even and odd loops */
    const char *svg[2];
};

static const struct look looks[] = {
    {CT_ACTION_F, 'F', "forward", {75, 111}, {"#6fa8ff", "#b3d0ff"}},
    {CT_ACTION_B, 'B', "backward", {71, 114}, {"#5cb874", "#a9dfb6"}},
    {CT_ACTION_I, 'I', "input gradients", {80, 123}, {"#3fc4c4", "#a5e8e8"}},
    {CT_ACTION_W, 'W', "weight gradients", {179, 222}, {"#e0a840", "#f3d795"}},
    {CT_ACTION_OVERLAP_F_B,
     '&',
     "forward and backward together",
     {140, 183},
     {"#b08ae0", "#d6c2f0"}},
};

static const struct look *look_of(const struct ct_action *action)
{
    for (size_t i = 0; i < CT_COUNT(looks); i++)
        if (looks[i].type == action->type)
            return &looks[i];
    return NULL;
}

static bool odd_loop(const struct ct_schedule *s, const struct ct_action *action)
{
    return action->stage / s->ranks % 2;
}

/* ---- text ---- */

#define MOST_ROWS 32
#define MOST_COLUMNS 400
#define WIDEST 4 /* most columns of the shortest action */

struct sheet {
    const struct ct_schedule *schedule;
    const struct ct_simulation *times;
    bool colour;
    int columns;
    double unit; /* time per column */
};

static int terminal_width(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    int width = columns ? atoi(columns) : 0;

    if (width <= 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        width = size.ws_col;
    return width < 40 ? 100 : width < MOST_COLUMNS ? width : MOST_COLUMNS;
}

static double shortest_action(const struct ct_schedule *s, const struct ct_simulation *x)
{
    double least = x->makespan;

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            double time = x->end[r][i] - x->start[r][i];

            if (look_of(&s->lists[r].item[i]) && time > 0 && time < least)
                least = time;
        }
    return least;
}

/* Use as many columns for the shortest action as fit. If that is less than one, skip columns. */
static void choose_unit(struct sheet *x)
{
    double least = shortest_action(x->schedule, x->times);
    int room = terminal_width() - 11, each = WIDEST;

    while (each > 1 && x->times->makespan / least * each > room)
        each--;
    x->unit = least / each;
    if (x->times->makespan / x->unit > room)
        x->unit = x->times->makespan / room;
    x->columns = (int)(x->times->makespan / x->unit + 0.5);
}

/* "F12": the label of an action, in `width` columns. */
static void label(const struct sheet *x, const struct ct_action *action, char *text, int width)
{
    char letter = look_of(action)->letter, whole[32];
    int length;

    if (odd_loop(x->schedule, action))
        letter = (char)tolower(letter);
    length = snprintf(whole, sizeof(whole), "%c%d", letter, action->microbatch);
    memset(text, x->colour ? ' ' : '-', (size_t)width);
    if (length <= width)
        memcpy(text, whole, (size_t)length);
    else
        text[0] = letter;
    text[width] = '\0';
}

static int column_at(const struct sheet *x, double time)
{
    int column = (int)(time / x->unit + 0.5);

    return column < x->columns ? column : x->columns;
}

static void draw_row(const struct sheet *x, int rank)
{
    const struct ct_action_list *list = &x->schedule->lists[rank];
    char text[MOST_COLUMNS + 1];
    int at = 0;

    printf("rank %-4d|", rank);
    for (size_t i = 0; i < list->count; i++) {
        const struct look *look = look_of(&list->item[i]);
        int from = column_at(x, x->times->start[rank][i]),
            to = column_at(x, x->times->end[rank][i]);

        if (!look || to <= from)
            continue;
        label(x, &list->item[i], text, to - from);
        printf("%*s", from - at, "");
        if (x->colour)
            printf("\033[30;48;5;%dm%s\033[0m",
                   look->terminal[odd_loop(x->schedule, &list->item[i])], text);
        else
            printf("%s", text);
        at = to;
    }
    printf("%*s|\n", x->columns - at, "");
}

static bool has(const struct ct_schedule *s, enum ct_action_type type)
{
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            if (s->lists[r].item[i].type == type)
                return true;
    return false;
}

static void draw_legend(const struct sheet *x, int step)
{
    printf("%9s", "");
    for (size_t i = 0; i < CT_COUNT(looks); i++)
        if (has(x->schedule, looks[i].type))
            printf(" %c %s;", looks[i].letter, looks[i].name);
    printf(" a column is %.4g time", x->unit);
    if (x->unit > 1.01 * shortest_action(x->schedule, x->times))
        printf(", longer than some actions");
    printf("\n");
    if (x->schedule->stages > x->schedule->ranks)
        printf("%10severy second stage of a rank is %s\n", "",
               x->colour ? "lighter" : "in lower case");
    if (step > 1)
        printf("%10sone in %d ranks is drawn\n", "", step);
}

void draw_timeline(const struct ct_schedule *schedule, const struct ct_simulation *simulation)
{
    struct sheet x = {schedule, simulation, isatty(STDOUT_FILENO)};
    int step = (schedule->ranks + MOST_ROWS - 1) / MOST_ROWS;

    choose_unit(&x);
    for (int r = 0; r < schedule->ranks; r += step)
        draw_row(&x, r);
    draw_legend(&x, step);
}

/* ---- SVG ---- */

#define ROW 26
#define LEFT 70
#define TOP 40
#define WIDE 16384 /* browsers draw wider ones badly */

static void svg_action(FILE *out, const struct ct_schedule *s, const struct ct_simulation *x,
                       int rank, size_t i, double scale)
{
    const struct ct_action *action = &s->lists[rank].item[i];
    const struct look *look = look_of(action);
    double start = x->start[rank][i], end = x->end[rank][i], width = (end - start) * scale;
    char text[64];

    if (!look)
        return;
    ct_action_print(action, text, sizeof(text));
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s: %g to %g"
            "</title></rect>\n",
            LEFT + start * scale, TOP + rank * ROW, width, ROW - 4, look->svg[odd_loop(s, action)],
            text, start, end);
    if (width >= 14)
        fprintf(out, "<text x=\"%.2f\" y=\"%d\">%d</text>\n", LEFT + (start + end) / 2 * scale,
                TOP + rank * ROW + 15, action->microbatch);
}

static void svg_legend(FILE *out, const struct ct_schedule *s)
{
    int x = LEFT;

    for (size_t i = 0; i < CT_COUNT(looks); i++) {
        if (!has(s, looks[i].type))
            continue;
        fprintf(out,
                "<rect x=\"%d\" y=\"10\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                "<text class=\"left\" x=\"%d\" y=\"21\">%s</text>\n",
                x, looks[i].svg[0], x + 20, looks[i].name);
        x += 40 + 7 * (int)strlen(looks[i].name);
    }
}

static void svg(FILE *out, const struct ct_schedule *s, const struct ct_simulation *x)
{
    double least = shortest_action(s, x), scale = 18 / least, width;

    if (scale * x->makespan > WIDE)
        scale = WIDE / x->makespan;
    width = LEFT + x->makespan * scale + 20;
    width = width < 700 ? 700 : width;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n"
            "<style>.left { text-anchor: start }</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            width, TOP + s->ranks * ROW + 34);
    svg_legend(out, s);
    for (int r = 0; r < s->ranks; r++) {
        fprintf(out, "<text class=\"left\" x=\"10\" y=\"%d\">rank %d</text>\n", TOP + r * ROW + 15,
                r);
        for (size_t i = 0; i < s->lists[r].count; i++)
            svg_action(out, s, x, r, i, scale);
    }
    fprintf(out,
            "<text class=\"left\" x=\"%d\" y=\"%d\">%d ranks, %d stages, %d microbatches: %g time, "
            "of which %g (%.1f%%) is bubble</text>\n</svg>\n",
            LEFT, TOP + s->ranks * ROW + 20, s->ranks, s->stages, s->microbatches, x->makespan,
            x->bubble, 100 * x->fraction);
}

struct drawing {
    const struct ct_schedule *schedule;
    const struct ct_simulation *simulation;
};

static void print_svg(const void *object, FILE *out)
{
    const struct drawing *d = object;

    svg(out, d->schedule, d->simulation);
}

int write_svg(const struct ct_schedule *schedule, const struct ct_simulation *simulation,
              const char *path)
{
    return ct_file_print(path, print_svg, &(struct drawing){schedule, simulation});
}
