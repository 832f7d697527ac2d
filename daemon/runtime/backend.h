/*
 * Device backends that are modules of their own, opened when a worker asks for such a device, so
 * that the same fsdpd runs where neither the device nor its driver is. A module exports one
 * function, BACKEND_SYMBOL, which returns its table; what it needs of fsdpd it takes from the
 * program that opened it (backend.syms), so both must be of the same build.
 *
 * Modules lie in FSDPD_BACKEND_DIR if that is set, else beside the program in ../lib/fsdpd, else
 * where they were installed.
 */
#ifndef FSDPD_RUNTIME_BACKEND_H
#define FSDPD_RUNTIME_BACKEND_H

#include <stdint.h>

#include "base/status.h"
#include "runtime/rendezvous.h"

struct device;
struct comm;

/* Changes with every change of what the two sides share: device_table.h, comm_table.h, this. */
enum { BACKEND_VERSION = 6 };
#define BACKEND_SYMBOL "fsdpd_backend"

enum { BACKEND_DEVICES_MAX = 64, BACKEND_PARTS_MAX = 8 };

/* One device that a worker could own. */
struct backend_device {
    char name[32];   /* "cuda:0" */
    char model[128]; /* "NVIDIA H100 80GB HBM3, compute capability 9.0, 132 multiprocessors" */
    uint64_t memory_total, memory_free; /* bytes */
    char problem[256];                  /* why it cannot be used; "" if it can */
};

/* A library or driver, and which version of it was found. */
struct backend_part {
    char name[32];    /* "driver" */
    char version[64]; /* "13.0", or what is wrong */
};

struct backend_report {
    struct backend_device devices[BACKEND_DEVICES_MAX];
    int device_count;
    struct backend_part parts[BACKEND_PARTS_MAX];
    int part_count;
};

struct backend_table {
    uint32_t version;    /* BACKEND_VERSION */
    const char *package; /* PACKAGE_STRING of its build */
    /* Fills in what could be found out; an error says why there are no devices at all. */
    status_t (*report)(struct backend_report *report);
    status_t (*open)(int number, struct device **device);
    /* As comm_gloo_new; joins a group of devices, each of which a process owns. */
    status_t (*comm_new)(struct device *device, int rank, int world, const char *prefix,
                         const struct rendezvous *store, int64_t timeout_ms, struct comm **comm);
    /* A group of devices, some of which may be the same one, that talks through `host`: a group of
     * the same ranks that moves host memory, taken over, also after an error. */
    status_t (*comm_staged)(struct device *device, struct comm *host, struct comm **comm);
};

typedef const struct backend_table *backend_function(void);

/*
 * The group of the ranks' devices: NCCL's for cuda, or, if it is `staged`, Gloo's through host
 * memory, which NCCL is not needed for, and no two devices have to be different ones; Gloo's for
 * the cpu. See comm_gloo_new. All ranks say the same. `address` is where peers reach this host, for
 * Gloo.
 */
status_t backend_join(struct device *device, int rank, int world, const char *address,
                      const char *prefix, const struct rendezvous *store, int64_t timeout_ms,
                      bool staged, struct comm **comm) FSDPD_MUST_USE;

/* The module "cuda"; opened once, never closed. UNIMPLEMENTED: this build has none; UNAVAILABLE: it
 * is there but cannot be loaded, and the message says what is missing. From any thread. */
status_t backend_load(const struct backend_table **table) FSDPD_MUST_USE;

#endif
