"""Published families against transformers' own networks of the same files: laws, greedy pictures, every decoder."""

from pathlib import Path

import pytest
import torch
from parity_decoders.discrete.ar import ar
from parity_decoders.sampling import TokenSampling

from parity.base.weights import tensors
from parity.experiment import options
from parity.models.discrete.llama import strip_grammar
from tests.families import LAYOUTS, decode_rows, load_pair
from tests.tables import import_decoder

NEAR = 1e-9


@pytest.fixture(scope="module", params=LAYOUTS)
def family(request, tmp_path_factory):
    return load_pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def pictures(family):
    """Tokens [3, L] of pictures that keep to the grammar."""
    model = family.make_model()
    codes = torch.randint(0, 64, (3, model.length), generator=torch.Generator().manual_seed(1))
    return torch.where(model.forced >= 0, model.forced, codes)


def distance(ours, theirs):
    """The largest difference of logits [.., V] of codes, in the scale of theirs."""
    return float((ours[..., : theirs.shape[-1]] - theirs).abs().max() / theirs.abs().max())


def fed(model, tokens, first, stop):
    """The laws [R, stop - first + 1, V] behind positions first - 1 to stop - 1, given tokens [R, L]."""
    at = torch.arange(first - 1, stop).expand(len(tokens), -1)
    shown = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)[:, first : stop + 1]
    return model.logits(shown, at)


def test_laws_are_transformers_step_by_step_and_in_windows(family, pictures):
    tokens, L = pictures.repeat(2, 1), pictures.shape[1]
    theirs = family.compute_guided_logits(pictures[:, :-1])
    model = family.make_model()
    steps = torch.cat([fed(model, tokens, n, n) for n in range(12)], 1)
    assert distance(steps, theirs[:, :12]) < NEAR
    model = family.make_model()
    for n in range(0, L - 1, 7):  # a window is fed drafts, and then what is true: what it was fed is replaced
        fed(model, tokens.flip(1), n, min(n + 9, L - 1))
        assert distance(fed(model, tokens, n, min(n + 6, L - 1)), theirs[:, n : n + 7]) < NEAR


def test_what_no_row_may_choose_is_never_chosen(family):
    law = fed(family.make_model(), torch.zeros(6, 4, dtype=torch.int64), 0, 3).softmax(-1)
    grammar = family.make_model().forced
    assert grammar.max() < law.shape[-1] == family.make_model().vocab
    assert (law[..., grammar[grammar >= 0].unique()] == 0).all()


def test_without_the_mask_or_at_other_places_the_laws_are_others(family, pictures):
    theirs = family.compute_logits(pictures[:, :3])
    ones = torch.ones_like(family.inputs["valid"])
    assert distance(fed(family.make_model(guided=False), pictures, 0, 3), theirs) < NEAR
    assert distance(fed(family.make_model(guided=False, valid=ones), pictures, 0, 3), theirs) > 1e-3
    moved = family.make_model(guided=False)
    moved.shift = moved.shift - 1  # the picture stands one place further from the prompt
    assert distance(fed(moved, pictures, 0, 3), theirs) > 1e-3


def test_rows_stand_at_positions_of_their_own(family, pictures):
    model, at = family.make_model(guided=False), torch.tensor([2, 9, 5])
    fed(model, pictures, 0, 9)
    window = at[:, None] + torch.arange(4)
    own = model.logits(pictures.gather(1, window), window)
    theirs = family.compute_logits(pictures[:, :13])
    assert distance(own, torch.stack([theirs[b, n + 1 : n + 5] for b, n in enumerate(at.tolist())])) < NEAR


