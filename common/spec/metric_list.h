/*
 * What ranks measure while they train: one row per figure, reported every train.log_interval steps.
 * struct train_metrics (setup/session.h), its copy into a report, and the table of metric_table.h
 * are made of it, and with these CSV, /metrics, TensorBoard, `fsdpctl show` and docs/monitoring.md.
 *
 * A row is the type, the name (that of the field of the message Metrics), and members of struct
 * metric. METRIC_SCALAR(tag): shown in TensorBoard.
 */
#ifndef FSDPD_SPEC_METRIC_LIST_H
#define FSDPD_SPEC_METRIC_LIST_H

/* clang-format off */
#define METRICS_OF_STEPS(ROW) \
    ROW(double, epoch, METRIC_SCALAR("train/epoch"), \
        .fields[METRIC_EPOCH] = "epochs_done", .fields[METRIC_VALIDATION] = "epoch", .gauge = "epoch", \
        .help = "Epochs done, fractional.") \
    ROW(double, loss, METRIC_SCALAR("train/loss"), .gauge = "loss", \
        .help = "Mean per target that counts, all ranks, since the last report; NaN: none did. Without " \
                "a step whose loss is finite, the others' loss.") \
    ROW(double, learning_rate, METRIC_SCALAR("train/learning_rate"), .gauge = "learning_rate", \
        .help = "Learning rate of the last step.") \
    ROW(double, gradient_norm, METRIC_SCALAR("train/gradient_norm"), .gauge = "gradient_norm", \
        .help = "Norm of the last step's gradient, before clipping; 0 if it was not finite. Absent if " \
                "it is not measured.") \
    ROW(double, rewards_chosen, METRIC_SCALAR("rewards/chosen"), \
        .help = "Of pairs: beta times how much more probable the model finds the chosen " \
                "answer than its reference; mean. Of a reward model: its number.") \
    ROW(double, rewards_rejected, METRIC_SCALAR("rewards/rejected"), \
        .help = "The same of the rejected answer.") \
    ROW(double, rewards_accuracies, METRIC_SCALAR("rewards/accuracies"), \
        .help = "Fraction of the pairs whose chosen answer has the larger reward.") \
    ROW(double, rewards_margins, METRIC_SCALAR("rewards/margins"), \
        .help = "Mean of the chosen answer's reward less that of the rejected one.") \
    ROW(double, logps_chosen, METRIC_SCALAR("logps/chosen"), \
        .help = "Mean of the chosen answers' log-probabilities, each the sum over its tokens.") \
    ROW(double, logps_rejected, METRIC_SCALAR("logps/rejected"), \
        .help = "The same of the rejected ones.") \
    ROW(double, step_seconds, METRIC_SCALAR("speed/step_seconds"), .unit = "s", \
        .help = "Mean time of a step.") \
    ROW(double, samples_per_second, METRIC_SCALAR("speed/samples_per_second"), .unit = "1/s", \
        .gauge = "samples_per_second", .help = "Samples, or windows of tokens, that all ranks train on.") \
    ROW(double, tokens_per_second, METRIC_SCALAR("speed/tokens_per_second"), .unit = "1/s", \
        .gauge = "tokens_per_second", .help = "Tokens that all ranks train on.") \
    ROW(uint64_t, memory_bytes, METRIC_SCALAR("memory/bytes"), .unit = "bytes", \
        .gauge = "memory_bytes", .kind = "used", .help = "Device memory in use on the rank that reports.") \
    ROW(uint64_t, memory_peak_bytes, METRIC_SCALAR("memory/peak_bytes"), .unit = "bytes", .largest = true, \
        .gauge = "memory_bytes", .kind = "peak", .help = "Largest device memory in use on any rank so far.") \
    ROW(uint64_t, resident_peak_bytes, METRIC_SCALAR("memory/resident_peak_bytes"), .unit = "bytes", \
        .largest = true, .gauge = "memory_bytes", .kind = "resident_peak", \
        .help = "Largest resident set of a worker's process so far.") \
    ROW(uint64_t, communicated_bytes, METRIC_SCALAR("speed/communicated_bytes"), .unit = "bytes", \
        .help = "Sent per rank and step, from the plan.") \
    ROW(double, compute_seconds, METRIC_SCALAR("speed/compute_seconds"), .unit = "s", \
        .help = "Mean time of a step in which the compute lane was busy.") \
    ROW(double, communication_seconds, METRIC_SCALAR("speed/communication_seconds"), .unit = "s", \
        .help = "Mean time of a step in which the comm lane was busy.") \
    ROW(double, exposed_communication_seconds, METRIC_SCALAR("speed/exposed_communication_seconds"), \
        .unit = "s", .help = "Of this, the part in which nothing computed.") \
    ROW(double, flops_per_second, METRIC_SCALAR("speed/flops_per_second"), .unit = "1/s", \
        .help = "Floating-point operations of all ranks: the model forward and backward, without repetitions.") \
    ROW(double, mfu, METRIC_SCALAR("speed/mfu"), .gauge = "mfu", \
        .help = "Fraction of the devices' peak arithmetic throughput in use, 0 to 1. Absent without a " \
                "profile of the device.") \
    ROW(uint64_t, skipped_steps, METRIC_SCALAR("train/skipped_steps"), \
        .help = "Steps so far without an update: the loss or the norm was not finite, or no target counted.") \
    ROW(double, train_seconds, METRIC_SCALAR("speed/train_seconds"), .unit = "s", \
        .help = "Time since the attempt began to train.") \
    ROW(double, counted_tokens_per_second, METRIC_SCALAR("speed/counted_tokens_per_second"), .unit = "1/s", \
        .gauge = "counted_tokens_per_second", .help = "Of the tokens, those whose target counts.") \
    ROW(double, data_wait_share, METRIC_SCALAR("speed/data_wait_share"), .gauge = "data_wait_share", \
        .help = "Part of the time that rank 0 waited for data, 0 to 1. If it is not near 0, reading the " \
                "data limits the job.") \
    ROW(double, redundancy_seconds, METRIC_SCALAR("speed/redundancy_seconds"), .unit = "s", \
        .gauge = "redundancy_seconds", .line = "redundancy", .after = " per step", \
        .help = "Mean time of a step in which training waited for redundancy in memory.") \
    ROW(double, sample_prefill_tokens_per_second, METRIC_SCALAR("sample/prefill_tokens_per_second"), \
        .unit = "1/s", .gauge = "sample_prefill_tokens_per_second", \
        .help = "Tokens of prompts that samples read since the last report. This and the next three: " \
                "absent if there was no sample.") \
    ROW(double, sample_tokens_per_second, METRIC_SCALAR("sample/tokens_per_second"), .unit = "1/s", \
        .gauge = "sample_tokens_per_second", .help = "Tokens that they drew, without the first of each sequence.") \
    ROW(double, sample_wait_seconds, METRIC_SCALAR("sample/wait_seconds"), .unit = "s", \
        .gauge = "sample_wait_seconds", .help = "Mean time that a call waited for its turn.") \
    ROW(double, sample_share, METRIC_SCALAR("sample/share"), .gauge = "sample_share", \
        .help = "Part of the time that training waited for samples, 0 to 1.") \
    ROW(double, seconds_left, METRIC_SCALAR("speed/seconds_left"), .unit = "s", .gauge = "seconds_left", \
        .help = "Estimated time until the job ends; 0 if it does not run.")
/* clang-format on */

#endif
