"""python -m parity_certify WAY ... : does a sampler, whoever wrote it, draw from its model's distribution?

    transformers [--target DIR] [--assistant DIR] -- num_assistant_tokens=4     `generate`, in its speculative ways
    server --url http://127.0.0.1:8080 --target DIR                             an OpenAI-compatible server
    sampler FILE.py:FUNCTION --target DIR (or --logits or --distribution FILE.py:FUNCTION) sample(prompts [n, P], seed)
    verifier FILE.py:FUNCTION [--shape batch]                                   the accept-or-resample function alone
    command --distribution target.json -- ./engine target.json                  any language, over stdin and stdout
    samples FILE --distribution target.json                                     samples drawn elsewhere
    distribution --out target.json                                              a table model for an engine's tests
    texts [--target DIR] --texts FILE.jsonl                                     a large model's, teacher-forced
    models --kind llama --out DIR                                               tiny checkpoints to certify on

The verdict is printed, and a page, JSON, JUnit XML and a badge are written to --out. Exit code 0: what --require asks,
1: lossy, 2: inconclusive, or consistent where certified is required, 3: no verdict, for an error of any kind. A line on
stderr says which. The first three ways keep their samples: the same command goes on where it stopped.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from parity_certify import page
from parity_certify.calls import Store
from parity_certify.command import certify_command
from parity_certify.design import BUDGET, certify_conditions, list_keywords, list_names, make_conditions
from parity_certify.distributions import (
    check_prompts,
    random_distribution,
    read_distribution,
    target_distribution,
    write_distribution,
)
from parity_certify.errors import ParityError, describe_error
from parity_certify.files import digest, publish
from parity_certify.history import History
from parity_certify.import_by_name import Loaded, load, parse_duration, parse_option
from parity_certify.processors import ENGINES, parse_engine
from parity_certify.sampler import certify_sampler, check_settings
from parity_certify.samples import certify_samples
from parity_certify.seeding import check_seed, pair_seeds
from parity_certify.verdict import REQUIRED, Required
from parity_certify.verifier import SHAPES, certify_verifier

Arguments = argparse.Namespace
COULD_NOT_RUN = 3  # the exit code of any error; those of verdicts are 0 to 2
WITHOUT_VERDICT = ("distribution", "models")
HEADS = ("eagle", "eagle3", "mtp", "medusa")


def digest_weights(folder: Path) -> str:
    """Digest config.json and the safetensors files of a model's folder to 16 hex digits."""
    total = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if file.is_file():
            total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()[:16]


def tell_settings(model: Any, options: dict[str, Any], applied: bool = True) -> dict[str, str]:
    """Print which generation settings of the target its distribution has: see `describe_settings`. Returns the line as
    part of a sampler's description; {} if there is none."""
    from parity_certify.adapters.transformers import describe_settings

    if line := describe_settings(model, options, applied):
        print(line, file=sys.stderr)
    return {"settings": line} if line else {}


def make_prompts(a: Arguments, vocab: int) -> np.ndarray:
    """Make the prompts [K, P] of --prompts: its JSON list, or that many different random ones of --prompt-length
    tokens, always the same. Raises ParityError for another list, and if there are not as many."""
    if not isinstance(a.prompts, int):
        return check_prompts(a.prompts)
    if a.prompts > vocab**a.prompt_length:
        raise ParityError(f"--prompts {a.prompts}: allowed: up to {vocab}^{a.prompt_length}")
    rng = np.random.default_rng(0)
    prompts: dict[tuple[int, ...], None] = {}  # a dict serves as a set that keeps its order
    while len(prompts) < a.prompts:
        prompts[tuple(rng.integers(vocab, size=a.prompt_length).tolist())] = None
    return np.array(list(prompts))


def select_settings(a: Arguments, *names: str) -> dict[str, Any]:
    """Select the flags `names`, margin and alpha from the command line, as keywords of a certification."""
    return {name: getattr(a, name) for name in ("margin", "alpha", *names)}


