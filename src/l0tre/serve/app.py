"""What a live page asks for: pages, data, events, and a run to stop."""

import hmac
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from html import escape
from typing import Any

from l0tre.errors import L0treError, require
from l0tre.report import code, page_data, runs_page, shared_inputs, style
from l0tre.serve.guard import Application, Guard
from l0tre.serve.runs import Runs
from l0tre.serve.watch import RunView, Statuses, Watch, changes, silent_if_old, status_of
from l0tre.store import ask_stop

__all__ = ["make_app"]

SECONDS = 1.0  # between two looks at a run
TICK = 0.1  # seconds until the end of a server is noticed
RETRY_MS = 1000  # until a browser connects again
STOP_HEADER = "x-l0tre-stop"
SHELL = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="l0tre-stop" content="{stop}">
<title>l0tre</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/page.css">
</head>
<body>
<main id="page"><noscript>This page needs JavaScript; l0tre show RUN tells the same in a terminal.</noscript></main>
<script src="/assets/page.js"></script>
</body>
</html>
"""


class Service:
    """The runs of a folder, and what the endpoints answer about them. Its functions are called in threads."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.stop_token = secrets.token_urlsafe(24)
        self.watches: dict[str, Watch] = {}
        self.statuses = Statuses()
        self.lock = threading.Lock()

    def watch(self, name: str) -> Watch:
        """The watch of a run; ``KeyError`` if there is no such run."""
        folder = self.runs.folder(name)
        with self.lock:
            return self.watches.setdefault(name, Watch(folder))

    def listed(self) -> list[dict[str, Any]]:
        """All runs, each with how it is."""
        return [{"name": name, **self.statuses.of(self.runs.folder(name))} for name in self.runs.names()]

    def state(self, name: str, newest: bool = False) -> tuple[RunView, dict[str, Any]]:
        """A run as last recorded, and how it is."""
        watch = self.watch(name)
        state = watch.current(newest=newest)
        status = status_of(watch.folder, state.run.snapshot)
        return state, silent_if_old(status)

    def compared(self, names: list[str]) -> dict[str, Any]:
        """The page of several runs side by side."""
        runs = {name: self.watch(name).current().run for name in names}
        snapshots = {name: run.snapshot for name, run in runs.items()}
        document = runs_page(snapshots, shared_inputs([run.inputs for run in runs.values()]))
        found, gallery = page_data(document), document.gallery
        if gallery is not None:
            found |= {"result": gallery.result, "extras": gallery.extras, "sheets": gallery.sheets}
        return found


