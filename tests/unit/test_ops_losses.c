/*
 * What op_desc_check accepts and refuses of losses: of rows and classes, of elements, of pairs, and
 * of the counts that metrics are made of.
 */
#include "op_fixture.h"
#include "ops/op_attributes.h"
#include "tests/testing.h"

TEST(rows_and_classes)
{
    REFUSES(loss(OP_NLL_LOSS), desc.inputs[0].dim_count = 1, "(64,)", "rows and classes");
    REFUSES(loss(OP_NLL_LOSS), desc.inputs[1].dims[0] = 63, "(63,)", "(64, 10)");
    REFUSES(loss(OP_NLL_LOSS), desc.outputs[0].dims[0] = 2, "(2,)", "(1,)");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.outputs[1].dims[1] = 9, "(64, 9)", "(64, 10)");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.output_present[1] = false, "log-prob", "missing");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.reduction = (enum op_reduction)5, "reduction",
            "5");
    REFUSES(loss(OP_COUNT_CORRECT), desc.inputs[0].dims[1] = (int64_t)1 << 32, "classes",
            "(64, 4294967296)");
    struct op_desc backward = desc_of(OP_NLL_LOSS_BACKWARD);
    backward.inputs[0] = type_of(DTYPE_I32, 1, 64, 0, 0, 0);
    backward.outputs[0] = type_of(DTYPE_F32, 2, 64, 10, 0, 0);
    REFUSES(backward, desc.outputs[0].dims[0] = 65, "(64,)", "(65,)");
}

static struct op_desc element_loss(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    desc.attrs.element_loss.weight = 1;
    desc.inputs[0] = desc.inputs[1] = type_of(DTYPE_F32, 2, 64, 10, 0, 0);
    desc.inputs[2] = type_of(DTYPE_I32, 1, 64, 0, 0, 0);
    desc.outputs[0] = kind == OP_ELEMENT_LOSS ? type_of(DTYPE_F32, 1, 1, 0, 0, 0) : desc.inputs[0];
    return desc;
}

TEST(element_losses)
{
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.inputs[1].dims[1] = 9, "(64, 9)", "(64, 10)");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.inputs[2].dims[0] = 10, "(10,)", "(64,)");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.outputs[0].dims[0] = 2, "(2,)", "(1,)");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.weight = 0, "weight", "0");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.weight = NAN, "weight", "nan");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.difference = DIFFERENCE_HUBER,
            "delta", "more than 0");
    REFUSES(element_loss(OP_ELEMENT_LOSS),
            desc.attrs.element_loss.difference = (enum op_difference)6, "difference 6", "unknown");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.difference = DIFFERENCE_FOCAL;
            desc.attrs.element_loss.delta = -1, "gamma is -1", "at least 0");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.difference = DIFFERENCE_FOCAL;
            desc.attrs.element_loss.alpha = 1.5, "alpha 1.5", "at most 1");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.share = -1, "share is -1",
            "more than 0");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.inputs[2] = type_of(DTYPE_I32, 3, 64, 10, 1, 0),
            "3 dimensions", "2");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.share = INFINITY, "share is inf", "");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.gamma = -1, "gamma is -1", "at least 0");
    REFUSES(loss(OP_NLL_LOSS), desc.attrs.loss.gamma = 1, "gamma is 1", "expected 0");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.inputs[0].dtype = DTYPE_BF16, "bf16", "f32");
    REFUSES(element_loss(OP_ELEMENT_LOSS_BACKWARD), desc.outputs[0].dims[0] = 1, "(1, 10)",
            "(64, 10)");
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.label_smoothing = 1, "label_smoothing", "< 1");
    REFUSES(loss(OP_NLL_LOSS), desc.attrs.loss.label_smoothing = 0.1, "label_smoothing", "0.1");
}

TEST(weights_of_losses)
{
    float values[10] = {1};
    const struct op_weights weights = {values, 10};
    struct op_desc weighted = loss(OP_CROSS_ENTROPY);
    weighted.attrs.loss.weights = weights;
    ck_assert_status_ok(op_desc_check(&weighted));
    struct buf text = {0};
    op_attributes_print(weighted.kind, &weighted.attrs, &text);
    ck_assert_str_eq(buf_text(&text), " sum weights=[1, 0, 0, 0, ... of 10]");
    buf_deinit(&text);
    REFUSES(loss(OP_NLL_LOSS), desc.attrs.loss.weights = ((struct op_weights){values, 9}),
            "9 weights", "10");
    REFUSES(element_loss(OP_ELEMENT_LOSS), desc.attrs.element_loss.positive = weights, "10 weights",
            "none");
    values[3] = -1;
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.weights = weights, "weight 3", "-1");
    values[3] = INFINITY;
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.weights = weights, "weight 3", "inf");
    values[0] = values[3] = 0;
    REFUSES(loss(OP_CROSS_ENTROPY), desc.attrs.loss.weights = weights, "all weights are 0", "");
}

