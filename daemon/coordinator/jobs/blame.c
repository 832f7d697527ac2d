/*
 * Blame; see diagnoses.h. Ranks run in step, so those that wait in a collective wait for those that
 * have not begun it: a silent rank, or one that does something else. If all wait, a connection
 * between them is to blame; one may then wait in a collective that others, who got what they needed
 * of it before the connection broke, have completed.
 */
#include "coordinator/jobs/diagnoses.h"

#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"

typedef Fsdpd__V1__RankDiagnosis rank_message;

/* A step that takes longer than this many usual ones, and a second, does not advance. */
enum { STUCK_STEPS = 3, RETRANSMISSIONS = 3, RANKS_NAMED = 4, MISSING_S = 3 };

static bool is_stuck(const Fsdpd__V1__Diagnosis *d, const rank_message *waiting)
{
    double age = d->step_age_seconds;
    if (waiting != NULL && waiting->wait_seconds > age) age = waiting->wait_seconds;
    return age > 1 && age > STUCK_STEPS * d->usual_step_seconds;
}

static bool is_down(const rank_message *rank)
{
    if (rank->answered) return false; /* it was stopped for a moment */
    return strcmp(rank->process, "stopped") == 0 || strcmp(rank->process, "gone") == 0;
}

/* The others may train on with a rank that the coordinator does not hear. */
static bool is_missing(const rank_message *rank)
{
    return is_down(rank) || (!rank->answered && rank->silent_seconds >= MISSING_S);
}

/* ---- which ranks ---- */

/* The rank that waits in the last collective, or in the first one; of several the one that has waited
 * longest. */
static const rank_message *find_waiting(const Fsdpd__V1__Diagnosis *d, bool last)
{
    const rank_message *found = NULL;
    for (size_t r = 0; r < d->n_ranks; r++) {
        const rank_message *rank = d->ranks[r];
        if (!rank->answered || !rank->waits) continue;
        if (found == NULL || (last ? rank->collectives > found->collectives
                                   : rank->collectives < found->collectives) ||
            (rank->collectives == found->collectives && rank->wait_seconds > found->wait_seconds))
            found = rank;
    }
    return found;
}

/* A single rank waits for no other, and is to blame itself. */
static bool is_to_blame(const Fsdpd__V1__Diagnosis *d, const rank_message *rank)
{
    return !rank->answered || !rank->waits || d->n_ranks == 1;
}

static void name_ranks(Fsdpd__V1__Diagnosis *d)
{
    bool silent = false;
    for (size_t r = 0; r < d->n_ranks; r++) silent = silent || !d->ranks[r]->answered;
    d->ranks_to_blame = mem_alloc_array(d->n_ranks + 1, sizeof *d->ranks_to_blame);
    for (size_t r = 0; r < d->n_ranks; r++) {
        const rank_message *rank = d->ranks[r];
        /* Of the others, each may be waiting for a silent one. */
        if (silent ? !rank->answered : is_to_blame(d, rank))
            d->ranks_to_blame[d->n_ranks_to_blame++] = rank->rank;
    }
}

static const rank_message *find_rank(const Fsdpd__V1__Diagnosis *d, uint32_t number)
{
    for (size_t r = 0; r < d->n_ranks; r++)
        if (d->ranks[r]->rank == number) return d->ranks[r];
    return NULL;
}

static void add_name(struct buf *text, const rank_message *rank)
{
    buf_printf(text, "rank %u (%s)", rank->rank, rank->worker);
}

/* ---- what a rank does ---- */

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Threads that carry the training; the others have descriptors in which they wait for events. */
static bool trains(const Fsdpd__V1__ThreadDiagnosis *thread)
{
    return begins_with(thread->name, "train") || begins_with(thread->name, "lane-") ||
           begins_with(thread->name, "loader");
}

/* How much a thread's system call explains; 0: nothing. */
static int weight_of(const rank_message *rank, const Fsdpd__V1__ThreadDiagnosis *thread)
{
    static const char *const idle[] = {"poll", "epoll_wait", "select", "futex", "accept"};
    if (thread->call[0] == '\0' || thread->file[0] == '\0') return 0;
    for (size_t i = 0; i < COUNT_OF(idle); i++)
        if (strcmp(thread->call, idle[i]) == 0) return 0;
    bool loads = strstr(rank->place, "batch") != NULL;
    if (trains(thread)) return begins_with(thread->name, "loader") == loads ? 4 : 3;
    if (begins_with(thread->file, "socket:") || begins_with(thread->file, "anon_inode:")) return 0;
    return thread->file[0] == '/' ? 2 : 1;
}

static const Fsdpd__V1__ThreadDiagnosis *find_call(const rank_message *rank)
{
    const Fsdpd__V1__ThreadDiagnosis *best = NULL;
    int most = 0;
    for (size_t t = 0; t < rank->n_threads; t++) {
        int weight = weight_of(rank, rank->threads[t]);
        if (weight > most) best = rank->threads[t];
        if (weight > most) most = weight;
    }
    return best;
}

