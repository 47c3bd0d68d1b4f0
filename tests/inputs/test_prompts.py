"""Prompt files of every format: which prompts are read, in which order, and which files are refused."""

import json

import pytest

from parity.base.errors import ConfigError
from parity.experiment import prompt_files as prompts
from parity.experiment.schema import PromptSpec

PARTI = 'Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\tsome note\n"G I G" on a wall\tAbstract\tBasic\t\n'
COCO = {
    "images": [{"id": 30}, {"id": 7}, {"id": 12}],
    "annotations": [
        {"id": 1, "image_id": 30, "caption": "thirty, one"},
        {"id": 2, "image_id": 7, "caption": "a"},
        {"id": 3, "image_id": 7, "caption": "seven, the longest of all"},
        {"id": 4, "image_id": 12, "caption": "twelve, longer than next"},
        {"id": 5, "image_id": 12, "caption": "twelve\n"},
        {"id": 6, "image_id": 30, "caption": "30"},
    ],
}


LONG = "word " * 30


def name_circle(caption):
    """Make a COCO file of one image with this caption."""
    return {"images": [{"id": 1}], "annotations": [{"id": 1, "image_id": 1, "caption": caption}]}


def read_content(tmp_path, name, content, **settings):
    """Write a prompt file, as JSON if the content is no text, and read its prompts with these settings."""
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return prompts.read_prompts(PromptSpec(file=name, **settings), tmp_path, max_words=23)


@pytest.mark.parametrize(
    ("name", "content", "settings", "expected"),
    [
        ("p.txt", "\n one \n\ntwo  three\n", {}, ["one", "two  three"]),
        ("p.tsv", PARTI, {}, ["bond", '"G I G" on a wall']),
        ("p.tsv", PARTI, {"format": "parti"}, ["bond", '"G I G" on a wall']),
        ("p.tsv", PARTI, {"column": "Category"}, ["Abstract", "Abstract"]),
        ("p.tsv", 'prompt\tcategory\n"A neon sign\tsigns\na cat\tx\n', {}, ['"A neon sign', "a cat"]),
        ("p.csv", 'id,Caption\n1,"a, b\nc"\n2,d\n', {}, ["a, b c", "d"]),
        ("p.jsonl", '{"tag": "x", "prompt": "a cat"}\n\n{"prompt": "two"}\n', {}, ["a cat", "two"]),
        ("p.csv", 'prompt,id\r\n"a ""red"" car, 4k",1\r\n\r\na 6" nail,2', {}, ['a "red" car, 4k', 'a 6" nail']),
        ("p.csv", ",prompt\n0,a red car\n1,a dog\n", {}, ["a red car", "a dog"]),
        ("p.csv", "sep=,\r\nprompt,cat\r\na red car,x\r\n", {}, ["a red car"]),
        ("P.TXT", "\ufeffa red car\n", {}, ["a red car"]),
        ("p.jsonl", '{"prompt": "a \\ud83d\\ude00"}\n', {}, ["a \U0001f600"]),
        ("p.jsonl", '{"prompt": "a \\\\u0000 \\\\ud83d"}\n', {}, ["a \\u0000 \\ud83d"]),
        ("p.txt", "кот\n一只猫\n\U0001f408\n!\n", {}, ["кот", "一只猫", "\U0001f408", "!"]),
        ("p.ndjson", '{"prompt": "a red car"}\n', {}, ["a red car"]),
        ("p.list", "7\n007\n999\n", {"format": "labels"}, ["7", "7", "999"]),
    ],
)
def test_prompts_are_read_from_every_format(tmp_path, name, content, settings, expected):
    assert read_content(tmp_path, name, content, **settings) == expected


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_a_line_ends_at_a_line_feed_alone(tmp_path, mark):
    lines = f"one{mark}two\r\nthree{mark}four\n"
    assert read_content(tmp_path, "p.txt", lines) == [f"one{mark}two", f"three{mark}four"]
    objects = "".join(json.dumps({"prompt": line}, ensure_ascii=False) + "\n" for line in lines.split("\r\n"))
    (tmp_path / "p.jsonl").write_text(objects, newline="")
    assert prompts.read_prompts(PromptSpec(file="p.jsonl"), tmp_path) == ["one two", "three four"]
    for name, separator in (("p.csv", ","), ("p.tsv", "\t")):
        table = f"prompt{separator}id\none{mark}two{separator}1\nthree{separator}2\n"
        assert read_content(tmp_path, name, table) == ["one two", "three"]


