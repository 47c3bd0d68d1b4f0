"""Any-subset speculative decoding: the whole loop in an order that is no line, with a table in place of XLNet."""

import borrowed
import numpy as np
import torch
from parity_certify import Sampled

ORDER = [0, 3, 1, 2]  # places in the order in which they are decoded; place 0 is the prompt
CPU = {".cuda()": ".cpu()", 'device="cuda"': 'device="cpu"'}


class Network:
    """Logits of the places asked for: the table's distribution where all tokens before a place in ORDER are visible,
    else the draft's distribution after those that are."""

    def __init__(self, distribution):
        self.distribution, self.passes = distribution, 0

    def cpu(self):
        return self

    def __call__(self, sequence, perm_mask, target_mapping):
        """Compute logits [1, n, 5] of the n places in target_mapping, given the tokens that perm_mask shows."""
        self.passes += 1
        rows = []
        for position in target_mapping[0].argmax(1).tolist():
            visible = [i for i in ORDER[1:] if not perm_mask[0, position, i]]
            prefix = sequence[:, visible].numpy()
            table = (
                self.distribution.tables[0]
                if len(visible) == ORDER.index(position) - 1
                else self.distribution.extra["draft"]
            )
            rows.append(torch.tensor(borrowed.look_up_distributions(table, prefix)[0]).float().log())
        logits = torch.stack(rows)
        return (torch.cat([logits, torch.full((len(rows), 1), -torch.inf)], 1)[None],)  # the mask is never drawn


def sampler(distribution, models, k=3):
    """Make a sampler by their `speculative_decoding`, k drafts a loop."""
    (decode,) = borrowed.functions("speculative_decoding.py", *NAMES, replace=CPU, torch=torch)[-1:]
    sigma = torch.tensor([[ORDER.index(position) for position in range(len(ORDER))]])
    start = torch.tensor([[0, 4, 4, 4]])  # token 4 is the mask

    def sample(prompts, seed):
        torch.manual_seed(seed)
        network = Network(distribution)
        settings = {"sigma": sigma, "start": 1, "mask_token": 4, "vocab_size": 5, "k": k}
        rows = [decode(network, None, start, **settings)[0][0, ORDER[1:]].numpy() for _ in prompts]
        rounds = network.passes // 2
        return Sampled(np.stack(rows), k * rounds, rounds)

    return sample


NAMES = "calc_parallel_perm_mask", "create_gt_perm_mask", "speculative_decoding"
