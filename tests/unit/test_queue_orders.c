/*
 * Orders of the queue on simulated traces: submissions and durations are drawn, time passes from
 * event to event, and queue_compare, queue_decide and fair_share_use decide, as in the coordinator.
 * The table that it prints is that of docs/queue.md.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "coordinator/scheduler/queue.h"
#include "tests/testing.h"

enum { USERS = 5, FLEET = 64 };

struct trace_job {
    double submitted, duration; /* minutes */
    int user, workers;
    double started; /* below 0: not yet */
};

/* One waiting job, or one that runs. */
struct trace_place {
    struct queue_rank rank;
    struct trace_job *job;
    double end;
};

struct simulation {
    struct trace_job *jobs;
    int count, next;
    int fleet, idle;
    double half_life; /* 0: no fair share */
    double now, usage[USERS], used[USERS];
    int busy[USERS];
    struct trace_place *waiting, *running;
    int waiting_count, running_count;
    bool until_one_is_done; /* ends when a user has no waiting job */
};

static double draw(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static int compare_places(const void *a, const void *b)
{
    return queue_compare(&((const struct trace_place *)a)->rank,
                         &((const struct trace_place *)b)->rank);
}

static void pass(struct simulation *s, double to)
{
    for (int u = 0; u < USERS; u++) {
        s->used[u] += s->busy[u] * (to - s->now);
        if (s->half_life > 0)
            s->usage[u] = fair_share_use(s->usage[u], s->busy[u], to - s->now, s->half_life);
    }
    s->now = to;
}

/* The next submissions and ends. False: there are none. */
static bool advance(struct simulation *s)
{
    double to = s->next < s->count ? s->jobs[s->next].submitted : INFINITY;
    for (int i = 0; i < s->running_count; i++) to = fmin(to, s->running[i].end);
    if (isinf(to)) return false;
    pass(s, to);
    for (int i = s->running_count; i-- > 0;) {
        if (s->running[i].end > to) continue;
        s->idle += s->running[i].job->workers;
        s->busy[s->running[i].job->user] -= s->running[i].job->workers;
        s->running[i] = s->running[--s->running_count];
    }
    for (; s->next < s->count && s->jobs[s->next].submitted <= to; s->next++)
        s->waiting[s->waiting_count++] =
            (struct trace_place){.rank = {.number = s->next}, .job = &s->jobs[s->next]};
    return true;
}

/* No more jobs can start than there are workers, so the rest of the queue is left out. */
static void place(struct simulation *s)
{
    struct queue_item items[FLEET + 1];
    struct queue_fleet fleet = {.kind = "cpu",
                                .attached = s->fleet,
                                .expected = s->fleet,
                                .idle = s->idle};
    for (int i = 0; i < s->waiting_count; i++)
        s->waiting[i].rank.usage = s->usage[s->waiting[i].job->user];
    if (s->half_life > 0)
        qsort(s->waiting, (size_t)s->waiting_count, sizeof *s->waiting, compare_places);
    int count = s->waiting_count < s->fleet + 1 ? s->waiting_count : s->fleet + 1, left = 0;
    for (int i = 0; i < count; i++)
        items[i] = (struct queue_item){.kind = "cpu", .workers = s->waiting[i].job->workers};
    queue_decide(items, count, &fleet, 1);
    for (int i = 0; i < s->waiting_count; i++) {
        struct trace_place *waiting = &s->waiting[i];
        if (i >= count || items[i].standing.decision != QUEUE_START) {
            s->waiting[left++] = *waiting;
            continue;
        }
        waiting->job->started = s->now;
        waiting->end = s->now + waiting->job->duration;
        s->busy[waiting->job->user] += waiting->job->workers;
        s->running[s->running_count++] = *waiting;
    }
    s->waiting_count = left;
    s->idle = fleet.idle;
}

static bool is_one_done(const struct simulation *s, int users)
{
    bool waits[USERS] = {false};
    for (int i = 0; i < s->waiting_count; i++) waits[s->waiting[i].job->user] = true;
    for (int u = 0; u < users; u++)
        if (!waits[u]) return true;
    return false;
}

/* With `users`, it ends when one of that many has no waiting job. */
static void simulate(struct simulation *s, int users)
{
    s->idle = s->fleet;
    s->waiting = mem_alloc_array((size_t)s->count, sizeof *s->waiting);
    s->running = mem_alloc_array((size_t)s->count, sizeof *s->running);
    while (advance(s)) {
        place(s);
        if (users > 0 && is_one_done(s, users)) break;
    }
    free(s->waiting);
    free(s->running);
}

/* ---- fair share converges ---- */

/* Three users whose jobs all wait, six, two and one and a half hundred of them: how far the share
 * of one is from a third at most. */
static double worst_share(uint64_t seed, double half_life)
{
    static const int submits[] = {600, 200, 150};
    enum { JOBS = 950, USERS_HERE = 3 };
    struct trace_job *jobs = mem_alloc_array(JOBS, sizeof *jobs);
    uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
    int left[USERS_HERE];
    memcpy(left, submits, sizeof left);
    for (int i = 0; i < JOBS; i++) {
        int pick = (int)(draw(&state) * (left[0] + left[1] + left[2])), user = 0;
        while (pick >= left[user]) pick -= left[user++];
        left[user]--;
        jobs[i] = (struct trace_job){.duration = 20 + 80 * draw(&state),
                                     .user = user,
                                     .workers = 1 << (int)(3 * draw(&state))};
    }
    struct simulation s = {.jobs = jobs, .count = JOBS, .fleet = 16, .half_life = half_life};
    simulate(&s, USERS_HERE);
    free(jobs);
    double all = s.used[0] + s.used[1] + s.used[2], worst = 0;
    for (int u = 0; u < USERS_HERE; u++) worst = fmax(worst, fabs(s.used[u] / all * 3 - 1));
    return worst;
}

TEST(shares_converge)
{
    double worst = 0, least = 1;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        double with = worst_share(seed, 24 * 60), without = worst_share(seed, 0);
        ck_assert_msg(with <= 0.05, "seed %d: a share is %g of a third away", (int)seed, with);
        ck_assert_msg(without > 0.05, "seed %d: %g without fair share", (int)seed, without);
        worst = fmax(worst, with);
        least = fmin(least, without);
    }
    printf("20 seeds: shares within %.1f %% of a third, without fair share up to %.0f %% away at "
           "least\n",
           100 * worst, 100 * least);
}

