"""The decoders inside `generate` of transformers, for any causal model of full or sliding attention.

    from parity_decoders.transformers import sjd_coupled

    model.generate(**inputs, do_sample=True, custom_generate=sjd_coupled, window=16)

Each decoder is a function that `custom_generate` takes. Its options are keywords of `generate`, and so are

    seed         of the random numbers; drawn from torch's generator if not given
    width        tokens in a row of the image, for decoders that look at the row above; by default what the model says
                 (`parity_decoders.families`), or else 1, for text, where `window` is TEXT_WINDOW by default
    stream       a streamer, instead of `streamer`
    draft_model  a smaller causal model of the same vocabulary, for `spec` and `mtj_draft`, instead of `assistant_model`
    compile      whether a pass is compiled as one graph; calls of the same sizes share it
    capture      whether a pass is captured as a CUDA graph, which the host repeats by one call

`generate` drops `streamer` and `assistant_model` when it calls a function, which therefore can neither use nor refuse
them: an iterator over such a streamer waits for ever. A folder gets them:

    model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, method="sjd_coupled", streamer=streamer)
"""

import importlib
import inspect
import operator
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, MaxLengthCriteria
from transformers.utils import ModelOutput

from parity_decoders.canvas import Canvas
from parity_decoders.captured import capture
from parity_decoders.compiling import compile_passes
from parity_decoders.distribution import Distribution, Guidance
from parity_decoders.engine import Sampled
from parity_decoders.errors import DecodingError
from parity_decoders.families.inputs import Inputs, list_keywords, read_inputs
from parity_decoders.grammar import find_grammar
from parity_decoders.grid import Grid
from parity_decoders.noise import check_seed, counted_noise
from parity_decoders.processors import Written, check_processors, read_processors
from parity_decoders.slots import (
    SlotNetwork,
    check_inputs,
    check_lengths,
    check_probs,
    check_slots,
    compute_logits,
    count_positions,
    name_model,
)

METHODS = (
    "ar", "gsd", "jacobi", "mtj", "mtj_draft", "pjd", "sjd", "sjd_coupled", "sjd_pac", "sjd_pp", "sjd_sv", "sjd_vp",
    "spec", "zipar",
)  # fmt: skip
DRAFTED = ("spec", "mtj_draft")  # methods that need a draft model
# Keywords that `generate` adds by itself and that decoders ignore, and those that ask for outputs decoders do not make.
IGNORED = ("position_ids", "logits_to_keep", "use_cache", "cache_position")
TEXT_WINDOW = 4  # default of `window` at width 1: on texts a wider one saves no pass, and costs more in each
FOLDER = str(Path(__file__).parent / "hub")  # for `custom_generate`, as is or uploaded: see `generate`
# Keywords that say how `generate` loads a folder from a hub; it hands them to the folder's function, too.
LOADING = ("cache_dir", "force_download", "local_files_only", "proxies", "repo_type", "revision", "subfolder", "token")
CAPTURING = ("cuda",)  # devices that capture passes
REFUSED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass
class Request:
    """What `generate` hands to a function that decodes, beside the decoder's options. Fields with defaults are keywords
    in that function's signature."""

    input_ids: Tensor  # [B, P]
    attention_mask: Tensor | None  # [B, P]
    unread: dict[str, Any]  # keywords that nothing here reads
    logits_processor: Any = None
    stopping_criteria: Any = None
    generation_config: Any = None
    seed: int | None = None
    width: int | None = None
    stream: Any = None
    draft_model: Any = None
    compile: bool = False
    capture: bool = False


KEYWORDS = {field.name: field.default for field in fields(Request) if field.default is not MISSING}
OF_GENERATE = ("logits_processor", "stopping_criteria", "generation_config")
OWN = tuple(key for key in KEYWORDS if key not in OF_GENERATE)  # keywords that this package adds


@dataclass
class Decoded(ModelOutput):
    """What `generate` returns with `return_dict_in_generate`.

    sequences  [B, P + n] prompts and new tokens
    passes     [B] passes of the model until a row's last token was final
    nodes      [B] tokens that the model evaluated for a row
    accepted   [B] mean number of tokens that became final in a pass
    """

    sequences: Tensor | None = None
    passes: Tensor | None = None
    nodes: Tensor | None = None
    accepted: Tensor | None = None


