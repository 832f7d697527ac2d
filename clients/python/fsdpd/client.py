"""Submits jobs, plans them, watches them and pulls their weights."""
from __future__ import annotations

import os
from typing import Any, Callable, Iterator, overload

import grpc
import numpy

from .address import open_channel
from .error import Error
from .job_file import read_job_file
from .safetensors import read_safetensors
from .v1 import control_pb2 as api
from .v1 import control_pb2_grpc



def connect(address: str | None = None, *, ca: str | None = None, certificate: str | None = None,
            key: str | None = None, timeout: float = 60) -> Client:
    """A client of the fsdpd at `address`: unix:PATH, or HOST:PORT with mutual TLS by these files. What is not given
    is found as fsdpctl does. `timeout`: seconds to wait for an answer."""
    return Client(open_channel(address, ca, certificate, key), timeout)


class Client:
    """Owns the channel. Any thread may call it."""

    def __init__(self, channel: grpc.Channel, timeout: float = 60):
        self.channel, self.timeout = channel, timeout
        self.stub = control_pb2_grpc.ControlStub(channel)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def call(self, method: Callable[..., Any], request: Any, **options: Any) -> Any:
        try:
            return method(request, timeout=self.timeout, **options)
        except grpc.RpcError as error:
            raise Error.of(error) from None

    def submit(self, job: str | os.PathLike[str] | api.JobSpec, *overrides: str, id: str = "",
               hold: bool = False) -> api.Job:
        """Queues a job: a job file with overrides such as "train.epochs=3", or a message. With an `id`, submitting the
        same job again returns the existing one."""
        return self.call(self.stub.SubmitJob, api.SubmitJobRequest(id=id, hold=hold, **source_of(job, overrides)))

    def plan(self, job: str | os.PathLike[str] | api.JobSpec, *overrides: str, dump: bool = False) -> api.Plan:
        """What a job would cost."""
        return self.call(self.stub.PlanJob, api.PlanJobRequest(dump=dump, **source_of(job, overrides)))

    def job(self, id: str) -> api.Job:
        return self.call(self.stub.GetJob, api.GetJobRequest(id=id))

    def cancel(self, id: str) -> api.Job:
        return self.call(self.stub.CancelJob, api.CancelJobRequest(id=id))

    def watch(self, id: str, after: int = 0) -> Iterator[api.JobEvent]:
        """The job's events with a sequence above `after`, until the job is over. If fsdpd goes away, for instance to
        restart, this waits for it up to `timeout` seconds and continues."""
        answered = False
        while True:
            stream = self.stub.WatchJob(api.WatchJobRequest(id=id, after_sequence=after))
            try:
                for event in stream:
                    answered, after = True, max(after, event.sequence)
                    yield event
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or not answered:
                    raise Error.of(error) from None
            finally:
                stream.cancel()
            self.call(self.stub.GetVersion, api.GetVersionRequest(), wait_for_ready=True)

    def wait(self, id: str) -> api.Job:
        """The job when it is over, or PAUSED."""
        for _ in self.watch(id):
            pass
        return self.job(id)

    def pull_chunks(self, id: str, checkpoint: int | None) -> Iterator[api.StateDictChunk]:
        request = api.PullStateDictRequest(id=id, from_checkpoint=checkpoint is not None,
                                           checkpoint_step=checkpoint or 0)
        stream = self.stub.PullStateDict(request)
        try:
            total = received = 0
            for chunk in stream:
                total = total or chunk.total_size
                received += len(chunk.data)
                yield chunk
            if received != total:
                raise Error(grpc.StatusCode.DATA_LOSS, f"expected {total} bytes of weights, found {received}")
        except grpc.RpcError as error:
            raise Error.of(error) from None
        finally:
            stream.cancel()

    @overload
    def pull(self, id: str, *, checkpoint: int | None = None) -> dict[str, numpy.ndarray]: ...

    @overload
    def pull(self, id: str, path: str | os.PathLike[str], *, checkpoint: int | None = None) -> None: ...

    def pull(self, id: str, path: str | os.PathLike[str] | None = None, *,
             checkpoint: int | None = None) -> dict[str, numpy.ndarray] | None:
        """The job's weights, now or as of a checkpoint's step (0: the newest): as arrays by name, or into a safetensors
        file, which appears only when it is complete."""
        if path is None:
            data = bytearray()
            for chunk in self.pull_chunks(id, checkpoint):
                data += chunk.data
            return read_safetensors(data)
        partial = os.fspath(path) + ".partial"
        try:
            with open(partial, "wb") as file:
                for chunk in self.pull_chunks(id, checkpoint):
                    file.write(chunk.data)
            os.replace(partial, path)
        except BaseException:
            if os.path.exists(partial):
                os.remove(partial)
            raise
        return None


def source_of(job: str | os.PathLike[str] | api.JobSpec, overrides: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(job, api.JobSpec):
        return {"job_file": read_job_file(job, overrides)}
    if overrides:
        raise TypeError("overrides are for job files: set the fields of the message")
    return {"spec": job}
