"""Files of the command attack: bounds that it reads, arrays and pictures that it writes."""

import re
from pathlib import Path

import numpy as np
import torch

from l0tre.attacks.attacked import Attacked
from l0tre.attacks.task import LEVELS
from l0tre.data import Dataset
from l0tre.domain import Domain, same_domain
from l0tre.errors import ConfigError, require
from l0tre.figures.pictures import is_picture, png, shades
from l0tre.model.network import Network
from l0tre.store import read_inputs, read_snapshot

__all__ = ["check_file", "check_pictures", "lower_bounds", "write_arrays", "write_pictures"]


def lower_bounds(run: Path, data: Dataset, network: Network, domain: Domain) -> list[int]:
    """Bounds for all real values from a run; 0 for images that it does not hold.

    Raises:
        ConfigError: If the run is about another network, other images or other changes: its bounds would prove nothing.
    """
    snapshot, inputs = read_snapshot(run), read_inputs(run)
    if snapshot.config["model"]["fingerprint"] != network.fingerprint:
        raise ConfigError(f"--lower {run} is a run of another network: evaluate this one")
    if not same_domain(inputs.domain, domain):
        raise ConfigError(f"--lower {run} lets other values change: give both the same unit, mask, low and high")
    images = dict(zip(inputs.indices, inputs.images, strict=True))
    for index, image in zip(data.indices, data.images, strict=True):
        if index in images and not torch.equal(images[index], image):
            raise ConfigError(f"--lower {run} has another input {index}: evaluate the inputs of {data.name}")
    known = {image.index: image.lower for image in snapshot.images if image.guarantee in ("certified", "lipschitz")}
    if not known:
        raise ConfigError(f"{run} holds no bounds for all real values: evaluate with --guarantee certified")
    return [known.get(index, 0) for index in data.indices]


def check_file(path: Path) -> None:
    """Make the folder of a file, and refuse one that cannot be written, before any work."""
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder: give a file, such as {path / 'adversarial.npz'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: the folder {path.parent} cannot be made ({error.strerror})") from error


def check_pictures(folder: Path, shape: tuple[int, ...]) -> None:
    """Refuse a folder or inputs that cannot become pictures, before any work."""
    require("PIL.Image", "report")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--pictures {folder} is a file: give a folder")
    if not is_picture(shape):
        raise ConfigError(f"inputs of shape {shape} are no pictures (grey or of three colours): leave --pictures out")


def write_arrays(path: Path, result: Attacked, data: Dataset, levels: int) -> None:
    """Write adversarial inputs and all that is known about them as an .npz file.

    Values of ``levels`` steps a unit, as 8-bit images have, become uint8; with 0 they stay floats.
    """
    images: np.ndarray = result.adversarial.numpy()
    if levels:
        images = (images * levels).round().astype(np.uint8)
    with path.open("wb") as file:  # numpy would add a suffix to a name
        np.savez_compressed(
            file,
            images=images,
            labels=result.labels.numpy(),
            originals=data.images.numpy(),
            decisions=result.decisions.numpy(),
            found=result.found.numpy(),
            distance=result.distance.numpy(),
            optimal=result.optimal.numpy(),
            indices=np.array(data.indices),
            forwards=result.forwards.numpy(),
            backwards=result.backwards.numpy(),
            unit=np.array(result.unit),
        )


def write_pictures(folder: Path, result: Attacked, data: Dataset, levels: int) -> int:
    """Write the changed inputs as PNG files, named after positions, files and decisions; gives their number."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = result.changed.nonzero()[:, 0].tolist()
    for row in rows:
        stem = Path(data.names.inputs[row]).stem if data.names.inputs else ""
        words = [str(data.indices[row]), *([stem] if stem else []), "to", data.names.label(int(result.decisions[row]))]
        name = re.sub(r"[^\w.+-]+", "-", "_".join(words)) + ".png"
        (folder / name).write_bytes(png(shades(result.adversarial[row], high=LEVELS / levels)))
    return len(rows)
