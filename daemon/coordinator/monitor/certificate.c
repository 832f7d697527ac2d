/* See monitor.h. */
#include "coordinator/monitor/monitor.h"

#include "base/clock.h"
#include "base/log.h"

enum { DAY_S = 24 * 60 * 60, AHEAD_S = 30 * DAY_S };

static int64_t seconds_left(const struct coordinator *c)
{
    return c->certificate.end - clock_wall_ms() / 1000;
}

bool certificate_has_expired(const struct coordinator *c)
{
    return c->certificate.end != 0 && seconds_left(c) <= 0;
}

void certificate_describe(const struct coordinator *c, struct buf *out)
{
    int64_t left = seconds_left(c), days = left / DAY_S;
    if (c->certificate.end == 0 || left > AHEAD_S) return;
    char time[32];
    clock_format_wall(c->certificate.end * 1000, time);
    if (left <= 0)
        buf_printf(out, "the server's certificate expired at %s", time);
    else
        buf_printf(out, "the server's certificate expires in %lld day%s, at %s", (long long)days,
                   days == 1 ? "" : "s", time);
}

void certificate_tick(struct coordinator *c)
{
    bool expired = certificate_has_expired(c);
    int64_t now = clock_wall_ms() / 1000;
    bool due = now - c->certificate.noted >= DAY_S || now < c->certificate.noted;
    if (!due && expired == c->certificate.noted_expired) return;
    AUTO(buf_deinit) struct buf text = {0};
    certificate_describe(c, &text);
    if (text.length == 0) return;
    c->certificate.noted = now;
    c->certificate.noted_expired = expired;
    AUTO_FREE char *file = log_quote(c->options.tls.certificate);
    AUTO_FREE char *quoted = log_quote(buf_text(&text));
    log_event(expired ? LOG_ERROR : LOG_WARNING, "certificate_ends", "file=%s message=%s", file,
              quoted);
}

void certificate_set(struct coordinator *c, int64_t end)
{
    c->certificate.end = end;
    c->certificate.noted = 0;
    c->certificate.noted_expired = false;
}
