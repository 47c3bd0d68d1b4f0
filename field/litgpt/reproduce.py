"""litgpt: `generate` of speculative decoding drops the first token. Exit code 1: the fault shows."""

import sys

import torch
from litgpt.generate.speculative_decoding import generate


class Counts(torch.nn.Module):
    """A model that is certain: behind token t comes t + 1."""

    max_seq_length = 64

    def forward(self, idx, input_pos, input_pos_maxp1=None):
        return 50.0 * torch.nn.functional.one_hot((idx + 1) % 32, 32).float()


tokens, _ = generate(Counts(), Counts(), torch.tensor([4, 5, 6]), 10, include_prompt=True, speculative_k=2)
print(f"behind 4, 5, 6 a model that counts must go on 7, 8, 9, ...; generate returns {tokens.tolist()}")
sys.exit(0 if tokens.tolist()[:5] == [4, 5, 6, 7, 8] else 1)
