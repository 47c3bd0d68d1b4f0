"""python -m parity_certify WAY ... : does a sampler, whoever wrote it, draw from its model's law?

    transformers [--target DIR] [--assistant DIR] -- num_assistant_tokens=4     `generate`, in its speculative ways
    server --url http://127.0.0.1:8080 --target DIR                             an OpenAI-compatible server
    sampler FILE.py:FUNCTION --target DIR (or --law FILE.py:FUNCTION ...)       sample(prompts [n, P], seed)
    verifier FILE.py:FUNCTION [--shape batch]                                   the accept-or-resample function alone
    command --law law.json -- ./engine law.json                                 any language, over stdin and stdout
    samples FILE --law law.json                                                 samples drawn elsewhere
    law --out law.json                                                          a table model for an engine's tests
    texts [--target DIR] --texts FILE.jsonl                                     a large model's, teacher-forced
    models --kind llama --out DIR                                               tiny checkpoints to certify on

The verdict is printed, and a page, JSON, JUnit XML and a badge are written to --out. Exit code 0: certified or
consistent, 1: lossy, 2: inconclusive, or an error (one line). The first three ways keep their samples: the same command
goes on where it stopped.
"""

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity_certify.errors import ParityError
from parity_certify.files import digest
from parity_certify.import_by_name import Loaded, duration, leaf, load, option

TRANSFORMERS = "parity_certify.adapters.transformers"


def weights_digest(folder: Path) -> str:
    """What a model's folder holds: configuration and weights."""
    total = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if file.is_file():
            total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()[:16]


def prompts_of(a: argparse.Namespace, vocab: int) -> np.ndarray:
    """Prompts as given (a JSON list), or so many different random ones of --prompt-length tokens."""
    if isinstance(a.prompts, list):
        return np.array(a.prompts)
    if a.prompts > vocab**a.prompt_length:
        raise ParityError(f"--prompts {a.prompts}: allowed: up to {vocab}^{a.prompt_length}")
    rng = np.random.default_rng(0)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < a.prompts:
        found[tuple(rng.integers(vocab, size=a.prompt_length).tolist())] = None
    return np.array(list(found))


def judged(a: argparse.Namespace, sample: Any, law: Any, spec: dict[str, Any], name: str, diagnose: Any = None) -> int:
    """Certify, diagnose, write, print: the exit code."""
    out = a.out or Path("results/certify") / f"{name.replace(' ', '-')}-{digest(spec)}"
    settings = {"n": a.n, "minutes": a.minutes, "margin": a.margin, "alpha": a.alpha, "processes": a.processes}
    settings |= {"budget": a.budget, "repeat": a.repeat, "batch": a.batch, "seeds": (a.seed, a.seed + 1)}
    settings |= {"folder": out, "spec": spec, "name": name}
    c = leaf("parity_certify.sampler").certify_sampler(sample, law, **settings)
    if c.exit_code == 1 and diagnose is not None:
        c.beside["diagnosis"] = diagnose(c)
    written = leaf("parity_certify.page")
    written.write(c, out, spec | {"command": "parity certify " + shlex.join(sys.argv[1:])})
    print(c)
    print(f"\n{written.badge_line(c, out)}\n{out / 'report.html'}")
    return c.exit_code


def transformers(a: argparse.Namespace) -> int:
    import importlib.metadata

    adapter, options = leaf(TRANSFORMERS), dict(a.options)
    target = a.target or tiny_checkpoint(a, "target")
    model = adapter.load(target)
    drafts = a.assistant or (tiny_checkpoint(a, "assistant") if not a.target and not drafting(options) else None)
    spec: dict[str, Any] = {"engine": f"transformers {importlib.metadata.version('transformers')}"}
    spec |= {"target": weights_digest(Path(target)), "options": dict(options), "kind": model.config.model_type}
    if drafts:
        options["assistant_model"] = adapter.load(drafts)
        spec["assistant"] = weights_digest(Path(drafts))
        if a.universal:
            options |= {"tokenizer": adapter.tokenizer_of(target), "assistant_tokenizer": adapter.tokenizer_of(drafts)}
            spec["universal"] = True
    if a.generator:
        options["candidate_generator"] = load(a.generator)
        spec["generator"] = a.generator
    law = adapter.law(model, prompts_of(a, adapter.vocab_of(model)), a.length, options, end=a.end)
    paged = options.get("cache_implementation") == "paged"
    make = leaf("parity_certify.adapters.continuous").Continuous if paged else adapter.Generate
    sampler = make(model, a.length, options, a.end)
    name = " ".join(
        ["transformers", model.config.model_type, *(f"{k}={short_text(v)}" for k, v in spec["options"].items())]
    )

    def diagnose(c: Any) -> dict[str, Any]:
        located = leaf("parity_certify.adapters.mending").located(
            sampler, law, min(400, max(c.beside["n"])), a.seed + 2
        )
        return located or leaf("parity_certify.diagnosis").diagnosis(c.counts, law, adapter.suspects(sampler, law))

    return judged(a, sampler, law, spec, name, diagnose)


