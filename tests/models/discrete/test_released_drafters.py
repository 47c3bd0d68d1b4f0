"""Released drafters of Anole and LlamaGen in their published layouts."""

import json
from pathlib import Path

import pytest
import torch
from parity_decoders.discrete.spec import spec
from parity_decoders.speculators import EagleDrafter
from transformers import ChameleonConfig, Emu3TextConfig

from parity.base.errors import ConfigError, ParityError
from parity.base.row_noise import batch_noise
from parity.decode.discrete import record
from parity.experiment import checks
from parity.experiment.schema import ModelSpec
from parity.models import add, fetch
from parity.models.discrete import chameleon, llama, llamagen
from parity.models.discrete import load as models
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer
from parity.stand_ins import write
from parity.stand_ins.discrete import anole, anole_drafter, eagle_drafter
from parity.stand_ins.discrete import llamagen as write_llamagen
from tests.families import CAPTIONS, keep_dtype, load_pair

SIZES = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "grid": 4, "prefix": 6, "caption_dim": 32, "multiple_of": 32}


def compute_three_probs(target, drafter, tokens, rows):
    """Compute the distributions [rows, 3, 3] of a drafter, for its first three tokens: after the last fed token, after
    its second guess, and after the guess after that. Tokens [R, n] are fed in pieces, with the target's features."""
    R = len(tokens)
    positions = torch.arange(11).expand(R, -1)
    nodes = positions[:, :10]
    read = target.tree(torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :9]], 1), nodes - 1, nodes - 1)
    drafter.keep(read, nodes)
    fed = [(tokens[:, a:b], positions[:, a:b], positions[:, a:b] - 1) for a, b in ((0, 1), (1, 5), (5, 9))]
    fed_probs = torch.cat([drafter.logits(*piece) for piece in fed], 1)
    first = fed_probs[:, -1, :64].argsort(-1, descending=True)[:, :2]  # the drafter's two likeliest guesses of token 9
    guess_probs = drafter.tree(first, positions[:, 9:10].expand(-1, 2), torch.full((R, 2), -1))
    third = guess_probs[:, 1, :64].argmax(-1)[:, None]
    next_probs = drafter.tree(third, positions[:, 10:], torch.ones(R, 1, dtype=torch.int64))
    return torch.stack([torch.stack([x[row, -1, :3] for x in (fed_probs, guess_probs, next_probs)]) for row in rows])


