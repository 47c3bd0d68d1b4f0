"""Configurations gone wrong are taken or refused in one line: 300 of them, and what once was a traceback."""

import math

import pytest

from tests.benchmarks.conftest import loaded

STUDY = {"title": "t", "x": "k", "y": ["nfe"]}


@pytest.fixture(scope="module")
def fuzz():
    return loaded("fuzz.py")


def test_hundreds_of_configurations(fuzz):
    known = fuzz.bases()
    said = {number: fuzz.tried(fuzz.case(number, 0, known)) for number in range(300)}
    assert set(said.values()) == {"taken", "refused"}, {n: s for n, s in said.items() if s not in ("taken", "refused")}


@pytest.mark.parametrize(
    "raw",
    [
        {"image": {"methods": {"ar": [{}]}, "batch": "inf"}},
        {"continuous": {"methods": {"mar": [{}]}, "sampling": []}},
        {"continuous": {"methods": {"mar": [{}], "cspd": [{"inner_temperature": math.inf}]}}},
        {"image": {"methods": {"ar": [{}], "sjd": [{"tolerance": math.nan}]}}},
        {"text": {"methods": {"sequential": [{}]}, "tasks": {"infilling": []}, "study": [STUDY]}},
    ],
)
def test_what_once_was_a_traceback_is_a_line(fuzz, raw):
    assert fuzz.tried(raw) == "refused"


def test_a_traceback_is_found(fuzz, monkeypatch):
    monkeypatch.setattr(fuzz, "read", lambda raw: raw["x"])
    assert fuzz.tried({}) == "KeyError"
