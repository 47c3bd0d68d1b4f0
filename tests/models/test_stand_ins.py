"""Checkpoints in the published layouts through the user's path: converted or named, configured, decoded, drawn."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2Model

from parity.base.errors import ConfigError, ParityError
from parity.base.files import sums
from parity.base.noise import batch_noise
from parity.base.weights import sha256, unpickle
from parity.decode.continuous import record
from parity.decoders.continuous.cspd import cspd
from parity.decoders.continuous.mar import mar
from parity.experiment import checks, config_overlay, stand_in, weights
from parity.experiment.cells import cells
from parity.experiment.schema import Config
from parity.experiment.validation import validate
from parity.models import add_pair, fetch
from parity.models.__main__ import added, converted
from parity.models.continuous import harmon
from parity.models.continuous import mar as mar_family
from parity.models.continuous.load import load
from parity.models.continuous.mar import known_mask
from parity.models.continuous.protocol import Start, draw_order
from parity.models.continuous.published import convert
from parity.stand_ins import entry, write

SAMPLING = {"steps": 2, "guidance": 2.0, "guidance_schedule": "constant", "last": "mean", "clip": 4.0}
CONTINUOUS = ("mar", "xar", "harmon")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folder and parts of every continuous stand-in."""
    found = {}
    for name in CONTINUOUS:
        folder = tmp_path_factory.mktemp(name)
        files = write(name, folder)
        found[name] = {part: folder / file for part, file in files.items()}
    return found


def section(model, where, tmp_path, **more):
    """A configuration of two images. where: a folder, or what it says of published files."""
    spec = {"family": model, "source": "files", **(where if isinstance(where, dict) else {"folder": where})}
    said = {"images": 2, "batch": [2], "sampling": dict(SAMPLING)}
    said["sampling"]["guidance_schedule"] = "linear" if model == "xar" else "constant"
    said["methods"] = {"mar": [{}], "cspd": [{"gamma": 2}]}
    if model == "harmon":
        (tmp_path / "captions.txt").write_text("a dog on the left {and} a cat\na pink stop sign\n", encoding="utf-8")
        said["captions"] = {"file": str(tmp_path / "captions.txt"), "limit": 2}
    return {"models": {model: spec}, "continuous": said | more}


def test_a_stand_in_is_the_same_each_time(written, tmp_path):
    """Whatever was drawn before: its digest may stand in a configuration."""
    torch.rand(3)
    files = write("harmon", tmp_path)
    for part in ("target", "kl"):
        one, other = unpickle(tmp_path / files[part]), unpickle(written["harmon"][part])
        assert list(one) == list(other) and all(torch.equal(value, other[key]) for key, value in one.items())


def decoded(config, model, tmp_path):
    """The pictures of two images by two methods, and the loaded pair: what a run's jobs do."""
    value = checks.load(config)
    every = cells(value, [])
    spec = value.models[model].model_dump(exclude={"grid"}) | value.continuous.model_dump(include={"captions"})
    manifest = fetch.manifest("continuous", model, spec, tmp_path / "m")
    loaded, pictures = load(manifest, needs="draft"), []
    for decoder, options in ((mar, {"iterations": 0}), (cspd, {"gamma": 2, "give_up": "target"})):
        pair = loaded.pair(range(2), every[0].spec["sampling"], True)
        noise = batch_noise(0, ["0", "1"])
        start = Start(draw_order(noise, 2, pair.target.length, pair.target.raster))
        done = record(pair, start, decoder(pair, start, noise=noise, **options))
        pictures.append(loaded.pictures(done.tokens))
    return loaded, pictures


@pytest.mark.parametrize("model", CONTINUOUS)
def test_converted_stand_ins_are_decoded(written, tmp_path, monkeypatch, capsys, model):
    flags = [text for part, file in written[model].items() for text in (f"--{part}", str(file))]
    monkeypatch.setattr(sys, "argv", ["models", "convert", "--model", model, *flags, "--out", str(tmp_path / "w")])
    before = os.umask(0o002)
    try:
        converted()
    finally:
        os.umask(before)
    said = capsys.readouterr().out
    assert ("the moving average" in said) == (model == "mar") and ("does not say" in said) == (model != "mar")
    assert all(
        stat.S_IMODE((tmp_path / "w" / name).stat().st_mode) == 0o664
        for name in sums(tmp_path / "w")
        if name.endswith("s")
    )
    loaded, pictures = decoded(section(model, str(tmp_path / "w"), tmp_path), model, tmp_path)
    assert loaded.manifest["network"]["average"] == ("yes" if model == "mar" else "unsaid")
    side = 2 * loaded.network("target").config.grid
    for shown in pictures:
        assert shown.shape == (2, side, side, 3) and (shown[0] != shown[1]).any()
    named = ["a dog on the left {and} a cat", "a pink stop sign"] if model == "harmon" else ["0", "7"]
    assert [loaded.class_of(i) for i in range(2)] == named  # never of our Scenes