def make_network(
    model: Any,
    prompts: Tensor,
    unpadded: Tensor,
    length: int,
    inputs: Inputs,
    distribution: Distribution,
    static: bool,
) -> SlotNetwork:
    """Make the network of a model that has read prompts but their last tokens.

    prompts [B, P] ids, padded on the left, as processors read them; unpadded [B, P] bool, false on padding; length: the
    most new tokens; inputs: the prompts as the network reads them; distribution: to sample, with the
    unconditional prompts if guided; static: see TokenModel.
    """
    ids, position_ids, guidance = inputs.ids, inputs.position_ids, distribution.guidance
    mask, padding = unpadded, (~unpadded).sum(1)
    if guidance:
        ids, mask, padding = add_unconditional(ids, unpadded, guidance)
        position_ids = number_unconditional(position_ids, prompts.shape[1], guidance)
    vocab = check_slots(model)
    check_inputs(model, prompts, unpadded)
    sizes = ids.shape[1] - padding
    longest = int(sizes.view(-1, len(prompts)).amax(1).min())
    check_lengths(model, int(sizes.min()), longest, int(sizes.max()) + length)
    grammar = distribution.grammar
    forced = None if grammar is None else grammar.forced[:length].to(prompts.device)
    network = SlotNetwork(model, ids, mask, length, padding, static, position_ids, inputs.grid, forced, vocab)
    if guidance and guidance.unpadded is not None and not bool(guidance.unpadded.all()):
        check_unconditional(network, guidance)
    return network


@torch.inference_mode()
def check_unconditional(network: SlotNetwork, guidance: Guidance) -> None:
    """Raise DecodingError if what follows the padded unconditional prompts is not what `generate` has there: it gives
    the model a mask but no positions, and a model may then count them in its own way."""
    assert guidance.ids is not None
    truth = compute_logits(network.model, guidance.ids, attention_mask=guidance.unpadded)[:, -1]
    found = network.logits(network.last, torch.full_like(network.last, -1))[len(truth) :, -1]
    name = f"{name_model(network.model)}: distributions after padding of negative_prompt_attention_mask"
    check_probs(network.model, found, truth, name)


def add_unconditional(prompts: Tensor, unpadded: Tensor, guidance: Guidance) -> tuple[Tensor, Tensor, Tensor]:
    """Append the rows of the unconditional prompts to the prompts [B, P]. Returns ids and mask [2B, P'], both padded on
    the left to the longer of the two, and how many columns stand before position 0 of each row [2B]. Without
    unconditional ids, that prompt is the last token of each prompt.

    In `generate` the padding of an unconditional prompt has positions, because guidance calls the model without any.
    Raises DecodingError for unconditional prompts of another number of rows, or with padding after tokens.
    """
    ids = prompts[:, -1:] if guidance.ids is None else guidance.ids
    mask = torch.ones_like(ids) if guidance.unpadded is None else guidance.unpadded
    if len(ids) != len(prompts):
        raise DecodingError(f"negative_prompt_ids of {len(ids)} rows; allowed: {len(prompts)}, one for each sequence")
    if mask.shape != ids.shape:
        shapes = f"{list(mask.shape)}; allowed: {list(ids.shape)}, as negative_prompt_ids"
        raise DecodingError(f"negative_prompt_attention_mask of shape {shapes}")
    check_padding("negative_prompt_attention_mask", mask.bool())
    size = max(prompts.shape[1], ids.shape[1])

    def pad_left(x: Tensor) -> Tensor:
        """Pad x [B, n] with zeros on the left to `size` columns."""
        return torch.nn.functional.pad(x, (size - x.shape[1], 0))

    padding = torch.cat([size - unpadded.sum(1), torch.full_like(ids[:, 0], size - ids.shape[1])])
    return (
        torch.cat([pad_left(prompts), pad_left(ids)]),
        torch.cat([pad_left(unpadded), pad_left(mask.bool())]),
        padding,
    )


def number_unconditional(position_ids: Tensor | None, P: int, guidance: Guidance) -> Tensor | None:
    """Append the position ids of the unconditional rows, which count every token of their prompts, to those of the
    others [n, B, T]. A model that looks positions up by place gives new tokens those of its prompts, so both prompts
    have P tokens. Raises DecodingError if they have not."""
    if position_ids is None:
        return None
    n = 1 if guidance.ids is None else guidance.ids.shape[1]
    if n != P:
        raise DecodingError(f"negative_prompt_ids of {n} tokens; allowed: {P}, as in input_ids, padded on the left")
    counted = torch.arange(P, device=position_ids.device).expand(*position_ids.shape[:2], -1)
    return torch.cat([position_ids, torch.cat([counted, position_ids[..., P:]], 2)], 1)


