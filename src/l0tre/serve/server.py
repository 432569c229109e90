"""Running the server: in the foreground for a folder, in the background of an evaluation."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from l0tre.errors import ConfigError, require
from l0tre.serve.app import make_app
from l0tre.serve.guard import is_local
from l0tre.serve.runs import Runs

__all__ = ["Address", "background", "serve"]

LOCAL = "127.0.0.1"
PORT = 8765
GRACE = 5  # seconds for pages to be told how a run ended


@dataclass(frozen=True)
class Address:
    """Where a server listens.

    Attributes:
        host: Name or number of the address.
        port: Its port.
        token: What requests must know; empty on this machine.
    """

    host: str
    port: int
    token: str = ""

    def page(self, run: str = "") -> str:
        """The address of the list of runs, or of one run."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"runs/{quote(run)}" if run else ""
        return f"http://{host}:{self.port}/{place}" + (f"?token={self.token}" if self.token else "")


def listen(host: str, port: int, token: str = "") -> tuple[socket.socket, Address]:
    """Take a port; 0 for a free one.

    Args:
        host: The address to listen on. One that others can reach gets a token if none is given.
        port: The port.
        token: What requests must know.

    Raises:
        ConfigError: If the address cannot be used.
    """
    if token and len(token) < 16:
        raise ConfigError("the token is too short: give at least 16 characters, or none to have one made")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(64)
    except (OSError, OverflowError) as error:
        taken.close()
        raise ConfigError(f"cannot listen on {host} port {port} ({error}): give another `port` or `host`") from error
    if not is_local(host) and not token:
        token = secrets.token_urlsafe(24)
    return taken, Address(host, taken.getsockname()[1], token)


def serve(runs: Runs, *, host: str = LOCAL, port: int = PORT, token: str = "", tell: Callable[[Address], None]) -> None:
    """Serve a folder of runs until somebody ends the process.

    Args:
        runs: The folder.
        host: The address to listen on.
        port: The port; 0 for a free one.
        token: What requests must know; made up for an address that others can reach.
        tell: Is told the address before the first request.

    Raises:
        ConfigError: If the address cannot be used.
        MissingExtraError: If the packages of the extra ``live`` are not installed.
    """
    server, taken, address = _prepared(runs, host, port, token)
    with taken:
        tell(address)
        server.run(sockets=[taken])


@contextmanager
def background(runs: Runs, *, host: str = LOCAL, port: int = 0, token: str = "") -> Iterator[Address]:
    """While inside, a thread of this process serves a folder of runs.

    Yields:
        Where.
    """
    server, taken, address = _prepared(runs, host, port, token)
    thread = threading.Thread(target=lambda: server.run(sockets=[taken]), name="l0tre-live", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(GRACE + 2)
        taken.close()


def _prepared(runs: Runs, host: str, port: int, token: str) -> tuple[Any, socket.socket, Address]:
    uvicorn = require("uvicorn", "live")
    require("starlette", "live")
    taken, address = listen(host, port, token)
    try:
        servers: list[Any] = []
        app = make_app(runs, token=address.token, closing=lambda: bool(servers and servers[0].should_exit))
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE,
            server_header=False,
        )
    except BaseException:
        taken.close()
        raise
    servers.append(uvicorn.Server(config))
    return servers[0], taken, address
