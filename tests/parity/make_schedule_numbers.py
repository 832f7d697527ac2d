#!/usr/bin/env python3
"""The curves of learning rates of transformers and torch that docs/job-file.md names, as factors of the rate, for
tests/unit/test_schedules.c. Writes tests/parity/schedules.txt to standard output: each line is `schedule` of a job
file, a tab and the factors of the steps from 0 on.

    python3 tests/parity/make_schedule_numbers.py > tests/parity/schedules.txt
"""
import torch
import transformers
from torch.optim import lr_scheduler
from transformers import optimization

RATE = 0.5


def curve(make, steps):
    """Factors of `steps` steps under the schedule that `make` gives an optimizer."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    schedule = make(optimizer)
    factors = []
    for step in range(steps):
        factors.append(optimizer.param_groups[0]["lr"] / RATE)
        optimizer.step()
        if step + 1 < steps:
            schedule.step()
    return factors


def line(words, make, steps):
    return f"{{type: {words}}}\t" + " ".join(f"{factor:.12g}" for factor in curve(make, steps))


def lengths():
    """Warm-ups and totals, with both boundaries among them."""
    return (0, 1), (0, 12), (1, 2), (4, 20), (5, 31)


def transformers_curves():
    for warmup, total in lengths():
        start = f"warmup_steps: {warmup}, total_steps: {total}"
        yield line(f"linear, {start}",
                   lambda o: optimization.get_linear_schedule_with_warmup(o, warmup, total), total + 3)
        for end in (0.0, 0.1):
            yield line(f"cosine, {start}, end_factor: {end}",
                       lambda o: optimization.get_cosine_with_min_lr_schedule_with_warmup(
                           o, warmup, total, min_lr_rate=end), total + 1)
        for cycles in (1, 2, 3):
            yield line(f"cosine_with_restarts, {start}, num_cycles: {cycles}",
                       lambda o: optimization.get_cosine_with_hard_restarts_schedule_with_warmup(
                           o, warmup, total, cycles), total + 3)
        for power, end in ((1.0, 0.0), (2.0, 0.2), (0.5, 1e-3)):
            yield line(f"polynomial, {start}, power: {power}, end_factor: {end}",
                       lambda o: optimization.get_polynomial_decay_schedule_with_warmup(
                           o, warmup, total, lr_end=end * RATE, power=power), total + 3)
        for shape in ("linear", "cosine", "1-sqrt"):
            for decay, end in ((total - warmup, 0.0), (max(1, (total - warmup) // 3), 0.1)):
                yield line(f"wsd, {start}, warmup_start_factor: {end}, decay_steps: {decay}, decay_type: {shape}, "
                           f"end_factor: {end}",
                           lambda o: optimization.get_wsd_schedule(
                               o, warmup, decay, total, decay_type=shape, min_lr_ratio=end), total + 3)
    for warmup, timescale in ((0, 0), (0, 7), (4, 0), (4, 30), (9, 2)):
        yield line(f"inverse_sqrt, warmup_steps: {warmup}, timescale: {timescale}",
                   lambda o: optimization.get_inverse_sqrt_schedule(o, warmup, timescale or None), 25)


def torch_curves():
    for total in (1, 2, 10, 33):
        for words, settings in (("", {}), (", pct_start: 0.5, div_factor: 4, final_div_factor: 10",
                                           {"pct_start": 0.5, "div_factor": 4.0, "final_div_factor": 10.0}),
                                (", pct_start: 0", {"pct_start": 0.0}), (", pct_start: 1", {"pct_start": 1.0})):
            for strategy in ("cos", "linear"):
                for three in (False, True):
                    first = settings.get("pct_start", 0.3) * total
                    if first == 1 or (three and 2 * first - 1 > total) or (three and first == 0):
                        continue  # a stage without steps, by which torch divides, or one that ends after the last
                    yield line(f"one_cycle, total_steps: {total}, anneal_strategy: {strategy}, "
                               f"three_phase: {str(three).lower()}{words}",
                               lambda o: lr_scheduler.OneCycleLR(
                                   o, RATE, total, anneal_strategy=strategy, three_phase=three,
                                   cycle_momentum=False, **settings), total)
    yield line("phases, phases: [{type: constant, steps: 5, warmup_steps: 5}, {type: constant, steps: 6}, "
               "{type: cosine, steps: 8, end_factor: 0.1}, {type: constant, factor: 0.1}]",
               lambda o: lr_scheduler.SequentialLR(o, [
                   lr_scheduler.LinearLR(o, 1e-12, 1.0, 5), lr_scheduler.ConstantLR(o, 1.0, 0),
                   lr_scheduler.CosineAnnealingLR(o, 8, 0.1 * RATE), lr_scheduler.ConstantLR(o, 0.1, 1000)],
                   [5, 11, 19]), 25)
    yield line("phases, phases: [{type: linear, steps: 10, end_factor: 0.5}, {type: linear, steps: 7, factor: 0.5}]",
               lambda o: lr_scheduler.SequentialLR(o, [
                   lr_scheduler.LinearLR(o, 1.0, 0.5, 10), lr_scheduler.LinearLR(o, 0.5, 1e-12, 7)], [10]), 20)


def numbers():
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    yield f"# By tests/parity/make_schedule_numbers.py: {versions}"
    yield from transformers_curves()
    yield from torch_curves()


if __name__ == "__main__":
    print("\n".join(numbers()))
