/*
 * Loading: each plugin of plugins/ is broken in one way, and the message says which and what to do.
 * A process never unloads a plugin, so each test registers its plugins in a child.
 */
#include "assertions.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/file.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>

static const char *folder;

static int open_named(const char *name, const struct ct_plugin **plugin)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s.so", folder, name);
    return ct_plugin_open(path, plugin);
}

static void a_sound_plugin_loads_once(void **state)
{
    const struct ct_plugin *first = NULL, *second = NULL;

    (void)state;
    assert_int_equal(open_named("good", &first), 0);
    assert_int_equal(open_named("good", &second), 0);
    assert_ptr_equal(first, second);
    assert_string_equal(first->name, "good");
    assert_string_equal(first->version, "1.2");
    assert_non_null(ct_option_find(first->options, "size"));
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define VERSION TEXT(CT_ABI_MAJOR) "." TEXT(CT_ABI_MINOR)

static void broken_plugins_say_why(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *expected, *cure;
    } broken[] = {
        {"wrong_magic", CT_EABI, "not a ctitan plugin: its descriptor begins with 0x12345678", ""},
        {"wrong_abi", CT_EABI, "built for plugin interface 99.0, this program has " VERSION,
         "rebuild the plugin"},
        {"wrong_size", CT_EABI, "its descriptor has 8 bytes", "rebuild the plugin"},
        {"undefined_symbol", CT_ENOENT, "undefined symbol: ct_from_the_future",
         "build both from one source"},
        {"newer", CT_EABI, "undefined symbol: ct_from_the_future", ", this program has " VERSION},
        {"no_export", CT_EABI, "exports no ct_plugin_v1", "CT_PLUGIN(...)"},
        {"misnamed", CT_EINVAL, "calls itself other_name", "must be called other_name.so"},
        {"no_summary", CT_EINVAL, "lacks name, version, summary or offers", ""},
        {"no_config", CT_EINVAL, "it has options, but no config", ""},
        {"no_size", CT_EABI, "the transform unsized: struct ct_transform: begins with",
         ".size = sizeof(struct ct_transform)"},
        {"large", CT_EABI, "the verb p: struct ct_verb_ops: begins with ", "rebuild the plugin"},
        {"strange_offer", CT_EINVAL, "offers a thing of unknown kind 99", ""},
        {"no_function", CT_EINVAL, "the model hollow: its `build` is not set", ""},
        {"no_load", CT_EINVAL, "the model half: `load` of its `weights` is not set", ""},
        {"same_options", CT_EINVAL, "it has two options called ratio", ""},
        {"unbound_library", CT_ENOENT, "libabsent.so: cannot open shared object file",
         "apt-file search libabsent.so"},
        {"none", CT_ENOENT, "none.so", "No such file or directory"},
    };
    const struct ct_plugin *plugin;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(broken); i++) {
        char file[64];

        assert_fails(open_named(broken[i].name, &plugin), broken[i].code, broken[i].expected);
        snprintf(file, sizeof(file), "/%s.so", broken[i].name);
        assert_message(file);
        assert_message(broken[i].cure);
    }
}

static void a_plugin_of_the_version_before_loads(void **state)
{
    const struct ct_plugin *plugin;

    (void)state;
    assert_int_equal(open_named("older", &plugin), 0);
    assert_string_equal(plugin->name, "older");
    assert_null(plugin->brings);
    assert_int_equal(plugin->brings_kind, CT_NOTHING);
    assert_int_equal(plugin->offers[0].kind, CT_HOOK);
}

static void a_file_that_is_no_library_is_refused(void **state)
{
    const struct ct_plugin *plugin;
    char path[] = "/tmp/ctitan-XXXXXX.so";
    int fd = mkstemps(path, 3);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "not a library", 13), 13);
    close(fd);
    assert_fails(ct_plugin_open(path, &plugin), CT_ENOENT, path);
    assert_null(strstr(strstr(ct_error_message(), path) + 1, path)); /* said once */
    unlink(path);
}

/* ---- descriptors of plugins that are not loaded ---- */

static void assert_same_text(const char *a, const char *b)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_string_equal(a, b);
}

