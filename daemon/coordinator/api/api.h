/* The coordinator's services: tables of handlers. */
#ifndef FSDPD_COORDINATOR_API_H
#define FSDPD_COORDINATOR_API_H

#include "rpc/server.h"

struct coordinator;

enum { API_SERVICES = 2 };

/* Control and WorkerLink; `user` is the struct coordinator. */
void api_services(void *user, struct rpc_service services[API_SERVICES]);

/* Logs the mistakes in family files of the daemon's own directories. */
void api_report_families(const struct coordinator *c);

#endif
