/*
 * Losses of every element, smoothed cross-entropy, and ops on images: the CPU library against the
 * reference over odd random shapes, in f32 and bf16. Every run is also checked for stray writes,
 * unwritten results, and the same bits a second time.
 */
#include "kernel_fixture.h"
#include "tests/testing.h"

enum { RUNS = RACES ? 2 : ON_CUDA ? 8 : 50 };

static struct random rng;
static int64_t most_channels = 12; /* of batch norms */

static const enum op_kind kinds[] = {OP_TALLY,
                                     OP_ELEMENT_LOSS,
                                     OP_ELEMENT_LOSS_BACKWARD,
                                     OP_CROSS_ENTROPY,
                                     OP_CROSS_ENTROPY_BACKWARD,
                                     OP_AVG_POOL2D,
                                     OP_AVG_POOL2D_BACKWARD,
                                     OP_GROUP_NORM,
                                     OP_GROUP_NORM_BACKWARD,
                                     OP_TRANSPOSE,
                                     OP_SLICE,
                                     OP_SLICE_BACKWARD,
                                     OP_CONCAT,
                                     OP_MEAN,
                                     OP_MEAN_BACKWARD,
                                     OP_BATCH_NORM,
                                     OP_BATCH_NORM_BACKWARD,
                                     OP_BATCH_NORM_RUNNING,
                                     OP_BATCH_MOMENTS,
                                     OP_BATCH_NORM_SUMS,
                                     OP_COUNTED,
                                     OP_CONTRASTIVE_LOSS,
                                     OP_CONTRASTIVE_LOSS_BACKWARD,
                                     OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS,
                                     OP_SEQUENCE_LOG_PROBS,
                                     OP_SEQUENCE_LOG_PROBS_BACKWARD,
                                     OP_PREFERENCE_LOSS,
                                     OP_RECURRENT,
                                     OP_RECURRENT_BACKWARD};
enum { KIND_COUNT = COUNT_OF(kinds) };

static int64_t between(int64_t low, int64_t high)
{
    return random_between(&rng, low, high);
}

/* Some of them 0, or none at all. */
static struct op_weights random_weights(int64_t count)
{
    static float values[OP_MAX_WEIGHTS];
    if (random_bool(&rng)) return (struct op_weights){NULL, 0};
    for (int64_t i = 0; i < count; i++) values[i] = (float)((i + 1) % 4) * 0.75f;
    return (struct op_weights){values, count};
}

static void random_element_loss(struct op_desc *desc)
{
    struct tensor_type x =
        type_of(DTYPE_F32, (int)between(1, 3), between(1, 9), between(1, 400), between(1, 20), 0);
    desc->attrs.element_loss.reduction = random_bool(&rng) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc->attrs.element_loss.difference =
        (enum op_difference)between(DIFFERENCE_SQUARED, DIFFERENCE_DIVERGENCE);
    desc->attrs.element_loss.delta = random_bool(&rng) ? 1 : 0.3;
    desc->attrs.element_loss.alpha = random_bool(&rng) ? -1 : 0.3;
    desc->attrs.element_loss.weight = random_bool(&rng) ? 1 : 0.25;
    desc->attrs.element_loss.share = random_bool(&rng) ? 0 : 0.7;
    if (desc->attrs.element_loss.difference == DIFFERENCE_FOCAL) /* of any labels */
        desc->attrs.element_loss.delta = random_bool(&rng) ? 1 : 2;
    if (desc->attrs.element_loss.difference == DIFFERENCE_BINARY_CROSS_ENTROPY)
        desc->attrs.element_loss.positive = random_weights(x.dims[x.dim_count - 1]);
    desc->attrs.element_loss.computed = between(0, 3) == 0;
    desc->inputs[0] = desc->inputs[1] = desc->outputs[0] = x;
    desc->inputs[2] =
        type_of(DTYPE_I32, (int)between(1, x.dim_count), x.dims[0], x.dims[1], x.dims[2], 0);
    desc->input_present[2] = random_bool(&rng);
    if (desc->kind == OP_ELEMENT_LOSS) desc->outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
}

