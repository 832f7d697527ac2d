/* The resident set; see resident.h. Linux keeps the peak (proc(5)). */
#include "base/resident.h"

#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

void resident_reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "5", 1) != 1) { /* the peak stays that of the process's life */
    }
    close(fd);
}

uint64_t resident_peak_bytes(void)
{
    uint64_t kibibytes = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %" SCNu64, &kibibytes) == 1) break;
    fclose(file);
    return kibibytes * 1024;
}

void resident_return_freed(void)
{
    /* Fixed, these do not grow with what is freed. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
}
