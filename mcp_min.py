"""mcp_min 6.0.0: the Model Context Protocol (MCP) over stdio, both ends, in one file.

Copy it into your project: it needs Python 3.9 and nothing else:

    from mcp_min import Server
    server = Server("weather", version="1.2.0")
    @server.tool
    def forecast(city: str, days: int = 3) -> str:
        "Forecast for a city."
        return f"{city}: sun for {days} days"

    server.run()

and in another program, which starts that one:

    from mcp_min import Client
    with Client(["python3", "weather.py"]) as client:
        print(client.call_tool("forecast", {"city": "Oslo"}).text)

It speaks the revisions 2024-11-05 to 2026-07-28, without HTTP, authorization and tasks.
Sections 1 to 4 and 6 are for both ends, 5 and 7 to 11 mostly for the server, 12 and 13
the client, 14 the command line.  To learn MCP, run `mcp_min.py demo`, read 1 to 4, 6,
8, 9, 11, 13, with `Problem` (5), `Function` (7), `stdio_server`, `Reading` (10), and
`Process.close` (12).  To review it: lines of a peer come in by 3 and 4, arguments of a
model by 5 and 7; 8 signs, 10 opens a port, `Process` starts programs, `Trace` a file.
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
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial, partialmethod
from itertools import chain, count, islice, repeat
from queue import Empty, SimpleQueue
from time import monotonic, sleep, strftime, time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union
from weakref import proxy

if TYPE_CHECKING:
    from concurrent.futures import Future

__version__ = "6.0.0"
__all__ = [
    "AsyncContext", "Audio", "Cancelled", "Client", "ConnectionClosed", "Context",
    "Elicited", "EmbeddedResource", "Error", "Field", "Image", "McpError", "Message",
    "RequestTimeout", "ResourceContents", "ResourceLink", "SchemaError", "Server",
    "Text", "ToolError", "ToolResult", "stdio_server", "validate"]

Json = dict[str, Any]      # a JSON object
Line = bytes               # a message without its newline
Job = Callable[[], object]
OnTurn = Callable[[], bool]  # called when the turn of a line comes: see section 4
Handler = Optional[Callable[..., Any]]  # a function of the user
Seconds = Optional[float]  # None: for ever


# -- 1. The specification in tables ----------------------------------------------------
# What the revisions say: no code elsewhere names one by its date.  A server has tools
# (a model calls them), resources (an application reads), prompts (a user picks one); a
# client may ask its user, its model, tell of folders.  Each declares it: a capability.
LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = ["2026-07-28"]  # no handshake: each request says who asks
BOTH = LEGACY + MODERN
WITH_BATCHES = ["2024-11-05", "2025-03-26"]  # an array gets an array of responses
TELLS_MODEL = ["2025-11-25", *MODERN]  # bad arguments: a result, which the model reads


class Method(NamedTuple):  # a request that a client may send; for both ends
    handler: str           # a method of ServerSession
    capability: str = ""   # declared ("a.b": b of a); of list, call: key in `entries`
    list_key: str = ""     # of the list in its result, which comes in pages
    revisions: list[str] = BOTH


METHODS = {
    "initialize": Method("initialize", revisions=LEGACY),
    "ping": Method("ping", revisions=LEGACY),
    "server/discover": Method("discover", revisions=MODERN),
    "logging/setLevel": Method("set_level", "logging", revisions=LEGACY),
    "tools/list": Method("list_page", "tools", "tools"),
    "tools/call": Method("call_named", "tools"),
    "resources/list": Method("list_page", "resources", "resources"),
    "resources/templates/list": Method("list_page", "resources", "resourceTemplates"),
    "resources/read": Method("read_resource", "resources"),
    "resources/subscribe": Method("subscribe", "resources.subscribe", "", LEGACY),
    "resources/unsubscribe": Method("unsubscribe", "resources.subscribe", "", LEGACY),
    "subscriptions/listen": Method("open_stream", revisions=MODERN),
    "prompts/list": Method("list_page", "prompts", "prompts"),
    "prompts/get": Method("call_named", "prompts"),
    "completion/complete": Method("complete", "completions"),
}
# These act before the next line is read, and call no function of the user.
AT_ONCE = ["initialize", "ping", "server/discover", "logging/setLevel",
           "resources/subscribe", "resources/unsubscribe", "subscriptions/listen"]
CACHEABLE = ["server/discover", "tools/list", "resources/list", "prompts/list",
             "resources/templates/list", "resources/read"]
# Told by `tell`, if wanted: see `initialize`, `open_stream`, `_negotiate`, `_subscribe`
LIST_CHANGED = {kind: f"notifications/{kind}/list_changed"
                for kind in ("tools", "prompts", "resources")}
# Notifications, by other spellings that were seen: they are understood, never sent.
ALIASES = {name: f"notifications/{name}" for name in (
    "initialized", "cancelled", "progress", "message", "resources/updated",
    "tools/list_changed", "prompts/list_changed", "resources/list_changed")}
ALIASES |= {"$/cancelRequest": ALIASES["cancelled"],
            "$/progress": ALIASES["progress"], "logging/message": ALIASES["message"]}
MISSING: Any = ...  # no value
OBJECT = {"type": "object"}
QUESTIONS: Json = {  # to user, model, host: its capability; what an answer must have
    "elicitation/create": ("elicitation", "action", {
        "enum": ["accept", "decline", "cancel"]}),
    "sampling/createMessage": ("sampling", "content", {
        "type": ["object", "array"], "items": OBJECT}),
    "roots/list": ("roots", "roots", {
        "type": ["array", "null"], "items": {**OBJECT, "required": ["uri"]}})}
LEVELS = re.findall(r"\w+", "debug info notice warning error critical alert emergency")
META = "io.modelcontextprotocol/"  # begins MCP's keys in `_meta`: data on a message

PARSE_ERROR = -32700             # a line is no JSON, too long, or too deep
INVALID_REQUEST = -32600         # JSON is no message, or not here and now
METHOD_NOT_FOUND = -32601        # there is no such method, or not declared
INVALID_PARAMS = -32602          # params do not fit, or name what does not exist
INTERNAL_ERROR = -32603          # a handler or a peer failed; or it is too much
RESOURCE_NOT_FOUND = -32002      # a URI that nobody serves (modern: INVALID_PARAMS)
MISSING_CAPABILITY = -32021      # modern: the client does not declare what is asked
UNSUPPORTED_VERSION = -32022     # modern: a revision that we do not speak

# Limits.  The peer started us, we started it, or it knows our secret: so there are few.
MAX_MESSAGE_BYTES = 16 << 20     # of a line; read, it takes up to 30 times that
MAX_DEPTH = 200                  # of arrays and objects in each other
MAX_REQUESTS = 1000              # of a client in flight, not notifications; in an array
MAX_COMPLETIONS = 100            # values, by the specification
MAX_PROBLEMS = 20                # of one value
MAX_REPAIRS = 1000               # of one value
MAX_ROUNDS = 16                  # of questions to one call
MAX_PAGES = 1000                 # of a list
MAX_STATE_AGE = 900              # seconds from a modern question to its answer
HAND_OVER_SECONDS = 0.002        # for a handler on the thread that reads
DRAIN_SECONDS = 1.5              # for what is in flight at the end of input
PROBE_SECONDS = 5.0              # a server that says nothing to the probe is legacy
PATIENCE = 2.0                   # seconds, for each step of ending a process


def as_dict(value: Any) -> Json:
    """The value if it is an object, else {}: a peer may send anything."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def declares(found: Any, name: str) -> bool:
    for part in name.split("."):
        found = as_dict(found).get(part)
    return found not in (None, False)


# -- 2. Errors -------------------------------------------------------------------------
# Those that are BaseException pass through a handler's own `except Exception`.


class Error(Exception):
    """The base of the errors of this module."""


class McpError(Error):
    """A JSON-RPC error (code, message, data): handlers raise it, calls receive it."""

    def __init__(self, code: int, message: str, data: Any = None):
        super().__init__(code, message, data)
        self.code, self.message, self.data = code, message, data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def to_json(self) -> Json:
        error = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class ToolError(Error):
    """A tool failed, with a text for the model; a client's has the `result`, too."""

    def __init__(self, message: str, result: ToolResult | None = None):
        super().__init__(message)
        self.result = result


class RequestTimeout(Error, TimeoutError):
    """There was no response in time; the request was cancelled."""


class ConnectionClosed(Error, ConnectionError):
    """The peer is gone; of a server process: its exit code and the end of stderr."""

    def __init__(self, text: str, status: int | None = None, stderr: str = ""):
        super().__init__(text)
        self.exit_code, self.stderr = status, stderr


class SchemaError(Error, ValueError):
    """A JSON Schema is malformed, or uses what this module does not have."""


class Cancelled(BaseException):
    """The request was cancelled: let it pass, or clean up and raise it again."""


class InputRequired(BaseException):
    """Ends a handler from within a question; its argument is the result to send."""


class Stopped(SystemExit):
    """Raised by SIGTERM and Ctrl-C while a server runs, with the exit status."""


class Oversized(McpError):
    """A line that is not parsed: it is too long, or too deep."""