static void random_tally(struct op_desc *desc)
{
    struct tensor_type x =
        type_of(DTYPE_F32, (int)between(2, 3), between(1, 40), between(1, 9), between(1, 20), 0);
    struct tensor_type rows = x;
    rows.dtype = DTYPE_I32;
    rows.dim_count--;
    desc->attrs.tally.kind = (enum op_tally)between(TALLY_CLASSES, TALLY_ROWS);
    bool all = desc->attrs.tally.kind == TALLY_ROWS;
    desc->input_present[1] = desc->attrs.tally.kind == TALLY_CLASSES;
    desc->input_present[2] = !desc->input_present[1] && !all;
    desc->inputs[0] = desc->inputs[2] = x;
    desc->inputs[1] = rows;
    desc->attrs.tally.ranks = desc->attrs.tally.kind >= TALLY_NUMBERS ? between(1, 3) : 1;
    int64_t columns = all ? tensor_element_count(&x) : x.dims[x.dim_count - 1];
    desc->outputs[0] = type_of(DTYPE_F32, 2, op_tally_rows(&desc->attrs), columns, 0, 0);
}

static void random_cross_entropy(struct op_desc *desc)
{
    struct tensor_type x = type_of(DTYPE_F32, 2, between(1, 40), between(1, 90), 0, 0);
    desc->attrs.loss.reduction = random_bool(&rng) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc->attrs.loss.label_smoothing = random_bool(&rng) ? 0.1 : random_bool(&rng) ? 0 : 0.7;
    if (desc->attrs.loss.label_smoothing == 0) desc->attrs.loss.gamma = random_bool(&rng) ? 1 : 2;
    desc->attrs.loss.weights = random_weights(x.dims[1]);
    desc->inputs[0] = desc->outputs[0] = desc->outputs[1] = x;
    desc->inputs[1] = type_of(DTYPE_I32, 1, x.dims[0], 0, 0, 0);
    if (desc->kind == OP_CROSS_ENTROPY) desc->outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
}

static struct tensor_type random_tensor(int64_t least)
{
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 16, 17, 33};
    struct tensor_type type = {.dtype = DTYPE_F32, .dim_count = (int)between(least, 5)};
    for (int i = 0; i < type.dim_count; i++)
        type.dims[i] = random_of(&rng, sizes, type.dim_count > 3 ? 5 : 8);
    return type;
}

static struct tensor_type without(const struct tensor_type *type, int64_t dim)
{
    struct tensor_type made = *type;
    made.dim_count--;
    for (int64_t i = dim; i < made.dim_count; i++) made.dims[i] = type->dims[i + 1];
    return made;
}

static void random_move(struct op_desc *desc)
{
    struct tensor_type whole = random_tensor(desc->kind == OP_MEAN ? 1 : 2), part = whole;
    int64_t dim = between(0, whole.dim_count - 1);
    switch (desc->kind) {
    case OP_TRANSPOSE:
        desc->attrs.transpose.dims[0] = between(0, whole.dim_count - 2);
        desc->attrs.transpose.dims[1] =
            between(desc->attrs.transpose.dims[0] + 1, whole.dim_count - 1);
        part.dims[desc->attrs.transpose.dims[0]] = whole.dims[desc->attrs.transpose.dims[1]];
        part.dims[desc->attrs.transpose.dims[1]] = whole.dims[desc->attrs.transpose.dims[0]];
        break;
    case OP_CONCAT:
        part.dims[dim] = between(1, 9);
        desc->inputs[0] = whole;
        desc->inputs[1] = part;
        desc->attrs.concat.dim = dim;
        desc->outputs[0] = whole;
        desc->outputs[0].dims[dim] += part.dims[dim];
        for (int64_t gone = between(0, dim), i = between(0, 1); gone > 0; gone--)
            desc->inputs[i] = without(&desc->inputs[i], 0);
        return;
    case OP_MEAN:
    case OP_MEAN_BACKWARD:
        desc->attrs.mean.dim = dim;
        desc->input_present[1] = random_bool(&rng);
        desc->attrs.mean.last = desc->input_present[1] && random_bool(&rng);
        desc->attrs.mean.sum = !desc->input_present[1] && random_bool(&rng);
        desc->inputs[1] = tensor_type_make(DTYPE_U8, (int)dim + 1, whole.dims);
        part = without(&whole, dim);
        break;
    default:
        desc->attrs.slice.dim = dim;
        desc->attrs.slice.start = between(0, whole.dims[dim] - 1);
        part.dims[dim] = between(1, whole.dims[dim] - desc->attrs.slice.start);
        if (part.dims[dim] == 1 && random_bool(&rng)) part = without(&part, dim);
        if (desc->kind == OP_SLICE) break;
        desc->inputs[1] = whole;
        desc->input_present[1] = random_bool(&rng);
        break;
    }
    bool backward = desc->kind == OP_SLICE_BACKWARD || desc->kind == OP_MEAN_BACKWARD;
    desc->inputs[0] = backward ? part : whole;
    desc->outputs[0] = backward ? whole : part;
}

