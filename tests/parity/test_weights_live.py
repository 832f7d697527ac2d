#!/usr/bin/env python3
"""All damaged and odd directories of weights (odd_weights.py) against transformers: a loss is that of transformers' model, which
has read every tensor; whatever else transformers makes of a directory, it is refused here by name, or noted. $FSDPD_PYTHON names
a Python that has transformers (make check-live). With --write FILE, it writes the losses of tests/system/test_odd_weights.py."""

import collections
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../system"))
import family_models as models
import torch
import transformers

FILE = sys.argv[sys.argv.index("--write") + 1] if "--write" in sys.argv else None
import test_odd_weights
from test_odd_weights import BOUND, cases, harness, odd_weights

transformers.logging.set_verbosity(100)
STALE = "in a file that the index does not name for it"  # transformers takes the last file's, whatever the index says


class Live(test_odd_weights.OddWeights):
    COUNT = int(os.environ.get("FSDPD_ODD_WEIGHTS", odd_weights.COUNT))
    outcomes, losses = collections.Counter(), []

    def theirs(self, directory, path):
        """The loss; None and why there is none."""
        kind, _, name = directory.model.partition("/")
        torch.manual_seed(1)
        try:
            model, info = getattr(transformers, directory.record["class"]).from_pretrained(
                path, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
            answer = models.answer_head if kind == "head" else models.answer_model
            with torch.no_grad():
                loss = float(answer(name, model.double().eval())[1])
        except BaseException as error:  # whatever it makes of it; safetensors' panics are no Exceptions
            if isinstance(error, KeyboardInterrupt):
                raise
            return None, f"{type(error).__name__}: {error}"[:300]
        missing = sorted(map(str, info["missing_keys"] | {key for key, *_ in info["mismatched_keys"]}))
        if missing:
            return None, f"drawn: {', '.join(missing)}"
        return (loss, "") if loss == loss and abs(loss) != float("inf") else (None, "no number")

    def compare(self, number, directory, path, loss, said):
        expected, why = self.theirs(directory, path)
        if number < odd_weights.SAMPLE:
            self.losses.append(loss and float(f"{loss:.7g}"))
        if loss is None:
            kind = "refused by both" if expected is None else "refused here alone"
        elif expected is None and (STALE in said or directory.is_foreign):
            kind = "refused there alone"
        elif expected is None:
            kind = "not read there"
        else:
            kind = "equal" if abs(loss - expected) <= BOUND * abs(expected) else "by the index" if STALE in said else "other"
        self.outcomes[kind] += 1
        if os.environ.get("VERBOSE"):
            print(number, directory.model, directory.done, kind, loss, expected, why, said.strip(), sep=" | ", flush=True)
        self.assertIn(kind, ("equal", "refused by both", "refused here alone", "by the index", "refused there alone"),
                      f"{loss} here, {expected} there: {why} {said}")

    def test_odd_weights(self):
        super().test_odd_weights()
        print(f"transformers {transformers.__version__}: {dict(self.outcomes)}")
        if FILE:
            with open(FILE, "w", encoding="utf-8") as file:
                json.dump({"made by": f"tests/parity/test_weights_live.py: transformers {transformers.__version__}, torch "
                           f"{torch.__version__.partition('+')[0]}", "losses": self.losses}, file, indent=0)
                file.write("\n")


if __name__ == "__main__":
    del sys.argv[1:]
    harness.main()
