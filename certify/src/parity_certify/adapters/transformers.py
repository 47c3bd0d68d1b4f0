"""Sample with transformers' `generate`, in its speculative ways, and compute the distribution of plain sampling.

    target, assistant = load_model("llama"), load_model("llama-assistant")
    sampler = Generate(target, 4, {"assistant_model": assistant, "num_assistant_tokens": 4})
    certify_sampler(sampler, compute_distribution(target, prompts, 4, sampler.options))

The distribution is read with `generate(custom_generate=...)`: transformers prepares its logits processors (guidance,
watermark, temperature, top-k, ...) as for plain sampling, and they are applied to the target's logits of every prefix,
each step once and in order.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parity_certify import design, diagnosis
from parity_certify.calls import Sampled
from parity_certify.distributions import (
    Distribution,
    absorb_end,
    check_distribution,
    check_prompts,
    check_size,
    count_prefixes,
)
from parity_certify.errors import ParityError
from parity_certify.joint_tests import digits

SPECULATIVE = (  # these options say how tokens are drafted, and change no distribution
    "assistant_model", "assistant_tokenizer", "tokenizer", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "use_mtp", "speculation_type", "cache_implementation",
    "candidate_generator", "assistant_ensemble_weight",
)  # fmt: skip
NEUTRAL: dict[str, Any] = {  # generation settings with these values change no distribution
    "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
    "guidance_scale": 1, "num_beams": 1, "num_return_sequences": 1, "remove_invalid_values": False,
    "renormalize_logits": False, "token_healing": False,
}  # fmt: skip
OVERRIDDEN = ("do_sample", "temperature", "top_k", "top_p")  # generation settings that `make_keywords` replaces
OF_NUMBER = ("num_beams", "num_return_sequences")  # generation settings that are 1 where one text is sampled
OF_OUTPUT = (  # generation settings that say how much is drawn and how, and change no distribution
    "max_length", "max_new_tokens", "max_time", "use_cache", "cache_config", "max_cache_len", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id",
    "eos_token_id", "decoder_start_token_id", "is_assistant", "compile_config", "disable_compile", "low_memory",
    "continuous_batching_config", "prefill_chunk_size", "_from_model_config", "transformers_version", "early_stopping",
    "length_penalty", "num_beam_groups", "diversity_penalty", "generation_kwargs",
)  # fmt: skip
OF_ASSISTANT = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


def load_model(folder: Path | str) -> Any:
    """Load a model of transformers from a folder, in float32, and silence the library. No network is used. Raises
    ParityError if the folder has no config.json or cannot be loaded."""
    import transformers

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ParityError(f"{folder}: no config.json; allowed: a folder that save_pretrained wrote")
    silence_transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.model_type == "gemma4_assistant":
            patch_gemma4_config()
        model = getattr(transformers, config.architectures[0], transformers.AutoModelForCausalLM)
        return model.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ParityError(f"{folder}: cannot be loaded: {str(error).splitlines()[0]}") from error


def patch_gemma4_config() -> None:
    """Replace `kv_sharing_modes` of Gemma 4's configuration class, once, so that an assistant can be made: transformers
    5.23.0 asks for a layer that stores keys, but all layers of the assistant read the target's."""
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

    Config: Any = Gemma4TextConfig
    original = Config.kv_sharing_modes.fget
    if original.__name__ == "modes":
        return

    def modes(self: Any) -> list[str | None]:
        """Return "reuse" for each layer if all of them share keys, else what transformers returns."""
        layers = self.num_hidden_layers
        return ["reuse"] * layers if self.num_kv_shared_layers == layers else original(self)

    Config.kv_sharing_modes = property(modes)


