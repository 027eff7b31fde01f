/*
 * The part of CUPTI's activity interface that this plugin calls: its binary interface, found at run
 * time. Records grow at their end from version to version; what is declared here of them is the
 * same in CUDA 12 and 13. tests/cuda compares it with CUPTI's header where that is installed. Other
 * versions are refused.
 */
#ifndef CUPTI_LIBRARY_H
#define CUPTI_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUPTI_SUCCESS = 0,
    CUPTI_ACTIVITY_KIND_MEMCPY = 1,
    CUPTI_ACTIVITY_KIND_MEMSET = 2,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1,
};

/* cuptiGetVersion: CUDA 12.0 to 12.9; 13.x. */
#define CUPTI_KNOWN(version)                                                                       \
    (((version) >= 19 && (version) <= 28) || ((version) >= 130000 && (version) < 140000))

/* The beginning of CUpti_ActivityKernel8 to 10. Times in nanoseconds. */
struct cupti_kernel {
    int32_t kind;
    uint8_t cache, shared;
    uint16_t registers;
    int32_t requested, executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local, all_local, correlation;
    int64_t grid_id;
    const char *name;
};

/* The beginning of CUpti_ActivityMemcpy5 and 6, and of CUpti_ActivityMemset4, in which `how` is the
   value. */
struct cupti_copy {
    int32_t kind;
    uint8_t how[4];
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
};

typedef void cupti_room(uint8_t **buffer, size_t *size, size_t *records);
typedef void cupti_filled(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                          size_t valid);

#define CUPTI_CALLS(X)                                                                             \
    X(cuptiGetVersion, (uint32_t * version))                                                       \
    X(cuptiGetResultString, (int result, const char **text))                                       \
    X(cuptiGetTimestamp, (uint64_t * nanoseconds))                                                 \
    X(cuptiActivityRegisterCallbacks, (cupti_room * room, cupti_filled * filled))                  \
    X(cuptiActivityEnable, (int kind))                                                             \
    X(cuptiActivityDisable, (int kind))                                                            \
    X(cuptiActivityFlushAll, (uint32_t flag))                                                      \
    X(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, void **record))

#endif
