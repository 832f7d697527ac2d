/* The stub's first state where it is a module that fsdpd opens: nobody calls it before. */
#include "cuda_stub.h"

__attribute__((constructor)) static void begin(void)
{
    cuda_stub_reset(1);
}