def load_tokenizer(folder: Path | str) -> Any:
    """Load the tokenizer of a folder; None if it has none."""
    import transformers

    if not (Path(folder) / "tokenizer.json").is_file():
        return None
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def sort_vocabulary(tokenizer: Any) -> Any:
    """Copy a tokenizer so that `get_vocab` lists tokens by falling number; the original's order differs by process.
    Universal assisted decoding records its drafts' distributions in that order; in the order of the numbers its fault
    is hidden."""

    class Descending(type(tokenizer)):  # type: ignore[misc]
        def get_vocab(self) -> dict[str, int]:
            return dict(sorted(super().get_vocab().items(), key=lambda item: -item[1]))

    fixed = copy.copy(tokenizer)
    fixed.__class__ = Descending
    return fixed


def silence_transformers() -> None:
    """Silence the warnings and bars that transformers prints in each of thousands of calls."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def get_vocab_size(model: Any) -> int:
    """Return the size of the vocabulary that a model of text draws from."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def describe_settings(model: Any, options: dict[str, Any], applied: bool = True) -> str:
    """Say in a line which of a model's generation settings, of generation_config.json, its distribution here has and
    which it does not, except those that the options name; "" if there are none. applied: whether the distribution is
    that of `generate`; else it has none of them."""
    given = {
        key: value
        for key, value in model.generation_config.to_diff_dict().items()
        if key not in (*options, *SPECULATIVE, *OF_OUTPUT) and value not in (None, NEUTRAL.get(key))
    }
    held = [key for key in given if applied and key not in OVERRIDDEN]
    left = [key for key in given if key not in held]
    shown = {key: f"{key} {value}" for key, value in given.items()}
    words = [
        f"with {', '.join(shown[key] for key in held)} ({held[0]}=null leaves it out)" if held else "",
        f"without {', '.join(shown[key] for key in left)} (an option {left[0]}=VALUE applies it)" if left else "",
    ]
    return "generation_config.json: the target is taken " + ", ".join(filter(None, words)) if given else ""


def check_mode(model: Any, options: dict[str, Any]) -> None:
    """Raise ParityError for options, or generation settings that they do not name, by which `generate` does not sample
    one text after a prompt."""
    for key in OF_NUMBER:
        value = options.get(key, getattr(model.generation_config, key, None) if key not in options else None)
        if value not in (None, 1):
            source = "" if key in options else "generation_config.json: "
            raise ParityError(f"{source}{key} {value}: not sampling; allowed: 1, as with the option {key}=1")


def list_ends(model: Any, options: dict[str, Any]) -> list[int]:
    """List the end tokens of the options, else of the model's generation settings."""
    ends = options.get("eos_token_id", model.generation_config.eos_token_id)
    return [] if ends is None else [int(end) for end in np.atleast_1d(ends)]


def make_keywords(options: dict[str, Any], length: int, end: int | None) -> dict[str, Any]:
    """Make the keywords of `generate` to sample `length` tokens: no top-k, top-p or end token but those in the options
    and `end`. A dict under `watermarking_config` becomes the configuration that it describes; an option that is None is
    left out."""
    import transformers

    keywords: dict[str, Any] = {"do_sample": True, "max_new_tokens": length, "top_k": 0, "top_p": 1.0}
    keywords |= {"temperature": 1.0} | {key: value for key, value in options.items() if value is not None}
    keywords |= {"pad_token_id": 0} if end is None else {"eos_token_id": end, "pad_token_id": end}
    mark = keywords.get("watermarking_config")
    if isinstance(mark, dict):
        kind = transformers.SynthIDTextWatermarkingConfig if "keys" in mark else transformers.WatermarkingConfig
        keywords["watermarking_config"] = kind(**mark)
    return keywords


@contextlib.contextmanager
def replace_settings(model: Any, options: dict[str, Any], end: int | None) -> Iterator[None]:
    """Context manager: give the model a copy of its generation settings, with `end` as its only end token or none, and
    without those that are None in the options."""
    original = model.generation_config
    model.generation_config = copy.deepcopy(original)
    for key in (key for key, value in options.items() if value is None):
        setattr(model.generation_config, key, 1 if key in OF_NUMBER else None)
    model.generation_config.eos_token_id = end
    try:
        yield
    finally:
        model.generation_config = original


