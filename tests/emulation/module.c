/* Resets the stub when fsdpd opens it as a module: no test calls it before. */
#include "cuda_stub.h"

__attribute__((constructor)) static void begin(void)
{
    cuda_stub_reset(1);
}
