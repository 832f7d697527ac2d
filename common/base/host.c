/* The name and the processor of this host; see host.h. */
#include "base/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host_limits.h"
#include "base/mem.h"

char *host_name(char name[static HOST_NAME_SIZE])
{
    memset(name, 0, HOST_NAME_SIZE);
    if (gethostname(name, HOST_NAME_SIZE - 1) != 0 || name[0] == '\0') strcpy(name, "localhost");
    for (unsigned char *c = (unsigned char *)name; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == '/') *c = '-';
    return name;
}

char *host_processor(void)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256], *name = NULL;
    while (file != NULL && name == NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon == NULL) continue;
        colon[strcspn(colon, "\n")] = '\0';
        name = mem_strdup(colon + 1 + strspn(colon + 1, " "));
    }
    if (file != NULL) fclose(file);
    char *text = mem_printf("%s, %d processors", name != NULL ? name : "unknown processor",
                            host_processors());
    free(name);
    return text;
}
