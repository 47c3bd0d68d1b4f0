"""Networks of published sizes with random weights: the time of a pass depends on shapes, not on what the weights are.

Sizes are those of the released code's constructors. Left out: Emu3, whose attention has fewer keys than queries, which
`models.discrete.transformer` has not.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parity.models.compiling import compiled
from parity.models.continuous import harmon, mar, xar
from parity.models.continuous.diffusion import HeadSampling
from parity.models.discrete.cached import LlamaGen, a_pass
from parity.models.discrete.eagle import EagleDrafter, FeatureDrafter
from parity.models.discrete.sampling import Sampled, TokenSampling
from parity.models.discrete.transformer import LlamaGenConfig, Transformer

MAR_H: dict[str, Any] = {"width": 1280, "encoder": 20, "decoder": 20, "heads": 16, "head_width": 1536, "head_depth": 12}
QWEN: dict[str, Any] = {"hidden": 1536, "intermediate": 8960, "layers": 28, "attention_heads": 12, "vocab": 151936}
# name to sizes: LlamaGenConfig, a continuous family's Config, XLNet's as transformers saves them
DISCRETE = {
    "Lumina-mGPT 7B at 768": LlamaGenConfig(65536, 4096, 32, 32, grid=48, prefix=52, caption_dim=4096),
    "Anole 7B at 512": LlamaGenConfig(65536, 4096, 32, 32, grid=32, prefix=52, caption_dim=4096),
    "LlamaGen-3B": LlamaGenConfig(dim=3200, layers=24, heads=32, grid=24),
    "LlamaGen-XL": LlamaGenConfig(),
}
CONTINUOUS: dict[str, Any] = {
    "MAR-B": mar.MARConfig(),
    "MAR-L": mar.MARConfig(width=1024, encoder=16, decoder=16, heads=16, head_width=1280, head_depth=8),
    "MAR-H": mar.MARConfig(**MAR_H),
    "xAR-H": xar.XARConfig(width=1280, encoder=20, decoder=20, heads=16),
    "Harmon-1.5B": harmon.HarmonConfig(**MAR_H, **QWEN),
}
TEXT = {"XLNet-base": {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "vocab_size": 32000}}
# what a CPU runs, so that the command is tested
SMALL_DISCRETE = {"small": LlamaGenConfig(256, 64, 2, 2, grid=4, prefix=4, caption_dim=8, multiple_of=16)}
SMALL_CONTINUOUS = {
    "small MAR": mar.MARConfig(10, 4, 4, 64, 2, 2, 4, 4, 64, 2),
    "small xAR": xar.XARConfig(10, 4, 2, 4, 64, 2, 2, 4),
}
SMALL_TEXT = {"small XLNet": {"d_model": 64, "n_layer": 2, "n_head": 2, "d_inner": 128, "vocab_size": 256}}


def random(build: Any, device: str, dtype: torch.dtype) -> Any:
    """A network in its place and dtype, its weights random; buffers are those it computes."""
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            net = build()
        finally:
            torch.set_default_dtype(before)
    for p in net.parameters():
        nn.init.normal_(p, std=0.02)
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    return net.eval()


@dataclass
class Discrete:
    """A random transformer of a size with its drafter and draft model, and batches of it to decode."""

    config: LlamaGenConfig
    device: str
    dtype: torch.dtype
    fast: bool = False

    def __post_init__(self) -> None:
        self.net = random(lambda: Transformer(self.config), self.device, self.dtype)
        self.drafter = random(lambda: FeatureDrafter(self.config), self.device, self.dtype)
        self.codes = torch.randn(self.config.vocab, 8, device=self.device)

    @torch.inference_mode()
    def model(self, batch: int, needs: str = "") -> Sampled:
        """Of `batch` prompts, guided; the draft model is the network itself, whose drafts cost what its passes do."""
        c = self.config
        condition = torch.randn(batch, c.prefix, c.caption_dim, device=self.device, dtype=self.dtype)
        valid = torch.ones(batch, c.prefix, dtype=torch.bool, device=self.device)
        read = compiled(a_pass, torch.device(self.device).type) if self.fast else None
        model = LlamaGen(self.net, condition, valid, True, read=read)
        model.codebook = model.raw_codebook = self.codes
        if needs == "drafter":
            model.drafter = EagleDrafter(self.drafter, model)
        if needs == "draft":
            model.draft = LlamaGen(self.net, condition, valid, True, returns=True, read=read)
        return Sampled(model, TokenSampling(guidance=3.0, top_k=min(1000, c.vocab)))

    def bytes(self, batch: int, context: int) -> int:
        """Read in a pass: the weights once, keys and values of both guidance rows of every prompt."""
        weights = sum(p.numel() for p in (*self.net.layers.parameters(), *self.net.output.parameters()))
        return (weights + 2 * batch * context * 2 * self.config.dim * self.config.layers) * self.dtype.itemsize


def continuous(config: Any, device: str, dtype: torch.dtype, batch: int, steps: int) -> Any:
    """A random MAR, xAR or Harmon of a size as a model of `batch` images, guided."""
    family: Any = next(f for f in (mar, xar, harmon) if isinstance(config, f.Config))
    net = random(lambda: family.Network(config), device, dtype)
    prompts = torch.zeros(batch, dtype=torch.int64, device=device)
    labels: Tensor = prompts[:, None].expand(-1, 8) if family is harmon else prompts
    return family.Model(net, labels, HeadSampling(steps, guidance=3.0))
