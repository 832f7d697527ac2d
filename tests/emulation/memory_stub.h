/* Memory of the stub of the CUDA runtime, for its streams; the other stubs' part is in
 * cuda_stub.h. */
#ifndef FSDPD_TESTS_MEMORY_STUB_H
#define FSDPD_TESTS_MEMORY_STUB_H

#include <stddef.h>

/* While one of these exists, this thread is the device. */
struct stub_as_device {
    stub_as_device()
    {
        change(1);
    }
    ~stub_as_device()
    {
        change(-1);
    }

  private:
    static void change(int by);
};

bool stub_is_pinned(const void *memory, size_t bytes);
void stub_forget_pinned_peak();

/* Whether nothing runs and memory takes no room (cuda_stub_idle). */
bool stub_is_idle();

#endif
