/*
 * Attention by cuDNN, if it supports the op (attention_graph.h); otherwise our own kernel runs it,
 * and the device's notes say which op and why. Plans are made when ops are prepared, once per
 * shape: making one compiles a kernel.
 *
 * The deterministic engines for the gradient hold scores in bf16, and dropout has an operand of
 * that size. To bound them, a large batch, or a long sample, is computed in parts, one after the
 * other; nothing is added across parts.
 */
#include "runtime/cuda/device_cuda.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/switches.h"

#ifdef FSDPD_HAVE_CUDNN
#include "runtime/cuda/attention_graph.h"
#endif

static status_t refuse(const char *reason)
{
    return status_new(STATUS_UNIMPLEMENTED, "%s", reason);
}

#ifdef FSDPD_HAVE_DNN_GRAPHS

enum { ALIGNMENT = 256, KEYS = 12, DNN_LEAST_VERSION = 90800 };

/* A plan for a shape, or the reason why there is none. */
struct cuda_attention_plan {
    int64_t key[KEYS];
    cudnnBackendDescriptor_t properties;
    struct dnn_graph graph;
    struct dnn_plan plan;
    struct attention_part part;
    char *refusal; /* NULL: none */
    enum status_code refused;
    struct cuda_attention_plan *next;
};

struct cudnn_attention {
    struct cuda_prepared base;
    struct cuda_device *device;
    struct attention_shape shape;
    const struct cuda_attention_plan *plan; /* the device's */
};

/* Of a part's probabilities. */
static int64_t count_of(const struct cudnn_attention *attention)
{
    const struct attention_shape *shape = &attention->shape;
    struct attention_part part = attention->plan->part;
    return part.samples * part.kv_heads * shape->group * shape->time * shape->time;
}

/* The workspace: the engine's; with dropout, which of a part's probabilities are kept; with a mask,
 * which keys of all samples are hidden. */
struct workspace {
    uint64_t kept, hiding, bytes; /* offsets, and the whole */
};

static struct workspace workspace_of(const struct cudnn_attention *attention)
{
    const struct attention_shape *shape = &attention->shape;
    struct workspace w = {.bytes = (uint64_t)attention->plan->plan.workspace_bytes};
    if (shape->dropped) {
        w.kept = round_up(w.bytes, ALIGNMENT);
        w.bytes = w.kept + 2 * (uint64_t)count_of(attention);
    }
    if (shape->masked) {
        w.hiding = round_up(w.bytes, ALIGNMENT);
        w.bytes = w.hiding + 2 * (uint64_t)(shape->batch * attention_hiding_row(shape));
    }
    return w;
}

static int64_t scores_bytes(void)
{
    const long long bytes = switch_number("FSDPD_CUDA_ATTENTION_SCORES");
    return bytes > 0 ? bytes : ATTENTION_SCORES_BYTES;
}

static status_t make_plan(struct cuda_attention_plan *made, const struct cuda_device *device,
                          const struct attention_shape *shape, bool statistics)
{
    made->part = attention_part_of(shape, scores_bytes());
    if (shape->backward) attention_graph_backward(&made->graph, shape, made->part);
    else attention_graph_forward(&made->graph, shape, made->part, statistics);
    TRY(dnn_properties_new(device->number, NULL, &made->properties));
    return dnn_graph_finish(&made->graph, made->properties,
                            attention_most_workspace(shape, made->part), &made->plan);
}

static status_t find_plan(struct cuda_device *device, const struct attention_shape *shape,
                          bool statistics, const struct cuda_attention_plan **found)
{
    double scale = shape->scale;
    int64_t key[KEYS] = {shape->batch,    shape->time,    shape->heads,  shape->kv_heads,
                         shape->head_dim, shape->packed,  shape->causal, shape->backward,
                         statistics,      shape->dropped, shape->masked};
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
        plan->refused = status_code(status);
        status_free(status);
    }
    if (plan->refusal != NULL && plan->refused != STATUS_UNIMPLEMENTED)
        return status_new(plan->refused,
                          "cuDNN made no plan (FSDPD_CUDA_ATTENTION=own does without it): %s",
                          plan->refusal);
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

/* Of a part that begins at this sample and head: `row` bytes to a time, `head` bytes to a head. */
static void add_rows(struct attention_operands *operands, enum attention_operand id,
                     const void *address, int64_t first, int64_t row, int64_t head)
{
    add(operands, id, (const char *)address + first * row + head);
}

