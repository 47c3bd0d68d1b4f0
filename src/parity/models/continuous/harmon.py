"""Harmon: MAR with a language model between its encoder and its decoder, conditioned on text.

Source: Wu et al. 2025 (Harmon); parameter names are those of the published `harmon_*.pth` files and of their Hugging
Face layout, of which `vae.*` is a file of its own here, and `llm.lm_head`, needed to understand images only, is not
read. The language model is transformers' Qwen2.

The encoder's buffer holds no class. The language model reads the prompt, then the encoder's output: known tokens in
raster order, and the buffer last, which alone sees everything because the model is causal. Its output is added to the
encoder's; MAR's decoder and head follow.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model

from parity.models.continuous import mar
from parity.models.continuous.kl import select_prefixed
from parity.models.continuous.mar import MAR, DiffLoss, MARConfig, MARNet
from parity.models.discrete.vq import count_blocks

FAMILY = {  # see models.continuous
    "condition": "caption",
    "causal": False,
    "single_path": True,
    "samplers": ("ddpm", "ddim"),
    "schedules": ("constant",),
    "released": {"grid": 32},
    "sampled": {
        768: {"steps": 100, "guidance": 3.0, "guidance_schedule": "constant", "last": "mean"},
        1280: {"steps": 100, "guidance": 3.0, "guidance_schedule": "constant", "last": "mean"},
    },
    "tensors": ("proj_in.0.weight", "mar.diffloss.net.input_proj.weight", "llm.model.embed_tokens.weight"),
    "reads": ("steps", "sampler", "eta", "temperature", "guidance", "guidance_schedule", "clip", "last"),
}

PROMPT = "<|im_start|>user\nGenerate an image: {}<|im_end|>\n<|im_start|>assistant\n"  # a caption is read in this text
NOTHING = "<|im_start|>user\nGenerate an image.<|im_end|>\n<|im_start|>assistant\n"  # guidance compares with this text
QWEN_HEADS = {1536: 12}  # Qwen2.5-1.5B, of width 1536, has 12 heads; the other models' heads are 64 wide


@dataclass(frozen=True)
class HarmonConfig(MARConfig):
    """MAR's (here MAR-B), and Qwen2's (here 2.5-0.5B)."""

    vocab: int = 151_936
    hidden: int = 896
    intermediate: int = 4864
    layers: int = 24
    attention_heads: int = 14
    key_value_heads: int = 2
    theta: float = 1e6  # the frequencies of the language model's rotary embedding are powers of this
    without: tuple[int, ...] = ()  # guidance compares with a prompt of these ids, which has no caption


class LanguageModel(nn.Module):
    """Only a name: the published one lies under `llm.model`."""

    def __init__(self, config: Qwen2Config):
        super().__init__()
        self.model = Qwen2Model(config)


def make_projection(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, out))


class HarmonNet(nn.Module):
    def __init__(self, c: HarmonConfig):
        super().__init__()
        self.config = c
        self.mar = MARNet(c)
        language = Qwen2Config(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.intermediate,
            num_hidden_layers=c.layers,
            num_attention_heads=c.attention_heads,
            num_key_value_heads=c.key_value_heads,
            rope_parameters={"rope_type": "default", "rope_theta": c.theta},
            use_cache=False,
        )
        self.llm = LanguageModel(language)
        self.proj_in = make_projection(c.width, c.hidden, c.hidden)
        self.proj_out = make_projection(c.hidden, c.hidden, c.width)

    @property
    def diffloss(self) -> DiffLoss:
        return self.mar.diffloss

    def prompts(self, prompts: Tensor) -> Tensor:
        """Replace rows of padding alone by the prompt without a caption; on a CPU, drop columns of padding alone."""
        without = prompts.new_tensor(list(self.config.without))
        prompts = F.pad(prompts, (0, max(0, len(without) - prompts.shape[1])), value=-1)
        without = F.pad(without, (0, prompts.shape[1] - len(without)), value=-1)
        prompts = torch.where((prompts < 0).all(1, keepdim=True), without, prompts)
        return prompts[:, (prompts >= 0).any(0)] if prompts.device.type == "cpu" else prompts

    def forward(self, tokens: Tensor, is_known: Tensor, prompts: Tensor) -> Tensor:
        """Compute z [N, L, width] from tokens [N, L, D], is_known [N, L] bool (others are not read), prompts [N, P]
        token ids.

        An id below 0 is padding, after a prompt or before it; a row of padding alone is a row without a prompt.
        """
        c, n = self.config, len(tokens)
        prompts = self.prompts(prompts)
        x, positions, is_token = self.mar.encode(tokens, is_known, self.mar.fake_latent.expand(n, -1))
        image = self.proj_in(x.roll(-c.buffer, 1))  # the language model reads the buffer last
        text = self.llm.model.embed_tokens(prompts.clamp(min=0))
        present = torch.cat([prompts >= 0, is_token, is_token.new_ones(n, c.buffer)], 1)
        inputs = torch.cat([text, image], 1)
        position_ids = (present.cumsum(1) - 1).clamp(min=0)
        hidden = self.llm.model(inputs_embeds=inputs, attention_mask=present.long(), position_ids=position_ids)
        added = hidden.last_hidden_state[:, prompts.shape[1] :].roll(c.buffer, 1)
        return self.mar.decode(x + self.proj_out(added), positions, is_token)


def rename_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the entries of a released file that this network reads: not the autoencoder's, nor the output layer's."""
    return {k: v for k, v in state.items() if not k.startswith(("vae.", "llm.lm_head."))}


def read_config(state: dict[str, Tensor]) -> HarmonConfig:
    """Read the sizes of a released network from the shapes of its tensors. Raises KeyError for a missing entry."""
    vocab, hidden = state["llm.model.embed_tokens.weight"].shape
    heads = QWEN_HEADS.get(hidden, hidden // 64)
    first = "llm.model.layers.0."
    return HarmonConfig(
        **asdict(mar.read_config(select_prefixed(state, "mar."))),
        vocab=vocab,
        hidden=hidden,
        intermediate=len(state[f"{first}mlp.gate_proj.weight"]),
        layers=count_blocks(state, "llm.model.layers."),
        attention_heads=heads,
        key_value_heads=len(state[f"{first}self_attn.k_proj.weight"]) * heads // hidden,
    )


def resize(state: dict[str, Tensor], config: HarmonConfig, grid: int) -> dict[str, Tensor]:
    """Resize weights to images of `grid` tokens a side: the three tables of positions are interpolated as in the
    released code (bilinear, corners not aligned), in float64. config: the sizes before."""
    state = dict(state)
    for name in ("encoder", "decoder", "diffusion"):
        key = f"mar.{name}_pos_embed_learned"
        buffer, table = state[key].split([state[key].shape[1] - config.tokens, config.tokens], 1)
        table = table.double().unflatten(1, (config.grid, config.grid)).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(grid, grid), mode="bilinear").flatten(2).transpose(1, 2)
        state[key] = torch.cat([buffer.double(), table], 1)
    return state


Config = HarmonConfig
Network = HarmonNet
Model = MAR  # Harmon is sampled like MAR, with prompts as labels
