"""How far jobs have been followed, on the disk: a directory with a file for each job, and a lock, as two followers with
one place would send everything twice."""
from __future__ import annotations

import fcntl
import json
import os
from typing import Any


class Wrong(Exception):
    """What the user asked for is not possible; no repetition helps."""


class Places:
    def __init__(self, directory: str, to: str):
        """`to` names the tracker: a place is of one tracker alone."""
        self.directory, self.to = directory, to
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.lock = open(os.path.join(directory, "lock"), "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise Wrong(f"--place {directory}: another fsdpd-follow uses it") from None

    def close(self) -> None:
        self.lock.close()

    def path(self, job: str) -> str:
        return os.path.join(self.directory, f"{job}.json")

    def read(self, job: str, submitted: str) -> dict[str, Any]:
        """A new place, at sequence 0, if there is none or it is of an earlier job with this id."""
        try:
            with open(self.path(job), encoding="utf-8") as file:
                place = json.load(file)
        except FileNotFoundError:
            place = {}
        except ValueError as error:
            raise Wrong(f"{self.path(job)} is damaged: {error}; remove it to send the job again") from None
        if place and place["to"] != self.to:
            raise Wrong(f"{self.path(job)} is of {place['to']}, not of {self.to}: name another --place")
        if place.get("submitted") != submitted:
            place = {"job": job, "submitted": submitted, "to": self.to, "sequence": 0, "parameters": {},
                     "artifacts": [], "ended": ""}
        return place

    def write(self, place: dict[str, Any]) -> None:
        """Durable when it returns, whole or not at all."""
        path = self.path(place["job"])
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(place, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
