"""What a tracker must do, and which ones there are. Their packages are imported when they are used."""
from __future__ import annotations

import hashlib
import importlib
import os
from typing import Any

import fsdpd.messages as api

from .place import Wrong
from .points import Point


class Sink:
    """One tracker. One thread calls it. What a call has returned from is with the tracker, or with a process of it that
    ends on its own; an exception says that the tracker did not take it, and the same is sent again later."""

    package = ""  # what is imported; "": nothing beside Python itself
    install = ""  # the words for pip, if they differ
    takes_artifacts = True

    def __init__(self, project: str, url: str, directory: str, offline: bool):
        """`directory` is the place's, for files of the sink's own; without a `url` the package's own settings count."""
        self.project, self.url, self.directory = project, url, directory
        if offline:
            raise Wrong(f"--offline: {self.name} has no such mode")

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2].removeprefix("to_")

    def load(self, module: str = "") -> Any:
        try:
            return importlib.import_module(module or self.package)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != self.package:
                raise
            raise Wrong(f"{self.name}: the package {self.package} is not installed: "
                        f"pip install {self.install or self.package}") from None

    def begin(self, job: api.Job, place: dict[str, Any]) -> int | None:
        """Creates or finds the job's run. The last sequence that the tracker has, if it can say so, which then counts
        instead of the place's; None: writing something again does nothing."""
        raise NotImplementedError

    def write(self, job: api.Job, place: dict[str, Any], points: list[Point], parameters: dict[str, str]) -> None:
        """`parameters`: those that are new or have changed; place["parameters"] has all that were sent before."""
        raise NotImplementedError

    def artifact(self, job: api.Job, place: dict[str, Any], path: str) -> None:
        raise NotImplementedError

    def end(self, job: api.Job, place: dict[str, Any]) -> None:
        """The job has no further events: it is over, or paused."""

    def leave(self, job: str) -> None:
        """Closes what is open for the job; it may begin again."""


def run_of(job: api.Job) -> str:
    """A name for the job's run that no other job has, not even one with its id after it was forgotten."""
    return f"{job.id}-{hashlib.sha256(submitted(job).encode()).hexdigest()[:8]}"


def submitted(job: api.Job) -> str:
    return job.submit_time.ToJsonString()


def file_name(path: str) -> str:
    return os.path.basename(path)


SINKS = ("mlflow", "wandb", "trackio", "otlp")


def open_sink(name: str, project: str, url: str, directory: str, offline: bool) -> Sink:
    made: Sink = importlib.import_module(f"fsdpd_follow.to_{name}").Tracker(project, url, directory, offline)
    if made.package:
        made.load()
    return made