static const Fsdpd__V1__LaneDiagnosis *find_lane(const rank_message *rank, const char *name)
{
    for (size_t i = 0; i < rank->n_lanes; i++)
        if (strcmp(rank->lanes[i]->lane, name) == 0) return rank->lanes[i];
    return NULL;
}

/* The lane that works, instead of waiting for another one, for the longest time. */
static const Fsdpd__V1__LaneDiagnosis *busy_lane(const rank_message *rank)
{
    const Fsdpd__V1__LaneDiagnosis *busy = NULL;
    for (size_t i = 0; i < rank->n_lanes; i++) {
        const Fsdpd__V1__LaneDiagnosis *lane = rank->lanes[i];
        if (lane->awaits[0] != '\0' || lane->kind[0] == '\0') continue;
        if (busy == NULL || lane->seconds > busy->seconds) busy = lane;
    }
    return busy;
}

static void add_lane(struct buf *text, const Fsdpd__V1__LaneDiagnosis *lane)
{
    const char *subject = lane->op[0] != '\0' ? lane->op : lane->unit;
    buf_printf(text, "%s%s%s", lane->kind, subject[0] != '\0' ? " " : "", subject);
}

/* What the others wait for. */
static void add_collective(struct buf *text, const rank_message *waiting)
{
    const Fsdpd__V1__LaneDiagnosis *lane = find_lane(waiting, "comm");
    if (waiting->collective[0] == '\0') {
        buf_add_text(text, "the group");
    } else if (lane == NULL || lane->kind[0] == '\0') {
        buf_add_text(text, waiting->collective);
    } else {
        add_lane(text, lane);
        bool evaluates = strcmp(waiting->program, "evaluate") == 0;
        buf_printf(text, evaluates ? " of the evaluation after step %llu" : " of step %llu",
                   (unsigned long long)waiting->step + !evaluates);
    }
}

static void add_activity(struct buf *text, const rank_message *rank)
{
    const Fsdpd__V1__ThreadDiagnosis *thread = find_call(rank);
    const Fsdpd__V1__LaneDiagnosis *lane = busy_lane(rank);
    if (thread != NULL) {
        buf_printf(text, "its thread %s is in %s() of %s", thread->name, thread->call,
                   thread->file);
    } else if (lane != NULL) {
        buf_printf(text, "its %s lane is in ", lane->lane);
        add_lane(text, lane);
        buf_printf(text, " (instruction %u) for %.1f s", lane->instruction, lane->seconds);
    } else {
        buf_printf(text, "it %s for %.1f s", rank->place[0] != '\0' ? rank->place : "has not begun",
                   rank->place_seconds);
    }
}

/* ---- the sentence ---- */

static void add_silent(struct buf *text, Fsdpd__V1__Diagnosis *d, const rank_message *rank)
{
    const Fsdpd__V1__ThreadDiagnosis *thread = find_call(rank);
    d->cause = is_down(rank) ? FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_STOPPED
                             : FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_SILENT;
    buf_printf(text, " has been silent for %.1f s: ", rank->silent_seconds);
    if (strcmp(rank->process, "gone") == 0) buf_add_text(text, "its process is gone");
    else if (is_down(rank)) buf_add_text(text, "its process is stopped");
    else if (strcmp(rank->link, "attached") != 0 && rank->link[0] != '\0')
        buf_printf(text, "it %s", rank->link);
    else if (rank->process[0] != '\0')
        buf_printf(text, "its process exists (%s) but does not answer", rank->process);
    else buf_add_text(text, "its host, its process or the network between does not answer");
    if (thread != NULL && !is_down(rank)) {
        d->cause = FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_FILE;
        buf_printf(text, "; its thread %s is in %s() of %s", thread->name, thread->call,
                   thread->file);
    }
}

/* How much is known of what a rank does. */
static int telling(const rank_message *rank)
{
    if (!rank->answered) return is_down(rank) ? 3 : 2;
    return find_call(rank) != NULL;
}

/* The one that explains most comes first. */
static void sort_blamed(Fsdpd__V1__Diagnosis *d)
{
    uint32_t *ranks = d->ranks_to_blame;
    for (size_t i = 1; i < d->n_ranks_to_blame; i++) {
        if (telling(find_rank(d, ranks[i])) <= telling(find_rank(d, ranks[0]))) continue;
        uint32_t other = ranks[0];
        ranks[0] = ranks[i];
        ranks[i] = other;
    }
}

/* Of several ranks the first is described; what the others do is in their own part. */
static void add_more(struct buf *text, const Fsdpd__V1__Diagnosis *d)
{
    size_t count = d->n_ranks_to_blame;
    for (size_t i = 1; i < count && i <= RANKS_NAMED; i++)
        buf_printf(text, "%s %u", i == 1 ? "; likewise rank" : ",", d->ranks_to_blame[i]);
    if (count > RANKS_NAMED + 1) buf_printf(text, " and %zu more", count - RANKS_NAMED - 1);
}