static void random_average(struct op_desc *desc)
{
    struct tensor_type x = type_of(DTYPE_F32, 4, between(1, 5), between(1, 9), between(1, 17),
                                   between(1, 17)),
                       y = x;
    desc->attrs.avg_pool.adaptive = random_bool(&rng);
    desc->attrs.avg_pool.count_include_pad = random_bool(&rng);
    for (int i = 0; i < 2; i++) {
        y.dims[2 + i] = between(1, 12);
        if (desc->attrs.avg_pool.adaptive) continue;
        int64_t kernel = between(1, x.dims[2 + i] < 5 ? x.dims[2 + i] : 5);
        desc->attrs.avg_pool.kernel[i] = kernel;
        desc->attrs.avg_pool.stride[i] = between(1, 4);
        desc->attrs.avg_pool.padding[i] = between(0, kernel / 2);
        y.dims[2 + i] = op_window_output(x.dims[2 + i], kernel, desc->attrs.avg_pool.stride[i],
                                         desc->attrs.avg_pool.padding[i], 1);
    }
    bool forward = desc->kind == OP_AVG_POOL2D;
    desc->inputs[0] = forward ? x : y;
    desc->outputs[0] = forward ? y : x;
}

static void random_group_norm(struct op_desc *desc)
{
    int64_t groups = between(1, 4), channels = groups * between(1, 4);
    struct tensor_type x = type_of(DTYPE_F32, (int)between(2, 4), between(1, 5), channels,
                                   between(1, 17), between(1, 17));
    struct tensor_type channel = type_of(DTYPE_F32, 1, channels, 0, 0, 0);
    struct tensor_type statistic = type_of(DTYPE_F32, 2, x.dims[0], groups, 0, 0);
    desc->attrs.group_norm.groups = groups;
    desc->attrs.group_norm.eps = tensor_element_count(&x) / (x.dims[0] * groups) < 8 ? 0.5 : 1e-5;
    if (desc->kind == OP_GROUP_NORM) {
        desc->inputs[0] = desc->outputs[0] = x;
        desc->inputs[1] = desc->inputs[2] = channel;
        desc->outputs[1] = desc->outputs[2] = statistic;
        for (int i = 1; i < 3; i++) desc->input_present[i] = random_bool(&rng);
    } else {
        desc->inputs[0] = desc->inputs[1] = desc->outputs[0] = x;
        desc->inputs[2] = desc->outputs[1] = desc->outputs[2] = channel;
        desc->inputs[3] = desc->inputs[4] = statistic;
        desc->input_present[2] = random_bool(&rng);
        desc->output_present[0] = random_bool(&rng);
    }
    for (int i = 1; i < 3; i++) desc->output_present[i] = random_bool(&rng);
    if (desc->kind == OP_GROUP_NORM_BACKWARD && !desc->output_present[0])
        desc->output_present[1] = true;
}

