"""One case of an implementation, in its own environment: python case.py FOLDER CASE MODELS OUT (see frame.py).

The folder's adapter.py is loaded and certified, between two controls of the same shape: a sampler that is right must
not be rejected, and the adapter must be rejected where it is told other distributions than those it is judged by.
"""

import inspect
import json
import platform
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from parity_certify import (
    Condition,
    Distribution,
    Sampled,
    certify_conditions,
    certify_sampler,
    certify_speculation,
    certify_verifier,
)
from parity_certify.distributions import absorb_end, random_distribution
from parity_certify.processors import softmax
from parity_certify.verifiers import draw_tokens, sample_and_match, tree

SETTINGS = ("n", "margin", "seeds", "batch", "repeat")
CONTROL_N = 600  # number of sequences of a control


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def load_adapter(folder: Path) -> Any:
    """Import the adapter.py of a folder, as the module `adapter`."""
    spec = util.spec_from_file_location("adapter", folder / "adapter.py")
    adapter = util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules["adapter"] = adapter
    spec.loader.exec_module(adapter)  # type: ignore[union-attr]
    return adapter


# Laws


def truncate_distributions(
    tables: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Apply a temperature, then top-k, then top-p to conditionals [..., V], as transformers does."""
    p = tables ** (1 / temperature)
    p = p / p.sum(-1, keepdims=True)
    if top_k:
        p = np.where(p >= np.sort(p, -1)[..., -top_k, None], p, 0)
        p = p / p.sum(-1, keepdims=True)
    if top_p < 1:
        order = np.argsort(-p, -1)
        ranked = np.take_along_axis(p, order, -1)
        in_top_p = ranked.cumsum(-1) - ranked < top_p
        p = np.where(np.take_along_axis(in_top_p, np.argsort(order, -1), -1), p, 0)
        p = p / p.sum(-1, keepdims=True)
    return p


def make_distribution(case: dict[str, Any], models: Path) -> Distribution:
    """Make the distribution to judge a sampler by, with the case's options: the tiny Llama's, that of
    `model: square`, or a table's (`model: table`)."""
    sampling = {k: v for k, v in case["options"].items() if k in ("temperature", "top_k", "top_p")}
    if (model := case.get("model", "llama")) == "table":
        distribution = random_distribution(case.get("vocab", 4), case.get("length", 3))
        prompts, tables = distribution.prompts, distribution.tables
    else:
        distribution = Distribution("tiny Llama", *np.zeros((2, 0)), 3)
        saved = np.load(models / f"{model}-law-{case.get('prompt', 3)}.npz")
        prompts, tables = saved["prompts"], saved["tables"]
    end = case.get("end")
    tables = np.stack(
        [absorb_end(table, distribution.length, end) for table in truncate_distributions(tables, **sampling)]
    )
    return Distribution(distribution.name, prompts, tables, distribution.length, end, distribution.extra)


# Samplers


def make_correct_sampler(distribution: Distribution) -> Any:
    """Make a sampler that draws from the distribution, and counts a draft a row, accepted."""

    def sample(prompts: np.ndarray, seed: int) -> Sampled:
        """Draw tokens [n, L] after prompts [n, P]."""
        rng, V = np.random.default_rng(seed), distribution.vocab
        numbers = np.array([int((distribution.prompts == prompt).all(1).argmax()) for prompt in prompts])
        codes = np.array([rng.choice(V**distribution.length, p=distribution.joint[k]) for k in numbers])
        tokens = codes[:, None] // V ** np.arange(distribution.length - 1, -1, -1) % V
        return Sampled(tokens, len(tokens), len(tokens))

    return sample


def judge_sampler(adapter: Any, case: dict[str, Any], models: Path) -> tuple[Any, dict[str, str]]:
    """Certify the adapter's sampler, and run two controls. Returns the certificate, and the kinds of verdict of a
    correct sampler ("right") and of the adapter's when it is judged by another distribution ("wrong")."""
    make = getattr(adapter, "distribution", make_distribution)
    distribution = make(case, models)
    sample = adapter.sampler(distribution, models, **case["options"])
    tables = truncate_distributions(distribution.tables, 2.0)
    tables = (
        np.roll(tables, 1, -1) if np.allclose(tables, distribution.tables) else tables
    )  # a greedy distribution has no flatter one
    flatter = Distribution("other", distribution.prompts, tables, distribution.length, distribution.end)
    settings = {k: case[k] for k in SETTINGS if k in case}
    budget = {} if "n" in case else {"budget": 45 * case.get("minutes", 5)}
    settings |= {"claim": case["claim"], "name": case.get("name", "sampler"), **budget}
    certificate = certify_sampler(sample, distribution, **settings)
    right = certify_sampler(
        make_correct_sampler(distribution), distribution, n=max(certificate.details["n"]), draws=CONTROL_N, tell=tell
    )
    wrong = certify_sampler(sample, flatter, n=CONTROL_N, draws=CONTROL_N, tell=tell)
    return certificate, {"right": right.verdict.kind, "wrong": wrong.verdict.kind}


# Designs


def load_logits(models: Path, which: str = "logits", name: str = "llama") -> Any:
    """Load the function of a tiny model's logits [n, V] after the prefixes of the default design [n, P + t]; which:
    "draft_logits" for those of its draft model."""
    with np.load(models / f"{name}-logits.npz") as saved:
        logits = dict(zip(saved["prefixes"].tolist(), saved[which], strict=True))
    return lambda prefixes: np.stack([logits["".join(map(str, row))] for row in np.asarray(prefixes).tolist()])


def judge_design(adapter: Any, case: dict[str, Any], models: Path) -> tuple[Any, dict[str, str]]:
    """Certify the conditions of the adapter as one default command does, and run two controls; returns as
    `judge_sampler` does. "right" draws from the conditions' distributions, "wrong" is the adapter judged by others."""
    conditions, missing = adapter.design(models, **case["options"])
    settings = {k: case[k] for k in ("n", "margin", "seeds", "batch") if k in case}
    settings |= {"claim": case["claim"], "name": case.get("name", "sampler"), "tell": tell}
    certificate = certify_conditions(conditions, missing=missing, **settings)
    right = [Condition(one.name, make_correct_sampler(one.distribution), one.distribution) for one in conditions]
    rolled = [
        Distribution(
            "other",
            c.distribution.prompts,
            np.roll(c.distribution.tables, 1, -1),
            c.distribution.length,
            c.distribution.end,
        )
        for c in conditions[:1]
    ]
    wrong = [Condition(c.name, c.sample, distribution) for c, distribution in zip(conditions, rolled, strict=False)]
    common: dict[str, Any] = {"n": CONTROL_N, "budget": None, "draws": CONTROL_N}
    controls = {"right": certify_conditions(right, **common), "wrong": certify_conditions(wrong, **common)}
    return certificate, {name: c.verdict.kind for name, c in controls.items()}


# Verifiers


def verify_row(tokens: np.ndarray, q: np.ndarray, p: np.ndarray, rng: np.random.Generator) -> list[int]:
    tokens = sample_and_match(tokens[None], q[None], p[None], rng)[0]
    return tokens[tokens >= 0].tolist()


def flatten_target(verify: Any) -> Any:
    """Wrap a verifier so that its target probabilities, the last argument, are flatter than those it is judged by."""

    def verify_flatter(*arguments: np.ndarray, **keywords: Any) -> Any:
        return verify(*arguments[:-1], truncate_distributions(np.asarray(arguments[-1]), 2.0), **keywords)

    verify_flatter.__signature__ = inspect.signature(verify)  # type: ignore[attr-defined]  # whether it takes `rng`
    return verify_flatter


def judge_verifier(adapter: Any, case: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Certify the adapter's verifier, and run two controls; returns as `judge_sampler` does. For "wrong", the adapter
    is told flatter target distributions than it is judged by."""
    verify, shape = adapter.verifier(**case["options"]), case.get("shape", "row")
    common = {k: case[k] for k in ("vocab", "drafts", "branches", "problems") if k in case}
    common = {"drafts": 2, "shape": shape} | common
    settings = {k: case[k] for k in SETTINGS if k in case}
    certificate = certify_verifier(verify, claim=case["claim"], name=case.get("name", "verifier"), **common, **settings)
    correct = {"row": verify_row, "batch": sample_and_match, "tree": tree}[shape]
    right = certify_verifier(correct, n=max(certificate.details["n"]), draws=CONTROL_N, tell=tell, **common)
    wrong = certify_verifier(flatten_target(verify), n=CONTROL_N, draws=CONTROL_N, tell=tell, **common)
    return certificate, {"right": right.verdict.kind, "wrong": wrong.verdict.kind}


# Rounds of speculation


def speculate(draft_model: Any, target_model: Any, prefixes: np.ndarray, drafts: int, rng: np.random.Generator) -> Any:
    """Draw drafts and verify them, for prefixes [n, t]."""
    out, distributions = prefixes, []
    for _ in range(drafts):
        distributions.append(softmax(draft_model(out)))
        out = np.concatenate([out, draw_tokens(distributions[-1], rng)[:, None]], 1)
    start = prefixes.shape[1]
    p = np.stack([softmax(target_model(out[:, : start + t])) for t in range(drafts + 1)], 1)
    return sample_and_match(out[:, start:], np.stack(distributions, 1), p, rng)


def judge_speculation(adapter: Any, case: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """Certify the adapter's rounds of speculation, and run two controls; returns as `judge_sampler` does. For "wrong",
    the adapter's target model is flatter than the one it is judged by."""
    tested = adapter.speculation(**case["options"])
    common = {k: case[k] for k in ("vocab", "drafts", "problems") if k in case}
    settings = {k: case[k] for k in SETTINGS if k in case} | {"shape": case.get("shape", "row")}
    settings |= {"claim": case["claim"], "name": case.get("name", "speculation")}
    certificate = certify_speculation(tested, **common, **settings)

    def speculate_flatter(draft_model: Any, target_model: Any, *arguments: Any, **keywords: Any) -> Any:
        return tested(draft_model, lambda prefixes: target_model(prefixes) / 2, *arguments, **keywords)

    speculate_flatter.__signature__ = inspect.signature(tested)  # type: ignore[attr-defined]  # whether it takes `rng`
    few: dict[str, Any] = {"n": CONTROL_N, "draws": CONTROL_N, "tell": tell}
    right = certify_speculation(speculate, **common, **few | {"shape": "batch"})
    wrong = certify_speculation(speculate_flatter, **common, **few | {"shape": settings["shape"]})
    return certificate, {"right": right.verdict.kind, "wrong": wrong.verdict.kind}


# Texts


def judge_texts(adapter: Any, case: dict[str, Any], models: Path) -> tuple[Any, dict[str, str]]:
    """Certify texts that the adapter draws by its target's conditionals, on a second seed too if they are rejected;
    returns as `judge_sampler` does. "right" is plain sampling, "wrong" the same texts by that at temperature 2."""
    from parity_certify.texts import certify_texts  # needs torch, which not every environment has

    folder, draw = adapter.texts(models, **case["options"])
    n = case["n"]

    def certify(texts: list[dict[str, Any]], **options: float) -> Any:
        """Certify texts by the target's distribution under options of sampling."""
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, "texts.jsonl")
            file.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
            return certify_texts(folder, file, options=options, tell=tell)

    texts, drafted, accepted = draw(n, 0)
    certificate, seeds = certify(texts), [0]
    if certificate.verdict.kind == "lossy":
        texts, drafted, accepted = draw(n, 1)
        certificate, seeds = certify(texts), [0, 1]
    wrong, right = certify(texts, temperature=2.0), certify(draw(n, 2, is_plain=True)[0])
    certificate.details.update({"drafted": drafted, "accepted": accepted, "seeds": seeds})
    return certificate, {"right": right.verdict.kind, "wrong": wrong.verdict.kind}


def main() -> None:
    """Judge the case of the command line, and write its row as JSON; a row whose controls fail has an "error"."""
    folder, case, models, out = Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    start = time.monotonic()
    adapter = load_adapter(folder)
    case["name"] = folder.name
    if case["level"] in ("verifier", "speculation"):
        of_level = {"verifier": judge_verifier, "speculation": judge_speculation}[case["level"]]
        certificate, controls = of_level(adapter, case)
    else:
        judge = {"sampler": judge_sampler, "texts": judge_texts, "design": judge_design}[case["level"]]
        certificate, controls = judge(adapter, case, models)
    row = {"verdict": certificate.verdict.json(), "controls": controls, "seconds": round(time.monotonic() - start, 1)}
    row |= {k: certificate.details.get(k) for k in ("n", "drafted", "accepted", "needed", "margin", "where")}
    row["conditions"] = certificate.details.get("conditions", {})
    row["seeds"] = certificate.details.get("seeds") or list(dict.fromkeys(r["seed"] for r in certificate.rows))
    effects = [r["minimum_detectable_effect"] for r in certificate.rows if r["test"] == "all looks"]
    row["detectable"] = max((x for x in effects if x is not None), default=None)
    harness = controls["right"] in ("certified", "consistent") and controls["wrong"] == "lossy"
    row["error"] = "" if harness else f"the harness is not to be trusted here: controls {controls}"
    versions = {d.metadata["Name"]: d.version for d in metadata.distributions()} | {"python": platform.python_version()}
    row["versions"] = {k: versions[k] for k in sorted(versions, key=str.lower)}
    out.write_text(json.dumps(row))
    print(certificate)


if __name__ == "__main__":
    main()
