"""Sample from an OpenAI-compatible server over loopback (vLLM, SGLang, llama.cpp, mlx-lm): completions with a seed.

A prompt is text, a token a letter (the tiny checkpoints' tokenizers), or token numbers with `prompt_as=ids`. Requests
run side by side. Drafts are counted where the engine tells them: `timings` of llama.cpp's answers, `/metrics` of vLLM.
"""

import contextlib
import functools
import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from parity_certify import design, distributions
from parity_certify.calls import Drawn, Sampled, draw_batch
from parity_certify.errors import ParityError
from parity_certify.processors import (
    ENGINES,
    Engine,
    Logits,
    check_options,
    list_options,
    rename_options,
    shape_distribution,
)

PLAIN = {  # a server may have other defaults, as of generation_config.json
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "cache_prompt": True,
}  # fmt: skip
WHOLE = {"skip_special_tokens": False, "return_token_ids": True}  # for vLLM and SGLang: return all letters, or numbers
NOT_OF_DISTRIBUTION = (
    "prompt_as",
    "parallel",
    "cache_prompt",
    "ignore_eos",
)  # and those whose names begin with "speculative"
PROBE = 200  # sequences that tell whether the server heeds an option
IGNORED = math.log(1e4)  # a log likelihood ratio for the distribution without an option, by which the server ignores it
COUNTERS = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")