/* What a silent rank does to the others. */
static void add_effect(struct buf *text, const Fsdpd__V1__Diagnosis *d, const rank_message *waiting)
{
    if (!is_stuck(d, waiting)) {
        buf_printf(text, "; the last step that was heard of is %llu, %.1f s ago",
                   (unsigned long long)d->step, d->step_age_seconds);
    } else if (waiting != NULL) {
        buf_printf(text, "; rank %u has waited %.1f s in ", waiting->rank, waiting->wait_seconds);
        add_collective(text, waiting);
    }
}

static void blame_rank(struct buf *text, Fsdpd__V1__Diagnosis *d, const rank_message *rank,
                       const rank_message *waiting)
{
    add_name(text, rank);
    if (!rank->answered) {
        add_silent(text, d, rank);
        add_effect(text, d, waiting);
        add_more(text, d);
        return;
    }
    d->cause = find_call(rank) != NULL ? FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_FILE
                                       : FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_BUSY;
    if (waiting != NULL && waiting != rank) {
        buf_add_text(text, " has not entered ");
        add_collective(text, waiting);
        buf_printf(text, " for %.1f s; ", waiting->wait_seconds);
    } else {
        buf_printf(text, " has not advanced for %.1f s; ", d->step_age_seconds);
    }
    add_activity(text, rank);
    add_more(text, d);
}

static const Fsdpd__V1__ConnectionDiagnosis *worst_connection(const Fsdpd__V1__Diagnosis *d,
                                                              const rank_message **of)
{
    const Fsdpd__V1__ConnectionDiagnosis *worst = NULL;
    for (size_t r = 0; r < d->n_ranks; r++)
        for (size_t i = 0; i < d->ranks[r]->n_connections; i++) {
            const Fsdpd__V1__ConnectionDiagnosis *one = d->ranks[r]->connections[i];
            if (one->retransmissions < RETRANSMISSIONS) continue;
            if (worst != NULL && one->retransmissions <= worst->retransmissions) continue;
            worst = one;
            *of = d->ranks[r];
        }
    return worst;
}

/* All ranks answer, and all wait for each other. */
static void blame_link(struct buf *text, Fsdpd__V1__Diagnosis *d)
{
    const rank_message *of = NULL, *waiting = find_waiting(d, false);
    const Fsdpd__V1__ConnectionDiagnosis *worst = worst_connection(d, &of);
    d->cause = FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_LINK;
    buf_add_text(text, "all ranks have entered ");
    add_collective(text, waiting);
    buf_printf(text, " and wait for each other, for %.1f s", waiting->wait_seconds);
    if (worst == NULL) {
        buf_add_text(text, "; no connection shows why");
        return;
    }
    d->ranks_to_blame[d->n_ranks_to_blame++] = of->rank;
    buf_add_text(text, "; ");
    add_name(text, of);
    buf_printf(text, " gets no answer from %s (%llu bytes unsent, sent again %u times)",
               worst->peer, (unsigned long long)worst->unsent_bytes, worst->retransmissions);
}

static const rank_message *slowest(const Fsdpd__V1__Diagnosis *d)
{
    const rank_message *slow = NULL;
    for (size_t r = 0; r < d->n_ranks; r++) {
        const rank_message *rank = d->ranks[r];
        if (rank->slowdown < BLAME_SLOWDOWN) continue;
        if (slow == NULL || rank->slowdown > slow->slowdown) slow = rank;
    }
    return slow;
}

/* The job makes progress. */
static void praise(struct buf *text, Fsdpd__V1__Diagnosis *d)
{
    const rank_message *slow = slowest(d);
    d->cause = slow != NULL ? FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_SLOW
                            : FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_NONE;
    if (slow == NULL) {
        buf_printf(text, "the job makes progress: it has done step %llu, %.1f s ago",
                   (unsigned long long)d->step, d->step_age_seconds);
        return;
    }
    d->ranks_to_blame = mem_alloc_array(1, sizeof *d->ranks_to_blame);
    d->ranks_to_blame[d->n_ranks_to_blame++] = slow->rank;
    add_name(text, slow);
    buf_printf(text,
               " is %.1f times slower than the median rank: it takes %.3g s for its own work "
               "in a step; the others wait for it",
               slow->slowdown, slow->own_step_seconds);
}

void blame(Fsdpd__V1__Diagnosis *diagnosis)
{
    struct buf text = {0};
    const rank_message *waiting = find_waiting(diagnosis, true);
    bool missing = false;
    for (size_t r = 0; r < diagnosis->n_ranks; r++)
        missing = missing || is_missing(diagnosis->ranks[r]);
    if (!missing && !is_stuck(diagnosis, waiting)) {
        praise(&text, diagnosis);
    } else {
        name_ranks(diagnosis);
        sort_blamed(diagnosis);
        if (diagnosis->n_ranks_to_blame > 0)
            blame_rank(&text, diagnosis, find_rank(diagnosis, diagnosis->ranks_to_blame[0]),
                       waiting);
        else blame_link(&text, diagnosis);
    }
    diagnosis->verdict = buf_take(&text);
}
