"""What generation_config.json adds to a target's distribution is said in a line, and an option leaves it out."""

import json

import numpy as np
import pytest

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

from parity_certify import __main__ as command  # noqa: E402
from parity_certify import models  # noqa: E402
from parity_certify.adapters import transformers as T  # noqa: E402
from parity_certify.adapters.server import Server  # noqa: E402
from parity_certify.errors import ParityError  # noqa: E402
from parity_certify.texts import certify_texts  # noqa: E402

END = 3
APPLIED = {  # settings that the distribution has
    "repetition_penalty": 3.0,
    "min_p": 0.4,
    "suppress_tokens": [1],
    "bad_words_ids": [[1], [2, 0]],
    "no_repeat_ngram_size": 3,
    "typical_p": 0.6,
    "top_h": 0.5,
    "sequence_bias": [[[1], 4.0]],
    "guidance_scale": 3.0,
}
REPLACED = {"temperature": 0.5, "top_k": 2, "top_p": 0.5, "do_sample": False}  # those that it does not have
NO_SAMPLING = {"num_beams": 4, "num_return_sequences": 2}


@pytest.fixture(scope="module")
def target():
    """A tiny target."""
    T.silence_transformers()
    return models.make_model("llama", 4, 0)


@pytest.fixture
def write(target, tmp_path):
    """A function that writes the target with generation settings, and returns its folder."""

    def write_settings(**settings):
        models.save_model(target, tmp_path / "target")
        (tmp_path / "target/generation_config.json").write_text(json.dumps({"do_sample": True} | settings))
        return tmp_path / "target"

    return write_settings


def draw_texts(folder, n=150, length=12, **options):
    """Draw n texts of a folder's model by `generate`, with its generation settings; write them beside the folder."""
    model = T.load_model(folder)
    torch.manual_seed(2)
    prompts = torch.randint(4, (n, 3))
    options = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0} | options
    rows = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, **options)
    lines = [{"prompt": row[:3].tolist(), "tokens": row[3:].tolist()} for row in rows]
    return write_lines(folder.parent / "texts.jsonl", lines)


def write_lines(file, lines):
    """Write objects as JSON lines; return the file."""
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def certify(folder, file, **options):
    """Certify texts. Returns the certificate and the lines that were told."""
    told = []
    certificate = certify_texts(folder, file, options=options, tell=told.append)
    return certificate, [line for line in told if "generation_config" in line]


@pytest.mark.parametrize("name", APPLIED)
def test_what_the_distribution_has_is_said_and_can_be_left_out(write, name):
    """Texts drawn with the setting fit, with a line that names it; those drawn without it fit where it is left out, and
    the line is in the report where they do not."""
    folder = write(**{name: APPLIED[name]})
    drawn, told = certify(folder, draw_texts(folder))
    assert drawn.exit_code != 1 and len(told) == 1, str(drawn)
    assert f"with {name} {APPLIED[name]} ({name}=null leaves it out)" in told[0] and told[0] in str(drawn)
    assert told[0] in drawn.verdict.tested
    plain = draw_texts(write())
    folder = write(**{name: APPLIED[name]})
    without, told = certify(folder, plain, **{name: None})
    assert without.verdict.kind == "consistent" and not told, str(without)
    wrong, _ = certify(folder, plain)
    assert wrong.verdict.kind != "consistent" and name in str(wrong), str(wrong)


@pytest.mark.parametrize("name", REPLACED)
def test_what_the_distribution_does_not_have_is_said(write, name):
    plain = draw_texts(write())
    found, told = certify(write(**{name: REPLACED[name]}), plain)
    assert found.verdict.kind == "consistent" and f"without {name} {REPLACED[name]} (an option {name}=" in told[0]


@pytest.mark.parametrize("name", NO_SAMPLING)
def test_what_is_no_sampling_is_refused_by_name(write, name):
    plain = draw_texts(write())
    folder = write(**{name: NO_SAMPLING[name]})
    with pytest.raises(
        ParityError, match=f"^generation_config.json: {name} .*; allowed: 1, as with the option {name}=1"
    ):
        certify(folder, plain)
    for value in (1, None):
        assert certify(folder, plain, **{name: value})[0].verdict.kind == "consistent"
    with pytest.raises(ParityError, match=f"^{name} 3: not sampling; allowed: 1"):
        certify(folder, plain, **{name: 3})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.0, "num_beams": 1, "min_p": 0.0, "top_p": 1.0},
        {"max_length": 50, "pad_token_id": 0, "eos_token_id": 9, "use_cache": True},
        {"num_assistant_tokens": 7, "prompt_lookup_num_tokens": 3},
    ],
)
def test_what_changes_nothing_is_not_said(write, settings):
    assert T.describe_settings(T.load_model(write(**settings)), {}) == ""


