#!/usr/bin/env python3
"""fsdpd-follow, of clients/python: trackers, here ones that only pretend, have every figure of a job once, however
often the follower is killed between a tracker and its place; one that is away gets everything later. The packages
themselves: tests/parity/test_follow_live.py."""

import contextlib
import io
import json
import math
import operator
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(__file__))
import following
import harness

harness.need("grpc>=1.60", "grpc_tools.protoc", "google.rpc", "numpy", "yaml")


HOUR = 3600


class Killed(BaseException):
    """Ends a follower between a tracker and its place."""


class Mlflow:
    """As MLflow's store: a param never changes, and a metric of one name, step, time and value is kept once."""

    def __init__(self):
        self.metrics, self.again, self.runs, self.files = {}, 0, {}, {}
        self.away = lambda: False
        module = types.ModuleType("mlflow")
        module.get_tracking_uri = lambda: "sqlite:///x"
        module.MlflowClient = lambda tracking_uri: self
        entities = types.ModuleType("mlflow.entities")
        for name in ("Metric", "Param", "RunTag"):
            setattr(entities, name, lambda *fields: fields)
        self.modules = {"mlflow": module, "mlflow.entities": entities}

    def get_experiment_by_name(self, name):
        answer(self)
        return types.SimpleNamespace(experiment_id="7")

    def search_runs(self, experiments, words, max_results):
        return [self.get_run(run) for run, kept in self.runs.items() if f"'{kept.tags['fsdpd.run']}'" in words]

    def create_run(self, experiment, start_time, tags, run_name):
        run = f"run{len(self.runs)}"
        self.runs[run] = types.SimpleNamespace(job=run_name, tags=tags, params={}, status="")
        return self.get_run(run)

    def get_run(self, run):
        answer(self)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run),
                                     data=types.SimpleNamespace(params=self.runs[run].params))

    def update_run(self, run, status):
        self.runs[run].status = status

    def log_batch(self, run, metrics=(), params=(), tags=()):
        answer(self)
        assert len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100
        for name, text in params:
            assert self.runs[run].params.setdefault(name, text) == text, name
        self.runs[run].tags.update(tags)
        for name, value, time, step in metrics:
            self.again += (run, name, value, time, step) in self.metrics
            self.metrics[run, name, value, time, step] = True

    def log_artifact(self, run, path):
        answer(self)
        with open(path, "rb") as file:
            self.files[os.path.basename(path)] = len(file.read())  # replaces an earlier one

    def set_terminated(self, run, status, end_time):
        self.runs[run].status = status

    def jobs(self):
        return sorted(kept.job for kept in self.runs.values())

    def run_of(self, job):
        (run, kept), = ((run, kept) for run, kept in self.runs.items() if kept.job == job)
        return run, kept

    def parameters(self, job):
        return self.run_of(job)[1].params

    def figures(self, job):
        run, kept = self.run_of(job)
        assert kept.status == "FINISHED" and kept.tags["fsdpd.state"] == "SUCCEEDED"
        return sorted((name, step, value) for of, name, value, _, step in self.metrics if of == run)


class Wandb:
    """As W&B's server: rows below the step with which a run continues are not taken. What a killed client sent last is
    lost."""

    def __init__(self):
        self.runs, self.again, self.files = {}, 0, {}
        self.away = lambda: False
        module = types.ModuleType("wandb")
        module.Settings = lambda **settings: None
        module.init, module.Artifact = self.init, self.make_artifact
        self.modules = {"wandb": module}

    def init(self, resume, id, name, **settings):
        answer(self)
        assert resume == "allow"
        run = self.runs.setdefault(id, types.SimpleNamespace(job=name, open=False, rows=[], config={}, summary={}))
        if run.open:
            self.again += 1
            del run.rows[-2:]
        run.open = True
        run.step = run.rows[-1][0] + 1 if run.rows else 0
        run.summary = {}

        def log(row, step, commit):
            assert commit and step >= run.step, (step, run.step)
            run.step = step + 1
            run.rows.append((step, row))

        config = types.SimpleNamespace(update=lambda values, allow_val_change: run.config.update(values))
        return types.SimpleNamespace(step=run.step, log=log, config=config, summary=run.summary,
                                     log_artifact=lambda artifact: types.SimpleNamespace(wait=lambda: None),
                                     define_metric=lambda *names, **more: None,
                                     finish=lambda exit_code=0: setattr(run, "open", False))

    def make_artifact(self, name, type):
        def add_file(path):
            self.files[os.path.basename(path)] = os.path.getsize(path)
        return types.SimpleNamespace(add_file=add_file)

    def jobs(self):
        return sorted(run.job for run in self.runs.values())

    def run_of(self, job):
        run, = (run for run in self.runs.values() if run.job == job)
        return run

    def parameters(self, job):
        return self.run_of(job).config

    def figures(self, job):
        run = self.run_of(job)
        assert run.summary["state"] == "SUCCEEDED"
        return sorted((name, row["step"], value) for _, row in run.rows for name, value in row.items()
                      if name not in ("step", "attempt"))


