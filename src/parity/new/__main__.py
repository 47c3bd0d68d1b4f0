"""Begin a decoder or a metric: one file, and its test.

    parity new decoder NAME [--kind discrete] [--like sjd] [--rule]
    parity new decoder NAME [--kind discrete] [--like sjd | --draft] --outside FOLDER
    parity new metric NAME [--kind discrete]

A decoder begins as plain decoding in a few lines, or as a copy of another of its kind; --rule gives it a Snakemake rule
too, for threads, memory and an environment of its own. --outside writes it as a package that can be installed anywhere,
with --draft as one with a draft network of its own. A metric counts the distinct tokens of an image or text. Both
work as they stand.
"""

import argparse
import ast
import keyword
import re
from pathlib import Path

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.base.files import publish
from parity.experiment.module_metadata import PACKAGE, find_folder, modules
from parity.experiment.options import KINDS, methods
from parity.new import outside

ROOT = PACKAGE.parents[1]
HEAD = '"""{name}: say here what it does, and the paper and section it is from."""\n'
DISCRETE = """
from parity_decoders.steps import Step
from parity_decoders.verification import sample_token

CLAIM = "lossless"


def {name}(model, start, *, noise):
    L, V = model.length, model.vocab
    tokens = start  # [B], the last token of the prompt
    for i in range(L):
        at = start.new_full(start.shape, i)  # [B], the position to fill
        p = model.logits(tokens[:, None], at[:, None] - 1).softmax(-1)  # [B, 1, V]
        drawn = sample_token(p, noise.exponential("sample", at[:, None], V))  # [B, 1]
        yield Step(drawn, start.new_ones(start.shape), at)
        tokens = drawn[:, 0]
"""
ANYSUBSET = """
from parity_decoders.protocols.anysubset import next_ranks, write
from parity_decoders.steps import Fill
from parity_decoders.verification import sample_token

CLAIM = "lossless"


def {name}(model, start, *, noise):
    tokens, n, N = start.tokens, start.begin, start.tokens.shape[1]  # [B, N], and the rank [B] to fill
    while (n < start.end).any():
        slots = next_ranks(start, n, 1)  # [B, 1] of everything
        p = model.probs(tokens, start.order, start.begin, slots.asked, slots.rank)  # [B, 1, V]
        drawn = sample_token(p, noise.exponential("sample", slots.rank * N + slots.rank, model.vocab))  # [B, 1]
        yield Fill(slots.position, drawn, slots.open, slots.open[:, 0].long())
        tokens, n = write(tokens, slots.position, drawn, slots.open), n + slots.open[:, 0]
"""
CONTINUOUS = """
import torch

from parity_decoders.continuous.mar import write
from parity_decoders.protocols.continuous import make_path_noise
from parity_decoders.steps import Draw

CLAIM = "lossless"


@torch.inference_mode()
def {name}(models, start, *, noise):
    target, (B, L) = models.target, start.order.shape
    tokens = torch.zeros(B, L, target.dim, dtype=noise.dtype, device=start.order.device)  # by position in the image
    for i in range(L):
        at = start.order.new_full((B, 1), i)  # the place to fill, in the order of drawing
        path = make_path_noise(noise, "sample", at, target.steps, target.dim)
        distribution = target.distribution(target.conditions(tokens, start.order, at, at), path)
        drawn = distribution.sample(path)[:, None]  # [B, 1, D]
        yield Draw(drawn, start.order.new_ones(B))
        tokens = write(tokens, start.order.gather(1, at), drawn)
"""
DECODERS = {"discrete": DISCRETE, "anysubset": ANYSUBSET, "continuous": CONTINUOUS}
# The test of a new decoder plants a fault: it replaces a name that the decoder's module imports.
SAMPLE = ("sample_token", "parity_decoders.verification", "sample_token(weights.sqrt(), noise)", "weights, noise")
PATH = (
    "make_path_noise",
    "parity_decoders.protocols.continuous",
    "lambda *asked: 1.5 * make_path_noise(*given)(*asked)",
    "*given",
)
WRONG = {"discrete": SAMPLE, "anysubset": SAMPLE, "continuous": PATH}
DECODER_TEST = '''"""{name} draws from its model's distribution; an injected fault is found."""

{imports}


def rejected(module):
    rows = exact(module.{name}, targets("small")[:2], n=10_000, draws=199, claim="lossy")
    return any(row["decides"] and row["verdict"] == "rejected" and row["repeat"] for row in rows)


def test_{name}_draws_from_the_distribution():
    assert not rejected({name})


def test_the_test_can_fail():
    def faulty({arguments}):
        return {call}

    assert rejected(patch_module({name}.__name__, {wrong}=faulty))
'''
RULE = """use rule decode as decode_{name} with:
    wildcard_constraints:
        **PATTERNS | {{"kind": "{kind}", "method": "{name}"}},
    conda:
        "../../envs/parity.yaml"
    threads: 2
    resources:
        gpu=gpu,
        mem_mb=memory,
        runtime=runtime,


ruleorder: decode_{name} > decode
"""
METRIC = '''"""{name}: what it measures in a sentence, and the paper and section it is from."""

from typing import Any

import numpy as np

from parity.metrics.estimates import Estimate, means

KINDS = ("{kind}",)
# its figures: label, unit, which way is better
MEASURES = {{"{name}": ("distinct tokens", "", "none")}}


def measure(sample: Any) -> dict[str, Estimate]:
    """Compute the mean over the {item}s of a cell, with its error. `sample.shard.tokens` holds theirs, [n, tokens]."""
    distinct = [len(np.unique(tokens, axis=0)) for tokens in sample.shard.tokens]
    return means({name}=np.array(distinct))
'''
METRIC_TEST = '''"""{name}: a value that is known, and one that differs."""

from types import SimpleNamespace

import numpy as np

from parity.metrics import {name}


def value(tokens):
    sample = SimpleNamespace(shard=SimpleNamespace(tokens=np.array(tokens)))
    return {name}.measure(sample)["{name}"].value


def test_{name}_of_tokens_that_are_known():
    assert value([[1, 1, 1], [1, 2, 3]]) == 2
    assert value([[1, 1, 1], [1, 1, 1]]) == 1
'''