def test_every_coco_image_gives_a_caption_in_order_of_ids(tmp_path):
    """The SJD repository's rule never resets the longest caption so far, which is why 12 and 30 have their second."""
    rule = {
        "first": ["a", "twelve, longer than next", "thirty, one"],
        "longest": ["seven, the longest of all", "twelve, longer than next", "thirty, one"],
        "sjd": ["seven, the longest of all", "twelve", "30"],
    }
    for caption, expected in rule.items():
        assert read_content(tmp_path, "c.json", COCO, caption=caption) == expected
    rows = prompts.read_rows(PromptSpec(file="c.json", caption="sjd"), tmp_path)
    assert [(row["image_id"], row["id"]) for row in rows] == [(7, 3), (12, 5), (30, 6)]


def test_captions_of_images_that_a_coco_file_does_not_list_are_left_out_and_counted(tmp_path):
    thinned = {**COCO, "images": COCO["images"][1:]}
    assert read_content(tmp_path, "c.json", thinned) == ["a", "twelve, longer than next"]
    (line,) = prompts.describe_left_out(PromptSpec(file="c.json"), tmp_path)
    assert line.startswith("2 captions of c.json are left out")
    read_content(tmp_path, "whole.json", COCO)
    assert prompts.describe_left_out(PromptSpec(file="whole.json"), tmp_path) == []


def test_what_is_no_file_is_one_line(tmp_path):
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    for name, words in (("device.txt", "no regular file"), ("nowhere.txt", "no such file")):
        with pytest.raises(ConfigError, match=rf"image.prompts.*{words}"):
            prompts.read_prompts(PromptSpec(file=name), tmp_path)


