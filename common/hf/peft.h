/* What peft, Hugging Face's library of adapters, has for them. Pure; any thread. */
#ifndef FSDPD_HF_PEFT_H
#define FSDPD_HF_PEFT_H

/* The modules that LoRA adapts in models of this type unless others are named, ending with NULL;
 * NULL if peft has no default for it. */
const char *const *peft_default_targets(const char *model_type);

#endif
