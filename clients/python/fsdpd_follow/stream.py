"""The events of one job, in a thread of its own, into a queue of bounded length that all jobs share."""
from __future__ import annotations

import queue
import threading
from typing import Any

import grpc

import fsdpd
import fsdpd.messages as api


class Stream(threading.Thread):
    """Puts (stream, event) for every event with figures, a state or units, and at last (stream, None) when the job has
    no further events for now, or (stream, fsdpd.Error).

    What is on the coordinator's disk is read with GetMetrics, which waits for its reader; then WatchJob follows. If
    that says that its reader missed metrics, what was missed is read from the disk, too.
    """

    def __init__(self, client: fsdpd.Client, job: str, after: int, out: queue.Queue[Any]):
        super().__init__(daemon=True, name=f"stream of {job}")
        self.client, self.job, self.at, self.out = client, job, after, out
        self.closed, self.call, self.left_out = False, None, 0
        self.start()

    def close(self) -> None:
        self.closed = True
        if self.call is not None:
            self.call.cancel()

    def put(self, item: Any) -> None:
        while not self.closed:
            try:
                self.out.put((self, item), timeout=0.2)
                return
            except queue.Full:
                pass

    def responses(self, method: Any, request: Any) -> Any:
        self.call = method(request)
        try:
            if not self.closed:  # closed between two calls: nothing would end this one
                yield from self.call
        finally:
            self.call.cancel()

    def take(self, event: api.JobEvent) -> None:
        if event.sequence > self.at:
            self.at = event.sequence
            self.put(event)

    def read_kept(self) -> None:
        request = api.GetMetricsRequest(id=self.job, after_sequence=self.at, changes=True)
        for response in self.responses(self.client.stub.GetMetrics, request):
            self.left_out += response.left_out
            for row in response.rows:
                self.take(row.event)

    def watch(self) -> bool:
        """Whether the job has no further events; false: some were missed."""
        request = api.WatchJobRequest(id=self.job, after_sequence=self.at)
        for response in self.responses(self.client.stub.WatchJob, request):
            if response.event.HasField("dropped"):
                return False
            if not response.event.HasField("log"):
                self.take(response.event)
        return True

    def run(self) -> None:
        try:
            self.read_kept()
            while not self.closed and not self.watch():
                self.read_kept()
            self.put(None)
        except grpc.RpcError as error:
            self.put(fsdpd.Error.of(error))
