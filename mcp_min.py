"""mcp_min 2.0.0: the Model Context Protocol over stdio, server and client, in one file.

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
host's configuration, `-h` lists the others.  Licence (MIT) and changes are at the
end of the file.

The file is read from top to bottom; no section uses names of a later one:

    1  Vocabulary    the facts of the specification, as tables
    2  Errors        exceptions, and the error objects of JSON-RPC
    3  Messages      JSON-RPC: bytes <-> messages, ids, responses
    4  Threads, streams, diagnostics   a thread pool, lines of a stream, the trace
    5  Connection    one end of a connection: ids, cancellation, progress, reading
    6  Stdio         who owns descriptors 0 and 1; starting and ending a process
    7  Revisions     all that differs between the revisions of the protocol, both ends
    8  Content       values -> content blocks, and the results that carry them
    9  Schema        signatures -> JSON Schema, the validator, URI templates
    10 Server        registries, pages, the context of a handler, the method handlers
    11 Client        the same verbs from the other side
    12 Familiar names  FastMCP's and the official SDK's spellings; may be deleted
    13 Command line  the program in this file

Two ways to read it.  To learn the protocol: sections 1, 3, 7, 10 and 11 (3,600 lines).
To find out what a connection waits for: sections 4, 5 and 6 (2,100 lines).

There are two eras of the protocol.  In the legacy era, up to 2025-11-25, a connection
opens with a handshake (`initialize`), and both ends may send requests.  In the modern
era, from 2026-07-28 on, each request carries all that it needs in `_meta`, and the
server sends no requests: its result says "input required", and the client sends its
request again with the answers.  User code is the same in both.

Names.  `__all__` lists what is public.  In a class, a leading underscore marks what
only its own methods and those of its subclasses use.  Module-level names have none.

Docstrings.  "ValueError: the name is empty" means: raises ValueError if the name is
empty.  "(server/tools)" is a page of the specification.

Threads.  Where threads can start, user code never stops the reading of a connection: a
server's reading thread may run a handler itself, but when that takes longer than 2 to
16 ms another thread reads on (SharedReading).  A thread that sends a message also
writes it, unless it must not wait (Outbox).  Everything public may be called from any
thread.

Locks.  The comment at each lock says what it guards.  A thread that holds one takes
only locks that come after it here, or one that is not here, and then no other:

    streams_taken, AsyncRuntime._lifespan_lock, AsyncRuntime._lock, Client._lock,
    ClientSession._ending, Server.lock, IncomingRequests.lock, Batch._lock,
    ModernClientPolicy._lock, OutgoingRequests._lock, SharedReading._lock,
    Process._lock, Outbox.writing, Outbox._lock, Trace._lock, writing_stderr,
    ThreadPool._lock
"""
# ruff: noqa: BLE001, ISC004, RUF022, RUF023, SIM905
# (Broad `except` clauses are deliberate; lists are grouped by topic; long strings are
# concatenated implicitly.)
from __future__ import annotations

import atexit
import enum
import json
import operator
import os
import re
import stat
import sys
import threading
import time
from collections import deque, namedtuple
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache, partial, partialmethod

TYPE_CHECKING = False  # as in `typing`, which takes a few ms to import
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future
    from typing import Any, NoReturn, Self, TypeVar, overload

    T = TypeVar("T")
    F = TypeVar("F", bound=Callable[..., Any])
    Mismatch = tuple[tuple[Any, ...], str, str]
    Line = bytes | bytearray
    Handler = Callable[..., Any]
    Json = dict[str, Any]

__version__ = "2.0.0"
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
# The tables of the specification, as data.  Pages are those of
# modelcontextprotocol.io/specification/REVISION.


# One dated revision.  modern: it is stateless.  batches: it allows arrays of messages.
# bad_arguments_are_results: bad arguments of a tool are a result with `isError`, not an
# error.  elicitation_modes: separated by a space.
Revision = namedtuple(
    "Revision", "modern batches bad_arguments_are_results elicitation_modes")
REVISIONS = {
    "2024-11-05": Revision(False, False, False, ""),
    "2025-03-26": Revision(False, True,  False, ""),  # basic: batches "MUST" be taken
    "2025-06-18": Revision(False, False, False, "form"),
    "2025-11-25": Revision(False, False, True,  "form url"),  # changelog: SEP-1303
    "2026-07-28": Revision(True,  False, True,  "form url"),
}
LEGACY_VERSIONS = [date for date, row in REVISIONS.items() if not row.modern]
MODERN_VERSIONS = [date for date, row in REVISIONS.items() if row.modern]
MODES = ("auto", "legacy", "modern", *REVISIONS)  # how a client may begin
LEGACY_MODE = "legacy"

# A request that a server answers.  capability: the server must have declared it; "a.b"
# is capability a with a true field b.  list_key: the key of the list in its result, if
# it is paged.  cacheable: its result carries caching hints.  asks: its handler may ask
# the client in the modern era ("input required").  inline: the reading thread handles
# the request itself, without middleware, before it reads the next line: either the
# request changes how that line is read, or it takes no time.  since, until: the first
# and the last revision that has it.
#
# To add a revision, add a row above, the newest of its era last.  To add a method, add
# a row here with its `since`, a function under @handles (section 10) and a method of
# Client (section 11).  If it needs a new capability, the server must declare that: add
# it to CAPABILITIES and CHANGES if it has a row there, and to Registrations._offered
# where a function is registered.  To add a request to the client, add a row in the
# three tables that follow, a method of Context (section 10) and one of ANSWER_FUNCTIONS
# (section 11).
Method = namedtuple("Method", "capability list_key cacheable asks inline since until",
                    defaults=("", "", False, False, False, "", "9999"))  # no last one
LEGACY_ONLY = {"until": LEGACY_VERSIONS[-1]}
MODERN_ONLY = {"since": MODERN_VERSIONS[0]}
METHODS = {
    "initialize":               Method(inline=True, **LEGACY_ONLY),
    "ping":                     Method(inline=True, **LEGACY_ONLY),
    "server/discover":          Method(inline=True, cacheable=True, **MODERN_ONLY),
    "tools/list":               Method("tools", "tools", cacheable=True),
    "tools/call":               Method("tools", asks=True),
    "resources/list":           Method("resources", "resources", cacheable=True),
    "resources/templates/list": Method("resources", "resourceTemplates",
                                       cacheable=True),
    "resources/read":           Method("resources", asks=True, cacheable=True),
    "resources/subscribe":      Method("resources.subscribe", inline=True,
                                       **LEGACY_ONLY),
    "resources/unsubscribe":    Method("resources.subscribe", inline=True,
                                       **LEGACY_ONLY),
    "prompts/list":             Method("prompts", "prompts", cacheable=True),
    "prompts/get":              Method("prompts", asks=True),
    "completion/complete":      Method("completions"),
    "logging/setLevel":         Method("logging", inline=True, **LEGACY_ONLY),
    "subscriptions/listen":     Method(inline=True, **MODERN_ONLY),
}

# The requests that a server may send to its client, each with the capability that the
# client must have declared; what a client declares for each handler that it has; and
# the schemas of the answers.
CLIENT_REQUESTS = {
    "elicitation/create":     "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list":             "roots",
}
CLIENT_CAPABILITIES: Json = {  # form and url are the modes of elicitation
    "form": {"elicitation": {"form": {}}}, "url": {"elicitation": {"url": {}}},
    "sampling": {"sampling": {}}, "roots": {"roots": {}}}
ANSWER_SCHEMAS: Json = {
    "elicitation/create": {"type": "object", "required": ["action"], "properties": {
        "action": {"enum": ["accept", "decline", "cancel"]}}},
    "sampling/createMessage": {
        "type": "object", "required": ["content"], "properties": {
            "content": {"type": ["object", "array"], "items": {"type": "object"}}}},
    "roots/list": {"type": "object", "required": ["roots"], "properties": {
        "roots": {"type": "array", "items": {"type": "object"}}}},
}

# capability -> (the notification that its lists have changed, the capability's key in
# the filter of subscriptions/listen)
CHANGES = {
    "tools":     ("notifications/tools/list_changed", "toolsListChanged"),
    "prompts":   ("notifications/prompts/list_changed", "promptsListChanged"),
    "resources": ("notifications/resources/list_changed", "resourcesListChanged"),
}
UPDATES_WANTED = "resourceSubscriptions"  # in that filter: URIs of resources
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
INITIALIZED = "notifications/initialized"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
LOG_MESSAGE = "notifications/message"
ROOTS_CHANGED = "notifications/roots/list_changed"

# What a server declares of a capability; the others are declared as an empty object.
CAPABILITIES = {
    "tools":     {"listChanged": True},
    "prompts":   {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
}

# Spellings of other implementations and of the Language Server Protocol.  We understand
# them, and never send them: alias -> (notification, {parameter there: parameter here})
ALIASES: dict[str, tuple[str, dict[str, str]]] = {
    **{name.partition("/")[2]: (name, {}) for name in (
        INITIALIZED, CANCELLED, PROGRESS, LOG_MESSAGE, ROOTS_CHANGED, UPDATED,
        *(row[0] for row in CHANGES.values()))},
    "$/cancelRequest": (CANCELLED, {"id": "requestId"}),
    "$/progress":      (PROGRESS, {"token": "progressToken", "value": "progress"}),
}

META_PREFIX = "io.modelcontextprotocol/"
META_VERSION = META_PREFIX + "protocolVersion"
META_CLIENT = META_PREFIX + "clientInfo"
META_CAPABILITIES = META_PREFIX + "clientCapabilities"
META_LOG_LEVEL = META_PREFIX + "logLevel"
META_SERVER = META_PREFIX + "serverInfo"
META_SUBSCRIPTION = META_PREFIX + "subscriptionId"

WRAPS_RESULT = "x-fastmcp-wrap-result"        # in a schema of {"result": …}
WRAPPED: Json = {"fastmcp": {"wrap_result": True}}  # in the `_meta` of such a result
MAX_COMPLETIONS = 100                         # server/utilities/completion
FORM_TYPES = ("string", "number", "integer", "boolean")  # client/elicitation
FORM_FORMATS = ("email", "uri", "date", "date-time")
COMPLETABLE = ("prompts", "resourceTemplates")  # the lists whose entries have arguments
COMPLETIONS_SINCE = "2025-03-26"              # before, the capability did not exist
TOOL_NAME = "[A-Za-z0-9_.-]{1,128}"           # server/tools: "Tool Names"
URI_START = "[A-Za-z][A-Za-z0-9+.-]*:."       # RFC 3986

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert",
          "emergency")

PARSE_ERROR = -32700          # the line is not JSON
INVALID_REQUEST = -32600      # JSON, but not a message; or not at this time
METHOD_NOT_FOUND = -32601     # unknown, not in this era, or its capability not declared
INVALID_PARAMS = -32602       # also: unknown tool, prompt; resource in the modern era
INTERNAL_ERROR = -32603       # a handler failed, except a tool's; a bad response
RESOURCE_NOT_FOUND = -32002   # in the modern era it is sent as INVALID_PARAMS
MISSING_CAPABILITY = -32021   # modern: the client did not declare what is needed
UNSUPPORTED_VERSION = -32022  # modern: `data` lists what we do support
MODERN_CODES = (-32020, MISSING_CAPABILITY, UNSUPPORTED_VERSION)  # no others have them
URL_REQUIRED = -32042         # 2025-11-25 only: the user must visit a URL first
REQUEST_CANCELLED = -32800    # from LSP: the code of our Cancelled, never sent
CONTENT_TOO_LARGE = -32801    # our own: a line is longer than max_message_bytes
USER_REJECTED = -1            # client/sampling: "User rejected sampling request"
RESERVED_CODES = range(-32099, -32019)  # basic: "reserved for the MCP specification"


# -- 2. Errors -------------------------------------------------------------------------
# Two families.  Callers and handlers may catch what derives from Exception.  Exceptions
# by which this library stops a handler (Cancelled, Unwind, Stopped) derive from
# BaseException, so that the handler's own `except Exception` does not catch them.


class McpError(Exception):
    """A JSON-RPC error in either direction: handlers raise it, callers catch it.

    code: int, see the constants; or an object that has all three attributes.  message:
    str.  data: any JSON, or None.  TypeError: the code is not an int (basic,
    "Responses").
    """

    # Defaults for subclasses that do not call __init__.
    code, message, data = INTERNAL_ERROR, "", None

    def __init__(self, code: Any, message: str = "", data: Any = None) -> None:
        if hasattr(code, "message"):  # an ErrorData of the official SDK
            code, message, data = code.code, code.message, code.data
        if type(code) is not int:  # basic: "Error codes MUST be integers"
            raise TypeError(f"an error code must be an int, not {code!r:.60}")
        super().__init__(code, message, data)
        self.code, self.message, self.data = code, message, data

    def __str__(self) -> str:
        return escape_control(f"{self.message} ({self.code})")

    def to_json(self) -> Json:
        """The error object of a response."""
        error: Json = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class ToolError(Exception):
    """A tool has failed: raise it in a tool, and `call_tool` raises it on the client.

    Its text is sent as a result with `isError` (server/tools, "Error Handling").
    result: on the client the whole ToolResult, in a tool None.
    """

    result: Any = None


class RequestTimeout(TimeoutError):
    """No response and no progress came in time; the other end was sent a cancellation.

    See basic/lifecycle, "Timeouts".
    """


class ConnectionClosed(ConnectionError):
    """The other end is gone, or this one was closed.

    exit_code: of the server process, negative for a signal; None where it is unknown or
    there is no process.  stderr: the last 8 KB that the process wrote there, as str.
    """

    def __init__(self, message: str, exit_code: int | None = None,
                 stderr: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.stderr = exit_code, stderr


class Cancelled(BaseException):
    """Ends a handler whose request the client has cancelled; no response is sent.

    Context methods raise it (basic/utilities/cancellation).  Clean up in `finally`.
    """

    code = REQUEST_CANCELLED


class Unwind(BaseException):
    """Ends a handler that has asked; outcome: the result "input required", or McpError.

    ServerSession.handle catches it; find_unwind finds it in an exception group.
    """

    def __init__(self, outcome: Json | McpError) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Stopped(SystemExit):
    """A signal has ended a server; its argument is the exit status."""


def method_not_found(method: str) -> McpError:
    return McpError(METHOD_NOT_FOUND, "Method not found", {"method": method})


def invalid_params(message: str, data: Any = None) -> McpError:
    return McpError(INVALID_PARAMS, message, data)


def invalid_response(reason: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"Malformed response: {reason}")


JSON_TYPE_NAMES = {str: "a string", dict: "an object", list: "a list",
                   bool: "a boolean"}


def require_type(value: Any, required: type, name: str) -> Any:
    """Return the value if it is of this type, or raise McpError(-32602)."""
    if type(value) is not required:
        raise invalid_params(f'"{name}" must be {JSON_TYPE_NAMES[required]}')
    return value


def error_text(error: BaseException) -> str:
    """The text of an exception for the other end; the traceback stays on stderr."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # its own __str__ fails
        return type(error).__name__


def escape_control(text: str) -> str:
    """The text with control characters made visible, except newline and tab."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1]
                   for c in text)


# -- 3. Messages -----------------------------------------------------------------------
# A message is one line.  We read UTF-8 and write ASCII, which survives every encoding
# of a pipe, and has no U+2028 and no lone surrogate.


def refuse_constant(name: str) -> NoReturn:
    """For NaN and Infinity, which Python's parser would take."""
    raise ValueError(f"{name} is not JSON")


to_json_text = json.JSONEncoder(  # RecursionError: an object contains itself
    separators=(",", ":"), allow_nan=False, check_circular=False).encode
parse_json_prefix = json.JSONDecoder(parse_constant=refuse_constant).raw_decode
# An unterminated string matches too, so that the pattern cannot backtrack.
STRING_PATTERN = rb'"[^"\\]*(?:\\.[^"\\]*)*"?'
MAX_DEPTH = 200  # the deepest nesting of a message; the default of Server(max_depth)
MAX_ID = 1 << 16  # characters of an id or a token, because we store and return them
BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def encode(message: Any) -> bytes:
    """Write a message as a line; ValueError, TypeError, RecursionError: not JSON."""
    return to_json_text(message).encode("ascii") + b"\n"


def notification(method: str, params: Json | None = None) -> Json:
    message: Json = {"jsonrpc": "2.0", "method": method}
    return message if params is None else {**message, "params": params}


def decode(line: Line, max_depth: int) -> Any:
    """Read the JSON of a line; McpError(-32700) if it is not valid."""
    # Deep nesting can overflow the C stack of the JSON parser, so it is measured first;
    # but only of the few lines that have so many brackets at all.
    if line.count(b"[") + line.count(b"{") > max_depth and depth_of(line) > max_depth:
        raise McpError(PARSE_ERROR, f"Parse error: nested deeper than {max_depth}")
    try:
        text = line.decode("utf-8").strip(" \t\r")
        # JSONDecoder.decode would spend a third of its time on whitespace.
        message, end = parse_json_prefix(text)
        if end == len(text):
            return message
        reason = f"extra data after {end} characters"
    except (ValueError, RecursionError) as error:
        bad_encoding = isinstance(error, UnicodeDecodeError)
        reason = "not UTF-8" if bad_encoding else str(error)[:100]
    raise McpError(PARSE_ERROR, f"Parse error: {reason}; expected one JSON message "
                   "on each line")


def depth_of(line: Line) -> int:
    """How deep brackets are nested in a line, outside of strings."""
    from itertools import accumulate

    bare = re.sub(STRING_PATTERN, b"", line, flags=re.DOTALL)
    brackets = bare.translate(None, bytes(set(range(256)) - BRACKETS.keys()))
    return max(accumulate(map(BRACKETS.__getitem__, brackets)), default=0)


def as_object(value: Any) -> Json:
    """Return the value if it is an object, else {}: the other end may send anything."""
    return value if type(value) is dict else {}


def valid_id(value: Any) -> int | str | None:
    """Return a request id or progress token, 1.0 as 1; None for anything else."""
    if type(value) is int or type(value) is str and len(value) <= MAX_ID:
        return value
    return int(value) if type(value) is float and value.is_integer() else None


def classify(message: Any) -> str:
    """Return "request", "notification" or "response"; raise McpError for anything else.

    See basic, "Messages".
    """
    if type(message) is not dict:
        problem = "expected a JSON object"
    elif "method" not in message and ("result" in message or "error" in message):
        return "response"  # parse_response checks it later
    elif message.get("jsonrpc") != "2.0":
        problem = '"jsonrpc" must be "2.0"'
    elif type(message.get("method")) is not str:
        problem = '"method" must be a string'
    elif "result" in message or "error" in message:
        problem = "both a request and a response"
    elif "id" not in message:
        return "notification"
    elif valid_id(message["id"]) is not None:
        return "request"
    else:
        problem = f'"id" must be an integer, or a string of at most {MAX_ID} characters'
    raise McpError(INVALID_REQUEST, f"Invalid request: {problem}")


def parse_response(message: Json) -> Json:
    """Return the result of a response.  McpError: its error, or it is malformed."""
    error = message.get("error")
    if message.get("jsonrpc") != "2.0":
        problem = '"jsonrpc" is not "2.0"'
    elif ("result" in message) == ("error" in message):
        problem = 'it needs either "result" or "error"'
    elif type(message.get("result")) is dict:
        return message["result"]  # type: ignore[no-any-return]
    elif type(error) is dict and type(error.get("code")) is int:
        raise McpError(error["code"], str(error.get("message")), error.get("data"))
    else:
        problem = '"result" is not an object, or "error" has no integer "code"'
    raise invalid_response(problem)


# -- 4. Threads, streams, diagnostics --------------------------------------------------
# The parts that a connection is built from, and what it reports to stderr.  All threads
# are daemons, so that a handler that never ends does not keep the process alive.


def start_thread(name: str, run: Callable[[], Any]) -> bool:
    """Start a thread; False if none can be started, as at exit since Python 3.12."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


class ThreadPool:
    """Threads that run jobs in order; they are started when needed, at most `limit`.

    With limit 1 it is a serial executor.  An urgent job goes first: if no thread is
    idle an extra one is started for it, and the next thread that finishes a job ends.
    (A ThreadPoolExecutor would not do: the interpreter joins its threads at exit.)
    """

    EXTRA_THREADS = 8  # so many of them at most, see can_grow

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()  # guards the rest
        self._changed = threading.Condition(self._lock)  # a job was added, or closed
        self._jobs: deque[tuple[Callable[[], Any], int]] = deque()  # urgent ones first
        self._urgent = 0                 # number of urgent jobs in _jobs
        self.bytes = 0                   # bytes of memory that the jobs in _jobs hold
        self._members: set[int] = set()  # identities of the threads
        self._threads = 0                # number of threads
        self._idle = 0                   # number of threads that wait for a job
        self._closed = False

    def submit(self, job: Callable[[], Any], urgent: bool = False,
               size: int = 0) -> bool:
        """Let a thread run the job.  size: the bytes of memory that the job holds.

        False if there is no thread and none can be started: then a normal job has run
        here, and an urgent one is dropped.
        """
        with self._lock:
            self.bytes += size
            if urgent:
                self._jobs.appendleft((job, size))
                self._urgent += 1
            else:
                self._jobs.append((job, size))
            grow = self._idle < len(self._jobs) and (
                urgent or self._threads < self._limit)
            if grow:
                self._threads += 1
            self._changed.notify()
        if not grow or start_thread(self._name, self._work):
            return True
        with self._lock:
            self._threads -= 1
            if self._threads:
                return True
            jobs = [self._take_job() for _ in range(len(self._jobs))]
        for waiting in jobs:  # also those of threads that hoped for this one
            if not (urgent and waiting is job):
                waiting()
        return False

    def can_grow(self) -> bool:
        """May another extra thread be started?"""
        return self._threads < self._limit + self.EXTRA_THREADS

    def load(self) -> int:
        """How many jobs run or wait."""
        with self._lock:
            return self._threads - self._idle + len(self._jobs)

    def is_own_thread(self) -> bool:
        """Is the calling thread one of these?"""
        return threading.get_ident() in self._members

    def close(self) -> None:
        """End all threads when the waiting jobs have run; returns at once.

        A job that is submitted later starts a new thread.
        """
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        self._members.add(threading.get_ident())
        for job in iter(self._next, None):
            try:
                job()
            except BaseException:
                log_exception(f"mcp_min: a job of the {self._name} thread failed")

    def _next(self) -> Callable[[], Any] | None:
        with self._lock:
            self._idle += 1
            while not (self._jobs or self._closed or self._threads > self._limit):
                self._changed.wait()
            self._idle -= 1
            surplus = self._threads > self._limit and not self._closed
            if self._urgent or self._jobs and not surplus:
                return self._take_job()
            self._threads -= 1
            self._members.discard(threading.get_ident())
            return None

    def _take_job(self) -> Callable[[], Any]:  # the caller holds _lock
        self._urgent = max(0, self._urgent - 1)
        job, size = self._jobs.popleft()
        self.bytes -= size
        return job


class LineReader:
    """Reads the lines of a binary stream, for one thread at a time.

    Each byte is looked at once, even if a line arrives in many chunks.  What a line has
    beyond `limit` bytes is dropped as it arrives.
    """

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = getattr(stream, "buffer", stream)  # what is under a text stream
        self._read = getattr(self._stream, "read1", None) or self._stream.read
        self.limit = limit
        self._complete: deque[Line] = deque()  # lines that have arrived
        self._rest = bytearray()               # of the line that is arriving
        self._first = True
        self.waiting = False                   # True while a thread is in read()

    def next(self) -> Line | None:
        """Wait for the next line and return it without its newline; None at the end."""
        while not self._complete:
            if not self._read_some():
                return None
        line = self._complete.popleft()
        if self._first:
            self._first = False
            line = line[3:] if line.startswith(b"\xef\xbb\xbf") else line
        return line

    def _read_some(self) -> bool:
        """Wait for a chunk and split it into lines; False at the end."""
        try:
            self.waiting = True
            chunk = self._read(65536)
            self.waiting = False
            if chunk is None:  # somebody made the descriptor non-blocking
                make_poll(self._stream, "r")(1.0)
            elif chunk:
                self._split(chunk)
            elif self._rest:  # the last line has no newline
                self._split(b"\n")
            else:
                return False
            return True
        except (OSError, ValueError):  # the stream broke, or was closed meanwhile
            return False

    def _split(self, chunk: bytes) -> None:
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            self._append(part)
            self._complete.append(self._rest)  # no copy: a line may be large
            self._rest = bytearray()
        self._append(rest)

    def _append(self, part: bytes) -> None:
        # Keep limit + 4 bytes: one more than the limit, so that the caller sees that it
        # was exceeded, and three for a BOM that is removed later.
        self._rest += part[:self.limit + 4 - len(self._rest)]


def make_poll(stream: Any, event: str) -> Callable[[float | None], bool]:
    """Make a function that waits some seconds until a stream can be read or written.

    event: "r" or "w".  OSError, TypeError, ValueError: the stream cannot be polled.
    """
    import select

    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(stream, select.POLLIN if event == "r" else select.POLLOUT)
        return lambda seconds: bool(poll.poll(seconds and seconds * 1000))
    read, write = ([stream], []) if event == "r" else ([], [stream])
    select.select(read, write, [], 0)  # Windows, where it works for sockets only
    return lambda seconds: any(select.select(read, write, [], seconds))


def can_hang_up(stream: Any) -> bool:
    """Does the end of this stream mean that the other end has closed?

    False for a regular file and for one in memory, which simply end.
    """
    try:
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # a BytesIO
        return False


def make_write_poll(stream: Any) -> Callable[[float | None], bool]:
    """make_poll(stream, "w"), or a function that returns True where that fails.

    It fails for a file in memory and for a pipe on Windows, for example.
    """
    try:
        return make_poll(stream, "w")
    except (OSError, TypeError, ValueError):
        return lambda seconds: True


def log_exception(heading: str) -> None:
    """Write the current exception to stderr, where a host keeps its server's log."""
    import traceback

    error_type, error, frames = sys.exc_info()
    # Skip our own frames, if the user's follow; on PyPy `partial` is Python too.
    first = frames
    skipped = log_exception.__code__.co_filename, sys.modules["functools"].__file__
    while first and first.tb_frame.f_code.co_filename in skipped:
        first = first.tb_next
    warn(f"{heading}:\n" + "".join(
        traceback.format_exception(error_type, error, first or frames)))


def warn(text: str, patience: float = 0.0) -> None:
    """Write to stderr; give up if that would block longer than `patience` seconds."""
    text = escape_control(text)
    if os.name == "nt":  # a pipe cannot be polled there
        written = threading.Event()

        def write() -> None:
            write_stderr(text, None)
            written.set()

        start_thread("mcp stderr", write)
        written.wait(max(patience, 0.1))
    else:
        write_stderr(text, patience)


writing_stderr = threading.Lock()  # keeps the texts of two threads apart


def write_stderr(text: str, patience: float | None) -> None:
    """Write to stderr; patience: see `warn`, None: wait as long as it takes."""
    try:
        can_write = make_write_poll(sys.stderr)
        with writing_stderr:
            # A pipe that is ready takes 4096 bytes: 1000 characters in UTF-8.
            for start in range(0, len(text), 1000):
                if not can_write(patience):
                    break
                sys.stderr.write(text[start:start + 1000])
                sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # there is no stderr, or it is closed


class Trace:
    """Shows each line with its time: > goes to the server, < to the client.

    The variable MCP_MIN_TRACE turns it on: "stderr", or the name of a file.  A response
    is shown with the method of its request and the milliseconds since then.
    """

    def __init__(self, write: Callable[[str], Any],
                 close: Callable[[], Any] = lambda: None) -> None:
        self._write, self.close = write, close
        self._lock = threading.Lock()  # guards _requests, and keeps lines whole
        self._requests: dict[Any, tuple[str, float]] = {}

    @classmethod
    def to(cls, target: str) -> Trace:
        """A trace to "stderr", or to the end of a file."""
        if target == "stderr":
            return cls(partial(warn, patience=0.02))
        # Messages may hold secrets: no other user may read the file, or put a symbolic
        # link in its place.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(target, flags, 0o600)
        if hasattr(os, "fchmod") and stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, 0o600)
        file = open(fd, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        return cls(file.write, file.close)

    def show(self, arrow: str, data: Line) -> None:
        for line in data.splitlines():
            with self._lock:
                now = time.time()
                clock = time.strftime("%H:%M:%S", time.localtime(now))
                clock += f".{int(now % 1 * 1000):03}"
                text = escape_control(line.decode("utf-8", "backslashreplace"))
                note = self._response_note(arrow, line)
                try:
                    self._write(f"{clock} {arrow} {text}{note}\n")
                except (OSError, ValueError):
                    pass  # a full disk must not stop the connection

    def _response_note(self, arrow: str, line: Line) -> str:
        try:
            message = decode(line, MAX_DEPTH)
            key = valid_id(message["id"])
            if "method" in message:
                # Requests without a response: they were cancelled, or the other end
                # wants to fill our memory.
                if len(self._requests) > 10000 or len(str(key)) > 1000:
                    self._requests.clear()
                self._requests[arrow, key] = message["method"], time.perf_counter()
                return ""
            method, start = self._requests.pop(("<" if arrow == ">" else ">", key))
            milliseconds = (time.perf_counter() - start) * 1000
            return f"  # {ascii(method)[1:-1]} {milliseconds:.1f} ms"
        except McpError:
            return "  # not a message" if line.strip() else ""
        except (KeyError, TypeError):
            return ""


# -- 5. Connection ---------------------------------------------------------------------
# One end of a JSON-RPC connection, and its parts, each with one rule:
#
#   Outbox            lines to be written: the thread that sends a line also writes it
#   Batch             collects the responses to an array of messages
#   StuckHandlers     warns of handlers that do not end when they are cancelled
#   IncomingRequests  the other end's requests that were not answered yet, by id
#   OutgoingRequests  our requests that wait for a response, by id; their deadlines
#   ReadingThread     one thread reads: on a client, or with threaded=False
#   SharedReading     on a server: a thread that a handler keeps busy is replaced
#   ReadingHere       on a server that cannot start threads
#   ThreadPool        runs handlers (section 4); or CallingThread, without a pool
#   ConnectionOwner   the callbacks of a connection
#
# The path of a request through a Connection:
#
#   next_line         the reading thread reads a line
#   receive           it parses the line, and routes each message in it (_route)
#   _accept           the request enters the table of incoming requests
#   Reading.handle    chooses the thread for its handler
#   run_handler       calls the owner's `handle`, and responds with its outcome
#   IncomingRequests.send   queues the response, if the request is still active
#
# A response, a cancellation, a timeout and the end of the connection race for a
# request.  The one that removes the request's id from its table acts on the request;
# the others do nothing.

NO_RESPONSE_YET: Any = object()  # returned by a handler whose response is sent later

HIGH_WATER_BYTES = 1 << 20    # with more bytes in the queue, a sending handler waits
MAX_UNREAD_BYTES = 64 << 20   # with more in it we close: the other end does not read
LINE_OVERHEAD = 100           # bytes of memory of a queued line besides its text
# Notifications of the other end are dropped while more callbacks wait, or more bytes.
MAX_CALLBACKS = 10000
MAX_CALLBACK_BYTES = 4 << 20
MAX_REQUESTS = 1000           # of the other end that are active at once
MAX_REQUEST_BYTES = 16 << 20  # bytes of their lines, if there are several
MAX_BATCH = 100               # messages in an array, or questions in a result


class Outbox:
    """The lines that go to the other end, in order; one thread writes at a time.

    A thread that has queued a line also writes it, with all that other threads have
    queued, so that no thread needs to be woken.  If another thread holds `writing`, it
    will write our line too, because it looks at the queue again after releasing that.

    may_block: whether a sender may block in a full pipe.  A server's handlers may: the
    client sets their pace.  A client's callers may not, because they have timeouts to
    keep; what the pipe does not take at once is left to the writer thread.
    """

    def __init__(self, stream: Any, may_block: bool,
                 on_failure: Callable[[], Any]) -> None:
        self._stream = getattr(stream, "buffer", stream)
        self._may_block = may_block
        self._can_write: Any = None       # made when it is needed
        self._on_failure = on_failure     # called when the other end does not read
        self.on_write: Callable[[bytes], Any] | None = None  # for the trace
        self._writer = ThreadPool("mcp writer", 1)
        self.writing = threading.Lock()   # held by the thread that writes
        self._lock = threading.Lock()     # guards the rest
        self._lines: list[bytes] = []
        self._size = 0                    # bytes in _lines
        self._closed = False
        self.queued_total = 0             # bytes that were ever queued
        self.read_total = 0               # of these, bytes that were certainly read

    def put(self, line: bytes) -> None:
        """Queue a line for the next `flush`; do nothing if it is empty."""
        if line:
            with self._lock:
                if self._size + LINE_OVERHEAD * len(self._lines) > MAX_UNREAD_BYTES:
                    self._writer.submit(self._on_failure, urgent=True)
                elif not self._closed:
                    self._lines.append(line)
                    self._size += len(line)
                    self.queued_total += len(line)

    def wait_for_room(self) -> None:
        """Wait while over HIGH_WATER_BYTES are queued, and write meanwhile."""
        while self._may_block and self._size > HIGH_WATER_BYTES:
            with self.writing:
                self._write_queued(may_block=True)
            self.flush()  # what other threads have queued meanwhile

    def flush(self) -> None:
        """Write what is queued, unless another thread is writing."""
        try:
            while self._lines and self.writing.acquire(blocking=False):
                try:
                    written = self._write_queued(self._may_block)
                finally:
                    self.writing.release()
                if not written:
                    return self.flush_later()
        except BaseException:
            # Ctrl-C may have left half a line written, or the lock held.  We cannot
            # tell whether we hold it or another thread does, so close in either case.
            if self.writing.locked():
                self._writer.submit(self._on_failure)
            raise

    def flush_later(self) -> None:
        """Have the writer thread write: for callers that must not wait."""
        self._writer.submit(self._write_all)

    def wait_until_written(self, seconds: float) -> None:
        """Wait until all that is queued now is written, or the time is up."""
        written = threading.Event()
        self.flush_later()
        self._writer.submit(written.set)
        written.wait(max(0.0, seconds))

    def close(self) -> None:
        """Drop what is queued, and what is put later."""
        with self._lock:
            self._closed = True
            self._lines = []
            self._size = 0
        self._writer.close()

    def _write_all(self) -> None:
        more = True
        while more:
            with self.writing:  # this also waits for a thread that is still writing
                self._write_queued(may_block=True)
            more = bool(self._lines)

    def _write_queued(self, may_block: bool) -> bool:  # writing is held
        """Write what is queued; False if that would block, and must not."""
        with self._lock:
            if not (may_block or self._fits()):
                return False
            data = b"".join(self._lines)
            self._lines = []
            self._size = 0
        if data:
            try:
                self._write(data)
            except (OSError, ValueError):  # the pipe is broken, or was closed meanwhile
                self._writer.submit(self._on_failure)
        return True

    def _fits(self) -> bool:  # writing and _lock are held
        """Would the pipe take all that is queued without blocking?"""
        if self._can_write is None:
            try:
                self._can_write = make_poll(self._stream, "w")
            except (OSError, TypeError, ValueError):
                self._can_write = False
        # A pipe that is ready takes at least PIPE_BUF bytes (4096).  On Windows it
        # cannot be polled, but we know that it has room for 4096 unread bytes.
        if self._can_write:
            return self._size <= 4096 and self._can_write(0)
        return self.queued_total - self.read_total <= 4096

    def _write(self, data: bytes) -> None:
        if self.on_write:
            self.on_write(data)
        rest: Any = data
        while (written := self._stream.write(rest)) != len(rest):
            if written is not None:
                rest = memoryview(rest)[written:]
            elif hasattr(self._stream, "fileno"):  # somebody made it non-blocking
                make_poll(self._stream, "w")(None)
            else:
                break  # a user's object whose write() returns None has taken all
        self._stream.flush()


class Batch:
    """The responses to an array of messages; the last one sends them all as an array.

    It stands in for an Outbox: `put` takes one line for each message of the array, b""
    for a message that has no response (an Outbox ignores that).  See basic of
    2025-03-26, "Batching".
    """

    def __init__(self, outbox: Outbox, size: int) -> None:
        self._outbox, self._missing = outbox, size
        self._lock = threading.Lock()  # guards _missing and the next
        self._responses: list[bytes] = []

    def put(self, line: bytes) -> None:
        with self._lock:
            self._missing -= 1
            if line:
                self._responses.append(line.rstrip())
            if not self._missing and self._responses:
                self._outbox.put(b"[" + b",".join(self._responses) + b"]\n")


STUCK_SECONDS = 5.0  # a cancelled handler that runs for longer is reported


class StuckHandlers:
    """Warns of each handler that still runs STUCK_SECONDS after its cancellation."""

    def __init__(self, limit: int) -> None:
        self._limit = limit            # how many threads there are for handlers
        self._lock = threading.Lock()  # guards the next two
        self._cancelled: deque[tuple[float, IncomingRequest]] = deque()
        self._watching = False         # a thread runs _watch
        self._stuck: list[IncomingRequest] = []  # reported; only _watch uses it
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def add(self, request: IncomingRequest) -> None:
        """Watch a request that was cancelled while its handler ran."""
        with self._lock:
            self._cancelled.append((time.monotonic() + STUCK_SECONDS, request))
            start, self._watching = not self._watching, True
        if start:
            start_thread("mcp watch", self._watch)

    def _watch(self) -> None:
        while True:
            with self._lock:
                self._watching = bool(self._cancelled)
                if not self._watching:
                    return
                due, request = self._cancelled.popleft()
            if self._closed.wait(max(0.0, due - time.monotonic())):
                return
            frame = request.thread and sys._current_frames().get(request.thread)
            if frame:
                self._stuck = [*(one for one in self._stuck if one.thread), request]
                self._report(request, frame)

    def _report(self, request: IncomingRequest, frame: Any) -> None:
        this_file = warn.__code__.co_filename
        while frame.f_back and frame.f_code.co_filename == this_file:
            frame = frame.f_back  # out of a function of ours that the handler called
        while frame.f_back and frame.f_back.f_code.co_filename != this_file:
            frame = frame.f_back  # to the handler itself
        warn(f"mcp_min: {request.label} was cancelled {STUCK_SECONDS:g} s ago, and "
             f"is still at {frame.f_code.co_filename}:{frame.f_lineno}\n")
        if len(self._stuck) == self._limit:
            names = ", ".join(sorted({one.label for one in self._stuck}))
            warn(f"mcp_min: all {self._limit} workers run calls that nobody waits for: "
                 f"{names}\n")


class IncomingRequest:
    """A request of the other end, until it is answered or cancelled.

    id, method, params: as received.  token: the progress token, or None.  size: bytes
    of its line.  session: the owner's session when the request came.  sink: the outbox
    or the batch that takes its response.  inline: the reading thread handles it.
    cancelled: True once the cancellation, or the end of the connection, has been read;
    cancel_reason: the reason that the client gave, or None.  hooks: called when it is
    cancelled.  progress: the highest that was reported.  thread: the identity of the
    thread that runs its handler; reader: the same if that thread reads, else None.
    """

    __slots__ = ("connection", "id", "method", "params", "token", "cancelled",
                 "cancel_reason", "session", "sink", "in_batch", "inline", "reader",
                 "hooks", "progress", "size", "thread")

    def __init__(self, connection: Connection, message: Json, sink: Any,
                 size: int = 0) -> None:
        self.connection = connection
        self.size = size
        self.id, self.method = valid_id(message["id"]), message["method"]
        params = message.get("params")
        self.params: Json = {} if params is None else params
        meta = self.params.get("_meta") if type(self.params) is dict else None
        self.token = valid_id(meta.get("progressToken")) if type(meta) is dict else None
        self.cancelled = False
        self.cancel_reason: str | None = None
        self.session = connection.owner.session
        self.sink = sink
        self.in_batch = sink is not connection.outbox
        self.inline = False
        self.reader: int | None = None
        self.hooks: tuple[Callable[[], Any], ...] = ()
        self.progress = float("-inf")
        self.thread: int | None = None

    @property
    def label(self) -> str:
        """Its name in warnings."""
        name = self.params.get("name") or self.params.get("uri")
        return f"{self.method} {name}" if name else str(self.method)

    def notify(self, method: str, params: Json, later: bool = False) -> None:
        """Send a notification about this request, unless that has ended.

        later: the writer thread writes it, not this one, which holds a lock.
        """
        line = encode(notification(method, params))
        self.connection.requests_in.send(self, line, later=later)

    def report_progress(self, progress: float, total: float | None,
                        message: str | None) -> None:
        """Report progress that increases, if the client gave a token.

        See basic/utilities/progress.
        """
        if self.token is None or not progress > self.progress:
            return
        params: Json = {"progressToken": self.token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        line = encode(notification(PROGRESS, params))
        self.connection.requests_in.send(self, line, progress)

    def respond(self, **outcome: Any) -> None:
        """Send `result=` or `error=`, unless the request has ended."""
        try:
            line = encode({"jsonrpc": "2.0", "id": self.id, **outcome})
        except Exception as error:  # a user's dict subclass may raise anything
            text = self.connection.owner.error_text(error)
            text = f"The result is not JSON: {text:.200}"
            return self.respond(error=McpError(INTERNAL_ERROR, text).to_json())
        self.connection.requests_in.send(self, line, last=True)

    def on_cancel(self, hook: Callable[[], Any]) -> None:
        """Call the hook once when the request is cancelled, or now if it has been."""
        with self.connection.requests_in.lock:
            if not self.cancelled:
                self.hooks += (hook,)
                return
        hook()


class IncomingRequests:
    """The requests of the other end that have not ended, by id.

    A line about a request is queued under the same lock under which the request was
    found in the table.  So nothing about it is queued after it has left the table:
    progress cannot follow the response, and a cancelled request stays silent.  (A line
    that was queued before is still sent.)  The table is searched for the request
    itself, because the other end may use an id again.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.lock = threading.Lock()  # guards the rest, and hooks, progress, cancelled
        self._active: dict[Any, IncomingRequest] = {}
        self._bytes = 0               # bytes of the lines of active requests
        self._closed = False
        self._draining = False        # the other end has closed: no more will come
        self._fewer = threading.Condition(self.lock)  # one was removed, while draining

    def add(self, request: IncomingRequest) -> bool:
        """Add a request; False once closed.  McpError: too many, or its id in use."""
        with self.lock:
            if self._closed:
                return False
            too_many = len(self._active) >= MAX_REQUESTS or (
                self._bytes + request.size > MAX_REQUEST_BYTES and self._active)
            if too_many and not request.inline:  # which ends at once, and holds nothing
                raise McpError(INTERNAL_ERROR, f"Over {MAX_REQUESTS} requests, or "
                               f"{MAX_REQUEST_BYTES} bytes of them, at once")
            if self._active.setdefault(request.id, request) is not request:
                raise McpError(INVALID_REQUEST, "Invalid request: this id is in use")
            self._bytes += request.size
        return True

    def send(self, request: IncomingRequest, line: bytes,
             progress: float | None = None, *, last: bool = False,
             later: bool = False) -> None:
        """Send a line about a request, unless that has ended.

        progress: the progress in the line, which is dropped unless that increases.
        last: the line is the response.  later: see `notify`.
        """
        if not (later or request.inline):  # the reading thread must not wait
            self._outbox.wait_for_room()
        with self.lock:
            if self._active.get(request.id) is not request:
                return
            if progress is not None:
                if progress <= request.progress:
                    return
                request.progress = progress
            if last:
                self._remove(request.id)
            (request.sink if last else self._outbox).put(line)
        if later:
            self._outbox.flush_later()
        else:
            self._outbox.flush()

    def cancel(self, request_id: Any, reason: Any = None) -> bool:
        """End a request without a response; False if no active one has this id."""
        with self.lock:
            request = self._active.get(request_id)
            if request is None:
                return False
            self._remove(request_id)
            request.cancel_reason = reason if isinstance(reason, str) else None
            request.cancelled = True
            request.sink.put(b"")  # a batch counts it
        if request.in_batch:
            self._outbox.flush_later()
        for hook in request.hooks:  # no more are added once it is cancelled
            hook()
        if request.thread:
            request.connection.stuck_handlers.add(request)
        return True

    def drain(self, seconds: float) -> None:
        """Wait until all have ended, or the time is up."""
        with self.lock:
            self._draining = True
            self._fewer.wait_for(lambda: not self._active, seconds)

    def close(self) -> None:
        """Cancel all, and add no more."""
        with self.lock:
            self._closed = True
            request_ids = list(self._active)
        for request_id in request_ids:
            self.cancel(request_id)

    def _remove(self, request_id: Any) -> None:  # lock is held
        self._bytes -= self._active.pop(request_id).size
        if self._draining:
            self._fewer.notify_all()


@lru_cache(maxsize=1)
def future_class() -> Any:
    """concurrent.futures.Future; the first request imports it, which takes 6 ms."""
    from concurrent.futures import Future

    return Future


def wait_for(future: Future[Any]) -> Any:
    """Wait for the result of a future."""
    while os.name == "nt" and not future.done():
        try:  # in steps, because no signal interrupts a wait on Windows
            future.exception(0.5)
        except Exception:  # noqa: S110
            pass  # not done yet, or cancelled
    return future.result()


def result_of(future: Future[Any]) -> Any:
    """Wait for the result of a future; Cancelled if the future was cancelled."""
    from concurrent.futures import CancelledError

    try:
        return wait_for(future)
    except CancelledError:
        raise Cancelled() from None


class OutgoingRequest:
    """A request of ours, until its response comes or it is given up.

    future: a concurrent.futures.Future of the result as received.  The reading thread
    sets it; the thread that waits for it reads and checks the result.

    on_result(request, result): called by the reading thread; True if that was not the
    last result, and the request goes on.  on_progress(progress, total, message): called
    on the callback thread.  timeout: seconds without a response or progress.
    max_timeout: seconds that it may take, whatever progress comes.

    state: "new"; "sent" while it waits for a response; "done" when that has come, or it
    was given up; "parked" between two rounds, while the user is asked.
    """

    __slots__ = ("id", "method", "label", "state", "future", "on_result", "on_progress",
                 "timeout", "max_timeout", "last_deadline", "deadline", "progress",
                 "unreported", "by_callback", "queued_total", "stderr_from")

    def __init__(self, method: str, on_result: Any = None, on_progress: Any = None,
                 timeout: float | None = None, max_timeout: float | None = None,
                 ) -> None:
        self.id = 0
        self.method, self.state = method, "new"
        self.label = method       # its name in errors
        self.future: Future[Json] = future_class()()
        self.on_result, self.on_progress = on_result, on_progress
        self.timeout = float("inf") if timeout is None else timeout
        self.max_timeout = float("inf") if max_timeout is None else max_timeout
        self.last_deadline = time.monotonic() + self.max_timeout
        self.deadline = self.last_deadline
        self.progress = float("-inf")  # the highest that came
        self.unreported = 0       # number of reports that wait for on_progress
        self.by_callback = False  # sent from the callback thread, which must not wait
        self.queued_total = 0     # Outbox.queued_total when it was queued
        self.stderr_from = 0      # bytes that the server had written to stderr by then

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the outcome, unless it has one, as when it was just cancelled."""
        try:
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        except Exception:
            if not self.future.done():
                raise


class OutgoingRequests:
    """Our requests that wait for a response, and the timer thread that expires them.

    The timer sleeps until the earliest deadline.  A request that is answered in time
    does not wake it, so it wakes about once in each timeout.
    """

    def __init__(self, outbox: Outbox,
                 expire: Callable[[OutgoingRequest, bool], Any]) -> None:
        self._outbox, self._expire = outbox, expire
        self._lock = threading.Lock()  # guards the rest, and what changes in a request
        self._sent: dict[Any, OutgoingRequest] = {}  # by id
        self._parked: set[OutgoingRequest] = set()
        self._last_id = 0
        self._questions: set[IncomingRequest] = set()  # that our user is answering
        self._closed = False
        self._wakes_at: float | None = None  # None: there is no timer thread yet
        self._earlier = threading.Condition(self._lock)  # there is an earlier deadline

    def new_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    def add(self, request: OutgoingRequest, request_id: int, line: bytes) -> bool:
        """Add a new or parked request under an id, and queue its line.

        False: it has an outcome already, or the connection is closed.
        """
        with self._lock:
            if self._closed or request.state == "done":
                return False
            self._parked.discard(request)
            self._sent[request_id] = request
            request.id, request.state = request_id, "sent"
            self._restart(request)
            self._outbox.put(line)  # under the lock: a cancellation must come after it
            request.queued_total = self._outbox.queued_total
            return True

    def pop(self, request_id: Any) -> OutgoingRequest | None:
        """Remove the request that was sent under an id: its response has come."""
        with self._lock:
            request = self._find(request_id)
            if request:
                self._take_out(request)
                self._outbox.read_total = max(
                    self._outbox.read_total, request.queued_total)
            return request

    def park(self, request: OutgoingRequest) -> bool:
        """Keep a request until it is sent again, in the next round.

        Meanwhile it has no id, but it can be cancelled, and it fails at its last
        deadline or with the connection.  False: it has an outcome already, or the
        connection is closed.
        """
        with self._lock:
            if self._closed or request.future.done():
                return False
            self._parked.add(request)
            request.state = "parked"
            self._set_deadline(request, request.last_deadline)
            return True

    def remove(self, request: OutgoingRequest) -> bool:
        """Remove a request; True if it was waiting for a response."""
        with self._lock:
            sent = request.state == "sent"
            self._take_out(request)
            return sent

    def note_progress(self, token: Any, progress: float) -> OutgoingRequest | None:
        """Return the request with this token; restart its timeout if progress grows."""
        with self._lock:
            request = self._find(token)
            if request and progress > request.progress:
                request.progress = progress
                self._restart(request)
            return request

    def count_unreported(self, request: OutgoingRequest, change: int) -> None:
        with self._lock:
            request.unreported += change

    def suspend(self, question: IncomingRequest) -> None:
        """Suspend all timeouts, but no last deadline: the server waits for our user."""
        with self._lock:
            self._questions.add(question)

    def resume(self, question: IncomingRequest) -> None:
        """Restart the timeouts: the question has its answer, or was cancelled."""
        with self._lock:
            self._questions.discard(question)
            for request in self._sent.values():
                self._restart(request)

    def close(self) -> list[OutgoingRequest]:
        """Add no more; return the waiting ones, for the caller to finish."""
        with self._lock:
            self._closed = True
            waiting = [*self._sent.values(), *self._parked]
            for request in waiting:
                self._take_out(request)
            self._earlier.notify()
        return waiting

    def _run_timer(self) -> None:
        while not self._closed:
            with self._lock:
                overdue = self._wait_for_overdue()
            for request, sent in overdue.items():
                self._expire(request, sent)

    # The callers of the methods below hold _lock.

    def _find(self, request_id: Any) -> OutgoingRequest | None:
        # Some servers return id 1 as "1".  The slice bounds int() on hostile input.
        if type(request_id) is str and request_id.isdecimal():
            number = int(request_id[:20])
            request_id = number if str(number) == request_id else request_id
        return self._sent.get(valid_id(request_id))

    def _take_out(self, request: OutgoingRequest) -> None:
        if request.state == "sent":
            del self._sent[request.id]
        elif request.state == "parked":
            self._parked.discard(request)
        request.state = "done"

    def _restart(self, request: OutgoingRequest) -> None:
        """Give a request its whole timeout again, but not beyond its last deadline."""
        self._set_deadline(request, min(request.last_deadline,
                                        time.monotonic() + request.timeout))

    def _set_deadline(self, request: OutgoingRequest, deadline: float) -> None:
        request.deadline = deadline
        if self._wakes_at is None and deadline < float("inf"):
            self._wakes_at = deadline
            start_thread("mcp timer", self._run_timer)
        elif self._wakes_at is not None and deadline < self._wakes_at:
            self._earlier.notify()

    def _wait_for_overdue(self) -> dict[OutgoingRequest, bool]:
        """Remove the requests whose time is up, or wait if there are none.

        Returns {request: was it waiting for a response?}.
        """
        now = time.monotonic()
        deadlines = {
            request: request.last_deadline if self._questions else request.deadline
            for request in [*self._sent.values(), *self._parked]}
        overdue = {request: request.state == "sent"
                   for request, deadline in deadlines.items() if deadline <= now}
        for request in overdue:
            self._take_out(request)
        self._wakes_at = min(deadlines.values(), default=float("inf"))
        if not (overdue or self._closed):
            self._earlier.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
        return overdue


class CallingThread:
    """Takes the place of a thread pool: jobs run in order on the serving thread.

    That is the thread that has called serve(threaded=False).  Jobs that wait when it is
    closed are dropped, because their requests are cancelled.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the rest; notified: any change
        self._jobs: deque[Callable[[], Any]] = deque()
        self._closed = False

    def submit(self, job: Callable[[], Any]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Run jobs until closed."""
        while not self._closed:
            with self._changed:
                if not self._jobs:
                    self._changed.wait(0.5)  # no signal interrupts it on Windows
                job = self._jobs.popleft() if self._jobs else None
            if job:
                job()


class Reading:
    """Reads the lines of a connection, and starts the handlers of requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self) -> bool:
        """Begin to read; False if no thread can be started."""
        raise NotImplementedError

    def handle(self, request: IncomingRequest) -> None:
        """Run the handler of a request, here or on another thread."""
        connection = self._connection
        if request.inline:
            connection.run_handler(request)
        else:
            connection.pool.submit(partial(connection.run_handler, request))

    def hand_over_reading(self, request: IncomingRequest) -> None:
        """Let another thread read if this request's handler, which will wait, must."""

    def read_until(self, future: Future[Any]) -> None:
        """Read until the future has a result, if no other thread reads meanwhile."""

    def close(self) -> None:
        """End the threads that do not end with the stream."""


class ReadingThread(Reading):
    """One thread that reads until the end, and runs no handlers but inline ones.

    Clients use it, and servers whose handlers run on the serving thread.
    """

    def start(self) -> bool:
        return start_thread("mcp reader", self._read)

    def _read(self) -> None:
        while (line := self._connection.next_line()) is not None:
            self._connection.receive(line)


class ReadingHere(Reading):
    """Reads on the serving thread, where no other can be started.

    It runs one request after the other.  Those that come while a handler waits for its
    client run when that handler has ended.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._waiting: deque[IncomingRequest] = deque()
        self._busy = False

    def read(self) -> None:
        """Read lines and handle them, until the end."""
        while (line := self._connection.next_line()) is not None:
            self._connection.receive(line)
            while self._waiting:
                self.handle(self._waiting.popleft())

    def handle(self, request: IncomingRequest) -> None:
        if self._busy and not request.inline:
            self._waiting.append(request)
            return
        was_busy = self._busy
        self._busy = True
        try:
            self._connection.run_handler(request)
        finally:
            self._busy = was_busy

    def read_until(self, future: Future[Any]) -> None:
        while not future.done() and (line := self._connection.next_line()) is not None:
            self._connection.receive(line)


READER_STALL_SECONDS = 0.002  # a leader that is busy for longer is replaced
MAX_WATCH_SECONDS = 0.016     # the longest pause between two looks at a busy leader


class SharedReading(Reading):
    """A server's reading: threads of the pool take turns (leader and followers).

    The leader is the thread that reads; `_leader` is its identity.  When no other
    request runs, the leader runs the handler of a request itself, and is `_busy` until
    the handler has ended.  (To hand each request to another thread would double the
    time of a short call.)

    A leader that is busy for long is replaced.  A handler that is about to wait calls
    `hand_over_reading`.  For everything else (a long handler, a lock, a full pipe)
    there is the watchdog thread: it replaces a leader that has been busy with one
    request for READER_STALL_SECONDS.  The new leader is an urgent job of the pool, so
    it does not wait behind other jobs.  The old leader is not interrupted; when its
    handler has ended it sees that `_leader` is another thread, leaves `_lead`, and goes
    on as an ordinary thread of the pool.  A leader that is not busy is never replaced.
    So two threads never read at once, and a notification is acted on before the next
    line.

    To wake the watchdog for each request would cost as much as to hand the request
    over.  So it looks after 2 ms, then doubles the pause (up to 16 ms) as long as all
    is well, and sleeps when no request has come since its last look.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._lock = threading.Lock()    # guards the rest
        self._leader: int | None = None  # None: the new leader has not begun yet
        self._busy = False
        self._since = 0.0                # when it began the request it runs
        self._requests_run = 0           # number of requests that leaders have run
        self._closed = False
        self._watchdog_started = False
        self._watchdog_awake = False
        self._wake = threading.Condition(self._lock)  # the watchdog must wake, or end

    def start(self) -> bool:
        with self._lock:
            return self._replace()

    def handle(self, request: IncomingRequest) -> None:
        """Run the handler of a request, here or on another thread of the pool.

        It runs here if it is `inline`, or if the pool has nothing to do besides
        reading; but not from a batch, whose next message would have to wait.
        """
        connection, me = self._connection, threading.get_ident()
        # The threads of the pool that read: this one, and the new leader if this one
        # was replaced while it worked on the line (of a batch).
        readers = 1 if self._leader == me else 2
        if request.inline or (
                connection.pool.load() == readers and not request.in_batch):
            request.reader = me
            with self._lock:
                if self._leader == me:
                    self._busy, self._since = True, time.monotonic()
                    self._requests_run += 1
                    if not self._watchdog_awake:
                        self._wake_watchdog()
            connection.run_handler(request)
            with self._lock:
                if self._leader == me:
                    self._busy = False
            request.reader = None
        else:
            connection.pool.submit(partial(connection.run_handler, request))

    def hand_over_reading(self, request: IncomingRequest) -> None:
        with self._lock:
            if self._busy and self._leader == request.reader:
                self._replace()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wake.notify()

    def _lead(self) -> None:
        me = threading.get_ident()
        with self._lock:
            self._leader = me
        connection = self._connection
        while self._leader == me:
            line = connection.next_line()
            if line is None:
                return
            connection.receive(line)

    # The caller of the next two methods holds _lock.

    def _replace(self) -> bool:
        self._leader, self._busy = None, False
        return bool(self._connection.pool.submit(self._lead, urgent=True))

    def _wake_watchdog(self) -> None:
        self._watchdog_awake = True
        if self._watchdog_started:
            self._wake.notify()
        else:
            self._watchdog_started = True
            start_thread("mcp watchdog", self._watchdog)

    def _watchdog(self) -> None:
        pause = READER_STALL_SECONDS
        with self._lock:
            while not self._closed:
                requests_run = self._requests_run
                self._wake.wait(pause)
                pause = min(2 * pause, MAX_WATCH_SECONDS)
                busy = time.monotonic() - self._since if self._busy else 0.0
                if busy >= READER_STALL_SECONDS and self._connection.pool.can_grow():
                    self._replace()
                    pause = READER_STALL_SECONDS
                elif requests_run == self._requests_run:
                    self._watchdog_awake = False
                    self._wake.wait_for(lambda: self._watchdog_awake or self._closed)
                    pause = READER_STALL_SECONDS


class ConnectionOwner:
    """The callbacks of a connection, of a ServerSession or a ClientSession.

    The reading thread calls them, so they must not block, except `handle`.  session:
    each request keeps the value of its time, because the next line may change it.
    """

    session: Any = None

    def handle(self, request: IncomingRequest) -> Any:
        """Return the result of a request, or NO_RESPONSE_YET; raise what is an error.

        Called on a thread of the pool unless the request is inline.
        """
        raise NotImplementedError

    def is_inline(self, method: str) -> bool:
        """Must this method be handled before the next line is read?"""
        return False

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        """Act on a notification, other than the cancellation of a request.

        size: bytes of its line.
        """

    def handle_stray_line(self, line: Line) -> None:
        """Note a line that is not a message; clients only: a server sends an error."""

    def allows_batches(self) -> bool:
        """Are arrays of messages allowed at present?"""
        return False

    def on_eof(self) -> None:
        """The other end has closed its side; running handlers may still finish."""

    def error_text(self, error: BaseException) -> str:
        """The text of an exception for the other end."""
        return error_text(error)

    def closed_error(self) -> ConnectionClosed:
        """The error of a request that has no response when the connection ends."""
        raise NotImplementedError

    def timeout_error(self, reason: str, stderr_from: int = 0) -> RequestTimeout:
        """The error of a request that was not answered in time."""
        return RequestTimeout(reason)


def looks_like_http(line: Line, is_cut: bool) -> bool:
    """Is this the first line of an HTTP request?  is_cut: its end is missing."""
    return bool(re.match(rb"[A-Z]+ (\S+ HTTP/\d" + (rb"|\S*$)" if is_cut else rb")"),
                         line))


class Connection:
    """One end of a JSON-RPC connection over two binary streams.

    It knows two notifications, cancelled and progress, and that `initialize` is never
    cancelled.  All other methods are the owner's.

    responds: whether requests of the other end are answered; a modern client answers
    none.  drain_seconds: time for running handlers when the other end has closed.
    `eof` is set when that has closed, `closed` when we have, `done` after both.
    """

    responds = True

    def __init__(self, owner: ConnectionOwner, reader: Any, writer: Any, *,
                 is_server: bool, own_reader: bool, max_workers: int,
                 threaded: bool = True,
                 drain_seconds: float = 0.0, max_message_bytes: int = 64 << 20,
                 max_depth: int = MAX_DEPTH) -> None:
        self.owner, self._is_server = owner, is_server
        self._max_depth = max_depth
        if not (own_reader or can_hang_up(reader)):
            drain_seconds = threading.TIMEOUT_MAX  # a file just ends: answer all of it
        self._drain_seconds = min(threading.TIMEOUT_MAX, drain_seconds)
        self._lines = LineReader(reader, max_message_bytes)
        self._reader_to_close = reader if own_reader else None
        self.outbox = Outbox(writer, is_server, self.close)
        self.requests_in = IncomingRequests(self.outbox)
        self.requests_out = OutgoingRequests(self.outbox, self._expire)
        self.threaded = threaded        # False: handlers run on the thread that serves
        limit = max_workers + 1 if is_server else max_workers  # one thread reads
        self.pool: Any = (
            ThreadPool("mcp worker", limit) if threaded else CallingThread())
        self.callbacks = ThreadPool("mcp callbacks", 1)
        self.stuck_handlers = StuckHandlers(max_workers)
        self.reading: Any = (
            SharedReading(self) if is_server and threaded else ReadingThread(self))
        self.trace: Trace | None = None
        self._lock = threading.Lock()   # guards the next
        self.closed = False
        self.eof = threading.Event()
        self.done = threading.Event()

    def start(self) -> bool:
        """Begin to read on another thread; False if no thread can be started.

        OSError: the file of MCP_MIN_TRACE cannot be opened.
        """
        target = os.environ.get("MCP_MIN_TRACE")
        arrow = "<" if self._is_server else ">"
        try:
            if target and not self.trace:
                self.trace = Trace.to(target)
            if self.trace:
                self.outbox.on_write = partial(self.trace.show, arrow)
        finally:  # also without a trace, because close() waits for the end of input
            started: bool = self.reading.start()
        return started

    def run_here(self, also_read: bool) -> None:
        """Run handlers on this thread until closed, and read here too if `also_read`.

        Ctrl-C in a handler closes the connection and is raised here.
        """
        if also_read:
            self.threaded = False
            self.reading = ReadingHere(self)
            self.reading.read()
        else:
            self.pool.run()

    def is_stop(self, error: BaseException) -> bool:
        """Is this Ctrl-C or SIGTERM, in a handler on the thread that serves?"""
        return not self.threaded and isinstance(error, (KeyboardInterrupt, Stopped))

    # -- sending

    def send(self, message: Json) -> None:
        """Send a message; ValueError or TypeError if it is not JSON."""
        self.outbox.put(encode(message))
        self.outbox.flush()

    def request(self, method: str, params: Json | None = None,
                **options: Any) -> OutgoingRequest:
        """Send an OutgoingRequest with these options, and return it at once."""
        request = OutgoingRequest(method, **options)
        self.send_request(request, params)
        return request

    def send_request(self, request: OutgoingRequest, params: Json | None,
                     with_token: bool = False) -> None:
        """Send a request, or send it again, under a new id.

        with_token: let the other end report progress.
        """
        request_id = self.requests_out.new_id()
        if request.on_progress:
            request.by_callback = self.callbacks.is_own_thread()
        if with_token:
            meta = {**((params or {}).get("_meta") or {}), "progressToken": request_id}
            params = {**(params or {}), "_meta": meta}
        message: Json = {"jsonrpc": "2.0", "id": request_id, "method": request.method}
        line = encode(message if params is None else {**message, "params": params})
        if self.requests_out.add(request, request_id, line):
            self.outbox.flush()
        elif not request.future.done():
            request.finish(error=self.owner.closed_error())

    def call(self, request: OutgoingRequest, params: Json | None) -> Json:
        """Send a request and wait for its result.  Ctrl-C meanwhile cancels it."""
        try:
            self.send_request(request, params, with_token=True)
            return wait_for(request.future)  # type: ignore[no-any-return]
        except BaseException:
            self.cancel(request)  # does nothing if it has an outcome
            raise

    def cancel(self, request: OutgoingRequest) -> None:
        """Give a request up and notify the other end, unless it has its outcome."""
        if request.future.cancel() and self.requests_out.remove(request):
            self._queue_cancelled(request, "cancelled")
            self.outbox.flush()

    def _expire(self, request: OutgoingRequest, sent: bool) -> None:
        if sent:
            self._queue_cancelled(request, "timed out")
            self.outbox.flush_later()  # the timer must not wait
        reason = f"no response or progress within {request.timeout:g} s"
        if time.monotonic() >= request.last_deadline:
            reason = f"no response within {request.max_timeout:g} s (max_timeout)"
        request.finish(error=self.owner.timeout_error(
            f"{request.label}: {reason}", request.stderr_from))

    def _queue_cancelled(self, request: OutgoingRequest, reason: str) -> None:
        if request.method != "initialize":  # basic/lifecycle: MUST NOT be cancelled
            self.outbox.put(encode(notification(CANCELLED, {
                "requestId": request.id, "reason": reason})))

    # -- receiving

    def next_line(self) -> Line | None:
        """Read a line; None at the end."""
        line = self._lines.next()
        if line is None:
            self._on_eof()
        # After close() we read a stream that is ours to its end: the other end must not
        # block in a full pipe, and the end shows that it has closed.
        return None if self.closed and self._reader_to_close is None else line

    def receive(self, line: Line) -> None:
        """Act on a line."""
        if self.trace:
            self.trace.show(">" if self._is_server else "<", line)
        try:
            if line and not line.isspace() and not self.closed:
                self._receive(line)
        except McpError as error:
            self._send_error(None, error, line, self.outbox)
        except BaseException as error:
            self.close()  # a response may be lost, and its caller must not wait for it
            if self.is_stop(error):
                raise
            log_exception("mcp_min: internal error")

    def _receive(self, line: Line) -> None:
        if len(line) > self._lines.limit:
            text = f"Message over {self._lines.limit} bytes skipped"
            raise McpError(CONTENT_TOO_LARGE, text)
        message = decode(line, self._max_depth)
        if type(message) is not list:
            self._route(message, line, self.outbox)
            return
        if not (message and self.owner.allows_batches()):
            raise McpError(INVALID_REQUEST, "Invalid request: no batches here")
        if len(message) > MAX_BATCH:
            raise McpError(INVALID_REQUEST,
                           f"Invalid request: over {MAX_BATCH} messages")
        batch = Batch(self.outbox, len(message))
        for element in message:
            self._route(element, line, batch)

    def _route(self, message: Any, line: Line, sink: Any) -> None:
        try:
            message_type = classify(message)
            if message_type == "request":
                self._accept(IncomingRequest(self, message, sink, len(line)))
                return
        except McpError as error:
            if self._is_server or type(message) is not dict or "method" in message:
                self._send_error(message, error, line, sink)
                return
            message_type = "response"  # a malformed one: parse_response will report it
        if message_type == "response":
            self._handle_response(message, line)
        else:
            self._handle_notification(message, len(line))
        if sink is not self.outbox:  # a batch also counts what has no response
            sink.put(b"")
            self.outbox.flush()

    def _send_error(self, message: Any, error: McpError, line: Line,
                    sink: Any) -> None:
        """Answer a message that cannot be accepted.

        A client sends nothing: two clients could send errors to each other for ever.
        """
        response = b""
        if not self._is_server:
            self.owner.handle_stray_line(line)
        elif looks_like_http(line, len(line) > self._lines.limit):
            self.close()  # a web page sends to a port that somebody serves: run nothing
            return
        else:  # id null is JSON-RPC 2.0, though not in MCP's schemas
            response = encode({"jsonrpc": "2.0", "error": error.to_json(),
                               "id": valid_id(as_object(message).get("id"))})
        sink.put(response)
        self.outbox.flush_later()  # a full pipe must not keep us from reading

    def _handle_response(self, message: Json, line: Line) -> None:
        request = self.requests_out.pop(message.get("id"))
        if request and request.unreported and not request.by_callback:
            # Its progress is reported first.
            self.callbacks.submit(partial(self._finish, request, message))
        elif request:
            self._finish(request, message)
        elif message.get("id") is None and not self._is_server:
            self.owner.handle_stray_line(line)
        # Otherwise its id is unknown, it is late, or it is a second response.

    def _finish(self, request: OutgoingRequest, message: Json) -> None:
        try:
            result = parse_response(message)
        except McpError as error:
            request.finish(error=error)
            return
        if not (request.on_result and request.on_result(request, result)):
            request.finish(result)

    def _handle_notification(self, message: Json, size: int) -> None:
        method, names = ALIASES.get(message["method"], (message["method"], {}))
        params = {names.get(key, key): value
                  for key, value in as_object(message.get("params")).items()}
        if method == CANCELLED and self.requests_in.cancel(
                valid_id(params.get("requestId")), params.get("reason")):
            return  # otherwise it may end a subscription, which the owner knows
        if method == PROGRESS:
            self._handle_progress(params, size)
        self.owner.handle_notification(method, params, size)

    def _handle_progress(self, params: Json, size: int) -> None:
        progress: Any = params.get("progress")
        if type(progress) not in (int, float):
            return
        request = self.requests_out.note_progress(params.get("progressToken"), progress)
        if request and request.on_progress and not self.crowded():
            self.requests_out.count_unreported(request, 1)
            job = partial(self._report_progress, request, params)
            self.callbacks.submit(job, size=size)

    def _report_progress(self, request: OutgoingRequest, params: Json) -> None:
        try:
            request.on_progress(params.get("progress"), params.get("total"),
                                params.get("message"))
        finally:
            self.requests_out.count_unreported(request, -1)

    def crowded(self) -> bool:
        """Do so many callbacks wait that further notifications are to be dropped?"""
        return (self.callbacks.load() > MAX_CALLBACKS
                or self.callbacks.bytes > MAX_CALLBACK_BYTES)

    # -- serving

    def _accept(self, request: IncomingRequest) -> None:
        """Add a request and handle it; McpError: see IncomingRequests.add."""
        request.inline = self.owner.is_inline(request.method)
        if self.responds and self.requests_in.add(request):
            self.reading.handle(request)

    def run_handler(self, request: IncomingRequest, handle: Any = None) -> None:
        """Call a request's handler (`handle`, or the owner's) and send its outcome."""
        if request.cancelled:
            return
        request.thread = threading.get_ident()
        try:
            result = (handle or self.owner.handle)(request)
        except McpError as error:
            request.respond(error=error.to_json())
        except BaseException as error:
            if self.is_stop(error):
                self.close()
                raise
            if request.cancelled:
                return  # nobody waits, and the error follows from the cancellation
            if not self.follows_from_eof(error):
                log_exception(f"mcp_min: {request.method} failed")
            text = self.owner.error_text(error)
            request.respond(error=McpError(INTERNAL_ERROR, text).to_json())
        else:
            if result is not NO_RESPONSE_YET:
                request.respond(result=result)
        finally:
            # If an `async def` handler goes on, its coroutine has set another thread.
            if request.thread == threading.get_ident():
                request.thread = None

    # -- ending

    def follows_from_eof(self, error: BaseException) -> bool:
        """Does this error only say that the other end closed while we waited for it?"""
        return self.eof.is_set() and isinstance(error, ConnectionClosed)

    def _on_eof(self) -> None:
        """The other end has closed: wait for handlers for some time, then close."""
        if self._reader_to_close:
            self._reader_to_close.close()
        self.eof.set()
        self._fail_requests()
        self.owner.on_eof()
        deadline = time.monotonic() + self._drain_seconds
        self.requests_in.drain(self._drain_seconds)
        self.outbox.wait_until_written(deadline - time.monotonic())
        self.close()

    def _fail_requests(self) -> None:
        """Fail the requests that wait for a response; none will come."""
        for request in self.requests_out.close():
            request.finish(error=self.owner.closed_error())

    def close_if_idle(self) -> bool:
        """Close if all received data has been processed; True if it is closed now."""
        if self._lines.waiting:
            self.close()
        return self.closed

    def close(self) -> None:
        """Close at once: calls fail, handlers are cancelled, threads end."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self.outbox.close()
        self.requests_in.close()
        self._fail_requests()
        self.reading.close()
        for part in self.pool, self.callbacks, self.stuck_handlers:
            part.close()
        if self.trace:
            self.trace.close()
        self.done.set()


# -- 6. Stdio --------------------------------------------------------------------------
# A stray print, a C library or a child process that writes to fd 1 would corrupt the
# messages, and a child that reads fd 0 would take some of them.  So a server duplicates
# both descriptors before it reads the first message, and uses the duplicates; 0 then
# leads to the null device and 1 to stderr.  We read and write them unbuffered: a thread
# inside sys.stdin at exit would abort the interpreter.


class AtStart:
    """The default of `stderr=`: sys.stderr at the time when the server is started."""

    def __repr__(self) -> str:
        return "sys.stderr"


AT_START: Any = AtStart()
MAX_STDERR_BYTES = 1 << 20  # bytes of a server's stderr that we keep until passed on

streams_taken = threading.Lock()  # held while a server uses stdin and stdout
private_files: set[Any] = set()  # files that a forked child must not keep open


def close_in_forked_children(*files: Any) -> None:
    """Close these files in forked children.

    A pipe that a child also holds does not end when we close it.
    """
    # To register twice is harmless, because a file can be closed twice.
    if not private_files and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            after_in_child=lambda: [file.close() for file in private_files])
    private_files.update(files)
    private_files.difference_update(
        [file for file in private_files.copy() if file.closed])


class StandardStreams:
    """The streams of a stdio server: `with StandardStreams() as (reader, writer)`.

    Restores fd 0 and 1 at the end.  RuntimeError: a server of this process has them.
    The reader is not closed at the end, because a thread may be inside it.
    """

    def __enter__(self) -> tuple[Any, Any]:
        if not streams_taken.acquire(blocking=False):
            raise RuntimeError("a server of this process already has stdin and stdout; "
                               "put `server.run()` under `if __name__ == '__main__':`")
        try:
            for fd in 0, 1:
                os.fstat(fd)  # OSError: it is closed
            # If fd 2 is closed, os.open returns 2.  Keep it open, so that os.dup does
            # not return 2, where others write.
            null = os.open(os.devnull, os.O_RDWR)
            # One duplicate of fd 0 to read from, one to restore it.
            files = [open(os.dup(fd), mode, buffering=0)  # noqa: SIM115
                     for fd, mode in ((0, "rb"), (0, "rb"), (1, "wb"))]
        except BaseException:
            streams_taken.release()
            raise
        close_in_forked_children(*files)
        self._stdin, reader, self._writer = files
        os.dup2(null, 0)
        os.dup2(2, 1)
        if null > 2:
            os.close(null)
        self._flush()  # what was printed before goes to stderr, not to the client
        return reader, self._writer

    def __exit__(self, *exc: object) -> None:
        self._flush()
        for fd, file in (0, self._stdin), (1, self._writer):
            os.dup2(file.fileno(), fd)
            file.close()
        streams_taken.release()

    def _flush(self) -> None:
        try:
            sys.stdout.flush()
        except (AttributeError, OSError, ValueError):
            pass  # there is no stdout, or it is closed


def stdio_server() -> StandardStreams:
    """Take stdin and stdout for a server: `with stdio_server() as (reader, writer):`.

    Meanwhile everything printed goes to stderr; at the end both are restored.
    RuntimeError: a server of this process has them already.
    """
    return StandardStreams()


class Signals:
    """While a server runs, SIGTERM ends it with status 143, Ctrl-C with 130.

    Handlers that were there are restored at the end; one of the application for Ctrl-C
    stays in place.
    """

    def __enter__(self) -> None:
        import signal

        self._restore: list[Callable[[], Any]] = []
        if threading.current_thread() is not threading.main_thread():
            return
        for number, status in (signal.SIGTERM, 143), (signal.SIGINT, 130):
            before = signal.getsignal(number)
            if number == signal.SIGTERM or before is signal.default_int_handler:
                signal.signal(number, partial(self._stop, status))
                self._restore.append(partial(signal.signal, number,
                                             before or signal.SIG_DFL))

    def _stop(self, status: int, *_: Any) -> None:
        raise Stopped(status)

    def __exit__(self, *exc: object) -> None:
        for restore in self._restore:
            restore()


# The environment variables that a server gets by default, as in the official SDKs: it
# can find programs with them, and they hold no secrets.
SAFE_VARIABLES = (
    "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE "
    "SYSTEMDRIVE SYSTEMROOT TEMP USERNAME USERPROFILE" if os.name == "nt" else
    "HOME LOGNAME PATH SHELL TERM USER").split()


def child_environment(extra: dict[str, str] | None, inherit: bool) -> dict[str, str]:
    """The environment of a server: the safe variables, or all, and `extra`."""
    kept = {key: value for key, value in os.environ.items() if inherit or (
        # Not the functions of bash, which a shell would run (Shellshock).
        key in SAFE_VARIABLES and not value.startswith("()"))}
    if os.name == "nt":  # Path and PATH are the same there
        extra = {key.upper(): value for key, value in (extra or {}).items()}
    return {**kept, **(extra or {})}


def resolve_command(target: Any, env: dict[str, str] | None, cwd: str | None,
                    ) -> tuple[list[str], dict[str, str] | None, str | None]:
    """The argv, the extra environment and the directory of a program to start."""
    def text(value: Any) -> str:  # configurations also hold numbers
        return value if isinstance(value, str) else json.dumps(value)

    address = target.get("url") if isinstance(target, dict) else target
    if isinstance(address, str) and re.match("(http|ws)s?://", address):
        raise ValueError(f"{address} is not stdio, which is all that mcp_min speaks: "
                         'start a proxy, such as ["mcp-proxy", URL]')
    if isinstance(target, dict):
        if type(target.get("command")) is not str:
            raise ValueError(f"an entry needs a command; it has {[*target]}")
        argv = [target["command"], *map(text, target.get("args") or ())]
        entry_env = {key: text(value)
                     for key, value in (target.get("env") or {}).items()}
        return argv, {**entry_env, **(env or {})}, cwd or target.get("cwd")
    if isinstance(target, (str, os.PathLike)):
        path = os.fspath(target)
        if path.endswith(".py"):  # "./": it must not look like an option
            return [sys.executable, os.path.join(".", path)], env, cwd
        return [path], env, cwd
    if not target or type(target) not in (list, tuple) or not all(
            isinstance(part, (str, bytes, os.PathLike)) for part in target):
        raise TypeError(f"neither a command nor two binary streams: {target}")
    return list(target), env, cwd


def windows_argv(argv: list[str], env: dict[str, str]) -> list[str]:
    """Find npx.cmd and the like; ValueError for arguments that cmd.exe would parse."""
    import shutil

    argv = [os.fsdecode(part) for part in argv]
    program = shutil.which(argv[0], path=env.get("PATH")) or argv[0]
    is_batch_file = program.lower().endswith((".cmd", ".bat"))
    unsafe = [part for part in (program, *argv[1:])
              if is_batch_file and set(part) & set('&|<>^%"!\r\n')]
    if unsafe:
        raise ValueError(f"argument {unsafe[0]!r} is not safe for {program!r}")
    return [program, *argv[1:]]


def start_process(argv: list[str], env: dict[str, str], cwd: str | None,
                  **pipes: Any) -> Any:
    """Start a command, looked up in the PATH of env, as a process group of its own."""
    import subprocess

    argv = windows_argv(argv, env) if os.name == "nt" else argv
    flags = (getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # 0 except on Windows
             | getattr(subprocess, "CREATE_NO_WINDOW", 0))
    try:
        return subprocess.Popen(  # never a shell
            argv, env=env, cwd=cwd, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, **{
                "stderr": subprocess.PIPE, "bufsize": 0, "creationflags": flags,
                **pipes})
    except OSError as error:
        where = f" (PATH={env.get('PATH', os.defpath)}; cwd={cwd or os.getcwd()})"
        text = f"cannot start {argv[0]!r}: {error.strerror}{where}"
        raise type(error)(error.errno, text, error.filename) from None


class WindowsJob:
    """A Windows job object: it ends a process together with all that it has started."""

    def __init__(self, popen: Any) -> None:
        import ctypes

        self._kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._job = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
        handle = ctypes.c_void_p(int(popen._handle))
        self._kernel.AssignProcessToJobObject(self._job, handle)

    def end(self) -> None:
        self._kernel.TerminateJobObject(self._job, 1)

    def __del__(self) -> None:
        self._kernel.CloseHandle(self._job)


def stderr_writer(stderr: Any) -> Callable[[str], Any] | None:
    """The function for the text of a `stderr=` option."""
    stream = sys.stderr if stderr is AT_START else stderr
    if stream is None or callable(stream):
        return stream
    return partial(print, end="", file=stream, flush=True)


def pipe_streams() -> tuple[Any, Any]:
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), open(writer, "wb", buffering=0)


class StreamPair:
    """In place of a Process: a server that we did not start, with its two streams.

    closes_too: it closes its side when we have closed ours.
    """

    stderr_tail, stderr_total, exit_code = "", 0, None

    def __init__(self, reader: Any, writer: Any, closes_too: bool = False) -> None:
        self.reader, self.writer, self._closes_too = reader, writer, closes_too

    def watch(self, eof: threading.Event, close_if_idle: Callable[[], bool]) -> None:
        pass  # there is no process that could end before its streams

    def release(self, keep_earlier: bool) -> None:
        pass  # there is no stderr

    def exit_report(self) -> tuple[int | None, str]:
        return None, ""

    def stderr_since(self, total: int) -> str:
        return ""

    def close(self, eof: threading.Event, writing: threading.Lock) -> None:
        """Close our side, and wait for the end of theirs."""
        if self._closes_too:
            self._close_writer()
        else:  # a buffered stream cannot be closed while a thread is inside it
            start_thread("mcp closing", self._close_writer)
        eof.wait(2 if self._closes_too else 0.1)

    def _close_writer(self) -> None:
        try:
            self.writer.close()
        except (OSError, ValueError):
            pass


def decode_stderr(stderr: bytes) -> str:
    # Processes on Windows write \r\n.
    return stderr.decode("utf-8", "replace").replace("\r\n", "\n")


class Process:
    """A server process: its streams, its stderr, how it is ended.

    Its stderr is always read, because the server would block in a full pipe.
    `stderr_sink` is called with whole lines as str, on a thread of its own: it may
    block, and if it raises it is not called again.  It is not called before `release`.
    """

    PATIENCE = 2.0  # seconds for each step of close()

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None,
                 stderr_sink: Callable[[str], Any] | None) -> None:
        self._popen = start_process(argv, env, cwd)
        self._job = WindowsJob(self._popen) if os.name == "nt" else None
        self.reader, self.writer = self._popen.stdout, self._popen.stdin
        close_in_forked_children(self.reader, self.writer)
        self._tail = b""                # of stderr; only _read_stderr sets these two
        self.stderr_total = 0           # bytes of stderr that were read
        self._stderr_read = threading.Event()  # set when all of it was read
        self._ended = threading.Event()  # set when the process has ended
        self._report_deadline = 0.0     # when exit_report stops waiting
        self._sink = stderr_sink
        self._sink_thread = ThreadPool("mcp stderr sink", 1)
        self._lock = threading.Lock()   # guards the rest
        self._waiting = b""             # whole lines that were not passed on yet
        self._held = True               # until `release`
        start_thread("mcp stderr reader", self._read_stderr)

    def _read_stderr(self) -> None:
        rest = b""
        with self._popen.stderr as stream:
            for chunk in iter(partial(stream.read, 65536), b""):
                self._tail = (self._tail + chunk)[-8192:]
                self.stderr_total += len(chunk)
                lines, newline, rest = (rest + chunk).rpartition(b"\n")
                complete = lines + newline
                if len(rest) > 65536:
                    complete, rest = complete + rest, b""
                self._queue(complete)
        self._queue(rest)
        self._stderr_read.set()
        self._sink_thread.close()

    def _queue(self, lines: bytes) -> None:
        with self._lock:
            self._waiting += lines
            if len(self._waiting) > MAX_STDERR_BYTES:  # drop the oldest lines
                self._waiting = self._waiting[-MAX_STDERR_BYTES:].partition(b"\n")[2]
            if self._held or self._sink_thread.load() > 1:  # a job takes these too
                return
        self._sink_thread.submit(self._pass_on)

    def _pass_on(self) -> None:
        with self._lock:
            lines, self._waiting = self._waiting, b""
        try:
            if lines and self._sink:
                self._sink(decode_stderr(lines))
        except Exception:
            self._sink = None
            raise  # reported by the pool

    def release(self, keep_earlier: bool) -> None:
        """Pass stderr on from now on, and also what came before if `keep_earlier`."""
        if not keep_earlier:
            self._catch_up()
        with self._lock:
            self._held = False
            if not keep_earlier:
                self._waiting = b""
        self._sink_thread.submit(self._pass_on)
        self._wait_for_sink()

    def _wait_for_sink(self) -> None:
        """Wait for a moment, so that stderr is shown before our own next output."""
        done = threading.Event()
        self._sink_thread.submit(done.set)
        done.wait(0.2)

    def _catch_up(self) -> None:
        """Wait for a moment until the pipe of stderr is empty."""
        deadline = time.monotonic() + 0.2
        try:
            can_read = make_poll(self._popen.stderr, "r")
            while can_read(0) and time.monotonic() < deadline:
                time.sleep(0.001)
        except (OSError, TypeError, ValueError):
            pass  # it has ended, or we are on Windows
        time.sleep(0.001)  # for what has been read, but is not queued yet

    def watch(self, eof: threading.Event, close_if_idle: Callable[[], bool]) -> None:
        """Close the connection when the process has ended, but its stdout has not.

        A child of the process may hold stdout open.  close_if_idle: see Connection.
        """
        def wait() -> None:
            self._popen.wait()
            self._ended.set()
            while not eof.wait(self.PATIENCE / 4) and not close_if_idle():
                pass

        start_thread("mcp exit", wait)

    @property
    def stderr_tail(self) -> str:
        return decode_stderr(self._tail)

    def stderr_since(self, total: int) -> str:
        """What came after the first `total` bytes, as far as it is kept."""
        return decode_stderr(self._tail[-(self.stderr_total - total):]
                             if self.stderr_total > total else b"")

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()  # type: ignore[no-any-return]

    def exit_report(self) -> tuple[int | None, str]:
        """The exit code and the stderr of a process that has closed its stdout.

        Waits for each, a quarter of PATIENCE; a second call does not wait again.
        """
        now, patience = time.monotonic(), self.PATIENCE / 4
        self._report_deadline = self._report_deadline or now + patience
        deadline = self._report_deadline
        if self._ended.wait(max(0.0, deadline - now)):
            self._stderr_read.wait(max(0.0, deadline + patience - time.monotonic()))
        return self.exit_code, self.stderr_tail

    def close(self, eof: threading.Event, writing: threading.Lock) -> None:
        """End the process: close its stdin, send SIGTERM, send SIGKILL to its group.

        Waits after each step (basic/lifecycle, "Shutdown").  eof: set when its stdout
        has ended.  writing: held by the thread that writes.
        """
        try:
            self._close_stdin(writing, self.PATIENCE / 2)
            for number in (15, 9):  # SIGTERM, SIGKILL
                # While its stdout is open, probably a process of its group still runs.
                if eof.wait(self.PATIENCE) and self._ended.wait(self.PATIENCE):
                    break
                self._signal(number)
            self._ended.wait(self.PATIENCE)
        except BaseException:  # Ctrl-C while waiting
            self._signal(9)
            raise
        self._close_stdin(writing, self.PATIENCE)  # if a thread was stuck in a write
        # A grandchild may keep stderr open; the thread that reads it is a daemon.
        self._stderr_read.wait(0.2)
        self._wait_for_sink()

    def _close_stdin(self, writing: threading.Lock, seconds: float) -> None:
        # Not while a thread writes: if it is stuck in a full pipe the signals free it.
        if writing.acquire(timeout=seconds):
            try:
                self.writer.close()
            finally:
                writing.release()

    def _signal(self, number: int) -> None:
        try:
            if self._job:
                self._job.end()
            else:
                os.killpg(self._popen.pid, number)
        except OSError:
            pass  # all have ended


# -- 7. Revisions ----------------------------------------------------------------------
# What differs between the eras, on both ends, is the *policy* of an era.  ("Modern" and
# "legacy" are the words of the specification, see basic/versioning.)  A server has one
# for each connection (legacy) or for each request (modern), a client one for each
# connection.  The methods of this table stand in the same order in both classes.
#
#   on a server       LegacySession                     ModernRequest
#   made from         `initialize`, per connection      `_meta`, per request
#   validate_request  needs `initialize` first          needs `_meta`; restores state
#   describe_server   agrees on the session; result     result of `server/discover`
#                     of `initialize`
#   finalize          wraps structured content          resultType, serverInfo, caching
#   translate         leaves errors as they are         knows other error codes
#   ask               sends requests and waits; raises  ends the handler, which runs
#                     McpError if the client cannot     again with the answers
#   step_results      (of `once`) end with the handler  are kept in requestState
#   on_initialized    sends notifications from then on  -
#   listen            -                                 sends what the client lists
#   end_stream        -                                 ends the stream with a result
#
#   on a client       LegacyClientPolicy                ModernClientPolicy
#   responds          to requests of the server         never
#   multi_round       requests have one result          a result may ask for input
#   ping              ping                              server/discover
#   on_connected      `initialized`, logging/setLevel   listens for changes of lists
#   add_meta          adds nothing                      version, capabilities, log level
#   check             accepts every result              needs resultType "complete"
#   subscribe         resources/subscribe               subscriptions/listen
#   set_level         logging/setLevel                  add_meta sends it from then on
#   roots_changed     sends a notification              -, as the server asks for roots
#                                                       in each request
#   filter_notification   passes all on                 removes subscription ids

PROBE_SECONDS = 5.0     # how long to wait for an answer to `server/discover`
STATE_SECONDS = 900     # how long a requestState can be used
MAX_INVALID_ANSWERS = 3  # to one question; then the request fails
MAX_ROUNDS = 16         # "input required" in a row; then a client gives up
EMPTY_ROUND_SECONDS = 0.25  # the first pause when no input is asked for; it doubles
MAX_STREAMS = 100       # of a connection that are open at once
MAX_URI = 4000          # characters; matching longer ones takes noticeable time
MAX_SUBSCRIPTIONS = 10_000  # resources that a connection has subscribed to


def undeclared_text(missing: Json, version: str) -> str:
    """Say why these capabilities of the client cannot be used.

    version: "" before the handshake.
    """
    without = version and not REVISIONS[version].elicitation_modes
    if "elicitation" in missing and without:
        return f"Revision {version} has no elicitation"
    return "The client did not declare the capability: " + ", ".join(missing)


def capabilities_in_revision(declared: Json, version: str) -> Json:
    """Remove from a client's capabilities what the revision does not have."""
    return {name: value for name, value in declared.items()
            if name != "elicitation" or REVISIONS[version].elicitation_modes}


class Question:
    """A request to the client.

    read(answer) converts the answer for the handler; ValueError: it is invalid.
    """

    __slots__ = ("method", "params", "read")

    def __init__(self, method: str, params: Json, read: Callable[[Json], Any]) -> None:
        self.method, self.params, self.read = method, params, read

    def undeclared(self, declared: Json, version: str) -> Json:
        """The capability that it needs and the client has not declared, or {}."""
        capability = CLIENT_REQUESTS[self.method]
        value = declared.get(capability)
        field = "tools" if self.params.get("tools") else ""  # sampling.tools
        if capability == "elicitation":
            field = "url" if self.params.get("mode") == "url" else "form"
            if version and field not in REVISIONS[version].elicitation_modes:
                value = None
            elif value == {}:  # client/elicitation: "equivalent to" form mode
                value = {"form": {}}
        if type(value) is dict and (not field or field in value):
            return {}
        return {capability: {field: {}} if field else {}}


def read_valid_answers(questions: dict[str, Question], given: Json,
                       attempts: dict[str, int]) -> tuple[Json, dict[str, int]]:
    """Read the valid answers, and count how often each of the others was invalid.

    McpError: one of them was invalid too often.
    """
    answers: Json = {}
    attempts = dict(attempts)
    for key in [key for key in questions if key in given]:
        try:
            answers[key] = questions[key].read(given[key])
        except ValueError as error:
            attempts[key] = attempts.get(key, 0) + 1
            if attempts[key] >= MAX_INVALID_ANSWERS:
                text = f"The answer to {key} does not fit: {error}"
                raise invalid_params(text) from None
    return answers, attempts


def check_subscriptions(count: int, uris: Any) -> None:
    """McpError if a connection with `count` subscriptions cannot have these too."""
    if count + len(uris) > MAX_SUBSCRIPTIONS:
        raise McpError(INTERNAL_ERROR, f"Over {MAX_SUBSCRIPTIONS} subscriptions")
    if max(map(len, uris), default=0) > MAX_URI:
        raise invalid_params(f"a URI of over {MAX_URI} characters")


class ServerPolicy:
    """What both eras have in common on a server."""

    _server: Any  # the Server (section 10)
    connection: Connection
    version: str
    client_info: Json
    client_capabilities: Json
    level: str | None
    subscribed_lists: AbstractSet[str] = frozenset()  # capabilities, as in CHANGES
    subscribed_uris: Any = ()
    _notify: Callable[[str, Json], None]

    def bad_arguments_error(self, problems: str) -> Exception:
        """The error for bad arguments of a tool: a result with `isError`, or not."""
        as_result = REVISIONS[self.version].bad_arguments_are_results
        return ToolError(problems) if as_result else invalid_params(problems)

    def logs(self, level: str) -> bool:
        """Has the client asked for log messages of this level?"""
        lowest = self.level
        return lowest is not None and LEVELS.index(level) >= LEVELS.index(lowest)

    def list_changed(self, capability: str) -> None:
        """Notify the client if it has subscribed.  The caller holds Server.lock."""
        if capability in self.subscribed_lists:
            self._notify(CHANGES[capability][0], {})

    def resource_updated(self, uri: str) -> None:
        """Notify the client if it has subscribed.  The caller holds Server.lock."""
        if uri in self.subscribed_uris:
            self._notify(UPDATED, {"uri": uri})

    def _check_method(self, method: str) -> Method | None:
        """The row of a method, None for a custom one.

        McpError: this revision, or this server, does not have the method.
        """
        row = METHODS.get(method)
        if row is None:
            known = self._server.has_method(method)
        else:  # dates are compared as text
            known = row.since <= self.version <= row.until and (
                not row.capability or self._server.offers(row.capability))
        if not known:
            raise method_not_found(method)
        return row

    def _description(self) -> Json:
        instructions = self._server.instructions
        return {"capabilities": self._server.capabilities(),
                **({"instructions": instructions} if instructions else {})}

    def _undeclared(self, questions: dict[str, Question]) -> Json:
        """The capabilities that the questions need and the client did not declare."""
        undeclared: Json = {}
        for question in questions.values():
            needed = question.undeclared(self.client_capabilities, self.version)
            for capability, fields in needed.items():
                undeclared.setdefault(capability, {}).update(fields)
        return undeclared


class LegacySession(ServerPolicy):
    """A server's policy for a connection of the handshake revisions."""

    def __init__(self, server: Any, connection: Connection) -> None:
        self._server, self.connection = server, connection
        self.version = ""               # the revision agreed on; "" until `initialize`
        self.client_info = {}
        self.client_capabilities = {}
        self.level = "info"             # our choice until logging/setLevel
        self.subscribed_uris: set[str] = set()
        self._initialized = False       # `notifications/initialized` has come
        self._deferred: dict[Any, Json] = {}  # notifications that wait for it

    def validate_request(self, incoming: IncomingRequest) -> None:
        method = incoming.method
        if method == "server/discover":  # a probe without the `_meta` that it needs
            raise invalid_params(f"_meta needs {META_VERSION} and {META_CAPABILITIES}; "
                                 "a client of earlier revisions sends `initialize`")
        if not self.version and method not in ("initialize", "ping"):
            raise McpError(INVALID_REQUEST, "Send `initialize` first")
        if method == "initialize" and incoming.in_batch:  # basic/lifecycle: MUST NOT
            raise McpError(INVALID_REQUEST, "`initialize` cannot be part of a batch")
        self._check_method(method)

    def describe_server(self, params: Json) -> Json:
        """Agree on the session, and return the result of `initialize`.

        See basic/lifecycle, "Initialization".
        """
        version = require_type(params.get("protocolVersion"), str, "protocolVersion")
        # If we do not have the client's version we offer another, without an error.
        self.version = version if version in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        self.client_info = require_type(params.get("clientInfo", {}), dict,
                                        "clientInfo")
        self.client_capabilities = capabilities_in_revision(require_type(
            params.get("capabilities", {}), dict, "capabilities"), self.version)
        result = self._description()
        # The client may rely on what we declare now.
        self.subscribed_lists = {
            capability for capability in CHANGES
            if result["capabilities"].get(capability, {}).get("listChanged")}
        return {"protocolVersion": self.version, "serverInfo": self._server.info,
                **result}

    def finalize(self, method: str, result: Json) -> Json:
        value = result.get("structuredContent")
        # Before 2026 structured content had to be an object.
        if value is not None and type(value) is not dict:
            meta = {**as_object(result.get("_meta")), **WRAPPED}
            return {**result, "structuredContent": {"result": value}, "_meta": meta}
        return result

    def translate(self, error: McpError) -> McpError:
        """The error as it is sent in this era."""
        return error

    def ask(self, incoming: IncomingRequest, questions: dict[str, Question],
            timeout: float | None) -> Json:
        """Send the questions and wait for valid answers; {key: what `read` returns}."""
        undeclared = self._undeclared(questions)
        if undeclared:
            text = undeclared_text(undeclared, self.version)
            raise McpError(INVALID_REQUEST, text, undeclared)
        answers: Json = {}
        attempts: dict[str, int] = {}
        while len(answers) < len(questions):
            sent: dict[str, Any] = {}
            try:
                for key in [key for key in questions if key not in answers]:
                    sent[key] = self._send(incoming, questions[key], timeout)
                for request, _ in sent.values():
                    self.connection.reading.read_until(request.future)
                given = {key: {**result_of(request.future), **our_fields}
                         for key, (request, our_fields) in sent.items()}
            finally:  # if one fails, cancel the others
                for request, _ in sent.values():
                    self.connection.cancel(request)
            valid, attempts = read_valid_answers(questions, given, attempts)
            answers.update(valid)
        return answers

    def _send(self, incoming: IncomingRequest, question: Question,
              timeout: float | None) -> tuple[OutgoingRequest, Json]:
        if incoming.cancelled:  # it may have been, between two attempts
            raise Cancelled()
        by_url = question.params.get("mode") == "url"
        our_fields = {"elicitationId": os.urandom(8).hex()} if by_url else {}
        request = self.connection.request(
            question.method, {**question.params, **our_fields}, max_timeout=timeout)
        incoming.on_cancel(partial(self.connection.cancel, request))
        return request, our_fields

    def step_results(self) -> Json:
        return {}  # the handler does not run again in this era

    def on_initialized(self) -> None:
        """Send deferred notifications, and further ones at once.

        The caller holds Server.lock.
        """
        self._initialized = True
        self._send_deferred()

    def _notify(self, method: str, params: Json) -> None:
        self._deferred[method, params.get("uri")] = notification(method, params)
        if self._initialized:
            self._send_deferred()

    def _send_deferred(self) -> None:
        for message in self._deferred.values():
            self.connection.outbox.put(encode(message))
        self._deferred.clear()
        self.connection.outbox.flush_later()  # later, because Server.lock is held

    def end_stream(self) -> None:
        pass  # a session ends with its connection

    def allows_batches(self) -> bool:
        return bool(self.version) and REVISIONS[self.version].batches


class ModernRequest(ServerPolicy):
    """A server's policy for a request of the stateless revisions.

    A `subscriptions/listen` request stays open; that costs an entry in a table, but no
    thread.
    """

    def __init__(self, server: Any, incoming: IncomingRequest) -> None:
        self._server, self._incoming = server, incoming
        self.connection = incoming.connection
        # What requestState holds: the answers so far; the results of `once`; and the
        # questions of the last round, with the number of invalid answers to each.
        self._state: Json = {"answers": {}, "steps": {}, "asked": {}}
        self._binding = ""  # the request that a state is valid for, see _bind

    def validate_request(self, incoming: IncomingRequest) -> None:
        params = incoming.params
        meta = params["_meta"]
        self.version = require_type(meta.get(META_VERSION), str, META_VERSION)
        if self.version not in MODERN_VERSIONS:
            raise McpError(UNSUPPORTED_VERSION, "Unsupported protocol version", {
                "supported": MODERN_VERSIONS, "requested": self.version})
        self.client_capabilities = require_type(
            meta.get(META_CAPABILITIES), dict, META_CAPABILITIES)
        self.client_info = require_type(meta.get(META_CLIENT, {}), dict, META_CLIENT)
        self.level = meta.get(META_LOG_LEVEL)
        if self.level not in (None, *LEVELS):
            raise invalid_params(f"{META_LOG_LEVEL} must be one of {', '.join(LEVELS)}")
        row = self._check_method(incoming.method)
        if row and row.asks:
            # A client without capabilities cannot be asked, so nothing is bound.
            if self.client_capabilities or "requestState" in params:
                self._bind(incoming.method, params)
            self._restore(params)

    def describe_server(self, params: Json) -> Json:
        """The result of `server/discover` (basic/discover)."""
        return {"supportedVersions": MODERN_VERSIONS, **self._description()}

    def finalize(self, method: str, result: Json) -> Json:
        meta = {**as_object(result.get("_meta")), META_SERVER: self._server.info}
        result = {"resultType": "complete", **result, "_meta": meta}
        row = METHODS.get(method)
        if row and row.cacheable and result["resultType"] == "complete":
            result.setdefault("ttlMs", int(self._server.cache_ttl * 1000))
            result.setdefault("cacheScope", self._server.cache_scope)
        return result

    def translate(self, error: McpError) -> McpError:
        """The error as it is sent in this era (basic, "Error Codes")."""
        code = error.code
        if code == RESOURCE_NOT_FOUND:
            code = INVALID_PARAMS
        elif code == URL_REQUIRED or code in RESERVED_CODES and (
                code not in MODERN_CODES):
            code = INTERNAL_ERROR
        return error if code == error.code else McpError(
            code, error.message, error.data)

    def ask(self, incoming: IncomingRequest, questions: dict[str, Question],
            timeout: float | None) -> Json:
        """Return the valid answers to the questions if all are here; else unwind.

        See basic/patterns/mrtr.
        """
        row = METHODS.get(incoming.method)
        if not (row and row.asks):  # basic/patterns/mrtr: "on any other", MUST NOT
            raise McpError(INVALID_REQUEST, f"{incoming.method} cannot ask the client")
        undeclared = self._undeclared(questions)
        if undeclared:  # as Unwind: the handler's `except Exception` must not catch it
            text = undeclared_text(undeclared, self.version)
            raise Unwind(McpError(MISSING_CAPABILITY, text,
                                  {"requiredCapabilities": undeclared}))
        given = self._state["answers"]
        answers, attempts = read_valid_answers(questions, given, self._state["asked"])
        requests = {key: {"method": question.method, "params": question.params}
                    for key, question in questions.items() if key not in answers}
        if not requests:
            return answers
        state = {**self._state,
                 "answers": {key: given[key] for key in given if key not in requests},
                 "asked": {key: attempts.get(key, 0) for key in requests}}
        raise Unwind({"resultType": "input_required", "inputRequests": requests,
                      "requestState": self._server.signer.sign(state, self._binding)})

    def _restore(self, params: Json) -> None:
        """Continue from the state of the last round, with the answers of this one."""
        given = require_type(params.get("inputResponses", {}), dict, "inputResponses")
        if "requestState" not in params:
            return
        state = self._server.signer.verify(params["requestState"], self._binding)
        if state is None:
            raise invalid_params("requestState is not valid for this request")
        # Answers to questions that were not asked in the last round are ignored.
        new = {key: given[key] for key in state["asked"] if key in given}
        self._state = {**state, "answers": {**new, **state["answers"]}}

    def _bind(self, method: str, params: Json) -> None:
        """Note the method and the arguments that a state is valid for.

        This comes before the handler runs, which may change its arguments.
        """
        bound = {key: value for key, value in params.items()
                 if key not in ("_meta", "inputResponses", "requestState")}
        self._binding = json.dumps([self._server.name, method, bound], sort_keys=True)

    def step_results(self) -> Json:
        """The results of `once`; Context adds to this dict, which is then signed."""
        return self._state["steps"]  # type: ignore[no-any-return]

    def listen(self, params: Json) -> None:
        """Subscribe to those of the requested notifications that this server declares.

        See basic/patterns/subscriptions.  The caller holds Server.lock.
        """
        requested = require_type(params.get("notifications"), dict, "notifications")
        declared = self._server.capabilities()
        agreed: Json = {key: True for capability, (_, key) in CHANGES.items()
                        if require_type(requested.get(key, False), bool, key)
                        and declared.get(capability, {}).get("listChanged")}
        self.subscribed_lists = {
            capability for capability, row in CHANGES.items() if row[1] in agreed}
        uris = require_type(requested.get(UPDATES_WANTED, []), list, UPDATES_WANTED)
        if uris and declared.get("resources", {}).get("subscribe"):
            self.subscribed_uris = {
                require_type(uri, str, UPDATES_WANTED) for uri in uris}
            check_subscriptions(self._server.subscriptions(self.connection),
                                self.subscribed_uris)
            agreed[UPDATES_WANTED] = uris
        self._notify(ACKNOWLEDGED, {"notifications": agreed})

    def _notify(self, method: str, params: Json) -> None:
        params = {**params, "_meta": {META_SUBSCRIPTION: self._incoming.id}}
        # Later, because the caller holds Server.lock.
        self._incoming.notify(method, params, later=True)

    def end_stream(self) -> None:
        result = {"_meta": {META_SUBSCRIPTION: self._incoming.id}}
        self._incoming.respond(result=self.finalize(self._incoming.method, result))
        self._server.forget(self)


class StateSigner:
    """Signs state that passes through a client (basic/patterns/mrtr, requirement 4).

    It is not encrypted: the client can read it.  But it can neither make nor change it,
    nor use it for a request other than the one that it is bound to.
    """

    def __init__(self, secret: bytes | None) -> None:
        if secret is not None and not (
                isinstance(secret, bytes) and len(secret) >= 16):
            raise ValueError("state_secret must be at least 16 bytes")
        self._secret = secret or os.urandom(32)

    def sign(self, state: Json, bound: str) -> str:
        dated = {**state, "until": time.time() + STATE_SECONDS}
        return self._signed(encode(dated).hex(), bound)

    def verify(self, token: Any, bound: str) -> Json | None:
        """The state, or None if the token is not valid, or no longer."""
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


def first_session(server: Any, connection: Connection) -> LegacySession:
    """The session of a new connection, even if all its requests should be modern."""
    return LegacySession(server, connection)


def policy_of(server: Any, session: LegacySession,
              incoming: IncomingRequest) -> LegacySession | ModernRequest:
    """The policy for a request: its own if its `_meta` is modern, or the session."""
    meta = incoming.params.get("_meta")
    if meta is not None and looks_modern(require_type(meta, dict, "_meta"), session):
        return ModernRequest(server, incoming)
    if incoming.method == "initialize":
        # This may be a second handshake; running requests keep their session.
        return LegacySession(server, session.connection)
    return session


def looks_modern(meta: Json, session: LegacySession) -> bool:
    """Is this the `_meta` of a modern request, or meant to be?"""
    if META_VERSION in meta:
        return True
    # Capabilities without a version, before any handshake: the error of the modern era
    # names the missing key.
    return not session.version and META_CAPABILITIES in meta


def seconds_until(deadline: float) -> float:
    """Seconds until then, at least 0.001; rounded, because error messages show it."""
    return max(0.001, round(deadline - time.monotonic(), 3))


class ClientPolicy:
    """What both eras have in common on a client."""

    def __init__(self, session: Any, version: str, info: Any, result: Json) -> None:
        self._session = session  # a ClientSession (section 11)
        self.version = version
        self.server_info = as_object(info)
        self.capabilities = as_object(result.get("capabilities"))
        self.instructions: str | None = result.get("instructions")
        self._has_capabilities = "capabilities" in result

    def offers_method(self, method: str) -> bool:
        """Has the server declared what a method needs?

        True also if it needs nothing, or if we do not know the server's capabilities.
        """
        name, _, field = METHODS[method].capability.partition(".")
        if not (name and self._has_capabilities) or name == "completions" and (
                self.version < COMPLETIONS_SINCE):
            return True
        declared = self.capabilities.get(name)
        return type(declared) is dict and (not field or bool(declared.get(field)))


class LegacyClientPolicy(ClientPolicy):
    """A client's policy for a server of the handshake revisions."""

    responds = True
    multi_round = False
    ping = "ping"

    def __init__(self, session: Any, result: Json) -> None:
        version: Any = result.get("protocolVersion")
        if version not in LEGACY_VERSIONS:
            raise no_common_version([version])
        super().__init__(session, version, result.get("serverInfo"), result)

    def on_connected(self, deadline: float) -> None:
        # Drop what the server wrote to stderr until now: if it was probed, mostly
        # tracebacks about the unknown method `server/discover`.
        self._session.process.release(keep_earlier=False)
        self._session.notify(INITIALIZED)
        if self._session.client.level and "logging" in self.capabilities:
            self.set_level(self._session.client.level, seconds_until(deadline))

    def add_meta(self, params: Json | None) -> Json | None:
        return params

    def check(self, result: Json) -> Json:
        return result

    def subscribe(self, uri: str, seconds: float) -> None:
        self._session.request("resources/subscribe", {"uri": uri}, seconds)

    def unsubscribe(self, uri: str, seconds: float) -> None:
        self._session.request("resources/unsubscribe", {"uri": uri}, seconds)

    def set_level(self, level: str, seconds: float) -> None:
        self._session.request("logging/setLevel", {"level": level}, seconds)

    def roots_changed(self) -> None:
        self._session.notify(ROOTS_CHANGED)

    def filter_notification(self, method: str, params: Json) -> Json | None:
        return params


def check_complete(result: Json) -> Json:
    """Return the last result of a request; McpError if its type is not "complete"."""
    result_type = result.get("resultType", "complete")
    if result_type != "complete":  # basic: "MUST be considered invalid"
        raise invalid_response(f"resultType {result_type!r:.60}")
    return result


class ModernClientPolicy(ClientPolicy):
    """A client's policy for a server of the stateless revisions."""

    responds = False
    multi_round = True
    ping = "server/discover"

    def __init__(self, session: Any, version: str, result: Json) -> None:
        info = as_object(result.get("_meta")).get(META_SERVER)
        super().__init__(session, version, info, result)
        self._lock = threading.Lock()        # guards the rest
        self._streams: dict[Any, Subscription] = {}  # by request id
        self._updates: dict[str, Subscription] = {}  # those of resources, by URI

    def on_connected(self, deadline: float) -> None:
        self._session.process.release(keep_earlier=True)
        changes = {
            key: True for capability, (_, key) in CHANGES.items()
            if as_object(self.capabilities.get(capability)).get("listChanged")}
        try:
            if changes:
                self._listen(changes, min(1.0, seconds_until(deadline)))
        except McpError:
            pass  # the server has no streams after all

    def add_meta(self, params: Json | None) -> Json:
        params, client = params or {}, self._session.client
        meta = {META_VERSION: self.version, META_CLIENT: client.info,
                META_CAPABILITIES: client.declared}
        if client.level or client.log_handler is not None:
            meta[META_LOG_LEVEL] = client.level or "info"  # as LegacySession.level
        return {**params, "_meta": {**meta, **(params.get("_meta") or {})}}

    def check(self, result: Json) -> Json:
        return check_complete(result)

    def input_requests(self, result: Json) -> Json:
        """The questions of a result that needs input; McpError if malformed."""
        requests = result.get("inputRequests")
        if type(requests) is not dict and (
                requests is not None or type(result.get("requestState")) is not str):
            raise invalid_response("input required, but no inputRequests, requestState")
        questions = as_object(requests)
        known = [*CLIENT_REQUESTS]  # a list: a method may be unhashable
        if len(questions) > MAX_BATCH or any(
                as_object(question).get("method") not in known
                or type(question.get("params", {})) is not dict
                for question in questions.values()):
            raise invalid_response("malformed, unknown or too many inputRequests")
        return questions

    def subscribe(self, uri: str, seconds: float) -> None:
        stream, agreed = self._listen({UPDATES_WANTED: [uri]}, seconds)
        uris = (agreed or {}).get(UPDATES_WANTED)
        if type(uris) is list and uri in uris:
            return self._replace(uri, stream)
        self._session.connection.cancel(stream.request)
        if agreed is None:
            raise self._session.timeout_error(
                f"{stream.request.method}: no acknowledgement within {seconds} s")
        raise McpError(METHOD_NOT_FOUND, f"The server takes no subscription to {uri}")

    def unsubscribe(self, uri: str, seconds: float) -> None:
        self._replace(uri, None)

    def _replace(self, uri: str, stream: Subscription | None) -> None:
        """Get the updates of a resource from this stream, or from none."""
        with self._lock:
            before = self._updates.pop(uri, None)
            if stream:
                self._updates[uri] = stream
        if before:
            self._session.connection.cancel(before.request)

    def _listen(self, requested: Json,
                seconds: float) -> tuple[Subscription, Json | None]:
        """Open a stream; return it, and what its acknowledgement agrees to.

        The second value is None if no acknowledgement came in time.
        """
        from concurrent.futures import wait

        params = self.add_meta({"notifications": requested})
        with self._lock:  # the acknowledgement may come at once
            stream = Subscription(self._session.connection.request(
                "subscriptions/listen", params), requested)
            self._streams[stream.request.id] = stream
        future = stream.request.future
        future.add_done_callback(lambda _: self._ended(stream))
        wait([future, stream.agreed], min(seconds, threading.TIMEOUT_MAX),
             "FIRST_COMPLETED")
        if stream.agreed.done():
            return stream, stream.agreed.result()
        if future.done():
            future.result()  # raises the server's error
            return stream, {}  # it has ended without an acknowledgement
        return stream, None

    def _ended(self, stream: Subscription) -> None:
        """A stream has ended; notify the client if the server has ended it."""
        connection = self._session.connection
        with self._lock:
            del self._streams[stream.request.id]
            lost = [uri for uri in self._updates if self._updates[uri] is stream]
            for uri in lost:
                del self._updates[uri]
        closed = connection.closed or connection.eof.is_set()
        if stream.agreed.done() and not (stream.request.future.cancelled() or closed):
            self._session.client.on_stream_ended(lost, {
                "requestId": stream.request.id, "notifications": stream.requested,
                "reason": "The server has ended this subscription"})

    def set_level(self, level: str, seconds: float) -> None:
        pass  # add_meta sends it

    def roots_changed(self) -> None:
        pass  # the server asks for roots in each request

    def filter_notification(self, method: str, params: Json) -> Json | None:
        """The parameters for the client's handlers; None if it is not for them."""
        meta = as_object(params.get("_meta"))
        is_end = method == CANCELLED  # basic/patterns/cancellation: only of a stream
        if META_SUBSCRIPTION not in meta and not is_end:
            return params
        stream_id = params.get("requestId") if is_end else meta[META_SUBSCRIPTION]
        with self._lock:
            stream = self._streams.get(valid_id(stream_id))
        if stream is None:
            return None  # it has ended, or was never opened
        if is_end:
            self._session.connection.requests_out.remove(stream.request)
            stream.request.finish({})
        elif method == ACKNOWLEDGED:
            if not stream.agreed.done():
                stream.agreed.set_result(as_object(params.get("notifications")))
        else:
            meta = {k: value for k, value in meta.items() if k != META_SUBSCRIPTION}
            params = {k: value for k, value in params.items() if k != "_meta"}
            return {**params, **({"_meta": meta} if meta else {})}
        return None


class Subscription:
    """A `subscriptions/listen` request; agreed: a future of its acknowledgement."""

    def __init__(self, request: OutgoingRequest, requested: Json) -> None:
        self.request, self.requested = request, requested
        self.agreed: Future[Json] = future_class()()


def negotiate(session: Any, mode: str, deadline: float) -> Any:
    """Agree on an era and a revision by the deadline; return the policy.

    See basic/transports/stdio, "Backward Compatibility": probe, and fall back on the
    handshake unless the response is a modern one.  ConnectionClosed: the server ended
    when it was probed.  McpError: a modern server has none of our versions and no
    handshake.
    """
    if mode in (LEGACY_MODE, *LEGACY_VERSIONS):
        session.process.release(keep_earlier=True)
        return LegacyClientPolicy(session, send_initialize(session, mode, deadline))
    version = mode if mode in MODERN_VERSIONS else MODERN_VERSIONS[-1]
    probe = send_discover(session, version)
    if mode != "auto":
        usable = [version] if mode == version else MODERN_VERSIONS
        return policy_of_probe(session, probe, deadline, usable)
    now = time.monotonic()
    # At most half of the time, so that some is left for the handshake.
    probe_deadline = min(now + PROBE_SECONDS, (now + deadline) / 2)
    try:
        return policy_of_probe(session, probe, probe_deadline)
    except (McpError, RequestTimeout) as refusal:
        named = versions_named(refusal)
        if getattr(refusal, "code", None) in MODERN_CODES and not any(
                version in LEGACY_VERSIONS for version in named):
            raise
    return fall_back(session, probe, named, deadline)


def fall_back(session: Any, probe: OutgoingRequest, named: list[Any],
              deadline: float) -> Any:
    """Try the handshake, because the probe was refused or had no response.

    named: the versions in the refusal.
    """
    try:
        result = send_initialize(session, "auto", deadline)
    except McpError as error:
        if probe.future.done() and not probe.future.exception():
            return policy_of_probe(session, probe, deadline)  # a late result
        if error.code == UNSUPPORTED_VERSION:
            again = send_discover(session, MODERN_VERSIONS[-1])
            return policy_of_probe(session, again, deadline)
        raise no_common_version(named, f" ({error})") if named else error
    session.connection.requests_out.remove(probe)  # a late response is dropped
    return LegacyClientPolicy(session, result)


def send_discover(session: Any, version: str) -> Any:
    params = ModernClientPolicy(session, version, {}).add_meta(None)
    return session.connection.request("server/discover", params)


def result_before(session: Any, request: OutgoingRequest, deadline: float) -> Json:
    """Wait for a result until the deadline; RequestTimeout, but the request goes on."""
    from concurrent.futures import wait

    seconds = seconds_until(deadline)
    wait([request.future], min(seconds, threading.TIMEOUT_MAX))
    if request.future.done():
        return check_complete(request.future.result())
    text = f"{request.method}: no response in {seconds:.3g} s"
    raise session.timeout_error(text)


def policy_of_probe(session: Any, probe: OutgoingRequest, deadline: float,
                    usable: Iterable[str] = MODERN_VERSIONS) -> ModernClientPolicy:
    """The policy for a server that has answered the probe.

    usable: the versions to choose from.  McpError, RequestTimeout: the server is not
    modern, or has no common version.
    """
    try:
        result = result_before(session, probe, deadline)
        supported = result.get("supportedVersions")
        if type(supported) is not list:
            raise invalid_response("no list of supportedVersions")
    except McpError as error:
        supported, result = versions_named(error), {}
        if error.code != UNSUPPORTED_VERSION:
            raise
    shared = [version for version in usable if version in supported]
    if not shared:  # it may name handshake revisions
        raise no_common_version(supported)
    if not result:  # it is modern, but refused this version: discover with another
        try:
            again = send_discover(session, shared[-1])
            result = result_before(session, again, deadline)
        except McpError:
            pass  # it refuses again; other requests may work
    return ModernClientPolicy(session, shared[-1], result)


def versions_named(error: Any) -> list[Any]:
    """The versions in an UnsupportedProtocolVersionError; [] for any other error."""
    unsupported = getattr(error, "code", None) == UNSUPPORTED_VERSION
    named = as_object(error.data).get("supported") if unsupported else None
    return named if type(named) is list else []


def no_common_version(supported: Any, reason: str = "") -> McpError:
    known = list(REVISIONS)
    text = f"the server has {supported!r:.200}, this client {', '.join(known)}{reason}"
    return McpError(UNSUPPORTED_VERSION, f"No common protocol version: {text}", {
        "supported": supported, "requested": known})


def send_initialize(session: Any, mode: str, deadline: float) -> Json:
    capabilities = dict(session.client.declared)
    if "roots" in capabilities:
        capabilities["roots"] = {**capabilities["roots"], "listChanged": True}
    request = session.connection.request("initialize", {
        "protocolVersion": mode if mode in LEGACY_VERSIONS else LEGACY_VERSIONS[-1],
        "capabilities": capabilities, "clientInfo": session.client.info,
    }, timeout=seconds_until(deadline))
    return wait_for(request.future)  # type: ignore[no-any-return]


# -- 8. Content ------------------------------------------------------------------------
# Content is JSON as it is sent: dict subclasses with camelCase keys, whose fields are
# attributes too.  A plain dict that a handler returns is data, not a content block.

WIRE_NAMES = {"meta": "_meta", "mime_type": "mimeType", "website_url": "websiteUrl",
              "input_schema": "inputSchema", "output_schema": "outputSchema"}


def wire_fields(**fields: Any) -> Json:
    """Keyword arguments with the keys of the protocol, without those that are None."""
    return {WIRE_NAMES.get(key, key): value for key, value in fields.items()
            if value is not None}


def to_base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode()


def from_base64(text: str) -> bytes:
    from base64 import b64decode

    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ValueError("data: bytes, or text in base64; for a file: path=") from None


def text_of(blocks: Any) -> str:
    return "\n".join(block["text"] for block in blocks
                     if isinstance(block, dict) and type(block.get("text")) is str)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, enum.Enum)


def camel_case(name: str) -> str:
    """The protocol's key for a Python name."""
    first, *others = name.split("_")
    return WIRE_NAMES.get(name) or first + "".join(map(str.capitalize, others))


class Fields(dict):  # type: ignore[type-arg]
    """A JSON object whose fields are attributes too: `block.text`, `block.mimeType`."""

    _field_names = ""  # separated by spaces; a missing one of these reads as None

    @classmethod
    def of(cls, fields: Json) -> Self:
        """Make one of received fields, without validation."""
        instance = cls.__new__(cls)
        instance.update(fields)
        return instance

    def __getattr__(self, name: str) -> Any:
        key = name if name in self else camel_case(name)
        if key in self or key in self._field_names.split():
            return self.get(key)
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def _set(self, **fields: Any) -> None:
        """Set the fields that are not None; TypeError: there is no such field."""
        given = wire_fields(**fields)
        unknown = given.keys() - set(self._field_names.split())
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no field {', '.join(sorted(unknown))}; its "
                f"fields: {self._field_names}")
        self.update(given)


class Block(Fields):
    """A content block (server/tools, "Tool Result").

    Every block also takes `annotations` and `meta`.
    """

    _type = ""

    def _set(self, type: str | None = None, **fields: Any) -> None:
        if type not in (None, self._type):
            raise ValueError(f"the type of this block is {self._type!r}, not {type!r}")
        super()._set(type=self._type, **fields)


class Text(Block):
    """A content block of text.  It also takes `annotations` and `meta`."""

    _type, _field_names = "text", "type text annotations _meta"

    def __init__(self, text: str, **fields: Any) -> None:
        self._set(text=text, **fields)


class Media(Block):
    """Images and audio: bytes with a MIME type."""

    _field_names = "type data mimeType annotations _meta"
    _default = ""
    _signatures: dict[bytes, str] = {}  # noqa: RUF012 - patterns of the first bytes

    def __init__(self, data: bytes | str | None = None, *, path: Any = None,
                 mime_type: str | None = None, format: str | None = None,
                 **fields: Any) -> None:
        mime_type = fields.pop("mimeType", None) or mime_type
        if format and not mime_type:
            mime_type = f"{self._type}/{format}"
        if path is not None:
            import mimetypes

            with open(path, "rb") as file:
                data = file.read()
            mime_type = mime_type or mimetypes.guess_type(os.fspath(path))[0]
        if isinstance(data, str):
            data = from_base64(data)
        if data is None:
            raise TypeError(f"{type(self).__name__} needs data or path")
        guesses = (mime for pattern, mime in self._signatures.items()
                   if re.match(pattern, data, re.DOTALL))
        mime_type = mime_type or next(guesses, self._default)
        self._set(data=to_base64(data), mimeType=mime_type, **fields)


class Image(Media):
    """A content block of an image: `data` is bytes or base64 text, `path` a file.

    mime_type, or format ("jpeg"): by default guessed from the path or the data, or
    "image/png".
    """

    _type, _default = "image", "image/png"
    _signatures = {  # noqa: RUF012
        b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg",
        b"GIF8": "image/gif", b"RIFF....WEBP": "image/webp"}


class Audio(Media):
    """A content block of audio, like Image; the default type is "audio/wav"."""

    _type, _default = "audio", "audio/wav"


class ResourceLink(Block):
    """A content block that links to a resource.

    fields: title, description, mime_type, size, icons, annotations, meta.
    """

    _type = "resource_link"
    _field_names = ("type uri name title description mimeType size icons annotations "
                    "_meta")

    def __init__(self, uri: str, name: str, **fields: Any) -> None:
        self._set(uri=str(uri), name=name, **fields)


class ResourceContents(Fields):
    """The contents of a resource: `text`, or bytes as `data`, or base64 as `blob`.

    uri: by default the URI that was requested (server/resources).
    """

    _field_names = "uri mimeType text blob _meta"

    def __init__(self, text: str | None = None, *, data: bytes | None = None,
                 uri: str | None = None, **fields: Any) -> None:
        if data is not None:
            fields["blob"] = to_base64(data)
        self._set(uri=None if uri is None else str(uri), text=text, **fields)

    @property
    def data(self) -> bytes | None:
        """The bytes, or None if it is text."""
        return from_base64(self["blob"]) if "blob" in self else None


class EmbeddedResource(Block):
    """A content block that holds the contents of a resource.

    Give `uri` and `text` or `data`, or give ResourceContents as `resource`.
    """

    _type, _field_names = "resource", "type resource annotations _meta"

    def __init__(self, uri: str | None = None, text: str | None = None, *,
                 data: bytes | None = None, mime_type: str | None = None,
                 resource: Any = None, **fields: Any) -> None:
        if resource is None:
            if mime_type is None:  # server/prompts: "MUST include the MIME type"
                mime_type = "text/plain" if data is None else "application/octet-stream"
            resource = ResourceContents(text, data=data, uri=uri, mime_type=mime_type)
        self._set(resource=resource, **fields)


ROLES = ("user", "assistant")


class Message(Fields):
    """A message of a prompt.  role: "user" or "assistant"; content: str or a block."""

    _field_names = "role content"

    def __init__(self, *args: Any, **fields: Any) -> None:
        """Message(role, content); or, as in FastMCP, (content) and (content, role)."""
        if len(args) == 2:
            swapped = args[0] not in ROLES and is_text(args[1]) and args[1] in ROLES
            role, content = args[::-1] if swapped else args
            fields = {**fields, "role": role, "content": content}
        elif args:
            fields["role" if "content" in fields else "content"] = args[0]
        role, content = fields.pop("role", "user"), fields.pop("content", None)
        if fields:
            raise TypeError(f"a Message has no {', '.join(fields)}")
        if content is None:
            raise TypeError("a Message needs content")
        if role not in ROLES:
            raise ValueError(f'a role is "user" or "assistant", not {role!r:.60}')
        self._set(role=role, content=Text(content) if is_text(content) else content)


def message_of(value: Any) -> Json:
    """A message of a prompt or of sampling; a str or a block is one of the user."""
    if is_text(value) or isinstance(value, Block):
        return Message("user", value)
    if isinstance(value, dict) and "role" in value:
        return {**value, **Message(value["role"], value.get("content"))}
    raise TypeError(f"expected a str, a block or a Message, got {type(value).__name__}")


class ToolResult(Fields):
    """The result of a tool: a handler may return one, and `call_tool` returns one.

    content: a str, a block, or a list of both.  structured_content: any JSON.  The
    official SDK's spellings (structuredContent, isError, _meta) are taken too.
    """

    _field_names = "content structuredContent isError _meta"
    wrapped = False  # the output schema says that the structure is {"result": …}

    def __init__(self, content: Any = (), structured_content: Any = None,
                 is_error: bool = False, meta: Json | None = None,
                 **fields: Any) -> None:
        parts = [content] if isinstance(content, (str, dict)) else content or ()
        blocks = [Text(part) if isinstance(part, str) else part for part in parts]
        self._set(**{"content": blocks, "structuredContent": structured_content,
                     "isError": is_error, "_meta": meta, **fields})

    @property
    def content(self) -> list[Json]:
        """The content blocks as received; their fields are attributes too."""
        return [Block.of(block) if type(block) is dict else block
                for block in self.get("content") or []]

    @property
    def text(self) -> str:
        """The text of all text blocks, one after the other."""
        return text_of(self.content)

    @property
    def structured_content(self) -> Any:
        """The structured content as received, or None."""
        return self.get("structuredContent")

    @structured_content.setter
    def structured_content(self, value: Any) -> None:
        self["structuredContent"] = value

    @property
    def is_error(self) -> bool:
        """True if the tool has failed."""
        return self.get("isError") is True

    @property
    def data(self) -> Any:
        """The structured content, without its wrapper if it has one; or the text.

        A value that is no object travels as {"result": value}; the output schema or
        `_meta` says so.
        """
        if "structuredContent" not in self:
            return self.text
        value = self["structuredContent"]
        marks = as_object(as_object(self.get("_meta")).get("fastmcp"))
        wrapped = self.wrapped or marks.get("wrap_result")
        return value.get("result") if wrapped and type(value) is dict else value


class Elicited:
    """The user's answer to `elicit`.  action: "accept", "decline" or "cancel".

    content: if accepted, the form as a dict.  data: the same as an object of the type
    that was asked for.  elicitation_id: of `elicit_url`, None in the stateless
    revision.
    """

    def __init__(self, action: str, content: Json | None = None, data: Any = None,
                 elicitation_id: str | None = None) -> None:
        self.action, self.content = action, content
        self.data, self.elicitation_id = data, elicitation_id

    def __repr__(self) -> str:
        return f"Elicited({self.action!r}, {self.content!r})"

    if TYPE_CHECKING:  # `await ctx.elicit(…)` in an `async def` handler
        def __await__(self) -> Generator[Any, Any, Self]: ...


class Sampled(Fields):
    """The answer to `sample`: role, content, model, stopReason (client/sampling)."""

    if TYPE_CHECKING:  # `await ctx.sample(…)` in an `async def` handler
        def __await__(self) -> Generator[Any, Any, Self]: ...

    @property
    def content(self) -> Any:
        """A block or a list of blocks."""
        content = self["content"]
        return [*map(Block.of, content)] if type(content) is list else Block.of(content)

    @property
    def text(self) -> str:
        """The text of its text blocks, one after the other."""
        content = self["content"]
        return text_of(content if type(content) is list else [content])


# -- 9. Schema -------------------------------------------------------------------------
# Signatures become JSON Schema, arguments become objects, results become JSON.  Hints
# are read by __origin__, __args__ and name: a server's start must not import typing,
# inspect or dataclasses just to describe a parameter as an optional list of strings.
# JSON Schema is here as a whole, because a tool's schema may use all of it
# (server/tools, "Tool"), and the library that validates it would be a dependency.

MAX_NESTING = 200     # schemas applied within each other; levels of a result
MAX_STEPS = 500_000   # of one validation; a step is a schema applied to a value
ERROR_COST = 20       # steps that an error costs
LOOK_COST = 0.05      # steps that a look at a name or an item costs
MAX_PATTERN = 1_000   # characters of a regular expression, see validate()
MAX_SUBJECT = 20_000  # characters that one is matched with
MAX_PROBLEMS = 20     # listed of a value; more are counted
MAX_CHOICES = 100     # listed in a problem; more are counted


class SchemaError(ValueError):
    """A schema cannot be used.

    It is malformed or of another dialect, a reference leads out of the document, or to
    apply it is more work than the limits above allow.
    """


class TooMuchWork(SchemaError):
    """To validate a value would take too long, or nest too deeply."""


class ValidationError(ValueError):
    """A value does not match its schema.  problems: a readable line for each error."""

    def __init__(self, errors: list[Mismatch], count: int = 0) -> None:
        self.problems = [
            problem_line(path, text) for path, text, _ in errors[:MAX_PROBLEMS]]
        if count > MAX_PROBLEMS:
            self.problems.append(f"… and {count - MAX_PROBLEMS} more")
        super().__init__("\n".join(self.problems))


def problem_line(path: tuple[Any, ...], text: str) -> str:
    """A problem with the path to its place: `user.tags[1]: expected …`."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{key:.60}" for key in path)
    place = "".join(keys).lstrip(".")
    return " ".join(f"{place}: {text}".split()) if path else text


def validate(value: Any, schema: Any) -> list[str]:
    """Return a readable line for each problem of `value`; [] if it matches `schema`.

    Validates as JSON Schema 2020-12 says; `format` only annotates, and no reference is
    fetched.  SchemaError: the schema cannot be used.  Work is bounded, except that
    Python's `re` cannot be stopped: a hostile `pattern` can take exponential time.
    """
    return Validator(schema).problems(value)


# The validator.  A Validator reads a document and checks it; then each schema that is
# applied to a value makes an Evaluation.

JSON_TYPES = {type(None): "null", bool: "boolean", int: "integer number",
              float: "number", str: "string", list: "array", tuple: "array",
              dict: "object"}


def json_types(value: Any) -> str:
    """The names of a value's type, one or two: 1 and 1.0 are integers and numbers."""
    if isinstance(value, float):
        if not abs(value) < float("inf"):
            return "unknown"
        return "integer number" if value.is_integer() else "number"
    return JSON_TYPES.get(type(value)) or next(
        (JSON_TYPES[t] for t in JSON_TYPES if isinstance(value, t)), "unknown")


def quote(value: Any) -> str:
    """A value in a short line; of a container the type only: it may hold secrets."""
    types = json_types(value)
    if types in ("array", "object") or types == "unknown" and type(value) is not float:
        return "an " + types.replace("unknown", "unknown type")
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"
    value = value[:80] if isinstance(value, str) else value
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def join_some(choices: Iterable[Any], show: Any = None) -> str:
    """List choices, but of very many only the first."""
    show = show or quote
    choices = [*choices]
    more = len(choices) - MAX_CHOICES
    text = ", ".join(map(show, choices[:MAX_CHOICES])) or "none"
    return text if more <= 0 else f"{text} and {more} more"


def type_names(schema: Json) -> list[str]:
    """The names in `type` of a schema; [] if there is none."""
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else names


def hashable(value: Any) -> str:
    """Text that is equal for values that JSON Schema calls equal: 1 is 1.0, not true.

    It is text because somebody can make the hashes of numbers collide.
    """
    if isinstance(value, dict):
        parts = sorted(f"{key!r}:{hashable(item)}" for key, item in value.items())
        return f"{{{','.join(parts)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(hashable, value))}]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return hex(value) if is_number else repr(value)


def percent_decode(text: str) -> str:
    """Decode the %XX of a URI; urllib.parse would be slow to import."""
    def decoded(escapes: re.Match[str]) -> str:
        return bytes.fromhex(escapes[0].replace("%", "")).decode("utf-8", "replace")

    return re.sub("(?:%[0-9A-Fa-f]{2})+", decoded, text)


def join_uri(base: str, reference: str) -> str:
    if not base or reference[:1] == "#":
        return base + reference
    from urllib.parse import urljoin

    try:
        return urljoin(base, reference)
    except ValueError:  # it is no URI, and so the name of nothing
        return reference


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of ECMA 262: \\d and \\w are ASCII, $ is the very end."""
    letter = r"(?u:[^\W\d_])"
    replacements = {
        "$": r"\Z", "(?<": "(?P<", r"\s": r"(?u:\s)", r"\S": r"(?u:\S)",
        r"\p{digit}": r"(?u:\d)", r"\p{L}": letter, r"\p{Letter}": letter}
    tokens = r"\\[pP]\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|\$|\(\?<(?=\w)"
    try:
        if len(pattern) > MAX_PATTERN:
            raise OverflowError(f"longer than {MAX_PATTERN} characters")
        text = re.sub(tokens, lambda token: replacements.get(token[0], token[0]),
                      pattern)
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise SchemaError(f"pattern {quote(pattern)}: {error}") from None


class Validator:
    """A schema document, checked at once; SchemaError if it is bad.

    foreign: it came from the other end.  Then its regular expressions are not run,
    because Python's `re` cannot be stopped; values are taken to match them.
    """

    def __init__(self, document: Any, foreign: bool = False) -> None:
        self.document, self.foreign = document, foreign
        self.bases: dict[int, str] = {}  # id() of each part: its base URI
        self.anchors: dict[str, Any] = {}  # URI or URI#anchor: schema
        self.checked: set[int] = set()  # id() of the parts that are valid schemas
        self._choices: dict[int, tuple[set[Any], str]] = {}  # by id() of the `enum`
        self._work = WorkBudget()  # of checking the document, and what it refers to
        try:
            encode(document)  # tools/list sends it; and JSON cannot be cyclic
        except (TypeError, ValueError, RecursionError) as error:
            raise SchemaError(f"not JSON: {error}") from None
        if document is METASCHEMA:
            self.checked.add(id(document))
        else:
            self.bases.update(metaschema().bases)  # the document may refer to it
            self.anchors.update(metaschema().anchors)
        self.ensure_schema(document)
        self.anchors[""] = document
        for base, reference in self._references():
            self.resolve_ref(base, reference)

    def _references(self) -> list[tuple[str, str]]:
        """Note bases and anchors; return every (base, reference).

        Only strings count: the same keys may occur in data that is not a schema.
        """
        references: list[tuple[str, str]] = []
        todo = [("", self.document)]  # no recursion: documents may be deep
        while todo:
            base, node = todo.pop()
            if not isinstance(node, (dict, list)) or id(node) in self.bases:
                continue
            items = node if isinstance(node, dict) else dict(enumerate(node))
            strings = {key: item for key, item in items.items()
                       if isinstance(item, str)}
            if "$id" in strings:
                uri = join_uri(base, strings["$id"])
                self.anchors[uri] = node  # in draft-07 an anchor is an $id: "#name"
                base = uri.partition("#")[0]
            self.bases[id(node)] = base
            for key in strings.keys() & {"$anchor", "$dynamicAnchor"}:
                self.anchors[f"{base}#{strings[key]}"] = node
            for key in strings.keys() & {"$ref", "$dynamicRef"}:
                references.append((base, strings[key]))
            todo += [(base, items[key]) for key in items
                     if key not in ("enum", "const", "default", "examples")]
        return references

    def ensure_schema(self, schema: Any) -> Any:
        """Return the schema if it is valid; a reference may lead to anything."""
        if id(schema) not in self.checked:
            evaluation = metaschema().evaluate(schema, self._work)
            if evaluation.failures:
                raise SchemaError(ValidationError(evaluation.errors).problems[0])
            self.checked.add(id(schema))
        return schema

    def resolve_ref(self, base: str, reference: str) -> Any:
        """The schema of a reference, which is a URI, an anchor or a JSON pointer."""
        try:
            uri, _, fragment = join_uri(base, reference).partition("#")
            fragment = percent_decode(fragment)
            if fragment and fragment[0] != "/":
                uri, fragment = f"{uri}#{fragment}", ""
            target = self.anchors[uri]
            for step in fragment.split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                is_index = isinstance(target, list) and step.isdecimal()
                target = target[int(step) if is_index else step]
        except (LookupError, ValueError, TypeError):
            raise SchemaError(f"{quote(reference)} is not in the document, "
                              "and nothing is fetched") from None
        return self.ensure_schema(target)

    def resolve_dynamic_ref(self, scope: tuple[str, ...], reference: str) -> Any:
        """The same for $dynamicRef: a dynamic anchor of the outermost base counts."""
        target = self.resolve_ref(scope[-1], reference)
        name = reference.partition("#")[2]
        if not isinstance(target, dict) or target.get("$dynamicAnchor") != name:
            return target
        for base in scope:
            outer = self.anchors.get(f"{base}#{name}", {})
            if outer.get("$dynamicAnchor") == name:
                return outer
        return target

    def choices(self, enum: list[Any]) -> tuple[set[Any], str]:
        """The values of an `enum`, hashable and as text."""
        if id(enum) not in self._choices:
            text = ("one of " if len(enum) > 1 else "") + join_some(enum)
            self._choices[id(enum)] = {*map(hashable, enum)}, text
        return self._choices[id(enum)]

    def evaluate(self, value: Any, work: WorkBudget | None = None) -> Evaluation:
        """Apply the document to a value.  TooMuchWork: that takes too long."""
        try:
            return Evaluation(self, self.document, value, (), ("",),
                              work or WorkBudget()).run()
        except RecursionError:
            raise TooMuchWork("checking nests too deeply (a $ref loop?)") from None

    def problems(self, value: Any, seconds: float = float("inf")) -> list[str]:
        """A readable line for each problem.  TooMuchWork: it takes over `seconds`."""
        evaluation = self.evaluate(value, WorkBudget(seconds))
        return ValidationError(evaluation.errors, evaluation.failures).problems

    def coerce(self, value: Any, strict: bool = True) -> Any:
        """Return the object that `value` stands for.  ValidationError: it is invalid.

        Unless `strict`, text of a wrong type is replaced by the JSON it contains, which
        may in turn contain such text.
        """
        work = WorkBudget()
        evaluation = self.evaluate(value, work)
        while evaluation.repairs and not strict:
            value = repaired(evaluation.value, evaluation.repairs)
            evaluation = self.evaluate(value, work)
        if evaluation.failures:
            raise ValidationError(evaluation.errors, evaluation.failures)
        return evaluation.result


class WorkBudget:
    """The steps that a validation may still take; TooMuchWork when they are used up."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self._left, self._ends = float(MAX_STEPS), time.monotonic() + seconds

    def spend(self, amount: float) -> None:
        self._left -= amount
        if self._left < 0:
            raise TooMuchWork(f"checking takes over {MAX_STEPS:,} steps")
        if time.monotonic() > self._ends:
            raise TooMuchWork("checking takes too long")


def repaired(value: Any, repairs: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """A copy of `value` with some parts replaced; repairs: (path, new part) of each."""
    copy = json.loads(json.dumps([value]))
    for path, part in repairs:
        *parents, last = (0, *path)
        holder = copy
        for key in parents:
            holder = holder[key]
        holder[last] = part
    return copy[0]


class Schema(dict):  # type: ignore[type-arg]
    """A schema with a constructor: a matching value becomes `make(value)`.

    Parts of the value are made first.  optional: null means that the property is
    missing.
    """

    def __init__(self, keywords: Any, make: Any = None, optional: bool = False) -> None:
        super().__init__(keywords)
        self.make, self.optional = make, optional

    def plus(self, keywords: Any) -> Schema:
        """A copy with more keywords."""
        return Schema({**self, **keywords}, self.make, self.optional)


MISSING: Any = object()   # there is no default, or no such property
UNSTATED: Any = object()  # there is a default, but the schema does not state it
BOOLEAN_SCHEMAS: Any = {True: {}, False: {"not": {}}}


class Evaluation:
    """One schema applied to one value.

    errors: (path, text, what is expected) of the first; failures: how many there are.
    repairs: (path, JSON) of text of a wrong type that contains JSON of a right type.
    evaluated: the names or indices that a keyword has applied to; `unevaluated…`
    applies to the others.  result: the object that the value stands for.  scope: the
    base URIs from the document's root to here.
    """

    def __init__(self, validator: Validator, schema: Any, value: Any, path: Any,
                 scope: tuple[str, ...], work: WorkBudget) -> None:
        if len(scope) > MAX_NESTING:
            raise RecursionError
        work.spend(1)
        self.validator, self.path, self.work = validator, path, work
        self.scope = (*scope, validator.bases.get(id(schema), scope[-1]))
        self.errors: list[Mismatch] = []
        self.failures = 0
        self.repairs: list[tuple[Any, Any]] = []
        self.evaluated: set[Any] = set()
        self.schema: Any = (
            schema if isinstance(schema, dict) else BOOLEAN_SCHEMAS[schema])
        self.value = self.result = value

    def run(self) -> Evaluation:
        """Apply the schema; what follows from it is in the attributes then."""
        keywords, types = self.schema, json_types(self.value)
        apply_keywords, unevaluated = APPLIERS.get(types, (None, ""))
        if apply_keywords:
            apply_keywords(self, keywords)
        self.compare(keywords, types)
        if not IN_PLACE_KEYWORDS.isdisjoint(keywords):  # most schemas have none of them
            self.combine(keywords)
        # A subschema that failed contributes no annotations (2020-12, 11).
        if unevaluated and unevaluated in keywords and not self.failures:
            self.apply_to_others(keywords[unevaluated])
        if isinstance(keywords, Schema):
            self.construct(keywords)
        return self

    def error(self, text: str, *key: Any, expected: str = "") -> None:
        """Note an error of the value, or of its part under a key."""
        self.work.spend(ERROR_COST)
        self.failures += 1
        if len(self.errors) < MAX_PROBLEMS:
            self.errors.append(((*self.path, *key), text, expected))

    def require(self, valid: Any, expected: str, actual: Any = None) -> None:
        """Note an error unless `valid`: what is expected, and the value instead."""
        if not valid:
            actual = quote(self.value) if actual is None else actual
            self.error(f"expected {expected}, got {actual}", expected=expected)

    def apply(self, schema: Any, value: Any, *key: Any) -> Evaluation:
        return Evaluation(self.validator, schema, value, (*self.path, *key),
                          self.scope, self.work).run()

    def add_errors(self, other: Evaluation) -> None:
        self.failures += other.failures
        self.errors += other.errors[:MAX_PROBLEMS - len(self.errors)]
        self.repairs += other.repairs

    def apply_in_place(self, *schemas: Any) -> None:
        """Apply schemas to the same value."""
        for schema in schemas:
            other = self.apply(schema, self.value)
            self.add_errors(other)
            if not other.failures:
                self.evaluated |= other.evaluated
            if other.result is not self.value:
                self.result = other.result

    def apply_to_parts(self, schemas: Any) -> None:
        """Apply schemas to parts of the value, by name or index."""
        made = {}
        for key in schemas:
            other = self.apply(schemas[key], self.value[key], key)
            self.evaluated.add(key)
            self.add_errors(other)
            if other.result is not self.value[key]:
                made[key] = other.result
        if made and isinstance(self.value, dict):
            parts = {**self.result, **made}.items()
            self.result = {key: part for key, part in parts if part is not MISSING}
        elif made:
            self.result = [made.get(index, part)
                           for index, part in enumerate(self.result)]

    def apply_to_others(self, schema: Any) -> None:
        """Apply a schema to every part that no keyword has applied to."""
        is_object = isinstance(self.value, dict)
        all_keys = self.value if is_object else range(len(self.value))
        keys = [key for key in all_keys if key not in self.evaluated]
        if schema is not False or not is_object:
            return self.apply_to_parts(dict.fromkeys(keys, schema))
        known = join_some(self.schema.get("properties", ()), show=str)
        for key in keys:
            self.error(f"unknown; known are: {known}", key)

    def construct(self, node: Schema) -> None:
        if self.failures and self.value is None and node.optional:
            self.errors, self.failures, self.result = [], 0, MISSING
        elif node.make and not self.failures:
            try:
                self.result = node.make(self.result)
            except Exception as error:  # of user code, such as __post_init__
                text = str(error)[:200] or type(error).__name__
                expected = node.get("format", node.get("contentEncoding"))
                if expected:
                    self.require(False, expected)
                else:
                    self.error(text)

    # -- the keywords

    def require_bounds(self, size: Any, keywords: Any, unit: str, *names: str) -> None:
        """Check keywords that mean, in this order, the relations of BOUNDS."""
        for name, (relation, holds) in zip(names, BOUNDS):
            if name in keywords:
                expected = f"{relation} {quote(keywords[name])} {unit}".strip()
                self.require(holds(size, keywords[name]), expected, quote(size))

    def number(self, keywords: Any) -> None:
        if "multipleOf" in keywords:
            self.require(is_multiple(self.value, keywords["multipleOf"]),
                         f"a multiple of {quote(keywords['multipleOf'])}")
        self.require_bounds(self.value, keywords, "", "maximum", "minimum",
                            "exclusiveMaximum", "exclusiveMinimum")

    def text(self, keywords: Any) -> None:
        self.require_bounds(len(self.value), keywords, "characters", "maxLength",
                            "minLength")
        if "pattern" in keywords and not self.validator.foreign:
            self.require(pattern_matches(keywords["pattern"], self.value),
                         f"text like {quote(keywords['pattern'])}")

    def array(self, keywords: Any) -> None:
        size = len(self.value)
        self.require_bounds(size, keywords, "items", "maxItems", "minItems")
        if keywords.get("uniqueItems"):
            self.work.spend(size * LOOK_COST)
            unique = {*map(hashable, self.value)}
            self.require(len(unique) == size, "items that differ")
        if "prefixItems" in keywords:
            self.apply_to_parts(dict(zip(range(size), keywords["prefixItems"])))
        if isinstance(keywords.get("items"), list):  # draft-07: prefixItems and items
            self.apply_to_parts(dict(zip(range(size), keywords["items"])))
            self.apply_to_others(keywords.get("additionalItems", True))
        elif "items" in keywords:
            self.apply_to_others(keywords["items"])
        if "contains" in keywords:
            matching = [index for index, item in enumerate(self.value)
                        if not self.apply(keywords["contains"], item).failures]
            self.evaluated.update(matching)
            least = keywords.get("minContains", 1)
            most = keywords.get("maxContains", size)
            expected = f"{least} to {most} items that match `contains`"
            self.require(least <= len(matching) <= most, expected, len(matching))

    def object(self, keywords: Any) -> None:
        self.require_bounds(len(self.value), keywords, "properties", "maxProperties",
                            "minProperties")
        self.require_names(keywords.get("required", ()), "required")
        for name in self.value if "propertyNames" in keywords else ():
            other = self.apply(keywords["propertyNames"], name, name)
            other.repairs = []  # a name cannot be replaced
            self.add_errors(other)
        properties = keywords.get("properties", {})
        self.work.spend(len(properties) * LOOK_COST)
        self.apply_to_parts({name: schema for name, schema in properties.items()
                             if name in self.value})
        if "patternProperties" in keywords and self.validator.foreign:
            self.evaluated.update(self.value)
            return
        for pattern, schema in keywords.get("patternProperties", {}).items():
            self.work.spend(len(self.value) * LOOK_COST)
            self.apply_to_parts({
                key: schema for key in self.value if pattern_matches(pattern, key)})
        if "additionalProperties" in keywords:
            self.apply_to_others(keywords["additionalProperties"])
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, dependent in keywords.get(keyword, {}).items():
                if name in self.value and isinstance(dependent, list):
                    self.require_names(dependent, f"required with {name}")
                elif name in self.value:
                    self.apply_in_place(dependent)

    def require_names(self, names: Any, reason: str) -> None:
        self.work.spend(len(names) * LOOK_COST)
        for name in names:
            if name not in self.value:
                self.error(f"missing ({reason})", name)

    def compare(self, keywords: Any, types: str) -> None:
        if "type" in keywords:
            names = type_names(keywords)
            if not {*names}.intersection(types.split()):
                self.refuse_type(names, " or ".join(names))
        if "enum" in keywords and not self.failures:
            values, text = self.validator.choices(keywords["enum"])
            self.require(hashable(self.value) in values, text)
        if "const" in keywords and not self.failures:
            constant = keywords["const"]
            self.require(hashable(self.value) == hashable(constant), quote(constant))

    def refuse_type(self, types: Iterable[str], expected: str) -> None:
        self.require(False, expected)
        replacement = json_in_text(self.value, {*types})
        if replacement is not None:
            self.repairs.append((self.path, replacement))

    def combine(self, keywords: Any) -> None:
        if "allOf" in keywords:
            self.apply_in_place(*keywords["allOf"])
        for keyword, most in (("anyOf", sys.maxsize), ("oneOf", 1)):
            if keyword in keywords:
                self.any_of(keywords[keyword], most)
        if "not" in keywords and not self.apply(keywords["not"], self.value).failures:
            self.error("not allowed")
        if "if" in keywords:
            condition = self.apply(keywords["if"], self.value)
            if condition.failures:
                self.apply_in_place(keywords.get("else", True))
            else:
                self.evaluated |= condition.evaluated
                self.apply_in_place(keywords.get("then", True))
        if "$ref" in keywords:
            self.apply_in_place(
                self.validator.resolve_ref(self.scope[-1], keywords["$ref"]))
        if "$dynamicRef" in keywords:
            self.apply_in_place(
                self.validator.resolve_dynamic_ref(self.scope, keywords["$dynamicRef"]))

    def any_of(self, schemas: list[Any], most: int) -> None:
        """Take the result of the first branch that matches, or errors if none does."""
        branches = [self.apply(schema, self.value) for schema in schemas]
        matching = [branch for branch in branches if not branch.failures]
        if not matching:
            return self.add_errors_of_best(branches)
        self.evaluated.update(*(branch.evaluated for branch in matching))
        if matching[0].result is not self.value:
            self.result = matching[0].result
        self.require(len(matching) <= most, "one alternative to fit", len(matching))

    def add_errors_of_best(self, branches: list[Evaluation]) -> None:
        """No branch matches: note the errors of the best one, or what all expect.

        A branch that fails in parts of the value is better than one that fails by type.
        """
        others, all_expected, types = [], {}, []
        for branch in branches:
            path, _, expected = branch.errors[0]
            if expected and path == self.path:
                all_expected[expected] = True
                types += type_names(branch.schema)
            else:
                others.append(branch)
        if others:
            self.add_errors(min(others, key=lambda branch: branch.failures))
        else:
            self.refuse_type(types, " or ".join(all_expected))


IN_PLACE_KEYWORDS = {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef"}
BOUNDS = (("at most", operator.le), ("at least", operator.ge),
          ("less than", operator.lt), ("more than", operator.gt))
APPLIERS: Any = {  # type: what applies its keywords, and its `unevaluated…` keyword
    "integer number": (Evaluation.number, ""), "number": (Evaluation.number, ""),
    "string": (Evaluation.text, ""),
    "array": (Evaluation.array, "unevaluatedItems"),
    "object": (Evaluation.object, "unevaluatedProperties")}


def is_multiple(value: Any, unit: Any) -> bool:
    if isinstance(value, int) and isinstance(unit, int):
        return value % unit == 0
    from fractions import Fraction

    def exact(number: Any) -> Fraction:  # as it is written: 0.1 is a tenth
        return Fraction(number if isinstance(number, int) else str(number))

    return abs(value) < float("inf") and exact(value) % exact(unit) == 0


def pattern_matches(pattern: str, text: str) -> bool:
    if len(text) > MAX_SUBJECT:
        raise TooMuchWork(f"no pattern is tried on over {MAX_SUBJECT} characters")
    return compile_pattern(pattern).search(text) is not None


def json_in_text(value: Any, types: set[str]) -> Any:
    """The JSON that a text contains, if it is of one of these types; or else None."""
    if not isinstance(value, str) or value != value.strip():
        return None
    try:  # as strict as for a message
        content = decode(value.encode("utf-8", "surrogatepass"), MAX_NESTING)
    except McpError:
        return None
    # Not json_types(): 5.0 is an integer, but "5.0" is not taken for one.
    names = JSON_TYPES[type(content)].split()
    return content if types.intersection(names) else None


# The metaschema: a bad schema is refused with a readable line, as a bad value is.


def list_of(item: Any) -> Json:
    return {"type": "array", "items": item}


def map_of(item: Any) -> Json:
    return {"type": "object", "additionalProperties": item}


SUBSCHEMA = {"$ref": "#"}
TEXT_SCHEMA = {"type": "string"}
NUMBER_SCHEMA = {"type": "number"}
PATTERN_SCHEMA = Schema(TEXT_SCHEMA, compile_pattern)
TYPE_SCHEMA = {"enum": ["null", "boolean", "integer", "number", "string", "array",
                        "object"]}
KEYWORDS: Any = (  # the schema of its value, and the keyword
    (SUBSCHEMA, "not if then else contains additionalItems unevaluatedItems "
              "propertyNames additionalProperties unevaluatedProperties"),
    (list_of(SUBSCHEMA), "allOf anyOf oneOf prefixItems"),
    ({"anyOf": [SUBSCHEMA, list_of(SUBSCHEMA)]}, "items"),
    (map_of(SUBSCHEMA), "properties dependentSchemas $defs definitions"),
    ({**map_of(SUBSCHEMA), "propertyNames": PATTERN_SCHEMA}, "patternProperties"),
    (map_of(list_of(TEXT_SCHEMA)), "dependentRequired"),
    (map_of({"anyOf": [SUBSCHEMA, list_of(TEXT_SCHEMA)]}), "dependencies"),
    (TEXT_SCHEMA, "$ref $dynamicRef $id $anchor $dynamicAnchor"),
    (PATTERN_SCHEMA, "pattern"),
    (NUMBER_SCHEMA, "maximum exclusiveMaximum minimum exclusiveMinimum"),
    ({**NUMBER_SCHEMA, "exclusiveMinimum": 0}, "multipleOf"),
    ({"type": "integer", "minimum": 0}, "maxLength minLength maxItems minItems "
                                        "maxProperties minProperties "
                                        "maxContains minContains"),
    ({"anyOf": [TYPE_SCHEMA, list_of(TYPE_SCHEMA)]}, "type"),
    (list_of(TEXT_SCHEMA), "required"),
    ({"type": "array"}, "enum"),
    ({"type": "boolean"}, "uniqueItems"),
    ({"pattern": r"^https?://json-schema\.org/(draft/2020-12|draft-07)/schema#?$"},
     "$schema"),
)
METASCHEMA: Any = {
    "$id": "https://json-schema.org/draft/2020-12/schema",
    "type": ["object", "boolean"],
    "properties": {keyword: schema for schema, keywords in KEYWORDS
                   for keyword in keywords.split()},
}


@lru_cache(maxsize=1)
def metaschema() -> Validator:
    return Validator(METASCHEMA)


# Hints.  Each becomes a Schema, which can also construct the object of a value.

NULL_SCHEMA = Schema({"type": "null"})
SIMPLE_SCHEMAS = {
    str: Schema(TEXT_SCHEMA), bool: Schema({"type": "boolean"}),
    int: Schema({"type": "integer"}, int), float: Schema(NUMBER_SCHEMA, float),
    object: Schema({}), None: NULL_SCHEMA, type(None): NULL_SCHEMA}
FORMATS: Any = {  # by the names of classes, which need not be imported
    "datetime.datetime": {"format": "date-time"},
    "datetime.date":     {"format": "date"},
    "datetime.time":     {"format": "time"},
    "uuid.UUID":         {"format": "uuid"},
    "decimal.Decimal":   {"type": ["string", "number"], "format": "decimal"},
    "pathlib.PurePath":  {"format": "path"},
    "builtins.bytes":    {"contentEncoding": "base64"},
}


def parse_format(cls: Any, text: str) -> Any:
    """The object that a text of one of these formats stands for."""
    if issubclass(cls, bytes):
        from base64 import b64decode

        return b64decode(text, validate=True)
    if not hasattr(cls, "fromisoformat"):
        return cls(text)
    # RFC 3339, for Python before 3.11: no Z, six digits after the point
    text = re.sub(r"\.(\d+)", lambda part: "." + part[1][:6].ljust(6, "0"), text)
    return cls.fromisoformat(re.sub("[zZ]$", "+00:00", text))


def qualified_name(thing: Any) -> str:
    """package.Name of a class, or of the origin of a hint.

    Of the module only the first part: pathlib is a package since 3.13.
    """
    thing = getattr(thing, "__origin__", thing)
    if type(thing).__name__ == "UnionType":
        return "typing.Union"
    package = str(getattr(thing, "__module__", "")).partition(".")[0]
    name = getattr(thing, "__name__", None) or getattr(thing, "_name", None)
    return f"{package.replace('_extensions', '')}.{name}"


def enum_schema(members: Iterable[Any]) -> Schema:
    by_value = {hashable(to_json_data(member)): member for member in members}
    values = [*map(to_json_data, by_value.values())]
    types = {json_types(value).split()[0] for value in values}
    common = {"type": types.pop()} if len(types) == 1 else {}
    return Schema({**common, "enum": values}, lambda value: by_value[hashable(value)])


def array_schema(args: Any, read: Any, make: Any = None) -> Schema:
    keywords: Any = {"type": "array"}
    if make is tuple and args and args[-1] is not ...:
        keywords["prefixItems"] = [*map(read, args)]
        keywords.update(minItems=len(args), maxItems=len(args))
    elif args:
        keywords["items"] = read(args[0])
    if make in (set, frozenset):
        keywords["uniqueItems"] = True
    return Schema(keywords, make)


def mapping_schema(args: Any, read: Any) -> Schema:
    key, value = map(read, args or (str, object))
    if key.get("type") != "string":
        raise TypeError("the keys of a JSON object are str")
    values = {"additionalProperties": value} if value else {}
    return Schema({"type": "object", **values})


def union_schema(args: Any, read: Any) -> Schema:
    return Schema({"anyOf": [*map(read, args)]})


def inner_schema(args: Any, read: Any) -> Schema:
    return read(args[0])  # type: ignore[no-any-return]


# The schema of each generic type: a function of its arguments, and of the function that
# makes the schemas of those.
GENERIC_SCHEMAS: dict[str, Callable[[Any, Any], Schema]] = {
    "typing.Any":                  lambda args, read: SIMPLE_SCHEMAS[object],
    "typing.Union":                union_schema,
    "typing.Literal":              lambda args, read: enum_schema(args),
    "typing.Required":             inner_schema,
    "typing.NotRequired":          inner_schema,
    "typing.ReadOnly":             inner_schema,
    "builtins.list":               array_schema,
    "collections.Sequence":        array_schema,
    "collections.MutableSequence": array_schema,
    "collections.Iterable":        array_schema,
    "collections.Collection":      array_schema,
    "builtins.tuple":              partial(array_schema, make=tuple),
    "builtins.set":                partial(array_schema, make=set),
    "collections.Set":             partial(array_schema, make=set),
    "collections.MutableSet":      partial(array_schema, make=set),
    "builtins.frozenset":          partial(array_schema, make=frozenset),
    "builtins.dict":               mapping_schema,
    "collections.Mapping":         mapping_schema,
    "collections.MutableMapping":  mapping_schema,
}


def schema_of_hint(hint: Any, output: bool = False,
                   trail: tuple[Any, ...] = ()) -> Schema:
    """The schema of a hint, for input or for output.  TypeError: it has none.

    trail: the hints that this one is part of, to find recursion.
    """
    if (hint is None or type(hint) is type) and hint in SIMPLE_SCHEMAS:
        return SIMPLE_SCHEMAS[hint]
    if hint in trail:
        name = getattr(hint, "__qualname__", hint)
        raise TypeError(f"{name} is recursive, and a schema here is inline")
    read = partial(schema_of_hint, output=output, trail=(*trail, hint))
    if hasattr(hint, "__metadata__"):
        return annotated_schema(read(hint.__origin__), hint.__metadata__)
    reader = GENERIC_SCHEMAS.get(qualified_name(hint))
    if reader:
        return reader(getattr(hint, "__args__", ()), read)
    if isinstance(hint, type):
        return class_schema(hint, read, output)
    for inner in ("__supertype__", "__value__", "type"):  # NewType, `type`, InitVar
        if hasattr(hint, inner):
            return read(getattr(hint, inner))
    raise TypeError(f"{hint!r} cannot be described as JSON Schema")


def annotated_schema(node: Schema, metadata: Any) -> Schema:
    """Add the metadata of Annotated: a description, keywords, or a pydantic Field."""
    for extra in metadata:
        if isinstance(extra, str):
            node = node.plus({"description": extra})
        elif isinstance(extra, dict):
            node = node.plus(extra)
        elif type(extra).__name__.endswith(("Validator", "Serializer")):
            raise TypeError(f"{type(extra).__name__} is run by pydantic only; check "
                            "the value in the function")
        else:
            node = node.plus(field_keywords(extra, node))
    Validator(node)  # SchemaError now, if a keyword is wrong
    return node


CONSTRAINTS = {  # attributes of a Field, and of the objects of annotated_types
    "ge": "minimum", "gt": "exclusiveMinimum",
    "le": "maximum", "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf", "pattern": "pattern"}
LENGTH_KEYWORDS = {"string": "{}Length", "array": "{}Items", "object": "{}Properties"}


def field_keywords(field: Any, node: Schema) -> Json:
    """The keywords of a pydantic Field, or of any object that has its attributes."""
    keywords: Json = {}
    for name in "title", "description", "examples":
        value = getattr(field, name, None)
        if isinstance(value, (str, list)):
            keywords[name] = value
    alternatives = [node, *node.get("anyOf", ())]
    length = next((LENGTH_KEYWORDS[schema["type"]] for schema in alternatives
                   if schema.get("type") in LENGTH_KEYWORDS), "")
    names = {**CONSTRAINTS, "min_length": length.format("min"),
             "max_length": length.format("max")}
    inner = getattr(field, "metadata", ())
    for part in (field, *(inner if isinstance(inner, (list, tuple)) else ())):
        values = {keyword: getattr(part, name, None) for name, keyword in names.items()}
        keywords.update({keyword: getattr(value, "pattern", value)
                         for keyword, value in values.items() if keyword
                         and isinstance(value, (int, float, str, re.Pattern))})
    extra = getattr(field, "json_schema_extra", None)
    return {**keywords, **(extra if isinstance(extra, dict) else {})}


class AnnotatedField:
    """The hint of a parameter whose default is a pydantic Field, like Annotated."""

    def __init__(self, hint: Any, field: Any) -> None:
        self.__origin__, self.__metadata__ = hint, (field,)


def model_schema(cls: Any, output: bool) -> Schema:
    """The schema of a class that describes and validates itself, as pydantic's do."""
    try:
        schema = cls.model_json_schema(mode="serialization" if output else "validation")
    except Exception as error:
        raise TypeError(f"{cls.__qualname__} has no JSON Schema: {error}") from None

    def make(value: Any) -> Any:
        try:
            return cls.model_validate(value)
        except ValueError as error:
            problems = [".".join(map(str, one["loc"])) + f": {one['msg']}"
                        for one in getattr(error, "errors", list)()]
            raise ValueError("; ".join(problems) or str(error)) from None

    return Schema(inline_definitions(schema, schema.pop("$defs", {}), ()), make)


def inline_definitions(schema: Any, definitions: Json, trail: tuple[str, ...]) -> Any:
    """Replace references by their definitions, and remove titles."""
    if isinstance(schema, list):
        return [inline_definitions(item, definitions, trail) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inlined = {
        key: value if key in ("default", "examples", "enum", "const") else
        inline_definitions(value, definitions, trail)
        for key, value in schema.items()
        if key not in ("$ref", "discriminator", "title", "properties")}
    if "properties" in schema:  # whose names may be those of keywords
        inlined["properties"] = {
            name: inline_definitions(part, definitions, trail)
            for name, part in schema["properties"].items()}
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in trail:
        raise TypeError(f"{name} is recursive, and a schema here is inline")
    if name in definitions:
        target = inline_definitions(definitions[name], definitions, (*trail, name))
        inlined = {**target, **inlined}
    return inlined


def class_schema(cls: Any, read: Any, output: bool) -> Schema:
    if issubclass(cls, enum.Enum):
        return enum_schema(cls)
    if hasattr(cls, "model_json_schema") and hasattr(cls, "model_validate"):
        return model_schema(cls, output)
    names = map(qualified_name, cls.__mro__)
    format = next((name for name in names if name in FORMATS), "")
    if format:
        return Schema({"type": "string", **FORMATS[format]},
                      lambda value: parse_format(cls, str(value)))
    return object_schema(parts_of(cls, output), read, output,
                         make=lambda value: cls(**value))


def parts_of(cls: Any, output: bool) -> list[Any]:
    """(name, hint, default) of each field of a class; the default may be MISSING."""
    hints = hints_of(cls)
    if hasattr(cls, "__dataclass_fields__"):
        return dataclass_parts(cls, hints, output)
    if hasattr(cls, "__required_keys__"):
        # `__required_keys__` ignores Required and NotRequired within quoted hints.
        marks = {"typing.Required": MISSING, "typing.NotRequired": UNSTATED}
        required = {name: MISSING for name in cls.__required_keys__}
        return [(name, hint, marks.get(qualified_name(hint),
                                       required.get(name, UNSTATED)))
                for name, hint in hints.items()]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return [(name, hints.get(name, object), cls._field_defaults.get(name, MISSING))
                for name in cls._fields]
    raise TypeError(f"{cls.__qualname__} cannot be described as JSON Schema; a "
                    "dataclass, a TypedDict, a NamedTuple and an Enum can")


def dataclass_parts(cls: Any, hints: Any, output: bool) -> list[Any]:
    """The parameters of its constructor; for output the fields of its objects."""
    import dataclasses

    missing = dataclasses.MISSING
    arguments = [
        field for field in cls.__dataclass_fields__.values()
        if field.init and qualified_name(hints[field.name]) != "typing.ClassVar"]
    parts = []
    for field in dataclasses.fields(cls) if output else arguments:
        default = field.default
        if default is missing:
            default = MISSING if field.default_factory is missing else UNSTATED
        parts.append((field.name, hints[field.name], default))
    return parts


def object_schema(parts: list[Any], read: Any, output: bool = False,
                  loose: bool = False, make: Any = None) -> Schema:
    """The schema of an object with these parts, see parts_of().

    loose: a part that cannot be described may be anything.
    """
    properties, required = {}, []
    for name, hint, default in parts:
        try:
            properties[name] = field_schema(read(hint), UNSTATED if output else default)
        except (TypeError, ValueError) as error:
            if not loose:
                raise TypeError(f"{name}: {error}") from None
            properties[name] = SIMPLE_SCHEMAS[object]
        if default is MISSING:
            required.append(name)
    keywords: Json = {"type": "object", "properties": properties}
    if required:
        keywords["required"] = required
    if not output:  # a result may be of a subclass with more fields
        keywords["additionalProperties"] = False
    return Schema(keywords, make)


def field_schema(node: Schema, default: Any) -> Schema:
    """Add a default to the schema of a field."""
    if default is MISSING or default is UNSTATED:
        return node
    if default is None:
        return optional_schema(node)
    try:
        return node.plus({"default": to_json_data(default)})
    except (TypeError, ValueError):  # the default has no JSON form
        return node


def optional_schema(node: Schema) -> Schema:
    """Describe `Optional[X] = None` as X; a null argument counts as missing."""
    others = [schema if isinstance(schema, Schema) else Schema(schema)
              for schema in node.get("anyOf", ()) if schema != NULL_SCHEMA] or [node]
    keywords = {keyword: node[keyword] for keyword in node if keyword != "anyOf"}
    first = others[0] if len(others) == 1 else Schema({"anyOf": others}, node.make)
    return Schema({**first, **keywords}, first.make, optional=True)


def hints_of(thing: Any, **names: Any) -> dict[str, Any]:
    """The evaluated hints of a function or class; names: known besides its globals."""
    parts = getattr(thing, "__mro__", [thing])[::-1]
    hints = {name: hint
             for part in parts for name, hint in annotations_of(part).items()}
    # A quote in the repr means text inside; only then typing is needed.  (Literal['x']
    # has one too: harmless.)
    if not any(type(hint) is not type and "'" in repr(hint) for hint in hints.values()):
        return hints
    import typing

    names.update(vars(typing))  # also for imports under TYPE_CHECKING
    for part in parts:
        names.update(getattr(sys.modules.get(part.__module__), "__dict__", {}))
    evaluated = {}
    for name, hint in hints.items():
        try:  # twice, for quotes within quotes
            evaluated[name] = evaluate_hint(evaluate_hint(hint, names), names)
        except Exception as error:
            if name != "return":  # an unknown return type means no output schema
                raise TypeError(f"{name}: {hint!r}: {error}") from None
    return evaluated


def annotations_of(part: Any) -> dict[str, Any]:
    try:
        return getattr(part, "__annotations__", {})
    except NameError:  # from Python 3.14 on they are evaluated here (PEP 649 and 749)
        import annotationlib  # type: ignore[import-not-found,unused-ignore]

        return annotationlib.get_annotations(  # type: ignore[no-any-return]
            part, format=annotationlib.Format.STRING)


def evaluate_hint(hint: Any, names: dict[str, Any]) -> Any:
    import typing

    if sys.version_info < (3, 10):  # noqa: UP036
        hint = without_bars(hint)
    holder = type("", (), {"__annotations__": {"it": hint}})
    return typing.get_type_hints(holder, names, include_extras=True)["it"]


def without_bars(hint: Any) -> Any:
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


# Results.  A return hint becomes an output schema, and results are validated with it.


class OutputSchema:
    """The output schema of a tool, or None, and the validation of results with it."""

    def __init__(self, schema: Json | None, wrapped: bool = False,
                 foreign: bool = False) -> None:
        self.schema, self.wrapped, self._foreign = schema, wrapped, foreign

    @cached_property
    def _validator(self) -> Validator | SchemaError:
        try:
            return Validator(self.schema, self._foreign)
        except SchemaError as error:
            return error

    def problems(self, value: Any, seconds: float = float("inf")) -> list[str]:
        """A readable line for each problem; that it takes over `seconds` is one."""
        if isinstance(self._validator, SchemaError):
            return [str(self._validator)]
        try:
            return self._validator.problems(value, seconds)
        except TooMuchWork as error:
            return [str(error)]


def output_schema_of(hint: Any) -> tuple[Any, bool]:
    """The output schema of a return hint, and whether it describes {"result": …}.

    None for text, content blocks, Any, and what has no schema.
    """
    try:
        node = schema_of_hint(hint, output=True)
    except (TypeError, ValueError):
        return None, False
    bare = node.keys() <= {"type", "description"}
    if bare and node.get("type") in (None, "string", "null", "array"):
        return None, False
    return structured_schema(json.loads(json.dumps(node)))  # without constructors


def structured_schema(schema: Json) -> tuple[Json, bool]:
    """A schema for structured content, and whether it describes {"result": …}."""
    if schema.get("type") == "object":
        return schema, False
    return {"type": "object", "properties": {"result": schema}, "required": ["result"],
            WRAPS_RESULT: True}, True


MAX_INT_BITS = 14_284  # 4,300 digits: Python does not write longer integers


def to_json_data(value: Any, depth: int = 0) -> Any:
    """Convert a value to JSON data.

    A dataclass or NamedTuple becomes an object, an Enum its value, a set an array,
    bytes base64; dates, UUIDs, paths and decimals become text.  TypeError: it has no
    JSON form.  ValueError: NaN, infinity, a huge integer, a cycle, or nested too deep.
    """
    if depth > MAX_NESTING:
        raise ValueError(f"nested over {MAX_NESTING} levels, or a part of itself")
    if isinstance(value, enum.Enum):
        return to_json_data(value.value, depth + 1)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        if not abs(value) < float("inf") if isinstance(value, float) else (
                value.bit_length() > MAX_INT_BITS):
            raise ValueError("NaN, infinity, integers over 4,300 digits are not JSON")
        return value
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = sys.modules["dataclasses"].fields(value)
        value = {field.name: getattr(value, field.name) for field in fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {json_key(key): part_as_json(key, item, depth)
                for key, item in value.items()}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [part_as_json(index, item, depth) for index, item in enumerate(value)]
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json", by_alias=True)
    return format_value(value)


def part_as_json(key: Any, item: Any, depth: int) -> Any:
    try:
        return to_json_data(item, depth + 1)
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def json_key(key: Any) -> str:
    text = to_json_data(key)
    return text if isinstance(text, str) else json.dumps(text)


def format_value(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return to_base64(bytes(value))
    if any(name in FORMATS for name in map(qualified_name, type(value).__mro__)):
        return str(value.isoformat() if hasattr(value, "isoformat") else value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


# Signatures.  A function's parameters become a schema, and arguments are bound to them.

POSITIONAL_ONLY = 0        # the kinds of parameters, as numbered in inspect
POSITIONAL_OR_KEYWORD = 1
VAR_POSITIONAL = 2
KEYWORD_ONLY = 3
VAR_KEYWORD = 4
CO_VARARGS = 4             # flags of a function's code, as in inspect
CO_VARKEYWORDS = 8
CO_COROUTINE = 128


def unwrap(fn: Any) -> Any:
    """The function inside of decorators, partial, methods and callable objects."""
    for name in ("__wrapped__", "func", "__func__"):
        if hasattr(fn, name):
            return unwrap(getattr(fn, name))
    return fn if hasattr(fn, "__code__") else type(fn).__call__


def is_async(fn: Any) -> bool:
    code = getattr(unwrap(fn), "__code__", None)
    return code is not None and code.co_flags & CO_COROUTINE > 0


def parameters_of(fn: Any, function: Any) -> list[Any]:
    """(name, kind, default) of each parameter; function: see `unwrap`.

    For a plain function without inspect, which takes 10 ms to import.
    """
    if fn is not function:
        import inspect

        try:
            parameters = inspect.signature(fn).parameters.values()
        except ValueError as error:  # some built-in functions have no signature
            raise TypeError(f"list: {error}") from None
        return [(p.name, p.kind, MISSING if p.default is p.empty else p.default)
                for p in parameters]
    code = fn.__code__
    positional = code.co_varnames[:code.co_argcount]
    kinds = [POSITIONAL_ONLY] * code.co_posonlyargcount
    kinds += [POSITIONAL_OR_KEYWORD] * (len(positional) - len(kinds))
    kinds += [KEYWORD_ONLY] * code.co_kwonlyargcount
    if code.co_flags & CO_VARARGS:
        kinds.append(VAR_POSITIONAL)
    if code.co_flags & CO_VARKEYWORDS:
        kinds.append(VAR_KEYWORD)
    defaults = dict(zip(reversed(positional), reversed(fn.__defaults__ or ())))
    defaults.update(fn.__kwdefaults__ or {})
    return [(name, kind, defaults.get(name, MISSING))
            for name, kind in zip(code.co_varnames, kinds)]


EXACT_TYPES = {  # values of these need no validation; a float could be infinite
    "string": str, "boolean": bool, "integer": int, "object": dict}


class Signature:
    """The schema of a function's parameters, and the binding of arguments to them.

    node: the Schema of the hints.  given_schema: the schema that the user gave; then
    arguments must match both.  context: the name of the parameter of `context_type`, or
    "".  returns: the return hint.  TypeError: a parameter cannot be described.
    """

    def __init__(self, fn: Any, context_type: Any = None, schema: Any = None) -> None:
        self.fn = fn.__func__ if isinstance(fn, staticmethod) else fn  # for Python 3.9
        self.function = unwrap(self.fn)
        self.given_schema = schema
        self.context = ""
        self.is_async = is_async(self.function)
        self._positional: list[Any] = []  # (name, default) of positional-only ones
        self._defaults: dict[str, Any] = {}  # name: function, of pydantic Fields
        try:
            self.node = self._describe(context_type)
        except TypeError as error:
            name = getattr(self.function, "__qualname__", self.fn)
            raise TypeError(f"{name}(): parameter {error}") from None
        self._required = frozenset(self.node.get("required", ()))
        self._exact: Any = None if schema is not None else {
            name: EXACT_TYPES.get(part.get("type"))
            for name, part in self.node["properties"].items()
            if getattr(part, "make", None) in (None, int)
            and part.keys() <= {"type", "description", "default"}}

    def _describe(self, context_type: Any) -> Schema:
        context = {context_type.__name__: context_type} if context_type else {}
        hints = hints_of(self.function, **context)
        self.returns = hints.get("return", object)
        parts, extra = [], {}
        for name, kind, default in parameters_of(self.fn, self.function):
            hint = hints.get(name, object)
            # Also within Context | None and Annotated[Context, …].
            inner = hint, getattr(hint, "__origin__", 0), *getattr(hint, "__args__", ())
            if kind == POSITIONAL_ONLY:
                self._positional.append((name, default))
            if context and context_type in inner:
                if self.context:
                    raise TypeError(f"{name}: a second Context")
                self.context = name
            elif kind == VAR_KEYWORD and self.given_schema is not None:
                extra = {"additionalProperties": True}
            elif kind in (VAR_POSITIONAL, VAR_KEYWORD):
                raise TypeError(f"{name}: *args and **kwargs cannot be described")
            elif hasattr(default, "is_required") and hasattr(default, "metadata"):
                parts.append((name, AnnotatedField(hint, default),
                              self._default_of(name, default)))
            else:
                parts.append((name, hint, default))
        loose = self.given_schema is not None
        return object_schema(parts, schema_of_hint, loose=loose).plus(extra)

    def _default_of(self, name: str, field: Any) -> Any:
        """The default of a parameter whose default is a pydantic Field."""
        if field.is_required():
            return MISSING
        self._defaults[name] = partial(field.get_default, call_default_factory=True)
        return UNSTATED if field.default_factory else field.default

    def bind(self, arguments: dict[str, Any], strict: bool = False) -> dict[str, Any]:
        """Return the keyword arguments to call with; ValidationError: they are invalid.

        Unless `strict`, text that contains JSON of the right type is converted: "5" to
        5, "true" to True, "[1]" to [1].
        """
        if self._matches_exactly(arguments):
            return dict(arguments)
        try:
            for validator in self._validators:
                arguments = validator.coerce(arguments, strict)
            return dict(arguments)
        except SchemaError as error:  # the schema is valid: it is too much work
            raise ValidationError([((), str(error), "")]) from None

    def _matches_exactly(self, arguments: dict[str, Any]) -> bool:
        """Are these so simple that they need no validation?  Most are."""
        if self._exact is None or not self._required <= arguments.keys():
            return False
        for name, value in arguments.items():
            if self._exact.get(name) is not type(value):
                return False
        return True

    @cached_property
    def _validators(self) -> list[Validator]:
        schemas = [self.node] if self.given_schema is None else [
            self.given_schema, self.node]
        return [*map(Validator, schemas)]

    def call(self, arguments: dict[str, Any]) -> Any:
        """Call the function with the arguments from bind(), and the context."""
        if not (self._positional or self._defaults):
            return self.fn(**arguments)
        for name, default in self._defaults.items():
            if name not in arguments:
                arguments[name] = default()
        args = [arguments.pop(name, default) for name, default in self._positional]
        return self.fn(*args, **arguments)

    @cached_property
    def description(self) -> str:
        """The docstring, without the parameters if the schema describes them."""
        doc = self.function.__doc__ or ""
        if self.given_schema is not None:
            return dedent(doc).strip()
        return split_docstring(doc)[0]

    @cached_property
    def schema(self) -> Any:
        """The inputSchema; descriptions come from Annotated or from the docstring."""
        if self.given_schema is not None:
            return self.given_schema
        descriptions = split_docstring(self.function.__doc__ or "")[1]
        return {**self.node, "properties": {
            name: {"description": descriptions[name], **part}
            if name in descriptions else part
            for name, part in self.node["properties"].items()}}


# Google, NumPy, Sphinx: patterns of the section on parameters, and of each in it.
DOC_STYLES = (
    (r"^(?:Args|Arguments|Parameters|Params):[ \t]*\n((?:[ \t]+\S.*\n|[ \t]*\n)+)",
     r"^\*{0,2}(\w+)[ \t]*(?:\(.*?\))?:[ \t]*(.*\n(?:[ \t]+.*\n|\n)*)"),
    (r"^Parameters\n-{3,}[ \t]*\n((?:(?!.*\n-{3,}).*\n)+)",
     r"^\*{0,2}(\w+)(?:[ \t]*:.*)?\n((?:[ \t]+.*\n|\n)*)"),
    (r"((?:^:param\b.*\n(?:[ \t]+.*\n)*)+)",
     r"^:param (?:[^:\n]*[ ])?\*{0,2}(\w+):(.*\n(?:[ \t]+.*\n)*)"),
)


def dedent(text: str) -> str:
    head, *lines = text.expandtabs().split("\n")
    margins = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    dedented = (line[min(margins, default=0):].rstrip() for line in lines)
    return "\n".join([head.strip(), *dedented])


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its section on parameters, and the description of each."""
    text = dedent(doc).rstrip() + "\n"
    text = re.sub(r"(?m)^:type\b.*\n(?:[ \t]+.*\n)*", "", text)
    descriptions: dict[str, str] = {}
    remarks = ""
    for section, entry in DOC_STYLES:
        for body in re.findall(section, text, re.MULTILINE):
            body = dedent("\n" + body) + "\n"
            for name, description in re.findall(entry, body, re.MULTILINE):
                descriptions[name] = " ".join(description.split())
            # Other lines of the section stay: a model should read them too.
            remark = re.sub(entry, "", body, flags=re.MULTILINE).strip()
            remarks += f"\n\n{remark}" if remark else ""
        text = re.sub(section, "", text, flags=re.MULTILINE)
    return (text.strip() + remarks).strip(), descriptions


# URI templates, used backwards: from a URI to the values of the variables.

ONE_SEGMENT, ANY_SEGMENTS = "[^/?#]+?", "[^?#]+?"  # what a variable may match


def atomic_group(literal: str, name: str, value: str) -> str:
    """A variable and the first literal after it, as an atomic group.

    `(?=(?P<x>...))(?P=x)` matches once and never backtracks (Python has atomic groups
    only from 3.11 on).  So a URI of a few thousand dashes takes no time with
    `{y}-{m}-{d}`.  No match is lost if the next variable may match at least as much.
    """
    return f"(?=(?P<{name}>{value}){literal})(?P={name}){literal}"


class UriTemplate:
    """An RFC 6570 template that is matched with URIs.

    `{x}` and `{/x}` match no slash, not even as %2F; `{+x}` and `{x*}` do.  `{?x,y}`
    and `{&x}` match in any order, and none is required.  No variable matches a path
    with a `..` segment or a NUL; `{+x}` and `{x*}` match no absolute path and no drive.
    ValueError: another operator.  literal: the number of characters outside braces; of
    several matching templates, prefer the one with most.
    """

    def __init__(self, text: str) -> None:
        parts = re.split(r"\{([+/?&]?)([A-Za-z_]\w*\*?(?:,[A-Za-z_]\w*\*?)*)\}", text)
        self.literal = sum(map(len, parts[::3]))
        self.names = re.findall(r"\w+", " ".join(parts[2::3]))
        self._one_segment: set[str] = set()  # names in `{x}` and `{/x}`
        self._query: set[str] = set()        # names in `{?x}` and `{&x}`
        repeated = len({*self.names}) < len(self.names)
        if repeated or re.search("[{}]", "".join(parts[::3])):
            raise ValueError(f"{text!r} is not a URI template that can be matched")
        signs = ["+" if "*" in names else sign
                 for sign, names in zip(parts[1::3], parts[2::3])]
        pattern = re.escape(parts[0])
        for sign, names, literal, following in zip(
                signs, parts[2::3], parts[3::3], [*signs[1:], "end"]):
            pattern += self._pattern(sign, re.findall(r"\w+", names),
                                     re.escape(literal), following)
        self._regex = re.compile(pattern, re.DOTALL)

    def _pattern(self, operator: str, names: list[str], literal: str,
                 following: str) -> str:
        """The pattern of an expression and the literal text after it.

        following: the operator of the next expression, or "end".
        """
        if operator in ("?", "&"):
            self._query.update(names)
            return rf"(?:\{operator}([^#]*))?" + literal
        value = ANY_SEGMENTS if operator == "+" else ONE_SEGMENT
        if operator != "+":
            self._one_segment.update(names)
        if operator == "/":  # each may be missing
            return "".join(f"(?:/(?P<{name}>{value}))?" for name in names) + literal
        *others, last = names
        pattern = "".join(atomic_group(",", name, value) for name in others)
        if following == "+" or following == "" and operator == "":
            return pattern + atomic_group(literal, last, value)
        return f"{pattern}(?P<{last}>{value}){literal}"

    def match(self, uri: str) -> dict[str, Any] | None:
        """The decoded values of the variables; None: the URI does not match.

        A query variable that occurs twice has a list of values.
        """
        match = self._regex.fullmatch(uri) if len(uri) <= MAX_URI else None
        if not match:
            return None
        values: dict[str, Any] = {name: percent_decode(raw) for name, raw
                                  in match.groupdict().items() if raw is not None}
        query: dict[str, list[str]] = {}
        named_groups = self._regex.groupindex.values()
        for group, text in enumerate(match.groups(), 1):
            for pair in text.split("&") if text and group not in named_groups else ():
                name, _, raw = pair.partition("=")
                query.setdefault(name, []).append(percent_decode(raw))
        decoded = [*values.items()]
        decoded += [(name, text) for name, texts in query.items() for text in texts]
        if query.keys() - self._query or not all(
                self._is_safe(*pair) for pair in decoded):
            return None
        values.update((name, texts if len(texts) > 1 else texts[0])
                      for name, texts in query.items())
        return values

    def _is_safe(self, name: str, text: str) -> bool:
        segments = re.split(r"[/\\]", text)
        if ".." in segments or "\0" in text:
            return False
        if name in self._one_segment:
            return len(segments) == 1 and text != "."
        return segments[0] != "" and not re.match("[A-Za-z]:", text) or text == ""


# -- 10. Server ------------------------------------------------------------------------
# Each request takes four steps, see ServerSession.handle: choose the policy of its era
# (policy_of), validate it (validate_request), call its handler (dispatch), finish the
# result (finalize).  The method handlers are the same for all eras: what differs is in
# ctx.policy, and METHODS says which revisions have the method.


class Context:
    """What a handler can find out and do about the request that it serves.

    A parameter annotated `Context` receives it.  Each call that talks to the client
    raises Cancelled when the client has cancelled the request or is gone.  Usable from
    any thread; when the request has been answered, progress and messages are dropped.

    Methods that ask the client (elicit, sample, list_roots, ask) block until it has
    answered.  In the modern era they end the handler instead, by an exception that
    `except Exception` does not catch, and the handler runs again from the top when the
    answers have come.  So put side effects before a question into `once`.  In that era
    only tools, prompts and resources can ask, and only on the handler's own thread.

    In an `async def` handler await the methods that return something: `await
    ctx.elicit(…)`.  The others act at once, whether awaited or not.
    """

    loop_thread = 0  # the identity of the thread that runs its `async def` handler
    _asked_keys: AbstractSet[Any] = frozenset()
    _pending_calls: tuple[PendingCall, ...] = ()  # all that must have been awaited

    if TYPE_CHECKING:  # see section 12
        request_context: Any
        session: Any
        fastmcp: Any

    def __class_getitem__(cls, item: Any) -> type[Context]:
        return cls  # Context[ServerSession, AppContext] of the official SDK

    def __init__(self, server: Server, incoming: IncomingRequest, policy: Any,
                 server_session: ServerSession | None = None) -> None:
        self.server, self.incoming, self.policy = server, incoming, policy
        self.server_session = server_session  # None for a notification

    request_id = property(lambda self: self.incoming.id,
                          doc="The id of the request, as received.")
    meta = property(lambda self: self.incoming.params.get("_meta") or {},
                    doc="The `_meta` of the request, as received.")
    client_info = property(lambda self: self.policy.client_info,
                           doc="The client's name and version, as a dict.")
    client_capabilities = property(lambda self: self.policy.client_capabilities,
                                   doc="The capabilities that the client has declared.")
    protocol_version = property(lambda self: self.policy.version,
                                doc="The revision in which the request is served.")
    cancelled = property(lambda self: self.incoming.cancelled,
                         doc="True once the request was cancelled or the client left.")
    cancel_reason = property(lambda self: self.incoming.cancel_reason,
                             doc="The reason that the client gave for it, or None.")
    lifespan_context = property(lambda self: self.server.async_runtime.context,
                                doc="The value that the server's `lifespan` yielded.")

    def _call_or_awaitable(self, run: Callable[[], T]) -> T:
        """Return what `run` returns; in an `async def` handler an awaitable of it."""
        if self.loop_thread != threading.get_ident():
            return run()
        self._pending_calls += (PendingCall(run),)
        return self._pending_calls[-1]  # type: ignore[return-value]

    def check_awaited(self) -> None:
        """RuntimeError if the handler has ended without awaiting a result."""
        for call in self._pending_calls:
            if not call.awaited:
                raise RuntimeError(NOT_AWAITED)

    def check_cancelled(self) -> None:
        """Raise Cancelled if the request was cancelled, or the client has gone."""
        if self.incoming.cancelled:
            raise Cancelled()

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds; raise Cancelled when the request is cancelled."""
        return self._call_or_awaitable(partial(self._wait, seconds))

    def _wait(self, seconds: float) -> None:
        self.incoming.connection.reading.hand_over_reading(self.incoming)
        self._cancel_event.wait(min(max(0.0, seconds), threading.TIMEOUT_MAX))
        self.check_cancelled()

    @cached_property
    def _step_results(self) -> Json:  # the policy's own dict: see step_results there
        return self.policy.step_results()  # type: ignore[no-any-return]

    @cached_property
    def _cancel_event(self) -> threading.Event:
        # One for all waits, because a hook cannot be removed.
        event = threading.Event()
        self.incoming.on_cancel(event.set)
        return event

    def notify(self, method: str, params: Json | None = None) -> Awaitable[None]:
        """Send a notification, unless the request has been answered."""
        self.check_cancelled()
        self.incoming.notify(method, params or {})
        return DONE

    def report_progress(self, progress: float, total: float | None = None,
                        message: str | None = None) -> Awaitable[None]:
        """Send a progress notification, if the client has asked for them.

        Progress that does not increase is not sent (basic/utilities/progress).
        """
        self.check_cancelled()
        self.incoming.report_progress(progress, total, message)
        return DONE

    def track(self, iterable: Iterable[Any], total: float | None = None,
              message: str | None = None) -> Iterator[Any]:
        """Yield the items, report progress every 0.1 s, and check for Cancelled."""
        if total is None:
            total = getattr(iterable, "__len__", lambda: None)()
        due = 0.0
        for count, item in enumerate(iterable, 1):
            self.check_cancelled()
            yield item
            if time.monotonic() >= due or count == total:
                self.report_progress(count, total, message)
                due = time.monotonic() + 0.1

    def log(self, level: str, data: Any,
            logger_name: str | None = None) -> Awaitable[None]:
        """Send a log message, if the client has asked for that level.

        data: any JSON value.  ValueError: there is no such level.  debug, info and so
        on are the same without the first argument (server/utilities/logging).
        """
        self.check_cancelled()
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}")
        if self.policy.logs(level):
            self.incoming.notify(LOG_MESSAGE, {
                "level": level, **wire_fields(logger=logger_name),
                "data": to_json_data(data)})
        return DONE

    debug, info = partialmethod(log, "debug"), partialmethod(log, "info")
    notice, warning = partialmethod(log, "notice"), partialmethod(log, "warning")
    error, critical = partialmethod(log, "error"), partialmethod(log, "critical")
    alert, emergency = partialmethod(log, "alert"), partialmethod(log, "emergency")

    def elicit(self, message: str, schema: Any = None, key: str | None = None,
               timeout: float | None = 600, *, response_type: Any = None) -> Elicited:
        """Ask the user to fill in a form; blocks, see Context (client/elicitation).

        schema, or response_type: a dataclass or TypedDict class; a list of choices or a
        scalar type, asked for as the property `value`; a flat JSON Schema of primitives
        and choices; or None, to ask for consent only.  ValueError: a form cannot ask
        for it.  key: the name of the question within this request; give one if the
        order of your questions may change when the handler runs again.  timeout:
        seconds until RequestTimeout; without effect in the modern era.  McpError: the
        client gave invalid answers, or did not declare the capability; in the modern
        era the latter ends the handler, and the client gets the error.
        """
        form = Form(response_type if schema is None else schema)
        params = {"message": message, "requestedSchema": form.schema}
        return self._ask_one("elicitation/create", params, form.read, key, timeout)

    def elicit_url(self, message: str, url: str, elicitation_id: str | None = None,
                   key: str | None = None, timeout: float | None = 600) -> Elicited:
        """Ask the user to visit a URL; "accept" means that the user agreed to open it.

        Blocks; key and timeout are as in `elicit`.  ValueError: not a URL.
        elicitation_id: ignored, because one is generated.
        """
        if not re.match(URI_START, url):
            raise ValueError(f"not a URL: {url!r:.100}")
        return self._ask_one("elicitation/create", {
            "mode": "url", "message": message, "url": url}, read_elicited, key, timeout)

    def sample(self, messages: Any, *, system_prompt: str | None = None,
               max_tokens: int = 512, temperature: float | None = None,
               tools: Any = None, tool_choice: Any = None, key: str | None = None,
               timeout: float | None = 600, **params: Any) -> Sampled:
        """Let the client's model continue a str, a message, or a list of both.

        Blocks; key, timeout and McpError are as in `elicit`.  params: further
        parameters of the request, such as modelPreferences (client/sampling).
        """
        messages = messages if type(messages) is list else [messages]
        params = {
            "messages": [message_of(m) for m in messages], "maxTokens": max_tokens,
            **wire_fields(systemPrompt=system_prompt, temperature=temperature,
                          tools=tools, toolChoice=tool_choice), **params}
        return self._ask_one("sampling/createMessage", params, Sampled, key, timeout)

    def list_roots(self, timeout: float | None = 600) -> list[Json]:
        """The client's roots: uri and name (client/roots); blocks as `elicit`.

        A root is a directory that the client lets this server work in.
        """
        return self._ask_one("roots/list", {}, lambda answer: list(answer["roots"]),
                             None, timeout)

    def ask(self, requests: dict[str, Json],
            timeout: float | None = 600) -> dict[str, Json]:
        """Ask several questions at once; blocks, as `elicit`.

        {key: {"method": …, "params": …}} -> {key: answer}, both as in the protocol.
        ValueError: another method than those of CLIENT_REQUESTS.
        """
        for request in requests.values():
            if request.get("method") not in CLIENT_REQUESTS:
                raise ValueError(f"a client cannot be asked this: {request}")
        return self._ask({key: question_for(r["method"], r.get("params") or {}, dict)
                          for key, r in requests.items()}, timeout, dict)

    def _ask_one(self, method: str, params: Json, make: Callable[[Json], T],
                 key: str | None, timeout: float | None) -> T:
        def only(answers: Json) -> T:
            [answer] = answers.values()
            return answer  # type: ignore[no-any-return]

        return self._ask({key: question_for(method, params, make)}, timeout, only)

    def _ask(self, questions: dict[Any, Question], timeout: float | None,
             pick: Callable[[Json], T]) -> T:
        self.check_cancelled()
        with self.server.lock:  # several threads may ask at once
            number = len(self._asked_keys) + 1  # so their order matters
            questions = {
                key or f"{CLIENT_REQUESTS[question.method]}-{number}": question
                for key, question in questions.items()}
            if self._asked_keys & questions.keys():
                raise ValueError(f"asked before in this request: {[*questions]}")
            self._asked_keys |= questions.keys()
        return self._call_or_awaitable(
            partial(self._ask_policy, questions, timeout, pick))

    def _ask_policy(self, questions: dict[Any, Question], timeout: float | None,
                    pick: Callable[[Json], T]) -> T:
        self.incoming.connection.reading.hand_over_reading(self.incoming)
        return pick(self.policy.ask(self.incoming, questions, timeout))

    def once(self, key: str, run: Callable[[], Any]) -> Any:
        """Run a step with side effects once for this request, and return its result.

        A handler that asks may run again from the top; then this returns the result of
        the first run.  key: the name of the step within this request.  TypeError: the
        result has no JSON form, and so cannot be kept.  In an `async def` handler `run`
        may be `async def` too.
        """
        return self._call_or_awaitable(partial(self._once, key, run))

    def _once(self, key: str, run: Callable[[], Any]) -> Any:
        self.check_cancelled()
        if key not in self._step_results:
            value = self.server.await_if_needed(self, run())
            self._step_results[key] = json.loads(encode(to_json_data(value)))
        return self._step_results[key]

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read a resource of this server.  McpError: there is none with this URI."""
        return self._call_or_awaitable(partial(self.server.read, self, uri))


class AwaitableNone:
    """An awaitable of None, for methods that may be awaited but need not be."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()

    def __bool__(self) -> bool:
        return False


DONE: Awaitable[None] = AwaitableNone()


NOT_AWAITED = (
    "an `async def` handler must await what it asks for: `await ctx.elicit(…)`, and "
    "so for sample, list_roots, ask, read_resource, once and wait")


class PendingCall:
    """The awaitable that an `async def` handler gets from a blocking Context method.

    A thread of its own runs the method, so that the event loop is not blocked.
    """

    awaited = False

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def __await__(self) -> Any:
        import asyncio
        from concurrent.futures import Future

        self.awaited = True
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        run = partial(run_into, future, self._run)
        if not start_thread("mcp awaited", run):
            run()
        return asyncio.wrap_future(future).__await__()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(NOT_AWAITED)


def question_for(method: str, params: Json, make: Callable[[Json], Any]) -> Question:
    """A Question; `make` is called with an answer that matches ANSWER_SCHEMAS."""
    validator = Validator(ANSWER_SCHEMAS[method])
    return Question(method, params, lambda answer: make(validator.coerce(answer)))


def read_elicited(answer: Json) -> Elicited:
    return Elicited(answer["action"], elicitation_id=answer.get("elicitationId"))


def form_problem(field: Json) -> str:
    """Why a field cannot be in a form, or "" (client/elicitation, "Requested Schema").

    A form is flat: text, numbers, booleans, a choice of texts, or several choices.
    """
    field_type, items = field.get("type"), field.get("items")
    if field_type == "array":
        choices = isinstance(items, dict) and {"enum", "anyOf"} & items.keys()
        return "" if choices else "a list without fixed choices"
    if field_type not in FORM_TYPES:
        return f"the type is {field_type}, not one of {', '.join(FORM_TYPES)}"
    if field_type != "string" and "enum" in field:
        return "choices that are no text"
    if field.get("format") not in (None, *FORM_FORMATS):
        return f"the format is {field['format']}, not one of {', '.join(FORM_FORMATS)}"
    return ""


def form_field(field: Any) -> Any:
    """Describe a pydantic field that may be null as one that may be missing."""
    if not isinstance(field, Schema) and {"type": "null"} in field.get("anyOf", ()):
        field = optional_schema(Schema(field))
        field.pop("default", None)
    return field


class Form:
    """The form of an elicitation, and the reading of its answer."""

    def __init__(self, requested: Any) -> None:
        is_list = type(requested) in (list, tuple)
        if is_list and not requested:
            raise ValueError("no choices to ask for")
        self._choices = {str(choice): choice for choice in requested} if is_list else {}
        schema: Any = requested
        if is_list:
            schema = {"type": "string", "enum": [*self._choices]}
        elif schema is None:  # consent only
            schema = {"type": "object", "properties": {}}
        elif not isinstance(schema, dict):
            schema = schema_of_hint(schema)
        self._single = type(requested) is not dict and schema.get("type") != "object"
        if self._single:
            schema = {"type": "object", "properties": {"value": schema},
                      "required": ["value"]}
        if isinstance(schema, Schema):
            schema = schema.plus({"properties": {
                name: form_field(field)
                for name, field in schema["properties"].items()}})
        self.schema, self._validator = schema, Validator(schema)
        for name, field in schema.get("properties", {}).items():
            problem = form_problem(field if isinstance(field, dict) else {})
            if problem:
                raise ValueError(f"{name}: a form cannot ask for this: {problem}")

    def read(self, answer: Json) -> Elicited:
        """The answer as an object; ValueError: it does not match the schema."""
        elicited = read_elicited(answer)
        if elicited.action == "accept":
            elicited.content = answer.get("content")
            data = self._validator.coerce(elicited.content)
            data = data["value"] if self._single else data
            elicited.data = self._choices[data] if self._choices else data
        return elicited


def name_of(fn: Any) -> str:
    for attribute in ("func", "__func__"):  # of a partial, of a static method
        fn = getattr(fn, attribute, fn)
    return getattr(fn, "__name__", None) or type(fn).__name__


def check_object(schema: Any, what: str) -> None:
    """SchemaError or ValueError if some clients would refuse the schema of a tool."""
    if schema is None:
        return
    if type(schema) is not dict or schema.get("type") != "object":
        raise ValueError(f'{what} needs "type": "object"')
    Validator(schema)


@lru_cache(maxsize=10000)  # it warns once for each name
def check_tool_name(name: str) -> str:
    """Return the name; ValueError: it is invalid.  Warns if some hosts reject it."""
    if not re.fullmatch(TOOL_NAME, name):
        raise ValueError(f"tool name {name!r}: hosts take {TOOL_NAME}")
    if "." in name or len(name) > 48:
        warn(f"mcp_min: tool name {name!r}: some hosts reject dots, "
             "or over 48 characters\n")
    return name


def write_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def to_text(value: Any) -> str:
    return value if is_text(value) else write_json(to_json_data(value))


class Registration:
    """A registered function: its signature, and its descriptor in a list."""

    list_key = ""       # of the list that it is in
    key_field = "name"  # the field of the descriptor that holds its key
    option_names = "title description icons meta"

    def __init__(self, key: str, fn: Any, options: Json,
                 schema: Json | None = None) -> None:
        options = dict(options)
        self.enabled, tags = options.pop("enabled", True), options.pop("tags", None)
        if tags:  # FastMCP's clients read them there
            options["meta"] = {**(options.get("meta") or {}),
                               "fastmcp": {"tags": sorted(tags)}}
        unknown = options.keys() - set(self.option_names.split())
        if unknown:
            raise TypeError(f"unknown: {', '.join(sorted(unknown))}; known are: "
                            f"{self.option_names} tags enabled")
        self.key = key
        self.serial = 0  # its number in the Registry
        # Converted now, so that the TypeError comes now.
        self.options: Json = to_json_data(wire_fields(**options))
        self.signature = Signature(fn, Context, schema=schema)

    @cached_property
    def descriptor(self) -> Json:  # not at the start, because it reads the docstring
        return {self.key_field: self.key,
                **wire_fields(description=self.signature.description or None),
                **self.options, **self.own_fields()}

    def own_fields(self) -> Json:
        """The fields of the descriptor that other registrations do not have."""
        return {}

    def choices(self) -> dict[str, list[Any]]:
        """The arguments that are declared as a choice, and so can be completed."""
        return {name: schema["enum"] for name, schema
                in self.signature.node["properties"].items() if "enum" in schema}


class Tool(Registration):
    """A tool and its output schema."""

    list_key = "tools"
    option_names = "title description annotations icons meta"

    def __init__(self, fn: Any, *, name: str | None = None,
                 input_schema: Json | None = None, output_schema: Json | None = None,
                 structured_output: bool = True, **options: Any) -> None:
        check_object(input_schema, "input_schema")
        super().__init__(check_tool_name(name or name_of(fn)), fn, options,
                         input_schema)
        self._output = OutputSchema(None)
        if output_schema is not None:
            Validator(output_schema)
            self._output = OutputSchema(*structured_schema(output_schema))
        elif structured_output:
            self._output = OutputSchema(*output_schema_of(self.signature.returns))

    def own_fields(self) -> Json:
        return wire_fields(input_schema=self.signature.schema,
                           output_schema=self._output.schema)

    def result(self, value: Any) -> Json:
        """The result for what the function returned (server/tools, "Tool Result")."""
        schema = self._output.schema
        if is_text(value) and schema is None:
            return {"content": [{"type": "text", "text": str(value)}], "isError": False}
        parts = value if type(value) in (list, tuple) else [value]
        if isinstance(value, ToolResult):
            data = to_json_data(value.structured_content)
            result = ToolResult.of({**value, **wire_fields(structuredContent=data)})
            result.setdefault("isError", False)  # clients read it by key
        elif value is None and schema is None:
            result = ToolResult()
        elif any(isinstance(part, Block) for part in parts):
            result = ToolResult([part if isinstance(part, Block) else to_text(part)
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
        data = to_json_data(value)
        text = value if is_text(value) else write_json(data)
        if type(data) is dict and not self._output.wrapped:
            return ToolResult(text, data)
        return ToolResult(text, {"result": data}, meta=WRAPPED)


class Prompt(Registration):
    """A prompt; its arguments are the parameters of its function."""

    list_key = "prompts"

    def __init__(self, fn: Any, *, name: str | None = None, **options: Any) -> None:
        super().__init__(name or name_of(fn), fn, options)

    def own_fields(self) -> Json:
        schema = self.signature.schema
        required = schema.get("required", ())
        return {"arguments": [
            wire_fields(name=name, description=parameter.get("description"),
                        required=name in required)
            for name, parameter in schema["properties"].items()]}


class Resource(Registration):
    """The resource at a URI, or the resources whose URIs match a template."""

    option_names = "name title description mime_type size annotations icons meta"

    def __init__(self, uri: str, fn: Any, *, name: str | None = None,
                 **options: Any) -> None:
        if not re.match(URI_START, uri):
            raise ValueError(f"a resource needs a URI with a scheme, not {uri!r:.100}")
        self.list_key, self.key_field = "resources", "uri"
        variables = set()
        if "{" in uri:
            self.list_key, self.key_field = "resourceTemplates", "uriTemplate"
            self.template = UriTemplate(uri)
            variables = set(self.template.names)
        super().__init__(uri, fn, {"name": name or name_of(fn), **options})
        node = self.signature.node
        if not {*node.get("required", ())} <= variables <= {*node["properties"]}:
            raise TypeError(f"{uri}: its placeholders and the parameters differ")

    def contents(self, value: Any, uri: str) -> list[ResourceContents]:
        """The contents for what the function returned.

        That is text, bytes, data, ResourceContents or a list of those.
        """
        parts = value if type(value) in (list, tuple) and any(
            isinstance(part, ResourceContents) for part in value) else [value]
        return [self._contents(part, uri) for part in parts]

    def _contents(self, value: Any, uri: str) -> ResourceContents:
        mime_type = self.options.get("mimeType")
        if isinstance(value, ResourceContents):
            return ResourceContents.of({
                "uri": uri, **wire_fields(mime_type=mime_type), **value})
        if isinstance(value, (bytes, bytearray)):
            return ResourceContents(data=bytes(value), uri=uri,
                                    mime_type=mime_type or "application/octet-stream")
        default = "text/plain" if is_text(value) else "application/json"
        return ResourceContents(to_text(value), uri=uri, mime_type=mime_type or default)


class Registry:
    """The tools, prompts, resources or templates, in the order of registration.

    A cursor holds the serial number of the last entry of a page, so that entries can be
    added and removed between two pages.  An entry that is registered again takes the
    place and the number of the old one, so that it is on exactly one page.  Changed
    under Server.lock; readers copy `entries` first.
    """

    def __init__(self, row: Method) -> None:
        self.capability, self._list_key = row.capability, row.list_key
        self._last_serial = 0
        self.entries: dict[str, Any] = {}

    def add(self, entry: Registration) -> None:
        old = self.entries.get(entry.key)
        self._last_serial += 1
        entry.serial = old.serial if old else self._last_serial
        self.entries[entry.key] = entry

    def get(self, params: Json, what: str) -> Any:
        """The entry with the name in `params`; McpError: there is none."""
        name = params.get("name")
        entry = self.entries.get(name) if type(name) is str else None
        if entry is None:
            raise invalid_params(f"Unknown {what}: {name!r:.100}", {"name": name})
        return entry

    def page(self, params: Json, size: int) -> Json:
        """A page of the list (server/utilities/pagination); McpError: a bad cursor."""
        cursor = params.get("cursor")
        last_serial = 0 if cursor is None else self._read_cursor(cursor)
        entries = [e for e in list(self.entries.values()) if e.serial > last_serial]
        result: Json = {self._list_key: [entry.descriptor for entry in entries[:size]]}
        if len(entries) > size:
            next_cursor = f"{self._list_key}:{entries[size - 1].serial}"
            result["nextCursor"] = next_cursor.encode().hex()
        return result

    def _read_cursor(self, cursor: Any) -> int:
        try:
            list_key, serial = bytes.fromhex(cursor).decode().split(":")
            if list_key == self._list_key:
                return int(serial)
        except (ValueError, TypeError):
            pass  # it is no cursor of ours
        raise invalid_params("Invalid cursor", {"cursor": cursor})


LIFESPAN_SECONDS = 5.0  # that leaving a lifespan, or cancelling all tasks, may take


class AsyncRuntime:
    """The event loop of all `async def` handlers of a server, and its lifespan.

    The first connection enters the lifespan; the last leaves it and ends the loop,
    which runs on a thread of its own from the first coroutine on.  on_caller: there is
    no such thread; a thread that waits for a coroutine runs the loop meanwhile, because
    handlers must run there.  The first connection decides this, until the last leaves.
    """

    def __init__(self, server: Server, lifespan: Any) -> None:
        self._server, self._lifespan = server, lifespan
        self.on_caller = False
        # Guards the next two; held while a lifespan is entered or left.
        self._lifespan_lock = threading.Lock()
        self._connections = 0
        self._leave: Callable[[], Any] | None = None
        self.context: Any = {}             # the value that the lifespan yielded
        # Guards the next two; held by the thread that runs the loop if on_caller.
        self._lock = threading.RLock()
        self._loop: Any = None
        self._adopted = False              # the loop is the application's
        self._ended = threading.Event()    # set when the loop has been closed

    def enter(self, on_caller: bool) -> None:
        """A connection begins."""
        with self._lifespan_lock:
            if not self._connections:
                self.on_caller = on_caller
                if self._lifespan:
                    self._enter_lifespan()
            self._connections += 1

    def leave(self) -> None:
        """A connection has ended."""
        with self._lifespan_lock:
            self._connections -= 1
            if self._connections:
                return
            try:
                if self._leave:
                    self._leave()
            finally:
                self._leave = None
                self._close()

    def adopt(self, loop: Any) -> None:
        """Use a loop of the application, which goes on after the last connection."""
        with self._lock:
            self._loop, self._adopted = loop, True

    def _enter_lifespan(self) -> None:
        import contextlib

        manager = self._lifespan(self._server)
        if hasattr(manager, "__anext__"):
            manager = contextlib.asynccontextmanager(self._lifespan)(self._server)
        elif hasattr(manager, "__next__"):
            manager = contextlib.contextmanager(self._lifespan)(self._server)
        if hasattr(manager, "__aenter__"):
            context = self.wait(self._enter_async(manager))
        else:
            context = manager.__enter__()
            self._leave = partial(manager.__exit__, None, None, None)
        self.context = {} if context is None else context

    async def _enter_async(self, manager: Any) -> Any:
        """Enter and leave in one task, because a task group inside insists on that."""
        import asyncio

        entered, leave = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def live() -> None:
            async with manager as context:
                entered.set_result(context)
                await leave.wait()

        async def end() -> None:
            leave.set()
            done, _ = await asyncio.wait({task}, timeout=LIFESPAN_SECONDS)
            if not done:
                raise TimeoutError(f"the lifespan goes on after {LIFESPAN_SECONDS} s")
            await task

        task = asyncio.ensure_future(live())
        await asyncio.wait({task, entered}, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await task  # raises its error
        self._leave = lambda: self.wait(end())
        return entered.result()

    def submit(self, coroutine: Any) -> Future[Any]:
        """Run a coroutine on the thread of the loop; returns a future at once."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._loop_with_thread())

    def wait(self, coroutine: Any, in_task: bool = False) -> Any:
        """Run a coroutine, wait for it, and return its result.

        in_task: another thread runs the loop, and waits for this one.
        """
        import asyncio

        if in_task:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        if not self.on_caller and self._loop_with_thread():
            return self.submit(coroutine).result()
        with self._lock:
            self._loop = self._loop or asyncio.new_event_loop()
            return self._loop.run_until_complete(coroutine)

    def _loop_with_thread(self) -> Any:
        import asyncio

        with self._lock:
            if not self._loop:
                self._loop = asyncio.new_event_loop()
                self._ended.clear()
                self.on_caller = not start_thread("mcp event loop",
                                                  partial(self._run, self._loop))
            return None if self.on_caller else self._loop

    def _run(self, loop: Any) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        while not loop.is_closed():
            try:
                loop.run_forever()
                loop.run_until_complete(self._cancel_tasks())
                loop.close()
                self._ended.set()
            except BaseException:  # such as the exit() of a task that a handler started
                log_exception("mcp_min: a task of the event loop failed")

    async def _cancel_tasks(self) -> None:
        import asyncio

        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LIFESPAN_SECONDS)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            adopted, self._adopted = self._adopted, False
            if not loop or adopted:
                return
            if self.on_caller:
                loop.run_until_complete(self._cancel_tasks())
                loop.close()
            else:
                loop.call_soon_threadsafe(loop.stop)
                self._ended.wait(LIFESPAN_SECONDS + 1)


@lru_cache(maxsize=1)
def task_context() -> Any:
    """A ContextVar that holds the Context of an `async def` handler."""
    from contextvars import ContextVar  # which asyncio has imported

    return ContextVar("mcp_min", default=None)


async def run_coroutine(ctx: Context,
                        coroutine: Any) -> tuple[Any, BaseException | None]:
    """Run the coroutine of a handler; return (its result, None) or (None, its error).

    The error is not raised here, because a SystemExit in a task would end the loop.
    """
    import asyncio

    task: Any = asyncio.current_task()
    loop, before = task.get_loop(), ctx.loop_thread
    ctx.loop_thread = ctx.incoming.thread = threading.get_ident()

    def cancel() -> None:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            pass  # the loop was just closed, so the task has ended

    ctx.incoming.on_cancel(cancel)
    task_context().set(ctx)
    try:
        value = await coroutine
        ctx.check_awaited()
        return value, None
    except asyncio.CancelledError:
        ctx.check_cancelled()
        raise
    except BaseException as error:
        return None, find_unwind(error) or error
    finally:
        ctx.loop_thread, ctx.incoming.thread = before, None


def unpack_outcome(outcome: tuple[Any, BaseException | None]) -> Any:
    value, error = outcome
    if error:
        raise error
    return value


def find_unwind(error: BaseException) -> BaseException | None:
    """The Unwind inside an exception group, as a task group raises one; or None."""
    inner = map(find_unwind, getattr(error, "exceptions", None) or ())
    return error if isinstance(error, Unwind) else next(filter(None, inner), None)


def run_into(future: Future[Any], run: Callable[[], Any]) -> None:
    try:
        future.set_result(run())
    except BaseException as error:
        future.set_exception(error)


def run_on_host_thread(run_handler: Any, run: Callable[[], Any],
                       incoming: IncomingRequest) -> Any:
    """Let the host run a handler on a thread of its choice, and wait for it."""
    from concurrent.futures import Future

    future: Future[Any] = Future()
    first_call = threading.Lock()  # never released: a timer may call job() again

    def job() -> None:
        if first_call.acquire(blocking=False) and future.set_running_or_notify_cancel():
            run_into(future, run)

    incoming.on_cancel(future.cancel)
    incoming.connection.reading.hand_over_reading(incoming)
    run_handler(job)
    return result_of(future)


def decorator(add: Callable[..., Any], first: Any, options: Json) -> Any:
    """The value of `@add`, `@add("name")` or `@add(option=…)`."""
    if first is None or isinstance(first, str):
        return partial(add, **wire_fields(name=first), **options)
    return add(first, **options)


METHOD_HANDLERS: dict[str, Callable[[Server, Context, Json], Json]] = {}


def handles(*methods: str) -> Callable[[Any], Any]:
    """Add a function to the dispatch table as the handler of these methods."""
    def add(function: Any) -> Any:
        METHOD_HANDLERS.update(dict.fromkeys(methods, function))
        return function
    return add


def object_field(params: Json, key: str) -> Json:
    """The object under a key, {} if there is none; McpError(-32602): no object."""
    value = params.get(key)
    result: Json = {} if value is None else require_type(value, dict, key)
    return result


# FastMCP's options that have no effect over stdio, or whose value is fixed here.
IGNORED_OPTIONS = frozenset(
    "log_level debug host port mount_path sse_path message_path streamable_http_path "
    "json_response stateless_http dependencies event_store retry_interval auth "
    "auth_server_provider token_verifier transport_security on_duplicate "
    "on_duplicate_tools on_duplicate_resources on_duplicate_prompts "
    "warn_on_duplicate_tools warn_on_duplicate_resources warn_on_duplicate_prompts "
    "include_fastmcp_meta tool_serializer resource_prefix_format "
    "cache_expiration_seconds tasks show_banner middleware tools providers "
    "transforms".split())


def ignore_options(where: str, options: Json) -> None:
    """Warn that these options have no effect; TypeError for an unknown one."""
    for name in options:
        if name not in IGNORED_OPTIONS:
            raise TypeError(f"{where} got an unexpected keyword argument {name!r}")
    if options:
        warn(f"mcp_min: {where}: no effect over stdio: {', '.join(options)}\n")


def check_transport(transport: str) -> None:
    if transport != "stdio":
        raise ValueError(f"mcp_min serves stdio only, not {transport!r}: for HTTP put "
                         "a proxy such as mcp-proxy or supergateway in front of it")


class Registrations:
    """The half of `Server` that registers functions."""

    def __init__(self, more_capabilities: Json) -> None:
        if not all(type(value) is dict for value in more_capabilities.values()):
            raise TypeError("each of the capabilities must be a dict")
        self._more_capabilities = more_capabilities
        self._middleware: list[Any] = []
        # Guards all below, the subscriptions of a policy, and Context._asked_keys.
        self.lock = threading.Lock()
        self._lists = {row.list_key: Registry(row)
                       for row in METHODS.values() if row.list_key}
        self._completers: dict[tuple[str, str], Signature] = {}
        self._complete_any: Any = None
        self._warned: set[tuple[str, str]] = set()  # what was registered again
        self._methods: dict[str, Signature] = {}
        self.subscribers: set[Any] = set()  # policies that are notified of changes
        self._offered = {"logging", *more_capabilities}  # capabilities; only grows

    if TYPE_CHECKING:
        @overload  # type: ignore[no-overload-impl]
        def tool(self, fn: F, /) -> F: ...
        @overload
        def tool(
            self, name_: str | None = None, /, *, name: str | None = None,
            title: str | None = None, description: str | None = None,
            annotations: Json | None = None, input_schema: Json | None = None,
            output_schema: Json | None = None, icons: list[Any] | None = None,
            meta: Json | None = None, tags: AbstractSet[str] | None = None,
            enabled: bool = True, structured_output: bool = True,
        ) -> Callable[[F], F]: ...
        @overload  # type: ignore[no-overload-impl]
        def prompt(self, fn: F, /) -> F: ...
        @overload
        def prompt(
            self, name_: str | None = None, /, *, name: str | None = None,
            title: str | None = None, description: str | None = None,
            icons: list[Any] | None = None, meta: Json | None = None,
            tags: AbstractSet[str] | None = None, enabled: bool = True,
        ) -> Callable[[F], F]: ...
    else:
        def tool(self, fn: Any = None, /, **options: Any) -> Any:
            """Register a function as a tool: `@tool`, `@tool("name")`, `@tool(name=)`.

            Options: name, title, description, annotations, input_schema, output_schema,
            icons, meta, tags, enabled, structured_output.  By default the schema and
            the descriptions come from the signature and the docstring.  The function
            runs on a thread of the pool; its errors become results (server/tools).
            TypeError: a parameter that no schema can describe.  ValueError: an invalid
            name.
            """
            return decorator(self.add_tool, fn, options)

        def prompt(self, fn: Any = None, /, **options: Any) -> Any:
            """Register a function as a prompt; its parameters are the arguments.

            It returns a str, a Message, a block or a list of those (server/prompts).
            Options: name, title, description, icons, meta, tags, enabled.
            """
            return decorator(self.add_prompt, fn, options)

    def resource(self, uri: str, **options: Any) -> Callable[[F], F]:
        """Register a function as the resource at a URI, or at a template with `{name}`.

        The variables of a template are its parameters; it returns text, bytes, data or
        ResourceContents (server/resources).  Options: name, title, description,
        mime_type, size, annotations, icons, meta, tags, enabled.
        """
        if not isinstance(uri, str):
            raise TypeError("resource needs a URI: @server.resource(uri)")
        return partial(self.add_resource, uri, **options)

    def completion(self, ref: str = "", argument: str = "") -> Callable[[F], F]:
        """Register a function that completes an argument (server/utilities/completion).

        ref: the name of a prompt, or a URI template.  The function is called with
        `value`, the text so far, and with `context`, the other arguments as a dict, if
        it has that parameter; it returns a list of str.  Without ref it is called for
        all arguments that have no function, with `ref`, `argument` and `context`, as in
        the official SDK.
        """
        if not ref:
            return self._complete_others
        return partial(self._register, self._completers, (ref, argument),
                       {"completions"})

    def _complete_others(self, fn: Any) -> Any:
        with self.lock:
            self._complete_any = fn
            self._offered.add("completions")
        return fn

    def method(self, name: str) -> Callable[[F], F]:
        """Register a handler for a request or a notification of your own.

        It gets the params of the message as its parameters, or all of them as `params`
        if that is its only one.  TypeError: the protocol has this method.
        """
        if not isinstance(name, str) or name in METHODS:
            raise TypeError(f"method needs a name of your own, not {name!r}")
        return partial(self._register, self._methods, name, set())

    def _register(self, table: Any, key: Any, capabilities: set[str], fn: Any) -> Any:
        with self.lock:
            table[key] = Signature(fn, Context)
            self._offered |= capabilities
        return fn

    def middleware(self, fn: F) -> F:
        """Register fn(ctx, method, params, call_next) -> result around every handler.

        call_next(ctx, method, params): calls the next middleware or the handler, and is
        to be called at most once; changed params take effect, another method does not.
        The first one registered is the outermost.  It is not called for notifications,
        nor for what the reading thread handles itself: the handshake, discovery, ping,
        subscriptions, the log level.
        """
        self._middleware.append(fn)
        return fn

    def add_tool(self, fn: F, **options: Any) -> F:
        """Register a tool as `tool` does, and notify the clients."""
        return self._add(Tool(fn, **options), fn)

    def remove_tool(self, name: str) -> None:
        """Remove a tool and notify the clients.  KeyError: there is none."""
        self._remove("tools", name)

    def add_prompt(self, fn: F, **options: Any) -> F:
        """Register a prompt as `prompt` does, and notify the clients."""
        return self._add(Prompt(fn, **options), fn)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt and notify the clients.  KeyError: there is none."""
        self._remove("prompts", name)

    def add_resource(self, uri: str, fn: F, **options: Any) -> F:
        """Register a resource as `resource` does, and notify the clients."""
        return self._add(Resource(uri, fn, **options), fn)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource and notify the clients.  KeyError: there is none."""
        self._remove("resourceTemplates" if "{" in uri else "resources", uri)

    def _add(self, entry: Registration, fn: F) -> F:
        if not entry.enabled:
            return fn
        registry, name = self._lists[entry.list_key], (entry.list_key, entry.key)
        with self.lock:
            again = entry.key in registry.entries and name not in self._warned
            if again:
                self._warned.add(name)
            registry.add(entry)
            self._offered.add(registry.capability)
            if entry.list_key in COMPLETABLE and entry.choices():
                self._offered.add("completions")
            self._list_changed(registry.capability)
        if again:
            warn(f"mcp_min: {entry.key} is registered again: the new one counts\n")
        return fn

    def _remove(self, list_key: str, key: str) -> None:
        registry = self._lists[list_key]
        with self.lock:
            del registry.entries[key]
            self._list_changed(registry.capability)

    def notify_list_changed(self, capability: str) -> None:
        """Notify the clients that the list of "tools", for example, has changed."""
        with self.lock:
            self._list_changed(capability)

    def _list_changed(self, capability: str) -> None:  # the caller holds lock
        for listener in self.subscribers:
            listener.list_changed(capability)

    def notify_resource_updated(self, uri: str) -> None:
        """Notify the clients that have subscribed to this URI that it has changed."""
        with self.lock:
            for listener in self.subscribers:
                listener.resource_updated(uri)

    def subscriptions(self, connection: Connection) -> int:  # the caller holds lock
        """How many resources the other end of a connection has subscribed to."""
        return sum(len(listener.subscribed_uris) for listener in self.subscribers
                   if listener.connection is connection)

    # -- what is offered

    def offers(self, capability: str) -> bool:
        """Is this capability declared?  After a dot: with this key in it?"""
        capability, _, detail = capability.partition(".")
        return capability in self._offered and (
            not detail or bool(self.capabilities()[capability].get(detail)))

    def capabilities(self) -> Json:
        """The capabilities to declare for what is registered now."""
        merged = {capability: {**CAPABILITIES.get(capability, {}),
                               **self._more_capabilities.get(capability, {})}
                  for capability in sorted(self._offered)}
        return {capability: {key: value for key, value in details.items()
                             if value is not False}
                for capability, details in merged.items()}

    def has_method(self, name: str) -> bool:
        """Is there a handler for this method of your own?"""
        return name in self._methods


class Server(Registrations):
    """A server: register functions with the decorators, then call `run()`.

    Every method may be called from any thread, also while serving.  The options:

    name, version, title, description, website_url, icons: sent to the client.
    instructions: how a model should use the server.
    page_size: entries on a page of any list.
    cache_ttl: seconds that a client may cache lists and resources.
    cache_scope: "private" or "public".
    capabilities: merged into those that are declared.
    state_secret: bytes, the same in all processes that continue each other's requests.
    max_workers: threads for handlers of a connection.
    max_message_bytes, max_depth: limits of a line.
    drain_seconds: time for running handlers when the client hangs up.
    mask_errors: send "Internal error" instead of the texts of exceptions.
    strict_input: do not convert arguments, such as "5" for an int.
    run_handler(job): must call job() on the right thread, now or later (Blender, Tk).
    lifespan: a function of the server that returns a context manager, async or not.  It
    is entered before the first connection is served and left after the last; handlers
    get its value as `ctx.lifespan_context`.
    others: options of FastMCP, see IGNORED_OPTIONS.

    All `async def` handlers share one event loop on a thread of its own; with
    run_handler or threaded=False it runs on the thread of the other handlers.
    """

    def __init__(self, name: str = "mcp", version: str | None = None, *,
                 title: str | None = None, description: str | None = None,
                 website_url: str | None = None, icons: Any = None,
                 instructions: str | None = None, capabilities: Json | None = None,
                 page_size: int = 1000, cache_ttl: float = 0.0,
                 cache_scope: str = "private",
                 state_secret: bytes | None = None, max_workers: int = 64,
                 max_message_bytes: int = 64 << 20, max_depth: int = MAX_DEPTH,
                 drain_seconds: float = 1.5, mask_errors: bool = False,
                 strict_input: bool = False, run_handler: Any = None,
                 lifespan: Any = None, **others: Any) -> None:
        # FastMCP's names for the same options.
        mask_errors = others.pop("mask_error_details", mask_errors)
        strict_input = others.pop("strict_input_validation", strict_input)
        page_size = others.pop("list_page_size", None) or page_size
        ignore_options("Server()", others)
        if version and " " in version:  # FastMCP's second argument
            version, instructions = None, version
        if min(page_size, max_workers) < 1 or min(cache_ttl, drain_seconds) < 0:
            raise ValueError("page_size and max_workers are 1 or more, "
                             "cache_ttl and drain_seconds 0 or more")
        if cache_scope not in ("private", "public"):
            raise ValueError('cache_scope is "private" or "public"')
        super().__init__(capabilities or {})
        self.name = name
        self.version = version or "0"
        self.instructions = instructions
        self.ignored = others
        self.info = wire_fields(
            name=name, version=self.version, title=title, icons=to_json_data(icons),
            description=description, website_url=website_url)
        self.page_size = page_size
        self.signer = StateSigner(state_secret)
        self.cache_ttl, self.cache_scope = cache_ttl, cache_scope
        self.mask_errors, self.strict_input = mask_errors, strict_input
        self._run_handler = run_handler
        self.async_runtime = AsyncRuntime(self, lifespan)
        self.limits: Json = {
            "max_workers": max_workers, "max_message_bytes": max_message_bytes,
            "max_depth": max_depth, "drain_seconds": drain_seconds}

    # -- serving

    def run(self, transport: str = "stdio", *, threaded: bool = True,
            **ignored: Any) -> None:
        """Serve over stdin and stdout; blocks until the client hangs up.

        While it serves, what the process prints goes to stderr.  threaded: see `serve`.
        Ctrl-C raises SystemExit(130), SIGTERM SystemExit(143).  RuntimeError: a server
        of this process is running.  ValueError: another transport (basic/transports).
        """
        check_transport(transport)
        ignore_options("run()", ignored)
        # On Windows isatty() is true for NUL too.
        raw = getattr(getattr(sys.stdin, "buffer", None), "raw", None)
        if raw and raw.isatty() and (
                os.name != "nt" or type(raw).__name__ == "_WindowsConsoleIO"):
            warn(f"mcp_min: {self.name} waits for a host's messages on stdin; to try "
                 "it: python3 mcp_min.py list FILE.py\n")
        with Signals(), StandardStreams() as (reader, writer):
            self.serve(reader, writer, threaded=threaded, own_reader=True)

    async def run_async(self, transport: str = "stdio", **ignored: Any) -> None:
        """Serve as `run` does; `async def` handlers run on the caller's event loop.

        Cancelling the task ends the server.
        """
        import asyncio
        from concurrent.futures import Future

        check_transport(transport)
        ignore_options("run_async()", ignored)
        done: Future[None] = Future()
        with Signals(), StandardStreams() as (reader, writer):
            self.async_runtime.adopt(asyncio.get_running_loop())
            session = ServerSession(self, reader, writer, own_reader=True)

            def serve() -> None:
                self.async_runtime.enter(self._run_handler is not None)
                try:
                    session.run()
                finally:
                    self.async_runtime.leave()

            if not start_thread("mcp server", partial(run_into, done, serve)):
                raise RuntimeError("no thread can be started")
            ended = asyncio.wrap_future(done)
            try:
                await asyncio.shield(ended)
            finally:  # also when this task is cancelled
                session.end()
                await ended

    def serve(self, reader: Any, writer: Any, *, threaded: bool = True,
              own_reader: bool = False) -> None:
        """Serve over any pair of binary streams: of a socket, a pipe, a file.

        Blocks until the other end hangs up, or until all requests in a file are
        answered.  Several connections can be served at once, each from its own thread.
        threaded=False: all handlers run on the calling thread, one after the other,
        while other threads read, answer pings and so on.  If no thread can be started,
        the calling thread does all of that.  own_reader: close the reader at its end.
        """
        self.async_runtime.enter(self._run_handler is not None or not threaded)
        try:
            ServerSession(self, reader, writer, own_reader, threaded).run()
        finally:
            self.async_runtime.leave()

    def dispatch(self, ctx: Context, method: str, params: Json, depth: int = 0) -> Json:
        """Call the handler of a request, through the middleware from `depth` on."""
        method_called = ctx.incoming.method  # `method` may come from a middleware
        row = METHODS.get(method_called)
        if depth == len(self._middleware) or row and row.inline:
            handler = METHOD_HANDLERS.get(method_called, Server.call_custom)
            return handler(self, ctx, params)
        layer = self._middleware[depth]
        result = layer(ctx, method, params, partial(self.dispatch, depth=depth + 1))
        if not isinstance(result, dict):
            raise TypeError(f"middleware {name_of(layer)} returned no result")
        return result

    def call_custom(self, ctx: Context, params: Json) -> Json:
        """Call the handler of a method of the user's own."""
        signature = self._methods[ctx.incoming.method]
        arguments = {key: value for key, value in params.items() if key != "_meta"}
        if list(signature.node["properties"]) == ["params"]:
            arguments = {"params": params}
        return self._call_user(ctx, signature, arguments, self._custom_result)

    def _custom_result(self, ctx: Context, call: Callable[[], Any]) -> Json:
        value = to_json_data(call())
        return value if type(value) is dict else wire_fields(result=value)

    def _call_user(self, ctx: Context, signature: Signature, arguments: Json,
                   finish: Callable[[Context, Callable[..., Any]], Json],
                   tool: bool = False) -> Json:
        """Call a user's function, and return the result: finish(ctx, call).

        `finish` makes the result of what call() returns or raises.  Unless it must run
        on a certain thread, or inside middleware, an `async def` function does not
        occupy a thread while it waits: then this returns NO_RESPONSE_YET, and a thread
        of the pool calls `finish` and responds when the coroutine has ended.
        """
        call = partial(self._call, ctx, signature, arguments, tool)
        if not (signature.is_async and ctx.server_session) or self._middleware or (
                self.async_runtime.on_caller or not ctx.incoming.connection.threaded):
            return finish(ctx, call)
        try:
            value = call(wait=False)
        except BaseException as error:
            return finish(ctx, partial(unpack_outcome, (None, error)))
        if not hasattr(value, "__await__"):  # a decorator has waited for it
            return finish(ctx, lambda: value)
        future = self.async_runtime.submit(run_coroutine(ctx, value))
        ctx.server_session.respond_later(ctx, future, partial(
            finish, ctx, lambda: unpack_outcome(future.result())))
        return NO_RESPONSE_YET  # type: ignore[no-any-return]

    def await_if_needed(self, ctx: Context, value: Any) -> Any:
        """Return the value that a handler returned; wait for it if it is awaitable."""
        if not hasattr(value, "__await__"):
            return value
        in_task = bool(ctx.loop_thread)  # an `async def` handler awaits this thread
        return unpack_outcome(self.async_runtime.wait(run_coroutine(ctx, value),
                                                      in_task))

    def _call(self, ctx: Context, signature: Signature, arguments: Json,
              tool: bool = False, wait: bool = True) -> Any:
        """Call a user's function, and wait if it is `async def`, unless wait=False.

        Invalid arguments are an McpError, or for a tool what its era makes of them.
        strict_input is for tools: the arguments of all others are strings on the wire.
        """
        try:
            kwargs = signature.bind(arguments, tool and self.strict_input)
        except ValidationError as error:
            refuse = ctx.policy.bad_arguments_error if tool else invalid_params
            raise refuse(str(error)) from None
        if signature.context:
            kwargs[signature.context] = ctx
        if self._run_handler is None:
            value = signature.call(kwargs)
            return self.await_if_needed(ctx, value) if (
                wait and hasattr(value, "__await__")) else value
        return run_on_host_thread(
            self._run_handler,
            lambda: self.await_if_needed(ctx, signature.call(kwargs)), ctx.incoming)

    def error_text(self, error: BaseException) -> str:
        """The text of an exception for the client, or "Internal error" if masked."""
        return "Internal error" if self.mask_errors else error_text(error)

    # -- the method handlers

    @handles("initialize", "server/discover")
    def _describe_server(self, ctx: Context, params: Json) -> Json:
        return ctx.policy.describe_server(params)  # type: ignore[no-any-return]

    @handles("ping")
    def _ping(self, ctx: Context, params: Json) -> Json:
        return {}

    @handles("subscriptions/listen")
    def _listen(self, ctx: Context, params: Json) -> Any:
        stream = ctx.policy
        if ctx.incoming.in_batch:  # the other responses would wait for its end
            raise McpError(INVALID_REQUEST, "A stream cannot be part of a batch")
        with self.lock:  # no change may come between acknowledging and adding
            streams = [listener for listener in self.subscribers
                       if listener.connection is stream.connection]
            if len(streams) >= MAX_STREAMS:
                raise McpError(INTERNAL_ERROR, f"Over {MAX_STREAMS} streams")
            stream.listen(params)
            self.subscribers.add(stream)
        ctx.incoming.on_cancel(partial(self.forget, stream))
        if stream.connection.eof.is_set():  # `on_eof` may have missed it
            stream.end_stream()
        return NO_RESPONSE_YET

    def forget(self, listener: Any) -> None:
        """Stop notifying a session or stream of changes."""
        with self.lock:
            self.subscribers.discard(listener)

    @handles("logging/setLevel")
    def _set_level(self, ctx: Context, params: Json) -> Json:
        if params.get("level") not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}")
        ctx.policy.level = params["level"]
        return {}

    @handles("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    def _list(self, ctx: Context, params: Json) -> Json:
        key = METHODS[ctx.incoming.method].list_key
        return self._lists[key].page(params, self.page_size)

    @handles("tools/call")
    def _tools_call(self, ctx: Context, params: Json) -> Json:
        tool: Tool = self._lists["tools"].get(params, "tool")
        return self._call_user(ctx, tool.signature, object_field(params, "arguments"),
                               partial(self._tool_result, tool), tool=True)

    def _tool_result(self, tool: Tool, ctx: Context, call: Callable[[], Any]) -> Json:
        try:
            return tool.result(call())
        except (McpError, Unwind):
            raise
        except ToolError as error:
            return ToolResult(str(error), is_error=True)
        except BaseException as error:  # sys.exit() in a tool must not end the server
            ctx.check_cancelled()  # an error after the cancellation follows from it
            if ctx.incoming.connection.is_stop(error):
                raise
            if not ctx.incoming.connection.follows_from_eof(error):
                log_exception(f"mcp_min: tool {tool.key} failed")
            return ToolResult(self.error_text(error), is_error=True)

    @handles("resources/read")
    def _resources_read(self, ctx: Context, params: Json) -> Json:
        uri = require_type(params.get("uri"), str, "uri")
        entry, arguments = self._resource_at(ctx, uri)
        return self._call_user(
            ctx, entry.signature, arguments,
            lambda ctx, call: {"contents": entry.contents(call(), uri)})

    def read(self, ctx: Context, uri: str) -> list[ResourceContents]:
        """Read a resource, for a handler that waits for it."""
        entry, arguments = self._resource_at(ctx, uri)
        return entry.contents(self._call(ctx, entry.signature, arguments), uri)

    def _resource_at(self, ctx: Context, uri: str) -> tuple[Resource, Json]:
        """The resource or template that a URI belongs to, and its variables."""
        entry = self._lists["resources"].entries.get(uri)
        if entry:
            return entry, {}
        templates = list(self._lists["resourceTemplates"].entries.values())
        for entry in sorted(templates, key=lambda entry: -entry.template.literal):
            variables = entry.template.match(uri)
            if variables is not None:
                return entry, variables
        raise McpError(RESOURCE_NOT_FOUND, f"Resource not found: {uri:.200}",
                       {"uri": uri})

    @handles("resources/subscribe", "resources/unsubscribe")
    def _subscribe(self, ctx: Context, params: Json) -> Json:
        uri = require_type(params.get("uri"), str, "uri")
        policy = ctx.policy
        with self.lock:
            if ctx.incoming.method == "resources/unsubscribe":
                policy.subscribed_uris.discard(uri)
            elif uri not in policy.subscribed_uris:
                check_subscriptions(self.subscriptions(policy.connection), [uri])
                policy.subscribed_uris.add(uri)
        return {}

    @handles("prompts/get")
    def _prompts_get(self, ctx: Context, params: Json) -> Json:
        prompt: Prompt = self._lists["prompts"].get(params, "prompt")
        return self._call_user(ctx, prompt.signature, object_field(params, "arguments"),
                               partial(self._prompt_result, prompt))

    def _prompt_result(self, prompt: Prompt, ctx: Context,
                       call: Callable[[], Any]) -> Json:
        value = call()
        values = value if type(value) in (list, tuple) else [value]
        return {**wire_fields(description=prompt.descriptor.get("description")),
                "messages": [message_of(v) for v in values]}

    @handles("completion/complete")
    def _complete(self, ctx: Context, params: Json) -> Json:
        ref, argument = object_field(params, "ref"), object_field(params, "argument")
        if ref.get("type") not in ("ref/prompt", "ref/resource"):
            raise invalid_params('"ref" must be of type ref/prompt or ref/resource')
        key_field = "name" if ref["type"] == "ref/prompt" else "uri"
        key = require_type(ref.get(key_field), str, key_field)
        if key_field == "uri":  # ResourceTemplateReference: "URI or URI template"
            templates = dict(self._lists["resourceTemplates"].entries)
            key = key if key in templates else next((
                entry.key for entry in templates.values()
                if entry.template.match(key) is not None), key)
        name = require_type(argument.get("name"), str, "name")
        value = require_type(argument.get("value"), str, "value")
        context = object_field(object_field(params, "context"), "arguments")
        completions = self._completions(ctx, key, name, value, context) or ()
        completions = [completions] if is_text(completions) else completions
        values = [to_text(to_json_data(completion)) for completion in completions]
        return {"completion": {
            "values": values[:MAX_COMPLETIONS], "total": len(values),
            "hasMore": len(values) > MAX_COMPLETIONS}}

    def _completions(self, ctx: Context, key: str, name: str, value: str,
                     context: Json) -> Any:
        completer = self._completers.get((key, name))
        if completer:
            arguments = {"value": value, "context": context}
            return self._call(ctx, completer, {
                parameter: arguments[parameter] for parameter in arguments
                if parameter in completer.node["properties"]})
        if self._complete_any:
            ref = object_field(ctx.incoming.params, "ref")
            result = self.await_if_needed(ctx, self._complete_any(
                Fields.of(ref), Fields.of({"name": name, "value": value}),
                Fields.of({"arguments": context})))
            return result["values"] if isinstance(result, dict) else result
        prompts, templates = (self._lists[list_key].entries for list_key in COMPLETABLE)
        entry = prompts.get(key) or templates.get(key)
        if not entry:
            raise invalid_params(f"Unknown prompt or template: {key:.200}",
                                 {"ref": key})
        # In the client's spelling: `true`; null is sent by leaving the argument out.
        choices = entry.choices().get(name, ())
        texts = [to_text(choice) for choice in choices if choice is not None]
        return [text for text in texts if text.startswith(value)]


class ServerSession(ConnectionOwner):
    """A server's end of a connection.

    session: the LegacySession that requests belong to unless they are stateless; a new
    handshake replaces it.
    """

    def __init__(self, server: Server, reader: Any, writer: Any, own_reader: bool,
                 threaded: bool = True) -> None:
        self._server = server
        self.connection = Connection(
            self, reader, writer, is_server=True, own_reader=own_reader,
            threaded=threaded, **server.limits)
        self.session: Any = first_session(server, self.connection)

    def run(self) -> None:
        """Serve until the other end hangs up."""
        try:
            started = self.connection.start()
            if not (started and self.connection.threaded):
                self.connection.run_here(also_read=not started)
            # In steps: on Windows no signal interrupts a wait, and elsewhere a signal
            # may come just before it.
            while not self.connection.done.wait(0.5):
                pass
        finally:
            self.end()
            self._server.forget(self.session)

    def allows_batches(self) -> bool:
        return self.session.allows_batches()  # type: ignore[no-any-return]

    def is_inline(self, method: str) -> bool:
        row = METHODS.get(method)  # an unknown method is refused at once
        return row.inline if row else not self._server.has_method(method)

    def respond_later(self, ctx: Context, future: Future[Any],
                      finish: Callable[[], Json]) -> None:
        """Respond on a thread of the pool when the handler's coroutine has ended."""
        connection = self.connection
        job = partial(connection.run_handler, ctx.incoming,
                      partial(self.handle, ctx=ctx, finish=finish))
        future.add_done_callback(lambda _: connection.pool.submit(job))

    def handle(self, request: IncomingRequest, ctx: Context | None = None,
               finish: Callable[[], Json] | None = None) -> Any:
        """Call the handler; return its result, or raise its error, as its era has it.

        finish: instead of calling the handler, because its coroutine has ended.
        """
        if ctx is None:
            require_type(request.params, dict, "params")
            policy = policy_of(self._server, request.session, request)
            policy.validate_request(request)
            ctx = Context(self._server, request, policy, self)
        policy = ctx.policy
        try:
            result = finish() if finish else self._server.dispatch(
                ctx, request.method, request.params)
            if request.method == "initialize":
                self.replace_session(policy)  # now: a refused handshake changes nothing
        except McpError as error:
            raise policy.translate(error) from None
        except Unwind as unwind:
            if isinstance(unwind.outcome, McpError):
                raise unwind.outcome from None
            result = unwind.outcome
        if result is NO_RESPONSE_YET:
            return result
        return policy.finalize(request.method, result)

    def replace_session(self, session: Any) -> None:
        """Notify this session of changes, instead of the one before."""
        with self._server.lock:
            self._server.subscribers.discard(self.session)
            self._server.subscribers.add(session)
            self.session = session

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        if method == INITIALIZED:
            with self._server.lock:
                self.session.on_initialized()
        if self._server.has_method(method) and not self.connection.crowded():
            # The handler of a notification gets a request that is in no table, so that
            # what is sent about it is dropped.  Its id is never sent.
            message = {"id": 0, "method": method, "params": params}
            request = IncomingRequest(self.connection, message, self.connection.outbox)
            ctx = Context(self._server, request, self.session)
            job = partial(self._server.call_custom, ctx, params)
            self.connection.callbacks.submit(job, size=size)

    def end(self) -> None:
        """Close; end the streams first if the client is still there, as at SIGTERM."""
        if not self.connection.closed:
            self.end_streams()
            self.connection.outbox.wait_until_written(0.2)
        self.connection.close()

    def on_eof(self) -> None:
        self.end_streams()

    def end_streams(self) -> None:
        """End each `subscriptions/listen` request with a result."""
        with self._server.lock:
            subscribers = [listener for listener in self._server.subscribers
                           if listener.connection is self.connection]
        for listener in subscribers:
            listener.end_stream()

    def error_text(self, error: BaseException) -> str:
        return self._server.error_text(error)

    def closed_error(self) -> ConnectionClosed:
        return ConnectionClosed("The client has hung up")


# -- 11. Client ------------------------------------------------------------------------
# The same methods from the other side.  A ClientSession is one connection; a Client
# holds the current one.

MAX_QUESTIONS = 8       # of a server that we answer at once
MAX_ENTRIES = 100_000   # of a list, on all its pages

open_sessions: set[ClientSession] = set()  # with a process that we must end


def end_processes() -> None:
    """End the servers of clients that were not closed; called at exit."""
    for session in list(open_sessions):
        if session.pid == os.getpid():  # not in a forked child
            session.close()


class ClientSession(ConnectionOwner):
    """A client's end of a connection, and the server process if there is one.

    policy: that of the server's era, None until they have agreed on a revision.  When
    the server is started again, the Client gets a new ClientSession.
    """

    def __init__(self, client: ClientBase,
                 process: Process | StreamPair) -> None:
        self.client, self.process = client, process
        self.connection = Connection(self, process.reader, process.writer,
                                     is_server=False, own_reader=True, max_workers=64)
        self.policy: Any = None
        self.stray_lines: deque[Line] = deque(maxlen=20)  # lines that were no messages
        self._closed = False              # close() was called
        self._questions = threading.BoundedSemaphore(MAX_QUESTIONS)
        self._ending = threading.Lock()   # held while the process is being ended
        self.pid = os.getpid()            # a forked child must not end the process
        if isinstance(process, Process):
            if not open_sessions:
                atexit.register(end_processes)
            open_sessions.add(self)
        process.watch(self.connection.eof, self.connection.close_if_idle)

    # -- requests of ours

    def new_request(self, method: str, params: Json | None, timeout: float | None,
                    progress_handler: Handler | None) -> OutgoingRequest:
        """Make a request whose future gets the last result, after all rounds."""
        client = self.client
        more = (MultiRoundRequest(self, params or {}).more
                if self.policy.multi_round else None)
        request = OutgoingRequest(
            method, more, progress_handler or client.progress_handler,
            client.timeout if timeout is None else timeout, client.max_timeout)
        name = (params or {}).get("name") or (params or {}).get("uri")
        if name:
            request.label = f"{method} {name}"
        request.stderr_from = self.process.stderr_total
        return request

    def request(self, method: str, params: Json | None = None,
                timeout: float | None = None, progress_handler: Handler | None = None,
                ) -> Any:
        """Send a request and wait for its result."""
        request = self.new_request(method, params, timeout, progress_handler)
        return self.policy.check(
            self.connection.call(request, self.policy.add_meta(params)))

    def submit(self, read: Callable[[Json], T], method: str, params: Json | None,
               timeout: float | None, progress_handler: Handler | None) -> Future[T]:
        """Send a request; return a future of what `read` returns for its result."""
        request = self.new_request(method, params, timeout, progress_handler)
        self.connection.send_request(request, self.policy.add_meta(params),
                                     with_token=True)
        return self._future(request, read)

    def _future(self, request: OutgoingRequest, read: Callable[[Json], T]) -> Future[T]:
        """The future for a user.

        A thread of the pool reads the result and runs the user's callbacks: both may
        take long, and the callbacks may use the client.
        """
        future: Future[T] = future_class()()

        def finish() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = self.policy.check(request.future.result())
                    future.set_result(read(result))
                except Exception as error:
                    future.set_exception(error)

        def on_done(_: object) -> None:
            if future.cancelled():  # this notifies those who wait for it
                finish()
            else:
                self.connection.pool.submit(finish)

        request.future.add_done_callback(on_done)
        future.add_done_callback(
            lambda done: self.connection.cancel(request) if done.cancelled() else None)
        return future

    def notify(self, method: str, params: Json | None = None) -> None:
        if self.connection.closed:
            raise self.closed_error()
        self.connection.send(notification(method, params))

    # -- from the server

    def allows_batches(self) -> bool:
        return bool(self.policy and REVISIONS[self.policy.version].batches)

    def is_inline(self, method: str) -> bool:
        return method not in CLIENT_REQUESTS

    def handle(self, request: IncomingRequest) -> Json:
        if request.method == "ping":
            return {}
        params = require_type(request.params, dict, "params")
        if self.policy is None or request.method not in CLIENT_REQUESTS:
            raise method_not_found(request.method)  # also while it connects
        if not self._questions.acquire(blocking=False):
            raise McpError(INTERNAL_ERROR, f"Over {MAX_QUESTIONS} questions at once")
        requests = self.connection.requests_out
        if request.method != "roots/list":  # no user has to answer that one
            requests.suspend(request)
            request.on_cancel(partial(requests.resume, request))
        try:
            return self.client.answer_question(request.method, params,
                                               self.policy.version)
        finally:
            if request.method != "roots/list":
                requests.resume(request)
            self._questions.release()

    def error_text(self, error: BaseException) -> str:
        return "The client failed to answer"  # our stderr has the text

    def handle_stray_line(self, line: Line) -> None:
        self.stray_lines.append(line[:500])

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        for_handlers = (self.policy.filter_notification(method, params)
                        if self.policy else params)
        if for_handlers is not None and not self.connection.crowded():
            self.client.call_handlers(self.connection.callbacks, method, for_handlers,
                                      size)

    # -- its end

    def timeout_error(self, reason: str, stderr_from: int = 0) -> RequestTimeout:
        stderr = self.process.stderr_since(stderr_from)
        return RequestTimeout(reason + self._other_output(stderr))

    def closed_error(self) -> ConnectionClosed:
        if self._closed:
            return ConnectionClosed("The client is closed", self.process.exit_code,
                                    self.process.stderr_tail)
        code, stderr = self.process.exit_report()
        ending = "" if code is None else f" (exit code {code})"
        if code == 0 and self.policy is None:
            ending += ": did it call server.run()?  Or try: mcp_min.py run FILE.py"
        return ConnectionClosed("The server has closed the connection" + ending
                                + self._other_output(stderr), code, stderr)

    def is_dead(self) -> bool:
        """Has the server ended, even if the end of its stdout was not read yet?"""
        return self.connection.eof.is_set() or self.process.exit_code is not None

    def _other_output(self, stderr: str) -> str:
        """What the server wrote besides messages, which often shows the reason."""
        lines = ["stderr: " + line for line in stderr.splitlines()[-20:]]
        lines += ["stdout: " + line.decode("utf-8", "replace")
                  for line in self.stray_lines]
        return escape_control("".join(f"\n  {line}" for line in lines))

    def close(self) -> None:
        """Close the connection and end the process; waits up to some 5 s."""
        self._closed = True
        self.connection.close()
        with self._ending:  # a second call waits for the first
            self.process.close(self.connection.eof, self.connection.outbox.writing)
            open_sessions.discard(self)


def require_sync(*handlers: Any) -> None:
    for handler in handlers:
        if handler and is_async(handler):
            raise TypeError(f"{name_of(handler)} is `async def`: the handlers of a "
                            "client are plain functions, which may block")


class ClientBase:
    """The half of `Client` that connects, and answers the server's requests."""

    server_info: Json = {}               # noqa: RUF012 - its name and version
    server_capabilities: Json = {}       # noqa: RUF012 - those that it declared
    instructions: str | None = None      # how to use it
    protocol_version: str | None = None  # the revision agreed on

    def __init__(self, target: Any, *, env: dict[str, str] | None = None,
                 inherit_env: bool = False, cwd: str | None = None,
                 timeout: float | None = 60.0, max_timeout: float | None = 3600.0,
                 mode: str = "auto", client_info: Json | None = None,
                 roots: list[Any] | None = None,
                 sampling_handler: Callable[[list[Json], Json], Any] | None = None,
                 elicitation_handler: Callable[[str, Any, Json], Any] | None = None,
                 url_handler: Callable[[str, str, Json], Any] | None = None,
                 capabilities: Json | None = None,
                 log_handler: Callable[[Json], Any] | None = None,
                 message_handler: Callable[[Json], Any] | None = None,
                 progress_handler: Handler | None = None, log_level: str | None = None,
                 stderr: Any = AT_START, auto_restart: bool = False) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}")
        require_sync(sampling_handler, elicitation_handler, url_handler, log_handler,
                     message_handler, progress_handler)
        self._target, self._env, self._inherit_env = target, env, inherit_env
        self._cwd, self._mode, self._stderr = cwd, mode, stderr
        self.timeout = float("inf") if timeout is None else timeout
        self.max_timeout = max_timeout
        self.info = client_info or {"name": "mcp_min", "version": __version__}
        self._user_handlers: Json = {}  # by the keys of ANSWER_FUNCTIONS
        self.declared = capabilities or {}  # our capabilities
        self._add_handlers(
            form=elicitation_handler, url=url_handler, sampling=sampling_handler,
            roots=None if roots is None else [*map(root_of, roots)])
        self.log_handler, self.level = log_handler, log_level
        self._message_handler = message_handler
        self.progress_handler = progress_handler
        self._auto_restart = auto_restart

        self._lock = threading.RLock()    # held while connecting
        self._session: ClientSession | None = None
        self._closed = False
        self._subscribed: dict[str, None] = {}  # URIs, in order
        self._outputs: dict[str, OutputSchema] = {}   # of the tools listed last

    # -- connecting

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self) -> Self:
        """Start the server and agree on a revision; does nothing if it is connected.

        Blocks for at most `timeout`.  OSError: the command cannot be started.
        RequestTimeout, ConnectionClosed, McpError: it has started, but could not be
        connected, and has been ended (basic/lifecycle, basic/versioning).
        """
        with self._lock:
            if self._session is None or self._closed or self._session.is_dead():
                self._closed = False
                self._open_session()
        return self

    def close(self) -> None:
        """Close the connection and end the server's process; running calls fail.

        Blocks for at most some 5 s, if the server ignores all signals but SIGKILL.
        """
        self._closed = True
        if self._session:
            self._session.close()

    @property
    def stray_output(self) -> list[bytes]:
        """The last lines that the server wrote to stdout that are no messages."""
        lines = self._session.stray_lines if self._session else ()
        return [bytes(line) for line in lines]

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB the server wrote to stderr."""
        return self._session.process.stderr_tail if self._session else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server's process, negative for a signal, or None."""
        return self._session.process.exit_code if self._session else None

    def _open_session(self) -> None:
        if not start_thread("mcp client", lambda: None):  # to find out whether it can
            raise RuntimeError("a client needs threads, and none can be started")
        if self._session:  # it is dead, but processes and pipes of it may be left
            self._session.close()
        try:
            self._connect_or_restart(time.monotonic() + self.timeout)
        except BaseException as error:
            if self._session:  # what the server has written to stderr shows why
                self._session.process.release(keep_earlier=True)
            if isinstance(error, RequestTimeout):
                text = f"connecting took over {self.timeout:g} s: {error}"
                raise RequestTimeout(text) from None
            raise

    def _connect_or_restart(self, deadline: float) -> None:
        session = self._start_server()
        try:
            self._connect(session, self._mode, deadline)
            return
        except ConnectionClosed:
            # Some legacy servers end when they are probed: start it again.
            can_restart = isinstance(session.process, Process)
            if self._mode != "auto" or self._closed or not can_restart:
                raise
        self._connect(self._start_server(), LEGACY_MODE, deadline)

    def _connect(self, session: ClientSession, mode: str, deadline: float) -> None:
        self._session = session
        try:
            if self._closed:  # by another thread, before it could see this session
                raise ConnectionClosed("The client is closed")
            session.connection.start()
            session.policy = policy = negotiate(session, mode, deadline)
            session.connection.responds = policy.responds
            self.server_info = policy.server_info
            self.server_capabilities = policy.capabilities
            self.instructions = policy.instructions
            self.protocol_version = policy.version
            policy.on_connected(deadline)
            self._subscribe_again(policy, deadline)
        except BaseException:
            session.close()
            raise

    def _subscribe_again(self, policy: Any, deadline: float) -> None:
        for uri in list(self._subscribed):  # of the process before this one
            try:
                policy.subscribe(uri, seconds_until(deadline))
            except (McpError, RequestTimeout) as error:  # it is connected nevertheless
                self._subscribed.pop(uri, None)
                warn(f"mcp_min: no longer subscribed to {uri}: {error}\n")

    def _start_server(self) -> ClientSession:
        target = self._target
        if hasattr(target, "serve"):
            return self._serve_here(target)
        if type(target) is tuple and len(target) == 2 and hasattr(target[1], "write"):
            return ClientSession(self, StreamPair(*target))
        argv, env, cwd = resolve_command(target, self._env, self._cwd)
        env = child_environment(env, self._inherit_env)
        return ClientSession(self, Process(argv, env, cwd, stderr_writer(self._stderr)))

    def _serve_here(self, server: Any) -> ClientSession:
        (reader, their_writer), (their_reader, writer) = pipe_streams(), pipe_streams()

        def serve() -> None:
            with their_writer:
                server.serve(their_reader, their_writer, own_reader=True)

        start_thread("mcp server", serve)
        return ClientSession(self, StreamPair(reader, writer, closes_too=True))

    def _live_session(self) -> ClientSession:
        session = self._session
        if session and session.policy and not (
                self._auto_restart and session.is_dead()):
            return session
        with self._lock:  # another thread may be connecting right now
            may_restart = self._auto_restart and not self._closed
            if may_restart and self._session and self._session.is_dead():
                self._open_session()
            session = self._session
        if not (session and session.policy):
            raise ConnectionClosed(
                "The client is not connected; use `with`, or connect()")
        return session

    # -- requests

    def request(self, method: str, params: Json | None = None, *,
                timeout: float | None = None,
                progress_handler: Handler | None = None) -> Any:
        """Send any request and wait for its result.

        timeout: seconds without a response or progress; None for the client's.
        progress_handler(progress, total, message): instead of the client's.
        """
        return self._live_session().request(method, params, timeout, progress_handler)

    def submit(self, method: str, params: Json | None = None, *,
               timeout: float | None = None,
               progress_handler: Handler | None = None) -> Future[Any]:
        """Send any request; return a concurrent.futures.Future of its result at once.

        `cancel()` of the future also cancels the request.  timeout, progress_handler:
        see `request`.
        """
        return self._live_session().submit(lambda result: result, method, params,
                                           timeout, progress_handler)

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send any notification."""
        self._live_session().notify(method, params)

    def _request(self, method: str, params: Json, timeout: float | None) -> Json:
        """The result of a request; McpError(-32601): the server does not offer it."""
        result: Json = self._session_for(method).request(method, params, timeout)
        return result

    def _session_for(self, method: str) -> ClientSession:
        session = self._live_session()
        if not session.policy.offers_method(method):
            raise McpError(METHOD_NOT_FOUND, f"The server does not offer {method}",
                           {"method": method})
        return session

    def ping(self, *, timeout: float | None = None) -> None:
        """Send a ping, or what replaces it in this era, and wait for the response."""
        session = self._live_session()
        session.request(session.policy.ping, None, timeout)

    # -- notifications of the server

    def call_handlers(self, callbacks: ThreadPool, method: str, params: Json,
                      size: int = 0) -> None:
        if method == LOG_MESSAGE and self.log_handler is not None:
            callbacks.submit(partial(self.log_handler, params), size=size)
        if self._message_handler is not None:
            message = {"method": method, "params": params}
            callbacks.submit(partial(self._message_handler, message), size=size)

    def on_stream_ended(self, uris: list[str], params: Json) -> None:
        for uri in uris:
            self._subscribed.pop(uri, None)
        if self._session:
            callbacks = self._session.connection.callbacks
            self.call_handlers(callbacks, CANCELLED, params)

    # -- requests of the server

    def set_roots(self, roots: list[Any]) -> None:
        """Set the directories that the server may use, and notify it (client/roots).

        roots: paths, file URIs, or dicts with uri and name.  ValueError: another URI.
        """
        declared = "roots" in self._user_handlers
        self._add_handlers(roots=[*map(root_of, roots)])
        session = self._session
        if declared and session and session.policy and not session.connection.closed:
            session.policy.roots_changed()

    def _add_handlers(self, **handlers: Any) -> None:
        self._user_handlers = {**self._user_handlers, **wire_fields(**handlers)}
        for key in self._user_handlers:
            for name, details in CLIENT_CAPABILITIES[key].items():
                self.declared = {
                    **self.declared, name: {**details, **self.declared.get(name, {})}}

    def answer_question(self, method: str, params: Json, version: str) -> Json:
        """Answer a question of the server; the library calls this."""
        key = CLIENT_REQUESTS.get(method)
        modes = REVISIONS[version].elicitation_modes
        if key == "elicitation" and modes and key in self.declared:
            key = str(params.get("mode", "form"))
            if key not in self.declared["elicitation"] or key not in modes:
                raise invalid_params(f"The client did not declare the mode {key:.60}")
        if key not in self._user_handlers:
            raise method_not_found(method)
        answer: Json = ANSWER_FUNCTIONS[key](self._user_handlers[key], params)
        return answer


class Client(ClientBase):
    """A client of a server process, of two streams, or of a Server in this process.

        with Client(["python3", "server.py"]) as client:
            client.call_tool("forecast", {"city": "Oslo"})

    Every method may be called from any thread.  Those that send a request block until
    its response comes, and raise McpError (the server's error), RequestTimeout or
    ConnectionClosed.  Once connected there are server_info, server_capabilities,
    instructions and protocol_version.  The arguments:

    target: a command (list), the path of a `server.py`, an entry of a host's mcp.json
    (dict), a pair of binary streams, or a Server object.
    env: variables added to a small safe environment; inherit_env: to all of ours.
    timeout: seconds without a response or progress.  max_timeout: seconds in any case.
    mode: "auto", "legacy", "modern" or the date of a revision.
    sampling_handler(messages, params) -> str, result, or None to reject.
    elicitation_handler(message, schema, params) -> content that matches the schema,
    None to decline, or Elicited.
    url_handler(message, url, params) -> True if the user agreed to open it.
    roots: a list, see `set_roots`.
    capabilities: declared besides those of the handlers that are given.
    log_handler(params), message_handler(notification), progress_handler(progress,
    total, message): called in order on a thread of their own, where they may use the
    client.
    stderr: a text stream or a function for the server's stderr, or None to drop it.
    auto_restart: when the server has died, the next call starts it again, and
    subscribes again.  (Requests that wait for answers need a `state_secret`.)
    """

    # -- tools

    def call_tool(self, name: str, arguments: Json | None = None, *,
                  timeout: float | None = None, progress_handler: Handler | None = None,
                  raise_on_error: bool = True, meta: Json | None = None) -> ToolResult:
        """Call a tool and wait for its result (server/tools, "Calling Tools").

        ToolError: the tool has failed; with raise_on_error=False see `is_error` of the
        result.  timeout, progress_handler: see `request`.
        """
        params, deadline = tool_params(name, arguments, meta), self._deadline(timeout)
        result = self._session_for("tools/call").request(
            "tools/call", params, timeout, progress_handler)
        return self._read_tool(name, raise_on_error, deadline, result)

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + self._seconds(timeout)

    def _seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def submit_tool(self, name: str, arguments: Json | None = None, *,
                    timeout: float | None = None,
                    progress_handler: Handler | None = None,
                    raise_on_error: bool = True,
                    meta: Json | None = None) -> Future[ToolResult]:
        """Call a tool; return a concurrent.futures.Future of its result at once.

        `cancel()` of the future also cancels the request.
        """
        read = partial(self._read_tool, name, raise_on_error, self._deadline(timeout))
        params = tool_params(name, arguments, meta)
        return self._session_for("tools/call").submit(
            read, "tools/call", params, timeout, progress_handler)

    def _read_tool(self, name: str, raise_on_error: bool, deadline: float,
                   raw: Json) -> ToolResult:
        """Read the result of a tool; validate it until the deadline, or for 1 s."""
        if type(raw.get("content", [])) is not list:
            raise invalid_response('"content" is not a list')
        result, output = ToolResult.of(raw), self._outputs.get(name)
        if result.is_error and raise_on_error:
            error = ToolError(result.text)
            error.result = result
            raise error
        if output and not result.is_error:
            result.wrapped = output.wrapped
            seconds = max(1.0, deadline - time.monotonic())
            problems = "; ".join(output.problems(result.structured_content, seconds))
            if problems:  # a warning, because an exception would hide the result
                import warnings

                text = f"tool {name}: the result does not fit its output schema: "
                warnings.warn(escape_control(text + problems), RuntimeWarning,
                              stacklevel=3)
        return result

    # -- lists

    def _list(self, method: str, timeout: float | None) -> list[Json]:
        try:
            return self._pages(method, timeout)
        except McpError as error:
            # A cursor has become invalid: start again, once (server/utilities/caching).
            if error.code != INVALID_PARAMS:
                raise
            return self._pages(method, timeout)

    def _pages(self, method: str, timeout: float | None) -> list[Json]:
        entries: list[Json] = []
        params: Json = {}
        cursors: set[str] = set()
        while True:
            page = self._request(method, params, timeout)
            entries += list_of_objects(page, METHODS[method].list_key)
            cursor = page.get("nextCursor")
            if cursor is None:  # "" is a cursor too
                return entries
            if type(cursor) is not str or cursor in cursors or (
                    len(entries) > MAX_ENTRIES):
                raise invalid_response(f"the pages of {method} do not end "
                                       f"(after {len(entries):,} entries)")
            cursors.add(cursor)
            params = {"cursor": cursor}

    def list_tools(self, *, timeout: float | None = None) -> list[Json]:
        """The descriptors of all tools, from all pages (server/tools).

        timeout: for each page.  From then on the results of tools are validated; a
        RuntimeWarning says which do not match their output schema.
        """
        tools = self._list("tools/list", timeout)
        schemas = {str(tool.get("name")): tool.get("outputSchema") for tool in tools}
        self._outputs = {
            name: OutputSchema(schema, WRAPS_RESULT in schema, foreign=True)
            for name, schema in schemas.items() if type(schema) is dict}
        return tools

    def list_resources(self, *, timeout: float | None = None) -> list[Json]:
        """The descriptors of all resources (server/resources)."""
        return self._list("resources/list", timeout)

    def list_resource_templates(self, *, timeout: float | None = None) -> list[Json]:
        """The descriptors of all resource templates (server/resources)."""
        return self._list("resources/templates/list", timeout)

    def list_prompts(self, *, timeout: float | None = None) -> list[Json]:
        """The descriptors of all prompts (server/prompts)."""
        return self._list("prompts/list", timeout)

    # -- resources, prompts, completion

    def read_resource(self, uri: str, *, timeout: float | None = None,
                      ) -> list[ResourceContents]:
        """The contents of a resource, with `.text` and `.data` (server/resources)."""
        result = self._request("resources/read", {"uri": uri}, timeout)
        return [*map(ResourceContents.of, list_of_objects(result, "contents"))]

    def get_prompt(self, name: str, arguments: dict[str, str] | None = None, *,
                   timeout: float | None = None) -> Json:
        """The `messages` of a prompt, and its `description` (server/prompts)."""
        params = {"name": name, "arguments": arguments or {}}
        return self._request("prompts/get", params, timeout)

    def complete(self, ref: str | Json, argument: str, value: str,
                 context: dict[str, str] | None = None, *,
                 timeout: float | None = None) -> Json:
        """Complete an argument; return a dict of `values`, `total`, `hasMore`.

        ref: the name of a prompt, a URI template, or a dict as in the protocol.  value:
        the text so far.  context: the other arguments (server/utilities/completion).
        """
        if type(ref) is str:
            ref = {"type": "ref/resource", "uri": ref} if "{" in ref else {
                "type": "ref/prompt", "name": ref}
        completion = self._request("completion/complete", {
            "ref": ref, "argument": {"name": argument, "value": value},
            **wire_fields(context=context and {"arguments": context})}, timeout,
            ).get("completion")
        if type(completion) is not dict or type(completion.get("values")) is not list:
            raise invalid_response('"completion" has no list of values')
        return completion

    def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Subscribe to a resource: message_handler is called when it has changed.

        If the server ends the subscription, message_handler gets a notification
        `notifications/cancelled` with that reason (server/resources, "Subscriptions").
        """
        # In both eras the server must have declared what this method needs.
        policy = self._session_for("resources/subscribe").policy
        policy.subscribe(uri, self._seconds(timeout))
        self._subscribed[uri] = None

    def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """End a subscription; does nothing if there is none."""
        self._subscribed.pop(uri, None)
        self._live_session().policy.unsubscribe(uri, self._seconds(timeout))

    def set_logging_level(self, level: str, *, timeout: float | None = None) -> None:
        """Let the server send log messages of this level and above.

        McpError: there is no such level (server/utilities/logging).
        """
        if level not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}")
        policy = self._session_for("logging/setLevel").policy
        policy.set_level(level, self._seconds(timeout))
        self.level = level


def answer_form(handler: Handler, params: Json) -> Json:
    """The answer to elicitation/create, made of what an elicitation_handler returns."""
    schema = params.get("requestedSchema")
    answer = handler(params.get("message", ""), schema, params)
    names = [*as_object(as_object(schema).get("properties"))]
    if not names and type(answer) is bool:  # the form asks for consent only
        answer = {} if answer else None
    if type(answer) is dict and "action" in {*answer} - {*names}:  # as in the protocol
        answer = Elicited(answer["action"], answer.get("content"))
    if not isinstance(answer, Elicited):
        answer = Elicited("decline" if answer is None else "accept", answer)
    if answer.action != "accept" or schema is None:
        return {"action": answer.action}
    content = {} if answer.content is None else answer.content
    if type(content) is not dict and len(names) == 1:  # the form asks for one value
        content = {names[0]: content}
    problems = "; ".join(Validator(schema, foreign=True).problems(content))
    if problems:
        raise ValueError(f"The answer does not fit the form: {problems}")
    return {"action": answer.action, "content": content}


def answer_url(handler: Handler, params: Json) -> Json:
    answer = handler(params.get("message", ""), params.get("url", ""), params)
    if isinstance(answer, Elicited):
        return {"action": answer.action}
    return {"action": "accept" if answer is True else "decline"}


def answer_sampling(handler: Handler, params: Json) -> Json:
    answer = handler(params.get("messages") or [], params)
    if answer is None:
        raise McpError(USER_REJECTED, "User rejected sampling request")
    return answer if isinstance(answer, dict) else {
        "role": "assistant", "content": Text(str(answer)),
        "model": "unknown", "stopReason": "endTurn"}


ANSWER_FUNCTIONS: dict[Any, Any] = {  # of (the user's handler or roots, the params)
    "form":     answer_form,
    "url":      answer_url,
    "sampling": answer_sampling,
    "roots":    lambda roots, params: {"roots": roots},
}


class MultiRoundRequest:
    """Sends a request again with answers, as long as its result asks for some.

    See basic/patterns/mrtr.
    """

    def __init__(self, session: ClientSession, params: Json) -> None:
        self._session, self._params = session, params
        self._rounds = 0
        self._pause = 0.0         # between rounds that ask for nothing
        self._deadline = 0.0      # when these rounds must end

    def more(self, request: OutgoingRequest, result: Json) -> bool:
        """If the result needs input, go on in the pool: the user may take long."""
        if result.get("resultType") != "input_required":
            return False
        connection = self._session.connection
        if connection.requests_out.park(request):
            connection.pool.submit(partial(self._go_on, request, result))
        else:
            request.finish(error=self._session.closed_error())
        return True

    def _go_on(self, request: OutgoingRequest, result: Json) -> None:
        connection = self._session.connection
        try:
            params = self._next_params(request, result)
            encode(params)  # raises an error if an answer is not JSON
        except BaseException as error:
            if not isinstance(error, (McpError, RequestTimeout)):  # of a user's handler
                log_exception(f"mcp_min: answering {request.method} failed")
                error = McpError(INTERNAL_ERROR, error_text(error))
            connection.requests_out.remove(request)
            request.finish(error=error)
        else:
            params = self._session.policy.add_meta(params)
            connection.send_request(request, params, with_token=True)

    def _next_params(self, request: OutgoingRequest, result: Json) -> Json:
        """The params of the next round, with the answers and the server's state."""
        row = METHODS.get(request.method)
        if row is None or not row.asks:
            raise invalid_response(f"{request.method} may not ask for input")
        questions = self._session.policy.input_requests(result)
        if not questions:
            self._wait(request)
        else:
            self._rounds += 1
            self._pause = 0.0
        if self._rounds > MAX_ROUNDS:
            raise invalid_response(f"asked {self._rounds} times in a row for input")
        answer = self._session.client.answer_question
        version = self._session.policy.version
        answers = {key: answer(question["method"], question.get("params") or {},
                               version)
                   for key, question in questions.items()}
        return {**self._params,
                **wire_fields(inputResponses=answers or None,
                              requestState=result.get("requestState"))}

    def _wait(self, request: OutgoingRequest) -> None:
        """Pause before the next round; RequestTimeout after the request's timeout."""
        from concurrent.futures import wait

        now = time.monotonic()
        if not self._pause:
            self._deadline = now + request.timeout
        if now >= self._deadline:
            raise self._session.timeout_error(
                f"{request.method}: input required, but none asked for, for "
                f"{request.timeout:g} s")
        self._pause = 2 * self._pause or EMPTY_ROUND_SECONDS
        wait([request.future], min(self._pause, self._deadline - now))


def tool_params(name: str, arguments: Json | None, meta: Json | None) -> Json:
    params: Json = {"name": name, "arguments": arguments or {}}
    return {**params, "_meta": meta} if meta else params


def list_of_objects(result: Json, key: str) -> list[Json]:
    """The list of objects under a key of a result; McpError: there is none."""
    objects = result.get(key)
    if type(objects) is not list or any(type(item) is not dict for item in objects):
        raise invalid_response(f'"{key}" is not a list of objects')
    return objects


def root_of(root: Any) -> Json:
    """A root as it is sent.  ValueError: not a file URI (client/roots: "MUST be")."""
    fields = root if isinstance(root, dict) else {"uri": os.fspath(root)}
    uri = str(fields.get("uri"))
    if "://" not in uri and not isinstance(root, dict):
        from pathlib import Path

        uri = Path(uri).absolute().as_uri()
    if not uri.startswith("file://"):
        raise ValueError(f"a root is a path or a file URI, not {uri!r:.100}")
    return {**fields, "uri": uri}


def load_config(path: Any) -> dict[str, Json]:
    """The entries of a host's mcp.json, {"mcpServers": {name: entry}}, by name.

    Some hosts spell the key "servers".  Client takes each entry as a target and runs
    its command, so load only files that you trust.  ValueError: it has no such key.
    """
    with open(path, encoding="utf-8-sig") as file:  # some editors write a BOM
        hosts = json.load(file)
    for key in ("mcpServers", "servers"):
        if key in hosts:
            return hosts[key]  # type: ignore[no-any-return]
    raise ValueError(f'{path} has no "mcpServers"')


# -- 12. Familiar names ----------------------------------------------------------------
# The names of FastMCP and of the official SDK.  A stdio server that was written for
# them works when it imports these names from this file.  Nothing above needs this
# section, so it can be deleted; but their options are known above too.

FastMCP = Server
MCPServer = Server
TextContent = Text
ImageContent = Image
AudioContent = Audio
TextResourceContents = ResourceContents
BlobResourceContents = ResourceContents
ContentBlock = Block
CallToolResult = ToolResult
PromptMessage = Message
SamplingMessage = Message
CreateMessageResult = Sampled
MCPError = McpError
ResourceError = ToolError
PromptError = ToolError
LoggingLevel = str
Role = str


class AnyFields(Fields):
    """A JSON object of any fields, which are given by keyword."""

    def __init__(self, **fields: Any) -> None:
        given = wire_fields(**fields)
        self.update({camel_case(key): value for key, value in given.items()})

    def __getattr__(self, name: str) -> Any:
        known = name[0] == "_" or {name, camel_case(name)} & self.keys()
        return super().__getattr__(name) if known else None


ToolAnnotations = AnyFields
Annotations = AnyFields
Icon = AnyFields
ErrorData = AnyFields
Root = AnyFields
ElicitRequestURLParams = AnyFields
Completion = AnyFields
CompletionArgument = AnyFields
CompletionContext = AnyFields
ModelPreferences = AnyFields
ModelHint = AnyFields
ClientCapabilities = AnyFields
SamplingCapability = AnyFields
RootsCapability = AnyFields
Implementation = AnyFields


class UrlElicitationRequiredError(McpError):
    """A tool needs the user to visit these URLs first."""

    def __init__(self, elicitations: list[Json], message: str | None = None) -> None:
        super().__init__(URL_REQUIRED, message or "URL elicitation required",
                         {"elicitations": to_json_data(elicitations)})


class UserMessage(Message):
    """A Message of the user."""

    def __init__(self, content: Any, role: str = "user") -> None:
        super().__init__(role, content)


class AssistantMessage(Message):
    """A Message of the model."""

    def __init__(self, content: Any, role: str = "assistant") -> None:
        super().__init__(role, content)


class KnownByField(type):
    """A metaclass: `isinstance` and `match` compare one field."""

    def __instancecheck__(cls, value: Any) -> bool:
        name, expected = cls.field  # type: ignore[attr-defined]
        return bool(getattr(value, name, None) == expected)


class AcceptedElicitation(metaclass=KnownByField):
    field = "action", "accept"


class DeclinedElicitation(metaclass=KnownByField):
    field = "action", "decline"


class CancelledElicitation(metaclass=KnownByField):
    field = "action", "cancel"


class PromptReference(metaclass=KnownByField):
    field = "type", "ref/prompt"


class ResourceTemplateReference(metaclass=KnownByField):
    field = "type", "ref/resource"


class FamiliarSession:
    """`ctx.session`: the lower level of the official SDK."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.elicit = self.elicit_form = ctx.elicit
        self.elicit_url = ctx.elicit_url
        self.client_params = AnyFields(
            clientInfo=AnyFields.of(ctx.client_info),
            capabilities=AnyFields.of(ctx.client_capabilities),
            protocolVersion=ctx.protocol_version)

    def send_elicit_complete(self, elicitation_id: str) -> Awaitable[None]:
        return self._ctx.notify("notifications/elicitation/complete",
                                {"elicitationId": elicitation_id})

    async def list_roots(self) -> Any:
        roots: Any = await self._ctx.list_roots()  # type: ignore[misc]
        return AnyFields(roots=[AnyFields.of(root) for root in roots])

    def send_log_message(self, level: str, data: Any, logger: str | None = None,
                         related_request_id: Any = None) -> Awaitable[None]:
        return self._ctx.log(level, data, logger)

    def send_progress_notification(
            self, progress_token: Any, progress: float, total: float | None = None,
            message: str | None = None,
            related_request_id: Any = None) -> Awaitable[None]:
        return self._ctx.report_progress(progress, total, message)

    def send_resource_updated(self, uri: Any) -> Awaitable[None]:
        self._ctx.server.notify_resource_updated(str(uri))
        return DONE

    def create_message(self, messages: Any, *, max_tokens: int = 512,
                       **params: Any) -> Sampled:
        return self._ctx.sample([*messages], max_tokens=max_tokens, **{
            key: value for key, value in params.items() if key != "related_request_id"})

    def _list_changed(self, capability: str) -> Awaitable[None]:
        self._ctx.server.notify_list_changed(capability)
        return DONE

    send_tool_list_changed = partialmethod(_list_changed, "tools")
    send_prompt_list_changed = partialmethod(_list_changed, "prompts")
    send_resource_list_changed = partialmethod(_list_changed, "resources")


class FamiliarRequest:
    """`ctx.request_context`."""

    def __init__(self, ctx: Context) -> None:
        self.request_id, self.meta = ctx.request_id, AnyFields.of(ctx.meta)
        self.session, self.lifespan_context = FamiliarSession(ctx), ctx.lifespan_context


def custom_route(server: Server, path: str, *_: Any, **__: Any) -> Any:
    """A decorator without effect, and a warning: there is no HTTP here."""
    warn(f"mcp_min: custom_route({path!r}) needs HTTP, and has no effect over stdio\n")
    return lambda fn: fn


def settings_of(server: Server) -> Any:
    """The options of the constructor that have no effect over stdio."""
    from types import SimpleNamespace

    return SimpleNamespace(**{"log_level": "INFO", "debug": False, "host": "127.0.0.1",
                              "port": 8000, **server.ignored})


def add_resource_fn(server: Server, fn: Any, uri: str, **options: Any) -> Any:
    """The same as add_resource(uri, fn)."""
    return server.add_resource(uri, fn, **options)


def without_http(*_: Any, **__: Any) -> NoReturn:
    """NotImplementedError: this needs HTTP."""
    raise NotImplementedError("this needs HTTP, and mcp_min serves stdio only: put a "
                              "proxy such as mcp-proxy in front of it")


def get_context() -> Context:
    """The Context of the handler that calls this.  LookupError: there is none."""
    ctx = sys.modules.get("asyncio") and task_context().get()
    frame: Any = sys._getframe(1)
    # A `def` handler is called by a function of this file that has the Context.
    while frame and not isinstance(ctx, Context):
        if frame.f_code.co_filename == get_context.__code__.co_filename:
            ctx = frame.f_locals.get("ctx")
        frame = frame.f_back
    if not isinstance(ctx, Context):
        raise LookupError("no request is served on this thread")  # noqa: TRY004
    return ctx


def get_logger(name: str) -> Any:
    """A logger of the standard library."""
    import logging

    return logging.getLogger(name)


async def set_state(ctx: Context, key: str, value: Any) -> None:
    """Keep a value for this connection."""
    states_of(ctx)[key] = value


async def get_state(ctx: Context, key: str) -> Any:
    """The value that was kept for this connection, or None."""
    return states_of(ctx).get(key)


def states_of(ctx: Context) -> Json:
    states: Json = vars(ctx.incoming.connection.owner).setdefault("states", {})
    return states


def model_dump(fields: Fields, **_: Any) -> Json:
    """The fields as a dict."""
    return dict(fields)


def model_dump_json(fields: Fields, **_: Any) -> str:
    """The fields as JSON text."""
    return json.dumps(fields)


def identity(block: Block) -> Block:
    """The block itself."""
    return block


def add_members(owner: Any, **members: Any) -> None:
    for name, member in members.items():
        setattr(owner, name, member)


add_members(
    Context, request_context=property(FamiliarRequest),
    session=property(FamiliarSession),
    client_id=property(lambda ctx: ctx.meta.get("client_id"), doc="From `_meta`."),
    session_id=property(lambda ctx: f"{id(ctx.incoming.connection):x}", doc="A name."),
    transport=property(lambda ctx: "stdio", doc="Always stdio."),
    set_state=set_state, get_state=get_state,
    fastmcp=property(lambda ctx: ctx.server, doc="The server."),
    mcp_server=property(lambda ctx: ctx.server, doc="The server."))
add_members(
    Server, run_stdio_async=Server.run_async, get_context=staticmethod(get_context),
    settings=property(settings_of),
    custom_route=custom_route, add_resource_fn=add_resource_fn,
    **dict.fromkeys("sse_app streamable_http_app http_app run_sse_async "
                    "run_streamable_http_async run_http_async".split(), without_http))

add_members(Fields, model_dump=model_dump, model_dump_json=model_dump_json)
add_members(Block, to_image_content=identity, to_audio_content=identity)

NEEDS_HTTP = ("it is for HTTP, and mcp_min serves stdio only; put a proxy such as "
              "mcp-proxy in front of it")
LOW_LEVEL = "register functions instead: @server.tool, @server.resource, @server.prompt"
USE_CLIENT = "Client([command, *args], env=…, cwd=…) starts a server and talks to it"
USE_CONTEXT = "annotate a parameter of the handler: ctx: Context"
REFUSED_NAMES = {  # names that do not exist here: what to use instead
    **dict.fromkeys((
        "AuthSettings AccessToken TokenVerifier AuthProvider OAuthProvider OAuthProxy "
        "BearerAuthProvider JWTVerifier RemoteAuthProvider GitHubProvider "
        "GoogleProvider OAuthAuthorizationServerProvider TransportSecuritySettings "
        "EventStore StreamableHTTPSessionManager SseServerTransport "
        "create_mcp_http_client "
        "get_http_request get_http_headers get_access_token").split(), NEEDS_HTTP),
    **dict.fromkeys((
        "NotificationOptions InitializationOptions ReadResourceContents "
        "ListToolsResult ListToolsRequest CallToolRequest "
        "create_initialization_options").split(), LOW_LEVEL),
    **dict.fromkeys((
        "StdioServerParameters stdio_client sse_client streamablehttp_client "
        "streamable_http_client StdioTransport PythonStdioTransport ClientTransport "
        "StreamableHttpTransport create_connected_server_and_client_session "
        "ClientSessionGroup").split(), USE_CLIENT),
    **dict.fromkeys("CurrentContext Depends".split(), USE_CONTEXT),
    "configure_logging": "use logging",
    "Middleware": "use @server.middleware",
}

if not TYPE_CHECKING:  # hidden from type checkers, which report unknown names
    def __getattr__(name: str) -> Any:
        if name in ("types", "base"):  # `from mcp import types`
            return sys.modules[__name__]
        if name in REFUSED_NAMES:
            raise ImportError(f"mcp_min has no {name}: {REFUSED_NAMES[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- 13. Command line ------------------------------------------------------------------
# Shows the protocol at work, and looks into any server.  Results go to stdout, all else
# to stderr.  What a server sends is escaped, so that it cannot control the terminal.


def demo_server() -> Server:
    """A server with one of everything: `serve` runs it, `demo` talks to it."""
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


DEMO = {  # for each revision: an explanation, the Python that shows it, its value
    LEGACY_VERSIONS[-1]: """
# The handshake: both ends agree on a revision and say what they can do
client.connect().server_info['name']  # 'demo'
# A list comes in pages; only the server knows what a cursor means
[tool['name'] for tool in client.list_tools()]  # ['count', 'order']
# A tool is called; it reports its progress by the token in the request
client.call_tool('count', {'to': 2}).text  # 'counted to 2'
# A mistake is a result, not an error: the model reads it and does better
client.call_tool('count', raise_on_error=False).is_error  # True
# A cancellation: the call gets no response, the next one is that of the ping
client.submit_tool('count', {'to': 9}).cancel(), client.ping()  # (True, None)
# A resource is data with an address; this one is made from a template
client.read_resource('demo://hello/Ada')[0].text  # 'Hello, Ada!'
# A prompt is a text that a person chooses to start from
len(client.get_prompt('review', {'language': 'C'})['messages'])  # 1
# A completion helps to fill in a field
client.complete('review', 'language', 'Py')['values']  # ['Python']
# A question to the user: the server sends a request while its tool waits
client.call_tool('order', {'dish': 'toast'}).text  # 'toast with lemon'
# Logging: remarks of a tool, from a chosen level on
client.set_logging_level('debug')  # None
client.call_tool('count', {'to': 0}).text  # 'counted to 0'
""",
    MODERN_VERSIONS[-1]: """
# No handshake: discovery is optional, and the server keeps no state
client.connect().server_info['name']  # 'demo'
# A tool: each request says in `_meta` what a handshake would have settled
client.call_tool('count', {'to': 1}).text  # 'counted to 1'
# A question: the server sends no request, its result asks for input
client.call_tool('order', {'dish': 'pie'}).text  # 'pie with lemon'
"""}
EXPLAINED = {  # the first of these keys that a line contains explains it
    "inputResponses": "the same call, with the answers and the state",
    "inputRequests": "not finished: answer this, then call again with this state",
    "nextCursor": "a page, and the cursor of the next", "cursor": "the next page",
    "initialize": "hello: the revision I prefer, what I can do, who I am",
    "protocolVersion": "hello: the revision we use, what I can do, who I am",
    INITIALIZED: "ready (a notification: it has no id, nobody answers it)",
    "tools/list": "which tools are there?", "tools/call": "run this tool",
    PROGRESS: "this far", "isError": "it failed, and why", LOG_MESSAGE: "a remark",
    CANCELLED: "never mind: stop, and do not answer", "action": "the user's answer",
    "elicitation/create": "a question for your user", "ping": "are you there?",
    "resources/read": "what is at this address?", "prompts/get": "fill in this prompt",
    "completion/complete": "what could it become?", "logging/setLevel": "tell me more",
    "server/discover": "who are you, and what do you speak?",
    "subscriptions/listen": "keep me posted (a request that stays open)",
    ACKNOWLEDGED: "I will, about this", "method": "a message", "id": "the response"}


class NarratingClient(Client):
    """Prints each line with an explanation: a trace for beginners."""

    def _start_server(self) -> ClientSession:
        session = super()._start_server()
        session.connection.trace = Trace(self._narrate)
        return session

    def _narrate(self, traced: str) -> None:
        _, arrow, line = traced.rstrip().partition("  # ")[0].split(" ", 2)
        texts = [EXPLAINED[key] for key in EXPLAINED if f'"{key}"' in line]
        color, mark = (36, "-->") if arrow == ">" else (33, "<--")
        cli_print(f"  {mark} {(texts or ['no message'])[0]}", color=color)
        cli_print("\n".join("      " + part for part in re.findall(
            ".{1,74}$|.{1,73},|.{1,74}", line)))


def cli_print(text: str, stream: Any = None, color: int = 0, end: str = "\n",
              erase: bool = False) -> None:
    """Print text, escaped; the only function of the command line that prints.

    color: an SGR code, for a terminal.  erase: first erase the progress bar.
    """
    stream = stream or sys.stdout
    text, tty = escape_control(text), stream.isatty()
    if color and tty and not os.environ.get("NO_COLOR"):
        text = f"\33[{color}m{text}\33[m"
    if erase and tty:
        text = "\r\33[K" + text
    print(text, end=end, file=stream, flush=True)


def cli_demo(_: Any) -> None:
    cli_print("A client (-->) and a server (<--): two processes, and a pipe each way.\n"
              "Below is every line that crosses, and each is a JSON-RPC message.")
    for revision, script in DEMO.items():
        cli_print(f"\nRevision {revision}", color=1)
        client = NarratingClient(
            [sys.executable, os.path.abspath(__file__), "serve"], mode=revision,
            elicitation_handler=lambda *question: {"value": "lemon"})
        for line in script.strip().splitlines():
            code, _, comment = line.partition("# ")
            if not code:
                cli_print("\n" + comment, color=1)
                continue
            cli_print(f"  >>> {code.rstrip()}")
            value = repr(eval(code, {"client": client}))
            cli_print(f"  {value}")
            if value != comment:
                raise SystemExit(f"mcp_min: this should have been {comment}")
        client.close()
    cli_print("\nAll as it should be.  Now look at yours: mcp_min.py list COMMAND...")


YES_AND_NO = {"y": "true", "yes": "true", "n": "false", "no": "false"}


class CliClient(Client):
    """Shows on stderr what a server sends, and asks the user at the terminal."""

    def __init__(self, args: Any) -> None:
        interactive = sys.stdin.isatty() and sys.stderr.isatty()
        handler: Any = self.elicit if interactive else None
        if args.answer is not None:
            def handler(*_: Any) -> Any:
                return json.loads(args.answer)
        super().__init__(
            cli_target(args), env={"PYTHONUNBUFFERED": "1", **args.env},
            inherit_env=args.inherit_env, cwd=args.cwd,
            timeout=args.timeout or 60.0, mode=args.mode,
            log_handler=lambda p: self.show(f"log {p.get('level')}", p.get("data")),
            elicitation_handler=handler,
            url_handler=self.elicit_url if interactive else None,
            progress_handler=self.show_progress, stderr=partial(self.show, "stderr"))
        # The timeout of requests that may ask the user, who may take long.
        self.user_timeout = args.timeout or (float("inf") if interactive else None)

    def write(self, text: str) -> None:
        cli_print(text, sys.stderr, end="", erase=True)

    def show(self, label: str, data: Any) -> None:
        text = data if type(data) is str else json.dumps(data)
        label = " ".join(label.split())  # part of it may come from the server
        self.write("".join(f"{label}: {line}\n" for line in text.splitlines()))

    def show_progress(self, progress: float, total: float | None,
                      message: str | None) -> None:
        text = f"{progress:g}/{total or '?'} {message or ''}".rstrip()
        if sys.stderr.isatty():
            bar = "#" * int(30 * min(1, progress / total)) if total else ""
            self.write(ascii(f"[{bar:30}] {text}")[1:-1][:79])
        else:
            self.show("progress", text)

    def elicit_url(self, message: str, url: str, params: Json) -> bool:
        key = f"open {url}"
        consent = {"required": [key], "properties": {key: {"enum": ["yes"]}}}
        return self.elicit(message, consent, params) is not None

    def elicit(self, message: str, schema: Any, params: Json) -> Any:
        """Ask the user to fill in a form until it is valid; Ctrl-D declines."""
        self.show("the server asks", message)
        form, fields = {}, as_object(as_object(schema).get("properties"))
        consent = {"accept": {"type": "string", "enum": ["yes", "no"]}}
        for key, field in (fields or consent).items():
            self.write(" ".join(f"{key} ({cli_describe(field)}):".split()) + " ")
            # Not from sys.stdin: a thread inside it would abort the interpreter at
            # exit.  (On Windows this reads UTF-8.)
            with open(0, "rb", buffering=0, closefd=False) as console:
                data = console.read(65536) or b""
            text = data.decode("utf-8", "replace").strip()
            if not data:
                return None
            if type_names(field) == ["boolean"]:
                text = YES_AND_NO.get(text.lower(), text)
            if text or "default" in field:
                form[key] = cli_value(text, field) if text else field["default"]
        if not fields:
            return {} if form.get("accept") in ("yes", "y") else None
        problems = Validator(schema, foreign=True).problems(form)
        if not problems:
            return form
        self.show("once more", "; ".join(problems))
        return self.elicit(message, schema, params)

    def everything(self) -> Json:
        """What the server offers."""
        lists = {row.list_key: self._list(method, None)
                 for method, row in METHODS.items()
                 if row.list_key and row.capability in self.server_capabilities}
        return wire_fields(
            serverInfo=self.server_info, protocolVersion=self.protocol_version,
            capabilities=self.server_capabilities, instructions=self.instructions,
            **lists)

    def request_for(self, verb: str, name: str, pairs: list[str]) -> tuple[str, Json]:
        """The method and the params of a request; pairs: KEY=VALUE or JSON."""
        if verb == "read":
            return "resources/read", {"uri": name}
        method, schema, arguments = "prompts/get", {}, {}
        if verb == "call":
            tools = {tool.get("name"): tool for tool in self.list_tools()}
            if name not in tools:
                raise ValueError(f"no tool {name}; `list` shows what there is")
            method, schema = "tools/call", tools[name].get("inputSchema", {})
        for pair in pairs:
            key, equals, text = pair.partition("=")
            if pair[:1] == "{":
                arguments.update(json.loads(pair))
            elif equals:
                field = as_object(schema.get("properties", {}).get(key))
                arguments[key] = cli_value(
                    text, {"$defs": schema.get("$defs", {}), **field})
            else:
                raise ValueError(f"{pair} is no KEY=VALUE (and `--` precedes COMMAND)")
        return method, {"name": name, "arguments": arguments}


def cli_target(args: Any) -> Any:
    """The server to start: COMMAND, or an entry of a host's configuration."""
    if args.config:
        path, name = args.config[0], args.config[-1]
        try:
            entries = load_config(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None
        if name not in entries:
            raise ValueError(f"{path} has no {name}; it has: {', '.join(entries)}")
        return entries[name]
    if not args.command:
        raise ValueError("which server? COMMAND is missing (after `--`, except for "
                         "list and trace), or --config FILE NAME")
    if args.command[0].endswith(".py"):
        return [sys.executable, *args.command]
    return args.command


def cli_value(text: str, schema: Json) -> Any:
    """The text if it matches the schema, or else the JSON that it contains."""
    try:
        valid = not Validator(schema, foreign=True).problems(text)
        return text if valid else json.loads(text)
    except ValueError:  # let the server refuse it
        return text


def cli_query(args: Any) -> int:
    """Send a request to a server and show its result; Ctrl-C cancels it."""
    if args.config and len(args.config) == 1 and args.verb == "list":
        for name, entry in load_config(args.config[0]).items():
            argv = [entry.get("command") or entry.get("url"), *entry.get("args", ())]
            cli_print(f"{name}: {' '.join(map(str, argv))}")
        return 0
    with CliClient(args) as client:
        try:
            result = client.everything() if args.verb == "list" else client.request(
                *client.request_for(args.verb, args.name, args.arguments),
                timeout=client.user_timeout)
        except RequestTimeout:
            if args.verb == "call":  # a server made with this file says where it hangs
                client.show("note", "no answer; does the server say where it hangs?")
                time.sleep(STUCK_SECONDS + 0.5)
            raise
        except McpError as error:
            if "capability: elicitation" in str(error):
                client.show("note", "this command line answers what a server asks only "
                            "at a terminal, or with --answer JSON")
            raise
        except KeyboardInterrupt:
            client.show("cancelled", "the server is notified; Ctrl-C again to leave")
            raise
    client.write("")
    stray = client.stray_output
    if stray:
        client.show("warning", f"the server wrote to stdout what is no message, "
                    f"{stray[0][:60].decode('utf-8', 'replace')!r} for example; many "
                    "hosts give up at that.  Print to stderr, or start it with: "
                    "mcp_min.py run FILE.py")
    is_error = result.get("isError") is True
    lines = cli_wrap(cli_overview(result)) if args.verb == "list" else cli_texts(result)
    cli_print(json.dumps(result, indent=2) if args.json else "\n".join(lines),
              sys.stderr if is_error and not args.json else sys.stdout)
    return int(is_error)


def cli_texts(result: Json) -> Iterator[str]:
    """The text of each part of a result."""
    parts = [part for key in ("content", "contents", "messages")
             for part in result.get(key, ())]
    for part in parts:
        block = part.get("content", part)
        other = f"{json.dumps(block):.75}..."
        text = block.get("resource", block).get("text", other)
        yield f"{part['role']}: {text}" if "role" in part else text
    if not parts and "structuredContent" in result:
        yield json.dumps(result["structuredContent"], indent=2)


def cli_overview(offered: Json) -> Iterator[tuple[int, str]]:
    """What a server offers, as lines and the indent of each."""
    info = offered["serverInfo"]
    version = f"{info.get('version')}, revision {offered['protocolVersion']}"
    yield 0, " ".join(f"{info.get('name')} {version}".split())
    yield 2, f"offers {', '.join(offered['capabilities']) or 'nothing'}"
    yield 2, offered.get("instructions") or ""
    for key in (row.list_key for row in METHODS.values() if row.list_key in offered):
        yield 0, f"\n{key} ({len(offered[key])})"
        for item in offered[key]:
            yield 2, str(item.get("uri") or item.get("uriTemplate") or item.get("name"))
            yield 4, item.get("description") or ""
            schema = item.get("inputSchema") or {}
            arguments = {argument.get("name"): {"type": "string", **argument}
                         for argument in item.get("arguments") or ()}
            for name, field in {**schema.get("properties", {}), **arguments}.items():
                field = as_object(field)  # it may be true: any value
                required = field.get("required") is True or (
                    name in schema.get("required", ()))
                text = f"{name}{'' if required else '?'}: {cli_describe(field)}"
                yield 6, f"{text}  {field.get('description') or ''}"


def cli_wrap(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    import textwrap

    for indent, text in lines:
        for line in text.splitlines():  # textwrap is quadratic in a long word
            yield textwrap.fill(line[:2000], 80, initial_indent=" " * indent,
                                subsequent_indent=" " * (indent + 2))


def cli_describe(schema: Json) -> str:
    """A schema in a few words."""
    schema = as_object(schema)
    choices = schema.get("enum") or schema.get("anyOf") or schema.get("oneOf") or (
        [schema["const"]] if "const" in schema else type_names(schema) or ["any"])
    text = " | ".join(cli_describe(choice) if type(choice) is dict else str(choice)
                      for choice in choices)
    if type(schema.get("items")) is dict:
        text += f" of {cli_describe(schema['items'])}"
    if schema.get("properties"):
        parts = (f"{key}: {cli_describe(part)}"
                 for key, part in schema["properties"].items())
        text = f"{{{', '.join(parts)}}}"
    limits = [f"{keyword} {schema[keyword]}" for keyword in (
        *CONSTRAINTS.values(), "minLength", "maxLength", "minItems", "maxItems",
        "format") if keyword in schema]
    if limits:
        text += f" ({', '.join(limits)})"
    return text + (f" = {json.dumps(schema['default'])}" if "default" in schema else "")


def cli_run(args: Any) -> None:
    """Serve a file's Server, or its functions; stdout is taken before it can print."""
    path, colon, name = args.name.partition(".py:")
    path = os.path.abspath(path + ".py" if colon else path)
    if not os.path.isfile(path):
        module, colon, name = args.name.partition(":")
        if not colon or os.sep in module:
            raise ValueError(f"there is no file {path}, nor is it PACKAGE.MODULE:NAME")
        path = ""
    sys.modules["mcp_min"] = sys.modules[__name__]  # what the file imports is this one
    sys.path.insert(0, os.path.dirname(path) if path else os.getcwd())
    with Signals(), StandardStreams() as (reader, writer):
        loaded = cli_load(path) if path else cli_import(module)
        cli_find_server(loaded, name).serve(reader, writer, own_reader=True,
                                            threaded=not args.unthreaded)


def cli_import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise SystemExit(f"mcp_min: {name}: {error}") from None


def cli_load(path: str) -> Any:
    module: Any = type(sys)(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules.setdefault(module.__name__, module)  # it must not replace a library
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), vars(module))  # noqa: S102
        return module
    except Exception as error:
        import traceback

        line = getattr(error, "lineno", 0)  # of a SyntaxError
        for frame in traceback.extract_tb(error.__traceback__):
            line = frame.lineno if frame.filename == path else line
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise SystemExit(f"mcp_min: {path}:{line}: {text}") from None


def cli_find_server(module: Any, name: str) -> Any:
    """The Server in a module; or a new one of its public functions as tools."""
    servers = {key: value for key, value in vars(module).items()
               if hasattr(type(value), "add_tool") and name in ("", key)}
    if len(servers) == 1:
        return servers.popitem()[1]
    if servers or name:
        names = ", ".join(sorted(servers))
        raise ValueError(f"which server? There is {names or 'none of that name'}.")
    server = Server(module.__name__, instructions=module.__doc__)
    for key, value in vars(module).items():
        defined_here = getattr(value, "__module__", None) == module.__name__
        if defined_here and key[0] != "_" and hasattr(value, "__code__"):
            server.add_tool(value)
    if not server.offers("tools"):
        raise ValueError(f"{module.__file__} has neither a Server nor public functions")
    return server


def cli_trace(args: Any) -> int:
    """Start a server, relay all that it and its host send, and write a trace of it.

    Bytes, environment variables, signals and the exit status pass unchanged.
    """
    import signal

    argv, env, cwd = resolve_command(cli_target(args), args.env, args.cwd)
    trace = Trace.to(args.to)
    child = start_process(argv, child_environment(env, True), cwd, stderr=None,
                          bufsize=-1, creationflags=0x200 if os.name == "nt" else 0)
    for name in {"SIGINT", "SIGTERM", "SIGHUP"} & {*dir(signal)}:
        signal.signal(getattr(signal, name), lambda number, _: getattr(
            os, "killpg", os.kill)(child.pid, number))
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115
    start_thread("mcp trace", partial(cli_relay, trace, ">", stdin, child.stdin))
    ended = threading.Event()

    def relay_output() -> None:
        cli_relay(trace, "<", child.stdout, sys.stdout.buffer)
        ended.set()

    if os.name == "nt":  # no signal interrupts a wait there
        start_thread("mcp trace", relay_output)
        while not ended.wait(0.5):
            pass
    else:
        relay_output()
    code: int = child.wait()
    if os.name == "nt":
        return code - (code >> 31 << 32)  # signed, as sys.exit takes it
    if code < 0:  # end by the same signal
        if code != -9:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


CONNECT_SECONDS = 5.0  # that an application may take to listen


def cli_connect(args: Any) -> int:
    """Relay stdin and stdout to a server that listens inside an application.

    Ends with either side.  While the application does not listen, each request is
    answered with an error; the next request tries again.
    """
    import socket

    line, sock = b"", cli_open_socket(args.name, CONNECT_SECONDS)
    stdin = open(0, "rb", closefd=False)  # noqa: SIM115
    while sock is None:
        line = stdin.readline()
        if not line:
            return 1
        sock = cli_open_socket(args.name, 0)
        if sock is None:
            cli_refuse(line, args.name)
    stdin_ended = threading.Event()

    def send() -> None:
        try:
            sock.sendall(line)
            for chunk in iter(partial(stdin.read1, 65536), b""):
                sock.sendall(chunk)
            stdin_ended.set()
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the loop below sees the end too

    start_thread("mcp connect", send)
    try:
        for chunk in iter(partial(sock.recv, 65536), b""):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    except ConnectionError:
        pass
    if stdin_ended.is_set():
        return 0
    cli_print(f"mcp_min: {args.name} has closed the connection", sys.stderr)
    return 1


def cli_open_socket(address: str, seconds: float) -> Any:
    """A socket connected to [HOST:]PORT or a path; None if that does not listen."""
    import socket

    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        if not (port.isdecimal() or hasattr(socket, "AF_UNIX")):
            raise ValueError("no Unix sockets here: give a port")
        sock = socket.socket() if port.isdecimal() else socket.socket(socket.AF_UNIX)
        try:
            sock.connect((host or "127.0.0.1", int(port)) if port.isdecimal()
                         else address)
            return sock
        except OSError:
            sock.close()
            if time.monotonic() >= end:
                return None
            time.sleep(0.1)


def cli_refuse(line: bytes, address: str) -> None:
    """Answer a request with an error, because the application does not listen."""
    try:
        message = decode(line.rstrip(), MAX_DEPTH)
        if classify(message) != "request":
            return
    except McpError:
        return
    error = McpError(INTERNAL_ERROR, f"nobody listens on {address}: start the "
                     "application and the MCP server in it, then try again")
    cli_print(encode({"jsonrpc": "2.0", "id": message["id"], "error": error.to_json()})
              .decode(), end="")


def cli_config(args: Any) -> None:
    """Print the entry for a host's mcp.json."""
    path = os.path.abspath(args.name)
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    name = os.path.splitext(os.path.basename(path))[0]
    name = args.arguments[0] if args.arguments else name
    entry = {"command": sys.executable, "args": [path]}
    cli_print(json.dumps({"mcpServers": {name: entry}}, indent=2))


def cli_relay(trace: Trace, arrow: str, source: Any, sink: Any) -> None:
    try:
        with source, sink:
            for line in iter(partial(source.readline, 1 << 20), b""):
                trace.show(arrow, line)  # first, so that its response is shown after it
                sink.write(line)
                sink.flush()
    except OSError:
        pass  # one end has closed


COMMANDS = (  # name, function, arguments, help
    ("demo", cli_demo, "", "a session with a server, line by line and explained"),
    ("serve", lambda _: demo_server().run(), "", "that server, for a host to start"),
    ("list", cli_query, "COMMAND...", "what a server offers"),
    ("call", cli_query, "TOOL [KEY=VALUE...|JSON] -- COMMAND...", "call a tool"),
    ("read", cli_query, "URI -- COMMAND...", "read a resource"),
    ("prompt", cli_query, "NAME [KEY=VALUE...] -- COMMAND...", "get a prompt"),
    ("run", cli_run, "FILE.py[:name]|package.module:name",
     "serve a file's Server, or its functions"),
    ("trace", cli_trace, "COMMAND...", "relay a server's lines, and write them down"),
    ("connect", cli_connect, "[HOST:]PORT|PATH",
     "relay to a server inside an application"),
    ("config", cli_config, "FILE.py [NAME]", "the entry for a host's mcp.json"))


def cli_add_options(parser: Any, verb: str) -> None:
    """Add the options of the commands that start a server."""
    add = parser.add_argument
    add("--config", nargs="+" if verb == "list" else 2, metavar=("FILE", "NAME"),
        help="a server in an mcp.json")
    add("--env", action="append", metavar="KEY[=VALUE]", help="set or copy")
    add("--inherit-env", action="store_true", help="copy all variables, as trace does")
    add("--cwd", metavar="DIR", help="the directory it starts in")
    add("--timeout", type=float, metavar="SECONDS", help="without news (60)")
    add("--mode", choices=MODES, default="auto", metavar="REVISION",
        help=f"to speak: {', '.join(MODES)}")
    add("--answer", metavar="JSON", help="to what the server asks")
    add("--json", action="store_true", help="the raw result")
    add("--to", default="stderr", metavar="FILE", help="where a trace goes")


def cli_parse(argv: list[str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="mcp_min.py", epilog=(
        "exit status: 0 done, 1 the tool or the server failed, 2 wrong usage"))
    verbs = parser.add_subparsers(dest="verb", metavar="command", required=True)
    for verb, function, usage, text in COMMANDS:
        sub = verbs.add_parser(verb, help=text, description=text, usage=(
            f"%(prog)s [options] {usage}"))
        if "COMMAND" in usage:
            cli_add_options(sub, verb)
        if verb == "run":
            sub.add_argument("--unthreaded", action="store_true",
                             help="all handlers on the main thread, as threaded=False")
        sub.set_defaults(function=function, fail=sub.error, usage=usage, command=[],
                         env=[])
        if usage == "COMMAND...":
            sub.add_argument("command", nargs="...")
        elif usage:
            sub.add_argument("name", metavar=usage.split()[0])
    if not argv:
        parser.print_help()
        parser.exit()
    return cli_read_arguments(parser, argv)


def cli_read_arguments(parser: Any, argv: list[str]) -> Any:
    # The server's command comes after the first `--`: call TOOL KEY=VALUE -- COMMAND.
    # A `--` within a COMMAND that came before it belongs to that: list COMMAND -- X.
    end = argv.index("--") if "--" in argv else len(argv)
    args: Any
    args, args.arguments = parser.parse_known_args(argv[:end])
    if args.command:
        args.command += argv[end:]
    else:
        args.command = argv[end + 1:]
    allowed = 1 if "[NAME]" in args.usage else 99 if "KEY" in args.usage else 0
    if len(args.arguments) > allowed or any(
            argument[:1] == "-" for argument in args.arguments):
        args.fail(f"unrecognized: {' '.join(args.arguments)}")
    try:
        json.loads(getattr(args, "answer", None) or "null")
    except ValueError:
        args.fail(f"--answer: {args.answer} is no JSON")
    pairs = [pair.partition("=") for pair in args.env]
    args.env = {key: value if equals else os.environ.get(key, "")
                for key, equals, value in pairs}
    return args


def main(argv: list[str] | None = None) -> int:
    """Run a command line, by default that of sys.argv; return the exit status."""
    args = cli_parse(sys.argv[1:] if argv is None else argv)
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
        return args.function(args) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        if os.name != "nt" or error.errno != 22:  # EINVAL is EPIPE on Windows
            return cli_failed(error)
    except ValueError as error:
        args.fail(escape_control(str(error)))
    except Exception as error:
        return cli_failed(error)
    return 1


def cli_failed(error: Exception) -> int:
    """Print an error, without the server's stderr, which was shown already."""
    lines = [x for x in str(error).splitlines() if not x.startswith("  stderr: ")]
    text = "\n".join(lines) if isinstance(error, ConnectionClosed) else " ".join(lines)
    cli_print(f"mcp_min: {type(error).__name__}: {text}", sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())


# -- Changes ---------------------------------------------------------------------------
#
# 2.0.0  2026-11-22  FastMCP's words and names; one event loop; lifespans; bounds on all
#                    amounts; handlers on one thread, or without threads; `connect` and
#                    `config`; Windows.  Gone: the client's cache of results, the
#                    template operators # . and ;.
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
