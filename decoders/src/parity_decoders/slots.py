"""A causal network of transformers as a token model: keys and values stand at slots of a cache, addressed by position
(`SlotCache`)."""

import inspect
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from parity_decoders.cache import SlotCache, SlotLayer, compact_rows
from parity_decoders.engine import Network, make_additive
from parity_decoders.errors import DecodingError
from parity_decoders.grid import Grid

# Architectures whose sliding-window masks were compared with their own `forward`, beyond the window.
SLIDING = frozenset({"mistral", "mixtral", "qwen2", "gemma2", "gemma3_text", "gpt_oss", "olmo3", "phi3"})
TOLERANCE = 1e-3  # largest difference of log-probabilities between a window of slots and a model's own forward
COARSE = 0.2  # the same where a model computes in bfloat16, which has 8 significant bits, or the like
ROUNDINGS = 2  # or there, if that is more, twice the spacing of numbers of the size of the largest logit
# outputs that a configuration may ask of every forward: decoders read none, and some fail beside a mask of slots
OUTPUTS = ("output_attentions", "output_hidden_states", "output_router_logits")
# models that passed `check_slots`: what they were then (`describe`), and the size of their vocabulary
checked: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
# models that passed `compare_lengths`: what they were then, the shortest and longest prompt, and the longest text
compared: WeakKeyDictionary[Any, tuple[int, int, int, int]] = WeakKeyDictionary()
# Rotary tables that depend on the length of what is in a pass: key of the configuration with the length up to which
# they do not. Those of longrope are two, one for all longer passes.
LENGTHS = {
    "dynamic": "max_position_embeddings",
    "longrope": "original_max_position_embeddings",
    "su": "original_max_position_embeddings",
}


class CausalLayer(SlotLayer, CacheLayerMixin):
    """A layer of a `CausalCache`."""

    is_sliding = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many slots are read, and 0, the first of them, whatever the length of the query."""
        return self.cache.end, 0

    def get_seq_length(self) -> int:
        """Return 0, so that transformers counts no positions: each call gives them."""
        return 0

    def get_max_length(self) -> int:
        """Return how many slots exist."""
        return self.cache.size


class CausalCache(SlotCache):
    """A cache of slots, with the one that is handed to a model of transformers, `handed`, of the same layers."""

    def __init__(self, layers: int, unpadded: Tensor, length: int, static: bool = False):
        """Set the slots. See SlotCache."""
        super().__init__(layers, unpadded, length, static)
        self.handed = Cache(layers=self.layers)

    def make_layer(self) -> CausalLayer:
        """Make a layer that transformers takes for one of its own."""
        return CausalLayer(self)


def find_windows(model: Any) -> list[int | None]:
    """Return the sliding window of each layer, None for one that sees all, without building a network.

    Raises DecodingError for a model whose layers cannot go back to an earlier position, or hide keys in another way.
    """
    name = f"model {type(model).__name__}"
    if model.config.is_encoder_decoder:
        raise DecodingError(f"{name}: an encoder and a decoder; allowed: a causal language model")
    if getattr(model, "_is_stateful", False):
        raise DecodingError(f"{name}: its layers keep a state that cannot go back; allowed: layers of full attention")
    if any(layer.training and getattr(layer, "gradient_checkpointing", False) for layer in model.modules()):
        raise DecodingError(f"{name}: gradient checkpointing, which keeps no cache; allowed: after model.eval()")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise DecodingError(f"{name}: its forward takes no position_ids; allowed: a model that takes them")
    config = model.config.get_text_config(decoder=True)
    if "flash" in (config._attn_implementation or ""):
        raise DecodingError(f"{name}: attn_implementation {config._attn_implementation!r}; allowed: 'sdpa', 'eager'")
    layers = DynamicCache(config=config).layers or [DynamicLayer()] * config.num_hidden_layers
    unsupported = {type(layer).__name__ for layer in layers} - {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if getattr(config, "attention_layers", None):  # GPT-Neo
        raise DecodingError(f"{name}: layers with a causal mask of their own; allowed: layers that take a mask")
    unsupported |= {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    shares_keys = bool(getattr(config, "num_kv_shared_layers", 0))
    if unsupported or shares_keys:
        found = ", ".join(sorted(unsupported)) or "layers that share keys"
        raise DecodingError(f"{name}: {found}; allowed: layers of full attention or of a sliding window")
    windows = [layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None for layer in layers]
    if any(windows) and config.model_type not in SLIDING:
        allowed = ", ".join(sorted(SLIDING))
        raise DecodingError(f"{name}: a sliding window in {config.model_type!r}; allowed: none, or one of {allowed}")
    return windows


def list_options(model: Any) -> dict[str, bool]:
    """List the keywords by which a model's forward returns logits and no more, whatever its configuration asks for."""
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    configs = (model.config, model.config.get_text_config(decoder=True))
    asked = [key for key in OUTPUTS if any(getattr(config, key, False) for config in configs)]
    return {"return_dict": True} | {key: False for key in asked if takes_all or key in parameters}


