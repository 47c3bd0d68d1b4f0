"""GPT-2 as an any-subset model of one order, left to right: the autoregressive baseline, and the judge.

A row begins with the separator, as GPT-2's texts do; the known positions must be a prefix.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from parity_decoders.errors import DecodingError
from torch import Tensor

from parity.models.anysubset.xlnet import exclude

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


def build(config: dict[str, Any]) -> "GPT2LMHeadModel":
    """Build transformers' GPT-2 of the sizes in a saved configuration, with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**config))


class Causal:
    """transformers' GPT-2, cached or not. Satisfies `AnySubsetModel` in the identity order, for one rank a pass, or for
    several that are each given all before it."""

    def __init__(self, net: "GPT2LMHeadModel", mask: int, separator: int, cache: bool):
        """Wrap GPT-2. mask, separator: those tokens' ids, the mask's one past the network's if it has none; cache:
        whether keys and values are kept from pass to pass."""
        self.net = net.eval()
        self.mask = mask
        self.separator = separator
        self.cache = cache
        self.vocab = max(net.config.vocab_size, mask + 1)
        self.fed = torch.empty(0, dtype=torch.int64)  # [B] how many inputs of each row are in the cache
        self.checked: Tensor | None = None  # the orders of the batch that was checked last

    @torch.inference_mode()
    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V] of the tokens at positions n_seen [B, S], given those before them in tokens
        [B, N]. With the cache, only new inputs are run, if S is 1. Raises DecodingError if a row is in another order
        than from left to right, or too long, and ValueError for several ranks that are not given all before them."""
        B, N = tokens.shape
        if order is not self.checked:
            self.checked = order
            if (longest := self.net.config.n_positions) < N:
                raise DecodingError(f"rows of {N} positions; allowed for this causal model: at most {longest}")
            wrong = (order != torch.arange(N, device=order.device)).any(1)
            if wrong.any():
                row = int(wrong.nonzero()[0, 0])
                raise DecodingError(f"row {row}: known tokens after hidden ones; allowed for a causal model: a prefix")
        if ranks.shape[1] != 1 and not torch.equal(torch.where(ranks < N, ranks, n_seen), n_seen):
            raise ValueError(f"ranks: {ranks.shape[1]} a pass, drafted at once; allowed for a causal model: 1")
        known = tokens.clamp(max=self.net.config.vocab_size - 1)  # a mask that the network lacks is not read
        # input i gives position i's distribution
        feed = torch.cat([torch.full_like(tokens[:, :1], self.separator), known], 1)
        if not self.cache or ranks.shape[1] != 1:
            logits = self.net(feed[:, : int(n_seen.max()) + 1]).logits
            input_number = n_seen.clamp(max=logits.shape[1] - 1)[..., None].expand(-1, -1, logits.shape[-1])
            return self.exclude_mask(logits.gather(1, input_number))
        n_inputs = n_seen[:, 0] + 1  # how many inputs each distribution needs; a finished row repeats its last question
        fed = self.fed if self.fed.shape == n_inputs.shape else torch.full_like(n_inputs, -1)
        new_rows = (n_inputs != fed + 1) & (n_inputs != fed) | (fed < 0)
        restart, width, longest = torch.stack([new_rows.any(), (n_inputs - fed).max(), n_inputs.max()]).tolist()
        if restart:
            from transformers import DynamicCache

            self.fed = torch.zeros_like(n_inputs)
            self.past = DynamicCache()
            width = longest
            self.valid = torch.zeros(B, 0, dtype=torch.int64, device=tokens.device)
        width = max(1, width)
        input_number = self.fed[:, None] + torch.arange(width, device=tokens.device)
        # Rows are at different positions, but a pass writes the same new slots of all; a slot without input is masked.
        self.valid = torch.cat([self.valid, (input_number < n_inputs[:, None]).long()], 1)
        position_ids = input_number.clamp(max=N)
        on_cpu = position_ids.device.type == "cpu"
        mask = self.valid if on_cpu else make_additive_mask(self.valid, width, self.net.dtype)
        cache = {"past_key_values": self.past, "use_cache": True}
        out = self.net(feed.gather(1, position_ids), position_ids=position_ids, attention_mask=mask, **cache)
        last_slot = (n_inputs - self.fed - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.logits.shape[-1])
        self.fed = n_inputs
        return self.exclude_mask(out.logits.gather(1, last_slot))

    def exclude_mask(self, logits: Tensor) -> Tensor:
        """Compute distributions [..., V] of the network's logits, 0 for the mask, which the network may not have."""
        return exclude(F.pad(logits, (0, self.vocab - logits.shape[-1])), self.mask)


def make_additive_mask(valid: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Make the mask [B, 1, width, T], to be added to scores, of what the last `width` of the `valid` [B, T] slots read.

    transformers reads the values of a mask of two dimensions, which would wait for a GPU.
    """
    slot = torch.arange(valid.shape[1], device=valid.device)
    is_read = (valid[:, None, None] > 0) & (slot <= slot[-width:, None])
    return torch.zeros(is_read.shape, dtype=dtype, device=valid.device).masked_fill(~is_read, torch.finfo(dtype).min)


@torch.inference_mode()
def compute_log_probabilities(net: "GPT2LMHeadModel", tokens: Tensor, mask: int | None, separator: int) -> Tensor:
    """Compute log q(x_i | x_<i) [B, N], in nats, of complete rows [B, N], with the separator before the first token.
    The token `mask`, if there is one, has probability 0."""
    feed = torch.cat([torch.full_like(tokens[:, :1], separator), tokens[:, :-1]], 1)
    return exclude(net(feed).logits, mask).gather(-1, tokens[..., None])[..., 0].log()
