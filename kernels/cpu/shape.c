/*
 * Ops that move elements between shapes, of f32 or bf16, in contiguous runs; and means over a
 * dimension, which on bf16 run on f32 copies.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct shape_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    size_t size; /* of an element in bytes */
    bool add;    /* f32 only */
};

static struct shape_job make_job(const struct kernel *kernel, const struct kernel_call *call)
{
    return (struct shape_job){&kernel->desc, call, dtype_size(kernel->desc.outputs[0].dtype),
                              kernel->desc.accumulate[0]};
}

/* Copies or adds a run of elements; places in elements. */
static void move(const struct shape_job *job, void *to, size_t to_place, const void *from,
                 size_t from_place, size_t count)
{
    char *target = (char *)to + to_place * job->size;
    const char *source = (const char *)from + from_place * job->size;
    if (job->add)
        cpu_loops_get()->copy_add(count, (float *)(void *)target,
                                  (const float *)(const void *)source);
    else memcpy(target, source, count * job->size);
}

/* Splits the work into `parts` of about `elements` each. */
static void split(const struct kernel *kernel, const struct shape_job *job, int64_t parts,
                  int64_t elements, void (*function)(const void *, size_t, size_t))
{
    size_t grain = elements >= CPU_GRAIN ? 1 : (size_t)(CPU_GRAIN / (elements > 0 ? elements : 1));
    cpu_parallel(kernel->threads, (size_t)parts, grain, function, job);
}

/* ---- Transpose ---- */

/* x as (outer, a, mid, b, inner). */
struct transposition {
    size_t outer, a, mid, b, inner;
};

static struct transposition transposition_of(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0];
    const int64_t *dims = desc->attrs.transpose.dims;
    struct op_dim first = op_dim_of(x, dims[0]), second = op_dim_of(x, dims[1]);
    return (struct transposition){.outer = (size_t)first.outer,
                                  .a = (size_t)first.count,
                                  .mid = (size_t)(first.inner / (second.count * second.inner)),
                                  .b = (size_t)second.count,
                                  .inner = (size_t)second.inner};
}

/* A row of y: all of (mid, a, inner) for one place of outer and b. */
static void transpose_row(const struct shape_job *job, const struct transposition *t, size_t row)
{
    const void *x = job->call->inputs[0];
    void *y = job->call->outputs[0];
    size_t o = row / t->b, b = row % t->b, to = row * t->mid * t->a * t->inner;
    for (size_t m = 0; m < t->mid; m++)
        for (size_t a = 0; a < t->a; a++, to += t->inner) {
            size_t from = (((o * t->a + a) * t->mid + m) * t->b + b) * t->inner;
            move(job, y, to, x, from, t->inner);
        }
}

static void transpose_part(const void *argument, size_t begin, size_t end)
{
    const struct shape_job *job = argument;
    const struct transposition t = transposition_of(job->desc);
    for (size_t row = begin; row < end; row++) transpose_row(job, &t, row);
}

/* Matrices of f32. */
static void matrix_part(const void *argument, size_t begin, size_t end)
{
    const struct shape_job *job = argument;
    const struct transposition t = transposition_of(job->desc);
    for (size_t o = begin; o < end; o++) {
        size_t place = o * t.a * t.b;
        cpu_loops_get()->transpose(t.a, t.b, (float *)job->call->outputs[0] + place,
                                   (const float *)job->call->inputs[0] + place, job->add);
    }
}

static status_t run_transpose(const struct kernel *kernel, const struct kernel_call *call)
{
    struct shape_job job = make_job(kernel, call);
    struct transposition t = transposition_of(job.desc);
    if (t.mid == 1 && t.inner == 1 && job.size == sizeof(float))
        split(kernel, &job, (int64_t)t.outer, (int64_t)(t.a * t.b), matrix_part);
    else
        split(kernel, &job, (int64_t)(t.outer * t.b), (int64_t)(t.mid * t.a * t.inner),
              transpose_part);
    return NULL;
}

/* ---- Concatenation ---- */

static void concat_part(const void *argument, size_t begin, size_t end)
{
    const struct shape_job *job = argument;
    const struct tensor_type *y = &job->desc->outputs[0];
    struct op_dim view = op_dim_of(y, job->desc->attrs.concat.dim);
    size_t whole = (size_t)(view.count * view.inner), first = 0;
    for (int k = 0; k < 2; k++) {
        const struct tensor_type *type = &job->desc->inputs[k];
        int64_t missing = y->dim_count - type->dim_count;
        struct op_dim part = op_dim_of(type, job->desc->attrs.concat.dim - missing);
        size_t row = (size_t)(part.count * part.inner), rows = (size_t)part.outer;
        for (size_t o = begin; o < end; o++)
            move(job, job->call->outputs[0], o * whole + first, job->call->inputs[k],
                 o % rows * row, row);
        first += row;
    }
}

