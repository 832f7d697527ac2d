/* oneDNN primitives ready to run; see program.h. */
#include "kernels/cpu/program.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { MAX_OPERANDS = 4, ALIGNMENT = 64 };

struct bound_operand {
    int argument, operand;
    dnnl_memory_t outer; /* the caller's */
    dnnl_memory_t inner; /* the primitive's, in the workspace; NULL if it uses the caller's */
    dnnl_primitive_t
        reorder;     /* from outer to inner for an input, from inner to outer for an output */
    uint64_t offset; /* of inner */
};

struct cpu_program {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    struct bound_operand operands[MAX_OPERANDS];
    int operand_count;
    const struct bound_operand *relu; /* the output before an activation; usually NULL */
    size_t relu_count;                /* its elements */
    dnnl_memory_t scratchpad;         /* NULL if no primitive needs one */
    uint64_t scratchpad_bytes, scratchpad_offset;
    uint64_t workspace_bytes;
};

status_t program_error(const struct kernel *kernel, const char *what, dnnl_status_t error)
{
    const char *name = error == dnnl_out_of_memory       ? "out of memory"
                       : error == dnnl_invalid_arguments ? "invalid arguments"
                       : error == dnnl_unimplemented     ? "unimplemented"
                                                         : "runtime error";
    enum status_code code = error == dnnl_out_of_memory   ? STATUS_RESOURCE_EXHAUSTED
                            : error == dnnl_unimplemented ? STATUS_UNIMPLEMENTED
                                                          : STATUS_INTERNAL;
    return status_new(code, "%s: oneDNN could not %s: %s", kernel_name(kernel), what, name);
}

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static dnnl_engine_t shared_engine;
static dnnl_status_t engine_error;

static void make_engine(void)
{
    engine_error = dnnl_engine_create(&shared_engine, dnnl_cpu, 0);
}

status_t program_engine(const struct kernel *kernel, dnnl_engine_t *engine)
{
    pthread_once(&engine_once, make_engine);
    TRY_DNNL(kernel, "make an engine", engine_error);
    *engine = shared_engine;
    return NULL;
}

static dnnl_status_t fill_attributes(dnnl_primitive_attr_t attributes, bool sum)
{
    dnnl_status_t error =
        dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (error != dnnl_success || !sum) return error;
    dnnl_post_ops_t operations;
    error = dnnl_post_ops_create(&operations);
    if (error != dnnl_success) return error;
    error = dnnl_post_ops_append_sum(operations, 1);
    if (error == dnnl_success) error = dnnl_primitive_attr_set_post_ops(attributes, operations);
    dnnl_post_ops_destroy(operations);
    return error;
}

status_t program_attributes(const struct kernel *kernel, bool sum,
                            dnnl_primitive_attr_t *attributes)
{
    dnnl_primitive_attr_t made;
    TRY_DNNL(kernel, "make attributes", dnnl_primitive_attr_create(&made));
    dnnl_status_t error = fill_attributes(made, sum);
    if (error != dnnl_success) {
        dnnl_primitive_attr_destroy(made);
        return program_error(kernel, "set attributes", error);
    }
    *attributes = made;
    return NULL;
}

/* Whether the library's gemm, which packs panels of both, is to be preferred; see program_matmul.
 */
static bool prefers_panels(const dnnl_matmul_desc_t *desc, bool sum)
{
    const dnnl_memory_desc_t *b = &desc->weights_desc;
    return b->ndims == 2 && b->data_type == dnnl_f32 && b->format_desc.blocking.strides[1] == 1 &&
           !(sum && desc->bias_desc.ndims > 0);
}

static dnnl_status_t choose_matmul(const dnnl_matmul_desc_t *desc, bool panels,
                                   dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *made)
{
    dnnl_primitive_desc_iterator_t iterator = NULL;
    dnnl_status_t error =
        dnnl_primitive_desc_iterator_create(&iterator, desc, attributes, shared_engine, NULL);
    if (error != dnnl_success) return error;
    *made = dnnl_primitive_desc_iterator_fetch(iterator);
    while (panels && dnnl_primitive_desc_iterator_next(iterator) == dnnl_success) {
        dnnl_primitive_desc_t next = dnnl_primitive_desc_iterator_fetch(iterator);
        const char *name = "";
        dnnl_primitive_desc_query(next, dnnl_query_impl_info_str, 0, &name);
        bool found = strcmp(name, "gemm:jit") == 0;
        dnnl_primitive_desc_destroy(found ? *made : next);
        if (!found) continue;
        *made = next;
        break;
    }
    dnnl_primitive_desc_iterator_destroy(iterator);
    return dnnl_success;
}

