/* The methods of fsdpd.v1.Control, for common/rpc. */
#ifndef FSDPD_CLIENT_METHODS_H
#define FSDPD_CLIENT_METHODS_H

#include "fsdpd/v1/control.pb-c.h"
#include "rpc/rpc.h"

extern const struct rpc_method control_submit_job;
extern const struct rpc_method control_get_job;
extern const struct rpc_method control_list_jobs;
extern const struct rpc_method control_get_history;
extern const struct rpc_method control_hold_job;
extern const struct rpc_method control_release_job;
extern const struct rpc_method control_set_priority;
extern const struct rpc_method control_drain_workers;
extern const struct rpc_method control_undrain_workers;
extern const struct rpc_method control_forget_job;
extern const struct rpc_method control_cancel_job;
extern const struct rpc_method control_watch_job;
extern const struct rpc_method control_plan_job;
extern const struct rpc_method control_pull_state_dict;
extern const struct rpc_method control_trace_job;
extern const struct rpc_method control_set_wrap_policy;
extern const struct rpc_method control_get_logs;
extern const struct rpc_method control_get_metrics;
extern const struct rpc_method control_create_checkpoint;
extern const struct rpc_method control_list_checkpoints;
extern const struct rpc_method control_pause_job;
extern const struct rpc_method control_resume_job;
extern const struct rpc_method control_list_workers;
extern const struct rpc_method control_get_version;

#endif