def listed(files):
    """A configuration's published files, each with its digest."""
    one = {p: f / "tokenizer.json" if f.is_dir() and p == "tokenizer" else f for p, f in files.items()}
    return {"files": {p: str(f) for p, f in files.items()}, "sha256": {p: sha256(f) for p, f in one.items()}}


@pytest.mark.parametrize("model", CONTINUOUS)
def test_published_files_need_no_folder_of_their_own(written, tmp_path, model):
    grid = {"harmon": {"grid": 4}, "mar": {"grid": 4}}.get(model, {})
    where = {**listed(written[model]), "network": grid}
    loaded, _ = decoded(section(model, where, tmp_path), model, tmp_path)
    assert loaded.network("target").config.grid == grid.get("grid", 16)
    other = {**where, "sha256": where["sha256"] | {"kl": "0" * 64}}
    with pytest.raises(ParityError, match=r"files.kl = .*expected 0000"):
        decoded(section(model, other, tmp_path), model, tmp_path)


def test_safetensors_and_the_hugging_face_layout(written, tmp_path):
    """mar-huge.safetensors, kl16.safetensors; Harmon's folder, which holds its autoencoder and tokenizer."""
    files = written["mar"]
    save_file(unpickle(files["target"]), tmp_path / "mar-huge.safetensors")
    save_file(unpickle(files["kl"]), tmp_path / "kl16.safetensors")
    told = []
    convert(
        "mar", tmp_path / "mar-huge.safetensors", None, tmp_path / "kl16.safetensors", tmp_path / "a", tell=told.append
    )
    convert("mar", files["target"], None, files["kl"], tmp_path / "b", tell=told.append)
    assert ["does not say" in line for line in told] == [True, False]
    for name in ("mar", "kl"):
        one, other = (load_file(tmp_path / k / f"{name}.safetensors") for k in "ab")
        assert all(torch.equal(value, other[key]) for key, value in one.items()) and set(one) == set(other)
    folder = tmp_path / "Harmon-1_5B"
    shutil.copytree(written["harmon"]["tokenizer"], folder)
    state = unpickle(written["harmon"]["target"])
    half = sorted(state)[: len(state) // 2]
    for i, keys in enumerate((half, sorted(set(state) - set(half)))):
        save_file({k: state[k] for k in keys}, folder / f"model-0000{i + 1}-of-00002.safetensors")
    convert("harmon", folder, None, None, tmp_path / "c", grid=2, tell=told.append)
    assert sums(tmp_path / "c")["kl.safetensors"] == sums(tmp_path / "b")["kl.safetensors"]
    with pytest.raises(ConfigError, match=r"harmon-draft.safetensors is missing"):
        checks.load(section("harmon", str(tmp_path / "c"), tmp_path))


# --- Harmon, written a second time


def norm(x, state, name, rms=False):
    if rms:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * state[f"{name}.weight"]
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)


def linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)


def transformer(x, state, prefix, blocks):
    """MAR's blocks of one head, as the published code has them (timm's)."""
    for i in range(blocks):
        at = f"{prefix}.{i}"
        q, k, v = linear(norm(x, state, f"{at}.norm1"), state, f"{at}.attn.qkv").chunk(3, -1)
        read = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + linear(read, state, f"{at}.attn.proj")
        hidden = F.gelu(linear(norm(x, state, f"{at}.norm2"), state, f"{at}.mlp.fc1"))
        x = x + linear(hidden, state, f"{at}.mlp.fc2")
    return x


def table(state, name, buffer, trained, grid):
    """A table of places, [places, width]: between the four nearest of the trained ones."""
    whole = state[f"mar.{name}_pos_embed_learned"][0]
    cells = whole[buffer:].view(trained, trained, -1)
    at = ((torch.arange(grid) + 0.5) * trained / grid - 0.5).clamp(0, trained - 1).double()
    low = at.floor().long()
    high, share = (low + 1).clamp(max=trained - 1), (at - low)[:, None, None]
    rows = cells[low] * (1 - share) + cells[high] * share
    columns = rows[:, low] * (1 - share[:, 0]) + rows[:, high] * share[:, 0]
    return torch.cat([whole[:buffer], columns.flatten(0, 1)]).float().double()  # as it is kept


