#!/usr/bin/env python3
"""Mutual TLS over TCP: a private authority, a job on a worker that attaches with a certificate, and
certificates that change while everything runs. test_refusals.py tests the refusals."""

import base64
import glob
import hmac
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import harness
from harness import FSDPCTL, FSDPD, Daemon, free_port

FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")


class Authority:
    """`fsdpd cert` in a directory."""

    def __init__(self, directory):
        self.directory = directory
        self.run("init", directory)

    @staticmethod
    def run(*arguments):
        result = subprocess.run([FSDPD, "cert", *arguments], text=True, timeout=harness.PATIENCE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if result.returncode != 0:
            raise AssertionError(f"fsdpd cert {arguments}: {result.returncode}: {result.stderr}")
        return result.stdout

    def issue(self, kind, name, *arguments):
        self.run("issue", self.directory, kind, name, *arguments)
        return self.files(f"{kind}-{name}")

    def files(self, stem):
        return [os.path.join(self.directory, name) for name in ("ca.crt", f"{stem}.crt",
                                                                f"{stem}.key")]


def tls_flags(files):
    return ["--tls-ca", files[0], "--tls-certificate", files[1], "--tls-key", files[2]]


def client(address, files, *arguments, timeout=harness.PATIENCE):
    return subprocess.run([FSDPCTL, *arguments, "--address", address, *tls_flags(files)], text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)


class Webhook:
    """A server over TLS that answers 503 to its first request, and checks signatures as the specification of
    Standard Webhooks says."""

    KEY = bytes(range(32))

    def __init__(self, files):
        self.requests = requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((dict(self.headers), body))
                self.send_response(503 if len(requests) == 1 else 204)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.HTTPServer(("localhost", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[1], files[2])
        self.ca = files[0]
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def configuration(self, root):
        secret, path = os.path.join(root, "secret"), os.path.join(root, "fsdpd.yaml")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(b"whsec_" + base64.b64encode(self.KEY) + b"\n")
        with open(path, "w") as file:
            file.write(f"limits: {{notice_retry_seconds: 0.1}}\nnotify:\n  hook:\n    url: https://localhost:"
                       f"{self.server.server_port}/fsdpd\n    secret_file: {secret}\n    ca_file: {self.ca}\n")
        return path

    def check(self, case, kind, job):
        identities = set()
        for headers, body in self.requests:
            headers = {key.lower(): value for key, value in headers.items()}
            signed = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body))
            signature = base64.b64encode(hmac.digest(self.KEY, signed, "sha256")).decode()
            case.assertEqual(headers["webhook-signature"], f"v1,{signature}")
            case.assertLess(abs(time.time() - int(headers["webhook-timestamp"])), 300)
            identities.add(headers["webhook-id"])
            notice = json.loads(body)
            case.assertEqual((notice["type"], notice["data"]["job"]), (kind, job))
        case.assertEqual(len(identities), 1)


