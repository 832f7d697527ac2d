#!/usr/bin/env python3
"""Noise on the real socket: bytes that are not HTTP/2, invalid frames, invalid messages, on every
method, from a seed. The daemon keeps running and answers others meanwhile, its memory and its
descriptors stay bounded, and it gains no job or worker.

FSDPD_WIRE_FUZZ_SECONDS sets the duration (5), FSDPD_WIRE_FUZZ_SEED the seed (of the day)."""

import os
import random
import select
import shutil
import socket
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import wire
from harness import Daemon

SECONDS = float(os.environ.get("FSDPD_WIRE_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("FSDPD_WIRE_FUZZ_SEED", str(int(time.time()) // 86400)))
GROWTH = 192 << 20  # of the coordinator's memory, at most


class Noise:
    def __init__(self, methods, seed):
        self.random = random.Random(seed)
        self.methods = methods
        self.counts = {}

    def bytes(self, most):
        return self.random.randbytes(int(most ** self.random.random()))

    # ---- messages ----

    def value(self, field, depth):
        kind = field.type
        r = self.random
        if field.message_type is not None:
            return 2, (self.fields(field.message_type, depth + 1) if depth < 4 else b"")
        if kind in (field.TYPE_STRING, field.TYPE_BYTES):
            return 2, r.choice([b"", b"digits-1", b"../../etc/passwd", b"\xff\xfe", b"%s%n", b"a" * 300,
                                self.bytes(2000), "ü\0".encode()])
        if kind in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
            return 1, r.choice([struct.pack("<d", x) for x in
                                (0, -1, 1e308, float("nan"), float("inf"), 1e-320)])
        if kind in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32):
            return 5, r.randbytes(4)
        return 0, self.varint(r.choice([0, 1, 2, 7, 1 << 31, (1 << 32) - 1, (1 << 63), (1 << 64) - 1,
                                        r.getrandbits(20)]))

    @staticmethod
    def varint(number):
        out = b""
        while number >= 128:
            out += bytes([number % 128 + 128])
            number >>= 7
        return out + bytes([number])

    def fields(self, description, depth=0):
        """A message with the fields that its type has, holding anything."""
        out = b""
        for field in description.fields:
            if self.random.random() < 0.4:
                continue
            for _ in range(self.random.choice([1, 1, 1, 2, 40 if field.label == 3 else 1])):
                kind, raw = self.value(field, depth)
                if self.random.random() < 0.03:
                    kind = self.random.randrange(8)
                out += self.varint(field.number << 3 | kind)
                if kind == 2:
                    length = len(raw) if self.random.random() > 0.02 else self.random.getrandbits(33)
                    out += self.varint(length)
                out += raw
                if len(out) > 100000:
                    return out
        return out

    def mutated(self, raw):
        raw = bytearray(raw)
        for _ in range(self.random.randrange(1, 8)):
            if not raw:
                break
            at = self.random.randrange(len(raw))
            what = self.random.randrange(4)
            if what == 0:
                raw[at] = self.random.randrange(256)
            elif what == 1:
                del raw[at:at + self.random.randrange(1, 16)]
            elif what == 2:
                raw[at:at] = self.bytes(64)
            else:
                raw[at:] = raw[at:at + 200] * self.random.randrange(1, 4)
        return bytes(raw)

    def body(self, method):
        raw = self.fields(method.request)
        what = self.random.randrange(4)
        return raw if what < 2 else self.mutated(raw) if what == 2 else self.bytes(4000)

    # ---- bytes of a connection ----

    def raw_bytes(self):
        return self.bytes(20000)

    def http1(self):
        return b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n" + self.bytes(100)

    def odd_frames(self):
        r = self.random
        out = wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0)
        for _ in range(r.randrange(1, 60)):
            kind = r.choice([*range(10), *range(10), r.randrange(256)])
            payload = self.bytes(r.choice([0, 4, 8, 100, 17000]) or 1)
            piece = wire.frame(kind, r.randrange(256), r.choice([0, 1, 3, 5, r.getrandbits(32)]),
                               payload)
            if r.random() < 0.1:  # a wrong length
                piece = struct.pack(">I", r.getrandbits(24))[1:] + piece[3:]
            out += piece
        return out

    def flood(self):
        r = self.random
        piece = r.choice([
            wire.frame(wire.PING, 0, 0, b"12345678"),
            wire.frame(wire.SETTINGS, 0, 0, struct.pack(">HI", r.randrange(10), r.getrandbits(32))),
            wire.frame(wire.WINDOW, 0, 0, struct.pack(">I", 0x7fffffff)),
            wire.frame(wire.PRIORITY, 0, 1, b"\0\0\0\3\x10"),
            wire.frame(wire.DATA, 0, 1),
            wire.frame(wire.CONTINUATION, 0, 1, wire.header("a", "b"))])
        start = wire.frame(wire.HEADERS, 0, 1, wire.request_headers(r.choice(self.methods).name))
        return wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0) + start + piece * 2000

    def resets(self):
        """Many streams that are opened and reset at once."""
        out = wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0)
        for number in range(1, 600, 2):
            headers = wire.request_headers(self.random.choice(self.methods).name)
            out += wire.frame(wire.HEADERS, wire.END_HEADERS, number, headers)
            out += wire.frame(wire.RST, 0, number, struct.pack(">I", 8))
        return out

    def odd_headers(self):
        r = self.random
        raw = wire.request_headers(r.choice(self.methods).name, extra=[
            r.choice([("grpc-timeout", "99999999H"), ("grpc-timeout", "-1S"), ("grpc-encoding", "gzip"),
                      ("content-length", "-5"), (":path", "/x"), ("x-bin", "!!!"), ("A", "b"),
                      ("grpc-timeout", "1n"), ("big", "x" * r.choice([10, 9000, 60000]))])])
        if r.random() < 0.5:
            raw = self.mutated(raw)
        return wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0) + \
            wire.frame(wire.HEADERS, wire.END_HEADERS, 1, raw[:16384]) + \
            wire.frame(wire.DATA, wire.END_STREAM, 1, wire.message(b""))

    def calls(self):
        """Calls of existing methods, with arbitrary bodies."""
        r = self.random
        out = wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0)
        for number in range(1, 2 * r.randrange(1, 30), 2):
            method = r.choice(self.methods)
            headers = wire.request_headers(method.name)
            out += wire.frame(wire.HEADERS, wire.END_HEADERS, number, headers)
            for _ in range(r.choice([0, 1, 1, 1, 2, 5])):
                body = self.body(method)
                data = wire.message(body, *r.choice([(), (), (), (1,), (0, r.getrandbits(32)), (255,)]))
                while data:
                    out += wire.frame(wire.DATA, 0, number, data[:16384])
                    data = data[16384:]
            if r.random() < 0.8:
                out += wire.frame(wire.DATA, wire.END_STREAM, number)
        return out

    def one(self):
        kinds = (self.raw_bytes, self.http1, self.odd_frames, self.flood, self.resets,
                 self.odd_headers, self.calls, self.calls, self.calls)
        kind = self.random.choice(kinds)
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        return kind()