def open_history(a: Arguments, distributions: Sequence[Any] = ()) -> tuple[History | None, dict[str, Any]]:
    """Read --history, if it is given. Returns it, and alpha and seeds of the run, which depend on its nights. Raises
    ParityError if its nights are of other distributions."""
    if not a.history:
        return None, {"alpha": a.alpha, "seeds": pair_seeds(a.seed, "--seed")}
    check_settings(alpha=a.alpha)
    history = History.read(a.history)
    if distributions:
        history.check(distributions)
    return history, {"alpha": history.level(a.alpha), "seeds": history.seeds(a.seed)}


def add_night(history: History | None, c: Any, a: Arguments) -> Any:
    """Add a certificate's night to --history, if it is given, and write that; return the certificate on all nights."""
    if history is None:
        return c
    c = history.judge(c, a.alpha)
    history.write()
    return c


def finish(c: Any, out: Path | None, about: dict[str, Any], require: Required | None = None) -> int:
    """Print the certificate, and what the exit code means on stderr; write its files to `out` if given, with `about`
    and the command; return the exit code. require: the least kind of verdict that passes (None: the verdict's own)."""
    if require:
        c = replace(c, verdict=replace(c.verdict, require=require))
    if out:
        page.write_files(c, out, about | {"command": "parity certify " + shlex.join(sys.argv[1:])})
    print(c, *([f"\nreport: {out / 'report.html'}"] if out else []), sep="\n")
    sys.stdout.flush()
    print(c.verdict.outcome, file=sys.stderr)
    return int(c.exit_code)


def choose_folder(a: Arguments, name: str, spec: dict[str, Any]) -> Path:
    """Return --out, or the folder results/certify/<name>-<digest of spec>."""
    return a.out or Path("results/certify") / f"{name.replace(' ', '-')}-{digest(spec)}"


def digest_code(name: str) -> str:
    """Digest the file in "FILE.py:FUNCTION" (SHA-256), so that an edited file is another sampler; "" for a module."""
    file = Path(name.rpartition(":")[0])
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def read_engine(text: str) -> Any:
    """Read --engine: see `parse_engine`. Raises ArgumentTypeError for an engine that is not known."""
    try:
        return parse_engine(text)
    except ParityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def judge_sampler(
    a: Arguments,
    sample: Any,
    distribution: Any,
    spec: dict[str, Any],
    name: str,
    diagnose: Any = None,
    may_change: bool = False,
) -> int:
    """Certify a sampler by the flags, write and print the certificate, and return the exit code. Samples are stored in
    the output folder; a run with the same `spec` continues from them, but not one that is finished, if the engine may
    have changed unseen (`may_change`). diagnose(certificate) is called for a lossy sampler."""
    spec = spec | {"length": a.length, "prompts": [a.prompts, a.prompt_length]}
    out = choose_folder(a, name, spec)
    if may_change and (out / "certificate.json").is_file():
        Store(out).forget()
    settings = select_settings(a, "n", "minutes", "budget", "repeat", "batch", "processes")
    history, shared = open_history(a, [distribution])
    c = certify_sampler(sample, distribution, **settings | shared, folder=out, spec=spec, name=name)
    c = add_night(history, c, a)
    if c.exit_code == 1 and diagnose is not None:
        c = replace(c, details=c.details | {"diagnosis": diagnose(c)})
    return finish(c, out, spec, a.require)


def names_condition(a: Arguments, options: dict[str, Any]) -> bool:
    """Return whether a command names a condition, by sampling options or flags; then it tests that alone."""
    return bool(options) or any(getattr(a, name) is not None for name in ONE)


def complete_flags(a: Arguments) -> Arguments:
    """Copy a command's flags, with the defaults of those of a condition that are not given."""
    defaults = {name: default for name, default in ONE.items() if getattr(a, name) is None}
    return argparse.Namespace(**vars(a) | defaults)


