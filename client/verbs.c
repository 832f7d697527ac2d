/* The table of verbs, in the order of help. */
#include "client.h"

const struct verb verbs[] = {
    {"submit", "FILE", 1, "Queue a job, and with --wait follow it to its end",
     "FILE is a job file (docs/job-file.md). Prints the job's id. --wait shows the wrapped module\n"
     "tree, the plan's memory and live progress, and exits with 0, 8 or 9 as the job succeeded,\n"
     "failed or was cancelled. Ctrl-C then detaches (exit 130); the job goes on. With -o json the\n"
     "result is the job as it is at the end.\n",
     submit_options, verb_submit},
    {"plan", "FILE", 1, "Show a job's units, memory and communication without running it",
     "A worker makes the plan; nothing is queued. Exit 10: it does not fit a worker.\n",
     plan_options, verb_plan},
    {"list", "", 0, "List the jobs, oldest first",
     "Without options all of them. Options narrow the list down; a job must meet every one.\n",
     list_options, verb_list},
    {"show", "JOB", 1, "Show a job: state, reason, progress, units, plan, settings", NULL, NULL,
     verb_show},
    {"history", "JOB", 1, "Show the states that a job has been in, why, and since when", NULL, NULL,
     verb_history},
    {"watch", "JOB", 1, "Follow a job from its beginning to its end",
     "Exits with 0, 8 or 9 as the job succeeded, failed or was cancelled. Ctrl-C detaches (exit\n"
     "130) and does not cancel. When fsdpd restarts, watching goes on where it stopped; --timeout\n"
     "is how long it is waited for. With -o json every event is one line.\n",
     NULL, verb_watch},
    {"logs", "JOB", 1, "Show what the ranks of a job have logged",
     "Of all attempts, while the job runs and after, as far as fsdpd keeps it. A line is the\n"
     "time, attempt/rank (\"fsdpd\": the daemon about the job), the level, an event and its\n"
     "fields. With -f it goes on until the job is over or Ctrl-C, also over a restart of fsdpd;\n"
     "--timeout is how long that is waited for. With -o json every line is one.\n",
     logs_options, verb_logs},
    {"metrics", "JOB", 1, "Show every recorded step of a job",
     "Also the ends of epochs and validations. --csv has every figure, as has -o json, where\n"
     "every line is one; what is not known is empty there.\n",
     metrics_options, verb_metrics},
    {"wrap", "show|set JOB", 2, "Show which modules a job's FSDP units hold, or change it",
     "set gives a running job other units, at its next step boundary: parameters and optimizer\n"
     "state move, no value changes. It answers when that is done, and shows the new units. A\n"
     "policy that is wrong for the model (exit 1), does not fit (10) or comes when the job does\n"
     "not run (6) is refused, and the job goes on as it was.\n",
     wrap_options, verb_wrap},
    {"hold", "JOB", 1, "Keep a queued job from being started",
     "Until release. A job that runs cannot be held (exit 6).\n", NULL, verb_hold},
    {"release", "JOB", 1, "Let a job that is held be started again",
     "Its place in the queue is that of its submission. What an operator holds, only operators\n"
     "release (exit 4).\n",
     NULL, verb_release},
    {"priority", "JOB N", 2, "Change a job's priority, -1000 to 1000",
     "Of the jobs that wait, those of the highest priority are started first. Users may give as\n"
     "much as limits.user_priority says, operators anything.\n",
     NULL, verb_priority},
    {"checkpoint", "JOB", 1, "Take a checkpoint of a running job now",
     "At its next step boundary; the job trains on while it is written. Answers when everything\n"
     "is on the disk, with the step and the directory. If it could not be written (a full disk:\n"
     "exit 10), the job goes on, and earlier checkpoints stay. --timeout is how long to wait for\n"
     "it.\n",
     NULL, verb_checkpoint},
    {"checkpoints", "JOB", 1, "List a job's checkpoints, oldest first", NULL, NULL,
     verb_checkpoints},
    {"pause", "JOB", 1, "Take a checkpoint of a running job, and free its workers",
     "Answers when the job is PAUSED, which it stays until it is resumed or cancelled, also when\n"
     "fsdpd restarts. If there can be no checkpoint, the job goes on. --timeout is how long to\n"
     "wait for it.\n",
     NULL, verb_pause},
    {"resume", "JOB", 1, "Queue a paused job again: it goes on from where it was", NULL, NULL,
     verb_resume},
    {"cancel", "JOB", 1, "End a job at its next step boundary", NULL, NULL, verb_cancel},
    {"forget", "JOB", 1, "Remove a job that is over, and all that is kept of it",
     "Its record, history, metrics, logs, weights, checkpoints and event files. There is no way\n"
     "back. A job that is not over is refused (exit 6), another user's, too (4).\n",
     NULL, verb_forget},
    {"pull", "JOB", 1, "Write a job's full state_dict to a file, or as transformers has it",
     "Also from a running job: the weights of one step, the same on all ranks. Of a job that does\n"
     "not run and has no final ones (paused, queued again, failed, cancelled): those of its\n"
     "newest checkpoint; standard error says so. FILE is written under a temporary name beside it\n"
     "and renamed when it is complete; interrupted, nothing is left. \"-\" is standard output.\n"
     "--timeout is how long to wait for the next bytes.\n"
     "With --format hf, for a job whose model is a directory of Hugging Face's transformers,\n"
     "FILE is a new directory with config.json and the weights.\n"
     "Because -o names the file here, --format json asks for a result in JSON.\n",
     pull_options, verb_pull},
    {"trace", "JOB", 1, "Write a timeline of a running job's next steps, for Perfetto",
     "All lanes of all ranks, with the memory that the plan has alive, and arrows from each\n"
     "gather to the compute that waits for it. The job trains on with the same results. FILE is\n"
     "written as pull writes it. --timeout is how long to wait for the next sign of the job.\n"
     "Because -o names the file here, --format json asks for a result in JSON.\n",
     trace_options, verb_trace},
    {"report", "JOB", 1, "Write a page about a job, for a browser",
     "One file of HTML that needs no network: loss, learning rate, throughput, memory against the\n"
     "plan, units, the timeline of a step, states, settings. A running job is traced for three\n"
     "steps for it, unless --no-trace is given; otherwise the plan's schedule is shown. FILE is\n"
     "written as pull writes it. Because -o names the file here, --format json asks for a result\n"
     "in JSON.\n",
     report_options, verb_report},
    {"workers", "", 0, "List the attached workers", NULL, NULL, verb_workers},
    {"drain", "WORKER", 1, "Give a worker, or all workers of a host, no more work",
     "WORKER is a worker's id or a host's name. What they run goes on to its end; with --now it\n"
     "takes a checkpoint, ends, and is queued again to go on elsewhere. It lasts until undrain,\n"
     "also when they are started again. For operators.\n",
     drain_options, verb_drain},
    {"undrain", "WORKER", 1, "Give a drained worker, or host, work again",
     "As it was drained: a worker that was drained with its host comes back with it.\n", NULL,
     verb_undrain},
    {"status", "", 0, "Show the daemon, its workers and jobs at a glance", NULL, NULL, verb_status},
    {"top", "", 0, "Show all jobs and workers, live",
     "On a terminal it fills the screen until q or Ctrl-C; in a pipe it prints a line for each\n"
     "job that is not over, again and again. With -o json every look is one line.\n",
     top_options, verb_top},
    {"version", "", 0, "Show the versions of fsdpctl and of the daemon", NULL, NULL, verb_version},
    {"completion", "bash|zsh|fish", 1, "Print a script that completes command lines of fsdpctl",
     "In bash or zsh: source <(fsdpctl completion bash). In fish: fsdpctl completion fish | "
     "source.\n"
     "Installed packages have the scripts where the shells look for them.\n",
     NULL, verb_completion},
    {"help", "[VERB]", 1, "Explain a verb", NULL, NULL, verb_help},
};

const int verb_count = sizeof verbs / sizeof verbs[0];
