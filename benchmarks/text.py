"""What any-subset decoding costs on the embedded model: passes per token, and what keeping keys and values saves.

    python benchmarks/text.py passes --rows 256     decoders against sequential decoding; --batch 1: row by row;
                                                    --task stories: three of five sentences hidden;
                                                    --decoders 'assd: {k: 4}' assd_quadratic: these alone
    python benchmarks/text.py cache --rows 4        seconds per pass with keys and values kept, and without

Of 128 words 95 % are hidden, if no other task is named. One thread, float32. Writes benchmarks/text-<what>.json.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from common import Rows, make_manifest, make_spec, parse_flags

from parity.base.command import provenance
from parity.base.files import write_json
from parity.decode import loop
from parity.decode.shard_io import Shard
from parity.inputs import tasks
from parity.metrics.estimates import compare, mean_error
from parity.metrics.text_likelihood import perplexities
from parity.metrics.text_quality import entropy
from parity.models.anysubset.load import Loaded, load

DECODERS = ["assd: {k: 5}", "assd_ngram: {k: 5}", "assd_quadratic"]


def build_infilling(models: Loaded, rows: int, length: int = 128, masked: float = 0.95) -> Rows:
    """Build the rows of an infilling task: `rows` texts of `length` tokens, of which the share `masked` is hidden."""
    settings = {"rows": rows, "length": length, "masked": masked, "prompt": "scattered", "data": ""}
    return make_rows(tasks.build("infilling", settings, models.words))


def make_rows(task: tasks.Task) -> Rows:
    """Convert a task into the dict of arrays that decoders read."""
    return {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}


def decode_texts(models: Loaded, variant: str, seed: int, rows: Rows, batch: int, cache: bool = True) -> Shard:
    """Decode rows by a variant, `batch` at a time; with `cache` keys and values are kept between passes."""
    return loop.decode("anysubset", models, make_spec("anysubset", variant, seed, cache=cache), rows, batch)


def measure_passes(models: Loaded, a: Namespace) -> dict:
    """Measure passes a token, seconds a row, perplexity and entropy of each decoder of --decoders; return them by name,
    with differences from sequential decoding. "control" is sequential decoding on another seed."""
    words = models.words
    results: dict[str, dict[str, float]] = {}
    base: dict[str, np.ndarray] = {}
    if a.task == "infilling":
        task = build_infilling(models, a.rows)
    else:
        task = make_rows(tasks.build("stories", {"rows": a.rows, "missing": 3, "attempts": 1, "data": ""}, words))
    decode_texts(models, "", 0, {k: v[:1] for k, v in task.items()}, 1)  # warm
    variants = {"sequential": ("", 0), "control": ("", 1)} | {name: (name, 2) for name in a.decoders}
    for name, (variant, seed) in variants.items():
        shard = decode_texts(models, variant, seed, task, a.batch)
        tokens = torch.from_numpy(shard.tokens).long()
        end = torch.from_numpy(shard.end)
        figures = {"perplexity": perplexities(models.gpt2, tokens, end, words.mask, words.separator)}
        figures["entropy"] = np.array([entropy(t) for t in shard.tokens])
        base = base or figures
        per_token, error = mean_error(shard.nfe / shard.missing)
        results[name] = {"nfe_per_token": per_token, "nfe_per_token_se": error}
        results[name]["seconds_per_row"] = float((shard.seconds / shard.batch).sum()) / a.rows
        for key, values in figures.items():
            mean, se = mean_error(values)
            difference = {f"{key}_{k}": v for k, v in compare(values, base[key]).items()}
            results[name] |= {key: mean, f"{key}_se": se} | difference
        print(name, {k: round(v, 4) for k, v in results[name].items()}, flush=True)
    return results


def measure_cache(models: Loaded, a: Namespace) -> dict:
    """Measure seconds a pass of `assd` with keys and values cached and without, at lengths 128 and 512."""
    results = {}
    for length, masked in ((128, 0.95), (512, 0.25)):
        rows = build_infilling(models, a.rows, length, masked)
        for cached in (True, False):
            shard = decode_texts(models, "assd: {k: 5}", 2, rows, a.rows, cached)
            name = f"length {length}, {'cache' if cached else 'no cache'}"
            results[name] = float(shard.seconds[0]) / int(shard.nfe.max())
    return results


def main() -> None:
    """Run the named measurements, print what each finds and write it to benchmarks/text-NAME.json."""
    measurements = {"passes": measure_passes, "cache": measure_cache}
    a = parse_flags(__doc__, ["passes"], rows=64, batch=64, task=("infilling", "stories"), decoders=DECODERS)
    if unknown := set(a.variants) - set(measurements):
        raise SystemExit(f"{min(unknown)}: allowed: {', '.join(measurements)}")
    models = load(make_manifest("anysubset", "xlnet"))
    for name in a.variants:
        results = measurements[name](models, a)
        print(results)
        conditions = provenance("cpu", "float32", a.threads)
        write_json(Path(__file__).parent / f"text-{name}.json", {"found": results, "provenance": conditions})


if __name__ == "__main__":
    main()
