"""The API as seen from the wire, for tests that misuse it: every method by name, messages by protoc,
and frames of HTTP/2 written by hand."""

import importlib
import os
import shutil
import struct
import subprocess
import sys

import harness


def generate(directory):
    """Modules of our messages, made by protoc; stubs are made from method names, without a plugin."""
    sources = os.path.join(harness.SOURCE, "proto")
    if shutil.which("protoc") is None:
        print("protoc is not here: apt-get install protobuf-compiler")
        sys.exit(77)
    subprocess.run(["protoc", f"--proto_path={sources}", f"--python_out={directory}",
                    os.path.join(sources, "fsdpd/v1/control.proto"),
                    os.path.join(sources, "fsdpd/v1/worker.proto")], check=True)
    sys.path.insert(0, directory)
    return (importlib.import_module("fsdpd.v1.control_pb2"),
            importlib.import_module("fsdpd.v1.worker_pb2"))


class Method:
    def __init__(self, service, method):
        description = service.file.serialized_pb
        self.name = f"/{service.full_name}/{method.name}"
        self.request = method.input_type
        self.for_workers = service.name == "WorkerLink"
        # Old descriptors do not tell what streams; their file does.
        from google.protobuf import descriptor_pb2
        file = descriptor_pb2.FileDescriptorProto.FromString(description)
        for entry in file.service:
            for one in entry.method:
                if entry.name == service.name and one.name == method.name:
                    self.sends_stream = one.client_streaming
                    self.gets_stream = one.server_streaming

    def call(self, channel, payload, timeout=20, metadata=None):
        """The code that a call with these bytes as its (only) message ends with, and the details."""
        import grpc
        make = {(False, False): channel.unary_unary, (False, True): channel.unary_stream,
                (True, False): channel.stream_unary, (True, True): channel.stream_stream}
        stub = make[self.sends_stream, self.gets_stream](
            self.name, request_serializer=lambda data: data,
            response_deserializer=lambda data: data)
        request = iter([payload]) if self.sends_stream else payload
        try:
            answer = stub(request, timeout=timeout, metadata=metadata)
            if self.gets_stream:
                for _ in answer:
                    pass
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return error.code(), error.details()


def methods(*modules):
    return [Method(service, method) for module in modules
            for service in module.DESCRIPTOR.services_by_name.values()
            for method in service.methods]


# ---- frames ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name, value):
    """A literal header field that is not indexed."""
    def text(raw):
        raw = raw if isinstance(raw, bytes) else raw.encode()
        if len(raw) < 127:
            return bytes([len(raw)]) + raw
        rest, out = len(raw) - 127, b"\x7f"
        while rest >= 128:
            out += bytes([rest % 128 + 128])
            rest //= 128
        return out + bytes([rest]) + raw
    return b"\x00" + text(name) + text(value)


def request_headers(path, extra=()):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
              ("content-type", "application/grpc"), ("te", "trailers"), *extra]
    return b"".join(header(name, value) for name, value in fields)


def message(payload, compressed=0, length=None):
    return struct.pack(">BI", compressed, len(payload) if length is None else length) + payload
