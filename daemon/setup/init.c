/* Initial parameters; see init.h. */
#include "setup/init.h"

#include <stdlib.h>

#include "base/mem.h"
#include "data/generator.h"

enum {
    NORMAL_BLOCK = 16, /* as generator_fill_normal_blocks */
    PIECE = 1 << 18    /* elements; whole blocks */
};

struct draw {
    int order, parameter;
};

static int compare_draws(const void *a, const void *b)
{
    const struct draw *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->parameter < y->parameter ? -1 : x->parameter > y->parameter;
}

struct drawing {
    const struct init_target *target;
    struct generator generator;
    uint64_t unused; /* words of the generator that come before the next values */
    float *piece;    /* PIECE values */
    int index;       /* of the parameter */
    const struct parameter *parameter;
    int64_t elements;           /* its */
    struct parameter_part part; /* wanted of it */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct generator *generator_here(struct drawing *drawing)
{
    generator_skip(&drawing->generator, drawing->unused);
    drawing->unused = 0;
    return &drawing->generator;
}

/* The zero row of an embedding with padding. */
static void clear_row(const struct parameter *parameter, int64_t first, int64_t count,
                      float *values)
{
    if (!parameter->has_zero_row) return;
    int64_t width = parameter->type.dims[1], row = parameter->zero_row * width;
    for (int64_t i = row > first ? row - first : 0; i < smaller(row + width - first, count); i++)
        values[i] = 0;
}

/* Passes on what is wanted of `count` values from element `first` on. */
static status_t pass_on(struct drawing *drawing, int64_t first, int64_t count)
{
    const struct init_target *target = drawing->target;
    const struct parameter_part *part = &drawing->part;
    struct parameter_part piece = {.offset = first > part->offset ? first : part->offset};
    piece.count = smaller(first + count, part->offset + part->count) - piece.offset;
    if (piece.count <= 0) return NULL;
    clear_row(drawing->parameter, first, count, drawing->piece);
    return target->set(target->user, drawing->index, piece,
                       drawing->piece + (piece.offset - first));
}

/* Draws the wanted ones of the first `end` elements; `draw` makes whole blocks of `block` values,
 * each value of one word. */
static status_t draw_blocks(struct drawing *drawing, int64_t end, int64_t block,
                            void (*draw)(struct drawing *drawing, int64_t count))
{
    int64_t begin = drawing->part.offset / block * block, count, words = 0;
    end = smaller(end, drawing->part.offset + drawing->part.count);
    for (int64_t at = begin; at < end; at += count) {
        count = smaller(PIECE, (end - at + block - 1) / block * block);
        if (at == begin) drawing->unused += (uint64_t)at;
        draw(drawing, count);
        words = at + count;
        TRY(pass_on(drawing, at, smaller(count, end - at)));
    }
    drawing->unused += (uint64_t)(drawing->elements - words);
    return NULL;
}

static void draw_uniform(struct drawing *drawing, int64_t count)
{
    double bound = drawing->parameter->bound;
    generator_fill_uniform(generator_here(drawing), (size_t)count, drawing->piece, -bound, bound);
}

static void draw_normal_blocks(struct drawing *drawing, int64_t count)
{
    generator_fill_normal_blocks(generator_here(drawing), (size_t)count / NORMAL_BLOCK,
                                 drawing->piece, 0, drawing->parameter->bound);
}

static status_t draw_normal(struct drawing *drawing)
{
    int64_t n = drawing->elements, tail = n - NORMAL_BLOCK;
    if (tail < 0) {
        generator_fill_normal(generator_here(drawing), (size_t)n, drawing->piece, 0,
                              drawing->parameter->bound);
        return pass_on(drawing, 0, n);
    }
    if (n % NORMAL_BLOCK == 0) return draw_blocks(drawing, n, NORMAL_BLOCK, draw_normal_blocks);
    TRY(draw_blocks(drawing, tail, NORMAL_BLOCK, draw_normal_blocks));
    if (drawing->part.offset + drawing->part.count <= tail) {
        drawing->unused += NORMAL_BLOCK;
        return NULL;
    }
    draw_normal_blocks(drawing, NORMAL_BLOCK);
    return pass_on(drawing, tail, NORMAL_BLOCK);
}

static status_t set_constant(struct drawing *drawing, float value)
{
    const struct parameter_part *part = &drawing->part;
    for (int64_t done = 0; done < part->count; done += PIECE) {
        int64_t count = smaller(PIECE, part->count - done);
        for (int64_t i = 0; i < count; i++) drawing->piece[i] = value;
        TRY(pass_on(drawing, part->offset + done, count));
    }
    return NULL;
}

static status_t draw_parameter(struct drawing *drawing)
{
    switch (drawing->parameter->init) {
    case INIT_UNIFORM: return draw_blocks(drawing, drawing->elements, 1, draw_uniform);
    case INIT_NORMAL: return draw_normal(drawing);
    case INIT_ZEROS: return set_constant(drawing, 0);
    case INIT_ONES: return set_constant(drawing, 1);
    case INIT_CONSTANT: return set_constant(drawing, (float)drawing->parameter->bound);
    }
    return NULL;
}

/* PyTorch draws a tied parameter too, before it is replaced: its values are passed over. */
static struct parameter_part wanted_part(const struct drawing *drawing)
{
    const struct init_target *target = drawing->target;
    if (drawing->parameter->tied_to >= 0) return (struct parameter_part){0};
    if (target->find_part != NULL) return target->find_part(target->user, drawing->index);
    return (struct parameter_part){.count = drawing->elements};
}

/* What parameter `p` begins with; the generator is behind it then. */
static status_t draw_one(struct drawing *drawing, const struct model *model, int p)
{
    drawing->index = p;
    drawing->parameter = &model->parameters[p];
    drawing->elements = tensor_element_count(&drawing->parameter->type);
    drawing->part = wanted_part(drawing);
    return draw_parameter(drawing);
}

/* Adapters come last, from a generator that is seeded again for the first of them. A parameter's
 * reference is drawn first, from where it begins. */
static status_t draw_all(const struct model *model, const struct draw *draws, const int *copy,
                         uint64_t seed, struct drawing *drawing)
{
    bool adapters = true;
    for (int i = 0; i < model->parameter_count; i++) {
        int p = draws[i].parameter;
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->reference) continue;
        if (parameter->adapter != adapters) {
            adapters = parameter->adapter;
            generator_seed(&drawing->generator, seed);
            drawing->unused = 0;
        }
        drawing->unused += (uint64_t)parameter->dropped;
        if (copy[p] > 0) {
            const struct generator generator = drawing->generator;
            uint64_t unused = drawing->unused;
            TRY(draw_one(drawing, model, copy[p]));
            drawing->generator = generator;
            drawing->unused = unused;
        }
        TRY(draw_one(drawing, model, p));
    }
    return NULL;
}

status_t init_draw(const struct model *model, uint64_t seed, const struct init_target *target)
{
    AUTO_FREE struct draw *draws = mem_alloc_array((size_t)model->parameter_count, sizeof *draws);
    AUTO_FREE int *copy = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *copy);
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].reference && model->parameters[i].tied_to < 0 &&
            model->parameters[i].of >= 0)
            copy[model->parameters[i].of] = i;
    for (int i = 0; i < model->parameter_count; i++)
        draws[i] = (struct draw){model->parameters[i].init_order, i};
    qsort(draws, (size_t)model->parameter_count, sizeof *draws, compare_draws);
    struct drawing drawing = {.target = target,
                              .piece = mem_alloc_array(PIECE, sizeof *drawing.piece)};
    status_t status = draw_all(model, draws, copy, seed, &drawing);
    free(drawing.piece);
    return status;
}
