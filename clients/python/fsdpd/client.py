"""Submits jobs, plans them, watches them and pulls their weights."""
from __future__ import annotations

import hashlib
import os
from typing import Any, Callable, Iterable, Iterator, Literal, Mapping, overload

import grpc
import numpy

from . import messages as api
from .address import open_channel
from .error import Error
from .job_file import read_job_file
from .safetensors import read_safetensors
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
               hold: bool = False, array: str = "") -> api.Job:
        """Queues a job: a job file with overrides such as "train.epochs=3", or a message. With an `id`, submitting the
        same job again returns the existing one. `array`: one job of the file for each index, as "1-20" or "1-20%4", at
        most 4 at once; the job returned stands for all of them."""
        if array:
            indices, _, at_once = array.partition("%")
            overrides += (f'array.indices="{indices}"', f"array.at_once={at_once or 0}")
        request = api.SubmitJobRequest(id=id, hold=hold, **source_of(job, overrides))
        return self.call(self.stub.SubmitJob, request).job

    def plan(self, job: str | os.PathLike[str] | api.JobSpec, *overrides: str, dump: bool = False) -> api.Plan:
        """What a job would cost."""
        return self.call(self.stub.PlanJob, api.PlanJobRequest(dump=dump, **source_of(job, overrides))).plan

    def job(self, id: str) -> api.Job:
        return self.call(self.stub.GetJob, api.GetJobRequest(id=id)).job

    def cancel(self, id: str) -> api.Job:
        return self.call(self.stub.CancelJob, api.CancelJobRequest(id=id)).job

    def pages(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """The responses to a request for a list, until the last page."""
        while True:
            page = self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def jobs(self, *, states: Iterable[api.JobState] = (), name: str = "", owner: str = "",
             labels: Mapping[str, str] | None = None, array: str = "",
             page_size: int = 0) -> Iterator[api.Job]:
        """The jobs that match all that is given, newest first, without their long texts. `array`: of that array."""
        request = api.ListJobsRequest(states=states, name=name, owner=owner, labels=labels, array=array,
                                      page_size=page_size)
        for page in self.pages(self.stub.ListJobs, request):
            yield from reversed(page.jobs)

    def history(self, id: str, *, page_size: int = 0) -> Iterator[api.HistoryEntry]:
        """The states that the job has been in, newest first."""
        for page in self.pages(self.stub.GetHistory, api.GetHistoryRequest(id=id, page_size=page_size)):
            yield from reversed(page.entries)

    def checkpoints(self, id: str, *, page_size: int = 0) -> Iterator[api.Checkpoint]:
        """The job's checkpoints, newest first."""
        for page in self.pages(self.stub.ListCheckpoints, api.ListCheckpointsRequest(id=id, page_size=page_size)):
            yield from reversed(page.checkpoints)

    def workers(self, *, page_size: int = 0) -> Iterator[api.Worker]:
        for page in self.pages(self.stub.ListWorkers, api.ListWorkersRequest(page_size=page_size)):
            yield from page.workers

    def families(self, *, page_size: int = 0) -> Iterator[api.Family]:
        """The families of models of the daemon's host, in the order in which they are searched."""
        for page in self.pages(self.stub.ListFamilies, api.ListFamiliesRequest(page_size=page_size)):
            yield from page.families

    def watch(self, id: str, after: int = 0) -> Iterator[api.JobEvent]:
        """The job's events with a sequence above `after`, until the job is over. If fsdpd goes away, for instance to
        restart, this waits for it up to `timeout` seconds and continues."""
        answered = False
        while True:
            stream = self.stub.WatchJob(api.WatchJobRequest(id=id, after_sequence=after))
            try:
                for response in stream:
                    event = response.event
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

    def pause(self, id: str) -> api.Job:
        """Takes a checkpoint and ends the job's attempt; the job waits for `resume`."""
        return self.call(self.stub.PauseJob, api.PauseJobRequest(id=id)).job

    def resume(self, id: str, job: str | os.PathLike[str] | api.JobSpec | None = None, *overrides: str) -> api.Job:
        """Queues a PAUSED job, or a FAILED one that has a checkpoint, again: with the settings that it has, or with
        those of a complete job file or message. Settings that its checkpoints depend on cannot change."""
        if job is None and overrides:
            raise TypeError("overrides are for a job file: name it, too")
        source = source_of(job, overrides) if job is not None else {}
        return self.call(self.stub.ResumeJob, api.ResumeJobRequest(id=id, **source)).job

    def hold(self, id: str) -> api.Job:
        """Keeps a queued job from starting."""
        return self.call(self.stub.HoldJob, api.HoldJobRequest(id=id)).job

    def release(self, id: str) -> api.Job:
        """Ends a hold."""
        return self.call(self.stub.ReleaseJob, api.ReleaseJobRequest(id=id)).job

    def why(self, id: str) -> str:
        """One paragraph on why the job is where it is: its place, who has the workers, what it waits for."""
        return self.call(self.stub.ExplainJob, api.ExplainJobRequest(id=id)).text

    def set_priority(self, id: str, priority: int) -> api.Job:
        """Higher starts first, from -1000 to 1000."""
        return self.call(self.stub.SetPriority, api.SetPriorityRequest(id=id, priority=priority)).job

    def resize(self, id: str, workers: int) -> api.Job:
        """The number of workers that an elastic job wants."""
        return self.call(self.stub.ResizeJob, api.ResizeJobRequest(id=id, workers=workers)).job

    def set_wrap(self, id: str, wrap: api.WrapSpec) -> api.Job:
        """Gives a running job other units, at the boundary of a step."""
        return self.call(self.stub.SetWrapPolicy, api.SetWrapPolicyRequest(id=id, wrap=wrap)).job

    def checkpoint(self, id: str) -> api.Checkpoint:
        """Takes a checkpoint of a running job, and returns it when it is complete."""
        return self.call(self.stub.CreateCheckpoint, api.CreateCheckpointRequest(id=id)).checkpoint

    def forget(self, id: str) -> None:
        """Removes a job that is over, with its files."""
        self.call(self.stub.ForgetJob, api.ForgetJobRequest(id=id))

    def diagnose(self, id: str, *, stacks: bool = True) -> api.Diagnosis:
        """What the ranks do now, and which ones the others wait for."""
        request = api.DiagnoseJobRequest(id=id, without_stacks=not stacks)
        return self.call(self.stub.DiagnoseJob, request).diagnosis

    def stream(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """The responses to a request, for as long as they come."""
        responses = method(request)
        try:
            yield from responses
        except grpc.RpcError as error:
            raise Error.of(error) from None
        finally:
            responses.cancel()

    def logs(self, id: str, *, attempt: int = 0, rank: int | None = None, tail: int = 0,
             follow: bool = False, after: int = 0) -> Iterator[api.LogLine]:
        """Lines in the order in which fsdpd received them: of one attempt, of one rank (-1: fsdpd's own), or the last
        ones; `follow` continues to the job's end; `after` is the `position` of a line, to continue behind it."""
        request = api.GetLogsRequest(id=id, attempt=attempt, one_rank=rank is not None, rank=rank or 0, tail=tail,
                                     follow=follow, after_position=after)
        for response in self.stream(self.stub.GetLogs, request):
            yield from response.lines

    def metrics(self, id: str, *, attempt: int = 0, every: int = 0, changes: bool = False) -> Iterator[api.MetricsRow]:
        """The figures of recorded steps, or of only every Nth; `changes` adds changes of state and units."""
        request = api.GetMetricsRequest(id=id, attempt=attempt, every=every, changes=changes)
        for response in self.stream(self.stub.GetMetrics, request):
            yield from response.rows

    def evaluate(self, id: str, *, path: str = "", set: str = "", batches: int | None = None) -> api.Validation:
        """Evaluates a running job between two steps: on data, on one of its `data.validation`, or on its own data."""
        request = api.EvaluateJobRequest(id=id, path=path, set=set, batches=batches)
        return self.call(self.stub.EvaluateJob, request).validation

    def sample(self, id: str, prompts: list[list[int]], max_tokens: int, **settings: Any) -> api.Sampled:
        """Continues sequences of token ids with a running job's weights, between two steps; settings as in api.Sample."""
        sample = api.Sample(prompts=[api.Tokens(tokens=tokens) for tokens in prompts], max_tokens=max_tokens, **settings)
        return list(self.stream(self.stub.SampleJob, api.SampleJobRequest(id=id, sample=sample)))[-1].sampled

    def sample_tokens(self, id: str, prompt: list[int], max_tokens: int, **settings: Any) -> Iterator[int]:
        """The same of one sequence: its tokens as they are drawn. Closing the iterator ends the call."""
        sample = api.Sample(prompts=[api.Tokens(tokens=prompt)], max_tokens=max_tokens, **settings)
        for response in self.stream(self.stub.SampleJob, api.SampleJobRequest(id=id, sample=sample, stream=True)):
            yield from response.drawn[0].tokens if response.drawn else ()

    def trace(self, id: str, steps: int = 1) -> Iterator[api.TraceChunk]:
        """When every instruction of the next steps begins and ends, on every rank."""
        for response in self.stream(self.stub.TraceJob, api.TraceJobRequest(id=id, steps=steps)):
            yield response.chunk

    def drain(self, worker: str, *, now: bool = False) -> list[api.Worker]:
        """Gives a worker, or all workers of a host, no more work; `now` also ends their jobs' attempts."""
        return list(self.call(self.stub.DrainWorkers, api.DrainWorkersRequest(worker=worker, now=now)).workers)

    def undrain(self, worker: str) -> list[api.Worker]:
        """Ends a drain."""
        return list(self.call(self.stub.UndrainWorkers, api.UndrainWorkersRequest(worker=worker)).workers)

    def issue_token(self, name: str = "", *, role: str = "", seconds: float = 0, job: str = "") -> api.IssueTokenResponse:
        """Issues a token with which a client over HTTP acts as this user; its secret is in the answer.

        `role` is "user" (the default), "operator" or "observer". With a `job` its owner sees this job alone.
        """
        return self.call(self.stub.IssueToken, api.IssueTokenRequest(
            name=name, role=api.TokenRole.Value(f"TOKEN_ROLE_{role.upper() or 'UNSPECIFIED'}"), seconds=seconds, job=job))

    def tokens(self, *, page_size: int = 0) -> Iterator[api.Token]:
        """All tokens that have not expired, without their secrets."""
        for page in self.pages(self.stub.ListTokens, api.ListTokensRequest(page_size=page_size)):
            yield from page.tokens

    def revoke_tokens(self, name: str) -> int:
        """Ends all tokens of this user; how many there were."""
        return self.call(self.stub.RevokeTokens, api.RevokeTokensRequest(name=name)).count

    def version(self) -> api.GetVersionResponse:
        """The daemon: its version, its start, and whether it accepts jobs."""
        return self.call(self.stub.GetVersion, api.GetVersionRequest())

    def pull_chunks(self, id: str, checkpoint: int | Literal["best"] | None, ema: bool = False) -> Iterator[api.PullStateDictResponse]:
        best = checkpoint == "best"
        request = api.PullStateDictRequest(id=id, from_checkpoint=checkpoint is not None, best=best, average=ema,
                                           checkpoint_step=0 if isinstance(checkpoint, str) else checkpoint or 0)
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
    def pull(self, id: str, *, checkpoint: int | Literal["best"] | None = None,
             ema: bool = False) -> dict[str, numpy.ndarray]: ...

    @overload
    def pull(self, id: str, path: str | os.PathLike[str], *, checkpoint: int | Literal["best"] | None = None,
             ema: bool = False) -> None: ...

    def pull(self, id: str, path: str | os.PathLike[str] | None = None, *,
             checkpoint: int | Literal["best"] | None = None, ema: bool = False) -> dict[str, numpy.ndarray] | None:
        """The job's weights, or their average, now or as of a checkpoint's step (0: the newest, "best"): as arrays by name, or into a safetensors
        file, which appears only when it is complete."""
        if path is None:
            data = bytearray()
            for chunk in self.pull_chunks(id, checkpoint, ema):
                data += chunk.data
            return read_safetensors(data)
        partial = os.fspath(path) + ".partial"
        try:
            with open(partial, "wb") as file:
                for chunk in self.pull_chunks(id, checkpoint, ema):
                    file.write(chunk.data)
            os.replace(partial, path)
        except BaseException:
            if os.path.exists(partial):
                os.remove(partial)
            raise
        return None

    def model_files(self, id: str) -> dict[str, bytes]:
        """By name, the files of a tokenizer and the like that the job's model.hf has beside its weights now."""
        files = {}
        for listed in self.call(self.stub.GetModelFile, api.GetModelFileRequest(id=id)).files:
            data = b""
            while len(data) < listed.size_bytes:
                request = api.GetModelFileRequest(id=id, name=listed.name, offset=len(data))
                piece = self.call(self.stub.GetModelFile, request).data
                if not piece:
                    break
                data += piece
            if hashlib.sha256(data).hexdigest() != listed.sha256:
                raise Error(grpc.StatusCode.DATA_LOSS, f"{listed.name} changed while it was read")
            files[listed.name] = data
        return files


def source_of(job: str | os.PathLike[str] | api.JobSpec, overrides: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(job, api.JobSpec):
        return {"job_file": read_job_file(job, overrides)}
    if overrides:
        raise TypeError("overrides are for job files: set the fields of the message")
    return {"spec": job}