def test_the_command_says_it_and_keeps_it_in_the_certificate(write, tmp_path, monkeypatch, capsys):
    folder = write(repetition_penalty=3.0, temperature=0.6)
    words = ["transformers", "--target", str(folder), "--n", "100", "--length", "2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["parity-certify", *words, "--", "prompt_lookup_num_tokens=2"])
    with pytest.raises(SystemExit):
        command.main()
    line = (
        "the target is taken with repetition_penalty 3.0 (repetition_penalty=null leaves it out), without temperature"
    )
    assert line in capsys.readouterr().err and line in (tmp_path / "out/certificate.json").read_text()


@pytest.mark.parametrize(("options", "penalty"), [({}, 3.0), ({"repetition_penalty": None}, 1.0)])
def test_distribution_and_samplers_take_the_same_settings(write, monkeypatch, options, penalty):
    """The distribution, one call of `generate` and continuous batching."""
    model = T.load_model(write(repetition_penalty=3.0))
    prompts = np.array([[0, 1]])
    distribution = T.compute_distribution(model, prompts, 2, options)
    named = T.compute_distribution(model, prompts, 2, {"repetition_penalty": penalty})
    assert np.allclose(distribution.cells, named.cells)
    rows = np.array(T.Generate(model, 2, options)(prompts.repeat(20, 0), 7))
    assert (rows == np.array(T.Generate(model, 2, {"repetition_penalty": penalty})(prompts.repeat(20, 0), 7))).all()
    seen = []
    monkeypatch.setattr(model, "generate_batch", lambda generation_config, **_: seen.append(generation_config) or {})
    T.Continuous(model, 2, {"cache_implementation": "paged", **options})(prompts, 0)
    assert (seen[0].repetition_penalty or 1.0) == penalty and seen[0].top_k == 0 and seen[0].max_new_tokens == 2


@pytest.mark.parametrize(
    "key", ["repetition_penalty", "repeat_penalty", "presence_penalty", "frequency_penalty", "min_p"]
)
def test_a_request_names_what_a_server_would_take_from_its_folder(key, tmp_path, target):
    models.save_model(target, tmp_path)
    server = Server("http://127.0.0.1:9", 2, T.load_tokenizer(tmp_path))
    assert server.body[key] == (1.0 if key.startswith("re") else 0.0)


def draw_rows(n=150, length=8):
    """Draw texts of tokens 0 to 3 with the end token in most; returns prompts and rows."""
    rng = np.random.default_rng(3)
    return rng.integers(4, size=(n, 2)).tolist(), rng.integers(4, size=(n, length)).tolist()


AFTER = {  # what a text has after its end token, and whether it may
    "nothing": (lambda rest: [], True),
    "a pad token": (lambda rest: [0] * len(rest), True),
    "the end token": (lambda rest: [END] * len(rest), True),
    "other tokens": (lambda rest: rest, False),
    "by the number that are left": (lambda rest: [len(rest) % 3] * len(rest), False),
}


@pytest.mark.parametrize("with_target", [True, False])
@pytest.mark.parametrize("name", AFTER)
def test_texts_end_at_the_end_token(write, name, with_target):
    """Padding is not judged; texts that go on are refused, or judged whole where there is no end token."""
    fill, is_allowed = AFTER[name]
    lines = []
    for prompt, row in zip(*draw_rows(), strict=True):
        first = row.index(END) + 1 if END in row else len(row)
        tokens = row[:first] + fill(row[first:])
        tops = [[[t, np.log(0.25)] for t in range(4)] for _ in tokens]
        lines.append({"prompt": prompt, "tokens": tokens, "top_logprobs": tops})
    folder = write(eos_token_id=[END, 9]) if with_target else None
    file = write_lines((folder or write()).parent / "texts.jsonl", lines)
    options = {} if with_target else {"eos_token_id": END}
    if is_allowed:
        found, _ = certify(folder, file, **options)
        assert found.details["tokens"] == sum(
            line["tokens"].index(END) + 1 if END in line["tokens"] else 8 for line in lines
        )
    else:
        with pytest.raises(ParityError, match=r"texts: \d+ of 150 texts go on after the end .*eos_token_id=null"):
            certify(folder, file, **options)
    whole, _ = certify(folder, file, eos_token_id=None)
    assert whole.details["tokens"] == sum(len(line["tokens"]) for line in lines)


def test_texts_that_end_are_those_of_their_target(write):
    folder = write(eos_token_id=END)
    found, _ = certify(folder, draw_texts(folder, length=20))
    assert found.verdict.kind == "consistent", str(found)