def test_a_tree_is_its_branches(family, pictures):
    model = family.make_model(guided=False)
    fed(model, pictures, 0, 4)
    # the root at position 4, two continuations, and one behind the second
    nodes = torch.stack([pictures[:, 4], pictures[:, 5], (pictures[:, 5] + 1) % 64, pictures[:, 6]], 1)
    positions = torch.tensor([4, 5, 5, 6]).expand(3, -1)
    parents = torch.tensor([-1, 0, 0, 2]).expand(3, -1)
    laws = model.tree(nodes, positions, parents)
    for node, branch in ((1, nodes[:, [0, 1]]), (3, nodes[:, [0, 2, 3]])):
        theirs = family.compute_logits(torch.cat([pictures[:, :4], branch], 1))
        assert distance(laws[:, node], theirs[:, -1]) < NEAR
    model.keep(torch.tensor([0, 2, 3]).expand(3, -1))
    law = model.logits(pictures[:, 7:8], torch.full((3, 1), 7))
    behind = torch.cat([pictures[:, :4], nodes[:, [0, 2, 3]], pictures[:, 7:8]], 1)
    assert distance(law[:, 0], family.compute_logits(behind)[:, -1]) < NEAR


def test_a_row_alone_is_the_row_of_a_batch(family):
    """Over a whole picture, with guidance."""
    greedy = TokenSampling(guidance=3.0, top_k=1)
    ours = decode_rows(family.make_model(), ar, range(3), greedy)
    free = int((family.make_model().forced < 0).sum())
    assert (ours.nfe == free).all()  # what the grammar forces costs no pass
    alone = decode_rows(family.make_model(rows=[1]), ar, range(1, 2), greedy)
    assert torch.equal(alone.tokens[0], ours.tokens[1])


def test_pictures_are_transformers_own(family, pictures):
    """Chameleon's decoder, which transformers lacks, is Janus' without attention between its levels."""
    s, nets = family.loaded.nets["vq"].size, family.loaded.nets
    ours = family.loaded.family.pictures(nets, pictures)
    codes = strip_grammar(pictures, s)
    if family.layout == "janus":
        expected = family.theirs.float().decode_image_tokens(pictures).permute(0, 3, 1, 2)
    elif family.layout == "emu3":
        expected = family.theirs.float().decode_image_tokens(
            image_tokens=torch.cat([family.ids[pictures], pictures[:, :1]], 1), height=s["rows"], width=s["columns"]
        )
    else:
        files = family.loaded.manifest["files"]
        stored = {name.removeprefix("model.vqmodel."): t for name, t in tensors(Path(files.get("vq", files["model"])))}
        expected = meta_decoder(nets["vq"], stored)(stored["quantize.embedding.weight"][codes])
    family.theirs.double()
    assert ours.shape == (3, 3, *ours.shape[2:])
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()


def meta_decoder(vq, stored):
    """transformers' JanusVQVAEDecoder as Chameleon's, of the tensors in its file: no attention among its levels, which
    it counts the other way."""
    from transformers import JanusVQVAEConfig
    from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

    c = vq.config
    net = JanusVQVAEDecoder(
        JanusVQVAEConfig(
            latent_channels=c.z_channels, base_channels=c.ch, channel_multiplier=c.ch_mult, num_res_blocks=c.res_blocks
        )
    )
    for level in net.up:
        level.attn = torch.nn.ModuleList()
    last = len(c.ch_mult) - 1
    state = {}
    for name, tensor in stored.items():
        part = name.removeprefix("decoder.").split(".")
        if not name.startswith("decoder."):
            continue
        if part[0] == "up":
            part[1] = str(last - int(part[1]))
        state[".".join(part)] = tensor
    net.load_state_dict(state)
    return lambda z: net(vq.post_quant_conv(z.permute(0, 3, 1, 2)))


@pytest.mark.parametrize("method", [m for m in options.methods("discrete") if not options.needs("discrete", m)])
def test_every_decoder_draws_whole_pictures(family, method):
    model, given = family.make_model(rows=[0, 1]), options.options("discrete", method, {})
    done = decode_rows(model, import_decoder("discrete", method), range(2), TokenSampling(3.0, 1.0, 20), **given)
    free = model.forced < 0
    assert (done.tokens[:, ~free] == model.forced[~free]).all()
    assert (done.tokens[:, free] < 64).all()
    assert (done.nfe <= free.sum()).all()
    assert (done.step[:, free] > 0).all()
    s = family.loaded.nets["vq"].size
    height, width, _ = family.loaded.pictures(done.tokens).shape[1:]
    assert height * s["columns"] == width * s["rows"]
    assert max(height, width) == family.loaded.side
