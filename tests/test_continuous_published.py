"""The published continuous architectures: parameter counts and names, from the files' own lists."""

import pytest
import torch

from parity.models.kl import KL, KLConfig, published_names
from parity.models.mar import MARConfig, MARNet

SIZES = {  # width, blocks each way, heads, head width and depth, million parameters
    "mar_base": (768, 12, 12, 1024, 6, 208),
    "mar_large": (1024, 16, 16, 1280, 8, 478),
    "mar_huge": (1280, 20, 16, 1536, 12, 942),
}


@pytest.mark.parametrize("name", SIZES)
def test_mar_has_the_published_sizes(name):
    width, blocks, heads, head_width, depth, million = SIZES[name]
    config = MARConfig(width=width, encoder=blocks, decoder=blocks, heads=heads, head_width=head_width, head_depth=depth)
    with torch.device("meta"):
        net = MARNet(config)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6) == million
    shapes = {k: tuple(v.shape) for k, v in net.state_dict().items()}
    assert shapes["encoder_pos_embed_learned"] == (1, 320, width) and shapes["diffusion_pos_embed_learned"] == (1, 256, width)
    assert shapes["class_emb.weight"] == (1000, width) and shapes["fake_latent"] == (1, width)
    assert shapes["diffloss.net.final_layer.linear.weight"] == (32, head_width)
    for key in (
        "z_proj_ln.bias",
        f"decoder_blocks.{blocks - 1}.mlp.fc2.weight",
        f"diffloss.net.res_blocks.{depth - 1}.adaLN_modulation.1.weight",
    ):
        assert key in shapes


def kl16_names() -> list[str]:
    """The keys of kl16.ckpt, as latent diffusion names them."""

    def leaf(*names):
        return [f"{n}.{kind}" for n in names for kind in ("weight", "bias")]

    def block(prefix, shortcut):
        parts = ["norm1", "conv1", "norm2", "conv2", *(["nin_shortcut"] if shortcut else [])]
        return leaf(*(f"{prefix}.{p}" for p in parts))

    def attention(prefix):
        return leaf(*(f"{prefix}.{p}" for p in ("norm", "q", "k", "v", "proj_out")))

    mult, found = (1, 1, 2, 2, 4), leaf("quant_conv", "post_quant_conv")
    for side in ("encoder", "decoder"):
        found += leaf(f"{side}.conv_in", f"{side}.norm_out", f"{side}.conv_out")
        found += block(f"{side}.mid.block_1", False) + attention(f"{side}.mid.attn_1") + block(f"{side}.mid.block_2", False)
    for i in range(5):
        before = mult[i - 1] if i else 1
        for j in range(2):
            found += block(f"encoder.down.{i}.block.{j}", j == 0 and before != mult[i])
            found += attention(f"encoder.down.{i}.attn.{j}") if i == 4 else []
        found += leaf(f"encoder.down.{i}.downsample.conv") if i < 4 else []
        above = mult[min(i + 1, 4)]
        for j in range(3):
            found += block(f"decoder.up.{i}.block.{j}", j == 0 and above != mult[i])
        found += leaf(f"decoder.up.{i}.upsample.conv") if i else []
    return found


def test_kl16_has_the_published_names():
    with torch.device("meta"):
        net = KL(KLConfig())
    renamed = published_names({**dict.fromkeys(kl16_names(), torch.empty(0)), "loss.logvar": torch.empty(0)})
    assert set(renamed) == set(net.state_dict())
    assert round(4 * sum(p.numel() for p in net.parameters()) / 2**20) == 254  # MiB of the published file
