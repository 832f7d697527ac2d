/* Inside setup/: the state of a session, which session.c sets up and run.c uses; and its steps. */
#ifndef FSDPD_SETUP_SESSION_STATE_H
#define FSDPD_SETUP_SESSION_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/image_set.h"
#include "data/token_data.h"
#include "setup/decoder.h"
#include "setup/session.h"

/* What evaluations read: the first is of the job's own data, the others are its held_out. */
struct evaluation_set {
    const char *name; /* "": the first */
    uint64_t every_steps;
    const struct token_data *tokens; /* NULL: images of held_out */
    const struct image_set *images;  /* NULL: tokens */
    struct token_data own;           /* of held_out */
    struct image_set own_images;     /* likewise */
    uint64_t steps;                  /* batches */
};

struct train_session {
    struct train_job settings;   /* the job's, completed with values from the model and the data */
    const struct train_job *job; /* &settings */
    struct device *device;       /* borrowed */
    int rank;
    bool headers_only;

    struct model *model;
    struct weights *weights;              /* initial values from files; NULL: draw them */
    struct model *teacher;                /* that the model has in it; NULL: none */
    struct weights *teacher_weights;      /* of its own parameters; NULL: they are not needed */
    int teacher_first;                    /* the model's parameter that is its first one */
    struct image_set train_set, test_set; /* images; test_set is empty without evaluation */
    struct token_data tokens;             /* tokens */
    struct graph *train_graph, *evaluate_graph;
    struct device_graph *train_lowered, *evaluate_lowered;
    /* The types that the graphs were built for, by parameter and by module: units_find_dtypes. */
    enum dtype *parameter_dtypes, *module_dtypes;
    int *groups; /* by parameter, for plan_options; NULL without groups */
    bool *matrices; /* by parameter: see optimizer_find_matrices */
    bool *halved;   /* by parameter: see wrap_policy; NULL: none */
    struct unit_set *units;
    struct plan *plan;
    struct decoder_bytes samples; /* of the job's reserve, with this plan */
    uint64_t samples_not_held;    /* see train_outside */
    enum op_reduction reduction; /* of the training loss; an evaluation's is always a sum */

    uint32_t micro_steps;    /* training batches per step, except an epoch's last step of images */
    uint64_t epoch_batches;  /* training batches per rank and epoch, for images */
    double epoch_steps;      /* training steps per epoch, for images a whole number */
    struct evaluation_set *sets; /* none if the job does not evaluate */
    int set_count;
    uint32_t evaluate_batch; /* rows per rank and evaluation step */
    uint64_t steps;          /* training steps of the whole run */
    double step_flops;       /* of a training step on all ranks, without repetitions */

    _Atomic uint64_t step, memory_peak;
    _Atomic bool evaluates;
    _Atomic uint64_t evaluated_batch; /* the last one begun, of all evaluations of the run */
    _Atomic int64_t own_ns;      /* see train_session_own_ns */
    _Atomic(const char *) place; /* see train_session_look; NULL: not in a run */
    _Atomic int64_t place_since_ns;
    struct run *run; /* while train_session_run runs; used on its thread */

    pthread_mutex_t mutex; /* guards the members below: other threads call train_session_abort */
    char *abort_reason;    /* NULL until aborted */
    char *early_end;       /* why a run ended before its last step; NULL: it did not */
    struct executor *executor;
    struct comm *comm;
    struct train_spare spare; /* of it, train_session_abort uses the communicator */
};

/* describe.c: batches and micro-batches of each rank, from the job's global batch if it has one. */
status_t session_divide_global_batch(struct train_session *session) FSDPD_MUST_USE;

/* describe.c: opens the data, or with headers_only only what says how much it is; counts steps. */
status_t session_read_sizes(struct train_session *session) FSDPD_MUST_USE;

/* build.c: the graphs, for the types of the first units, which later units must keep. */
status_t session_build_graphs(struct train_session *session) FSDPD_MUST_USE;

/* build.c: units and a plan for the session's graphs. After an error the caller frees what was
 * made. */
status_t session_build_plan(struct train_session *session, const struct wrap_policy *wrap,
                            struct unit_set **units, struct plan **plan) FSDPD_MUST_USE;

/* outside.c: fills in `samples`, if the job reserves memory for them: units are held for a call
 * where that fits in `memory_bytes` of the device, beside all that is planned. */
status_t session_measure_samples(struct train_session *session,
                                 uint64_t memory_bytes) FSDPD_MUST_USE;

/* Opens a held-out set; it must not move, and the caller closes `own`, also after an error. */
status_t session_open_set(const struct train_session *session, const struct held_out *held,
                          struct evaluation_set *set) FSDPD_MUST_USE;

/* Whether the host can pin the memory of `next`, in addition to this run's. */
status_t session_check_host(const struct train_session *session,
                            const struct plan *next) FSDPD_MUST_USE;

/* Gives train_session_abort the executor to abort from now on. */
void session_set_executor(struct train_session *session, struct executor *executor);

/* Notes where the run is from now on, a constant text; see train_session_look. */
void session_at(struct train_session *session, const char *place);

/* Whether some units are in no checkpoint (model.base_dtype). */
bool session_has_base(const struct train_session *session);

/* ABORTED with the reason if the session was aborted. */
status_t session_check_abort(struct train_session *session) FSDPD_MUST_USE;

#endif
