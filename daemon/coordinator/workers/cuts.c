/* Cuts; see cuts.h. A pair that has mended stays in the list for as long as its number of times counts. */
#include "coordinator/workers/cuts.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    CUTS_MAX = 1024,
    PAUSE_MS = 1000,
    PAUSE_MAX_MS = 30000,       /* between two probes of a pair */
    AGAIN_PAUSE_MAX_MS = 300000, /* before the first one, of a pair that was cut before */
    COUNTS_MS = 3600000,        /* how long it counts that a pair was cut */
    ANSWER_MS = 20000,          /* for both answers of a probe */
};

struct host_cut {
    char *from, *to; /* hosts, or workers of one host */
    bool mended;
    int times; /* that it was cut */
    int64_t cut_at;
    int probes; /* that failed, since then */
    int64_t probe_at;
    uint64_t number; /* of the probe that runs; 0: none */
    int64_t answer_by;
};

int cuts_pause_ms(int probes, int times)
{
    int most = probes == 0 ? AGAIN_PAUSE_MAX_MS : PAUSE_MAX_MS;
    int64_t pause = PAUSE_MS;
    for (int i = 0; i < probes && pause < most; i++) pause *= 2;
    for (int i = 1; i < times && pause < most; i++) pause *= 4;
    return pause < most ? (int)pause : most;
}

static const char *end_of(const struct worker *worker, const struct worker *other)
{
    return strcmp(worker->host, other->host) == 0 ? worker->id : worker->host;
}

static bool is_end(const struct worker *worker, const char *name)
{
    return strcmp(worker->host, name) == 0 || strcmp(worker->id, name) == 0;
}

static struct host_cut *find(const struct coordinator *c, const char *one, const char *other)
{
    for (int i = 0; i < c->cut_count; i++) {
        struct host_cut *cut = c->cuts[i];
        if ((strcmp(cut->from, one) == 0 && strcmp(cut->to, other) == 0) ||
            (strcmp(cut->from, other) == 0 && strcmp(cut->to, one) == 0))
            return cut;
    }
    return NULL;
}

static void cut_free(struct host_cut *cut)
{
    free(cut->from);
    free(cut->to);
    free(cut);
}

static struct host_cut *add(struct coordinator *c, const char *from, const char *to)
{
    if (c->cut_count == CUTS_MAX) { /* the oldest */
        cut_free(c->cuts[0]);
        LIST_REMOVE(c->cuts, c->cut_count, 0);
    }
    struct host_cut *cut = mem_alloc(sizeof *cut);
    *cut = (struct host_cut){.from = mem_strdup(from), .to = mem_strdup(to), .mended = true};
    MEM_GROW(c->cuts, c->cut_count, c->cut_capacity);
    c->cuts[c->cut_count++] = cut;
    return cut;
}

bool cuts_add(struct worker *from, struct worker *to)
{
    struct coordinator *c = from->c;
    int64_t now = coordinator_now();
    const char *one = end_of(from, to), *other = end_of(to, from);
    struct host_cut *cut = find(c, one, other);
    if (cut == NULL) cut = add(c, one, other);
    if (!cut->mended) return false;
    if (now >= cut->cut_at + COUNTS_MS) cut->times = 0;
    cut->mended = false;
    cut->times++;
    cut->cut_at = now;
    cut->probes = 0;
    cut->probe_at = now + cuts_pause_ms(0, cut->times);
    log_event(LOG_WARNING, "unreachable", "from=%s to=%s times=%d", one, other, cut->times);
    queue_changed(c);
    return true;
}

static void mend(struct coordinator *c, struct host_cut *cut, const char *how)
{
    if (cut->mended) return;
    cut->mended = true;
    cut->number = 0;
    log_event(LOG_INFO, "reachable", "from=%s to=%s seen_by=%s seconds=%.1f", cut->from, cut->to,
              how, (double)(coordinator_now() - cut->cut_at) / 1000);
    queue_changed(c);
}

