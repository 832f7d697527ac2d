"""What the tests of fsdpd-follow share: its package with the messages, a small job, and what a tracker must have of
it."""

import csv
import gzip
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import harness

CLIENTS = os.path.join(harness.SOURCE, "clients/python")
LABEL = "kind=followed"


def make_site(directory):
    """A directory for sys.path with fsdpd and fsdpd_follow, as a wheel has them."""
    import grpc_tools
    site = os.path.join(directory, "site")
    for package in ("fsdpd", "fsdpd_follow"):
        shutil.copytree(os.path.join(CLIENTS, package), os.path.join(site, package),
                        ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "u+w", site], check=True)
    protos = os.path.join(harness.SOURCE, "proto")
    names = [f"fsdpd/v1/{name}.proto"
             for name in ("control", "diagnosis", "event", "job", "log", "plan", "spec", "trace")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}",
                    "-I" + os.path.join(os.path.dirname(grpc_tools.__file__), "_proto"), f"--python_out={site}",
                    f"--grpc_python_out={site}", *names], check=True)
    return site


def start_daemon(directory):
    """With 160 digits: 10 steps of 16 are an epoch."""
    data = os.path.join(directory, "digits")
    harness.draw_digits(data, train=160, test=32)
    return harness.Daemon(data=data)


def submit(daemon, *settings):
    return daemon.submit("train.batch_size=8", "train.test_batch_size=16", "train.log_interval=1", "train.epochs=2",
                         "labels.kind=followed", *settings)


def expected(daemon, job):
    """What fsdpctl metrics --csv has: sorted (figure, step, value), as often as they occur; and how many rows."""
    result = daemon.ctl("metrics", job, "--csv")
    found, rows = [], list(csv.DictReader(io.StringIO(result.stdout)))
    for row in rows:
        for name, text in row.items():
            if name not in ("attempt", "time", "kind", "step", "set") and text:
                suffix = f"/{row['set']}" if row["set"] and name != "epoch" else ""
                found.append((name + suffix, int(row["step"]), float(text)))
    return sorted(found), len(rows)


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP metrics as JSON and keeps a point per name, attributes and time. `refusals`: the number of requests
    that are answered with 503 first."""

    def __init__(self, refusals=0):
        super().__init__(("127.0.0.1", 0), Receiver)
        self.refusals, self.points, self.resent, self.messages = refusals, {}, 0, []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def take(self, message):
        self.messages.append(message)
        for of_job in message["resourceMetrics"]:
            for metric in of_job["scopeMetrics"][0]["metrics"]:
                for point in metric["gauge"]["dataPoints"]:
                    key = (metric["name"], json.dumps(point["attributes"]), point["timeUnixNano"],
                           json.dumps(of_job["resource"]))
                    self.resent += key in self.points
                    self.points[key] = float(point["asDouble"])

    def of_job(self, job=""):
        """The points of one job, or of the only one: (name, attributes, time), value."""
        words = json.dumps({"key": "fsdpd.job.id", "value": {"stringValue": job}})
        return [(key[:3], value) for key, value in self.points.items() if not job or words in key[3]]

    def figures(self, job=""):
        """As `expected`: the step is a gauge of the same time."""
        steps, found = {}, []
        for (name, _, at), value in self.of_job(job):
            if name == "fsdpd.job.step":
                steps.setdefault(at, []).append(int(value))
        for (name, _, at), value in self.of_job(job):
            if name not in ("fsdpd.job.step", "fsdpd.job.state", "fsdpd.job.parameters"):
                step, = set(steps[at])
                found.append((name.removeprefix("fsdpd.job."), step, value))
        return sorted(found)


class Receiver(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        refused = self.server.refusals > 0
        if refused:
            self.server.refusals -= 1
        elif self.path == "/v1/metrics":
            self.server.take(json.loads(body))
        self.send_response(503 if refused else 200)
        self.end_headers()
        self.wfile.write(b"later" if refused else b"{}")


class WandbServer(http.server.ThreadingHTTPServer):
    """What of a W&B server a run needs without artifacts: GraphQL, as far as the package asks, and the stream of a
    run's files, whose lines have their numbers. `refusals`: of requests of that stream that are answered with 503
    first."""

    def __init__(self, refusals=0):
        super().__init__(("127.0.0.1", 0), WandbReceiver)
        self.refusals, self.asked, self.lines, self.resent, self.run, self.done = refusals, [], {}, 0, {}, None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def rows(self):
        return [json.loads(line) for _, line in sorted(self.lines.get("wandb-history.jsonl", {}).items())]

    def answer(self, operation, variables):
        self.asked.append(operation)
        if operation == "Viewer":
            return {"viewer": {"id": "1", "entity": "tester", "username": "tester", "flags": "{}",
                               "teams": {"edges": []}}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        project = {"id": "2", "name": variables.get("project"), "entity": {"id": "3", "name": "tester"}}
        if operation == "UpsertBucket":
            new = not self.run
            self.run.update({key: value for key, value in variables.items() if value is not None})
            return {"upsertBucket": {"inserted": new, "bucket": {
                "id": "4", "name": self.run["name"], "displayName": self.run.get("displayName"), "description": None,
                "config": self.run.get("config", "{}"), "sweepName": None, "project": project,
                "historyLineCount": len(self.rows())}}}
        if operation == "RunResumeStatus":
            lines = {name: [line for _, line in sorted(lines.items())] for name, lines in self.lines.items()}
            tail = {f"{name}{what}": value for name, file in
                    (("history", "wandb-history.jsonl"), ("events", "wandb-events.jsonl"), ("log", "output.log"))
                    for what, value in (("LineCount", len(lines.get(file, []))),
                                        ("Tail", json.dumps(lines.get(file, [])[-1:])))}
            return {"model": {**project, "bucket": {
                **tail, "id": "4", "name": self.run["name"], "config": self.run.get("config", "{}"), "tags": [],
                "summaryMetrics": "{}", "wandbConfig": '{"t": 1}'} if self.run else None}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": "4", "uploadHeaders": [], "files": [
                {"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]}}
        return {}

    def take(self, message):
        for name, part in message.get("files", {}).items():
            lines = self.lines.setdefault(name, {})
            for number, line in enumerate(part["content"], part["offset"]):
                self.resent += number in lines
                lines[number] = line
        if message.get("complete"):
            self.done = message["exitcode"]


class WandbReceiver(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer, refused, message = {}, False, {}
        if self.path == "/graphql" or self.path.endswith("/file_stream"):
            message = json.loads(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        if self.path == "/graphql":
            answer = {"data": self.server.answer(re.search(r"(?:query|mutation) (\w+)", message["query"])[1],
                                                 message.get("variables") or {})}
        elif self.path.endswith("/file_stream"):
            refused = self.server.refusals > 0
            self.server.refusals -= refused
            if not refused:
                self.server.take(message)
        self.send_response(503 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_PUT = do_POST  # of a file
