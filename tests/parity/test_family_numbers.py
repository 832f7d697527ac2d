#!/usr/bin/env python3
"""Every family of families/, every head and the encoders that embed, against the numbers of
transformers in tests/parity/families (make_family_numbers.py): logits, the loss and all gradients of
tiny models with both libraries of kernels; losses of AdamW steps on one to three workers, and
BatchNorm's running statistics after them; what a job pulls has the names, types, shapes and values
that transformers wrote. Needs numpy; test_families.py compares with transformers itself."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import harness
import numpy
import family_cases as cases
import family_numbers as numbers

BOUND = 1e-5  # of the largest element, and of a loss
ALL = bool(os.environ.get("FSDPD_ALL_FAMILIES"))  # trains families that are like others, too, which takes minutes
DUMP = os.path.join(harness.BUILD, "tests/parity/dump_transformer")
FAMILIES = sorted(name[:-5] for name in os.listdir(os.path.join(harness.SOURCE, "families")) if name.endswith(".yaml"))
RECORDS = {key: record for family in FAMILIES if os.path.exists(numbers.path_of(family))
           for key, record in numbers.load(family).items() if key != "versions"}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pulled.json"), encoding="utf-8") as pulled_file:
    PULLED = json.load(pulled_file)  # what a pull changes of config.json, as both versions of transformers have read it (test_pulled.py)
KINDS = {"model": cases.FAMILIES, "head": cases.HEADS, "embeddings": cases.EMBEDDINGS, "masked": cases.EMBEDDINGS,
         "body": cases.BODIES, "resized": [f"{name}-{size}" for name, size in cases.RESIZED]}


def each(kind):
    return [(key.partition("/")[2], record) for key, record in RECORDS.items() if key.startswith(kind + "/")]


def is_base(name):
    """Whether a case is of a family that is like no other, or the first whose rope() turns neighbouring columns."""
    if "-" in name or name == "cohere":
        return name == "cohere"
    with open(os.path.join(harness.SOURCE, "families", f"{name}.yaml"), encoding="utf-8") as file:
        return not any(line.startswith("like:") for line in file)


def changes_of(given, pulled):
    """What a pull changes of a config.json: values, and keys that it leaves out."""
    both = []
    for directory in (given, pulled):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            both.append(json.load(file))
    before, after = both
    return {"set": {key: value for key, value in after.items() if key not in before or before[key] != value},
            "left out": sorted(before.keys() - after.keys())}


class Files(unittest.TestCase):
    def test_each_family_and_case_has_numbers(self):
        self.assertEqual(FAMILIES, sorted(set(map(cases.family_of, cases.FAMILIES))))
        self.assertEqual(sorted(RECORDS), sorted(f"{kind}/{name}" for kind, names in KINDS.items() for name in names))
        self.assertEqual(PULLED.keys() - {"versions"},
                         {key for key in RECORDS if key.partition("/")[0] in ("model", "head", "embeddings")})

    def test_configurations_are_those_of_the_cases(self):
        settings = {f"model/{name}": case for name, case in cases.FAMILIES.items()}
        settings.update({f"head/{name}": case[:2] for name, case in cases.HEADS.items()})
        settings.update({f"embeddings/{name}": case[::2] for name, case in cases.EMBEDDINGS.items()})
        settings.update({f"masked/{name}": case[1:] for name, case in cases.EMBEDDINGS.items()})
        for key, (kind, values) in settings.items():
            with self.subTest(key):
                self.assertEqual(RECORDS[key]["class"], kind.partition("/")[0])  # the rest is a configuration's class
                found = RECORDS[key]["config"]
                sizes = {name: value for name, value in values.items()
                         if isinstance(value, int) and name in found}  # transformers may change others
                self.assertEqual({name: found[name] for name in sizes}, sizes)
                if "num_labels" in values and values["num_labels"] != 2:
                    self.assertEqual(len(found["id2label"]), values["num_labels"])

    def test_a_digest_sees_one_element(self):
        values = cases.draw_normal("values", (7, 5))
        expected = numbers.digest("any", values)
        self.assertLessEqual(numbers.distance("any", values, expected), 1e-6)
        for index in range(values.size):
            other = values.copy()
            other.flat[index] += 1.2 * numbers.BLOCK ** 0.5 * BOUND * expected[0]
            self.assertGreater(numbers.distance("any", other, expected), BOUND)
        with self.assertRaises(AssertionError):
            numbers.distance("any", values[:6, :2], expected)


class Arithmetic(unittest.TestCase):
    """Batches through dump_transformer."""

    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)

    def compare(self, what, values, expected):
        difference = numbers.distance(what, values, expected)
        self.worst = max(self.worst, difference)
        self.assertLessEqual(difference, BOUND, what)

    def check(self, name, record, batch, rows, time, hidden=None):
        directory = os.path.join(self.root, "model")
        numbers.write_checkpoint(directory, record)
        with open(os.path.join(self.root, "batch"), "wb") as file:
            file.write(batch)
        shape = record["logits"]["shape"]
        for library in ("reference", "cpu"):
            with self.subTest(name, library=library):
                result = subprocess.run([DUMP, os.path.realpath(directory), "-", os.path.join(self.root, "batch"),
                                         str(rows), str(time), library], capture_output=True)
                self.assertEqual(result.returncode, 0, result.stderr.decode())
                found, self.worst = numpy.frombuffer(result.stdout, "<f4").astype("f8"), 0.0
                at = numpy.prod(shape)
                logits = found[:at].reshape(shape)
                self.compare("logits", logits if hidden is None else logits * ~hidden[..., None],
                             record["logits"]["digest"])
                self.assertLessEqual(abs(found[at] - record["loss"]), BOUND * record["loss"])
                at += 1
                # a line with spaces is a note on the weights
                names = [line for line in result.stderr.decode().splitlines() if " " not in line]
                self.assertEqual(sorted(names), sorted(path for path, tensor in record["tensors"].items()
                                                       if "gradient" in tensor))
                for path in names:
                    tensor = record["tensors"][path]
                    count = numpy.prod(tensor["shape"], dtype=int)
                    self.compare(path, found[at:at + count], tensor["gradient"])
                    at += count
                self.assertEqual(at, found.size)
                print(f"{name}, {library} kernels: within {self.worst:.1e}")

    def test_families(self):
        for name, record in each("model"):
            time = 0 if cases.is_picture(name) else cases.CONTEXT
            self.check(name, record, cases.batch_bytes(*cases.draw_inputs(name)), cases.BATCH, time)

    def test_heads(self):
        for name, record in each("head"):
            tokens, targets, _ = cases.draw_documents(name, cases.HEAD_BATCH, 1)
            self.check(f"{name}, head", record, cases.batch_bytes(tokens, targets), cases.HEAD_BATCH, cases.CONTEXT,
                       cases.hidden_padding(name, tokens))


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="fsdpd-test-")
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.data = os.path.join(cls.root, "data")
        os.mkdir(cls.data)
        cases.write_streams(cls.data)
        for kind in cases.DATA:
            with open(os.path.join(cls.root, f"{kind}.yaml"), "w", encoding="utf-8") as file:
                file.write(cases.job_file(kind, cases.LOSSES))
        cls.daemon = harness.Daemon(3, data=cls.data)
        cls.addClassCleanup(cls.daemon.close)

    def write(self, directory, record, **config):
        """A checkpoint; returns its tensors."""
        return numbers.write_checkpoint(os.path.join(self.data, directory),
                                        dict(record, config=dict(record["config"], **config)))

    def arguments(self, kind, workers, *settings):
        batch = {"text": cases.WINDOWS, "documents": cases.WINDOWS, "pictures": cases.IMAGES_OF_A_STEP}[kind]
        sets = [f"workers={workers}", f"train.batch_size={batch // workers}", *settings]
        return [os.path.join(self.root, f"{kind}.yaml"), *(word for value in sets for word in ("--set", value))]

    def run_job(self, *arguments):
        """The id of a job that has ended well."""
        result = self.daemon.ctl("submit", *self.arguments(*arguments), "--wait", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.daemon.json("list")[-1]["id"]

    def pull(self, job, original=None):
        """`original`: of a language model, the directory with what is beside it."""
        out = os.path.join(self.root, job)
        more = [] if original is None else ["--original", os.path.join(self.data, original)]
        result = self.daemon.ctl("pull", job, "--format", "hf", "-o", out, *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return numbers.read_checkpoint(out)

    def check_pulled(self, job, given, record, steps=0, original=None):
        """What a job pulls is what it was given, bit for bit but for the statistics of BatchNorm. After
        steps, those are what transformers makes of them, and nothing else is compared."""
        found = self.pull(job, original)
        self.assertEqual(sorted(found), sorted(record["tensors"]))
        for path, tensor in record["tensors"].items():
            self.assertEqual((list(found[path].shape), found[path].dtype),
                             (tensor["shape"], numbers.TYPES[tensor.get("type", "F32")]), path)
            if path.endswith("num_batches_tracked"):
                self.assertEqual(int(found[path]), steps or 1)
            elif "after" in tensor:
                if steps:
                    self.assertLessEqual(numbers.distance(path, found[path], tensor["after"]), BOUND, path)
                else:
                    self.assertFalse(numpy.array_equal(found[path], given[path]), path)
            elif not steps:
                self.assertTrue(numpy.array_equal(found[path], given[path]), path)

    def check_config(self, key, directory, job):
        self.assertEqual(changes_of(os.path.join(self.data, directory), os.path.join(self.root, job)), PULLED[key])

    def check_losses(self, name, job, expected):
        found = self.daemon.losses(job)
        self.assertEqual([step for step, _ in found], list(range(1, cases.LOSSES + 1)))
        worst = max(abs(loss / e - 1) for (_, loss), e in zip(found, expected))
        print(f"{name}: losses within {worst:.1e}")
        self.assertLessEqual(worst, BOUND)
        self.assertGreater(max(expected) - min(expected), 100 * BOUND)

    def test_families(self):
        for name, record in each("model"):
            with self.subTest(name):
                given = self.write(name, record)
                kind = "pictures" if cases.is_picture(name) else "text"
                masked = ["data.objective=masked", "data.mask_token=1"] if record["class"].endswith("MaskedLM") else []
                job = self.run_job(kind, 2, f"model.hf={name}", *cases.STILL, *masked)
                part = record["class"].endswith("ForConditionalGeneration")
                if part:
                    self.assertIn("--original DIR", self.daemon.ctl("pull", job, "--format", "hf", "-o", "x").stderr)
                self.check_pulled(job, given, record, original=name if part else None)
                self.check_config(f"model/{name}", name, job)
                # the arithmetic of a variant, or of a family like another, is the base's on any number of workers, but for
                # BatchNorm's statistics; test_families.py trains all of them beside transformers
                moves = any("after" in tensor for tensor in record["tensors"].values())
                for workers in (1, 2, 3) if is_base(name) or ALL or name.endswith("-sync") else (1,) if moves else ():
                    job = self.run_job(kind, workers, f"model.hf={name}")
                    losses = record["losses"]
                    self.check_losses(f"{name}, {workers} workers", job,
                                      losses if kind == "text" else losses[str(workers)])
                    if kind == "pictures" and (workers == 1 or name.endswith("-sync")):
                        self.check_pulled(job, given, record, cases.LOSSES)

    def test_heads(self):
        for name, record in each("head"):
            with self.subTest(name):
                given, data = self.write(f"{name}-head", record), f"data.path={name}-documents"
                cases.write_documents(os.path.join(self.data, f"{name}-documents"), name)
                model = f"model.hf={name}-head"
                job = self.run_job("documents", 2, model, data, *cases.STILL)
                self.check_pulled(job, given, record)
                self.check_config(f"head/{name}", f"{name}-head", job)
                for workers in (1, 2, 3) if name in ("bert", "bert-tokens", "bert-several") else (2,):
                    self.check_losses(f"{name}, head, {workers} workers",
                                      self.run_job("documents", workers, model, data), record["losses"])

    def test_embeddings(self):
        for name, record in each("embeddings"):
            with self.subTest(name):
                given = self.write(f"{name}-embeddings", record)
                self.write(f"{name}-masked", RECORDS[f"masked/{name}"])
                padding, data = cases.padding_of(cases.EMBEDDINGS[name][2]), f"data.path={name}-pairs"
                cases.write_texts(os.path.join(self.data, f"{name}-pairs"), {"train": cases.draw_pairs(padding)},
                                  padding, cases.VOCABULARY)
                job = self.run_job("documents", 2, f"model.hf={name}-embeddings", data, *cases.STILL)
                self.check_pulled(job, given, record)
                self.check_config(f"embeddings/{name}", f"{name}-embeddings", job)
                with open(os.path.join(self.root, job, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file).get("pooling"), record["config"].get("pooling"))
                for model, workers, more in (("embeddings", 1, []), ("embeddings", 2, []),
                                             ("masked", 3, ["model.head=embeddings"])):
                    job = self.run_job("documents", workers, f"model.hf={name}-{model}", data, *more)
                    self.check_losses(f"{name}, {model}, {workers} workers", job, record["losses"])

    def test_a_body_without_its_classifier(self):
        """Its tensors are those of the job, and the classifier is drawn."""
        for name, record in each("body"):
            with self.subTest(name):
                self.assertNotIn("ForImageClassification", json.dumps(record["config"]))
                given = self.write(f"{name}-body", record)
                model = f"model.hf={name}-body"
                plan = self.daemon.ctl("plan", *self.arguments("pictures", 2, model)).stdout
                self.assertIn("classifier.", plan)
                found = self.pull(self.run_job("pictures", 2, model, *cases.STILL))
                self.assertEqual(sorted(found), sorted(RECORDS[f"model/{name}"]["tensors"]))
                for path, values in given.items():
                    if not path.startswith("pooler.") and "running_" not in path and values.dtype.kind == "f":
                        self.assertTrue(numpy.array_equal(found[record["prefix"] + path], values), path)

    def test_images_of_another_size(self):
        """Positions are interpolated as transformers' F.interpolate does it, and the logits are those of its
        interpolation in the forward pass."""
        for key, record in each("resized"):
            name = cases.family_of(key)
            with self.subTest(key):
                self.write(key, record, image_size=14)
                model = f"model.hf={key}"
                self.assertIn("which are interpolated",
                              self.daemon.ctl("plan", *self.arguments("pictures", 2, model)).stdout)
                job = self.run_job("pictures", 2, model, *cases.STILL)
                found = self.pull(job)[f"{name}.embeddings.position_embeddings"]
                self.assertEqual(list(found.shape), record["positions"]["shape"])
                self.assertLessEqual(numbers.distance("positions", found, record["positions"]["digest"]), BOUND)
                out = os.path.join(self.root, job)
                with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["image_size"], 14)
                with open(os.path.join(self.root, "batch"), "wb") as file:
                    file.write(cases.batch_bytes(*cases.draw_inputs(name)))
                result = subprocess.run([DUMP, os.path.realpath(out), "-", os.path.join(self.root, "batch"),
                                         str(cases.BATCH), "0", "cpu"], capture_output=True)
                self.assertEqual(result.returncode, 0, result.stderr.decode())
                shape = record["logits"]["shape"]
                logits = numpy.frombuffer(result.stdout, "<f4")[:numpy.prod(shape)]
                self.assertLessEqual(numbers.distance("logits", logits, record["logits"]["digest"]), BOUND)

    def test_a_head_that_files_lack(self):
        """A checkpoint of a masked language model gets a new head; all else is the file's."""
        body, labels = RECORDS["model/bert"], {str(i): f"label {i}" for i in range(7)}
        given = self.write("no-head", body, architectures=["BertForSequenceClassification"], id2label=labels)
        cases.write_documents(os.path.join(self.data, "new-documents"), "bert", 2 * cases.WINDOWS)
        sets = ["model.hf=no-head", "data.path=new-documents"]
        plan = self.daemon.ctl("plan", *self.arguments("documents", 2, *sets))
        self.assertIn("the weights lack 4 tensors of the head, which get new initial values: "
                      "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight, classifier.bias",
                      " ".join(plan.stdout.split()))
        job = self.run_job("documents", 2, *sets, *cases.STILL)
        found = self.pull(job)
        self.assertEqual(sorted(found), sorted(RECORDS["head/bert"]["tensors"]))
        for path, values in given.items():
            if path in found:
                self.assertTrue(numpy.array_equal(values, found[path]), path)
        self.assertEqual(found["classifier.weight"].shape, (7, 24))
        self.assertTrue(0.01 < found["classifier.weight"].std() < 0.03, found["classifier.weight"].std())
        self.assertFalse(found["classifier.bias"].any())
        # now it has all of them
        shutil.copytree(os.path.join(self.root, job), os.path.join(self.data, "new-head"))
        again = self.pull(self.run_job("documents", 1, "model.hf=new-head", "data.path=new-documents", *cases.STILL))
        self.assertEqual({path: values.tobytes() for path, values in again.items()},
                         {path: values.tobytes() for path, values in found.items()})

    def test_what_does_not_fit_is_refused(self):
        os.makedirs(os.path.join(self.data, "labels"), exist_ok=True)
        self.write("no-padding", RECORDS["head/gpt2"], pad_token_id=None)
        result = self.daemon.ctl("submit", *self.arguments("documents", 1, "model.hf=no-padding"))
        self.assertGreater(result.returncode, 0)
        self.assertIn("pad_token_id: is missing; the class is read at the last token that is not padding",
                      " ".join(result.stderr.split()))
        self.write("other-head", RECORDS["embeddings/bert"])
        result = self.daemon.ctl("submit", *self.arguments("documents", 1, "model.hf=other-head", "model.head=rerank"))
        self.assertGreater(result.returncode, 0)
        self.assertIn("model.head: the family bert has no head 'rerank'; it has embeddings",
                      " ".join(result.stderr.split()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
