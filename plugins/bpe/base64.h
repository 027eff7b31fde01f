#ifndef BASE64_H
#define BASE64_H

/* The value of a digit; -1: it is none. */
int base64_digit(char c);

/* Decode base64 with its padding. *end gets what follows. Returns the number of bytes, or -1: there
   are more than room. */
int base64_decode(const char *text, const char **end, char *bytes, int room);

#endif