static void random_batch_norm(struct op_desc *desc)
{
    struct tensor_type x = type_of(DTYPE_F32, (int)between(2, 4), between(1, 9),
                                   between(1, most_channels), between(1, 17), between(1, 17));
    struct tensor_type channel = type_of(DTYPE_F32, 1, x.dims[1], 0, 0, 0);
    struct tensor_type totals = type_of(DTYPE_F32, 2, between(1, 4), 1 + 2 * x.dims[1], 0, 0);
    bool backward = desc->kind == OP_BATCH_NORM_BACKWARD;
    for (int i = 0; i < desc->input_count; i++) desc->inputs[i] = channel;
    for (int i = 0; i < desc->output_count; i++) desc->outputs[i] = channel;
    desc->inputs[0] = desc->outputs[0] = x;
    /* Far from a division by 0, also where the variance is a random input. */
    desc->attrs.batch_norm.eps = 5;
    desc->attrs.batch_norm.momentum = random_bool(&rng) ? 0.1 : 1;
    desc->input_present[backward ? 2 : 1] = random_bool(&rng);
    if (backward) {
        desc->inputs[1] = x;
        desc->output_present[0] = random_bool(&rng);
    } else {
        desc->input_present[2] = random_bool(&rng);
    }
    if (desc->kind == OP_BATCH_NORM) desc->outputs[5] = type_of(DTYPE_F32, 1, 2, 0, 0, 0);
    if (desc->kind == OP_BATCH_NORM_RUNNING) return;
    desc->inputs[backward ? 6 : 4] = totals;
    desc->input_present[backward ? 6 : 4] = random_bool(&rng);
    desc->inputs[backward ? 5 : 3] = type_of(DTYPE_I32, 1, x.dims[0], 0, 0, 0);
    desc->input_present[backward ? 5 : 3] = random_bool(&rng);
    for (int i = 1; i < desc->output_count; i++) desc->output_present[i] = random_bool(&rng);
    if (backward && !desc->output_present[0]) desc->output_present[1] = true;
}

/* What a rank tells the others: of the forward pass, or of the backward pass. */
static void random_batch_totals(struct op_desc *desc)
{
    struct tensor_type x = type_of(DTYPE_F32, (int)between(2, 4), between(1, 9),
                                   between(1, most_channels), between(1, 17), between(1, 17));
    bool sums = desc->kind == OP_BATCH_NORM_SUMS;
    int target = sums ? 4 : 1;
    desc->inputs[0] = desc->inputs[sums] = x;
    if (sums) desc->inputs[2] = desc->inputs[3] = type_of(DTYPE_F32, 1, x.dims[1], 0, 0, 0);
    desc->inputs[target] = type_of(DTYPE_I32, 1, x.dims[0], 0, 0, 0);
    desc->input_present[target] = random_bool(&rng);
    desc->outputs[0] = type_of(DTYPE_F32, 1, 1 + 2 * x.dims[1], 0, 0, 0);
}

/* Of the loss's operands, which have an element for each pair. */
static int of_all_pairs(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_CONTRASTIVE_LOSS:
    case OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS: return 1;
    case OP_CONTRASTIVE_LOSS_BACKWARD: return 2;
    default: return -1;
    }
}

static void random_contrast(struct op_desc *desc)
{
    int64_t ranks = between(1, 4), own = between(1, 40), candidates = between(1, 3);
    struct tensor_type all = type_of(DTYPE_F32, 2, ranks, own, 0, 0);
    desc->attrs.contrast.reduction = random_bool(&rng) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc->attrs.contrast.factor = random_bool(&rng) ? 1 : 0.05;
    desc->inputs[0] = type_of(DTYPE_F32, 2, own, ranks * own * candidates, 0, 0);
    if (desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS)
        desc->inputs[0] = type_of(DTYPE_F32, 2, own * candidates, ranks * own, 0, 0);
    desc->outputs[0] = desc->inputs[0];
    if (desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD)
        desc->inputs[1] = type_of(DTYPE_F32, 1, own, 0, 0, 0);
    desc->inputs[of_all_pairs(desc)] = all;
    if (desc->kind != OP_CONTRASTIVE_LOSS) return;
    desc->inputs[2] = type_of(DTYPE_I32, 1, own, 0, 0, 0);
    desc->outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    desc->outputs[1] = type_of(DTYPE_F32, 2, own, 2, 0, 0);
    desc->outputs[2] = type_of(DTYPE_F32, 1, own, 0, 0, 0);
}

