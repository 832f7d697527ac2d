/*
 * Attention by cuDNN, if it supports the op (attention_graph.h); otherwise our own kernel runs it,
 * and the device's notes say which op and why. Plans are made when ops are prepared, once per
 * shape: making one compiles a kernel.
 *
 * The deterministic engines for the gradient hold the scores of a batch in bf16. A large batch is
 * computed in slices, one after the other, to bound them; nothing is added across slices.
 */
#include "runtime/cuda/device_cuda.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#ifdef FSDPD_HAVE_CUDNN
#include "runtime/cuda/attention_graph.h"
#endif

static status_t refuse(const char *reason)
{
    return status_new(STATUS_UNIMPLEMENTED, "%s", reason);
}

#ifdef FSDPD_HAVE_DNN_GRAPHS

/* Limits: for scores in bf16, rounded up to whole tiles; and for an engine's further scratch
 * memory. */
#define SCORES_BYTES ((int64_t)512 << 20)
#define MOST_WORKSPACE ((int64_t)1 << 30)
enum { TILE = 64, KEYS = 10, DNN_LEAST_VERSION = 90800 };

/* A plan for a shape, or the reason why there is none. */
struct cuda_attention_plan {
    int64_t key[KEYS];
    cudnnBackendDescriptor_t properties;
    struct dnn_graph graph;
    struct dnn_plan plan;
    int64_t slice; /* number of samples it handles */
    char *refusal; /* NULL: none */
    struct cuda_attention_plan *next;
};

struct cudnn_attention {
    struct cuda_prepared base;
    cudnnHandle_t dnn;
    struct attention_shape shape;
    const struct cuda_attention_plan *plan; /* the device's */
};

static int64_t scores_bytes(void)
{
    const char *given = getenv("FSDPD_CUDA_ATTENTION_SCORES");
    long long bytes = given != NULL ? atoll(given) : 0;
    return bytes > 0 ? bytes : SCORES_BYTES;
}

/* The largest slice that divides the batch and whose scores fit; the smallest if none fit. A slice
 * begins at a multiple of cuDNN's 16-byte vectors: this concerns the log-sum-exp, as everything
 * else is rows of heads. */
static int64_t slice_of(const struct attention_shape *shape)
{
    int64_t rows = (shape->time + TILE - 1) / TILE * TILE, least = shape->batch;
    for (int64_t slice = shape->batch; slice > 0 && shape->backward; slice--) {
        bool fits = 2 * slice * shape->heads * rows * rows <= scores_bytes();
        if (shape->batch % slice != 0) continue;
        if (slice < shape->batch && slice * shape->heads * shape->time % 4 != 0) continue;
        least = slice;
        if (fits) break;
    }
    return least;
}

static status_t make_plan(struct cuda_attention_plan *made, const struct cuda_device *device,
                          const struct attention_shape *shape, bool statistics)
{
    struct attention_shape slice = *shape;
    slice.batch = made->slice = slice_of(shape);
    if (shape->backward) attention_graph_backward(&made->graph, &slice);
    else attention_graph_forward(&made->graph, &slice, statistics);
    TRY(dnn_properties_new(device->number, NULL, &made->properties));
    return dnn_graph_finish(&made->graph, made->properties, MOST_WORKSPACE, &made->plan);
}

static status_t find_plan(struct cuda_device *device, const struct attention_shape *shape,
                          bool statistics, const struct cuda_attention_plan **found)
{
    double scale = shape->scale;
    int64_t key[KEYS] = {shape->batch,    shape->time,     shape->heads,
                         shape->kv_heads, shape->head_dim, shape->packed,
                         shape->causal,   shape->backward, statistics};
    memcpy(&key[KEYS - 1], &scale, sizeof scale);
    struct cuda_attention_plan *plan = device->attention_plans;
    while (plan != NULL && memcmp(plan->key, key, sizeof key) != 0) plan = plan->next;
    if (plan == NULL) {
        plan = mem_alloc(sizeof *plan);
        memcpy(plan->key, key, sizeof key);
        plan->next = device->attention_plans;
        device->attention_plans = plan;
        status_t status = make_plan(plan, device, shape, statistics);
        if (status != NULL) plan->refusal = mem_printf("%s", status_message(status));
        status_free(status);
    }
    if (plan->refusal != NULL) return refuse(plan->refusal);
    *found = plan;
    return NULL;
}

void cuda_attention_forget(struct cuda_device *device)
{
    while (device->attention_plans != NULL) {
        struct cuda_attention_plan *plan = device->attention_plans;
        device->attention_plans = plan->next;
        dnn_graph_free(&plan->graph);
        if (plan->properties != NULL) cudnnBackendDestroyDescriptor(plan->properties);
        free(plan->refusal);
        free(plan);
    }
}

/* ---- running ---- */

struct attention_operands {
    int64_t ids[ATTENTION_ONE];
    void *addresses[ATTENTION_ONE];
    int count;
};