static status_t run_concat(const struct kernel *kernel, const struct kernel_call *call)
{
    struct shape_job job = make_job(kernel, call);
    struct op_dim view = op_dim_of(&job.desc->outputs[0], job.desc->attrs.concat.dim);
    split(kernel, &job, view.outer, view.count * view.inner, concat_part);
    return NULL;
}

/* ---- Means, of f32 ---- */

enum { COLUMNS = 256 };

/* The places that a mean is over: those from `begin` to `end` whose mask is not 0. */
struct mean_places {
    const uint8_t *mask; /* NULL: all */
    int64_t begin, end;
    double scale;
};

static struct mean_places mean_places_of(const struct shape_job *job, int64_t row, int64_t count)
{
    struct mean_places places = {.end = count,
                                 .scale = job->desc->attrs.mean.sum ? 1 : 1 / (double)count};
    if (!job->desc->input_present[1]) return places;
    places.mask = (const uint8_t *)job->call->inputs[1] + row * count;
    int64_t selected = 0, last = 0;
    for (int64_t n = 0; n < count; n++) {
        selected += places.mask[n] != 0;
        if (places.mask[n] != 0) last = n;
    }
    if (job->desc->attrs.mean.last)
        return (struct mean_places){.begin = last, .end = last + 1, .scale = 1};
    places.scale = selected > 0 ? 1 / (double)selected : 0;
    return places;
}

/* Sums in double, some columns at a time. */
static void mean_row(const struct op_dim *view, const struct mean_places *places, const float *x,
                     float *y, bool add)
{
    for (int64_t first = 0; first < view->inner; first += COLUMNS) {
        double sums[COLUMNS] = {0};
        int64_t columns = view->inner - first < COLUMNS ? view->inner - first : COLUMNS;
        for (int64_t n = places->begin; n < places->end; n++) {
            if (places->mask != NULL && places->mask[n] == 0) continue;
            for (int64_t i = 0; i < columns; i++) sums[i] += x[n * view->inner + first + i];
        }
        for (int64_t i = 0; i < columns; i++) {
            float mean = (float)(sums[i] * places->scale);
            y[first + i] = add ? y[first + i] + mean : mean;
        }
    }
}

static void mean_part(const void *argument, size_t begin, size_t end)
{
    const struct shape_job *job = argument;
    struct op_dim view = op_dim_of(&job->desc->inputs[0], job->desc->attrs.mean.dim);
    for (size_t o = begin; o < end; o++) {
        struct mean_places places = mean_places_of(job, (int64_t)o, view.count);
        mean_row(&view, &places,
                 (const float *)job->call->inputs[0] + (int64_t)o * view.count * view.inner,
                 (float *)job->call->outputs[0] + (int64_t)o * view.inner, job->add);
    }
}

/* All places of one mean: those that it is not over get 0. */
static void mean_backward_part(const void *argument, size_t begin, size_t end)
{
    const struct shape_job *job = argument;
    struct op_dim view = op_dim_of(&job->desc->outputs[0], job->desc->attrs.mean.dim);
    for (size_t o = begin; o < end; o++) {
        struct mean_places places = mean_places_of(job, (int64_t)o, view.count);
        const float *dy = (const float *)job->call->inputs[0] + (int64_t)o * view.inner;
        float *dx = (float *)job->call->outputs[0] + (int64_t)o * view.count * view.inner;
        for (int64_t n = 0; n < view.count; n++, dx += view.inner) {
            bool inside =
                n >= places.begin && n < places.end && (places.mask == NULL || places.mask[n] != 0);
            float scale = inside ? (float)places.scale : 0;
            for (int64_t i = 0; i < view.inner; i++)
                dx[i] = job->add ? dx[i] + dy[i] * scale : dy[i] * scale;
        }
    }
}

static status_t run_mean(const struct kernel *kernel, const struct kernel_call *call)
{
    struct shape_job job = make_job(kernel, call);
    bool forward = kernel->desc.kind == OP_MEAN;
    struct op_dim view =
        op_dim_of(forward ? &job.desc->inputs[0] : &job.desc->outputs[0], job.desc->attrs.mean.dim);
    split(kernel, &job, view.outer, view.count * view.inner,
          forward ? mean_part : mean_backward_part);
    return NULL;
}

status_t cpu_prepare_shape(struct kernel *kernel)
{
    switch (kernel->desc.kind) {
    case OP_TRANSPOSE: kernel->run = run_transpose; break;
    case OP_CONCAT: kernel->run = run_concat; break;
    default: kernel->run = run_mean; break;
    }
    return NULL;
}