def invalid_params(text: str, field: str = "", issue: str = "") -> McpError:
    return McpError(INVALID_PARAMS, text, {"field": field, "issue": issue or text})


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
    return json.dumps(value, default=repr, skipkeys=True)[:80]


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exception, or those that a group of them consists of."""
    parts = getattr(error, "exceptions", None)
    if parts and isinstance(parts, tuple):
        return [leaf for part in parts for leaf in leaves_of(part)]
    return [error]


def text_of(error: BaseException) -> str:
    """An exception as a text, "TypeName: message"; of a group of them, its leaves."""
    texts = []
    for leaf in leaves_of(error):
        texts.append(type(leaf).__name__)
        with suppress(Exception):  # its own __str__ may fail
            texts[-1] += f": {leaf}".removesuffix(": ")
    return "; ".join(texts)


def printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1]
                   for char in text)


def warn(text: str) -> None:
    """Show a text on stderr; drop it if that is full for a second (two may race)."""
    with suppress(Exception):  # Windows; a stream may have no descriptor
        import select
        if not select.select([], [sys.stderr], [], 1.0)[1]:
            return
    with suppress(Exception):  # there is none, or it is closed, or a user's own
        text = printable(text[-4000:]).encode()[-4000:].decode("utf-8", "ignore")
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def log_exception(what: str, error: BaseException) -> None:
    lines = [text_of(error)]
    with suppress(Exception):  # no descriptor, or no memory, is left
        import traceback
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    warn(f"mcp_min: {what}\n{''.join(lines).rstrip()}")


# -- 3. Messages -----------------------------------------------------------------------
# {"jsonrpc":"2.0","id":1,"method":"ping","params":{}} is a request, on a line; it gets
# {"jsonrpc":"2.0","id":1,"result":{}} or an error.  A notification: no id, no response.
dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def read_float(text: str) -> float:
    value = float(text)
    if value - value != 0:  # NaN, Infinity, 1e400
        raise ValueError(f"{text} is no number of JSON, or too large")
    return value


loads = json.JSONDecoder(parse_constant=read_float, parse_float=read_float).decode


def encode(message: Any) -> Line:
    """In ASCII, all on one line.  TypeError, ValueError, RecursionError: no JSON."""
    return dumps(message).encode()


def decode(line: Line, limit: int) -> Any:
    """The JSON of a line; McpError: it cannot be read."""
    if len(line) > limit:
        raise Oversized(PARSE_ERROR, f"The line has over {limit} bytes")
    # The parser recurses: a deep line would overflow a small stack.
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH:
        depth = 0
        bare = line.replace(rb"\\", b"").replace(rb'\"', b"")
        bare = re.sub(rb'"[^"]*"?', b"", bare)  # what is outside of strings
        for bracket in re.findall(rb"[][{}]", bare):
            depth += 1 if bracket in b"[{" else -1
            if depth > MAX_DEPTH:
                raise Oversized(PARSE_ERROR, f"It is over {MAX_DEPTH} levels deep")
    try:
        return loads(line.decode().lstrip("\ufeff"))  # a byte order mark
    except (ValueError, MemoryError) as error:
        raise McpError(PARSE_ERROR, f"The line is no JSON: {error}") from None


def id_at_head(line: Line) -> Any:
    """The id of a line that is not parsed, if only texts stand before it."""
    found = re.match(rb'\s*\{(?:\s*"\w+"\s*:\s*"[^"\\]*"\s*,)*\s*"id"\s*:\s*'
                     rb'(0|-?[1-9]\d{0,17}|"[ !#-Z^-~]*")\s*[,}]', line[:4096])
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
    """Is it a "request", a "notification" or a "response"?  McpError: it is none."""
    if as_dict(message).get("jsonrpc") != "2.0":
        raise McpError(INVALID_REQUEST, f'No "jsonrpc": "2.0" in {show(message)}')
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return "response"
    outcome = message.get("result"), message.get("error")
    if type(method) is not str or outcome != (None, None):
        raise McpError(INVALID_REQUEST, "A message has a method, a result or an error")
    if "id" not in message:
        return "notification"
    if valid_id(message["id"]) is None:
        raise McpError(INVALID_REQUEST, "The id is neither a string nor an integer")
    return "request"


def outcome_of(message: Json) -> Json | McpError:
    result, error = message.get("result"), message.get("error")
    if error is None and type(result) is dict:
        return result
    error = as_dict(error)
    code, text = error.get("code"), error.get("message")
    if type(code) is int and type(text) is str:
        return McpError(code, text, error.get("data"))
    return McpError(INTERNAL_ERROR, f"Neither a result nor an error: {show(message)}")


def notification(method: str, params: Json) -> Line:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def with_meta(params: Json, more: Json) -> Json:
    return {**params, "_meta": {**as_dict(params.get("_meta")), **more}}


def read_lines(stream: Any, limit: int) -> Iterator[Line]:
    """The lines of a stream; one over the limit is cut, but not below the limit."""
    read = getattr(stream, "read1", stream.read)
    line = bytearray()
    with suppress(Exception):  # it is closed, or broken
        for chunk in iter(partial(read, 65536), b""):
            if chunk is None:  # somebody has made it non-blocking
                os.set_blocking(stream.fileno(), True)
            *ends, rest = (chunk or b"").split(b"\n")
            for end in ends:
                yield bytes(line) + end
                line.clear()
            if len(line) <= limit:
                line += rest
    if line:  # the last line needs no newline
        yield bytes(line)


# -- 4. Connection ---------------------------------------------------------------------
# JSON-RPC over two streams, the same for both ends.  Each numbers its own requests, so
# an id may be in use both ways.  Invariants:
# 1. Who ends a request acts, once.  A request of ours ends by `outgoing.pop`: response,
#    timeout, cancellation and the end race for the entry.  A request of the peer ends
#    by its one-shot lock `decided`, for which answer and cancellation race.
# 2. All lines go through one queue.  When its turn comes, under `_writing`, a line's
#    `on_turn` says if it is still wanted; it may act, but not write.  Handlers `write`,
#    which returns when it is written (a slow peer holds them); the reader, which must
#    not wait for the peer, calls `post`: another thread writes.  A peer's request is
#      open     in `incoming`: its id is taken, and what is said about it goes out;
#      decided  when its response is queued: no cancellation ends it any more;
#      gone     when the turn of that comes (in an array: at once), or it is cancelled:
#               its id is free, nothing more is said about it.  All gone: all answered.
# 3. One thread reads at a time, and never waits before the end, but for a trace, and a
#    handler that it runs itself; if that takes long, another reads on (Reading), and
#    finds the request in `incoming`, to cancel it.  Handlers end in any order.
# 4. Who waits for a call runs its loop: the reader puts events into the call's queue.
#    On the reader, a progress handler that makes a call would wait for ever.
# 5. The end is marked (`why_ended`), then wakes everybody: the tables are emptied, by
#    rule 1 also if two threads do it; who adds an entry looks at the mark afterwards.
#    Before it the peer may stop talking: `on_end`.  `close` of an owner ends it, and
#    closes the streams; who is inside `_put` looks at the mark before he writes on.
#
# Without the GIL the same holds: single operations of dict, list, set, deque, count and
# SimpleQueue are atomic there, too, and what is counted by += has a lock.


class Connection:
    """JSON-RPC over two binary streams; a server's session and a client's are one."""

    request_class: Any
    has_batches = False
    # What a subclass does, on the thread that reads: see rule 3.
    on_request: Callable[[Any], object]  # answer it; what is raised answers it, too
    on_notification: Callable[[str, Json], object]
    # (line, error, id): it is no message.  Gives a response to it; b"": none
    on_refused: Callable[[Line, McpError, Any], Line]
    on_end: Job  # the peer will say nothing more, or (on any thread) all has ended
    quoted: Any = lambda self: ""       # what else the peer wrote, for an error
    is_user_asked: Any = lambda self: False  # while it is, no `timeout` runs

    def __init__(self, reader: Any, writer: Any, limit: int, trace: Trace | None):
        self._writer, self._limit = writer, limit
        self._trace = trace
        self._lines = read_lines(reader, limit)
        self.incoming: dict[Any, Incoming] = {}
        self.outgoing: dict[Any, Outgoing] = {}
        self._queue = deque[tuple[Line, OnTurn]]()  # to be written
        self._writing = threading.Lock()   # held by who takes from the queue and writes
        self._writer_thread = Pool("writer", 1)
        self._notices = Pool("notices", 1)  # handlers of notifications, in order
        self._ids = count(1)               # of our requests
        self.why_ended: Error | None = None  # the mark of the end
        self._pid = os.getpid()
        self.noise = deque[str](maxlen=20)  # what came and is for nobody

    def write(self, line: Line, on_turn: OnTurn = lambda: True) -> None:
        """Write a line, if `on_turn` says so when its turn comes; wait for that."""
        self._queue.append((line, on_turn))
        self._write_queue()

    def post(self, line: Line, on_turn: OnTurn = lambda: True) -> None:
        """The same, without waiting."""
        self._queue.append((line, on_turn))
        try:
            if not self._writer_thread.submit(self._write_queue):
                self._queue.clear()  # it has ended
        except RuntimeError:  # no thread can be started
            self._write_queue()

    def _write_queue(self) -> None:
        with self._writing:
            while self._queue:
                line, on_turn = self._queue.popleft()
                if not self.why_ended and on_turn():
                    self._put(line)

    def _put(self, line: Line) -> None:
        if os.getpid() != self._pid:
            return  # a child that a handler has forked: the peer is its parent's
        if self._trace:
            self._trace.note("->", line)
        try:
            rest = memoryview(line + b"\n")
            while rest and not self.why_ended:  # after that, they may be closed
                written = self._writer.write(rest)
                if written is None:  # somebody has made it non-blocking
                    os.set_blocking(self._writer.fileno(), True)
                rest = rest[written or 0:]
            self._writer.flush()
        except Exception as error:
            self.end(ConnectionClosed(f"The peer cannot be written to: {error}"))

    def close_output(self) -> None:
        """Close the stream that is written, unless a thread is in it for too long."""
        if self._writing.acquire(timeout=PATIENCE):
            with suppress(Exception):
                self._writer.close()
            self._writing.release()

    def request(self, method: str, params: Json, progress: bool = False) -> Outgoing:
        """Send a request; then somebody calls `wait` of what this returns."""
        request_id = next(self._ids)
        if progress:
            params = with_meta(params, {"progressToken": request_id})  # asks for it
        call = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        line = encode(call)
        outgoing = self.outgoing[request_id] = Outgoing(self, request_id, method)
        self.post(line, outgoing.on_turn)
        if self.why_ended:
            outgoing.end(self.why_ended)
        return outgoing

    def end(self, why: Error) -> None:
        """Fail what is in both tables; the streams stay as they are."""
        if self.why_ended is None:
            self.why_ended = why
            for outgoing in self.outgoing.copy().values():
                outgoing.end(why)
            for request in self.incoming.copy().values():
                request.cancel()
            self._writer_thread.close()
            self.on_end()  # of a client: it calls `end`, without effect

    def read_one(self) -> bool:
        """Read a line and act on it; False: there are no more."""
        line = next(self._lines, None)
        if line is None or self.why_ended:
            self.on_end()
            return False
        if line.strip():
            try:
                if self._trace:
                    self._trace.note("<-", line)
                self._act(line)
            except BaseException as error:  # ours: the session goes on
                log_exception("a message could not be handled", error)
        return True

    def _act(self, line: Line) -> None:
        batch = None
        try:
            message = decode(line, self._limit)
            elements = [message]
            if type(message) is list:
                if not 0 < len(message) <= MAX_REQUESTS or not self.has_batches:
                    raise McpError(INVALID_REQUEST, "This array is no message")
                batch, elements = Batch(self, len(message)), message
        except McpError as error:
            request_id = id_at_head(line) if isinstance(error, Oversized) else None
            refusal = self.on_refused(line, error, request_id)
            if refusal:
                self.post(refusal)
            return
        for element in elements:
            self._take(line, element, batch)

    def _take(self, line: Line, message: Any, batch: Batch | None) -> None:
        refusal = b""
        try:
            kind = kind_of(message)
            if kind == "request":
                return self._take_request(message, batch)
            if kind == "notification":
                self._take_notification(message)
            else:
                self._take_response(message)
        except McpError as error:
            request_id = valid_id(as_dict(message).get("id"))
            refusal = self.on_refused(line, error, request_id)
        if batch:
            batch.collect(refusal)
        elif refusal:
            self.post(refusal)

    def _take_request(self, message: Json, batch: Batch | None) -> None:
        params = message.get("params")
        request = self.request_class(
            self, valid_id(message["id"]), message["method"], as_dict(params), batch)
        try:
            if self.incoming.setdefault(request.id, request) is not request:
                raise McpError(INVALID_REQUEST, f"The id {show(request.id)} is in use")
            if params not in (None, request.params):
                raise invalid_params("params must be an object")
            if self.why_ended:  # looked at afterwards: `end` may have missed it
                request.cancel()
            self.on_request(request)  # last: another thread may read by now
        except Exception as error:  # also: no thread can be started
            request.fail(error)

    def _take_response(self, message: Json) -> None:
        outgoing = self.outgoing.get(own_id(message.get("id")))
        if outgoing:
            outgoing.end(outcome_of(message))
        elif message.get("id") is None:
            self.noise.append(show(message.get("error", message)))

    def _take_notification(self, message: Json) -> None:
        method = ALIASES.get(message["method"]) or message["method"]
        params = as_dict(message.get("params"))
        if method == "notifications/cancelled":
            found = valid_id(params.get("requestId", params.get("id")))
            request = self.incoming.get(found)
            if request:
                request.cancel()
        elif method == "notifications/progress":
            outgoing = self.outgoing.get(own_id(params.get("progressToken")))
            if outgoing and type(params.get("progress")) in (int, float):
                report = params["progress"], params.get("total"), params.get("message")
                outgoing.events.put(report)
        else:
            self.on_notification(method, params)


class Incoming:
    """A request of the peer; id None (notification, await): unanswered, always live."""

    def __init__(self, connection: Any, request_id: Any, method: str, params: Json,
                 batch: Batch | None = None):
        self.connection, self.id = connection, request_id
        self.method, self.params, self.batch = method, params, batch
        # The reader must not wait for the peer; `on_request` gives a handler `write`.
        self.send_response = batch.collect if batch else connection.post
        self.cancelled = False
        self.decided = threading.Lock()  # taken once: it is answered, or cancelled
        self._hooks: set[Job] = {batch.collect} if batch else set()  # see `on_cancel`
        self._reporting = threading.Lock()  # held while progress is written
        self._progress = float("-inf")    # the last of it

    def is_live(self) -> bool:
        return self.id is None or self.connection.incoming.get(self.id) is self

    def fail(self, error: BaseException) -> None:
        """Answer with an error; one that is no McpError is shown as internal."""
        if not isinstance(error, McpError):
            error = McpError(INTERNAL_ERROR, text_of(error))
        self.respond("error", error.to_json())

    def respond(self, kind: str, outcome: Json) -> None:
        """Answer with a "result" or an "error", unless it was decided."""
        try:
            line = encode({"jsonrpc": "2.0", "id": self.id, kind: outcome})
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            text = f"The response is no JSON: {error}"
            return self.fail(McpError(INTERNAL_ERROR, text))
        if self.id is None:  # the handler of a notification has ended
            self.connection.incoming.pop(self, None)
        elif self.decided.acquire(blocking=False):
            self.send_response(line, self._leave)

    def _leave(self) -> bool:
        if self.is_live():  # else it was refused: another had its id
            self.connection.incoming.pop(self.id, None)
        return True

    def cancel(self) -> None:
        """It will not be answered; its handler sees that.  No effect if it was."""
        if self.decided.acquire(blocking=False):
            self._leave()
            self.cancelled = True
            for hook in self._hooks.copy():
                hook()

    @contextmanager
    def on_cancel(self, hook: Job) -> Iterator[None]:
        """Inside of `with` this, the hook is called when the request is cancelled."""
        self._hooks.add(hook)
        try:
            if self.cancelled:  # looked at afterwards: `cancel` may have missed it,
                hook()          # or not: then it is called twice
            yield
        finally:
            self._hooks.discard(hook)

    def report_progress(self, params: Json, send: Callable[..., None]) -> None:
        """Report progress if it has increased, unless the request was answered."""
        with self._reporting:
            if params["progress"] > self._progress:
                line = notification("notifications/progress", params)
                self._progress = params["progress"]
                send(self.connection, line, self.is_live)


class Batch:
    """The responses to an array of messages: the last sends all (2025-03-26, basic)."""

    def __init__(self, connection: Connection, size: int):
        self._connection, self._size = connection, size
        self._calls = count(1)  # of `collect`; atomic
        self._responses: list[Line] = []

    def collect(self, line: Line = b"", on_turn: OnTurn = lambda: True) -> None:
        """Take the response to a message; without a line: it has none."""
        on_turn()
        if line:
            self._responses.append(line)
        if next(self._calls) == self._size and self._responses:
            self._connection.post(b"[" + b",".join(self._responses) + b"]")


class Outgoing:
    """A request to the peer; its events: progress (tuple), exception, result (dict)."""

    def __init__(self, connection: Connection, request_id: int, method: str):
        self.connection, self.id, self.method = connection, request_id, method
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.is_sent = False

    def on_turn(self) -> bool:
        self.is_sent = self.id in self.connection.outgoing
        return self.is_sent

    def end(self, outcome: Any) -> bool:
        """End it, unless it has ended: then False."""
        if self.connection.outgoing.pop(self.id, None) is None:
            return False
        self.events.put(outcome)
        return True

    def cancel(self, outcome: BaseException) -> None:
        """End it, and tell the peer, if it has heard of it; not of a handshake."""
        if self.end(outcome) and self.method not in ("initialize", "server/discover"):
            params = {"requestId": self.id, "reason": type(outcome).__name__}
            line = notification("notifications/cancelled", params)
            self.connection.post(line, lambda: self.is_sent)

    def wait(self, timeout: Seconds, deadline: float = float("inf"),
             on_progress: Handler = None) -> Json:
        """The result, until `deadline` at most; the calling thread runs on_progress.

        Whatever is raised here (an error, a timeout, Ctrl-C) ends the request.
        """
        last = monotonic()
        idle = threading.TIMEOUT_MAX if timeout is None else timeout
        try:
            while True:
                is_user_asked = self.connection.is_user_asked()
                left = min(deadline, last + idle) - monotonic()
                event = None
                with suppress(Empty):
                    # A second at most: on Windows, Ctrl-C does not end a wait before.
                    event = self.events.get(timeout=min(max(0.0, left), 1.0))
                if isinstance(event, dict):
                    return event
                if isinstance(event, BaseException):
                    raise event.with_traceback(None)  # many may raise it
                if event and on_progress:
                    on_progress(*event)
                if event or is_user_asked or self.connection.is_user_asked():
                    last = monotonic()
                if left <= 0:
                    text = f"{self.method}: no result in time"
                    raise RequestTimeout(text + self.connection.quoted())
        except BaseException as error:
            self.cancel(error)
            raise


class Pool:
    """At most `size` threads, started when they are needed, that run jobs in turn."""

    def __init__(self, name: str, size: int):
        self._name, self._size = name, size
        self._jobs = SimpleQueue[Optional[Job]]()  # None ends a thread
        self._lock = threading.Lock()  # guards changes of the rest
        self._threads = self.unfinished = 0  # threads; jobs, one of "worker" reads
        self._is_closed = False

    def submit(self, job: Job, spare: int = 0) -> bool:
        """Run a job soon, and have more threads; False: closed.  RuntimeError: none."""
        with self._lock:
            if self._is_closed:
                return False
            while self._threads < min(self.unfinished + 1 + spare, self._size):
                start_thread(self._name, self._work)
                self._threads += 1
            self.unfinished += 1
            self._jobs.put(job)
        return True

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        for job in iter(self._jobs.get, None):
            try:
                job()
            except BaseException as error:
                log_exception(f"a job of {self._name} failed", error)
            del job  # else it would be kept until the next one comes
            with self._lock:
                self.unfinished -= 1


def start_thread(name: str, run: Job) -> None:
    """Start a daemon thread; RuntimeError: the system has none left."""
    threading.Thread(target=run, name=f"mcp {name}", daemon=True).start()


def fulfil(future: Future[Any], call: Job) -> None:
    """Put the outcome of a call into a Future; until then it can be cancelled."""
    if future.cancelled():
        future.set_running_or_notify_cancel()  # this tells who waits
        return
    try:
        settle = partial(future.set_result, call())
    except Stopped:  # it is for the thread, not of the call
        raise
    except BaseException as error:
        settle = partial(future.set_exception, error)
    if future.set_running_or_notify_cancel():
        settle()


class Trace:
    """Shows each line: the time, "->" if it is ours; with a response method and ms."""

    def __init__(self, target: Any):  # a function, "stderr", or a file
        self._begun: dict[Any, tuple[str, float]] = {}  # requests, by asker and id
        self._show = (lambda text: warn(text[:4000])) if target == "stderr" else target
        if not callable(self._show):
            self._show = partial(self._append, os.path.abspath(target))

    def note(self, arrow: str, line: Line) -> None:
        text = printable(line.decode("utf-8", "replace"))
        message: Json = {}
        with suppress(McpError):
            message = as_dict(decode(line, MAX_MESSAGE_BYTES))
        is_request = "method" in message and "id" in message
        key = is_request == (arrow == "->"), valid_id(message.get("id"))  # do we ask?
        if is_request:
            self._begun[key] = ascii(message["method"])[1:-1], monotonic()
        elif key in self._begun:
            method, begun = self._begun.pop(key)
            text += f"  [{method}, {1000 * (monotonic() - begun):.1f} ms]"
        with suppress(Exception):  # a full disk; the user's function
            self._show(f"{strftime('%H:%M:%S')} {arrow} {text}")

    def _append(self, path: str, text: str) -> None:
        opener = partial(os.open, mode=0o600)
        with open(path, "a", encoding="utf-8", opener=opener) as file:
            file.write(f"{text}\n")


# -- 5. JSON Schema --------------------------------------------------------------------
# Draft 2020-12, but for anchors, an inner $id, escapes in $ref and what is REFUSED.
# What does not fit is repaired by what the problems say.  Patterns are those of `re`,
# which has no limit: the author's alone are applied, after maxLength, if beside it.


class Problem(NamedTuple):
    path: tuple[str | int, ...]  # to the part of a value that does not fit
    words: str                   # what is wrong with it
    value: Any = MISSING         # which was there
    types: tuple[str, ...] = ()  # that were expected, if it is that

    @property
    def issue(self) -> str:
        got = "" if self.value is MISSING else f", got {show(self.value)}"
        return f"{self.words}{got}"

    @property
    def field(self) -> str:
        steps = [f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.path]
        return "".join(steps)[:200].removeprefix(".")

    def __str__(self) -> str:
        return f"{self.field}: {self.issue}".removeprefix(": ")

    def below(self, step: str | int) -> Problem:
        return self._replace(path=(step, *self.path))

    def repair(self, value: Any) -> None:
        """Read a text as JSON if a type was expected; leave out a null member."""
        *steps, last = self.path
        for step in steps:
            value = value[step]
        if isinstance(value[last], str) and self.types:
            value[last] = decode(value[last].encode(), MAX_MESSAGE_BYTES)
        if value[last] is None and isinstance(value, dict):
            del value[last]


Problems = Iterator[Problem]
Budget = Iterator[bool]  # see budget_for


class BadValue(ValueError):
    def __init__(self, problems: list[Problem]):
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems

    def as_invalid_params(self, what: str) -> McpError:
        first = self.problems[0]
        return invalid_params(f"{what}:\n{self}", first.field, first.issue)


TYPES_OF = {str: ("string",), dict: ("object",), bool: ("boolean",),
            int: ("integer", "number"), float: ("number",), list: ("array",),
            type(None): ("null",)}  # bool before int, because it is one
TYPE_NAMES = set(chain(*TYPES_OF.values()))
# The schema that most parameters have, when what only describes them is left out.
PLAIN = {kind: {"type": names[0]} for kind, names in TYPES_OF.items()}


def types_of(value: Any) -> tuple[str, ...]:
    """The types that JSON Schema gives a value; none: it is no JSON."""
    if isinstance(value, float) and value.is_integer():
        return TYPES_OF[int]
    for kind, names in TYPES_OF.items():
        if isinstance(value, kind):
            return names
    return ()


def canonical(value: Any) -> Any:
    """Something that can be hashed, equal for values that are equal in JSON."""
    if isinstance(value, dict):
        return frozenset(zip(value, map(canonical, value.values())))
    if isinstance(value, list):
        return tuple(map(canonical, value))
    return isinstance(value, bool), value


def is_multiple(value: Any, step: Any) -> bool:
    """In decimal: 19.99 is a multiple of 0.01."""
    from fractions import Fraction
    return Fraction(repr(value)) % Fraction(repr(step)) == 0


# Keywords that compare a number, or the size of a value of this type, with another.
LIMITS: dict[str, Any] = {
    "minimum": ("number", operator.ge, "must be at least"),
    "maximum": ("number", operator.le, "must be at most"),
    "exclusiveMinimum": ("number", operator.gt, "must be over"),
    "exclusiveMaximum": ("number", operator.lt, "must be below"),
    "multipleOf": ("number", is_multiple, "must be a multiple of"),
}
SIZES = {"string": "Length", "array": "Items", "object": "Properties"}
LIMITS |= {"min" + size: (kind, operator.ge, f"its {size.lower()} must be at least")
           for kind, size in SIZES.items()}
LIMITS |= {"max" + size: (kind, operator.le, f"its {size.lower()} must be at most")
           for kind, size in SIZES.items()}
# Types of arguments.  Keywords with schemas in them: one, a list, or an object of them.
ARGUMENTS = {**dict.fromkeys(LIMITS, "number"), "enum": "array", "required": "array",
             "pattern": "string", "uniqueItems": "boolean"}
ONE = {"additionalProperties", "propertyNames", "items", "not", "if", "then", "else"}
LIST = {"allOf", "anyOf", "oneOf", "prefixItems"}
MEMBERS = {"properties", "patternProperties", "$defs", "definitions"}
COMBINED = {"$ref", "allOf", "anyOf", "oneOf", "not", "if"}
REFUSED = {"$dynamicRef", "$recursiveRef", "unevaluatedProperties",
           "unevaluatedItems", "contains", "dependentSchemas", "dependentRequired"}


class Schema:
    """A JSON Schema, to check values with; SchemaError: it cannot be read."""

    def __init__(self, document: Any):
        try:
            self._document = loads(json.dumps(document, sort_keys=True))
            self._read(self._document)
        except Exception as error:  # what is malformed fails somehow
            raise SchemaError(f"the schema cannot be read: {text_of(error)}") from None

    def _read(self, node: Any) -> None:
        # Check a schema and all in it; make of `$ref` its schema, of `enum` a dict.
        if isinstance(node, bool):
            return
        for keyword in ("title", "description", "default"):
            node.pop(keyword, None)
        if not TYPE_NAMES.issuperset(as_list(node.get("type", []))):
            raise ValueError(f"type cannot be {show(node['type'])}")
        for keyword, argument in node.items():
            if keyword in REFUSED or (keyword == "$id" and node is not self._document):
                raise ValueError(f"{keyword} is not supported here")
            if ARGUMENTS.get(keyword, "") not in ("", *types_of(argument)):
                raise ValueError(f"{keyword} cannot be {show(argument)}")
            if keyword in ONE:
                self._read(argument)
            elif keyword in LIST | MEMBERS:
                for part in argument.values() if keyword in MEMBERS else argument:
                    self._read(part)
            elif keyword == "$ref":
                node[keyword] = self._find(argument)
            elif keyword in ("enum", "const"):
                choices = argument if keyword == "enum" else [argument]
                node[keyword] = dict(zip(map(canonical, choices), choices))
            elif keyword == "pattern":
                strict_pattern(argument)
            if keyword == "patternProperties":
                for pattern in argument:
                    strict_pattern(pattern)

    def _find(self, reference: str) -> Any:
        first, *steps = reference.split("/")
        if first != "#" or {*steps[:1]} - (ONE | LIST | MEMBERS):
            raise ValueError(f"$ref {reference} leads to no schema in this one")
        found = self._document
        for step in steps:
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found

    def problems(self, value: Any, most: int = MAX_PROBLEMS) -> list[Problem]:
        found = problems_in(self._document, value, budget_for(value))
        try:
            return list(islice(found, most))
        except RecursionError:  # perhaps of a schema that refers to itself
            return [Problem((), "is too deep, or takes too long to check")]

    def fit(self, value: Json) -> Json:
        """The value, repaired if it does not fit; BadValue: it does not even then."""
        problems = self.problems(value, MAX_REPAIRS)
        if problems:
            value = loads(dumps(value))
            for problem in problems:
                with suppress(McpError, ValueError, LookupError):
                    problem.repair(value)
            problems = self.problems(value)
        if problems:
            raise BadValue(problems)
        return value


def validate(value: Any, schema: Any) -> list[str]:
    """What keeps a JSON value from fitting a schema, at most 20 lines; SchemaError."""
    return list(map(str, Schema(schema).problems(value)))


def budget_for(value: Any) -> Budget:
    """True for each step (6 us), `size` at least; nested alternatives take all."""
    yield from repeat(True, 10_000)
    size = len(repr(value))
    yield from repeat(True, min(50 * size, 300_000 + size))


def problems_in(node: Any, value: Any, budget: Budget) -> Problems:
    """The problems of a value, or of a part of it, by a part of the schema."""
    if not next(budget, False):
        raise RecursionError
    if isinstance(node, bool):
        node = {} if node else {"not": True}  # fits all, or nothing
    kinds, types = types_of(value), as_list(node.get("type", []))
    if types and set(types).isdisjoint(kinds):
        yield mistyped(types, value)
        return
    for keyword, argument in node.items():
        if keyword in LIMITS:
            kind, test, words = LIMITS[keyword]
            if kind in kinds:
                size = value if kind == "number" else len(value)
                if not test(size, argument):
                    yield Problem((), f"{words} {argument}", value)
                    return
        elif keyword in COMBINED:
            yield from combined(keyword, node, value, budget)
        elif keyword in ("enum", "const"):
            if canonical(value) not in argument:
                choices = dumps([*islice(argument.values(), 50)])[:1000]
                yield Problem((), f"must be one of {choices}", value)
        elif keyword == "pattern" and isinstance(value, str):
            if not strict_pattern(argument).search(value):
                yield Problem((), f"must match {argument}", value)
        elif keyword == "uniqueItems" and argument and isinstance(value, list):
            if len(set(map(canonical, value))) < len(value):
                yield Problem((), "must not repeat an item", value)
        elif keyword == "propertyNames" and isinstance(value, dict):
            for name in value:
                for problem in problems_in(argument, name, budget):
                    yield Problem((name,), f"its name {problem.issue}")
    if isinstance(value, (dict, list)):
        yield from inside(node, value, budget)


def strict_pattern(pattern: str) -> re.Pattern[str]:
    # Its $, but not one in [] or after \, is \Z: Python's also fits before a newline.
    other_or_dollar = r"(\\.|\[\^?]?(?:\\.|[^]\\])*])|\$"
    return re.compile(re.sub(other_or_dollar, lambda found: found[1] or r"\Z", pattern))


def combined(keyword: str, node: Json, value: Any, budget: Budget) -> Problems:
    found = [list(islice(problems_in(part, value, budget), MAX_REPAIRS))
             for part in as_list(node[keyword])]
    fitting = found.count([])
    if keyword in ("$ref", "allOf"):
        yield from chain(*found)
    elif keyword == "if":
        branch = "then" if fitting else "else"
        yield from problems_in(node.get(branch, True), value, budget)
    elif keyword == "not":
        if fitting:
            yield Problem((), "is not allowed")
    elif not fitting:
        types: list[str] = []
        for problems in found:
            first = problems[0]
            if first.path or not first.types:  # it fails deeper: this one was meant
                yield from problems
                return
            types += first.types
        yield mistyped(types, value)
    elif fitting > 1 and keyword == "oneOf":
        yield Problem((), f"must fit one schema, but fits {fitting}")


def mistyped(types: list[str], value: Any) -> Problem:
    names = tuple(dict.fromkeys(types))
    return Problem((), f"must be {' or '.join(names)}", value, names)


def inside(node: Json, value: Any, budget: Budget) -> Problems:
    if isinstance(value, list):
        parts: Iterable[Any] = enumerate(value)
        known = dict(enumerate(node.get("prefixItems", [])))
        rest = node.get("items", True)
    else:
        parts = value.items()
        known = dict(node.get("properties", {}))
        rest = node.get("additionalProperties", True)
        for pattern, schema in node.get("patternProperties", {}).items():
            for name in filter(strict_pattern(pattern).search, value):
                known[name] = {"allOf": [known.get(name, True), schema]}
        for name in node.get("required", []):
            if name not in value:
                yield Problem((name,), "is missing")
    for step, part in parts:
        schema = known.get(step, rest)
        if schema is False and step not in known:
            words = ", ".join(islice(node.get("properties", ()), 99)) or "none"
            yield Problem((step,), f"is unknown; known are {words}")
        elif schema is not True and schema != PLAIN.get(type(part)):  # else: it fits
            for problem in problems_in(schema, part, budget):
                yield problem.below(step)


# -- 6. Content ------------------------------------------------------------------------
# Dicts in the protocol's own form; a field is an attribute, too, if dict has no such.

NAMES = re.findall(r"\w+", """_meta action annotations arguments audience blob
capabilities completions content contents costPriority cursor data description
destructiveHint elicitation elicitationId execution experimental extensions hasMore
hints icons id idempotentHint includeContext input inputSchema instructions
intelligencePriority isError lastModified level listChanged logger logging maxTokens
message messages metadata method mimeType mode model modelPreferences name nextCursor
openWorldHint outputSchema params priority prompts protocolVersion readOnlyHint
requestedSchema required resource resources resourceTemplates role roots sampling
serverInfo size sizes speedPriority src stopReason stopSequences structuredContent
subscribe supportedVersions systemPrompt tasks temperature text theme title toolChoice
tools toolUseId total type uri uriTemplate url version websiteUrl""")
FIELDS = {re.sub("([A-Z])", r"_\1", name).lower().strip("_"): name for name in NAMES}
OPAQUE = {"_meta", "data", "input", "inputSchema", "outputSchema", "params",
          "requestedSchema", "structuredContent"}  # data of users, as it came
# Classes whose objects are texts in JSON: what a schema of theirs has besides "type".
FORMATS: dict[str, Json] = {
    "datetime.datetime": {"format": "date-time"}, "datetime.date": {"format": "date"},
    "datetime.time": {"format": "time"}, "uuid.UUID": {"format": "uuid"},
    "decimal.Decimal": {"type": ["string", "number"],
                        "pattern": "^[-+0-9.]+([eE].{1,4})?$"},
    "builtins.bytes": {"contentEncoding": "base64"}, "pathlib.PurePath": {}}


class Wire(dict[str, Any]):
    """A JSON object of the protocol; `.mime_type` is its "mimeType", None if absent."""

    def __getattr__(self, name: str) -> Any:
        key = FIELDS.get(name, name)
        value = self.get(key)
        if name not in FIELDS and (value is None or name.startswith("_")):
            raise AttributeError(f"the protocol has no field {name!r}")
        if value is not None and key not in OPAQUE:
            value = self[key] = wired(value)
        return value

    @classmethod
    def of(cls, value: Json) -> Any:
        found = cls.__new__(cls)
        found.update(value)
        return found


def wired(value: Any) -> Any:
    if type(value) is list:
        return list(map(wired, value))
    return Wire(value) if type(value) is dict else value


def fields(**given: Any) -> Json:
    """Fields in the protocol's spelling, but None; what is in them goes as it is."""
    unknown = given.keys() - FIELDS
    if unknown:
        raise TypeError(f"the protocol has no field {unknown}")
    return {FIELDS[key]: plain(part) for key, part in given.items() if part is not None}


