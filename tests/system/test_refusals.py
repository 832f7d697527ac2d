#!/usr/bin/env python3
"""Refusals: peers that cannot prove their identity, insufficient roles, other users' jobs, paths
outside the data roots, and messages that are too large or invalid. Each gets the right code,
nothing changes, and fsdpd keeps serving all others."""

import os
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import wire
from harness import FSDPCTL, FSDPD, JOB, Daemon

try:
    import grpc
except ImportError as error:
    print(f"Python's grpcio is missing: {error}")
    sys.exit(77)

from test_tls import Authority, client, tls_flags

Code = grpc.StatusCode
MIB = 1 << 20


class Case(unittest.TestCase):
    """A daemon, its state, and a check that none of that changes."""

    workers = 1
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        os.chmod(cls.root, 0o755)
        cls.control, cls.link = wire.generate(os.path.join(cls.root))
        cls.methods = wire.methods(cls.control, cls.link)
        cls.prepare()
        cls.daemon = Daemon(workers=cls.workers or 1, expect_workers=cls.workers, arguments=[
            *cls.arguments, *([] if cls.workers else ["--workers", "none"])])

    @classmethod
    def prepare(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()
        shutil.rmtree(cls.root)

    def state(self):
        answer = self.daemon.json("list")
        jobs = answer["jobs"] if isinstance(answer, dict) else answer
        return ([(job["id"], job["state"]) for job in jobs],
                [worker["id"] for worker in self.daemon.worker_list()])

    def setUp(self):
        self.before = self.state()

    def tearDown(self):
        self.assertIsNone(self.daemon.process.poll(), self.daemon.text())
        self.assertEqual(self.state(), self.before)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Certificates(Case):
    workers = 0

    @classmethod
    def prepare(cls):
        cls.authority = Authority(os.path.join(cls.root, "ca"))
        cls.server = cls.authority.issue("server", "here", "--host", "localhost")
        cls.address = f"localhost:{harness.free_port()}"
        cls.arguments = ["--listen", cls.address, *tls_flags(cls.server)]
        cls.ann = cls.authority.issue("user", "ann")
        cls.worker = cls.authority.issue("worker", "node1")
        cls.olga = cls.authority.issue("operator", "olga")

    def tearDown(self):
        self.assertEqual(client(self.address, self.ann, "status").returncode, 0)
        super().tearDown()

    def secure(self, files=None, ca=None):
        """A channel with these certificates; without any if `files` is None."""
        certificates = (read(files[2]), read(files[1])) if files else (None, None)
        credentials = grpc.ssl_channel_credentials(read(ca or self.server[0]), *certificates)
        channel = grpc.secure_channel(self.address, credentials)
        self.addCleanup(channel.close)
        return channel

    def by_name(self, name):
        return next(method for method in self.methods if method.name.endswith("/" + name))

    def refused(self, channel, code, name="ListJobs"):
        found, details = self.by_name(name).call(channel, b"")
        self.assertEqual(found, code, details)
        return details

    def openssl(self, uri, days, use="clientAuth"):
        """A certificate that `fsdpd cert` would not issue."""
        if shutil.which("openssl") is None:
            self.skipTest("openssl is missing: apt-get install openssl")
        stem = os.path.join(self.root, "odd")
        with open(stem + ".ext", "w") as file:
            file.write(f"extendedKeyUsage={use}\n" + (f"subjectAltName={uri}\n" if uri else ""))
        ca = self.authority.directory
        for command in (
                ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", stem + ".key"],
                ["req", "-new", "-key", stem + ".key", "-subj", "/CN=odd", "-out", stem + ".csr"],
                ["x509", "-req", "-in", stem + ".csr", "-CA", ca + "/ca.crt", "-CAkey",
                 ca + "/ca.key", "-CAcreateserial", "-days", str(days), "-extfile", stem + ".ext",
                 "-out", stem + ".crt"]):
            subprocess.run(["openssl", *command], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        return [ca + "/ca.crt", stem + ".crt", stem + ".key"]

    def test_no_certificate(self):
        self.refused(self.secure(), Code.UNAVAILABLE)

    def test_plaintext(self):
        channel = grpc.insecure_channel(self.address)
        self.addCleanup(channel.close)
        self.refused(channel, Code.UNAVAILABLE)
        result = subprocess.run([FSDPCTL, "status", "--address", self.address], text=True,
                                env=dict(os.environ, HOME="/nonexistent", XDG_CONFIG_HOME=""),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertGreater(result.returncode, 0)
        self.assertIn("pass --insecure-tcp to accept that", result.stderr)

    def test_wrong_authority(self):
        other = Authority(os.path.join(self.root, "other"))
        mallory = other.issue("operator", "mallory")
        self.refused(self.secure(mallory), Code.UNAVAILABLE)
        # And the client refuses a server of another authority.
        result = client(self.address, [other.files("x")[0], *self.ann[1:]], "status")
        self.assertEqual(result.returncode, harness.UNREACHABLE)

    def test_wrong_server(self):
        result = client(self.address.replace("localhost", "127.0.0.1"), self.ann, "status")
        self.assertEqual(result.returncode, harness.UNREACHABLE, result.stderr)

    def test_expired(self):
        expired = self.openssl("URI:fsdpd://operator/odd", -1)
        self.refused(self.secure(expired), Code.UNAVAILABLE)
        result = client(self.address, expired, "status")
        self.assertGreater(result.returncode, 0)
        self.assertIn("expired on", result.stderr)

    def serve(self, certificate):
        """A server that speaks TLS and HTTP/2 with this certificate, as far as clients permit: its
        address, and the outcome of each handshake."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate[1], certificate[2])
        context.set_alpn_protocols(["h2"])
        listener = socket.create_server(("localhost", 0))
        self.addCleanup(listener.close)
        outcomes = queue.Queue()

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(harness.PATIENCE)
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        outcomes.put(secured.recv(24))
                except (ssl.SSLError, OSError) as error:
                    outcomes.put(error)
        threading.Thread(target=accept, daemon=True).start()
        return f"localhost:{listener.getsockname()[1]}", outcomes

    def test_expired_server(self):
        """fsdpctl ends the handshake with an expired server; it speaks with a valid one."""
        for days, refused in ((1, False), (-1, True)):
            address, outcomes = self.serve(self.openssl("DNS:localhost", days, "serverAuth"))
            result = client(address, self.ann, "status", "--timeout", "5")
            self.assertGreater(result.returncode, 0)
            outcome = outcomes.get(timeout=harness.PATIENCE)
            self.assertEqual(outcome != wire.PREFACE, refused, outcome)
            if refused:
                self.assertEqual(result.returncode, harness.UNREACHABLE, result.stderr)

    def test_no_identity(self):
        for uri in ("", "URI:https://example.org/ann", "URI:fsdpd://admin/ann",
                    "URI:fsdpd://user/ann,URI:fsdpd://operator/bob"):
            details = self.refused(self.secure(self.openssl(uri, 1)), Code.UNAUTHENTICATED)
            self.assertIn("has no identity of fsdpd", details)

    def test_servers_certificate_as_users(self):
        self.refused(self.secure(self.openssl("URI:fsdpd://user/ann", 1, "serverAuth")),
                     Code.UNAVAILABLE)

    def test_worker_as_user(self):
        channel = self.secure(self.worker)
        for method in self.methods:
            if not method.for_workers:
                code, details = method.call(channel, b"")
                self.assertEqual(code, Code.PERMISSION_DENIED, method.name)
                self.assertIn("you are node1, with the role worker", details)

    def test_user_as_worker(self):
        for files in (self.ann, self.olga):
            channel = self.secure(files)
            for method in self.methods:
                if method.for_workers:
                    code, details = method.call(channel, b"")
                    self.assertEqual(code, Code.PERMISSION_DENIED, method.name)
                    self.assertIn("requires the role worker", details)

    def test_worker_of_another_name(self):
        hello = self.link.WorkerMessage(hello=self.link.Hello(id="node2/cpu:0", device="cpu"))
        code, details = self.by_name("Attach").call(self.secure(self.worker),
                                                    hello.SerializeToString())
        self.assertEqual(code, Code.PERMISSION_DENIED)
        self.assertIn("must begin with node1/", details)

    def test_worker_of_another_host(self):
        """A certificate covers the jobs that run on its host."""
        with open(os.path.join(self.root, "worker.log"), "ab") as log:
            process = subprocess.Popen(
                [FSDPD, "worker", "--config=", "--coordinator", self.address, "--id", "node1/cpu:0",
                 "--data-root", self.daemon.data, *tls_flags(self.worker)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            job = self.daemon.submit("workers=1", "train.epochs=100000")
            self.daemon.wait_step(job, 3)
            set_value = self.link.StoreSetRequest(store=job + "/1", key="k", value=b"v")
            get_value = self.link.StoreGetRequest(store=job + "/1", key="k", timeout_ms=100)
            upload = self.link.UploadStateRequest(job=job, attempt=1, total_size=1000)
            other = self.secure(self.authority.issue("worker", "node2"))
            own = self.secure(self.worker)
            for name, request in (("StoreSet", set_value), ("StoreGet", get_value),
                                  ("UploadState", upload)):
                code, details = self.by_name(name).call(other, request.SerializeToString())
                self.assertEqual(code, Code.PERMISSION_DENIED, name)
                self.assertIn(f"job {job} does not run on fsdpd://worker/node2", details)
            for name, request in (("StoreSet", set_value), ("StoreGet", get_value)):
                code, details = self.by_name(name).call(own, request.SerializeToString())
                self.assertEqual(code, Code.OK, details)
            self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
            self.daemon.wait_state(job, "CANCELLED")
            self.assertEqual(self.daemon.ctl("forget", job).returncode, 0)
            self.check_weights_through_the_coordinator(other)
        finally:
            process.kill()
            process.wait()
        self.daemon.wait_for(lambda: not self.daemon.worker_list(), 20, "the worker to be lost")

    def check_weights_through_the_coordinator(self, other):
        """This worker does not see the files of fsdpd's host: it has another job's weights from fsdpd, other workers have not."""
        first = self.daemon.submit("workers=1", "train.max_steps=2", "checkpoint.every_steps=0")
        self.daemon.wait_state(first, "SUCCEEDED")
        pull = self.control.PullStateDictRequest(id=first)
        code, details = self.by_name("PullSource").call(other, pull.SerializeToString())
        self.assertEqual(code, Code.PERMISSION_DENIED)
        self.assertIn(f"begins with the weights of job {first}", details)
        then = self.daemon.submit("workers=1", "train.max_steps=1", "optimizer.lr=0", f"model.weights={{job: {first}}}")
        self.daemon.wait_state(then, "SUCCEEDED")
        loss = self.daemon.show(first)["metrics"]["test_loss"]
        self.assertEqual(self.daemon.show(then)["metrics"]["test_loss"], loss)
        self.assertEqual(self.daemon.json("eval", first)["loss"], loss)
        for job in self.daemon.json("list"):
            self.assertEqual(self.daemon.ctl("forget", job["id"]).returncode, 0)

    def test_user_as_operator(self):
        self.refused(self.secure(self.ann), Code.PERMISSION_DENIED, "DrainWorkers")


@unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
class Users(Case):
    """Users of the Unix socket, whom the kernel identifies."""

    def setUp(self):
        super().setUp()
        socket = self.daemon.address[len("unix:"):]
        os.chown(socket, -1, harness.OTHER_UID)
        os.chmod(self.daemon.root, 0o755)
        probe = self.as_other("--help")
        if probe.returncode != 0:
            self.skipTest(f"another user cannot run what was built here: {probe.stderr}")

    def as_other(self, *arguments, gid=harness.OTHER_UID):
        if shutil.which("setpriv") is None:
            self.skipTest("setpriv is missing: apt-get install util-linux")
        return subprocess.run(
            ["setpriv", f"--reuid={harness.OTHER_UID}", f"--regid={gid}", f"--groups={harness.OTHER_UID}", FSDPCTL,
             *arguments], text=True, timeout=harness.PATIENCE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd="/",
            env=dict(os.environ, FSDPD_ADDRESS=self.daemon.address, HOME="/nonexistent"))

    def test_socket_is_closed_to_others(self):
        os.chown(self.daemon.address[len("unix:"):], -1, 0)
        self.assertEqual(self.as_other("status").returncode, harness.NOT_PERMITTED)

    def test_another_users_job(self):
        job = self.daemon.submit("workers=2")  # waits for a second worker
        self.before = self.state()
        listed = self.as_other("list")
        self.assertIn(job, listed.stdout, listed.stderr)
        for verb, *words in (("cancel",), ("hold",), ("release",), ("pause",), ("resume",), ("checkpoint",), ("eval",),
                             ("sample", "--tokens", "5")):
            result = self.as_other(verb, job, *words)
            self.assertEqual(result.returncode, harness.NOT_PERMITTED, result.stderr)
            self.assertIn("belongs to root", result.stderr)
        file = os.path.join(self.root, "job.yaml")
        with open(file, "w", encoding="utf-8") as out:
            out.write("name: x\nmodel: {file: net.yaml}\ndata: {dir: .}\n")
        shutil.copy(os.path.join(os.path.dirname(harness.JOB), "net.yaml"), self.root)
        for words in (("eval", job, "--checkpoint", "1"), ("submit", file, "--set", f"model.weights.job={job}"),
                      ("submit", file, "--set", f"model.adapter.job={job}")):
            result = self.as_other(*words)
            self.assertEqual(result.returncode, harness.NOT_PERMITTED, result.stderr)
            self.assertIn("only its owner or an operator may", result.stderr)
        self.assertEqual(self.state(), self.before)
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, 0)
        self.before = self.state()

    def test_not_a_worker(self):
        script = ("import sys; sys.path.insert(0, sys.argv[2]); import grpc, wire, harness\n"
                  "control, link = wire.load(sys.argv[1])\n"
                  "channel = grpc.insecure_channel(sys.argv[3])\n"
                  "for method in wire.methods(control, link):\n"
                  "    if method.for_workers: print(method.call(channel, b'')[0].name)\n")
        result = subprocess.run(
            ["setpriv", f"--reuid={harness.OTHER_UID}", f"--regid={harness.OTHER_UID}", "--clear-groups", sys.executable,
             "-c", script, self.root, os.path.join(harness.SOURCE, "tests/system"),
             self.daemon.address], text=True, timeout=harness.PATIENCE, stdout=subprocess.PIPE, cwd="/",
            stderr=subprocess.PIPE, env=dict(os.environ, srcdir=harness.SOURCE, HOME="/nonexistent",
                                             PYTHONDONTWRITEBYTECODE="1"))
        answers = result.stdout.split()
        self.assertEqual(answers, ["PERMISSION_DENIED"] * 5, result.stderr)


class Paths(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = cls.daemon.data
        cls.outside = os.path.join(cls.root, "outside")
        harness.draw_digits(cls.outside, train=100, test=20)
        os.symlink(cls.outside, os.path.join(data, "way-out"))
        links = os.path.join(data, "links")
        os.mkdir(links)
        for name in os.listdir(cls.outside):
            os.symlink(os.path.join(cls.outside, name), os.path.join(links, name))
        os.symlink("/proc/self/root", os.path.join(data, "magic"))

    def test_outside(self):
        for path in (self.outside, "../outside", f"{self.daemon.data}/../../outside", "/etc",
                     "way-out", "links", "magic" + self.outside, "/nonexistent"):
            result = self.daemon.ctl("submit", JOB, "--set", f"data.dir={path}", "--set",
                                     "workers=1")
            with self.subTest(path=path):
                self.assertEqual(result.returncode, harness.NOT_PERMITTED, result.stderr)
                self.assertIn("is outside the root", result.stderr)

    def test_missing(self):
        result = self.daemon.ctl("submit", JOB, "--set", "data.dir=missing", "--set", "workers=1")
        self.assertEqual(result.returncode, harness.NOT_FOUND, result.stderr)


class Messages(Case):
    def channel(self, *options):
        channel = grpc.insecure_channel(self.daemon.address, options=[
            ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 16 * MIB), *options])
        self.addCleanup(channel.close)
        return channel

    def test_oversized(self):
        payload = b"\x0a" + b"\xff\xff\xff\x08" + b"x" * (17 * MIB)
        channel = self.channel()
        for method in self.methods:
            code, details = method.call(channel, payload, timeout=harness.PATIENCE)
            with self.subTest(method=method.name):
                self.assertEqual(code, Code.RESOURCE_EXHAUSTED, details)

    def test_specs_have_a_limit(self):
        channel = self.channel()
        for method in self.methods:
            if method.for_workers or method.sends_stream:
                continue
            limit = 8 * MIB if method.name.endswith(("/SubmitJob", "/PlanJob", "/ResumeJob")) else MIB
            code, details = method.call(channel, b"\0" * (limit + 1), timeout=harness.PATIENCE)
            with self.subTest(method=method.name):
                self.assertEqual(code, Code.RESOURCE_EXHAUSTED, details)
                self.assertIn(f"at most {limit} are accepted", details)

    def test_malformed(self):
        channel = self.channel()
        for payload in (b"\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xc3\x28", b"\x07", b"\x00\x00"):
            for method in self.methods:
                code, details = method.call(channel, payload, timeout=harness.PATIENCE)
                with self.subTest(method=method.name, payload=payload):
                    if payload == b"\xff\xff\xff":
                        self.assertEqual(code, Code.INVALID_ARGUMENT, details)
                    # A field that a message does not have may hold anything.
                    self.assertNotIn(code, (Code.INTERNAL, Code.UNKNOWN, Code.UNAVAILABLE,
                                            Code.DEADLINE_EXCEEDED), details)
        code, details = next(method for method in self.methods if method.name.endswith("/GetJob")
                             ).call(channel, b"\x0a\x02\xc3\x28")
        self.assertEqual(code, Code.INVALID_ARGUMENT, "text that is not UTF-8: " + details)

    def test_large_headers(self):
        channel = self.channel()
        for method in self.methods:
            code, details = method.call(channel, b"", metadata=(("x-large", "x" * 100000),))
            with self.subTest(method=method.name):
                self.assertIn(code, (Code.RESOURCE_EXHAUSTED, Code.INTERNAL, Code.UNAVAILABLE),
                              details)

    def test_compressed(self):
        stub = self.channel().unary_unary("/fsdpd.v1.Control/GetVersion")
        with self.assertRaises(grpc.RpcError) as caught:
            stub(b"x" * MIB, timeout=harness.PATIENCE, compression=grpc.Compression.Gzip)
        self.assertNotEqual(caught.exception.code(), Code.DEADLINE_EXCEEDED)

    def test_unknown_method(self):
        stub = self.channel().unary_unary("/fsdpd.v1.Control/DropTables")
        with self.assertRaises(grpc.RpcError) as caught:
            stub(b"", timeout=harness.PATIENCE)
        self.assertEqual(caught.exception.code(), Code.UNIMPLEMENTED)


del Case  # has no tests of its own

if __name__ == "__main__":
    harness.main()
