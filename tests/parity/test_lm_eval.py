#!/usr/bin/env python3
"""lm-eval as its users run it: local-completions against a job that trains, over tasks that this program makes, gives the
loglikelihoods and the accuracy, and through fsdpd-sample the texts, that its hf backend makes of the pulled model.
$FSDPD_LIVE_PYTHON has lm-eval 0.4.13 (make check-live)."""

import array
import json
import os
import pwd
import random
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../system"))
import harness
import tokenizers
import torch
import transformers

VOCABULARY, CONTEXT, DOCUMENTS, BOUND = 61, 64, 24, 1e-3
WORDS = [f"w{i}" for i in range(VOCABULARY - 1)]
TASK = """task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
TEXTS = """task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: [w53, w22 w12], max_gen_toks: 12, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
JOB = """name: live
model: {hf: model}
data: {format: tokens, path: tokens.bin, encoding: uint16, context: 64}
train: {max_steps: 1000000, batch_size: 2, log_interval: 100, evaluate_interval: 1000000}
optimizer: {type: sgd, lr: 0}
workers: 2
"""


class LmEval(unittest.TestCase):
    def setUp(self):
        self.daemon = harness.Daemon(workers=2, arguments=["--http-listen", "127.0.0.1:0"])
        self.addCleanup(self.daemon.close)
        self.root, self.data = self.daemon.root, self.daemon.data
        draws = random.Random(3)
        self.write("tokens.bin", array.array("H", [draws.randrange(VOCABULARY) for _ in range(20000)]).tobytes())
        self.write("job.yaml", JOB.encode())
        self.make_model()
        documents = [{"text": " ".join(draws.choices(WORDS, k=draws.randrange(1, 50))),
                      "choices": [" " + " ".join(draws.choices(WORDS, k=draws.randrange(1, 5))) for _ in range(3)],
                      "label": draws.randrange(3)} for _ in range(DOCUMENTS)]
        self.write("tiny.jsonl", "".join(json.dumps(document) + "\n" for document in documents).encode())
        os.mkdir(os.path.join(self.root, "tasks"))
        for name, task in (("tiny", TASK), ("texts", TEXTS)):
            with open(os.path.join(self.root, "tasks", f"{name}.yaml"), "w", encoding="utf-8") as file:
                file.write(task.format(path=os.path.join(self.data, "tiny.jsonl")))

    def write(self, name, content):
        with open(os.path.join(self.data, name), "wb") as file:
            file.write(content)

    def make_model(self):
        """A GPT-2 with a tokenizer of words; its numbers are large enough that tokens differ."""
        torch.manual_seed(5)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, initializer_range=0.4,
            bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(
            {word: i for i, word in enumerate(["<end>"] + WORDS)}, unk_token="<end>"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, bos_token="<end>", eos_token="<end>", unk_token="<end>", pad_token="<end>")
        model.save_pretrained(os.path.join(self.data, "model"))
        tokenizer.save_pretrained(os.path.join(self.data, "model"))

    def run_lm_eval(self, name, tasks, model, arguments, **environment):
        """Of each task the responses to all requests, and the accuracy of tiny."""
        out = os.path.join(self.root, name)
        result = subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args",
             ",".join(f"{key}={value}" for key, value in arguments.items()), "--tasks", ",".join(tasks), "--include_path",
             os.path.join(self.root, "tasks"), "--output_path", out, "--log_samples", "--batch_size", "4", "--device", "cpu"],
            env=dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.join(self.root, "hf"),
                     **environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertNotRegex(result.stdout, "API request failed|Traceback|ERROR")
        files = [os.path.join(folder, file) for folder, _, names in os.walk(out) for file in names]
        made = []
        for task in tasks:
            (path,) = (path for path in files if os.path.basename(path).startswith(f"samples_{task}_"))
            with open(path, encoding="utf-8") as file:
                samples = sorted((json.loads(line) for line in file), key=lambda sample: sample["doc_id"])
            self.assertEqual(len(samples), DOCUMENTS)
            made.append([response for sample in samples for response in sample["filtered_resps"]])
        (path,) = (path for path in files if os.path.basename(path).startswith("results_"))
        with open(path, encoding="utf-8") as file:
            return *made, json.load(file)["results"].get("tiny", {}).get("acc,none")

    def serve_texts(self, port, pulled):
        """The address of fsdpd-sample, which has the tokenizer."""
        clients = os.path.join(harness.SOURCE, "clients/python")
        process = subprocess.Popen([sys.executable, "-m", "fsdpd_sample", "--serve", "127.0.0.1:0", "--tokenizer", pulled, "--to",
                                    f"http://127.0.0.1:{port}"], env=dict(os.environ, PYTHONPATH=clients), stdout=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return process.stdout.readline().split()[1]

    def test_a_live_job(self):
        self.assertEqual(self.daemon.ctl("submit", os.path.join(self.data, "job.yaml")).returncode, 0)
        job = self.daemon.json("list")[-1]["id"]
        self.daemon.wait_step(job, 1)
        with open(os.path.join(self.root, "fsdpd.log"), encoding="utf-8") as file:
            port = re.search(r"http_served address=127\.0\.0\.1:(\d+)", file.read())[1]
        token = subprocess.run([harness.FSDPD, "token", "issue", pwd.getpwuid(os.geteuid()).pw_name, "--coordinator",
                                self.daemon.address], env=self.daemon.environment, stdout=subprocess.PIPE, text=True, check=True)
        pulled = os.path.join(self.root, "pulled")
        self.assertEqual(self.daemon.ctl("pull", job, "--format", "hf", "-o", pulled).returncode, 0)
        served = {"model": job, "tokenizer": pulled, "max_length": CONTEXT, "tokenizer_backend": "huggingface"}
        live, accuracy = self.run_lm_eval("live", ["tiny"], "local-completions", dict(
            served, base_url=f"http://127.0.0.1:{port}/v1/completions", tokenized_requests=True), OPENAI_API_KEY=token.stdout.strip())
        texts, _ = self.run_lm_eval("texts", ["texts"], "local-completions", dict(
            served, base_url=f"http://{self.serve_texts(port, pulled)}/v1/completions", tokenized_requests=False),
            OPENAI_API_KEY=token.stdout.strip())
        theirs, their_texts, expected = self.run_lm_eval("theirs", ["tiny", "texts"], "hf", {
            "pretrained": pulled, "dtype": "float32", "max_length": CONTEXT})
        live, theirs = ([(float(value), str(greedy)) for value, greedy in made] for made in (live, theirs))
        self.assertEqual(len(live), 3 * DOCUMENTS)
        worst = max(abs(a - b) for (a, _), (b, _) in zip(live, theirs))
        self.assertLessEqual(worst, BOUND)
        self.assertEqual([greedy for _, greedy in live], [greedy for _, greedy in theirs])
        self.assertEqual(accuracy, expected)
        self.assertGreater(max(a for a, _ in theirs) - min(a for a, _ in theirs), 1)
        self.assertEqual([text.split() for text in texts], [text.split() for text in their_texts])
        lengths = {len(text.split()) for text in texts}
        self.assertEqual((max(lengths), len(lengths) > 1), (12, True), texts)
        with open(os.path.join(self.root, "fsdpd.log"), encoding="utf-8") as file:
            self.assertNotIn(token.stdout.strip(), file.read())
        self.daemon.ctl("cancel", job)
        print(f"{len(live)} loglikelihoods, {min(a for a, _ in theirs):.2f} to {max(a for a, _ in theirs):.2f}: "
              f"at most {worst:.1e} apart; accuracy {accuracy}; {len(texts)} texts")


if __name__ == "__main__":
    unittest.main(verbosity=2)