def second_writing(state, sizes, tokens, known, prompt, grid):
    """Conditions [L, width] of one image, after a prompt: the released forward, one row, no padding."""
    buffer, mine = sizes.buffer, {k.removeprefix("mar."): v for k, v in state.items() if k.startswith("mar.")}
    place = {name: table(state, name, buffer if name != "diffusion" else 0, 2, grid) for name in
             ("encoder", "decoder", "diffusion")}  # fmt: skip
    inside = known.nonzero()[:, 0]
    x = torch.cat([mine["fake_latent"].expand(buffer, -1), linear(tokens[inside], mine, "z_proj")])
    x = x + place["encoder"][torch.cat([torch.arange(buffer), buffer + inside])]
    x = norm(transformer(norm(x, mine, "z_proj_ln"), mine, "encoder_blocks", sizes.encoder), mine, "encoder_norm")
    image = linear(F.silu(linear(x, state, "proj_in.0")), state, "proj_in.2")
    text = state["llm.model.embed_tokens.weight"][prompt]
    config = Qwen2Config(
        vocab_size=sizes.vocab, hidden_size=sizes.hidden, intermediate_size=sizes.intermediate,
        num_attention_heads=sizes.attention_heads, num_key_value_heads=sizes.key_value_heads,
        num_hidden_layers=sizes.layers, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, use_cache=False,
    )  # fmt: skip
    qwen = Qwen2Model(config).double().eval()
    qwen.load_state_dict({k.removeprefix("llm.model."): v for k, v in state.items() if k.startswith("llm.model.")})
    both = torch.cat([text, image[buffer:], image[:buffer]])[None]
    back = qwen(inputs_embeds=both).last_hidden_state[0, len(prompt) :]
    back = torch.cat([back[len(inside) :], back[: len(inside)]])
    x = linear(x + linear(F.silu(linear(back, state, "proj_out.0")), state, "proj_out.2"), mine, "decoder_embed")
    whole = mine["mask_token"][0].repeat(buffer + grid**2, 1)
    whole[:buffer], whole[buffer + inside] = x[:buffer], x[buffer:]
    whole = transformer(whole + place["decoder"], mine, "decoder_blocks", sizes.decoder)
    return norm(whole, mine, "decoder_norm")[buffer:] + place["diffusion"]


@torch.no_grad()
def test_harmon_is_its_second_writing(written, tmp_path):
    """Read from the published file on one side, converted and batched with a longer prompt on the other: 1e-9 in
    float64, at the trained size and at twice it."""
    files = written["harmon"]
    state = {k: v.double() for k, v in torch.load(files["target"], weights_only=True).items()}
    told: list[str] = []
    for grid, worst in ((2, 1e-9), (4, 1e-9)):
        folder = tmp_path / str(grid)
        convert("harmon", files["target"], None, files["kl"], folder, files["tokenizer"], grid, told.append)
        spec = {
            "family": "harmon",
            "source": "files",
            "folder": str(folder),
            "captions": section("harmon", "", tmp_path)["continuous"]["captions"],
        }
        loaded = load(fetch.manifest("continuous", "harmon", spec, tmp_path), dtype=torch.float64)
        net, ids = loaded.network("target"), loaded.condition(range(2))
        g = torch.Generator().manual_seed(0)
        tokens = torch.randn(2, grid**2, 16, generator=g, dtype=torch.float64)
        order = torch.stack([torch.randperm(grid**2, generator=g) for _ in range(2)])
        known = known_mask(order, torch.tensor([1, 3]))
        got = net(tokens, known, ids)
        assert len({len(row[row >= 0]) for row in ids}) == 2  # the shorter prompt is padded
        for row in range(2):
            want = second_writing(state, net.config, tokens[row], known[row], ids[row][ids[row] >= 0], grid)
            assert (got[row] - want).abs().max() < worst < (got[1 - row] - want).abs().max()
        nothing = net(tokens[:1], known[:1], torch.full_like(ids[:1], -1))
        from tokenizers import Tokenizer

        plain = Tokenizer.from_file(str(files["tokenizer"] / "tokenizer.json")).encode(harmon.NOTHING).ids
        want = second_writing(state, net.config, tokens[0], known[0], torch.tensor(plain), grid)
        assert (nothing[0] - want).abs().max() < worst


