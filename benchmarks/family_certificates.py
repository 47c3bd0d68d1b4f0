"""Every discrete decoder on the published families' own networks: the table of docs/explanation/lossless.md.

python benchmarks/family_certificates.py [VARIANT ...] [--families llamagen emu3] [--n 2048] [--threads 2]

A family's pictures have 2 x 2 codes of four, so its network's law is listed and the exact layer counts. The last column
says whether the verdict is the same on all families; the exit code is 1 if one of them differs.
"""

import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import families
import torch
from common import asked, cell
from parity_certify.verdict import judge_decoders

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.experiment import options

MARGIN = 0.1
# Cut as in the exact layer, and besides: candidates are tokens that top-k leaves, look-alikes are codes.
MOST = {"top_k": families.SAMPLING.top_k, "k": families.CODES - 1, "group": families.CODES}
VARIANTS = [
    *options.methods("discrete"), "sjd: {init: sample_above}", "sjd: {tolerance: 0.2}",
    "sjd_coupled: {coupling: maximal}", "gsd: {distance: 3.0}", "spec: {verify: block}", "lantern_pp: {relax: 0.0}",
]  # fmt: skip


def rows_of(variant: str, target: families.Target, n: int, threads: int) -> tuple[list[dict[str, Any]], str]:
    """The exact layer's rows of a variant on a family's network, and the variant's claim."""
    spec = cell("discrete", variant, 0)
    decoder = getattr(importlib.import_module(f"parity_decoders.discrete.{spec['method']}"), spec["method"])
    claim = options.claim("discrete", spec["method"], spec["options"])
    small = {
        k: min(v, MOST.get(k, v)) for k, v in options.cap_small("discrete", spec["method"], spec["options"]).items()
    }
    settings: dict[str, Any] = {"method": variant, "claim": claim, "n": n, "draws": families.DRAWS}
    return exact(decoder, [target], small, threads=threads, **settings), claim


def words(verdict: dict[str, Any]) -> str:
    """A cell of the table: the verdict, its total variation, the p-value."""
    p = verdict.get("p_decoders", {}).get("exact")
    if verdict.get("verdict_kind") == "certified":
        return f"certified, TV ≤ {verdict['tv_bound']:.3f}, p = {p:.2g}"
    return f"{verdict['verdict']}, p = {p:.2g}" if p is not None else verdict["verdict"]


def main() -> int:
    a = asked(__doc__, VARIANTS, families=list(families.STAND_INS), n=2048)
    torch.set_num_threads(1)  # chunks run side by side instead
    found: dict[str, dict[str, dict[str, Any]]] = {}
    broken: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in families.targets(Path(folder), a.families):
            rows, claims = [], {}
            for variant in a.variants:
                begin = time.process_time()
                try:
                    own, claims[variant] = rows_of(variant, target, a.n, a.threads)
                    rows += own
                except ParityError as error:  # a picture that breaks the grammar, or has probability zero
                    broken[target.name, variant] = str(error)
                print(f"{target.name}: {variant}: {time.process_time() - begin:.0f} s", file=sys.stderr, flush=True)
            found[target.name] = {v["method"]: v for v in judge_decoders(rows, claims, MARGIN)}
            for v in found[target.name].values():
                print(f"{target.name}: {v['method']}: {words(v)}", file=sys.stderr, flush=True)
    print(f"| method | {' | '.join(found)} | the same |\n|---|{'---|' * len(found)}---|")
    differ = 0
    for variant in a.variants:
        of = [verdicts_of.get(variant, {"verdict": broken.get((name, variant))}) for name, verdicts_of in found.items()]
        same = len({v.get("verdict_kind", v["verdict"]) for v in of}) == 1
        differ += not same
        print(f"| `{variant}` | {' | '.join(map(words, of))} | {'yes' if same else 'no'} |")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
