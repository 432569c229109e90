"""One way in for every source of images."""

import difflib
from pathlib import Path

from l0tre.data.dataset import Dataset, from_arrays
from l0tre.data.files import Raw, read_csv, read_numpy
from l0tre.data.folder import read_folder
from l0tre.data.named import NAMES, read_named
from l0tre.errors import DataError

__all__ = ["load_data"]

_SPLITS = ("test", "train")


def _unknown(source: str | Path, path: Path) -> DataError:
    accepted = f"a name ({', '.join(NAMES)}), a file (.npz, .npy, .csv) or a folder of images"
    if str(source) and path.exists():
        return DataError(f"{source}: cannot be read as data; expected {accepted}")
    near = difflib.get_close_matches(str(source).lower(), NAMES, n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    return DataError(f"{str(source)!r} is no file, folder or known name{hint}; expected {accepted}")


def _read(
    source: str | Path, input_shape: tuple[int, ...] | None, data_dir: Path | None, split: str, resize: bool
) -> Raw:
    path = Path(source).expanduser()
    if str(source) in NAMES and not (isinstance(source, Path) and path.exists()):
        return read_named(str(source), split, data_dir)
    if str(source) and path.is_dir():
        return read_folder(path, input_shape, resize)
    suffix = path.suffix.lower()
    if path.is_file() and suffix in (".npz", ".npy"):
        return read_numpy(path, split)
    if path.is_file() and suffix == ".csv":
        return read_csv(path, input_shape, resize)
    raise _unknown(source, path)


def load_data(
    source: str | Path,
    *,
    input_shape: tuple[int, ...] | None = None,
    data_dir: Path | None = None,
    scale: float | None = None,
    split: str = "test",
    resize: bool = False,
) -> Dataset:
    """Load images and labels.

    Args:
        source: A file (.npz, .npy, .csv), a folder of images, or a name: ``digits``, ``mnist5k``, ``mnist``,
            ``fashion-mnist``, ``cifar10``. A name wins over a file of the same name, unless given as a ``Path``
            or with a ``./`` before it.
        input_shape: The network's, without the batch; images are brought into it.
        data_dir: Where data sets known by name are looked for first; then in the folder that the variable
            L0TRE_DATA names, then in the cache, and otherwise they are downloaded into the cache.
        scale: Divide the values by this instead of the default (255 for pixels of 8 bits, nothing for floats).
        split: ``"test"`` or ``"train"``, for sources that have both.
        resize: Whether images of another height or width are resized to the network's by area averaging.

    Returns:
        The data set; its indices are the positions in the source.

    Raises:
        DataError: If the source cannot be found, read or used.
        MissingExtraError: If the package that holds or reads it is not installed.
    """
    if split not in _SPLITS:
        raise DataError(f"the split is {split!r}; expected {' or '.join(_SPLITS)}")
    try:
        raw = _read(source, input_shape, None if data_dir is None else Path(data_dir), split, resize)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error}); check the path and its permissions") from error
    return from_arrays(
        raw.images,
        raw.labels,
        input_shape=input_shape,
        scale=raw.scale if scale is None else scale,
        name=str(source),
        resize=resize,
    )
