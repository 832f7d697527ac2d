/*
 * The vocabulary of arithmetic: every op that a graph may hold and a device must run, with its
 * attributes. The model writes graphs in it, kernels implement it; neither knows the other. All
 * shapes are logical (PyTorch's order). "?" marks an optional input or output: OP_ABSENT.
 *
 * One row per kind, semantics as the PyTorch function of the same name:
 *
 *   kind                     inputs                    outputs
 *   CONV2D                   x, weight, bias?          y                attrs.conv
 *                                                      y = activation(conv + bias)
 *   CONV2D_BACKWARD_DATA     dy, weight                dx               attrs.conv, activation NONE
 *   CONV2D_BACKWARD_WEIGHTS  x, dy                     dweight, dbias?  attrs.conv, activation NONE
 *   LINEAR                   x (.., in),               y (.., out),     attrs.linear; see below
 *                            weight (out, in), bias?   preactivation?
 *   LINEAR_BACKWARD_DATA     dy, weight,               dx               attrs.linear; see below
 *                            preactivation?
 *   LINEAR_BACKWARD_WEIGHTS  x, dy                     dweight, dbias?  activation NONE
 *   RELU                     x                         y
 *   RELU_BACKWARD            dy, y                     dx               y: the forward's output, or
 *                                                                       a mask: dy where above 0
 *   MAX_POOL2D               x                         y, indices?      attrs.pool; indices u8,
 *                                                      shape of y: winner's position in its window
 *                                                      (row-major, first of equals, NaN wins)
 *   MAX_POOL2D_BACKWARD      dy, indices               dx               attrs.pool
 *   AVG_POOL2D               x                         y                attrs.avg_pool; see below
 *   AVG_POOL2D_BACKWARD      dy                        dx               attrs.avg_pool
 *   GROUP_NORM               x (n, c, ..), weight? (c), y,              attrs.group_norm
 *                            bias? (c)                 mean? (n, groups),
 *                                                      rstd? (n, groups)
 *   GROUP_NORM_BACKWARD      dy, x, weight?, mean,     dx?, dweight?,   attrs.group_norm
 *                            rstd                      dbias?
 *   BATCH_NORM               x (n, c, ..), weight? (c), y, mean? (c),    attrs.batch_norm; below
 *                            bias? (c), target? (n),   rstd? (c),
 *                            moments? (r, 1 + 2 c)     running_mean? (c),
 *                                                      running_var? (c),
 *                                                      batches? (2)
 *   BATCH_NORM_BACKWARD      dy, x, weight?, mean,     dx?, dweight?,   attrs.batch_norm
 *                            rstd, target?,            dbias?
 *                            sums? (r, 1 + 2 c)
 *   BATCH_MOMENTS            x, target?                moments          f32: rows that count,
 *                                                      (1 + 2 c)        means, variances
 *   BATCH_NORM_SUMS          dy, x, mean, rstd,        sums (1 + 2 c)   f32: rows that count, sums
 *                            target?                                    of dy, of dy * normed x
 *   GATHER_RANKS             x                         y (r, ..)        f32: that of each of the r
 *                                                                       ranks; no kernel runs it
 *   BATCH_NORM_RUNNING       x, weight?, bias?, mean,  y                attrs.batch_norm; by the
 *                            variance                                   statistics that it is given
 *   COUNTED                  target (n)                y (n)            f32: 1 if the target is not
 *                                                                       below 0, otherwise 0
 *   CONTRASTIVE_LOSS         x (n, r n k), counted     loss (1),        attrs.contrast; of the r
 *                            (r, n), target (n)        y (n, 2),        ranks, see below
 *                                                      lse (n)
 *   CONTRASTIVE_LOSS_        x, lse (n), counted       dx (n, r n k)    attrs.contrast; d(loss) = 1
 *   BACKWARD
 *   CONTRASTIVE_LOSS_        x (n k, r n), lse (r, n)  dx (n k, r n)    attrs.contrast; of the loss
 *   BACKWARD_OTHERS                                                     of all ranks
 *   SEQUENCE_LOG_PROBS       x (n, t, c),              y (n),           f32: of each row the sum of
 *                            target (n, t)             counts (n),      log_softmax(x) at targets
 *                                                      lse (n, t)       that count, their number
 *   SEQUENCE_LOG_PROBS_      dy (n), x, target, lse    dx
 *   BACKWARD
 *   PREFERENCE_LOSS          x, reference?, counts (n) loss (1),        attrs.preference; see below
 *                                                      sums (5), dx (n)
 *   DROPOUT                  x                         y                attrs.dropout; see below
 *   DROPOUT_BACKWARD         dy                        dx               attrs.dropout: same mask
 *   RESHAPE                  x                         y                same elements, plain order
 *   ADD                      a, b                      y                same shapes
 *   LOG_SOFTMAX              x (.., c)                 y                over the last dimension
 *   LOG_SOFTMAX_BACKWARD     dy, y                     dx
 *   NLL_LOSS                 y (.., c), target (..)    loss (1)         attrs.loss
 *   NLL_LOSS_BACKWARD        target                    dy (.., c)       attrs.loss; d(loss) = 1
 *   CROSS_ENTROPY            x (.., c), target         loss (1),        attrs.loss; LOG_SOFTMAX and
 *                                                      y (.., c)        NLL_LOSS in one
 *   CROSS_ENTROPY_BACKWARD   y, target                 dx               attrs.loss;
 *                                                      (softmax - onehot) * scale
 *   ELEMENT_LOSS             x, reference, target?     loss (1)         attrs.element_loss; see
 *                            (..) i32                                   below; target: of the first
 *                                                                       dimensions of x
 *   ELEMENT_LOSS_BACKWARD    x, reference, target?     dx               attrs.element_loss;
 *                                                                       d(loss) = 1
 *   COUNT_CORRECT            y (.., c), target         correct (1)      rows whose first maximum is
 *                                                      the target (NaN is the largest)
 *
 *   TALLY                    x (.., c), target? (..),  y (k, c)         attrs.tally: k = 3 or 9
 * sums numbers? (.., c)                           by column; see below
 *
 *   CAST                     x                         y                f32 to bf16 or back; to
 *                                                                       nearest, ties to even
 *
 * Of sequences; (..) are any leading dimensions, (..) as one are the "rows":
 *
 *   ADD                      a, b                      y                b may have only the last
 *                                                                       dimensions of a
 *   SUM_LEADING              dy                        db               sum over dims db lacks
 *   MUL, DIV                 a, b                      y                b as that of ADD
 *   DIV_BACKWARD             dy, y, b                  db               -dy y / b, shape of y;
 *                                                                       RECIPROCAL's, too
 *   SCALE                    x                         y                x * factor + offset;
 *                                                                       attrs.scale
 *   RECIPROCAL               x                         y                factor / x; attrs.scale
 *   GELU                     x                         y                attrs.gelu
 *   GELU_BACKWARD            dy, x                     dx               attrs.gelu
 *   SILU                     x                         y                x * sigmoid(x)
 *   SILU_BACKWARD            dy, x                     dx
 *   SILU_MUL                 gate, x                   y                silu(gate) * x
 *   SILU_MUL_BACKWARD        dy, gate, x               dgate, dx
 *   GELU_MUL                 gate, x                   y                gelu(gate) * x; attrs.gelu
 *   GELU_MUL_BACKWARD        dy, gate, x               dgate, dx        attrs.gelu
 *   TANH, SIGMOID            x                         y
 *   TANH_BACKWARD,           dy, y                     dx               y is the forward's output
 *   SIGMOID_BACKWARD
 *   SQUARED_RELU             x                         y                max(x, 0)^2
 *   SQUARED_RELU_BACKWARD    dy, x                     dx
 *   FUNCTION                 x                         y                attrs.function
 *   FUNCTION_BACKWARD        dy, x                     dx               attrs.function
 *   MATMUL                   a (.., m, k),             y (.., m, n)     attrs.matmul; a or b may
 *                            b (.., k, n)                               lack y's first dimensions
 *   RECURRENT                x (b, t, g c), weight     y (b, t, c),     attrs.recurrent; see below
 *                            (g c, c), bias? (g c)     state? (b, t, k)
 *   RECURRENT_BACKWARD       dy, y, weight, state      dx, dhidden?,    attrs.recurrent; dhidden:
 *                                                      previous?        of b below;
 *                                                                       previous: h
 *   TRANSPOSE                x                         y                attrs.transpose; its own
 *                                                                       gradient
 *   SLICE                    x                         y                attrs.slice; y may lack a
 *                                                                       dimension of length 1
 *   SLICE_BACKWARD           dy, other?                dx               attrs.slice: other or 0,
 *                                                                       plus dy in its place
 *   CONCAT                   a, b                      y                attrs.concat; without the
 *                                                                       first dimensions of y, a
 *                                                                       or b is repeated
 *   MEAN                     x, mask?                  y                attrs.mean; y lacks that
 *                                                                       dimension; see below
 *   MEAN_BACKWARD            dy, mask?                 dx               attrs.mean
 *   SOFTMAX                  x (.., c)                 y                over the last dimension
 *   SOFTMAX_BACKWARD         dy, y                     dx
 *   EMBEDDING                indices (..) i32,         y (.., c)        attrs.embedding
 *                            weight (v, c)
 *   EMBEDDING_BACKWARD       indices, dy               dweight          attrs.embedding
 *   ARANGE                   x (.., t) i32, starts?    y (t) i32, or    start + i * step
 *                                                      (b, t)
 *   PADDING_MASK             tokens (..) i32           mask (..) u8     0 where it is attrs' id
 *   TOKEN_POSITIONS          tokens (b, t) i32         y (b, t) i32     attrs.padding_mask; below
 *   TOKENS                   x (b, n) f32              y (b, t) i32     attrs.tokens; below
 *   DISTANCE_BUCKETS         tokens (..) i32           y (2 t - 1) i32  attrs.buckets; below
 *   LAYER_NORM               x (.., c), weight? (c),   y, mean? (rows), attrs.norm; see below
 *                            bias? (c), residual?      rstd? (rows), sum?
 *   LAYER_NORM_BACKWARD      dy, x, weight?, mean,     dx?, dweight?,   attrs.norm; see below
 *                            rstd, other?              dbias?
 *   RMS_NORM                 x, weight?, residual?     y, rstd?, sum?   likewise
 *   RMS_NORM_BACKWARD        dy, x, weight?, rstd,     dx?, dweight?
 *                            other?
 *   ROPE                     x (b, t, h d), starts?    y                attrs.rope
 *   ROPE_BACKWARD            dy, starts?               dx               attrs.rope: turned back
 *   ATTENTION                q (b, t, h d), k?, v?     y (b, t, h d),   attrs.attention
 *                            (b, t, g d), mask? (b, t) lse? (b, h, t),
 *                            bias? (2 t - 1, h),       keys?, values?
 *                            starts?                   (b, c, g d)
 *   ATTENTION_BACKWARD       dy, q, k?, v?, y, lse,    dq, dk?, dv?,    attrs.attention
 *                            mask?, bias?, starts?     dbias?
 *   LINEAR_CROSS_ENTROPY     x (.., c), weight (v, c), loss (1),        attrs.loss; LINEAR and
 *                            bias? (v), target (..)    correct? (1)     CROSS_ENTROPY in one
 *   LINEAR_CROSS_ENTROPY_    x, weight, bias?, target  loss (1), dx?,   attrs.loss; forward and
 *   BACKWARD                                           dweight?, dbias? backward in one
 *
 * LINEAR with GELU_TANH also says, if asked, what the activation was given. LINEAR_BACKWARD_DATA
 * with GELU_TANH goes one op further back: x was made by that activation from `preactivation`, and
 * dx is the gradient of this. Neither adds to existing values. Products in bf16 may be rounded
 * before GELU, or its gradient, sees them.
 *
 * The norms normalise x or, with a residual, x + residual, and then say it in `sum`. In bf16 they
 * normalise the sum before it is rounded, or, if `rounded`, exactly what `sum` says. Their
 * _BACKWARD takes what was normalised for x, and adds `other`, a gradient that x has from
 * elsewhere, to dx.
 *
 * ATTENTION is softmax(q k^T scale + mask) v by head, h = attrs.heads query heads of d columns and
 * g = attrs.kv_heads of k and v, each of which serves h / g neighbouring query heads. Without k and
 * v, q is all three side by side: (b, t, (h + 2 g) d), and so is dq. A causal row sees the keys up
 * to its own position; with a window, only keys less than `window` positions away, and blocks of
 * keys that no row sees cost nothing. Keys whose mask is 0 are ignored; a row that sees no key
 * gives 0. With a softcap, a score s becomes softcap tanh(s / softcap) (Gemma 2). A bias is added
 * to the scores then: row key - row + t - 1 of it, for each head. A causal ATTENTION may have ALiBi
 * instead, which adds slope * (key - row): with p the largest power of two up to h, head i has the
 * slope 2^(-alibi (i + 1) / p) if i < p, and else 2^(-alibi (i - p + 1/2) / p) (Press et al.,
 * "Train short, test long", 2022). `rounded` is Falcon's: the slope, the positions of row and key,
 * and their products with it are rounded to bf16, and the difference is scaled. lse is the
 * logarithm of the sum of the exponentials, and -infinity for such a row. The probabilities have
 * dropout as DROPOUT has it, of element i = ((batch * h + head) * t + row) * t + column. No tensor
 * of (t, t) elements is ever held: Rabe and Staats, "Self-attention does not need O(n^2) memory",
 * 2021; Dao et al., "FlashAttention", 2022.
 *
 * starts (b, t) i32 divides rows of t tokens into documents: the index of the first token of each
 * token's document, 0 <= starts[i] <= i, never falling. A token then attends only to its own
 * document, and its position is i - starts[i], for ROPE as for ARANGE. What no token sees is not
 * computed. Without starts, a row is one document.
 *
 * A causal ATTENTION may have a cache, `keys` and `values` of c positions, which are state: read
 * and written. `starts` then says where rows are, and not which documents: the position of row i is
 * i - starts[i], at least 0 and below c. Every row first puts its k and v there, and then sees the
 * cache instead of the op's k and v, up to its own position and within the window. So a sequence
 * can be continued by rows that come later. Of rows with equal positions the last one counts. With
 * a window and c at least window + t, positions may be larger: position p is at p modulo c.
 *
 * ROPE turns the pairs (i, i + d/2) of a head's first d = rotary_dim columns by position *
 * frequency[i], frequency[i] = theta^(-2 i / d), changed by the scaling: LINEAR divides it by
 * `factor`; LLAMA3 and YARN as Hugging Face's rope_types "llama3" and "yarn" (Su et al.,
 * "RoFormer", 2021, the rotate-half form; Peng et al., "YaRN", 2023). LONGROPE divides each
 * frequency by its own factor, a long one if there are more tokens in a row than in the original
 * context (Ding et al., "LongRoPE", 2024). YARN and LONGROPE also multiply the turned columns by
 * `magnitude`. The other columns of a head stay what they are.
 *
 * LINEAR_CROSS_ENTROPY never holds the logits of all rows at once. In training only its _BACKWARD
 * is run, which gives the loss too: the loss's gradient is 1, so nothing has to wait.
 *
 * Operands are f32 but for indices, targets and masks. Those marked OPERAND_REAL in op_info may be
 * bf16, all of an op alike; statistics (mean, rstd, lse), losses and the gradients of parameters
 * are f32 always. Ops compute in f32 and round once, at the end.
 *
 * TOKEN_POSITIONS numbers the tokens of a row other than `id`, from id + 1 on; those that are `id`
 * get id (RoBERTa).
 *
 * TOKENS makes ids of t columns of x, which are whole numbers; one that is not in 0 ... count - 1
 * becomes 0, so what reads y has a row for each.
 *
 * DISTANCE_BUCKETS gives each distance key - row, from 1 - t to t - 1, a bucket of T5's (Raffel et
 * al., "Exploring the limits of transfer learning with a unified text-to-text transformer", 2020):
 * half of them for each direction, half of these for one distance each and the others for ranges
 * that grow up to `max_distance`. tokens only say what t is, its last dimension.
 *
 * Indices outside of 0 ... v - 1 are refused by the data's readers, not by kernels; starts are the
 * readers' own.
 *
 * A target below 0 is a row to ignore: no loss, no gradient, never correct (short last batches are
 * filled up with such rows). MEAN divides by all rows, those to ignore included: how many count is
 * known only when all ranks' batches of a step are, and the end of the step makes up for the
 * difference (runtime/device.h). Kernels do not check that targets are below c: the
 * readers of the data do.
 *
 * CROSS_ENTROPY with label smoothing s takes a share s of a row's loss evenly from all classes.
 * With weights, what a row's loss has of a class counts as often as that class's weight says. MEAN
 * still divides by the rows: who knows all targets of a step divides by the sum of their weights.
 *
 * With gamma, a row's loss counts (1 - p)^gamma times, where p is the target's probability, and
 * FOCAL is the same of a binary cross-entropy, of labels r (1 - alpha) (1 - r) + alpha r times (Lin
 * et al., "Focal loss for dense object detection", 2017). MEAN divides by the rows, whatever the
 * weights.
 *
 * A sum of losses is of terms with shares, which are factors of their values and gradients.
 *
 * ELEMENT_LOSS compares every element of x with its element of the reference. An element whose
 * reference is NaN does not count, unless the reference is `computed`; nor does a row whose target,
 * if there are targets, is below 0.
 * MEAN divides by all rows if there are targets, otherwise by all elements, those that do not count
 * included. Every element also has a weight, with which a mean over rows becomes one over elements.
 * DIVERGENCE is exp(reference) * (reference - x), of logarithms of probabilities, and 0 where such
 * a probability is. The binary cross-entropy is that of the sigmoid of x; with weights, one for
 * each column, what a label that is wanted contributes counts as often as the weight of its column
 * says.
 *
 * MEAN with a mask u8, which has the dimensions up to the one that y lacks, is over those places
 * whose mask is not 0; with attrs.mean.last it is the last of them. Where there is none, it is 0,
 * and with `last` the first place.
 *
 * TALLY has a row of sums each, over the rows of x that count. CLASSES, of the columns as classes:
 * how often it was right to select the column (the first maximum of a row; NaN is the largest), how
 * often it was selected, and how often it was the target. LABELS: the same, selected where x is
 * above 0, wanted where the number is above 1/2. NUMBERS, of x and of y, the number: how many
 * count, the mean of x, in two parts, that of y, and the sums of (x - mean)^2, of (y - mean)^2, of
 * their products, and of (x - y)^2. These cannot be added over ranks: each of attrs.tally.ranks has
 * 9 rows of its own, and the others' are 0. A target below 0 and a NaN do not
 * count. CLASSES have a target, these two numbers. ROWS has neither: each of attrs.tally.ranks has
 * a row of its own, which is x, and the others' are 0.
 *
 * CONTRASTIVE_LOSS: each of a rank's n rows of x has products of its anchor with the k candidates
 * of every pair of every rank, in this order; the first candidate of its own pair is its positive.
 * Its loss is the cross-entropy of factor * x with the positive as the class. Pairs that do not
 * count (counted is 0, the target below 0) are neither anchors nor candidates. y has factor * x of
 * the positive and the largest of the others, lse the logarithm of the sum of exponentials,
 * infinite in rows that do not count. The gradient needs the products twice: those of this rank's
 * anchors with all candidates, and, for OTHERS, of this rank's candidates with the anchors of all
 * ranks.
 *
 * SEQUENCE_LOG_PROBS has a sum and a count for each row or, with starts, for each document: at the
 * place (b, t) of its first token, and 0 in all other places.
 *
 * PREFERENCE_LOSS: rows 2k and 2k + 1 are a pair, the preferred sequence first. x has the sums of
 * log-probabilities of their `counts` targets, `reference` those of another model. With the
 * difference d of x - reference, the first of the pair less the second, the loss of a pair is
 * -(1 - s) log(sigmoid(beta d)) - s log(sigmoid(-beta d)) with s for label_smoothing, or for HINGE
 * max(0, 1 - beta d), or for IPO (d - 1 / (2 beta))^2, where each x - reference is divided by its
 * targets first. Without a reference it is 0, and x
 * may be (n, 1). A pair counts if both rows have a target that does. With
 * starts, x, reference, counts and dx are (b, t), or x and dx (b, t, 1), the documents 2k and 2k +
 * 1 of a row are a pair, and MEAN divides by the rows; what a document has is at its one place
 * whose count is not 0, as SEQUENCE_LOG_PROBS makes it at the first token. dx is the loss's
 * gradient, and `sums` are those of enum op_preference_sum over the pairs that count.
 *
 * AVG_POOL2D divides the sum of a window by its size, or without count_include_pad by its elements
 * inside the image. An adaptive one has no window: rows (and likewise columns) of its output i of n
 * are the mean of the rows i * height / n, rounded down, up to (i + 1) * height / n, rounded up.
 *
 * BATCH_NORM normalises every channel by the mean and the variance of the rows that count: not
 * those whose target is below 0, which fill up a short last batch. Its last three outputs are
 * state, read and written: the running statistics move towards the batch's by `momentum` (the
 * variance by the unbiased one), and the two elements of `batches` hold a 64-bit integer, which
 * counts. A batch without a row that counts changes none of them. Rows that do not count have no
 * gradient. With `moments`, every rank's, the batch is that of all ranks together; its gradient
 * then needs every rank's `sums`, and the gradients of weight and bias are still those of this
 * rank's rows.
 *
 * RECURRENT goes through time, backwards if `reverse`, from a state of 0. With h the row of y
 * before and a = x, b = weight h + bias in g parts of c columns, an LSTM (g = 4, k = 5 c) has c' =
 * s(a1 + b1) c + s(a0 + b0) tanh(a2 + b2), y = s(a3 + b3) tanh(c'), s being sigmoid, and a GRU (g =
 * 3, k = 4 c) y = (1 - z) tanh(a2 + s(a0 + b0) b2) + z h, z = s(a1 + b1). `state` has the values of
 * these functions in the order of their parts, then c' or b2.
 *
 * Outputs marked in `accumulate` are added to the existing values, the others overwritten.
 *
 * DROPOUT keeps element i (its index in plain logical order, whatever the layout) when
 * uniform(seed, stream, step, rank, i) >= p, scaled by 1/(1-p); the generator is Philox4x32-10 with
 * key = seed and counter = (i / 4, stream, step, rank), word i % 4, uniform = word * 2^-32
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). So the backward op needs
 * no stored mask. A call may number its elements from another `first` than 0: then what a sample
 * gets depends on its place among the samples of all ranks, and not on its rank.
 *
 * A `normal` DROPOUT has a draw of the normal distribution in place of every x, whatever that is.
 * Of 16 elements from a multiple of 16 on, with u the upper 24 bits of their words as a fraction,
 * elements j and 8 + j are sqrt(-2 log(1 - u[j])) times the cosine and the sine of 2 pi u[8 + j]
 * (Box and Muller, "A note on the generation of random normal deviates", 1958).
 */
