"""A server over loopback: a fake one that answers as the OpenAI-compatible ones do."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from parity_certify import certify_sampler, target_distribution
from parity_certify.adapters.server import (
    Server,
    check_options_heeded,
    compute_distribution,
    make_conditions,
    select_distribution_options,
)
from parity_certify.errors import ParityError

P = np.array([0.6, 0.3, 0.1])
LETTERS = "abc"


class Tokenizer:
    def __len__(self):
        return 3

    def convert_ids_to_tokens(self, ids):
        return [LETTERS[i] for i in ids]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        """Answer a request for a completion with letters drawn from P at its temperature; of other options it reads
        none. The model's name chooses an odd answer."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rng = np.random.default_rng(request["seed"])  # of a request without a seed any
        p = P ** (1 / request["temperature"])
        text = "".join(LETTERS[i] for i in rng.choice(3, p=p / p.sum(), size=request["max_tokens"]))
        if request.get("model") == "slow":
            time.sleep(10**6)  # in a daemon thread, which ends with the process
        if request.get("model") == "odd":
            text = "xyz"
        one = {"text": text}
        if request.get("model") == "ids":  # as an engine that leaves letters out of its text
            one = {"text": text.replace("a", ""), "token_ids": [LETTERS.index(c) for c in text]}
        choices = [] if request.get("model") == "empty" else [one]
        body = {"choices": choices, "timings": {"draft_n": 3, "draft_n_accepted": 2 if self.server.accepts else 0}}
        self.answer(400 if request.get("model") == "none" else 200, body)

    def do_GET(self):
        """Answer with the server's version, also for its models; 404 for other paths."""
        self.answer(200 if self.path in ("/version", "/v1/models") else 404, {"version": "fake 1.0"})

    def answer(self, code, body):
        """Send a dictionary as JSON with a status code, if who asked still waits."""
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the client has stopped waiting
            self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def fake():
    """A running fake server; `accepts` says whether it reports accepted drafts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.accepts = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def connect(server, **settings):
    """Make a sampler of two tokens that asks the server."""
    return Server(f"http://127.0.0.1:{server.server_port}", 2, Tokenizer(), **settings)


def test_a_server_is_certified_with_its_drafts_counted(fake):
    true = target_distribution(lambda x: np.tile(P, (len(x), 1)), vocab=3, length=2)
    quiet = {"tell": lambda text: None, "draws": 299}
    certificate = certify_sampler(connect(fake), true, n=200, margin=0.4, **quiet)
    assert certificate.verdict.kind == "certified" and certificate.details["drafted"] == 600
    wrong = target_distribution(lambda x: np.tile(P[::-1], (len(x), 1)), vocab=3, length=2)
    assert certify_sampler(connect(fake), wrong, n=200, margin=0.4, **quiet).exit_code == 1
    fake.accepts = False
    assert certify_sampler(connect(fake), true, n=200, margin=0.4, **quiet).exit_code == 2
    fake.accepts = True
    assert connect(fake).describe_engine() == "fake 1.0"


def test_token_numbers_come_before_text(fake):
    prompts = np.zeros((20, 1), int)
    assert connect(fake, model="ids")(prompts, 3).tokens == connect(fake)(prompts, 3).tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "slow", "timeout": 0.3}, "no answer in 0.3 s; allowed: --timeout"),
        ({"model": "odd"}, "answered 'xyz'; allowed: letters of abc"),
        ({"model": "empty"}, "an answer without choices"),
        ({"model": "none"}, "/v1/completions: 400: "),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(fake, settings, message):
    with pytest.raises(ParityError, match=message) as error:
        connect(fake, **settings)(np.array([[0]]), 1)
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(ParityError, match=r"server http://127.0.0.1:9: not there"):
        Server("http://127.0.0.1:9", 2, Tokenizer()).describe_engine()
    with pytest.raises(ParityError, match=r"no tokenizer.json"):
        Server("http://127.0.0.1:9", 2, None)


def test_a_server_is_waited_for_until_it_answers(fake):
    """One without a page of its health lists its models; one that never starts is named after the time."""
    connect(fake).wait(0)
    with pytest.raises(ParityError, match=r"127.0.0.1:9: not there .*; waited 0.01 s; allowed: a longer --wait"):
        Server("http://127.0.0.1:9", 2, Tokenizer()).wait(0.01)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as late:
        late.accepts = True
        threading.Timer(0.2, lambda: threading.Thread(target=late.serve_forever, daemon=True).start()).start()
        connect(late).wait(10)
        late.shutdown()


SETTINGS = {"vocab": 3, "length": 2, "prompts": [[0]]}


def compute_logits(prefixes):
    """The fake server's logits, before any option."""
    return np.tile(np.log(P), (len(prefixes), 1))


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"temperature": 0.5}, ""),
        ({"temperature": 1.0}, ""),
        ({"repetition_penalty": 3.0}, "repetition_penalty"),
        ({"temperature": 0.5, "repetition_penalty": 3.0}, "repetition_penalty"),
        ({"top_k": 1, "repetition_penalty": 3.0}, "top_k, repetition_penalty"),
    ],
)
def test_an_option_that_the_server_ignores_is_named(fake, options, ignored):
    """One that it reads is not, nor one that changes nothing."""
    engine = connect(fake, options=options).name_engine()
    assert engine == "vllm"

    def make(chosen):
        return compute_distribution(compute_logits, chosen, engine, **SETTINGS)

    without = {name: make({k: v for k, v in options.items() if k != name}) for name in options}
    distributions = make(options), without | {", ".join(options): make({})}
    refused = pytest.raises(ParityError, match=f"^{ignored}: the server ignores it")
    with refused if ignored else contextlib.nullcontext():
        check_options_heeded(connect(fake, options=options), *distributions)


