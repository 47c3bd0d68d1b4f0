"""Measure how often the tests reject correct decoders, on random models.

python benchmarks/correct.py --families 400 --keep correct.jsonl [--first 0] [--n 10000] [--without coupled]

A family is one lossless method of a configuration, in turn, with the tests of the exact and of the long layer on models
drawn for it alone (long models of vectors are always the same). A rejected method is tested once more under another
seed, as in an experiment. Families that are in the file of `--keep` are not run again.
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
from common import parse_flags
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

MODELS_PER_FAMILY = 2  # a family is tested on this many enumerable models, and on as many long ones
DRAWS = 499  # simulations of the null distribution in the exact layer


def list_lossless_pairs(file: str) -> list[tuple[Variant, Variant]]:
    """List the methods of a configuration file that claim to be lossless, without repeats: each as it runs on
    enumerable models, and as it runs on long ones. A method that lacks one of the two is left out."""
    config = checks.make_config(yaml.safe_load(Path(file).read_text()))
    prompts = prompt_files.read_prompts(config.image.prompts) if config.image else []
    pairs = {}
    for cell in cells.cells(config, prompts):
        pair = cells.variant(config, cell), cells.long_variant(config, cell)
        if cell.claim == "lossless" and None not in pair:
            pairs.setdefault(f"{cell.kind} {cell.spec['method']} {cell.spec['options']}", pair)
    return list(pairs.values())


def make_enumerable_models(kind: str, which: str, family: int) -> list[Any]:
    """Make all models of a kind whose outcomes can be listed, with random distributions seeded by the family's number.
    `which` is "walks" where a vector is a walk of four steps; it is used for vectors only."""
    if kind == "discrete":
        return discrete.targets("full", seed=family)
    if kind == "anysubset":
        models = []
        for name, (make_table, vocab, length, prompt) in anysubset.MAKES.items():
            table = make_table(vocab, length, torch.Generator().manual_seed(family))
            models.append(anysubset.Target(name, TabularAnySubset(table), prompt))
        return models
    rng = np.random.default_rng(family)
    steps = 4 if which == "walks" else 1
    shapes = ((1, 4), (2, 2), (1, 4))
    return [
        continuous.Target(f"mixture {i}", *(random_mixture(rng, 3, 3, D) for _ in range(2)), bins, steps)
        for i, (D, bins) in enumerate(shapes)
    ]


def choose_models(rng: np.random.Generator, models: Sequence[Any]) -> list[Any]:
    """Choose MODELS_PER_FAMILY of the models at random, in their order."""
    return [models[i] for i in sorted(rng.permutation(len(models))[:MODELS_PER_FAMILY])]


def run_family(family: int, pair: tuple[Variant, Variant], n: int, tokens: int) -> dict[str, Any]:
    """Run the tests of the exact and the long layer for a family, on two models each: `pair` is its method with options
    for enumerable and for long models, n sequences and `tokens` tokens are drawn of a model. Return a record for JSON:
    p-values by layer, single and after Holm's correction, the verdict and CPU-seconds."""
    small, long = pair
    start = time.process_time()
    rng = np.random.default_rng(family)
    module = import_named_module(f"parity_decoders.{small.kind}.{small.method}")
    decoder = getattr(module, small.method)
    which = getattr(module, "TARGETS", "")
    harness = import_named_module(f"parity.equality.targets.{small.kind}")
    seeds = [10_000 + 2 * family, 10_001 + 2 * family]
    shared: dict[str, Any] = {"method": small.method, "claim": "lossless", "seeds": seeds}
    models = choose_models(rng, make_enumerable_models(small.kind, which, family + 1))
    rows = exact(decoder, models, small.options, n=n, draws=DRAWS, family=harness.FAMILY, **shared)
    reach = measure_reach(long.kind, long.method, long.options)
    models = choose_models(rng, harness.long_targets(reach, tokens, seed=family + 1, which=which))
    rows += exact(decoder, models, long.options, family="all", layer="long", n=tokens, draws=0, **shared)
    record: dict[str, Any] = {"family": family, "kind": small.kind, "method": small.method, "n": n, "tokens": tokens}
    for layer in ("exact", "long"):
        first = [r for r in rows if r["layer"] == layer and r["repeat"] == 0 and r["decides"]]
        ps = {f"{r['model']}: {r['test']}": r["p_value"] for r in first if r["p_value"] is not None}
        record[layer] = {"corrected": compute_layer_p(first, R.ALPHA), "single": ps}
    [judged] = judge_decoders(rows, {small.method: "lossless"}, margin=1.0)
    record |= {name: judged[name] for name in ("verdict_kind", "verdict")}
    return record | {"seconds": round(time.process_time() - start, 2)}


