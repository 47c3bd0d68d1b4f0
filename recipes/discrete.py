"""Recipes of the image models of discrete tokens: vq, text, llamagen with draft and llamagen8, drafter, clip."""

from dataclasses import asdict, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity.base.weights import load_network, load_weights, sha256
from parity.embedded import scenes
from parity.embedded.tokenizer import PREFIX, encode_ids
from parity.metrics.networks.clip import CONTEXT, MODEL_CONFIG, build
from parity.models.discrete.llamagen import LlamaGenConfig, Transformer, embed_conditions, make_speculator
from parity.models.discrete.prompts import compute_features
from parity.models.discrete.t5 import make_t5_encoder, pad_left
from parity.models.discrete.vq import VQ, VQConfig, to_images
from parity.train.loop import Job, Recipe, reduce_precision
from parity.train.losses import guide, measure_speculator
from parity.train.speculators import HIDDEN, STREAM, initialise
from recipes import data
from recipes.data import UNCONDITIONAL, draw_images, encode_scenes

VQ_CONFIG = VQConfig(codebook=1024, code_dim=8, ch=16, ch_mult=(1, 2, 4), res_blocks=1, z_channels=64, norm_groups=8)


def vq(job: Job) -> Recipe:
    """Make the recipe of LlamaGen's VQ at stride 4, 1024 codes of 8 dimensions. Its log: reconstruction and commitment
    losses, number of codes in use."""
    _, pixels = draw_images(job)
    torch.manual_seed(job.seed)
    net = VQ(VQ_CONFIG).to(memory_format=torch.channels_last)
    codebook = net.quantize.embedding.weight
    torch.nn.init.normal_(codebook)
    used = torch.zeros(VQ_CONFIG.codebook)
    recent: list[torch.Tensor] = []  # one entry: the last batch's latents, which replace unused codes

    @torch.compile
    def reconstruct(x):
        """Compute latents, nearest codes, their numbers, and the decoded images (straight-through gradients)."""
        z = net.latents(x)
        codes = net.quantize.codes.float()
        tokens = (z @ codes.T).argmax(-1)
        e = codes[tokens]
        return z, e, tokens, net.decode_latents(z + (e - z).detach()).float()

    def loss(step, rng):
        """Compute the loss of a random batch; note how often each code was used, and keep the latents for `revive`."""
        x = data.draw_autoencoder_batch(job, pixels, step, rng)
        with reduce_precision():
            z, e, tokens, y = reconstruct(x)
        used.mul_(0.98).index_add_(0, tokens.flatten(), torch.ones(tokens.numel()))
        recent[:] = [z.detach().flatten(0, 2)]
        learned = F.mse_loss(e, z.detach())
        commit = F.mse_loss(z, e.detach())
        l1, value = data.compute_reconstruction_error(x, y)
        figures = {"l1": l1.item(), "commit": commit.item(), "codes": float((used > 0.5).sum())}
        return value + learned + 0.25 * commit, figures

    def revive(step):
        """Replace codes that are hardly used by latents of the last batch, every 25 steps in 70 % of the training."""
        if step % 25 == 24 and step < 0.7 * job.steps:
            dead = (used < 0.05 * used.mean()).nonzero().flatten()
            rows = np.random.default_rng([job.seed, step, 1]).integers(0, len(recent[0]), len(dead))
            with torch.no_grad():
                codebook[dead] = recent[0][rows].to(codebook.dtype)
            used[dead] = used.mean()

    return Recipe(
        net, loss, lambda: ({}, asdict(VQ_CONFIG)), (), peak=3e-3, after_step=revive, log_every=100, memory=(used,)
    )


NONE = ("",)
THING_QUESTIONS = {
    "shape": scenes.SHAPES,
    "colour": tuple(scenes.COLOURS),
    "texture": scenes.TEXTURES,
    "size": tuple(scenes.SIZES),
}
QUESTIONS = {
    "ground": tuple(scenes.COLOURS),
    "background": scenes.BACKGROUNDS,
    "relation": (*scenes.RELATIONS, *NONE),
    "count": (*scenes.COUNTS, *NONE),
    **{f"{aspect}{i}": (*options, *NONE) for i in (0, 1) for aspect, options in THING_QUESTIONS.items()},
}


