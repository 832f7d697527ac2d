/*
 * The manifest of a checkpoint: what was saved, where in the files of the ranks every element of
 * every parameter and optimizer slot lies, and the entries of the state_dict. A checkpoint is a
 * directory with one safetensors file per rank ("rank-00000.safetensors") and "manifest.json". In a
 * file there is one run of f32 per unit and array: "unit.3.parameters" and "unit.3.slot.0" are
 * rank-th parts of the unit's flat parameter and of what the optimizer keeps for it. Where that is
 * in 8 bits it is a run of bytes, the words of fsdp/slots.h. A unit that several groups of ranks
 * hold copies of is saved by one of these groups, so that nothing is saved twice. The manifest has
 * the sums of all files, and as its last member the SHA-256 of its own text up to there. Pure.
 */
#ifndef FSDPD_CHECKPOINT_MANIFEST_H
#define FSDPD_CHECKPOINT_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "checkpoint/state_header.h"
#include "digest/digest.h"
#include "fsdp/slots.h"
#include "ops/op.h"

enum {
    MANIFEST_MAX = 256 << 20, /* bytes of its text */
    MANIFEST_WORLD_MAX = 4096,
    MANIFEST_UNITS_MAX = 1 << 20,
    MANIFEST_SLOTS_MAX = 8,
    MANIFEST_REPORTS_MAX = 16 << 20, /* bytes of that file */
};

#define MANIFEST_FILE "manifest.json"
#define MANIFEST_REPORTS_FILE "reports.pb"
#define MANIFEST_ELEMENTS_MAX (INT64_C(1) << 48)

/* Sums over steps, since something began. */
struct tally {
    double loss, correct, samples; /* of all ranks; samples: targets that count */
    double weight;                 /* of these targets, in the loss */
    double not_finite;             /* the loss of steps that `loss` and `weight` leave out; not
                                    * saved */
    double tokens;                 /* of all ranks' windows */
    double preference[PREFERENCE_SUMS]; /* of pairs (ops/op.h), all ranks; else 0 */
    uint64_t steps;
    int64_t ns; /* wall time of the steps */
    int64_t compute_ns, comm_ns, exposed_ns;
};

/* What train.early_stop or checkpoint.best has seen; see train/early.h. */
struct saved_early_stop {
    bool known;     /* there was an evaluation */
    double best;    /* the best one's metric */
    uint64_t step;  /* and its step */
    uint64_t stale; /* evaluations since that were not better */
};

/* The job's position in its run, which it needs to continue besides parameters and slots. */
struct saved_progress {
    uint64_t step;    /* training steps done */
    uint64_t rows;    /* that all ranks together have taken: of the epoch, or, of tokens, in all */
    uint64_t epochs;  /* that are over */
    uint64_t updates; /* steps that changed parameters */
    uint64_t skipped_steps;       /* the others */
    double epoch_rate;            /* the learning rate before the step's factor */
    double gradient_norm;         /* of the last step */
    struct tally interval, epoch; /* since the last metrics; since the epoch began */
    int64_t evaluation_ns;
    bool validated; /* the rest is known */
    double validation_loss;
    uint64_t validation_step;
    uint32_t evaluated;    /* the sets that were evaluated after `step`, as bits, */
    uint64_t evaluated_of; /* if the sets' names still have this hash */
    struct saved_early_stop early_stop, best;
    uint64_t base; /* a hash of the parameters that are not saved; 0: all are, or it is not known */
};

/* Whether no evaluation of the run until then was better than that of this step. */
static inline bool saved_is_best(const struct saved_progress *progress)
{
    return progress->best.known && progress->best.step == progress->step;
}

struct saved_parameter {
    char *name;
    int64_t elements, offset; /* in the unit's flat parameter */
    int64_t words;            /* of it in the slot of the unit's shape; otherwise its elements */
};

struct saved_unit {
    char *name;
    int64_t shard;               /* elements of one rank's part */
    int shard_world, first_rank; /* the ranks that saved it: that many, starting with first_rank */
    int slots;
    struct saved_parameter *parameters;
    int parameter_count;
    bool rounded;              /* its parameters are in bf16 */
    enum slot_shape shape;
    struct slot_layout layout; /* of its slots, from the rest */
};

struct saved_file {
    uint64_t bytes;
    struct digest sum; /* see block_sums.h */
};

struct manifest {
    struct digest sum; /* of the text; set by manifest_read, and not written from here */
    char *run;         /* names the job's run: no other run continues from its checkpoints */
    char *job, *optimizer;
    bool averages; /* the last slot of every unit that has any is its average over steps */
    enum state_dtype state; /* of the optimizer */
    uint32_t attempt;
    int64_t time_ms; /* wall clock */
    uint64_t plan_hash;
    struct saved_progress progress;
    struct saved_unit *units;
    int unit_count;
    struct state_entry *entries; /* of the state_dict, in the model's order */
    int entry_count;
    struct saved_file *files; /* (world) */
    int world;
    struct saved_file reports; /* beside them, of 0 bytes: none; see capture_target */
};

void manifest_write(const struct manifest *manifest, struct buf *out);

/* Ends a text that manifest_write's JSON begins, up to its last brace, with its sum. */
void manifest_seal(struct buf *text);

/* Hostile input: the content must match its checksum and be consistent, otherwise INVALID_ARGUMENT
 * names the place. FAILED_PRECONDITION: another version of fsdpd wrote it. `file` is for
 * messages. */
status_t manifest_read(const char *text, size_t length, const char *file,
                       struct manifest *manifest) FSDPD_MUST_USE;
void manifest_deinit(struct manifest *manifest);

/* Sets the layout of a unit's slots, from its parameters and shards. */
void manifest_lay_out(struct saved_unit *unit, enum state_dtype state);

/* Bytes of all files. */
uint64_t manifest_bytes(const struct manifest *manifest);

/* "rank-00003.safetensors"; `name` holds at least 32 bytes. Returns it. */
char *manifest_file_name(int rank, char name[static 32]);
/* "unit.3.parameters" for slot -1, "unit.3.slot.0"; `name` holds at least 48 bytes. Returns it. */
char *manifest_tensor_name(int unit, int slot, char name[static 48]);

#endif
