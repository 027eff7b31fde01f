/*
 * Secrets of jobs inside credentials of munge, which Slurm's hosts run. Declared here are the few
 * functions that are used of libmunge.
 *
 * Users are numbers of munged's. In a user namespace, as of a container without root, this process
 * may have another number for itself, so munged is asked: it writes the maker into each credential.
 */
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/secret.h>

#define LIBRARY "libmunge.so.2"

enum { CIPHER = 0, SOCKET = 8, READER = 9 }; /* munge_opt_t */
enum { AES128 = 4 };                         /* munge_cipher_t */
#define ANYBODY ((uid_t)-1)

static struct {
    void *(*munge_ctx_create)(void);
    void (*munge_ctx_destroy)(void *context);
    int (*munge_ctx_get)(void *context, int option, ...);
    int (*munge_ctx_set)(void *context, int option, ...);
    const char *(*munge_ctx_strerror)(void *context);
    const char *(*munge_strerror)(int error);
    int (*munge_encode)(char **credential, void *context, const void *data, int bytes);
    int (*munge_decode)(const char *credential, void *context, void **data, int *bytes, uid_t *user,
                        gid_t *group);
    uid_t user; /* this process, as munged sees it */
    bool identified;
} munge;

static const struct {
    const char *name;
    void *at;
} functions[] = {
#define FUNCTION(name)                                                                             \
    {                                                                                              \
#name, &munge.name                                                                         \
    }
    FUNCTION(munge_ctx_create), FUNCTION(munge_ctx_destroy),  FUNCTION(munge_ctx_get),
    FUNCTION(munge_ctx_set),    FUNCTION(munge_ctx_strerror), FUNCTION(munge_strerror),
    FUNCTION(munge_encode),     FUNCTION(munge_decode),
#undef FUNCTION
};

/* munge_err_t that the user can do something about. */
static const struct {
    int error;
    const char *advice;
} advices[] = {
    {6, "is munged running on this host?"},
    {14, "hosts of a job need the same munge.key"},
    {15, "do the clocks of the hosts agree?"},
    {16, "do the clocks of the hosts agree?"},
    {17, "somebody sent it twice"},
    {18, "it is for another user: all ranks of a job must run as one"},
};

static int find_functions(void *library)
{
    for (size_t i = 0; i < CT_COUNT(functions); i++) {
        void *function = dlsym(library, functions[i].name);

        if (!function)
            return ct_fail(CT_ECONFIG, "munge: %s lacks %s", LIBRARY, functions[i].name);
        memcpy(functions[i].at, &function, sizeof(function));
    }
    return 0;
}

static const char *given_socket(void)
{
    return getenv("CTITAN_MUNGE_SOCKET");
}

static int fail(void *context, int error, const char *what)
{
    const char *message = context ? munge.munge_ctx_strerror(context) : NULL;
    const char *advice = NULL;

    for (size_t i = 0; i < CT_COUNT(advices); i++)
        if (advices[i].error == error)
            advice = advices[i].advice;
    return ct_fail(
        CT_EIO, "munge: %s a credential: %s; %s%swith CTITAN_SECRET a job does without munge", what,
        message ? message : munge.munge_strerror(error), advice ? advice : "", advice ? "; " : "");
}

/* A context with which credentials are read, or made for a reader. */
static int open_context(void **context, uid_t reader, const char *what)
{
    int error = 0;

    if (!munge.munge_decode)
        return ct_fail(CT_EIO,
                       "munge: this host has no %s: install munge, or give all ranks of the "
                       "job a secret (CTITAN_SECRET)",
                       LIBRARY);
    *context = munge.munge_ctx_create();
    if (!*context)
        return ct_fail(CT_ENOMEM, "munge");
    if (given_socket())
        error = munge.munge_ctx_set(*context, SOCKET, given_socket());
    if (!error)
        error = munge.munge_ctx_set(*context, CIPHER, AES128);
    if (!error)
        error = munge.munge_ctx_set(*context, READER, reader);
    return error ? fail(*context, error, what) : 0;
}

static void close_context(void *context)
{
    if (context)
        munge.munge_ctx_destroy(context);
}