# --- the drafter released for Anole


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The file of a random drafter in the format released for Anole."""
    folder = tmp_path_factory.mktemp("drafter")
    return folder / anole_drafter(folder)["drafter"]


# What `compute_three_probs` must give of rows 1 and 4, by an independent rewrite of the released code, unpadded.
ANOLE = [
    [[-4.1937281593, -2.8715852297, 0.4281438408], [-2.6114412969, -1.2150492525, 0.1474850554],
     [-0.4864246917, -2.0860174425, 3.1491688016]],
    [[-2.5865158032, -2.2190567711, 2.2079803273], [1.4578154846, 1.0796284760, 0.1084973661],
     [-0.9802649657, 1.7323546060, -1.8995869594]],
]  # fmt: skip


def test_anoles_drafter_equals_its_released_code(tmp_path, released):
    """The rows are padded differently."""
    family = load_pair("anole", tmp_path)
    state, record = chameleon.read_published("drafter", released, None)
    net = chameleon.Drafter(ChameleonConfig.from_dict(record)).double().eval()
    net.load_state_dict({k: v.double() for k, v in state.items()})
    for norm in (net.layer.input_layernorm, net.layer.post_attention_layernorm):
        keep_dtype(norm)
    tokens = torch.randint(0, 64, (3, 12), generator=torch.Generator().manual_seed(1)).repeat(2, 1)
    target = family.make_model()
    drafter = EagleDrafter(net, target, llama.select_batch_ids(family.inputs, True)[0])
    assert (
        compute_three_probs(target, drafter, tokens, (1, 4)) - torch.tensor(ANOLE, dtype=torch.float64)
    ).abs().max() < 1e-8


def find_entry(folder: Path, released: Path) -> dict:
    """Write an Anole to `folder` and return the entry that `models add` makes of it with the drafter `released`."""
    files = anole(folder)
    return add.find(str(folder / files["model"]), None, {"drafter": released}).entry


def test_a_drafter_of_another_anole_is_one_line(tmp_path, released):
    other_drafter = tmp_path / anole_drafter(tmp_path, heads=2)["drafter"]
    wrong = "was trained for another target: its num_attention_heads is 2; allowed: 4"
    with pytest.raises(ConfigError, match=wrong):
        find_entry(tmp_path, other_drafter)
    state = torch.load(released / "pytorch_model.bin", weights_only=True)
    torch.save({k: v for k, v in state.items() if "q_norm" not in k}, other_drafter / "pytorch_model.bin")
    with pytest.raises(ParityError, match=r"missing layer\.self_attn\.q_norm\.weight"):
        chameleon.read_published("drafter", other_drafter, None)


# --- the drafter released for LlamaGen


# What `compute_three_probs` must give of rows 1 and 3, by an independent rewrite of the released code.
LLAMAGEN = [
    [[0.4939048124, -0.4422421882, -0.6597916501], [0.4411189610, -0.4978789088, -0.1873766609],
     [0.9053122810, 0.2219078561, -0.8482583366]],
    [[0.5593053427, -0.5152224425, -0.7792508402], [0.2378231167, -0.4426186116, -0.1101264517],
     [1.1070448862, -0.0877337986, -0.9394357974]],
]  # fmt: skip


def test_llamagens_drafter_equals_its_released_code(tmp_path):
    """In float64, guided, one caption left-padded."""
    c = LlamaGenConfig(**SIZES)
    torch.manual_seed(0)
    folder = tmp_path / eagle_drafter(tmp_path, c.dim, c.heads, c.vocab, c.grid, c.hidden)["drafter"]
    digests = {"transformer": "0" * 64, "drafter": "0" * 64}
    files = dict.fromkeys(digests, str(folder))
    spec = ModelSpec(family="llamagen", source="files", files=files, sha256=digests, network=SIZES)
    state, config = llamagen.read_published("drafter", folder, spec)
    config.pop("target")
    net = Transformer(c).double().eval()
    small = llamagen.CaptionedDrafter(LlamaGenConfig(**config)).double().eval()
    small.load_state_dict(state)
    caption, valid = torch.randn(2, 6, c.caption_dim).double(), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    tokens = torch.randint(c.vocab, (2, 16)).repeat(2, 1)
    target = LlamaGen(net, caption, valid, guided=True)
    drafter = EagleDrafter(small, target)
    assert (
        compute_three_probs(target, drafter, tokens, (1, 3)) - torch.tensor(LLAMAGEN, dtype=torch.float64)
    ).abs().max() < 1e-8


def test_a_drafter_of_another_llamagen_is_one_line(tmp_path):
    folder = tmp_path / "m"
    write_llamagen(folder, side=4)
    eagle_drafter(folder, grid=4)
    entry = add.find(str(folder), 4, None).entry
    config = Path(entry["files"]["drafter"]) / "config.json"
    right = json.loads(config.read_text())
    raw = {"models": {"m": entry}, "image": {"methods": {"ar": [{}], "eagle": [{}]}}}
    config.write_text(json.dumps(right | {"block_size": 1024}))
    with pytest.raises(ConfigError, match="was trained for another target: its grid is 32; allowed: 4"):
        checks.make_config(json.loads(json.dumps(raw)))
    config.write_text(json.dumps(right | {"num_attention_heads": 8}))
    with pytest.raises(ParityError, match="a drafter of another target: heads 8; allowed: 1, as the target's"):
        fetch.make_manifest("discrete", "m", entry, tmp_path / "out")


# --- a smaller published model of the family as draft model


@pytest.mark.parametrize("layout", ["llamagen_c2i", "janus"])
def test_a_smaller_model_of_the_family_drafts(layout, tmp_path):
    """The target's own files stand for it here: then every draft of the chain is right, and passes are few."""
    files = write(layout, tmp_path / "m")
    name = "model" if layout == "janus" else "transformer"
    where = tmp_path / "m" / files["model"] if layout == "janus" else tmp_path / "m"
    entry = add.find(str(where), None, {"draft": tmp_path / "m" / files[name]}).entry
    checks.make_config(
        json.loads(json.dumps({"models": {"m": entry}, "image": {"methods": {"ar": [{}], "spec": [{}]}}}))
    )
    manifest = fetch.make_manifest("discrete", "m", entry, tmp_path / "out")
    captions = ["1", "2"] if layout == "llamagen_c2i" else CAPTIONS[:2]
    inputs = {k: v.numpy() for k, v in models.load_encoder(manifest)(captions).items()}
    probs = {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    model = models.load(manifest, needs="draft").model(inputs, probs)
    start = torch.zeros(2, dtype=torch.int64)
    decoded = record(model, start, spec(model, start, noise=batch_noise(0, captions), gamma=4))
    assert decoded.nfe.double().mean() < 0.3 * model.length


@pytest.mark.parametrize("is_training", [False, True])
def test_a_new_speculator_drops_no_features(is_training):
    """Emu3's configuration names a dropout of a tenth. Must fail: a speculator in training mode."""
    config = Emu3TextConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    net = llama.make_speculator("drafter", config)
    net.train(net.training or is_training)
    x, mask = torch.randn(1, 40, 32), torch.ones(1, 1, 40, 40, dtype=torch.bool)
    positions = torch.arange(40)[None]
    assert torch.equal(*(net(x, x, positions, mask) for _ in range(2))) != is_training