static void add(struct attention_operands *operands, enum attention_operand id, const void *address)
{
    operands->ids[operands->count] = id;
    operands->addresses[operands->count++] = (void *)address;
}

/* `bytes` to a sample. */
static void add_slice(struct attention_operands *operands, enum attention_operand id,
                      const void *address, int64_t sample, int64_t bytes)
{
    add(operands, id, (const char *)address + sample * bytes);
}

static status_t run(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call)
{
    struct cudnn_attention *attention = (struct cudnn_attention *)prepared;
    const struct attention_shape *shape = &attention->shape;
    struct attention_places p = attention_places_of(shape, call);
    float scale = (float)shape->scale, lowest = -FLT_MAX, one = 1;
    int64_t q_bytes = 2 * shape->time * p.q_row, kv_bytes = 2 * shape->time * p.kv_row;
    int64_t y_bytes = 2 * shape->time * shape->heads * shape->head_dim;
    int64_t lse_bytes = 4 * shape->time * shape->heads;
    const void *y = shape->backward ? p.y : call->outputs[0];
    const void *lse = shape->backward ? p.lse : call->outputs[1];
    TRY_DNN(cudnnSetStream, attention->dnn, lane->stream);
    for (int64_t at = 0; at < shape->batch; at += attention->plan->slice) {
        struct attention_operands o = {.count = 0};
        add(&o, ATTENTION_SCALE, &scale);
        if (shape->causal) add(&o, ATTENTION_LOWEST, &lowest);
        add_slice(&o, ATTENTION_Q, p.q, at, q_bytes);
        add_slice(&o, ATTENTION_K, p.k, at, kv_bytes);
        add_slice(&o, ATTENTION_V, p.v, at, kv_bytes);
        add_slice(&o, ATTENTION_Y, y, at, y_bytes);
        if (lse != NULL) add_slice(&o, ATTENTION_LSE, lse, at, lse_bytes);
        if (shape->backward) {
            add(&o, ATTENTION_ONE, &one);
            add_slice(&o, ATTENTION_DY, p.dy, at, y_bytes);
            add_slice(&o, ATTENTION_DQ, p.dq, at, q_bytes);
            add_slice(&o, ATTENTION_DK, p.dk, at, kv_bytes);
            add_slice(&o, ATTENTION_DV, p.dv, at, kv_bytes);
        }
        TRY(dnn_plan_run(&attention->plan->plan, attention->dnn, o.count, o.ids, o.addresses,
                         call->workspace));
    }
    return NULL;
}

/* ---- ops that cuDNN cannot run ---- */

static status_t check(const struct op_desc *desc, const struct attention_shape *shape)
{
    if (cuda_is_switched("FSDPD_CUDA_ATTENTION", "own"))
        return refuse("FSDPD_CUDA_ATTENTION is \"own\"");
    if (cudnnGetVersion() < DNN_LEAST_VERSION) return refuse("cuDNN is older than 9.8");
    if (!shape->bf16) return refuse("cuDNN's attention needs a 16-bit type");
    if (desc->attrs.attention.p > 0) return refuse("dropout uses fsdpd's own random numbers");
    if (desc->input_present[shape->backward ? 6 : 3]) return refuse("keys have a mask");
    if (desc->input_present[shape->backward ? 7 : 4]) return refuse("rows hold several documents");
    if (shape->window > 0) return refuse("rows see a window of keys");
    if (shape->softcap > 0) return refuse("scores are capped");
    if (shape->head_dim % 8 != 0) return refuse("the width of heads is not a multiple of 8");
    for (int i = 0; i < desc->output_count; i++)
        if (desc->accumulate[i]) return refuse("it adds to existing values");
    return NULL;
}

status_t cuda_attention_prepare(struct cuda_device *device, const struct op_desc *desc,
                                struct cuda_prepared **prepared)
{
    struct attention_shape shape = attention_shape_of(desc);
    const struct cuda_attention_plan *plan = NULL;
    TRY(check(desc, &shape));
    TRY(cuda_dnn_open(device));
    TRY(find_plan(device, &shape, !shape.backward && desc->output_present[1], &plan));
    struct cudnn_attention *attention = mem_alloc(sizeof *attention);
    attention->base.op.desc = *desc;
    attention->base.run = run;
    attention->base.workspace_bytes = (uint64_t)plan->plan.workspace_bytes;
    attention->dnn = device->dnn;
    attention->shape = shape;
    attention->plan = plan;
    cuda_note(device, "%s of %lld heads of %lld is computed by cuDNN (engine %lld)",
              op_info_get(desc->kind)->name, (long long)shape.heads, (long long)shape.head_dim,
              (long long)plan->plan.engine);
    *prepared = &attention->base;
    return NULL;
}

#else

status_t cuda_attention_prepare(struct cuda_device *device, const struct op_desc *desc,
                                struct cuda_prepared **prepared)
{
    (void)device, (void)desc, (void)prepared;
    return refuse("this backend was built without cuDNN 9.8 or later");
}

void cuda_attention_forget(struct cuda_device *device)
{
    (void)device;
}

#endif
