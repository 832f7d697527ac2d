#!/usr/bin/env python3
"""fsdpd-follow with the trackers themselves (make check-live): MLflow's server and store, W&B's files and what its
package sends to a server, trackio's store, and OTLP's messages as opentelemetry reads them. Each follower is killed
twice between the tracker and its place, and started again: every figure of the job is there once.
$FSDPD_LIVE_PYTHON_TRACKERS names a Python with mlflow, wandb, trackio, opentelemetry-proto, grpcio, grpcio-tools,
googleapis-common-protos, numpy and pyyaml."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "../system")]
import following
import harness

# Kills itself just before a place is written, which the tracker has then.
DRIVER = """
import os, signal, sys
from fsdpd_follow import follower, main, place
follower.EVENTS_MAX, writes, write, number = 9, [], place.Places.write, int(sys.argv.pop(1))
def write_or_die(places, given):
    writes.append(1)
    if len(writes) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    write(places, given)
place.Places.write = write_or_die
main.main()
"""
KILLS = (2, 4)


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(subprocess.run, ["rm", "-rf", cls.directory], check=True)
        cls.site = following.make_site(cls.directory)
        sys.path.insert(0, cls.site)
        cls.daemon = following.start_daemon(cls.directory)
        cls.addClassCleanup(cls.daemon.close)
        cls.job = following.submit(cls.daemon)
        cls.daemon.wait_state(cls.job, "SUCCEEDED")
        cls.expected, cls.rows = following.expected(cls.daemon, cls.job)

    def lives(self, tracker, *arguments, environment=()):
        place = os.path.join(self.directory, self.id())
        for number in (*KILLS, 0):
            ended = subprocess.run(
                [sys.executable, "-c", DRIVER, str(number), tracker, self.job, "--project", "tests", "--place", place,
                 "--address", self.daemon.address, *arguments], cwd=self.directory, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=dict(os.environ, PYTHONPATH=self.site, **dict(environment)))
            self.assertEqual(ended.returncode, -signal.SIGKILL if number else 0, ended.stdout)
        return place

    def log(self):
        """The file of --artifact log."""
        import fsdpd
        with fsdpd.connect(self.daemon.address) as client:
            return "".join(f"{line.time.ToJsonString()} {line.attempt} {line.rank} {line.text}\n"
                           for line in client.logs(self.job))

    def assert_params(self, given):
        self.assertEqual([given[name] for name in ("train.batch_size", "fsdp.strategy", "labels.kind")],
                         ["8", "full_shard", "followed"])

    def test_mlflow(self):
        import mlflow
        store = f"sqlite:///{self.directory}/mlflow.db"
        port = harness.free_port()
        with open(os.path.join(self.directory, "server.log"), "w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--artifacts-destination",
                 os.path.join(self.directory, "files"), "--port", str(port), "--workers", "1"], stdout=log, stderr=log,
                start_new_session=True)
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGKILL)
        url = f"http://127.0.0.1:{port}"

        def answers():
            try:
                return urllib.request.urlopen(url + "/health", timeout=5).status == 200
            except OSError:
                return False

        self.daemon.wait_for(answers, harness.PATIENCE, "MLflow's server")
        self.lives("mlflow", "--url", url, "--artifact", "weights", "--artifact", "log")
        client = mlflow.MlflowClient(tracking_uri=url)
        run, = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        self.assertEqual((run.info.status, run.info.run_name, run.data.tags["fsdpd.state"]),
                         ("FINISHED", self.job, "SUCCEEDED"))
        self.assert_params(run.data.params)
        self.assertEqual(sorted((name, metric.step, metric.value) for name in run.data.metrics
                                for metric in client.get_metric_history(run.info.run_id, name)), self.expected)
        self.assertEqual({file.path for file in client.list_artifacts(run.info.run_id)},
                         {f"{self.job}.safetensors", f"{self.job}.log"})

    def test_wandb_offline(self):
        from fsdpd_follow import to_wandb
        from wandb.proto import wandb_internal_pb2 as internal
        place = self.lives("wandb", "--offline", "--artifact", "log")
        files = sorted(os.path.join(directory, name) for directory, _, names in os.walk(os.path.join(place, "wandb"))
                       if "latest-run" not in directory for name in names if name.endswith(".wandb"))
        self.assertEqual(len(files), len(KILLS) + 1)
        found, config, staged, last = [], {}, [], 0
        for path in files:  # in the order of their time, as `wandb sync` reads them
            for record in map(internal.Record.FromString, to_wandb.records(path)):
                for item in record.run.config.update if record.HasField("run") else record.config.update:
                    config[item.key or item.nested_key[0]] = json.loads(item.value_json)
                logged = record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
                for entry in logged.manifest.contents:  # what `wandb sync` sends, as it lies beside the run now
                    with open(entry.local_path, encoding="utf-8") as file:
                        staged.append((entry.path, entry.size, file.read()))
                if record.HasField("history"):
                    row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                    self.assertGreater(record.history.step.num, last)
                    last = record.history.step.num
                    found += [(name, row["step"], float(value)) for name, value in row.items()
                              if name not in ("step", "attempt") and not name.startswith("_")]
        self.assertEqual(sorted(found), self.expected)
        self.assert_params(config)
        lines = self.log()
        self.assertEqual(set(staged), {(f"{self.job}.log", len(lines.encode()), lines)})

    def test_wandb_online(self):
        server = following.WandbServer(refusals=1)
        self.addCleanup(server.close)
        self.lives("wandb", "--url", server.url, environment={"WANDB_API_KEY": "0" * 40})
        rows = server.rows()
        steps = [row["_step"] for row in rows]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(sorted((name, row["step"], float(value)) for row in rows for name, value in row.items()
                                if name not in ("step", "attempt") and not name.startswith("_")), self.expected)
        self.assert_params({name: item["value"] for name, item in json.loads(server.run["config"]).items()
                            if isinstance(item, dict)})
        self.assertEqual((server.run["displayName"], server.done, server.refusals), (self.job, 0, 0))
        self.assertGreater(server.asked.count("RunResumeStatus"), 1)

    def test_trackio(self):
        environment = {"TRACKIO_DIR": os.path.join(self.directory, "trackio-store")}
        self.lives("trackio", "--artifact", "log", environment=environment)
        read = ("import json; from trackio.sqlite_storage import SQLiteStorage as s; run, = s.get_runs('tests'); "
                "print(json.dumps([s.get_logs('tests', run), s.get_run_config('tests', run)], default=str))")
        shown = subprocess.run([sys.executable, "-c", read], env=dict(os.environ, **environment), text=True, check=True,
                               stdout=subprocess.PIPE).stdout
        rows, config = json.loads(shown.splitlines()[-1])
        self.assertEqual(sorted((name, row["step"], value) for row in rows for name, value in row.items()
                                if name not in ("step", "timestamp")), self.expected)
        self.assert_params(config)
        self.assertEqual(config["state"], "SUCCEEDED")

    def test_otlp(self):
        from google.protobuf import json_format
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
        collector = following.Collector(refusals=1)
        self.addCleanup(collector.close)
        self.lives("otlp", "--url", collector.url)
        self.assertEqual(collector.figures(), self.expected)
        self.assertGreater(collector.resent, 0)
        for message in collector.messages:
            read = json_format.ParseDict(message, service.ExportMetricsServiceRequest())
            self.assertTrue(read.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points)


if __name__ == "__main__":
    python = os.environ.get("FSDPD_LIVE_PYTHON_TRACKERS")
    if not python:
        sys.exit("FAIL: FSDPD_LIVE_PYTHON_TRACKERS is not set: it names a Python with mlflow, wandb, trackio and "
                 "opentelemetry-proto")
    if "FSDPD_TRACKERS_TRIED" not in os.environ:
        os.execve(python, [python, *sys.argv], dict(os.environ, FSDPD_TRACKERS_TRIED="1"))
    harness.main()
