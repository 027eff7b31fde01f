/*
 * A compiler for the device plain (examples/plain): kernels that other plugins write, such as the
 * chains that `fuse` joins, are compiled by the system's C compiler for one thread, one column at a
 * time. A vector of the language of rows (lib/compiler.h) is one number here.
 *
 *     ctitan train recipe.ini --with plain --with scalar --with fuse
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/compiler.h>
#include <ctitan/plugin.h>

#define MOST_BYTES ((size_t)1 << 24) /* of an object */

static const char header[] =
    "#include <math.h>\n"
    "#include <stdint.h>\n"
    "#include <string.h>\n"
    "enum ct_dtype { CT_F32, CT_BF16 };\n"
    "struct operand { void *data; int64_t stride; };\n"
    "typedef float vf;\n"
    "typedef uint16_t vh;\n"
    "#define ROW_KERNEL void rows(const struct operand *in, const struct operand *out,\\\n"
    "    int64_t row_count, int64_t column, int64_t column_end, float *sums)\n"
    "#define FOR_ROWS(i) for (int64_t i = 0; i < row_count; i++)\n"
    "#define FOR_COLUMNS(j) for (int64_t j = column; j < column_end; j++)\n"
    "#define FOR_STEPS(j, s) for (int64_t j = column, s = 0; j < column_end; j++)\n"
    "#define PARTS(name, x) vf name[1] = {x}\n"
    "#define SUM(k) (sums + (k) * (column_end - column))\n"
    "#define ROW_RESULTS\n"
    "#define first(x, n, rest) (x)\n" /* all columns exist */
    "#define v_set(x) (x)\n"
    "#define total(part) ((part)[0])\n"
    "#define largest(part) ((part)[0])\n"
    "static inline float widen(uint16_t h)\n"
    "{\n"
    "    uint32_t bits = (uint32_t)h << 16;\n"
    "    float x;\n"
    "    memcpy(&x, &bits, 4);\n"
    "    return x;\n"
    "}\n"
    "static inline uint16_t narrow(float x)\n" /* to the nearest, ties to even */
    "{\n"
    "    uint32_t bits;\n"
    "    memcpy(&bits, &x, 4);\n"
    "    return (x != x ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;\n"
    "}\n"
    "#define v_widen widen\n"
    "#define v_narrow narrow\n"
    "static inline float v_get(enum ct_dtype dtype, const void *p, int64_t j, int64_t n)\n"
    "{\n"
    "    return dtype == CT_F32 ? ((const float *)p)[j] : widen(((const uint16_t *)p)[j]);\n"
    "}\n"
    "static inline void put_narrow(uint16_t *p, int64_t j, int64_t n, vh x)\n"
    "{\n"
    "    p[j] = x;\n"
    "}\n"
    "static inline void v_put(enum ct_dtype dtype, void *p, int64_t j, int64_t n, vf x)\n"
    "{\n"
    "    if (dtype == CT_F32)\n"
    "        ((float *)p)[j] = x;\n"
    "    else\n"
    "        ((uint16_t *)p)[j] = narrow(x);\n"
    "}\n"
    "static inline float f_min(float a, float b) { return a < b ? a : b; }\n"
    "static inline float f_max(float a, float b) { return a > b ? a : b; }\n"
    "static inline float v_max(float a, float b) { return a > b || a != a ? a : b; }\n"
    "static inline float f_sigmoid(float a) { return 1 / (1 + expf(-a)); }\n"
    "static inline float f_bfloat16(float a) { return widen(narrow(a)); }\n"
    "#define f_exp expf\n"
    "#define f_log logf\n"
    "#define f_log1p log1pf\n"
    "#define f_tanh tanhf\n"
    "#define f_erf erff\n"
    "#define f_sin sinf\n"
    "#define f_cos cosf\n"
    "#define f_sqrt sqrtf\n"
    "#define f_abs fabsf\n"
    "#define f_pow powf\n"
    "#define w_exp expf\n"
    "#define w_log logf\n"
    "#define w_log1p log1pf\n"
    "#define w_tanh tanhf\n"
    "#define w_erf erff\n"
    "#define w_sin sinf\n"
    "#define w_cos cosf\n"
    "#define w_sqrt sqrtf\n"
    "#define w_abs fabsf\n"
    "#define w_pow powf\n"
    "#define w_sigmoid f_sigmoid\n"
    "#define w_bfloat16 f_bfloat16\n"
    "#define w_min f_min\n"
    "#define w_max f_max\n"
    "#define w_less(a, b) ((a) < (b) ? 1.0f : 0.0f)\n"
    "#define w_greater(a, b) ((a) > (b) ? 1.0f : 0.0f)\n"
    "#define w_select(condition, yes, no) ((condition) != 0 ? (yes) : (no))\n";

/* ---- compiling ---- */