class Trackio:
    """As trackio's store: a row of one id is kept once."""

    def __init__(self):
        rows, self.again, self.configs, self.files = {}, 0, {}, {}
        self.rows = rows
        self.away = lambda: False

        class SQLiteStorage:
            @staticmethod
            def bulk_log(project, run, run_id, metrics_list, steps, config, log_ids, timestamps):
                answer(self)
                self.configs[config["job"]] = config
                for values, step, id in zip(metrics_list, steps, log_ids):
                    self.again += id in rows
                    rows.setdefault(id, (config["job"], step, values))

        def log_artifact(path, name):
            self.files[os.path.basename(path)] = os.path.getsize(path)

        module, store = types.ModuleType("trackio"), types.ModuleType("trackio.sqlite_storage")
        store.SQLiteStorage = SQLiteStorage
        module.init = lambda **settings: types.SimpleNamespace(log_artifact=log_artifact, finish=lambda: None)
        self.modules = {"trackio": module, "trackio.sqlite_storage": store}

    def jobs(self):
        return sorted(self.configs)

    def parameters(self, job):
        return self.configs[job]

    def figures(self, job):
        assert self.configs[job]["state"] == "SUCCEEDED"
        return sorted((name, step, value) for of, step, values in self.rows.values() if of == job
                      for name, value in values.items())


class Otlp(following.Collector):
    modules = {}
    files = None

    def __init__(self):
        self.away = lambda: False
        super().__init__()

    @property
    def refusals(self):
        return int(self.away())

    @refusals.setter
    def refusals(self, number):
        pass

    @property
    def again(self):
        return self.resent

    def jobs(self):
        return sorted({re.search(r'"fsdpd.job.id", "value": {"stringValue": "([^"]*)"', key[3])[1]
                       for key in self.points})

    def parameters(self, job):
        """The latest, which are all of them."""
        _, attributes = max((int(at), attributes) for (name, attributes, at), _ in self.of_job(job)
                            if name == "fsdpd.job.parameters")
        return {item["key"]: item["value"]["stringValue"] for item in json.loads(attributes)}

    def figures(self, job):
        states = [json.loads(attributes) for (name, attributes, _), _ in self.of_job(job) if name == "fsdpd.job.state"]
        assert {"key": "state", "value": {"stringValue": "SUCCEEDED"}} in states[-1]
        return super().figures(job)


def answer(tracker):
    if tracker.away():
        raise OSError("the tracker is away")


