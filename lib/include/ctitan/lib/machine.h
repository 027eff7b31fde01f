/*
 * Descriptions of machines, for planning without them: how fast they compute and communicate.
 *
 * A description is an INI file, read by the rules of recipes (recipe.h):
 *
 *     [device]
 *     name = NVIDIA H100 SXM5 80GB
 *     plugin = cuda            ; its kernels are chosen
 *     memory = 85.0e9          ; bytes
 *     ranks_per_host = 8
 *     [peak]                   ; per second
 *     bfloat16 = 989e12        ; FLOPs of matrix products, by dtype
 *     bandwidth = 3.35e12      ; bytes of memory
 *     [rate.products]
 *     ops = linear, linear_dx, linear_dw
 *     reach = 5e-6 0.3, 1e-3 0.75
 *     [link.host]
 *     bandwidth = 450e9        ; bytes that a rank sends per second
 *     latency = 3e-6
 *     [link.network]           ; between hosts; may be missing
 *     bandwidth = 50e9
 *     [contention]
 *     computing = 1.19         ; times as long while the rank communicates
 *     alone = 1                ; share of its time while the host's other ranks do not compute
 *     [published]              ; may be missing
 *     least = 1.2              ; times as long as predicted that published runs took, from
 *     most = 2.6               ; and to
 *     of = TorchTitan's paper, docs/predictions.md
 *     [calls]
 *     linear = 512,256:768,256>512,768:float32 1.2e-3 ..
 *
 * The time of an instruction is [calls]' own, if that has one of the same op, shapes and dtype.
 * Otherwise it is the larger of FLOPs and bytes over their peaks, the ideal time, divided by the
 * share of the peak that kernels reach: a function of the ideal time, interpolated between the
 * points of `reach` (seconds, share) on logarithmic scales, and constant beyond them. The peak of
 * FLOPs is that of the narrowest dtype of the first two inputs, or its class's own: `peak`, for
 * numbers that have no dtype of their own, as NVFP4. An op is in
 * the class that lists it; if none does, "cpu.linear" is in that of "linear", and all others are in
 * the class that lists none (one for ops with FLOPs, if it has `work = flops`, and one for the
 * rest). So "linear_nvfp4" needs a class that lists it, whatever lists "linear_float8". Bytes that
 * the kernel moves in addition (`traffic` of struct ct_lowered) take their time by the last of
 * these classes, unless the file has [calls]: measured curves are of whole calls. [device] launch
 * is added to each instruction. That is the time of an instruction alone; a simulation
 * (lib/app/simulate.h) adds what the streams of a rank, and ranks that share processors, take from
 * each other.
 */
#ifndef CT_MACHINE_H
#define CT_MACHINE_H

#include <ctitan/program.h>

CT_BEGIN_DECLS

struct ct_machine_point {
    double at, value; /* seconds at the peak; share of the peak */
};

struct ct_machine_curve {
    struct ct_machine_point *point; /* sorted */
    size_t count;
};

/* A class of ops. */
struct ct_machine_rate {
    const char *name;
    const char **ops;
    size_t op_count;
    bool lookup; /* bytes are those of the outputs, twice: of the first input only some rows are
                     read */
    bool flops;  /* without ops: for those with FLOPs */
    double peak; /* FLOPs per second of its products; 0: by dtype */
    struct ct_machine_curve reach;
};

/* A measured call. */
struct ct_machine_call {
    const char *op, *shapes; /* as ct_machine_shapes prints them */
    double seconds;
};

struct ct_machine_link {
    double bandwidth;              /* bytes per second that each rank sends */
    double latency;                /* seconds of a message */
    struct ct_machine_curve reach; /* share of the bandwidth, by bytes */
};