def judge_conditions(
    a: Arguments, conditions: Any, missing: dict[str, str], spec: dict[str, Any], name: str, may_change: bool = False
) -> int:
    """Certify a sampler under conditions by the flags, write and print the certificate, and return the exit code."""
    out = choose_folder(a, name, spec)
    for one in conditions if may_change else ():
        Store(out / one.folder).forget()
    budget = min(60 * (a.minutes or math.inf), a.budget or math.inf)
    settings = select_settings(a, "processes", "batch") | {"budget": BUDGET if budget == math.inf else budget}
    settings |= {"folder": out, "tell": lambda text: print(text, file=sys.stderr)}
    history, shared = open_history(a, [replace(one.distribution, name=one.name) for one in conditions])
    c = certify_conditions(conditions, missing=missing, name=name, spec=spec, **settings | shared)
    c = add_night(history, c, a)
    return finish(c, out, spec, a.require)


def run_transformers(a: Arguments) -> int:
    """certify transformers' generate; its options follow after --"""
    from parity_certify.adapters import replaying
    from parity_certify.adapters import transformers as adapter
    from parity_certify.diagnosis import diagnose_counts

    options = dict(a.options)
    target, drafts = a.target or make_checkpoint(a, "target"), a.assistant
    model = adapter.load_model(target)
    drafting = {"prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp"}  # these draft without an assistant
    if not drafts and not a.target and not drafting & set(options):
        drafts = make_checkpoint(a, "assistant")
    spec: dict[str, Any] = {"engine": f"transformers {importlib.metadata.version('transformers')}"}
    spec |= {"target": digest_weights(target), "options": dict(options), "kind": model.config.model_type}
    spec |= tell_settings(model, options)
    if drafts:
        options["assistant_model"] = adapter.load_model(drafts)
        spec["assistant"] = digest_weights(drafts)
        if a.universal:
            options |= {
                "tokenizer": adapter.load_tokenizer(target),
                "assistant_tokenizer": adapter.load_tokenizer(drafts),
            }
            spec["universal"] = True
    if a.generator:
        options["candidate_generator"] = load(a.generator)
        spec["generator"] = [a.generator, digest_code(a.generator)]
    words = [f"{k}={shorten_value(v)}" for k, v in spec["options"].items()]
    name = " ".join(["transformers", model.config.model_type, *words])
    is_one = names_condition(a, {k: v for k, v in options.items() if k not in adapter.SPECULATIVE})
    a = complete_flags(a)
    if not is_one:
        return judge_conditions(a, *adapter.make_conditions(model, options), spec, name)
    distribution = adapter.compute_distribution(
        model, make_prompts(a, adapter.get_vocab_size(model)), a.length, options, end=a.end
    )
    paged = options.get("cache_implementation") == "paged"
    sampler = (adapter.Continuous if paged else adapter.Generate)(model, a.length, options, a.end)

    def diagnose(c: Any) -> dict[str, Any]:
        """Diagnose a lossy certificate: by replaying processors with a state, else by the distributions of known
        faults."""
        located = replaying.diagnose_by_replaying(sampler, distribution, min(400, max(c.details["n"])), a.seed + 2)
        return located or diagnose_counts(c.counts, distribution, adapter.list_suspects(sampler, distribution))

    return judge_sampler(a, sampler, distribution, spec, name, diagnose)


def shorten_value(value: Any) -> str:
    """Write an option's value in at most 40 characters that a folder's name may hold."""
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return "".join(c for c in text if c.isalnum() or c in ".-,")[:40]


def make_checkpoint(a: Arguments, role: str) -> Path:
    """Make a tiny "target" or "assistant" in results/certify/models, unless it exists, and return its folder."""
    from parity_certify.models import write_model, write_speculator

    folder = Path("results/certify/models") / f"{a.kind}-{a.vocab}-{role}"
    if not (folder / "config.json").is_file():
        if role == "target":
            write_model(a.kind, folder, a.vocab)
        else:
            write_speculator(make_checkpoint(a, "target"), folder, a.tv)
    return folder


