"""A job's events as figures by the names of the metric table (common/spec/metric_table.c), and its settings as
parameters by the keys of a job file. Pure."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import fsdpd.messages as api

# What Metrics has beside the figures of steps: of a job's latest evaluation, not of a report of a step.
NOT_OF_STEPS = {"step", "train_loss", "test_loss", "accuracy", "val_loss", "val_step", "op_times_step", "epoch_step"}
SCORES = {name: "scores." + name for name in ("f1", "perplexity", "pearson", "mse")}
EPOCH = {"epoch": "epochs_done", "train_loss": "train_loss", "test_loss": "test_loss", "accuracy": "accuracy",
         "seconds": "seconds", **SCORES}
VALIDATION = {"epoch": "epoch", "val_loss": "loss", "accuracy": "scores.accuracy", "seconds": "seconds", **SCORES}
TEXT_MAX = 250  # longer settings, such as a model's text, are no parameters
CHOSEN_OF_TRAIN = ("batch_size", "accumulation_steps", "no_sync")


def is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return field.is_repeated
    return field.label == field.LABEL_REPEATED  # before protobuf 6


STEP = {field.name: field.name for field in api.Metrics.DESCRIPTOR.fields
        if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_UINT64) and not is_repeated(field)
        and field.name not in NOT_OF_STEPS}
OF_EVENT = {"metrics": STEP, "epoch": EPOCH, "validation": VALIDATION}


@dataclass(frozen=True)
class Point:
    """The figures of one event. A later attempt may repeat steps; the sequence never repeats."""
    sequence: int
    step: int
    seconds: float  # of the event, since 1970
    attempt: int
    values: dict[str, float]


def read(message: Any, path: str) -> float | None:
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    return read(value, rest) if rest else float(value)


def point_of(event: api.JobEvent) -> Point | None:
    """None: the event has no figures. A mean over nothing, which is NaN, is left out, as in TensorBoard."""
    kind = event.WhichOneof("event")
    if kind not in OF_EVENT:
        return None
    body, values = getattr(event, kind), {}
    suffix = f"/{body.set}" if kind == "validation" and body.set else ""
    for name, path in OF_EVENT[kind].items():
        value = read(body, path)
        if value is not None and not math.isnan(value):
            values[name if name == "epoch" else name + suffix] = value
    return Point(event.sequence, body.step, event.time.seconds + event.time.nanos / 1e9, event.attempt, values)


def word(field: Any, value: Any) -> str:
    if field.enum_type is None:
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:.9g}" if isinstance(value, float) else str(value)
    prefix = "".join("_" + c if c.isupper() else c.upper() for c in field.enum_type.name).lstrip("_") + "_"
    return field.enum_type.values_by_number[value].name.removeprefix(prefix).lower()


def flatten(message: Any, prefix: str = "") -> dict[str, str]:
    """What a message has, by its path: {"train.epochs": "3"}."""
    found: dict[str, str] = {}
    for field, value in message.ListFields():
        name = prefix + field.name
        if is_repeated(field) and field.message_type is not None and field.message_type.GetOptions().map_entry:
            found.update((f"{name}.{key}", str(value[key])) for key in value)
        elif is_repeated(field) and field.message_type is not None:
            for i, part in enumerate(value):
                found.update(flatten(part, f"{name}.{i}."))
        elif is_repeated(field):
            found[name] = ", ".join(word(field, part) for part in value)
        elif field.message_type is not None:
            found.update(flatten(value, name + "."))
        else:
            found[name] = word(field, value)
    return {name: text for name, text in found.items() if 0 < len(text) <= TEXT_MAX}


def parameters_of(job: api.Job) -> dict[str, str]:
    """What was asked for, under the keys of a job file, and what was chosen in its place, with "chosen." before the
    key."""
    found = flatten(job.spec)
    if job.HasField("chosen"):
        chosen = job.chosen
        for name, text in flatten(chosen.settings).items():
            found[f"chosen.{'train' if name in CHOSEN_OF_TRAIN else 'fsdp'}.{name}"] = text
        found.update(flatten(chosen.wrap, "chosen.fsdp.wrap."))
        if chosen.workers:
            found["chosen.workers"] = str(chosen.workers)
        found.update((f"chosen.{name}", text) for name, text in flatten(chosen).items()
                     if name in ("by", "description"))
    return found


def state_of(job: api.Job) -> str:
    return api.JobState.Name(job.state).removeprefix("JOB_STATE_")


def is_over(job: api.Job) -> bool:
    return job.state in (api.JOB_STATE_SUCCEEDED, api.JOB_STATE_FAILED, api.JOB_STATE_CANCELLED)
