#!/usr/bin/env python3
"""TensorBoard's event files, read by a parser that shares no code with their writer."""

import glob
import math
import os
import stat
import struct
import time
import unittest

import harness
from harness import Daemon

TABLE = []
for number in range(256):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(data[at:at + 8])
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, "a record is cut off"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(body)
        yield body
        at += 16 + length


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 1:
            yield key >> 3, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif key & 7 == 5:
            yield key >> 3, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            assert key & 7 == 2, key
            length = varint()
            yield key >> 3, data[at:at + length]
            at += length
    assert at == len(data)


def events(path):
    """[(wall time, step, {tag: value})], without the first record, which is checked."""
    with open(path, "rb") as file:
        parsed = [dict(fields(record)) for record in records(file.read())]
    assert parsed[0][3] == b"brain.Event:2", parsed[0]
    result = []
    for record in parsed[1:]:
        scalars = {}
        for number, value in fields(record[5]):
            assert number == 1
            entry = dict(fields(value))
            scalars[entry[1].decode()] = entry[2]
        result.append((record[1], record[2], scalars))
    return result


class TensorBoard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.close()

    def files(self, job):
        return glob.glob(os.path.join(self.daemon.root, "state/jobs", job, "tensorboard/*"))

    def test_crc(self):
        # From the definition of CRC-32C (RFC 3720, B.4), masked.
        crc = 0x8A9136AA  # of 32 zero bytes
        self.assertEqual(masked_crc32c(bytes(32)),
                         (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    def test_job(self):
        daemon = self.daemon
        before = time.time()
        result = daemon.submit("tensorboard=true", "train.epochs=2", "train.log_interval=4",
                               "train.clip_grad_norm.max_norm=1000", "name=board", wait=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        (path,) = self.files("board-1")
        self.assertTrue(os.path.basename(path).startswith("events.out.tfevents."))
        self.assertTrue(os.path.basename(path).endswith("." + os.uname().nodename))
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode) & 0o007, 0)
        read = events(path)
        # The same figures as the daemon's own record.
        job = daemon.show("board-1")
        by_tag = {}
        for wall, step, scalars in read:
            self.assertTrue(before - 60 < wall < time.time() + 60)
            for tag, value in scalars.items():
                by_tag.setdefault(tag, []).append((step, value))
        steps = [step for step, _ in by_tag["train/loss"]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(steps[0], 4)
        self.assertEqual(len(by_tag["test/accuracy"]), 2)
        step, accuracy = by_tag["test/accuracy"][-1]
        self.assertEqual(step, int(job["step"]))
        self.assertAlmostEqual(accuracy, job["metrics"]["accuracy"], places=6)
        self.assertAlmostEqual(by_tag["test/f1"][-1][1], job["metrics"]["test_scores"]["f1"], places=6)
        self.assertAlmostEqual(by_tag["test/loss"][-1][1], job["metrics"]["test_loss"], places=5)
        self.assertTrue(all(value > 0 for _, value in by_tag["train/gradient_norm"]))
        self.assertTrue(all(math.isfinite(v) for values in by_tag.values() for _, v in values))
        self.assertLess(by_tag["train/loss"][-1][1], by_tag["train/loss"][0][1])
        with open(os.path.join(harness.SOURCE, "docs/monitoring.md")) as manual:
            table = manual.read().split("| figure |")[1].split("\n\n")[0].splitlines()[2:]
        tags = {tag.strip(" `") for row in table for tag in row.split("|")[4].split(",")} - {""}
        self.assertLessEqual(set(by_tag), tags)
        others = {"speed/tokens_per_second", "speed/counted_tokens_per_second", "speed/mfu", "test/perplexity",
                  "test/pearson", "test/mse"}
        # those of token data, of pairs, and of samples
        self.assertEqual(tags - others - set(by_tag),
                         {tag for tag in tags if tag.startswith(("validation/", "rewards/", "logps/", "sample/"))})

    def test_not_asked_for(self):
        self.assertEqual(self.daemon.submit("train.max_steps=1", "name=plain",
                                            wait=True).returncode, 0)
        self.assertEqual(self.files("plain-1"), [])

    def test_live_and_cut_off(self):
        """The file is readable while the job runs; a killed daemon leaves whole records."""
        with Daemon(workers=1) as daemon:
            job = daemon.submit("tensorboard=true", "workers=1", "train.epochs=100000",
                                "train.log_interval=1")
            daemon.wait_step(job, 5)
            (path,) = glob.glob(os.path.join(daemon.root, "state/jobs", job, "tensorboard/*"))
            self.assertGreaterEqual(len(events(path)), 4)
            daemon.kill()
            self.assertGreaterEqual(len(events(path)), 4)
            daemon.start()

    def test_unwritable(self):
        """If the directory cannot be created, the job continues without it."""
        daemon = self.daemon
        directory = os.path.join(daemon.root, "state/jobs/blocked-1")
        os.makedirs(directory)
        with open(os.path.join(directory, "tensorboard"), "w"):
            pass
        result = daemon.submit("tensorboard=true", "train.max_steps=4", "name=blocked", wait=True,
                               )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(daemon.text().count("tensorboard_failed"), 1)


if __name__ == "__main__":
    harness.main()
