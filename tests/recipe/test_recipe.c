/*
 * Recipes: what is read, what is refused and in which words. ct_recipe_apply works once per
 * process, so each recipe that gets that far is applied in a child.
 */
#include "assertions.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

static struct ct_recipe *read_text(struct ct_arena *arena, const char *text)
{
    struct ct_recipe *recipe = NULL;
    int rc = ct_recipe_parse(arena, "r.ini", text, &recipe);

    if (rc < 0)
        print_error("%s\n", ct_error_message());
    assert_int_equal(rc, 0);
    return recipe;
}

static void values_are_read_with_their_lines(void **state)
{
    static const char text[] = "\xef\xbb\xbf; a comment\n"
                               "[plugins]\r\n"
                               "load = cpu, llama ,   # devices first\n"
                               "   ; the rest\n"
                               "\n"
                               "\tadamw\n"
                               "[training]\n"
                               "steps=100;no comment\n"
                               "seed : 7 ; comment\n"
                               "  # comment\n"
                               "[job]\n"
                               "name = a = b: #c\n"
                               "description =";
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, text);

    (void)state;
    assert_int_equal(r->plugin_count, 3);
    assert_string_equal(r->plugins[0], "cpu");
    assert_string_equal(r->plugins[1], "llama");
    assert_string_equal(r->plugins[2], "adamw");
    assert_string_equal(r->plugin_sources[2], "r.ini:3");
    assert_string_equal(ct_recipe_get(r, "training", "steps"), "100;no comment");
    assert_string_equal(ct_recipe_get(r, "training", "seed"), "7");
    assert_string_equal(ct_recipe_get(r, "job", "name"), "a = b:");
    assert_string_equal(ct_recipe_get(r, "job", "description"), "");
    assert_null(ct_recipe_get(r, "job", "dump_folder"));
    assert_string_equal(r->settings[2].source, "r.ini:9");
    assert_int_equal(r->section_count, 3);
    assert_string_equal(r->sections[2].source, "r.ini:11");
    ct_arena_finish(&arena);
}

/* Values with colons, brackets and equals signs go on in other lines, but for lines that read as
   settings. */
static void lines_that_are_no_settings_continue_values(void **state)
{
    static const char text[] = "[adamw]\nlr_factors = *embed*:0.1,\n  lm_head:0.5,\n  norm : 2\n"
                               "no_decay = a,\n  [ab]*.bias\n"
                               "[job]\nname = x\n  of https://example.org/a=b 2 = two\n"
                               "  http://y\n  -std=c11\n  1 = one";
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, text);

    (void)state;
    assert_string_equal(ct_recipe_get(r, "adamw", "lr_factors"),
                        "*embed*:0.1, lm_head:0.5, norm : 2");
    assert_string_equal(ct_recipe_get(r, "adamw", "no_decay"), "a, [ab]*.bias");
    assert_string_equal(ct_recipe_get(r, "job", "name"),
                        "x of https://example.org/a=b 2 = two http://y -std=c11 1 = one");
    ct_arena_finish(&arena);
}

static void long_values_are_whole(void **state)
{
    struct ct_arena arena = {0};
    char value[3000], *text, *joined;
    struct ct_recipe *r;

    (void)state;
    memset(value, 'v', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    text = ct_arena_printf(&arena, "[job]\nname = %s\n %s\n %s\n", value, value, value);
    joined = ct_arena_printf(&arena, "%s %s %s", value, value, value);
    r = read_text(&arena, text);
    assert_string_equal(ct_recipe_get(r, "job", "name"), joined);
    ct_arena_finish(&arena);
}

/* Quotes hold what would begin a comment, and nothing else has any. */
static void quotes_hold_comments(void **state)
{
    static const char text[] = "[job]\n"
                               "name = \"/a #1\" ; the \"first\"\n"
                               "description = a,\n  \"b ;\"\"c\"\"\"\n  d ; e\n"
                               "dump_folder=\"#x\"\n"
                               "[training]\n"
                               "seed = \"7\"\n"
                               "steps = 5\" disk ; of \"a\"\n"
                               "seq_len = \"a\";\"b\" # \"c\"\n";
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, text);

    (void)state;
    assert_string_equal(ct_recipe_get(r, "job", "name"), "/a #1");
    assert_string_equal(ct_recipe_get(r, "job", "description"), "a, b ;\"c\" d");
    assert_string_equal(ct_recipe_get(r, "job", "dump_folder"), "#x");
    assert_string_equal(ct_recipe_get(r, "training", "seed"), "\"7\"");
    assert_string_equal(ct_recipe_get(r, "training", "steps"), "5\" disk");
    assert_string_equal(ct_recipe_get(r, "training", "seq_len"), "\"a\";\"b\"");
    assert_int_equal(ct_recipe_set(r, "job.name=\"\"\"x\"\" #y\" "), 0);
    assert_string_equal(ct_recipe_get(r, "job", "name"), "\"x\" #y");
    assert_string_equal(ct_recipe_quote(&arena, "x \"#y\""), "x \"#y\"");
    assert_string_equal(ct_recipe_quote(&arena, "a \"b\" ;"), "\"a \"\"b\"\" ;\"");
    assert_fails(ct_recipe_set(r, "job.name=\"x #y\" z"), CT_ECONFIG, "needs quotes");
    assert_fails(ct_recipe_set(r, "job.name=a, \"x #y"), CT_ECONFIG, "needs quotes");
    assert_fails(ct_recipe_set(r, "job.name=\" x #y\""), CT_ECONFIG, "ends with white space");
    assert_fails(ct_recipe_set(r, "job.name=\"x #y\t\""), CT_ECONFIG, "ends with white space");
    assert_int_equal(ct_recipe_set(r, "job.description=\"see Fig, 5\"\" wide, \"\"big\""), 0);
    assert_string_equal(ct_recipe_get(r, "job", "description"), "see Fig, 5\" wide, \"big");
    assert_string_equal(ct_recipe_quote(&arena, "a, \"b"), "\"a, \"\"b\"");
    assert_string_equal(ct_recipe_assign(&arena, "a.b", "/x #1"), "a.b=\"/x #1\"");
    assert_string_equal(ct_recipe_assign(&arena, "a.b", "/x#1"), "a.b=/x#1");
    ct_arena_finish(&arena);
}

