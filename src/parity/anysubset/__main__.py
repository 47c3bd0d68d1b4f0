"""python -m parity.anysubset COMMAND ... : the stages of the text experiment.

task     which words of which texts are missing                          task.npz
decode   fill them in with one method                                    rows.npz
laws     last-word and multiple-choice accuracy of the model itself      laws.json
exact    a method on models whose law can be written down                rows.json
measure  perplexity, entropy, ROUGE, unit tests, teacher-forced tests    records.parquet, equality.json
report   text.html and its tables
"""

import argparse
import importlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.command import one_line, pin_threads, progress, provenance
from parity.base.files import canonical, publish, read_arrays, write_arrays, write_json
from parity.base.noise import batch_noise
from parity.decode.anysubset import fill
from parity.inputs import tasks
from parity.metrics import statistics
from parity.models.anysubset import load as words
from parity.models.anysubset.protocol import Infilling, infilling


def read_task(path: Path) -> tasks.Task:
    found = read_arrays(path)
    return tasks.Task(
        found["ids"].tolist(), found["tokens"], found["known"], found["end"], json.loads(str(found["extra"]))
    )


def load(a: argparse.Namespace) -> words.TextModels:
    model = json.loads(a.model)
    return words.TextModels(model["xlnet"], model["judge"], a.device)


def start_of(task: tasks.Task, models: words.TextModels, part: slice, device: str) -> Infilling:
    tokens, known, end = (torch.from_numpy(x[part]).to(device) for x in (task.tokens, task.known, task.end))
    return infilling(tokens.long(), known, models.words.mask, models.words.vocab, end.long())


def make_task(a: argparse.Namespace) -> None:
    task = tasks.build(a.kind, json.loads(a.settings), load(a).words)
    write_arrays(
        a.out,
        ids=np.array(task.ids),
        tokens=task.tokens,
        known=task.known,
        end=task.end,
        extra=np.array(canonical(task.extra)),
    )


def decode(a: argparse.Namespace) -> None:
    """Rows of a task under one method, in batches; the record of each is what it cost."""
    spec, task, models = json.loads(a.spec), read_task(a.task), load(a)
    method = getattr(importlib.import_module(f"parity.decoders.anysubset.{spec['method']}"), spec["method"])
    model = models.causal(spec["cache"]) if spec["method"] == "gpt2" else models.subset(spec["cache"])
    columns: dict[str, list[np.ndarray]] = {}
    starts = range(0, len(task.ids), spec["batch"])
    for i in progress(starts, len(starts), f"{spec['method']} {canonical(spec['options'])}"):
        start = start_of(task, models, slice(i, i + spec["batch"]), a.device)
        noise = batch_noise(spec["seed"], task.ids[i : i + spec["batch"]], a.device)
        done = fill(start, method(model, start, noise=noise, **spec["options"]))
        n = len(start.tokens)
        found = {"tokens": done.tokens, "loop": done.loop, "nfe": done.nfe, "aux": done.aux, "loops": done.loops}
        found |= {"missing": start.end - start.begin, "order": start.order, "begin": start.begin}
        for name, value in found.items():
            columns.setdefault(name, []).append(value.cpu().numpy())
        columns.setdefault("seconds", []).append(np.full(n, done.seconds))
        columns.setdefault("batch", []).append(np.full(n, n))
        columns.setdefault("passes", []).append(np.full(n, done.passes))
    joined = {k: np.concatenate(v) for k, v in columns.items()}
    said = canonical({**provenance(a.device, "float32", a.threads), "spec": spec})
    write_arrays(a.out, ids=np.array(task.ids), end=task.end, provenance=np.array(said), **joined)


def joint_laws(model: Any, start: Infilling) -> tuple[torch.Tensor, torch.Tensor]:
    """Laws [B, S, V] of the missing tokens of complete rows in their order (Eq. 6), one pass, and the ranks [B, S] they stand at."""
    width = int((start.end - start.begin).max())
    ranks = start.begin[:, None] + torch.arange(width, device=start.order.device)
    asked = torch.where(ranks < start.end[:, None], ranks, start.order.shape[1])
    return model.laws(start.tokens, start.order, start.begin, asked, ranks), ranks


