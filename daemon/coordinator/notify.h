/* systemd's notification protocol: short messages to the socket that NOTIFY_SOCKET names. */
#ifndef FSDPD_COORDINATOR_NOTIFY_H
#define FSDPD_COORDINATOR_NOTIFY_H

#include "base/status.h"

/* Reads NOTIFY_SOCKET, and removes it from the environment so that children do not inherit it. */
void notify_init(void);

/*
 * Returns the number of sockets that systemd hands over (LISTEN_FDS), from *first on; 0 if there
 * are none. They are close-on-exec from now on. Removes the variables from the environment.
 */
int notify_take_sockets(int *first);

/* The watchdog's period in milliseconds (WATCHDOG_USEC); 0: there is no watchdog. */
int notify_watchdog_ms(void);

/* Sends "READY=1", "STOPPING=1", "STATUS=...". Without systemd it does nothing; errors are
 * ignored. */
void notify_send(const char *format, ...) FSDPD_PRINTF(1, 2);

/* Notifies that the configuration is being reloaded; "READY=1" ends the reload. */
void notify_reloading(void);

#endif
