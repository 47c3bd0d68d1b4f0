"""Get a model's files, verify them by SHA-256, convert what is pickled, and load them without a silent mismatch.

python -m parity.checkpoints --name scenes --spec '{"source": "embedded"}' --out results/checkpoints/scenes-1234abcd/manifest.json
"""

import argparse
import hashlib
import json
import sys
import time
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from parity.base.errors import ConfigError
from parity.base.files import publish, sums, write_json
from parity.experiment.config import COMPANIONS, EMBEDDED, ModelSpec, check_companion, embedded_files
from parity.models.discrete.eagle import EagleDrafter, FeatureDrafter
from parity.models.discrete.llamagen import LlamaGen, LlamaGenConfig, Transformer, read_config
from parity.models.discrete.vq import VQ, VQConfig


def sha256(path: Path) -> str:
    """Of a file, or of a folder's *.safetensors in order of name."""
    whole = hashlib.sha256()
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                whole.update(block)
    return whole.hexdigest()


def check(path: Path, expected: str, what: str) -> None:
    if not path.exists():
        raise ConfigError(f"{what} = {str(path)!r}: no such file")
    found = sha256(path)
    if found != expected:
        raise ConfigError(
            f"{what} = {str(path)!r}: SHA-256 is {found[:16]}..., expected {expected[:16]}...; delete the file and get it again"
        )