static void random_sequences(struct op_desc *desc)
{
    bool forward = desc->kind == OP_SEQUENCE_LOG_PROBS;
    int64_t rows = between(1, 6), time = between(1, 9);
    struct tensor_type x = type_of(DTYPE_F32, 3, rows, time, between(1, 40), 0);
    struct tensor_type of_rows = type_of(DTYPE_F32, 1, rows, 0, 0, 0);
    struct tensor_type places = type_of(DTYPE_F32, 2, rows, time, 0, 0);
    bool packed = random_bool(&rng);
    if (packed) of_rows = places;
    if (between(0, 9) == 0) x.dims[2] = between(200, 900);
    desc->inputs[forward ? 2 : 4] = type_of(DTYPE_I32, 2, rows, time, 0, 0);
    desc->input_present[forward ? 2 : 4] = packed;
    desc->inputs[forward ? 0 : 1] = x;
    desc->inputs[forward ? 1 : 2] = type_of(DTYPE_I32, 2, rows, time, 0, 0);
    desc->outputs[0] = forward ? of_rows : x;
    desc->outputs[1] = of_rows;
    desc->outputs[2] = places;
    if (forward) return;
    desc->inputs[0] = of_rows;
    desc->inputs[3] = places;
}

static void random_preference(struct op_desc *desc)
{
    struct tensor_type rows = type_of(DTYPE_F32, 1, 2 * between(1, 20), 0, 0, 0);
    desc->input_present[3] = random_bool(&rng);
    if (desc->input_present[3]) rows = type_of(DTYPE_F32, 2, between(1, 5), between(1, 20), 0, 0);
    desc->inputs[3] = rows;
    desc->inputs[3].dtype = DTYPE_I32;
    desc->attrs.preference.reduction = random_bool(&rng) ? REDUCTION_MEAN : REDUCTION_SUM;
    desc->attrs.preference.kind = (enum op_preference)between(0, 2);
    desc->attrs.preference.beta = random_bool(&rng) ? 0.1 : 0.7;
    desc->attrs.preference.label_smoothing = random_bool(&rng) ? 0 : 0.2;
    for (int i = 0; i < 3; i++) desc->inputs[i] = rows;
    desc->input_present[1] = random_bool(&rng);
    desc->outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    desc->outputs[1] = type_of(DTYPE_F32, 1, PREFERENCE_SUMS, 0, 0, 0);
    if (desc->input_present[3] && random_bool(&rng)) { /* a number of each token */
        desc->inputs[0].dim_count = 3;
        desc->inputs[0].dims[2] = 1;
    }
    desc->outputs[2] = desc->inputs[0];
}

static void random_recurrent(struct op_desc *desc)
{
    int64_t width = random_bool(&rng) ? between(1, 9) : between(1, 70);
    struct tensor_type y = type_of(DTYPE_F32, 3, between(1, 9), between(1, 6), width, 0);
    desc->attrs.recurrent.kind = (enum op_recurrence)between(0, RECURRENCE_GRU);
    desc->attrs.recurrent.reverse = random_bool(&rng);
    bool backward = desc->kind == OP_RECURRENT_BACKWARD;
    int64_t gates = desc->attrs.recurrent.kind == RECURRENCE_GRU ? 3 : 4;
    struct tensor_type x = y, state = y, bias = type_of(DTYPE_F32, 1, gates * width, 0, 0, 0);
    x.dims[2] *= gates;
    state.dims[2] *= gates + 1;
    desc->inputs[0] = backward ? y : x;
    desc->inputs[backward] = backward ? y : x;
    desc->inputs[backward ? 2 : 1] = type_of(DTYPE_F32, 2, gates * width, width, 0, 0);
    desc->outputs[0] = backward ? x : y;
    desc->output_present[1] = random_bool(&rng);
    if (!backward) {
        desc->inputs[2] = bias;
        desc->input_present[2] = random_bool(&rng);
        desc->outputs[1] = state;
        return;
    }
    desc->inputs[3] = state;
    desc->outputs[1] = x;
    desc->outputs[2] = y;
    desc->output_present[2] = random_bool(&rng);
}

