#!/usr/bin/env python3
"""fsdpd-follow, of clients/python: trackers, here ones that only pretend, have every figure of a job once, however
often the follower is killed between a tracker and its place; one that is away gets everything later. The packages
themselves: tests/parity/test_follow_live.py."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(__file__))
import following
import harness

harness.need("grpc>=1.60", "grpc_tools.protoc", "google.rpc", "numpy", "yaml")


class Killed(BaseException):
    """Ends a follower between a tracker and its place."""


class Mlflow:
    """As MLflow's store: a param never changes, and a metric of one name, step, time and value is kept once."""

    def __init__(self):
        self.metrics, self.params, self.tags, self.again, self.runs, self.status = {}, {}, {}, 0, [], ""
        self.files = {}
        module = types.ModuleType("mlflow")
        module.get_tracking_uri = lambda: "sqlite:///x"
        module.MlflowClient = lambda tracking_uri: self
        entities = types.ModuleType("mlflow.entities")
        for name in ("Metric", "Param", "RunTag"):
            setattr(entities, name, lambda *fields: fields)
        self.modules = {"mlflow": module, "mlflow.entities": entities}

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id="7")

    def search_runs(self, experiments, words, max_results):
        return [self.get_run(run) for run, tags in self.runs if f"'{tags['fsdpd.run']}'" in words]

    def create_run(self, experiment, start_time, tags, run_name):
        self.runs.append((f"run{len(self.runs)}", tags))
        return self.get_run(self.runs[-1][0])

    def get_run(self, run):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run),
                                     data=types.SimpleNamespace(params=self.params))

    def update_run(self, run, status):
        self.status = status

    def log_batch(self, run, metrics=(), params=(), tags=()):
        assert len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100
        for name, text in params:
            assert self.params.setdefault(name, text) == text, name
        self.tags.update(tags)
        for name, value, time, step in metrics:
            self.again += (run, name, value, time, step) in self.metrics
            self.metrics[run, name, value, time, step] = True

    def log_artifact(self, run, path):
        with open(path, "rb") as file:
            self.files[os.path.basename(path)] = len(file.read())  # replaces an earlier one

    def set_terminated(self, run, status, end_time):
        self.status = status

    def figures(self):
        assert len(self.runs) == 1 and self.status == "FINISHED" and self.tags["fsdpd.state"] == "SUCCEEDED"
        return sorted((name, step, value) for _, name, value, _, step in self.metrics)


class Wandb:
    """As W&B's server: rows below the step with which a run continues are not taken. What a killed client sent last is
    lost."""

    def __init__(self):
        self.rows, self.again, self.config = [], 0, {}
        module = types.ModuleType("wandb")
        module.Settings = lambda **settings: None
        module.init = self.init
        self.modules = {"wandb": module}

    def init(self, resume, **settings):
        assert resume == "allow"
        self.again += bool(self.rows)
        del self.rows[-2:]
        self.step = self.rows[-1][0] + 1 if self.rows else 0
        self.summary = {}
        config = types.SimpleNamespace(update=lambda values, allow_val_change: self.config.update(values))
        return types.SimpleNamespace(step=self.step, log=self.log, config=config, summary=self.summary,
                                     define_metric=lambda *names, **more: None, finish=lambda exit_code=0: None)

    def log(self, row, step, commit):
        assert commit and step >= self.step, (step, self.step)
        self.step = step + 1
        self.rows.append((step, row))

    def figures(self):
        assert self.summary["state"] == "SUCCEEDED"
        return sorted((name, row["step"], value) for _, row in self.rows for name, value in row.items()
                      if name not in ("step", "attempt"))


class Trackio:
    """As trackio's store: a row of one id is kept once."""

    def __init__(self):
        rows, self.again, self.config = {}, 0, {}
        self.rows = rows

        class SQLiteStorage:
            @staticmethod
            def bulk_log(project, run, run_id, metrics_list, steps, config, log_ids, timestamps):
                self.config = config
                for values, step, id in zip(metrics_list, steps, log_ids):
                    self.again += id in rows
                    rows.setdefault(id, (step, values))

        module, store = types.ModuleType("trackio"), types.ModuleType("trackio.sqlite_storage")
        store.SQLiteStorage = SQLiteStorage
        self.modules = {"trackio": module, "trackio.sqlite_storage": store}

    def figures(self):
        assert self.config["state"] == "SUCCEEDED"
        return sorted((name, step, value) for step, values in self.rows.values() for name, value in values.items())


