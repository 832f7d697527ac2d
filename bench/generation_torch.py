#!/usr/bin/env python3
"""transformers' side of bench/generation.sh: prints the seconds of each call of generate as JSON."""

import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import table_models
import torch
import transformers


def main():
    name, dtype, sequences, prompt, tokens, calls = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = table_models.MODELS[name]
    torch.set_default_dtype({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    net = getattr(transformers, model.architecture)(transformers.AutoConfig.for_model(**model.config)).eval()
    ids = torch.randint(model.config["vocab_size"], (sequences, prompt))
    seconds = []
    with torch.inference_mode():
        for _ in range(calls):
            started = time.perf_counter()
            made = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
                                eos_token_id=None, pad_token_id=0)
            seconds.append(time.perf_counter() - started)
            assert made.shape == (sequences, prompt + tokens)
    json.dump({"seconds": seconds, "version": f"transformers {transformers.__version__}, PyTorch {torch.__version__}"},
              sys.stdout)


if __name__ == "__main__":
    main()