/* Channels last where their number is even, and of one operand alone in every third batch. */
static void set_layouts(struct op_desc *desc)
{
    const struct op_info *info = op_info_get(desc->kind);
    int count = 0;
    for (int i = 0; i < desc->input_count + desc->output_count; i++) {
        bool input = i < desc->input_count;
        struct tensor_type *type = input ? &desc->inputs[i] : &desc->outputs[i - desc->input_count];
        if (type->dim_count != 4 || type->dims[1] % 2 > 0 || ON_CUDA || !info->channels_last)
            continue;
        if (count++ == 0 || type->dims[0] % 3 > 0) type->layout = LAYOUT_CHANNELS_LAST;
    }
}

static struct op_desc random_desc(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    const struct op_info *info = op_info_get(kind);
    switch (kind) {
    case OP_ELEMENT_LOSS:
    case OP_ELEMENT_LOSS_BACKWARD: random_element_loss(&desc); break;
    case OP_TALLY: random_tally(&desc); break;
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_BACKWARD: random_cross_entropy(&desc); break;
    case OP_AVG_POOL2D:
    case OP_AVG_POOL2D_BACKWARD: random_average(&desc); break;
    case OP_GROUP_NORM:
    case OP_GROUP_NORM_BACKWARD: random_group_norm(&desc); break;
    case OP_BATCH_NORM:
    case OP_BATCH_NORM_BACKWARD:
    case OP_BATCH_NORM_RUNNING: random_batch_norm(&desc); break;
    case OP_BATCH_MOMENTS:
    case OP_BATCH_NORM_SUMS: random_batch_totals(&desc); break;
    case OP_CONTRASTIVE_LOSS:
    case OP_CONTRASTIVE_LOSS_BACKWARD:
    case OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS: random_contrast(&desc); break;
    case OP_SEQUENCE_LOG_PROBS:
    case OP_SEQUENCE_LOG_PROBS_BACKWARD: random_sequences(&desc); break;
    case OP_PREFERENCE_LOSS: random_preference(&desc); break;
    case OP_RECURRENT:
    case OP_RECURRENT_BACKWARD: random_recurrent(&desc); break;
    case OP_COUNTED:
        desc.inputs[0] = type_of(DTYPE_I32, 1, between(1, 900), 0, 0, 0);
        desc.outputs[0] = type_of(DTYPE_F32, 1, desc.inputs[0].dims[0], 0, 0, 0);
        break;
    default: random_move(&desc); break;
    }
    set_layouts(&desc);
    bool wide = between(0, 2) > 0, adds = kind != OP_RECURRENT && kind != OP_RECURRENT_BACKWARD;
    for (int i = 0; i < desc.input_count; i++)
        if (info->inputs[i].type == OPERAND_REAL && !wide) desc.inputs[i].dtype = DTYPE_BF16;
    for (int i = 0; i < desc.output_count; i++) {
        if (info->outputs[i].type == OPERAND_REAL && !wide) desc.outputs[i].dtype = DTYPE_BF16;
        desc.accumulate[i] = adds && desc.outputs[i].dtype == DTYPE_F32 && between(0, 2) == 0;
    }
    /* State: it depends on the values before. */
    for (int i = 3; i < desc.output_count && kind == OP_BATCH_NORM; i++) desc.accumulate[i] = true;
    return desc;
}

