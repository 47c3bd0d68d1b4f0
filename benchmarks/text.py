"""What any-subset decoding costs on the embedded model: passes per token, and a batch against one row at a time.

    python benchmarks/text.py passes --rows 256        assd and assd_ngram at k = 5 against sequential decoding, 95 % of 128 words hidden
    python benchmarks/text.py batch --alone 8          64 rows at once against rows one by one, seconds per row, assd at k = 5
    python benchmarks/text.py cache --rows 4           seconds per pass with keys and values kept, and without

One thread, float32. Writes benchmarks/text-<what>.json.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from parity.base.command import provenance
from parity.base.files import write_json
from parity.base.noise import batch_noise
from parity.decode.anysubset import fill
from parity.decoders.anysubset.assd import assd
from parity.decoders.anysubset.assd_ngram import assd_ngram
from parity.decoders.anysubset.sequential import sequential
from parity.inputs import tasks
from parity.metrics import statistics
from parity.models.anysubset.load import TextModels
from parity.models.anysubset.protocol import Infilling, infilling


def starts(models: TextModels, rows: int, length: int, masked: float) -> tuple[Infilling, list[str]]:
    settings = {"rows": rows, "length": length, "masked": masked, "prompt": "scattered", "data": ""}
    task = tasks.build("infilling", settings, models.words)
    tokens, known, end = (torch.from_numpy(x) for x in (task.tokens, task.known, task.end))
    return infilling(tokens, known, models.words.mask, models.words.vocab, end), task.ids


def rows_of(start: Infilling, part: slice) -> Infilling:
    return Infilling(*(x[part] for x in start))


def passes(models: TextModels, rows: int) -> dict:
    from parity.metrics.score import perplexities

    start, ids = starts(models, rows, 128, 0.95)
    model, found, base = models.subset(True), {}, {}
    for name, decoder, seed in (
        ("sequential", sequential, 0),
        ("control", sequential, 1),
        ("assd", lambda *a, **k: assd(*a, k=5, **k), 2),
        ("assd_ngram", lambda *a, **k: assd_ngram(*a, k=5, **k), 2),
    ):
        done = [
            fill(
                rows_of(start, slice(i, i + 64)),
                decoder(model, rows_of(start, slice(i, i + 64)), noise=batch_noise(seed, ids[i : i + 64])),
            )
            for i in range(0, rows, 64)
        ]
        tokens, nfe = torch.cat([d.tokens for d in done]), torch.cat([d.nfe for d in done])
        ppl = perplexities(models.gpt2, tokens, start.end, models.words.mask, models.words.separator)
        figures = {"perplexity": ppl, "entropy": np.array([statistics.entropy(t) for t in tokens.numpy()])}
        base = base or figures
        per_token, error = statistics.mean_error((nfe / (start.end - start.begin)).numpy())
        found[name] = {
            "nfe_per_token": per_token,
            "nfe_per_token_se": error,
            "seconds_per_row": sum(d.seconds for d in done) / rows,
        }
        for key, values in figures.items():
            mean, se = statistics.mean_error(values)
            found[name] |= {key: mean, f"{key}_se": se} | {
                f"{key}_{k}": v for k, v in statistics.compare(values, base[key]).items()
            }
        print(name, {k: round(v, 4) for k, v in found[name].items()}, flush=True)
    return found


def batch(models: TextModels, alone: int) -> dict:
    start, ids = starts(models, 64, 128, 0.95)
    noise, model = batch_noise(2, ids), models.subset(True)
    fill(rows_of(start, slice(1)), assd(model, rows_of(start, slice(1)), noise=batch_noise(2, ids[:1]), k=5))  # warm
    together = fill(start, assd(model, start, noise=noise, k=5))
    one_by_one = [
        fill(
            rows_of(start, slice(i, i + 1)),
            assd(model, rows_of(start, slice(i, i + 1)), noise=batch_noise(2, ids[i : i + 1]), k=5),
        )
        for i in range(alone)
    ]
    same = all(torch.equal(d.tokens[0], together.tokens[i]) for i, d in enumerate(one_by_one))
    single, many = sum(d.seconds for d in one_by_one) / alone, together.seconds / 64
    return {"seconds_alone": single, "seconds_in_batch": many, "ratio": single / many, "same_tokens": same}


def cache(models: TextModels, rows: int) -> dict:
    found = {}
    for length, masked in ((128, 0.95), (512, 0.25)):
        start, ids = starts(models, rows, length, masked)
        for kept in (True, False):
            done = fill(start, assd(models.subset(kept), start, noise=batch_noise(2, ids), k=5))
            found[f"length {length}, {'cache' if kept else 'no cache'}"] = done.seconds / int(done.nfe.max())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["passes", "batch", "cache"])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--alone", type=int, default=8)
    a = parser.parse_args()
    torch.set_num_threads(1)
    models = TextModels()
    found = {
        "passes": lambda: passes(models, a.rows),
        "batch": lambda: batch(models, a.alone),
        "cache": lambda: cache(models, a.rows),
    }[a.what]()
    print(found)
    write_json(
        Path(__file__).parent / f"text-{a.what}.json", {"found": found, "provenance": provenance("cpu", "float32", 1)}
    )


if __name__ == "__main__":
    main()
