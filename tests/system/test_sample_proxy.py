#!/usr/bin/env python3
"""fsdpd-sample --serve, of clients/python: texts become token ids on the way to fsdpd, here a server that only pretends, and
its answer gets texts on the way back; the client's token and fsdpd's errors pass unchanged. fsdpd-sample JOB: a text, or a
turn of a chat, is encoded as the files of the job's model say, and the answer is text."""

import argparse
import http.server
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
import harness

harness.need("tokenizers", "jinja2")
import tokenizers

CLIENTS = os.path.join(harness.SOURCE, "clients/python")
sys.path.insert(0, CLIENTS)
import fsdpd_prepare.records
import fsdpd_sample.job

WORDS = ["<end>", "a", "cat", "sat", "down", "."]


class Upstream(http.server.BaseHTTPRequestHandler):
    """Continues each prompt with "sat down ." and scores everything alike."""

    def log_message(self, *arguments):
        pass

    def reply(self, code, value):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def do_GET(self):
        self.reply(200, {"path": self.path, "token": self.headers["Authorization"]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        if self.headers["Authorization"] != "Bearer secret":
            self.reply(401, {"error": {"code": "UNAUTHENTICATED"}})
            return
        prompts, choices = request["prompt"], []
        for i, prompt in enumerate(prompts if isinstance(prompts[0], list) else [prompts]):
            ids = (prompt if request.get("echo") else []) + [3, 4, 5]
            names = [f"token_id:{number}" for number in ids]
            choices.append({"index": i, "text": "", "token_ids": ids, "finish_reason": "length", "logprobs": {
                "tokens": names, "token_logprobs": [None] + [-1.0] * (len(ids) - 1), "text_offset": [0] * len(ids),
                "top_logprobs": [None] + [{name: -1.0, "token_id:0": -2.0} for name in names[1:]]} if "logprobs" in request else None})
        self.reply(200, {"choices": choices})


def make_tokenizer(directory):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["<end>"])
    words.save(os.path.join(directory, "tokenizer.json"))


class Proxy(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="fsdpd-test-")
        self.addCleanup(directory.cleanup)
        make_tokenizer(directory.name)
        self.upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        self.upstream.requests = []
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        self.addCleanup(self.upstream.server_close)
        self.addCleanup(self.upstream.shutdown)
        self.directory = directory.name
        process = subprocess.Popen(self.command("127.0.0.1:0"), env=dict(os.environ, PYTHONPATH=CLIENTS), stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.url = "http://" + process.stdout.readline().split()[1]

    def command(self, address):
        return [sys.executable, "-m", "fsdpd_sample", "--serve", address, "--tokenizer", self.directory, "--to",
                f"http://127.0.0.1:{self.upstream.server_address[1]}"]

    def ask(self, path, body=None, secret="secret"):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {secret}"},
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=harness.PATIENCE) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def test_texts_become_ids_and_ids_texts(self):
        code, answer = self.ask("/v1/completions", {"model": "gpt2-1", "prompt": "a cat", "stop": ["down", " ."], "max_tokens": 3})
        self.assertEqual(self.upstream.requests, [{"model": "gpt2-1", "prompt": [1, 2], "stop": [4], "max_tokens": 3}])
        choice, = answer["choices"]
        self.assertEqual((code, choice["text"], choice["finish_reason"], choice["logprobs"]), (200, "sat ", "stop", None))
        _, answer = self.ask("/v1/completions", {"prompt": ["a cat", "cat"], "echo": True, "logprobs": 1})
        self.assertEqual(self.upstream.requests[1]["prompt"], [[1, 2], [2]])
        self.assertNotIn("stop", self.upstream.requests[1])
        self.assertEqual([choice["text"] for choice in answer["choices"]], ["a catsat down .", "catsat down ."])
        scores = answer["choices"][1]["logprobs"]
        self.assertEqual((scores["tokens"], scores["text_offset"]), (["cat", "sat", "down", "."], [0, 3, 6, 10]))
        self.assertEqual(scores["top_logprobs"][1], {"sat": -1.0, "<end>": -2.0})
        _, answer = self.ask("/v1/completions", {"prompt": [2, 1]})
        self.assertEqual((self.upstream.requests[2], answer["choices"][0]["text"]), ({"prompt": [2, 1]}, "sat down ."))

    def test_tokens_and_errors_pass(self):
        self.assertEqual(self.ask("/v1/models"), (200, {"path": "/v1/models", "token": "Bearer secret"}))
        self.assertEqual(self.ask("/v1/completions", {"prompt": "a"}, "other"), (401, {"error": {"code": "UNAUTHENTICATED"}}))
        self.assertEqual(self.ask("/v1/completions", ["a"])[1]["error"]["message"], "the body: expected an object")
        self.assertEqual(self.ask("/v1/completions", {"prompt": "a", "stop": ""})[0], 400)
        self.assertEqual(self.ask("/v1/completions", {"prompt": "a" * (1 << 20)})[0], 413)
        refused = subprocess.run(self.command("0.0.0.0:0"), env=dict(os.environ, PYTHONPATH=CLIENTS), stderr=subprocess.PIPE, text=True)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("expected a port of the loopback interface", refused.stderr)


class FakeClient:
    """Of fsdpd, whose only job has a model from a directory; it always draws "sat down"."""

    def __init__(self, directory):
        self.directory, self.asked = directory, None

    def job(self, job):
        model = types.SimpleNamespace(hf=self.directory, weights="")
        return types.SimpleNamespace(spec=types.SimpleNamespace(model=model))

    def sample_tokens(self, job, prompt, max_tokens, **settings):
        self.asked = (job, prompt, max_tokens, settings)
        return iter([3, 4])

    def said(self, **options):
        out = io.StringIO()
        settings = {"job": "job-1", "prompt": None, "chat": None, "system": None, "tokenizer": None, "max_tokens": 9,
                    "temperature": 0.5, "top_k": 0, "top_p": None, "min_p": 0, "seed": 3}
        fsdpd_sample.job.run(self, argparse.Namespace(**dict(settings, **options)), out)
        return out.getvalue()


class Job(unittest.TestCase):
    def test_continues_texts(self):
        """By the tokenizer and the chat template of its model's directory; it ends where the files there say."""
        template = "{% for turn in messages %}{{ turn.content }} {% endfor %}{% if add_generation_prompt %}sat{% endif %}"
        with tempfile.TemporaryDirectory(prefix="fsdpd-test-") as directory:
            make_tokenizer(directory)
            for name, value in (("tokenizer_config", {"eos_token": "<end>", "chat_template": template}),
                                ("generation_config", {"eos_token_id": [5, 0]})):
                with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as file:
                    json.dump(value, file)
            client = FakeClient(directory)
            self.assertEqual(client.said(prompt="a cat"), "sat down\n")
            self.assertEqual(client.asked[:3], ("job-1", [1, 2], 9))
            settings = {"temperature": 0.5, "top_k": 0, "min_p": 0, "seed": 3, "stop": [0, 5]}
            self.assertEqual(client.asked[3], settings)
            client.said(chat="cat", system="down", top_p=0.5)
            self.assertEqual((client.asked[1], client.asked[3]), ([4, 2, 3], dict(settings, top_p=0.5)))
            self.assertEqual(FakeClient("elsewhere").said(prompt="a", tokenizer=directory), "sat down\n")
        with self.assertRaisesRegex(fsdpd_prepare.records.UsageError, "elsewhere, which has no tokenizer.json here"):
            FakeClient("elsewhere").said(prompt="a")

    def test_half_of_a_character_waits(self):
        tokenizer = types.SimpleNamespace(decode=lambda ids, skip_special_tokens: bytes(ids).decode(errors="replace"))
        self.assertEqual(list(fsdpd_sample.job.pieces(tokenizer, [97, 0xc3, 0xa4, 98, 0xc3])), ["a", "\u00e4", "b", "\ufffd"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