def run_decoder(
    decoder: Callable[..., Iterator[Any]],
    model: Any,
    options: dict[str, Any],
    request: Request,
) -> Any:
    """Run a decoder on the prompts of a request and return what `generate` returns: see `Result.finish`.

    decoder: a generator function that yields steps; options: its keyword arguments. Raises DecodingError for arguments,
    models and draft models that decoders do not support.
    """
    config = request.generation_config
    refuse_others(decoder.__name__, model, request)
    input_ids, unpadded = request.input_ids.long(), request.attention_mask
    unpadded = torch.ones_like(input_ids, dtype=torch.bool) if unpadded is None else unpadded.bool()
    check_padding(f"{decoder.__name__}: attention_mask", unpadded)
    check_positions(decoder.__name__, unpadded, request.unread.get("position_ids"))
    length = config.max_length - input_ids.shape[1]
    distribution = read_processors(request.logits_processor, greedy=not config.do_sample)
    static = request.compile or request.capture
    if static and distribution.needs_prefix():
        reader = next(stage.name for stage in distribution.stages if stage.reads_prefix)
        raise DecodingError(
            f"{decoder.__name__}: compile or capture with {reader}, which reads the tokens before a slot; "
            "allowed: processors of scores alone"
        )
    seed = int(torch.randint(2**62, (), device="cpu")) if request.seed is None else check_seed(request.seed)
    noise = counted_noise(seed, range(len(input_ids)), torch.float32, input_ids.device, by_numpy=not static)
    longest = int(unpadded.sum(1).max())
    if distribution.guidance and distribution.guidance.ids is not None:
        longest = max(longest, distribution.guidance.ids.shape[1])
    length, refusal = limit_length(decoder.__name__, model, longest, length, request.stopping_criteria)
    inputs = read_inputs(model, input_ids, unpadded, request.unread, length)
    if grammar := find_grammar(request.logits_processor):
        grammar.check_request(decoder.__name__, input_ids.shape[1], length)
        inputs = inputs._replace(grid=inputs.grid or Grid(grammar.width))
    if inputs.grid is None:
        inputs = inputs._replace(grid=Grid(int(request.width or 1)))
    elif request.width is not None:
        raise DecodingError(f"{decoder.__name__}: width: {request.width}; allowed: none, as the image has its own")
    network = make_network(model, input_ids, unpadded, length, inputs, distribution, static)
    check_processors(distribution, input_ids, network.vocab)
    speculators = {}
    if request.draft_model is not None:
        same = type(request.draft_model) is type(model)  # another model counts its positions
        of_draft = inputs if same else Inputs(inputs.ids, None, inputs.grid)
        speculators["draft"] = make_network(
            request.draft_model, input_ids, unpadded, length, of_draft, distribution, static
        )
        if (drafted := speculators["draft"].vocab) != network.vocab:
            raise DecodingError(f"{decoder.__name__}: draft_model of {drafted} tokens; allowed: {network.vocab}")
    written = Written(input_ids, length) if distribution.needs_prefix() else None
    target = Sampled(network, distribution, speculators, written=written)
    padding_token = find_padding_token(config)
    result = Result(target, input_ids, length, request.stopping_criteria, request.stream, padding_token, refusal)
    steps = decoder(target, input_ids[:, -1], noise=noise, **options)
    if request.compile:
        steps = compile_passes(steps)
    if request.capture:
        steps = capture(decoder.__name__, steps)
    for step in steps:
        if result.take(step):
            break
    return result.finish(config.return_dict_in_generate)


def limit_length(name: str, model: Any, longest: int, length: int, criteria: Any) -> tuple[int, str | None]:
    """Return how many of `length` new tokens a model has positions for after a prompt of `longest` tokens, and if that
    is fewer, why a row that has not stopped by then cannot go on. The last token needs no position: nothing reads it.
    Raises DecodingError if no row can go on to its end, because no criterion stops it before."""
    positions = count_positions(model)
    if positions is None or longest + length <= positions + 1:
        return length, None
    refusal = (
        f"{name}: {longest + length} tokens with the prompt, and model {type(model).__name__} has {positions} "
        f"positions; allowed: at most {positions + 1} tokens, or criteria that stop every row before"
    )
    if longest > positions or all(isinstance(criterion, MaxLengthCriteria) for criterion in criteria):
        raise DecodingError(refusal)
    return positions + 1 - longest, refusal