#ifndef FSDPD_OPS_OP_H
#define FSDPD_OPS_OP_H

#include "base/status.h"
#include "ops/tensor.h"

enum op_kind {
    OP_CONV2D,
    OP_CONV2D_BACKWARD_DATA,
    OP_CONV2D_BACKWARD_WEIGHTS,
    OP_LINEAR,
    OP_LINEAR_BACKWARD_DATA,
    OP_LINEAR_BACKWARD_WEIGHTS,
    OP_RELU,
    OP_RELU_BACKWARD,
    OP_MAX_POOL2D,
    OP_MAX_POOL2D_BACKWARD,
    OP_DROPOUT,
    OP_DROPOUT_BACKWARD,
    OP_RESHAPE,
    OP_ADD,
    OP_LOG_SOFTMAX,
    OP_LOG_SOFTMAX_BACKWARD,
    OP_NLL_LOSS,
    OP_NLL_LOSS_BACKWARD,
    OP_CROSS_ENTROPY,
    OP_CROSS_ENTROPY_BACKWARD,
    OP_COUNT_CORRECT,
    OP_CAST,
    OP_SUM_LEADING,
    OP_MUL,
    OP_GELU,
    OP_GELU_BACKWARD,
    OP_SILU,
    OP_SILU_BACKWARD,
    OP_SILU_MUL,
    OP_SILU_MUL_BACKWARD,
    OP_SOFTMAX,
    OP_SOFTMAX_BACKWARD,
    OP_EMBEDDING,
    OP_EMBEDDING_BACKWARD,
    OP_ARANGE,
    OP_PADDING_MASK,
    OP_LAYER_NORM,
    OP_LAYER_NORM_BACKWARD,
    OP_RMS_NORM,
    OP_RMS_NORM_BACKWARD,
    OP_ROPE,
    OP_ROPE_BACKWARD,
    OP_ATTENTION,
    OP_ATTENTION_BACKWARD,
    OP_LINEAR_CROSS_ENTROPY,
    OP_LINEAR_CROSS_ENTROPY_BACKWARD,
    OP_TANH,
    OP_TANH_BACKWARD,
    OP_SCALE,
    OP_RECIPROCAL,
    OP_DIV,
    OP_DIV_BACKWARD,
    OP_SIGMOID,
    OP_SIGMOID_BACKWARD,
    OP_SQUARED_RELU,
    OP_SQUARED_RELU_BACKWARD,
    OP_ELEMENT_LOSS,
    OP_ELEMENT_LOSS_BACKWARD,
    OP_TOKEN_POSITIONS,
    OP_TRANSPOSE,
    OP_SLICE,
    OP_SLICE_BACKWARD,
    OP_CONCAT,
    OP_MEAN,
    OP_MEAN_BACKWARD,
    OP_GELU_MUL,
    OP_GELU_MUL_BACKWARD,
    OP_AVG_POOL2D,
    OP_AVG_POOL2D_BACKWARD,
    OP_GROUP_NORM,
    OP_GROUP_NORM_BACKWARD,
    OP_DISTANCE_BUCKETS,
    OP_TALLY,
    OP_BATCH_NORM,
    OP_BATCH_NORM_BACKWARD,
    OP_BATCH_NORM_RUNNING,
    OP_BATCH_MOMENTS,
    OP_BATCH_NORM_SUMS,
    OP_GATHER_RANKS,
    OP_COUNTED,
    OP_CONTRASTIVE_LOSS,
    OP_CONTRASTIVE_LOSS_BACKWARD,
    OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS,
    OP_SEQUENCE_LOG_PROBS,
    OP_SEQUENCE_LOG_PROBS_BACKWARD,
    OP_PREFERENCE_LOSS,
    OP_FUNCTION,
    OP_FUNCTION_BACKWARD,
    OP_MATMUL,
    OP_RECURRENT,
    OP_RECURRENT_BACKWARD,
    OP_TOKENS,
    OP_KIND_COUNT
};

