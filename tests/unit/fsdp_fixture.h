/*
 * Models, graphs and lowerings, fixed or random, for the tests of units and plans. They contain
 * only what planning reads; none of them can run.
 */
#ifndef FSDPD_TESTS_FSDP_FIXTURE_H
#define FSDPD_TESTS_FSDP_FIXTURE_H

#include "fsdp/plan.h"
#include "model/graph.h"
#include "model/model.h"

/* A model under construction; modules and parameters must be added depth first. */
struct model *fixture_model_new(const char *type);
int fixture_module(struct model *model, int parent, const char *name, const char *type,
                   const char *print);
/* dims end in 0; returns the parameter. */
int fixture_parameter(struct model *model, int module, const char *name, const int64_t *dims);
/* A Linear with weight and bias. */
int fixture_linear(struct model *model, int parent, const char *name, int64_t in, int64_t out);
int fixture_conv(struct model *model, int parent, const char *name, int64_t in, int64_t out,
                 int64_t kernel);

struct model *fixture_mnist(void);
/* GPT-2 124M as nanoGPT builds it: transformer is a ModuleDict, the head is tied to wte. */
struct model *fixture_gpt2(void);

/* xorshift; seed 0 is not allowed. */
struct fixture_random {
    uint64_t state;
};
uint64_t fixture_draw(struct fixture_random *random, uint64_t below);

/* Random trees of Linears with ties, frozen parameters and containers. */
struct model *fixture_random_model(struct fixture_random *random);
/* A random graph that uses all parameters, with its gradients if `train`. */
struct graph *fixture_random_graph(struct fixture_random *random, const struct model *model,
                                   int64_t batch, bool train);
struct graph *fixture_mnist_graph(const struct model *model, int64_t batch, bool train);

/* Views for reshapes and in-place element-wise ops; `random` (may be NULL) omits some and adds
 * scratch memory. */
struct fixture_lowering {
    struct lowering lowering;
    uint64_t *workspace_bytes;
    bool *view, *in_place;
};
void fixture_lower(struct fixture_lowering *lowered, const struct graph *graph,
                   struct fixture_random *random);
void fixture_lowering_deinit(struct fixture_lowering *lowered);

#endif