def make_app(runs: Runs, *, token: str = "", closing: Callable[[], bool] = lambda: False) -> Application:
    """The application that serves the runs of a folder.

    Args:
        runs: The folder.
        token: What requests must know; empty for requests from this machine alone.
        closing: Whether the server is about to end: events end before it.

    Raises:
        MissingExtraError: If starlette or sse-starlette is not installed.
    """
    applications, routing = require("starlette.applications", "live"), require("starlette.routing", "live")
    responses, sse = require("starlette.responses", "live"), require("sse_starlette.sse", "live")
    threads = require("anyio", "live")
    service = Service(runs)

    async def threaded(function: Callable[..., Any], *arguments: Any) -> Any:
        return await threads.to_thread.run_sync(function, *arguments)

    def answering(function: Callable[..., Any]) -> Any:
        """An endpoint that says in one line what cannot be answered."""

        async def endpoint(request: Any) -> Any:
            try:
                return await function(request)
            except (KeyError, IndexError, ValueError):
                return responses.JSONResponse({"error": "there is nothing of this name"}, 404)
            except L0treError as error:
                return responses.JSONResponse({"error": str(error)}, 503)

        return endpoint

    async def shell(_: Any) -> Any:
        return responses.HTMLResponse(SHELL.format(stop=escape(service.stop_token)))

    async def script(_: Any) -> Any:
        return responses.Response(code(), media_type="text/javascript")

    async def sheet_style(_: Any) -> Any:
        return responses.Response(style(), media_type="text/css")

    async def listed(_: Any) -> Any:
        return responses.JSONResponse(await threaded(service.listed))

    async def result(request: Any) -> Any:
        state, _ = await threaded(service.state, request.path_params["name"])
        return responses.JSONResponse(state.run.snapshot.to_dict())

    async def extra(request: Any) -> Any:
        state, _ = await threaded(service.state, request.path_params["name"])
        row = int(request.path_params["row"])
        return responses.JSONResponse(state.document.gallery.extras[row])

    async def sheet(request: Any) -> Any:
        watch = await threaded(service.watch, request.path_params["name"])
        file = await threaded(watch.sheet, int(request.path_params["number"]))
        return responses.Response(file, media_type="image/png")

    async def compared(request: Any) -> Any:
        names = request.query_params.getlist("run")
        return responses.JSONResponse(await threaded(service.compared, names))

    async def stop(request: Any) -> Any:
        given = request.headers.get(STOP_HEADER, "")
        if not hmac.compare_digest(given.encode(), service.stop_token.encode()):
            return responses.JSONResponse({"error": "stopping needs the token of this page: reload it"}, 403)
        watch = await threaded(service.watch, request.path_params["name"])
        try:
            await threaded(ask_stop, watch.folder)
        except OSError as error:
            return responses.JSONResponse({"error": f"the run cannot be told: {error}"}, 503)
        return responses.JSONResponse({"phase": "stopping"})

    def event(kind: str, data: Any) -> dict[str, Any]:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        return {"event": kind, "data": text, "retry": RETRY_MS}

    async def pause(seconds: float) -> None:
        began = time.monotonic()
        while time.monotonic() - began < seconds and not closing():
            await threads.sleep(TICK)

    async def run_events(name: str) -> AsyncIterator[dict[str, Any]]:
        """A page as it is, then all that changes in it. Who connects again begins anew, and has missed nothing."""
        shown: RunView | None = None
        told: dict[str, Any] = {}
        last = False
        while not last:
            last = closing()  # what a run recorded before its server ends is told too
            try:
                state, status = await threaded(service.state, name, last)
            except KeyError:
                status = {"phase": "damaged", "reason": "the run folder is gone"}
            except L0treError as error:
                status = {"phase": "damaged", "reason": str(error)}
            else:
                if shown is None:
                    yield event("page", state.whole())
                elif state.number != shown.number:
                    yield event("change", changes(shown, state))
                shown = state
            if status != told:
                told = status
                yield event("status", status)
            await pause(SECONDS)
        yield event("closed", None)

    async def list_events() -> AsyncIterator[dict[str, Any]]:
        told: Any = None
        while not closing():
            rows = await threaded(service.listed)
            if rows != told:
                told = rows
                yield event("runs", rows)
            await pause(2 * SECONDS)
        yield event("closed", None)

    async def events(request: Any) -> Any:
        name = request.path_params.get("name")
        if name is None:
            return sse.EventSourceResponse(list_events())
        service.watch(name)
        return sse.EventSourceResponse(run_events(name))

    def route(path: str, function: Callable[..., Any], method: str = "GET") -> Any:
        return routing.Route(path, answering(function), methods=[method])

    app = applications.Starlette(
        routes=[
            route("/", shell),
            route("/compare", shell),
            route("/runs/{name:path}", shell),
            route("/assets/page.js", script),
            route("/assets/page.css", sheet_style),
            route("/api/runs", listed),
            route("/api/compare", compared),
            route("/api/events", events),
            route("/api/events/{name:path}", events),
            route("/api/result/{name:path}", result),
            route("/api/extra/{row:int}/{name:path}", extra),
            route("/api/sheet/{number:int}/{name:path}", sheet),
            route("/api/stop/{name:path}", stop, "POST"),
        ]
    )
    return Guard(app, token=token)
