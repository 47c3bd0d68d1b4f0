"""An OpenAI-compatible server over loopback (vLLM, SGLang, llama.cpp): completions with a seed.

A prompt is text, a token a letter (the tiny checkpoints' tokenizers), or token numbers with `prompt_as=ids`. Requests
run side by side. Drafts are counted where the engine tells them: `timings` of llama.cpp's answers, `/metrics` of vLLM.
"""

import json
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from parity_certify.calls import Sampled
from parity_certify.errors import ParityError

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": True}
WHOLE = {"skip_special_tokens": False, "return_token_ids": True}  # vLLM, SGLang: no letter left out of the text
OF_LAW = ("temperature", "top_k", "top_p", "min_p")  # fields that change the law, as in transformers
COUNTERS = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")


class Server:
    """A sampler: one request a prompt, so many side by side.

    options  fields of the request; `prompt_as` ("text", "ids") and `parallel` (8) are ours, OF_LAW change the law
    """

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
    ):
        given = dict(options or {})
        self.url, self.length, self.timeout, self.end = url.rstrip("/"), length, timeout, end
        self.ids, self.parallel = given.pop("prompt_as", "text") == "ids", int(given.pop("parallel", 8))
        if tokenizer is None:
            raise ParityError("--target: has no tokenizer.json; needed to read the server's text")
        self.letters = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.body = {"max_tokens": length, **PLAIN, **WHOLE, **given} | ({"model": model} if model else {})
        self.__name__ = "server"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The answer's text; ParityError for a server that is not there, slow, or refuses."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").splitlines() or [""]
            raise ParityError(f"server {self.url}{path}: {error.code}: {said[0][:200]}") from None
        except TimeoutError:
            raise ParityError(f"server {self.url}: no answer in {self.timeout:g} s; allowed: --timeout") from None
        except (urllib.error.URLError, OSError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise ParityError(f"server {self.url}: no answer in {self.timeout:g} s; allowed: --timeout") from None
            raise ParityError(f"server {self.url}: not there ({getattr(error, 'reason', error)})") from None

    def engine(self) -> str:
        """What the server says of itself."""
        for path in ("/version", "/props", "/v1/models"):
            try:
                found = json.loads(self.ask(path))
            except (ParityError, ValueError):
                continue
            build = found.get("version") or found.get("build_info")
            return str(build or [m.get("id") for m in found.get("data", [])])
        self.ask("/v1/models")
        return "unknown"

    def counters(self) -> list[int] | None:
        """vLLM's counts of drafts so far; None where there are none."""
        try:
            page = self.ask("/metrics")
        except ParityError:
            return None
        found = [re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([0-9.e+]+)$", page, re.M) for name in COUNTERS]
        return [round(sum(map(float, f))) for f in found] if all(found) else None

    def tokens(self, text: str) -> list[int]:
        """Token numbers of an answer, a letter each."""
        wrong = [c for c in text if c not in self.letters]
        if wrong:
            raise ParityError(f"server: answered {text!r}; allowed: letters of {''.join(self.letters)}")
        return [self.letters.index(c) for c in text]

    def one(self, prompt: np.ndarray, seed: int) -> tuple[list[int], int, int]:
        """Tokens, and drafts offered and accepted (-1: not said)."""
        text = prompt.tolist() if self.ids else "".join(self.letters[t] for t in prompt)
        said = self.ask("/v1/completions", self.body | {"prompt": text, "seed": seed})
        try:
            answer = json.loads(said)
            choice, timings = answer["choices"][0], answer.get("timings") or {}
        except (ValueError, KeyError, IndexError, TypeError):
            raise ParityError(f"server {self.url}: an answer without choices") from None
        ids = choice.get("token_ids")
        found = self.tokens(choice["text"]) if ids is None else [int(t) for t in ids]
        if self.end is not None and len(found) < self.length:
            found.append(self.end)
        return found, int(timings.get("draft_n", -1)), int(timings.get("draft_n_accepted", -1))

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        before = self.counters()
        seeds = np.random.default_rng(seed).integers(1, 2**31 - 1, size=len(prompts)).tolist()
        with ThreadPoolExecutor(self.parallel) as pool:
            found = list(pool.map(self.one, prompts, seeds))
        tokens = [tokens for tokens, _, _ in found]
        after = self.counters() if before is not None else None
        if before is not None and after is not None:
            return Sampled(tokens, after[0] - before[0], after[1] - before[1])
        if any(d >= 0 for _, d, _ in found):
            return Sampled(tokens, sum(max(0, d) for _, d, _ in found), sum(max(0, a) for _, _, a in found))
        return tokens
