#!/usr/bin/env python3
"""A client generated in another language: Python's grpcio submits, watches and pulls, asks health and
reflection, and does to the wire what no well-behaved client does."""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

try:
    import grpc
except ImportError as error:
    print(f"Python's grpcio is not here: {error}")
    sys.exit(77)


def generate(directory):
    """Messages by protoc; stubs are made from method names, so no plugin is needed."""
    protos = [os.path.join(harness.SOURCE, "proto", name)
              for name in ("fsdpd/v1/control.proto", "grpc/health/v1/health.proto",
                           "grpc/reflection/v1alpha/reflection.proto")]
    subprocess.run(["protoc", f"--proto_path={os.path.join(harness.SOURCE, 'proto')}",
                    f"--python_out={directory}", *protos], check=True)
    # the generated files of package grpc.* may not hide the grpc library
    os.rename(os.path.join(directory, "grpc"), os.path.join(directory, "standard"))
    sys.path.insert(0, directory)


class GrpcClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        generate(cls.directory)
        cls.api = importlib.import_module("fsdpd.v1.control_pb2")
        cls.health = importlib.import_module("standard.health.v1.health_pb2")
        cls.reflection = importlib.import_module("standard.reflection.v1alpha.reflection_pb2")
        cls.daemon = harness.Daemon()
        cls.channel = grpc.insecure_channel(cls.daemon.address)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.daemon.close()
        shutil.rmtree(cls.directory)

    def unary(self, method, request, response):
        return self.channel.unary_unary(
            method, request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString)(request, timeout=harness.PATIENCE)

    def control(self, method, request, response):
        return self.unary(f"/fsdpd.v1.Control/{method}", request, response)

    def stream(self, method, request, response):
        return self.channel.unary_stream(
            f"/fsdpd.v1.Control/{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString)(request, timeout=120)

    def spec(self, **train):
        """The example job, as a client without our job file reader would write it."""
        with open(os.path.join(harness.SOURCE, "examples/mnist/net.yaml")) as file:
            model = file.read()
        api = self.api
        settings = dict(epochs=1, batch_size=64, test_batch_size=1000, seed=1, log_interval=10,
                        dropout=True, shuffle=True, evaluate=True, accumulation_steps=1,
                        clip_grad_norm_type="2", non_finite="fail")
        settings.update(train)
        return api.JobSpec(
            name="python", model=api.ModelSpec(file_name="net.yaml", text=model),
            data=api.DataSpec(format="idx", dir=self.daemon.data, normalize_mean=0.1307,
                              normalize_std=0.3081),
            train=api.TrainSpec(**settings),
            optimizer=api.OptimizerSpec(type="adadelta", lr=1.0, rho=0.9, eps=1e-6),
            schedule=api.ScheduleSpec(type="step", step_size=1, gamma=0.7),
            fsdp=api.FsdpSpec(strategy="full_shard", backward_prefetch="pre",
                              wrap=api.WrapSpec(policy="size", min_num_params=20000)),
            workers=2, save_model=True)

    def test_submit_watch_pull(self):
        api = self.api
        job = self.control("SubmitJob", api.SubmitJobRequest(spec=self.spec()), api.Job)
        self.assertEqual(job.plan.parameters, 1199882)
        states, epochs, last = [], [], 0
        for event in self.stream("WatchJob", api.WatchJobRequest(id=job.id), api.JobEvent):
            self.assertEqual(event.sequence, last + 1)
            last = event.sequence
            if event.WhichOneof("event") == "state":
                states.append(api.JobState.Name(event.state.state))
            if event.WhichOneof("event") == "epoch":
                epochs.append(event.epoch)
        self.assertEqual(states[-1], "SUCCEEDED")
        self.assertIn("RUNNING", states)
        self.assertEqual(len(epochs), 1)
        self.assertEqual(epochs[0].test_samples, 500)
        # from the middle on: exactly the rest
        rest = [event.sequence for event in
                self.stream("WatchJob", api.WatchJobRequest(id=job.id, after_sequence=last - 2),
                            api.JobEvent)]
        self.assertEqual(rest, [last - 1, last])
        chunks = list(self.stream("PullStateDict", api.PullStateDictRequest(id=job.id),
                                  api.StateDictChunk))
        raw = b"".join(chunk.data for chunk in chunks)
        self.assertEqual(len(raw), chunks[0].total_size)
        self.assertEqual(chunks[0].step, 16)
        path = os.path.join(self.directory, "pulled")
        with open(path, "wb") as file:
            file.write(raw)
        tensors, metadata = harness.read_safetensors(path)
        self.assertEqual(len(tensors), 8)
        self.assertEqual(metadata["step"], "16")

    def test_health(self):
        health = self.health
        for service in ("", "fsdpd.v1.Control"):
            answer = self.unary("/grpc.health.v1.Health/Check",
                                health.HealthCheckRequest(service=service),
                                health.HealthCheckResponse)
            self.assertEqual(answer.status, health.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as raised:
            self.unary("/grpc.health.v1.Health/Check",
                       health.HealthCheckRequest(service="nobody"), health.HealthCheckResponse)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection(self):
        reflection = self.reflection
        for version in ("v1alpha", "v1"):
            requests = [reflection.ServerReflectionRequest(list_services=""),
                        reflection.ServerReflectionRequest(
                            file_containing_symbol="fsdpd.v1.Control"),
                        reflection.ServerReflectionRequest(file_by_filename="no.proto")]
            answers = list(self.channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection.ServerReflectionResponse.FromString)(
                    iter(requests), timeout=harness.PATIENCE))
            names = [service.name for service in answers[0].list_services_response.service]
            self.assertIn("fsdpd.v1.Control", names)
            self.assertTrue(answers[1].file_descriptor_response.file_descriptor_proto)
            self.assertEqual(answers[2].error_response.error_code,
                             grpc.StatusCode.NOT_FOUND.value[0])

    def test_hostile_messages(self):
        """Garbage, oversized and half-finished calls get a code, and the daemon keeps serving."""
        raw = self.channel.unary_unary("/fsdpd.v1.Control/SubmitJob")
        for payload in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", os.urandom(5000)):
            with self.assertRaises(grpc.RpcError) as raised:
                raw(payload, timeout=harness.PATIENCE)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        with self.assertRaises(grpc.RpcError) as raised:
            raw(bytes(32 << 20), timeout=harness.PATIENCE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        with self.assertRaises(grpc.RpcError) as raised:
            self.channel.unary_unary("/fsdpd.v1.Control/NoSuchMethod")(b"", timeout=harness.PATIENCE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        api = self.api
        with self.assertRaises(grpc.RpcError) as raised:
            self.control("SubmitJob", api.SubmitJobRequest(), api.Job)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        for field, value in (("workers", 0), ("workers", 1 << 31), ("name", "../../etc"),
                             ("name", ""), ("device", "toaster")):
            spec = self.spec()
            setattr(spec, field, value)
            with self.assertRaises(grpc.RpcError) as raised:
                self.control("SubmitJob", api.SubmitJobRequest(spec=spec), api.Job)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT,
                             f"{field}={value}: {raised.exception.details()}")
            self.assertIn(field, raised.exception.details())
        self.assertEqual(self.daemon.ctl("status").returncode, 0)

    def test_client_vanishes_in_a_stream(self):
        api = self.api
        job = self.control("SubmitJob", api.SubmitJobRequest(spec=self.spec(epochs=1000)), api.Job)
        self.daemon.wait_step(job.id, 2)
        for _ in range(5):
            watch = self.stream("WatchJob", api.WatchJobRequest(id=job.id), api.JobEvent)
            next(watch)
            pull = self.stream("PullStateDict", api.PullStateDictRequest(id=job.id),
                               api.StateDictChunk)
            next(pull)
            watch.cancel()
            pull.cancel()
        step = int(self.daemon.show(job.id)["step"])
        self.daemon.wait_step(job.id, step + 5)
        # a pull after all those is answered still
        chunks = list(self.stream("PullStateDict", api.PullStateDictRequest(id=job.id),
                                  api.StateDictChunk))
        self.assertEqual(sum(len(chunk.data) for chunk in chunks), chunks[0].total_size)
        self.control("CancelJob", api.CancelJobRequest(id=job.id), api.Job)
        self.daemon.wait_state(job.id, "CANCELLED")


if __name__ == "__main__":
    harness.main()