status_t program_matmul(const struct kernel *kernel, const dnnl_memory_desc_t formats[3],
                        const dnnl_memory_desc_t *bias, bool sum, dnnl_primitive_desc_t *made)
{
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    dnnl_matmul_desc_t desc;
    TRY_DNNL(kernel, "describe the product",
             dnnl_matmul_desc_init(&desc, &formats[0], &formats[1], bias, &formats[2]));
    dnnl_primitive_attr_t attributes = NULL;
    TRY(program_attributes(kernel, sum, &attributes));
    dnnl_status_t error = choose_matmul(&desc, prefers_panels(&desc, sum), attributes, made);
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(kernel, "prepare the product", error);
    return NULL;
}

static void program_free(void *state)
{
    struct cpu_program *program = state;
    for (int i = 0; i < program->operand_count; i++) {
        struct bound_operand *operand = &program->operands[i];
        if (operand->reorder != NULL) dnnl_primitive_destroy(operand->reorder);
        if (operand->inner != NULL) dnnl_memory_destroy(operand->inner);
        if (operand->outer != NULL) dnnl_memory_destroy(operand->outer);
    }
    if (program->scratchpad != NULL) dnnl_memory_destroy(program->scratchpad);
    if (program->primitive != NULL) dnnl_primitive_destroy(program->primitive);
    if (program->stream != NULL) dnnl_stream_destroy(program->stream);
    free(program);
}

/* Makes a primitive and records the scratch memory that it needs. */
static status_t make_primitive(struct kernel *kernel, dnnl_primitive_desc_t primitive_desc,
                               dnnl_primitive_t *primitive)
{
    struct cpu_program *program = kernel->state;
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    uint64_t bytes = scratchpad == NULL ? 0 : dnnl_memory_desc_get_size(scratchpad);
    TRY_DNNL(kernel, "make a primitive", dnnl_primitive_create(primitive, primitive_desc));
    if (bytes > program->scratchpad_bytes) program->scratchpad_bytes = bytes;
    return NULL;
}

status_t program_new(struct kernel *kernel, dnnl_primitive_desc_t primitive_desc)
{
    struct cpu_program *program = mem_alloc(sizeof *program);
    kernel->state = program;
    kernel->release = program_free;
    dnnl_engine_t engine = NULL;
    status_t status = program_engine(kernel, &engine);
    if (status == NULL) status = make_primitive(kernel, primitive_desc, &program->primitive);
    dnnl_primitive_desc_destroy(primitive_desc);
    TRY(status);
    TRY_DNNL(kernel, "make a stream",
             dnnl_stream_create(&program->stream, engine, dnnl_stream_default_flags));
    return NULL;
}

static uint64_t take_workspace(struct cpu_program *program, uint64_t bytes)
{
    uint64_t offset = program->workspace_bytes;
    program->workspace_bytes += round_up(bytes, ALIGNMENT);
    return offset;
}

static status_t make_reorder(struct kernel *kernel, const dnnl_memory_desc_t *from,
                             const dnnl_memory_desc_t *to, bool add, dnnl_primitive_t *reorder)
{
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    dnnl_primitive_attr_t attributes = NULL;
    TRY(program_attributes(kernel, add, &attributes));
    dnnl_primitive_desc_t primitive_desc = NULL;
    dnnl_status_t error =
        dnnl_reorder_primitive_desc_create(&primitive_desc, from, engine, to, engine, attributes);
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(kernel, "prepare a change of format", error);
    status_t status = make_primitive(kernel, primitive_desc, reorder);
    dnnl_primitive_desc_destroy(primitive_desc);
    return status;
}

status_t program_bind(struct kernel *kernel, int argument, int operand,
                      const dnnl_memory_desc_t *format, bool add)
{
    struct cpu_program *program = kernel->state;
    const_dnnl_primitive_desc_t primitive_desc;
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    TRY_DNNL(kernel, "describe a primitive",
             dnnl_primitive_get_primitive_desc(program->primitive, &primitive_desc));
    const dnnl_memory_desc_t *wanted =
        dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_exec_arg_md, argument);
    struct bound_operand *bound = &program->operands[program->operand_count++];
    bound->argument = argument;
    bound->operand = operand;
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_create(&bound->outer, format, engine, DNNL_MEMORY_NONE));
    if (!add && dnnl_memory_desc_equal(wanted, format)) return NULL;
    bound->offset = take_workspace(program, dnnl_memory_desc_get_size(wanted));
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_create(&bound->inner, wanted, engine, DNNL_MEMORY_NONE));
    bool output = operand >= PROGRAM_OUTPUT;
    return make_reorder(kernel, output ? wanted : format, output ? format : wanted, add,
                        &bound->reorder);
}

