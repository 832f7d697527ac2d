/*
 * What the files of common/rpc share and nobody else sees: completion tags, messages as gRPC byte
 * buffers, outgoing queues, and the insides of servers, calls and channels. Everything here belongs
 * to the loop's thread; only runtime.c's poller touches a tag elsewhere, between the completion
 * queue and the loop.
 */
#ifndef FSDPD_RPC_INTERNAL_H
#define FSDPD_RPC_INTERNAL_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rpc/client.h"
#include "rpc/peer.h"
#include "rpc/rpc.h"
#include "rpc/server.h"
#include "rpc/tls.h"

/* ---- runtime.c ---- */

/*
 * What gRPC is given as the tag of an operation. It lives inside its owner, who must not go away
 * before `done` ran. One tag is in flight at most once at a time.
 */
struct rpc_tag {
    void (*done)(struct rpc_tag *tag, bool ok);
    void *owner;
    bool ok;
    struct rpc_tag *next;
};

uv_loop_t *rpc_runtime_loop(struct rpc_runtime *runtime);
grpc_completion_queue *rpc_runtime_queue(struct rpc_runtime *runtime);

/* Runs tag->done from the loop, after the current callback. */
void rpc_runtime_post(struct rpc_runtime *runtime, struct rpc_tag *tag);

/* grpc_call_start_batch; an error here is a mistake of this library and aborts. */
void rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag);

/* ---- address.c ---- */

/* The path of a normalised Unix address, or NULL if it is a TCP one. */
const char *rpc_address_unix_path(const char *normal);

/* Host (without brackets) and port of a normalised TCP address; *host is the caller's to free. */
void rpc_address_split(const char *normal, char **host, int *port);

/* A normalised address as the target of a gRPC channel. Caller frees. */
char *rpc_address_target(const char *normal);

/* Why a normalised address cannot be bound: tries and returns errno, or 0 if it can be. */
int rpc_address_probe(const char *normal);

/* ---- message.c ---- */

grpc_byte_buffer *rpc_message_pack(const ProtobufCMessage *message);

/*
 * NULL if the bytes are no such message: they do not decode, a string is not UTF-8, or the decoded
 * form would be unreasonably larger than any honest one. Free with
 * protobuf_c_message_free_unpacked.
 */
ProtobufCMessage *rpc_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                     grpc_byte_buffer *buffer);

/* Messages that wait to be sent, in order. A zeroed struct is empty. */
struct rpc_outbox {
    struct rpc_outbox_item *first, *last;
    int count;
};

void rpc_outbox_push(struct rpc_outbox *outbox, const ProtobufCMessage *message);
/* The caller owns the buffer; NULL if the outbox is empty. */
grpc_byte_buffer *rpc_outbox_pop(struct rpc_outbox *outbox);
void rpc_outbox_clear(struct rpc_outbox *outbox);

/* ---- server.c, server_call.c ---- */

/* One method that the server knows. */
struct rpc_slot {
    const struct rpc_handler *handler;
    void *service;      /* what the handler gets */
    unsigned roles;     /* who may call it; one of them is enough */
    size_t message_max; /* 0: RPC_MESSAGE_MAX */
    bool own;           /* health or reflection: ended by the server itself when it closes */
};

struct rpc_server {
    struct rpc_runtime *runtime;
    struct rpc_slot *slots;
    int slot_count;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct rpc_door *doors;
    int counted_doors;              /* of Unix users but root and our own, and not retiring */
    struct rpc_acceptor *acceptors; /* Unix sockets, and what others have bound */
    struct rpc_operators operators;
    struct rpc_limits limits;
    struct rpc_server_tls *tls; /* NULL: no TLS */
    struct rpc_call *calls;     /* every call that has arrived and is not over */
    int armed;                  /* requests for calls that have not come back */
    int doors_open;             /* that have not shut down */
    bool started, closing, timer_closing;
    uv_timer_t grace; /* first for the calls to end, then for the last status to leave; lives from
                         rpc_server_close on */
    void (*closed)(void *user);
    void *closed_user;
};

/* Asks gRPC for the next call of a method, or of any unknown one if `slot` is NULL. */
void rpc_call_arm(struct rpc_door *door, const struct rpc_slot *slot);

/* Ends the calls of the server's own services, or all calls (these count as cancelled), because the
 * server is shutting down. */
void rpc_call_finish_all(struct rpc_server *server, bool own_only);

/* A request came back or a call ended: the server may be gone after this. */
void rpc_server_settle(struct rpc_server *server);

/* ---- door.c ---- */

/*
 * gRPC does not say which of its connections a call came over, so that what is known of a
 * connection cannot be looked up per call. Therefore every identity has a gRPC server of its own,
 * its door: what comes through a door comes from its peer, with no moment at which that could be
 * mistaken. TLS has one door for all, because a certificate travels with every call.
 */
struct rpc_door {
    struct rpc_server *server;
    struct rpc_door *next;
    grpc_server *grpc;
    void **registered;    /* by slot: gRPC's handles */
    struct rpc_peer peer; /* of TLS: the kind alone */
    char *name;           /* peer.name, where it is ours */
    int armed;            /* requests for calls that have not come back */
    int calls;            /* that have arrived and are not over */
    bool retiring, shut_down;
    struct rpc_tag shutdown_tag;
    struct rpc_connection *connections; /* of Unix peers; see rpc_door_connect */
    int connection_count, connection_capacity;
    uint64_t swept_at; /* when the connections were last looked through; ms of the loop */
};