def refuse_others(name: str, model: Any, request: Request) -> None:
    """Raise DecodingError if a request has anything that decoder `name` does not support: beams, outputs other than
    those of `Decoded`, inputs that it would not read, a filled cache, a stream of several rows, a draft model where
    none is used, or none where one is needed, or a capture on a device without graphs."""
    config, device = request.generation_config, request.input_ids.device
    stream, draft_model = request.stream, request.draft_model
    if config.num_beams > 1:
        raise DecodingError(f"{name}: num_beams {config.num_beams}; allowed: 1")
    for key in REFUSED:
        if getattr(config, key, None):
            raise DecodingError(f"{name}: {key}; allowed: passes, nodes and accepted of return_dict_in_generate")
    mode = config.get_generation_mode()
    if mode not in ("greedy_search", "sample"):
        raise DecodingError(f"{name}: generation mode {mode.value}; allowed: greedy_search, sample")
    if request.input_ids.shape[1] == 0:
        raise DecodingError(f"{name}: inputs_embeds; allowed: input_ids")
    for key, network in (("model", model), ("draft_model", draft_model)):
        if (place := getattr(network, "device", device)) != device:
            raise DecodingError(f"{name}: {key} on {place}; allowed: {device}, where input_ids are")
    filled = [k for k, v in request.unread.items() if isinstance(v, Cache) and v.get_seq_length() > 0]
    if filled:
        raise DecodingError(f"{name}: {filled[0]} that holds tokens; allowed: an empty cache")
    unread = [
        key
        for key, value in request.unread.items()
        if key not in IGNORED and key not in list_keywords(model) and not says_nothing(model, key, value)
    ]
    if unread:
        raise DecodingError(f"{name}: {', '.join(unread)}; allowed: input_ids, attention_mask, {name}'s options")
    width = request.width
    if width is not None and (isinstance(width, bool) or not isinstance(width, int | np.integer) or width < 1):
        raise DecodingError(f"{name}: width: {width!r}; allowed: int, ge 1")
    for key in ("compile", "capture"):
        if not isinstance(value := getattr(request, key), bool):
            raise DecodingError(f"{name}: {key}: {value!r}; allowed: True, False")
    if request.capture and device.type not in CAPTURING:
        raise DecodingError(f"{name}: capture: True on {device}; allowed: a CUDA device")
    if stream is not None and not (hasattr(stream, "put") and hasattr(stream, "end")):
        raise DecodingError(f"{name}: stream: {stream!r}; allowed: a streamer of transformers")
    if stream is not None and len(request.input_ids) > 1:
        raise DecodingError(f"{name}: stream with {len(request.input_ids)} rows; allowed: one")
    if (draft_model is not None) != (name in DRAFTED) or not isinstance(draft_model, torch.nn.Module | None):
        allowed = "draft_model=, a causal model of the same vocabulary" if name in DRAFTED else "none"
        raise DecodingError(f"{name}: draft_model {type(draft_model).__name__}; allowed: {allowed}")


def says_nothing(model: Any, key: str, value: Any) -> bool:
    """Return whether a keyword that `generate` hands over changes nothing: nothing, a cache, or what the model's
    `forward` takes by default."""
    parameter = inspect.signature(model.forward).parameters.get(key)
    is_default = parameter is not None and isinstance(value, bool | int | float | str) and value == parameter.default
    return value is None or isinstance(value, Cache) or is_default or value == {}


def check_padding(name: str, unpadded: Tensor) -> None:
    """Raise DecodingError that names the mask if unpadded [B, P] has padding elsewhere than on the left."""
    if bool((unpadded[:, 1:] < unpadded[:, :-1]).any()) or not bool(unpadded[:, -1].all()):
        raise DecodingError(f"{name} with padding after tokens; allowed: on the left")


def check_positions(name: str, unpadded: Tensor, positions: Tensor | None) -> None:
    """Raise DecodingError if position ids [B, P], where given, do not count each row's tokens from 0. unpadded [B, P]:
    false on padding."""
    if positions is not None and bool((unpadded & (positions != unpadded.long().cumsum(1) - 1)).any()):
        raise DecodingError(f"{name}: position_ids; allowed: those of generate itself, counted from 0")


def find_padding_token(config: Any) -> int:
    """Find the token that fills a row after its end, as `generate` does: the padding token, or else the first end
    token; 0 if there is neither."""
    for token in (config.pad_token_id, config.eos_token_id):
        if token is not None:
            return int(torch.as_tensor(token, device="cpu").flatten()[0])
    return 0


