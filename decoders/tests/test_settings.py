"""What surrounds a model: hooks, modes, its configuration, its context, torch's defaults. Tokens are those of plain
`generate`, or one line says what is not decoded."""

from functools import wraps

import pytest
import torch
import transformers as hf
from decoders.tests.architectures import GPT_SIZES, SIZES, make_model

from parity_decoders import transformers as decoders
from parity_decoders.errors import DecodingError
from parity_decoders.slots import check_slots

IDS = torch.tensor([[33, 9, 31, 17, 17, 9]])
COUPLED = ("ar", "sjd_coupled", "mtj")
VECTOR = 4 * torch.randn(32, generator=torch.Generator().manual_seed(3))


def generate(model, method=None, ids=IDS, **options):
    """Generate greedily, at most 24 tokens, by a method of ours or plainly."""
    options = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0, "eos_token_id": None} | options
    return model.generate(ids, **options, **({"custom_generate": getattr(decoders, method)} if method else {}))


def assert_as_generate(model, methods=COUPLED, **options):
    """Assert that greedy tokens are those of plain `generate`."""
    plain = generate(model, **options)
    for method in methods:
        assert torch.equal(generate(model, method, **options), plain), method


def assert_refused(model, message, methods=COUPLED, **options):
    """Assert that every method refuses the model in one line, which says what is allowed."""
    for method in methods:
        with pytest.raises(DecodingError, match=message) as caught:
            generate(model, method, **options)
        assert "\n" not in str(caught.value)
        assert "allowed" in str(caught.value)


def hook(layer, change, kind="register_forward_hook", part=None):
    """Hang a function change(hidden [B, S, D]) -> hidden into a layer's output, or that of one of its parts."""
    module = layer if part is None else getattr(layer, part)

    def after(_, __, out):
        return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

    def before(_, args):
        return (change(args[0]), *args[1:])

    getattr(module, kind)(after if kind == "register_forward_hook" else before)


def add_at(places):
    """Make a function that adds VECTOR at the positions of a pass that places(S) [S] marks."""
    return lambda x: x + VECTOR.to(x) * places(torch.arange(x.shape[1]), x.shape[1])[:, None]


def count_steps(model):
    """Let a model's forward add more to its logits at each call."""
    forward, steps = model.forward, []

    @wraps(forward)
    def patched(*args, **keywords):
        out = forward(*args, **keywords)
        steps.append(1)
        out.logits = out.logits + 0.3 * len(steps) * torch.arange(40) % 7
        return out

    model.forward = patched


def act_on_an_empty_cache(model):
    """Hang a hook into a layer that acts where the cache holds no tokens."""

    def before(module, args, keywords):
        cache = keywords.get("past_key_values", keywords.get("cache"))
        empty = cache is not None and cache.get_seq_length() == 0
        return (args[0] + VECTOR * empty, *args[1:]), keywords

    model.model.layers[1].register_forward_pre_hook(before, with_kwargs=True)


def drop_in_a_layer(model):
    """Put dropout into one layer, in training mode; the model itself is not."""
    layer = model.model.layers[1]
    layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.4))
    layer.mlp[1].train()


PER_PASS = {
    "passes of one position": lambda m: hook(m.model.layers[1], add_at(lambda i, S: (i >= 0) & (S == 1))),
    "the last position": lambda m: hook(m.model.layers[1], add_at(lambda i, S: i == S - 1)),
    "the prompt alone": lambda m: hook(m.model.layers[1], add_at(lambda i, S: (i >= 0) & (S > 1))),
    "all but the first position": lambda m: hook(m.model.layers[1], add_at(lambda i, S: i > 0)),
    "attention, passes of one": lambda m: hook(
        m.model.layers[2], lambda x: 3 * x if x.shape[1] == 1 else x, part="self_attn"
    ),
    "before an MLP, passes of one": lambda m: hook(
        m.model.layers[2], add_at(lambda i, S: (i >= 0) & (S == 1)), "register_forward_pre_hook", "mlp"
    ),
    "the mean of a pass": lambda m: hook(m.model.layers[0], lambda x: x - x.mean(1, keepdim=True)),
    "an empty cache": act_on_an_empty_cache,
    "a counter of steps": count_steps,
    "dropout in one layer": drop_in_a_layer,
}


@pytest.mark.parametrize("name", PER_PASS)
def test_what_differs_from_pass_to_pass_is_refused(name):
    model = make_model("llama")
    PER_PASS[name](model)
    assert_refused(model, "differ from its own forward")


