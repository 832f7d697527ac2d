"""A client of fsdpd, the training service.

    with fsdpd.connect() as client:
        job = client.submit("job.yaml", "train.epochs=3")
        weights = client.pull(client.wait(job.id).id)

Messages are those of proto/fsdpd/v1, in fsdpd.messages; client.stub has all methods of the API.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, connect
    from .error import Error
    from .safetensors import read_safetensors

__all__ = ["Client", "Error", "connect", "read_safetensors"]
_HOMES = {"Client": "client", "connect": "client", "Error": "error", "read_safetensors": "safetensors"}


def __getattr__(name: str) -> Any:
    """Loads what is asked for: fsdpd.export runs beside PyTorch, where gRPC may be missing."""
    import importlib
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    if name in ("client", "error", "messages", "safetensors", "address", "job_file"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