def compute_probs(model: Any, inputs: Tensor, paths: Tensor, options: dict[str, Any], end: int | None) -> list[Tensor]:
    """Compute the distributions of plain sampling along given tokens, by one forward of the model: a list of L tensors
    [B, V], the distribution at each position of paths [B, L] after inputs [B, P]. Options that only say how to draft
    are ignored. Raises ParityError for options that `generate` refuses."""
    options = {k: v for k, v in options.items() if k not in SPECULATIVE}
    check_mode(model, options)
    distributions: list[Tensor] = []
    sampled = options.get("do_sample", True)  # greedy decoding gives the likeliest token probability 1

    def walk(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
        """Append the distribution at each position to `distributions`, in place of sampling: the model's logits
        along the paths, after the logits processors, called step by step as in sampling. Returns the paths after the
        inputs."""
        start = input_ids.shape[1]
        sequences = torch.cat([input_ids, paths], 1)
        fed = sequences[:, :-1]
        fields = {"input_ids": fed, "attention_mask": torch.ones_like(fed)}
        if model.config.is_encoder_decoder:
            fields = {"decoder_input_ids": fed, "encoder_outputs": kwargs["encoder_outputs"]}
        logits = model(**fields, use_cache=False).logits[:, start - 1 :]
        for t in range(paths.shape[1]):
            scores = logits_processor(sequences[:, : start + t], logits[:, t].clone())
            p = scores.to(model.dtype).softmax(-1)
            distributions.append(
                p if sampled else torch.nn.functional.one_hot(scores.argmax(-1), p.shape[-1]).to(p.dtype)
            )
        return sequences

    keywords = make_keywords(options, paths.shape[1], end) | {"attention_mask": torch.ones_like(inputs)}
    with replace_settings(model, options, end), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.generate(inputs=inputs, custom_generate=walk, **keywords)
        except (ValueError, TypeError) as error:
            raise ParityError(f"options: generate refuses them: {str(error).splitlines()[0]}") from error
    return distributions


def compute_distribution(
    model: Any, prompts: Any, length: int, options: dict[str, Any] | None = None, *, end: int | None = None
) -> Distribution:
    """Enumerate the distribution of plain sampling with the options, after prompts [K, P], on a float64 copy of the
    model. Raises ParityError if there are too many sequences of `length` tokens to enumerate."""
    V = get_vocab_size(model)
    prompts = check_prompts(prompts, V)
    check_size(V, length, len(prompts))
    silence_transformers()
    exact = copy.deepcopy(model).double().eval()
    tables: list[np.ndarray] = []
    paths = torch.from_numpy(digits(V, length).astype(np.int64))
    for k, prompt in enumerate(prompts):
        inputs = torch.from_numpy(prompt).expand(len(paths), -1)
        distributions = compute_probs(exact, inputs, paths, options or {}, end)
        # level t: a row a prefix of t tokens
        levels = [p[:: V ** (length - t)].numpy() for t, p in enumerate(distributions)]
        tables.append(absorb_end(check_distribution(np.concatenate(levels), f"prompt {k}"), length, end))
    return Distribution(str(model.config.model_type), prompts, np.stack(tables), length, end)


def make_logits(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function from prefixes [n, P + t] to the model's logits [n, V] after them, on a float64 copy, for
    `processors.shape_distribution`."""
    exact = copy.deepcopy(model).double().eval()

    def compute_logits(prefixes: np.ndarray) -> np.ndarray:
        """Run the model on all prefixes at once."""
        with torch.no_grad():
            logits: Tensor = exact(torch.from_numpy(np.asarray(prefixes)), use_cache=False).logits[:, -1]
        return logits.numpy()

    return compute_logits


class Counting:
    """A candidate generator of transformers that passes all calls on to `inner`, and adds drafts offered, drafts
    accepted and rounds to the list `drafts`. Into `log`, if given, go the ids and draft distributions [d, V] of each
    round."""

    def __init__(self, inner: Any, drafts: list[int], log: list[tuple[Tensor, Tensor]] | None = None):
        self.inner, self.drafts, self.log = inner, drafts, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> Any:
        """Draft tokens, count them and the round, and log the draft distributions if the generator has any."""
        ids, logits = self.inner.get_candidates(input_ids, **kwargs)
        self.drafts[0] += ids.shape[1] - input_ids.shape[1]
        self.drafts[2] += ids.shape[1] > input_ids.shape[1]
        if self.log is not None and logits is not None and ids.shape[1] > input_ids.shape[1]:
            self.log.append((ids[0].clone(), logits[0].double().softmax(-1)))
        return ids, logits

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: Any) -> Any:
        """Count num_matches, the accepted drafts of the round, and pass the call on."""
        self.drafts[1] += int(num_matches)
        return self.inner.update_candidate_strategy(input_ids, scores, num_matches)


class Generate:
    """A sampler that calls `generate` once for all prompts, or for each prompt if it speculates, because assisted
    generation takes one at a time.

    options  keywords of `generate`; those of OF_ASSISTANT are also set in the assistant's generation settings
    candidate_generator (an option)  a function of transformers' candidate generator that returns another one
    """

    def __init__(self, model: Any, length: int, options: dict[str, Any] | None = None, end: int | None = None):
        """Set up the sampler; end: the end token, if any."""
        silence_transformers()
        self.model, self.length, self.end = model, length, end
        self.options = dict(options or {})
        if self.options.get("assistant_tokenizer") is not None:
            self.options["assistant_tokenizer"] = sort_vocabulary(self.options["assistant_tokenizer"])
        self.wrap_generator: Callable[[Any], Any] | None = self.options.pop("candidate_generator", None)
        self.log: list[tuple[Tensor, Tensor]] | None = None  # of drafts and their distributions (`add_log`)
        self.speculates = any(k in self.options for k in SPECULATIVE if k != "cache_implementation")
        self.__name__ = "transformers generate"

    def add_log(self, log: list[tuple[Tensor, Tensor]]) -> "Generate":
        """Copy the sampler; the copy appends to `log` the drafts and the distributions that the engine recorded for
        them."""
        copied = copy.copy(self)
        copied.log = log
        return copied

    @contextlib.contextmanager
    def count_drafts(self, drafts: list[int]) -> Iterator[bool]:
        """Context manager: make the model's candidate generators count into `drafts` (see `Counting`), and replace them
        by those of `wrap_generator` if it is set. Yields whether the model drafts at all."""
        make = getattr(self.model, "_get_candidate_generator", None)
        if make is None or not self.speculates:
            yield False
            return

        def make_counting(*args: Any, **kwargs: Any) -> Any:
            """Make the model's candidate generator, wrapped."""
            inner = make(*args, **kwargs)
            return Counting(self.wrap_generator(inner) if self.wrap_generator else inner, drafts, self.log)

        self.model._get_candidate_generator = make_counting
        try:
            yield True
        finally:
            del self.model._get_candidate_generator

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        """Sample after prompts [n, P] on one thread, after seeding torch's global generator. Returns n token arrays,
        which may stop at the end token or be padded with it; as `Sampled`, with the counts of drafts, if the model
        drafts."""
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        if (assistant := self.options.get("assistant_model")) is not None:
            for key in set(OF_ASSISTANT) & set(self.options):
                setattr(assistant.generation_config, key, self.options[key])
        drafts, rows = [0, 0, 0], []
        keywords = make_keywords(self.options, self.length, self.end)
        start = 1 if self.model.config.is_encoder_decoder else prompts.shape[1]
        settings = replace_settings(self.model, self.options, self.end)
        with settings, self.count_drafts(drafts) as counts, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for inputs in torch.from_numpy(np.asarray(prompts)).split(1 if self.speculates else len(prompts)):
                with contextlib.redirect_stdout(io.StringIO()):
                    ids = self.model.generate(inputs=inputs, attention_mask=torch.ones_like(inputs), **keywords)
                rows += [*ids[:, start:].numpy()]
        return Sampled(rows, *drafts) if counts else rows


class Continuous(Generate):
    """A sampler by continuous batching (`cache_implementation="paged"`): all prompts of a batch in one call of
    `generate_batch`, whose requests share steps. Pages are so few that requests wait and pages are reused."""

    def __call__(self, prompts: np.ndarray, seed: int) -> Any:
        """Sample after prompts [n, P]; returns a list of n token arrays. Drafts are not counted."""
        import transformers

        keywords = {"eos_token_id": -1} | make_keywords(self.options, self.length, self.end)
        del keywords["cache_implementation"]
        sizes: dict[str, Any] = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64}
        engine = transformers.ContinuousBatchingConfig(seed=seed, **sizes)
        with replace_settings(self.model, self.options, self.end):
            config = copy.deepcopy(self.model.generation_config)
            config.update(**keywords)
            answers = self.model.generate_batch(
                inputs=np.asarray(prompts).tolist(), generation_config=config, continuous_batching_config=engine
            )
        return [np.array(request.generated_tokens) for request in answers.values()]


def make_conditions(model: Any, options: dict[str, Any]) -> tuple[list[design.Condition], dict[str, str]]:
    """Make the conditions of `design.DESIGN` for `generate` with these options, which say how to draft, and tell what
    they leave out."""
    V = get_vocab_size(model)
    varies = options.get("assistant_model") is not None and "num_assistant_tokens" not in options
    conditions, missing = [], {"rows": "a call of generate has one setting"}
    if not varies:
        missing["drafts"] = "fixed by the options, or by this way of drafting"
    for chosen in design.choose_options(design.list_names() - set(missing))[0]:
        given = {k: v for k, v in chosen.items() if k not in (*design.OF_PROMPTS, *design.OF_OUTPUT)} | options
        if varies:
            given["num_assistant_tokens"] = chosen["drafts"]
        L, end = chosen["length"], chosen.get("end")
        make = Continuous if options.get("cache_implementation") == "paged" else Generate
        distribution = compute_distribution(model, design.make_prompts(chosen, V), L, given, end=end)
        conditions.append(design.Condition(design.name_options(chosen), make(model, L, given, end), distribution))
    return conditions, missing


def record_draft_distribution(
    sampler: Generate, target: Distribution, n: int = 200
) -> tuple[Distribution, np.ndarray, int]:
    """Record what the engine drafts in about n more runs. Returns the distribution that it records for its drafts by
    prefix (a mean if it depends on where the block began; the target's where it drafts nothing), bool [K, N] the
    prefixes after which it drafts, and the most drafts of a round."""
    K, V = len(target.prompts), target.vocab
    sums, times, block = np.zeros(target.tables.shape), np.zeros(target.tables.shape[:2]), 1
    for k in range(K):
        log: list[tuple[Tensor, Tensor]] = []
        sampler.add_log(log)(np.repeat(target.prompts[k : k + 1], n // K, 0), 10_000 + k)
        start = 1 if sampler.model.config.is_encoder_decoder else target.prompts.shape[1]
        for ids, distributions in log:
            block = max(block, len(distributions))
            tokens = ids[start:].tolist()
            for i, p in enumerate(distributions.numpy()):
                depth = len(tokens) - len(distributions) + i
                if depth < target.length and np.isfinite(p).all() and p.shape == (V,):
                    node = count_prefixes(V, depth) + sum(t * V**e for e, t in enumerate(reversed(tokens[:depth])))
                    sums[k, node] += p
                    times[k, node] += 1
    offered = times > 0
    tables = np.where(offered[..., None], sums / np.maximum(times, 1)[..., None], target.tables)
    return Distribution("drafts", target.prompts, tables, target.length, target.end), offered, block


def list_suspects(sampler: Generate, target: Distribution) -> list[diagnosis.Suspect]:
    """List the faults that a sampler of transformers may have, from drafts recorded in 200 more runs."""
    draft, offered, block = record_draft_distribution(sampler, target)
    bare = compute_distribution(sampler.model, target.prompts, target.length, end=target.end)
    return diagnosis.list_suspects(target, draft, block, bare=bare, offered=offered)
