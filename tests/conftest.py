"""One thread a process: several test processes with two threads each get in each other's way."""

from pathlib import Path

import pytest
import torch

from l0tre.zoo import weights_store as store

torch.set_num_threads(1)


@pytest.fixture
def only_sdnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all networks of the zoo only sdnn comes with the package."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        source = store.bundled_folder().joinpath(f"sdnn.{suffix}")
        (folder / f"sdnn.{suffix}").write_bytes(source.read_bytes())
    monkeypatch.setattr(store, "bundled_folder", lambda: folder)
