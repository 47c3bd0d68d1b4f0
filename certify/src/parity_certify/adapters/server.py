"""Sample from an OpenAI-compatible server over loopback (vLLM, SGLang, llama.cpp): completions with a seed.

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
WHOLE = {"skip_special_tokens": False, "return_token_ids": True}  # for vLLM and SGLang: return all letters, or numbers
OF_LAW = ("temperature", "top_k", "top_p", "min_p")  # fields of a request that change the law, as in transformers
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
    ):
        """Set up the sampler, without sending anything. Raises ParityError without a tokenizer.

        length: tokens to draw; tokenizer: gives the letter of each token; model: name in requests, "" leaves it out;
        timeout: seconds for an answer; options: fields of the request, where `prompt_as` ("text" or "ids") and
        `parallel` (8) are read here and not sent; end: the end token that is put after shorter answers.
        """
        fields = dict(options or {})
        self.url, self.length, self.timeout, self.end = url.rstrip("/"), length, timeout, end
        self.ids, self.parallel = fields.pop("prompt_as", "text") == "ids", int(fields.pop("parallel", 8))
        if tokenizer is None:
            raise ParityError("--target: has no tokenizer.json; needed to read the server's text")
        self.letters = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.body = {"max_tokens": length, **PLAIN, **WHOLE, **fields} | ({"model": model} if model else {})
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
            answer = json.loads(self.send_request("/v1/completions", self.body | {"prompt": text, "seed": seed}))
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
