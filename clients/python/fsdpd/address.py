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


# What mutual TLS needs: the argument of connect, the variable, and the file's name in the default directory.
TLS_FILES = (("ca", "FSDPD_TLS_CA", "ca.crt"), ("certificate", "FSDPD_TLS_CERTIFICATE", "client.crt"),
             ("key", "FSDPD_TLS_KEY", "client.key"))


def read_tls_files(address: str, given: dict[str, str | None]) -> dict[str, bytes]:
    home = os.environ.get("XDG_CONFIG_HOME", "")
    directory = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~/.config"), "fsdpd/tls")
    found, missing = {}, []
    for argument, variable, name in TLS_FILES:
        path = os.path.expanduser(given[argument] or os.environ.get(variable) or os.path.join(directory, name))
        try:
            with open(path, "rb") as file:
                found[argument] = file.read()
        except OSError as error:
            missing.append(f"{path}: {error.strerror} ({argument}=, or {variable})")
    if missing:
        raise FileNotFoundError(f"{address} needs mutual TLS by three files: " + "; ".join(missing))
    return found


def open_channel(address: str | None, ca: str | None, certificate: str | None, key: str | None) -> grpc.Channel:
    address = address or default_address()
    # Jobs' messages may be larger than gRPC's 4 MiB, with the texts of models.
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
    if address.startswith("unix:"):
        return grpc.insecure_channel(address, options)
    files = read_tls_files(address, {"ca": ca, "certificate": certificate, "key": key})
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(files["ca"], files["key"], files["certificate"]),
                               options)