/* Whether munged has been started on this host. */
static bool has_socket(void)
{
    void *context = munge.munge_ctx_create();
    char *path = NULL;
    struct stat s;
    bool has = context && munge.munge_ctx_get(context, SOCKET, &path) == 0 && path &&
               stat(path, &s) == 0 && S_ISSOCK(s.st_mode);

    close_context(context);
    return has;
}

int ct_munge_find(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int rc;

    if (!library)
        return given_socket()
                   ? ct_fail(CT_ECONFIG, "CTITAN_MUNGE_SOCKET = %s: %s", given_socket(), dlerror())
                   : 0;
    rc = find_functions(library);
    if (rc < 0)
        return rc;
    return given_socket() || has_socket();
}

static int encode(char credential[CT_CREDENTIAL_ROOM], const char *data, int bytes, uid_t reader)
{
    char *text = NULL;
    void *context = NULL;
    int rc = open_context(&context, reader, "making"), error = 0;

    if (rc == 0)
        error = munge.munge_encode(&text, context, data, bytes);
    if (error)
        rc = fail(context, error, "making");
    else if (rc == 0 && strlen(text) >= CT_CREDENTIAL_ROOM)
        rc = ct_fail(CT_EIO, "munge: a credential of %zu bytes", strlen(text));
    else if (rc == 0)
        memcpy(credential, text, strlen(text) + 1);
    free(text);
    close_context(context);
    return rc;
}

/* data: to free, with *bytes; *user made the credential. */
static int decode(const char *credential, void **data, int *bytes, uid_t *user)
{
    void *context = NULL;
    int rc = open_context(&context, ANYBODY, "reading"), error = 0;
    gid_t group;

    if (rc == 0)
        error = munge.munge_decode(credential, context, data, bytes, user, &group);
    if (error)
        rc = fail(context, error, "reading");
    close_context(context);
    return rc;
}

/* The kernel's number for users that a namespace has none for. */
static uid_t overflow_user(void)
{
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "r");
    unsigned user = 65534;

    if (file && fscanf(file, "%u", &user) != 1)
        user = 65534;
    if (file)
        fclose(file);
    return user;
}

/* munged takes all users that it has no number for as one, who reads the credentials of all. */
static int check_known(uid_t user)
{
    return user != overflow_user() || geteuid() == user
               ? 0
               : ct_fail(CT_EIO,
                         "munge: its daemon runs in a user namespace that has no number for user "
                         "%u, and takes this user for others without one; with CTITAN_SECRET a "
                         "job does without munge",
                         (unsigned)geteuid());
}

int ct_munge_identify(void)
{
    char credential[CT_CREDENTIAL_ROOM];
    void *data = NULL;
    int rc = munge.identified ? 0 : encode(credential, NULL, 0, ANYBODY), bytes;

    if (rc == 0 && !munge.identified)
        rc = decode(credential, &data, &bytes, &munge.user);
    if (rc == 0)
        rc = check_known(munge.user);
    munge.identified = rc == 0;
    free(data);
    return rc;
}

int ct_munge_wrap(const char secret[CT_SECRET_ROOM], char credential[CT_CREDENTIAL_ROOM])
{
    assert(munge.identified);
    return encode(credential, secret, CT_SECRET_ROOM, munge.user);
}

int ct_munge_unwrap(const char *credential, char secret[CT_SECRET_ROOM])
{
    void *data = NULL;
    int bytes = 0, rc;
    uid_t user = 0;

    rc = decode(credential, &data, &bytes, &user);
    if (rc == 0)
        rc = ct_munge_identify();
    if (rc == 0 && user != munge.user)
        rc = ct_fail(CT_EIO,
                     "munge: the credential is of user %u, and this is user %u: all ranks "
                     "of a job must run as one",
                     (unsigned)user, (unsigned)munge.user);
    else if (rc == 0 &&
             (bytes != CT_SECRET_ROOM || !memchr(data, 0, CT_SECRET_ROOM) || !ct_secret_is(data)))
        rc = ct_fail(CT_EIO, "munge: the credential holds no secret of a job");
    if (rc == 0)
        memcpy(secret, data, CT_SECRET_ROOM);
    free(data);
    return rc;
}
