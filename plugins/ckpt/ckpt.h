/*
 * Checkpoints: interface between the sources of the plugin.
 *
 * A checkpoint is a folder step-N. Each rank that wrote has one safetensors file, whose data begins
 * at a page. The file has at most one box of each tensor; torch's sharding metadata in the header
 * says where in the whole tensor it is, so that PyTorch's reader of sharded safetensors accepts the
 * folder. index.json lists the progress, the recipe, all tensors, and of each file the boxes and
 * the XXH3 of every chunk of its data. The last line of the index is the XXH3 of what is before it.
 *
 *   plan.c    which rank writes which rows       write.c   writes a rank's file
 *   index.c   index.json                         read.c    reads what is wanted of all files
 *   seek.c    reads boxes in any order           beside.c  small files beside the model's weights
 *   load.c    fills a run                        folder.c  the folder of checkpoints
 *   save.c    a save, from begin to end          io.c      direct access to files; the ring
 *   resume.c  where a run begins                 diff.c    compares two
 *   space.c   room on the disk
 *   batch.c   how many sequences its steps have
 *   ckpt.c    options and events                 verb.c    the verbs
 *   shared.c  whether all hosts see the folder
 *   local.c   files that stay on the hosts that wrote them
 *   gather.c  a whole checkpoint from files of several hosts
 *   format.c  reads and writes checkpoints without a run, for other plugins
 */
#ifndef CKPT_H
#define CKPT_H

#include <sys/uio.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the widest instructions of the processor: twice as fast */
#endif

#include <ctitan/file.h>
#include <ctitan/lib/checkpoint.h>
#include <ctitan/model.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#define CHUNK ((size_t)4 << 20) /* bytes of data with one hash */
#define PAGE 4096
#define BLOCK 512 /* direct writes begin and end at one, in memory and in the file */
#define INDEX "index.json"
#define CKPT_BESIDE "hf" /* folder */

/* A box of a tensor in a file. */
struct ckpt_box {
    const char *name;
    enum ct_dtype dtype; /* in the file */
    int ndim;
    int64_t offset[CT_MAX_DIMS], shape[CT_MAX_DIMS]; /* in the whole */
    size_t at, bytes;                                /* in the data of the file */
    const struct ct_checkpoint_tensor *tensor;       /* for readers */
    /* For writers: the state, and the first byte of the box in this rank's shard. */
    const struct ct_state *state;
    size_t from;
    const struct ct_checkpoint_box *given; /* if there is no state */
};

struct ckpt_file {
    const char *name;
    const char *host;     /* that has the file ([ckpt] files = local); NULL: any */
    bool absent;          /* of an open checkpoint: this host lacks it */
    size_t header, bytes; /* of the header with its length, and of the data */
    uint64_t header_hash;
    struct ckpt_box *boxes; /* in the order of the file, without gaps */
    size_t box_count;
    uint64_t *hash; /* of each chunk */
};

struct ckpt_kept {
    const char *name;
    const unsigned char *data;
    size_t bytes;
};

/* The data that is trained on and the data that is held out, as ct_data_ops.identity tells. */
enum { CKPT_TRAINING, CKPT_VALIDATION, CKPT_DATA };
struct ckpt_data {
    uint64_t hash;
    int64_t documents, tokens; /* -1: unknown */
};

struct ckpt {
    struct ct_arena *arena;
    const char *path; /* of the folder */
    struct ct_progress progress;
    int64_t world, time; /* ranks; seconds since 1970 */
    int64_t batch;       /* sequences in a step; 0: unknown, as in older checkpoints */
    bool model_only;
    const char *mesh, *recipe; /* the recipe with every option, as ct_recipe_print_resolved */
    const char *config;        /* the model, as its format of weights describes it; NULL: not */
    struct ct_small_files
        beside;            /* of an open checkpoint without their data, until they are read */
    uint64_t *beside_hash; /* of each; of an open checkpoint */
    size_t chunk;
    struct ct_checkpoint_tensor *tensors;
    const struct ct_checkpoint_tensor **by_name; /* sorted, for ckpt_find */
    size_t tensor_count;
    struct ckpt_file *files;
    size_t file_count;
    struct ckpt_kept *kept;
    size_t kept_count;
    const struct ckpt_data *data[CKPT_DATA]; /* NULL: unknown */
};

