"""What any-subset decoding costs on the embedded model: passes per token, and a batch against one row at a time.

    python benchmarks/text.py passes --rows 256     decoders against sequential decoding; --batch 1: row by row;
                                                    --task stories: three of five sentences hidden;
                                                    --decoders 'assd: {k: 4}' assd_quadratic: these alone
    python benchmarks/text.py batch --alone 8       rows at once against rows one by one, seconds per row, assd at k = 5
    python benchmarks/text.py cache --rows 4        seconds per pass with keys and values kept, and without

Of 128 words 95 % are hidden, if no other task is named. One thread, float32. Writes benchmarks/text-<what>.json.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from common import Rows, asked, cell, embedded

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


def hidden(models: Loaded, rows: int, length: int = 128, masked: float = 0.95) -> Rows:
    """Rows of a task as decoders read them."""
    settings = {"rows": rows, "length": length, "masked": masked, "prompt": "scattered", "data": ""}
    return decodable(tasks.build("infilling", settings, models.words))


def decodable(task: tasks.Task) -> Rows:
    return {"ids": np.array(task.ids), "tokens": task.tokens, "known": task.known, "end": task.end}


def run(models: Loaded, variant: str, seed: int, rows: Rows, batch: int, cache: bool = True) -> Shard:
    return loop.decode("anysubset", models, cell("anysubset", variant, seed, cache=cache), rows, batch)


def passes(models: Loaded, a: Namespace) -> dict:
    found, base, words = {}, {}, models.words
    three = {"rows": a.rows, "missing": 3, "attempts": 1, "data": ""}
    task = hidden(models, a.rows) if a.task == "infilling" else decodable(tasks.build("stories", three, words))
    run(models, "", 0, {k: v[:1] for k, v in task.items()}, 1)  # warm
    tried = {"sequential": ("", 0), "control": ("", 1)} | {name: (name, 2) for name in a.decoders}
    for name, (variant, seed) in tried.items():
        done = run(models, variant, seed, task, a.batch)
        tokens, end = torch.from_numpy(done.tokens).long(), torch.from_numpy(done.end)
        figures = {"perplexity": perplexities(models.gpt2, tokens, end, words.mask, words.separator)}
        figures["entropy"] = np.array([entropy(t) for t in done.tokens])
        base = base or figures
        per_token, error = mean_error(done.nfe / done.missing)
        found[name] = {"nfe_per_token": per_token, "nfe_per_token_se": error}
        found[name]["seconds_per_row"] = float((done.seconds / done.batch).sum()) / a.rows
        for key, values in figures.items():
            mean, se = mean_error(values)
            against = {f"{key}_{k}": v for k, v in compare(values, base[key]).items()}
            found[name] |= {key: mean, f"{key}_se": se} | against
        print(name, {k: round(v, 4) for k, v in found[name].items()}, flush=True)
    return found


def batch(models: Loaded, a: Namespace) -> dict:
    task = hidden(models, a.rows)
    few = {k: v[: a.alone] for k, v in task.items()}
    run(models, "assd: {k: 5}", 2, {k: v[:1] for k, v in task.items()}, 1)  # warm
    together, apart = (run(models, "assd: {k: 5}", 2, some, n) for some, n in ((task, a.rows), (few, 1)))
    single, many = float(apart.seconds.mean()), float(together.seconds[0]) / a.rows
    same = bool((apart.tokens == together.tokens[: a.alone]).all())
    return {"seconds_alone": single, "seconds_in_batch": many, "ratio": single / many, "same_tokens": same}


def cache(models: Loaded, a: Namespace) -> dict:
    found = {}
    for length, masked in ((128, 0.95), (512, 0.25)):
        task = hidden(models, a.rows, length, masked)
        for kept in (True, False):
            done = run(models, "assd: {k: 5}", 2, task, a.rows, kept)
            found[f"length {length}, {'cache' if kept else 'no cache'}"] = float(done.seconds[0]) / int(done.nfe.max())
    return found


def main() -> None:
    what = {"passes": passes, "batch": batch, "cache": cache}
    a = asked(__doc__, ["passes"], rows=64, alone=8, batch=64, task=("infilling", "stories"), decoders=DECODERS)
    if unknown := set(a.variants) - set(what):
        raise SystemExit(f"{min(unknown)}: allowed: {', '.join(what)}")
    models = load(embedded("anysubset", "xlnet"))
    for name in a.variants:
        found = what[name](models, a)
        print(found)
        how = provenance("cpu", "float32", a.threads)
        write_json(Path(__file__).parent / f"text-{name}.json", {"found": found, "provenance": how})


if __name__ == "__main__":
    main()