struct ct_machine {
    const char *path; /* where it was read */
    const char *name, *plugin;
    double memory, beside;                    /* bytes; used in addition to the plan */
    int64_t units, capability, shared_memory; /* of GPUs: multiprocessors; 90; bytes per block */
    int64_t ranks_per_host;
    double launch; /* seconds that each instruction takes in addition to its work */
    bool in_order; /* all streams of a rank share its processors, and only transfers between the
                      stages of a pipeline and what goes over the network overlap with computing */
    struct {
        double float32, bfloat16, float8, bandwidth;
    } peak;
    struct {
        double computing, communicating; /* times as long as alone, while the rank also
                                            communicates or computes */
        double alone; /* share of its time that computing takes while no other rank of the host
                         computes; below 1: ranks share processors */
    } contention;
    struct ct_machine_rate *rate;
    size_t rate_count;
    struct ct_machine_link host, network; /* network: bandwidth 0 without a description of it */
    struct ct_machine_call *call;         /* sorted by op and shapes */
    size_t call_count;
    /* Runs that others published: their steps took so many times as long as predicted, from and to;
       0: not known. */
    struct {
        double least, most;
        const char *of; /* which runs, where */
    } published;
};

/* The description that belongs to this machine, if `ctitan doctor --describe this` was run. */
#define CT_MACHINE_THIS "this"

/* A name: neither a path nor a file "NAME.ini". */
CT_API bool ct_machine_is_name(const char *text);
/* Where `ctitan doctor --describe NAME` keeps a description: ctitan/devices/NAME.ini in
   $XDG_CACHE_HOME or ~/.cache. NULL: neither is set. */
CT_API const char *ct_machine_kept(struct ct_arena *arena, const char *name);
/* Read a description: a file, or a name: of one that is kept for this user, or in the folder
   "devices" here, in the folders of plugins, or beside them. CT_ECONFIG says where it is wrong, or
   names the known ones. */
CT_API int ct_machine_read(struct ct_arena *arena, const char *name,
                           const struct ct_machine **machine);

/* Whether it was measured: it has calls. Predictions on others leave out what costs time on real
   machines, so their speeds are upper bounds. */
CT_API bool ct_machine_is_measured(const struct ct_machine *machine);

/* From now on runs of this process are planned for another machine than this one (--device): a path
   or a name, which stays valid. */
CT_API void ct_machine_assume(const char *name);
/* The machine that runs are planned for: that of ct_machine_assume, else CT_MACHINE_THIS. NULL: it
   is not described. */
CT_API int ct_machine_assumed(struct ct_arena *arena, const struct ct_machine **machine);
/* CT_ECONFIG: so many ranks need several hosts, and no link between hosts is described. */
CT_API int ct_machine_check_ranks(const struct ct_machine *machine, int64_t ranks);

/* "512,256:768,256>512,768:float32": shapes of a call's inputs and outputs, and the dtype of the
   first input that is a floating-point number. Outputs count: weights that are packed together have
   one shape on all ranks. Prints as snprintf does. */
CT_API int ct_machine_shapes(const struct ct_launch *launch, char *text, size_t room);

/* Seconds of an instruction. A rank that waits for others is not counted. */
CT_API double ct_machine_seconds(const struct ct_machine *machine, const struct ct_program *program,
                                 int64_t rank, const struct ct_instruction *instruction);
/* Does the instruction, one that communicates, use the link between hosts? */
CT_API bool ct_machine_between_hosts(const struct ct_machine *machine,
                                     const struct ct_program *program, int64_t rank,
                                     const struct ct_instruction *instruction);
/* Seconds that it would take at the peaks, by its FLOPs or its bytes. */
CT_API double ct_machine_ideal(const struct ct_machine *machine,
                               const struct ct_instruction *instruction);
/* Before there is a program: seconds of a product of op's class with so many FLOPs, and of a
   collective along axes in which a rank sends so many bytes. */
CT_API double ct_machine_product(const struct ct_machine *machine, const struct ct_op *op,
                                 double flops);
CT_API double ct_machine_collective(const struct ct_machine *machine, const struct ct_mesh *mesh,
                                    int64_t rank, ct_axes axes, double sent);
/* Index into machine->rate; SIZE_MAX: none lists it. */
CT_API size_t ct_machine_class(const struct ct_machine *machine, const struct ct_op *op);
/* FLOPs per second at the peak of products of a dtype; 0: not described. */
CT_API double ct_machine_peak(const struct ct_machine *machine, enum ct_dtype dtype);

CT_END_DECLS

#endif
