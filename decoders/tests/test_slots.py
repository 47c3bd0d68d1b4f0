"""Distributions of windows and trees through slots, against the models' own forward on each row alone."""

import pytest
import torch
from decoders.tests.architectures import CONFIGURATIONS, make_model

from parity_decoders import cache
from parity_decoders.protocols.discrete import FINAL
from parity_decoders.slots import SlotNetwork

PROMPTS = [[0, 0, 0, 5, 9, 11, 4, 3], [7, 8, 9, 12, 30, 5, 21, 17]]  # the first is padded on the left
LENGTH = 12  # tokens after the prompts, beyond the sliding windows of 6


def draw_tokens() -> torch.Tensor:
    """Draw random tokens [2, LENGTH] to feed after PROMPTS."""
    return torch.randint(3, 40, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def compute_logits(model, row: int, tokens: torch.Tensor) -> torch.Tensor:
    """Compute logits after the prompt's last token and each of `tokens` [n], by the model's forward on one row."""
    prompt = [t for t in PROMPTS[row] if t]
    ids = torch.tensor([prompt + tokens.tolist()])
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def model(request):
    """A small random network of each architecture."""
    return make_model(request.param)


def make_network(model) -> SlotNetwork:
    """Make the network of slots over a model that has read PROMPTS."""
    ids = torch.tensor(PROMPTS)
    with torch.inference_mode():
        return SlotNetwork(model, ids, ids != 0, LENGTH + 1)


@pytest.fixture(params=[1, 16])
def aligned(request, monkeypatch):
    """How many slots a pass reads a multiple of, as on a CPU and as on a GPU."""
    monkeypatch.setitem(cache.MULTIPLES, "cpu", request.param)
    return request.param


@torch.inference_mode()
def test_windows_have_the_distributions_of_forward(model, aligned):
    tokens = draw_tokens()
    network = make_network(model)
    last = torch.tensor([[PROMPTS[0][-1]], [PROMPTS[1][-1]]])
    feed = torch.cat([last, tokens], 1)
    wrong = torch.randint(3, 40, feed.shape, generator=torch.Generator().manual_seed(2))
    logits = []
    for first in range(0, LENGTH + 1, 4):
        positions = torch.arange(first - 1, min(first + 3, LENGTH)).expand(2, -1)
        network.logits(wrong[:, positions[0] + 1], positions)  # wrong drafts first, which the right tokens replace
        logits.append(network.logits(feed[:, positions[0] + 1], positions))
        assert network.cache.end % aligned == 0
    for row in range(2):
        truth = compute_logits(model, row, tokens[row])
        torch.testing.assert_close(torch.cat(logits, 1)[row], truth, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_rows_at_different_positions_have_the_distributions_of_forward(model):
    tokens = draw_tokens()
    network = make_network(model)
    feed = torch.cat([torch.tensor([[PROMPTS[0][-1]], [PROMPTS[1][-1]]]), tokens], 1)
    network.logits(feed[:, :7], torch.arange(-1, 6).expand(2, -1))
    positions = torch.stack([torch.arange(3, 7), torch.arange(6, 10)])
    logits = network.logits(feed.gather(1, positions + 1), positions)
    for row in range(2):
        truth = compute_logits(model, row, tokens[row])[positions[row] + 1]
        torch.testing.assert_close(logits[row], truth, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_trees_have_the_distributions_of_forward(model, aligned):
    tokens = draw_tokens()
    network = make_network(model)
    feed = torch.cat([torch.tensor([[PROMPTS[0][-1]], [PROMPTS[1][-1]]]), tokens], 1)
    network.logits(feed[:, :7], torch.arange(-1, 6).expand(2, -1))
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 3]).expand(2, -1)
    offset = torch.tensor([0, 1, 1, 2, 2, 2, 3])
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3, 6]]
    nodes = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(3))
    root = torch.tensor([[4], [6]])
    logits = network.tree(nodes, root + offset, parents).logits
    assert network.cache.end % aligned == 0
    for row in range(2):
        for node, path in enumerate(paths):
            text = torch.cat([tokens[row, : root[row, 0]], nodes[row, path]])
            truth = compute_logits(model, row, text)[-1]
            torch.testing.assert_close(logits[row, node], truth, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_final_nodes_are_seen_by_later_branches(model):
    """The second branch sees the first one's final node, in place of the token stored there, and not its draft."""
    tokens = draw_tokens()
    network, fresh = make_network(model), make_network(model)
    feed = torch.cat([torch.tensor([[PROMPTS[0][-1]], [PROMPTS[1][-1]]]), tokens], 1)
    for n, fourth in ((network, 7), (fresh, tokens[0, 4])):
        for first, stop in ((-1, 4), (6, 8)):
            n.logits(feed[:, first + 1 : stop + 1], torch.arange(first, stop).expand(2, -1))
        n.logits(torch.full((2, 1), int(fourth)), torch.full((2, 1), 4))
    nodes = tokens[:, [4, 5, 8, 9]]
    nodes[:, 0] = tokens[0, 4]
    logits = network.tree(nodes, torch.tensor([[4, 5, 8, 9]] * 2), torch.tensor([[FINAL, 0, FINAL, 2]] * 2)).logits
    truth = fresh.logits(nodes[:, 2:], torch.tensor([[8, 9]] * 2))
    torch.testing.assert_close(logits[:, 2:], truth, atol=1e-4, rtol=1e-4)
    for row in range(2):
        text = torch.cat([tokens[row, :4], nodes[row, :2]])
        torch.testing.assert_close(logits[row, 1], compute_logits(model, row, text)[-1], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_nodes_that_are_kept_are_what_later_passes_see(model):
    tokens = draw_tokens()
    network = make_network(model)
    feed = torch.cat([torch.tensor([[PROMPTS[0][-1]], [PROMPTS[1][-1]]]), tokens], 1)
    network.logits(feed[:, :7], torch.arange(-1, 6).expand(2, -1))
    nodes = torch.randint(3, 40, (2, 4), generator=torch.Generator().manual_seed(3))
    tree = network.tree(nodes, torch.tensor([[6, 7, 7, 8]] * 2), torch.tensor([[-1, 0, 0, 2]] * 2))
    network.keep(tree, torch.tensor([[0, 2, 3], [0, 1, -1]]))
    positions = torch.tensor([[9, 10], [8, 9]])
    logits = network.logits(torch.tensor([[13, 14], [15, 16]]), positions)
    rows = [[*nodes[0, [0, 2, 3]], 13, 14], [*nodes[1, [0, 1]], 15, 16]]
    for row in range(2):
        truth = compute_logits(model, row, torch.cat([tokens[row, :6], torch.tensor(rows[row])]))[-2:]
        torch.testing.assert_close(logits[row], truth, atol=1e-4, rtol=1e-4)