/* A recipe that a run recorded before items were checked is read. */
static void recorded_items_may_begin_with_a_quote(void **state)
{
    static const char text[] = "; a, with every option and where its value is from\n"
                               "[job]\n"
                               "description = see Fig, 5\" wide, \"big  ; a.ini:3\n";
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, text);

    (void)state;
    assert_string_equal(ct_recipe_get(r, "job", "description"), "see Fig, 5\" wide, \"big");
    ct_arena_finish(&arena);
}

/* A file's name does not refuse what is INI. */
static void a_suffix_alone_is_no_kind(void **state)
{
    struct ct_arena arena = {0};
    struct ct_recipe *r;

    (void)state;
    assert_int_equal(ct_recipe_parse(&arena, "r.toml", "[job]\nname = x\n", &r), 0);
    assert_string_equal(ct_recipe_get(r, "job", "name"), "x");
    assert_fails(ct_recipe_parse(&arena, "r.toml", "[job]\nname = \"x\"\n", &r), CT_ECONFIG,
                 "values have no quotes: write name = x");
    assert_fails(ct_recipe_parse(&arena, "r.toml", "[job]\nname = [\n  \"a = 1\",\n]\n", &r),
                 CT_ECONFIG, "this is TOML");
    ct_arena_finish(&arena);
}

/* ---- what cannot be read ---- */

