#ifndef CHAT_FOLDER_H
#define CHAT_FOLDER_H

/* The template in a folder, to be freed, and its path, of CT_PATH_ROOM bytes. CT_ENOENT: it has
   none, or folder is "" or NULL; any other failure: its file is damaged. *text is NULL then. */
int chat_folder_template(const char *folder, char *path, char **text);

#endif