void program_follow_with_relu(struct kernel *kernel)
{
    struct cpu_program *program = kernel->state;
    const struct bound_operand *output = &program->operands[program->operand_count - 1];
    const dnnl_memory_desc_t *format = NULL;
    dnnl_memory_t memory = output->inner != NULL ? output->inner : output->outer;
    if (dnnl_memory_get_memory_desc(memory, &format) != dnnl_success) return;
    program->relu = output;
    program->relu_count =
        dnnl_memory_desc_get_size(format) / dtype_size(kernel->desc.outputs[0].dtype);
}

status_t program_finish(struct kernel *kernel)
{
    struct cpu_program *program = kernel->state;
    if (program->scratchpad_bytes > 0) {
        dnnl_engine_t engine = NULL;
        TRY(program_engine(kernel, &engine));
        dnnl_memory_desc_t format;
        dnnl_dims_t dims = {(dnnl_dim_t)program->scratchpad_bytes};
        TRY_DNNL(kernel, "describe memory",
                 dnnl_memory_desc_init_by_tag(&format, 1, dims, dnnl_u8, dnnl_a));
        TRY_DNNL(kernel, "describe memory",
                 dnnl_memory_create(&program->scratchpad, &format, engine, DNNL_MEMORY_NONE));
        program->scratchpad_offset = take_workspace(program, program->scratchpad_bytes);
    }
    kernel->workspace_bytes = program->workspace_bytes;
    kernel->held_bytes = sizeof *program;
    kernel->run = program_run;
    return NULL;
}

static status_t run_reorder(const struct kernel *kernel, const struct cpu_program *program,
                            const struct bound_operand *operand, bool output)
{
    dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_FROM, output ? operand->inner : operand->outer},
        {DNNL_ARG_TO, output ? operand->outer : operand->inner},
        {DNNL_ARG_SCRATCHPAD, program->scratchpad},
    };
    TRY_DNNL(kernel, "change a format",
             dnnl_primitive_execute(operand->reorder, program->stream,
                                    program->scratchpad != NULL ? 3 : 2, arguments));
    return NULL;
}

static status_t run_reorders(const struct kernel *kernel, const struct cpu_program *program,
                             bool outputs)
{
    for (int i = 0; i < program->operand_count; i++) {
        const struct bound_operand *operand = &program->operands[i];
        bool output = operand->operand >= PROGRAM_OUTPUT;
        if (operand->reorder != NULL && output == outputs)
            TRY(run_reorder(kernel, program, operand, output));
    }
    return NULL;
}

static void relu_part(const void *argument, size_t begin, size_t end)
{
    float *values = *(float *const *)argument;
    cpu_loops_get()->relu(end - begin, values + begin, values + begin, false);
}

static void relu_bf16_part(const void *argument, size_t begin, size_t end)
{
    uint16_t *values = *(uint16_t *const *)argument;
    cpu_loops_get()->relu_bf16(end - begin, values + begin, values + begin);
}

static void run_relu(const struct kernel *kernel, const struct cpu_program *program,
                     const struct kernel_call *call)
{
    bool bf16 = kernel->desc.outputs[0].dtype == DTYPE_BF16;
    void *values = program->relu->inner != NULL
                       ? (char *)call->workspace + program->relu->offset
                       : call->outputs[program->relu->operand - PROGRAM_OUTPUT];
    cpu_parallel(kernel->threads, program->relu_count, CPU_GRAIN, bf16 ? relu_bf16_part : relu_part,
                 &values);
}

status_t program_run(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct cpu_program *program = kernel->state;
    char *workspace = call->workspace;
    dnnl_exec_arg_t arguments[MAX_OPERANDS + 1];
    int count = 0;
    for (int i = 0; i < program->operand_count; i++) {
        const struct bound_operand *operand = &program->operands[i];
        void *memory = operand->operand >= PROGRAM_OUTPUT
                           ? call->outputs[operand->operand - PROGRAM_OUTPUT]
                           : (void *)call->inputs[operand->operand];
        TRY_DNNL(kernel, "set an address", dnnl_memory_set_data_handle(operand->outer, memory));
        if (operand->inner != NULL)
            TRY_DNNL(kernel, "set an address",
                     dnnl_memory_set_data_handle(operand->inner, workspace + operand->offset));
        arguments[count++] =
            (dnnl_exec_arg_t){operand->argument,
                              operand->inner != NULL ? operand->inner : operand->outer};
    }
    if (program->scratchpad != NULL) {
        TRY_DNNL(kernel, "set an address",
                 dnnl_memory_set_data_handle(program->scratchpad,
                                             workspace + program->scratchpad_offset));
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, program->scratchpad};
    }
    TRY(run_reorders(kernel, program, false));
    TRY_DNNL(kernel, "run",
             dnnl_primitive_execute(program->primitive, program->stream, count, arguments));
    if (program->relu != NULL) run_relu(kernel, program, call);
    TRY(run_reorders(kernel, program, true));
    TRY_DNNL(kernel, "finish", dnnl_stream_wait(program->stream));
    return NULL;
}
