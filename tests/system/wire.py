"""The API at the level of the wire, for tests that misuse it: every method by name, messages by
protoc, and hand-written HTTP/2 frames."""

import glob
import importlib
import os
import shutil
import struct
import subprocess
import sys
import types

import harness


def generate(directory):
    """Modules of our messages, made by protoc; method names suffice for stubs, without a plugin."""
    sources = os.path.join(harness.SOURCE, "proto")
    if shutil.which("protoc") is None:
        print("protoc is missing: apt-get install protobuf-compiler")
        sys.exit(77)
    subprocess.run(["protoc", f"--proto_path={sources}", f"--python_out={directory}",
                    *glob.glob(os.path.join(sources, "fsdpd/v1/*.proto"))], check=True)
    return load(directory)


def load(directory):
    """The services of users and of workers: two namespaces, each with all messages and enums, and
    with its service in DESCRIPTOR."""
    sys.path.insert(0, directory)
    modules = {name: importlib.import_module(f"fsdpd.v1.{name[:-3]}")
               for name in sorted(os.listdir(os.path.join(directory, "fsdpd/v1"))) if name.endswith("_pb2.py")}
    everything = {key: value for module in modules.values() for key, value in vars(module).items()}
    return tuple(types.SimpleNamespace(**{**everything, "DESCRIPTOR": modules[name].DESCRIPTOR})
                 for name in ("control_pb2.py", "worker_pb2.py"))


def generate_details():
    """google.rpc.Status and its details; after generate(), from the same sources."""
    sources = os.path.join(harness.SOURCE, "proto")
    directory = sys.path[0]
    # A package "google" of our own would hide that of protobuf.
    subprocess.run(["protoc", f"--proto_path={sources}",
                    f"--descriptor_set_out={directory}/details.bin", "--include_imports",
                    os.path.join(sources, "google/rpc/status.proto"),
                    os.path.join(sources, "google/rpc/error_details.proto")], check=True)
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
    del any_pb2  # registers the type
    pool, names = descriptor_pool.Default(), {}
    with open(os.path.join(directory, "details.bin"), "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    for one in files.file:
        if one.package == "google.rpc":
            pool.Add(one)
    for name in ("Status", "ErrorInfo", "BadRequest", "PreconditionFailure"):
        found = pool.FindMessageTypeByName(f"google.rpc.{name}")
        if hasattr(message_factory, "GetMessageClass"):
            names[name] = message_factory.GetMessageClass(found)
        else:
            names[name] = message_factory.MessageFactory(pool).GetPrototype(found)
    return names


def details(error, types):
    """The details of a call's error by the names of their messages, once its google.rpc.Status says
    what the error itself says."""
    raw = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = types["Status"].FromString(raw)
    assert (status.code, status.message) == (error.code().value[0], error.details()), status
    found = {}
    for one in status.details:
        name = one.type_url.removeprefix("type.googleapis.com/google.rpc.")
        found[name] = types[name].FromString(one.value)
    return found


class Method:
    def __init__(self, service, method):
        description = service.file.serialized_pb
        self.name = f"/{service.full_name}/{method.name}"
        self.request = method.input_type
        self.for_workers = service.name == "WorkerLink"
        # Old descriptors lack the streaming flags; their file has them.
        from google.protobuf import descriptor_pb2
        file = descriptor_pb2.FileDescriptorProto.FromString(description)
        for entry in file.service:
            for one in entry.method:
                if entry.name == service.name and one.name == method.name:
                    self.sends_stream = one.client_streaming
                    self.gets_stream = one.server_streaming

    def call(self, channel, payload, timeout=20, metadata=None):
        """The code and the details of a call whose (only) message has these bytes."""
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
