#!/usr/bin/env python3
"""The API for programs that have only the .proto file: a Python client made by protoc trains with a
minimal message."""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness
import wire

try:
    import grpc
except ImportError as error:
    print(f"Python's grpcio is missing: {error}")
    sys.exit(77)

NET = os.path.join(harness.SOURCE, "examples/mnist/net.yaml")


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.api, _ = wire.generate(cls.directory)
        cls.types = wire.generate_details()
        cls.daemon = harness.Daemon()
        cls.channel = grpc.insecure_channel(cls.daemon.address)
        with open(NET) as file:
            cls.model = file.read()

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.daemon.close()
        shutil.rmtree(cls.directory)

    def call(self, method, request):
        """The answer to a unary call, or to a stream its list."""
        service = self.api.DESCRIPTOR.services_by_name["Control"]
        one = wire.Method(service, service.methods_by_name[method])
        response = getattr(self.api, service.methods_by_name[method].output_type.name)
        make = self.channel.unary_stream if one.gets_stream else self.channel.unary_unary
        answer = make(one.name, request_serializer=type(request).SerializeToString,
                      response_deserializer=response.FromString)(
                          request, timeout=10 * harness.PATIENCE)
        return list(answer) if one.gets_stream else answer

    def refused(self, method, request):
        with self.assertRaises(grpc.RpcError) as raised:
            self.call(method, request)
        return raised.exception

    def minimal(self):
        """Name, model, data and workers, as a job file of four lines has them."""
        api = self.api
        return api.JobSpec(name="minimal", model=api.ModelSpec(text=self.model),
                           data=api.DataSpec(dir=self.daemon.data), workers=2)

    def file(self, *overrides, extra=""):
        """The same as a job file, with its model beside it."""
        return self.api.JobFile(
            text=f"name: minimal\nmodel: {{file: net.yaml}}\ndata: {{dir: {self.daemon.data}}}\n"
                 f"workers: 2\n{extra}",
            overrides=overrides, files={"net.yaml": self.model})

    def weights(self, job):
        chunks = self.call("PullStateDict", self.api.PullStateDictRequest(id=job))
        return b"".join(chunk.data for chunk in chunks)

    def test_a_minimal_message_trains_as_the_job_file(self):
        api = self.api
        spec = self.minimal()
        spec.train.max_steps = 20
        first = self.call("SubmitJob", api.SubmitJobRequest(spec=spec)).job
        path = os.path.join(self.directory, "job.yaml")
        with open(path, "w") as file:
            file.write(f"name: minimal\nmodel: {{file: {NET}}}\n"
                       f"data: {{dir: {self.daemon.data}}}\nworkers: 2\n")
        second = self.daemon.ctl("submit", path, "--set", "train.max_steps=20").stdout.strip()
        self.daemon.wait_state(first.id, "SUCCEEDED")
        self.daemon.wait_state(second, "SUCCEEDED")
        self.assertEqual(self.daemon.losses(first.id), self.daemon.losses(second))
        self.assertEqual(self.weights(first.id), self.weights(second))
        # The daemon answers with the message that it completed.
        self.assertEqual(first.spec.optimizer.type, api.OPTIMIZER_TYPE_ADADELTA)
        self.assertEqual((first.spec.optimizer.lr, first.spec.optimizer.rho), (1.0, 0.9))
        self.assertTrue(first.spec.train.dropout and first.spec.train.shuffle)
        self.assertFalse(first.spec.optimizer.HasField("momentum"))

    def test_the_job_file_through_the_api(self):
        api = self.api
        spec = self.minimal()
        spec.train.max_steps = 20
        first = self.call("SubmitJob", api.SubmitJobRequest(spec=spec)).job
        second = self.call("SubmitJob", api.SubmitJobRequest(
            job_file=self.file("train.max_steps=20"))).job
        spec.model.file_name = "net.yaml"
        plan = self.call("PlanJob", api.PlanJobRequest(job_file=self.file("train.max_steps=20"))).plan
        self.assertEqual(plan.hash, first.plan.hash)
        second.spec.model.file_name = first.spec.model.file_name
        self.assertEqual(first.spec, second.spec)
        self.daemon.wait_state(first.id, "SUCCEEDED")
        self.daemon.wait_state(second.id, "SUCCEEDED")
        self.assertEqual(self.weights(first.id), self.weights(second.id))

    def test_a_job_file_is_refused_in_the_words_of_fsdpctl(self):
        api = self.api
        path = os.path.join(self.directory, "job.yaml")
        shutil.copy(NET, os.path.join(self.directory, "net.yaml"))
        for extra, overrides in (("train:\n  epoch: 3\n", ()), ("train: {epochs: many}\n", ()),
                                 ("optimizer: {type: sgd, rho: 1}\n", ()), ("{", ()),
                                 ("", ("train.epochs=0",)), ("", ("nonsense",)),
                                 ("", ("model.file=other.yaml", "model.hf=x", "model.hf=y")),
                                 ("fsdp: {shard_size: 3, strategy: hybrid_shard}\n", ())):
            file = self.file(*overrides, extra=extra)
            with open(path, "w") as stream:
                stream.write(file.text)
            file.name = path
            arguments = [part for one in overrides for part in ("--set", one)]
            shown = self.daemon.ctl("submit", path, *arguments)
            self.assertEqual(shown.returncode, 2, shown.stderr)
            for request in (api.SubmitJobRequest(job_file=file), api.PlanJobRequest(job_file=file)):
                error = self.refused(type(request).__name__.replace("Request", ""), request)
                self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertEqual(shown.stderr.strip(), "fsdpctl: " + error.details())

    def test_a_job_file_reads_nothing_of_the_daemons_host(self):
        api = self.api
        error = self.refused("SubmitJob", api.SubmitJobRequest(
            job_file=self.file(f"model.file={NET}")))
        self.assertIn(f"expected the text of {NET} among the files", error.details())
        error = self.refused("SubmitJob", api.SubmitJobRequest(job_file=self.file(),
                                                               spec=self.minimal()))
        self.assertIn("job_file: expected this or spec, found both", error.details())
        error = self.refused("SubmitJob", api.SubmitJobRequest())
        self.assertIn("spec: expected this or job_file, found neither", error.details())

    def details(self, method, request):
        return wire.details(self.refused(method, request), self.types)

    def test_an_invalid_field_is_named_for_programs(self):
        api = self.api
        spec = self.minimal()
        spec.data.normalize_std = 0
        found = self.details("SubmitJob", api.SubmitJobRequest(spec=spec))
        self.assertEqual((found["ErrorInfo"].reason, found["ErrorInfo"].domain),
                         ("INVALID_FIELD", "fsdpd"))
        violation, = found["BadRequest"].field_violations
        self.assertEqual(violation.field, "data.normalize_std")
        self.assertIn("expected a number from 1e-06", violation.description)
        self.assertNotIn("PreconditionFailure", found)
        for extra, overrides, field, line in (
                ("train:\n  epoch: 3\n", (), "train.epoch", "6"),
                ("train: {epochs: many}\n", (), "train.epochs", "5"),
                ("optimizer: {type: sgd, nesterov: true}\n", (), "optimizer.nesterov", None),
                ("optimizer: {type: sgd, rho: 1}\n", (), "optimizer.rho", "5"),
                ("", ("train.epochs=0",), "train.epochs", None)):
            for method, request in (("SubmitJob", api.SubmitJobRequest), ("PlanJob",
                                                                          api.PlanJobRequest)):
                found = self.details(method, request(job_file=self.file(*overrides, extra=extra)))
                self.assertEqual(found["BadRequest"].field_violations[0].field, field)
                self.assertEqual(found["ErrorInfo"].metadata.get("line"), line)
        # A syntax error belongs to no field, but to a line.
        found = self.details("PlanJob", api.PlanJobRequest(job_file=self.file(extra="a: [\n")))
        self.assertNotIn("BadRequest", found)
        self.assertGreaterEqual(int(found["ErrorInfo"].metadata["line"]), 5)

    def test_a_state_that_does_not_permit_a_call_is_named_for_programs(self):
        api = self.api
        job = self.call("SubmitJob", api.SubmitJobRequest(spec=self.minimal(), id="mine")).job.id
        self.daemon.wait_step(job, 2)
        for method, request, reason in (
                ("ForgetJob", api.ForgetJobRequest(id=job), "JOB_IS_NOT_OVER"),
                ("HoldJob", api.HoldJobRequest(id=job), "JOB_IS_NOT_QUEUED"),
                ("ResumeJob", api.ResumeJobRequest(id=job), "JOB_CANNOT_RESUME")):
            found = self.details(method, request)
            self.assertEqual(found["ErrorInfo"].reason, reason)
            violation, = found["PreconditionFailure"].violations
            self.assertEqual((violation.type, violation.subject), (reason, job))
        spec = self.minimal()
        spec.train.seed = 2
        found = self.details("SubmitJob", api.SubmitJobRequest(spec=spec, id="mine"))
        self.assertEqual(found["ErrorInfo"].reason, "ID_IS_IN_USE")
        self.call("CancelJob", api.CancelJobRequest(id=job))
        self.daemon.wait_state(job, "CANCELLED")
        for method, request, reason in (
                ("CancelJob", api.CancelJobRequest(id=job), "JOB_IS_OVER"),
                ("TraceJob", api.TraceJobRequest(id=job, steps=1), "JOB_IS_NOT_RUNNING"),
                ("CreateCheckpoint", api.CreateCheckpointRequest(id=job), "JOB_IS_NOT_RUNNING"),
                ("SetWrapPolicy", api.SetWrapPolicyRequest(id=job, wrap=api.WrapSpec(
                    policy=api.WRAP_POLICY_NONE)), "JOB_IS_NOT_RUNNING")):
            found = self.details(method, request)
            self.assertIn(found["ErrorInfo"].reason, (reason, "JOB_IS_OVER"))
            self.assertEqual(found["PreconditionFailure"].violations[0].subject, job)
        found = self.details("GetJob", api.GetJobRequest(id="nothing-1"))
        self.assertEqual(found["ErrorInfo"].reason, "JOB_NOT_FOUND")
        self.assertEqual(found["ErrorInfo"].metadata["subject"], "nothing-1")

    def test_a_long_error_arrives_without_details(self):
        """Details that do not fit into the metadata must not cost the message."""
        error = self.refused("GetJob", self.api.GetJobRequest(id="x" * 3500))
        self.assertEqual(error.code(), grpc.StatusCode.NOT_FOUND)
        self.assertGreater(len(error.details()), 3500)
        self.assertNotIn("grpc-status-details-bin", dict(error.trailing_metadata()))

    def test_jobs_come_in_pages(self):
        api = self.api
        ids = []
        for number in range(7):
            spec = self.minimal()
            spec.name = "page"
            spec.labels["parity"] = "odd" if number % 2 else "even"
            ids.append(self.call("SubmitJob", api.SubmitJobRequest(spec=spec, hold=True)).job.id)
        for labels, expected in (({}, ids), ({"parity": "even"}, ids[0::2])):
            for states in ([], [api.JOB_STATE_QUEUED]):  # from the store; from memory
                found, token, pages = [], "", 0
                while True:
                    page = self.call("ListJobs", api.ListJobsRequest(
                        name="page", labels=labels, states=states, page_size=2, page_token=token))
                    found = [job.id for job in page.jobs] + found
                    self.assertEqual(page.left_out, len(expected) - len(found))
                    pages, token = pages + 1, page.next_page_token
                    if not token:
                        break
                self.assertEqual(found, expected)
                self.assertEqual(pages, (len(expected) + 1) // 2)
        # The job that a token names may be forgotten meanwhile.
        page = self.call("ListJobs", api.ListJobsRequest(name="page", page_size=3))
        last = page.jobs[0].id
        self.assertEqual(last, ids[4])
        self.call("CancelJob", api.CancelJobRequest(id=last))
        self.call("ForgetJob", api.ForgetJobRequest(id=last))
        page = self.call("ListJobs", api.ListJobsRequest(name="page",
                                                         page_token=page.next_page_token))
        self.assertEqual([job.id for job in page.jobs], ids[:4])
        for token in ("nonsense", "5:", ":x", "x:page-1", "1:../x"):
            found = self.details("ListJobs", api.ListJobsRequest(page_token=token))
            self.assertEqual(found["BadRequest"].field_violations[0].field, "page_token")
        for job in ids[:4] + ids[5:]:
            self.call("CancelJob", api.CancelJobRequest(id=job))

    def pages(self, method, rows, **fields):
        """The rows of all pages of two, page by page."""
        request = getattr(self.api, method + "Request")(page_size=2, **fields)
        found = []
        while True:
            page = self.call(method, request)
            found.append(list(getattr(page, rows)))
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    def test_every_list_comes_in_pages(self):
        api = self.api
        settings = ("name=list", "train.max_steps=5", "checkpoint.every_steps=1", "checkpoint.keep=0")
        job = self.call("SubmitJob", api.SubmitJobRequest(job_file=self.file(*settings))).job.id
        self.daemon.wait_state(job, "SUCCEEDED")
        steps = [[one.step for one in page] for page in self.pages("ListCheckpoints", "checkpoints", id=job)]
        self.assertEqual(steps, [[4, 5], [2, 3], [1]])
        history = self.call("GetHistory", api.GetHistoryRequest(id=job)).entries
        pages = self.pages("GetHistory", "entries", id=job)
        self.assertEqual([entry for page in reversed(pages) for entry in page], list(history))
        for method, rows in (("ListWorkers", "workers"), ("ListFamilies", "families")):
            whole = self.call(method, getattr(api, method + "Request")())
            pages = self.pages(method, rows)
            self.assertEqual([row for page in pages for row in page], list(getattr(whole, rows)))
            self.assertEqual(len(pages), (len(getattr(whole, rows)) + 1) // 2)
            found = self.details(method, getattr(api, method + "Request")(page_token="nonsense"))
            self.assertEqual(found["BadRequest"].field_violations[0].field, "page_token")

    def test_a_given_zero_is_refused_by_its_name(self):
        api = self.api
        for path, value in (("train.batch_size", 0), ("optimizer.eps", 0), ("workers", 0),
                            ("data.normalize_std", 0), ("train.epochs", 0),
                            ("optimizer.lr", float("nan"))):
            spec = self.minimal()
            part, name = spec, path
            while "." in name:
                section, name = name.split(".", 1)
                part = getattr(part, section)
            setattr(part, name, value)
            for request in (api.SubmitJobRequest(spec=spec), api.PlanJobRequest(spec=spec)):
                method = type(request).__name__.replace("Request", "")
                error = self.refused(method, request)
                self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn(path.replace("normalize_std", "normalize.std") + ": expected",
                              error.details())

    def test_a_job_resumes_with_its_job_file(self):
        api = self.api
        settings = ("train.epochs=100000", "checkpoint.every_steps=5", "optimizer.type=muon")
        job = self.call("SubmitJob", api.SubmitJobRequest(job_file=self.file(*settings))).job.id
        self.daemon.wait_step(job, 6)
        self.call("PauseJob", api.PauseJobRequest(id=job))
        paused = self.call("GetJob", api.GetJobRequest(id=job)).job
        self.assertEqual(paused.state, api.JOB_STATE_PAUSED)
        file = self.file(*settings, f"train.max_steps={paused.step + 3}", "checkpoint.keep=2")
        error = self.refused("ResumeJob", api.ResumeJobRequest(id=job, spec=paused.spec, job_file=file))
        self.assertIn("job_file: expected this or spec, found both", error.details())
        found = self.details("ResumeJob", api.ResumeJobRequest(
            id=job, job_file=self.file(*settings, "train.seed=7")))
        self.assertEqual(found["ErrorInfo"].reason, "SETTING_IS_FIXED")
        for key, value in (("optimizer.type", "adafactor"), ("optimizer.others.type", "lion"),
                           ("optimizer.groups", "[{match: 'fc2.*', ndim: 2, use: main}]")):
            found = self.details("ResumeJob", api.ResumeJobRequest(
                id=job, job_file=self.file(*settings, f"{key}={value}")))
            self.assertEqual((found["ErrorInfo"].reason, found["BadRequest"].field_violations[0].field),
                             ("SETTING_IS_FIXED", key))
        found = self.details("ResumeJob", api.ResumeJobRequest(
            id=job, job_file=self.file(extra="train: {epochs: many}\n")))
        self.assertEqual((found["ErrorInfo"].metadata["line"],
                          found["BadRequest"].field_violations[0].field), ("5", "train.epochs"))
        resumed = self.call("ResumeJob", api.ResumeJobRequest(id=job, job_file=file)).job
        self.assertEqual(resumed.spec.checkpoint.keep, 2)
        self.daemon.wait_state(job, "SUCCEEDED")
        self.assertEqual(self.call("GetJob", api.GetJobRequest(id=job)).job.step, paused.step + 3)

    def test_an_enum_is_the_word_of_the_job_file(self):
        """Every enum of a job, as the daemon reads it from YAML and prints it; a value that it does not know is
        refused with the field and the words."""
        api = self.api
        overrides = ("fsdp.strategy=shard_grad_op", "fsdp.backward_prefetch=post", "fsdp.transport=gloo",
                     "precision.param_dtype=bf16", "train.non_finite=skip", "optimizer.type=adamw",
                     "schedule.type=cosine", "train.clip_grad_norm.norm_type=inf", "fsdp.wrap.policy=units",
                     "fsdp.wrap.units=[{modules: fc1, strategy: no_shard, reduce_dtype: f32, cpu_offload: false}]")
        job = self.call("SubmitJob", api.SubmitJobRequest(job_file=self.file(*overrides), hold=True)).job
        self.addCleanup(self.call, "CancelJob", api.CancelJobRequest(id=job.id))
        spec = self.minimal()
        spec.fsdp.strategy = api.STRATEGY_SHARD_GRAD_OP
        spec.fsdp.backward_prefetch = api.PREFETCH_POST
        spec.fsdp.transport = api.TRANSPORT_GLOO
        spec.precision.param_dtype = api.DTYPE_BF16
        spec.train.non_finite = api.NON_FINITE_SKIP
        spec.optimizer.type = api.OPTIMIZER_TYPE_ADAMW
        spec.schedule.type = api.SCHEDULE_TYPE_COSINE
        spec.train.clip_grad_norm_type = api.NORM_TYPE_INF
        spec.fsdp.wrap.policy = api.WRAP_POLICY_UNITS
        spec.fsdp.wrap.units.add(modules=["fc1"], strategy=api.STRATEGY_NO_SHARD, reduce_dtype=api.DTYPE_F32,
                                 cpu_offload=False)
        other = self.call("SubmitJob", api.SubmitJobRequest(spec=spec, hold=True)).job
        self.addCleanup(self.call, "CancelJob", api.CancelJobRequest(id=other.id))
        other.spec.model.file_name = job.spec.model.file_name
        self.assertEqual(job.spec, other.spec)
        self.assertEqual(job.plan.strategy, api.STRATEGY_SHARD_GRAD_OP)
        shown = self.daemon.show(job.id)
        self.assertEqual((shown["state"], shown["spec"]["fsdp"]["strategy"], shown["plan"]["strategy"],
                          shown["spec"]["train"]["clip_grad_norm_type"]),
                         ("QUEUED", "shard_grad_op", "shard_grad_op", "inf"))
        self.assertIsNone(shown["spec"]["fsdp"]["wrap"]["units"][0]["param_dtype"])
        for part, name, expected in (
                ("fsdp", "strategy", "full_shard, shard_grad_op, hybrid_shard or no_shard"),
                ("precision", "param_dtype", "f32 or bf16"),
                ("optimizer", "type", "adadelta, sgd, adam, adamw, lion, adagrad, muon, adafactor or radam"),
                ("data", "format", "idx, images, tokens, text or dataset")):
            spec = self.minimal()
            setattr(getattr(spec, part), name, 77)
            for method, request in (("SubmitJob", api.SubmitJobRequest), ("PlanJob", api.PlanJobRequest)):
                error = self.refused(method, request(spec=spec))
                self.assertEqual(error.details(), f"{part}.{name}: expected {expected}, found 77")
                found = wire.details(error, self.types)
                self.assertEqual(found["BadRequest"].field_violations[0].field, f"{part}.{name}")

    def test_a_wrap_policy_has_defaults(self):
        api = self.api
        job = self.call("SubmitJob", api.SubmitJobRequest(spec=self.minimal())).job
        self.daemon.wait_step(job.id, 2)
        changed = self.call("SetWrapPolicy", api.SetWrapPolicyRequest(
            id=job.id, wrap=api.WrapSpec(policy=api.WRAP_POLICY_SIZE, min_num_params=20000))).job
        wrap = changed.chosen.wrap
        self.assertEqual(list(wrap.force_leaf.types), ["MultiheadAttention"])
        self.assertGreater(len(changed.units), 1)
        # A list that is there and empty is not the default.
        changed = self.call("SetWrapPolicy", api.SetWrapPolicyRequest(
            id=job.id, wrap=api.WrapSpec(policy=api.WRAP_POLICY_SIZE, min_num_params=20000,
                                         force_leaf=api.ModuleTypes()))).job
        self.assertTrue(changed.chosen.wrap.HasField("force_leaf"))
        self.assertEqual(list(changed.chosen.wrap.force_leaf.types), [])
        self.call("CancelJob", api.CancelJobRequest(id=job.id))


if __name__ == "__main__":
    harness.main()