enum { OP_MAX_INPUTS = 9, OP_MAX_OUTPUTS = 6 };

enum op_activation { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_GELU_TANH };
enum op_reduction { REDUCTION_SUM, REDUCTION_MEAN };
enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_LLAMA3,
    ROPE_SCALING_YARN,
    ROPE_SCALING_LONGROPE
};
enum op_difference {
    DIFFERENCE_SQUARED,
    DIFFERENCE_ABSOLUTE,
    DIFFERENCE_HUBER,
    DIFFERENCE_BINARY_CROSS_ENTROPY,
    DIFFERENCE_FOCAL,
    DIFFERENCE_DIVERGENCE,
};

enum op_recurrence { RECURRENCE_LSTM, RECURRENCE_GRU };
enum op_preference { PREFERENCE_SIGMOID, PREFERENCE_IPO, PREFERENCE_HINGE };
/* Of the rows' x, of beta times (x - reference), and how often that of the first is larger. */
enum op_preference_sum {
    PREFERENCE_LOGPS_CHOSEN,
    PREFERENCE_LOGPS_REJECTED,
    PREFERENCE_REWARDS_CHOSEN,
    PREFERENCE_REWARDS_REJECTED,
    PREFERENCE_ACCURACIES,
    PREFERENCE_SUMS
};