def run_server(a: Arguments) -> int:
    """certify an OpenAI-compatible server; sampling options follow after --"""
    from parity_certify.adapters import server as adapter
    from parity_certify.adapters.transformers import get_vocab_size, load_model, load_tokenizer, make_logits

    options = dict(a.options)
    model, tokenizer = load_model(a.target), load_tokenizer(a.target)
    V, logits, name = get_vocab_size(model), make_logits(model), f"server {a.model}".strip()

    def connect(length: int, options: dict[str, Any], **fields: Any) -> Any:
        """Make a sampler of this length that sends the options."""
        return adapter.Server(
            a.url, length, tokenizer, model=a.model, timeout=a.timeout, options=options, end=a.end, **fields
        )

    named = adapter.select_distribution_options(options)
    is_one = names_condition(a, named)
    a = complete_flags(a)
    sampler = connect(a.length, options)
    if a.wait:
        sampler.wait(a.wait)
    engine = a.engine or sampler.name_engine()
    spec = {"engine": sampler.describe_engine(), "url": a.url, "target": digest_weights(a.target), "options": options}
    spec |= tell_settings(model, named, applied=False)
    if not is_one:
        connect_more = lambda length, options, **fields: connect(length, dict(a.options) | options, **fields)  # noqa: E731
        return judge_conditions(
            a, *adapter.make_conditions(connect_more, logits, V, engine), spec, name, may_change=True
        )
    prompts = make_prompts(a, V)

    def compute_distribution(options: dict[str, Any]) -> Any:
        """Compute the distribution of the server's engine with these options."""
        return adapter.compute_distribution(
            logits, options, engine, vocab=V, length=a.length, prompts=prompts, end=a.end
        )

    distribution = compute_distribution(named)
    without = {name: compute_distribution({k: v for k, v in named.items() if k != name}) for name in named}
    adapter.check_options_heeded(
        sampler, distribution, without | ({", ".join(named): compute_distribution({})} if named else {})
    )
    return judge_sampler(a, sampler, distribution, spec, name, may_change=True)


def compute_model_distribution(a: Arguments, options: dict[str, Any]) -> Any:
    """Compute the distribution of the model in --target after the prompts, under these sampling options of
    `generate`."""
    from parity_certify.adapters import transformers as adapter

    model = adapter.load_model(a.target)
    return adapter.compute_distribution(
        model, make_prompts(a, adapter.get_vocab_size(model)), a.length, options, end=a.end
    )


def run_sampler(a: Arguments) -> int:
    """certify a Python function sample(prompts [n, P], seed) -> tokens [n, L]"""
    sample = Loaded(a.sampler)
    spec: dict[str, Any] = {"sampler": a.sampler, "code": digest_code(a.sampler)}
    options = dict(a.options)
    is_one = names_condition(a, options) or a.distribution is not None
    a = complete_flags(a)
    if (a.distribution or a.logits) and not a.vocab:
        raise ParityError("--distribution, --logits: need --vocab")
    if a.distribution:
        probs, sizes = load(a.distribution), {"vocab": a.vocab, "length": a.length}
        distribution = target_distribution(probs, **sizes, prompts=make_prompts(a, a.vocab), end=a.end)
        spec["distribution"] = [a.distribution, digest_code(a.distribution)]
        return judge_sampler(a, sample, distribution, spec, sample.__name__)
    if a.logits:
        logits, V = load(a.logits), a.vocab
        spec["logits"] = [a.logits, digest_code(a.logits)]
    elif a.target:
        from parity_certify.adapters import transformers as adapter

        model = adapter.load_model(a.target)
        logits, V = adapter.make_logits(model), adapter.get_vocab_size(model)
        spec |= {"target": digest_weights(a.target), "options": options}
    else:
        raise ParityError("--target, --logits, --distribution: none given; allowed: one of them")
    keywords = list_keywords(sample)
    if a.logits or (not is_one and (keywords is None or keywords & list_names())):
        spec |= {} if a.logits else tell_settings(model, options, applied=False)
        conditions = make_conditions(sample, logits, vocab=V, length=a.length, engine=a.engine)
        return judge_conditions(a, *conditions, spec, sample.__name__)
    spec |= tell_settings(model, options)
    return judge_sampler(a, sample, compute_model_distribution(a, options), spec, sample.__name__)


