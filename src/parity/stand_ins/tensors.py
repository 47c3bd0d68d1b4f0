"""Weights drawn from a fixed seed, for stand-ins of any network."""

import torch
from torch import Tensor, nn


def drawn(net: nn.Module, seed: int, std: float = 0.05) -> dict[str, Tensor]:
    """The state of a network of normal numbers with deviation `std` around 0, those of norms around what they begin
    with: the same whatever was drawn before."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in net.state_dict().items():
        if not value.is_floating_point():
            state[name] = value.clone()
            continue
        alike = bool((value == value.flatten()[0]).all())  # as a norm begins; else what chance has drawn
        base = value if alike else torch.zeros_like(value)
        state[name] = base + std * torch.randn(value.shape, generator=generator)
    return state
