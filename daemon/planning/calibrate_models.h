/* The networks whose steps a calibration measures. Internal to this room. Pure. */
#ifndef FSDPD_PLANNING_CALIBRATE_MODELS_H
#define FSDPD_PLANNING_CALIBRATE_MODELS_H

#include <stdbool.h>
#include <stdint.h>

enum calibrate_model {
    CALIBRATE_GPT,    /* LayerNorm, GELU, one projection for query, key and value */
    CALIBRATE_LLAMA,  /* RMSNorm, rotary positions, gates, grouped queries */
    CALIBRATE_BERT,   /* biases, dropout, a mask of keys, tied embeddings */
    CALIBRATE_IMAGES, /* convolutions, pooling */
    CALIBRATE_MODEL_COUNT
};

/* How large: the width of a layer, rows of a batch, tokens of a row. */
struct calibrate_size {
    int width, batch, context;
};

extern const struct calibrate_size calibrate_sizes[];
extern const int calibrate_size_count;

/* The model file; the caller frees it. */
char *calibrate_model_text(enum calibrate_model model, const struct calibrate_size *size);
const char *calibrate_model_name(enum calibrate_model model);

/* Floating-point operations of a step, roughly: to see whether there is time for it. */
double calibrate_model_flops(enum calibrate_model model, const struct calibrate_size *size);

#endif
