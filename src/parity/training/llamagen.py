"""Recipe of the embedded LlamaGens: trained on the tokens of Scenes, their text encoder frozen as the published model's is."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from parity.embedded.scenes import reduced
from parity.models.checkpoints import load_weights
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, left_pad, read_config
from parity.models.discrete.text import PREFIX, t5_encoder, token_ids
from parity.models.discrete.vq import VQ, VQConfig
from parity.training.loop import publish, scene_arrays, to_pictures, train

CONFIG = LlamaGenConfig(vocab=1024, dim=192, layers=6, heads=3, grid=16, prefix=PREFIX, caption_dim=128, multiple_of=64)
CONFIGS = {
    "llamagen": CONFIG,
    "draft": replace(CONFIG, dim=96, layers=2, heads=2, multiple_of=32),  # over the same tokens
    "llamagen8": replace(CONFIG, grid=8),  # of pictures of half the size
}
UNCONDITIONAL = 0.1  # share of captions dropped, for guidance


def load_vq(file: Path) -> VQ:
    config = read_config(file)
    vq = VQ(VQConfig(**{**config, "ch_mult": tuple(config["ch_mult"])}))
    vq.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(file).items()})
    return vq.eval()


def scene_tokens(work: Path, vq_file: Path, pixels: np.ndarray, name: str, grid: int) -> Tensor:
    """Tokens int64 [n, grid^2] of pictures, reduced to what so many tokens cover; kept in `work` beside the pictures."""
    file = work / f"tokens-{name}{'' if grid == CONFIG.grid else f'-{grid}'}.npy"
    if not file.exists():
        vq = load_vq(vq_file)
        side = grid * vq.config.stride
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            tokens = torch.cat(
                [vq.encode(to_pictures(reduced(pixels[i : i + 64], side))) for i in range(0, len(pixels), 64)]
            )
        part = file.with_suffix(".part")
        with part.open("wb") as stream:
            np.save(stream, tokens.numpy().astype(np.int16))
        part.replace(file)
    return torch.from_numpy(np.load(file)).long()


def main(
    work: Path,
    vq_file: Path,
    text_file: Path,
    out: Path,
    t5_out: Path | None,
    steps: int,
    batch: int,
    examples: int,
    seed: int,
    processes: int,
    config: LlamaGenConfig = CONFIG,
    peak: float = 2e-3,
) -> list[dict[str, float]]:
    """Train a network of `config`, write `out` and, if given, `t5_out`; return the log: nats per token on training and held-out captions.

    The checkpoint lies beside `out`: recipes that share `work` do not share it.
    """
    captions, pixels = scene_arrays(work, 1_000_000, examples, test=False, processes=processes)
    tokens = scene_tokens(work, vq_file, pixels, f"train-{examples}", config.grid)
    test_captions, test_pixels = scene_arrays(work, 3_000_000, 1000, test=True, processes=processes)
    test_tokens = scene_tokens(work, vq_file, test_pixels, "test", config.grid)[:256]
    ids, valid = token_ids(captions, PREFIX)
    test_ids, test_valid = token_ids(test_captions[:256], PREFIX)
    torch.manual_seed(seed)
    net, t5 = Transformer(config), t5_encoder()
    # Frozen: trained along, at first against an image model that knows nothing, it forgets which colour is the ground's (61 % of captions
    # where it began with all).
    load_weights(t5.requires_grad_(False), text_file)
    for name, p in net.named_parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(
                p, std=0.02 / (2 * config.layers) ** 0.5 if name.endswith(("wo.weight", "w2.weight")) else 0.02
            )
    torch.nn.init.zeros_(net.output.weight)
    step_fn = torch.compile(lambda e, v, d, x: net(e, v, d, x))

    def nats(ids, valid, tokens, dropped, f=net):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                e, v = left_pad(t5(input_ids=ids, attention_mask=valid).last_hidden_state, valid)
            logits = f(e.float(), v, dropped, tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def loss(step):
        rng = np.random.default_rng([seed, step, 3])
        rows = torch.from_numpy(rng.integers(0, len(tokens), batch))
        value = nats(ids[rows], valid[rows], tokens[rows], torch.from_numpy(rng.random(batch) < UNCONDITIONAL), step_fn)
        return value, {}

    @torch.inference_mode()
    def held_out() -> float:
        every = torch.zeros(64, dtype=torch.bool)
        parts = [slice(i, i + 64) for i in range(0, 256, 64)]
        return float(np.mean([nats(test_ids[p], test_valid[p], test_tokens[p], every).item() for p in parts]))

    log = []
    rows = train(
        {"net": net},
        loss,
        steps=steps,
        peak=peak,
        checkpoint=out.with_suffix(".pt"),
        average=0.998,
        hidden=lambda name: name.startswith("net.layers."),
    )
    for row in rows:
        if row["step"] % 500 == 0:
            row["held_out"] = held_out()
        print(row, flush=True)
        log.append(row)
    publish(net, out, asdict(config))
    if t5_out is not None:
        publish(t5, t5_out, t5.config.to_dict())
    return log
