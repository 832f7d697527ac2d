#!/usr/bin/env python3
"""The rules of buf's category STANDARD for proto/fsdpd/v1, without buf: names, packages, enums, and
the messages of calls; that lists come in pages; and that a point in time is a Timestamp and a span
of time a double of seconds, as the head of control.proto explains. The generators of protoc and Go
take the files as they are. An exception is listed with its
reason; one that is not needed fails, too."""

import os
import re
import subprocess
import sys
import tempfile

try:
    from google.protobuf import descriptor_pb2
except ImportError as error:
    print(f"Python's protobuf is missing: {error}")
    sys.exit(77)

SOURCE = os.environ.get("srcdir", ".")
EXCEPTIONS = {
    ("SERVICE_SUFFIX", "fsdpd.v1.Control"): "in the path of every call and the name of its health",
    ("SERVICE_SUFFIX", "fsdpd.v1.WorkerLink"): "in the path of every call and the name of its health",
    ("RPC_REQUEST_STANDARD_NAME", "fsdpd.v1.WorkerLink.Attach"): "both directions of one stream",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.WorkerLink.Attach"): "both directions of one stream",
    ("RPC_REQUEST_STANDARD_NAME", "fsdpd.v1.WorkerLink.PullSource"): "is what PullStateDict is, for workers",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.WorkerLink.PullSource"): "is what PullStateDict is, for workers",
    ("RPC_REQUEST_RESPONSE_UNIQUE", "fsdpd.v1.WorkerLink.PullSource"): "is what PullStateDict is, for workers",
    ("RPC_REQUEST_RESPONSE_UNIQUE", "fsdpd.v1.Control.PullStateDict"): "as PullSource, for workers",
    ("SPAN_IS_SECONDS", "fsdpd.v1.TraceStep.begin_ns"): "of a monotonic clock, no time of day; to the ns",
    ("SPAN_IS_SECONDS", "fsdpd.v1.TraceStep.end_ns"): "of a monotonic clock, no time of day; to the ns",
    ("SPAN_IS_SECONDS", "fsdpd.v1.TraceStep.durations"): "thousands in a message, packed; in ns as begin_ns",
    ("SPAN_IS_SECONDS", "fsdpd.v1.Welcome.heartbeat_ms"): "not for users; counted in whole milliseconds",
    ("SPAN_IS_SECONDS", "fsdpd.v1.Welcome.silence_ms"): "not for users; counted in whole milliseconds",
    ("SPAN_IS_SECONDS", "fsdpd.v1.Assignment.timeout_ms"): "not for users; counted in whole milliseconds",
    ("SPAN_IS_SECONDS", "fsdpd.v1.StoreGetRequest.timeout_ms"): "not for users; counted in whole milliseconds",
    ("SPAN_IS_SECONDS", "fsdpd.v1.Heartbeat.own_us"): "not for users; a sum of whole microseconds",
}
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
KINDS = descriptor_pb2.FieldDescriptorProto
INTEGERS = {getattr(KINDS, f"TYPE_{name}") for name in ("INT32", "INT64", "UINT32", "UINT64", "SINT32", "SINT64",
                                                       "FIXED32", "FIXED64", "SFIXED32", "SFIXED64")}
POINT = re.compile(r"(.*_)?(time|timestamp)|since")
SPAN = re.compile(r"(.*_)?(ns|us|ms|nanos|micros|millis|nanoseconds|microseconds|milliseconds|minutes|hours|days"
                  r"|durations?|timeout|delay)")