class Server:
    """A sampler that sends one completion request for each prompt, `parallel` of them side by side."""

    def __init__(
        self,
        url: str,
        length: int,
        tokenizer: Any,
        *,
        model: str = "",
        timeout: float = 60,
        options: dict[str, Any] | None = None,
        end: int | None = None,
        by_prompt: dict[tuple[int, ...], dict[str, Any]] | None = None,
    ):
        """Set up the sampler, without sending anything. Raises ParityError without a tokenizer.

        length: tokens to draw; tokenizer: gives the letter of each token; model: name in requests, "" leaves it out;
        timeout: seconds for an answer; options: fields of the request, where `prompt_as` ("text" or "ids") and
        `parallel` (8) are read here and not sent; by_prompt: more fields for the prompts that it has;
        end: the end token that is put after shorter answers.
        """
        fields = dict(options or {})
        self.url, self.length, self.timeout, self.end = url.rstrip("/"), length, timeout, end
        self.ids, self.parallel = fields.pop("prompt_as", "text") == "ids", int(fields.pop("parallel", 8))
        if tokenizer is None:
            raise ParityError("--target: has no tokenizer.json; needed to read the server's text")
        self.letters = [token for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))) if len(token) == 1]
        self.body = {"max_tokens": length, **PLAIN, **WHOLE, **fields} | ({"model": model} if model else {})
        self.by_prompt = by_prompt or {}
        self.__name__ = "server"

    def send_request(self, path: str, body: dict[str, Any] | None = None) -> str:
        """Send `body` as JSON (None: GET), return the answer's text. Raises ParityError if none comes, or an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            first = error.read().decode(errors="replace").partition("\n")[0]
            raise ParityError(f"server {self.url}{path}: {error.code}: {first[:200]}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise ParityError(f"server {self.url}: no answer in {self.timeout:g} s; allowed: --timeout") from None
            raise ParityError(f"server {self.url}: not there ({reason})") from None

    def wait(self, seconds: float) -> None:
        """Wait until the server says that it is healthy or, if it has no such page, lists its models. Raises
        ParityError if it has not in this many seconds."""
        end = time.monotonic() + seconds
        while True:
            try:
                self.send_request("/health")
                return
            except ParityError as error:
                problem = error
            if "/health: 404" in str(problem):
                with contextlib.suppress(ParityError):
                    self.send_request("/v1/models")
                    return
            if time.monotonic() > end:
                raise ParityError(f"{problem}; waited {seconds:g} s; allowed: a longer --wait")
            time.sleep(min(1.0, max(0.0, seconds)))

    def describe_engine(self) -> str:
        """Return the server's version, else its models, else "unknown". Raises ParityError if it is not there."""
        for path in ("/version", "/props", "/v1/models"):
            try:
                answer = json.loads(self.send_request(path))
            except (ParityError, ValueError):
                continue
            build = answer.get("version") or answer.get("build_info")
            return str(build or [m.get("id") for m in answer.get("data", [])])
        self.send_request("/v1/models")
        return "unknown"

    def name_engine(self) -> str:
        """Name the engine, as in `processors.ENGINES`, by the pages that it has; "" if it is not known."""
        for path, key, name in (("/props", "build_info", "llama.cpp"), ("/version", "version", "vllm")):
            try:
                if key in json.loads(self.send_request(path)):
                    return name
            except (ParityError, ValueError):
                continue
        return ""

    def read_counters(self) -> list[int] | None:
        """Read vLLM's counts of drafts offered and accepted since it started; None if the server has none."""
        try:
            page = self.send_request("/metrics")
        except ParityError:
            return None
        numbers = [re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([0-9.e+]+)$", page, re.M) for name in COUNTERS]
        return [round(sum(map(float, n))) for n in numbers] if all(numbers) else None

    def parse_tokens(self, text: str) -> list[int]:
        """Turn an answer's text, a letter a token, into token numbers. Raises ParityError for any other letter."""
        if any(c not in self.letters for c in text):
            raise ParityError(f"server: answered {text!r}; allowed: letters of {''.join(self.letters)}")
        return [self.letters.index(c) for c in text]

    def complete_prompt(self, prompt: np.ndarray, seed: int) -> tuple[list[int], int, int]:
        """Complete one prompt [P]. Returns its tokens, with `end` after them if they are fewer than `length`, and
        drafts offered and accepted (-1: not counted). Raises ParityError for an answer without choices."""
        text = prompt.tolist() if self.ids else "".join(self.letters[t] for t in prompt)
        try:
            body = self.body | {"prompt": text, "seed": seed} | self.by_prompt.get(tuple(prompt.tolist()), {})
            answer = json.loads(self.send_request("/v1/completions", body))
            choice = answer["choices"][0]
            timings = answer.get("timings") or {}
        except ParityError:
            raise
        except (ValueError, KeyError, IndexError, TypeError):
            raise ParityError(f"server {self.url}: an answer without choices") from None
        ids = choice.get("token_ids")
        tokens = self.parse_tokens(choice["text"]) if ids is None else [int(t) for t in ids]
        if self.end is not None and len(tokens) < self.length:
            tokens.append(self.end)
        return tokens, int(timings.get("draft_n", -1)), int(timings.get("draft_n_accepted", -1))

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        """Complete prompts [n, P], each with a request seed drawn from `seed`. Returns n token lists, or `Sampled` if
        the server counts drafts, in vLLM's counters or the answers' timings."""
        first = self.read_counters()
        seeds = np.random.default_rng(seed).integers(1, 2**31 - 1, size=len(prompts)).tolist()
        with ThreadPoolExecutor(self.parallel) as pool:
            tokens, drafted, accepted = zip(*pool.map(self.complete_prompt, prompts, seeds), strict=True)
        if first is not None and (second := self.read_counters()) is not None:
            return Sampled(list(tokens), second[0] - first[0], second[1] - first[1])
        if max(drafted) >= 0:
            return Sampled(list(tokens), sum(max(0, d) for d in drafted), sum(max(0, a) for a in accepted))
        return list(tokens)


def select_distribution_options(options: dict[str, Any]) -> dict[str, Any]:
    """Select the options of a request that may change the distribution."""
    return {k: v for k, v in options.items() if k not in NOT_OF_DISTRIBUTION and not k.startswith("speculative")}


def compute_distribution(
    logits: Logits, options: dict[str, Any], engine: Engine, **settings: Any
) -> distributions.Distribution:
    """Enumerate the distribution of a server's engine with these options; settings: vocab, length, prompts, end of
    `target_distribution`. With the engine "", that of every engine that has the options. Raises ParityError for
    an option that no engine has, and if the engines' distributions differ."""
    known_to = [name for name in ENGINES if set(options) <= set(list_options(name))]
    names: Sequence[Engine] = [engine] if engine else known_to
    if not names:
        known = sorted({option for name in ENGINES for option in list_options(name)})
        unknown = [name for name in options if name not in known]
        problem = (
            f"{', '.join(unknown)}: the distribution does not know it"
            if unknown
            else f"{', '.join(options)}: no engine has all"
        )
        raise ParityError(f"options: {problem}; allowed: {', '.join(known)}")
    length, end = np.shape(settings["prompts"])[1], settings.get("end")
    found = []
    for name in names:
        check_options(options, name)
        found.append(
            distributions.target_distribution(
                shape_distribution(logits, options, name, length, end), **settings, name="model"
            )
        )
    if any(not np.allclose(one.cells, found[0].cells, atol=1e-9) for one in found):
        problem = "the distribution depends on the engine, which the server does not name"
        raise ParityError(f"options: {problem}; allowed: --engine {' or '.join(known_to)}")
    return found[0]


def make_conditions(
    connect: Callable[..., Server], logits: Logits, vocab: int, engine: Engine
) -> tuple[list[design.Condition], dict[str, str]]:
    """Make the conditions of `design.DESIGN` for a server, and tell what they leave out. connect(length, options=...,
    by_prompt=...) makes its sampler. Of an engine that is not known, options that it ignores are left out; one that is
    known has them, so ignoring one is a fault."""
    conditions: list[design.Condition] = []
    missing = {"drafts": "set where the server is started", "end": "set in the checkpoint"}
    names = design.list_names() - set(missing)
    compute = functools.partial(compute_distribution, logits, engine=engine)
    for chosen in design.choose_options(names)[0]:
        chosen = rename_options(chosen, engine)
        if "rows" in chosen:
            chosen["rows"] = tuple(rename_options(row, engine) for row in chosen["rows"])
        prompts = design.make_prompts(chosen, vocab).tolist()
        fields = {k: v for k, v in chosen.items() if k not in (*design.OF_PROMPTS, *design.OF_OUTPUT)}
        rows: tuple[dict[str, Any], ...] = chosen.get("rows") or ({},) * len(prompts)
        sampler = connect(chosen["length"], fields, by_prompt=dict(zip(map(tuple, prompts), rows, strict=True)))
        name = design.name_options(chosen)
        try:
            distribution = design.make_distribution(compute, chosen, vocab)
            of_distribution = {option for row in (fields, *rows) for option in row if option != "seed"}
            if not engine:
                without = {
                    option: design.make_distribution(compute, chosen, vocab, option)
                    for option in sorted(of_distribution)
                }
                check_options_heeded(sampler, distribution, without)
        except ParityError as error:
            missing[name] = str(error).partition(";")[0]
            continue
        suspects = design.list_suspects(compute, chosen, vocab, engine)
        conditions.append(design.Condition(name, sampler, distribution, suspects=suspects))
    return conditions, missing


def check_options_heeded(
    sample: Server, distribution: distributions.Distribution, without: dict[str, distributions.Distribution]
) -> None:
    """Raise ParityError for an option that the server ignores: its samples are far likelier under the distribution
    without it. without: distributions by the options that they lack. A server that heeds them is refused once in 10,000
    times at most."""
    if not without:
        return
    drawn = Drawn(np.zeros(len(distribution.cells), dtype=np.int64))
    drawn.add(draw_batch(sample, distribution, 0, 10**6, PROBE), distribution)
    seen = drawn.counts > 0
    with np.errstate(divide="ignore"):
        score = {
            name: float(drawn.counts[seen] @ np.log(one.cells[seen]))
            for name, one in {"": distribution, **without}.items()
        }
    name = max(score, key=lambda name: score[name])
    if name and score[name] > score[""] + IGNORED:
        problem = "the server ignores it: its samples follow the distribution without it"
        raise ParityError(f"{name}: {problem}; allowed: an option that the server reads")
