/* Timelines of schedules: one row per rank, from left to right, as text or as SVG. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/lib/terminal.h>

#include "chart/chart.h"
#include "cli.h"

/* ---- appearance ---- */

struct look {
    enum ct_action_type type;
    char letter;
    const char *name;
    int terminal[2]; /* of 256 colours, for even and odd loops */
    int colour;      /* enum ct_chart_work */
};

static const struct look looks[] = {
    {CT_ACTION_F, 'F', "forward", {75, 111}, CT_CHART_FORWARD},
    {CT_ACTION_B, 'B', "backward", {71, 114}, CT_CHART_BACKWARD},
    {CT_ACTION_I, 'I', "input gradients", {80, 123}, CT_CHART_INPUTS},
    {CT_ACTION_W, 'W', "weight gradients", {179, 222}, CT_CHART_WEIGHTS},
    {CT_ACTION_OVERLAP_F_B, '&', "forward and backward together", {140, 183}, CT_CHART_BOTH},
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
    const char *columns = getenv("COLUMNS");
    int width = columns ? atoi(columns) : 0;

    if (width <= 0)
        width = ct_terminal_columns(STDOUT_FILENO);
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
    struct sheet x = {schedule, simulation, ct_terminal_takes_colours(STDOUT_FILENO)};
    int step = (schedule->ranks + MOST_ROWS - 1) / MOST_ROWS;

    choose_unit(&x);
    for (int r = 0; r < schedule->ranks; r += step)
        draw_row(&x, r);
    draw_legend(&x, step);
}

/* ---- SVG ---- */

#define SHORTEST 18.0 /* width of the shortest action */
#define WIDE 16384    /* browsers draw wider ones badly */

struct drawing {
    const struct ct_schedule *schedule;
    const struct ct_simulation *simulation;
};

static void add_action(const struct drawing *d, struct ct_arena *arena, int rank, size_t i,
                       const int *kind_of, struct ct_chart_timeline *chart,
                       struct ct_chart_span *span)
{
    const struct ct_action *action = &d->schedule->lists[rank].item[i];
    const struct look *look = look_of(action);
    double start = d->simulation->start[rank][i], end = d->simulation->end[rank][i];
    char text[64];

    if (!look)
        return;
    ct_action_print(action, text, sizeof(text));
    span[chart->count++] =
        (struct ct_chart_span){.row = rank,
                               .kind = kind_of[look - looks],
                               .start = start,
                               .end = end,
                               .label = ct_arena_printf(arena, "%s: %g to %g", text, start, end),
                               .text = ct_arena_printf(arena, "%d", action->microbatch),
                               .faint = odd_loop(d->schedule, action)};
}

static void print_svg(const void *object, FILE *out)
{
    const struct drawing *d = object;
    const struct ct_schedule *s = d->schedule;
    const struct ct_simulation *x = d->simulation;
    struct ct_arena arena = {0};
    const char *kind[CT_COUNT(looks)], **row = ct_arena_array(&arena, const char *, s->ranks);
    double scale = SHORTEST / shortest_action(s, x);
    struct ct_chart_span *span;
    int colour[CT_COUNT(looks)], kind_of[CT_COUNT(looks)];
    size_t count = 0;
    struct ct_chart_timeline chart = {
        .title = ct_arena_printf(&arena,
                                 "%d rank%s, %d stage%s, %d microbatch%s: %g time, of which %g "
                                 "(%.1f%%) is bubble",
                                 s->ranks, ct_plural(s->ranks), s->stages, ct_plural(s->stages),
                                 s->microbatches, s->microbatches == 1 ? "" : "es", x->makespan,
                                 x->bubble, 100 * x->fraction),
        .x_name = "time",
        .row = row,
        .kind = kind,
        .colour = colour,
        .rows = s->ranks,
        .end = x->makespan,
        .file = true};

    for (size_t i = 0; i < CT_COUNT(looks); i++) {
        if (!has(s, looks[i].type))
            continue;
        kind_of[i] = chart.kinds;
        kind[chart.kinds] = looks[i].name;
        colour[chart.kinds++] = looks[i].colour;
    }
    for (int r = 0; r < s->ranks; r++)
        count += s->lists[r].count;
    span = ct_arena_array(&arena, struct ct_chart_span, count + 1);
    for (int r = 0; r < s->ranks; r++) {
        row[r] = ct_arena_printf(&arena, "rank %d", r);
        for (size_t i = 0; i < s->lists[r].count; i++)
            add_action(d, &arena, r, i, kind_of, &chart, span);
    }
    chart.span = span;
    chart.width = scale * x->makespan > WIDE ? WIDE : scale * x->makespan;
    chart.width = chart.width < 600 ? 600 : chart.width;
    ct_chart_timeline(&chart, out);
    ct_arena_finish(&arena);
}

int write_svg(const struct ct_schedule *schedule, const struct ct_simulation *simulation,
              const char *path)
{
    return ct_file_print(path, print_svg, &(struct drawing){schedule, simulation});
}
