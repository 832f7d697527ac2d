"""Lion as in its paper, for PyTorch, which lacks it: Chen et al., "Symbolic discovery of
optimization algorithms", 2023, algorithm 2; the order of the operations is that of its authors'
code (google/automl, lion_pytorch.py)."""
import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                parameter.mul_(1 - lr * group["weight_decay"])
                update = average * beta1 + parameter.grad * (1 - beta1)
                parameter.add_(update.sign_(), alpha=-lr)
                average.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)
