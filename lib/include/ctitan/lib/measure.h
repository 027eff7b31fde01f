/*
 * Measuring a device. Programs are lowered like any other, so the numbers are those of the kernels
 * that training uses.
 */
#ifndef CT_MEASURE_H
#define CT_MEASURE_H

#include <ctitan/device/device.h>

CT_BEGIN_DECLS

/*
 * Floating-point operations per second of one large square matrix product (multiply and add are
 * two) on operands of dtype: the best of the calls that fit into about 10 ms. The plugin of the
 * device must be registered. CT_ENOENT: the device has no kernel for it.
 */
CT_API int ct_measure_gemm(struct ct_device *device, enum ct_dtype dtype, double *flops_per_second);

/* Bytes per second that z = x + y moves on tensors larger than caches: read, read, write. */
CT_API int ct_measure_bandwidth(struct ct_device *device, double *bytes_per_second);

/* Element i of a scalar, or of integers, which repeat after 2^20. */
typedef double ct_element(const struct ct_value *value, int64_t i);

struct ct_measured {
    double best;    /* seconds of the fastest step */
    double lasting; /* the mean of the second half: as warm as the device gets in that time */
};

/*
 * Seconds of one step of graph's forward with one microbatch on device, of those that fit into
 * `enough` seconds, two at least. All sources of the graph are filled first: floating-point ones
 * with random numbers from -1 to 1 that do not repeat, since the power that products draw, and with
 * it a GPU's clock, depends on their operands; the others from element, NULL if there are none.
 * CT_ENOENT: the device has no kernel for an op.
 */
CT_API int ct_measure_graph(const struct ct_graph *graph, struct ct_device *device,
                            ct_element *element, double enough, struct ct_measured *measured);

/* Times of the processors that this process may use, by now, from /proc. */
struct ct_load {
    double at;      /* seconds, as ct_now */
    double busy;    /* seconds of them all, another guest's of the host among them */
    double own;     /* seconds that the caller's job has computed */
    int processors; /* 0: not known */
};

CT_API struct ct_load ct_load_now(double own);
/* Seconds that this process has computed; several: all children of its parent, the ranks of this
   host. NAN: not known. */
CT_API double ct_load_job(bool several);
/* Seconds that children have computed that this process has waited for. */
CT_API double ct_load_children(void);
/* The share of the processors that other processes took between two of these. NAN: not known, or
   they are less than a tenth of a second apart; the system counts in hundredths. */
CT_API double ct_load_others(const struct ct_load *from, const struct ct_load *to);

/* A share from which on measured times are too long to be trusted. */
#define CT_LOAD_NOTABLE 0.05

/* The middle of values, which are sorted; of an even number, the mean of the middle two; NaN: there
   are none. */
CT_API double ct_median(double *value, size_t count);

CT_END_DECLS

#endif
