#ifndef CHAT_FOLDER_H
#define CHAT_FOLDER_H

/* The template in a folder, to be freed, and its path, of CT_PATH_ROOM bytes; NULL: none. */
char *chat_folder_template(const char *folder, char *path);

#endif
