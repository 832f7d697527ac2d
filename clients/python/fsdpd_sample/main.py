"""fsdpd-sample: see the package, and job.py."""
import argparse
import http.server
import json
import os
import sys
import urllib.error
import urllib.request

from .texts import Wrong, decode, encode

BODY_MAX, DISCARDED_MAX = 1 << 20, 1 << 24  # as fsdpd's; of a larger one
SECONDS = 600
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def error_body(message, code):
    return json.dumps({"error": {"message": message, "type": "invalid_request_error" if code < 500 else "server_error",
                                 "param": None, "code": None}}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 20  # for a request to arrive

    def log_message(self, *arguments):
        """Logs nothing: a request has prompts and a token."""

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def ask(self, body=None):
        """fsdpd's answer: its status and its body. The client's token is passed on; we have none."""
        headers = {"Content-Type": "application/json"}
        if "Authorization" in self.headers:
            headers["Authorization"] = self.headers["Authorization"]
        request = urllib.request.Request(self.server.upstream + self.path, data=body, headers=headers)
        try:
            with self.server.opener.open(request, timeout=SECONDS) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError as error:
            return 502, error_body(f"fsdpd at {self.server.upstream} does not answer: {error}", 502)

    def do_GET(self):
        self.answer(*self.ask())

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_MAX:
            left = min(int(length), DISCARDED_MAX) if length.isdigit() else 0
            while left > 0 and (some := self.rfile.read(min(left, 1 << 16))):  # or the client sees no answer
                left -= len(some)
            self.answer(413, error_body("expected a Content-Length of at most 1 MiB", 413))
            return
        try:
            given = json.loads(self.rfile.read(int(length)))
            request, stops = encode(self.server.tokenizer, given)
        except (ValueError, Wrong) as error:
            self.answer(400, error_body(str(error), 400))
            return
        code, body = self.ask(json.dumps(request).encode())
        if code == 200 and self.path == "/v1/completions":
            body = json.dumps(decode(self.server.tokenizer, json.loads(body), request, stops)).encode()
        self.answer(code, body)


def serve(address, upstream, tokenizer):
    """A server, not running yet. HTTP proxies of the environment are not used."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if host not in LOOPBACK or not port.isdigit():
        raise SystemExit(f"fsdpd-sample: --serve: expected a port of the loopback interface, such as 127.0.0.1:8001, found {address}")
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.upstream, server.tokenizer = upstream.rstrip("/"), tokenizer
    server.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return server


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="fsdpd-sample", description="Continues a text with a running job, or serves texts "
                                     "before fsdpd's /v1/completions.")
    parser.add_argument("job", metavar="JOB", nargs="?", help="a running job")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the text that it continues")
    what.add_argument("--chat", metavar="TEXT", help="a user's turn, which it answers by the tokenizer's chat template")
    what.add_argument("--serve", metavar="HOST:PORT", help="without a JOB: where to listen, on the loopback interface")
    parser.add_argument("--to", metavar="URL", help="with --serve: fsdpd's http.listen, such as http://127.0.0.1:8000")
    parser.add_argument("--tokenizer", metavar="DIR", help="a directory with tokenizer.json; of a JOB otherwise that of its model")
    parser.add_argument("--system", metavar="TEXT", help="a system's turn before that of --chat")
    parser.add_argument("--max-tokens", metavar="N", type=int, default=64)
    parser.add_argument("--temperature", metavar="T", type=float, default=0)
    parser.add_argument("--top-k", metavar="N", type=int, default=0)
    parser.add_argument("--top-p", metavar="P", type=float)
    parser.add_argument("--min-p", metavar="P", type=float, default=0)
    parser.add_argument("--seed", metavar="N", type=int, default=0)
    parser.add_argument("--address", metavar="ADDRESS", help="of fsdpd; otherwise as fsdpctl finds it")
    options = parser.parse_args(arguments)
    if options.job is not None and options.serve is None and (options.prompt or options.chat) is not None:
        from .job import main as sample
        return sample(options)
    if options.job is not None or None in (options.serve, options.to, options.tokenizer):
        parser.error("expected JOB with --prompt or --chat, or --serve with --to and --tokenizer")
    path = os.path.join(options.tokenizer, "tokenizer.json")
    if not os.path.exists(path):
        raise SystemExit(f"fsdpd-sample: --tokenizer: there is no {path}")
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    server = serve(options.serve, options.to, tokenizer)
    print(f"serving {server.server_address[0]}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(130)
