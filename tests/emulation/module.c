/* Resets the stub when fsdpd opens it as a module: no test calls it before. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_stub.h"

/* The first process that finds the file which FSDPD_STUB_FAIL names, "cudaGraphLaunch 2 700", takes it: that
 * call of its fails so. */
static void plan_failure(void)
{
    static char call[64];
    int number = 0, error = 0;
    const char *path = getenv("FSDPD_STUB_FAIL");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    if (file == NULL) return;
    if (fscanf(file, "%63s %d %d", call, &number, &error) == 3 && unlink(path) == 0)
        cuda_stub_fail(call, number, error);
    fclose(file);
}

__attribute__((constructor)) static void begin(void)
{
    cuda_stub_reset(1);
    plan_failure();
}
