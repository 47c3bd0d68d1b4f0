"""XLNet as an any-subset model (Yang et al. 2019; Guo & Ermon 2025, sec. 4): transformers' `XLNetLMHeadModel`, asked in one order.

XLNet has two streams: content (keys and values, which read the token) and query (which reads the position alone), so a law never sees
its own token (appendix D). `permutation_mask` says what each position may read.
"""

import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel


def xlnet(vocab: int, width: int = 128, layers: int = 3, heads: int = 4) -> XLNetLMHeadModel:
    """A small XLNet with no dropout and no memory."""
    config = XLNetConfig(
        vocab_size=vocab, d_model=width, n_layer=layers, n_head=heads, d_inner=4 * width, dropout=0.0, use_mems_eval=False,
        use_mems_train=False,
    )  # fmt: skip
    return XLNetLMHeadModel(config)


def permutation_mask(order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
    """1.0 where a position may not read another, [B, N, N] (query, key): Eq. 6, but a prompt that sees itself whole."""
    B, N = order.shape
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(N, device=order.device).expand(B, N))  # of each position
    limit = torch.arange(N + 1, device=order.device).maximum(begin[:, None])  # ranks below this are read; one slot more for no meaning
    limit = limit.scatter(1, ranks.clamp(max=N), seen)
    return (rank[:, None, :] >= limit.gather(1, rank)[:, :, None]).float()


def exclude(logits: Tensor, mask: int) -> Tensor:
    """Probabilities without the mask token, renormalised; float32 or wider."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits[..., mask] = float("-inf")
    return logits.softmax(-1)


class XLNet:
    """transformers' forward, everything computed in every pass. Satisfies `infilling.AnySubsetModel`."""

    def __init__(self, net: XLNetLMHeadModel, mask: int):
        self.net, self.mask, self.vocab = net.eval(), mask, net.config.vocab_size

    @torch.inference_mode()
    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        N = tokens.shape[1]
        inside = ranks < N
        target = torch.zeros(*ranks.shape, N, device=tokens.device, dtype=self.net.dtype)
        target.scatter_(2, order.gather(1, ranks.clamp(max=N - 1))[..., None], inside[..., None].to(target.dtype))
        blocked = permutation_mask(order, begin, ranks, seen).to(target.dtype)
        return exclude(self.net(tokens, perm_mask=blocked, target_mapping=target).logits, self.mask)