def test_a_subset_is_drawn_by_its_seed_and_keeps_the_order(tmp_path):
    lines = [f"prompt {k:03d}" for k in range(200)]
    samples = [read_content(tmp_path, "p.txt", "\n".join(lines), limit=20, sample=seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] == sorted(samples[0]) != samples[2]
    assert len(set(samples[0])) == 20
    assert set(samples[0]) <= set(lines)
    assert samples[0] != lines[:20]


def test_labels_need_no_file():
    spec = PromptSpec(file="classes:3", limit=7)
    assert prompts.read_prompts(spec) == list("0120120")
    assert prompts.source(spec) == []
    assert prompts.source(PromptSpec(file="p.txt")) == ["p.txt"]
    for wrong in ("classes:", "classes:0", "classes:x", "classes:99999999"):
        with pytest.raises(ConfigError, match="allowed: classes:1000"):
            prompts.read_prompts(PromptSpec(file=wrong))


@pytest.mark.parametrize(
    ("name", "content", "settings", "fragments"),
    [
        ("p.list", "a red car\n", {}, ["unknown suffix", ".ndjson", "`format`"]),
        ("p.txt", "", {}, ["holds no prompt"]),
        ("p.txt", b"a red \xff circle\n", {}, ["not UTF-8 at byte 6"]),
        ("p.txt", "ok\n" + "word " * 30 + "\n", {}, ["prompt 2", "30 words", "at most 23"]),
        ("p", "a red car\n", {}, ["unknown suffix"]),
        ("p.txt", "a red car\n".encode("utf-16-le").decode(), {}, ["a NUL at byte 1", "UTF-8"]),
        ("p.csv", ",\n0,a red car\n", {}, ["row 1: has no prompt, caption or text", "its columns: none"]),
        ("p.csv", "sep=;\nprompt;cat\n", {}, ["line 1: 'sep=;'", "allowed: ','"]),
        ("p.csv", "a,b\n1,2\n", {}, ["row 1: has no prompt, caption or text", "a, b"]),
        ("p.csv", "prompt,x\nok,1\n ,2\n", {}, ["row 2: prompt = ' '", "allowed: text"]),
        ("p.csv", "prompt\n" + "x" * 200_000, {}, ["line 2: is not CSV"]),
        ("p.csv", "prompt\na red car, photorealistic, 4k\n", {}, ["row 1 (line 2) has 3 fields, the header 1", '4k"']),
        ("p.csv", "prompt,style\na cat,x\n\na dog\n", {}, ["row 2 (line 4) has 1 fields, the header 2"]),
        ("p.csv", 'prompt,style\n"A neon sign,x\na cat,y\n', {}, ["line 2: is not CSV"]),
        ("p.csv", 'prompt,style\n"A" sign,x\n', {}, ["line 2: is not CSV", "double quotes"]),
        ("p.csv", "prompt,prompt\na,b\n", {}, ["has two columns 'prompt'"]),
        ("p.tsv", "prompt\tstyle\na\tb\tc\n", {}, ["row 1 (line 2) has 3 fields, the header 2", "a tab ends"]),
        ("p.tsv", "prompt\tstyle\na\n", {}, ["row 1 (line 2) has 1 fields, the header 2"]),
        ("p.txt", "a\rb\r", {}, ["line 1: holds a carriage return", "LF"]),
        ("p.jsonl", '{"prompt": "a"}\nnot\n', {}, ["line 2 is not JSON"]),
        ("p.jsonl", '{"prompt": 3}\n', {}, ["line 1: prompt = '3'", "allowed: text"]),
        ("p.txt", "1\n-2\n", {"format": "labels"}, ["line 2: '-2' is no label"]),
        ("p.json", "[" * 100_000, {}, ["no captions as COCO's"]),
        ("p.json", {**COCO, "annotations": COCO["annotations"][:1]}, {}, ["image 7 has 0 captions"]),
        ("p.txt", "a\nb\n", {"limit": 3, "sample": 0}, ["image.prompts.limit = 3", "holds 2 prompts"]),
        ("p.txt", f"{LONG}\na\n{LONG}\n{LONG}\n", {}, ["prompt 1", "30 words; allowed", "3 prompts in all: also 3, 4"]),
        ("p.txt", f"{LONG}\n" * 9, {}, ["9 prompts in all: also 2, 3, 4, 5, 6 and 3 more"]),
        ("p.jsonl", '{"prompt": "a cat\\u0000"}\n', {}, ["line 1: 'a cat\\x00' holds a NUL character; allowed"]),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": "a \\ud83d"}\n', {}, ["line 2: 'a \\ud83d' holds U+D83D, half of"]),
        ("p.jsonl", '{"prompt": "a", "tags": [{"\\udc00": 1}]}\n', {}, ["line 1: '\\udc00' holds U+DC00"]),
        ("p.json", name_circle("red \ud83d"), {}, ["prompt 1 ('red \\ud83d') holds U+D83D"]),
        ("p.json", name_circle("red\0circle"), {}, ["prompt 1 ('red\\x00circle') holds a NUL"]),
        ("p.txt", "a\n\u200b\u2060\n", {}, ["prompt 2 ('\\u200b\\u2060') has no visible character"]),
        ("p.csv", "prompt\na\n\u00ad\n", {}, ["prompt 2 ('\\xad') has no visible character"]),
    ],
)
def test_an_unreadable_prompt_file_is_one_line(tmp_path, name, content, settings, fragments):
    with pytest.raises(ConfigError) as error:
        read_content(tmp_path, name, content, **settings)
    assert str(error.value).startswith("image.prompts.")
    assert all(fragment in str(error.value) for fragment in fragments), str(error.value)


def test_prompts_the_embedded_model_cannot_read_are_refused():
    spec = PromptSpec(file="mine.txt")
    scene = "a large dotted blue square on a red background"
    prompts.check_embedded([scene], spec, drawn=True)
    prompts.check_embedded(["a photo of a corgi"], spec, drawn=False)
    long = "red " * 24
    for wrong, drawn in (("a photo of a corgi", True), (long, True), (long, False), ("красный круг", False)):
        with pytest.raises(ConfigError, match=r"mine\.txt.*prompt 2.*allowed"):
            prompts.check_embedded([scene, wrong], spec, drawn)
