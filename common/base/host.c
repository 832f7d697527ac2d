/* The name of this host; see host.h. */
#include "base/host.h"

#include <string.h>
#include <unistd.h>

char *host_name(char name[static HOST_NAME_SIZE])
{
    memset(name, 0, HOST_NAME_SIZE);
    if (gethostname(name, HOST_NAME_SIZE - 1) != 0 || name[0] == '\0') strcpy(name, "localhost");
    for (unsigned char *c = (unsigned char *)name; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == '/') *c = '-';
    return name;
}
