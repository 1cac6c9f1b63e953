"""mcp_min 1.0.0: the Model Context Protocol over stdio, server and client, in one file.

Copy this file into your project; it needs Python 3.9 or newer and nothing else.

    from mcp_min import Server, Client

    server = Server("weather")

    @server.tool
    def forecast(city: str, days: int = 3) -> str:
        "Forecast for a city."
        return f"{city}: sun for {days} days"

    if __name__ == "__main__":
        server.run()                       # speaks to a host over stdin and stdout

    with Client(["python3", "weather.py"]) as client:       # in another program
        print(client.call_tool("forecast", {"city": "Oslo"}).text)

`python3 mcp_min.py demo` shows a session line by line, `serve` is that server for a
host's configuration, `-h` lists the rest.  Licence (MIT) and changes stand at the
end of the file.

The file is read from top to bottom; a section names only what stands above it:

    1  Vocabulary    the facts of the specification, as tables
    2  Errors        what is raised, and what travels
    3  Wire          bytes <-> messages, and the shape of a message
    4  Peer          one end of a connection: ids, cancellation, progress, threads
    5  Stdio         who owns descriptors 0 and 1; starting and ending a process
    6  Eras          all that differs between the revisions of the protocol, both ends
    7  Content       values -> content blocks, and the results that carry them
    8  Schema        signatures -> JSON Schema, the validator, URI templates
    9  Server        registries, pages, the context of a handler, the method handlers
    10 Client        the same verbs from the other side
    11 Command line  the program in this file

Two eras share the pipe.  Up to 2025-11-25 a connection opens with the `initialize`
handshake and both ends may send requests ("legacy"); from 2026-07-28 every request
carries all it needs in `_meta` and the server never asks, it answers "input required"
and is called again ("modern").  Handlers are the same code in both.

Threads.  Of each connection one thread reads, and runs short handlers itself; when one
keeps it for 2 ms the reading passes to another thread, so pings, cancellations and
answers are never late.  Whoever sends writes, and takes along what others queued.
Everything public may be called from any thread.

Locks, in the order in which they may be taken:

    Client._lock     held while connecting
    Server._lock     registries, connections, who listens to what, what was asked
    Peer.writing     the right to write; the patient and the crowded wait for it
    Peer._lock       ids alive on both sides, the outbox, who reads
    Workers._ready   queued jobs and idle threads

Of the others, Link._ending and ModernDialect._lock are taken before Peer.writing, and
Trace._lock inside it; the rest alone.  Longer than a few lines are held: _streams_taken
while a server runs, Link._ending while it ends, Trace._lock while a line is shown, and
Process._telling while the `stderr` function is called.
"""
# ruff: noqa: BLE001, ISC004, RUF022, RUF023
# (Exceptions end here on purpose; lists are in order of meaning; texts take two lines.)
from __future__ import annotations

import enum
import json
import operator
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache, partial, partialmethod

TYPE_CHECKING = False  # what `typing` would say, without the time it takes to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from typing import Any, NoReturn, Self, TypeVar

    T = TypeVar("T")
    Problem = tuple[tuple[Any, ...], str, str]
    Handler = Callable[..., Any]
    Json = dict[str, Any]

__version__ = "1.0.0"
__all__ = [
    # the two ends
    "Server", "Client", "Context",
    # what handlers return and clients get
    "ToolResult", "Text", "Image", "Audio", "ResourceLink", "EmbeddedResource",
    "ResourceContents", "Message", "Elicited", "Sampled",
    # errors
    "McpError", "ToolError", "RequestTimeout", "ConnectionClosed", "Cancelled",
    "SchemaError",
    # by themselves
    "validate", "load_config",
    # error codes
    "PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS",
    "INTERNAL_ERROR", "RESOURCE_NOT_FOUND", "MISSING_CAPABILITY",
    "UNSUPPORTED_VERSION", "REQUEST_CANCELLED", "CONTENT_TOO_LARGE",
]

# -- 1. Vocabulary ---------------------------------------------------------------------
# Every fact copied from the specification stands here, once, as data.  Pages are those
# of modelcontextprotocol.io/specification/REVISION.


class Revision:
    """One dated revision: its era, and the rules that hold in it alone."""

    __slots__ = ("modern", "batches", "bad_arguments_are_results", "elicits")

    def __init__(self, modern: bool, batches: bool, results: bool,
                 elicits: str) -> None:
        self.modern, self.batches = modern, batches
        self.bad_arguments_are_results, self.elicits = results, elicits.split()


REVISIONS = {  #           modern batches results  modes of elicitation
    "2024-11-05": Revision(False, False,  False,   ""),
    "2025-03-26": Revision(False, True,   False,   ""),          # basic: "MUST support"
    "2025-06-18": Revision(False, False,  False,   "form"),
    "2025-11-25": Revision(False, False,  True,    "form url"),  # changelog: SEP-1303
    "2026-07-28": Revision(True,  False,  True,    "form url"),
}  # results: bad tool arguments are a result with `isError`, not an error
LEGACY_VERSIONS = [date for date, row in REVISIONS.items() if not row.modern]
MODERN_VERSIONS = [date for date, row in REVISIONS.items() if row.modern]
MODES = ("auto", "legacy", "modern", *REVISIONS)  # how a client may begin
HANDSHAKE = "legacy"                              # any revision with a handshake


class Method:
    """One request a server answers.

    eras: those that have it, L(egacy) and M(odern).  feature: the capability that must
    be advertised for it.  page: the key of the list in its result, if it is paged.
    cached: its result carries caching hints.  asks: its handler may ask the client in
    the modern era ("input required").  swift: the reading thread settles it before it
    reads the next line, outside any middleware: it changes how that line is understood,
    or is over at once.
    """

    __slots__ = ("eras", "feature", "page", "cached", "asks", "swift")

    def __init__(self, eras: str, feature: str = "", page: str = "", asks: bool = False,
                 cached: bool = False, swift: bool = False) -> None:
        self.eras, self.feature, self.page = eras, feature, page
        self.asks, self.cached, self.swift = asks, cached, swift


# A new revision is a row above, the newest of its era last.  A new method is a row
# here, a function under @handles (section 9) and a verb of Client; a new feature must
# also enter Server._features.  A row knows eras only: what not all revisions of an era
# have needs a check in Terms._row.  A new question is a row in the three tables after
# this one, a verb of Context and one of ANSWERERS (section 10).
METHODS = {
    "initialize":               Method("L ", swift=True),
    "ping":                     Method("L ", swift=True),
    "server/discover":          Method(" M", swift=True, cached=True),
    "tools/list":               Method("LM", "tools", page="tools", cached=True),
    "tools/call":               Method("LM", "tools", asks=True),
    "resources/list":           Method("LM", "resources", page="resources",
                                       cached=True),
    "resources/templates/list": Method("LM", "resources", page="resourceTemplates",
                                       cached=True),
    "resources/read":           Method("LM", "resources", asks=True, cached=True),
    "resources/subscribe":      Method("L ", "resources", swift=True),
    "resources/unsubscribe":    Method("L ", "resources", swift=True),
    "prompts/list":             Method("LM", "prompts", page="prompts", cached=True),
    "prompts/get":              Method("LM", "prompts", asks=True),
    "completion/complete":      Method("LM", "completions"),
    "logging/setLevel":         Method("L ", "logging", swift=True),
    "subscriptions/listen":     Method(" M", swift=True),
}

