"""What a model file cannot say."""

from __future__ import annotations


class Refusal(Exception):
    """At `place`, the user's file and line, or the name of a module."""

    def __init__(self, place: str, reason: str):
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


class Refusals(Exception):
    """All that was found, each once, in the order of the forward pass."""

    def __init__(self, found: list[Refusal]):
        self.lines = list(dict.fromkeys(str(refusal) for refusal in found))
        super().__init__("\n".join(self.lines))
