"""Correct decoders on random models: how often the tests reject what draws from the model's own law.

python benchmarks/correct.py --families 400 --keep correct.jsonl [--first 0] [--n 10000] [--without coupled]

A family is one lossless method of a configuration, in turn, at its own options, and the tests of the exact and of the
long layer on models drawn for it alone (the long ones of vectors are always the same). What is rejected is drawn once
more under another seed, as in an experiment. Families that `--keep` holds already are not run again.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from common import asked
from parity_certify import result_rows as R
from parity_certify.import_by_name import import_named_module
from parity_certify.verdict import compute_layer_p, judge_decoders
from scipy import stats

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.equality.targets import anysubset, continuous, discrete
from parity.experiment import cells, checks, prompt_files
from parity.experiment.cells import Variant
from parity.experiment.options import measure_reach
from parity.models.anysubset.tabular import TabularAnySubset
from parity.models.continuous.tabular import random_mixture

EACH = 2  # enumerable models of a family, and as many long ones
DRAWS = 499  # of the exact layer's null


def methods(file: str) -> list[tuple[Variant, Variant]]:
    """Every lossless method of a configuration: as it runs on enumerable models, and on long ones."""
    config, found = checks.load(yaml.safe_load(Path(file).read_text())), {}
    every = prompt_files.read_prompts(config.image.prompts) if config.image else []
    for cell in cells.cells(config, every):
        pair = cells.variant(config, cell), cells.long_variant(config, cell)
        if cell.claim == "lossless" and None not in pair:
            found.setdefault(f"{cell.kind} {cell.spec['method']} {cell.spec['options']}", pair)
    return list(found.values())


def enumerable(kind: str, which: str, family: int) -> list[Any]:
    """Models whose every outcome is listed, drawn for a family."""
    if kind == "discrete":
        return discrete.targets("full", seed=family)
    if kind == "anysubset":
        made = []
        for name, (table, vocab, length, prompt) in anysubset.MAKES.items():
            drawn = table(vocab, length, torch.Generator().manual_seed(family))
            made.append(anysubset.Target(name, TabularAnySubset(drawn), prompt))
        return made
    rng, steps = np.random.default_rng(family), 4 if which == "walks" else 1
    shapes = ((1, 4), (2, 2), (1, 4))
    return [
        continuous.Target(f"mixture {i}", *(random_mixture(rng, 3, 3, D) for _ in range(2)), bins, steps)
        for i, (D, bins) in enumerate(shapes)
    ]


def some(rng: np.random.Generator, every: Sequence[Any]) -> list[Any]:
    return [every[i] for i in sorted(rng.permutation(len(every))[:EACH])]


def run(family: int, pair: tuple[Variant, Variant], n: int, tokens: int) -> dict[str, Any]:
    """p-values of a family's tests, and its verdict."""
    (small, own), begin = pair, time.process_time()
    module, rng = import_named_module(f"parity_decoders.{small.kind}.{small.method}"), np.random.default_rng(family)
    which, decoder = getattr(module, "TARGETS", ""), getattr(module, small.method)
    harness = import_named_module(f"parity.equality.targets.{small.kind}")
    seeds = [10_000 + 2 * family, 10_001 + 2 * family]
    said: dict[str, Any] = {"method": small.method, "claim": "lossless", "seeds": seeds}
    rows = exact(
        decoder, some(rng, enumerable(small.kind, which, family + 1)), small.options, n=n, draws=DRAWS,
        family=harness.FAMILY, **said,
    )  # fmt: skip
    far = measure_reach(own.kind, own.method, own.options)
    long = harness.long_targets(far, tokens, seed=family + 1, which=which)
    rows += exact(decoder, some(rng, long), own.options, family="all", layer="long", n=tokens, draws=0, **said)
    found: dict[str, Any] = {"family": family, "kind": small.kind, "method": small.method, "n": n, "tokens": tokens}
    for layer in ("exact", "long"):
        first = [r for r in rows if r["layer"] == layer and r["repeat"] == 0 and r["decides"]]
        ps = {f"{r['model']}: {r['test']}": r["p_value"] for r in first if r["p_value"] is not None}
        found[layer] = {"corrected": compute_layer_p(first), "single": ps}
    [judged] = judge_decoders(rows, {small.method: "lossless"}, margin=1.0)
    of = {name: judged[name] for name in ("verdict_kind", "verdict")}
    return found | of | {"seconds": round(time.process_time() - begin, 2)}


def share(hits: int, of: int) -> str:
    low, high = stats.binomtest(hits, of).proportion_ci(method="exact")
    return f"{hits} of {of} ({hits / of:.3f}; 95 % interval {low:.3f} to {high:.3f})"


def summary(kept: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Counts of rejections at ALPHA, with exact binomial intervals."""
    for layer in ("exact", "long"):
        ps = [one[layer]["corrected"] for one in kept]
        single = [p for one in kept for p in one[layer]["single"].values()]
        yield f"{layer}: families rejected after Holm's correction {share(sum(p <= R.ALPHA for p in ps), len(ps))}"
        yield f"{layer}: single tests before correction {share(sum(p <= R.ALPHA for p in single), len(single))}"
    of_test = defaultdict(list)
    for one in kept:
        for name, p in one["long"]["single"].items():
            of_test[name.rpartition(": ")[2]].append(p)
    for test, ps in of_test.items():
        yield f"long, {test}: {share(sum(p <= R.ALPHA for p in ps), len(ps))}, {sum(p <= 0.001 for p in ps)} at .001"
    for kind in dict.fromkeys(one["kind"] for one in kept):
        own = [one for one in kept if one["kind"] == kind]
        first = [min(one[layer]["corrected"] for layer in ("exact", "long")) <= R.ALPHA for one in own]
        yield f"{kind}: families that a layer rejects once {share(sum(first), len(own))}"
    lossy = [one for one in kept if one["verdict_kind"] in ("lossy", "error")]
    yield f"verdict lossy, on both seeds {share(len(lossy), len(kept))}"
    yield from (f"  {one['family']} {one['kind']} {one['method']}: {one['verdict']}" for one in lossy)


def main() -> None:
    a = asked(
        __doc__, families=400, first=0, n=10_000, tokens=6400, config="config.yaml", keep="correct.jsonl", without=[""]
    )
    file, every = Path(a.keep), [m for m in methods(a.config) if m[0].method not in a.without]
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    begin = time.perf_counter()
    for family in range(a.first, a.first + a.families):
        if any(one["family"] == family for one in kept):
            continue
        pair = every[family % len(every)]
        try:
            kept.append(run(family, pair, a.n, a.tokens))
        except ParityError as error:  # a token of probability zero
            failed = {"corrected": R.SMALLEST, "single": {}}
            about = {"family": family, "kind": pair[0].kind, "method": pair[0].method}
            failed_so = {"verdict_kind": "error", "verdict": str(error)}
            kept.append(about | {"exact": failed, "long": failed, **failed_so})
        with file.open("a") as stream:
            stream.write(json.dumps(kept[-1]) + "\n")
    print("\n".join(summary(kept)))
    print(f"{len(kept)} families of {len(every)} decoders, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