def own_log_probability(model: Any, start: Infilling, complete: torch.Tensor) -> torch.Tensor:
    """log p of the missing part of complete rows [B], nats."""
    laws, ranks = joint_laws(model, start._replace(tokens=complete))
    inside = ranks < start.end[:, None]
    own = complete.gather(1, start.order.gather(1, ranks.clamp(max=complete.shape[1] - 1)))
    return torch.where(inside, laws.gather(-1, own[..., None])[..., 0].log(), 0).sum(1)


def laws(a: argparse.Namespace) -> None:
    """Accuracy of the likeliest token in a last word's place (all tokens of the word must be right), or of the likeliest of four ends."""
    task, models = read_task(a.task), load(a)
    model, begin = models.subset(True), time.perf_counter()
    right: list[bool] = []
    total: list[float] = []
    for i in range(0, len(task.ids), 64):
        part = slice(i, i + 64)
        start, complete = start_of(task, models, part, a.device), torch.from_numpy(task.tokens[part]).to(a.device)
        if a.kind == "last_word":
            p, ranks = joint_laws(model, start._replace(tokens=complete))
            own = complete.gather(1, start.order.gather(1, ranks.clamp(max=complete.shape[1] - 1)))
            right += ((p.argmax(-1) == own) | (ranks >= start.end[:, None])).all(1).tolist()
        else:
            total += (own_log_probability(model, start, complete) / (start.end - start.begin)).tolist()
    held = task.extra
    if a.kind == "choice":  # the end with the largest log-probability per token
        questions: dict[int, list[tuple[float, bool, bool | None]]] = {}
        for value, (question, correct, out) in zip(total, task.extra, strict=True):
            questions.setdefault(question, []).append((value, correct, out))
        right = [max(ends)[1] for ends in questions.values()]
        held = [ends[0][2] for ends in questions.values()]
    mean, error = statistics.mean_error(np.array(right, float))
    found: dict[str, Any] = {"kind": a.kind, "accuracy": mean, "error": error, "n": len(right)}
    for name, wanted in (("known_pairs", False), ("held_out_pairs", True)):
        some = [r for r, h in zip(right, held, strict=True) if h is wanted]
        found[f"accuracy_{name}"] = float(np.mean(some)) if some else None
    write_json(a.out, found | {"seconds": round(time.perf_counter() - begin, 2)})


def exact(a: argparse.Namespace) -> None:
    from parity.equality import anyorder

    decoder = getattr(importlib.import_module(f"parity.decoders.anysubset.{a.method}"), a.method)
    begin = time.perf_counter()
    rows = anyorder.exact(decoder, json.loads(a.options), method=a.method, n=a.n, seeds=json.loads(a.seeds))
    write_json(a.out, {"rows": rows, "seconds": round(time.perf_counter() - begin, 1)})


