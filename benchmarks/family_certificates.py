"""Every discrete decoder on the published families' own networks: the table of docs/explanation/lossless.md.

python benchmarks/family_certificates.py [VARIANT ...] [--families llamagen emu3] [--n 2048] [--threads 2]

A family's images have 2 x 2 codes of four, so its network's distribution is listed and the exact layer counts. The last
column says whether the verdict is the same on all families; the exit code is 1 if one of them differs.
"""

import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import families
import torch
from common import make_spec, parse_flags
from parity_certify.verdict import judge_decoders

from parity.base.errors import ParityError
from parity.equality.exact import exact
from parity.experiment import options

MARGIN = 0.1
# Largest values of options besides the exact layer's: no more candidates than top-k keeps, nor nearest tokens than
# codes.
MAXIMA = {"top_k": families.SAMPLING.top_k, "k": families.CODES - 1, "group": families.CODES}
VARIANTS = [
    *options.methods("discrete"), "sjd: {init: sample_above}", "sjd: {tolerance: 0.2}",
    "sjd_coupled: {coupling: maximal}", "gsd: {distance: 3.0}", "spec: {verify: block}", "lantern_pp: {relax: 0.0}",
]  # fmt: skip


def certify_variant(variant: str, target: families.Target, n: int, threads: int) -> tuple[list[dict[str, Any]], str]:
    """Draw n images of a family's network by a variant and test them in the exact layer, its options capped to the
    size of the images; return its result rows, and what the variant claims, "lossless" or "lossy"."""
    spec = make_spec("discrete", variant, 0)
    decoder = getattr(importlib.import_module(f"parity_decoders.discrete.{spec['method']}"), spec["method"])
    claim = options.claim("discrete", spec["method"], spec["options"])
    capped = {
        k: min(v, MAXIMA.get(k, v)) for k, v in options.cap_small("discrete", spec["method"], spec["options"]).items()
    }
    settings: dict[str, Any] = {"method": variant, "claim": claim, "n": n, "draws": families.DRAWS}
    return exact(decoder, [target], capped, threads=threads, **settings), claim


def format_verdict(verdict: dict[str, Any]) -> str:
    """Write a cell of the table: the verdict, the bound on total variation if certified, the p-value if any."""
    p = verdict.get("p_decoders", {}).get("exact")
    if verdict.get("verdict_kind") == "certified":
        return f"certified, TV ≤ {verdict['tv_bound']:.3f}, p = {p:.2g}"
    return f"{verdict['verdict']}, p = {p:.2g}" if p is not None else verdict["verdict"]


def main() -> int:
    """Certify every variant on every family and print the table; return 1 if verdicts of a variant differ, else 0."""
    a = parse_flags(__doc__, VARIANTS, families=list(families.STAND_INS), n=2048)
    torch.set_num_threads(1)  # the exact layer decodes chunks in --threads threads instead
    verdicts: dict[str, dict[str, dict[str, Any]]] = {}
    errors: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in families.make_targets(Path(folder), a.families):
            rows, claims = [], {}
            for variant in a.variants:
                start = time.process_time()
                try:
                    variant_rows, claims[variant] = certify_variant(variant, target, a.n, a.threads)
                    rows += variant_rows
                except ParityError as error:  # raised for an image that breaks the grammar or has probability zero
                    errors[target.name, variant] = str(error)
                print(f"{target.name}: {variant}: {time.process_time() - start:.0f} s", file=sys.stderr, flush=True)
            verdicts[target.name] = {v["method"]: v for v in judge_decoders(rows, claims, MARGIN)}
            for v in verdicts[target.name].values():
                print(f"{target.name}: {v['method']}: {format_verdict(v)}", file=sys.stderr, flush=True)
    print(f"| method | {' | '.join(verdicts)} | the same |\n|---|{'---|' * len(verdicts)}---|")
    differ = 0
    for variant in a.variants:
        row = [judged.get(variant, {"verdict": errors.get((name, variant))}) for name, judged in verdicts.items()]
        is_same = len({v.get("verdict_kind", v["verdict"]) for v in row}) == 1
        differ += not is_same
        print(f"| `{variant}` | {' | '.join(map(format_verdict, row))} | {'yes' if is_same else 'no'} |")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
