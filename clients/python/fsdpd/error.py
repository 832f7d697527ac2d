"""What fsdpd answers instead of a result."""
from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped, unused-ignore]


class Error(Exception):
    """A sentence of fsdpd, with gRPC's `code` and, for programs, its `reason` ("JOB_IS_NOT_RUNNING"), the `field` of the
    job that it is about ("train.epochs"; "": none) and the `line` of the job file (0: none)."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", field: str = "", line: int = 0):
        super().__init__(message)
        self.code, self.reason, self.field, self.line = code, reason, field, line

    @classmethod
    def of(cls, error: grpc.RpcError) -> Error:
        made = cls(error.code(), error.details() or error.code().name)
        for entry in error.trailing_metadata() or ():
            if entry.key == "grpc-status-details-bin":
                for detail in status_pb2.Status.FromString(entry.value).details:
                    made.add(detail)
        return made

    def add(self, detail: any_pb2.Any) -> None:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            self.reason, line = info.reason, info.metadata.get("line", "")
            self.line = int(line) if line.isdecimal() else 0
        elif detail.Unpack(request) and request.field_violations:
            self.field = request.field_violations[0].field
