"""XLNet as an any-subset model (Yang et al. 2019; Guo & Ermon 2025, sec. 4): transformers' `XLNetLMHeadModel` in one
order.

XLNet has two streams: content (keys and values, which read the token) and query (which reads the position alone), so a
distribution never sees its own token (appendix D). `make_permutation_mask` says what each position may read.

`XLNet` calls transformers' forward. `CachedXLNet` computes the same from the same weights, keeps keys and values, and
needs no transformers, whose import takes longer than a small cell's decoding: hence the imports inside functions.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from parity_decoders.protocols.anysubset import invert_order
from torch import Tensor

from parity.base.errors import ParityError

if TYPE_CHECKING:
    from transformers import XLNetLMHeadModel

FAMILY = {  # see models.anysubset
    "files": ("xlnet", "judge"),
    "also": ("tokenizer",),
    "model_types": {"xlnet": ("xlnet",), "judge": ("gpt2",)},
}


def build(config: dict[str, Any]) -> "XLNetLMHeadModel":
    """Build transformers' XLNet of the sizes in a saved configuration, with random weights."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    net = XLNetLMHeadModel(XLNetConfig(**config))
    # transformers computes positions in float32 whatever the network's dtype; they pass through this module alone
    net.transformer.dropout.register_forward_hook(lambda module, inputs, output: output.to(net.dtype))
    return net


def xlnet(vocab: int, width: int = 128, layers: int = 3, heads: int = 4) -> "XLNetLMHeadModel":
    """Build a small XLNet with random weights, without dropout and memory."""
    sizes = {"vocab_size": vocab, "d_model": width, "n_layer": layers, "n_head": heads, "d_inner": 4 * width}
    return build(sizes | {"dropout": 0.0, "use_mems_eval": False, "use_mems_train": False})