class Text(Wire):
    def __init__(self, text: str, **more: Any):
        self.update(fields(type="text", text=text, **more))


class Image(Wire):
    """An image: a file, or its bytes and their mime_type (default image/png)."""

    _type, _subtypes = "image", {"": "png", ".jpg": "jpeg", ".svg": "svg+xml"}

    def __init__(self, path: Any = None, *, data: Any = None, **more: Any):
        if data is None:
            with open(path, "rb") as file:
                data = file.read()
        suffix = os.path.splitext(path or "")[1].lower()
        subtype = self._subtypes.get(suffix, suffix[1:])
        more["mime_type"] = more.get("mime_type") or f"{self._type}/{subtype}"
        self.update(fields(type=self._type, data=data, **more))


class Audio(Image):
    """Audio: a file, or its bytes and their mime_type (default audio/wav)."""

    _type, _subtypes = "audio", {"": "wav", ".mp3": "mpeg", ".m4a": "mp4"}


class ResourceLink(Wire):
    """A resource that the client may read; further fields are title, mime_type …"""

    def __init__(self, uri: str, name: str, **more: Any):
        self.update(fields(type="resource_link", uri=uri, name=name, **more))


class ResourceContents(Wire):
    """The contents of a resource: text, or data (bytes; of a mere Wire, `.blob`)."""

    def __init__(self, uri: str | None = None, text: str | None = None, *,
                 data: bytes | None = None, **more: Any):
        if (text is None) == (data is None):
            raise TypeError("it needs either text or data")
        self.update(fields(uri=uri, text=text, blob=data, **more))

    @property
    def data(self) -> bytes | None:
        return None if self.blob is None else binascii.a2b_base64(self["blob"])


class EmbeddedResource(Wire):
    """A resource with its contents; the arguments are those of ResourceContents."""

    def __init__(self, uri: str, text: str | None = None, **more: Any):
        self.update(fields(type="resource", annotations=more.pop("annotations", None)))
        self["resource"] = ResourceContents(uri, text, **more)


class Message(Wire):
    """A message of a prompt, to a model or from it; role: "user" or "assistant"."""

    def __init__(self, role: str, content: Any):
        self.update(role=role, content=as_block(content))

    @property
    def text(self) -> str:
        blocks = as_list(self.content)
        return "\n".join(str(one.get("text")) for one in blocks if "text" in one)


class ToolResult(Wire):
    """What a tool gives, or a call of it; data: the structured content, unwrapped."""

    def __init__(self, content: Any = None, structured_content: Any = None, *,
                 is_error: bool = False, meta: Json | None = None):
        blocks = [as_block(one) for one in as_list(content) if one is not None]
        self.update(content=blocks, isError=is_error)
        self.update(fields(structured_content=structured_content, meta=meta))

    text = Message.text

    @property
    def data(self) -> Any:
        data = self.structured_content
        if declares(self, "_meta.fastmcp.wrap_result"):
            return as_dict(data).get("result", data)
        return data


class Elicited(NamedTuple):
    """What the user said; false if he declines, or says No (the data is False)."""
    action: str        # "accept", "decline" or "cancel"
    content: Json | None = None
    data: Any = None   # the content, as the schema's own type

    def __bool__(self) -> bool:
        return self.action == "accept" and self.data is not False


def as_block(value: Any) -> Wire:
    """A block as it is, a text, or data as JSON."""
    if isinstance(value, Wire) and "type" in value:  # ours, or what a client got
        return value
    return Text(json_text(value))


def json_text(value: Any) -> str:
    """A text as it is; other data as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def format_of(kind: type) -> Json | None:
    """The format of a class, known by its name: nothing is imported for that."""
    for base in kind.__mro__:
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name in FORMATS:
            return FORMATS[name]
    return None


def plain(value: Any) -> Any:
    """JSON data for what a handler returns; TypeError: it has no JSON form."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "__dataclass_fields__"):
        import dataclasses
        return {field.name: plain(getattr(value, field.name))
                for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):  # a NamedTuple
        return plain(value._asdict())
    if isinstance(value, abc.Mapping):
        return {str(plain(key)): plain(part) for key, part in list(value.items())}
    if isinstance(value, abc.Set):  # its order would change each time
        return sorted(map(plain, value), key=json.dumps)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, abc.Collection):
        return list(map(plain, value))
    if format_of(type(value)) is None:
        raise TypeError(f"a value of type {type(value).__name__} has no JSON form")
    return getattr(value, "isoformat", value.__str__)()


# -- 7. Signatures ---------------------------------------------------------------------
# The hints of a function, read when it is registered, become the JSON Schema of its
# arguments and what makes objects of them; a TypeError names what has no schema.


class Shape(NamedTuple):
    """What a hint means: a JSON Schema, and what makes its object of a JSON value."""
    schema: Json
    make: Callable[[Any], Any]


class Field:
    """Describes a parameter, in Annotated or as its default: KEYWORDS, json_schema."""

    KEYWORDS = {"description": "description", "title": "title", "examples": "examples",
                "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum",
                "lt": "exclusiveMaximum", "multiple_of": "multipleOf",
                "pattern": "pattern", "min_length": "min{}", "max_length": "max{}"}

    def __init__(self, default: Any = MISSING, *, json_schema: Json | None = None,
                 **keywords: Any):
        unknown = keywords.keys() - self.KEYWORDS
        if unknown:
            raise TypeError(f"Field has no {unknown}")
        self.default = default
        self._schema = {self.KEYWORDS[name]: keywords[name] for name in keywords}
        self._schema.update(json_schema or {})

    def schema_for(self, kind: Any) -> Json:
        length = SIZES.get(str(kind))
        if length is None and {"min{}", "max{}"} & self._schema.keys():
            raise TypeError("lengths are of a text, a list or a dict, inside Optional")
        return {word.format(length): value for word, value in self._schema.items()}


ANY = Shape({}, lambda value: value)
STRING = Shape(PLAIN[str], str)
PLAIN_HINTS: dict[Any, Shape] = {
    **{kind: Shape(PLAIN[kind], kind) for kind in (bool, int, float)}, str: STRING,
    type(None): Shape(PLAIN[type(None)], ANY.make), Any: ANY, object: ANY}
ARRAYS: dict[Any, Any] = {  # what becomes of a list, for a class or an abstract base
    list: list, tuple: tuple, set: set, frozenset: frozenset, abc.Sequence: list,
    abc.MutableSequence: list, abc.Iterable: list, abc.Collection: list, abc.Set: set,
    abc.MutableSet: set}


def read_hint(hint: Any, is_output: bool = False, allows_none: bool = True) -> Shape:
    """The Shape of a hint (of a result, if is_output); TypeError: it has none.

    allows_none=False: of what it is besides None.
    """
    if hasattr(hint, "__metadata__"):  # Annotated
        shape = read_hint(hint.__origin__, is_output, allows_none)
        return described(shape, hint.__metadata__, is_output)
    kind = typing.get_origin(hint) or hint
    arguments: Any = typing.get_args(hint)
    read = partial(read_hint, is_output=is_output)
    if kind is typing.Literal:
        return choice_shape(dict(zip(arguments, arguments)))
    if kind in PLAIN_HINTS:
        return PLAIN_HINTS[kind]
    if kind in (Union, getattr(types, "UnionType", Union)):  # Union[X, Y], X | Y
        if not allows_none:
            arguments = [part for part in arguments if part is not type(None)]
        return union_shape([read(part, allows_none=allows_none) for part in arguments])
    if kind is tuple and arguments and arguments[-1] is not ...:
        items = list(map(read, arguments))
        return array_shape(tuple, union_shape(items), *items)
    if kind in ARRAYS:
        return array_shape(ARRAYS[kind], *map(read, arguments[:1]))
    if kind in (dict, abc.Mapping, abc.MutableMapping):
        return dict_shape(*map(read, arguments))
    if isinstance(kind, type):
        return class_shape(kind, is_output)
    raise TypeError(f"the hint {hint!r} has no JSON Schema")