def list_answers(scene: scenes.Scene) -> list[int]:
    """List the index of each question's answer for a scene, in the order of QUESTIONS."""
    words = {"ground": scene.ground, "background": scene.background, "relation": scene.relation, "count": scene.count}
    for i in (0, 1):
        for aspect in THING_QUESTIONS:
            words[f"{aspect}{i}"] = getattr(scene.things[i], aspect) if i < len(scene.things) else ""
    return [options.index(words[question]) for question, options in QUESTIONS.items()]


def text(job: Job) -> Recipe:
    """Make the recipe of T5, taught to answer questions about a caption from the mean of its outputs.

    The published model's encoder is pretrained on text. The mean matters because LlamaGen's keys at caption positions
    are zero vectors: every image token attends to the caption uniformly and reads an average. So each position's own
    embedding must say whether a colour is that of the ground or of a thing. The log ends with the share of held-out
    questions answered right; the heads that answer are not written.
    """

    def draw_questions(first, count, test):
        """Draw scenes from `count` seeds on; return their captions' token ids, masks and answers [count, questions]."""
        drawn_scenes = [scenes.draw_scene(first + i, test=test)[0] for i in range(count)]
        return *encode_ids([s.caption for s in drawn_scenes], PREFIX), torch.tensor(
            [list_answers(s) for s in drawn_scenes]
        )

    ids, valid, labels = draw_questions(data.FIRST, job.examples, False)
    torch.manual_seed(job.seed)
    t5 = make_t5_encoder()
    heads = nn.ModuleDict({q: nn.Linear(t5.config.d_model, len(options)) for q, options in QUESTIONS.items()})

    def describe(ids, valid):
        hidden = t5(input_ids=ids, attention_mask=valid).last_hidden_state
        mean = (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        return [head(mean) for head in heads.values()]

    def measure_accuracy(logits, labels):
        return torch.stack([x.argmax(-1) == labels[:, k] for k, x in enumerate(logits)]).float().mean().item()

    def loss(step, rng):
        """Compute the cross-entropy, summed over questions, of a random batch, and the share of right answers."""
        rows = torch.from_numpy(rng.integers(0, job.examples, job.batch))
        logits = describe(ids[rows], valid[rows])
        answers = labels[rows]
        nats = [F.cross_entropy(x, answers[:, k]) for k, x in enumerate(logits)]
        return torch.stack(nats).sum(), {"right": measure_accuracy(logits, answers)}

    def finish():
        *captions, answers = draw_questions(data.FIRST_TEST, 500, True)
        return {"held_out_right": measure_accuracy(describe(*captions), answers)}, t5.config.to_dict()

    net = nn.ModuleDict({"t5": t5, "heads": heads})
    return Recipe(net, loss, finish, stream=(4,), peak=2e-3, average=0.0, published=t5)


LLAMAGEN = LlamaGenConfig(
    vocab=1024, dim=192, layers=6, heads=3, grid=16, prefix=PREFIX, caption_dim=128, multiple_of=64
)
LLAMAGENS = {
    "llamagen": LLAMAGEN,
    "draft": replace(LLAMAGEN, dim=128, layers=3, heads=2, multiple_of=32),  # a draft model shares its target's tokens
    "llamagen8": replace(LLAMAGEN, grid=8),  # llamagen8 draws images of half the side, 32x32
}


def encode_captioned_scenes(job: Job, grid: int, test: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Encode Scenes, the first 256 held-out ones if `test`: token ids and masks [n, PREFIX] of captions, and the tokens
    [n, grid^2] of images."""
    captions = draw_images(job, test)[0][: data.TOKENS_TESTED if test else None]
    return *encode_ids(captions, PREFIX), encode_scenes(job, grid, test)


def embed_captions(t5: nn.Module, ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Embed captions (token ids and masks [B, PREFIX]) with the text encoder, without gradients: left-padded float32
    [B, PREFIX, caption_dim], and the mask after padding."""
    with torch.no_grad():
        e, v = pad_left(t5(input_ids=ids, attention_mask=valid).last_hidden_state, valid)
    return e.float(), v


def llamagen(job: Job) -> Recipe:
    """Make the recipe of LlamaGens on the tokens of Scenes, with the text encoder frozen as in the published model. Its
    log: nats per token on training and held-out captions."""
    config = LLAMAGENS[job.name]
    ids, valid, tokens = (x.to(job.device) for x in encode_captioned_scenes(job, config.grid))
    tested = [x.to(job.device) for x in encode_captioned_scenes(job, config.grid, test=True)]
    torch.manual_seed(job.seed)
    net = Transformer(config)
    t5: nn.Module = make_t5_encoder()
    # The text encoder is frozen, because one that is trained together with an untrained image model forgets which
    # colour is the ground's (it is right for 61 % of captions instead of all).
    load_weights(t5.requires_grad_(False), job.find_weights("text"))
    t5.to(job.device)
    initialise(net)
    net.to(job.device)

    def compute_logits(e, v, dropped, x):
        return net.output(net.features(e, v, dropped, x))

    compiled = torch.compile(compute_logits)

    def compute_nats(ids, valid, tokens, dropped, forward):
        with reduce_precision(job.device):
            logits = forward(*embed_captions(t5, ids, valid), dropped, tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch)).to(job.device)
        dropped = torch.from_numpy(rng.random(job.batch) < UNCONDITIONAL).to(job.device)
        return compute_nats(ids[rows], valid[rows], tokens[rows], dropped, compiled), {}

    def measure_held_out():
        none = torch.zeros(64, dtype=torch.bool, device=job.device)
        batches = zip(*(x.split(64) for x in tested), strict=True)
        return {"held_out": float(np.mean([compute_nats(*batch, none, compute_logits).item() for batch in batches]))}

    header = asdict(config)
    return Recipe(net, loss, lambda: ({}, header), (3,), peak=2e-3, hidden=r"^layers\.", held_out=measure_held_out)


def load_target(job: Job) -> tuple[Transformer, nn.Module]:
    """Load the trained `llamagen` and its text encoder, frozen, which drafters and draft models learn from."""
    target = load_network(Transformer, LlamaGenConfig, job.find_weights("llamagen"))
    t5 = make_t5_encoder().eval()
    load_weights(t5, job.find_weights("text"))
    return target.requires_grad_(False), t5.requires_grad_(False)


SCALES = 1.0, 3.0  # bounds of the guidance scale that is drawn for each row when a draft model is trained


def speculator(job: Job) -> Recipe:
    """Make the recipe of a speculator of the trained `llamagen`: a draft model or heads, which learn its guided
    distribution (distillation for speculative decoding: Zhou et al. 2024) at scales drawn uniformly from SCALES, or
    EAGLE's drafter, which learns the distributions of rows, a few without captions. Its log: Kullback-Leibler
    divergences in nats per token, in the end on held-out captions, at the mean scale."""
    ids, valid, tokens = (x.to(job.device) for x in encode_captioned_scenes(job, LLAMAGEN.grid))
    tested = [x.to(job.device) for x in encode_captioned_scenes(job, LLAMAGEN.grid, test=True)]
    target, t5 = (net.to(job.device) for net in load_target(job))
    torch.manual_seed(job.seed)
    config = LLAMAGENS.get(job.name, LLAMAGEN)
    net = make_speculator(job.name, config)
    if isinstance(net, Transformer):
        initialise(net)
    net.to(job.device)
    guided = job.name != "drafter"
    run = torch.compile(compute_features)

    @reduce_precision(job.device)
    def measure(ids, valid, tokens, scale, dropped):
        """Measure the speculator on rows, guided by `scale`, or those `dropped` without captions."""
        e, v = embed_captions(t5, ids, valid)

        def embed(model):
            prompts = embed_conditions(model, e, v, guided)
            return prompts if guided else prompts._replace(prefix=model.cls_embedding(e, dropped))

        def probs(output, features):
            return (guide(output, features, scale) if guided else output(features).float()).log_softmax(-1)

        tokens = tokens.repeat(2 if guided else 1, 1)
        with torch.no_grad():
            features = run(target, embed(target), tokens[:, :-1])
        return measure_speculator(
            job.name, net, target, embed, tokens, features, (probs, probs), LLAMAGEN.grid, run=run
        )

    def loss(step, rng):
        rows = torch.from_numpy(rng.integers(0, len(tokens), job.batch)).to(job.device)
        scale = torch.from_numpy(rng.uniform(*SCALES, (job.batch, 1, 1))).float().to(job.device)
        dropped = torch.from_numpy(rng.random(job.batch) < UNCONDITIONAL).to(job.device)
        error, nats = measure(ids[rows], valid[rows], tokens[rows], scale, dropped)
        return error + torch.stack(list(nats.values())).sum(), {}

    def finish():
        """Measure the divergences on held-out captions; return them and the header."""
        none = torch.zeros(job.batch, dtype=torch.bool, device=job.device)
        batches = zip(*(x.split(job.batch) for x in tested), strict=True)
        nats = [measure(*batch, sum(SCALES) / 2, none[: len(batch[0])])[1] for batch in batches]
        figures = {f"held_out_{name}": float(np.mean([n[name].item() for n in nats])) for name in nats[0]}
        origin = {} if job.name == "draft" else {"target": sha256(job.find_weights("llamagen"))}
        return figures, asdict(config) | origin

    average = 0.998 if guided else 0.0
    return Recipe(net, loss, finish, (STREAM[job.name],), peak=2e-3, average=average, hidden=HIDDEN[job.name])


def clip(job: Job) -> Recipe:
    """Make the recipe of the embedded CLIP, an open_clip model from a custom configuration. Its log ends with the
    held-out retrieval rate: the share of images whose caption is the nearest of 100."""
    captions, pixels = draw_images(job)
    ids, _ = encode_ids(captions, CONTEXT)
    torch.manual_seed(job.seed)
    net = build()

    def loss(step, rng):
        """Compute the symmetric contrastive loss of a random batch. Figures: the retrieval rate and the logit scale."""
        rows = rng.integers(0, len(pixels), job.batch)
        with reduce_precision():
            image = F.normalize(net.encode_image(to_images(pixels[rows])).float(), dim=-1)
            text = F.normalize(net.encode_text(ids[rows]).float(), dim=-1)
        logits = net.logit_scale.exp().clamp(max=100) * image @ text.T
        is_equal = torch.from_numpy((ids[rows][:, None] == ids[rows][None]).all(-1).numpy())
        # Two images with equal captions are not negatives of each other, so their logits are masked.
        logits = logits.masked_fill(is_equal & ~torch.eye(job.batch, dtype=torch.bool), float("-inf"))
        labels = torch.arange(job.batch)
        value = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        hits = (logits.argmax(1) == labels).float().mean().item()
        return value, {"hits": hits, "scale": net.logit_scale.exp().item()}

    def finish():
        """Measure the retrieval rate on batches of 100 distinct held-out captions; return it and the configuration."""
        net.eval()
        captions, pixels = draw_images(job, test=True)
        distinct = list({caption: i for i, caption in enumerate(captions)}.values())
        hits = []
        for batch in (distinct[i : i + 100] for i in range(0, len(distinct) - 99, 100)):
            image = F.normalize(net.encode_image(to_images(pixels[batch])), dim=-1)
            text = F.normalize(net.encode_text(encode_ids([captions[i] for i in batch], CONTEXT)[0]), dim=-1)
            hits.append(((image @ text.T).argmax(1) == torch.arange(100)).float().mean().item())
        return {"retrieval": float(np.mean(hits))}, MODEL_CONFIG

    return Recipe(net, loss, finish, stream=(2,), peak=1e-3, weight_decay=0.1, average=0.995)


RECIPES = {
    "vq": vq,
    "text": text,
    "llamagen": llamagen,
    "llamagen8": llamagen,
    "draft": speculator,
    "heads": speculator,
    "drafter": speculator,
    "clip": clip,
}