static struct op_desc tally(enum op_tally kind)
{
    struct op_desc desc = desc_of(OP_TALLY);
    desc.attrs.tally.kind = kind;
    desc.attrs.tally.ranks = kind >= TALLY_NUMBERS ? 2 : 1;
    desc.inputs[0] = desc.inputs[2] = type_of(DTYPE_F32, 2, 4, 3, 0, 0);
    desc.inputs[1] = type_of(DTYPE_I32, 1, 4, 0, 0, 0);
    desc.input_present[kind == TALLY_CLASSES ? 2 : 1] = false;
    desc.outputs[0] = type_of(DTYPE_F32, 2, kind == TALLY_NUMBERS ? 18 : 3, 3, 0, 0);
    if (kind != TALLY_ROWS) return desc;
    desc.input_present[2] = false;
    desc.outputs[0] = type_of(DTYPE_F32, 2, 2, 12, 0, 0);
    return desc;
}

/* Of 2 ranks with 3 pairs each, of a pair's 2 candidates. */
static struct op_desc contrast(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    bool forward = kind == OP_CONTRASTIVE_LOSS;
    struct tensor_type all = type_of(DTYPE_F32, 2, 2, 3, 0, 0);
    struct tensor_type own = type_of(DTYPE_F32, 1, 3, 0, 0, 0);
    desc.attrs.contrast.factor = 20;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 3, 12, 0, 0);
    desc.inputs[1] = all;
    if (kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS)
        desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 6, 6, 0, 0);
    if (kind == OP_CONTRASTIVE_LOSS_BACKWARD) {
        desc.inputs[1] = own;
        desc.inputs[2] = all;
    }
    if (!forward) return desc;
    desc.inputs[2] = type_of(DTYPE_I32, 1, 3, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    desc.outputs[1] = type_of(DTYPE_F32, 2, 3, 2, 0, 0);
    desc.outputs[2] = own;
    return desc;
}

TEST(pairs_against_all_others)
{
    enum op_kind others = OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    for (int kind = OP_CONTRASTIVE_LOSS; kind <= OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS; kind++) {
        struct op_desc whole = contrast((enum op_kind)kind);
        status_t status = op_desc_check(&whole);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        REFUSES(contrast((enum op_kind)kind), desc.attrs.contrast.factor = 0, "factor", "0");
        REFUSES(contrast((enum op_kind)kind), desc.inputs[0].dims[1] = 13, "13)", "(2, 3)");
    }
    REFUSES(contrast(OP_CONTRASTIVE_LOSS), desc.inputs[1].dims[1] = 5, "(3, 12)", "(2, 5)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS), desc.inputs[0].dims[0] = 4, "(4, 12)", "(2, 3)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS), desc.inputs[2].dims[0] = 4, "target", "(3,)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS), desc.outputs[1].dims[1] = 3, "scores", "(3, 2)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS), desc.outputs[2].dims[0] = 6, "lse", "(3,)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS_BACKWARD), desc.inputs[1].dims[0] = 6, "lse", "(3,)");
    REFUSES(contrast(OP_CONTRASTIVE_LOSS_BACKWARD), desc.inputs[0].dtype = DTYPE_BF16, "bf16",
            "f32");
    REFUSES(contrast(others), desc.inputs[0].dims[0] = 7, "(7, 6)", "(2, 3)");
    REFUSES(contrast(others), desc.outputs[0].dims[0] = 3, "gradient", "(6, 6)");
}

/* Of 2 pairs, or 4 rows of 3 places and 5 classes. */
static struct op_desc preference(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    struct tensor_type rows = type_of(DTYPE_F32, 1, 4, 0, 0, 0);
    struct tensor_type x = type_of(DTYPE_F32, 3, 4, 3, 5, 0);
    int first = kind == OP_SEQUENCE_LOG_PROBS_BACKWARD;
    if (kind == OP_PREFERENCE_LOSS) {
        desc.attrs.preference.beta = 0.1;
        for (int i = 0; i < 3; i++) desc.inputs[i] = rows;
        desc.input_present[3] = false;
        desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
        desc.outputs[1] = type_of(DTYPE_F32, 1, 5, 0, 0, 0);
        desc.outputs[2] = rows;
        return desc;
    }
    desc.inputs[0] = rows;
    desc.inputs[first] = x;
    desc.inputs[first + 1] = type_of(DTYPE_I32, 2, 4, 3, 0, 0);
    if (first == 1) desc.inputs[3] = type_of(DTYPE_F32, 2, 4, 3, 0, 0);
    desc.outputs[0] = first == 1 ? x : rows;
    desc.outputs[1] = rows;
    desc.outputs[2] = type_of(DTYPE_F32, 2, 4, 3, 0, 0);
    desc.input_present[first == 1 ? 4 : 2] = false;
    return desc;
}

