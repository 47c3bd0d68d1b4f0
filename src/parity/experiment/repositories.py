"""Published models that are more than one file of weights: text models, and pairs of continuous ones. What a
configuration says of where they lie."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from parity.experiment.config_types import HUB, PINNED, File, Hex64, Strict


def pinned(value: str) -> str:
    """A folder, or a repository at a commit."""
    found = PINNED.fullmatch(value)
    if value.startswith(HUB) and (found is None or found["path"]):
        raise ValueError("allowed: a folder, or hub:owner/name@ and the 40-hex commit; a branch would move")
    return value


def repository(where: str) -> tuple[str, str]:
    """Owner/name and commit of "hub:owner/name@commit"."""
    repo, _, revision = where.removeprefix(HUB).partition("@")
    return repo, revision


class TextModel(Strict):
    """The any-subset model and the judge: the embedded ones, or folders as transformers saves them, on this machine or
    in repositories (hub:owner/name@commit)."""

    xlnet: File = Field("", description="an XLNetLMHeadModel; '' for the embedded model")
    judge: File = Field("", description="a GPT2LMHeadModel with its tokenizer; '' for the embedded judge")
    tokenizer: File = Field(
        "", description="the tokenizer of xlnet, where it lies apart from it (published: xlnet/xlnet-base-cased)"
    )
    sha256: dict[Literal["xlnet", "judge"], Hex64] = Field(
        {}, description="of a folder's weights, file by file in order of name; what is in a repository needs it"
    )

    _pinned = field_validator("xlnet", "judge", "tokenizer")(pinned)

    @model_validator(mode="after")
    def _known(self):
        for part in ("xlnet", "judge"):
            if getattr(self, part).startswith(HUB) and part not in self.sha256:
                raise ValueError(f"sha256.{part} is needed for {HUB}; `python -m parity.models pin` finds it")
        return self


class WeightsSpec(Strict):
    """Published files of a pair of continuous models: converted when they are brought to hand, each verified."""

    source: Literal["hub", "files"] = "files"
    repo: str = Field("", description="hub: owner/name")
    revision: str = Field("", pattern=r"^([0-9a-f]{40})?$", description="hub: the 40-hex commit; a branch would move")
    files: dict[Literal["target", "draft", "kl", "tokenizer"], File] = Field(
        description="hub: path in the repository, or hub:owner/name@commit:path in another; files: path here"
    )
    sha256: dict[Literal["target", "draft", "kl", "tokenizer"], Hex64]
    network: dict[Literal["grid", "cell"], int] = Field(
        {}, description="tokens a side, and tokens a side that are drawn at once, where they are not the family's"
    )

    @model_validator(mode="after")
    def _complete(self):
        if self.source == "hub" and not (self.repo and self.revision):
            raise ValueError("source 'hub' needs repo and revision")
        if set(self.sha256) != set(self.files):
            raise ValueError(f"sha256 must name the same files as files: {sorted(self.files)}")
        if "target" not in self.files:
            raise ValueError(f"files = {sorted(self.files)}: needs target")
        for name, file in self.files.items():
            found = PINNED.fullmatch(file)
            if file.startswith(HUB) and (found is None or not found["path"]):
                raise ValueError(f"files.{name} = {file!r}: allowed: hub:owner/name@ and the 40-hex commit, then :path")
        for key, value in self.network.items():
            if not 1 <= value <= 256:
                raise ValueError(f"network.{key} = {value}: allowed: 1 to 256")
        return self
