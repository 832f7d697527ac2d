/* The adapters of a job (model.lora) in its state_dict: which tensors are theirs, and peft's
 * description of them. */
#ifndef FSDPD_CLIENT_ADAPTER_H
#define FSDPD_CLIENT_ADAPTER_H

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "hf/safetensors.h"

bool adapter_given(const Fsdpd__V1__ModelSpec *model);

/* Whether an adapter's file has the tensor: one of its matrices, or one of a module that was saved
 * whole. */
bool adapter_has(const Fsdpd__V1__LoraSpec *lora, const char *tensor);

/* The factor of the product of this rank that a module's adapter has. */
double adapter_scale(const Fsdpd__V1__LoraSpec *lora, const char *module, int64_t rank);

/* Whether matrices of modules are transposed, as those of GPT-2. */
bool adapter_transposed(const Fsdpd__V1__ModelSpec *model);

/* Appends adapter_config.json for a state_dict with this header; `architecture` may be "". */
void adapter_describe(const Fsdpd__V1__ModelSpec *model, const struct safetensors_header *header,
                      const char *architecture, struct buf *out);

#endif
