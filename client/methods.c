/* The methods of fsdpd.v1.Control; see methods.h. */
#include "methods.h"

#define METHOD(variable, name, kind, request, response)                                            \
    const struct rpc_method variable = {"/fsdpd.v1.Control/" name, kind,                           \
                                        &fsdpd__v1__##request##__descriptor,                       \
                                        &fsdpd__v1__##response##__descriptor}

METHOD(control_submit_job, "SubmitJob", RPC_UNARY, submit_job_request, job);
METHOD(control_get_job, "GetJob", RPC_UNARY, get_job_request, job);
METHOD(control_list_jobs, "ListJobs", RPC_UNARY, list_jobs_request, list_jobs_response);
METHOD(control_get_history, "GetHistory", RPC_UNARY, get_history_request, history);
METHOD(control_hold_job, "HoldJob", RPC_UNARY, hold_job_request, job);
METHOD(control_release_job, "ReleaseJob", RPC_UNARY, release_job_request, job);
METHOD(control_set_priority, "SetPriority", RPC_UNARY, set_priority_request, job);
METHOD(control_drain_workers, "DrainWorkers", RPC_UNARY, drain_workers_request,
       list_workers_response);
METHOD(control_undrain_workers, "UndrainWorkers", RPC_UNARY, undrain_workers_request,
       list_workers_response);
METHOD(control_forget_job, "ForgetJob", RPC_UNARY, forget_job_request, forget_job_response);
METHOD(control_cancel_job, "CancelJob", RPC_UNARY, cancel_job_request, job);
METHOD(control_watch_job, "WatchJob", RPC_SERVER_STREAM, watch_job_request, job_event);
METHOD(control_plan_job, "PlanJob", RPC_UNARY, plan_job_request, plan);
METHOD(control_pull_state_dict, "PullStateDict", RPC_SERVER_STREAM, pull_state_dict_request,
       state_dict_chunk);
METHOD(control_trace_job, "TraceJob", RPC_SERVER_STREAM, trace_job_request, trace_chunk);
METHOD(control_set_wrap_policy, "SetWrapPolicy", RPC_UNARY, set_wrap_policy_request, job);
METHOD(control_get_logs, "GetLogs", RPC_SERVER_STREAM, get_logs_request, log_chunk);
METHOD(control_get_metrics, "GetMetrics", RPC_SERVER_STREAM, get_metrics_request, metrics_chunk);
METHOD(control_create_checkpoint, "CreateCheckpoint", RPC_UNARY, create_checkpoint_request,
       checkpoint);
METHOD(control_list_checkpoints, "ListCheckpoints", RPC_UNARY, list_checkpoints_request,
       list_checkpoints_response);
METHOD(control_pause_job, "PauseJob", RPC_UNARY, pause_job_request, job);
METHOD(control_resume_job, "ResumeJob", RPC_UNARY, resume_job_request, job);
METHOD(control_list_workers, "ListWorkers", RPC_UNARY, list_workers_request, list_workers_response);
METHOD(control_get_version, "GetVersion", RPC_UNARY, get_version_request, version);
