/*
 * Device backends as separate modules. A worker loads one when it uses such a device, so the same
 * fsdpd runs on hosts without the device or its driver. A module exports one function,
 * BACKEND_SYMBOL, which returns its table. It uses symbols of the program that loaded it
 * (backend.syms), so both must come from the same build.
 *
 * Modules are in FSDPD_BACKEND_DIR if that is set, otherwise in ../lib/fsdpd relative to the
 * program, otherwise in the installation's directory.
 */
#ifndef FSDPD_RUNTIME_BACKEND_H
#define FSDPD_RUNTIME_BACKEND_H

#include <stdint.h>

#include "base/status.h"
#include "runtime/rendezvous.h"

struct device;
struct comm;

/* Raised with every change of the shared interface: device_table.h, comm_table.h, this file. */
enum { BACKEND_VERSION = 12 };
#define BACKEND_SYMBOL "fsdpd_backend"

enum { BACKEND_DEVICES_MAX = 64, BACKEND_PARTS_MAX = 8, BACKEND_FAULTS_MAX = 8 };

/* A device that a worker could own. */
struct backend_device {
    char name[32];   /* "cuda:0" */
    char model[128]; /* "NVIDIA H100 80GB HBM3, compute capability 9.0, 132 multiprocessors" */
    uint64_t memory_total, memory_free; /* bytes; 0 free: unknown */
    char problem[256];                  /* why it cannot be used; "" if it can */
};

/* A library or driver, with the version found. */
struct backend_part {
    char name[32];    /* "driver" */
    char version[64]; /* "13.0", or the reason why there is none */
};

struct backend_report {
    struct backend_device devices[BACKEND_DEVICES_MAX];
    int device_count;
    struct backend_part parts[BACKEND_PARTS_MAX];
    int part_count;
    char faults[BACKEND_FAULTS_MAX][192]; /* known ones, of the parts' versions */
    int fault_count;
};

struct backend_table {
    uint32_t version;    /* BACKEND_VERSION */
    const char *package; /* PACKAGE_STRING of its build */
    /* Fills in what could be determined; an error explains why there are no devices at all. */
    status_t (*report)(struct backend_report *report);
    /* Only its parts, and their faults; touches no device. */
    void (*versions)(struct backend_report *report);
    status_t (*open)(int number, struct device **device);
    /* Like comm_gloo_new; joins a group of devices, each owned by one process. What `store` refers
     * to must live as long as the group, which may meet there again (comm_end_recording). `kept`:
     * see backend_join. */
    status_t (*comm_new)(struct device *device, int rank, int world, const char *prefix,
                         const struct rendezvous *store, int64_t timeout_ms, struct comm **kept,
                         struct comm **comm);
    /* A group of devices that communicates through `host`, a group of the same ranks that moves
     * host memory; ranks may share a device. Takes ownership of `host`, even after an error. */
    status_t (*comm_staged)(struct device *device, struct comm *host, struct comm **comm);
};

typedef const struct backend_table *backend_function(void);

/*
 * Joins the group of the ranks' devices. On cuda it uses NCCL or, if `staged`, Gloo through host
 * memory, which works without NCCL and lets ranks share a device. On the cpu it uses shared memory
 * if `shared`, otherwise Gloo; see comm_host_new. All ranks must pass the same values. `address` is
 * where peers reach this host, for Gloo.
 *
 * `kept`: NULL, or where this rank has what comm_keep gave it of an earlier group, or NULL. It is
 * taken, even after an error. If all ranks of the new group, or its first ones, are of the same
 * earlier group, in their order there, NCCL makes the new one from that.
 */
status_t backend_join(struct device *device, int rank, int world, const char *address,
                      const char *prefix, const struct rendezvous *store, int64_t timeout_ms,
                      bool staged, bool shared, struct comm **kept,
                      struct comm **comm) FSDPD_MUST_USE;

/* The module "cuda"; loaded once, never unloaded. UNIMPLEMENTED: this build has none; UNAVAILABLE:
 * it cannot be loaded, and the message names what is missing. From any thread. */
status_t backend_load(const struct backend_table **table) FSDPD_MUST_USE;

/* What decides how fast a device is: its model (a processor with `threads` per rank), the libraries
 * that compute on it with their versions, and fsdpd's. One line, for people and for comparing. The
 * caller frees it. */
status_t backend_describe(const struct device *device, int threads, char **text) FSDPD_MUST_USE;
/* Warns in the log of known faults of the device's libraries. */
void backend_log_faults(const struct device *device);

#endif