class Tls(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.authority = Authority(os.path.join(self.root, "ca"))
        self.server = self.authority.issue("server", "here", "--host", "localhost", "--host",
                                           "127.0.0.1")
        self.ann = self.authority.issue("user", "ann")
        self.address = f"localhost:{free_port()}"

    def start(self, workers=0, config=None, arguments=(), environment=()):
        daemon = Daemon(workers=workers or 1, arguments=[
            *(["--config", config] if config else []), *([] if workers else ["--workers", "none"]), "--listen", self.address,
            *tls_flags(self.server), *arguments], expect_workers=workers, environment=environment)
        self.addCleanup(daemon.close)
        return daemon

    def worker(self, daemon, files, identity=None):
        log = open(os.path.join(self.root, "worker.log"), "ab")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [FSDPD, "worker", "--config=", "--coordinator", self.address,
             *(["--id", identity] if identity else []),
             "--data-root", daemon.data, *tls_flags(files)], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log)

        def end():
            process.terminate()
            process.wait(harness.PATIENCE)
        self.addCleanup(end)
        return process

    def test_a_job(self):
        """Submitted, trained and pulled by identities of certificates alone; a webhook learns of its end."""
        hook = Webhook(self.server)
        self.addCleanup(hook.close)
        daemon = self.start(config=hook.configuration(self.root))
        harness_data = daemon.data
        self.worker(daemon, self.authority.issue("worker", "node1"), "node1/cpu:0")
        daemon.wait_for(lambda: len(daemon.worker_list()) == 1, 20, "the worker to attach")
        result = client(self.address, self.ann, "submit", harness.JOB, "--id", "tls", "--set",
                        f"data.dir={harness_data}", "--set", "workers=1", "--set",
                        "train.epochs=1", "--set", "notify.to=hook", "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        daemon.wait_for(lambda: len(hook.requests) == 2, harness.PATIENCE, "the notice")
        hook.check(self, "job.end", "tls")
        history = daemon.wait_for(lambda: [entry["reason"] for entry in daemon.json("history", "tls")
                                           if entry["reason"]["code"].startswith("NOTICE_")][1:],
                                  harness.PATIENCE, "the outcome of the notice")
        self.assertEqual([reason["code"] for reason in history], ["NOTICE_SENT"])
        refused = client(self.address, self.ann, "submit", harness.JOB, "--set", "notify.to=hok")
        self.assertIn("notify.to: expected a name of notify in fsdpd.yaml: hook, found 'hok'", refused.stderr)
        weights = os.path.join(self.root, "weights.safetensors")
        result = client(self.address, self.ann, "pull", "tls", "-o", weights)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("conv1.weight", harness.read_safetensors(weights)[0])
        # The address counts too, not only the name.
        result = client(self.address.replace("localhost", "127.0.0.1"), self.ann, "status")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_files_of_ones_own(self):
        """fsdpctl finds its certificate at the default path."""
        self.start()
        directory = os.path.join(self.root, "home/fsdpd/tls")
        os.makedirs(directory)
        for source, name in zip(self.ann, ("ca.crt", "client.crt", "client.key")):
            shutil.copy(source, os.path.join(directory, name))
        result = subprocess.run([FSDPCTL, "status", "--address", self.address], text=True,
                                env=dict(os.environ, XDG_CONFIG_HOME=self.root + "/home"),
                                timeout=harness.PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_no_silent_downgrade(self):
        """TLS files and --insecure-tcp exclude each other."""
        result = client(self.address, self.ann, "status", "--insecure-tcp")
        self.assertEqual(result.returncode, harness.USAGE, result.stderr)
        self.assertIn("use only one of them", result.stderr)
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("FSDPD_")}
        result = subprocess.run([FSDPCTL, "status", "--address", self.address], text=True,
                                env=dict(environment, FSDPD_INSECURE_TCP="true",
                                         FSDPD_TLS_KEY=self.ann[2]),
                                timeout=harness.PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, harness.USAGE, result.stdout)
        # Files at the default path are ignored, with a note.
        directory = os.path.join(self.root, "home/fsdpd/tls")
        os.makedirs(directory)
        shutil.copy(self.ann[0], directory)
        result = subprocess.run([FSDPCTL, "status", "--address", self.address], text=True,
                                env=dict(environment, FSDPD_INSECURE_TCP="true",
                                         XDG_CONFIG_HOME=self.root + "/home"),
                                timeout=harness.PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, harness.UNREACHABLE, result.stdout)
        self.assertIn("tls/ca.crt is ignored", result.stdout)

    def test_missing_files(self):
        """fsdpctl names its wrong flag; fsdpd, the wrong key."""
        missing = os.path.join(self.root, "missing")
        for number, flag in enumerate(("--tls-ca", "--tls-certificate", "--tls-key")):
            files = [*self.ann[:number], missing, *self.ann[number + 1:]]
            result = client(self.address, files, "status")
            self.assertEqual(result.returncode, harness.USAGE, result.stderr)
            self.assertIn(f"fsdpctl: {flag} (or FSDPD_", result.stderr)
            self.assertIn(f"cannot open {missing}", result.stderr)
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("FSDPD_")}
        result = subprocess.run([FSDPCTL, "status", "--address", self.address, "--tls-ca", self.ann[0]],
                                env=dict(environment, XDG_CONFIG_HOME=self.root), text=True, timeout=harness.PATIENCE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, harness.USAGE, result.stdout)
        self.assertIn("--tls-certificate (or FSDPD_TLS_CERTIFICATE) is not set", result.stdout)
        self.assertNotIn("tls.", result.stdout)
        result = subprocess.run([FSDPD, "worker", "--config=", "--coordinator", self.address, "--data-root",
                                 self.root, *tls_flags([missing, *self.ann[1:]])], text=True, timeout=harness.PATIENCE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertIn(f"tls.ca: cannot open {missing}", result.stdout)

    def test_certificates_of_the_wrong_use(self):
        """Each side refuses to start with a certificate that the other rejects."""
        result = client(self.address, self.server, "status")
        self.assertEqual(result.returncode, harness.USAGE, result.stderr)
        self.assertIn("not for clients", result.stderr)
        result = subprocess.run([FSDPD, "coordinator", "--config=", "--runtime-dir",
                                 self.root + "/run", "--state-dir", self.root + "/state",
                                 "--listen", self.address, *tls_flags(self.ann)], text=True,
                                timeout=harness.PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(result.returncode, harness.USAGE, result.stdout)
        self.assertIn("not for servers", result.stdout)

    def test_renewal(self):
        """Another certificate, of another authority, without a restart; errors change nothing."""
        daemon = self.start()
        watched = client(self.address, self.ann, "status")
        self.assertEqual(watched.returncode, 0, watched.stderr)
        other = Authority(os.path.join(self.root, "other"))
        fresh = other.issue("server", "here", "--host", "localhost")
        bob = other.issue("user", "bob")
        self.assertEqual(client(self.address, bob, "status").returncode, harness.UNREACHABLE)
        # A key that belongs to another certificate.
        shutil.copy(fresh[1], self.server[1])
        daemon.process.send_signal(signal.SIGHUP)
        line = daemon.wait_log("reload_refused")
        self.assertIn("the key does not match the certificate", line)
        self.assertEqual(client(self.address, self.ann, "status").returncode, 0)
        for source, target in zip(fresh, self.server):
            shutil.copy(source, target)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_log("certificate_read")
        daemon.wait_log(" reloaded ")
        self.assertEqual(client(self.address, bob, "status").returncode, 0)
        # ann's own ca.crt is the new one too now, but not the authority that signed her
        # certificate.
        self.assertEqual(client(self.address, self.ann, "status").returncode, harness.UNREACHABLE)

    def expect_end(self, daemon, said, metrics):
        """`status`, /readyz and the metrics say this of the certificate's end."""
        self.assertRegex(daemon.ctl("status").stdout, f"(?m)^warning     {said}")
        self.assertRegex(daemon.json("status")["daemon"]["warning"], said)
        port = re.findall(r"metrics_served address=\S+:(\d+)", daemon.text())[-1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=harness.PATIENCE) as ready:
                code, text = ready.status, ready.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=harness.PATIENCE) as response:
            ends = re.findall(r"(?m)^fsdpd_certificate_expiry_time_seconds (\S+)$", response.read().decode())
        self.assertRegex(text, said)
        self.assertEqual(len(ends), 1)
        self.assertAlmostEqual(float(ends[0]), metrics, delta=600)
        return code, text

    def expect_completions(self, daemon):
        """http.listen has the same certificate: a token of an operator's, asked for over TLS, opens it, and nothing else does."""
        issued = subprocess.run([FSDPD, "token", "issue", "ann", "--config=", "--coordinator", self.address,
                                 *tls_flags(self.authority.issue("operator", "olga"))], stdout=subprocess.PIPE, text=True, check=True)
        port = re.search(r"http_served address=0\.0\.0\.0:(\d+) tls", daemon.wait_log("http_served"))[1]

        def ask(url, *options):
            result = subprocess.run(["curl", "-sS", "-w", "%{http_code}", url, *options], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, timeout=harness.PATIENCE)
            return result.returncode, result.stdout
        trusted = ("--cacert", self.server[0], "-H", "Authorization: Bearer " + issued.stdout.strip())
        url = f"https://localhost:{port}/v1/models"
        self.assertEqual(ask(url, *trusted), (0, '{"object": "list", "data": []}\n200'))
        self.assertEqual(ask(url, *trusted, "-H", f"Origin: https://localhost:{port}")[1][-3:], "200")
        self.assertEqual(ask(url, *trusted, "-H", f"Origin: http://localhost:{port}")[1][-3:], "403")
        self.assertEqual(ask(url, *trusted, "-H", "Host: localhost")[1][-3:], "421")
        self.assertEqual(ask(url, "--cacert", self.server[0])[1][-3:], "401")
        self.assertIn(ask(url.replace("https", "http"), *trusted)[0], (52, 56))  # closed without an answer
        self.assertEqual(ask(url, *trusted, "--tls-max", "1.1")[0], 35)
        self.assertEqual(ask(url, *trusted[2:])[0], 60)  # an authority that curl does not know
        return ("localhost", int(port))

    def test_a_certificate_that_ends_soon(self):
        self.server = self.authority.issue("server", "soon", "--host", "localhost", "--days", "12")
        daemon = self.start(arguments=["--metrics-listen", "127.0.0.1:0", "--http-listen", "0.0.0.0:0"])
        place = self.expect_completions(daemon)
        before = ssl.get_server_certificate(place)
        said = r"the server's certificate expires in 1[12] days, at 2\d{3}-"
        self.assertIn("WARNING certificate_ends", daemon.wait_log("the server's certificate expires"))
        code, text = self.expect_end(daemon, said, time.time() + 12 * 86400)
        self.assertEqual((code, text.split("\n")[0]), (200, "ok"))
        # The next one is good for longer.
        for source, target in list(zip(self.authority.files("server-here"), self.server))[1:]:
            shutil.copy(source, target)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_log("certificate_read")
        self.assertEqual(daemon.json("status")["daemon"]["warning"], "")
        with open(self.server[1], encoding="ascii") as file:
            renewed = file.read()
        self.assertNotIn(before.strip(), renewed)
        self.assertIn(ssl.get_server_certificate(place).strip(), renewed)  # of http.listen, too

    @unittest.skipUnless(FAKETIME, "libfaketime is not installed")
    def test_a_certificate_that_expires(self):
        """It expires while fsdpd serves."""
        offset = os.path.join(self.root, "offset")
        with open(offset, "w") as file:
            file.write("+0s\n")
        ends = time.time() + 40 * 86400
        self.server = self.authority.issue("server", "soon", "--host", "localhost", "--days", "40")
        daemon = self.start(arguments=["--metrics-listen", "127.0.0.1:0"], environment={
            "LD_PRELOAD": FAKETIME[0], "FAKETIME_TIMESTAMP_FILE": offset, "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
        self.assertEqual(daemon.json("status")["daemon"]["warning"], "")
        with open(offset + ".new", "w") as file:
            file.write(f"+{41 * 86400}s\n")
        os.rename(offset + ".new", offset)
        self.assertIn("ERROR certificate_ends", daemon.wait_log("the server's certificate expired"))
        code, text = self.expect_end(daemon, "the server's certificate (has )?expired", ends)
        self.assertEqual((code, text.split("\n")[0]), (503, "the server's certificate has expired"))

    def test_a_reload_is_done_as_a_whole(self):
        """An error elsewhere in the configuration keeps the old certificate."""
        config = os.path.join(self.root, "fsdpd.yaml")
        with open(config, "w") as file:
            file.write("log_level: info\n")
        daemon = self.start(config=config)
        other = Authority(os.path.join(self.root, "other"))
        for source, target in zip(other.issue("server", "here", "--host", "localhost"), self.server):
            shutil.copy(source, target)
        bob = other.issue("user", "bob")
        with open(config, "w") as file:
            file.write("operator_group: no-such-group\n")
        daemon.process.send_signal(signal.SIGHUP)
        self.assertIn("no group no-such-group", daemon.wait_log("reload_refused"))
        self.assertEqual(client(self.address, bob, "status").returncode, harness.UNREACHABLE)
        os.unlink(config)

    def test_worker_takes_a_renewed_certificate(self):
        """A worker whose connection breaks returns with the certificate that the file then has."""
        daemon = self.start()
        files = self.authority.issue("worker", "node1")
        process = self.worker(daemon, files, "node1/cpu:0")
        daemon.wait_for(lambda: len(daemon.worker_list()) == 1, 20, "the worker to attach")
        other = Authority(os.path.join(self.root, "other"))
        fresh = other.issue("server", "here", "--host", "localhost") + \
            other.issue("worker", "node1")[1:]
        for source, target in zip(fresh, self.server + files[1:]):
            shutil.copy(source, target)
        daemon.kill(signal.SIGTERM)
        daemon.log.close()
        daemon.start()
        daemon.wait_for(lambda: len(daemon.worker_list()) == 1, 30, "the worker to attach again")
        self.assertIsNone(process.poll())

    def test_a_workers_id_begins_with_its_certificates_name(self):
        """docs/clusters.md promises it: the host may have another name."""
        daemon = self.start()
        self.worker(daemon, self.authority.issue("worker", "rack7.node1"))
        self.worker(daemon, self.authority.issue("worker", "rack7.node2"), "cpu:0")  # as systemd
        daemon.wait_for(lambda: len(daemon.worker_list()) == 2, 20, "both workers to attach")
        self.assertEqual(sorted(row["id"] for row in daemon.worker_list()),
                         ["rack7.node1/cpu", "rack7.node2/cpu:0"])

    def test_a_refused_worker_logs_the_cure(self):
        daemon = self.start()
        self.worker(daemon, self.authority.issue("worker", "node1"), "node2/cpu")

        def refusals():
            with open(os.path.join(self.root, "worker.log")) as log:
                return [line for line in log if "code=PERMISSION_DENIED" in line]
        line = daemon.wait_for(refusals, 20, "the worker to log the refusal")[0]
        self.assertIn("ERROR attach_refused ", line)
        self.assertIn("must begin with node1/; set worker.id, or issue a certificate", line)

    def test_files_of_certificates(self):
        """Modes, files that are kept, and messages."""
        directory = self.authority.directory
        for name in os.listdir(directory):
            mode = os.stat(os.path.join(directory, name)).st_mode & 0o777
            self.assertEqual(mode, 0o600 if name.endswith(".key") else 0o644, name)
        again = subprocess.run([FSDPD, "cert", "init", directory], text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertGreater(again.returncode, 0)
        self.assertIn("an authority exists already", again.stderr)
        # The key may be kept elsewhere, as docs/security.md advises: that is no reason to make a
        # new one.
        with open(directory + "/ca.crt", "rb") as file:
            certificate = file.read()
        os.rename(directory + "/ca.key", self.root + "/ca.key")
        again = subprocess.run([FSDPD, "cert", "init", directory], text=True,
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertGreater(again.returncode, 0)
        self.assertIn("ca.crt: an authority exists already", again.stderr)
        self.assertFalse(os.path.exists(directory + "/ca.key"))
        with open(directory + "/ca.crt", "rb") as file:
            self.assertEqual(file.read(), certificate)
        os.rename(self.root + "/ca.key", directory + "/ca.key")
        shown = Authority.run("show", self.ann[1])
        self.assertIn("URI:fsdpd://user/ann", shown)
        self.assertIn("clients", shown)
        self.assertIn("DNS:localhost", Authority.run("show", self.server[1]))
        for words in (["issue", directory, "admin", "x"], ["issue", directory, "user", "../x"],
                      ["issue", directory, "user", "x", "--host", "y"], ["init"], ["sell"],
                      ["show", self.ann[1], "--host", "x"], ["show", self.ann[1], "--days", "3"],
                      ["init", directory + "2", "--out", directory],
                      ["init", directory + "2", "--host", "x"],
                      ["issue", directory, "server", "x", "--host", "a,URI:fsdpd://operator/x"]):
            result = subprocess.run([FSDPD, "cert", *words], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE)
            self.assertEqual(result.returncode, 2, words)
        os.chmod(self.ann[2], 0o644)
        self.start()
        result = client(self.address, self.ann, "status")
        self.assertEqual(result.returncode, harness.USAGE)
        self.assertIn("every user may use this private key", result.stderr)


if __name__ == "__main__":
    harness.main()