class Result:
    """The rows of a batch while they are decoded: their tokens, where each stops, its passes and nodes."""

    def __init__(
        self,
        model: Sampled,
        prompts: Tensor,
        length: int,
        criteria: Any,
        stream: Any,
        pad: int,
        refusal: str | None = None,
    ):
        """Make room for `length` new tokens after the prompts [B, P], and send the prompts to the streamer `stream`, if
        any.

        criteria: transformers' stopping criteria; pad: the token that fills a row after its end, if one of them is an
        end token; without one a row goes on until all have stopped, as in `generate`; refusal: what to say of a row
        that no criterion has stopped after `length` tokens, if it cannot end there.
        """
        self.model = model
        B, P = prompts.shape
        self.canvas = Canvas(model.forced.clamp(min=0).repeat(B, 1))
        # what `generate` would have written: columns of which all rows are known
        self.ids = torch.cat([prompts, prompts.new_zeros(B, length)], 1)
        self.asked = 0  # new columns of `ids` about which the criteria were asked
        self.end: list[int | None] = [None] * B  # new tokens of each row that has stopped; None: it runs
        self.evaluated: list[Tensor] = []  # [B], of each pass
        self.refusal = refusal
        self.prefix = P
        self.length = length
        self.criteria = criteria
        self.stream = stream
        self.pad = pad if any(hasattr(criterion, "eos_token_id") for criterion in criteria) else None
        if stream is not None:
            stream.put(prompts.cpu())

    def take(self, step: Any) -> bool:
        """Add one step of a decoder: write its tokens, note its nodes, and ask the stopping criteria about each column
        that all rows have now reached. Returns whether all rows have stopped. Raises DecodingError for a token that was
        drawn from logits without a distribution, and for a row that cannot go on (`refusal`)."""
        self.canvas.write(step.find_places(self.length), step.tokens)
        self.evaluated.append(step.count_nodes(self.length).cpu())
        models = [model for model in (self.model, self.model.draft) if model is not None]
        flags = [model.flags(step.tokens).at for model in models]
        suspected = torch.stack(flags)[..., :-1].any(2).any(0)
        filled = (self.canvas.step[:, :-1] > 0) | (self.model.forced >= 0)  # of these decoders leave out some
        reached = filled.long().cumprod(1).sum(1)
        frontier, suspects = torch.stack([reached, suspected.long()]).tolist()
        while None in self.end and self.asked < min(
            f for f, end in zip(frontier, self.end, strict=True) if end is None or self.pad is None
        ):
            if any(suspects):
                for model in models:
                    self.refuse_undefined(model)
            self.add_column()
        return None not in self.end

    def refuse_undefined(self, model: Sampled) -> None:
        """Raise DecodingError if the next column of a running row has no distribution in this model."""
        for row, is_undefined in enumerate(model.flags(self.ids).at[:, self.asked].tolist()):
            if is_undefined and self.end[row] is None:
                cause = model.explain(row, self.asked, self.canvas.tokens)
                name = "" if model is self.model else "draft_model: "
                raise DecodingError(f"{name}row {row}, new token {self.asked}: {cause}")

    def add_column(self) -> None:
        """Write the next column of `ids`, and end those running rows that the stopping criteria or the limit end there.
        Streams the token, if there is a streamer."""
        self.asked += 1
        column = self.canvas.tokens[:, self.asked - 1].clone()
        if self.pad is not None:
            column[[end is not None for end in self.end]] = self.pad
        self.ids[:, self.prefix + self.asked - 1] = column
        if self.stream is not None:
            self.stream.put(column.cpu())
        for b, stops in enumerate(self.criteria(self.ids[:, : self.prefix + self.asked], None).tolist()):
            if self.refusal and not stops and self.end[b] is None and self.asked == self.length:
                raise DecodingError(self.refusal)
            if self.end[b] is None and (stops or self.asked == self.length):
                self.end[b] = self.asked

    def finish(self, as_dict: bool) -> Any:
        """Return prompts and new tokens [B, P + n], padded after each row's end, or with `as_dict` a `Decoded`, which
        adds their costs. Ends the stream."""
        sequences = self.ids[:, : self.prefix + self.asked]
        if self.stream is not None:
            self.stream.end()
        if not as_dict:
            return sequences
        ends = torch.tensor(self.end, device="cpu")
        step = self.canvas.step[:, :-1].cpu().masked_fill(torch.arange(self.length, device="cpu") >= ends[:, None], 1)
        passes = step.amax(1).clamp(min=1).long()  # that of a row's last token is its last
        running = torch.arange(len(self.evaluated), device="cpu")[:, None] < passes
        nodes = (running * torch.stack(self.evaluated)).sum(0)
        return Decoded(sequences, passes, nodes, ends.float() / passes)


