/*
 * The simulated NVRTC: libnvrtc.so.13. Compiles with the C++ compiler that built the simulator; the
 * object is a shared object, which the simulated driver loads.
 */
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

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[160];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
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
    *program = p;
    return 0;
}

int nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    char command[1024];
    size_t size;

    (void)count;
    (void)options;
    simulated_count("nvrtcCompileProgram");
    snprintf(command, sizeof(command),
             "cd %s && %s -DSIMULATED -std=c++17 -O1 -shared -fPIC -fno-exceptions -fno-rtti "
             "-fno-threadsafe-statics -I. -I%s -o object.so source.cpp -L%s -l:libcuda.so.1 "
             "> log 2>&1",
             p->folder, CXX, SIMULATOR_SOURCE, SIMULATOR_FOLDER);
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
