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


class CachedXLNet:
    """The same laws with keys and values kept (appendix F.4): a pass computes what has changed since the last, and its queries.

    The cache is addressed by position and remembers which token stands there; a rejected draft is found out by that, and computed anew.
    The prompt is computed once, generated tokens do not join it and keep their causal attention. Relative positions are computed in every
    pass. A new batch (other rows, orders or prompts) starts an empty cache.
    """

    def __init__(self, net: XLNetLMHeadModel, mask: int):
        self.net, self.mask, self.vocab = net.eval(), mask, net.config.vocab_size
        self.order = self.begin = torch.empty(0, 0)

    def _restart(self, order: Tensor, begin: Tensor) -> None:
        B, N = order.shape
        body, c = self.net.transformer, self.net.config
        self.order, self.begin = order, begin
        self.line = torch.full((B, N), -1, device=order.device)  # the token a slot was computed from, by position
        self.rank = torch.empty_like(order).scatter_(1, order, torch.arange(N, device=order.device).expand(B, N))
        empty = torch.zeros(B, N + 1, c.n_head, c.d_head, device=order.device, dtype=self.net.dtype)  # the last slot takes what is no token
        self.keys, self.values = [empty.clone() for _ in body.layer], [empty.clone() for _ in body.layer]
        distance = torch.arange(N - 1, -N, -1, device=order.device)  # query minus key
        frequency = 1 / 10000 ** (torch.arange(0, c.d_model, 2, device=order.device) / c.d_model)
        angle = distance[:, None] * frequency
        wave = torch.cat([angle.sin(), angle.cos()], -1).to(self.net.dtype)
        self.distances = [torch.einsum("ph,hnd->pnd", wave, layer.rel_attn.r) for layer in body.layer]

    @torch.inference_mode()
    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        B, N = tokens.shape
        if self.order.shape != order.shape or not (torch.equal(self.order, order) and torch.equal(self.begin, begin)):
            self._restart(order, begin)
        body = self.net.transformer
        upto = torch.where(ranks < N, seen, 0).amax(1)  # ranks whose content is read
        clean = (self.line == tokens).gather(1, order).long().cumprod(1).sum(1)
        clean = torch.where(clean < begin, 0, clean)  # the prompt sees itself whole: one new token renews all of it
        fresh = clean[:, None] + torch.arange(max(0, int((upto - clean).max())), device=tokens.device)  # [B, W] ranks to compute
        real = fresh < upto[:, None]
        place = order.gather(1, fresh.clamp(max=N - 1))
        slot = torch.where(real, place, N)
        self.line = torch.cat([self.line, self.line[:, :1]], 1).scatter_(1, slot, tokens.gather(1, place))[:, :N]

        W, S = fresh.shape[1], ranks.shape[1]
        position = torch.cat([place, order.gather(1, ranks.clamp(max=N - 1))], 1)  # of the W contents, then of the S queries
        limit = torch.cat([(fresh + 1).maximum(begin[:, None]), seen], 1)
        blocked = self.rank[:, None] >= limit[..., None]  # [B, W + S, N]
        back = position[..., None] - torch.arange(N, device=tokens.device)
        apart = (N - 1 - back)[:, None].expand(-1, self.net.config.n_head, -1, -1)
        row = torch.arange(B, device=tokens.device)[:, None]
        x = torch.cat([body.word_embedding(tokens.gather(1, place)), body.mask_emb[0].expand(B, S, -1)], 1)
        for layer, keys, values, distances in zip(body.layer, self.keys, self.values, self.distances, strict=True):
            a = layer.rel_attn
            keys[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], a.k)
            values[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], a.v)
            q = torch.einsum("bih,hnd->bind", x, a.q)
            score = torch.einsum("bind,bjnd->bnij", q + a.r_w_bias, keys[:, :N])
            score = score + torch.einsum("bind,pnd->bnip", q + a.r_r_bias, distances).gather(-1, apart)
            score = (score * a.scale).masked_fill(blocked[:, None], -1e30)
            read = torch.einsum("bnij,bjnd->bind", score.softmax(-1), values[:, :N])
            x = layer.ff(a.layer_norm(torch.einsum("bind,hnd->bih", read, a.o) + x))
        return exclude(self.net.lm_loss(x[:, W:]), self.mask)