def run_verifier(a: Arguments) -> int:
    """certify a function verify(draft_tokens, draft_probs, target_probs) -> tokens"""
    name = a.verifier.rpartition(":")[2]
    settings = select_settings(a, "vocab", "drafts", "shape", "n")
    c = certify_verifier(load(a.verifier), seeds=pair_seeds(a.seed, "--seed"), name=name, **settings)
    return finish(c, a.out, {"verifier": a.verifier}, a.require)


def run_command(a: Arguments) -> int:
    """certify an engine over stdin and stdout; the command follows after --, with {temperature} and the like in it"""
    distribution = read_distribution(a.distribution)
    if not a.rest:
        raise ParityError("command: none; allowed: -- ./engine ARGUMENTS")
    settings = select_settings(a, "n", "minutes", "budget", "repeat", "batch", "timeout", "engine")
    history, shared = open_history(a)
    c = certify_command(a.rest, distribution, folder=a.out, **settings | shared)
    c = add_night(history, c, a)
    return finish(c, a.out, {"engine": shlex.join(a.rest), "distribution": a.distribution}, a.require)


def run_samples(a: Arguments) -> int:
    """certify samples drawn elsewhere: JSON lines or CSV"""
    c = certify_samples(a.samples, read_distribution(a.distribution), **select_settings(a))
    return finish(c, a.out, {"samples": a.samples, "distribution": a.distribution}, a.require)


def run_distribution(a: Arguments) -> int:
    """write a random table model and its draft model"""
    write_distribution(random_distribution(a.vocab, a.length, a.seed), a.out or Path("target.json"))
    print(a.out or "target.json")
    return 0


def run_texts(a: Arguments) -> int:
    """certify a large model's texts by its conditionals; options of sampling follow after --"""
    from parity_certify.texts import certify_texts

    settings = {name: getattr(a, name) for name in ("dtype", "alpha", "minutes", "budget", "seed")}
    c = certify_texts(a.target, a.texts, options=dict(a.options), **settings)
    target = {"target": digest_weights(a.target)} if a.target else {}
    return finish(c, a.out, target | {"texts": str(a.texts)})


def run_models(a: Arguments) -> int:
    """write tiny checkpoints of an architecture, and what drafts for them"""
    from parity_certify import models as tools

    if a.out is None:
        raise ParityError("--out: needed: the folder to write to")
    for flag in ("gguf", "heads"):
        if getattr(a, flag) and a.kind != "llama":
            raise ParityError(f"--{flag}: --kind {a.kind}; allowed: llama")
    if a.gguf:
        from parity_certify.gguf_files import write_gguf
    sizes = {"head_dim": a.head_dim, "hidden_size": a.hidden_size}
    changes = {key: size for key, size in sizes.items() if size is not None}
    tools.check_changes(a.kind, changes)
    if a.heads:
        from parity_certify import heads

        changes["num_hidden_layers"] = heads.LAYERS
    if a.kind in ("gemma4", "mellum"):  # their drafters are made together with the target
        folders = {"gemma4": tools.write_gemma4, "mellum": tools.write_mellum}[a.kind](a.out, a.vocab, a.seed)
    else:
        target = tools.write_model(a.kind, a.out / a.kind, a.vocab, a.seed, **changes)
        folders = [target, *tools.write_speculators(target, a.out, a.tv)]
    files = [write_gguf(folder) for folder in folders] if a.gguf else []
    if a.heads:
        folders += heads.write_heads(a.heads, a.out, a.vocab, a.seed, **changes)
    print(*folders, *files, sep="\n")
    return 0


