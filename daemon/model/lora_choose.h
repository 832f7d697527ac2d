/* Which modules get adapters; see lora.h. Private to libmodel. */
#ifndef FSDPD_MODEL_LORA_CHOOSE_H
#define FSDPD_MODEL_LORA_CHOOSE_H

#include "model/lora.h"

struct lora_choice {
    int rank;                /* 0: it has no adapter */
    bool embedding;          /* its inputs are tokens, or other indices */
    int64_t inputs, outputs; /* of the module, if it has one */
    double scale;
    bool saved; /* its own parameters are trained */
};

/* Fills in a zeroed choice per module. */
status_t lora_choose(const struct model *model, const struct model_lora *lora,
                     struct lora_choice *choices) FSDPD_MUST_USE;

#endif
