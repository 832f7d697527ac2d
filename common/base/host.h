/* The name of this host, as it stands in ids and in names of files. */
#ifndef FSDPD_BASE_HOST_H
#define FSDPD_BASE_HOST_H

enum { HOST_NAME_SIZE = 65 };

/* Writes it to `name`, which it returns: "localhost" if the host has none. Blanks, slashes and what
 * is not ASCII become "-". */
char *host_name(char name[static HOST_NAME_SIZE]);

#endif
