/* Inside hf/: config.json, read key by key. */
#ifndef FSDPD_HF_CONFIG_H
#define FSDPD_HF_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "hf/hf.h"

/*
 * A configuration that is being read, or one of its objects. The first mistake is kept in *status;
 * from then on readers give what they were told to fall back on, so that one looks once, at the
 * end.
 */
struct config {
    json_t *root; /* NULL: an object that is not there */
    const char *file;
    const char *section; /* "rope_scaling."; "" for the whole */
    status_t *status;
};

/* Each reads a key of the root, or the fallback if it is not there or null. */
int64_t config_size(struct config *config, const char *key, int64_t fallback); /* from 1 */
int64_t config_integer(struct config *config, const char *key, int64_t low, int64_t high,
                       int64_t fallback);
double config_number(struct config *config, const char *key, double low, double high,
                     double fallback);
/* Of a dropout: 0 or more, and below 1. */
double config_probability(struct config *config, const char *key, double fallback);
bool config_boolean(struct config *config, const char *key, bool fallback);
const char *config_text(struct config *config, const char *key, const char *fallback);

bool config_has(const struct config *config, const char *key);

/* Keeps a mistake, unless there was one: "FILE: KEY: ...". */
void config_refuse(struct config *config, enum status_code code, const char *key,
                   const char *format, ...) FSDPD_PRINTF(4, 5);

/* Refuses the key if it is there and true. */
void config_refuse_true(struct config *config, const char *key);

/* One of its objects, whose keys are called "<section><key>". */
struct config config_inside(struct config *config, const char *key, const char *section);

/* The model file's function for an activation, "gelu_new" say: "GELU(approximate='tanh')". */
const char *config_activation(struct config *config, const char *key, const char *fallback);

/* A number as a model file has it: as short as can be without loss, and never an integer. */
const char *config_format(double value, char text[static 32]);

/* The architectures: each appends the model file. */
void gpt2_write(struct config *config, struct buf *out, bool *tied);
void llama_write(struct config *config, struct buf *out, bool *tied);
void bert_write(struct config *config, struct buf *out, bool *tied);

#endif
