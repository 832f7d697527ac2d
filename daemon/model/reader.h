/*
 * The stages of reading a model file, and what they share; private to model_parse. In order:
 * definition.c turns the YAML into definitions (the model's own and one per block), construct.c
 * builds the module tree from them, trace.c runs the forward sections symbolically into the
 * program, initial.c applies init and sharing.c tie and freeze. Everything here dies when
 * model_parse returns, except the model.
 */
#ifndef FSDPD_MODEL_READER_H
#define FSDPD_MODEL_READER_H

#include "model/program.h"
#include "yaml/yaml.h"

enum {
    MODEL_MAX_MODULES = 100000,
    MODEL_MAX_DEPTH = 256,      /* of the module tree */
    MODEL_MAX_CALLS = 100000,   /* of the forward program */
    MODEL_MAX_STEPS = 1000000,  /* of tracing, so that blocks that double their work stay bounded */
    MODEL_MAX_RECURSION = 1000, /* of tracing: expressions in blocks in blocks */
    MODEL_MAX_NAME_BYTES = 32 << 20, /* of all names together */
    MODEL_MAX_VARIABLES = 1000,      /* of one forward section */
    MODEL_MAX_BLOCK_ARGUMENTS = 16,
    MODEL_MAX_BLOCK_INPUTS = 8,
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
    int input_count;              /* tensors that it is called with: usually one, "x" */
    char *inputs[MODEL_MAX_BLOCK_INPUTS];
    struct definition_module *modules;
    int module_count, module_capacity;
    struct statement **forward;
    int forward_count, forward_capacity;
    bool open; /* being constructed: another one inside would never end */
};

enum module_role { ROLE_LEAF, ROLE_BLOCK, ROLE_SEQUENTIAL, ROLE_LIST };

/* What tracing must know of a module; beside model->modules, by the same index. */
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
};

/* "<file>:<line>: ..." */
status_t reader_error(const struct reader *reader, int line, const char *format, ...)
    FSDPD_PRINTF(3, 4);
status_t reader_wrap(const struct reader *reader, int line, status_t status);

/* Counts a name of `length` against MODEL_MAX_NAME_BYTES. */
status_t reader_count_name(struct reader *reader, int line, size_t length) FSDPD_MUST_USE;

/* definition.c */
status_t definitions_read(struct reader *reader, const struct yamldoc_node *root) FSDPD_MUST_USE;
void definition_deinit(struct definition *definition);
const struct definition *definition_find(const struct reader *reader, const char *name);

/* construct.c */
status_t model_construct(struct reader *reader) FSDPD_MUST_USE;

/* trace.c */
status_t model_trace(struct reader *reader) FSDPD_MUST_USE;

/* initial.c: the key init; may be NULL */
status_t model_set_init(struct model *model, const struct yamldoc_node *init) FSDPD_MUST_USE;

/* sharing.c: the keys tie and freeze; either may be NULL */
status_t model_tie(struct model *model, const struct yamldoc_node *tie) FSDPD_MUST_USE;
status_t model_freeze(struct model *model, const struct yamldoc_node *freeze) FSDPD_MUST_USE;

/* `text` behind the longest of the prefixes "torch.nn.functional.", "self." and so on that it has.
 */
const char *skip_python_prefix(const char *text);

#endif