# What a server may ask its client, and the capability the client must have declared;
# then what the answers must look like.
QUESTIONS = {
    "elicitation/create":     "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list":             "roots",
}
DECLARED: Json = {  # what a client that can answer says of it
    "elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
ANSWERS: Json = {
    "elicitation/create": {"type": "object", "required": ["action"], "properties": {
        "action": {"enum": ["accept", "decline", "cancel"]}}},
    "sampling/createMessage": {
        "type": "object", "required": ["content"], "properties": {
            "content": {"type": ["object", "array"], "items": {"type": "object"}}}},
    "roots/list": {"type": "object", "required": ["roots"], "properties": {
        "roots": {"type": "array", "items": {"type": "object"}}}},
}

# What a change of a feature's lists is called: the notification, the key in a listen
# filter.
CHANGES = {
    "tools":     ("notifications/tools/list_changed", "toolsListChanged"),
    "prompts":   ("notifications/prompts/list_changed", "promptsListChanged"),
    "resources": ("notifications/resources/list_changed", "resourcesListChanged"),
}
UPDATES_WANTED = "resourceSubscriptions"  # in that filter: the URIs to hear of
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
INITIALIZED = "notifications/initialized"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
LOG_MESSAGE = "notifications/message"
ROOTS_CHANGED = "notifications/roots/list_changed"

# What a server says of a feature that it offers; of the others there is nothing to say.
CAPABILITIES = {
    "tools":     {"listChanged": True},
    "prompts":   {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
}

# Spellings seen in the wild and from JSON-RPC's relatives; understood, never sent.
# alias -> (notification, {parameter there: parameter here})
ALIASES: dict[str, tuple[str, dict[str, str]]] = {
    **{name.partition("/")[2]: (name, {}) for name in (
        INITIALIZED, CANCELLED, PROGRESS, LOG_MESSAGE, ROOTS_CHANGED, UPDATED,
        *(row[0] for row in CHANGES.values()))},
    "$/cancelRequest": (CANCELLED, {"id": "requestId"}),
    "$/progress":      (PROGRESS, {"token": "progressToken", "value": "progress"}),
}

META = "io.modelcontextprotocol/"
META_VERSION = META + "protocolVersion"
META_CLIENT = META + "clientInfo"
META_CAPABILITIES = META + "clientCapabilities"
META_LOG_LEVEL = META + "logLevel"
META_SERVER = META + "serverInfo"
META_SUBSCRIPTION = META + "subscriptionId"

WRAPS_RESULT = "x-fastmcp-wrap-result"        # in a schema: as {"result": value}
WRAPPED: Json = {"fastmcp": {"wrap_result": True}}  # the same in a result's `_meta`
MAX_COMPLETIONS = 100                         # server/utilities/completion
COMPLETABLE = ("prompts", "resourceTemplates")  # what has arguments to complete
TOOL_NAME = "[A-Za-z0-9_.-]{1,128}"           # server/tools: "Tool Names"

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert",
          "emergency")

PARSE_ERROR = -32700          # the line is not JSON
INVALID_REQUEST = -32600      # JSON, but not a message; or not at this time
METHOD_NOT_FOUND = -32601     # unknown, not in this era, or of a feature not offered
INVALID_PARAMS = -32602       # also: unknown tool, prompt; resource in the modern era
INTERNAL_ERROR = -32603       # a handler other than a tool's failed; a malformed answer
RESOURCE_NOT_FOUND = -32002   # legacy only
MISSING_CAPABILITY = -32021   # modern: the client did not declare what is needed
UNSUPPORTED_VERSION = -32022  # modern: `data` lists what we do support
REQUEST_CANCELLED = -32800    # from LSP: stands on the local Cancelled, is not sent
CONTENT_TOO_LARGE = -32801    # our own: a line over max_message_bytes


# -- 2. Errors -------------------------------------------------------------------------
# Two families.  What derives from Exception is for callers and handlers to catch.  What
# unwinds a handler on our behalf derives from BaseException, so that a tool's own
# `except Exception` cannot eat it.


class McpError(Exception):
    """A JSON-RPC error in either direction: handlers raise it, callers catch it.

    code: int, see the constants.  message: str.  data: any JSON, or None.
    """

    code, message, data = INTERNAL_ERROR, "", None  # of a subclass that sets none

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code, self.message, self.data = code, message, data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def wire(self) -> Json:
        """The error object as it travels."""
        error: Json = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class ToolError(Exception):
    """Raised in a tool: a result with `isError` and this text; and by `call_tool`.

    result: on the client, the whole ToolResult.
    """

    result: Any = None


class RequestTimeout(TimeoutError):
    """No answer and no progress in the time allowed; the other end is told if possible."""


class ConnectionClosed(ConnectionError):
    """The other end is gone, or this one was closed.

    exit_code: of the server process, negative for a signal, None when unknown or when
    there is no process.  stderr: the last 8 KB it wrote there, as str.
    """

    def __init__(self, message: str, exit_code: int | None = None,
                 stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.stderr = exit_code, stderr


class Cancelled(BaseException):
    """The client no longer wants the answer: unwinds the handler, in silence."""

    code = REQUEST_CANCELLED


def method_not_found(method: str) -> McpError:
    return McpError(METHOD_NOT_FOUND, "Method not found", {"method": method})


def invalid_params(message: str, data: Any = None) -> McpError:
    return McpError(INVALID_PARAMS, message, data)


def malformed(fault: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"Malformed answer: {fault}")


def expect(value: Any, kind: type, name: str) -> Any:
    """The value, if it is of this type; else McpError(-32602) with its name."""
    if type(value) is not kind:
        wanted = {"str": "a string", "dict": "an object", "list": "a list"}
        words = wanted.get(kind.__name__, "a boolean")
        raise invalid_params(f'"{name}" must be {words}')
    return value


def error_text(error: BaseException) -> str:
    """What the other end is told of an exception; the traceback stays on stderr."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # its own __str__ fails
        return type(error).__name__


def printable(text: str) -> str:
    """Text with all that a terminal might obey made visible, but newline and tab."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1]
                   for c in text)


# -- 3. Wire ---------------------------------------------------------------------------
# A message is one line: UTF-8 in, ASCII out.  ASCII output has no code page, no U+2028,
# no lone surrogate and no line break inside, so a whole class of bugs cannot occur.


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_to_text = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_from_text = json.JSONDecoder(parse_constant=_refuse_constant).decode
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"?'  # also matches an unended one: never backtracks
MAX_DEPTH = 200  # brackets within each other on a line, unless a server says otherwise
_NESTS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def encode(message: Any) -> bytes:
    """A message as one line.  ValueError, TypeError, RecursionError: it is not JSON."""
    return _to_text(message).encode("ascii") + b"\n"


def notification(method: str, params: Json | None = None) -> Json:
    message: Json = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


def decode(line: bytes, max_depth: int) -> Any:
    """The JSON on a line, or McpError saying why it is none."""
    # Depth first: nested deep enough, a line kills the parser and the process with it.
    # Few lines have that many brackets at all; only those are looked at closely.
    if line.count(b"[") + line.count(b"{") > max_depth and _depth(line) > max_depth:
        raise McpError(PARSE_ERROR, f"Parse error: nested deeper than {max_depth}")
    try:
        return _from_text(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        unreadable = isinstance(error, UnicodeDecodeError)
        reason = "not UTF-8" if unreadable else str(error)[:100]
        raise McpError(PARSE_ERROR, f"Parse error: {reason}; expected one JSON message "
                       "on each line") from None


def _depth(line: bytes) -> int:
    from itertools import accumulate

    bare = re.sub(_STRING, b"", line, flags=re.DOTALL)
    brackets = bare.translate(None, bytes(set(range(256)) - _NESTS.keys()))
    return max(accumulate(map(_NESTS.__getitem__, brackets)), default=0)


def _dict(value: Any) -> Json:
    """The value if it is an object, else {}: the other end may send anything."""
    return value if type(value) is dict else {}


def read_id(value: Any) -> int | str | None:
    """A request id or progress token as it stands, 1.0 as 1; None for anything else."""
    kind = type(value)
    if kind is int or kind is str:
        return value  # type: ignore[no-any-return]
    return int(value) if kind is float and value.is_integer() else None


def shape_of(message: Any) -> str:
    """ "request", "notification" or "response"; McpError if none (basic: Messages)."""
    if type(message) is not dict:
        fault = "expected a JSON object"
    elif "method" not in message and ("result" in message or "error" in message):
        return "response"  # its faults are the affair of the call it answers
    elif message.get("jsonrpc") != "2.0":
        fault = '"jsonrpc" must be "2.0"'
    elif type(message.get("method")) is not str:
        fault = '"method" must be a string'
    elif "result" in message or "error" in message:
        fault = "both a request and a response"
    elif "id" not in message:
        return "notification"
    elif read_id(message["id"]) is not None:
        return "request"
    else:
        fault = '"id" must be a string or an integer'
    raise McpError(INVALID_REQUEST, f"Invalid request: {fault}")


class Lines:
    """The lines of a binary stream, for one thread at a time.

    Each byte is looked at once however the chunks fall.  The rest of a line that has
    passed `limit` bytes is thrown away as it arrives.
    """

    def __init__(self, stream: Any, limit: int) -> None:
        stream = getattr(stream, "buffer", stream)  # a text stream: what is underneath
        self._read = getattr(stream, "read1", None) or stream.read
        self._readable, self.limit = Readiness(stream, reading=True), limit
        self._whole: deque[bytes] = deque()  # lines that have arrived
        self._parts: list[bytes] = []        # the line that is arriving
        self._size = 0                       # bytes in these
        self._first = True
        self.waiting = False                 # inside the stream, for more to come

    def next(self) -> bytes | None:
        """The next line without its newline, waiting for it; None at the end."""
        while not self._whole:
            if not self._read_some():
                return None
        line = self._whole.popleft()
        if self._first:
            self._first = False
            line = line[3:] if line.startswith(b"\xef\xbb\xbf") else line
        return line

    def ready(self, seconds: float) -> bool:
        """Wait for something to read; False when the time is up, or no way to tell."""
        return bool(self._whole) or self._readable.ready(seconds)

    def more(self) -> bool:
        """Take in what has come; False if it makes no whole line, nor is the end."""
        return bool(self._whole) or not self._read_some() or bool(self._whole)

    def _read_some(self) -> bool:
        """Take in what has come, or wait for some; False at the end."""
        try:
            self.waiting = True
            chunk = self._read(65536)
            self.waiting = False
            if chunk is None:  # a descriptor somebody made non-blocking
                self._readable.wait(1.0)
            elif chunk or self._parts:  # the last line may lack its newline
                self._split(chunk or b"\n")
            return chunk != b"" or bool(self._whole)
        except (OSError, ValueError):  # the stream broke, or was closed under us
            return False

    def _split(self, chunk: bytes) -> None:
        for newlines, part in enumerate(chunk.split(b"\n")):
            if newlines:
                self._whole.append(b"".join(self._parts))
                self._parts, self._size = [], 0
            # A line past the limit keeps just enough bytes to show it, less a BOM.
            part = part[:self.limit + 4 - self._size]
            if part:
                self._parts.append(part)
                self._size += len(part)


class Readiness:
    """Can a stream be read, or written, without blocking?  For one thread at a time."""

    def __init__(self, stream: Any, reading: bool) -> None:
        self._stream, self._reading = stream, reading
        self._poll: Any = None  # made when needed: most streams never make one wait

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it can, or until the time is up.

        OSError, TypeError, ValueError: it has no descriptor, or none to wait for.
        """
        if self._poll is None:
            self._poll = self._make_poll()
        return any(self._poll(seconds))

    def ready(self, seconds: float) -> bool:
        """The same; where there is no way to tell, reading might block, writing not."""
        try:
            return self.wait(seconds)
        except (OSError, TypeError, ValueError):  # closed, say, or a pipe on Windows
            return not self._reading

    def _make_poll(self) -> Callable[[float | None], Any]:
        import select

        if not hasattr(select, "poll"):  # Windows, where it works for sockets only
            one: list[Any] = [self._stream]
            read, write = (one, []) if self._reading else ([], one)
            return lambda seconds: select.select(read, write, [], seconds)
        poll = select.poll()
        poll.register(self._stream, select.POLLIN if self._reading else select.POLLOUT)
        return lambda seconds: poll.poll(None if seconds is None else seconds * 1000)


def report(doing: str) -> None:
    """Put the exception in hand on stderr, where a host keeps its server's log."""
    import traceback

    say(f"{doing}:\n{traceback.format_exc()}")


def say(text: str, patience: float = 0.0) -> None:
    """Write to stderr, but drop what would block longer: nobody may be reading it."""
    text = printable(text)
    try:
        writable = Readiness(sys.stderr, reading=False)
        for at in range(0, len(text), 1000):  # a pipe takes 4096 bytes if it takes any
            if not writable.ready(patience):
                break
            sys.stderr.write(text[at:at + 1000])
            sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # there is none, or it is closed: there is nobody to tell


class Trace:
    """Every line that crosses, with its time: > goes to the server, < to the client.

    MCP_MIN_TRACE=stderr or =/some/file turns it on; an answer is shown with the method
    it answers and the milliseconds it took.
    """

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._lock = threading.Lock()  # guards _asked, and keeps lines whole
        self._asked: dict[Any, tuple[str, float]] = {}

    @classmethod
    def to(cls, target: str) -> Trace:
        """A trace to "stderr", or to the end of a file."""
        if target == "stderr":
            return cls(partial(say, patience=0.02))
        # Wire traffic may hold secrets: nobody else reads the file.
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return cls(open(fd, "w", encoding="utf-8", buffering=1).write)

    def show(self, arrow: str, data: bytes) -> None:
        for line in data.splitlines():
            with self._lock:
                now = time.time()
                clock = time.strftime("%H:%M:%S", time.localtime(now))
                clock += f".{int(now % 1 * 1000):03}"
                text = printable(line.decode("utf-8", "backslashreplace"))
                note = self._note(arrow, line)
                try:
                    self._write(f"{clock} {arrow} {text}{note}\n")
                except (OSError, ValueError):
                    pass  # a full disk must not stop the wire

    def _note(self, arrow: str, line: bytes) -> str:
        try:
            message = decode(line, MAX_DEPTH)
            key = message["id"]
            if "method" in message:
                if len(self._asked) > 10000:  # cancelled, most of them
                    self._asked.clear()
                self._asked[arrow, key] = message["method"], time.perf_counter()
                return ""
            method, start = self._asked.pop(("<" if arrow == ">" else ">", key))
            return f"  # {method} {(time.perf_counter() - start) * 1000:.1f} ms"
        except (McpError, KeyError, TypeError):
            return ""


# -- 4. Peer ---------------------------------------------------------------------------
# Two tables: Peer._active (their requests) and Peer._pending (our calls).
# An id leaves a table once, and whoever pops it acts on it: the answer, a cancellation,
# a timeout and the end of the connection race for the pop, and only one wins.  What is
# said *about* a request is queued under the lock that proves the request alive, so
# progress cannot follow an answer and a cancelled request is silent by construction.

DETACHED: Json = {}  # a handler's "no answer yet": the request lives, without a thread
LATER = object()     # `Call.read`'s "no outcome yet": who said it will finish the call
CROWDED = 1000       # queued lines from which on senders wait for the writer
GRACE = 0.002        # seconds a leader may be stuck, or missing, until there is another
BACKLOG = 10000      # callbacks that wait; what a server tells beyond that is dropped
LINGER = 0.05        # seconds without requests until the timekeeper sleeps


class Workers:
    """Threads that take jobs in order, made when needed, at most `limit`; 1: a lane."""

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._ready = threading.Condition()  # guards the rest; notified: job, closed
        self._jobs: deque[Callable[[], Any]] = deque()
        self._threads: set[int] = set()  # their identities
        self._started = self._idle = 0
        self._closed = False

    def submit(self, job: Callable[[], Any]) -> bool:
        """Have a thread run it; False if there is none and none can be started.

        The job waits even then: whatever thread comes next will run it.
        """
        with self._ready:
            self._jobs.append(job)
            grow = self._idle < len(self._jobs) and self._started < self._limit
            self._started += grow
            self._ready.notify()
        if not grow or start_thread(self._name, self._work):
            return True
        with self._ready:
            self._started -= 1
            return self._started > 0

    def full(self) -> bool:
        """Do so many jobs wait that what may be dropped should be?"""
        return len(self._jobs) > BACKLOG

    def inside(self) -> bool:
        """Is the calling thread one of these?"""
        return threading.get_ident() in self._threads

    def close(self) -> None:
        """Let waiting jobs run, then end all threads; returns at once."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _work(self) -> None:
        self._threads.add(threading.get_ident())
        for job in iter(self._next, None):
            try:
                job()
            except BaseException:
                report("mcp_min: a callback failed")

    def _next(self) -> Callable[[], Any] | None:
        with self._ready:
            self._idle += 1
            while not self._jobs and not self._closed:
                self._ready.wait()
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._started -= 1  # a job that comes later yet gets a thread of its own
            self._threads.discard(threading.get_ident())
            return None


def start_thread(name: str, run: Callable[[], Any]) -> bool:
    """Start a thread; False if none can be, as from 3.12 on while the process ends."""
    try:
        # Daemons all: nothing a handler does may keep the process from ending.
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


class Incoming:
    """A request of the other end: alive until it is answered or cancelled.

    id, method, params: as received.  token: the progress token, or None.  cancelled:
    True once the client's cancellation, or the end of the connection, has been read.
    """

    __slots__ = ("peer", "id", "method", "params", "token", "cancelled", "batch",
                 "hooks", "reached", "session")

    def __init__(self, peer: Peer, message: Json, batch: Batch | None) -> None:
        self.peer, self.batch = peer, batch
        self.id, self.method = read_id(message["id"]), message["method"]
        params = message.get("params")
        self.params: Json = {} if params is None else params
        meta = self.params.get("_meta") if type(self.params) is dict else None
        self.token = read_id(meta.get("progressToken")) if type(meta) is dict else None
        self.cancelled = False
        self.hooks: tuple[Callable[[], Any], ...] = ()  # run on cancellation
        self.reached = float("-inf")  # the highest progress told
        self.session: Any = None      # a server's, when it came

    def tell(self, method: str, params: Json, reached: float | None = None) -> None:
        """Send a notification about this request; nothing once it is answered."""
        self.peer.tell(self, encode(notification(method, params)), reached=reached)

    def on_cancel(self, hook: Callable[[], Any]) -> None:
        """Have it called, once, when the request is cancelled; now if it has been."""
        with self.peer._lock:
            if not self.cancelled:
                self.hooks += (hook,)
                return
        hook()

    def progress(self, progress: float, total: float | None,
                 message: str | None) -> None:
        """Report it if the client gave a token and it increases (basic: "Progress")."""
        if self.token is None or not progress > self.reached:
            return
        params: Json = {"progressToken": self.token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self.tell(PROGRESS, params, reached=progress)

    def answer(self, **reply: Any) -> None:
        """Send `result=` or `error=`, unless answered or cancelled before."""
        try:
            data = encode({"jsonrpc": "2.0", "id": self.id, **reply})
        except Exception as error:  # of a dict of the user's, any
            fault = f"The result is not JSON: {error_text(error):.200}"
            return self.answer(error=McpError(INTERNAL_ERROR, fault).wire())
        self.peer.tell(self, data, last=True)


class Batch:
    """The answers to an array of messages, sent as one array when the last is there."""

    def __init__(self, messages: int) -> None:
        self._missing = messages
        self._answers: list[bytes] = []

    def add(self, answer: bytes) -> bytes:  # Peer._lock is held
        """Count one message as done, b"" if silently; the array if it was the last."""
        self._missing -= 1
        self._answers += [answer.rstrip()] if answer else []
        whole = not self._missing and self._answers
        return b"[" + b",".join(self._answers) + b"]\n" if whole else b""


class Call:
    """A request of ours, pending until it is answered, cancelled, late or orphaned.

    read(call, result): what the caller gets, worked out on the thread that reads; it
    may say LATER, and send the call again or finish it itself.  on_progress(progress,
    total, message): called on the lane.

    future: a concurrent.futures.Future of the outcome, made when somebody needs one to
    wait with.  Who reads for itself does not (see Peer.wait), which makes a call a
    fifth shorter, and the start of a program that only calls and waits 6 ms.

    stream: it has neither timeout nor cap: a listen request, a question of a server, a
    probe.  It may stay open for long, so callers read for themselves beside it.
    """

    __slots__ = ("id", "method", "outcome", "read", "on_progress", "timeout",
                 "deadline", "cap", "untold", "inside", "watched", "stream",
                 "_future", "_lock")

    def __init__(self, method: str, read: Any, on_progress: Any, timeout: float | None,
                 cap: float | None) -> None:
        self.id, self.method, self.read = 0, method, read
        self.on_progress = on_progress
        self.timeout = float("inf") if timeout is None else timeout
        self.untold = 0      # progress that has come and on_progress was not yet told
        self.inside = False  # a callback waits for it: it must not wait for callbacks
        self.watched = False  # its future is in a user's hands
        self.cap = float("inf") if cap is None else time.monotonic() + cap
        self.deadline = self.cap  # until it is sent
        self.stream = timeout is None and cap is None
        self._lock = threading.Lock()  # guards the rest
        self.outcome: tuple[Any, BaseException | None] | None = None
        self._future: Future[Any] | None = None

    def touch(self) -> None:
        """Start the timeout anew, never past the cap."""
        self.deadline = min(self.cap, time.monotonic() + self.timeout)

    @property
    def future(self) -> Future[Any]:
        from concurrent.futures import Future

        with self._lock:
            if self._future is None:
                self._future = Future()
                if self.outcome:  # nobody has the future: no callback runs in here
                    pass_on(self._future, *self.outcome)
            return self._future

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self.outcome, future = (result, error), self._future
        if future:
            pass_on(future, result, error)

    def receive(self, message: Json) -> None:
        """Finish with what an answer says, or with what is wrong with it."""
        try:
            result = read_answer(message)
            value = self.read(self, result) if self.read else result
        except Exception as error:
            return self.finish(error=error)
        if value is not LATER:
            self.finish(value)


def pass_on(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return  # cancelled meanwhile: nobody waits
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def wait_for(seconds: float, *futures: Future[Any]) -> None:
    """Wait until one of these is done, or the time is up."""
    from concurrent.futures import wait

    wait(futures, min(seconds, threading.TIMEOUT_MAX), "FIRST_COMPLETED")


def read_answer(message: Json) -> Json:
    """The result of a response; its error raised, or McpError(-32603) if malformed."""
    error = message.get("error")
    if message.get("jsonrpc") != "2.0":
        fault = '"jsonrpc" is not "2.0"'
    elif ("result" in message) == ("error" in message):
        fault = 'it needs either "result" or "error"'
    elif type(message.get("result")) is dict:
        return message["result"]  # type: ignore[no-any-return]
    elif type(error) is dict and type(error.get("code")) is int:
        raise McpError(error["code"], str(error.get("message")), error.get("data"))
    else:
        fault = '"result" is not an object, or "error" has no integer "code"'
    raise malformed(fault)


class Peer:
    """One end of a JSON-RPC connection over two binary streams.

    It knows no methods but the two notifications about requests, cancelled and
    progress, and that `initialize` is never cancelled; the rest is its role's:

        role.swift(incoming)           it has just come: note what it depends on; may
                                       the leader settle it before it reads on?
        role.handle(incoming)          -> result or DETACHED; what it raises is answered
        role.notified(method, params)  on the leader
        role.batches()                 are arrays of messages allowed now?
        role.noise(line)               a line that is no message (clients only)
        role.hung_up()                 the other end has closed; before the drain
        role.error_text(error)         what to answer when a handler failed
        role.closed_error()            -> what a call fails with
        role.timeout_error(reason)     the same (clients only)

    answers: what is answered: "all" (a server: garbage too), "requests" (a client of a
    handshake revision) or "none" (of a stateless one: it writes no responses).

    The leader is the thread that reads, one at a time.  A server's leader also runs the
    handlers, which costs nothing; a hand-over to a worker would double the time of a
    call, a thread for each call triple it.  When a handler has kept it for GRACE, the
    timekeeper makes another thread leader.  A client's callers lead while they wait,
    for the same reason; the timekeeper finds a worker to lead when none has for GRACE.
    """

    def __init__(self, role: Any, reader: Any, writer: Any, *, answers: str,
                 own_reader: bool, max_workers: int, drain_seconds: float = 0.0,
                 max_message_bytes: int = 64 << 20, max_depth: int = MAX_DEPTH) -> None:
        self._role, self.answers, self._serving = role, answers, answers == "all"
        self._max_depth = max_depth
        self._drain_seconds = min(drain_seconds, threading.TIMEOUT_MAX)
        self._own_reader = reader if own_reader else None  # closed at its end
        self._lines = Lines(reader, max_message_bytes)
        self._out = getattr(writer, "buffer", writer)
        self._writable = Readiness(self._out, reading=False)
        self.trace: Trace | None = None

        self._lock = threading.Lock()            # guards all to the next blank line
        self._active: dict[Any, Incoming] = {}   # their requests that are alive, by id
        self._pending: dict[Any, Call] = {}      # ours, by id
        self._awaited = 0                        # how many of these are no streams
        self._last_id = 0
        self._outbox: list[bytes] = []
        self.closed = False
        self._leader: object | None = None  # who reads; each leader has its own object
        self._busy = False      # the leader runs a handler
        self._since = 0.0       # when it began to, or when the last leader stepped down
        self._settled = False   # it has read an answer, so it may step down
        self._aside = 0         # requests that other threads run, or are to run
        self._wakes_at: float | None = None  # when the timekeeper looks; None: not yet

        self._time = threading.Condition(self._lock)  # notified: look earlier; drained
        self.writing = threading.Lock()          # held by whoever writes
        self.workers = Workers("mcp worker", max_workers + 1)  # one of them leads
        self.lane = Workers("mcp callbacks", 1)
        self._writer = Workers("mcp writer", 1)  # writes for those who may not wait
        self.ended = threading.Event()           # set when nothing more is to be read
        self.done = threading.Event()            # set when nothing more will happen

    def start(self) -> None:
        """Begin to read, on a thread of our own.  OSError: there can be no trace."""
        target = os.environ.get("MCP_MIN_TRACE")
        if target and self.trace is None:
            self.trace = Trace.to(target)
        with self._lock:
            self._new_leader()

    # -- sending

    def send(self, message: Json) -> None:
        """Queue a message and see it written.  ValueError, TypeError: it is no JSON."""
        self._post(encode(message))

    def _post(self, data: bytes, batch: Batch | None = None) -> None:
        with self._lock:
            self._outbox.append(batch.add(data) if batch else data)
        self._flush()

    def queue(self, message: Json, about: Incoming | None = None) -> None:
        """Have it sent, for who holds a lock; nothing if `about` has ended."""
        data = encode(message)
        with self._lock:
            if about is None or self._active.get(about.id) is about:
                self._outbox.append(data)
        self._writer.submit(self._flush)

    def tell(self, incoming: Incoming, data: bytes, *, last: bool = False,
             reached: float | None = None) -> None:
        """Send a line about a request: its answer if `last`, progress if `reached`.

        Nothing is sent once the request has ended, or if it has got further meanwhile.
        """
        with self._lock:
            if self._active.get(incoming.id) is not incoming:
                return
            if reached is not None:
                if reached <= incoming.reached:
                    return
                incoming.reached = reached
            if last:
                self._forget(incoming)
                data = incoming.batch.add(data) if incoming.batch else data
            self._outbox.append(data)
        self._flush()

    def _forget(self, incoming: Incoming) -> None:  # _lock is held
        del self._active[incoming.id]
        if not self._serving:  # the server has its answer: our calls' time starts anew
            for call in self._pending.values():
                call.touch()
        if not self._serving or self.ended.is_set():
            self._time.notify_all()

    def _flush(self, patient: bool = False) -> None:
        try:
            while self._outbox and self._write_out(patient):
                pass
        except BaseException:  # Ctrl-C, perhaps between getting the lock and the `try`
            if self.writing.locked():  # then for good, if not by another just now
                self.close()
            raise

    def _write_out(self, patient: bool) -> bool:
        """Write what is queued; False if another thread does or will."""
        # Not getting the lock is as good as having written: its holder looks again.
        crowded = self._serving and len(self._outbox) > CROWDED
        if not self.writing.acquire(blocking=patient or crowded):
            return False
        try:
            with self._lock:
                data, self._outbox = b"".join(self._outbox), []
            if not data:
                pass  # others have taken it along, or a batch has no answers
            elif self._serving or patient or self._fits(data):
                self._write(data)
            else:  # a caller has a timeout to keep
                with self._lock:
                    self._outbox.insert(0, data)
                self._writer.submit(partial(self._flush, True))
                return False
            return True
        finally:
            self.writing.release()

    def _fits(self, data: bytes) -> bool:
        # A pipe that can be written takes at least PIPE_BUF bytes (4096) at once.
        return len(data) <= 4096 and self._writable.ready(0)

    def _write(self, data: bytes) -> None:
        if self.trace:
            self.trace.show("<" if self._serving else ">", data)
        rest: Any = data
        try:
            while (written := self._out.write(rest)) != len(rest):
                if written is not None:
                    rest = memoryview(rest)[written:]
                elif hasattr(self._out, "fileno"):  # somebody made it non-blocking
                    self._writable.wait()
                else:
                    break  # no file: it has taken all, and does not say so
            self._out.flush()
        except (OSError, ValueError):  # EPIPE, or closed under us: nobody listens
            self._writer.submit(self.close)

    # -- calling

    def request(self, method: str, params: Json | None = None, *, read: Any = None,
                on_progress: Any = None, timeout: float | None = None,
                cap: float | None = None, token: bool = False) -> Call:
        """Send a request; returns before it is answered.

        read, on_progress: see Call.  timeout: seconds without an answer or progress.
        cap: seconds at most.  Neither: a stream, see Call.
        token: progress may be told.
        """
        call = Call(method, read, on_progress, timeout, cap)
        self.resend(call, params, token)
        return call

    def resend(self, call: Call, params: Json | None, token: bool = False) -> None:
        """Send a call (again) with an id of its own; the outcome will be this one's."""
        with self._lock:
            self._last_id = call.id = self._last_id + 1
        call.inside = self.lane.inside()
        call.touch()
        if token:
            meta = {**((params or {}).get("_meta") or {}), "progressToken": call.id}
            params = {**(params or {}), "_meta": meta}
        message: Json = {"jsonrpc": "2.0", "id": call.id, "method": call.method}
        data = encode(message if params is None else {**message, "params": params})
        self._enter(call, [data])

    def hold(self, call: Call) -> None:
        """Keep an answered call pending, until it is claimed to be sent again.

        Under an id that never travels: what comes late for the old one misses it.
        Meanwhile it may be cancelled, and fails by its cap or with the connection.
        """
        call.id, call.deadline = -call.id, call.cap
        self._enter(call, [])

    def _enter(self, call: Call, lines: list[bytes]) -> None:
        with self._lock:
            closed = self.closed or self.ended.is_set()
            if not closed:
                self._pending[call.id] = call
                self._awaited += not call.stream
                self._outbox += lines
                self._look_at(call.deadline)
        if closed:
            call.finish(error=self._role.closed_error())
        else:
            self._flush()

    def watched(self, call: Call) -> Future[Any]:
        """The future of a call, which now may be cancelled by whoever holds it."""
        call.watched = True
        call.future.add_done_callback(lambda _: self.abandon(call))
        return call.future

    def wait(self, call: Call) -> Any:
        """The outcome of a call; reads for it if nobody does: no thread to wake."""
        try:
            self._lead_for(call)
            result, error = call.outcome or (call.future.result(), None)
        except BaseException:  # Ctrl-C: who stops waiting wants it no more
            self._step_down(call)  # should it have come too early to do so
            self.watched(call).cancel()
            raise
        if error is not None:
            raise error
        return result

    def _lead_for(self, call: Call) -> None:
        """Read until a call is answered, if nobody reads."""
        try:
            with self._lock:
                if self._leader is not None or self.closed:
                    return
                self._leader = call
            while (self._leader is call and call.id in self._pending
                   and self._lines.ready(GRACE) and self._step(whole=False)):
                pass
        finally:
            self._step_down(call)

    def peek(self, call: Call, seconds: float) -> Any:
        """The outcome of a call without a timeout of its own, which stays pending."""
        wait_for(seconds, call.future)
        if call.future.done():
            return call.future.result()
        raise self._role.timeout_error(f"{call.method}: no answer in {seconds:.3g} s")

    def claim(self, key: Any) -> Call | None:
        """Take a call out of the table: now its outcome is for the taker to say."""
        if type(key) is str and key.isdecimal() and str(int(key[:20])) == key:
            key = int(key)  # some servers answer 1 with "1"; nothing looser is accepted
        with self._lock:
            call = self._pending.pop(read_id(key), None)
            if call and not call.stream:
                self._awaited -= 1
        return call

    def abandon(self, call: Call) -> None:
        """Withdraw a call if its future was cancelled."""
        if call.future.cancelled() and self.claim(call.id):
            call.finish()  # for who waits on several futures
            self._withdraw(call, "cancelled")

    def _withdraw(self, call: Call, reason: str) -> None:
        # basic/lifecycle: `initialize` MUST NOT be; a held call (< 0) is answered.
        if call.method != "initialize" and call.id > 0:
            self.send(notification(CANCELLED, {"requestId": call.id, "reason": reason}))

    def _expire(self, call: Call) -> None:
        self._withdraw(call, "timed out")
        why = "no answer within max_timeout" if time.monotonic() >= call.cap else (
            f"no answer or progress within {call.timeout} s")
        call.finish(error=self._role.timeout_error(f"{call.method}: {why}"))

    # -- reading

    def _lead(self, me: object) -> None:
        """Read, and run what may run here, until another thread leads or it is over."""
        while self._leader is me and self._step():
            # Only after an answer: until another leads, nobody may read for GRACE.
            if self._settled and not (self._serving or self._awaited or self.closed):
                self._step_down(me)  # whoever calls next need not wake this thread

    def _step(self, whole: bool = True) -> bool:
        """Read a line and see to it; False when there are no more.

        Unless `whole`: it does not wait for one of which but a part has come; False.
        """
        try:
            if not whole and not self._lines.more():
                return False
            line = self._lines.next()
            if line is None:
                self._hang_up()
            elif not self.closed:
                self._receive(line)
            # A stream of ours is read to its end even when closed: the other end must
            # not hang in a full pipe, and the end is how we know that it has gone.
            return line is not None and not (self.closed and self._own_reader is None)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                report("mcp_min: internal error")
            self.close()  # a line may be lost: its caller must not wait for ever
            raise

    def _step_down(self, me: object) -> None:
        """Stop leading: the next caller may.  While calls are awaited a worker does."""
        with self._lock:
            if self._leader is not me:
                return  # stuck for GRACE, in a ping say: another thread reads already
            self._leader, self._since = None, time.monotonic()
            self._settled = False
            if self._awaited or self.closed:
                self._new_leader()
            else:
                self._look_at(self._since + GRACE)

    def _new_leader(self) -> None:  # _lock is held
        if self.ended.is_set():
            return
        if self._busy:  # what the leader so far runs goes on, aside
            self._busy = False
            self._aside += 1
        self._leader = leader = object()
        if not self.workers.submit(partial(self._lead, leader)):
            self.ended.set()  # the process ends: nobody will read on

    def pass_reading_on(self) -> None:
        """Have another thread read from now on; for handlers that are about to wait."""
        with self._lock:
            if self._busy:
                self._new_leader()

    def _look_at(self, when: float) -> None:  # _lock is held
        """Have the timekeeper look at this time, if not earlier."""
        if self._wakes_at is None:
            self._wakes_at = when
            start_thread("mcp timekeeper", self._keep_time)
        elif when < self._wakes_at:
            self._time.notify_all()

    def _keep_time(self) -> None:
        # Asleep while nothing happens.  Calls that end in time do not wake it: it looks
        # when the earliest deadline there was has come, so about once in a timeout.
        with self._time:
            while not self.closed:
                now = time.monotonic()
                stuck = self._busy or self._leader is None
                if stuck and now - self._since >= GRACE:
                    self._new_leader()
                lingers = now - self._since < LINGER
                looks = [now + GRACE if lingers else float("inf")]
                # A server that asks waits for us: only the cap goes on.
                asked = self._active and not self._serving
                for call in list(self._pending.values()):
                    end = call.cap if asked else call.deadline
                    looks.append(max(end, now))
                    if end <= now:
                        del self._pending[call.id]
                        self._awaited -= 1
                        self.workers.submit(partial(self._expire, call))
                self._wakes_at = min(looks)
                self._time.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))

    def _receive(self, line: bytes) -> None:
        if self.trace:
            self.trace.show(">" if self._serving else "<", line)
        try:
            if len(line) > self._lines.limit:
                text = f"Message over {self._lines.limit} bytes skipped"
                raise McpError(CONTENT_TOO_LARGE, text)
            if not line or line.isspace():
                return
            message = decode(line, self._max_depth)
            if type(message) is list and not (message and self._role.batches()):
                raise McpError(INVALID_REQUEST, "Invalid request: no batches here")
        except McpError as error:
            return self._refuse(line, None, error)
        batch = Batch(len(message)) if type(message) is list else None
        for element in message if batch else [message]:
            self._route(element, line, batch)

    def _route(self, message: Any, line: bytes, batch: Batch | None) -> None:
        try:
            shape = shape_of(message)
            if shape == "request":
                return self._begin(Incoming(self, message, batch))
        except McpError as error:
            if self._serving or type(message) is not dict or "method" in message:
                return self._refuse(line, message, error, batch)
            shape = "response"  # perhaps; then the call says what is wrong with it
        if shape == "response":
            self._answered(message, line)
        else:
            self._notice(message["method"], message.get("params"))
        if batch:
            self._post(b"", batch)

    def _refuse(self, line: bytes, message: Any, error: McpError,
                batch: Batch | None = None) -> None:
        """Answer what cannot be taken; not on a client: that might start a storm."""
        if not self._serving:
            return self._role.noise(line)  # type: ignore[no-any-return]
        key = read_id(_dict(message).get("id"))
        self._post(encode({"jsonrpc": "2.0", "id": key, "error": error.wire()}), batch)

    def _answered(self, message: Json, line: bytes) -> None:
        call = self.claim(message.get("id"))  # None: unknown, late, or a second answer
        self._settled = call is not None
        if call and call.untold and not call.inside:  # its progress is told first
            self.lane.submit(partial(call.receive, message))
        elif call and call.watched and not self._serving:
            # Its callbacks are a user's: not for the leader.  A server's calls are our
            # own, and its workers may all be waiting for them.
            self.workers.submit(partial(call.receive, message))
        elif call:
            call.receive(message)
        elif message.get("id") is None and not self._serving:
            self._role.noise(line)

    def _notice(self, method: str, params: Any) -> None:
        method, renamed = ALIASES.get(method, (method, {}))
        params = {renamed.get(key, key): value for key, value in _dict(params).items()}
        # A cancellation that hits is settled here; all else reaches the role as well.
        if method == CANCELLED and self._cancel(params.get("requestId")):
            return
        if method == PROGRESS:
            self._hear_progress(params)
        self._role.notified(method, params)

    def _cancel(self, key: Any) -> bool:
        with self._lock:
            incoming = self._active.get(read_id(key))
            if incoming is None:
                return False  # unknown or finished: nothing to do here
            self._forget(incoming)
            incoming.cancelled = True
        for hook in incoming.hooks:
            hook()
        if incoming.batch:
            self._post(b"", incoming.batch)
        return True

    def _hear_progress(self, params: Json) -> None:
        with self._lock:
            call = self._pending.get(read_id(params.get("progressToken")))
            if call is None or type(params.get("progress")) not in (int, float):
                return
            call.touch()
            if call.on_progress is None or self.lane.full():
                return
            call.untold += 1
        self.lane.submit(partial(self._tell_progress, call, params))

    def _tell_progress(self, call: Call, params: Json) -> None:
        try:
            call.on_progress(*map(params.get, ("progress", "total", "message")))
        finally:
            with self._lock:
                call.untold -= 1

    # -- serving

    def _begin(self, incoming: Incoming) -> None:
        """Run a request here or on a worker; McpError if its id is in use."""
        swift = self._role.swift(incoming)
        with self._lock:
            if self.answers == "none" or self.closed:
                return
            if self._active.setdefault(incoming.id, incoming) is not incoming:
                raise McpError(INVALID_REQUEST, "Invalid request: this id is in use")
            # A server's leader runs a request itself while none runs aside; or else
            # each of many slow ones would keep it for GRACE.
            alone = self._serving and not (self._aside or incoming.batch)
            here = swift or alone
            if here:
                me, self._busy, self._since = self._leader, True, time.monotonic()
                self._look_at(self._since + GRACE)
            else:
                self._aside += 1
        if here:
            self._run(incoming, me)
        else:
            self.workers.submit(partial(self._run, incoming, incoming))

    def _run(self, incoming: Incoming, me: object) -> None:
        self._handle(incoming)
        with self._lock:
            if self._leader is me:
                self._busy = False
            else:  # aside from the start, or since it had taken longer than GRACE
                self._aside -= 1

    def _handle(self, incoming: Incoming) -> None:
        """Handle a request: what a handler raises becomes an error on the wire."""
        if incoming.cancelled:
            return
        try:
            result = self._role.handle(incoming)
        except McpError as error:
            incoming.answer(error=error.wire())
        except BaseException as error:
            if incoming.cancelled:
                return  # nobody waits; what failed has failed because of it
            report(f"mcp_min: {incoming.method} failed")
            text = self._role.error_text(error)
            incoming.answer(error=McpError(INTERNAL_ERROR, text).wire())
        else:
            if result is not DETACHED:
                incoming.answer(result=result)

    # -- ending

    def _hang_up(self) -> None:
        """The other end has closed: finish what is in flight, in bounded time; end."""
        if self._own_reader:
            self._own_reader.close()
        self.ended.set()
        self._fail_pending()
        self._role.hung_up()
        end = time.monotonic() + self._drain_seconds
        with self._time:
            self._time.wait_for(lambda: not self._active, self._drain_seconds)
        written = threading.Event()
        self._writer.submit(partial(self._write_all, written))
        written.wait(max(0.0, end - time.monotonic()))
        self.close()

    def _write_all(self, written: threading.Event) -> None:
        self._flush(True)
        with self.writing:  # whoever emptied the outbox may still be writing
            written.set()

    def _fail_pending(self) -> None:
        with self._lock:
            calls, self._pending = list(self._pending.values()), {}
            self._awaited = 0
        for call in calls:
            fail = partial(call.finish, error=self._role.closed_error())
            # A user's callbacks of one future may wait for the next; see _answered.
            if self._serving or not (call.watched and self.workers.submit(fail)):
                fail()

    def give_up(self) -> bool:
        """Close, if all that has come is seen to and a thread waits for more."""
        if self._lines.waiting:
            self.close()
        return self.closed

    def close(self) -> None:
        """End at once, if not ended: calls fail, handlers are cancelled, threads go."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            active, self._active = list(self._active.values()), {}
            for incoming in active:
                incoming.cancelled = True
            self._outbox = []
            self._time.notify_all()
            if self._leader is None:
                self._new_leader()
        for hook in [hook for incoming in active for hook in incoming.hooks]:
            hook()
        self._fail_pending()
        for workers in self.workers, self.lane, self._writer:
            workers.close()
        self.done.set()


# -- 5. Stdio --------------------------------------------------------------------------
# A stray print, a C library or a child process that writes to fd 1 corrupts the wire,
# and a child that reads fd 0 eats it.  So the wire moves to private duplicates, once,
# before anything else runs, and 0 and 1 point where they can do no harm.  They are read
# and written raw: a thread inside sys.stdin at exit would abort the interpreter.

_streams_taken = threading.Lock()  # held while a server of this process has them
_private: set[Any] = set()  # files that a forked child must not keep open


def keep_private(*files: Any) -> None:
    """Have these closed in forked children: a pipe held there never reads as ended."""
    if not _private and hasattr(os, "register_at_fork"):  # twice would do no harm
        os.register_at_fork(after_in_child=lambda: [file.close() for file in _private])
    _private.update(files)
    _private.difference_update([file for file in _private.copy() if file.closed])


class StandardStreams:
    """The wire of a stdio server: `with StandardStreams() as (reader, writer)`.

    Restores fd 0 and 1 at the end.  RuntimeError when they are taken already.  The
    reader is not closed here: a thread may be inside it.
    """

    def __enter__(self) -> tuple[Any, Any]:
        if not _streams_taken.acquire(blocking=False):
            raise RuntimeError("a server of this process already has stdin and stdout")
        try:
            for fd in 0, 1:
                os.fstat(fd)  # OSError: it is closed
            # Where stderr is closed this becomes fd 2, and stays: or the wire would be.
            null = os.open(os.devnull, os.O_RDWR)
            self._stdin, reader, self._writer = files = [
                open(os.dup(fd), mode, buffering=0)  # noqa: SIM115
                for fd, mode in ((0, "rb"), (0, "rb"), (1, "wb"))]
        except BaseException:
            _streams_taken.release()
            raise
        keep_private(*files)
        os.dup2(null, 0)
        os.dup2(2, 1)
        if null > 2:
            os.close(null)
        self._flush()  # what was printed before goes to stderr, not onto the wire
        return reader, self._writer

    def __exit__(self, *exc: object) -> None:
        self._flush()
        for fd, file in enumerate((self._stdin, self._writer)):
            os.dup2(file.fileno(), fd)
            file.close()
        _streams_taken.release()

    def _flush(self) -> None:
        try:
            sys.stdout.flush()
        except (AttributeError, OSError, ValueError):
            pass  # there is none, or it is closed


class Signals:
    """While a server runs, SIGTERM ends it with status 143, Ctrl-C with 130."""

    def __enter__(self) -> None:
        import signal

        self._restore: Any = None
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            self._restore = partial(signal.signal, signal.SIGTERM,
                                    before or signal.SIG_DFL)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._restore:
            self._restore()
        if kind is KeyboardInterrupt:
            raise SystemExit(130) from None


# The variables a server gets unless told otherwise, as the official SDKs have it:
# enough to find programs, nothing that holds a secret.
SAFE_VARIABLES = (
    "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE "
    "SYSTEMDRIVE SYSTEMROOT TEMP USERNAME USERPROFILE" if os.name == "nt" else
    "HOME LOGNAME PATH SHELL TERM USER").split()


def child_environment(extra: dict[str, str] | None, inherit: bool) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if inherit or (
        key in SAFE_VARIABLES and not value.startswith("()"))}  # Shellshock
    return {**kept, **(extra or {})}


def _windows_argv(argv: Sequence[str], env: dict[str, str]) -> list[str]:
    """Find npx.cmd and the like; refuse what cmd.exe would take for its own syntax."""
    import shutil

    found = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    batch = found.lower().endswith((".cmd", ".bat"))
    unsafe = [word for word in argv[1:] if batch and set(word) & set('&|<>^%"!\r\n')]
    if unsafe:
        raise ValueError(f"argument {unsafe[0]!r} is not safe for {found!r}")
    return [found, *argv[1:]]


def _start(argv: Sequence[str], env: dict[str, str], cwd: str | None,
           **pipes: Any) -> Any:
    """The process of a command, looked up in its own PATH, in its own group."""
    import subprocess

    argv = _windows_argv(argv, env) if os.name == "nt" else argv
    flags = (getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # 0 but for Windows
             | getattr(subprocess, "CREATE_NO_WINDOW", 0))
    try:
        return subprocess.Popen(  # never a shell
            argv, env=env, cwd=cwd, start_new_session=True, creationflags=flags,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            **{"stderr": subprocess.PIPE, "bufsize": 0, **pipes})
    except OSError as error:
        where = f" (PATH={env.get('PATH', os.defpath)}; cwd={cwd or os.getcwd()})"
        text = f"cannot start {argv[0]!r}: {error.strerror}{where}"
        raise type(error)(error.errno, text, error.filename) from None


class Streams:
    """A server that is no process of ours: all there is are a reader and a writer.

    ends: whether it ends, and closes its side, when it reads that ours is closed.
    """

    stderr_tail, exit_code = "", None

    def __init__(self, reader: Any, writer: Any, ends: bool = False) -> None:
        self.reader, self.writer, self._ends = reader, writer, ends

    def watch(self, closed: threading.Event, give_up: Callable[[], bool]) -> None:
        pass  # there is nothing that could end before them

    def release(self, pass_on: bool) -> None:
        pass  # there is no stderr

    def last_words(self) -> tuple[int | None, str]:
        return None, ""

    def close(self, closed: threading.Event, writing: threading.Lock) -> None:
        """Hang up, as Process.close does."""
        if self._ends:
            self._close_writer()
        else:  # a buffered stream cannot be closed while a thread is inside it
            start_thread("mcp closing", self._close_writer)
        closed.wait(2 if self._ends else 0.1)

    def _close_writer(self) -> None:
        try:
            self.writer.close()
        except (OSError, ValueError):
            pass


class Process:
    """A server process: its streams, its last words, its end.

    stderr is always read, or the server would stall on a full pipe; `pass_on` gets it
    in str chunks of whole lines, but nothing until `release` says what becomes of it.
    """

    PATIENCE = 2.0  # seconds for each step of the ending

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: str | None,
                 pass_on: Callable[[str], Any] | None) -> None:
        self._popen = _start(argv, env, cwd)
        self.reader, self.writer = self._popen.stdout, self._popen.stdin
        keep_private(self.reader, self.writer)
        self._tail = b""                  # of stderr; one thread writes it
        self._stderr_read = threading.Event()
        self._over = threading.Event()    # it has ended; set for who watches it
        self._patient_until = 0.0         # set when its last words are first waited for
        self._telling = threading.Lock()  # guards the rest; held while passing on
        self._pass_on = pass_on
        self._untold = b""                # has come, but was not passed on
        self._held = True                 # until `release`
        start_thread("mcp stderr", self._drain_stderr)

    def _drain_stderr(self) -> None:
        with self._popen.stderr as stream:
            for chunk in iter(partial(stream.read, 65536), b""):
                self._tail = (self._tail + chunk)[-8192:]
                self._tell(chunk)
        self._tell(b"")
        self._stderr_read.set()

    def _tell(self, chunk: bytes) -> None:
        """Pass on the lines that are whole; all there is at the end of stderr."""
        with self._telling:
            self._untold += chunk
            if self._held:
                self._untold = self._untold[-65536:]
                return
            end = self._untold.rfind(b"\n") + 1
            if self._popen.stderr.closed or len(self._untold) - end > 65536:
                end = len(self._untold)
            text, self._untold = self._untold[:end], self._untold[end:]
            try:
                if text and self._pass_on:
                    self._pass_on(text.decode("utf-8", "replace"))
            except Exception:
                self._pass_on = None  # its reader is gone; keep draining

    def watch(self, closed: threading.Event, give_up: Callable[[], bool]) -> None:
        """Give up on a process that has ended though its stdout is not `closed`.

        A child of its own may hold that.  give_up: False if it is too early, because
        what has been written is not read yet.
        """
        def wait() -> None:
            self._popen.wait()
            self._over.set()
            while not closed.wait(self.PATIENCE / 4) and not give_up():
                pass

        start_thread("mcp exit", wait)

    def release(self, pass_on: bool) -> None:
        """Stop holding stderr back: pass on what came so far, or drop it."""
        if not self._held:
            return  # the lock may be held for as long as `pass_on` takes
        with self._telling:
            if not pass_on:
                self._untold = b""
            self._held = False
        if self._untold:  # passing it on may take long, and connecting may not
            start_thread("mcp stderr", partial(self._tell, b""))

    @property
    def stderr_tail(self) -> str:
        return self._tail.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()  # type: ignore[no-any-return]

    def last_words(self) -> tuple[int | None, str]:
        """Exit code and stderr of a process that has closed its stdout.

        Waits for them, 0.5 s each, but not anew for each call that fails.
        """
        now, patience = time.monotonic(), self.PATIENCE / 4
        end = self._patient_until = self._patient_until or now + patience
        if self._over.wait(max(0.0, end - now)):
            self._stderr_read.wait(max(0.0, end + patience - time.monotonic()))
        return self.exit_code, self.stderr_tail

    def close(self, closed: threading.Event, writing: threading.Lock) -> None:
        """End it: stdin closed, then SIGTERM, then SIGKILL to its group; each waits.

        closed: set when its stdout has ended.  writing: held by whoever writes to it.
        """
        try:
            self._close_stdin(writing, self.PATIENCE / 2)
            for number in (15, 9):  # SIGTERM, SIGKILL
                # Its stdout still open means somebody of its group still lives.
                if closed.wait(self.PATIENCE) and self._over.wait(self.PATIENCE):
                    break
                self._signal(number)
            self._over.wait(self.PATIENCE)
        except BaseException:  # Ctrl-C while waiting
            self._signal(9)
            raise
        self._close_stdin(writing, self.PATIENCE)
        self._stderr_read.wait(0.2)  # a stranger may hold it; it is only a daemon's

    def _close_stdin(self, writing: threading.Lock, seconds: float) -> None:
        # A writer stuck in a full pipe is freed by the signals, never closed under it.
        if writing.acquire(timeout=seconds):
            try:
                self.writer.close()
            finally:
                writing.release()

    def _signal(self, number: int) -> None:
        try:
            if os.name == "nt":
                self._popen.kill()
            else:
                os.killpg(self._popen.pid, number)
        except OSError:
            pass  # all gone


# -- 6. Eras ---------------------------------------------------------------------------
# All that differs between the revisions, both ends.  An era is an object with a
# lifetime: a session lives as long as the connection, a stateless request as long as
# the request.  The methods stand in the same order in both, lay them side by side;
# where this table has a/b, the first is the left class's.  On a server that object is
# called the *terms* of a request, on a client the *dialect* of a connection.
#
#   for a server     LegacySession                     ModernRequest
#   made by          `initialize`, per connection      `_meta`, per request
#   admit            after initialize; the row has it  `_meta` complete; version; state
#   introduce        answers `initialize`              answers `server/discover`
#   dress            as it is                          resultType, serverInfo, caching
#   missing_resource its own code                      an invalid parameter
#   ask              sends requests, waits             unwinds; runs again with answers
#   steps (`once`)   of one run                        are kept in requestState
#   be_ready/listen  hears from `initialized` on       hears what it lists
#   end              with its connection               with a result
#
#   for a client     LegacyDialect                     ModernDialect
#   answers          requests of the server            nothing
#   ping             is its name                       is called server/discover
#   open             `initialized`, logging/setLevel   listens for changes of lists
#   stamp            as it is                          adds `_meta`
#   questions        come as requests                  come in results
#   subscribe        resources/subscribe               subscriptions/listen
#   set_level        logging/setLevel                  is stamped from then on
#   roots_changed    tells                             is asked anew each time
#   lifetime         results are not cached            for their ttlMs
#   notified         as it is                          without tags and acknowledgements
#
# "Modern" and "legacy" are the words of the specification (basic/versioning).

PROBE_SECONDS = 5.0     # how long silence after `server/discover` is waited for
STATE_SECONDS = 900     # how long a requestState may be used
MISFITS = 3             # answers that do not fit one question until it is given up
ROUNDS = 16             # "input required" in a row until a client gives up
UNDECLARED = "The client did not declare the capability: "


class Question:
    """One thing to ask the client.  read(answer): what the handler gets; ValueError."""

    __slots__ = ("method", "params", "read")

    def __init__(self, method: str, params: Json, read: Callable[[Json], Any]) -> None:
        self.method, self.params, self.read = method, params, read

    def missing(self, declared: Json, version: str) -> Json:
        """What it needs that is not declared, or not in this revision; or {}."""
        feature = QUESTIONS[self.method]
        have = declared.get(feature)
        detail = "tools" if self.params.get("tools") else ""
        if feature == "elicitation":
            detail = "url" if self.params.get("mode") == "url" else "form"
            # client/elicitation: an empty object is "equivalent to" form mode
            have = {"form": {}} if have == {} else have
        fits = type(have) is dict and (not detail or detail in have) and (
            feature != "elicitation" or detail in REVISIONS[version].elicits)
        return {} if fits else {feature: {detail: {}} if detail else {}}


def fitting(questions: dict[str, Question], given: Json,
            misfits: dict[str, int]) -> Json:
    """What the answers that fit their questions are read as.

    Others are taken out of `given`, to be asked for again; but not for ever.
    """
    answers: Json = {}
    for key in [key for key in questions if key in given]:
        try:
            answers[key] = questions[key].read(given[key])
        except ValueError as error:
            del given[key]
            misfits[key] = misfits.get(key, 0) + 1
            if misfits[key] >= MISFITS:
                text = f"The answer to {key} does not fit: {error}"
                raise invalid_params(text) from None
    return answers


class Unwind(BaseException):
    """Ends a handler that asks: `outcome`, a result ("input required") or a McpError.

    Caught by Connection.handle; a BaseException, so that no tool swallows it.
    """

    def __init__(self, outcome: Json | McpError) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Terms:
    """What a server's eras have in common."""

    era: str      # in METHODS
    _server: Any  # the Server (section 9)
    peer: Peer
    version: str
    client_info: Json
    client_capabilities: Json
    level: str | None
    kinds: AbstractSet[str] = frozenset()  # the registries whose changes it hears of
    uris: Any = ()                         # the resources whose updates it hears of
    _tell: Callable[[str, Json], None]

    def bad_arguments(self, problems: str) -> Exception:
        """What bad arguments of a tool are: a result with `isError`, or an error."""
        as_result = REVISIONS[self.version].bad_arguments_are_results
        return ToolError(problems) if as_result else invalid_params(problems)

    def wants_log(self, level: str) -> bool:
        wanted = self.level
        return wanted is not None and LEVELS.index(level) >= LEVELS.index(wanted)

    def list_changed(self, kind: str) -> None:
        """Tell the client, if it is to know; called under Server._lock, as the next."""
        if kind in self.kinds:
            self._tell(CHANGES[kind][0], {})

    def resource_updated(self, uri: str) -> None:
        if uri in self.uris:
            self._tell(UPDATED, {"uri": uri})

    def _row(self, method: str) -> Method | None:
        """Its METHODS row, None if the user's own; McpError if not in this era."""
        row = METHODS.get(method)
        if row is None:
            known = self._server.has_method(method)
        else:
            known = self.era in row.eras and (
                not row.feature or self._server.offers(row.feature))
        if not known:
            raise method_not_found(method)
        return row

    def _introduction(self) -> Json:
        told = self._server.instructions
        return {"capabilities": self._server.capabilities(),
                **({"instructions": told} if told else {})}

    def _undeclared(self, questions: dict[str, Question]) -> Json:
        """The capabilities these need and the client did not declare."""
        undeclared: Json = {}
        for question in questions.values():
            missing = question.missing(self.client_capabilities, self.version)
            for feature, detail in missing.items():
                undeclared.setdefault(feature, {}).update(detail)
        return undeclared


