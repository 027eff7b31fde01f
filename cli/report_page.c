/*
 * The page: one file of HTML, style and script included. Everything that comes from a run or a
 * recipe is escaped.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include <ctitan/lib/measure.h>
#include <ctitan/lib/rates.h>

#include "cli.h"
#include "report.h"

#define TABLE_ROWS 40 /* of a chart's table; more are thinned out */
#define OPTIONS 256   /* that differ, shown */

/* A table as cards on a screen up to `width`: a cell is named by its column. The cells of a row
   follow each other (flex), or are below each other (block). */
#define CARDS(width, table, row)                                                                   \
    "@media screen and (max-width:" width "){" table "," table " caption," table " tbody," table   \
    " th," table " td{display:block;max-width:none}\n" table " thead{display:none}" table          \
    " tr{display:" row ";flex-wrap:wrap;gap:0 1.25rem;border-bottom:2px solid var(--line);"        \
    "padding:.25rem 0}\n" table " th," table                                                       \
    " td{border:0;padding:.1rem 0;min-width:0;overflow-wrap:anywhere}\n" table " td," table        \
    " td.text{text-align:left;white-space:normal}\n" table                                         \
    " td::before{content:attr(data-is) ': ';color:var(--soft)}}\n"

static const char style[] =
    "*{box-sizing:border-box}\n"
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--soft:#5a5f66;--line:#d5d8dc;"
    "--panel:#f6f7f9;--link:#00559b}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e8eaed;--soft:#a8aeb6;"
    "--line:#3a3d42;--panel:#1e2125;--link:#7cc0f8}}\n"
    "body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 sans-serif}\n"
    "main,header,nav,footer{max-width:70rem;margin:auto;padding:.5rem 1.25rem}\n"
    "h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.25rem;margin:2rem 0 .5rem;"
    "border-bottom:1px solid var(--line)}h3{font-size:1.05rem;margin:1.25rem 0 .25rem}\n"
    "a{color:var(--link)}nav a{margin-right:1rem;display:inline-block}\n"
    ".skip{position:absolute;left:-100rem}.skip:focus{left:1rem;top:.5rem;background:var(--bg);"
    "padding:.5rem;outline:3px solid var(--link)}\n"
    ".wide{overflow-x:auto}p{max-width:48rem}.note{color:var(--soft)}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}\n"
    "caption{text-align:left;color:var(--soft)}\n"
    "th,td{padding:.15rem .75rem;border-bottom:1px solid var(--line);text-align:right;"
    "vertical-align:top}\n"
    "td{white-space:nowrap}td.text{white-space:normal}\n"
    "th[scope=row],td.text,th.text{text-align:left;overflow-wrap:break-word;min-width:7rem;"
    "max-width:28rem}\n"
    "@media screen and (max-width:40rem){main,header,nav,footer{padding:.5rem .75rem}}\n" CARDS(
        "60rem", ".many", "flex")
        CARDS(
            "40rem", ".cards",
            "block") "pre{background:var(--panel);padding:.75rem;overflow-x:auto;font-size:.85rem}"
                     "\n"
                     "summary{cursor:pointer;color:var(--link)}\n"
                     ":focus-visible{outline:3px solid var(--link);outline-offset:2px}\n"
                     "@media print{nav,.skip{display:none}h2{break-after:avoid}body{font-size:11pt}"
                     ".wide,pre{overflow:visible;white-space:pre-wrap}}\n";

static void put(const char *text, FILE *out)
{
    ct_chart_escape(text, out);
}

