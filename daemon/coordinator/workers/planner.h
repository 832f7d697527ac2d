/* Requests the plan of a spec from an attached worker, as the coordinator has no devices, or while
 * there is none from a process that plans for known devices. */
#ifndef FSDPD_COORDINATOR_PLANNER_H
#define FSDPD_COORDINATOR_PLANNER_H

#include "coordinator/workers/offline.h"
#include "coordinator/workers/workers.h"
#include "fsdpd/v1/worker.pb-c.h"

/*
 * Called once, never before planner_request returns: with a plan (valid during the call) and status
 * NULL, or with an error that the callee owns. `spec` is the request's spec, with its device filled
 * in; valid during the call.
 */
typedef void planner_done(void *user, status_t status, const job_spec *spec,
                          const Fsdpd__V1__PlanResult *result);

/* What a request asks for beyond units and memory; and that a worker makes the plan. */
enum { PLANNER_DETAILS = 1, PLANNER_DUMP = 2, PLANNER_CHOOSE = 4, PLANNER_WORKER = 8 };

/*
 * `spec` is copied, `parts` are flags. `owner` is the user whose plan it is, who has at most a few
 * at a time with the workers, so that one user's plans are not another's wait; NULL: fsdpd's own.
 * An empty device becomes that of the first worker that can plan. Without any worker, the request
 * waits for local ones that are starting, and is then planned for known devices (devices.c; the
 * plan says `offline`, the device stays empty), refused, or ends with FAILED_PRECONDITION and the
 * reason NO_WORKER. RESOURCE_EXHAUSTED, without a call of `done`, if there are too many requests.
 */
status_t planner_request(struct coordinator *c, const job_spec *spec, const char *owner,
                         unsigned parts, planner_done *done, void *user) FSDPD_MUST_USE;
/* The same for ranks whose devices have at most `memory_bytes`; 0: what they have. */
status_t planner_request_within(struct coordinator *c, const job_spec *spec, const char *owner,
                                unsigned parts, uint64_t memory_bytes, planner_done *done,
                                void *user) FSDPD_MUST_USE;

/* The same for a file of the directory that the spec's model.hf names, instead of a plan: the
 * result has a `file`. Of the spec only this and the device count. */
status_t planner_read_file(struct coordinator *c, const job_spec *spec, const char *owner,
                           const Fsdpd__V1__GetModelFileRequest *file, planner_done *done,
                           void *user) FSDPD_MUST_USE;

/* The contents of the directories of the model and of its teacher, as they were planned, become
 * part of what asks for the same ones. */
void planner_complete(Fsdpd__V1__ModelSpec *asked, const Fsdpd__V1__ModelSpec *planned);

/* What a worker's plan of this spec has chosen; NULL: nothing. */
const Fsdpd__V1__Chosen *planner_chosen(const job_spec *spec, const Fsdpd__V1__Plan *plan);

/* Whether a worker that can plan for this kind of device ("": any) is attached. */
bool planner_has_worker(struct coordinator *c, const char *kind);

/* Whether a request ended so because no worker is attached and no devices are known: the job itself
 * may be right. */
bool planner_lacks_worker(status_t status);

/* `done` is no longer called for this user's requests, and their workers get the order to stop;
 * until they have stopped, the plans count. */
void planner_forget(struct coordinator *c, const void *user);

void planner_worker_attached(struct coordinator *c);
void planner_worker_lost(struct worker *worker);
void planner_result(struct worker *worker, const Fsdpd__V1__PlanResult *result);
void planner_tick(struct coordinator *c);

/* Ends all requests with UNAVAILABLE: the coordinator is closing. */
void planner_close(struct coordinator *c);

/* ---- calibration.c ---- */

/*
 * Calibrations: workers that have been idle for a while measure a profile of their devices, once
 * for each make of device and number of workers; plans are then made with it. One worker of a host
 * has the devices of all of them measured. A calibration ends at once when a job is planned or
 * wants workers; it begins again when they have been idle as long. On the loop's thread.
 */

/* Starts what is due. */
void calibration_tick(struct coordinator *c);

/* Ends all that run. Returns whether some have not ended yet; queue_changed follows then. */
bool calibration_stop(struct coordinator *c);

void calibration_report(struct worker *worker, const Fsdpd__V1__Calibration *report);

/* The measured profile to plan with on this worker; "": there is none. Valid until the next
 * report. */
const char *calibration_profile(struct worker *worker);

/* ---- devices.c ---- */

/*
 * The devices that jobs are planned for while no worker is attached: those of the configuration's
 * profile, or else those of the last worker that planned a job, as the store's jobs remember, with
 * the profile that was measured on such devices, if one was.
 */

/* A worker has made this plan for a job on this kind of device, with all of a rank's memory. */
void devices_note(struct coordinator *c, const char *kind, const Fsdpd__V1__Plan *plan);

/* The devices of workers of this kind ("": any); the profile is NULL if none are known. Returns
 * where they are known from, as an end of a sentence. Valid until the next call of devices_note or
 * kept_profiles_put. */
const char *devices_find(struct coordinator *c, const char *kind, struct offline_devices *devices);

void devices_free(struct coordinator *c);

#endif