class LegacySession(Terms):
    """What a server knows of a connection of the handshake revisions."""

    era, missing_resource = "L", RESOURCE_NOT_FOUND

    def __init__(self, server: Any, peer: Peer) -> None:
        self._server, self.peer = server, peer
        self.version = ""               # agreed on; "" until `initialize`
        self.client_info, self.client_capabilities = {}, {}
        self.level = "info"             # before logging/setLevel the server may choose
        self.uris: set[str] = set()
        self._ready = False             # `notifications/initialized` has come
        self._owed: dict[Any, Json] = {}  # notifications that wait for it, each once

    def admit(self, incoming: Incoming) -> None:
        method = incoming.method
        if method == "server/discover":  # a probe that says too little
            raise invalid_params(f"_meta needs {META_VERSION} and {META_CAPABILITIES}; "
                                 "a client of earlier revisions sends `initialize`")
        if not self.version and method not in ("initialize", "ping"):
            raise McpError(INVALID_REQUEST, "Send `initialize` first")
        if method == "initialize" and incoming.batch:  # basic/lifecycle: MUST NOT
            raise McpError(INVALID_REQUEST, "`initialize` cannot be part of a batch")
        self._row(method)

    def introduce(self, params: Json) -> Json:
        """Answer `initialize` (basic/lifecycle)."""
        version = expect(params.get("protocolVersion"), str, "protocolVersion")
        # Never an error and never an echo: another version is a counter-offer.
        self.version = version if version in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        self.client_info = expect(params.get("clientInfo", {}), dict, "clientInfo")
        self.client_capabilities = expect(params.get("capabilities", {}), dict,
                                          "capabilities")
        result = self._introduction()
        self.kinds = {kind for kind in CHANGES  # entitled to what it was told of
                      if result["capabilities"].get(kind, {}).get("listChanged")}
        return {"protocolVersion": self.version, "serverInfo": self._server.info,
                **result}

    def dress(self, method: str, result: Json) -> Json:
        return result

    def ask(self, incoming: Incoming, questions: dict[str, Question]) -> Json:
        missing = self._undeclared(questions)
        if missing:
            raise McpError(INVALID_REQUEST, UNDECLARED + ", ".join(missing), missing)
        answers: Json = {}
        misfits: dict[str, int] = {}
        while len(answers) < len(questions):
            asked: dict[str, Any] = {}
            try:
                for key in [key for key in questions if key not in answers]:
                    asked[key] = self._send(incoming, questions[key])
                given = {key: {**answer_of(future), **more}
                         for key, (future, more) in asked.items()}
            finally:  # should one fail, nobody waits for the others
                for future, _ in asked.values():
                    future.cancel()
            answers.update(fitting(questions, given, misfits))
        return answers

    def _send(self, incoming: Incoming, question: Question) -> tuple[Future[Any], Json]:
        if incoming.cancelled:  # as when a misfit and the cancellation come together
            raise Cancelled()
        by_url = question.params.get("mode") == "url"
        more = {"elicitationId": os.urandom(8).hex()} if by_url else {}
        call = self.peer.request(question.method, {**question.params, **more})
        future = self.peer.watched(call)
        incoming.on_cancel(future.cancel)
        return future, more

    def steps(self) -> Json:
        return {}  # none yet, and this handler never runs again

    def be_ready(self) -> None:
        """`notifications/initialized` has come: send what waited for it."""
        self._ready = True
        for message in self._owed.values():
            self.peer.queue(message)
        self._owed.clear()

    def _tell(self, method: str, params: Json) -> None:
        self._owed[method, params.get("uri")] = notification(method, params)
        if self._ready:
            self.be_ready()

    def end(self) -> None:
        pass  # it ends with its connection

    def batches(self) -> bool:
        return bool(self.version) and REVISIONS[self.version].batches


def answer_of(future: Future[Any]) -> Any:
    from concurrent.futures import CancelledError

    try:
        return future.result()
    except CancelledError:
        raise Cancelled() from None


class ModernRequest(Terms):
    """What a server knows of a request of the stateless revisions: what it carries.

    A `subscriptions/listen` request stays open: an entry in a table, not a thread.
    """

    era, missing_resource = "M", INVALID_PARAMS

    def __init__(self, server: Any, incoming: Incoming) -> None:
        self._server, self._incoming = server, incoming
        self.peer = incoming.peer
        # What requestState holds: answers given; results of `once`; of each question
        # asked in the last round, how many answers did not fit.
        self._state: Json = {"answers": {}, "steps": {}, "misfits": {}}

    def admit(self, incoming: Incoming) -> None:
        params = incoming.params
        meta = params["_meta"]
        self.version = expect(meta.get(META_VERSION), str, META_VERSION)
        if self.version not in MODERN_VERSIONS:
            raise McpError(UNSUPPORTED_VERSION, "Unsupported protocol version", {
                "supported": MODERN_VERSIONS, "requested": self.version})
        self.client_capabilities = expect(meta.get(META_CAPABILITIES), dict,
                                           META_CAPABILITIES)
        self.client_info = expect(meta.get(META_CLIENT, {}), dict, META_CLIENT)
        self.level = meta.get(META_LOG_LEVEL)
        if self.level not in (None, *LEVELS):
            raise invalid_params(f"{META_LOG_LEVEL} must be one of {', '.join(LEVELS)}")
        row = self._row(incoming.method)
        if row and row.asks:
            if self.client_capabilities or "requestState" in params:  # it may ask
                self._bind(incoming.method, params)
            self._restore(params)

    def introduce(self, params: Json) -> Json:
        """Answer `server/discover`."""
        return {"supportedVersions": MODERN_VERSIONS, **self._introduction()}

    def dress(self, method: str, result: Json) -> Json:
        meta = {**_dict(result.get("_meta")), META_SERVER: self._server.info}
        result = {"resultType": "complete", **result, "_meta": meta}
        row = METHODS.get(method)
        if row and row.cached and result["resultType"] == "complete":
            result.setdefault("ttlMs", int(self._server.cache_ttl * 1000))
            result.setdefault("cacheScope", self._server.cache_scope)
        return result

    def ask(self, incoming: Incoming, questions: dict[str, Question]) -> Json:
        row = METHODS.get(incoming.method)
        if not (row and row.asks):  # basic/patterns/mrtr: "on any other", MUST NOT
            raise McpError(INVALID_REQUEST, f"{incoming.method} cannot ask the client")
        missing = self._undeclared(questions)
        if missing:  # `except Exception` must not catch it: the client is to hear of it
            raise Unwind(McpError(MISSING_CAPABILITY, UNDECLARED + ", ".join(missing),
                                  {"requiredCapabilities": missing}))
        counted = self._state["misfits"]
        answers = fitting(questions, self._state["answers"], counted)
        requests = {key: {"method": question.method, "params": question.params}
                    for key, question in questions.items() if key not in answers}
        if not requests:
            return answers
        misfits = {key: counted.get(key, 0) for key in requests}
        state = {**self._state, "misfits": misfits}
        raise Unwind({"resultType": "input_required", "inputRequests": requests,
                      "requestState": self._server.sealer.seal(state, self._bound)})

    def _restore(self, params: Json) -> None:
        """Take up where the last round ended, with the answers to what it asked."""
        given = expect(params.get("inputResponses", {}), dict, "inputResponses")
        if "requestState" not in params:
            return
        state = self._server.sealer.open(params["requestState"], self._bound)
        if state is None:
            raise invalid_params("requestState is not valid for this request")
        # The keys of misfits are all that was asked last; other answers are ignored.
        asked = {key: given[key] for key in state["misfits"] if key in given}
        self._state = {**state, "answers": {**asked, **state["answers"]}}

    def _bind(self, method: str, params: Json) -> None:
        """Note what a state is bound to: the method and what is called with what.

        At once: before it asks, a handler may change the lists it is called with.
        """
        bound = {key: value for key, value in params.items()
                 if key not in ("_meta", "inputResponses", "requestState")}
        self._bound = json.dumps([method, bound], sort_keys=True)

    def steps(self) -> Json:
        return self._state["steps"]  # type: ignore[no-any-return]

    def listen(self, params: Json) -> None:
        """Agree on what to hear of, and say so; what is not offered is left out."""
        wanted = expect(params.get("notifications"), dict, "notifications")
        told, uris = self._server.capabilities(), UPDATES_WANTED
        agreed: Json = {key: True for kind, (_, key) in CHANGES.items()
                        if expect(wanted.get(key, False), bool, key)
                        and told.get(kind, {}).get("listChanged")}
        self.kinds = {kind for kind, row in CHANGES.items() if row[1] in agreed}
        hears = told.get("resources", {}).get("subscribe")
        if expect(wanted.get(uris, []), list, uris) and hears:
            self.uris = agreed[uris] = [expect(uri, str, uris) for uri in wanted[uris]]
        self._tell(ACKNOWLEDGED, {"notifications": agreed})

    def _tell(self, method: str, params: Json) -> None:
        params = {**params, "_meta": {META_SUBSCRIPTION: self._incoming.id}}
        self.peer.queue(notification(method, params), about=self._incoming)

    def end(self) -> None:
        """Close the stream gracefully."""
        tag = {"_meta": {META_SUBSCRIPTION: self._incoming.id}}
        self._incoming.answer(result=self.dress(self._incoming.method, tag))
        self._server._forget(self)


class Sealer:
    """Signs state that passes through a client (basic/patterns/mrtr, requirement 4).

    Signed, not encrypted: the client can read it, but not make or change it, nor use it
    for a request other than the one it is bound to.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, state: Json, bound: str) -> str:
        dated = {**state, "until": time.time() + STATE_SECONDS}
        return self._signed(encode(dated).hex(), bound)

    def open(self, token: Any, bound: str) -> Json | None:
        """The state, or None if this is not the token of one, or no longer."""
        import hmac

        text = token if type(token) is str and token.isascii() else ""
        body = text.partition(".")[0]
        if not hmac.compare_digest(text, self._signed(body, bound)):
            return None
        state: Json = json.loads(bytes.fromhex(body))
        return state if state.pop("until") > time.time() else None

    def _signed(self, body: str, bound: str) -> str:
        import hmac

        text = f"{body}.{bound}".encode()
        return f"{body}.{hmac.new(self._secret, text, 'sha256').hexdigest()}"


Session = LegacySession  # what a connection begins with, whatever its requests will say


def terms_of(session: LegacySession,
             incoming: Incoming) -> LegacySession | ModernRequest:
    """The era of a request: stateless if its `_meta` says so, else its connection's."""
    meta = incoming.params.get("_meta")
    if meta is not None and expect(meta, dict, "_meta") and (
            META_VERSION in meta or (  # or incomplete, before any handshake: to be told
                not session.version and META_CAPABILITIES in meta)):
        return ModernRequest(session._server, incoming)
    if incoming.method == "initialize":
        # Perhaps a second one: what is running keeps the session it began with.
        return LegacySession(session._server, session.peer)
    return session


def seconds_to(end: float) -> float:
    """Seconds until then, to the millisecond as people will read it; at least 0.001."""
    return max(0.001, round(end - time.monotonic(), 3))


class Dialect:
    """What a client's eras have in common."""

    def __init__(self, link: Any, version: str, info: Any, result: Json) -> None:
        # A Link (section 10), and what the server says of itself.
        self._link, self.version, self.server_info = link, version, _dict(info)
        self.capabilities = _dict(result.get("capabilities"))
        self.instructions: str | None = result.get("instructions")


class LegacyDialect(Dialect):
    """How a client speaks to a server of the handshake revisions."""

    answers, ping = "requests", "ping"  # what is answered: see Peer

    def __init__(self, link: Any, result: Json) -> None:
        version: Any = result.get("protocolVersion")
        if version not in LEGACY_VERSIONS:
            raise _no_common_version([version])
        super().__init__(link, version, result.get("serverInfo"), result)

    def open(self, end: float) -> None:
        # If it was probed, it has complained of that for pages.
        self._link.process.release(pass_on=False)
        self._link.notify(INITIALIZED)
        if self._link.client.level and "logging" in self.capabilities:
            self.set_level(self._link.client.level, seconds_to(end))

    def stamp(self, params: Json | None) -> Json | None:
        return params

    def questions(self, result: Json) -> Json | None:
        return None

    def subscribe(self, uri: str, seconds: float) -> None:
        self._link.request("resources/subscribe", {"uri": uri}, seconds)

    def unsubscribe(self, uri: str) -> None:
        self._link.request("resources/unsubscribe", {"uri": uri})

    def set_level(self, level: str, seconds: float) -> None:
        self._link.request("logging/setLevel", {"level": level}, seconds)

    def roots_changed(self) -> None:
        self._link.notify(ROOTS_CHANGED)

    def lifetime(self, method: str, result: Json) -> float:
        return 0.0

    def notified(self, method: str, params: Json) -> Json | None:
        return params


class ModernDialect(Dialect):
    """How a client speaks to a server of the stateless revisions."""

    answers, ping = "none", "server/discover"

    def __init__(self, link: Any, version: str, result: Json) -> None:
        info = _dict(result.get("_meta")).get(META_SERVER)
        super().__init__(link, version, info, result)
        self._lock = threading.Lock()        # guards the rest
        self._streams: dict[str, Call] = {}  # the listen request of each URI
        self._opening: dict[Any, Future[Json]] = {}  # streams to be acknowledged, by id

    def open(self, end: float) -> None:
        self._link.process.release(pass_on=True)
        kinds = {key: True for kind, (_, key) in CHANGES.items()
                 if _dict(self.capabilities.get(kind)).get("listChanged")}
        try:
            if kinds:
                self._listen(kinds, min(1.0, seconds_to(end)))
        except McpError:
            pass  # it has no streams after all

    def stamp(self, params: Json | None) -> Json:
        params, client = params or {}, self._link.client
        meta = {META_VERSION: self.version, META_CLIENT: client.info,
                META_CAPABILITIES: client.capabilities()}
        if client.level or client.log_handler is not None:
            meta[META_LOG_LEVEL] = client.level or "info"  # as in a session unasked
        return {**params, "_meta": {**meta, **(params.get("_meta") or {})}}

    def questions(self, result: Json) -> Json | None:
        """The inputRequests of a result that is not the last; None if it is."""
        kind = result.get("resultType", "complete")
        if kind == "complete":
            return None
        requests = result.get("inputRequests")
        if kind != "input_required":
            fault = f"resultType {kind!r:.60}"
        elif type(requests) is not dict and "requestState" not in result:
            fault = "it requires no input"
        elif any(_dict(r).get("method") not in [*QUESTIONS] or type(
                r.get("params", {})) is not dict for r in _dict(requests).values()):
            fault = "it asks what cannot be asked"
        else:
            return _dict(requests)
        raise malformed(fault)

    def subscribe(self, uri: str, seconds: float) -> None:
        call, agreed = self._listen({UPDATES_WANTED: [uri]}, seconds)
        uris = (agreed or {}).get(UPDATES_WANTED)
        if type(uris) is list and uri in uris:
            return self._listen_by(uri, call)
        call.future.cancel()
        if agreed is None:
            why = f"{call.method}: no acknowledgement within {seconds} s"
            raise self._link.timeout_error(why)
        raise McpError(METHOD_NOT_FOUND, f"The server takes no subscription to {uri}")

    def unsubscribe(self, uri: str) -> None:
        self._listen_by(uri, None)

    def _listen_by(self, uri: str, call: Call | None) -> None:
        """Hear of a resource by this stream only; by none, if None."""
        with self._lock:
            before = self._streams.pop(uri, None)
            if call:
                self._streams[uri] = call
        if before:
            before.future.cancel()

    def _listen(self, kinds: Json, seconds: float) -> tuple[Call, Json | None]:
        """Open a stream: the call, and what its acknowledgement agrees to.

        None: no acknowledgement came in time; one that comes later changes nothing.
        """
        from concurrent.futures import Future

        acknowledged: Future[Json] = Future()
        params, peer = self.stamp({"notifications": kinds}), self._link.peer
        with self._lock:  # the acknowledgement may come at once
            call = peer.request("subscriptions/listen", params)
            self._opening[call.id] = acknowledged
        peer.watched(call)
        wait_for(seconds, call.future, acknowledged)
        with self._lock:
            del self._opening[call.id]
        if acknowledged.done():
            return call, acknowledged.result()
        if call.future.done():
            call.future.result()  # raises what the server said
            return call, {}
        return call, None

    def set_level(self, level: str, seconds: float) -> None:
        pass  # each request says it

    def roots_changed(self) -> None:
        pass  # the server asks anew each time

    def lifetime(self, method: str, result: Json) -> float:
        row, ttl = METHODS.get(method), result.get("ttlMs")
        if not (row and row.cached and isinstance(ttl, (int, float))):
            return 0.0
        return min(ttl, 10 ** 9) / 1000  # 12 days; what comes may be huge

    def notified(self, method: str, params: Json) -> Json | None:
        """The parameters for the client's handlers; None if it is not for them."""
        meta = _dict(params.get("_meta"))
        if META_SUBSCRIPTION not in meta:
            return params
        if method == ACKNOWLEDGED:
            with self._lock:
                future = self._opening.get(read_id(meta[META_SUBSCRIPTION]))
            if future and not future.done():
                future.set_result(_dict(params.get("notifications")))
            return None
        return {key: value for key, value in params.items() if key != "_meta"}