def download(repo: str, revision: str, file: str, attempts: int = 5) -> Path:
    """One file of a pinned commit; network errors and 5xx are tried again, the last one is shown with its cause."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause: Exception | None = None
    for attempt in range(attempts):
        try:
            return Path(hf_hub_download(repo, file, revision=revision))
        except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError) as error:
            cause = error
            break
        except Exception as error:  # the hub's client raises several families here; all of them mean "not now"
            cause = error
            print(
                f"{repo}/{file}: try {attempt + 1} of {attempts} failed: {error.__cause__ or error}",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(2**attempt)
    raise ConfigError(
        f"models: {repo}/{file} at {revision[:8]} cannot be had: {type(cause).__name__}: {getattr(cause, '__cause__', None) or cause}"
    )


def unpickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a published pickle, of its moving average if it has one. Nothing in it is executed; what it does not need stays on disk."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # some keep the training run's arguments
            found: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except (
        Exception
    ) as error:  # a reader of pickles raises what the bytes make it: KeyError, RuntimeError, UnpicklingError, ...
        raise ConfigError(
            f"{file}: not a checkpoint that can be read safely: {repr(error).splitlines()[0][:200]}"
        ) from None
    for key in ("model_ema", "model", "module", "state_dict"):
        if key in found:
            found = found[key]
            break
    return {k: v for k, v in found.items() if isinstance(v, Tensor)}


def get(name: str, spec: ModelSpec, folder: Path) -> dict:
    """Bring every file of a model to hand, verified; the manifest names where each is."""
    files: dict[str, str] = {}
    if spec.source == "embedded":
        known, parts = sums(EMBEDDED), embedded_files(spec)
        parts |= {
            part: f"{part}.safetensors" for part in COMPANIONS if spec.grid == 16 and f"{part}.safetensors" in known
        }
        for file in parts.values():
            if file not in known:
                raise ConfigError(
                    f"models.{name}: SHA256SUMS does not name {file}; run `snakemake train_embedded`, which does"
                )
            check(EMBEDDED / file, known[file], f"models.{name}")
        return {
            "family": spec.family,
            "source": "embedded",
            "files": {part: str(EMBEDDED / file) for part, file in parts.items()},
            "sha256": {file: known[file] for file in parts.values()},
            "network": {},
        }
    for part, file in spec.files.items():
        local = download(spec.repo, spec.revision, file) if spec.source == "hub" and part != "text" else Path(file)
        check(local, spec.sha256[part], f"models.{name}.files.{part}")
        if local.suffix in (".pt", ".pth", ".bin"):
            state, local = unpickle(local), folder / f"{part}.safetensors"
            publish(local, save({k: v.contiguous() for k, v in state.items()}))
        files[part] = str(local)
    for companion in COMPANIONS:
        if companion in files:
            check_companion(name, spec, Path(files[companion]), companion)
    return {
        "family": spec.family,
        "source": spec.source,
        "files": files,
        "sha256": dict(spec.sha256),
        "network": dict(spec.network),
    }


def check_fit(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """ConfigError that lists missing, unexpected or wrongly shaped entries."""
    want = module.state_dict()
    problems = [f"missing {k}" for k in want if k not in state] + [f"unexpected {k}" for k in state if k not in want]
    problems += [
        f"{k} has shape {tuple(v.shape)}, expected {tuple(want[k].shape)}"
        for k, v in state.items()
        if k in want and v.shape != want[k].shape
    ]
    if problems:
        raise ConfigError(
            f"{path}: does not fit {type(module).__name__}: {'; '.join(problems[:4])}{f' and {len(problems) - 4} more' if len(problems) > 4 else ''}"
        )


def load_weights(module: nn.Module, path: Path, ignored: tuple[str, ...] = ()) -> None:
    """Load a safetensors file whole, or ConfigError."""
    state = {k: v for k, v in load_file(path).items() if k not in ignored}
    check_fit(module, state, path)
    module.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})


@dataclass
class Loaded:
    """A text-to-image model ready for batches of encoded captions."""

    net: Transformer
    vq: VQ
    device: torch.device
    drafter: FeatureDrafter | None = None
    draft: Transformer | None = None

    def decodable(self, embeddings: Tensor | np.ndarray, valid: Tensor | np.ndarray, guided: bool) -> LlamaGen:
        """The token model of a batch: left-padded caption embeddings [B, prefix, caption_dim] and their mask [B, prefix]."""
        dtype = self.net.output.weight.dtype
        with torch.inference_mode():
            given = torch.as_tensor(embeddings).to(self.device, dtype), torch.as_tensor(valid).to(self.device), guided
            model = LlamaGen(self.net, *given)
            model.codebook, model.raw_codebook = self.vq.quantize.codes, self.vq.quantize.embedding.weight
            if self.drafter is not None:
                model.drafter = EagleDrafter(self.drafter, model)
            if self.draft is not None:
                model.draft = LlamaGen(self.draft, *given, returns=True)
        return model


def configurations(manifest: dict) -> tuple[LlamaGenConfig, VQConfig]:
    """Of the transformer and the image tokenizer that a manifest names."""
    if manifest["source"] != "embedded":
        return LlamaGenConfig(**manifest["network"]), VQConfig()
    vq = read_config(Path(manifest["files"]["vq"]))
    unknown = set(vq) - {f.name for f in fields(VQConfig)}
    if unknown:
        raise ConfigError(
            f"{manifest['files']['vq']}: configuration names {sorted(unknown)}, which this version does not know"
        )
    return LlamaGenConfig(**read_config(Path(manifest["files"]["llamagen"]))), VQConfig(
        **{**vq, "ch_mult": tuple(vq["ch_mult"])}
    )


def side(manifest: dict) -> int:
    """Pixels a side of the pictures a model makes."""
    config, vq = configurations(manifest)
    return config.grid * vq.stride


def load(manifest: dict, device: str = "cpu", dtype: torch.dtype = torch.float32, needs: str = "") -> Loaded:
    """The networks of a manifest; of "drafter" and "draft" the one that is needed."""
    files = {k: Path(v) for k, v in manifest["files"].items()}
    config, vq_config = configurations(manifest)
    net, vq = Transformer(config), VQ(vq_config)
    load_weights(net, files["llamagen" if manifest["source"] == "embedded" else "transformer"])
    load_weights(vq, files["vq"], ignored=("quantize.codebook_used",))
    if vq.config.codebook != config.vocab:
        raise ConfigError(
            f"models: the tokenizer has {vq.config.codebook} codes, the transformer {config.vocab}; take the tokenizer the model was trained with"
        )
    place = torch.device(device)
    loaded = Loaded(net.eval().to(place, dtype), vq.eval().to(place), place)
    if needs:
        extra = LlamaGenConfig(**{k: v for k, v in read_config(files[needs]).items() if k != "target"})
        companion = FeatureDrafter(extra) if needs == "drafter" else Transformer(extra)
        load_weights(companion, files[needs])
        setattr(loaded, needs, companion.eval().to(place, dtype))
    return loaded


def load_clip(manifest: dict, device: str = "cpu") -> Any | None:
    """The network that quality is measured with; None for a model whose files name none."""
    if "clip" not in manifest["files"]:
        return None
    from parity.metrics.networks.clip import build

    clip = build()
    load_weights(clip, Path(manifest["files"]["clip"]))
    return clip.eval().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--spec", type=json.loads, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    write_json(a.out, get(a.name, ModelSpec.model_validate(a.spec), a.out.parent))


if __name__ == "__main__":
    from parity.base.command import one_line

    one_line(main)