static void bad_text_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"steps = 3\n", "r.ini:1: 'steps = 3' stands before the first [section]"},
        {"[training]\n\nsteps\n", "r.ini:3: expected 'key = value' or '[section]', not 'steps'"},
        {"[training\n", "r.ini:1: the section [training has no closing ]"},
        {"[training] x\n", "r.ini:1: ' x' after the section's closing ]"},
        {"[]\n", "r.ini:1: [] is not a section's name"},
        {"[ training ]\n", "r.ini:1: [ training ] is not a section's name"},
        {"[aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\n",
         "is not a section's name: expected 1 to 48 characters"},
        {"[training]\nsteps = 1\n[training]\n",
         "r.ini:3: section [training] already began at r.ini:1"},
        {"[training]\nsteps = 1\nseed = 2\nsteps = 3\n",
         "r.ini:4: [training] steps was already set at r.ini:2"},
        {"[training]\n= 3\n", "r.ini:2: '= 3' is not a key: expected 1 to 48 characters"},
        {"[training]\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa = 3\n",
         "is not a key: expected 1 to 48 characters"},
        {"  steps = 3\n", "r.ini:1: 'steps = 3' is indented: remove the indentation"},
        {"[job]\n  name = x\n  dump_folder = y\n",
         "r.ini:2: 'name = x' is indented: remove the indentation"},
        {"  x\n", "r.ini:1: a line that begins with white space continues a value"},
        {"[job]\nname = e\n  dump_folder = swallowed\n",
         "r.ini:3: 'dump_folder = swallowed' is indented, so it would continue the value of line "
         "2: "
         "remove the indentation"},
        {"[job]\nname = e\n\n; c\n\tdump_folder=\n",
         "r.ini:5: 'dump_folder=' is indented, so it would continue the value of line 2: remove"},
        {"[job]\nname = e\n local-name : x\n", "r.ini:3: 'local-name : x' is indented, so"},
        {"[job]\nname = e\n name: x\n", "r.ini:3: 'name: x' is indented, so"},
        {"[plugins]\nload = a,\n  b,\n  steps = 3\n", "r.ini:4: 'steps = 3' is indented, so"},
        {"[job]\nname = e\n  [training] ; next\nsteps = 3\n",
         "r.ini:3: '[training]' is indented, so it would continue the value of line 2: remove"},
        {"[job]\n  [training]\n", "r.ini:2: '[training]' is indented: remove the indentation"},
        {"[plugins]\nload = a,,b\n", "r.ini:2: load: expected a plugin's name"},
        {"[plugins]\nload = a,\n", "r.ini:2: load: expected a plugin's name after a comma"},
        {"[plugins]\nload = a b\n", "r.ini:2: load: expected a comma in 'a b'"},
        {"[plugins]\nload = a,\n  b,\n  a\n", "r.ini:2: load: a is listed twice"},
        {"[job]\nname = \"a #b\" c\n",
         "r.ini:2: [job] name = \"a: a comment begins within quotes; quote the whole value"},
        {"[job]\nname = README.md, \"d #1\"\n", "[job] name = README.md, \"d: a comment begins"},
        {"[job]\nname = a,\n \"b \"\"c #1\"\" d\"e\n", "r.ini:2: [job] name = a, "},
        {"[job]\nname = README.md, \"d #1\n", "r.ini:2: [job] name = README.md, \"d: a quote"},
        {"[job]\nname = README.md,\n \"d #1\n", "r.ini:2: [job] name = README.md, \"d: a quote"},
        {"[job]\nname = README.md,\"d\n", "r.ini:2: [job] name = README.md,\"d: a quote begins"},
        {"[job]\nname = \" a #b\"\n", "r.ini:2: [job] name = a #b: within quotes, a value neither"},
        {"[job]\nname = a\n \"b #c \"\n", "r.ini:2: [job] name = a b #c : within quotes"},
        {"[plugins]\nload = /a.so /b.so\n", "r.ini:2: load: expected a comma in '/a.so /b.so'"},
        {"[job]\n; caf\xe9\nname = caf\xe9\n", "r.ini:3: 'name = caf\xe9' is not UTF-8"},
        {"[job]\nname = \xc0\xaf\n", "is not UTF-8"},
        {"[job]\nname = x\xed\xa0\x80\n", "is not UTF-8"},
        {"[job]\nname = x\xf4\x90\x80\x80\n", "is not UTF-8"},
        {"[job]\nname = x\xe2\x82\n", "is not UTF-8"},
    };

    struct ct_arena toml = {0};
    struct ct_recipe *other;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        struct ct_arena arena = {0};
        struct ct_recipe *recipe;

        assert_fails(ct_recipe_parse(&arena, "r.ini", bad[i].text, &recipe), CT_ECONFIG,
                     bad[i].expected);
        ct_arena_finish(&arena);
    }
    assert_fails(ct_recipe_parse(&toml, "r.toml", "[model]\nname = \"x\"\n", &other), CT_ECONFIG,
                 "r.toml: this is TOML, but a recipe is an INI file");
    ct_arena_finish(&toml);
}

/* No line of a recipe is lost by its indentation, whichever it is. */
static void each_indented_line_is_refused(void **state)
{
    static const char *const lines[] = {"[plugins]",  "load = cpu, llama,",
                                        "[training]", "steps = 3",
                                        "seed=4",     "dtype : float32",
                                        "[job]",      "name=",
                                        "[a.b-c_d]",  "x_1 =y",
                                        "y-z =",      "z:"};
    char expected[64];

    (void)state;
    for (size_t bad = 0; bad < CT_COUNT(lines); bad++) {
        struct ct_arena arena = {0};
        struct ct_recipe *recipe;
        const char *text = "";

        for (size_t i = 0; i < CT_COUNT(lines); i++)
            text =
                ct_arena_printf(&arena, "%s%s%s\n", text, i == bad ? &" \t"[i % 2] : "", lines[i]);
        snprintf(expected, sizeof(expected), "r.ini:%zu: '%s' is indented", bad + 1, lines[bad]);
        assert_fails(ct_recipe_parse(&arena, "r.ini", text, &recipe), CT_ECONFIG, expected);
        assert_message("remove the indentation");
        ct_arena_finish(&arena);
    }
}

static void lines_have_a_limit(void **state)
{
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;
    char line[4100] = "name = ";

    (void)state;
    memset(line + 7, 'x', 3993);
    read_text(&arena, ct_arena_printf(&arena, "[job]\n%s\n", line));
    line[4000] = 'x';
    assert_fails(
        ct_recipe_parse(&arena, "r.ini", ct_arena_printf(&arena, "[job]\n%s\n", line), &recipe),
        CT_ECONFIG, "r.ini:2: the line has more than 4000 characters");
    ct_arena_finish(&arena);
}

