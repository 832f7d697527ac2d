/* This host's name, as used in ids and file names, and its processor. */
#ifndef FSDPD_BASE_HOST_H
#define FSDPD_BASE_HOST_H

enum { HOST_NAME_SIZE = 65 };

/* Writes the name to `name` and returns it: "localhost" if the host has none. Blanks, slashes and
 * non-ASCII bytes become "-". */
char *host_name(char name[static HOST_NAME_SIZE]);

/* "Intel(R) Xeon(R) Platinum 8481C CPU, 8 processors": the first one's model, and how many of
 * them this process may use. The caller frees it. */
char *host_processor(void);

#endif
