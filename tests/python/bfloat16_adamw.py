"""AdamW for bfloat16 parameters without float32 masters, which loses no step for being small.

    rounding     how θ + step becomes bfloat16
    stochastic   up or down by chance, so that the mean is right
    kahan        to the nearest; what that drops is kept, 2 bytes a parameter, and added to the next step

Both are of Zamirai et al., "Revisiting BFloat16 Training", arXiv 2010.06192. PyTorch's AdamW rounds to the nearest, and
what is less than half a unit in the last place is lost. Moments are bfloat16, as there.
"""

import torch


def rounded_stochastically(values):
    """float32 values in bfloat16: the 16 bits that go are the chance to round away from zero."""
    bits = values.view(torch.int32)
    return ((bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)).view(torch.float32).bfloat16()


class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, eps=1e-8, weight_decay=0.0, rounding="kahan"):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.rounding = rounding

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update({name: torch.zeros_like(parameter) for name in ("mean", "square", "dropped")}, taken=0)
                self.add(parameter, self.change(parameter, state, **group), state["dropped"])

    def change(self, parameter, state, lr, betas, eps, weight_decay, **_):
        """The step of one parameter, float32."""
        state["taken"] += 1
        gradient = parameter.grad.float()
        mean = state["mean"].float().lerp(gradient, 1 - betas[0])
        square = state["square"].float().lerp(gradient.square(), 1 - betas[1])
        state["mean"].copy_(mean)
        state["square"].copy_(square)
        mean, square = (moment / (1 - beta ** state["taken"]) for moment, beta in zip((mean, square), betas))
        return -lr * (mean / (square.sqrt() + eps) + weight_decay * parameter.float())

    def add(self, parameter, change, dropped):
        if self.rounding == "stochastic":
            parameter.copy_(rounded_stochastically(parameter.float() + change))
            return
        change = change.bfloat16() + dropped
        before = parameter.clone()
        parameter.add_(change)
        dropped.copy_(change - (parameter - before))

    def forget(self):
        """Loses what was kept; for the test that it should not be."""
        for state in self.state.values():
            state["dropped"].zero_()
