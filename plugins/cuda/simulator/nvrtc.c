/*
 * The simulated NVRTC: libnvrtc.so.13. Compiles with the C++ compiler that built the simulator; the
 * object is a shared object, which the simulated driver loads. The headers of the language come
 * from the caller and from this library, so that it works where it is installed, too.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rtc_library.h"
#include "streams.h"

#define X(name, parameters) CT_API int name parameters;
GPU_RTC_CALLS(X)
#undef X

extern const char simulated_text_device[], simulated_text_simulator[];

#define FAILED 6 /* NVRTC_ERROR_COMPILATION */

struct _nvrtcProgram {
    char folder[64];
    char *log;
    struct simulated_object *object;
    size_t bytes;
};

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

/* name may have folders, which are made. */
static void write_file(const char *folder, const char *name, const char *text)
{
    char path[160];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0777);
    }
    file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) {
        perror(path);
        abort();
    }
}

static char *read_file(const char *folder, const char *name, size_t before, size_t *size)
{
    struct stat is;
    char path[160], *text;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "r");
    if (!file || fstat(fileno(file), &is) < 0)
        abort();
    *size = before + (size_t)is.st_size;
    text = calloc(1, *size + 1);
    if (!text || fread(text + before, 1, (size_t)is.st_size, file) != (size_t)is.st_size)
        abort();
    fclose(file);
    return text;
}

int nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names)
{
    struct _nvrtcProgram *p = calloc(1, sizeof(*p));

    (void)name;
    if (!p)
        return 1;
    strcpy(p->folder, "/tmp/simulated-nvrtc-XXXXXX");
    if (!mkdtemp(p->folder))
        abort();
    write_file(p->folder, "source.cpp", source);
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], "stdint.h")) /* the host has its own */
            write_file(p->folder, names[i], headers[i]);
    write_file(p->folder, "ctitan/lib/cuda/simulated.cuh", simulated_text_device);
    write_file(p->folder, "ctitan/lib/cuda/simulator.h", simulated_text_simulator);
    *program = p;
    return 0;
}

/* The folder of this library, and of the simulated driver. */
static void find_folder(char *folder, size_t room)
{
    Dl_info here;

    if (!dladdr((void *)(uintptr_t)find_folder, &here))
        abort();
    snprintf(folder, room, "%.*s", (int)(strrchr(here.dli_fname, '/') - here.dli_fname),
             here.dli_fname);
}

int nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    char command[2048], folder[512];
    size_t size;

    (void)count;
    (void)options;
    simulated_count("nvrtcCompileProgram");
    find_folder(folder, sizeof(folder));
    snprintf(command, sizeof(command),
             "cd %s && %s -DSIMULATED -std=c++17 -O1 -shared -fPIC -fno-exceptions -fno-rtti "
             "-fno-threadsafe-statics -I. -o object.so source.cpp -L%s -l:libcuda.so.1 > log 2>&1",
             p->folder, CXX, folder);
    if (system(command)) {
        p->log = read_file(p->folder, "log", 0, &size);
        return FAILED;
    }
    p->object =
        (struct simulated_object *)read_file(p->folder, "object.so", sizeof(*p->object), &p->bytes);
    memcpy(p->object->magic, SIMULATED_OBJECT, sizeof(p->object->magic));
    p->object->bytes = p->bytes - sizeof(*p->object);
    return 0;
}

int nvrtcDestroyProgram(nvrtcProgram *program)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", (*program)->folder);
    if (system(command))
        abort();
    free((*program)->object);
    free((*program)->log);
    free(*program);
    return 0;
}

int nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes)
{
    *bytes = p->bytes;
    return 0;
}

int nvrtcGetCUBIN(nvrtcProgram p, char *data)
{
    memcpy(data, p->object, p->bytes);
    return 0;
}

int nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes)
{
    *bytes = p->log ? strlen(p->log) + 1 : 1;
    return 0;
}

int nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    strcpy(log, p->log ? p->log : "");
    return 0;
}
