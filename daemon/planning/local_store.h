/* A rendezvous store for ranks that are threads of this process. Internal to this room. */
#ifndef FSDPD_PLANNING_LOCAL_STORE_H
#define FSDPD_PLANNING_LOCAL_STORE_H

#include "runtime/rendezvous.h"

struct local_store;

struct local_store *local_store_new(void);
void local_store_free(struct local_store *store); /* accepts NULL; after every rank's last call */
struct rendezvous local_store_view(struct local_store *store);

/* Ends every current and future wait with ABORTED and `why`. */
void local_store_close(struct local_store *store, const char *why);

#endif
