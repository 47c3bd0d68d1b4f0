"""MDLM (Sahoo et al. 2024), a baseline: masked diffusion on a transformer that reads all positions, in GPT-2's tokens.

The distribution of a hidden token is given the known ones, all others being masked, so a pass has those of one set of
known tokens. Rotations, norms and modulations are in the order of the released network, whose parameter names these
are; it is not told the time, as published. The authors compute in bfloat16, this network in the dtype that it is loaded
in.
"""

from typing import Any

import torch
import torch.nn.functional as F
from parity_decoders.protocols.anysubset import invert_order
from torch import Tensor, nn

from parity.base.errors import ParityError
from parity.models.anysubset.xlnet import exclude

FAMILY = {  # see models.anysubset
    "files": ("mdlm", "judge"),
    "also": ("tokenizer",),
    "model_types": {"mdlm": ("mdlm",), "judge": ("gpt2",)},
    "methods": ("sequential", "diffusion"),
    "cache": False,
}


def rotate(x: Tensor) -> Tensor:
    """Rotate queries or keys x [B, heads, N, D] by their positions: the first half of the numbers with the second."""
    half = x.shape[-1] // 2
    frequency = 10000 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.split(half, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, condition: int):
        """Build a transformer block whose shifts, scales and gates a condition gives."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.adaLN_modulation = nn.Linear(condition, 6 * width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Run the block on x [B, N, width] with the condition c [1, 1, C]; every position reads all."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, -1)
        qkv = self.attn_qkv(self.norm1(x) * (1 + scale1) + shift1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(rotate(q), rotate(k), v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.attn_out(read)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Backbone(nn.Module):
    def __init__(self, vocab: int, width: int, condition: int, blocks: int, heads: int):
        super().__init__()
        self.vocab_embed = nn.ParameterDict({"embedding": torch.empty(vocab, width).normal_(std=0.02)})
        layers = nn.Linear(256, condition), nn.SiLU(), nn.Linear(condition, condition)
        self.sigma_map = nn.ModuleDict({"mlp": nn.Sequential(*layers)})
        self.blocks = nn.ModuleList(Block(width, heads, condition) for _ in range(blocks))
        modulation = nn.Linear(condition, 2 * width)
        last = {"norm_final": nn.LayerNorm(width, bias=False), "linear": nn.Linear(width, vocab)}
        self.output_layer = nn.ModuleDict({**last, "adaLN_modulation": modulation})

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute logits [B, N, V] of tokens [B, N], at noise 0, whatever is masked: it is not told the time."""
        x = self.vocab_embed["embedding"][tokens]
        noise = torch.cat([x.new_ones(1, 1, 128), x.new_zeros(1, 1, 128)], -1)  # cosines and sines of 0
        c = F.silu(self.sigma_map["mlp"](noise))
        for block in self.blocks:
            x = block(x, c)
        out = self.output_layer
        shift, scale = out["adaLN_modulation"](c).chunk(2, -1)
        return out["linear"](out["norm_final"](x) * (1 + scale) + shift)


class Network(nn.Module):
    base_model_prefix = "backbone"

    def __init__(self, *sizes: int):
        super().__init__()
        self.backbone = Backbone(*sizes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.backbone(tokens)


def build(config: dict[str, Any]) -> Network:
    """Build the network of a saved configuration, with random weights. Raises ParityError if it is told the time."""
    if config.get("time_conditioning", False):
        raise ParityError("mdlm: time_conditioning = true; allowed: false, as published")
    names = ("vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads")
    if lacks := [name for name in names if not isinstance(config.get(name), int)]:
        raise ParityError(f"mdlm: config.json has no number {lacks[0]}; needed: {', '.join(names)}")
    vocab, width, condition, blocks, heads = (config[name] for name in names)
    if width % (2 * heads):
        raise ParityError(f"mdlm: hidden_dim = {width}; allowed: a multiple of 2 x n_heads {heads}")
    return Network(vocab, width, condition, blocks, heads)


class MDLM:
    """MDLM as an `AnySubsetModel`: a pass for each set of known tokens."""

    def __init__(self, net: Network, mask: int):
        """Wrap the network. mask: the token's id, one past GPT-2's."""
        self.net, self.mask, self.vocab = net.eval(), mask, len(net.backbone.vocab_embed["embedding"])

    @torch.inference_mode()
    def probs(self, tokens: Tensor, order: Tensor, n_prompt: Tensor, ranks: Tensor, n_seen: Tensor) -> Tensor:
        """Compute distributions [B, S, V] of the tokens at ranks [B, S], each given the tokens [B, N] of the first
        n_seen [B, S] ranks: one pass if all of a row's are given the same, else one a rank."""
        rank = invert_order(order)
        position = order.gather(1, ranks.clamp(max=order.shape[1] - 1))
        columns = [slice(None)] if (n_seen == n_seen[:, :1]).all() else [slice(s, s + 1) for s in range(ranks.shape[1])]
        probs = []
        for s in columns:
            known = torch.where(rank < n_seen[:, s][:, :1], tokens, self.mask)
            logits = self.net(known)
            chosen = position[:, s, None].expand(-1, -1, self.vocab)
            probs.append(exclude(logits.gather(1, chosen), self.mask))
        return torch.cat(probs, 1)


def wrap(net: Network, words: Any, cache: bool) -> MDLM:
    """Make the model that decoders see; there is no `cache` of a network that reads all positions."""
    return MDLM(net, words.mask)