def make_permutation_mask(order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
    """Make the mask [B, N, N] (query, key), 1.0 where a position may not read another (Eq. 6): the prompt reads all of
    itself, `ranks` [B, S] the ranks below n_seen [B, S], other ranks those before them."""
    N = order.shape[1]
    rank = invert_order(order)
    # `limit` says below which rank each rank reads; its last slot is for ranks that a row does not have
    limit = torch.arange(N + 1, device=order.device).maximum(n_prompt[:, None])
    limit = limit.scatter(1, ranks.clamp(max=N), n_seen)
    return (rank[:, None, :] >= limit.gather(1, rank)[:, :, None]).float()


def exclude(logits: Tensor, mask: int | None) -> Tensor:
    """Compute probabilities of logits [..., V], float32 or wider, 0 for the token `mask`, if any. May change logits.

    Logits that are NaN or infinite give the mask probability 1, so that it is drawn, and `record` refuses it.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if mask is not None:
        logits[..., mask] = float("-inf")
    probs = logits.softmax(-1)
    if mask is None:
        return probs
    is_mask = F.one_hot(torch.tensor(mask, device=logits.device), logits.shape[-1]).to(probs.dtype)
    return torch.where(probs[..., :1].isnan(), is_mask, probs)


class XLNet:
    """transformers' forward, everything computed in every pass. Satisfies `AnySubsetModel`."""

    def __init__(self, net: "XLNetLMHeadModel", mask: int):
        self.net = net.eval()
        self.mask = mask
        self.vocab = net.config.vocab_size

    @torch.inference_mode()
    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V], see `AnySubsetModel`. transformers gives a position, its content too, a
        single `n_seen`, so there is a forward for each of a row's different `n_seen`, unless one can serve all."""
        N = tokens.shape[1]
        if ((ranks >= N) | (n_seen == ranks) | (n_seen == n_seen.amax(1, keepdim=True))).all():
            return self._forward(tokens, order, n_prompt, ranks, n_seen)
        nth = n_seen - n_seen.amin(1, keepdim=True)
        passes = [
            self._forward(tokens, order, n_prompt, torch.where(nth == i, ranks, N), n_seen)
            for i in range(int(nth.max()) + 1)
        ]
        return torch.stack(passes, 2).take_along_dim(nth[..., None, None], 2)[:, :, 0]

    def _forward(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V] in one forward of the network; slots whose rank is N have no meaning."""
        N = tokens.shape[1]
        is_rank = ranks < N
        target = torch.zeros(*ranks.shape, N, device=tokens.device, dtype=self.net.dtype)
        target.scatter_(2, order.gather(1, ranks.clamp(max=N - 1))[..., None], is_rank[..., None].to(target.dtype))
        blocked = make_permutation_mask(order, n_prompt, ranks, n_seen).to(target.dtype)
        return exclude(self.net(tokens, perm_mask=blocked, target_mapping=target).logits, self.mask)


class CachedXLNet:
    """The distributions of `XLNet` with keys and values cached (appendix F.4): a pass computes what changed since the
    last pass, and its queries.

    weights  the state of an `XLNetLMHeadModel`, by name
    config   its configuration, as saved

    The cache is addressed by position and stores each position's token, so a rejected draft is recognised and computed
    again. The prompt is computed once; generated tokens do not join it and keep their causal attention. A new batch
    (other rows, orders or prompts) starts an empty cache.
    """

    def __init__(self, weights: dict[str, Tensor], config: dict[str, Any], mask: int):
        """Sort the weights by layer. mask: the token's id. Raises ParityError if the configuration is not XLNet's."""
        defaults = {"ff_activation": "gelu", "attn_type": "bi", "bi_data": False, "clamp_len": -1}
        for key, default in defaults.items():
            value = config.get(key, default)
            if value != default and not (key == "clamp_len" and value <= 0):
                raise ParityError(f"XLNet: {key} = {value!r}; allowed: {default!r}, or cache: false")
        self.words = weights["transformer.word_embedding.weight"]
        self.mask_embedding = weights["transformer.mask_emb"][0]
        self.out = weights.get("lm_loss.weight", self.words)
        self.bias = weights["lm_loss.bias"]
        self.vocab, self.width, self.mask = *self.words.shape, mask
        self.heads, self.epsilon = config.get("n_head", 16), config.get("layer_norm_eps", 1e-12)
        count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("transformer.layer."))
        prefix = [f"transformer.layer.{i}." for i in range(count)]
        self.layers = [{k.removeprefix(p): v for k, v in weights.items() if k.startswith(p)} for p in prefix]
        self.order = self.begin = torch.empty(0, 0)

    def _restart(self, order: Tensor, n_prompt: Tensor) -> None:
        """Start an empty cache for these rows' orders [B, N] and numbers of prompt tokens [B]."""
        B, N = order.shape
        self.order, self.begin = order, n_prompt
        self.line = torch.full((B, N), -1, device=order.device)  # keys and values are of these tokens, by position
        self.rank = invert_order(order)
        empty = torch.zeros(B, self.heads, N + 1, self.width // self.heads, device=order.device, dtype=self.words.dtype)
        # the cache has one slot more than positions, to which padding is written
        self.keys, self.values = ([empty.clone() for _ in self.layers] for _ in range(2))
        distance = torch.arange(N - 1, -N, -1, device=order.device)  # distance is the query's position minus the key's
        frequency = 1 / 10000 ** (torch.arange(0, self.width, 2, device=order.device) / self.width)
        angle = distance[:, None] * frequency
        wave = torch.cat([angle.sin(), angle.cos()], -1).to(self.words.dtype)
        self.distances = [torch.einsum("ph,hnd->pnd", wave, layer["rel_attn.r"]) for layer in self.layers]

    def _knows(self, order: Tensor, n_prompt: Tensor) -> bool:
        """Return whether the cache is of this batch: of these tensors or, on a CPU (no synchronisation), equal ones."""
        if self.order is order and self.begin is n_prompt:
            return True
        if order.device.type != "cpu" or self.order.shape != order.shape:
            return False
        return torch.equal(self.order, order) and torch.equal(self.begin, n_prompt)

    def _count_missing(self, missing: Tensor, bound: int) -> int:
        """Return the largest of `missing` [B], the number of ranks that each row lacks; on a GPU `bound`, so that it
        need not synchronise, and the program stops if that is exceeded: a decoder may not replace more tokens than it
        asks for distributions."""
        if missing.device.type == "cpu":
            return max(0, int(missing.max()))
        torch._assert_async(
            missing.max() <= bound, f"CachedXLNet: more than {bound} tokens were replaced since the last pass"
        )
        return bound

    @torch.inference_mode()
    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V], see `AnySubsetModel`, and the keys and values of ranks that are new, or
        whose tokens, or those before them, have changed since the last pass."""
        B, N = tokens.shape
        is_new = not self._knows(order, n_prompt)
        if is_new:
            self._restart(order, n_prompt)
        upto = torch.where(ranks < N, n_seen, 0).amax(1)  # the content of ranks below this is read
        n_clean = (self.line == tokens).gather(1, order).long().cumprod(1).sum(1)
        # every token of the prompt reads all of it, so one new token there makes all of it new
        n_clean = torch.where(n_clean < n_prompt, 0, n_clean)
        n_new = self._count_missing(upto - n_clean, N if is_new else ranks.shape[1])
        new_ranks = n_clean[:, None] + torch.arange(n_new, device=tokens.device)  # [B, W] ranks whose content is new
        is_new_rank = new_ranks < upto[:, None]
        content_position = order.gather(1, new_ranks.clamp(max=N - 1))
        slot = torch.where(is_new_rank, content_position, N)
        # ranks after a changed token were computed from another past, so they are forgotten even if their tokens return
        line = torch.where(self.rank < n_clean[:, None], self.line, -1)
        self.line = torch.cat([line, line[:, :1]], 1).scatter_(1, slot, tokens.gather(1, content_position))[:, :N]

        W, S = new_ranks.shape[1], ranks.shape[1]
        query_position = order.gather(1, ranks.clamp(max=N - 1))
        position = torch.cat([content_position, query_position], 1)  # these are W contents, then S queries
        limit = torch.cat([(new_ranks + 1).maximum(n_prompt[:, None]), n_seen], 1)
        blocked = self.rank[:, None] >= limit[..., None]  # [B, W + S, N]
        distance = position[..., None] - torch.arange(N, device=tokens.device)
        distance_index = (N - 1 - distance)[:, None].expand(-1, self.heads, -1, -1)
        row = torch.arange(B, device=tokens.device)[:, None]
        x = torch.cat(
            [F.embedding(tokens.gather(1, content_position), self.words), self.mask_embedding.expand(B, S, -1)], 1
        )
        for w, keys, values, distances in zip(self.layers, self.keys, self.values, self.distances, strict=True):
            # keys and values are stored by head, so that no product has to copy them
            keys.transpose(1, 2)[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], w["rel_attn.k"])
            values.transpose(1, 2)[row, slot] = torch.einsum("bih,hnd->bind", x[:, :W], w["rel_attn.v"])
            q = torch.einsum("bih,hnd->bind", x, w["rel_attn.q"])
            score = (q + w["rel_attn.r_w_bias"]).transpose(1, 2) @ keys[:, :, :N].transpose(2, 3)
            score = score + torch.einsum("bind,pnd->bnip", q + w["rel_attn.r_r_bias"], distances).gather(
                -1, distance_index
            )
            score = (score / (self.width // self.heads) ** 0.5).masked_fill(blocked[:, None], -1e30)
            context = (score.softmax(-1) @ values[:, :, :N]).transpose(1, 2)
            x = self._norm(torch.einsum("bind,hnd->bih", context, w["rel_attn.o"]) + x, w, "rel_attn.layer_norm")
            inner = F.gelu(F.linear(x, w["ff.layer_1.weight"], w["ff.layer_1.bias"]))
            x = self._norm(F.linear(inner, w["ff.layer_2.weight"], w["ff.layer_2.bias"]) + x, w, "ff.layer_norm")
        return exclude(F.linear(x[:, W:], self.out, self.bias), self.mask)

    def _norm(self, x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
        return F.layer_norm(x, (self.width,), w[f"{name}.weight"], w[f"{name}.bias"], self.epsilon)


plain, cached = XLNet, CachedXLNet
