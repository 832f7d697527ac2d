#!/usr/bin/env python3
"""Adapters with peft at work (make check-live): the numbers of lora.json again; what a job pulls loads in
peft and transformers with the logits that the merged model has; and an adapter that peft wrote."""

import os
import sys
import unittest

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../system")]
import family_models as models
import lora_cases

try:
    import peft
except ImportError:
    sys.exit("FAIL: the comparison with peft needs it: pip install peft beside transformers")
import torch
import transformers

import make_lora_numbers
import test_lora_numbers
import family_cases as cases

BOUND = 1e-5  # of the largest logit


def logits_of(name, model):
    case = lora_cases.CASES[name][0]
    with torch.no_grad():
        if case.startswith("head/"):
            tokens, targets, _ = cases.draw_documents(case[5:], cases.HEAD_BATCH, 1)
            return models.head_output(cases.HEADS[case[5:]][1], model.eval(), tokens, targets).logits
        return models.answer_model(case, model.eval())[0]


class Live(test_lora_numbers.Lora):
    # without peft
    test_losses = test_dropout = test_initial_values_are_those_of_peft = test_plan_says_what_is_trained = None
    test_adapter_is_part_of_the_job = test_refusals_of_adapters = None

    def test_numbers_are_those_of_peft(self):
        sys.argv[1:] = ["--compare"]
        self.assertEqual(make_lora_numbers.main(), 0)

    def test_directories_that_peft_writes_continue(self):
        for name in lora_cases.ADAPTERS:
            directory = os.path.join(self.data, "adapter-" + name)
            expected = make_lora_numbers.make_adapter(name, directory)["losses"]
            self.assertTrue(os.path.exists(os.path.join(directory, "README.md")))
            found = self.losses_of("adapter-" + name, 2, f"train.max_steps={lora_cases.ADAPTER_STEPS}")
            worst = max(abs(loss / e - 1) for loss, e in zip(found, expected, strict=True))
            print(f"adapter {name}: losses within {worst:.1e} of peft's")
            self.assertLessEqual(worst, BOUND)

    def test_pulled_adapters_load(self):
        for name, (case, lora, _) in lora_cases.CASES.items():
            if cases.is_picture(case):
                continue  # whose modules transformers 5 calls otherwise
            with self.subTest(name):
                job = self.run_job(name, 2)
                adapter, merged = (os.path.join(self.root, f"{name}-live-{what}") for what in ("adapter", "merged"))
                tied = name in lora_cases.TIED  # a head without the adapter of its matrix: cannot be merged
                for out, options in ((adapter, ["--format", "peft"]), (merged, ["--format", "hf", "--merge"])):
                    result = self.daemon.ctl("pull", job, "-o", out, *options)
                    self.assertEqual(result.returncode == 0, out == adapter or not tied, result.stderr)
                kind = getattr(transformers, test_lora_numbers.RECORDS[name]["record"]["class"])
                base = kind.from_pretrained(os.path.join(self.data, case), attn_implementation="eager")
                plain = logits_of(name, base)
                if not tied:
                    whole = logits_of(name, kind.from_pretrained(merged, attn_implementation="eager"))
                adapted = peft.PeftModel.from_pretrained(base, adapter)
                config = adapted.peft_config["default"]
                self.assertEqual((config.r, config.use_rslora), (lora["rank"], lora.get("rslora", False)))
                found = logits_of(name, adapted)
                scale = float(plain.abs().max())
                if tied:
                    print(f"{name}: training moved peft's logits by {float((found - plain).abs().max()) / scale:.1e}")
                    self.assertGreater(float((found - plain).abs().max()), 100 * BOUND * scale)
                    continue
                difference = float((found - whole).abs().max()) / scale
                print(f"{name}: peft's logits are those of the merged model within {difference:.1e}; "
                      f"training moved them by {float((whole - plain).abs().max()) / scale:.1e}")
                self.assertLessEqual(difference, BOUND)
                self.assertGreater(float((whole - plain).abs().max()), 100 * BOUND * scale)
                # and they are those of the job: its next loss
                again = logits_of(name, adapted.merge_and_unload())
                self.assertLessEqual(float((again - whole).abs().max()) / scale, BOUND)


if __name__ == "__main__":
    unittest.main(verbosity=2)
