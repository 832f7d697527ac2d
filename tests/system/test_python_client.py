#!/usr/bin/env python3
"""clients/python, built as a wheel of its sdist: it submits, plans, watches through a restart and pulls what fsdpctl
does, and the programs of its README and of ours run. $FSDPD_PYTHON may name a Python that has the packages."""

import glob
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import typing
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(__file__))
import harness
import printed

harness.need("grpc>=1.60", "grpc_tools.protoc", "numpy", "setuptools", "pip", "yaml")
import grpc
import numpy

# Of the tutorial's network.
SHAPES = {"conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,), "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,),
          "fc1.weight": (128, 9216), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
README = os.path.join(harness.SOURCE, "clients/python/README.md")


def build(directory):
    """Builds the sdist of a copy, as the sources may be read-only, and the wheel of that alone, and unpacks it; returns
    where it can be imported."""
    for part in ("clients/python", "proto"):
        shutil.copytree(os.path.join(harness.SOURCE, part), os.path.join(directory, part),
                        ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    subprocess.run(["chmod", "-R", "u+w", directory], check=True)
    make = f"import setuptools.build_meta as made; print(made.build_sdist({directory!r}))"
    for command in (["-c", make], ["-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir",
                                   directory]):
        built = subprocess.run([sys.executable, *command, *glob.glob(os.path.join(directory, "fsdpd-*.tar.gz"))],
                               cwd=os.path.join(directory, "clients/python"), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        if built.returncode != 0:
            raise AssertionError(built.stdout)
    wheel, = glob.glob(os.path.join(directory, "*.whl"))
    site = os.path.join(directory, "site")
    shutil.unpack_archive(wheel, site, "zip")
    if importlib.util.find_spec("google.rpc") is None:  # googleapis-common-protos, from our copies of its files
        protos = os.path.join(directory, "proto")
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={site}",
                        "google/rpc/status.proto", "google/rpc/error_details.proto"], check=True)
    return site


