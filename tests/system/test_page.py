#!/usr/bin/env python3
"""The page of http.listen in a real browser: a link with a token of one job, the job's life without a reload, at 1,200
and at 420 pixels, in light and dark, by keyboard, with what axe says of it; and tokens that it refuses.
FSDPD_KEEP_PAGE=FILE keeps the pictures."""

import base64
import importlib.resources
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import harness

harness.need("axe_core_python", "grpc>=1.60")
import grpc

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a headless Chromium, which is asked over a pair of pipes."""

    def __init__(self, add_cleanup):
        home = tempfile.mkdtemp(prefix="fsdpd-browser-")
        add_cleanup(shutil.rmtree, home, True)
        theirs, self.out = os.pipe()
        self.input, answers = os.pipe()
        # Its descriptors are 3 and 4.
        start = f"exec 3<&{theirs} 4>&{answers}; exec \"$@\""
        self.process = subprocess.Popen(
            ["bash", "-c", start, "browser", BROWSER, "--headless", "--remote-debugging-pipe", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             f"--user-data-dir={home}/profile"],
            env=dict(os.environ, HOME=home), pass_fds=(theirs, answers), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(answers)
        add_cleanup(self.close)
        self.rest, self.number, self.session, self.complaints = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.input)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                part = os.read(self.input, 1 << 20)
                if not part:
                    raise AssertionError("the browser has ended")
                self.rest += part
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(answer["params"])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script):
        end = time.monotonic() + harness.PATIENCE
        while not self.run(f"!!({script})"):
            if time.monotonic() > end:
                raise AssertionError(f"waited for {script}: {self.run('document.body.innerText')}, {self.complaints}")
            time.sleep(0.05)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1600, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, name):
        picture = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        keep = os.environ.get("FSDPD_KEEP_PAGE")
        if keep:
            with open(f"{keep}-{name}.png", "wb") as file:
                file.write(picture)


LETTERS = """name: letters
model: {file: model.yaml}
data: {format: tokens, path: letters.bin, encoding: uint16, context: 16}
train: {max_steps: 8, batch_size: 2, sample: {prompts: ["5,17,3"], every_steps: 4, max_tokens: 6}}
"""
MARKS = "[...document.querySelectorAll('line.mark title')].map(t => t.textContent)"


@unittest.skipUnless(BROWSER, "SKIP: no chromium here")
class PageTest(unittest.TestCase):
    def setUp(self):
        # A job stalls, and is diagnosed, after five heartbeats.
        self.daemon = harness.Daemon(workers=2, arguments=["--http-listen", "127.0.0.1:0"],
                                     environment={"FSDPD_LIMITS_HEARTBEAT_SECONDS": "0.2",
                                                  "FSDPD_LIMITS_SILENCE_SECONDS": "60"})
        self.addCleanup(self.daemon.close)
        found = re.search(r"http_served address=127\.0\.0\.1:(\d+)", self.daemon.wait_log("http_served"))
        self.url = f"http://127.0.0.1:{found[1]}/"
        self.axe = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text()

    def issue(self, *words):
        result = subprocess.run([harness.FSDPD, "token", "issue", *words, "--coordinator", self.daemon.address],
                                env=self.daemon.environment, text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def issue_expired(self, job):
        """A token of this job that is valid for a millisecond, which fsdpd has no option for: fields 3 and 4."""
        with grpc.insecure_channel(self.daemon.address) as channel:
            answer = channel.unary_unary("/fsdpd.v1.Control/IssueToken")(
                struct.pack("<BdBB", 3 << 3 | 1, 0.001, 4 << 3 | 2, len(job)) + job.encode())
        return re.search(rb"fsdpd_\w+", answer)[0].decode()

    def check_access(self, browser):
        """What axe finds: contrasts, names, roles, order of headings, what keys do not reach."""
        if not browser.run("!!window.axe"):
            browser.run(f"{self.axe}; 0")
        found = browser.run("""axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v =>
            v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 200) + " " + n.failureSummary).join("; ")))""")
        self.assertEqual(found, [])

    def check_access_of(self, browser, views=((1200, False), (420, True))):
        for width, dark in views:
            browser.resize(width, dark)
            self.check_access(browser)

    def rows_of(self, title):
        """A script's words for the rows of the section with this title."""
        return (f"[...document.querySelectorAll('main section')].filter(s => s.querySelector('h2')?.textContent === "
                f"'{title}').flatMap(s => [...s.querySelectorAll('tr')].map(r => r.innerText))")

    def check_memory(self, browser, job):
        """What is measured, beside the plan."""
        browser.wait("document.querySelector('svg.memory line.measured')")
        shown = self.daemon.show(job)
        self.assertEqual(browser.run("document.querySelectorAll('svg.memory rect').length"), len(shown["plan"]["memory"]))
        rows = dict(row.split("\t")[::2] for row in browser.run(self.rows_of("Memory per rank")))
        peak = int(shown["plan"]["peak_bytes"])
        self.assertEqual(rows["planned peak"], f"{peak:,}")
        self.assertLessEqual(int(rows["measured peak"].replace(",", "")), peak)

    def submit_letters(self):
        """A job on tokens, which samples."""
        with open(os.path.join(self.daemon.data, "letters.bin"), "wb") as file:
            file.write(bytes(n % 32 if k == 0 else 0 for n in range(800) for k in range(2)))
        with tempfile.TemporaryDirectory() as directory:
            for name, text in (("model.yaml", harness.LETTERS_MODEL), ("job.yaml", LETTERS)):
                with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                    file.write(text)
            self.daemon.json("submit", os.path.join(directory, "job.yaml"), "--id", "letters",
                             "--set", f"data.path={self.daemon.data}/letters.bin")

    def check_hang(self, browser, job):
        """A rank that is stopped, which the page blames until the job trains on."""
        stopped = next(int(worker["pid"]) for worker in self.daemon.worker_list()
                       if worker["id"] == self.daemon.show(job)["workers"][1])
        os.kill(stopped, signal.SIGSTOP)
        try:
            browser.wait("/^rank 1 .*its process is stopped/.test(document.querySelector('.verdict')?.textContent)")
            browser.picture("hang-420")
            self.check_access(browser)
        finally:
            os.kill(stopped, signal.SIGCONT)
        browser.wait("!document.querySelector('.verdict')")

    def test_life(self):
        other = self.daemon.json("submit", harness.JOB, "--hold", "--set", f"data.dir={self.daemon.data}")["id"]
        settings = [word for setting in (
            f"data.dir={self.daemon.data}", "train.epochs=100000", "train.batch_size=16", "train.global_batch=32",
            "train.log_interval=1", "elastic={min_workers: 1, max_workers: 2}", "workers=2")
            for word in ("--set", setting)]
        job = self.daemon.json("submit", harness.JOB, "--hold", *settings)["id"]
        self.addCleanup(self.daemon.ctl, "cancel", job)
        browser = Browser(self.addCleanup)
        token = self.issue("--job", job, "--hours", "1")
        browser.resize(1200, False)
        browser.call("Page.navigate", url=f"{self.url}#job={job}&token={token}")
        browser.wait("document.querySelector('header .s-QUEUED')")
        self.assertIn("held", browser.run("document.querySelector('main header p').textContent"))
        self.assertEqual(browser.run("document.querySelectorAll('svg.chart, line.mark, main tbody a').length"), 0)
        self.daemon.ctl("release", job)
        browser.wait("document.querySelector('.s-RUNNING') && document.querySelectorAll('svg.chart').length >= 4")
        self.assertEqual(browser.run("location.href"), f"{self.url}#job={job}")
        self.assertNotIn(token, browser.run("document.documentElement.outerHTML"))
        self.assertIn(job, browser.run("document.querySelector('main h1').textContent"))
        self.check_memory(browser, job)
        browser.run("document.querySelector('svg.chart').focus()")
        browser.press("ArrowLeft")
        browser.wait("/^training [0-9.e-]+ .step [0-9]+/.test(document.querySelector('output').textContent)")
        browser.run("document.querySelector('main summary').click()")
        shown = browser.run("document.querySelector('main dd').textContent")
        browser.wait(f"document.querySelector('main dd').textContent != '{shown}'")
        self.assertTrue(browser.run("document.querySelector('main details').open"))
        browser.run("document.querySelector('main summary').click()")
        browser.run("document.querySelector('#logs summary').click()")
        browser.wait("document.getElementById('log').textContent.length > 0")
        browser.picture("1200")
        browser.resize(420, True)
        self.assertLessEqual(browser.run("document.documentElement.scrollWidth"), 420)
        browser.picture("420")
        made = self.daemon.json("checkpoint", job)
        browser.wait(f"{self.rows_of('Checkpoints')}.some(r => r.startsWith({made['step']}))")
        changed = self.daemon.ctl("wrap", "set", job, "--policy", "none")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        browser.wait(f"{MARKS}.some(m => /^units changed at step [0-9]+$/.test(m))")
        self.check_hang(browser, job)
        resized = self.daemon.ctl("resize", job, "1")
        self.assertEqual(resized.returncode, 0, resized.stderr)
        browser.wait("document.querySelector('main').textContent.includes('training on 1 worker')")
        attempt = ("[...document.querySelectorAll('main dt')].find(d => d.textContent === 'Attempt')"
                   ".nextElementSibling.textContent")
        before = browser.run(attempt)
        (pid,) = [worker["pid"] for worker in self.daemon.worker_list() if worker["job"] == job]
        os.kill(int(pid), signal.SIGKILL)
        browser.wait(f"{attempt} !== '{before}' && document.querySelector('header .s-RUNNING')")
        browser.wait(f"/^units changed at step .*;attempt 2: training on 1 worker.*2 workers before.* at step .*;"
                     f"attempt 3: training on 1 worker/.test({MARKS}.join(';'))")
        self.daemon.ctl("cancel", job)
        browser.wait("document.querySelector('header .s-CANCELLED')")
        browser.wait("document.getElementById('events').textContent.includes('CANCELLED')")
        self.check_access_of(browser, [(width, dark) for width in (1200, 420) for dark in (False, True)])
        self.assertEqual(browser.complaints, [])

        self.submit_letters()

        # Neither another job nor the list is this token's; an observer has it, and the job behind a link.
        browser.run(f"location.hash = '#job={other}'")
        browser.wait("document.getElementById('said').textContent.includes('one job')")
        browser.run("location.hash = ''")
        browser.wait("document.getElementById('said').textContent.includes('one job')")
        browser.complaints.clear()  # of the 403
        browser.run("document.getElementById('leave').click()")
        browser.run(f"document.getElementById('token').value = '{self.issue('eve', '--role', 'observer')}'")
        browser.press("Tab")
        browser.run("document.querySelector('#login button').click()")
        browser.wait(f"document.querySelector('main a[href=\"#job={job}\"]')")
        self.assertEqual(browser.run("document.querySelectorAll('main section tbody tr').length"), 2)  # workers
        self.assertLessEqual(browser.run("document.documentElement.scrollWidth"), 420)
        self.assertLess(browser.run("document.querySelector('main tbody a').getBoundingClientRect().height"), 60)
        browser.picture("list-420")
        self.check_access_of(browser)
        browser.run(f"document.querySelector('main a[href=\"#job={job}\"]').click()")
        browser.wait("document.querySelector('header .s-CANCELLED')")
        self.daemon.wait_state("letters", "SUCCEEDED")
        browser.run("location.hash = '#job=letters'")
        browser.wait("document.querySelector('header .s-SUCCEEDED')")
        last = [event["sampled"] for event in self.daemon.events("letters") if "sampled" in event][-1]
        drawn = ",".join(map(str, last["sequences"][0]["tokens"]))
        browser.wait("[...document.querySelectorAll('main h2')].some(h => h.textContent === 'Samples' && "
                     f"h.nextElementSibling.textContent.includes('step 8: sample: 5,17,3 -> {drawn}'))")
        self.assertEqual(browser.complaints, [])

        # A link with a tampered, a revoked or an expired token shows nothing of the job.
        subprocess.run([harness.FSDPD, "token", "revoke", job, "--coordinator", self.daemon.address],
                       env=self.daemon.environment, check=True, stdout=subprocess.DEVNULL)
        for wrong in (token[:-1] + "x", token, self.issue_expired(job)):
            browser.call("Page.navigate", url="about:blank")
            browser.call("Page.navigate", url=f"{self.url}#job={job}&token={wrong}")
            hidden = "document.getElementById('login')?.hidden"
            browser.wait(f"{hidden} === false && document.getElementById('said').textContent")
            self.assertIn("unknown, revoked or has expired", browser.run("document.getElementById('said').textContent"))
            self.assertEqual(browser.run("document.getElementById('main').childElementCount"), 0)
        self.check_access_of(browser)


if __name__ == "__main__":
    harness.main()
