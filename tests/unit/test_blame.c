/* Verdicts: which rank is to blame, from what the ranks of an attempt say. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/diagnoses.h"
#include "tests/testing.h"

typedef Fsdpd__V1__RankDiagnosis rank_message;

static Fsdpd__V1__Diagnosis *diagnosis;

/* Three ranks that all wait, for 12.4 s, in their 57th collective, in step 812. */
static void set_up(void)
{
    diagnosis = mem_alloc(sizeof *diagnosis);
    fsdpd__v1__diagnosis__init(diagnosis);
    diagnosis->step = 811;
    diagnosis->step_age_seconds = 12.5;
    diagnosis->usual_step_seconds = 0.2;
    diagnosis->ranks = mem_alloc_array(3, sizeof *diagnosis->ranks);
    for (uint32_t r = 0; r < 3; r++) {
        rank_message *rank = mem_alloc(sizeof *rank);
        fsdpd__v1__rank_diagnosis__init(rank);
        rank->rank = r;
        rank->worker = mem_printf("node%u/cpu:0", r);
        rank->answered = rank->waits = true;
        message_set_text(&rank->link, "attached");
        rank->step = 811;
        message_set_text(&rank->place, "trains");
        rank->place_seconds = 12.4;
        message_set_text(&rank->program, "train");
        rank->collectives = 57;
        message_set_text(&rank->collective, "all_gather number 57");
        rank->wait_seconds = 12.4;
        rank->lanes = mem_alloc_array(1, sizeof *rank->lanes);
        diagnosis->ranks[diagnosis->n_ranks++] = rank;
    }
}