static void files_are_read(void **state)
{
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;
    char path[] = "/tmp/ctitan-XXXXXX.ini";
    int fd = mkstemps(path, 4);

    (void)state;
    assert_int_equal(write(fd, "[job]\nname = x\n", 15), 15);
    assert_int_equal(ct_recipe_read(&arena, path, &recipe), 0);
    assert_string_equal(ct_recipe_get(recipe, "job", "name"), "x");
    assert_int_equal(write(fd, "\0", 1), 1);
    close(fd);
    assert_fails(ct_recipe_read(&arena, path, &recipe), CT_ECONFIG, "zero byte");
    unlink(path);
    assert_fails(ct_recipe_read(&arena, path, &recipe), CT_ENOENT, path);
    assert_fails(ct_recipe_read(&arena, "/tmp", &recipe), CT_ECONFIG, "/tmp is not a regular file");
    ct_arena_finish(&arena);
}

/* ---- the command line ---- */

static void the_command_line_wins(void **state)
{
    struct ct_arena arena = {0};
    struct ct_recipe *r =
        read_text(&arena, "[plugins]\nload = a, b, c\n[training]\nsteps = 1\n[b]\nx = 1\n");

    (void)state;
    assert_int_equal(ct_recipe_set(r, "training.steps=5"), 0);
    assert_int_equal(ct_recipe_set(r, "job.name=caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xa1"), 0);
    assert_int_equal(ct_recipe_set(r, "job.name=x=y.z"), 0);
    assert_int_equal(ct_recipe_with(r, "d"), 0);
    assert_int_equal(ct_recipe_with(r, "a"), 0);
    assert_int_equal(ct_recipe_without(r, "b"), 0);
    assert_string_equal(ct_recipe_get(r, "training", "steps"), "5");
    assert_string_equal(ct_recipe_get(r, "job", "name"), "x=y.z");
    assert_int_equal(ct_recipe_set(r, "job.description= \ta  b \f"), 0);
    assert_string_equal(ct_recipe_get(r, "job", "description"), "a  b");
    assert_null(ct_recipe_get(r, "b", "x"));
    assert_int_equal(r->plugin_count, 3);
    assert_string_equal(r->plugins[1], "c");
    assert_string_equal(r->plugins[2], "d");
    assert_string_equal(r->plugin_sources[2], "--with");
    assert_int_equal(ct_recipe_set(r, "plugins.load=e,f,/p/c.so"), 0);
    assert_int_equal(r->plugin_count, 3);
    assert_string_equal(r->plugins[1], "f");
    assert_int_equal(ct_recipe_set(r, "c.x=1"), 0);
    assert_int_equal(ct_recipe_without(r, "c"), 0);
    assert_int_equal(r->plugin_count, 2);
    assert_null(ct_recipe_get(r, "c", "x"));
    assert_int_equal(ct_recipe_with(r, "g,h"), 0);
    assert_string_equal(r->plugins[3], "h");
    assert_int_equal(ct_recipe_without(r, "e,g"), 0);
    assert_int_equal(r->plugin_count, 2);
    ct_arena_finish(&arena);
}

static void keys_and_sections_are_left_out(void **state)
{
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, "[plugins]\nload = a\n[training]\nsteps = 1\n"
                                            "seed = 2\n[lr_scheduler]\nwarmup_steps = 3\n");

    (void)state;
    assert_int_equal(ct_recipe_unset(r, "training.steps"), 0);
    assert_null(ct_recipe_get(r, "training", "steps"));
    assert_string_equal(ct_recipe_get(r, "training", "seed"), "2");
    assert_int_equal(ct_recipe_unset(r, "lr_scheduler"), 0);
    assert_null(ct_recipe_get(r, "lr_scheduler", "warmup_steps"));
    assert_fails(ct_recipe_unset(r, "training.steps"), CT_ECONFIG, "the recipe does not set it");
    assert_fails(ct_recipe_unset(r, "lr_scheduler"), CT_ECONFIG, "the recipe does not set it");
    assert_fails(ct_recipe_unset(r, "plugins.load"), CT_ECONFIG, "--without PLUGIN");
    assert_fails(ct_recipe_without(r, "training"), CT_ECONFIG, "--unset training");
    ct_arena_finish(&arena);
}

