#!/usr/bin/env python3
"""Silent streams of workers: Attach without a hello, UploadState without a first message or without
the rest. fsdpd closes each after its timeout, with a line in the log, and serves all others."""

import os
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import wire
from harness import Daemon

try:
    import grpc
except ImportError as error:
    print(f"Python's grpcio is missing: {error}")
    sys.exit(77)

Code = grpc.StatusCode


class Test(unittest.TestCase):
    def setUp(self):
        root = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(root.cleanup)
        self.control, self.link = wire.generate(root.name)
        self.methods = {method.name.rsplit("/", 1)[1]: method for method in wire.methods(self.link)}
        self.daemon = Daemon(environment={"FSDPD_LIMITS_SILENCE_SECONDS": "4",
                                          "FSDPD_LIMITS_PULL_IDLE_SECONDS": "4"})
        self.addCleanup(self.daemon.close)
        self.channel = grpc.insecure_channel(self.daemon.address)
        self.addCleanup(self.channel.close)

    def ends(self, name, *messages):
        """How a stream ends after these messages and then silence: code and details."""
        method, over = self.methods[name], threading.Event()
        self.addCleanup(over.set)

        def requests():
            yield from messages
            over.wait(2 * harness.PATIENCE)
        make = self.channel.stream_stream if method.gets_stream else self.channel.stream_unary
        stub = make(method.name, request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=lambda data: data)
        try:
            answer = stub(requests(), timeout=harness.PATIENCE)
            for _ in answer if method.gets_stream else ():
                pass
        except grpc.RpcError as error:
            return error.code(), error.details()
        finally:
            over.set()
        raise AssertionError(f"{name} ended with OK")

    def closed(self, name, *messages):
        code, details = self.ends(name, *messages)
        self.assertEqual((code, details), (Code.UNAVAILABLE, details))
        self.assertIn(f"{name}: no message arrived for 4 s", details)
        self.daemon.wait_log(f"silent_stream_closed method=/fsdpd.v1.WorkerLink/{name}")

    def test_attach(self):
        self.closed("Attach")
        self.assertEqual(len(self.daemon.worker_list()), 2)

    def test_upload(self):
        self.closed("UploadState")

    def test_upload_that_stops(self):
        """Its place is free again: the job uploads its own final state_dict."""
        job = self.daemon.submit("train.epochs=100000", "train.evaluate=false")
        self.daemon.wait_step(job, 1)
        last = int(self.daemon.show(job)["steps"])
        first = self.link.UploadStateRequest(job=job, attempt=1, step=last, total_size=1000, data=b"1234")
        self.closed("UploadState", first)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.daemon.wait_state(job, "CANCELLED")
        names = os.listdir(os.path.join(self.daemon.root, "state/jobs", job))
        self.assertNotIn("state_dict.safetensors.tmp", names)


if __name__ == "__main__":
    harness.main()