def upper(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def check_enum(enum, path, report):
    if not PASCAL.fullmatch(enum.name):
        report("ENUM_PASCAL_CASE", path)
    if enum.options.allow_alias:
        report("ENUM_NO_ALLOW_ALIAS", path)
    if enum.value[0].number != 0:
        report("ENUM_FIRST_VALUE_ZERO", path)
    if not enum.value[0].name.endswith("_UNSPECIFIED"):
        report("ENUM_ZERO_VALUE_SUFFIX", path)
    for value in enum.value:
        if not UPPER.fullmatch(value.name):
            report("ENUM_VALUE_UPPER_SNAKE_CASE", path)
        if not value.name.startswith(upper(enum.name) + "_"):
            report("ENUM_VALUE_PREFIX", path)


def check_time(field, path, report):
    """Names tell what a field is; `rate_per_second` is no time."""
    if POINT.fullmatch(field.name) or (field.name.endswith("_at") and field.type in INTEGERS):
        if field.type_name != ".google.protobuf.Timestamp":
            report("POINT_IS_TIMESTAMP", path)
    elif "seconds" in field.name.split("_"):
        if field.type != KINDS.TYPE_DOUBLE:
            report("SPAN_IS_SECONDS", path)
    elif SPAN.fullmatch(field.name):
        report("SPAN_IS_SECONDS", path)


def check_message(message, path, report):
    if message.options.map_entry:
        return
    if not PASCAL.fullmatch(message.name):
        report("MESSAGE_PASCAL_CASE", path)
    for field in message.field:
        if not SNAKE.fullmatch(field.name):
            report("FIELD_LOWER_SNAKE_CASE", f"{path}.{field.name}")
        check_time(field, f"{path}.{field.name}", report)
    optional = {field.oneof_index for field in message.field if field.proto3_optional}
    for index, oneof in enumerate(message.oneof_decl):
        if index not in optional and not SNAKE.fullmatch(oneof.name):
            report("ONEOF_LOWER_SNAKE_CASE", f"{path}.{oneof.name}")
    for enum in message.enum_type:
        check_enum(enum, f"{path}.{enum.name}", report)
    for nested in message.nested_type:
        check_message(nested, f"{path}.{nested.name}", report)


def check_service(service, path, users, report):
    if not PASCAL.fullmatch(service.name):
        report("SERVICE_PASCAL_CASE", path)
    if not service.name.endswith("Service"):
        report("SERVICE_SUFFIX", path)
    for call in service.method:
        name = f"{path}.{call.name}"
        if not PASCAL.fullmatch(call.name):
            report("RPC_PASCAL_CASE", name)
        for rule, message in (("REQUEST", call.input_type), ("RESPONSE", call.output_type)):
            users.setdefault(message, set()).add(name)
            suffix = rule.capitalize()
            if message.rsplit(".", 1)[1] not in (call.name + suffix, service.name + call.name + suffix):
                report(f"RPC_{rule}_STANDARD_NAME", name)


def check_pages(file, service, report):
    """A list has pages, as AIP-158 has them, and its rows are its response's first field."""
    messages = {f".{file.package}.{message.name}": message.field for message in file.message_type}
    for call in service.method:
        if not call.name.startswith("List"):
            continue
        asked = {field.name: field.type for field in messages[call.input_type]}
        rows, *others = sorted(messages[call.output_type], key=lambda field: field.number)
        if (asked.get("page_size"), asked.get("page_token")) != (KINDS.TYPE_UINT32, KINDS.TYPE_STRING) or \
                (rows.label, rows.type) != (KINDS.LABEL_REPEATED, KINDS.TYPE_MESSAGE) or \
                "next_page_token" not in [field.name for field in others]:
            report("LIST_HAS_PAGES", f"{file.package}.{service.name}.{call.name}")


def check_file(file, users, report):
    parts = file.package.split(".")
    if os.path.dirname(file.name) != "/".join(parts):
        report("PACKAGE_DIRECTORY_MATCH", file.name)
    if not all(SNAKE.fullmatch(part) for part in parts):
        report("PACKAGE_LOWER_SNAKE_CASE", file.name)
    if not re.fullmatch(r"v[0-9]+((alpha|beta)[0-9]*)?", parts[-1]):
        report("PACKAGE_VERSION_SUFFIX", file.name)
    if not SNAKE.fullmatch(os.path.basename(file.name).removesuffix(".proto")):
        report("FILE_LOWER_SNAKE_CASE", file.name)
    if file.syntax != "proto3":
        report("SYNTAX_SPECIFIED", file.name)
    if file.public_dependency:
        report("IMPORT_NO_PUBLIC", file.name)
    if file.weak_dependency:
        report("IMPORT_NO_WEAK", file.name)
    for enum in file.enum_type:
        check_enum(enum, f"{file.package}.{enum.name}", report)
    for message in file.message_type:
        check_message(message, f"{file.package}.{message.name}", report)
    for service in file.service:
        check_service(service, f"{file.package}.{service.name}", users, report)
        check_pages(file, service, report)


def check(directory):
    """The violations in the .proto files of fsdpd/v1 below `directory`: (rule, what)."""
    names = sorted(f"fsdpd/v1/{name}" for name in os.listdir(os.path.join(directory, "fsdpd/v1"))
                   if name.endswith(".proto"))
    with tempfile.NamedTemporaryFile() as out:
        made = subprocess.run(["protoc", f"--proto_path={directory}", "--include_imports",
                               f"--descriptor_set_out={out.name}", *names],
                              stderr=subprocess.PIPE, text=True, check=False)
        if made.returncode != 0:
            sys.exit(made.stderr)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read()).file
    found, users = [], {}
    def report(rule, what):
        if (rule, what) not in found:
            found.append((rule, what))
    # IMPORT_USED is protoc's own warning.
    for line in made.stderr.splitlines():
        if "is unused" in line:
            report("IMPORT_USED", line)
    ours = [file for file in files if file.name in names]
    for file in ours:
        check_file(file, users, report)
    for message, calls in users.items():
        for call in sorted(calls) if len(calls) > 1 else ():
            report("RPC_REQUEST_RESPONSE_UNIQUE", call)
    for option in ("go_package", "java_package", "csharp_namespace", "java_multiple_files"):
        values = {getattr(file.options, option) for file in ours}
        if len(values) > 1 or not values.pop():
            report(f"PACKAGE_SAME_{option.upper()}", option)
    return found