def described(shape: Shape, metadata: Iterable[Any], is_output: bool) -> Shape:
    """With what Annotated has: a description, a Field, or part of a schema."""
    schema = shape.schema
    for item in metadata:
        if isinstance(item, str):
            item = {"description": item}
        elif isinstance(item, Field):
            item = item.schema_for(schema.get("type"))
        if isinstance(item, dict):
            kinds = "" if is_output else str(schema.get("type", schema.get("anyOf")))
            if item.keys() & LIMITS and "'string', 'number'" in kinds:
                item = {**item, "type": "number"}  # a limit holds no text of a Decimal
            schema = {**schema, **item}
    return Shape(schema, shape.make)


def choice_shape(choices: dict[Any, Any]) -> Shape:
    """One of these values; each stands for an object."""
    kinds = {types_of(value)[:1] for value in choices}
    if () in kinds:
        raise TypeError("choices must be str, int, float, bool or None")
    schema: Json = {"enum": list(choices)}
    if len(kinds) == 1:
        schema["type"] = kinds.pop()[0]
    return Shape(schema, choices.__getitem__)


def union_shape(parts: list[Shape]) -> Shape:
    schemas = [part.schema for part in parts]
    if schemas.count(schemas[0]) == len(schemas):
        return parts[0]
    checks = list(map(Schema, schemas))

    def make(value: Any) -> Any:
        """The first part decides that fits, and that can be made."""
        for check, part in zip(checks, parts):
            if not check.problems(value):
                with suppress(Exception):
                    return part.make(value)
        raise ValueError("it fits none of the alternatives")

    return Shape({"anyOf": schemas}, make)


def array_shape(collect: Any, item: Shape = ANY, *items: Shape) -> Shape:
    """An array of items, or of just these, which `collect` gets."""
    schema: Json = {"type": "array", "items": item.schema}
    if collect in (set, frozenset):
        schema["uniqueItems"] = True
    if items:  # VS Code refuses an array without `items`: so it has both
        schema["prefixItems"] = [one.schema for one in items]
        schema["minItems"] = schema["maxItems"] = len(items)

    def make(values: list[Any]) -> Any:
        pairs = zip(items or repeat(item), values)
        return collect(one.make(value) for one, value in pairs)

    return Shape(schema, make)


def dict_shape(key: Shape = STRING, value: Shape = ANY) -> Shape:
    if key != STRING:
        raise TypeError("the keys of a JSON object are texts")

    def make(members: Json) -> Json:
        return {name: made(name, value.make, members[name]) for name in members}

    return Shape({**OBJECT, "additionalProperties": value.schema or True}, make)


def made(name: str, make: Callable[[Any], Any], value: Any) -> Any:
    """What is made of a member of an object; BadValue, which names it: it cannot be."""
    try:
        return make(value)
    except BadValue as error:
        problems = error.problems
    except ValueError as error:
        problems = [Problem((), text_of(error))]
    except (TypeError, LookupError, ArithmeticError) as error:  # an accident
        problems = [Problem((), f"is refused: {type(error).__name__}")]
    raise BadValue([problem.below(name) for problem in problems])


def class_shape(kind: Any, is_output: bool) -> Shape:
    if issubclass(kind, enum.Enum):
        return choice_shape({plain(member.value): member for member in kind})
    text_format = format_of(kind)
    if text_format is not None:
        if is_output and hasattr(kind, "tzinfo"):
            text_format = {}  # TypeScript's hosts refuse what has no zone
        return Shape({"type": "string", **text_format}, partial(read_text, kind))
    return object_shape(parts_of_class(kind, is_output), is_output, kind)


def read_text(kind: Any, value: Any) -> Any:
    if issubclass(kind, bytes):
        import base64
        return base64.b64decode(value, validate=True)
    if hasattr(kind, "fromisoformat"):  # that of Python 3.10 does not know Z
        return kind.fromisoformat(re.sub("[zZ]$", "+00:00", value))
    return kind(str(value))


class Part(NamedTuple):
    """A parameter of a function, or a field of a class."""
    name: str
    hint: Any
    is_required: bool
    default: Any = MISSING

    def shape(self, is_output: bool) -> Shape:
        try:
            # `X | None = None` reads as X, and null means absent.
            shape = read_hint(self.hint, is_output, self.default is not None)
            if self.default not in (None, MISSING):
                with suppress(TypeError, ValueError):  # else it is not listed
                    default = loads(dumps(plain(self.default)))
                    return Shape({**shape.schema, "default": default}, shape.make)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{self.name}: {str(error)[-200:]}") from None
        return shape


def part_of(parameter: Any, hints: Json) -> Part:
    hint = hints.get(parameter.name, Any)
    default = parameter.default
    if default is parameter.empty:
        default = MISSING
    elif isinstance(default, Field):
        hint, default = typing.Annotated[hint, default], default.default
    return Part(parameter.name, hint, default is MISSING, default)


def parts_of_class(kind: Any, is_output: bool) -> list[Part]:
    """The fields of a dataclass, TypedDict or NamedTuple."""
    hints = typing.get_type_hints(kind, include_extras=True)
    parts = []
    if hasattr(kind, "__required_keys__"):
        for name, hint in hints.items():
            is_required = name in kind.__required_keys__
            # Under `from __future__ import annotations` only the hint tells.
            mark = getattr(typing.get_origin(hint), "_name", "")
            if mark in ("Required", "NotRequired"):
                is_required = mark == "Required"
                [hint] = hint.__args__
            parts.append(Part(name, hint, is_required))
        return parts
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    elif hasattr(kind, "_field_defaults"):
        defaults = {**dict.fromkeys(kind._fields, MISSING), **kind._field_defaults}
    else:
        raise TypeError(f"the class {kind.__name__} has no JSON Schema")
    if is_output:
        for name, default in defaults.items():
            hint = hints.get(name, Any)
            if default is None:  # so it may be null
                hint = Optional[hint]
            parts.append(Part(name, hint, is_required=True))
        return parts
    import inspect
    parameters = inspect.signature(kind).parameters  # not for field(init=False)
    return [part_of(parameters[name], hints) for name in defaults if name in parameters]


def object_shape(parts: list[Part], is_output: bool, build: Any = dict) -> Shape:
    """The Shape of an object with these members, which `build` gets by their names."""
    shapes = {part.name: part.shape(is_output) for part in parts}
    defaults = {part.name: part.default for part in parts
                if part.default is not MISSING}

    def make(values: Json) -> Any:
        given = defaults.copy()
        for name, value in values.items():
            given[name] = made(name, shapes.get(name, ANY).make, value)
        return build(**given)

    properties = {name: shape.schema for name, shape in shapes.items()}
    schema = {**OBJECT, "properties": properties, "additionalProperties": False}
    required = [part.name for part in parts if part.is_required]
    if required:
        schema["required"] = required
    return Shape(schema, make)


class Function:
    """A function of the user; if its schema is given, no objects are made by it."""

    def __init__(self, fn: Any, schema: Json | None = None):
        import inspect
        parameters = inspect.signature(fn).parameters
        given = fn if isinstance(fn, partial) else partial(fn)
        inner = inspect.unwrap(given.func)  # of a partial: what it calls
        hints = typing.get_type_hints(inner, include_extras=True)
        self.fn, self.key = fn, inner.__name__
        self.description = inspect.getdoc(inner)
        self.is_async = inspect.iscoroutinefunction(inner)
        self.result_hint = hints.get("return", Any)
        self._fixed = given.keywords  # what a partial gives
        self.parts, self.context_names = [], []
        for name, parameter in parameters.items():
            choices = (hints.get(name), *typing.get_args(hints.get(name)))
            by_name = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if parameter.kind not in by_name:
                if schema is None:
                    raise TypeError(f"{parameter}: arguments go by name")
            elif any(hasattr(one, "is_context") for one in choices):
                self.context_names.append(name)
            elif name not in self._fixed:
                self.parts.append(part_of(parameter, hints))
        self._make: Any = dict
        if schema is None:
            schema, self._make = object_shape(self.parts, is_output=False)
        self.schema, self._check = schema, Schema(schema)

    def bind(self, arguments: Json, context: Any) -> Job:
        """The call with these arguments; BadValue: they do not fit."""
        values = self._make(self._check.fit(arguments))
        values.update(dict.fromkeys(self.context_names, context), **self._fixed)
        return partial(self.fn, **values)


def normal_uri(uri: str) -> str:
    """A URI, or a template, as it is compared: libraries spell it in their own ways."""
    from urllib.parse import quote, unquote_to_bytes

    def respelled(found: re.Match[str]) -> str:
        return quote(unquote_to_bytes(found[0]), safe="{}")

    unusual = "(?:%[0-9A-Fa-f]{2}|[^!#-;=?-Z_a-z{}~]){1,99}"
    scheme, colon, rest = uri.partition(":")
    if scheme.lower() in ("http", "https"):
        rest = re.sub("^//[^/?#]+$", r"\g<0>/", rest)
        rest = re.sub("^//[^/?#{]+", lambda host: host[0].lower(), rest)
    return f"{scheme.lower()}{colon}{re.sub(unusual, respelled, rest)}"


class Template:
    """A URI template: {x}, {+x} or {x*} (with slashes, else %2F), {?x,y} at the end."""

    # In order: absolute or a mark; NUL; a drive; a JSON list; ./ or ../; .. at the end.
    UNSAFE = re.compile(r"(?si)[/\\\ufeff]|.*\0|[a-z]:|\s*[{[].*\W$|"
                        r"(.*[/\\])?\.(\.?[/\\]|\. *$)")

    def __init__(self, text: str):
        path, question, query = normal_uri(text).partition("{?")
        self._mark = question[1:] or " "  # a URI in its normal form has no space
        self.names = re.findall(r"\{\+?(\w+)\*?\}", path)
        pattern = re.sub(r"\\{\w+\\}", "([^/?#]+)", re.escape(path))
        self._pattern = re.sub(r"\\{(?:\\\+)?\w+(?:\\\*)?\\}", "(.+)", pattern)
        # `{a}-{b}` can be cut at each "-" (power 2): with many such, `re` never ends.
        self._power = len(re.findall(r"\+\)(?!/|$)|\.\+\)(?!$)", self._pattern)) + 1
        if "{" in self._pattern:
            raise ValueError(f"{text} is no template of this kind")
        self.names += re.findall("[^,]+", query[:-1])  # less its "}"

    def match(self, normal: str) -> dict[str, str] | None:
        """The values in a URI in its normal form; None: another, unsafe or too long."""
        from urllib.parse import parse_qsl, unquote
        path, _, query = normal.partition(self._mark)
        is_short = len(path) ** self._power < 10 ** 7
        found = is_short and re.fullmatch(self._pattern, path)
        if not found:
            return None
        variables = parse_qsl(query, keep_blank_values=True)
        values = {name: value for name, value in variables if name in self.names}
        values.update(zip(self.names, map(unquote, found.groups())))
        return None if any(map(self.UNSAFE.match, values.values())) else values


# -- 8. Eras ---------------------------------------------------------------------------
# What differs, on a server, is asked of the `era` of a request: its own Modern, if its
# `_meta` has a revision; else the Legacy of the session, which begins by a handshake.


class Request(Incoming):
    """A request of a client, or a notification: what its contexts share."""

    connection: ServerSession
    topics: abc.Set[str] = frozenset()  # of a stream: what it is told of

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.era: Legacy | Modern = self.connection.legacy
        self.meta = as_dict(self.params.get("_meta"))
        # Known when a handler runs again: answers, by digests; results of `once`.
        self.known: Json = {}

    def tagged(self, params: Json) -> Json:
        return with_meta(params, {f"{META}subscriptionId": self.id})


class Legacy:
    """A session: `initialize`, its result, `initialized`.  A question is a request."""

    not_found, lacks_capability = RESOURCE_NOT_FOUND, INVALID_REQUEST

    def __init__(self, session: ServerSession):
        self._session = session
        self.date = ""  # the revision, once there was `initialize`
        self.client_info: Json = {}
        self.client_capabilities: Json = {}
        self.log_level: str | None = "info"
        # It is told of these alone: LIST_CHANGED, and URIs in normal form.
        self.topics = set[str]()

    def initialize(self, params: Json) -> None:
        asked = require(params, "protocolVersion", str)
        self.client_capabilities = require(params, "capabilities", dict, {})
        self.client_info = require(params, "clientInfo", dict, {})
        self.date = asked if asked in LEGACY else LEGACY[-1]  # or the client leaves

    def dress(self, result: Json) -> Json:
        return result

    def ask(self, waiting: Incoming, questions: Json, timeout: Seconds) -> Json:
        """The client's answers, by keys; withdrawn if `waiting` is cancelled."""
        sent: dict[str, Outgoing] = {}

        def withdraw() -> None:
            for outgoing in sent.values():
                outgoing.cancel(Cancelled())

        try:
            for key, question in questions.items():
                params = question["params"]
                if params.get("mode") == "url":
                    params = {**params, "elicitationId": os.urandom(8).hex()}
                sent[key] = self._session.request(question["method"], params)
            with waiting.on_cancel(withdraw):
                if self._session.has_input_ended:
                    withdraw()  # nobody will answer
                return {key: outgoing.wait(timeout) for key, outgoing in sent.items()}
        finally:
            withdraw()  # those that were not waited for


class Modern:
    """A request that says itself who asks.  A question ends its handler, with a result
    `input_required`.  The client sends the request again, with `inputResponses` and the
    `requestState` that came (signed: what is known, and was asked); the handler runs
    from its start, and what is known is not asked.  So the server itself keeps nothing.
    """

    not_found, lacks_capability = INVALID_PARAMS, MISSING_CAPABILITY

    def __init__(self, request: Request):
        # A proxy, because a request in a cycle would be kept for long.
        meta, params, self._request = request.meta, request.params, proxy(request)
        self.date = require(meta, f"{META}protocolVersion", str)
        if self.date not in MODERN:
            raise McpError(UNSUPPORTED_VERSION, f"Unsupported revision {self.date}",
                           {"supported": MODERN, "requested": self.date})
        self.client_capabilities = require(meta, f"{META}clientCapabilities", dict)
        self.client_info = require(meta, f"{META}clientInfo", dict, {})
        self.log_level = meta.get(f"{META}logLevel")
        if self.log_level not in (None, *LEVELS):
            raise invalid_params(f"Unknown log level {show(self.log_level)}", "_meta")
        self._texts: list[str] = []  # of the questions of this run
        self._responses = require(params, "inputResponses", dict, {})  # by names
        self._asked: Json = {}  # digests of the questions of the last run, by names
        sealed = require(params, "requestState", str, "")
        if sealed:
            import hmac
            text = sealed.partition(" ")[2]
            is_ours = hmac.compare_digest(encode(sealed), encode(self._sealed(text)))
            state: Json = json.loads(text) if is_ours else {}
            if state.get("until", 0) < time():
                raise invalid_params("requestState is altered, expired or foreign")
            self._asked, request.known = state["asked"], state["known"]
            for name in self._asked.keys() & self._responses:  # in whatever order
                request.known[self._asked[name]] = self._responses[name]

    def _sealed(self, text: str) -> str:
        # The text after its HMAC, for this server, method, params; digests have no {.
        import hmac
        request, server = self._request, self._request.connection.server
        fresh = dict.fromkeys(("_meta", "inputResponses", "requestState"))
        bound = [server.info["name"], request.method, text, {**request.params, **fresh}]
        line = json.dumps(bound, sort_keys=True).encode()  # an object has no order
        return f"{hmac.new(server.state_secret, line, 'sha256').hexdigest()} {text}"

    def dress(self, result: Json) -> Json:
        info = {f"{META}serverInfo": self._request.connection.server.info}
        result = {"resultType": "complete", **with_meta(result, info)}
        if self._request.method in CACHEABLE and result["resultType"] == "complete":
            result.update(ttlMs=0, cacheScope="private")  # ask anew each time
        return result

    def ask(self, waiting: Incoming, questions: Json, timeout: Seconds) -> Json:
        """The answers, or InputRequired.  A question has a key, of the handler, perhaps
        ""; a digest, the same in each run; a name, by which the client answers it.
        """
        known = self._request.known
        answers, missing, asked = {}, {}, {}
        for key, question in questions.items():
            text = dumps([key, question])
            self._texts.append(text)  # the same text again is another question
            digest = self._sealed(f"{self._texts.count(text)} {text}")[:16]
            name = key or digest
            if digest not in known and name in self._responses:
                if name in self._asked:  # with this text, `known` would have it
                    raise invalid_params(f"{name} answers another question", name)
                known[digest] = self._responses[name]  # it came without a state
            self._responses.pop(name, None)  # it answers no second one of this name
            if digest in known:
                answers[key] = known[digest]
            else:
                missing[name] = question
                asked[name] = digest
        if missing:
            state = {"until": time() + MAX_STATE_AGE, "asked": asked, "known": known}
            result = {"resultType": "input_required", "inputRequests": missing,
                      "requestState": self._sealed(dumps(state))}
            raise InputRequired(result)
        return answers


# -- 9. Context ------------------------------------------------------------------------
# What a handler can do with the request that it serves.
LOOPS: dict[int, Any] = {}  # for `async def` handlers, by process: a fork has no thread
LOOP_LOCK = threading.Lock()  # guards that


