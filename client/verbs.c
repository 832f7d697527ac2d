/* The table of verbs, in the order that help prints. */
#include "client.h"

#include "base/array.h"

const struct verb verbs[] = {
    {VERBS_TRAIN, "submit", "FILE", 1, "Queue a job, and with --wait follow it to its end",
     "FILE is a job file (docs/job-file.md), or - for standard input. Prints the job's id. --wait "
     "shows the wrapped module tree, the plan's memory and live progress, and exits with 0, 8 or 9 "
     "if the job succeeded, failed or was cancelled. Ctrl-C then detaches (exit 130); the job "
     "continues. With -o json the result is the job's final record.",
     submit_options, verb_submit,
     "fsdpctl submit job.yaml --set train.epochs=1 --wait\n"
     "generate-job | fsdpctl submit - --label team=vision\n"},
    {VERBS_TRAIN, "plan", "FILE", 1, "Show a job's units, memory and times without running it",
     "A worker computes the plan; nothing is queued. Exit 10: the job does not fit a worker.",
     plan_options, verb_plan,
     "fsdpctl plan job.yaml --set fsdp.wrap.policy=none\n"
     "fsdpctl plan job.yaml -o json | jq .peak_bytes\n"},
    {VERBS_TRAIN, "sweep", "FILE|SWEEP", 1,
     "Queue trials with drawn values, or show those of a sweep",
     "FILE, whose name has a dot or a slash, is a sweep file (docs/arrays.md): an objective, "
     "parameters with what their values are drawn from, and a job file; it is queued as by submit. "
     "SWEEP is the id of one: shows its trials with their values and the objective's metric, the "
     "best first. cancel, hold, pause and resume take this id, too.",
     submit_options, verb_sweep,
     "fsdpctl sweep sweep.yaml --wait\n"
     "fsdpctl sweep tune-1 -o json | jq '.trials[0]'\n"},
    {VERBS_TRAIN, "watch", "JOB", 1, "Follow a job from its beginning to its end",
     "Exits with 0, 8 or 9 if the job succeeded, failed or was cancelled. Ctrl-C detaches (exit "
     "130) and does not cancel the job. When fsdpd restarts, watching resumes where it stopped; "
     "--timeout limits the wait for fsdpd. With -o json, each event is one line.",
     NULL, verb_watch,
     "fsdpctl watch mnist-1\n"
     "fsdpctl watch mnist-1 -o json > events.jsonl\n"},
    {VERBS_TRAIN, "pull", "JOB", 1, "Write a job's state_dict to a file",
     "A running job gives the weights of one step, the same on all ranks. A job that does not run "
     "and has no final weights (paused, queued again, failed, cancelled) gives those of its newest "
     "checkpoint, which standard error reports. FILE is written under a temporary name in the same "
     "directory and renamed when complete; an interrupted pull leaves nothing behind. \"-\" is "
     "standard output. --timeout limits the wait for the next bytes. With --format hf, for a job "
     "whose model is a directory of Hugging Face's transformers, FILE is a new directory with "
     "config.json and the weights. Since -o names the file, --format json selects a result in "
     "JSON.",
     pull_options, verb_pull,
     "fsdpctl pull mnist-1 -o mnist.safetensors\n"
     "fsdpctl pull finetune-1 --format hf --dtype bf16 -o gpt2-finetuned\n"},
    {VERBS_TRAIN, "verify", "JOB [FILE]", 2, "Prove a job's kept or pulled weights",
     "Without FILE, fsdpd reads the final weights, all checkpoints and the log of the job and "
     "compares their sums. With FILE, which pull wrote (or DIR, with --format hf), every byte of "
     "it "
     "is compared with the job's weights. Exits with 1 if something is damaged, which it names.",
     verify_options, verb_verify,
     "fsdpctl verify mnist-1\n"
     "fsdpctl verify mnist-1 mnist.safetensors\n"},
    {VERBS_LOOK, "list", "", 0, "List the jobs, oldest first",
     "Without options, lists all jobs. With several options, a job must match each of them.",
     list_options, verb_list,
     "fsdpctl list --state active --label team=vision\n"
     "fsdpctl list --name 'mnist-*' -n 10\n"},
    {VERBS_LOOK, "show", "JOB", 1, "Show a job: state, reason, progress, units, plan, settings",
     NULL, NULL, verb_show,
     "fsdpctl show mnist-1\n"
     "fsdpctl show mnist-1 -o json | jq .metrics.loss\n"},
    {VERBS_LOOK, "top", "", 0, "Show all jobs and workers, live",
     "On a terminal, fills the screen until q or Ctrl-C; in a pipe, repeatedly prints a line for "
     "each job that is not over. With -o json, each update is one line.",
     top_options, verb_top,
     "fsdpctl top\n"
     "fsdpctl top --rounds 1 -o json\n"},
    {VERBS_LOOK, "status", "", 0, "Show the daemon, its workers and jobs at a glance", NULL, NULL,
     verb_status, "fsdpctl status\n"},
    {VERBS_LOOK, "diagnose", "JOB", 1, "Show what every rank does now, and which one is to blame",
     "The first line says why the job hangs or is slow. Works while ranks hang: a rank that does "
     "not answer within 3 s is described from outside. With the stacks of the threads of the ranks "
     "to blame; taking them interrupts each thread for a moment and changes no result.",
     diagnose_options, verb_diagnose,
     "fsdpctl diagnose mnist-1\n"
     "fsdpctl diagnose mnist-1 -o json | jq -r .verdict\n"},
    {VERBS_LOOK, "why", "JOB", 1, "Explain in a paragraph why a job is where it is",
     "Of a queued job: its place, which jobs are before it, who has the workers, and what it waits "
     "for; of other jobs: what they do, or how they ended.",
     NULL, verb_why, "fsdpctl why mnist-3\n"},
    {VERBS_LOOK, "history", "JOB", 1, "Show a job's states, why it was in them, and since when",
     NULL, NULL, verb_history, "fsdpctl history mnist-1\n"},
    {VERBS_LOOK, "logs", "JOB", 1, "Show the log of a job's ranks",
     "Shows all attempts, during the job and afterwards, as long as fsdpd keeps the lines. A line "
     "has the time, attempt/rank (\"fsdpd\" for the daemon's own lines), the level, an event and "
     "its fields. -f follows the log until the job is over or Ctrl-C, across restarts of fsdpd; "
     "--timeout limits the wait for a restart. With -o json, each line is one JSON object.",
     logs_options, verb_logs,
     "fsdpctl logs mnist-1 -f --rank 1\n"
     "fsdpctl logs mnist-1 --since 10m --tail 100\n"},
    {VERBS_LOOK, "metrics", "JOB", 1, "Show every recorded step of a job",
     "Includes the ends of epochs and validations. --csv and -o json (one object per line) have "
     "all figures; unknown ones are empty or left out.",
     metrics_options, verb_metrics, "fsdpctl metrics mnist-1 --csv > mnist-1.csv\n"},
    {VERBS_LOOK, "compare", "JOB...", 1,
     "Show jobs side by side: what differs, and what came of it",
     "The settings in which the jobs differ, and their latest losses and accuracy. The id of an "
     "array or a sweep stands for its jobs.",
     NULL, verb_compare,
     "fsdpctl compare gpt-1 gpt-2\n"
     "fsdpctl compare tune-1 -o json | jq '.[].metrics.val_loss'\n"},
    {VERBS_LOOK, "report", "JOB", 1, "Write a page about a job, for a browser",
     "One file of HTML that needs no network: loss, learning rate, throughput, memory against the "
     "plan, units, the timeline of a step, states, settings. Traces three steps of a running job, "
     "unless --no-trace is given; otherwise shows the plan's schedule. FILE is written as by pull. "
     "Since -o names the file, --format json selects a result in JSON.",
     report_options, verb_report, "fsdpctl report mnist-1 -o mnist-1.html\n"},
    {VERBS_LOOK, "eval", "JOB", 1, "Evaluate a job or a directory on data",
     "The loss and what else the task has, over --data, a --set, or the job's own validation data. "
     "A "
     "running job evaluates between two of its steps: training waits, and nothing of it changes; "
     "only one client at a time may (exit 6), and --timeout limits the wait for the result. For a "
     "job that is paused or over, a --checkpoint, or a directory of Hugging Face's transformers in "
     "the place of JOB, eval submits a job that trains nothing, waits for it, and prints its "
     "figures; Ctrl-C cancels that job.",
     eval_options, verb_eval,
     "fsdpctl eval gpt-1 --data code.bin --batches 50\n"
     "fsdpctl eval gpt-1 --set code -o json | jq .loss\n"
     "fsdpctl eval gpt-1 --checkpoint 2000 --data code.bin\n"
     "fsdpctl eval ./gpt2 --data code.bin --key workers=2\n"},
    {VERBS_LOOK, "sample", "JOB", 1, "Continue tokens with a running job's weights",
     "Between two of its steps, as eval: training waits, and nothing of it changes. The prompt is "
     "--tokens or, if the job's tokens are the bytes of a text, --prompt. Without --temperature "
     "the "
     "most probable token each time. For models whose tokens see earlier ones only, on CPUs.",
     sample_options, verb_sample,
     "fsdpctl sample gpt-1 --tokens 5,17,3 --max-tokens 32 -o json | jq .tokens\n"
     "fsdpctl sample bytes-1 --prompt 'To be' --temperature 0.8 --top-p 0.9\n"},
    {VERBS_LOOK, "trace", "JOB", 1, "Write a timeline of a running job's steps, for Perfetto",
     "Shows all lanes of all ranks, the memory in use by the plan, and arrows from each gather to "
     "the compute that waits for it. The job keeps training, with the same results. FILE is "
     "written as by pull. --timeout limits the wait for the next message about the job. Since -o "
     "names the file, --format json selects a result in JSON.",
     trace_options, verb_trace, "fsdpctl trace mnist-1 --steps 5 -o trace.json\n"},
    {VERBS_CHANGE, "cancel", "JOB...", 1, "End jobs at their next step boundary",
     "A job that cannot save its weights (reason SAVING) ends at once and loses them: pull them "
     "first.",
     jobs_options, verb_cancel,
     "fsdpctl cancel mnist-1 mnist-2\n"
     "fsdpctl cancel --label sweep=7\n"},
    {VERBS_CHANGE, "pause", "JOB...", 1, "Take checkpoints of running jobs, and free their workers",
     "Returns when the jobs are PAUSED. They stay PAUSED until they are resumed or cancelled, even "
     "if fsdpd restarts. If a checkpoint fails, its job continues. --timeout limits the wait for "
     "the checkpoints.",
     jobs_options, verb_pause, "fsdpctl pause mnist-1\n"},
    {VERBS_CHANGE, "resume", "JOB...", 1, "Queue paused jobs again, or jobs with a checkpoint",
     "Failed jobs need a checkpoint; succeeded ones need one and more steps, as with --set "
     "train.max_steps=N. Each job continues from its newest checkpoint, with its full retry "
     "budget. --set changes "
     "settings that checkpoints do not depend on: not the model, optimizer.type, the data or their "
     "order, nor checkpoint.directory (exit 6).",
     resume_options, verb_resume, "fsdpctl resume mnist-1 --set optimizer.lr=0.01\n"},
    {VERBS_CHANGE, "hold", "JOB...", 1, "Keep queued jobs from starting",
     "They wait until fsdpctl release. A running job cannot be held (exit 6).", jobs_options,
     verb_hold,
     "fsdpctl hold mnist-3\n"
     "fsdpctl hold --label team=vision\n"},
    {VERBS_CHANGE, "release", "JOB...", 1, "Allow held jobs to start",
     "A job's place in the queue is that of its submission. Only an operator can release a job "
     "that an "
     "operator holds (exit 4).",
     jobs_options, verb_release, "fsdpctl release mnist-3\n"},
    {VERBS_CHANGE, "priority", "JOB N", 2, "Change a job's priority, -1000 to 1000",
     "Queued jobs of the highest priority start first. Users may set up to limits.user_priority, "
     "operators any priority.",
     NULL, verb_priority, "fsdpctl priority mnist-3 10\n"},
    {VERBS_CHANGE, "resize", "JOB N", 2, "Change the number of an elastic job's workers",
     "In the range of elastic.min_workers and elastic.max_workers. A running job changes at its "
     "next step boundary; it grows as soon as workers are idle that no other job waits for. A job "
     "that is not elastic (exit 6), or a number that does not fit (1), is refused.",
     NULL, verb_resize, "fsdpctl resize gpt-3 4\n"},
    {VERBS_CHANGE, "checkpoint", "JOB", 1, "Take a checkpoint of a running job now",
     "At its next step boundary; the job keeps training during the write. Returns when the "
     "checkpoint is on the disk, with its step and directory. If the write fails (exit 10 if the "
     "disk is full), the job continues and earlier checkpoints stay. --timeout limits the wait for "
     "the checkpoint.",
     NULL, verb_checkpoint, "fsdpctl checkpoint mnist-1\n"},
    {VERBS_CHANGE, "checkpoints", "JOB", 1, "List a job's checkpoints, oldest first", NULL, NULL,
     verb_checkpoints, "fsdpctl checkpoints mnist-1\n"},
    {VERBS_CHANGE, "wrap", "show|set JOB", 2,
     "Show which modules a job's FSDP units hold, or change it",
     "set changes the units of a running job at its next step boundary: parameters and optimizer "
     "state move, and no value changes. It returns when the change is complete, and shows the new "
     "units. A policy that is invalid for the model (exit 1), does not fit (10), or comes while "
     "the job does not run (6) is refused, and the job continues with its units.",
     wrap_options, verb_wrap,
     "fsdpctl wrap show mnist-1\n"
     "fsdpctl wrap set mnist-1 --policy size --min-num-params 20000\n"},
    {VERBS_CHANGE, "forget", "JOB...", 1, "Remove jobs that are over, with all their data",
     "Removes their records, histories, metrics, logs, weights, checkpoints and event files. This "
     "cannot be undone. A job that is not over (exit 6) or belongs to another user (4) is refused.",
     jobs_options, verb_forget,
     "fsdpctl forget mnist-1\n"
     "fsdpctl forget --label sweep=7\n"},
    {VERBS_WORKERS, "workers", "", 0, "List the attached workers", NULL, NULL, verb_workers,
     "fsdpctl workers\n"},
    {VERBS_WORKERS, "drain", "WORKER", 1,
     "Stop placing jobs on a worker, or on all workers of a host",
     "WORKER is a worker's id or a host's name. Running jobs continue to their end; with --now "
     "they take a checkpoint, end, and are queued again to continue on other workers. A drain "
     "lasts until undrain, even if the workers restart. For operators.",
     drain_options, verb_drain, "fsdpctl drain node7 --now\n"},
    {VERBS_WORKERS, "undrain", "WORKER", 1, "Allow jobs on a drained worker or host again",
     "Name what was drained: a worker that was drained with its host returns with the host.", NULL,
     verb_undrain, "fsdpctl undrain node7\n"},
    {VERBS_WORKERS, "families", "", 0, "List the families of models that the daemon can train",
     "Families of Hugging Face's transformers, in search order: fsdpd uses the first one with the "
     "model_type of a config.json. -o json also lists the keys of config.json that each family "
     "supports.",
     NULL, verb_families, "fsdpctl families -o json\n"},
    {VERBS_TOOLS, "version", "", 0, "Show the versions of fsdpctl and of the daemon", NULL, NULL,
     verb_version, "fsdpctl version\n"},
    {VERBS_TOOLS, "completion", "bash|zsh|fish", 1, "Print a shell completion script for fsdpctl",
     "In bash or zsh: source <(fsdpctl completion bash). In fish: fsdpctl completion fish | "
     "source. Packages install these scripts where the shells find them.",
     NULL, verb_completion, "source <(fsdpctl completion bash)\n"},
    {VERBS_TOOLS, "help", "[VERB]", 1, "Explain a verb", NULL, NULL, verb_help,
     "fsdpctl help submit\n"},
};

const int verb_count = COUNT_OF(verbs);
