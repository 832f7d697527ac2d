/* systemd's notification protocol: a few words to the socket that NOTIFY_SOCKET names. */
#ifndef FSDPD_COORDINATOR_NOTIFY_H
#define FSDPD_COORDINATOR_NOTIFY_H

#include "base/status.h"

/* Reads NOTIFY_SOCKET, and takes it out of the environment so that children do not have it. */
void notify_init(void);

/*
 * The sockets that systemd hands over (LISTEN_FDS): *first and the following, close-on-exec from
 * now on. 0 if there are none. Takes the variables out of the environment.
 */
int notify_take_sockets(int *first);

/* How often the watchdog wants to hear, in milliseconds; 0: it does not (WATCHDOG_USEC). */
int notify_watchdog_ms(void);

/* Sends "READY=1", "STOPPING=1", "STATUS=...". Does nothing, and fails silently, without systemd.
 */
void notify_send(const char *format, ...) FSDPD_PRINTF(1, 2);

/* Says that the configuration is being read again; "READY=1" says that this is over. */
void notify_reloading(void);

#endif