static void bad_arguments_are_refused(void **state)
{
    static const char *const bad[] = {"training",   "training.steps", "=5",        ".steps=5",
                                      "training.=", "steps=5",        "a.b=x ; y", "a.b=x\ny",
                                      "a.b=x\t; y", "a.b=x\f#y",      "a.b= ;x",   "a.b=\xe9"};
    struct ct_arena arena = {0};
    struct ct_recipe *r = read_text(&arena, "[plugins]\nload = adamw\n");

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++)
        assert_fails(ct_recipe_set(r, bad[i]), CT_ECONFIG, "--set");
    assert_fails(ct_recipe_without(r, "adam"), CT_ECONFIG, "did you mean adamw?");
    assert_fails(ct_recipe_without(r, "cpu"), CT_ECONFIG, "--without cpu: the recipe does not");
    assert_fails(ct_recipe_with(r, ""), CT_ECONFIG, "--with");
    assert_fails(ct_recipe_with(r, "a,"), CT_ECONFIG, "--with");
    assert_fails(ct_recipe_with(r, "\xe9"), CT_ECONFIG, "UTF-8");
    assert_int_equal(r->count, 1);
    ct_arena_finish(&arena);
}

/* ---- applying ---- */

/* In a child: apply the text; what is written to the pipe: the failure, or the resolved recipe. */
static int apply(const char *text, char *out, size_t room)
{
    int ends[2], status;
    size_t used = 0;
    ssize_t got;

    assert_int_equal(pipe(ends), 0);
    if (fork() == 0) {
        struct ct_arena arena = {0};
        struct ct_recipe *recipe;
        FILE *to = fdopen(ends[1], "w");
        int rc = ct_recipe_parse(&arena, "r.ini", text, &recipe);

        if (rc == 0)
            rc = ct_recipe_apply(recipe);
        if (rc < 0)
            fputs(ct_error_message(), to);
        else
            ct_recipe_print_resolved(recipe, to);
        fclose(to);
        _exit(-rc);
    }
    close(ends[1]);
    while ((got = read(ends[0], out + used, room - 1 - used)) > 0)
        used += (size_t)got;
    out[used] = '\0';
    close(ends[0]);
    wait(&status);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void bad_recipes_say_what_is_wrong(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *expected[3];
    } bad[] = {
        {"[plugins]\nload = god\n",
         CT_ENOENT,
         {"r.ini:2: no plugin named god", "did you mean good?", "searched"}},
        {"[plugins]\nload = good, undefined_symbol\n",
         CT_ENOENT,
         {"r.ini:2: ", "undefined symbol: ct_from_the_future", "build both"}},
        {"[plugins]\nload = wrong_abi\n",
         CT_EABI,
         {"r.ini:2: ", "built for plugin interface 99.0", "rebuild"}},
        {"[plugins]\nload = no_config\n", CT_ECONFIG, {"r.ini:2: ", "no_config.so", "no config"}},
        {"[plugins]\nload = good, foe\n",
         CT_ECONFIG,
         {"r.ini:2: ", "plugins foe and good cannot be used together", ""}},
        {"[plugins]\nload = needy\n",
         CT_ECONFIG,
         {"r.ini: plugin needy needs plugin good", "add good to [plugins] load", ""}},
        {"[plugins]\nload = training\n",
         CT_ECONFIG,
         {"r.ini:2: ", "the name of one of the core's own sections", ""}},
        {"[plugins]\nlaod = good\n",
         CT_ECONFIG,
         {"r.ini:2: [plugins] has one key, load, but not laod", "", ""}},
        {"[model]\nname = x\n[trainig]\n",
         CT_ECONFIG,
         {"r.ini:3: no section [trainig]", "did you mean [training]?", ""}},
        {"[plugins]\nload = good\n[training]\nsize = 3\n",
         CT_ECONFIG,
         {"r.ini:4: [training]: no option named size: write size in [good]", "", ""}},
        {"[plugins]\nload = good\n[good]\nmax_steps = 3\n",
         CT_ECONFIG,
         {"r.ini:4: [good]: no option named max_steps: write steps in [training]", "", ""}},
        {"[model]\nname = x\n[training]\nbf16 = true\n",
         CT_ECONFIG,
         {"no option named bf16: write mixed_precision_param in [training]", "its default", ""}},
        {"[model]\nname = x\n[debug]\nseed = 3\n",
         CT_ECONFIG,
         {"r.ini:3: no section [debug]: write [training]", "", ""}},
        {"[model]\nname = x\n[train]\nsteps = 3\n",
         CT_ECONFIG,
         {"r.ini:3: no section [train]: write [training]", "", ""}},
        {"[model]\nname = x\n[optimizer]\nlr = 3\n",
         CT_ECONFIG,
         {"r.ini:3: no section [optimizer]: each technique is a plugin", "", ""}},
        {"[plugins]\nload = \"good\"\n",
         CT_ECONFIG,
         {"r.ini:2: [plugins] load = \"good\"", "values have no quotes: write load = good", ""}},
        {"[model]\ninit_from = \"/x #1\n",
         CT_ECONFIG,
         {"r.ini:2: [model] init_from = \"/x", "the quote is not closed", ""}},
        {"[model]\nname = 'x'\n", CT_ECONFIG, {"r.ini:2: [model] name = 'x'", "name = x", ""}},
        {"[model]\ninit_from = ~/x\n",
         CT_ECONFIG,
         {"r.ini:2: [model] init_from = ~/x: ~ stands for no folder here", "write init_from = /",
          ""}},
        {"# a comment\n\nmodel:\n  name: x\n",
         CT_ECONFIG,
         {"r.ini: this is YAML, but a recipe is an INI file", "", ""}},
        {" {\"model\": {\"name\": \"x\"}}\n", CT_ECONFIG, {"r.ini: this is JSON", "", ""}},
        {"[model]\nname = x\n[good]\nsize = 3\n",
         CT_ECONFIG,
         {"r.ini:3: section [good]", "plugin good is not loaded", "add it to [plugins] load"}},
        {"[plugins]\nload = needy, good\n[model]\nname = x\n[needy]\nx = 1\n",
         CT_ECONFIG,
         {"r.ini:6: plugin needy has no options", "", ""}},
        {"[plugins]\nload = good\n[good]\nsizes = 3\n",
         CT_ECONFIG,
         {"r.ini:4: [good]: no option named sizes", "did you mean size?", ""}},
        {"[plugins]\nload = good\n[good]\nsize = 11\n",
         CT_ECONFIG,
         {"r.ini:4: [good]: size = 11: expected a smaller integer, 1 to 10", "", ""}},
        {"[model]\nname = x\n[training]\n\ndtype = float61\n",
         CT_ECONFIG,
         {"r.ini:5: [training]: dtype = float61: expected one of float32, bfloat16", "", ""}},
        {"[model]\nname = x\n[training]\nglobal_batch_size = 0\n",
         CT_ECONFIG,
         {"r.ini:4: [training] global_batch_size = 0: expected at least 1, or -1", "", ""}},
        {"[plugins]\nload = path_needed\n",
         CT_ECONFIG,
         {"r.ini: [path_needed] path must be set", "", ""}},
        {"[model]\nname = x\n[lr_scheduler]\ndecay_ratio = 2\n",
         CT_ECONFIG,
         {"r.ini:4: ", "expected a number, -1 to 1", ""}},
        {"[model]\nname = x\n[training]\nsteps = 9\n[lr_scheduler]\ntotal_steps = 8\n",
         CT_ECONFIG,
         {"r.ini:6: [lr_scheduler] total_steps = 8 ends before the run, which has [training] steps "
          "= 9",
          "expected at least as many, or 0", ""}},
        {"[model]\nname = x\n[lr_scheduler]\ndecay_ratio = 0\ndecay_type = cosine\n",
         CT_ECONFIG,
         {"r.ini: [lr_scheduler] decay_type has no effect: decay_ratio = 0 means no decay", "",
          ""}},
        {"[model]\nname = x\n[training]\nsteps = 9\nepochs = 1\n",
         CT_ECONFIG,
         {"r.ini:5: [training] epochs, and r.ini:4: steps, which it takes the place of", "", ""}},
        {"[plugins]\nload = halves\n[model]\nname = x\n[lr_scheduler]\nmin_lr_factor = 0\n",
         CT_ECONFIG,
         {"r.ini:6: [lr_scheduler] min_lr_factor has no effect",
          "plugin halves gives the learning rate", "take halves out of [plugins] load"}},
    };
    char out[8192];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        assert_int_equal(apply(bad[i].text, out, sizeof(out)), bad[i].code);
        ct_fail(CT_ECONFIG, "%s", out);
        for (int k = 0; k < 3; k++)
            assert_message(bad[i].expected[k]);
    }
}