static status_t run_part(const struct cudnn_attention *attention, const struct attention_places *p,
                         const void *y, const void *lse, int64_t sample, int64_t kv_head,
                         void *workspace)
{
    const struct attention_shape *shape = &attention->shape;
    double left = 1 - attention->base.op.desc.attrs.attention.p;
    float scale = (float)shape->scale, lowest = -FLT_MAX, one = (float)left;
    float factor = (float)(1 / left);
    int64_t first = sample * shape->time, width = 2 * shape->head_dim,
            head = kv_head * shape->group;
    char *scratch = workspace;
    struct workspace w = workspace_of(attention);
    int64_t q_row = 2 * p->q_row, kv_row = 2 * p->kv_row, y_row = width * shape->heads;
    struct attention_operands o = {.count = 0};
    add(&o, ATTENTION_SCALE, &scale);
    if (shape->causal) add(&o, ATTENTION_LOWEST, &lowest);
    if (shape->dropped) {
        add(&o, ATTENTION_KEPT, scratch + w.kept);
        add(&o, ATTENTION_FACTOR, &factor);
    }
    if (shape->masked)
        add_rows(&o, ATTENTION_HIDING, scratch + w.hiding, sample, 2 * attention_hiding_row(shape),
                 0);
    add_rows(&o, ATTENTION_Q, p->q, first, q_row, head * width);
    add_rows(&o, ATTENTION_K, p->k, first, kv_row, kv_head * width);
    add_rows(&o, ATTENTION_V, p->v, first, kv_row, kv_head * width);
    add_rows(&o, ATTENTION_Y, y, first, y_row, head * width);
    if (lse != NULL)
        add(&o, ATTENTION_LSE, (const float *)lse + (sample * shape->heads + head) * shape->time);
    if (shape->backward) {
        add(&o, ATTENTION_ONE, &one);
        add_rows(&o, ATTENTION_DY, p->dy, first, y_row, head * width);
        add_rows(&o, ATTENTION_DQ, p->dq, first, q_row, head * width);
        add_rows(&o, ATTENTION_DK, p->dk, first, kv_row, kv_head * width);
        add_rows(&o, ATTENTION_DV, p->dv, first, kv_row, kv_head * width);
    }
    return dnn_plan_run(&attention->plan->plan, attention->device->dnn, o.count, o.ids, o.addresses,
                        workspace);
}

/* Which probabilities of a part dropout keeps: drawn again for the gradient. */
static status_t draw(const struct cudnn_attention *attention, struct cuda_lane *lane,
                     const struct kernel_call *call, int64_t sample, int64_t kv_head)
{
    const struct attention_shape *shape = &attention->shape;
    struct cuda_launch launch = cuda_launch_of(lane);
    launch.live = cuda_take_live(lane, call);
    uint64_t start = attention_row_index(shape, sample, kv_head * shape->group, 0);
    int error = cuda_attention_kept(&launch, &attention->base.op.desc, call, (int64_t)start,
                                    count_of(attention),
                                    (char *)call->workspace + workspace_of(attention).kept);
    return cuda_status((cudaError_t)error, "a kernel's launch");
}

static status_t hide(const struct cudnn_attention *attention, struct cuda_lane *lane,
                     const struct kernel_call *call, const uint8_t *mask)
{
    const struct attention_shape *shape = &attention->shape;
    struct cuda_launch launch = cuda_launch_of(lane);
    int error =
        cuda_attention_hide(&launch, mask, shape->batch, shape->time, attention_hiding_row(shape),
                            (char *)call->workspace + workspace_of(attention).hiding);
    return cuda_status((cudaError_t)error, "a kernel's launch");
}

/* What cuDNN computes of rows that see no key is a mean of hidden values. */
static status_t clear(const struct cudnn_attention *attention, struct cuda_lane *lane,
                      const struct kernel_call *call)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = cuda_attention_clear(&launch, &attention->base.op.desc, call);
    return cuda_status((cudaError_t)error, "a kernel's launch");
}

static status_t run(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call)
{
    struct cudnn_attention *attention = (struct cudnn_attention *)prepared;
    const struct attention_shape *shape = &attention->shape;
    struct attention_part part = attention->plan->part;
    struct attention_places p = attention_places_of(shape, call);
    const void *y = shape->backward ? p.y : call->outputs[0];
    const void *lse = shape->backward ? p.lse : call->outputs[1];
    TRY(cuda_dnn_open(attention->device));
    TRY_DNN(cudnnSetStream, attention->device->dnn, lane->stream);
    if (shape->masked) TRY(hide(attention, lane, call, p.mask));
    for (int64_t sample = 0; sample < shape->batch; sample += part.samples)
        for (int64_t head = 0; head < shape->kv_heads; head += part.kv_heads) {
            if (shape->dropped) TRY(draw(attention, lane, call, sample, head));
            TRY(run_part(attention, &p, y, lse, sample, head, call->workspace));
        }
    if (shape->masked && !shape->backward) TRY(clear(attention, lane, call));
    return NULL;
}

/* ---- ops that cuDNN cannot run ---- */

static status_t check(const struct op_desc *desc, const struct attention_shape *shape)
{
    if (cuda_is_switched("FSDPD_CUDA_ATTENTION", "own"))
        return refuse("FSDPD_CUDA_ATTENTION is \"own\"");
    if (cudnnGetVersion() < DNN_LEAST_VERSION) return refuse("cuDNN is older than 9.8");
    if (!shape->bf16) return refuse("cuDNN's attention needs a 16-bit type");
    if (shape->biased) return refuse("scores have a bias");
    if (desc->input_present[shape->backward ? 8 : 5]) return refuse("rows hold several documents");
    if (shape->window > 0) return refuse("rows see a window of keys");
    if (shape->softcap > 0) return refuse("scores are capped");
    if (shape->alibi > 0) return refuse("scores have ALiBi");
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
    TRY(cuda_dnn_expect(device));
    TRY(find_plan(device, &shape, !shape.backward && desc->output_present[1], &plan));
    struct cudnn_attention *attention = mem_alloc(sizeof *attention);
    attention->base.op.desc = *desc;
    attention->base.run = run;
    attention->device = device;
    attention->shape = shape;
    attention->plan = plan;
    attention->base.workspace_bytes = workspace_of(attention).bytes;
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
