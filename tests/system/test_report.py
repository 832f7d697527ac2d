#!/usr/bin/env python3
"""fsdpctl report: one self-contained page about a job, read by a parser and by a real browser."""

import base64
import hashlib
import html.parser
import json
import os
import re
import shutil
import struct
import subprocess
import unittest
import zlib

from harness import DONE, NOT_FOUND, USAGE, Daemon, main

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """The elements of a page, which must be closed in order; texts by element."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (self.open, tag)
        self.open.pop()

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag] = self.texts.get(tag, "") + data

    def all(self, tag, **attributes):
        return [found for name, found in self.elements if name == tag and
                all(found.get(key) == value for key, value in attributes.items())]


def sha256(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def read_png(path):
    """Width, height and the rows of bytes of a picture without interlacing."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
        elif kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    assert depth == 8 and colour in (2, 6)
    return width, height, zlib.decompress(packed)


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(workers=2)
        cls.done = cls.daemon.submit("train.epochs=2", "train.batch_size=16", "train.log_interval=1",
                                     "schedule.type=step")
        cls.daemon.wait_state(cls.done, "SUCCEEDED")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def report(self, job, *arguments):
        path = os.path.join(self.daemon.root, f"{job}.html")
        result = self.daemon.ctl("report", job, "-o", path, "--format", "json", *arguments)
        self.assertEqual(result.returncode, DONE, result.stderr)
        summary = json.loads(result.stdout)
        self.assertEqual((summary["id"], summary["file"]), (job, path))
        self.assertEqual(os.path.getsize(path), summary["bytes"])
        with open(path, encoding="utf-8") as file:
            return path, file.read(), summary

    def check(self, job, text):
        page = Page(text)
        shown = self.daemon.show(job)
        # no external resources, and only the page's own script and style
        self.assertNotRegex(text, r"""(?i)(https?:)?//[a-z]|@import|url\(|\son[a-z]+=|\sstyle=""")
        for tag in ("link", "img", "iframe", "base", "form", "object"):
            self.assertEqual(page.all(tag), [])
        (policy,) = [one["content"] for one in page.all("meta")
                     if one.get("http-equiv") == "Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        for tag in ("style", "script"):
            (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
            self.assertIn(f"{tag}-src '{sha256(inside)}'", policy)
        # the page says what the daemon says
        body = page.texts["body"]
        self.assertIn(job, page.texts["h1"])
        for unit in shown["units"]:
            self.assertIn(f"{unit['padded']:,}", body)
        for one in shown["plan"]["memory"]:
            self.assertIn(f"{one['name']}", body)
            self.assertIn(f"{one['bytes']:,}", body)
        self.assertIn(f"{shown['plan']['peak_bytes']:,}", body)
        for entry in self.daemon.json("history", job):
            self.assertIn(entry["reason"]["message"], body)
        self.assertIn("batch_size: 16", page.texts["pre"])
        return page

    def test_finished(self):
        _, text, summary = self.report(self.done)
        page = self.check(self.done, text)
        self.assertFalse(summary["traced"])
        self.assertIn("The plan's schedule of a training step", page.texts["body"])
        (loss,) = [one for one in page.all("svg") if "training|" in one.get("data-line0", "")]
        values = loss["data-line0"].split("|")[1].split(" ")
        points = list(zip(map(float, values[::2]), map(float, values[1::2])))
        rows = [json.loads(line)["event"] for line in
                self.daemon.ctl("metrics", self.done, "-o", "json").stdout.splitlines()]
        steps = [one["metrics"] for one in rows if "metrics" in one]
        self.assertEqual([point[0] for point in points], [one["step"] for one in steps])
        for point, one in zip(points, steps):
            self.assertAlmostEqual(point[1], one["loss"], delta=1e-5 * abs(one["loss"]) + 1e-12)
        self.assertEqual(len(loss["data-line2"].split(" ")) // 2, 2)  # a test after each epoch

    def test_running(self):
        job = self.daemon.submit("train.epochs=100000", "train.batch_size=16", "train.log_interval=1")
        self.addCleanup(self.daemon.ctl, "cancel", job)
        self.daemon.wait_step(job, 3)
        _, text, summary = self.report(job)
        page = self.check(job, text)
        self.assertTrue(summary["traced"])
        self.assertRegex(page.texts["body"], r"Measured in step \d+")
        program = next(one for one in self.daemon.show(job)["plan"]["programs"]
                       if one["name"] == "train")
        boxes = sum(len(page.all("rect", **{"class": f"l{lane}"})) for lane in range(3))
        self.assertEqual(boxes, 2 * program["instructions"])
        _, text, summary = self.report(job, "--no-trace")
        self.assertFalse(summary["traced"])
        # the measured peak may exceed the current plan's, and then the page gives the reason
        self.assertNotIn("The wrap policy was changed", text)
        changed = self.daemon.ctl("wrap", "set", job, "--policy", "none")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        change = self.daemon.show(job)["step"]
        self.daemon.wait_step(job, change + 2)
        _, text, _ = self.report(job, "--no-trace")
        self.assertIn("The wrap policy was changed 1 time while the job ran", text)
        charts = [one for one in Page(text).all("svg", **{"class": "chart"})]
        self.assertEqual(len(Page(text).all("line", **{"class": "mark"})), len(charts))
        self.assertRegex(text, r"<title>units changed at step \d+</title>")
        piped = self.daemon.ctl("trace", job, "--steps", "1", "-o", "-")
        self.assertEqual(piped.returncode, 0, piped.stderr)
        self.assertRegex(piped.stderr, rf"^steps \d+ to \d+ of {job} on 2 ranks\n$")
        cancelled = self.daemon.ctl("cancel", job)
        self.assertEqual((cancelled.stdout + cancelled.stderr).count("next step boundary"), 1)
        self.daemon.wait_state(job, "CANCELLED")

    def test_queued(self):
        """A job that has not begun has a page, too."""
        job = self.daemon.submit("workers=3", "train.batch_size=16")
        self.addCleanup(self.daemon.ctl, "cancel", job)
        _, text, _ = self.report(job)
        self.assertIn("Nothing was recorded.", Page(text).texts["p"])

    def test_refusals(self):
        path = os.path.join(self.daemon.root, "refused.html")
        for arguments, code, message in (
                (("report", "no-such-job", "-o", path), NOT_FOUND, "no-such-job"),
                (("report", self.done), USAGE, "report: expected -o FILE")):
            result = self.daemon.ctl(*arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(message, result.stderr)
            self.assertFalse(os.path.exists(path))
        result = self.daemon.ctl("report", self.done, "-o", "-")
        self.assertTrue(result.stdout.startswith("<!DOCTYPE html>"), result.stdout[:100])

    def browse(self, path, *arguments):
        profile = os.path.join(self.daemon.root, "profile")
        result = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", *arguments,
             "file://" + path],
            env=dict(os.environ, HOME=self.daemon.root), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, text=True)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        said = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
        self.assertEqual(said, [])
        return result.stdout

    @unittest.skipUnless(BROWSER, "SKIP: no chromium here")
    def test_browser(self):
        path, text, _ = self.report(self.done)
        dom = self.browse(path, "--dump-dom")
        self.assertIn('<html lang="en" class="js">', dom)  # the script was allowed to run
        self.assertEqual(dom.count("<polyline"), text.count("<polyline"))
        picture = os.path.join(self.daemon.root, "page.png")
        self.browse(path, f"--screenshot={picture}", "--window-size=1200,2400")
        width, height, rows = read_png(picture)
        self.assertEqual((width, height), (1200, 2400))
        self.assertGreater(len(set(rows[::997])), 20)  # the picture is not blank
        keep = os.environ.get("FSDPD_KEEP_PAGE")
        if keep:
            shutil.copy(picture, keep)
            shutil.copy(path, keep + ".html")


if __name__ == "__main__":
    main()
