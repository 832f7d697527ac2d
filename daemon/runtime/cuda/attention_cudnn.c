/*
 * Attention by cuDNN, if it supports the op (attention_graph.h); otherwise our own kernel runs it,
 * and the device's notes say which op and why.
 *
 * The deterministic engines for the gradient hold scores in bf16, and dropout has an operand of
 * that size. To bound them, a large batch, or a long sample, is computed in parts, one after the
 * other; nothing is added across parts.
 */
#include "runtime/cuda/attention_graph.h"

#include <float.h>

#include "base/mem.h"
#include "base/switches.h"

enum { ALIGNMENT = 256 };

struct cudnn_attention {
    struct dnn_op base;
    struct attention_shape shape;
    struct attention_part part;
};

/* Of a part's probabilities. */
static int64_t count_of(const struct cudnn_attention *attention)
{
    const struct attention_shape *shape = &attention->shape;
    return attention->part.samples * attention->part.kv_heads * shape->group * shape->time *
           shape->time;
}

/* The workspace: the engine's; with dropout, which of a part's probabilities are kept; with a mask,
 * which keys of all samples are hidden. */
struct workspace {
    uint64_t kept, hiding, bytes; /* offsets, and the whole */
};

static struct workspace workspace_of(const struct cudnn_attention *attention)
{
    const struct attention_shape *shape = &attention->shape;
    struct workspace w = {.bytes = (uint64_t)attention->base.planned->plan.workspace_bytes};
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

static struct attention_part part_of(const struct attention_shape *shape)
{
    const long long bytes = switch_number("FSDPD_CUDA_ATTENTION_SCORES");
    return attention_part_of(shape, bytes > 0 ? bytes : ATTENTION_SCORES_BYTES);
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

static status_t run_part(const struct cudnn_attention *attention, struct cuda_lane *lane,
                         const struct attention_places *p, const void *y, const void *lse,
                         int64_t sample, int64_t kv_head, void *workspace)
{
    const struct attention_shape *shape = &attention->shape;
    double left = 1 - attention->base.base.op.desc.attrs.attention.p;
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
    return dnn_op_run(&attention->base, lane, o.count, o.ids, o.addresses, workspace);
}

/* Which probabilities of a part dropout keeps: drawn again for the gradient. */
static status_t draw(const struct cudnn_attention *attention, struct cuda_lane *lane,
                     const struct kernel_call *call, int64_t sample, int64_t kv_head)
{
    const struct attention_shape *shape = &attention->shape;
    struct cuda_launch launch = cuda_launch_of(lane);
    launch.live = cuda_take_live(lane, call);
    uint64_t start = attention_row_index(shape, sample, kv_head * shape->group, 0);
    int error = cuda_attention_kept(&launch, &attention->base.base.op.desc, call, (int64_t)start,
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
    int error = cuda_attention_clear(&launch, &attention->base.base.op.desc, call);
    return cuda_status((cudaError_t)error, "a kernel's launch");
}

static status_t run(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call)
{
    struct cudnn_attention *attention = (struct cudnn_attention *)prepared;
    const struct attention_shape *shape = &attention->shape;
    struct attention_part part = attention->part;
    struct attention_places p = attention_places_of(shape, call);
    const void *y = shape->backward ? p.y : call->outputs[0];
    const void *lse = shape->backward ? p.lse : call->outputs[1];
    if (shape->masked) TRY(hide(attention, lane, call, p.mask));
    for (int64_t sample = 0; sample < shape->batch; sample += part.samples)
        for (int64_t head = 0; head < shape->kv_heads; head += part.kv_heads) {
            if (shape->dropped) TRY(draw(attention, lane, call, sample, head));
            TRY(run_part(attention, lane, &p, y, lse, sample, head, call->workspace));
        }
    if (shape->masked && !shape->backward) TRY(clear(attention, lane, call));
    return NULL;
}

/* ---- preparing ---- */

static const char *refuses(const struct op_desc *desc)
{
    const struct attention_shape shape = attention_shape_of(desc);
    if (!shape.bf16) return "cuDNN's attention needs a 16-bit type";
    if (shape.biased) return "scores have a bias";
    if (desc->input_present[shape.backward ? 8 : 5]) return "rows hold several documents";
    if (shape.window > 0) return "rows see a window of keys";
    if (shape.softcap > 0) return "scores are capped";
    if (shape.alibi > 0) return "scores have ALiBi";
    if (shape.head_dim % 8 != 0) return "the width of heads is not a multiple of 8";
    for (int i = 0; i < desc->output_count; i++)
        if (desc->accumulate[i]) return "it adds to existing values";
    return NULL;
}

static int64_t make_graph(struct dnn_graph *graph, const struct op_desc *desc)
{
    const struct attention_shape shape = attention_shape_of(desc);
    const struct attention_part part = part_of(&shape);
    if (shape.backward) attention_graph_backward(graph, &shape, part);
    else attention_graph_forward(graph, &shape, part, desc->output_present[1]);
    return attention_most_workspace(&shape, part);
}

static status_t prepare(struct dnn_op *op)
{
    struct cudnn_attention *attention = (struct cudnn_attention *)op;
    const struct op_desc *desc = &op->base.op.desc;
    attention->shape = attention_shape_of(desc);
    attention->part = part_of(&attention->shape);
    op->base.run = run;
    op->base.workspace_bytes = workspace_of(attention).bytes;
    cuda_note(op->device, "%s of %lld heads of %lld is computed by cuDNN (engine %lld)",
              op_info_get(desc->kind)->name, (long long)attention->shape.heads,
              (long long)attention->shape.head_dim, (long long)op->planned->plan.engine);
    return NULL;
}

const struct dnn_kind dnn_attention = {.variable = "FSDPD_CUDA_ATTENTION",
                                       .refuses = refuses,
                                       .make_graph = make_graph,
                                       .bytes = sizeof(struct cudnn_attention),
                                       .prepare = prepare};