class Context:
    """A parameter with this hint gets one.  Once the request is cancelled, or the
    session is over, methods raise Cancelled, an await CancelledError: let it pass.
    """

    is_context = True
    _send = staticmethod(Connection.write)  # a slow peer holds the handler up

    def __init__(self, request: Request, waiting: Incoming | None = None):
        self._serving = request
        self._waiting = waiting or request  # cancelled, it ends what waits
        self.request_id, self.meta = request.id, request.meta
        self.client_info = Wire(request.era.client_info)
        self.client_capabilities = Wire(request.era.client_capabilities)
        self.protocol_version = request.era.date
        self.server: Server = request.connection.server
        self.lifespan_context = request.connection.lifespan_context

    @property
    def cancelled(self) -> bool:
        return self._serving.cancelled or bool(self._serving.connection.why_ended)

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled

    @property
    def _live(self) -> Request:
        self.check_cancelled()
        return self._serving

    def wait(self, seconds: float) -> None:
        """Sleep, but only until the request is cancelled."""
        woken = threading.Event()
        with self._waiting.on_cancel(woken.set):
            woken.wait(min(seconds, threading.TIMEOUT_MAX))
        self.check_cancelled()

    def notify(self, method: str, params: Json | None = None) -> Any:
        """Send a notification, unless the request was answered."""
        request = self._live
        line = notification(method, params or {})
        self._send(request.connection, line, request.is_live)
        return Done()

    def report_progress(self, progress: float, total: float | None = None,
                        message: str | None = None) -> Any:
        """Tell a client that asked for it; progress must increase each time."""
        request = self._live
        token = valid_id(request.meta.get("progressToken"))
        if token is not None:
            params = fields(total=total, message=message)
            params.update(progressToken=token, progress=progress)
            request.report_progress(params, self._send)
        return Done()

    def track(self, items: Iterable[Any], total: float | None = None) -> Iterator[Any]:
        """Yield the items, and report progress after each."""
        if total is None:
            total = operator.length_hint(items) or None
        for done, item in enumerate(items, 1):
            yield item
            self.report_progress(done, total)

    def log(self, level: str, data: Any, logger_name: str | None = None) -> Any:
        """Send a log message: any JSON, with a level from "debug" to "emergency"."""
        rank, least = LEVELS.index(level), self._live.era.log_level
        if least and rank >= LEVELS.index(least):
            params = fields(level=level, logger=logger_name)
            params["data"] = plain(data)
            self.notify("notifications/message", params)
        return Done()

    debug, info, notice, warning, error, critical, alert, emergency = map(
        partial(partialmethod, log), LEVELS)  # ctx.info(data)

    def once(self, key: str, fn: Callable[[], Any]) -> Any:
        """The result of fn(), JSON, which runs once for a request, also if the handler
        runs again (2026-07-28), but twice if asked twice at once.  Clients can read it.
        """
        known = self._live.known
        if key not in known:
            known[key] = plain(awaited(fn(), self._live))
        return known[key]

    def elicit(self, message: str, schema: Any, key: str = "",
               timeout: Seconds = 600) -> Elicited:
        """Ask the user to fill in a form; in 2026-07-28 the handler then runs again.

        schema: bool, int, float, str, a list of texts (a choice), a dataclass or
        TypedDict of these, or a JSON Schema.  key: see `ask`.  timeout: legacy alone.
        """
        make = ANY.make
        if isinstance(schema, list):
            schema = {"type": "string", "enum": schema}
        elif not isinstance(schema, dict):
            schema, make = read_hint(schema)
        is_value = "properties" not in schema
        if is_value:
            schema = {"properties": {"value": schema}, "required": ["value"]}
        required = schema.get("required", [])
        form = {**OBJECT, "properties": schema["properties"], "required": required}
        answer = self._ask_one("elicitation/create", key, timeout,
                               message=message, requestedSchema=form)
        if answer["action"] != "accept":
            return Elicited(answer["action"])
        content = answer.get("content") or {}
        data = content["value"] if is_value else content
        try:
            return Elicited("accept", content, made("content", make, data))
        except BadValue as error:
            raise error.as_invalid_params("The answer does not fit") from None

    def elicit_url(self, message: str, url: str, key: str = "",
                   timeout: Seconds = 600) -> Elicited:
        """Ask the user to visit a URL; "accept" says only that he wants to."""
        answer = self._ask_one("elicitation/create", key, timeout,
                               mode="url", message=message, url=url)
        return Elicited(answer["action"])

    def sample(self, messages: Any, *, max_tokens: int = 512, key: str = "",
               timeout: Seconds = 600, **params: Any) -> Message:
        """Ask the client's model: a text, a Message, or a list of these."""
        params = fields(messages=messages_of(messages), max_tokens=max_tokens, **params)
        answer = self._ask_one("sampling/createMessage", key, timeout, **params)
        return Message.of(answer)  # type: ignore[no-any-return]

    def list_roots(self, key: str = "", timeout: Seconds = 600) -> list[Wire]:
        """The folders that the client lets servers work in: uri, name."""
        answer = self._ask_one("roots/list", key, timeout)
        return list(map(Wire, answer["roots"] or []))

    def _ask_one(self, method: str, key: str, timeout: Seconds, **params: Any) -> Json:
        question = {"method": method, "params": params}
        return self.ask({key: question}, timeout)[key]  # type: ignore[no-any-return]

    def ask(self, questions: Json, timeout: Seconds = 600) -> Json:
        """Ask several questions at once: {key: {"method": …, "params": …}}.

        A key names the question if the handler runs again, with the same text.
        McpError: it is not declared, or its answer does not fit.
        """
        era = self._live.era
        for question in questions.values():
            name, params = QUESTIONS[question["method"]][0], question["params"]
            Schema(params.get("requestedSchema") or {})  # SchemaError before we ask
            if params.get("mode") == "url":
                name = "elicitation.url"
            elif params.get("tools") is not None:
                name = "sampling.tools"
            elif name == "elicitation" and era.client_capabilities.get(name):
                name = "elicitation.form"  # it is meant where there are no members
            if not declares(era.client_capabilities, name):
                kind, *members = name.split(".")
                needed: Json = {kind: dict.fromkeys(members, {})}
                raise McpError(era.lacks_capability, f"The client lacks {name}",
                               {"requiredCapabilities": needed})
        answers = era.ask(self._waiting, questions, timeout)
        for key, question in questions.items():
            answer, form = answers[key], question["params"].get("requestedSchema")
            _, name, schema = QUESTIONS[question["method"]]
            expected = {**OBJECT, "required": [name], "properties": {name: schema}}
            problems = Schema(expected).problems(answer)
            if form and not problems and answer["action"] == "accept":
                only = {"additionalProperties": False, **form}  # not more than asked
                problems = Schema(only).problems(answer.get("content") or {})
            if problems:
                raise BadValue(problems).as_invalid_params("The answer does not fit")
        return answers

    def ping(self, timeout: Seconds = 60) -> None:
        """Ask the client for a sign of life (up to 2025-11-25)."""
        legacy = self._live.connection.legacy
        if self._serving.era is not legacy:
            raise unknown_method("ping")
        legacy.ask(self._waiting, {"": {"method": "ping", "params": {}}}, timeout)

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """The contents of a resource of this server."""
        is_inner = self._waiting is self._serving  # on the thread of the handler
        contents = self._live.connection.contents_of(uri, self._serving, is_inner)
        return list(map(ResourceContents.of, contents))


def messages_of(messages: Any) -> list[Any]:
    found = []
    for one in as_list(messages):
        if "role" not in as_dict(one):
            one = Message("user", one)
        elif isinstance(one.get("content"), str):
            one = Message(one["role"], one["content"])
        found.append(one)
    return found


class AsyncContext(Context):
    """`async def` gets it by either hint: what waits is awaited, what tells may be."""

    _send = staticmethod(Connection.post)  # but not the event loop of all

    async def _on_thread(self, name: str, *arguments: Any, **options: Any) -> Any:
        import asyncio
        from concurrent.futures import Future
        request, future = self._live, Future[Any]()
        waiting = Incoming(request.connection, None, "", {})  # it ends with this await
        method = getattr(Context(request, waiting), name)
        call = partial(method, *arguments, **options)
        with request.on_cancel(waiting.cancel):
            try:
                start_thread("asking", partial(fulfil, future, call))
                return await asyncio.wrap_future(future)
            finally:
                waiting.cancel()

    elicit, elicit_url, sample, list_roots, ask, ping, once, wait, read_resource = (
        typing.cast(Any, map(partial(partialmethod, _on_thread), re.findall(
            r"\w+", "elicit elicit_url sample list_roots ask ping once wait "
            "read_resource"))))


def result_of(future: Future[Any], request: Request) -> Any:
    """Wait for a Future; if the request is cancelled, so is that."""
    from concurrent.futures import CancelledError
    with request.on_cancel(future.cancel):
        try:
            return future.result()
        except CancelledError:
            raise Cancelled from None


def start_task(coroutine: Any) -> Future[Any]:
    """Run it on the event loop, which has a thread of its own."""
    import asyncio
    pid = os.getpid()

    def work(loop: Any) -> None:
        while os.getpid() == pid:  # not in a child that a task has forked
            with suppress(SystemExit, KeyboardInterrupt):  # of a task of the user
                loop.run_forever()

    with LOOP_LOCK:
        if pid not in LOOPS:
            loop = asyncio.new_event_loop()
            start_thread("event loop", partial(work, loop))
            LOOPS[pid] = loop
    return asyncio.run_coroutine_threadsafe(coroutine, LOOPS[pid])


def entered(manager: Any, stack: ExitStack) -> Any:
    """What a context manager gives, perhaps an async one; the stack leaves it."""
    if not hasattr(manager, "__aenter__"):
        return stack.enter_context(manager)
    value = start_task(manager.__aenter__()).result()
    leave = partial(manager.__aexit__, None, None, None)
    stack.callback(lambda: start_task(leave()).result())
    return value


