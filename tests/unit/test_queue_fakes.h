/* A world with up to six fakes, for tests of jobs that give up their workers. */
#ifndef FSDPD_TEST_QUEUE_FAKES_H
#define FSDPD_TEST_QUEUE_FAKES_H

#include <stdlib.h>
#include <string.h>

#include "test_queue_world.h"

enum { WORKERS = 6 };

static struct world world;
static struct fake fakes[WORKERS];
static int attached;

static inline void tear_down(void)
{
    for (int i = 0; i < attached; i++) fake_deinit(&fakes[i]);
    world_deinit(&world);
}

static inline void attach(int count)
{
    static const char *const ids[WORKERS] = {"host/cpu:0", "host/cpu:1", "host/cpu:2",
                                             "host/cpu:3", "host/cpu:4", "host/cpu:5"};
    for (; attached < count; attached++)
        fake_attach(&world, &fakes[attached], ids[attached], 1000 + attached);
}

static inline char *submit_redundant(uint32_t workers, uint32_t least, int priority,
                                     Fsdpd__V1__Redundancy redundancy)
{
    job_spec spec = *world_spec(workers);
    Fsdpd__V1__TrainSpec train = *spec.train;
    Fsdpd__V1__ElasticSpec elastic = FSDPD__V1__ELASTIC_SPEC__INIT;
    train._global_batch_case = FSDPD__V1__TRAIN_SPEC___GLOBAL_BATCH_GLOBAL_BATCH;
    train.global_batch = 24;
    elastic._min_workers_case = FSDPD__V1__ELASTIC_SPEC___MIN_WORKERS_MIN_WORKERS;
    elastic.min_workers = least;
    elastic._max_workers_case = FSDPD__V1__ELASTIC_SPEC___MAX_WORKERS_MAX_WORKERS;
    elastic.max_workers = workers;
    elastic.redundancy = redundancy;
    Fsdpd__V1__FsdpSpec fsdp = FSDPD__V1__FSDP_SPEC__INIT;
    if (redundancy == FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA) {
        fsdp = *spec.fsdp;
        fsdp.strategy = FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD;
        spec.fsdp = &fsdp;
    }
    spec.train = &train;
    spec.elastic = &elastic;
    spec.priority = priority;
    return queue_submit(&world, &spec, NULL);
}

static inline char *submit_elastic(uint32_t workers, uint32_t least, int priority)
{
    return submit_redundant(workers, least, priority, FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE);
}

/* The number of fakes whose latest assignment is this attempt of the job. */
static inline int count_ranks(const char *id, uint32_t attempt)
{
    int count = 0;
    for (int i = 0; i < attached; i++) {
        const Fsdpd__V1__Assignment *assignment = fakes[i].assignment;
        count += assignment != NULL && strcmp(assignment->job, id) == 0 &&
                 assignment->attempt == attempt;
    }
    return count;
}

static inline bool runs(const struct fake *fake, const char *id, uint32_t attempt)
{
    return fake->assignment != NULL && strcmp(fake->assignment->job, id) == 0 &&
           fake->assignment->attempt == attempt;
}

/* This attempt of the job has that many ranks, which begin to train. */
static inline void start_attempt(const char *id, uint32_t attempt, int ranks)
{
    WAIT(&world, count_ranks(id, attempt) == ranks);
    for (int i = 0; i < attached; i++)
        if (runs(&fakes[i], id, attempt)) {
            ck_assert_uint_eq(fakes[i].assignment->world, (uint32_t)ranks);
            fake_started(&fakes[i], 42);
        }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

/* Every rank has the order to save and to end. */
static inline bool is_ordered_to_leave(const char *id, uint32_t attempt)
{
    int ordered = 0;
    for (int i = 0; i < attached; i++)
        ordered += runs(&fakes[i], id, attempt) && fakes[i].pauses > 0;
    return ordered > 0 && ordered == count_ranks(id, attempt);
}

/* The ranks have saved and end. */
static inline void leave(const char *id, uint32_t attempt)
{
    for (int i = 0; i < attached; i++) {
        if (!runs(&fakes[i], id, attempt)) continue;
        fakes[i].pauses = 0;
        fake_ended(&fakes[i], STATUS_CANCELLED, "PAUSED", "");
    }
}

static inline void finish(const char *id, uint32_t attempt)
{
    for (int i = 0; i < attached; i++)
        if (runs(&fakes[i], id, attempt)) fake_finished(&fakes[i], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
}

#endif
