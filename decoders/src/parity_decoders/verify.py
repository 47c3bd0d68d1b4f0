"""Whether a decoder draws what plain decoding draws, on a causal model of transformers and prompts of its owner.

    from parity_decoders.transformers import sjd_coupled, verify

    print(verify(model, inputs, sjd_coupled, max_new_tokens=64, window=16))

Distributions are the model's own: one `forward` over each whole row, without a cache.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from parity_decoders import transformers
from parity_decoders.errors import DecodingError
from parity_decoders.leads import (
    LEVEL,
    Draws,
    Verification,
    follow_plain,
    judge,
    judge_tests,
    measure_leads,
    measure_rounding,
    place_leads,
)
from parity_decoders.noise import Noise, check_seed, counted_noise
from parity_decoders.processors import read_processors
from parity_decoders.slots import compute_logits, find_precision
from parity_decoders.verification import make_probs


def verify(model: Any, inputs: Any, decoder: Callable[..., Any], *, seed: int = 0, **keywords: Any) -> Verification:
    """Decode prompts by a decoder and plainly, and judge the decoder's tokens.

    inputs    ids [B, P] of the prompts, or what a tokenizer or processor makes of them
    decoder   a function of `parity_decoders.transformers`, such as `sjd_coupled`
    keywords  of `generate`, with the decoder's options; sampling is on by default

    Raises DecodingError for plain decoding itself and, for a decoder that is not coupled, without parity-certify.
    """
    name = decoder.__name__
    if name == "ar":
        raise DecodingError("ar: plain decoding itself; allowed: another decoder")
    seed = check_seed(seed)
    parameters = inspect.signature(decoder).parameters.values()
    is_option = {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in transformers.KEYWORDS
    }
    inputs = {"input_ids": inputs} if torch.is_tensor(inputs) else dict(inputs)
    given = {"do_sample": True, **inputs, **keywords, "seed": seed, "return_dict_in_generate": False}
    of_decoder = {*is_option, "draft_model", "compile", "capture"}
    of_plain = {key: value for key, value in given.items() if key not in of_decoder}
    result = model.generate(**given | {"return_dict_in_generate": True}, custom_generate=decoder)
    drawn, per_pass = result.sequences, float((result.accepted * result.passes).sum() / result.passes.sum())
    leads: list[tuple[Tensor, Tensor]] = []

    def ar(model: Any, start: Tensor, *, noise: Noise) -> Iterator[Any]:
        """Decode plainly, and note the leads of the tokens."""
        return follow_plain(model, start, noise=noise, leads=leads)

    plain = model.generate(**of_plain, custom_generate=transformers.wrap_decoder(ar))
    probs = OwnProbs(model)
    of_generate = {key: value for key, value in of_plain.items() if key not in transformers.OWN}
    model.generate(**of_generate, custom_generate=probs.begin)
    length = max(plain.shape[1], drawn.shape[1]) - probs.prompts.shape[1]
    noise = counted_noise(seed, range(len(plain)), torch.float32, plain.device)
    looked = probs.look(plain, length, noise)
    guidance = probs.distribution.guidance.scale if probs.distribution.guidance else 1.0
    rounding = measure_rounding(looked, place_leads(leads, length), find_precision(model), guidance)
    module = importlib.import_module(f"parity_decoders.discrete.{name}")
    coupled: dict[str, Any] | None = getattr(module, "COUPLED_WITH", None)
    options = {**is_option, **keywords}
    if coupled is not None and all(options[key] == value for key, value in coupled.items()):
        return replace(judge(name, looked, probs.look(drawn, length, noise), rounding), per_pass=per_pass)
    if line := rounding.find_fault():
        return Verification(line, True, len(plain), int(looked.is_drawn.sum()), per_pass=per_pass)
    exact = getattr(module, "EXACT_WITH", {})
    lossless = module.CLAIM == "lossless" and all(options[key] == value for key, value in exact.items())
    return replace(probs.test(name, drawn, length, lossless), per_pass=per_pass)


class OwnProbs:
    """The distributions that `generate` samples, by the model's own `forward`."""

    def __init__(self, model: Any):
        self.model = model

    def begin(
        self, model: Any, input_ids: Tensor, logits_processor: Any = None, generation_config: Any = None, **others: Any
    ) -> Tensor:
        """Take prompts [B, P], processors and end tokens as `generate` hands them to a function `custom_generate`."""
        unpadded = others.get("attention_mask")
        self.prompts = input_ids
        self.mask = torch.ones_like(input_ids).bool() if unpadded is None else unpadded.bool()
        self.padding = (~self.mask).sum(1)
        self.distribution = read_processors(logits_processor, greedy=not generation_config.do_sample)
        length = generation_config.max_length - input_ids.shape[1]
        self.ids, self.position_ids, _ = transformers.read_inputs(model, input_ids, self.mask, others, length)
        if guidance := self.distribution.guidance:
            self.position_ids = transformers.number_unconditional(self.position_ids, input_ids.shape[1], guidance)
            self.ids, self.mask, self.padding = transformers.add_unconditional(self.ids, self.mask, guidance)
        ends = generation_config.eos_token_id
        self.ends = torch.as_tensor([] if ends is None else ends, dtype=torch.long, device=input_ids.device).flatten()
        return input_ids

    def find_drawn(self, sequences: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cut the new tokens [B, length] from sequences [B, P + n], and find those that do not follow a row's end."""
        new = sequences[:, self.prompts.shape[1] :]
        tokens = pad(new, (0, length - new.shape[1]))
        n_ended = pad(torch.isin(tokens, self.ends).cumsum(1), (1, -1))
        is_drawn = (n_ended == 0) & (torch.arange(length, device=tokens.device) < new.shape[1])
        return tokens.masked_fill(~is_drawn, 0), is_drawn  # a model may have no logits of its padding token

    @torch.inference_mode()
    def compute_logits(self, row: int, tokens: Tensor) -> Tensor:
        """Compute the logits [R, L, V] of a row's tokens [L], each given those before it: R = 2, the unconditional row
        last, if guided, else 1."""
        rows = torch.arange(row, len(self.ids), len(self.prompts), device=tokens.device)
        before = tokens[:-1].expand(len(rows), -1)
        ids = torch.cat([self.ids[rows], before], 1)
        mask = torch.cat([self.mask[rows], torch.ones_like(before).bool()], 1)
        if self.position_ids is None:
            positions = (torch.arange(ids.shape[1], device=ids.device) - self.padding[rows, None]).clamp(min=0)
        else:
            positions = self.position_ids[:, rows, : ids.shape[1]]
        logits = compute_logits(self.model, ids, attention_mask=mask.long(), position_ids=positions)
        return logits[:, -len(tokens) :]

    def compute(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yield for each row of tokens [B, L] the distributions [L, V] of its tokens, each given those before it."""
        positions = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device)[None]
        if not self.distribution.needs_prefix():
            for row, x in enumerate(tokens):
                yield make_probs(self.distribution.apply(self.compute_logits(row, x), positions, None)[0])
            return
        # a processor that reads the tokens before may depend on a row's number, so it is given all rows
        logits = torch.stack([self.compute_logits(row, x) for row, x in enumerate(tokens)], 1).flatten(0, 1)
        prefixes = [
            [torch.cat([prompt, x[:i]]) for i in range(len(x))] for prompt, x in zip(self.prompts, tokens, strict=True)
        ]
        yield from make_probs(self.distribution.apply(logits, positions, prefixes))

    def look(self, sequences: Tensor, length: int, noise: Noise) -> Draws:
        """Compute the leads of the new tokens of sequences [B, P + n] under the noise."""
        tokens, is_drawn = self.find_drawn(sequences, length)
        positions = torch.arange(length, device=tokens.device)[None]
        leads = []
        for row, (x, p) in enumerate(zip(tokens, self.compute(tokens), strict=True)):
            e = noise.take(torch.tensor([row], device=x.device)).exponential("sample", positions, p.shape[-1])[0]
            leads.append(measure_leads(p, e, x))
        return Draws(tokens, is_drawn, torch.stack(leads).double())

    def test(self, name: str, sequences: Tensor, length: int, lossless: bool) -> Verification:
        """Test the new tokens of sequences [B, P + n], each by its distribution given those before it. name: of the
        decoder; lossless: whether it claims to be so. Raises DecodingError without parity-certify."""
        try:
            from parity_certify import result_rows, teacher_forced
        except ImportError:
            raise DecodingError(
                f"{name}: tests of its tokens need parity-certify; allowed: with it installed"
            ) from None
        tokens, is_drawn = self.find_drawn(sequences, length)
        probs = self.compute(tokens)

        def compute_probs(row: int, _: int) -> Tensor:
            """Compute the distributions [1, L, V] of the next row's tokens. A token after its end is certain."""
            p = next(probs)
            certain = torch.zeros_like(p).scatter(1, tokens[row][:, None], 1.0)
            return torch.where(is_drawn[row][:, None], p, certain)[None]

        settings: dict[str, Any] = {"rng": np.random.default_rng(0), "chunk": 1, "strict": False}
        with result_rows.set_alpha(LEVEL), torch.device("cpu"):  # the tests make tensors on the default device
            rows = teacher_forced.run_battery(tokens.cpu().numpy(), compute_probs, length, **settings)
        return judge_tests(name, rows, lossless, len(tokens))
