/* The part of NVRTC that this plugin calls: its binary interface (driver.h). */
#ifndef GPU_RTC_LIBRARY_H
#define GPU_RTC_LIBRARY_H

#include <ctitan/base.h>

typedef struct _nvrtcProgram *nvrtcProgram;

#define GPU_RTC_CALLS(X)                                                                           \
    X(nvrtcVersion, (int *major, int *minor))                                                      \
    X(nvrtcCreateProgram, (nvrtcProgram * program, const char *source, const char *name,           \
                           int count, const char *const *headers, const char *const *names))       \
    X(nvrtcDestroyProgram, (nvrtcProgram * program))                                               \
    X(nvrtcCompileProgram, (nvrtcProgram program, int count, const char *const *options))          \
    X(nvrtcGetCUBINSize, (nvrtcProgram program, size_t * bytes))                                   \
    X(nvrtcGetCUBIN, (nvrtcProgram program, char *data))                                           \
    X(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * bytes))                              \
    X(nvrtcGetProgramLog, (nvrtcProgram program, char *log))

#endif