def negotiate(link: Any, mode: str, end: float) -> Any:
    """Agree on an era and a revision; the dialect to speak.  Done by time `end`.

    basic/transports/stdio, "Backward Compatibility": probe, and fall back on any answer
    that is not a modern one.  Raises ConnectionClosed when the server dies of it.
    """
    if mode in (HANDSHAKE, *LEGACY_VERSIONS):
        link.process.release(pass_on=True)
        return LegacyDialect(link, _initialize(link, mode, end))
    version = mode if mode in MODERN_VERSIONS else MODERN_VERSIONS[-1]
    probe = _discover(link, version)
    if mode != "auto":
        return _read_probe(link, probe, end, [version] if mode == version else None)
    now = time.monotonic()  # the probe may take half the time: a handshake needs some
    try:
        return _read_probe(link, probe, min(now + PROBE_SECONDS, (now + end) / 2))
    except (McpError, RequestTimeout) as refusal:
        offered = _offered(refusal)
    try:
        result = _initialize(link, mode, end)
    except McpError as error:
        # Refused.  Modern after all if the probe has been answered meanwhile, whatever
        # the code of the refusal; or if the refusal says so.
        late = probe.future.done() and not probe.future.exception()
        if not late and error.code != UNSUPPORTED_VERSION:
            raise _no_common_version(offered, f" ({error})") if offered else error
    else:
        link.peer.claim(probe.id)  # nobody waits for it any more
        return LegacyDialect(link, result)
    probe = probe if late else _discover(link, MODERN_VERSIONS[-1])
    return _read_probe(link, probe, end)


def _discover(link: Any, version: str) -> Any:
    params = ModernDialect(link, version, {}).stamp(None)
    return link.peer.request("server/discover", params)


def _read_probe(link: Any, probe: Call, end: float,
                ours: list[str] | None = None) -> ModernDialect:
    """The dialect a probe's answer stands for; McpError, RequestTimeout if for none."""
    ours = ours or MODERN_VERSIONS
    try:
        result = link.peer.peek(probe, seconds_to(end))
        offered = result.get("supportedVersions")
    except McpError as error:
        offered, result = _offered(error), {}
        if not offered:
            raise
    shared = [v for v in ours if type(offered) is list and v in offered]
    if not shared:  # it may name handshake revisions only; or be no DiscoverResult
        raise _no_common_version(offered)
    if not result:  # modern, but it refused this version: what does it offer in that?
        try:
            result = link.peer.peek(_discover(link, shared[-1]), seconds_to(end))
        except McpError:
            pass  # it still will not say; the requests themselves may work
    return ModernDialect(link, shared[-1], result)


def _offered(error: Any) -> list[Any]:
    """The versions an UnsupportedProtocolVersionError names; [] for any other error."""
    unsupported = getattr(error, "code", None) == UNSUPPORTED_VERSION
    named = _dict(error.data).get("supported") if unsupported else None
    return named if type(named) is list else []


def _no_common_version(offered: Any, reason: str = "") -> McpError:
    ours = list(REVISIONS)
    text = f"the server has {offered!r:.200}, this client {', '.join(ours)}{reason}"
    return McpError(UNSUPPORTED_VERSION, f"No common protocol version: {text}", {
        "supported": offered, "requested": ours})


def _initialize(link: Any, mode: str, end: float) -> Json:
    capabilities = link.client.capabilities()
    if "roots" in capabilities:
        capabilities["roots"] = {"listChanged": True}
    call = link.peer.request("initialize", {
        "protocolVersion": mode if mode in LEGACY_VERSIONS else LEGACY_VERSIONS[-1],
        "capabilities": capabilities, "clientInfo": link.client.info,
    }, timeout=seconds_to(end))
    return call.future.result()  # type: ignore[no-any-return]


# -- 7. Content ------------------------------------------------------------------------
# Results are the wire's own JSON: dict subclasses with camelCase keys, and attributes
# where they help.  A plain dict is data, never a block.

_WIRE_NAMES = {"meta": "_meta", "mime_type": "mimeType", "website_url": "websiteUrl",
               "input_schema": "inputSchema", "output_schema": "outputSchema"}


def wire(**fields: Any) -> Json:
    """Python's keyword arguments as the wire's keys, without those that are None."""
    return {_WIRE_NAMES.get(key, key): value for key, value in fields.items()
            if value is not None}


def _base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode()


def _text_of(blocks: Any) -> str:
    return "\n".join(block["text"] for block in blocks
                     if isinstance(block, dict) and type(block.get("text")) is str)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, enum.Enum)


class Block(dict):  # type: ignore[type-arg]
    """A content block; its keys are the wire's (server/tools: "Tool Result")."""


class Text(Block):
    """Text content.  Every block also takes `annotations` and `meta`."""

    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(type="text", text=text, **wire(**fields))


class _Media(Block):
    _type, _default = "", ""

    def __init__(self, data: bytes | None = None, *, path: Any = None,
                 mime_type: str | None = None, **fields: Any) -> None:
        if path is not None:
            import mimetypes

            with open(path, "rb") as file:
                data = file.read()
            mime_type = mime_type or mimetypes.guess_type(os.fspath(path))[0]
        if data is None:
            raise TypeError(f"{type(self).__name__} needs data or path")
        super().__init__(type=self._type, data=_base64(data),
                         mimeType=mime_type or self._default, **wire(**fields))


class Image(_Media):
    """Image content, of bytes or of the file at `path`."""

    _type, _default = "image", "image/png"


class Audio(_Media):
    """Audio content, of bytes or of the file at `path`."""

    _type, _default = "audio", "audio/wav"


class ResourceLink(Block):
    """A link to a resource; fields: title, description, mime_type, size and so on."""

    def __init__(self, uri: str, name: str, **fields: Any) -> None:
        super().__init__(type="resource_link", uri=uri, name=name, **wire(**fields))


class _Received(dict):  # type: ignore[type-arg]
    """What may also come off the wire, and is then taken as it is."""

    @classmethod
    def of(cls, fields: Json) -> Self:
        made = cls.__new__(cls)
        made.update(fields)
        return made


class ResourceContents(_Received):
    """What a resource holds: `text`, or bytes as `data`.  uri: None is the one read."""

    def __init__(self, text: str | None = None, *, data: bytes | None = None,
                 uri: str | None = None, mime_type: str | None = None,
                 meta: Json | None = None) -> None:
        super().__init__(wire(uri=uri, mime_type=mime_type, text=text, meta=meta,
                              blob=None if data is None else _base64(data)))

    @property
    def text(self) -> str | None:
        """The text, or None if it is binary."""
        return self.get("text")

    @property
    def data(self) -> bytes | None:
        """The bytes, or None if it is text."""
        import binascii

        return binascii.a2b_base64(self["blob"]) if "blob" in self else None


class EmbeddedResource(Block):
    """A resource's contents inside a result."""

    def __init__(self, uri: str, text: str | None = None, *, data: bytes | None = None,
                 mime_type: str | None = None, **fields: Any) -> None:
        contents = ResourceContents(text, data=data, uri=uri, mime_type=mime_type)
        super().__init__(type="resource", resource=contents, **wire(**fields))


class Message(dict):  # type: ignore[type-arg]
    """A message of a prompt.  role: "user" or "assistant"; content: str or a block."""

    def __init__(self, role: str, content: Any) -> None:
        content = Text(content) if isinstance(content, str) else content
        super().__init__(role=role, content=content)


def message_of(value: Any) -> Json:
    """A message of a prompt or of sampling; a str or a block is the user's."""
    if is_text(value) or isinstance(value, Block):
        return Message("user", value)
    if isinstance(value, dict) and "role" in value:
        return value
    raise TypeError(f"expected a str, a block or a Message, got {type(value).__name__}")


class ToolResult(_Received):
    """The result of a tool: what a handler may return, and what `call_tool` gives."""

    wrapped = False  # the output schema says that it is {"result": …}; so may `_meta`

    def __init__(self, content: Any = (), structured_content: Any = None,
                 is_error: bool = False, meta: Json | None = None) -> None:
        parts = [content] if isinstance(content, (str, dict)) else content or ()
        blocks = [Text(part) if isinstance(part, str) else part for part in parts]
        super().__init__(wire(content=blocks, structuredContent=structured_content,
                              isError=is_error or None, meta=meta))

    @property
    def content(self) -> list[Json]:
        """The content blocks, as on the wire."""
        return self.get("content") or []

    @property
    def text(self) -> str:
        """The text of all text blocks, one after the other."""
        return _text_of(self.content)

    @property
    def structured_content(self) -> Any:
        """The structured content as on the wire, or None."""
        return self.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Did the tool fail?"""
        return self.get("isError") is True

    @property
    def data(self) -> Any:
        """The structured content, unwrapped where it is marked; else the text."""
        if "structuredContent" not in self:
            return self.text
        value = self["structuredContent"]
        mark = _dict(_dict(self.get("_meta")).get("fastmcp"))
        wrapped = self.wrapped or mark.get("wrap_result")
        return value.get("result") if wrapped and type(value) is dict else value


class Elicited:
    """An answer to `elicit`.  action: "accept", "decline" or "cancel".

    content: the form as filled in, a dict, when accepted.  data: the same as the type
    that was asked for.  elicitation_id: of a URL question, where the era has one.
    """

    def __init__(self, action: str, content: Json | None = None, data: Any = None,
                 elicitation_id: str | None = None) -> None:
        self.action, self.content = action, content
        self.data, self.elicitation_id = data, elicitation_id

    def __repr__(self) -> str:
        return f"Elicited({self.action!r}, {self.content!r})"


class Sampled(dict):  # type: ignore[type-arg]
    """The result of `sample`, as on the wire."""

    @property
    def text(self) -> str:
        """The text of its text blocks, one after the other."""
        content = self["content"]
        return _text_of(content if type(content) is list else [content])


# -- 8. Schema -------------------------------------------------------------------------
# Signatures become JSON Schema, arguments become objects, results become JSON.  Hints
# are read by __origin__, __args__ and name: a server that starts must not import
# typing, inspect or dataclasses to say that a parameter is an optional list of strings.

MAX_NESTING = 200     # schemas applied within each other; levels of a result
MAX_STEPS = 500_000   # schemas applied to one value, in all
MAX_PATTERN = 1_000   # characters of a regular expression; validate() says why
MAX_SUBJECT = 20_000  # characters it is tried on
MAX_PROBLEMS = 20     # told to the peer; the rest is counted
MAX_CHOICES = 100     # named in a problem; the rest is counted


class SchemaError(ValueError):
    """A schema that cannot be used.

    It is malformed or of another dialect, a reference leads out of the document, or it
    is more work than the limits above allow.
    """


class Misfit(ValueError):
    """A value that does not fit: `problems` has one readable line for each reason."""

    def __init__(self, found: list[Problem]) -> None:
        self.problems = [_line(path, text) for path, text, _ in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            self.problems.append(f"… and {len(found) - MAX_PROBLEMS} more")
        super().__init__("\n".join(self.problems))


def _line(path: tuple[Any, ...], text: str) -> str:
    """A problem, after the way to where it is: `user.tags[1]: expected …`."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{key:.60}" for key in path)
    way = "".join(keys).lstrip(".")
    return " ".join(f"{way}: {text}".split()) if path else text


def validate(value: Any, schema: Any) -> list[str]:
    """What is wrong with `value`, one readable line per problem; empty when it fits.

    All of JSON Schema 2020-12 validation; `format` only annotates, nothing is fetched.
    Raises SchemaError.  Work is bounded, except that Python's `re` cannot be stopped:
    limits on pattern and subject tame polynomial blow-up, but (a+)+$ stays exponential.
    """
    return _Validator(schema).problems(value)


# The validator.  A document is read whole before use (_Validator) and then applied: one
# _Step for each schema and value that meet, with what it found, saw and made of them.

_KINDS = {type(None): "null", bool: "boolean", int: "integer number", float: "number",
          str: "string", list: "array", tuple: "array", dict: "object"}


def _kind(value: Any) -> str:
    """The names of its type, one or two: 1 and 1.0 are integers as well as numbers."""
    if isinstance(value, float) and value.is_integer():
        return "integer number"
    kind = _KINDS.get(type(value))
    return kind or next((_KINDS[t] for t in _KINDS if isinstance(value, t)), "unknown")


def _quote(value: Any) -> str:
    """One short line; of a container only the kind, for it may hold what is private."""
    if _kind(value) in ("array", "object", "unknown"):
        return f"an {_kind(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"
    value = value[:80] if isinstance(value, str) else value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def _listed(choices: Iterable[Any], show: Any = _quote) -> str:
    """One after the other; of very many only the first."""
    choices = [*choices]
    more = len(choices) - MAX_CHOICES
    told = ", ".join(map(show, choices[:MAX_CHOICES])) or "none"
    return told if more <= 0 else f"{told} and {more} more"


def _types(schema: Json) -> list[str]:
    """The names under `type`, one or several; none if it takes any."""
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else names


def _frozen(value: Any) -> Any:
    """Hashable, and equal where JSON Schema says so: 1 is 1.0, but neither is true."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return (bool, value) if isinstance(value, bool) else value


def _unquote(text: str) -> str:
    """Text of a URI without its %XX; urllib.parse is slow to import."""
    def decoded(run: re.Match[str]) -> str:
        return bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace")

    return re.sub("(?:%[0-9A-Fa-f]{2})+", decoded, text)


def _join(base: str, reference: str) -> str:
    if not base or reference[:1] == "#":
        return base + reference
    from urllib.parse import urljoin

    try:
        return urljoin(base, reference)
    except ValueError:  # no URI: nothing has this name
        return reference


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    """ECMA 262 in Python's words: \\d and \\w are ASCII, $ is the very end."""
    letter = r"(?u:[^\W\d_])"
    words = {"$": r"\Z", "(?<": "(?P<", r"\s": r"(?u:\s)", r"\S": r"(?u:\S)",
             r"\p{digit}": r"(?u:\d)", r"\p{L}": letter, r"\p{Letter}": letter}
    tokens = r"\\[pP]\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|\$|\(\?<(?=\w)"
    try:
        if len(pattern) > MAX_PATTERN:
            raise OverflowError(f"longer than {MAX_PATTERN} characters")
        text = re.sub(tokens, lambda found: words.get(found[0], found[0]), pattern)
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise SchemaError(f"pattern {_quote(pattern)}: {error}") from None


class _Validator:
    """One schema document, read whole before use: a bad one is refused at once."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.bases: dict[int, str] = {}  # the base URI of what stands in it, by id()
        self.anchors: dict[str, Any] = {}  # URI or URI#anchor: schema
        self.sound: set[int] = set()  # what is known to be a schema, by id()
        try:
            encode(document)  # a list of tools must be; and no JSON is infinite
        except (TypeError, ValueError, RecursionError) as error:
            raise SchemaError(f"not JSON: {error}") from None
        if document is _METASCHEMA:
            self.sound.add(id(document))
        else:
            self.bases.update(_metaschema().bases)  # which may be referred to
            self.anchors.update(_metaschema().anchors)
        self.vouch(document)
        self.anchors[""] = document
        for base, reference in self.read():
            self.find(base, reference)

    def read(self) -> list[tuple[str, str]]:
        """Note bases and anchors; give every (base, reference).

        Only strings count, for what is no schema may use the words otherwise.
        """
        references: list[tuple[str, str]] = []
        todo = [("", self.document)]  # recursion would end too early
        while todo:
            base, node = todo.pop()
            if not isinstance(node, (dict, list)) or id(node) in self.bases:
                continue
            words = node if isinstance(node, dict) else dict(enumerate(node))
            told = {word: want for word, want in words.items() if isinstance(want, str)}
            if "$id" in told:
                uri = _join(base, told["$id"])
                self.anchors[uri] = node  # in draft-07 an anchor is an $id: "#name"
                base = uri.partition("#")[0]
            self.bases[id(node)] = base
            for word in told.keys() & {"$anchor", "$dynamicAnchor"}:
                self.anchors[f"{base}#{told[word]}"] = node
            for word in told.keys() & {"$ref", "$dynamicRef"}:
                references.append((base, told[word]))
            todo += [(base, words[word]) for word in words
                     if word not in ("enum", "const", "default", "examples")]
        return references

    def vouch(self, schema: Any) -> Any:
        """The schema, if it is one; a reference may lead to anything."""
        if id(schema) not in self.sound:
            problems = _metaschema().problems(schema)
            if problems:
                raise SchemaError(problems[0])
            self.sound.add(id(schema))
        return schema

    def find(self, base: str, reference: str) -> Any:
        """The schema a reference names: by URI, anchor or JSON pointer."""
        try:
            uri, _, fragment = _join(base, reference).partition("#")
            fragment = _unquote(fragment)
            if fragment and fragment[0] != "/":
                uri, fragment = f"{uri}#{fragment}", ""
            target = self.anchors[uri]
            for step in fragment.split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                at_index = isinstance(target, list) and step.isdecimal()
                target = target[int(step) if at_index else step]
        except (LookupError, ValueError, TypeError):
            raise SchemaError(f"{_quote(reference)} is not in the document, "
                              "and nothing is fetched") from None
        return self.vouch(target)

    def find_dynamic(self, scope: tuple[str, ...], reference: str) -> Any:
        """As find(), but an anchor that is dynamic is looked for from the outermost."""
        target, name = self.find(scope[-1], reference), reference.partition("#")[2]
        if not isinstance(target, dict) or target.get("$dynamicAnchor") != name:
            return target
        for base in scope:
            outer = self.anchors.get(f"{base}#{name}", {})
            if outer.get("$dynamicAnchor") == name:
                return outer
        return target

    def check(self, value: Any, lenient: bool = False) -> _Step:
        """The document applied to a value.  SchemaError if that is too much work."""
        budget = iter(range(MAX_STEPS))
        try:
            return _Step(self, self.document, value, (), ("",), budget, lenient)
        except RecursionError:
            raise SchemaError("checking nests too deeply (a $ref loop?) or takes over "
                              f"{MAX_STEPS:,} steps") from None

    def problems(self, value: Any) -> list[str]:
        return Misfit(self.check(value).found).problems

    def fit(self, value: Any, strict: bool = True) -> Any:
        """What `value` becomes, at a lenient second look unless `strict`; or Misfit."""
        step = self.check(value)
        if step.found and not strict:
            step = self.check(self.check(value, lenient=True).result)
        if step.found:
            raise Misfit(step.found)
        return step.result


class _Node(dict):  # type: ignore[type-arg]
    """A schema whose fitting values become `make(value)`, once their parts are made.

    Where it is `optional`, null says that the property is left out.
    """

    def __init__(self, words: Any, make: Any = None, optional: bool = False) -> None:
        super().__init__(words)
        self.make, self.optional = make, optional

    def plus(self, words: Any) -> _Node:
        return _Node({**self, **words}, self.make, self.optional)


_MISSING: Any = object()  # no default; no such property
_UNTOLD: Any = object()   # a default that stands in no schema
_BOOLEAN: Any = {True: {}, False: {"not": {}}}  # the schemas that are no objects


class _Step:
    """One schema applied to one value.

    found: the problems.  seen: names or indices spoken for, so that others can ask for
    the rest.  result: what the value becomes, or if `lenient` the JSON it should rather
    have been.  scope: the base URIs on the way here.  budget: yields as often as there
    may be steps.
    """

    def __init__(self, validator: _Validator, schema: Any, value: Any, path: Any,
                 scope: tuple[str, ...], budget: Iterator[int], lenient: bool) -> None:
        if len(scope) > MAX_NESTING or next(budget, None) is None:
            raise RecursionError
        self.validator, self.path = validator, path
        self.budget, self.lenient = budget, lenient
        self.scope = (*scope, validator.bases.get(id(schema), scope[-1]))
        self.found: list[Problem] = []  # (path, text, what was expected)
        self.seen: set[Any] = set()
        self.schema = words = schema if isinstance(schema, dict) else _BOOLEAN[schema]
        self.value = self.result = _moved(value, words) if lenient else value
        kind = _kind(self.value)
        rules, unevaluated = _RULES.get(kind, (None, ""))
        if rules:
            rules(self, words)
        self.compare(words, kind)
        if not _COMBINING.isdisjoint(words):  # most are plain: spare them the questions
            self.combine(words)
        if unevaluated in words and not self.found:  # what failed has seen nothing
            self.rest(words[unevaluated])
        if isinstance(schema, _Node):
            self.make(schema)

    def bad(self, text: str, *key: Any) -> None:
        """A problem of the value, or of its part under a key."""
        self.found.append(((*self.path, *key), text, ""))

    def must(self, fits: Any, what: str, got: Any = None) -> None:
        """A problem unless it fits: what was expected, and got instead."""
        if not fits:
            got = _quote(self.value) if got is None else got
            self.found.append((self.path, f"expected {what}, got {got}", what))

    def apply(self, schema: Any, value: Any, *key: Any) -> _Step:
        return _Step(self.validator, schema, value, (*self.path, *key), self.scope,
                     self.budget, self.lenient)

    @property
    def current(self) -> Any:
        """What the next schema is applied to: JSON as moved, no object made of it."""
        return self.result if self.lenient else self.value

    def beside(self, *schemas: Any) -> None:
        """Schemas for the same value: their problems, or what they see and make."""
        for schema in schemas:
            value = self.current
            step = self.apply(schema, value)
            self.found += step.found
            if not step.found:
                self.seen |= step.seen
            if step.result is not value:
                self.result = step.result

    def each(self, schemas: Any) -> None:
        """Schemas for parts of the value, by name or index; what has one is seen."""
        made = {}
        for key in schemas:
            step = self.apply(schemas[key], self.value[key], key)
            self.seen.add(key)
            self.found += step.found
            if step.result is not self.value[key]:
                made[key] = step.result
        if made and isinstance(self.value, dict):
            parts = {**self.result, **made}.items()
            self.result = {key: part for key, part in parts if part is not _MISSING}
        elif made:
            self.result = [made.get(at, part) for at, part in enumerate(self.result)]

    def rest(self, schema: Any) -> None:
        """A schema for every part that is not seen yet."""
        named = isinstance(self.value, dict)
        every = self.value if named else range(len(self.value))
        keys = [key for key in every if key not in self.seen]
        if schema is not False or not named:
            return self.each(dict.fromkeys(keys, schema))
        known = _listed(self.schema.get("properties", ()), show=str)
        for key in keys:
            self.bad(f"unknown; known are: {known}", key)

    def make(self, node: _Node) -> None:
        if self.found and self.value is None and node.optional:
            self.found, self.result = [], _MISSING
        elif node.make and not self.found and not self.lenient:
            try:
                self.result = node.make(self.result)
            except Exception as error:  # the author's own: an assert, say
                what = node.get("format", node.get("contentEncoding"))
                said = str(error)[:200] or type(error).__name__
                self.must(False, what) if what else self.bad(said)

    # -- the keywords; `words` is self.schema

    def within(self, size: Any, words: Any, unit: str, *bounds: str) -> None:
        """At most, at least, less than, more than what each of `bounds` says."""
        for word, (relation, fits) in zip(bounds, _BOUNDS):
            if word in words:
                what = f"{relation} {_quote(words[word])} {unit}".strip()
                self.must(fits(size, words[word]), what, _quote(size))

    def number(self, words: Any) -> None:
        if "multipleOf" in words:
            self.must(_is_multiple(self.value, words["multipleOf"]),
                      f"a multiple of {_quote(words['multipleOf'])}")
        self.within(self.value, words, "", "maximum", "minimum", "exclusiveMaximum",
                    "exclusiveMinimum")

    def text(self, words: Any) -> None:
        self.within(len(self.value), words, "characters", "maxLength", "minLength")
        if "pattern" in words:
            self.must(_match(words["pattern"], self.value),
                      f"text like {_quote(words['pattern'])}")

    def array(self, words: Any) -> None:
        size = len(self.value)
        self.within(size, words, "items", "maxItems", "minItems")
        if words.get("uniqueItems"):
            self.must(len({*map(_frozen, self.value)}) == size, "items that differ")
        if "prefixItems" in words:
            self.each(dict(zip(range(size), words["prefixItems"])))
        if isinstance(words.get("items"), list):  # draft-07: prefixItems and items
            self.each(dict(zip(range(size), words["items"])))
            self.rest(words.get("additionalItems", True))
        elif "items" in words:
            self.rest(words["items"])
        if "contains" in words:
            hits = [index for index, item in enumerate(self.value)
                    if not self.apply(words["contains"], item).found]
            self.seen.update(hits)
            least, most = words.get("minContains", 1), words.get("maxContains", size)
            what = f"{least} to {most} items of a certain kind"
            self.must(least <= len(hits) <= most, what, len(hits))

    def object(self, words: Any) -> None:
        self.within(len(self.value), words, "properties", "maxProperties",
                    "minProperties")
        self.require(words.get("required", ()), "required")
        for name in self.value if "propertyNames" in words else ():
            self.found += self.apply(words["propertyNames"], name, name).found
        named = words.get("properties", {})
        self.each({name: named[name] for name in named if name in self.value})
        for pattern, schema in words.get("patternProperties", {}).items():
            self.each({key: schema for key in self.value if _match(pattern, key)})
        if "additionalProperties" in words:
            self.rest(words["additionalProperties"])
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, want in words.get(word, {}).items():
                if name in self.value and isinstance(want, list):
                    self.require(want, f"required with {name}")
                elif name in self.value:
                    self.beside(want)

    def require(self, names: Any, why: str) -> None:
        for name in names:
            if name not in self.value:
                self.bad(f"missing ({why})", name)

    def compare(self, words: Any, kind: str) -> None:
        if "type" in words:
            names = _types(words)
            self.must({*names}.intersection(kind.split()), " or ".join(names))
        for word in ("enum", "const"):
            if word in words and not self.found:
                members = words["enum"] if word == "enum" else [words["const"]]
                if _frozen(self.value) not in map(_frozen, members):
                    several = "one of " if len(members) > 1 else ""
                    self.must(False, several + _listed(members))

    def combine(self, words: Any) -> None:
        if "allOf" in words:
            self.beside(*words["allOf"])
        for word, most in (("anyOf", sys.maxsize), ("oneOf", 1)):
            if word in words:
                self.either(words[word], most)
        if "not" in words and not self.apply(words["not"], self.value).found:
            self.bad("not allowed")
        if "if" in words:
            step = self.apply(words["if"], self.value)
            if step.found:
                self.beside(words.get("else", True))
            else:
                self.seen |= step.seen
                self.beside(words.get("then", True))
        if "$ref" in words:
            self.beside(self.validator.find(self.scope[-1], words["$ref"]))
        if "$dynamicRef" in words:
            self.beside(self.validator.find_dynamic(self.scope, words["$dynamicRef"]))

    def either(self, schemas: list[Any], most: int) -> None:
        """The first that fits; or else the complaint of the one of the right kind."""
        value = self.current
        steps = [self.apply(schema, value) for schema in schemas]
        fits = [step for step in steps if not step.found]
        if self.lenient:  # text stays where it is welcome, and what fits as it is
            text = isinstance(value, str)
            if text and any("string" in _types(step.schema) for step in steps):
                return
            fits.sort(key=lambda step: step.result is not value)
        if fits:
            self.seen.update(*(step.seen for step in fits))
            if fits[0].result is not value:
                self.result = fits[0].result
            self.must(len(fits) <= most, "one alternative to fit", len(fits))
        else:
            self.complain(steps)

    def complain(self, steps: list[_Step]) -> None:
        """None fits: say what all expect, or what is wrong with the parts of one."""
        others, wanted = [], {}
        for step in steps:
            path, _, what = step.found[0]
            if what and path == self.path:
                wanted[what] = True
            else:  # its kind is right, or it is not so simple
                others.append(step)
        if others:
            self.found += min(others, key=lambda step: len(step.found)).found
        else:
            self.must(False, " or ".join(wanted))


_COMBINING = {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef"}
_BOUNDS = (("at most", operator.le), ("at least", operator.ge),
           ("less than", operator.lt), ("more than", operator.gt))
_RULES: Any = {  # kind: its keywords, and that for what none of them has seen
    "integer number": (_Step.number, ""), "number": (_Step.number, ""),
    "string": (_Step.text, ""), "array": (_Step.array, "unevaluatedItems"),
    "object": (_Step.object, "unevaluatedProperties")}


def _is_multiple(value: Any, unit: Any) -> bool:
    if isinstance(value, int) and isinstance(unit, int):
        return value % unit == 0
    from fractions import Fraction

    def exact(number: Any) -> Fraction:  # of the digits as written: 0.1 is a tenth
        return Fraction(number if isinstance(number, int) else str(number))

    return abs(value) < float("inf") and exact(value) % exact(unit) == 0


def _match(pattern: str, text: str) -> bool:
    if len(text) > MAX_SUBJECT:
        raise SchemaError(f"no pattern is tried on over {MAX_SUBJECT} characters")
    return _regex(pattern).search(text) is not None


def _moved(value: Any, schema: Any) -> Any:
    """Text as the JSON it spells, if `schema` asks for that; never if it takes text."""
    wanted = _types(schema)
    if not isinstance(value, str) or "string" in wanted or value != value.strip():
        return value
    try:  # as strictly as a message is read
        spelt = decode(value.encode("utf-8", "surrogatepass"), MAX_NESTING)
    except McpError:
        return value
    kinds = _KINDS[type(spelt)].split()  # not _kind: 5.0 is an integer, "5.0" is not
    return value if spelt is None or not {*wanted}.intersection(kinds) else spelt


# The schema of schemas, which is how a bad one is refused with a readable line.


def _list_of(item: Any) -> Json:
    return {"type": "array", "items": item}


def _map_of(item: Any) -> Json:
    return {"type": "object", "additionalProperties": item}


_SCHEMA, _TEXT, _NUMBER = {"$ref": "#"}, {"type": "string"}, {"type": "number"}
_PATTERN = _Node(_TEXT, _regex)
_TYPE = {"enum": ["null", "boolean", "integer", "number", "string", "array", "object"]}
_KEYWORDS: Any = (  # what the value of a keyword must be
    (_SCHEMA, "not if then else contains additionalItems unevaluatedItems "
              "propertyNames additionalProperties unevaluatedProperties"),
    (_list_of(_SCHEMA), "allOf anyOf oneOf prefixItems"),
    ({"anyOf": [_SCHEMA, _list_of(_SCHEMA)]}, "items"),
    (_map_of(_SCHEMA), "properties dependentSchemas $defs definitions"),
    ({**_map_of(_SCHEMA), "propertyNames": _PATTERN}, "patternProperties"),
    (_map_of(_list_of(_TEXT)), "dependentRequired"),
    (_map_of({"anyOf": [_SCHEMA, _list_of(_TEXT)]}), "dependencies"),
    (_TEXT, "$ref $dynamicRef $id $anchor $dynamicAnchor"),
    (_PATTERN, "pattern"),
    (_NUMBER, "maximum exclusiveMaximum minimum exclusiveMinimum"),
    ({**_NUMBER, "exclusiveMinimum": 0}, "multipleOf"),
    ({"type": "integer", "minimum": 0}, "maxLength minLength maxItems minItems "
                                        "maxProperties minProperties "
                                        "maxContains minContains"),
    ({"anyOf": [_TYPE, _list_of(_TYPE)]}, "type"),
    (_list_of(_TEXT), "required"),
    ({"type": "array"}, "enum"),
    ({"type": "boolean"}, "uniqueItems"),
    ({"pattern": r"^https?://json-schema\.org/(draft/2020-12|draft-07)/schema#?$"},
     "$schema"),
)
_METASCHEMA: Any = {
    "$id": "https://json-schema.org/draft/2020-12/schema",
    "type": ["object", "boolean"],
    "properties": {word: schema for schema, words in _KEYWORDS
                   for word in words.split()},
}


@lru_cache(maxsize=1)
def _metaschema() -> _Validator:
    return _Validator(_METASCHEMA)


# Hints.  Each becomes a _Node: a schema, and what to make of a value that fits it.

_NULL = _Node({"type": "null"})
_PLAIN = {str: _Node(_TEXT), bool: _Node({"type": "boolean"}),
          int: _Node({"type": "integer"}, int), float: _Node(_NUMBER, float),
          object: _Node({}), None: _NULL, type(None): _NULL}
_FORMATS: Any = {  # by name: not imported
    "datetime.datetime": {"format": "date-time"},
    "datetime.date":     {"format": "date"},
    "datetime.time":     {"format": "time"},
    "uuid.UUID":         {"format": "uuid"},
    "decimal.Decimal":   {"type": ["string", "number"], "format": "decimal"},
    "pathlib.PurePath":  {"format": "path"},
    "builtins.bytes":    {"contentEncoding": "base64"},
}


def _revived(cls: Any, text: str) -> Any:
    """The object of one of these formats that a text stands for."""
    if issubclass(cls, bytes):
        from base64 import b64decode

        return b64decode(text, validate=True)
    if not hasattr(cls, "fromisoformat"):
        return cls(text)
    # RFC 3339, for Python before 3.11: no Z, six digits after the point
    text = re.sub(r"\.(\d+)", lambda part: "." + part[1][:6].ljust(6, "0"), text)
    return cls.fromisoformat(re.sub("[zZ]$", "+00:00", text))


def _name(thing: Any) -> str:
    """package.Name of a class or a hint's origin; pathlib is a package since 3.13."""
    thing = getattr(thing, "__origin__", thing)
    if type(thing).__name__ == "UnionType":
        return "typing.Union"
    package = str(getattr(thing, "__module__", "")).partition(".")[0]
    name = getattr(thing, "__name__", None) or getattr(thing, "_name", None)
    return f"{package.replace('_extensions', '')}.{name}"