/* Of single elements; `parameter` of LEAKY_RELU and ELU is the slope and the depth below 0, of POW
 * the exponent. ABOVE and AT_LEAST are 1 where x is above it, or not below it, and otherwise, also
 * for NaN, 0. */
enum op_function {
    FUNCTION_LEAKY_RELU,
    FUNCTION_ELU,
    FUNCTION_RELU6,
    FUNCTION_HARDSWISH,
    FUNCTION_HARDSIGMOID,
    FUNCTION_EXP,
    FUNCTION_LOG,
    FUNCTION_SQRT,
    FUNCTION_POW,
    FUNCTION_ABS,
    FUNCTION_ABOVE,
    FUNCTION_AT_LEAST,
};

enum op_tally { TALLY_CLASSES, TALLY_LABELS, TALLY_NUMBERS, TALLY_ROWS };
/* At most OP_MAX_WEIGHTS numbers that are constant, for instance one per class: they are arguments
 * of a kernel, not operands. The values belong to the model. */
enum { OP_MAX_WEIGHTS = 1000 };
struct op_weights {
    const float *values; /* finite and at least 0, not all 0; NULL: all 1 */
    int64_t count;
};

static inline float op_weight(const struct op_weights *weights, int64_t i)
{
    return weights->values == NULL ? 1 : weights->values[i];
}