@pytest.mark.parametrize("scale", [1, 8])
def test_rounding_of_large_logits_is_no_fault_and_hooks_are(scale):
    """In bfloat16 numbers of 32 are a quarter apart."""
    model = make_model("gemma")
    with torch.no_grad():  # Gemma's norm multiplies by one more than its weight
        model.model.norm.weight.add_(1).mul_(scale).sub_(1)
    model.bfloat16()
    assert generate(model, "sjd_coupled").shape[1] == IDS.shape[1] + 24
    PER_PASS["passes of one position"](model)
    assert_refused(model, "differ from its own forward", ["sjd_coupled"])


def test_a_hook_of_a_model_that_was_right_is_seen():
    model = make_model("llama")
    assert_as_generate(model, ["sjd_coupled"])
    PER_PASS["passes of one position"](model)
    assert_refused(model, "with hooks: distributions in passes over a few tokens", ["sjd_coupled"])


def test_a_hook_that_acts_far_in_the_prompt_is_seen():
    """Nine tokens do not show it."""
    model = make_model("llama")
    hook(model.model.layers[1], add_at(lambda i, S: i >= 12))
    assert_as_generate(model, ["sjd_coupled"], max_new_tokens=4)
    assert_refused(model, "in a pass over one token after 19", ids=IDS.repeat(1, 4)[:, :20])


def test_a_hook_of_a_draft_model_is_seen():
    draft = make_model("gpt2")
    hook(draft.transformer.h[1], add_at(lambda i, S: (i >= 0) & (S == 1)))
    assert_refused(make_model("llama"), "model GPT2LMHeadModel with hooks", decoders.DRAFTED, draft_model=draft)


class Adapter(torch.nn.Module):
    """Adds a product of two narrow matrices to a linear layer, as LoRA does."""

    def __init__(self, inner):
        super().__init__()
        self.inner, generator = inner, torch.Generator().manual_seed(5)
        self.a, self.b = (torch.randn(*s, generator=generator) for s in ((32, 2), (2, inner.out_features)))

    def forward(self, x):
        return self.inner(x) + 0.2 * x @ self.a @ self.b


def adapt(model):
    """Put an adapter into the queries of a layer."""
    attention = model.model.layers[1].self_attn
    attention.q_proj = Adapter(attention.q_proj)


def steer_by_position(model):
    """Hang a hook into a layer that acts on positions from the eighth on, as `forward` is told them."""

    def before(module, args, keywords):
        late = keywords["position_ids"] >= 8
        return (args[0] + VECTOR * late[..., None], *args[1:]), keywords

    model.model.layers[1].register_forward_pre_hook(before, with_kwargs=True)


ALIKE = {
    "all positions": lambda m: hook(m.model.layers[1], add_at(lambda i, S: i >= 0)),
    "attention": lambda m: hook(m.model.layers[2], lambda x: 1.5 * x, part="self_attn"),
    "before an MLP": lambda m: hook(m.model.layers[2], torch.relu, "register_forward_pre_hook", "mlp"),
    "an adapter": adapt,
    "by position": steer_by_position,
    "training without dropout": lambda m: m.train(),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_alike_in_every_pass_is_decoded(name):
    model = make_model("llama")
    before = generate(model)
    ALIKE[name](model)
    assert_as_generate(model)
    assert name.startswith("training") or not torch.equal(generate(model), before)


def make_moe(name):
    """Make a small random mixture of experts that is not in CONFIGURATIONS."""
    sizes = SIZES | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    torch.manual_seed(0)
    return getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**sizes)).eval()


def make_gptj(**sizes):
    """Make a small random GPT-J."""
    torch.manual_seed(0)
    return hf.GPTJForCausalLM(hf.GPTJConfig(**GPT_SIZES | {"rotary_dim": 8} | sizes)).eval()


def make_eager(name):
    """Make a model whose attention can return its weights."""
    model = make_model(name)
    model.set_attn_implementation("eager")
    return model


