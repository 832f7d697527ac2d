#!/usr/bin/env python3
"""fsdpctl trace: a timeline of a running job, read by an independent reader, and its refusals."""

import json
import os
import unittest

import harness
from harness import CONFLICT, DONE, NOT_FOUND, USAGE, Daemon, main

STEPS = 3
LANES = {0: "compute", 1: "comm", 2: "copy", 3: "steps"}


class Trace:
    """The events of a file, by kind; times in whole nanoseconds."""

    def __init__(self, path):
        with open(path) as file:
            self.document = json.load(file)
        self.names, self.spans, self.counters, self.starts, self.ends = {}, [], [], {}, {}
        for event in self.document["traceEvents"]:
            kind, where = event["ph"], (event["pid"], event["tid"])
            if kind == "M":
                if event["name"].endswith("_name"):
                    self.names[event["name"], *where] = event["args"]["name"]
                continue
            event["ts"] = round(event["ts"] * 1000)
            if kind == "X":
                event["end"] = event["ts"] + round(event["dur"] * 1000)
                self.spans.append(event)
            elif kind == "C":
                self.counters.append(event)
            else:
                flows = {"s": self.starts, "f": self.ends}[kind]
                assert event["id"] not in flows, event
                flows[event["id"]] = event

    def of(self, rank, lane):
        return sorted((span for span in self.spans if (span["pid"], span["tid"]) == (rank, lane)),
                      key=lambda span: span["ts"])

    def at(self, event):
        """The span that contains an arrow's end."""
        found = [span for span in self.of(event["pid"], event["tid"])
                 if span["ts"] <= event["ts"] < span["end"]]
        assert len(found) == 1, (event, found)
        return found[0]


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(workers=2)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def start(self, *settings):
        job = self.daemon.submit("train.epochs=100000", "train.batch_size=16", *settings)
        self.daemon.wait_state(job, "RUNNING")
        self.daemon.wait_step(job, 2)
        return job

    def wait_traced(self, job, steps):
        """Waits until fsdpd has the client's request and the ranks have done this number of steps
        since."""
        self.daemon.wait_log(f"trace_ordered job={job} steps=1000 ")
        self.daemon.wait_step(job, int(self.daemon.show(job)["step"]) + steps)

    def stop(self, job):
        self.assertEqual(self.daemon.ctl("cancel", job).returncode, DONE)
        self.daemon.wait_state(job, "CANCELLED")

    def trace(self, job, steps=STEPS, name="trace.json"):
        path = os.path.join(self.daemon.root, name)
        result = self.daemon.ctl("trace", job, "--steps", str(steps), "-o", path,
                                 "--format", "json")
        self.assertEqual(result.returncode, DONE, result.stderr)
        return Trace(path), json.loads(result.stdout)

    def check(self, trace, ranks, steps):
        self.assertEqual({name[1] for name in trace.names if name[0] == "process_name"},
                         set(range(ranks)))
        for rank in range(ranks):
            self.assertTrue(trace.names["process_name", rank, 0].startswith(f"rank {rank} ("))
            for lane, name in LANES.items():
                self.assertEqual(trace.names["thread_name", rank, lane], name)
        for rank in range(ranks):
            whole = trace.of(rank, 3)
            self.assertEqual(len(whole), steps)
            numbers = [span["args"]["step"] for span in whole]
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] + steps)))
            for lane in (0, 1, 2):
                spans = trace.of(rank, lane)
                self.assertTrue(spans or (lane == 1 and ranks == 1), (rank, lane))
                for before, after in zip(spans, spans[1:]):
                    self.assertLessEqual(before["end"], after["ts"], (before, after))
                    # a lane runs its instructions in the plan's order
                    self.assertLess(*((span["args"]["step"], span["args"].get("batch", 1),
                                       span["args"]["instruction"]) for span in (before, after)))
                for span in spans:
                    step = whole[span["args"]["step"] - numbers[0]]
                    self.assertGreaterEqual(span["ts"], step["ts"])
                    self.assertLessEqual(span["end"], step["end"] + 1000)

    def test_two_ranks(self):
        self.check_two_ranks(gathers=True)

    def test_shard_grad_op(self):
        self.check_two_ranks("fsdp.strategy=shard_grad_op", gathers=True)

    def test_no_shard(self):
        self.check_two_ranks("fsdp.strategy=no_shard", gathers=False)

    def check_two_ranks(self, *settings, gathers):
        job = self.start(*settings)
        trace, summary = self.trace(job)
        self.assertEqual((summary["ranks"], summary["hosts"], summary["steps"]), (2, 1, STEPS))
        self.check(trace, 2, STEPS)
        plan = self.daemon.show(job)["plan"]
        self.stop(job)

        # each step does what the plan says
        program = next(program for program in plan["programs"] if program["name"] == "train")
        for rank in (0, 1):
            mine = [span for span in trace.spans if span["pid"] == rank and span["tid"] < 3]
            self.assertEqual(len(mine), STEPS * program["instructions"])
            sent = sum(span["args"].get("bytes", 0) for span in mine)
            self.assertEqual(sent, STEPS * program["communicated_bytes"])
            for collective in program["collectives"]:
                count = sum(span["cat"] == collective["kind"] for span in mine)
                self.assertEqual(count, STEPS * collective["count"], collective)

            counter = [event["args"]["live bytes"] for event in trace.counters
                       if event["pid"] == rank]
            self.assertEqual(len(counter), len(mine))
            self.assertEqual(max(counter), trace.document["otherData"]["live_peak_bytes"])
            # the plan's classes alive at the peak, without the loss to fragmentation
            alive = sum(entry["bytes"] for entry in program["memory"]
                        if not entry["name"].startswith("lost"))
            self.assertEqual(max(counter), alive)
            self.assertLess(min(counter), max(counter))

        # the times by operation add up to it, a mean over ranks and steps
        for lane, name in LANES.items():
            if name != "steps":
                spent = [entry["seconds"] for entry in summary["times"] if entry["lane"] == name]
                spans = [span for span in trace.spans if span["tid"] == lane]
                mean = sum(span["dur"] for span in spans) * 1e-6 / (2 * STEPS)
                # a span of no duration is a nanosecond long in the file
                self.assertAlmostEqual(sum(spent), mean, delta=1e-9 * len(spans))
        often = {entry["what"]: entry["per_step"] for entry in summary["times"]}
        self.assertAlmostEqual(sum(often.values()), program["instructions"])
        self.assertEqual((often["conv2d"], often["linear_backward_weights"]), (2, 2))
        self.assertNotIn("compute", often)

        # one arrow from every gather, to a compute of the same rank and step that begins after it
        count = sum(span["cat"] == "all_gather" for span in trace.spans)
        self.assertEqual(count > 0, gathers)
        self.assertEqual(trace.starts.keys(), trace.ends.keys())
        self.assertEqual(len(trace.starts), count)
        for number, start in trace.starts.items():
            gather, compute = trace.at(start), trace.at(trace.ends[number])
            self.assertEqual(gather["cat"], "all_gather")
            self.assertTrue(gather["args"]["unit"])
            self.assertEqual(compute["cat"], "compute")
            self.assertEqual((gather["pid"], gather["args"]["step"]),
                             (compute["pid"], compute["args"]["step"]))
            self.assertLessEqual(gather["end"], compute["ts"])

        # ranks of one host share a clock: a collective ends on one after it began on the other
        for step in {span["args"]["step"] for span in trace.spans}:
            pairs = {}
            for span in trace.spans:
                if span["tid"] == 1 and span["args"]["step"] == step:
                    pairs.setdefault(span["args"]["instruction"], []).append(span)
            for a, b in pairs.values():
                self.assertLess(a["ts"], b["end"])
                self.assertLess(b["ts"], a["end"])

    def test_accumulation(self):
        """All batches of a step are in its trace, and what they send adds up to its metrics."""
        job = self.start("train.accumulation_steps=3", "train.log_interval=1")
        trace, summary = self.trace(job, 2, "batches.json")
        metrics, plan = (self.daemon.show(job)[key] for key in ("metrics", "plan"))
        self.stop(job)
        self.assertEqual(summary["steps"], 2)
        self.check(trace, 2, 2)
        programs = {program["name"]: program for program in plan["programs"]}
        for rank in (0, 1):
            mine = [span for span in trace.spans if span["pid"] == rank and span["tid"] < 3]
            for batch in (1, 2, 3):
                program = programs["train" if batch == 3 else "accumulate"]
                count = sum(span["args"]["batch"] == batch for span in mine)
                self.assertEqual(count, 2 * program["instructions"])
            sent = sum(span["args"].get("bytes", 0) for span in mine)
            self.assertEqual(sent, 2 * plan["communicated_bytes"])
        self.assertEqual(metrics["communicated_bytes"], plan["communicated_bytes"])
        self.assertEqual(plan["communicated_bytes"],
                         2 * programs["accumulate"]["communicated_bytes"] +
                         programs["train"]["communicated_bytes"])
        self.assertTrue(trace.starts)

    def test_one_rank(self):
        job = self.start("workers=1")
        trace, summary = self.trace(job, 1, "one.json")
        self.stop(job)
        self.assertEqual((summary["ranks"], summary["steps"]), (1, 1))
        self.check(trace, 1, 1)
        self.assertFalse(trace.starts)

    def test_fewer_steps_than_asked_for(self):
        # the job ends on its own, or is cancelled, long before
        job = self.start()
        path = os.path.join(self.daemon.root, "cut.json")
        trace = self.daemon.spawn("trace", job, "--steps", "1000", "-o", path)
        self.wait_traced(job, 5)
        second = self.daemon.ctl("trace", job, "-o", path + "2")
        self.assertEqual(second.returncode, CONFLICT, second.stderr)
        self.assertIn("is being traced already", second.stderr)
        self.stop(job)
        output, errors = trace.communicate(timeout=harness.PATIENCE)
        self.assertEqual(trace.returncode, DONE, errors)
        trace = Trace(path)
        count = trace.document["otherData"]["last_step"] - \
            trace.document["otherData"]["first_step"] + 1
        self.assertTrue(1 <= count < 1000, output)
        self.check(trace, 2, count)

    def test_units_that_change(self):
        # the traced plan is gone; fsdpctl reports the steps that it has, and the next trace is
        # another
        job = self.start("fsdp.wrap.policy=none")
        path = os.path.join(self.daemon.root, "changed.json")
        trace = self.daemon.spawn("trace", job, "--steps", "1000", "-o", path)
        self.wait_traced(job, 5)
        changed = self.daemon.ctl("wrap", "set", job, "--policy", "size",
                                  "--min-num-params", "1000")
        self.assertEqual(changed.returncode, DONE, changed.stderr)
        _, errors = trace.communicate(timeout=harness.PATIENCE)
        self.assertEqual(trace.returncode, DONE, errors)
        before, (after, _) = Trace(path), self.trace(job, 2, "after.json")
        self.stop(job)
        summary = before.document["otherData"]
        self.assertLess(summary["last_step"] - summary["first_step"] + 1, 1000)
        self.check(before, 2, summary["last_step"] - summary["first_step"] + 1)
        self.check(after, 2, 2)
        units = [{span["args"].get("unit") for span in trace.spans if span["tid"] == 1}
                 for trace in (before, after)]
        self.assertLess(len(units[0]), len(units[1]))

    def test_a_client_that_leaves(self):
        job = self.start()
        path = os.path.join(self.daemon.root, "left.json")
        trace = self.daemon.spawn("trace", job, "--steps", "1000", "-o", path)
        self.wait_traced(job, 3)
        trace.terminate()
        trace.communicate(timeout=harness.PATIENCE)
        self.assertEqual([name for name in os.listdir(self.daemon.root) if "left.json" in name], [])
        # the next one takes its place
        again, summary = self.trace(job, 2, "again.json")
        self.assertEqual(summary["steps"], 2)
        self.check(again, 2, 2)
        self.stop(job)

    def test_refusals(self):
        path = os.path.join(self.daemon.root, "refused.json")
        cases = [
            (("trace", "no-such-job", "-o", path), NOT_FOUND, "no-such-job"),
            (("trace", "job"), USAGE, "trace: expected -o FILE"),
            (("trace", "job", "-o", path, "--steps", "0"), USAGE,
             "--steps: expected 1 to 1000, found '0'"),
            (("trace", "job", "-o", path, "--steps", "1001"), USAGE,
             "--steps: expected 1 to 1000, found '1001'"),
            (("trace", "job", "-o", path, "--step", "1"), USAGE, "did you mean --steps?"),
        ]
        job = self.start()
        queued = self.daemon.submit()
        cases.append((("trace", queued, "-o", path), CONFLICT,
                      f"job {queued} is QUEUED; only a running job can be traced"))
        for arguments, code, message in cases:
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, code, (arguments, result.stderr))
            self.assertIn(message, result.stderr)
            self.assertFalse(os.path.exists(path))
        self.daemon.ctl("cancel", queued)
        self.stop(job)
        result = self.daemon.ctl("trace", job, "-o", path)
        self.assertEqual(result.returncode, CONFLICT)
        self.assertIn(f"job {job} is CANCELLED; only a running job can be traced", result.stderr)

    def test_metrics(self):
        job = self.start("train.log_interval=1")
        metrics = self.daemon.wait_for(lambda: self.daemon.show(job).get("metrics"), 20, "metrics")
        shown = self.daemon.ctl("show", job).stdout
        plan = self.daemon.show(job)["plan"]
        self.stop(job)
        self.assertEqual(metrics["memory_bytes"], plan["peak_bytes"])
        self.assertEqual(metrics["memory_peak_bytes"], plan["peak_bytes"])
        self.assertEqual(metrics["communicated_bytes"], plan["communicated_bytes"])
        self.assertGreater(metrics["compute_seconds"], 0)
        self.assertGreater(metrics["communication_seconds"], 0)
        self.assertGreaterEqual(metrics["exposed_communication_seconds"], 0)
        self.assertLessEqual(metrics["exposed_communication_seconds"],
                             metrics["communication_seconds"])
        for part in ("compute_seconds", "communication_seconds"):
            self.assertLessEqual(metrics[part], metrics["step_seconds"])  # a part of it, by the same clock
        self.assertRegex(shown, r"(?m)^network +.* sent per rank and step, .* of it exposed$")

    def op_times(self, job, after):
        """The first known step after `after`: its number, and seconds by kind."""
        def look():
            metrics = self.daemon.show(job).get("metrics", {})
            return metrics if int(metrics.get("op_times_step", 0)) > after else None
        metrics = self.daemon.wait_for(look, 60, f"op times behind step {after}")
        times = {row["op"]: row["seconds"] for row in metrics["op_times"]}
        self.assertEqual(list(times.values()), sorted(times.values(), reverse=True))
        return int(metrics["op_times_step"]), times

    def test_op_times(self):
        """Operation times continue during a trace, and under other units."""
        job = self.start("train.log_interval=2", "train.trace_interval=4", "train.accumulation_steps=2")
        step, times = self.op_times(job, 0)
        self.assertEqual(step % 4, 0)
        self.assertRegex(self.daemon.ctl("show", job).stdout, r"(?m)^ops +\w+ .*, in step \d+$")
        _, summary = self.trace(job, 5)
        self.assertEqual({row["what"] for row in summary["times"]}, set(times))
        step, times = self.op_times(job, int(self.daemon.show(job)["step"]))
        self.assertEqual(step % 4, 0)
        self.assertGreater(times["conv2d"], 0)
        result = self.daemon.ctl("wrap", "set", job, "--policy", "none")
        self.assertEqual(result.returncode, DONE, result.stderr)
        step, times = self.op_times(job, int(self.daemon.show(job)["step"]))
        self.assertGreater(times["conv2d"], 0)
        self.stop(job)
        rows = self.daemon.ctl("metrics", job, "-o", "json").stdout
        self.assertIn("op_times", rows)

    def test_no_op_times(self):
        job = self.start("train.log_interval=1")
        self.daemon.wait_step(job, 12)
        self.assertEqual(self.daemon.show(job)["metrics"]["op_times"], [])
        self.stop(job)


if __name__ == "__main__":
    main()