FLAGS: dict[str, dict[str, Any]] = {
    "out": {"type": Path, "help": "folder of page, JSON, badge and samples"},
    "seed": {"type": int, "default": 0, "help": "of the run; a rejection is repeated with the next (%(default)s)"},
    "n": {"type": int, "help": "sequences (as many as --margin needs)"},
    "minutes": {"type": float, "help": "time for everything, in minutes"},
    "budget": {"type": parse_duration, "help": "time for everything: 30s, 2m, 1h"},
    "repeat": {"type": int, "help": "sequences of a rejection's repeat (twice those of the first, doubled as needed)"},
    "margin": {"type": float, "default": 0.05, "help": "TV below which a bound certifies (%(default)s)"},
    "alpha": {"type": float, "default": 0.05, "help": "probability that a correct sampler is rejected (%(default)s)"},
    "require": {"choices": REQUIRED, "default": "certified", "help": "least verdict that passes (%(default)s)"},
    "history": {"type": Path, "help": "file of the nights before: --false-alarm holds for all nights together"},
    "batch": {"type": int, "default": 100, "help": "most rows of a call, a look after each (%(default)s)"},
    "processes": {"type": int, "default": 1, "help": "samplers side by side (%(default)s)"},
    "length": {"type": int, "default": 3, "help": "tokens drawn (%(default)s)"},
    "prompts": {"type": json.loads, "default": 2, "help": "how many, or a JSON list of them (%(default)s)"},
    "prompt-length": {"type": int, "default": 3, "help": "of random prompts (%(default)s)"},
    "end": {"type": int, "help": "end token"},
    "target": {"type": Path, "help": "folder of the model whose distribution it is"},
    "assistant": {"type": Path, "help": "folder of the draft model"},
    "universal": {"action": "store_true", "help": "the assistant has a tokenizer of its own"},
    "generator": {"help": "FILE.py:FUNCTION of transformers' candidate generator, returns another"},
    "kind": {"default": "llama", "help": "architecture of the tiny model that is made (%(default)s)"},
    "vocab": {"type": int, "default": 4, "help": "tokens of the model (%(default)s)"},
    "tv": {"type": float, "default": 0.3, "help": "of the draft models that are made (%(default)s)"},
    "head-dim": {"type": int, "help": "width of a head (8); vLLM's CPU build takes 32 and more"},
    "hidden-size": {"type": int, "help": "width of the model (16); some engines take multiples of 32, 64 or 256"},
    "dtype": {
        "choices": ("float64", "float32", "bfloat16", "float16"),
        "default": "float32",
        "help": "that the engine computes in: a shorter one rounds over the border of top-p and the like (%(default)s)",
    },
    "heads": {
        "nargs": "+",
        "choices": HEADS,
        "default": (),
        "help": "draft heads for the llama, in the layouts of vLLM and SGLang; mtp: a target of its own (none)",
    },
    "gguf": {"action": "store_true", "help": "a file for llama.cpp in each folder, too (llama alone)"},
    "url": {"required": True, "help": "of the server"},
    "engine": {
        "type": read_engine,
        "default": "transformers",
        "help": f"whose distribution it is: {', '.join(ENGINES)}, or its options in the order in which it applies them,"
        " as temperature,top_p,top_k (%(default)s)",
    },
    "model": {"default": "", "help": "name of the model in requests"},
    "timeout": {"type": float, "default": 60, "help": "seconds for an answer (%(default)s)"},
    "wait": {"type": parse_duration, "help": "time for the server to start: 30s, 5m (none)"},
    "distribution": {"required": True, "help": "a file of `distribution`"},
    "logits": {
        "help": "FUNCTION of prefixes [n, P + t] -> logits [n, V]: the sampler is tested under options it takes"
    },
    "shape": {"choices": SHAPES, "default": "row", "help": "of the function's arguments (%(default)s)"},
    "drafts": {"type": int, "default": 3, "help": "drafted tokens, K (%(default)s)"},
    "texts": {"type": Path, "required": True, "help": "JSON lines: prompt and tokens, perhaps logprobs"},
}
EXAMPLES = {  # shown in the help of commands that take words after --
    "transformers": "parity-certify transformers --margin 0.1 -- num_assistant_tokens=4 temperature=0.7",
    "server": "parity-certify server --url http://127.0.0.1:8080 --target m/llama -- temperature=0.7",
    "sampler": "parity-certify sampler my.py:sample --target m/llama -- temperature=0.7",
    "command": "parity-certify command --distribution target.json -- ./engine target.json --temperature {temperature}",
    "texts": "parity-certify texts --target DIR --texts FILE.jsonl --minutes 5 -- temperature=0.7 top_p=0.9",
}
EXTRA = dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors"), "transformers") | {"gguf": "gguf"}
JUDGING = ("margin", "alpha", "require")
ALIASES = {"alpha": ("--false-alarm",)}
TIMES = ("n", "minutes", "budget", "repeat", "batch")
ENUMERATED = (*JUDGING, *TIMES, "history", "processes", "length", "prompts", "prompt-length", "end")
# flags that name one condition, and what they are where a sampling option names it
ONE: dict[str, Any] = {"n": None, "repeat": None, "length": 3, "prompts": 2, "prompt_length": 3, "end": None}
OLD = {"law": "distribution", "--law": "--distribution"}  # deprecated
FUNCTION = "MODULE:FUNCTION or FILE.py:FUNCTION"