static void assert_same_options(const struct ct_option *a, const struct ct_option *b)
{
    assert_int_equal(!a, !b);
    for (; a && b->name; a++, b++) {
        assert_same_text(a->name, b->name);
        assert_same_text(a->fallback, b->fallback);
        assert_same_text(a->doc, b->doc);
        assert_same_text(a->choices, b->choices);
        assert_int_equal(a->type, b->type);
        assert_true(a->min == b->min && a->max == b->max);
    }
    assert_true(!a || !a->name);
}

/* Every plugin that loads is described as it describes itself. */
static void descriptors_are_read_without_loading(void **state)
{
    const struct ct_plugin *opened, *described;
    struct ct_arena arena = {0};
    const char **names;
    size_t count = ct_plugin_names(&arena, &names), compared = 0;

    (void)state;
    for (size_t i = 0; i < count; i++) {
        const struct ct_offer *a, *b;

        if (ct_plugin_find(names[i], &opened) < 0)
            continue;
        assert_int_equal(ct_plugin_describe(names[i], &described), 0);
        assert_ptr_not_equal(opened->offers, described->offers);
        assert_same_text(described->name, opened->name);
        assert_same_text(described->version, opened->version);
        assert_same_text(described->summary, opened->summary);
        assert_same_options(described->options, opened->options);
        for (a = described->offers, b = opened->offers; b->kind != CT_NOTHING; a++, b++) {
            assert_int_equal(a->kind, b->kind);
            assert_same_text(a->name, b->name);
            assert_int_equal(!a->ops, !b->ops);
            if (b->kind == CT_VERB)
                assert_same_text(((const struct ct_verb_ops *)a->ops)->summary,
                                 ((const struct ct_verb_ops *)b->ops)->summary);
        }
        assert_int_equal(a->kind, CT_NOTHING);
        compared++;
    }
    assert_true(compared > 30);
    ct_arena_finish(&arena);
}

static void descriptors_of_broken_plugins_say_why(void **state)
{
    static const struct {
        const char *name;
        int code;
        const char *expected;
    } broken[] = {
        {"wrong_magic", CT_EABI, "not a ctitan plugin: its descriptor begins with 0x12345678"},
        {"wrong_abi", CT_EABI, "built for plugin interface 99.0, this program has " VERSION},
        {"wrong_size", CT_EABI, "its descriptor has 8 bytes"},
        {"newer", CT_EABI, "this program has " VERSION},
        {"no_export", CT_EABI, "exports no ct_plugin_v1"},
        {"misnamed", CT_EINVAL, "must be called other_name.so"},
        {"no_summary", CT_EINVAL, "lacks name, version, summary or offers"},
        {"no_size", CT_EABI, "the transform unsized: struct ct_transform: begins with"},
        {"no_function", CT_EINVAL, "the model hollow: its `build` is not set"},
        {"same_options", CT_EINVAL, "it has two options called ratio"},
    };
    const struct ct_plugin *plugin;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(broken); i++) {
        char file[64];

        snprintf(file, sizeof(file), "/%s.so: ", broken[i].name);
        assert_fails(ct_plugin_describe(broken[i].name, &plugin), broken[i].code,
                     broken[i].expected);
        assert_message(file);
    }
    /* Libraries that these need are absent; they have a descriptor all the same. */
    assert_int_equal(ct_plugin_describe("unbound_library", &plugin), 0);
    assert_int_equal(ct_plugin_describe("undefined_symbol", &plugin), 0);
}

