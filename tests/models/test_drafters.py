"""Released drafters of LlamaGen, from their own layout, beside a second writing of what their code computes."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from parity.base.errors import ConfigError, ParityError
from parity.experiment import checks
from parity.models import add, fetch
from parity.models.discrete import llamagen
from parity.models.discrete.cached import EagleDrafter
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer, prefix_mask, released
from parity.models.discrete.vq import VQ, VQConfig
from parity.stand_ins.discrete import eagle_drafter
from tests.models import t5

C = LlamaGenConfig(vocab=64, dim=32, layers=2, heads=4, grid=4, prefix=6, caption_dim=t5.WIDTH, multiple_of=32)


def drafter_of(folder, c=C):
    return folder / eagle_drafter(folder, c.dim, c.heads, c.vocab, c.grid, c.hidden)["drafter"]


def rotated(x, places):
    """x [T, H, D]: pairs of neighbours turned, half of them by the row and half by the column, by angles in float32;
    nothing at a place of the caption, where cosine and sine are 0."""
    out, half = torch.zeros_like(x), x.shape[-1] // 2
    rates = 10000.0 ** -(torch.arange(0, half, 2).float() / half)
    for t, place in enumerate(places[: len(x)]):
        if place >= 0:
            angles = torch.cat([rates * (place // C.grid), rates * (place % C.grid)])
            for j, (cosine, sine) in enumerate(zip(angles.cos().tolist(), angles.sin().tolist(), strict=True)):
                a, b = x[t, :, 2 * j], x[t, :, 2 * j + 1]
                out[t, :, 2 * j], out[t, :, 2 * j + 1] = a * cosine - b * sine, b * cosine + a * sine
    return out


def plain(state, ids, features, places):
    """The released drafter over one whole sequence, by its own names: features [T, dim] that it predicts."""
    w = {k.removeprefix("layers.0."): v.double() for k, v in state.items()}
    x = torch.cat([w["embed_tokens.weight"][ids], features], -1) @ w["fc.weight"].T + w["fc.bias"]
    q, k, v = ((x @ w[f"self_attn.{part}_proj.weight"].T).unflatten(-1, (C.heads, -1)) for part in "qkv")
    q, k = rotated(q, places), rotated(k, places)
    scores = torch.einsum("shd,thd->hst", q, k) / (C.dim // C.heads) ** 0.5
    later = torch.arange(len(ids))[None] > torch.arange(len(ids))[:, None]
    out = torch.einsum("hst,thd->shd", scores.masked_fill(later, -torch.inf).softmax(-1), v).flatten(1)
    x = x + out @ w["self_attn.o_proj.weight"].T
    h = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w["post_attention_layernorm.weight"]
    return x + (F.silu(h @ w["mlp.gate_proj.weight"].T) * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


@pytest.fixture
def both(tmp_path):
    """A target with a released drafter, tokens of two pictures, and the target's hidden states [4, P + L, dim] from one
    pass over whole sequences; all in float64, guided, one caption left-padded."""
    torch.manual_seed(0)
    folder = drafter_of(tmp_path)
    state, said = released(folder, json.loads((folder / "config.json").read_text()), C)
    net, small = Transformer(C).double().eval(), llamagen.CaptionedDrafter(LlamaGenConfig(**said)).double().eval()
    small.load_state_dict(state)
    caption, valid = torch.randn(2, 6, C.caption_dim).double(), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    tokens = torch.randint(C.vocab, (2, 16))
    target = LlamaGen(net, caption, valid, guided=True)
    target.drafter = EagleDrafter(small, target)
    four, dropped = [torch.cat([x, x]) for x in (caption, valid, tokens)], torch.tensor([0, 0, 1, 1]).bool()
    with torch.no_grad():
        x = torch.cat([net.cls_embedding(four[0], dropped), net.tok_embeddings(four[2])], 1)
        for layer in net.layers:
            x = layer(x, net.table[None], prefix_mask(four[1], x.shape[1]))
        hidden = net.norm(x)
    return target, torch.load(folder / "pytorch_model.bin"), four[2], hidden


def test_a_released_drafter_computes_what_its_code_does(both):
    """Fed in pieces, with the target's features: the logits of every position, to 1e-9; and with a tree of guesses."""
    target, state, tokens, hidden = both
    at = lambda first, last: torch.arange(first, last).expand(4, -1)  # noqa: E731
    zero = torch.zeros(4, 1, dtype=torch.int64)
    with torch.inference_mode():
        target.logits(torch.cat([zero, tokens[:, :9]], 1), at(-1, 9))
        head = target.net.output
        fed = [(tokens[:, a:b], at(a, b), at(a, b) - 1) for a, b in ((0, 1), (1, 5), (5, 9))]
        got = torch.cat([target.drafter.logits(*piece) for piece in fed], 1)
        first = got[:, -1].argsort(-1, descending=True)[:, :2]  # two guesses of token 9, and one behind the second
        nodes = target.drafter.tree(first, at(9, 10).expand(-1, 2), torch.full((4, 2), -1))
        third = nodes[:, 1].argmax(-1)[:, None]
        below = target.drafter.tree(third, at(10, 11), torch.ones(4, 1, dtype=torch.int64))
        P, places = C.prefix - 1, [-1] * (C.prefix - 1) + list(range(16))
        for row in range(4):
            ids = torch.cat([torch.zeros(P, dtype=torch.int64), tokens[row, :9]])
            wanted = plain(state, ids, hidden[row, : P + 9], places)
            assert torch.allclose(got[row], head(wanted[P:]), atol=1e-9, rtol=0)
            for node in range(2):
                more = torch.cat([ids, first[row, node : node + 1]])
                features = torch.cat([hidden[row, : P + 9], wanted[-1:]])
                then = plain(state, more, features, places)
                assert torch.allclose(nodes[row, node], head(then[-1]), atol=1e-9, rtol=0)
            longer = plain(state, torch.cat([more, third[row]]), torch.cat([features, then[-1:]]), places)
            assert torch.allclose(below[row, 0], head(longer[-1]), atol=1e-9, rtol=0)
            alone = plain(state, ids[P:], hidden[row, P : P + 9], places[P:])  # without the caption: another law
            assert not torch.allclose(got[row], head(alone), atol=1e-3)


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
    said = add.entry(str(folder), c.grid, None)
    config = Path(said["files"]["drafter"]) / "config.json"
    right = json.loads(config.read_text())
    raw = {"models": {"m": said}, "image": {"methods": {"ar": [{}], "eagle": [{}]}}}
    config.write_text(json.dumps(right | {"block_size": 1024}))
    with pytest.raises(ConfigError, match="was trained for another target: its grid is 32; allowed: 4"):
        checks.load(json.loads(json.dumps(raw)))
    config.write_text(json.dumps(right | {"num_attention_heads": 8}))
    with pytest.raises(ParityError, match="a drafter of another target: heads 8; allowed: 2, as the target's"):
        fetch.manifest("discrete", "m", said, tmp_path / "out")