static inline size_t ckpt_chunks(const struct ckpt_file *f, size_t chunk)
{
    return (f->bytes + chunk - 1) / chunk;
}

/* ---- plan.c ---- */

struct ckpt_what {
    bool model_only;
    int dtype; /* of floating-point parameters; -1: as they are */
};

/* The kinds of state that a save writes, as the options say. */
struct ckpt_what ckpt_what_of(bool model_only);
/* Bytes of the whole state, which is in one file or divided; 0: it is not written. */
double ckpt_state_bytes(const struct ct_run *run, const struct ct_state *s,
                        const struct ckpt_what *what);
/* The file that rank writes; box_count 0: none. Allocated in arena. *header: its first bytes, to be
   freed; may be NULL. */
int ckpt_plan(struct ct_arena *arena, const struct ct_run *run, int64_t rank,
              const struct ckpt_what *what, struct ckpt_file *file, char **header);
/* The recipe with every option. */
int ckpt_recipe_text(struct ct_arena *arena, struct ct_run *run, const char **text);
/* Give the boxes of a file their places, and sort them by those. Room for the hashes, in arena. */
void ckpt_place(struct ct_arena *arena, struct ckpt_file *file);
/* Set file->header and header_hash from its boxes. *header as above. */
int ckpt_make_header(struct ckpt_file *file, char **header);
/* Identity of the run's data, in arena; NULL: unknown. */
const struct ckpt_data *ckpt_identify(struct ct_arena *arena, const struct ct_run *run, int which);
/* Everything but the files' hashes. */
int ckpt_describe(struct ct_arena *arena, struct ct_run *run, const struct ckpt_what *what,
                  struct ckpt *c);

/* ---- io.c ---- */

uint64_t ckpt_hash(const void *data, size_t bytes);

/* A file that is read or written directly, past the page cache. Then memory and offsets are of
   whole pages; the last read may be shorter. Where the file system cannot, direct becomes false. */
struct ckpt_io {
    const char *path;
    int fd;
    bool direct;
};

int ckpt_io_open(struct ckpt_io *io, const char *path, int flags, bool direct);
int ckpt_io_write(struct ckpt_io *io, const void *data, size_t bytes, size_t at);
/* Write `count` parts one after another; changes the list. */
int ckpt_io_writev(struct ckpt_io *io, struct iovec *parts, int count, size_t at);
/* Reserve so many bytes for the file, so that a full disk shows at once. */
int ckpt_io_reserve(struct ckpt_io *io, size_t bytes);
/* Give the file its size, and sync it to disk. */
int ckpt_io_settle(struct ckpt_io *io, size_t bytes);
/* data has room for whole pages. CT_EDAMAGED: the file has fewer bytes; CT_EIO. */
int ckpt_io_read(struct ckpt_io *io, void *data, size_t bytes, size_t at);
/* rc, or a failure to close. */
int ckpt_io_close(struct ckpt_io *io, int rc);

struct ckpt_ring {
    char *memory;       /* begins at a page */
    size_t slots, slot; /* their number, and the bytes of one */
};

/* Fill and empty the slots of a ring in turn with chunks 0 to count - 1, one of the two in a thread
   of its own. The first failure of either ends both. */
struct ckpt_pipe {
    struct ckpt_ring ring;
    size_t count;
    bool (*ahead)(void *context); /* false: fill no more than two slots; NULL: the whole ring */
    int (*fill)(void *context, size_t number, char *slot);
    int (*empty)(void *context, size_t number, char *slot);
    void *context;
    bool fill_aside;
};
int ckpt_pipe(const struct ckpt_pipe *pipe);

/* ---- write.c ---- */

