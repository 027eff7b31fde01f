/*
 * Calls that failed for a cause that may pass: another client of a network file system, a disk that
 * repeats a read, descriptors that other threads or processes close.
 */
#include <errno.h>

#include <ctitan/clock.h>
#include <ctitan/file.h>

#define TRIES 4
#define FIRST_PAUSE 0.05 /* seconds; each next one is four times as long */

static bool may_pass(int error)
{
    static const int errors[] = {EIO,    ESTALE, EAGAIN,    EBUSY,  EMFILE,
                                 ENFILE, ENOMEM, ETIMEDOUT, ENOLCK, EREMOTEIO};

    for (size_t i = 0; i < CT_COUNT(errors); i++)
        if (errors[i] == error)
            return true;
    return false;
}

bool ct_file_again(int *tries)
{
    int error = errno;
    double pause = FIRST_PAUSE;

    if (error == EINTR)
        return true;
    if (!may_pass(error) || ++*tries >= TRIES)
        return false;
    for (int i = 1; i < *tries; i++)
        pause *= 4;
    ct_nap(pause);
    errno = error;
    return true;
}