def name_cache(model: Any) -> str:
    """Name the keyword of a cache: transformers 5.24 renames it, and a model with code of its own may have either."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def compute_logits(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    """Compute the logits [B, S, V] that follow ids [B, S] by the model's own forward, without a cache unless `inputs`,
    further ones, have one."""
    logits: Tensor = model(input_ids=ids, **{"use_cache": False} | inputs | list_options(model)).logits
    return logits


def count_positions(model: Any) -> int | None:
    """Count the positions of a model that looks them up in a table, learned or computed once; None if it has no
    table. Some tables have up to two rows more, for padding."""
    count = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    words = model.get_input_embeddings()
    for module in model.modules():
        is_own = type(module).__module__.startswith("transformers.")  # others may make their tables longer
        tables = [module.weight] if isinstance(module, torch.nn.Embedding) and module is not words else []
        tables += [x for x in module.buffers(recurse=False) if is_own and x.ndim == 2 and x.is_floating_point()]
        if count and any(count <= len(table) <= count + 2 for table in tables):
            return int(count)
    return None


class SlotNetwork(Network):
    """A causal model of transformers with the cache of a batch of prompts."""

    cache: CausalCache

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        unpadded: Tensor,
        length: int,
        padding: Tensor | None = None,
        static: bool = False,
        position_ids: Tensor | None = None,
        grid: Grid | None = None,
        forced: Tensor | None = None,
        vocab: int | None = None,
    ):
        """Feed the prompts ids [R, P], padded on the left, without their last tokens. See Network.

        unpadded [R, P] bool, false on padding; length: the most new positions; padding [R]: how many columns stand
        before position 0 of each row, by default those of padding; static: whether shapes of passes are fixed;
        position_ids [n, R, P + length]: see `Inputs`; forced [length]: None for none; vocab: tokens
        of the model's logits. Raises DecodingError: see `find_windows`.
        """
        self.cache_keyword = name_cache(model)
        self.options: dict[str, Any] = {"use_cache": True, **list_options(model)}
        self.positions = count_positions(model)
        self.windows = find_windows(model)
        self.window = next(filter(None, self.windows), None)
        self.position_ids = position_ids
        words = model.get_input_embeddings().weight[:vocab]
        if forced is None:
            forced = torch.full((length,), -1, dtype=torch.long, device=ids.device)
        grid = grid or Grid(1)
        super().__init__(
            model, ids, unpadded, forced, grid.find_widest(), words, padding=padding, static=static, grid=grid
        )

    def make_cache(self, unpadded: Tensor, static: bool) -> CausalCache:
        """Make the cache of prompts unpadded [R, P]."""
        return CausalCache(len(self.windows), unpadded, self.length, static)

    def read_prompts(self, prompts: Tensor, slots: Tensor, visible: Tensor) -> None:
        """Read prompts [R, P - 1]; the model computes no logits but those of the last token, if it can."""
        last_only = {"logits_to_keep": 1} if self.model._supports_logits_to_keep() else {}
        self.model(**self.prepare({"input_ids": prompts}, slots, slots, visible), **last_only)

    def embed(self, tokens: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """Return tokens at positions [R, S] as the model reads them: it embeds ids itself."""
        return {"input_ids": torch.where(positions < 0, self.last, tokens)}

    def prepare(self, inputs: dict[str, Tensor], slots: Tensor, places: Tensor, visible: Tensor) -> dict[str, Any]:
        """Prepare the arguments of the model for a pass. See Network."""
        return (
            inputs
            | self.options
            | {
                "attention_mask": self.make_mask(slots, places, visible),
                "position_ids": self.number_positions(places),
                self.cache_keyword: self.cache.handed,
            }
        )

    def number_positions(self, places: Tensor) -> Tensor:
        """Return the position ids of tokens at places [R, S]: [R, S] counted from each row's first token, or [n, R, S]
        as the model says."""
        if self.position_ids is None:
            # a slot whose logits nobody reads, or a draft, may stand after the last position
            return (places - self.padding).clamp(0, self.positions and self.positions - 1)
        n, _, end = self.position_ids.shape
        return self.position_ids.gather(2, places.clamp(max=end - 1).expand(n, -1, -1))

    def make_mask(self, slots: Tensor, places: Tensor, visible: Tensor) -> Any:
        """Make the additive mask [R, 1, S, T] of `visible` [R, S, T], cut to the sliding window if all layers have one;
        if only some have, a dict with a mask for each type of layer. slots, places: see `prepare`."""
        if self.window is None:
            return make_additive(visible, self.embeddings.dtype)
        # the place of a key is its slot, except for the nodes of a tree, which are stored after all others
        key_places = torch.arange(visible.shape[2], device=slots.device).repeat(len(slots), 1).scatter(1, slots, places)
        near = make_additive(visible & (key_places[:, None] > places[..., None] - self.window), self.embeddings.dtype)
        if None not in self.windows:
            return near
        return {"full_attention": make_additive(visible, self.embeddings.dtype), "sliding_attention": near}

    def drop_rows(self, active: Tensor) -> None:
        """Drop the rows that are not `active` [G] bool. See Network."""
        super().drop_rows(active)
        if self.position_ids is not None:
            self.position_ids = compact_rows(self.position_ids.movedim(1, 0).clone(), active).movedim(0, 1)


def find_precision(model: Any) -> torch.dtype:
    """Find the dtype of fewest bytes in which a model keeps weights or computes."""
    device = model.get_input_embeddings().weight.device.type
    dtypes = [parameter.dtype for parameter in model.parameters()]
    if torch.is_autocast_enabled(device):
        dtypes.append(torch.get_autocast_dtype(device))
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set for a backend alone
        exact = False
    if torch.float32 in dtypes and not exact:
        dtypes.append(torch.float16)  # TensorFloat-32 has as many significant bits
    return min(dtypes, key=lambda dtype: dtype.itemsize)


def describe(model: Any) -> int:
    """Return a number that is another if a model's layers, sizes, dtypes, modes, hooks or settings are others, of
    which `check_slots` is to be asked anew."""
    modules = [
        (type(m), m.training, id(m.__dict__.get("forward")), *m._forward_hooks, -1, *m._forward_pre_hooks)
        for m in model.modules()
    ]
    weights = [(parameter.shape, parameter.dtype, parameter.device) for parameter in model.parameters()]
    config = model.config.get_text_config(decoder=True)
    settings = (repr(model.config.to_dict()), config._attn_implementation, find_precision(model))
    return hash((*modules, *weights, *settings))


def has_hooks(model: Any) -> bool:
    """Return whether anything was hung into the forward of a model's modules: hooks, or another forward. Those of
    accelerate, which place weights, do not count."""
    return any(
        m._forward_hooks or m._forward_pre_hooks or ("forward" in m.__dict__ and not hasattr(m, "_hf_hook"))
        for m in model.modules()
    )


def name_model(model: Any) -> str:
    """Name a model for a message, with what may change its distributions from pass to pass."""
    training = " in training mode" if any(module.training for module in model.modules()) else ""
    return f"model {type(model).__name__}{training}{' with hooks' if has_hooks(model) else ''}"


def compute_stepwise(model: Any, ids: Tensor, first: int) -> Tensor:
    """Compute the logits [B, S, V] that follow ids [B, S] as `generate` does: in a pass over the first tokens, then in
    passes over one."""
    keyword, cache = name_cache(model), DynamicCache(config=model.config.get_text_config(decoder=True))
    logits = []
    for start, end in ((0, first), *((n, n + 1) for n in range(first, ids.shape[1]))):
        places = {"position_ids": torch.arange(start, end, device=ids.device)[None].expand(len(ids), -1)}
        given = {"attention_mask": torch.ones_like(ids[:, :end]), "use_cache": True, keyword: cache}
        logits.append(compute_logits(model, ids[:, start:end], **given, **places))
    return torch.cat(logits, 1)


@torch.inference_mode()
def check_slots(model: Any) -> int:
    """Compare a model's own forward over nine random tokens with its passes over one, as in `generate`, and with those
    of a `SlotNetwork` over a window, a tree and one token, once for each model as it is (`describe`). Returns the
    number of tokens of its logits.

    Raises DecodingError if log-probabilities differ: then the model, or a hook in it, reads its mask, cache or
    positions in another way, treats some tokens of a pass or some passes as others are not, or drops features at
    random.
    """
    state = describe(model)
    before, size = checked.get(model, (None, 0))
    if before == state:
        return size
    find_windows(model)
    embeddings = model.get_input_embeddings().weight
    device, name = embeddings.device, name_model(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(embeddings), (2, 9), generator=generator, device="cpu").to(device)
    try:
        truth = compute_logits(model, ids, attention_mask=torch.ones_like(ids))
        steps = compute_stepwise(model, ids[:, :7], 5)
        network = SlotNetwork(model, ids[:, :4], torch.ones_like(ids[:, :4], dtype=torch.bool), 5)
        positions = torch.arange(-1, 5, device=device).expand(2, -1)
        window = network.logits(ids[:, 3:6], positions[:, :3])
        tree = network.tree(ids[:, 6:], positions[:, 3:], torch.arange(-1, 2, device=device).expand(2, -1)).logits
        one = network.logits(ids[:, 6:7], positions[:, 3:4])
    except (DecodingError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        raise DecodingError(
            f"{name}: a pass over slots of a cache raised {cause}; allowed: a forward that takes a mask of each slot "
            "[B, 1, S, T], position_ids and a cache"
        ) from error
    found = torch.cat([steps, window, tree, one], 1)
    expected = torch.cat([truth[:, :7], truth[:, 3:], truth[:, 6:7]], 1)
    check_probs(model, found, expected, f"{name}: distributions in passes over a few tokens")
    if truth.shape[-1] > len(embeddings):
        raise DecodingError(
            f"{name}: logits of {truth.shape[-1]} tokens, of which {len(embeddings)} have embeddings; allowed: as many"
        )
    checked[model] = state, truth.shape[-1]
    return truth.shape[-1]


def check_probs(model: Any, found: Tensor, truth: Tensor, name: str) -> None:
    """Raise DecodingError that names `name` if the log-probabilities of two tensors of logits [..., V] of a model
    differ by more than rounding. Logits that are NaN or infinite in the truth are not compared; if all are, that is an
    error."""
    is_number = truth.isfinite()
    if not bool(is_number.any()):
        raise DecodingError(f"{name}: the model's logits are NaN or infinite; allowed: numbers")
    found, truth = (x.masked_fill(~is_number, -torch.inf) for x in (found, truth))
    precision = min(find_precision(model), truth.dtype, key=lambda dtype: dtype.itemsize)
    limit = TOLERANCE
    if precision.itemsize < 4:  # large logits are rounded more coarsely
        limit = max(COARSE, ROUNDINGS * torch.finfo(precision).eps * float(truth[is_number].abs().max()))
    difference = float((found.float().log_softmax(-1) - truth.float().log_softmax(-1))[is_number].abs().max())
    if not difference <= limit:
        raise DecodingError(f"{name} differ from its own forward by {difference:.2g}; allowed: at most {limit:.2g}")


def check_inputs(model: Any, ids: Tensor, unpadded: Tensor) -> None:
    """Raise DecodingError if `generate` would begin with other inputs than the prompts ids [B, P] and their mask
    unpadded [B, P]. An adapter that adds its own there, such as a learned prompt, would be left out."""
    mask = unpadded.long()
    inputs = model.prepare_inputs_for_generation(ids, attention_mask=mask, use_cache=True, is_first_iteration=True)
    expected = {"input_ids": ids, "attention_mask": mask}
    harmless = ("use_cache", "logits_to_keep", "position_ids", "cache_position")
    missing = expected.keys() - inputs.keys()
    others = [
        key
        for key, value in inputs.items()
        if not (torch.is_tensor(value) and torch.equal(value, expected[key]) if key in expected else value is None)
        and not (key in harmless or (isinstance(value, Cache) and value.get_seq_length() == 0))
    ]
    if changed := [*missing, *others]:
        raise DecodingError(
            f"model {type(model).__name__}: its prepare_inputs_for_generation changes {', '.join(changed)}; "
            "allowed: adapters that act inside its forward, such as LoRA"
        )


def check_lengths(model: Any, shortest: int, longest: int, end: int) -> None:
    """Raise DecodingError if the distribution of a token may depend on how many tokens are in a pass: passes of a
    window have other lengths than those of `generate`.

    shortest: tokens of the shortest prompt; longest: of the longest, the shorter one of both kinds if there are
    unconditional prompts; end: tokens of the longest with its new ones. The configuration names a rotary table that
    depends on length. Code that is not of transformers is asked, see `compare_lengths`.
    """
    config = model.config.get_text_config(decoder=True)
    tables: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = all(isinstance(table, dict) for table in tables.values())
    by_layer: list[dict[str, Any]] = list(tables.values()) if nested else [tables]
    for table in by_layer:
        kind = table.get("rope_type", table.get("type"))
        if kind not in LENGTHS:
            continue
        limit = table.get(LENGTHS[kind]) or getattr(config, LENGTHS[kind], None) or 0
        # a pass over the prompt leaves out its last token
        if end > limit and (kind == "dynamic" or longest - 1 <= limit):
            above = "" if kind == "dynamic" else f", or a prompt of more than {limit + 1}"
            raise DecodingError(
                f"model {type(model).__name__}: {end} tokens with rope_type {kind!r}; allowed: at most {limit} "
                f"({LENGTHS[kind]}) with the prompt{above}"
            )
    if not type(model).__module__.startswith("transformers.") or has_hooks(model):
        compare_lengths(model, shortest, longest, end)


@torch.inference_mode()
def compare_lengths(model: Any, shortest: int, longest: int, end: int) -> None:
    """Raise DecodingError if the distribution after `shortest` random tokens is another in a pass over `end` tokens, or
    that after `longest` in a pass over one. Models are compared once as they are, and again for a shorter or longer
    prompt or a longer text."""
    state = describe(model)
    before, *known = compared.get(model, (None, 0, 0, 0))
    if before == state:
        if known[0] <= shortest and longest <= known[1] and end <= known[2]:
            return
        shortest, longest, end = min(known[0], shortest), max(known[1], longest), max(known[2], end)
    most = count_positions(model) or end
    shortest, longest, end = min(shortest, most), min(longest, most), min(end, most)
    weight = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(weight), (1, end), generator=generator, device="cpu").to(weight.device)
    found = compute_logits(model, ids)
    truth = compute_logits(model, ids[:, :shortest])
    name = f"{name_model(model)}: distributions in a pass over"
    check_probs(model, found[:, shortest - 1], truth[:, -1], f"{name} {end} tokens")
    network = SlotNetwork(model, ids[:, :longest], torch.ones_like(ids[:, :longest], dtype=torch.bool), 1)
    one = network.logits(ids[:, longest - 1 : longest], torch.full_like(ids[:, :1], -1))
    check_probs(model, one[:, -1], found[:, longest - 1], f"{name} one token after {longest - 1}")
    compared[model] = state, shortest, longest, end