static void write_file(const char *path, const char *data, size_t size)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* A file that is cut short, or has a wrong byte, is refused, or described; it does no harm. */
static void damaged_files_do_no_harm(void **state)
{
    char scratch[] = "/tmp/ctitan-XXXXXX", path[4096], *data;
    const struct ct_plugin *plugin;
    struct ct_arena arena = {0};
    size_t size, refused = 0;

    (void)state;
    assert_non_null(mkdtemp(scratch));
    snprintf(path, sizeof(path), "%s/good.so", folder);
    assert_int_equal(ct_file_read(&arena, path, 1 << 20, &data, &size), 0);
    snprintf(path, sizeof(path), "%s/good.so", scratch);
    write_file(path, data, 0);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "good.so: an empty file");
    write_file(path, data, 20);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "not a shared object: a file of 20");
    write_file(path, "no library, and nothing of verbs; but it is as long as a header of one", 70);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "good.so: not a shared object");
    write_file(path, data, 200);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "good.so: a truncated file");
    assert_fails(ct_plugin_open(path, &plugin), CT_EABI, "good.so: a truncated file: it has 200");
    write_file(path, data, size / 4);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "good.so: a truncated file");
    data[18] ^= 0x40; /* the machine */
    write_file(path, data, size);
    assert_fails(ct_plugin_describe(path, &plugin), CT_EABI, "for another machine");
    data[18] ^= 0x40;
    for (size_t i = 0; i < size; i += 1 + size / 400) {
        data[i] ^= 0x55;
        write_file(path, data, size);
        refused += ct_plugin_describe(path, &plugin) < 0;
        data[i] ^= 0x55;
    }
    assert_true(refused > 5);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(scratch), 0);
    ct_arena_finish(&arena);
}

/* ---- where they are ---- */

static void plugins_are_found_by_name(void **state)
{
    struct ct_arena arena = {0};
    const char **names;
    char path[4096], tiny[8];
    size_t count = ct_plugin_names(&arena, &names);

    (void)state;
    assert_string_equal(ct_plugin_folder(0), folder);
    assert_non_null(ct_plugin_folder(1));
    assert_null(ct_plugin_folder(100));
    assert_int_equal(ct_plugin_path("good", path, sizeof(path)), 0);
    assert_non_null(strstr(path, "/good.so"));
    assert_int_equal(ct_plugin_path("adamw", path, sizeof(path)), 0);
    assert_non_null(strstr(path, "plugins/adamw/adamw.so"));
    assert_int_equal(ct_plugin_path(path, path + 2000, 2000), 0);
    assert_fails(ct_plugin_path("godo", path, sizeof(path)), CT_ENOENT, "did you mean good?");
    assert_message(folder);
    assert_fails(ct_plugin_path("/none/x.so", path, sizeof(path)), CT_ENOENT, "/none/x.so");
    assert_true(ct_plugin_path("good", tiny, sizeof(tiny)) < 0);
    assert_true(count > 10);
    for (size_t i = 1; i < count; i++)
        assert_true(strcmp(names[i - 1], names[i]) < 0);
    ct_arena_finish(&arena);
}

static void files_beside_plugins_have_paths(void **state)
{
    struct ct_arena arena = {0};
    const struct ct_plugin_file *files;
    size_t count = ct_plugin_files(&arena, "families", ".ini", &files);
    char path[4096];

    (void)state;
    assert_true(count > 10);
    for (size_t i = 0; i < count; i++) {
        assert_true(i == 0 || strcmp(files[i - 1].name, files[i].name) < 0);
        assert_true(ct_plugin_file("families", ct_arena_printf(&arena, "%s.ini", files[i].name),
                                   path, sizeof(path)));
        assert_string_equal(files[i].path, path);
    }
    assert_int_equal(ct_plugin_files(&arena, "no such folder", ".ini", &files), 0);
    ct_arena_finish(&arena);
}

/* ---- registering ---- */

/* Register the plugins in a child. text: its error message, or "". */
static void register_plugins(const char *const *names, char *text, size_t room)
{
    const struct ct_plugin *plugin;
    int ends[2], rc = 0, status;
    ssize_t got;

    assert_int_equal(pipe(ends), 0);
    if (fork() == 0) {
        for (; rc == 0 && *names; names++) {
            rc = open_named(*names, &plugin);
            if (rc == 0)
                rc = ct_plugin_register(plugin);
            if (rc == 0)
                rc = ct_plugin_register(plugin); /* twice is once */
        }
        if (rc == 0)
            rc = ct_plugin_check_all();
        if (rc < 0)
            dprintf(ends[1], "%d %s", rc, ct_error_message());
        _exit(0);
    }
    close(ends[1]);
    got = read(ends[0], text, room - 1);
    text[got < 0 ? 0 : got] = '\0';
    close(ends[0]);
    wait(&status);
    assert_int_equal(status, 0);
}