def write_decoder_test(name: str, kind: str) -> str:
    """Make the source of the test of a new decoder that is plain decoding, with a fault injected in it."""
    wrong, source, call, arguments = WRONG[kind]
    of_decoders = sorted([f"from parity_decoders.{kind} import {name}", f"from {source} import {wrong}"])
    of_tests = (
        "from parity.equality.exact import exact",
        f"from parity.equality.targets.{kind} import targets",
        "from tests.equality.faults import patch_module",
    )
    imports = "\n".join([*of_decoders, "", *of_tests])
    given = {"wrong": wrong, "call": call, "arguments": arguments, "imports": imports}
    return DECODER_TEST.format(name=name, **given)


def copy_decoder(name: str, kind: str, like: str) -> str:
    """Make the source of a copy of the decoder `like`, renamed, without PLAIN, as a kind has one plain decoding."""
    text = (find_folder(f"decoders/{kind}") / f"{like}.py").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PLAIN":
            del lines[node.lineno - 1 : node.end_lineno]
    head = f'"""{name}, begun as a copy of `{like}`: say here what differs, and the paper and section it is from.\n\n'
    text = "".join(lines).replace('"""', head, 1)
    return re.sub(rf"^def {like}\(", f"def {name}(", text, count=1, flags=re.MULTILINE)


