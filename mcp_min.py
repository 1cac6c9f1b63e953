"""mcp_min 6.0.0: the Model Context Protocol (MCP) over stdio, both ends, in one file.

Copy it into your project: it needs Python 3.9 and nothing else.  A server:

    from mcp_min import Server
    server = Server("weather", version="1.2.0")

    @server.tool
    def forecast(city: str, days: int = 3) -> str:
        "Forecast for a city."
        return f"{city}: sun for {days} days"

    server.run()

A client, which blocks and may be used from any thread:

    from mcp_min import Client
    with Client(["python3", "weather.py"]) as client:
        print(client.call_tool("forecast", {"city": "Oslo"}).text)

It speaks the revisions 2024-11-05 to 2025-11-25, modelcontextprotocol.io/specification.
A section names only what stands above it: 1 to 7 are for both ends, 8 to 11 the server,
12 and 13 the client, 14 the command line (`mcp_min.py demo` shows a session); section 4
begins with the invariants.  Licence: MIT, at the end.
"""
from __future__ import annotations

import binascii
import enum
import json
import operator
import os
import re
import sys
import threading
import types
import typing
from collections import abc, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, lru_cache, partial, partialmethod
from itertools import chain, count, islice, repeat
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from concurrent.futures import Future

__version__ = "6.0.0"
__all__ = [
    "Audio", "Cancelled", "Client", "ConnectionClosed", "Context", "Elicited",
    "EmbeddedResource", "Error", "Field", "Image", "McpError", "Message",
    "RequestTimeout", "ResourceContents", "ResourceLink", "SchemaError", "Server",
    "Text", "ToolError", "ToolResult", "stdio_server", "validate"]

Json = dict[str, Any]      # a JSON object
Id = Union[int, str]       # of a request, or a progress token
Line = bytes               # a message without its newline
Job = Callable[[], object]
Test = Callable[[], bool]
Handler = Optional[Callable[..., Any]]  # a function of the user
Seconds = Optional[float]  # None: for ever


# -- 1. The specification in tables ----------------------------------------------------
# What the four revisions say, as data.  No other section names a revision.

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
WITH_BATCHES = ["2024-11-05", "2025-03-26"]  # an array gets an array of responses
TELLS_MODEL = ["2025-11-25"]  # of bad arguments of a tool, in a result


class Method(NamedTuple):
    """A request that a client may send."""
    handler: str           # a method of ServerSession
    capability: str = ""   # what a server with this method declares; "a.b": b of a
    list_key: str = ""     # of the list in its result, which comes in pages
    is_quick: bool = False  # the thread that reads answers it at once, in order


METHODS = {
    "initialize": Method("initialize", is_quick=True),
    "ping": Method("ping", is_quick=True),
    "logging/setLevel": Method("set_level", "logging", is_quick=True),
    "tools/list": Method("list_page", "tools", "tools"),
    "tools/call": Method("call_tool", "tools"),
    "resources/list": Method("list_page", "resources", "resources"),
    "resources/templates/list": Method("list_page", "resources", "resourceTemplates"),
    "resources/read": Method("read_resource", "resources"),
    "resources/subscribe": Method("subscribe", "resources.subscribe", "", True),
    "resources/unsubscribe": Method("unsubscribe", "resources.subscribe", "", True),
    "prompts/list": Method("list_page", "prompts", "prompts"),
    "prompts/get": Method("get_prompt", "prompts"),
    "completion/complete": Method("complete", "completions"),
}
# What a server may ask, and the capability of a client that answers.
QUESTIONS = {"elicitation/create": "elicitation", "roots/list": "roots",
             "sampling/createMessage": "sampling"}
# Other spellings of notifications, as they were seen; they are understood, never sent.
ALIASES = {name: f"notifications/{name}" for name in (
    "initialized", "cancelled", "progress", "message", "tools/list_changed",
    "prompts/list_changed", "resources/list_changed", "resources/updated",
    "roots/list_changed")}
ALIASES["$/cancelRequest"] = "notifications/cancelled"
ALIASES["$/progress"] = "notifications/progress"
ALIASES["logging/message"] = "notifications/message"
ALIASES["notifications/logging/message"] = "notifications/message"
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert",
          "emergency"]

# Error codes.                   Used when
PARSE_ERROR = -32700             # a line is no JSON, too long, or too deep
INVALID_REQUEST = -32600         # JSON is no message, or its id is taken
METHOD_NOT_FOUND = -32601        # there is no such method, or not declared
INVALID_PARAMS = -32602          # params do not fit, or name what does not exist
INTERNAL_ERROR = -32603          # a handler failed, or its result is no JSON
RESOURCE_NOT_FOUND = -32002      # a URI that nobody serves

# Limits.  The peer started us, or we started it: so they are few.
MAX_MESSAGE_BYTES = 16 << 20     # of a line
MAX_DEPTH = 200                  # of arrays and objects in each other
MAX_REQUESTS = 1000              # of the peer, in flight
MAX_BACKLOG = 64 << 20           # bytes that wait for a peer that does not read
MAX_COMPLETIONS = 100            # values, by the specification
MAX_PROBLEMS = 20                # of one value
DRAIN_SECONDS = 1.5              # for what is in flight at the end of input
PATIENCE = 2.0                   # seconds, for each step of ending a process