static void needs_and_clashes_are_found(void **state)
{
    static const struct {
        const char *names[4];
        const char *expected[2];
    } cases[] = {
        {{"good"}, {"", ""}},
        {{"needy", "good"}, {"", ""}},
        {{"needy"}, {"plugin needy needs plugin good", "add good to [plugins] load"}},
        {{"needy_of_kind", "words"}, {"", ""}},
        {{"needy_of_kind"}, {"plugin needy_of_kind needs a tokenizer", "words"}},
        {{"good", "foe"}, {"plugins foe and good cannot be used together", "take one"}},
        {{"foe", "good"}, {"plugins foe and good cannot be used together", "take one"}},
        {{"good", "twin"}, {"plugins good and twin both offer the verb wave", "take one"}},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        char text[1024], code[8];

        register_plugins(cases[i].names, text, sizeof(text));
        snprintf(code, sizeof(code), "%d ", CT_ECONFIG);
        assert_int_equal(*cases[i].expected[0] == '\0', *text == '\0');
        if (!*text)
            continue;
        assert_int_equal(strncmp(text, code, strlen(code)), 0);
        ct_fail(CT_ECONFIG, "%s", text);
        assert_message(cases[i].expected[0]);
        assert_message(cases[i].expected[1]);
    }
}

static void offers_are_found(void **state)
{
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;

    (void)state;
    assert_null(ct_plugin_at(0));
    assert_fails(ct_offer_find(CT_TOKENIZER, NULL, &offer), CT_ENOENT, "needs a tokenizer: add");
    assert_message("words");
    assert_fails(ct_offer_find(CT_TOKENIZER, "runes", &offer), CT_ENOENT, "the tokenizer runes");
    assert_int_equal(open_named("good", &plugin), 0);
    assert_int_equal(ct_plugin_register(plugin), 0);
    assert_int_equal(open_named("words", &plugin), 0);
    assert_int_equal(ct_plugin_register(plugin), 0);
    assert_ptr_equal(ct_plugin_at(1), plugin);
    assert_null(ct_plugin_at(2));
    assert_int_equal(ct_offer_find(CT_TOKENIZER, NULL, &offer), 0);
    assert_string_equal(offer->name, "words");
    assert_int_equal(ct_offer_find(CT_TOKENIZER, "words", &offer), 0);
    assert_int_equal(ct_offer_find(CT_VERB, "wave", &offer), 0);
    assert_int_equal(open_named("needy", &plugin), 0);
    assert_int_equal(ct_plugin_register(plugin), 0);
    assert_fails(ct_offer_find(CT_VERB, NULL, &offer), CT_ECONFIG, "wave and i are both loaded");
    assert_string_equal(ct_offer_at(CT_VERB, 1)->name, "i");
    assert_null(ct_offer_at(CT_VERB, 2));
    assert_string_equal(ct_kind_name(CT_LR_SCHEDULE), "learning-rate schedule");
    assert_fails(ct_plugin_lacking("it needs", "oven:*"), CT_ENOENT,
                 "it needs an oven, and no plugin that was found has one");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_plugin_loads_once),
        cmocka_unit_test(broken_plugins_say_why),
        cmocka_unit_test(a_plugin_of_the_version_before_loads),
        cmocka_unit_test(a_file_that_is_no_library_is_refused),
        cmocka_unit_test(descriptors_are_read_without_loading),
        cmocka_unit_test(descriptors_of_broken_plugins_say_why),
        cmocka_unit_test(damaged_files_do_no_harm),
        cmocka_unit_test(plugins_are_found_by_name),
        cmocka_unit_test(files_beside_plugins_have_paths),
        cmocka_unit_test(needs_and_clashes_are_found),
        cmocka_unit_test(offers_are_found),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER-OF-TEST-PLUGINS\n", *argv);
        return 2;
    }
    folder = argv[1];
    setenv("CTITAN_PLUGIN_PATH", folder, 1);
    if (ct_ops_register() < 0) /* installs the messages about what is lacking */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