/* Objects are kept by it: it names the compiler and all that the code depends on. */
static int version(struct ct_device *device, char *text, size_t room)
{
    FILE *words = popen("cc --version 2> /dev/null", "r");
    char line[128] = "";
    int status;

    (void)device;
    if (words && !fgets(line, sizeof(line), words))
        *line = '\0';
    status = words ? pclose(words) : -1;
    if (status != 0)
        return ct_fail(CT_ENOENT, "there is no C compiler `cc`");
    line[strcspn(line, "\n")] = '\0';
    snprintf(text, room, "scalar 1, %zu: %s", sizeof(header), line);
    return 0;
}

/* A new folder for the files of one kernel, which ends with remove_files. */
static int make_folder(char folder[32])
{
    snprintf(folder, 32, "/tmp/scalar-XXXXXX");
    return mkdtemp(folder) ? 0 : ct_fail(CT_EIO, "%s: %s", folder, strerror(errno));
}

static const char *const files[] = {CT_COMPILER_HEADER, "rows.c", "rows.so", "log"};
enum { HEADER, SOURCE, OBJECT, LOG };

static const char *in_folder(struct ct_arena *arena, const char *folder, int file)
{
    return ct_arena_printf(arena, "%s/%s", folder, files[file]);
}

static void remove_files(struct ct_arena *arena, const char *folder)
{
    for (int i = 0; i < (int)CT_COUNT(files); i++)
        unlink(in_folder(arena, folder, i));
    rmdir(folder);
}

static int run_compiler(struct ct_arena *arena, const char *folder)
{
    char *words = NULL;
    size_t size;
    int status = system(ct_arena_printf(
        arena, "cc -std=gnu11 -O2 -fPIC -shared -o %s/rows.so %s/rows.c -lm > %s/log 2>&1", folder,
        folder, folder));

    if (status == 0)
        return 0;
    if (ct_file_read(arena, in_folder(arena, folder, LOG), MOST_BYTES, &words, &size) < 0)
        return CT_EIO;
    return ct_fail(CT_EIO, "cc ended with status %d: %.600s", WEXITSTATUS(status), words);
}

static int compile(struct ct_device *device, const char *source, struct ct_arena *arena,
                   void **object, size_t *bytes)
{
    char folder[32], *read = NULL;
    int rc = make_folder(folder);

    (void)device;
    if (rc < 0)
        return rc;
    rc = ct_file_write(in_folder(arena, folder, HEADER), header, sizeof(header) - 1);
    if (rc == 0)
        rc = ct_file_write(in_folder(arena, folder, SOURCE), source, strlen(source));
    if (rc == 0)
        rc = run_compiler(arena, folder);
    if (rc == 0)
        rc = ct_file_read(arena, in_folder(arena, folder, OBJECT), MOST_BYTES, &read, bytes);
    *object = read;
    remove_files(arena, folder);
    return rc;
}

/* ---- running ---- */

typedef void rows_function(const struct ct_compiled_operand *in,
                           const struct ct_compiled_operand *out, int64_t rows, int64_t column,
                           int64_t column_end, float *sums);

static int load(struct ct_device *device, const void *object, size_t bytes, void **function)
{
    struct ct_arena arena = {0};
    void *library = NULL;
    char folder[32];
    int rc = make_folder(folder);

    (void)device;
    if (rc < 0)
        return rc;
    rc = ct_file_write(in_folder(&arena, folder, OBJECT), object, bytes);
    if (rc == 0)
        library = dlopen(in_folder(&arena, folder, OBJECT), RTLD_NOW | RTLD_LOCAL);
    *function = library ? dlsym(library, "rows") : NULL;
    if (rc == 0 && !*function)
        rc = ct_fail(CT_EIO, "%s", dlerror());
    remove_files(&arena, folder);
    ct_arena_finish(&arena);
    return rc;
}

static int64_t workers(struct ct_device *device, int64_t rows, int64_t columns)
{
    (void)device, (void)rows, (void)columns;
    return 1;
}

static int launch(const struct ct_launch *l, void *function, const struct ct_compiled_call *call)
{
    rows_function *rows = function;

    (void)l;
    for (int64_t i = 0; i < call->sums * call->columns; i++)
        call->scratch[i] = 0;
    rows(call->in, call->out, call->rows, 0, call->columns, call->scratch);
    for (int k = 0; k < call->sums; k++) {
        const struct ct_tensor sum =
            ct_tensor_dense(call->sum[k], call->sum_dtype[k], 1, &call->columns);

        for (int64_t j = 0; j < call->columns; j++)
            ct_tensor_store(&sum, j, call->scratch[k * call->columns + j]);
    }
    return 0;
}

static const struct ct_compiler_ops compiler = {.size = sizeof(struct ct_compiler_ops),
                                                .version = version,
                                                .compile = compile,
                                                .load = load,
                                                .workers = workers,
                                                .launch = launch};

CT_PLUGIN(.name = "scalar", .version = "1.0", .summary = "Compiler of kernels for the device plain",
          .offers = CT_OFFERS({CT_COMPILER, "plain", &compiler}));