def replace_deprecated(words: list[str]) -> list[str]:
    """Replace deprecated words before "--" by today's, with a line on stderr for each."""
    end = words.index("--") if "--" in words else len(words)
    replaced = list(words)
    for n, word in enumerate(words[:end]):
        name, equals, value = word.partition("=")
        if name in OLD and (n == 0 or name.startswith("-")):
            print(f"{name}: deprecated; use {OLD[name]}", file=sys.stderr)
            replaced[n] = OLD[name] + equals + value
    return replaced


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the exit code of what could not be run."""

    def error(self, message: str) -> NoReturn:
        """Print an error and exit."""
        self.exit(COULD_NOT_RUN, f"error: {message}; see {self.prog} --help\n")


def make_parser(*extensions: Callable[[Any], None]) -> argparse.ArgumentParser:
    """Make the parser of the command line; each of `extensions` is called with `add_command`."""
    main = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = main.add_subparsers(dest="way", required=True)

    def add_command(run: Callable[[Arguments], int], *flags: str, **changes: dict[str, Any]) -> argparse.ArgumentParser:
        """Add the command that a function `run_<command>` runs, with its docstring as help, --out, --seed and `flags`
        of FLAGS. changes: settings that replace those in FLAGS, by flag. Returns the command's parser."""
        name = run.__name__.removeprefix("run_")
        about: dict[str, Any] = {"help": run.__doc__, "description": run.__doc__}
        if example := EXAMPLES.get(name):
            about |= {"epilog": f"example:\n  {example}", "formatter_class": argparse.RawDescriptionHelpFormatter}
        p = ways.add_parser(name, **about)
        p.set_defaults(run=run)
        for flag in ("out", "seed", *flags):
            p.add_argument(f"--{flag}", *ALIASES.get(flag, ()), **FLAGS[flag] | changes.get(flag, {}))
        return p

    wide = {"default": 0.1, "help": "TV below which a bound certifies (%(default)s, not .05, as engines are slow)"}
    tiny = ("kind", "vocab", "tv")
    optional: dict[str, Any] = {"help": "folder of the model (none: a tiny one is made)"}
    drafting = ("target", "assistant", "universal", "generator", *tiny)
    one: dict[str, Any] = {}  # flags that name a condition: none of them given, a command goes through several
    for name, default in ONE.items():
        flag = name.replace("_", "-")
        one[flag] = {"default": None, "help": FLAGS[flag]["help"].replace("%(default)s", str(default))}
    add_command(run_transformers, *drafting, *ENUMERATED, margin=wide, target=optional, **one)
    served = ("url", "target", "model", "engine", "timeout", "wait", *ENUMERATED)
    asked = {"default": None, "help": FLAGS["engine"]["help"].replace("%(default)s", "asked of the server")}
    add_command(run_server, *served, margin=wide, target={"required": True}, engine=asked, **one)
    function = {"required": False, "help": "FUNCTION of prefixes [n, P + t] -> probabilities [n, V]"}
    own = one | {"distribution": function, "vocab": {"default": 0}}
    p = add_command(run_sampler, "target", "logits", "distribution", "vocab", "engine", *ENUMERATED, **own)
    p.add_argument("sampler", help=FUNCTION)
    add_command(run_verifier, "shape", "vocab", "drafts", "n", *JUDGING).add_argument("verifier", help=FUNCTION)
    add_command(run_command, "distribution", "timeout", "engine", *JUDGING, *TIMES, "history", batch={"default": 500})
    add_command(run_samples, "distribution", *JUDGING).add_argument("samples")
    add_command(run_distribution, "vocab", "length")
    optional = {"help": "folder of the model; without it, by the file's own top_logprobs, in fewer tests"}
    add_command(run_texts, "target", "texts", "dtype", "alpha", "minutes", "budget", target=optional)
    add_command(run_models, *tiny, "head-dim", "hidden-size", "gguf", "heads")
    for extend in extensions:
        extend(add_command)
    return main


