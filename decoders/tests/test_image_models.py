"""Image models through `generate`: windows and trees have the logits of each model's own forward, tokens are those of
plain decoding, and distributions those that are enumerated."""

import copy
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decoders.tests.image_models import Chameleon, Emu3, Emu3p5, GlmImage, ImageGPT, Janus, Liquid
from parity_certify import certify_sampler, target_distribution

from parity_decoders import transformers as decoders
from parity_decoders.distribution import Guidance
from parity_decoders.errors import DecodingError
from parity_decoders.families import inputs
from parity_decoders.grid import Grid
from parity_decoders.slots import SlotNetwork

CASES = {
    "glm_image": GlmImage, "emu3": Emu3, "emu3p5": Emu3p5, "janus": Janus, "chameleon": Chameleon, "imagegpt": ImageGPT,
    "liquid": Liquid,
}  # fmt: skip
REQUESTS = int(os.environ.get("PARITY_REQUESTS", "50"))  # random requests to each model
FIRST = torch.tensor([], dtype=torch.long)
EXACT = [m for m in decoders.METHODS if m not in ("gsd", "sjd_pp", "sjd_sv", "sjd_vp", "zipar", "pjd")]
COUPLED = ["sjd_coupled", "mtj", "mtj_draft"]


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A small random model of each family."""
    return CASES[request.param]()


@torch.inference_mode()
def make_network(case, request, change=lambda x: x):
    """Make the network of slots that has read a request's prompts."""
    model, keywords = case.model, dict(request.keywords)
    if "pixel_values" in keywords:  # as `generate` hands them over
        keywords = model._prepare_multimodal_encoder_kwargs_for_generation(keywords)
    unpadded = keywords["attention_mask"].bool()
    read = change(inputs.read_inputs(model, request.ids, unpadded, keywords, request.length))
    return SlotNetwork(model, read.ids, unpadded, request.length, position_ids=read.position_ids)


@torch.inference_mode()
def measure_difference(case, request, change=lambda x: x):
    """Measure the largest difference of logits between windows, then trees, and the model's own forward."""
    network = make_network(case, request, change)
    g = torch.Generator().manual_seed(3)
    first, n_tokens = case.tokens[0], len(case.tokens)
    tokens = first + torch.randint(n_tokens, (len(request.ids), request.length - 1), generator=g)
    feed = torch.cat([request.ids[:, -1:], tokens], 1)
    truth = torch.stack([case.compute_logits(request, b, x) for b, x in enumerate(tokens)])
    largest = 0.0
    position = 0
    while position < request.length:
        n = min(5, request.length - position)
        at = torch.arange(position - 1, position + n - 1).expand(len(feed), -1)
        fed = feed[:, position : position + n]
        wrong = first + torch.randint(n_tokens, fed[:, 1:].shape, generator=g)
        network.logits(torch.cat([fed[:, :1], wrong], 1), at)  # drafts that the right tokens replace
        if position % 2:
            found = network.logits(fed, at)
        else:  # a tree of the right tokens and a wrong sibling after each
            nodes = torch.cat([fed, first + (fed[:, 1:] - first + 1) % n_tokens], 1)
            chain = torch.arange(n) - 1
            parents = torch.cat([chain, chain[1:]]).expand(len(feed), -1)
            tree = network.tree(nodes, torch.cat([at, at[:, 1:]], 1), parents)
            found = tree.logits[:, :n]
            network.keep(tree, torch.arange(n).expand(len(feed), -1))
        largest = max(largest, float((found - truth[:, position : position + n]).abs().max()))
        position += n
    return largest


@pytest.mark.parametrize("seed", range(4))
def test_windows_and_trees_have_the_logits_of_forward(case, seed):
    request = case.make_request(seed, same=True, guided=False)
    assert measure_difference(case, request) < 1e-5 * float(case.compute_logits(request, 0, FIRST).abs().max())
    exact = case.copy_in_double()
    assert measure_difference(exact, exact.make_request(seed, same=True, guided=False)) < 1e-12


def shift_positions(read):
    """Positions of new tokens one row too low."""
    moved = read.position_ids.clone()
    moved[1, :, read.ids.shape[1] :] += 1
    return read._replace(position_ids=moved)