/* <TAG>text</TAG>; attributes may follow the tag's name. */
static void element(const char *tag, const char *text, FILE *out)
{
    fprintf(out, "<%s>", tag);
    put(text, out);
    fprintf(out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

static const char *number(double value, char text[32])
{
    double size = fabs(value);

    if (!isfinite(value))
        strcpy(text, "-");
    else if (value == floor(value) && size < 1e15)
        ct_grouped((int64_t)value, text);
    else
        snprintf(text, 32, "%.5g", value);
    return text;
}

static void cell(double value, FILE *out)
{
    char text[32];

    element("td", number(value, text), out);
}

/* A cell of a table that a narrow screen shows as cards: `is` names it there. */
static void card(const char *is, const char *text, FILE *out)
{
    fputs("<td data-is='", out);
    put(is, out);
    fputs("'>", out);
    put(text, out);
    fputs("</td>", out);
}

static const char *bytes(double value, char text[32])
{
    return human_bytes(value, text);
}

static const char *seconds_text(double value, char text[32])
{
    if (!isfinite(value))
        return "-";
    if (value < 1)
        snprintf(text, 32, "%.3g ms", value * 1e3);
    else
        snprintf(text, 32, "%.4g s", value);
    return text;
}

/* ---- summary ---- */

static const struct run_step *last_step(const struct report_run *run)
{
    return &run->log.step[run->log.count - 1];
}

static double median_of(const struct report *r, const struct report_run *run,
                        double (*field)(const struct run_step *))
{
    size_t from = run->log.count > 2 ? 1 : 0, count = 0;
    double *value = ct_arena_array((struct ct_arena *)&r->arena, double, run->log.count);

    for (size_t i = from; i < run->log.count; i++)
        if (isfinite(field(&run->log.step[i])))
            value[count++] = field(&run->log.step[i]);
    return ct_median(value, count);
}

static double loss_of(const struct run_step *s)
{
    return s->loss;
}

static double speed_of(const struct run_step *s)
{
    return s->tokens_per_second;
}

static double norm_of(const struct run_step *s)
{
    return s->grad_norm;
}

static double lr_of(const struct run_step *s)
{
    return s->lr;
}

static double seconds_of(const struct run_step *s)
{
    return s->seconds;
}

static double mfu_of(const struct run_step *s)
{
    return s->mfu;
}

static void print_state(const struct report_run *run, FILE *out)
{
    const struct run_status *s = &run->status;

    fputs("<td class='text' data-is='how it ended'>", out);
    put(*s->state ? s->state : "not known", out);
    if (*s->message) {
        fputs(": ", out);
        put(s->message, out);
    }
    fputs("</td>", out);
}

static const char *percent(double value, char text[32])
{
    if (!isfinite(value))
        return "-";
    snprintf(text, 32, value < 99.95 ? "%.1f %%" : "%.0f %%", value);
    return text;
}

/* "1.5; code 2.25" */
static const char *last_validations(const struct report *r, const struct run_log *log)
{
    const struct run_validation *last;
    const char *all = "";
    char text[32];

    for (size_t i = 0; (last = run_last_validation(log, i)); i++)
        all = ct_arena_printf((struct ct_arena *)&r->arena, "%s%s%s%s%s", all, i ? "; " : "",
                              last->set, *last->set ? " " : "", number(last->loss, text));
    return *all ? all : "-";
}

static void print_run(const struct report *r, const struct report_run *run, FILE *out)
{
    const struct run_log *log = &run->log;
    double mfu = median_of(r, run, mfu_of);
    char text[32];

    fputs("<tr>", out);
    element("th scope='row'", run->name, out);
    print_state(run, out);
    card("ranks", number(run->status.ranks ? (double)run->status.ranks : NAN, text), out);
    card("steps", number((double)run_last_step(log, &run->status), text), out);
    card("last loss", number(last_step(run)->loss, text), out);
    card("last validation", last_validations(r, log), out);
    card("time of a step", seconds_text(median_of(r, run, seconds_of), text), out);
    card("tokens/s", number(round(median_of(r, run, speed_of)), text), out);
    fprintf(out, "<td data-is='MFU'>%s%s</td>", percent(mfu, text),
            mfu > 100 ? ": the peak is taken too low" : "");
    card("other processes", percent(run_others(log), text), out);
    card("memory of a rank", bytes(last_step(run)->memory, text), out);
    fputs("</tr>\n", out);
}

/* "one went on after step 40 on 2 ranks: adamw.lr 0.1, now 0.2" */
static const char *resume_text(const struct report *r, const struct report_run *run,
                               const struct run_resume *resume)
{
    struct ct_arena *arena = (struct ct_arena *)&r->arena;
    const char *ranks =
        resume->ranks > 1 ? ct_arena_printf(arena, " on %lld ranks", (long long)resume->ranks) : "";

    return ct_arena_printf(arena, "%s went on after step %lld%s%s%s", run->name,
                           (long long)resume->after, ranks, *resume->changed ? ": " : "",
                           resume->changed);
}

static void print_resumes(const struct report *r, FILE *out)
{
    size_t count = 0;

    for (size_t i = 0; i < r->count; i++)
        count += r->run[i].log.resumes;
    if (!count)
        return;
    fputs("<p>Lines across the charts show where runs went on:</p><ul>\n", out);
    for (size_t i = 0; i < r->count; i++)
        for (size_t n = 0; n < r->run[i].log.resumes; n++) {
            element("li", resume_text(r, &r->run[i], &r->run[i].log.resume[n]), out);
            fputs("\n", out);
        }
    fputs("</ul>\n", out);
}

#define NOTES 20 /* of a run, at most: the last ones */

static void print_notes(const struct report *r, FILE *out)
{
    struct ct_arena *arena = (struct ct_arena *)&r->arena;

    for (size_t i = 0; i < r->count; i++) {
        const struct run_log *log = &r->run[i].log;
        size_t first = log->notes > NOTES ? log->notes - NOTES : 0;

        if (!log->notes)
            continue;
        element("p",
                ct_arena_printf(arena, "%s had %s%s:", r->run[i].name, run_count_notes(arena, log),
                                first ? ", the last of which are" : ""),
                out);
        fputs("<ul>\n", out);
        for (size_t n = first; n < log->notes; n++) {
            element("li", log->note[n].text, out);
            fputs("\n", out);
        }
        fputs("</ul>\n", out);
    }
}

static void print_time(const struct report *r, FILE *out)
{
    struct ct_arena *arena = (struct ct_arena *)&r->arena;

    for (size_t i = 0; i < r->count; i++) {
        const char *text = report_time_text(arena, &r->run[i]);

        if (*text)
            element("p", ct_arena_printf(arena, "%s: %s.", r->run[i].name, text), out);
    }
}

static void print_summary(const struct report *r, FILE *out)
{
    static const char *const heads[] = {
        "ranks",    "steps", "last loss",       "last validation", "time of a step",
        "tokens/s", "MFU",   "other processes", "memory of a rank"};

    fputs("<section id='runs' aria-labelledby='runs-h'><h2 id='runs-h'>Runs</h2>\n"
          "<div class='wide'><table class='cards many'><thead><tr><th class='text' "
          "scope='col'>run</th>"
          "<th class='text' scope='col'>how it ended</th>",
          out);
    for (size_t i = 0; i < CT_COUNT(heads); i++)
        element("th scope='col'", heads[i], out);
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < r->count; i++)
        print_run(r, &r->run[i], out);
    fputs("</tbody></table></div><p class='note'>Time of a step, speed and MFU: medians of what "
          "was logged, without the first. Other processes: their mean share of the host's "
          "processors.</p>\n",
          out);
    print_resumes(r, out);
    print_notes(r, out);
    print_time(r, out);
    fputs("</section>\n", out);
}

/* ---- curves ---- */

static double *column(const struct report *r, const struct report_run *run,
                      double (*field)(const struct run_step *))
{
    double *value = ct_arena_array((struct ct_arena *)&r->arena, double, run->log.count);

    for (size_t i = 0; i < run->log.count; i++)
        value[i] = field ? field(&run->log.step[i]) : (double)run->log.step[i].step;
    return value;
}

/* The losses of one set. */
static struct ct_chart_series validation_of(const struct report *r, const struct report_run *run,
                                            const char *set)
{
    struct ct_arena *arena = (struct ct_arena *)&r->arena;
    const struct run_log *log = &run->log;
    double *x = ct_arena_array(arena, double, log->validations);
    double *y = ct_arena_array(arena, double, log->validations);
    size_t count = 0;

    for (size_t i = 0; i < log->validations; i++)
        if (!strcmp(log->validation[i].set, set)) {
            x[count] = (double)log->validation[i].step;
            y[count++] = log->validation[i].loss;
        }
    return (struct ct_chart_series){
        ct_arena_printf(arena, "%s, validation%s%s", run->name, *set ? " " : "", set), x, y, count,
        true};
}

static size_t add_validations(const struct report *r, const struct report_run *run,
                              struct ct_chart_series *series)
{
    const struct run_validation *last;
    size_t count = 0;

    for (; count < REPORT_SETS && (last = run_last_validation(&run->log, count)); count++)
        series[count] = validation_of(r, run, last->set);
    return count;
}

/* The logged values of all runs, by step. */
static void print_curve_table(const struct report *r, const struct ct_chart *c, FILE *out)
{
    size_t most = 0, every;

    fputs("<details class='chart-table'><summary>The numbers as a table</summary>"
          "<div class='wide'><table><thead><tr><th scope='col'>step</th>",
          out);
    for (size_t s = 0; s < r->count; s++) {
        element("th scope='col'", r->run[s].name, out);
        most = c->series[s].count > c->series[most].count ? s : most;
    }
    fputs("</tr></thead><tbody>\n", out);
    every = c->series[most].count / TABLE_ROWS + 1;
    for (size_t n = 0; n < c->series[most].count; n += every) {
        double x = c->series[most].x[n];

        fprintf(out, "<tr><th scope='row'>%.0f</th>", x);
        for (size_t s = 0; s < r->count; s++) {
            double y = NAN;

            for (size_t i = 0; i < c->series[s].count; i++)
                if (c->series[s].x[i] == x)
                    y = c->series[s].y[i];
            cell(y, out);
        }
        fputs("</tr>\n", out);
    }
    fprintf(out, "</tbody></table></div>%s</details>\n",
            every > 1 ? "<p class='note'>Not every logged step is listed.</p>" : "");
}

/* The losses of validations, which have steps of their own. */
static void print_validations(const struct report *r, FILE *out)
{
    size_t count = 0;

    for (size_t i = 0; i < r->count; i++)
        count += r->run[i].log.validations;
    if (!count)
        return;
    fputs("<details class='chart-table'><summary>Validations as a table</summary>"
          "<div class='wide'><table><thead><tr><th class='text' scope='col'>run</th>"
          "<th class='text' scope='col'>set</th><th scope='col'>step</th><th scope='col'>loss</th>"
          "<th scope='col'>perplexity</th><th class='text' scope='col'>metrics</th></tr>"
          "</thead><tbody>\n",
          out);
    for (size_t i = 0; i < r->count; i++) {
        const struct run_log *log = &r->run[i].log;

        for (size_t n = 0; n < log->validations; n += log->validations / TABLE_ROWS + 1) {
            fputs("<tr>", out);
            element("th scope='row'", r->run[i].name, out);
            element("td class='text'", log->validation[n].set, out);
            cell((double)log->validation[n].step, out);
            cell(log->validation[n].loss, out);
            fprintf(out, "<td>%.4g</td>", exp(log->validation[n].loss));
            element("td class='text'", log->validation[n].metrics, out);
            fputs("</tr>\n", out);
        }
    }
    fputs("</tbody></table></div></details>\n", out);
}

/* Where runs went on. */
static void add_notes(const struct report *r, struct ct_chart *chart)
{
    struct ct_chart_note *note = NULL;
    size_t room = 0;

    for (size_t i = 0; i < r->count; i++)
        for (size_t n = 0; n < r->run[i].log.resumes; n++) {
            const struct run_resume *resume = &r->run[i].log.resume[n];

            note = ct_arena_grow((struct ct_arena *)&r->arena, note, &room, chart->notes + 1,
                                 sizeof(*note));
            note[chart->notes++] =
                (struct ct_chart_note){.x = (double)resume->after,
                                       .series = (int)i,
                                       .text = resume_text(r, &r->run[i], resume)};
        }
    chart->note = note;
}

typedef void drawing(const struct ct_chart *chart, FILE *out);

/* For broad screens and for phones. */
static void draw(drawing *print, struct ct_chart *chart, FILE *out)
{
    fputs("<div class='wide'>\n", out);
    for (int narrow = 0; narrow < 2; narrow++) {
        chart->narrow = narrow;
        print(chart, out);
    }
    fputs("</div>\n", out);
}

static void print_curve(const struct report *r, const char *id, const char *title,
                        const char *y_name, double (*field)(const struct run_step *), bool zero,
                        FILE *out)
{
    struct ct_chart_series series[(1 + REPORT_SETS) * REPORT_RUNS];
    struct ct_chart chart = {
        .title = title, .x_name = "step", .y_name = y_name, .series = series, .from_zero = zero};

    for (; chart.count < r->count; chart.count++) {
        const struct report_run *run = &r->run[chart.count];

        series[chart.count] = (struct ct_chart_series){
            run->name, column(r, run, NULL), column(r, run, field), run->log.count, false};
    }
    for (size_t i = 0; field == loss_of && i < r->count; i++)
        chart.count += add_validations(r, &r->run[i], &series[chart.count]);
    add_notes(r, &chart);
    fprintf(out, "<section id='%s' aria-labelledby='%s-h'><h2 id='%s-h'>%s</h2>\n", id, id, id,
            title);
    draw(ct_chart_lines, &chart, out);
    print_curve_table(r, &chart, out);
    if (field == loss_of)
        print_validations(r, out);
    fputs("</section>\n", out);
}

/* ---- memory ---- */

static void print_peak_text(const json_t *peak, FILE *out)
{
    const char *layer = json_string_value(json_object_get(peak, "layer"));
    json_int_t microbatch = json_integer_value(json_object_get(peak, "microbatch"));
    char text[32];

    fprintf(out, "<p>Largest, %s, at instruction %lld: <strong>",
            bytes(json_number_value(json_object_get(peak, "bytes")), text),
            (long long)json_integer_value(json_object_get(peak, "instruction")));
    put(json_string_value(json_object_get(peak, "op")), out);
    fputs("</strong> in section ", out);
    put(json_string_value(json_object_get(peak, "section")), out);
    if (microbatch >= 0)
        fprintf(out, ", microbatch %lld", (long long)microbatch);
    if (layer && *layer) {
        fputs(", ", out);
        put(layer, out);
    }
    fputs(". Alive there, beside what always is:</p>\n", out);
}

static void print_peak_table(const json_t *peak, FILE *out)
{
    const json_t *largest = json_object_get(peak, "largest");
    char text[32];

    fputs("<div class='wide'><table class='cards'><thead><tr><th class='text' scope='col'>values"
          "</th>"
          "<th scope='col'>number</th><th class='text' scope='col'>category</th>"
          "<th scope='col'>together</th></tr></thead><tbody>\n",
          out);
    for (size_t i = 0; i < json_array_size(largest); i++) {
        const json_t *at = json_array_get(largest, i);

        fputs("<tr>", out);
        element("th scope='row'", json_string_value(json_object_get(at, "values")), out);
        card("number", number(json_number_value(json_object_get(at, "count")), text), out);
        element("td class='text' data-is='category'",
                json_string_value(json_object_get(at, "category")), out);
        card("together", bytes(json_number_value(json_object_get(at, "bytes")), text), out);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void print_categories(const json_t *memory, FILE *out)
{
    const char *name;
    json_t *at;
    char text[32];

    fputs("<details class='chart-table'><summary>The numbers as a table</summary><table><thead><tr>"
          "<th class='text' scope='col'>category</th><th scope='col'>at the peak of all</th>"
          "<th scope='col'>its own peak</th></tr></thead><tbody>\n",
          out);
    json_object_foreach((json_t *)memory, name, at)
    {
        double peak = json_number_value(json_object_get(at, "peak"));

        if (!(peak > 0))
            continue;
        fputs("<tr>", out);
        element("th scope='row'", name, out);
        element("td", bytes(json_number_value(json_object_get(at, "at_peak")), text), out);
        element("td", bytes(peak, text), out);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></details>\n", out);
}

/* A unit that sizes up to `most` are read in. */
static const char *unit_of(double most, double *bytes_each)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;

    for (*bytes_each = 1; i + 1 < CT_COUNT(unit) && most >= 1024 * *bytes_each; i++)
        *bytes_each *= 1024;
    return unit[i];
}

/* The categories that hold anything, as stacked areas over the instructions. */
static void print_areas(const struct report *r, const struct report_run *run, FILE *out)
{
    struct ct_arena *arena = (struct ct_arena *)&r->arena;
    const json_t *over = json_object_get(run->plan, "over_step");
    const json_t *columns = json_object_get(over, "columns");
    const json_t *points = json_object_get(over, "points");
    size_t count = json_array_size(points);
    struct ct_chart_series series[CT_CHART_COLOURS];
    double *x = ct_arena_array(arena, double, count), unit;
    struct ct_chart chart = {
        .title = ct_arena_printf(arena, "Memory of a rank of %s over a step", run->name),
        .x_name = "instruction",
        .y_name =
            unit_of(json_number_value(json_object_get(run->plan, "memory_peak_bytes")), &unit),
        .series = series};

    for (size_t n = 0; n < count; n++)
        x[n] = json_number_value(json_array_get(json_array_get(points, n), 0));
    for (size_t c = 1; c < json_array_size(columns) && chart.count < CT_CHART_COLOURS; c++) {
        double *y = ct_arena_array(arena, double, count), most = 0;

        for (size_t n = 0; n < count; n++) {
            y[n] = json_number_value(json_array_get(json_array_get(points, n), c)) / unit;
            most = fmax(most, y[n]);
        }
        if (most > 0)
            series[chart.count++] = (struct ct_chart_series){
                json_string_value(json_array_get(columns, c)), x, y, count, false};
    }
    draw(ct_chart_areas, &chart, out);
}

static void print_memory(const struct report *r, FILE *out)
{
    char text[32];

    fputs("<section id='memory' aria-labelledby='memory-h'><h2 id='memory-h'>Memory</h2>\n", out);
    for (size_t i = 0; i < r->count; i++) {
        const struct report_run *run = &r->run[i];
        const json_t *peak = json_object_get(run->plan, "peak");

        element("h3", run->name, out);
        if (!run->plan) {
            fprintf(out, "<p>Its recipe cannot be planned again here%s: ",
                    run->status.ranks ? "" : ", where its number of ranks is not known");
            put(run->plan_failure, out);
            fputs("</p>\n", out);
            continue;
        }
        fprintf(out, "<p>Planned, and taken by rank 0: %s.</p>\n",
                bytes(json_number_value(json_object_get(run->plan, "memory_peak_bytes")), text));
        print_areas(r, run, out);
        print_categories(json_object_get(run->plan, "memory"), out);
        if (peak) {
            print_peak_text(peak, out);
            print_peak_table(peak, out);
        }
    }
    fputs("</section>\n", out);
}

/* ---- timeline ---- */

static void print_busy(const struct report_timeline *t, FILE *out)
{
    fprintf(out,
            "<details class='chart-table'><summary>The numbers as a table</summary>"
            "<div class='wide'><table><caption>%s of a rank</caption><thead><tr>"
            "<th class='text' scope='col'>rank</th>",
            t->seconds ? "Milliseconds" : "Percent of the step");
    for (int k = 0; k < WORK_KINDS; k++)
        element("th scope='col'", work_names[k], out);
    fputs("</tr></thead><tbody>\n", out);
    for (int n = 0; n < t->ranks; n++) {
        fputs("<tr>", out);
        element("th scope='row'", t->row[2 * n], out);
        for (int k = 0; k < WORK_KINDS; k++)
            fprintf(out, "<td>%.2f</td>", t->busy[n][k]);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div></details>\n", out);
}

static void print_profile_row(const char *what, int64_t calls, double seconds, double all,
                              FILE *out)
{
    fputs("<tr>", out);
    element("th class='text' scope='row'", what, out);
    if (calls)
        fprintf(out, "<td>%lld</td>", (long long)calls);
    else
        fputs("<td></td>", out);
    fprintf(out, "<td>%.3f</td><td>%.1f</td></tr>\n", seconds * 1e3, 100 * seconds / all);
}

/* Where the time of rank 0 went in the step that was profiled last. */
static void print_profile(const struct report *r, const struct report_run *run, FILE *out)
{
    const struct profile_summary *s = &run->profile;
    char planned[32], used[32];

    fprintf(out,
            "<div class='wide'><table><caption>Step %lld of rank 0, and the ops that took most of "
            "it</caption><thead><tr><th class='text' scope='col'></th><th scope='col'>calls</th>"
            "<th scope='col'>ms</th><th scope='col'>%%</th></tr></thead><tbody>\n",
            (long long)s->step);
    print_profile_row("all that computes", 0, s->products + s->others, s->seconds, out);
    print_profile_row("communication, exposed", 0, s->exposed, s->seconds, out);
    print_profile_row("idle, data, host", 0, profile_idle(s), s->seconds, out);
    for (size_t i = 0; i < s->count; i++)
        print_profile_row(s->largest[i].op, s->largest[i].calls, s->largest[i].seconds, s->seconds,
                          out);
    fprintf(out, "</tbody></table></div>\n<p>Memory: %s planned, in use: %s. Perfetto opens ",
            bytes(s->planned_bytes + s->beside_bytes, planned), profile_used(s, used));
    element("code", profile_path((struct ct_arena *)&r->arena, run->folder, s->step, 0), out);
    fputs("; <code>ctitan compare RUN --plan</code> puts the plan beside it.</p>\n", out);
}

static void print_timeline(const struct report *r, const struct report_run *run, FILE *out)
{
    const struct report_timeline *t = &run->timeline;
    struct ct_chart_timeline chart = {
        .colour = work_colours,
        .title = ct_arena_printf((struct ct_arena *)&r->arena, "A step of %s", run->name),
        .x_name = t->seconds ? "ms" : "% of the step",
        .row = t->row,
        .kind = work_names,
        .rows = t->rows,
        .kinds = WORK_KINDS,
        .end = t->end,
        .span = t->span,
        .count = t->count};

    element("h3", run->name, out);
    if (!t->source) {
        fputs("<p>There is none: ", out);
        put(t->missing ? t->missing : "it could not be simulated", out);
        fputs("</p>\n", out);
        return;
    }
    element("p", t->source, out);
    if (t->all_ranks > t->ranks)
        fprintf(out, "<p class='note'>The first %d of %d ranks are drawn.</p>\n", t->ranks,
                t->all_ranks);
    fputs("<div class='wide'>\n", out);
    for (int narrow = 0; narrow < 2; narrow++) {
        chart.narrow = narrow;
        ct_chart_timeline(&chart, out);
    }
    fputs("</div>\n", out);
    print_busy(t, out);
    if (run->profile.step)
        print_profile(r, run, out);
}

static void print_timelines(const struct report *r, FILE *out)
{
    fputs("<section id='step' aria-labelledby='step-h'><h2 id='step-h'>A step</h2>\n", out);
    for (size_t i = 0; i < r->count; i++)
        print_timeline(r, &r->run[i], out);
    fputs("</section>\n", out);
}

/* ---- traffic ---- */

static const json_t *find_traffic(const struct report_run *run, const char *op, const char *axes)
{
    const json_t *list = json_object_get(run->plan, "communication");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *at = json_array_get(list, i);

        if (!strcmp(json_string_value(json_object_get(at, "op")), op) &&
            !strcmp(json_string_value(json_object_get(at, "axes")), axes))
            return at;
    }
    return NULL;
}

static const char *calls_of(const struct report_run *run, char *text, size_t room)
{
    snprintf(text, room, "%s, calls", run->name);
    return text;
}

static void print_traffic_row(const struct report *r, const char *op, const char *axes, FILE *out)
{
    char text[32], name[256];

    fputs("<tr>", out);
    element("th scope='row'", op, out);
    element("td class='text' data-is='along'", axes, out);
    for (size_t i = 0; i < r->count; i++) {
        const json_t *at = find_traffic(&r->run[i], op, axes);

        card(calls_of(&r->run[i], name, sizeof(name)),
             number(at ? json_number_value(json_object_get(at, "calls")) : 0, text), out);
        card("bytes", bytes(at ? json_number_value(json_object_get(at, "bytes")) : 0, text), out);
    }
    fputs("</tr>\n", out);
}

static bool sends(const struct report *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (json_array_size(json_object_get(r->run[i].plan, "communication")))
            return true;
    return false;
}

static void print_traffic(const struct report *r, FILE *out)
{
    char name[256];

    fputs("<section id='traffic' aria-labelledby='traffic-h'><h2 id='traffic-h'>Traffic</h2>\n",
          out);
    if (!sends(r)) {
        fputs("<p>No rank sends anything.</p></section>\n", out);
        return;
    }
    fputs("<div class='wide'><table class='cards'><caption>Sent by rank 0 in a "
          "step</caption><thead><tr>"
          "<th class='text' scope='col'>collective</th><th class='text' scope='col'>along</th>",
          out);
    for (size_t i = 0; i < r->count; i++) {
        element("th scope='col'", calls_of(&r->run[i], name, sizeof(name)), out);
        fputs("<th scope='col'>bytes</th>", out);
    }
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < r->count; i++) {
        const json_t *list = json_object_get(r->run[i].plan, "communication");

        for (size_t n = 0; n < json_array_size(list); n++) {
            const json_t *at = json_array_get(list, n);
            const char *op = json_string_value(json_object_get(at, "op"));
            const char *axes = json_string_value(json_object_get(at, "axes"));
            bool seen = false;

            for (size_t before = 0; before < i; before++)
                seen |= find_traffic(&r->run[before], op, axes) != NULL;
            if (!seen)
                print_traffic_row(r, op, axes, out);
        }
    }
    fputs("</tbody></table></div></section>\n", out);
}

/* ---- recipes ---- */

static bool differs(const struct report *r, const char *name)
{
    struct run_option first, other;
    bool has = run_option_find(&r->run[0].recipe, name, &first);

    for (size_t i = 1; i < r->count; i++)
        if (run_option_find(&r->run[i].recipe, name, &other) != has ||
            (has && strcmp(first.value, other.value) != 0))
            return true;
    return false;
}

static void print_difference(const struct report *r, const char *name, FILE *out)
{
    struct run_option option;

    fputs("<tr>", out);
    element("th scope='row'", name, out);
    for (size_t i = 0; i < r->count; i++) {
        bool has = run_option_find(&r->run[i].recipe, name, &option);

        fputs("<td class='text' data-is='", out);
        put(r->run[i].name, out);
        fputs("'>", out);
        put(has ? option.value : "not there", out);
        if (has) {
            fputs("<br><span class='note'>", out);
            put(option.source, out);
            fputs("</span>", out);
        }
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

/* Options of which a value differs from the first run's, each once, in the order of the recipes. */
static int print_differences(const struct report *r, FILE *out)
{
    struct run_option option, before;
    int count = 0;

    for (size_t i = 0; i < r->count; i++) {
        size_t at = 0;

        while (run_option_next(&r->run[i].recipe, &at, &option) && count < OPTIONS) {
            bool seen = !strcmp(option.name, "job.dump_folder");

            for (size_t n = 0; n < i; n++)
                seen |= run_option_find(&r->run[n].recipe, option.name, &before);
            if (seen || !differs(r, option.name))
                continue;
            print_difference(r, option.name, out);
            count++;
        }
    }
    return count;
}

static void print_recipes(const struct report *r, FILE *out)
{
    if (r->count > 1) {
        fputs("<section id='differs' aria-labelledby='differs-h'>"
              "<h2 id='differs-h'>What differs</h2>\n<div class='wide'><table "
              "class='cards'><thead><tr>"
              "<th class='text' scope='col'>option</th>",
              out);
        for (size_t i = 0; i < r->count; i++)
            element("th class='text' scope='col'", r->run[i].name, out);
        fputs("</tr></thead><tbody>\n", out);
        if (!print_differences(r, out))
            fprintf(out, "<tr><td class='text' colspan='%zu'>No option but the folder.</td></tr>\n",
                    r->count + 1);
        fputs("</tbody></table></div></section>\n", out);
    }
    fputs("<section id='recipe' aria-labelledby='recipe-h'><h2 id='recipe-h'>Recipe</h2>\n", out);
    for (size_t i = 0; i < r->count; i++) {
        fprintf(out, "<details%s><summary>", r->count == 1 ? " open" : "");
        put(r->run[i].name, out);
        fputs(", every option and where its value is from</summary><pre tabindex='0'>", out);
        put(r->run[i].recipe.parsed ? r->run[i].recipe.text : "There is no recipe.ini.", out);
        fputs("</pre></details>\n", out);
    }
    fputs("</section>\n", out);
}

/* ---- all ---- */

/* Prints the descriptions that recipes give of their runs. */
static void print_descriptions(const struct report *r, FILE *out)
{
    struct run_option option;

    for (size_t i = 0; i < r->count; i++)
        if (run_option_find(&r->run[i].recipe, "job.description", &option) && *option.value) {
            fputs("<p class='note'>", out);
            put(r->run[i].name, out);
            fputs(": ", out);
            put(option.value, out);
            fputs("</p>\n", out);
        }
}

static void print_head(const struct report *r, FILE *out)
{
    fputs("<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"
          "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>",
          out);
    for (size_t i = 0; i < r->count; i++) {
        fputs(i ? ", " : "", out);
        put(r->run[i].name, out);
    }
    fprintf(out, " - ctitan report</title>\n<style>\n%s%s</style></head>\n<body>\n", style,
            ct_chart_style());
    fputs("<a class='skip' href='#main'>Skip to the content</a>\n<header><h1>Report: ", out);
    for (size_t i = 0; i < r->count; i++) {
        fputs(i ? ", " : "", out);
        put(r->run[i].name, out);
    }
    fputs("</h1>\n", out);
    print_descriptions(r, out);
    fprintf(out,
            "</header>\n<nav aria-label='Sections'><a href='#runs'>Runs</a>"
            "<a href='#loss'>Loss</a><a href='#speed'>Speed</a><a href='#norm'>Gradient norm</a>"
            "<a href='#lr'>Learning rate</a>"
            "<a href='#memory'>Memory</a><a href='#step'>A step</a><a href='#traffic'>Traffic</a>"
            "%s<a href='#recipe'>Recipe</a></nav>\n<main id='main' tabindex='-1'>\n",
            r->count > 1 ? "<a href='#differs'>What differs</a>" : "");
}

void report_print_page(const struct report *r, FILE *out)
{
    char when[64];
    time_t now = time(NULL);
    struct tm local;

    localtime_r(&now, &local);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &local);
    print_head(r, out);
    print_summary(r, out);
    print_curve(r, "loss", "Loss", "loss", loss_of, false, out);
    print_curve(r, "speed", "Speed", "tokens per second", speed_of, true, out);
    print_curve(r, "norm", "Gradient norm", "norm before clipping", norm_of, true, out);
    print_curve(r, "lr", "Learning rate", "learning rate", lr_of, true, out);
    print_memory(r, out);
    print_timelines(r, out);
    print_traffic(r, out);
    print_recipes(r, out);
    fprintf(out,
            "</main>\n<footer class='note'>Written by ctitan " CT_VERSION " on %s.</footer>\n"
            "<script>\n%s</script>\n</body></html>\n",
            when, ct_chart_script());
}
