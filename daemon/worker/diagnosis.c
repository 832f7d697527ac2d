/* What a rank does now; see attempt_diagnose. On the loop's thread: it takes only locks that
 * nothing holds while it waits. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/connections.h"
#include "base/mem.h"
#include "proto/message.h"
#include "proto/threads.h"
#include "worker/attempt_internal.h"

static double seconds_since(int64_t since_ns)
{
    return since_ns > 0 ? (double)(clock_monotonic_ns() - since_ns) * 1e-9 : 0;
}

/* "compute 12, compute fc1": the lane and the instruction. */
static char *name_instruction(const struct plan_program *program, int index)
{
    const struct plan_instruction *instruction = &program->instructions[index];
    const char *op = instruction->op >= 0 ? program->graph->ops[instruction->op].name : NULL;
    return mem_printf("%s %d, %s%s%s", plan_lane_name(instruction->lane), index,
                      plan_instruction_name(instruction->kind), op != NULL ? " " : "",
                      op != NULL ? op : "");
}

static Fsdpd__V1__LaneDiagnosis *describe_lane(const struct train_now *now, int i)
{
    const struct executor_lane *lane = &now->executor.lanes[i];
    const struct plan_program *program = now->executor.program;
    Fsdpd__V1__LaneDiagnosis *message = MESSAGE_NEW(message, fsdpd__v1__lane_diagnosis__init);
    message->lane = mem_strdup(plan_lane_name(lane->lane));
    message->seconds = seconds_since(lane->since_ns);
    if (lane->instruction >= 0) {
        const struct plan_instruction *instruction = &program->instructions[lane->instruction];
        message->instruction = (uint32_t)lane->instruction;
        message->kind = mem_strdup(plan_instruction_name(instruction->kind));
        if (now->units[i] != NULL) message->unit = mem_strdup(now->units[i]);
        if (instruction->op >= 0)
            message->op = mem_strdup(program->graph->ops[instruction->op].name);
    }
    if (lane->awaits >= 0) message->awaits = name_instruction(program, lane->awaits);
    return message;
}

static void describe_run(void *user, const struct train_now *now)
{
    Fsdpd__V1__RankDiagnosis *rank = user;
    if (now->place == NULL) return;
    free(rank->place);
    rank->place = mem_strdup(now->place);
    rank->place_seconds = seconds_since(now->since_ns);
    if (now->executor.program == NULL) return;
    rank->program = mem_strdup(now->executor.name);
    rank->lanes = mem_alloc_array(LANE_COUNT, sizeof *rank->lanes);
    for (int i = 0; i < now->executor.lane_count; i++)
        rank->lanes[rank->n_lanes++] = describe_lane(now, i);
}

static void describe_group(struct comm *comm, Fsdpd__V1__RankDiagnosis *rank)
{
    const struct comm_progress progress = comm_progress(comm);
    rank->collectives = progress.begun;
    rank->waits = progress.waits;
    rank->wait_seconds = seconds_since(progress.since_ns);
    if (progress.kind != NULL)
        rank->collective =
            mem_printf("%s number %llu", progress.kind, (unsigned long long)progress.sequence);
}

static void add_error(Fsdpd__V1__RankDiagnosis *rank, const char *what, char *why)
{
    if (why == NULL) return;
    rank->errors = mem_resize_array(rank->errors, rank->n_errors + 1, sizeof *rank->errors);
    rank->errors[rank->n_errors++] = mem_printf("%s: %s", what, why);
    free(why);
}

static void describe_threads(Fsdpd__V1__RankDiagnosis *rank, bool stacks)
{
    struct thread_list list;
    if (stacks) threads_look(&list);
    else threads_look_at(&list, getpid());
    threads_to_message(&list, rank);
}

static void describe_connections(Fsdpd__V1__RankDiagnosis *rank)
{
    AUTO_FREE struct connection *connections = NULL;
    int count = connections_look(&connections);
    rank->connections = mem_alloc_array((size_t)count + 1, sizeof *rank->connections);
    for (int i = 0; i < count; i++) {
        Fsdpd__V1__ConnectionDiagnosis *message =
            MESSAGE_NEW(message, fsdpd__v1__connection_diagnosis__init);
        message->local = mem_strdup(connections[i].local);
        message->peer = mem_strdup(connections[i].peer);
        message->unsent_bytes = connections[i].unsent_bytes;
        message->retransmissions = connections[i].retransmissions;
        rank->connections[rank->n_connections++] = message;
    }
}

Fsdpd__V1__RankDiagnosis *attempt_diagnose(struct worker_attempt *attempt, bool stacks)
{
    Fsdpd__V1__RankDiagnosis *rank = MESSAGE_NEW(rank, fsdpd__v1__rank_diagnosis__init);
    rank->answered = true;
    rank->rank = attempt->assignment->rank;
    pthread_mutex_lock(&attempt->lock);
    if (attempt->place != NULL) rank->place = mem_strdup(attempt->place);
    rank->place_seconds = seconds_since(attempt->place_since_ns);
    if (attempt->comm != NULL) describe_group(attempt->comm, rank);
    if (attempt->joins) {
        rank->waits = true;
        rank->wait_seconds = rank->place_seconds;
    }
    if (attempt->session != NULL) {
        rank->step = train_session_step(attempt->session);
        train_session_look(attempt->session, describe_run, rank);
    }
    if (attempt->comm != NULL) add_error(rank, "group", comm_failure(attempt->comm));
    if (attempt->aborted != NULL) add_error(rank, "attempt", mem_strdup(attempt->aborted));
    pthread_mutex_unlock(&attempt->lock);
    describe_threads(rank, stacks);
    describe_connections(rank);
    return rank;
}
