"""Writes tests/parity/optimizers.txt: Muon, Adafactor and 8-bit AdamW of PyTorch and bitsandbytes on a CPU.

    python tests/parity/make_optimizer_numbers.py > tests/parity/optimizers.txt

50 steps of an MLP with each, and of a GPT with 8-bit AdamW and Muon (with the others, and Muon at a greater
rate: make_adafactor_numbers.py and make_muon_numbers.py), on draws that tests/engine/test_muon.c makes, too: the losses, and every
twenty-ninth value of the parameters afterwards. `exact` are the same formulas in f64. Their largest
weights have 4,096 elements and more, from which on bitsandbytes keeps 8 bits. Versions: those in the
file's first line.
"""
import bitsandbytes
import torch
from make_adafactor_numbers import adafactor
from make_block_numbers import Draws
from make_muon_numbers import ROWS, STEPS, ExactMuon, Gpt, draw_tokens, loss_of_tokens

INPUTS, HIDDEN, CLASSES, EACH = 24, 192, 10, 29


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(INPUTS, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, INPUTS)
        self.head = torch.nn.Linear(INPUTS, CLASSES)

    def forward(self, rows):
        return self.head(torch.relu(self.down(torch.relu(self.up(rows)))))


def draw_rows(draws):
    """The class is a tenth of the first value's range."""
    rows = draws.fractions(ROWS * INPUTS).view(ROWS, INPUTS)
    return rows, ((rows[:, 0].double() + 1) * 5).long()


def loss_of_rows(model, batch):
    rows, targets = batch
    dtype = model.head.weight.dtype
    return torch.nn.functional.cross_entropy(model(rows.to(dtype)), targets)


def packed(model):
    return (bitsandbytes.optim.AdamW8bit(model.parameters(), lr=0.002, betas=(0.9, 0.99), weight_decay=0.1),)


def muon_with(muon):
    def make(model):
        matrices = [value for name, value in model.named_parameters()
                    if name in ("c_attn.weight", "up.weight", "down.weight")]
        others = [value for value in model.parameters() if all(value is not one for one in matrices)]
        return (muon(matrices, lr=0.004, weight_decay=0.1),
                torch.optim.AdamW(others, lr=0.002, betas=(0.9, 0.99), weight_decay=0.01))
    return make


def cases():
    """Of each line: its name, the model, what draws a batch, and what its loss is; optimizers; the type."""
    mlp, gpt = (Mlp, draw_rows, loss_of_rows), (lambda: Gpt(48), draw_tokens, loss_of_tokens)
    yield "gpt-packed-torch", gpt, packed, torch.float32
    yield "mlp-packed-torch", mlp, packed, torch.float32
    yield "gpt-muon-torch", gpt, muon_with(torch.optim.Muon), torch.float32
    yield "gpt-muon-exact", gpt, muon_with(ExactMuon), torch.float64
    yield "mlp-muon-torch", mlp, muon_with(torch.optim.Muon), torch.float32
    yield "mlp-muon-exact", mlp, muon_with(ExactMuon), torch.float64
    for name, dtype in (("torch", torch.float32), ("exact", torch.float64)):
        yield (f"mlp-adafactor-{name}", mlp,
               lambda model: (adafactor(model.parameters(), 0.02, weight_decay=0.1),), dtype)


def numbers():
    torch.set_num_threads(1)
    yield f"# bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}"
    for name, (model_of, draw, loss_of), optimizers_of, dtype in cases():
        draws, model, losses = Draws(11), model_of().to(dtype), []
        for parameter in model.parameters():
            parameter.data = draws.fractions(parameter.numel()).view_as(parameter).to(dtype) * 0.25
        optimizers = optimizers_of(model)
        for _ in range(STEPS):
            loss = loss_of(model, draw(draws))
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        values = torch.cat([value.detach().flatten() for value in model.parameters()])[::EACH]
        yield " ".join([f"losses-{name}", *(f"{loss:.7g}" for loss in losses)])
        yield " ".join([f"values-{name}", *(f"{value:.7g}" for value in values.tolist())])


if __name__ == "__main__":
    print("\n".join(numbers()))