def check_name(name: str) -> None:
    """Raise ParityError for a name that no module can have."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ParityError(f"NAME = {name!r}: allowed: a Python name of lower-case letters, digits and _")


def check_place(name: str, package: str) -> None:
    """Raise ParityError for a name that no module can have or that `package` has, or where there is no clone."""
    check_name(name)
    if name in modules(package) or (find_folder(package) / name).exists():
        folder = find_folder(package).relative_to(ROOT)
        raise ParityError(f"NAME = {name!r}: {folder} has it already; allowed: another name")
    if not (ROOT / "Snakefile").is_file():
        raise ParityError(f"{PACKAGE}: not in a clone of the project; allowed: run it by a clone's `uv run parity new`")


def write(files: dict[Path, str]) -> None:
    """Write new files by their paths, with their folders, and print their names."""
    for path, text in files.items():
        publish(path, text.encode())
        print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def write_decoder(name: str, kind: str, like: str, rule: bool = False) -> None:
    """Write a decoder, its test unless it copies `like`, and a rule if wanted. Raises ParityError for a wrong name."""
    package = f"decoders/{kind}"
    if like and like not in methods(kind):
        raise ParityError(f"--like {like}: no decoder of kind {kind}; allowed: {', '.join(methods(kind))}")
    check_place(name, package)
    file = find_folder(package) / f"{name}.py"
    rules = ROOT / f"workflow/methods/{name}.smk"
    if rule and rules.exists():
        raise ParityError(f"--rule: {rules.relative_to(ROOT)} exists already; allowed: another NAME")
    if like:
        files = {file: copy_decoder(name, kind, like)}
    else:
        test = ROOT / f"tests/decoders/test_{name}.py"
        files = {file: (HEAD + DECODERS[kind]).format(name=name), test: write_decoder_test(name, kind)}
    if rule:
        files[rules] = RULE.format(name=name, kind=kind)
    write(files)
    print(
        f"beside other methods: snakemake --cores all --configfile workflow/experiments/ci.yaml --config"
        f" '{KINDS[kind]}={{methods: {{{name}: [{{}}]}}}}'\nits test: pytest tests/contracts tests/decoders -k {name}"
    )


def write_package(name: str, kind: str, like: str, draft: bool, folder: Path) -> None:
    """Write a package with a decoder and, unless it copies `like`, its test. Raises ParityError for a wrong name, and a
    folder that has a package."""
    check_name(name)
    if like and like not in methods(kind):
        raise ParityError(f"--like {like}: no decoder of kind {kind}; allowed: {', '.join(methods(kind))}")
    if draft and (like or kind != "discrete"):
        raise ParityError("--draft: allowed: of a decoder of kind discrete, without --like")
    outside.check_free(name, folder)
    text = HEAD + DECODERS[kind]
    source = copy_decoder(name, kind, like) if like else (outside.DRAFTED if draft else text).format(name=name)
    wrong, module, call, arguments = WRONG[kind]
    faults = {} if like else {"wrong": wrong, "source": module, "call": call, "arguments": arguments}
    write(outside.make_files(name, kind, folder, source, faults))
    print(
        f"installed: pip install --no-deps {folder}\nor without: FILE.py:{name} is its name, as"
        f" {folder / name}.py:{name}\nits test: pytest {folder}"
    )


def write_metric(name: str, kind: str) -> None:
    """Write a metric's file and its test. Raises ParityError for a wrong name."""
    check_place(name, "metrics")
    source, test = PACKAGE / f"metrics/{name}.py", ROOT / f"tests/metrics/test_{name}.py"
    item = "text" if kind == "anysubset" else "image"
    write({source: METRIC.format(name=name, kind=kind, item=item), test: METRIC_TEST.format(name=name)})
    print(f"its figures: a column of summary.csv in the next run\nits test: pytest tests/metrics/test_{name}.py")


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="parity new", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("decoder", "metric"))
    parser.add_argument("name")
    parser.add_argument("--kind", choices=list(KINDS), default="discrete", help="of model")
    parser.add_argument("--like", default="", help="a decoder to copy; a few lines of plain decoding if none is named")
    parser.add_argument("--rule", action="store_true", help="of a decoder: a Snakemake rule of its own, too")
    parser.add_argument("--outside", type=Path, metavar="FOLDER", help="of a decoder: a package of its own")
    parser.add_argument("--draft", action="store_true", help="with --outside: with a draft network of its own")
    a = parser.parse_args()
    if a.outside and (a.rule or a.what != "decoder"):
        raise ParityError("--outside: allowed: with decoder, without --rule")
    if a.draft and not a.outside:
        raise ParityError("--draft: allowed: with --outside")
    if a.rule and a.what != "decoder":
        raise ParityError(f"--rule: a {a.what} has no rule; allowed: with decoder")
    if a.outside:
        write_package(a.name, a.kind, a.like, a.draft, a.outside)
    elif a.what == "decoder":
        write_decoder(a.name, a.kind, a.like, a.rule)
    else:
        write_metric(a.name, a.kind)


if __name__ == "__main__":
    run_command(main)
