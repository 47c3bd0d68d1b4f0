"""The random numbers of a batch of prompts, which a run's seed and the prompts' ids decide."""

import torch
from parity_certify.seeding import derive_row_key
from parity_decoders.noise import Noise


def batch_noise(seed: int, prompts: list[str], device: str = "cpu", dtype: torch.dtype = torch.float32) -> Noise:
    """Make the noise of a batch of prompt ids under a run's seed."""
    return Noise(torch.tensor([derive_row_key(seed, prompt) for prompt in prompts], device=device), dtype)
