/* Frozen parameters of another type than f32 on CUDA: the work of base.c, as kernel launches. */
#include "runtime/base.h"
#include "runtime/cuda/device_cuda.h"

static int copy(const struct cuda_launch *launch, void *to, const void *from, size_t bytes)
{
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, launch->stream);
}

static int unpack_run(const struct cuda_launch *launch, const struct base_work *work,
                      const struct slot_run *run)
{
    enum dtype dtype = work->low ? DTYPE_BF16 : DTYPE_F32;
    size_t n = (size_t)run->count;
    const float *kept = work->kept + run->word;
    void *to = work->target + (size_t)run->from * dtype_size(dtype);
    switch (run->packed ? work->unit.base : BASE_F32) {
    case BASE_F32:
        if (work->low) return cuda_f32_to_bf16(launch, n, to, kept);
        return copy(launch, to, kept, n * sizeof *kept);
    case BASE_BF16:
    case BASE_FILE:
        if (work->low) return copy(launch, to, kept, n * sizeof(uint16_t));
        return cuda_bf16_to_f32(launch, n, to, (const uint16_t *)(const void *)kept);
    case BASE_INT8: return cuda_int8_unpack(launch, dtype, n, kept, to);
    case BASE_NF4: return cuda_nf4_unpack(launch, dtype, n, kept, to);
    }
    return cudaErrorInvalidValue;
}

status_t cuda_lane_unpack(struct lane_queue *base, const struct base_work *work)
{
    struct cuda_lane *lane = cuda_lane(base);
    int error = 0;
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    const struct cuda_launch launch = cuda_launch_of(lane);
    for (int r = 0; r < work->unit.run_count && error == 0; r++)
        error = unpack_run(&launch, work, &work->unit.runs[r]);
    return cuda_enqueued(lane, error, "frozen parameters");
}
