"""The prompts of a batch, embedded, and the network that has read them: what families of image tokens share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from parity_decoders.engine import Network
from parity_decoders.speculators import EagleDrafter, FeatureHeads
from torch import Tensor


class Prompts(NamedTuple):
    """The prompts of a batch, before a network reads them, with the unconditional ones last if the batch is guided."""

    prefix: Tensor  # [R, P, dim] embeddings of the last P positions before the image
    valid: Tensor  # [R, P]: those that are attended, the last one always
    padding: Tensor  # [R] how many slots stand before a row's position 0
    embeddings: Tensor  # [V, dim] of the image's tokens


class Conditioned(NamedTuple):
    """The networks of a batch, which have read its prompts."""

    target: Network
    speculators: dict[str, Any]  # "drafter", "draft" and "heads", those that are loaded


class Canvas(NamedTuple):
    """What a family's images are, whatever the prompts."""

    forced: Tensor  # [L] the token that the grammar forces at a position, or -1
    width: int  # positions in a row of the image
    codebooks: tuple[Tensor, Tensor]  # [V, D] vectors of the image tokenizer, unit length and as stored


def make_prefix_mask(valid: Tensor, length: int) -> Tensor:
    """Make the causal mask bool [B, 1, length, length], True where a query may read a key. Only itself may read a
    position of the prefix that is padding by valid [B, prefix]."""
    i = torch.arange(length, device=valid.device)
    on = F.pad(valid.bool(), (0, length - valid.shape[1]), value=True)
    return ((i[None, :] <= i[:, None]) & on[:, None] | (i[None, :] == i[:, None]))[:, None]


def compute_features(net: Any, prompts: Prompts, tokens: Tensor) -> Tensor:
    """Compute hidden states [R, n + 1, dim] of whole sequences, which gradients pass through: state s predicts token s
    of tokens [R, n]. No cache is needed."""
    x = torch.cat([prompts.prefix, F.embedding(tokens, prompts.embeddings)], 1)
    position_ids = (torch.arange(x.shape[1], device=x.device) - prompts.padding[:, None]).clamp(min=0)
    mask = make_prefix_mask(prompts.valid, x.shape[1])
    features: Tensor = net(inputs_embeds=x, attention_mask=mask, position_ids=position_ids, logits_to_keep=1).hidden
    return features[:, prompts.prefix.shape[1] - 1 :]


def make_network(net: Any, prompts: Prompts, canvas: Canvas, run: Any = None) -> Network:
    """Make the network of embedded prompts. run: the same compiled."""
    prefix, valid, padding, embeddings = prompts
    static = prefix.device.type != "cpu"
    return Network(
        net, prefix, valid.bool(), canvas.forced, canvas.width, embeddings, padding=padding, static=static, run=run,
        codebooks=canvas.codebooks,
    )  # fmt: skip


def condition_networks(
    nets: Mapping[str, Any],
    embed: Callable[[Any], Prompts],
    canvas: Canvas,
    run: Any = None,
    ids: Tensor | None = None,
) -> Conditioned:
    """Make the networks of a batch. nets: "net" and speculators, by name; embed: embeds its prompts for a network; run:
    the target, compiled; ids [R, P]: the prompts, if they are words."""
    target = make_network(nets["net"], embed(nets["net"]), canvas, run)
    make: dict[str, Callable[[Any], Any]] = {
        "drafter": partial(EagleDrafter, target=target, ids=ids),
        "draft": lambda net: make_network(net, embed(net), canvas),
        "heads": partial(FeatureHeads, target=target),
    }
    return Conditioned(target, {name: make[name](nets[name]) for name in make if name in nets})
