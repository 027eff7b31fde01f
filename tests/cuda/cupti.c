/*
 * The plugin profile's declarations of CUPTI's records, beside CUPTI's own: what is declared of a
 * record is at the same place, in all versions of it that the header has.
 */
#include <cupti.h>

#define CUPTI_SUCCESS own_CUPTI_SUCCESS
#define CUPTI_ACTIVITY_KIND_MEMCPY own_CUPTI_ACTIVITY_KIND_MEMCPY
#define CUPTI_ACTIVITY_KIND_MEMSET own_CUPTI_ACTIVITY_KIND_MEMSET
#define CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL own_CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
#define CUPTI_ACTIVITY_FLAG_FLUSH_FORCED own_CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
#include "cupti_library.h"
#undef CUPTI_SUCCESS
#undef CUPTI_ACTIVITY_KIND_MEMCPY
#undef CUPTI_ACTIVITY_KIND_MEMSET
#undef CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
#undef CUPTI_ACTIVITY_FLAG_FLUSH_FORCED

#define SAME_NUMBER(name) _Static_assert((int)name == (int)own_##name, #name)
#define SAME_PLACE(theirs, field, ours, own)                                                       \
    _Static_assert(offsetof(theirs, field) == offsetof(struct ours, own) &&                        \
                       sizeof(((theirs *)0)->field) == sizeof(((struct ours *)0)->own),            \
                   #theirs "." #field)

SAME_NUMBER(CUPTI_SUCCESS);
SAME_NUMBER(CUPTI_ACTIVITY_KIND_MEMCPY);
SAME_NUMBER(CUPTI_ACTIVITY_KIND_MEMSET);
SAME_NUMBER(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME_NUMBER(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

#define SAME_KERNEL(theirs)                                                                        \
    SAME_PLACE(theirs, kind, cupti_kernel, kind);                                                  \
    SAME_PLACE(theirs, start, cupti_kernel, start);                                                \
    SAME_PLACE(theirs, end, cupti_kernel, end);                                                    \
    SAME_PLACE(theirs, streamId, cupti_kernel, stream);                                            \
    SAME_PLACE(theirs, name, cupti_kernel, name)
SAME_KERNEL(CUpti_ActivityKernel8);
SAME_KERNEL(CUpti_ActivityKernel9);
SAME_KERNEL(CUpti_ActivityKernel10);

#define SAME_COPY(theirs)                                                                          \
    SAME_PLACE(theirs, kind, cupti_copy, kind);                                                    \
    SAME_PLACE(theirs, bytes, cupti_copy, bytes);                                                  \
    SAME_PLACE(theirs, start, cupti_copy, start);                                                  \
    SAME_PLACE(theirs, end, cupti_copy, end);                                                      \
    SAME_PLACE(theirs, streamId, cupti_copy, stream)
SAME_COPY(CUpti_ActivityMemcpy5);
SAME_COPY(CUpti_ActivityMemcpy6);
SAME_COPY(CUpti_ActivityMemset4);

_Static_assert(CUPTI_KNOWN(CUPTI_API_VERSION), "CUPTI's version");

int main(void)
{
    return 0;
}
