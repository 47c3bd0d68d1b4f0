"""Certify transformers' ways of speculating: the rows of docs/results/engines.md, a sampler each.

    python benchmarks/certify_engines.py --n 600 [NAME ...]        about 15 minutes on one core; --list names them

Prints the bound on the TV, the accepted drafts, and how many sequences a bound below .05 takes. A row that is rejected
says so and makes the exit code 1.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from parity_certify import certify_sampler, models
from parity_certify.adapters import transformers as T

from parity.base.errors import ParityError

PROMPTS = [[0, 1, 2], [3, 2, 1]]
FOUR = {"num_assistant_tokens": 4}
ROWS: dict[str, tuple[str, dict[str, Any], int | None]] = {  # name: kind of model, options of generate, end token
    "assistant": ("llama", FOUR, None),
    "assistant, warped": ("llama", FOUR | {"temperature": 0.8, "top_k": 3, "top_p": 0.95}, None),
    "assistant, min-p": ("llama", FOUR | {"min_p": 0.2}, None),
    "assistant, end token": ("llama", FOUR, 3),
    "assistant, heuristic schedule": ("llama", FOUR | {"num_assistant_tokens_schedule": "heuristic"}, None),
    "assistant, confidence threshold": ("llama", FOUR | {"assistant_confidence_threshold": 0.4}, None),
    "look-up": ("llama", {"prompt_lookup_num_tokens": 3}, None),
    "early exit": ("llama", {"assistant_early_exit": 1}, None),
    "MTP head": ("mellum", {"use_mtp": True}, None),
    "continuous batching": ("llama", {"cache_implementation": "paged"}, None),
    "continuous batching, warped": ("llama", {"cache_implementation": "paged", "temperature": 0.8, "top_k": 3}, None),
    "static cache": ("llama", {"cache_implementation": "static"}, None),
    "static cache, assistant": ("llama", FOUR | {"cache_implementation": "static"}, None),
    **{f"{kind}, assistant": (kind, FOUR, None) for kind in ("gpt2", "qwen3", "mistral", "gemma3", "t5", "lfm2")},
}


def make_sampler(folder: Path, kind: str, options: dict[str, Any], end: int | None, length: int) -> tuple[Any, Any]:
    """Make a transformers sampler of a tiny random model, and compute the distribution of its sequences of `length`
    tokens; return both. An option `num_assistant_tokens` adds an assistant; kind "mellum" is written to `folder`."""
    model = T.load_model(models.write_mellum(folder)[0]) if kind == "mellum" else models.make_model(kind, 4, 0)
    options = dict(options)
    if "num_assistant_tokens" in options:
        options["assistant_model"] = models.make_speculator(model, 0.3)
    make = T.Continuous if options.get("cache_implementation") == "paged" else T.Generate
    return make(model, length, options, end), T.compute_distribution(model, PROMPTS, length, options, end=end)


def main() -> None:
    """Certify the named rows, or all, and print a table row for each; exit with 1 if one is rejected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--length", type=int, default=3)
    parser.add_argument("--list", action="store_true")
    a = parser.parse_args()
    if a.list:
        print(*ROWS, sep="\n")
        return
    unknown = [name for name in a.names if name not in ROWS]
    if unknown:
        raise SystemExit(f"error: {unknown[0]!r}: allowed: {', '.join(ROWS)}")
    any_rejected = False
    folder = tempfile.TemporaryDirectory()
    for name in a.names or ROWS:
        start = time.process_time()
        try:
            sampler, distribution = make_sampler(Path(folder.name), *ROWS[name], a.length)
            certificate = certify_sampler(sampler, distribution, n=a.n, margin=0.05, tell=lambda text: None)
        except ParityError as error:
            print(f"| {name} | {error} |", flush=True)
            continue
        verdict = certificate.verdict
        details = certificate.details
        is_rejected = certificate.exit_code == 1
        any_rejected |= is_rejected
        outcome = str(certificate) if is_rejected else f"{verdict.words}, TV <= {verdict.bound:.3f}"
        drafts = "" if details["drafted"] is None else f"{details['accepted']} of {details['drafted']}"
        seconds = time.process_time() - start
        print(f"| {name} | {outcome} | {drafts} | {details['needed']:,} | {seconds:.0f} s |", flush=True)
    sys.exit(int(any_rejected))


if __name__ == "__main__":
    main()
