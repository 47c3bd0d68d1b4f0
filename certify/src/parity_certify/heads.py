"""Make tiny draft heads for a tiny Llama, in the layouts that vLLM and SGLang read, trained while the command runs.

    write_heads(["eagle", "eagle3", "medusa"], OUT)    for OUT/llama, each to a folder beside it: OUT/llama-eagle, ...
    write_mimo(FOLDER, vocab=4, seed=0)                a target of its own, with its head inside: MiMo's layout of MTP

EAGLE and MTP heads read a token and the target's state before it, and are unrolled on their own states; EAGLE-3 reads
three layers, and drafts all but the rarest token; Medusa's heads read the last state alone. Training stops as soon as
a draft is accepted with probability GOAL (mean of 1 - TV over the steps), so that both outcomes are frequent.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from parity_certify.adapters.transformers import get_vocab_size, load_model
from parity_certify.errors import ParityError
from parity_certify.files import replace_whole, write_json
from parity_certify.models import SIZES, make_model, save_model

GOAL, ALLOWED = 0.75, (0.3, 0.8)  # acceptance at which training stops, and that a head must have
STEPS = 3  # tokens that a head is trained to draft
LAYERS = 4  # of a target with heads: EAGLE-3 reads what goes into layers 1, 2 and 3
AUX = (1, 2, 3)
MTP = "model.mtp_layers.0."  # before the names of MiMo's head in its target's checkpoint
ROUNDS, ROWS, LENGTH, RATE = 80, 256, 12, 1e-2  # of training


class States(NamedTuple):
    """What a target computes after tokens [n, t]: logits [n, t, V], last states [n, t, H], those of AUX [n, t, 3 H]."""

    logits: Tensor
    last: Tensor
    layers: Tensor


def run_target(target: Any, tokens: Tensor, positions: Tensor | None = None) -> States:
    """Run a target on tokens [n, t], at positions [1, t] (0 to t - 1)."""
    out = target.model(tokens, position_ids=positions, output_hidden_states=True, use_cache=False)
    layers = torch.cat([out.hidden_states[i] for i in AUX], -1)
    return States(target.lm_head(out.last_hidden_state), out.last_hidden_state, layers)


class Head(nn.Module):
    """A head that drafts token by token: the target's embeddings and output, and what a kind adds."""

    reads = "last"

    def __init__(self, target: Any):
        super().__init__()
        self.config = copy.deepcopy(target.config)
        self.config.num_hidden_layers = 1
        self.target = (target,)  # in a tuple, so that its weights are not the head's
        self.rotary = (LlamaRotaryEmbedding(self.config),)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states to those that the head reads [n, t, H]."""
        return states

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up the target's embeddings of tokens."""
        vectors: Tensor = self.target[0].model.embed_tokens(tokens)
        return vectors

    def prepare(self, x: Tensor) -> dict[str, Any]:
        """Prepare what attention in x [n, t, H] needs: rotations and a causal mask."""
        t = x.shape[1]
        mask = torch.full((t, t), torch.finfo(x.dtype).min).triu(1)[None, None]
        return {"position_embeddings": self.rotary[0](x, torch.arange(t)[None]), "attention_mask": mask}


