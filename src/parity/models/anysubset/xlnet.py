"""XLNet as an any-subset model (Yang et al. 2019; Guo & Ermon 2025, sec. 4): transformers' `XLNetLMHeadModel` in one
order.

XLNet has two streams: content (keys and values, which read the token) and query (which reads the position alone), so a
law never sees its own token (appendix D). `permutation_mask` says what each position may read.

`XLNet` calls transformers' forward. `CachedXLNet` computes the same from the same weights, keeps keys and values, and
needs no transformers, whose import takes longer than a small cell's decoding: hence the imports inside functions.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity.base.errors import ParityError
from parity.models.anysubset.protocol import invert_order

if TYPE_CHECKING:
    from transformers import XLNetLMHeadModel

FAMILY = {  # see models.anysubset.protocol
    "files": ("xlnet", "judge"),
    "also": ("tokenizer",),
    "model_types": {"xlnet": ("xlnet",), "judge": ("gpt2",)},
}


def build(config: dict[str, Any]) -> "XLNetLMHeadModel":
    """transformers' XLNet of a saved configuration, its weights not yet read."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    return XLNetLMHeadModel(XLNetConfig(**config))


def xlnet(vocab: int, width: int = 128, layers: int = 3, heads: int = 4) -> "XLNetLMHeadModel":
    """A small XLNet with no dropout and no memory."""
    sizes = {"vocab_size": vocab, "d_model": width, "n_layer": layers, "n_head": heads, "d_inner": 4 * width}
    return build(sizes | {"dropout": 0.0, "use_mems_eval": False, "use_mems_train": False})


