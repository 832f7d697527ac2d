/* The worker while its coordinator is away or silent: it trains on, and is reattached. */
#include <stdlib.h>
#include <string.h>

#include "test_worker_world.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 90, .set_up_once = draw_digits, .tear_down_once = remove_digits);

/* It trains on, reports that, and repeats the unacknowledged reports, in order. */
TEST(link_lost_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_pull(&world, 1, 5);
    WAIT(&world, world.uploads == 1);
    expect_upload(&world, 5);
    uint64_t last = world.last_report, step = world.step;
    ck_assert_uint_gt(last, 3);
    world.first_report = 0; /* of the next stream */
    const Fsdpd__V1__HeldAttempt *held = world_cut(&world);
    ck_assert(held->running);
    ck_assert_uint_eq(held->world, 1);
    ck_assert_uint_ne(held->plan_hash, 0);
    ck_assert_uint_ge(held->step, step);
    ck_assert_uint_eq(held->orders, 1);
    ck_assert_uint_eq(held->n_tail, 1);
    ck_assert_uint_eq(held->tail[0]->pull->pull, 5);
    WAIT(&world, world.last_report > last);
    ck_assert_uint_eq(world.first_report, 1);
    ck_assert_uint_eq(world.gaps, 0);

    /* Acknowledged reports are not repeated. */
    world_acknowledge(&world, last);
    step = world.step;
    WAIT(&world, world.step > step + 1);
    last = world.last_report;
    world.first_report = 0;
    world_cut(&world);
    WAIT(&world, world.last_report > last);
    ck_assert_uint_gt(world.first_report, 3);
    ck_assert_uint_le(world.first_report, last + 1);
    world_cancel(&world, 2, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");

    /* The end is kept, too, until a coordinator has it. */
    ck_assert(!world_cut(&world)->running);
    WAIT(&world, world.finishes == 2);
    world_release(&world);
    int hellos = world.hellos;
    rpc_call_finish(world.attached, status_new(STATUS_UNAVAILABLE, "gone"));
    WAIT(&world, world.hellos > hellos);
    ck_assert_uint_eq(world.hello->hello->n_attempts, 0);
    world_end(&world, 0);
}

/* The whole server disappears, and another one starts: first with the attempt, then without. */
TEST(coordinator_restarts)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world_serve(&world);
    WAIT(&world, world.hellos == 2);
    ck_assert(world.hello->hello->attempts[0]->running);
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 1);
    ck_assert_int_eq(world.finishes, 0);
    world_release(&world); /* it does not know the attempt */
    expect_finished(&world, STATUS_ABORTED, "ended this attempt");
    world_release(&world);
    world.step = 0;
    world.finishes = 0;
    world_train(&world);
    world_cancel(&world, 1, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}

/* The final state_dict is in flight when the coordinator disappears: it is sent again. */
TEST(state_dict_outlives_the_coordinator)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    Fsdpd__V1__JobSpec *spec = make_spec("3", "true");
    world_assign(&world, spec, 0, 1);
    spec_free(spec);
    WAIT(&world, world.uploads == 1);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world.pause_uploads = false;
    ck_assert_int_eq(world.finishes, 0);
    world_serve(&world);
    WAIT(&world, world.uploads == 2);
    expect_upload(&world, 0);
    expect_finished(&world, STATUS_OK, "trained");
    world_end(&world, 0);
}

/* A rank that waits for its peer's key keeps waiting, and sets its own keys again. */
TEST(rendezvous_outlives_the_coordinator)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    spec->workers = 2;
    world_assign(&world, spec, 0, 2);
    spec_free(spec);
    WAIT(&world, world.store_gets > 0);
    int sets = world.store_sets, gets = world.store_gets;
    ck_assert_int_gt(sets, 0);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world_serve(&world);
    WAIT(&world, world.store_gets > gets);
    WAIT(&world, world.store_sets >= 2 * sets);
    ck_assert_int_eq(world.finishes, 0);
    world_cancel(&world, 1, true);
    expect_finished(&world, STATUS_ABORTED, "not wanted");
    world_end(&world, 0);
}

/* Silence counts as a broken link. */
TEST(silent_coordinator)
{
    struct world world;
    world_init(&world, false);
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Welcome body = FSDPD__V1__WELCOME__INIT;
    body.heartbeat_ms = 20;
    body.silence_ms = 100;
    message.message_case = COORDINATOR(WELCOME);
    message.welcome = &body;
    world_send(&world, &message);
    WAIT(&world, world.hellos == 2);
    world_end(&world, 0);
}

/* 0: an idle worker ends with its supervisor; 1: one that trains continues; 2: not without
 * limit. */
LOOP_TEST(supervised_worker_and_its_coordinator, 0, 3)
{
    struct world world;
    world_prepare(&world, true);
    world.options.away_ms = _i == 2 ? 300 : 60000;
    world_run(&world);
    if (_i > 0) world_train(&world);
    if (_i == 1) {
        ck_assert(world_cut(&world)->running);
        uint64_t step = world.step;
        WAIT(&world, world.step > step + 1);
        world_end(&world, 0);
        return;
    }
    world.refuse = true;
    rpc_call_finish(world.attached, NULL);
    WAIT(&world, world.exited);
    world_end(&world, 1);
}