class Eagle(Head):
    """EAGLE: a layer without a norm before it, which predicts the target's next last state."""

    def __init__(self, target: Any):
        super().__init__(target)
        H = self.config.hidden_size
        self.embed_tokens = copy.deepcopy(target.model.embed_tokens).requires_grad_(False)
        self.fc = nn.Linear(2 * H, H)
        self.fc.bias = nn.Parameter(torch.zeros(H), requires_grad=False)  # SGLang reads it, vLLM has none
        self.layers = nn.ModuleList([LlamaDecoderLayer(self.config, 0)])
        self.layers[0].input_layernorm = nn.Identity()

    def forward(self, tokens: Tensor, states: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Return logits [n, t, V] of the token after each of tokens [n, t], and the states of the next step."""
        x = self.fc(torch.cat([self.embed_tokens(tokens), states], -1))
        x = self.layers[0](x, **self.prepare(x))
        return self.target[0].lm_head(x), x


class Eagle3(Head):
    """EAGLE-3: a layer that reads the token and three of the target's layers, with an output of fewer tokens."""

    reads = "layers"
    midlayer: Any
    d2t: Tensor
    t2d: Tensor

    def __init__(self, target: Any):
        super().__init__(target)
        H, c = self.config.hidden_size, self.config
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.midlayer = LlamaDecoderLayer(c, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.midlayer.self_attn, name)
            setattr(self.midlayer.self_attn, name, nn.Linear(2 * H, narrow.out_features, bias=False))
        self.midlayer.hidden_norm = LlamaRMSNorm(H, eps=c.rms_norm_eps)
        self.norm = LlamaRMSNorm(H, eps=c.rms_norm_eps)
        self.lm_head = nn.Linear(H, c.vocab_size - 1, bias=False)
        self.register_buffer(
            "d2t", torch.zeros(c.vocab_size - 1, dtype=torch.long)
        )  # token of a draft, less its number
        self.register_buffer("t2d", torch.ones(c.vocab_size, dtype=torch.bool))  # whether a token is drafted

    def leave_out(self, token: int) -> None:
        """Leave a token out of the drafts."""
        self.d2t[token:] = 1
        self.t2d[token] = False

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse three layers to one."""
        fused: Tensor = self.fc(states)
        return fused

    def forward(self, tokens: Tensor, states: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """As `Eagle.forward`."""
        layer = self.midlayer
        x = torch.cat([layer.input_layernorm(self.embed(tokens)), layer.hidden_norm(states)], -1)
        x = states + layer.self_attn(x, **self.prepare(states))[0]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        drafted = self.lm_head(self.norm(x))
        logits = drafted.new_full((*drafted.shape[:-1], len(self.t2d)), torch.finfo(drafted.dtype).min)
        logits[..., torch.arange(len(self.d2t)) + self.d2t] = drafted
        return logits, x


class Mtp(Head):
    """MiMo's layer of multi-token prediction: a norm on each input, a layer, and a norm."""

    def __init__(self, target: Any):
        super().__init__(target)
        H, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.token_layernorm, self.hidden_layernorm = LlamaRMSNorm(H, eps=eps), LlamaRMSNorm(H, eps=eps)
        self.input_proj = nn.Linear(2 * H, H, bias=False)
        self.final_layernorm = LlamaRMSNorm(H, eps=eps)
        self.layer = (Qwen2DecoderLayer(self.config, 0),)
        for name, part in self.layer[0].named_children():  # which stand beside the rest in a checkpoint
            self.add_module(name, part)

    def forward(self, tokens: Tensor, states: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """As `Eagle.forward`; start: the position of the first state. The embedding at position 0 is not read."""
        first = torch.arange(start, start + tokens.shape[1])[:, None] > 0
        x = [self.hidden_layernorm(states), self.token_layernorm(self.embed(tokens) * first)]
        x = self.input_proj(torch.cat(x, -1))
        x = self.final_layernorm(self.layer[0](x, **self.prepare(x)))
        return self.target[0].lm_head(x), x


class Medusa(nn.Module):
    """Medusa: a residual block and an output for each of the next tokens, all from the target's last state."""

    reads = "last"
    blocks: Any

    def __init__(self, target: Any):
        super().__init__()
        self.config = target.config
        H = self.config.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(H, H, bias=False)])}) for _ in range(STEPS)
        )
        self.lm_heads = nn.ModuleList(nn.Linear(H, self.config.vocab_size, bias=False) for _ in range(STEPS))

    def forward(self, states: Tensor) -> list[Tensor]:
        """Return logits [n, t, V] of the second, third, ... token after each of states [n, t, H]."""
        blocks = [block["layers"][0] for block in self.blocks]
        return [
            out(states + nn.functional.silu(block(states))) for block, out in zip(blocks, self.lm_heads, strict=True)
        ]


HEADS: dict[str, Any] = {"eagle": Eagle, "eagle3": Eagle3, "mtp": Mtp, "medusa": Medusa}


def draft_logits(head: Any, tokens: Tensor, states: States) -> list[Tensor]:
    """Compute the logits of a head's drafts along tokens [n, T]: of step j, [n, T - 1 - j, V], those of token t + 2 + j
    after the target's state at t."""
    given = getattr(states, head.reads)[:, :-1]
    if isinstance(head, Medusa):
        return [logits[:, : given.shape[1] - j] for j, logits in enumerate(head(given))]
    found, given = [], head.fuse(given)
    for j in range(STEPS):
        logits, given = head(tokens[:, 1 + j :], given, start=j)
        found.append(logits)
        given = given[:, :-1]
    return found


def draw_texts(target: Any, rows: int, length: int) -> Tensor:
    """Draw texts [rows, length] from a target, by torch's global generator; the first token is uniform."""
    tokens = torch.randint(get_vocab_size(target), (rows, 1))
    while tokens.shape[1] < length:
        p = target(tokens, use_cache=False).logits[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(p, 1)], 1)
    return tokens


def randomise_head(head: Any) -> None:
    """Draw the weight matrices of a head anew, from torch's global generator, so that they keep the size of states."""
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim >= 2 and weight.requires_grad:
                weight.normal_(std=weight.shape[1] ** -0.5)


