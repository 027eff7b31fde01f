/*
 * The event file of a short run, read back: every record's length and checksums, and the scalars of
 * every step against metrics.jsonl, whose options count for both. The two ranks' throughput is
 * that of one there.
 */
#include <endian.h>
#include <glob.h>
#include <math.h>
#include <stdint.h>

#include <jansson.h>

#include <ctitan/file.h>

#include "plugin_under_test.h"

static const char *program, *folder;
static struct ct_arena arena;

static const char recipe[] = "[plugins]\n"
                             "load = cpu, llama, tokens, adamw, metrics, tensorboard\n"
                             "[job]\ndump_folder = out\n"
                             "[training]\nseq_len = 16\nlocal_batch_size = 2\nsteps = 5\n"
                             "mixed_precision_param = float32\n"
                             "[validation]\nfreq = 2\nsteps = 1\n"
                             "[model]\nname = llama\n"
                             "[llama]\ndim = 32\nn_layers = 1\nn_heads = 2\nn_kv_heads = 2\n"
                             "ffn_dim = 64\nvocab_size = 64\n"
                             "[tokens]\npath = tokens\nvalidation_path = tokens\n"
                             "[metrics]\nlog_freq = 2\n";

/* ---- reading ---- */

/* CRC-32C by long division, masked. Its check value is that of "123456789". */
static uint32_t checksum(const unsigned char *data, size_t size)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < 8 * size; i++) {
        uint32_t bit = (crc ^ data[i / 8] >> i % 8) & 1;

        crc = crc >> 1 ^ (bit ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const unsigned char *data, size_t size)
{
    uint32_t crc = checksum(data, size);

    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    while (bytes--)
        value = value << 8 | at[bytes];
    return value;
}

struct field {
    unsigned number;
    uint64_t value; /* of varints and fixed sizes */
    const unsigned char *data;
    size_t size; /* of bytes */
};

static uint64_t varint(const unsigned char **at)
{
    uint64_t value = 0;
    int shift = 0;

    do
        value |= (uint64_t)(**at & 0x7F) << shift;
    while (shift += 7, *(*at)++ & 0x80);
    return value;
}

static bool next_field(const unsigned char **at, const unsigned char *end, struct field *f)
{
    uint64_t tag;

    if (*at == end)
        return false;
    tag = varint(at);
    *f = (struct field){.number = (unsigned)(tag >> 3)};
    if ((tag & 7) == 0) {
        f->value = varint(at);
    } else if ((tag & 7) == 2) {
        f->size = varint(at);
        f->data = *at;
        *at += f->size;
    } else {
        int bytes = (tag & 7) == 1 ? 8 : 4;

        f->value = little(*at, bytes);
        *at += bytes;
    }
    assert_true(*at <= end);
    return true;
}

/* ---- what is found ---- */

static struct {
    int records, texts, values;
    int64_t restart; /* step */
    bool version;
    float loss[7], speed[7], seconds[7], validation[7]; /* by step */
} found;

static void read_value(int64_t step, const unsigned char *at, const unsigned char *end)
{
    char tag[64] = "";
    float value = NAN;
    struct field f;

    while (next_field(&at, end, &f)) {
        if (f.number == 1)
            snprintf(tag, sizeof(tag), "%.*s", (int)f.size, f.data);
        else if (f.number == 2)
            memcpy(&value, &(uint32_t){(uint32_t)f.value}, sizeof(value));
        else if (f.number == 8)
            found.texts += memmem(f.data, f.size, "[training]", 10) != NULL;
    }
    found.values += !isnan(value);
    if (!strcmp(tag, "loss_metrics/global_avg_loss"))
        found.loss[step] = value;
    else if (!strcmp(tag, "throughput(tps)"))
        found.speed[step] = value;
    else if (!strcmp(tag, "time_metrics/end_to_end(s)"))
        found.seconds[step] = value;
    else if (!strcmp(tag, "validation_metrics/loss"))
        found.validation[step] = value;
}

static void read_event(const unsigned char *at, const unsigned char *end)
{
    int64_t step = 0;
    struct field f, value;

    while (next_field(&at, end, &f)) {
        if (f.number == 2)
            step = (int64_t)f.value;
        else if (f.number == 7 && f.size == 2 && f.data[0] == 8 && f.data[1] == 1)
            found.restart = step;
        else if (f.number == 3)
            found.version = f.size == 13 && !memcmp(f.data, "brain.Event:2", 13);
        for (const unsigned char *v = f.data;
             f.number == 5 && next_field(&v, f.data + f.size, &value);)
            read_value(step, value.data, value.data + value.size);
    }
}

static void read_records(const unsigned char *at, const unsigned char *end)
{
    for (; at < end; found.records++) {
        uint64_t size = little(at, 8);

        assert_true(end - at >= 16 && size <= (uint64_t)(end - at) - 16);
        assert_int_equal(little(at + 8, 4), masked(at, 8));
        assert_int_equal(little(at + 12 + size, 4), masked(at + 12, size));
        read_event(at + 12, at + 12 + size);
        at += 16 + size;
        if (found.records == 0)
            assert_true(found.version);
    }
}

static double number(const json_t *line, const char *key)
{
    return json_number_value(json_object_get(line, key));
}

static void compare_line(const char *line, int *compared)
{
    json_t *object = json_loads(line, 0, NULL);
    int64_t step = json_integer_value(json_object_get(object, "step"));

    assert_true(step >= 1 && step <= 5);
    if (json_object_get(object, "validation_loss")) {
        assert_true(fabs(found.validation[step] - number(object, "validation_loss")) < 1e-5);
    } else {
        assert_true(fabs(found.loss[step] - number(object, "loss")) < 1e-5);
        assert_true(fabs(2 * found.speed[step] / number(object, "tokens_per_second") - 1) < 1e-5);
        if (step == 4) /* validation came before it */
            assert_true(found.seconds[step] > 1.01 * number(object, "step_time_s"));
    }
    json_decref(object);
    (*compared)++;
}

static void events_read_back(void **state)
{
    uint32_t tokens[400];
    char *data, *line, *rest;
    size_t size;
    glob_t files;
    int compared = 0;

    (void)state;
    assert_int_equal(checksum((const unsigned char *)"123456789", 9), 0xE3069283u);
    for (int i = 0; i < 400; i++)
        tokens[i] = htole32((uint32_t)(i * i % 61));
    test_write(ct_arena_printf(&arena, "%s/tokens", folder), tokens, sizeof(tokens));
    test_write(ct_arena_printf(&arena, "%s/run.ini", folder), recipe, sizeof(recipe) - 1);
    assert_int_equal(
        system(ct_arena_printf(
            &arena, "cd '%s' && '%s' train run.ini -n 2 --with local --with fsdp 2>error", folder,
            program)),
        0);
    assert_int_equal(
        glob(ct_arena_printf(&arena, "%s/out/tensorboard/events.out.tfevents.*", folder), 0, NULL,
             &files),
        0);
    assert_int_equal(files.gl_pathc, 1);
    assert_int_equal(ct_file_read(&arena, files.gl_pathv[0], 1 << 20, &data, &size), 0);
    globfree(&files);
    read_records((const unsigned char *)data, (const unsigned char *)data + size);
    assert_int_equal(found.records, 2 + 4 + 3); /* version, recipe; steps 1, 2, 4, 5; validations */
    assert_int_equal(found.texts, 1);
    assert_int_equal(found.values, 4 * 11 + 3 * 2);
    assert_int_equal(ct_file_read(&arena, ct_arena_printf(&arena, "%s/out/metrics.jsonl", folder),
                                  1 << 20, &data, &size),
                     0);
    for (line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        compare_line(line, &compared);
    assert_int_equal(compared, 7);
}

/* The second file of a run that trains step 5 again. */
static void a_run_that_goes_on_says_where(void **state)
{
    char *data;
    size_t size;
    glob_t files;

    (void)state;
    for (int steps = 5; steps < 7; steps++)
        assert_int_equal(
            system(ct_arena_printf(&arena,
                                   "cd '%s' && '%s' train run.ini --with ckpt --set "
                                   "ckpt.interval=4%s --set training.steps=%d --set "
                                   "job.dump_folder=again --set tensorboard.folder=part%d 2>error",
                                   folder, program, steps == 6 ? " --set ckpt.load_step=4" : "",
                                   steps, steps)),
            0);
    assert_int_equal(glob(ct_arena_printf(&arena, "%s/again/part?/events.out.tfevents.*", folder),
                          0, NULL, &files),
                     0);
    assert_int_equal(files.gl_pathc, 2);
    for (int i = 0; i < 2; i++) {
        memset(&found, 0, sizeof(found));
        assert_int_equal(ct_file_read(&arena, files.gl_pathv[i], 1 << 20, &data, &size), 0);
        read_records((const unsigned char *)data, (const unsigned char *)data + size);
        assert_int_equal(found.restart, i ? 5 : 0);
        assert_true(i == 0 || (found.loss[6] > 0 && found.validation[6] > 0));
    }
    globfree(&files);
}

/* Status 2 is that of a run that is refused. */
static void a_folder_that_cannot_be_written_is_refused_first(void **state)
{
    (void)state;
    assert_int_equal(
        system(ct_arena_printf(&arena,
                               "cd '%s' && '%s' train run.ini --set job.dump_folder=none "
                               "--set tensorboard.folder=../run.ini/x 2>error; "
                               "[ $? = 2 ] && grep -q 'tensorboard. folder = ../run.ini/x' error "
                               "&& ! [ -e none/metrics.jsonl ]",
                               folder, program)),
        0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_read_back), cmocka_unit_test(a_run_that_goes_on_says_where),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_refused_first)};
    int failed;

    if (argc != 2)
        return 2;
    program = realpath(argv[1], NULL);
    folder = test_folder();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_remove(folder);
    return failed;
}