/* Where documents start, if this is the operand that says so. */
static bool fill_starts(struct random *random, const struct op_desc *desc,
                        const struct tensor_type *type, int32_t *starts)
{
    int place = desc->kind == OP_SEQUENCE_LOG_PROBS            ? 2
                : desc->kind == OP_SEQUENCE_LOG_PROBS_BACKWARD ? 4
                : desc->kind == OP_PREFERENCE_LOSS             ? 3
                                                               : -1;
    if (place < 0 || type != &desc->inputs[place]) return false;
    for (int64_t i = 0; i < tensor_element_count(type); i++) {
        int32_t at = (int32_t)(i % type->dims[1]);
        starts[i] = at == 0 || random_between(random, 0, 2) == 0 ? at : starts[i - 1];
    }
    return true;
}

static void fill_operand(struct random *random, const struct op_desc *desc,
                         const struct tensor_type *type, void *memory)
{
    int64_t count = tensor_element_count(type);
    if (fill_starts(random, desc, type, memory)) return;
    bool cross = desc->kind == OP_CROSS_ENTROPY || desc->kind == OP_CROSS_ENTROPY_BACKWARD;
    bool elements = desc->kind == OP_ELEMENT_LOSS || desc->kind == OP_ELEMENT_LOSS_BACKWARD;
    bool reference = type == &desc->inputs[1] && elements;
    bool recurrent = desc->kind == OP_RECURRENT || desc->kind == OP_RECURRENT_BACKWARD;
    bool tally = desc->kind == OP_TALLY;
    bool totals = (desc->kind == OP_BATCH_NORM && type == &desc->inputs[4]) ||
                  (desc->kind == OP_BATCH_NORM_BACKWARD && type == &desc->inputs[6]);
    const struct tensor_type *scores = &desc->inputs[0];
    int64_t classes = cross || tally ? scores->dims[scores->dim_count - 1] : 3;
    reference = reference || (tally && type == &desc->inputs[2]);
    if (desc->kind == OP_SEQUENCE_LOG_PROBS) classes = desc->inputs[0].dims[2];
    if (desc->kind == OP_SEQUENCE_LOG_PROBS_BACKWARD) classes = desc->inputs[1].dims[2];
    bool targets = desc->kind == OP_PREFERENCE_LOSS && type == &desc->inputs[2];
    /* Some pairs do not count: of these a 0, or an infinite logarithm. */
    bool pairs = of_all_pairs(desc) > 0 && type != &desc->inputs[0] && type->dtype == DTYPE_F32;
    bool flags = pairs && type == &desc->inputs[of_all_pairs(desc)] &&
                 desc->kind != OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    for (int64_t i = 0; i < count; i++) {
        float value = random_float(random) * 3;
        if (recurrent) value *= 0.15f; /* or gates are open or shut, and gradients explode */
        if (targets) value = (float)random_between(random, 0, 4);
        if (flags) value = (float)(i == 0 || random_between(random, 0, 3) > 0);
        else if (pairs) value = random_between(random, 0, 3) > 0 ? value + 6 : INFINITY;
        /* Of every rank the rows, and variances in the last half. */
        if (totals && i % type->dims[1] == 0) value = (float)random_between(random, i == 0, 9);
        else if (totals) value = fabsf(value);
        if (type->dtype == DTYPE_I32)
            ((int32_t *)memory)[i] = (int32_t)random_between(random, -1, classes - 1);
        else if (type->dtype == DTYPE_U8)
            ((uint8_t *)memory)[i] = (uint8_t)(random_between(random, 0, 2) > 1);
        else if (type->dtype == DTYPE_BF16) ((uint16_t *)memory)[i] = rounded_to_bf16(value);
        else ((float *)memory)[i] = reference && random_between(random, 0, 9) == 0 ? NAN : value;
    }
}

/* The number of terms of a sum; a result's error grows with it. */
static double sum_length(const struct op_desc *desc)
{
    bool sum =
        desc->kind == OP_ELEMENT_LOSS || desc->kind == OP_TALLY || desc->kind == OP_CROSS_ENTROPY;
    bool norm = desc->kind == OP_GROUP_NORM_BACKWARD || desc->kind == OP_BATCH_NORM_BACKWARD ||
                desc->kind == OP_BATCH_NORM_SUMS;
    return sum || norm ? (double)tensor_element_count(&desc->inputs[0]) : 0;
}

