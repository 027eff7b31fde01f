#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <ctitan/lib/terminal.h>

#define USUAL 80
#define LEAST 40

int ct_terminal_columns(int fd)
{
    const char *launcher = fd == STDERR_FILENO ? getenv("CTITAN_TERMINAL") : NULL;
    const char *kind = getenv("TERM");
    struct winsize size = {0};
    int columns = launcher ? atoi(launcher) : 0;

    if (kind && !strcmp(kind, "dumb"))
        return 0;
    if (isatty(fd))
        columns = ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
    else if (!launcher)
        return 0;
    if (columns <= 1)
        return USUAL;
    return columns < LEAST ? LEAST : columns;
}

bool ct_terminal_takes_colours(int fd)
{
    const char *none = getenv("NO_COLOR"); /* of any value but an empty one: no-color.org */

    return !(none && *none) && ct_terminal_columns(fd) > 0;
}