def as_dict(value: Any) -> Json:
    """The value if it is an object, else {}: a peer may send anything."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def declares(capabilities: Json, name: str) -> bool:
    """True if a capability is declared; for "a.b", also its member b."""
    found: Any = capabilities
    for part in name.split("."):
        found = as_dict(found).get(part)
    return found not in (None, False)


# -- 2. Errors -------------------------------------------------------------------------
# What users catch and raise, and how any exception becomes text.


class Error(Exception):
    """The base of the errors of this module."""


class McpError(Error):
    """A JSON-RPC error (code, message, data): handlers raise it, calls receive it."""

    code, message = INTERNAL_ERROR, "Internal error"  # if a class forgets `super()`
    data: Any = None

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code, self.message, self.data = code, message, data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def to_json(self) -> Json:
        error = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class ToolError(Error):
    """A tool failed, with a text for the model; a client's has the `result`, too."""

    def __init__(self, message: str, result: ToolResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class RequestTimeout(Error, TimeoutError):
    """There was no response, nor progress, in time; the request was cancelled."""


class ConnectionClosed(Error, ConnectionError):
    """The peer is gone; of a server process: its exit code and the end of stderr."""

    def __init__(self, message: str, exit_code: int | None = None,
                 stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.stderr = exit_code, stderr


class SchemaError(Error, ValueError):
    """A JSON Schema is malformed, or uses what this module does not have."""


class Cancelled(BaseException):
    """The request was cancelled: let it pass, or clean up and raise it again."""


class Stopped(SystemExit):
    """Raised by SIGTERM and Ctrl-C while a server runs, with the exit status."""


class Oversized(McpError):
    """A line that is not parsed: it is too long, or too deep."""


def invalid_params(message: str, field: str = "", issue: str = "") -> McpError:
    data = {"field": field, "issue": issue or message} if field else None
    return McpError(INVALID_PARAMS, message, data)


def unknown_method(method: str) -> McpError:
    return McpError(METHOD_NOT_FOUND, f"Unknown method {method}", {"method": method})


def require(params: Json, name: str, kind: type, default: Any = None) -> Any:
    """A member of params, or default; McpError if it is of another type, or missing."""
    value = default if params.get(name) is None else params[name]
    if not isinstance(value, kind):
        words = "a string" if kind is str else "an object"
        raise invalid_params(f"{name} must be {words}, not {show(value)}", name)
    return value


def show(value: Any) -> str:
    """A JSON value as a short text, for an error."""
    try:
        text = json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def text_of(error: BaseException) -> str:
    """An exception as a text: "TypeName: message"; of a group of them, its leaves."""
    leaves = getattr(error, "exceptions", None)
    if isinstance(leaves, (list, tuple)):
        return "; ".join(map(text_of, leaves))
    name, text = type(error).__name__, ""
    with suppress(Exception):  # its own __str__ may fail
        text = str(error)
    return f"{name}: {text}" if text else name


def printable(text: str) -> str:
    """A text without what commands a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1]
                   for char in text)


def wait_for_room(stream: Any, seconds: Seconds, to_read: bool = False) -> bool:
    """Wait until a stream takes (or has) bytes; False: not in time."""
    import select
    try:
        poll = select.poll()
        poll.register(stream, select.POLLIN if to_read else select.POLLOUT)
    except (AttributeError, OSError, ValueError, TypeError):  # Windows; no descriptor
        return True
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def warn(text: str) -> None:
    """Show a text on stderr, or drop it: a full pipe must hold up nobody."""
    with suppress(Exception):  # there is none, or it is closed, or a user's own
        if wait_for_room(sys.stderr, 0):
            sys.stderr.write(f"{printable(text)[-4000:]}\n")


def log_exception(what: str, error: BaseException) -> None:
    import traceback
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    warn(f"mcp_min: {what}\n{''.join(lines).rstrip()}")


# -- 3. Messages -----------------------------------------------------------------------
# A line of bytes and the JSON-RPC message in it.  What comes in is strict UTF-8 and
# JSON; what goes out is ASCII: no code page, newline or lone surrogate can spoil it.

to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(message: Any) -> Line:
    """A line; TypeError, ValueError, RecursionError: it is no JSON."""
    return to_json(message).encode("ascii")


def read_float(text: str) -> float:
    value = float(text)
    if value - value != 0:  # NaN, Infinity, 1e400
        raise ValueError(f"{text} is no number of JSON, or too large")
    return value


read_json = json.JSONDecoder(parse_constant=read_float, parse_float=read_float).decode


def decode(line: Line, limit: int) -> Any:
    """The JSON of a line; McpError: it cannot be read."""
    if len(line) > limit:
        raise Oversized(PARSE_ERROR, f"The line has over {limit} bytes")
    # The parser recurses: a deep line would overflow a small stack, which no exception
    # stops.  So the depth is looked at before; few lines have so many brackets.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and depth_of(line) > MAX_DEPTH:
        raise Oversized(PARSE_ERROR, f"The JSON is over {MAX_DEPTH} levels deep")
    try:
        return read_json(line.decode("utf-8").lstrip("\ufeff"))  # a byte order mark
    except (ValueError, RecursionError) as error:
        raise McpError(PARSE_ERROR, f"The line is no JSON: {error}") from None


def depth_of(line: Line) -> int:
    """How deep arrays and objects are nested; a string may lack its end."""
    depth = deepest = 0
    without_strings = re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', b"", line, flags=re.DOTALL)
    for bracket in re.findall(rb"[][{}]", without_strings):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(depth, deepest)
    return deepest


# jsonrpc and the method may stand before the id: some write them so.
HEAD = re.compile(rb'\s*\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,200}"\s*,)*'
                  rb'\s*"id"\s*:\s*(-?\d{1,18}|"[ !#-Z^-~]{0,200}")\s*[,}]')


def id_at_head(line: Line) -> Any:
    """The id of a line that is not parsed, if it begins with it."""
    found = HEAD.match(line)
    return json.loads(found[1]) if found else None


def valid_id(value: Any) -> Any:
    """A request id or progress token, 1.0 as 1; None for anything else."""
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) in (int, str) else None


def own_id(value: Any) -> Any:
    """An id that we sent, as it comes back: some peers make texts of numbers."""
    if type(value) is str and re.fullmatch("[1-9][0-9]{0,17}", value):
        return int(value)
    return valid_id(value)


def kind_of(message: Any) -> str:
    """Is it a "request", a "notification" or a "response"?  McpError: it is neither."""
    if type(message) is not dict:
        raise McpError(INVALID_REQUEST, f"A message is an object, not {show(message)}")
    if message.get("jsonrpc") != "2.0":
        raise McpError(INVALID_REQUEST, 'The message has no "jsonrpc": "2.0"')
    method = message.get("method")
    outcomes = [message[name] for name in ("result", "error") if name in message]
    if method is None and outcomes:
        return "response"
    if type(method) is not str or outcomes.count(None) < len(outcomes):
        raise McpError(INVALID_REQUEST, "A message has either a method or a result")
    if "id" not in message:
        return "notification"
    if valid_id(message["id"]) is None:
        raise McpError(INVALID_REQUEST, "The id is neither a string nor an integer")
    return "request"


def outcome_of(message: Json) -> Json | McpError:
    """The result of a response, or its error, or what is wrong with it."""
    error, result = message.get("error"), message.get("result")
    if error is None and type(result) is dict:
        return result
    code, text = as_dict(error).get("code"), as_dict(error).get("message")
    if result is None and type(code) is int and type(text) is str:
        return McpError(code, text, as_dict(error).get("data"))
    text = "The response has not either a result or an error"
    return McpError(INTERNAL_ERROR, f"{text}, as it must: {show(message)}")


def notification(method: str, params: Json) -> Line:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def with_meta(params: Json, more: Json) -> Json:
    """A copy of a result, or of params, with more in its `_meta`."""
    return {**params, "_meta": {**as_dict(params.get("_meta")), **more}}


def read_lines(stream: Any, limit: int) -> Iterator[Line]:
    """The lines of a stream; one over the limit is cut, but not below the limit."""
    read = getattr(stream, "read1", stream.read)
    pieces: list[bytes] = []  # of a line whose end has not come
    chunk: bytes | None = None
    while chunk != b"":
        try:
            chunk = read(65536)
        except Exception:  # it is closed, or broken
            chunk = b""
        if chunk is None:  # somebody has made it non-blocking
            wait_for_room(stream, None, to_read=True)
            continue
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*pieces, end))
            pieces = []
        if rest and sum(map(len, pieces)) <= limit:
            pieces.append(rest)
    if pieces:  # the last line needs no newline
        yield b"".join(pieces)


# -- 4. Connection ---------------------------------------------------------------------
# JSON-RPC over two streams, the same for both ends.  Invariants:
#
# 1. Who ends a request acts, once.  A request of ours ends by `outgoing.pop`: response,
#    timeout, cancellation and the end race for the entry.  A request of the peer ends
#    by its one-shot lock `_decided`: answer and cancellation race for it.  So the two
#    tables need no lock.
# 2. All lines go through one queue, each with a check that runs under `_writing` when
#    its turn comes.  `write` waits for that (handlers: a slow peer holds them); `post`
#    leaves it to the writer thread (who must not wait: the reader, who has a deadline
#    or an event loop).  What is said about a request of the peer counts only while that
#    is in `incoming`, and its response takes it out when it is written: so no progress
#    follows the response, the id is free when the peer can know that, and `incoming` is
#    empty when everything was answered.
# 3. One thread reads at a time, and never waits, but for a handler that it runs itself;
#    if that takes over 2 ms, another thread reads on (Turns, of a server).  By then
#    the request is in `incoming`: only a handler is overtaken, never a message.
# 4. Who waits for a call runs its loop: the reader puts events into the call's queue.
# 5. The end comes once (`_ended`) and wakes everybody: it is marked, then the tables
#    are emptied; who adds an entry looks at the mark afterwards.  Streams are closed by
#    their owner; who is inside `_put` looks at the mark before he writes on.
#
# Without the GIL the same holds: single operations of dict, set, deque and SimpleQueue
# are atomic there, too, and what is counted (+=) has a lock.


def start_thread(name: str, run: Job) -> None:
    """Start a daemon thread; RuntimeError: the system has none left."""
    threading.Thread(target=run, name=f"mcp {name}", daemon=True).start()


def fulfil(future: Future[Any], call: Job) -> None:
    """Put the outcome of a call into a Future; if it is cancelled, tell who waits."""
    if future.cancelled() and not future.set_running_or_notify_cancel():
        return
    try:
        settle = partial(future.set_result, call())
    except Stopped:  # it is for the thread, not of the call
        raise
    except BaseException as error:
        settle = partial(future.set_exception, error)
    if future.set_running_or_notify_cancel():
        settle()


class Pool:
    """At most `size` threads, started when they are needed, that run jobs in turn."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size = name, size
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()  # None ends a thread
        self._lock = threading.Lock()  # guards the rest
        self._threads = self._unfinished = 0
        self._is_closed = False

    def submit(self, job: Job) -> bool:
        """Run a job soon; False: the pool is closed.  RuntimeError: no thread."""
        with self._lock:
            if self._is_closed:
                return False
            if self._threads <= self._unfinished and self._threads < self._size:
                start_thread(self._name, self._work)
                self._threads += 1
            self._unfinished += 1
            self.jobs.put(job)
        return True

    def help(self) -> None:
        """Run what waits, on this thread."""
        with suppress(Empty):
            self._run_all(iter(self.jobs.get_nowait, None))
            self.jobs.put(None)  # it was for another

    def is_busy(self) -> bool:
        return self._unfinished > 0

    def close(self) -> None:
        """Let the threads end after the jobs that they have."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self.jobs.put(None)

    def _work(self) -> None:
        self._run_all(iter(self.jobs.get, None))

    def _run_all(self, jobs: Iterator[Job]) -> None:
        for job in jobs:
            try:
                job()
            except BaseException as error:
                log_exception(f"a job of {self._name} failed", error)
            del job  # else it would be kept until the next one comes
            with self._lock:
                self._unfinished -= 1


class Turns:
    """Threads that read by turns, so that most handlers need not change threads.

    The reader runs a handler itself (`run_here`).  A watcher looks every 2 ms; if that
    handler still runs, it starts another reader: the first is passed, and ends after
    its handler.  Meanwhile no other handler runs here: there are two of them at most.
    """

    HAND_OVER = 0.002  # seconds

    def __init__(self, read_one: Test, pool: Pool) -> None:
        self._read_one = read_one       # reads a line and acts on it; False: the end
        self._pool = pool               # runs what cannot run here
        self._lock = threading.Lock()   # guards what follows
        self._turn = 0                  # of the thread that may read
        self._began: float | None = None  # when the handler did that the reader runs
        self._is_passed = False         # a handler still runs whose reader was passed
        self._is_over = False
        self._wake = threading.Event()  # for the watcher: a handler began, or the end

    def start(self) -> None:
        start_thread("watcher", self._watch)
        start_thread("reader", self._read)

    def stop(self) -> None:
        """Let the watcher end."""
        self._is_over = True
        self._wake.set()

    def run_here(self, handler: Job) -> bool:
        """Run a handler on the calling thread, the reader, or let the pool do so."""
        with self._lock:  # so that the thread that was passed sees it, below
            if self._is_passed:
                return self._pool.submit(handler)
        self._began = monotonic()
        if not self._wake.is_set():  # the watcher clears it, and then looks
            self._wake.set()
        try:
            handler()
        except BaseException as error:  # which must not end the turns
            log_exception("a request could not be handled", error)
        with self._lock:
            if not self._is_passed:
                self._began = None
                return True
        while self._is_passed:  # this thread is done with reading: its place is free
            self._pool.help()
            with self._lock:
                self._is_passed = not (self._is_over or self._pool.jobs.empty())
        return True

    def _read(self) -> None:
        with self._lock:  # so it is the turn of this thread
            turn = self._turn
        while turn == self._turn and self._read_one():
            pass

    def _watch(self) -> None:
        while not self._is_over:
            if self._began is None:
                self._wake.wait()
                self._wake.clear()
            sleep(self.HAND_OVER)
            with self._lock, suppress(RuntimeError):  # no thread: it tries again
                if self._began and monotonic() - self._began >= self.HAND_OVER:
                    start_thread("reader", self._read)
                    self._turn += 1
                    self._began, self._is_passed = None, True


class Incoming:
    """A request of the peer, or with the id None a notification of the user's own kind.

    put: `write`, `post`, or what collects the responses of a batch.
    """

    def __init__(self, connection: Any, request_id: Any, method: str, params: Any,
                 batch: Batch | None = None) -> None:
        self.connection, self.id = connection, request_id
        self.method, self.params, self.batch = method, params, batch
        self.put = batch.collect if batch else connection.post
        self.cancelled = False
        self._decided = threading.Lock()  # taken once: it is answered, or cancelled
        self._hooks: set[Job] = set()     # called by `cancel`, perhaps twice
        self._progress = float("-inf")    # the last that was written

    def is_open(self) -> bool:
        return self.id is None or self.connection.incoming.get(self.id) is self

    def respond(self, result: Json) -> None:
        self._answer("result", result)

    def fail(self, error: BaseException) -> None:
        """Answer with an error; one that is no McpError is shown as internal."""
        if not isinstance(error, McpError):
            error = McpError(INTERNAL_ERROR, text_of(error))
        self._answer("error", error.to_json())

    def _answer(self, kind: str, outcome: Json) -> None:
        try:
            line = encode({"jsonrpc": "2.0", "id": self.id, kind: outcome})
        except (TypeError, ValueError, RecursionError) as error:
            text = f"The response is no JSON: {error}"
            return self.fail(McpError(INTERNAL_ERROR, text))
        if self.id is not None and self._decided.acquire(blocking=False):
            self.put(line, self._leave)

    def _leave(self) -> bool:
        if self.is_open():  # not with the id of another that is open
            self.connection.incoming.pop(self.id, None)
        return True

    def cancel(self) -> None:
        """It will not be answered; its handler sees that.  No effect if it was."""
        if self._decided.acquire(blocking=False):
            self._leave()
            self.cancelled = True
            for hook in self._hooks.copy():
                hook()
            if self.batch:
                self.batch.collect()

    def on_cancel(self, hook: Job) -> None:
        """Call a hook when it is cancelled, or now if it was."""
        self._hooks.add(hook)
        if self.cancelled:  # looked at afterwards: `cancel` may have missed the hook
            hook()

    def forget(self, hook: Job) -> None:
        self._hooks.discard(hook)

    def wait(self, seconds: float) -> None:
        """Sleep, but only until it is cancelled."""
        woken = threading.Event()
        self.on_cancel(woken.set)
        woken.wait(min(max(0.0, seconds), threading.TIMEOUT_MAX))
        self.forget(woken.set)

    def notify(self, method: str, params: Json) -> None:
        """Say something about it, unless it was answered by then."""
        self.connection.write(notification(method, params), self.is_open)

    def report_progress(self, params: Json) -> None:
        """Report progress if it has increased, and the request is open."""
        progress: float = params["progress"]

        def has_advanced() -> bool:
            before = self._progress
            self._progress = max(before, progress)
            return self.is_open() and progress > before

        if progress > self._progress:  # a TypeError comes here, in no other thread
            line = notification("notifications/progress", params)
            self.connection.write(line, has_advanced)


class Batch:
    """The responses to an array of messages: the last sends all (2025-03-26, basic)."""

    def __init__(self, connection: Connection, size: int) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # guards the rest
        self._missing = size           # messages that have not called `collect`
        self._lines: list[Line] = []
        self._leaves: list[Test] = []

    def collect(self, line: Line = b"", leave: Test = lambda: True) -> None:
        """Take the response to a message; without a line: it has none."""
        with self._lock:
            self._missing -= 1
            if line:
                self._lines.append(line)
                self._leaves.append(leave)
            if self._missing or not self._lines:
                return
        self._connection.post(b"[" + b",".join(self._lines) + b"]", self._leave)

    def _leave(self) -> bool:
        return all(leave() for leave in self._leaves)


class Outgoing:
    """A request to the peer.

    events: a tuple is progress (progress, total, message), a dict the result, an
    exception any other end.
    """

    # On Windows, Ctrl-C does not wake a thread that waits without a limit.
    LONGEST = 1.0 if os.name == "nt" else threading.TIMEOUT_MAX

    def __init__(self, connection: Connection, request_id: int, method: str) -> None:
        self.connection, self.id, self.method = connection, request_id, method
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.is_sent = False

    def leave(self) -> bool:
        """Its line is to be written now, unless it has ended."""
        self.is_sent = self.id in self.connection.outgoing
        return self.is_sent

    def end(self, outcome: Any) -> bool:
        """End it, unless it has ended: then False."""
        if self.connection.outgoing.pop(self.id, None) is None:
            return False
        self.events.put(outcome)
        return True

    def cancel(self, outcome: BaseException, reason: str) -> None:
        """End it, and tell the peer, if it has heard of it."""
        if self.end(outcome) and self.method != "initialize":
            params = {"requestId": self.id, "reason": reason}
            line = notification("notifications/cancelled", params)
            self.connection.post(line, lambda: self.is_sent)

    def wait(self, timeout: Seconds, max_timeout: Seconds = None,
             on_progress: Handler = None) -> Json:
        """The result; the calling thread runs on_progress.

        timeout: seconds without a response or progress.  max_timeout: seconds in all.
        Whatever is raised here (an error, a timeout, Ctrl-C) ends the request.
        """
        start = monotonic()
        idle, limit = (threading.TIMEOUT_MAX if seconds is None else seconds
                       for seconds in (timeout, max_timeout))
        try:
            while True:
                event = self._next_event(min(start + limit, monotonic() + idle))
                if isinstance(event, dict):
                    return event
                if not event or type(event) is tuple and monotonic() > start + limit:
                    text = f"{self.method}: no result in {monotonic() - start:.1f} s"
                    raise RequestTimeout(text + self.connection.hint())
                if isinstance(event, BaseException):
                    raise event
                if on_progress:
                    on_progress(*event)
        except BaseException as error:
            self.cancel(error, text_of(error)[:200])
            raise

    def _next_event(self, deadline: float) -> Any:
        """None: there is none in time."""
        while True:
            seconds = max(0.0, deadline - monotonic())
            with suppress(Empty):
                return self.events.get(timeout=min(seconds, self.LONGEST))
            if not seconds:
                return None


class Connection:
    """JSON-RPC over two binary streams; a server's session and a client's are one.

    They say what `on_…` does.  All but on_end are called by the thread that reads,
    which must not be held up.
    """

    request_class: Any = Incoming
    has_batches = False

    def __init__(self, reader: Any, writer: Any, limit: int, trace: Handler) -> None:
        self._writer, self._limit = writer, limit
        self._trace = trace  # a function that gets each line, after an arrow
        self._lines = read_lines(reader, limit)
        self.incoming: dict[Id, Incoming] = {}
        self.outgoing: dict[Id, Outgoing] = {}
        self._queue: deque[tuple[Line, Test]] = deque()  # to be written, with checks
        self._writing = threading.Lock()   # held by who takes from the queue and writes
        self._writer_thread = Pool("writer", 1)
        self._counting = threading.Lock()  # guards the next two
        self._last_id = self._backlog = 0  # of our requests; bytes in the queue
        self._ended = threading.Lock()     # taken once, by `end`
        self.why_ended: Error | None = None
        self._pid = os.getpid()
        self.noise: deque[str] = deque(maxlen=20)  # what came and is for nobody

    def on_request(self, request: Any) -> None:
        """Answer it, or let somebody do so; what is raised answers it, too."""

    def on_notification(self, method: str, params: Json) -> None:
        """Act on it."""

    def on_refused(
            self, line: Line, error: McpError, request_id: Any, put: Any) -> None:
        """A line, or an element of it, is no message; `put` would answer it."""

    def on_end(self) -> None:
        """The peer will say nothing more, or the connection has ended."""

    def hint(self) -> str:
        """What to add to the text of a timeout."""
        return ""

    # -- writing

    def write(self, line: Line, check: Test) -> None:
        """Write a line, if its check allows it when its turn comes; wait for that."""
        self._queue.append((line, check))
        self._count(len(line))
        self._write_queue()

    def post(self, line: Line, check: Test = lambda: True) -> None:
        """The same, without waiting."""
        self._queue.append((line, check))
        if self._count(len(line)) > MAX_BACKLOG + len(line):
            self.end(ConnectionClosed("The peer does not read: too much waits for it"))
        try:
            self._writer_thread.submit(self._write_queue)
        except RuntimeError:  # no thread can be started
            self._write_queue()

    def _count(self, size: int) -> int:
        with self._counting:
            self._backlog += size
            return self._backlog

    def _write_queue(self) -> None:
        with self._writing:
            while self._queue:
                line, check = self._queue.popleft()
                self._count(-len(line))
                if not self.why_ended and check():
                    self._put(line)

    def _put(self, line: Line) -> None:
        if os.getpid() != self._pid:
            return  # a child that a handler has forked: the peer is its parent's
        self._show("->", line)
        try:
            rest = memoryview(line + b"\n")
            while rest and not self.why_ended:  # after that, they may be closed
                count = self._writer.write(rest)
                if count is None:  # somebody has made it non-blocking
                    wait_for_room(self._writer, None)
                rest = rest[count or 0:]
            self._writer.flush()
        except Exception as error:
            self.end(ConnectionClosed(f"The peer cannot be written to: {error}"))

    def _show(self, arrow: str, line: Line) -> None:
        if self._trace:
            with suppress(Exception):  # of the user's function
                self._trace(f"{arrow} {line.decode('utf-8', 'replace')}")

    def close_output(self, seconds: float) -> None:
        """Close the stream that is written, unless a thread is in it for too long."""
        if self._writing.acquire(timeout=seconds):
            with suppress(OSError, ValueError):
                self._writer.close()
            self._writing.release()

    def is_busy(self) -> bool:
        """Is anything in flight, or not yet written?"""
        return bool(self.incoming or self._queue) or self._writing.locked()

    def request(
            self, method: str, params: Json, has_progress: bool = False) -> Outgoing:
        """Send a request; then somebody calls `wait` of what this returns."""
        with self._counting:
            self._last_id = request_id = self._last_id + 1
        if has_progress:
            params = with_meta(params, {"progressToken": request_id})
        line = encode(
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        outgoing = self.outgoing[request_id] = Outgoing(self, request_id, method)
        self.post(line, outgoing.leave)
        if self.why_ended:
            outgoing.end(self.why_ended)
        return outgoing

    def end(self, why: Error) -> None:
        """Fail what is open, on both sides; the streams stay as they are."""
        if self._ended.acquire(blocking=False):
            self.why_ended = why
            for outgoing in self.outgoing.copy().values():
                outgoing.end(why)
            for request in self.incoming.copy().values():
                request.cancel()
            self._writer_thread.close()
            self.on_end()

    # -- reading

    def read_one(self) -> bool:
        """Read a line and act on it; False: there are no more."""
        line = next(self._lines, None)
        if line is None or self.why_ended:
            self.on_end()
            return False
        if line and not line.isspace():
            try:
                self._show("<-", line)
                self._act(line)
            except Exception as error:  # ours: the session goes on
                log_exception("a message could not be handled", error)
        return True

    def _act(self, line: Line) -> None:
        try:
            message = decode(line, self._limit)
            if type(message) is not list:
                return self._take(line, message, None)
            if not message or not self.has_batches:
                raise McpError(INVALID_REQUEST, "An array is no message here")
        except McpError as error:
            request_id = id_at_head(line) if isinstance(error, Oversized) else None
            return self.on_refused(line, error, request_id, self.post)
        batch = Batch(self, len(message))
        for element in message:
            self._take(line, element, batch)

    def _take(self, line: Line, message: Any, batch: Batch | None) -> None:
        try:
            kind = kind_of(message)
        except McpError as error:
            request_id = valid_id(as_dict(message).get("id"))
            put = batch.collect if batch else self.post
            return self.on_refused(line, error, request_id, put)
        if kind == "request":
            return self._take_request(message, batch)
        if kind == "notification":
            self._take_notification(message)
        else:
            outgoing = self.outgoing.get(own_id(message.get("id")))
            if outgoing:
                outgoing.end(outcome_of(message))
            elif message.get("id") is None:
                self.noise.append(show(message.get("error")))
        if batch:
            batch.collect()

    def _take_request(self, message: Json, batch: Batch | None) -> None:
        params = {} if message.get("params") is None else message["params"]
        request = self.request_class(
            self, valid_id(message["id"]), message["method"], params, batch)
        try:
            if self.incoming.setdefault(request.id, request) is not request:
                raise McpError(INVALID_REQUEST, f"The id {show(request.id)} is in use")
            if type(params) is not dict:
                raise invalid_params("params must be an object")
            self.on_request(request)
        except Exception as error:  # also: no thread can be started
            request.fail(error)

    def _take_notification(self, message: Json) -> None:
        method = ALIASES.get(message["method"]) or message["method"]
        params = as_dict(message.get("params"))
        if method == "notifications/cancelled":
            request_id = params.get("requestId", params.get("id"))
            request = self.incoming.get(valid_id(request_id))
            if request:
                request.cancel()
        elif method == "notifications/progress":
            outgoing = self.outgoing.get(own_id(params.get("progressToken")))
            if outgoing and type(params.get("progress")) in (int, float):
                outgoing.events.put(
                    (params["progress"], params.get("total"), params.get("message")))
        else:
            self.on_notification(method, params)


# -- 5. JSON Schema --------------------------------------------------------------------
# Draft 2020-12, but for `$anchor` and what is REFUSED.  A check yields problems, twenty
# at most.  A model's arguments that do not fit are repaired by what the problems say:
# where another type was expected and a text stands, that is read as JSON.
# Patterns are Python's `re`, which cannot be stopped: so only the author's own schemas
# are applied, never one that came over the wire.


class Problem(NamedTuple):
    """What is wrong with a part of a value."""
    path: tuple[str | int, ...]
    issue: str
    types: tuple[str, ...] = ()  # that were expected, if it is that

    @property
    def field(self) -> str:
        steps = [f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.path]
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return f"{self.field}: {self.issue}" if self.path else self.issue

    def below(self, step: str | int) -> Problem:
        """The same, of what has the value as a member or an item."""
        return self._replace(path=(step, *self.path))


class BadValue(ValueError):
    """A value that does not fit."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems

    def as_invalid_params(self, what: str) -> McpError:
        first = self.problems[0]
        return invalid_params(f"{what}:\n{self}", first.field, first.issue)


def validate(value: Any, schema: Any) -> list[str]:
    """What keeps a JSON value from fitting a schema, at most 20 lines; SchemaError."""
    return list(map(str, Schema(schema).problems(value)))


MISSING: Any = type("Missing", (), {"__repr__": lambda self: "…"})()
OBJECT = {"type": "object"}
TYPES_OF = {str: ("string",), bool: ("boolean",), type(None): ("null",),
            list: ("array",), dict: ("object",), int: ("integer", "number"),
            float: ("number",)}
TYPE_NAMES = {name for names in TYPES_OF.values() for name in names}


def types_of(value: Any) -> tuple[str, ...]:
    """The types that JSON Schema gives a value; none: it is no JSON."""
    if isinstance(value, float) and value.is_integer():
        return TYPES_OF[int]
    kind = type(value)
    if kind not in TYPES_OF:  # a subclass, perhaps
        kind = next((base for base in TYPES_OF if isinstance(value, base)), kind)
    return TYPES_OF.get(kind, ())


def canonical(value: Any) -> Any:
    """Something that can be hashed, equal for values that are equal in JSON."""
    if isinstance(value, dict):
        return "object", frozenset(zip(value, map(canonical, value.values())))
    if isinstance(value, list):
        return "array", tuple(map(canonical, value))
    return isinstance(value, bool), value


def is_multiple(value: Any, step: Any) -> bool:
    """In decimal: 19.99 is a multiple of 0.01."""
    from fractions import Fraction
    return Fraction(repr(value)) % Fraction(repr(step)) == 0


# Keywords that compare a number, or the size of a value of this type, with another.
LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", operator.ge, "must be at least"),
    "maximum": ("number", operator.le, "must be at most"),
    "exclusiveMinimum": ("number", operator.gt, "must be over"),
    "exclusiveMaximum": ("number", operator.lt, "must be below"),
    "multipleOf": ("number", is_multiple, "must be a multiple of"),
    "minLength": ("string", operator.ge, "its length must be at least"),
    "maxLength": ("string", operator.le, "its length must be at most"),
    "minItems": ("array", operator.ge, "its items must be at least"),
    "maxItems": ("array", operator.le, "its items must be at most"),
    "minProperties": ("object", operator.ge, "its members must be at least"),
    "maxProperties": ("object", operator.le, "its members must be at most"),
}
# The keywords with schemas in them: one, a list, or an object of them.
ONE = {"additionalProperties", "propertyNames", "items", "not", "if", "then", "else"}
LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
MEMBERS = {"properties", "patternProperties", "$defs", "definitions"}
# Types of other arguments.
ARGUMENTS = dict.fromkeys(LIMITS, "integer")
ARGUMENTS.update(
    minimum="number", maximum="number", exclusiveMinimum="number", enum="array",
    exclusiveMaximum="number", multipleOf="number", pattern="string", required="array",
    uniqueItems="boolean")
REFUSED = {"$dynamicRef", "$recursiveRef", "unevaluatedProperties",
           "unevaluatedItems", "contains", "dependentSchemas", "dependentRequired"}


class Schema:
    """A JSON Schema, to check values with; SchemaError: it cannot be read."""

    def __init__(self, document: Any) -> None:
        # The Python types of what fits for sure, by the id of a schema that has nothing
        # but a type, as most parameters have.
        self.quick: dict[int, set[type]] = {}
        self.targets: Json = {}  # the schema that each `$ref` means
        try:
            self.document = json.loads(json.dumps(document))
            self._read(self.document)
        except SchemaError:
            raise
        except Exception as error:  # what is malformed fails somehow
            raise SchemaError(f"malformed schema: {text_of(error)}") from None

    def _read(self, node: Any) -> None:
        """Look at a schema and all in it."""
        if isinstance(node, bool):
            return
        types = node.get("type", [])
        if not TYPE_NAMES.issuperset(as_list(types)):
            raise SchemaError(f"type cannot be {show(types)}")
        if node.keys() <= {"type", "title", "description", "default"}:
            fitting = {kind for kind in TYPES_OF if types in TYPES_OF[kind]}
            self.quick[id(node)] = fitting
        for keyword, argument in node.items():
            if keyword in REFUSED or (keyword == "$id" and node is not self.document):
                raise SchemaError(f"{keyword} is not supported here")
            self._read_argument(keyword, argument)

    def _read_argument(self, keyword: str, argument: Any) -> None:
        needed = ARGUMENTS.get(keyword)
        if needed and needed not in types_of(argument):
            raise SchemaError(f"{keyword} must be {needed}: {show(argument)}")
        if keyword in ONE:
            self._read(argument)
        elif keyword in LIST:
            list(map(self._read, argument))
        elif keyword in MEMBERS:
            list(map(self._read, argument.values()))
        elif keyword == "$ref":
            self.targets[argument] = self._find(argument)
        elif keyword == "pattern":
            re.compile(argument)
        elif keyword == "required":
            "".join(argument)
        elif keyword == "multipleOf":
            is_multiple(1, argument)  # not by 0
        if keyword == "patternProperties":
            list(map(re.compile, argument))

    def _find(self, reference: str) -> Any:
        """What a `$ref` means: "#" or "#/a/pointer"."""
        from urllib.parse import unquote
        outer, _, pointer = reference.partition("#")
        first, *steps = unquote(pointer).split("/")
        found = self.document
        if first or outer not in ("", as_dict(found).get("$id")):
            raise SchemaError(f"$ref {show(reference)} leads out of the schema")
        for step in steps:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found

    def problems(self, value: Any) -> list[Problem]:
        found = Check(self, value).run(self.document, value)
        try:
            return list(islice(found, MAX_PROBLEMS))
        except OverflowError:
            return [Problem((), "takes too long to check")]
        except RecursionError:
            return [Problem((), "is too deep, or its schema refers to itself")]

    def fit(self, value: Json) -> Json:
        """The value, repaired if it does not fit; BadValue: it does not even then."""
        problems = self.problems(value)
        if problems:
            value = read_json(to_json(value))
            for problem in problems:
                with suppress(ValueError, LookupError, RecursionError):
                    repair(value, problem)
            problems = self.problems(value)
        if problems:
            raise BadValue(problems)
        return value


def repair(value: Any, problem: Problem) -> None:
    """Read a text as JSON, where another type was expected; leave out a null member."""
    *steps, last = problem.path
    for step in steps:
        value = value[step]
    text = value[last]
    if text is None and isinstance(value, dict):
        del value[last]
    elif isinstance(text, str) and text == text.strip():
        found = read_json(text)
        kinds = TYPES_OF[type(found)]  # "5.0" is no way to write an integer
        if set(kinds).intersection(problem.types):
            value[last] = found


class Check:
    """The check of one value; all but `run` yields problems of one kind."""

    APPLIED = {"enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "if",
               "pattern", "uniqueItems"}

    def __init__(self, schema: Schema, value: Any) -> None:
        self._schema, self._value = schema, value
        self._steps, self._is_large = 10_000, False  # steps that are left

    def run(self, node: Any, value: Any) -> Iterator[Problem]:
        """The problems of a value, or of a part of it, by a part of the schema."""
        self._steps -= 1
        if self._steps < 0:
            if self._is_large:
                raise OverflowError
            self._steps, self._is_large = 50 * len(repr(self._value)), True
        if node is False:
            yield Problem((), "is not allowed")
        if isinstance(node, bool):
            return
        kinds, types = types_of(value), node.get("type")
        if types and set(as_list(types)).isdisjoint(kinds):
            yield mistyped(tuple(as_list(types)), value)
            return
        for keyword, argument in node.items():
            if keyword in LIMITS:
                kind, test, words = LIMITS[keyword]
                if kind in kinds:
                    size = value if kind == "number" else len(value)
                    if not test(size, argument):
                        yield Problem((), f"{words} {argument}, got {show(value)}")
            elif keyword in self.APPLIED:
                yield from self._apply(keyword, argument, value, node)
        if isinstance(value, dict):
            yield from self._members(node, value)
        elif isinstance(value, list):
            yield from self._items(node, value)

    def _inside(self, step: str | int, node: Any, value: Any) -> Iterable[Problem]:
        """The problems of a member or an item."""
        fitting = self._schema.quick.get(id(node), ())
        if node is True or type(value) in fitting:
            return ()
        return (problem.below(step) for problem in self.run(node, value))

    def _fits(self, node: Any, value: Any) -> bool:
        return next(self.run(node, value), None) is None

    def _apply(self, keyword: str, argument: Any, value: Any,
               node: Json) -> Iterator[Problem]:
        if keyword in ("enum", "const"):
            if keyword == "const":
                argument = [argument]
            if canonical(value) not in map(canonical, argument):
                shown = ", ".join(map(show, argument[:20]))
                yield Problem((), f"must be one of {shown}; got {show(value)}")
        elif keyword == "$ref":
            yield from self.run(self._schema.targets[argument], value)
        elif keyword == "allOf":
            for part in argument:
                yield from self.run(part, value)
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(argument, value):
                yield Problem((), f"must match {argument}, got {show(value)}")
        elif keyword == "uniqueItems" and argument and isinstance(value, list):
            if len(set(map(canonical, value))) < len(value):
                yield Problem((), f"must not repeat an item, got {show(value)}")
        elif keyword == "not":
            if self._fits(argument, value):
                yield Problem((), "fits a schema that it must not fit")
        elif keyword == "if":
            branch = "then" if self._fits(argument, value) else "else"
            yield from self.run(node.get(branch, True), value)
        elif keyword in ("anyOf", "oneOf"):
            checks = [self.run(part, value) for part in argument]
            found = [list(islice(check, MAX_PROBLEMS)) for check in checks]
            fitting = found.count([])
            if not fitting:
                yield from nearest(found, value)
            elif fitting > 1 and keyword == "oneOf":
                yield Problem((), f"must fit one schema, but fits {fitting}")

    def _items(self, node: Json, value: list[Any]) -> Iterator[Problem]:
        rest = repeat(node.get("items", True))
        parts = chain(node.get("prefixItems", []), rest)
        for index, (item, part) in enumerate(zip(value, parts)):
            yield from self._inside(index, part, item)

    def _members(self, node: Json, value: Json) -> Iterator[Problem]:
        known = node.get("properties", {})
        patterns = node.get("patternProperties", {})
        rest = node.get("additionalProperties", True)
        for name, member in value.items():
            parts = [known[name]] if name in known else []
            if patterns:
                parts += [patterns[one] for one in patterns if re.search(one, name)]
            if rest is False and not parts:
                words = ", ".join(known) or "none"
                yield Problem((name,), f"is unknown; known are {words}")
                continue
            for part in parts or [rest]:
                yield from self._inside(name, part, member)
        if "propertyNames" in node:
            for name in value:
                for problem in self.run(node["propertyNames"], name):
                    yield Problem((name,), f"its name {problem.issue}")
        for name in node.get("required", ()):
            if name not in value:
                yield Problem((name,), "is missing")


def mistyped(types: tuple[str, ...], value: Any) -> Problem:
    return Problem((), f"must be {' or '.join(types)}, got {show(value)}", types)


def nearest(found: list[list[Problem]], value: Any) -> list[Problem]:
    """What to say when a value fits none of several schemas, with problems of each."""
    types: tuple[str, ...] = ()
    for problems in found:
        first = problems[0]
        if first.path or not first.types:
            return problems  # a schema for this type of value
        types += first.types
    return [mistyped(tuple(dict.fromkeys(types)), value)]


# -- 6. Content ------------------------------------------------------------------------
# What handlers return and calls give: dicts in the protocol's own form, whose fields
# are attributes, too.

FIELDS = frozenset(re.findall(r"\w+", """
_meta action annotations arguments audience blob capabilities clientInfo
completion completions content contents costPriority cursor data default description
destructiveHint elicitation elicitationId execution experimental extensions hasMore
hints icons id idempotentHint includeContext input inputSchema instructions
intelligencePriority isError lastModified level listChanged logger logging maxTokens
message messages metadata method mimeType mode model modelPreferences name nextCursor
openWorldHint outputSchema params priority prompts protocolVersion readOnlyHint
requestedSchema requestId required resource resources resourceTemplates role
roots sampling serverInfo size sizes speedPriority src stopReason stopSequences
structuredContent subscribe systemPrompt tasks temperature text theme
title toolChoice tools toolUseId total type uri uriTemplate url values version
websiteUrl
"""))
# Fields that hold data of users: what is in them is as it came.
OPAQUE = {"_meta", "data", "default", "input", "inputSchema", "metadata", "params",
          "outputSchema", "requestedSchema", "structuredContent"}


@cache
def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return "_meta" if name == "meta" else first + "".join(map(str.title, others))


class Wire(dict[str, Any]):
    """A JSON object of the protocol; `.mime_type` is its "mimeType", None if absent."""

    def __getattr__(self, name: str) -> Any:
        key = camel_case(name)
        value = self.get(key)
        if value is None and key not in FIELDS:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        if key not in OPAQUE and type(value) in (dict, list):
            value = self[key] = wired(value)
        return value

    @classmethod
    def of(cls, value: Json) -> Any:
        """An object of this class with these members."""
        found = cls.__new__(cls)
        found.update(value)
        return found


def wired(value: Any) -> Any:
    """The objects of a value, or of a list, as Wire."""
    if type(value) is dict:
        return Wire(value)
    return list(map(wired, value)) if type(value) is list else value


def fields(**values: Any) -> Json:
    """Fields in the spelling of the protocol, without those that are None."""
    found = {camel_case(name): values[name] for name in values}
    if not found.keys() <= FIELDS:
        unknown = ", ".join(sorted(found.keys() - FIELDS))
        raise TypeError(f"the protocol has no field {unknown}")
    return {name: value for name, value in found.items() if value is not None}


class Block(Wire):
    """A content block; further fields are annotations and meta."""

    def __init__(self, kind: str, **values: Any) -> None:
        super().__init__(fields(type=kind, **values))


class Text(Block):
    def __init__(self, text: str, **more: Any) -> None:
        super().__init__("text", text=text, **more)


class Image(Block):
    """An image: a file, or its bytes and their mime_type (default image/png)."""

    _kind, _subtypes = "image", {"": "png", ".jpg": "jpeg", ".svg": "svg+xml"}

    def __init__(self, path: Any = None, *, data: bytes | None = None,
                 mime_type: str | None = None, **more: Any) -> None:
        if data is None:
            with open(path, "rb") as file:
                data = file.read()
        suffix = os.path.splitext(path or "")[1].lower()
        kind = self._subtypes.get(suffix, suffix[1:])
        mime_type = mime_type or f"{self._kind}/{kind}"
        super().__init__(self._kind, data=to_base64(data), mime_type=mime_type, **more)


class Audio(Image):
    """Audio: a file, or its bytes and their mime_type (default audio/wav)."""

    _kind, _subtypes = "audio", {"": "wav", ".mp3": "mpeg", ".m4a": "mp4"}


class ResourceLink(Block):
    """A resource that the client may read; further fields are title, mime_type …"""

    def __init__(self, uri: str, name: str, **more: Any) -> None:
        super().__init__("resource_link", uri=uri, name=name, **more)


class ResourceContents(Wire):
    """The contents of a resource (uri: by default its own): text, or data (bytes)."""

    def __init__(self, uri: str | None = None, text: str | None = None, *,
                 data: bytes | None = None, **more: Any) -> None:
        if (text is None) == (data is None):
            raise TypeError("it needs either text or data")
        super().__init__(fields(uri=uri, text=text, **more))
        if data is not None:
            self["blob"] = to_base64(data)

    @property
    def data(self) -> bytes | None:
        return binascii.a2b_base64(self["blob"]) if "blob" in self else None


class EmbeddedResource(Block):
    """A resource with its contents; the arguments are those of ResourceContents."""

    def __init__(self, uri: str, text: str | None = None, **more: Any) -> None:
        contents = ResourceContents(uri, text, **more)
        super().__init__("resource", resource=contents)


class Message(Wire):
    """A message of a prompt, or to a model: role is "user" or "assistant"."""

    def __init__(self, role: str, content: Any) -> None:
        super().__init__(role=role, content=as_block(content))


def text_in(content: Any) -> str:
    """Of the text blocks, a line each."""
    blocks = as_list(content or [])
    texts = [str(one.get("text")) for one in blocks if one.get("type") == "text"]
    return "\n".join(texts)


class ToolResult(Wire):
    """What a tool gives: a handler may return one, `call_tool` does."""

    def __init__(self, content: Any = None, structured_content: Any = None, *,
                 is_error: bool = False, meta: Json | None = None) -> None:
        super().__init__(content=[], isError=is_error)
        if content is not None:
            self["content"] = list(map(as_block, as_list(content)))
        self.update(fields(structured_content=structured_content, meta=meta))

    @property
    def text(self) -> str:
        return text_in(self.content)

    @property
    def data(self) -> Any:
        """The structured content, unwrapped."""
        data = self.structured_content
        mark = as_dict(as_dict(self.meta).get("fastmcp"))
        if mark.get("wrap_result"):
            return as_dict(data).get("result", data)
        return data


class Elicited(NamedTuple):
    """What the user said, and the content of the form."""
    action: str        # "accept", "decline" or "cancel"
    content: Json | None = None
    data: Any = None   # the content, as the schema's own type

    def __bool__(self) -> bool:
        return self.action == "accept"


def to_base64(data: Any) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def as_block(value: Any) -> Wire:
    """A block as it is, a text, or data as JSON."""
    if isinstance(value, Wire) and "type" in value:  # ours, or what a client got
        return value
    return Text(value if isinstance(value, str) else json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


FORMATS = {  # the class of a value that is a text in JSON, and the text's format
    "datetime.datetime": "date-time", "datetime.date": "date", "datetime.time": "time",
    "uuid.UUID": "uuid", "decimal.Decimal": "decimal", "pathlib.PurePath": "",
}


@lru_cache
def format_of(kind: Any) -> str | None:
    """The format of a class, or of its base; nothing is imported for that."""
    for path, text_format in FORMATS.items():
        module, _, name = path.partition(".")
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and issubclass(kind, base):
            return text_format
    return None


def plain(value: Any) -> Any:
    """JSON data for what a handler returns; TypeError: it has no JSON form."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    names = field_names(kind)
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, abc.Mapping):
        members = {plain(key): plain(part) for key, part in value.items()}
        if not all(isinstance(key, str) for key in members):
            raise TypeError(f"the keys of a JSON object are texts: {show([*members])}")
        return members
    if isinstance(value, abc.Set):  # its order would change each time
        return sorted(map(plain, value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    return plain_text(value)


def plain_text(value: Any) -> Any:
    """Of what is a text in JSON, or of a class that is based on one of its types."""
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    if isinstance(value, (bytes, bytearray)):
        return to_base64(value)
    kind = type(value)
    if format_of(kind) is None:  # type: ignore[arg-type]
        raise TypeError(f"a value of type {kind.__name__} has no JSON form")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def field_names(kind: Any) -> Iterable[str] | None:
    """Of a dataclass or NamedTuple (without ClassVar and InitVar); else None."""
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses
        return [field.name for field in dataclasses.fields(kind)]
    return getattr(kind, "_fields", None)


# -- 7. Signatures ---------------------------------------------------------------------
# The hints of a function become the JSON Schema of its arguments, and what makes Python
# objects of them.  Each hint is read once, when the function is registered; what has no
# schema is a TypeError then, which names the parameter.


class Shape(NamedTuple):
    """What a hint means: a JSON Schema, and what makes its object of a JSON value."""
    schema: Json
    make: Handler = None  # None: the value is it


class Field:
    """Describes a parameter: `x: Annotated[int, Field(ge=1)]`, or `x: int = Field(3)`.

    description, title, examples, pattern; ge, gt, le, lt, multiple_of: of numbers;
    min_length, max_length: of texts, lists and dicts; json_schema: merged as it is.
    """

    KEYWORDS = {"description": "description", "title": "title", "examples": "examples",
                "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum",
                "lt": "exclusiveMaximum", "multiple_of": "multipleOf",
                "pattern": "pattern", "min_length": "min", "max_length": "max"}
    LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}

    def __init__(self, default: Any = MISSING, *, json_schema: Json | None = None,
                 **keywords: Any) -> None:
        unknown = keywords.keys() - self.KEYWORDS
        if unknown:
            words = ", ".join(self.KEYWORDS)
            raise TypeError(f"Field has no {', '.join(unknown)}; it has {words}")
        self.default, self._more = default, json_schema or {}
        self._schema = {self.KEYWORDS[name]: keywords[name] for name in keywords}

    def applied(self, schema: Json) -> Json:
        found = dict(schema)
        for keyword, value in self._schema.items():
            if keyword in ("min", "max"):
                if schema.get("type") not in self.LENGTHS:
                    raise TypeError("lengths are of a text, a list or a dict")
                keyword += self.LENGTHS[schema["type"]]
            found[keyword] = value
        return {**found, **self._more}


ANY = Shape({})
STRING = Shape({"type": "string"})
PLAIN_HINTS: dict[Any, Shape] = {
    str: STRING, bool: Shape({"type": "boolean"}), type(None): Shape({"type": "null"}),
    int: Shape({"type": "integer"}, int), float: Shape({"type": "number"}, float),
    Any: ANY, object: ANY,
}
# What a list of JSON becomes, for a class or the abstract base of one.
ARRAYS: dict[Any, Any] = {
    list: None, tuple: tuple, set: set, frozenset: frozenset, abc.Sequence: None,
    abc.MutableSequence: None, abc.Iterable: None, abc.Collection: None, abc.Set: set,
    abc.MutableSet: set}
OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
UNIONS = (Union, getattr(types, "UnionType", Union))


class Reading(NamedTuple):
    """Where a hint stands: in the classes `above`, and of a result, or of arguments."""
    is_output: bool = False
    above: tuple[Any, ...] = ()


def read_hint(hint: Any, reading: Reading) -> Shape:
    """The Shape of a hint; TypeError: it has none."""
    if hasattr(hint, "__metadata__"):
        return described(read_hint(hint.__origin__, reading), hint.__metadata__)
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Literal:
        return choice_shape({value: value for value in arguments})
    if kind in PLAIN_HINTS:
        return PLAIN_HINTS[kind]
    if kind in UNIONS:
        return union_shape([read_hint(part, reading) for part in arguments])
    if kind is tuple and arguments and arguments[-1] is not ...:
        return tuple_shape([read_hint(part, reading) for part in arguments])
    if kind in ARRAYS:
        items = [read_hint(part, reading) for part in arguments[:1]]
        return array_shape(ARRAYS[kind], *items)
    if kind in OBJECTS:
        return dict_shape(*[read_hint(part, reading) for part in arguments])
    if isinstance(kind, type):
        return class_shape(kind, reading)
    raise TypeError(f"the hint {hint!r} has no JSON Schema")


def class_shape(kind: Any, reading: Reading) -> Shape:
    if issubclass(kind, enum.Enum):
        return choice_shape({plain(member.value): member for member in kind})
    if issubclass(kind, bytes):
        return Shape({**STRING.schema, "contentEncoding": "base64"}, read_base64)
    if kind in reading.above:
        raise TypeError(f"{kind.__name__} contains itself")
    parts = parts_of_class(kind, reading.is_output)
    if parts is not None:
        inner = reading._replace(above=(*reading.above, kind))
        members = Members(parts, inner)
        return Shape(members.schema, lambda values: kind(**members.make(values)))
    text_format = format_of(kind)
    if text_format is None:
        raise TypeError(f"the class {kind.__name__} has no JSON Schema")
    schema: Json = dict(STRING.schema)
    if text_format:
        schema["format"] = text_format
    if text_format == "decimal":
        schema["type"] = ["string", "number"]
    return Shape(schema, partial(read_text, kind))


def read_text(kind: Any, value: Any) -> Any:
    if hasattr(kind, "fromisoformat"):
        return kind.fromisoformat(re.sub("[zZ]$", "+00:00", value))  # for Python 3.10
    return kind(str(value))


def read_base64(text: str) -> bytes:
    import base64
    return base64.b64decode(text, validate=True)


def choice_shape(choices: dict[Any, Any]) -> Shape:
    """One of these values; each stands for an object."""
    kinds = {types_of(value)[:1] for value in choices}
    if not kinds or () in kinds:
        raise TypeError("choices must be str, int, float, bool or None")
    schema: Json = {"enum": list(choices)}
    if len(kinds) == 1:
        schema["type"] = kinds.pop()[0]
    by_key = {canonical(value): choice for value, choice in choices.items()}
    return Shape(schema, lambda value: by_key[canonical(value)])


def union_shape(shapes: list[Shape]) -> Shape:
    checks = [(Schema(shape.schema), shape.make) for shape in shapes]

    def make(value: Any) -> Any:
        """The first part decides that fits, and that can be made."""
        error: Exception = ValueError("it fits none of the alternatives")
        for check, make_part in checks:
            if not check.problems(value):
                try:
                    return make_part(value) if make_part else value
                except CANNOT_MAKE as failed:
                    error = failed
        raise error

    return Shape({"anyOf": [shape.schema for shape in shapes]}, make)


def array_shape(collect: Any, item: Shape = ANY) -> Shape:
    schema: Json = {"type": "array", "items": item.schema}
    if collect in (set, frozenset):
        schema["uniqueItems"] = True
    if item.make:
        collect = partial(make_items, collect or list, repeat(item.make))
    return Shape(schema, collect)


def tuple_shape(items: list[Shape]) -> Shape:
    schemas = [shape.schema for shape in items]
    # VS Code refuses an array without `items`, so there is one beside `prefixItems`.
    size = len(items)
    rest = schemas[0] if schemas.count(schemas[0]) == size else {"anyOf": schemas}
    schema = {"type": "array", "prefixItems": schemas, "items": rest,
              "minItems": size, "maxItems": size}
    makers = [shape.make for shape in items]
    return Shape(schema, partial(make_items, tuple, makers))


def dict_shape(key: Shape = STRING, value: Shape = ANY) -> Shape:
    if key != STRING:
        raise TypeError("the keys of a JSON object are texts")

    def make(members: Json) -> Json:
        return {name: made(name, value.make, members[name]) for name in members}

    schema = {**OBJECT, "additionalProperties": value.schema or True}
    return Shape(schema, make)


CANNOT_MAKE = (ValueError, TypeError, ArithmeticError, LookupError)


def made(step: int | str, make: Handler, value: Any) -> Any:
    """What is made of a part of a value; BadValue, with its path: it cannot be made."""
    try:
        return make(value) if make else value
    except BadValue as error:
        problems = [problem.below(step) for problem in error.problems]
        raise BadValue(problems) from None
    except CANNOT_MAKE as error:
        raise BadValue([Problem((step,), text_of(error))]) from error


def make_items(collect: Any, makers: Iterable[Handler], values: list[Any]) -> Any:
    return collect(map(made, count(), makers, values))


def described(shape: Shape, metadata: Iterable[Any]) -> Shape:
    """A Shape with what Annotated says: a description, a Field, or part of a schema."""
    schema = shape.schema
    for item in metadata:
        if isinstance(item, Field):
            schema = item.applied(schema)
        elif isinstance(item, str):
            schema = {**schema, "description": item}
        elif isinstance(item, dict):
            schema = {**schema, **item}
    return shape._replace(schema=schema)


class Part(NamedTuple):
    """A parameter of a function, or a field of a class."""
    name: str
    hint: Any
    default: Any
    is_required: bool


def part_of(name: str, hint: Any, default: Any = MISSING) -> Part:
    if isinstance(default, Field):
        described_hint = (hint, default)
        hint, default = typing.Annotated[described_hint], default.default
    return Part(name, hint, default, default is MISSING)


def parts_of_class(kind: Any, is_output: bool) -> list[Part] | None:
    """The fields of a dataclass, TypedDict or NamedTuple; None: it is none of these."""
    hints = hints_of(kind)
    if hasattr(kind, "__required_keys__"):
        return [part_of_dict(kind, name, hints[name]) for name in hints]
    if hasattr(kind, "_field_defaults"):
        defaults = kind._field_defaults
        return [part_of(name, hints.get(name, Any), defaults.get(name, MISSING))
                for name in kind._fields]
    if not hasattr(kind, "__dataclass_fields__"):
        return None
    import dataclasses
    none, parts = dataclasses.MISSING, []
    for field in dataclasses.fields(kind):
        part = part_of(field.name, hints[field.name], field.default)
        if field.default is none:
            is_given = is_output or field.default_factory is none
            part = part._replace(default=MISSING, is_required=is_given)
        if field.init or is_output:
            parts.append(part)
    return parts


def part_of_dict(kind: Any, name: str, hint: Any) -> Part:
    # Under `from __future__ import annotations` only the hint tells.
    mark = getattr(typing.get_origin(hint), "_name", "")
    if mark in ("Required", "NotRequired"):
        return Part(name, hint.__args__[0], MISSING, mark == "Required")
    return Part(name, hint, MISSING, name in kind.__required_keys__)


class Members:
    """The schema of an object with these members, and what makes their objects."""

    def __init__(self, parts: Iterable[Part], reading: Reading) -> None:
        properties: Json = {}
        self._makers: list[tuple[str, Callable[[Any], Any]]] = []
        self._defaults: Json = {}
        required = []
        for part in parts:
            try:
                shape = part_shape(part, reading)
            except TypeError as error:
                raise TypeError(f"{part.name}: {error}") from None
            properties[part.name] = shape.schema
            if shape.make:
                self._makers.append((part.name, shape.make))
            if part.default is not MISSING:
                self._defaults[part.name] = part.default
            if part.is_required or (reading.is_output and part.name in self._defaults):
                required.append(part.name)
        self.schema: Json = {**OBJECT, "properties": properties}
        if required:
            self.schema["required"] = required
        self.schema["additionalProperties"] = False

    def make(self, values: Json) -> Json:
        found = {**self._defaults, **values}
        for name, make in self._makers:
            if name in values:
                found[name] = made(name, make, values[name])
        return found


def part_shape(part: Part, reading: Reading) -> Shape:
    """The Shape of a part.  `X | None = None` reads as X, and null means absent."""
    hint = part.hint
    if part.default is None:
        hint = Optional[hint] if reading.is_output else without_none(hint)
    shape = read_hint(hint, reading)
    if part.default in (None, MISSING) or reading.is_output:
        return shape
    schema = {**shape.schema, "default": plain(part.default)}
    try:
        encode(schema)
    except ValueError as error:
        raise TypeError(f"the default {part.default!r}: {error}") from None
    return shape._replace(schema=schema)


def without_none(hint: Any) -> Any:
    """X for Optional[X], also inside Annotated."""
    if hasattr(hint, "__metadata__"):
        inner = (without_none(hint.__origin__), *hint.__metadata__)
        return typing.Annotated[inner]
    if typing.get_origin(hint) not in UNIONS:
        return hint
    parts = [without_none(part) for part in hint.__args__ if part is not type(None)]
    return Union[tuple(parts)]


def hints_of(what: Any) -> Json:
    """The type hints of a function or class."""
    try:
        return typing.get_type_hints(what, include_extras=True)
    except (NameError, AttributeError, SyntaxError) as error:
        raise TypeError(f"a hint cannot be read: {error}") from None


def function_in(fn: Any) -> tuple[Any, int, set[str]]:
    """The function behind what can be called; how many, and which, arguments it has."""
    skipped = 0
    given: set[str] = set()
    while not isinstance(fn, types.FunctionType) or hasattr(fn, "__wrapped__"):
        if isinstance(fn, partial):
            skipped += len(fn.args)
            given |= fn.keywords.keys()
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif isinstance(fn, types.MethodType):
            skipped, fn = skipped + 1, fn.__func__
        elif callable(fn) and isinstance(fn.__call__, types.MethodType):
            fn = fn.__call__
        else:
            raise TypeError(f"{fn!r} is no function (name=… names one)")
    return fn, skipped, given


CO_VARARGS, CO_VARKEYWORDS, CO_ASYNC = 4, 8, 0x280  # as `inspect` has it, which is slow


class Function:
    """A function of the user; with a given schema, arguments are passed as they are."""

    def __init__(self, fn: Any, schema: Json | None = None) -> None:
        function, skipped, given = function_in(fn)
        self.fn, self.name, code = fn, function.__name__, function.__code__
        text = function.__doc__ or ""
        margin = min(re.findall(r"\n([ \t]*)\S", text), key=len, default="")
        self.description = text.replace(f"\n{margin}", "\n").strip() or None
        if getattr(fn, "__code__", code).co_flags & CO_ASYNC:
            raise TypeError("async def: call asyncio.run(…) in a def")
        if code.co_posonlyargcount or code.co_flags & CO_VARARGS:
            raise TypeError("arguments go by name: no *args, no parameters before /")
        if schema is None and code.co_flags & CO_VARKEYWORDS:
            raise TypeError("**arguments need an input_schema")
        hints = hints_of(function)
        self.result_hint = hints.get("return", Any)
        self._context_names = [
            name for name, hint in hints.items() if hasattr(hint, "is_context")]
        positional = reversed(code.co_varnames[:code.co_argcount])
        defaults = dict(zip(positional, reversed(function.__defaults__ or ())))
        defaults.update(function.__kwdefaults__ or {})
        names = code.co_varnames[skipped:code.co_argcount + code.co_kwonlyargcount]
        given.update(self._context_names)
        self.parts = [part_of(name, hints.get(name, Any), defaults.get(name, MISSING))
                      for name in names if name not in given]
        self._members = Members((), Reading())
        if schema is None:
            self._members = Members(self.parts, Reading())
            schema = self._members.schema
        self.schema, self._check = schema, Schema(schema)

    def bind(self, arguments: Json, context: Any) -> Job:
        """The call with these arguments; BadValue: they do not fit."""
        values = self._members.make(self._check.fit(arguments))
        for name in self._context_names:
            values[name] = context
        return partial(self.fn, **values)

    def bind_in_order(self, values: list[Any], context: Any) -> Job:
        """The call with these values for its first parameters, as many as it has."""
        names = [part.name for part in self.parts]
        contexts = dict.fromkeys(self._context_names, context)
        return partial(self.fn, **dict(zip(names, values)), **contexts)


def normal_uri(uri: str, also_safe: str = "") -> str:
    """A URI as it is compared: the clients' libraries spell it in their own ways.

    The scheme in lower case; percent-encoded, but for what needs no encoding.
    """
    from urllib.parse import quote
    scheme, colon, rest = uri.partition(":")
    if scheme.lower() in ("http", "https") and re.fullmatch("//[^/?#]+", rest):
        rest += "/"

    def decoded(found: re.Match[str]) -> str:
        char = chr(int(found[1], 16))
        return char if re.match(r"[A-Za-z0-9._~-]", char) else found[0].upper()

    rest = quote(rest, safe="!#$%&'()*+,/:;=?@[]~" + also_safe)
    return scheme.lower() + colon + re.sub("%([0-9A-Fa-f]{2})", decoded, rest)


class Template:
    """A URI template: {x}, {+x} or {x*} (with slashes), {?x,y} at the end.

    A value has no `..` between slashes and begins with none: a model may have made it.
    """

    PARTS = re.compile(r"\{(\+?)([A-Za-z_]\w*)(\*?)\}"
                       r"|\{\?([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)\}$|[^{}]+")
    UNSAFE = re.compile(r"[/\\]|[A-Za-z]:[/\\]|(.*[/\\])?\.\.([/\\]|$)", re.DOTALL)

    def __init__(self, text: str) -> None:
        self._path_names: list[str] = []
        self._query_names: list[str] = []
        self._pattern = ""
        if self.PARTS.sub(self._take, normal_uri(text, "{}")):
            raise ValueError(f"{text} is no template of this kind")
        self.names = self._path_names + self._query_names

    def _take(self, part: re.Match[str]) -> str:
        plus, name, star, query_names = part.groups()
        if name:
            self._path_names.append(name)
            self._pattern += "(.+)" if plus or star else "([^/?#]+)"
        elif query_names:
            self._query_names = query_names.split(",")
            self._pattern += r"(?:\?([^#]*))?"
        else:
            self._pattern += re.escape(part[0])
        return ""

    def match(self, normal: str) -> dict[str, str] | None:
        """The values in a URI in its normal form; None: it is another."""
        from urllib.parse import parse_qsl, unquote
        found = re.fullmatch(self._pattern, normal)
        if not found:
            return None
        groups = found.groups("")
        values = dict(zip(self._path_names, map(unquote, groups)))
        if self._query_names:
            for name, value in parse_qsl(groups[-1], keep_blank_values=True):
                if name in self._query_names:
                    values[name] = value
        return None if any(map(self.UNSAFE.match, values.values())) else values


# -- 8. Eras ---------------------------------------------------------------------------
# What was agreed in the handshake, how the client is asked, and what it wants to hear.


class Serving(Incoming):
    """A request of a client, or a notification: what its contexts share."""

    connection: ServerSession
    era: Legacy

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.meta = as_dict(as_dict(self.params).get("_meta"))
        self.token = valid_id(self.meta.get("progressToken"))


LIST_CHANGED = {kind: f"notifications/{kind}/list_changed"
                for kind in ("tools", "prompts", "resources")}


class Legacy:
    """A session with a handshake."""

    def __init__(self) -> None:
        self.date = ""  # the revision, once there was `initialize`
        self.client_info: Json = {}
        self.client_capabilities: Json = {}
        self.log_level = "info"
        # What it is told of: LIST_CHANGED, and resources by their URI in normal form.
        self.topics: set[str] = set()

    def initialize(self, params: Json) -> None:
        asked = require(params, "protocolVersion", str)
        self.client_capabilities = require(params, "capabilities", dict, {})
        self.client_info = require(params, "clientInfo", dict, {})
        self.date = asked if asked in LEGACY else LEGACY[-1]
        self.topics.update(LIST_CHANGED.values())

    def ask(self, request: Serving, questions: Json, timeout: Seconds) -> Json:
        """The client's answers to these requests, by their keys."""
        sent: dict[str, Outgoing] = {}

        def withdraw() -> None:
            for outgoing in sent.copy().values():
                outgoing.cancel(Cancelled(), "the request was cancelled")

        request.on_cancel(withdraw)
        try:
            for key, question in questions.items():
                params = question["params"]
                if params.get("mode") == "url":
                    params = {**params, "elicitationId": os.urandom(8).hex()}
                sent[key] = request.connection.request(question["method"], params)
            if request.cancelled or request.connection.has_input_ended:
                raise Cancelled  # nobody will answer
            return {key: outgoing.wait(timeout) for key, outgoing in sent.items()}
        finally:
            request.forget(withdraw)
            withdraw()  # those that were not waited for


# -- 9. Context ------------------------------------------------------------------------
# What a handler can do with the request that it serves.


class Context:
    """A parameter with this hint gets one.  Once the request is cancelled, or the
    client has hung up, all methods raise Cancelled, which should be let pass.
    """

    is_context = True

    def __init__(self, request: Serving) -> None:
        self._request, self._session = request, request.connection
        self.request_id, self.meta = request.id, request.meta
        self.client_info = Wire(request.era.client_info)
        self.client_capabilities = Wire(request.era.client_capabilities)
        self.protocol_version = request.era.date
        self.server: Server = self._session.server
        self.lifespan_context = self._session.lifespan_context  # what lifespan yielded

    @property
    def cancelled(self) -> bool:
        return self._request.cancelled

    def check_cancelled(self) -> None:
        if self._request.cancelled:
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep, but only until the request is cancelled."""
        self._request.wait(seconds)
        self.check_cancelled()

    def notify(self, method: str, params: Json | None = None) -> Any:
        """Send a notification, unless the request was answered."""
        self.check_cancelled()
        self._request.notify(method, params or {})

    def report_progress(self, progress: float, total: float | None = None,
                        message: str | None = None) -> Any:
        """Tell a client that asked for it; progress must increase each time."""
        self.check_cancelled()
        if self._request.token is not None:
            self._request.report_progress({
                "progressToken": self._request.token, "progress": progress,
                **fields(total=total, message=message)})

    def track(self, items: Iterable[Any], total: float | None = None) -> Iterator[Any]:
        """Yield the items, and report progress after each."""
        if total is None and isinstance(items, abc.Sized):
            total = len(items)
        for done, item in enumerate(items, 1):
            self.check_cancelled()
            yield item
            self.report_progress(done, total)

    def log(self, level: str, data: Any, logger_name: str | None = None) -> Any:
        """Send a log message: any JSON, with a level from "debug" to "emergency"."""
        self.check_cancelled()
        if LEVELS.index(level) >= LEVELS.index(self._request.era.log_level):
            params = fields(level=level, logger=logger_name)
            params["data"] = plain(data)
            self._request.notify("notifications/message", params)

    debug, info, notice, warning, error, critical, alert, emergency = map(
        partial(partialmethod, log), LEVELS)

    def elicit(self, message: str, schema: Any, key: str = "",
               timeout: Seconds = 600) -> Elicited:
        """Ask the user to fill in a form.

        schema: bool, int, float, str, a list of texts (a choice), a dataclass or
        TypedDict of these, or a JSON Schema.  timeout: seconds.
        McpError: the client cannot do that, or its answer does not fit.
        """
        make = None
        if isinstance(schema, list):
            schema = {"type": "string", "enum": schema}
        elif not isinstance(schema, dict):
            schema, make = read_hint(schema, Reading())
        is_value = schema.get("type") != "object" and "properties" not in schema
        if is_value:
            schema = {**OBJECT, "properties": {"value": schema}, "required": ["value"]}
        form = {**schema, **OBJECT}
        form.pop("additionalProperties", None)  # a form cannot say that
        answer = self._ask_one("elicitation/create", key, timeout,
                               message=message, requestedSchema=form)
        if answer["action"] != "accept":
            return Elicited(answer["action"])
        content = data = answer.get("content") or {}
        if is_value:
            data = content["value"]
        try:
            return Elicited("accept", content, made("content", make, data))
        except BadValue as error:
            raise error.as_invalid_params(MISFIT) from None

    def elicit_url(self, message: str, url: str, key: str = "",
                   timeout: Seconds = 600) -> Elicited:
        """Ask the user to visit a URL; "accept" says only that he wants to."""
        answer = self._ask_one("elicitation/create", key, timeout,
                               mode="url", message=message, url=url)
        return Elicited(answer["action"])

    def sample(self, messages: Any, *, max_tokens: int = 512, key: str = "",
               timeout: Seconds = 600, **params: Any) -> Sampled:
        """Ask the client's model: a text, a Message, or a list of these.

        params: system_prompt, temperature, stop_sequences, model_preferences …
        """
        params = fields(messages=messages_of(messages), max_tokens=max_tokens, **params)
        return Sampled(self._ask_one("sampling/createMessage", key, timeout, **params))

    def list_roots(self, key: str = "", timeout: Seconds = 600) -> list[Wire]:
        """The folders that the client lets servers work in: uri, name."""
        return list(map(Wire, self._ask_one("roots/list", key, timeout)["roots"]))

    def _ask_one(self, method: str, key: str, timeout: Seconds, **params: Any) -> Json:
        question = {"method": method, "params": params}
        return self.ask({key: question}, timeout)[key]  # type: ignore[no-any-return]

    def ask(self, questions: Json, timeout: Seconds = 600) -> Json:
        """Ask several questions at once: {key: {"method": …, "params": …}}.

        The answers, by the same keys.
        """
        self.check_cancelled()
        era = self._request.era
        for question in questions.values():
            check_declared(era, question)
        answers = era.ask(self._request, questions, timeout)
        for key, question in questions.items():
            check_answer(question, answers[key])
        return answers

    def ping(self, timeout: Seconds = 60) -> None:
        """Ask the client for a sign of life (up to 2025-11-25)."""
        self.check_cancelled()
        ping = {"method": "ping", "params": {}}
        self._session.legacy.ask(self._request, {"": ping}, timeout)

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """The contents of a resource of this server."""
        self.check_cancelled()
        contents = self._session.contents(uri, self._request, lambda call, _: call())
        return list(map(ResourceContents.of, contents))


class Sampled(Wire):
    """The model's answer: role, content, model, stop_reason; text of its blocks."""

    @property
    def text(self) -> str:
        return text_in(self["content"])


def messages_of(messages: Any) -> list[Any]:
    return [one if isinstance(one, dict) and "role" in one else Message("user", one)
            for one in as_list(messages)]


def check_declared(era: Legacy, question: Json) -> None:
    """McpError: the client does not declare what it is asked for."""
    capability, params = QUESTIONS[question["method"]], question["params"]
    member = "tools" if params.get("tools") is not None else ""
    if capability == "elicitation":
        member = params.get("mode", "form")
        if member == "form" and era.client_capabilities.get(capability) == {}:
            return  # as it was declared before there were URLs
    name = f"{capability}.{member}" if member else capability
    if not declares(era.client_capabilities, name):
        raise McpError(INVALID_REQUEST, f"The client does not declare {name}")


ANSWERS: Json = {  # what an answer has, and of which type
    "elicitation/create": {"action": {"enum": ["accept", "decline", "cancel"]}},
    "sampling/createMessage": {"role": {"type": "string"},
                               "content": {"type": ["object", "array"]}},
    "roots/list": {"roots": {"type": "array", "items": {
        **OBJECT, "required": ["uri"], "properties": {"uri": {"type": "string"}}}}},
}
MISFIT = "The client's answer does not fit"


def check_answer(question: Json, answer: Any) -> None:
    """McpError: the client's answer does not fit the question."""
    members = ANSWERS[question["method"]]
    schema = {**OBJECT, "properties": members, "required": list(members)}
    problems = Schema(schema).problems(answer)
    form = question["params"].get("requestedSchema")
    if form and not problems and answer["action"] == "accept":
        problems = Schema({**form, **OBJECT}).problems(answer.get("content") or {})
    if problems:
        raise BadValue(problems).as_invalid_params(MISFIT)


# -- 10. stdin and stdout --------------------------------------------------------------
# A stray print, a C library or a child that writes to fd 1 would spoil the wire, and a
# child that reads fd 0 would eat it.  So a server reads and writes private duplicates;
# meanwhile 0 leads to the null device and 1 to stderr.  They are unbuffered: a thread
# inside sys.stdin at exit would abort the interpreter.


@contextmanager
def stop_at_signals() -> Iterator[None]:
    """While a server runs, SIGTERM ends it with status 143, Ctrl-C with 130."""
    import signal
    def stop(number: int, frame: object) -> None:
        raise Stopped(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):  # not a host's
                before[number] = handler
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_file(stream: Any) -> bool:
    """Does its end mean that all was asked, rather than that nobody listens?"""
    import stat
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # without a descriptor: a BytesIO
        return hasattr(stream, "getvalue")


stdio_is_taken = threading.Lock()


@contextmanager
def stdio_server() -> Iterator[tuple[Any, Any]]:
    """Take stdin and stdout: `with stdio_server() as (reader, writer):`.

    What is printed goes to stderr until the end.  Enter it before you import a module
    that prints, then call `server.serve(reader, writer)`.
    RuntimeError: this process serves there already.  OSError: one of them is closed.
    """
    if not stdio_is_taken.acquire(blocking=False):
        raise RuntimeError("stdin and stdout are served already: put server.run() in "
                           "`if __name__ == '__main__':`")
    try:
        # If fd 2 is closed, this is it: no duplicate below may become stderr.
        null = os.open(os.devnull, os.O_RDWR)
        stdin, stdout = os.dup(0), os.dup(1)
        # The reader is never closed: a thread may be inside.
        reader = open(os.dup(0), "rb", buffering=0, closefd=False)  # noqa: SIM115
        writer = open(stdout, "wb", buffering=0, closefd=False)  # noqa: SIM115
        os.dup2(null, 0)
        os.dup2(2, 1)
        flush_stdout()  # what was printed before goes to stderr, too
        try:
            yield reader, writer
        finally:
            flush_stdout()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            for fd in {null, stdin, stdout} - {2}:
                os.close(fd)
    finally:
        stdio_is_taken.release()


def flush_stdout() -> None:
    with suppress(AttributeError, OSError, ValueError):  # there is none, or closed
        sys.stdout.flush()


# -- 11. Server ------------------------------------------------------------------------
# What is registered; and a session with one client: the methods of the protocol.


class Entry(Function):
    """A registered function with its entry in a list."""

    list_key = changes = ""  # the list it is in, and whose changes are told
    capability = {"listChanged": True}
    options = {"title", "description", "annotations", "icons", "meta"}

    def __init__(self, fn: Any, name: str | None = None, schema: Json | None = None,
                 **options: Any) -> None:
        super().__init__(fn, schema)
        self.key = name or self.name
        unknown = sorted(options.keys() - self.options)
        if unknown:
            raise TypeError(f"there is no option {', '.join(unknown)}")
        self.definition = fields(
            name=self.key, **{"description": self.description, **options})


class Tool(Entry):
    list_key = changes = "tools"

    def __init__(self, fn: Any, input_schema: Json | None = None,
                 output_schema: Json | None = None, **options: Any) -> None:
        super().__init__(fn, schema=input_schema, **options)
        if not re.fullmatch(r"[\w.-]{1,128}", self.key, re.ASCII):
            raise ValueError(f"hosts refuse the name {self.key!r}")
        if output_schema is None and self._has_data():
            output_schema = read_hint(self.result_hint, Reading(is_output=True)).schema
        self._output: Schema | None = None
        self._is_wrapped = False
        if output_schema is not None:
            self._output = Schema(output_schema)
            self._is_wrapped = output_schema.get("type") != "object"
        if self._is_wrapped:  # other data than objects goes into one
            output_schema = {**OBJECT, "properties": {"result": output_schema},
                             "required": ["result"], "x-fastmcp-wrap-result": True}
        self.definition.update(
            fields(input_schema=self.schema, output_schema=output_schema))

    def _has_data(self) -> bool:
        """Does the return hint say more than text, blocks, or anything?"""
        hint = self.result_hint
        if hint in (str, Any, None, type(None), object, list):
            return False
        return not any(isinstance(part, type) and issubclass(part, Wire)
                       for part in (hint, *typing.get_args(hint)))

    def result(self, value: Any) -> Json:
        """The result for what the handler returned; BadValue: not as it declares."""
        blocks = as_list(value)
        if any(isinstance(block, Wire) and "type" in block for block in blocks):
            value = ToolResult(blocks)
        elif self._output is None and (value is None or isinstance(value, str)):
            value = ToolResult(value)
        elif not isinstance(value, ToolResult):
            text = value if type(value) is str else json_text(value)
            value = ToolResult(text, plain(value))
        if value.get("isError"):
            return value  # type: ignore[no-any-return]
        data = value.get("structuredContent")
        problems = self._output.problems(data) if self._output else []
        if problems:
            raise BadValue(problems)
        if self._is_wrapped or not isinstance(data, (dict, type(None))):
            # FastMCP's clients unwrap what has this mark.
            mark = {"fastmcp": {"wrap_result": True}}
            value = with_meta({**value, "structuredContent": {"result": data}}, mark)
        return value  # type: ignore[no-any-return]


def list_of(uri: str) -> str:
    return "resourceTemplates" if "{" in uri else "resources"


class Resource(Entry):
    """A resource, or a template of resources."""

    changes = "resources"
    capability = {"listChanged": True, "subscribe": True}
    options = Entry.options | {"mime_type", "size"}

    def __init__(self, fn: Any, uri: str, **options: Any) -> None:
        super().__init__(fn, **options)
        self.key, self.list_key = normal_uri(uri, "{}"), list_of(uri)
        self.template = Template(uri)  # also of a plain URI: then without names
        self.definition["uriTemplate" if "{" in uri else "uri"] = uri
        given, names = set(self.template.names), {part.name for part in self.parts}
        needed = {part.name for part in self.parts if part.is_required}
        if not needed <= given <= names:
            raise TypeError(f"{uri} has {sorted(given)}, its function {sorted(names)}")

    def contents(self, value: Any, uri: str) -> list[Json]:
        """The contents for what the handler returned."""
        parts = as_list(value)
        if not any(isinstance(part, ResourceContents) for part in parts):
            parts = [value]
        return [{"uri": uri, **self._contents(part)} for part in parts]

    def _contents(self, value: Any) -> Json:
        if isinstance(value, ResourceContents):
            return value
        kind = "text/plain"
        if isinstance(value, (bytes, bytearray)):
            kind, found = "application/octet-stream", {"blob": to_base64(value)}
        elif isinstance(value, str):
            found = {"text": value}
        else:
            kind, found = "application/json", {"text": json_text(value)}
        return {"mimeType": self.definition.get("mimeType", kind), **found}


class Prompt(Entry):
    """A prompt; its arguments come as texts."""

    list_key = changes = "prompts"
    options = Entry.options - {"annotations"}

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        self.definition["arguments"] = []
        for part in self.parts:
            schema = self.schema["properties"][part.name]
            self.definition["arguments"].append(fields(
                name=part.name, required=part.is_required, title=schema.get("title"),
                description=schema.get("description")))


class Server:
    """A server: decorate functions with it, then `run()` it on stdin and stdout.

    page_size: entries of a list that come at once.  max_workers: handlers at a time.
    lifespan: a function of the server that gives a context manager, entered for each
    client.  threaded=False: handlers run on the thread that called `run`; run_handler:
    a function that gets each as a job, which the host's own thread is to call.
    mask_errors: clients do not see what an unexpected exception says.
    capabilities: declared beside those of what is registered.
    trace: a function that gets each line as text.

    Handlers run on several threads; any method may be called from any thread.
    """

    def __init__(self, name: str, version: str = "0", *, title: str | None = None,
                 instructions: str | None = None, page_size: int = 1000,
                 max_workers: int = 64, max_message_bytes: int = MAX_MESSAGE_BYTES,
                 lifespan: Handler = None, threaded: bool = True,
                 run_handler: Handler = None, mask_errors: bool = False,
                 capabilities: Json | None = None, trace: Handler = None) -> None:
        if page_size < 1 or max_workers < 1:
            raise ValueError("page_size and max_workers are at least 1")
        self.info = fields(name=name, version=version, title=title)
        self.instructions, self.page_size = instructions, page_size
        self.max_workers, self.max_message_bytes = max_workers, max_message_bytes
        self.lifespan, self.mask_errors = lifespan, mask_errors
        self.threaded, self.run_handler, self.trace = threaded, run_handler, trace
        self._more_capabilities = capabilities or {}
        # What is registered, by its name or its URI in normal form.
        self.entries: dict[str, dict[str, Any]] = {
            "tools": {}, "prompts": {}, "resources": {}, "resourceTemplates": {}}
        self._declared: Json = {"logging": {}}  # what ever was: clients may know of it
        self.completions: dict[tuple[str, str], Function] = {}
        self.methods: dict[str, Function] = {}
        self._sessions: set[ServerSession] = set()

    def tool(self, fn: Any = None, **options: Any) -> Any:
        """Register a tool: `@server.tool`, or with options `@server.tool(name=…)`.

        name, title, description (default: the docstring), annotations, input_schema,
        output_schema (default: from the return hint), icons, meta.
        """
        return self._register(Tool, options, fn)

    def prompt(self, fn: Any = None, **options: Any) -> Any:
        """Register a prompt: name, title, description, icons, meta."""
        return self._register(Prompt, options, fn)

    def resource(self, uri: str, fn: Any = None, **options: Any) -> Any:
        """Register a resource, or with {name} in its URI a template of resources.

        mime_type, name, title, description, size, annotations, icons, meta.
        """
        if not isinstance(uri, str):
            raise TypeError('it needs a URI: @server.resource("data://…")')
        return self._register(Resource, {**options, "uri": uri}, fn)

    def _register(self, kind: Any, options: Json, fn: Any) -> Any:
        if fn is None:
            return partial(self._register, kind, options)
        what = f"{kind.__name__.lower()} {getattr(fn, '__name__', fn)}"
        try:
            entry = kind(fn, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
        if self.entries[entry.list_key].setdefault(entry.key, entry) is not entry:
            raise ValueError(f"{what} already exists, as {entry.key}")
        self._declared[kind.changes] = kind.capability
        self._tell(LIST_CHANGED[kind.changes], {})
        return fn

    # For a function at hand.  Clients that may know are told.
    add_tool, add_prompt, add_resource = tool, prompt, resource

    def _remove(self, kind: str, key: str) -> None:
        """KeyError: there is none."""
        del self.entries[kind][key]
        self._tell(LIST_CHANGED[kind], {})

    remove_tool = partialmethod(_remove, "tools")
    remove_prompt = partialmethod(_remove, "prompts")

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template."""
        del self.entries[list_of(uri)][normal_uri(uri, "{}")]
        self._tell(LIST_CHANGED["resources"], {})

    def completion(self, ref: str, argument: str) -> Callable[[Any], Any]:
        """Suggest values for an argument of a prompt, or of a template.

        ref: the prompt's name, or the template.  The function gets what the user has
        typed, and, if it has a second parameter, the other arguments as a dict.
        """
        self._declared["completions"] = {}
        if "{" in ref:
            ref = normal_uri(ref, "{}")
        return partial(self._keep, self.completions, (ref, argument))

    def method(self, name: str) -> Callable[[Any], Any]:
        """Serve a request, or a notification, of your own: fn(params) gives a dict."""
        if name in METHODS:
            raise ValueError(f"{name} is a method of the protocol")
        return partial(self._keep, self.methods, name)

    def _keep(self, table: dict[Any, Function], key: Any, fn: Any) -> Any:
        table[key] = Function(fn, {})
        return fn

    def notify_resource_updated(self, uri: str) -> None:
        """Tell the clients that have subscribed to a resource that it has changed."""
        self._tell("notifications/resources/updated", {"uri": uri})

    def _tell(self, method: str, params: Json) -> None:
        for session in self._sessions.copy():
            session.tell(method, params)

    def capabilities(self) -> Json:
        """What is declared to clients."""
        found = self._declared.copy()
        for key, members in self._more_capabilities.items():
            found[key] = {**found.get(key, {}), **members}
        return found

    def run(self) -> None:
        """Serve the client at stdin and stdout until it hangs up; blocks.

        On the main thread SIGTERM and Ctrl-C end it: SystemExit with 143 or 130.
        RuntimeError: this process serves there already.
        """
        with stop_at_signals(), stdio_server() as (reader, writer):
            self.serve(reader, writer)

    def serve(self, reader: Any, writer: Any) -> None:
        """Serve the client at two binary streams until it hangs up; blocks.

        The streams are not closed.
        """
        context = self.lifespan(self) if self.lifespan else nullcontext()
        session = ServerSession(self, reader, writer)
        self._sessions.add(session)
        try:
            with context as session.lifespan_context:
                session.serve()
        finally:
            self._sessions.discard(session)
            session.close()


OWN_METHOD = Method("call_own")  # any that is not the protocol's


class ServerSession(Connection):
    """A server with one client: the methods of the protocol, and which handlers run."""

    request_class = Serving
    lifespan_context: Any = None

    def __init__(self, server: Server, reader: Any, writer: Any) -> None:
        super().__init__(reader, writer, server.max_message_bytes, server.trace)
        self.server = server
        self.has_input_ended = False
        self.legacy = Legacy()
        self._reads_file = is_file(reader)  # then nothing in it may be lost
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # for the thread in `serve`
        self._host = server.run_handler
        if not server.threaded:
            self._host = self._jobs.put
        # The reader runs one handler itself, if there may be several.
        self._has_turns = server.max_workers > 1 and not self._host
        self._pool = Pool("worker", server.max_workers - self._has_turns)
        self._turns = Turns(self.read_one, self._pool)
        self._notices = Pool("notices", 1)  # handlers of notifications, in order

    # -- its life

    def serve(self) -> None:
        """Serve until the client hangs up, and what is in flight has finished."""
        self._turns.start()
        # Not without a limit: a signal that comes just before the wait would be lost.
        while self._run_job(1.0) or not self.has_input_ended:
            pass
        for question in self.outgoing.copy().values():
            question.end(Cancelled())  # nobody will answer
        seconds = threading.TIMEOUT_MAX if self._reads_file else DRAIN_SECONDS
        end = monotonic() + seconds
        while monotonic() < end and (self.is_busy() or self._notices.is_busy()):
            self._run_job(0.005)

    def _run_job(self, seconds: float) -> bool:
        """Run a job of this thread; False: none came in time, or the input ended."""
        try:
            job = self._jobs.get(timeout=seconds)
        except Empty:
            return False
        if job:
            job()
        return job is not None

    def close(self) -> None:
        self.end(ConnectionClosed("The session is over"))
        self._turns.stop()
        self._pool.close()
        self._notices.close()

    def on_end(self) -> None:
        self.has_input_ended = True
        self._jobs.put(None)

    # -- messages

    def on_refused(self, line: Line, error: McpError, found_id: Any, put: Any) -> None:
        put(encode({"jsonrpc": "2.0", "id": found_id, "error": error.to_json()}))

    def on_notification(self, method: str, params: Json) -> None:
        if method in self.server.methods:
            request = Serving(self, None, method, params)
            request.era = self.legacy
            self._notices.submit(partial(self._handle, OWN_METHOD, request))

    def on_request(self, request: Serving) -> None:
        request.era, row = self.legacy, METHODS.get(request.method, OWN_METHOD)
        if not self.legacy.date and request.method not in ("initialize", "ping"):
            raise McpError(INVALID_REQUEST, f"{request.method} before `initialize`")
        if row.capability and not declares(self.server.capabilities(), row.capability):
            raise unknown_method(request.method)
        if row.is_quick:
            request.respond(getattr(self, row.handler)(request))
        elif len(self.incoming) > MAX_REQUESTS and not self._reads_file:
            raise McpError(INTERNAL_ERROR, f"Over {MAX_REQUESTS} requests in flight")
        else:
            job = partial(self._handle, row, request)
            request.put = request.put if request.batch else self.write
            if request.batch or not (self._has_turns and self._turns.run_here(job)):
                self._pool.submit(job)

    def _handle(self, row: Method, request: Serving) -> None:
        """Run the handler of a request, and respond."""
        if request.cancelled:
            return
        error = None
        try:
            result = getattr(self, row.handler)(request)
        except BaseException as raised:
            error = raised
        if os.getpid() != self._pid:  # a child that the handler has forked
            code = getattr(error, "code", 0)  # of sys.exit
            os._exit(code if isinstance(code, int) else 1)
        if error is None:
            request.respond(result)
        else:
            try:
                self._fail(row, request, error)
            finally:  # its own methods may fail; no effect if it was answered
                request.fail(McpError(INTERNAL_ERROR, "Internal error"))

    def _fail(self, row: Method, request: Serving, error: BaseException) -> None:
        """The response for what a handler raised: the one place for that."""
        is_tool = row.handler == "call_tool"
        if isinstance(error, McpError):
            request.fail(error)
        elif isinstance(error, Cancelled):
            request.fail(McpError(INTERNAL_ERROR, "Cancelled"))
        elif isinstance(error, ToolError) and is_tool:
            request.respond(ToolResult(str(error), is_error=True))
        else:
            text = "Internal error" if self.server.mask_errors else text_of(error)
            if is_tool:
                request.respond(ToolResult(text, is_error=True))
            else:
                request.fail(McpError(INTERNAL_ERROR, text))
            # After the response, because stderr may be full.
            log_exception(f"{request.method} failed", error)

    def _run(self, call: Job, request: Serving) -> Any:
        """Call a function of the user, on the thread where it belongs."""
        if not self._host:
            return call()
        from concurrent.futures import CancelledError, Future
        future: Future[Any] = Future()
        request.on_cancel(future.cancel)
        self._host(partial(fulfil, future, call))
        try:
            return future.result()
        except CancelledError:
            raise Cancelled from None

    def _bound(self, entry: Any, values: Json, request: Serving) -> Job:
        """The call of an entry with these arguments."""
        try:
            return entry.bind(values, Context(request))  # type: ignore
        except BadValue as error:
            raise error.as_invalid_params(f"Bad arguments for {entry.key}") from None

    def _call_in_order(self, function: Function, values: list[Any],
                       request: Serving) -> Any:
        call = function.bind_in_order(values, Context(request))
        return self._run(call, request)

    # -- changes

    def tell(self, method: str, params: Json) -> None:
        """The list of a kind has changed, or a resource."""
        topic = normal_uri(params["uri"]) if params else method
        if topic in self.legacy.topics:
            self.post(notification(method, params))

    # -- the methods of the protocol

    def initialize(self, request: Serving) -> Json:
        if request.batch:
            raise McpError(INVALID_REQUEST, "initialize cannot be in an array")
        self.legacy.initialize(request.params)
        self.has_batches = self.legacy.date in WITH_BATCHES
        return fields(
            protocol_version=self.legacy.date, capabilities=self.server.capabilities(),
            server_info=self.server.info, instructions=self.server.instructions)

    def ping(self, request: Serving) -> Json:
        return {}

    def set_level(self, request: Serving) -> Json:
        level = require(request.params, "level", str)
        if level not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}", "level")
        self.legacy.log_level = level
        return {}

    def subscribe(self, request: Serving) -> Json:
        uri = require(request.params, "uri", str)
        self._resource(uri, request)
        self.legacy.topics.add(normal_uri(uri))
        return {}

    def unsubscribe(self, request: Serving) -> Json:
        self.legacy.topics.discard(normal_uri(require(request.params, "uri", str)))
        return {}

    def list_page(self, request: Serving) -> Json:
        """A page of a list; the cursor is the place of its first entry."""
        key = METHODS[request.method].list_key
        cursor = require(request.params, "cursor", str, "0")
        if not re.fullmatch("[0-9]{1,9}", cursor):
            raise invalid_params(f"This cursor is not ours: {show(cursor)}", "cursor")
        entries = list(self.server.entries[key].values())
        end = int(cursor) + self.server.page_size
        result: Json = {key: [entry.definition for entry in entries[int(cursor):end]]}
        if end < len(entries):
            result["nextCursor"] = str(end)
        return result

    def _named(self, key: str, request: Serving) -> tuple[Any, Json]:
        """The entry that a request names, and its arguments."""
        name = require(request.params, "name", str)
        entry = self.server.entries[key].get(name)
        if entry is None:
            raise McpError(INVALID_PARAMS, f"Unknown {key[:-1]} {name}", {"name": name})
        return entry, require(request.params, "arguments", dict, {})

    def call_tool(self, request: Serving) -> Json:
        tool, arguments = self._named("tools", request)
        try:
            call = self._bound(tool, arguments, request)
        except McpError as error:
            if request.era.date not in TELLS_MODEL:
                raise
            return ToolResult(error.message, is_error=True)
        return tool.result(self._run(call, request))  # type: ignore

    def get_prompt(self, request: Serving) -> Json:
        prompt, arguments = self._named("prompts", request)
        call = self._bound(prompt, arguments, request)
        return fields(description=prompt.definition.get("description"),
                      messages=messages_of(self._run(call, request)))

    def read_resource(self, request: Serving) -> Json:
        uri = require(request.params, "uri", str)
        return {"contents": self.contents(uri, request, self._run)}

    def contents(self, uri: str, request: Serving, run: Any) -> list[Json]:
        resource, values = self._resource(uri, request)
        call = self._bound(resource, values, request)
        return resource.contents(run(call, request), uri)

    def _resource(self, uri: str, request: Serving) -> tuple[Resource, Json]:
        """A resource, and the values in its URI; McpError: there is none."""
        normal = normal_uri(uri)
        resource = self.server.entries["resources"].get(normal)
        if resource:
            return resource, {}
        for template in [*self.server.entries["resourceTemplates"].values()]:
            values = template.template.match(normal)
            if values is not None:
                return template, values
        raise McpError(RESOURCE_NOT_FOUND, f"Unknown resource {uri}", {"uri": uri})

    def complete(self, request: Serving) -> Json:
        ref = require(request.params, "ref", dict)
        argument = require(request.params, "argument", dict)
        if ref.get("type") == "ref/prompt":
            key = require(ref, "name", str)
        else:
            key = normal_uri(require(ref, "uri", str), "{}")
        if not any(key in entries for entries in self.server.entries.values()):
            raise invalid_params(f"Unknown ref {show(ref)}", "ref")
        name, typed = require(argument, "name", str), require(argument, "value", str)
        context = require(request.params, "context", dict, {})
        others = require(context, "arguments", dict, {})
        function = self.server.completions.get((key, name))
        values: list[str] = []
        if function:
            found = self._call_in_order(function, [typed, others], request)
            values = [str(plain(value)) for value in found]
        return {"completion": {
            "values": values[:MAX_COMPLETIONS], "total": len(values),
            "hasMore": len(values) > MAX_COMPLETIONS}}

    def call_own(self, request: Serving) -> Json:
        function = self.server.methods.get(request.method)
        if function is None:
            raise unknown_method(request.method)
        result = plain(self._call_in_order(function, [request.params], request))
        if result is not None and not isinstance(result, dict):
            raise TypeError(f"the handler must give a dict or None: {show(result)}")
        return result or {}


# -- 12. The process of a server -------------------------------------------------------
# A server is started without a shell and in a small environment, as the leader of a
# process group, which ends with it.  Its stderr is always read, else it would block.

# What a server gets of our environment, as with the official SDKs: it finds programs
# with them, and they hold no secrets.
SAFE_VARIABLES = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"]
if os.name == "nt":
    SAFE_VARIABLES = [
        "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
        "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME",
        "USERPROFILE"]


class Pipes:
    """Two streams to a server that is not a process of ours."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self.reader, self.writer = reader, writer
        self.stderr_tail = ""
        self.exit_code: int | None = None
        self.hung_up = threading.Event()  # set when all that it wrote was read

    def await_end(self) -> None:
        """Wait a moment for the exit code and the end of stderr."""

    def close(self, connection: Connection) -> None:
        connection.close_output(PATIENCE)
        self.hung_up.wait(PATIENCE)


class MemoryPipe:
    """A stream between two threads."""

    def __init__(self) -> None:
        self._chunks: SimpleQueue[bytes] = SimpleQueue()

    def read(self, size: int) -> bytes:
        return self._chunks.get()

    def write(self, data: Any) -> int:
        self._chunks.put(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._chunks.put(b"")


class Process(Pipes):
    """A server process; stderr: gets its lines, a function or a text stream."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None,
                 stderr: Any) -> None:
        from subprocess import PIPE, Popen
        flags = 0
        if os.name == "nt":
            argv = windows_argv(argv, env)
            flags = 0x0800_0200  # CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP
        try:
            self._popen: Any = Popen(  # never a shell
                argv, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd,
                start_new_session=True, creationflags=flags)
        except OSError as error:
            where = f"{argv[0]!r} in {cwd or '.'} with the PATH {env.get('PATH')}"
            raise type(error)(error.errno, f"{error.strerror}: {where}") from None
        super().__init__(self._popen.stdout, self._popen.stdin)
        self._show = stderr if callable(stderr) or stderr is None else stderr.write
        self._exited, self._stderr_read = threading.Event(), threading.Event()
        start_thread("stderr", self._read_stderr)
        start_thread("exit", self._await_exit)

    def _read_stderr(self) -> None:
        import io
        with io.TextIOWrapper(self._popen.stderr, "utf-8", "replace") as stream:
            # In pieces, because a line may be endless; \r ends one, too: progress bars.
            for line in iter(partial(stream.readline, 65536), ""):
                self.stderr_tail = (self.stderr_tail + line)[-8192:]
                if self._show:
                    try:
                        self._show(line)
                    except BaseException as error:
                        self._show = None
                        log_exception("stderr= failed, and gets no more", error)
        self._stderr_read.set()

    def _await_exit(self) -> None:
        self.exit_code = self._popen.wait()
        self._exited.set()

    def await_end(self) -> None:
        self._exited.wait(PATIENCE / 2)
        self._stderr_read.wait(PATIENCE / 2)

    def close(self, connection: Connection) -> None:
        """Close its stdin; SIGTERM; SIGKILL: with a wait after each."""
        if self.writer.closed:
            return  # by now its number may be another's
        try:
            connection.close_output(PATIENCE / 2)
            if not self._is_gone():
                self._signal(15)
                self._is_gone()
                self._signal(9)  # also what is left of its group
                self._exited.wait(PATIENCE)
        except BaseException:  # Ctrl-C
            self._signal(9)
            raise
        connection.close_output(PATIENCE)  # if a thread was stuck in it before
        self._stderr_read.wait(0.2)
        if self.hung_up.wait(0.2):  # else somebody outside of its group has stdout
            self.reader.close()

    def _is_gone(self) -> bool:
        """Has it ended?  While stdout is open, somebody of its group has not."""
        until = monotonic() + PATIENCE
        return (self._exited.wait(PATIENCE)
                and self.hung_up.wait(max(0.0, until - monotonic())))

    def _signal(self, number: int) -> None:
        with suppress(OSError):  # all have ended
            if os.name == "nt":
                import subprocess
                tree = ["taskkill", "/T", "/F", "/PID", str(self._popen.pid)]
                subprocess.run(tree, capture_output=True, check=False)
            else:
                os.killpg(self._popen.pid, number)


def windows_argv(argv: list[str], env: dict[str, str]) -> list[str]:
    """Find npx.cmd and the like; ValueError for arguments that cmd.exe would parse."""
    import shutil
    program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    if program.lower().endswith((".cmd", ".bat")):
        for part in argv:
            if re.search(r'[&|<>^%"!\r\n]', part):
                raise ValueError(f"the argument {part!r} is not safe for {program!r}")
    return [program, *argv[1:]]


def serve_here(server: Server) -> Pipes:
    """Let a server serve in this process, on a thread."""
    requests, responses = MemoryPipe(), MemoryPipe()
    pipes = Pipes(responses, requests)

    def serve() -> None:
        try:
            server.serve(requests, responses)
        except BaseException as error:
            pipes.stderr_tail = text_of(error)
            log_exception("the server failed", error)
        responses.close()

    start_thread("server", serve)
    return pipes


def open_target(target: Any, env: dict[str, str] | None, inherit_env: bool,
                cwd: str | None, stderr: Any) -> Pipes:
    """The way to a server; for what a target is, see Client."""
    if isinstance(target, Server):
        return serve_here(target)
    if isinstance(target, dict):  # of an mcp.json
        env = {**(target.get("env") or {}), **(env or {})}
        cwd = cwd or target.get("cwd")
        command = target.get("command")
        target = [command, *(target.get("args") or [])] if command else []
    if isinstance(target, (str, os.PathLike)):
        target = command_of(os.fspath(target))
    if not target:
        raise ValueError("stdio alone: pass a command, or an entry of an mcp.json")
    if hasattr(target[0], "read"):
        return Pipes(*target)
    variables = {name: value for name, value in os.environ.items()
                 if inherit_env or (name.upper() in SAFE_VARIABLES
                                    and not value.startswith("()"))}  # Shellshock
    for name, value in (env or {}).items():
        if value is not None:
            variables[name.upper() if os.name == "nt" else name] = value
    return Process(list(map(os.fspath, target)), variables, cwd, stderr)


def command_of(path: str) -> list[str]:
    if " " in path and not os.path.exists(path):
        raise ValueError(f"pass the command as a list: {path.split()}")
    if path.endswith(".py"):
        return [sys.executable, path]
    return [] if "://" in path else [path]


# -- 13. Client ------------------------------------------------------------------------


class Client:
    """A client: `with Client(["python3", "server.py"]) as client: …`

    target: a command as a list, "server.py", an entry of an mcp.json (a dict with
    command, args, env, cwd), a Server (in this process), or two binary streams.
    env: more variables than the few that are safe; inherit_env: all of ours.
    timeout: seconds without a response or progress, max_timeout: seconds in all, for
    each call that does not give its own; None: no limit.
    stderr: a text stream or a function that gets the server's (default: ours), or None.
    log_level: the least one that log_handler gets.
    trace: a function that gets each line as text.

    Handlers: sampling_handler(messages, params) gives a text, or a whole result;
    elicitation_handler(message, schema, params) a content, None (decline) or Elicited;
    url_handler(message, url, params) a bool.  They may use the client.
    log_handler(params), message_handler(message) get notifications, in order, on a
    thread; progress_handler(progress, total, message) runs on the thread that waits.

    Each call blocks, takes `timeout`, `max_timeout`, `progress_handler` and `meta`, may
    be made from any thread, and raises McpError, RequestTimeout or ConnectionClosed.
    A client connects once.
    """

    def __init__(
            self, target: Any, *, env: Json | None = None, inherit_env: bool = False,
            cwd: str | None = None, timeout: Seconds = 60, max_timeout: Seconds = 3600,
            client_info: Json | None = None,
            roots: Iterable[Any] | None = None, sampling_handler: Handler = None,
            elicitation_handler: Handler = None, url_handler: Handler = None,
            log_handler: Handler = None, message_handler: Handler = None,
            progress_handler: Handler = None, log_level: str | None = None,
            stderr: Any = MISSING, capabilities: Json | None = None,
            max_message_bytes: int = MAX_MESSAGE_BYTES, trace: Handler = None) -> None:
        self._target, self._process_options = target, (env, inherit_env, cwd)
        self._stderr, self._log_level = stderr, log_level
        self._options = {"timeout": timeout, "max_timeout": max_timeout,
                         "progress_handler": progress_handler}
        # What a session looks at:
        self.max_message_bytes = max_message_bytes
        self.trace = trace
        self.sampling_handler, self.url_handler = sampling_handler, url_handler
        self.elicitation_handler, self.log_handler = elicitation_handler, log_handler
        self.message_handler = message_handler
        self.roots = None if roots is None else roots_of(roots)
        self._capabilities = self._declared(capabilities or {})
        self._info = {"name": "mcp_min", "version": __version__, **(client_info or {})}
        self._connecting = threading.Lock()
        self._session: ClientSession | None = None  # None: the client is new
        self._is_closed = False
        self.waiting = Pool("submit", MAX_REQUESTS)  # threads that wait for `submit`
        # What the server says of itself:
        self.server_info, self.server_capabilities = Wire(), Wire()
        self.instructions: str | None = None
        self.protocol_version = ""

    def _declared(self, more: Json) -> Json:
        """The capabilities: each is declared exactly when its handler is given."""
        found: Json = {}
        if self.roots is not None:
            found["roots"] = {"listChanged": True}
        if self.sampling_handler:
            found["sampling"] = {}
        if self.elicitation_handler:
            found["elicitation"] = {"form": {}} if self.url_handler else {}
        if self.url_handler:
            found.setdefault("elicitation", {})["url"] = {}
        for name, members in more.items():
            kinds = {"form": self.elicitation_handler, "url": self.url_handler}
            lacks = any(kinds.get(kind, kind) is None for kind in members)
            if name in QUESTIONS.values() and (lacks or name not in found):
                raise ValueError(f"the capability {name} needs its handler")
            found[name] = {**found.get(name, {}), **members}
        return found

    # -- life

    def connect(self) -> Client:
        """Start the server and shake hands; `with` does this, too."""
        with self._connecting:
            if not self._session and not self._is_closed:
                try:
                    self._start()
                    self._initialize()
                except BaseException:
                    self.close()
                    raise
            self.session()
        return self

    __enter__ = connect

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session and the server; open calls raise ConnectionClosed."""
        self._is_closed = True
        if self._session:
            self._session.close()
        self.waiting.close()

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB of the server's stderr."""
        return self._session.pipes.stderr_tail if self._session else ""

    @property
    def exit_code(self) -> int | None:
        """Of the server process; None while it runs, or if there is none."""
        return self._session.pipes.exit_code if self._session else None

    def _start(self) -> None:
        stderr = sys.stderr if self._stderr is MISSING else self._stderr
        pipes = open_target(self._target, *self._process_options, stderr)
        self._session = ClientSession(self, pipes)
        start_thread("reader", self._session.read)
        self.session()  # `close` may have missed it

    def session(self) -> ClientSession:
        if self._is_closed or self._session is None:
            state = "closed" if self._is_closed else "new"
            raise ConnectionClosed(f"The client is {state}; it can connect once")
        return self._session

    def _initialize(self) -> None:
        result = self.request("initialize", {
            "protocolVersion": LEGACY[-1], "capabilities": self._capabilities,
            "clientInfo": self._info})
        self.protocol_version = result.get("protocolVersion", "")
        if self.protocol_version not in LEGACY:
            raise McpError(INVALID_REQUEST, "The server speaks "
                           f"{self.protocol_version}; we speak {', '.join(LEGACY)}")
        self.server_info = Wire(as_dict(result.get("serverInfo")))
        self.server_capabilities = Wire(as_dict(result.get("capabilities")))
        self.instructions = result.get("instructions")
        self.notify("notifications/initialized")
        if self._log_level and declares(self.server_capabilities, "logging"):
            self.set_logging_level(self._log_level)

    # -- any call

    def request(self, method: str, params: Json | None = None, **options: Any) -> Json:
        """Send any request, also what the server does not declare; its result."""
        return self._begin(method, params, **options).wait()  # type: ignore

    def submit(self, method: str, params: Json | None = None,
               **options: Any) -> Future[Any]:
        """Send any request without waiting; cancel() of the future tells the server."""
        return self._begin(method, params, **options).submit()

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send any notification."""
        self.session().post(notification(method, params or {}))

    def _begin(self, method: str, params: Json | None,
               read: Callable[[Json], Any] = as_dict, **options: Any) -> Call:
        return Call(self, method, params or {}, read, **{**self._options, **options})

    def _call(self, method: str, params: Json, options: Json) -> Wire:
        self._check_declared(method)
        return Wire(self.request(method, params, **options))

    def _check_declared(self, method: str) -> None:
        self.session()
        needed = METHODS[method].capability
        if needed and not declares(self.server_capabilities, needed):
            raise McpError(METHOD_NOT_FOUND, f"The server does not declare {needed}; "
                           f"client.request({method!r}, …) asks it all the same")

    # -- the methods of the protocol

    def ping(self, **options: Any) -> None:
        """Ask for a sign of life."""
        self.request("ping", **options)

    def call_tool(self, name: str, arguments: Json | None = None,
                  **options: Any) -> ToolResult:
        """Call a tool.  ToolError: it failed; its `result` is what came.

        raise_on_error=False: give that result instead.
        """
        return self._tool_call(name, arguments, **options).wait()  # type: ignore

    def submit_tool(self, name: str, arguments: Json | None = None,
                    **options: Any) -> Future[ToolResult]:
        """Call a tool without waiting; cancel() of the future tells the server."""
        return self._tool_call(name, arguments, **options).submit()

    def _tool_call(self, name: str, arguments: Json | None, *,
                   raise_on_error: bool = True, **options: Any) -> Call:
        def read(result: Json) -> Any:
            found = ToolResult.of({**result, "content": list_in(result, "content")})
            if found.get("isError") and raise_on_error:
                raise ToolError(found.text or "The tool failed", found)
            return found

        self._check_declared("tools/call")
        params = {"name": name, "arguments": plain(arguments or {})}
        return self._begin("tools/call", params, read, **options)

    def _list(self, method: str, cursor: Any = MISSING, **options: Any) -> Any:
        if cursor is not MISSING:
            return self._page(method, cursor, options)
        cursor, seen = None, []
        pages: list[list[Wire]] = []
        while cursor not in seen:
            seen.append(cursor)
            page = self._page(method, cursor, options)
            entries = page[METHODS[method].list_key]
            if entries not in pages:
                pages.append(entries)
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        else:
            warn(f"mcp_min: {method} gave the cursor {show(cursor)} twice")
        return [entry for entries in pages for entry in entries]

    def _page(self, method: str, cursor: str | None, options: Json) -> Wire:
        params = {} if cursor is None else {"cursor": cursor}
        page, key = self._call(method, params, options), METHODS[method].list_key
        page[key] = list_in(page, key)
        return page

    # All entries, a list; with cursor=None or a cursor: one page, a dict.
    list_tools = partialmethod(_list, "tools/list")
    list_resources = partialmethod(_list, "resources/list")
    list_resource_templates = partialmethod(_list, "resources/templates/list")
    list_prompts = partialmethod(_list, "prompts/list")

    def read_resource(self, uri: str, **options: Any) -> list[ResourceContents]:
        result = self._call("resources/read", {"uri": str(uri)}, options)
        return [ResourceContents.of(one) for one in list_in(result, "contents")]

    def get_prompt(self, name: str, arguments: Json | None = None,
                   **options: Any) -> Wire:
        """A prompt: description, messages.  Arguments are texts; others are made so."""
        texts = {key: value if isinstance(value, str) else json_text(value)
                 for key, value in (arguments or {}).items()}
        result = self._call("prompts/get", {"name": name, "arguments": texts}, options)
        result["messages"] = list_in(result, "messages")
        return result

    def complete(self, ref: str, argument: str, value: str,
                 context: dict[str, str] | None = None, **options: Any) -> Wire:
        """Suggestions: ["values"], total, has_more.

        ref: the name of a prompt, or a template; context: the other arguments.
        """
        params: Json = {"ref": {"type": "ref/prompt", "name": ref},
                        "argument": {"name": argument, "value": value}}
        if "{" in ref or "://" in ref:
            params["ref"] = {"type": "ref/resource", "uri": ref}
        if context:
            params["context"] = {"arguments": context}
        result = self._call("completion/complete", params, options)
        found = as_dict(result.get("completion"))
        return Wire({**found, "values": list_in(found, "values", str)})

    def subscribe(self, uri: str, **options: Any) -> None:
        """Let message_handler be told when a resource changes."""
        self._call("resources/subscribe", {"uri": uri}, options)

    def unsubscribe(self, uri: str, **options: Any) -> None:
        self._call("resources/unsubscribe", {"uri": uri}, options)

    def set_logging_level(self, level: str, **options: Any) -> None:
        self._call("logging/setLevel", {"level": level}, options)

    def set_roots(self, roots: Iterable[Any]) -> None:
        """The folders that the server may work in: paths, URIs or dicts; it is told."""
        self.roots = roots_of(roots)
        self.notify("notifications/roots/list_changed")


def list_in(result: Json, key: str, of: type = dict) -> list[Any]:
    """A list of a result; null, as Go writes no items, is an empty one."""
    found = [] if result.get(key) is None else result[key]
    if not isinstance(found, list) or not all(isinstance(one, of) for one in found):
        raise McpError(INTERNAL_ERROR, f"The peer's {key} is malformed: {show(found)}")
    return [wired(one) for one in found]


def roots_of(roots: Iterable[Any]) -> list[Json]:
    """Roots, for URIs, paths, or what is whole."""
    import pathlib
    if isinstance(roots, (str, dict)):
        raise TypeError("roots are a list")
    return [root if isinstance(root, dict) else {
        "uri": root if "://" in str(root) else pathlib.Path(root).absolute().as_uri()}
        for root in roots]


class Call:
    """A call of the user: it was sent; `wait` gives its result, which `read` reads."""

    def __init__(self, client: Client, method: str, params: Json,
                 read: Callable[[Json], Any], *, timeout: Seconds, max_timeout: Seconds,
                 progress_handler: Handler, meta: Json | None = None) -> None:
        self._client, self._read = client, read
        self._limits = timeout, max_timeout, progress_handler
        params = with_meta(params, meta) if meta else params
        self._outgoing = client.session().request(
            method, params, has_progress=method != "initialize")

    def wait(self) -> Any:
        return self._read(self._outgoing.wait(*self._limits))

    def cancel(self) -> None:
        """No effect if it has ended."""
        self._outgoing.cancel(Cancelled(), "the call was cancelled")

    def submit(self) -> Future[Any]:
        from concurrent.futures import Future
        future: Future[Any] = Future()
        work = partial(fulfil, future, self.wait)
        # The server is told at once, or a quick close() would lose it.
        future.add_done_callback(lambda future: self.cancel())
        if not self._client.waiting.submit(work):
            work()  # the client was closed, which has ended the call
        return future


class ClientSession(Connection):
    """What a client does with the messages of its server."""

    has_batches = True  # a peer may put responses into an array, whatever the revision

    def __init__(self, client: Client, pipes: Pipes) -> None:
        super().__init__(
            pipes.reader, pipes.writer, client.max_message_bytes, client.trace)
        self._client, self.pipes = client, pipes
        self._answers = Pool("answers", 16)
        self._notices = Pool("notices", 1)  # in order

    def read(self) -> None:
        while self.read_one():
            pass
        self.pipes.hung_up.set()

    # -- its end

    def close(self) -> None:
        """End the session and the server, after what was said before."""
        if os.getpid() != self._pid:
            return  # we are a forked child: it is our parent's
        written = threading.Event()
        try:
            if self._writer_thread.submit(written.set):
                written.wait(PATIENCE / 2)
        finally:
            super().end(ConnectionClosed("The client was closed"))
            self.pipes.close(self)
            self._answers.close()
            self._notices.close()

    def end(self, why: Error) -> None:
        """Add what is known of the process."""
        if self.why_ended is None:
            self.pipes.await_end()
            code = self.pipes.exit_code
            text = str(why) if code is None else f"{why} (exit code {code})"
            super().end(
                ConnectionClosed(text + self.hint(), code, self.pipes.stderr_tail))

    def on_end(self) -> None:
        self.end(ConnectionClosed("The server closed the connection"))

    def hint(self) -> str:
        text, tail = "", self.pipes.stderr_tail.strip()
        if tail:
            text += f"; its stderr ends with: {tail[-1000:]}"
        if self.noise:
            text += f"; it wrote what is no message: {' | '.join(self.noise)[-500:]}"
        return text

    # -- messages

    def on_refused(self, line: Line, error: McpError, found_id: Any, put: Any) -> None:
        """Fail the call that it was for; garbage is never answered."""
        self.noise.append(show(line[:200].decode("utf-8", "replace")))
        if put != self.post:
            put()  # it has no response in the batch
        lost = [self.outgoing.get(own_id(found_id))]
        if isinstance(error, Oversized) and found_id is None and (
                b'"method"' not in line[:200]):
            lost = [*self.outgoing.copy().values()]
        for outgoing in filter(None, lost):
            outgoing.end(McpError(error.code, f"The response is malformed: {error}"))

    def on_notification(self, method: str, params: Json) -> None:
        client = self._client
        if client.log_handler and method == "notifications/message":
            self._notices.submit(partial(client.log_handler, Wire(params)))
        if client.message_handler:
            message = Wire(method=method, params=params)
            self._notices.submit(partial(client.message_handler, message))

    def on_request(self, request: Incoming) -> None:
        if request.method == "ping":
            request.respond({})
        else:
            self._answers.submit(partial(self._respond, request))

    def _respond(self, request: Incoming) -> None:
        try:
            request.respond(self.answer(request.method, request.params))
        except McpError as error:
            request.fail(error)
        except BaseException as error:
            request.fail(McpError(INTERNAL_ERROR, text_of(error)))
            log_exception(f"the handler of {request.method} failed", error)

    def answer(self, method: str, params: Json) -> Json:
        """The result for a question.  McpError: it cannot be answered."""
        client, is_url = self._client, params.get("mode") == "url"
        if method == "roots/list" and client.roots is not None:
            return {"roots": client.roots}
        if method == "sampling/createMessage" and client.sampling_handler:
            return sample(client.sampling_handler, params)
        if method == "elicitation/create" and is_url and client.url_handler:
            agrees = client.url_handler(
                params.get("message"), require(params, "url", str), Wire(params))
            return {"action": "accept" if agrees else "decline"}
        if method == "elicitation/create" and not is_url and client.elicitation_handler:
            return elicit(client.elicitation_handler, params)
        raise unknown_method(method)


def sample(handler: Callable[..., Any], params: Json) -> Json:
    answer = handler(list_in(params, "messages"), Wire(params))
    if isinstance(answer, list):
        answer = {"role": "assistant", "content": answer}
    if not isinstance(answer, dict) or "role" not in answer:
        answer = Message("assistant", answer)
    return {"model": "unknown", **answer}


def elicit(handler: Callable[..., Any], params: Json) -> Json:
    schema = require(params, "requestedSchema", dict)
    answer = handler(params.get("message"), schema, Wire(params))
    if answer is None:
        answer = Elicited("decline")
    if isinstance(answer, Elicited):
        if answer.action != "accept":
            return {"action": answer.action}
        answer = answer.content or {}
    content, names = plain(answer), list(as_dict(schema.get("properties")))
    if not isinstance(content, dict) and len(names) == 1:
        content = {names[0]: content}
    return {"action": "accept", "content": content}


# -- 14. Command line ------------------------------------------------------------------

USAGE = """usage: mcp_min.py COMMAND

  demo                                       a session, line by line
  list SERVER…                               what a server offers
  call TOOL [KEY=VALUE… | JSON] -- SERVER…   SERVER: a command, or a file.py
  --version                                  Exit status: 0, 1 (failed), 2 (usage)
"""


def main(words: list[str]) -> int:
    """Run a command; the exit status."""
    command, *words = words or ["nothing"]
    at = [*words, "--"].index("--")
    tool, server = words[:at], words[at + 1:] if command == "call" else words
    try:
        if command == "--version":
            say(__version__)
        elif command == "demo":
            demo()
        elif command in ("list", "call") and tool and server and server[0][:1] != "-":
            with Client(server if len(server) > 1 else server[0]) as client:
                if command == "list":
                    list_all(client)
                else:
                    return call_tool(client, *tool)
        else:
            raise ValueError(f"{command}: write it as above")
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"{USAGE}\n{printable(str(error))}\n")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the flush at exit fails
    except (Error, OSError, LookupError, AttributeError) as error:
        sys.stderr.write(f"mcp_min: {printable(text_of(error))}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def list_all(client: Client) -> None:
    info, offers = client.server_info, client.server_capabilities
    say(f"{info.name} {info.version}, revision {client.protocol_version}")
    for tool in client.list_tools() if declares(offers, "tools") else ():
        say(f"tool {tool['name']}: {tool.description or ''}")
        schema = as_dict(tool.input_schema)
        for name, part in as_dict(schema.get("properties")).items():
            mark = "" if name in as_list(schema.get("required", [])) else "?"
            say(f"    {name}{mark}: {' or '.join(map(str, kinds_of(part))) or 'any'}")
    if declares(offers, "resources"):
        for entry in client.list_resources() + client.list_resource_templates():
            say(f"resource {entry.uri or entry.uri_template}: {entry.name}")
    for prompt in client.list_prompts() if declares(offers, "prompts") else ():
        say(f"prompt {prompt['name']}: {prompt.description or ''}")


def call_tool(client: Client, name: str, *pairs: str) -> int:
    schemas = {tool["name"]: tool.input_schema for tool in client.list_tools()}
    properties = as_dict(as_dict(schemas.get(name)).get("properties"))
    arguments: Json = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if pair.startswith("{"):
            arguments.update(json.loads(pair))
        elif not equals:
            raise ValueError(f"write KEY=VALUE, not {pair}")
        else:
            arguments[key] = value
            if "string" not in (kinds_of(properties.get(key)) or ["string"]):
                with suppress(ValueError):  # the server will say what is wrong
                    arguments[key] = json.loads(value)
    result = client.call_tool(name, arguments, raise_on_error=False)
    for block in result.content:
        block = block.get("resource", block)
        hidden = {key: "..." for key in ("data", "blob") if key in block}
        say(block.get("text") or show({**block, **hidden}))
    return 1 if result.is_error else 0


def kinds_of(part: Any) -> list[str]:
    """The types that a schema names."""
    parts = [part, *as_list(as_dict(part).get("anyOf", []))]
    return [kind for one in parts for kind in as_list(as_dict(one).get("type", []))]


def say(text: str) -> None:
    print(printable(str(text)).rstrip(), flush=True)


def demo() -> None:
    """A session in this process, each line shown."""
    server = Server("demo", "1.0")

    @server.tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def greet(ctx: Context) -> str:
        """Ask for a name."""
        return f"Hello, {ctx.elicit('What is your name?', str).data}!"

    say("-- the handshake: who is there, and what do they know?")
    with Client(server, trace=say, elicitation_handler=lambda *ask: "Ada") as client:
        say("-- the list of tools")
        client.list_tools()
        say("-- a call; the text is read as the number that the schema wants")
        client.call_tool("add", {"a": "2"})
        say("-- a tool that asks the user, while its call waits")
        client.call_tool("greet")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


# Licence (MIT)
#
# Copyright (c) 2026 the mcp_min authors
#
# Permission is hereby granted, free of charge, to any person obtaining a copy
# of this software and associated documentation files (the "Software"), to deal
# in the Software without restriction, including without limitation the rights
# to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
# copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all
# copies or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
# IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
# FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
# AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
# LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
# OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
# SOFTWARE.
