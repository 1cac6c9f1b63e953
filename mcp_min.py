"""mcp_min 5.0.0: the Model Context Protocol over stdio, server and client, in one file.

Copy this file beside your program; it needs Python 3.9 or newer and nothing else.

A server (part II), for which `help(Server)` and `help(Context)` are the reference:

    from mcp_min import Server

    server = Server("weather")

    @server.tool
    def forecast(city: str, days: int = 3) -> str:
        "Forecast for a city."
        return f"{city}: sun for {days} days"

    if __name__ == "__main__":
        server.run()                       # speaks to a host over stdin and stdout

A client (part III), for which `help(Client)` is the reference:

    from mcp_min import Client

    with Client(["python3", "weather.py"]) as client:
        print(client.call_tool("forecast", {"city": "Oslo"}).text)

`python3 mcp_min.py demo` shows two sessions line by line, and `vendor FOLDER` writes a
copy with what you need.  (chapter: cli)

Words used from part I on:

    peer          whoever is at the other end of a connection
    connection    two streams, and what is in flight on them
    session       one end of a connection: the server's or the client's
    handshake revisions    2024-11-05 to 2025-11-25, also called legacy
    stateless revision     2026-07-28, also called modern
    request       a message with an id, which gets a response
    question      a request from the server to its client; the answer comes back
    reader        the thread that reads
    turn          says which thread may read, as a number  [turns]
    subscriber    whoever is notified of changes
    stream        a `subscriptions/listen` request  [stateless]
    handler       a function that the programmer registered
    job           what a thread pool runs
    core          what every copy has
    chapter       what a copy may leave out; [x] and (chapter: x) mark text of chapter x
    door          where a chapter hooks into the core
    node          a schema that was read
    problem       what is wrong with a value

Read it from top to bottom: a section uses only earlier ones, except in annotations.

    Part I: the protocol, which both ends share
    1  Vocabulary    the facts of the specification, as tables
    2  Errors        exceptions, and the error objects of JSON-RPC
    3  Messages      JSON-RPC: bytes <-> messages, ids, responses
    4  Threads, streams, diagnostics   a thread pool, ways to wait, lines of a stream
    5  Content       values -> content blocks, and the results that carry them
    6  Connection    what is in flight: tables, cancellation, progress, reading
    7  Validation    JSON Schema: read once into nodes, then applied

    Part II: a server
    8  Stdio, serving  descriptors 0 and 1, signals; progress, the end
    9  Peer          what a server knows of its client
    10 Content of handlers   images, links, messages: what handlers return
    11 Signatures    hints -> JSON Schema, arguments, results, URI templates
    12 Handlers      what a handler can do, and how it asks
    13 Server        registries, pages, the method handlers, a server's session

    Part III: a client
    14 Processes     starting and ending a server
    15 Client        its session, a call, the same methods from the other side
    16 A server in this process   pipes between the two ends

    Part IV: chapters, each optional
    17 Stateless     2026-07-28: what it has in place of a handshake
    18 Stateless, of a server  2026-07-28: RequestPeer, replay, streams
    19 Stateless, of a client  the probe, "input required", streams
    20 More schemas  the rest of JSON Schema 2020-12, draft-07
    21 Schemas of a client  answers to forms and results of tools are validated
    22 Configurations of hosts   entries of an mcp.json
    23 More hints    dates, sets, tuples; iterators as JSON; "Args:"; {?x,y}
    24 More of a server  completion, middleware, methods of your own, subscriptions
    25 Coroutines    how a thread and an event loop wait for each other
    26 Coroutines of a server  `async def` handlers, AsyncContext, run_async
    27 Files of our own    opened so that no link or pipe is followed
    28 Inside an application  the thread of a host, a port for hosts
    29 Inside an application, of a client  handlers on the thread that waits
    30 Trace         the lines that cross, on stderr or in a file
    31 Turns of reading  the reader runs handlers; those that do not end are reported
    32 The server    part II and its chapters, assembled
    33 The client   part III and its chapters, assembled
    34 Coroutines of a client  AsyncClient
    35 Familiar names  FastMCP's and the official SDK's spellings
    36 Command line  the program in this file

Parts II and III depend only on part I.  Each section opens with its design; to debug a
hang, read 4 and 6.  "(server/tools)" names a page of the specification, at
modelcontextprotocol.io/specification.

To learn the protocol from a server (part II), read sections 1, 3, 9 and 13.

To learn it from a client (part III), read sections 1, 3 and 15.

How a call travels, beginning in part I.  A client writes this line to a server's stdin:

    {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"forecast",
    "arguments":{"city":"Oslo","days":"5"}}}

Each connection has one reader thread.  It waits in `Connection.next_line` until
`split_lines` has a whole line; `Connection.receive` parses it, and `classify` says what
it is: a request, a notification, or the response to a request of ours.

A request becomes an IncomingRequest and enters a table under its id.  It leaves the
table exactly once: when it is answered or cancelled, or when the connection ends.  The
thread that takes it out decides its outcome; any other finds no entry, and does
nothing.  Whatever is sent about a request (progress, log messages, the response) is
queued while holding the lock under which it was found in the table: so progress cannot
follow the response, and nothing is sent about a cancelled request.  Our own requests
have a table with the same rule.

`Connection.run_handler` hands the request to a thread of a pool, so that pings,
cancellations and answers are read while every handler is busy.  There `serve_request`
calls `handle` of the session, and `respond` takes the request out of the table and
queues a line in the Outbox.  `Outbox.flush` writes it, on the same thread, together
with whatever other threads have queued meanwhile.

If no other handler of a server (part II) is running, the reader runs this one itself,
which saves a switch of threads.  If it takes long, another thread takes over the
reading (`hand_over`).  (chapter: turns)

The session's `handle` takes four steps, the same for every method.

Find the peer.  After the handshake a Peer knows what was agreed: the revision, how
the user is asked, which log messages are wanted.

In the stateless revision each request carries all of that in `_meta`, and gets a
RequestPeer of its own.  (chapter: stateless)

Validate.  `peer.validate` looks the method up: does this revision have it, and did this
server declare the capability?

Dispatch.  `dispatch` takes the request to the function under @handles("tools/call").
It finds the tool in the Registry, and `Signature.bind` applies the schema that
HintReader made of the type hints: one pass checks the arguments, converts "5" to 5,
builds objects, and collects every problem.  Then the function is called.

    forecast(city="Oslo", days=5)  ->  "Oslo: sun for 5 days"

A handler that asks the user a question goes through `Context._ask`: a request is sent
to the client, and the handler waits.

In the stateless revision an exception ends the handler with the result "input required"
(Unwind, deliberately not an Exception).  The client calls again with the answers, and
the handler runs from the top.  (chapter: stateless)

Finalize.  The tool turns the value into content, and `peer.finalize` adds what the
revision requires.  What was raised becomes a result or an error in three places: a
tool's own failure where tools are called, because the model must read it; an Unwind in
the session's `handle`; everything else in `serve_request`.

    {"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":
    "Oslo: sun for 5 days"}],"isError":false}}

In a client (part III) the session is a BaseClientSession, which holds what was agreed.
The line was sent by a BaseCall, whose loop runs on the calling thread: it takes out of
the call's Inbox what the reader puts there (progress, the response, the end of the
connection), calls the progress handler, and keeps the deadline.

In the stateless revision a result may be "input required": then the calling thread lets
the user's handlers answer, sends another request, and loops.  (chapter: stateless)

Locks of a client (part III), outermost first: who holds a lock acquires only locks that
are listed below it, here or in the next tables.

    UnthreadedServer._running    a handler runs on the thread that waits  [inside]
    BaseClient._lock          its session; held while it connects
    BaseClientSession._ending    the process is being ended
    Subscriptions.changing    what is subscribed to is being replaced
    ProbedProcess._holding    stderr that is held back  [stateless]

Locks of a server (part II), outermost first:

    Lifespan._entering        a lifespan is being entered or left
    AsyncRuntime._starting    its event loop  [asyncio]
    Registry.lock             what is registered, and who is notified

Locks of a connection (part I), outermost first.  While it holds Connection.lock, code
must not write, call a user's function, or wait, except for a thread to start, or in a
Condition of this lock.  The locks below it are leaves.

    Outbox.writing            the stream: one thread writes
    Connection.lock           all of its state: the head of section 6 lists it
    Trace._lock               its table of requests  [trace]
    ThreadPool._lock, writing_stderr    their own

Trusted, from part I on: the process, its files, this file, and the command that a
client starts.  Not trusted: the peer, and what a model sends as arguments.  Neither can
run code here or stop the process: a line is parsed only within its limits, a message is
validated before a handler sees it, each request that can be read gets one response, or
none once it was cancelled, and there is no eval, no pickle and no shell.  Part I
touches only the streams that it is given; for a traceback it also reads the handler's
source.

The environment variable MCP_MIN_TRACE ("stderr", or the name of a file) turns on a
trace of all messages, secrets included; `trace=False` ignores it.  (chapter: trace)

An event loop opens a pair of sockets internally.  (chapter: asyncio)

A server (part II) uses descriptors 0 to 2, the null device, and the files that Image
and Audio are given; it opens no socket and starts no process.  Arguments match the
schema, or are null where the default is.  Variables of a URI template are never
absolute paths, and have no ".." segment.  What the process prints while it serves stays
out of the protocol.  Texts of exceptions reach the client and its model, tracebacks do
not; an object without a JSON form is sent as its str(), with a warning.  Not limited:
the rate of requests, what your handlers do, and what goes to stderr.  `Server(...,
**STRICT)` masks those texts (not what a constructor says of an invalid argument),
refuses such objects, and converts no arguments of tools.

Limits on what a client can make a server (part II) hold or do:

    a message                    16 MiB, nested 200 deep; an estimated 80 MiB parsed
                                 (40 bytes for each bracket, comma, colon and string):
                                 two million numbers
    requests in flight           1,000; or 16 MiB, which the last one may exceed: of
                                 each its line (in a batch, the whole), and the largest
                                 answer to one of its questions, until its handler
                                 returns.  A handler chooses how many answers it keeps,
                                 and how many questions it asks at once
    `initialize`                 1 MiB
    ids and progress tokens      65,536 characters
    messages of a batch          100; 16 MiB of responses to all batches that are open
    notifications that wait      16 MiB; more are dropped  [more]
    output that nobody reads     handlers wait from 1 MiB on, each with its result; over
                                 64 MiB of what cannot wait, such as answers to pings,
                                 close the connection
    validation of arguments      500,000 steps: about a second
    a validation message         2,000 characters; 20 problems are listed
    URIs that match templates    1,000 characters
    values of a completion       100; `total` and `hasMore` tell of the rest  [more]
    a question to the client     an hour, whatever progress it reports
    text matched with a pattern  20,000 characters  [schemas]
    strangers at `listen`        64 connections without the secret, 5 seconds  [inside]

Remote `$ref`s are never fetched.  A `pattern` in a schema of your own can take
exponential time, because Python's `re` cannot be stopped.  (chapter: schemas)

What `ctx.once` keeps passes through the client, signed but readable: put no secret into
it.  (chapter: stateless)

`Server.listen` opens a port on 127.0.0.1, and writes a file with its number and a
secret.  (chapter: inside)

A client (part III) starts the command that it is given, with few environment variables
and no shell, and ends it with its process group.  It opens no socket.  A server is a
program: start only what you would run by hand.  What it sends is bounded (see Client).

load_config reads the file that it is given.  (chapter: config)

To extend a server (part II): any pair of binary streams can be a transport; pass it to
Server.serve.  Chapters and extensions hook in through the doors listed at the end of
section 13.

Server.method, Server.middleware and `capabilities=` are for methods of your own.
(chapter: more)

Server.subscription and notify_subscribers are for their notifications.
(chapter: stateless)

To extend a client (part III): any pair of binary streams can be a target.
Client.request, Client.notify, Client.answer and `capabilities=` are for methods of your
own; the doors are listed at the end of section 15.

To extend the file itself, see the comment above METHODS in part I.

To vendor it, copy it under any name: it works from a zip file, twice in one process,
and under `python -I -S`.  Importing it starts no thread and touches no file.  PARTS
lists what a copy has.  The licence (MIT) is at the end.
"""
# ruff: noqa: BLE001, I001, ISC004, PYI050, RUF022, SIM905
# (Broad `except` clauses are deliberate; parts have imports of their own; lists are
# grouped by topic; long strings are concatenated implicitly; typing.Never is new.)
from __future__ import annotations

import io
import itertools
import json
import operator
import os
import re
import select
import stat
import sys
import threading
import time
import traceback
from collections import abc, deque, namedtuple
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, lru_cache, partial, partialmethod
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

if TYPE_CHECKING:
    import socket  # inside
    from argparse import Namespace  # cli
    from asyncio import AbstractEventLoop, Task  # asyncio
    from collections.abc import Awaitable, Coroutine, Generator  # asyncio
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from types import FrameType  # turns
    from types import ModuleType  # cli
    from typing import Concatenate, ParamSpec  # asyncio
    from typing import NoReturn
    from typing import TextIO  # cli

    P = ParamSpec("P")  # asyncio
    Line = bytes | bytearray
    Job = Callable[[], object]  # a function without arguments; its result is dropped

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Handler = Callable[..., Any]
Json = dict[str, Any]
ByteStream = Any  # a binary stream: read1() or read(); write(), flush()

__version__ = "5.0.0"
# The parts of this copy, and its chapters
PARTS = "server client stateless schemas more asyncio turns inside config trace names cli"
__all__: list[str] = []  # each section adds its own
ABSENT: dict[str, str] = {}  # missing part or chapter: the names that it would add
LEFT_OUT = {name: part for part, names in ABSENT.items()
            for name in " ".join(names.split()).split(", ") if name}


def left_out(name: str) -> str:
    """The message for a name that this copy lacks; "" if it has it."""
    if name not in LEFT_OUT:
        return ""
    return f"{name}: this copy of mcp_min was made without {LEFT_OUT[name]!r}"


def __getattr__(name: str) -> Any:
    if name in LEFT_OUT:
        raise ImportError(left_out(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# == Part I: the protocol ==============================================================
# What both ends share: the facts of the specification, JSON-RPC messages, content, and
# a connection with all that is in flight on it.  Every copy has sections 1 to 6; they
# need no other part.

# -- 1. Vocabulary ---------------------------------------------------------------------
# The tables of the specification, as data.  Pages are those of
# modelcontextprotocol.io/specification/REVISION.

__all__ += [
    "PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS",
    "INTERNAL_ERROR", "RESOURCE_NOT_FOUND", "UNSUPPORTED_VERSION",
    "REQUEST_CANCELLED", "CONTENT_TOO_LARGE"]

# One dated revision.  batches: it allows arrays of messages.
# bad_arguments_are_results: bad arguments of a tool are a result with `isError`, not
# an error.  elicitation_modes: separated by a space.
Revision = namedtuple(
    "Revision", "batches bad_arguments_are_results elicitation_modes")
REVISIONS = {
    "2024-11-05": Revision(True,  False, ""),  # does not mention batches: we take them
    "2025-03-26": Revision(True,  False, ""),  # basic: batches "MUST" be taken
    "2025-06-18": Revision(False, False, "form"),
    "2025-11-25": Revision(False, True,  "form url"),  # changelog: SEP-1303
}
LEGACY_VERSIONS = [*REVISIONS]  # those with a handshake

# A request that a server answers.  capability: the server must have declared it; "a.b"
# is capability a with a true field b.  list_key: the key of the list in its result, if
# it is paged.  on_reader: the reader handles the request itself, without middleware,
# before it reads the next line: either the request changes how that line is read, or it
# takes no time.
#
# To add a revision, add a row to REVISIONS.  To add a method, add a row here, a
# function under @handles (section 13) and a method of Client (15), and name it in the
# table of Server's docstring.  If it needs a new capability, the server must declare
# that: add it to CAPABILITIES if it has details to declare, to CHANGES if it has a list
# that changes, and call Registry.offer where a function is registered.  To add a
# question, add a row to CLIENT_CAPABILITIES and to ANSWER_SCHEMAS, a method to
# HandlerContext (12) and a function to ANSWER_FUNCTIONS (15).
Method = namedtuple("Method", "capability list_key on_reader", defaults=("", "", False))
LEGACY = LEGACY_VERSIONS[-1]
METHODS = {
    # Agrees on the revision, on which the meaning of the next line depends.
    "initialize":            Method(on_reader=True),
    # Must be answered while every thread is busy.
    "ping":                  Method(on_reader=True),
    # For the model.
    "tools/list":            Method("tools", "tools"),
    "tools/call":            Method("tools"),
    # For the host.
    "resources/list":        Method("resources", "resources"),
    "resources/templates/list": Method("resources", "resourceTemplates"),
    "resources/read":        Method("resources"),
    "resources/subscribe":   Method("resources.subscribe", on_reader=True),
    "resources/unsubscribe": Method("resources.subscribe", on_reader=True),
    # For the user.
    "prompts/list":          Method("prompts", "prompts"),
    "prompts/get":           Method("prompts"),
    "completion/complete":   Method("completions"),
    "logging/setLevel":      Method("logging", on_reader=True),
}

# What a server can ask -> the capability that the client must have declared.
CLIENT_REQUESTS = {"elicitation/create": "elicitation", "roots/list": "roots",
                   "sampling/createMessage": "sampling"}
ANSWER_ACTIONS = ["accept", "decline", "cancel"]  # of an elicitation

# capability -> (the notification that its lists have changed, the capability's key in
# the filter of subscriptions/listen)
CHANGES = {name: (f"notifications/{name}/list_changed", f"{name}ListChanged")
           for name in ("tools", "prompts", "resources")}
UPDATES_WANTED = "resourceSubscriptions"  # in that filter: URIs of resources
UPDATED = "notifications/resources/updated"
INITIALIZED = "notifications/initialized"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
LOG_MESSAGE = "notifications/message"
ROOTS_CHANGED = "notifications/roots/list_changed"

# Spellings of other implementations and of the Language Server Protocol.  We understand
# them, and never send them: alias -> (notification, {their parameter: ours})
ALIASES: dict[str, tuple[str, dict[str, str]]] = {
    **{name.partition("/")[2]: (name, {}) for name in (
        INITIALIZED, CANCELLED, PROGRESS, ROOTS_CHANGED, UPDATED,
        *(row[0] for row in CHANGES.values()))},
    "logging/message": (LOG_MESSAGE, {}),
    "$/cancelRequest": (CANCELLED, {"id": "requestId"}),
    "$/progress":      (PROGRESS, {"token": "progressToken", "value": "progress"}),
}

WRAPS_RESULT = "x-fastmcp-wrap-result"  # marks the schema of {"result": …}
LEVELS = "debug info notice warning error critical alert emergency".split()

PARSE_ERROR = -32700          # the line is not JSON
INVALID_REQUEST = -32600      # JSON, but not a message; or not allowed now
METHOD_NOT_FOUND = -32601     # unknown, not in this revision, or capability undeclared
INVALID_PARAMS = -32602       # also: unknown tool or prompt; stateless: resource too
INTERNAL_ERROR = -32603       # a handler other than a tool failed; a bad response
RESOURCE_NOT_FOUND = -32002   # the stateless revision sends INVALID_PARAMS instead
UNSUPPORTED_VERSION = -32022  # stateless: `data` lists what we do support
REQUEST_CANCELLED = -32800    # LSP's; only an attribute of our Cancelled, never sent
CONTENT_TOO_LARGE = -32801    # our own: a line is longer than max_message_bytes


def as_object(value: object) -> Json:
    """Return the value if it is an object, else {}: the peer may send anything."""
    return value if isinstance(value, dict) else {}


def declares(capabilities: object, name: str) -> bool:
    """True if a capability is declared; for "a.b", its member b is declared too.

    Some servers declare `true` in place of an object.
    """
    for part in name.split("."):
        capabilities = as_object(capabilities).get(part)
        if capabilities is None or capabilities is False:
            return False
    return True


def undeclared(method: str, params: Json, declared: Json, version: str) -> Json:
    """The capability that a request needs and the client has not declared; or {}."""
    capability = CLIENT_REQUESTS[method]
    details: Json = {}
    if capability == "elicitation":
        mode = str(params.get("mode") or "form")
        details = {mode: {}}
        given = declared.get(capability)
        names_modes = {"form", "url"} & as_object(given).keys()
        if mode not in REVISIONS[version].elicitation_modes.split():
            declared = {}
        elif not names_modes and (given is True or type(given) is dict):
            declared = {capability: {"form": {}}}  # client/elicitation: "equivalent"
    elif capability == "sampling" and (params.get("tools") or params.get("toolChoice")):
        details = {"tools": {}}
    if declares(declared, ".".join([capability, *details])):
        return {}
    return {capability: details}


# -- 2. Errors -------------------------------------------------------------------------
# Two families.  Callers and handlers may catch what derives from Exception.  Exceptions
# by which this library stops a handler (Cancelled, Unwind, Stopped) derive from
# BaseException, so that the handler's own `except Exception` does not catch them.

__all__ += ["Error", "McpError", "ToolError", "RequestTimeout", "ConnectionClosed",
            "Cancelled"]

class Error(Exception):
    """The base of this library's errors, like csv.Error."""


class McpError(Error):
    """A JSON-RPC error in either direction: handlers raise it, callers catch it.

    code: int, see the constants; or an object with these three attributes.  message:
    str.  data: any JSON, or None.  local: False if the peer has sent it, True for one
    of this end, such as a malformed response.  Raises TypeError for other types.
    """

    # Defaults for subclasses that do not call __init__.
    code, message, data = INTERNAL_ERROR, "", None
    local = True

    def __init__(self, code: Any, message: str = "", data: Any = None) -> None:
        if hasattr(code, "message"):  # an ErrorData of the official SDK
            code, message, data = code.code, code.message, code.data
        if type(code) is not int:  # basic: "Error codes MUST be integers"
            raise TypeError(f"an error code must be an int, not {code!r:.60}")
        if not isinstance(message, str):
            raise TypeError(f"an error message must be a str, not {message!r:.60}")
        self.code, self.message, self.data = code, message, data

    def __str__(self) -> str:
        return escape_control(f"{self.message} ({self.code})")

    def to_json(self) -> Json:
        """The error object of a response."""
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class Unparsed(McpError):
    """Parsing stopped though the syntax may be right: the id may be readable."""


class Oversized(Unparsed):
    """A line is too long or nested too deep."""


class ToolError(Error):
    """A tool has failed: raise it in a tool, and `call_tool` raises it on the client.

    Its text is sent as a result with `isError` (server/tools, "Error Handling").
    result: on the client the whole ToolResult, in a tool None.
    """

    result: Any = None


class RequestTimeout(Error, TimeoutError):
    """Nothing came in time; the peer was sent a cancellation (basic/lifecycle)."""


class ConnectionClosed(Error, ConnectionError):
    """The peer is gone, or this end of the connection was closed.

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


def method_not_found(method: str) -> McpError:
    return McpError(METHOD_NOT_FOUND, "Method not found", {"method": method})


def invalid_params(message: str, field: str, issue: str, **more: Any) -> McpError:
    """field: the path of what is wrong; issue: what is wrong with it."""
    return McpError(INVALID_PARAMS, message, {"field": field, "issue": issue, **more})


def invalid_response(reason: str) -> McpError:
    return McpError(INTERNAL_ERROR, f"Malformed response: {reason}")


JSON_TYPE_NAMES = {str: "a string", dict: "an object", list: "a list",
                   bool: "a boolean"}


def require_type(value: object, required: type, name: str) -> Any:
    """Return the value if it is of this type, or raise McpError(-32602)."""
    if type(value) is not required:
        issue = f"must be {JSON_TYPE_NAMES[required]}"
        raise invalid_params(f'"{name}" {issue}', name, issue)
    return value


def member(params: Json, key: str, required: type) -> Any:
    """An optional member of params, or its empty value if it is absent or null."""
    value = params.get(key)
    return required() if value is None else require_type(value, required, key)


def require_one_of(name: str, value: object, known: Iterable[str]) -> Any:
    """Return the value if it is one of these, or raise McpError(-32602)."""
    known = [*known]
    if value not in known:
        issue = f"must be one of {', '.join(known)}"
        raise invalid_params(f"{name} {issue}", name, issue)
    return value


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ValueError if an argument of the caller is none of these."""
    if value not in [*known]:
        raise ValueError(f"{name} must be one of {', '.join(known)}")


ERROR_HINTS = {  # text of an exception: advice
    "EOF when reading a line":
        "stdin belongs to the client: ask its user with ctx.elicit(...)"}


def error_text(error: BaseException) -> str:
    """The text of an exception for the peer; the traceback stays on stderr."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # its own __str__ fails
        return name
    if not text:
        return name
    for sign, hint in ERROR_HINTS.items():
        if sign in text:
            text += f" ({hint})"
    return f"{name}: {text}"


def refuse_unknown(where: str, unknown: Iterable[str],
                   known: Iterable[str] = ()) -> None:
    """Raise TypeError for options that do not exist, with those that do."""
    if not unknown:
        return
    for name in unknown:
        if name in LEFT_OUT:
            raise TypeError(f"{where}: {left_out(name)}")
    text = ", ".join(known) or "none"
    raise TypeError(
        f"{where}: unknown: {', '.join(sorted(unknown))}; known are: {text}")


def options_of(fn: Any) -> list[str]:
    return list(fn.__kwdefaults__)


# Not printable, but shown unescaped: U+200D joins emoji, the last two are
# spaces.
UNESCAPED = "\n\t\u200d\xa0\u3000"


def escape_control(text: str) -> str:
    """The text with control characters, and marks of its direction, made visible."""
    if text.isprintable():
        return text
    hidden = {char for char in text if not char.isprintable()} - {*UNESCAPED}
    return text.translate({ord(char): ascii(char)[1:-1] for char in hidden})


# -- 3. Messages -----------------------------------------------------------------------
# A message is one line.  We read UTF-8 and write ASCII, which survives every encoding
# of a pipe and has no U+2028; a lone surrogate is escaped.


def refuse_constant(name: str) -> NoReturn:
    """For NaN and Infinity, which Python's parser would take."""
    raise ValueError(f"{name} is not JSON")


def model_data(value: Any) -> Any:
    """The JSON of a pydantic model, which a client may pass as an argument."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


to_json_text = json.JSONEncoder(  # RecursionError: an object contains itself
    separators=(",", ":"), allow_nan=False, check_circular=False,
    default=model_data).encode


def bounded_int(digits: str) -> int:
    """For Python before 3.9.14 and 3.10.7, where int() takes quadratic time."""
    if len(digits) > 4300:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


get_limit = getattr(sys, "get_int_max_str_digits", None)
is_unlimited = (sys.implementation.name == "cpython"
                and not (get_limit and get_limit()))
parse_json_prefix = json.JSONDecoder(
    parse_int=bounded_int if is_unlimited else None,
    parse_constant=refuse_constant).raw_decode
MAX_DEPTH = 200  # the deepest nesting of a message; the default of Server(max_depth)
PART_BYTES = 40  # of memory for each bracket, comma, colon or string of a message
MAX_GROWTH = 5   # how much larger a message may be in memory than max_message_bytes
EXACT_FROM = 1 << 20  # of memory: above this it may be measured exactly
MAX_ID = 1 << 16  # characters of an id or a token, because we store and return them
BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
NOT_STRUCTURE = bytes(set(range(256)) - {*b'[]{},:"'})
# These find the id and the kind of a line that was not parsed, if its keys come in an
# order that libraries write: the id before or after the method, or at the end.
A_VERSION = rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
AN_ID = rb'"id"\s*:\s*(-?(?:0|[1-9]\d{0,18})|"[ !#-\[\]-~]{0,200}")\s*'
THEN_ID = rb'(?:\s*:\s*"[ !#-\[\]-~]{0,200}"\s*,\s*%b[,}])?' % AN_ID
LINE_START = re.compile(rb'\s*\{\s*%b(?:%b,\s*)?%b"(result|error|method)"%b' % (
    A_VERSION, AN_ID, A_VERSION, THEN_ID))
LINE_END = re.compile(AN_ID + rb'\}\s*$')
TAIL_BYTES = 300  # of a line that is too long: it may end with the id


def encode(message: object) -> bytes:
    """Write a message as a line; ValueError, TypeError, RecursionError: not JSON."""
    return to_json_text(message).encode("ascii") + b"\n"


def notification(method: str, params: Json | None = None) -> Json:
    message: Json = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def with_meta(message: Json, more: Json) -> Json:
    """A copy of a result, or of params, with more in its `_meta`."""
    meta = as_object(message.get("_meta"))
    return {**message, "_meta": {**meta, **more}}


def error_response(request_id: object, error: McpError) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.to_json()}


def decode(line: Line, max_depth: int, max_memory: int = MAX_GROWTH << 24) -> Any:
    """Read the JSON of a line; McpError(-32700) if it is not valid."""
    # Deep nesting can overflow the C stack of the JSON parser, and [0,0,0] takes up to
    # 25 times its text in memory: so the punctuation of a line is counted first.
    may_be_large = len(line) * PART_BYTES > max_memory and memory_of(line) > max_memory
    if may_be_large or line.count(b"[") + line.count(b"{") > max_depth:
        check_structure(line, max_depth, max_memory)
    try:
        text = line.decode("utf-8").strip(" \t\r\ufeff")  # some write a BOM first
        # JSONDecoder.decode would spend a third of its time on whitespace.
        message, end = parse_json_prefix(text)
        if end == len(text):
            return message
        reason = f"extra data after {end} characters"
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except json.JSONDecodeError as error:
        reason = str(error)[:100]
    except (ValueError, RecursionError) as error:  # NaN; an integer of too many digits
        reason = str(error).partition(";")[0]
        raise Unparsed(PARSE_ERROR, f"Parse error: {reason}") from None
    raise McpError(PARSE_ERROR, f"Parse error: {reason}; expected one JSON message "
                   "on each line")


def memory_of(line: Line) -> int:
    """An upper bound on the memory of the parsed line, besides its text."""
    marks = line.translate(None, NOT_STRUCTURE)  # one pass is faster than seven counts
    return PART_BYTES * (len(marks) - marks.count(b'"') // 2)


def cost_of(line: Line, exact: bool) -> int:
    """What a message costs in memory: its text, and what that is parsed to.

    exact: measure a large one exactly; otherwise only one that is dense, not long text.
    """
    size, memory = len(line), memory_of(line)
    if memory > EXACT_FROM and (exact or memory > 4 * size):
        _, memory = structure_of(line)
    if is_wide(line):
        size *= 4  # bytes that each character of such a text takes
    return size + memory


def is_wide(line: Line) -> bool:
    """True if it may have a character beyond U+FFFF, in UTF-8 or escaped."""
    starts = b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"
    if not line.isascii() and any(start in line for start in starts):
        return True
    return rb"\u" in line and (rb"\ud" in line or rb"\uD" in line)


def check_structure(line: Line, max_depth: int, max_memory: int) -> None:
    """Raise Oversized if a line takes too much memory, or is nested too deep."""
    structure, memory = structure_of(line)
    if memory > max_memory:
        raise Oversized(PARSE_ERROR, f"Parse error: it would take over "
                        f"{max_memory >> 20} MiB once parsed: max_message_bytes=…")
    brackets = structure.translate(None, b",:")
    depths = itertools.accumulate(map(BRACKETS.__getitem__, brackets))
    if max(depths, default=0) > max_depth:
        raise Oversized(PARSE_ERROR, f"Parse error: nested deeper than {max_depth}")


def structure_of(line: Line) -> tuple[bytes, int]:
    """The punctuation of a line outside of strings, and the memory of the parsed line.

        {"a": [1, "x,y"]}  ->  {:[,]}, 8 * PART_BYTES

    It takes as long as to parse the line.
    """
    bare = line.replace(rb"\\", b"").replace(rb'\"', b"")  # every quote left counts
    strings = bare.count(b'"') // 2
    # Most strings are now `""`; without them little is left.
    bare = bare.translate(None, NOT_STRUCTURE).replace(b'""', b"")
    # As text, because bytes.join needs 80 bytes for each of millions of pieces.
    structure = re.sub('"[^"]*"?', "", bare.decode("ascii")).encode("ascii")
    return structure, PART_BYTES * (len(structure) + strings)


def id_and_member(line: Line) -> tuple[int | str | None, bytes]:
    """Of a line that was not parsed: its id, and "result", "error" or "method"."""
    start = LINE_START.match(line)
    if start is None:
        return None, b""
    end = LINE_END.search(line[-TAIL_BYTES:])
    found = start[1] or start[3] or (end and end[1])
    return json.loads(found) if found else None, start[2]


def valid_id(value: object) -> int | str | None:
    """Return a request id or progress token, 1.0 as 1; None for anything else."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is int or (type(value) is str and len(value) <= MAX_ID):
        return value
    return None


def classify(message: Any) -> str:
    """Return "request", "notification" or "response", or raise McpError."""
    if type(message) is not dict:
        problem = "expected a JSON object"
    elif message.get("method") is None and {"result", "error"} & message.keys():
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
    """Return the result of a response; McpError: the peer's, or it is malformed."""
    result, error = message.get("result"), message.get("error")
    if message.get("jsonrpc") != "2.0":
        raise invalid_response('"jsonrpc" is not "2.0"')
    if (result is None) == (error is None):
        raise invalid_response('exactly one of "result" and "error" must be an object')
    if type(result) is dict:
        return result
    error = as_object(error)
    code, text = error.get("code"), error.get("message")
    if type(code) is not int:
        if type(text) is not str:
            raise invalid_response('"result" or "error" is not an object')
        code = INTERNAL_ERROR
    text = text if type(text) is str else "(no message)"
    failure = McpError(code, text, error.get("data"))
    failure.local = False
    raise failure


# -- 4. Threads, streams, diagnostics --------------------------------------------------
# The parts that a connection is built from, and what it reports on stderr.  All threads
# are daemons, so that a handler that never ends does not keep the process alive.

# -- threads, and how they wait


def start_thread(name: str, run: Job) -> threading.Thread:
    """Start a thread; RuntimeError if none can be started.

    That is so at exit since Python 3.12, in an isolated subinterpreter, and in a
    process that may have no more of them.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(
            f"mcp_min needs another thread, and none can be started: {error}") from None
    return thread


IDLE_SECONDS = 0.5  # after which a thread of a pool ends


class ThreadPool:
    """A pool of threads, started on demand, that runs jobs in FIFO order.

    At most `limit` jobs run at once; with limit 1 it is a serial executor.  An idle
    thread ends by itself, so a pool is never closed.  (A ThreadPoolExecutor would not
    do: the interpreter joins its threads at exit.)

    If no thread can be started for a job, a running thread takes it later; if there is
    none, `submit` raises RuntimeError.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._lock = threading.Lock()  # a leaf; it guards the fields below
        self._changed = threading.Condition(self._lock)  # there may be a job to take
        self._jobs: deque[tuple[Job, int]] = deque()
        self._running = 0              # jobs
        self._threads = 0
        self._idle = 0                 # threads that wait for a job
        self._last_thread = 0          # the identity of the thread that last took a job
        self.bytes = 0                 # of memory that waiting and running jobs hold

    def submit(self, job: Job, size: int = 0) -> None:
        """Run a job as soon as a thread is free.  size: bytes of memory it holds."""
        with self._lock:
            if self._idle <= len(self._jobs) and self._threads < self._limit:
                try:
                    start_thread(self._name, self._work)
                    self._threads += 1
                except RuntimeError:
                    if not self._threads:
                        raise
            self._jobs.append((job, size))
            self.bytes += size
            self._changed.notify()

    def leave(self, size: int = 0) -> None:
        """A job is done; size: as it was submitted."""
        with self._lock:
            self.bytes -= size
            self._running -= 1
            if self._jobs:
                self._changed.notify()

    def is_idle(self) -> bool:
        """True if no job runs or waits."""
        with self._lock:
            return not (self._running or self._jobs)

    def drain(self, seconds: float) -> None:
        """Wait until it is idle; in a job, return at once.  Needs limit 1."""
        if not (self._running and self._last_thread == threading.get_ident()):
            wait_until(self.is_idle, seconds)

    def _work(self) -> None:
        while (entry := self._take()) is not None:
            job, size = entry
            try:
                job()
            except BaseException:
                log_exception(f"mcp_min: a job of the {self._name} thread failed")
            finally:
                del job, entry  # or an idle thread would keep what they hold
                self.leave(size)

    def _take(self) -> tuple[Job, int] | None:
        """Wait for a job; None if this thread is to end."""
        with self._lock:
            self._idle += 1
            # (A subclass may hold jobs back by `_ready`: then this thread must stay.)
            while not self._changed.wait_for(self._ready, IDLE_SECONDS) and self._jobs:
                pass
            self._idle -= 1
            if self._jobs:
                self._running += 1
                self._last_thread = threading.get_ident()
                return self._jobs.popleft()
            self._threads -= 1
            return None

    def _ready(self) -> bool:
        """True if a job may be taken."""
        return bool(self._jobs)


# Libraries that freeze the clock for a test replace `time.monotonic` in every module
# that has it, except in `threading`; so it is taken from there, and bound once.
monotonic: Callable[[], float] = partial(
    threading._time)  # type: ignore[attr-defined]
INFINITE = float("inf")
# The longest single wait: a signal that comes just before one would not interrupt it.
STEP_SECONDS = 0.5


def wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds, or the time is up."""
    deadline, pause = monotonic() + seconds, 0.001
    while not is_so() and monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


class Inbox:
    """One thread waits here for an outcome, and runs the jobs that others put in.

    on_arrival: called after something is put in, if no thread waits.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Job, bool]] = SimpleQueue()
        self.on_arrival: Job | None = None

    def call(self, job: Job) -> None:
        """Let the thread that waits call `job`; an exception ends the wait."""
        self._put(job, False)

    def finish(self, outcome: Callable[[], Any]) -> None:
        """End the wait with what `outcome()` returns or raises."""
        self._put(outcome, True)

    def _put(self, job: Job, is_outcome: bool) -> None:
        self._jobs.put((job, is_outcome))
        if self.on_arrival:
            self.on_arrival()

    def wait(self, until: float = INFINITE) -> Any:
        """Wait for the outcome; queue.Empty: there is none by `until`."""
        while True:
            try:
                job, is_outcome = self._next(until - monotonic())
            except Empty:
                if monotonic() >= until:
                    raise
            else:
                result = job()
                if is_outcome:
                    return result

    def _next(self, seconds: float) -> tuple[Job, bool]:
        # A look first: the first get() of a new queue with a timeout of 0 may hang
        # (CPython up to 3.12).
        try:
            return self._jobs.get_nowait()
        except Empty:
            return self._jobs.get(timeout=max(0.0, min(seconds, STEP_SECONDS)))


class Outcome(Generic[T]):
    """What a function returned or raised; calling it returns or raises that again."""

    def __init__(self, value: T, error: BaseException | None = None) -> None:
        self.value, self.error = value, error

    @classmethod
    def of(cls, run: Callable[[], T]) -> Outcome[Any]:
        """The outcome of calling a function now."""
        try:
            return Outcome(run())
        except BaseException as error:
            return Outcome(None, error)

    def __call__(self) -> T:
        if self.error:
            raise self.error
        return self.value


def raise_cancelled() -> NoReturn:
    raise Cancelled()


# -- streams


def read_chunks(stream: ByteStream) -> Iterator[bytes]:
    """The bytes of a binary stream, or of the one under a text stream, to its end."""
    stream = getattr(stream, "buffer", stream)
    read = getattr(stream, "read1", None) or stream.read

    def read_chunk() -> bytes:
        try:
            while (chunk := read(65536)) is None:  # somebody made it non-blocking
                if not make_poll(stream, "r", False)(1.0):
                    time.sleep(0.001)  # or it cannot be polled
            return bytes(chunk)
        except (OSError, ValueError):  # it broke, or was closed meanwhile
            return b""
        except Exception:  # of a transport that somebody else has written
            log_exception("mcp_min: reading has failed")
            return b""

    return iter(read_chunk, b"")


def split_lines(chunks: Iterable[bytes], limit: int) -> Iterator[Line]:
    """Yield lines without their newlines; only one thread at a time may iterate.

    Each byte is looked at once, even if a line arrives in many chunks.  Of a line over
    the limit only the first `limit` + 1 and the last TAIL_BYTES bytes are kept.
    """
    line, tail = bytearray(), b""

    def add(part: bytes) -> None:
        nonlocal tail
        line.extend(part[:limit + 1 - len(line)])
        if len(line) > limit:
            tail = (tail + part)[-TAIL_BYTES:]

    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            add(part)
            yield line + tail if tail else line  # no copy: it may be large
            line, tail = bytearray(), b""
        if rest:
            add(rest)
    if line:  # the last one has no newline
        yield line + tail


def make_poll(stream: ByteStream, event: str, otherwise: bool,
              ) -> Callable[[float | None], bool]:
    """Return wait(seconds): True once a stream can be read or written, else False.

    event: "r" or "w".  seconds: None waits for ever.  otherwise: what wait returns, at
    once, if the stream cannot be polled, like a file in memory, or any on Windows.
    """
    try:
        poll = select.poll()
        poll.register(stream, {"r": select.POLLIN, "w": select.POLLOUT}[event])
    except (AttributeError, OSError, TypeError, ValueError):
        return lambda seconds: otherwise
    return lambda seconds: bool(poll.poll(None if seconds is None else seconds * 1000))


private_files: set[ByteStream] = set()


def close_in_forked_children(*files: ByteStream) -> None:
    """Close our streams in forked children; else the peer would never see an end."""
    # Two threads may both register it; to close a file twice is harmless.
    if not private_files and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            after_in_child=lambda: [file.close() for file in private_files])
    private_files.update(files)
    private_files.difference_update(
        [file for file in private_files.copy() if file.closed])


# -- diagnostics


def log_exception(heading: str) -> None:
    """Write the current exception to stderr, where a host keeps its server's log."""
    error_type, error, frames = sys.exc_info()
    # Begin at the user's first frame, if any; on PyPy `partial` is Python too.
    first = frames
    skipped = log_exception.__code__.co_filename, sys.modules["functools"].__file__
    while first and first.tb_frame.f_code.co_filename in skipped:
        first = first.tb_next
    text = ""
    try:
        text = "".join(traceback.format_exception(error_type, error, first or frames))
    except BaseException:  # it may import something, or the error's __str__ fails
        if error:
            text = error_text(error) + "\n"
    warn(f"{heading}:\n{text}")


def warn(text: str, patience: float = 0.0) -> None:
    """Write to stderr; give up if that would block longer than `patience` seconds."""
    text = escape_control(text)
    if os.name != "nt":
        return write_stderr(text, patience)
    # A pipe cannot be polled there, so another thread may block in it; but only one.
    if stderr_writer.bytes < MAX_STDERR_WAITING:
        with suppress(RuntimeError):  # no thread can be started
            write = partial(write_stderr, text, None)
            stderr_writer.submit(write, len(text))
            wait_until(stderr_writer.is_idle, max(patience, 0.1))


MAX_STDERR_WAITING = 1 << 16  # bytes that wait while nobody reads stderr
stderr_writer = ThreadPool("mcp stderr", 1)
writing_stderr = threading.Lock()  # a leaf; keeps the texts of two threads apart


def write_stderr(text: str, patience: float | None) -> None:
    """Write to stderr.  patience: see `warn`; None waits as long as it takes."""
    # Suppressed: there is no stderr, it is closed, or it is an object of the host's
    # (Qt, IDA, Blender) that raises anything.
    with writing_stderr, suppress(Exception):
        can_write = make_poll(sys.stderr, "w", True)
        # A pipe that is ready takes 4096 bytes: 1000 characters in UTF-8.
        for start in range(0, len(text), 1000):
            if not can_write(patience):
                break
            sys.stderr.write(text[start:start + 1000])
            sys.stderr.flush()


# -- the functions of users

CO_COROUTINE, CO_ASYNC_GENERATOR = 128, 512  # flags of a function's code, see inspect


def unwrap(fn: Any) -> Any:
    """The function inside of decorators, partial, methods and callable objects."""
    for _ in range(100):  # there are objects that answer every attribute
        inner = getattr(fn, "__wrapped__", None) or getattr(fn, "__func__", None)
        if isinstance(fn, (partial, partialmethod)):
            inner = fn.func
        if inner is None:
            break
        fn = inner
    if hasattr(fn, "__code__"):
        return fn
    return type(fn).__call__


def is_async(fn: Any, flag: int = CO_COROUTINE) -> bool:
    flags = getattr(getattr(unwrap(fn), "__code__", None), "co_flags", 0)
    return type(flags) is int and flags & flag > 0


def name_of(fn: object) -> str:
    for attribute in ("func", "__func__"):  # of a partial, of a static method
        fn = getattr(fn, attribute, fn)
    return getattr(fn, "__name__", None) or type(fn).__name__


def require_sync(*functions: Handler | None) -> None:
    for fn in functions:
        if fn and is_async(fn):
            raise TypeError(f"{name_of(fn)} is `async def`: middleware, subscriptions "
                            "and the handlers of a client are plain functions")


# -- 5. Content ------------------------------------------------------------------------
# Content is JSON as it is sent: dict subclasses with camelCase keys, whose fields are
# attributes too.  A plain dict that a handler returns is data, not a content block.

__all__ += ["ToolResult", "ResourceContents", "Elicited"]

FieldsT = TypeVar("FieldsT", bound="Fields")


@lru_cache(maxsize=256)
def camel_case(name: str) -> str:
    """The protocol's key for a Python name."""
    if name in ("meta", "_meta"):
        return "_meta"
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def wire_fields(**fields: object) -> Json:
    """Keyword arguments with the keys of the protocol, without those that are None."""
    return {camel_case(key): value for key, value in fields.items()
            if value is not None}


def to_base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode()


def from_base64(text: str) -> bytes:
    from base64 import b64decode

    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"not base64: {text[:40]!r} (for a file: path=)") from None


def listed(content: Any) -> list[Any]:
    """A value in a list; or the items of a list or a tuple."""
    return [*content] if type(content) in (list, tuple) else [content]


def text_of(content: object) -> str:
    """The text of the text blocks in a block or a list of blocks."""
    blocks = map(as_object, listed(content))
    texts = [block.get("text") for block in blocks]
    return "\n".join(text for text in texts if type(text) is str)


class Fields(dict):  # type: ignore[type-arg]
    """A JSON object whose fields are attributes too: `block.text`, `block.mimeType`.

    So are those of the objects in it: `tool.annotations.readOnlyHint`.  A field named
    like a method of dict (items, keys, values …) is read by key: `data["items"]`.
    """

    _field_names = ""  # separated by spaces; those that are missing read as None

    def __init__(self, **fields: object) -> None:
        """Set the fields that are not None; raise TypeError for others than its own."""
        super().__init__(wire_fields(**fields))
        known = self._field_names.split()
        refuse_unknown(type(self).__name__, self.keys() - known, known)

    @classmethod
    def of(cls: type[FieldsT], fields: Json) -> FieldsT:  # noqa: PYI019 (Python 3.10)
        """Make one of received fields, without validation."""
        instance = cls.__new__(cls)
        instance.update(fields)
        return instance

    def __setattr__(self, name: str, value: object) -> None:
        key = camel_case(name)
        if key in self._field_names.split():
            self[key] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        for key in (name, camel_case(name)):
            if key in self:
                return received(self[key])
        if camel_case(name) in self._field_names.split():
            return None
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")


class Received(Fields):
    """An object of a message; fields of the protocol that it lacks read as None."""

    _field_names = ("type text name title description mimeType size icons annotations "
                    "_meta audience priority lastModified required readOnlyHint "
                    "destructiveHint idempotentHint openWorldHint")


class Block(Received):
    """A content block (server/tools, "Tool Result")."""

    _type = ""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"type": self._type, **fields})


def received(value: Any) -> Any:
    """JSON as it was received, with the members of its objects as attributes, too."""
    if type(value) is list:
        return [*map(received, value)]
    if type(value) is not dict:
        return value
    if isinstance(value.get("type"), str):  # a block; any other object is plain data
        return Block.of(value)
    return Received.of(value)


def as_block(part: Any) -> Json:
    """A block; a str becomes one.  TypeError: neither."""
    if isinstance(part, str):
        return Block.of({"type": "text", "text": part})
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        return part
    raise TypeError(f"content is text or a block, such as Image, not {part!r:.60}")


class ResourceContents(Fields):
    """The contents of a resource: `text`, or bytes as `data`, or base64 as `blob`.

    uri: by default the URI that was requested (server/resources).
    """

    _field_names = "uri mimeType text blob _meta"

    def __init__(self, text: str | None = None, *, data: bytes | None = None,
                 uri: str | None = None, **fields: Any) -> None:
        if data is not None:
            fields["blob"] = to_base64(data)
        if uri is not None:
            fields["uri"] = str(uri)
        super().__init__(text=text, **fields)

    @property
    def data(self) -> bytes | None:
        """The bytes, or None if it is text."""
        if "blob" not in self:
            return None
        return from_base64(str(self["blob"]))


class ToolResult(Fields):
    """The result of a tool: a handler may return one, and `call_tool` returns one.

    content: a str, a block, or a list of both.  structured_content: any JSON.  The
    wire's spellings (structuredContent, isError, _meta) are taken too.

    Some hosts, such as Claude Code, show the model only the structured content if both
    are present: put what it must read there, too.
    """

    _field_names = "content structuredContent isError _meta"
    wrapped = False  # the output schema says that the structure is {"result": …}

    def __init__(self, content: Any = (), structured_content: object = None,
                 is_error: bool = False, meta: Json | None = None,
                 **fields: Any) -> None:
        if isinstance(content, (str, dict)):
            content = [content]
        fields["content"] = [*map(as_block, content or ())]
        super().__init__(structured_content=structured_content, is_error=is_error,
                         meta=meta, **fields)

    @property
    def content(self) -> list[Json]:
        """The content blocks as received; their fields are attributes too."""
        return [*received(self.get("content") or [])]

    @property
    def text(self) -> str:
        """The text of all text blocks, joined by newlines."""
        return text_of(self.content)

    @property
    def structured_content(self) -> Any:
        """The structured content as received, or None."""
        return self.get("structuredContent")

    @property
    def is_error(self) -> bool:
        """True if the tool has failed."""
        return self.get("isError") is True

    @property
    def data(self) -> Any:
        """The structured content, without its wrapper if it has one; or the text.

        A value that is not an object travels as {"result": value}; the output schema or
        `_meta` says so.  Members of objects are attributes too.
        """
        if "structuredContent" not in self:
            return self.text
        value = self["structuredContent"]
        marks = as_object(as_object(self.get("_meta")).get("fastmcp"))
        wrapped = self.wrapped or marks.get("wrap_result")
        if wrapped and type(value) is dict:
            value = value.get("result")
        return received(value)


def check_tool_results(messages: list[Any]) -> None:
    """Raise ValueError for tool results beside other content (client/sampling)."""
    for message in messages:
        blocks = map(as_object, listed(as_object(message).get("content")))
        types = {str(block.get("type")) for block in blocks}
        if len(types) > 1 and "tool_result" in types:
            raise ValueError("a message with tool results has other content, too")


class Elicited:
    """The user's answer to `elicit`.  action: "accept", "decline" or "cancel".

    content: if accepted, the form as a dict.  data: the same, converted to what was
    asked for: an object, a choice, a scalar.  elicitation_id: of `elicit_url`, None in
    the stateless revision.
    """

    def __init__(self, action: str, content: Json | None = None, data: Any = None,
                 elicitation_id: str | None = None) -> None:
        check_choice("action", action, ANSWER_ACTIONS)
        self.action = action
        self.content = content
        self.data = data
        self.elicitation_id = elicitation_id

    def __repr__(self) -> str:
        return f"Elicited({self.action!r}, {self.content!r})"


# -- 6. Connection ---------------------------------------------------------------------
# One end of a JSON-RPC connection.  The defaults are a client's; section 8 has a
# server's.  One lock, Connection.lock, guards its state: both tables of requests and
# what they cost, the queue of lines, `ending` and `closed`.  The parts are small
# classes with one rule each, which share that lock:
#
#   Outbox            lines to be written: the thread that sends a line also writes it
#   IncomingRequest   a request of the peer; IncomingRequests has all without a response
#   OutgoingRequest   a request of ours
#   Session           what a connection asks of its owner
#
# The module docstring follows a request through them; it says what a thread must not do
# while it holds the lock, and in which order locks are taken.
#
# A response, a cancellation, a timeout and the end of the connection race for a
# request.  The one that takes it out of its table wins; the others do nothing.

NO_RESPONSE_YET: Any = object()  # returned by a handler whose response is sent later

HIGH_WATER_BYTES = 1 << 20   # with more unwritten, a handler that sends waits
MAX_UNREAD_BYTES = 64 << 20  # close when more is unwritten
MAX_BACKLOG_BYTES = 16 << 20  # of requests in flight; of notifications that wait
REQUEST_COST = 1024          # bytes that a request costs besides its text
MAX_REQUESTS = 1000          # in flight at once
MAX_REASON = 1000            # characters of the reason for a cancellation
MAX_BATCH = 100              # messages in an array, or questions in a result


class Outbox:
    """The lines that go to the peer, in order; one thread writes at a time.

    A thread that has queued a line also writes it, with all that other threads have
    queued, so that no thread needs to be woken.  If another thread holds `writing`, it
    will write our line too: it looks at the queue once more after it releases that.

    A server's handlers may block in a full pipe: the client sets their pace.  Who asks
    the peer may not, because there is a timeout to keep, nor may a thread that reads or
    runs an event loop: what the pipe does not take is left to the writer thread.

    Who calls put, wait_for_room, take or release holds Connection.lock.
    """

    def __init__(self, connection: Connection, stream: ByteStream) -> None:
        self._connection = connection
        self._may_block = connection.senders_may_block
        self._stream: ByteStream = getattr(stream, "buffer", stream)
        self._can_write = make_poll(self._stream, "w", False)
        self._writer = ThreadPool("mcp writer", 1)
        self.writing = threading.Lock()  # held by the thread that writes
        self._broken = False             # the peer is gone, or does not read
        # Connection.lock guards these.
        self._queue = bytearray()        # of lines
        self._longest = 0                # of these; it may be one that has waited
        self.size = 0                    # of the queue, and of what is being written
        self._room = threading.Condition(connection.lock)

    def put(self, line: bytes, request_id: object = None) -> None:
        """Queue a line for the next `flush`."""
        if self._connection.closed:
            return
        if len(self._queue) > MAX_UNREAD_BYTES + self._longest:
            self._broken = True
        self._queue += line
        self._longest = max(self._longest, len(line))
        self.size += len(line)

    def is_crowded(self) -> bool:
        """True if a handler that sends has to wait for the peer to read."""
        return self.size > HIGH_WATER_BYTES and not self._connection.closed

    def wait_for_room(self) -> None:
        """Wait until one line, however long, may be put."""
        if self._may_block:
            self._room.wait_for(lambda: not self.is_crowded())

    def take(self) -> bytearray:
        """Take what is queued."""
        data, self._queue, self._longest = self._queue, bytearray(), 0
        return data

    def release(self, size: int) -> None:
        """These bytes, which were taken, are written or dropped."""
        if self.size > HIGH_WATER_BYTES:  # somebody may wait for room
            self._room.notify_all()
        self.size -= size

    def flush(self, may_block: bool = True, wait: bool = False) -> None:
        """Write what is queued.

                           the pipe is full              another thread is writing
        may_block=False    left to the writer thread     it writes ours, too
        may_block=True     we block (if senders may)     it writes ours, too
        wait=True          we block                      we wait until it has
        """
        may_block = wait or (may_block and self._may_block)
        wait = wait and not self._broken  # threads must not pile up on a broken stream
        try:
            while (wait or self._queue) and self.writing.acquire(wait):
                wait = False  # a line that is queued later is written by its sender
                try:
                    written = self._write_queued(may_block)
                finally:
                    self.writing.release()
                if not written:
                    self._write_later()
                    break
        except BaseException:
            # After Ctrl-C we cannot tell whether this thread holds the lock: close.
            if self._broken or self.writing.locked():
                self._connection.why_closed = "a write was interrupted"
                start_thread("mcp closing", self._connection.close)
            raise
        if self._broken:
            self._connection.output_failed(len(self._queue) > MAX_UNREAD_BYTES)

    def wait_until_written(self, seconds: float) -> None:
        """Wait until all that is queued now is written, or the time is up."""
        if self._queue or self.writing.locked():
            self._write_later()
            self._writer.drain(seconds)

    def _write_later(self) -> None:
        """Let the writer thread write; if there can be none, block here."""
        try:
            self._writer.submit(partial(self.flush, wait=True))
        except RuntimeError:
            self.flush(wait=True)

    def _write_queued(self, may_block: bool) -> bool:  # writing is held
        """Write what is queued; False if that would block, and must not."""
        with self._connection.lock:
            # A pipe that is ready takes at least PIPE_BUF bytes (4096).
            if not may_block and (self.size > 4096 or not self._can_write(0)):
                return False
            data = self.take()
        try:
            self._write(data)
        except (OSError, ValueError):
            self._broken = True
        except BaseException as error:
            # Ctrl-C comes before or after a short write, but may cut a long one in two.
            if isinstance(error, Exception) or len(data) > 4096:
                self._broken = True
            raise
        finally:
            with self._connection.lock:
                self.release(len(data))
        return True

    def _write(self, data: bytearray) -> None:
        for tap in self._connection.taps:
            tap.show(self._connection.arrow_out, data)
        rest: bytearray | memoryview = data
        while rest:
            written = self._stream.write(rest)
            if written == len(rest):
                break
            if written:
                rest = memoryview(rest)[written:]
            elif not (isinstance(self._stream, io.RawIOBase)  # it is non-blocking
                      and self._can_write(None)):
                problem = "the stream's write() does not say what it has written"
                self._connection.why_closed = problem
                raise OSError(problem)
        self._stream.flush()


RequestT = TypeVar("RequestT", bound="IncomingRequest | OutgoingRequest")


class Requests(dict, Generic[RequestT]):  # type: ignore[type-arg]
    """The requests of one end that have no response yet, by id.

    The caller holds Connection.lock.  We compare the object, not only its id, because
    the peer may reuse an id.
    """

    def has(self, request: RequestT) -> bool:
        return self.get(request.id) is request

    def find(self, request_id: object) -> RequestT | None:
        return self.get(valid_id(request_id))

    def take(self, request: RequestT) -> bool:
        """Remove a request: only this caller may end it.  False: it was removed."""
        if not self.has(request):
            return False
        del self[request.id]
        return True


# -- requests of the peer


class IncomingRequest:
    """A request of the peer, until it is answered or cancelled.

    id, method, params: as received.  sink: takes its response.  on_reader: the reader
    handles it.  cost: the bytes that it is charged.  cancelled: True once it was
    cancelled, or the connection was closed; cancel_reason: the reason that the peer
    gave, or None.  thread: the identity of the thread that runs its handler, or None.
    """

    cancelled = False
    cancel_reason: str | None = None
    thread: int | None = None
    _hooks: tuple[Job, ...] = ()
    _ended = False

    def __init__(self, connection: Any, message: Json, sink: Any, size: int,
                 on_reader: bool) -> None:
        self.connection, self.sink, self.on_reader = connection, sink, on_reader
        self.id, self.method = valid_id(message["id"]), message["method"]
        params = message.get("params")
        self.params: Json = {} if params is None else params
        self.cost = size + REQUEST_COST

    def begin(self) -> bool:
        """The calling thread runs its handler; False: it was cancelled before."""
        with self.connection.lock:
            self.thread = threading.get_ident()
            return not self.cancelled

    def end(self) -> None:
        """Its handler has ended, whatever became of the request."""
        with self.connection.lock:
            self.thread, self._ended = None, True
            if self.cancelled:
                self.charge(-self.cost)

    def charge(self, size: int) -> None:  # the caller holds the lock
        """Charge the peer more for it; or less, when it is over.

        A cancelled request keeps its cost until its handler ends; else a peer could
        fill memory by cancelling.
        """
        self.cost += size
        self.connection.incoming.bytes += size

    def respond(self, result: Json) -> None:
        """Send its result, unless the request has left the table."""
        self._finish({"jsonrpc": "2.0", "id": self.id, "result": result})

    def refuse(self, error: McpError) -> None:
        """Send an error, unless the request has left the table."""
        self._finish(error_response(self.id, error))

    def _finish(self, message: Json) -> None:
        """Send a response; it leaves the table."""
        connection = self.connection
        if os.getpid() != connection.pid:
            os._exit(0)  # a child that the handler has forked has no other thread, and
            # one that is not in it may have held the lock
        try:
            line = encode(message)
        except Exception as error:  # a user's dict subclass may raise anything
            log_exception(f"mcp_min: the result of {self.method} is not JSON")
            text = connection.session.error_text(error)
            text = f"The result is not JSON: {text:.200}"
            return self.refuse(McpError(INTERNAL_ERROR, text))
        with connection.lock:
            if connection.outbox.size > HIGH_WATER_BYTES and not self.on_reader:
                connection.outbox.wait_for_room()
            if not connection.incoming.take(self):
                return
            # Before it is sent: the peer may send its next request on receipt.
            self.charge(-self.cost)
            self.sink.put(line, self.id)
        self.flush(may_block=not self.on_reader)

    def flush(self, may_block: bool) -> None:
        """Write what was queued about it."""
        self.connection.outbox.flush(may_block)

    def cancel(self, reason: object = None) -> bool:
        """End the request without a response; False if it has left the table."""
        connection = self.connection
        with connection.lock:
            if not connection.incoming.take(self):
                return False
            self.cancelled = True
            if isinstance(reason, str):
                self.cancel_reason = reason[:MAX_REASON]  # it is kept, not charged
            self.sink.put(b"")
            if self._ended:
                self.charge(-self.cost)
            elif self.thread is None:
                self.params = {}  # its handler will not run
            hooks = self._hooks  # no more are added once it is cancelled
        connection.outbox.flush(may_block=False)
        for hook in hooks:
            hook()
        return True

    def on_cancel(self, hook: Job) -> None:
        """Call the hook once when the request is cancelled, or now if it has been."""
        with self.connection.lock:
            if not self.cancelled:
                self._hooks += (hook,)
                return
        hook()


class IncomingRequests(Requests["IncomingRequest"]):
    """The requests of the peer.  bytes: charged for them and for its subscriptions."""

    bytes = 0

    def add(self, request: IncomingRequest) -> None:
        """Add a request and charge its cost; McpError: no room, or its id is in use.

        Those that the reader handles are always admitted: they end at once, or charge
        for what they keep.
        """
        if request.id in self:
            raise McpError(INVALID_REQUEST, "Invalid request: this id is in use")
        if not request.on_reader:
            self.check_room()
        self.bytes += request.cost
        self[request.id] = request

    def has_room(self, besides: int = 0) -> bool:
        return len(self) < MAX_REQUESTS and self.bytes - besides <= MAX_BACKLOG_BYTES

    def check_room(self, besides: int = 0) -> None:
        """Raise McpError if the peer makes us hold all that it may.

        The limit is checked before a request is added, so that a large one may exceed
        it.  besides: bytes to leave out.
        """
        if not self.has_room(besides):
            raise McpError(INTERNAL_ERROR, f"Over {MAX_REQUESTS} requests, or "
                           f"{MAX_BACKLOG_BYTES} bytes of them, are in flight")


# -- our requests


class OutgoingRequest:
    """A request of ours.  The thread that waits for it keeps its deadline.

    id: its key in the table, an int when it is sent.  label: its name in errors.
    timeout: seconds without a response or progress.  last_deadline: the time
    (monotonic()) when it ends even if progress comes; limit_name: what errors call it.
    """

    limit_name = "max_timeout"

    def __init__(self, connection: Connection, method: str, timeout: float = INFINITE,
                 last_deadline: float = INFINITE) -> None:
        self.connection, self.method, self.label = connection, method, method
        self.timeout, self.last_deadline = timeout, last_deadline
        self.inbox = Inbox()
        # Set before it enters the table; while it is there, by the reader.
        self.id: object = object()
        self.has_token = False   # the peer may report progress
        self.heard_at = 0.0      # when it was sent, or progress came
        self.progress = float("-inf")  # the highest that came
        self.size = 0            # of its response

    def send(self, params: Json | None, with_token: bool = False) -> None:
        """Send it, or again with another id.

        with_token: the peer may report progress.
        """
        self.id = next(self.connection.ids)
        if with_token:
            params = with_meta(params or {}, {"progressToken": self.id})
        self.has_token, self.progress = with_token, float("-inf")
        self.heard_at = monotonic()
        line = encode({"jsonrpc": "2.0", "id": self.id,
                       **notification(self.method, params)})
        self.enter(line)

    def enter(self, line: bytes = b"") -> None:
        """Enter the table, and send a line if there is one.

        It does not block in a full pipe, because there is a timeout to keep.
        """
        connection = self.connection
        with connection.lock:
            ends = connection.ending
            if not ends:
                connection.outgoing[self.id] = self
                connection.outbox.put(line)
        if ends:
            self.fail()
        else:
            connection.outbox.flush(may_block=False)

    def wait(self) -> Any:
        """The result; or raise RequestTimeout, ConnectionClosed, or its McpError."""
        while True:
            try:
                return self.inbox.wait(self.deadline())
            except Empty:
                if monotonic() < self.deadline():
                    continue  # progress has moved it
                if self.give_up("timed out"):
                    raise self.timeout_error() from None
                return self.inbox.wait()  # the outcome is on its way

    def deadline(self) -> float:
        return min(self.heard_at + self.timeout, self.last_deadline)

    def timeout_error(self) -> RequestTimeout:
        reason = f"no response or progress within {self.timeout:g} s"
        if monotonic() >= self.last_deadline:
            reason = f"no response within {self.limit_name}"
        return self.connection.session.timeout_error(f"{self.label}: {reason}")

    def withdraw(self) -> bool:
        """Take it out of the table; False: it was removed before."""
        with self.connection.lock:
            return self.connection.outgoing.take(self)

    def give_up(self, reason: str) -> bool:
        """Withdraw it, and tell the peer why.  False: it has left the table."""
        with self.connection.lock:
            request_id = self.id
            if not self.withdraw():
                return False
        # basic/lifecycle: `initialize` MUST NOT be cancelled.  If it is no number, the
        # peer does not know it.
        if self.method != "initialize" and type(request_id) is int:
            params = {"requestId": request_id, "reason": reason}
            self.connection.send(notification(CANCELLED, params))
        return True

    def cancel(self) -> None:
        """Give it up, and end the wait with Cancelled; any thread may call this."""
        self.give_up("cancelled")
        self.inbox.finish(raise_cancelled)

    # The next three are called only after it was taken out of the table.

    def respond(self, message: Json, size: int, cost: int = 0) -> None:
        """The response has come.  cost: the bytes that it takes in memory."""
        self.size = size
        self.end(partial(parse_response, message))

    def fail(self) -> None:
        """The connection ends."""
        self.end(self.connection.raise_closed)

    def end(self, outcome: Callable[[], Any]) -> None:
        """End the wait with what outcome() returns or raises."""
        self.inbox.finish(outcome)

    def note_progress(self, params: Json, size: int) -> bool:
        """Note progress; False, and the deadline stays, if it did not increase."""
        progress = params["progress"]  # the lock is held
        if not (self.has_token and progress > self.progress):
            return False
        self.progress, self.heard_at = progress, monotonic()
        return True


# -- the connection


class Session:
    """What a Connection asks of its owner, the server or client at this end.

    All but `handle` may be called on the reader, and so must not block.
    """

    def handle(self, request: IncomingRequest) -> Any:
        """Return the result of a request, or NO_RESPONSE_YET; or raise its error."""

    def is_for_reader(self, method: str) -> bool:
        """True if this method must be handled before the next line is read."""
        return True

    def allows_batches(self) -> bool:
        """True if arrays of messages are allowed at present."""
        return False

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        """Act on a notification; size: bytes of its line."""

    def handle_stray_line(self, line: Line) -> None:
        """Note a line that is no message, and gets no response."""

    def on_end(self) -> None:
        """The peer has hung up, and handlers may still finish; or we have closed."""

    def on_close(self) -> None:
        """The connection is closed."""

    # Errors in the words of this end

    def error_text(self, error: BaseException) -> str:
        return error_text(error)

    def closed_error(self) -> ConnectionClosed:
        raise NotImplementedError

    def timeout_error(self, reason: str) -> RequestTimeout:
        return RequestTimeout(reason)


# Factories of taps, which look at all lines of a connection; or of None.  A tap has
# show(arrow, data), with ">" to the server or "<" to the client, and close(); neither
# raises anything.
TAPS: list[Callable[[Connection], Any]] = []


class Connection:
    """One end of a JSON-RPC connection over two binary streams: a client's.

    It knows two notifications, cancelled and progress, and that `initialize` is never
    cancelled.  All other methods are the session's.  One thread reads; requests of the
    peer that need time run on the pool.

    own_input: `reader` is ours: drained, and closed.  responds: whether the peer's
    requests are answered.  answers_all: whether invalid messages are answered, too; if
    both ends did so, they could exchange errors for ever.

    Its end: `ending` is set (the peer has hung up, or we close), requests of ours fail,
    handlers may finish, `closed` is set, requests still in flight are cancelled.
    """

    owner = "Client"  # has the option that limits a line
    arrow_in, arrow_out = "<", ">"
    senders_may_block = False
    answers_all = False
    responds = True
    request_class: type[Any] = IncomingRequest

    def __init__(self, session: Session, reader: ByteStream, writer: ByteStream, *,
                 own_input: bool, pool: ThreadPool, max_message_bytes: int = 16 << 20,
                 max_depth: int = MAX_DEPTH) -> None:
        self.session, self.pool = session, pool
        self.max_message_bytes, self.max_depth = max_message_bytes, max_depth
        self._lines = split_lines(read_chunks(reader), max_message_bytes)
        self._own_input = reader if own_input else None
        self.callbacks = ThreadPool("mcp callbacks", 1)  # handlers of notifications
        self.taps: list[Any] = []
        self.ids = itertools.count(1)    # for our requests

        self.pid = os.getpid()
        self.lock = threading.RLock()    # guards what the section's head lists
        self.ending = False
        self.closed = False
        self.incoming = IncomingRequests()
        self.outgoing: Requests[OutgoingRequest] = Requests()
        self.outbox = Outbox(self, writer)
        self._output_failed = False
        self.why_closed = ""             # if it was this end, and for a reason
        self.waiting_since = INFINITE    # since when the reader waits for a line
        self.peer_gone = threading.Event()  # our input has ended

    def start(self, tapped: bool = True) -> None:
        """Begin to read on another thread; RuntimeError: none can be started."""
        for name in LEFT_OUT:
            if name.startswith("variable ") and name[9:] in os.environ:
                warn(f"mcp_min: {left_out(name)}\n")
        try:
            if tapped:
                self.taps += [tap for make in TAPS if (tap := make(self))]
        finally:  # also if one raises: close() waits for the end of input
            try:
                self.start_reading()
            except RuntimeError:
                self.peer_gone.set()  # nobody will see its end
                if self._own_input:
                    self._own_input.close()
                raise

    def start_reading(self) -> None:
        start_thread("mcp reader", self._read)

    def _read(self) -> None:
        try:
            while (line := self.next_line()) is not None:
                self.receive(line)
        finally:
            self.end_of_input()

    def raise_closed(self) -> NoReturn:
        raise self.session.closed_error()

    # -- sending

    def send(self, message: Json) -> None:
        """Send a message; ValueError or TypeError if it is not JSON."""
        self._put(encode(message), self.outbox)

    def _put(self, line: bytes, sink: Any) -> None:
        with self.lock:
            sink.put(line)
        self.outbox.flush(may_block=False)  # the reader must not block in a full pipe

    # -- receiving

    def next_line(self) -> Line | None:
        """Read a line; None at the end."""
        # After close() we read a stream that is ours to its end: the peer must not
        # block in a full pipe, and the end shows that it has closed.  Another we must
        # not touch: its owner may close it, and its descriptor may be used again.
        if self.closed and self._own_input is None:
            return None
        self.waiting_since = monotonic()
        line = next(self._lines, None)
        self.waiting_since = INFINITE
        return line

    def receive(self, line: Line) -> None:
        """Act on a line; raises nothing."""
        for tap in self.taps:
            tap.show(self.arrow_in, line)
        try:
            if not line or line.isspace() or self.closed:
                return
            if len(line) > self.max_message_bytes:
                raise Oversized(CONTENT_TOO_LARGE, "")
            max_memory = self.max_message_bytes * MAX_GROWTH
            message = decode(line, self.max_depth, max_memory)
            size = len(line)
            if size > REQUEST_COST:
                size = cost_of(line, exact=self.incoming.bytes > EXACT_FROM)
            if type(message) is list:
                self._route_batch(message, line, size)
            else:
                self._route(message, line, size, self.outbox)
        except McpError as error:
            self._refuse_line(error, line)
        except BaseException:
            self.why_closed = "an internal error, see stderr"
            self.close()  # a response may be lost, and its caller must not wait for it
            log_exception("mcp_min: internal error")

    def _route_batch(self, messages: list[Any], line: Line, size: int) -> None:
        most = MAX_BATCH if self.answers_all else len(messages)
        if not (self.session.allows_batches() and 0 < len(messages) <= most):
            raise McpError(INVALID_REQUEST, "Invalid request: a batch is not allowed "
                           f"now, is empty, or has over {MAX_BATCH} messages")
        sink = self.sink_of_batch(len(messages))
        for message in messages:
            self._route(message, line, size, sink)

    def sink_of_batch(self, size: int) -> Any:
        """What takes the responses to a batch of so many messages."""
        return self.outbox

    def _route(self, message: Any, line: Line, size: int, sink: Any) -> None:
        try:
            kind = classify(message)
            if kind == "request":
                self._handle_request(message, sink, size)
                return
        except McpError as error:
            is_response = type(message) is dict and "method" not in message
            if is_response and self.answers_all:  # or a request that lacks "method"
                with self.lock:
                    is_response = self.outgoing.find(message.get("id")) is not None
            if not is_response:
                request_id = valid_id(as_object(message).get("id"))
                self._send_error(request_id, error, line, sink)
                return
            kind = "response"  # a malformed one: parse_response will report it
        if kind == "response":
            self._handle_response(message, line, size)
        else:
            self._handle_notification(message, size)
        if sink is not self.outbox:
            self._put(b"", sink)  # tells a batch that this one has no response

    def _refuse_line(self, error: McpError, line: Line) -> None:
        """Answer a line that was not parsed, or fail the call that it answers."""
        request_id, member = id_and_member(line)
        is_response = member in (b"result", b"error")
        request = self._take_outgoing(request_id) if is_response else None
        if error.code == CONTENT_TOO_LARGE:
            what = f"The response to {request.label}" if request else "A message"
            size = self.max_message_bytes / (1 << 20)
            error.message = (f"{what} has over {size:g} MiB: "
                             f"{self.owner}(max_message_bytes=…)")
        if request:  # a new error: the traceback of this one keeps the line in memory
            if isinstance(error, Oversized):
                error = McpError(error.code, error.message)
            else:
                error = invalid_response(error.message)
            request.end(Outcome(None, error))
        elif not isinstance(error, Unparsed):  # its syntax is wrong: we look for no id
            self._send_error(None, error, line, self.outbox)
        elif is_response:  # to nothing that is known
            self.session.handle_stray_line(line)
        else:
            self._send_error(request_id, error, line, self.outbox)

    def _send_error(self, request_id: int | str | None, error: McpError, line: Line,
                    sink: Any) -> None:
        """Answer a message that cannot be accepted; request_id: None if it has none."""
        response = b""
        if self.answers_all or (request_id is not None and self.responds):
            # id null is JSON-RPC 2.0, though not in MCP's schemas.
            response = encode(error_response(request_id, error))
        else:
            self.session.handle_stray_line(line)
        self._put(response, sink)

    def _handle_request(self, message: Json, sink: Any, size: int) -> None:
        """Enter a request into the table, or raise McpError, and run its handler."""
        on_reader = self.session.is_for_reader(message["method"])
        request = self.request_class(self, message, sink, size, on_reader)
        with self.lock:
            if self.closed or not self.responds:
                return
            self.incoming.add(request)
        if on_reader:
            self.serve_request(request)
        else:
            self.run_handler(request)

    def _handle_response(self, message: Json, line: Line, size: int) -> None:
        request = self._take_outgoing(message.get("id"))
        if request:
            request.respond(message, len(line), size)
        elif message.get("id") is None:
            self.session.handle_stray_line(line)
        # Otherwise its id is unknown, it is late, or it is a second response.

    def _take_outgoing(self, request_id: object) -> OutgoingRequest | None:
        """The request of ours that a response is for; the caller must end it."""
        with self.lock:
            request = self.outgoing.find(request_id)
            return request and self.outgoing.pop(request.id)

    def _handle_notification(self, message: Json, size: int) -> None:
        method, names = ALIASES.get(message["method"], (message["method"], {}))
        params = {names.get(key, key): value
                  for key, value in as_object(message.get("params")).items()}
        if method == CANCELLED:
            with self.lock:
                request = self.incoming.find(params.get("requestId"))
            if request and request.cancel(params.get("reason")):
                return  # otherwise it may end a subscription: the session's
        if method == PROGRESS and type(params.get("progress")) in (int, float):
            with self.lock:
                asked = self.outgoing.find(params.get("progressToken"))
                if asked:
                    asked.note_progress(params, size + REQUEST_COST)
        self.session.handle_notification(method, params, size)

    # -- serving

    def run_handler(self, request: IncomingRequest) -> None:
        """Run the handler of a request on a thread of the pool."""
        try:
            self.pool.submit(partial(self.serve_request, request))
        except RuntimeError as error:  # no thread can be started for it
            request.refuse(McpError(INTERNAL_ERROR, str(error)))

    def serve_request(self, request: IncomingRequest) -> None:
        """Call the session's handler for a request, and send its outcome."""
        try:
            if not request.begin():
                return
            result = self.session.handle(request)
            if result is not NO_RESPONSE_YET:
                request.respond(result)
        except McpError as error:
            request.refuse(error)
        except BaseException as error:
            if request.cancelled:
                return  # nobody waits, and the error follows from the cancellation
            if not self.follows_from_end(error):
                log_exception(f"mcp_min: {request.method} failed")
            request.refuse(McpError(INTERNAL_ERROR, self.session.error_text(error)))
        finally:
            request.end()

    # -- ending

    def follows_from_end(self, error: BaseException) -> bool:
        """True if the error merely reports that the peer hung up while we waited."""
        return self.ending and isinstance(error, ConnectionClosed)

    def end_of_input(self) -> None:
        """The peer has hung up."""
        self.peer_gone.set()
        self._begin_to_end()
        if self._own_input:
            with suppress(Exception):  # of a transport that somebody else has written
                self._own_input.close()
        self.drain()
        self.close()

    def drain(self) -> None:
        """Let handlers finish, and what they have sent be written."""

    def output_failed(self, at_once: bool) -> None:
        """Writing failed, as when the peer has ended: read what it wrote, and close."""
        with self.lock:
            again, self._output_failed = self._output_failed, True
        if at_once:
            self.why_closed = "over 64 MiB that the peer has not read were queued"
            self.close()
        elif not again:
            try:
                start_thread("mcp closing", partial(self.close_when_read, 0.2))
            except RuntimeError:  # as when the interpreter ends
                self.close()

    def close_when_read(self, seconds: float) -> None:
        """Close when nothing has come for this long."""
        while not self.peer_gone.wait(seconds):
            if monotonic() - self.waiting_since > seconds:
                return self.close()

    def _begin_to_end(self) -> None:
        """Fail our pending requests; a second call does nothing."""
        with self.lock:
            if self.ending:
                return
            self.ending = True
            requests = [*self.outgoing.values()]
            self.outgoing.clear()
        for request in requests:
            request.fail()
        self.session.on_end()

    def close(self) -> None:
        """Close at once: calls fail, handlers are cancelled, threads end."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.outbox.release(len(self.outbox.take()))
            requests = [*self.incoming.values()]
        try:
            for request in requests:
                request.cancel()
            self._begin_to_end()
            for tap in self.taps:
                tap.close()
        finally:
            self.session.on_close()


# -- 7. Validation ---------------------------------------------------------------------
# Of part II, or chapter schemas.
#
# A schema is read once, into a tree of Nodes.  To apply a node to a value is an
# Evaluation: it finds Problems, replaces text by the JSON in it where other JSON is
# asked for, and makes the object that the value stands for.
#
# With "properties": {"days": {"type": "integer"}} and the arguments {"days": "5"}:
#
#     Evaluation of the whole    an object; "properties" applies to its parts:
#     Evaluation at ("days",)    "5" is no integer, but the JSON in it is: `value` is 5
#                                (with "x": Problem "days: expected integer, got …")
#     of the whole again         `value` is {"days": 5}; `result` is what its node makes
#
# One table, KEYWORDS, says what the argument of each keyword may be and how it is
# applied.  It covers what most hints and forms need of JSON Schema 2020-12.  Others are
# refused, or ignored if they only annotate.

__all__ += ["validate", "SchemaError"]

MAX_STEPS = 500_000   # of one validation: about a second; a step applies a schema
LOOK_COST = 0.05      # steps for each part, name or character that is looked at
MAX_FOUND = 10_000    # problems of a value that are counted
MAX_PROBLEMS = 20     # and listed
MAX_CHOICES = 100     # listed in a problem; more are counted
MAX_TEXT = 2000       # characters of what a problem says
MAX_TEXT_MEMORY = 1 << 20  # bytes of JSON in a text; it is not charged to the peer
Path = tuple[Any, ...]    # the keys and indices that lead to a part of a value
MISSING: Any = object()   # marks an absent default or value
UNSTATED: Any = object()  # marks a default that the schema does not state


class SchemaError(Error, ValueError):
    """A schema cannot be used.

    It is malformed or of another dialect, a reference leads out of the document, or to
    apply it is more work than the limits above allow.
    """


class Problem(namedtuple("Problem", "path text value", defaults=(MISSING,))):
    """What is wrong with a part of a value; the message is formatted when it is read.

    text: what was expected; without `value` the whole message.
    """

    @property
    def field(self) -> str:
        """The place of the part: `user.tags[1]`, or "" for the value as a whole."""
        text = ""
        for key in self.path:
            if isinstance(key, int):
                text += f"[{key}]"
            else:
                text += f".{key:.60}"
        return " ".join(text.split()).lstrip(".")

    @property
    def issue(self) -> str:
        if self.value is MISSING:
            return str(self.text)
        actual = f"an {json_type(self.value)}"
        if not isinstance(self.value, (list, tuple, dict)):  # these may hold secrets
            actual = show(self.value)
        return f"expected {self.text}, got {actual}"

    def __str__(self) -> str:
        return " ".join(f"{self.field}: {self.issue}".split()).lstrip(": ")


def validate(value: object, schema: object) -> list[str]:
    """Return a readable line for each problem of `value`; [] if it matches `schema`.

    Validates as JSON Schema 2020-12 says; `format` only annotates.  Work is bounded,
    except that Python's `re` cannot be stopped: a hostile `pattern` can take
    exponential time.

    Raises:
        SchemaError: the schema cannot be used, or takes over a second to apply.
    """
    return Validator(schema).problems(value)


# Values as JSON Schema sees them.

JSON_TYPES = {type(None): "null", bool: "boolean", int: "number", float: "number",
              str: "string", list: "array", tuple: "array", dict: "object"}


def json_type(value: object) -> str:
    """The name of a value's type; "number" for integers, too."""
    if isinstance(value, float) and not abs(value) < INFINITE:
        return "unknown type"
    for cls in type(value).__mro__:
        if cls in JSON_TYPES:
            return JSON_TYPES[cls]
    return "unknown type"


def json_in_text(text: str, types: Iterable[str]) -> object:
    """The JSON that a text contains, if it is of one of these types; or the text."""
    if text != text.strip():
        return text
    try:  # as strict as for a message
        content = decode(
            text.encode("utf-8", "surrogatepass"), MAX_DEPTH, MAX_TEXT_MEMORY)
    except McpError:
        return text
    if content is None:  # "null" is not taken for null
        return text
    if type(content) is int and "integer" in types:  # nor is "5.0" for an integer
        return content
    return content if JSON_TYPES[type(content)] in types else text


def show(value: object) -> str:
    """A value in a short line of JSON."""
    if isinstance(value, (str, list)):
        value = value[:80]
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 60:
        text = text[:59] + "…"
    return text


def first_texts(items: Iterable[T], most: int, text: Callable[[T], str]) -> list[str]:
    """The texts of items; of very many, only of the first."""
    items = [*items]
    texts = [text(item) for item in items[:most]]
    if len(items) > most:
        texts.append(f"… and {len(items) - most} more")
    return texts


def join_first(choices: Iterable[Any], text: Callable[[Any], str] = show) -> str:
    """The texts of choices, each cut; of very many, only of the first."""
    texts = first_texts(choices, MAX_CHOICES, lambda choice: text(choice)[:60])
    return ", ".join(texts) or "none"


write_sorted = json.JSONEncoder(sort_keys=True, default=repr).encode


def canonical(value: object) -> str:
    """Text that is equal for values that JSON Schema calls equal, such as 1 and 1.0.

    The hashes of text are salted, so nobody can craft values whose hashes collide.
    """
    text = write_sorted(value)
    if "." in text or "e" in text:
        text = write_sorted(json.loads(text, parse_float=integer_or_float))
    return text


def integer_or_float(digits: str) -> float:
    number = float(digits)
    if number % 1 == 0 and abs(number) < 1e22:  # 1e308 has 309 digits
        return int(number)
    return number


def with_parts(whole: Any, parts: dict[Any, Any]) -> Any:
    """An object or a list, or a copy of it in which these parts are replaced."""
    if parts:
        whole = whole.copy()
    for key, part in parts.items():
        whole[key] = part
    return whole


# Reading.

DIALECTS = ["//json-schema.org/draft/2020-12/schema"]
ANY = "any"
FALSE: Json = {"not": {}}  # the schema `false`
CLASSES: Any = {  # see Node.accepts; a float must be finite, too
    (): object, ("string",): str, ("boolean",): bool, ("integer",): int,
    ("number",): float, ("object",): dict, ("array",): list}


class Node(dict):  # type: ignore[type-arg]
    """A schema that was read: its keywords, with nodes for the schemas in them.

    source: the schema as it was written.  base: its URI.  asking: the nodes of its
    document that ask what others have evaluated; if there are any, all branches of an
    `anyOf` count, not only the first that matches.  size: how many names and schemas it
    has.  accepts: a class all of whose instances match unchanged (`object`: any value),
    or None; it saves the evaluation of such a part.
    """

    base = ""
    asking: Sequence[Node] = ()

    def __init__(self, keywords: Json, source: Json) -> None:
        super().__init__(keywords)
        self.required = {*self.get("required", ())}
        self.source = source
        self.make: Any = getattr(source, "make", None)
        self.optional = getattr(source, "optional", False)
        self.make_validates = getattr(source, "make_validates", False)
        self.types: list[str] = self.get("type", [])
        self.size = sum(len(argument) for argument in self.values()
                        if isinstance(argument, (list, dict)))

    @cached_property
    def applied(self) -> list[tuple[str, Any, str]]:
        """The keywords to apply, in order: for which type, how, and the name."""
        rows = [KEYWORDS[name] for name in self if KEYWORDS[name].apply]
        rows.sort(key=operator.attrgetter("rank"))
        return [(row.kind, row.apply, row.name) for row in rows]

    @cached_property
    def accepts(self) -> Any:
        if self.applied or self.make not in (None, int, float):
            return None
        return CLASSES.get((*self.types,))

    def takes(self, value: Any) -> bool:
        """True if its class alone proves that a value matches unchanged."""
        if self.accepts is not type(value):
            return self.accepts is object
        # value - value is not 0 for infinity and NaN
        return self.accepts is not float or value - value == 0.0

    @cached_property
    def flat(self) -> Json:
        """The properties of an object, if it asks for nothing but their types."""
        known = {"type", "properties", "required", "additionalProperties"}
        properties: Json = self.get("properties", {})
        return properties if self.keys() <= known and not self.make else {}

    def fits(self, value: object) -> bool:
        """True if the classes of its parts prove that a value matches unchanged."""
        # A shortcut for the arguments of most calls.
        if not self.flat or type(value) is not dict or "object" not in self.types:
            return self.takes(value)
        for name, part in value.items():
            node = self.flat.get(name)
            if node is None or not node.takes(part):
                return False
        return value.keys() >= self.required


class Budget:
    """The work that is left for a validation; unbounded for our own data."""

    def __init__(self, bounded: bool = True) -> None:
        self.steps: float = MAX_STEPS if bounded else INFINITE

    def spend(self, looks: int) -> None:
        """Count a step, and what is looked at in it."""
        self.steps -= 1 + looks * LOOK_COST
        if self.steps < 0:
            raise SchemaError(f"checking takes over {MAX_STEPS:,} steps")


class SchemaReader:
    """Makes the nodes of one schema document.  SchemaError: it is a bad one."""

    def read_document(self, document: object) -> Node:
        """Check a schema, as any value is checked, and read it."""
        if isinstance(document, dict):
            self.check_dialect(document)
        for problem in Evaluation(SCHEMA, document, Budget()).run().problems:
            raise SchemaError(str(problem))
        return self.read(document)

    def read(self, schema: Any) -> Node:
        if isinstance(schema, bool):
            schema = {} if schema else FALSE
        return self.node(self.translate(schema), schema)

    def translate(self, source: Json) -> Json:
        """Return the schema in the keywords of the table."""
        self.check_dialect(source)
        return {**source}

    def check_dialect(self, source: Json) -> None:
        """Raise SchemaError for a `$schema` that is not known."""
        uri = str(source.get("$schema", DIALECTS[0]))
        name = uri.rpartition(":")[2].rstrip("#")
        if name not in DIALECTS:
            absent = "".join(left_out(f"dialect {part}") for part in name.split("/"))
            known = ", ".join(DIALECTS)
            raise SchemaError(absent or f"$schema: expected a known dialect ({known}), "
                              f"got {show(uri)}")

    def node(self, keywords: Json, source: Json) -> Node:
        arguments = {}
        for name, argument in keywords.items():
            if name in KEYWORDS:
                arguments[name] = self.argument(argument, KEYWORDS[name].expected)
            elif left_out(f"keyword {name}"):
                raise SchemaError(left_out(f"keyword {name}"))
        return Node(arguments, source)

    def argument(self, argument: Any, expected: Node) -> Any:
        """What a node has for the argument of a keyword."""
        if expected is SCHEMA:
            return self.read(argument)
        if expected is SCHEMAS:
            return [*map(self.read, argument)]
        if expected is SCHEMA_MAP:
            return {name: self.read(part) for name, part in argument.items()}
        if expected is CHOICES:
            return read_choices(argument)
        if expected is CHOICE:
            return read_choices([argument])
        if expected is TYPES and isinstance(argument, str):
            return [argument]
        return argument


# Applying.


class Evaluation:
    """A node that is applied to a value.

    problems: what is wrong with the value.  lenient: a text is parsed as JSON where the
    schema takes the type of the result, but no text.  value: the value after this.
    result: the object that it stands for.  evaluated: the names or indices that a
    keyword has applied to; `items` and the like skip these.
    """

    __slots__ = ("budget", "evaluated", "lenient", "node", "outer", "path", "problems",
                 "result", "value")

    def __init__(self, node: Node, value: Any, budget: Budget, lenient: bool = False,
                 path: Path = (), outer: Evaluation | None = None) -> None:
        self.node = node
        self.value = self.result = value
        self.budget = budget
        self.lenient = lenient
        self.path = path
        self.outer = outer
        self.problems: list[Problem] = []
        self.evaluated: set[str | int] = set()

    def run(self) -> Evaluation:
        """Apply the node, set the attributes, and return self."""
        node, value = self.node, self.value
        self.budget.spend(node.size)
        if value is None and node.optional:
            return self
        if node.make_validates and self.lenient:
            with suppress(Exception):  # then the schema finds out what is wrong
                self.result = node.make(value)
                return self
        kind = self.convert_to(node.types)
        if kind:
            for applies_to, apply, keyword in node.applied:
                if applies_to in (kind, ANY):
                    apply(self, node[keyword])
        if node.make and not self.problems:
            self.construct()
        return self

    def convert_to(self, types: list[str]) -> str:
        """Return the type of the value; "" if it is none of these."""
        value = self.value
        if self.lenient and types and isinstance(value, str) and "string" not in types:
            self.budget.spend(len(value))
            self.value = self.result = value = json_in_text(value, types)
        kind = json_type(value)
        if not types or kind in types:
            return kind
        if kind == "number" and "integer" in types and value % 1 == 0:
            return kind
        self.refuse(" or ".join(types), value)
        return ""

    def construct(self) -> None:
        try:
            self.result = self.node.make(self.result)
        except Exception as error:  # of user code, such as __post_init__
            source = self.node.source
            form = source.get("format") or source.get("contentEncoding")
            if form:
                self.refuse(form, self.value)
            else:  # other texts may be secrets
                known = (ValueError, TypeError, ArithmeticError)
                text = str(error) if isinstance(error, known) else ""
                self.refuse(text[:200] or type(error).__name__)

    def apply(self, node: Node, value: object, *key: str | int,
              lenient: bool = False) -> Evaluation:
        path = (*self.path, *key)
        return Evaluation(node, value, self.budget, lenient, path, self).run()

    def refuse(self, text: str, actual: object = MISSING, *key: str | int) -> None:
        """Note a problem of the value, or of its part under a key."""
        text = text[:MAX_TEXT]
        self.budget.spend(len(text))
        if len(self.problems) < MAX_FOUND:
            self.problems.append(Problem((*self.path, *key), text, actual))

    def canonical(self, value: object) -> str:
        text = canonical(value)
        self.budget.spend(len(text))
        return text

    # -- parts of the value

    def apply_to_parts(self, parts: Iterable[tuple[str | int, Node]]) -> None:
        """Apply nodes to parts of the value, by name or index."""
        values, results = {}, {}
        for key, node in parts:
            part = self.value[key]
            self.evaluated.add(key)
            if node.takes(part):
                continue
            other = self.apply(node, part, key, lenient=self.lenient)
            self.problems += other.problems
            if len(self.problems) > MAX_FOUND:
                break
            if other.value is not part:
                values[key] = other.value
            if other.result is not part:
                results[key] = other.result
        if results:
            self.value = with_parts(self.value, values)
            self.result = with_parts(self.result, results)

    def apply_to_properties(self, properties: dict[str, Node]) -> None:
        self.apply_to_parts((name, node) for name, node in properties.items()
                            if name in self.value)

    def apply_to_others(self, node: Node) -> None:
        """Apply a node to every part that no keyword has applied to."""
        self.budget.spend(len(self.value))
        keys: Any = self.value
        if not isinstance(keys, dict):
            keys = range(len(keys))
        keys = [key for key in keys if key not in self.evaluated]
        if node.source != FALSE or not isinstance(self.value, dict):
            self.apply_to_parts((key, node) for key in keys)
        elif keys:
            known = join_first(self.node.get("properties", ()), str)
            for name in keys[:MAX_FOUND]:
                self.refuse(f"unknown; known are: {known}", MISSING, name)

    def require(self, names: list[str], reason: str = "required") -> None:
        for name in names:
            if name not in self.value:
                self.refuse(f"missing ({reason})", MISSING, name)

    def check_unique(self, wanted: bool) -> None:
        if wanted and len({*map(self.canonical, self.value)}) < len(self.value):
            self.refuse("items that differ", self.value)

    # -- the same value

    def check_enum(self, choices: tuple[set[str], str]) -> None:
        known, text = choices
        if self.problems:
            return
        # A large value is not written to be compared with short ones.
        may_match = not isinstance(self.value, (list, dict)) or any(
            one[0] in "[{" for one in known)
        if not (may_match and self.canonical(self.value) in known):
            self.refuse(text, self.value)

    def apply_not(self, node: Node) -> None:
        if not self.apply(node, self.value).problems:
            self.refuse("not allowed")

    def take(self, other: Evaluation) -> None:
        """Take over what another evaluation of the same value has found."""
        self.problems += other.problems
        self.evaluated |= other.evaluated
        if other.result is not self.value:
            self.result = other.result
        self.value = other.value

    def apply_any(self, nodes: list[Node]) -> None:
        self.choose(nodes, every=bool(self.node.asking))

    def apply_one(self, nodes: list[Node]) -> None:
        count = self.choose(nodes, True)
        if count > 1:
            self.refuse(f"fits {count} alternatives, and must fit one")

    def choose(self, nodes: list[Node], every: bool) -> int:
        """Take the first branch that matches, or every one; return how many.

        A value that matches some branch unconverted is left alone, even if an earlier
        branch would take it converted.
        """
        for lenient in [False, True] if self.lenient else [False]:
            failed = []
            for node in nodes:
                branch = self.apply(node, self.value, lenient=lenient)
                if branch.problems:
                    failed.append(branch.problems)
                    continue
                self.take(branch)
                if not every:
                    return 1
            if len(failed) < len(nodes):
                return len(nodes) - len(failed)
        self.take_best(failed)
        return 0

    def take_best(self, failed: list[list[Problem]]) -> None:
        """Report the branch that came closest: the fewest problems inside the value.

        If all fail as a whole, report what each expects.
        """
        within = [problems for problems in failed if problems[0].value is MISSING
                  or problems[0].path != self.path]
        if within:
            fewest = min(within, key=len)
            self.problems += fewest
        else:
            texts = dict.fromkeys(problems[0].text for problems in failed)
            self.refuse(" or ".join(texts) or "nothing", self.value)


def compared(holds: Callable[[Any, Any], bool],
             text: str) -> Callable[[Evaluation, Any], None]:
    """Make the check that the value, or its length, has a relation to a limit."""
    def check(evaluation: Evaluation, limit: Any) -> None:
        size = evaluation.value
        if hasattr(size, "__len__"):
            size = len(size)
        if not holds(size, limit):
            evaluation.refuse(text.format(show(limit)), size)

    return check


class Keyword(namedtuple("Keyword", "name kind expected apply rank",
                         defaults=(None, 0))):
    """A keyword of JSON Schema.

    kind: the type of the values that it is for; `ANY`: it applies in place.  expected:
    a node that its argument must match.  apply: how it is applied; None: others look it
    up.  rank: lower ones come first, as `items` applies to what others have left.
    """


def read_choices(choices: list[Any]) -> tuple[set[str], str]:
    """The canonical texts of the choices, and the text for the problem."""
    text = join_first(choices)
    if len(choices) > 1:
        text = f"one of {text}"
    return {*map(canonical, choices)}, text


def list_of(node: Node) -> Node:
    return Node({"type": ["array"], "items": node}, {})


def map_of(node: Node) -> Node:
    return Node({"type": ["object"], "additionalProperties": node}, {})


# What the argument of a keyword may be.
BOOLEAN = Node({"type": ["boolean"]}, {})
STRING = Node({"type": ["string"]}, {})
NUMBER = Node({"type": ["number"]}, {})
COUNT = Node({"type": ["integer"], "minimum": 0}, {})
TYPE = Node({"enum": read_choices(
    ["null", "boolean", "integer", "number", "string", "array", "object"])}, {})
TYPES = Node({"anyOf": [TYPE, list_of(TYPE)]}, {})
CHOICE = Node({}, {})
CHOICES = list_of(CHOICE)
SCHEMA = Node({"type": ["object", "boolean"], "properties": {}}, {})
SCHEMAS = list_of(SCHEMA)
SCHEMA_MAP = map_of(SCHEMA)
KEYWORDS: dict[str, Keyword] = {}
IN_PLACE_KEYWORDS: set[str] = set()


def add_keywords(*rows: Any) -> None:
    for row in rows:
        keyword = Keyword(*row)
        KEYWORDS[keyword.name] = keyword
        SCHEMA["properties"][keyword.name] = keyword.expected
        if keyword.apply and keyword.kind == ANY:
            IN_PLACE_KEYWORDS.add(keyword.name)


# Ranks: 0 the value as a whole, 1 its parts, 2 parts that are left, 3 the same value
# again, 4 in place.
add_keywords(
    ("type", ANY, TYPES),
    ("maximum", "number", NUMBER, compared(operator.le, "at most {}")),
    ("minimum", "number", NUMBER, compared(operator.ge, "at least {}")),
    ("exclusiveMaximum", "number", NUMBER, compared(operator.lt, "less than {}")),
    ("exclusiveMinimum", "number", NUMBER, compared(operator.gt, "more than {}")),
    ("maxLength", "string", COUNT, compared(operator.le, "at most {} characters")),
    ("minLength", "string", COUNT, compared(operator.ge, "at least {} characters")),
    ("maxItems", "array", COUNT, compared(operator.le, "at most {} items")),
    ("minItems", "array", COUNT, compared(operator.ge, "at least {} items")),
    ("maxProperties", "object", COUNT, compared(operator.le, "at most {} properties")),
    ("minProperties", "object", COUNT, compared(operator.ge, "at least {} properties")),
    ("required", "object", list_of(STRING), Evaluation.require),
    ("properties", "object", SCHEMA_MAP, Evaluation.apply_to_properties, 1),
    ("additionalProperties", "object", SCHEMA, Evaluation.apply_to_others, 2),
    ("items", "array", SCHEMA, Evaluation.apply_to_others, 2),
    ("uniqueItems", "array", BOOLEAN, Evaluation.check_unique, 3),
    ("enum", ANY, CHOICES, Evaluation.check_enum, 3),
    ("const", ANY, CHOICE, Evaluation.check_enum, 3),
    ("not", ANY, SCHEMA, Evaluation.apply_not, 4),
    ("anyOf", ANY, SCHEMAS, Evaluation.apply_any, 4),
    ("oneOf", ANY, SCHEMAS, Evaluation.apply_one, 4))


class Validator:
    """A schema document that was read.  SchemaError: it cannot be used."""

    reader: ClassVar[type[SchemaReader]] = SchemaReader

    def __init__(self, document: object) -> None:
        try:
            encode(document)  # TypeError or ValueError: it is not JSON
            self._root = self.reader().read_document(document)
        except SchemaError:
            raise
        except RecursionError:
            raise SchemaError("the schema nests too deeply") from None
        except (TypeError, ValueError) as error:
            raise SchemaError(f"it is not JSON, or has a bad URI: {error}") from None

    def problems(self, value: object, bounded: bool = True) -> list[str]:
        """A readable line for each problem.  SchemaError: it is too much work."""
        if self._root.fits(value):
            return []
        problems = self._evaluate(value, Budget(bounded)).problems
        return first_texts(problems, MAX_PROBLEMS, str)

    def _evaluate(self, value: object, budget: Budget,
                  lenient: bool = False) -> Evaluation:
        try:
            return Evaluation(self._root, value, budget, lenient).run()
        except RecursionError:
            raise SchemaError("checking nests too deeply (or $ref is a loop)") from None


# == Part II: a server =================================================================
# `Server`, and what a handler can do: the process's stdin and stdout, what a server
# knows of its client, signatures that become schemas, contexts and questions,
# registries.  It needs part I.

import enum
import typing
from contextlib import ExitStack, contextmanager

# -- 8. Stdio, serving -----------------------------------------------------------------
# A stray print, a C library or a child process that writes to fd 1 would corrupt the
# messages, and a child that reads fd 0 would take some of them.  So a server duplicates
# both descriptors before it reads the first message, and uses the duplicates; 0 then
# leads to the null device and 1 to stderr.  We read and write them unbuffered: a thread
# inside sys.stdin at exit would abort the interpreter.

__all__ += ["stdio_server"]

streams_taken = threading.Lock()  # held while a server uses stdin and stdout


@contextmanager
def stdio_server() -> Iterator[tuple[ByteStream, ByteStream]]:
    """Take stdin and stdout for a server: `with stdio_server() as (reader, writer):`.

    Meanwhile everything printed goes to stderr; at the end both are restored (if the
    client has not hung up, a thread may still take the next bytes of stdin).  Enter it
    before you import a module that prints, then call `server.serve(reader, writer)`.

    Raises:
        RuntimeError: a server of this process has them already.
        OSError: one of them is closed.
    """
    if not streams_taken.acquire(blocking=False):
        raise RuntimeError("a server of this process already has stdin and stdout; "
                           "put `server.run()` under `if __name__ == '__main__':`")
    try:
        for fd, name in (0, "stdin"), (1, "stdout"):
            try:
                os.fstat(fd)
            except OSError as error:
                raise OSError(error.errno, f"{name} is closed") from None
        # If fd 2 is closed, os.open returns 2.  Keep it open, so that os.dup does not
        # return 2, where others write.
        null = os.open(os.devnull, os.O_RDWR)
        # One duplicate of fd 0 to restore it, one to read from; that is not closed at
        # the end, because a thread may be inside it.
        stdin, reader, writer = files = [
            open(os.dup(fd), mode, buffering=0)  # noqa: SIM115
            for fd, mode in ((0, "rb"), (0, "rb"), (1, "wb"))]
        close_in_forked_children(*files)
        os.dup2(null, 0)
        os.dup2(2, 1)
        if null > 2:
            os.close(null)
        # What was printed before goes to stderr, not to the client; and what a tool
        # prints is there at once.
        was_line_buffered = flush_stdout(line_buffering=True)
        try:
            yield reader, writer
        finally:
            flush_stdout(was_line_buffered)
            for fd, file in (0, stdin), (1, writer):
                if not file.closed:  # as they are in a forked child
                    os.dup2(file.fileno(), fd)
                    file.close()
    finally:
        streams_taken.release()


def flush_stdout(line_buffering: bool) -> bool:
    """Flush stdout and set its line buffering; return the earlier setting."""
    stdout: Any = sys.stdout
    before: bool = getattr(stdout, "line_buffering", line_buffering)
    # Suppressed: there is no stdout, it is closed, or it is of another kind.
    with suppress(AttributeError, OSError, ValueError):
        stdout.flush()
        if before != line_buffering:
            stdout.reconfigure(line_buffering=line_buffering)
    return before


class Stopped(SystemExit):
    """Raised by SIGTERM or Ctrl-C while a server runs, with the exit status."""


@contextmanager
def stop_at_signals() -> Iterator[None]:
    """While a server runs, SIGTERM ends it with status 143, Ctrl-C with 130.

    Handlers that were there are restored at the end; one of the application for Ctrl-C
    stays in place.
    """
    import signal

    def stop(number: int, frame: object) -> None:
        raise Stopped(128 + number)

    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.SIGTERM, signal.SIGINT:
            before = signal.getsignal(number)
            if number == signal.SIGTERM or before is signal.default_int_handler:
                replaced[number] = before or signal.SIG_DFL
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)


# -- serving
# What a server adds to a connection: it reports progress, and lets handlers finish when
# its client hangs up.


class ServedRequest(IncomingRequest):
    """A request of a client, and what the contexts of its handlers share.

    peer: the client as of the request's arrival; then as the request sees it.  token:
    its progress token, or None.  answer_cost: what the largest answer to a question of
    its handler is charged.  steps: the results of `once`.
    """

    connection: ServerConnection
    where = "and is still at"  # how a report says where its handler is
    answer_cost = 0
    _progress = float("-inf")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.session = self.connection.session
        self.peer: Peer = self.session.peer
        self.cost += self.peer.cost
        self.token = None
        params = self.params
        if type(params) is dict and type(params.get("_meta")) is dict:
            self.token = valid_id(params["_meta"].get("progressToken"))
        self.steps: Json = {}
        self.contexts: dict[bool, Any] = {}   # by is_async
        self._asked: dict[str, object] = {}   # the keys of questions
        self._numbers = itertools.count(1)    # of questions without a key

    def context(self, is_async: bool) -> Any:
        """The context of its handlers that are `async def`, or that are not."""
        context = self.contexts.get(is_async)
        if context is None:
            context = self.contexts[is_async] = self.session.contexts[is_async](self)
        return context

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled()

    def key_of(self, question: Question[Any], key: str | None) -> str:
        """The key of a new question, by default its method and a number."""
        self.check_cancelled()
        with self.connection.lock:
            is_open = self.connection.incoming.has(self)
        if not is_open:
            raise McpError(INVALID_REQUEST, "The client cannot be asked: the request "
                           "has been answered, or it is a notification")
        key = key or f"{question.method}-{next(self._numbers)}"
        # In one step, because several threads may ask at once.
        first = object()
        if self._asked.setdefault(key, first) is not first:
            raise ValueError(f"asked before in this request: {key}")
        return key

    def end(self) -> None:
        self.contexts.clear()  # a cycle would keep the request in memory
        connection = self.connection
        with connection.lock:
            super().end()
            if connection.ending or connection.reads_file:
                connection.handler_ended.notify_all()

    def flush(self, may_block: bool) -> None:
        outbox = self.connection.outbox
        outbox.flush(may_block, may_block and outbox.is_crowded())

    def forget(self, hook: Job) -> None:
        """Do not call this hook any more."""
        with self.connection.lock:
            self._hooks = tuple(one for one in self._hooks if one != hook)

    def notify(self, method: str, params: Json, may_block: bool = True,
               progress: float = INFINITE) -> None:
        """Send a notification about this request; see `queue`."""
        self.queue(method, params, progress)
        self.flush(may_block)

    def queue(self, method: str, params: Json, progress: float = INFINITE) -> None:
        """Queue a notification for the next `flush`, unless the request was answered.

        progress: it is sent only if this has increased.
        """
        line = encode(notification(method, params))
        with self.connection.lock:
            if progress > self._progress and self.connection.incoming.has(self):
                if progress < INFINITE:
                    self._progress = progress
                self.connection.outbox.put(line)

    @property
    def in_batch(self) -> bool:
        return self.sink is not self.connection.outbox


class Batch:
    """The responses to an array of messages; the last one sends them all as an array.

    It stands in for an Outbox: `put` takes one line for each message of the array, b""
    for a message that has no response.  See basic of 2025-03-26, "Batching".
    """

    def __init__(self, connection: ServerConnection, size: int) -> None:
        self._connection, self._missing = connection, size
        self._responses: list[bytes] = []
        self._bytes = 0  # in these; the peer is charged them

    def put(self, response: bytes, request_id: object = None) -> None:
        connection = self._connection  # the caller holds its lock
        self._missing -= 1
        if response and connection.batched + len(response) > MAX_BACKLOG_BYTES:
            response = encode(error_response(request_id, McpError(
                INTERNAL_ERROR, "The responses to open batches are over "
                f"{MAX_BACKLOG_BYTES >> 20} MiB")))
        if response:
            self._responses.append(response.rstrip())
            self._charge(len(response))
        if not self._missing and self._responses:
            self._charge(-self._bytes)
            connection.outbox.put(b"[" + b",".join(self._responses) + b"]\n")

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._connection.batched += size
        self._connection.incoming.bytes += size


class ServerConnection(Connection):
    """A server's end of a connection.

    batched: bytes of responses that wait for others of their batch.
    keeps_reader_free: no handler runs on the thread that reads.
    """

    session: BaseServerSession
    owner = "Server"
    arrow_in, arrow_out = ">", "<"
    senders_may_block = True
    answers_all = True
    keeps_reader_free = True
    request_class = ServedRequest
    pool_class = ThreadPool

    def __init__(self, session: BaseServerSession, reader: ByteStream,
                 writer: ByteStream, *, own_input: bool, max_workers: int) -> None:
        options = session.options
        super().__init__(
            session, reader, writer, own_input=own_input,
            pool=self.pool_class("mcp worker", max_workers or options.max_workers),
            max_message_bytes=options.max_message_bytes, max_depth=options.max_depth)
        self._drain_seconds = min(threading.TIMEOUT_MAX, options.drain_seconds)
        self.reads_file = not can_hang_up(reader)
        if self.reads_file:
            self._lines = self._when_there_is_room(self._lines)
            self._drain_seconds = threading.TIMEOUT_MAX  # it merely ends: answer all
        self.handler_ended = threading.Condition(self.lock)
        self.batched = 0            # Connection.lock guards this
        self._lost: list[str] = []  # when the client had hung up, in words

    def sink_of_batch(self, size: int) -> Any:
        return Batch(self, size)

    def output_failed(self, at_once: bool) -> None:
        if at_once:
            self.why_closed = "the client has left over 64 MiB unread"
        self.close()  # nobody is there to be answered

    def _when_there_is_room(self, lines: Iterator[Line]) -> Iterator[Line]:
        """The lines of a file, which can wait."""
        for line in lines:
            with self.lock:
                self.handler_ended.wait_for(
                    lambda: self.closed or self.incoming.has_room())
            yield line

    def hand_over(self, request: IncomingRequest) -> bool:
        """The handler of this request is about to wait: let another thread read.

        False if no thread can be started.
        """
        return True  # the thread that reads runs no handlers

    def drain(self) -> None:
        deadline = monotonic() + self._drain_seconds
        with self.lock:
            self.handler_ended.wait_for(
                lambda: not self.incoming, self._drain_seconds)
            unfinished = len(self.incoming)
        self.callbacks.drain(deadline - monotonic())
        self.outbox.wait_until_written(deadline - monotonic())
        if unfinished:
            self._lost.append(f"{unfinished} of its requests were cancelled")
        if self.outbox.size and not self.closed:  # its output has not failed
            self._lost.append(f"{self.outbox.size} bytes were not written")

    def report_loss(self) -> None:
        """Warn of what was lost because the client had hung up."""
        if self._lost:
            warn(f"mcp_min: the client has hung up, so that {' and '.join(self._lost)}"
                 "; Server(drain_seconds=…) gives them more time\n")


def can_hang_up(stream: ByteStream) -> bool:
    """True if its end means that the peer has hung up; regular files merely end."""
    with suppress(AttributeError, OSError, ValueError):  # it has no descriptor
        return not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return not hasattr(stream, "getvalue")  # a BytesIO merely ends


# -- 9. Peer ---------------------------------------------------------------------------
# What a server knows of its client, which it learns from `initialize`: the revision on
# which both agree, the client's capabilities, and which messages it wants.

CONTENT_SINCE = {"audio": "2025-03-26", "resource_link": "2025-06-18"}
ALL_CONTENT_SINCE = max(CONTENT_SINCE.values())
MAX_QUESTION_SECONDS = 3600.0  # that a client may take, also if it reports progress


class Unwind(BaseException):
    """Ends a handler from within one of its questions, with a result or an error.

    `except Exception` does not catch it.  BaseServerSession.handle does.
    """

    def __init__(self, outcome: Outcome[Any]) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def misfit(text: str, error: ValueError, field: str) -> McpError:
    """The error for a value that does not fit; `data` has its first problem."""
    data = getattr(error, "data", {})
    issue = data.get("issue", str(error))
    return invalid_params(text, data.get("field") or field, issue)


def in_older_content(value: Any, version: str) -> Any:
    """A result with text in place of the blocks that a revision does not have."""
    if type(value) is list:
        return [in_older_content(part, version) for part in value]
    if not isinstance(value, dict):
        return value
    since = CONTENT_SINCE.get(str(value.get("type")), "")
    if version < since:
        name = value.get("title") or value.get("name") or value["type"]
        about = value.get("uri") or value.get("mimeType")
        return as_block(f"{name}: {about}")
    result = {**value}
    for key in {"content", "messages"} & value.keys():
        result[key] = in_older_content(value[key], version)
    return result


# What a client is notified of is a pair: (method, None) for a list, (method, URI) for a
# resource, (key of the filter, item) for your own.
Subscription = tuple[str, Any]


class Peer:
    """What a server knows of its client; see Context for the public attributes.

    methods: the rows of those that its revision has.  missing_code: of the error for a
    capability that the client has not declared.
    """

    # What a peer of another kind has instead
    methods = METHODS
    missing_code = INVALID_REQUEST

    # Agreed in `initialize`
    version = ""  # the revision
    cost = 0  # bytes of a large `initialize`: each request in flight keeps its Peer
    level: str | None = None  # the lowest of the log messages that are wanted

    def __init__(self, registry: Registry, connection: ServerConnection) -> None:
        self.registry, self.connection = registry, connection
        self.client_info: Json = {}
        self.client_capabilities: Json = {}
        self.subscriptions: set[Subscription] = set()

    def queue(self, method: str, params: Json) -> None:
        """Queue a notification that belongs to no request, for the next `flush`."""
        line = encode(notification(method, params))
        with self.connection.lock:
            self.connection.outbox.put(line)

    def flush(self) -> None:
        self.connection.outbox.flush(may_block=False)

    def validate(self, request: ServedRequest) -> None:
        """Raise McpError if this request cannot be served."""
        method = request.method
        if not self.version and method not in ("initialize", "ping"):
            raise McpError(INVALID_REQUEST, "Send `initialize` first")
        if method == "initialize" and request.in_batch:  # basic/lifecycle: MUST NOT
            raise McpError(INVALID_REQUEST, "`initialize` cannot be part of a batch")
        self.check_method(method)

    def check_method(self, method: str) -> None:
        """Raise McpError if this revision, or this server, does not have a method."""
        row = self.methods.get(method)
        if row is None:
            known = method in self.registry.methods
        else:
            needed, declared = row.capability, self.registry.capabilities
            known = not needed or declares(declared, needed)
        if not known:
            raise method_not_found(method)

    def describe(self, params: Json) -> Json:
        """Agree on the session, and return the result of `initialize`.

        See basic/lifecycle, "Initialization".
        """
        version = require_type(params.get("protocolVersion"), str, "protocolVersion")
        self.client_info = member(params, "clientInfo", dict)
        self.client_capabilities = member(params, "capabilities", dict)
        # If we do not have the client's version we offer another, without an error.
        self.version = version if version in LEGACY_VERSIONS else LEGACY
        if declares(self.registry.capabilities, "logging"):
            self.level = self.registry.first_level
        # Before `changes`: of what it declares, no change is missed.
        description = self.registry.description()
        for method, _ in self.registry.changes():
            self.subscriptions.add((method, None))
        return {"protocolVersion": self.version, "serverInfo": self.registry.info,
                **description}

    def finalize(self, method: str, result: Json) -> Json:
        """The result as it is sent in this revision."""
        if self.version < ALL_CONTENT_SINCE and method in METHODS:
            result = in_older_content(result, self.version)
        value = result.get("structuredContent")
        # Before 2026 structured content had to be an object.
        if value is not None and type(value) is not dict:
            return in_object(result, value)
        return result

    def translate(self, error: McpError) -> McpError:
        """The error as it is sent in this revision."""
        return error

    def bad_arguments(self, error: ValueError, of_tool: bool) -> Exception:
        """The error for bad arguments; for those of a tool it may be a result.

        Hosts show its text to a model, without its code.
        """
        text = f"Invalid arguments:\n{error}"
        if of_tool and REVISIONS[self.version].bad_arguments_are_results:
            return ToolError(text)
        return misfit(text, error, "arguments")

    def logs(self, level: str) -> bool:
        """True if the client has asked for log messages of this level."""
        if self.level is None:
            return False
        return LEVELS.index(level) >= LEVELS.index(self.level)

    # -- questions

    def answers_to(self, request: ServedRequest,
                   questions: dict[str, Question[Any]]) -> Json | None:
        """The answers, if the client need not be asked."""
        return None

    def check_declared(self, questions: dict[str, Question[Any]]) -> None:
        """Raise McpError if a question needs what the client did not declare."""
        for question in questions.values():
            if question.method not in CLIENT_REQUESTS:
                continue
            missing = undeclared(question.method, question.params,
                                 self.client_capabilities, self.version)
            if missing:
                [(name, details)] = missing.items()
                text = (f"The client cannot be asked: in revision {self.version} it "
                        f"did not declare {'.'.join([name, *details])}.  (A handler "
                        "sees what it declared in ctx.client_capabilities; mcp_min's "
                        "Client declares what it has a handler for.)")
                data = {"requiredCapabilities": missing}
                raise McpError(self.missing_code, text, data)

    @contextmanager
    def asked(self, request: ServedRequest, questions: dict[str, Question[Any]],
              timeout: float | None) -> Iterator[dict[str, OutgoingRequest]]:
        """Send the questions; withdraw those that are not answered at the end.

        Raises:
            McpError: the client cannot be asked.
        """
        self.check_declared(questions)
        if not self.connection.hand_over(request):
            raise RuntimeError("the client cannot be asked: no thread can be started "
                               "that would read its answer")
        seconds = INFINITE if timeout is None else timeout
        sent: dict[str, OutgoingRequest] = {}
        try:
            for key, question in questions.items():
                sent[key] = asked = AskedRequest(request, question.method, seconds)
                asked.send(question.params, with_token=True)
                request.on_cancel(asked.cancel)
            yield sent
        finally:
            for one in sent.values():
                one.give_up("cancelled")
                request.forget(one.cancel)


class AskedRequest(OutgoingRequest):
    """A question.  Its answer is charged to the request whose handler asks.

    Of several only the largest is: we take it that a handler which asks often keeps few
    of the answers.
    """

    limit_name = "an hour"

    def __init__(self, request: ServedRequest, method: str, timeout: float) -> None:
        super().__init__(request.connection, method, timeout,
                         monotonic() + MAX_QUESTION_SECONDS)
        self._request = request

    def respond(self, message: Json, size: int, cost: int = 0) -> None:
        incoming, request = self.connection.incoming, self._request
        with self.connection.lock:
            has_room = incoming.bytes - request.cost <= MAX_BACKLOG_BYTES
            is_wanted = has_room and incoming.has(request)
            more = cost - request.answer_cost
            if is_wanted and more > 0:
                request.charge(more)
                request.answer_cost = cost
        if is_wanted:
            return super().respond(message, size)
        # Not raised here: its traceback would keep the answer in memory.
        self.end(Outcome(None, McpError(
            INTERNAL_ERROR, "The answer was refused: the request has been answered, or "
            f"{MAX_BACKLOG_BYTES} bytes of others are in flight")))


def in_object(result: Json, value: object) -> Json:
    """The result of a tool with a value that is not an object, in an object."""
    result = {**result, "structuredContent": {"result": value}}
    return with_meta(result, {"fastmcp": {"wrap_result": True}})


# -- 10. Content of handlers -----------------------------------------------------------
# What handlers return, and ask with, besides text and data.

__all__ += ["Text", "Image", "Audio", "ResourceLink", "EmbeddedResource", "Message",
            "Sampled"]


def is_text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, enum.Enum)


class Text(Block):
    """A content block of text.  It also takes `annotations` and `meta`."""

    _type, _field_names = "text", "type text annotations _meta"

    def __init__(self, text: str, **fields: Any) -> None:
        if not isinstance(text, str):
            raise TypeError(f"the text of a block is a str, not {text!r:.60}")
        super().__init__(text=text, **fields)


class Media(Block):
    """Images and audio: bytes with a MIME type."""

    _field_names = "type data mimeType annotations _meta"
    # (pattern of the first bytes, type); the first type is the default
    _types: tuple[tuple[bytes, str], ...]

    def __init__(self, data: bytes | str | None = None, *,
                 path: str | os.PathLike[str] | None = None,
                 format: str | None = None, **fields: Any) -> None:
        if path is not None:
            with open(path, "rb") as file:
                data = file.read()
        if isinstance(data, str):
            data = from_base64(data)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"{type(self).__name__} needs bytes, or path=")
        super().__init__(data=to_base64(data), **fields)
        if format:
            self.setdefault("mimeType", f"{self._type}/{format}")
        if "mimeType" not in self:
            self["mimeType"] = self._guess_type(data, path)

    def _guess_type(self, data: bytes, path: str | os.PathLike[str] | None) -> str:
        for start, mime_type in self._types:
            if re.match(start, data, re.DOTALL):
                return mime_type
        if path is None:
            return self._types[0][1]
        from mimetypes import guess_type

        return guess_type(os.fspath(path))[0] or "application/octet-stream"


class Image(Media):
    """A content block of an image: `data` is bytes or base64 text, `path` a file.

    mime_type, or format ("jpeg"): by default guessed from the data, else from the path;
    if neither tells, "image/png", or for a path "application/octet-stream".
    """

    _type = "image"
    _types = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
              (b"GIF8", "image/gif"), (b"RIFF....WEBP", "image/webp"))


class Audio(Media):
    """A content block of audio, like Image; the default type is "audio/wav"."""

    _type = "audio"
    _types = ((b"RIFF....WAVE", "audio/wav"),)


class ResourceLink(Block):
    """A content block that links to a resource.

    It also takes title, description, mime_type, size, icons, annotations and meta.
    """

    _type = "resource_link"
    _field_names = ("type uri name title description mimeType size icons annotations "
                    "_meta")

    def __init__(self, uri: str, name: str, **fields: Any) -> None:
        super().__init__(uri=str(uri), name=name, **fields)


class EmbeddedResource(Block):
    """A content block that holds the contents of a resource.

    Give `uri` and `text` or `data`, or give ResourceContents as `resource`.
    """

    _type, _field_names = "resource", "type resource annotations _meta"

    def __init__(self, uri: str | None = None, text: str | None = None, *,
                 data: bytes | None = None, mime_type: str | None = None,
                 resource: Json | None = None, **fields: Any) -> None:
        if mime_type is None:  # server/prompts: "MUST include the MIME type"
            mime_type = "text/plain" if data is None else "application/octet-stream"
        if resource is None:
            if uri is None:
                raise TypeError("EmbeddedResource needs a uri")
            resource = ResourceContents(text, data=data, uri=uri, mime_type=mime_type)
        super().__init__(resource=resource, **fields)


class Message(Fields):
    """A message of a prompt, or of sampling.

    role: "user" or "assistant".  content: a str or a block; for sampling also a list.
    """

    _field_names = "role content"

    def __init__(self, role: str, content: Any) -> None:
        check_choice("role", role, ["user", "assistant"])
        if isinstance(content, list):
            content = [*map(as_block, content)]
        else:
            content = as_block(content)
        super().__init__(role=role, content=content)


class Sampled(Fields):
    """The answer to `sample`: role, content, model, stopReason (client/sampling)."""

    _field_names = "role content model stopReason _meta"

    @property
    def text(self) -> str:
        """The text of its text blocks, joined by newlines."""
        return text_of(self["content"])


# -- 11. Signatures --------------------------------------------------------------------
# Hints become JSON Schema, arguments become objects, results become JSON.
#
# `def f(days: int)`, called with {"days": "5"}:
#
#   HintReader   the hints -> a Schema: JSON Schema, and `make` to construct objects
#   Converter    reads the Schema, and makes {"days": 5} of the arguments; of
#                {"days": "five"} it finds Problem(("days",), "integer", "five")

__all__ += ["Field"]


class Schema(dict):  # type: ignore[type-arg]
    """A schema with a constructor: `make(value)`, called after those of its parts.

    optional: null matches, although the schema does not say so.  make_validates: `make`
    may take more than the schema says.
    """

    optional = False
    make_validates = False

    def __init__(self, keywords: Any, make: Any = None) -> None:
        super().__init__(keywords)
        self.make = make

    def plus(self, keywords: Json) -> Schema:
        """A copy with more keywords."""
        copy = Schema({**self, **keywords})
        vars(copy).update(vars(self))
        return copy


class ValidationError(ValueError):
    """A value does not match its schema.

    problems: a readable line for each.  data: the field and the issue of the first.
    """

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        self.problems = first_texts(problems, MAX_PROBLEMS, str)
        self.data = {"field": first.field, "issue": first.issue}
        super().__init__("\n".join(self.problems))


class Converter(Validator):
    """A Validator that also makes the object that a value stands for."""

    def coerce(self, value: object, strict: bool = True) -> Any:
        """Return the object that `value` stands for, or raise ValidationError.

        Unless `strict`, text of a wrong type is replaced by the JSON it contains, which
        may in turn contain such text.  SchemaError: it is too much work.
        """
        if self._root.fits(value):
            return value
        budget = Budget()
        while True:
            evaluation = self._evaluate(value, budget, lenient=not strict)
            if evaluation.value is value:
                break
            # Keywords applied before a conversion saw the old value: run again.
            value = evaluation.value
        if evaluation.problems:
            raise ValidationError(evaluation.problems)
        return evaluation.result


# Hints.  Each becomes a Schema, which can also construct the object of a value.

SIMPLE_SCHEMAS = {
    str: Schema({"type": "string"}), bool: Schema({"type": "boolean"}),
    int: Schema({"type": "integer"}, int), float: Schema({"type": "number"}, float),
    object: Schema({}), typing.Any: Schema({}),
    None: Schema({"type": "null"}), type(None): Schema({"type": "null"})}


def packages_of(cls: Any) -> set[str]:
    """The packages of a class and of its bases."""
    bases = getattr(cls, "__mro__", ())
    return {base.__module__.partition(".")[0] for base in bases}


def refuse_packages(cls: Any) -> None:
    """Raise TypeError for a class of a package that this copy does not know."""
    if LEFT_OUT:
        for package in packages_of(cls):
            if left_out(f"package {package}"):
                raise TypeError(left_out(f"package {package}"))


# Each is called with the reader and a hint, and returns its Schema, or None.
HINT_READERS: list[Callable[[HintReader, Any], Schema | None]] = []


# A part of an object: its name, its hint, its default.  MISSING: it is required.
# UNSTATED: it is not, and the schema shows no default.
Part = tuple[str, Any, Any]


class HintReader:
    """Reads hints.  definitions: the schemas that others refer to, by name."""

    def __init__(self, output: bool = False) -> None:
        self.output = output
        self.definitions: Json = {}
        self._trail: list[object] = []  # what the hint is part of, to find recursion

    def with_definitions(self, schema: Schema) -> Schema:
        return schema.plus({"$defs": self.definitions}) if self.definitions else schema

    def read(self, hint: Any) -> Schema:
        with suppress(KeyError, TypeError):  # or it cannot be hashed
            return SIMPLE_SCHEMAS[hint]
        if hint in self._trail:
            raise TypeError(f"{getattr(hint, '__qualname__', hint)} is recursive; only "
                            "a pydantic model, or a schema by hand, may be")
        self._trail.append(hint)
        try:
            for read in HINT_READERS:
                schema = read(self, hint)
                if schema is not None:
                    return schema
            return self._read(hint)
        finally:
            self._trail.pop()

    def _read(self, hint: Any) -> Schema:
        if hasattr(hint, "__metadata__"):
            return self.with_metadata(self.read(hint.__origin__), hint.__metadata__)
        origin = typing.get_origin(hint) or hint
        args = typing.get_args(hint)
        name = getattr(origin, "__name__", None) or getattr(origin, "_name", None)
        if name in ("Union", "UnionType"):
            return Schema({"anyOf": [*map(self.read, args)]})
        if name == "Literal":
            return self._choice(args)
        if name in ("Required", "NotRequired", "ReadOnly"):
            return self.read(args[0])
        if origin is list:
            [item] = args or [object]
            # Hosts drop a server whose array has no `items`.
            return Schema({"type": "array", "items": self.read(item)})
        if origin is dict:
            return self._dict(*args)
        if not isinstance(origin, type):
            raise undescribed(hint, type(hint))
        if issubclass(origin, enum.Enum):
            return self._choice(origin)
        make: Any = origin
        refuse_packages(origin)
        return self.object(parts_of(make, self.output), lambda parts: make(**parts))

    def with_metadata(self, schema: Schema, metadata: Iterable[object]) -> Schema:
        """Add what Annotated says: a description, keywords, or a Field."""
        for extra in metadata:
            refuse_packages(type(extra))
            if isinstance(extra, str):
                extra = {"description": extra}
            if isinstance(extra, dict):
                schema = schema.plus(measured(extra, schema))
        Validator({**schema, "$defs": self.definitions})  # SchemaError now
        return schema

    def _dict(self, key: Any = str, value: Any = object) -> Schema:
        if key is not str:
            raise TypeError(left_out("keyword propertyNames") or "its keys are not str")
        schema = Schema({"type": "object"})
        values = self.read(value)
        if values:
            schema["additionalProperties"] = values
        return schema

    def _choice(self, members: Iterable[object]) -> Schema:
        """The schema of an Enum or a Literal."""
        members = [*members]
        values = [*map(to_json_data, members)]
        by_text = dict(zip(map(canonical, values), members))
        schema = Schema({}, lambda value: by_text[canonical(value)])
        types = {*map(type, values)}
        if len(types) == 1:
            schema.update(self.read(types.pop()))
        schema["enum"] = values
        return schema

    def object(self, parts: Iterable[Part], make: Any = None) -> Schema:
        """The schema of an object of these parts."""
        result = Schema({"type": "object", "properties": {}}, make)
        for name, hint, default in parts:
            try:
                schema = self.read(hint)
            except Exception as error:
                raise TypeError(f"{name}: {error}") from None
            if default is MISSING:
                result.setdefault("required", []).append(name)
            elif not self.output:
                schema = with_default(schema, default)
            result["properties"][name] = schema
        if not self.output:  # a result may be of a subclass with more fields
            result["additionalProperties"] = False
        return result


def undescribed(hint: object, cls: type) -> TypeError:
    hint = getattr(hint, "__qualname__", hint)
    return TypeError(
        left_out(f"hint {cls.__name__}") or f"{hint} cannot be described as JSON "
        "Schema; a dataclass, a TypedDict and an Enum can")


LENGTHS = {"array": "Items", "object": "Properties"}  # of a type; else "Length"


def measured(keywords: Json, schema: Schema) -> Json:
    """The keywords for a schema: minLength of a list is minItems."""
    unit = "Length"
    for choice in [*schema.get("anyOf", ()), schema]:
        unit = LENGTHS.get(str(choice.get("type")), unit)
    return {key.replace("Length", unit): value for key, value in keywords.items()}


def with_default(schema: Schema, default: object) -> Schema:
    """The schema of a part that may be missing; with its default, if that is JSON."""
    if default is not None:
        with suppress(TypeError, ValueError):
            return schema.plus({"default": to_json_data(default, strict=True)})
        return schema
    # `Optional[X] = None` is described as X.  Null matches all the same.
    result = schema.plus({})
    result.pop("default", None)  # null
    choices = [part for part in result.pop("anyOf", ()) if part != {"type": "null"}]
    if len(choices) > 1:
        result["anyOf"] = choices
    elif choices and isinstance(choices[0], Schema):
        result = choices[0].plus(result)
    elif choices:
        result = result.plus({**choices[0], **result})
    result.optional = True
    return result


def parts_of(cls: Any, output: bool) -> Iterator[Part]:
    """What the constructor of a dataclass takes, or its fields; or a TypedDict's."""
    hints = typing.get_type_hints(cls, include_extras=True)
    if hasattr(cls, "__required_keys__"):
        for name, hint in hints.items():
            required = name in cls.__required_keys__
            # __required_keys__ ignores Required and NotRequired in quoted hints.
            marker = getattr(typing.get_origin(hint), "_name", "")
            if marker in ("Required", "NotRequired"):
                required = marker == "Required"
            yield name, hint, MISSING if required else UNSTATED
        return
    if not hasattr(cls, "__dataclass_fields__"):
        raise undescribed(cls, cls)
    from inspect import signature

    parameters: Any = signature(cls).parameters
    fields = {field.name: field for field in sys.modules["dataclasses"].fields(cls)}
    for name in fields if output else parameters:
        hint, default = hints.get(name, object), UNSTATED
        if name in fields and "mcp_min" in fields[name].metadata:
            hint = annotated(hint, fields[name].metadata["mcp_min"])
        if name in parameters:
            default = default_of(parameters[name])
        yield name, hint, default


def default_of(parameter: Any) -> Any:
    return MISSING if parameter.default is parameter.empty else parameter.default


def annotated(hint: Any, extra: object) -> Any:
    return operator.getitem(typing.Annotated, (hint, extra))


def resolve_hint(name: str, hint: object, names: Json) -> Any:
    """Resolve the names in a hint written as text; names: its function's globals."""
    if type(hint) is type:
        return hint
    holder = type("", (), {"__annotations__": {"it": hint}})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception as error:
        raise TypeError(f"{name}: {hint!r}: {error}") from None


BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum",
          "le": "maximum", "lt": "exclusiveMaximum"}


def Field(default: Any = MISSING, *,
          default_factory: Callable[[], Any] | None = None, **keywords: Any) -> Any:
    """Describe or constrain a parameter, or a field of a dataclass.

        def book(seats: Annotated[int, Field(ge=1, le=9)],
                 guest: str = Field("me", min_length=2, description="Who comes"))

    The keywords are pydantic's: ge, gt, le, lt and multiple_of for numbers; min_length
    and max_length of text, lists and objects; pattern; title, description, examples.
    Any other is a keyword of JSON Schema, as in Field(format="email").
    """
    return FieldInfo(default, default_factory, wire_fields(**{
        BOUNDS.get(name, name): value for name, value in keywords.items()}))


class FieldInfo(dict):  # type: ignore[type-arg]
    """What Field returns: keywords of JSON Schema, and a default."""

    __hash__: ClassVar[Any] = object.__hash__  # `typing` asks for one

    def __init__(self, default: Any, default_factory: Any, keywords: Json) -> None:
        super().__init__(keywords)
        self.default, self.default_factory = default, default_factory

    def is_required(self) -> bool:
        return self.default in (MISSING, ...) and self.default_factory is None

    def get_default(self, call_default_factory: bool = True) -> Any:
        return self.default_factory() if self.default_factory else self.default

    def __get__(self, instance: object, owner: Any) -> Any:
        """As an attribute of a class it becomes a field of a dataclass."""
        from dataclasses import field

        options: Json = {"metadata": {"mcp_min": self}}
        if self.default_factory:
            options["default_factory"] = self.default_factory
        elif not self.is_required():
            options["default"] = self.default
        return field(**options)


def is_field(value: object) -> bool:
    """True for a Field of ours or of pydantic."""
    return hasattr(value, "is_required") and hasattr(value, "get_default")


# Results.  A return hint becomes an output schema, and results are validated with it.


BARE_TYPES = "string array"  # to return just one of these declares no schema


def output_schema_of(hint: object, bare: str = BARE_TYPES) -> Json | None:
    """The output schema of a return hint; None if it says nothing but a bare type."""
    reader = HintReader(output=True)
    try:
        schema = reader.with_definitions(reader.read(hint))
    except Exception:
        return None
    says = {key for key in schema if schema[key] != {}} - {"type", "description"}
    if not says and schema.get("type") in (None, "null", *bare.split()):
        return None
    return structured_schema(json.loads(json.dumps(schema)))  # without constructors


def structured_schema(schema: Json) -> Json:
    """A schema of an object: itself, or one that describes {"result": …}."""
    if schema.get("type") == "object":
        return schema
    inner = dict(schema)
    outer = {"type": "object", "properties": {"result": inner},
             "required": ["result"], WRAPS_RESULT: True}
    if "$defs" in inner:
        outer["$defs"] = inner.pop("$defs")
    return outer


# Each may return what stands for a value in JSON, or the value itself.
JSON_READERS: list[Callable[[Any], Any]] = []


def to_json_data(value: object, strict: bool = False) -> Any:
    """Convert a value to JSON data.

    A dataclass becomes an object, an Enum its value, a set a list, bytes base64.  What
    has no JSON form is replaced, NaN and infinity by null, an object by its str().

    Raises:
        TypeError: if strict, a part of it has no JSON form.
        ValueError: a cycle, or nested too deep.
    """
    try:
        return plain_data(value, strict)
    except RecursionError:
        raise ValueError("nested too deep, or a part of itself") from None


def plain_data(value: Any, strict: bool) -> Any:
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain_data(value.value, strict)
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if abs(value) < INFINITE:
            return value
        if strict:
            raise TypeError(f"{value} cannot be written as JSON")
        return None
    if isinstance(value, dict):
        return {key_text(key, strict): plain_data(part, strict)
                for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_data(part, strict) for part in value]
    return plain_data(json_form(value, strict), strict)


def key_text(key: object, strict: bool) -> str:
    data = plain_data(key, strict)
    if isinstance(data, str):
        return data
    if strict and isinstance(data, (dict, list)):
        raise TypeError(f"the keys of a JSON object are str, not {data!r:.60}")
    return json.dumps(data)


def json_form(value: Any, strict: bool) -> Any:
    """The JSON for an object: text, if it has no other."""
    cls = type(value)
    if isinstance(value, (bytes, bytearray)):
        return to_base64(bytes(value))
    if hasattr(cls, "__dataclass_fields__"):
        fields = sys.modules["dataclasses"].fields(value)
        return {field.name: getattr(value, field.name) for field in fields}
    if hasattr(cls, "isoformat"):
        return value.isoformat()
    for read in JSON_READERS:
        data = read(value)
        if data is not value:
            return data
    if strict:
        raise TypeError(f"{cls.__name__} cannot be written as JSON")
    return str(value)


# Signatures.  A function's parameters become a schema, and arguments are bound to them.
DOUBTS = {  # parameters without a hint that look like a mistake
    "ctx": "did you mean `ctx: Context`?",
    "context": "did you mean `context: Context`?",
    "self": "did you mean a method of an object, `object.method`?"}


CONTEXT_TYPES: list[Any] = []  # that a handler may annotate a parameter with


def context_in(hint: Any) -> Any:
    """The class of contexts that a hint, which may allow None, stands for."""
    parts = [hint, typing.get_origin(hint), *typing.get_args(hint)]
    for context_type in CONTEXT_TYPES:
        if any(part is context_type for part in parts):
            return context_type
    return None


class Signature:
    """The schema of a function's parameters, and the binding of arguments to them.

    hint_schema: the Schema of the hints.  given_schema: the schema that the user gave;
    then arguments must match both.  context: the name of the parameter that gets the
    context, or "".  is_async: it is `async def`, or its context is for such functions.
    on_loop: calling it returns a coroutine.  returns: the return hint.  doubt: what
    may be a mistake, or "".  Raises TypeError if a parameter cannot be described.
    """

    reader = HintReader

    def __init__(self, fn: Any, schema: Any = None) -> None:
        from inspect import iscoroutinefunction

        if isinstance(fn, staticmethod):  # for Python 3.9
            fn = fn.__func__
        if not callable(fn):
            raise TypeError(f"not a function: {fn!r:.100}")
        self.fn = fn
        self.function = unwrap(fn)
        self.given_schema = schema
        self.is_async = is_async(fn)
        self.on_loop = any(map(iscoroutinefunction, (fn, type(fn).__call__)))
        self.context = self.doubt = ""
        self._fields: dict[str, Any] = {}  # parameters whose default a Field has
        try:
            self.hint_schema = self._describe()
        except (TypeError, ValueError) as error:  # some built-ins have no signature
            name = getattr(self.function, "__qualname__", fn)
            raise TypeError(f"{name}(): {error}") from None

    def _describe(self) -> Schema:
        import inspect

        if self.is_async and "async def" in LEFT_OUT:
            raise TypeError(left_out("async def"))
        if is_async(self.fn, CO_ASYNC_GENERATOR):
            raise TypeError("an async generator: return a list instead")
        signature = inspect.signature(self.fn)
        names = getattr(self.function, "__globals__", {})
        self.returns = signature.return_annotation
        with suppress(TypeError):  # an unknown return type has no output schema
            self.returns = resolve_hint("return", self.returns, names)
        parts, takes_more = [], False
        for parameter in signature.parameters.values():
            hint = resolve_hint(parameter.name, parameter.annotation, names)
            context_type = context_in(hint)
            if context_type:
                if self.context:
                    raise TypeError("two parameters are annotated as the context")
                self.context = parameter.name
                self.is_async = self.is_async or context_type._is_async
            elif self.given_schema and parameter.kind is parameter.VAR_KEYWORD:
                takes_more = True
            else:
                parts.append(self._read_parameter(parameter, hint))
        reader = self.reader()
        schema = reader.object(parts)
        if takes_more:
            schema["additionalProperties"] = True
        return reader.with_definitions(schema)

    def _read_parameter(self, parameter: Any, hint: Any) -> Part:
        name = parameter.name
        default = default_of(parameter)
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD,
                                  parameter.KEYWORD_ONLY):
            raise TypeError(
                f"{name}: MCP passes arguments by name: no /, *args or **kwargs")
        if hint is parameter.empty:
            hint = object
            self.doubt = DOUBTS.get(name, self.doubt)
        if is_field(default):
            hint = annotated(hint, default)
            default = MISSING
        fields = [*filter(is_field, getattr(hint, "__metadata__", ()))]
        if default is MISSING and fields and not fields[-1].is_required():
            field = self._fields[name] = fields[-1]
            default = UNSTATED if field.default_factory else field.default
        return name, hint, default

    def bind(self, arguments: Json, strict: bool = False, context: Any = None) -> Json:
        """Return the keyword arguments to call with, or raise ValidationError."""
        try:
            for converter in self._converters:
                arguments = converter.coerce(arguments, strict)
        except SchemaError as error:  # the schema is valid: it is too much work
            raise ValidationError([Problem((), str(error))]) from None
        bound = {**arguments}
        for name, field in self._fields.items():
            if name not in bound:
                bound[name] = field.get_default(call_default_factory=True)
        if self.context:
            bound[self.context] = context
        return bound

    @cached_property
    def _converters(self) -> list[Converter]:
        schemas = (self.given_schema, self.hint_schema)
        return [Converter(schema) for schema in schemas if schema is not None]

    @property
    def description(self) -> str:
        from inspect import cleandoc

        return cleandoc(self.function.__doc__ or "")

    @cached_property
    def schema(self) -> Any:
        """The inputSchema."""
        return self.given_schema or self.hint_schema


# URI templates, used backwards: from a URI to the values of the variables.

MAX_URI = 1000  # characters; the time to match grows with the square


class UriTemplate:
    """A template that is matched with URIs.

    `{x}` matches no slash, not even as %2F; and no variable matches a drive, an
    absolute path, or one with a `..` segment.  literal: the number of characters
    outside braces; of the templates that match, the one with most wins.  segments:
    the variables that match no slash.  Raises ValueError for another expression, one
    name twice, or adjacent variables.
    """

    may_have = "{x} with text between them"

    def __init__(self, text: str) -> None:
        pieces = re.split(r"\{([A-Za-z_]\w*)\}", text)
        literals = pieces[::2]
        self.names = self.segments = pieces[1::2]
        self.literal = sum(map(len, literals))
        adjacent = "" in literals[1:-1]
        repeated = len(set(self.names)) < len(self.names)
        if adjacent or repeated or re.search("[{}]", "".join(literals)):
            problem = (f"{text!r} is not a URI template that can be matched: it may "
                       f"have {self.may_have}")
            if re.search(r"\{[?+]|\*\}", text) and left_out("{?x,y}"):
                problem += f"; {left_out('{?x,y}')}"
            raise ValueError(problem)
        ends = [*map(re.escape, literals)]
        ends[-1] += r"\Z"
        variables = map(self.pattern_of, self.names, ends[1:])
        self._pattern = re.compile(ends[0] + "".join(variables))

    def pattern_of(self, name: str, end: str) -> str:
        """The pattern of a variable and the text after it, at the first occurrence.

        A lookahead is not entered again on backtracking, so no URI takes exponential
        time.
        """
        return f"(?=(?P<{name}>[^/?#]+?){end})(?P={name}){end}"

    def texts(self, uri: str) -> dict[str, str] | None:
        """The texts of the variables, still encoded; None: the URI does not match."""
        found = self._pattern.match(uri)
        return found and found.groupdict()

    def match(self, uri: str) -> dict[str, str] | None:
        """The decoded values of the variables; None: the URI does not match."""
        from urllib.parse import unquote

        if len(uri) > MAX_URI:
            return None
        values = self.texts(uri)
        for name, text in (values or {}).items():
            value = unquote(text)
            if not is_safe(value):
                return None
            if name in self.segments and re.search(NO_SEGMENT, value):
                return None
            values[name] = value  # type: ignore[index]
        return values


NO_SEGMENT = r"[/\\]|^\.\Z"     # several segments, or "."
# What some system takes for a path that leads elsewhere.
UNSAFE = r"""(?xi)
      [\0-\x1f\x7f]
    | ::\$                          # a stream of NTFS
    | \A (?: [a-z]: | [/\\] )       # a drive, an absolute path
    | (?: \A | [/\\] )              # a folder above, as Windows spells it, too
      [.\ \t-\r]* \.\. [.\ \t-\r]* (?: \Z | [/\\] )"""
UNSAFE_ON_WINDOWS = r"""(?xi)
      :
    | (?: \A | [/\\] )              # a device
      (?: con | prn | aux | nul | conin\$ | conout\$
        | (?: com | lpt ) [\d\u00b9\u00b2\u00b3] ) \s* (?: \. | \Z | [/\\] )"""


def is_safe(text: str) -> bool:
    """True if, used as a path, it stays in its folder."""
    if re.search(UNSAFE, text):
        return False
    return os.name != "nt" or not re.search(UNSAFE_ON_WINDOWS, text)


# -- 12. Handlers ----------------------------------------------------------------------
# What a handler can do (Context), and how it asks its client (Question).

# What an answer to each question must be.
ANSWER_SCHEMAS: Json = {
    "elicitation/create": {"type": "object", "required": ["action"], "properties": {
        "action": {"enum": ANSWER_ACTIONS}}},
    "sampling/createMessage": {
        "type": "object", "required": ["content"], "properties": {
            "content": {"type": ["object", "array"], "items": {"type": "object"}}}},
    "roots/list": {"type": "object", "required": ["roots"], "properties": {
        "roots": {"type": "array", "items": {"type": "object"}}}}}
FORM_TYPES = ("string", "number", "integer", "boolean")  # client/elicitation
FORM_FORMATS = ("email", "uri", "date", "date-time")
URI_START = "[A-Za-z][A-Za-z0-9+.-]*:."  # RFC 3986

SentT = TypeVar("SentT")  # what a context returns for what it has sent
warn_once = lru_cache(maxsize=1000)(warn)


def write_json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


class ByChapters:
    """In a copy without a chapter, its attributes are refused by the chapter's name."""

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> NoReturn:
            default = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(left_out(name) or default)


class BaseContext(ByChapters, Generic[SentT]):
    """What both contexts have in common: nothing here waits for the client."""

    _is_async = False
    _may_block = True  # a sender may block in a full pipe
    _ask: Any  # ask several questions, and wait, each context in its way
    _ask_one: Any

    def __init__(self, request: ServedRequest) -> None:
        self.server = request.session.server
        self._request, self._session, self._peer = (
            request, request.session, request.peer)

    @property
    def request_id(self) -> int | str | None:
        """The id of the request, as received; None for a notification."""
        return self._request.id

    @property
    def meta(self) -> Json:
        """The `_meta` of the request, as received."""
        return as_object(self._request.params.get("_meta"))

    @property
    def client_info(self) -> Json:
        """The client's name and version, as a dict."""
        return self._peer.client_info

    @property
    def client_capabilities(self) -> Json:
        """The capabilities that the client has declared."""
        return self._peer.client_capabilities

    @property
    def protocol_version(self) -> str:
        """The revision in which the request is served."""
        return self._peer.version

    @property
    def lifespan_context(self) -> Any:
        """The value that the server's `lifespan` yielded."""
        return self._session.lifespan.context

    # -- cancellation

    @property
    def cancelled(self) -> bool:
        """True once the request was cancelled, or the connection has been closed."""
        return self._request.cancelled

    @property
    def cancel_reason(self) -> str | None:
        """The reason that the client gave for the cancellation, or None."""
        return self._request.cancel_reason

    def check_cancelled(self) -> None:
        """Raise Cancelled if the request was cancelled, or the client is gone."""
        self._request.check_cancelled()

    # -- reports and messages

    def _sent(self) -> SentT:
        """The return value of methods that send."""
        return None  # type: ignore[return-value]

    def report_progress(self, progress: float, total: float | None = None,
                        message: str | None = None) -> SentT:
        """Send a progress notification, if the client has asked for them.

        Progress that does not increase is not sent (basic/utilities/progress).
        """
        self.check_cancelled()
        request = self._request
        if request.token is None or not abs(progress) < INFINITE:
            return self._sent()
        params: Json = {"progressToken": request.token, "progress": progress}
        if total is not None and abs(total) < INFINITE:
            params["total"] = total
        if message is not None:
            params["message"] = message
        request.notify(PROGRESS, params, self._may_block, progress)
        return self._sent()

    def track(self, iterable: Iterable[T], total: float | None = None,
              message: str | None = None) -> Iterator[T]:
        """Yield the items, report progress every 0.1 s, and check for Cancelled.

        total: by default the length of the iterable, if it has one.
        """
        if total is None:
            total = operator.length_hint(iterable) or None
        due = 0.0
        for count, item in enumerate(iterable, 1):
            self.check_cancelled()
            yield item
            if monotonic() >= due or count == total:
                self.report_progress(count, total, message)
                due = monotonic() + 0.1

    def log(self, level: str, data: object, logger_name: str | None = None) -> SentT:
        """Send a log message, if the client has asked for that level.

        data: any JSON value.  debug, info, notice, warning, error, critical, alert and
        emergency are the same without the first argument (server/utilities/logging).
        ValueError: there is no such level.
        """
        self.check_cancelled()
        check_choice("level", level, LEVELS)
        if not self._peer.logs(level):
            return self._sent()
        data = self._session.json_of(data, "a log message")
        params = {"level": level, "data": data}
        if logger_name is not None:
            params["logger"] = logger_name
        return self.notify(LOG_MESSAGE, params)

    if TYPE_CHECKING:
        def debug(self, data: object, logger_name: str | None = None) -> SentT: ...
        info = notice = warning = error = critical = alert = emergency = debug
    else:
        debug, info = partialmethod(log, "debug"), partialmethod(log, "info")
        notice, warning = partialmethod(log, "notice"), partialmethod(log, "warning")
        error, critical = partialmethod(log, "error"), partialmethod(log, "critical")
        alert, emergency = partialmethod(log, "alert"), partialmethod(log, "emergency")

    def notify(self, method: str, params: Json | None = None) -> SentT:
        """Send any notification, unless the request has been answered."""
        self.check_cancelled()
        self._request.notify(method, params or {}, self._may_block)
        return self._sent()


class HandlerContext(BaseContext[None]):
    """What a `def` handler can do; see Context."""

    def __class_getitem__(cls, item: object) -> Any:
        return cls  # Context[...]

    def wait(self, seconds: float) -> None:
        """Sleep; raise Cancelled as soon as the request is cancelled."""
        request, cancelled = self._request, threading.Event()
        request.connection.hand_over(request)
        request.on_cancel(cancelled.set)
        cancelled.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        request.forget(cancelled.set)
        self.check_cancelled()

    def elicit(self, message: str, schema: Any = None, key: str | None = None,
               timeout: float | None = 600) -> Elicited:
        """Ask the user to fill in a form (client/elicitation); blocks, see Context.

        schema: a dataclass or TypedDict class; a list of choices or a scalar type,
        asked for as the property `value`; a flat JSON Schema of primitives and choices;
        or None, to ask for consent only.  ValueError names a field that a form cannot
        ask for.
        """
        form = form_of(schema, self._peer.version)
        params = {"message": message, "requestedSchema": form}
        question = Question("elicitation/create", params, form_reader(form))
        return self._ask_one(question, key, timeout)

    def sample(self, /, messages: Any, *, system_prompt: str | None = None,
               max_tokens: int = 512, temperature: float | None = None,
               tools: Any = None, tool_choice: Any = None, key: str | None = None,
               timeout: float | None = 600, **params: Any) -> Sampled:
        """Let the client's model continue a str, a message, or a list of both.

        Blocks, see Context.  params: further parameters of the request, such as
        modelPreferences (client/sampling).
        """
        messages = [*map(message_of, listed(messages))]
        check_tool_results(messages)
        params = wire_fields(
            messages=messages, system_prompt=system_prompt, max_tokens=max_tokens,
            temperature=temperature, tools=tools, tool_choice=tool_choice, **params)
        question = Question("sampling/createMessage", params, Sampled.of)
        return self._ask_one(question, key, timeout)

    def list_roots(self, timeout: float | None = 600) -> list[Json]:
        """The client's roots: uri and name (client/roots); blocks, see Context.

        A root is a directory that the client lets this server work in.
        """
        question = Question("roots/list", {}, operator.itemgetter("roots"))
        return self._ask_one(question, None, timeout)

    def _ask(self, questions: dict[str, Question[Any]], timeout: float | None) -> Json:
        peer, request = self._peer, self._request
        answers = peer.answers_to(request, questions)
        if answers is None:
            with peer.asked(request, questions, timeout) as sent:
                answers = {key: questions[key].read(key, asked.wait())
                           for key, asked in sent.items()}
        return answers

    def _ask_one(self, question: Question[T], key: str | None,
                 timeout: float | None) -> T:
        key = self._request.key_of(question, key)
        answer: T = self._ask({key: question}, timeout)[key]
        return answer

    def once(self, key: str, run: Callable[[], Any]) -> Any:
        """Run a step with side effects once for this request, and return its result.

        Where a handler that asks runs again, this returns the result of the first run.
        key: the name of the step within this request; two threads must not run the same
        step at once.  TypeError: the result has no JSON form, and so cannot be kept.
        """
        self.check_cancelled()
        steps = self._request.steps
        if key not in steps:
            steps[key] = to_json_data(run(), strict=True)
        return to_json_data(steps[key])  # a copy, which the handler may change

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """Read a resource of this server; McpError if there is none with this URI."""
        return self._session.read(self._request, uri)


def message_of(value: object) -> Json:
    """A message of a prompt or of sampling; a str or a block becomes a user message."""
    if is_text(value) or isinstance(value, Block):
        return Message("user", value)
    if isinstance(value, dict) and "role" in value:
        message = Message(value["role"], value.get("content"))
        return {**value, **message}
    raise TypeError(f"expected a str, a block or a Message, got {type(value).__name__}")


@lru_cache(maxsize=8)
def answer_converter(method: str) -> Converter:
    return Converter(ANSWER_SCHEMAS.get(method, {}))


class Question(Generic[T]):
    """A request to the client; `make` converts its answer for the handler.

    make: called with an answer that matches ANSWER_SCHEMAS; ValueError: it is invalid.
    """

    def __init__(self, method: str, params: Json, make: Callable[[Json], T]) -> None:
        self.method, self.params, self._make = method, params, make

    def read(self, key: str, answer: object) -> T:
        """What the handler gets.

        Raises:
            McpError: the answer does not fit the question.
        """
        try:
            return self._make(answer_converter(self.method).coerce(answer))
        except ValueError as error:
            text = f"The answer to {key} does not fit: {error}"
            raise misfit(text, error, key) from None


# Forms (client/elicitation, "Requested Schema").


class FormReader(HintReader):
    """Reads the hint of a form."""


def form_of(requested: Any, version: str) -> Json:
    """The schema of a form; a single value is wrapped in {"value": ...}."""
    if requested is None:  # consent only
        requested = {"type": "object", "properties": {}}
    form = requested
    if not isinstance(requested, dict):
        form = choices_of(requested) or FormReader().read(requested)
        if form.get("type") != "object":
            whole = {"type": "object", "properties": {"value": form},
                     "required": ["value"]}
            form = Schema(whole, operator.itemgetter("value"))
    properties = form.get("properties")
    if form.get("type") != "object" or type(properties) is not dict:
        raise ValueError('a form needs "type": "object" and "properties"')
    for name, field in properties.items():
        if not any(fits(as_object(field), version) for fits in FORM_FIELDS):
            text = (f"{name}: a form of revision {version} asks for text, numbers, "
                    f"booleans and choices of text, not for {show(field)}")
            if as_object(field).keys() & {"oneOf", "anyOf", "items"}:
                text = f"{text} {left_out('choices with titles')}".strip()
            raise ValueError(text)
    return form  # type: ignore[no-any-return]


def choices_of(requested: Any) -> Schema | None:
    """The schema for a list of choices, shown to the user as their texts."""
    if type(requested) not in (list, tuple):
        return None
    choices = {str(choice): choice for choice in requested}
    if not requested or len(choices) < len(requested):
        raise ValueError("there are no choices, or two choices have the same text: "
                         f"{show(requested)}")
    schema = {"type": "string", "enum": [*choices]}
    return Schema(schema, choices.get)


def are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def fits_form(field: Json, version: str) -> bool:
    """True for text, a number, a boolean, a choice of texts."""
    kind, keywords = field.get("type"), IN_PLACE_KEYWORDS & field.keys()
    if keywords == {"enum"}:
        return kind == "string" and are_texts(field["enum"])
    has_format = field.get("format") in (None, *FORM_FORMATS)
    return kind in FORM_TYPES and has_format and not keywords


# Each says whether a form of a revision may have a field.
FORM_FIELDS: list[Callable[[Json, str], bool]] = [fits_form]


def form_reader(form: Json) -> Callable[[Json], Elicited]:
    """What reads the answer to a form; ValueError: that does not match its schema."""
    converter = Converter(form)

    def read(answer: Json) -> Elicited:
        elicited = Elicited(answer["action"])
        if elicited.action == "accept":
            content = answer.get("content")
            elicited.content = {} if content is None else content
            elicited.data = converter.coerce(elicited.content)
        return elicited

    return read


# -- 13. Server ------------------------------------------------------------------------
# The registries and the method handlers.  BaseServerSession.handle takes each request
# through the four steps of the module docstring.  The method handlers are the same for
# all revisions: what differs is in the peer, and METHODS says which have the method.

# What a server declares of a capability; the others are declared as an empty object.
CAPABILITIES = {name: {"listChanged": True} for name in CHANGES}
TOOL_NAME = "[A-Za-z0-9_.-]{1,128}"  # server/tools: "Tool Names"


class Lifespan:
    """A server's lifespan: the first connection enters it, the last one leaves it.

    context: the value that it yielded.
    """

    def __init__(self, server: BaseServer, make: Handler | None) -> None:
        self._server, self._make = server, make
        self.context: Any = {}
        # Guards the rest; held while the lifespan is entered or left.
        self._entering = threading.Lock()
        self._connections = 0
        self._exits = ExitStack()  # what the last connection has to do

    def enter(self) -> None:
        """A connection begins."""
        with self._entering:
            if not self._connections:
                with ExitStack() as exits:
                    self._begin(exits)
                    self._exits = exits.pop_all()
            self._connections += 1

    def leave(self) -> None:
        """A connection has ended."""
        with self._entering:
            self._connections -= 1
            if not self._connections:
                self._exits.close()

    def _begin(self, exits: ExitStack) -> None:
        if self._make:
            self.context = self._entered(self._make(self._server), exits)

    def _entered(self, manager: Any, exits: ExitStack) -> Any:
        if not hasattr(manager, "__enter__"):
            lacks = hasattr(manager, "__aenter__") and left_out("async lifespan")
            raise TypeError(lacks or "lifespan must return a context manager (see "
                            f"contextlib.contextmanager), not {type(manager).__name__}")
        return exits.enter_context(manager)


# -- what is registered


RESULT_READERS: list[Callable[[Any], Any]] = []  # each may convert what was returned


def read_result(value: Any) -> Any:
    """What a function returned; content of other libraries becomes ours."""
    for read in RESULT_READERS:
        value = read(value)
    for part in listed(value):
        refuse_packages(type(part))
    return value


class Registration:
    """A registered function: its signature, and its descriptor in a list.

    option_names: what its decorator takes.  signature_class: reads the function.
    """

    capability = ""     # that it belongs to
    list_key = ""       # the key of the list that it is in
    key_field = "name"  # the field of the descriptor that holds its key
    option_names = ""
    signature_class = Signature

    def __init__(self, fn: Any, options: Json, key: str = "") -> None:
        name = options.get("name") or name_of(fn)
        known = self.option_names.split()
        refuse_unknown(name, options.keys() - known, known)
        self.key = key or name
        fields = wire_fields(**{**options, "name": name})
        schema = fields.pop("inputSchema", None)
        self.signature = self.signature_class(fn, schema)
        # Now, so that the TypeError comes now.
        self.options: Json = to_json_data(fields, strict=True)
        if self.signature.doubt:
            warn(f"mcp_min: {name_of(fn)}(): {self.signature.doubt}\n")

    @cached_property
    def descriptor(self) -> Json:  # not at the start, because it reads the docstring
        descriptor: Json = {self.key_field: self.key}
        if self.signature.description:
            descriptor["description"] = self.signature.description
        return {**descriptor, **self.options, **self.own_fields()}

    def own_fields(self) -> Json:
        """The fields of the descriptor that other registrations do not have."""
        return {}


class ToolEntry(Registration):
    """A tool and its output schema."""

    capability = list_key = "tools"
    option_names = ("name title description annotations input_schema output_schema "
                    "icons meta")
    failed = ""  # what a model reads before the text of an exception
    bare_types = BARE_TYPES

    def __init__(self, fn: Any, options: Json) -> None:
        input_schema = options.get("input_schema")
        if input_schema is not None:
            if as_object(input_schema).get("type") != "object":
                raise ValueError('input_schema needs "type": "object"')
            Validator(input_schema)  # SchemaError now
        super().__init__(fn, options)
        if not re.fullmatch(TOOL_NAME, self.key):
            raise ValueError(f"tool name {self.key!r}: hosts take {TOOL_NAME}; "
                             "pass name=")
        output = self.options.pop("outputSchema", None)
        if output is None:
            output = output_schema_of(self.signature.returns, self.bare_types)
        elif output is False:
            output = None
        elif not isinstance(output, dict):
            raise TypeError(f"output_schema is a dict or False, not {output!r:.100}")
        else:
            Validator(output)
            output = structured_schema(output)
        self._output: Json | None = output

    def own_fields(self) -> Json:
        return wire_fields(input_schema=self.signature.schema,
                           output_schema=self._output)

    @cached_property
    def _validator(self) -> Validator:
        return Validator(self._output)

    def _problems(self, data: object) -> list[str]:
        """A readable line for each problem of structured content."""
        try:  # our own results are not limited
            return self._validator.problems(data, bounded=False)
        except SchemaError as error:
            return [str(error)]

    def result(self, value: Any, session: BaseServerSession) -> Json:
        """The result for what the function returned (server/tools, "Tool Result")."""
        has_schema = self._output is not None
        if not has_schema and is_text(value):
            return text_result(str(value))
        result = self._result_of(read_result(value), has_schema, session)
        if has_schema and result["isError"] is not True:
            data = result.get("structuredContent")
            problems = "; ".join(self._problems(data))
            if problems:  # with the value, so that a model can read it all the same
                raise ValueError("the result does not fit the output schema: "
                                 f"{problems}; it is: {json.dumps(data)[:500]}")
        return result

    def _result_of(self, value: Any, has_schema: bool,
                   session: BaseServerSession) -> Json:
        if value is None and not has_schema:
            return ToolResult()
        parts, wraps = listed(value), WRAPS_RESULT in (self._output or ())
        if isinstance(value, ToolResult):
            result = {"isError": False, **value}  # clients read it by key
            data = session.json_of(value.structured_content, self.key)
            if data is None or type(data) is dict:
                wraps = False
        elif any(isinstance(part, Block) for part in parts):
            return ToolResult([part if isinstance(part, Block)
                               else session.text_for(part, self.key)
                               for part in parts])
        else:
            data = session.json_of(value, self.key)
            result = text_result(data if is_text(value) else write_json(data))
            if not has_schema and type(data) is not dict:
                wraps = True
        if wraps:
            return in_object(result, data)
        if data is not None:
            result["structuredContent"] = data
        return result


def text_result(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": False}


class PromptEntry(Registration):
    """A prompt; its arguments are the parameters of its function."""

    capability = list_key = "prompts"
    option_names = "name title description icons meta"

    def own_fields(self) -> Json:
        schema = self.signature.schema
        required = schema.get("required", ())
        return {"arguments": [
            wire_fields(name=name, description=parameter.get("description"),
                        required=name in required)
            for name, parameter in schema["properties"].items()]}

    def result(self, value: Any) -> Json:
        """The result for what the function returned (server/prompts)."""
        messages = []
        for message in map(message_of, listed(read_result(value))):
            for block in listed(message["content"]):  # a prompt's message has one
                messages.append({**message, "content": block})
        return wire_fields(description=self.descriptor.get("description"),
                           messages=messages)


class ResourceEntry(Registration):
    """The resource at a URI, or the resources whose URIs match a template."""

    capability = list_key = "resources"
    key_field = "uri"
    option_names = "name title description mime_type size annotations icons meta"
    template_class = UriTemplate

    def __init__(self, uri: str, fn: Any, options: Json) -> None:
        if not re.match(URI_START, uri):
            raise ValueError(f"a resource needs a URI with a scheme, not {uri!r:.100}")
        variables = set()
        if "{" in uri:
            self.list_key, self.key_field = "resourceTemplates", "uriTemplate"
            self.template = self.template_class(uri)
            variables = set(self.template.names)
        super().__init__(fn, options, uri)
        schema = self.signature.hint_schema
        required = set(schema.get("required", ()))
        if not required <= variables <= schema["properties"].keys():
            raise TypeError(
                f"{uri}: its placeholders ({join_first(sorted(variables))}) and the "
                f"parameters ({join_first(schema['properties'])}) differ")

    def contents(self, value: Any, uri: str, session: BaseServerSession) -> list[Any]:
        """The contents for what the function returned.

        That is text, bytes, data, ResourceContents, or a list with such contents.
        """
        parts = listed(value)
        if not any(isinstance(part, ResourceContents) for part in parts):
            parts = [value]  # data may be a list, too
        return [self._contents(part, uri, session) for part in parts]

    def _contents(self, value: Any, uri: str,
                  session: BaseServerSession) -> ResourceContents:
        # Its `_meta` as well, as the official SDK does it, because some hosts look only
        # here for what a page may load.
        fields = {key: value for key, value in self.options.items()
                  if key in ("mimeType", "_meta")}
        if isinstance(value, ResourceContents):
            return ResourceContents.of({"uri": uri, **fields, **value})
        if isinstance(value, (bytes, bytearray)):
            fields.setdefault("mimeType", "application/octet-stream")
            return ResourceContents(data=bytes(value), uri=uri, **fields)
        default = "text/plain" if is_text(value) else "application/json"
        fields.setdefault("mimeType", default)
        text = session.text_for(value, self.key)
        return ResourceContents(text, uri=uri, **fields)


class Registry:
    """What a server offers, and who is notified when that changes.

    A Server fills it, and its sessions serve it, from any thread.  lists: the entries
    by key, for each key of a list.  methods: handlers of those that the protocol does
    not have.  subscribers: each has its `subscriptions`, `queue` for a notification,
    and `flush`, which does not block.
    """

    first_level = "info"  # of log messages, until logging/setLevel

    def __init__(self, info: Json, instructions: str | None) -> None:
        self.info, self.instructions = info, instructions
        self.lock = threading.Lock()  # guards these
        self.capabilities: Json = {}
        self.lists: dict[str, dict[str, Any]] = {
            row.list_key: {} for row in METHODS.values() if row.list_key}
        self.methods: dict[str, Any] = {}
        self.subscribers: set[Any] = set()
        self.offer("logging")

    def add(self, entry: Registration) -> None:
        with self.lock:
            entries = self.lists[entry.list_key]
            again = entry.key in entries
            entries[entry.key] = entry
        if again:
            warn(f"mcp_min: {entry.key} is already registered; replacing it\n")
        self.offer(entry.capability)
        self.list_changed(entry.capability)

    def remove(self, list_key: str, key: str) -> None:
        with self.lock:
            entry = self.lists[list_key].pop(key)
        self.list_changed(entry.capability)

    def offer(self, capability: str) -> None:
        """Declare a capability."""
        with self.lock:
            self.capabilities[capability] = {**CAPABILITIES.get(capability, {})}

    def description(self) -> Json:
        """What a client is told at first, besides `info`."""
        with self.lock:
            capabilities = {**self.capabilities}
        instructions = self.instructions or None
        return wire_fields(capabilities=capabilities, instructions=instructions)

    def changes(self) -> list[tuple[str, str]]:
        """The rows of CHANGES of those lists whose changes this server reports."""
        return [row for name, row in CHANGES.items()
                if declares(self.capabilities, f"{name}.listChanged")]

    def resource_at(self, uri: str) -> tuple[ResourceEntry, Json]:
        """The resource or template that a URI belongs to, and its variables."""
        entry = self.lists["resources"].get(uri)
        if entry:
            return entry, {}
        with self.lock:
            templates = [*self.lists["resourceTemplates"].values()]
        templates.sort(key=lambda entry: -entry.template.literal)
        for entry in templates:
            variables = entry.template.match(uri)
            if variables is not None:
                return entry, variables
        # `data` is exactly this in server/resources, and some clients look for it.
        raise McpError(RESOURCE_NOT_FOUND, f"Resource not found: {uri:.200}",
                       {"uri": uri})

    # -- who is notified

    def publish(self, key: str, item: str | None, method: str, params: Json) -> None:
        """Notify the clients that have subscribed to an item of a key."""
        change = key, item
        # With the lock, so that no new subscriber comes between.
        with self.lock:
            wanted = [one for one in self.subscribers if change in one.subscriptions]
            for subscriber in wanted:
                subscriber.queue(method, params)
        for subscriber in wanted:
            subscriber.flush()

    def list_changed(self, capability: str) -> None:
        method = CHANGES[capability][0]
        self.publish(method, None, method, {})

    def forget(self, subscriber: Any) -> None:
        with self.lock:
            self.subscribers.discard(subscriber)


# -- a session


METHOD_HANDLERS: dict[str, Handler] = {}  # called with a request and its params


def handles(*methods: str) -> Callable[[F], F]:
    """Add a function to the dispatch table as the handler of these methods."""
    def add(function: F) -> F:
        METHOD_HANDLERS.update(dict.fromkeys(methods, function))
        return function
    return add


class BaseServerSession(Session):
    """A server's end of a connection.

    How a server ends when its client hangs up: the reader sees the end of the input
    (end_of_input); handlers may finish for drain_seconds; those that go on are
    cancelled (close), and `run` wakes up (on_close); it waits a moment for what they do
    in `finally` (end); the last session leaves the lifespan, and ends the event loop.

    peer: the client of requests in a handshake revision.  contexts: the classes, by
    whether a handler is `async def`.  run_soon(job): has a job done on the thread that
    serves.  threaded: False if all handlers run there.
    """

    connection_class: type[ServerConnection] = ServerConnection
    contexts: ClassVar[dict[bool, Any]] = {}
    threaded = True

    def __init__(self, server: BaseServer, reader: ByteStream, writer: ByteStream, *,
                 own_input: bool = False, tapped: bool = True, max_workers: int = 0,
                 run_soon: Handler | None = None) -> None:
        self.server, self.options = server, server._options
        self.registry, self.lifespan = server._registry, server._lifespan
        self._tapped = tapped and server._tapped
        self.inbox = Inbox()  # of the thread that serves
        self.run_soon = run_soon or self.inbox.call
        self.connection = self.connection_class(
            self, reader, writer, own_input=own_input, max_workers=max_workers)
        self.peer = Peer(self.registry, self.connection)

    # -- its life

    def run(self) -> None:
        """Serve until the client hangs up, and do what `run_soon` asks for."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Begin to serve on other threads; `finish` follows."""
        self.lifespan.enter()
        try:
            self.connection.start(self._tapped)
        except BaseException:
            self.finish(0)
            raise

    def finish(self, seconds: float = INFINITE) -> None:
        """Let it end by itself for that long, then end it."""
        with ExitStack() as exits:
            exits.callback(self.lifespan.leave)
            exits.callback(self.end)
            with suppress(Empty):
                self.inbox.wait(monotonic() + seconds)

    def end(self) -> None:
        """Close; if the client is still there, as at SIGTERM, write what is queued."""
        if not self.connection.closed:
            self.on_end()
            self.connection.outbox.wait_until_written(0.2)
        self.connection.close()
        wait_until(self.connection.pool.is_idle, 0.3)  # for `finally` in handlers
        self.registry.forget(self.peer)

    def on_close(self) -> None:
        if self.connection.why_closed:
            warn(f"mcp_min: connection closed: {self.connection.why_closed}\n")
        self.inbox.finish(lambda: None)  # for `run` to end, and perhaps the process

    # -- what the connection asks

    def allows_batches(self) -> bool:
        version = self.peer.version
        return version in REVISIONS and REVISIONS[version].batches

    def is_for_reader(self, method: str) -> bool:
        row = METHODS.get(method)  # an unknown method is refused at once
        return row.on_reader if row else method not in self.registry.methods

    def error_text(self, error: BaseException) -> str:
        if self.options.mask_errors and not isinstance(error, ToolError):
            return "Internal error"
        return error_text(error)

    def closed_error(self) -> ConnectionClosed:
        return ConnectionClosed("The client has hung up")

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        if method == INITIALIZED:
            with self.registry.lock:
                if not self.connection.closed:  # `end` may have been faster
                    self.registry.subscribers.add(self.peer)

    def handle(self, request: Any) -> Any:
        """Take the request's four steps; return its result, or raise its error."""
        params: Json = require_type(request.params, dict, "params")
        if "_meta" in params:
            member(params, "_meta", dict)
        peer = request.peer = self.peer_of(request)
        peer.validate(request)
        try:
            result = self.dispatch(request, params)
        except McpError as error:
            raise peer.translate(error) from None
        except Unwind as unwind:
            result = unwind.outcome()  # its error already has this revision's code
        if result is NO_RESPONSE_YET:
            return result
        return peer.finalize(request.method, result)

    def peer_of(self, request: ServedRequest) -> Peer:
        """The client as a request sees it."""
        return request.peer

    def dispatch(self, request: ServedRequest, params: Json) -> Any:
        """Call the handler of a request."""
        method = request.method
        handler = METHOD_HANDLERS.get(method) or self.registry.methods[method]
        return handler(request, params)

    # -- calling the functions of users

    def call(self, request: ServedRequest, signature: Signature, arguments: Json,
             tool: bool = False) -> Any:
        """Call one with the arguments of a request, and wait for what it returns.

        Raises:
            McpError, ToolError: the arguments are invalid.
        """
        call = self.bound(request, signature, arguments, tool)
        return self.run_function(request, call, signature.on_loop)

    def bound(self, request: ServedRequest, signature: Signature, arguments: Json,
              tool: bool = False) -> Callable[[], Any]:
        """A function with its arguments.

        strict_input is for tools: prompts, templates and completions only get strings.
        """
        ctx = None
        if signature.context:
            ctx = request.context(signature.is_async)
        try:
            kwargs = signature.bind(arguments, tool and self.options.strict_input, ctx)
        except ValidationError as error:
            raise request.peer.bad_arguments(error, tool) from None
        return partial(signature.fn, **kwargs)

    def run_function(self, request: ServedRequest, call: Callable[[], Any],
                    on_loop: bool = False) -> Any:
        """Run one, and wait for what it returns.

        on_loop: calling it only makes a coroutine.
        """
        value = call()
        if hasattr(value, "__await__"):
            value = self.await_value(value, request)
        return value

    def await_value(self, value: Any, request: ServedRequest) -> Any:
        raise TypeError(left_out("async def"))

    def read(self, request: ServedRequest, uri: str) -> list[Any]:
        """The contents of the resource at a URI."""
        entry, arguments = self.registry.resource_at(uri)
        value = self.call(request, entry.signature, arguments)
        return entry.contents(value, uri, self)

    # -- what handlers return

    def json_of(self, value: Any, source: str) -> Any:
        """The JSON data of what a handler returned or logs; source: which one.

        Raises:
            TypeError, ValueError: it has none, and the server has strict_results.
        """
        if hasattr(type(value), "__next__"):
            value = [*value]  # it can be read only once
        try:
            return to_json_data(value, strict=True)
        except (TypeError, ValueError) as error:
            if self.options.strict_results:
                raise
            data = to_json_data(value)
            warn_once(f"mcp_min: {source}: {error}; sent as text, or NaN as null\n")
            return data

    def text_for(self, value: Any, source: str) -> str:
        """A text as it is, and other values as JSON."""
        if is_text(value):
            return str(value)
        return write_json(self.json_of(value, source))


# -- the method handlers


MAX_HELLO_BYTES = 1 << 20  # of memory


@handles("initialize")
def handle_initialize(request: ServedRequest, params: Json) -> Json:
    session = request.session
    size = request.cost - session.peer.cost
    if size > MAX_HELLO_BYTES:
        raise McpError(INVALID_REQUEST, "`initialize` takes over 1 MiB of memory")
    # A new one: what is in flight goes on as the old one has agreed.
    peer = Peer(session.registry, session.connection)
    peer.subscriptions = session.peer.subscriptions  # charged already
    peer.cost = max(0, size - 2 * REQUEST_COST)
    result = peer.describe(params)
    session.registry.forget(session.peer)  # it is told nothing more
    session.peer = peer
    return result


@handles("ping")
def handle_ping(request: ServedRequest, params: Json) -> Json:
    return {}


@handles("logging/setLevel")
def handle_set_level(request: ServedRequest, params: Json) -> Json:
    request.peer.level = require_one_of("level", params.get("level"), LEVELS)
    return {}


@handles("tools/list", "prompts/list", "resources/list", "resources/templates/list")
def handle_list(request: ServedRequest, params: Json) -> Json:
    """A page of a list (server/utilities/pagination).

    A cursor is the key of the last entry of a page, so that other entries can be
    added and removed between two pages.
    """
    list_key = METHODS[request.method].list_key
    registry = request.session.registry
    with registry.lock:
        entries = dict(registry.lists[list_key])
    keys = [*entries]
    cursor = params.get("cursor")
    if cursor is not None:
        if cursor not in keys:
            raise invalid_params("Invalid cursor", "cursor",
                                 "not of this list, or no longer")
        keys = keys[keys.index(cursor) + 1:]
    page = keys[:request.session.options.page_size]
    result: Json = {list_key: [{**entries[key].descriptor} for key in page]}
    if len(page) < len(keys):
        result["nextCursor"] = page[-1]
    return result


# Arguments that hosts add to calls of any tool: Gemini CLI, Cline, n8n.
HOST_ARGUMENTS = {"wait_for_previous", "task_progress", "toolCallId"}


@handles("tools/call")
def handle_tools_call(request: ServedRequest, params: Json) -> Json:
    session = request.session
    tool, arguments = entry_named(session, "tools", params)
    for name in HOST_ARGUMENTS.intersection(arguments):
        if name not in as_object(tool.signature.schema.get("properties")):
            arguments = {key: arguments[key] for key in arguments if key != name}
    try:
        value = session.call(request, tool.signature, arguments, tool=True)
        return tool.result(value, session)  # type: ignore[no-any-return]
    except (McpError, Unwind):
        raise
    except ToolError as error:
        return ToolResult(str(error), is_error=True)
    except BaseException as error:  # sys.exit() in a tool must not end the server
        request.check_cancelled()  # an error after the cancellation follows from it
        if not session.connection.follows_from_end(error):
            log_exception(f"mcp_min: tool {tool.key} failed")
        text = tool.failed + session.error_text(error)
        return ToolResult(text, is_error=True)


@handles("prompts/get")
def handle_prompts_get(request: ServedRequest, params: Json) -> Json:
    prompt, arguments = entry_named(request.session, "prompts", params)
    value = request.session.call(request, prompt.signature, arguments)
    return prompt.result(value)  # type: ignore[no-any-return]


def entry_named(session: BaseServerSession, list_key: str, params: Json,
                ) -> tuple[Any, Json]:
    """The entry that is named, and the arguments; McpError if there is none."""
    name = require_type(params.get("name"), str, "name")
    entry = session.registry.lists[list_key].get(name)
    if entry is None:
        kind = list_key[:-1]
        raise invalid_params(f"Unknown {kind}: {name!r:.100}", "name",
                             f"there is no such {kind}", name=name)
    return entry, member(params, "arguments", dict)


@handles("resources/read")
def handle_resources_read(request: ServedRequest, params: Json) -> Json:
    uri = require_type(params.get("uri"), str, "uri")
    return {"contents": request.session.read(request, uri)}


# -- the server


INFO = ("name", "version", "title", "description", "icons", "website_url")


class BaseServer(ByChapters):
    """What every Server has; see there, also for the options."""

    _tapped = True         # TAPS may show its lines
    _session_class: Any = BaseServerSession
    _lifespan_class: Any = Lifespan
    _registry_class: type[Registry] = Registry

    def __init__(self, options: Any) -> None:
        """options: an attribute for each of those that Server has."""
        smallest = min(options.page_size, options.max_workers,
                       options.max_message_bytes, options.max_depth)
        if smallest < 1 or not options.drain_seconds >= 0:
            raise ValueError("page_size, max_workers, max_message_bytes and max_depth "
                             "are 1 or more, drain_seconds 0 or more")
        for text in options.name, options.version or "0":
            if not isinstance(text, str):
                raise TypeError(f"name and version must be str, not {text!r:.100}")
        self._options = options
        self._lifespan = self._lifespan_class(self, options.lifespan)
        given = {name: to_json_data(getattr(options, name)) for name in INFO}
        info = wire_fields(**given)
        info.setdefault("version", "0")
        self.name, self.version = info["name"], info["version"]
        self._registry = self._registry_class(info, options.instructions)

    # -- registering

    @overload
    def tool(self, fn: F, /, **options: Any) -> F: ...
    @overload
    def tool(self, name: str | None = None, /, **options: Any) -> Callable[[F], F]: ...

    def tool(self, fn: Any = None, /, **options: object) -> Any:
        """Register a function as a tool: `@tool`, `@tool("name")`, `@tool(title=…)`.

        Options: name, title, description, annotations, input_schema, output_schema,
        icons, meta.  By default the schemas and descriptions come from the signature
        and the docstring; output_schema=False declares none.  The function's errors
        become results (server/tools).

        A schema by hand, for a function that takes whatever fits it:

            server.tool(lambda **arguments: arguments, name="raw",
                        input_schema={"type": "object"})

        `meta={"ui": {"resourceUri": "ui://clock"}}`, a resource at that URI and the
        extension in Server(capabilities=...) make an MCP App of a tool.

        Raises:
            TypeError: a parameter that no schema can describe; an unknown option.
            ValueError: an invalid name.
        """
        return self._decorator(self.add_tool, fn, options)

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(self, name: str | None = None, /,
               **options: Any) -> Callable[[F], F]: ...

    def prompt(self, fn: Any = None, /, **options: object) -> Any:
        """Register a function as a prompt; its parameters are the arguments.

        It returns a str, a Message, a block or a list of those (server/prompts).
        Options: name, title, description, icons, meta.
        """
        return self._decorator(self.add_prompt, fn, options)

    @staticmethod
    def _decorator(add: Handler, first: object, options: Json) -> Any:
        """The value of `@add`, `@add("name")` or `@add(option=…)`."""
        if first is None:
            return partial(add, **options)
        if isinstance(first, str):
            return partial(add, name=first, **options)
        return add(first, **options)

    def resource(self, uri: str, **options: Any) -> Callable[[F], F]:
        """Register a function as the resource at a URI, or at a template with `{name}`.

        The function's parameters are the variables of the template; it returns text,
        bytes, data or ResourceContents (server/resources).  Options: name, title,
        description, mime_type, size, annotations, icons, meta.
        """
        if not isinstance(uri, str):
            raise TypeError("resource needs a URI: @server.resource(uri)")
        return partial(self.add_resource, uri, **options)

    def add_tool(self, fn: F, **options: object) -> F:
        """Register a tool as `tool` does, and notify the clients."""
        self._registry.add(ToolEntry(fn, options))
        return fn

    def remove_tool(self, name: str) -> None:
        """Remove a tool and notify the clients; KeyError if there is none."""
        self._registry.remove("tools", name)

    def add_prompt(self, fn: F, **options: object) -> F:
        """Register a prompt as `prompt` does, and notify the clients."""
        self._registry.add(PromptEntry(fn, options))
        return fn

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt and notify the clients; KeyError if there is none."""
        self._registry.remove("prompts", name)

    def add_resource(self, uri: str, fn: F, **options: object) -> F:
        """Register a resource as `resource` does, and notify the clients."""
        self._registry.add(ResourceEntry(uri, fn, options))
        return fn

    def remove_resource(self, uri: str) -> None:
        """Remove a resource and notify the clients; KeyError if there is none."""
        list_key = "resourceTemplates" if "{" in uri else "resources"
        self._registry.remove(list_key, uri)

    @property
    def instructions(self) -> str | None:
        """How to use the server; who connects from now on is told what it is now."""
        return self._registry.instructions

    @instructions.setter
    def instructions(self, text: str | None) -> None:
        self._registry.instructions = text

    # -- serving

    def _session(self, reader: ByteStream, writer: ByteStream, **how: Any) -> Any:
        """A session; how: see BaseServerSession, and those that extend it."""
        return self._session_class(self, reader, writer, **how)

    @contextmanager
    def _stdio_session(self, **how: Any) -> Iterator[Any]:
        if os.isatty(0):
            warn(f"mcp_min: {self.name} waits for a host's messages on stdin; to try "
                 "it, with the whole mcp_min.py: python3 mcp_min.py list FILE.py\n")
        with stop_at_signals(), stdio_server() as (reader, writer):
            session = self._session(reader, writer, own_input=True, **how)
            yield session
            session.connection.report_loss()


# -- the doors
# Where chapters, and your own extensions in another file, hook in:
#
#   BaseServer, BaseServerSession    subclass them: options, methods, which peer a
#                      request has, how a function is called; put together in section 32
#   @handles           a function is the handler of a method
#   Unwind             ends a handler from within, with a result or an error
#   CONTEXT_TYPES, ERROR_HINTS    rows: a class of contexts, advice for an error
#   HINT_READERS, RESULT_READERS, JSON_READERS    rows: what reads a hint, a result, a
#                      part of it
#   Registration, ResourceEntry    their classes of signatures and templates
#   add_keywords, Validator.reader    rows: keywords of schemas; what reads them
#   TAPS               look at every line of a connection


# == Part III: a client ================================================================
# `Client`: how a server is started and ended, and the same methods from the other side.
# It needs part I, and does not know part II.

import atexit

# -- 14. Processes ---------------------------------------------------------------------
# A server process is started without a shell and in a small environment, as the leader
# of a process group of its own.  Its streams are read to their ends.  If it has to be
# ended, so is its whole group; if it ends by itself, what it has started may go on,
# unless that still holds its stdout when `close` is called.

AT_START = "sys.stderr"  # the default of `stderr=`, looked up when a server starts
MAX_STDERR_BYTES = 1 << 20  # of a server's stderr that we keep until it is passed on

# The environment variables that a server gets by default, as in the official SDKs: it
# can find programs with them, and they hold no secrets.
SAFE_VARIABLES = "HOME LOGNAME PATH SHELL TERM USER".split()
if os.name == "nt":
    SAFE_VARIABLES = (
        "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE "
        "SYSTEMDRIVE SYSTEMROOT TEMP USERNAME USERPROFILE").split()


def child_environment(extra: dict[str, str] | None, inherit: bool) -> dict[str, str]:
    """The environment of a server: the safe variables, or all, and `extra`."""
    env = dict(os.environ)
    if not inherit:
        # Not the functions of bash, which a shell would run (Shellshock).
        env = {key: value for key, value in env.items()
               if key in SAFE_VARIABLES and not value.startswith("()")}
    extra = extra or {}
    if os.name == "nt":  # Path and PATH are the same there
        extra = {key.upper(): value for key, value in extra.items()}
    return {**env, **extra}


# The argv, the extra environment and the directory of a program to start.
Command = tuple["list[str]", "dict[str, str] | None", "str | None"]
# resolve_command asks these first, with its arguments.
COMMAND_READERS: list[Callable[..., Command | None]] = []


def resolve_command(target: Any, env: dict[str, str] | None, cwd: str | None,
                    ) -> Command:
    """How to start a target: a file, an argv, or what COMMAND_READERS take."""
    for read in COMMAND_READERS:
        if command := read(target, env, cwd):
            return command
    refuse_address(target)
    if isinstance(target, dict):
        raise TypeError(left_out("mcp.json"))
    if isinstance(target, (str, os.PathLike)):
        return file_argv(os.fspath(target)), env, cwd
    try:
        program, *args = map(os.fspath, target)
    except (TypeError, ValueError):
        raise TypeError(
            f"neither a command nor two binary streams: {target}") from None
    return [program, *args], env, cwd


def refuse_address(target: object) -> None:
    if isinstance(target, str) and "://" in target:
        raise ValueError(f"{target} is not stdio, which is all that mcp_min speaks: "
                         'start a proxy, such as ["mcp-proxy", URL]')


def file_argv(path: str) -> list[str]:
    """The argv of a program, or of a file of Python."""
    if " " in path and not os.path.exists(path):
        raise ValueError(f"pass the command as a list: {path.split()}")
    if not path.endswith(".py"):
        return [path]
    if getattr(sys, "frozen", False):  # as by PyInstaller
        raise ValueError("this program is frozen, and cannot run a file of Python by "
                         f"itself: pass a command, ['python3', {path!r}]")
    return [sys.executable, os.path.join(".", path)]  # else "-" may begin an option


def windows_argv(argv: list[str], env: dict[str, str]) -> list[str]:
    """Find npx.cmd and the like; ValueError for arguments that cmd.exe would parse."""
    import shutil

    program, *args = map(os.fsdecode, argv)
    program = shutil.which(program, path=env.get("PATH")) or program
    if program.lower().endswith((".cmd", ".bat")):
        for part in (program, *args):
            if re.search(r'[&|<>^%"!\r\n]', part):
                raise ValueError(f"argument {part!r} is not safe for {program!r}")
    return [program, *args]


def start_process(argv: list[str], env: dict[str, str], cwd: str | None,
                  bufsize: int = 0) -> Any:
    """Start a command, looked up in the PATH of env, as a process group of its own."""
    from subprocess import PIPE, Popen

    flags = 0
    if os.name == "nt":
        argv = windows_argv(argv, env)
        flags = 0x0800_0200  # CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP
    try:
        return Popen(  # never a shell
            argv, bufsize, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd,
            start_new_session=True, creationflags=flags)
    except OSError as error:
        program, reason = os.fsdecode(argv[0]), error.strerror
        if cwd and error.filename == cwd:
            reason = f"{reason}: {cwd}"
        elif os.path.dirname(program):  # it was not looked up
            program = os.path.join(cwd or os.getcwd(), program)
        elif isinstance(error, FileNotFoundError):
            reason = f"not found in PATH={env.get('PATH', os.defpath):.200}"
        text = f"cannot start {program!r}: {reason}"
        raise type(error)(error.errno, text) from None


IMPORT_HINTS = {  # text in a server's stderr: advice
    "No module named 'mcp_min'":
        "put mcp_min.py beside the server, or start it with: mcp_min.py run FILE.py",
    "attempted relative import":
        "start it as a part of its package, with: python3 -m PACKAGE.MODULE"}


def import_hint(stderr: str) -> str:
    """What to do about an import that failed, in parentheses; or nothing."""
    for text, hint in IMPORT_HINTS.items():
        if text in stderr:
            return f" ({hint})"
    return ""


def group_killer(popen: Any) -> Callable[[int], object]:
    """A function that signals a process and its children; on Windows it ends them."""
    if os.name != "nt":
        return partial(os.killpg, popen.pid)
    import ctypes
    import weakref

    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    kernel.AssignProcessToJobObject(job, ctypes.c_void_p(int(popen._handle)))
    weakref.finalize(popen, kernel.CloseHandle, job)
    return lambda signal: kernel.TerminateJobObject(job, 1)


class StreamPair:
    """Streams to a server that we did not start (if we did, see Process)."""

    stderr_tail, exit_code = "", None

    def __init__(self, reader: ByteStream, writer: ByteStream) -> None:
        self.reader, self.writer = reader, writer

    def watch(self, connection: Connection) -> None:
        """This is the connection over the streams; there is no process to watch."""
        self._connection = connection

    def await_end(self) -> None:
        """There is no exit code to wait for."""

    def close(self) -> None:
        """Close our side, and wait 0.1 s for the end of theirs."""
        with suppress(RuntimeError):
            # A buffered stream cannot be closed while a thread is inside it.
            start_thread("mcp closing", self._close_writer)
        self._connection.peer_gone.wait(0.1)

    def _close_writer(self) -> None:
        with suppress(OSError, ValueError):
            self.writer.close()


class Process(StreamPair):
    """A server process: its streams, its stderr, how it is ended.

    Its stderr is always read, because the server would block in a full pipe.  `stderr`
    gets whole lines, on a thread of its own: it may block, and if it raises it is not
    called again.
    """

    PATIENCE = 2.0  # seconds for each step of close()

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str | None,
                 stderr: Any) -> None:
        self._popen = start_process(argv, env, cwd)
        self._kill = group_killer(self._popen)
        super().__init__(self._popen.stdout, self._popen.stdin)
        close_in_forked_children(self.reader, self.writer)
        if stderr is AT_START:
            stderr = sys.stderr
        if stderr is not None and not callable(stderr):
            stderr = partial(print, end="", file=stderr, flush=True)
        self._sink = stderr
        self._sink_thread = ThreadPool("mcp stderr sink", 1)
        self._tail = b""                # of stderr; only _read_stderr sets it
        self._stderr_read = threading.Event()  # set when all of it was read
        self._ended = threading.Event()  # set when the process has ended
        self._last_wait = 0.0           # when await_end gives up
        self._start_thread("mcp stderr reader", self._read_stderr)

    def _read_stderr(self) -> None:
        rest = b""
        with self._popen.stderr as stream:
            while chunk := stream.read(65536):
                self._tail = (self._tail + chunk)[-8192:]
                lines, newline, rest = (rest + chunk).rpartition(b"\n")
                self._pass_on(lines + newline)
                if len(rest) > 65536:  # a long line is passed on in pieces
                    self._pass_on(rest)
                    rest = b""
        self._pass_on(rest)
        self._stderr_read.set()

    def _pass_on(self, lines: bytes) -> None:
        if lines and self._sink_thread.bytes < MAX_STDERR_BYTES:
            with suppress(RuntimeError):  # no thread can be started: they are dropped
                self._sink_thread.submit(partial(self._call_sink, lines), len(lines))

    def _call_sink(self, lines: bytes) -> None:
        try:
            if self._sink:
                self._sink(decode_stderr(lines))
        except Exception:
            self._sink = None
            raise  # reported by the pool

    def watch(self, connection: Connection) -> None:
        """Close the connection when the process has ended: a child may hold stdout.

        All that the process has written is read before.
        """
        super().watch(connection)

        def wait() -> None:
            self._popen.wait()
            self._ended.set()
            connection.close_when_read(self.PATIENCE)

        self._start_thread("mcp exit", wait)

    def _start_thread(self, name: str, run: Job) -> None:
        try:
            start_thread(name, run)
        except BaseException:  # perhaps no thread will watch it: kill it now
            self._signal(9)
            raise

    @property
    def stderr_tail(self) -> str:  # type: ignore[override]
        return decode_stderr(self._tail)

    @property
    def exit_code(self) -> int | None:  # type: ignore[override]
        return self._popen.poll()  # type: ignore[no-any-return]

    def await_end(self) -> None:
        """Wait for exit code and stderr, until PATIENCE / 2 after the first call."""
        if not self._last_wait:
            self._last_wait = monotonic() + self.PATIENCE / 2
        for event in self._ended, self._stderr_read:
            event.wait(max(0.0, self._last_wait - monotonic()))

    def close(self) -> None:
        """Close stdin; SIGTERM; SIGKILL; a wait after each (basic/lifecycle)."""
        try:
            self._close_stdin(self.PATIENCE / 2)
            if not self._is_gone():
                self._signal(15)  # SIGTERM
                self._is_gone()
                self._signal(9)  # SIGKILL: others of its group may ignore SIGTERM
            self._ended.wait(self.PATIENCE)
        except BaseException:  # Ctrl-C while waiting
            self._signal(9)
            raise
        self._close_stdin(self.PATIENCE)  # if a thread was stuck in a write
        # A grandchild may keep stderr open; the thread that reads it is a daemon.
        self._stderr_read.wait(0.2)
        self._sink_thread.drain(0.2)

    def _is_gone(self) -> bool:
        """Wait a while until the process has ended.

        While its stdout is open, another process of its group probably still runs.
        """
        until = monotonic() + self.PATIENCE
        return (self._connection.peer_gone.wait(self.PATIENCE)
                and self._ended.wait(max(0.0, until - monotonic())))

    def _close_stdin(self, seconds: float) -> None:
        writing = self._connection.outbox.writing
        # Not while another thread writes; if it is stuck, the signals free it.
        if writing.acquire(timeout=seconds):
            try:
                self._close_writer()
            finally:
                writing.release()

    def _signal(self, number: int) -> None:
        with suppress(OSError):  # all have ended
            self._kill(number)


def decode_stderr(stderr: bytes) -> str:
    # Processes on Windows write \r\n.
    return stderr.decode("utf-8", "replace").replace("\r\n", "\n")


def exit_name(code: int) -> str:
    """An exit code; with the name of the signal, if one has ended the process."""
    import signal

    with suppress(ValueError):  # on Windows, any number
        return f"{code}, {signal.Signals(-code).name}"
    return str(code)


# -- 15. Client ------------------------------------------------------------------------
# The same methods from the other side.  A BaseClientSession is one connection, and
# knows its revision.  A BaseCall is one call on it: a loop in the thread that waits.
# A BaseClient holds the current session.  Answers are the user's, to a server's
# questions.

MODES = ["auto", "legacy", *LEGACY_VERSIONS]  # the values of `mode`
MAX_QUESTIONS = 8       # of a server that we answer at once; more wait
MAX_CALLS = 1000        # of `submit` that run their loops at once; more wait
MAX_ENTRIES = 100_000   # of a list, on all its pages
MAX_LIST_BYTES = 64 << 20  # of a list, on all its pages
USER_REJECTED = -1      # client/sampling: "User rejected sampling request"
COMPLETIONS_SINCE = "2025-03-26"  # before, the capability did not exist
NO_HANDSHAKE = METHOD_NOT_FOUND, UNSUPPORTED_VERSION, INVALID_REQUEST, INVALID_PARAMS
CLIENT_CAPABILITIES: Json = {  # of each handler: what is declared if it is given
    "form": ("elicitation", {"form": {}}), "url": ("elicitation", {"url": {}}),
    "sampling": ("sampling", {}), "roots": ("roots", {})}


class Entry(Fields):
    """An entry of a list: a tool, a resource, a template or a prompt."""

    _field_names = ("name title description inputSchema outputSchema annotations icons "
                    "uri uriTemplate mimeType size arguments _meta")


class PromptResult(Fields):
    """The result of `get_prompt`: description, and messages, with role and content."""

    _field_names = "description messages _meta"


# -- what a client's user answers


def answer_form(handler: Handler, params: Json) -> Json:
    """The answer to elicitation/create, made of what an elicitation_handler returns."""
    schema = params.get("requestedSchema")
    names = [*as_object(as_object(schema).get("properties"))]
    answer = handler(params.get("message", ""), schema, params)
    if type(answer) is bool and not names:  # the form asks for consent only
        answer = Elicited("accept" if answer else "decline")
    elif answer is None:
        answer = Elicited("decline")
    elif isinstance(answer, dict) and "action" in answer and "action" not in names:
        answer = Elicited(answer["action"], answer.get("content"))
    elif not isinstance(answer, Elicited):
        answer = Elicited("accept", answer)
    if answer.action != "accept" or schema is None:
        return {"action": answer.action}
    content = {} if answer.content is None else answer.content
    if not isinstance(content, dict) and len(names) == 1:  # it asks for one value
        content = {names[0]: content}
    if not isinstance(content, dict):
        raise TypeError(f"a form of several fields was answered with {content!r:.60}")
    return {"action": answer.action, "content": content}


def answer_url(handler: Handler, params: Json) -> Json:
    answer = handler(params.get("message", ""), params.get("url", ""), params)
    if isinstance(answer, Elicited):
        return {"action": answer.action}
    return {"action": "accept" if answer is True else "decline"}


def answer_sampling(handler: Handler, params: Json) -> Json:
    messages = member(params, "messages", list)
    try:
        check_tool_results(messages)
    except ValueError as error:
        raise invalid_params(str(error), "messages", str(error)) from None
    answer = handler(messages, params)
    if answer is None:
        raise McpError(USER_REJECTED, "User rejected sampling request")
    if isinstance(answer, dict):
        return answer
    return {"role": "assistant", "content": as_block(str(answer)),
            "model": "unknown", "stopReason": "endTurn"}


# Each is called with the user's handler, or the roots, and the params.
ANSWER_FUNCTIONS: dict[str, Callable[[Any, Json], Json]] = {
    "form":     answer_form,
    "url":      answer_url,
    "sampling": answer_sampling,
    "roots":    lambda roots, params: {"roots": roots},
}


class Answers:
    """The handlers of a client's user, and the capabilities declared for them.

    handlers: by the keys of ANSWER_FUNCTIONS; None: not given.
    """

    def __init__(self, capabilities: Json, **handlers: Any) -> None:
        self.declared = capabilities
        self._handlers: Json = {}
        for key, handler in wire_fields(**handlers).items():
            self._add(key, handler)

    def _add(self, key: str, handler: Any) -> None:
        self._handlers[key] = handler
        name, details = CLIENT_CAPABILITIES[key]
        more = {**details, **self.declared.get(name, {})}
        self.declared = {**self.declared, name: more}

    def set_roots(self, roots: list[Any]) -> None:
        if isinstance(roots, (str, os.PathLike)):
            raise TypeError(f"roots is a list of paths or file URIs, not {roots!r}")
        self._add("roots", [*map(root_of, roots)])

    def answer(self, method: str, params: Json, version: str) -> Json:
        """See Client.answer."""
        if method not in CLIENT_REQUESTS:
            raise method_not_found(method)
        capability = CLIENT_REQUESTS[method]
        key, field = capability, "tools"
        if capability == "elicitation":
            key, field = params.get("mode") or "form", "mode"
        is_declared = not undeclared(method, params, self.declared, version)
        if not is_declared and declares(self.declared, capability):
            raise invalid_params(
                f"The client did not declare this kind of {capability}", field,
                "not declared")
        if not is_declared or key not in self._handlers:
            raise method_not_found(method)
        try:
            return ANSWER_FUNCTIONS[key](self._handlers[key], params)
        except McpError:
            raise
        except Exception as error:
            log_exception(f"mcp_min: answering {method} failed")
            raise McpError(INTERNAL_ERROR, "The client failed to answer") from error


def root_of(root: Any) -> Json:
    """A root as it is sent; ValueError if it is no file URI (client/roots: "MUST")."""
    if not isinstance(root, dict):
        from pathlib import Path

        uri = os.fspath(root)
        if "://" not in uri and not uri.startswith("file:"):
            uri = Path(uri).absolute().as_uri()
        root = {"uri": uri}
    uri = str(root.get("uri"))
    if not uri.startswith("file://"):
        raise ValueError(f"a root is a path or a file URI, not {uri!r:.100}")
    return {**root, "uri": uri}


# -- calls


class Settings(SimpleNamespace):
    """The options (see Client); answers: the handlers for a server's questions."""

    def __init__(self, *, timeout: float | None, max_timeout: float | None,
                 client_info: Json | None, roots: list[Any] | None,
                 capabilities: Json | None, sampling_handler: Any,
                 elicitation_handler: Any, url_handler: Any, **options: Any) -> None:
        super().__init__(**options)
        if left_out(self.mode):
            raise ValueError(left_out(self.mode))
        check_choice("mode", self.mode, MODES)
        check_choice("log_level", self.log_level or LEVELS[0], LEVELS)
        self.timeout = INFINITE if timeout is None else timeout
        self.max_timeout = INFINITE if max_timeout is None else max_timeout
        self.connect_timeout = self.timeout
        if self.timeout == INFINITE:
            self.connect_timeout = self.max_timeout
        self.client_info = client_info or {"name": "mcp_min", "version": __version__}
        require_sync(sampling_handler, elicitation_handler, url_handler,
                     self.log_handler, self.message_handler, self.progress_handler)
        self.answers = Answers(capabilities or {}, form=elicitation_handler,
                               url=url_handler, sampling=sampling_handler)
        if roots is not None:
            self.answers.set_roots(roots)


class ClientRequests(Requests["OutgoingRequest"]):
    """The requests of a client."""

    def find(self, request_id: object) -> OutgoingRequest | None:
        # Some servers return id 1 as "1".
        if type(request_id) is str and re.fullmatch("[1-9][0-9]{0,18}", request_id):
            request_id = int(request_id)
        return super().find(request_id)


class BaseCall(OutgoingRequest):
    """A call on a server: a loop in the thread that waits for it.

    on_progress(progress, total, message): called on that thread; None once no more
    progress is to be told.
    """

    def __init__(self, session: BaseClientSession, method: str, params: Json | None,
                 timeout: float | None = None, max_timeout: float | None = None,
                 progress_handler: Handler | None = None) -> None:
        settings = session.settings
        require_sync(progress_handler)
        if timeout is None:
            timeout = settings.timeout
        if max_timeout is None:
            max_timeout = settings.max_timeout
        super().__init__(
            session.connection, method, timeout, monotonic() + max_timeout)
        self.session, self.params = session, params or {}
        name = self.params.get("name") or self.params.get("uri")
        if name:
            self.label = f"{method} {name!s:.100}"
        self.on_progress: Any = progress_handler or settings.progress_handler
        # Bytes of progress queued by the reader, and told by the thread that waits.
        self._noted = self._told = 0

    def begin(self, **more: object) -> None:
        """Send it, with extra params."""
        self._sent_at = monotonic()
        params = self.session.prepare({**self.params, **more})
        self.send(params, with_token=True)
        self.session.began(self)

    def result(self) -> Json:
        """Wait for the result."""
        return self.wait()  # type: ignore[no-any-return]

    def run(self) -> Json:
        """Send it, and wait for its result."""
        try:
            self.begin()
            return self.result()
        except BaseException:  # also Ctrl-C just after it was sent
            self.give_up("cancelled")  # does nothing if it has an outcome
            raise

    def submit(self, read: Callable[[Json], T]) -> Future[T]:
        """Send it; return a future of what `read` returns for its result.

        The loop runs on a thread of a pool, as do `read` and the callbacks of the
        future: they may take long, and may use the client.
        """
        from concurrent.futures import Future

        future: Future[T] = Future()

        def run() -> None:
            outcome = Outcome.of(lambda: read(self.result()))
            self.give_up("cancelled")  # if it was cancelled while it was sent again
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(outcome())
            except BaseException as error:
                future.set_exception(error)

        try:
            self.begin()
            future.add_done_callback(lambda _: self.cancel())  # harmless at its end
            self.session.wait_elsewhere(run)
        except BaseException:  # such as: no thread can be started
            self.give_up("cancelled")
            raise
        return future

    def deadline(self) -> float:
        since = max(self.heard_at, self.session.counts_since(self._sent_at))
        return min(since + self.timeout, self.last_deadline)

    def cancel(self) -> None:
        self.on_progress = None
        super().cancel()

    def fail(self) -> None:
        self.on_progress = None
        super().fail()

    def note_progress(self, params: Json, size: int) -> bool:
        """Progress has come; let the thread that waits tell its handler."""
        is_news = super().note_progress(params, size)
        has_room = self._noted - self._told <= MAX_BACKLOG_BYTES
        if is_news and has_room and self.on_progress:
            self._noted += size
            self.inbox.call(partial(self._tell, params, size))
        return is_news

    def _tell(self, params: Json, size: int) -> None:
        self._told += size
        tell = self.on_progress
        if tell is None or monotonic() >= self.last_deadline:
            return  # there is no time left for it
        try:
            tell(params["progress"], params.get("total"), params.get("message"))
        except Exception:
            log_exception(f"mcp_min: the progress handler of {self.label} failed")


class Subscriptions:
    """What a client has subscribed to on a connection: each URI is a request.

    uris: in order; the next connection renews them.
    """

    def __init__(self, session: BaseClientSession, uris: Iterable[str]) -> None:
        self.session = session
        self.changing = threading.Lock()  # held while they are being changed
        self.uris = [*uris]

    def change(self, action: str, uri: str, timeout: float | None) -> None:
        """Subscribe or unsubscribe; one thread after the other."""
        seconds = self.session.settings.timeout if timeout is None else timeout
        seconds = max(0.0, min(seconds, threading.TIMEOUT_MAX))
        if not self.changing.acquire(timeout=seconds):
            raise RequestTimeout(f"{uri}: timed out waiting for another thread's "
                                 "subscribe or unsubscribe")
        try:
            wanted = [one for one in self.uris if one != uri]
            if action == "subscribe":
                wanted = [*dict.fromkeys([*self.uris, uri])]
            if action == "subscribe" or wanted != self.uris:
                self.ask(action, uri, wanted, timeout)
                self.uris = wanted
        finally:
            self.changing.release()
        self.changed()

    def changed(self) -> None:
        """What is subscribed to may have changed."""

    def ask(self, action: str, uri: str, wanted: list[str], timeout: float | None,
            ) -> None:
        """Ask the server.  wanted: all subscriptions as they will be."""
        self.session.call(f"resources/{action}", {"uri": uri}, timeout).run()

    def renew(self) -> None:
        """Subscribe to what the connection before this one had."""
        for uri in self.uris:
            try:
                self.renew_one(uri)
            except (McpError, RequestTimeout) as error:
                self.uris = [one for one in self.uris if one != uri]
                warn(f"mcp_min: no longer subscribed to {uri}: {error}\n")

    def renew_one(self, uri: str) -> None:
        self.session.ask("resources/subscribe", {"uri": uri}).wait()

    def takes(self, method: str, params: Json, size: int) -> bool:
        """True for a notification that the user's handlers do not get."""
        return method == CANCELLED  # of a request that is over

    def tell_end(self) -> None:
        """Notify the user that all subscriptions have ended; not if closed by us."""
        session, wanted = self.session, self.filter(self.uris)
        if session.is_closed or not wanted:
            return
        if not session.is_dead():  # if it is, auto_restart subscribes again
            self.uris = []
        session.call_handlers(CANCELLED, {
            "notifications": wanted, "reason": "The server ended the subscription"}, 0)

    def filter(self, uris: list[str]) -> Json:
        """What the client wants to hear of, as a filter of subscriptions/listen."""
        wanted: Json = {}
        if self.session.settings.message_handler:
            for capability, (_, key) in CHANGES.items():
                if declares(self.session.capabilities, f"{capability}.listChanged"):
                    wanted[key] = True
        if uris:
            wanted[UPDATES_WANTED] = [*uris]
        return wanted


class BaseClientSession(Session):
    """A client's end of a connection, and the server process if there is one.

    version: the revision agreed on, "" until then.  methods: those that a server may
    have in it.  When the server is started again, the Client gets a new session.
    """

    call_class = BaseCall
    methods = METHODS

    def __init__(self, settings: Settings, process: StreamPair,
                 uris: Iterable[str] = ()) -> None:
        """uris: the subscriptions of the session before this one."""
        self.settings, self.process = settings, process
        self.connection = Connection(
            self, process.reader, process.writer, own_input=True,
            pool=ThreadPool("mcp questions", MAX_QUESTIONS),
            max_message_bytes=settings.max_message_bytes)
        self.connection.outgoing = ClientRequests()
        self.version = ""
        self.capabilities: Json | None = None  # None: the server did not say
        self.server_info: Json = {}
        self.instructions: str | None = None
        self.stray_lines: deque[Line] = deque(maxlen=20)  # that were not messages
        self._calls = ThreadPool("mcp calls", MAX_CALLS)  # of `submit`
        # Questions that our user is answering, and when the last one was answered.
        self._asking: dict[IncomingRequest, float] = {}  # since when
        self._answered_at = 0.0
        self.subscriptions = Subscriptions(self, uris)
        self._deadline = 0.0              # the deadline of connecting
        self.is_closed = False            # close() was called before the server ended
        self._ending = threading.RLock()  # held while the process is being ended
        self._is_over = False             # the process was ended
        self.declared_roots = False       # and may notify of changes
        if isinstance(process, Process):
            atexit.register(self.close)
        process.watch(self.connection)

    # -- its begin
    def begin(self, mode: str, deadline: float) -> None:
        """Agree on a revision by the deadline, then set the log level and subscribe."""
        self._deadline = deadline
        self.adopt(*self.negotiate(mode))
        self.set_up()

    def negotiate(self, mode: str) -> tuple[str, Json]:
        """Return the revision agreed on, and what the server says of itself."""
        settings = self.settings
        capabilities = dict(settings.answers.declared)
        self.declared_roots = "roots" in capabilities
        if self.declared_roots:
            capabilities["roots"] = {**capabilities["roots"], "listChanged": True}
        params = {"protocolVersion": mode if mode in LEGACY_VERSIONS else LEGACY,
                  "capabilities": capabilities, "clientInfo": settings.client_info}
        try:
            result = self.ask("initialize", params).wait()
        except McpError as error:
            lacks = left_out("2026-07-28")
            if lacks and error.code in NO_HANDSHAKE:  # it may know only this
                error.message += f" ({lacks})"
            raise
        version = result.get("protocolVersion")
        if version not in LEGACY_VERSIONS:
            raise no_common_version([version])
        return version, result

    def adopt(self, version: str, result: Json) -> None:
        """This is the revision; result: what the server says of itself."""
        self.version = version
        if "capabilities" in result:
            self.capabilities = as_object(result["capabilities"])
        self.server_info = as_object(result.get("serverInfo"))
        self.instructions = result.get("instructions")

    def set_up(self) -> None:
        self.notify(INITIALIZED)
        level = self.settings.log_level
        if level and self.offers("logging/setLevel"):
            self.ask("logging/setLevel", {"level": level}).wait()
        self.subscriptions.renew()

    def seconds_left(self) -> float:
        """Seconds left to connect; rounded, because error messages show it."""
        return max(0.001, round(self._deadline - monotonic(), 3))

    def ask(self, method: str, params: Json) -> OutgoingRequest:
        """Send a request while connecting."""
        request = OutgoingRequest(self.connection, method, self.seconds_left())
        request.send(params)
        return request

    # -- calls
    def prepare(self, params: Json) -> Json:
        """The params of a call as they are sent."""
        return params

    def began(self, request: OutgoingRequest) -> None:
        """A call was sent, and the calling thread is about to wait for it."""

    def wait_elsewhere(self, run: Job) -> None:
        """Let another thread wait for a call."""
        self._calls.submit(run)

    def offers(self, method: str) -> bool:
        """True if the server declared what a method needs, or declared nothing."""
        needed = METHODS[method].capability
        if not needed or self.capabilities is None:
            return True
        if needed == "completions" and self.version < COMPLETIONS_SINCE:
            return True
        return declares(self.capabilities, needed)

    def call(self, method: str, params: Json | None, *options: Any) -> BaseCall:
        return self.call_class(self, method, params, *options)

    def notify(self, method: str, params: Json | None = None) -> None:
        if self.connection.closed:
            raise self.closed_error()
        self.connection.send(notification(method, params))

    def counts_since(self, sent_at: float) -> float:
        """The moment from which the timeout of a call sent at `sent_at` counts.

        It does not count while the user is asked something that came later, because the
        call may wait for the answer.
        """
        asking = self._asking.copy().values()
        if any(since > sent_at for since in asking):
            return monotonic()
        return self._answered_at

    # -- from the server
    def allows_batches(self) -> bool:
        # The reader may be faster than the thread that sets the version.
        return not self.version or REVISIONS[self.version].batches

    def is_for_reader(self, method: str) -> bool:
        return method not in CLIENT_REQUESTS

    def handle(self, request: IncomingRequest) -> Json:
        if request.method == "ping":
            return {}
        params = require_type(request.params, dict, "params")
        if request.method in ("initialize", "server/discover"):
            # A server that echoes our request also echoes this error, which ends it.
            raise McpError(METHOD_NOT_FOUND, "the server sends our own requests back")
        if not self.version or request.method not in CLIENT_REQUESTS:
            raise method_not_found(request.method)  # also while it connects
        declared = self.settings.answers.declared
        is_refused = undeclared(request.method, params, declared, self.version)
        if not is_refused and request.method != "roots/list":  # the user has to answer
            self._asking[request] = monotonic()
            request.on_cancel(partial(self._answered, request))
        try:
            return self.answer(request.method, params, request)
        finally:
            self._answered(request)

    def _answered(self, request: IncomingRequest) -> None:
        if self._asking.pop(request, None):
            self._answered_at = monotonic()

    def answer(self, method: str, params: Json, asker: object = None) -> Json:
        """See Client.answer.  asker: the request or the call that has this question."""
        return self.settings.answers.answer(method, params, self.version)

    def error_text(self, error: BaseException) -> str:
        return "The client failed to answer"  # our stderr has the text

    def handle_stray_line(self, line: Line) -> None:
        is_first = not self.stray_lines
        self.stray_lines.append(line[:500])
        is_noise = line[:1] not in (b"{", b"[")
        if is_first and is_noise and self.settings.stderr is not None:
            text = line[:60].decode("utf-8", "replace")
            warn("mcp_min: the server wrote something other than JSON-RPC to stdout: "
                 f"{text!r}.  Many hosts give up at that: let it print to stderr, or "
                 "start it with: mcp_min.py run FILE.py\n")

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        if not (self.subscriptions.takes(method, params, size)
                or self.connection.callbacks.bytes > MAX_BACKLOG_BYTES):
            self.call_handlers(method, params, size + REQUEST_COST)

    def call_handlers(self, method: str, params: Json, size: int) -> None:
        settings, call = self.settings, self.connection.callbacks.submit
        try:
            if settings.log_handler and method == LOG_MESSAGE:
                call(partial(settings.log_handler, Fields.of(params)), size)
            if settings.message_handler:
                message = {"method": method, "params": params}
                call(partial(settings.message_handler, message), size)
        except RuntimeError:  # no thread can be started for it
            log_exception("mcp_min: a notification was dropped")

    # -- its end
    def on_end(self) -> None:
        if self.version:
            self.subscriptions.tell_end()

    def timeout_error(self, reason: str) -> RequestTimeout:
        return RequestTimeout(reason + self._other_output(self.process.stderr_tail))

    def closed_error(self) -> ConnectionClosed:
        process, text = self.process, "The server has closed the connection"
        if self.connection.why_closed:
            text = f"The connection was closed: {self.connection.why_closed}"
        if self.is_closed:
            text = "The client is closed"
            return ConnectionClosed(text, process.exit_code, process.stderr_tail)
        process.await_end()
        code, stderr = process.exit_code, process.stderr_tail
        if code is not None:
            text += f" (exit code {exit_name(code)})"
        if code == 0 and not self.version:
            text += ": did it call server.run()?"
        text += import_hint(stderr) + self._other_output(stderr)
        return ConnectionClosed(text, code, stderr)

    def _other_output(self, stderr: str) -> str:
        """What the server wrote besides messages, which often shows the reason."""
        lines = ["stderr: " + line for line in stderr.splitlines()[-20:]]
        for line in [*self.stray_lines]:  # the reader may add one
            lines.append("stdout: " + line.decode("utf-8", "replace"))
        return escape_control("".join(f"\n  {line}" for line in lines))

    def is_dead(self) -> bool:
        """True if the server has ended, even if the end of its stdout was not read."""
        return self.connection.ending or self.process.exit_code is not None

    def close(self) -> None:
        """Close the connection and end the process; waits up to some 6 s."""
        atexit.unregister(self.close)
        if self.connection.pid != os.getpid():
            return  # a forked child must not end the process
        self.is_closed = self.is_closed or not self.is_dead()
        try:
            self.connection.outbox.wait_until_written(0.5)
            self.connection.close()
            self.connection.callbacks.drain(1.0)  # the last log messages
        finally:
            with self._ending:  # a second call waits for the first
                if not self._is_over:
                    self._is_over = True
                    self.process.close()


def no_common_version(supported: object) -> McpError:
    known = list(REVISIONS)
    text = f"the server has {supported!r:.200}, this client {', '.join(known)}"
    return McpError(UNSUPPORTED_VERSION, f"No common protocol version: {text}", {
        "supported": supported, "requested": known})


def check_complete(result: Json) -> Json:
    """Return the final result of a request; McpError if its type is not "complete"."""
    result_type = result.get("resultType", "complete")
    if result_type != "complete":  # basic: "MUST be ... invalid"
        raise invalid_response(f"resultType {result_type!r:.60}")
    return result


def list_of_objects(result: Json, key: str) -> list[Json]:
    """The list of objects under a key of a result; McpError if there is none."""
    objects = result.get(key)
    if type(objects) is not list or any(type(item) is not dict for item in objects):
        raise invalid_response(f'"{key}" is not a list of objects')
    return objects


def list_method(like: F, name: str, method: str, text: str) -> F:
    """A method of Client like another one, for another list; text: its docstring."""
    def entries(self: BaseClient, *, cursor: Any = ...,
                timeout: float | None = None) -> Any:
        return self._list(method, cursor, timeout)

    entries.__name__, entries.__doc__ = name, text
    return entries  # type: ignore[return-value]


class BaseClient:
    """What every Client has; see there, also for the options."""

    _session_class: Any = BaseClientSession
    _hosted_class: Any = None  # of a Server in this process
    _process_class: type[Process] = Process
    _tapped = True  # TAPS may show its lines

    def __init__(self, target: Any, **options: Any) -> None:
        self._target, self._settings = target, Settings(**options)
        self._lock = threading.RLock()    # held while connecting
        self._session: BaseClientSession | None = None
        self._closed = False
        self._outputs: dict[str, Json] = {}  # schemas, of the tools listed last

    # -- connecting
    def __enter__(self: ClientT) -> ClientT:  # noqa: PYI019 - no Self before 3.11
        return self.connect()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self: ClientT) -> ClientT:  # noqa: PYI019
        """Start the server and agree on a revision; does nothing if it is connected.

        Blocks for at most `timeout`; on failure `close` may add 5 s, and the lifespan
        of a Server in this process is not limited.  See basic/lifecycle,
        basic/versioning.

        Raises:
            OSError: the command cannot be started.
            RequestTimeout, ConnectionClosed, McpError: the server was started, but no
                session was agreed on; it has been ended.
        """
        with self._lock:
            if not self.is_connected():
                self._closed = False
                self._connect()
        return self

    def _connect(self) -> None:
        start_thread("mcp client", lambda: None)  # fails if none can be started
        if self._session:  # processes and pipes of it may be left
            self._session.close()
        self._begin(self._settings.mode, monotonic() + self._settings.connect_timeout)

    def _begin(self, mode: str, deadline: float) -> None:
        uris = self._session.subscriptions.uris if self._session else ()
        self._session = session = self._session_class(
            self._settings, self._start(), uris)
        try:
            session.connection.start(self._tapped)
            if self._closed:  # by another thread, before it could see this session
                raise ConnectionClosed("The client is closed")
            session.begin(mode, deadline)
        except BaseException as error:
            session.close()
            if isinstance(error, RequestTimeout):
                seconds = self._settings.connect_timeout
                error = RequestTimeout(f"connecting took over {seconds:g} s: {error}")
            raise error from None

    def _start(self) -> StreamPair:
        target, settings = self._target, self._settings
        if self._hosted_class and hasattr(target, "serve"):
            return self._hosted_class(target)  # type: ignore[no-any-return]
        if type(target) is tuple and len(target) == 2 and hasattr(target[1], "write"):
            return StreamPair(*target)
        argv, env, cwd = resolve_command(target, settings.env, settings.cwd)
        env = child_environment(env, settings.inherit_env)
        return self._process_class(argv, env, cwd, settings.stderr)

    def close(self) -> None:
        """Close the connection and end the server's process; running calls fail.

        Blocks for about 6 s if the server ignores all signals but SIGKILL.
        """
        self._closed = True
        if self._session:
            self._session.close()

    def is_connected(self) -> bool:
        """True between `connect` and `close`, unless the server has ended."""
        session = self._session
        return not (session is None or self._closed or session.is_dead())

    def _live(self, method: str = "") -> BaseClientSession:
        """The session to send a request on; McpError if the server does not offer it.

        With auto_restart a server that has died is started again.
        """
        with self._lock:  # another thread may be connecting right now
            session = self._session
            may_restart = self._settings.auto_restart and not self._closed
            if may_restart and session and session.is_dead():
                self._connect()  # fails if `close` is called
                session = self._session
        if not (session and session.version):
            raise ConnectionClosed(
                "The client is not connected; use `with`, or connect()")
        if method and not session.offers(method):
            raise McpError(METHOD_NOT_FOUND, f"The server does not offer {method}",
                           {"method": method})
        return session

    @property
    def server_info(self) -> Json:
        """The server's name and version."""
        return self._session.server_info if self._session else {}

    @property
    def server_capabilities(self) -> Json:
        """The capabilities that the server has declared."""
        return (self._session and self._session.capabilities) or {}

    @property
    def instructions(self) -> str | None:
        """How to use the server, or None."""
        return self._session.instructions if self._session else None

    @property
    def protocol_version(self) -> str | None:
        """The revision agreed on, or None."""
        return (self._session and self._session.version) or None

    @property
    def stderr_tail(self) -> str:
        """The last 8 KB the server wrote to stderr."""
        return self._session.process.stderr_tail if self._session else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server's process, negative for a signal, or None."""
        return self._session.process.exit_code if self._session else None

    # -- any request
    def request(self, /, method: str, params: Json | None = None, *,
                timeout: float | None = None, max_timeout: float | None = None,
                progress_handler: Handler | None = None) -> Json:
        """Send any request and wait for its result.

        max_timeout: seconds in all, whatever progress comes; by default the client's.
        progress_handler(progress, total, message): instead of the client's; called on
        this thread, before this returns: what it takes is not interrupted.
        """
        call = self._live().call(
            method, params, timeout, max_timeout, progress_handler)
        return call.run()

    def submit(self, method: str, params: Json | None = None, *,
               timeout: float | None = None, max_timeout: float | None = None,
               progress_handler: Handler | None = None) -> Future[Json]:
        """Send any request; return a concurrent.futures.Future of its result at once.

        `cancel()` of the future also cancels the request.  max_timeout,
        progress_handler: see `request`; the handler is called on a thread of a pool.

        A `subscriptions/listen` request of your own stays open: give it infinite
        timeouts.  message_handler gets its acknowledgement and its notifications.
        """
        call = self._live().call(
            method, params, timeout, max_timeout, progress_handler)
        return call.submit(lambda result: result)

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send any notification."""
        self._live().notify(method, params)

    def answer(self, method: str, params: Json | None = None) -> Json:
        """Answer a question with the handlers of this client, as if it were asked now.

        For extensions whose messages carry questions, such as the `inputRequests` of a
        task.  McpError: it is refused, or the handler has failed and stderr says why.
        """
        return self._live().answer(method, params or {})

    def ping(self, *, timeout: float | None = None) -> bool:
        """Send a ping, or `server/discover` if stateless; True when it was answered."""
        session = self._live()
        method = "ping" if "ping" in session.methods else "server/discover"
        session.call(method, None, timeout).run()
        return True

    def _request(self, method: str, params: Json, timeout: float | None) -> Json:
        return check_complete(self._live(method).call(method, params, timeout).run())

    # -- tools
    def call_tool(self, /, name: str, arguments: Json | None = None, *,
                  timeout: float | None = None, max_timeout: float | None = None,
                  progress_handler: Handler | None = None,
                  raise_on_error: bool = True, meta: Json | None = None) -> ToolResult:
        """Call a tool and wait for its result (server/tools, "Calling Tools").

        Raises ToolError if the tool has failed; with raise_on_error=False see
        `is_error` of the result.  max_timeout, progress_handler: see `request`.
        """
        call = self._tool_call(name, arguments, meta, timeout, max_timeout,
                               progress_handler)
        return self._read_tool(name, raise_on_error, call.run())

    def submit_tool(self, name: str, arguments: Json | None = None, *,
                    timeout: float | None = None, max_timeout: float | None = None,
                    progress_handler: Handler | None = None,
                    raise_on_error: bool = True,
                    meta: Json | None = None) -> Future[ToolResult]:
        """Call a tool; return a concurrent.futures.Future of its result at once.

        `cancel()` of the future also cancels the request.  max_timeout,
        progress_handler: see `submit`.
        """
        call = self._tool_call(name, arguments, meta, timeout, max_timeout,
                               progress_handler)
        return call.submit(partial(self._read_tool, name, raise_on_error))

    def _tool_call(self, name: str, arguments: Json | None, meta: Json | None,
                   *options: Any) -> BaseCall:
        params: Json = {"name": name, "arguments": arguments or {}}
        if meta:
            params["_meta"] = meta
        return self._live("tools/call").call("tools/call", params, *options)

    def _read_tool(self, name: str, raise_on_error: bool, raw: Json) -> ToolResult:
        check_complete(raw)  # `request` does not check this, for extensions
        if type(raw.get("content", [])) is not list:
            raise invalid_response('"content" is not a list')
        result = ToolResult.of(raw)
        if result.is_error and raise_on_error:
            error = ToolError(result.text or f"{name} has failed")
            error.result = result
            raise error
        if WRAPS_RESULT in self._outputs.get(name, ()):
            result.wrapped = True
        return result

    # -- lists
    def _page(self, method: str, cursor: str | None, timeout: float | None,
              max_timeout: float | None = None) -> tuple[Json, int]:
        """A page of a list, and its size in bytes."""
        call = self._live(method).call(
            method, wire_fields(cursor=cursor), timeout, max_timeout)
        page, key = check_complete(call.run()), METHODS[method].list_key
        page[key] = [*map(Entry.of, list_of_objects(page, key))]
        return page, call.size

    def _list(self, method: str, cursor: Any, timeout: float | None) -> Any:
        """All entries of a list, within `max_timeout`; or a page as it came."""
        if cursor is ...:
            last_deadline = monotonic() + self._settings.max_timeout
            return self._all_pages(method, timeout, last_deadline)
        page, _ = self._page(method, cursor, timeout)
        return page

    def _all_pages(self, method: str, timeout: float | None, last_deadline: float,
                   begins_again: bool = False) -> list[Entry]:
        """If a cursor has become invalid, begin again once (server/utilities)."""
        entries: list[Entry] = []
        cursors: set[str] = set()
        cursor, total = None, 0
        while True:
            seconds = last_deadline - monotonic()
            try:
                page, size = self._page(method, cursor, timeout, seconds)
            except McpError as error:
                if error.code != INVALID_PARAMS or cursor is None or begins_again:
                    raise
                return self._all_pages(method, timeout, last_deadline, True)
            entries += page[METHODS[method].list_key]
            total += size
            cursor = page.get("nextCursor")
            if cursor is None:  # "" is a cursor too
                return entries
            count = len(entries) + len(cursors)  # the pages may be empty
            if type(cursor) is not str or cursor in cursors or (
                    total > MAX_LIST_BYTES or count > MAX_ENTRIES):
                raise invalid_response(f"the pages of {method} do not end "
                                       f"(after {len(entries):,} entries)")
            cursors.add(cursor)

    @overload
    def list_tools(self, *, timeout: float | None = ...) -> list[Entry]: ...
    @overload
    def list_tools(self, *, cursor: str | None,
                   timeout: float | None = ...) -> Json: ...
    def list_tools(self, *, cursor: Any = ..., timeout: float | None = None) -> Any:
        """All tools, from all pages; or one page of them (server/tools).

        Tools are dicts whose fields are attributes too.

        cursor: of a page, None for the first.  The page is returned as it came, a dict
        with `tools` and, unless it is the last, `nextCursor`: the cursor of the next.
        """
        listed = tools = self._list("tools/list", cursor, timeout)
        if cursor is not ...:
            tools = listed["tools"]
        outputs = {
            str(tool.get("name")): tool["outputSchema"]
            for tool in tools if type(tool.get("outputSchema")) is dict}
        if outputs and left_out("output schemas"):
            import warnings

            text = f"results are not checked against {left_out('output schemas')}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if cursor not in (None, ...):  # it adds to the pages before it
            outputs = {**self._outputs, **outputs}
        self._outputs = outputs
        return listed

    list_resources = list_method(
        list_tools, "list_resources", "resources/list",
        "All resources, or a page: see `list_tools` (server/resources).")
    list_resource_templates = list_method(
        list_tools, "list_resource_templates", "resources/templates/list",
        "All templates, or a page: see `list_tools` (server/resources).")
    list_prompts = list_method(
        list_tools, "list_prompts", "prompts/list",
        "All prompts, or a page: see `list_tools` (server/prompts).")

    # -- resources, prompts, completion
    def read_resource(self, uri: str, *, timeout: float | None = None,
                      ) -> list[ResourceContents]:
        """The contents of a resource, with `.text` and `.data` (server/resources)."""
        result = self._request("resources/read", {"uri": str(uri)}, timeout)
        return [*map(ResourceContents.of, list_of_objects(result, "contents"))]

    def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Subscribe to a resource: message_handler is called when it has changed.

        If the server ends the subscription, or dies, it gets `notifications/cancelled`
        (server/resources, "Subscriptions").
        """
        session = self._live("resources/subscribe")
        session.subscriptions.change("subscribe", uri, timeout)

    def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """End a subscription; does nothing if there is none."""
        self._live().subscriptions.change("unsubscribe", uri, timeout)

    def get_prompt(self, name: str, arguments: dict[str, str] | None = None, *,
                   timeout: float | None = None) -> PromptResult:
        """The `messages` of a prompt, and its `description` (server/prompts)."""
        params = {"name": name, "arguments": arguments or {}}
        result = self._request("prompts/get", params, timeout)
        list_of_objects(result, "messages")
        return PromptResult.of(result)

    def complete(self, ref: str | Json, argument: str, value: str,
                 context: dict[str, str] | None = None, *,
                 timeout: float | None = None) -> Json:
        """Complete an argument; return a dict of `values`, `total`, `hasMore`.

        ref: the name of a prompt, a URI template, or a dict as in the protocol.  value:
        the text so far.  context: the other arguments (server/utilities/completion).
        """
        if type(ref) is str and "{" in ref:
            ref = {"type": "ref/resource", "uri": ref}
        elif type(ref) is str:
            ref = {"type": "ref/prompt", "name": ref}
        params = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": context}
        result = self._request("completion/complete", params, timeout)
        completion = as_object(result.get("completion"))
        if type(completion.get("values")) is not list:
            raise invalid_response('"completion" has no list of values')
        return completion

    # -- settings
    def set_logging_level(self, level: str, *, timeout: float | None = None) -> None:
        """Let the server send log messages of this level and above.

        Raises McpError if there is no such level (server/utilities/logging).
        """
        require_one_of("level", level, LEVELS)
        session = self._live("logging/setLevel")
        if "logging/setLevel" in session.methods:  # otherwise each request carries it
            session.call("logging/setLevel", {"level": level}, timeout).run()
        self._settings.log_level = level

    def set_roots(self, roots: list[Any]) -> None:
        """Set the directories that the server may use, and notify it (client/roots).

        roots: paths, file URIs, or dicts with uri and name; ValueError for another URI.
        A server of a handshake revision asks for them only if the client was made with
        `roots=`, be it an empty list.
        """
        answers, session = self._settings.answers, self._session
        answers.set_roots(roots)
        if session and self.is_connected() and session.declared_roots:
            session.notify(ROOTS_CHANGED)


ClientT = TypeVar("ClientT", bound=BaseClient)


# The doors of a client, where chapters, and your own extensions, hook in:
#
#   classes             of a client, of its session (_session_class), of a call
#                       (call_class: its result may not be one yet), of a process
#                       (_process_class), of a Server in this process (_hosted_class);
#                       "The client" composes them
#   COMMAND_READERS     rows: how a target is started
#   MODES               how a client may begin
#   negotiate, adopt, set_up    how a session agrees on a revision, and what follows
#   prepare             what all params have besides their own
#   takes               notifications that are not for the user's handlers
#   ANSWER_FUNCTIONS, _read_tool    what becomes of an answer, and of a tool's result
#   began, wait_elsewhere, answer    what a thread does for a call, or for a question


# -- 16. A server in this process ------------------------------------------------------
# Of parts II and III.
#
# Client(server) joins both ends with pipes; neither knows the other's part.


class HostedServer(StreamPair):
    """A Server in this process, behind two pipes."""

    # What has a job done on one of our threads; None: the server has its own.
    run_soon: Callable[[Job], None] | None = None

    def __init__(self, server: Any) -> None:
        reader, their_writer = pipe_streams()
        their_reader, writer = pipe_streams()
        super().__init__(reader, writer)
        self._their_writer = their_writer
        try:
            self._session = server._session(
                their_reader, their_writer, own_input=True, tapped=False,
                run_soon=self.run_soon)
            self._session.begin()  # raises what the lifespan raises
        except BaseException:
            for stream in (reader, writer, their_reader, their_writer):
                stream.close()
            raise

    def close(self) -> None:
        self._close_writer()
        with self._their_writer:
            self._session.finish(2)
        self._connection.peer_gone.wait(2)


def pipe_streams() -> tuple[ByteStream, ByteStream]:
    reader, writer = os.pipe()
    # Not `open`, which a test may have replaced.
    return os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)


BaseClient._hosted_class = HostedServer


# == Part IV: chapters =================================================================
# What may be left out of a copy; nothing above names it.  Each section says to which
# chapter it belongs, what that adds, and by which doors it comes in.  Sections 32 and
# 33 put a Server and a Client together from what a copy has.

# -- 17. Stateless ---------------------------------------------------------------------
# Chapter: stateless, of both.
#
# Revision 2026-07-28 has no handshake: each request brings along in `_meta` what the
# handshake says in others.

__all__ += ["MISSING_CAPABILITY"]

REVISIONS["2026-07-28"] = Revision(False, True, "form url")
MODERN_VERSIONS = [date for date in REVISIONS if date not in LEGACY_VERSIONS]
# What the stateless revision dropped, and below what replaces it.
LEGACY_METHODS = ("initialize", "ping", "resources/subscribe", "resources/unsubscribe",
                  "logging/setLevel")
MODERN_METHODS = {
    **{name: row for name, row in METHODS.items() if name not in LEGACY_METHODS},
    "server/discover":       Method(on_reader=True),
    # A stream: it is answered when it ends, and must not occupy a thread.
    "subscriptions/listen":  Method(on_reader=True),
}
LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

META_PREFIX = "io.modelcontextprotocol/"
META_VERSION = META_PREFIX + "protocolVersion"
META_CLIENT = META_PREFIX + "clientInfo"
META_CAPABILITIES = META_PREFIX + "clientCapabilities"
META_LOG_LEVEL = META_PREFIX + "logLevel"
META_SERVER = META_PREFIX + "serverInfo"
META_SUBSCRIPTION = META_PREFIX + "subscriptionId"

MISSING_CAPABILITY = -32021  # the client did not declare what is needed
# Only stateless servers send these; -32020 is "header mismatch", of HTTP.
MODERN_CODES = (-32020, MISSING_CAPABILITY, UNSUPPORTED_VERSION)


# -- 18. Stateless, of a server --------------------------------------------------------
# Chapter: stateless, of a server.
# Adds: cache_ttl, cache_scope, state_secret, subscription, notify_subscribers
# Doors: the classes of a server and of its session; @handles; Unwind.
#
# Each request brings along what a server must know, and gets a RequestPeer that lives
# as long as the request.
#
#                     Peer                              RequestPeer
#   validate          needs `initialize` first          needs `_meta`; restores state
#   describe          agrees on the session; result     result of `server/discover`
#                     of `initialize`
#   finalize          wraps structured content          resultType, serverInfo, caching
#   translate         leaves errors as they are         knows other error codes
#   questions         are requests; the handler waits   end the handler, which runs
#                     for their responses               again with the answers
#   steps             (of `once`) end with the handler  are kept in requestState
#   subscriptions     are the session's                 are those of a ListenStream

RESERVED_CODES = range(-32099, -32019)  # basic: "reserved for the MCP specification"
STATE_SECONDS = 900  # how long a requestState can be used
ASKING = ("tools/call", "resources/read", "prompts/get")  # their handlers may ask
CACHEABLE = ("server/discover", "tools/list", "resources/list", "prompts/list",
             "resources/templates/list", "resources/read")


class RequestPeer(Peer):
    """The client of a request in the stateless revision."""

    methods = MODERN_METHODS
    missing_code = MISSING_CAPABILITY
    _binding = ""  # the request that its state is valid for

    def __init__(self, server: StatelessServer, request: ServedRequest) -> None:
        super().__init__(server._registry, request.connection)
        self.server = server
        self._answers: Json = {}  # of this round and of those before it

    def validate(self, request: ServedRequest) -> None:
        meta = request.params["_meta"]
        self.version = require_type(meta.get(META_VERSION), str, META_VERSION)
        if self.version not in MODERN_VERSIONS:
            data = {"supported": MODERN_VERSIONS, "requested": self.version}
            raise McpError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        self.client_capabilities = require_type(
            meta.get(META_CAPABILITIES), dict, META_CAPABILITIES)
        self.client_info = member(meta, META_CLIENT, dict)
        self.level = meta.get(META_LOG_LEVEL)
        if self.level is not None:
            require_one_of(META_LOG_LEVEL, self.level, LEVELS)
        if not declares(self.registry.capabilities, "logging"):
            self.level = None
        self.check_method(request.method)
        if request.method in ASKING:
            self._restore(request)

    def _restore(self, request: ServedRequest) -> None:
        """Continue from the state of the last round, with the answers of this one.

        Unsolicited answers, which come without a state, are accepted too.
        """
        params = request.params
        token = params.get("requestState")
        self._answers = member(params, "inputResponses", dict)
        if token is None and not self.client_capabilities:
            return  # such a client cannot be asked, and so needs no state
        # Now, because the handler may change its arguments.
        rest = params.keys() - {"_meta", "inputResponses", "requestState"}
        bound = {key: params[key] for key in rest}
        whole = [self.registry.info["name"], request.method, bound]
        self._binding = json.dumps(whole, sort_keys=True)
        if token is not None:
            state = self._verified(str(token), request)
            self._answers = {**self._answers, **state["answers"]}
            request.steps = state["steps"]

    # State passes through the client signed, not encrypted (basic/patterns/mrtr,
    # requirement 4): the client can read it, but neither make nor change it, nor use it
    # for a request other than the one that it is bound to.

    def _signed(self, steps: Json) -> str:
        until = time.time() + STATE_SECONDS
        state = {"answers": self._answers, "steps": steps, "until": until}
        body = encode(state).hex()
        return f"{body}.{self._digest(body)}"

    def _verified(self, token: str, request: ServedRequest) -> Json:
        """The state; McpError if the token is not valid, or no longer.

        The request that it comes with is charged for it.
        """
        from hmac import compare_digest

        body, _, digest = token.partition(".")
        if token.isascii() and compare_digest(digest, self._digest(body)):
            line = bytes.fromhex(body)
            cost = cost_of(line, exact=True)
            if cost > request.connection.max_message_bytes * MAX_GROWTH:
                raise invalid_params("requestState is too large", "requestState",
                                     "takes too much memory")
            with request.connection.lock:
                request.charge(cost)
            state: Json = json.loads(line)
            if state["until"] > time.time():
                return state
        raise invalid_params("requestState is not valid for this request",
                             "requestState", "not valid here")

    def _digest(self, body: str) -> str:
        import hmac

        text = f"{body}.{self._binding}"
        return hmac.new(self.server._secret, text.encode(), "sha256").hexdigest()

    def describe(self, params: Json) -> Json:
        """The result of `server/discover` (basic/discover)."""
        return {"supportedVersions": MODERN_VERSIONS, **self.registry.description()}

    def finalize(self, method: str, result: Json) -> Json:
        result = {"resultType": "complete", **result}
        is_complete = result["resultType"] == "complete"
        own = self.registry.methods.get(method)
        is_cacheable = method in CACHEABLE or getattr(own, "cacheable", False)
        if is_complete and is_cacheable:
            result = {**self.server._cache_hints, **result}
        return with_meta(result, {META_SERVER: self.registry.info})

    def translate(self, error: McpError) -> McpError:
        """The error as it is sent in this revision (basic, "Error Codes")."""
        code = error.code
        if code == RESOURCE_NOT_FOUND:
            return McpError(INVALID_PARAMS, error.message, error.data)
        if code in RESERVED_CODES and code not in MODERN_CODES:
            return McpError(INTERNAL_ERROR, error.message, error.data)
        return error

    def answers_to(self, request: ServedRequest,
                   questions: dict[str, Question[Any]]) -> Json:
        """The answers if all are here; else unwind.  See basic/patterns/mrtr.

        Errors are raised as an Unwind too, so that the handler's `except Exception`
        does not catch them.
        """
        answers: Json = {}
        requests: Json = {}
        try:
            if request.method not in ASKING:  # a MUST NOT
                text = f"{request.method} cannot ask the client"
                raise McpError(INVALID_REQUEST, text)
            self.check_declared(questions)
            for key, question in questions.items():
                if key in self._answers:
                    answers[key] = question.read(key, self._answers[key])
                else:
                    requests[key] = {"method": question.method,
                                     "params": question.params}
        except McpError as error:
            raise Unwind(Outcome(None, error)) from None
        if requests:
            result = {"resultType": "input_required", "inputRequests": requests}
            result["requestState"] = self._signed(request.steps)
            raise Unwind(Outcome(result))
        return answers


class ListenStream:
    """A `subscriptions/listen` request, which stays open but occupies no thread.

    See basic/patterns/subscriptions.
    """

    def __init__(self, peer: RequestPeer, request: ServedRequest) -> None:
        self._peer, self.request = peer, request
        self.subscriptions: set[Subscription] = set()

    def grant(self, requested: Json, granted: Json) -> Json:
        """Subscribe to those of the requested notifications that the server declares.

        granted: the items granted for filter keys of the user's own.  Returns the
        acknowledgement.
        """
        peer, agreed = self._peer, {**granted}
        for key, items in granted.items():
            self.subscriptions |= {(key, item) for item in items}
        for method, key in peer.registry.changes():
            if member(requested, key, bool):
                agreed[key] = True
                self.subscriptions.add((method, None))
        uris = member(requested, UPDATES_WANTED, list)
        if uris and declares(peer.registry.capabilities, "resources.subscribe"):
            agreed[UPDATES_WANTED] = uris
            for uri in uris:
                require_type(uri, str, UPDATES_WANTED)
                self.subscriptions.add((UPDATED, uri))
        return notification(ACKNOWLEDGED, self._marked({"notifications": agreed}))

    def queue(self, method: str, params: Json) -> None:
        self.request.queue(method, self._marked(params))

    def flush(self) -> None:
        self.request.flush(may_block=False)

    def end(self) -> None:
        result = self._marked({})
        self.request.respond(self._peer.finalize(LISTEN, result))

    def _marked(self, params: Json) -> Json:
        return with_meta(params, {META_SUBSCRIPTION: self.request.id})


class StatelessSession(BaseServerSession):
    """Serves requests of both kinds; they may alternate."""

    server: StatelessServer

    def peer_of(self, request: ServedRequest) -> Peer:
        meta = request.params.get("_meta") or {}
        # Before a handshake, capabilities alone are enough: then the error of the
        # stateless revision names the version as missing.
        is_stateless = META_VERSION in meta
        if META_CAPABILITIES in meta and not request.peer.version:
            is_stateless = True
        if is_stateless:
            return RequestPeer(self.server, request)
        if request.method == "server/discover":
            raise invalid_params(f"_meta needs {META_VERSION} and {META_CAPABILITIES}; "
                                 "a client of earlier revisions sends `initialize`",
                                 "_meta", "missing")
        return super().peer_of(request)

    def on_end(self) -> None:
        """End each `subscriptions/listen` request with a result."""
        with self.registry.lock:
            streams = [one for one in self.registry.subscribers
                       if isinstance(one, ListenStream)
                       and one.request.connection is self.connection]
        for stream in streams:
            stream.end()
            self.registry.forget(stream)


class StatelessServer(BaseServer):
    """What a server has for the stateless revision."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if options.cache_ttl < 0:
            raise ValueError("cache_ttl is 0 or more")
        check_choice("cache_scope", options.cache_scope, ("private", "public"))
        self._cache_hints = {"ttlMs": int(options.cache_ttl * 1000),
                             "cacheScope": options.cache_scope}
        secret = options.state_secret
        if secret is not None and (type(secret) is not bytes or len(secret) < 16):
            raise ValueError("state_secret must be at least 16 bytes")
        self._secret: bytes = secret or os.urandom(32)
        self._grants: dict[str, Signature] = {}  # by the keys of `subscription`

    def subscription(self, key: str) -> Callable[[F], F]:
        """Register the function that grants the items of a filter key of your own.

        It is called with `wanted`, what a `subscriptions/listen` request has under this
        key, and returns a list of the items that it grants; `notify_subscribers` then
        reaches this client.  It is `def`, runs on the thread that reads, and must not
        block.
        """
        def add(fn: F) -> F:
            require_sync(fn)
            self._grants[key] = Signature(fn)
            return fn

        return add

    def notify_subscribers(self, key: str, item: str | None, method: str,
                           params: Json) -> None:
        """Send a notification to the clients that were granted an item of a key.

        See `subscription`.
        """
        self._registry.publish(key, item, method, params)


@handles("server/discover")
def handle_discover(request: ServedRequest, params: Json) -> Json:
    return request.peer.describe(params)


@handles("subscriptions/listen")
def handle_listen(request: ServedRequest, params: Json) -> Any:
    session, peer = request.session, request.peer
    assert isinstance(peer, RequestPeer)
    connection = session.connection
    if request.in_batch:  # the other responses would wait for its end
        raise McpError(INVALID_REQUEST, "A stream cannot be part of a batch")
    wanted = require_type(params.get("notifications"), dict, "notifications")
    granted = {}
    for key, signature in peer.server._grants.copy().items():
        if wanted.get(key) is not None:
            grant = session.bound(request, signature, {"wanted": wanted[key]})
            # A set of many equal hashes would take quadratic time.
            granted[key] = [*grant()][:MAX_REQUESTS]
    stream = ListenStream(peer, request)
    acknowledgement = encode(stream.grant(wanted, granted))
    with session.registry.lock, connection.lock:
        connection.incoming.check_room(besides=request.cost)
        request.charge(REQUEST_COST * len(stream.subscriptions))  # while it is open
        connection.outbox.put(acknowledgement)  # before any change is reported
        session.registry.subscribers.add(stream)
    request.on_cancel(partial(session.registry.forget, stream))
    connection.outbox.flush(may_block=False)
    return NO_RESPONSE_YET


# To extend a server: the skills extension (SEP-2640).  Declare it with
# Server(capabilities={"extensions": {"io.modelcontextprotocol/skills": {}},
# "resources": {}}).  A skill is a folder of at most 512 files and 16 MiB; to read the
# largest, a client needs Client(max_message_bytes=24 << 20).
#
#     SKILLS = {}  # the entries, by URI
#
#     def add_skill(folder, frontmatter):  # frontmatter: of its SKILL.md
#         files, root = [], f"skill://{folder.name}/"
#         for path in filter(Path.is_file, folder.rglob("*")):
#             data = path.read_bytes()
#             uri = root + path.relative_to(folder).as_posix()
#             server.add_resource(uri, path.read_bytes, name=path.name,
#                                 description=f"A file of skill {folder.name}",
#                                 mime_type=guess_type(path)[0])
#             files.append({"uri": uri, "size": len(data),
#                           "digest": f"sha256:{sha256(data).hexdigest()}"})
#         uri = root + "SKILL.md"
#         SKILLS[uri] = {"uri": uri, "resources": files, "frontmatter": frontmatter}
#
#     @server.method("skills/list", cacheable=True)
#     def list_skills(cursor: str = "") -> dict:
#         uris = sorted(uri for uri in SKILLS if uri > cursor)
#         more = {"nextCursor": uris[49]} if uris[50:] else {}
#         return {"skills": [SKILLS[uri] for uri in uris[:50]], **more}
#
#     @server.method("skills/get", cacheable=True)
#     def get_skill(uri: str) -> dict:
#         if uri not in SKILLS:
#             raise McpError(-32602, "Unknown skill", {
#                 "field": "uri", "issue": "there is no such skill"})
#         return {"skill": SKILLS[uri]}
#
# And the tasks extension (SEP-2663), where TASKS holds the tasks by id, and whoever
# changes one calls push.  A middleware starts the tasks, `method` takes tasks/get,
# tasks/update and tasks/cancel.  A task that has a question puts it into its
# `inputRequests` and waits for tasks/update: its request was answered, so its Context
# can no longer ask.  The client answers with `Client.answer`.
#
#     @server.subscription("taskIds")
#     def grant(wanted: list[str], ctx: Context) -> list[str]:
#         if TASKS_EXTENSION not in ctx.client_capabilities.get("extensions", {}):
#             raise McpError(MISSING_CAPABILITY, "Tasks were not declared", {
#                 "requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
#         return [task_id for task_id in wanted if task_id in TASKS]
#
#     def push(task: dict) -> None:
#         server.notify_subscribers(
#             "taskIds", task["taskId"], "notifications/tasks", task)


# -- 19. Stateless, of a client --------------------------------------------------------
# Chapter: stateless, of a client.
# Adds: modern, 2026-07-28
# Doors: the classes of a client, of its session and of a call; MODES.
#
# A client finds out whether a server has the stateless revision by a probe.  Then every
# request brings along in `_meta` what the server must know; a result may be "input
# required", and the call is sent again with the answers of the user; and one stream
# carries the notifications.

MODES += ["modern", *MODERN_VERSIONS]
PROBE_SECONDS = 5.0     # how long to wait for an answer to `server/discover`
MAX_ROUNDS = 16         # "input required" in a row; then a client gives up
EMPTY_ROUND_SECONDS = 0.25  # the first pause when no input is asked for; it grows


class StatelessCall(BaseCall):
    """A call, sent again each time the server asks for input.

    See basic/patterns/mrtr.  While the user is asked, it is in the table under an id
    that is no number, so that no response finds it, but the end of the connection does.
    Only max_timeout counts then.
    """

    session: StatelessClientSession

    def result(self) -> Json:
        """Wait for the result of the last round.

        A server that requires input, but asks no question, is asked again, MAX_ROUNDS
        times or until the pauses have taken the call's timeout.
        """
        rounds, paused = 0, 0.0  # seconds of pauses since the last question
        while True:
            result = super().result()
            if self._is_last(result):
                return result
            rounds += 1
            if rounds > MAX_ROUNDS:
                raise invalid_response(
                    f"input required over {MAX_ROUNDS} times in a row")
            questions = questions_of(result)
            if questions:
                pause, paused = INFINITE, 0.0
            else:
                pause = rounds * EMPTY_ROUND_SECONDS
                paused += pause
            if paused > self.timeout:
                raise self.session.timeout_error(
                    f"{self.method}: input required, but none asked for")
            answers = self._await_answers(questions, pause)
            self.begin(**wire_fields(
                inputResponses=answers, requestState=result.get("requestState")))

    def _is_last(self, result: Json) -> bool:
        if not self.session.stateless:
            return True
        if result.get("resultType") == "input_required":
            return False
        if not self.session.settings.answers.declared.get("extensions"):
            check_complete(result)
        return True

    def _await_answers(self, questions: Json, seconds: float) -> Json | None:
        """Let the user's handlers answer, on a thread of the pool.

        None: there are no questions, and these seconds have passed.  Meanwhile only
        max_timeout counts.
        """
        self.id = object()
        self.enter()
        try:
            if questions:
                self.connection.pool.submit(partial(self._answer, questions))
            until = min(monotonic() + seconds, self.last_deadline)
            return self.inbox.wait(until)  # type: ignore[no-any-return]
        except Empty:
            if questions:
                raise self.timeout_error() from None
            return None
        finally:
            self.withdraw()

    def _answer(self, questions: Json) -> None:
        with self.connection.lock:
            if not self.connection.outgoing.has(self):
                return  # it has ended while others were asked
        answer = self.session.answer
        outcome = Outcome.of(lambda: {
            name: answer(question["method"], question.get("params") or {}, self)
            for name, question in questions.items()})
        if self.withdraw():
            self.inbox.finish(outcome)


def questions_of(result: Json) -> Json:
    """What a result asks, by key; McpError if it is malformed."""
    questions = result.get("inputRequests")
    if questions is None and type(result.get("requestState")) is str:
        return {}
    if type(questions) is dict and len(questions) <= MAX_BATCH and all(
            map(is_question, questions.values())):
        return questions
    raise invalid_response("malformed, unknown or too many inputRequests")


def is_question(value: object) -> bool:
    question = as_object(value)
    known = [*CLIENT_REQUESTS]  # a list: a method may be unhashable
    return question.get("method") in known and (
        type(question.get("params") or {}) is dict)


class Stream(OutgoingRequest):
    """A `subscriptions/listen` request of a client's own.

    Once it is the current one, `give_up` has no effect: it stays until another replaces
    it, or the server ends it.  granted: the URIs that it is for.
    """

    def __init__(self, subscriptions: StreamSubscriptions, timeout: float) -> None:
        super().__init__(subscriptions.session.connection, LISTEN, timeout)
        self._subscriptions = subscriptions
        self.granted: list[str] = []

    def withdraw(self) -> bool:
        with self.connection.lock:
            return self._subscriptions.current is not self and super().withdraw()

    def cancel(self) -> None:
        if self.give_up("cancelled"):
            self.inbox.finish(raise_cancelled)

    def end(self, outcome: Callable[[], Any]) -> None:
        super().end(outcome)
        self._subscriptions.ended(self)


class StreamSubscriptions(Subscriptions):
    """Subscriptions that a stream carries; when they change, another replaces it."""

    # The stream whose notifications are passed on; Connection.lock guards it.
    current: Stream | None = None

    def ask(self, action: str, uri: str, wanted: list[str], timeout: float | None,
            ) -> None:
        stream = self.current
        if stream is None or wanted != stream.granted:
            stream = self._replace(wanted, timeout)
        if stream and uri in wanted and uri not in stream.granted:
            raise McpError(METHOD_NOT_FOUND,
                           f"The server takes no subscription to {uri}")

    def renew(self) -> None:
        """Listen also for the changes of lists."""
        if not self.uris:
            self._listen([])
        super().renew()

    def renew_one(self, uri: str) -> None:
        self.ask("subscribe", uri, self.uris, self.session.seconds_left())

    def _replace(self, uris: list[str], timeout: float | None) -> Stream | None:
        """Open a stream for all of this; if that fails, the one before goes on."""
        before = self.current
        stream = self._listen(uris, timeout)
        if stream is None:
            return None
        self.session.began(stream)
        try:
            stream.wait()
        except BaseException:
            if before and not self.current:  # it has ended meanwhile
                self.tell_end()
            raise
        return stream

    def _listen(self, uris: list[str], timeout: float | None = None) -> Stream | None:
        """Ask for a stream of all that is wanted, which will replace the one before."""
        wanted = self.filter(uris)
        if not wanted:
            before, self.current = self.current, None
            if before:
                before.cancel()
            return None
        if timeout is None:
            timeout = self.session.settings.timeout
        stream = Stream(self, timeout)
        stream.send(self.session.prepare({"notifications": wanted}))
        return stream

    def takes(self, method: str, params: Json, size: int) -> bool:
        meta = as_object(params.get("_meta"))
        if method == CANCELLED:  # basic/patterns/cancellation: only of a stream
            self._cancelled(self._find(params.get("requestId")), size)
            return True
        if META_SUBSCRIPTION not in meta:
            return False
        stream = self._find(meta[META_SUBSCRIPTION])
        if not isinstance(stream, Stream):
            return stream is None  # it has ended, or was never opened
        if method == ACKNOWLEDGED:
            self._acknowledged(stream, params)
            return True
        # While one stream replaces another, only the current one counts, so that no
        # notification is doubled or lost.
        return stream is not self.current

    def _find(self, stream_id: object) -> OutgoingRequest | None:
        """An open stream: one of ours, or a request that the user has submitted."""
        connection = self.session.connection
        with connection.lock:
            request = connection.outgoing.find(stream_id)
        return request if request and request.method == LISTEN else None

    def _acknowledged(self, stream: Stream, params: Json) -> None:
        """Pass on the notifications of this stream from now on, and of no other."""
        connection = self.session.connection
        with connection.lock:
            before = self.current
            if before is stream or not connection.outgoing.has(stream):
                return
            is_late = before and stream.id < before.id  # type: ignore[operator]
            if not is_late:
                self.current = stream
        if is_late:  # the server acknowledged a later one first
            stream.cancel()
            return
        if before:
            before.cancel()
        granted = as_object(params.get("notifications")).get(UPDATES_WANTED)
        if type(granted) is list:
            stream.granted = granted
        stream.inbox.finish(lambda: None)

    def _cancelled(self, stream: OutgoingRequest | None, size: int) -> None:
        """The server has ended a stream."""
        connection = self.session.connection
        with connection.lock:
            is_open = stream is not None and connection.outgoing.take(stream)
        if stream and is_open:
            stream.respond({"jsonrpc": "2.0", "result": {}}, size)

    def ended(self, stream: Stream) -> None:
        """The server, or the connection, has ended a stream."""
        with self.session.connection.lock:
            if self.current is not stream:
                return
            self.current = None
        # If the lock is held, a new stream is replacing this one; see `changed`.
        if not self.changing.locked():
            self.tell_end()

    def changed(self) -> None:
        if self.uris and self.current is None:  # it has ended meanwhile
            self.tell_end()


class StatelessClientSession(BaseClientSession):
    """Finds the revision that it and a server speak.

    See basic/transports/stdio, "Backward Compatibility".  What the probe,
    `server/discover`, leads to:

        a list of versions         the newest of them that is ours
        the error -32022           ask again in the newest version that it names
        one of MODERN_CODES        the error, unless it names handshake revisions
        another error, silence     the handshake; if that is refused, what came late
        the server has ended       StatelessClient may start it again, to shake hands

    server_info and the capabilities come from the last of these results.
    """

    call_class = StatelessCall
    stateless = False
    ended_by_probe = False

    def negotiate(self, mode: str) -> tuple[str, Json]:
        if mode in ("legacy", *LEGACY_VERSIONS):
            self._release(True)
            return super().negotiate(mode)
        shown = True
        try:
            version, result = self._probe(mode)
            shown = version in MODERN_VERSIONS
        except ConnectionClosed as error:
            self.ended_by_probe = mode == "auto" and is_end_by_probe(error)
            shown = not self.ended_by_probe
            raise
        finally:
            self._release(shown)
        return version, result

    def _release(self, keep_earlier: bool) -> None:
        if isinstance(self.process, ProbedProcess):
            self.process.release(keep_earlier)

    def _discover(self, version: str) -> OutgoingRequest:
        params = self._with_meta({}, version)
        return self.ask("server/discover", params)

    def _probe(self, mode: str) -> tuple[str, Json]:
        if mode != "auto":
            return self._probe_only(mode)
        probe = self._discover(MODERN_VERSIONS[-1])
        # At most half of the time, so that some is left for the handshake.
        seconds = min(PROBE_SECONDS, self.seconds_left() / 2)
        try:
            wait = partial(probe.inbox.wait, monotonic() + seconds)
            return self._discovered(wait)
        except Empty:
            pass
        except McpError as error:
            named = versions_named(error)
            if error.code in MODERN_CODES and not any(
                    date in named for date in LEGACY_VERSIONS):
                raise
        return self._fall_back(probe)

    def _probe_only(self, mode: str) -> tuple[str, Json]:
        """Without the handshake: the user has asked for a stateless revision."""
        version = mode if mode in MODERN_VERSIONS else MODERN_VERSIONS[-1]
        try:
            return self._discovered(self._discover(version).wait)
        except (McpError, RequestTimeout) as error:
            text = f'The server does not speak {version}: try mode="auto": {error}'
            if isinstance(error, RequestTimeout):
                raise RequestTimeout(text) from None
            error.message = text
            raise

    def _fall_back(self, probe: OutgoingRequest) -> tuple[str, Json]:
        """Shake hands; but a server that is slow to start may yet be stateless."""
        try:
            return super().negotiate("auto")
        except McpError as error:
            with suppress(Empty, McpError):  # the probe's response has come late
                wait = partial(probe.inbox.wait, monotonic())
                return self._discovered(wait)
            return self._named(error)
        finally:
            probe.withdraw()

    def _discovered(self, wait: Callable[[], Json]) -> tuple[str, Json]:
        """A revision that the response to a probe names, or raise McpError."""
        try:
            result = check_complete(wait())
        except McpError as error:
            return self._named(error)
        supported = result.get("supportedVersions")
        if type(supported) is not list:
            raise invalid_response("no list of supportedVersions")
        return newest_shared(supported), result

    def _named(self, error: McpError) -> tuple[str, Json]:
        """A revision that an error names; raise the error if it does not.

        What the server is, and offers, is asked again in that revision.
        """
        if error.code != UNSUPPORTED_VERSION:
            raise error
        version = newest_shared(versions_named(error))
        with suppress(McpError):
            return version, self._discover(version).wait()
        return version, {}  # it does not say: then each method is tried

    def adopt(self, version: str, result: Json) -> None:
        super().adopt(version, result)
        if version in MODERN_VERSIONS:
            self.stateless = True
            self.methods = MODERN_METHODS
            self.connection.responds = False
            meta = as_object(result.get("_meta"))
            self.server_info = as_object(meta.get(META_SERVER))
            self.subscriptions = StreamSubscriptions(self, self.subscriptions.uris)

    def set_up(self) -> None:
        if self.stateless:
            self.subscriptions.renew()
        else:
            super().set_up()

    def prepare(self, params: Json) -> Json:
        if self.stateless:
            return self._with_meta(params, self.version)
        return params

    def _with_meta(self, params: Json, version: str) -> Json:
        settings = self.settings
        meta = {META_VERSION: version, META_CLIENT: settings.client_info,
                META_CAPABILITIES: settings.answers.declared}
        if settings.log_level or settings.log_handler:
            meta[META_LOG_LEVEL] = settings.log_level or "info"
        return {**params, "_meta": {**meta, **(params.get("_meta") or {})}}

    def on_end(self) -> None:
        if not self.stateless:  # else the end of its stream is reported
            super().on_end()


def is_end_by_probe(error: ConnectionClosed) -> bool:
    """True if the server seems to have ended because of the probe, as old ones do.

    Others are not started twice, because their side effects would happen twice.
    """
    return error.exit_code == 0 or (
        re.search("initialize|discover", error.stderr) is not None)


def versions_named(error: McpError) -> list[object]:
    """The versions in an UnsupportedProtocolVersionError; [] if it names none."""
    named = as_object(error.data).get("supported")
    return named if type(named) is list else []


def newest_shared(versions: list[object]) -> str:
    """The newest of these versions that is stateless and ours; McpError: none is."""
    shared = [date for date in MODERN_VERSIONS if date in versions]
    if not shared:  # it may name handshake revisions
        raise no_common_version(versions)
    return shared[-1]


class ProbedProcess(Process):
    """A server process whose stderr is held back until the probe is decided.

    If the probe was in vain, what it wrote is dropped: mostly tracebacks about the
    unknown method `server/discover`.
    """

    def __init__(self, *args: Any) -> None:
        self._holding = threading.RLock()  # guards the next
        self._held: bytes | None = b""  # what waits for `release`; None after that
        super().__init__(*args)

    def _pass_on(self, lines: bytes) -> None:
        with self._holding:
            if self._held is not None:
                self._held = (self._held + lines)[-MAX_STDERR_BYTES:]
                return
        super()._pass_on(lines)

    def release(self, keep_earlier: bool) -> None:
        """Pass stderr on from now on, and also what came before if `keep_earlier`."""
        if not keep_earlier:  # let what the server has written be read
            can_read = make_poll(self._popen.stderr, "r", False)
            wait_until(lambda: not can_read(0), 0.2)
            time.sleep(0.005)
        with self._holding:
            held, self._held = self._held, None
            if keep_earlier and held:
                super()._pass_on(held)
        if keep_earlier and held:
            self._sink_thread.drain(0.2)  # so that it appears before our next output


class StatelessClient(BaseClient):
    """What a client has for the stateless revision."""

    _process_class = ProbedProcess

    def _begin(self, mode: str, deadline: float) -> None:
        try:
            super()._begin(mode, deadline)
        except ConnectionClosed:
            session: Any = self._session
            if self._closed or not session.ended_by_probe:
                raise
            super()._begin("legacy", deadline)


# -- 20. More schemas ------------------------------------------------------------------
# Chapter: schemas, of both.
# Adds keywords: $ref, $dynamicRef, $id, $anchor, $dynamicAnchor, allOf, if, then, else
# Adds keywords: contains, minContains, maxContains, propertyNames, patternProperties
# Adds keywords: dependentRequired, dependentSchemas, dependencies, additionalItems
# Adds keywords: unevaluatedItems, unevaluatedProperties, prefixItems, pattern
# Adds keywords: multipleOf
# Adds dialects: draft-07
# Doors: rows of keywords; the reader of schemas.
#
# The rest of JSON Schema 2020-12, and draft-07, because a schema by hand may use all of
# it (server/tools, "Tool"), and a library for it would be a dependency.  No reference
# is fetched.  Patterns mean what they mean in ECMA 262 as far as Python's `re` has the
# words.

MAX_SUBJECT = 20_000  # characters of the longest text that a pattern is matched against
LETTER = r"(?u:[^\W\d_])"
LETTER_CLASS = re.compile(r"\\p\{(?:L|Letter)\}")
TOKEN = re.compile(r"\\[pP]\{\w+\}|\\.|\[(?:\\.|[^\]\\])*\]|\$|\(\?<(?=\w)")
SPELLINGS = {"$": r"\Z", "(?<": "(?P<", r"\p{L}": LETTER, r"\p{Letter}": LETTER}


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of ECMA 262: \\d and \\w are ASCII, $ is the very end."""
    try:
        return re.compile(TOKEN.sub(spell, pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise SchemaError(f"pattern {show(pattern)}: {error}") from None


def spell(token: re.Match[str]) -> str:
    """A token of ECMA 262 in the words of `re`."""
    text = token[0]
    if text[0] != "[" or not LETTER_CLASS.search(text):
        return SPELLINGS.get(text, text)
    # A set with \p{L} among others, which `re` has no word for.
    others = LETTER_CLASS.sub("a-zA-Z", text)
    if others[1] == "^":
        return f"(?!{LETTER}){others}"
    return f"(?:{LETTER}|{others})"


def fits_pattern(evaluation: Evaluation, text: str, pattern: str) -> bool:
    if len(text) > MAX_SUBJECT:
        raise SchemaError(f"no pattern is tried on over {MAX_SUBJECT} characters")
    began = monotonic()
    found = compile_pattern(pattern).search(text)
    seconds = monotonic() - began  # it may be quadratic: charged by the time it took
    evaluation.budget.spend(int(seconds * MAX_STEPS / LOOK_COST))
    return found is not None


def check_pattern(evaluation: Evaluation, pattern: str) -> None:
    if not fits_pattern(evaluation, evaluation.value, pattern):
        evaluation.refuse(f"text like {show(pattern)}", evaluation.value)


def is_multiple(value: float, unit: float) -> bool:
    if isinstance(value, int) and isinstance(unit, int):
        return value % unit == 0
    from fractions import Fraction

    # as they are written: 0.1 is a tenth
    return Fraction(str(value)) % Fraction(str(unit)) == 0


def join_uri(base: str, reference: str) -> str:
    if not base or reference[:1] == "#":
        return base + reference
    from urllib.parse import urljoin

    return urljoin(base, reference)


def apply_to_unevaluated(evaluation: Evaluation, node: Node) -> None:
    if not evaluation.problems:  # (core, 11)
        evaluation.apply_to_others(node)


def apply_to_prefix(evaluation: Evaluation, nodes: list[Node]) -> None:
    evaluation.apply_to_parts(zip(range(len(evaluation.value)), nodes))


def check_contains(evaluation: Evaluation, node: Node) -> None:
    matching = [index for index, item in enumerate(evaluation.value)
                if not evaluation.apply(node, item).problems]
    evaluation.evaluated.update(matching)
    least = evaluation.node.get("minContains", 1)
    most = evaluation.node.get("maxContains", len(evaluation.value))
    if not least <= len(matching) <= most:
        evaluation.refuse(
            f"{least} to {most} items that match `contains`", len(matching))


def check_names(evaluation: Evaluation, node: Node) -> None:
    for name in evaluation.value:
        evaluation.problems += evaluation.apply(node, name, name).problems


def apply_to_patterns(evaluation: Evaluation, patterns: dict[str, Node]) -> None:
    size = len("".join(evaluation.value))
    for pattern, node in patterns.items():
        evaluation.budget.spend(size + 20 * len(evaluation.value))
        names = [name for name in evaluation.value
                 if fits_pattern(evaluation, name, pattern)]
        evaluation.apply_to_parts((name, node) for name in names)


def check_dependencies(evaluation: Evaluation,
                       dependencies: dict[str, list[str]]) -> None:
    for name, names in dependencies.items():
        if name in evaluation.value:
            evaluation.require(names, f"required with {name:.60}")


def apply_here(evaluation: Evaluation, node: Node) -> None:
    other = evaluation.apply(node, evaluation.value, lenient=evaluation.lenient)
    evaluation.take(other)


def apply_dependents(evaluation: Evaluation, dependents: dict[str, Node]) -> None:
    for name, node in dependents.items():
        if name in evaluation.value:
            apply_here(evaluation, node)


def apply_all(evaluation: Evaluation, nodes: list[Node]) -> None:
    for node in nodes:
        apply_here(evaluation, node)


def apply_if(evaluation: Evaluation, node: Node) -> None:
    condition = evaluation.apply(node, evaluation.value)
    branch = evaluation.node.get("else")
    if not condition.problems:
        evaluation.take(condition)
        branch = evaluation.node.get("then")
    if branch is not None:
        apply_here(evaluation, branch)


def apply_reference(evaluation: Evaluation,
                    reference: tuple[Node, dict[str, Node]]) -> None:
    """Apply the node; if others may stand for it, that of the outermost base."""
    node, anchors = reference
    outer: Evaluation | None = evaluation if anchors else None
    while outer:
        outer.budget.spend(0)
        node = anchors.get(outer.node.base, node)
        outer = outer.outer
    apply_here(evaluation, node)


class DocumentReader(SchemaReader):
    """Reads schemas with references.

    Once read, node["$ref"] and node["$dynamicRef"] are pairs: the node that is referred
    to, and the nodes that may stand for it, by base.
    """

    def __init__(self) -> None:
        self._draft7 = False
        self._base = ""                    # URI of the schema that is being read
        self._nodes: dict[int, Node] = {}  # by id(source), which a node keeps alive
        self._names: dict[str, Node] = {}  # by URI, and by what references say
        self._dynamic: dict[str, dict[str, Node]] = {}  # anchor: base: node
        self._references: list[tuple[Node, str]] = []   # to be resolved
        self._asking: list[Node] = []      # see Node

    def read_document(self, document: object) -> Node:
        """Read a document, and resolve its references."""
        self._draft7 = "draft-07" in str(as_object(document).get("$schema"))
        root = self._names[""] = super().read_document(document)
        while self._references:  # resolving one may read a schema that has more
            node, keyword = self._references.pop()
            reference = node[keyword]
            target = self._find(node.base, reference)
            anchor, anchors = target.get("$dynamicAnchor", ""), {}
            if keyword == "$dynamicRef" and reference.endswith(f"#{anchor}"):
                anchors = self._dynamic.get(anchor, {})
            node[keyword] = target, anchors
        return root

    def node(self, keywords: Json, source: Json) -> Node:
        names, outer = [], self._base
        for keyword in ("$id", "$anchor", "$dynamicAnchor"):
            name = keywords.get(keyword)
            if isinstance(name, str):  # "$id": "#name" is an anchor of draft-07
                uri = join_uri(self._base, name if keyword == "$id" else f"#{name}")
                names.append(uri.rstrip("#"))
                self._base = uri.partition("#")[0]
        node = super().node(keywords, source)
        node.base, self._base = self._base, outer
        node.asking = self._asking
        patterns = node.get("patternProperties", ())
        for pattern in (*patterns, node.get("pattern", "")):
            compile_pattern(pattern)  # SchemaError now; it is cached
        self._nodes[id(source)] = node
        self._names.update(dict.fromkeys(names, node))
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in node:
                self._references.append((node, keyword))
        if "$dynamicAnchor" in node:
            anchors = self._dynamic.setdefault(node["$dynamicAnchor"], {})
            anchors[node.base] = node
        if "unevaluatedItems" in node or "unevaluatedProperties" in node:
            self._asking.append(node)
        return node

    def translate(self, source: Json) -> Json:
        keywords = super().translate(source)
        if self._draft7 and "$ref" in source:  # it ignores the siblings of a $ref
            known = ("$ref", "$defs", "definitions")
            return {keyword: source[keyword] for keyword in known if keyword in source}
        if isinstance(source.get("items"), list):  # of draft-07
            keywords["prefixItems"] = source["items"]
            keywords["items"] = source.get("additionalItems", True)
        for name, needed in source.get("dependencies", {}).items():  # of draft-07
            keyword = "dependentSchemas"
            if isinstance(needed, list):
                keyword = "dependentRequired"
            keywords[keyword] = {**keywords.get(keyword, {}), name: needed}
        return keywords

    def _find(self, base: str, reference: str) -> Node:
        """The node of a reference, which is a URI, an anchor or a JSON pointer."""
        from urllib.parse import unquote

        uri, _, fragment = join_uri(base, reference).partition("#")
        fragment = unquote(fragment)
        name = f"{uri}#{fragment}".rstrip("#")
        if name in self._names:
            return self._names[name]
        try:
            node = self._names[uri]
            place: Any = {"": node.source}
            for step in fragment.split("/"):
                key = step.replace("~1", "/").replace("~0", "~")
                place = place[int(key) if isinstance(place, list) else key]
                node = self._nodes.get(id(place), node)
        except (LookupError, ValueError, TypeError):
            raise SchemaError(f"{show(reference)} is not in the document, "
                              "and nothing is fetched") from None
        if place is not node.source:  # below an unknown keyword: it was not read yet
            self._base = node.base
            node = super().read_document(place)
        self._names[name] = node
        return node


Validator.reader = DocumentReader
DIALECTS.append("//json-schema.org/draft-07/schema")
STRINGS = list_of(STRING)
UNIT = Node({"type": ["number"], "exclusiveMinimum": 0}, {})
SCHEMA["properties"].update({  # those of draft-07 are translated
    "items": Node({"anyOf": [SCHEMA, SCHEMAS]}, {}), "additionalItems": SCHEMA,
    "dependencies": map_of(Node({"anyOf": [STRINGS, SCHEMA]}, {}))})
add_keywords(
    ("multipleOf", "number", UNIT, compared(is_multiple, "a multiple of {}")),
    ("pattern", "string", STRING, check_pattern),
    ("dependentRequired", "object", map_of(STRINGS), check_dependencies),
    ("propertyNames", "object", SCHEMA, check_names),
    ("patternProperties", "object", SCHEMA_MAP, apply_to_patterns, 1),
    ("prefixItems", "array", SCHEMAS, apply_to_prefix, 1),
    ("contains", "array", SCHEMA, check_contains, 3),
    ("minContains", "array", COUNT),
    ("maxContains", "array", COUNT),
    ("dependentSchemas", "object", SCHEMA_MAP, apply_dependents, 4),
    ("allOf", ANY, SCHEMAS, apply_all, 4),
    ("if", ANY, SCHEMA, apply_if, 4),
    ("then", ANY, SCHEMA),
    ("else", ANY, SCHEMA),
    ("$ref", ANY, STRING, apply_reference, 4),
    ("$dynamicRef", ANY, STRING, apply_reference, 4),
    ("unevaluatedItems", "array", SCHEMA, apply_to_unevaluated, 5),
    ("unevaluatedProperties", "object", SCHEMA, apply_to_unevaluated, 5),
    ("$defs", ANY, SCHEMA_MAP),
    ("definitions", ANY, SCHEMA_MAP),
    ("$id", ANY, STRING),
    ("$anchor", ANY, STRING),
    ("$dynamicAnchor", ANY, STRING))


class ForeignReader(DocumentReader):
    """Reads schemas of the peer.

    Their regular expressions are not run, because Python's `re` cannot be stopped:
    every name and text counts as matching.  Where a subschema that matches more would
    make the whole accept less, the keyword is left out.
    """

    _has_patterns = False

    def read_document(self, document: object) -> Node:
        self._has_patterns = '"pattern' in json.dumps(document)
        return super().read_document(document)

    def translate(self, source: Json) -> Json:
        keywords = super().translate(source)
        if self._has_patterns and source is not FALSE:
            for name in "not", "oneOf", "if", "maxContains":
                keywords.pop(name, None)
        keywords.pop("pattern", None)
        patterns = keywords.pop("patternProperties", None)
        if patterns is not None:
            others = keywords.get("additionalProperties", True)
            # A value must match one of those that may apply.
            keywords["additionalProperties"] = {"anyOf": [*patterns.values(), others]}
        return keywords


class ForeignValidator(Validator):
    """A schema document of the peer."""

    reader = ForeignReader


# -- 21. Schemas of a client -----------------------------------------------------------
# Chapter: schemas, of a client.
# Adds: output schemas
# Doors: ANSWER_FUNCTIONS, _read_tool.
#
# A client validates what its user answers to a form, and what tools return.


def answer_checked_form(handler: Handler, params: Json) -> Json:
    try:
        answer = answer_form(handler, params)
        if "content" not in answer:
            return answer
        validator = ForeignValidator(params["requestedSchema"])
        problems = "; ".join(validator.problems(answer["content"]))
    except SchemaError as error:  # of the form
        raise invalid_params(f"requestedSchema: {error}", "requestedSchema",
                             str(error)) from None
    if problems:
        raise ValueError(f"The answer does not fit the form: {problems}")
    return answer


ANSWER_FUNCTIONS["form"] = answer_checked_form


class SchemasClient(BaseClient):
    """What a client has for the output schemas of tools."""

    def __init__(self, target: Any, **options: Any) -> None:
        super().__init__(target, **options)
        # By name: the schema that was listed, and what validates with it.
        self._validators: dict[str, tuple[Json, ForeignValidator]] = {}

    def _read_tool(self, name: str, raise_on_error: bool, raw: Json) -> ToolResult:
        result = super()._read_tool(name, raise_on_error, raw)
        if name in self._outputs and not result.is_error:
            problems = "; ".join(self._problems(name, result.structured_content))
            if problems:  # a warning, because an exception would hide the result
                import warnings

                text = f"tool {name}: the result does not fit its output schema: "
                warnings.warn(escape_control(text + problems), RuntimeWarning,
                              stacklevel=3)
        return result

    def _problems(self, name: str, value: object) -> list[str]:
        """A readable line for each problem; an unusable schema counts as one."""
        schema = self._outputs[name]
        known, validator = self._validators.get(name, (None, None))
        try:
            if validator is None or known is not schema:
                validator = ForeignValidator(schema)
                self._validators[name] = schema, validator
            return validator.problems(value)
        except SchemaError as error:
            return [str(error)]


# -- 22. Configurations of hosts -------------------------------------------------------
# Chapter: config, of a client.
# Adds: mcp.json
# Doors: COMMAND_READERS.
#
# An entry of a host's mcp.json is a target, too.

__all__ += ["load_config"]

ONE_ENTRY = "(a target is one entry of it: load_config(PATH)[NAME])"

# What a host replaces in an entry: ${NAME}, ${env:NAME}, ${NAME:-default}.
HOST_VARIABLE = re.compile(r"\$\{(?:\w+:(?!-))?([^:}]+)[^}]*\}")


def entry_command(entry: Any, env: dict[str, str] | None, cwd: str | None,
                  ) -> Command | None:
    """How to start an entry; `env` must have values for the host's variables in it."""
    if isinstance(entry, str) and entry.endswith(".json"):
        raise ValueError(f"{entry} is a configuration {ONE_ENTRY}")
    if not isinstance(entry, dict):
        return None
    env = env or {}

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        if name not in env:
            raise ValueError(f"only a host knows {found[0]} of this entry: pass "
                             f"env={{{name!r}: …}}, or --env {name}=…")
        return env[name]

    fill = partial(HOST_VARIABLE.sub, value_of)
    refuse_address(entry.get("url"))
    argv = [*map(fill, entry_argv(entry))]
    listed = entry.get("env") or {}
    if not isinstance(listed, dict):
        raise TypeError(f"the env of an entry is an object: {listed}")
    extra = {key: fill(str(value)) for key, value in listed.items()}
    cwd = cwd or entry.get("cwd")
    if cwd:
        cwd = fill(os.fspath(cwd))
    return argv, {**extra, **env}, cwd


def entry_argv(entry: Json) -> list[str]:
    """The argv of an entry of a host's configuration."""
    if type(entry.get("command")) is not str:
        raise ValueError(f"an entry needs a command; it has {[*entry]} {ONE_ENTRY}")
    args = entry.get("args") or ()
    if isinstance(args, str):
        raise TypeError(f"the args of an entry are a list: {args.split()}")
    return [entry["command"], *map(str, args)]  # configurations also hold numbers


COMMAND_READERS.append(entry_command)


def load_config(path: str | os.PathLike[str]) -> dict[str, Json]:
    """The entries of a host's mcp.json, {"mcpServers": {name: entry}}, by name.

    Some hosts write "servers", comments, and a comma after the last item; ValueError:
    it has neither key.  Client takes each entry as a target and runs its command, so
    load only files that you trust.  Variables of the host, such as `${input:KEY}`, are
    an error when an entry is used, unless Client's `env` has KEY.
    """
    with open(path, encoding="utf-8-sig") as file:  # some editors write a BOM
        text = file.read()
    for extra in r"//.*|/\*(?s:.*?)\*/", r",(?=\s*[]}])":  # but not within a text
        text = re.sub(rf'("(?:\\.|[^"\\])*")|{extra}',
                      lambda found: found[1] or "\n" * found[0].count("\n"), text)
    try:
        hosts = as_object(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    for key in ("mcpServers", "servers"):
        if type(hosts.get(key)) is dict:
            return hosts[key]  # type: ignore[no-any-return]
    raise ValueError(f'{path} has no "mcpServers"')


# -- 23. More hints --------------------------------------------------------------------
# Chapter: schemas, of a server.
# Adds hints: datetime, date, time, UUID, Decimal, Path, PurePath, bytes
# Adds hints: NewType, TypeAliasType
# Adds hints: InitVar, tuple, set, frozenset, Sequence, MutableSequence, Iterable
# Adds hints: Collection, Set, MutableSet, Mapping, MutableMapping
# Adds: {+x}, {x*}, {?x,y}
# Doors: rows of tables (HINT_READERS …); the classes of signatures and templates.
#
# What hints, results, docstrings and templates may be, beyond the core's.

ARRAY_MAKERS: Any = {
    tuple: tuple, set: set, frozenset: frozenset,
    abc.Sequence: None, abc.MutableSequence: None, abc.Iterable: None,
    abc.Collection: None, abc.Set: set, abc.MutableSet: set}
OBJECTS = (dict, abc.Mapping, abc.MutableMapping)
FORMATS: Any = {  # by the names of classes, which need not be imported
    "datetime.datetime": {"format": "date-time"},
    "datetime.date":     {"format": "date"},
    "datetime.time":     {"format": "time"},
    "uuid.UUID":         {"format": "uuid"},
    "decimal.Decimal":   {"type": ["string", "number"], "format": "decimal"},
    "pathlib.PurePath":  {"format": "path"},
    "builtins.bytes":    {"contentEncoding": "base64"},
}
ITERATED: Any = (abc.Set, abc.Sequence, abc.MappingView, abc.Iterator)
MAX_EQUAL_HASHES = 100  # of the items of a set, or the keys of a dict
MAX_DECIMAL = 400       # digits of a Decimal, and its exponent, together


def format_of(cls: Any) -> Json | None:
    """The keywords of a class in FORMATS."""
    for base in getattr(cls, "__mro__", ()):
        package = base.__module__.partition(".")[0]  # pathlib is one since 3.13
        keywords: Json | None = FORMATS.get(f"{package}.{base.__name__}")
        if keywords:
            return keywords
    return None


def parse_format(cls: Any, value: Any) -> Any:
    """The object that a value of one of these formats stands for."""
    text = str(value)
    if issubclass(cls, bytes):
        return from_base64(text)
    if hasattr(cls, "is_finite"):  # Decimal
        if len(text) > 2 * MAX_DECIMAL:
            raise ValueError("too many digits")
        number = cls(text)
        digits = abs(number.adjusted()) + len(number.as_tuple().digits)
        if not number.is_finite() or digits > MAX_DECIMAL:
            raise ValueError("not a finite number of ordinary size")
        return number
    if not hasattr(cls, "fromisoformat"):
        return cls(text)
    # RFC 3339, for Python before 3.11: no Z, six digits after the point
    text = re.sub("[zZ]$", "+00:00", text)
    text = re.sub(r"\.(\d+)", lambda part: f".{part[1]:0<6.6}", text)
    return cls.fromisoformat(text)


def check_decimal(evaluation: Evaluation, text_format: str) -> None:
    """The limits of a Decimal hold also for one that is written as text."""
    node = evaluation.node
    if text_format != "decimal" or not node.make:
        return
    try:
        value = node.make(evaluation.value)
    except (ValueError, ArithmeticError):  # which `make` will report
        return
    number = Evaluation(node, value, evaluation.budget, path=evaluation.path)
    for row in KEYWORDS.values():
        if row.kind == "number" and row.name in node:
            row.apply(number, node[row.name])
    evaluation.problems += number.problems


add_keywords(("format", "string", STRING, check_decimal))


def read_more(reader: HintReader, hint: Any) -> Schema | None:
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        return None
    if not isinstance(origin, type):
        for inner in ("__supertype__", "__value__", "type"):
            if hasattr(hint, inner):  # NewType, `type`, InitVar
                return reader.read(getattr(hint, inner))
        return None
    if origin in OBJECTS:
        return read_object(reader, *args)
    several = len(args) > 1 and origin is not tuple
    if several and (origin is list or origin in ARRAY_MAKERS):
        raise TypeError("a list has items of one type; of several: list[int | str]")
    if origin in ARRAY_MAKERS:
        return read_array(reader, args, ARRAY_MAKERS[origin])
    keywords = format_of(origin)
    if keywords is None or issubclass(origin, enum.Enum):
        return None
    return Schema({"type": "string", **keywords}, partial(parse_format, origin))


def read_array(reader: HintReader, args: Any, make: Any) -> Schema:
    if make is tuple and args and args[-1] is not ...:
        schema = Schema({"type": "array"}, make)
        schema["prefixItems"] = [*map(reader.read, args)]
        schema["minItems"] = schema["maxItems"] = len(args)
        return schema
    schema = Schema({"type": "array", "items": {}}, make)
    if args:
        schema["items"] = reader.read(args[0])
    if make in (set, frozenset):
        schema["uniqueItems"] = True
        schema.make = lambda items: make(differing(items))
    return schema


def differing(items: Iterable[Any]) -> list[Any]:
    """Return the items; ValueError: too many of them have the same hash.

    A set of those would take quadratic time.  Unlike the hash of text, that of a number
    or a UUID is not salted, so that a peer can send many with the same.
    """
    items = [*items]
    counts: dict[str, int] = {}
    for item in items:
        key = str(hash(item))
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > MAX_EQUAL_HASHES:
            raise ValueError("too many items with the same hash")
    return items


def read_object(reader: HintReader, key: Any = str, value: Any = object) -> Schema:
    schema = Schema({"type": "object"})
    names, values = reader.read(key), reader.read(value)
    if names.get("type") != "string":
        raise TypeError("the keys of a JSON object are str")
    if values:
        schema["additionalProperties"] = values
    if len(names) > 1:  # they must be more than text
        schema["propertyNames"] = names
    if names.make:
        schema.make = lambda members: dict(zip(
            differing(map(names.make, members)), members.values()))
    return schema


def more_json(value: Any) -> Any:
    """The JSON for arrays of numpy, iterators, objects with attributes."""
    cls = type(value)
    if hasattr(cls, "model_dump"):
        return model_data(value)
    if hasattr(cls, "tolist"):  # of numpy and pandas
        return value.tolist()
    if isinstance(value, abc.Mapping):
        return dict(value)
    if isinstance(value, ITERATED):
        return list(value)
    if format_of(cls):
        return str(value)
    attributes = {}
    for base in reversed(cls.__mro__):
        for name in getattr(base, "__annotations__", ()):
            if name[0] != "_" and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes or value


ARGUMENTS = (r"(?m)^(?:Args|Arguments|Parameters|Params):[ \t]*\n"
             r"((?:[ \t]+\S.*\n|[ \t]*\n)+)")
ARGUMENT = r"(?m)^\*{0,2}(\w+)[ \t]*(?:\(.*?\))?:[ \t]*(.*\n(?:[ \t]+.*\n|\n)*)"


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring without its section "Args:", and the descriptions in that."""
    from inspect import cleandoc

    descriptions = {}
    texts = re.split(ARGUMENTS, doc + "\n")  # every other one is a section
    for number in range(1, len(texts), 2):
        body = cleandoc("\n" + texts[number]) + "\n"
        for name, description in re.findall(ARGUMENT, body):
            descriptions[name] = cleandoc(description)
        # Other lines of the section stay: a model should read them too.
        texts[number] = re.sub(ARGUMENT, "", body)
    return "\n\n".join(filter(None, map(str.strip, texts))), descriptions


class DocumentedSignature(Signature):
    """Takes the descriptions of parameters from the docstring, or else the hints."""

    @cached_property
    def _doc(self) -> tuple[str, dict[str, str]]:
        """The docstring; without the descriptions that a schema of hints takes."""
        doc = super().description
        return (doc, {}) if self.given_schema else split_docstring(doc)

    @property
    def description(self) -> str:
        return self._doc[0]

    @cached_property
    def schema(self) -> Any:
        if self.given_schema:
            return self.given_schema
        properties = {**self.hint_schema["properties"]}
        for name, text in self._doc[1].items():
            if name in properties:
                properties[name] = {**properties[name], "description": text}
        return {**self.hint_schema, "properties": properties}


VARIABLE = r"\{(\+?)([A-Za-z_]\w*)(\*?)\}"
QUERY = r"\{\?([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)\}\Z"


class MoreTemplate(UriTemplate):
    """A template of RFC 6570 with more than `{x}`.

    `{+x}` and `{x*}` match slashes too; there can be one of them.  `{?x,y}`, at the
    end, matches in any order, and none is required.
    """

    may_have = "{x} with text between them, one {+x} or {x*}, and {?x,y} at the end"

    def __init__(self, text: str) -> None:
        path, *queries = re.split(QUERY, text)
        self._query = re.findall(r"\w+", "".join(queries))
        variables = re.findall(VARIABLE, path)
        self._paths = [name for plus, name, star in variables if plus or star]
        super().__init__(re.sub(VARIABLE, r"{\2}", path))
        self.segments = [name for name in self.names if name not in self._paths]
        self.names = self.names + self._query
        repeated = len(set(self.names)) < len(self.names)
        if repeated or len(self._paths) > 1:
            raise ValueError(f"{text!r}: a template may use a name once, and one path")

    def pattern_of(self, name: str, end: str) -> str:
        if name in self._paths:
            return f"(?P<{name}>[^?#]+){end}"
        return super().pattern_of(name, end)

    def texts(self, uri: str) -> dict[str, str] | None:
        path, query = uri, ""
        if self._query:
            path, _, query = uri.partition("?")
        texts = super().texts(path)
        if texts is None or "#" in query:
            return None
        for pair in filter(None, query.split("&")):
            name, _, text = pair.partition("=")
            if name not in self._query:
                return None
            texts[name] = text
        return texts


HINT_READERS.append(read_more)
JSON_READERS.append(more_json)
Registration.signature_class = DocumentedSignature
ResourceEntry.template_class = MoreTemplate

# -- 24. More of a server --------------------------------------------------------------
# Chapter: more, of a server.
# Adds: completion, method, middleware, notify_resource_updated, capabilities
# Adds: elicit_url, ask, ping, choices with titles, several choices
# Doors: the classes of a server, of its session and of contexts; @handles.
#
# What fewer servers need: completion of arguments, subscriptions to resources,
# questions with a URL, several at once, or in the words of the protocol; and for those
# that extend the protocol, middleware, methods and capabilities of their own.

CHOICES_SINCE = "2025-11-25"  # in forms: with titles, or several
MAX_COMPLETIONS = 100  # server/utilities/completion
COMPLETABLE = {"ref/prompt": "name", "ref/resource": "uri"}  # type -> the key in it
FOR_ALL = ("", "")  # the key of a function that completes what no other does
CAPABILITIES["resources"]["subscribe"] = True


def fits_later_form(field: Json, version: str) -> bool:
    """True for a choice with titles, or several choices, in later revisions."""
    if version < CHOICES_SINCE:
        return False
    if field.get("type") == "array":
        items = as_object(field.get("items"))
        if are_titled(items, "anyOf"):
            return True
        return "enum" in items and fits_form(items, version)
    return field.get("type") == "string" and are_titled(field, "oneOf")


def are_titled(schema: Json, keyword: str) -> bool:
    if IN_PLACE_KEYWORDS & schema.keys() != {keyword}:
        return False
    choices = [*map(as_object, schema[keyword])]
    texts = [choice.get("const") for choice in choices]
    titles = [choice.get("title") for choice in choices]
    return are_texts(texts + titles)


FORM_FIELDS.append(fits_later_form)


def question_of(request: Json, version: str) -> Question[Json]:
    """A Question from the protocol's JSON; its answer is returned unchanged."""
    method = request.get("method", "")
    if method not in CLIENT_REQUESTS:
        raise ValueError(f"a client cannot be asked this: {request}")
    params = request.get("params") or {}
    read: Any = dict
    if method == "elicitation/create" and params.get("mode") != "url":
        form = form_of(params.get("requestedSchema"), version)
        read = form_reader(form)

    def checked(answer: Json) -> Json:
        read(answer)
        return answer

    return Question(method, params, checked)


class MoreContext(HandlerContext):
    """More that a handler can ask."""

    def elicit_url(self, message: str, url: str, elicitation_id: str | None = None,
                   key: str | None = None, timeout: float | None = 600) -> Elicited:
        """Ask the user to visit a URL; "accept" means that the user agreed to open it.

        elicitation_id: names the question in `notifications/elicitation/complete`; by
        default random.  ValueError: not a URL.
        """
        if not re.match(URI_START, url):
            raise ValueError(f"not a URL: {url!r:.100}")
        name = None
        if self._peer.version in LEGACY_VERSIONS:  # later ones have no such id
            name = elicitation_id or os.urandom(8).hex()

        def read(answer: Json) -> Elicited:
            return Elicited(answer["action"], elicitation_id=name)

        params = wire_fields(mode="url", message=message, url=url, elicitation_id=name)
        question = Question("elicitation/create", params, read)
        return self._ask_one(question, key, timeout)

    def ask(self, requests: dict[str, Json],
            timeout: float | None = 600) -> dict[str, Json]:
        """Ask several questions at once; blocks, see Context.

        {key: {"method": …, "params": …}} -> {key: answer}, both as in the protocol.
        ValueError: a client cannot be asked this.
        """
        questions = {}
        for key, request in requests.items():
            question = question_of(request, self._peer.version)
            questions[self._request.key_of(question, key)] = question
        answers: dict[str, Json] = self._ask(questions, timeout)
        return answers

    def ping(self, timeout: float | None = 10) -> None:
        """Ask the client for a sign of life (basic/utilities/ping); blocks as `elicit`.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            McpError: the revision has no pings.
        """
        self._peer.check_method("ping")
        question: Question[None] = Question("ping", {}, lambda answer: None)
        return self._ask_one(question, None, timeout)


class MoreRegistry(Registry):
    """Also holds what the user declares, middleware and completers.

    The completers are keyed by prompt or template, and argument.
    """

    def __init__(self, *args: Any) -> None:
        self.overrides: Json = {}  # of capabilities
        super().__init__(*args)
        self.middleware: list[Handler] = []
        self.completers: dict[tuple[str, str], Signature] = {}

    def declare(self, capabilities: Json) -> None:
        """Apply the user's overrides, now and to capabilities offered later."""
        self.overrides = capabilities
        for capability in ["logging", *capabilities]:
            self.offer(capability)

    def offer(self, capability: str) -> None:
        more = self.overrides.get(capability, True)
        details = {**CAPABILITIES.get(capability, {})}
        if type(more) is dict:
            details.update(more)
        elif type(more) is not bool:
            raise TypeError(f"capabilities: {capability} is a dict, or True or False, "
                            f"not {more!r:.60}")
        with self.lock:
            if more is False:
                self.capabilities.pop(capability, None)
            else:
                self.capabilities[capability] = {
                    key: details[key] for key in details if details[key] is not False}


def call_given(request: ServedRequest, signature: Signature, given: Json) -> Any:
    """Call a function with those values that it has parameters for.

    A sole parameter `params` gets all of them.
    """
    names = [*signature.hint_schema["properties"]]
    if names == ["params"]:
        given = {"params": given}
    arguments = {name: given[name] for name in names if given.get(name) is not None}
    return request.session.call(request, signature, arguments)


class OwnMethod(namedtuple("OwnMethod", "signature cacheable")):
    """The handler of a method that the user has added."""

    def __call__(self, request: ServedRequest, params: Json) -> Json:
        value = call_given(request, self.signature, params)
        data = request.session.json_of(value, request.method)
        return data if type(data) is dict else wire_fields(result=data)


class OwnNotification(ServedRequest):
    """A notification, in place of a request: it has no id, and never an answer."""

    def __init__(self, connection: ServerConnection, method: str, params: Json,
                 size: int) -> None:
        message = {"id": None, "method": method, "params": params}
        super().__init__(connection, message, connection.outbox, size, False)
        self.token = None  # its progress is of no request

    def queue(self, method: str, params: Json, progress: float = INFINITE) -> None:
        self.peer.queue(method, params)

    def handle(self, signature: Signature) -> None:
        """Call its handler."""
        try:
            call_given(self, signature, self.params)
        finally:
            self.end()


class MoreSession(BaseServerSession):
    """Calls the user's middleware, and handlers of notifications."""

    registry: MoreRegistry

    def dispatch(self, request: ServedRequest, params: Json) -> Any:
        layers = self.registry.middleware
        if request.on_reader or not layers:
            return super().dispatch(request, params)
        call: Handler = partial(self._call_handler, request)
        for layer in reversed(layers):
            call = partial(self._call_layer, request, layer, call)
        return call(None, None, params)

    def _call_handler(self, request: ServedRequest, ctx: object, method: object,
                      params: Json) -> Any:
        return super().dispatch(request, params)

    def _call_layer(self, request: ServedRequest, layer: Handler, call_next: Handler,
                    ctx: object, method: object, params: Json) -> Json:
        """Call a middleware; ctx and method, as the layer outside passes them, are
        ignored.
        """
        ctx, method = request.context(is_async=False), request.method
        call = partial(layer, ctx, method, params, call_next)
        result = self.run_function(request, call)
        if not isinstance(result, dict):
            raise TypeError(f"middleware {name_of(layer)} returned no result")
        return result

    def handle_notification(self, method: str, params: Json, size: int) -> None:
        super().handle_notification(method, params, size)
        own = self.registry.methods.get(method)
        if own is None or not method.startswith("notifications/"):
            return
        callbacks = self.connection.callbacks
        if callbacks.bytes > MAX_BACKLOG_BYTES:
            return  # too many wait
        request = OwnNotification(self.connection, method, params, size)
        try:
            callbacks.submit(partial(request.handle, own.signature), request.cost)
        except RuntimeError:  # no thread can be started for it
            log_exception("mcp_min: a notification was dropped")


class MoreServer(BaseServer):
    """What a server has for its extensions, for completion, and for subscribers."""

    _registry: MoreRegistry
    _registry_class = MoreRegistry

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._registry.declare(options.capabilities or {})

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Register a function that completes an argument (server/utilities/completion).

        ref: the name of a prompt, or a URI template.  The function is called with
        `value`, the text so far, and with `context`, the other arguments as a dict, if
        it has that parameter; it returns a list of str.
        """
        def add(fn: F) -> F:
            signature = Signature(fn)
            with self._registry.lock:
                self._registry.completers[ref, argument] = signature
            self._registry.offer("completions")
            return fn

        return add

    def method(self, name: str, *, cacheable: bool = False) -> Callable[[F], F]:
        """Register a handler for a request or a notification of your own.

        A notification is what has a name that begins with "notifications/".  It gets
        the params of the message as its parameters, or all of them as `params` if that
        is its only one; others are ignored, and null is as if absent.

        cacheable: its results may be cached as lists are, for `cache_ttl` seconds.

        Raises:
            TypeError: the protocol has this method.
        """
        if not isinstance(name, str) or name in METHOD_HANDLERS:
            raise TypeError(f"method needs a name of your own, not {name!r}")

        def add(fn: F) -> F:
            own = OwnMethod(Signature(fn), cacheable)
            with self._registry.lock:
                self._registry.methods[name] = own
            return fn

        return add

    def middleware(self, fn: F) -> F:
        """Register fn(ctx, method, params, call_next) -> result around every handler.

        call_next(ctx, method, params) calls the next middleware or the handler; call it
        at most once.  It passes on changed params, but not a changed method.  The first
        middleware registered is the outermost.  None is called for notifications, nor
        for what the reader handles itself: the handshake, ping, subscriptions, the log
        level.

        A list that is computed, instead of registered:

            @server.middleware
            def computed(ctx, method, params, call_next):
                if method == "prompts/list":
                    names = [path.stem for path in FOLDER.iterdir()]
                    return {"prompts": [{"name": name} for name in names]}
                return call_next(ctx, method, params)

        Server(capabilities={"prompts": {}}) declares prompts though none is registered.
        """
        require_sync(fn)
        with self._registry.lock:
            self._registry.middleware.append(fn)
        return fn

    def notify_resource_updated(self, uri: str) -> None:
        """Notify the clients that have subscribed to this URI that it has changed."""
        self._registry.publish(UPDATED, uri, UPDATED, {"uri": uri})


@handles("resources/subscribe", "resources/unsubscribe")
def handle_subscribe(request: ServedRequest, params: Json) -> Json:
    uri = require_type(params.get("uri"), str, "uri")
    key, cost = (UPDATED, uri), REQUEST_COST + len(uri) * (1 if uri.isascii() else 4)
    subscriptions = request.peer.subscriptions
    incoming = request.connection.incoming
    wanted = request.method == "resources/subscribe"
    with request.session.registry.lock, request.connection.lock:
        if wanted == (key in subscriptions):
            return {}
        if wanted:
            incoming.check_room(besides=request.cost)
            incoming.bytes += cost
            subscriptions.add(key)
        else:
            incoming.bytes -= cost
            subscriptions.remove(key)
    return {}


@handles("completion/complete")
def handle_complete(request: ServedRequest, params: Json) -> Json:
    ref = member(params, "ref", dict)
    argument = member(params, "argument", dict)
    field = COMPLETABLE[require_one_of("ref.type", ref.get("type"), COMPLETABLE)]
    key = require_type(ref.get(field), str, f"ref.{field}")
    name = require_type(argument.get("name"), str, "argument.name")
    value = require_type(argument.get("value"), str, "argument.value")
    context = member(member(params, "context", dict), "arguments", dict)
    registry: Any = request.session.registry
    completers, lists = registry.completers, registry.lists
    completer = completers.get((key, name)) or completers.get(FOR_ALL)
    found = None
    if completer:
        given = {"value": value, "context": context, "ref": ref, "argument": argument}
        found = call_given(request, completer, given)
    elif key not in {**lists["prompts"], **lists["resourceTemplates"]}:
        raise invalid_params(f"Unknown prompt or template: {key:.200}",
                             f"ref.{field}", "there is no such prompt or template")
    return completion_of(request.session, found)


def completion_of(session: BaseServerSession, found: Any) -> Json:
    """The result for what a function returned: texts, or a dict of the wire."""
    more: Json = {}
    if found and isinstance(found, dict):
        more = wire_fields(**found)
        found = more["values"]
    if is_text(found):
        found = [found]
    texts = [session.text_for(value, "a completion") for value in found or ()]
    has_more = len(texts) > MAX_COMPLETIONS
    completion = {"total": len(texts), "hasMore": has_more, **more}
    completion["values"] = texts[:MAX_COMPLETIONS]
    return {"completion": completion}


# -- 25. Coroutines --------------------------------------------------------------------
# Chapter: asyncio, of both.
#
# How a thread and an event loop wait for each other.

def from_any_thread(loop: AbstractEventLoop, act: Job) -> Job:
    """A function for any thread, which lets the loop call `act` unless it is closed."""
    def tell() -> None:
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(act)

    return tell


def settle(future: Future[Any], outcome: Outcome[Any]) -> None:
    """Set the outcome of a future, unless that was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome.error, StopIteration):  # asyncio's futures do not take it
        future.set_exception(RuntimeError(repr(outcome.error)))
    elif outcome.error:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)


CANCEL_SECONDS = 1.0  # for tasks to end when they are cancelled


def run_on_loop(loop: AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]],
                began: Callable[[Task[T]], object]) -> Inbox:
    """Make a task of the coroutine make(); return the inbox that gets its outcome.

    It gets that also if the task is cancelled before its first step.  began(task) is
    called on the loop's thread, and keeps the task, to which the loop has only a weak
    reference.  RuntimeError: the loop is closed.
    """
    inbox = Inbox()

    async def run() -> Any:
        return await make()  # which may raise at once: its arguments may be wrong

    def begin() -> None:
        task = loop.create_task(run())
        task.add_done_callback(lambda _: inbox.finish(task.result))
        began(task)

    loop.call_soon_threadsafe(begin)
    return inbox


def wait_for_loop(loop: AbstractEventLoop, inbox: Inbox,
                  until: float = INFINITE) -> Any:
    """Wait for what run_on_loop has begun; RuntimeError: the loop has closed before."""
    while True:
        is_closed = loop.is_closed()  # then the outcome is there, or will never be
        try:
            return inbox.wait(min(until, monotonic() + STEP_SECONDS))
        except Empty:
            if monotonic() >= until:
                raise
            if is_closed:
                raise RuntimeError("the event loop has ended") from None


# -- 26. Coroutines of a server --------------------------------------------------------
# Chapter: asyncio, of a server.
# Adds: async def, async lifespan, run_async
# Doors: the classes of a server and of its session; rows of tables (CONTEXT_TYPES).
#
# All `async def` handlers share one event loop, on a thread of its own, so that a
# connection pool made in one call serves the next.  A worker waits for each coroutine;
# so `def` and `async def` take one path, and `max_workers` bounds both.

__all__ += ["AsyncContext"]


def awaited(method: Callable[Concatenate[Context, P], T],
            ) -> Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, T]]:
    """The same method for an AsyncContext.

    It is the very same function, which returns what `_ask` does: there a coroutine.
    Only type checkers see a difference.
    """
    return method  # type: ignore[return-value]


READER_COST = 16 << 10  # bytes: what a thread that reads a resource is charged


class AsyncContext(BaseContext["Awaitable[None]"]):
    """The context of an `async def` handler.

        @server.tool
        async def copy(paths: list[str], ctx: AsyncContext) -> str:
            for path in ctx.track(paths):
                await ctx.info(f"copying {path}")
            answer = await ctx.elicit("Delete the originals?", bool)

    It has what Context has; wait, once, read_resource and the methods that ask are
    `async def`, and block no other handler.  Reports and messages act at once; to await
    them waits for room where the client reads slowly.  When the client cancels the
    request, the handler's task is cancelled; a task that is cancelled while it asks
    withdraws its question.  A handler may annotate either; type checkers find a missing
    `await` with this one.
    """

    _is_async = True
    _may_block = False  # on the loop's thread
    _unwound: Outcome[Any] | None = None  # of a question that raised Unwind

    def __class_getitem__(cls, item: object) -> type[AsyncContext]:
        return cls

    def _sent(self) -> Awaitable[None]:
        outbox = self._peer.connection.outbox
        return Sent(outbox) if outbox.is_crowded() else DONE

    async def wait(self, seconds: float) -> None:
        """Sleep; the task is cancelled as soon as the request is."""
        import asyncio

        await asyncio.sleep(seconds)
        self.check_cancelled()

    elicit, sample = awaited(HandlerContext.elicit), awaited(HandlerContext.sample)
    list_roots = awaited(HandlerContext.list_roots)
    elicit_url, ask = awaited(MoreContext.elicit_url), awaited(MoreContext.ask)  # more
    ping = awaited(MoreContext.ping)  # more

    async def _ask(self, questions: dict[str, Question[Any]],
                   timeout: float | None) -> Json:
        peer, request = self._peer, self._request
        try:
            answers = peer.answers_to(request, questions)
        except Unwind as unwind:
            self._unwound = unwind.outcome
            raise
        if answers is None:
            answers = {}
            with peer.asked(request, questions, timeout) as sent:
                for key, asked in sent.items():
                    answers[key] = questions[key].read(key, await wait_async(asked))
        return answers

    async def _ask_one(self, question: Question[T], key: str | None,
                       timeout: float | None) -> T:
        key = self._request.key_of(question, key)
        answer: T = (await self._ask({key: question}, timeout))[key]
        return answer

    async def once(self, key: str, run: Callable[[], Any]) -> Any:
        """See Context.once; `run` may be `async def` too."""
        self.check_cancelled()
        steps = self._request.steps
        if key not in steps:
            value = run()
            if hasattr(value, "__await__"):
                value = await value
            steps[key] = to_json_data(value, strict=True)
        return to_json_data(steps[key])

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """See Context.read_resource; on a thread, because a resource may block."""
        request, connection = self._request, self._session.connection

        def charge(size: int) -> None:
            with connection.lock:
                connection.incoming.bytes += size

        def read() -> list[Any]:
            # It may go on when the request was cancelled, and is released.
            cost = request.cost + READER_COST
            charge(cost)
            try:
                return self._session.read(request, uri)
            finally:
                charge(-cost)

        try:
            return await on_thread(read)
        except Unwind as unwind:
            self._unwound = unwind.outcome
            raise


async def on_thread(run: Callable[[], T]) -> T:
    """Call a function that may block, on a thread of its own."""
    import asyncio
    from concurrent.futures import Future

    future: Future[T] = Future()
    start_thread("mcp awaited", lambda: settle(future, Outcome.of(run)))
    return await asyncio.wrap_future(future)


class Sent(abc.Coroutine):  # type: ignore[type-arg]
    """The result of an action already carried out; awaiting it is optional.

    If the outbox is crowded, awaiting it waits for room.
    """

    result: Any = None

    def __init__(self, crowded: Outbox | None = None) -> None:
        self._crowded = crowded

    def __await__(self) -> Generator[Any, None, Any]:
        if self._crowded:
            import asyncio

            while self._crowded.is_crowded():  # not when its connection is closed
                yield from asyncio.sleep(0.005).__await__()
        return self.result

    def send(self, value: object) -> NoReturn:
        raise StopIteration(self.result)

    def throw(self, error: Any, *_: object) -> NoReturn:
        raise error

    def close(self) -> None:
        """There is nothing to end."""


DONE = Sent()


async def wait_async(asked: OutgoingRequest) -> Any:
    """Wait for the outcome of a request, as its `wait` does; no thread waits."""
    import asyncio

    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked.inbox.on_arrival = from_any_thread(loop, arrived.set)
    while True:
        arrived.clear()
        with suppress(Empty):
            return asked.inbox.wait(monotonic())
        seconds = asked.deadline() - monotonic()
        if seconds <= 0 and asked.give_up("timed out"):
            raise asked.timeout_error()
        # If it could not be withdrawn, the outcome is on its way.
        seconds = seconds if seconds > 0 else STEP_SECONDS
        timer = loop.call_later(seconds, arrived.set)
        try:  # not wait_for, which may swallow a cancellation
            await arrived.wait()
        finally:
            timer.cancel()


CONTEXT_TYPES.append(AsyncContext)

def refuse_event_loop() -> None:
    """Raise RuntimeError if an event loop of asyncio runs on the calling thread."""
    events = sys.modules.get("asyncio.events")  # not imported for this
    running_loop = getattr(events, "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        raise RuntimeError("an event loop runs on this thread, and run() would stop "
                           "it: `await server.run_async()`")


LIFESPAN_SECONDS = 5.0  # to leave a lifespan
MAX_LOOP_FAILURES = 100  # after which an event loop is given up


class AsyncRuntime(Lifespan):
    """The event loop of a server's `async def` handlers, and its lifespan.

    The first coroutine starts the loop, on a thread of its own, and the last connection
    ends it; or run_async lends its loop.  An `async` lifespan runs on it, too.
    """

    def __init__(self, server: BaseServer, make: Handler | None) -> None:
        super().__init__(server, make)
        self.lent: AbstractEventLoop | None = None  # the caller's, to be used
        self._tasks: set[object] = set()  # for the loop, which keeps weak references
        # Guards the rest while there is a connection; held while the loop starts.
        self._starting = threading.Lock()
        self._is_open = False             # from the first connection to the last
        self._loop: AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None  # of the loop, if it is ours

    def lend(self, loop: AbstractEventLoop) -> None:
        """Use this loop, from the first connection on."""
        with self._starting:
            if self._is_open:
                raise RuntimeError("run_async must come before the server's other "
                                   "connections: its loop serves all of them")
            self.lent = loop

    def _begin(self, exits: ExitStack) -> None:
        self._loop, self._is_open = self.lent, True
        exits.callback(self._end_loop)
        super()._begin(exits)

    def run(self, awaitable: Any, request: ServedRequest | None = None,
            until: float = INFINITE) -> Any:
        """Run a coroutine on the loop, and return its result; queue.Empty: too late."""
        try:
            with self._starting:  # so that it comes before the loop is stopped
                loop = self._running_loop()
                began = partial(self._began, awaitable, request)
                inbox = run_on_loop(loop, partial(outcome_of, awaitable), began)
            outcome = wait_for_loop(loop, inbox, until)
            if request:  # this thread goes on with it
                request.where = ServedRequest.where
                request.begin()
        except (ConnectionClosed, RuntimeError):
            close_coroutine(awaitable)
            raise
        except Stopped:
            if request:
                request.connection.close()  # this is no result to send
            raise
        return outcome()

    def _began(self, awaitable: Any, request: ServedRequest | None,
               task: Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: close_coroutine(awaitable))
        if request:
            cancel = from_any_thread(task.get_loop(), task.cancel)
            request.where = "and goes on; the event loop is still at"
            request.begin()
            request.on_cancel(cancel)
            task.add_done_callback(lambda _: request.forget(cancel))

    def _running_loop(self) -> AbstractEventLoop:  # the caller holds _starting
        import asyncio

        if not self._is_open:  # a handler has outlived its client
            raise ConnectionClosed("The server has ended")
        if self._loop and self._loop is asyncio._get_running_loop():
            raise RuntimeError("an `async def` handler would wait for its own "
                               "event loop: call run_async without threaded=False")
        if self._loop is None or self._loop.is_closed():
            loop = self._loop = asyncio.new_event_loop()
            try:
                self._thread = start_thread("mcp event loop", partial(self._run, loop))
            except RuntimeError:
                self._loop = None
                loop.close()
                raise
        return self._loop

    def _run(self, loop: AbstractEventLoop) -> None:
        failures = 0
        # A handler may have stopped the loop: then it goes on.
        while self._loop is loop and failures < MAX_LOOP_FAILURES:
            try:
                loop.run_forever()
            except BaseException:  # such as the exit() of a task that a handler started
                failures += 1
                log_exception("mcp_min: a task of the event loop failed")
        try:
            loop.run_until_complete(cancel_tasks())
        except BaseException:
            log_exception("mcp_min: the event loop failed")
        finally:
            loop.close()

    def _end_loop(self) -> None:
        with self._starting:
            self._is_open = False
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop and thread:
            from_any_thread(loop, loop.stop)()
            thread.join(2 * CANCEL_SECONDS)

    def _entered(self, manager: Any, exits: ExitStack) -> Any:
        if not hasattr(manager, "__aenter__"):
            return super()._entered(manager, exits)
        context, leave = self.run(enter_in_task(manager))
        exits.callback(self._leave_lifespan, leave)
        return context

    def _leave_lifespan(self, leave: Handler) -> None:
        try:
            self.run(leave(), until=monotonic() + LIFESPAN_SECONDS + 1)
        except Empty:
            warn("mcp_min: could not leave the lifespan, because a handler blocks the "
                 "event loop\n")


async def outcome_of(awaitable: Any) -> Outcome[Any]:
    """Await what a handler has returned; a SystemExit of a task would end the loop."""
    pid = os.getpid()
    try:
        outcome = Outcome(await awaitable)
    except Stopped:  # by a signal, which is meant for the thread of the loop
        raise
    except BaseException as error:
        outcome = Outcome(None, error)
    if os.getpid() != pid:
        os._exit(0)  # a child that the handler has forked, without the others
    return outcome


def close_coroutine(awaitable: object) -> None:
    """Close a coroutine that has ended, or has not begun and will not."""
    if isinstance(awaitable, abc.Coroutine):
        awaitable.close()


async def enter_in_task(manager: Any) -> tuple[Any, Handler]:
    """Enter an async context manager; return its value, and how to leave it.

    Both happen in one task, because a task group inside requires it.
    """
    import asyncio

    entered, leaving = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def live() -> None:
        async with manager as context:
            entered.set_result(context)
            await leaving.wait()

    async def leave() -> None:
        leaving.set()
        await asyncio.wait_for(task, LIFESPAN_SECONDS)

    task = asyncio.ensure_future(live())
    await asyncio.wait({task, entered}, return_when=asyncio.FIRST_COMPLETED)
    if not entered.done():
        await task  # raises its error
    return entered.result(), leave


async def cancel_tasks() -> None:
    import asyncio

    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()


class AsyncSession(BaseServerSession):
    """Waits for the coroutines of handlers."""

    lifespan: AsyncRuntime

    def await_value(self, value: Any, request: ServedRequest) -> Any:
        context = request.context(is_async=True)
        try:
            return self.lifespan.run(value, request)
        finally:
            # What ends the handler may have been kept by asyncio.gather, or be in the
            # exception of a task group.
            error = sys.exc_info()[1]
            if context._unwound and not isinstance(error, (Stopped, Unwind)):
                raise Unwind(context._unwound)


class AsyncServer(BaseServer):
    """What a server has for asyncio."""

    _lifespan: AsyncRuntime
    _lifespan_class = AsyncRuntime

    async def run_async(self, *, threaded: bool | None = None) -> None:
        """Serve over stdin and stdout as `run` does, within an asyncio program.

            async def main():
                await asyncio.gather(server.run_async(), other_work())

        `async def` handlers run on the caller's event loop.  `def` handlers run on
        threads; with threaded=False on the loop's, which is blocked while they run.
        Cancelling the task ends the server.

        Raises:
            RuntimeError: see `run`; or the server has other connections already.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        how: Json = {"run_soon": loop.call_soon_threadsafe}
        if threaded is not None:
            if left_out("threaded"):
                raise TypeError(left_out("threaded"))
            how["threaded"] = threaded
        self._lifespan.lend(loop)
        try:
            with self._stdio_session(**how) as session:
                # Not in the loop's executor, whose threads may all be taken.
                ended = asyncio.ensure_future(on_thread(session.run))
                try:
                    while not ended.done():
                        await asyncio.wait({ended}, timeout=STEP_SECONDS)
                finally:  # also when this task is cancelled
                    # On a thread, because it waits for the `finally` of coroutines.
                    await on_thread(session.end)
                    await ended
        finally:
            self._lifespan.lent = None


# -- 27. Files of our own --------------------------------------------------------------
# Of chapter inside, or chapter trace.


def open_own(path: str, flags: int) -> int:
    """Open a regular file of ours that has no other name, and no symlink or pipe."""
    for flag in "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY":
        flags |= getattr(os, flag, 0)
    fd = os.open(path, flags, 0o600)
    status = os.fstat(fd)
    is_ours = os.name == "nt" or status.st_uid == os.getuid()
    if is_ours and stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
        return fd
    os.close(fd)
    raise PermissionError(f"{path} is not a file of yours")


# -- 28. Inside an application ---------------------------------------------------------
# Chapter: inside, of a server.
# Adds: threaded, run_handler, listen
# Doors: the classes of a server and of its session; rows of tables (ERROR_HINTS).
#
# A server inside a program that has threads of its own: Blender, IDA, a GUI.  What is
# bound to one thread (COM, Qt, a sqlite3 connection) is only touched there, and hosts
# reach the server by a port of the loopback interface.
#
#   run_handler    A thread of the host's choice: it is handed a function without
#                  arguments, and a worker waits until it has run.
#   threaded=False  The same, where the host is the thread that called `serve` or `run`;
#                  with Client(server) the one that waits for a result.  One handler
#                  runs after the other, in the order of the requests.

__all__ += ["Listener"]

host_thread = threading.local()  # active: a host's, which runs a handler now


def run_on_host_thread(run_handler: Handler, run: Callable[[], Any],
                       request: ServedRequest) -> Any:
    """Let the host run a handler on a thread of its choice, and wait for it."""
    if getattr(host_thread, "active", False):
        return run()  # it is there
    inbox, connection = Inbox(), request.connection
    waiting = [(run, request)]  # until the job takes it, or a cancellation before

    def job() -> None:
        try:
            run, request = waiting.pop()
        except IndexError:
            return  # it was cancelled, or the host calls this again
        request.begin()
        pid = os.getpid()
        was_active = getattr(host_thread, "active", False)
        host_thread.active = True
        outcome = Outcome.of(run)
        host_thread.active = was_active  # jobs may nest
        if os.getpid() != pid:
            os._exit(0)  # a child that the handler has forked, without the others
        stop = isinstance(outcome.error, (KeyboardInterrupt, Stopped))
        if stop:
            connection.close()  # before the worker can answer
        inbox.finish(outcome)
        if stop:
            outcome()  # it is meant for this thread, not for the handler

    def cancel() -> None:
        with suppress(IndexError):
            waiting.pop()  # now, because the host may keep the job for long
            inbox.finish(raise_cancelled)

    request.on_cancel(cancel)
    connection.hand_over(request)
    run_handler(job)
    return inbox.wait()


ERROR_HINTS["objects created in a thread"] = (
    "Server(threaded=False) runs all handlers on the thread that serves")


class HostedSession(BaseServerSession):
    """Runs `def` handlers where a host wants them."""

    def __init__(self, server: BaseServer, *streams: ByteStream,
                 threaded: bool | None = None, **how: Any) -> None:
        if threaded is None:
            threaded = server._options.threaded
        host = server._options.run_handler
        self.threaded = threaded or host is not None
        if not self.threaded:
            how["max_workers"] = 1  # handlers run in the order of their requests
        super().__init__(server, *streams, **how)
        # Runs `def` handlers; None: they run where they are called.
        self._host: Handler | None = host or (None if threaded else self.run_soon)
        if self._host:
            self.connection.keeps_reader_free = True
        self.connection.taps.append(HttpGuard(self.connection))

    def run_function(self, request: ServedRequest, call: Callable[[], Any],
                    on_loop: bool = False) -> Any:
        if self._host and not on_loop:
            call = partial(run_on_host_thread, self._host, call, request)
        return super().run_function(request, call, on_loop)


class HttpGuard:
    """A tap that closes a connection whose first line is an HTTP request.

    A browser may have reached the port of a server: nothing that it sent is executed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def show(self, arrow: str, data: Line) -> None:
        connection = self._connection
        if arrow != ">":
            return
        connection.taps = [tap for tap in connection.taps if tap is not self]
        if re.match(rb"[A-Z]+ \S+ HTTP/\d", data):
            connection.close()

    def close(self) -> None:
        """There is nothing to close."""


class InsideServer(BaseServer):
    """What a server has that runs inside of an application."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.threaded = options.threaded

    def listen(self, path: str) -> Listener:
        """Let hosts reach this server inside a running application; returns soon.

            listener = server.listen("~/.studio/mcp")    # in the application
            listener.close()                             # when it ends

        A host starts `python3 mcp_min.py connect ~/.studio/mcp` (of the whole file, if
        this is a copy without its command line).  The server listens on a port of
        127.0.0.1 that the system chooses.  The port and a random secret are written to
        `path`, a file that only this user may read; its folder is made, just as
        private, if it does not exist.  A client that does not send the secret first is
        not served.  Each connection has a thread of its own; for handlers that belong
        on one of the application's threads see `run_handler`.  The Listener's close()
        stops listening, ends the connections and removes the file.

        Raises:
            OSError: a server already listens at `path`.
        """
        return Listener(self, path)


LISTEN_SECONDS = 5.0  # for each end of a Listener's connection to send its secret
MAX_STRANGERS = 64    # connections that have not sent it yet; more are closed


def reach_listener(path: str) -> socket.socket | None:
    """A socket to the server that listens at a path; None if nobody listens.

    Each side sends a secret (see Server.listen): the port of a listener that has died
    may be another program's now.
    """
    import socket

    sock = socket.socket()
    try:
        fd = open_own(os.path.expanduser(path), os.O_RDONLY)
        with open(fd, "rb") as file:
            port, ours, theirs = file.read(1000).split()
        sock.connect(("127.0.0.1", int(port)))
        sock.sendall(ours)
        if sends_secret(sock, theirs):
            return sock
    except (OSError, OverflowError, ValueError):
        pass  # there is no such file, or it is a stale one
    sock.close()
    return None


def sends_secret(sock: socket.socket, secret: bytes) -> bool:
    """True if the peer of a new connection sends this secret in time."""
    import socket
    from hmac import compare_digest

    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(LISTEN_SECONDS)
        received = sock.recv(len(secret))  # all of it, because it came in one packet
        sock.settimeout(None)
        return compare_digest(received, secret)
    return False


class Listener:
    """Serves the connections of the command `connect`; made by `Server.listen`."""

    _closed = False

    def __init__(self, server: BaseServer, path: str) -> None:
        import socketserver

        self.path = os.path.abspath(os.path.expanduser(path))
        self._server = server
        self._secret, self._reply = (os.urandom(32).hex().encode() for _ in range(2))
        self._sockets: set[socket.socket] = set()    # of the open connections
        self._strangers: set[socket.socket] = set()  # that have not sent the secret yet
        os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
        live = reach_listener(self.path)
        if live:
            live.close()
            raise FileExistsError(f"a server already listens at {self.path}")
        admit: Any = self._admit
        tcp: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), admit)
        tcp.daemon_threads = True
        tcp.socket.listen(MAX_STRANGERS)  # socketserver lets five wait
        with ExitStack() as exits:
            exits.callback(tcp.server_close)
            start_thread("mcp listener", partial(tcp.serve_forever, 0.1))
            exits.callback(tcp.shutdown)
            self._write_file(tcp.server_address[1])
            self._exits = exits.pop_all()

    def _write_file(self, port: int) -> None:
        import tempfile

        folder = os.path.dirname(self.path)
        fd, temporary = tempfile.mkstemp(dir=folder)  # with mode 0600
        with open(fd, "wb") as file:
            file.write(b"%d %s %s" % (port, self._secret, self._reply))
        try:
            os.replace(temporary, self.path)  # in one step: nobody reads a part of it
        except OSError:
            os.unlink(temporary)
            raise

    def close(self) -> None:
        """Stop listening, end the connections, and remove the file."""
        import socket

        self._closed = True
        self._exits.close()
        with suppress(OSError):  # it is gone
            with open(self.path, "rb") as file:
                is_ours = self._secret in file.read(1000)
            if is_ours:
                os.unlink(self.path)
        for sock in self._sockets.copy():
            with suppress(OSError):  # it has hung up
                sock.shutdown(socket.SHUT_RDWR)

    def _admit(self, sock: socket.socket, *_: object) -> None:
        self._sockets.add(sock)
        self._strangers.add(sock)
        try:
            has_room = len(self._strangers) <= MAX_STRANGERS
            is_ours = has_room and sends_secret(sock, self._secret)
            self._strangers.discard(sock)
            if is_ours and not self._closed:
                with suppress(OSError):  # it has hung up
                    sock.sendall(self._reply)
                with sock.makefile("rwb", buffering=0) as stream:
                    self._server._session(stream, stream).run()
        finally:
            self._sockets.discard(sock)


# -- 29. Inside an application, of a client --------------------------------------------
# Chapter: inside, of parts II and III.
# Doors: the classes of a session and of a Server in this process; began.
#
# Client(server) where the server has threaded=False: its handlers run, one after the
# other, on a thread of the client's that waits for a result.


class UnthreadedServer(HostedServer):
    """A Server in this process.

    run_jobs: runs the `def` handlers that wait; None: the server has threads for them.
    """

    run_jobs: Job | None = None

    def __init__(self, server: Any) -> None:
        self._jobs: deque[Job] = deque()
        self._running = threading.RLock()  # held by the thread that runs a job
        self._closed = False
        super().__init__(server)
        if not self._session.threaded:
            self.run_jobs = self._run_jobs

    def run_soon(self, job: Job) -> None:
        self._jobs.append(job)
        if self._closed:
            self._session.inbox.call(self._run_jobs)  # `close` waits there
            return
        with self._connection.lock:
            waiting = [*self._connection.outgoing.values()]
        for request in waiting:
            if isinstance(request, BaseCall):  # a thread waits for it
                request.inbox.call(self._run_jobs)

    def _run_jobs(self) -> None:
        # Every call that waits is woken, and one of them takes the job.
        while self._jobs and self._running.acquire(blocking=False):
            try:
                if self._jobs:  # no other thread was faster
                    self._jobs.popleft()()
            finally:
                self._running.release()

    def close(self) -> None:
        self._closed = True
        self._session.inbox.call(self._run_jobs)
        super().close()


class InsideClientSession(BaseClientSession):
    """Lets threads that wait run the handlers of an unthreaded server."""

    def began(self, request: OutgoingRequest) -> None:
        super().began(request)
        run_jobs = getattr(self.process, "run_jobs", None)
        if run_jobs:  # a handler may be queued already
            request.inbox.call(run_jobs)

    def wait_elsewhere(self, run: Job) -> None:
        if getattr(self.process, "run_jobs", None):
            run()  # here: the handlers that it waits for need this thread
        else:
            super().wait_elsewhere(run)


class InsideClient(BaseClient):
    """What a client has for a server inside of the same program."""

    _hosted_class = UnthreadedServer


# -- 30. Trace -------------------------------------------------------------------------
# Chapter: trace, of both.
# Adds: trace
# Adds variables: MCP_MIN_TRACE
# Doors: taps.
#
# The lines that cross, with their times, on stderr or in a file.

REVERSE = {">": "<", "<": ">"}


class Trace:
    """Shows each line with its time: > goes to the server, < to the client.

    The variable MCP_MIN_TRACE turns it on: "stderr", or the name of a file.  A response
    is shown with the method of its request and the milliseconds since then.
    """

    def __init__(self, target: str, max_depth: int = MAX_DEPTH) -> None:
        self._max_depth = max_depth
        self._lock = threading.Lock()  # a leaf; guards the next
        self._requests: dict[object, tuple[str, float]] = {}
        self._file: ByteStream = None
        if target == "stderr":
            return
        fd = open_own(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = open(fd, "ab", buffering=0)  # noqa: SIM115
        if hasattr(os, "fchmod"):  # messages may hold secrets
            os.fchmod(fd, 0o600)

    def show(self, arrow: str, data: Line) -> None:
        """Show the messages of some lines."""
        for line in data.splitlines():
            with self._lock:
                note = self._response_note(arrow, line)
            self.note(arrow, line, note)

    def note(self, arrow: str, line: Line, note: str = "") -> None:
        """Write a line with its time; note: what follows it."""
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        text = escape_control(line.decode("utf-8", "backslashreplace").rstrip())
        text = f"{clock}.{int(now % 1 * 1000):03} {arrow} {text}{note}\n"
        if self._file is None:
            warn(text, patience=0.02)
            return
        # One unbuffered write, so that lines stay whole, and none is left.  A full disk
        # must not stop the connection; and the file may be closed.
        with suppress(OSError, ValueError):
            self._file.write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _response_note(self, arrow: str, line: Line) -> str:
        try:
            message = decode(line, self._max_depth)
            key = valid_id(message["id"])
            if "method" in message:
                # Bounded: a cancelled request never gets a response, and a hostile peer
                # may send any number.
                if len(self._requests) > 10000 or len(str(key)) > 1000:
                    self._requests.clear()
                self._requests[arrow, key] = message["method"], time.perf_counter()
                return ""
            method, start = self._requests.pop((REVERSE[arrow], key))
        except McpError:
            return "  # not a message"
        except (KeyError, TypeError):
            return ""
        milliseconds = (time.perf_counter() - start) * 1000
        return f"  # {ascii(method)[1:-1]} {milliseconds:.1f} ms"


def trace_of(connection: Connection) -> Trace | None:
    """The trace that MCP_MIN_TRACE asks for; OSError: its file cannot be opened."""
    target = os.environ.get("MCP_MIN_TRACE")
    return Trace(target, connection.max_depth) if target else None


TAPS.append(trace_of)


# -- 31. Turns of reading --------------------------------------------------------------
# Chapter: turns, of a server.
# Doors: the classes of a connection, of its requests and of its pool.
#
# The thread that reads runs a handler itself if nothing else runs, because to hand each
# request to another thread takes up to a quarter longer.  A watcher checks whether a
# handler holds up the reader; then another thread reads on.  Handlers that go on long
# after they were cancelled are reported.

STUCK_SECONDS = 5.0          # a cancelled handler that runs for longer is reported
HAND_OVER_SECONDS = 0.002    # a reader that a handler keeps for longer is replaced
WATCH_SECONDS = 0.02         # after a handler has begun, the watcher waits for the next


class SharedPool(ThreadPool):
    """A pool that lends one of its places to the reader."""

    def _ready(self) -> bool:
        return bool(self._jobs) and self._running < self._limit

    def try_enter(self) -> bool:
        """Let the calling thread run a job if no other runs; `leave` follows."""
        with self._lock:
            if self._running or self._jobs:
                return False
            self._running = 1
            return True


class WatchedRequest(ServedRequest):
    """A request whose handler is reported if it goes on after its cancellation."""

    connection: TurnConnection
    _over: threading.Event | None = None  # once cancelled: its handler has ended

    def end(self) -> None:
        super().end()
        if self._over:
            self._over.set()

    def cancel(self, reason: object = None) -> bool:
        if not super().cancel(reason):
            return False
        with self.connection.lock:
            if self.thread is None or self.connection.closed:
                return True
            over = self._over = threading.Event()
        with suppress(RuntimeError):  # no thread can be started
            self.connection.reports.submit(partial(self._report_stuck, over))
        return True

    def _report_stuck(self, over: threading.Event) -> None:
        """Report where its handler is if it still runs after a while."""
        if over.wait(STUCK_SECONDS):
            return
        frame = self.thread and user_frame(self.thread)
        if not frame:
            return
        name = self.params.get("name") or self.params.get("uri") or ""
        warn(f"mcp_min: {self.method} {name!s:.100} was cancelled "
             f"{STUCK_SECONDS:g} s ago, {self.where} "
             f"{frame.f_code.co_filename}:{frame.f_lineno}\n")


def user_frame(thread: int) -> FrameType | None:
    """A thread's innermost frame outside mcp_min and the standard library, or None.

    So a handler that waits for a lock is shown at its own line, not inside `threading`.
    """
    skipped = ("<frozen", os.path.join(os.path.dirname(threading.__file__), ""),
               user_frame.__code__.co_filename)
    frame = sys._current_frames().get(thread)
    while frame:
        name = frame.f_code.co_filename
        if "site-packages" in name or not name.startswith(skipped):
            break
        frame = frame.f_back
    return frame


class TurnConnection(ServerConnection):
    """A server's connection whose threads read by turns.

    The threads that read are numbered; the one with the current number reads.  While it
    runs a handler, the watcher looks whether that keeps it, and then calls `hand_over`;
    a handler that is about to block calls that at once.  It starts a thread with the
    next number:

        _turn  _current
        1      None      thread 1 waits for a line
        1      R         it runs the handler of R
        2      None      thread 2 reads; thread 1 ends when R has ended

    There is one reader at a time: the number is raised under the lock, and only while
    the reader runs a handler; the reader takes the lock before it rereads the number.
    """

    pool: SharedPool
    request_class = WatchedRequest
    pool_class = SharedPool
    keeps_reader_free = False

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.reports = ThreadPool("mcp report", self.session.options.max_workers)
        # Connection.lock guards these.
        self._turn = 1
        self._current: IncomingRequest | None = None  # whose handler the reader runs
        self._since = 0.0         # when the last one began
        self._watcher: threading.Thread | None = None
        self._is_watched = False  # the watcher looks
        self._woken = threading.Condition(self.lock)  # to look earlier

    def start_reading(self) -> None:
        start_thread("mcp reader", partial(self._read_turn, self._turn))

    def _read_turn(self, turn: int) -> None:
        while self._turn == turn:
            line = self.next_line()
            if line is None:
                return self.end_of_input()
            self.receive(line)

    def run_handler(self, request: IncomingRequest) -> None:
        """Run the handler of a request here, on the reader, if nothing else runs.

        Not if it came in a batch, whose next message would have to wait.
        """
        in_batch = request.sink is not self.outbox
        if in_batch or self.keeps_reader_free or not self.pool.try_enter():
            return super().run_handler(request)
        with self.lock:
            self._current, self._since = request, monotonic()
            if not self._is_watched:
                self._wake_watcher()
        try:
            self.serve_request(request)
        finally:
            with self.lock:
                if self._current is request:
                    self._current = None
            self.pool.leave()

    def _wake_watcher(self) -> None:  # the caller holds the lock
        if self._watcher is None:
            with suppress(RuntimeError):  # no thread can be started: the next tries
                self._watcher = start_thread("mcp watcher", self._watch)
        self._is_watched = self._watcher is not None
        self._woken.notify()

    def _watch(self) -> None:
        """Hand over when a handler keeps the reader.

        It keeps looking for a while, because to wake its thread for each short call
        would cost more than the call.
        """
        with self.lock:
            while self._current or not self.closed:
                now, due = monotonic(), self._since + HAND_OVER_SECONDS
                if self._current and now >= due:
                    self.hand_over(self._current)
                pause = due - now if due > now else HAND_OVER_SECONDS
                if not self._current and now >= self._since + WATCH_SECONDS:
                    self._is_watched, pause = False, INFINITE
                self._woken.wait(min(pause, threading.TIMEOUT_MAX))

    def hand_over(self, request: IncomingRequest) -> bool:
        """Let another thread read if the reader runs the handler of this request.

        False if no thread can be started: then nobody reads before the handler ends.
        """
        with self.lock:
            if self._current is not request:
                return True
            self._turn += 1
            # With the lock, so that no second thread is started for the request.
            try:
                self.start_reading()
            except RuntimeError:
                self._turn -= 1
                return False
            self._current = None
            return True

    def close(self) -> None:
        super().close()
        with self.lock:
            self._woken.notify()  # the watcher may end


# -- 32. The server --------------------------------------------------------------------
# Of part II.
#
# A server with its chapters.
# In a copy, a line that ends with "# CHAPTER" is dropped with that chapter,  [cli]
# as is a paragraph that ends with "(chapter: CHAPTER)".  [cli]

__all__ += ["STRICT", "Context", "Server"]

# Options that make a server stricter: Server("name", **STRICT)
STRICT: Json = {
    "mask_errors": True, "strict_input": True, "strict_results": True,
    "trace": False,  # trace
}


class Context(
        MoreContext,  # more
        HandlerContext):
    """What a handler can find out and do about the request that it serves.

    A parameter annotated `Context` receives it:

        @server.tool
        def copy(paths: list[str], ctx: Context) -> str:
            for path in ctx.track(paths):       # reports progress, stops if cancelled
                ctx.info(f"copying {path}")     # a log message for the client
            if ctx.elicit("Delete the originals?", bool).data: ...

    Each call that talks to the client raises Cancelled when the client has cancelled
    the request; while a server drains because its client is gone, one that asks raises
    ConnectionClosed.  Usable from any thread; when the request has been answered,
    progress and messages are dropped.

    Methods that ask the client (elicit, sample, list_roots and others) block
    until it has answered, or raise RequestTimeout after `timeout` seconds in which
    neither an answer nor progress came, and after an hour anyway.  McpError: the
    client did not declare the capability, or its answer does not fit; see
    `client_capabilities`.  `key` names a question within its request, by default its
    method and a number.

    Where handlers run on a host's main loop, a question blocks that loop, as does a
    message that the client does not read.  (chapter: inside)

    The client gets the texts of exceptions, not tracebacks; with `mask_errors`, only
    those of ToolError and McpError, and the problems of arguments.
    """


CONTEXT_TYPES.append(Context)


class ServerSession(
        StatelessSession,  # stateless
        AsyncSession,  # asyncio
        HostedSession,  # inside
        MoreSession,  # more
        BaseServerSession):
    """A server's end of a connection, with all that this copy has."""

    connection_class = TurnConnection  # turns
    contexts: ClassVar = {
        False: Context,
        True: AsyncContext,  # asyncio
    }


class Server(
        StatelessServer,  # stateless
        AsyncServer,  # asyncio
        InsideServer,  # inside
        MoreServer,  # more
        BaseServer):
    """A server: register functions with the decorators, then call `run()`.

        server = Server("weather", version="1.2.0")

        @server.tool
        def forecast(city: str, days: int = 3) -> str:
            "Forecast for a city."
            return f"{city}: sun for {days} days"

        if __name__ == "__main__":
            server.run()

    A tool returns text (str), a content block such as Image, data (a dict, a dataclass,
    a number, ...: JSON text and structured content), None, a ToolResult, or a list of
    blocks.  A return annotation other than str, a block, None, Any or a bare list
    becomes the outputSchema.  A parameter annotated Context gives it progress, messages
    and questions.  Handlers are `def`, and run on several threads.  Every method may be
    called from any thread, even while serving.

    Handlers may be `async def`, too: all of them run on one event loop.  A lifespan may
    be an async context manager.  (chapter: asyncio)

    name, version, title, description, website_url, icons: sent to the client.
    instructions: how a model should use the server.
    lifespan: called with the server, returns a context manager.  That is entered before
    the first connection is served and left after the last:

        @contextlib.contextmanager
        def shelf(server):
            with open_database() as database:
                yield database

        server = Server("shop", lifespan=shelf)

        @server.tool
        def stock(item: str, ctx: Context) -> int:
            return ctx.lifespan_context.count(item)

    mask_errors: send "Internal error" instead of the texts of exceptions.
    strict_input: do not convert arguments, such as "5" for an int.
    strict_results: what has no JSON form, such as NaN, is an error of the tool that
    returns it.  By default it is sent as text, NaN as null, and stderr says so once.
    page_size: entries on a page of any list.
    max_workers: handlers of a connection that run at once; more wait.
    max_message_bytes, max_depth: limits of a line: 16 MiB, nested 200 deep.
    drain_seconds: time for running handlers when the client hangs up.  (A client on the
    Python SDK 1.x that has left during a call fails if a line comes then: set 0 there.)

    capabilities: merged into those that are declared; False takes away one of them, as
    in {"logging": False}, or a part of one, as in {"tools": {"listChanged": False}}.
    (chapter: more)

    threaded: False runs all handlers one after the other, those that are `def` on the
    serving thread, as sqlite3, COM or Qt need it; `run` and `serve` can override this.
    run_handler(job): must call job() on the right thread, now or later; every `def`
    handler then runs there (Blender, Tk).  (chapter: inside)

    cache_ttl: seconds that a client may cache lists and resources.
    cache_scope: "private" or "public".
    state_secret: 32 random bytes that the replicas of a server share with nobody else.
    In the stateless revision a question ends the handler, by an exception that `except
    Exception` does not catch, and the handler runs again from the top when the answers
    have come; `timeout` is without effect.  So put side effects before a question into
    `ctx.once`; code after the last one must tolerate a second run.  Only tools, prompts
    and resources can ask, and only on the handler's own thread; give a `key` if the
    order of your questions may change.  Answers so far and results of `once` travel
    through the client for up to 15 minutes.  They are signed, so that it cannot change
    them, but it can read them: keep no secret there.  (chapter: stateless)

    trace: False: MCP_MIN_TRACE shows nothing of this server.  (chapter: trace)

    It serves the revisions 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25.
    It also serves 2026-07-28, which has no handshake: it is stateless.  [stateless]
    Batches are in the first two, structured output, resource links and forms since
    2025-06-18, URLs in questions since 2025-11-25.  What a client can make a server
    keep is limited: `help(mcp_min)` has the figures.
    """

    _session_class = ServerSession

    def __init__(self, name: str = "mcp", version: str | None = None, *,
                 title: str | None = None, description: str | None = None,
                 website_url: str | None = None, icons: list[Json] | None = None,
                 instructions: str | None = None,
                 threaded: bool = True,  # inside
                 capabilities: Json | None = None,  # more
                 page_size: int = 1000, max_workers: int = 64,
                 cache_ttl: float = 0.0,  # stateless
                 cache_scope: str = "private",  # stateless
                 state_secret: bytes | None = None,  # stateless
                 max_message_bytes: int = 16 << 20, max_depth: int = MAX_DEPTH,
                 drain_seconds: float = 1.5, mask_errors: bool = False,
                 strict_input: bool = False, strict_results: bool = False,
                 run_handler: Callable[[Job], object] | None = None,  # inside
                 trace: bool | None = None,  # trace
                 lifespan: Handler | None = None, **unknown: NoReturn) -> None:
        known = ["name", "version", *options_of(Server.__init__)]
        refuse_unknown("Server", unknown, known)
        self._tapped = trace is not False  # trace
        super().__init__(SimpleNamespace(
            name=name, version=version, title=title, description=description,
            website_url=website_url, icons=icons, instructions=instructions,
            page_size=page_size, max_workers=max_workers, drain_seconds=drain_seconds,
            max_message_bytes=max_message_bytes, max_depth=max_depth,
            mask_errors=mask_errors, strict_input=strict_input,
            threaded=threaded, run_handler=run_handler,  # inside
            capabilities=capabilities,  # more
            cache_ttl=cache_ttl, cache_scope=cache_scope,  # stateless
            state_secret=state_secret,  # stateless
            strict_results=strict_results, lifespan=lifespan))

    def run(self,
            *, threaded: bool | None = None,  # inside
            **unknown: NoReturn) -> None:
        """Serve over stdin and stdout; blocks until the client hangs up.

        While it serves, what the process prints goes to stderr.  Ctrl-C raises
        SystemExit(130), SIGTERM SystemExit(143) (basic/transports).

        threaded: overrides the server's option.  (chapter: inside)

        On a thread where an event loop runs it raises RuntimeError: see `run_async`.
        (chapter: asyncio)

        Raises:
            RuntimeError: a server in this process already has stdin and stdout, or no
                thread can be started.
        """
        refuse_unknown("run", unknown)
        refuse_event_loop()  # asyncio
        with self._stdio_session(
            threaded=threaded,  # inside
        ) as session:
            session.run()

    def serve(self, reader: ByteStream, writer: ByteStream,
              *, threaded: bool | None = None,  # inside
              **unknown: NoReturn) -> None:
        """Serve over any pair of binary streams: of a socket, a pipe, a file.

        Blocks until the client hangs up, or until all requests in a file are answered.
        Several connections can be served at once, each from its own thread.  For HTTP
        put a proxy, such as mcp-proxy, in front of a server that runs over stdio.

        threaded: overrides the server's option; if False, all `def` handlers run on the
        calling thread, while others read, answer pings and so on.  (chapter: inside)

        Raises:
            RuntimeError: no thread can be started.
        """
        refuse_unknown("serve", unknown)
        session = self._session(
            reader, writer,
            threaded=threaded,  # inside
        )
        session.run()


# -- 33. The client --------------------------------------------------------------------
# Of part III.
#
# A client with its chapters.

__all__ += ["Client"]


class ClientSession(
        StatelessClientSession,  # stateless
        InsideClientSession,  # inside
        BaseClientSession):
    """A client's end of a connection, with all that this copy has."""


class Client(
        StatelessClient,  # stateless
        SchemasClient,  # schemas
        InsideClient,  # inside
        BaseClient):
    """A client of a server process, of two streams, or of a Server in this process.

        with Client(["python3", "server.py"]) as client:
            for tool in client.list_tools():
                print(tool["name"], tool.get("description"))
            print(client.call_tool("forecast", {"city": "Oslo"}).text)

    Every method may be called from any thread.  Those that send a request block until
    its response comes, and raise McpError (the server's error), RequestTimeout or
    ConnectionClosed; `timeout`: seconds without a response or progress, None for the
    client's.  (It does not count while a handler answers a question that came after the
    call was sent, nor while another thread connects.)  The arguments:

    target: a command (list), the path of a `server.py`, a pair of binary streams, or a
    Server object, as tests use it.
    env: variables added to a few safe ones (PATH, HOME …); with inherit_env, to all.
    timeout: seconds without a response or progress; of connecting: in all.
    max_timeout: seconds of a call, whatever progress comes; without `timeout` of
    connecting, too.
    mode: "auto", "legacy" or the date of a revision.
    client_info: name and version, as sent to the server.
    sampling_handler(messages, params) -> str, result, or None to reject.
    elicitation_handler(message, schema, params) -> content that matches the schema,
    None to decline, or Elicited.
    url_handler(message, url, params) -> True if the user agreed to open it.
    roots: a list, see `set_roots`.
    capabilities: declared besides those of the handlers that are given.
    log_handler(params), message_handler(notification): called in order on a thread of
    their own, where they may use the client.
    progress_handler(progress, total, message): see `request`.
    log_level: the lowest level that log_handler gets.
    stderr: a text stream or a function for the server's stderr, or None to drop it.
    auto_restart: when the server has died, the next call starts it again and renews the
    subscriptions; its own timeout begins after that.  Running calls fail with
    ConnectionClosed.

    mode may be "modern", too: the stateless revision, without a handshake.  "auto"
    finds out what the server has.  (chapter: stateless)

    target may be an entry of a host's mcp.json, too; see load_config.
    (chapter: config)

    With a Server(threaded=False) in this process `submit` and `submit_tool` run the
    handler before they return.  (chapter: inside)

    What elicitation_handler returns must match the form.  Results of the tools that
    were listed last are validated: a RuntimeWarning says which do not match their
    output schema.  Regular expressions in a server's schemas are not run.
    (chapter: schemas)

    trace: False: MCP_MIN_TRACE shows nothing of this client.  (chapter: trace)

    What a server can make a client hold is limited: a line 16 MiB, questions asked at
    once 8 (more wait), a list 100,000 entries, callbacks that wait 16 MiB, and for each
    call as much progress (further notifications are dropped).
    Rounds of "input required" are 16.  [stateless]

    In an asyncio program use AsyncClient.  (chapter: asyncio)

    A server is a program: start only what you would run by hand; no shell is involved.
    `close()` closes its stdin; a server that keeps running gets SIGTERM 2 seconds later
    and SIGKILL after 2 more, as does its process group (not a child that has called
    setsid).  On Windows, after the 2 seconds, it and all its children are ended.
    """

    _session_class: Any = ClientSession

    def __init__(self, target: Any, *, env: dict[str, str] | None = None,
                 inherit_env: bool = False, cwd: str | None = None,
                 timeout: float | None = 60.0, max_timeout: float | None = 3600.0,
                 mode: str = "auto", client_info: Json | None = None,
                 roots: list[Any] | None = None,
                 sampling_handler: Callable[[list[Json], Json], object] | None = None,
                 elicitation_handler: Handler | None = None,
                 url_handler: Callable[[str, str, Json], object] | None = None,
                 capabilities: Json | None = None,
                 log_handler: Callable[[Json], object] | None = None,
                 message_handler: Callable[[Json], object] | None = None,
                 progress_handler: Handler | None = None, log_level: str | None = None,
                 stderr: Any = AT_START, max_message_bytes: int = 16 << 20,
                 trace: bool | None = None,  # trace
                 auto_restart: bool = False, **unknown: NoReturn) -> None:
        refuse_unknown("Client", unknown, options_of(Client.__init__))
        self._tapped = trace is not False  # trace
        super().__init__(
            target, env=env, inherit_env=inherit_env, cwd=cwd, timeout=timeout,
            max_timeout=max_timeout, mode=mode, client_info=client_info, roots=roots,
            sampling_handler=sampling_handler, elicitation_handler=elicitation_handler,
            url_handler=url_handler, capabilities=capabilities, log_handler=log_handler,
            message_handler=message_handler, progress_handler=progress_handler,
            log_level=log_level, stderr=stderr, max_message_bytes=max_message_bytes,
            auto_restart=auto_restart)

    if not TYPE_CHECKING:  # asyncio
        async def __aenter__(self):  # asyncio
            raise TypeError("a Client blocks: `async with AsyncClient(…)`")  # asyncio

        async def __aexit__(self, *exc):  # asyncio
            """Needed so that `async with` reaches __aenter__."""  # asyncio


# -- 34. Coroutines of a client --------------------------------------------------------
# Chapter: asyncio, of a client.
# Doors: the class of a session; began, answer.
#
# The methods of Client as coroutines; each runs on a thread, because it blocks.

from weakref import WeakKeyDictionary

__all__ += ["AsyncClient"]

class Calling(threading.local):
    """On whose behalf this thread works.

    When that is cancelled, so is the call that this thread waits for.

    future: of the task whose method it runs, or None.  asker: the request or the call
    whose question it answers, or None.
    """

    future: Any = None
    asker: object = None


calling = Calling()


class CoroutineSession(ClientSession):
    """Cancels a call when its task is cancelled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Of a call, the future of the task that waits for it.
        self._futures: WeakKeyDictionary[object, Any] = WeakKeyDictionary()

    def began(self, request: OutgoingRequest) -> None:
        future = calling.future
        if future:
            self._futures[request] = future
            future.add_done_callback(partial(cancel_with, request))
        super().began(request)

    def answer(self, method: str, params: Json, asker: object = None) -> Json:
        calling.asker = asker
        if asker in self._futures:
            calling.future = self._futures[asker]
        try:
            return super().answer(method, params, asker)
        finally:
            calling.asker = calling.future = None


def cancel_with(request: OutgoingRequest, future: Any) -> None:
    """Cancel a request if the task that waits for it was cancelled.

    The task may have ended before this was registered.
    """
    if future.cancelled():
        request.cancel()


def verb(method: Callable[Concatenate[Client, P], T],
         ) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A coroutine with the arguments of a method of Client, which runs on a thread."""
    async def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio

        if self._loop not in (None, asyncio.get_running_loop()):
            raise RuntimeError("an AsyncClient belongs to the event loop that "
                               "connected it: in another one call connect() first")
        options = self._wrapped(kwargs)
        return await self._run(partial(method, self._client, *args, **options))

    run.__name__ = method.__name__
    run.__doc__ = f"See Client.{run.__name__}."
    return run


def without_context(name: str, handler: Handler, call: Handler) -> Handler:
    """A handler that also may have FastMCP's parameters, with a context as the last.

    call: how to call it.  There is no context, and the type of a form is dict.
    """
    from inspect import signature

    count = 0
    with suppress(TypeError, ValueError):  # some built-ins have no signature
        for parameter in signature(handler).parameters.values():
            count += parameter.default is parameter.empty
    if name == "elicitation_handler" and count == 4:
        return lambda message, _, params: call(message, dict, received(params), None)
    if name == "sampling_handler" and count == 3:
        return lambda messages, params: call(received(messages), received(params), None)
    return call


def of_client(name: str) -> Any:
    """A property that shows an attribute of the Client inside an AsyncClient."""
    return property(operator.attrgetter(f"_client.{name}"))


class AsyncClient:
    """Client for asyncio programs, and for tests that were written for FastMCP.

        async with AsyncClient(["python3", "server.py"]) as client:
            result = await client.call_tool("forecast", {"city": "Oslo"})

    It takes what Client takes, and has its verbs as coroutines, with the same
    arguments, results and errors; each runs on a thread of a pool, and is cancelled
    with its task.  Several may run at once (asyncio.gather, create_task).  It belongs
    to the event loop that connects it.  The handlers that it is given may be `async
    def`: they run on that loop, each as a task that is cancelled when the server takes
    its question back, when the call it belongs to ends, or by `close`.

    The handlers of a Server in this process with threaded=False run one after the other
    on the pool, not always on the same thread: where that matters, test with Client.

    Raises RuntimeError on another event loop than the one that connected it, and
    TypeError for an `async def` handler if the target is a Server in this process with
    threaded=False, whose handlers would wait for themselves.
    """

    def __init__(self, target: Any = None, *, transport: Any = None,
                 **options: Any) -> None:
        """transport: FastMCP's other name of the target."""
        if target is None:
            target = transport
        self._loop: AbstractEventLoop | None = None  # from connect() to close()
        # Of its handlers; True: it was cancelled.  Only the loop's thread changes it.
        self._tasks: dict[Task[Any], bool] = {}
        self._unthreaded = getattr(target, "threaded", True) is False
        self._client = Client(target, **self._wrapped(options))
        self._client._session_class = CoroutineSession
        self._threads = ThreadPool("mcp async", MAX_CALLS)
        self._entered = 0  # times; the last exit closes

    def __class_getitem__(cls, item: object) -> type[AsyncClient]:
        return cls  # AsyncClient[…], as programs for FastMCP write it

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - no Self before 3.11
        self._entered += 1  # before connecting: another task's exit must not close
        try:
            return await self.connect()
        except BaseException:
            self._entered -= 1
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._entered -= 1
        if not self._entered:
            await self.close()

    def _wrapped(self, options: Json) -> Json:
        """The options, with handlers that are `async def` as functions that wait."""
        wrapped = dict(options)
        for name, handler in options.items():
            if not name.endswith("_handler") or not handler:
                continue
            if is_async(handler):
                if self._unthreaded:
                    raise TypeError(
                        f"{name} must be `def`: the server's handlers run on the "
                        "thread that waits for them (threaded=False)")
                wrapped[name] = partial(self._call_handler, handler)
            wrapped[name] = without_context(name, handler, wrapped[name])
        return wrapped

    async def connect(self) -> AsyncClient:
        """See Client.connect.  If the task is cancelled, the server is ended."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        given_up = threading.Event()

        def connect() -> None:
            self._client.connect()
            if given_up.is_set():  # `close` may have come before it began
                self._client.close()

        try:
            await self._run(connect)
        except asyncio.CancelledError:
            if self._entered < 2:  # nobody else is in it
                given_up.set()
                start_thread("mcp closing", self._client.close)
            raise
        return self

    async def close(self) -> None:
        """See Client.close."""
        import asyncio

        await asyncio.shield(self._close(asyncio.current_task()))

    async def _close(self, caller: Task[Any] | None) -> None:
        import asyncio

        await self._run(self._client.close)
        self._loop = None
        here = asyncio.get_running_loop()  # the caller may be a handler
        tasks = {task for task in self._tasks.keys() - {caller}
                 if task.get_loop() is here}
        if tasks:
            for task in tasks:
                self._cancel(task)
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    request, notify = verb(Client.request), verb(Client.notify)
    ping, answer = verb(Client.ping), verb(Client.answer)
    call_tool = verb(Client.call_tool)
    list_tools, list_prompts = verb(Client.list_tools), verb(Client.list_prompts)
    list_resources = verb(Client.list_resources)
    list_resource_templates = verb(Client.list_resource_templates)
    read_resource = verb(Client.read_resource)
    subscribe, unsubscribe = verb(Client.subscribe), verb(Client.unsubscribe)
    get_prompt, complete = verb(Client.get_prompt), verb(Client.complete)
    set_logging_level = verb(Client.set_logging_level)
    set_roots = verb(Client.set_roots)

    def is_connected(self) -> bool:
        return self._client.is_connected()

    server_info = of_client("server_info")
    server_capabilities = of_client("server_capabilities")
    instructions = of_client("instructions")
    protocol_version = of_client("protocol_version")
    stderr_tail = of_client("stderr_tail")
    exit_code = of_client("exit_code")

    async def _run(self, method: Callable[[], T]) -> T:
        """Call a method of the client on a thread; it is cancelled with this task."""
        import asyncio
        from concurrent.futures import Future

        future: Future[T] = Future()

        def job() -> None:
            if future.cancelled():  # before a thread was free
                return
            calling.future = future
            outcome = Outcome.of(method)
            calling.future = None
            settle(future, outcome)

        self._threads.submit(job)
        return await asyncio.wrap_future(future)  # to cancel this cancels the future

    def _call_handler(self, handler: Handler, *args: object) -> Any:
        """Run an `async def` handler on the event loop, and wait for it.

        If it is cancelled, it has no answer: None.
        """
        from asyncio import CancelledError

        loop, make = self._loop, partial(handler, *args)
        if loop is None:  # after `close`
            return None
        began = partial(self._began, calling.future, calling.asker)
        try:
            return wait_for_loop(loop, run_on_loop(loop, make, began))
        except CancelledError:
            return None
        except RuntimeError:
            if loop.is_closed():
                return None
            raise

    def _began(self, future: Any, asker: object, task: Task[Any]) -> None:
        loop, cancel = task.get_loop(), partial(self._cancel, task)
        cancel_soon = from_any_thread(loop, cancel)
        self._tasks[task] = False
        task.add_done_callback(self._tasks.pop)
        if isinstance(asker, IncomingRequest):
            asker.on_cancel(cancel_soon)
        if future:
            future.add_done_callback(lambda _: cancel_soon())
        if self._loop is not loop:
            cancel()

    def _cancel(self, task: Task[Any]) -> None:
        """Cancel a handler's task, once: it may be awaiting something in `finally`."""
        if self._tasks.get(task) is False:
            self._tasks[task] = True
            with suppress(RuntimeError):  # its loop is closed
                task.cancel()


# -- 35. Familiar names ----------------------------------------------------------------
# Chapter: names, of both.
# Adds: FastMCP
# Adds packages: pydantic, annotated_types, mcp, mcp_types, fastmcp
# Doors: the classes of a server and of its session; rows of tables (HINT_READERS …).
#
# The names of FastMCP and of the official SDK (1.x).  Most stdio servers written for
# either run when they import this file instead.  Where the two differ, we follow the
# SDK.  It needs all that is above.


def read_pydantic(reader: HintReader, hint: Any) -> Schema | None:
    """The schema of what only pydantic knows: a model, or its Field in Annotated."""
    if "pydantic" not in sys.modules:  # it is never imported here
        return None
    metadata = getattr(hint, "__metadata__", ())
    if not any(map(is_of_pydantic, (hint, *metadata))):
        return None
    schema = described(reader, hint)
    return reader.with_metadata(schema, metadata) if metadata else schema


def described(reader: HintReader, hint: Any) -> Schema:
    """The schema that pydantic has for a hint."""
    mode = "serialization" if reader.output else "validation"
    try:
        adapter = sys.modules["pydantic"].TypeAdapter(hint)
        schema = adapter.json_schema(mode=mode)
    except Exception as error:
        raise TypeError(f"{hint!r} has no JSON Schema: {error}") from None
    definitions = schema.pop("$defs", {})
    try:
        schema = inline_definitions(schema, definitions)
    except RecursionError:  # then they stay, at the root
        for name in definitions.keys() & reader.definitions.keys():
            if definitions[name] != reader.definitions[name]:
                raise TypeError(f"two recursive models are named {name}") from None
        reader.definitions.update(definitions)
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = definitions.get(name, schema)
    properties = schema.get("properties", {})
    for name, field in properties.items():
        may_be_null = {"type": "null"} in field.get("anyOf", ())
        if isinstance(reader, FormReader) and may_be_null:
            properties[name] = with_default(Schema(field), None)  # it may be missing
    result = Schema(schema, partial(model_of, adapter.validate_python))
    result.make_validates = True
    return result


def is_of_pydantic(thing: object) -> bool:
    """Whether only pydantic knows what a class, or a part of Annotated, asks for."""
    if hasattr(thing, "__get_pydantic_core_schema__"):
        return True
    package = type(thing).__module__.partition(".")[0]
    return package in ("pydantic", "annotated_types")


def model_of(validate: Callable[[object], T], value: object) -> T:
    """The value that `validate` makes; ValueError with a line for all problems."""
    try:
        return validate(value)
    except ValueError as error:
        problems = [str(Problem(one["loc"], one["msg"]))
                    for one in getattr(error, "errors", list)()]
        raise ValueError("; ".join(problems) or str(error)) from None


def inline_definitions(schema: Any, definitions: Json) -> Any:
    """Replace references by their definitions, and remove titles.

    Raises RecursionError if a definition is a part of itself.
    """
    if isinstance(schema, list):
        return [inline_definitions(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        is_property = not isinstance(value, str)  # of this name
        if is_property or key not in ("$ref", "title"):
            result[key] = inline_definitions(value, definitions)
    name = str(schema.get("$ref")).rpartition("/")[2]
    if name in definitions:
        result = {**inline_definitions(definitions[name], definitions), **result}
    return result


@lru_cache(maxsize=1000)
def is_foreign(cls: Any) -> bool:
    """True if a class, or a base of it, is of another MCP library.

    Programs may use such a library beside this one, which never imports it.
    """
    return not packages_of(cls).isdisjoint(["mcp", "mcp_types", "fastmcp"])


def refuse_foreign_context(reader: HintReader, hint: Any) -> None:
    cls = typing.get_origin(hint) or hint
    if getattr(cls, "__name__", "") == "Context" and is_foreign(cls):
        raise TypeError("this is the Context of another library: import Context from "
                        "mcp_min")


HINT_READERS += [refuse_foreign_context, read_pydantic]


def from_foreign(value: Any) -> Any:
    """What a function returned, with the content of other MCP libraries as ours.

    Raises:
        TypeError: it is of another one, and cannot be content.
    """
    cls: Any = type(value)
    if cls in (list, tuple) and any(map(is_foreign, map(type, value))):
        return [*map(from_foreign, value)]
    if not is_foreign(cls):
        return value
    for name in ("to_image_content", "to_audio_content", "to_resource_content",
                 "to_mcp_result"):
        convert = getattr(value, name, None)
        if convert:
            return from_foreign(convert())
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{cls.__name__} is of another library: import it from mcp_min")
    data = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if "role" in data:  # a message
        return data
    return Block.of(data) if "type" in data else ToolResult.of(data)


RESULT_READERS.append(from_foreign)


class AnyFields(Fields):
    """A JSON object of any fields, given by keyword in either spelling."""

    def __init__(self, *_: object, **fields: object) -> None:
        self.update(wire_fields(**fields))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return received(self.get(name, self.get(camel_case(name))))


class Inert:
    """Takes the place of an HTTP application or service, and ignores every call.

    Serving it raises NotImplementedError.
    """

    def __init__(self, *_: object, **fields: object) -> None:
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **_: object) -> Any:
        if len(args) == 3:  # scope, receive, send
            raise NotImplementedError(f"this application: {NEEDS_HTTP}")
        return self


NEEDS_HTTP = ("it needs HTTP, and mcp_min serves stdio only: put a proxy such as "
              "mcp-proxy in front of it")
REGISTER = ("there is one server here: register functions with it, or call its "
            "add_tool, remove_tool, list_tools and so on")
USE_CLIENT = ("use Client(server) or Client([command, *args]): `with Client(…) as "
              "client: client.call_tool(…)`")
USE_MIDDLEWARE = "write a function and register it with @server.middleware"
USE_CONTEXT = "annotate a parameter of the handler: ctx: Context"
# What programs import, or ask a server for, that is not here: what to do instead, or
# the class that stands in for it; how the names end, of which each may have any; and
# how they begin.
NOT_HERE: Json = {start + end: instead for instead, ends, names in (
    (USE_MIDDLEWARE, "", "middleware add_middleware CallNext"),
    (USE_CONTEXT, "", "Depends CurrentAccessToken CurrentContext CurrentFastMCP "
                      "CurrentHeaders CurrentRequest"),
    (USE_CLIENT, "", """
        call_tool read_resource create_connected_server_and_client_session
        stdio_client ClientSessionGroup StdioTransport PythonStdioTransport
        NodeStdioTransport NpxStdioTransport UvStdioTransport FastMCPTransport"""),
    (REGISTER, "", """
        providers transforms mount import_server add_provider add_transform as_proxy
        from_client from_openapi from_fastapi create_proxy disable enable
        _lowlevel_server
        Provider LocalProvider FileSystemProvider DirectoryResource HttpResource
        Transform ToolTransform ArgTransform BM25SearchTransform RegexSearchTransform
        Namespace PromptsAsTools ResourcesAsTools CodeMode ToolManager ResourceManager
        PromptManager"""),
    (NEEDS_HTTP, "", """
        ClientTransport SSETransport StreamableHttpTransport StreamableHTTPTransport
        SseServerTransport StreamableHTTPServerTransport StreamableHTTPSessionManager
        StarletteWithLifespan OAuth ProxyClient StatefulProxyClient sse_client
        streamablehttp_client streamable_http_client create_mcp_http_client
        websocket_client create_sse_app create_streamable_http_app create_base_app
        get_http_request session_manager run_http_async run_sse_async
        run_streamable_http_async"""),
    (AnyFields, "Request RequestParams Result", """
        CallTool Client Complete CreateMessage Elicit Empty GetPrompt Initialize
        InputRequired ListPrompts ListResources ListResourceTemplates ListRoots
        ListTools JSONRPC Paginated Ping Prompt ReadResource Resource Server SetLevel
        Subscribe Unsubscribe"""),
    (AnyFields, "Notification NotificationParams", """
        Cancelled Client JSONRPC LoggingMessage Progress ResourceUpdated Server"""),
    (AnyFields, "Capability Capabilities", """
        Client Completions Elicitation FormElicitation Logging Prompts Resources Roots
        Sampling SamplingTools Server Tools UrlElicitation"""),
    (AnyFields, "", """
        AccessToken AppConfig AuthSettings AuthorizationCode AuthorizationParams
        BaseMetadata CacheHint ClientRegistrationOptions Completion CompletionArgument
        CompletionContext ElicitRequestFormParams ElicitRequestURLParams Implementation
        InitializationOptions JSONRPCError JSONRPCMessage JSONRPCResponse LogMessage
        MCPConfig MCPServerConfig MessageHandler ModelHint ModelPreferences Notification
        NotificationOptions NotificationParams OAuthClientMetadata OAuthMetadata
        OAuthToken ProgressHandler PromptArgument ProtectedResourceMetadata RefreshToken
        RemoteMCPServer Request RequestContext RequestParams ResourceCSP ResourceContent
        Result RevocationOptions Root SamplingParams SessionMessage
        StdioMCPServer StdioServerParameters TaskConfig ToolTransformConfig
        TransportSecuritySettings get_http_headers"""),
    (Inert, "Provider Middleware", """
        AWSCognito Auth Auth0 AuthContext AuthKit Azure BearerAuth Clerk Descope
        DetailedTiming Discord ErrorHandling GitHub Google InMemoryOAuth KeycloakAuth
        Logging OAuth OAuthAuthorizationServer OAuthClient OCI OpenTelemetry Ping
        PropelAuth RateLimiting RemoteAuth RequestContext RequireAuth ResponseCaching
        ResponseLimiting Retry Scalekit SlidingWindowRateLimiting StructuredLogging
        Supabase Timing ToolInjection TransportSecurity WorkOS"""),
    (Inert, "Verifier", """
        AzureJWT GitHubToken GoogleToken IntrospectionToken JWT ProviderToken
        StaticToken Token"""),
    (Inert, "", """
        AuthCheck BearerAuth BearerAuthBackend EventStore InMemoryEventStore Middleware
        MiddlewareContext MultiAuth OAuthClientInformationFull OAuthProxy OIDCProxy
        TokenStorage configure_logging"""),
) for start in names.split() for end in ends.split() or [""]}


def stand_in(name: str) -> Any:
    """A class for a name that is not here; AttributeError: it is not known at all.

    So a program that imports the name for another transport still serves stdio; a class
    that would have to do something raises NotImplementedError when called.
    """
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"mcp_min has no {name}: {instead}")

    instead = NOT_HERE.get(name)
    if instead is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if isinstance(instead, str):
        return type(name, (Inert,), {"__init__": refuse})
    return type(name, (instead,), {})


class LowLevelServer:
    """What a FastMCP stands on, in the SDK: programs set its version, or pass it on."""

    __slots__ = ("_info",)
    version = property(lambda self: self._info["version"],
                       lambda self, value: self._info.update(version=value))

    def __init__(self, info: Json) -> None:
        self._info = info

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `inspect` and mocks ask for such
            raise AttributeError(name)
        raise NotImplementedError(f"mcp_min has no FastMCP._mcp_server: {REGISTER}")


def no_effect(where: str, options: Iterable[str]) -> None:
    """Warn in one line, once, of options that mean nothing here."""
    if options:
        warn_once(f"mcp_min: {where}: no effect here: {', '.join(options)}\n")


def taken(options: Json, names: Iterable[str]) -> Json:
    """Remove the options that have these names; return them."""
    return {name: options.pop(name) for name in names if name in options}


# Tools, prompts and resources


class FamiliarReader(HintReader):
    """Reads hints as pydantic does: `bytes` are the UTF-8 of a text."""

    def read(self, hint: Any) -> Schema:
        if hint in (bytes, bytearray, memoryview):
            return Schema({"type": "string", "format": "binary"}, str.encode)
        if isinstance(hint, type) and issubclass(hint, Fields):
            return Schema({"type": "object"}, hint.of)
        return super().read(hint)

    def object(self, parts: Iterable[Part], make: Any = None) -> Schema:
        return super().object(map(with_text_default, parts), make)


def with_text_default(part: Part) -> Part:
    name, hint, default = part
    if isinstance(default, bytes):
        try:
            return name, hint, default.decode()
        except UnicodeDecodeError:
            return name, hint, UNSTATED
    return part


class FamiliarSignature(DocumentedSignature):
    reader = FamiliarReader


class FamiliarEntry(Registration):
    """A registration with FastMCP's options; it can be made of a function."""

    signature_class = FamiliarSignature

    @classmethod
    def from_function(cls, fn: Any, *uri: Any, tags: Iterable[str] | None = None,
                      **options: Any) -> Any:
        make: Any = cls
        own = taken(options, cls.option_names.split())
        if tags:  # FastMCP's clients read them there
            meta = own.get("meta") or {}
            own["meta"] = {**meta, "fastmcp": {"tags": sorted(tags)}}
        no_effect(cls.__name__, options)
        return make(*map(str, uri), fn, own)

    fn = property(lambda self: self.signature.fn)

    def listed(self) -> Json:
        return {**self.descriptor, "parameters": self.signature.schema}

    def __getattr__(self, name: str) -> Any:  # called only for missing attributes
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(Entry.of(self.listed()), name)


class Tool(FamiliarEntry, ToolEntry):
    """A tool: text is structured, too, and a list has a block for each item."""

    option_names = f"{ToolEntry.option_names} structured_output exclude_args"
    bare_types = "array"

    def __init__(self, fn: Any, options: Json) -> None:
        self._plain = options.pop("structured_output", None) is False
        excluded = options.pop("exclude_args", None) or ()
        if self._plain:
            options["output_schema"] = False
        super().__init__(fn, options)
        self.failed = f"Error calling tool {self.key!r}: "
        for name in excluded:
            self.signature.hint_schema["properties"].pop(name, None)

    async def run(self, arguments: Json, context: Any = None, **_: object) -> Any:
        """What its function returns; context: the one that it gets, if it takes one."""
        value = self.signature.fn(**self.signature.bind(arguments, context=context))
        return await value if hasattr(value, "__await__") else value

    def result(self, value: Any, session: BaseServerSession) -> Json:
        result = super().result(value, session)
        if value is None or type(value) in (list, tuple):
            result["content"] = [*self._blocks_of(value, session)]
        if self._plain:
            result.pop("structuredContent", None)
        return result

    def _blocks_of(self, value: Any, session: BaseServerSession) -> Iterator[Block]:
        """A block for each item, also of the lists in a list."""
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from self._blocks_of(item, session)
        elif isinstance(value, Block):
            yield value
        elif value is not None:
            yield Text(session.text_for(value, self.key))


class Prompt(FamiliarEntry, PromptEntry):
    """A prompt."""


class Resource(FamiliarEntry, ResourceEntry):
    """A resource or a template."""


def resource_of(field: str, read: Callable[[Any], Any]) -> Handler:
    """A class of resources whose content comes from a field; made by keyword."""
    def make(*, uri: Any, name: str | None = None, **options: Any) -> Any:
        value = options.pop(field)
        entry = Resource.from_function(
            lambda: read(value), uri, name=name or str(uri), **options)
        setattr(entry, field, value)
        return entry

    return make


def file_content(path: Any) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


TextResource, BinaryResource = resource_of("text", str), resource_of("data", bytes)
FileResource = resource_of("path", file_content)


# The context of a handler

from contextlib import asynccontextmanager
from contextvars import ContextVar

current_context: ContextVar[Any] = ContextVar("mcp_min")


def call_with_context(ctx: Any, call: Callable[[], Any]) -> Any:
    """Call a handler; `ctx` is the current context meanwhile."""
    token = current_context.set(ctx)
    try:
        value = call()
    finally:
        current_context.reset(token)
    return await_with_context(ctx, value) if hasattr(value, "__await__") else value


async def await_with_context(ctx: Any, value: Awaitable[Any]) -> Any:
    current_context.set(ctx)  # of the task that is made of this
    return await value


def get_context() -> Any:
    """The context of the handler that is running; RuntimeError outside of one."""
    ctx = current_context.get(None)
    if ctx is None:
        raise RuntimeError("there is no context outside of a handler")
    return ctx


class Listing(list, Sent):  # type: ignore[type-arg]
    """A list of objects; awaiting it returns the list."""

    _crowded = None
    result = roots = property(lambda self: self)

    def __init__(self, entries: Iterable[Json]) -> None:
        super().__init__(map(AnyFields.of, entries))


class Familiar(BaseContext[Any]):
    """The extra attributes of FastMCP's and the SDK's contexts; a mixin.

    Their `session` and `request_context` are the context itself.
    """

    request: Any = None  # that of HTTP
    client_id = property(lambda self: self.meta.get("client_id"))
    session_id = property(lambda self: f"{id(self._peer.connection):x}")
    fastmcp = mcp_server = property(lambda self: self.server)
    session = request_context = property(lambda self: self)
    client_params = property(lambda self: AnyFields(
        clientInfo=AnyFields.of(self.client_info),
        capabilities=AnyFields.of(self.client_capabilities),
        protocolVersion=self.protocol_version))

    @property
    def meta(self) -> Any:
        return AnyFields.of(super().meta)

    def log(self, *args: Any, level: str | None = None, message: object = None,
            data: object = None, logger_name: str | None = None,
            logger: str | None = None, **_: object) -> Any:
        """log(level, message) of the SDK, or log(message, level) of fastmcp.

        Both may be followed by the name of the logger.
        """
        given = [part for part in (*args, message, data) if part is not None]
        if level is None and len(given) > 1:
            level = given[1] if given[1] in LEVELS else given[0]
            given.remove(level)
        text, name = [*given, logger_name or logger][:2]
        return super().log(level or "info", text, name)

    debug, info = partialmethod(log, level="debug"), partialmethod(log, level="info")
    warning = partialmethod(log, level="warning")
    error = partialmethod(log, level="error")
    send_log_message = log

    def elicit(self, message: str, schema: Any = None, key: str | None = None,
               timeout: float | None = 600, *, response_type: Any = None,
               requestedSchema: Any = None, **_: object) -> Any:
        base: Any = super()
        schema = schema or response_type or requestedSchema
        return base.elicit(message, schema, key, timeout)

    def create_message(self: Any, messages: Any, *, max_tokens: int = 512,
                       related_request_id: Any = None, **params: Any) -> Any:
        return self.sample([*messages], max_tokens=max_tokens, **params)

    def check_client_capability(self, capability: Json) -> bool:
        return capability.keys() <= self.client_capabilities.keys()

    def list_roots(self, timeout: float | None = 600) -> Any:
        question = Question("roots/list", {}, lambda answer: Listing(answer["roots"]))
        return self._ask_one(question, None, timeout)

    def send_progress_notification(self, progress_token: object, *args: Any,
                                   related_request_id: object = None,
                                   **options: Any) -> Any:
        return self.report_progress(*args, **options)

    def send_elicit_complete(self, elicitation_id: str,
                             related_request_id: object = None) -> Any:
        return self.notify("notifications/elicitation/complete",
                           {"elicitationId": elicitation_id})

    def send_resource_updated(self: Any, uri: Any) -> Any:
        self.server.notify_resource_updated(str(uri))
        return DONE

    def _changed(self, capability: str) -> Any:
        self._session.registry.list_changed(capability)
        return DONE

    send_tool_list_changed = partialmethod(_changed, "tools")
    send_prompt_list_changed = partialmethod(_changed, "prompts")
    send_resource_list_changed = partialmethod(_changed, "resources")

    def _states(self) -> Any:
        return vars(self._peer.connection).setdefault("states", {})

    def set_state(self, key: str, value: Any) -> Any:
        """Keep a value for this connection; it may be awaited."""
        self._states()[key] = value
        return DONE

    async def get_state(self, key: str) -> Any:
        """The value that was kept for this connection, or None."""
        return self._states().get(key)


class SyncFamiliarContext(Familiar, Context):
    """The Context of a `def` handler of FastMCP."""


if TYPE_CHECKING:  # Context[…, …] is a type
    Types = ParamSpec("Types", default=...)

    class FamiliarContext(Familiar, AsyncContext, Generic[Types]): ...
else:
    class FamiliarContext(Familiar, AsyncContext):
        """The Context of an `async def` handler of FastMCP.

        For type checkers: from mcp_min import FamiliarContext as Context.
        """


CONTEXT_TYPES.append(FamiliarContext)


class FamiliarSession(ServerSession):
    """A session of FastMCP: a handler's context is the current one while it runs."""

    contexts: ClassVar = {False: SyncFamiliarContext, True: FamiliarContext}

    def run_function(self, request: ServedRequest, call: Handler,
                    on_loop: bool = False) -> Any:
        call = partial(call_with_context, request.context(on_loop), call)
        return super().run_function(request, call, on_loop)


RENAMED = {"mask_error_details": "mask_errors", "list_page_size": "page_size",
           "strict_input_validation": "strict_input"}  # options of FastMCP: of Server
SETTINGS: Json = {
    "log_level": "INFO", "debug": False, "port": 8000, "host": "127.0.0.1"}


class FastMCP(Server):
    """A Server that takes the keywords and the spellings of FastMCP and the SDK 1.x.

    Options and methods that need HTTP are accepted, have no effect, and are named in
    one line on stderr.  What would change how the server behaves (middleware, mounted
    servers, transforms, providers) is an error.  `settings` keeps the unused options.
    """

    _session_class = FamiliarSession
    get_context = staticmethod(get_context)
    _mcp_server = property(lambda self: LowLevelServer(self._registry.info))
    auth = None

    def __init__(self, name: str | None = None, instructions: str | None = None, *,
                 version: str | None = None, tools: Iterable[Any] = (),
                 **options: Any) -> None:
        for option in ("middleware", "transforms", "providers"):
            if options.pop(option, None):
                raise NotImplementedError(f"FastMCP({option}=): {NOT_HERE[option]}")
        options = {RENAMED.get(key, key): value for key, value in options.items()
                   if value is not None}
        own = taken(options, options_of(Server.__init__))
        super().__init__(name or "FastMCP", version, instructions=instructions, **own)
        self._registry.first_level = "debug"  # as in the SDK, until a setLevel
        self.dependencies = options.get("dependencies", [])
        settings = {**SETTINGS, "lifespan": own.get("lifespan"), **options}
        self.settings = AnyFields(**settings)
        no_effect("FastMCP()", options)
        for capability in CHANGES:  # so that a list of none is empty, and no error
            self._registry.offer(capability)
        for tool in tools:
            self.add_tool(tool)

    # -- serving

    def run(self, transport: str | None = "stdio", mount_path: object = None, *,
            threaded: bool | None = None, show_banner: object = None,
            **options: object) -> None:
        """Serve over stdio; ValueError for any other transport."""
        check_transport(transport, options)
        super().run(threaded=threaded)

    async def run_async(self, transport: str | None = "stdio", *,
                        threaded: bool | None = None, show_banner: object = None,
                        **options: object) -> None:
        """Serve over stdio; ValueError for any other transport."""
        check_transport(transport, options)
        await super().run_async(threaded=threaded)

    run_stdio_async = run_async
    http_app = sse_app = streamable_http_app = staticmethod(Inert)
    # Called on the class, so __getattr__ would not see them.
    from_openapi, from_fastapi = stand_in("from_openapi"), stand_in("from_fastapi")
    as_proxy = stand_in("as_proxy")

    def custom_route(self, path: str, *_: object, **__: object) -> Callable[[F], F]:
        """A decorator without effect, and a warning: there is no HTTP here."""
        no_effect("custom_route()", [path])
        return lambda fn: fn

    # -- registering

    def _register(self, kind: Any, *args: Any, enabled: bool = True,
                  **options: Any) -> Any:
        """Register a function, or an object that was made of one."""
        args += (*taken(options, ("resource", "prompt", "template")).values(),)
        entry = args[-1]
        if not isinstance(entry, Registration):
            entry = kind.from_function(*reversed(args), **options)
        if enabled:
            self._registry.add(entry)
        return args[-1]

    def add_tool(self, fn: Any = None, name: Any = None, *, tool: Any = None,
                 **options: Any) -> Any:
        return self._register(Tool, tool or fn, name=name, **options)

    add_prompt = partialmethod(_register, Prompt)
    add_resource = partialmethod(_register, Resource)

    def completion(self, ref: str = "", argument: str = "") -> Callable[[F], F]:
        """Like Server's; without `ref` for all arguments that have no function.

        Then the function is called with ref, argument and context, as in the SDK.
        """
        register = super().completion(ref, argument)
        if ref:
            return register

        def add(fn: F) -> F:
            register(lambda ref, argument, context: fn(
                received(ref), received(argument), received({"arguments": context})))
            return fn

        return add

    # -- looking at it

    # What tests of programs for the SDK look into.
    _tool_manager = _prompt_manager = _resource_manager = property(
        lambda self: SimpleNamespace(**{
            f"_{name}": entries for name, entries in self._registry.lists.items()},
            _templates=self._registry.lists["resourceTemplates"]))

    def _listing(self, list_key: str, **_: object) -> Listing:
        entries = [*self._registry.lists[list_key].values()]  # others may add one
        return Listing(entry.listed() for entry in entries)

    list_tools = partialmethod(_listing, "tools")
    list_prompts = partialmethod(_listing, "prompts")
    list_resources = partialmethod(_listing, "resources")
    list_resource_templates = partialmethod(_listing, "resourceTemplates")

    async def _entries(self, list_key: str, name: str | None = None) -> Any:
        """All entries by name, or one: KeyError if there is none."""
        entries = self._registry.lists[list_key]
        return {**entries} if name is None else entries[name]

    get_tools = get_tool = partialmethod(_entries, "tools")
    get_prompts = get_prompt = partialmethod(_entries, "prompts")
    get_resources = get_resource = partialmethod(_entries, "resources")

    def __getattr__(self, name: str) -> Any:  # called only for missing attributes
        words = NOT_HERE.get(name, "there is no such attribute")
        raise AttributeError(f"FastMCP.{name}: {words}")


def check_transport(transport: str | None, options: Iterable[str]) -> None:
    if transport not in (None, "stdio"):
        raise ValueError(f"transport {transport!r}: {NEEDS_HTTP}")
    no_effect("run()", options)


# Aliases: the name there, the name here, and how they differ.

MCPServer = FastMCP                     # in the SDK 2
FunctionTool, FunctionPrompt = Tool, Prompt
FunctionResource = ResourceTemplate = Resource  # a template is a resource here
TextContent, ImageContent, AudioContent, ContentBlock = Text, Image, Audio, Block
TextResourceContents = BlobResourceContents = ResourceContents  # one for both
CallToolResult = ToolResult
PromptMessage = UserMessage = SamplingMessage = Message  # of the user, by default
CreateMessageResult, ElicitResult = Sampled, Elicited
MCPError, ClientError = McpError, Error
FastMCPError = NotFoundError = ResourceError = PromptError = DisabledError = ToolError
LoggingLevel = Role = str               # not checked
ToolAnnotations = Annotations = Icon = ErrorData = AnyFields  # they take any field


class UrlElicitationRequiredError(McpError):
    """A tool needs the user to visit these URLs first; of 2025-11-25 only."""

    def __init__(self, elicitations: list[Json], message: str | None = None) -> None:
        data = {"elicitations": to_json_data(elicitations)}
        super().__init__(-32042, message or "URL elicitation required", data)


class AssistantMessage(Message):
    """A Message of the model."""

    def __init__(self, content: Any, role: str = "assistant") -> None:
        super().__init__(role, content)


class KnownByField(type):
    """A metaclass: `isinstance` and `match` compare a field with the class's name."""

    field: str

    def __instancecheck__(cls, value: object) -> bool:
        return bool(getattr(value, cls.field, None) == cls.__name__)

    def __call__(cls, **fields: Any) -> Any:
        return AnyFields(**{cls.field: cls.__name__, **fields})


AcceptedElicitation, DeclinedElicitation, CancelledElicitation = (
    KnownByField(action, (), {"field": "action", "__doc__": f"The answer {action!r}."})
    for action in ("accept", "decline", "cancel"))
PromptReference = KnownByField("ref/prompt", (), {"field": "type"})
ResourceTemplateReference = KnownByField("ref/resource", (), {"field": "type"})


def File(path: str | None = None, data: bytes | None = None,
         format: str | None = None, name: str | None = None, **fields: Any) -> Any:
    """An EmbeddedResource with the bytes of a file."""
    if data is None:
        with open(str(path), "rb") as file:
            data = file.read()
    name = name or os.path.basename(path or "file")
    return EmbeddedResource(f"file:///{name}", data=data, **fields,
                            mime_type=f"application/{format or 'octet-stream'}")


LATEST_PROTOCOL_VERSION = LEGACY


def get_logger(name: str) -> Any:
    """A logger of the standard library."""
    import logging

    return logging.getLogger(name)


def get_access_token() -> None:
    """None: there is no authorization over stdio."""


def parse_scopes(value: Any) -> Any:
    """The scopes in a text: JSON, or words between commas or spaces."""
    if not isinstance(value, str):
        return value
    if value.startswith("["):
        return json.loads(value)
    return value.replace(",", " ").split()


def in_any_order(self: Any, *args: Any, init: Handler = Message.__init__,
                 **fields: Any) -> None:
    """Message(role, content), and also (content) and (content, role)."""
    names = [name for name in ("content", "role") if name not in fields]
    if len(args) == 2 and args[0] in ("user", "assistant"):
        names.reverse()
    init(self, **{"role": "user", **fields, **dict(zip(names, args))})


# To classes of the sections above, where a subclass would not do: the same names are
# there, or the library itself makes them.
ADDED: tuple[tuple[type, str, Any], ...] = (
    (Fields, "model_dump", lambda self, **_: dict(self)),
    (Fields, "model_dump_json", lambda self, **_: json.dumps(self)),
    (Media, "to_image_content", lambda self: self),
    (Media, "to_audio_content", lambda self: self),
    (Message, "__init__", in_any_order),
    (McpError, "error", property(lambda self: AnyFields(
        code=self.code, message=self.message, data=self.data), doc="Its fields.")),
    (ResourceContents, "content", property(
        lambda self: self.text if self.data is None else self.data,
        doc="The text, or the bytes.")))
for _owner, _name, _value in ADDED:
    setattr(_owner, _name, _value)

__all__ += [  # so that `from mcp_min import *` has the commonest
    "FastMCP", "FamiliarContext", "get_context", "TextContent", "ImageContent",
    "AudioContent", "TextResourceContents", "BlobResourceContents", "CallToolResult",
    "PromptMessage", "UserMessage", "AssistantMessage", "SamplingMessage",
    "ToolAnnotations", "Icon", "ResourceError", "PromptError", "AcceptedElicitation",
    "DeclinedElicitation", "CancelledElicitation", "UrlElicitationRequiredError",
]

MODULES = "base client context exceptions prompts resources server tools types".split()

if not TYPE_CHECKING:  # hidden from type checkers, which report unknown names
    def __getattr__(name: str) -> Any:
        if name in MODULES:  # as in `from mcp import types`
            return sys.modules[__name__]
        if name == "lifespan":
            return asynccontextmanager
        found = stand_in(name)
        globals()[name] = found  # the same class for whoever imports it next
        return found


# -- 36. Command line ------------------------------------------------------------------
# Chapter: cli, of both.
# Adds: main
#
# Shows the protocol at work, and inspects any server.  Results go to stdout, all else
# to stderr.  What a server sends is escaped, and indented or labelled, so that it can
# neither control the terminal nor be mistaken for a message of this program.


def demo_server() -> Server:
    """A server with one of everything: `serve` runs it, `demo` talks to it."""
    server = Server("demo", __version__, instructions="Try everything.", page_size=2)

    @server.tool
    def bake(loaves: int, ctx: Context) -> str:
        "Bake bread."
        for loaf in ctx.track(range(loaves)):
            ctx.wait(0.1)
        return f"{loaves} loaves"

    @server.tool
    def order(dish: str, ctx: Context) -> str:
        "Order a dish; asks what should be on it."
        wish = ctx.elicit(f"What should be on your {dish}?", ["lemon", "syrup"])
        return f"{dish} with {wish.data or 'nothing'}"

    server.tool(lambda: "ding", name="ring", description="Ring the bell.")
    server.resource("demo://hello/{name}", name="hello")(lambda name: f"Hello, {name}!")
    server.prompt("review")(lambda language: f"Review this {language} code.")
    return server


SENTENCES = {  # what a line says: the first of these whose key it contains
    "input_required": "The tool is not done: it has a question for the user.",
    "inputResponses": "The same call again, with the answer and the server's state.",
    '"initialize"': "The client says hello: the revision it prefers, and who it is.",
    '"protocolVersion"': "The server agrees to the revision: this is what it offers.",
    INITIALIZED: "The client is ready.  (Without an `id`, there is no response.)",
    '"server/discover"': "The client asks what the server is; `_meta` says who asks.",
    '"supportedVersions"': "The server says who it is, and what it offers.",
    '"nextCursor"': "The first page of the list; `nextCursor` leads to the next.",
    '"cursor"': "The client asks for the next page.",
    '"tools/list"': "The client asks which tools there are.",
    '"tools"': "The last page of the list.",
    '"tools/call"': "The client asks the server to run a tool.",
    '"content":[': "The tool is done.  The `id` is that of the request.",
    PROGRESS: "The tool reports how far it is.",
    CANCELLED: "The client cancels the call.  There will be no response.",
    '"elicitation/create"': "The tool has a question, so the server asks the client.",
    '"action"': "The client sends what the user has answered."}


class DemoTap:
    """Keeps the lines of a connection, with an arrow that shows where each goes."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def show(self, arrow: str, data: Line) -> None:
        shown = {">": "-->", "<": "<--"}[arrow]
        self.lines += [(shown, line) for line in data.decode().splitlines()]

    def close(self) -> None:
        """Nothing to close."""


def cli_demo(_: object) -> None:
    """Use the demo's server in each era, and explain each line that passes."""
    cli_print(
        "MCP lets a program, such as an editor, call the functions (tools) of a "
        "server.\nHere a client calls some, over a pipe each way.  Below is every line "
        "that passes,\nto the server (-->) or back (<--); long ones are cut.")
    tap = DemoTap()
    TAPS.append(lambda _: tap)
    for revision, idea in ((LEGACY, "begins with a handshake"),
                           (MODERN_VERSIONS[0], "has none: a request says who asks")):
        cli_print(f"\nRevision {revision} {idea}")
        tap.lines.clear()
        with Client(demo_server(), mode=revision,
                    elicitation_handler=lambda *_: "lemon") as client:
            if revision == LEGACY:
                client.list_tools()
                client.call_tool("bake", {"loaves": 2})
            else:
                with suppress(RequestTimeout):  # it is cancelled
                    client.call_tool("bake", {"loaves": 99}, max_timeout=0.15)
            client.call_tool("order", {"dish": "toast"})
        for arrow, line in tap.lines:
            says = next(says for key, says in SENTENCES.items() if key in line)
            cli_print(f"  {arrow} {says}")
            if len(line) > 140:
                line = line[:137] + "..."
            for piece in re.findall(".{1,74}$|.{1,73},|.{1,74}", line):
                cli_print(f"      {piece}")
    TAPS.pop()
    cli_print("\nNow look at a server of yours: mcp_min.py list FILE.py")


def cli_print(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print text, escaped."""
    print(escape_control(text), end=end, file=stream or sys.stdout, flush=True)


def cli_show(label: str, data: object) -> None:
    """Show on stderr what a server sends, with a label on each line."""
    text = data if type(data) is str else json.dumps(data)
    label = " ".join(label.split())  # part of it may come from the server
    cli_print(indented(f"{label}: ", text.rstrip()), sys.stderr)


def indented(prefix: str, text: object) -> str:
    """The text with a prefix on each line; "" if there is none."""
    if not text:
        return ""
    return prefix + str(text).replace("\n", "\n" + prefix)


def as_list(value: object) -> list[Any]:
    """Return the value if it is a list, else []."""
    return value if type(value) is list else []


def cli_stdin() -> ByteStream:
    # Unbuffered, and not sys.stdin: a thread inside a buffered stream would abort the
    # interpreter at exit.
    return open(0, "rb", buffering=0, closefd=False)


# -- asking a server: list, call, read, prompt, complete


class Console:
    """Shows what a server sends during a request, and asks its questions."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers  # they are used before the user is asked
        self._step = -1  # of the progress that was shown last

    def show_log(self, params: Json) -> None:
        cli_show(f"log {params.get('level')}", params.get("data"))

    def show_progress(self, done: float, total: Any, message: Any) -> None:
        """Show each tenth of the total; if that is not known, one line a second."""
        step, text = int(monotonic()), f"{done:g}"
        if type(total) in (int, float) and total > 0:
            share = min(max(done / total, 0.0), 1.0)
            step, text = int(share * 10), f"{share:.0%}"
        if step != self._step:
            self._step = step
            cli_show("progress", " ".join(f"{text} {message or ''}".split()))

    def answer_form(self, message: str, schema: Any, _: object = None) -> Any:
        """The answers of --answer, or of the user; None if the user declines.

        Once there are answers, a field that may be left out is not asked for.
        """
        cli_show("the server asks", message)
        form = as_object(schema)
        fields = as_object(form.get("properties"))
        required = as_list(form.get("required"))
        has_answers = bool(self._answers)
        content = {}
        try:
            if not fields:
                return (self._take("") or cli_input("yes or no")) == "yes"
            for name, value in fields.items():
                field = as_object(value)
                can_skip = name not in required or "default" in field
                text = self._take(name)
                if text is None and has_answers and can_skip:
                    text = ""
                cli_show("the server asks", cli_field(name, field, not can_skip, {}))
                content[name] = form_value(name, field, can_skip, text)
        except EOFError:
            cli_show("declined", "no answer")
            return None
        return {name: value for name, value in content.items() if value is not MISSING}

    def answer_url(self, message: str, url: str, _: object) -> Any:
        return self.answer_form(f"{message}\nopen {url}", {})

    def _take(self, name: str) -> str | None:
        """The answer NAME=VALUE; or else the next that is for no field."""
        named = [one for one in self._answers if one.startswith(f"{name}=")]
        unnamed = [one for one in self._answers if "=" not in one]
        answers = named + unnamed
        if not answers:
            return None
        self._answers.remove(answers[0])
        return answers[0].removeprefix(f"{name}=")

    def check_used(self) -> None:
        """Raise Error for an answer that was not asked for: it may be misspelt."""
        if self._answers:
            raise Error(f"not asked for: {', '.join(self._answers)}")


def cli_input(expected: str) -> str:
    """What the user types; EOFError: nothing."""
    cli_print(f"{expected}, or Ctrl-D to decline: ", sys.stderr, end="")
    with cli_stdin() as console:
        line: bytes = console.readline()
    if not line:
        raise EOFError
    return line.decode("utf-8", "replace").strip()


# Of a type, or a format, what its text looks like, and how the user is told so.
FORM_TEXTS = {
    "boolean": ("true|false", "true or false"),
    "date": (r"\d{4}-\d\d-\d\d", "a date, such as 2026-11-23"),
    "date-time": (r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*",
                  "a date and a time, such as 2026-11-23T14:30:00Z"),
    "email": (r"[^@\s]+@[^@\s]+", "an e-mail address"),
    "uri": (r"[A-Za-z][A-Za-z0-9+.-]*:\S+", "a URI, such as https://example.org")}


def form_value(name: str, field: Json, can_skip: bool, text: str | None) -> Any:
    """The value of a text, or of what the user types; MISSING: it is left out.

    The user is asked until it fits; McpError: the text does not.
    """
    kind = str(field.get("format") or field.get("type"))
    pattern, expected = FORM_TEXTS.get(kind, ("(?s:.+)", "a value"))
    prompt = expected
    if "default" in field:
        prompt += f", Enter for {show(field['default'])}"
    elif can_skip:
        prompt += ", Enter to leave it out"
    while True:
        typed = cli_input(prompt) if text is None else text
        if not typed and can_skip:
            return field.get("default", MISSING)
        value = cli_value(typed, field, ",")
        problems = [f"expected {expected}, got {show(typed)}"]
        if looks_like(typed, pattern, kind):
            problems = ForeignValidator(field).problems(value)
        if not problems:
            return value
        problem = f"the answer does not fit: {name}: {'; '.join(problems)}"
        if text is not None:
            raise invalid_params(problem, "answer", problem)
        cli_show("again", problem)


def looks_like(text: str, pattern: str, kind: str) -> bool:
    from datetime import datetime

    try:
        if kind.startswith("date"):
            parse_format(datetime, text)  # is there such a day?
    except ValueError:
        return False
    return re.fullmatch(pattern, text) is not None


def cli_value(text: str, schema: Json, separator: str = "\0") -> Any:
    """What a text stands for: itself, the JSON in it, or the items of a list."""
    if schema.get("type") == "array" and not text.startswith("["):
        items = {"$defs": schema.get("$defs", {}), **as_object(schema.get("items"))}
        return [cli_value(item.strip(), items) for item in text.split(separator)]
    with suppress(ValueError):  # whatever is wrong, the server will say so
        if ForeignValidator(schema).problems(text):
            return json.loads(text)
    return text


def cli_parts(result: Json) -> Iterator[tuple[str, str]]:
    """Of each part of a result its text, or what it is, and its data in base64."""
    lists = [as_list(result.get(key)) for key in ("content", "contents", "messages")]
    for part in map(as_object, itertools.chain(*lists)):
        block = as_object(part.get("content", part))
        block = as_object(block.get("resource", block))
        text = block.get("text")
        data = str(block.get("data", block.get("blob", "")))
        if type(text) is not str:
            what = f" {block.get('uri') or json.dumps(block)}"
            if data:
                what = f", {len(data.rstrip('=')) * 3 // 4:,} bytes: --output FILE"
            text = f"({block.get('mimeType') or block.get('type')}{what})"
        if "role" in part:
            text = f"{part['role']}: {text}"
        yield text, data
    if not any(lists) and "structuredContent" in result:
        yield json.dumps(result["structuredContent"], indent=2), ""


def cli_texts(result: Json) -> list[str]:
    return [text for text, _ in cli_parts(result)]


def cli_save(result: Json, text: str, path: str) -> None:
    """Write the data of a result, or if there is none its text, into a file."""
    found = [data for _, data in cli_parts(result) if data]
    content = text.encode("utf-8", "surrogateescape")
    if len(found) > 1:
        raise Error(f"{len(found)} parts have data: --json shows all")
    try:
        for data in found:
            content = from_base64(data)
    except ValueError:
        raise invalid_response("its data is not base64") from None
    with open(path, "wb") as file:
        file.write(content)
    cli_print(f"{path}: {len(content):,} bytes", sys.stderr)


def cli_query(request: Handler, args: Namespace, texts: Handler = cli_texts,
              nothing: str = "no content") -> int:
    """Send a request to a server and show its result; Ctrl-C cancels it.

    request(client, *words): the result.  texts(result): the lines to be shown, or if
    there are none `nothing`, with the words.
    """
    console = Console(args.answer)
    with Client(cli_target(args.command), env=cli_variables(args.env),
                inherit_env=args.inherit_env, mode=args.mode,
                timeout=args.timeout, stderr=partial(cli_show, "stderr"),
                log_handler=console.show_log, progress_handler=console.show_progress,
                elicitation_handler=console.answer_form,
                url_handler=console.answer_url) as client:
        try:
            result = request(client, *args.words)
        except RequestTimeout:
            if any(word.endswith(".py") for word in args.command):
                # It may tell where its handler is.
                wait_until(lambda: "still at" in client.stderr_tail, STUCK_SECONDS + 1)
            raise
    failed = result.get("isError") is True
    text = "\n".join(filter(None, texts(result)))
    if args.json:
        result, text = {}, json.dumps(result, indent=2)
    if args.output and not failed:
        cli_save(result, text, args.output)
    elif not text:
        cli_print(f"({nothing.format(*args.words)})", sys.stderr)
    elif failed and not args.json:
        cli_show("the tool failed", text)
    elif sys.stdout.isatty():  # there the text could be mistaken for ours
        cli_print(indented("  ", text))
    else:
        cli_print(text)
    console.check_used()
    return int(failed)


def cli_offered(client: Client) -> Json:
    offered: Json = {
        "serverInfo": client.server_info, "protocolVersion": client.protocol_version,
        "capabilities": client.server_capabilities, "instructions": client.instructions}
    for method, row in METHODS.items():
        if row.list_key and row.capability in client.server_capabilities:
            offered[row.list_key] = cli_entries(client, method)
    return offered


def cli_entries(client: Client, method: str) -> list[Any]:
    """All entries of a list; if it is malformed, those of its first page."""
    try:
        entries: list[Any] = client._list(method, ..., None)
        return entries
    except McpError as error:  # one bad entry or list must not hide the others
        cli_show("note", f"{method}: {error}")
        if error.local:  # else the server would only say the same again
            with suppress(McpError):
                return as_list(client.request(method).get(METHODS[method].list_key))
    return []


def cli_overview(offered: Json) -> Iterator[str]:
    """What a server offers, as lines of text."""
    info, revision = as_object(offered["serverInfo"]), offered["protocolVersion"]
    title = f"{info.get('name')} {info.get('version')}, revision {revision}"
    yield " ".join(title.split())
    yield indented("  ", f"offers {', '.join(offered['capabilities']) or 'nothing'}")
    yield indented("  ", offered["instructions"])
    for row in METHODS.values():
        entries = offered.get(row.list_key)
        if entries:
            yield f"\n{row.list_key} ({len(entries)})"
            for entry in entries:
                yield from cli_entry(entry)


def cli_entry(entry: object) -> Iterator[str]:
    """A tool, a resource or a prompt, with its arguments."""
    item = as_object(entry)
    name = item.get("uri") or item.get("uriTemplate") or item.get("name")
    yield indented("  ", name or f"malformed: {json.dumps(entry):.60}")
    yield indented("    ", item.get("description"))
    schema = as_object(item.get("inputSchema"))
    yield indented("      ", cli_fields(schema, dict(as_object(schema.get("$defs")))))
    for argument in map(as_object, as_list(item.get("arguments"))):  # of a prompt
        field = {"type": "string", "description": argument.get("description")}
        is_required = argument.get("required") is True
        text = cli_field(argument.get("name"), field, is_required, {})
        yield indented("      ", text)


def cli_fields(schema: Json, definitions: Json) -> str:
    """The fields of an object, each on a line."""
    required = as_list(schema.get("required"))
    fields = as_object(schema.get("properties"))
    return "\n".join(cli_field(name, field, name in required, definitions)
                     for name, field in fields.items())


def cli_field(name: object, schema: object, is_required: bool, definitions: Json,
              ) -> str:
    """A field on a line: its type, the rest as JSON, default, description.

    Below it are the fields of what it holds.  A definition is shown where it is used
    first, and then removed: it may be a part of itself.
    """
    field = defined(schema, definitions)
    items = defined(field.pop("items", None), definitions)
    mark = "" if is_required else "?"
    text = f"{name}{mark}: {type_in_words(field)}"
    if items:
        text += f" of {type_in_words(items)}"
    held = {**field, **items}
    rest = {key: value for key, value in held.items()
            if key not in SHOWN and value is not False}
    if rest:
        text += f" {json.dumps(rest)}"
    if "default" in field:
        text += f" = {json.dumps(field['default'])}"
    if field.get("description"):
        text += f"  {field['description']}"
    below = indented("  ", cli_fields(held, definitions))
    return f"{text}\n{below}".rstrip()


def type_in_words(schema: Json) -> str:
    kind = schema.get("type", "any")
    return " or ".join(map(str, as_list(kind) or [kind]))


# What is not shown as JSON.
SHOWN = "type title default description properties required".split()


def defined(schema: object, definitions: Json) -> Json:
    """A schema with the definition that it refers to in place of the reference."""
    result = dict(as_object(schema))  # it may be true: any value
    name = str(result.get("$ref")).rpartition("/")[2]
    if name in definitions:
        del result["$ref"]
        result.update(as_object(definitions.pop(name)))
    return result


def cli_call(client: Client, name: str, *words: str) -> Json:
    schema: Json = {}
    for tool in cli_entries(client, "tools/list"):
        if as_object(tool).get("name") == name:
            schema = as_object(tool.get("inputSchema"))
    arguments = cli_arguments(words, schema)
    return client.request("tools/call", {"name": name, "arguments": arguments})


def cli_prompt(client: Client, name: str, *words: str) -> Json:
    arguments = cli_arguments(words, {})
    return client.request("prompts/get", {"name": name, "arguments": arguments})


def cli_read(client: Client, uri: str) -> Json:
    return client.request("resources/read", {"uri": uri})


def cli_complete(client: Client, ref: str, argument: str, text: str = "") -> Json:
    if not text:
        argument, _, text = argument.partition("=")
    return client.complete(ref, argument, text)


def cli_arguments(words: Iterable[str], schema: Json) -> Json:
    """The arguments that KEY=VALUE, and JSON objects, stand for."""
    arguments: Json = {}
    fields = as_object(schema.get("properties"))
    for word in words:
        key, equals, text = word.partition("=")
        if word.startswith("{"):
            try:
                arguments.update(json.loads(word))
            except ValueError as error:
                raise ValueError(f"an argument is not JSON: {error}") from None
            continue
        if not equals:
            raise ValueError(f"an argument is KEY=VALUE or a JSON object, not {word!r}")
        field = as_object(fields.get(key))
        value = cli_value(text, {"$defs": schema.get("$defs", {}), **field})
        if key in arguments:
            if type(value) is not list:
                raise ValueError(f"{key} is given twice, and is no list")
            value = as_list(arguments[key]) + value
        arguments[key] = value
    return arguments


# -- running a server: run


def cli_run(args: Namespace) -> None:
    """Serve a file's Server, or its functions; stdout is taken before it can print."""
    path = os.path.abspath(args.words[0])
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    sys.modules["mcp_min"] = sys.modules[__name__]  # what the file imports is this one
    sys.path.insert(0, os.path.dirname(path))
    with stop_at_signals(), stdio_server() as (reader, writer):
        server = cli_server(cli_load(path))
        try:
            server.serve(reader, writer, threaded=args.threaded)
        except Exception:  # of its lifespan: no wrong usage, and the user's own code
            log_exception("mcp_min: the server has failed")
            raise SystemExit(1) from None


def cli_load(path: str) -> Any:
    """Import a file as a module of its own name."""
    from importlib.machinery import SourceFileLoader
    from types import ModuleType

    name, _ = os.path.splitext(os.path.basename(path))
    module = ModuleType(name)
    module.__file__ = path
    sys.modules.setdefault(name, module)  # it must not replace a library
    try:
        SourceFileLoader(name, path).exec_module(module)
    except Exception:
        text = traceback.format_exc().rstrip()
        raise SystemExit(f"{text}{import_hint(text)}") from None
    return module


def cli_server(module: ModuleType) -> Any:
    """The Server in a module; or a new one of its public functions as tools."""
    values = [value for name, value in vars(module).items() if name[0] != "_"]
    servers = {value for value in values if hasattr(type(value), "add_tool")}
    functions = [value for value in values if hasattr(value, "__code__")
                 and value.__module__ == module.__name__]
    if len(servers) == 1:
        return servers.pop()
    if servers or not functions:
        raise ValueError(f"{module.__file__} must have one Server, not {len(servers)}, "
                         "or public functions")
    server = Server(module.__name__, instructions=module.__doc__)
    for function in functions:
        server.add_tool(function)
    return server


# -- a copy for another project: vendor
#
# A copy has some of the parts and chapters that PARTS lists.  Its first lines tell
# which, and hold the sha256 of all other lines, so that any version can tell whether it
# was edited.  The whole file is copied as it is.


BOTH = ["server", "client"]
ENDS = {  # what a part, or the first line of a section, needs: one of these
    "II": ["server"], "part II": ["server"], "a server": ["server"],
    "III": ["client"], "part III": ["client"], "a client": ["client"],
    "part II, or chapter schemas": ["server", "schemas"],
    "chapter inside, or chapter trace": ["inside", "trace"],
    "parts II and III": ["server client"], "the whole file": ["server client cli"]}
EXTRAS = {"names", "cli"}  # chapters that need all others
ABOUT = {  # what --help says of them
    "both": "what both ends need: messages, validation, the connection",
    "server": "tools, resources, prompts; progress, cancellation, questions",
    "client": "starting a server; the same methods from the other side",
    "stateless": "the revision 2026-07-28",
    "schemas": "JSON Schema beyond what type hints need",
    "more": "completion, middleware, methods of your own, subscriptions",
    "asyncio": "`async def` handlers, AsyncContext, run_async, AsyncClient",
    "turns": "faster calls; reports of handlers that do not end",
    "inside": "within an application: run_handler, threaded=False, listen",
    "config": "entries of a host's mcp.json start servers",
    "trace": "MCP_MIN_TRACE shows the lines that cross",
    "names": "programs for FastMCP, the SDK, pydantic; needs all others",
    "cli": "this command line; needs all others"}
SEAL = "sha256 of the other lines: "


def cli_vendor(args: Namespace) -> int:
    """Write a copy of this file that has only what somebody needs, or look at one."""
    [path] = args.words
    if ABSENT:
        raise ValueError("this is a copy itself: use the whole file")
    if args.check:
        return Copy(path).check()
    if args.diff:
        return Copy(path).show_update()
    if path.endswith(".py"):
        raise ValueError(f"{path} is a file: a copy is written into a FOLDER")
    folder, path = path, os.path.join(path, "mcp_min.py")
    with suppress(OSError):  # there is none yet, or this program is in a zip file
        if os.path.samefile(path, __file__):
            raise ValueError(f"{path} is the file to copy from")
    parts = vendor_choice(args)
    if os.path.exists(path) and not args.force:
        Copy(path).refuse_loss(parts)
    copy = vendored(own_source(), parts)
    os.makedirs(folder, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(copy)
    lines, left_out = copy.count("\n"), missing_from(PARTS.split(), parts)
    cli_print(f"{path}: {lines:,} lines to review\nsha256: {sha256_of(copy)}\n"
              f"has: {', '.join(parts)}\nleft out: {left_out}")
    cli_package(folder, args.init)
    return 0


def cli_package(folder: str, init: bool) -> None:
    """Say how a built package gets the copy, if the folder is in a package."""
    own = os.path.join(folder, "__init__.py")
    outer = os.path.dirname(os.path.abspath(folder))
    if init:
        open(own, "ab").close()
    elif os.path.exists(os.path.join(outer, "__init__.py")) > os.path.exists(own):
        cli_print(f"a built package has it if there is {own} (--init writes it), and "
                  "the build lists this folder (setuptools: by find_packages())")


class Copy:
    """A copy in a file, of any version, and what its first lines say of it."""

    def __init__(self, path: str) -> None:
        if os.path.isdir(path):
            path = os.path.join(path, "mcp_min.py")
        with open(path, encoding="utf-8", errors="replace") as file:  # or with CRLF
            self.text = file.read()
        self.path = path
        self.version = self._found(r'\A"""mcp_min ([\w.]+)')
        if not self.version:
            raise ValueError(f"{path} is not a copy of mcp_min: --force replaces it")
        self.seal = self._found(f"^{SEAL}(.*)")
        parts = (self._found('^PARTS = "(.*)"') or PARTS).split()
        self.parts = [part for part in PARTS.split() if part in parts]

    def _found(self, pattern: str) -> str:
        found = re.search(f"(?m){pattern}", self.text)
        return found[1] if found else ""

    def is_as_made(self) -> bool:
        """Whether it is what its version makes; not known of another's whole file."""
        if self.version == __version__:
            return self.text == vendored(own_source(), self.parts)
        return self.seal == sha256_of(self.text.replace(f"{SEAL}{self.seal}\n", "", 1))

    def check(self) -> int:
        """Say whether it is what its first lines say; return the exit status.

        Of another version only that version can tell: 2, if it agrees with itself.
        """
        status, verdict = 1, "is not"
        if self.version != __version__ and (self.is_as_made() or not self.seal):
            status, verdict = 2, "may be (only that version can tell)"
        elif self.is_as_made():
            status, verdict = 0, "is"
        cli_print(f"{self.path} {verdict} what mcp_min {self.version} makes: "
                  f"{', '.join(self.parts)}")
        return status

    def show_update(self) -> int:
        """Show as a unified diff what this version would change in it."""
        from difflib import unified_diff

        new = vendored(own_source(), self.parts)
        if new == self.text:
            cli_print("no difference", sys.stderr)
        for line in unified_diff(self.text.splitlines(), new.splitlines(), self.path,
                                 f"mcp_min {__version__}", lineterm=""):
            cli_print(line)
        return 0

    def refuse_loss(self, parts: list[str]) -> None:
        """Raise ValueError if a copy with these parts would not just update it."""
        problem = ""
        if numbers_of(self.version) > numbers_of(__version__):
            problem = f"is of {self.version}, which is newer than {__version__}"
        elif not self.is_as_made():
            doubt = "" if self.seal else f" (or is all of mcp_min {self.version})"
            problem = f"was edited{doubt}; --diff shows what an update would change"
        elif self.parts != parts:
            problem = (f"has other parts; removed would be: "
                       f"{missing_from(self.parts, parts)}; added: "
                       f"{missing_from(parts, self.parts)}; to keep them: "
                       f"{made_with(self.parts)}")
        if problem:
            raise ValueError(f"{self.path} {problem}; --force replaces it")


def numbers_of(version: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", version))]


def missing_from(parts: list[str], others: list[str]) -> str:
    """Those that are not among the others."""
    return ", ".join(part for part in parts if part not in others) or "nothing"


def sha256_of(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()


def own_source() -> str:
    name = __spec__.name if __spec__ else __name__  # `python -m`, also from a zip
    return __loader__.get_source(name)  # type: ignore[name-defined,no-any-return]


def vendor_help() -> str:
    """A table of the parts and chapters: their lines, and what they add."""
    rows = ["lines of each part and chapter:"]
    pieces = pieces_of(own_source())
    for name, about in ABOUT.items():
        lines = sum(piece.text.count("\n") for piece in pieces if piece.name == name)
        rows.append(f"  {name:10}{lines:5}  {about}")
    return "\n".join(rows)


def vendor_choice(args: Namespace) -> list[str]:
    """The parts and chapters of a copy."""
    ends = [end for end in BOTH if getattr(args, end)] or BOTH
    chapters = {piece.chapter for piece in pieces_of(own_source())
                if not piece.missing([*ends, piece.chapter])} - {""}
    unknown = {*args.with_, *args.without} - chapters
    if unknown:
        there = ", ".join(sorted(chapters))
        raise ValueError(f"no chapter {unknown.pop()!r}: there are {there}")
    chosen = {*args.with_} if args.core else chapters
    chosen = chosen - {*args.without}
    if args.server or args.client or args.lean or chapters - chosen - EXTRAS:
        chosen = chosen - EXTRAS
    if args.with_ and not args.core:
        raise ValueError("--with is for --core")
    if {*args.with_} - chosen:
        raise ValueError("names and cli need all other chapters")
    return [part for part in PARTS.split() if part in {*ends, *chosen}]


def made_with(parts: list[str]) -> str:
    """The command that makes a copy with these parts."""
    ends = [end for end in BOTH if end in parts]
    options = [f" --{end}" for end in ends if ends != BOTH]
    chapters = [f" --with {part}" for part in parts if part not in BOTH]
    return "".join(["mcp_min.py vendor FOLDER", *options, " --core", *chapters])


class Piece(namedtuple("Piece", "title text chapter ends")):
    """What a copy has as a whole or not, from its banner, which has the title, on.

    chapter: "" for a core.  ends: what a copy must have, one of these.
    """

    @property
    def name(self) -> str:
        if self.chapter or self.ends == BOTH:
            return self.chapter or "both"
        return self.ends[0].split()[-1]  # type: ignore[no-any-return]

    def missing(self, parts: list[str]) -> str:
        """The part without which a copy does not have it; "" if it has."""
        lacks = [missing_from(needed.split(), parts) for needed in self.ends]
        if "nothing" not in lacks:
            return lacks[-1]
        if self.chapter in parts:
            return ""
        return self.chapter  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """What it adds for users, such as "listen", "keyword $ref", "package mcp"."""
        names = []
        for kind, words in re.findall("(?m)^# Adds ?(\\w*?)s?: (.*)", self.text):
            names += [f"{kind} {word}".strip() for word in words.split(", ")]
        for exported in re.findall(r"(?s)\n__all__ \+= \[(.*?)\]", self.text):
            names += re.findall('"(.*?)"', exported)
        return [*filter(None, names)]


def pieces_of(source: str) -> list[Piece]:
    """The source behind its head: the parts, and the sections of the chapters."""
    pieces = []
    for text in re.split(r"(?m)^(?=# == Part |# -- .*\n# (?:Of |Chapter: )"
                         r"|# -- Licence )", source)[1:]:
        found = re.match(r"# == Part (I+)|.*\n# (?:Chapter: (\w+), o|O)f (.*)\.|", text)
        part, chapter, end = found.groups()  # type: ignore[union-attr]
        title = text.partition("\n")[0].strip("# =-")
        ends = ENDS.get(part or end, BOTH)
        pieces.append(Piece(title, text, chapter or "", ends))
    return pieces


def vendored(source: str, parts: list[str]) -> str:
    """A copy of the source with these parts."""
    pieces = pieces_of(source)
    kept = [piece.text for piece in pieces if not piece.missing(parts)]
    gone = [piece for piece in pieces if piece.missing(parts)]
    if not gone:
        return source
    if "cli" not in parts:
        kept.insert(-1, NO_COMMAND_LINE)
    text = head_for(source, parts) + "".join(kept)
    unwanted = [rf"    {piece.title.replace('. ', ' +')} .*\n" for piece in gone]
    absent = missing_from(PARTS.split(), parts).replace(", ", "|")
    unwanted += [rf".*  (?:# (?:{absent})|\[(?:{absent})\])\n",
                 rf"(?:.+\n)*.*\(chapter: (?:{absent})\)\n\n"]
    for pattern in unwanted:
        text = re.sub(f"(?m)^{pattern}", "", text)
    text = re.sub("\n{4,}", "\n\n\n", text)
    text = re.sub(r"(class \w+|_session)\(\n +(\w*)\)", r"\1(\2)", text)  # one is left
    text = text.replace("ABSENT: dict[str, str] = {}", absent_table(gone, parts), 1)
    text = text.replace(f'PARTS = "{PARTS}"', f'PARTS = "{" ".join(parts)}"', 1)
    first, _, rest = text.partition("\n")
    first = (f"{first.partition(',')[0]}; a copy.\n\n"
             f"This copy has: {', '.join(parts)}.\n"
             f"Made with: {made_with(parts)}\n")
    return f"{first}{SEAL}{sha256_of(first + rest)}\n{rest}"


NO_COMMAND_LINE = """if __name__ == "__main__":
    sys.exit("this copy of mcp_min has no command line: see the whole file")


"""


def head_for(source: str, parts: list[str]) -> str:
    """What is above part I, without what is about an end that is not among the parts.

    A paragraph that names a part in its first line is about that part, as are those
    after it, until one names another.
    """
    about, paragraphs = BOTH, []
    for paragraph in source[:source.index("# == Part I: ")].split("\n\n"):
        named = re.match(r".*\b[Pp]art ([IV]+)\b", paragraph)
        if named:
            about = ENDS.get(named[1], BOTH)
        if {*about} & {*parts}:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def absent_table(gone: list[Piece], parts: list[str]) -> str:
    """The statement that names what a copy does not have."""
    from textwrap import fill

    rows: dict[str, list[str]] = {}
    for piece in gone:
        rows.setdefault(piece.missing(parts), []).extend(piece.names())
    table = ""
    for part, names in rows.items():
        if not names:  # such as a chapter that only makes calls faster
            continue
        text = fill(", ".join(dict.fromkeys(names)), 84, break_on_hyphens=False)
        table += f'    "{part}": """\n{text}""",\n'
    return f"ABSENT: dict[str, str] = {{\n{table}}}"


# -- between a host and a server: trace, connect


def cli_copy(source: ByteStream, sink: ByteStream, show: Handler = lambda line: None,
             at_end: Handler = lambda: None) -> None:
    """Copy bytes until one side has closed; if that is the source, call at_end.

    show: called with each line, before it is written: its response is shown after it.
    """
    def chunks() -> Iterator[bytes]:
        for chunk in read_chunks(source):
            yield chunk
            sink.write(chunk)
            sink.flush()

    with suppress(OSError, ValueError):
        for line in split_lines(chunks(), 16 << 20):
            show(line + b"\n")
        source.close()
        at_end()


def cli_trace(args: Namespace) -> int:
    """Start a server, relay all bytes, and write them down; return its exit status."""
    trace = Trace(args.to)
    sink: ByteStream = sys.stderr.buffer
    if args.to == "stderr":  # the trace shows it
        sink = open(os.devnull, "wb")  # noqa: SIM115
    with stop_at_signals():
        argv, env, cwd = resolve_command(
            cli_target(args.command), cli_variables(args.env), None)
        child = start_process(argv, child_environment(env, True), cwd, bufsize=-1)
        kill = group_killer(child)
        relays: list[Any] = [
            (child.stdout, sys.stdout.buffer, partial(trace.show, "<")),
            (child.stderr, sink, partial(trace.note, "!")),
            (cli_stdin(), child.stdin, partial(trace.show, ">"), child.stdin.close)]
        threads: list[threading.Thread] = []
        try:
            for relay in relays:
                threads.append(start_thread("mcp relay", partial(cli_copy, *relay)))
            while child.poll() is None:  # in steps: a signal may come just before one
                time.sleep(0.05)
        except SystemExit:  # SIGTERM or Ctrl-C
            for number in (15, 9):  # SIGTERM, SIGKILL
                with suppress(Exception):  # all have ended; or not in that time
                    kill(number)
                    child.wait(Process.PATIENCE)
            raise
        finally:
            code: int = child.wait()
            for thread in threads[:2]:  # not for ever: another process may hold it open
                thread.join(Process.PATIENCE)
            trace.note("!", f"the server's exit code is {code}".encode())
    return code if code >= 0 else 128 - code  # as a shell has it


CONNECT_SECONDS = 5.0  # that an application may take to listen


def cli_connect(args: Namespace) -> None:
    """Relay to a server inside an application; while none listens, refuse requests."""
    import socket

    [path] = args.words
    stdin = cli_stdin()
    problem = (f"no server listens at {path}: start the application that calls "
               "server.listen with this path, and try again")
    line, deadline = b"", monotonic() + CONNECT_SECONDS
    while not (sock := reach_listener(path)):
        if monotonic() < deadline:
            time.sleep(0.1)
            continue
        cli_refuse(line, problem)
        line = stdin.readline()
        if not line:
            raise ConnectionError(problem)
    sock.sendall(line)
    stream = sock.makefile("rwb")
    hang_up = partial(sock.shutdown, socket.SHUT_WR)
    start_thread("mcp stdin", partial(cli_copy, stdin, stream, at_end=hang_up))
    cli_copy(stream, sys.stdout.buffer)
    if not stdin.closed:  # the host has not hung up
        raise ConnectionError(f"the server at {path} has closed the connection")


def cli_refuse(line: bytes, problem: str) -> None:
    """Answer a line with an error if it is a request."""
    with suppress(McpError):  # it is not a message
        message = decode(line.rstrip(), MAX_DEPTH)
        if classify(message) == "request":
            error = McpError(INTERNAL_ERROR, problem)
            response = encode(error_response(message["id"], error))
            cli_print(response.decode(), end="")


# -- the arguments


# Of each command its function; the words that follow it, in brackets those that may be
# left out; its options, and what it does.  COMMON: those of what asks a server.
COMMON = "json output answer env inherit-env timeout mode"
COMMANDS: Json = {
    "demo": (cli_demo, "", "", "two sessions, line by line and explained"),
    "serve": (lambda _: demo_server().run(), "", "", "run the demo's server"),
    "list": (partial(cli_query, cli_offered, texts=cli_overview), "SERVER", COMMON,
             "show what a server offers"),
    "call": (partial(cli_query, cli_call), "TOOL [KEY=VALUE...|{}] -- SERVER", COMMON,
             "call a tool"),
    "read": (partial(cli_query, cli_read), "URI -- SERVER", COMMON, "read a resource"),
    "prompt": (partial(cli_query, cli_prompt), "NAME [KEY=VALUE...] -- SERVER", COMMON,
               "get a prompt"),
    "complete": (partial(cli_query, cli_complete, texts=operator.itemgetter("values"),
                         nothing="no values for {1} of {0}"),
                 "PROMPT|TEMPLATE ARGUMENT[=TEXT] [TEXT] -- SERVER", COMMON,
                 "complete an argument"),
    "run": (cli_run, "FILE.py", "unthreaded", "serve a file's Server or its functions"),
    "vendor": (cli_vendor, "FOLDER|FILE",
               "server client lean core with without init force check diff",
               "copy what a project needs, or look at a copy"),
    "trace": (cli_trace, "SERVER", "to env", "relay a server, log its lines"),
    "connect": (cli_connect, "PATH", "", "relay to a server inside an application")}


def seconds_of(text: str) -> float:
    if not 0 < float(text) < threading.TIMEOUT_MAX:
        raise ValueError
    return float(text)


FLAG: Json = {"action": "store_true"}
MANY: Json = {"action": "append", "default": []}
CHAPTERS: Json = {"action": "extend", "type": partial(str.split, sep=","),
                  "default": [], "metavar": "CHAPTER,..."}
OPTIONS: Json = {
    "json": {**FLAG, "help": "print the raw result"},
    "output": {"metavar": "FILE", "help": "save the data, or the text, of the result"},
    "answer": {**MANY, "metavar": "VALUE",
               "help": "an answer for the next field of a question; FIELD=VALUE is for "
                       "that field, also if VALUE has a =; repeatable"},
    "env": {**MANY, "metavar": "KEY[=VALUE]",
            "help": "set a variable of the server or its entry, or copy it"},
    "inherit-env": {**FLAG, "help": "copy all variables"},
    "timeout": {"type": seconds_of, "default": 60.0, "help": "seconds to wait (60)"},
    "mode": {"default": "auto", "metavar": "REVISION", "help": ", ".join(MODES)},
    "unthreaded": {"action": "store_false", "dest": "threaded", "default": None,
                   "help": "run all handlers on one thread"},
    "server": {**FLAG, "help": "the copy has only a server"},
    "client": {**FLAG, "help": "the copy has only a client"},
    "lean": {**FLAG, "help": "both, but no command line, nor familiar names"},
    "core": {**FLAG, "help": "no chapters but those of --with"},
    "with": {**CHAPTERS, "dest": "with_", "help": "chapters of a --core"},
    "without": {**CHAPTERS, "help": "chapters to leave out"},
    "init": {**FLAG, "help": "write an __init__.py beside the copy"},
    "force": {**FLAG, "help": "replace what was edited, or has other parts"},
    "check": {**FLAG, "help": "tell whether FILE is what its first lines say"},
    "diff": {**FLAG, "help": "show what an update of FILE would change"},
    "to": {"default": "stderr", "metavar": "FILE", "help": "where the trace goes"},
    "version": {"action": "version", "version": f"mcp_min {__version__}"}}
LISTED = [f"  {verb:10}{row[-1]}" for verb, row in COMMANDS.items()]
# Without a command: any word is refused, because it is none.
COMMANDS[""] = (None, "|".join(COMMANDS), "version", "\n".join(LISTED) + """

SERVER: FILE.py, mcp.json NAME, or a program with its arguments
exit status: 0 done, 1 the tool or the server failed, 2 wrong usage""")


def cli_parse(argv: list[str]) -> Namespace:
    """The options, with .words before the server's, .command, .function, and .fail.

    The server begins after `--`.  In `list` and `trace` it may begin before that: with
    a program, whose options follow it; or with a file, which our options may follow.
    """
    import argparse

    verb, *given = argv or ["-h"]
    if verb not in COMMANDS:
        verb, given = "", [verb]
    function, usage, options, about = COMMANDS[verb]
    parser = argparse.ArgumentParser(
        prog=f"mcp_min.py {verb}".rstrip(), description=about, allow_abbrev=False,
        epilog=vendor_help() if verb == "vendor" else None,
        usage=f"%(prog)s [options] {usage}",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in options.split():
        parser.add_argument(f"--{name}", **OPTIONS[name])
    positional = parser.add_argument("words", nargs="...", help=argparse.SUPPRESS)
    end = [*given, "--"].index("--")
    ours, server = given[:end], given[end + 1:]
    if usage == "SERVER":
        program = parser.parse_known_args(ours)[0].words
        if program and not is_server_file(program[0]):
            ours = ours[:-len(program)]
            server = given[len(ours):]
    positional.nargs = "*"
    args, unknown = parser.parse_known_intermixed_args(ours)
    if unknown:
        parser.error(f"unrecognized: {unknown[0]} "
                     "(options of a server come after `--`)")
    if usage == "SERVER":
        args.words, server = [], args.words + server
    problem = usage_problem(verb, args.words, server)
    if problem:
        parser.error(problem)
    args.command, args.function, args.fail = server, function, parser.error
    return args


def usage_problem(verb: str, words: list[str], server: list[str]) -> str:
    """What is wrong with the words of a command; "" if nothing."""
    usage: str = COMMANDS[verb][1]
    if words and not verb:
        return f"no command {words[0]!r}"
    own, needs_server, _ = usage.partition("SERVER")
    for word in words:
        if needs_server and is_server_file(word):
            return f"{word} is a server: {verb} {own}{word}"
    expected = own.replace("-- ", "").split()
    least = sum(not word.startswith("[") for word in expected)
    most = 1000 if "..." in usage else len(expected)
    if least <= len(words) <= most and bool(server) == bool(needs_server):
        return ""
    return f"expected {usage or 'no arguments'}"


def is_server_file(word: str) -> bool:
    return word.endswith((".py", ".json")) and os.path.isfile(word)


def cli_target(server: list[str]) -> Any:
    """The target of a Client: a command, or an entry of an mcp.json."""
    path, *words = server
    if path.endswith(".py"):
        return [sys.executable, *server]
    if not path.endswith(".json"):
        return server
    entries, name = load_config(path), " ".join(words)
    if name not in entries:
        raise ValueError(f"write {path} NAME; it has: {join_first(entries, str)}")
    return entries[name]


def cli_variables(words: list[str]) -> dict[str, str]:
    """The variables that KEY=VALUE, and KEY for ours, stand for."""
    variables = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and key not in os.environ:
            raise ValueError(f"{key} is not set")
        variables[key] = value if equals else os.environ[key]
    return variables


def main(argv: list[str] | None = None) -> int:
    """Run a command line, by default that of sys.argv; return the exit status.

    SERVER is FILE.py, mcp.json NAME, or a program with its arguments.  It gets few
    environment variables: `--env KEY` copies one, `--env KEY=VALUE` sets one,
    `--inherit-env` copies all, as `trace` does.  A trace holds all that passes, secrets
    too; its file has mode 0600.  Arguments of a tool are KEY=VALUE, read as its schema
    requires, or JSON: '{"city": "Oslo"}'.

    The status is 0, or 1 if the tool or the server failed, 2 for wrong usage, 130 after
    Ctrl-C; that of `trace` is the server's.
    """
    args = cli_parse(sys.argv[1:] if argv is None else argv)
    try:
        if sys.stdout is None:
            raise OSError("stdout is closed")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        return args.function(args) or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except ValueError as error:
        text = " ".join(str(error).split())
        args.fail(escape_control(text))
    except Exception as error:
        # Each on its own line, indented; but the server's stderr was shown already.
        lines = [x for x in str(error).splitlines() if not x.startswith("  stderr: ")]
        cli_print(f"mcp_min: {type(error).__name__}: " + "\n  ".join(lines), sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())


# -- Changes ---------------------------------------------------------------------------
# Of the whole file.
#
# 5.0.0  2026-11-25  A core and chapters: a copy may go without each of them.  New:
#                    Server.run_async, strict_results=, STRICT, Client(trace=False),
#                    pages (list_tools(cursor=...)), comments and variables in an
#                    mcp.json, PARTS, `vendor --check`, `--diff`, `--init`.
#   Weaknesses of 4.0: the memory of answers to questions and the time of patterns were
#   not limited, nor was a Decimal that came as text; a trace wrote through hard links.
#   From 4.0, what an embedder would notice: in a thread that runs an event loop run()
#   is a RuntimeError.  An McpError is `local` unless the peer has sent it; its message
#   must be a str.  A message is limited by what it takes in memory.  A result without a
#   JSON form warns.  Message is Message(role, content).  An AsyncClient belongs to the
#   event loop that connected it; its handlers end with their call.  A client answers a
#   batch message by message, and runs at most 1,000 calls of `submit` at once; a
#   response that cannot be parsed fails its call.  The name and version of a server
#   must be str, and `roots` a list.  JSON in a text argument is read up to 1 MiB.  What
#   Gemini CLI, Cline and n8n add to any tool's arguments is dropped.  FastMCP: `-> str`
#   is structured content; `bytes` are UTF-8.  `vendor` replaces no edited copy without
#   --force; --answer takes no JSON for a whole form.
# 4.0.0  2026-11-23  Parts: `vendor` writes a copy with what you need.  New: Field,
#                    AsyncClient, AsyncContext, Error, McpError.local, max_timeout=,
#                    Client.answer, Server.subscription, notify_subscribers, complete.
#   From 3.0: the context of an `async def` is an AsyncContext, and it runs on a loop's
#   thread; a `Context` of another library, and unknown options of Client, are a
#   TypeError; output_fd of stdio_server is gone; files of MCP_MIN_TRACE and `connect`
#   must be yours, and no links; a pydantic model decides what it takes.
# 3.0.0  2026-11-22  Rebuilt around one lock.  Server.listen, Server(threaded=False).
# 2.0.0  2026-11-22  FastMCP's words; one event loop; lifespans; bounds; Windows.
# 1.0.0  2026-11-20  Both ends, the revisions 2024-11-05 to 2026-07-28.
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