/* All whole numbers up to it are f32. */
enum { OP_MAX_TOKENS = 1 << 24 };

enum { TALLY_COUNTS = 3, TALLY_MOMENTS = 9 }; /* rows of CLASSES and LABELS, and of NUMBERS */

union op_attrs {
    struct {
        int64_t stride[2], padding[2], dilation[2]; /* height, width */
        int64_t groups;
        enum op_activation activation;
    } conv;
    struct {
        enum op_activation activation;
        bool transposed; /* the weight and its gradient are (in, out), as Conv1D of transformers */
        bool rows_apart; /* LINEAR: kernels/linear_rows.h */
    } linear;
    struct {
        int64_t kernel[2], stride[2], padding[2]; /* kernel area at most 255 */
    } pool;
    struct {
        int64_t kernel[2], stride[2], padding[2]; /* 0 if adaptive */
        bool adaptive, count_include_pad;
    } avg_pool;
    struct {
        int64_t groups; /* divides the channels; a group's are neighbours */
        double eps;
    } group_norm;
    struct {
        double eps, momentum; /* momentum: from 0 to 1 */
        bool sync;            /* the batch is that of all ranks */
    } batch_norm;
    struct {
        double p;        /* probability of zeroing, 0 <= p < 1 */
        uint32_t stream; /* one per dropout call in the model, in forward order */
        bool normal;     /* draws instead; p is 0 */
    } dropout;
    struct {
        enum op_reduction reduction; /* MEAN divides by the number of rows */
        double share;                /* of a term in a sum of losses: above 0; 0: 1 */
        double label_smoothing;      /* CROSS_ENTROPY only; 0 <= s < 1 */
        struct op_weights weights;   /* by class; not of LINEAR_CROSS_ENTROPY */
        double gamma;                /* CROSS_ENTROPY only, without smoothing: from 0 */
    } loss;
    struct {
        enum op_reduction reduction; /* at the same place as in `loss` */
        double share;                /* likewise */
        enum op_difference difference;
        double delta;  /* HUBER: where the square ends; FOCAL: its gamma, from 0 */
        double alpha;  /* FOCAL: at most 1; below 0: none */
        double weight; /* of every element, besides: above 0 */
        struct op_weights positive; /* by column; BINARY_CROSS_ENTROPY only */
        bool computed; /* the reference is none of the batch's numbers, of which some may lack */
    } element_loss;
    struct {
        enum op_reduction reduction; /* at the same place as in `loss` */
        double share;                /* likewise */
        double factor;               /* above 0 */
    } contrast;
    struct {
        enum op_reduction reduction; /* at the same place as in `loss`; MEAN divides by the pairs */
        double share;                /* likewise; 0 */
        enum op_preference kind;
        double beta;            /* above 0 */
        double label_smoothing; /* from 0 to below 1/2 */
    } preference;
    struct {
        enum op_tally kind;
        int64_t ranks; /* of NUMBERS and ROWS; otherwise 1 */
    } tally;
    struct {
        int64_t dims[2]; /* the two dimensions that change places, ascending */
    } transpose;
    struct {
        int64_t dim, start; /* of the longer tensor */
    } slice;
    struct {
        int64_t dim; /* of y */
    } concat;
    struct {
        int64_t dim; /* of the tensor that has it */
        bool last;   /* needs a mask */
        bool sum;    /* not divided; has no mask. Its _BACKWARD repeats a tensor */
    } mean;
    struct {
        bool tanh; /* the tanh approximation, else erf */
    } gelu;
    struct {
        double parameter;
        enum op_function kind;
    } function;
    struct {
        bool first, second; /* is transposed: a is (.., k, m), b is (.., n, k) */
    } matmul;
    struct {
        enum op_recurrence kind;
        bool reverse; /* from the last row to the first */
    } recurrent;
    struct {
        double factor, offset; /* no offset of RECIPROCAL */
    } scale;
    struct {
        int64_t padding_index; /* its row gets no gradient; -1: none */
    } embedding;
    struct {
        int32_t start, step;
    } arange;
    struct {
        int32_t id;
    } padding_mask;
    struct {
        int64_t start; /* the first column */
        int32_t count; /* at most OP_MAX_TOKENS */
    } tokens;
    struct {
        int32_t count; /* even, at least 4 */
        int32_t max_distance;
    } buckets;
    struct {
        double eps;    /* added to the variance, or the mean of squares, before the root is taken */
        bool one_plus; /* the weight, if there is one, counts as 1 + weight */
        bool rounded;  /* x + residual is rounded to its type before it is normalised */
    } norm;
    struct {
        int64_t head_dim;   /* even; divides the last dimension */
        int64_t rotary_dim; /* even, at most head_dim; 0: head_dim */
        bool interleaved;   /* a pair's columns are neighbours, not half of the turned ones apart */
        double theta;
        enum rope_scaling scaling;
        double factor;                            /* all but NONE */
        double low_freq_factor, high_freq_factor; /* LLAMA3 */
        int64_t original_context;                 /* LLAMA3, YARN, LONGROPE */
        double beta_fast, beta_slow;              /* YARN */
        double magnitude;                         /* YARN, LONGROPE */
        struct op_weights short_factors, long_factors; /* LONGROPE, by pair, above 0 */
        int64_t positions; /* that rows can have, of which the number of tokens chooses LONGROPE's
                            * factors; 0: those of a row */
    } rope;
    struct {
        int64_t heads, kv_heads; /* kv_heads divides heads */
        bool causal;
        int64_t window;  /* of keys around a row; 0: all */
        double softcap;  /* of scores; 0: none */
        double scale;    /* 0: 1 / sqrt(head dimension) */
        double p;        /* of the dropout of probabilities, 0 <= p < 1 */
        uint32_t stream; /* of it; as DROPOUT's */
        bool rounded;    /* ALiBi as Falcon has it: */
        double alibi;    /* at most 64; the slopes' range, as above; 0: no ALiBi */
    } attention;
};

