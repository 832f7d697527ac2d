/* The pages of lists: workers, history and families; those of jobs and of checkpoints have tests of
 * their own. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "proto/message.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* Expects these workers, "host/cpu:1 ", on the page of the token; returns the next token. */
static char *expect_workers(uint32_t size, const char *token, const char *expected)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    request.page_size = size;
    request.page_token = (char *)token;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_workers, &request, &response));
    const Fsdpd__V1__ListWorkersResponse *list = response;
    struct buf found = {0};
    for (size_t i = 0; i < list->n_workers; i++) buf_printf(&found, "%s ", list->workers[i]->id);
    ck_assert_str_eq(buf_text(&found), expected);
    buf_deinit(&found);
    char *next = mem_strdup(list->next_page_token);
    message_free(response);
    return next;
}

static size_t count_workers(void)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_workers, &request, &response));
    size_t count = ((const Fsdpd__V1__ListWorkersResponse *)response)->n_workers;
    message_free(response);
    return count;
}

TEST(workers_come_in_the_order_of_their_numbers)
{
    static const char *const ids[] = {"host/cpu:10", "host/cpu:2", "host/cpu:1", "a/cpu:0"};
    struct fake fakes[4];
    world_start(&world);
    for (int i = 0; i < 4; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    free(expect_workers(0, "", "a/cpu:0 host/cpu:1 host/cpu:2 host/cpu:10 "));
    char *all = expect_workers(4, "", "a/cpu:0 host/cpu:1 host/cpu:2 host/cpu:10 ");
    ck_assert_str_eq(all, "");
    char *token = expect_workers(3, "", "a/cpu:0 host/cpu:1 host/cpu:2 ");
    ck_assert_str_ne(token, "");
    /* The worker that the token names may be gone. */
    fake_deinit(&fakes[1]);
    WAIT(&world, count_workers() == 3);
    char *last = expect_workers(3, token, "host/cpu:10 ");
    ck_assert_str_eq(last, "");
    free(all), free(token), free(last);
    for (int i = 0; i < 4; i++)
        if (i != 1) fake_deinit(&fakes[i]);
}

TEST(histories_have_the_newest_entries_first)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *id = world_submit(&world, 1);
    WAIT(&world, fake.assignments == 1);
    fake_finished(&fake, STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = id;
    void *whole = NULL;
    expect_ok(world_call(&world, &control_get_history, &request, &whole));
    const Fsdpd__V1__GetHistoryResponse *all = whole;
    size_t left = all->n_entries;
    ck_assert_uint_ge(left, 3);
    ck_assert_str_eq(all->next_page_token, "");
    request.page_size = 2;
    char *token = mem_strdup("");
    while (left > 0) {
        void *response = NULL;
        request.page_token = token;
        expect_ok(world_call(&world, &control_get_history, &request, &response));
        const Fsdpd__V1__GetHistoryResponse *page = response;
        ck_assert_uint_eq(page->n_entries, left < 2 ? left : 2);
        left -= page->n_entries;
        ck_assert_uint_eq(page->left_out, left);
        for (size_t i = 0; i < page->n_entries; i++)
            ck_assert_int_eq(page->entries[i]->state, all->entries[left + i]->state);
        free(token);
        token = mem_strdup(page->next_page_token);
        ck_assert_int_eq(token[0] != '\0', left > 0);
        message_free(response);
    }
    free(token);
    message_free(whole);
    fake_deinit(&fake);
    free(id);
}

TEST(tokens_of_no_response_are_refused)
{
    static const char *const tokens[] = {"nonsense", "1", ":", "x:y", "1:", "1:x", "9x:"};
    world_start(&world);
    Fsdpd__V1__ListWorkersRequest workers = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    Fsdpd__V1__GetHistoryRequest history = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    Fsdpd__V1__ListCheckpointsRequest checkpoints = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        workers.page_token = history.page_token = checkpoints.page_token = (char *)tokens[i];
        bool names = strcmp(tokens[i], "1:x") == 0, counts = strcmp(tokens[i], "1:") == 0;
        status_t refused = world_call(&world, &control_list_workers, &workers, NULL);
        if (names) expect_ok(refused);
        else expect_status(refused, STATUS_INVALID_ARGUMENT, "page_token: expected the next_page_");
        enum status_code code = counts ? STATUS_NOT_FOUND : STATUS_INVALID_ARGUMENT;
        const char *words = counts ? "job" : "page_token";
        expect_status(world_call(&world, &control_get_history, &history, NULL), code, words);
        expect_status(world_call(&world, &control_list_checkpoints, &checkpoints, NULL), code,
                      words);
    }
}