struct ckpt_write {
    struct ct_run *run;
    struct ckpt_file *file; /* its hashes are set */
    const char *path;
    const char *header;
    struct ckpt_ring ring; /* of slots of CHUNK bytes */
    bool hold;             /* states are held, and are released when they have been copied */
};

/* Copy, hash and write; sync the file to disk. The folder of path exists. */
int ckpt_write(const struct ckpt_write *w);
/* In its place, when there is nothing to write to: release what is held. */
void ckpt_release(const struct ckpt_write *w);

/* ---- index.c ---- */

/* The text of the index, in arena. */
int ckpt_index_text(struct ct_arena *arena, const struct ckpt *c, char **text, size_t *size);
int ckpt_index_write(const char *text, size_t size, const char *folder);
/* Read the index of a folder, and compare it with its hash. The same failures as of ckpt_open. */
int ckpt_index_read(struct ct_arena *arena, const char *folder, char **text, size_t *size);
/* The second half of ckpt_open. */
int ckpt_open_text(struct ct_arena *arena, const char *folder, const char *text, size_t size,
                   struct ckpt *c);
/* Read and check the index of a folder, and the sizes of its files. CT_EDAMAGED: it is damaged or
   not complete; CT_ENOENT: it has none; CT_ECONFIG: it is of another version of the format;
   CT_EIO: it
   cannot be read, with the file and the cause. */
int ckpt_open(struct ct_arena *arena, const char *folder, struct ckpt *c);
/* Whether rc, of opening or reading one, says that there is no good checkpoint there. A failure to
   read says nothing about it. */
bool ckpt_is_bad(int rc);
/* Whether this may be the name of a host, as a word of a remote shell's command. */
bool ckpt_is_host(const char *name);
/* The tensor of that name in an open checkpoint; NULL: it has none. */
const struct ct_checkpoint_tensor *ckpt_find(const struct ckpt *c, const char *name);

/* ---- read.c ---- */

/* Where a load puts what it reads. want: the bytes [*from, *to) of the box are of use; false: none.
   put: a box within the whole tensor, dense. shared: other processes of this machine read the same
   bytes, so that the page cache is of use. */
struct ckpt_sink {
    bool (*want)(void *context, const struct ckpt_box *box, size_t *from, size_t *to);
    int (*put)(void *context, const struct ckpt_box *box, const int64_t *offset,
               const int64_t *shape, const void *data);
    void *context;
    bool shared;
};

/* Read all that is wanted of a file; every chunk is compared with its hash. CT_EDAMAGED
   names the file, the bytes, and the box; CT_EIO: it cannot be read. The header is compared with
   its hash, too. sink NULL: read everything, and only compare. */
int ckpt_read_file(const struct ckpt *c, const struct ckpt_file *file,
                   const struct ckpt_sink *sink);
int ckpt_read(const struct ckpt *c, const struct ckpt_sink *sink);

/* A file that is read chunk by chunk, and what a sink wants of it. In arena. */
struct ckpt_reader;
struct ckpt_reader *ckpt_reader_make(struct ct_arena *arena, const struct ckpt *c,
                                     const struct ckpt_file *file, const struct ckpt_sink *sink);
/* Set wanted[n] to 1 for each chunk n of which the sink wants some bytes. */
void ckpt_reader_wanted(const struct ckpt_reader *reader, int32_t *wanted);
/* Read a chunk to memory of whole pages, one page longer than the chunk. The first call opens the
   file. */
int ckpt_reader_read(struct ckpt_reader *reader, size_t number, char *to);
/* Compare a chunk with its hash, and put what is wanted of it. */
int ckpt_reader_put(const struct ckpt_reader *reader, size_t number, const char *data);
/* Close the file, if it is open. rc, or a failure to close. */
int ckpt_reader_close(struct ckpt_reader *reader, int rc);

/* The bytes of a chunk of a file's data. */
size_t ckpt_chunk_bytes(const struct ckpt *c, const struct ckpt_file *file, size_t number);
/* Compare a chunk, or the header, with its hash. memory, of `room` bytes, is for reading.
   CT_EDAMAGED. */
int ckpt_check_chunk(const struct ckpt *c, const struct ckpt_file *file, const struct ckpt_io *io,
                     size_t number, const char *data);