def measure(a: argparse.Namespace) -> None:
    """A record per row of every cell; teacher-forced rows of every cell of infilled texts that was decoded in the lattice's order."""
    import pandas as pd

    from parity.equality import teacher_forced
    from parity.metrics import sandbox, score

    models = load(a)
    model, records, rows = models.subset(True), [], []
    reason = sandbox.probe() if a.run_code else "run_generated_code is off"
    for path, task_path in progress(zip(a.cells, a.tasks, strict=True), len(a.cells), "measure"):
        cell, task = read_arrays(path), read_task(task_path)
        said = json.loads(str(cell["provenance"]))
        spec = said["spec"]
        mask = models.words.mask
        start = start_of(task, models, slice(None), a.device)
        complete = torch.from_numpy(cell["tokens"]).to(a.device)
        if models.one_vocabulary:
            judged, end = complete, start.end
        else:  # two tokenizers: the judge reads the text
            judged, end = reread(models, cell)
        judge_mask = mask if judged is complete else models.judge_words.mask
        ppl = score.perplexities(models.gpt2, judged, end, judge_mask, models.judge_words.separator)
        logp = torch.cat(
            [
                own_log_probability(model, Infilling(*(x[i : i + 32] for x in start)), complete[i : i + 32])
                for i in range(0, len(complete), 32)
            ]
        )
        for i, name in enumerate(cell["ids"].tolist()):
            N = int(cell["end"][i])
            record = {
                "cell": path.stem, "kind": spec["kind"], "task": spec["task"], "method": spec["method"], "id": name, "seed": spec["seed"],
                "perplexity": float(ppl[i]), "entropy": statistics.entropy(cell["tokens"][i, :N]), "logp": float(logp[i]),
                "nfe": int(cell["nfe"][i]), "aux": int(cell["aux"][i]), "loops": int(cell["loops"][i]), "missing": int(cell["missing"][i]),
                "seconds": float(cell["seconds"][i]), "batch": int(cell["batch"][i]), "passes": int(cell["passes"][i]),
                "text": models.words.decode(cell["tokens"][i, :N].tolist()),
            }  # fmt: skip
            filled = cell["tokens"][i, :N][~task.known[i, :N]].tolist()
            if spec["kind"] == "stories":
                record |= score.rouge(task.extra[i], models.words.decode(filled))
            if spec["kind"] == "code" and not reason:
                text = models.words.decode(filled if "before" in task.extra[i] else cell["tokens"][i, :N].tolist())
                outcome = score.passes(text, task.extra[i])
                record |= {"passed": outcome.passed, "why": outcome.why}
            records.append(record)
        same_length = bool((start.end - start.begin == (start.end - start.begin)[0]).all())
        if spec["kind"] == "infilling" and spec["method"] != "gpt2" and same_length:
            p = torch.cat(
                [
                    joint_laws(model, Infilling(complete[i : i + 32], *(x[i : i + 32] for x in start[1:])))[0]
                    for i in range(0, len(complete), 32)
                ]
            )
            S = p.shape[1]
            ranks = start.begin[:, None] + torch.arange(S, device=a.device)
            order = start.order.gather(1, ranks)
            tokens, loop = (
                complete.gather(1, order).cpu().numpy(),
                torch.from_numpy(cell["loop"]).long().gather(1, order.cpu()).numpy(),
            )
            slot = teacher_forced.slots(loop) if spec["method"] in ("sequential", "assd", "assd_ngram") else None
            rng = np.random.default_rng([spec["seed"], 9])
            place = {
                "model": "text",
                "method": spec["method"],
                "key": path.stem.rsplit("-", 1)[1],
                "seed": spec["seed"],
            }
            rows += teacher_forced.battery(
                tokens, teacher_forced.stored(p.cpu()), S, rng=rng, slot=slot, strict=False, **place
            )
    stream = io.BytesIO()
    pd.DataFrame(records).to_parquet(stream)
    publish(a.out, stream.getvalue())
    write_json(a.equality, {"rows": rows, "code": reason, "provenance": provenance(a.device, "float32", a.threads)})


def reread(models: words.TextModels, cell: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as the judge's tokens, padded with its separator, and their lengths."""
    texts = [
        models.judge_words.encode(models.words.decode(t[:n].tolist()))
        for t, n in zip(cell["tokens"], cell["end"], strict=True)
    ]
    wide = max(map(len, texts))
    padded = [t + [models.judge_words.separator] * (wide - len(t)) for t in texts]
    return torch.tensor(padded), torch.tensor([max(1, len(t)) for t in texts])


def report(a: argparse.Namespace) -> None:
    from parity.report import anysubset as page

    page.write(a)


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = main.add_subparsers(dest="command", required=True)

    def command(
        name: str, run: Any, *texts: str, paths: tuple[str, ...] = (), many: tuple[str, ...] = ()
    ) -> argparse.ArgumentParser:
        c = commands.add_parser(name)
        c.set_defaults(run=run)
        for text in texts:
            c.add_argument(f"--{text}", required=True)
        for path in paths:
            c.add_argument(f"--{path}", type=Path, required=True)
        for path in many:
            c.add_argument(f"--{path}", type=Path, nargs="*", required=True)
        c.add_argument("--out", type=Path, required=True)
        c.add_argument("--threads", type=int, default=1)
        c.add_argument("--device", default="cpu")
        return c

    command("task", make_task, "kind", "settings", "model")
    command("decode", decode, "spec", "model", paths=("task",))
    command("laws", laws, "kind", "model", paths=("task",))
    c = command("exact", exact, "method", "options", "seeds")
    c.add_argument("--n", type=int, required=True)
    c = command("measure", measure, "model", paths=("equality",), many=("cells", "tasks"))
    c.add_argument("--run-code", action="store_true", help="execute what a model wrote, in a sandbox")
    command("report", report, "config", paths=("records", "equality"), many=("exact", "laws", "published"))
    return main


def main() -> None:
    a = parser().parse_args()
    pin_threads(a.threads)
    a.run(a)


if __name__ == "__main__":
    one_line(main)
