"""What an experiment is given from outside beside its models: prompts, and the networks that judge pictures."""

from typing import Literal

from pydantic import Field, model_validator

from parity.experiment.config_types import File, Hex64, Strict

MOST = 200_000_000  # bytes of a data file of texts, unpacked
CLASSES = "classes:"  # begins the name of labels that need no file


class PromptSpec(Strict):
    """A prompt set: a UTF-8 file of one of these formats, or class labels in turn (`file: classes:1000`)."""

    file: File = "prompts/scenes.txt"
    format: Literal["auto", "lines", "tsv", "csv", "jsonl", "coco", "parti", "dpg", "labels"] = Field(
        "auto",
        description="auto: by the end of the name (.json is coco); parti: PartiPrompts.tsv; dpg: dpg_bench.csv;"
        " labels: a number a line",
    )
    column: str = Field(
        "", max_length=200, description="of tsv, csv and jsonl; '' for prompt, caption or text, in any case of letters"
    )
    caption: Literal["first", "longest", "sjd"] = Field(
        "first", description="coco: which of a picture's captions; sjd: as the SJD repository picks one"
    )
    limit: int = Field(64, ge=1, le=100_000, description="prompts taken from the top of the file")
    sample: int | None = Field(
        None,
        ge=0,
        le=2**31,
        description="seed of a random subset of `limit` prompts, in the file's order; null: the top",
    )
    repeats: int = Field(1, ge=1, le=1000, description="images per prompt, each with noise of its own")
    shards: int = Field(
        1, ge=1, le=100_000, description="parts of the prompts, each kept as soon as it is decoded; changes no result"
    )
    jobs: int = Field(
        64, ge=1, le=1000, description="jobs at most that decode a cell's shards, some each; changes no result"
    )
    max_words: int = Field(
        23, ge=1, le=120, description="longest prompt of embedded models; others cut prompts as their tokenizers do"
    )


class NetworkSpec(Strict):
    """A published network that a metric asks, as one file or folder of its repository or of this machine. It is
    verified before anything reads it; no library fetches it."""

    file: File = Field(
        description="its weights, or a folder that holds them beside their configuration; with repo: in the repository"
    )
    sha256: Hex64
    repo: str = Field("", description="owner/name; '' for a file here")
    revision: str = Field("", pattern=r"^([0-9a-f]{40})?$", description="the 40-hex commit; a branch would move")
    architecture: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.-]*$",
        max_length=64,
        description="open_clip's name of what a single file holds; OpenAI's weights are a -quickgelu one;"
        " '' for the protocol's",
    )

    @model_validator(mode="after")
    def _pinned(self):
        if bool(self.repo) != bool(self.revision):
            raise ValueError("repo and revision go together; allowed: both, or neither for a file here")
        return self


class Networks(Strict):
    """Networks that judge pictures of published models; a metric whose network is not named here says so."""

    clip: NetworkSpec | None = Field(None, description="CLIP-score: an open_clip network")
    inception: NetworkSpec | None = Field(
        None, description="FID, KID, IS, precision and recall: pt_inception-2015-12-05-6726825d.pth"
    )
    vgg16: NetworkSpec | None = Field(
        None, description="precision and recall of protocol lantern: torchvision's vgg16-397923af.pth"
    )
    clip_vision: NetworkSpec | None = Field(None, description="CMMD: an open_clip network, of which pictures are read")
    hps: NetworkSpec | None = Field(None, description="HPSv2: ViT-H-14 with HPS_v2.1_compressed.pt")
    pickscore: NetworkSpec | None = Field(None, description="PickScore: a folder of transformers' CLIP")

    def named(self) -> dict[str, NetworkSpec]:
        """Those that are declared, by name."""
        return {name: spec for name, spec in self if spec is not None}
