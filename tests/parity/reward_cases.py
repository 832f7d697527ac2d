"""The cases of reward models that are compared with trl: a model of family_cases.py with a head of one output, and the job's
model.lora or none. The pairs are those of dpo_cases.py. Needs nothing."""

import os

import family_cases as cases

STEPS, PAIRS, SEED, LEARNING_RATE = 30, 8, 7, 0.002
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reward.json")
# trl's names, and what is the same of the metrics
FIGURES = {"accuracy": lambda row: row["rewards_accuracies"], "margin": lambda row: row["rewards_margins"],
           "mean_reward": lambda row: (row["rewards_chosen"] + row["rewards_rejected"]) / 2}
MODELS = {
    "gpt2": ("GPT2ForSequenceClassification", dict(cases.FAMILIES["gpt2"][1], num_labels=1, pad_token_id=cases.PADDING)),
    "llama": ("LlamaForSequenceClassification", dict(cases.PADDED, head_dim=6, num_labels=1)),
}
# The loss does not change when all rewards grow by the same. A bias behind the last norm does just that: its gradient is 0
# but for rounding, which Adam makes a whole step of. So the mean of rewards is then compared with nothing.
SHIFTED = {"gpt2"}
CASES = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {}),
    "llama-lora": ("llama", dict(rank=4, alpha=8, targets=["q_proj", "down_proj"], modules_to_save=["score"])),
}