def make_permutation_mask(order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
    """1.0 where a position may not read another, [B, N, N] (query, key): Eq. 6, and the prompt sees itself whole."""
    N, rank = order.shape[1], invert_order(order)
    # by rank: ranks below this are read; the last slot is for ranks that a row does not have
    limit = torch.arange(N + 1, device=order.device).maximum(begin[:, None])
    limit = limit.scatter(1, ranks.clamp(max=N), seen)
    return (rank[:, None, :] >= limit.gather(1, rank)[:, :, None]).float()


def exclude(logits: Tensor, mask: int | None) -> Tensor:
    """Probabilities without the mask token, where there is one, renormalised; float32 or wider."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if mask is not None:
        logits[..., mask] = float("-inf")
    return logits.softmax(-1)


class XLNet:
    """transformers' forward, everything computed in every pass. Satisfies `AnySubsetModel`."""

    def __init__(self, net: "XLNetLMHeadModel", mask: int):
        self.net, self.mask, self.vocab = net.eval(), mask, net.config.vocab_size

    @torch.inference_mode()
    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        """transformers gives a position, its content too, one `seen`. Unless one forward can serve all slots, there is
        one for each `seen`."""
        N = tokens.shape[1]
        if ((ranks >= N) | (seen == ranks) | (seen == seen.amax(1, keepdim=True))).all():
            return self._forward(tokens, order, begin, ranks, seen)
        nth = seen - seen.amin(1, keepdim=True)
        each = [
            self._forward(tokens, order, begin, torch.where(nth == i, ranks, N), seen)
            for i in range(int(nth.max()) + 1)
        ]
        return torch.stack(each, 2).take_along_dim(nth[..., None, None], 2)[:, :, 0]

    def _forward(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        N = tokens.shape[1]
        inside = ranks < N
        target = torch.zeros(*ranks.shape, N, device=tokens.device, dtype=self.net.dtype)
        target.scatter_(2, order.gather(1, ranks.clamp(max=N - 1))[..., None], inside[..., None].to(target.dtype))
        blocked = make_permutation_mask(order, begin, ranks, seen).to(target.dtype)
        return exclude(self.net(tokens, perm_mask=blocked, target_mapping=target).logits, self.mask)


class CachedXLNet:
    """The laws of `XLNet` with keys and values cached (appendix F.4): a pass computes what changed since the last pass,
    and its queries.

    weights  the state of an `XLNetLMHeadModel`, by name
    config   its configuration, as saved

    The cache is addressed by position and stores each position's token, so a rejected draft is recognised and computed
    again. The prompt is computed once; generated tokens do not join it and keep their causal attention. A new batch
    (other rows, orders or prompts) starts an empty cache.
    """

    def __init__(self, weights: dict[str, Tensor], config: dict[str, Any], mask: int):
        defaults = {"ff_activation": "gelu", "attn_type": "bi", "bi_data": False, "clamp_len": -1}
        for key, default in defaults.items():
            value = config.get(key, default)
            if value != default and not (key == "clamp_len" and value <= 0):
                raise ParityError(f"XLNet: {key} = {value!r}; allowed: {default!r}, or cache: false")
        self.words = weights["transformer.word_embedding.weight"]
        self.mask_embedding = weights["transformer.mask_emb"][0]
        self.out, self.bias = weights.get("lm_loss.weight", self.words), weights["lm_loss.bias"]
        self.vocab, self.width, self.mask = *self.words.shape, mask
        self.heads, self.epsilon = config.get("n_head", 16), config.get("layer_norm_eps", 1e-12)
        count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("transformer.layer."))
        prefix = [f"transformer.layer.{i}." for i in range(count)]
        self.layers = [{k.removeprefix(p): v for k, v in weights.items() if k.startswith(p)} for p in prefix]
        self.order = self.begin = torch.empty(0, 0)

    def _restart(self, order: Tensor, begin: Tensor) -> None:
        B, N = order.shape
        self.order, self.begin = order, begin
        self.line = torch.full((B, N), -1, device=order.device)  # the token a slot was computed from, by position
        self.rank = invert_order(order)
        empty = torch.zeros(B, self.heads, N + 1, self.width // self.heads, device=order.device, dtype=self.words.dtype)
        # the last slot takes padding
        self.keys, self.values = ([empty.clone() for _ in self.layers] for _ in range(2))
        distance = torch.arange(N - 1, -N, -1, device=order.device)  # query minus key
        frequency = 1 / 10000 ** (torch.arange(0, self.width, 2, device=order.device) / self.width)
        angle = distance[:, None] * frequency
        wave = torch.cat([angle.sin(), angle.cos()], -1).to(self.words.dtype)
        self.distances = [torch.einsum("ph,hnd->pnd", wave, layer["rel_attn.r"]) for layer in self.layers]

    def _knows(self, order: Tensor, begin: Tensor) -> bool:
        """Whether the cache is of this batch. Values are compared on a CPU alone: a GPU would have to be waited for."""
        if self.order is order and self.begin is begin:
            return True
        if order.device.type != "cpu" or self.order.shape != order.shape:
            return False
        return torch.equal(self.order, order) and torch.equal(self.begin, begin)

    def _count_missing(self, missing: Tensor, most: int) -> int:
        """The most ranks that a row misses, of `missing` [B]. A GPU computes `most`, so that nothing waits for it, and
        stops if a row misses more: a decoder may replace no more tokens than it asks for laws."""
        if missing.device.type == "cpu":
            return max(0, int(missing.max()))
        torch._assert_async(
            missing.max() <= most, f"CachedXLNet: more than {most} tokens were replaced since the last pass"
        )
        return most

    @torch.inference_mode()
    def laws(self, tokens: Tensor, order: Tensor, begin: Tensor, ranks: Tensor, seen: Tensor) -> Tensor:
        B, N = tokens.shape
        again = not self._knows(order, begin)
        if again:
            self._restart(order, begin)
        upto = torch.where(ranks < N, seen, 0).amax(1)  # ranks whose content is read
        clean = (self.line == tokens).gather(1, order).long().cumprod(1).sum(1)
        clean = torch.where(clean < begin, 0, clean)  # the prompt sees itself whole: one new token renews all of it
        new = self._count_missing(upto - clean, N if again else ranks.shape[1])
        fresh = clean[:, None] + torch.arange(new, device=tokens.device)  # [B, W] ranks to compute
        real = fresh < upto[:, None]
        place = order.gather(1, fresh.clamp(max=N - 1))
        slot = torch.where(real, place, N)
        # everything behind a changed token was computed from another past, even where the token itself comes back
        line = torch.where(self.rank < clean[:, None], self.line, -1)
        self.line = torch.cat([line, line[:, :1]], 1).scatter_(1, slot, tokens.gather(1, place))[:, :N]

        W, S = fresh.shape[1], ranks.shape[1]
        position = torch.cat([place, order.gather(1, ranks.clamp(max=N - 1))], 1)  # of W contents, then of S queries
        limit = torch.cat([(fresh + 1).maximum(begin[:, None]), seen], 1)
        blocked = self.rank[:, None] >= limit[..., None]  # [B, W + S, N]
        back = position[..., None] - torch.arange(N, device=tokens.device)
        apart = (N - 1 - back)[:, None].expand(-1, self.heads, -1, -1)
        row = torch.arange(B, device=tokens.device)[:, None]
        x = torch.cat([F.embedding(tokens.gather(1, place), self.words), self.mask_embedding.expand(B, S, -1)], 1)
        for w, keys, values, distances in zip(self.layers, self.keys, self.values, self.distances, strict=True):
            # keys and values lie by head, so that no product has to copy them
            keys.transpose(1, 2)[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], w["rel_attn.k"])
            values.transpose(1, 2)[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], w["rel_attn.v"])
            q = torch.einsum("bih,hnd->bind", x, w["rel_attn.q"])
            score = (q + w["rel_attn.r_w_bias"]).transpose(1, 2) @ keys[:, :, :N].transpose(2, 3)
            score = score + torch.einsum("bind,pnd->bnip", q + w["rel_attn.r_r_bias"], distances).gather(-1, apart)
            score = (score / (self.width // self.heads) ** 0.5).masked_fill(blocked[:, None], -1e30)
            read = (score.softmax(-1) @ values[:, :, :N]).transpose(1, 2)
            x = self._norm(torch.einsum("bind,hnd->bih", read, w["rel_attn.o"]) + x, w, "rel_attn.layer_norm")
            inner = F.gelu(F.linear(x, w["ff.layer_1.weight"], w["ff.layer_1.bias"]))
            x = self._norm(F.linear(inner, w["ff.layer_2.weight"], w["ff.layer_2.bias"]) + x, w, "ff.layer_norm")
        return exclude(F.linear(x[:, W:], self.out, self.bias), self.mask)

    def _norm(self, x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
        return F.layer_norm(x, (self.width,), w[f"{name}.weight"], w[f"{name}.bias"], self.epsilon)


plain, cached = XLNet, CachedXLNet
