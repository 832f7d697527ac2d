"""Writes tests/parity/muon.txt: what torch.optim.Muon computes on a CPU.

    python tests/parity/make_muon_numbers.py > tests/parity/muon.txt

A tiny GPT of one block, whose matrices have Muon and the rest AdamW, on drawn tokens: the losses of 50
steps, and every seventh value of its parameters afterwards (tests/engine/test_muon.c). Then per case
the matrix after 50 steps, twice: `torch`, whose iterations are in bf16, and `exact`, the same
formulas in f64 with gradients of their own. A gradient is a fraction of the distance to a target, and
draws that tests/unit/test_muon.c makes, too. Versions: those in the file's first line.
"""
import math

import torch
from make_block_numbers import Draws

STEPS = 50
CASES = (  # rows, columns, momentum, nesterov, iterations, adjust_lr_fn, lr, weight_decay
    (12, 20, 0.95, True, 5, "original", 0.02, 0.1),
    (20, 12, 0.9, False, 5, "match_rms_adamw", 0.01, 0.0),
    (16, 16, 0.5, True, 7, "original", 0.005, 0.01),
)


class Exact:
    """torch.optim.Muon (2.15) for one matrix, in its own type throughout."""

    def __init__(self, momentum, nesterov, steps, adjust, lr, decay):
        self.momentum, self.nesterov, self.steps = momentum, nesterov, steps
        self.adjust, self.lr, self.decay, self.average = adjust, lr, decay, None

    def step(self, p, grad):
        if self.average is None:
            self.average = torch.zeros_like(p)
        self.average.lerp_(grad, 1 - self.momentum)
        x = grad.lerp(self.average, self.momentum) if self.nesterov else self.average
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(self.steps):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        rows, columns = p.shape
        factor = math.sqrt(max(1, rows / columns))
        if self.adjust == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(rows, columns))
        p.mul_(1 - self.lr * self.decay).add_(x, alpha=-self.lr * factor)


def train(case, dtype, step):
    """`step(p, grad)` moves p."""
    rows, columns = case[:2]
    draws = Draws(rows * 1000 + columns)
    p, target = (draws.fractions(rows * columns).view(rows, columns).to(dtype) for _ in range(2))
    for _ in range(STEPS):
        noise = draws.fractions(rows * columns).view(rows, columns).to(dtype)
        step(p, (p - target) * 0.25 + noise * 0.125)
    return p


def in_torch(case):
    _, _, momentum, nesterov, steps, adjust, lr, decay = case
    parameter = torch.nn.Parameter(torch.zeros(case[:2]))
    optimizer = torch.optim.Muon([parameter], lr=lr, weight_decay=decay, momentum=momentum,
                                 nesterov=nesterov, ns_steps=steps, adjust_lr_fn=adjust)

    def step(p, grad):
        parameter.data, parameter.grad = p, grad
        optimizer.step()

    return train(case, torch.float32, step)


VOCABULARY, CONTEXT, ROWS = 37, 15, 30


class Gpt(torch.nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.wte = torch.nn.Embedding(VOCABULARY, width)
        self.wpe = torch.nn.Embedding(CONTEXT, width)
        self.c_attn = torch.nn.Linear(width, 3 * width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        y = self.wte(tokens) + self.wpe.weight
        q, k, v = (part.unflatten(2, (3, -1)).transpose(1, 2) for part in self.c_attn(y).chunk(3, 2))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + attended.transpose(1, 2).flatten(2)
        return self.head(y + self.down(torch.relu(self.up(y))))


class ExactMuon:
    """`Exact` for several parameters."""

    def __init__(self, parameters, lr, weight_decay):
        self.each = [(value, Exact(0.95, True, 5, "original", lr, weight_decay)) for value in parameters]

    def step(self):
        for value, exact in self.each:
            exact.step(value.data, value.grad)


def two_optimizers(muon):
    def make(model):
        matrices = [model.c_attn.weight, model.up.weight, model.down.weight]
        others = [value for value in model.parameters() if all(value is not one for one in matrices)]
        return (muon(matrices, lr=0.02, weight_decay=0.1),
                torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.99), weight_decay=0.01))
    return make


def draw_tokens(draws):
    tokens = torch.tensor([draws.bits() % VOCABULARY for _ in range(2 * ROWS * CONTEXT)])
    rows, targets = tokens.view(2, ROWS, CONTEXT)
    return rows, torch.where(rows % 3 == 0, rows, targets)  # something to learn


def loss_of_tokens(model, batch):
    rows, targets = batch
    return torch.nn.functional.cross_entropy(model(rows).flatten(0, 1), targets.flatten())


def train_gpt(name, optimizers_of, dtype):
    draws, model = Draws(11), Gpt().to(dtype)
    for parameter in model.parameters():
        parameter.data = draws.fractions(parameter.numel()).view_as(parameter).to(dtype) * 0.25
    optimizers = optimizers_of(model)
    losses = []
    for _ in range(STEPS):
        loss = loss_of_tokens(model, draw_tokens(draws))
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    values = torch.cat([value.detach().flatten() for value in model.parameters()])[::7]
    print(f"losses-{name}", *(f"{loss:.9g}" for loss in losses))
    print(f"values-{name}", *(f"{value:.9g}" for value in values.tolist()))


def main():
    torch.set_num_threads(1)
    print(f"# torch {torch.__version__}")
    train_gpt("torch", two_optimizers(torch.optim.Muon), torch.float32)
    train_gpt("exact", two_optimizers(ExactMuon), torch.float64)
    for case in CASES:
        print("case", *(int(value) if isinstance(value, bool) else value for value in case))
        for name, values in (("torch", in_torch(case)),
                             ("exact", train(case, torch.float64, Exact(*case[2:]).step))):
            print(name, *(f"{value:.9g}" for value in values.flatten().tolist()))


if __name__ == "__main__":
    main()
