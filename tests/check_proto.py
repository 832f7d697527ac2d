#!/usr/bin/env python3
"""The rules of buf's category STANDARD for proto/fsdpd/v1, without buf: names, packages, enums, and
the messages of calls. An exception is listed with its reason; one that is not needed fails, too."""

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
JOB = "a call that gets or changes a job returns the Job itself, as AIP-131 to AIP-136 have it"
EXCEPTIONS = {
    ("SERVICE_SUFFIX", "fsdpd.v1.Control"): "in the path of every call and the name of its health",
    ("SERVICE_SUFFIX", "fsdpd.v1.WorkerLink"): "in the path of every call and the name of its health",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.GetHistory"): "the resource itself",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.GetVersion"): "the resource itself",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.PlanJob"): "the plan, which a Job has, too",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.CreateCheckpoint"):
        "the resource, which lists have, too",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.WatchJob"): "one of many, kept as it is sent",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.PullStateDict"): "a part of a stream of bytes",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.TraceJob"): "a part of a stream",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.GetLogs"): "a part of a stream",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.Control.GetMetrics"): "a part of a stream",
    ("RPC_REQUEST_STANDARD_NAME", "fsdpd.v1.WorkerLink.Attach"): "both directions of one stream",
    ("RPC_RESPONSE_STANDARD_NAME", "fsdpd.v1.WorkerLink.Attach"): "both directions of one stream",
    **{(rule, f"fsdpd.v1.Control.{call}"): JOB
       for rule in ("RPC_RESPONSE_STANDARD_NAME", "RPC_REQUEST_RESPONSE_UNIQUE")
       for call in ("SubmitJob", "GetJob", "HoldJob", "ReleaseJob", "SetPriority", "CancelJob",
                    "SetWrapPolicy", "PauseJob", "ResumeJob", "ResizeJob")},
    **{(rule, f"fsdpd.v1.Control.{call}"): "answers with the workers as they are listed"
       for rule in ("RPC_RESPONSE_STANDARD_NAME", "RPC_REQUEST_RESPONSE_UNIQUE")
       for call in ("DrainWorkers", "UndrainWorkers")},
    ("RPC_REQUEST_RESPONSE_UNIQUE", "fsdpd.v1.Control.ListWorkers"): "see DrainWorkers",
}
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


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


def check_message(message, path, report):
    if message.options.map_entry:
        return
    if not PASCAL.fullmatch(message.name):
        report("MESSAGE_PASCAL_CASE", path)
    for field in message.field:
        if not SNAKE.fullmatch(field.name):
            report("FIELD_LOWER_SNAKE_CASE", f"{path}.{field.name}")
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


def main():
    found = check(os.path.join(SOURCE, "proto"))
    wrong = [f"{what}: {rule}" for rule, what in found if (rule, what) not in EXCEPTIONS]
    wrong += [f"{what}: no exception from {rule} is needed" for rule, what in EXCEPTIONS
              if (rule, what) not in found]
    print("\n".join(wrong) or f"{len(found)} exceptions, each with its reason")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