def short_text(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return "".join(c for c in text if c.isalnum() or c in ".-,")[:40]


def drafting(options: dict[str, Any]) -> bool:
    """Whether the options say how to draft without an assistant."""
    return any(k in options for k in ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"))


def tiny_checkpoint(a: argparse.Namespace, role: str) -> Path:
    """A tiny checkpoint where none was given."""
    models, folder = leaf("parity_certify.models"), Path("results/certify/models") / f"{a.kind}-{a.vocab}-{role}"
    if not (folder / "config.json").is_file():
        if role == "target":
            models.write(a.kind, folder, a.vocab)
        else:
            models.write_companion(tiny_checkpoint(a, "target"), folder, a.tv)
    return folder


def server(a: argparse.Namespace) -> int:
    adapter, served = leaf(TRANSFORMERS), leaf("parity_certify.adapters.server")
    model = adapter.load(a.target)
    options = dict(a.options)
    laws = {k: v for k, v in options.items() if k in served.OF_LAW}
    law = adapter.law(model, prompts_of(a, adapter.vocab_of(model)), a.length, laws, end=a.end)
    letters = adapter.tokenizer_of(a.target)
    sampler = served.Server(a.url, a.length, letters, model=a.model, timeout=a.timeout, options=options, end=a.end)
    spec = {"engine": sampler.engine(), "url": a.url, "target": weights_digest(a.target), "options": dict(options)}
    return judged(a, sampler, law, spec, f"server {a.model}".strip())


def sampler(a: argparse.Namespace) -> int:
    sample = Loaded(a.sampler)
    if a.law:
        if not (a.vocab and a.length):
            raise ParityError("--law: needs --vocab and --length")
        law = leaf("parity_certify.laws").law(
            load(a.law), vocab=a.vocab, length=a.length, prompts=prompts_of(a, a.vocab), end=a.end
        )
        spec = {"sampler": a.sampler, "law": a.law}
    elif a.target:
        adapter = leaf(TRANSFORMERS)
        model = adapter.load(a.target)
        law = adapter.law(model, prompts_of(a, adapter.vocab_of(model)), a.length, dict(a.options), end=a.end)
        spec = {"sampler": a.sampler, "target": weights_digest(a.target), "options": dict(a.options)}
    else:
        raise ParityError("--target, --law: neither given; allowed: the one or the other")
    return judged(a, sample, law, spec, a.sampler.rpartition(":")[2])


def verifier(a: argparse.Namespace) -> int:
    settings = {"vocab": a.vocab, "drafts": a.drafts, "shape": a.shape, "margin": a.margin, "alpha": a.alpha, "n": a.n}
    found = leaf("parity_certify.verifier").certify_verifier(
        load(a.verifier), seeds=(a.seed, a.seed + 1), name=a.verifier.rpartition(":")[2], **settings
    )
    return show(found, a.out, {"verifier": a.verifier})


def command(a: argparse.Namespace) -> int:
    law, own = leaf("parity_certify.law_file").read_law(a.law), a.rest
    if not own:
        raise ParityError("command: none; allowed: -- ./engine ARGUMENTS")
    settings = {"n": a.n, "minutes": a.minutes, "margin": a.margin, "alpha": a.alpha, "repeat": a.repeat}
    settings |= {
        "budget": a.budget,
        "batch": a.batch,
        "seeds": (a.seed, a.seed + 1),
        "timeout": a.timeout,
        "folder": a.out,
    }
    found = leaf("parity_certify.command").certify_command(own, law, **settings)
    return show(found, a.out, {"engine": shlex.join(own), "law": str(a.law)})


def samples(a: argparse.Namespace) -> int:
    law = leaf("parity_certify.law_file").read_law(a.law)
    found = leaf("parity_certify.samples").certify_samples(a.samples, law, margin=a.margin, alpha=a.alpha)
    return show(found, a.out, {"samples": str(a.samples), "law": str(a.law)})


def law(a: argparse.Namespace) -> int:
    tools = leaf("parity_certify.law_file")
    tools.write_law(tools.random_law(a.vocab, a.length, a.seed), a.out or Path("law.json"))
    print(a.out or "law.json")
    return 0


def show(found: Any, out: Path | None, spec: dict[str, Any]) -> int:
    """Print the certificate and write its page, where asked: the exit code."""
    print(found)
    if out:
        leaf("parity_certify.page").write(found, out, spec)
    return found.exit_code


def texts(a: argparse.Namespace) -> int:
    found = leaf("parity_certify.texts").certify_texts(a.target, a.texts, options=dict(a.options))
    print(leaf("parity_certify.texts").report(found))
    if a.out:
        target = {"target": weights_digest(a.target)} if a.target else {}
        leaf("parity_certify.page").write(found, a.out, target | {"texts": str(a.texts)})
    return found.exit_code


def models(a: argparse.Namespace) -> int:
    tools = leaf("parity_certify.models")
    if a.kind in ("gemma4", "mellum"):  # what drafts is made with the target
        make = {"gemma4": tools.write_gemma4, "mellum": tools.write_mellum}[a.kind]
        found = make(a.out, a.vocab, a.seed)
    else:
        more = {} if a.head_dim is None else {"head_dim": a.head_dim}
        target = tools.write(a.kind, a.out / a.kind, a.vocab, a.seed, **more)
        found = [target, *tools.write_companions(target, a.out, a.tv)]
    print(*found, sep="\n")
    return 0


def parser(more: Sequence[Callable[[Any], None]] = ()) -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = main.add_subparsers(dest="way", required=True)

    def way(run: Any, help: str, enumerated: bool = True) -> argparse.ArgumentParser:
        p = ways.add_parser(run.__name__, help=help)
        p.set_defaults(run=run, options=[])
        p.add_argument("--out", type=Path, help="folder of page, JSON, badge and samples")
        p.add_argument("--seed", type=int, default=0, help="of the run; a rejection is repeated with the next")
        if enumerated:
            sampling_flags(p)
        return p

    p = way(transformers, "transformers' generate; options of it follow after --")
    p.add_argument("--target", type=Path, help="folder of the model (none: a tiny one is made)")
    p.add_argument("--assistant", type=Path, help="folder of the draft model")
    p.add_argument("--universal", action="store_true", help="the assistant has a tokenizer of its own")
    p.add_argument("--generator", help="FILE.py:FUNCTION of transformers' candidate generator, returns another")
    p.add_argument("--kind", default="llama", help="architecture of the tiny model that is made")
    p.add_argument("--vocab", type=int, default=4, help="of the model that is made (4)")
    p.add_argument("--tv", type=float, default=0.3, help="of the assistant that is made (0.3)")
    p = way(server, "an OpenAI-compatible server; sampling options follow after --")
    p.add_argument("--url", required=True)
    p.add_argument("--target", type=Path, required=True, help="folder of the model that it serves")
    p.add_argument("--model", default="", help="name of the model in requests")
    p.add_argument("--timeout", type=float, default=60, help="seconds for an answer (60)")
    p = way(sampler, "a Python function sample(prompts [n, P], seed) -> tokens [n, L]")
    p.add_argument("sampler", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    p.add_argument("--target", type=Path, help="folder of the model whose law it is")
    p.add_argument("--law", help="FUNCTION of prefixes [n, P + t] -> probabilities [n, V]")
    p.add_argument("--vocab", type=int, default=0)
    add_tables(way)
    p = way(texts, "a large model's own texts against its conditionals", enumerated=False)
    p.add_argument("--target", type=Path, help="without it by the file's own top_logprobs, in fewer tests")
    p.add_argument("--texts", type=Path, required=True, help="JSON lines: prompt and tokens, perhaps logprobs")
    p = way(models, "tiny checkpoints of an architecture, and companions", enumerated=False)
    p.add_argument("--kind", default="llama")
    p.add_argument("--vocab", type=int, default=4)
    p.add_argument("--tv", type=float, default=0.3, help="of the companions")
    p.add_argument("--head-dim", type=int, help="width of a head (8); vLLM's CPU build takes 32 and more")
    for add in more:
        add(way)
    return main


def add_tables(way: Callable[..., argparse.ArgumentParser]) -> None:
    """Ways whose laws are tables: no model is needed."""
    p = way(verifier, "verify(draft_tokens, draft_probs, target_probs) -> tokens", enumerated=False)
    p.add_argument("verifier", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    p.add_argument("--shape", choices=("row", "batch", "tree"), default="row", help="of its arguments (row)")
    p.add_argument("--vocab", type=int, default=4)
    p.add_argument("--drafts", type=int, default=3, help="drafted tokens, K (3)")
    judging_flags(p)
    p.add_argument("--n", type=int, help="sequences a problem (as many as --margin needs)")
    p = way(command, "an engine over stdin and stdout; the command follows after --", enumerated=False)
    p.add_argument("--law", type=Path, required=True, help="a file of `law`")
    p.add_argument("--timeout", type=float, default=60, help="seconds for an answer (60)")
    judging_flags(p)
    p.add_argument("--n", type=int, help="sequences (as many as --margin needs)")
    p.add_argument("--minutes", type=float, help="no more than fit into this time")
    p.add_argument("--budget", type=duration, help="time for everything: 30s, 2m, 1h")
    p.add_argument("--repeat", type=int, help="sequences of a rejection's repeat")
    p.add_argument("--batch", type=int, default=500, help="sequences of a request (500)")
    p = way(samples, "samples drawn elsewhere: JSON lines or CSV", enumerated=False)
    p.add_argument("samples", type=Path)
    p.add_argument("--law", type=Path, required=True, help="a file of `law`")
    judging_flags(p)
    p = way(law, "write a random table model and its draft model", enumerated=False)
    p.add_argument("--vocab", type=int, default=4)
    p.add_argument("--length", type=int, default=3)


def judging_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--margin", type=float, default=0.05, help="TV below which a bound certifies (0.05)")
    p.add_argument("--alpha", type=float, default=0.05, help="false alarms (0.05)")


def sampling_flags(p: argparse.ArgumentParser) -> None:
    """What the ways share whose laws are enumerated."""
    p.add_argument("--n", type=int, help="sequences (as many as --margin needs)")
    p.add_argument("--minutes", type=float, help="no more than fit into this time")
    p.add_argument("--repeat", type=int, help="sequences of a rejection's repeat (twice those of the first)")
    p.add_argument("--margin", type=float, default=0.1, help="TV below which a bound certifies (0.1)")
    p.add_argument("--alpha", type=float, default=0.05, help="false alarms (0.05)")
    p.add_argument("--length", type=int, default=3, help="tokens drawn (3)")
    p.add_argument("--prompts", type=json.loads, default=2, help="how many, or a JSON list of them (2)")
    p.add_argument("--prompt-length", type=int, default=3, help="of random prompts (3)")
    p.add_argument("--end", type=int, help="end token")
    p.add_argument("--batch", type=int, default=100, help="sequences between two looks (100)")
    p.add_argument("--processes", type=int, default=1, help="samplers side by side (1)")
    p.add_argument("--budget", type=duration, help="time for everything: 30s, 2m, 1h")


def main(*more: Callable[[Any], None]) -> None:
    """The command line. `more` adds ways of another package: each is called with `way`, as in `parser`."""
    given = sys.argv[1:]
    if "--texts" in given and given[0].startswith("-"):
        given = ["texts", *given]  # parity certify --target FOLDER --texts FILE.jsonl
    at = given.index("--") if "--" in given else len(given)
    try:
        a = parser(more).parse_args(given[:at])
        a.rest = given[at + 1 :]
        a.options = [] if a.way == "command" else [option(text) for text in a.rest]
        if a.way == "models" and a.out is None:
            raise ParityError("--out: needed: the folder to write to")
        code = a.run(a)
    except ParityError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except argparse.ArgumentTypeError as error:
        print(f"error: options: {error}", file=sys.stderr)
        code = 2
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "tokenizers", "safetensors"):
            raise
        print(f'error: needs {error.name}: pip install "parity-certify[transformers]"', file=sys.stderr)
        code = 2
    raise SystemExit(code)


if __name__ == "__main__":
    main()
