"""Follows jobs: events from streams, in batches, to the tracker, and then the place onto the disk. If the tracker does
not take a batch, it is dropped, with the stream: later the coordinator is asked for it again. So memory is bounded
however long the tracker is away, and what is lost between two steps is sent twice, which trackers must not show (see
sinks.py)."""
from __future__ import annotations

import os
import queue
import sys
import time
from typing import Any

import grpc

import fsdpd
import fsdpd.messages as api

from .place import Places, Wrong
from .points import is_over, parameters_of, point_of, state_of
from .sinks import Sink, submitted
from .stream import Stream

EVENTS_MAX = 1000          # of a batch, of all jobs together; as many wait in the queue
BATCH_SECONDS = 1.0        # how long a batch waits for more
WAIT, WAIT_MAX = 1.0, 60.0  # before a failed job is tried again
HOPELESS = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
LOOK_SECONDS = 10.0        # between two looks for new jobs, and at paused ones


def note(job: str, words: str) -> None:
    print(f"fsdpd-follow: {job}: {words}", file=sys.stderr, flush=True)


class Job:
    def __init__(self, id: str):
        self.id = id
        self.stream: Stream | None = None
        self.place: dict[str, Any] = {}
        self.last: api.Job | None = None  # as of the last look
        self.wait, self.due, self.done = WAIT, 0.0, False
        self.lost = False  # fsdpd does not have it, or not for us

    def close(self, seconds: float) -> None:
        if self.stream is not None:
            self.stream.close()
        self.stream, self.due = None, time.monotonic() + seconds


class Follower:
    def __init__(self, client: fsdpd.Client, sink: Sink, places: Places, artifacts: list[str]):
        self.client, self.sink, self.places, self.artifacts = client, sink, places, artifacts
        self.jobs: dict[str, Job] = {}
        self.queue: queue.Queue[Any] = queue.Queue(EVENTS_MAX)
        self.stopped = False

    def look(self, labels: dict[str, str]) -> None:
        """Adds the jobs with these labels; one that is over and was sent counts only if it was resumed since."""
        for listed in self.client.jobs(labels=labels):
            job = self.jobs.setdefault(listed.id, Job(listed.id))
            if job.done and not is_over(listed):
                job.done, job.due = False, 0.0

    def open(self, job: Job) -> None:
        job.last = self.client.job(job.id)
        job.place = self.places.read(job.id, submitted(job.last))
        if job.place["ended"] == job.last.state_time.ToJsonString():
            if is_over(job.last) and set(self.artifacts) <= set(job.place["artifacts"]):
                job.done = True
                return
            if not is_over(job.last):
                job.due = time.monotonic() + LOOK_SECONDS
                return
        kept = self.sink.begin(job.last, job.place)
        if kept is not None:
            job.place["sequence"] = kept
        self.places.write(job.place)
        job.stream = Stream(self.client, job.id, job.place["sequence"], self.queue)

    def collect(self) -> dict[Stream, list[Any]]:
        """What streams have put, until there is enough or it has waited long enough."""
        batch: dict[Stream, list[Any]] = {}
        count, until = 0, time.monotonic() + BATCH_SECONDS
        while count < EVENTS_MAX and not self.stopped:
            try:
                stream, item = self.queue.get(timeout=max(until - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if not stream.closed:
                batch.setdefault(stream, []).append(item)
                count += 1
        return batch

    def send(self, job: Job, events: list[api.JobEvent]) -> None:
        """A batch, and then its place."""
        if job.stream.left_out > 0:
            note(job.id, f"{job.stream.left_out} reports are left out: fsdpd no longer keeps them")
            job.stream.left_out = 0
        if job.last is None or not events or any(event.HasField("state") or event.HasField("wrap") for event in events):
            job.last = self.client.job(job.id)
        parameters = {name: text for name, text in parameters_of(job.last).items()
                      if job.place["parameters"].get(name) != text}
        points = [point for point in map(point_of, events) if point is not None]
        self.sink.write(job.last, job.place, points, parameters)
        job.place["parameters"].update(parameters)
        if events:
            job.place["sequence"] = events[-1].sequence
        self.places.write(job.place)

    def finish(self, job: Job) -> None:
        """The stream has ended: the job is over, or paused."""
        self.send(job, [])
        assert job.last is not None
        if is_over(job.last):
            for kind in self.artifacts:
                if kind not in job.place["artifacts"]:
                    self.send_artifact(job, kind)
                    job.place["artifacts"].append(kind)
                    self.places.write(job.place)
        self.sink.end(job.last, job.place)
        job.place["ended"] = job.last.state_time.ToJsonString()
        self.places.write(job.place)
        job.done = is_over(job.last)
        note(job.id, f"{state_of(job.last)}, sent up to event {job.place['sequence']}")

    def send_artifact(self, job: Job, kind: str) -> None:
        if kind == "weights" and not job.last.has_state_dict:
            note(job.id, "has no weights")
            return
        path = os.path.join(self.places.directory, f"{job.id}.{'safetensors' if kind == 'weights' else 'log'}")
        if kind == "weights":
            self.client.pull(job.id, path)
        else:
            with open(path, "w", encoding="utf-8") as file:
                for line in self.client.logs(job.id):
                    file.write(f"{line.time.ToJsonString()} {line.attempt} {line.rank} {line.text}\n")
        try:
            self.sink.artifact(job.last, job.place, path)
        finally:
            os.remove(path)

    def fail(self, job: Job, error: Exception) -> None:
        if isinstance(error, fsdpd.Error) and error.code in HOPELESS:
            note(job.id, f"is left: {error}")
            job.done = job.lost = True
            job.close(0)
            return
        note(job.id, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}; again in {job.wait:.0f} s")
        job.close(job.wait)
        job.wait = min(job.wait * 2, WAIT_MAX)

    def handle(self, job: Job, items: list[Any]) -> None:
        events = [item for item in items if isinstance(item, api.JobEvent)]
        if events:
            self.send(job, events)
        if isinstance(items[-1], fsdpd.Error):
            raise items[-1]
        if items[-1] is None:
            self.finish(job)
            job.close(LOOK_SECONDS)
        job.wait = WAIT

    def attempt(self, job: Job, what: Any, *arguments: Any) -> None:
        """Errors of trackers are of any type: theirs, a library's, the system's."""
        try:
            what(job, *arguments)
        except Wrong:
            raise
        except Exception as error:
            self.fail(job, error)

    def run(self, ids: list[str], labels: dict[str, str]) -> bool:
        """Until all jobs of `ids` are over; with labels until `stopped`. False: a job could not be followed."""
        self.jobs.update((id, Job(id)) for id in ids)
        looked = -LOOK_SECONDS
        while not self.stopped and (labels or not all(job.done for job in self.jobs.values())):
            if labels and time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                try:
                    self.look(labels)
                except fsdpd.Error as error:
                    note("jobs", f"{error}; again in {LOOK_SECONDS:.0f} s")
            for job in self.jobs.values():
                if job.stream is None and not job.done and time.monotonic() >= job.due:
                    self.attempt(job, self.open)
            streams = {job.stream: job for job in self.jobs.values()}
            for stream, items in self.collect().items():
                self.attempt(streams[stream], self.handle, items)
        for job in self.jobs.values():
            job.close(0)
            self.sink.leave(job.id)
        return not any(job.lost for job in self.jobs.values())