/*
 * The door of that peer, made if there is none yet; copies the name. Where there are as many as
 * there may be, one that nobody uses goes; NULL if all are in use, or if who that is cannot be
 * told now.
 */
struct rpc_door *rpc_door_open(struct rpc_server *server, const struct rpc_peer *peer);

/* Takes calls, once the server has been started. */
void rpc_door_start(struct rpc_door *door);

/* Hands over an accepted connection, or closes it if its peer has too many. */
void rpc_door_connect(struct rpc_door *door, int fd);

void rpc_door_shutdown(struct rpc_door *door);

/* One of its requests came back or one of its calls ended: the door may be gone after this. */
void rpc_door_settle(struct rpc_door *door);
void rpc_door_free(struct rpc_door *door);

/* ---- peer.c ---- */

/*
 * The peer of an accepted socket; `name` stays NULL for a Unix peer (rpc_peer_unix_name, which asks
 * the system's user database, has it). False if it has gone.
 */
bool rpc_peer_of_socket(int fd, const struct rpc_operators *operators, struct rpc_peer *peer);
/* NULL if the database cannot be asked now, which is logged: that is not to have no name, and
 * whoever would be taken for somebody else tries again. */
char *rpc_peer_unix_name(uid_t uid);

/* The peer of a TLS call. Returns what peer->name points to, the caller's to free, or NULL. */
char *rpc_peer_of_call(grpc_call *call, struct rpc_peer *peer);

/* ---- tls.c ---- */

/* What the files hold; the private key is wiped when it goes. */
struct rpc_pems {
    char *ca, *certificate, *key;
};
/*
 * Reads them and says what is wrong, naming the file: INVALID_ARGUMENT if one is missing or is not
 * what it should be, a server's certificate (`server`) or a client's; FAILED_PRECONDITION if the
 * certificate's time is over or has not come; PERMISSION_DENIED if everybody may read the key.
 */
status_t rpc_pems_read(const struct rpc_tls_files *files, bool server,
                       struct rpc_pems *pems) FSDPD_MUST_USE;
void rpc_pems_deinit(struct rpc_pems *pems);

/* A server's, which can be set again while it serves: peers that connect from then on see it. */
struct rpc_server_tls *rpc_server_tls_new(void);
void rpc_server_tls_free(struct rpc_server_tls *tls); /* behind its gRPC server */
void rpc_server_tls_set(struct rpc_server_tls *tls, struct rpc_pems *pems); /* takes them */
grpc_server_credentials *rpc_server_tls_credentials(struct rpc_server_tls *tls);

grpc_channel_credentials *rpc_client_tls_credentials(const struct rpc_pems *pems);

/* ---- acceptor.c ---- */

/* Binds, listens and accepts at a Unix socket's path, which is free. */
status_t rpc_acceptor_bind(struct rpc_server *server, const char *path, int mode) FSDPD_MUST_USE;

/* rpc_acceptors_close ends with rpc_server_settle, once they are gone. */
void rpc_acceptors_start(struct rpc_server *server);
void rpc_acceptors_close(struct rpc_server *server);

/* ---- health.c ---- */

struct rpc_health *rpc_health_new(const struct rpc_service *services, int count);
void rpc_health_free(struct rpc_health *health);
void rpc_health_set(struct rpc_health *health, const char *service, bool serving);
/* Nothing serves any more; every watcher is told, whatever it still has to read. */
void rpc_health_end(struct rpc_health *health);
extern const struct rpc_handler rpc_health_handlers[];
extern const int rpc_health_handler_count;

/* ---- reflection.c, descriptors.c ---- */

/* `services` are those that list_services names, where the descriptor set knows them. */
status_t rpc_reflection_new(const char *const *services, int count, const uint8_t *descriptor_set,
                            size_t size, struct rpc_reflection **reflection) FSDPD_MUST_USE;
void rpc_reflection_free(struct rpc_reflection *reflection);
extern const struct rpc_handler rpc_reflection_handlers[];
extern const int rpc_reflection_handler_count;

/* ---- client.c, stream.c ---- */

/* Tells whether a file is still the one that was read. */
struct rpc_file_mark {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

struct rpc_channel {
    struct rpc_runtime *runtime;
    grpc_channel *channel;
    char *address; /* normalised, for messages */
    bool uses_tls;
    char *tls_ca, *tls_certificate, *tls_key; /* the files */
    const char *const *tls_names;             /* what messages call them */
    struct rpc_file_mark tls_marks[3];        /* as they were when they were read */
    struct rpc_client_call *calls;
    bool closing;
    struct rpc_tag closed_tag;
    void (*closed)(void *user);
    void *closed_user;
};

/* What unary calls and streams have in common; the first member of both. */
struct rpc_client_call {
    struct rpc_channel *channel;
    struct rpc_client_call *next, **link;
    const struct rpc_method *method;
    grpc_call *call;
    int64_t deadline_ms;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
    const char *error_string;
};

void rpc_client_call_init(struct rpc_client_call *call, struct rpc_channel *channel,
                          const struct rpc_method *method, int64_t deadline_ms);
void rpc_client_call_deinit(struct rpc_client_call *call);

/* The operations that every call starts and ends with. */
grpc_op rpc_client_call_open(bool wait_for_ready);
grpc_op rpc_client_call_initial(struct rpc_client_call *call);
grpc_op rpc_client_call_trailing(struct rpc_client_call *call);

/* What the server (or gRPC) said in the end; NULL for OK. */
status_t rpc_client_call_status(const struct rpc_client_call *call);

#endif