/* Cut the comments off, so that two resolved recipes can be compared. */
static void drop_comments(char *text)
{
    char *to = text;

    for (char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), kept = 0;

        while (kept < length && !(line[kept] == ';' && (!kept || line[kept - 1] == ' ')))
            kept++;
        while (kept && line[kept - 1] == ' ')
            kept--;
        memmove(to, line, kept);
        to[kept] = '\n';
        to += kept + 1;
        line += length + (line[length] == '\n');
    }
    *to = '\0';
}

/* Every value that a file can have, the resolved recipe can have too. */
static void values_read_back_as_they_were(void **state)
{
    static char longest[3996], line[4001], out[65536];
    const char *texts[14];
    struct ct_arena arena = {0};

    (void)state;
    memset(longest, 'v', sizeof(longest) - 1);
    memset(line, 'w', sizeof(line) - 1);
    texts[0] = ct_arena_printf(&arena, "path=%s", longest);
    texts[1] = ct_arena_printf(&arena, "path=%s\n %s\n  1 x=1\n\t%s", longest, line, line);
    texts[2] = ct_arena_printf(&arena, "path =\n %s\n [x] y\n %s", line, line);
    texts[3] = "path=;x";
    texts[4] = "path = x\t y   z\fa;";
    texts[5] = ct_arena_printf(&arena, "path = x  y\n %.3990s %s z\n  u", line, "b");
    texts[6] = ct_arena_printf(&arena, "path = a x =1 %.3980s\n %s", line, line);
    texts[7] = ct_arena_printf(&arena, "path=x=1 %.3991s\n %s", line, line);
    texts[8] = ct_arena_printf(&arena, "path=%.3991s [x]\n %s", line, line);
    texts[9] = "path = \"a #b \"\"; c\"\"\"";
    texts[10] = "path = \"# a\"\n  b\n \"x ;\" # d";
    texts[11] =
        ct_arena_printf(&arena, "path = \"%.3980s #x\"\n %s\n \"%.3980s ;\"", line, line, line);
    texts[12] = "path = \"\"\"x #y\"";
    texts[13] = "path = say \"x ; y";
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        const char *text = ct_arena_printf(
            &arena, "[plugins]\nload = good, words\n[model]\nname = llama\n[good]\n%s\n", texts[i]);
        const char *value = ct_recipe_get(read_text(&arena, text), "good", "path");

        assert_int_equal(apply(text, out, sizeof(out)), 0);
        assert_string_equal(ct_recipe_get(read_text(&arena, out), "good", "path"), value);
    }
    ct_arena_finish(&arena);
}