WRONG = {
    "a mar file": ("harmon", {"target": "mar"}, r"not a checkpoint of harmon: no entry"),
    "a harmon file": ("mar", {"target": "harmon"}, r"not a checkpoint of mar: no entry"),
    "another autoencoder": ("mar", {"kl": "xar-target"}, r"not a checkpoint of kl: no entry"),
    "a page": ("mar", {"target": "html"}, r"not a safetensors file that can be read"),
    "another tokenizer": ("harmon", {"tokenizer": "gpt2"}, r"does not know <\|im_start\|>; allowed"),
    "no tokenizer": ("harmon", {"tokenizer": "empty"}, r"no such file; allowed: --tokenizer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_line(written, tmp_path, name):
    model, change, message = WRONG[name]
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.safetensors").write_text("<!DOCTYPE html><html>", encoding="utf-8")
    shutil.copytree(written["harmon"]["tokenizer"], tmp_path / "gpt2")
    tokenizer = json.loads((tmp_path / "gpt2/tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = []
    (tmp_path / "gpt2/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    others = {"mar": written["mar"]["target"], "harmon": written["harmon"]["target"], "empty": tmp_path / "empty"}
    others |= {"xar-target": written["xar"]["target"], "html": tmp_path / "page.safetensors", "gpt2": tmp_path / "gpt2"}
    files = written[model] | {part: others[other] for part, other in change.items()}
    with pytest.raises(ParityError, match=message) as error:
        convert(model, files["target"], None, files["kl"], tmp_path / "w", files.get("tokenizer"), tell=print)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "w/SHA256SUMS").exists()


def test_captions_are_asked_for_and_not_where_none_are_read(written, tmp_path):
    for model, more, message in (
        ("harmon", {"captions": None}, "continuous.captions: harmon reads captions; needed"),
        (
            "mar",
            {"captions": {"file": "prompts/scenes.txt", "limit": 2}},
            "mar reads no captions; allowed: no captions",
        ),
        ("harmon", {"captions": {"file": "nowhere.txt"}}, r"continuous.captions.file = 'nowhere.txt': no such file"),
        ("gmm", {}, "gmm has no published files"),
    ):
        where = listed(written["harmon" if model != "mar" else "mar"])
        with pytest.raises(ConfigError, match=message):
            checks.load(section(model, where, tmp_path, **more))
    config = checks.load(section("harmon", listed(written["harmon"]), tmp_path))
    one = config.models["harmon"], config.continuous.captions
    (tmp_path / "captions.txt").write_text("another\nand another\n", encoding="utf-8")
    before = weights.revision(*one)
    (tmp_path / "captions.txt").write_text("other words\nand another\n", encoding="utf-8")
    assert weights.revision(*one) != before  # other captions are other images


@pytest.mark.parametrize("model", CONTINUOUS)
def test_a_folder_becomes_an_experiment(written, tmp_path, monkeypatch, capsys, model):
    """Nobody types a digest or a size; the settings are the family's own, whose sampler returns the mean."""
    (tmp_path / "captions.txt").write_text("a pink stop sign\n" * 64, encoding="utf-8")
    folder = written[model]["kl"].parent
    flags = ["--captions", str(tmp_path / "captions.txt")] if model == "harmon" else []
    out = tmp_path / "own.yaml"
    monkeypatch.setattr(sys, "argv", ["models", "add", f"{model}-h", str(folder), *flags, "--out", str(out)])
    added()
    assert "written" in capsys.readouterr().out
    config = checks.load(yaml.safe_load(out.read_text(encoding="utf-8")))
    said, own = config.continuous, config.models[f"{model}-h"]
    assert own.files == {p: str(f if p != "tokenizer" else f / "tokenizer.json") for p, f in
                                  written[model].items()}  # fmt: skip
    assert said.sampling.last == "mean" and said.sampling.clip == 0 and said.sampling.temperature == 1
    assert said.sampling.steps == {"mar": 100, "xar": 40, "harmon": 100}[model]
    spec = own.model_dump(exclude={"grid"}) | said.model_dump(include={"captions"})
    assert fetch.manifest("continuous", model, spec, tmp_path / "m")["network"]["grid"] == own.network["grid"]
    with pytest.raises(ParityError, match=r"own.yaml: is there already"):
        added()


SPOILED = {
    "an entry gone": (lambda state, name: state.pop(name), "missing {name}"),
    "integers": (
        lambda state, name: state.update({name: state[name].int()}),
        "{name} is torch.int32; allowed: float16",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
@pytest.mark.parametrize("part", ["target", "draft", "kl"])
def test_a_pair_that_would_not_load_is_not_added(written, tmp_path, part, case):
    """It is looked at without its numbers; the very files are added otherwise."""
    files = written["mar"] | {part: tmp_path / f"{part}.safetensors"}
    state = unpickle(written["mar"][part])
    name = {"kl": "decoder.conv_out.bias"}.get(part, "encoder_norm.bias")
    change, message = SPOILED[case]
    for spoil in (False, True):
        if spoil:
            change(state, name)
        save_file(state, files[part])
        named = {str(file): file for file in files.values()}
        if spoil:
            with pytest.raises(ParityError, match=message.format(name=name)) as told:
                add_pair.entry(named, {"source": "files"}, None, None)
            assert "\n" not in str(told.value) and files[part].name in str(told.value)
        else:
            assert add_pair.entry(named, {"source": "files"}, None, None)["model"]["files"][part] == str(files[part])


def test_a_folder_that_lacks_a_part_is_one_line(written, tmp_path):
    shutil.copy(written["mar"]["target"], tmp_path / "mar.pth")
    with pytest.raises(ParityError, match="no autoencoder among them"):
        add_pair.entry(*add_pair.find_weights(str(tmp_path)), None, None)
    shutil.copy(written["xar"]["target"], tmp_path / "xar.pth")
    with pytest.raises(ParityError, match="networks of mar and xar; allowed: one"):
        add_pair.entry(*add_pair.find_weights(str(tmp_path)), None, None)
    (tmp_path / "mar.pth").unlink()
    shutil.copy(written["xar"]["kl"], tmp_path / "kl16.ckpt")
    assert add_pair.entry(*add_pair.find_weights(str(tmp_path)), None, None)["model"]["network"] == {
        "grid": 16,
        "cell": 8,
    }
    with pytest.raises(ParityError, match=r"--grid 8: the pictures of xar have one size; allowed: 16"):
        add_pair.entry(*add_pair.find_weights(str(tmp_path)), 8, None)


def test_the_docs_configuration_says_what_differs(tmp_path):
    """docs/continuous.md's, given as `--configfile`, stands alone: nothing of config.yaml is left in it without a
    word, and its sampling is a published sampler's. Laid over config.yaml, as it once was, it would not be."""
    text = Path("docs/continuous.md").read_text(encoding="utf-8")
    snippet = text.split("```yaml\n")[1].split("```")[0].replace(": ...", f": {'a' * 64}")
    file = tmp_path / "own.yaml"
    file.write_text(snippet, encoding="utf-8")
    assert config_overlay.stands_alone([file], {})
    section = validate(Config, yaml.safe_load(snippet), "").continuous
    sampling = section.sampling
    assert (sampling.temperature, sampling.clip, sampling.last, section.images) == (1.0, 0.0, "mean", 32)
    assert sampling.model_dump(exclude={"sampler", "eta"}) == mar_family.FAMILY["sampled"][1280] | {
        "temperature": 1.0, "clip": 0.0,
    }  # fmt: skip
    under = yaml.safe_load(Path("config.yaml").read_text(encoding="utf-8"))
    config_overlay.merge(under, {"continuous": {"sampling": {"steps": 100}}})
    assert under["continuous"]["sampling"]["clip"] == 4.0  # an overlay keeps what a file does not name
    (tmp_path / "scale.yaml").write_text("scale: 0.5\n", encoding="utf-8")
    assert not config_overlay.stands_alone([tmp_path / "scale.yaml"], {})


def test_stand_ins_take_the_place_of_repositories(tmp_path):
    """`stand_in: true` of an experiment on repositories nobody has: the configuration that the tables' files become."""

    def make(names):
        return {name: entry(name, tmp_path / name) for name in names}

    hub = {"source": "hub", "repo": "o/n", "files": {"target": "a.pth", "draft": "b.pth", "kl": "kl16.ckpt"}}
    asked = {"methods": {"mar": [{}, {"iterations": 64}], "cspd": [{"gamma": 32}]}}
    words = {"family": "xlnet", "source": "hub", "files": {"xlnet": "hub:o/n@nlp", "judge": "hub:o/g"}}
    models = {"mar": {"family": "mar", **hub}, "asarm": words}
    whole = {"models": models, "continuous": asked, "text": {"methods": {"sequential": [{}]}}}
    raw = stand_in.replaced({"stand_in": True, **whole}, make)
    config = checks.load(raw)
    methods = config.continuous.methods
    assert [options["iterations"] for options in methods["mar"]] == [0, 16]  # completed; 64 places are 16 here
    assert [options["gamma"] for options in methods["cspd"]] == [16]
    assert config.models["asarm"].files["tokenizer"].endswith("xlnet-base-cased") and len(cells(config, [])) == 6
    with pytest.raises(ConfigError):  # as it stands, what is nowhere is nothing to run
        checks.load(whole)
