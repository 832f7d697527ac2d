/* Inside train/: what session.c sets up and run.c runs. */
#ifndef FSDPD_TRAIN_RUN_H
#define FSDPD_TRAIN_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/dataset.h"
#include "train/session.h"
#include "train/token_data.h"

struct train_session {
    struct train_job settings;   /* the job's, completed by what model and data say */
    const struct train_job *job; /* &settings */
    struct device *device;       /* borrowed */
    int rank;
    bool headers_only;

    struct model *model;
    struct weights *weights;            /* initial values from files; NULL: they are drawn */
    struct dataset train_set, test_set; /* images; test_set is empty without evaluation */
    struct token_data tokens;           /* tokens */
    struct graph *train_graph, *evaluate_graph;
    struct device_graph *train_lowered, *evaluate_lowered;
    /* What the graphs were built for, by parameter and by module: units_find_dtypes. */
    enum dtype *parameter_dtypes, *module_dtypes;
    int *groups; /* by parameter, as plan_options wants it; NULL without groups */
    struct unit_set *units;
    struct plan *plan;
    enum op_reduction reduction; /* of the training loss; an evaluation's is always a sum */

    uint32_t micro_steps;    /* training batches per step, but for an epoch's last one of images */
    uint64_t epoch_batches;  /* training batches per rank and epoch, of images */
    double epoch_steps;      /* training steps per epoch, of images a whole number */
    uint64_t evaluate_steps; /* batches per evaluation */
    uint32_t evaluate_batch; /* rows per rank and evaluation step */
    uint64_t steps;          /* training steps of the whole run */
    double step_flops;       /* of a training step, all ranks; nothing counted twice */

    _Atomic uint64_t step, memory_peak;
    struct run *run; /* while train_session_run runs; of its thread */

    pthread_mutex_t mutex; /* guards what follows: train_session_abort comes from other threads */
    char *abort_reason;    /* NULL until aborted */
    struct executor *executor;
    struct comm *comm;
};

/* Of the session's graphs, with other units. What was made before an error is the caller's too. */
status_t session_build_plan(struct train_session *session, const struct wrap_policy *wrap,
                            struct unit_set **units, struct plan **plan) FSDPD_MUST_USE;

/* Whether the host has, beside what this run has of it now, what `next` would pin there. */
status_t session_check_host(const struct train_session *session,
                            const struct plan *next) FSDPD_MUST_USE;

/* Lets train_session_abort reach another executor from now on. */
void session_set_executor(struct train_session *session, struct executor *executor);

/* ABORTED with the reason if the session was aborted. */
status_t session_check_abort(struct train_session *session) FSDPD_MUST_USE;

#endif