def talk(path, data, patience):
    """Sends, reads the answer, and closes, whether the other side accepted the bytes or hung up."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(path)
    connection.setblocking(False)
    received, until = 0, time.monotonic() + patience
    try:
        while time.monotonic() < until:
            readable, writable, _ = select.select([connection], [connection] if data else [], [],
                                                  max(0, until - time.monotonic()))
            if readable:
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                received += len(piece)
            if writable:
                data = data[connection.send(data[:1 << 16]):]
                if not data:
                    until = min(until, time.monotonic() + patience / 4)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        connection.close()
    return received


class WireFuzz(unittest.TestCase):
    def memory(self):
        with open(f"/proc/{self.daemon.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))

    def test_noise(self):
        directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, directory)
        methods = wire.methods(*wire.generate(directory))
        self.daemon = Daemon(workers=1, arguments=["--log-level", "error"])
        self.addCleanup(self.daemon.close)
        path = self.daemon.address[len("unix:"):]
        worker = self.daemon.worker_list()[0]["id"]
        noise = Noise(methods, SEED)
        memory, descriptors = self.memory(), self.descriptors()
        until, sent, answered, slowest = time.monotonic() + SECONDS, 0, 0, 0.0
        checked = 0
        while time.monotonic() < until:
            answered += talk(path, noise.one(), noise.random.choice([0.02, 0.05, 0.2])) > 0
            sent += 1
            self.assertIsNone(self.daemon.process.poll(),
                              f"seed {SEED}, connection {sent}\n{self.daemon.text()}")
            if time.monotonic() > checked + 1:
                checked = time.monotonic()
                self.assertEqual(self.daemon.ctl("status", "--timeout", "60").returncode, 0)
                slowest = max(slowest, time.monotonic() - checked)
                self.assertLess(self.memory() - memory, GROWTH, f"seed {SEED}, connection {sent}")
        self.daemon.wait_for(lambda: self.descriptors() <= descriptors + 4, 20,
                             "the connections to be closed")
        self.daemon.wait_for(lambda: [w["id"] for w in self.daemon.worker_list()] == [worker], 20,
                             "only the real worker to be listed")
        answer = self.daemon.json("list")
        self.assertEqual(answer["jobs"] if isinstance(answer, dict) else answer, [])
        # It still works.
        done = self.daemon.submit("workers=1", "train.epochs=1", "train.max_steps=3", wait=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(f"seed {SEED}: {sent} connections in {SECONDS:g} s, {answered} answered, slowest status "
              f"{slowest:.2f} s, memory +{(self.memory() - memory) >> 20} MiB: {noise.counts}")


if __name__ == "__main__":
    harness.main()