int ckpt_check_header(const struct ckpt_file *file, struct ckpt_io *io, char *memory, size_t room);

/* ---- seek.c ---- */

#define CKPT_SEEK_OPEN 64 /* most files that are open */
struct ckpt_seek {
    const struct ckpt *c;
    struct ct_arena arena;
    size_t *first; /* tensor t has boxes[first[t]] to boxes[first[t + 1] - 1] */
    struct ckpt_seek_box *boxes;
    struct ckpt_seek_file *files;
    size_t open[CKPT_SEEK_OPEN], opened; /* files that are open, in a ring; how many ever were */
    char *chunk;                         /* chunk `number` of file `last`; SIZE_MAX: none */
    size_t last, number;
};
/* Read boxes of an open checkpoint's tensors, in any order. */
int ckpt_seek_begin(struct ckpt_seek *s, const struct ckpt *c);
/* A box of a tensor, dense. CT_EDAMAGED, as of ckpt_read_file, or as the checkpoint has not all of
   it; CT_EIO. */
int ckpt_seek_read(struct ckpt_seek *s, const struct ct_checkpoint_tensor *t, const int64_t *offset,
                   const int64_t *shape, void *to);
void ckpt_seek_end(struct ckpt_seek *s);

/* ---- load.c ---- */

struct ckpt_load {
    bool optimizer, lr, data; /* not the model alone */
    bool lacking;             /* what the model's files of weights lack may be missing here, too */
};

/* CT_EDAMAGED: the checkpoint is damaged; CT_EIO: it cannot be read; CT_ECONFIG: it is of another
   model, with all differences as warnings of rank 0. */
int ckpt_load(struct ct_run *run, const struct ckpt *c, const struct ckpt_load *load);
/* Tell what a recipe that has changed since changes. */
void ckpt_tell_changes(const struct ckpt *c, struct ct_run *run);

/* ---- shared.c ---- */

/* For all ranks, which have ckpt_own.folder and its nonce. CT_ECONFIG: it is not the same folder on
   all hosts. */
int ckpt_check_shared(struct ct_run *run);

/* ---- local.c, with [ckpt] files = local ---- */

#define CKPT_HOST 64 /* bytes of a host's name */

/* Find out which ranks see the same folder of checkpoints. All ranks call this. Where files are
   shared, rank 0 keeps the folder. */
int ckpt_local_begin(struct ct_run *run);
/* Give all ranks the text of rank 0's index, and its small files, as c->beside. */
int ckpt_local_share_index(struct ct_run *run, struct ct_arena *arena, struct ckpt *c, char **text,
                           size_t *size);
/* ckpt_open by all ranks. A rank whose host lacks the index gets it from another. */
int ckpt_local_open(struct ct_run *run, struct ct_arena *arena, const char *folder, struct ckpt *c);
/* ckpt_read by all ranks, on any hosts that have all files between them. CT_EDAMAGED: a file that
   is wanted is on none; the message names it and its host. */
int ckpt_local_read(struct ct_run *run, const struct ckpt *c, const struct ckpt_sink *sink);
/* Whether this host has the name, as the files of a checkpoint say it. */
bool ckpt_is_own_host(const char *name);
/* CT_ECONFIG: the file is on another host. */
int ckpt_elsewhere(const struct ckpt *c, const struct ckpt_file *file);

/* ---- gather.c ---- */

/* Access to files of other hosts. */
struct ckpt_reach {
    const char *shell; /* command that runs a line on a host, as for ct_launch_on_host */
    const char *at;    /* path of a host's folder on this host, {} for its name; NULL: by shell */
};
/* Make a whole checkpoint in the folder `to`, from the files of several hosts. path: the checkpoint
   (ckpt_locate). *whole: the new one, open. Each byte is compared with its hash. CT_ECONFIG: `to`
   has one of this step, is locked, or is the folder of the checkpoint itself. Any other failure
   leaves whole files in step-N.part, from which the next call goes on; each missing file is a
   warning. */