def _choice(members: Iterable[Any]) -> _Node:
    back = {_frozen(jsonable(member)): member for member in members}
    values = [*map(jsonable, back.values())]
    kinds = {_kind(value).split()[0] for value in values}
    alike = {"type": kinds.pop()} if len(kinds) == 1 else {}
    return _Node({**alike, "enum": values}, lambda value: back[_frozen(value)])


def _array(args: Any, read: Any, make: Any = None) -> _Node:
    words: Any = {"type": "array"}
    if make is tuple and args and args[-1] is not ...:
        count, words["prefixItems"] = len(args), [*map(read, args)]
        words.update(minItems=count, maxItems=count)
    elif args:
        words["items"] = read(args[0])
    if make in (set, frozenset):
        words["uniqueItems"] = True
    return _Node(words, make)


def _mapping(args: Any, read: Any) -> _Node:
    key, value = map(read, args or (str, object))
    if key.get("type") != "string":
        raise TypeError("the keys of a JSON object are str")
    more = {"additionalProperties": value} if value else {}
    return _Node({"type": "object", **more})


def _union(args: Any, read: Any) -> _Node:
    return _Node({"anyOf": [*map(read, args)]})


def _inner(args: Any, read: Any) -> _Node:
    return read(args[0])  # type: ignore[no-any-return]


_READERS: dict[str, Callable[[Any, Any], _Node]] = {  # of (arguments, what reads them)
    "typing.Any":                  lambda args, read: _PLAIN[object],
    "typing.Union":                _union,
    "typing.Literal":              lambda args, read: _choice(args),
    "typing.Required":             _inner,
    "typing.NotRequired":          _inner,
    "typing.ReadOnly":             _inner,
    "builtins.list":               _array,
    "collections.Sequence":        _array,
    "collections.MutableSequence": _array,
    "collections.Iterable":        _array,
    "collections.Collection":      _array,
    "builtins.tuple":              partial(_array, make=tuple),
    "builtins.set":                partial(_array, make=set),
    "collections.Set":             partial(_array, make=set),
    "collections.MutableSet":      partial(_array, make=set),
    "builtins.frozenset":          partial(_array, make=frozenset),
    "builtins.dict":               _mapping,
    "collections.Mapping":         _mapping,
    "collections.MutableMapping":  _mapping,
}


def hint_schema(hint: Any, output: bool = False, trail: tuple[Any, ...] = ()) -> _Node:
    """The schema of a hint, for input or for output.  TypeError for what has none.

    trail: the hints that this one is part of.
    """
    if (hint is None or type(hint) is type) and hint in _PLAIN:
        return _PLAIN[hint]
    if hint in trail:
        name = getattr(hint, "__qualname__", hint)
        raise TypeError(f"{name} is recursive, and a schema here is inline")
    read = partial(hint_schema, output=output, trail=(*trail, hint))
    if hasattr(hint, "__metadata__"):
        return _annotated(read(hint.__origin__), hint.__metadata__)
    reader = _READERS.get(_name(hint))
    if reader:
        return reader(getattr(hint, "__args__", ()), read)
    if isinstance(hint, type):
        return _class(hint, read, output)
    for inner in ("__supertype__", "__value__", "type"):  # NewType; type X = …; InitVar
        if hasattr(hint, inner):
            return read(getattr(hint, inner))
    raise TypeError(f"{hint!r} cannot be described as JSON Schema")


def _annotated(node: _Node, metadata: Any) -> _Node:
    """With what Annotated adds: a description, keywords, or an object that has one."""
    for extra in metadata:
        told = getattr(extra, "description", extra)  # pydantic's Field, say
        if isinstance(told, str):
            node = node.plus({"description": told})
        elif isinstance(told, dict):
            node = node.plus(told)
    _Validator(node)  # a keyword of the author's that makes no sense shows now
    return node


def _class(cls: Any, read: Any, output: bool) -> _Node:
    if issubclass(cls, enum.Enum):
        return _choice(cls)
    format = next((name for name in map(_name, cls.__mro__) if name in _FORMATS), "")
    if format:
        return _Node({"type": "string", **_FORMATS[format]},
                     lambda value: _revived(cls, str(value)))
    return _object(_fields(cls, output), read, output, make=lambda value: cls(**value))


def _fields(cls: Any, output: bool) -> list[Any]:
    """(name, hint, default) of each, the default _MISSING or _UNTOLD where it is."""
    hints = _hints_of(cls)
    if hasattr(cls, "__dataclass_fields__"):
        return _dataclass_fields(cls, hints, output)
    if hasattr(cls, "__required_keys__"):
        # `__required_keys__` does not know what marks there are within quoted hints.
        marks = {"typing.Required": _MISSING, "typing.NotRequired": _UNTOLD}
        needed = {name: _MISSING for name in cls.__required_keys__}
        return [(name, hint, marks.get(_name(hint), needed.get(name, _UNTOLD)))
                for name, hint in hints.items()]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [(name, hints.get(name, object), cls._field_defaults.get(name, _MISSING))
                for name in cls._fields]
    raise TypeError(f"{cls.__qualname__} cannot be described as JSON Schema")


def _dataclass_fields(cls: Any, hints: Any, output: bool) -> list[Any]:
    """What its constructor takes, with every InitVar; or what an object of it has."""
    from dataclasses import MISSING, fields

    taken = [field for field in cls.__dataclass_fields__.values()
             if field.init and _name(hints[field.name]) != "typing.ClassVar"]
    rows = []
    for field in fields(cls) if output else taken:
        default = field.default
        if default is MISSING:
            default = _MISSING if field.default_factory is MISSING else _UNTOLD
        rows.append((field.name, hints[field.name], default))
    return rows


def _object(rows: list[Any], read: Any, output: bool = False, loose: bool = False,
            make: Any = None) -> _Node:
    """The schema of what has named parts, as _fields() gives them.

    loose: a part that cannot be described may be anything.
    """
    parts, needed = {}, []
    for name, hint, default in rows:
        try:
            parts[name] = _part(read(hint), _UNTOLD if output else default)
        except (TypeError, ValueError) as error:
            if not loose:
                raise TypeError(f"{name}: {error}") from None
            parts[name] = _PLAIN[object]
        if default is _MISSING:
            needed.append(name)
    words: Json = {"type": "object", "properties": parts}
    if needed:
        words["required"] = needed
    if not output:  # where a subclass may have more
        words["additionalProperties"] = False
    return _Node(words, make)


def _part(node: _Node, default: Any) -> _Node:
    if default is _MISSING or default is _UNTOLD:
        return node
    if default is None:
        return _or_left_out(node)
    try:
        return node.plus({"default": jsonable(default)})
    except (TypeError, ValueError):  # JSON cannot say it
        return node


def _or_left_out(node: _Node) -> _Node:
    """Optional[X] = None reads as X, and null as left out."""
    others = [one for one in node.get("anyOf", ()) if one != _NULL] or [node]
    rest = {word: node[word] for word in node if word != "anyOf"}
    first = others[0] if len(others) == 1 else _Node({"anyOf": others}, node.make)
    return _Node({**first, **rest}, first.make, optional=True)


def _hints_of(thing: Any, **names: Any) -> dict[str, Any]:
    """Evaluated; typing is needed only for what is a string, or has one inside."""
    parts = getattr(thing, "__mro__", [thing])[::-1]
    hints = {name: hint for part in parts
             for name, hint in getattr(part, "__annotations__", {}).items()}
    if not any(type(hint) is not type and "'" in repr(hint) for hint in hints.values()):
        return hints
    import typing

    names.update(vars(typing))  # also what was imported for type checkers only
    for part in parts:
        names.update(getattr(sys.modules.get(part.__module__), "__dict__", {}))
    told = {}
    for name, hint in hints.items():
        try:
            once = _evaluated(hint, names)
            told[name] = _evaluated(once, names)  # what was quoted within quotes
        except Exception as error:
            if name != "return":  # a result may be of a type nobody knows
                raise TypeError(f"{name}: {hint!r}: {error}") from None
    return told


def _evaluated(hint: Any, names: dict[str, Any]) -> Any:
    import typing

    if sys.version_info < (3, 10):  # noqa: UP036
        hint = _without_bars(hint)
    holder = type("", (), {"__annotations__": {"it": hint}})
    return typing.get_type_hints(holder, names, include_extras=True)["it"]