/* ---- usage ---- */

TEST(usage_decays)
{
    ck_assert_double_eq_tol(fair_share_use(100, 0, 60, 60), 50, 1e-9);
    ck_assert_double_eq_tol(fair_share_use(100, 0, 600, 60), 100.0 / 1024, 1e-9);
    ck_assert_double_eq_tol(fair_share_use(0, 3, 0.001, 60), 0.003, 1e-6);
    ck_assert_double_eq_tol(fair_share_use(0, 3, 1e6, 60), 3 * 60 / log(2), 1e-6);
    double once = fair_share_use(7, 2, 90, 60), twice = 7; /* whenever it is computed */
    for (int i = 0; i < 90; i++) twice = fair_share_use(twice, 2, 1, 60);
    ck_assert_double_eq_tol(once, twice, 1e-9);
}

TEST(the_order)
{
    const struct queue_rank ranks[] = {
        {.priority = 1, .usage = 9, .number = 4}, /* the priority is above all */
        {.priority = 0, .usage = 1, .number = 3}, /* then the usage */
        {.priority = 0, .usage = 2, .number = 1}, /* then the submission */
        {.priority = 0, .usage = 2, .number = 2}, {.priority = -1, .usage = 0, .number = 0},
    };
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            int order = queue_compare(&ranks[i], &ranks[j]);
            ck_assert_int_eq((order > 0) - (order < 0), (i > j) - (i < j));
        }
}

/* ---- the trace ---- */

/* Ten thousand jobs: a heavy user submits six of ten, a hundred at a time, and four others the
 * rest, one by one. */
static struct trace_job *make_trace(int count)
{
    struct trace_job *jobs = mem_alloc_array((size_t)count, sizeof *jobs);
    uint64_t state = 20261128;
    double time = 0;
    for (int i = 0, burst = 0; i < count; i++) {
        bool heavy = burst > 0;
        if (!heavy) time += -log(1 - draw(&state)) * 13;
        if (!heavy && draw(&state) < 0.0147) burst = 100, heavy = true;
        burst -= heavy;
        jobs[i] = (struct trace_job){.submitted = time,
                                     .duration = fmin(-log(1 - draw(&state)) * 60, 600),
                                     .user = heavy ? 0 : 1 + (int)(4 * draw(&state)),
                                     .workers = 1 << (int)(4 * draw(&state))};
    }
    return jobs;
}

struct outcome {
    double heavy, others; /* mean minutes of waiting */
    double utilisation;
};

static struct outcome run_trace(double half_life)
{
    enum { JOBS = 10000 };
    struct trace_job *jobs = make_trace(JOBS);
    struct simulation s = {.jobs = jobs, .count = JOBS, .fleet = FLEET, .half_life = half_life};
    simulate(&s, 0);
    double waits[2] = {0}, busy = 0;
    int counts[2] = {0};
    for (int i = 0; i < JOBS; i++) {
        ck_assert_double_ge(jobs[i].started, jobs[i].submitted);
        waits[jobs[i].user > 0] += jobs[i].started - jobs[i].submitted;
        counts[jobs[i].user > 0]++;
        busy += jobs[i].duration * jobs[i].workers;
    }
    free(jobs);
    return (struct outcome){waits[0] / counts[0], waits[1] / counts[1], busy / (s.now * FLEET)};
}

static void add_row(struct buf *table, const char *order, const struct outcome *outcome)
{
    buf_printf(table, "| %s | %.0f | %.0f | %.0f %% |\n", order, outcome->heavy, outcome->others,
               100 * outcome->utilisation);
}

TEST(the_table_of_the_manual)
{
    struct outcome plain = run_trace(0), fair = run_trace(24 * 60);
    AUTO(buf_deinit) struct buf table = {0}, page = {0};
    add_row(&table, "plain priority", &plain);
    add_row(&table, "fair share, half-life 24 h", &fair);
    printf("%s", buf_text(&table));
    ck_assert_double_lt(fair.others, plain.others / 2);
    ck_assert_double_ge(fair.utilisation, plain.utilisation - 0.02);
    const char *source = getenv("srcdir") != NULL ? getenv("srcdir") : ".";
    AUTO_FREE char *path = mem_printf("%s/docs/queue.md", source);
    status_t status = file_read(path, 1 << 20, &page);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_msg(strstr(buf_text(&page), buf_text(&table)) != NULL,
                  "expected in docs/queue.md:\n%s", buf_text(&table));
}