int ckpt_gather(struct ct_arena *arena, const char *path, const char *to,
                const struct ckpt_reach *reach, struct ckpt *whole);

/* ---- folder.c ---- */

/* Call `see` for each name in a folder; none if there is no such folder. CT_EIO: the names cannot
   be read; CT_ECONFIG: it is no folder. */
int ckpt_each_name(const char *folder, void (*see)(const char *name, void *context), void *context);
/* Steps of the folders step-N in folder, newest first; complete or not. None if there is no such
   folder. CT_EIO: it cannot be read. */
int ckpt_steps(struct ct_arena *arena, const char *folder, int64_t **steps, size_t *count);
/* Whether there is nothing of this name, as after another run has removed a checkpoint. */
bool ckpt_is_gone(const char *path);
const char *ckpt_step_path(struct ct_arena *arena, const char *folder, int64_t step);
/* "30, 20, 10" */
const char *ckpt_steps_text(struct ct_arena *arena, const int64_t *steps, size_t count);
/* The folder of checkpoints that path is, or that is in the dump folder path. */
const char *ckpt_folder_of(struct ct_arena *arena, const char *path);
/* CT_ENOENT: path is no checkpoint, and has none. */
int ckpt_none(struct ct_arena *arena, const char *path);
/* Open the checkpoint that path names: a folder step-N, or the newest good one in a folder of
   checkpoints or in a run's dump folder. Warns of newer ones that are not good; fails if one cannot
   be read. */
int ckpt_locate(struct ct_arena *arena, const char *path, struct ckpt *c);
/* Create the folder, and lock it for this process until it ends. Removes the rest of killed runs,
   and gives a checkpoint that was moved aside its name again. CT_EPEER: another process has the
   folder; CT_ECONFIG: it cannot be created or locked. */
int ckpt_folder_take(const char *folder);
void ckpt_folder_leave(void);
/* Notes in the file of the folder's lock that this run has saved, for when the job is started
   again. */
int ckpt_folder_note(bool saved);
bool ckpt_folder_saved(void);
/* Move a new checkpoint to its final place; one that is there is replaced. Where the file system
   can exchange two names, path is there at every moment. Else it may be gone at the end of the
   process,
   and the one that was replaced is beside it, for ckpt_folder_take. */
int ckpt_publish(const char *temporary, const char *path);
/* Remove a checkpoint, or warn that it stays. */
void ckpt_drop(const char *path);

/* Rename the checkpoints of steps after `step`, so that a run which goes on from there neither
   resumes from them nor counts them as its newest. own: the step of one that stays; -1: none. */
void ckpt_set_aside(const char *folder, int64_t step, int64_t own);

struct ckpt_retention {
    int64_t latest, every; /* 0: all; 0: none */
    int64_t verified;      /* the newest step that was read and found good; -1: none */
    int64_t best;          /* the step of the best validation; 0: none */
};
/* Remove checkpoints that are not to be kept. Only complete ones count. */
void ckpt_purge(const char *folder, const struct ckpt_retention *r);

/* The checkpoints that stay after a save that begins now. */
struct ckpt_retention ckpt_retention(const struct ct_run *run);

/* ---- space.c ---- */

/* Text of a number of bytes: "1.6 GB". */
const char *ckpt_spoken(double bytes, char text[32]);
/* Bytes of a checkpoint, over all ranks, headers and index estimated. */
double ckpt_bytes(const struct ct_run *run, bool model_only);
/* Before a save: whether the disk has room for it. Checkpoints that it would remove make room
   first. Without room people are told; where the save is the last one, and [ckpt] on_error = stop,
   it is a failure. All ranks call this. */
int ckpt_has_room(struct ct_run *run, bool model_only, bool last, bool *room);
/* For PLAN_READY: say what will be written. */
void ckpt_foresee(struct ct_run *run);
/* Before the first step: fail if the disk has no room for one checkpoint, and warn if not for all
   that are there at once. All ranks call this. */
int ckpt_check_room(struct ct_run *run);

/* ---- diff.c ---- */

