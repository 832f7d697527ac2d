"""trackio: in its local store, or on a server. A row has an id of ours, made of the event's sequence, which its store
takes once. trackio.log has neither such ids nor a word on whether a row arrived, so this calls what is below it."""
from __future__ import annotations

import contextlib
import datetime
import os
import sys
from typing import Any

import fsdpd.messages as api

from .place import Wrong
from .points import Point, state_of
from .sinks import Sink, file_name, run_of


class Tracker(Sink):
    package = "trackio"

    def __init__(self, project: str, url: str, directory: str, offline: bool):
        super().__init__(project, url, directory, offline)
        self.url = url or os.environ.get("TRACKIO_SERVER_URL", "")
        self.takes_artifacts = not self.url
        self.remote: Any = None
        with contextlib.redirect_stdout(sys.stderr):
            store = self.load("trackio.sqlite_storage").SQLiteStorage
        if "log_ids" not in store.bulk_log.__code__.co_varnames:
            raise Wrong("trackio: expected a version that knows a row's id: pip install --upgrade trackio")
        self.store = store

    def begin(self, job: api.Job, place: dict[str, Any]) -> int | None:
        if self.url and self.remote is None:
            self.remote = self.load("trackio.remote_client").RemoteClient(self.url, hf_token=os.environ.get("HF_TOKEN"))
        return None

    def write(self, job: api.Job, place: dict[str, Any], points: list[Point], parameters: dict[str, str]) -> None:
        run = run_of(job)
        config = {**place["parameters"], **parameters, "job": job.id, "owner": job.owner, "state": state_of(job),
                  "reason": job.reason.message or job.reason.code}
        # Its store has settings only with rows; this one shows a job that has no figures yet, or none any more.
        rows = [(f"{run}-{point.sequence}", point.step, point.seconds, dict(point.values)) for point in points] or \
               [(f"{run}-{job.attempt}-{state_of(job)}", job.step, job.state_time.ToMilliseconds() / 1000, {})]
        ids, steps, times, values = ([row[i] for row in rows] for i in range(4))
        if self.remote is not None:
            self.remote.predict(api_name="/bulk_log", hf_token=None, logs=[
                {"project": self.project, "run": run, "run_id": run, "metrics": metrics, "step": step, "config": config,
                 "log_id": row} for row, step, metrics in zip(ids, steps, values)])
            return
        utc = datetime.timezone.utc
        self.store.bulk_log(project=self.project, run=run, run_id=run, metrics_list=values, steps=steps, config=config,
                            log_ids=ids, timestamps=[datetime.datetime.fromtimestamp(time, utc).isoformat()
                                                     for time in times])

    def artifact(self, job: api.Job, place: dict[str, Any], path: str) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            run = self.load().init(project=self.project, name=run_of(job), resume="must", embed=False,
                                   auto_log_gpu=False, auto_log_cpu=False)
            try:
                run.log_artifact(path, name=f"{run_of(job)}-{file_name(path)}")  # the same content: no new version
            finally:
                run.finish()