# What a language's library has already: what is generated names it as it is named there.
KNOWN = {"java": "com.google.protobuf.Timestamp ", "go": '"google.golang.org/protobuf/types/known/timestamppb"',
         "csharp": "Google.Protobuf.WellKnownTypes.Timestamp "}
GENERATORS = ("cpp", "csharp", "java", "kotlin", "objc", "php", "python", "pyi", "ruby", "go", "go-grpc")


def check_generators(directory):
    """What fails if stubs are made of the files as they are, for each language."""
    names = sorted(f"fsdpd/v1/{name}" for name in os.listdir(os.path.join(directory, "fsdpd/v1"))
                   if name.endswith(".proto"))
    failed = []
    for generator in GENERATORS:
        with tempfile.TemporaryDirectory() as out:
            made = subprocess.run(["protoc", f"--proto_path={directory}", f"--{generator}_out={out}", *names],
                                  stderr=subprocess.PIPE, text=True, check=False)
            if made.returncode != 0:
                failed.append(f"{generator}: {made.stderr.strip()}")
                continue
            text = ""
            for folder, _, files in os.walk(out):
                for name in files:
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                        text += file.read()
            if not text or KNOWN.get(generator, "") not in text:
                failed.append(f"{generator}: does not use {KNOWN.get(generator)}")
    return failed


def main():
    found = check(os.path.join(SOURCE, "proto"))
    wrong = [f"{what}: {rule}" for rule, what in found if (rule, what) not in EXCEPTIONS]
    wrong += check_generators(os.path.join(SOURCE, "proto"))
    wrong += [f"{what}: no exception from {rule} is needed" for rule, what in EXCEPTIONS
              if (rule, what) not in found]
    print("\n".join(wrong) or f"{len(found)} exceptions, each with its reason; {len(GENERATORS)} generators")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
