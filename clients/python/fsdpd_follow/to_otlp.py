"""OTLP metrics over HTTP, as JSON, so that it needs no package. Every figure is a gauge fsdpd.job.NAME whose points
have the event's time: a point that is sent again is the same point, and a receiver that keeps one per time has it
once."""
from __future__ import annotations

import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import fsdpd.messages as api

from .points import Point, state_of
from .sinks import Sink

DEFAULT = "http://localhost:4318"
SECONDS = 30


def attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": text}} for name, text in values.items()]


def number(value: float) -> Any:
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


class Tracker(Sink):
    takes_artifacts = False

    def __init__(self, project: str, url: str, directory: str, offline: bool):
        super().__init__(project, url, directory, offline)
        base = url or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", DEFAULT)
        self.endpoint = base.rstrip("/") + "/v1/metrics"
        if not url and "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" in os.environ:
            self.endpoint = os.environ["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]
        given = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
        self.headers = {name.strip(): urllib.parse.unquote(value.strip()) for name, _, value in pairs}

    def begin(self, job: api.Job, place: dict[str, Any]) -> int | None:
        return None

    def resource(self, job: api.Job) -> dict[str, str]:
        return {"service.name": self.project, "fsdpd.job.id": job.id, "fsdpd.job.name": job.name,
                "fsdpd.job.owner": job.owner, **{f"fsdpd.label.{key}": value for key, value in job.spec.labels.items()}}

    def write(self, job: api.Job, place: dict[str, Any], points: list[Point], parameters: dict[str, str]) -> None:
        gauges: dict[str, list[dict[str, Any]]] = {}

        def add(name: str, seconds: float, value: float, more: dict[str, str]) -> None:
            gauges.setdefault(f"fsdpd.job.{name}", []).append(
                {"timeUnixNano": str(round(seconds * 1e9)), "asDouble": number(value), "attributes": attributes(more)})

        for point in points:
            attempt = {"attempt": str(point.attempt)}
            for name, value in {"step": float(point.step), **point.values}.items():
                figure, _, held_out = name.partition("/")
                add(figure, point.seconds, value, {**attempt, "set": held_out} if held_out else attempt)
        now = job.state_time.ToMilliseconds() / 1000
        add("state", now, 1, {"state": state_of(job), "reason": job.reason.code})
        if parameters:
            add("parameters", now, 1, {**place["parameters"], **parameters})
        self.post({"resourceMetrics": [{"resource": {"attributes": attributes(self.resource(job))}, "scopeMetrics": [
            {"scope": {"name": "fsdpd-follow"},
             "metrics": [{"name": name, "gauge": {"dataPoints": points}} for name, points in gauges.items()]}]}]})

    def post(self, message: dict[str, Any]) -> None:
        request = urllib.request.Request(self.endpoint, data=json.dumps(message).encode(),
                                         headers={"Content-Type": "application/json", **self.headers})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                answer = json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{self.endpoint}: {error.code} {error.read(300).decode(errors='replace')}") from None
        refused = answer.get("partialSuccess", {})
        count = int(refused.get("rejectedDataPoints", 0))
        if count > 0:
            raise OSError(f"{self.endpoint} refused {count} points: {refused.get('errorMessage')}")
