"""Writes tests/parity/adafactor.txt: what torch.optim.Adafactor computes on a CPU.

    python tests/parity/make_adafactor_numbers.py > tests/parity/adafactor.txt

The tiny GPT of make_muon_numbers.py: the losses of 50 steps, and every seventh value of its parameters
afterwards (tests/engine/test_muon.c), in f32 and in f64, whose `eps` is f32's. Then parameters of
several shapes after 50 steps in f64, on gradients that tests/unit/test_adafactor.c draws, too. Versions: those
in the file's first line.
"""
import torch
from make_block_numbers import Draws
from make_muon_numbers import STEPS, train_gpt

EPS = torch.finfo(torch.float32).eps
SHAPES = ((12, 20), (20, 12), (24,), (3, 2, 5, 4), (1, 9), (6, 1, 1))
SETTINGS = (  # lr, beta2_decay, eps2, d, weight_decay
    (0.05, -0.8, 1e-3, 1.0, 0.0),
    (0.3, -0.5, 0.5, 2.0, 0.1),
)


def adafactor(parameters, lr, beta2_decay=-0.8, eps2=1e-3, d=1.0, weight_decay=0.0):
    return torch.optim.Adafactor(parameters, lr=lr, beta2_decay=beta2_decay, eps=(EPS, eps2), d=d,
                                 weight_decay=weight_decay)


def train(settings):
    """All shapes in one model, whose gradients are fractions of distances to targets, and draws."""
    draws = Draws(77)
    count = sum(torch.Size(shape).numel() for shape in SHAPES)

    def split(values):
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        return [part.view(shape) for part, shape in zip(values.double().split(sizes), SHAPES)]

    parameters = [torch.nn.Parameter(part.clone()) for part in split(draws.fractions(count))]
    targets = split(draws.fractions(count))
    optimizer = adafactor(parameters, *settings)
    for _ in range(STEPS):
        for parameter, target, noise in zip(parameters, targets, split(draws.fractions(count))):
            parameter.grad = (parameter.detach() - target) * 0.25 + noise * 0.125
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def main():
    torch.set_num_threads(1)
    print(f"# torch {torch.__version__}")
    for name, dtype in (("torch", torch.float32), ("exact", torch.float64)):
        train_gpt(name, lambda model: (adafactor(model.parameters(), 0.02, weight_decay=0.1),), dtype)
    for settings in SETTINGS:
        print("case", *settings)
        print("exact", *(f"{value:.9g}" for value in train(settings).tolist()))


if __name__ == "__main__":
    main()
