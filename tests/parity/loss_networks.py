"""Networks with sums of losses, for test_networks.py: text, module and loss. What a loss needs besides the module's
output hangs on this as `more`."""

import torch
from torch import nn
from torch.nn import functional as F

from draws import normal


class Terms(nn.Module):
    """A sum of losses: of classes, against the input, and of two values that are both trained."""
    text = """
name: Terms
input: [1, 8, 8]
classes: 10
args: {share: 0.3}
modules: {conv: "Conv2d(1, 6, 3)", head: "Linear(216, 10)", back: "Linear(216, 64)"}
forward:
  - y = flatten(relu(conv(x)), 1)
  - output = head(y)
  - z = reshape(back(y), (-1, 1, 8, 8))
loss: (1 - share) * cross_entropy(output, target) + mse_loss(z, x) * share + 2 * (l1_loss(z, x) + 3 * smooth_l1_loss(flatten(z, 1)[:, :10], output)) / 4
"""

    def __init__(self):
        super().__init__()
        self.conv, self.head, self.back = nn.Conv2d(1, 6, 3), nn.Linear(216, 10), nn.Linear(216, 64)

    def forward(self, x):
        y = torch.relu(self.conv(x)).flatten(1)
        output = self.head(y)
        output.more = self.back(y).reshape(-1, 1, 8, 8)
        return output

    @staticmethod
    def loss(output, x, target):
        z = output.more
        both = F.l1_loss(z, x) + 3 * F.smooth_l1_loss(z.flatten(1)[:, :10], output)
        return 0.7 * F.cross_entropy(output, target) + F.mse_loss(z, x) * 0.3 + 2 * both / 4


class VAE(nn.Module):
    """pytorch/examples' vae, with its loss: the pixels' and the divergence from the normal distribution."""
    text = """
name: VAE
input: [20]
classes: 10
modules: {fc1: "Linear(20, 16)", fc21: "Linear(16, 4)", fc22: "Linear(16, 4)", fc3: "Linear(4, 16)", fc4: "Linear(16, 20)"}
forward:
  - y = relu(fc1(x))
  - mu = fc21(y)
  - logvar = fc22(y)
  - std = exp(0.5 * logvar)
  - output = fc4(relu(fc3(mu + randn_like(std) * std)))
loss: 20 * binary_cross_entropy_with_logits(output, x) + 4 * 0.5 * l1_loss(mu * mu + exp(logvar) - 1 - logvar, (mu > 0) * 0)
"""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 20)

    def draw(self, seed, step, batch):
        self.noise = torch.from_numpy(normal(seed, 0, step, (batch, 4)))

    def forward(self, x):
        y = torch.relu(self.fc1(x))
        mu, logvar = self.fc21(y), self.fc22(y)
        output = self.fc4(torch.relu(self.fc3(mu + self.noise.to(mu.dtype) * torch.exp(0.5 * logvar))))
        output.more = mu, logvar
        return output

    @staticmethod
    def loss(output, x, target):
        mu, logvar = output.more
        pixels = F.binary_cross_entropy_with_logits(output, x, reduction="sum")
        return (pixels - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()) / len(x)


class Parts(nn.Module):
    """Two heads, each with its own part of a sample's numbers."""
    text = """
name: Parts
input: [7]
targets: [3]
modules: {up: "Linear(7, 19)", first: "Linear(19, 2)", second: "Linear(19, 1)"}
forward: [y = tanh(up(x)), output = first(y), z = second(y)]
loss: "mse_loss(output, target[:, :2]) + 0.5 * binary_cross_entropy_with_logits(z, target[:, 2:])"
"""

    def __init__(self):
        super().__init__()
        self.up, self.first, self.second = nn.Linear(7, 19), nn.Linear(19, 2), nn.Linear(19, 1)

    def forward(self, x):
        y = torch.tanh(self.up(x))
        output = self.first(y)
        output.more = self.second(y)
        return output

    @staticmethod
    def loss(output, x, target):
        second = F.binary_cross_entropy_with_logits(output.more, target[:, 2:])
        return F.mse_loss(output, target[:, :2]) + 0.5 * second


class Distilled(nn.Module):
    """A network that learns from a frozen one, of which it takes probabilities and what lies before them."""
    text = """
name: Distilled
input: [1, 8, 8]
classes: 10
args: {T: 3.0, alpha: 0.4}
blocks:
  Teacher():
    modules: {conv: "Conv2d(1, 9, 3)", head: "Linear(324, 10)"}
    forward: ["output = head(flatten(relu(conv(x)), 1))"]
modules: {conv: "Conv2d(1, 6, 3)", head: "Linear(216, 10)", teacher: Teacher()}
forward: ["output = head(flatten(relu(conv(x)), 1))"]
loss: '(1 - alpha) * cross_entropy(output, target)
  + alpha * T * T * kl_div(log_softmax(output / T, dim=-1), log_softmax(teacher(x) / T, dim=-1), reduction="batchmean", log_target=True)
  + 0.5 * kl_div(log_softmax(output, dim=-1), softmax(teacher(x), dim=-1))'
freeze: ["teacher.*"]
"""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 6, 3), nn.Linear(216, 10)
        self.teacher = nn.ModuleDict({"conv": nn.Conv2d(1, 9, 3), "head": nn.Linear(324, 10)}).requires_grad_(False)

    def forward(self, x):
        output = self.head(torch.relu(self.conv(x)).flatten(1))
        output.more = self.teacher["head"](torch.relu(self.teacher["conv"](x)).flatten(1))
        return output

    @staticmethod
    def loss(output, x, target):
        own, given = (F.log_softmax(scores / 3, dim=-1) for scores in (output, output.more))
        divergence = F.kl_div(own, given, reduction="batchmean", log_target=True)
        mean = F.kl_div(output.log_softmax(-1), output.more.softmax(-1), reduction="mean")
        return 0.6 * F.cross_entropy(output, target) + 0.4 * 9 * divergence + 0.5 * mean