/* An op with the types of its operands: all that a kernel library needs to prepare it. */
struct op_desc {
    enum op_kind kind;
    union op_attrs attrs;
    int input_count, output_count;
    bool input_present[OP_MAX_INPUTS], output_present[OP_MAX_OUTPUTS];
    bool accumulate[OP_MAX_OUTPUTS];
    struct tensor_type inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
};

enum operand_type {
    OPERAND_REAL = 0, /* f32, or bf16 like all the op's operands of this type */
    OPERAND_ANY_REAL, /* f32 or bf16, whatever the others are */
    OPERAND_F32,
    OPERAND_I32,
    OPERAND_U8,
};

struct op_operand {
    const char *name; /* for errors */
    enum operand_type type;
    bool optional;
};

/* Fixed facts of an op kind. */
struct op_info {
    const char *name;                      /* "conv2d_backward_data" */
    const struct op_attribute *attributes; /* see op_attributes.h; NULL: none */
    /* Checks the operands' shapes, when their types are right. */
    status_t (*check)(const struct op_desc *desc, const struct op_info *info);
    int input_count, output_count;
    bool channels_last; /* four-dimensional operands may be CHANNELS_LAST */
    bool element_wise;  /* output 0 may take over the memory of input 0 (same layout) */
    struct op_operand inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
};

