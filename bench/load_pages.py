"""Readers of the page at http.listen, for bench/load.sh --pages: browsers that do what common/page/page.js does, slow ones that
read a few bytes a second, and ones that vanish in the middle of an answer."""

import asyncio
import json
import os
import random
import socket
import time

LIST_S, JOB_S, IDLE_S, AGAIN_S = 3, 2, 5, 5  # as in page.js


class Readers:
    def __init__(self, port, token, job, seconds):
        self.port, self.token, self.job, self.until = port, token, job, time.monotonic() + seconds
        self.sequence = 0  # as last seen by any
        self.ms, self.events, self.refused, self.failed, self.streams, self.most = [], 0, 0, [], 0, 0

    def left(self):
        return self.until - time.monotonic()

    async def connect(self, number, path):
        """From one of 100 addresses of this host, as browsers have their own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port,
                                                       local_addr=(f"127.0.1.{number % 100 + 1}", 0))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode())
        return reader, writer

    async def get(self, number, path):
        """The body, and None if it is refused for now."""
        began = time.monotonic()
        reader, writer = await self.connect(number, path)
        try:
            answer = await reader.read()
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        code = int((head.split(None, 2) + [b"0", b"0"])[1])
        if code == 200:
            self.ms.append((time.monotonic() - began) * 1000)
            return body
        self.refused += code in (429, 503)
        if code not in (429, 503):
            self.failed.append(f"{path}: {head[:80]!r}")
        return None

    async def list_browser(self, number):
        while self.left() > 0:
            await self.get(number, "/v1/page")
            await asyncio.sleep(min(LIST_S, max(self.left(), 0)))

    async def job_browser(self, number):
        """Refreshes after events, at the latest when nothing happened for a while."""
        page, happened, sequence, stream = f"/v1/jobs/{self.job}/page", asyncio.Event(), 0, None
        try:
            while self.left() > 0:
                body = await self.get(number, page)
                happened.clear()
                if body and b'data-more="1"' in body[:400]:
                    await asyncio.sleep(0.05)
                    continue
                if body and stream is None:
                    sequence = self.sequence = int(body.partition(b'data-sequence="')[2].partition(b'"')[0])
                    stream = asyncio.ensure_future(self.events_of(number, sequence, happened))
                try:
                    await asyncio.wait_for(happened.wait(), min(IDLE_S, max(self.left(), 0.01)))
                    await asyncio.sleep(JOB_S)
                except asyncio.TimeoutError:
                    pass
        finally:
            if stream is not None:
                stream.cancel()

    async def events_of(self, number, sequence, happened):
        while True:
            reader, writer = await self.connect(number, f"/v1/jobs/{self.job}/events?after_sequence={sequence}")
            open_now = False
            try:
                while line := await reader.readline():
                    if line.startswith(b"HTTP/1.1 429"):
                        self.refused += 1
                    if not open_now and line.startswith(b"HTTP/1.1 200"):
                        open_now = True
                        self.streams += 1
                        self.most = max(self.most, self.streams)
                    if line.startswith(b"data: "):
                        sequence = max(sequence, int(json.loads(line[6:]).get("sequence", 0)))
                        self.events += 1
                        happened.set()
            finally:
                self.streams -= open_now
                writer.close()
            await asyncio.sleep(AGAIN_S)

    async def slow_browser(self, number):
        """Reads all events from the first on, 64 bytes a second, with a small window."""
        while self.left() > 0:
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.bind((f"127.0.1.{number % 100 + 1}", 0))
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", self.port))
            with one:
                one.send((f"GET /v1/jobs/{self.job}/events HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                          f"Authorization: Bearer {self.token}\r\n\r\n").encode())
                while self.left() > 0 and await asyncio.get_running_loop().sock_recv(one, 64):
                    await asyncio.sleep(min(1, max(self.left(), 0)))
                await asyncio.sleep(min(1, max(self.left(), 0)))

    async def vanishing_browser(self, number):
        """Resets its connection somewhere in an answer."""
        while self.left() > 0:
            reader, writer = await self.connect(number, random.choice(
                ("/v1/page", f"/v1/jobs/{self.job}/page",
                 f"/v1/jobs/{self.job}/events?after_sequence={self.sequence}")))
            await asyncio.sleep(min(random.random(), max(self.left(), 0)))
            writer.transport.abort()

    async def rereading_browser(self, number):
        """Reads all events from the first on, as fast as it can for a while, and resets its connection: no page does."""
        while self.left() > 0:
            reader, writer = await self.connect(number, f"/v1/jobs/{self.job}/events")
            await asyncio.sleep(min(random.random(), max(self.left(), 0)))
            writer.transport.abort()

    async def guard(self, kind, one):
        try:
            await one
        except OSError as error:
            self.failed.append(f"{kind}: {error!r}, {self.left():.1f} s before the end")

    async def run(self, **kinds):
        numbers = iter(range(100000))
        await asyncio.gather(*(self.guard(kind, getattr(self, f"{kind}_browser")(next(numbers)))
                               for kind, count in kinds.items() for _ in range(count)))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def measure(pid, port, token, followed, seconds, what, **kinds):
    """Prints the share of a core of the process `pid` and what the readers saw; how many of them failed."""
    readers, before, began = Readers(port, token, followed, seconds), cpu_seconds(pid), time.monotonic()
    asyncio.run(readers.run(**kinds) if kinds else asyncio.sleep(seconds))
    share = 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)
    times = sorted(readers.ms) or [0]
    print(f"{what:<44} {share:5.1f} % of a core, {memory(pid):4.0f} MiB; {len(readers.ms)} pages in {times[len(times) // 2]:.0f} ms "
          f"(median), {times[len(times) * 99 // 100]:.0f} ms (99 %); {readers.events} events, {readers.most} streams at once, "
          f"{readers.refused} refused", flush=True)
    for words in readers.failed[:3]:
        print(f"FAILED: {words}")
    return len(readers.failed)
