/* See cuda_runs.h. */
#include "cuda_runs.h"

#include <stdio.h>

#include "../emulation/cuda_stub.h"
#include "base/tree.h"
#include "memory_store.h"
#include "runtime/backend.h"
#include "tests/testing.h"

char cuda_runs_folder[96];
bool cuda_runs_staged;

status_t cuda_runs_join(struct device *device, int rank, int world, struct comm **comm)
{
    const struct rendezvous rendezvous = memory_store();
    return backend_join(device, rank, world, "127.0.0.1", "train", &rendezvous, 20000,
                        cuda_runs_staged, true, NULL, comm);
}

void cuda_runs_set_up(void)
{
    const struct backend_table *table = NULL;
    cuda_runs_staged = false;
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_reset(7);
    snprintf(cuda_runs_folder, sizeof cuda_runs_folder, "%s/checkpoints", group_data);
}

void cuda_runs_tear_down(void)
{
    memory_store_reset();
    ck_assert_ptr_null(tree_remove(cuda_runs_folder));
}

void cuda_runs_move(struct group *group)
{
    cuda_stub_hold(STUB_HOLD_SHORTLY);
    group->device = "cuda:0";
    group->join = cuda_runs_join;
    memory_store_reset();
}