class Hours:
    """A follower's clock, which advances only when nothing is read from fsdpd: to the next attempt that is due."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def advance(self, jobs):
        if all(job.stream is None for job in jobs):
            self.now = max(self.now, min((job.due for job in jobs if not job.done), default=0))


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

    def life(self, tracker, name, directory, jobs=(), labels=(), artifacts=(), prepare=lambda one: None):
        """One life of a follower; what `run` says, None if it was killed, and what it wrote."""
        places = place.Places(directory, name)
        with unittest.mock.patch.dict(sys.modules, tracker.modules), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            one = follower.Follower(self.client, sinks.open_sink(name, "tests", getattr(tracker, "url", ""), directory,
                                                                 False), places, list(artifacts))
            prepare(one)
            try:
                done = one.run(list(jobs), dict(labels))
            except Killed:
                done = None
        for job in one.jobs.values():
            job.close(0)
        places.close()
        return done, said.getvalue()

    def lives(self, tracker, name, kills, artifacts=(), directory=""):
        """Follows the job; the lives of the follower end before these writes of its place, or behind those with a
        minus, the last one with the job."""
        directory = directory or tempfile.mkdtemp(dir=self.directory)
        for number in (*kills, None):
            def prepare(one):
                writes, write = [], one.places.write

                def write_or_die(given):
                    writes.append(1)
                    if len(writes) == number:
                        raise Killed
                    write(given)
                    if len(writes) == -(number or 0):
                        raise Killed

                one.places.write = write_or_die

            done, said = self.life(tracker, name, directory, [self.job], artifacts=artifacts, prepare=prepare)
            self.assertEqual(done, None if number else True, said)
        self.assertEqual(tracker.jobs(), [self.job])
        self.assertEqual(tracker.figures(self.job), self.expected)
        self.assertGreater(tracker.again, 0)  # or the kills came where nothing was sent twice
        return directory

    def test_each_tracker_has_every_figure_once(self):
        self.assertEqual(self.rows, 20 + 2)
        log, weights = f"{self.job}.log", f"{self.job}.safetensors"
        otlp = Otlp()
        self.addCleanup(otlp.close)
        self.lives(otlp, "otlp", (2, -3))
        for tracker, name, kills in ((Mlflow(), "mlflow", (1, 2, -3, 4)), (Wandb(), "wandb", (2, -3)),
                                     (Trackio(), "trackio", (2, -3))):
            directory = self.lives(tracker, name, kills, ("log",))
            given = tracker.parameters(self.job)
            self.assertEqual([given[name] for name in ("train.batch_size", "fsdp.strategy", "labels.kind",
                                                       "save_model", "schedule.gamma")],
                             ["8", "full_shard", "followed", "true", "0.7"])
            self.assertFalse([name for name in given if name.startswith("chosen.")])
            self.assertEqual(sorted(tracker.files), [log])
            self.assertEqual(sorted(os.listdir(directory)), ["lock", f"{self.job}.json"])
            # What is asked for after the end is sent alone; and then nothing.
            tracker.files = {}
            self.lives(tracker, name, (), ("log", "weights"), directory)
            self.assertEqual(list(tracker.files), [weights])
            self.assertGreater(tracker.files[weights], 4_000_000)
            with unittest.mock.patch.object(follower, "Stream") as opened:
                self.lives(tracker, name, (), ("log", "weights"), directory)
            opened.assert_not_called()

    def test_an_hour_without_the_tracker_and_several_jobs_by_label(self):
        """With a restart at half time, and a job that is submitted meanwhile."""
        settings = ("labels.group=several", "train.epochs=1", "save_model=false")
        jobs = [following.submit(self.daemon, *settings, "fsdp.auto=true", "train.batch_size=16"),
                following.submit(self.daemon, *settings)]
        for tracker, name, taken in ((Otlp(), "otlp", 2), (Mlflow(), "mlflow", 7), (Trackio(), "trackio", 2),
                                     (Wandb(), "wandb", 1)):
            with self.subTest(name):
                self.follow_for_hours(tracker, name, taken, jobs, settings)
            if isinstance(tracker, Otlp):
                tracker.close()

    def follow_for_hours(self, tracker, name, taken, jobs, settings):
        """The tracker is away for an hour after it has taken this many requests."""
        clock, asked, waits = Hours(), [], []

        def away():
            asked.append(clock.now)
            return len(asked) > taken and clock.now < HOUR

        tracker.away = away
        directory = tempfile.mkdtemp(dir=self.directory)
        for end in (HOUR / 2, math.inf):
            def prepare(one):
                collect = one.collect

                def collect_and_check():
                    batch = collect()
                    self.assertLessEqual(sum(map(len, batch.values())), follower.EVENTS_MAX)
                    self.assertLessEqual(one.queue.qsize(), follower.EVENTS_MAX)
                    if not batch:
                        clock.advance(one.jobs.values())
                    if clock.now >= end:
                        raise Killed
                    one.stopped = len(one.jobs) == 3 and all(job.done for job in one.jobs.values())
                    return batch

                one.collect = collect_and_check

            with unittest.mock.patch.multiple(follower, time=clock, BATCH_SECONDS=0.002):
                done, said = self.life(tracker, name, directory, labels={"group": "several"}, prepare=prepare)
            waits += [[int(text) for text in re.findall(f"{job}: .* again in ([0-9]+) s", said)] for job in jobs]
            if len(jobs) == 2:
                jobs.append(following.submit(self.daemon, *settings))
                self.daemon.wait_state(jobs[2], "SUCCEEDED")
        self.assertTrue(done, said)
        # It asked all the time, and never in haste: of two jobs or three, in two lives.
        for given in filter(None, waits):
            self.assertEqual(given[:7], [1, 2, 4, 8, 16, 32, 60])
            self.assertEqual(set(given[7:]), {60})
        self.assertLessEqual(max(map(operator.sub, asked[1:], asked)), 60 + follower.LOOK_SECONDS)
        self.assertGreater(asked[-1], HOUR)
        self.assertLess(asked[-1], HOUR + 60 + follower.LOOK_SECONDS)
        # Nothing of it waited here.
        self.assertLess(sum(os.path.getsize(os.path.join(directory, kept)) for kept in os.listdir(directory)), 20_000)
        self.assertFalse([thread for thread in threading.enumerate() if thread.name.startswith("stream of")])
        self.assertEqual(tracker.jobs(), sorted(jobs))
        for job in jobs:
            self.assertEqual(tracker.figures(job), following.expected(self.daemon, job)[0])
        given, chosen = tracker.parameters(jobs[0]), self.daemon.show(jobs[0])["chosen"]
        self.assertEqual(
            [given[key] for key in ("fsdp.choose", "train.batch_size", "chosen.by", "chosen.description",
                                    "chosen.train.batch_size", "chosen.fsdp.strategy")],
            ["true", "16", "planner", chosen["description"], str(chosen["settings"]["batch_size"]),
             chosen["settings"]["strategy"].lower()])
        self.assertFalse([key for key in tracker.parameters(jobs[1]) if key.startswith("chosen.")])

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