/* So can the path of a plugin. */
static void paths_of_plugins_read_back(void **state)
{
    static char out[65536];
    char folder[] = "/tmp/ctitan #XXXXXX", whole[4096];
    struct ct_arena arena = {0};
    const char *path;
    struct ct_recipe *r;

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_non_null(
        realpath(ct_arena_printf(&arena, "%s/words.so", getenv("CTITAN_PLUGIN_PATH")), whole));
    path = ct_arena_printf(&arena, "%s/words.so", folder);
    assert_int_equal(symlink(whole, path), 0);
    assert_int_equal(
        apply(ct_arena_printf(&arena, "[plugins]\nload =\n \"%s,\"\n good\n[model]\nname = llama\n",
                              path),
              out, sizeof(out)),
        0);
    r = read_text(&arena, out);
    assert_int_equal(r->plugin_count, 2);
    assert_string_equal(r->plugins[0], path);
    assert_string_equal(r->plugins[1], "good");
    unlink(path);
    rmdir(folder);
    ct_arena_finish(&arena);
}

static void the_resolved_recipe_is_complete_and_reads_back(void **state)
{
    static const char text[] = "[plugins]\nload = good, words\n[model]\nname = llama\n"
                               "[training]\nmax_norm = 0.1\nseed = 3\n[good]\npath = a b;c\n"
                               "[lr_scheduler]\nmin_lr_factor = 1e-3\n";
    static char first[16384], second[16384];

    (void)state;
    assert_int_equal(apply(text, first, sizeof(first)), 0);
    ct_fail(CT_OK, "%s", first);
    assert_non_null(strstr(first, "max_norm = 0.1 "));
    assert_non_null(strstr(first, "; r.ini:6\n"));
    assert_non_null(strstr(first, "seq_len = 2048 "));
    assert_non_null(strstr(first, "; default\n"));
    assert_non_null(strstr(first, "path = a b;c "));
    assert_non_null(strstr(first, "size = 3 "));
    assert_int_equal(apply(first, second, sizeof(second)), 0);
    drop_comments(first);
    drop_comments(second);
    assert_string_equal(first, second);
}

/* A default of an option that there was is no setting of the user. */
static void a_recorded_recipe_may_have_defaults_of_options_that_are_gone(void **state)
{
    static const char body[] = "[plugins]\nload = good, words\n[model]\nname = llama\n[good]\n";
    static const char header[] = "; r.ini, with every option and where its value is from\n";
    static char first[16384], second[16384];
    struct ct_arena arena = {0};

    (void)state;
    assert_int_equal(apply(ct_arena_printf(&arena, "%s%s%s[training]\nseed = 4 ; default\n", header,
                                           body, "zeal = false ; default\n"),
                           first, sizeof(first)),
                     0);
    assert_null(strstr(first, "zeal"));
    assert_non_null(strstr(first, "; r.ini:9, default\n"));
    assert_int_equal(apply(first, second, sizeof(second)), 0);
    assert_non_null(strstr(second, "seed = 4 "));
    drop_comments(first);
    drop_comments(second);
    assert_string_equal(first, second);
    assert_int_equal(
        apply(ct_arena_printf(&arena, "%s%szeal = true ; other.ini:3, default\n", header, body),
              first, sizeof(first)),
        0);
    assert_int_equal(apply(ct_arena_printf(&arena, "%s%szeal = true ; other.ini:3\n", header, body),
                           first, sizeof(first)),
                     CT_ECONFIG);
    assert_non_null(strstr(first, "r.ini:7: [good]: "));
    assert_int_equal(
        apply(ct_arena_printf(&arena, "\n%szeal = true ; default\n", body), first, sizeof(first)),
        CT_ECONFIG);
    ct_arena_finish(&arena);
}