def train_head(head: Any, target: Any, seed: int) -> float:
    """Train a head on half of the texts that the target draws, until in the other half a draft is accepted with
    probability GOAL; return that. Raises ParityError if it is outside of ALLOWED after all rounds."""
    torch.manual_seed(seed + 2)
    randomise_head(head)
    with torch.no_grad():
        tokens = draw_texts(target, 2 * ROWS, LENGTH)
        states = run_target(target, tokens)
    p = states.logits.softmax(-1)
    if isinstance(head, Eagle3):
        head.leave_out(int(p.mean((0, 1)).argmin()))
    optimiser = torch.optim.Adam([w for w in head.parameters() if w.requires_grad], lr=RATE)
    accepted = 0.0
    for _ in range(ROUNDS):
        pairs = [(p[:, 1 + j :], x.log_softmax(-1)) for j, x in enumerate(draft_logits(head, tokens, states))]
        accepted = sum(1 - 0.5 * float((a - b.detach().exp())[ROWS:].abs().sum(-1).mean()) for a, b in pairs)
        accepted /= len(pairs)
        if accepted >= GOAL:
            break
        loss = -torch.stack([(a * b)[:ROWS].sum(-1).mean() for a, b in pairs]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if not ALLOWED[0] <= accepted <= ALLOWED[1]:
        raise ParityError(f"seed {seed}: a head of acceptance {accepted:.2f}; allowed: another seed")
    return accepted


def describe_head(head: Any, target: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of a head, by that of its target."""
    if isinstance(head, Medusa):
        return {
            "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": target["hidden_size"],
            "vocab_size": target["vocab_size"], "medusa_num_heads": STEPS, "medusa_num_layers": 1,
        }  # fmt: skip
    config = target | {"num_hidden_layers": 1}
    if isinstance(head, Eagle):  # SGLang takes the first, vLLM the second, and puts Eagle before it
        return config | {"architectures": ["LlamaForCausalLMEagle", "LlamaForCausalLM"]}
    # the layers whose input is read, as vLLM counts, and whose output, as SGLang does
    outputs = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [i - 1 for i in AUX]}
    return config | {
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(head.d2t), "eagle_config": outputs,
        "eagle_aux_hidden_state_layer_ids": list(AUX),
    }  # fmt: skip


def write_weights(weights: dict[str, Tensor], file: Path) -> None:
    """Write a file of safetensors."""
    with replace_whole(file) as temporary:
        save_file({name: w.detach().contiguous() for name, w in weights.items()}, temporary, metadata={"format": "pt"})


def write_heads(kinds: Sequence[str], out: Path, vocab: int = 4, seed: int = 0, **sizes: int) -> list[Path]:
    """Train heads of kinds in HEADS and write them: for the Llama in out/llama, of LAYERS layers, to out/llama-<kind>;
    "mtp" with its target, of sizes as for `write_mimo`, to out/mimo. Returns the folders."""
    folders = []
    for kind in dict.fromkeys(kinds):
        if kind == "mtp":
            folders.append(write_mimo(out / "mimo", vocab, seed, **sizes))
            continue
        target = out / "llama"
        model = load_model(target)
        head = HEADS[kind](model)
        train_head(head, model, seed)
        folders.append(out / f"llama-{kind}")
        write_weights(head.state_dict(), folders[-1] / "model.safetensors")
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        write_json(folders[-1] / "config.json", describe_head(head, config))
    return folders


def write_mimo(folder: Path, vocab: int = 4, seed: int = 0, **sizes: int) -> Path:
    """Make a MiMo, a Qwen2 with a layer of multi-token prediction, and write it to a folder, which is returned. Its
    model_type is Qwen2's, so that its configuration is read without code from elsewhere. sizes: of `make_model`."""
    width, head_dim = sizes.get("hidden_size", SIZES["hidden_size"]), sizes.pop("head_dim", 8)
    if width % head_dim:
        raise ParityError(f"head_dim {head_dim}: allowed for mtp: a divisor of hidden_size, {width}")
    model = make_model(
        "qwen2", vocab, seed, **{"num_hidden_layers": LAYERS} | sizes, num_attention_heads=width // head_dim
    )
    head = Mtp(model)
    train_head(head, model, seed)
    save_model(model, folder)
    own = {f"{MTP}{name}": w for name, w in head.state_dict().items()}
    write_weights(load_file(folder / "model.safetensors") | own, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", config | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1})
    return folder


def read_head(kind: str, target: Any, folder: Path) -> Any:
    """Read a head of a loaded target from a folder; the target's own for "mtp"."""
    head, weights = HEADS[kind](target), load_file(folder / "model.safetensors")
    if kind == "mtp":
        weights = {name.removeprefix(MTP): w for name, w in weights.items() if name.startswith(MTP)}
    head.load_state_dict(weights)
    return head.eval()