const struct op_info *op_info_get(enum op_kind kind);

/*
 * Checks an op_desc's shapes and dtypes against the table above (parameters' shapes, attribute
 * ranges, output sizes), but not layouts. INVALID_ARGUMENT names the op and both shapes.
 */
status_t op_desc_check(const struct op_desc *desc) FSDPD_MUST_USE;

/* Rows or columns of a convolution's or pool's output; <= 0 if the window does not fit. */
int64_t op_window_output(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t dilation);

/* Floating-point operations of one run: 2 per multiply-add of convolutions, matmuls and attention
 * (of these only where a row sees a key), otherwise 0. */
double op_desc_flops(const struct op_desc *desc);

/* Bytes that one run must at least read and write: every operand once; of an embedding's table only
 * the rows that tokens can select. */
uint64_t op_desc_bytes(const struct op_desc *desc);

/* A tensor around one of its dimensions: `outer` x `count` x `inner` elements, in plain order. */
struct op_dim {
    int64_t outer, count, inner;
};
static inline struct op_dim op_dim_of(const struct tensor_type *type, int64_t dim)
{
    struct op_dim view = {1, type->dims[dim], 1};
    for (int64_t i = 0; i < dim; i++) view.outer *= type->dims[i];
    for (int64_t i = dim + 1; i < type->dim_count; i++) view.inner *= type->dims[i];
    return view;
}