def main(*extensions: Callable[[Any], None]) -> None:
    """Run the command of sys.argv and exit with its code. Words after "--" become `a.rest` and, parsed as key=value,
    `a.options`. Any error is printed as one line, with the exit code COULD_NOT_RUN, and stands as a test's error in
    the junit.xml of --out. extensions: see `make_parser`."""
    words = sys.argv[1:]
    words = replace_deprecated(words)
    if "--texts" in words and words[0].startswith("-"):
        words = ["texts", *words]  # `parity certify --target FOLDER --texts FILE.jsonl` means the command `texts`
    split = words.index("--") if "--" in words else len(words)
    message, code = "", COULD_NOT_RUN
    a = Arguments(out=None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops the command as Ctrl-C does
    try:
        a = make_parser(*extensions).parse_args(words[:split])
        a.rest = words[split + 1 :]
        a.options = [] if a.way == "command" else [parse_option(text) for text in a.rest]
        code = run_way(a)
    except KeyboardInterrupt as error:
        print(str(error) or "stopped", file=sys.stderr)
    except BrokenPipeError:  # the reader of the output has ended, such as `head`
        discard_output()
    except ParityError as error:
        message = str(error)
    except argparse.ArgumentTypeError as error:
        message = f"options: {error}"
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else describe_error(error)
    except Exception as error:  # exit code 1 of an uncaught error would mean lossy
        message = describe_error(error)
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRA:
            message = f'needs {error.name}: pip install "parity-certify[{EXTRA[error.name]}]"'
    if message:
        print(f"error: {message}", file=sys.stderr)
        discard_output()
        if a.out and a.way not in WITHOUT_VERDICT:
            with contextlib.suppress(OSError):
                publish(a.out / "junit.xml", page.format_suite(a.way, code, message, "error"))
    raise SystemExit(code)


def run_way(a: Arguments) -> int:
    """Run the command that was asked for and return its exit code. Raises ParityError if the user's code ends the
    process, whatever exit code it asks for."""
    try:
        check_seed(a.seed, "--seed")
        code: int = a.run(a)
        sys.stdout.flush()
    except SystemExit as error:
        raise ParityError(f"the tested code ends the process: {describe_error(error)}") from None
    return code


def discard_output() -> None:
    """Write what standard output still holds or, if that fails, drop it: an error at exit would change the code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