static void tear_down(void)
{
    message_free(diagnosis);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

static void add_lane(uint32_t rank, const char *lane, const char *kind, const char *unit,
                     const char *op)
{
    Fsdpd__V1__LaneDiagnosis *message = mem_alloc(sizeof *message);
    fsdpd__v1__lane_diagnosis__init(message);
    message_set_text(&message->lane, lane);
    message_set_text(&message->kind, kind);
    message_set_text(&message->unit, unit);
    message_set_text(&message->op, op);
    message->instruction = 7;
    message->seconds = 12.4;
    rank_message *of = diagnosis->ranks[rank];
    of->lanes[of->n_lanes++] = message;
}

static void add_thread(uint32_t rank, const char *name, const char *call, const char *file)
{
    Fsdpd__V1__ThreadDiagnosis *thread = mem_alloc(sizeof *thread);
    fsdpd__v1__thread_diagnosis__init(thread);
    message_set_text(&thread->name, name);
    message_set_text(&thread->call, call);
    message_set_text(&thread->file, file);
    rank_message *of = diagnosis->ranks[rank];
    of->threads = mem_resize_array(of->threads, of->n_threads + 1, sizeof *of->threads);
    of->threads[of->n_threads++] = thread;
}

static void leave(uint32_t rank, const char *place)
{
    diagnosis->ranks[rank]->waits = false;
    diagnosis->ranks[rank]->collectives = 56;
    message_set_text(&diagnosis->ranks[rank]->place, place);
}

static void expect(Fsdpd__V1__Diagnosis__Cause cause, int rank, const char *verdict)
{
    blame(diagnosis);
    ck_assert_str_eq(diagnosis->verdict, verdict);
    ck_assert_int_eq(diagnosis->cause, cause);
    ck_assert_uint_eq(diagnosis->n_ranks_to_blame, rank >= 0 ? 1 : 0);
    if (rank >= 0) ck_assert_uint_eq(diagnosis->ranks_to_blame[0], (uint32_t)rank);
}

#define CAUSE(name) FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_##name

TEST(a_loader_that_reads_is_named_with_its_file)
{
    add_lane(0, "comm", "all_gather", "layers.5", "");
    leave(2, "waits for a batch");
    add_thread(2, "train", "futex", "");
    add_thread(2, "grpc", "recvmsg", "socket:[12]");
    add_thread(2, "checkpoint", "fsync", "/state/shard");
    add_thread(2, "loader", "read", "/data/corpus.bin");
    expect(CAUSE(FILE), 2,
           "rank 2 (node2/cpu:0) has not entered all_gather layers.5 of step 812 for 12.4 s; its "
           "thread loader is in read() of /data/corpus.bin");
}

TEST(a_rank_that_computes_is_named_with_its_op)
{
    add_lane(0, "comm", "reduce_scatter", "fc1", "");
    leave(1, "trains");
    add_lane(1, "compute", "compute", "", "conv1");
    expect(CAUSE(BUSY), 1,
           "rank 1 (node1/cpu:0) has not entered reduce_scatter fc1 of step 812 for 12.4 s; its "
           "compute lane is in compute conv1 (instruction 7) for 12.4 s");
}

/* It waits for data that others have sent; they have completed what it waits in. */
TEST(a_rank_that_waits_a_collective_behind_shows_a_broken_connection)
{
    diagnosis->ranks[1]->collectives = 56;
    message_set_text(&diagnosis->ranks[1]->collective, "reduce_scatter number 56");
    expect(CAUSE(LINK), -1,
           "all ranks have entered reduce_scatter number 56 and wait for each other, for 12.4 s; no "
           "connection shows why");
}

TEST(a_rank_that_does_not_wait_is_named_and_none_that_waits_behind_the_others)
{
    diagnosis->ranks[1]->collectives = 56;
    leave(2, "trains");
    expect(CAUSE(BUSY), 2,
           "rank 2 (node2/cpu:0) has not entered all_gather number 57 for 12.4 s; it trains for "
           "12.4 s");
}

TEST(a_stopped_process_is_named)
{
    rank_message *rank = diagnosis->ranks[0];
    rank->answered = rank->waits = false;
    rank->silent_seconds = 11.1;
    message_set_text(&rank->process, "stopped");
    leave(2, "trains"); /* it is not to blame: it may wait for rank 0 by other means */
    expect(CAUSE(STOPPED), 0,
           "rank 0 (node0/cpu:0) has been silent for 11.1 s: its process is stopped; rank 1 has "
           "waited 12.4 s in all_gather number 57");
}

TEST(a_broken_link_is_named_with_its_reason)
{
    rank_message *rank = diagnosis->ranks[0];
    rank->answered = false;
    rank->silent_seconds = 11.1;
    message_set_text(&rank->link, "was lost: its connection closed");
    expect(CAUSE(SILENT), 0,
           "rank 0 (node0/cpu:0) has been silent for 11.1 s: it was lost: its connection closed; "
           "rank 1 has waited 12.4 s in all_gather number 57");
}

TEST(a_rank_that_only_the_coordinator_does_not_hear_is_named)
{
    rank_message *rank = diagnosis->ranks[2];
    rank->answered = false;
    rank->silent_seconds = 3.4;
    diagnosis->step_age_seconds = 0.1;
    for (int r = 0; r < 2; r++) diagnosis->ranks[r]->wait_seconds = 0.1;
    expect(CAUSE(SILENT), 2,
           "rank 2 (node2/cpu:0) has been silent for 3.4 s: its host, its process or the network "
           "between does not answer; the last step that was heard of is 811, 0.1 s ago");
}

TEST(a_silent_rank_that_hangs_in_a_write_is_named_with_its_file)
{
    rank_message *rank = diagnosis->ranks[0];
    rank->answered = false;
    rank->silent_seconds = 11.1;
    message_set_text(&rank->process, "asleep");
    add_thread(0, "fsdpd", "write", "pipe:[77]");
    expect(CAUSE(FILE), 0,
           "rank 0 (node0/cpu:0) has been silent for 11.1 s: its process exists (asleep) but does "
           "not answer; its thread fsdpd is in write() of pipe:[77]; rank 1 has waited 12.4 s in "
           "all_gather number 57");
}

TEST(ranks_that_wait_for_each_other_have_a_connection_to_blame)
{
    rank_message *rank = diagnosis->ranks[2];
    Fsdpd__V1__ConnectionDiagnosis *connection = mem_alloc(sizeof *connection);
    fsdpd__v1__connection_diagnosis__init(connection);
    message_set_text(&connection->peer, "10.0.0.1:4711");
    connection->unsent_bytes = 4096;
    connection->retransmissions = 5;
    rank->connections = mem_alloc_array(1, sizeof *rank->connections);
    rank->connections[rank->n_connections++] = connection;
    expect(CAUSE(LINK), 2,
           "all ranks have entered all_gather number 57 and wait for each other, for 12.4 s; rank "
           "2 (node2/cpu:0) gets no answer from 10.0.0.1:4711 (4096 bytes unsent, sent again 5 "
           "times)");
}

TEST(ranks_that_join_wait_for_those_that_still_set_up)
{
    diagnosis->usual_step_seconds = 0;
    for (int r = 0; r < 3; r++) {
        diagnosis->ranks[r]->collectives = 0;
        message_set_text(&diagnosis->ranks[r]->collective, "");
        message_set_text(&diagnosis->ranks[r]->place, "joins the group");
    }
    diagnosis->ranks[1]->waits = false;
    message_set_text(&diagnosis->ranks[1]->place, "reads its model and data");
    expect(CAUSE(BUSY), 1,
           "rank 1 (node1/cpu:0) has not entered the group for 12.4 s; it reads its model and data "
           "for 12.4 s");
}

TEST(a_slow_rank_is_named_while_the_job_makes_progress)
{
    diagnosis->step_age_seconds = 0.1;
    for (int r = 0; r < 3; r++) diagnosis->ranks[r]->wait_seconds = 0.1;
    diagnosis->ranks[1]->slowdown = 2.5;
    diagnosis->ranks[1]->own_step_seconds = 0.25;
    expect(CAUSE(SLOW), 1,
           "rank 1 (node1/cpu:0) is 2.5 times slower than the median rank: it takes 0.25 s for its "
           "own work in a step; the others wait for it");
}

TEST(a_job_that_makes_progress_blames_no_rank)
{
    diagnosis->step_age_seconds = 0.1;
    for (int r = 0; r < 3; r++) diagnosis->ranks[r]->wait_seconds = 0.1;
    expect(CAUSE(NONE), -1, "the job makes progress: it has done step 811, 0.1 s ago");
}

TEST(an_evaluation_hangs_although_the_step_is_young)
{
    diagnosis->step_age_seconds = 0.1;
    for (int r = 0; r < 3; r++) message_set_text(&diagnosis->ranks[r]->program, "evaluate");
    add_lane(0, "comm", "all_gather", "fc1", "");
    leave(2, "waits for a batch of the evaluation");
    expect(CAUSE(BUSY), 2,
           "rank 2 (node2/cpu:0) has not entered all_gather fc1 of the evaluation after step 811 "
           "for 12.4 s; it waits for a batch of the evaluation for 12.4 s");
}

TEST(several_ranks_are_counted)
{
    leave(0, "trains");
    leave(2, "waits for a batch");
    add_thread(2, "loader", "read", "/data/corpus.bin");
    blame(diagnosis);
    ck_assert_uint_eq(diagnosis->n_ranks_to_blame, 2);
    ck_assert_uint_eq(diagnosis->ranks_to_blame[0], 2);
    ck_assert_msg(strstr(diagnosis->verdict, "corpus.bin; likewise rank 0") != NULL, "%s",
                  diagnosis->verdict);
}
