"""Published families against transformers' networks of the same files: distributions, images, every decoder."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from parity.base.errors import ParityError
from parity.base.weights import tensors
from parity.models import add, fetch
from parity.models.discrete.llama import strip_grammar
from parity.models.discrete.load import load, load_encoder
from parity.stand_ins import write
from tests.families import CAPTIONS, LAYOUTS, load_pair

NEAR = 1e-9


@pytest.fixture(scope="module", params=LAYOUTS)
def family(request, tmp_path_factory):
    """A family's stand-in, loaded by this project and by transformers."""
    return load_pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def images(family):
    """Tokens [3, L] of images that keep to the grammar."""
    model = family.make_model()
    codes = torch.randint(0, 64, (3, model.length), generator=torch.Generator().manual_seed(1))
    return torch.where(model.forced >= 0, model.forced, codes)


def compute_distance(ours, theirs):
    """Compute the largest difference of logits [..., V] of codes, in the scale of transformers'."""
    return float((ours[..., : theirs.shape[-1]] - theirs).abs().max() / theirs.abs().max())


def feed(model, tokens, first, stop):
    """Compute logits [R, stop - first + 1, V] after positions first - 1 to stop - 1, given tokens [R, L]."""
    positions = torch.arange(first - 1, stop).expand(len(tokens), -1)
    shown = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)[:, first : stop + 1]
    return model.logits(shown, positions)


def test_distributions_equal_transformers_in_steps_and_windows(family, images):
    tokens, L = images.repeat(2, 1), images.shape[1]
    theirs = family.compute_guided_logits(images[:, :-1])
    model = family.make_model()
    steps = torch.cat([feed(model, tokens, n, n) for n in range(12)], 1)
    assert compute_distance(steps, theirs[:, :12]) < NEAR
    model = family.make_model()
    for n in range(0, L - 1, 7):  # a window is fed wrong drafts first, which the true tokens replace
        feed(model, tokens.flip(1), n, min(n + 9, L - 1))
        assert compute_distance(feed(model, tokens, n, min(n + 6, L - 1)), theirs[:, n : n + 7]) < NEAR


def test_the_layers_of_chameleon_34b_equal_transformers(tmp_path):
    """Its norms stand after attention and MLP, where its config.json has `swin_norm`."""
    swin = load_pair("chameleon", tmp_path, swin_norm=True)
    tokens = torch.randint(0, 64, (3, 4), generator=torch.Generator().manual_seed(1))
    theirs = swin.compute_logits(tokens)
    assert compute_distance(feed(swin.make_model(guided=False), tokens, 0, 4), theirs) < NEAR
    for layer in swin.theirs.model.layers:
        assert type(layer).__name__ == "ChameleonSwinDecoderLayer"


@pytest.fixture(scope="module")
def layouts_of_janus(tmp_path_factory):
    """The folders of one Janus in transformers' layout and in DeepSeek's."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("janus", "janus_released")}
    return [folder / write(name, folder)["model"] for name, folder in folders.items()]


def test_both_layouts_of_janus_are_one_model(layouts_of_janus, tmp_path):
    results = []
    for folder in layouts_of_janus:
        manifest = fetch.make_manifest("discrete", "m", add.find(str(folder)).entry, tmp_path)
        loaded = load(manifest)
        model = loaded.model({k: v.numpy() for k, v in load_encoder(manifest)(CAPTIONS[:1]).items()}, {"guidance": 5.0})
        tokens = torch.arange(model.length)[None] % 64
        results.append((feed(model, tokens, 0, model.length - 1), loaded.images(tokens)))
    (logits, pixels), (released_logits, released_pixels) = results
    assert torch.equal(logits, released_logits)
    assert (pixels == released_pixels).all()


@pytest.mark.parametrize("lacking", ["gen_head_config", "language_config"])
def test_a_released_configuration_that_lacks_a_part_is_refused(layouts_of_janus, tmp_path, lacking):
    folder = tmp_path / "janus"
    shutil.copytree(layouts_of_janus[1], folder)
    config = json.loads((folder / "config.json").read_text())
    del config[lacking]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ParityError, match="not a configuration of Janus"):
        add.identify(str(folder))


def test_forced_tokens_are_never_chosen_by_a_distribution(family):
    probs = feed(family.make_model(), torch.zeros(6, 4, dtype=torch.int64), 0, 3).softmax(-1)
    grammar = family.make_model().forced
    assert grammar.max() < probs.shape[-1] == family.make_model().vocab
    assert (probs[..., grammar[grammar >= 0].unique()] == 0).all()


def test_distributions_need_the_mask_and_the_positions(family, images):
    theirs = family.compute_logits(images[:, :3])
    no_mask = torch.ones_like(family.inputs["valid"])
    assert compute_distance(feed(family.make_model(guided=False), images, 0, 3), theirs) < NEAR
    assert compute_distance(feed(family.make_model(guided=False, valid=no_mask), images, 0, 3), theirs) > 1e-3
    moved = family.make_model(guided=False)
    moved.padding = moved.padding - 1  # moves images one position away from the prompt
    assert compute_distance(feed(moved, images, 0, 3), theirs) > 1e-3


def test_images_equal_transformers(family, images):
    """The decoders of Chameleon and Emu3.5, which transformers lacks, are that of Janus; Chameleon's has no attention
    between levels."""
    nets = family.loaded.nets
    s = nets["vq"].size
    ours = family.loaded.family.images(nets, images)
    codes = strip_grammar(images, s)
    if family.layout == "janus":
        expected = family.theirs.decode_image_tokens(images).permute(0, 3, 1, 2)
    elif family.layout == "emu3":
        tokens = torch.cat([family.ids[images], images[:, :1]], 1)
        expected = family.theirs.decode_image_tokens(image_tokens=tokens, height=s["rows"], width=s["columns"])
    else:
        files = family.loaded.manifest["files"]
        file = Path(files.get("vq", files["model"]))
        stored = {k.removeprefix("model.vqmodel."): v for k, v in tensors(file, dtype=torch.float64)}
        expected = make_meta_decoder(nets["vq"].net, stored)(stored["quantize.embedding.weight"][codes])
    height, width = ours.shape[2:]
    assert ours.shape[:2] == (3, 3)
    assert (height * s["columns"], max(height, width)) == (width * s["rows"], family.loaded.side)
    assert (ours - expected).abs().max() < NEAR * expected.abs().max()


def make_meta_decoder(vq, stored):
    """Make the image decoder of Chameleon or Emu3.5 from transformers' JanusVQVAEDecoder, which numbers its levels the
    other way, with the weights `stored`; return a function of codes' embeddings."""
    from transformers import JanusVQVAEConfig
    from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

    c = vq.config
    sizes = {"latent_channels": c.z_channels, "base_channels": c.ch, "channel_multiplier": c.ch_mult}
    net = JanusVQVAEDecoder(JanusVQVAEConfig(**sizes, num_res_blocks=c.res_blocks)).double()
    for level in net.up if not c.decoder_attention else ():
        level.attn = torch.nn.ModuleList()
    last_level = len(c.ch_mult) - 1
    state = {}
    for name, tensor in stored.items():
        path = name.removeprefix("decoder.").split(".")
        if not name.startswith("decoder."):
            continue
        if path[0] == "up":
            path[1] = str(last_level - int(path[1]))
        state[".".join(path)] = tensor
    net.load_state_dict(state)
    return lambda z: net(vq.post_quant_conv(z.permute(0, 3, 1, 2)))