def convert_options(method: str, decoder: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Convert options, which may be numbers of numpy, to Python's. Raises DecodingError that names the first option
    whose value has not the type, or is outside the bounds or choices, that the decoder's signature gives for it."""
    hints = typing.get_type_hints(decoder, include_extras=True)
    converted = {}
    for name, given in options.items():
        hint, *notes = typing.get_args(hints[name]) if typing.get_origin(hints[name]) is Annotated else (hints[name],)
        value = given.item() if isinstance(given, np.generic) else given
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
            fits, allowed = isinstance(value, str) and value in choices, ", ".join(map(repr, choices))
        else:
            fits = isinstance(value, (int, float) if hint is float else hint)
            fits = fits and (hint is bool or not isinstance(value, bool))
            allowed = hint.__name__
            for note in notes:
                for key, is_within in BOUNDS.items():
                    bound = getattr(note, key, None)
                    if bound is not None:
                        fits = fits and is_within(value, bound)
                        allowed += f", {key} {bound}"
        if not fits:
            raise DecodingError(f"{method}: {name}: {value!r}; allowed: {allowed}")
        converted[name] = value
    return converted


BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


@cache
def make_custom_generate(method: str) -> Callable[..., Any]:
    """Make the function that runs the decoder `method`, see `wrap_decoder`."""
    return wrap_decoder(getattr(importlib.import_module(f"parity_decoders.discrete.{method}"), method))


def wrap_decoder(decoder: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Make the function that runs a decoder when passed to `generate` as `custom_generate`. Its signature lists the
    decoder's options, since `generate` reads there which keywords to hand over."""
    method = decoder.__name__
    parameters = inspect.signature(decoder).parameters.values()
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "noise"}

    def custom_generate(model: Any, input_ids: Tensor, **keywords: Any) -> Any:
        """Decode input_ids [B, P]. keywords: the decoder's options and what `generate` hands over; see
        `run_decoder`."""
        defaults = {name: p.default for name, p in options.items()}
        is_text = keywords.get("width") in (None, 1) and not list_keywords(model)
        is_text = is_text and find_grammar(keywords.get("logits_processor")) is None
        if "window" in defaults and is_text:
            defaults["window"] = TEXT_WINDOW
        chosen = {name: keywords.pop(name, default) for name, default in defaults.items()}
        chosen = convert_options(method, decoder, chosen)
        named = {key: keywords.pop(key, default) for key, default in KEYWORDS.items()}
        # the mask may not be in the signature, because `generate` would pass it twice
        mask = keywords.pop("attention_mask", None)
        return run_decoder(decoder, model, chosen, Request(input_ids, mask, keywords, **named))

    keyword = inspect.Parameter.KEYWORD_ONLY
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("model", "input_ids")]
    named = [inspect.Parameter(name, keyword, default=value) for name, value in KEYWORDS.items()]
    rest = inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)
    custom_generate.__signature__ = inspect.Signature([*first, *named, *options.values(), rest])  # type: ignore[attr-defined]
    custom_generate.__name__ = method
    custom_generate.__doc__ = decoder.__doc__
    return custom_generate


def generate(
    model: Any, *, method: str = "sjd_coupled", streamer: Any = None, assistant_model: Any = None, **arguments: Any
) -> Any:
    """Generate with the decoder `method`: what `custom_generate=FOLDER` runs. arguments: all others of `generate`, and
    the decoder's options. Raises DecodingError for a method that does not exist."""
    if method not in METHODS:
        raise DecodingError(f"method: {method!r}; allowed: {', '.join(METHODS)}")
    handed_over = {"stream": streamer, "draft_model": assistant_model}
    arguments |= {key: value for key, value in handed_over.items() if value is not None}
    for key in LOADING:
        arguments.pop(key, None)
    # a model that was loaded from such a folder has this function as its own `generate`
    return type(model).generate(model, custom_generate=make_custom_generate(method), **arguments)


def __getattr__(name: str) -> Callable[..., Any]:
    """Make `parity_decoders.transformers.<method>` importable for each name in METHODS, and `verify`; AttributeError
    for others."""
    if name == "verify":
        return importlib.import_module("parity_decoders.verify").verify
    if name not in METHODS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; allowed: {', '.join(METHODS)}")
    return make_custom_generate(name)
