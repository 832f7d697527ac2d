"""fsdpd-follow: see the package."""
from __future__ import annotations

import argparse
import os
import signal
import sys

import fsdpd

from .follower import Follower
from .place import Places, Wrong
from .sinks import SINKS, open_sink


def default_place(tracker: str, project: str) -> str:
    home = os.environ.get("XDG_STATE_HOME", "")
    state = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    return os.path.join(state, "fsdpd/follow", tracker, project.replace("/", "_"))


def label_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text}")
    return name, value


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fsdpd-follow", description="Writes what happens to jobs to a tracker, and "
                                     "continues where it ended.")
    parser.add_argument("tracker", choices=SINKS, help="where to write")
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="jobs to follow until they are over")
    parser.add_argument("--label", metavar="KEY=VALUE", type=label_of, action="append", default=[],
                        help="follow all jobs with this label, also those that are not submitted yet; can be repeated")
    parser.add_argument("--project", default="fsdpd",
                        help="the tracker's project or experiment, the service of OTLP (fsdpd)")
    parser.add_argument("--url", default="", help="the tracker's server; by default what its package finds")
    parser.add_argument("--offline", action="store_true", help="wandb: write files, for `wandb sync`")
    parser.add_argument("--artifact", choices=("weights", "log"), action="append", default=[],
                        help="what to send when a job is over; can be repeated")
    parser.add_argument("--place", metavar="DIR", help="where to keep how far jobs were followed "
                        "(~/.local/state/fsdpd/follow/TRACKER/PROJECT)")
    parser.add_argument("--address", help="of fsdpd, as fsdpctl's")
    options = parser.parse_args(arguments)
    if bool(options.jobs) == bool(options.label):
        parser.error("expected jobs, or --label")
    return options


def follow(options: argparse.Namespace) -> bool:
    place = os.path.abspath(options.place or default_place(options.tracker, options.project))
    os.makedirs(place, mode=0o700, exist_ok=True)
    sink = open_sink(options.tracker, options.project, options.url, place, options.offline)
    if options.artifact and not sink.takes_artifacts:
        raise Wrong(f"--artifact: {options.tracker} takes none" + (" over --url" if options.url else ""))
    places = Places(place, f"{options.tracker} {options.project} {options.url}".strip())
    with fsdpd.connect(options.address) as client:
        follower = Follower(client, sink, places, options.artifact)

        def stop(*ignored: object) -> None:
            follower.stopped = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        return follower.run(options.jobs, dict(options.label))


def main(arguments: list[str] | None = None) -> None:
    try:
        sys.exit(0 if follow(read_options(arguments)) else 1)
    except (Wrong, OSError) as error:
        sys.exit(f"fsdpd-follow: {error}")
