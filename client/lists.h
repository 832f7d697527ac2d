/* Lists of a daemon, which come in pages. */
#ifndef FSDPD_CLIENT_LISTS_H
#define FSDPD_CLIENT_LISTS_H

#include "client.h"

/* Which page is the first: jobs, history and checkpoints begin with the newest rows. */
enum list_order { LIST_FROM_FIRST, LIST_FROM_NEWEST };

/*
 * Calls a method that lists something, until the list is whole or has as many rows as the request's
 * page_size (0: all), and returns one response with all rows. The request's page fields change.
 */
status_t lists_read(struct session *session, const struct rpc_method *method,
                    ProtobufCMessage *request, enum list_order order,
                    ProtobufCMessage **response) FSDPD_MUST_USE;

/* The same as client_call. */
bool lists_call(struct client *client, const struct rpc_method *method, ProtobufCMessage *request,
                enum list_order order, ProtobufCMessage **response, int *exit_code);

/* The whole verb: calls, and prints the rows as JSON or with `report`. Returns the exit code. */
typedef void lists_report(const ProtobufCMessage *response, const struct view *view,
                          struct buf *out);
int lists_print(struct client *client, const struct rpc_method *method, ProtobufCMessage *request,
                enum list_order order, lists_report *report);

#endif