void cuts_mend(const struct worker *worker, const struct worker *other)
{
    struct host_cut *cut = find(worker->c, end_of(worker, other), end_of(other, worker));
    if (cut != NULL) mend(worker->c, cut, "job");
}

bool cuts_between(const struct worker *worker, const struct worker *other)
{
    if (worker->c->cut_count == 0 || worker == other) return false;
    const struct host_cut *cut = find(worker->c, end_of(worker, other), end_of(other, worker));
    return cut != NULL && !cut->mended;
}

void cuts_each(const struct coordinator *c,
               void (*found)(void *user, const char *from, const char *to), void *user)
{
    for (int i = 0; i < c->cut_count; i++)
        if (!c->cuts[i]->mended) found(user, c->cuts[i]->from, c->cuts[i]->to);
}

static void add_pair(void *user, const char *from, const char *to)
{
    struct buf *out = user;
    buf_printf(out, "%s%s and %s cannot reach each other", out->length > 0 ? ", " : "", from, to);
}

void cuts_describe(const struct coordinator *c, struct buf *out)
{
    AUTO(buf_deinit) struct buf pairs = {0};
    cuts_each(c, add_pair, &pairs);
    buf_add_text(out, buf_text(&pairs));
}

int cuts_of(const struct worker *worker, char **names)
{
    const struct coordinator *c = worker->c;
    int count = 0;
    for (int i = 0; i < c->cut_count; i++) {
        const struct host_cut *cut = c->cuts[i];
        if (cut->mended) continue;
        if (is_end(worker, cut->from)) names[count++] = cut->to;
        else if (is_end(worker, cut->to)) names[count++] = cut->from;
    }
    return count;
}

/* ---- probes ---- */

static struct worker *find_worker(const struct coordinator *c, const char *end)
{
    for (int i = 0; i < c->worker_count; i++)
        if (is_end(c->workers[i], end)) return c->workers[i];
    return NULL;
}

static void send_probe(struct worker *worker, uint64_t number, const char *address, uint32_t port)
{
    Fsdpd__V1__ProbeOrder order = FSDPD__V1__PROBE_ORDER__INIT;
    order.number = number;
    order.address = (char *)address;
    order.port = port;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PROBE, &order);
}

static void put_off(struct host_cut *cut, int64_t now)
{
    cut->number = 0;
    cut->probe_at = now + cuts_pause_ms(++cut->probes, 1);
}

static void probe(struct coordinator *c, struct host_cut *cut, int64_t now)
{
    struct worker *listener = find_worker(c, cut->to);
    if (listener == NULL || find_worker(c, cut->from) == NULL) return;
    cut->number = ++c->last_number;
    cut->answer_by = now + ANSWER_MS;
    send_probe(listener, cut->number, listener->address, 0);
}

void cuts_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = 0; i < c->cut_count; i++) {
        struct host_cut *cut = c->cuts[i];
        if (cut->mended) continue;
        if (cut->number != 0 && now >= cut->answer_by) put_off(cut, now);
        if (c->cuts_matter && cut->number == 0 && now >= cut->probe_at) probe(c, cut, now);
    }
}

void cuts_report(struct worker *worker, const Fsdpd__V1__ProbeReport *report)
{
    struct coordinator *c = worker->c;
    for (int i = 0; i < c->cut_count; i++) {
        struct host_cut *cut = c->cuts[i];
        if (cut->number == 0 || cut->number != report->number) continue;
        struct worker *caller = find_worker(c, cut->from);
        if (report->code != 0 || caller == NULL) put_off(cut, coordinator_now());
        else if (report->port != 0)
            send_probe(caller, cut->number, worker->address, report->port);
        else mend(c, cut, "probe");
        return;
    }
}

void cuts_free(struct coordinator *c)
{
    for (int i = 0; i < c->cut_count; i++) cut_free(c->cuts[i]);
    free(c->cuts);
    c->cuts = NULL;
    c->cut_count = c->cut_capacity = 0;
}