def repeat_preview(read):
    """The preview's width for the image as well."""
    P = read.ids.shape[1]
    new = read.position_ids[:, :, P:]
    width = int(read.grid.width[0, 0])
    index = torch.arange(new.shape[2])
    start = new[0, :, :1]
    wrong = torch.stack([start.expand(-1, len(index)), start + index // width, start + index % width])
    return read._replace(position_ids=torch.cat([read.position_ids[:, :, :P], wrong], 2))


def test_positions_off_by_one_row_are_found(case):
    exact = case.copy_in_double()
    request = exact.make_request(1, sources=0, same=True, guided=False)
    number, P, width = SlotNetwork.number_positions, request.ids.shape[1], 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            SlotNetwork, "number_positions", lambda self, x: (number(self, x) - width * (x >= P)).clamp(min=0)
        )
        assert measure_difference(exact, request) > 1e-3


@pytest.mark.parametrize("change", [shift_positions, repeat_preview])
def test_positions_of_another_grid_are_found(change):
    exact = GlmImage().copy_in_double()
    assert measure_difference(exact, exact.make_request(1, sources=0, same=True), change) > 1e-3


def add_draft(case, method):
    """The keywords that a method with a draft model needs: a model of the same kind with other weights."""
    if method not in decoders.DRAFTED:
        return {}
    draft = copy.deepcopy(case.model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in draft.lm_head.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return {"draft_model": draft}


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_tokens_are_those_of_plain_generate(case, method, seed):
    request = case.make_request(seed)
    plain = case.model.generate(request.ids, **request.keywords, do_sample=False)
    more = add_draft(case, method)
    decoder = getattr(decoders, method)
    found = case.model.generate(request.ids, **request.keywords, do_sample=False, custom_generate=decoder, **more)
    assert torch.equal(found, plain)


@pytest.mark.parametrize("method", [m for m in decoders.METHODS if m not in EXACT])
def test_other_methods_draw_whole_images_of_allowed_tokens(case, method):
    request = case.make_request(4, rows=2, same=True, sources=0)
    drawn = draw(case, request, method, eos_token_id=None)[:, request.ids.shape[1] :]
    assert drawn.shape == (2, request.length)
    for grammar in request.keywords.get("logits_processor", []):
        is_open = grammar.forced < 0
        assert torch.isin(drawn[:, is_open], grammar.chosen).all()
        assert torch.equal(drawn[0, ~is_open], grammar.forced[~is_open])


def draw(case, request, method, **options):
    """Draw the tokens of a request by a method."""
    options = {"do_sample": True, "seed": 7, **request.keywords, **add_draft(case, method), **options}
    return case.model.generate(request.ids, custom_generate=getattr(decoders, method), **options)


FILTERS = [
    {},
    {"temperature": 0.7, "top_k": 9},
    {"top_p": 0.8},
    {"top_k": 0, "min_p": 0.02},
    {"eos_token_id": [3, 7, 41]},
]


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(12)), pytest.param(range(12, REQUESTS), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_coupled_decoders_draw_the_tokens_of_plain_decoding(case, seeds):
    for seed in seeds:
        request = case.make_request(seed)
        options = FILTERS[seed % len(FILTERS)]
        expected = draw(case, request, "ar", **options)
        method = COUPLED[seed % len(COUPLED)]
        assert torch.equal(draw(case, request, method, window=1 + seed % 9, **options), expected), (seed, method)


def test_a_row_alone_has_the_tokens_of_the_batch():
    """With text to image: rows of one size, as the processor makes them."""
    case = GlmImage().copy_in_double()
    request = case.make_request(4, rows=3, sources=0, same=True)
    greedy = {"do_sample": False, "custom_generate": decoders.sjd_coupled}
    together = case.model.generate(request.ids, **request.keywords, **greedy)
    for b in range(3):
        unpadded = request.keywords["attention_mask"][b].bool()
        own = {"image_grid_thw": request.keywords["image_grid_thw"][:2], "images_per_sample": torch.tensor([2])}
        alone = case.model.generate(request.ids[b, unpadded][None], max_new_tokens=request.length, **own, **greedy)[
            0, int(unpadded.sum()) :
        ]
        assert torch.equal(together[b, len(unpadded) :][: len(alone)], alone)


def test_the_model_keeps_what_plain_generate_leaves():
    case = GlmImage()
    request = case.make_request(2, sources=1)
    kept = []
    for options in ({}, {"custom_generate": decoders.mtj}):
        case.model.model.rope_deltas = None
        case.model.generate(request.ids, **request.keywords, do_sample=False, **options)
        inner = case.model.model
        kept.append((inner.rope_deltas, inner._cached_decode_position_ids, torch.tensor(inner._prefill_len)))
    for one, other in zip(*kept, strict=True):
        assert torch.equal(one, other)


def test_the_row_above_depends_on_the_grid():
    """In the preview of 2 x 3 tokens, the image of 3 x 5, and the end token."""
    case = GlmImage()
    keywords = {"image_grid_thw": torch.tensor([[1, 3, 5], [1, 2, 3]]), "images_per_sample": torch.tensor([2])}
    ids = torch.tensor([[60, 40]])
    read = inputs.read_inputs(case.model, ids, torch.ones_like(ids).bool(), keywords, 22)
    assert read.grid.width.tolist() == [[3] * 6 + [5] * 15 + [1]]
    assert read.grid.start.tolist() == [[0] * 6 + [6] * 15 + [21]]
    rows = [(0, 3, True), (3, 6, False), (6, 11, True), (11, 16, False), (16, 21, False), (21, 22, True)]
    assert [tuple(row) for row in read.grid.list_rows("zipar", 22)] == rows
    assert [tuple(row) for row in Grid(3).list_rows("zipar", 7)] == [(0, 3, True), (3, 6, False), (6, 7, False)]


def enumerate_two(case, request):
    """The distribution of the first two tokens after a request's only prompt, by the model's own forward."""
    processors = request.keywords.get("logits_processor", [])

    def find_distribution(tokens):
        """The probabilities [V] of what follows tokens [n]."""
        scores = case.compute_logits(request, 0, tokens)[-1:]
        for processor in processors:
            scores = processor(torch.cat([request.ids, tokens[None]], 1), scores)
        return scores[0].softmax(-1).double()

    first = find_distribution(FIRST)
    second = torch.stack([find_distribution(torch.tensor([t])) for t in range(len(first))]).numpy()

    def follow(prefixes):
        prefixes = np.asarray(prefixes)  # the first column stands for the prompt
        return np.tile(first, (len(prefixes), 1)) if prefixes.shape[1] == 1 else second[prefixes[:, 1]]

    return target_distribution(follow, vocab=len(first), length=2, prompts=[[0]])


@pytest.mark.parametrize("method", ["ar", "sjd"])
def test_two_tokens_have_the_distribution_that_is_enumerated(case, method, monkeypatch):
    check_two_tokens(case, case.make_request(3, rows=1, sources=0, guided=False), method, monkeypatch)


@pytest.mark.parametrize("method", ["ar", "sjd"])
def test_two_tokens_after_a_source_image_have_their_distribution(method, monkeypatch):
    case = GlmImage()
    check_two_tokens(case, case.make_request(3, rows=1, sources=1), method, monkeypatch)


def check_two_tokens(case, request, method, monkeypatch):
    """Certify a method's first two tokens, and see that new tokens with wrong positions are lossy."""

    def sample(prompts, seed):
        n = len(prompts)
        keywords = {key: torch.cat([x] * n) if torch.is_tensor(x) else x for key, x in request.keywords.items()}
        keywords |= {"max_new_tokens": 2, "eos_token_id": None, "do_sample": True, "seed": seed}
        keywords |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        ids = request.ids.expand(n, -1)
        more = {"window": 2} if method == "sjd" else {}
        return case.model.generate(ids, **keywords, **more, custom_generate=getattr(decoders, method))[:, -2:].numpy()

    known = enumerate_two(case, request)
    assert certify_sampler(sample, known, margin=0.25, n=3000, batch=1000).verdict.kind == "certified"
    number, P = SlotNetwork.number_positions, request.ids.shape[1]
    monkeypatch.setattr(SlotNetwork, "number_positions", lambda self, x: number(self, x) + 7 * (x >= P))
    assert certify_sampler(sample, known, margin=0.25, n=3000, batch=1000).verdict.kind == "lossy"


@torch.inference_mode()
def measure_unconditional(case, request):
    """Measure the largest difference of logits between the unconditional rows and the owner's forward."""
    keywords = request.keywords
    guidance = Guidance(2.0, keywords["negative_prompt_ids"], keywords["negative_prompt_attention_mask"])
    ids, mask, padding = decoders.add_unconditional(request.ids, keywords["attention_mask"].bool(), guidance)
    B = len(request.ids)
    network = SlotNetwork(case.model, ids, mask, request.length, padding)
    tokens = torch.full((2 * B, 2), case.tokens[3])
    fed = torch.cat([ids[:, -1:], tokens], 1)
    found = network.logits(fed, torch.arange(-1, 2).expand(2 * B, -1))[B:]
    n = keywords["negative_prompt_ids"].shape[1]
    truth = case.run_owner(torch.cat([keywords["negative_prompt_ids"], tokens[:B]], 1))[:, n - 1 :]
    return float((found - truth).abs().max())


@pytest.mark.parametrize("kind", [Emu3, Emu3p5, Janus, Chameleon, Liquid])
def test_unconditional_rows_have_their_own_positions(kind):
    case = kind().copy_in_double()
    request = case.make_request(5, rows=3, guided=True)
    assert measure_unconditional(case, request) < 1e-12
    # rotary positions are relative: off for the new tokens alone
    number, longest = SlotNetwork.number_positions, max(request.ids.shape[1], 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotNetwork, "number_positions", lambda self, x: number(self, x) + (x >= longest))
        assert measure_unconditional(case, request) > 1e-3


def test_guided_rows_of_glm_image_are_those_of_plain_generate(monkeypatch):
    """The unconditional prompt counts its tokens, and new tokens have the positions of the others."""
    case = GlmImage()
    request = case.make_request(4, rows=2, sources=0, same=True)
    empty = torch.where(request.keywords["attention_mask"] == 1, 60, case.PAD)
    empty[:, -1] = case.START
    given = request.keywords | {"guidance_scale": 3.0, "negative_prompt_ids": empty, "do_sample": False}
    plain = case.model.generate(request.ids, **given)
    for decoder in (decoders.ar, decoders.sjd_coupled, decoders.mtj):
        assert torch.equal(case.model.generate(request.ids, **given, custom_generate=decoder), plain)
    number = decoders.number_unconditional

    def shift(position_ids, P, guidance):
        """Give the unconditional rows the positions of a prompt one token shorter."""
        both = number(position_ids, P, guidance).clone()
        both[:, len(request.ids) :, :P] -= 3
        return both

    monkeypatch.setattr(decoders, "number_unconditional", shift)
    assert not torch.equal(case.model.generate(request.ids, **given, custom_generate=decoders.ar), plain)


@pytest.mark.parametrize("method", ["ar", *COUPLED])
def test_a_stream_gets_the_prompt_and_each_token_in_order(case, method):
    request = case.make_request(5, rows=1)
    put: list = []
    streamer = SimpleNamespace(put=put.append, end=lambda: put.append(None))
    found = draw(case, request, method, stream=streamer)
    assert put.pop() is None
    assert all(len(token) == 1 for token in put[1:])
    assert torch.equal(torch.cat([put[0][0], *put[1:]]), found[0])


GRIDS = torch.tensor([[1, 3, 4], [1, 2, 2]])
REFUSED = {
    "image_grid_thw: none": {"image_grid_thw": None},
    "images_per_sample .3. of 1 rows and 2 grids": {"images_per_sample": torch.tensor([3])},
    "max_new_tokens 19 with image_grid_thw .*at most 17": {"max_new_tokens": 19},
    "pixel_values: none for 1 tokens of source images": {"input_ids": torch.tensor([[60, 40, 90, 41, 61, 40]])},
    "image_grid_thw: 2 grids in row 0 with 2 source images": {"input_ids": torch.tensor([[41, 60, 41, 40]])},
    "width: 4; allowed: none": {"width": 4},
    "negative_prompt_ids of 1 tokens; allowed: 3": {"guidance_scale": 2.0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_drawn_is_one_line(message):
    case = GlmImage()
    request = {"input_ids": torch.tensor([[60, 61, 40]]), "image_grid_thw": GRIDS, "max_new_tokens": 17}
    request |= {"images_per_sample": torch.tensor([2])} | REFUSED[message]
    with pytest.raises(DecodingError, match=message):
        case.model.generate(**request, do_sample=True, custom_generate=decoders.sjd)


def test_rows_with_and_without_source_images_are_refused():
    case = GlmImage()
    one, other = case.make_request(1, rows=1, sources=0), case.make_request(3, rows=1, sources=1)
    P = max(one.ids.shape[1], other.ids.shape[1])
    masks = [x.keywords["attention_mask"] for x in (one, other)]
    ids, mask = (
        torch.cat([torch.nn.functional.pad(x, (P - x.shape[1], 0), value=value) for x in pair])
        for pair, value in (((one.ids, other.ids), 95), (masks, 0))
    )
    ids[ids == case.PLACE] = 60  # the message is of the grids, whatever the pixels
    keywords = {k: torch.cat([one.keywords[k], other.keywords[k]]) for k in ("image_grid_thw", "images_per_sample")}
    with pytest.raises(DecodingError, match=r"source images: \[0, 1\] in the rows"):
        inputs.read_inputs(case.model, ids, mask.bool(), keywords, 3)


@pytest.mark.parametrize("sources", [0, 1])
def test_verify_compares_with_the_model_s_own_forward(sources):
    case = GlmImage()
    request = case.make_request(4, rows=2, sources=sources, same=True)
    keywords = {"input_ids": request.ids, **request.keywords}
    found = decoders.verify(case.model, keywords, decoders.sjd_coupled, window=8)
    assert not found.is_fault
    assert found.equal == 2
