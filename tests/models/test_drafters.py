"""Released drafters of LlamaGen, from their own layout."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from parity.models import add, fetch
from parity.models.discrete import llamagen
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer, released
from parity.models.discrete.vq import VQ, VQConfig
from parity.stand_ins.discrete import eagle_drafter
from tests.models import t5

C = LlamaGenConfig(vocab=64, dim=32, layers=2, heads=4, grid=4, prefix=6, caption_dim=t5.WIDTH, multiple_of=32)


def drafter_of(folder, c=C):
    return folder / eagle_drafter(folder, c.dim, c.heads, c.vocab, c.grid, c.hidden)["drafter"]


# of rows 1 and 3: the last law that was fed, that of the second guess, and that of a guess behind it; from a second
# writing of the released code over whole sequences, to 1e-9
RELEASED = [
    [[0.4939048124, -0.4422421882, -0.6597916501], [0.4411189610, -0.4978789088, -0.1873766609],
     [0.9053122810, 0.2219078561, -0.8482583366]],
    [[0.5593053427, -0.5152224425, -0.7792508402], [0.2378231167, -0.4426186116, -0.1101264517],
     [1.1070448862, -0.0877337986, -0.9394357974]],
]  # fmt: skip


@pytest.fixture
def both(tmp_path):
    """A target with a released drafter, and tokens of two pictures; in float64, guided, one caption left-padded."""
    torch.manual_seed(0)
    folder = drafter_of(tmp_path)
    state, said = released(folder, json.loads((folder / "config.json").read_text()), C)
    net, small = Transformer(C).double().eval(), llamagen.CaptionedDrafter(LlamaGenConfig(**said)).double().eval()
    small.load_state_dict(state)
    caption, valid = torch.randn(2, 6, C.caption_dim).double(), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    tokens = torch.randint(C.vocab, (2, 16))
    target = LlamaGen(net, caption, valid, guided=True)
    target.drafter = EagleDrafter(small, target)
    return target, tokens.repeat(2, 1)


def test_a_released_drafter_computes_what_its_code_does(both):
    """Fed in pieces, with the target's features; and with a tree of guesses."""
    target, tokens = both
    at = lambda first, last: torch.arange(first, last).expand(4, -1)  # noqa: E731
    zero = torch.zeros(4, 1, dtype=torch.int64)
    with torch.inference_mode():
        target.logits(torch.cat([zero, tokens[:, :9]], 1), at(-1, 9))
        fed = [(tokens[:, a:b], at(a, b), at(a, b) - 1) for a, b in ((0, 1), (1, 5), (5, 9))]
        got = torch.cat([target.drafter.logits(*piece) for piece in fed], 1)
        first = got[:, -1].argsort(-1, descending=True)[:, :2]  # two guesses of token 9, and one behind the second
        nodes = target.drafter.tree(first, at(9, 10).expand(-1, 2), torch.full((4, 2), -1))
        third = nodes[:, 1].argmax(-1)[:, None]
        below = target.drafter.tree(third, at(10, 11), torch.ones(4, 1, dtype=torch.int64))
    found = torch.stack([torch.stack([x[row, -1, :3] for x in (got, nodes, below)]) for row in (1, 3)])
    assert (found - torch.tensor(RELEASED, dtype=torch.float64)).abs().max() < 1e-8


def lay(folder: Path, c: LlamaGenConfig, drafted: bool = True) -> Path:
    """A released LlamaGen of these sizes, with a text encoder and a drafter."""
    torch.manual_seed(0)
    folder.mkdir()
    torch.save({"model": Transformer(c).state_dict()}, folder / f"t2i_{16 * c.grid}.pt")
    vq = VQ(VQConfig(codebook=c.vocab, ch=32, z_channels=32))
    torch.save({"model": vq.state_dict()}, folder / "vq_ds16.pt")
    t5.write_t5(folder)
    if drafted:
        drafter_of(folder, c)
    return folder


def test_a_drafter_of_another_target_is_one_line(tmp_path):
    folder = lay(tmp_path / "m", c := LlamaGenConfig(**asdict(C) | {"dim": 128, "heads": 2, "multiple_of": 256}))
    said = add.find(str(folder), c.grid, None).entry
    config = Path(said["files"]["drafter"]) / "config.json"
    right = json.loads(config.read_text())
    raw = {"models": {"m": said}, "image": {"methods": {"ar": [{}], "eagle": [{}]}}}
    config.write_text(json.dumps(right | {"block_size": 1024}))
    with pytest.raises(ConfigError, match="was trained for another target: its grid is 32; allowed: 4"):
        checks.load(json.loads(json.dumps(raw)))
    config.write_text(json.dumps(right | {"num_attention_heads": 8}))
    with pytest.raises(ParityError, match="a drafter of another target: heads 8; allowed: 2, as the target's"):
        fetch.manifest("discrete", "m", said, tmp_path / "out")
