/*
 * The stages of reading a model file, and the state they share; private to model_parse. In order:
 * values.c reads the model's arguments, definition.c turns the YAML into definitions (the model's
 * own and one per block), construct.c builds the module tree from them, trace.c runs the forward
 * sections symbolically and writes the program, initial.c applies init and sharing.c tie and
 * freeze. All of it is freed when model_parse returns, except the model.
 */
#ifndef FSDPD_MODEL_READER_H
#define FSDPD_MODEL_READER_H

#include "model/program.h"
#include "yaml/yaml.h"

enum {
    MODEL_MAX_MODULES = 10000,
    MODEL_MAX_DEPTH = 256,           /* of the module tree */
    MODEL_MAX_CALLS = 20000,         /* of the forward program */
    MODEL_MAX_STEPS = 1000000,       /* of tracing; bounds the work of blocks that double it */
    MODEL_MAX_RECURSION = 1000,      /* of tracing: expressions in blocks in blocks */
    MODEL_MAX_NAME_BYTES = 32 << 20, /* of all names together */
    MODEL_MAX_VARIABLES = 1000,      /* of one forward section */
    MODEL_MAX_BLOCK_ARGUMENTS = 16,
    MODEL_MAX_BLOCK_INPUTS = 8,
    MODEL_MAX_TEXTS = 16,      /* of a sample */
    MODEL_MAX_ARGUMENTS = 256, /* of the model */
};

struct definition_module {
    const char *name; /* borrowed from the YAML tree */
    int line;
    struct expression *constructor;
};

/* A block, or, at index 0, the model itself. */
struct definition {
    char *name;
    int line;
    int argument_count;
    char *arguments[MODEL_MAX_BLOCK_ARGUMENTS];
    bool required[MODEL_MAX_BLOCK_ARGUMENTS];
    struct constant standards[MODEL_MAX_BLOCK_ARGUMENTS];
    struct expression *signature; /* owns the texts in `standards` */
    int input_count;              /* number of tensors that it is called with: usually one, "x" */
    char *inputs[MODEL_MAX_BLOCK_INPUTS];
    struct definition_module *modules;
    int module_count, module_capacity;
    struct statement **forward;
    int forward_count, forward_capacity;
    bool open; /* under construction: an instance inside of it would never end */
};

enum module_role { ROLE_LEAF, ROLE_BLOCK, ROLE_SEQUENTIAL, ROLE_LIST };

/* A module's state for tracing; parallel to model->modules. */
struct module_state {
    enum module_role role;
    struct layer layer;                  /* of a leaf */
    const struct definition *definition; /* of a block */
    struct constant *arguments;          /* of a block */
    int uses;                            /* calls of a leaf so far */
    int *function_uses;                  /* of a block, by op kind; NULL before the first */
    int *sorted_children;                /* by name; NULL before the first search */
};

struct reader {
    const char *file;
    struct model *model;
    struct definition *definitions;
    int definition_count, definition_capacity;
    struct module_state *states;
    int state_capacity, module_capacity, parameter_capacity;
    size_t name_bytes;
    int steps;
    uint32_t dropouts;
    struct statement *loss; /* as "loss = ..." */

    struct environment environment; /* the model's arguments; texts belong to the YAML tree */
    const char *argument_names[MODEL_MAX_ARGUMENTS];
    struct constant argument_values[MODEL_MAX_ARGUMENTS];
    struct constant **lists; /* the lists among the arguments: their elements */
    int list_count, list_capacity;
};

/* "<file>:<line>: ..." */
status_t reader_error(const struct reader *reader, int line, const char *format, ...)
    FSDPD_PRINTF(3, 4);
status_t reader_wrap(const struct reader *reader, int line, status_t status);

/* Counts a name of `length` bytes against MODEL_MAX_NAME_BYTES. */
status_t reader_count_name(struct reader *reader, int line, size_t length) FSDPD_MUST_USE;

/* values.c: reads the key args, which may be NULL. `set` overrides values, and must outlive the
 * reader. */
status_t arguments_read(struct reader *reader, const struct yamldoc_node *args,
                        const struct model_argument *set, int set_count) FSDPD_MUST_USE;

/* Evaluates a constant expression over the model's arguments; errors name the node's place. */
status_t reader_evaluate(const struct reader *reader, const struct yamldoc_node *node,
                         const char *text, struct constant *value) FSDPD_MUST_USE;

/* Reads a number, or an expression over the model's arguments. A size is at least 1, a real number
 * lies between bounds, a flag is true or false. */
status_t reader_read_size(const struct reader *reader, const struct yamldoc_node *node,
                          int64_t *size) FSDPD_MUST_USE;
status_t reader_read_real(const struct reader *reader, const struct yamldoc_node *node, double low,
                          double high, double *real) FSDPD_MUST_USE;
status_t reader_read_flag(const struct reader *reader, const struct yamldoc_node *node,
                          bool *flag) FSDPD_MUST_USE;
/* Whether a value is null, or an expression that is None. */
status_t reader_is_none(const struct reader *reader, const struct yamldoc_node *node,
                        bool *none) FSDPD_MUST_USE;

/* definition.c */
status_t definitions_read(struct reader *reader, const struct yamldoc_node *root) FSDPD_MUST_USE;
void definition_deinit(struct definition *definition);
const struct definition *definition_find(const struct reader *reader, const char *name);

/* construct.c */
status_t model_construct(struct reader *reader) FSDPD_MUST_USE;

/* trace.c */
status_t model_trace(struct reader *reader) FSDPD_MUST_USE;

/* initial.c: the key init; may be NULL */
status_t model_set_init(struct reader *reader, const struct yamldoc_node *init) FSDPD_MUST_USE;

/* sharing.c: the keys tie and freeze; either may be NULL */
status_t model_tie(struct reader *reader, const struct yamldoc_node *tie) FSDPD_MUST_USE;
status_t model_freeze(struct model *model, const struct yamldoc_node *freeze) FSDPD_MUST_USE;

/* `text` without the longest of the prefixes "torch.nn.functional.", "self." and so on that it
 * has. */
const char *skip_python_prefix(const char *text);

#endif