/* Print how two checkpoints differ; a failure if tensors do. */
int ckpt_diff(const char *first, const char *second, bool json);

/* ---- ckpt.c ---- */

#define CKPT_REWINDS 64 /* most of [ckpt] rewinds */

enum { CKPT_STOP, CKPT_WARN };                     /* on_error */
enum { CKPT_SHARED, CKPT_LOCAL };                  /* files */
enum { CKPT_SAME, CKPT_F32, CKPT_BF16, CKPT_F16 }; /* export_dtype */

extern struct ckpt_config {
    bool enable, load_only, first_step, last_model_only, initial_model_only, verify, keep_best;
    const char *folder, *initial_load_path, *exclude;
    int64_t interval, load_step, keep_latest_k, keep_every, staging, rewinds;
    unsigned async_mode, on_error, files, export_dtype;
} ckpt_config; /* [ckpt] */

/* The run and its own checkpoints. */
extern struct ckpt_own {
    char folder[CT_PATH_ROOM];
    uint64_t nonce;        /* in temporary names; the same on all ranks */
    struct ckpt_load load; /* what the recipe wants loaded */
    struct ckpt_ring ring;
    bool evaluates;   /* not trained: weights are read, and nothing is saved */
    int64_t saved;    /* last step of this run that has a complete checkpoint; -1: none */
    int64_t verified; /* newest step that was read; -1: none */
    int64_t loaded;   /* step after which the run goes on */
    bool alone;       /* checkpoints of later steps that are not of this run were set aside */
    int64_t keeper;   /* rank that publishes in this rank's folder */
    bool keeps;       /* it is this one */
    double part;      /* of a checkpoint's bytes, in this folder */
    char *host;       /* names of the ranks' hosts, CKPT_HOST bytes each; files = local */
} ckpt_own;

static inline bool ckpt_is_local(const struct ct_run *run)
{
    return ckpt_config.files == CKPT_LOCAL && run->world > 1;
}

/* ---- save.c ---- */

/* Begin to save the last step. aside: in a thread; the states are held until it has copied them. No
   other save is running. All ranks call this. */
int ckpt_save_begin(struct ct_run *run, bool aside, bool model_only);
/* Advance the current save; block: to its end. *terminated: whether this rank got SIGTERM; becomes
   whether any rank did. All ranks call this, with or without a save. */
int ckpt_save_advance(struct ct_run *run, bool block, bool *terminated);
bool ckpt_save_is_running(void);
/* Wait for the thread of a save that other ranks may not complete, and forget it. */
void ckpt_save_finish(void);

/* ---- resume.c ---- */

/* Load what the run begins with, if there is anything. A job that is started again goes on from
   what it saved, whatever it began with. All ranks call this. */
int ckpt_resume(struct ct_run *run);
/* Load the newest checkpoint of this run, and skip the batch of the step from now on. */
int ckpt_rewind(struct ct_run *run, const struct ct_step_result *result);
/* If the next step would read a batch that is to be skipped, it reads the one after it. */
void ckpt_skip_batches(struct ct_run *run);
/* Checkpoints have the list of skipped batches. */
void ckpt_keep_skipped(struct ct_run *run);

/* ---- batch.c ---- */

/* Sequences in a step of the run. */
int64_t ckpt_batch(const struct ct_run *run);
/* If the recipe leaves global_batch_size open, set it to that of the checkpoint from which the run
   goes on. For RUN_OPEN. */
int ckpt_take_batch(struct ct_run *run);
/* Tell whether steps have as many sequences as before. */
void ckpt_tell_batch(const struct ckpt *c, const struct ct_run *run);

/* ---- beside.c ---- */

/* Write the small files of a checkpoint into a folder. */
int ckpt_beside_write(const struct ckpt *c, const char *folder);
/* Read those of an open checkpoint. CT_EIO: one is damaged, or missing. */
int ckpt_beside_read(struct ckpt *c);

/* ---- verb.c, format.c ---- */

extern const struct ct_verb_ops ckpt_verb;
extern const struct ct_checkpoint_ops ckpt_format;

#endif
