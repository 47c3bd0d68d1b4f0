"""A decoder in a package of its own: what `parity new decoder NAME --outside FOLDER` writes."""

import importlib.util
from pathlib import Path

from parity.base.errors import ParityError

PROJECT = """[project]
name = "parity-{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = []  # parity, and what comes with it, is there

[project.entry-points."parity.decoders"]
{name} = "{name}:{name}"

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["{name}"]
"""
DRAFTED = '''"""{name}: speculative sampling with a draft network of its own, which reads two neighbours of a token."""

from typing import Annotated

import torch
from annotated_types import Interval
from parity_decoders.counts import Counts
from parity_decoders.passes import Passes
from parity_decoders.sequence_buffer import SequenceBuffer
from parity_decoders.verification import finish, make_probs, probability, sample_token

CLAIM = "lossless"
REFILLS = True
DRAFT = "Neighbours"
DRAFT_ROWS = 256


class Neighbours:
    """Guesses a token from the one to its left and the one above it."""

    def __init__(self, model, dim=64):
        self.vocab, self.width = model.vocab, model.width
        first = torch.nn.EmbeddingBag(2 * self.vocab, dim, mode="sum")
        self.net = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(dim, self.vocab))
        self.net.to(model.forced.device)

    def propose(self, left, above):
        """Compute logits [n, V] from the tokens [n] to the left and above."""
        return self.net(torch.stack([left, above + self.vocab], 1))

    @classmethod
    def load(cls, model, file):
        """Make the network for a model of these sizes: with the weights of a file, or new ones for None."""
        draft = cls(model)
        if file:
            draft.net.load_state_dict(torch.load(file, weights_only=True))
        return draft

    @classmethod
    def train(cls, drawn, file):
        """Learn from rows that the target drew, drawn.tokens [n, L], and write the file."""
        draft = cls(drawn.make_model([0]))
        tokens = torch.nn.functional.pad(drawn.tokens, (draft.width, 0))  # nothing is above the first row
        left, above = tokens[:, draft.width - 1 : -1].flatten(), tokens[:, : -draft.width].flatten()
        optimizer = torch.optim.AdamW(draft.net.parameters(), lr=0.01)
        for _ in range(200):
            at = torch.randint(len(left), (2048,), device=left.device)
            loss = torch.nn.functional.cross_entropy(draft.propose(left[at], above[at]), drawn.tokens.flatten()[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save(draft.net.state_dict(), file)


@torch.inference_mode()
def {name}(
    model,
    start,
    *,
    noise,
    draft,
    gamma: Annotated[int, Interval(ge=1, le=64), Counts("positions", small=3)] = 4,
):
    """Draft a few tokens one by one, verify them in one pass, and add one token of the target.

    gamma  tokens drafted in a pass
    """
    L, V, W = model.length, model.vocab, gamma + 1
    line = SequenceBuffer(model, start, W)
    slot, vocabulary = torch.arange(W, device=start.device), torch.arange(V, device=start.device)

    def run_pass():
        positions = line.next_positions(W)  # [B, W], the first open ones
        index = line.age * W + slot  # [B, W], numbers of no other pass
        exponentials = noise.exponential("draft", index[:, :-1], V)
        above = line.tokens.gather(1, (positions + 1 - model.width).clamp(min=0))
        forced = model.forced[positions.clamp(max=L - 1)]  # -1 where the model chooses
        tokens, draft_probs = [line.read_last_token()[:, 0]], []
        for k in range(gamma):
            q = make_probs(draft.propose(tokens[-1], above[:, k])).to(noise.dtype)
            is_forced = forced[:, k, None] >= 0
            draft_probs.append(torch.where(is_forced, (forced[:, k, None] == vocabulary).to(q.dtype), q))
            tokens.append(sample_token(draft_probs[-1], exponentials[:, k]))
        p = make_probs(model.logits(torch.stack(tokens, 1), (positions - 1).clamp(max=L - 1)))  # [B, W, V]
        drafts = torch.stack([*tokens[1:], tokens[0]], 1)  # the last slot has none, so any token fills it
        q = torch.stack([*draft_probs, p[:, -1]], 1)
        bonus = (slot == gamma).expand_as(positions)
        accepted = (noise.uniform("accept", index) * probability(q, drafts) < probability(p, drafts)) & ~bonus
        e = noise.exponential("sample", index, V)
        return line.advance(*finish(p, q, drafts, bonus, accepted, sample_token(p, e), e))

    return Passes(line, run_pass)
'''
TEST = '''"""{name} draws from the distribution of models whose distribution is known; a fault put into it is found."""

import sys
from pathlib import Path

from parity.equality.exact import exact
from parity.equality.targets.{kind} import targets
from parity.experiment.decoders import import_decoder
from {source} import {wrong}

DECODER = import_decoder("{kind}", f"{{Path(__file__).with_name('{name}.py')}}:{name}")


def is_rejected():
    rows = exact(DECODER, targets("small")[:2], n=10_000, draws=199, claim="lossy")
    return any(row["decides"] and row["verdict"] == "rejected" and row["repeat"] for row in rows)


def test_{name}_draws_from_the_distribution():
    assert not is_rejected()


def test_a_fault_is_found(monkeypatch):
    def faulty({arguments}):
        return {call}

    monkeypatch.setattr(sys.modules[DECODER.__module__], "{wrong}", faulty)
    assert is_rejected()
'''
CERTIFYING = '''"""{name} is certified on models whose distribution is known; a fault put into it is found."""

import sys
from pathlib import Path

from parity.certify import certify
from parity.experiment.decoders import import_decoder
from {source} import {wrong}

DECODER = import_decoder("{kind}", f"{{Path(__file__).with_name('{name}.py')}}:{name}")


def judge():
    return certify(DECODER, n=3000, models="small", margin=0.1).verdict.kind


def test_{name}_is_certified():
    assert judge() == "certified"


def test_a_fault_is_found(monkeypatch):
    def faulty({arguments}):
        return {call}

    monkeypatch.setattr(sys.modules[DECODER.__module__], "{wrong}", faulty)
    assert judge() == "lossy"
'''


def check_free(name: str, folder: Path) -> None:
    """Raise ParityError for a name that another module has, or a folder that has a decoder of this name."""
    if importlib.util.find_spec(name) is not None:
        raise ParityError(f"NAME = {name!r}: a module of this name is installed; allowed: another name")
    for file in (folder / f"{name}.py", folder / "pyproject.toml"):
        if file.exists():
            raise ParityError(f"--outside {folder}: {file.name} is there already; allowed: another folder")


def make_files(name: str, kind: str, folder: Path, source: str, faults: dict[str, str]) -> dict[Path, str]:
    """Make the files of the package of a decoder by their paths. source: of its module; faults: what its test puts in
    the place of a name that the module imports; {} writes no test."""
    if kind != "discrete":
        source = source.replace("\nCLAIM = ", f'\nKIND = "{kind}"\nCLAIM = ', 1)
    source = source.replace("import torch\n\nfrom parity", "import torch\nfrom parity", 1)  # both are others' there
    files = {folder / "pyproject.toml": PROJECT.format(name=name), folder / f"{name}.py": source}
    if faults:
        test = CERTIFYING if kind == "discrete" else TEST
        files[folder / f"test_{name}.py"] = test.format(name=name, kind=kind, **faults)
    return files