/* The rows (axis 0) or columns (1) that output `at` of an average pool is made of, inside of an
 * image of `size`, and its factor of the divisor. */
struct op_span {
    int64_t begin, end, divisor;
};
static inline struct op_span op_average_span(const union op_attrs *attrs, int axis, int64_t at,
                                             int64_t size, int64_t outputs)
{
    struct op_span span;
    if (attrs->avg_pool.adaptive) {
        span.begin = at * size / outputs;
        span.end = ((at + 1) * size + outputs - 1) / outputs;
        span.divisor = span.end - span.begin;
        return span;
    }
    span.begin = at * attrs->avg_pool.stride[axis] - attrs->avg_pool.padding[axis];
    span.end = span.begin + attrs->avg_pool.kernel[axis];
    span.divisor = attrs->avg_pool.kernel[axis];
    if (span.begin < 0) span.begin = 0;
    if (span.end > size) span.end = size;
    if (!attrs->avg_pool.count_include_pad) span.divisor = span.end - span.begin;
    return span;
}

static inline int64_t op_tally_rows(const union op_attrs *attrs)
{
    if (attrs->tally.kind == TALLY_ROWS) return attrs->tally.ranks;
    return attrs->tally.kind == TALLY_NUMBERS ? TALLY_MOMENTS * attrs->tally.ranks
                                              : (int64_t)TALLY_COUNTS;
}

/* The factor for the loss of each of its `rows`. */
static inline double op_loss_scale(const struct op_desc *desc, int64_t rows)
{
    double share = desc->attrs.loss.share == 0 ? 1 : desc->attrs.loss.share;
    return desc->attrs.loss.reduction == REDUCTION_SUM ? share : share / (double)rows;
}

#endif