def _without_bars(hint: Any) -> Any:
    """`X | Y` as `Union[X, Y]`, for Python 3.9."""
    import ast

    class Bars(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            both = [self.visit(node.left), self.visit(node.right)]
            return ast.Subscript(ast.Name("Union"), ast.Tuple(both))

    text = getattr(hint, "__forward_arg__", hint)
    if not isinstance(text, str):
        return hint
    return ast.unparse(Bars().visit(ast.parse(text, mode="eval")))


# Results.  A return hint promises a schema, and what is returned must keep the promise.


class Output:
    """What a tool's results look like, if it says so.  problems: why one does not."""

    def __init__(self, schema: Json | None, wrapped: bool = False) -> None:
        self.schema, self.wrapped = schema, wrapped

    @cached_property
    def _validator(self) -> _Validator:
        return _Validator(self.schema)

    def problems(self, value: Any) -> list[str]:
        try:
            return self._validator.problems(value)
        except SchemaError as error:
            return [str(error)]


def output_of(hint: Any) -> tuple[Any, bool]:
    """The outputSchema for a return hint, and whether it wraps as {"result": …}.

    None where nothing is promised: text, content blocks, Any, what has no schema.
    """
    try:
        node = hint_schema(hint, output=True)
    except (TypeError, ValueError):
        return None, False
    bare = node.keys() <= {"type", "description"}
    if bare and node.get("type") in (None, "string", "null", "array"):
        return None, False
    node = json.loads(json.dumps(node))  # to be told and checked: nothing is made of it
    if node.get("type") == "object":
        return node, False
    return {"type": "object", "properties": {"result": node}, "required": ["result"],
            WRAPS_RESULT: True}, True


_HUGE = 10 ** 4300  # Python does not write longer integers, and other readers choke


def jsonable(value: Any, depth: int = 0) -> Any:
    """`value` as JSON data.

    A dataclass or NamedTuple as object, an Enum as its value, a set as array, bytes as
    base64, dates, UUIDs, paths, decimals as text.  TypeError if it has no such form;
    ValueError for NaN and its like, cycles, too deep nesting.
    """
    if depth > MAX_NESTING:
        raise ValueError(f"nested over {MAX_NESTING} levels, or a part of itself")
    if isinstance(value, enum.Enum):
        return jsonable(value.value, depth + 1)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        if not abs(value) < _HUGE:
            raise ValueError("NaN, infinity, integers over 4,300 digits are not JSON")
        return value
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = sys.modules["dataclasses"].fields(value)
        value = {field.name: getattr(value, field.name) for field in fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [jsonable(item, depth + 1) for item in value]
    return _spelt(value)


def _key(key: Any) -> str:
    text = jsonable(key)
    return text if isinstance(text, str) else json.dumps(text)


def _spelt(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return _base64(bytes(value))
    if any(name in _FORMATS for name in map(_name, type(value).__mro__)):
        return str(value.isoformat() if hasattr(value, "isoformat") else value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


# Signatures.  What a function's parameters tell a client, and how arguments reach them.

POSITIONAL_ONLY = 0        # the kinds of parameters, as inspect counts them
POSITIONAL_OR_KEYWORD = 1
VAR_POSITIONAL = 2
KEYWORD_ONLY = 3
VAR_KEYWORD = 4


def _home(fn: Any) -> Any:
    """The plain function within decorators, partial, methods and callable objects."""
    for name in ("__wrapped__", "func", "__func__"):
        if hasattr(fn, name):
            return _home(getattr(fn, name))
    return fn if hasattr(fn, "__code__") else type(fn).__call__


def _parameters(fn: Any, home: Any) -> list[Any]:
    """(name, kind, default) of each; inspect itself only for the odd functions."""
    if fn is not home:
        import inspect

        try:
            found = inspect.signature(fn).parameters.values()
        except ValueError as error:  # some that are built in do not tell
            raise TypeError(f"list: {error}") from None
        return [(p.name, p.kind, _MISSING if p.default is p.empty else p.default)
                for p in found]
    code, count = fn.__code__, fn.__code__.co_argcount
    kinds = [POSITIONAL_ONLY] * code.co_posonlyargcount
    kinds += [POSITIONAL_OR_KEYWORD] * (count - code.co_posonlyargcount)
    kinds += [KEYWORD_ONLY] * code.co_kwonlyargcount
    kinds += [VAR_POSITIONAL] * bool(code.co_flags & 4)
    kinds += [VAR_KEYWORD] * bool(code.co_flags & 8)
    defaults = dict(zip(code.co_varnames[:count][::-1], (fn.__defaults__ or ())[::-1]))
    defaults.update(fn.__kwdefaults__ or {})
    return [(name, kind, defaults.get(name, _MISSING))
            for name, kind in zip(code.co_varnames, kinds)]


_EXACT = {"string": str, "boolean": bool, "integer": int, "number": float,
          "object": dict}


class Signature:
    """What a function's signature tells a client, and how arguments come to it.

    context: the name of the parameter of `context_type`, or "".  returns: a hint.
    by_hand: a sound `schema` told instead of the hints; arguments must fit both.
    TypeError: it cannot be described.
    """

    def __init__(self, fn: Any, context_type: Any = None, schema: Any = None) -> None:
        self.fn = fn.__func__ if isinstance(fn, staticmethod) else fn  # for Python 3.9
        self.home, self.by_hand, self.context = _home(self.fn), schema, ""
        self._first: list[Any] = []  # (name, default) of what is positional only
        try:
            self.node = self._describe(context_type)
        except TypeError as error:
            name = getattr(self.home, "__qualname__", self.fn)
            raise TypeError(f"{name}(): parameter {error}") from None
        self._needed = frozenset(self.node.get("required", ()))
        self._plain: Any = None if schema is not None else {
            name: _EXACT.get(part.get("type"))
            for name, part in self.node["properties"].items()
            if part.keys() <= {"type", "description", "default"}}

    def _describe(self, context_type: Any) -> _Node:
        context = {context_type.__name__: context_type} if context_type else {}
        hints = _hints_of(self.home, **context)
        self.returns = hints.get("return", object)
        rows, more = [], {}
        for name, kind, default in _parameters(self.fn, self.home):
            hint = hints.get(name, object)
            # Also within Context | None and Annotated[Context, …].
            inner = hint, getattr(hint, "__origin__", 0), *getattr(hint, "__args__", ())
            if kind == POSITIONAL_ONLY:
                self._first.append((name, default))
            if context and context_type in inner:
                if self.context:
                    raise TypeError(f"{name}: a second Context")
                self.context = name
            elif kind == VAR_KEYWORD and self.by_hand is not None:
                more = {"additionalProperties": True}
            elif kind in (VAR_POSITIONAL, VAR_KEYWORD):
                raise TypeError(f"{name}: *args and **kwargs cannot be described")
            else:
                rows.append((name, hint, default))
        return _object(rows, hint_schema, loose=self.by_hand is not None).plus(more)

    def bind(self, arguments: dict[str, Any], strict: bool = False) -> dict[str, Any]:
        """The keyword arguments to call with; raises Misfit.

        Unless `strict`, what does not fit moves to its type: "5" to 5, "true" to True,
        JSON text to a list.
        """
        if self._plain is not None and self._needed <= arguments.keys():
            for name, value in arguments.items():
                if self._plain.get(name) is not type(value):
                    break
            else:
                return dict(arguments)
        try:
            for judge in self._judges:
                arguments = judge.fit(arguments, strict)
            return dict(arguments)
        except SchemaError as error:  # the schema is sound: these are too much work
            raise Misfit([((), str(error), "")]) from None

    @cached_property
    def _judges(self) -> list[_Validator]:
        return [_Validator(one) for one in (self.by_hand, self.node) if one is not None]

    def call(self, arguments: dict[str, Any]) -> Any:
        """Call the function with what bind() gave, and the context."""
        first = [arguments.pop(name, default) for name, default in self._first]
        return self.fn(*first, **arguments)

    @cached_property
    def description(self) -> str:
        """The docstring, without the parameters where the schema tells them."""
        doc = self.home.__doc__ or ""
        return _split_doc(doc)[0] if self.by_hand is None else _dedent(doc).strip()

    @cached_property
    def schema(self) -> Any:
        """The inputSchema; the docstring describes what is not Annotated."""
        if self.by_hand is not None:
            return self.by_hand
        told = _split_doc(self.home.__doc__ or "")[1]
        return {**self.node, "properties": {
            name: {"description": told[name], **part} if name in told else part
            for name, part in self.node["properties"].items()}}


_DOC_STYLES = (  # the section on parameters, each of them in it: Google, NumPy, Sphinx
    (r"^(?:Args|Arguments|Parameters|Params):[ \t]*\n((?:[ \t]+\S.*\n|[ \t]*\n)+)",
     r"^\*{0,2}(\w+)[ \t]*(?:\(.*?\))?:[ \t]*(.*\n(?:[ \t]+.*\n|\n)*)"),
    (r"^Parameters\n-{3,}[ \t]*\n((?:(?!.*\n-{3,}).*\n)+)",
     r"^\*{0,2}(\w+)(?:[ \t]*:.*)?\n((?:[ \t]+.*\n|\n)*)"),
    (r"((?:^:(?:param|type)\b.*\n(?:[ \t]+.*\n)*)+)",
     r"^:param (?:[^:\n]*[ ])?\*{0,2}(\w+):(.*\n(?:[ \t]+.*\n)*)"),
)


def _dedent(text: str) -> str:
    head, *lines = text.expandtabs().split("\n")
    margins = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    rest = (line[min(margins, default=0):].rstrip() for line in lines)
    return "\n".join([head.strip(), *rest])


def _split_doc(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its section on parameters, and what that says of each."""
    text, told = _dedent(doc).rstrip() + "\n", {}
    for section, entry in _DOC_STYLES:
        for body in re.findall(section, text, re.MULTILINE):
            found = re.findall(entry, _dedent("\n" + body) + "\n", re.MULTILINE)
            told.update({name: " ".join(words.split()) for name, words in found})
        text = re.sub(section, "", text, flags=re.MULTILINE)
    return text.strip(), told


# URI templates, read backwards.

_SHAPES = {  # before the first, before the others, what each takes in
    "":  ("",    ",",   "[^/?#]+?"),
    "+": ("",    ",",   "[^?#]+?"),
    "#": ("#",   ",",   ".+?"),
    ".": ("[.]", "[.]", "[^/?#.]+?"),
    "/": ("/",   "/",   "[^/?#]+?"),
    ";": (";",   ";",   "[^/?#;]*?"),
}


def _up_to(literal: str, name: str, value: str) -> str:
    """A variable and the literal that first follows it, whatever comes then.

    If the next variable takes in at least as much, no match is lost by never trying a
    later one, and a URI of a few thousand dashes is no work for `{y}-{m}-{d}`.
    """
    return f"(?=(?P<{name}>{value}){literal})(?P={name}){literal}"


class UriTemplate:
    """An RFC 6570 template, levels 1 to 3, read backwards: from a URI to its variables.

    `{x}` never takes in a slash, however it is written, and no variable a segment `..`.
    Of several that match, the one with the largest `literal` says the most.  A template
    that is malformed or of level 4 is a ValueError.
    """

    def __init__(self, text: str) -> None:
        parts = re.split(r"\{([+#./;?&]?)([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)\}", text)
        self.literal = sum(map(len, parts[::3]))
        self.names = [name for names in parts[2::3] for name in names.split(",")]
        self._asked: list[str] = []  # in the query: in any order, and none is required
        self._deep: list[str] = []  # may hold slashes
        twice = len({*self.names}) < len(self.names)
        if twice or re.search("[{}]", "".join(parts[::3])):
            raise ValueError(f"{text!r} is not a URI template of level 1 to 3")
        pattern, following = re.escape(parts[0]), [*parts[4::3], "end"]
        for kind, names, literal, after in zip(
                parts[1::3], parts[2::3], parts[3::3], following):
            pattern += self._pattern(kind, names.split(","), re.escape(literal), after)
        self._regex = re.compile(pattern, re.DOTALL)

    def _pattern(self, kind: str, names: list[str], literal: str, after: str) -> str:
        """The regular expression of an expression and the literal text after it."""
        if kind in ("?", "&"):
            self._asked += names
            return rf"(?:\{kind}([^#]*))?" + literal
        if kind in ("+", "#"):
            self._deep += names
        lead, other, value = _SHAPES[kind]
        if kind in ("", "+"):
            *some, last = names
            pattern = "".join(_up_to(other, name, value) for name in some)
            if after == "+" or after == kind == "":
                return pattern + _up_to(literal, last, value)
            return f"{pattern}(?P<{last}>{value}){literal}"
        pattern = ""
        for name in names:  # each may be left out, with what stands before it
            one = f"(?P<{name}>{value})"
            one = f"{name}(?:={one})?" if kind == ";" else one
            pattern += f"(?:{lead}{one})?"
            lead = other
        return pattern + literal

    def match(self, uri: str) -> dict[str, Any] | None:
        """The variables, decoded, a list for one asked for twice; None if no match."""
        found = self._regex.fullmatch(uri)
        if not found or ".." in re.split(r"[/\\]", _unquote(uri.partition("?")[0])):
            return None
        values: dict[str, Any] = {name: _unquote(raw) for name, raw
                                  in found.groupdict().items() if raw is not None}
        shallow = (values[name] for name in values if name not in self._deep)
        if any(re.search(r"[/\\]|^\.$", value) for value in shallow):
            return None
        asked: dict[str, list[str]] = {}
        named = self._regex.groupindex.values()
        for at, query in enumerate(found.groups(), 1):
            for pair in query.split("&") if query and at not in named else ():
                name, _, raw = pair.partition("=")
                asked.setdefault(name, []).append(_unquote(raw))
        if asked.keys() - self._asked:
            return None
        values.update((name, got if got[1:] else got[0]) for name, got in asked.items())
        return values


# -- 9. Server -------------------------------------------------------------------------
# The path of any request is four steps, see Connection.handle: whose terms (terms_of),
# admitted? (admit), handler (dispatch), dressed (dress).
# Handlers read parameters, act, and return the wire's result; none asks for its era:
# what differs is in ctx.terms, and METHODS says which era has the method at all.


class Context:
    """What a handler may know and do about the request it serves.

    Any parameter annotated `Context` gets one.  Every call that talks to the client is
    a cancellation point: it raises Cancelled once the client has cancelled the request,
    or is gone.  Usable from any thread until the request is answered; after that,
    reports and messages go nowhere.  Whatever asks the client blocks, or, in the
    stateless revision, leaves the handler, which runs again from the top when the
    answers have come: put side effects before a question into `once`.  There only
    tools, prompts and resources may ask.
    """

    def __init__(self, server: Server, incoming: Incoming, terms: Any) -> None:
        self.server, self.incoming, self.terms = server, incoming, terms
        self._asked: set[str] = set()
        self._steps: Json = terms.steps()  # of `once`; shared: what is added travels

    request_id = property(lambda self: self.incoming.id, doc="Its id, verbatim.")
    meta = property(lambda self: self.incoming.params.get("_meta") or {},
                    doc="Its `_meta` as received: trace context, token and all.")
    client_info = property(lambda self: self.terms.client_info,
                           doc="Who the client says it is: name, version.")
    client_capabilities = property(lambda self: self.terms.client_capabilities,
                                   doc="What the client declared it can do.")
    protocol_version = property(lambda self: self.terms.version,
                                doc="The revision the request is served in.")
    cancelled = property(lambda self: self.incoming.cancelled,
                         doc="True once the client no longer wants the answer.")

    def check_cancelled(self) -> None:
        """Raise Cancelled if the client no longer wants the answer."""
        if self.incoming.cancelled:
            raise Cancelled()

    def wait(self, seconds: float) -> None:
        """Sleep, but raise Cancelled at once when the request is cancelled."""
        self.incoming.peer.pass_reading_on()
        self._bell.wait(min(max(0.0, seconds), threading.TIMEOUT_MAX))
        self.check_cancelled()

    @cached_property
    def _bell(self) -> threading.Event:  # one for all waits: a hook stays for good
        bell = threading.Event()
        self.incoming.on_cancel(bell.set)
        return bell

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification of your own while the request is alive."""
        self.check_cancelled()
        self.incoming.tell(method, params or {})

    def report_progress(self, progress: float, total: float | None = None,
                        message: str | None = None) -> None:
        """Tell how far the work is, if the client asked to know.

        What does not increase is not sent (basic/utilities/progress).
        """
        self.check_cancelled()
        self.incoming.progress(progress, total, message)

    def track(self, iterable: Iterable[Any], total: float | None = None,
              message: str | None = None) -> Iterator[Any]:
        """Yield the items, and report progress at most every 0.1 s until cancelled."""
        if total is None:
            total = getattr(iterable, "__len__", lambda: None)()
        due = 0.0
        for count, item in enumerate(iterable, 1):
            self.check_cancelled()
            yield item
            if time.monotonic() >= due or count == total:
                self.report_progress(count, total, message)
                due = time.monotonic() + 0.1

    def log(self, level: str, data: Any, logger_name: str | None = None) -> None:
        """Send a log message, if the client wants that level.

        data: any JSON.  ValueError: no such level.  debug, info and so on are the same
        without the first argument (server/utilities/logging).
        """
        self.check_cancelled()
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}")
        if self.terms.wants_log(level):
            self.incoming.tell(LOG_MESSAGE, {
                "level": level, **wire(logger=logger_name), "data": jsonable(data)})

    debug, info = partialmethod(log, "debug"), partialmethod(log, "info")
    notice, warning = partialmethod(log, "notice"), partialmethod(log, "warning")
    error, critical = partialmethod(log, "error"), partialmethod(log, "critical")
    alert, emergency = partialmethod(log, "alert"), partialmethod(log, "emergency")

    def elicit(self, message: str, schema: Any, key: str | None = None) -> Elicited:
        """Ask the user to fill in a form (client/elicitation).

        schema: a dataclass or TypedDict class, a list of choices or a scalar type
        (asked as the property `value`), or a JSON Schema.  key: names the question
        within this request; give one where their order may differ from run to run.
        """
        form = Form(schema)
        return self._ask_one("elicitation/create", {
            "message": message, "requestedSchema": form.schema}, form.read, key)

    def elicit_url(self, message: str, url: str, key: str | None = None) -> Elicited:
        """Ask the user to visit an address; what happens there is not seen here."""
        return self._ask_one("elicitation/create", {
            "mode": "url", "message": message, "url": url}, read_elicited, key)

    def sample(self, messages: Any, *, system_prompt: str | None = None,
               max_tokens: int = 512, temperature: float | None = None,
               tools: Any = None, tool_choice: Any = None, key: str | None = None,
               **params: Any) -> Sampled:
        """Have the client's model complete a str, a message, or a list of both.

        params: further keys of the wire, `modelPreferences` say (client/sampling).
        """
        listed = messages if type(messages) is list else [messages]
        params = {
            "messages": [message_of(m) for m in listed], "maxTokens": max_tokens,
            **wire(systemPrompt=system_prompt, temperature=temperature, tools=tools,
                   toolChoice=tool_choice), **params}
        return self._ask_one("sampling/createMessage", params, Sampled, key)

    def list_roots(self) -> list[Json]:
        """The directories the client lets this server work in (client/roots)."""
        return self._ask_one("roots/list", {}, lambda answer: list(answer["roots"]))

    def ask(self, requests: dict[str, Json]) -> dict[str, Json]:
        """Several at once: {key: {"method": …, "params": …}} -> {key: result}."""
        for request in requests.values():
            if request.get("method") not in QUESTIONS:
                raise ValueError(f"nothing to ask a client: {request}")
        return self._ask({key: asking(r["method"], r.get("params") or {}, dict)
                          for key, r in requests.items()})

    def _ask_one(self, method: str, params: Json, make: Callable[[Json], T],
                 key: str | None = None) -> T:
        answer: T
        [answer] = self._ask({key: asking(method, params, make)}).values()
        return answer

    def _ask(self, questions: dict[Any, Question]) -> Json:
        self.check_cancelled()
        with self.server._lock:  # several threads may ask at once
            questions = {key or f"{QUESTIONS[one.method]}-{len(self._asked) + 1}": one
                         for key, one in questions.items()}
            if self._asked & questions.keys():
                raise ValueError(f"asked before in this request: {[*questions]}")
            self._asked |= questions.keys()
        self.incoming.peer.pass_reading_on()
        return self.terms.ask(self.incoming, questions)  # type: ignore[no-any-return]

    def once(self, key: str, run: Callable[[], Any]) -> Any:
        """The result of a step with side effects, which is run once for this request.

        A handler that asks may run again from the top; what it did before asking must
        not happen twice.  The result must be JSON: it travels with the question.
        """
        self.check_cancelled()
        if key not in self._steps:
            self._steps[key] = json.loads(encode(jsonable(run())))
        return self._steps[key]

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read one of this server's own resources."""
        return self.server._read(self, uri)


def asking(method: str, params: Json, make: Callable[[Json], Any]) -> Question:
    """A question; `make` gets the answer once it looks as it must."""
    judge = _Validator(ANSWERS[method])
    return Question(method, params, lambda answer: make(judge.fit(answer)))


def read_elicited(answer: Json) -> Elicited:
    return Elicited(answer["action"], elicitation_id=answer.get("elicitationId"))


class Form:
    """What an elicitation asks for, and how its answer becomes an object."""

    def __init__(self, wanted: Any) -> None:
        listed = type(wanted) in (list, tuple)
        self._choices = {str(choice): choice for choice in (wanted if listed else ())}
        if listed and not wanted:
            raise ValueError("no choices to ask for")
        schema: Any = {"type": "string", "enum": [*self._choices]} if listed else wanted
        if not isinstance(schema, dict):
            schema = hint_schema(schema)
        self._single = type(wanted) is not dict and schema.get("type") != "object"
        if self._single:
            schema = {"type": "object", "properties": {"value": schema},
                      "required": ["value"]}
        self.schema, self._validator = schema, _Validator(schema)

    def read(self, answer: Json) -> Elicited:
        made = read_elicited(answer)
        if made.action == "accept":
            made.content = answer.get("content")
            data = self._validator.fit(made.content)
            data = data["value"] if self._single else data
            made.data = self._choices[data] if self._choices else data
        return made


def name_of(fn: Any) -> str:
    for inside in ("func", "__func__"):  # of a partial, of a static method
        fn = getattr(fn, inside, fn)
    return getattr(fn, "__name__", None) or type(fn).__name__


def check_object(schema: Any, what: str) -> None:
    """SchemaError or ValueError for a schema that not every client takes."""
    if schema is None:
        return
    if type(schema) is not dict or schema.get("type") != "object":
        raise ValueError(f'{what} needs "type": "object"')
    _Validator(schema)


@lru_cache(maxsize=10000)  # so it warns once
def check_tool_name(name: str) -> str:
    """The name, if hosts take it; ValueError if none does, a warning if some do not."""
    if not re.fullmatch(TOOL_NAME, name):
        raise ValueError(f"tool name {name!r}: hosts take {TOOL_NAME}")
    if "." in name or len(name) > 48:
        say(f"mcp_min: tool name {name!r}: some hosts reject dots, "
            "or over 48 characters\n")
    return name


def json_text(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def as_text(value: Any) -> str:
    return value if is_text(value) else json_text(jsonable(value))


class Entry:
    """Something registered: its function's signature, and how it is listed."""

    page = ""        # the list it is in
    named = "name"   # what its key is called there
    takes = "title description icons meta"  # the options it can have

    def __init__(self, key: str, fn: Any, options: Json,
                 schema: Json | None = None) -> None:
        unknown = options.keys() - set(self.takes.split())
        if unknown:
            raise TypeError(f"unknown: {', '.join(sorted(unknown))}; known are: "
                            + self.takes)
        self.key, self.options, self.serial = key, wire(**options), 0
        encode(self.options)  # TypeError now, rather than at every list
        self.signature = Signature(fn, Context, schema=schema)

    @cached_property
    def listed(self) -> Json:  # reads the docstring, so not before it is asked for
        return {self.named: self.key,
                **wire(description=self.signature.description or None),
                **self.options, **self.details()}

    def details(self) -> Json:
        """What its kind alone tells."""
        return {}

    def choices(self) -> dict[str, list[Any]]:
        """The arguments that complete by themselves: those declared as a choice."""
        return {name: schema["enum"] for name, schema
                in self.signature.node["properties"].items() if "enum" in schema}


class Tool(Entry):
    """A tool, and what its results must look like."""

    page = "tools"
    takes = "title description annotations icons meta"

    def __init__(self, fn: Any, *, name: str | None = None,
                 input_schema: Json | None = None, output_schema: Json | None = None,
                 **options: Any) -> None:
        check_object(input_schema, "input_schema")
        check_object(output_schema, "output_schema")
        super().__init__(check_tool_name(name or name_of(fn)), fn, options,
                         input_schema)
        self._output = Output(output_schema) if output_schema is not None else Output(
            *output_of(self.signature.returns))

    def details(self) -> Json:
        return wire(input_schema=self.signature.schema,
                    output_schema=self._output.schema)

    def result(self, value: Any) -> Json:
        """What the function returned, as a result (server/tools: "Tool Result")."""
        schema = self._output.schema
        if is_text(value) and schema is None:
            return {"content": [{"type": "text", "text": str(value)}]}
        parts = value if type(value) in (list, tuple) else [value]
        if isinstance(value, ToolResult):
            data = jsonable(value.structured_content)
            result = ToolResult.of({**value, **wire(structuredContent=data)})
        elif value is None and schema is None:
            result = ToolResult()
        elif any(isinstance(part, Block) for part in parts):
            result = ToolResult([part if isinstance(part, Block) else as_text(part)
                                 for part in parts])
        else:
            result = self._structured(value)
        if schema is not None and not result.is_error:
            problems = "; ".join(self._output.problems(result.structured_content))
            if problems:
                raise ValueError("the result does not fit the output schema: "
                                 + problems)
        return result

    def _structured(self, value: Any) -> ToolResult:
        data = jsonable(value)
        text = value if is_text(value) else json_text(data)
        if type(data) is dict and not self._output.wrapped:
            return ToolResult(text, data)
        return ToolResult(text, {"result": data}, meta=WRAPPED)


class Prompt(Entry):
    """A prompt; its arguments are the parameters of its function."""

    page = "prompts"

    def __init__(self, fn: Any, *, name: str | None = None, **options: Any) -> None:
        super().__init__(name or name_of(fn), fn, options)

    def details(self) -> Json:
        schema = self.signature.schema
        required = schema.get("required", ())
        return {"arguments": [
            wire(name=name, description=hint.get("description"),
                 required=name in required)
            for name, hint in schema["properties"].items()]}


class Resource(Entry):
    """The resource at a URI; or, if that is a template, all whose URIs match it."""

    takes = "name title description mime_type size annotations icons meta"

    def __init__(self, uri: str, fn: Any, *, name: str | None = None,
                 **options: Any) -> None:
        self.page, self.named, variables = "resources", "uri", set()
        if "{" in uri:
            self.page, self.named = "resourceTemplates", "uriTemplate"
            self.template = UriTemplate(uri)
            variables = set(self.template.names)
        super().__init__(uri, fn, {"name": name or name_of(fn), **options})
        node = self.signature.node
        if not {*node.get("required", ())} <= variables <= {*node["properties"]}:
            raise TypeError(f"{uri}: its placeholders and the parameters differ")

    def contents(self, value: Any, uri: str) -> list[ResourceContents]:
        """What the function returned: text, bytes, data, contents or a list of them."""
        parts = value if type(value) in (list, tuple) and any(
            isinstance(part, ResourceContents) for part in value) else [value]
        return [self._contents(part, uri) for part in parts]

    def _contents(self, value: Any, uri: str) -> ResourceContents:
        mime_type = self.options.get("mimeType")
        if isinstance(value, ResourceContents):
            return ResourceContents.of({
                "uri": uri, **wire(mime_type=mime_type), **value})
        if isinstance(value, (bytes, bytearray)):
            return ResourceContents(data=bytes(value), uri=uri,
                                    mime_type=mime_type or "application/octet-stream")
        default = "text/plain" if is_text(value) else "application/json"
        return ResourceContents(as_text(value), uri=uri, mime_type=mime_type or default)


class Registry:
    """Entries of one kind in the order they were added, and pages of them.

    A cursor names the last entry seen by its serial number, so entries may come and go
    between pages.  Changed under Server._lock only; readers take a snapshot.  What is
    added again takes its predecessor's place in one step: it is never not there, and on
    one page only.
    """

    def __init__(self, row: Method) -> None:
        self.feature, self._key, self._serial = row.feature, row.page, 0
        self.entries: dict[str, Any] = {}

    def add(self, entry: Entry) -> None:
        before = self.entries.get(entry.key)
        self._serial += 1
        entry.serial = before.serial if before else self._serial
        self.entries[entry.key] = entry

    def find(self, params: Json, what: str) -> Any:
        name = params.get("name")
        entry = self.entries.get(name) if type(name) is str else None
        if entry is None:
            raise invalid_params(f"Unknown {what}: {name!r:.100}", {"name": name})
        return entry

    def page(self, params: Json, size: int) -> Json:
        """One page (server/utilities/pagination); McpError for a cursor not ours."""
        cursor = params.get("cursor")
        after = 0 if cursor is None else self._serial_in(cursor)
        entries = [e for e in list(self.entries.values()) if e.serial > after]
        result: Json = {self._key: [entry.listed for entry in entries[:size]]}
        if len(entries) > size:
            last = f"{self._key}:{entries[size - 1].serial}"
            result["nextCursor"] = last.encode().hex()
        return result

    def _serial_in(self, cursor: Any) -> int:
        try:
            key, serial = bytes.fromhex(cursor).decode().split(":")
            if key == self._key:
                return int(serial)
        except (ValueError, TypeError):
            pass  # not even of another list
        raise invalid_params("Invalid cursor", {"cursor": cursor})


def run_to_end(value: Any, incoming: Incoming) -> Any:
    """What a handler returned; an `async def` one is run to its end, on this thread."""
    if not hasattr(value, "__await__"):
        return value
    import asyncio

    async def run() -> Any:
        task, loop = asyncio.ensure_future(value), asyncio.get_running_loop()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # the loop has just been closed: it has finished

        incoming.on_cancel(cancel)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if incoming.cancelled:
            raise Cancelled() from None
        raise
    except BaseException as error:
        unwind = unwinding(error)
        if unwind:
            raise unwind from None
        raise


def unwinding(error: BaseException) -> BaseException | None:
    """The Unwind in an exception group: a task group wraps what leaves its tasks."""
    inner = map(unwinding, getattr(error, "exceptions", None) or ())
    return error if isinstance(error, Unwind) else next(filter(None, inner), None)


def run_elsewhere(run_handler: Any, run: Callable[[], Any], incoming: Incoming) -> Any:
    """Have the host run a handler on a thread of its choice, and wait for it."""
    from concurrent.futures import Future

    future: Future[Any] = Future()
    fresh = threading.Lock()  # held for good once it runs: a timer may call it again

    def job() -> None:
        if fresh.acquire(blocking=False) and future.set_running_or_notify_cancel():
            try:
                future.set_result(run_to_end(run(), incoming))
            except BaseException as error:
                future.set_exception(error)

    incoming.on_cancel(future.cancel)
    incoming.peer.pass_reading_on()
    run_handler(job)
    return answer_of(future)


def decorator(add: Callable[..., Any], first: Any, options: Json) -> Any:
    """What `@add`, `@add("name")` and `@add(option=…)` stand for."""
    if first is None or isinstance(first, str):
        return partial(add, **wire(name=first), **options)
    return add(first, **options)


HANDLERS: dict[str, Callable[[Server, Context, Json], Json]] = {}


def handles(*methods: str) -> Callable[[Any], Any]:
    """Enter the function below in the dispatch table."""
    def enter(function: Any) -> Any:
        HANDLERS.update(dict.fromkeys(methods, function))
        return function
    return enter


def object_in(params: Json, key: str) -> Json:
    """The object under a key, {} if there is none; or else McpError(-32602)."""
    value = params.get(key)
    given: Json = {} if value is None else expect(value, dict, key)
    return given


class Server:
    """A server: register functions with the decorators, then `run()`.

    name, version, title, description, website_url, icons: who it is.  instructions: how
    a model should use it.  page_size: entries on a page of any list.  cache_ttl: the
    seconds a client may keep lists and resources; cache_scope: "private" or "public".
    capabilities: merged into what is advertised.  state_secret: bytes shared between
    processes that continue each other's questions.  max_workers: threads of a
    connection.  max_message_bytes, max_depth: of a line.  drain_seconds: for what is in
    flight when the client hangs up.  mask_errors: say nothing of exceptions to clients.
    strict_input: take arguments only as they are.  run_handler: called with a function
    of no arguments that it must call on the right thread, now or later (Blender, Tk).

    Everything may be called from any thread, while serving too.
    """

    def __init__(self, name: str, version: str = "0", *, title: str | None = None,
                 description: str | None = None, website_url: str | None = None,
                 icons: list[Json] | None = None, instructions: str | None = None,
                 capabilities: Json | None = None, page_size: int = 1000,
                 cache_ttl: float = 0.0, cache_scope: str = "private",
                 state_secret: bytes | None = None, max_workers: int = 64,
                 max_message_bytes: int = 64 << 20, max_depth: int = MAX_DEPTH,
                 drain_seconds: float = 1.5, mask_errors: bool = False,
                 strict_input: bool = False, run_handler: Any = None) -> None:
        if min(page_size, max_workers) < 1 or min(cache_ttl, drain_seconds) < 0:
            raise ValueError("page_size and max_workers are 1 or more, "
                             "cache_ttl and drain_seconds 0 or more")
        if cache_scope not in ("private", "public"):
            raise ValueError('cache_scope is "private" or "public"')
        if state_secret is not None and not (
                isinstance(state_secret, bytes) and state_secret):
            raise TypeError("state_secret must be bytes, and some")
        if not all(type(value) is dict for value in (capabilities or {}).values()):
            raise TypeError("each of the capabilities must be a dict")
        self.name, self.version, self.instructions = name, version, instructions
        self.info = wire(name=name, version=version, title=title, icons=icons,
                         description=description, website_url=website_url)
        self.page_size, self.sealer = page_size, Sealer(state_secret or os.urandom(32))
        self.cache_ttl, self.cache_scope = cache_ttl, cache_scope
        self.mask_errors, self.strict_input = mask_errors, strict_input
        self._run_handler, self._more_capabilities = run_handler, capabilities or {}
        self.limits: Json = {
            "max_workers": max_workers, "max_message_bytes": max_message_bytes,
            "max_depth": max_depth, "drain_seconds": drain_seconds}
        self._middleware: list[Any] = []
        self._lock = threading.Lock()  # guards all below
        self._lists = {row.page: Registry(row) for row in METHODS.values() if row.page}
        self._completers: dict[tuple[str, str], Signature] = {}
        self._methods: dict[str, Signature] = {}
        self._listeners: set[Any] = set()  # terms: sessions, and requests that listen
        self._features = {"logging", *self._more_capabilities}  # once offered, for good

    # -- registering

    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool; bare, called, or called with options.

        name, title, description, annotations, input_schema, output_schema, icons, meta.
        Schema and description come from the signature and the docstring.  TypeError: a
        parameter that no schema can describe.  ValueError: a name hosts do not take.
        """
        return decorator(self.add_tool, fn, options)

    def prompt(self, fn: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt; its parameters are the prompt's arguments.

        name, title, description, icons, meta.
        """
        return decorator(self.add_prompt, fn, options)

    def resource(self, uri: str, **options: Any) -> Any:
        """Register a function as the resource at a URI, or, with {…}, at a template.

        name, title, description, mime_type, size, annotations, icons, meta.
        """
        if not isinstance(uri, str):
            raise TypeError("resource needs a URI: @server.resource(uri)")
        return partial(self.add_resource, uri, **options)

    def completion(self, ref: str, argument: str) -> Any:
        """Register what completes an argument of a prompt (its name) or URI template.

        The function gets `value`, and `context` (a dict) if it has that parameter.
        """
        return partial(self._enter, self._completers, (ref, argument), {"completions"})

    def method(self, name: str) -> Any:
        """Register a handler for a request, or a `notifications/…`, of your own.

        Its parameters are the message's; one named `params` gets them all.
        """
        if not isinstance(name, str) or name in METHODS:
            raise TypeError(f"method needs a name of your own, not {name!r}")
        return partial(self._enter, self._methods, name, set())

    def _enter(self, table: Any, key: Any, features: set[str], fn: Any) -> Any:
        with self._lock:
            table[key] = Signature(fn, Context)
            self._features |= features
        return fn

    def middleware(self, fn: Any) -> Any:
        """Register fn(ctx, method, params, call_next) -> result around every handler.

        call_next(ctx, method, params): the next one inside, to be called at most once;
        other params take effect, another method does not.  The first registered is the
        outermost.  Not around notifications, nor around what the reading thread settles
        itself: the handshake, discovery, ping, subscriptions, the log level.
        """
        self._middleware.append(fn)
        return fn

    def add_tool(self, fn: Any, **options: Any) -> Any:
        """Register a tool as `tool` does; clients are told of it."""
        return self._add(Tool(fn, **options), fn)

    def remove_tool(self, name: str) -> None:
        """Remove a tool; clients are told.  KeyError: there is no such tool."""
        self._remove("tools", name)

    def add_prompt(self, fn: Any, **options: Any) -> Any:
        """Register a prompt as `prompt` does; clients are told of it."""
        return self._add(Prompt(fn, **options), fn)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt; clients are told.  KeyError: there is no such prompt."""
        self._remove("prompts", name)

    def add_resource(self, uri: str, fn: Any, **options: Any) -> Any:
        """Register a resource as `resource` does; clients are told of it."""
        return self._add(Resource(uri, fn, **options), fn)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource; clients are told.  KeyError: there is no such resource."""
        self._remove("resourceTemplates" if "{" in uri else "resources", uri)

    def _add(self, entry: Entry, fn: Any) -> Any:
        registry = self._lists[entry.page]
        with self._lock:
            registry.add(entry)
            self._features.add(registry.feature)
            if entry.page in COMPLETABLE and entry.choices():
                self._features.add("completions")
            self._list_changed(registry.feature)
        return fn

    def _remove(self, page: str, key: str) -> None:
        registry = self._lists[page]
        with self._lock:
            del registry.entries[key]
            self._list_changed(registry.feature)

    def _list_changed(self, kind: str) -> None:  # _lock is held
        for listener in self._listeners:
            listener.list_changed(kind)

    def notify_resource_updated(self, uri: str) -> None:
        """Tell whoever has subscribed to this URI that it has changed."""
        with self._lock:
            for listener in self._listeners:
                listener.resource_updated(uri)

    # -- what is offered

    def offers(self, feature: str) -> bool:
        """Is this capability advertised?"""
        return feature in self._features

    def capabilities(self) -> Json:
        """What is advertised, for what is registered now."""
        return {feature: {**CAPABILITIES.get(feature, {}),
                          **self._more_capabilities.get(feature, {})}
                for feature in sorted(self._features)}

    def has_method(self, name: str) -> bool:
        """Is there a handler for this method of your own?"""
        return name in self._methods

    # -- serving

    def run(self) -> None:
        """Serve over stdin and stdout until the client hangs up.

        Blocks.  The process's own prints go to stderr meanwhile.  Ctrl-C raises
        SystemExit(130), SIGTERM SystemExit(143).  RuntimeError if already running.
        """
        with Signals(), StandardStreams() as (reader, writer):
            self.serve(reader, writer, own_reader=True)

    def serve(self, reader: Any, writer: Any, *, own_reader: bool = False) -> None:
        """Serve over any pair of binary streams: a socket's file, a pipe, a tty.

        Blocks until the other end hangs up.  Any number of connections may be served at
        once, each from a thread of its own.  own_reader: close the reader at its end.
        """
        connection = Connection(self, reader, writer, own_reader)
        try:
            connection.peer.start()
            while not connection.peer.done.wait(0.5):
                pass  # no signal ends a wait on Windows, nor one that came just before
        finally:
            connection.peer.close()
            self._forget(connection.session)

    def dispatch(self, ctx: Context, method: str, params: Json, depth: int = 0) -> Json:
        """Run the handler of a method, inside the middleware from `depth` on."""
        asked = ctx.incoming.method  # whatever a middleware calls it
        row = METHODS.get(asked)
        if depth == len(self._middleware) or row and row.swift:
            return HANDLERS.get(asked, Server._custom)(self, ctx, params)
        layer = self._middleware[depth]
        result = layer(ctx, method, params, partial(self.dispatch, depth=depth + 1))
        if not isinstance(result, dict):
            raise TypeError(f"middleware {name_of(layer)} returned no result")
        return result

    def _custom(self, ctx: Context, params: Json) -> Json:
        signature = self._methods[ctx.incoming.method]
        given = {key: value for key, value in params.items() if key != "_meta"}
        if list(signature.node["properties"]) == ["params"]:
            given = {"params": params}
        value = jsonable(self._call(signature, ctx, given))
        return value if type(value) is dict else wire(result=value)

    def _call(self, signature: Signature, ctx: Context, arguments: Json,
              tool: bool = False) -> Any:
        """Run a user's function.

        Arguments that do not fit: McpError, or for a tool what its era makes of them.
        Only a tool's can be taken strictly: elsewhere the protocol has but strings.
        """
        try:
            kwargs = signature.bind(arguments, tool and self.strict_input)
        except Misfit as misfit:
            refusal = ctx.terms.bad_arguments if tool else invalid_params
            raise refusal(str(misfit)) from None
        if signature.context:
            kwargs[signature.context] = ctx
        if self._run_handler is None:
            return run_to_end(signature.call(kwargs), ctx.incoming)
        run = partial(signature.call, kwargs)
        return run_elsewhere(self._run_handler, run, ctx.incoming)

    def error_text(self, error: BaseException) -> str:
        """What a client is told of an exception."""
        return "Internal error" if self.mask_errors else error_text(error)

    # -- the method handlers

    @handles("initialize", "server/discover")
    def _introduce(self, ctx: Context, params: Json) -> Json:
        return ctx.terms.introduce(params)  # type: ignore[no-any-return]

    @handles("ping")
    def _ping(self, ctx: Context, params: Json) -> Json:
        return {}

    @handles("subscriptions/listen")
    def _listen(self, ctx: Context, params: Json) -> Json:
        stream = ctx.terms
        if ctx.incoming.batch:  # the other answers would wait for its end
            raise McpError(INVALID_REQUEST, "A stream cannot be part of a batch")
        with self._lock:  # nothing may change between the two
            stream.listen(params)
            self._listeners.add(stream)
        ctx.incoming.on_cancel(partial(self._forget, stream))
        if stream.peer.ended.is_set():  # too late for `hung_up` to see it
            stream.end()
        return DETACHED

    def _forget(self, listener: Any) -> None:
        with self._lock:
            self._listeners.discard(listener)

    @handles("logging/setLevel")
    def _set_level(self, ctx: Context, params: Json) -> Json:
        if params.get("level") not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}")
        ctx.terms.level = params["level"]
        return {}

    @handles("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    def _list(self, ctx: Context, params: Json) -> Json:
        key = METHODS[ctx.incoming.method].page
        return self._lists[key].page(params, self.page_size)

    @handles("tools/call")
    def _tools_call(self, ctx: Context, params: Json) -> Json:
        tool: Tool = self._lists["tools"].find(params, "tool")
        arguments = object_in(params, "arguments")
        try:
            return tool.result(self._call(tool.signature, ctx, arguments, tool=True))
        except (McpError, Unwind):
            raise
        except ToolError as error:
            return ToolResult(str(error), is_error=True)
        except BaseException as error:  # a tool must not end the server either
            ctx.check_cancelled()  # what fails after that fails because of it
            report(f"mcp_min: tool {tool.key} failed")
            return ToolResult(self.error_text(error), is_error=True)

    @handles("resources/read")
    def _resources_read(self, ctx: Context, params: Json) -> Json:
        return {"contents": self._read(ctx, expect(params.get("uri"), str, "uri"))}

    def _read(self, ctx: Context, uri: str) -> list[ResourceContents]:
        entry, arguments = self._resource_at(ctx, uri)
        return entry.contents(self._call(entry.signature, ctx, arguments), uri)

    def _resource_at(self, ctx: Context, uri: str) -> tuple[Resource, Json]:
        """What serves a URI: that resource, else the most literal template."""
        entry = self._lists["resources"].entries.get(uri)
        if entry:
            return entry, {}
        templates = list(self._lists["resourceTemplates"].entries.values())
        for entry in sorted(templates, key=lambda entry: -entry.template.literal):
            found = entry.template.match(uri)
            if found is not None:
                return entry, found
        raise McpError(ctx.terms.missing_resource, f"Resource not found: {uri:.200}",
                       {"uri": uri})

    @handles("resources/subscribe", "resources/unsubscribe")
    def _subscribe(self, ctx: Context, params: Json) -> Json:
        uri, uris = expect(params.get("uri"), str, "uri"), ctx.terms.uris
        with self._lock:
            if ctx.incoming.method == "resources/subscribe":
                uris.add(uri)
            else:
                uris.discard(uri)
        return {}

    @handles("prompts/get")
    def _prompts_get(self, ctx: Context, params: Json) -> Json:
        prompt: Prompt = self._lists["prompts"].find(params, "prompt")
        value = self._call(prompt.signature, ctx, object_in(params, "arguments"))
        values = value if type(value) in (list, tuple) else [value]
        return {**wire(description=prompt.listed.get("description")),
                "messages": [message_of(v) for v in values]}

    @handles("completion/complete")
    def _complete(self, ctx: Context, params: Json) -> Json:
        ref, argument = object_in(params, "ref"), object_in(params, "argument")
        if ref.get("type") not in ("ref/prompt", "ref/resource"):
            raise invalid_params('"ref" must be of type ref/prompt or ref/resource')
        named_by = "name" if ref["type"] == "ref/prompt" else "uri"
        key = expect(ref.get(named_by), str, named_by)
        name, value = (expect(argument.get(k), str, k) for k in ("name", "value"))
        context = object_in(object_in(params, "context"), "arguments")
        found = self._values_for(ctx, key, name, value, context) or ()
        found = [found] if is_text(found) else found
        values = [as_text(jsonable(v)) for v in found]
        return {"completion": {
            "values": values[:MAX_COMPLETIONS], "total": len(values),
            "hasMore": len(values) > MAX_COMPLETIONS}}

    def _values_for(self, ctx: Context, key: str, name: str, value: str,
                    context: Json) -> Any:
        completer = self._completers.get((key, name))
        if completer:
            known = completer.node["properties"]
            given = {"value": value, "context": context}.items()
            return self._call(completer, ctx, {k: v for k, v in given if k in known})
        prompts, templates = (self._lists[page].entries for page in COMPLETABLE)
        entry = prompts.get(key) or templates.get(key)
        if not entry:
            raise invalid_params(f"Unknown prompt or template: {key:.200}",
                                 {"ref": key})
        # As a client will spell them: `true`, and null by leaving it out.
        choices = entry.choices().get(name, ())
        words = [as_text(choice) for choice in choices if choice is not None]
        return [word for word in words if word.startswith(value)]


class Connection:
    """A client of a server: the role of its peer, and its session."""

    def __init__(self, server: Server, reader: Any, writer: Any,
                 own_reader: bool) -> None:
        self._server = server
        self.peer = Peer(self, reader, writer, answers="all", own_reader=own_reader,
                         **server.limits)
        self.session: Any = Session(server, self.peer)
        self.error_text = server.error_text

    def batches(self) -> bool:
        return self.session.batches()  # type: ignore[no-any-return]

    def swift(self, incoming: Incoming) -> bool:
        # Noted before the next line is read, which may be another `initialize`.
        incoming.session = self.session
        row = METHODS.get(incoming.method)  # what nobody knows is refused at once
        return row.swift if row else not self._server.has_method(incoming.method)

    def handle(self, incoming: Incoming) -> Json:
        expect(incoming.params, dict, "params")
        terms = terms_of(incoming.session, incoming)
        terms.admit(incoming)
        ctx = Context(self._server, incoming, terms)
        try:
            result = self._server.dispatch(ctx, incoming.method, incoming.params)
            if incoming.method == "initialize":
                self.adopt(terms)  # only now: a refused handshake changes nothing
        except Unwind as unwind:
            if isinstance(unwind.outcome, McpError):
                raise unwind.outcome from None
            result = unwind.outcome
        return result if result is DETACHED else terms.dress(incoming.method, result)

    def adopt(self, session: Any) -> None:
        """Let this session, instead of the last, hear what changes."""
        with self._server._lock:
            self._server._listeners.discard(self.session)
            self._server._listeners.add(session)
            self.session = session

    def notified(self, method: str, params: Json) -> None:
        if method == INITIALIZED:
            with self._server._lock:
                self.session.be_ready()
        if self._server.has_method(method):
            # No request: this one is in no table, what is told about it goes nowhere.
            # Its terms are the connection's: empty if the client has shaken no hands.
            message = {"id": 0, "method": method, "params": params}
            incoming = Incoming(self.peer, message, None)
            ctx = Context(self._server, incoming, self.session)
            self.peer.lane.submit(partial(self._server._custom, ctx, params))

    def hung_up(self) -> None:
        """End the streams, each with a final result."""
        with self._server._lock:
            ours = [it for it in self._server._listeners if it.peer is self.peer]
        for listener in ours:
            listener.end()

    def closed_error(self) -> ConnectionClosed:
        return ConnectionClosed("The client has hung up")


# -- 10. Client ------------------------------------------------------------------------
# The same verbs from the other side.  A Link is one connection and never comes back;
# the Client holds the current one, so a restart is a new Link.

AT_START: Any = object()  # `stderr=`: whatever sys.stderr is when the process starts


class Link:
    """A connection to a server: the role of its peer, and the process behind it."""

    def __init__(self, client: Client, process: Process | Streams) -> None:
        self.client, self.process = client, process
        # Questions wait for people, each on a thread: so many as to never run out.
        self.peer = Peer(self, process.reader, process.writer, answers="requests",
                         own_reader=True, max_workers=1000)
        self.dialect: Any = None          # None until agreed on
        self._noise: deque[bytes] = deque(maxlen=20)  # lines that were no messages
        self._closed = False              # by us
        self._ending = threading.Lock()   # held while the process is ended
        self._caching = threading.Lock()  # guards the next
        self._cache: dict[tuple[str, str], tuple[float, str]] = {}
        process.watch(self.peer.ended, self.peer.give_up)

    def request(self, method: str, params: Json | None = None,
                timeout: float | None = None, progress_handler: Handler | None = None,
                ) -> Any:
        return self.peer.wait(self.send(method, params, timeout, progress_handler))

    def send(self, method: str, params: Json | None, timeout: float | None,
             progress_handler: Handler | None, read: Handler | None = None) -> Call:
        client = self.client
        return self.peer.request(
            method, self.dialect.stamp(params), token=True,
            read=Exchange(self, params or {}, read).read,
            on_progress=progress_handler or client._progress_handler,
            timeout=client.timeout if timeout is None else timeout,
            cap=client._max_timeout)

    def notify(self, method: str, params: Json | None = None) -> None:
        if self.peer.closed:
            raise self.closed_error()
        self.peer.send(notification(method, params))

    def fetch(self, method: str, params: Json, timeout: float | None = None) -> Json:
        """A result from the cache, or else from the server."""
        with self._caching:
            expires, kept = self._cache.get((method, json.dumps(params)), (0.0, ""))
        result: Json = json.loads(kept) if time.monotonic() < expires else (
            self.request(method, params, timeout))
        return result

    def keep(self, method: str, params: Json, result: Json) -> None:
        """Cache a result for as long as its server allows (server/utilities/caching).

        On the reading thread: a notification that comes later also finds it.
        """
        seconds = self.dialect.lifetime(method, result)
        if seconds > 0:
            key, kept = (method, json.dumps(params)), json.dumps(result)
            with self._caching:
                if len(self._cache) >= 1000:
                    self._cache.clear()
                self._cache[key] = time.monotonic() + seconds, kept

    def _forget_stale(self, method: str, params: Json) -> None:
        changed = [kind for kind, (name, _) in CHANGES.items() if name == method]
        read = "resources/read", json.dumps({"uri": params.get("uri")})
        with self._caching:
            for key in list(self._cache):
                row = METHODS[key[0]]
                listed = row.page and row.feature in changed
                if listed or method == UPDATED and key == read:
                    del self._cache[key]

    def swift(self, incoming: Incoming) -> bool:
        return incoming.method == "ping"  # type: ignore[no-any-return]

    def batches(self) -> bool:
        return False

    def handle(self, incoming: Incoming) -> Json:
        if incoming.method == "ping":
            return {}
        params = expect(incoming.params, dict, "params")
        return self.client._answer(incoming.method, params)

    error_text = staticmethod(error_text)

    def noise(self, line: bytes) -> None:
        self._noise.append(line[:500])

    def notified(self, method: str, params: Json) -> None:
        known = self.dialect.notified(method, params) if self.dialect else params
        if known is None:
            return
        self._forget_stale(method, known)
        if not self.peer.lane.full():
            self.client._tell(self.peer.lane, method, known)

    def hung_up(self) -> None:
        pass

    def timeout_error(self, reason: str) -> RequestTimeout:
        return RequestTimeout(reason + self._evidence(self.process.stderr_tail))

    def closed_error(self) -> ConnectionClosed:
        if self._closed:
            return ConnectionClosed("The client is closed", self.process.exit_code,
                                    self.process.stderr_tail)
        code, words = self.process.last_words()
        ending = "" if code is None else f" (exit code {code})"
        return ConnectionClosed("The server has closed the connection" + ending
                                + self._evidence(words), code, words)

    def dead(self) -> bool:
        """Has it ended, even if the end of its stdout was not read yet?"""
        return self.peer.ended.is_set() or self.process.exit_code is not None

    def _evidence(self, stderr: str) -> str:
        """What the server said outside the protocol, which often is the reason."""
        lines = ["stderr: " + line for line in stderr.splitlines()[-20:]]
        lines += ["stdout: " + line.decode("utf-8", "replace") for line in self._noise]
        return printable("".join(f"\n  {line}" for line in lines))

    def close(self) -> None:
        """End the connection, and the process with it; waits, for a bounded time."""
        self._closed = True
        self.peer.close()   # runs callbacks of futures, which may close, too
        with self._ending:  # a second time there is nothing left to wait for
            self.process.close(self.peer.ended, self.peer.writing)


class Client:
    """A client: of a command (argv), a `server.py`, an entry of a host's mcp.json
    (dict), a pair of binary streams, or a Server object in this process.

        with Client(["python3", "server.py"]) as client:
            client.call_tool("forecast", {"city": "Oslo"})

    env: added to a small safe environment, or with inherit_env to all of ours.
    timeout: seconds without an answer or progress; max_timeout: seconds at most,
    progress or not.  mode: "auto", "legacy", "modern" or a revision's date.  The
    handlers answer what the server asks, and a capability is declared exactly when its
    handler is given: sampling_handler(messages, params) -> str or result;
    elicitation_handler(message, schema, params) -> content, None to decline, or
    Elicited; roots -> a list.  log_handler(params), message_handler(notification) and
    progress_handler(progress, total, message) hear what it tells, in order, on a thread
    of their own; they may call the client.  stderr: where the server's goes: a text
    stream, a function, None.  auto_restart: the next call after the process died starts
    a fresh one.

    Once connected: server_info, server_capabilities, instructions, protocol_version.

    All verbs block until the answer is there; they raise McpError for the server's
    error, RequestTimeout, and ConnectionClosed.  All may be called from any thread.
    """

    def __init__(self, target: Any, *, env: dict[str, str] | None = None,
                 inherit_env: bool = False, cwd: str | None = None,
                 timeout: float | None = 60.0, max_timeout: float | None = None,
                 mode: str = "auto", client_info: Json | None = None,
                 roots: list[Any] | None = None,
                 sampling_handler: Callable[[list[Json], Json], Any] | None = None,
                 elicitation_handler: Callable[[str, Any, Json], Any] | None = None,
                 log_handler: Callable[[Json], Any] | None = None,
                 message_handler: Callable[[Json], Any] | None = None,
                 progress_handler: Handler | None = None, log_level: str | None = None,
                 stderr: Any = AT_START, auto_restart: bool = False) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        self._target, self._env, self._inherit_env = target, env, inherit_env
        self._cwd, self._mode, self._stderr = cwd, mode, stderr
        self.timeout = float("inf") if timeout is None else timeout
        self._max_timeout = max_timeout
        self.info = client_info or {"name": "mcp_min", "version": __version__}
        self._askable = wire(  # what ANSWERERS are given, by capability
            elicitation=elicitation_handler, sampling=sampling_handler,
            roots=None if roots is None else [*map(root_of, roots)])
        self.log_handler, self.level = log_handler, log_level
        self._message_handler = message_handler
        self._progress_handler, self._auto_restart = progress_handler, auto_restart

        self.server_info: Json = {}               # who it says it is: name, version
        self.server_capabilities: Json = {}       # what it advertised
        self.instructions: str | None = None      # how it wants to be used
        self.protocol_version: str | None = None  # the revision agreed on

        self._lock = threading.RLock()    # held while connecting
        self._link: Link | None = None
        self._closed = False
        self._subscribed: dict[str, None] = {}
        self._outputs: dict[str, Output] = {}  # of the tools last listed

    # -- connecting

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self) -> Self:
        """Start the server and agree on a revision; nothing if that has been done.

        OSError: the command cannot be started.  RequestTimeout, ConnectionClosed,
        McpError: it could, but no session came of it; its process has been ended.
        """
        with self._lock:
            if self._link is None or self._closed or self._link.dead():
                self._closed = False
                self._open()
        return self

    def close(self) -> None:
        """End the connection and the server's process; calls in flight fail.

        Takes at most some 5 s, with a server that ignores everything.
        """
        self._closed = True
        if self._link:
            self._link.close()

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB the server wrote to stderr."""
        return self._link.process.stderr_tail if self._link else ""

    @property
    def exit_code(self) -> int | None:
        """Of the server's process once it has ended; negative for a signal."""
        return self._link.process.exit_code if self._link else None

    def _open(self) -> None:
        if self._link:  # it is dead, but may have left processes behind, and pipes
            self._link.close()
        end = time.monotonic() + self.timeout
        link = self._launch()
        try:
            self._begin(link, self._mode, end)
        except ConnectionClosed:
            # Some servers of the handshake era die of the probe, or at what follows it.
            mortal = isinstance(link.process, Process)
            if self._mode != "auto" or self._closed or not mortal:
                raise
            link = self._launch()
            self._begin(link, HANDSHAKE, end)
        finally:
            # After success nothing is held any more; after failure this explains it.
            link.process.release(pass_on=True)

    def _begin(self, link: Link, mode: str, end: float) -> None:
        self._link = link
        try:
            if self._closed:  # by another thread, which could not know of this link
                raise ConnectionClosed("The client is closed")
            link.peer.start()
            link.dialect = dialect = negotiate(link, mode, end)
            link.peer.answers = dialect.answers
            self.server_info, self.server_capabilities, self.instructions = (
                dialect.server_info, dialect.capabilities, dialect.instructions)
            self.protocol_version = dialect.version
            dialect.open(end)
            self._subscribe_again(dialect, end)
        except BaseException:
            link.close()
            raise

    def _subscribe_again(self, dialect: Any, end: float) -> None:
        for uri in list(self._subscribed):  # of the process before this one
            try:
                dialect.subscribe(uri, seconds_to(end))
            except (McpError, RequestTimeout) as error:  # it is connected all the same
                self._subscribed.pop(uri, None)
                say(f"mcp_min: no longer subscribed to {uri}: {error}\n")

    def _launch(self) -> Link:
        target = self._target
        if hasattr(target, "serve"):
            return self._serve_here(target)
        if type(target) is tuple and len(target) == 2 and hasattr(target[1], "write"):
            return Link(self, Streams(*target))
        argv, env, cwd = command_of(target, self._env, self._cwd)
        return Link(self, Process(argv, child_environment(env, self._inherit_env), cwd,
                                  text_sink(self._stderr)))

    def _serve_here(self, server: Any) -> Link:
        (reader, their_writer), (their_reader, writer) = pipe(), pipe()

        def serve() -> None:
            with their_writer:
                server.serve(their_reader, their_writer, own_reader=True)

        start_thread("mcp server", serve)
        return Link(self, Streams(reader, writer, ends=True))

    def _connected(self) -> Link:
        link = self._link
        if link and link.dialect and not (self._auto_restart and link.dead()):
            return link
        with self._lock:  # another thread may be connecting right now
            may_restart = self._auto_restart and not self._closed
            if may_restart and self._link and self._link.dead():
                self._open()
            link = self._link
        if not (link and link.dialect):
            raise ConnectionClosed(
                "The client is not connected; use `with`, or connect()")
        return link

    # -- requests

    def request(self, method: str, params: Json | None = None, *,
                timeout: float | None = None,
                progress_handler: Handler | None = None) -> Any:
        """Send any request and wait for its result.  timeout: None for the client's."""
        return self._connected().request(method, params, timeout, progress_handler)

    def submit(self, method: str, params: Json | None = None, *,
               timeout: float | None = None,
               progress_handler: Handler | None = None) -> Future[Any]:
        """Send any request; a concurrent.futures.Future for its result.

        Its `cancel()` tells the server.  Questions on the way are answered by the
        handlers.  timeout: None for the client's.
        """
        link = self._connected()
        return link.peer.watched(link.send(method, params, timeout, progress_handler))

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send any notification."""
        self._connected().notify(method, params)

    def ping(self) -> None:
        """Return when the server has answered."""
        link = self._connected()
        link.request(link.dialect.ping)

    # -- tools

    def call_tool(self, name: str, arguments: Json | None = None, *,
                  timeout: float | None = None, progress_handler: Handler | None = None,
                  raise_on_error: bool = True, meta: Json | None = None) -> ToolResult:
        """Call a tool and wait for its result; ToolError if that `is_error`."""
        link = self._connected()
        call = self._send_tool(link, name, arguments, timeout, progress_handler,
                               raise_on_error, meta)
        return link.peer.wait(call)  # type: ignore[no-any-return]

    def submit_tool(self, name: str, arguments: Json | None = None, *,
                    timeout: float | None = None,
                    progress_handler: Handler | None = None,
                    raise_on_error: bool = True,
                    meta: Json | None = None) -> Future[ToolResult]:
        """Call a tool: a Future with result(timeout), cancel(), add_done_callback."""
        link = self._connected()
        call = self._send_tool(link, name, arguments, timeout, progress_handler,
                               raise_on_error, meta)
        return link.peer.watched(call)

    def _send_tool(self, link: Link, name: str, arguments: Json | None,
                   timeout: float | None, progress_handler: Handler | None,
                   raise_on_error: bool, meta: Json | None) -> Call:
        params: Json = {"name": name, "arguments": arguments or {}}
        return link.send("tools/call", {**params, "_meta": meta} if meta else params,
                         timeout, progress_handler,
                         partial(self._read_tool, name, raise_on_error))

    def _read_tool(self, name: str, raise_on_error: bool, raw: Json) -> ToolResult:
        if type(raw.get("content", [])) is not list:
            raise malformed('"content" is not a list')
        result, output = ToolResult.of(raw), self._outputs.get(name)
        if result.is_error and raise_on_error:
            error = ToolError(result.text)
            error.result = result
            raise error
        if output and not result.is_error:
            result.wrapped = output.wrapped
            problems = "; ".join(output.problems(result.structured_content))
            if problems:  # what came is of more use than an exception
                import warnings

                warnings.warn(f"tool {name}: the result does not fit its output schema:"
                              f" {problems}", RuntimeWarning, stacklevel=2)
        return result

    # -- lists

    def _list(self, method: str) -> list[Json]:
        found: list[Json] = []
        params: Json = {}
        seen: set[str] = set()
        link = self._connected()
        while True:
            page = link.fetch(method, params)
            found += objects_in(page, METHODS[method].page)
            cursor = page.get("nextCursor")
            if cursor is None:  # "" is a cursor
                return found
            if type(cursor) is not str or cursor in seen or len(seen) >= 10000:
                raise malformed(f"the pages of {method} do not end")
            seen.add(cursor)
            params = {"cursor": cursor}

    def list_tools(self) -> list[Json]:
        """All tools, page after page; likewise for the other lists."""
        tools = self._list("tools/list")
        schemas = {str(tool.get("name")): tool.get("outputSchema") for tool in tools}
        self._outputs = {name: Output(schema, WRAPS_RESULT in schema)
                         for name, schema in schemas.items() if type(schema) is dict}
        return tools

    def list_resources(self) -> list[Json]:
        """All resources."""
        return self._list("resources/list")

    def list_resource_templates(self) -> list[Json]:
        """All resource templates."""
        return self._list("resources/templates/list")

    def list_prompts(self) -> list[Json]:
        """All prompts."""
        return self._list("prompts/list")

    # -- resources, prompts, completion

    def read_resource(self, uri: str, *, timeout: float | None = None,
                      ) -> list[ResourceContents]:
        """The contents of a resource, each with `.text` and `.data`."""
        result = self._connected().fetch("resources/read", {"uri": uri}, timeout)
        return [*map(ResourceContents.of, objects_in(result, "contents"))]

    def get_prompt(self, name: str, arguments: dict[str, str] | None = None, *,
                   timeout: float | None = None) -> Json:
        """A prompt with its arguments filled in: its `description`, `messages`."""
        params = {"name": name, "arguments": arguments or {}}
        result: Json = self.request("prompts/get", params, timeout=timeout)
        return result

    def complete(self, ref: str | Json, argument: str, value: str,
                 context: dict[str, str] | None = None) -> Json:
        """Complete an argument of a prompt (its name), a URI template, or a wire ref.

        The wire's `completion`: `values`, `total`, `hasMore`.
        """
        if type(ref) is str:
            ref = {"type": "ref/resource", "uri": ref} if "{" in ref else {
                "type": "ref/prompt", "name": ref}
        completion = self.request("completion/complete", {
            "ref": ref, "argument": {"name": argument, "value": value},
            **wire(context=context and {"arguments": context})}).get("completion")
        if type(completion) is not dict or type(completion.get("values")) is not list:
            raise malformed('"completion" has no list of values')
        return completion

    def subscribe(self, uri: str) -> None:
        """Hear of changes of a resource by message_handler, until `unsubscribe`."""
        self._connected().dialect.subscribe(uri, self.timeout)
        self._subscribed[uri] = None

    def unsubscribe(self, uri: str) -> None:
        """No longer hear of a resource; nothing if it was not subscribed to."""
        self._subscribed.pop(uri, None)
        self._connected().dialect.unsubscribe(uri)

    # -- what the server tells

    def _tell(self, lane: Workers, method: str, params: Json) -> None:
        if method == LOG_MESSAGE and self.log_handler is not None:
            lane.submit(partial(self.log_handler, params))
        if self._message_handler is not None:
            message = {"method": method, "params": params}
            lane.submit(partial(self._message_handler, message))

    def set_logging_level(self, level: str) -> None:
        """Have log messages of this level and above sent.  McpError: no such level."""
        if level not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}")
        self._connected().dialect.set_level(level, self.timeout)
        self.level = level

    # -- what the server asks

    def set_roots(self, roots: list[Any]) -> None:
        """The directories the server may work in: paths, file URIs or wire roots."""
        told = "roots" in self._askable  # or else the server was never told of any
        self._askable = {**self._askable, "roots": [*map(root_of, roots)]}
        if told and self._link and self._link.dialect and not self._link.peer.closed:
            self._link.dialect.roots_changed()

    def capabilities(self) -> Json:
        """What is declared: a capability for each handler that was given."""
        return {feature: DECLARED[feature] for feature in self._askable}

    def _answer(self, method: str, params: Json) -> Json:
        """Answer a question of the server's, in whichever way it came."""
        feature = QUESTIONS.get(method)
        if feature not in self._askable:
            raise method_not_found(method)
        answer = ANSWERERS[feature]
        return answer(self._askable[feature], params)  # type: ignore[no-any-return]


def answer_elicitation(handler: Handler, params: Json) -> Json:
    url = params.get("mode") == "url"
    form = None if url else params.get("requestedSchema")
    reply = handler(params.get("message", ""), form, params)
    if not isinstance(reply, Elicited):
        reply = Elicited("decline" if reply is None else "accept", reply)
    filled = reply.action == "accept" and form is not None
    content = {"content": reply.content or {}} if filled else {}
    return {"action": reply.action, **content}


def answer_sampling(handler: Handler, params: Json) -> Json:
    reply = handler(params.get("messages") or [], params)
    return reply if isinstance(reply, dict) else {
        "role": "assistant", "content": Text(str(reply)),
        "model": "unknown", "stopReason": "endTurn"}


ANSWERERS: dict[Any, Any] = {  # capability -> what answers, of (handler, params)
    "elicitation": answer_elicitation,
    "sampling":    answer_sampling,
    "roots":       lambda roots, params: {"roots": roots},
}


class Exchange:
    """A request until its last result: each round that asks for input is sent anew."""

    __slots__ = ("_link", "_params", "_read_last", "_rounds")

    def __init__(self, link: Link, params: Json, read_last: Handler | None) -> None:
        self._link, self._params, self._read_last = link, params, read_last
        self._rounds = 0

    def read(self, call: Call, result: Json) -> Any:
        asked = self._link.dialect.questions(result)
        if asked is None:
            # Not kept: what depends on answers; and what is read off the leader, which
            # may have read meanwhile that it is stale.
            lane = self._link.peer.lane
            if not (self._rounds or call.watched or lane.inside()):
                self._link.keep(call.method, self._params, result)
            return self._read_last(result) if self._read_last else result
        self._rounds += 1
        row = METHODS.get(call.method)
        if row is None or not row.asks:
            raise malformed(f"{call.method} may not ask for input")
        if self._rounds > ROUNDS:
            raise malformed(f"asked {self._rounds} times in a row for input")
        self._link.peer.hold(call)
        self._link.peer.workers.submit(partial(self._go_on, call, result, asked))
        return LATER

    def _go_on(self, call: Call, result: Json, asked: Json) -> None:
        failure, peer = None, self._link.peer
        try:
            answer = self._link.client._answer
            answers = {key: answer(question["method"], question.get("params") or {})
                       for key, question in asked.items()}
            params = {**self._params, **wire(inputResponses=answers or None,
                                             requestState=result.get("requestState"))}
            encode(params)  # or else it could not be sent
        except McpError as error:
            failure = error
        except BaseException as error:  # a handler's; the same as if asked by request
            report(f"mcp_min: answering {call.method} failed")
            failure = McpError(INTERNAL_ERROR, error_text(error))
        if peer.claim(call.id) is None:
            return  # cancelled, late or orphaned meanwhile
        if failure:
            return call.finish(error=failure)
        peer.resend(call, self._link.dialect.stamp(params), token=True)
        peer.abandon(call)  # if its future was cancelled between these two


def objects_in(result: Json, key: str) -> list[Json]:
    """The list of objects under a key of a result; McpError if there is none."""
    found = result.get(key)
    if type(found) is not list or any(type(item) is not dict for item in found):
        raise malformed(f'"{key}" is not a list of objects')
    return found


def pipe() -> tuple[Any, Any]:
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), open(writer, "wb", buffering=0)


def command_of(target: Any, env: dict[str, str] | None, cwd: str | None,
               ) -> tuple[list[str], dict[str, str] | None, str | None]:
    """A target that is a program: its argv, its extra environment, its directory."""
    if isinstance(target, dict):
        if type(target.get("command")) is not str:
            raise ValueError(f"an entry of {[*target]} has no command")
        argv = [target["command"], *map(as_text, target.get("args") or ())]
        told = {key: as_text(value) for key, value in (target.get("env") or {}).items()}
        return argv, {**told, **(env or {})}, cwd or target.get("cwd")
    if isinstance(target, (str, os.PathLike)):
        path = os.fspath(target)
        return [sys.executable, path] if path.endswith(".py") else [path], env, cwd
    if not target or type(target) not in (list, tuple) or not all(
            isinstance(word, (str, bytes, os.PathLike)) for word in target):
        raise TypeError(f"neither a command nor two binary streams: {target}")
    return list(target), env, cwd


def text_sink(stderr: Any) -> Callable[[str], Any] | None:
    """What to do with text for `stderr=`."""
    stream = sys.stderr if stderr is AT_START else stderr
    if stream is None or callable(stream):
        return stream
    return partial(print, end="", file=stream, flush=True)


def root_of(root: Any) -> Json:
    if isinstance(root, dict):
        return root
    uri = os.fspath(root)
    if "://" not in uri:
        from pathlib import Path

        uri = Path(uri).absolute().as_uri()
    return {"uri": uri}


def load_config(path: Any) -> dict[str, Json]:
    """The entries of a host's mcp.json, {"mcpServers": {name: entry}}, by their names.

    Some hosts spell that key "servers".  Each entry is a target for Client, which runs
    the command it names: load only what you would run.
    """
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    for key in ("mcpServers", "servers"):
        if key in config:
            return config[key]  # type: ignore[no-any-return]
    raise ValueError(f'{path} has no "mcpServers"')


# -- 11. Command line ------------------------------------------------------------------
# To see the protocol at work, and to look into anybody's server.  Results go to stdout,
# all else to stderr, and nothing that a server says can command the terminal.


def demo_server() -> Server:
    """One of everything: what `serve` runs, and `demo` talks to."""
    server = Server("demo", __version__, page_size=1, instructions="Try everything.")

    @server.tool
    def count(to: int, ctx: Context) -> str:
        "Count, ten numbers a second."
        ctx.debug(f"counting to {to}")
        for _ in ctx.track(range(to)):
            ctx.wait(0.1)
        return f"counted to {to}"

    @server.tool
    def order(dish: str, ctx: Context) -> str:
        "Order a dish; asks what should be on it."
        wish = ctx.elicit(f"What should be on your {dish}?", ["lemon", "syrup"])
        return f"{dish} with {wish.data}" if wish.content else "nothing"

    server.resource("demo://hello/{name}", name="hello")(lambda name: f"Hello, {name}!")
    server.prompt("review")(lambda language: f"Review this {language} code.")
    server.completion("review", "language")(lambda value: [
        name for name in ("Pascal", "Perl", "Python") if name.startswith(value)])
    return server


DEMO = {  # of each revision: what to see, the Python that shows it, its value
    LEGACY_VERSIONS[-1]: """
# The handshake: both ends agree on a revision and say what they can do
client.connect().server_info['name']  # 'demo'
# A list comes in pages; the cursor means something to the server only
[tool['name'] for tool in client.list_tools()]  # ['count', 'order']
# A tool is called; it tells how far it is by the token in the request
client.call_tool('count', {'to': 2}).text  # 'counted to 2'
# A mistake is a result, not an error: the model reads it and does better
client.call_tool('count', raise_on_error=False).is_error  # True
# A cancellation: no answer ever comes, the next one is to the ping
client.submit_tool('count', {'to': 9}).cancel(), client.ping()  # (True, None)
# A resource is data with an address; this one is made from a template
client.read_resource('demo://hello/Ada')[0].text  # 'Hello, Ada!'
# A prompt is words that a person chooses to start from
len(client.get_prompt('review', {'language': 'C'})['messages'])  # 1
# A completion helps to fill in a field
client.complete('review', 'language', 'Py')['values']  # ['Python']
# A question to the user: the server sends a request while its tool waits
client.call_tool('order', {'dish': 'toast'}).text  # 'toast with lemon'
# Logging: what a tool says on the side, from a chosen level on
client.set_logging_level('debug')  # None
client.call_tool('count', {'to': 0}).text  # 'counted to 0'
""",
    MODERN_VERSIONS[-1]: """
# No handshake: asking is optional, and the server keeps nothing in mind
client.connect().server_info['name']  # 'demo'
# A tool: each request says in `_meta` what a handshake would have settled
client.call_tool('count', {'to': 1}).text  # 'counted to 1'
# A question: the server sends no requests, it says what it needs, and forgets
client.call_tool('order', {'dish': 'pie'}).text  # 'pie with lemon'
"""}
EXPLAINED = {  # of these the first that stands in the line
    "inputResponses": "the same call, with the answers and the state",
    "inputRequests": "not finished: answer this, then call again with this state",
    "nextCursor": "a page, and the cursor of the next", "cursor": "the next page",
    "initialize": "hello: the revision I would like, what I can do, who I am",
    "protocolVersion": "hello: the revision it shall be, what I can do, who I am",
    INITIALIZED: "ready (a notification: it has no id, nobody answers it)",
    "tools/list": "which tools are there?", "tools/call": "run this tool",
    PROGRESS: "this far", "isError": "it failed, and why", LOG_MESSAGE: "a remark",
    CANCELLED: "never mind: stop, and do not answer", "action": "the user's answer",
    "elicitation/create": "a question for your user", "ping": "are you there?",
    "resources/read": "what is at this address?", "prompts/get": "fill in this prompt",
    "completion/complete": "what could it become?", "logging/setLevel": "tell me more",
    "server/discover": "who are you, and what do you speak?",
    "subscriptions/listen": "keep me posted (a request that stays open)",
    ACKNOWLEDGED: "I shall, about this", "method": "a message", "id": "the answer"}


class NarratingClient(Client):
    """Shows each line that crosses, and says what it is: a trace for beginners."""

    def _launch(self) -> Link:
        link = super()._launch()
        link.peer.trace = Trace(self._narrate)
        return link

    def _narrate(self, traced: str) -> None:
        _, arrow, line = traced.rstrip().partition("  # ")[0].split(" ", 2)
        what = [EXPLAINED[key] for key in EXPLAINED if f'"{key}"' in line]
        ink, mark = (36, "-->") if arrow == ">" else (33, "<--")
        print(colour(ink, f"  {mark} {(what or ['no message'])[0]}"),
              *re.findall(".{1,74}$|.{1,73},|.{1,74}", line), sep="\n      ")


def colour(code: int, text: str) -> str:
    """Text in a colour (an SGR code), on a terminal that wants any."""
    shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\33[{code}m{text}\33[m" if shown else text


def demonstrate(_: Any) -> None:
    print("A client (-->) and a server (<--): two processes, and a pipe each way.\n"
          "Below is every line that crosses, and each is a JSON-RPC message.")
    for revision, script in DEMO.items():
        print(colour(1, f"\nRevision {revision}"))
        client = NarratingClient(
            [sys.executable, os.path.abspath(__file__), "serve"], mode=revision,
            elicitation_handler=lambda *question: {"value": "lemon"})
        for line in script.strip().splitlines():
            code, _, said = line.partition("# ")
            if not code:
                print(f"\n{colour(1, said)}")
                continue
            print(f"  >>> {code.rstrip()}")
            value = repr(eval(code, {"client": client}))  # what is shown is run
            print(f"  {value}")
            if value != said:
                raise SystemExit(f"mcp_min: this should have been {said}")
        client.close()
    print("\nAll as it should be.  Now look at yours: mcp_min.py list COMMAND...")


class Visitor(Client):
    """Shows on stderr what a server tells, and asks whoever sits at the terminal."""

    def __init__(self, args: Any) -> None:
        asks = sys.stdin.isatty() and sys.stderr.isatty()
        super().__init__(
            target_of(args), env=args.env, inherit_env=args.inherit_env, cwd=args.cwd,
            timeout=args.timeout or 60.0, mode=args.mode,
            log_handler=lambda p: self.say(f"log {p.get('level')}", p.get("data")),
            elicitation_handler=self.elicit if asks else None,
            progress_handler=self.progress, stderr=partial(self.say, "stderr"))
        # Seconds for what may ask people, who take their time.
        self.patience = args.timeout or (float("inf") if asks else None)

    def write(self, text: str) -> None:
        sys.stderr.write("\r\33[K" * sys.stderr.isatty() + text)  # over the bar
        sys.stderr.flush()

    def say(self, mark: str, said: Any) -> None:
        text = printable(said if type(said) is str else json.dumps(said))
        self.write("".join(f"{mark}: {line}\n" for line in text.splitlines()))

    def progress(self, now: float, total: float | None, message: str | None) -> None:
        if sys.stderr.isatty():
            done = "#" * int(30 * min(1, now / total)) if total else ""
            text = f"[{done:30}] {now:g}/{total or '?'} {message or ''}"
            self.write(ascii(text)[1:-1][:79])

    def elicit(self, message: str, schema: Any, params: Json) -> Any:
        """Have a form filled in until it fits; Ctrl-D declines."""
        self.say("the server asks", f"{message} {params.get('url', '')}")
        schema = schema or {"properties": {"visited": {"enum": ["yes"]}}}
        form, fields = {}, schema.get("properties", {})
        for key, field in fields.items():
            self.write(printable(f"{key} ({described(field)}): "))
            # Not from sys.stdin: a thread left in there would abort the interpreter.
            data = os.read(0, 65536)
            text = data.decode("utf-8", "replace").strip()
            if not data:
                return None
            if text or "default" in field:
                form[key] = typed(text, field) if text else field["default"]
        problems = validate(form, schema)
        if not (problems and fields):  # without fields, asking again is of no use
            return None if problems else form
        self.say("once more", "; ".join(problems))
        return self.elicit(message, schema, params)

    def offers(self) -> Json:
        lists = {row.page: self._list(method) for method, row in METHODS.items()
                 if row.page and row.feature in self.server_capabilities}
        return wire(serverInfo=self.server_info, protocolVersion=self.protocol_version,
                    capabilities=self.server_capabilities,
                    instructions=self.instructions, **lists)

    def wanted(self, verb: str, name: str, words: list[str]) -> tuple[str, Json]:
        """The method and its parameters; arguments are read by the tool's schema."""
        if verb == "read":
            return "resources/read", {"uri": name}
        method, schema, given = "prompts/get", {}, {}
        if verb == "call":
            tools = {tool.get("name"): tool for tool in self.list_tools()}
            if name not in tools:
                raise ValueError(f"no tool {name}; `list` shows what there is")
            method, schema = "tools/call", tools[name].get("inputSchema", {})
        for word in words:
            key, sign, text = word.partition("=")
            if word[:1] == "{":
                given.update(json.loads(word))
            elif sign:
                field = _dict(schema.get("properties", {}).get(key))
                given[key] = typed(text, {"$defs": schema.get("$defs", {}), **field})
            else:
                raise ValueError(f"{word} is no KEY=VALUE (and `--` precedes COMMAND)")
        return method, {"name": name, "arguments": given}


def target_of(args: Any) -> Any:
    """What to start: COMMAND, or an entry of a host's configuration."""
    if args.config:
        path, name = args.config
        try:
            entry = load_config(path)[name]
            return {**entry, "command": entry["command"]}  # others are not stdio
        except (OSError, KeyError, TypeError) as error:
            raise ValueError(f"no command for {name}: {error!r}") from None
    if not args.command:
        raise ValueError("which server? COMMAND is missing, or --config FILE NAME")
    return [sys.executable] * args.command[0].endswith(".py") + args.command


def typed(text: str, schema: Json) -> Any:
    """Text as a value that fits the schema: as it is, or else read as JSON."""
    try:
        return json.loads(text) if validate(text, schema) else text
    except ValueError:  # neither, or no schema to go by: the server shall judge
        return text


def visit(args: Any) -> int:
    """Ask a server, wait, and show what it says; Ctrl-C cancels."""
    with Visitor(args) as visitor:
        try:
            result = visitor.offers() if args.verb == "list" else visitor.request(
                *visitor.wanted(args.verb, args.name, args.words),
                timeout=visitor.patience)
        except KeyboardInterrupt:
            visitor.say("cancelled", "the server is told; Ctrl-C again to leave")
            raise
    visitor.write("")
    failed = result.get("isError") is True
    lines = folded(overview(result)) if args.verb == "list" else texts(result)
    print(json.dumps(result, indent=2) if args.json else "\n".join(lines),
          file=sys.stderr if failed and not args.json else sys.stdout)
    return int(failed)


def texts(result: Json) -> Iterator[str]:
    parts = [part for key in ("content", "contents", "messages")
             for part in result.get(key, ())]
    for part in parts:
        block = part.get("content", part)
        other = f"{json.dumps(block):.75}..."
        text = block.get("resource", block).get("text", other)
        yield printable(f"{part['role']}: {text}" if "role" in part else text)
    if not parts and "structuredContent" in result:
        yield json.dumps(result["structuredContent"], indent=2)


def overview(about: Json) -> Iterator[tuple[int, str]]:
    """What a server offers, for people: lines, and how far each is indented."""
    info = about["serverInfo"]
    version = f"{info.get('version')}, revision {about['protocolVersion']}"
    yield 0, f"{info.get('name')} {version}"
    yield 2, f"offers {', '.join(about['capabilities']) or 'nothing'}"
    yield 2, about.get("instructions") or ""
    for page in (row.page for row in METHODS.values() if row.page in about):
        yield 0, f"\n{page} ({len(about[page])})"
        for item in about[page]:
            yield 2, str(item.get("uri") or item.get("uriTemplate") or item.get("name"))
            yield 4, item.get("description") or ""
            schema = item.get("inputSchema") or {}
            needed = schema.get("required", ())
            of_prompt = {part.get("name"): {"type": "string", **part}
                         for part in item.get("arguments") or ()}
            for key, part in {**schema.get("properties", {}), **of_prompt}.items():
                part = _dict(part)  # or true: anything
                must = part.get("required") is True or key in needed
                text = f"{key}{'' if must else '?'}: {described(part)}"
                yield 6, f"{text}  {part.get('description') or ''}"


def folded(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    import textwrap

    for indent, text in lines:
        for line in printable(text).splitlines():
            yield textwrap.fill(line, 80, initial_indent=" " * indent,
                                subsequent_indent=" " * (indent + 2))


def described(schema: Json) -> str:
    """A schema in a few words."""
    schema = _dict(schema)
    kinds = schema.get("enum") or schema.get("anyOf") or schema.get("oneOf") or (
        [schema["const"]] if "const" in schema else _types(schema) or ["any"])
    words = (described(kind) if type(kind) is dict else str(kind) for kind in kinds)
    default = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
    return " | ".join(words) + default


def run_file(args: Any) -> None:
    """Serve what a file defines; the streams are taken before it can print."""
    path, colon, name = args.name.partition(".py:")
    path = os.path.abspath(path + ".py" * bool(colon))
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    sys.modules["mcp_min"] = sys.modules[__name__]  # the file's Server must be ours
    sys.path.insert(0, os.path.dirname(path))
    with Signals(), StandardStreams() as (reader, writer):
        server_in(module_at(path), name).serve(reader, writer, own_reader=True)


def module_at(path: str) -> Any:
    module: Any = type(sys)(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules.setdefault(module.__name__, module)  # not in the place of a library's
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), vars(module))  # noqa: S102
        return module
    except Exception as error:
        import traceback

        line = getattr(error, "lineno", 0)  # of a SyntaxError
        for frame in traceback.extract_tb(error.__traceback__):
            line = frame.lineno if frame.filename == path else line
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SystemExit(f"mcp_min: {path}:{line}: {what}") from None


def server_in(module: Any, name: str) -> Any:
    """The Server in a module; if it has none, one of its public functions."""
    servers = {key: value for key, value in vars(module).items()
               if hasattr(type(value), "add_tool") and name in ("", key)}
    if len(servers) == 1:
        return servers.popitem()[1]
    if servers or name:
        names = ", ".join(sorted(servers))
        raise ValueError(f"which server? There is {names or 'none of that name'}.")
    server = Server(module.__name__, instructions=module.__doc__)
    for key, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and key[0] != "_" and hasattr(value, "__code__"):
            server.add_tool(value)
    return server


def trace(args: Any) -> int:
    """Stand between a host and a server, and write down what they say.

    Bytes, variables, signals and the exit status pass unchanged.
    """
    import signal

    argv, env, cwd = command_of(target_of(args), args.env, args.cwd)
    shown = Trace.to(args.to)
    child = _start(argv, child_environment(env, True), cwd, stderr=None, bufsize=-1)
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & {*dir(signal)}:
        signal.signal(getattr(signal, name), lambda number, _: getattr(
            os, "killpg", os.kill)(child.pid, number))
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115
    start_thread("mcp trace", partial(relay, shown, ">", stdin, child.stdin))
    relay(shown, "<", child.stdout, sys.stdout.buffer)
    code: int = child.wait()
    if code < 0:  # then die of the same
        if code != -9:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def relay(shown: Trace, arrow: str, source: Any, sink: Any) -> None:
    try:
        with source, sink:
            for line in source:
                shown.show(arrow, line)  # before: its answer must be told after it
                sink.write(line)
                sink.flush()
    except OSError:
        pass  # one of the two is gone


COMMANDS = (  # what runs it, its arguments, what it does
    ("demo", demonstrate, "", "a session with a server, line by line and explained"),
    ("serve", lambda _: demo_server().run(), "", "that server, for a host to start"),
    ("list", visit, "COMMAND...", "what a server offers"),
    ("call", visit, "TOOL [KEY=VALUE...|JSON] -- COMMAND...", "call a tool"),
    ("read", visit, "URI -- COMMAND...", "read a resource"),
    ("prompt", visit, "NAME [KEY=VALUE...] -- COMMAND...", "get a prompt"),
    ("run", run_file, "FILE.py[:name]", "serve a file's Server, or its functions"),
    ("trace", trace, "COMMAND...", "pass all on, and write down the lines"))


def parsed(argv: list[str]) -> Any:
    import argparse

    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--config", nargs=2, metavar=("FILE", "NAME"), help="a server in an mcp.json")
    add("--env", action="append", metavar="KEY[=VALUE]", help="set or copy")
    add("--inherit-env", action="store_true", help="copy all variables, as trace does")
    add("--cwd", metavar="DIR", help="the directory it starts in")
    add("--timeout", type=float, metavar="SECONDS", help="without news (60)")
    add("--mode", choices=MODES, default="auto", metavar="REVISION",
        help=f"to speak: {', '.join(MODES)}")
    add("--json", action="store_true", help="the raw result")
    add("--to", default="stderr", metavar="FILE", help="where a trace goes")
    parser = argparse.ArgumentParser(prog="mcp_min.py", epilog=(
        "exit status: 0 done, 1 the tool or the server failed, 2 wrong usage"))
    verbs = parser.add_subparsers(dest="verb", metavar="command", required=True)
    for verb, act, usage, text in COMMANDS:
        sub = verbs.add_parser(verb, help=text, description=text, usage=(
            f"%(prog)s [options] {usage}"), parents=[common] * ("COMMAND" in usage))
        sub.set_defaults(act=act, fail=sub.error, usage=usage, command=[], env=[])
        if usage == "COMMAND...":
            sub.add_argument("command", nargs="...")
        elif usage:
            sub.add_argument("name", metavar=usage.split()[0])
    # After the first `--` comes the server's command, whatever it looks like.
    cut = argv.index("--") if "--" in argv else len(argv)
    args: Any
    args, args.words = parser.parse_known_args(argv[:cut])
    args.command = args.command + argv[cut:] if args.command else argv[cut + 1:]
    if [word for word in args.words if word[:1] == "-" or "KEY" not in args.usage]:
        args.fail(f"unrecognized: {' '.join(args.words)}")
    pairs = (pair.partition("=") for pair in args.env)
    args.env = {key: text if sign else os.environ.get(key, "")
                for key, sign, text in pairs}
    return args


def main(argv: list[str] | None = None) -> int:
    """Run a command line, sys.argv's by default: the exit status."""
    args = parsed(sys.argv[1:] if argv is None else argv)
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        return args.act(args) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except ValueError as error:
        args.fail(str(error))
    except Exception as error:
        # What the server wrote on stderr has been shown.
        lines = [x for x in str(error).splitlines() if not x.startswith("  stderr: ")]
        print(f"mcp_min: {type(error).__name__}:", printable("\n".join(lines)),
              file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())


# -- Changes ---------------------------------------------------------------------------
#
# 1.0.0  2026-11-20  The first: both ends, the revisions 2024-11-05 to 2026-07-28.
#
# -- Licence ---------------------------------------------------------------------------
#
# MIT License
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