def test_a_distribution_that_engines_define_otherwise_needs_the_engines_name():
    """A name that no engine has is refused; a temperature is the same for all."""
    assert compute_distribution(compute_logits, {"temperature": 0.5}, "", **SETTINGS).joint.shape == (1, 9)
    with pytest.raises(ParityError, match=r"allowed: --engine .*vllm or llama.cpp"):
        compute_distribution(compute_logits, {"temperature": 3.0, "top_p": 0.8}, "", **SETTINGS)
    with pytest.raises(ParityError, match=r"^options: top_a: the distribution does not know it"):
        compute_distribution(compute_logits, {"top_a": 0.5}, "", **SETTINGS)
    with pytest.raises(ParityError, match=r"^repeat_penalty: vllm has no such option"):
        compute_distribution(compute_logits, {"repeat_penalty": 1.5}, "vllm", **SETTINGS)
    penalised = compute_distribution(compute_logits, {"repeat_penalty": 1.5}, "", **SETTINGS)  # of llama.cpp alone
    assert penalised.tables[0, 0, 0] < P[0]
    assert select_distribution_options({"parallel": 4, "speculative.n_max": 3, "top_k": 2}) == {"top_k": 2}


def test_conditions_that_a_server_ignores_are_left_out_or_faults(fake):
    """Of a server that is not known they are left out and named; of one that has the options they are faults."""

    def connect_more(length, options, by_prompt):
        sampler = connect(fake, options=options, by_prompt=by_prompt)
        sampler.body["max_tokens"] = length
        return sampler

    conditions, missing = make_conditions(connect_more, compute_logits, 3, "")
    assert [one.name for one in conditions] == ["length 3, prompt 8"] and len(missing) == 2 + 5
    assert any("top_k: the server ignores it" in why for why in missing.values()), missing
    conditions, missing = make_conditions(connect_more, compute_logits, 3, "vllm")
    assert len(conditions) == 6 and set(missing) == {"drafts", "end"}
    faults = [one for one in conditions if "top_k 2" in one.name and "rows" not in one.name]
    assert certify_sampler(faults[0].sample, faults[0].distribution, n=200, margin=0.4, draws=299).exit_code == 1
    rows = conditions[-1].sample
    assert sorted(rows.by_prompt.values(), key=len) == [{"temperature": 0.5}, {"top_k": 2, "seed": None}]
