"""Data that a configuration names and this machine lacks. A plan, and a trial on stand-ins of published size, do
without them."""

import copy
from pathlib import Path
from typing import Any

PROMPTS = "prompts/plain.txt"
ELSEWHERE = ("classes:", "datasets:", "https://", "http://")  # what begins so is no file of this machine
LABELS = "classes:1000"  # a prompt set of numbers, as many as are asked for, which needs no file


def replace_absent_data(raw: dict[str, Any], captions: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of a configuration without files of data that do not exist, and a line for each of them: prompts
    become numbers, captions the workflow's own, texts embedded ones; images to compare with, and networks that judge,
    are left out. captions: prompts become the workflow's own captions too, of which there are few."""
    raw = copy.deepcopy(raw)
    lines: list[str] = []

    def is_absent(key: str, name: Any) -> bool:
        """Return whether a file or folder does not exist; if so, note it."""
        if not isinstance(name, str) or not name or name.startswith(ELSEWHERE) or Path(name).exists():
            return False
        lines.append(f"{key} = {name!r}: no such file; put it there")
        return True

    for section, field in (("image", "prompts"), ("continuous", "captions")):
        content = raw.get(section)
        if not isinstance(content, dict):
            continue
        if is_absent(f"{section}.reference", content.get("reference")):
            del content["reference"]
        prompts = content.get(field)
        if isinstance(prompts, dict) and is_absent(f"{section}.{field}.file", prompts.get("file")):
            counts = {k: v for k, v in prompts.items() if k not in ("file", "format", "column", "caption")}
            if section == "image" and not (captions and prompts.get("format") != "labels"):
                content[field] = {**counts, "file": LABELS}
            else:
                content[field] = {**counts, "file": PROMPTS, "limit": 32}
    tasks = raw["text"].get("tasks") if isinstance(raw.get("text"), dict) else None
    for kind, settings in (tasks or {}).items():
        for i, task in enumerate(settings if isinstance(settings, list) else ()):
            if is_absent(f"text.tasks.{kind}.{i}.data", task.get("data")):
                del task["data"]
    networks = raw["networks"] if isinstance(raw.get("networks"), dict) else {}
    for name, spec in list(networks.items()):
        if isinstance(spec, dict) and not spec.get("repo") and is_absent(f"networks.{name}.file", spec.get("file")):
            del networks[name]
    return raw, lines
