/*
 * Reads the options again while the coordinator serves (SIGHUP). A file may lie on a disk that
 * hangs, so a thread reads, which the loop waits for RELOAD_MS at most; then nothing changes. What
 * still reads when the loop ends is left behind.
 */
#ifndef FSDPD_RELOAD_H
#define FSDPD_RELOAD_H

#include <uv.h>

#include "coordinator/coordinator.h"
#include "options.h"

struct reload {
    int argc;
    char **argv;
    struct coordinator *coordinator;
    const struct options *started; /* at the start; in force for keys that need a restart */
    struct options loaded;         /* of the last reload, if any */
    bool reloaded, again, ending;  /* ending: changes nothing any more */
    uv_timer_t patience;
    uv_async_t read;
    struct reload_reading *reading; /* NULL: none */
};

/* What it is given must outlive it. */
void reload_open(struct reload *reload, uv_loop_t *loop, struct coordinator *coordinator,
                 const struct options *started, int argc, char **argv);

/* Reads all options; if any is invalid, nothing changes. The outcome is in the log. */
void reload_begin(struct reload *reload);

/* Closes its handles, if it was opened. */
void reload_close(struct reload *reload);

#endif