def describe_share(hits: int, total: int) -> str:
    """Write a count of hits with its exact binomial interval."""
    low, high = stats.binomtest(hits, total).proportion_ci(method="exact")
    return f"{hits} of {total} ({hits / total:.3f}; 95 % interval {low:.3f} to {high:.3f})"


def describe_rejections(p_values: Sequence[float]) -> str:
    """Count the p-values of at most ALPHA, and write the count as `describe_share` does."""
    return describe_share(sum(p <= R.ALPHA for p in p_values), len(p_values))


def summarise(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield lines that count rejections at ALPHA, by layer, test and kind, and lossy verdicts, over all records."""
    for layer in ("exact", "long"):
        ps = [record[layer]["corrected"] for record in records]
        single = [p for record in records for p in record[layer]["single"].values()]
        yield f"{layer}: families rejected after Holm's correction {describe_rejections(ps)}"
        yield f"{layer}: single tests before correction {describe_rejections(single)}"
    by_test = defaultdict(list)
    for record in records:
        for name, p in record["long"]["single"].items():
            by_test[name.rpartition(": ")[2]].append(p)
    for test, ps in by_test.items():
        yield f"long, {test}: {describe_rejections(ps)}, {sum(p <= 0.001 for p in ps)} at .001"
    for kind in dict.fromkeys(record["kind"] for record in records):
        of_kind = [record for record in records if record["kind"] == kind]
        smallest = [min(record[layer]["corrected"] for layer in ("exact", "long")) for record in of_kind]
        yield f"{kind}: families that a layer rejects once {describe_rejections(smallest)}"
    lossy = [record for record in records if record["verdict_kind"] in ("lossy", "error")]
    yield f"verdict lossy, on both seeds {describe_share(len(lossy), len(records))}"
    yield from (f"  {record['family']} {record['kind']} {record['method']}: {record['verdict']}" for record in lossy)


def main() -> None:
    """Run the families that the file of --keep lacks, append a record of each to it, and print the summary of all."""
    files = {"config": "config.yaml", "keep": "correct.jsonl"}
    a = parse_flags(__doc__, families=400, first=0, n=10_000, tokens=6400, **files, without=[""])
    file = Path(a.keep)
    pairs = [pair for pair in list_lossless_pairs(a.config) if pair[0].method not in a.without]
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    start = time.perf_counter()
    for family in range(a.first, a.first + a.families):
        if any(record["family"] == family for record in records):
            continue
        pair = pairs[family % len(pairs)]
        try:
            records.append(run_family(family, pair, a.n, a.tokens))
        except ParityError as error:  # raised where a token of probability zero was drawn; it counts as a rejection
            failed = {"corrected": R.SMALLEST, "single": {}}
            record = {"family": family, "kind": pair[0].kind, "method": pair[0].method}
            record |= {"verdict_kind": "error", "verdict": str(error)}
            records.append(record | {"exact": failed, "long": failed})
        with file.open("a") as stream:
            stream.write(json.dumps(records[-1]) + "\n")
    print("\n".join(summarise(records)))
    print(f"{len(records)} families of {len(pairs)} decoders, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