static void expect_close(const struct op_desc *desc, int output, const void *found,
                         const void *expected)
{
    const struct tensor_type *type = &desc->outputs[output];
    struct area f = {.memory = (unsigned char *)(uintptr_t)found};
    struct area e = {.memory = (unsigned char *)(uintptr_t)expected};
    double absolute = 4e-8 * sum_length(desc), relative = tolerance_of(desc->kind, 2e-6);
    double largest = 1, step = type->dtype == DTYPE_BF16 ? 0x1p-7 : 0;
    int64_t count = tensor_element_count(type);
    for (int64_t i = 0; i < count; i++)
        if (isfinite((double)value_of(type, &e, i)))
            largest = fmax(largest, fabs((double)value_of(type, &e, i)));
    for (int64_t i = 0; i < count; i++) {
        double is = value_of(type, &f, i), should = value_of(type, &e, i);
        if (is == should || (isnan(is) && isnan(should))) continue; /* infinite ones, too */
        if (!(fabs(is - should) <= relative * largest + absolute + step * fabs(should)))
            ck_abort_msg("%s: output %d at %lld of %lld is %.9g, the reference has %.9g",
                         op_info_get(desc->kind)->name, output, (long long)i, (long long)count, is,
                         should);
    }
}

static const struct comparison comparison = {fill_operand, expect_close};

TESTS_BELOW(.timeout = 240);

LOOP_TEST(cpu_is_reference, 0, KIND_COUNT)
{
    for (int threads = 1; threads <= 3; threads++) {
        kernels_set_threads(threads);
        rng.state = (uint64_t)_i * 1000 + (uint64_t)threads;
        for (int run = 0; run < RUNS; run++) {
            struct op_desc desc = random_desc(kinds[_i]);
            struct kernel_call call = {.rank = 0};
            if (desc.kind == OP_TALLY) call.rank = (uint32_t)between(0, desc.attrs.tally.ranks - 1);
            int all = of_all_pairs(&desc);
            if (all > 0) call.rank = (uint32_t)between(0, desc.inputs[all].dims[0] - 1);
            compare_libraries(&rng, &desc, &comparison, call);
        }
    }
}

/* Of more channels than a block has. */
LOOP_TEST(many_channels, OP_BATCH_NORM, OP_BATCH_NORM_SUMS + 1)
{
    most_channels = 200;
    for (int threads = 1; threads <= 3; threads++) {
        kernels_set_threads(threads);
        rng.state = (uint64_t)_i * 1000 + (uint64_t)threads;
        for (int run = 0; run < RUNS; run++) {
            struct op_desc desc = random_desc((enum op_kind)_i);
            compare_libraries(&rng, &desc, &comparison, (struct kernel_call){0});
        }
    }
}

/* The bits do not depend on the number of threads. */
TEST(loss_of_any_number_of_threads)
{
    enum { ROWS = 7, COLUMNS = 9001 };
    static float x[ROWS * COLUMNS], reference[ROWS * COLUMNS];
    float first = 0;
    fill_random(&rng, x, ROWS * COLUMNS);
    fill_random(&rng, reference, ROWS * COLUMNS);
    for (int threads = 1; threads <= 4; threads++) {
        struct op_desc desc = desc_of(OP_ELEMENT_LOSS);
        float loss;
        kernels_set_threads(threads);
        desc.attrs.element_loss.weight = 1;
        desc.input_present[2] = false;
        desc.inputs[0] = desc.inputs[1] = type_of(DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
        desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
        run_once(KERNELS_CPU, &desc,
                 (struct kernel_call){.inputs = {x, reference}, .outputs = {&loss}});
        if (threads == 1) first = loss;
        ck_assert_msg(memcmp(&loss, &first, sizeof loss) == 0, "%d threads: %.9g, not %.9g",
                      threads, (double)loss, (double)first);
    }
}