class Done:
    """What a method returns that is done: an `async def` handler may await it."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def awaited(value: Any, request: Request) -> Any:
    """What a function of the user gave; if that is a coroutine, its result."""
    if isinstance(value, Done):
        return None
    if hasattr(value, "__await__"):
        return result_of(start_task(value), request)
    return value


# -- 10. Streams, who reads, and a port ------------------------------------------------
# A stray print or a child that writes to fd 1 would spoil the wire, and one that reads
# fd 0 would eat it: so a server reads and writes private duplicates, unbuffered, as a
# thread inside sys.stdin at exit aborts the interpreter.

def is_file(stream: Any) -> bool:
    # Does its end mean that all was asked, rather than that nobody listens?
    with suppress(Exception):
        return os.path.isfile(stream.fileno())
    return hasattr(stream, "getvalue")  # a BytesIO


@contextmanager
def stdio_server() -> Iterator[tuple[Any, Any]]:
    """Take stdin and stdout: `with stdio_server() as (reader, writer):`.

    What is printed then goes to stderr: so import what prints after this, then call
    `server.serve(reader, writer)`.  On the main thread SIGTERM and Ctrl-C raise
    SystemExit (143, 130).  OSError: one of them is closed.
    """
    import signal

    def stop(number: int, frame: object) -> None:
        raise Stopped(128 + number)

    before: dict[int, Any] = {}
    for opened in (0, 1):
        os.fstat(opened)  # OSError: it is closed
    null = os.open(os.devnull, os.O_RDWR)  # if fd 2 is closed, this is it
    reader = open(os.dup(0), "rb", 0, closefd=False)  # noqa: SIM115
    with open(os.dup(0), "rb", 0) as stdin, open(os.dup(1), "wb", 0) as writer:
        os.dup2(null, 0)
        os.dup2(2, 1)
        try:
            with suppress(ValueError):  # this is not the main thread
                for number in (signal.SIGTERM, signal.SIGINT):
                    handler = signal.getsignal(number)  # perhaps a host's
                    if handler in (signal.SIG_DFL, signal.default_int_handler):
                        before[number] = signal.signal(number, stop)
            yield reader, writer
        finally:
            for changed in before:
                signal.signal(changed, before[changed])
            with suppress(Exception):  # there is none
                sys.stdout.flush()
            os.dup2(stdin.fileno(), 0)  # a thread may be inside the reader
            os.dup2(writer.fileno(), 1)
            if null != 2:
                os.close(null)


class Reading:
    """Reading is a job of the pool, whose threads do it by turns.

    A handler that comes alone runs on the reader (`run`): a call takes 33 us, not 58.
    If it takes 2 ms, `_look`, on `serve`'s thread, submits a new `read`: another
    thread reads on, and is `_reader`.  The old one sees that when its handler ends: it
    leaves its `read`, and is a worker again.
    """

    def __init__(self, read_one: Callable[[], bool], pool: Pool, jobs: Any):
        self._read_one = read_one       # reads a line and acts on it; False: the end
        self._pool = pool
        self._watch = jobs.put          # gives a job to the thread in `serve`
        self._reader = 0                # the thread that reads; 0: it is handed over
        self._lock = threading.Lock()   # held to clear `_began`, which the reader sets
        self._began: float | None = None  # when the handler began that the reader runs
        self._is_watched = False        # is there a job that will look at it?
        self.is_over = threading.Event()

    def run(self, handler: Job) -> None:
        """Run a handler, which raises nothing, on the reader, or let the pool do so."""
        if self._pool.unfinished > 1:  # than the job that reads
            self._pool.submit(handler)
            return
        self._began = monotonic()
        self._look_soon()
        handler()
        with self._lock:
            if self._reader == threading.get_ident():  # else it is of the next reader
                self._began = None

    def read(self) -> None:
        self._reader = thread = threading.get_ident()
        while self._reader == thread and self._read_one():
            pass
        if self._reader == thread:  # the end; `_is_busy` counts one job that reads
            self.is_over.wait()

    def _look_soon(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._watch(self._look)

    def _look(self) -> None:
        self._is_watched = False  # before it looks: what begins now needs another look
        sleep(HAND_OVER_SECONDS)
        with self._lock:
            if self._began and monotonic() - self._began >= HAND_OVER_SECONDS:
                self._began = None
                self._reader = 0
                self._pool.submit(self.read)
        if self._began:
            self._look_soon()


class Listener:
    """Serves those who connect; see Server.listen.  `close` ends it."""

    def __init__(self, server: Server, path: Any):
        from pathlib import Path
        from secrets import compare_digest, token_hex
        from socketserver import ThreadingTCPServer
        # In the file: its reader sends the first, gets the other if the port is ours.
        of_client, of_server = token_hex(32), token_hex(32)

        class Port(ThreadingTCPServer):
            daemon_threads = True

            # One after another, on the thread that accepts: strangers can only delay.
            def verify_request(self, request: Any, client_address: object) -> bool:
                request.settimeout(PATIENCE / 40)
                with suppress(OSError):
                    if compare_digest(request.recv(65), f"{of_client}\n".encode()):
                        request.sendall(f"{of_server}\n".encode())
                        request.settimeout(None)
                        return True
                return False

        def serve(channel: Any, *more: object) -> Any:
            with channel.makefile("rwb", 0) as stream:
                server.serve(stream, stream)

        self._socket = Port(("127.0.0.1", 0), serve)
        self._address = f"{self._socket.server_address[1]} {of_client} {of_server}\n"
        self._path = Path(path).expanduser().absolute()
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        with open(self._path, "x", opener=partial(os.open, mode=0o600)) as file:
            file.write(self._address)
        start_thread("listener", self._socket.serve_forever)

    def close(self) -> None:
        """Take no more connections; those that are open go on."""
        self._socket.shutdown()
        self._socket.server_close()
        with suppress(OSError):
            if self._path.read_text() == self._address:  # not of a newer listener
                self._path.unlink()


# -- 11. Server ------------------------------------------------------------------------
# What is registered; and a session with one client: the methods of the protocol.
# A call: read_one, _take_request, on_request, run, _handle, call_named, _run, respond.


class Entry(Function):
    """A registered function with its entry in a list; options: fields of that."""

    kind: str  # of the lists that it is in, and its capability
    capability = {"listChanged": True}

    def __init__(self, fn: Any, name: str | None = None, _schema: Json | None = None,
                 description: str | None = None, **options: Any):
        super().__init__(fn, _schema)
        self.key, self.list_key = name or self.key, self.kind
        self.definition = fields(
            name=self.key, description=description or self.description, **options)


def has_blocks(hint: Any) -> bool:
    is_block = Wire in getattr(hint, "__mro__", ())
    return is_block or any(map(has_blocks, typing.get_args(hint)))


class Tool(Entry):
    kind = "tools"

    def __init__(self, fn: Any, input_schema: Json | None = None,
                 output_schema: Json | None = None, **options: Any):
        super().__init__(fn, _schema=input_schema, **options)
        if not re.fullmatch(r"[\w.-]{1,128}", self.key, re.ASCII):
            raise ValueError(f"hosts refuse the name {self.key!r}")
        hint = self.result_hint
        self._has_blocks = has_blocks(hint)
        # Does it say more than blocks, text, or anything?
        is_open = self._has_blocks or hint in (str, Any, type(None), object, list)
        if output_schema is None and not is_open:
            output_schema = read_hint(hint, is_output=True).schema
        self._output = None if output_schema is None else Schema(output_schema)
        self._is_wrapped = (output_schema or OBJECT).get("type") != "object"
        if self._is_wrapped:  # other data than objects goes into one
            output_schema = {**OBJECT, "properties": {"result": output_schema},
                             "required": ["result"], "x-fastmcp-wrap-result": True}
        self.definition.update(fields(
            input_schema={**OBJECT, **self.schema}, output_schema=output_schema))

    def result(self, value: Any) -> Json:
        """The result for what the handler returned; BadValue: not as it declares."""
        if self._output is None and isinstance(value, str):  # a text is no data
            return {"content": [{"type": "text", "text": value}], "isError": False}
        blocks = as_list(value)
        has_block = any(isinstance(one, Wire) and "type" in one for one in blocks)
        if has_block or (self._has_blocks and not blocks):
            value = ToolResult(blocks)
        elif not isinstance(value, ToolResult):
            value = ToolResult([value], value)  # as text, too, for older clients
        result: Json = value
        if result.get("isError"):
            return result
        data = result.get("structuredContent")
        problems = self._output.problems(data) if self._output else []
        if problems:
            raise BadValue(problems)
        if self._is_wrapped or not isinstance(data, (dict, type(None))):
            # FastMCP's clients unwrap what has this mark.
            result = with_meta(result, {"fastmcp": {"wrap_result": True}})
            result["structuredContent"] = {"result": data}
        return result


class Resource(Entry):
    kind = "resources"
    capability = {"listChanged": True, "subscribe": True}

    def __init__(self, fn: Any, uri: str, **options: Any):
        super().__init__(fn, **options)
        self.key = normal_uri(uri)
        self.template = Template(uri)  # also of a plain URI: then without names
        given = set(self.template.names)
        if given:
            self.list_key = "resourceTemplates"
        self.definition["uriTemplate" if given else "uri"] = uri
        names = {part.name for part in self.parts}
        needed = {part.name for part in self.parts if part.is_required}
        if not needed <= given <= names:
            raise TypeError(f"{uri} has {sorted(given)}, its function {sorted(names)}")

    def result(self, value: Any, uri: str) -> list[Json]:
        declared = fields(mime_type=self.definition.get("mimeType"))
        if isinstance(value, str):
            kind, found = "text/plain", {"text": value}
        elif isinstance(value, (bytes, bytearray, memoryview)):
            kind, found = "application/octet-stream", {"blob": plain(value)}
        elif any(isinstance(part, ResourceContents) for part in as_list(value)):
            return [{"uri": uri, **declared, **part} for part in as_list(value)]
        else:
            kind, found = "application/json", {"text": json_text(value)}
        return [{"uri": uri, "mimeType": kind, **found, **declared}]


class Prompt(Entry):
    kind = "prompts"

    def __init__(self, fn: Any, **options: Any):
        super().__init__(fn, **options)
        properties = self.schema["properties"]
        self.definition["arguments"] = arguments = []
        for part in self.parts:
            text = properties[part.name].get("description")
            arguments.append(fields(
                name=part.name, required=part.is_required, description=text))

    def result(self, value: Any) -> Json:
        description = self.definition.get("description")
        return fields(description=description, messages=messages_of(value))


class Server:
    """A server: decorate functions with it, then `run()` it on stdin and stdout.

    Handlers run on threads, `async def` ones on one event loop; threaded=False: on the
    thread that called `run`; run_handler: a function that gets each as a job, for a
    thread of the host.  Any method may be called from any thread.
    page_size: of a list, at once.  max_workers: handlers at a time.
    lifespan: a function of the server; it gives a context manager for each client.
    mask_errors: clients do not see what exceptions say, but McpError, ToolError (those
    that a Client in a handler got, too), and a ValueError of an argument's class.
    capabilities: declared, too.  trace: a function, "stderr" or a file (MCP_MIN_TRACE).
    state_secret: 16 bytes or more, the same for servers that take turns with a client.
    """

    def __init__(self, name: str, version: str = "0", *, title: str | None = None,
                 instructions: str | None = None, page_size: int = 1000,
                 max_workers: int = 64, max_message_bytes: int = MAX_MESSAGE_BYTES,
                 lifespan: Handler = None, threaded: bool = True,
                 run_handler: Handler = None, mask_errors: bool = False,
                 capabilities: Json | None = None, state_secret: bytes | None = None,
                 trace: Any = None):
        self.state_secret = state_secret or os.urandom(32)
        if len(self.state_secret) < 16:
            raise ValueError("state_secret has at least 16 bytes")
        self.info = fields(name=name, version=version, title=title)
        self.instructions = instructions
        self.mask_errors = mask_errors
        self.page_size, self.max_workers = page_size, max_workers
        self.max_message_bytes = max_message_bytes
        self.trace = trace
        self.threaded, self.run_handler = threaded, run_handler
        self.lifespan = lifespan
        self.capabilities: Json = plain({"logging": {}, **(capabilities or {})})
        # What is registered, by its name or its URI in normal form.
        self.entries: dict[str, Json] = {kind: {} for kind in LIST_CHANGED}
        self.functions: dict[Any, Function] = {}  # of `method` and `completion`
        self._sessions = set[ServerSession]()

    def tool(self, fn: Any = None, **options: Any) -> Any:
        """Register a tool: name, title, description, annotations, icons, meta,
        input_schema, output_schema (default: from the hints; an input_schema without
        `additionalProperties: false` lets a model set any parameter).
        """
        return self._register(Tool, options, fn)

    def prompt(self, fn: Any = None, **options: Any) -> Any:
        """Register a prompt: name, title, description, icons, meta."""
        return self._register(Prompt, options, fn)

    def resource(self, uri: str, fn: Any = None, **options: Any) -> Any:
        """Register a resource, or with {name} in its URI a template of resources:
        mime_type, name, title, description, size, annotations, icons, meta.
        """
        if not isinstance(uri, str):
            raise TypeError('it needs a URI: @server.resource("data://…")')
        return self._register(Resource, {**options, "uri": uri}, fn)

    def _register(self, kind: Any, options: Json, fn: Any) -> Any:
        if fn is None:
            return partial(self._register, kind, options)
        entry = kind(fn, **options)
        name = entry.kind
        if self.entries[name].setdefault(entry.key, entry) is not entry:
            raise ValueError(f"{entry.key} already exists")
        self.capabilities.setdefault(name, {}).update(entry.capability)
        self._tell(LIST_CHANGED[name], {})
        return fn

    add_tool, add_prompt, add_resource = tool, prompt, resource  # clients are told

    def _remove(self, kind: str, key: str) -> None:
        """Remove a tool or prompt by its name, a resource or a template by its URI."""
        del self.entries[kind][normal_uri(key) if kind == "resources" else key]
        self._tell(LIST_CHANGED[kind], {})

    remove_tool = partialmethod(_remove, "tools")
    remove_prompt = partialmethod(_remove, "prompts")
    remove_resource = partialmethod(_remove, "resources")

    def completion(self, ref: str, argument: str) -> Any:
        """Suggest values for an argument; ref: a prompt's name, or a template.

        The function gets what the user has typed, and the other arguments as a dict.
        """
        self.capabilities.setdefault("completions", {})
        if "{" in ref:
            ref = normal_uri(ref)
        return partial(self._keep, (ref, argument))

    def method(self, name: str) -> Any:
        """Serve a request or notification of your own (not in METHODS): fn(params)."""
        return partial(self._keep, name)

    def _keep(self, key: Any, fn: Any) -> Any:
        self.functions[key] = Function(fn, {})
        return fn

    def notify_resource_updated(self, uri: str) -> None:
        """Tell the clients that have subscribed to a resource that it has changed."""
        self._tell("notifications/resources/updated", {"uri": uri})

    def _tell(self, method: str, params: Json) -> None:
        for session in self._sessions.copy():
            session.tell(method, params)

    def listen(self, path: Any) -> Listener:
        """Serve whom `connect PATH` connects, at a port; `close()` lets in no more."""
        return Listener(self, path)

    def run(self) -> None:
        """Serve the client at stdin and stdout until it hangs up; blocks.

        On the main thread SIGTERM and Ctrl-C end it: SystemExit with 143 or 130.
        """
        asyncio = sys.modules.get("asyncio")
        if asyncio and asyncio._get_running_loop():
            raise RuntimeError("run() blocks: await asyncio.to_thread(server.run)")
        self.trace = self.trace or os.environ.get("MCP_MIN_TRACE")
        with stdio_server() as (reader, writer):
            self.serve(reader, writer)

    def serve(self, reader: Any, writer: Any) -> None:
        """Serve the client at two binary streams (of text: an end); blocks."""
        session = ServerSession(self, reader, writer)
        self._sessions.add(session)
        with ExitStack() as stack:  # handlers are told to end before it, not waited for
            stack.callback(self._sessions.discard, session)
            if self.lifespan:
                session.lifespan_context = entered(self.lifespan(self), stack)
            stack.callback(session.close)
            session.serve()


class ServerSession(Connection):
    """A server with one client: the methods of the protocol, and which handlers run."""

    request_class = Request
    incoming: dict[Any, Request]  # type: ignore[assignment]
    lifespan_context: Any = None
    has_input_ended = False

    def __init__(self, server: Server, reader: Any, writer: Any):
        trace = Trace(server.trace) if server.trace else None
        super().__init__(reader, writer, server.max_message_bytes, trace)
        self.server = server
        self.legacy = Legacy(self)
        self._reads_file = is_file(reader)  # then nothing in it may be lost
        self._jobs = SimpleQueue[Job]()  # for the thread in `serve`
        self._host = server.run_handler if server.threaded else self._jobs.put
        self._pool = Pool("worker", server.max_workers + 1)  # one of them reads
        self._reading = Reading(self.read_one, self._pool, self._jobs)

    def serve(self) -> None:
        """Serve until the client hangs up, then finish what is in flight, in time."""
        self._pool.submit(self._reading.read, spare=1)  # so `_look` need not start one
        # Not without a limit: a signal that comes just before the wait would be lost.
        while not self.has_input_ended:
            self._run_job(1.0)
        for request in self.incoming.copy().values():
            if request.method == "subscriptions/listen":
                self._respond(request, request.tagged({}))
        deadline = monotonic() + DRAIN_SECONDS
        while self._is_busy() and (self._reads_file or monotonic() < deadline):
            self._run_job(0.005)

    def _is_busy(self) -> bool:
        is_open = not self.why_ended and bool(self._queue or self.incoming)
        return self._pool.unfinished > 1 or is_open or self._writing.locked()  # 1 reads

    def _run_job(self, seconds: float) -> None:
        with suppress(Empty):
            self._jobs.get(timeout=seconds)()

    def close(self) -> None:
        self.end(ConnectionClosed("The session is over"))
        self._reading.is_over.set()
        self._pool.close()
        self._notices.close()

    def on_end(self) -> None:
        self.has_input_ended = True
        for question in self.outgoing.copy().values():
            question.end(Cancelled())  # nobody will answer
        self._jobs.put(lambda: None)  # this wakes `serve`
        if not (self.why_ended or self._reads_file or self.server.threaded):
            sleep(DRAIN_SECONDS)  # the thread in `serve` may be inside a handler
            self.end(ConnectionClosed("The client has hung up"))

    def on_refused(self, line: Line, error: McpError, found_id: Any) -> Line:
        return encode({"jsonrpc": "2.0", "id": found_id, "error": error.to_json()})

    def on_notification(self, method: str, params: Json) -> None:
        if method in self.server.functions:
            request = Request(self, None, method, params)
            self.incoming[request] = request  # where only the end finds it
            self._notices.submit(partial(self._handle, self.call_own, request))

    def on_request(self, request: Request) -> None:
        if f"{META}protocolVersion" in request.meta or (
                request.method == "server/discover" and not self.legacy.date):
            request.era = Modern(request)
        date = request.era.date
        row = METHODS.get(request.method) or Method("call_own")
        if not date and request.method not in ("initialize", "ping"):
            raise McpError(INVALID_REQUEST, f"{request.method} before `initialize`")
        if date and date not in row.revisions:
            raise unknown_method(request.method)
        if row.capability and not declares(self.server.capabilities, row.capability):
            raise unknown_method(request.method)
        job = partial(self._handle, getattr(self, row.handler), request)
        notices = self._notices.unfinished  # they are in `incoming`, too
        is_full = len(self.incoming) - notices > MAX_REQUESTS
        if is_full and not self._reads_file and request.method != "ping":
            raise McpError(INTERNAL_ERROR, f"Over {MAX_REQUESTS} requests in flight")
        if request.method in AT_ONCE:
            return job()
        if not request.batch:
            request.send_response = self.write  # a slow peer holds the handler up
        if request.batch or self._host:  # the rest of an array waits for no handler
            self._pool.submit(job)
        else:
            self._reading.run(job)

    def _respond(self, request: Request, result: Json) -> None:
        request.respond("result", request.era.dress(result))

    def _handle(self, handler: Callable[[Request], Any], request: Request) -> None:
        if request.cancelled or self.why_ended:
            return
        try:
            result = handler(request)
            if result is not None:  # else it has answered, or will
                self._respond(request, result)
        except BaseException as error:
            with suppress(BaseException):  # its own methods may fail
                self._fail(request, error)
            request.fail(McpError(INTERNAL_ERROR, "Internal error"))  # else: no effect

    def _fail(self, request: Request, error: BaseException) -> None:
        # What a handler raised: of a tool a result, for the model; else an error.
        leaves = leaves_of(error)
        for leaf in leaves:  # of a TaskGroup
            if isinstance(leaf, InputRequired):
                return self._respond(request, leaf.args[0])
        if all(isinstance(leaf, McpError) for leaf in leaves):
            return request.fail(leaves[0])
        text = text_of(error)
        if all(isinstance(leaf, ToolError) for leaf in leaves):
            text = "\n".join(map(str, leaves))
        elif self.server.mask_errors:
            text = "Internal error"
        if request.method == "tools/call":
            self._respond(request, ToolResult(text, is_error=True))
        else:
            request.fail(McpError(INTERNAL_ERROR, text))
        # After the response, because stderr may be full.
        if not all(isinstance(leaf, (Cancelled, ToolError)) for leaf in leaves):
            log_exception(f"{request.method} failed", error)

    def _run(self, function: Function, values: Any, request: Request,
             is_inner: bool = False) -> Any:
        # Call a function of the user, on the thread or the loop where it belongs.
        if isinstance(values, list):  # for its first parameters, as many as it has
            names = [part.name for part in function.parts]
            values = dict(zip(names, values))
        kind = AsyncContext if function.is_async else Context
        context = kind(request) if function.context_names else None
        try:
            call = function.bind(values, context)
        except BadValue as error:
            bad = error.as_invalid_params(f"Bad arguments for {function.key}")
            if isinstance(function, Tool) and request.era.date in TELLS_MODEL:
                raise ToolError(bad.message) from None
            raise bad from None
        call = partial(self._ending_forks, call)
        if self._host and not is_inner:  # on the thread of the host, or of `serve`
            from concurrent.futures import Future
            future = Future[Any]()
            self._host(partial(fulfil, future, call))
            value = result_of(future, request)
        else:
            value = call()
        return awaited(value, request)

    def _ending_forks(self, call: Job) -> Any:
        try:
            return call()
        finally:
            if os.getpid() != self._pid:  # a child that it has forked ends here
                code = getattr(sys.exc_info()[1], "code", 0)  # of sys.exit
                os._exit(code if isinstance(code, int) else 1)

    def tell(self, method: str, params: Json) -> None:
        topic = normal_uri(params["uri"]) if "uri" in params else method
        if topic in self.legacy.topics:
            self.post(notification(method, params))
        for stream in self.incoming.copy().values():
            if topic in stream.topics:
                self.post(notification(method, stream.tagged(params)), stream.is_live)

    def open_stream(self, request: Request) -> None:  # `serve` responds at the end
        wanted = require(request.params, "notifications", dict)
        agreed: Json = {}
        topics = set()
        for kind, topic in LIST_CHANGED.items():
            name = f"{kind}ListChanged"
            if wanted.get(name) is True and kind in self.server.capabilities:
                agreed[name] = True
                topics.add(topic)
        found = as_list(wanted.get("resourceSubscriptions"))
        uris = [uri for uri in found if isinstance(uri, str)]
        if uris and "resources" in self.server.capabilities:
            agreed["resourceSubscriptions"] = uris
            topics.update(map(normal_uri, uris))

        def opens() -> bool:
            request.topics = topics  # not before: it has to be acknowledged first
            return request.is_live()

        params = request.tagged({"notifications": agreed})  # as all that it gets
        method = "notifications/subscriptions/acknowledged"
        self.post(notification(method, params), opens)

    def initialize(self, request: Request) -> None:
        if request.batch:
            raise McpError(INVALID_REQUEST, "initialize cannot be in an array")
        self.legacy.initialize(request.params)  # `initialized`, next, does nothing
        self.has_batches = self.legacy.date in WITH_BATCHES
        self._respond(request, fields(
            protocol_version=self.legacy.date, capabilities=self.server.capabilities,
            server_info=self.server.info, instructions=self.server.instructions))
        self.legacy.topics.update(LIST_CHANGED.values())  # not before the response

    def discover(self, request: Request) -> Json:
        return fields(  # what needs no `initialize`
            supported_versions=MODERN, capabilities=self.server.capabilities,
            instructions=self.server.instructions)

    def ping(self, request: Request) -> Json:
        return {}

    def set_level(self, request: Request) -> Json:
        level = require(request.params, "level", str)
        if level not in LEVELS:
            raise invalid_params(f"level must be one of {', '.join(LEVELS)}", "level")
        self.legacy.log_level = level
        return {}

    def subscribe(self, request: Request) -> Json:
        uri = require(request.params, "uri", str)
        self._resource(uri, request)
        self.legacy.topics.add(normal_uri(uri))
        return {}

    def unsubscribe(self, request: Request) -> Json:
        self.legacy.topics.discard(normal_uri(require(request.params, "uri", str)))
        return {}

    def list_page(self, request: Request) -> Json:
        row = METHODS[request.method]
        cursor = require(request.params, "cursor", str, "0")  # the place of its first
        if not re.fullmatch("[0-9]{1,9}", cursor):
            raise invalid_params(f"This cursor is not ours: {show(cursor)}", "cursor")
        entries = self.server.entries[row.capability].copy().values()
        found = [one.definition for one in entries if one.list_key == row.list_key]
        end = int(cursor) + self.server.page_size
        result: Json = {row.list_key: found[int(cursor):end]}
        if end < len(found):
            result["nextCursor"] = str(end)
        return result

    def call_named(self, request: Request) -> Json:
        kind = METHODS[request.method].capability
        name = require(request.params, "name", str)
        entry = self.server.entries[kind].get(name)
        if entry is None:
            text = f"Unknown {kind[:-1]} {name}"
            raise McpError(INVALID_PARAMS, text, {"name": name})
        arguments = require(request.params, "arguments", dict, {})
        return entry.result(self._run(entry, arguments, request))  # type: ignore

    def read_resource(self, request: Request) -> Json:
        uri = require(request.params, "uri", str)
        return {"contents": self.contents_of(uri, request)}

    def contents_of(self, uri: str, request: Request, is_inner: bool = False) -> Any:
        resource, values = self._resource(uri, request)
        value = self._run(resource, values, request, is_inner)
        return resource.result(value, uri)

    def _resource(self, uri: str, request: Request) -> tuple[Resource, Json]:
        normal = normal_uri(uri)
        resources = self.server.entries["resources"]
        if normal in resources:
            return resources[normal], {}
        for resource in resources.copy().values():
            values = resource.template.match(normal)
            if values is not None:
                return resource, values
        raise McpError(request.era.not_found, f"Unknown resource {uri}", {"uri": uri})

    def complete(self, request: Request) -> Json:
        ref = require(request.params, "ref", dict)
        argument = require(request.params, "argument", dict)
        name = require(argument, "name", str)
        typed = require(argument, "value", str)
        context = require(request.params, "context", dict, {})
        others = require(context, "arguments", dict, {})
        if ref.get("type") == "ref/prompt":
            kind, key = "prompts", require(ref, "name", str)
        else:
            kind, key = "resources", normal_uri(require(ref, "uri", str))
        if key not in self.server.entries[kind]:
            raise invalid_params(f"Unknown ref {show(ref)}", "ref")
        found: Any = []
        function = self.server.functions.get((key, name))
        if function:
            found = self._run(function, [typed, others], request)
        values = list(map(str, map(plain, found)))
        return {"completion": {"values": values[:MAX_COMPLETIONS], "total": len(values),
                               "hasMore": len(values) > MAX_COMPLETIONS}}

    def call_own(self, request: Request) -> Json:
        function = self.server.functions.get(request.method)
        if function is None:
            raise unknown_method(request.method)
        result = plain(self._run(function, [request.params], request))
        if not isinstance(result, (dict, type(None))):
            raise TypeError(f"the handler must give a dict or None: {show(result)}")
        return result or {}


# -- 12. The process of a server -------------------------------------------------------
# A server is started without a shell, as the leader of a process group, which ends with
# it, with these variables of ours (as the official SDKs do); its stderr is always read.
SAFE_VARIABLES = re.findall(r"\w+", """HOME LOGNAME PATH SHELL TERM USER APPDATA
HOMEDRIVE HOMEPATH LOCALAPPDATA PATHEXT PROCESSOR_ARCHITECTURE SYSTEMDRIVE SYSTEMROOT
TEMP USERNAME USERPROFILE""")


class Pipes:
    def __init__(self, reader: Any, writer: Any):
        self.reader, self.writer = reader, writer
        self.stderr_tail, self.hides_stderr = "", False  # kept, not passed on
        self.hung_up = threading.Event()  # set when all that it wrote was read

    def exit_code(self, patience: float = 0) -> int | None:
        return None

    def close(self, connection: Connection) -> None:
        connection.close_output()
        if self.hung_up.wait(PATIENCE):
            self.reader.close()


class Process(Pipes):
    """A server process; stderr: gets its lines, a function or a text stream."""

    def __init__(self, argv: list[Any], env: Json, cwd: Any, stderr: Any):
        from subprocess import PIPE, Popen
        flags = 0x0800_0200 if os.name == "nt" else 0  # no window, a group of its own
        if flags:
            import shutil
            program, *words = map(os.fspath, argv)
            program = shutil.which(program, path=env.get("PATH")) or program  # npx.cmd
            argv = [program, *words]
            is_script = program.lower().rstrip(" .").endswith((".cmd", ".bat"))
            if is_script and re.search(r'[&|<>^%"!\r\n]', "".join(argv)):
                raise ValueError(f"cmd.exe would parse arguments of {argv}")
        self._popen: Any = Popen(  # never a shell
            argv, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd,
            start_new_session=True, creationflags=flags)
        super().__init__(self._popen.stdout, self._popen.stdin)
        self._show = getattr(stderr, "write", stderr)
        self._stderr_read = threading.Event()
        try:
            start_thread("stderr", self._read_stderr)
        except RuntimeError:  # there is none
            self._signal(9)
            raise

    def _read_stderr(self) -> None:
        import io
        with io.TextIOWrapper(self._popen.stderr, "utf-8", "replace") as stream:
            # In pieces, because a line may be endless; \r ends one, too: progress bars.
            for line in iter(partial(stream.readline, 65536), ""):
                self.stderr_tail = (self.stderr_tail + line)[-8192:]
                try:
                    if self._show and not self.hides_stderr:
                        self._show(line)
                except Exception as error:
                    log_exception("stderr= failed", error)
        self._stderr_read.set()

    def exit_code(self, patience: float = 0) -> int | None:
        with suppress(Exception):  # TimeoutExpired
            if self._popen.returncode is None and (patience or self.hung_up.is_set()):
                self._popen.wait(patience)  # or it raises: what follows is left out
                if os.name != "nt":
                    self._signal(9)  # what is left of its group; its number is free now
            self._stderr_read.wait(patience)  # a grandchild may hold it open
        return self._popen.returncode  # type: ignore[no-any-return]

    def close(self, connection: Connection) -> None:
        """Close its stdin; SIGTERM; SIGKILL: with a wait after each."""
        if self.writer.closed:
            return
        try:
            connection.close_output()
            for number in (15, 9):
                # While a pipe is open, somebody of its group has not ended.
                if self.hung_up.wait(PATIENCE) and self._stderr_read.wait(PATIENCE):
                    self.exit_code(PATIENCE)
                if self._popen.returncode is None:  # else its number may be another's
                    self._signal(number)
        except BaseException:  # Ctrl-C
            self._signal(9)
            raise
        self.exit_code(PATIENCE)
        connection.close_output()  # if a thread was stuck in it before
        if self.hung_up.wait(0.2):  # else somebody outside of its group has stdout
            self.reader.close()

    def _signal(self, number: int) -> None:
        with suppress(OSError):  # all have ended
            if os.name == "nt":
                program = r"%SystemRoot%\System32\taskkill"
                os.system(f"{program} /T /F /PID {self._popen.pid} >nul 2>&1")
            else:
                os.killpg(self._popen.pid, number)


def open_target(
        target: Any, env: Any, inherit_env: bool, cwd: Any, stderr: Any) -> Pipes:
    """The way to a server; for what a target is, see Client."""
    if hasattr(target, "serve"):  # a Server, perhaps of another copy of this file
        requests, responses = os.pipe(), os.pipe()

        def serve() -> None:
            with open(requests[0], "rb", 0) as reader, open(
                    responses[1], "wb", 0) as writer:
                target.serve(reader, writer)

        start_thread("server", serve)
        return Pipes(open(responses[0], "rb", 0), open(requests[1], "wb", 0))
    entry = as_dict(target)  # of an mcp.json
    if entry:
        target = [entry.get("command"), *(entry.get("args") or [])]
    elif isinstance(target, (str, os.PathLike)):
        path = os.fspath(target)
        target = [sys.executable, path] if path.endswith(".py") else [path]
    if not target or not target[0]:
        raise ValueError("stdio alone: pass a command, or an entry of an mcp.json")
    if hasattr(target[0], "read"):
        return Pipes(*target)
    variables = {name: value for name, value in os.environ.items()
                 if inherit_env or name in SAFE_VARIABLES}
    for name, value in {**as_dict(entry.get("env")), **(env or {})}.items():
        if value is not None:
            variables[name.upper() if os.name == "nt" else name] = json_text(value)
    return Process(target, variables, cwd or entry.get("cwd"), stderr)


# -- 13. Client ------------------------------------------------------------------------
# A call: _call, Call, request, post; read_one, _take_response, wait, _read; and again,
# with answers, if it asks.  If the probe, `server/discover`, is refused: a handshake.


class Client:
    """A client: `with Client(["python3", "server.py"]) as client: …`; connects once.

    target: a command as a list, "server.py", an entry of an mcp.json (a dict with
    command, args, env, cwd), a Server (in this process), or two binary streams.
    env: more variables than the few that are safe; inherit_env: all of ours.
    timeout: seconds without a response or progress, max_timeout: seconds in all, of
    each call; None: no limit.  log_level: the least one that the server shall send.
    mode: "auto" (2026-07-28, else a handshake), "legacy", "modern", or a revision.
    stderr: a text stream or a function that gets the server's (default: ours), or None.
    trace: a function, "stderr" or a file (default: the variable MCP_MIN_TRACE).

    sampling_handler(messages, params) gives a text, or a whole result;
    elicitation_handler(message, schema, params) a content, None (decline) or Elicited;
    url_handler(message, url, params) a bool (any scheme).  They may use the client.
    log_handler(params), message_handler(message) get notifications, in order (without a
    limit); progress_handler(progress, total, message) runs on the thread that waits.
    Calls block, take `timeout`, `max_timeout`, `progress_handler` and `meta`, may come
    from any thread, and raise McpError, RequestTimeout or ConnectionClosed.
    """

    def __init__(
            self, target: Any, *, env: Json | None = None, inherit_env: bool = False,
            cwd: str | None = None, timeout: Seconds = 60, max_timeout: Seconds = 3600,
            mode: str = "auto", client_info: Json | None = None, roots: Any = None,
            sampling_handler: Handler = None, elicitation_handler: Handler = None,
            url_handler: Handler = None, log_handler: Handler = None,
            message_handler: Handler = None, progress_handler: Handler = None,
            log_level: str | None = None, stderr: Any = MISSING,
            capabilities: Json | None = None, trace: Any = None,
            max_message_bytes: int = MAX_MESSAGE_BYTES):
        if mode not in ("auto", "legacy", "modern", *BOTH):
            raise ValueError(f"mode must be auto, legacy, modern or one of {BOTH}")
        stderr = sys.stderr if stderr is MISSING else stderr
        self._open = partial(open_target, target, env, inherit_env, cwd, stderr)
        self._mode = mode
        self._log_level = log_level
        self._new_call = partial(Call, self, timeout=timeout, max_timeout=max_timeout,
                                 progress_handler=progress_handler)
        self.max_message_bytes = max_message_bytes
        trace = trace or os.environ.get("MCP_MIN_TRACE")
        self.trace = Trace(trace) if trace else None
        self.sampling_handler, self.url_handler = sampling_handler, url_handler
        self.elicitation_handler, self.log_handler = elicitation_handler, log_handler
        self.message_handler = message_handler
        self.roots = None if roots is None else roots_of(roots)
        self._capabilities = self._declared(capabilities or {})
        self._info = {"name": "mcp_min", "version": __version__, **(client_info or {})}
        self.modern_meta: Json = {}  # of each request; empty: there was a handshake
        self._connecting = threading.Lock()  # held by who connects
        self._pipes = Pipes(None, None)
        self._session: ClientSession | None = None  # None: the client is new
        self._is_closed = False
        self._subscribing = threading.Lock()  # held until a new stream replaces this:
        self._stream: Call | None = None  # without a handshake
        self._uris = set[str]()      # that it is about
        self.server_info, self.server_capabilities = Wire(), Wire()
        self.instructions: str | None = None
        self.protocol_version = ""

    def _declared(self, more: Json) -> Json:
        # The capabilities: each is declared exactly when its handler is given.
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
            found.setdefault(name, {}).update(members)
        return found

    def connect(self) -> Client:
        """Start the server and negotiate; `with` does this, too."""
        with self._connecting:
            if not self._session and not self._is_closed:
                try:
                    self._start()
                    self._negotiate()
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

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB of the server's stderr."""
        return self._pipes.stderr_tail

    @property
    def exit_code(self) -> int | None:
        """Of the server process; None while it runs, or if there is none."""
        return self._pipes.exit_code()

    def _start(self) -> None:
        self._pipes = self._open()
        self._session = ClientSession(self, self._pipes)
        start_thread("reader", self._session.read)

    def session(self) -> ClientSession:
        if self._is_closed or self._session is None:
            raise ConnectionClosed("The client is new, or closed; it can connect once")
        return self._session

    def _negotiate(self) -> None:
        date = {"legacy": LEGACY[-1], "modern": MODERN[-1]}.get(self._mode, self._mode)
        if date == "auto":
            self._probe_or_restart()
        elif date in MODERN:
            self._discover(date)
        else:
            self._initialize(date)
        if self.modern_meta and self.log_handler:  # some log, and do not declare it
            self.set_logging_level(self._log_level or "info")
        elif self._log_level and declares(self.server_capabilities, "logging"):
            self.set_logging_level(self._log_level)
        if self.modern_meta and self.message_handler:
            with suppress(McpError, RequestTimeout):  # it offers no changes
                self._subscribe("subscriptions/listen", timeout=PROBE_SECONDS)

    def _probe_or_restart(self) -> None:
        self._pipes.hides_stderr = True  # old servers write pages about the unknown
        try:
            self._probe()
        except ConnectionClosed as error:
            said = re.search("initiali[sz]|discover", error.stderr, re.IGNORECASE)
            if error.exit_code is None or (error.exit_code and not said):
                raise
            self.session().close()  # it has ended because of the probe
            self._start()
            self._initialize()
        self._pipes.hides_stderr = False

    def _probe(self) -> None:
        try:
            return self._discover(timeout=PROBE_SECONDS)
        except (RequestTimeout, McpError) as error:
            supported = as_dict(getattr(error, "data", {})).get("supported")
            if getattr(error, "code", 0) == UNSUPPORTED_VERSION and not any(
                    date in LEGACY for date in as_list(supported)):
                raise
        try:
            self._initialize()
        except McpError:
            with suppress(McpError):  # the probe was answered late: it is modern
                return self._discover()
            raise

    def _discover(self, date: str = MODERN[-1], **options: Any) -> None:
        self.modern_meta = {f"{META}protocolVersion": date,
                            f"{META}clientCapabilities": self._capabilities,
                            f"{META}clientInfo": self._info}
        ask = partial(self.request, "server/discover", **options)
        try:
            result = ask()
        except McpError as error:
            if error.code != UNSUPPORTED_VERSION:
                raise
            result = ask()  # SEP-2575: once more, with what both speak, which is this
        self._adopt(result, date, as_list(result.get("supportedVersions")))

    def _initialize(self, date: str = LEGACY[-1]) -> None:
        self.modern_meta = {}
        params = {"protocolVersion": date, "capabilities": self._capabilities,
                  "clientInfo": self._info}
        result = self.request("initialize", params)
        self._adopt(result, result.get("protocolVersion"), LEGACY)
        self.notify("notifications/initialized")

    def _adopt(self, result: Json, date: Any, known: list[str]) -> None:
        if date not in known:
            raise McpError(INVALID_REQUEST, f"{show(date)} is not in {show(known)}")
        self.protocol_version = date
        info = as_dict(result.get("_meta")).get(f"{META}serverInfo")
        self.server_info = Wire(as_dict(info or result.get("serverInfo")))
        self.server_capabilities = Wire(as_dict(result.get("capabilities")))
        self.instructions = result.get("instructions")

    def request(self, method: str, params: Json | None = None, **options: Any) -> Json:
        """Send any request, also what the server does not declare; its result."""
        return self._new_call(method, params, **options).wait()  # type: ignore

    def submit(self, method: str, params: Json | None = None,
               **options: Any) -> Future[Any]:
        """Send any request without waiting; cancel() of the future tells the server."""
        return self._new_call(method, params, **options).submit()

    def notify(self, method: str, params: Json | None = None) -> None:
        self.session().post(notification(method, params or {}))

    def _call(self, method: str, params: Json, options: Json,
             read: Callable[[Json], Any] = as_dict) -> Call:
        self.session()
        needed = METHODS[method].capability
        if needed and not declares(self.server_capabilities, needed):
            raise McpError(METHOD_NOT_FOUND, f"The server does not declare {needed}; "
                           f"client.request({method!r}, …) asks it all the same")
        return self._new_call(method, params, read, **options)

    def ping(self, **options: Any) -> None:
        self.request("server/discover" if self.modern_meta else "ping", **options)

    def call_tool(self, name: str, arguments: Json | None = None,
                  **options: Any) -> ToolResult:
        """Call a tool.  ToolError: it failed; raise_on_error=False: give what came."""
        return self._tool_call(name, arguments, **options).wait()  # type: ignore

    def submit_tool(self, name: str, arguments: Json | None = None,
                    **options: Any) -> Future[ToolResult]:
        """Call a tool without waiting; cancel() of the future tells the server."""
        return self._tool_call(name, arguments, **options).submit()

    def _tool_call(self, name: str, arguments: Json | None, *,
                   raise_on_error: bool = True, **options: Any) -> Call:
        def read(result: Json) -> Any:
            found = ToolResult.of(with_list("content", result))
            if found.get("isError") and raise_on_error:
                raise ToolError(found.text or "The tool failed", found)
            return found

        params = {"name": name, "arguments": plain(arguments or {})}
        return self._call("tools/call", params, options, read)

    def _list(self, method: str, cursor: Any = MISSING, **options: Any) -> Any:
        key = METHODS[method].list_key
        if cursor is not MISSING:
            read = partial(with_list, key)
            return self._call(method, fields(cursor=cursor), options, read).wait()
        cursor, seen = None, list[Any]()
        pages: list[list[Wire]] = []
        while cursor not in seen and len(seen) < MAX_PAGES:
            seen.append(cursor)
            page = self._list(method, cursor, **options)
            if page[key] not in pages:  # a server may ignore the cursor
                pages.append(page[key])
            cursor = page.get("nextCursor")
        if cursor is not None:
            warn(f"mcp_min: {method} has no end: the cursor {show(cursor)}")
        return [*chain(*pages)]

    # All entries, a list; with cursor=None or a cursor: one page, a dict.
    list_tools = partialmethod(_list, "tools/list")
    list_resources = partialmethod(_list, "resources/list")
    list_resource_templates = partialmethod(_list, "resources/templates/list")
    list_prompts = partialmethod(_list, "prompts/list")

    def read_resource(self, uri: str, **options: Any) -> list[ResourceContents]:
        read = partial(with_list, "contents")
        result = self._call("resources/read", {"uri": str(uri)}, options, read).wait()
        return list(map(ResourceContents.of, result["contents"]))

    def get_prompt(self, name: str, arguments: Json | None = None,
                   **options: Any) -> Wire:
        """A prompt: description, messages.  Arguments are texts; others are made so."""
        texts = {key: json_text(plain(one)) for key, one in (arguments or {}).items()}
        params = {"name": name, "arguments": texts}
        read = partial(with_list, "messages")
        return self._call("prompts/get", params, options, read).wait()  # type: ignore

    def complete(self, ref: str, argument: str, value: str,
                 context: dict[str, str] | None = None, **options: Any) -> Wire:
        """Suggestions: ["values"], total, has_more; ref: a prompt, or a template."""
        whose = {"type": "ref/prompt", "name": ref}
        if "{" in ref or "://" in ref:
            whose = {"type": "ref/resource", "uri": ref}
        params = {"ref": whose, "argument": {"name": argument, "value": value},
                  "context": {"arguments": context or {}}}
        result = self._call("completion/complete", params, options).wait()
        return with_list("values", as_dict(result.get("completion")), str)

    def _subscribe(self, method: str, uri: str = "", **options: Any) -> None:
        # Modern: a stream cannot be changed: a new one opens, then the old one ends.
        if not self.modern_meta:
            self._call(method, {"uri": uri}, options).wait()
            return
        with self._subscribing:
            uris = {old for old in self._uris if normal_uri(old) != normal_uri(uri)}
            if method == "resources/subscribe":
                uris.add(uri)
            wanted: Json = {f"{kind}ListChanged": True for kind in LIST_CHANGED}
            wanted["resourceSubscriptions"] = sorted(uris)
            params = {"notifications": wanted}
            stream = self._new_call("subscriptions/listen", params, **options)
            told = as_dict(stream.wait().get("notifications"))  # it is acknowledged
            if not uris.issubset(map(str, as_list(told.get("resourceSubscriptions")))):
                stream.cancel()
                raise McpError(METHOD_NOT_FOUND, "The server offers no subscriptions")
            before, self._stream, self._uris = self._stream, stream, uris
            if before:
                before.cancel()
        self.session().callers.submit(partial(self._follow, stream))

    # Let message_handler (needed for that) be told of a resource, and if that ends.
    subscribe = partialmethod(_subscribe, "resources/subscribe")
    unsubscribe = partialmethod(_subscribe, "resources/unsubscribe")

    def _follow(self, stream: Call) -> None:
        with suppress(Error, Cancelled):
            if stream.outgoing.id in self.session().outgoing:
                stream.outgoing.wait(None)  # a second wait: now for its response
        if stream is self._stream and not self._is_closed:
            self.session().on_notification(
                "subscriptions/listen", {"uris": sorted(self._uris)})

    def set_logging_level(self, level: str, **options: Any) -> None:
        if self.modern_meta:
            self.modern_meta[f"{META}logLevel"] = LEVELS[LEVELS.index(level)]
        else:
            self._call("logging/setLevel", {"level": level}, options).wait()

    def set_roots(self, roots: Any) -> None:
        """Paths, URIs or dicts; the client needs `roots=`.  It is told if legacy."""
        self.session()  # ConnectionClosed: it is new, or closed
        self.roots = roots_of(roots)
        if not self.modern_meta:
            self.notify("notifications/roots/list_changed")