/* Nor does it then have keys that would be refused. */
static void the_resolved_recipe_of_a_plugins_schedule_reads_back(void **state)
{
    static char first[16384], second[16384];

    (void)state;
    assert_int_equal(
        apply("[plugins]\nload = halves\n[model]\nname = x\n[lr_scheduler]\ntotal_steps = 20000\n",
              first, sizeof(first)),
        0);
    assert_null(strstr(first, "warmup_steps"));
    assert_non_null(strstr(first, "total_steps = 20000 "));
    assert_int_equal(apply(first, second, sizeof(second)), 0);
    drop_comments(first);
    drop_comments(second);
    assert_string_equal(first, second);
}

static void defaults_are_torchtitans(void **state)
{
    static char out[16384];
    static const char *const expected[] = {"seq_len = 2048 ",
                                           "local_batch_size = 8 ",
                                           "global_batch_size = -1 ",
                                           "steps = 10000 ",
                                           "max_norm = 1 ",
                                           "dtype = float32 ",
                                           "mixed_precision_param = bfloat16 ",
                                           "warmup_steps = 200 ",
                                           "total_steps = 0 ",
                                           "decay_type = linear ",
                                           "min_lr_factor = 0 ",
                                           "dump_folder = ./outputs ",
                                           "flavor = debug ",
                                           "freq = 0 "};

    (void)state;
    assert_int_equal(apply("[model]\nname = x\n", out, sizeof(out)), 0);
    for (size_t i = 0; i < CT_COUNT(expected); i++)
        assert_non_null(strstr(out, expected[i]));
}

/* ---- anything at all ---- */

static void random_text_is_refused_or_sound(void **state)
{
    static const char *const words[] = {"[plugins]", "[training]", "[x",        "]",           "\n",
                                        "\n ",       "steps",      "load",      "=",           ":",
                                        " ; c",      "#",          "a, b",      " ",           "\t",
                                        "\r\n",      "\n[job]\n",  "\nname = ", "\xef\xbb\xbf"};
    uint64_t random = 99;
    int good = 0;

    (void)state;
    for (int i = 0; i < 50000; i++) {
        struct ct_arena arena = {0};
        struct ct_recipe *recipe = NULL;
        char text[512] = "";

        if (i % 2) {
            for (uint64_t n = unit_random(&random) % 24; n; n--)
                strcat(text, words[unit_random(&random) % CT_COUNT(words)]);
        } else {
            for (uint64_t k = 0, n = unit_random(&random) % 300; k < n; k++)
                text[k] = (char)(unit_random(&random) % 255 + 1);
        }
        if (ct_recipe_parse(&arena, "r.ini", text, &recipe) == 0) {
            good += recipe->count > 0;
            for (size_t k = 0; k < recipe->count; k++) {
                assert_true(*recipe->settings[k].section && *recipe->settings[k].key);
                assert_null(strpbrk(recipe->settings[k].value, "\n"));
                assert_non_null(recipe->settings[k].source);
            }
        } else {
            assert_int_equal(strncmp(ct_error_message(), "r.ini:", 6), 0);
        }
        ct_arena_finish(&arena);
    }
    assert_true(good > 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_with_their_lines),
        cmocka_unit_test(lines_that_are_no_settings_continue_values),
        cmocka_unit_test(long_values_are_whole),
        cmocka_unit_test(quotes_hold_comments),
        cmocka_unit_test(recorded_items_may_begin_with_a_quote),
        cmocka_unit_test(a_suffix_alone_is_no_kind),
        cmocka_unit_test(bad_text_is_refused_with_its_line),
        cmocka_unit_test(each_indented_line_is_refused),
        cmocka_unit_test(lines_have_a_limit),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(bad_recipes_say_what_is_wrong),
        cmocka_unit_test(values_read_back_as_they_were),
        cmocka_unit_test(paths_of_plugins_read_back),
        cmocka_unit_test(the_resolved_recipe_is_complete_and_reads_back),
        cmocka_unit_test(a_recorded_recipe_may_have_defaults_of_options_that_are_gone),
        cmocka_unit_test(the_resolved_recipe_of_a_plugins_schedule_reads_back),
        cmocka_unit_test(defaults_are_torchtitans),
        cmocka_unit_test(keys_and_sections_are_left_out),
        cmocka_unit_test(random_text_is_refused_or_sound),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER-OF-TEST-PLUGINS\n", *argv);
        return 2;
    }
    setenv("CTITAN_PLUGIN_PATH", argv[1], 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
