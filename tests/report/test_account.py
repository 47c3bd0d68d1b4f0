"""The account of printed numbers: complete, true of the files, and it notices what a file loses."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from parity.report import account
from parity.report.blocks import list_records

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted((ROOT / "workflow/published").glob("*.csv"))
FILE = ROOT / "docs/reference/account.csv"
MOST = 40  # printed numbers that may have a reason in place of a cell


@pytest.fixture(scope="module")
def made():
    return account.make_account(PUBLISHED, ROOT / "workflow/experiments")


def test_it_is_as_written(made):
    assert FILE.read_text() == made.to_csv(index=False), "run `python docs/reference.py`"


def test_every_printed_number_has_a_cell_or_one_of_a_few_reasons(made):
    assert len(made) == sum(len(pd.read_csv(file)) for file in PUBLISHED)
    reasons = made.loc[made["reason"] != "", "reason"]
    assert set(reasons) <= set(account.REASONS.values())
    assert len(reasons) <= MOST


def test_trials_had_a_value_of_every_number_that_a_file_makes(made):
    """On small random networks; kept by benchmarks/trials.py."""
    trials = pd.read_csv(ROOT / "docs/figures/trials.csv", keep_default_na=False)
    numbers = list(account.NUMBER)
    planned = made.astype({"value": float})[[*numbers, "reason"]].sort_values(numbers, ignore_index=True)
    tried = trials.astype({"value": float})[[*numbers, "reason"]].sort_values(numbers, ignore_index=True)
    pd.testing.assert_frame_equal(tried, planned)


GROUP = "# GSD, Figure 2: x.\nexperiment: g\nimage: {methods: {ar: [{}], gsd: [%s]}}\n"
TABLE = """# GSD, Table 1: x.
experiment: t
protocol: sjd
networks: {clip: {repo: o/n, file: c.pt}}
models: {m: {family: chameleon, source: hub, repo: Theirs/One, files: {model: ., vq: 'hub:x/y:vq.ckpt'}}}
image: {prompts: {file: data/captions_val2017.json}, methods: {ar: [{}], gsd: [{}]}, reference: data/val2017}
"""


@pytest.fixture
def find(tmp_path):
    """A function that finds the maker of a printed number among experiment files, by their texts."""
    (tmp_path / "workflow/experiments").mkdir(parents=True)
    shutil.copytree(ROOT / "prompts", tmp_path / "prompts")

    def run(text, **changes):
        (tmp_path / "workflow/experiments/one.yaml").write_text(text)
        planned = account.plan_all(tmp_path / "workflow/experiments", "gsd")
        paper = {"kind": "discrete", "paper": "P", "table": "Fig. 2", "model": "One", "method": "gsd", "options": "{}"}
        paper |= {"conditions": '{"prompts": "MS-COCO 2017 val"}', "metric": "fid", "value": 1.0} | changes
        return account.find_maker(paper, "gsd", planned, {"One": ["Theirs/One"], "Two": ["Theirs/Two"]})

    return run


def test_a_number_needs_a_cell_of_its_options(find):
    assert find(GROUP % "{}") == ("one", "")
    assert find(GROUP % "{group: 4}") == ("one", account.NO_CELL)
    assert find(GROUP % "{group: 4}", options='{"group": 4}') == ("one", "")
    assert find(GROUP % "{}", table="Table 7", metric="no_such") == ("one", "no metric no_such")


def test_on_published_networks_it_needs_network_prompts_and_judge(find):
    table = {"table": "Table 1"}
    assert find(TABLE, metric="clip_score", **table) == ("one", "")
    assert find(TABLE, metric="clip_score", model="Two", **table) == ("one", account.NO_NETWORK)
    parti = '{"prompts": "Parti-prompts"}'
    assert find(TABLE, metric="clip_score", conditions=parti, **table) == ("one", account.NO_NETWORK)
    assert find(TABLE, metric="hps", **table)[1] == "no network hps"
    with_judge = TABLE.replace("networks: {", "networks: {inception: {repo: o/n, file: i.pt}, ")
    assert find(with_judge, **table) == ("one", "")
    assert find(with_judge.replace(", reference: data/val2017", ""), **table) == ("one", "no reference")


def test_a_speed_needs_timing(find):
    timed = "timing: {methods: all}\n"
    assert find(GROUP % "{}", metric="speedup") == ("one", "gsd is not timed")
    assert find(timed + GROUP % "{}", metric="speedup")[1] != ""  # the head is no longer at the top
    assert find(GROUP % "{}" + timed, metric="speedup") == ("one", "")


def test_networks_of_printed_numbers_are_known():
    """Except for those whose rows no published network is for: a name that is no paper's entry stands for any."""
    known = account.read_networks(ROOT / "workflow/published/networks.yaml")
    printed = {row["model"] for file in PUBLISHED for row in list_records(pd.read_csv(file))}
    assert set(known) <= printed
