/* Initial parameters; see init.h. */
#include "train/init.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "train/generator.h"

struct draw {
    int order, parameter;
};

static int compare_draws(const void *a, const void *b)
{
    const struct draw *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->parameter < y->parameter ? -1 : x->parameter > y->parameter;
}

static void fill(struct generator *generator, const struct parameter *parameter, size_t n,
                 float *values)
{
    switch (parameter->init) {
    case INIT_UNIFORM:
        generator_fill_uniform(generator, n, values, -parameter->bound, parameter->bound);
        break;
    case INIT_NORMAL: generator_fill_normal(generator, n, values, 0, parameter->bound); break;
    case INIT_ZEROS:
        for (size_t i = 0; i < n; i++) values[i] = 0;
        break;
    case INIT_ONES:
        for (size_t i = 0; i < n; i++) values[i] = 1;
        break;
    case INIT_CONSTANT:
        for (size_t i = 0; i < n; i++) values[i] = (float)parameter->bound;
        break;
    }
}

/* The zero row of an embedding with padding. */
static void clear_row(const struct parameter *parameter, float *values)
{
    if (!parameter->has_zero_row) return;
    size_t width = (size_t)parameter->type.dims[1];
    float *row = values + (size_t)parameter->zero_row * width;
    for (size_t i = 0; i < width; i++) row[i] = 0;
}

static status_t draw_all(const struct model *model, const struct draw *draws, uint64_t seed,
                         float *values, init_sink sink, void *user)
{
    struct generator generator;
    generator_seed(&generator, seed);
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[draws[i].parameter];
        fill(&generator, parameter, (size_t)tensor_element_count(&parameter->type), values);
        clear_row(parameter, values);
        /* PyTorch draws a tied parameter too, before it is replaced, so the generator must
         * advance. */
        if (parameter->tied_to < 0) TRY(sink(user, draws[i].parameter, values));
    }
    return NULL;
}

status_t init_draw(const struct model *model, uint64_t seed, init_sink sink, void *user)
{
    struct draw *draws = mem_alloc_array((size_t)model->parameter_count, sizeof *draws);
    int64_t largest = 1;
    for (int i = 0; i < model->parameter_count; i++) {
        int64_t elements = tensor_element_count(&model->parameters[i].type);
        if (elements > largest) largest = elements;
        draws[i] = (struct draw){model->parameters[i].init_order, i};
    }
    qsort(draws, (size_t)model->parameter_count, sizeof *draws, compare_draws);
    float *values = malloc((size_t)largest * sizeof *values);
    status_t status = values == NULL
                          ? status_new(STATUS_RESOURCE_EXHAUSTED,
                                       "no memory for a parameter of %" PRId64 " elements", largest)
                          : draw_all(model, draws, seed, values, sink, user);
    free(values);
    free(draws);
    return status;
}
