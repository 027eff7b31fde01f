/* The facts that `ctitan doctor` collects first, and then prints for people or programs. */
#ifndef CT_CLI_DOCTOR_H
#define CT_CLI_DOCTOR_H

#include <ctitan/device/device.h>
#include <ctitan/lib/numa.h>
#include <ctitan/verb.h>

struct json_t;

struct machine_facts {
    const char *processor; /* "": unknown */
    long online;
    int threads; /* for this process; 0: unknown */
    const char *feature[16];
    size_t feature_count;
    double memory, memory_free; /* bytes */
    double others;              /* share of the processors that other processes take, or NaN */
    const char *huge_pages;     /* NULL: unknown */
    struct ct_numa numa;
};

/* Takes a third of a second. Texts are in the arena. */
void machine_look(struct ct_arena *arena, struct machine_facts *m);
void machine_print(const struct machine_facts *m);
struct json_t *machine_json(const struct machine_facts *m);

/* A rate per second; failure: why there is none, or NULL. */
struct rate {
    double value;
    const char *failure;
};

struct device_facts {
    const char *name;
    const char *failure; /* NULL: it can be opened */
    struct ct_device_info info;
    struct ct_texts diagnosis; /* lines of its plugin */
    struct rate float32, bfloat16, bandwidth;
};

/* Opens the device and measures it. Texts are in the arena. */
void device_look(struct ct_arena *arena, const char *name, const struct ct_device_ops *ops,
                 struct device_facts *d);
void device_print(const struct device_facts *d);
struct json_t *device_json(const struct device_facts *d);

#endif