def with_list(key: str, result: Json, of: type = dict) -> Wire:
    found = result.get(key) or []  # Go writes null for an empty list
    if not isinstance(found, list) or not all(isinstance(one, of) for one in found):
        raise McpError(INTERNAL_ERROR, f"The peer's {key} is malformed: {show(found)}")
    return Wire({**result, key: wired(found)})


def roots_of(roots: Any) -> list[Json]:
    import pathlib
    found = []
    for root in as_list(roots):
        if not isinstance(root, dict):
            path = pathlib.Path(root).absolute()
            root = {"uri": root if "://" in str(root) else path.as_uri()}
        found.append(root)
    return found


class Call:
    """A call of the user: it was sent; `wait` gives its result, which `read` reads.

    A result may say that input is required: the request is sent again.
    """

    def __init__(
            self, client: Client, method: str, params: Json | None = None,
            read: Callable[[Json], Any] = as_dict, meta: Json | None = None, *,
            timeout: Seconds, max_timeout: Seconds, progress_handler: Handler):
        self._session = client.session()
        self._method, self._read = method, read
        self._params = with_meta(params or {}, {**(meta or {}), **client.modern_meta})
        self._timeout, self._on_progress = timeout, progress_handler
        limit = threading.TIMEOUT_MAX if max_timeout is None else max_timeout
        self._deadline = monotonic() + limit
        self._is_cancelled = False
        self._send({})

    def _send(self, more: Json) -> None:
        params = {**self._params, **more}
        # Progress is always asked for, because it extends `timeout`.
        self.outgoing = self._session.request(self._method, params, progress=True)
        if self._is_cancelled:  # looked at afterwards: `cancel` may have missed it
            self.cancel()

    def wait(self) -> Any:
        for attempt in count():
            result = self.outgoing.wait(
                self._timeout, self._deadline, self._on_progress)
            kind = result.get("resultType") or "complete"
            if kind == "complete":
                return self._read(result)
            if attempt == MAX_ROUNDS:
                raise McpError(INTERNAL_ERROR, f"Over {MAX_ROUNDS} questions")
            questions, state = result.get("inputRequests"), result.get("requestState")
            is_known = kind == "input_required" and isinstance(questions or {}, dict)
            if not is_known or not (questions or state):
                raise McpError(INTERNAL_ERROR, f"Malformed result: {show(result)}")
            more: Json = {} if state is None else {"requestState": state}
            if questions:
                more["inputResponses"] = {
                    key: self._session.answer(one) for key, one in questions.items()}
            else:
                sleep(0.1 * (attempt + 1))  # it waits for something else
            if self._is_cancelled:
                raise Cancelled
            self._send(more)

    def cancel(self) -> None:
        self._is_cancelled = True
        self.outgoing.cancel(Cancelled())

    def submit(self) -> Future[Any]:
        from concurrent.futures import Future
        future = Future[Any]()
        work = partial(fulfil, future, self.wait)
        # The server is told at once, or a quick close() would lose it.
        future.add_done_callback(lambda future: self.cancel())
        if not self._session.callers.submit(work):
            work()  # the client was closed, which has ended the call
        return future


