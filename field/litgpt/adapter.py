"""litgpt: the `generate` loop of its speculative decoding, on tables in place of the two networks."""

import numpy as np
import torch
from litgpt.generate import speculative_decoding as theirs
from parity_certify import Sampled
from parity_certify.distributions import count_prefixes


class Table(torch.nn.Module):
    """Logits by prefix, addressed by position as their cache is; flat after the table's last level."""

    max_seq_length = 64

    def __init__(self, rows, length):
        super().__init__()
        self.rows, self.length, self.held = torch.from_numpy(np.log(rows)).float(), length, {}

    def forward(self, idx, input_pos, input_pos_maxp1=None):
        """Compute logits [1, n, 4] after tokens idx [1, n] at positions input_pos [n], which are stored there."""
        self.held |= dict(zip(input_pos.tolist(), idx[0].tolist(), strict=True))
        out = torch.zeros(1, len(input_pos), self.rows.shape[1])
        for i, position in enumerate(input_pos.tolist()):  # the prompt is one token, at position 0
            if position < self.length:
                prefix = sum(self.held[j] * 4 ** (position - j) for j in range(1, position + 1))
                out[0, i] = self.rows[count_prefixes(4, position) + prefix]
        return out


def sampler(distribution, models, mend=False, temperature=1.0):
    """Make a sampler by their `generate`, two drafts a pass; `mend` puts the first token back, which it drops."""
    target, draft = (
        Table(distribution.tables[0] ** temperature, distribution.length),
        Table(distribution.extra["draft"], distribution.length),
    )
    first, original = [], theirs.next_token

    def record_token(model, *arguments, **keywords):
        first.append(original(model, *arguments, **keywords))
        return first[-1]

    theirs.next_token = record_token

    def sample(prompts, seed):
        torch.manual_seed(seed)
        rows, drafted, accepted = [], 0, 0.0
        for prompt in torch.from_numpy(np.asarray(prompts)):
            size = len(prompt) + distribution.length + 1
            tokens, rate = theirs.generate(draft, target, prompt, size, include_prompt=False, speculative_k=2,
                                          temperature=temperature)  # fmt: skip
            rows.append(([int(first[-1])] if mend else []) + tokens.tolist())
            drafted, accepted = drafted + 4, accepted + 4 * rate
        return Sampled([np.array(row[: distribution.length]) for row in rows], drafted, int(accepted))

    return sample
