#!/usr/bin/env python3
"""Monitoring over HTTP: Prometheus' text, read by its own parser; health; rude clients."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import harness
from harness import Daemon, PATIENCE, SOURCE

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{NAME}="(?:[^"\\\n]|\\["\\n])*",?)*)\}})? (\S+)')
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"')
SUFFIXES = {"summary": ("", "_sum", "_count"), "histogram": ("_bucket", "_sum", "_count")}


def parse(text):
    """{(name, labels): value} and {family: type}; every rule of the format is an assertion."""
    samples, types, helps, family = {}, {}, set(), None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helps, f"{name} is explained twice"
            assert line.split(" ", 3)[3].strip(), f"{name} has no help"
            helps.add(name)
            family = name
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and name not in types, line
            assert kind in ("counter", "gauge", "summary", "histogram"), line
            assert (kind == "counter") == name.endswith("_total"), line
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"no sample: {line!r}"
            name, labels, value = match.groups()
            allowed = [family + s for s in SUFFIXES.get(types[family], ("",))]
            assert name in allowed, f"{name} stands under {family}"
            key = (name, tuple(sorted(LABEL.findall(labels or ""))))
            assert key not in samples, f"{key} twice"
            samples[key] = float(value)
            if types[family] == "counter":
                assert samples[key] >= 0, line
    return samples, types


def documented(first, column=0):
    """The metrics in a column of the table of docs/monitoring.md that begins so."""
    with open(os.path.join(SOURCE, "docs/monitoring.md")) as file:
        text = file.read()
    table = text[text.index(f"| {first} |"):].split("\n\n", 1)[0].splitlines()[2:]
    return set(re.findall(r"\bfsdpd_[a-z0-9_]+", "".join(row.split("|")[column + 1] for row in table)))


def all_documented():
    return documented("metric") | documented("figure", 2)


class Dashboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(SOURCE, "examples/grafana/fsdpd.json")) as file:
            cls.dashboard = json.load(file)

    def test_shows_every_metric(self):
        """A metric of the manual has a panel, or the manual says why it has none."""
        used = set(re.findall(r"\bfsdpd_[a-z0-9_]+", json.dumps(self.dashboard)))
        used = {re.sub(r"(_seconds)_(sum|count)$", r"\1", name) for name in used}
        left_out = documented("left out")
        self.assertEqual(used & left_out, set())
        self.assertEqual(used | left_out, all_documented())

    def test_panels(self):
        """Each has its own number and place."""
        panels = self.dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        places = set()
        for panel in panels:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertEqual(cells & places, set(), panel["title"])
            places |= cells


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(workers=2, arguments=["--metrics-listen", "127.0.0.1:0"])
        line = cls.daemon.wait_log("metrics_served")
        cls.port = int(line.rsplit(":", 1)[1])

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def request(self, path, method="GET", body=None, timeout=PATIENCE):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode(), response
        finally:
            connection.close()

    def scrape(self):
        status, text, response = self.request("/metrics")
        self.assertEqual(status, 200)
        self.assertEqual(response.headers["Content-Type"],
                         "text/plain; version=0.0.4; charset=utf-8")
        return parse(text)

    def test_idle(self):
        samples, types = self.scrape()
        self.assertEqual(samples["fsdpd_ready", ()], 1)
        self.assertIn("fsdpd_build_info", types)
        workers = {labels: value for (name, labels), value in samples.items()
                   if name == "fsdpd_workers"}
        self.assertEqual(sum(workers.values()), 2)
        self.assertGreater(samples["process_resident_memory_bytes", ()], 1e6)
        self.assertGreater(samples["process_open_fds", ()], 5)

    def test_job(self):
        daemon = self.daemon
        job = daemon.submit("train.epochs=100000", "train.log_interval=5", "train.evaluate=false",
                            "train.trace_interval=5")
        daemon.wait_step(job, 10)
        self.assertEqual(daemon.ctl("checkpoint", job).returncode, 0)
        samples, types = self.scrape()
        label = (("job_id", job),)
        self.assertEqual(samples["fsdpd_checkpoint_duration_seconds_count", label], 1)
        self.assertGreater(samples["fsdpd_checkpoint_duration_seconds_sum", label], 0)
        self.assertLessEqual(abs(time.time() - samples["fsdpd_checkpoint_time_seconds", label]), 60)
        self.assertEqual(samples["fsdpd_job_state", (("job_id", job), ("state", "RUNNING"))], 1)
        self.assertEqual(samples["fsdpd_jobs", (("state", "RUNNING"),)], 1)
        self.assertEqual(samples["fsdpd_workers", (("state", "busy"),)], 2)
        steps = samples["fsdpd_step_duration_seconds_count", label]
        self.assertEqual(steps % 5, 0)
        self.assertGreaterEqual(samples["fsdpd_step", label], steps)
        self.assertGreater(samples["fsdpd_step_duration_seconds_sum", label], 0)
        # 64 per rank and step, two ranks; an epoch's last step has the remainder.
        self.assertLessEqual(samples["fsdpd_samples_total", label], 128 * steps)
        self.assertGreaterEqual(samples["fsdpd_samples_total", label], 120 * steps)
        self.assertGreater(samples["fsdpd_loss", label], 0)
        ops = {labels[1][1]: value for (name, labels), value in samples.items()
               if name == "fsdpd_op_seconds" and labels[0] == label[0]}
        self.assertLessEqual({"conv2d", "linear_backward_weights", "optimizer", "all_gather"}, set(ops))
        self.assertGreater(ops["conv2d"], 0)
        plan = daemon.show(job)["plan"]
        for collective in plan["collectives"]:
            key = ("fsdpd_comm_bytes_total", (("job_id", job), ("op", collective["kind"])))
            self.assertEqual(samples[key], int(collective["bytes"]) * 2 * steps, key)
        self.assertEqual(samples["fsdpd_memory_bytes", (("job_id", job), ("kind", "plan"))],
                         int(plan["peak_bytes"]))
        daemon.wait_step(job, 40)
        later, _ = self.scrape()
        for (name, labels), value in samples.items():
            if types.get(name) == "counter" or name.endswith(("_sum", "_count")):
                self.assertGreaterEqual(later[name, labels], value, name)
        self.assertGreater(later["fsdpd_samples_total", label],
                           samples["fsdpd_samples_total", label])
        # Every metric of the manual is one of these; some need another job.
        exposed = {name for name in types if name.startswith("fsdpd_")}
        exposed |= {"fsdpd_test_loss", "fsdpd_accuracy", "fsdpd_gradient_norm",
                    "fsdpd_validation_loss", "fsdpd_rank_slowdown", "fsdpd_tokens_per_second",
                    "fsdpd_counted_tokens_per_second", "fsdpd_mfu", "fsdpd_f1", "fsdpd_perplexity",
                    "fsdpd_pearson", "fsdpd_mse", "fsdpd_certificate_expiry_time_seconds",
                    "fsdpd_sample_prefill_tokens_per_second", "fsdpd_sample_tokens_per_second",
                    "fsdpd_sample_wait_seconds", "fsdpd_sample_share"}
        self.assertEqual(all_documented(), exposed)
        self.check_with_promtool()
        self.assertEqual(daemon.ctl("cancel", job).returncode, 0)
        daemon.wait_state(job, "CANCELLED")
        samples, _ = self.scrape()
        self.assertEqual(samples["fsdpd_jobs_finished_total", (("state", "CANCELLED"),)], 1)
        self.assertFalse([labels for _, labels in samples if ("job_id", job) in labels])

    def check_with_promtool(self):
        promtool = os.environ.get("FSDPD_PROMTOOL") or shutil.which("promtool")
        if promtool is None:
            print("promtool is missing (Debian's package prometheus, 100 MB): our parser alone")
            return
        _, text, _ = self.request("/metrics")
        result = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_health_and_others(self):
        self.assertEqual(self.request("/livez")[:2], (200, "ok\n"))
        self.assertEqual(self.request("/readyz")[:2], (200, "ok\n"))
        self.assertEqual(self.request("/readyz?verbose")[0], 200)
        status, text, _ = self.request("/metrics", "HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertEqual(self.request("/nothing")[0], 404)
        self.assertEqual(self.request("/metrics/../../etc/passwd")[0], 404)
        status, _, response = self.request("/metrics", "POST", "x" * 100000)
        self.assertEqual((status, response.headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.request("/metrics", "DELETE")[0], 405)

    def test_rude_clients(self):
        """Silence, rubbish, endless headers and too many of them: the daemon keeps running."""
        sockets = []
        for i in range(60):
            client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            sockets.append(client)
            try:
                if i % 3 == 1:
                    client.sendall(b"\x00\xff GET nonsense\r\n\r\n")
                if i % 3 == 2:
                    client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 20000)
            except OSError:
                pass  # cut off, rightly
        self.assertEqual(self.daemon.ctl("status").returncode, 0)
        for client in sockets:
            client.close()
        self.wait_for_answers()

    def test_all_connections_leave_at_once(self):
        """The maximum of clients that wait for a request, and more that wait for accept: once all
        leave, there is room again."""
        for _ in range(3):
            sockets = [socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
                       for _ in range(40)]
            fsdpd = self.daemon.process.pid
            self.daemon.wait_for(lambda: self.connections(fsdpd) >= 16, 20, "16 connections")
            os.kill(fsdpd, signal.SIGSTOP)  # it finds all of this at once
            for client in sockets:
                client.close()
            os.kill(fsdpd, signal.SIGCONT)
            self.wait_for_answers()

    def connections(self, pid):
        """The number of connections that the process has accepted on the metrics' port."""
        found = set()
        with open("/proc/net/tcp") as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[1] == f"0100007F:{self.port:04X}" and fields[3] == "01":
                    found.add(f"socket:[{fields[9]}]")
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                pass
        return len(found.intersection(links))

    def wait_for_answers(self):
        def answers():
            try:
                return self.request("/livez", timeout=5)[0] == 200
            except (OSError, http.client.HTTPException):
                return False  # cut off, or not accepted yet
        self.daemon.wait_for(answers, 60, "HTTP to answer again")

    def test_address_in_use(self):
        result = subprocess.run([harness.FSDPD, "--config=", "--metrics-listen",
                                 f"127.0.0.1:{self.port}", "--runtime-dir",
                                 self.daemon.root + "/run2", "--state-dir",
                                 self.daemon.root + "/state2"], text=True, timeout=PATIENCE,
                                stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"metrics.listen: cannot listen on 127.0.0.1:{self.port}: Address already",
                      result.stderr)


class Stopping(unittest.TestCase):
    def test_not_ready_while_stopping(self):
        with Daemon(workers=1, arguments=["--metrics-listen", "localhost:0"]) as daemon:
            port = int(daemon.wait_log("metrics_served").rsplit(":", 1)[1])
            # Recent keep-alive connections must not delay the end.
            connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE)
            connection.request("GET", "/readyz")
            self.assertEqual(connection.getresponse().read(), b"ok\n")
            job = daemon.submit("workers=1", "train.epochs=100000")
            daemon.wait_step(job, 1)
            worker = harness.children(daemon.process.pid)[0]
            os.kill(worker, signal.SIGSTOP)  # its job cannot end at a step now
            try:
                daemon.process.terminate()
                daemon.wait_log("draining")
                connection.request("GET", "/readyz")
                response = connection.getresponse()
                self.assertEqual((response.status, response.read()), (503, b"stopping\n"))
                connection.request("GET", "/livez")
                self.assertEqual(connection.getresponse().read(), b"ok\n")
            finally:
                os.kill(worker, signal.SIGCONT)
            self.assertEqual(daemon.process.wait(PATIENCE), 0)
            connection.close()


if __name__ == "__main__":
    harness.main()
