"""MLflow: a run in the experiment. Its store keeps a metric of the same name, step, time and value once, so what is
sent again does nothing; that of plain files does not, and is refused."""
from __future__ import annotations

import os
from typing import Any

import fsdpd.messages as api

from .place import Wrong
from .points import Point, is_over, state_of
from .sinks import Sink, run_of

METRICS_MAX, PARAMS_MAX = 1000, 100  # of a call
STATUS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}


class Tracker(Sink):
    package = "mlflow"

    def __init__(self, project: str, url: str, directory: str, offline: bool):
        super().__init__(project, url, directory, offline)
        # A server that is away is our business: we ask again, from the coordinator's records.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        mlflow = self.load()
        uri = url or mlflow.get_tracking_uri()
        if "://" not in uri or uri.startswith("file:"):
            raise Wrong(f"--url: expected an MLflow server or a database such as sqlite:///mlflow.db, found {uri}")
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        self.entities = self.load("mlflow.entities")
        self.experiment = ""

    def find_experiment(self) -> str:
        found = self.client.get_experiment_by_name(self.project)
        return found.experiment_id if found else self.client.create_experiment(self.project)

    def begin(self, job: api.Job, place: dict[str, Any]) -> int | None:
        self.experiment = self.experiment or self.find_experiment()
        run = run_of(job)
        if "run" not in place:
            # It may have been created just before we ended.
            found = self.client.search_runs([self.experiment], f"tags.`fsdpd.run` = '{run}'", max_results=1)
            tags = {"fsdpd.run": run, "fsdpd.job": job.id, "mlflow.user": job.owner, "mlflow.source.name": "fsdpd",
                    **{f"label.{key}": value for key, value in job.spec.labels.items()}}
            start = job.submit_time.ToMilliseconds()
            place["run"] = (found[0] if found else self.client.create_run(
                self.experiment, start_time=start, tags=tags, run_name=job.id)).info.run_id
        # What arrived just before we were killed is not in the place.
        place["parameters"] = {**self.client.get_run(place["run"]).data.params, **place["parameters"]}
        self.client.update_run(place["run"], status="RUNNING")
        return None

    def write(self, job: api.Job, place: dict[str, Any], points: list[Point], parameters: dict[str, str]) -> None:
        metric, param, tag = self.entities.Metric, self.entities.Param, self.entities.RunTag
        run, before = place["run"], place["parameters"]
        # A param never changes. What changes later, by a resume or a tuning, is a tag beside it.
        new = [param(name, text) for name, text in parameters.items() if name not in before]
        tags = [tag(f"changed.{name}", text) for name, text in parameters.items() if name in before]
        tags += [tag("fsdpd.state", state_of(job)), tag("fsdpd.reason", job.reason.message or job.reason.code or "-")]
        for i in range(0, len(new), PARAMS_MAX):
            self.client.log_batch(run, params=new[i:i + PARAMS_MAX])
        for i in range(0, len(tags), PARAMS_MAX):
            self.client.log_batch(run, tags=tags[i:i + PARAMS_MAX])
        values = [metric(name, value, round(point.seconds * 1000), point.step)
                  for point in points for name, value in point.values.items()]
        for i in range(0, len(values), METRICS_MAX):
            self.client.log_batch(run, metrics=values[i:i + METRICS_MAX])

    def artifact(self, job: api.Job, place: dict[str, Any], path: str) -> None:
        self.client.log_artifact(place["run"], path)  # replaces the one of its name

    def end(self, job: api.Job, place: dict[str, Any]) -> None:
        if is_over(job):
            self.client.set_terminated(place["run"], STATUS[state_of(job)], job.finish_time.ToMilliseconds())