class Otlp(following.Collector):
    modules = {}

    @property
    def again(self):
        return self.resent


class Follow(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(subprocess.run, ["rm", "-rf", cls.directory], check=True)
        cls.site = following.make_site(cls.directory)
        sys.path.insert(0, cls.site)
        global fsdpd, api, follower, main, place, points, sinks, stream
        import fsdpd
        import fsdpd.messages as api
        from fsdpd_follow import follower, main, place, points, sinks, stream
        follower.EVENTS_MAX, follower.BATCH_SECONDS = 9, 0.05
        cls.daemon = following.start_daemon(cls.directory)
        cls.addClassCleanup(cls.daemon.close)
        cls.client = fsdpd.connect(cls.daemon.address, timeout=harness.PATIENCE)
        cls.addClassCleanup(cls.client.close)
        cls.collector = following.Collector(refusals=2)  # that of the test that follows a job at work
        cls.addClassCleanup(cls.collector.close)
        cls.process = subprocess.Popen(
            [sys.executable, "-m", "fsdpd_follow", "otlp", "--label", following.LABEL, "--url", cls.collector.url,
             "--address", cls.daemon.address, "--place", os.path.join(cls.directory, "live")],
            env=dict(os.environ, PYTHONPATH=cls.site), stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.process.stderr.close)
        cls.addClassCleanup(cls.process.wait)
        cls.addClassCleanup(cls.process.kill)
        cls.job = following.submit(cls.daemon)
        cls.daemon.wait_state(cls.job, "SUCCEEDED")
        cls.expected, cls.rows = following.expected(cls.daemon, cls.job)

    def lives(self, tracker, name, kills, artifacts=(), url="", directory=""):
        """Follows the job; the lives of the follower end before these writes of its place, or behind those with a
        minus, the last one with the job."""
        directory = directory or tempfile.mkdtemp(dir=self.directory)
        for number in (*kills, None):
            places = place.Places(directory, name)
            writes, write = [], places.write

            def write_or_die(given):
                writes.append(1)
                if len(writes) == number:
                    raise Killed
                write(given)
                if len(writes) == -(number or 0):
                    raise Killed

            places.write = write_or_die
            with unittest.mock.patch.dict(sys.modules, tracker.modules), \
                    contextlib.redirect_stderr(io.StringIO()) as said:
                one = follower.Follower(self.client, sinks.open_sink(name, "tests", url, directory, False), places,
                                        list(artifacts))
                try:
                    done = one.run([self.job], {})
                except Killed:
                    done = None
            for job in one.jobs.values():
                job.close(0)
            places.close()
            self.assertEqual(done, None if number else True, said.getvalue())
        self.assertEqual(tracker.figures(), self.expected)
        self.assertGreater(tracker.again, 0)  # or the kills came where nothing was sent twice
        return directory

    def test_each_tracker_has_every_figure_once(self):
        self.assertEqual(self.rows, 20 + 2)
        mlflow, wandb, trackio, otlp = Mlflow(), Wandb(), Trackio(), Otlp()
        self.addCleanup(otlp.close)
        directory = self.lives(mlflow, "mlflow", (1, 2, -3, 4), ("weights", "log"))
        self.lives(wandb, "wandb", (2, -3))
        self.lives(trackio, "trackio", (2, -3))
        self.lives(otlp, "otlp", (2, -3), url=otlp.url)
        for given in (mlflow.params, wandb.config, trackio.config):
            self.assertEqual([given[name] for name in ("train.batch_size", "fsdp.strategy", "labels.kind", "save_model",
                                                       "schedule.gamma")], ["8", "full_shard", "followed", "true", "0.7"])
        self.assertEqual(sorted(mlflow.files), [f"{self.job}.log", f"{self.job}.safetensors"])
        self.assertGreater(mlflow.files[f"{self.job}.safetensors"], 4_000_000)
        self.assertGreater(mlflow.files[f"{self.job}.log"], 100)
        self.assertEqual(sorted(os.listdir(directory)), ["lock", f"{self.job}.json"])
        with unittest.mock.patch.object(mlflow, "log_batch") as sent:
            self.lives(mlflow, "mlflow", (), directory=directory)
        sent.assert_not_called()

    def test_a_tracker_that_is_away_gets_a_job_at_work_later(self):
        ended = f"{self.job}: SUCCEEDED"
        said = ""
        while ended not in said:
            line = self.process.stderr.readline()
            self.assertTrue(line, said)
            said += line
        self.assertRegex(said, r"503 later; again in 1 s\n(.*\n)*.*again in 2 s")
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(harness.PATIENCE), 0)
        self.assertEqual(self.collector.figures(), self.expected)
        given = [point for message in self.collector.messages for of_job in message["resourceMetrics"]
                 for metric in of_job["scopeMetrics"][0]["metrics"] if metric["name"] == "fsdpd.job.parameters"
                 for point in metric["gauge"]["dataPoints"]]
        self.assertIn({"key": "train.epochs", "value": {"stringValue": "2"}}, given[0]["attributes"])

    def test_what_a_reader_missed_is_read_from_the_disk(self):
        events = [api.JobEvent(sequence=i, metrics=api.Metrics(step=i)) for i in range(1, 10)]
        gap = api.JobEvent(sequence=7, dropped=api.Dropped(metrics=3))
        asked = []

        class Answers(list):
            def cancel(self):
                pass

        def get_metrics(request):
            asked.append(request.after_sequence)
            kept = events[request.after_sequence:] if request.after_sequence else events[:2]
            return Answers([api.GetMetricsResponse(rows=[api.MetricsRow(event=event) for event in kept])])

        def watch(request):
            asked.append(request.after_sequence)
            seen = [] if request.after_sequence == 9 else [*events[2:4], gap, *events[7:]]
            return Answers([api.WatchJobResponse(event=event) for event in seen])

        stub = types.SimpleNamespace(GetMetrics=get_metrics, WatchJob=watch)
        out = follower.queue.Queue()
        stream.Stream(types.SimpleNamespace(stub=stub), "x", 0, out).join(harness.PATIENCE)
        self.assertEqual([item and item.sequence for _, item in out.queue], [*range(1, 10), None])
        self.assertEqual(asked, [0, 2, 4, 9])

    def test_names_are_those_of_the_table(self):
        with open(os.path.join(harness.SOURCE, "docs/monitoring.md"), encoding="utf-8") as file:
            table = file.read().partition("| figure | unit |")[2].partition("\n\n")[0]
        names = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
        self.assertEqual(names, {name for kind in points.OF_EVENT.values() for name in kind})

    def test_what_it_refuses(self):
        asked = ["otlp", "x", "--place", os.path.join(self.directory, "refused"), "--address", self.daemon.address]
        missing = "mlflow: the package mlflow is not installed: pip install mlflow"
        for arguments, words in ((["mlflow", *asked[1:]], missing), ([*asked, "--offline"], "otlp has no such mode"),
                                 ([*asked, "--artifact", "log"], "otlp takes none"), (asked, "job x"),
                                 (["otlp"], "expected jobs, or --label")):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended, \
                    unittest.mock.patch.dict(sys.modules, {"mlflow": None}), \
                    unittest.mock.patch.object(signal, "signal"):
                main.main(arguments)
            self.assertIn(words, said.getvalue() + str(ended.exception.code))
            self.assertNotIn(ended.exception.code, (0, None))
        with contextlib.closing(place.Places(os.path.join(self.directory, "one"), "a")) as places:
            with self.assertRaisesRegex(place.Wrong, "another fsdpd-follow uses it"):
                place.Places(places.directory, "a")
            places.write(places.read("job-1", "yesterday"))
            places.to = "b"
            with self.assertRaisesRegex(place.Wrong, "is of a, not of b"):
                places.read("job-1", "yesterday")


if __name__ == "__main__":
    harness.main()
