from pathlib import Path

import pytest

from tests.cli.running import Files, l0tre, make_files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def run(files: Files, tmp_path: Path) -> Path:
    """A run that was stopped after its first step."""
    folder = tmp_path / "run"
    words = ("--out", folder, "--time-budget", "0", "--guarantee", "grid", "--quiet")
    result = l0tre("evaluate", files.model, files.data, *words)
    assert result.code == 0, result
    return folder
