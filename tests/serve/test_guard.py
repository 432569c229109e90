"""Who may ask a server, and that nothing outside the runs can be read."""

import http.client
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import l0tre
from l0tre.errors import ConfigError
from l0tre.serve import Address, Runs, background
from l0tre.store import stop_asked
from tests.tools import NO_ATTACK

pytest.importorskip("uvicorn", reason="the extra live is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, and things beside them that are nobody's business."""
    root = tmp_path_factory.mktemp("served")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    l0tre.evaluate(network, torch.rand(3, 1, 4, 4), max_t=1, out=root / "runs" / "one", **NO_ATTACK)
    shutil.copytree(root / "runs" / "one", root / "runs" / "deep" / "two")
    shutil.copytree(root / "runs" / "one", root / "outside")
    (root / "runs" / "link").symlink_to(root / "outside", target_is_directory=True)
    (root / "runs" / "secret.txt").write_text("secret")
    return root / "runs"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Address]:
    with background(Runs(folder)) as address:
        yield address


def ask(address: Address, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"{address.host}:{address.port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_runs_are_found_and_nothing_else(server: Address, folder: Path) -> None:
    assert Runs(folder).names() == ["deep/two", "one"]
    assert ask(server, "/api/result/deep/two")[0] == 200
    assert ask(server, "/api/sheet/0/one")[2].startswith(b"\x89PNG")
    names = ("../outside", "link", "secret.txt", "one/../../outside", "%2e%2e/outside", "/etc", "deep", "", "..")
    for name in names:
        for kind in ("result", "events", "sheet/0", "extra/0"):
            status, _, body = ask(server, f"/api/{kind}/{name}")
            assert status == 404, (kind, name)
            assert b"secret" not in body
    for path in (
        "/api/sheet/9/one",
        "/api/sheet/-1/one",
        "/api/extra/99/one",
        "/assets/../page.py",
        "/api/extra/x/one",
    ):
        assert ask(server, path)[0] == 404


def test_runs_with_files_from_elsewhere_are_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "runs" / "one")
    assert Runs(tmp_path / "runs").names() == ["one"]
    for name in ("run.db", "inputs.npz", "bounds.csv"):
        (tmp_path / "runs" / "one" / name).rename(tmp_path / name)
        (tmp_path / "runs" / "one" / name).symlink_to(tmp_path / name)
        assert Runs(tmp_path / "runs").names() == []
        (tmp_path / "runs" / "one" / name).unlink()
        (tmp_path / name).rename(tmp_path / "runs" / "one" / name)


def test_a_folder_that_is_a_run_shows_that_one(folder: Path) -> None:
    assert Runs(folder / "one").names() == ["one"]


def test_every_answer_forbids_what_is_from_elsewhere(server: Address) -> None:
    for path in ("/", "/runs/one", "/api/runs", "/assets/page.js", "/nothing"):
        _, headers, _ = ask(server, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_other_names_for_this_machine_are_refused(server: Address) -> None:
    assert ask(server, "/api/runs", Host="rebound.example")[0] == 421
    assert ask(server, "/api/runs", Host="localhost:1")[0] == 200


def test_stopping_needs_the_token_of_the_page(server: Address, folder: Path) -> None:
    assert ask(server, "/api/stop/one")[0] == 405
    for headers in ({}, {"X_L0tre_Stop": "guess"}, {"X_L0tre_Stop": "é".encode().decode("latin-1")}):
        assert ask(server, "/api/stop/one", "POST", **headers)[0] == 403
    assert not stop_asked(folder / "one")
    page = ask(server, "/")[2].decode()
    token = page.split('name="l0tre-stop" content="')[1].split('"')[0]
    assert ask(server, "/api/stop/one", "POST", X_L0tre_Stop=token)[0] == 200
    assert stop_asked(folder / "one")
    assert ask(server, "/api/stop/../outside", "POST", X_L0tre_Stop=token)[0] == 404


def test_another_address_needs_a_token(folder: Path) -> None:
    with background(Runs(folder), host="0.0.0.0") as address:
        here = Address("127.0.0.1", address.port, address.token)
        assert len(address.token) >= 24
        for path in ("/", "/api/runs", "/assets/page.js", "/?token=", "/?token=wrong"):
            assert ask(here, path)[0] == 403
        status, headers, _ = ask(here, f"//elsewhere.example/?token={address.token}&run=a")
        assert (status, headers["location"]) == (303, "/elsewhere.example/?run=a")
        cookie = headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert ask(here, "/api/runs", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(here, "/api/runs", Cookie="l0tre=wrong")[0] == 403


def test_addresses_that_cannot_be_used(folder: Path) -> None:
    with pytest.raises(ConfigError, match="too short"), background(Runs(folder), token="short"):
        pass
    with pytest.raises(ConfigError, match="give another `port`"), background(Runs(folder), host="203.0.113.1"):
        pass