class Module:
    """What the README's program needs of a torch.nn.Module, as strict."""

    def load_state_dict(self, state):
        assert {name: array.shape for name, array in state.items()} == SHAPES, state.keys()
        self.state = state

    def state_dict(self):
        return self.state


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.site = build(cls.directory)
        sys.path.insert(0, cls.site)
        global fsdpd, api
        import fsdpd
        import fsdpd.messages as api
        cls.daemon = harness.Daemon()
        cls.client = fsdpd.connect(cls.daemon.address, timeout=harness.PATIENCE)
        shutil.copy(os.path.join(harness.SOURCE, "examples/mnist/net.yaml"), cls.directory)
        cls.job = os.path.join(cls.directory, "job.yaml")
        with open(cls.job, "w") as file:
            file.write(f"name: mnist\nmodel: {{file: net.yaml}}\ndata: {{dir: {cls.daemon.data}}}\nworkers: 2\n"
                       "train: {log_interval: 1, max_steps: 30}\n")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.close()
        shutil.rmtree(cls.directory)

    def test_files_of_tls_that_are_missing(self):
        authority = os.path.join(self.directory, "ca.crt")
        with open(authority, "w") as file:
            file.write("no certificate")
        with unittest.mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": self.directory, "FSDPD_TLS_KEY": "/nowhere/my.key"}):
            with self.assertRaises(FileNotFoundError) as caught:
                fsdpd.connect("127.0.0.1:7000", ca=authority)
        self.assertEqual(str(caught.exception),
                         "127.0.0.1:7000 needs mutual TLS by three files: "
                         f"{self.directory}/fsdpd/tls/client.crt: No such file or directory (certificate=, or "
                         "FSDPD_TLS_CERTIFICATE); /nowhere/my.key: No such file or directory (key=, or FSDPD_TLS_KEY)")

    def test_a_job_from_plan_to_weights(self):
        client = self.client
        plan = client.plan(self.job, "train.seed=5")
        job = client.submit(self.job, "train.seed=5", id="from-python")
        self.assertEqual((job.id, job.spec.train.seed, plan.hash), ("from-python", 5, job.plan.hash))
        self.assertEqual(client.submit(self.job, "train.seed=5", id="from-python").id, job.id)
        events = list(client.watch(job.id))
        self.assertEqual([event.metrics.step for event in events if event.HasField("metrics")], list(range(1, 31)))
        self.assertEqual(client.wait(job.id).state, api.JOB_STATE_SUCCEEDED)
        last = events[-1].sequence
        self.assertEqual([event.sequence for event in client.watch(job.id, after=last - 2)], [last - 1, last])
        # The same job from fsdpctl has the same losses; its file differs in the job's name alone.
        other = self.daemon.ctl("submit", self.job, "--set", "train.seed=5", "--id", "fsdpctl-one").stdout.strip()
        self.daemon.wait_state(other, "SUCCEEDED")
        self.assertEqual([(event.metrics.step, event.metrics.loss) for event in events if event.HasField("metrics")],
                         self.daemon.losses(other))
        path = os.path.join(self.directory, "pulled.safetensors")
        self.assertIsNone(client.pull(job.id, path))
        theirs = os.path.join(self.directory, "theirs.safetensors")
        self.assertEqual(self.daemon.ctl("pull", job.id, "-o", theirs).returncode, 0)
        with open(path, "rb") as mine, open(theirs, "rb") as expected:
            self.assertEqual(mine.read(), expected.read())
        arrays, expected = client.pull(job.id), harness.read_safetensors(theirs)[0]
        self.assertEqual(list(arrays), list(expected))
        for name, (_, shape, raw) in expected.items():
            numpy.testing.assert_array_equal(arrays[name], numpy.frombuffer(raw, "<f4").reshape(shape))
        self.assertEqual(os.path.exists(path + ".partial"), False)

    def test_a_message_and_overrides_of_the_model(self):
        client = self.client
        with open(os.path.join(self.directory, "net.yaml")) as file:
            spec = api.JobSpec(name="message", model=api.ModelSpec(text=file.read()),
                               data=api.DataSpec(dir=self.daemon.data), workers=2)
        peak = client.plan(spec).peak_bytes
        self.assertEqual(peak, client.plan(self.job).peak_bytes)
        os.makedirs(os.path.join(self.directory, "models"), exist_ok=True)
        with open(os.path.join(self.directory, "models/small.yaml"), "w") as file:
            file.write(spec.model.text.replace("9216, 128", "9216, 64").replace("128, 10", "64, 10"))
        for name in ("models/small.yaml", os.path.join(self.directory, "models/small.yaml")):
            self.assertLess(client.plan(self.job, f"model.file={name}").peak_bytes, peak)
        self.assertLess(client.plan(self.job, "model={file: models/small.yaml}").peak_bytes, peak)
        with self.assertRaises(TypeError):
            client.plan(spec, "train.epochs=2")

    def test_refusals_are_those_of_fsdpctl(self):
        for override in ("train.epochs=many", "nonsense", "optimizer.lr=-1", "fsdp.wrap.policy=some"):
            with self.assertRaises(fsdpd.Error) as raised:
                self.client.submit(self.job, override)
            self.assertEqual(raised.exception.code, grpc.StatusCode.INVALID_ARGUMENT)
            shown = self.daemon.ctl("submit", self.job, "--set", override).stderr.strip()
            self.assertEqual(shown, f"fsdpctl: {raised.exception}")
            self.assertEqual(raised.exception.field, override.split("=")[0] if "=" in override else "")
        wrong = os.path.join(self.directory, "wrong.yaml")
        with open(self.job) as file, open(wrong, "w") as other:
            other.write(file.read() + "optimizer:\n  type: adadelta\n  rate: 3\n")
        with self.assertRaises(fsdpd.Error) as raised:
            self.client.plan(wrong)
        self.assertEqual((raised.exception.reason, raised.exception.field, raised.exception.line),
                         ("INVALID_FIELD", "optimizer.rate", 8))
        path = os.path.join(self.directory, "none.safetensors")
        for call in (self.client.job, self.client.cancel, self.client.pull, self.client.wait,
                     lambda name: self.client.pull(name, path)):
            with self.assertRaises(fsdpd.Error) as raised:
                call("none-7")
            self.assertEqual(raised.exception.code, grpc.StatusCode.NOT_FOUND)
            self.assertIn("none-7", str(raised.exception))
        self.assertEqual(glob.glob(path + "*"), [])
        with self.assertRaises(FileNotFoundError):
            self.client.submit(self.job, "model.file=none.yaml")
        with fsdpd.connect("unix:" + os.path.join(self.directory, "none.sock"), timeout=5) as unreachable:
            with self.assertRaises(fsdpd.Error) as raised:
                unreachable.job("mnist-1")
            self.assertEqual(raised.exception.code, grpc.StatusCode.UNAVAILABLE)

    def test_lists_are_iterated_over_all_pages(self):
        client = self.client
        ids = [client.submit(self.job, f"labels.part={number}", "labels.of=list", hold=True).id for number in range(5)]
        for size in (0, 1, 2):
            self.assertEqual([job.id for job in client.jobs(labels={"of": "list"}, page_size=size)], ids[::-1])
            self.assertEqual([worker.id for worker in client.workers(page_size=size)],
                             [worker["id"] for worker in json.loads(self.daemon.ctl("workers", "-o", "json").stdout)])
            self.assertEqual([family.path for family in client.families(page_size=size)],
                             [family["path"] for family in json.loads(self.daemon.ctl("families", "-o", "json").stdout)])
            self.assertEqual(list(client.checkpoints(ids[0], page_size=size)), [])
        found = client.jobs(states=[api.JOB_STATE_QUEUED], labels={"part": "3"})
        self.assertEqual(next(found).id, ids[3])
        for id in ids:
            self.assertEqual(client.cancel(id).state, api.JOB_STATE_CANCELLED)
        for size in (0, 1):
            self.assertEqual([entry.reason.code for entry in client.history(ids[0], page_size=size)], ["CANCELLED", "HELD"])
        with self.assertRaises(fsdpd.Error) as raised:
            next(client.history("none-7"))
        self.assertEqual(raised.exception.code, grpc.StatusCode.NOT_FOUND)

    def test_watching_continues_after_a_restart(self):
        job = self.client.submit(self.job, "train.max_steps=0", "train.epochs=1000")
        sequences, restarted, ended = [], False, False
        for event in self.client.watch(job.id):
            sequences.append(event.sequence)
            if event.HasField("metrics") and event.metrics.step >= 5 and not restarted:
                restarted = True
                self.daemon.kill()
                self.daemon.start()
                after = int(self.daemon.show(job.id)["step"])
            if restarted and event.HasField("metrics") and event.metrics.step > after + 5 and not ended:
                ended = True  # events of steps before the end still come
                self.client.cancel(job.id)
        self.assertEqual(sequences, sorted(set(sequences)))
        self.assertEqual(self.client.job(job.id).state, api.JOB_STATE_CANCELLED)

    def test_a_job_is_held_paused_and_resumed(self):
        client = self.client
        job = client.submit(self.job, "train.max_steps=0", "train.epochs=100000", hold=True)
        self.assertEqual(client.job(job.id).reason.code, "HELD")
        self.assertIn(f"starts only after fsdpctl release {job.id}.", client.why(job.id))
        self.assertEqual(client.set_priority(job.id, 3).priority, 3)
        self.assertEqual(client.release(job.id).held_by, "")
        self.daemon.wait_step(job.id, 3)
        checkpoint = client.checkpoint(job.id)
        self.assertGreater(checkpoint.step, 0)
        self.assertEqual(len(client.diagnose(job.id, stacks=False).ranks), 2)
        self.assertEqual({chunk.rank for chunk in client.trace(job.id, 2)}, {0, 1})
        with self.assertRaises(fsdpd.Error) as raised:
            client.evaluate(job.id, path="elsewhere")
        self.assertIn("elsewhere", str(raised.exception))
        policy = api.WrapSpec(policy=api.WRAP_POLICY_NONE)
        self.assertEqual(client.set_wrap(job.id, policy).chosen.wrap.policy, api.WRAP_POLICY_NONE)
        with self.assertRaises(fsdpd.Error) as raised:
            client.resume(job.id)
        self.assertEqual(raised.exception.reason, "JOB_CANNOT_RESUME")
        with self.assertRaises(fsdpd.Error) as raised:
            client.resize(job.id, 1)
        self.assertIn("elastic", str(raised.exception))
        client.pause(job.id)
        self.daemon.wait_state(job.id, "PAUSED")
        step = client.job(job.id).step
        with self.assertRaises(TypeError):
            client.resume(job.id, None, "train.epochs=2")
        with self.assertRaises(fsdpd.Error) as raised:
            client.resume(job.id, self.job, "train.seed=9")
        self.assertEqual((raised.exception.reason, raised.exception.field), ("SETTING_IS_FIXED", "train.seed"))
        resumed = client.resume(job.id, self.job, f"train.max_steps={step + 5}")
        self.assertEqual((resumed.spec.train.max_steps, resumed.reason.code), (step + 5, "RESUMED"))
        self.assertEqual(client.wait(job.id).step, step + 5)
        rows = [row.event.metrics.step for row in client.metrics(job.id) if row.event.HasField("metrics")]
        self.assertEqual(rows[-1], step + 5)
        self.assertEqual(rows, sorted(rows))
        lines = list(client.logs(job.id))
        behind = [line.position for line in client.logs(job.id, after=lines[-3].position)]
        self.assertEqual(behind[:2], [line.position for line in lines[-2:]])
        self.assertEqual({line.rank for line in client.logs(job.id, rank=-1, tail=2)}, {-1})
        client.forget(job.id)
        with self.assertRaises(fsdpd.Error):
            next(client.logs(job.id))

    def test_samples_come_at_once_or_token_by_token(self):
        """An iterator that is closed ends its call: the next one has its turn."""
        client = self.client
        files = (("letters.txt", "to be or not to be, " * 500), ("letters-model.yaml",
                 "name: Letters\ninput: tokens\nvocabulary: 256\ncontext: 200000\nmodules: {table: 'Embedding(256, 8)', head: "
                 "'Linear(8, 256)'}\nforward:\n  - output = head(table(x))\nloss: cross_entropy(output, target)\n"),
                 ("letters.yaml", "name: letters\nmodel: {file: letters-model.yaml}\ndata: {format: text, path: "
                 "letters.txt, context: 8}\ntrain: {batch_size: 2, max_steps: 1000000}\noptimizer: {lr: 0}\n"))
        for name, text in files:
            with open(os.path.join(self.daemon.data if name == "letters.txt" else self.directory, name), "w") as file:
                file.write(text)
        job = client.submit(os.path.join(self.directory, "letters.yaml"))
        self.daemon.wait_step(job.id, 1)
        first, second = client.sample(job.id, [list(b"to"), list(b"be")], 5, temperature=1, seed=3).sequences
        self.assertEqual([len(first.tokens), len(second.tokens)], [5, 5])
        self.assertEqual(list(client.sample_tokens(job.id, list(b"to"), 5, temperature=1, seed=3)), list(first.tokens))
        endless = client.sample_tokens(job.id, list(b"to"), 199000, temperature=1)
        self.assertIsInstance(next(endless), int)
        endless.close()
        self.assertEqual(len(list(client.sample_tokens(job.id, list(b"to"), 2))), 2)
        client.cancel(job.id)

    def test_an_array_is_submitted_and_its_jobs_are_listed(self):
        client = self.client
        path = os.path.join(self.daemon.root, "sweep.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"objectives": [{"metric": "loss"}], "searchAlgorithm": {"grid": {}}, "trainJobTemplate": self.job,
                       "parameters": [{"name": "lr", "searchSpace": {"categorical": {"choices": [0.5, 0.1]}}}]}, file)
        sweep = client.submit(path, "optimizer.lr=${lr}", hold=True)
        self.daemon.wait_for(lambda: client.job(sweep.id).array_jobs.queued == 2, 30, "the trials to be made")
        self.assertEqual([dict(job.spec.of_array.values) for job in client.jobs(array=sweep.id)],
                         [{"lr": "0.1"}, {"lr": "0.5"}])
        client.cancel(sweep.id)
        array = client.submit(self.job, "train.seed=${index}", hold=True, array="3-4%1")
        self.daemon.wait_for(lambda: client.job(array.id).array_jobs.queued == 2, 30, "the jobs to be made")
        self.assertEqual([(job.id, job.spec.train.seed) for job in client.jobs(array=array.id)],
                         [(f"{array.id}-4", 4), (f"{array.id}-3", 3)])
        client.cancel(array.id)
        self.daemon.wait_state(array.id, "CANCELLED")

    def test_workers_are_drained(self):
        client = self.client
        self.assertEqual((client.version().workers, client.version().refuses), (2, ""))
        worker = self.daemon.worker_list()[0]["id"]
        issued = client.issue_token("ann", role="operator", seconds=60)
        self.assertTrue(issued.secret.startswith("fsdpd_"))
        self.assertEqual([token.name for token in client.tokens()], ["ann"])
        self.assertEqual((client.revoke_tokens("ann"), list(client.tokens())), (1, []))
        self.assertEqual([drained.id for drained in client.drain(worker)], [worker])
        self.daemon.wait_for(
            lambda: sorted(other["state"] for other in self.daemon.worker_list()) == ["drained", "idle"],
            harness.PATIENCE, "a drained worker")
        self.assertEqual([drained.id for drained in client.undrain(worker)], [worker])

    def test_the_readme_lists_every_method(self):
        with open(os.path.join(self.site, "fsdpd/client.py"), encoding="utf-8") as file:
            used = set(re.findall(r"self\.stub\.(\w+)", file.read()))
        service = importlib.import_module("fsdpd.v1.control_pb2").DESCRIPTOR.services_by_name["Control"]
        self.assertLessEqual(used, {method.name for method in service.methods})
        with open(README, encoding="utf-8") as file:
            rows = [line.split(" | ")[0] for line in file if line.startswith("| `")]
        shown = set(re.findall(r"[`, ](\w+)\(", "".join(rows)))
        public = {name for name, _ in inspect.getmembers(fsdpd.Client, inspect.isfunction) if not name.startswith("_")}
        self.assertEqual(shown, public - {"close", "call", "pages", "stream", "pull_chunks"})

    def modules(self):
        """PyTorch, or what stands in for it, and the program's model."""
        return {"torch": types.SimpleNamespace(from_numpy=lambda array: array)}, Module()

    def execute(self, program, modules=(), **names):
        """Runs it where job.yaml is; returns its names."""
        old = os.getcwd()
        os.chdir(self.directory)
        try:
            with unittest.mock.patch.dict(sys.modules, modules), \
                    unittest.mock.patch.dict(os.environ, FSDPD_ADDRESS=self.daemon.address):
                exec(compile(program, README, "exec"), names)
        finally:
            os.chdir(old)
        return names

    def test_the_program_of_the_projects_readme(self):
        names = self.execute("\n".join(printed.block("README.md", "API").lines), fsdpd=fsdpd)
        self.assertEqual({name: array.shape for name, array in names["weights"].items()}, SHAPES)

    def test_the_program_of_the_readme(self):
        with open(README, encoding="utf-8") as file:
            program, = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        self.assertLessEqual(len(program.splitlines()), 11)
        modules, model = self.modules()
        self.execute(program, modules, model=model)
        pulled = os.path.join(self.directory, "program.safetensors")
        self.daemon.ctl("pull", self.daemon.json("list")[-1]["id"], "-o", pulled)
        loaded = model.state_dict()
        for name, (_, shape, raw) in harness.read_safetensors(pulled)[0].items():
            numpy.testing.assert_array_equal(loaded[name], numpy.frombuffer(raw, "<f4").reshape(shape))

    def test_it_is_typed(self):
        self.assertTrue(os.path.exists(os.path.join(self.site, "fsdpd/py.typed")))
        self.assertTrue(os.path.exists(os.path.join(self.site, "fsdpd/v1/spec_pb2.pyi")))
        for function in (fsdpd.connect, *(member for name, member in inspect.getmembers(fsdpd.Client, inspect.isfunction)
                                          if not name.startswith("_"))):
            parameters = set(inspect.signature(function).parameters) - {"self"}
            self.assertEqual(set(typing.get_type_hints(function)), parameters | {"return"}, function.__name__)


if __name__ == "__main__":
    harness.main()
