"""A line that says how far a preparation is, on a terminal only."""
import sys
import time

WIDTH = 24


class Progress:
    def __init__(self, out=sys.stderr):
        self.out, self.begun = out, time.monotonic()
        self.first = None  # records that were there before
        self.shown = self.begun if out.isatty() else None

    def tell(self, share, records):
        now = time.monotonic()
        self.first = records - 1 if self.first is None else self.first
        if self.shown is not None and now - self.shown > 0.2:
            self.shown = now
            self.show(share, records, now)

    def show(self, share, records, now):
        seconds = max(now - self.begun, 1e-3)
        rate = (records - (self.first or 0)) / seconds
        left = f"{seconds * (1 - share) / share:.0f} s left" if 0.01 < share < 1 else ""
        bar = "#" * round(WIDTH * share)
        print(f"\r[{bar:-<{WIDTH}}] {100 * share:3.0f} %  {records} records, {rate:.0f}/s {left:<14}", end="",
              file=self.out, flush=True)

    def end(self, records):
        if self.shown is not None:
            self.show(1.0, records, time.monotonic())
            print(file=self.out)
