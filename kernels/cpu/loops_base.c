/* The loops for any processor. */
#define LOOPS_NAME "base"
#define LOOPS_TABLE cpu_loops_base
#define LOOPS_TARGET
#include "kernels/cpu/loops_body.h"