/* The same of rows with documents: sums at places. */
static struct op_desc packed_preference(enum op_kind kind)
{
    struct op_desc desc = preference(kind);
    struct tensor_type places = type_of(DTYPE_F32, 2, 4, 3, 0, 0);
    int starts = kind == OP_SEQUENCE_LOG_PROBS ? 2 : kind == OP_PREFERENCE_LOSS ? 3 : 4;
    desc.input_present[starts] = true;
    desc.inputs[starts] = type_of(DTYPE_I32, 2, 4, 3, 0, 0);
    if (kind != OP_SEQUENCE_LOG_PROBS) desc.inputs[0] = places;
    if (kind == OP_SEQUENCE_LOG_PROBS) desc.outputs[0] = desc.outputs[1] = places;
    if (kind != OP_PREFERENCE_LOSS) return desc;
    desc.inputs[1] = desc.inputs[2] = desc.outputs[2] = places;
    return desc;
}

TEST(pairs_of_sequences)
{
    for (int kind = OP_SEQUENCE_LOG_PROBS; kind <= OP_PREFERENCE_LOSS; kind++) {
        struct op_desc whole = preference((enum op_kind)kind);
        status_t status = op_desc_check(&whole);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        whole = packed_preference((enum op_kind)kind);
        status = op_desc_check(&whole);
        ck_assert_msg(status == NULL, "%s", status_message(status));
    }
    enum op_kind loss = OP_PREFERENCE_LOSS;
    REFUSES(packed_preference(loss), desc.inputs[3].dims[1] = 2, "starts", "(4, 2)");
    REFUSES(packed_preference(loss), desc.inputs[2].dim_count = 1, "counts", "(4,)");
    REFUSES(packed_preference(OP_SEQUENCE_LOG_PROBS), desc.outputs[0].dim_count = 1, "output",
            "(4,)");
    struct op_desc rewards = preference(OP_PREFERENCE_LOSS);
    rewards.inputs[0] = rewards.outputs[2] = type_of(DTYPE_F32, 2, 4, 1, 0, 0);
    rewards.input_present[1] = false;
    status_t status = op_desc_check(&rewards);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    rewards = packed_preference(OP_PREFERENCE_LOSS);
    rewards.inputs[0] = rewards.outputs[2] = type_of(DTYPE_F32, 3, 4, 3, 1, 0);
    rewards.input_present[1] = false;
    status = op_desc_check(&rewards);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    enum op_kind logs = OP_SEQUENCE_LOG_PROBS, back = OP_SEQUENCE_LOG_PROBS_BACKWARD;
    REFUSES(preference(OP_PREFERENCE_LOSS), desc.inputs[0].dims[0] = 3, "3 rows", "even");
    REFUSES(preference(OP_PREFERENCE_LOSS), desc.attrs.preference.beta = 0, "beta is 0", "0.5");
    REFUSES(preference(OP_PREFERENCE_LOSS), desc.attrs.preference.label_smoothing = 0.5,
            "label_smoothing 0.5", "less than 0.5");
    REFUSES(preference(OP_PREFERENCE_LOSS), desc.inputs[2].dims[0] = 6, "counts", "(4,)");
    REFUSES(preference(OP_PREFERENCE_LOSS), desc.outputs[1].dims[0] = 4, "sums", "(5,)");
    REFUSES(preference(logs), desc.inputs[1].dims[1] = 4, "target", "(4, 3)");
    REFUSES(preference(logs), desc.outputs[1].dims[0] = 3, "counts", "(4,)");
    REFUSES(preference(logs), desc.outputs[2].dims[1] = 2, "lse", "(4, 3)");
    REFUSES(preference(back), desc.inputs[3].dims[1] = 2, "lse", "(4, 3)");
    REFUSES(preference(back), desc.inputs[0].dims[0] = 2, "gradient", "(4,)");
}

TEST(tallies)
{
    ck_assert_ptr_null(op_desc_check(&(struct op_desc[]){tally(TALLY_CLASSES)}[0]));
    ck_assert_ptr_null(op_desc_check(&(struct op_desc[]){tally(TALLY_NUMBERS)}[0]));
    ck_assert_ptr_null(op_desc_check(&(struct op_desc[]){tally(TALLY_ROWS)}[0]));
    REFUSES(tally(TALLY_ROWS), desc.input_present[2] = true, "numbers", "not expected");
    REFUSES(tally(TALLY_ROWS), desc.outputs[0].dims[1] = 3, "sums", "(2, 3)");
    REFUSES(tally(TALLY_CLASSES), desc.inputs[1].dims[0] = 5, "target", "(5,)");
    REFUSES(tally(TALLY_CLASSES), desc.input_present[1] = false, "target", "missing");
    REFUSES(tally(TALLY_CLASSES), desc.input_present[2] = true, "numbers", "not expected");
    REFUSES(tally(TALLY_LABELS), desc.inputs[2].dims[1] = 2, "numbers", "(4, 2)");
    REFUSES(tally(TALLY_NUMBERS), desc.outputs[0].dims[0] = 3, "sums", "(18, 3)");
    REFUSES(tally(TALLY_NUMBERS), desc.attrs.tally.ranks = 0, "0 ranks", "possible");
    REFUSES(tally(TALLY_LABELS), desc.attrs.tally.ranks = 2, "2 ranks", "possible");
}
