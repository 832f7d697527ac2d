"""Weights & Biases. A row's step is the event's sequence, which only grows, and `step` in it the trained step, the
x-axis. So what the tracker has is known: on its server, which says with which step a run continues, and offline in the
run's files. A process of its own writes those, a little later: what it has not written counts as not sent, and is read
again."""
from __future__ import annotations

import glob
import os
import time
from typing import Any, Iterator

import fsdpd.messages as api

from .points import Point, is_over, state_of
from .sinks import Sink, file_name, run_of

BLOCK, HEADER, WRITER_SECONDS = 32768, 7, 60


def records(path: str) -> Iterator[bytes]:
    """Of a run's file, which has the format of LevelDB's log behind 7 bytes of its own; what follows the last whole
    record was being written."""
    with open(path, "rb") as file:
        data = file.read()
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        at += HEADER + size
        if at > len(data) or kind == 0:
            return
        record = (record if kind in (3, 4) else b"") + data[at - size:at]  # 1: whole, 2 to 4: first, middle, last
        if kind in (1, 4):
            yield record


def is_open(path: str) -> bool:
    """Whether a process has the file open."""
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.path.samefile(link, path):
                return True
        except OSError:
            pass
    return False


class Tracker(Sink):
    package = "wandb"

    def __init__(self, project: str, url: str, directory: str, offline: bool):
        super().__init__(project, url, directory, False)
        if url:
            os.environ["WANDB_BASE_URL"] = url
        self.offline = offline or os.environ.get("WANDB_MODE") == "offline"
        self.runs: dict[str, Any] = {}

    def files(self, run: str) -> list[str]:
        return sorted(glob.glob(os.path.join(glob.escape(self.directory), "wandb", f"*run-*-{run}", "*.wandb")))

    def last_kept(self, run: str) -> int:
        """The last sequence in the run's files."""
        internal, last = self.load("wandb.proto.wandb_internal_pb2"), 0
        for path in self.files(run):
            for record in records(path):
                made = internal.Record.FromString(record)
                if made.HasField("history"):
                    last = max(last, made.history.step.num)
        return last

    def begin(self, job: api.Job, place: dict[str, Any]) -> int | None:
        run, wandb = run_of(job), self.load()
        self.leave(job.id)
        until = time.monotonic() + WRITER_SECONDS
        while any(is_open(path) for path in self.files(run)):  # by the process of a follower that was killed
            if time.monotonic() > until:
                raise OSError(f"{self.directory}: another process still writes the run {run}")
            time.sleep(0.1)
        if self.offline:  # the files may be gone: place["kept"] was in them once
            place["kept"] = max(self.last_kept(run), place.get("kept", 0))
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False, disable_git=True)
        made = wandb.init(project=self.project, id=run, name=job.id, tags=[f"{key}:{value}" for key, value in
                                                                         job.spec.labels.items()] or None,
                          dir=self.directory, mode="offline" if self.offline else None, resume="allow",
                          reinit="create_new", settings=settings)
        made.define_metric("*", step_metric="step")
        self.runs[job.id] = made
        return place["kept"] if self.offline else max(made.step - 1, 0)

    def write(self, job: api.Job, place: dict[str, Any], points: list[Point], parameters: dict[str, str]) -> None:
        run = self.runs[job.id]
        # All of them: a file of its own begins with none.
        run.config.update({**place["parameters"], **parameters}, allow_val_change=True)
        for point in points:
            run.log({**point.values, "step": point.step, "attempt": point.attempt}, step=point.sequence, commit=True)
        run.summary.update({"state": state_of(job), "reason": job.reason.message or job.reason.code})

    def artifact(self, job: api.Job, place: dict[str, Any], path: str) -> None:
        artifact = self.load().Artifact(f"{run_of(job)}-{file_name(path)}", type="fsdpd")
        artifact.add_file(path)
        logged = self.runs[job.id].log_artifact(artifact)  # the same content: no new version
        if not self.offline:
            logged.wait()

    def end(self, job: api.Job, place: dict[str, Any]) -> None:
        run = self.runs.pop(job.id)
        run.finish(exit_code=0 if not is_over(job) or state_of(job) == "SUCCEEDED" else 1)
        place["kept"] = place["sequence"]

    def leave(self, job: str) -> None:
        run = self.runs.pop(job, None)
        if run is not None:
            run.finish()
