"""Where fsdpd is, as fsdpctl finds it."""
from __future__ import annotations

import os

import grpc


def default_address() -> str:
    if address := os.environ.get("FSDPD_ADDRESS"):
        return address
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    path = os.path.join(runtime, "fsdpd/fsdpd.sock")
    if os.geteuid() != 0 and os.path.isabs(runtime) and os.path.exists(path):
        return "unix:" + path
    return "unix:/run/fsdpd/fsdpd.sock"


def read_tls_file(given: str | None, variable: str, name: str) -> bytes:
    path = given or os.environ.get(variable)
    if not path:
        home = os.environ.get("XDG_CONFIG_HOME", "")
        path = os.path.join(home if os.path.isabs(home) else "~/.config", "fsdpd/tls", name)
    with open(os.path.expanduser(path), "rb") as file:
        return file.read()


def open_channel(address: str | None, ca: str | None, certificate: str | None, key: str | None) -> grpc.Channel:
    address = address or default_address()
    # Jobs' messages may be larger than gRPC's 4 MiB, with the texts of models.
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
    if address.startswith("unix:"):
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(
        read_tls_file(ca, "FSDPD_TLS_CA", "ca.crt"), read_tls_file(key, "FSDPD_TLS_KEY", "client.key"),
        read_tls_file(certificate, "FSDPD_TLS_CERTIFICATE", "client.crt")), options)