class ClientSession(Connection):
    """What a client does with the messages of its server."""

    request_class = Incoming
    has_batches = True  # a peer may put responses into an array, whatever the revision

    def __init__(self, client: Client, pipes: Pipes):
        super().__init__(
            pipes.reader, pipes.writer, client.max_message_bytes, client.trace)
        self._client, self._pipes = client, pipes
        self.callers = Pool("submit", MAX_REQUESTS)  # threads that wait for a call
        self._answers = Pool("answers", 16)

    def read(self) -> None:
        while self.read_one():
            pass
        deque(self._lines, maxlen=0)  # what it says after our end is for nobody
        self._pipes.hung_up.set()

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
            self._pipes.close(self)
            for pool in (self.callers, self._answers, self._notices):
                pool.close()

    def end(self, why: Error) -> None:
        if self.why_ended is None:
            code = self._pipes.exit_code(PATIENCE / 2)
            text = str(why) if code is None else f"{why} (exit code {code})"
            super().end(
                ConnectionClosed(text + self.quoted(), code, self._pipes.stderr_tail))

    def is_user_asked(self) -> bool:
        return not all(one.decided.locked() for one in self.incoming.copy().values())

    def on_end(self) -> None:
        self.end(ConnectionClosed("The server closed the connection"))

    def quoted(self) -> str:
        said = "\n".join([*self.noise.copy(), self._pipes.stderr_tail[-1000:]]).strip()
        return f"; it wrote: {said}" if said else ""

    def on_refused(self, line: Line, error: McpError, found_id: Any) -> Line:
        """Fail the call that it was for, or all if it may be of any; answer nothing."""
        self.noise.append(show(line[:200].decode("utf-8", "replace")))
        if b'"method"' in re.split(b'"result"|"error"', line[:200])[0]:
            return b""  # a request or notification: its id is none of ours
        found = own_id(id_at_head(line) if found_id is None else found_id)
        for number, outgoing in self.outgoing.copy().items():
            if number == found or (found is None and isinstance(error, Oversized)):
                text = f"Malformed response: {error.message}"
                outgoing.end(McpError(error.code, text))
        return b""

    def on_notification(self, method: str, params: Json) -> None:
        tag = as_dict(params.get("_meta")).get(f"{META}subscriptionId")
        stream = self.outgoing.get(own_id(tag))
        if stream and method == "notifications/subscriptions/acknowledged":
            stream.events.put(params)  # as if it were the result: it stays open
        elif stream or tag is None:  # else it is of a stream that was cancelled
            client = self._client
            if client.log_handler and method == "notifications/message":
                self._notices.submit(partial(client.log_handler, Wire(params)))
            if client.message_handler:
                message = Wire(method=method, params=params)
                self._notices.submit(partial(client.message_handler, message))

    def on_request(self, request: Incoming) -> None:
        if request.method == "ping":
            request.respond("result", {})
        else:
            self._answers.submit(partial(self._answer, request))

    def _answer(self, request: Incoming) -> None:
        try:
            question = {"method": request.method, "params": request.params}
            request.respond("result", self.answer(question))
        except McpError as error:
            request.fail(error)
        except BaseException as error:
            request.fail(McpError(INTERNAL_ERROR, "Internal error"))
            log_exception(f"the handler of {request.method} failed", error)

    def answer(self, question: Any) -> Json:
        """The result for a question.  McpError: it cannot be answered."""
        client = self._client
        method = require(as_dict(question), "method", str)
        params = Wire(require(question, "params", dict, {}))
        is_url = params.get("mode") == "url"
        if method == "roots/list" and client.roots is not None:
            return {"roots": client.roots}
        if method == "sampling/createMessage" and client.sampling_handler:
            params = with_list("messages", params)
            answer = client.sampling_handler(params["messages"], params)
            if "role" not in as_dict(answer):
                answer = Message("assistant", answer)
            return {"model": "unknown", **answer}
        if method == "elicitation/create" and is_url and client.url_handler:
            url = require(params, "url", str)
            agrees = client.url_handler(params.message, url, params)
            return {"action": "accept" if agrees else "decline"}
        if method == "elicitation/create" and not is_url and client.elicitation_handler:
            schema = require(params, "requestedSchema", dict)
            answer = client.elicitation_handler(params.message, schema, params)
            return elicited(answer, list(as_dict(schema.get("properties"))))
        raise unknown_method(method)


def elicited(answer: Any, names: list[str]) -> Json:
    if not isinstance(answer, Elicited):
        answer = Elicited("decline" if answer is None else "accept", answer)
    if answer.action != "accept":
        return {"action": answer.action}
    content = {} if answer.content is None else plain(answer.content)
    if not isinstance(content, dict) and len(names) == 1:
        content = {names[0]: content}
    return {"action": "accept", "content": content}


# -- 14. Command line ------------------------------------------------------------------
USAGE = """usage: mcp_min.py [--env KEY=VALUE]... [--timeout SECONDS] COMMAND
    demo | --version | list SERVER... | connect PATH (of Server.listen)
    call TOOL [KEY=VALUE... | JSON] -- SERVER...
    read URI -- SERVER... | prompt NAME [KEY=VALUE...] -- SERVER...
SERVER: a command, or a file.py.  Exit status: 0, 1 (failed), 2 (usage)."""


def main(words: list[Any]) -> int:
    options: Json = {"env": {}}
    try:
        while words[:1] in (["--env"], ["--timeout"]):
            option, value, *words = words
            if option == "--env":
                options["env"].update([value.split("=", 1)])
            else:
                options["timeout"] = float(value)
        command, *words = words
        if command == "connect":
            relay(*words)
        elif command == "--version":
            say(__version__)
        elif command == "demo":
            demo()
        else:
            use_server(command, words, options)
    except BrokenPipeError:
        return 0  # who reads has enough
    except (ValueError, TypeError) as error:  # also: too few words, or too many
        warn(f"{USAGE}\n{text_of(error)}")
        return 2
    except Exception as error:
        warn(f"mcp_min: {text_of(error)}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def relay(path: str) -> None:
    import socket
    with stdio_server() as (reader, writer):
        session = ServerSession(Server("none"), reader, writer)
        for _ in range(50):  # its application may be about to start
            try:
                with open(os.path.expanduser(path)) as file:
                    if os.name != "nt" and os.stat(file.fileno()).st_uid != os.getuid():
                        raise ValueError("the file is of another user")
                    port, of_client, of_server = file.read().split()
                channel = socket.create_connection(("127.0.0.1", int(port)), 0.5)
                channel.sendall(f"{of_client}\n".encode())
                if channel.recv(65) != f"{of_server}\n".encode():
                    raise ValueError("it does not know the secret")
                channel.settimeout(None)
                break
            except (OSError, ValueError) as error:
                failed = McpError(INTERNAL_ERROR, f"No server at {path}: {error}")
                sleep(0.2)
        else:
            session.on_request = partial(Incoming.fail, error=failed)  # type: ignore
            with closing(session):
                session.serve()
            raise failed

        def send_all() -> None:
            with suppress(OSError):
                for line in read_lines(reader, sys.maxsize):  # the server has a limit
                    channel.sendall(line + b"\n")
                channel.shutdown(socket.SHUT_WR)

        start_thread("relay", send_all)
        for line in read_lines(channel.makefile("rb", 0), sys.maxsize):
            session.write(line)


def show_offers(client: Client) -> None:
    info = client.server_info
    say(f"{info.name} {info.version}, revision {client.protocol_version}")
    for kind in ("tools", "resources", "resource_templates", "prompts"):
        if not declares(client.server_capabilities, kind.replace("_template", "")):
            continue
        # Many servers have resources, and no method for templates.
        with suppress(*[McpError] if "_" in kind else []):
            for entry in getattr(client, f"list_{kind}")():
                name = entry.uri or entry.uri_template or entry["name"]
                say(f"{kind[:-1]} {name}: {entry.description or ''}")
                schema = as_dict(entry.input_schema)
                for key, part in as_dict(schema.get("properties")).items():
                    say(f"    {key}: {json_text(part)}")


def use_server(command: str, words: list[str], options: Json) -> None:
    asked, server = [], words  # what stands before and after --
    if "--" in words and (command != "list" or words[0] == "--"):
        at = words.index("--")
        asked, server = words[:at], words[at + 1:]
    if command != "list" and (not asked or command not in ("call", "read", "prompt")):
        raise ValueError(f"{command}: write it as above, with -- before the server")
    if sys.stdin.isatty() and sys.stderr.isatty():  # somebody is there
        tell = partial(say, file=sys.stderr)
        options.update(progress_handler=tell, log_handler=tell, log_level="info",
                       elicitation_handler=ask_user)
    with Client(server[0] if len(server) == 1 else server, **options) as client:
        if command == "list":
            return show_offers(client)
        name, *pairs = asked
        blocks: list[Any] = []
        if command == "read":
            blocks += client.read_resource(name)
        elif command == "prompt":
            for message in client.get_prompt(name, arguments_of(pairs, {}))["messages"]:
                blocks += [Text(f"{message['role']}:"), message["content"]]
        else:
            schemas = {tool.name: tool.input_schema for tool in client.list_tools()}
            arguments = arguments_of(pairs, as_dict(schemas.get(name)))
            blocks += client.call_tool(name, arguments).content
        for block in blocks:
            contents = block.get("resource", block)
            contents.update(dict.fromkeys(contents.keys() & {"data", "blob"}, "..."))
            say(contents.get("text", json_text(contents)))


def arguments_of(pairs: Iterable[str], schema: Json) -> Json:
    """Arguments: JSON, or KEY=VALUE: JSON if its type, or anyOf, has no string."""
    arguments: Json = {}
    for pair in pairs:
        if pair.startswith("{"):
            arguments.update(json.loads(pair))
            continue
        key, value = pair.split("=", 1)
        part = as_dict(as_dict(schema.get("properties")).get(key))
        if "string" not in str(part.get("type") or part.get("anyOf", "string")):
            with suppress(ValueError):  # the server will say what is wrong
                value = json.loads(value)
        arguments[key] = value
    return arguments


def say(*what: Any, file: Any = None) -> None:
    print(printable(" ".join(map(str, what))).rstrip(), file=file, flush=True)


def ask_user(message: str, schema: Json, params: Json) -> Json:
    """Ask for each field of a form; an empty line leaves it out."""
    warn(f"{message}\n(The server asks this.)")
    pairs = []
    for name, part in as_dict(schema.get("properties")).items():
        warn(f"  {name} {json_text(part)}:")
        answer = sys.stdin.readline().strip()
        if answer:
            pairs.append(f"{name}={answer}")
    return arguments_of(pairs, schema)


def demo() -> None:
    server = Server("demo", "1.0")

    @server.tool
    def book(seats: int, ctx: Context) -> str:
        return f"{seats} seats for {ctx.elicit('Your name?', str).data}"

    for mode in "legacy", "modern":
        say(f"-- {mode}: who is there, the list of tools, a call that asks the user")
        with Client(server, mode=mode, trace=say,
                    elicitation_handler=lambda *question: "Ada") as client:
            client.list_tools()
            client.call_tool("book", {"seats": 2})


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    os._exit(main(sys.argv[1:]))  # a thread may be inside stdin: no exit waits for it

# Licence (MIT)
#
# Copyright (c) 2026 the mcp_min authors
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this
# software and associated documentation files (the "Software"), to deal in the Software
# without restriction, including without limitation the rights to use, copy, modify,
# merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
# permit persons to whom the Software is furnished to do so, subject to the following
# conditions:
#
# The above copyright notice and this permission notice shall be included in all copies
# or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
# INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A
# PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT
# HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
# CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE
# OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
