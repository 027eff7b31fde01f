/*
 * Folders that nobody else can change. Whoever can write to a folder, or to one above it, can put
 * another in its place; in a folder with the sticky bit (/tmp), only the owner of an entry can.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>

/* A group of this user alone, as most systems give to each user: one of the user's name, without
   other members. */
static bool is_own_group(gid_t id)
{
    const struct passwd *user = getpwuid(geteuid());
    char name[256];
    struct group *group;

    if (!user || user->pw_gid != id)
        return false;
    snprintf(name, sizeof(name), "%s", user->pw_name);
    group = getgrgid(id);
    if (!group || strcmp(group->gr_name, name) != 0)
        return false;
    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, name) != 0)
            return false;
    return true;
}

struct rule {
    uid_t root; /* owns the root of the file system; in a container, by another number */
    bool team;  /* owners and groups are trusted */
};

static int check_folder(const struct rule *rule, const char *path, bool last)
{
    struct stat s;

    if (stat(path, &s) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (!rule->team && s.st_uid != geteuid() && s.st_uid != 0 && (last || s.st_uid != rule->root))
        return ct_fail(CT_ECONFIG, "%s belongs to another user (%u)", path, s.st_uid);
    if (!(s.st_mode & S_IWOTH) && (!(s.st_mode & S_IWGRP) || rule->team || is_own_group(s.st_gid)))
        return 0;
    if (s.st_mode & S_ISVTX && !last)
        return 0;
    return ct_fail(CT_ECONFIG, "%s can be written by other users (mode %04o)", path,
                   s.st_mode & 07777);
}

static int check_all(bool team, char *path)
{
    struct rule rule = {.team = team};
    struct stat top;
    int rc = stat("/", &top) < 0 ? ct_fail(CT_EIO, "/: %s", strerror(errno)) : 0;

    rule.root = rc == 0 ? top.st_uid : 0;
    for (char *slash = path; rc == 0 && slash; slash = strchr(slash + 1, '/')) {
        char *end = slash == path ? slash + 1 : slash, c = *end;

        *end = '\0';
        rc = check_folder(&rule, path, false);
        *end = c;
    }
    return rc == 0 ? check_folder(&rule, path, true) : rc;
}

static int make(char path[CT_PATH_ROOM], const char *name, bool team)
{
    char real[CT_PATH_ROOM];
    int rc = ct_file_make_folder_mode(name, team ? 0777 : 0700);

    if (rc < 0)
        return rc;
    if (!realpath(name, real)) /* links may be changed after this */
        return ct_fail(CT_EIO, "%s: %s", name, strerror(errno));
    rc = check_all(team, real);
    if (rc == 0)
        strcpy(path, real);
    return rc;
}

int ct_file_private_folder(char path[CT_PATH_ROOM], const char *name)
{
    return make(path, name, false);
}

int ct_file_team_folder(char path[CT_PATH_ROOM], const char *name)
{
    return make(path, name, true);
}

/* ---- caches ---- */

/* For a user whose own folder others can change. */
static int temporary_folder(char path[CT_PATH_ROOM], const char *name)
{
    static bool warned;
    struct ct_error_kept why = ct_error_keep();
    char folder[CT_PATH_ROOM];
    int rc;

    snprintf(folder, sizeof(folder), "/tmp/ctitan-%u/%s", geteuid(), name);
    rc = ct_file_private_folder(path, folder);
    if (rc < 0)
        return ct_fail(CT_EIO, "%s; %s", why.message, ct_error_message());
    if (!warned)
        ct_warn("caches are in /tmp/ctitan-%u, because %s: take that permission away (chmod go-w) "
                "or set XDG_CACHE_HOME",
                geteuid(), why.message);
    warned = true;
    return 0;
}

int ct_file_cache_folder(char path[CT_PATH_ROOM], const char *name)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = base && *base;
    char folder[CT_PATH_ROOM];
    int rc;

    if (!own && !(home && *home))
        return ct_fail(CT_ENOENT, "neither XDG_CACHE_HOME nor HOME is set");
    if (snprintf(folder, sizeof(folder), "%s%s/ctitan/%s", own ? base : home, own ? "" : "/.cache",
                 name) >= (int)sizeof(folder))
        return ct_fail(CT_EINVAL, "$XDG_CACHE_HOME or $HOME is too long");
    rc = ct_file_private_folder(path, folder);
    return rc == CT_ECONFIG ? temporary_folder(path, name) : rc;
}