CONFIGURED = {
    "mixtral": (lambda: make_model("mixtral"), {"output_router_logits": True}),
    "gpt-oss": (lambda: make_model("gpt_oss"), {"output_router_logits": True}),
    "qwen3-moe": (lambda: make_moe("Qwen3Moe"), {"output_router_logits": True}),
    "olmoe": (lambda: make_moe("Olmoe"), {"output_router_logits": True}),
    "granite-moe": (lambda: make_moe("GraniteMoe"), {"output_router_logits": True}),
    "hidden states": (lambda: make_model("llama"), {"output_hidden_states": True}),
    "attentions": (lambda: make_eager("llama"), {"output_attentions": True}),
    "no cache": (lambda: make_model("gpt2"), {"use_cache": False}),
    "torchscript": (lambda: make_model("gpt2"), {"torchscript": True}),
    "a tuple": (make_gptj, {"return_dict": False}),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_what_a_configuration_asks_of_every_forward_changes_nothing(name):
    make, settings = CONFIGURED[name]
    model = make()
    for key, value in settings.items():
        setattr(model.config, key, value)
    try:
        model(input_ids=torch.tensor([[3, 4]]))
    except AttributeError:
        pytest.skip("transformers' own forward fails so")
    assert_as_generate(model)


def shorten(model):
    """Take a layer from the model."""
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1


CHANGES = {
    "a larger vocabulary": lambda m: m.resize_token_embeddings(48),
    "a smaller vocabulary": lambda m: m.resize_token_embeddings(36),
    "a smaller head": lambda m: setattr(m, "lm_head", torch.nn.Linear(32, 36)),
    "another precision": lambda m: m.double(),
    "other attention": lambda m: m.set_attn_implementation("eager"),
    "fewer layers": shorten,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_calls_is_seen(name):
    model = make_model("llama")
    assert_as_generate(model, ["mtj"])
    torch.manual_seed(4)
    CHANGES[name](model)
    assert_as_generate(model, [*COUPLED, "gsd"])


def test_a_head_of_more_tokens_than_have_embeddings_is_refused():
    model = make_model("llama")
    model.lm_head = torch.nn.Linear(32, 48)
    assert_refused(model, "logits of 48 tokens, of which 40 have embeddings; allowed")


@pytest.mark.parametrize("alibi", [True, False])
def test_a_mask_of_each_slot_that_forward_does_not_take_is_one_line(alibi):
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = hf.FalconForCausalLM(hf.FalconConfig(**sizes, alibi=alibi, new_decoder_architecture=False)).eval()
    if alibi:
        assert_refused(
            model, "a pass over slots of a cache raised ValueError: .*; allowed: a forward that takes a mask"
        )
    else:
        assert_as_generate(model)


class Upcast(hf.LlamaForCausalLM):
    """Computes in its own precision and returns logits of float32."""

    def forward(self, input_ids=None, position_ids=None, **keywords):
        out = super().forward(input_ids=input_ids, position_ids=position_ids, **keywords)
        out.logits = out.logits.float()
        return out


def make_upcast(dtype):
    """Make a random network whose rounding in `dtype` moves log-probabilities by more than .001."""
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 128, "num_hidden_layers": 8, "head_dim": 32}
    return Upcast(hf.LlamaConfig(**sizes)).eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_rounding_is_that_of_the_computation_not_of_the_logits(dtype, autocast):
    """A fault that is larger than rounding is found at each precision."""
    model = make_upcast(torch.float32 if autocast else dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        assert check_slots(model) == 40
        hook(model.lm_head, lambda x: x * (1 + 9 * (x.shape[1] == 1)))
        assert_refused(model, "allowed: at most 0.2", ["sjd_coupled"])
    model = make_upcast(torch.float32)
    hook(model.lm_head, lambda x: x * (1 + 0.01 * (x.shape[1] == 1)))
    assert_refused(model, "allowed: at most 0.001", ["sjd_coupled"])


def test_rounding_is_coarse_where_products_of_float32_are():
    model = make_upcast(torch.float32)
    hook(model.lm_head, lambda x: x * (1 + 0.01 * (x.shape[1] == 1)))
    assert_refused(model, "allowed: at most 0.001", ["sjd_coupled"])
    torch.set_float32_matmul_precision("high")
    try:
        assert check_slots(model) == 40
        hook(model.lm_head, lambda x: x * (1 + 9 * (x.shape[1] == 1)))
        assert_refused(model, "allowed: at most 0.2", ["sjd_coupled"])
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.fixture
def defaults():
    """Set torch's defaults back after a test."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device("cpu")
    torch.set_default_device(None)


SAMPLED = {
    "plain": {},
    "top_p": {"top_p": 0.9, "temperature": 0.7},
    "penalty": {"repetition_penalty": 1.2},
    "guidance": {"guidance_scale": 1.5},
    "allowed": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(3, 40, 1 + int(ids[-1]) % 2))},
}


@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("method", decoders.METHODS)
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64, "meta"], ids=str)
def test_defaults_of_torch_change_no_token(default, method):
    model = make_model("llama")
    draft = {"draft_model": make_model("gpt2")} if method in decoders.DRAFTED else {}
    requests = SAMPLED if method in ("sjd_coupled", "mtj") else {"plain": {}}
    options = [{"do_sample": True, "seed": 1} | draft | request for request in requests.values()]
    before = [generate(model, method, **given) for given in options]
    if default == "meta":
        torch.set_default_device(default)
    else:
        torch.set_default_dtype(default)
    for given, tokens in zip(options, before, strict=True):
        assert torch.equal(generate(model, method, **given), tokens)


POSITIONS = 32
OF_GPT = GPT_SIZES | {"n_positions": POSITIONS}
OF_OPT = SIZES | {"max_position_embeddings": POSITIONS, "ffn_dim": 48, "word_embed_proj_dim": 32}
WITH_POSITIONS = {
    "GPT2": OF_GPT,
    "GPTBigCode": OF_GPT,
    "GPTJ": OF_GPT | {"rotary_dim": 8},
    "CodeGen": OF_GPT | {"rotary_dim": 8},
    "OPT": OF_OPT,
    "BioGpt": OF_OPT,
}


def make_with_positions(name):
    """Make a small random model of WITH_POSITIONS, which looks up POSITIONS positions in a table."""
    torch.manual_seed(1)
    model_class = getattr(hf, f"{name}{'LMHeadModel' if name == 'GPT2' else 'ForCausalLM'}")
    return model_class(getattr(hf, f"{name}Config")(**WITH_POSITIONS[name])).eval()


class StopAt(hf.StoppingCriteria):
    """Stops where this many tokens stand."""

    def __init__(self, size):
        self.size = size

    def __call__(self, ids, scores, **_):
        return torch.full((len(ids),), ids.shape[1] >= self.size)


def stop_at(size):
    """Make criteria that stop at this many tokens."""
    return {"stopping_criteria": hf.StoppingCriteriaList([StopAt(size)]), "max_new_tokens": 100}


@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_tokens_go_as_far_as_positions_do(name):
    """The last token needs none. Windows of all methods reach beyond."""
    model = make_with_positions(name)
    methods = [*COUPLED, "sjd", "jacobi", "pjd"]
    assert_as_generate(model, methods, max_new_tokens=POSITIONS + 1 - 6)
    for size in (POSITIONS - 1, POSITIONS, POSITIONS + 1):
        assert_as_generate(model, methods, **stop_at(size))
    with pytest.raises((IndexError, RuntimeError)):
        generate(model, **stop_at(POSITIONS + 2))
    allowed = f"has {POSITIONS} positions; allowed: at most {POSITIONS + 1} tokens"
    assert_refused(model, allowed, **stop_at(POSITIONS + 2))
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    assert_refused(model, allowed, max_new_tokens=POSITIONS + 2 - 6)
    assert_refused(model, allowed, ids=IDS.repeat(1, 6)[:, : POSITIONS + 1], **stop_at(40))
    assert not calls, "it began"


def test_rows_of_padding_go_as_far_as_the_longest():
    model = make_with_positions("GPT2")
    ids = torch.tensor([[0, 0, 0, 17, 17, 9], [33, 9, 31, 17, 17, 9]])
    options = {"ids": ids, "attention_mask": (ids != 0).long()}
    assert_as_generate(model, **options, max_new_tokens=POSITIONS + 1 - 6)
    assert_refused(model, f"{POSITIONS + 2} tokens with the prompt", **options, max_new_tokens=POSITIONS + 2 - 6)


@pytest.mark.parametrize("prompt", [6, 20])
@pytest.mark.parametrize("name", ["GPT2", "GPTJ", "OPT"])
def test_a_draft_model_may_have_fewer_positions(name, prompt, monkeypatch):
    """What it drafts beyond them is bad, and verified as all drafts are."""
    monkeypatch.setitem(
        WITH_POSITIONS,
        name,
        WITH_POSITIONS[name] | {("max_position_embeddings" if name == "OPT" else "n_positions"): 16},
    )
    model, draft = make_model("llama"), {"draft_model": make_with_positions(name)}
    options = {"ids": IDS.repeat(1, 4)[:, :prompt], "max_new_tokens": 40}
    for method in decoders.DRAFTED:
        assert torch.equal(generate(model, method, **options, **draft), generate(model, **options)), method
    options |= {"do_sample": True, "seed": 1}
    assert torch.equal(generate(model, "mtj_draft", **options, **draft), generate(model, "ar", **options))


def test_a_model_of_fewer_positions_than_are_compared_is_one_line():
    torch.manual_seed(2)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT_SIZES | {"n_positions": 8})).eval()
    assert_refused(model, "GPT2LMHeadModel: a pass .*raised IndexError", max_new_tokens=2)
