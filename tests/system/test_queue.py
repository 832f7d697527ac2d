#!/usr/bin/env python3
"""The queue from its users' view: priorities, jobs after jobs, deadlines, labels, histories."""

import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

ENDLESS = "train.epochs=1000000"
SHORT = "train.max_steps=2"


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon(workers=2)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def tearDown(self):
        active = self.daemon.json("list", "--state", "active")
        for job in active:
            self.daemon.ctl("cancel", job["id"])
        for job in active:
            self.daemon.wait_state(job["id"], "CANCELLED", "SUCCEEDED", "FAILED")
        self.wait_idle()

    def wait_idle(self):
        """Waits until both workers are attached and free: a job may end before its workers are."""
        self.daemon.wait_for(
            lambda: [row["state"] for row in self.daemon.worker_list()] == ["idle"] * 2, 60,
            "both workers to be free")

    def submit(self, *settings, options=()):
        """Submits a job with the generated digits; its id."""
        arguments = ["submit", harness.JOB, "--set", f"data.dir={self.daemon.data}", *options]
        for setting in settings:
            arguments += ["--set", setting]
        return self.daemon.json(*arguments)["id"]

    def block(self):
        """A job that occupies both workers until the test cancels it."""
        job = self.submit(ENDLESS, "workers=2")
        self.daemon.wait_step(job, 1)
        return job

    def place(self, job, state):
        """The log position at which the job came to this state: an order without a clock."""
        with open(os.path.join(self.daemon.root, "fsdpd.log")) as log:
            return [f" job_state job={job} state={state} " in line for line in log].index(True)

    def test_priority(self):
        blocker = self.block()
        low = self.submit(SHORT, options=("--priority", "-5"))
        normal = self.submit(SHORT)
        high = self.submit(SHORT, "workers=2", options=("--priority=7",))
        shown = {job["id"]: job for job in self.daemon.json("list", "--state", "queued")}
        self.assertEqual([shown[job]["queue_position"] for job in (high, normal, low)], [1, 2, 3])
        self.assertEqual(shown[high]["reason"]["message"], "1st; waits for 2 of 2 cpu workers")
        self.assertEqual(shown[normal]["reason"]["message"],
                         "2nd; 1 job is before it, 1 of higher priority")
        self.assertEqual(shown[low]["priority"], -5)
        self.assertIn("3rd; 2 jobs are before it", self.daemon.ctl("show", low).stdout)
        self.daemon.ctl("cancel", blocker)
        for job in (high, normal, low):
            self.daemon.wait_state(job, "SUCCEEDED")
        self.assertLess(self.place(high, "SUCCEEDED"), self.place(normal, "STARTING"))
        self.assertLess(self.place(normal, "STARTING"), self.place(low, "STARTING"))

    def test_no_back_filling(self):
        """A large job gets its workers although small ones keep arriving."""
        first = self.submit(ENDLESS, "workers=1")
        self.daemon.wait_step(first, 1)
        large = self.submit(SHORT, "workers=2")
        small = self.submit(SHORT, "workers=1")
        self.assertEqual(self.daemon.show(large)["reason"]["message"],
                         "1st; waits for 1 of 2 cpu workers")
        self.assertEqual(self.daemon.show(small)["reason"]["message"], "2nd; 1 job is before it")
        self.assertEqual(self.daemon.show(small)["state"], "QUEUED")
        self.daemon.ctl("cancel", first)
        for job in (small, large):
            self.daemon.wait_state(job, "SUCCEEDED")
        self.assertLess(self.place(large, "STARTING"), self.place(small, "STARTING"))

    def test_after(self):
        first = self.submit(SHORT)
        second = self.submit(SHORT, options=("--after", first))
        third = self.submit(SHORT, options=("--after", f"{first},{second}"))
        self.daemon.wait_state(third, "SUCCEEDED")
        for earlier, later in ((first, second), (second, third)):
            self.assertLess(self.place(earlier, "SUCCEEDED"), self.place(later, "STARTING"))
        missing = self.daemon.ctl("submit", harness.JOB, "--after", "no-such-job",
                                  "--set", f"data.dir={self.daemon.data}")
        self.assertEqual(missing.returncode, harness.NOT_FOUND, missing.stderr)
        self.assertIn("no-such-job", missing.stderr)

    def test_after_a_failure(self):
        blocker = self.block()
        second = self.submit(SHORT, options=("--after", blocker))
        third = self.submit(SHORT, f"after=[{second}]")
        anyway = self.submit(SHORT, options=("--after-any", f"{blocker},{third}"))
        shown = self.daemon.show(second)
        self.assertEqual((shown["reason"]["code"], shown["reason"]["message"], shown["waits_for"]),
                         ("WAITING_FOR_JOB", f"waits for {blocker}", [blocker]))
        self.daemon.kill()  # the dependencies survive a crash
        self.daemon.start()
        self.daemon.ctl("cancel", blocker)  # which may have ended with its workers
        for job, cause in ((second, blocker), (third, second)):
            shown = self.daemon.wait_state(job, "CANCELLED")
            self.assertEqual(shown["reason"]["code"], "DEPENDENCY_FAILED")
            self.assertIn(cause, shown["reason"]["message"])
        self.daemon.wait_state(anyway, "SUCCEEDED")
        waited = self.daemon.ctl("watch", third)
        self.assertEqual(waited.returncode, harness.JOB_CANCELLED)

    def test_deadlines(self):
        blocker = self.block()
        waiting = self.submit(SHORT, options=("--start-by", "0.5s"))
        shown = self.daemon.wait_state(waiting, "FAILED")
        self.assertEqual(shown["reason"]["code"], "DEADLINE_EXCEEDED")
        self.assertIn("it was not started within 0.5s", shown["reason"]["message"])
        self.assertEqual(self.daemon.show(blocker)["state"], "RUNNING")
        self.daemon.ctl("cancel", blocker)
        self.daemon.wait_state(blocker, "CANCELLED")
        late = self.submit(ENDLESS, "workers=2", options=("--finish-by", "1.5s"))
        shown = self.daemon.wait_state(late, "FAILED")
        self.assertEqual(shown["reason"]["code"], "DEADLINE_EXCEEDED")
        self.assertIn("it was not over within 1.5s", shown["reason"]["message"])
        soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        in_time = self.submit(SHORT, "deadline.finish=" + soon.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.daemon.wait_state(in_time, "SUCCEEDED")
        past = self.daemon.ctl("submit", harness.JOB, "--set", f"data.dir={self.daemon.data}",
                               "--finish-by", "2001-01-01T00:00:00Z")
        self.assertEqual(past.returncode, harness.FAILED, past.stderr)
        self.assertIn("has passed", past.stderr)

    def test_list(self):
        blocker = self.submit(ENDLESS, "workers=2", "name=blocker")
        self.daemon.wait_step(blocker, 1)
        vision = self.submit(SHORT, options=("--label", "team=vision", "--label", "run=3"))
        nlp = self.submit(SHORT, "name=gpt", "labels={team: nlp}")

        def listed(*options):
            return [job["id"] for job in self.daemon.json("list", "--state", "active", *options)]
        self.assertEqual(listed(), [blocker, vision, nlp])
        self.assertEqual(listed("--label", "team=vision"), [vision])
        self.assertEqual(listed("--label", "team=*"), [vision, nlp])
        self.assertEqual(listed("--label", "team=*", "--label", "run=3"), [vision])
        self.assertEqual(listed("--name", "gpt"), [nlp])
        self.assertEqual(listed("--name", "mnist-*"), [vision])
        self.assertEqual(listed("-n", "1"), [nlp])
        self.assertEqual(listed("--user", "unknown-user"), [])
        self.assertEqual([job["id"] for job in self.daemon.json("list", "--state", "QUEUED")],
                         [vision, nlp])
        self.assertEqual(self.daemon.show(vision)["spec"]["labels"], {"run": "3", "team": "vision"})
        self.assertIn("team=vision", self.daemon.ctl("show", vision).stdout)
        for wrong in (("--label", "team"), ("--label", "Team=x"), ("--state", "waiting")):
            result = self.daemon.ctl("list", *wrong)
            self.assertEqual(result.returncode, harness.USAGE, result.stderr)
        result = self.daemon.ctl("submit", harness.JOB, "--label", "team=a b")
        self.assertEqual(result.returncode, harness.USAGE, result.stderr)

    def test_history(self):
        job = self.submit(SHORT)
        self.daemon.wait_state(job, "SUCCEEDED")
        entries = self.daemon.json("history", job)
        self.assertEqual([entry["state"] for entry in entries],
                         ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"])
        self.assertEqual([entry["attempt"] for entry in entries], [0, 1, 1, 1])
        for entry in entries:  # by the host's clock, which may be set meanwhile
            self.assertLess(abs(harness.seconds(entry["time"]) - time.time()), 3600)
        self.assertEqual(entries[-1]["reason"]["code"], "DONE")
        table = self.daemon.ctl("history", job)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("SUCCEEDED", table.stdout)
        self.assertEqual(self.daemon.ctl("history", "no-such-job").returncode, harness.NOT_FOUND)

    def test_hold(self):
        blocker = self.block()
        job = self.submit(SHORT)
        user = self.daemon.show(job)["owner"]
        held = self.daemon.ctl("hold", job)
        self.assertEqual(held.returncode, 0, held.stderr)
        self.assertIn(f"{job} QUEUED: held by {user}", held.stdout)
        other = self.submit(SHORT, options=("--hold",))
        shown = self.daemon.show(other)
        self.assertEqual((shown["held_by"], shown["reason"]["code"]), (user, "HELD"))
        running = self.daemon.ctl("hold", blocker)
        self.assertEqual(running.returncode, harness.CONFLICT, running.stderr)
        self.daemon.ctl("cancel", blocker)
        self.daemon.wait_state(blocker, "CANCELLED")
        passing = self.submit(SHORT)  # a held job delays no other
        self.daemon.wait_state(passing, "SUCCEEDED")
        self.daemon.kill()
        self.daemon.start()
        for held in (job, other):
            self.assertEqual(self.daemon.show(held)["state"], "QUEUED")
            self.assertEqual(self.daemon.ctl("release", held).returncode, 0)
            self.daemon.wait_state(held, "SUCCEEDED")
        codes = [(entry["reason"]["code"], entry["by"]) for entry in self.daemon.json("history", job)]
        self.assertIn(("HELD", user), codes)
        self.assertLess(codes.index(("HELD", user)), codes.index(("STARTING", "")))

    def test_change_priority(self):
        self.block()
        first, second = self.submit(SHORT), self.submit(SHORT)
        changed = self.daemon.ctl("priority", second, "5")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertEqual(self.daemon.ctl("priority", first, "-5").returncode, 0)
        self.assertEqual([self.daemon.show(job)["priority"] for job in (first, second)], [-5, 5])
        self.assertEqual([self.daemon.show(job)["queue_position"] for job in (first, second)],
                         [2, 1])
        for wrong in ("1001", "high", "1.5"):
            result = self.daemon.ctl("priority", first, wrong)
            self.assertEqual(result.returncode, harness.USAGE, result.stderr)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_other_users(self):
        """Another user sees root's job, but may not change it; an operator may change any."""
        os.chmod(self.daemon.root, 0o711)
        job = self.block()

        def as_other(*arguments):
            return subprocess.run(
                ["setpriv", f"--reuid={harness.OTHER_UID}", f"--regid={os.getegid()}", "--clear-groups",
                 os.path.abspath(harness.FSDPCTL), *arguments], text=True, timeout=harness.PATIENCE,
                env=dict(os.environ, FSDPD_ADDRESS=self.daemon.address), cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            runs = as_other("--help").returncode == 0
        except OSError:
            runs = False
        if not runs:
            self.skipTest("another user cannot run what was built here")
        seen = as_other("show", job)
        self.assertEqual(seen.returncode, 0, seen.stderr)
        self.assertIn("RUNNING", seen.stdout)
        for words in (("cancel", job), ("priority", job, "1"),
                      ("wrap", "set", job, "--policy", "none")):
            refused = as_other(*words)
            self.assertEqual(refused.returncode, harness.NOT_PERMITTED, refused.stderr)
            self.assertIn(f"job {job} belongs to root", refused.stderr)
        refused = as_other("drain", self.daemon.worker_list()[0]["id"])
        self.assertEqual(refused.returncode, harness.NOT_PERMITTED, refused.stderr)
        self.assertEqual(refused.stderr, "fsdpctl: DrainWorkers: requires the role operator; "
                                         f"you are {harness.OTHER_USER}, with the role user\n")
        self.assertEqual(self.daemon.show(job)["state"], "RUNNING")

        arguments = ("submit", harness.JOB, "--set", f"data.dir={self.daemon.data}", "--set", SHORT)
        too_high = as_other(*arguments, "--priority", "101")
        self.assertEqual(too_high.returncode, harness.NOT_PERMITTED, too_high.stderr)
        own = as_other(*arguments, "--priority", "100", "--id", "of-other").stdout.strip()
        self.assertEqual(self.daemon.show(own)["owner"], harness.OTHER_USER)
        self.assertEqual([shown["id"] for shown in self.daemon.json("list", "--user", harness.OTHER_USER)],
                         [own])
        again = self.daemon.ctl(*arguments, "--priority", "100", "--id", "of-other")
        self.assertEqual(again.returncode, harness.CONFLICT, again.stderr)
        self.assertIn(harness.OTHER_USER, again.stderr)
        self.assertEqual(as_other("hold", own).returncode, 0)
        self.assertEqual(as_other("release", own).returncode, 0)
        self.assertEqual(self.daemon.ctl("hold", own).returncode, 0)  # root is an operator
        refused = as_other("release", own)
        self.assertEqual(refused.returncode, harness.NOT_PERMITTED, refused.stderr)
        self.assertEqual(self.daemon.ctl("priority", own, "500").returncode, 0)
        self.assertEqual(as_other("cancel", own).returncode, 0)
        self.assertIn(f"cancelled by {harness.OTHER_USER}", self.daemon.show(own)["reason"]["message"])

    def test_drain(self):
        first, second = sorted(worker["id"] for worker in self.daemon.worker_list())
        host = self.daemon.worker_list()[0]["host"]

        def state(worker):
            return {row["id"]: row["state"] for row in self.daemon.worker_list()}.get(worker)
        drained = self.daemon.ctl("drain", first)
        self.assertEqual(drained.returncode, 0, drained.stderr)
        self.assertIn("drained", drained.stdout)
        self.assertIn("1 free, 1 drained", self.daemon.ctl("status").stdout)
        self.addCleanup(self.daemon.ctl, "undrain", first)
        self.addCleanup(self.daemon.ctl, "undrain", host)
        job = self.submit(ENDLESS, "workers=1")
        self.daemon.wait_step(job, 1)
        self.assertEqual(self.daemon.show(job)["workers"], [second])
        large = self.submit(SHORT, "workers=2")
        self.assertIn("1 is attached and 1 drained", self.daemon.show(large)["reason"]["message"])
        self.assertEqual(self.daemon.ctl("drain", host, "--now").returncode, 0)
        shown = self.daemon.wait_state(job, "QUEUED")  # to continue elsewhere, from the same step
        self.assertIn(f"worker {second} was drained by", self.daemon.ctl("history", job).stdout)
        entry = [entry for entry in self.daemon.json("history", job)
                 if entry["reason"]["code"] == "WORKER_DRAINED"][0]
        self.assertEqual(entry["state"], "QUEUED")
        self.assertIn(f"continues from step {entry['step']}", entry["reason"]["message"])
        self.assertIn(int(entry["step"]),
                      [int(taken["step"]) for taken in self.daemon.json("checkpoints", job)])
        self.daemon.wait_for(lambda: state(second) == "drained", 30, "the worker to be drained")
        self.daemon.ctl("cancel", job)
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual({row["state"] for row in self.daemon.worker_list()}, {"drained"})
        self.assertEqual(self.daemon.show(large)["state"], "QUEUED")
        back = self.daemon.ctl("undrain", first)
        self.assertEqual(back.returncode, 0, back.stderr)
        self.assertEqual(self.daemon.ctl("undrain", second).returncode, harness.CONFLICT)
        self.assertEqual(self.daemon.ctl("undrain", host).returncode, 0)
        self.daemon.wait_state(large, "SUCCEEDED")
        unknown = self.daemon.ctl("drain", "no-such-worker")
        self.assertEqual(unknown.returncode, harness.NOT_FOUND, unknown.stderr)

    def test_forget(self):
        job = self.submit(SHORT)
        refused = self.daemon.ctl("forget", self.block())
        self.assertEqual(refused.returncode, harness.CONFLICT, refused.stderr)
        self.daemon.wait_state(job, "SUCCEEDED")
        directory = os.path.join(self.daemon.root, "state/jobs", job)
        self.assertTrue(os.path.exists(os.path.join(directory, "state_dict.safetensors")))
        forgotten = self.daemon.ctl("forget", job)
        self.assertEqual((forgotten.returncode, forgotten.stdout), (0, f"{job} forgotten\n"),
                         forgotten.stderr)
        self.assertFalse(os.path.exists(directory))
        for words in (("show", job), ("history", job), ("watch", job), ("forget", job)):
            self.assertEqual(self.daemon.ctl(*words).returncode, harness.NOT_FOUND, words)

    def test_several_jobs(self):
        """One command for several jobs, by their names or by a label."""
        jobs = [self.daemon.submit("workers=3", ENDLESS, f"labels.sweep={label}")
                for label in ("7", "7", "8")]
        held = self.daemon.ctl("hold", *jobs)
        self.assertEqual(held.returncode, harness.DONE, held.stderr)
        self.assertEqual([self.daemon.show(job)["reason"]["code"] for job in jobs], ["HELD"] * 3)
        cancelled = self.daemon.json("cancel", "--label", "sweep=7")
        self.assertEqual([(job["id"], job["state"]) for job in cancelled],
                         [(job, "CANCELLED") for job in jobs[:2]])
        result = self.daemon.ctl("cancel", *jobs)
        self.assertEqual(result.returncode, harness.CONFLICT, result.stderr)
        self.assertEqual(self.daemon.show(jobs[2])["state"], "CANCELLED")
        result = self.daemon.ctl("cancel", "--label", "sweep=*")
        self.assertEqual(result.returncode, harness.NOT_FOUND, result.stderr)
        result = self.daemon.ctl("forget", "--label", "sweep=*")
        self.assertEqual(result.stdout, "".join(f"{job} forgotten\n" for job in jobs))

    def test_same_host(self):
        self.assertEqual(len({worker["host"] for worker in self.daemon.worker_list()}), 1)
        self.assertTrue(self.daemon.worker_list()[0]["host"])


class WithoutWorkers(unittest.TestCase):
    def test_submit(self):
        """A job that is submitted before there is a worker is checked, and planned when one comes."""
        with harness.Daemon(workers=0) as daemon:
            good = daemon.submit("workers=1", SHORT)
            shown = daemon.show(good)
            self.assertEqual((shown["state"], shown["reason"]["code"], shown["plan"]),
                             ("QUEUED", "WAITING_FOR_WORKERS", None))
            result = daemon.ctl("submit", harness.JOB, "--set", "fsdp.wrap.policy=units",
                                "--set", "fsdp.wrap.units=[nonsense]")
            self.assertEqual(result.returncode, harness.FAILED, result.stderr)
            self.assertIn("'nonsense', which Net does not have", result.stderr)
            result = daemon.ctl("plan", harness.JOB, "--set", f"data.dir={daemon.data}")
            self.assertEqual(result.returncode, harness.CONFLICT, result.stderr)
            self.assertIn("no worker is attached", result.stderr)
            # Data that only workers could have are found missing by them.
            absent = daemon.submit("workers=1", SHORT, "data.dir=/nowhere")
            daemon.start_worker("test/cpu:0")
            daemon.wait_state(good, "SUCCEEDED")
            plan = daemon.show(good)["plan"]
            self.assertEqual((plan["world"], plan["offline"]), (1, False))
            daemon.wait_state(absent, "FAILED")
            self.assertIn("/nowhere", daemon.show(absent)["reason"]["message"])

    def test_profile(self):
        """With a profile the answer has a plan, and what cannot fit is refused."""
        note = "planned for t4, no worker is attached"
        with harness.Daemon(workers=0, arguments=["--profile", "t4"]) as daemon:
            job = daemon.submit("workers=1", SHORT)
            shown = daemon.show(job)
            self.assertEqual((shown["plan"]["offline"], shown["plan"]["device"]), (True, "t4"))
            self.assertIn(note, " ".join(shown["plan"]["notes"]))
            self.assertGreater(int(shown["steps"]), 0)  # the data are on this host
            result = daemon.ctl("submit", harness.JOB, "--set", "train.batch_size=1000000")
            self.assertEqual(result.returncode, 10, result.stderr)
            self.assertIn("no worker is attached; planned for t4, the configured profile: ",
                          result.stderr)
            result = daemon.ctl("plan", harness.JOB)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(note, result.stdout)
            daemon.start_worker("test/cpu:0")
            daemon.wait_state(job, "SUCCEEDED")
            plan = daemon.show(job)["plan"]
            self.assertEqual((plan["offline"], plan["device"]), (False, "cpu"))

    def test_wrong_profile(self):
        result = subprocess.run([harness.FSDPD, "coordinator", "--profile", "h1000"], text=True,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 2)
        self.assertIn("profile: ", result.stderr)
        self.assertIn("h100", result.stderr)


if __name__ == "__main__":
    harness.main()
