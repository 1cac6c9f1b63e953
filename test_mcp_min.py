"""The tests of mcp_min: ``python3 test_mcp_min.py``, with the standard library alone.

Most tests are transcripts, which `play` reads: ``>`` is a line that the client sends,
``<`` is the message that must come next, and after the last line nothing more may come.
No test sleeps to prove that nothing comes: it sends one more request, a *fence*, and
requires that the next message is the response to it.

* The classes carry the numbers of the sections of mcp_min.py.  A test that replaces a
  part of it, or reads a private field, says so: "Looks inside."
* ``@clause(page, quote)`` names the sentence of the specification that a test proves;
  with ``MCP_SPEC=docs/specification`` one test checks that the page contains it.
* ``MCP_MIN_FUZZ=SECONDS`` makes the fuzz test longer, ``MCP_MIN_SEED=N`` repeats it.
"""
# ruff: noqa: UP006, UP007, UP017, UP031, UP035, UP045, PYI061, PLW1510
# (Strings are formatted with %, because transcripts are full of braces.  The old
# spellings of type hints are tested, and Python 3.9 reads only these.)

import ast
import asyncio
import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import inspect
import io
import itertools
import json
import math
import os
import pathlib
import queue
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
import typing
import unittest
import uuid
import warnings
import weakref
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Dict,
    FrozenSet,
    List,
    Literal,
    NewType,
    Optional,
    Set,
    Tuple,
    TypedDict,
    Union,
)
from unittest import mock

try:
    import sqlite3
except ImportError:  # an optional part of Python
    sqlite3 = None

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import mcp_min
from mcp_min import (
    Cancelled,
    Client,
    ConnectionClosed,
    Context,
    Elicited,
    EmbeddedResource,
    Image,
    McpError,
    Message,
    RequestTimeout,
    ResourceLink,
    SchemaError,
    Server,
    Signature,
    Text,
    ToolError,
    UriTemplate,
    ValidationError,
    load_config,
    output_schema_of,
    to_json_data,
    validate,
)

# ======================================================================================
# Helpers: waiting, raw connections, transcripts
# ======================================================================================

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
LATEST, MODERN = LEGACY[-1], "2026-07-28"
KEY = "io.modelcontextprotocol/"  # prefix of the specification's own keys of `_meta`
CLIENT_INFO = {"name": "tester", "version": "1"}
ALL_CAPABILITIES = {
    "elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
MODERN_META = {  # what every request of the stateless revision carries
    KEY + "protocolVersion": MODERN, KEY + "clientInfo": CLIENT_INFO,
    KEY + "clientCapabilities": ALL_CAPABILITIES}
PATIENCE = 60  # seconds after which a test stops waiting, and fails
# A busy machine may take long to start or to end a process.  Tests of these limits
# set their own: `quick_probe`, `short_patience`.
mcp_min.PROBE_SECONDS = mcp_min.Process.PATIENCE = 20.0
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a job of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)

CLAUSES = []  # (page, quote) of every @clause


UNIX = unittest.skipIf(
    os.name == "nt", "Unix only: signals, file modes, line ends, the size of a pipe")


def clause(page, quote):
    """Record which sentence of the specification the decorated test proves."""
    CLAUSES.append((page, quote))
    return lambda test: test


def gate(name):
    """A named event.  Its `wait()` fails with that name, where another would hang."""
    event = threading.Event()
    wait = event.wait

    def wait_or_fail(timeout=PATIENCE):
        assert wait(timeout), "%s: not within %s s" % (name, timeout)
        return True

    event.wait = wait_or_fail
    return event


@contextlib.contextmanager
def switch_threads_often(seconds=1e-6):
    """Make threads switch as often as possible, so that a race is likely to show."""
    normal = sys.getswitchinterval()
    if sys.implementation.name == "pypy":  # where a switch costs more
        seconds = 1e-4
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(normal)


def wait_until(condition, what="the condition"):
    """Wait until ``condition()`` is true, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.002)


def together(*jobs):
    """Run each job in its own thread; return what each returned or raised."""
    outcomes = [None] * len(jobs)

    def run(number, job):
        try:
            outcomes[number] = job()
        except BaseException as error:  # noqa: BLE001
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=numbered, daemon=True)
               for numbered in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    return outcomes


def run_together(test, run, rows):
    """Call ``run(*row)`` for all rows at the same time, because most of the time is
    spent waiting.  Each row is a subtest; its first value names it."""
    outcomes = together(*[functools.partial(run, *row) for row in rows])
    for row, outcome in zip(rows, outcomes):
        with test.subTest(row[0]):
            if isinstance(outcome, BaseException):
                raise outcome


def raised(job, *args, **kwargs):
    """The exception that ``job(*args, **kwargs)`` raises, or None."""
    try:
        job(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return error
    return None


def quiet():
    """Collect what is written to stderr, instead of showing it."""
    return contextlib.redirect_stderr(io.StringIO())


def checked(line):
    """Parse one line that mcp_min wrote, and check its form: ASCII, strict JSON, a
    known kind of message, one newline at the end."""
    def refuse(constant):
        raise AssertionError("%s is not JSON" % constant)

    assert line.endswith(b"\n") and b"\r" not in line, "bad line end: %r" % line[-80:]
    message = json.loads(line.decode("ascii"), parse_constant=refuse)
    for part in message if isinstance(message, list) else [message]:
        shape = sorted(set(part) - {"jsonrpc", "params"})
        assert part["jsonrpc"] == "2.0" and shape in (
            ["id", "result"], ["error", "id"], ["method"], ["id", "method"]), line
        if "error" in part:
            assert type(part["error"]["code"]) is int, line
            assert type(part["error"]["message"]) is str, line
    return message


class Wire:
    """A raw connection to mcp_min: a test sends bytes, and receives parsed messages."""

    def __init__(self, writer, reader):
        self._writer, self._inbox, self._fences = writer, queue.Queue(), 0
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._thread.start()

    def _read(self, reader):
        with reader:
            for line in reader:
                self._inbox.put(line)
        self._inbox.put(b"")

    def send(self, *messages):
        """Write messages: a dict or list as one line of JSON, bytes as they are."""
        for message in messages:
            if not isinstance(message, bytes):
                message = json.dumps(message).encode() + b"\n"
            self._writer.write(message)
        self._writer.flush()

    def recv(self):
        """The next message, or None at the end of the stream."""
        try:
            line = self._inbox.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError("no message within %s s" % PATIENCE) from None
        if not line:
            self._inbox.put(line)    # for the next call
            return None
        return checked(line)

    def fence(self):
        """Check that nothing was sent: the response to a ping must come next."""
        self._fences += 1
        fence = "fence %d" % self._fences
        self.send({"jsonrpc": "2.0", "id": fence, "method": "ping"})
        response = self.recv()
        assert response == {"jsonrpc": "2.0", "id": fence, "result": {}}, \
            "before the fence came %r" % (response,)

    def say(self, line, era=None):
        """Send the message that one transcript line stands for (see `play`)."""
        self.send(message(line, era == "modern"))

    def ask(self, line, era=None):
        """Send a request as `say` does; return the next message, which responds."""
        self.say(line, era)
        return self.recv()

    def close_sending(self):
        """Close the sending side: mcp_min reads the end of input."""
        self._writer.close()

    def hang_up(self):
        """Close the sending side and return every message that still comes."""
        with contextlib.suppress(OSError):
            self.close_sending()
        return list(iter(self.recv, None))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        remaining = self.hang_up()
        self._thread.join(PATIENCE)
        assert exc[0] or not remaining, "unexpected at the end: %r" % (remaining,)


class ServingWire(Wire):
    """A connection to a server that a thread of the test serves over two pipes."""

    def __init__(self, server):
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        self.failure = None
        self._serving = threading.Thread(target=self._serve, args=(
            server, os.fdopen(server_reads, "rb"), os.fdopen(server_writes, "wb")))
        self._serving.start()
        super().__init__(os.fdopen(client_writes, "wb"), os.fdopen(client_reads, "rb"))

    def _serve(self, server, reader, writer):
        try:
            server.serve(reader, writer)
        except BaseException as error:  # noqa: BLE001 - raised where the test ends
            self.failure = error
        finally:
            reader.close()
            with contextlib.suppress(OSError):
                writer.close()

    def __exit__(self, *exc):
        try:
            super().__exit__(*exc)
        finally:
            self._serving.join(PATIENCE)
            assert not self._serving.is_alive(), "serve() did not return"
        if self.failure:
            raise self.failure


wire = ServingWire  # serves a server in a thread


class process(Wire):
    """A connection to a real process that runs ``code``.

    Interpreter ``flags`` and Popen ``options`` may be given; ``-I -S`` starts fastest.
    """
    HEAD = "import sys; sys.path.insert(0, %r)\nimport mcp_min, os, threading, time\n" \
           "from mcp_min import Server, Context\n" % HERE

    def __init__(self, code, *flags, **options):
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE,
                   "stderr": self._stderr, **options}
        self.child = subprocess.Popen(
            [sys.executable, *(flags or ("-I", "-S")), "-c",
             self.HEAD + textwrap.dedent(code)], **options)
        self.pid, no_stream = self.child.pid, io.BytesIO()
        super().__init__(self.child.stdin or no_stream, self.child.stdout or no_stream)

    def exit(self):
        """Wait until the process has ended; return its exit status."""
        return self.child.wait(PATIENCE)

    @property
    def stderr(self):
        """All that the process has written to stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace").replace("\r\n", "\n")

    def __exit__(self, *exc):
        try:
            if self.child.poll() is None and exc[0]:
                self.child.kill()
            super().__exit__(*exc)
            self.exit()
        finally:
            self.child.kill()
            self.child.wait()
            if exc[0]:
                sys.stderr.write(self.stderr)
            self._stderr.close()


class BareWord(str):
    """A word of a transcript without quotes, where a JSON string has them."""


def split_tokens(text):
    """``7 tools/call {"name": "x"}`` is the number 7, a bare word and an object."""
    tokens, at, decode = [], 0, json.JSONDecoder().raw_decode
    while at < len(text):
        try:
            value, end = decode(text, at)
            if text[end:end + 1].strip():
                raise ValueError("2025-11-25 is a word, not the number 2025")
        except ValueError:
            end = re.compile(r"\S+").match(text, at).end()
            value = BareWord(text[at:end])
        tokens.append(value)
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return tokens


def message(text, modern=False):
    """The JSON-RPC message that a transcript line stands for (see `play`)."""
    text = text.replace('"@', '"' + KEY)
    if text.startswith("batch "):
        return [message(part.strip(), modern) for part in text[6:].split(" | ")]
    first, *others = tokens = split_tokens(text)
    if not isinstance(first, BareWord) and not others:
        return {"jsonrpc": "2.0", **first} if isinstance(first, dict) else first
    result = {"jsonrpc": "2.0"}
    if not isinstance(first, BareWord) or first.startswith(("$", "...")):
        result["id"] = str(first) if isinstance(first, BareWord) else first
        tokens = others
    if tokens[0] == "modern":
        modern, tokens = True, tokens[1:]
    head, *others = tokens
    if isinstance(head, dict):
        result["result"] = head
    elif isinstance(head, int):
        result["error"] = {"code": head}
        for part in others:
            result["error"]["message" if isinstance(part, str) else "data"] = part
    else:
        result["method"] = str(head)
        params = {}
        if head == "initialize":
            version = str(others.pop(0)) if others else LATEST
            params = {"protocolVersion": version, "capabilities": ALL_CAPABILITIES,
                      "clientInfo": CLIENT_INFO}
        if others or params:
            result["params"] = {**params, **(others[0] if others else {})}
        if modern and "id" in result:
            params = result.get("params", {})
            result["params"] = {
                **params, "_meta": {**MODERN_META, **params.get("_meta", {})}}
    return result


def matches(expected, value, names, exact=False):
    """Does ``value`` match the pattern ``expected``?  `play` lists what a pattern may
    hold.  exact: an object may have no other members."""
    if isinstance(expected, str) and expected.startswith("$"):
        return matches(names.setdefault(expected, value), value, names, True)
    if isinstance(expected, str) and expected[:3] == expected[-3:] == "...":
        return expected == "..." or isinstance(value, str) and expected[3:-3] in value
    if isinstance(expected, dict):
        if not isinstance(value, dict) or exact and expected.keys() != value.keys():
            return False
        return all(key in value and matches(expected[key], value[key], names, exact)
                   for key in expected)
    if isinstance(expected, list):
        if not isinstance(value, list):
            return False
        if expected[-1:] == ["..."]:
            expected, value = expected[:-1], value[:len(expected) - 1]
        return len(expected) == len(value) and all(
            matches(*pair, names, exact) for pair in zip(expected, value))
    return expected == value and isinstance(expected, bool) == isinstance(value, bool)


def message_matches(expected, received, names, exact=False):
    """`matches` for whole messages.  Both must have the same of the members id, method,
    result and error; the messages of a batch may come in any order."""
    if isinstance(expected, list):
        return isinstance(received, list) and len(expected) == len(received) and all(
            any(message_matches(pattern, element, names, exact) for element in received)
            for pattern in expected)
    members = {"id", "method", "result", "error"}
    if not isinstance(received, dict) or (
            members & expected.keys() != members & received.keys()):
        return False
    if exact and "result" in expected:
        return expected.get("id") == received.get("id") and matches(
            expected["result"], received["result"], names, True)
    text = expected["error"].get("message", "...") if "error" in expected else "..."
    if not text.startswith(("$", "...")):  # part of the message is enough
        error = {**expected["error"], "message": "...%s..." % text}
        expected = {**expected, "error": error}
    return matches(expected, received, names, exact)


def substitute(value, names):
    """``value`` with every ``"$name"`` in it replaced."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [substitute(item, names) for item in value]
    if isinstance(value, dict):
        return {key: substitute(item, names) for key, item in value.items()}
    return value


MARKS = (">", ">>", "<", "<=", "<*", "<L", "<M", "!")


def play(peer, script, era=None, **names):
    """Hold the conversation ``script`` with a Server, or over an open Wire.

        > 1 tools/call {"name": "f"}      the client sends a request with id 1
        > notifications/initialized       without an id: a notification
        > $q {"action": "accept"}         the response to the server's request $q
        > $q -1 "no"                      an error response
        > {"id": 1, "method": "ping"}     a whole message ("jsonrpc" is added)
        >> hello                          this line, unchanged
        > 1 modern tools/list             a stateless request: `_meta` is added
        > 1 initialize 2025-03-26         `initialize` with all client capabilities
        > handshake 2025-03-26            the same; its result comes; `initialized`
        > batch 1 ping | 2 tools/list     a batch; `<` receives one in any order
        > EOF                             the client closes its sending side
        < 1 {"tools": [{"name": "f"}]}    next comes a result with these members
        <= 1 {}                           next comes exactly this result
        < 1 -32601 "text" {"data": 1}     next comes this error, with this text
        < notifications/progress {…}      next comes this notification
        < $q elicitation/create {…}       next comes a request, whose id is named $q
        <* 2 {}                           adjacent lines with <* come in any order
        <L / <M                           only in the legacy / the modern era
        < fence                           no message comes before the result of a ping
        ! name                            call the Python function given as name=…
        # text                            a comment

    A line without a mark continues the line before it.  In a pattern, ``"..."`` is any
    value (as the last item of a list: any further items), ``"...x..."`` is any text
    that contains x, ``"@x"`` is ``"io.modelcontextprotocol/x"``, and ``"$x"`` is the
    value that first matched this name.  Names are also replaced in what is sent.  With
    ``era`` "legacy" the handshake comes first, with "modern" every request gets the
    `_meta`.  After the last line nothing more may come: not before a fence and, with a
    Server, not until `serve` returns.  Returns the named values.
    """
    names = {"$" + name: value for name, value in names.items()}
    lines = script_lines(script)
    if era == "legacy":
        lines.insert(0, "> handshake")
    if isinstance(peer, Wire):
        run_script(peer, lines, era, names)
    else:
        with wire(peer) as client:
            run_script(client, lines, era, names)
    return {name[1:]: value for name, value in names.items()}


def script_lines(script):
    """The lines of a script without comments, each with its continuations."""
    lines = []
    for line in map(str.strip, script.splitlines()):
        if line.split(" ")[0] in MARKS:
            lines.append(line)
        elif line and not line.startswith("#"):
            lines[-1] += " " + line
    return lines


def run_script(client, lines, era, names):
    expected = []  # of neighbouring lines: mark and pattern
    for number, line in enumerate(lines, 1):
        mark, _, text = line.partition(" ")
        if mark in ("<L", "<M"):
            if (mark == "<M") != (era == "modern"):
                continue
            mark = "<"
        if (mark, text) == ("<", "fence"):
            client.fence()
        elif mark in ("<", "<=", "<*"):
            expected.append((mark, message(text)))
            if mark == "<*" and lines[number:] and lines[number].startswith("<*"):
                continue
            receive_all(client, expected, names, "line %d\n  %s" % (number, line))
            expected = []
        else:
            perform(client, mark, text, era, names)
    if "> EOF" not in lines:
        client.fence()


def receive_all(client, expected, names, where):
    """Receive a message for each (mark, pattern) of ``expected``, in any order."""
    expected = list(expected)
    while expected:
        received = client.recv()
        for row in expected:
            mark, pattern = row
            new_names = dict(names)
            if message_matches(pattern, received, new_names, mark == "<="):
                names.update(new_names)
                expected.remove(row)
                break
        else:
            raise AssertionError("%s\nexpected  %s\nreceived  %s" % (
                where, json.dumps([pattern for _, pattern in expected]),
                json.dumps(received)))


def perform(client, mark, text, era, names):
    """Act on a line of a script that expects no message."""
    if mark == "!":
        names["$" + text]()
    elif mark == ">>":
        client.send(text.encode() + b"\n")
    elif text == "EOF":
        client.close_sending()
    elif text.startswith("handshake"):
        response = client.ask(text.replace("handshake", "0 initialize"))
        assert "result" in response, response
        client.say("notifications/initialized")
    else:
        client.send(substitute(message(text, era == "modern"), names))


def both_eras(test):
    """Run the test once per era.  It takes ``era``, which it passes to `play`."""
    @functools.wraps(test)
    def run_in_both(self):
        for era in ("legacy", "modern"):
            with self.subTest(era=era):
                test(self, era)
    return run_in_both


# ======================================================================================
# 3, 4  Messages, and the streams that carry them
# ======================================================================================

def zoo(**options):
    """A small server with tools, a prompt, a resource and a completion."""
    server = Server("zoo", version="1", **options)

    @server.tool
    def echo(text: str) -> str:
        return text

    @server.tool
    def same(value: dict) -> dict:
        return value

    @server.prompt
    def greet(name: str) -> str:
        return "Hello, " + name

    @server.resource("zoo://sign")
    def sign() -> str:
        return "open"

    @server.completion("greet", "name")
    def names(value: str):
        return [name for name in ("Ada", "Alan") if name.startswith(value)]

    return server


def raw(text, modern=False):
    """The bytes of the line that a transcript line stands for."""
    return json.dumps(message(text, modern)).encode() + b"\n"


def line(id, method, **params):
    """A request as bytes, without the newline."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}' % (
        id, method.encode(), json.dumps(params).encode())


def echo_line(id, text):
    """A call of the tool `echo`; the bytes ``text`` stand in the line unescaped."""
    return (b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
            b'{"name":"echo","arguments":{"text":"%s"}}}' % (id, text))


def nested_line(id, opening, closing, depth):
    """A call of the tool `same` whose argument is nested ``depth`` times."""
    return (b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"same",'
            b'"arguments":{"value":{"x":' % id + opening * depth + b"0"
            + closing * depth + b"}}}}")


PING = line(1, "ping")
PARSE_ERROR = "< null -32700"


class Test3Messages(unittest.TestCase):
    """Each line gets a response or an error, and the session goes on."""

    # The name of the case, the bytes sent, the message expected next; without one, a
    # fence is expected.
    LINES = (
        ("empty line", b"\n", ""),
        ("blank line", b"  \t \r\n", ""),
        ("CRLF ends a line", PING + b"\r\n", "<= 1 {}"),
        ("CR does not end a line", PING + b"\r" + PING + b"\n", PARSE_ERROR),
        ("U+2028, U+2029 and U+0085 are text",
         echo_line(6, "a\u2028b\u2029c\u0085d".encode()) + b"\n",
         '< 6 {"content": [{"type": "text", "text": "a\\u2028b\\u2029c\\u0085d"}]}'),
        ("not UTF-8", echo_line(3, b"\xff\xfe") + b"\n", PARSE_ERROR),
        ("encoded surrogate", echo_line(3, b"\xed\xa0\x80") + b"\n", PARSE_ERROR),
        ("escaped lone surrogate", echo_line(9, b"\\ud800") + b"\n",
         '< 9 {"content": [{"text": "\\ud800"}]}'),
        ("truncated message", PING[:-1] + b"\n", PARSE_ERROR),
        ("two messages on a line", PING + PING + b"\n", PARSE_ERROR),
        ("a header of another framing", b"Content-Length: 52\n", PARSE_ERROR),
        ("NaN", line(1, "ping", x=float("nan")) + b"\n", PARSE_ERROR),
        ("-Infinity", line(1, "ping", x=-float("inf")) + b"\n", PARSE_ERROR),
        ("id of 5,000 digits",
         b'{"jsonrpc":"2.0","method":"ping","id":' + b"7" * 5000 + b"}\n", PARSE_ERROR),
        ("deep lists", b"[" * 100000 + b"]" * 100000 + b"\n", PARSE_ERROR),
        ("deep objects", b'{"a":' * 100000 + b"\n", PARSE_ERROR),
        ("deep arguments", nested_line(5, b'{"a":[', b"]}", 50000) + b"\n",
         "< 5 -32700"),
        ("deep nesting behind a quoted bracket",
         nested_line(5, b'{"\\"]]}":[', b"]}", 1000) + b"\n", "< 5 -32700"),
        ("deep arguments without an id",
         nested_line(5, b"[", b"]", 1000).replace(b'"id":5,', b"") + b"\n",
         PARSE_ERROR),
        ("deep arguments, an id that is not JSON",
         nested_line(5, b"[", b"]", 1000).replace(b":5,", b":007,") + b"\n",
         PARSE_ERROR),
        ("deep arguments, an id with a control character",
         nested_line(5, b"[", b"]", 1000).replace(b":5,", b':"\t",') + b"\n",
         PARSE_ERROR),
        ("100 levels are allowed", nested_line(17, b"[", b"]", 100) + b"\n", "< 17 {}"),
        ("brackets in a string are not levels",
         echo_line(17, b'\\"' + b"[{" * 2000) + b"\n", "< 17 {}"),
        ("unescaped tab in a string", echo_line(1, b"\t") + b"\n", PARSE_ERROR),
        ("the last of duplicate keys counts",
         b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}\n', "<= 2 {}"),
        ("a number too big for a float",
         nested_line(8, b"", b"", 1).replace(b'"x":0', b'"x":1e999') + b"\n",
         '< 8 {"structuredContent": {"x": null}}'),
    )

    def test_a_malformed_line_gets_one_error_and_the_session_goes_on(self):
        for era in ("legacy", "modern"):
            with wire(zoo()) as client:
                if era == "legacy":
                    play(client, "> handshake")
                for label, sent, expected in self.LINES:
                    if era == "modern" and b"tools/call" in sent:
                        sent = sent.replace(b'"params":{', b'"params":{"_meta":%s,'
                                            % json.dumps(MODERN_META).encode())
                    with self.subTest(label, era=era):
                        client.send(sent)
                        play(client, expected or "< fence")

    def test_deep_nesting_does_not_overflow_a_small_thread_stack(self):
        self.addCleanup(threading.stack_size, threading.stack_size(256 * 1024))
        with wire(zoo()) as client:
            client.send(nested_line(1, b"[", b"]", 100000) + b"\n")
            play(client, "< 1 -32700")

    def test_ten_megabytes_arrive_intact(self):
        with wire(zoo()) as client:
            play(client, "> handshake")
            text = "0123456789abcde\n" * (10 << 16)
            client.say('21 tools/call {"name": "echo", "arguments": {"text": %s}}'
                       % json.dumps(text))
            self.assertEqual(client.recv()["result"]["content"][0]["text"], text)

    def test_a_line_that_is_too_long_is_skipped(self):
        for limit, options in (16 << 20, {}), (1000, {"max_message_bytes": 1000}):
            with self.subTest(limit), wire(zoo(**options)) as client:
                client.send(PING + b" " * (limit - len(PING)) + b"\n")
                play(client, "<= 1 {}")
                client.send(PING + b" " * (limit + 1 - len(PING)) + b"\n")
                play(client, "< 1 -32801")
        with wire(zoo(max_message_bytes=1000)) as client:
            client.send(b"x" * 5000)
            client.send(b"x" * 5000 + b"\n")
            play(client, "< null -32801")

    @unittest.skipUnless(sys.implementation.name == "cpython", "no tracemalloc")
    def test_to_measure_the_depth_of_a_line_takes_little_memory(self):
        """Fails (46 times the line) if all strings of the line are collected."""
        import tracemalloc
        deep = b"[" * 201 + b'""' * (1 << 19)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertIsInstance(raised(mcp_min.decode, deep, 200), McpError)
        self.assertLess(tracemalloc.get_traced_memory()[1], 10 * len(deep))

    @clause("2025-11-25/basic/transports", "**MUST NOT** contain embedded newlines")
    def test_text_is_escaped_so_that_a_line_is_ascii_without_a_newline(self):
        play(zoo(), r"""
            > 1 tools/call {"name": "echo", "arguments": {"text":
                "a\nb\r\u2028\u0000é😀"}}
            < 1 {"content": [{"text": "a\nb\r\u2028\u0000é😀"}]}
            """, era="modern")

    def test_serve_takes_streams_in_memory(self):
        """A byte order mark is ignored, and the last line needs no newline."""
        written = io.BytesIO()
        zoo().serve(io.BytesIO(b"\xef\xbb\xbf" + PING), written)
        self.assertEqual(checked(written.getvalue()), message("1 {}"))

    def test_serve_takes_one_stream_of_a_socket_for_both_directions(self):
        client, server = socket.socketpair()
        with client, server, server.makefile("rwb") as stream:
            client.sendall(PING + b"\n")
            client.shutdown(socket.SHUT_WR)
            zoo().serve(stream, stream)
            self.assertEqual(checked(client.recv(1000)), message("1 {}"))

    @unittest.skipIf(os.name == "nt", "a pipe of 4096 bytes")
    def test_a_slow_reader_receives_whole_lines_of_unbuffered_streams(self):
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        os.write(client_writes, b"\n".join([
            json.dumps(message("0 initialize")).encode(),
            echo_line(1, b"x" * 90000)[:60000]]))
        with open(server_reads, "rb", 0) as reader, (
                open(server_writes, "wb", 0)) as writer:
            serving = threading.Thread(target=zoo().serve, args=(reader, writer))
            serving.start()
            os.write(client_writes, echo_line(1, b"x" * 90000)[60000:])
            os.close(client_writes)
            received = bytearray()
            while received.count(b"\n") < 2:
                received += os.read(client_reads, 100)
            serving.join()
        os.close(client_reads)
        response = checked(bytes(received.splitlines(True)[1]))
        self.assertEqual(response["result"]["content"][0]["text"], "x" * 90000)


# ======================================================================================
# 5  Connection
# ======================================================================================

class UnreadWire(ServingWire):
    """A connection to a server whose client reads nothing before `resume()`."""

    def __init__(self, server):
        self._resumed = threading.Event()
        self.resume = self._resumed.set
        super().__init__(server)

    def _read(self, reader):
        self._resumed.wait()
        super()._read(reader)

    def __exit__(self, *exc):
        self.resume()
        super().__exit__(*exc)


def lab(**options):
    """A server with a tool `hold`, which waits for the step `go`, and a tool `wait`,
    which waits to be cancelled.  ``server.steps`` are for `play`."""
    server = Server("lab", **options)
    server.go, server.ran, server.reasons = gate("go"), queue.Queue(), []
    server.began, server.cancelled = queue.Queue(), queue.Queue()
    server.steps = {
        "go": server.go.set, "ran": lambda: server.ran.get(timeout=PATIENCE),
        "began": lambda: server.began.get(timeout=PATIENCE),
        "cancelled": lambda: server.cancelled.get(timeout=PATIENCE)}

    @server.tool
    def hold(n: int) -> int:
        server.ran.put(n)
        server.go.wait()
        return n

    @server.tool
    def wait(ctx: Context, late: bool = False) -> str:
        server.began.put(1)
        if late:
            server.go.wait()
        try:
            ctx.wait(60)
        except Exception:  # noqa: BLE001 - a cancellation is none
            return "caught"
        except Cancelled:
            for use in ctx.check_cancelled, lambda: ctx.report_progress(99):
                try:
                    use()
                except Cancelled:
                    assert ctx.cancelled
            server.reasons.append(ctx.cancel_reason)
            server.cancelled.put(1)
            raise
        return "was not cancelled"

    @server.tool
    def report(times: int, ctx: Context) -> str:
        for n in range(times):
            ctx.report_progress(n)
        return "done"

    @server.tool
    async def wait_async():
        server.began.put(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            server.cancelled.put(1)
            raise
    return server


class Test5Connection(unittest.TestCase):
    """One end of a connection: ids, responses, cancellation, progress."""

    # -- the envelope ------------------------------------------------------------------

    @clause("2025-11-25/basic/index", "the ID **MUST NOT** be `null`")
    @both_eras
    def test_an_invalid_message_gets_an_error_with_its_id(self, era):
        for id, *lines in (
                ("null", "1", '"x"', "null", "true", "{}"),
                ("null", *('{"jsonrpc": "2.0", "id": %s, "method": "ping"}' % invalid
                           for invalid in ("null", "true", "1.5", "{}", "[1]"))),
                ("99", '{"id": 99, "method": "ping"}'),  # no "jsonrpc", or another
                ("7", '{"jsonrpc": "1.0", "id": 7, "method": "ping"}'),
                ('"seven"', '{"jsonrpc": 2.0, "id": "seven", "method": "ping"}'),
                ("8", '{"jsonrpc": "2.0", "id": 8}',  # neither a request nor a response
                 '{"jsonrpc": "2.0", "id": 8, "params": {}}',
                 '{"jsonrpc": "2.0", "id": 8, "method": "ping", "result": {}}',  # both
                 '{"jsonrpc": "2.0", "id": 8, "method": 1}',
                 '{"jsonrpc": "2.0", "id": 8, "method": null}')):
            play(zoo(), "\n".join(
                ">> %s\n< %s -32600" % (line, id) for line in lines), era=era)

    @both_eras
    def test_an_unknown_method_is_named_and_params_must_be_an_object(self, era):
        play(zoo(), """
            > 1 tools/fly {}
            < 1 -32601 {"method": "tools/fly"}
            > 2 notifications/initialized {}
            < 2 -32601 {"method": "notifications/initialized"}
            # the empty string is an unknown method
            > {"id": 10, "method": ""}
            <L 10 -32601 {"method": ""}
            <M 10 -32600
            > {"id": 19, "method": "ping", "params": [1]}
            < 19 -32602
            # null counts as none, and unknown members are ignored
            > {"id": 21, "method": "ping", "lang": "en", "params": null}
            <= 21 {}
            """, era=era)

    @clause("2026-07-28/basic/index", "The receiver **MUST NOT** send a response.")
    @both_eras
    def test_a_notification_gets_no_response(self, era):
        calls = []
        server = zoo()
        server.add_tool(lambda: calls.append(1), name="touch")
        play(server, """
            > notifications/unknown {"x": 1}
            > {"method": "notifications/initialized", "params": 7}
            > {"method": "notifications/progress", "params": {"progressToken": {}}}
            > {"method": "notifications/roots/list_changed", "params": "x"}
            > {"method": "tools/call", "params": {"name": "touch", "arguments": {}}}
            # responses to no request are ignored too
            > {"id": 5, "result": {}}
            > {"id": "fence 1", "result": {"x": 1}}
            > {"id": 5, "error": {"code": -1, "message": "no"}}
            > {"error": {"code": -32700, "message": "what?"}}
            """, era=era)
        self.assertEqual(calls, [])

    # -- ids ---------------------------------------------------------------------------

    @clause("2025-11-25/basic/index", "Result responses **MUST** include the same ID")
    def test_a_response_has_the_id_of_its_request(self):
        ids = ["", "1", -1, 0, 9007199254740993, 10 ** 30, " 7 ", "007", "1_0",
               "é\u2028😀", "x" * 10000, 1.0, -3.0]
        with wire(zoo()) as client:
            for id in ids:
                received = client.ask(json.dumps(id) + " ping")["id"]
                self.assertEqual(received, id)
                self.assertEqual(isinstance(received, str), isinstance(id, str))

    @both_eras
    def test_a_number_and_a_string_are_different_ids(self, era):
        """Fails if the cancellation of one affects the others."""
        server = lab()
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            > "1" tools/call {"name": "wait"}
            > "01" tools/call {"name": "hold", "arguments": {"n": 2}}
            > " 1 " tools/call {"name": "hold", "arguments": {"n": 3}}
            > "1.0" tools/call {"name": "hold", "arguments": {"n": 4}}
            > notifications/cancelled {"requestId": "1"}
            < fence
            ! go
            <* 1 {"content": [{"text": "1"}]}
            <* "01" {"content": [{"text": "2"}]}
            <* " 1 " {"content": [{"text": "3"}]}
            <* "1.0" {"content": [{"text": "4"}]}
            """, era=era, **server.steps)

    @clause("2026-07-28/basic/index",
            "The request ID **MUST NOT** match the ID of any other request the sender"
            " has issued and not yet received a response for.")
    @both_eras
    def test_an_id_in_flight_cannot_be_used_again(self, era):
        server = lab()
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            > 1 tools/call {"name": "hold", "arguments": {"n": 2}}
            < 1 -32600
            > 1.0 tools/call {"name": "hold", "arguments": {"n": 3}}
            < 1.0 -32600
            > {"id": 1, "method": "ping"}
            < 1 -32600
            ! go
            < 1 {"content": [{"text": "1"}]}
            """, era=era, **server.steps)
        self.assertEqual(list(server.ran.queue), [1])

    # -- batches -----------------------------------------------------------------------

    @clause("2025-11-25/basic/transports",
            "individual JSON-RPC requests, notifications, or responses.")
    def test_other_revisions_have_no_batches(self):
        for opening in "", "> handshake 2025-06-18", "> handshake 2025-11-25":
            with self.subTest(opening):
                play(zoo(), opening + """
                    > []
                    < null -32600
                    > batch 1 ping | notifications/initialized
                    < null -32600
                    """)

    def test_a_batch_of_the_first_revisions_gets_one_array_of_responses(self):
        for revision in LEGACY[:2]:
            with self.subTest(revision):
                play(zoo(), "> handshake " + revision + """
                    > batch 1 ping | "1" nope
                    < batch 1 {} | "1" -32601
                    > batch notifications/x | 9 {}
                    < fence
                    > batch notifications/x | 2 ping
                    < batch 2 {}
                    # each element is a message, or gets an error
                    > []
                    < null -32600
                    > [1, {}, [], {"id": 3}]
                    < batch null -32600 | null -32600 | null -32600 | 3 -32600
                    > batch 5 ping | 6 initialize
                    < batch 5 {} | 6 -32600
                    > batch 1 modern tools/list | 2 modern ping
                    < batch 1 {"resultType": "complete"} | 2 -32601
                    # whose responses would have to wait for the end of the stream
                    > batch 1 modern subscriptions/listen {"notifications": {}} | 2 ping
                    < batch 1 -32600 | 2 {}
                    """)

    def test_requests_of_a_batch_may_be_cancelled(self):
        """By the batch itself; the last one that it waits for; all of them.  Fails if
        the handlers of a batch run one by one, or a complete batch is not sent."""
        server = lab()
        play(server, """
            > handshake 2025-03-26
            > batch 1 tools/call {"name": "wait"} | 2 ping |
                notifications/cancelled {"requestId": 1}
            < batch 2 {}
            > batch 1 ping | 2 tools/call {"name": "wait", "arguments": {"late": true}}
            < fence
            > notifications/cancelled {"requestId": 2}
            < batch 1 {}
            > batch 1 tools/call {"name": "wait"}
            > batch notifications/cancelled {"requestId": 1}
            < fence
            ! go
            """, **server.steps)

    def test_a_batch_waits_for_its_slowest_request_and_delays_no_other_message(self):
        server = lab()
        play(server, """
            > handshake 2025-03-26
            > batch 1 tools/call {"name": "hold", "arguments": {"n": 1}} |
                2 tools/call {"name": "wait"} | 3 ping
            < fence
            ! began
            > 1 ping
            < 1 -32600
            > notifications/cancelled {"requestId": 2}
            ! cancelled
            < fence
            ! go
            < batch 1 {"content": [{"text": "1"}]} | 3 {}
            """, **server.steps)

    # -- cancellation ------------------------------------------------------------------

    @clause("2025-11-25/basic/utilities/cancellation",
            "Not send a response for the cancelled request")
    @clause("2026-07-28/basic/transports/stdio",
            "**MUST NOT** send any further messages for it")
    @both_eras
    def test_a_cancelled_request_gets_no_response(self, era):
        server = lab()
        play(server, """
            > 7 tools/call {"name": "wait", "_meta": {"progressToken": "t"}}
            ! began
            > notifications/cancelled {"requestId": 7, "reason": "changed my mind"}
            ! cancelled
            < fence
            # the id is free again; a coroutine is cancelled too
            > 7 tools/call {"name": "wait_async"}
            ! began
            > notifications/cancelled {"requestId": 7}
            ! cancelled
            < fence
            # a handler that waits only after its cancellation ends at once
            > 7 tools/call {"name": "wait", "arguments": {"late": true}}
            ! began
            > notifications/cancelled {"requestId": 7, "reason": 7}
            < fence
            ! go
            ! cancelled
            """, era=era, **server.steps)
        self.assertEqual(server.reasons, ["changed my mind", None])

    @both_eras
    def test_other_spellings_of_a_cancellation_are_understood(self, era):
        server = lab()
        for spelling in ('"cancelled", "params": {"requestId": 7}',
                         '"$/cancelRequest", "params": {"id": 7}',
                         '"$/cancelRequest", "params": {"requestId": 7}',
                         '"notifications/cancelled", "params": {"requestId": 7.0}'):
            with self.subTest(spelling):
                play(server, """
                    > 7 tools/call {"name": "wait"}
                    ! began
                    > {"method": %s}
                    ! cancelled
                    """ % spelling, era=era, **server.steps)

    @clause("2025-11-25/basic/utilities/cancellation",
            "Invalid cancellation notifications **SHOULD** be ignored")
    @both_eras
    def test_an_invalid_cancellation_is_ignored(self, era):
        server = lab()
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 7}}
            """ + "".join("> notifications/cancelled %s\n" % params for params in (
                '{"requestId": 2}', '{"requestId": "1"}', '{"requestId": true}', "{}",
                '{"requestId": 1.5}', '{"requestId": {"id": 1}}', '{"id": 1}')) + """
            > {"method": "notifications/cancelled", "params": [1]}
            < fence
            ! go
            < 1 {"content": [{"text": "7"}]}
            > notifications/cancelled {"requestId": 1}
            """, era=era, **server.steps)

    @clause("2025-11-25/basic/utilities/cancellation",
            "The `initialize` request **MUST NOT** be cancelled by clients")
    def test_initialize_cannot_be_cancelled(self):
        with wire(zoo()) as client:
            client.send(raw("1 initialize")
                        + raw('notifications/cancelled {"requestId": 1}'))
            play(client, '< 1 {"protocolVersion": "2025-11-25"}')

    @both_eras
    def test_a_request_that_is_cancelled_in_the_queue_never_runs(self, era):
        """Nor is anything sent for one that runs on: request 1."""
        server = lab(max_workers=1)
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            ! ran
            > 2 tools/call {"name": "hold", "arguments": {"n": 2}}
            > 3 tools/call {"name": "hold", "arguments": {"n": 3}}
            > notifications/cancelled {"requestId": 2}
            > notifications/cancelled {"requestId": 1}
            < fence
            ! go
            < 3 {}
            """, era=era, **server.steps)
        self.assertEqual(list(server.ran.queue), [3])

    @clause("2026-07-28/basic/patterns/cancellation",
            "Both parties **MUST** handle these race conditions gracefully")
    def test_a_cancellation_may_race_with_the_response(self):
        """Fails if the response and the cancellation can both pop the request from the
        table of requests in flight."""
        server, rounds, pinged = Server("s"), 150, set()

        @server.tool
        def quick(n: int, ctx: Context) -> int:
            ctx.wait(0)
            return n

        with switch_threads_often(), wire(server) as client:
            play(client, "> handshake")
            for n in range(rounds):
                client.say('%d tools/call {"name": "quick", "arguments": {"n": 1}}' % n)
                client.say('notifications/cancelled {"requestId": %d}' % n)
                if n % 3 == 0:   # the same id again: refused if it is still in flight
                    client.say("%d ping" % n)
                    pinged.add(n)
            counts = collections.Counter(
                response["id"] for response in client.hang_up())
        for n in range(rounds):
            self.assertIn(counts.pop(n, 0), (1, 2) if n in pinged else (0, 1), n)
        self.assertEqual(counts, {})

    def test_a_cancellation_that_finds_its_request_answered_does_nothing(self):
        """Fails (the other response of the batch is lost) if a response that comes just
        before the effect of the cancellation is counted again.  Looks inside."""
        server, cancel = lab(), mcp_min.IncomingRequest.cancel
        waiting = gate("the client waits for the batch")
        server.tool(lambda: waiting.wait() and "", name="last")

        def cancel_too_late(request, reason=None):
            server.go.set()
            wait_until(lambda: request.id not in request.connection.active)
            return cancel(request, reason)

        with wire(server) as client, mock.patch.object(
                mcp_min.IncomingRequest, "cancel", cancel_too_late):
            play(client, """
                > handshake 2025-03-26
                > batch 1 tools/call {"name": "hold", "arguments": {"n": 1}} |
                    2 tools/call {"name": "last"}
                ! ran
                > notifications/cancelled {"requestId": 1}
                < fence
                ! waiting
                < batch 1 {} | 2 {}
                """, waiting=waiting.set, **server.steps)

    # -- the reading thread ------------------------------------------------------------

    @UNIX
    def test_reading_goes_on_while_the_client_does_not_read(self):
        """All workers are busy, and the pipe is full of results of pings."""
        server, ping = lab(max_workers=2), json.dumps("x" * 60000) + " ping"
        with UnreadWire(server) as client:
            client.say("0 initialize")
            for n in range(1, 6):  # three wait in the queue
                client.say('%d tools/call {"name": "wait"}' % n)
            for _ in range(3):
                client.say(ping)
            server.steps["began"]()
            for n in range(1, 6):
                client.say('notifications/cancelled {"requestId": %d}' % n)
            server.steps["cancelled"]()
            client.resume()
            self.assertEqual([len(str(client.recv()["id"])) for _ in range(4)],
                             [1, 60000, 60000, 60000])

    def test_reading_goes_on_when_a_handler_blocks_after_a_quiet_time(self):
        """Fails (the ping gets no result) if a request does not wake the standby."""
        server = lab()
        play(server, """
            > 1 tools/list
            < 1 {}
            ! pause
            > 2 tools/call {"name": "hold", "arguments": {"n": 2}}
            < fence
            ! go
            < 2 {}
            """, era="legacy", pause=lambda: time.sleep(0.1), **server.steps)

    def test_a_handler_that_waits_hands_the_reading_over_at_once(self):
        """Fails (no ping gets its result) if the standby only looks now and then."""
        server = lab()

        @server.tool
        def wait_later(ctx: Context):
            time.sleep(0.05)  # until the standby waits
            ctx.wait(0.01)
            ctx.wait(60)

        with mock.patch.object(mcp_min, "LOOK_SECONDS", 60):
            for name in "wait_later", "wait":
                play(server, """
                    > 1 tools/call {"name": "%s"}
                    < fence
                    > notifications/cancelled {"requestId": 1}
                    """ % name, era="legacy")

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_forked_child_that_returns_from_a_handler_ends(self):
        """Fails if it waits for a connection that it has no thread to read."""
        with process("""
                server = Server("s")
                server.tool(lambda: os.fork(), name="fork")
                server.run(threaded=False)
                """) as child:
            play(child, "> handshake")
            result = child.ask('1 tools/call {"name": "fork"}')["result"]
            gone(int(result["content"][0]["text"]))
            child.fence()
            child.hang_up()
            self.assertEqual(child.exit(), 0)
            self.assertNotIn("Traceback", child.stderr)

    # -- a client's deadlines ----------------------------------------------------------

    def test_max_timeout_holds_while_a_slow_handler_is_told_of_progress(self):
        """Fails (with the result) if a response that waits for this has no deadline."""
        go = threading.Event()
        with Client(lab(), max_timeout=0.3, progress_handler=(
                lambda *progress: go.wait(PATIENCE))) as client:
            call = client.submit_tool("report", {"times": 50})
            self.assertIsInstance(call.exception(PATIENCE / 2), RequestTimeout)
            go.set()

    def test_a_response_in_time_is_no_timeout_however_slow_its_handler_is(self):
        """Fails (with RequestTimeout) if the timeout goes on after the response."""
        with Client(lab(), progress_handler=(
                lambda *progress: time.sleep(1.7))) as client:
            result = client.call_tool("report", {"times": 1}, timeout=1.5)
        self.assertEqual(result.text, "done")

    def test_the_earlier_of_two_deadlines_is_kept(self):
        """Fails if the timer, which sleeps until the first deadline, is not woken."""
        with Client(lab()) as client:
            first = client.submit_tool("wait", timeout=2 * PATIENCE)
            second = client.submit_tool("wait", timeout=0.2)
            self.assertIsInstance(second.exception(PATIENCE), RequestTimeout)
            self.assertTrue(first.cancel())

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk_under_the_trace_stops_neither_end(self):
        """Fails (an end goes on for ever, or a server is left) if closing the trace
        raises an error, or a line that cannot be written does."""
        with mock.patch.dict(os.environ, MCP_MIN_TRACE="/dev/full"):
            with process("""
                    server = Server("s")
                    server.tool(lambda: "x", name="f")
                    server.run()
                    """) as child:
                play(child, """
                    > handshake
                    > 1 tools/call {"name": "f"}
                    < 1 {"content": [{"text": "x"}]}
                    """)
                child.hang_up()
                self.assertEqual(child.exit(), 0)
            with Client(fake()) as client:
                self.assertEqual(client.call_tool("f").text, "ok")
            self.assertEqual(client.exit_code, 0)

    # -- what waits --------------------------------------------------------------------

    @UNIX
    def test_who_sends_waits_while_a_client_does_not_read(self):
        """Fails (the connection is closed) if the queue grows without limit, or (`hello`
        has no result) if a report, a message or a result of an async handler is written
        on the thread of the event loop, which all connections share."""
        server, talking, all_talk = Server("s"), set(), gate("all talk")

        def talks(ctx):
            for n in range(20):
                ctx.info("x" * 50000)
                ctx.report_progress(n)
            talking.add(ctx.request_id)
            if len(talking) == 3:  # of which two are async
                all_talk.set()

        @server.tool
        def talk(ctx: Context) -> str:
            for _ in range(10):
                talks(ctx)
            talking.add("the end")
            return "said"

        @server.tool
        async def talk_async(ctx: Context) -> str:
            talks(ctx)
            await ctx.info("the last")  # waits for room
            return "y" * 200000

        @server.tool
        async def hello() -> str:
            return "hello"

        call = '%d tools/call {"name": "%s", "_meta": {"progressToken": %d}}'
        with mock.patch.multiple(mcp_min, HIGH_WATER_BYTES=1 << 18, MAX_UNREAD_BYTES=(
                6 << 20)), UnreadWire(server) as deaf:
            deaf.say("0 initialize")
            for n, name in enumerate(("talk_async", "talk_async", "talk_async", "talk")):
                deaf.say(call % (n + 1, name, n))
            all_talk.wait()
            play(server, """
                > 1 tools/call {"name": "hello"}
                < 1 {"content": [{"text": "hello"}]}
                """, era="legacy")
            self.assertNotIn("the end", talking)
            deaf.resume()
            missing = {*range(5)}
            while missing:
                missing.discard(deaf.recv().get("id"))

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_the_standby_sleeps_while_nothing_is_to_do(self):
        """Fails if it looks every 4 ms for a reader that is kept."""
        def switches(pid):
            total = 0
            for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
                total += int(re.search(r"\nvol\w+:\s+(\d+)", status.read_text())[1])
            return total

        def is_quiet(pid):
            before = switches(pid)
            time.sleep(0.2)  # 50 looks
            return switches(pid) - before < 10

        with process("""
                server = Server("s")
                server.tool(lambda: "", name="f")
                server.run()
                """) as child:
            play(child, "> handshake")
            child.ask('1 tools/call {"name": "f"}')
            wait_until(lambda: is_quiet(child.pid), "the standby sleeps")

    # -- results and errors ------------------------------------------------------------

    def test_an_unusable_error_or_result_gets_an_error_response(self):
        """Fails (the session ends) if its exception leaves the code that responds."""
        class ErrorWithoutCode(McpError):
            def __init__(self):
                pass

        class BrokenMapping(dict):
            def items(self):
                raise KeyError("no items")

        server = Server("s")

        @server.tool
        def error() -> str:
            raise ErrorWithoutCode

        server.tool(name="result")(
            lambda: mcp_min.ToolResult("x", meta=BrokenMapping(a=1)))
        play(server, """
            > 1 tools/call {"name": "error"}
            < 1 -32603
            > 2 tools/call {"name": "result"}
            < 2 -32603 "The result is not JSON"
            """, era="legacy")

    def test_answers_notifications_and_the_end_pass_while_every_worker_waits(self):
        """Fails (it hangs) if a worker is needed to handle a response, to write, or to
        end the waiting; or (no response) if a drain without limit waits for nobody."""
        server = Server("s", max_workers=2, drain_seconds=math.inf)

        @server.tool
        def ask(ctx: Context) -> str:
            try:
                return ctx.elicit("Well?", str).data
            finally:
                time.sleep(0.02)

        with quiet() as stderr:
            play(server, """
                > 1 tools/call {"name": "ask"}
                < $a elicitation/create
                > 2 tools/call {"name": "ask"}
                < $b elicitation/create
                ! change
                < notifications/tools/list_changed
                > $a {"action": "accept", "content": {"value": "one"}}
                < 1 {"content": [{"text": "one"}]}
                > 3 tools/call {"name": "ask"}
                < $c elicitation/create
                > EOF
                <* 2 {"isError": true}
                <* 3 {"isError": true}
                """, era="legacy", change=lambda: server.add_tool(raw, name="new"))
        self.assertEqual(stderr.getvalue(), "")  # this is not an error

    def test_a_writer_that_is_not_a_file_may_return_none(self):
        """Fails (nothing more is written) if None is taken for "would block"; or (b"",
        the end of a datagram stream) if a batch always gets a response."""
        written = []
        writer = mock.Mock(spec=["write", "flush"])
        writer.write.side_effect = lambda data: written.append(bytes(data))
        zoo().serve(io.BytesIO(b"".join(map(raw, (
            "1 initialize 2025-03-26", "batch notifications/x", "2 ping", "3 ping")))),
            writer)
        self.assertNotIn(b"", written)
        ids = [checked(line)["id"] for line in b"".join(written).splitlines(True)]
        self.assertEqual(ids, [1, 2, 3])

    def test_the_error_of_an_async_handler_is_logged_with_its_cause(self):
        server = Server("s")

        @server.tool
        async def fail():
            try:
                {}["the cause"]
            except KeyError as error:
                raise ValueError("the fault") from error

        with quiet() as stderr, Client(server) as client:
            client.call_tool("fail", raise_on_error=False)
        self.assertRegex(stderr.getvalue(), "(?s)the cause.*direct cause.*the fault")

    # -- progress ----------------------------------------------------------------------

    @clause("2025-11-25/basic/utilities/progress",
            "Progress tokens **MUST** be a string or integer value")
    @clause("2026-07-28/basic/patterns/progress",
            "The `progress` value **MUST** increase with each notification, even if "
            "the total is unknown.")
    @both_eras
    def test_progress_increases_and_needs_a_token(self, era):
        server = Server("s")

        @server.tool
        def work(ctx: Context):
            ctx.report_progress(0.5, 4, "half way")
            for progress in 1, 1, 0, -1, 2, 2.0, 2.25, float("nan"), 3:
                ctx.report_progress(progress)

        call = '> 1 tools/call {"name": "work", "_meta": {"progressToken": %s}}\n'
        for token in "0", '""', '"4"':
            play(server, call % token + """
                < notifications/progress {"progressToken": %s, "progress": 0.5,
                    "total": 4, "message": "half way"}
                < notifications/progress {"progress": 1}
                < notifications/progress {"progress": 2}
                < notifications/progress {"progress": 2.25}
                < notifications/progress {"progress": 3}
                < 1 {}
                """ % token, era=era)
        for token in "true", "1.5", "null", "{}":
            play(server, call % token + "< 1 {}", era=era)

    @clause("2026-07-28/basic/patterns/progress",
            "Progress notifications **MUST** stop after completion")
    def test_progress_of_several_threads_increases_until_the_response(self):
        """Three threads report while the handler returns.  Fails if the progress is
        compared, or queued, outside of the lock that proves the request in flight."""
        server, rounds, reporters = Server("s"), 30, []

        @server.tool
        def work(ctx: Context):
            count, running = iter(range(1, 300)), threading.Semaphore(0)

            def report():
                for progress in count:
                    with contextlib.suppress(Cancelled):
                        ctx.report_progress(progress)
                    running.release()
            for _ in range(3):
                reporters.append(threading.Thread(target=report))
                reporters[-1].start()
            for _ in range(30):
                running.acquire()

        finished, last = set(), {}
        with switch_threads_often(), wire(server) as client:
            play(client, "> handshake")
            for n in range(rounds):
                client.say('%d tools/call {"name": "work", '
                           '"_meta": {"progressToken": %d}}' % (n, n))
            while len(finished) < rounds:
                received = client.recv()
                if "id" in received:
                    finished.add(received["id"])
                    continue
                params = received["params"]
                token, progress = params["progressToken"], params["progress"]
                self.assertNotIn(token, finished)
                self.assertGreater(progress, last.get(token, 0))
                last[token] = progress
            for reporter in reporters:
                reporter.join()

    @both_eras
    def test_track_reports_progress_of_its_items_and_stops_when_cancelled(self, era):
        server = lab()

        @server.tool
        def copy(ctx: Context):
            assert list(ctx.track("a", message="copying")) == ["a"]

        @server.tool
        def forever(ctx: Context):
            try:
                for _ in ctx.track(iter(int, 1)):
                    server.began.put(1)
            finally:
                server.cancelled.put(1)

        play(server, """
            > 1 tools/call {"name": "copy", "_meta": {"progressToken": 1}}
            < notifications/progress {"progress": 1, "total": 1, "message": "copying"}
            < 1 {"isError": false}
            > 2 tools/call {"name": "forever"}
            ! began
            > notifications/cancelled {"requestId": 2}
            ! cancelled
            """, era=era, **server.steps)

    # -- threads -----------------------------------------------------------------------

    def test_32_tools_run_at_once_and_a_ping_is_handled_meanwhile(self):
        """The barrier opens only when all run, and the result of a ping has come."""
        server, barrier = Server("s"), threading.Barrier(33)
        server.tool(lambda n: barrier.wait(PATIENCE) and n, name="meet")
        with wire(server) as client:
            play(client, "> handshake")
            for n in range(32):
                client.say('%d tools/call {"name": "meet", "arguments": {"n": 7}}' % n)
            client.fence()
            barrier.wait(PATIENCE)
            self.assertEqual({client.recv()["id"] for _ in range(32)}, {*range(32)})

    def test_thousands_of_requests_need_few_threads(self):
        server, threads, texts = Server("s", max_workers=8), set(), {}
        before = threading.active_count()

        @server.tool
        def count(n: int) -> int:
            threads.add(threading.active_count())
            return n

        with wire(server) as client:
            play(client, "> handshake")
            for first in range(0, 4000, 1000):  # more at once are refused
                client.send(b"".join(
                    line(n, "tools/call", name="count", arguments={"n": n}) + b"\n"
                    for n in range(first, first + 1000)))
                for response in [client.recv() for _ in range(1000)]:
                    texts[response["id"]] = response["result"]["content"][0]["text"]
        self.assertEqual(texts, {n: str(n) for n in range(4000)})
        self.assertLess(max(threads) - before, 16)


@contextlib.contextmanager
def at_most_threads(count):
    """mcp_min has at most ``count`` threads at once, as in a small container."""
    free, start_thread = threading.Semaphore(count), mcp_min.start_thread

    def start(name, run):
        def run_and_leave():
            try:
                run()
            finally:
                free.release()
        return free.acquire(blocking=False) and start_thread(name, run_and_leave)

    with mock.patch.object(mcp_min, "start_thread", start):
        yield


class Test5Threads(unittest.TestCase):
    """The pool, the reader and its standby, and what happens without threads."""

    # -- the pool ----------------------------------------------------------------------

    def test_an_idle_thread_is_woken_for_a_job_but_waits_for_a_guest(self):
        """Fails if a job that is added, or a guest that leaves, wakes no thread; or if
        a thread that is woken exceeds the limit."""
        pool, inside, seen = mcp_min.ThreadPool("patient", 1), threading.Event(), []
        with mock.patch.object(mcp_min, "IDLE_SECONDS", 2 * PATIENCE):
            for _ in range(50):
                ran, waited = gate("the job"), gate("the job that waits for the guest")
                pool.submit(ran.set)
                ran.wait()
                wait_until(pool.enter, "the job has ended")
                inside.set()
                pool.submit(lambda waited=waited: (
                    seen.append(inside.is_set()), waited.set()))
                time.sleep(0.0005)  # the guest's job
                inside.clear()
                pool.leave()
                waited.wait()
        self.assertEqual(seen, [False] * 50)

    def test_no_job_is_lost_while_some_threads_cannot_be_started(self):
        """Three of ten starts fail, threads end at once, guests come and go.  Fails if
        one that was not started is counted, or one that ends does not look for jobs.
        Looks inside."""
        rng, start_thread = random.Random(1), mcp_min.start_thread

        def start(name, run):
            return rng.random() >= 0.3 and start_thread(name, run)

        for limit in 1, 3, 64:
            with self.subTest(limit), mock.patch.multiple(
                    mcp_min, start_thread=start, IDLE_SECONDS=0.0005), (
                    switch_threads_often()):
                self.check_pool(mcp_min.ThreadPool("unlucky", limit), limit)

    def check_pool(self, pool, limit):
        ran, running, most = collections.Counter(), [], []

        def job(key):
            running.append(key)
            most.append(len(running))
            running.remove(key)
            ran[key] += 1  # a key of its own for each job

        def submit(thread):
            for n in range(300):
                pool.submit(functools.partial(job, (thread, n)), 5)
                if n % 10 == 0:
                    time.sleep(0.001)  # so that threads become idle, and end

        def visit():
            for n in range(300):
                if pool.enter():
                    job(("guest", n))
                    pool.leave()
                else:
                    ran["guest", n] += 1

        self.assertEqual(together(*[functools.partial(submit, n) for n in range(4)],
                                  visit), [None] * 5)
        keys = [*itertools.product([*range(4), "guest"], range(300))]
        wait_until(lambda: pool.bytes == 0 and not running, "the last job")
        self.assertEqual(ran, collections.Counter(keys))
        self.assertLessEqual(max(most), limit)

    def test_all_threads_of_both_ends_end_with_the_connection(self):
        """Fails (a thread stays) if closing does not wake a timer or a standby."""
        server, before = Server("s"), set(threading.enumerate())

        @server.tool
        def ask(ctx: Context) -> str:
            return ctx.elicit("Well?").action

        with Client(server, mode="legacy", timeout=50, elicitation_handler=(
                lambda *question: {})) as client:
            self.assertEqual(client.call_tool("ask").text, "accept")
            time.sleep(0.1)  # until the standby sleeps
        wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")

    # -- few threads, or none ----------------------------------------------------------

    ALL_KINDS = """
        import asyncio
        server = mcp_min.Server("s")

        @server.tool
        def plain(n: int, ctx: mcp_min.Context) -> int:
            ctx.report_progress(n)
            return n

        @server.tool
        async def coroutine(n: int, ctx: mcp_min.Context) -> int:
            await ctx.report_progress(n)
            await asyncio.sleep(0)
            return n

        @server.tool
        def ask(n: int, ctx: mcp_min.Context) -> str:
            return ctx.elicit("Well?", str).data

        @server.tool
        async def ask_async(n: int, ctx: mcp_min.Context) -> str:
            answer = await ctx.elicit("Well?", str)
            await ctx.ping()
            return answer.data
        """

    def call_all(self, client, *names):
        """Call these tools at once; answer the questions of the server, but not before
        it has answered a ping; require the right result for each call."""
        calls = dict(enumerate(names))
        pending, questions = {*calls}, {}
        for n, name in calls.items():
            client.say('%d tools/call {"name": "%s", "arguments": {"n": %d}, "_meta": '
                       '{"progressToken": %d}}' % (n, name, n, n))
        while pending:
            received = client.recv()
            if received.get("method") == "notifications/progress":
                self.assertIn(received["params"]["progressToken"], pending)
            elif "method" in received:  # a question: answered when this ping is
                key = "ping for %s" % received["id"]
                questions[key] = received
                client.say("%s ping" % json.dumps(key))
            elif received["id"] in questions:
                question = questions.pop(received["id"])
                answer = {} if question["method"] == "ping" else {
                    "action": "accept", "content": {"value": "x"}}
                client.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
            else:
                n = received["id"]
                pending.remove(n)
                text = "x" if "ask" in calls[n] else str(n)
                self.assertEqual(received["result"]["content"][0]["text"], text)
        client.fence()

    def use_everything(self, client):
        play(client, "> handshake")
        kinds = "plain", "coroutine", "ask", "ask_async"
        for name in kinds:
            self.call_all(client, name)
        self.call_all(client, *kinds, *kinds, *reversed(kinds))
        self.assertEqual(client.ask("1 nope")["error"]["code"], -32601)

    def test_a_server_works_with_few_threads_or_none(self):
        """The kinds of handlers, one by one and at once.  Fails (nothing more comes) if
        the thread that reads waits for a coroutine whose answer nobody else reads.
        Looks inside."""
        for threaded, count in itertools.product((True, False), range(8)):
            names = {"mcp_min": mcp_min}
            exec(textwrap.dedent(self.ALL_KINDS), names)  # noqa: S102
            names["server"].threaded = threaded
            with self.subTest(threaded=threaded, threads=count), (
                    at_most_threads(count)), wire(names["server"]) as client:
                self.use_everything(client)

    def test_handlers_stay_on_the_serving_thread_that_also_reads(self):
        """No thread can be started at first.  Fails (another thread runs them) if one
        is started for them later.  Looks inside."""
        server, threads, tries = Server("s", threaded=False), set(), []
        server.tool(lambda: threads.add(threading.get_ident()), name="f")

        def start(name, run, start_thread=mcp_min.start_thread):
            tries.append(name)
            return len(tries) > 1 and start_thread(name, run)

        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "f"}}
        sent = [message("0 initialize"), {**call, "id": 1}, {**call, "id": 2}]
        served = io.BytesIO(b"\n".join(json.dumps(line).encode() for line in sent))
        with mock.patch.object(mcp_min, "start_thread", start):
            server.serve(served, io.BytesIO())
        self.assertEqual(threads, {threading.get_ident()})

    # What is imported only when it is needed may not be readable for another user.
    LIMITED = """
        import asyncio, concurrent.futures, queue, resource, select, signal, traceback
        asyncio.run(asyncio.sleep(0))
        user = 60000 + os.getpid() %% 5000
        resource.setrlimit(resource.RLIMIT_NPROC, (1 + %d, 1 + %d))
        os.setgroups([]); os.setgid(user); os.setuid(user)
        """
    HOW_MANY = """
        go, count = threading.Event(), 0
        try:
            for count in range(9):
                threading.Thread(target=go.wait, daemon=True).start()
        except RuntimeError:
            pass
        os.write(1, b'{"jsonrpc": "2.0", "id": %d, "result": {}}\\n' % count)
        """

    @unittest.skipUnless(hasattr(os, "geteuid") and os.geteuid() == 0,
                         "only root can run a process as a user who has no other")
    def test_a_process_at_its_limit_of_threads_serves(self):
        """The same under the limit of the system, RLIMIT_NPROC."""
        with process(self.LIMITED % (2, 2) + self.HOW_MANY) as child:
            if child.recv()["id"] != 2:
                self.skipTest("the limit is not in force here")

        def serve(threaded, count):
            with process("%s\n%sserver.run(threaded=%s)" % (
                    self.LIMITED % (count, count), self.ALL_KINDS, threaded)) as child:
                self.use_everything(child)

        run_together(self, serve, [
            (True, 0), (True, 1), (True, 2), (True, 4), (False, 0), (False, 2)])

    def test_a_batch_and_a_standby_without_workers(self):
        """Fails (the ping gets no result) if the standby does not take over from a
        reader that runs a job which came in a batch.  Looks inside."""
        def start(name, run, start_thread=mcp_min.start_thread):
            return name == "mcp reader" and start_thread(name, run)

        server = lab()
        with mock.patch.object(mcp_min, "start_thread", start):
            play(server, """
                > handshake 2025-03-26
                > batch 1 tools/call {"name": "hold", "arguments": {"n": 1}}
                ! ran
                < fence
                ! go
                < batch 1 {}
                """, **server.steps)

    def test_deadlines_hold_after_a_timer_could_not_be_started(self):
        """Fails (the question never ends) if the thread is tried only once.  Looks
        inside."""
        server, starts = Server("s"), []

        @server.tool
        def ask(ctx: Context) -> str:
            ctx.elicit("Well?", timeout=60)
            return type(raised(ctx.elicit, "Well?", timeout=0.01)).__name__

        def start(name, run, start_thread=mcp_min.start_thread):
            starts.append(name)
            return starts.count(name) * (name == "mcp timer") != 1 and (
                start_thread(name, run))

        with mock.patch.object(mcp_min, "start_thread", start):
            play(server, """
                > 1 tools/call {"name": "ask"}
                < $a elicitation/create
                > $a {"action": "cancel"}
                < $b elicitation/create
                < notifications/cancelled {"requestId": "$b"}
                < 1 {"content": [{"text": "RequestTimeout"}]}
                """, era="legacy")


class Test5Amounts(unittest.TestCase):
    """What one end can make the other end keep in memory is limited."""

    def test_a_batch_of_100_messages_is_charged_once_and_a_longer_one_is_refused(self):
        """Fails (half of it is refused) if each of its messages is charged its line."""
        server = lab(max_workers=2)
        call = '%d tools/call {"name": "hold", "arguments": %s}'
        with wire(server) as client:
            play(client, "> handshake 2025-03-26")
            client.send([{**message(call % (n, '{"n": 1}')), "x": "x" * 3000}
                         for n in range(100)])
            client.fence()
            server.go.set()
            self.assertTrue(all("result" in response for response in client.recv()))
            client.send([message("%d ping" % n) for n in range(101)])
            play(client, '< null -32600 "over 100 messages"')

    def test_over_1000_requests_at_once_are_refused(self):
        """A ping and a cancellation are still handled."""
        server = lab(max_workers=2)
        call = '%d tools/call {"name": "hold", "arguments": {"n": 1}}'
        with wire(server) as client:
            play(client, "> handshake")
            client.send(b"".join(raw(call % n) for n in range(1001)))
            refused = client.recv()  # the last, unless the thread that read it was slow
            self.assertIn("Over 1000 requests", refused["error"]["message"])
            client.say('notifications/cancelled {"requestId": 5}')
            client.say(call % 1001)
            client.fence()
            server.go.set()
            ids = {client.recv()["id"] for _ in range(1000)}
            self.assertEqual(ids, {*range(1002)} - {5, refused["id"]})

    def test_requests_of_many_bytes_at_once_are_refused(self):
        """A single request may be larger."""
        server = lab()
        call = ('%d tools/call {"name": "hold", "arguments": {"n": 1}, '
                '"_meta": {"x": "%s"}}')
        with wire(server) as client, mock.patch.object(
                mcp_min, "MAX_BACKLOG_BYTES", 10000):
            play(client, "> handshake")
            for n in range(5):
                client.say(call % (n, "x" * 1200))
            play(client, '< 4 -32603 "10000 bytes of them"')
            server.go.set()
            self.assertEqual({client.recv()["id"] for _ in range(4)}, {*range(4)})
            self.assertIn("result", client.ask(call % (9, "x" * 20000)))

    def test_an_id_or_a_token_over_64_kib_is_invalid(self):
        server = Server("s")

        @server.tool
        def work(ctx: Context):
            ctx.report_progress(1)

        play(server, """
            > {"id": "$fits", "method": "ping"}
            < $fits {}
            > {"id": "$long", "method": "ping"}
            < null -32600 "at most 65536 characters"
            > 1 tools/call {"name": "work", "_meta": {"progressToken": "$long"}}
            < 1 {"isError": false}
            """, era="legacy", fits="i" * 65536, long="i" * 65537)

    def test_subscriptions_are_charged_until_they_end(self):
        """Fails (nothing is refused) if a subscription or a stream is free, or (the
        last is refused) if one that has ended is still charged."""
        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 10000):
            play(zoo(), """
                > 1 resources/subscribe {"uri": "$a"}
                < 1 {}
                > 2 resources/subscribe {"uri": "$b"}
                < 2 -32603 "10000 bytes of them"
                > 3 resources/unsubscribe {"uri": "$a"}
                < 3 {}
                > 4 resources/subscribe {"uri": "$b"}
                < 4 {}
                """, era="legacy", a="zoo://a" + 3000 * "x", b="zoo://b" + 3000 * "x")
            play(zoo(), """
                > 1 subscriptions/listen {"notifications": "$a"}
                < notifications/subscriptions/acknowledged
                > 2 subscriptions/listen {"notifications": "$b"}
                < 2 -32603 "10000 bytes of them"
                > notifications/cancelled {"requestId": 1}
                > 3 subscriptions/listen {"notifications": "$b"}
                < notifications/subscriptions/acknowledged
                > notifications/cancelled {"requestId": 3}
                """, era="modern", a={"resourceSubscriptions": ["a:" + 4000 * "x"]},
                 b={"resourceSubscriptions": ["b:" + 4000 * "x"]})

    def test_the_connection_of_a_client_that_never_reads_is_closed(self):
        """Fails (the server keeps all results of pings) if there is no limit."""
        client_reads, server_writes = os.pipe()
        before = set(threading.enumerate())
        ping = b'{"jsonrpc":"2.0","id":"%s","method":"ping"}\n' % (b"i" * 60000)
        reader = mock.Mock(spec=["read1"], read1=lambda size: ping)  # for ever
        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 1 << 20), (
                open(server_writes, "wb", 0)) as writer:
            serving = threading.Thread(target=zoo().serve, args=(reader, writer))
            serving.start()
            serving.join(PATIENCE)
            self.assertFalse(serving.is_alive())
            os.close(client_reads)
            wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")

    def test_one_large_response_is_sent_whatever_may_wait(self):
        server = Server("s")
        server.tool(lambda: "x" * 300_000, name="large")
        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 100_000), (
                Client(server)) as client:
            for _ in range(2):
                self.assertEqual(len(client.call_tool("large").text), 300_000)

    def test_a_stream_of_the_user_that_fails_closes_the_connection(self):
        """Fails (by hanging) if the response is merely lost."""
        writer = mock.Mock(spec=["write", "flush"])
        writer.write.side_effect = RuntimeError("no")
        reads, writes = os.pipe()
        with open(writes, "wb", 0) as sender, open(reads, "rb", 0) as reader, (
                quiet()) as stderr:
            serving = threading.Thread(target=zoo().serve, args=(reader, writer))
            serving.start()
            sender.write(raw('1 modern tools/call {"name": "echo"}'))
            serving.join(PATIENCE)
            self.assertFalse(serving.is_alive())
            wait_until(lambda: "RuntimeError: no" in stderr.getvalue())

    def test_an_http_request_closes_the_connection(self):
        """A web page must not call tools.  Fails if the body is still handled."""
        called = []
        server = Server("s", max_message_bytes=1000)
        server.tool(lambda: called.append(1), name="run")
        call = raw('1 modern tools/call {"name": "run"}')
        for path in b"", b"x" * 2000:
            with wire(server) as client:
                with contextlib.suppress(OSError):
                    client.send(b"POST /%s HTTP/1.1\r\nHost: x\r\n\r\n" % path + call)
                self.assertIsNone(client.recv())
        self.assertEqual(called, [])

    SMALL_LIMITS = """
        mcp_min.MAX_UNREAD_BYTES = mcp_min.MAX_BACKLOG_BYTES = 1 << 20
        """
    FLOODED_SERVER = SMALL_LIMITS + """
        import asyncio  # takes 10 MB
        server = Server("s", max_workers=4, drain_seconds=0.01)
        server.tool(lambda: "x" * 5000, name="echo")
        server.method("notifications/x")(lambda params: time.sleep(60))

        @server.tool
        def deaf(text: str):
            time.sleep(60)

        @server.tool
        async def wait_async(text: str, ctx: Context):
            await ctx.wait(60)

        server.run()
        """
    FLOODED_CLIENT = SMALL_LIMITS + """
        handler = lambda *params: time.sleep(60)
        mcp_min.Client(
            (os.fdopen(0, "rb"), os.fdopen(1, "wb", 0)), mode="2025-11-25",
            elicitation_handler=handler, log_handler=handler,
            message_handler=handler).connect()
        time.sleep(60)
        """
    TO_SERVER = "1 initialize 2025-11-25"
    TO_CLIENT = """1 {"protocolVersion": "2025-11-25", "capabilities": {},
        "serverInfo": {"name": "s", "version": "1"}}"""

    @staticmethod
    def flood(method, params, make_id, cancels=False):
        """A message over and over: 10,000 times or up to 40 MB, ten at a time.

        make_id: returns an id as JSON.  cancels: each request is cancelled at once.
        """
        template, sent = '{"jsonrpc":"2.0",%%s"method":"%s","params":%s}\n' % (
            method, json.dumps(params)), 0
        cancel = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{%s}}\n'
        for _ in range(1000):
            piece = ""
            for _ in range(10 if sent < 40e6 else 0):
                id = '"id":%s,' % make_id() if make_id else ""
                piece += template % id
                if cancels:
                    piece += cancel % id.replace("id", "requestId").strip(",")
            sent += len(piece)
            yield piece.encode()

    def growth_megabytes(self, code, opening, *flood):
        """By how much a flood of 3 s at most raises the peak memory of a process; 0 if
        it has ended."""
        def peak():
            status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+)", status)
            return int(found[1]) // 1024 if found else 0

        def send():
            with contextlib.suppress(BrokenPipeError):
                for piece in self.flood(*flood):
                    child.stdin.write(piece)

        program = process.HEAD + textwrap.dedent(code)
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], bufsize=0,
                              env={**os.environ, "MALLOC_ARENA_MAX": "1"},
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as child:
            child.stdin.write(raw(opening))
            child.stdout.readline()
            before, sender = peak(), threading.Thread(target=send)
            sender.start()
            sender.join(3)
            after = peak()
            child.kill()
            sender.join()
            return max(0, after - before)

    @unittest.skipUnless(
        sys.platform == "linux" and sys.implementation.name == "cpython",
        "reads /proc; PyPy frees memory later")
    def test_a_flood_of_messages_does_not_fill_the_memory(self):
        """Each kind of message, from an end that reads nothing.  Fails (with 40 MB
        more) if they are kept; for cancelled calls, if charged only until then."""
        big, numbers = "x" * 60000, itertools.count(2)
        question = {"message": big, "requestedSchema": {
            "type": "object", "properties": {"x": {"type": "string"}}}}
        number = functools.partial(next, numbers)
        to_server = [
            ("ping, long ids", "ping", {}, lambda: f'"{number()}{big}"'),
            ("unknown method", big, {}, number),
            ("tool with a result", "tools/call", {"name": "echo"}, number),
            ("tool that waits", "tools/call",
             {"name": "deaf", "arguments": {"text": big}}, number),
            *(("call that is cancelled, tool " + name, "tools/call",
               {"name": name, "arguments": {"text": big}}, number, True)
              for name in ("deaf", "wait_async")),
            ("notification with a handler", "notifications/x", {"x": big}, None),
            ("cancellation", "notifications/cancelled", {"requestId": big}, None)]
        to_client = [
            ("elicitation", "elicitation/create", question, number),
            ("log message", "notifications/message", {"level": "error", "data": big},
             None),
            ("list change", "notifications/tools/list_changed", {"x": big}, None),
            ("progress", "notifications/progress",
             {"progressToken": 1, "progress": 1, "message": big}, None)]

        for kind, code, opening, floods in (
                ("server", self.FLOODED_SERVER, self.TO_SERVER, to_server),
                ("client", self.FLOODED_CLIENT, self.TO_CLIENT, to_client)):
            for name, *flood in floods:
                with self.subTest(name, to=kind):
                    self.assertLess(self.growth_megabytes(code, opening, *flood), 26)


# ======================================================================================
# 6  Stdio: a server in a real process
# ======================================================================================

def program(extra="", run="server.run()", **options):
    """A server script: three tools, the code ``extra``, and the line that runs it."""
    return textwrap.dedent("""
        server = Server("p", version="1", **%r)

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        def echo(text: str) -> str:
            return text

        @server.tool
        def nap(seconds: float) -> str:
            time.sleep(seconds)
            return "slept"
        """) % options + textwrap.dedent(extra) + "\n" + run + "\n"


RUN = program()
CALL_ADD = """
> 1 modern tools/call {"name": "add", "arguments": {"a": 2, "b": 3}}
< 1 {"content": [{"text": "5"}]}
"""


class Test6Stdio(unittest.TestCase):
    """The descriptors, the signals and the end of a server process."""

    def ended(self, server, status=0):
        """The process exits with ``status`` and has written nothing to stderr."""
        self.assertEqual(server.exit(), status, server.stderr)
        self.assertEqual(server.stderr, "")

    # -- the end of input --------------------------------------------------------------

    @clause("2026-07-28/basic/transports/stdio",
            "Servers **SHOULD** exit promptly when their standard input is closed or "
            "reads return end-of-file.")
    def test_the_end_of_input_ends_an_idle_server(self):
        with process(RUN, stdin=subprocess.DEVNULL) as server:
            self.ended(server)
        with process(RUN) as server:
            play(server, CALL_ADD)
            self.assertEqual(server.hang_up(), [])
            self.ended(server)

    @UNIX
    def test_calls_in_flight_are_answered_before_the_server_ends(self):
        read_end, write_end = os.pipe()
        with process(program("""
                @server.tool
                def hold() -> str:
                    return os.read(%d, 4).decode()
                """ % read_end, drain_seconds=PATIENCE), pass_fds=[read_end]) as server:
            server.say('1 modern tools/call {"name": "hold"}')
            server.send(json.dumps(message("2 ping")).encode())   # without a newline
            play(server, """
                > EOF
                < 2 {}
                ! release
                < 1 {"content": [{"text": "done"}]}
                """, release=lambda: os.write(write_end, b"done"))
            self.ended(server)
        os.close(read_end)
        os.close(write_end)

    def test_no_response_is_lost_at_the_end_of_input(self):
        """All handlers return at once, while the input ends.  Fails if the thread that
        closes the connection does not write what was queued while another wrote."""
        server, meeting = Server("s", drain_seconds=PATIENCE), threading.Barrier(6)

        @server.tool
        def meet(n: int) -> str:
            meeting.wait(PATIENCE)
            return "x" * 20000 * (n % 2)

        for _ in range(40):
            with wire(server) as client:
                for n in range(6):
                    client.say('%d modern tools/call {"name": "meet", "arguments": '
                               '{"n": %d}}' % (n, n))
                self.assertEqual({response["id"] for response in client.hang_up()},
                                 set(range(6)))

    def test_stuck_calls_do_not_prevent_the_end(self):
        with process(program("""
                @server.tool
                async def forever():
                    import asyncio
                    await asyncio.sleep(3600)

                @server.tool
                def wait(ctx: Context):
                    ctx.wait(3600)
                """, drain_seconds=0.1)) as server:
            for n, call in enumerate(('{"name": "nap", "arguments": {"seconds": 3600}}',
                                      '{"name": "forever"}', '{"name": "wait"}')):
                server.say("%d modern tools/call %s" % (n, call))
            server.fence()
            self.assertEqual(server.hang_up(), [])
            self.ended(server)

    @UNIX
    def test_the_last_line_is_whole_or_absent(self):
        """`hang_up` checks every line, down to its newline."""
        pings = b"".join(line(n, "ping") + b"\n" for n in range(5000))
        with process(RUN) as server:
            server.send(pings)
            self.assertEqual(len(server.hang_up()), 5000)
            self.ended(server)
        with process(RUN) as server:
            server.send(pings)
            server.recv()
            os.kill(server.pid, signal.SIGTERM)
            server.hang_up()
            self.ended(server, 143)

    # -- signals -----------------------------------------------------------------------

    @UNIX
    def test_one_ctrl_c_or_sigterm_ends_the_server_quietly(self):
        """Idle, and with a call in flight.  The rows run at the same time, because a
        signal just before the main thread began to wait was sometimes lost."""
        def end_by(sig, busy, status):
            with process(RUN) as server:
                if busy:
                    server.say('1 modern tools/call '
                               '{"name": "nap", "arguments": {"seconds": 3600}}')
                server.fence()
                os.kill(server.pid, sig)
                self.ended(server, status)

        run_together(self, end_by, [
            (sig, busy, status) for busy in (False, True)
            for sig, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143))])

    @UNIX
    def test_a_signal_ends_a_server_whose_handler_was_cancelled(self):
        """Fails if the signal passes for an error that follows from the cancellation."""
        code = program("""
            @server.tool
            def stay(ctx: Context) -> str:
                ctx.info("here")
                time.sleep(3600)
            """, run="server.run(threaded=False)")
        with process(code) as server:
            play(server, """
                > 0 initialize
                < 0 {}
                > notifications/initialized
                > 1 tools/call {"name": "stay"}
                < notifications/message
                > notifications/cancelled {"requestId": 1}
                < fence
                """)
            os.kill(server.pid, signal.SIGTERM)
            self.ended(server, 143)

    @UNIX
    @clause("2026-07-28/basic/patterns/subscriptions", "it **SHOULD** respond to the "
            "original `subscriptions/listen` request with a completion result")
    def test_a_signal_ends_open_streams_with_their_final_result(self):
        def end_by(number):
            with process("Server('s', capabilities={'tools': {}}).run()") as server:
                play(server, """
                    > 1 modern subscriptions/listen {"notifications": {
                        "toolsListChanged": true}}
                    < notifications/subscriptions/acknowledged
                    ! end
                    < 1 {"resultType": "complete", "_meta": {
                        "io.modelcontextprotocol/subscriptionId": 1}}
                    > EOF
                    """, end=lambda: server.child.send_signal(number))
                self.assertEqual(server.exit(), 128 + number)

        run_together(self, end_by, [[signal.SIGINT], [signal.SIGTERM]])

    @unittest.skipUnless(hasattr(os, "openpty"), "no terminals here")
    def test_ctrl_c_on_a_terminal(self):
        """The key is typed on the terminal that the server reads from."""
        keyboard, terminal = os.openpty()
        code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" + RUN
        with process(code, stdin=terminal, start_new_session=True) as server:
            os.write(keyboard, PING + b"\n")
            self.assertEqual(server.recv()["id"], 1)
            os.write(keyboard, b"\x03")
            self.assertEqual(server.exit(), 130)
            self.assertRegex(server.stderr,
                             r"^mcp_min: p waits for a host's .*FILE.py\n$")
        os.close(keyboard)
        os.close(terminal)

    @UNIX
    def test_a_signal_ends_an_unthreaded_server_inside_a_handler(self):
        def end_by(number, status):
            with process(program("""
                    @server.tool
                    def hang():
                        try:
                            print("begun", flush=True)
                            time.sleep(60)
                        except Exception:
                            pass
                    """, "server.run(threaded=False)")) as server:
                server.say('1 modern tools/call {"name": "hang"}')
                wait_until(lambda: "begun" in server.stderr)
                server.child.send_signal(number)
                self.assertEqual(server.exit(), status)
                self.assertNotIn("Traceback", server.stderr)

        run_together(self, end_by, [(signal.SIGINT, 130), (signal.SIGTERM, 143)])

    @UNIX
    def test_a_server_ends_when_its_parent_is_killed(self):
        """The server holds the write end of a pipe, which closes when it ends."""
        reader, writer = os.pipe()
        parent = """
        import subprocess
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", %r], pass_fds=[%d],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(%r)
        child.stdin.flush()
        os.write(1, child.stdout.readline())
        time.sleep(3600)
        """ % (process.HEAD + RUN, writer, PING + b"\n")
        with process(parent, pass_fds=[writer]) as server:
            os.close(writer)
            self.assertEqual(server.recv()["id"], 1)
            server.child.kill()
            server.exit()
            readable, _, _ = select.select([reader], [], [], PATIENCE)
            self.assertTrue(readable, "still running")
            self.assertEqual(os.read(reader, 1), b"")
        os.close(reader)

    # -- broken pipes ------------------------------------------------------------------

    def test_a_closed_output_ends_the_server_quietly(self):
        reader, writer = os.pipe()
        with process(RUN, stdout=writer) as server:
            os.close(writer)
            os.close(reader)
            with contextlib.suppress(BrokenPipeError):
                for n in range(3):
                    server.send(line(n, "ping") + b"\n")
            self.assertNotIn(server.exit(), (134, 139, -6, -11))
            self.assertEqual(server.stderr, "")

    USES_STDERR = program("""
        @server.tool
        def fail(text: str):
            raise ValueError(text)

        @server.tool
        def chatter(text: str):
            print(text, file=sys.stderr)
        """)
    CALL_WITH_TEXT = '%d modern tools/call {"name": "%s", "arguments": {"text": "x"}}'

    @UNIX
    def test_a_full_or_closed_stderr_blocks_and_fails_no_other_call(self):
        full, stderr = os.pipe()
        os.set_blocking(stderr, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(stderr, b"x" * 1000)
        os.set_blocking(stderr, True)
        for options in {"stderr": stderr}, {"preexec_fn": lambda: os.close(2)}:
            with self.subTest(options=options), (
                    process(self.USES_STDERR, **options)) as server:
                play(server, CALL_ADD)
                failed = server.ask(self.CALL_WITH_TEXT % (2, "fail"))
                self.assertIs(failed["result"]["isError"], True)
                server.say(self.CALL_WITH_TEXT % (3, "chatter"))   # may wait for ever
                server.say(self.CALL_WITH_TEXT % (4, "echo"))
                self.assertIn(4, [response["id"] for response in server.hang_up()])
                self.assertEqual(server.exit(), 0)
        os.close(stderr)
        os.close(full)

    # -- only messages cross the wire --------------------------------------------------

    @UNIX
    def test_output_of_handlers_and_child_processes_goes_to_stderr(self):
        with process(program("""
                import subprocess

                @server.tool
                def print_everywhere() -> str:
                    print("printed")
                    sys.stdout.write("written")
                    sys.stdout.flush()
                    os.write(1, b"through the descriptor")
                    subprocess.run("echo from a child; cat", shell=True)
                    subprocess.run(["cat"], close_fds=False)
                    return repr((sys.stdin.read(), os.read(0, 1)))

                @server.tool
                def close_everything() -> str:
                    sys.stdout.close()
                    os.close(1)
                    os.close(0)
                    os.open(os.devnull, os.O_RDONLY)
                    sys.stdin = sys.stdout = sys.__stdout__ = None
                    os.chdir("/")
                    return "done"
                """)) as server:
            play(server, CALL_ADD + """
                > 1 modern tools/call {"name": "print_everywhere"}
                < 1 {"content": [{"text": "('', b'')"}]}
                > 2 modern tools/call {"name": "close_everything"}
                < 2 {"content": [{"text": "done"}]}
                """ + CALL_ADD)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            for text in "printed", "written", "through the descriptor", "from a child":
                self.assertIn(text, server.stderr)

    @UNIX
    def test_stdio_server_keeps_output_before_serve_off_the_wire(self):
        with process("""
                with mcp_min.stdio_server() as (reader, writer):
                    print("a banner", flush=True)
                    os.system("echo a child")
                    Server("s").serve(reader, writer)
                print('{"jsonrpc": "2.0", "method": "after/exit"}', flush=True)
                """) as server:
            play(server, "> 1 ping\n< 1 {}")
            self.assertEqual([sent["method"] for sent in server.hang_up()],
                             ["after/exit"])
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr, "a banner\na child\n")

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_fork_inside_a_tool_holds_no_pipe_open(self):
        with process(program("""
                import warnings
                warnings.simplefilter("ignore")    # 3.12: a fork beside threads

                @server.tool
                def fork() -> int:
                    pid = os.fork()
                    if not pid:
                        time.sleep(3600)
                        os._exit(0)
                    return pid
                """)) as server:
            forked = server.ask('1 modern tools/call {"name": "fork"}')
            child = int(forked["result"]["content"][0]["text"])
            try:
                self.assertEqual(server.hang_up(), [])   # the stream has ended
                self.assertEqual(server.exit(), 0)
            finally:
                os.kill(child, signal.SIGKILL)

    @UNIX
    def test_run_restores_the_descriptors_and_can_be_called_again(self):
        with process(program("""
                def set_input(text):
                    reader, writer = os.pipe()
                    os.write(writer, text)
                    os.close(writer)
                    os.dup2(reader, 0)
                    os.close(reader)

                ping = b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}'
                before = os.fstat(0)[:3], os.fstat(1)[:3]
                server.run()
                assert (os.fstat(0)[:3], os.fstat(1)[:3]) == before
                print('{"jsonrpc": "2.0", "method": "printed"}', flush=True)
                os.write(1, b'{"jsonrpc": "2.0", "method": "written"}' + bytes([10]))
                set_input(ping % 2)
                server.run()
                set_input(ping % 3)
                Server("another").run()
                assert sys.stdin.read() == ""
                """, "")) as server:
            play(server, CALL_ADD + """
                > EOF
                < printed
                < written
                <= 2 {}
                <= 3 {}
                """)
            self.ended(server)

    def test_a_process_runs_one_server_at_a_time(self):
        with process(program("""
                server.tool(lambda: server.run(), name="same")
                server.tool(lambda: Server("another").run(), name="another")
                """)) as server:
            for tool in "same", "another":
                play(server, """
                    > 1 modern tools/call {"name": "%s"}
                    < 1 {"isError": true}
                    """ % tool + CALL_ADD)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr.count("RuntimeError: "), 2)

    # -- interpreters, locales, threads ------------------------------------------------

    def test_run_and_serve_need_no_sys_stdin_stdout_or_stderr(self):
        def serve(run):
            with process(program("""
                    for name in "stdin", "stdout", "stderr":
                        setattr(sys, name, None)
                        setattr(sys, "__%s__" % name, None)
                    """, run)) as server:
                play(server, CALL_ADD + """
                    > 2 modern tools/call {"name": "nap", "arguments": {"seconds": -1}}
                    < 2 {"isError": true}
                    """)
                server.hang_up()
                self.assertEqual(server.exit(), 0)

        run_together(self, serve, [
            ["server.run()"], ["server.serve(os.fdopen(0, 'rb'), os.fdopen(1, 'wb'))"]])

    @UNIX
    def test_run_works_on_any_thread(self):
        with process(program("""
                thread = threading.Thread(target=server.run)
                thread.start()
                thread.join()
                print('{"jsonrpc": "2.0", "method": "returned"}')
                """, "")) as server:
            play(server, CALL_ADD + "> EOF\n< returned\n")
            self.ended(server)

    def test_interpreter_flags_and_locales_change_nothing(self):
        def serve(flags, env):
            with process(RUN, *flags.split(), env=dict(os.environ, **env)) as server:
                play(server, CALL_ADD + """
                    > 2 modern tools/call {"name": "echo", "arguments": {"text":
                        "é日😀\\u2028"}}
                    < 2 {"content": [{"text": "é日😀\\u2028"}]}
                    > 3 modern tools/call {"name": "echo", "arguments": {}}
                    < 3 {"isError": true}
                    """)
                server.hang_up()
                self.ended(server)

        run_together(self, serve, [
            ("-S -X utf8=0", {"PYTHONIOENCODING": "cp932", "LC_ALL": "C"}),
            ("-S", {"PYTHONIOENCODING": "cp1252:strict", "LC_ALL": "POSIX",
                    "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
            ("-W error", {}), ("-X dev", {}), ("-O -O -B", {})])

    # -- memory, the trace, tracebacks -------------------------------------------------

    @UNIX
    def test_a_line_that_is_too_long_takes_no_memory(self):
        """50 MB in one line, of which 1 MB is allowed."""
        with process(program("""
                import resource

                @server.tool
                def peak() -> int:
                    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                """, max_message_bytes=1 << 20)) as server:
            def peak():
                response = server.ask('1 modern tools/call {"name": "peak"}')
                return int(response["result"]["content"][0]["text"])

            before = peak()
            server.send(*[b"x" * (1 << 20)] * 50, b"\n")
            play(server, "< null -32801")
            unit = 1 if sys.platform == "darwin" else 1 << 10
            self.assertLess((peak() - before) * unit, 20 << 20)
            server.hang_up()
            self.ended(server)

    def test_control_characters_on_stderr_are_escaped(self):
        """Those of a trace, and those of a traceback."""
        env = dict(os.environ, MCP_MIN_TRACE="stderr")
        with process(self.USES_STDERR, "-S", env=env) as server:
            server.send(b'{"x": "\x1b]0;owned\x07"}\n')
            play(server, """
                < null -32700
                > 1 modern tools/call {"name": "fail", "arguments": {"text":
                    "bad \\u001b]0;owned\\u0007 news"}}
                < 1 {"isError": true, "content": [{"text": "...news..."}]}
                """)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertRegex(server.stderr, "(?s)tools/call.*Traceback")
            self.assertNotRegex(server.stderr, r"[\x00-\x09\x0b-\x1f\x7f]")

    @UNIX
    def test_only_the_owner_can_read_a_trace_file(self):
        """Also if it exists and others could read it; it is no symbolic link."""
        with tempfile.TemporaryDirectory() as folder:
            path, link = os.path.join(folder, "trace"), os.path.join(folder, "link")
            for script in "> 1 modern tools/list\n< 1 {}", "> 1 ping\n< 1 {}":
                with mock.patch.dict(os.environ, MCP_MIN_TRACE=path):
                    play(zoo(), script)
                self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
                os.chmod(path, 0o666)
            with open(path) as trace:
                self.assertRegex(trace.read(), r'(?s)"tools/list".*"result".*"ping"')
            os.symlink(path, link)
            with mock.patch.dict(os.environ, MCP_MIN_TRACE=link):
                self.assertRaises(OSError, play, zoo(), "", era="legacy")

    def test_a_trace_that_nobody_reads_blocks_no_message(self):
        """Fails (by hanging) if a line of the trace must be written completely."""
        unread, stderr = os.pipe()
        with process(RUN, "-S", env=dict(os.environ, MCP_MIN_TRACE="stderr"),
                     stderr=stderr) as server:
            os.close(stderr)
            server.send(line(1, "ping", x=300000 * "x") + b"\n")
            play(server, "< 1 {}" + CALL_ADD.replace(" 1 ", " 2 "))
            server.hang_up()
        os.close(unread)


# ======================================================================================
# 7  Revisions: the server's part
# ======================================================================================

class Test7Handshake(unittest.TestCase):
    """The revisions in which a session begins with `initialize`."""

    @clause("2025-11-25/basic/lifecycle", "it **MUST** respond with the same version")
    def test_each_handshake_revision_is_supported(self):
        for revision in LEGACY:
            play(zoo(), """
                > 1 initialize %s
                < 1 {"protocolVersion": "%s", "serverInfo": {"name": "zoo", "version":
                    "1"}}
                # the server does not wait for `initialized`
                > 2 tools/call {"name": "echo", "arguments": {"text": "hi"}}
                < 2 {"content": [{"type": "text", "text": "hi"}]}
                > notifications/initialized
                > 3 ping
                <= 3 {}
                """ % (revision, revision))

    @clause("2025-11-25/basic/lifecycle",
            "Otherwise, the server **MUST** respond with another protocol version it "
            "supports. This **SHOULD** be the _latest_ version supported by the "
            "server.")
    def test_for_any_other_version_the_server_offers_its_latest(self):
        for version in "1999-01-01", "9999-99-99", MODERN, "2025-11-25 ", "":
            play(zoo(), """
                > 1 initialize 2025-11-25 {"protocolVersion": "$v"}
                < 1 {"protocolVersion": "2025-11-25"}
                """, v=version)

    def test_an_invalid_initialize_is_refused_and_may_be_sent_again(self):
        play(zoo(), """
            > {"id": 1, "method": "initialize"}
            < 1 -32602 "protocolVersion"
            > 3 initialize 2025-11-25 {"protocolVersion": 7}
            < 3 -32602 "protocolVersion"
            > 5 initialize 2025-11-25 {"clientInfo": 42}
            < 5 -32602 "clientInfo"
            > 6 initialize 2025-11-25 {"capabilities": []}
            < 6 -32602 "capabilities"
            # none of these opened a session
            > 7 tools/list
            < 7 -32600 "initialize"
            > 8 initialize 2025-11-25
            < 8 {"protocolVersion": "2025-11-25"}
            > 9 tools/list
            < 9 {"tools": "..."}
            """)

    def test_a_second_initialize_is_answered_afresh(self):
        """Calls in flight are still answered."""
        server = lab()
        @server.tool
        def version(ctx: Context):
            return ctx.protocol_version

        play(server, """
            > 0 initialize 2024-11-05
            < 0 {"protocolVersion": "2024-11-05"}
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            > 2 initialize 2025-06-18
            < 2 {"protocolVersion": "2025-06-18"}
            ! go
            < 1 {"content": "..."}
            > 3 tools/call {"name": "version"}
            < 3 {"content": [{"text": "2025-06-18"}]}
            """, **server.steps)

    @clause("2025-11-25/basic/lifecycle",
            "The initialization phase **MUST** be the first interaction between "
            "client and server.")
    def test_before_initialize_only_a_ping_gets_a_result(self):
        play(zoo(), """
            > 1 ping
            <= 1 {}
            > 3 nope
            < 3 -32600 "initialize"
            > 4 tools/call {"name": "echo", "arguments": {"text": "x"}}
            < 4 -32600 "initialize"
            > 6 tools/list {"_meta": {"progressToken": 1}}
            < 6 -32600 "initialize"
            > 7 server/discover
            < 7 -32602 "@protocolVersion"
            > 8 server/discover {"_meta": {}}
            < 8 -32602 "@clientCapabilities"
            > notifications/initialized
            > 9 tools/list
            < 9 -32600 "initialize"
            """)

    def test_initialize_and_discover_describe_the_server(self):
        icons = [{"src": "data:,x", "mimeType": "image/png", "sizes": ["any"]}]
        server = Server("s", version="1.2", title="The S", description="Does s.",
                        icons=icons, website_url="https://example.com",
                        instructions="Be kind.",
                        capabilities={"experimental": {"x": {}}})
        play(server, """
            > 1 initialize 2025-11-25
            <= 1 {"protocolVersion": "2025-11-25", "capabilities": "$capabilities",
                "serverInfo": "$info", "instructions": "Be kind."}
            > 2 modern server/discover
            < 2 {"instructions": "Be kind.", "_meta": {"@serverInfo": "$info"}}
            """, capabilities={"logging": {}, "experimental": {"x": {}}}, info={
                "name": "s", "version": "1.2", "title": "The S", "icons": icons,
                "description": "Does s.", "websiteUrl": "https://example.com"})

    def test_capabilities_follow_from_what_is_registered_at_the_time(self):
        server = Server("s")

        def register():
            server.add_tool(lambda: None, name="t")
            server.add_resource("s://{x}", lambda x: x)
            server.add_prompt(lambda: "p", name="p")
            server.completion("p", "x")(lambda value: [])

        play(server, """
            > 1 initialize 2025-11-25
            < 1 {"capabilities": "$before"}
            ! register
            > 2 initialize 2025-11-25
            < 2 {"capabilities": "$after"}
            > 3 modern server/discover
            < 3 {"capabilities": "$after"}
            """, register=register, before={"logging": {}}, after={
                "logging": {}, "completions": {}, "tools": {"listChanged": True},
                "resources": {"listChanged": True, "subscribe": True},
                "prompts": {"listChanged": True}})

    @clause("2026-07-28/basic/patterns/subscriptions",
            "Notification types the server does not support are omitted.")
    def test_a_capability_that_is_switched_off_is_neither_declared_nor_served(self):
        """As a whole or in part."""
        server = Server("s", capabilities={
            "logging": False, "resources": {"subscribe": False}})
        server.resource("x://y")(lambda: "")
        play(server, """
            > 0 initialize
            <= 0 {"capabilities": {"resources": "$declared"}, "protocolVersion": "...",
                "serverInfo": "..."}
            > 1 resources/subscribe {"uri": "x://y"}
            < 1 -32601
            > 3 logging/setLevel {"level": "info"}
            < 3 -32601
            ! update
            < fence
            > 2 modern subscriptions/listen {"notifications": {"moonPhase": true,
                "promptsListChanged": true, "resourcesListChanged": true,
                "resourceSubscriptions": ["x://y"]}}
            < notifications/subscriptions/acknowledged {"notifications": "$accepted"}
            > notifications/cancelled {"requestId": 2}
            """, declared={"listChanged": True},
             accepted={"resourcesListChanged": True},
             update=lambda: server.notify_resource_updated("x://y"))

    @clause("2025-11-25/server/utilities/completion",
            "Method not found: `-32601` (Capability not supported)")
    @both_eras
    def test_methods_of_a_capability_that_is_not_declared_are_unknown(self, era):
        play(Server("empty"), "\n".join("> 1 %s\n< 1 -32601" % call for call in (
            "tools/list", 'tools/call {"name": "x"}', "resources/list",
            "resources/templates/list", 'resources/read {"uri": "x://y"}',
            "prompts/list", 'prompts/get {"name": "x"}',
            ('completion/complete {"ref": {"type": "ref/prompt", "name": "x"}, '
             '"argument": {"name": "a", "value": ""}}'),
            'resources/subscribe {"uri": "x://y"}')), era=era)

    def test_results_of_the_handshake_era_have_no_members_of_the_stateless_era(self):
        play(zoo(page_size=1), """
            > 1 tools/list
            <= 1 {"tools": "...", "nextCursor": "$next"}
            > 2 tools/list {"cursor": "$next"}
            <= 2 {"tools": "..."}
            > 6 resources/read {"uri": "zoo://sign"}
            <= 6 {"contents": [{"uri": "zoo://sign", "mimeType": "text/plain", "text":
                "open"}]}
            > 7 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
            <= 7 {"messages": [{"role": "user", "content": {"type": "text", "text":
                "Hello, Ada"}}]}
            > 8 tools/call {"name": "echo", "arguments": {"text": "x"}}
            <= 8 {"content": [{"type": "text", "text": "x"}], "isError": false}
            > 9 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "A"}}
            <= 9 {"completion": {"values": ["Ada", "Alan"], "total": 2, "hasMore":
                false}}
            > 11 logging/setLevel {"level": "error"}
            <= 11 {}
            """, era="legacy")


class Test7Stateless(unittest.TestCase):
    """The revision in which each request carries all that it needs."""

    @clause("2026-07-28/server/discover", "Servers **MUST** implement it.")
    @clause("2026-07-28/basic/index",
            "The `result` **MUST** include a `resultType` field to indicate the type "
            "of the result.")
    @clause("2026-07-28/server/utilities/caching", "`ttlMs`")
    def test_results_have_their_type_and_how_long_they_may_be_cached(self):
        server = zoo(cache_ttl=1.5, cache_scope="private", page_size=1)
        cached = ["tools/list", 'tools/list {"cursor": "$next"}', "prompts/list",
                  "resources/list", "resources/templates/list",
                  'resources/read {"uri": "zoo://sign"}']
        play(server, """
            > 1 tools/list
            < 1 {"nextCursor": "$next"}
            """ + "".join("""
            > 2 %s
            < 2 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private",
                "_meta": {"@serverInfo": {"name": "zoo"}}}
            """ % call for call in cached) + """
            > 7 server/discover
            <= 7 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private",
                "supportedVersions": ["2026-07-28"], "capabilities": "...", "_meta":
                {"@serverInfo": {"name": "zoo", "version": "1"}}}
            # other results may not be cached
            > 8 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
            <= 8 {"resultType": "complete", "messages": "...", "_meta": "..."}
            > 9 tools/call {"name": "echo", "arguments": {"text": "x"}}
            <= 9 {"resultType": "complete", "content": [{"type": "text", "text": "x"}],
                "isError": false, "_meta": {"@serverInfo": "..."}}
            > 10 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "A"}}
            <= 10 {"resultType": "complete", "completion": "...", "_meta": "..."}
            """, era="modern")

    @clause("2026-07-28/basic/versioning",
            "it **MUST** respond with an [`UnsupportedProtocolVersionError`]")
    def test_the_error_for_an_unsupported_version_lists_the_supported_versions(self):
        for version in "2099-01-01", "2025-11-25", "", "2026-07-28 ":
            play(zoo(), """
                > 1 modern tools/list {"_meta": {"@protocolVersion": "$v"}}
                < 1 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > 2 modern server/discover {"_meta": {"@protocolVersion": "$v"}}
                < 2 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > 3 initialize 2025-11-25
                < 3 {"protocolVersion": "2025-11-25"}
                """, v=version)

    @clause("2026-07-28/basic/index",
            "A request missing any required field is malformed; the server **MUST** "
            "reject it with JSON-RPC error code `-32602` (Invalid params).")
    def test_the_error_names_the_invalid_metadata(self):
        play(zoo(), """
            > 1 tools/list {"_meta": {"@protocolVersion": "2026-07-28"}}
            < 1 -32602 "@clientCapabilities"
            > 2 tools/list {"_meta": {"@clientCapabilities": {}}}
            < 2 -32602 "@protocolVersion"
            # clientInfo is optional
            > 3 tools/list {"_meta": {"@protocolVersion": "2026-07-28",
                "@clientCapabilities": {}}}
            < 3 {"resultType": "complete"}
            """ + "".join("""
            > 4 modern tools/list {"_meta": {"@%s": %s}}
            < 4 -32602 "@%s"
            """ % (key, value, key) for key, value in (
                ("clientCapabilities", "[]"), ("clientCapabilities", "null"),
                ("protocolVersion", "7"), ("protocolVersion", "null"),
                ("clientInfo", "42"), ("logLevel", '"loud"'), ("logLevel", "7"))))

    def test_metadata_that_is_not_an_object_gets_a_response(self):
        with wire(zoo()) as client:
            for opening in "", "> handshake":
                play(client, opening)
                for meta in "null", "7", '"x"', "[]":
                    response = client.ask(
                        '1 tools/call {"name": "echo", "_meta": %s}' % meta)
                    self.assertEqual(response["id"], 1)

    def test_methods_of_the_other_era_are_unknown(self):
        methods = ("initialize", "ping", 'logging/setLevel {"level": "info"}',
                   'resources/subscribe {"uri": "zoo://sign"}',
                   'resources/unsubscribe {"uri": "zoo://sign"}', "nope", "roots/list")
        play(zoo(), "".join("""
            > 1 modern %s
            < 1 -32601 {"method": "%s"}
            """ % (method, method.split()[0]) for method in methods) + """
            > 8 tools/list
            < 8 -32600 "initialize"
            """)
        play(zoo(), """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            < 1 -32601
            > 2 server/discover
            < 2 -32602 "@protocolVersion"
            """, era="legacy")

    @clause("2026-07-28/basic/versioning",
            "A dual-era server **MAY** serve both eras concurrently on the same "
            "endpoint or process.")
    @clause("2026-07-28/basic/index",
            "Servers **MUST NOT** rely on prior requests over the same connection to "
            "establish context")
    def test_one_connection_may_carry_requests_of_both_eras(self):
        server = Server("s")

        @server.tool
        def describe(ctx: Context) -> dict:
            return {"version": ctx.protocol_version, "client": ctx.client_info,
                    "capabilities": sorted(ctx.client_capabilities), "meta": ctx.meta}

        play(server, """
            > 1 modern server/discover
            < 1 {"supportedVersions": ["2026-07-28"]}
            > 2 tools/call {"name": "describe"}
            < 2 -32600 "initialize"
            > 3 initialize 2025-06-18 {"capabilities": {"roots": {}}}
            < 3 {"protocolVersion": "2025-06-18"}
            > 4 modern tools/call {"name": "describe", "_meta":
                {"@clientInfo": {"name": "another", "version": "2"}}}
            < 4 {"resultType": "complete", "structuredContent": {"version":
                "2026-07-28", "client": {"name": "another"}, "capabilities":
                ["elicitation", "roots", "sampling"]}}
            > 5 tools/call {"name": "describe", "_meta": {"traceparent": "00-0af7-01",
                "com.example/x": [1]}}
            <= 5 {"content": "...", "isError": false, "structuredContent": {"version":
                "2025-06-18", "client": {"name": "tester", "version": "1"},
                "capabilities": ["roots"], "meta": {"traceparent": "00-0af7-01",
                "com.example/x": [1]}}}
            > 6 modern tools/call {"name": "describe", "_meta":
                {"@clientCapabilities": {}}}
            < 6 {"structuredContent": {"capabilities": []}}
            > 7 ping
            <= 7 {}
            """)

    # -- subscriptions/listen ----------------------------------------------------------

    @clause("2026-07-28/basic/patterns/subscriptions",
            "The server **MUST** send `notifications/subscriptions/acknowledged` as "
            "the first message carrying the subscription's ID")
    @clause("2026-07-28/basic/patterns/subscriptions",
            "The server **MUST NOT** send notification types the client has not "
            "explicitly requested.")
    def test_each_stream_gets_the_notifications_that_it_requested(self):
        server = zoo()
        play(server, """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true,
                "resourceSubscriptions": ["zoo://sign", "zoo://other"]}}
            < notifications/subscriptions/acknowledged {"_meta": {"@subscriptionId": 1},
                "notifications": {"toolsListChanged": true, "resourceSubscriptions":
                ["zoo://sign", "zoo://other"]}}
            > "1" subscriptions/listen {"notifications": {"promptsListChanged": true,
                "toolsListChanged": false}}
            < notifications/subscriptions/acknowledged {"_meta": {"@subscriptionId":
                "1"}, "notifications": {"promptsListChanged": true}}
            > 3 subscriptions/listen {"notifications": {}}
            < notifications/subscriptions/acknowledged {"_meta": {"@subscriptionId": 3}}
            ! tool
            < notifications/tools/list_changed {"_meta": {"@subscriptionId": 1}}
            ! prompt
            < notifications/prompts/list_changed {"_meta": {"@subscriptionId": "1"}}
            ! resource
            < fence
            ! sign
            < notifications/resources/updated {"uri": "zoo://sign", "_meta":
                {"@subscriptionId": 1}}
            ! third_uri
            < fence
            # at the end of input each stream gets its result
            > EOF
            <* 1 {}
            <* "1" {"resultType": "complete", "_meta": {"@subscriptionId": "1"}}
            <* 3 {"resultType": "complete", "_meta": {"@subscriptionId": 3}}
            """, era="modern",
             tool=lambda: server.add_tool(lambda: None, name="late"),
             prompt=lambda: server.add_prompt(lambda: "x", name="late"),
             resource=lambda: server.add_resource("zoo://late", lambda: "x"),
             sign=lambda: server.notify_resource_updated("zoo://sign"),
             third_uri=lambda: server.notify_resource_updated("zoo://third"))

    def test_a_cancelled_stream_gets_nothing_more_and_its_id_is_free(self):
        server = zoo(max_workers=1)
        play(server, """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            < notifications/subscriptions/acknowledged
            > 1 tools/list
            < 1 -32600
            # a stream holds no worker
            > 2 tools/call {"name": "echo", "arguments": {"text": "x"}}
            < 2 {"isError": false}
            > notifications/cancelled {"requestId": 1}
            < fence
            ! change
            < fence
            > 1 tools/list
            < 1 {"resultType": "complete"}
            # a stream that opens at the end of input is ended too
            > 2 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            > EOF
            < notifications/subscriptions/acknowledged {}
            < 2 {"resultType": "complete"}
            """, era="modern", change=lambda: server.remove_tool("echo"))

    def test_an_invalid_filter_of_notifications_is_refused(self):
        play(zoo(), """
            > 1 subscriptions/listen
            < 1 -32602 "notifications"
            > 3 subscriptions/listen {"notifications": {"toolsListChanged": "yes"}}
            < 3 -32602 "toolsListChanged"
            > 5 subscriptions/listen {"notifications": {"resourceSubscriptions": [1]}}
            < 5 -32602 "resourceSubscriptions"
            """, era="modern")

    def test_the_end_of_a_connection_removes_its_streams(self):
        """Fails (the server grows with every client) if only a cancellation does."""
        server = zoo()

        def serve():
            writer = io.BytesIO()
            server.serve(io.BytesIO(raw(
                '1 modern subscriptions/listen {"notifications": {}}')), writer)
            return weakref.ref(writer)

        written = serve()
        wait_until(lambda: [gc.collect()] and written() is None)

    def test_no_notification_comes_before_the_acknowledgement(self):
        """Tools come and go while streams are opened and cancelled.  Fails if a stream
        is registered and acknowledged under two locks, or not removed."""
        server, stop, state = zoo(), threading.Event(), {}

        def change():
            while not stop.is_set():
                server.add_tool(lambda: None, name="new")
                server.remove_tool("new")

        changing = threading.Thread(target=change)
        with switch_threads_often(), wire(server) as client:
            changing.start()
            try:
                for n in range(100):
                    client.say('%d modern subscriptions/listen {"notifications": '
                               '{"toolsListChanged": true}}' % n)
                    client.say('notifications/cancelled {"requestId": %d}' % n)
                    client.say('"after %d" ping' % n)
            finally:
                stop.set()
                changing.join()
            for received in client.hang_up():
                if "id" in received:   # the ping: from here on the stream is cancelled
                    state[int(received["id"][6:])] = "cancelled"
                    continue
                n = received["params"]["_meta"][KEY + "subscriptionId"]
                first = received["method"].endswith("acknowledged")
                self.assertEqual(state.get(n), None if first else "open", received)
                state[n] = "open"
        self.assertEqual(state, dict.fromkeys(range(100), "cancelled"))

    # -- notifications of changes ------------------------------------------------------

    def test_changes_before_initialized_are_not_sent(self):
        server, names = zoo(), iter("ab")
        play(server, """
            > 1 initialize 2025-11-25
            < 1 {}
            > 2 resources/subscribe {"uri": "zoo://sign"}
            <= 2 {}
            ! update
            < fence
            > notifications/initialized
            < fence
            ! update
            <* notifications/resources/updated {"uri": "zoo://sign"}
            <* notifications/tools/list_changed
            """, update=lambda: (server.add_tool(lambda: None, name=next(names)),
                                 server.notify_resource_updated("zoo://sign")))

    def test_a_change_of_a_list_is_sent_only_if_that_was_declared(self):
        declared = {"tools": {"listChanged": True}}
        for capabilities, expected in (
                ({}, "fence"), (declared, "notifications/tools/list_changed")):
            server = Server("s", capabilities=capabilities)
            play(server, """
                < fence
                ! change
                < %s
                """ % expected, era="legacy",
                 change=lambda server=server: server.add_tool(lambda: None, name="t"))

    @clause("2025-11-25/server/resources", "notifications/resources/updated")
    def test_a_change_is_told_once_to_each_subscriber(self):
        """A session and streams of one connection, also if each has asked twice."""
        server = zoo()
        with wire(server) as other:
            play(other, "> handshake")
            play(server, """
                > handshake
                > 1 resources/subscribe {"uri": "zoo://sign"}
                <= 1 {}
                > 2 resources/subscribe {"uri": "zoo://sign"}
                <= 2 {}
                > 3 modern subscriptions/listen {"notifications": {"toolsListChanged":
                    true, "resourceSubscriptions": ["zoo://sign", "zoo://sign"]}}
                < notifications/subscriptions/acknowledged {}
                > 4 modern subscriptions/listen {"notifications":
                    {"resourceSubscriptions": ["zoo://sign"]}}
                < notifications/subscriptions/acknowledged {}
                ! update
                <* notifications/resources/updated {"_meta": {"@subscriptionId": 3}}
                <* notifications/resources/updated {"_meta": {"@subscriptionId": 4}}
                <* notifications/resources/updated {"uri": "zoo://sign"}
                < fence
                ! another
                < fence
                > notifications/cancelled {"requestId": 3}
                > 5 resources/unsubscribe {"uri": "zoo://sign"}
                <= 5 {}
                > 5 resources/unsubscribe {"uri": "zoo://never"}
                <= 5 {}
                ! update
                < notifications/resources/updated {"_meta": {"@subscriptionId": 4}}
                < fence
                # a second handshake ends no subscription
                > 6 resources/subscribe {"uri": "zoo://sign"}
                <= 6 {}
                > handshake
                > notifications/cancelled {"requestId": 4}
                < fence
                ! update
                < notifications/resources/updated {"uri": "zoo://sign"}
                > 7 resources/subscribe {}
                < 7 -32602 "uri"
                > 7 resources/subscribe {"uri": 7}
                < 7 -32602 "uri"
                """, update=lambda: server.notify_resource_updated("zoo://sign"),
                 another=lambda: server.notify_resource_updated("zoo://another"))
            other.fence()

    def test_a_change_right_after_the_acknowledgement_is_told(self):
        """Fails if a stream is acknowledged before it is registered."""
        server = zoo()
        with switch_threads_often(), wire(server) as client:
            for n in range(50):
                client.ask('%d modern subscriptions/listen {"notifications": '
                           '{"toolsListChanged": true}}' % n)
                server.add_tool(lambda: None, name="t%d" % n)
                received = client.recv()
                self.assertEqual(received["method"], "notifications/tools/list_changed")
                client.say('notifications/cancelled {"requestId": %d}' % n)
                client.fence()

    # -- log messages ------------------------------------------------------------------

    def logger(self):
        """A server whose tool `talk` logs at three levels, and once as `db`."""
        server = Server("s")

        @server.tool
        def talk(ctx: Context):
            ctx.debug("low")
            ctx.info("middle")
            ctx.log("error", {"code": 7}, logger_name="db")
            ctx.emergency("high")
        return server

    LOGGED = tuple(  # what `talk` sends
        "< notifications/message {%s}\n" % params for params in (
            '"level": "debug", "data": "low"', '"level": "info", "data": "middle"',
            '"level": "error", "data": {"code": 7}, "logger": "db"',
            '"level": "emergency", "data": "high"'))

    @clause("2025-11-25/server/utilities/logging",
            "Invalid log level: `-32602` (Invalid params)")
    def test_a_session_sets_its_log_level(self):
        play(self.logger(), """
            > 1 tools/call {"name": "talk"}
            %s
            < 1 {"content": "..."}
            > 2 logging/setLevel {"level": "alert"}
            <= 2 {}
            > 3 tools/call {"name": "talk"}
            %s
            < 3 {}
            > 5 logging/setLevel {"level": 7}
            < 5 -32602 "level"
            > 7 logging/setLevel {"level": "debug"}
            <= 7 {}
            > 8 tools/call {"name": "talk"}
            %s
            < 8 {}
            """ % ("".join(self.LOGGED[1:]), self.LOGGED[3], "".join(self.LOGGED)),
             era="legacy")

    @clause("2026-07-28/server/utilities/logging",
            "The server **MUST NOT** emit `notifications/message` for a request that "
            "does not include this field.")
    def test_each_stateless_request_sets_its_own_log_level(self):
        play(self.logger(), """
            # the level of a session does not apply to stateless requests
            > handshake
            > 1 logging/setLevel {"level": "debug"}
            <= 1 {}
            > 2 modern tools/call {"name": "talk"}
            < 2 {"content": "..."}
            > 3 modern tools/call {"name": "talk", "_meta": {"@logLevel": "alert"}}
            %s
            < 3 {}
            > 4 modern tools/call {"name": "talk"}
            < 4 {}
            """ % self.LOGGED[3])


# ======================================================================================
# 8, 9  Content and schema
# ======================================================================================

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Address:
    street: str
    zip: Optional[str] = None


@dataclasses.dataclass
class User:
    name: Annotated[str, "Full name"]
    home: Address
    tags: List[str] = dataclasses.field(default_factory=list)
    born: Optional[datetime.date] = None
    color: Color = Color.RED
    greeting: str = dataclasses.field(init=False)

    def __post_init__(self):
        if not self.name:
            raise ValueError("a user has a name")
        self.greeting = "Hi " + self.name


@dataclasses.dataclass
class Tree:
    leaf: int
    below: "List[Tree]"


@dataclasses.dataclass
class Spot:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: Annotated[int, {"minimum": 1888}]


class Partial(TypedDict, total=False):
    stars: int


UserId = NewType("UserId", int)
NO_DEFAULT = object()

# The schemas of some of these types
CLOSED = {"additionalProperties": False}
INTEGERS = {"type": "array", "items": {"type": "integer"}}
OPTIONAL_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
COLOR = {"type": "string", "enum": ["red", "blue"]}
ADDRESS = {"type": "object", "properties": {
    "street": {"type": "string"}, "zip": {"type": "string"}},
    "required": ["street"], **CLOSED}


def spot_schema(**keywords):
    return {"type": "object", "properties": {"x": {"type": "integer"}, "y": {
        "type": "integer", "default": 0}}, "required": ["x"], **CLOSED, **keywords}


# (hint, schema, [(JSON, the argument of the handler)], [(JSON, the problem)])
HINTS = [
    (str, {"type": "string"}, [("5", "5"), ("", "")],
     [(5, "x: expected string, got 5"), (None, "x: expected string, got null")]),
    (int, {"type": "integer"}, [(5, 5), (5.0, 5), ("5", 5), ("-7", -7)],
     [(" 5", 'x: expected integer, got " 5"'),
      ("5.0", 'x: expected integer, got "5.0"'),
      (5.5, "x: expected integer, got 5.5"), (True, "x: expected integer, got true"),
      ("1_0", 'x: expected integer, got "1_0"'),
      ("007", 'x: expected integer, got "007"'),
      ("null", 'x: expected integer, got "null"')]),
    (float, {"type": "number"}, [(5, 5.0), (5.5, 5.5), ("5.5", 5.5), ("5", 5.0)],
     [("soon", 'x: expected number, got "soon"'),
      ("NaN", 'x: expected number, got "NaN"'),
      (10 ** 400, "x: int too large to convert to float")]),
    (bool, {"type": "boolean"}, [(True, True), ("true", True), ("false", False)],
     [(1, "x: expected boolean, got 1"), ("yes", 'x: expected boolean, got "yes"'),
      ("True", 'x: expected boolean, got "True"')]),
    (None, {"type": "null"}, [(None, None)], [(0, "x: expected null, got 0")]),
    (Any, {}, [("5", "5"), (None, None), ([1], [1])], []),
    (object, {}, [({"a": 1}, {"a": 1})], []),
    (list, {"type": "array", "items": {}}, [([1, "a"], [1, "a"]), ("[1]", [1])],
     [("x", 'x: expected array, got "x"'), ({}, "x: expected array, got an object")]),
    (List[int], INTEGERS, [([1, "2", 3.0], [1, 2, 3]), ('["1"]', [1])],
     [([1, "a"], 'x[1]: expected integer, got "a"')]),
    (Sequence[str], {"type": "array", "items": {"type": "string"}}, [(["1"], ["1"])],
     [([1], "x[0]: expected string, got 1")]),
    (Iterable[bool], {"type": "array", "items": {"type": "boolean"}},
     [(["true"], [True])], []),
    (dict, {"type": "object"}, [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1})],
     [([], "x: expected object, got an array")]),
    (Dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}},
     [({"a": 1, "b": "2"}, {"a": 1.0, "b": 2.0})],
     [({"a": "z"}, 'x.a: expected number, got "z"')]),
    (Mapping[str, Any], {"type": "object"}, [({"a": None}, {"a": None})], []),
    (tuple, {"type": "array", "items": {}}, [([1, "a"], (1, "a"))], []),
    (set, {"type": "array", "items": {}, "uniqueItems": True}, [([1], {1})], []),
    (Sequence, {"type": "array", "items": {}}, [([1], [1])], []),
    (Tuple[int, str], {"type": "array", "prefixItems": [
        {"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
     [([1, "a"], (1, "a")), (["1", "a"], (1, "a"))],
     [([1], "x: expected at least 2 items, got 1"),
      ([1, 2], "x[1]: expected string, got 2")]),
    (Tuple[int, ...], INTEGERS, [([1, 2], (1, 2))], []),
    (Set[int], {**INTEGERS, "uniqueItems": True},
     [([1, 2], {1, 2})], [([1, 1.0], "x: expected items that differ, got an array")]),
    (FrozenSet[str], {"type": "array", "items": {"type": "string"},
     "uniqueItems": True},
     [(["a"], frozenset("a"))], []),
    (Optional[int], OPTIONAL_INTEGER,
     [(5, 5), (None, None), ("5", 5)],
     [("a", 'x: expected integer or null, got "a"'),
      ("null", 'x: expected integer or null, got "null"')]),
    (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]},
     [(5, 5), ("5", "5")], [([], "x: expected integer or string, got an array")]),
    (Union[datetime.date, str], {"anyOf": [
        {"type": "string", "format": "date"}, {"type": "string"}]},
     [("2024-05-06", datetime.date(2024, 5, 6)), ("soon", "soon")], []),
    (Union[Spot, Address], {"anyOf": [spot_schema(), ADDRESS]},
     [({"x": 1}, Spot(1)), ({"street": "a", "zip": None}, Address("a"))],
     [({"x": "a"}, 'x.x: expected integer, got "a"'),
      (5, "x: expected object, got 5")]),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, [("a", "a")],
     [("c", 'x: expected one of "a", "b", got "c"')]),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, [(1, 1), ("2", 2), (1.0, 1)],
     [(True, "x: expected integer, got true"), (3, "x: expected one of 1, 2, got 3")]),
    (Literal[1, "a", None], {"enum": [1, "a", None]}, [(None, None), (1, 1)],
     [(True, 'x: expected one of 1, "a", null, got true')]),
    (Color, COLOR, [("red", Color.RED)],
     [("RED", 'x: expected one of "red", "blue", got "RED"')]),
    (Level, {"type": "integer", "enum": [1, 2]}, [(2, Level.HIGH), ("1", Level.LOW)],
     []),
    (Optional[Color], {"anyOf": [COLOR, {"type": "null"}]}, [("red", Color.RED)],
     [("x", 'x: expected one of "red", "blue" or null, got "x"')]),
    (Movie, {"type": "object", "properties": {
        "title": {"type": "string"}, "year": {"type": "integer", "minimum": 1888}},
        "required": ["title", "year"], **CLOSED},
     [({"title": "M", "year": "1931"}, {"title": "M", "year": 1931})],
     [({"title": "M", "year": 7}, "x.year: expected at least 1888, got 7"),
      ({"title": "M"}, "x.year: missing (required)"),
      ({"title": "M", "year": 1931, "yaer": 1},
       "x.yaer: unknown; known are: title, year")]),
    (Partial, {"type": "object", "properties": {"stars": {"type": "integer"}},
     **CLOSED},
     [({}, {}), ({"stars": 5}, {"stars": 5})], []),
    (Spot, spot_schema(), [({"x": 1}, Spot(1)), ({"x": "1", "y": 2.0}, Spot(1, 2))],
     [([1, 2], "x: expected object, got an array")]),
    (Address, ADDRESS,
     [({"street": "a"}, Address("a")), ({"street": "a", "zip": None}, Address("a"))],
     [({"street": None}, "x.street: expected string, got null")]),
    (User, {"type": "object", "properties": {
        "name": {"type": "string", "description": "Full name"},
        "home": ADDRESS, "tags": {"type": "array", "items": {"type": "string"}},
        "born": {"type": "string", "format": "date"},
        "color": {**COLOR, "default": "red"}},
        "required": ["name", "home"], **CLOSED},
     [({"name": "Al", "home": {"street": "a"}, "born": "2000-01-02", "color": "blue"},
       User("Al", Address("a"), [], datetime.date(2000, 1, 2), Color.BLUE))],
     [({"name": "", "home": {"street": "a"}}, "x: a user has a name"),
      ({"name": "Al", "home": {"street": 5}}, "x.home.street: expected string, got 5"),
      ({"name": "Al", "home": {"street": "a"}, "born": "soon"},
       'x.born: expected date, got "soon"')]),
    (UserId, {"type": "integer"}, [(5, 5)], []),
    (Annotated[int, "How many", {"minimum": 1}],
     {"type": "integer", "description": "How many", "minimum": 1}, [(1, 1), ("2", 2)],
     [(0, "x: expected at least 1, got 0")]),
    (List[Annotated[str, {"pattern": "^a$"}]],
     {"type": "array", "items": {"type": "string", "pattern": "^a$"}}, [(["a"], ["a"])],
     [(["a\n"], 'x[0]: expected text like "^a$", got "a\\n"')]),
    (Annotated[Optional[Annotated[int, "inner"]], "outer"],
     {"anyOf": [{"type": "integer", "description": "inner"}, {"type": "null"}],
      "description": "outer"}, [(None, None)], []),
    (datetime.datetime, {"type": "string", "format": "date-time"},
     [("2024-05-06T07:08:09Z", datetime.datetime(
         2024, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)),
      ("2024-05-06T07:08:09.5", datetime.datetime(2024, 5, 6, 7, 8, 9, 500000))],
     [("noon", 'x: expected date-time, got "noon"')]),
    (datetime.date, {"type": "string", "format": "date"},
     [("2024-05-06", datetime.date(2024, 5, 6))],
     [("2024-13-01", 'x: expected date, got "2024-13-01"'),
      (5, "x: expected string, got 5")]),
    (datetime.time, {"type": "string", "format": "time"},
     [("07:08", datetime.time(7, 8))], [("25:00", 'x: expected time, got "25:00"')]),
    (uuid.UUID, {"type": "string", "format": "uuid"},
     [("12345678-1234-5678-1234-567812345678",
       uuid.UUID("12345678-1234-5678-1234-567812345678"))],
     [("x", 'x: expected uuid, got "x"')]),
    (pathlib.Path, {"type": "string", "format": "path"},
     [("a/b", pathlib.Path("a/b"))], []),
    (decimal.Decimal, {"type": ["string", "number"], "format": "decimal"},
     [("0.10", decimal.Decimal("0.10")), (0.1, decimal.Decimal("0.1"))],
     [("x", 'x: expected decimal, got "x"'),
      (None, "x: expected string or number, got null")]),
    (bytes, {"type": "string", "contentEncoding": "base64"},
     [("aGk=", b"hi"), ("", b"")],
     [("aGk", 'x: expected base64, got "aGk"'),
      ("!!!!", 'x: expected base64, got "!!!!"')]),
]


def function(hint, default=NO_DEFAULT):
    """A function with one parameter x of that hint."""
    def handler(x):
        return x
    handler.__annotations__ = {"x": hint}
    handler.__defaults__ = None if default is NO_DEFAULT else (default,)
    return handler


def parameter_schema(hint, *default):
    """The schema of one parameter with that hint."""
    return Signature(function(hint, *default)).schema["properties"]["x"]


class Test8Content(unittest.TestCase):
    def test_what_is_assigned_to_a_field_is_sent(self):
        """Middleware assigns."""
        result = mcp_min.ToolResult("x")
        result.structured_content = {"a": 1}
        self.assertEqual(result["structuredContent"], {"a": 1})
        self.assertEqual(result.data, {"a": 1})
        message = mcp_min.Message("hello")
        message.role, message.content.text = "assistant", "bye"
        self.assertEqual(message, mcp_min.Message("bye", "assistant"))

    def test_fields_that_were_not_received_are_none(self):
        sampled = mcp_min.Sampled.of({"content": {"type": "text", "text": "x"}})
        result = mcp_min.ToolResult.of({"content": [sampled["content"]]})
        self.assertIsNone(sampled.stopReason)
        self.assertIsNone(sampled.content.annotations)
        self.assertIsNone(result.content[0].annotations)
        with self.assertRaises(AttributeError):
            sampled.colour  # noqa: B018

    def test_fields_that_are_none_are_left_out_and_unknown_ones_refused(self):
        link = mcp_min.ResourceLink("a:b", "n", mime_type=None, meta={"x": 1})
        self.assertEqual(link, {"type": "resource_link", "uri": "a:b", "name": "n",
                                "_meta": {"x": 1}})
        with self.assertRaisesRegex(TypeError, "ResourceLink has no field colour"):
            mcp_min.ResourceLink("a:b", "n", colour="red")

    def test_the_type_of_an_image_is_guessed_from_its_first_bytes(self):
        for data, mime_type in (
                (b"\xff\xd8\xff.", "image/jpeg"), (b"GIF89a", "image/gif"),
                (b"RIFF....WEBP", "image/webp"), (b"?", "image/png")):
            self.assertEqual(mcp_min.Image(data).mime_type, mime_type)

    def test_a_message_needs_content_and_one_of_two_roles(self):
        self.assertRaises(TypeError, mcp_min.Message, "user", None)
        self.assertRaises(TypeError, mcp_min.Message, "user", "x", colour="red")
        self.assertRaises(ValueError, mcp_min.Message, "robot", "x")


class Test9TypeHints(unittest.TestCase):
    """A hint becomes a JSON Schema, and a JSON argument becomes a Python object."""

    def test_each_hint_has_its_schema_and_converts_arguments(self):
        for hint, schema, accepted, refused in HINTS:
            signature = Signature(function(hint))
            with self.subTest(hint=hint):
                self.assertEqual(signature.schema, {
                    "type": "object", "properties": {"x": schema}, "required": ["x"],
                    "additionalProperties": False})
                json.dumps(signature.schema)
            for argument, expected in accepted:
                with self.subTest(hint=hint, argument=argument):
                    value = signature.bind({"x": argument})["x"]
                    self.assertEqual((value, type(value)), (expected, type(expected)))
            for argument, problem in refused:
                with self.subTest(hint=hint, argument=argument):
                    with self.assertRaises(ValidationError) as caught:
                        signature.bind({"x": argument})
                    self.assertEqual("; ".join(sorted(caught.exception.problems)),
                                     problem)

    def test_strict_binding_converts_no_text(self):
        for hint, argument in (int, "5"), (bool, "true"), (List[int], ["5"]):
            with self.subTest(hint=hint), self.assertRaises(ValidationError):
                Signature(function(hint)).bind({"x": argument}, strict=True)
        self.assertEqual(Signature(function(int)).bind({"x": 5.0}, True), {"x": 5})

    def test_the_schema_has_the_default_if_it_can_be_written_as_json(self):
        rows = [
            (int, 3, {"type": "integer", "default": 3}),
            (Color, Color.BLUE, {**COLOR, "default": "blue"}),
            (Spot, Spot(1), spot_schema(default={"x": 1, "y": 0})),
            (Any, object(), {}),
            (float, math.inf, {"type": "number"}),
            (Optional[int], None, {"type": "integer"}),
            (Optional[int], 5, {**OPTIONAL_INTEGER, "default": 5}),
            (str, None, {"type": "string"}),
            (Annotated[Optional[int], "n"], None,
             {"type": "integer", "description": "n"}),
            (Optional[Union[int, str]], None,
             {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ]
        for hint, default, schema in rows:
            with self.subTest(hint=hint, default=default):
                self.assertEqual(Signature(function(hint, default)).schema, {
                    "type": "object", "properties": {"x": schema}, **CLOSED})

    def test_null_means_absent_only_if_the_default_is_none(self):
        optional = Signature(function(Optional[int], None))
        for strict in (False, True):
            self.assertEqual(optional.bind({"x": None}, strict), {"x": None})
        self.assertEqual(Signature(function(Any, None)).bind({"x": None}), {"x": None})
        with self.assertRaises(ValidationError):
            Signature(function(int, 3)).bind({"x": None})

    def test_a_parameter_without_a_schema_is_refused_by_name(self):
        def by_position(x, /): ...
        def with_args(*args): ...
        def with_kwargs(**kwargs): ...
        local = dataclasses.make_dataclass("Local", [("z", complex)])
        rows = [
            (function(complex),
             "handler(): parameter x: complex cannot be described"),
            (function(Tree), "parameter x: below: Tree is recursive"),
            (function(local), "parameter x: z: complex cannot be described"),
            (function(Dict[int, str]),
             "parameter x: the keys of a JSON object are str"),
            (function(typing.TypeVar("T")), "parameter x: ~T cannot be described"),
            (function("Nowhere"),
             "parameter x: 'Nowhere': name 'Nowhere' is not defined"),
            (with_args, "parameter args: arguments have names: no /, *args"),
            (with_kwargs, "parameter kwargs: arguments have names"),
            (dict, "no signature found"),
            (by_position, "parameter x: arguments have names: no /")]
        for fn, message in rows:
            with self.subTest(message), self.assertRaises(TypeError) as caught:
                Signature(fn, Context)
            self.assertIn(message, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "x: minimum: expected number, got"):
            Signature(function(Annotated[int, {"minimum": "1"}]))

    @unittest.skipIf(sys.version_info < (3, 11), "Required is of Python 3.11")
    def test_keys_may_be_marked_as_required_or_not(self):
        book = TypedDict("book", {"title": typing.Required[str],
                                  "year": typing.NotRequired["int"]}, total=False)
        self.assertEqual(parameter_schema(book), {"type": "object", "properties": {
            "title": {"type": "string"}, "year": {"type": "integer"}},
            "required": ["title"], **CLOSED})

    @unittest.skipIf(sys.version_info < (3, 12), "`type X = …` is of Python 3.12")
    def test_a_type_alias_has_the_schema_of_its_hint_and_must_not_be_recursive(self):
        names = {}
        # by exec, because older versions of Python have no such statement
        exec("type Ids = list[int]\ntype Nest = list[Nest] | int", names)  # noqa: S102
        self.assertEqual(parameter_schema(names["Ids"]), INTEGERS)
        with self.assertRaisesRegex(TypeError, "x: Nest is recursive"):
            Signature(function(names["Nest"]))

    def test_annotations_may_be_strings(self):
        rows = [("int", {"type": "integer"}), ("list[int]", INTEGERS),
                ("int | None", OPTIONAL_INTEGER), ("Optional['int']", OPTIONAL_INTEGER),
                ("list[Color | None]", {"type": "array", "items": {"anyOf": [
                    COLOR, {"type": "null"}]}}),
                ("Annotated[int, 'How many', {'minimum': 1}]",
                 {"type": "integer", "description": "How many", "minimum": 1}),
                ("'Color'", COLOR),
                (Optional["Spot"], {"anyOf": [spot_schema(), {"type": "null"}]}),
                ("Literal['a|b']", {"type": "string", "enum": ["a|b"]})]
        for hint, schema in rows:
            with self.subTest(hint):
                if sys.version_info < (3, 10) and " | " in str(hint):
                    with self.assertRaisesRegex(TypeError, "parameter x: .* \\|: "):
                        parameter_schema(hint)
                else:
                    self.assertEqual(parameter_schema(hint), schema)

    def test_the_schema_of_a_result_describes_what_jsonable_returns(self):
        """A result that is no object is wrapped into one; some hints have no schema."""
        address = {"type": "object", "properties": {
            "street": {"type": "string"},
            "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "required": ["street"]}
        rows = [(dict, {"type": "object"}), (Address, address), (Dict[str, int], {
            "type": "object", "additionalProperties": {"type": "integer"}})]
        rows += [(hint, {
            "type": "object", "properties": {"result": schema}, "required": ["result"],
            "x-fastmcp-wrap-result": True}) for hint, schema in (
                (int, {"type": "integer"}), (Color, COLOR),
                (List[Address], {"type": "array", "items": address}),
                (Optional[int], OPTIONAL_INTEGER))]
        rows += [(hint, None) for hint in (str, None, Any, object, complex, Tree,
                                           Annotated[str, "a note"], Dict[int, str])]
        for hint, schema in rows:
            with self.subTest(hint=hint):
                self.assertEqual(output_schema_of(hint), schema)

    def test_an_object_is_wrapped_if_its_schema_is(self):
        """For a client the schema that it has listed says so, as well as `_meta`."""
        def find() -> Optional[Dict[str, int]]:
            return {"a": 1}

        server = Server("s")
        server.add_tool(find)
        with Client(server) as client:
            client.list_tools()
            result = client.call_tool("find")
            self.assertEqual(result.structured_content, {"result": {"a": 1}})
            del result["_meta"]
            self.assertEqual(result.data, {"a": 1})

    def test_an_unknown_return_type_means_no_output_schema(self):
        def fn(n: "Optional[int]" = None) -> "pandas.DataFrame": ...  # noqa: F821
        self.assertIsNone(output_schema_of(Signature(fn).returns))

    def test_a_dataclass_as_a_result_fits_its_schema(self):
        user = User("Al", Address("a"), ["t"], datetime.date(2000, 1, 2))
        schema = output_schema_of(User)
        self.assertEqual(validate(to_json_data(user), schema), [])
        self.assertIn("greeting", schema["properties"])


class Test9Signature(unittest.TestCase):
    """A signature binds the arguments of a request to the parameters of a handler."""

    def test_a_problem_names_the_argument_and_the_path_into_it(self):
        def forecast(city: str, days: int = 3, user: Optional[User] = None): ...
        bind = Signature(forecast).bind
        rows = [({}, ["city: missing (required)"]),
                ({"city": "Oslo", "days": "soon"},
                 ['days: expected integer, got "soon"']),
                ({"citty": "Oslo"}, ["city: missing (required)",
                                     "citty: unknown; known are: city, days, user"]),
                ({"city": "", "a\nb": 1},
                 ["a b: unknown; known are: city, days, user"]),
                ({"city": "secret" * 50, "days": []}, [
                    "days: expected integer, got an array"]),
                ({"city": "a", "user": {"name": "Al", "home": {"street": "a"},
                                        "tags": ["a", 2]}},
                 ["user.tags[1]: expected string, got 2"])]
        for arguments, problems in rows:
            with self.subTest(arguments), self.assertRaises(ValidationError) as caught:
                bind(arguments)
            self.assertEqual(caught.exception.problems, problems)

    def test_what_is_long_is_cut_and_of_many_only_the_first_are_listed(self):
        with self.assertRaises(ValidationError) as caught:
            Signature(function(List[int])).bind({"x": ["y" * 1000] * 1000})
        problems = caught.exception.problems
        self.assertEqual((len(problems), problems[-1]), (21, "… and 980 more"))
        self.assertLess(max(map(len, problems)), 100)
        rows = [({"enum": [*range(5000)]}, "expected one of 0, 1, 2"),
                ({"properties": {f"{n}": True for n in range(5000)},
                  "additionalProperties": False}, "known are: 0, 1, 2")]
        for schema, start in rows:
            (problem,) = validate({"z": 1}, schema)
            self.assertIn(start, problem)
            self.assertIn("99, … and 4900 more", problem)

    def test_any_callable_can_be_a_handler(self):
        class Tool:
            def method(self, a: int, b: str = "x"):
                "A method."
                return a, b
            @classmethod
            def klass(cls, a: int, b: str = "x"): return a, b
            @staticmethod
            def static(a: int, b: str = "x"): return a, b
            def __call__(self, a: int, b: str = "x"): return a, b
        def keyword(*, a: int, b: str = "x"): return a, b
        @functools.wraps(keyword)
        def wrapper(*args, **kwargs): return keyword(*args, **kwargs)
        def three(c, a: int, b: str = "x"): return a, b
        for fn in (Tool().method, Tool.klass, Tool.static, Tool.__dict__["static"],
                   Tool(), keyword, wrapper, functools.partial(three, 1)):
            with self.subTest(fn=fn):
                signature = Signature(fn)
                self.assertEqual([*signature.schema["properties"]], ["a", "b"])
                self.assertEqual(signature.schema["required"], ["a"])
                self.assertEqual(signature.fn(**signature.bind({"a": "1"})), (1, "x"))
                self.assertEqual(signature.fn(**signature.bind({"a": 1, "b": "y"})),
                                 (1, "y"))
        self.assertEqual(Signature(Tool().method).description, "A method.")

    def test_an_object_that_answers_every_attribute_is_no_handler(self):
        """Fails, by endless recursion, if each attribute is followed."""
        for thing in AnswersAll(), mock.Mock():
            self.assertRaises(TypeError, Server("s").add_tool, thing, name="t")

    def test_the_signature_attribute_is_seen(self):
        def tool(**arguments): return arguments
        tool.__signature__ = inspect.Signature([inspect.Parameter(
            "n", inspect.Parameter.KEYWORD_ONLY, annotation="int", default=1)],
            return_annotation="Dict[str, int]")
        signature = Signature(tool)
        self.assertEqual(signature.schema["properties"],
                         {"n": {"type": "integer", "default": 1}})
        self.assertEqual(signature.returns, Dict[str, int])
        self.assertEqual(signature.fn(**signature.bind({"n": "5"})), {"n": 5})

    def test_names_that_look_like_a_mistake_are_told_when_decorated(self):
        class Tools:
            def tool(self, n: int): ...
        def short(ctx, n: int): ...
        def long(context): ...
        def data(context: str): ...
        rows = [(short, "short(): did you mean `ctx: Context`?"),
                (long, "long(): did you mean `context: Context`?"),
                (Tools.tool, "tool(): did you mean a method of an object"),
                (Tools().tool, ""), (data, "")]
        for fn, text in rows:
            with self.subTest(text), quiet() as stderr:
                Server("s").add_tool(fn)
                self.assertIn(text, stderr.getvalue())
                self.assertEqual(bool(stderr.getvalue()), bool(text))

    def test_the_context_parameter_is_recognized_by_its_annotation(self):
        for hint in (Context, Optional[Context], "Context", "Optional[Context]",
                     Annotated[Context, "the context"]):
            def fn(a: int, ctx, b: int = 1): return a, ctx, b
            fn.__annotations__["ctx"] = hint
            with self.subTest(hint=hint):
                signature = Signature(fn, Context)
                self.assertEqual(signature.context, "ctx")
                self.assertEqual([*signature.schema["properties"]], ["a", "b"])
                with self.assertRaises(ValidationError):
                    signature.bind({"a": 1, "ctx": 1})
        self.assertFalse(Signature(function(int), Context).context)

    def test_a_given_schema_validates_and_the_hints_convert(self):
        schema = {"type": "object", "properties": {"when": {"$ref": "#/$defs/day"}},
                  "$defs": {"day": {"type": "string", "minLength": 10}}}
        def fn(when: datetime.date, **more): return when, more
        signature = Signature(fn, schema=schema)
        self.assertIs(signature.schema, schema)
        self.assertEqual(signature.bind({"when": "2024-05-06", "zz": 1}),
                         {"when": datetime.date(2024, 5, 6), "zz": 1})
        with self.assertRaisesRegex(ValidationError, "when: expected at least 10 char"):
            signature.bind({"when": "now"})
        with self.assertRaisesRegex(ValidationError, "when: missing"):
            signature.bind({})
        with self.assertRaisesRegex(ValidationError, "zz: unknown; known are: x"):
            Signature(function(int), schema={"type": "object"}).bind({"x": 1, "zz": 1})
        with self.assertRaises(SchemaError):
            Server("s").add_tool(function(int), input_schema={
                "type": "object", "$ref": "https://example.com/x"})

    def test_conversions_by_several_schemas_are_combined(self):
        """Fails if one branch of anyOf, allOf or oneOf discards what another converted.
        """
        def fn(**arguments): ...
        either = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
        b = {"properties": {"b": {"type": "integer"}}}
        rows = [(either, {"a": "1"}, {"a": 1}),
                ({"allOf": [b]}, {"a": "1", "b": "2"}, {"a": 1, "b": 2}),
                ({"oneOf": [b]}, {"a": "1", "b": "2"}, {"a": 1, "b": 2})]
        for keywords, arguments, bound in rows:
            schema = {"type": "object", "properties": {"a": {"type": "integer"}},
                      **keywords}
            with self.subTest(keywords):
                self.assertEqual(Signature(fn, schema=schema).bind(arguments), bound)
        dated = {"anyOf": [{"required": ["name"]}, {"required": ["born"]}]}
        user = {"name": "Al", "home": {"street": "a"}, "born": "2000-01-02"}
        bound = Signature(function(Annotated[User, dated])).bind({"x": user})
        self.assertEqual(bound["x"].born, datetime.date(2000, 1, 2))

    def test_arguments_that_cost_too_much_are_invalid(self):
        with mock.patch.object(mcp_min, "MAX_STEPS", 1000), self.assertRaisesRegex(
                ValidationError, "over 1,000 steps"):
            Signature(function(List[int])).bind({"x": [1] * 30_000})
        pattern = Annotated[str, {"pattern": "^a"}]  # its time may grow with the square
        with self.assertRaisesRegex(ValidationError, "no pattern is tried on over"):
            Signature(function(pattern)).bind({"x": "a" * 20_001})

    def test_binding_returns_a_new_dict(self):
        """Fails if `bind` returns the arguments of the request: the server adds the
        context to the bound arguments, and a question keeps the request for later."""
        for hint in int, Any, Literal[1]:
            arguments = {"x": 1}
            self.assertIsNot(Signature(function(hint)).bind(arguments), arguments)

    def test_descriptions_come_from_the_docstring_or_else_from_annotated(self):
        def fn(a: int, b: Annotated[str, "B."], c: Annotated[str, "The c."], d: int):
            """Do a thing.

            More of it: yes.

            Args:
                a (int, optional): The a,
                    continued.
                b: The b: really.
                d: One of
                    the following:
                    - 1: the first,
                      of all
                    10. the last

            Returns:
                int: A number.
            """
        signature = Signature(fn)
        self.assertEqual([schema.get("description") for schema in
                          signature.schema["properties"].values()], [
            "The a, continued.", "The b: really.", "The c.",
            "One of the following:\n- 1: the first, of all\n10. the last"])
        self.assertEqual(signature.description.split("\n\n"), [
            "Do a thing.", "More of it: yes.", "Returns:\n    int: A number."])
        def plain(a: int):
            """Args are not described here."""
        self.assertEqual(Signature(plain).description, "Args are not described here.")
        self.assertEqual(Signature(function(int)).description, "")


# (value, schema, problems)
PROBLEMS = [
    (5, {"type": "string"}, ["expected string, got 5"]),
    ("a" * 100, {"type": "integer"}, ['expected integer, got "' + "a" * 58 + "…"]),
    ({"a": [0, {"b": None}]}, {"properties": {"a": {"items": {"properties": {
        "b": {"type": "string"}}}}}}, ["a[1].b: expected string, got null"]),
    ({"a": 1}, {"required": ["b", "c"]},
     ["b: missing (required)", "c: missing (required)"]),
    ({"a": 1}, {"dependentRequired": {"a": ["b"]}}, ["b: missing (required with a)"]),
    ({"citty": 1}, {"properties": {"city": True}, "additionalProperties": False},
     ["citty: unknown; known are: city"]),
    ({"a": 1}, {"unevaluatedProperties": False}, ["a: unknown; known are: none"]),
    ({"a": 1}, {"properties": {"a": False}}, ["a: not allowed"]),
    ([1], {"items": False}, ["[0]: not allowed"]),
    (1, False, ["not allowed"]),
    (5, {"maximum": 4}, ["expected at most 4, got 5"]),
    (5, {"exclusiveMaximum": 5}, ["expected less than 5, got 5"]),
    ("abc", {"maxLength": 2}, ["expected at most 2 characters, got 3"]),
    ([{"a": 1}, {"a": 2}], {"uniqueItems": True}, []),
    ([{"a": 1}, {"a": 1.0}], {"uniqueItems": True},
     ["expected items that differ, got an array"]),
    (0.35, {"multipleOf": 0.1}, ["expected a multiple of 0.1, got 0.35"]),
    ("b", {"pattern": "^a$"}, ['expected text like "^a$", got "b"']),
    (2, {"enum": [1, "a"]}, ['expected one of 1, "a", got 2']),
    (2, {"const": 1}, ["expected 1, got 2"]),
    ([1, 1], {"uniqueItems": True}, ["expected items that differ, got an array"]),
    ([1], {"contains": {"type": "string"}},
     ["expected 1 to 1 items that match `contains`, got 0"]),
    (1.5, {"anyOf": [{"type": "integer"}, {"type": "null"}]},
     ["expected integer or null, got 1.5"]),
    (1.5, {"anyOf": [{"type": "string"}, {"maximum": 1}]},
     ["expected string or at most 1, got 1.5"]),
    (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]},
     ["expected one alternative to fit, got 2"]),
    (1, {"not": {"type": "integer"}}, ["not allowed"]),
    ({"bad key!": 1}, {"propertyNames": {"pattern": "^[a-z]+$"}},
     ['bad key!: expected text like "^[a-z]+$", got "bad key!"']),
    (True, {"enum": [1]}, ["expected 1, got true"]),
    ([True], {"const": [1]}, ["expected [1], got an array"]),
    ({}, {"enum": [{"a": 1}, [2]]}, ['expected one of {"a": 1}, [2], got an object']),
    ("soon", {"format": "date"}, []),
    (1.0, {"type": "integer"}, []),
    (1e308, {"multipleOf": 1e-9}, []),
    (0.3, {"multipleOf": 0.1}, []),
    (19.99, {"multipleOf": 0.01}, []),
    (float("inf"), {"type": "number"}, ["expected number, got Infinity"]),
    (2 ** 61, {"enum": [2.0 ** 61]}, []),
    ([2 ** 61, 2 ** 61 - 1], {"uniqueItems": True}, []),
    ("a\n", {"pattern": "a$"}, ['expected text like "a$", got "a\\n"']),
    ("\u0665", {"pattern": r"^\d$"},
     [r'expected text like "^\\d$", got "' + "\u0665" + '"']),
    ({"a/b": {"~": {"%": 1}}}, {"$ref": "#/$defs/a~1b/x~0y/%25", "$defs": {
        "a/b": {"x~y": {"%": {"type": "object"}}}}}, []),
    ([1, "a"], {"$schema": "http://json-schema.org/draft-07/schema#",
                "items": [{"type": "string"}], "additionalItems": False},
     ["[0]: expected string, got 1", "[1]: not allowed"]),
    ({"b": 1}, {"properties": {
        "a": {"items": [{"type": "string"}]}, "b": {"$ref": "#/properties/a/items/0"}}},
     ["b: expected string, got 1"]),
    (5, {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/x",
         "type": "string", "definitions": {"x": {"minimum": 6}}},
     ["expected at least 6, got 5"]),
    (5, {"$ref": "#/definitions/x", "type": "string", "definitions": {"x": {}}},
     ["expected string, got 5"]),
    (5, {"$id": "http://x/y#", "$ref": "#/$defs/x", "$defs": {"x": {"minimum": 6}}},
     ["expected at least 6, got 5"]),
    ({"a": -1}, {"$ref": "https://json-schema.org/draft/2020-12/schema"}, []),
    ({"minItems": -1}, {"$ref": "https://json-schema.org/draft/2020-12/schema"},
     ["minItems: expected at least 0, got -1"]),
    ({"a": 1}, {"$schema": "http://json-schema.org/draft-07/schema", "definitions": {
        "x": {"$id": "#here", "required": ["z"]}},
        "allOf": [{"$ref": "#here"}]},
     ["z: missing (required)"]),
]

# (schema, a part of the message)
UNUSABLE_SCHEMAS = [
    (5, "expected object or boolean, got 5"), ("x", "expected object or boolean"),
    ([], "expected object or boolean"), (None, "expected object or boolean"),
    ({"type": "strng"}, 'type[0]: expected one of "null", '),
    ({"type": ["string", 5]}, "type[1]: expected one of"),
    ({"properties": []}, "properties: expected object, got an array"),
    ({"properties": {"a": {"minimum": "1"}}},
     'properties.a.minimum: expected number, got "1"'),
    ({"maxLength": -1}, "maxLength: expected at least 0, got -1"),
    ({"required": "a"}, 'required: expected array, got "a"'),
    ({"allOf": [5]}, "allOf[0]: expected object or boolean, got 5"),
    ({"multipleOf": 0}, "multipleOf: expected more than 0, got 0"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"},
     "$schema: expected a known dialect"),
    ({"$ref": "https://example.com/schema"},
     "is not in the document, and nothing is fetched"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}},
     '"#/$defs/none" is not in the document'),
    ({"$ref": "http://[bad"}, "is not in the document"),
    ({"$id": "http://x/y", "$defs": {"a": {"$id": "http://[bad"}}}, "a bad URI"),
    ({"$ref": "#/a/b", "a": 1}, "is not in the document"),
    ({"$dynamicRef": "#none"}, "is not in the document"),
    ({"$ref": "#"}, "$ref is a loop"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                     "b": {"$ref": "#/$defs/a"}}}, "$ref is a loop"),
    ({"pattern": "("}, 'pattern "("'),
    ({"patternProperties": {"[": True}}, 'pattern "["'),
    ({"pattern": r"[\p{L}]"}, "bad escape"),
    ({"multipleOf": float("inf")}, "not JSON"), ({"default": {1}}, "not JSON"),
    ({"$ref": "#/required/0", "required": ["a"]},
     'expected object or boolean, got "a"'),
    ({"$ref": "#/x", "x": {"multipleOf": 0}},
     "multipleOf: expected more than 0, got 0"),
    ({"$ref": "#/x/0", "x": [{"$ref": "#/x/1"}, {"minimum": "a"}]},
     'minimum: expected number, got "a"'),
]


class Test9Validator(unittest.TestCase):
    """`validate` returns the problems of a value, and refuses an unusable schema."""

    def test_the_outermost_dynamic_anchor_counts(self):
        """JSON Schema 2020-12, core 8.2.3.2; a plain anchor is found like any other."""
        inner = {"$id": "inner", "$dynamicRef": "#item",
                 "$defs": {"default": {"$dynamicAnchor": "item", "type": "integer"}}}
        outer = {"$id": "https://x.io/outer", "$ref": "inner", "$defs": {
            "inner": inner, "override": {"$dynamicAnchor": "item", "type": "string"}}}
        plain = {"$dynamicRef": "#item", "$defs": {
            "one": {"$anchor": "item", "type": "string"}}}
        for schema, value, problems in (
                (inner, 5, []), (inner, "a", ["expected integer, got \"a\""]),
                (outer, "a", []), (outer, 5, ["expected string, got 5"]),
                (plain, "a", []), (plain, 5, ["expected string, got 5"])):
            self.assertEqual(mcp_min.validate(value, schema), problems)

    def test_names_match_the_patterns_of_a_foreign_schema_or_none_of_them(self):
        """Patterns of the peer are not run: a name is refused only if its value fits
        neither what the patterns ask for nor what is asked for all others."""
        patterns = {"patternProperties": {"^a": {"type": "string"}}}
        rows = [
            ({"unevaluatedProperties": False}, {"b": 1}, []),
            ({"additionalProperties": False}, {"b": "x"}, []),
            ({"additionalProperties": False}, {"b": 1}, ["b: not allowed"]),
            ({"additionalProperties": {"type": "null"}}, {"b": "x", "c": None}, []),
            ({"additionalProperties": {"type": "null"}}, {"b": 1},
             ["b: expected string or null, got 1"]),
            ({"dependentRequired": {"b": ["c"]}}, {"b": "x"},
             ["c: missing (required with b)"]),
            ({"properties": {"b": {"$ref": "#/patternProperties/^a"}}}, {"b": 1},
             ["b: expected string, got 1"]),
            ({"dependentSchemas": {"b": {"maxProperties": 0}}}, {"b": "x"},
             ["expected at most 0 properties, got 1"])]
        for keywords, value, problems in rows:
            with self.subTest(keywords, value=value):
                self.assertEqual(mcp_min.Validator(
                    {**patterns, **keywords}, foreign=True).problems(value), problems)
        self.assertEqual(mcp_min.Validator(
            {"pattern": "("}, foreign=True).problems("x"), [])

    def test_a_definition_may_have_the_name_of_a_keyword(self):
        for name in "default", "enum", "properties", "$ref":
            named = {"$anchor": "it", "type": "integer"}
            schema = {"$ref": "#it", "$defs": {name: named}}
            self.assertEqual(validate("a", schema), ['expected integer, got "a"'])

    @clause("2025-11-25/basic/index",
            "Clients and servers **MUST** validate schemas according to their declared "
            "or default dialect.")
    def test_each_problem_is_one_readable_line(self):
        for value, schema, problems in PROBLEMS:
            with self.subTest(value=value, schema=schema):
                self.assertEqual(validate(value, schema), problems)

    @clause("2025-11-25/basic/index",
            "They **MUST** handle unsupported dialects gracefully by returning an "
            "appropriate error indicating the dialect is not supported.")
    def test_an_unusable_schema_is_refused_whatever_the_value_is(self):
        for schema, message in UNUSABLE_SCHEMAS:
            with self.subTest(schema=schema), self.assertRaises(SchemaError) as caught:
                validate({}, schema)
            self.assertIn(message, str(caught.exception))

    def test_the_work_for_a_hostile_schema_is_bounded(self):
        deep = {}
        for _ in range(100_000):
            deep = {"not": deep}
        doubling = {"$defs": {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2}
                              for n in range(60)}, "$ref": "#/$defs/a0"}
        doubling["$defs"]["a60"] = {"type": "string"}
        # The real limit allows about a second of work.
        with mock.patch.object(mcp_min, "MAX_STEPS", 5000):
            for schema in (deep, doubling, {"allOf": [{"$ref": "#"}] * 1000}):
                with self.assertRaises(SchemaError):
                    validate(5, schema)
        while deep:  # so that the interpreter does not free it by recursion
            deep = deep.pop("not")

    # Schemas of some kilobytes, for which every look at a large value is work.
    HOSTILE = (
        ({"allOf": [{"enum": [n]} for n in range(5000)]}, [*range(50_000)]),
        ({"items": {"const": [*range(100_000)]}}, [0] * 100_000),
        ({"items": {"const": [*range(100_000)]}}, [[0] * 1000] * 1000),
        ({"allOf": [{"type": "integer"}] * 5000}, "[" + "1," * 500_000 + "1]"),
        ({"allOf": [{"pattern": "x$"}] * 5000}, "a" * 20_000),
        ({"allOf": [{"$ref": "https://json-schema.org/draft/2020-12/schema"}] * 5000},
         {"enum": [*range(50_000)]}),
        ({"allOf": [{"uniqueItems": True}] * 5000}, [*range(50_000)]))

    def test_the_work_is_bounded_by_the_size_of_what_is_looked_at(self):
        """Fails, by minutes, if a value is compared or parsed without being charged."""
        strictly = mcp_min.validate
        def leniently(value, schema):
            return mcp_min.Validator(schema).coerce(value, strict=False)
        for number, (schema, value) in enumerate(self.HOSTILE):
            for apply in strictly, leniently:
                started = time.process_time()
                with self.subTest(number), mock.patch.object(
                        mcp_min, "MAX_STEPS", 50_000):
                    with contextlib.suppress(SchemaError, ValidationError):
                        self.assertTrue(apply(value, schema))
                    self.assertLess(time.process_time() - started, PATIENCE)

    def test_too_much_work_is_an_error_wherever_a_schema_is_applied(self):
        """`validate`, the arguments of a tool, and the client.  Looks inside."""
        schema = {"type": "object", "properties": {
            "x": {"type": "array", "allOf": [{"uniqueItems": True}] * 50}}}
        value = {"x": [*range(1000)]}
        server = Server("s")
        server.add_tool(lambda x=None: "ok", name="given", input_schema=schema)
        server.add_tool(lambda: value, name="result")
        with Client(server) as client, mock.patch.object(mcp_min, "MAX_STEPS", 1000):
            self.assertIn("over 1,000 steps", client.call_tool(
                "given", value, raise_on_error=False).text)
            client._outputs["result"] = mcp_min.OutputSchema(schema, foreign=True)
            with self.assertWarnsRegex(RuntimeWarning, "over 1,000 steps"):
                client.call_tool("result")
            with self.assertRaisesRegex(SchemaError, "over 1,000 steps"):
                validate(value, schema)

    def test_a_recursive_schema_is_applied_down_to_a_bounded_depth(self):
        schema = {"type": "array", "items": {"$ref": "#"}}
        value = []
        for _ in range(80):
            value = [value]
        self.assertEqual(validate(value, schema), [])
        for _ in range(400):
            value = [value]
        with self.assertRaisesRegex(SchemaError, "nests too deeply"):
            validate(value, schema)

    def test_flat_arguments_are_checked_as_others_are(self):
        """They match at a look at their types, or are applied keyword by keyword."""
        def tool(a: str, b: int = 1): ...
        bind = Signature(tool).bind
        self.assertEqual(bind({"a": "x", "b": 2}), {"a": "x", "b": 2})
        self.assertEqual(bind({"a": "x"}), {"a": "x"})
        for arguments, problem in (
                ({"b": 2}, "a: missing"), ({"a": "", "c": 1}, "c: unknown"),
                ({"a": "", "b": True}, "b: expected integer")):
            with self.assertRaisesRegex(ValidationError, problem):
                bind(arguments)
        flat = {"properties": {"a": {"type": "string"}}, "additionalProperties": True}
        for schema in ({**flat, "type": "object", "required": ["a", "b"]},
                       {**flat, "type": "array"}):
            with self.subTest(schema), self.assertRaises(ValidationError):
                mcp_min.Validator(schema).coerce({"a": "x"})

    def test_the_official_suite_of_json_schema(self):
        root = os.environ.get("JSON_SCHEMA_SUITE")
        if not root:
            self.skipTest("JSON_SCHEMA_SUITE does not name tests/draft2020-12")
        # tests that fetch schemas, or need a vocabulary of their own
        excluded = ("refRemote.json", "metaschema-no-validation",
                    "metaschema-optional-voc", "detached-dynamicref", '"tree.json"',
                    '"extendible-dynamic-ref.json"')
        passed, failed = 0, []
        for path in sorted(pathlib.Path(root).glob("*.json")):
            for group in json.loads(path.read_text("utf-8")):
                text = path.name + json.dumps(group)
                if any(name in text for name in excluded):
                    continue
                for case in group["tests"]:
                    if (validate(case["data"], group["schema"]) == []) == case["valid"]:
                        passed += 1
                    else:
                        failed.append((path.stem, group["description"]))
        self.assertGreater(passed, 1200)
        self.assertEqual(failed, [])


class AnswersAll:
    """It answers every attribute, as a Mock does, and those that Mock does not."""

    def __getattr__(self, name):
        return AnswersAll()

    __str__ = lambda self: "AnswersAll"


class Test9Pydantic(unittest.TestCase):
    """What pydantic describes and validates, where it is installed."""

    def setUp(self):
        try:
            import pydantic
        except ImportError:
            missing(self, "the package pydantic")
        self.pydantic = pydantic

    def test_urls_are_uris(self):
        for cls in (self.pydantic.AnyUrl, self.pydantic.HttpUrl):
            schema = parameter_schema(cls)
            self.assertEqual((schema["type"], schema["format"]), ("string", "uri"))
            url = Signature(function(cls)).bind({"x": "https://a.b/c"})["x"]
            self.assertEqual((url.host, to_json_data(url)), ("a.b", "https://a.b/c"))
            with self.assertRaises(ValidationError):
                Signature(function(cls)).bind({"x": "no URL"})

    def test_models_are_arguments_results_and_forms(self):
        """Their definitions are inline.  A property may have the name of a keyword."""
        def check(note):
            if note == "bad":
                raise ValueError("not this")
            return note

        note = Annotated[Optional[str], self.pydantic.AfterValidator(check)]
        pizza_class = self.pydantic.create_model(
            "Pizza", __doc__="Of any pizza.", enum=(Color, ...), title=(note, None))

        async def order(pizza, many, ctx: Context):
            """Order.

            Args:
                pizza: The first.
            """
            wish = await ctx.elicit("?", pizza_class)
            assert type(many[0]) is type(pizza) is type(wish.data) is pizza_class
            return pizza_class(enum=pizza.enum, title=wish.data.title)

        def answer(message, schema, params):
            self.assertEqual(schema["properties"]["title"], {"type": "string"})
            return {"enum": "blue", "title": "hot"}

        order.__annotations__.update(
            {"pizza": pizza_class, "many": List[pizza_class], "return": pizza_class})
        server = Server("s")
        server.tool(order)
        with Client(server, elicitation_handler=answer) as client:
            [tool] = client.list_tools()
            schema = tool["inputSchema"]["properties"]
            inline = {"type": "object", "description": "Of any pizza.", "properties": {
                "enum": COLOR, "title": {"default": None, "anyOf": [
                    {"type": "string"}, {"type": "null"}]}}, "required": ["enum"]}
            self.assertEqual(schema["many"], {"type": "array", "items": inline})
            self.assertEqual(schema["pizza"], {**inline, "description": "The first."})
            self.assertEqual(tool["outputSchema"]["properties"], inline["properties"])
            arguments = {"pizza": {"enum": "red"}, "many": [{"enum": "blue"}]}
            self.assertEqual(client.call_tool("order", arguments).data,
                             {"enum": "red", "title": "hot"})
            for pizza, text in (({"enum": "XL"}, "pizza.enum: expected one of"),
                                ({"enum": "red", "title": "bad"}, "title: .*not this")):
                result = client.call_tool("order", {**arguments, "pizza": pizza},
                                          raise_on_error=False)
                self.assertRegex(result.text, text)

    def test_a_model_of_one_text_is_constructed(self):
        """Fails if its schema, a plain string, is taken for one without constructor."""
        tag = self.pydantic.RootModel[str]
        self.assertEqual(Signature(function(tag)).bind({"x": "y"})["x"].root, "y")

    def test_the_definitions_of_a_recursive_model_are_at_the_root(self):
        """As the official SDK lists them."""
        node = self.pydantic.create_model("Node", n=(int, ...))
        tree = type("Tree", (node,), {"__annotations__": {"below": "list[Tree]"},
                                      "below": [], "__module__": __name__})
        tree.model_rebuild(_types_namespace={"Tree": tree})
        signature = Signature(function(Optional[tree], None))
        self.assertIn("Tree", signature.schema["$defs"])
        made = signature.bind({"x": {"n": "1", "below": [{"n": 2}]}})["x"]
        self.assertEqual((made.n, made.below[0].n), (1, 2))
        with self.assertRaisesRegex(ValidationError, r"x.below\[0\].n: expected int"):
            signature.bind({"x": {"n": 1, "below": [{"n": []}]}})
        schema = output_schema_of(List[tree])
        self.assertIn("Tree", schema["$defs"])
        self.assertEqual(validate({"result": to_json_data([made])}, schema), [])

    def test_fields_describe_and_constrain(self):
        field = self.pydantic.Field

        def find(text, tags, none, even=3, limit=field(  # noqa: B008
                default=10, ge=1, le=50, description="How many"),
                among=field(default_factory=lambda: [1]),  # noqa: B008
                factor=field(gt=0, json_schema_extra={"x": 1})): ...  # noqa: B008
        find.__annotations__ = {
            "text": Annotated[str, field(
                description="What", min_length=2, pattern="^a")],
            "tags": Annotated[list, field(max_length=1, examples=[["x"]]), "Tags"],
            "even": Annotated[int, self.pydantic.AfterValidator(lambda n: n * 2)],
            "none": Annotated[Optional[str], field(default=None, description="D."),
                              self.pydantic.AfterValidator(lambda text: text + "!")],
            "limit": int, "among": List[int], "factor": float}
        signature = Signature(find)
        self.assertEqual(signature.schema["required"], ["text", "tags", "factor"])
        self.assertEqual(signature.schema["properties"], {
            "text": {"type": "string", "description": "What", "minLength": 2,
                     "pattern": "^a"},
            "tags": {"type": "array", "items": {}, "maxItems": 1, "examples": [["x"]],
                     "description": "Tags"},
            "even": {"type": "integer", "default": 3},
            "none": {"type": "string", "description": "D."},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50,
                      "description": "How many", "default": 10},
            "among": {"type": "array", "items": {"type": "integer"}},
            "factor": {"type": "number", "exclusiveMinimum": 0, "x": 1}})
        arguments = {"text": "ab", "tags": [], "factor": 2}
        self.assertEqual(signature.bind({**arguments, "even": "2"}), {
            **arguments, "even": 4, "none": None, "limit": 10, "among": [1]})
        self.assertEqual(signature.bind({**arguments, "none": "a"})["none"], "a!")
        with self.assertRaisesRegex(ValidationError, "limit: expected at most 50, got"):
            signature.bind({**arguments, "limit": 99})


class Plain:
    """It is no dataclass, but has hints."""

    a: int
    missing: str
    a, _private = 1, 2


class Test9Jsonable(unittest.TestCase):
    """`jsonable` turns the result of a handler into what JSON can hold."""

    def test_each_value_has_one_json_form(self):
        rows = [
            (None, None), (True, True), ("\ud800", "\ud800"), (1.5, 1.5),
            (Color.RED, "red"), (Level.HIGH, 2), ([1, (2, "a")], [1, [2, "a"]]),
            ({1}, [1]), (Spot(1), {"x": 1, "y": 0}),
            (Address("a"), {"street": "a", "zip": None}),
            (b"hi", "aGk="), (datetime.date(2024, 5, 6), "2024-05-06"),
            (datetime.datetime(2024, 5, 6, 7), "2024-05-06T07:00:00"),
            (datetime.time(7, 8), "07:08:00"), (decimal.Decimal("0.10"), "0.10"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (pathlib.PurePosixPath("a/b"), "a/b"),
            ({None: "b", True: "c", 1.5: "f"}, {"true": "c", "null": "b", "1.5": "f"}),
            (range(2), [0, 1]), (iter("ab"), ["a", "b"]), ({"a": 1}.values(), [1]),
            (collections.deque([1]), [1]), (types.MappingProxyType({"a": 1}), {"a": 1}),
            ([math.nan, -math.inf, {"a": math.inf}], [None, None, {"a": None}]),
            (datetime.timedelta(1), "1 day, 0:00:00"), (ValueError("no"), "no"),
            ([complex(1)], ["(1+0j)"]), (Address, str(Address)),
            ({(1, 2): 3}, {"[1, 2]": 3}), (AnswersAll(), "AnswersAll"),
            (Plain(), {"a": 1}),
            (type("Array", (), {"tolist": lambda _: [1, [2.5]]})(), [1, [2.5]]),
        ]
        for value, form in rows:
            with self.subTest(form=form):
                self.assertEqual(to_json_data(value), form)
                json.dumps(to_json_data(value), allow_nan=False)

    def test_what_cannot_be_written_is_refused(self):
        cycle = []
        cycle.append(cycle)
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for name, value in (("a cycle", cycle), ("deep nesting", deep),
                            ("a huge integer", [10 ** 5000])):
            with self.subTest(name), self.assertRaises(ValueError):
                to_json_data(value)
        while deep:  # so that the interpreter does not free it by recursion
            deep = deep.pop()

    def test_strictly_only_what_has_a_json_form_is_converted(self):
        """So are options when they are registered, and the results of steps."""
        self.assertEqual(to_json_data({"a": Color.RED, "b": {1}}, strict=True),
                         {"a": "red", "b": [1]})
        for value, error in ((object(), TypeError), ({"a": complex(1)}, TypeError),
                             ({(1, 2): 3}, TypeError), ([math.nan], ValueError)):
            with self.subTest(value=value), self.assertRaises(error):
                to_json_data(value, strict=True)

    def test_a_result_without_a_json_form_is_text_and_no_failed_call(self):
        server = Server("s")
        server.tool(lambda: object, name="thing")
        server.tool(lambda: {"a": math.nan, "b": (n for n in (1, 2))}, name="data")
        with Client(server) as client:
            self.assertIn(str(object), client.call_tool("thing").text)
            self.assertEqual(client.call_tool("data").data, {"a": None, "b": [1, 2]})

    def test_a_result_that_does_not_fit_its_hint_is_shown(self):
        def count() -> int:
            return "Error: there is no such file" + "!" * 1000

        def rows() -> List[int]:
            return {"error": "no table"}

        def data() -> dict:
            return ["Error: no object"]

        server = Server("s")
        server.add_tool(count)
        server.add_tool(rows)
        server.add_tool(data)
        with quiet(), Client(server) as client:
            for name, text in (("count", "Error: there is no such file!!!"),
                               ("rows", '{"error": "no table"}'),
                               ("data", '["Error: no object"]')):
                result = client.call_tool(name, raise_on_error=False)
                self.assertTrue(result.is_error)
                self.assertIn(text, result.text)
                self.assertLess(len(result.text), 700)


# (template, uri, variables or None)
URIS = [
    ("config://app", "config://app", {}), ("config://app", "config://appp", None),
    ("a.b://x", "aXb://x", None), ("w://{city}/now", "w://Oslo/now", {"city": "Oslo"}),
    ("w://{city}/now", "w://S%C3%A3o%20Paulo/now", {"city": "São Paulo"}),
    ("w://{city}", "w://a/b", None), ("w://{city}", "w://", None),
    ("w://{city}", "w://a%2Fb", None), ("w://{city}", "w://a%5cb", None),
    ("w://{city}", "w://..", None), ("w://{city}", "w://%2e%2E", None),
    ("w://{city}", "w://.", None),
    ("w://{city}", "w://..a", {"city": "..a"}), ("w://{city}", "w://a?b", None),
    ("w://{a}-{b}", "w://1-2", {"a": "1", "b": "2"}),
    ("w://{a}-{b}.md", "w://1-2.md-3.md", {"a": "1", "b": "2.md-3"}),
    ("w://{+a}-{b}", "w://1-2/3-4", {"a": "1-2/3", "b": "4"}),
    ("f:///{+path}", "f:///a/b%20c.txt", {"path": "a/b c.txt"}),
    ("f:///{+path}", "f:///a/../b", None), ("f:///{+path}", "f:///a/%2e%2e/b", None),
    ("f:///{+path}", "f:///a%2f..", None), ("f:///{+path}", "f:///a\\..\\b", None),
    ("f:///{+path}", "f:///a/..b", {"path": "a/..b"}),
    ("f:///a/{+path}", "f:///a/%2E%2E%2Fb", None),
    ("d://x{?a,b}", "d://x?b=2&a=1", {"a": "1", "b": "2"}),
    ("d://x{?a,b}", "d://x", {}), ("d://x{?a,b}", "d://x?b=a%2Fb", {"b": "a/b"}),
    ("d://x{?a}", "d://x?c=1", None), ("d://x{?a}", "d://x?a=1&a=2", {"a": "2"}),
    ("d://{x}{?q}", "d://a?q=b%26c", {"x": "a", "q": "b&c"}),
    ("d://x{?a}", "d://x?a=../b", None),
    ("d://x{?a}", "d://x?a=/etc", None), ("d://x{?a}", "d://x?a=", {"a": ""}),
    ("f:///{+p}", "f:////etc/passwd", None),
    ("f:///{+p}", "f:///%2Fetc", None), ("f:///{+p}", "f:///C:%5CWindows", None),
    ("f:///{+p}", "f:///a%00.txt", None), ("w://{a}", "w://a%00", None),
    ("w://{a}", "w://12:30", {"a": "12:30"}), ("f:///{p*}", "f:///a/b", {"p": "a/b"}),
    ("f:///{p*}.{e}", "f:///a.b/c.d", {"p": "a.b/c", "e": "d"}),
    ("f:///{p*}", "f:///../b", None), ("w://{a}", "w://" + "a" * 4000, None),
    ("f:///{+p}{?v}", "f:///a/b?v=1", {"p": "a/b", "v": "1"}),
    ("w://{a}-{+b}.{c}", "w://1-2-3/4.5.6", {"a": "1", "b": "2-3/4.5", "c": "6"}),
    ("w://{a}-{+b}.{c}", "w://1-.6", None), ("w://{a}-{b}", "w://-2", None),
    *[(template, f"w://{text}", None) for template in ("w://{a}", "w://{+a}", "w:{?a}")
      for text in ("C:evil", "%43:evil", "..%20", ".. .", "...", "a::$DATA")],
    *[("w:{?a}", f"w:?a={text}", None) for text in ("C:evil", "..%20", "a::$DATA")],
    ("f:///{+a}", "f:///a/..%20/b", None), ("f:///{+a}", "f:///a\\.. /b", None),
    ("d://x", "d://x\n", None), ("d://{x}", "d://%zz", {"x": "%zz"}),
]


class Test9UriTemplate(unittest.TestCase):
    """A template (a part of RFC 6570) finds the variables of a URI."""

    def test_a_uri_matches_with_its_variables_or_not_at_all(self):
        for template, uri, variables in URIS:
            with self.subTest(template=template, uri=uri):
                self.assertEqual(UriTemplate(template).match(uri), variables)

    def test_the_time_to_match_does_not_grow_with_the_number_of_variables(self):
        """Fails if the variables do not match atomically: then each of these takes ten
        seconds of processor time.  (`match` refuses a URI of over 4,000 characters.)"""
        uri = "w://" + "-," * 1500 + "/"
        for template in ("w://{y}-{m}-{d}", "w://{y}-{+m}-{d}", "w://{+y}-{m},{d}#"):
            started = time.process_time()
            with self.subTest(template):
                self.assertIsNone(UriTemplate(template).match(uri))
                self.assertLess(time.process_time() - started, PATIENCE / 5)

    def test_a_template_knows_its_names_and_how_much_of_it_is_literal(self):
        """The server prefers the template with the most literal text."""
        general = UriTemplate("w://{city}/{when}")
        special = UriTemplate("w://{city}/now")
        self.assertEqual((general.names, special.names), (["city", "when"], ["city"]))
        self.assertGreater(special.literal, general.literal)

    def test_a_malformed_or_unsupported_template_is_refused(self):
        for text in ("a{", "a}", "{}", "{a", "{a}}", "{{a}}", "{a:3}", "{!a}", "{a b}",
                     "{1a}", "{a}/{a}", "{a,}", "{a,a}", "{ä}", "{#a}", "{.a}",
                     "{;a}",
                     "{a}{b}", "{a,b}", "{/a}", "{&a}", "{+a}/{+b}", "{a*}/{+b}",
                     "{?a}{?b}", "{?a}/x", "x{?a}{&b}{&c}"):
            with self.subTest(text), self.assertRaises(ValueError):
                UriTemplate(text)


class Test9Imports(unittest.TestCase):
    def test_what_is_slow_to_import_is_imported_when_it_is_needed(self):
        program = f"""
import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(mcp_min.__file__))!r})
import {mcp_min.__name__} as m
costly = {{"typing", "inspect", "dataclasses", "decimal", "base64", "urllib.parse"}}
print(*sorted(costly & sys.modules.keys()))
def tool(a: str, b: int = 3, c: list[int] = [], d: dict = {{}}) -> list[str]:
    "Args:\\n  a: b"
s = m.Signature(tool)
s.schema, s.bind({{"a": "x", "c": ["1"]}}), m.output_schema_of(s.returns)
print(*sorted(costly & sys.modules.keys()))
"""
        run = subprocess.run([sys.executable, "-I", "-S", "-c", program], text=True,
                             capture_output=True, timeout=20)
        self.assertEqual((run.stdout, run.stderr), (
            "typing\ninspect typing\n", ""))


# ======================================================================================
# 10  Server
# ======================================================================================

@dataclasses.dataclass
class Point:
    x: int
    y: int


class Test10Tools(unittest.TestCase):
    """tools/list and tools/call."""

    def test_an_exception_becomes_an_error_result(self):
        """Whatever a tool raises, the server keeps running, and the client gets no
        traceback."""
        class Unprintable(Exception):
            def __str__(self):
                raise ValueError("no")

        server, exceptions = Server("s"), [
            ValueError("bad \n value"), SystemExit(3), KeyboardInterrupt(),
            GeneratorExit(), MemoryError(), RecursionError(), Unprintable(),
            StopIteration(), Exception("\ud800"), BrokenPipeError()]

        @server.tool
        def fail(n: int):
            raise exceptions[n]

        with quiet() as stderr, wire(server) as client:
            play(client, "> handshake")
            for n, era in itertools.product(
                    range(len(exceptions)), ("legacy", "modern")):
                with self.subTest(exceptions[n].__class__, era=era):
                    result = client.ask('1 tools/call {"name": "fail", "arguments":'
                                        ' {"n": %d}}' % n, era)["result"]
                    self.assertIs(result["isError"], True)
                    text = result["content"][0]["text"]
                    self.assertNotRegex(text, "Traceback|test_mcp_min")
                    client.fence()
        self.assertRegex(stderr.getvalue(), "(?s)Traceback.*bad")

    @clause("2026-07-28/basic/index", "Implementations of this protocol version "
            "**MUST NOT** emit these codes")
    def test_error_codes_are_those_of_the_revision(self):
        """A handler raises one code, and each era sends the code that its revision
        defines for the same error."""
        server, code = Server("s"), queue.Queue()

        @server.resource("menu://{day}")
        def menu(day: str):
            raise McpError(code.get(), "closed", {"day": day})

        for raised, legacy, modern in [  # the code raised, and sent in each era
                (mcp_min.RESOURCE_NOT_FOUND, -32002, -32602), (-32042, -32042, -32603),
                (-32020, -32020, -32020), (-32055, -32055, -32603),
                (-32021, -32021, -32021), (-32100, -32100, -32100), (7, 7, 7)]:
            for era, sent in ("legacy", legacy), ("modern", modern):
                with self.subTest(raised=raised, era=era):
                    code.put(raised)
                    play(server, """
                        > 1 resources/read {"uri": "menu://monday"}
                        < 1 %d "closed" {"day": "monday"}
                        """ % sent, era=era)

    @clause("2025-11-25/server/tools", "is returned as a JSON object")
    def test_structured_content_that_is_no_object_is_wrapped_for_older_revisions(self):
        server = Server("s")
        server.add_tool(lambda: mcp_min.ToolResult("x", [1]), name="bare")
        server.add_tool(lambda: [1], name="declared", output_schema={"type": "array"})
        wrapped = {"structuredContent": {"result": [1]}, "_meta": {
            "fastmcp": {"wrap_result": True}}}
        for era, bare in ("legacy", wrapped), ("modern", {"structuredContent": [1]}):
            play(server, """
                > 1 tools/call {"name": "bare"}
                < 1 BARE
                > 2 tools/call {"name": "declared"}
                < 2 WRAPPED
                > 3 tools/list
                < 3 {"tools": [{"name": "bare"}, {"outputSchema": {"type": "object",
                    "properties": {"result": {"type": "array"}}}}]}
                """.replace("BARE", json.dumps(bare)).replace(
                    "WRAPPED", json.dumps(wrapped)), era=era)

    @clause("2025-11-25/server/prompts", "include a valid MIME type")
    def test_the_mime_type_of_content_is_inferred(self):
        """From the path or the format; an embedded text is text/plain."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "scan.png")
            pathlib.Path(path).write_bytes(b"?")
            for block, mime_type in (
                    (Image(data=b"GIF8", mime_type="x/y"), "x/y"),
                    (Image(path=path), "image/png"),
                    (Image(path=path, format="jpeg"), "image/jpeg"),
                    (mcp_min.Audio(data=b"RIFF....WAVE"), "audio/wav"),
                    (EmbeddedResource("x://y", text="a")["resource"], "text/plain"),
                    (EmbeddedResource("x://y", data=b"a")["resource"],
                     "application/octet-stream")):
                self.assertEqual(block["mimeType"], mime_type)

    def test_errors_can_be_masked(self):
        server = Server("s", mask_errors=True)

        def fail():
            raise ValueError("the password is swordfish")

        def refuse():
            raise ToolError("on purpose")

        server.add_tool(fail)
        server.add_tool(refuse)
        server.add_tool(lambda: mcp_min.ToolResult("x", meta={"swordfish": {1, 2}}),
                        name="encode")
        server.add_prompt(fail)
        with quiet():
            names = play(server, """
                > 1 tools/call {"name": "fail"}
                < 1 {"isError": true, "content": [{"type": "text", "text": "$text"}]}
                > 2 tools/call {"name": "refuse"}
                < 2 {"isError": true, "content": [{"text": "on purpose"}]}
                > 3 prompts/get {"name": "fail"}
                < {"id": 3, "error": {"code": -32603, "message": "$message"}}
                > 4 tools/call {"name": "encode"}
                < {"id": 4, "error": {"code": -32603, "message": "$unsent"}}
                """, era="legacy")
        for sent in names.values():
            self.assertNotRegex(sent, "swordfish|TypeError|set")

    def test_any_return_value_gets_one_valid_response(self):
        circular, deep = [], []
        circular.append(circular)
        for _ in range(900):
            deep = [deep]
        values = [float("nan"), {1, 2}, b"\xff", object(), circular, 10 ** 5000,
                  "\ud800", deep, {(1, 2): 3}, {"k": b"\0"}, 1 + 2j, len, int,
                  iter([1]), [], "", (1, "x")]
        server = Server("s")

        @server.tool
        def give(n: int):
            return values[n]

        with quiet(), wire(server) as client:
            play(client, "> handshake")
            for n, era in itertools.product(range(len(values)), ("legacy", "modern")):
                with self.subTest(str(type(values[n])), n=n, era=era):
                    response = client.ask(
                        '%d tools/call {"name": "give", "arguments": {"n": %d}}'
                        % (n, n), era)
                    self.assertEqual(response["id"], n)
                    if "result" in response:
                        result = response["result"]
                        self.assertIsInstance(result["content"], list)
                        self.assertIsInstance(result.get("structuredContent", {}), dict)
                    client.fence()

    def test_how_a_return_value_becomes_content(self):
        server = Server("s")
        for n, (value, expected) in enumerate([
                ("plain", {"content": [{"type": "text", "text": "plain"}]}),
                (None, {"content": []}),
                ({"a": 1}, {"content": [{"type": "text", "text": '..."a"...'}],
                            "structuredContent": {"a": 1}}),
                (Point(1, 2), {"structuredContent": {"x": 1, "y": 2}}),
                (Text("hi"), {"content": [{"type": "text", "text": "hi"}]}),
                (Image(data=b"\0\1", mime_type="image/png"), {"content": [
                    {"type": "image", "data": "AAE=", "mimeType": "image/png"}]}),
                (ResourceLink("x://y", "y"), {"content": [
                    {"type": "resource_link", "uri": "x://y", "name": "y"}]}),
                (EmbeddedResource("x://y", text="z"), {"content": [
                    {"type": "resource", "resource": {"uri": "x://y", "text": "z"}}]}),
                ({"type": "text", "text": "only data"}, {
                    "structuredContent": {"type": "text", "text": "only data"}}),
                ([Text("a"), {"b": None}, None, "c"], {"content": [
                    {"text": "a"}, {"text": '{"b": null}'}, {"text": "null"},
                    {"text": "c"}]})]):
            server.add_tool(lambda value=value: value, name="give%d" % n,
                            input_schema={"type": "object"})
            for era in "legacy", "modern":
                with self.subTest(value=value, era=era):
                    play(server, """
                        > 1 tools/call {"name": "give%d"}
                        < 1 %s
                        """ % (n, json.dumps(expected)), era=era)

    def test_any_callable_can_be_decorated(self):
        """Its name is that of the function, or of the class of an object."""
        class Plane:
            def fly(self, hours: int):
                return hours

            @staticmethod
            def land(hours: int):
                return hours

            def __call__(self, hours: int):
                return hours

        server, plane = Server("s"), Plane()
        for fn in plane.fly, Plane.__dict__["land"], functools.partial(plane):
            self.assertIs(server.tool(fn), fn)
        with Client(server) as client:
            for name in "fly", "land", "Plane":
                self.assertEqual(client.call_tool(name, {"hours": 2}).data, 2)
        for no_function, decorate in itertools.product(
                (classmethod(Plane.fly), 3, b"name"), (
                    server.tool, server.prompt, server.resource, server.method)):
            with self.subTest(no_function, decorate=decorate), \
                    self.assertRaises(TypeError):
                decorate(no_function)

    def test_everything_declared_about_a_tool_is_listed(self):
        server = Server("s")
        server.add_tool(
            lambda **arguments: arguments, name="n", title="T", description="D",
            annotations={"readOnlyHint": True}, icons=[{"src": "data:,"}],
            meta={"k": "v"}, output_schema={"type": "object"},
            input_schema={"type": "object", "properties": {"x": {"type": "string"}}})
        play(server, """
            > 1 tools/list
            <= 1 {"tools": [{"name": "n", "title": "T", "description": "D",
                "annotations": {"readOnlyHint": true}, "icons": [{"src": "data:,"}],
                "_meta": {"k": "v"}, "inputSchema": {"type": "object", "properties":
                {"x": {"type": "string"}}}, "outputSchema": {"type": "object"}}]}
            """, era="legacy")


class Test10Lists(unittest.TestCase):
    """Pagination, resources, prompts and completion."""

    @both_eras
    def test_every_list_has_pages(self, era):
        """A full last page has no cursor."""
        server = Server("s", page_size=2)
        for n in range(4):
            server.add_tool(lambda: None, name="t%d" % n)
            server.add_prompt(lambda: "", name="p%d" % n)
            server.add_resource("r://%d" % n, lambda: "")
            server.add_resource("r://%d/{x}" % n, lambda x: "")
        for method, kind, key, text in (
                ("tools/list", "tools", "name", "t%d"),
                ("prompts/list", "prompts", "name", "p%d"),
                ("resources/list", "resources", "uri", "r://%d"),
                ("resources/templates/list", "resourceTemplates", "uriTemplate",
                 "r://%d/{x}")):
            with self.subTest(method), wire(server) as client:
                cursor = play(client, '> 1 %s\n< 1 {"%s": [{"%s": "%s"}, '
                              '{"%s": "%s"}], "nextCursor": "$next"}' % (
                                  method, kind, key, text % 0, key, text % 1), era)
                last = client.ask('2 %s {"cursor": %s}' % (
                    method, json.dumps(cursor["next"])), era)["result"]
                self.assertEqual(names(last[kind], key), [text % 2, text % 3])
                self.assertNotIn("nextCursor", last)

    @clause("2025-11-25/server/utilities/pagination",
            "Invalid cursors **SHOULD** result in an error with code -32602 (Invalid "
            "params).")
    @both_eras
    def test_an_invalid_cursor_is_an_error(self, era):
        server = Server("s", page_size=1)
        for name in "ab":
            server.add_tool(lambda: None, name=name)
            server.add_resource("r://" + name, lambda: "")
        play(server, """
            > 1 tools/list
            < 1 {"nextCursor": "$tools"}
            # a cursor that no list has given, or only another one
            > 2 resources/list {"cursor": "$tools"}
            < 2 -32602 "cursor" {"field": "cursor", "issue": "..."}
            > 3 tools/list {"cursor": "é\\ud800"}
            < 3 -32602 "cursor"
            > 4 tools/list {"cursor": ""}
            < 4 -32602 "cursor"
            # of an entry that is there no longer, and cannot be called either
            ! remove
            <L notifications/tools/list_changed
            > 5 tools/list {"cursor": "$tools"}
            < 5 -32602 "cursor"
            > 6 tools/call {"name": "a"}
            < 6 -32602 {"name": "a"}
            """, era=era, remove=lambda: server.remove_tool("a"))

    def test_a_cursor_survives_changes(self):
        """No entry is doubled or left out, because the cursor is no position; a tool
        that is added again keeps its place, which is reported, once for each kind."""
        server = Server("s", page_size=2)
        for n in range(6):
            server.add_tool(lambda: None, name="t%d" % n)

        def change():
            server.remove_tool("t0")
            server.remove_tool("t4")
            for name in "t2", "t6", "t1":
                server.add_tool(lambda: None, name=name, title="new")
            server.add_prompt(lambda: "", name="t2")

        with quiet() as stderr:
            play(server, """
                > 1 tools/list
                < 1 {"tools": [{"name": "t0"}, {"name": "t1"}], "nextCursor": "$next"}
                ! change
                > 2 tools/list {"cursor": "$next"}
                < 2 {"tools": [{"name": "t2", "title": "new"}, {"name": "t3"}],
                    "nextCursor": "$next2"}
                > 3 tools/list {"cursor": "$next2"}
                < 3 {"tools": [{"name": "t5"}, {"name": "t6"}]}
                """, era="modern", change=change)
        self.assertEqual(re.findall("(..) is already registered", stderr.getvalue()),
                         ["t2", "t1"])

    @both_eras
    def test_resources(self, era):
        server = Server("s")
        server.resource("r://text", mime_type="text/markdown", title="T", size=5)(
            lambda: "# hi\n")

        def fails():
            return 1 / 0

        server.add_resource("r://fails", fails, name=None)

        @server.resource("r://{city}/now")
        def now(city: str) -> str:
            return "now in " + city

        with quiet():
            play(server, """
                > 1 resources/list
                < 1 {"resources": [{"uri": "r://text", "mimeType": "text/markdown",
                    "title": "T", "size": 5}, {"uri": "r://fails", "name": "fails"}]}
                > 2 resources/templates/list
                < 2 {"resourceTemplates": [{"uriTemplate": "r://{city}/now", "name":
                    "now"}]}
                > 3 resources/read {"uri": "r://text"}
                < 3 {"contents": [{"uri": "r://text", "mimeType": "text/markdown",
                    "text": "# hi\\n"}]}
                > 4 resources/read {"uri": "r://New%20York/now"}
                < 4 {"contents": [{"uri": "r://New%20York/now", "text": "now in New
                    York"}]}
                > 5 resources/read {"uri": "r://nothing"}
                <L 5 -32002 {"uri": "r://nothing"}
                <M 5 -32602 {"uri": "r://nothing"}
                > 6 resources/read {"uri": "r://fails"}
                < 6 -32603
                """, era=era)

    def test_what_cannot_work_is_told_when_it_is_made(self):
        for make, text in (
                (lambda: Server("s").add_resource("no address", lambda: ""), "scheme"),
                (lambda: Server("s", state_secret=b"swordfish"), "16 bytes"),
                (lambda: Message("system", "hi"), "role"),
                (lambda: Message(None, "hi"), "role"),
                (lambda: McpError("oops", "no"), "an error code must be an int")):
            with self.subTest(text), self.assertRaisesRegex(
                    (ValueError, TypeError), text):
                make()

    @both_eras
    def test_prompts(self, era):
        server = Server("s")

        @server.prompt(title="R")
        def review(code: str, language: str = "python") -> list:
            "Review code."
            return ["Review this " + language, Message("assistant", Text(code)),
                    {"role": "assistant", "content": "hi"}]

        play(server, """
            > 1 prompts/list
            < 1 {"prompts": [{"name": "review", "title": "R", "description": "Review
                code.", "arguments": [{"name": "code", "required": true}, {"name":
                "language", "required": false}]}]}
            > 2 prompts/get {"name": "review", "arguments": {"code": "1+1"}}
            < 2 {"messages": [
                {"role": "user", "content": {"text": "Review this python"}},
                {"role": "assistant", "content": {"type": "text", "text": "1+1"}},
                {"role": "assistant", "content": {"type": "text", "text": "hi"}}]}
            """, era=era)

    @clause("2025-11-25/server/utilities/completion", "Maximum 100 items per response")
    @both_eras
    def test_completion(self, era):
        """Of the template that is named, not of one whose URIs match its text."""
        server = Server("s")
        server.add_prompt(lambda language: "", name="review")
        server.resource("r://{city}")(lambda city: "")
        server.resource("r://{city}-{day}")(lambda city, day: "")

        @server.completion("review", "language")
        def languages(value: str):
            return [value + str(n) for n in range(250)]

        @server.completion("review", "author")
        def authors(value):
            return {"values": ["Ada"], "total": 50, "hasMore": True}

        @server.completion("r://{city}-{day}", "day")
        def days(value: str, context: dict):
            return (context["city"],)

        names = play(server, """
            > 1 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
                "argument": {"name": "language", "value": "py"}}
            < 1 {"completion": {"values": "$values", "total": 250, "hasMore": true}}
            > 2 completion/complete {"ref": {"type": "ref/resource", "uri":
                "r://{city}-{day}"}, "argument": {"name": "day", "value": ""},
                "context": {"arguments": {"city": "Oslo"}}}
            < 2 {"completion": {"values": ["Oslo"], "total": 1, "hasMore": false}}
            > 3 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
                "argument": {"name": "author", "value": ""}}
            < 3 {"completion": {"values": ["Ada"], "total": 50, "hasMore": true}}
            > 4 completion/complete {"ref": {"type": "review", "name": "review"},
                "argument": {"name": "author", "value": ""}}
            < 4 -32602 "ref.type"
            """, era=era)
        self.assertEqual(names["values"], ["py%d" % n for n in range(100)])


def host_thread(test):
    """A host's thread, which ends with the test, and its ``run_handler``."""
    jobs = queue.Queue()
    thread = threading.Thread(target=lambda: [job() for job in iter(jobs.get, None)])
    thread.start()
    test.addCleanup(thread.join)
    test.addCleanup(jobs.put, None)
    return thread, jobs.put


def serve_one_call(server, **options):
    """Serve one stateless call of `tool` over finite streams; return its text."""
    request, written = message('1 modern tools/call {"name": "tool"}'), io.BytesIO()
    server.serve(io.BytesIO(json.dumps(request).encode() + b"\n"), written, **options)
    return json.loads(written.getvalue())["result"]["content"][0]["text"]


class Test10AsyncHandlers(unittest.TestCase):
    """`async def` handlers of a server share one event loop."""

    def test_all_calls_to_a_server_run_on_one_event_loop(self):
        """Those on another connection too.  A server that is served again has a new
        one."""
        loops = []

        async def note() -> str:
            loops.append(asyncio.get_running_loop())
            return threading.current_thread().name

        first, second = Server("a"), Server("b")
        for server in first, second:
            server.tool(note)
        with Client(first) as client, Client(first) as other, Client(second) as third:
            for caller in client, client, other, third:
                self.assertEqual(caller.call_tool("note").text, "mcp event loop")
        self.assertEqual([loops.index(loop) for loop in loops], [0, 0, 0, 3])
        self.assertEqual([loop.is_closed() for loop in loops], [True] * 4)
        with Client(first) as client:
            client.call_tool("note")
        self.assertNotIn(loops[-1], loops[:-1])

    def test_a_worker_waits_for_the_coroutine(self):
        """Fails if a coroutine gives its worker back while it waits, so that more than
        `max_workers` run at once."""
        server, running, most = Server("s", max_workers=2), [], []
        release = gate("release")

        @server.tool
        async def hold():
            running.append(1)
            most.append(len(running))
            await asyncio.get_running_loop().run_in_executor(None, release.wait)
            running.pop()

        play(server, """
            > 1 tools/call {"name": "hold"}
            > 2 tools/call {"name": "hold"}
            > 3 tools/call {"name": "hold"}
            ! two_run
            < fence
            ! release
            <* 1 {"isError": false}
            <* 2 {"isError": false}
            <* 3 {"isError": false}
            """, era="legacy", release=release.set,
             two_run=lambda: wait_until(lambda: len(most) == 2))
        self.assertEqual((len(most), max(most)), (3, 2))

    def test_subprocesses_and_timeouts_work_in_a_handler(self):
        server = Server("s")

        @server.tool
        async def work() -> str:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", "print(5)",
                stdout=asyncio.subprocess.PIPE)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.sleep(60), 0.001)
            return (await child.communicate())[0].decode().strip()

        with Client(server) as client:
            self.assertEqual(client.call_tool("work").text, "5")

    def test_sys_exit_in_a_coroutine_ends_no_other_handler(self):
        server = Server("s")

        @server.tool
        async def leave():
            async def leave_in_a_task():
                sys.exit(3)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            asyncio.ensure_future(leave_in_a_task())
            await asyncio.sleep(0.001)
            sys.exit(4)

        @server.tool
        async def stay() -> str:
            return "here"

        with quiet(), Client(server) as client:
            self.assertIn("SystemExit", client.call_tool(
                "leave", raise_on_error=False).text)
            self.assertEqual(client.call_tool("stay").text, "here")

    @both_eras
    def test_a_handler_that_awaits_an_answer_blocks_no_other(self, era):
        """Fails (by hanging) if the event loop blocks until the user has answered."""
        server = Server("s")

        @server.tool
        async def ask(ctx: Context) -> str:
            if ctx.protocol_version == MODERN:
                first = await ctx.elicit("One?", str)
                second = await ctx.elicit("Two?", int)
            else:
                first, second = await asyncio.gather(
                    ctx.elicit("One?", str, key="one"),
                    ctx.elicit("Two?", int, key="two"))
            return f"{first.data} {second.data}"

        @server.tool
        async def overtake(ctx: Context) -> str:
            await ctx.wait(0.001)
            return "overtaken"

        def answer(message, schema, params):
            if message == "One?":
                self.assertEqual(other.call_tool("overtake").text, "overtaken")
            return {"value": {"One?": "x", "Two?": 2}[message]}

        with Client(server, mode=era) as other, Client(
                server, mode=era, elicitation_handler=answer) as client:
            self.assertEqual(client.call_tool("ask").text, "x 2")

    @unittest.skipUnless(hasattr(asyncio, "TaskGroup"), "before Python 3.11")
    def test_a_task_group_may_ask(self):
        """Fails (an internal error) if only a bare Unwind is known."""
        server = Server("s")

        @server.tool
        async def ask(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                answer = group.create_task(ctx.elicit("?", str))
            return answer.result().data

        with Client(server, elicitation_handler=lambda *_: {"value": "x"}) as client:
            self.assertEqual(client.call_tool("ask").text, "x")

    def test_notifications_are_sent_whether_or_not_they_are_awaited(self):
        server, steps, logs = Server("s"), [], []

        @server.tool
        async def work(ctx: Context):
            ctx.report_progress(1)
            await ctx.report_progress(2)
            ctx.info("one")
            await ctx.log("info", "two")
            await ctx.notify("notifications/x")
            ctx.info("three")

        with Client(server, mode=LATEST, log_handler=lambda p: logs.append(p["data"]),
                    progress_handler=lambda *step: steps.append(step[0])) as client:
            client.call_tool("work")
            wait_until(lambda: len(logs) == 3)
        self.assertEqual((steps, logs), ([1, 2], ["one", "two", "three"]))


@unittest.skipUnless(sqlite3, "this Python has no sqlite3")
class Test10Unthreaded(unittest.TestCase):
    """`threaded=False`: all handlers run on the thread that serves; under
    `Client(server)` on the thread that waits for a result."""

    def bank(self):
        """A server whose handlers all use one sqlite3 connection, which refuses every
        thread but the one that has opened it."""
        server = Server("bank", threaded=False)
        rows, server.heard = sqlite3.connect(":memory:"), []
        self.addCleanup(rows.close)
        rows.execute("create table rows (n)")

        @server.tool
        def add(n: int) -> int:
            return rows.execute("insert into rows values (?)", [n]).lastrowid

        @server.tool
        def deposit(ctx: Context) -> int:
            n = ctx.elicit("How much?", int).data
            return ctx.once("add", lambda: add(n))

        @server.tool
        async def deposit_later(ctx: Context) -> int:
            async def add_later():
                await asyncio.sleep(0.001)
                return add(n)

            n = (await ctx.elicit("How much?", int)).data
            await ctx.read_resource("bank://total")
            return await ctx.once("add", add_later)

        @server.resource("bank://total")
        def total() -> str:
            return str(rows.execute("select sum(n) from rows").fetchone()[0])

        server.prompt(name="report")(lambda: "Report " + total())
        server.completion("report", "n")(lambda value: [total()])
        server.method("acme/total")(lambda: total())
        server.method("notifications/acme")(lambda: server.heard.append(total()))
        server.middleware(lambda ctx, method, params, call_next: (
            rows.execute("select 1") and call_next(ctx, method, params)))
        return server

    @both_eras
    def test_a_client_of_the_server_needs_nothing_else(self, era):
        """Fails if one of the handlers runs on another thread, or if `threaded` is not
        the default of Client(server)."""
        server = self.bank()
        with Client(server, mode=era, timeout=PATIENCE,
                    elicitation_handler=lambda *_: {"value": 3}) as client:
            self.assertEqual(client.call_tool("add", {"n": 1}).data, 1)
            self.assertEqual(client.call_tool("deposit").data, 2)
            self.assertEqual(client.call_tool("deposit_later").data, 3)
            submitted = client.submit_tool("add", {"n": 4})
            self.assertEqual(submitted.result(PATIENCE).data, 4)
            self.assertEqual(client.read_resource("bank://total")[0].text, "11")
            self.assertEqual(client.get_prompt("report")["messages"][0]["content"],
                             {"type": "text", "text": "Report 11"})
            self.assertEqual(client.complete("report", "n", "")["values"], ["11"])
            client.notify("notifications/acme")
            self.assertEqual(client.request("acme/total")["result"], "11")
            self.assertEqual(server.heard, ["11"])

    def test_a_lifespan_is_entered_and_left_on_the_thread_of_the_client(self):
        opened = []

        def plain(server):
            with contextlib.closing(sqlite3.connect(":memory:")) as rows:
                opened.append(rows)
                yield rows
                rows.execute("select 1")

        async def awaited(server):
            for rows in plain(server):
                await asyncio.sleep(0)
                yield rows
                await asyncio.sleep(0)

        for manager, lifespan in ((contextlib.contextmanager, plain),
                                  (contextlib.asynccontextmanager, awaited)):
            server = Server("s", threaded=False, lifespan=manager(lifespan))

            @server.tool
            def one(ctx: Context) -> int:
                return ctx.lifespan_context.execute("select 1").fetchone()[0]

            with self.subTest(lifespan.__name__):
                with Client(server, timeout=PATIENCE) as client:
                    self.assertEqual(client.call_tool("one").data, 1)
                with self.assertRaisesRegex(sqlite3.ProgrammingError, "closed"):
                    opened.pop().execute("select 1")

    def test_it_is_the_default_of_serve_which_may_say_otherwise(self):
        here = threading.current_thread().name
        for default, given, runs_here in (
                (False, {}, True), (False, {"threaded": True}, False),
                (True, {"threaded": False}, True)):
            server = Server("s", threaded=default)
            server.add_tool(lambda: threading.current_thread().name, name="tool")
            self.assertEqual(serve_one_call(server, **given) == here, runs_here)

    @both_eras
    def test_a_failing_handler_does_not_end_the_client(self, era):
        server = Server("s", threaded=False)
        server.tool(lambda: 1 / 0, name="fail")
        server.tool(lambda: sys.exit(3), name="leave")
        with quiet(), Client(server, mode=era, timeout=PATIENCE) as client:
            for tool in "fail", "leave", "fail":
                self.assertTrue(client.call_tool(tool, raise_on_error=False).is_error)
            self.assertEqual(len(client.list_tools()), 2)


class Test10AsyncSteps(unittest.TestCase):
    """An `async def` handler awaits steps, resources and answers wherever it runs."""

    def check(self, era, **options):
        server = Server("s", **options)

        @server.resource("s://x")
        async def later() -> str:
            await asyncio.sleep(0)
            return "later"

        server.resource("s://y")(lambda: "now")

        @server.tool
        async def work(ctx: Context) -> str:
            async def step():
                await asyncio.sleep(0)
                return "step"

            steps = [await ctx.once("async", step),
                     await ctx.once("def", lambda: "def"),
                     (await ctx.read_resource("s://x"))[0].text,
                     (await ctx.read_resource("s://y"))[0].text]
            await ctx.report_progress(1)
            await ctx.wait(0.001)
            answer = await ctx.elicit("Sure?", bool, key="q")
            return " ".join([*steps, str(answer.data)])

        yes = '{"action": "accept", "content": {"value": true}}'
        play(server, """
            > 1 tools/call {"name": "work"}
            < $q elicitation/create {"message": "Sure?"}
            > $q %s
            < 1 {"content": [{"text": "step def later now True"}]}
            """ % yes if era == "legacy" else """
            > 1 tools/call {"name": "work"}
            < 1 {"resultType": "input_required", "requestState": "$s"}
            > 2 tools/call {"name": "work", "requestState": "$s", "inputResponses":
                {"q": %s}}
            < 2 {"content": [{"text": "step def later now True"}]}
            """ % yes, era=era)

    @both_eras
    def test_wherever_it_runs(self, era):
        """Fails (no response) if the thread that awaits wants to run the loop too."""
        _, run_handler = host_thread(self)
        for options in {}, {"threaded": False}, {"run_handler": run_handler}:
            with self.subTest(**options):
                self.check(era, **options)

    @both_eras
    def test_without_threads(self, era):
        """Fails if whatever needs a thread has none to run on.  Looks inside."""
        with mock.patch.object(mcp_min, "start_thread", lambda *_: False):
            for threaded in True, False:
                self.check(era, threaded=threaded)

    def test_all_handlers_of_a_host_run_on_its_thread(self):
        """Coroutines and the lifespan on one event loop there; a plain one may read a
        resource.  Fails (by a timeout) if the thread waits for itself."""
        host, run_handler = host_thread(self)
        loops, threads = [], queue.Queue()

        @contextlib.asynccontextmanager
        async def lifespan(server):
            loops.append(asyncio.get_running_loop())
            yield
            loops.append(asyncio.get_running_loop())

        server = Server("s", run_handler=run_handler, lifespan=lifespan)
        server.resource("s://x")(lambda: threading.current_thread().name)
        server.method("notifications/acme")(
            lambda: threads.put(threading.current_thread()))

        @server.tool
        def read(ctx: Context) -> str:
            return ctx.read_resource("s://x")[0].text

        @server.tool
        async def where() -> str:
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0.001)
            return threading.current_thread().name

        with Client(server, timeout=PATIENCE) as client:
            calls = [client.submit_tool(name) for name in ("read", "where", "where")]
            for call in calls:
                self.assertEqual(call.result().text, host.name)
            client.notify("notifications/acme")
            self.assertIs(threads.get(timeout=PATIENCE), host)
        wait_until(lambda: len(loops) == 4 and loops[0].is_closed())
        self.assertEqual(len(set(loops)), 1)


LIFESPAN_SERVER = textwrap.dedent("""
    import asyncio, contextlib
    @contextlib.asynccontextmanager
    async def lifespan(server):
        print("enter", flush=True)
        yield {"loop": asyncio.get_running_loop()}
        await asyncio.sleep(0.001)
        print("leave", flush=True)
    server = Server("s", lifespan=lifespan)
    @server.tool
    async def same(ctx: Context) -> bool:
        return ctx.lifespan_context["loop"] is asyncio.get_running_loop()
    """)


class Test10Decorated(unittest.TestCase):
    """Tools inside of decorators, and servers with two kinds of connections."""

    def test_a_decorator_may_wait_for_an_async_tool_or_raise(self):
        """Fails if what `wraps` an `async def` is taken for one, or runs twice."""
        calls, server = [], Server("s")

        async def tool():
            return "done"

        @functools.wraps(tool)
        def wait():
            return asyncio.run(tool())

        @functools.wraps(tool)
        def fail():
            calls.append(1)
            raise OSError("no luck")

        server.add_tool(wait, name="wait")
        server.add_tool(fail, name="fail")
        with Client(server) as client, quiet():
            self.assertEqual(client.call_tool("wait").text, "done")
            result = client.call_tool("fail", raise_on_error=False)
        self.assertEqual((result.text, calls), ("OSError: no luck", [1]))

    def test_an_unthreaded_connection_does_not_change_the_others(self):
        """Fails if both want to run the one event loop, or if a server that has served
        without threads stays so."""
        server = Server("s")

        @server.tool
        async def tool():
            await asyncio.sleep(0)
            return threading.current_thread().name

        for _ in range(2):
            with Client(server) as client:
                self.assertEqual(client.call_tool("tool").text, "mcp event loop")
                self.assertEqual(serve_one_call(server, threaded=False),
                                 "mcp event loop")
                self.assertEqual(client.call_tool("tool").text, "mcp event loop")
            self.assertEqual(serve_one_call(server, threaded=False),
                             threading.current_thread().name)


class Test10Diagnostics(unittest.TestCase):
    """What a server reports about mistakes, on stderr or in an error message."""

    def line_of(self, text):
        """Where a report says that the line of this file is."""
        with open(__file__, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        return "test_mcp_min.py:%d" % (1 + lines.index(text))

    def test_a_handler_that_ignores_its_cancellation_is_reported_once(self):
        """Where it waits: neither inside of `threading` nor at the line of the handler
        that led there."""
        server, started, release = Server("s"), queue.Queue(), threading.Event()
        self.addCleanup(release.set)

        def wait_for_it():
            started.put(1)
            release.wait()  # the line that the report names

        @server.tool
        def spin():
            wait_for_it()

        with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.5), (
                quiet()) as stderr, Client(server) as client:
            calls = [client.submit_tool("spin") for _ in range(2)]
            for _ in calls:
                started.get(timeout=PATIENCE)
            for call in calls:
                call.cancel()
            wait_until(lambda: stderr.getvalue().count("still at") == 2)
            release.set()
        reports = stderr.getvalue().splitlines()
        line = self.line_of("release.wait()  # the line that the report names")
        self.assertEqual(len(reports), 2)
        for report in reports:
            self.assertRegex(report, "spin was cancelled .*%s$" % line)

    def test_a_coroutine_that_blocks_the_event_loop_is_named_once(self):
        """While it blocks.  The report on another server is the fence: by then a second
        one on the first would have come."""
        first, second, release = Server("s"), Server("t"), threading.Event()
        self.addCleanup(release.set)

        @first.tool
        async def block():
            release.wait()  # the line that blocks

        @second.tool
        async def fence():
            release.wait()  # the line of the fence

        def count(text):
            return stderr.getvalue().count(
                self.line_of("release.wait()  # the line " + text))

        with mock.patch.object(mcp_min, "BLOCKED_SECONDS", 0.3), quiet() as stderr, (
                Client(first)) as client, Client(second) as other:
            calls = [client.submit_tool("block"), client.submit_tool("block")]
            wait_until(lambda: count("that blocks"))
            calls.append(other.submit_tool("fence"))
            wait_until(lambda: count("of the fence"))
            release.set()
            for call in calls:
                call.result(PATIENCE)
        self.assertEqual((count("that blocks"), count("of the fence")), (1, 1))
        self.assertIn("blocks the event loop", stderr.getvalue())

    def test_a_traceback_shows_no_frame_of_the_library(self):
        """An error that a tool reports on purpose has none."""
        server = Server("s")

        @server.tool
        def fail(error: str):
            raise {"bug": ValueError, "told": ToolError}[error]("broken")

        with quiet() as stderr, Client(server) as client:
            for error in "bug", "told":
                client.call_tool("fail", {"error": error}, raise_on_error=False)
        self.assertNotIn('File "' + mcp_min.__file__, stderr.getvalue())
        self.assertEqual(stderr.getvalue().count("in fail\n"), 1)

    def test_pydoc_shows_no_addresses(self):
        import pydoc
        text = pydoc.plain(pydoc.render_doc(mcp_min))
        self.assertEqual(re.findall(".* at 0x.*", text), [])


class Test10Output(unittest.TestCase):
    """What the program prints while it serves, and where the messages go."""

    def test_what_a_tool_prints_is_on_stderr_at_once(self):
        """Without `flush`.  Fails if it stays in a buffer until the server ends."""
        with process("""
                server, go = Server("s"), threading.Event()

                @server.tool
                def talk():
                    print("printed")
                    go.wait()

                server.tool(go.set, name="go")
                server.run()
                """) as server:
            server.say('1 tools/call {"name": "talk"}', "modern")
            wait_until(lambda: server.stderr == "printed\n", "the line")
            play(server, """
                > 2 tools/call {"name": "go"}
                <* 1 {"isError": false}
                <* 2 {"isError": false}
                > 3 server/discover
                < 3 {}
                > EOF
                """, era="modern")

    def test_a_program_may_have_moved_stdout_aside(self):
        """By `dup2`, as programs do that load noisy libraries: messages go to
        `sys.stdout`, not to descriptor 1, and both are as before at the end."""
        with process("""
                moved = os.dup(1)
                os.dup2(2, 1)
                sys.stdout = os.fdopen(moved, "w")
                os.write(1, b"noise 1\\n")
                server = Server("s")

                @server.tool
                def talk():
                    print("printed")
                    os.write(1, b"noise 2\\n")

                server.run()
                os.write(1, b"noise 3\\n")
                print('{"jsonrpc": "2.0", "method": "after"}')
                sys.stdout.flush()
                """) as server:
            response = server.ask('1 tools/call {"name": "talk"}', "modern")
            self.assertIs(response["result"]["isError"], False)
            self.assertEqual([end["method"] for end in server.hang_up()], ["after"])
            self.assertEqual((server.exit(), server.stderr),
                             (0, "noise 1\nprinted\nnoise 2\nnoise 3\n"))


class Test10Lifespan(unittest.TestCase):
    """The lifespan: a context manager that is open as long as the server runs."""

    @UNIX
    def test_it_is_left_at_the_end_of_input_and_on_a_signal(self):
        for end, status in (
                (lambda server: server.hang_up(), 0),
                (lambda server: server.child.terminate(), 143),
                (lambda server: server.child.send_signal(signal.SIGINT), 130)):
            with self.subTest(status), process(
                    LIFESPAN_SERVER + "server.run()", "-I") as server:
                play(server, """
                    > handshake
                    > 1 tools/call {"name": "same"}
                    < 1 {"structuredContent": {"result": true}}
                    """)
                end(server)
                self.assertEqual(server.exit(), status)
                self.assertEqual(server.stderr.split(), ["enter", "leave"])

    def test_it_is_entered_once_for_all_connections(self):
        events = []

        @contextlib.contextmanager
        def lifespan(server):
            events.append("enter")
            yield 5
            events.append("leave")

        server = Server("s", lifespan=lifespan)

        @server.tool
        def value(ctx: Context) -> int:
            events.append("call")
            return ctx.lifespan_context

        with Client(server) as client, Client(server) as other:
            self.assertEqual(client.call_tool("value").data, 5)
            self.assertEqual(other.call_tool("value").data, 5)
        wait_until(lambda: events == ["enter", "call", "call", "leave"])

    def test_an_error_in_it_ends_the_server(self):
        """So does one that does not end in time."""
        @contextlib.asynccontextmanager
        async def fails_first(server):
            yield 1 / 0

        @contextlib.asynccontextmanager
        async def fails_last(server):
            yield 0
            await asyncio.sleep(1 / 0)

        @contextlib.asynccontextmanager
        async def endless(server):
            yield
            await asyncio.sleep(600)

        for lifespan, error in ((fails_first, ZeroDivisionError),
                                (fails_last, ZeroDivisionError),
                                (endless, asyncio.TimeoutError)):
            with self.subTest(lifespan.__name__), mock.patch.object(
                    mcp_min, "LIFESPAN_SECONDS", 0.01 if lifespan is endless else 10), (
                    quiet()), self.assertRaises(error):
                Server("s", lifespan=lifespan).serve(io.BytesIO(), io.BytesIO())


class Test10Extras(unittest.TestCase):
    """Custom methods, middleware, and the thread that runs a handler."""

    @both_eras
    def test_middleware_wraps_every_handler(self, era):
        """If it forgets to return, that is an error which names it."""
        server = zoo()
        called = []

        @server.middleware
        def outer(ctx, method, params, call_next):
            called.append(method)
            if params.get("name") == "same":
                raise McpError(-1, "closed")
            return call_next(ctx, method, params)

        @server.middleware
        def forgetful(ctx, method, params, call_next):
            called.append("inner")
            result = call_next(ctx, method, params)
            if params.get("name") != "greet":
                return result

        with quiet():
            play(server, """
                > 1 tools/call {"name": "echo", "arguments": {"text": "x"}}
                < 1 {"content": [{"text": "x"}]}
                > 2 tools/call {"name": "same", "arguments": {"value": {}}}
                < 2 -1 "closed"
                > 3 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
                < 3 -32603 "forgetful"
                """, era=era)
        self.assertEqual(
            called, ["tools/call", "inner", "tools/call", "prompts/get", "inner"])

    def test_what_middleware_does_to_a_result_does_not_last(self):
        server = Server("s")
        server.add_tool(lambda: 1, name="one")

        @server.middleware
        def decorate(ctx, method, params, call_next):
            result = call_next(ctx, method, params)
            for tool in result.get("tools", ()):
                tool["description"] = tool.get("description", "") + "!"
            if "_meta" in result:
                result["_meta"]["count"] = result["_meta"].get("count", 0) + 1
            return result

        with Client(server, mode="legacy") as client:
            for _ in range(2):
                self.assertEqual(client.list_tools()[0]["description"], "!")
                self.assertEqual(client.call_tool("one").meta["count"], 1)

    def test_unthreaded_handlers_run_on_the_calling_thread(self):
        """One after the other; pings, cancellations and answers are read meanwhile."""
        server, threads = Server("s", threaded=False), []
        started, release = gate("started"), gate("release")

        @server.tool
        def hold(ctx: Context):
            threads.append(threading.current_thread())
            started.set()
            release.wait()

        @server.tool
        def ask(ctx: Context) -> str:
            threads.append(threading.current_thread())
            return ctx.elicit("?", str).data

        with wire(server) as client:
            play(client, """
                > 1 tools/call {"name": "hold"}
                > 2 tools/call {"name": "ask"}
                ! started
                > notifications/cancelled {"requestId": 1}
                < fence
                ! release
                < $q elicitation/create {}
                < fence
                > $q {"action": "accept", "content": {"value": "yes"}}
                < 2 {"content": [{"text": "yes"}]}
                """, era="legacy", started=started.wait, release=release.set)
            self.assertEqual(threads, [client._serving] * 2)

    def test_every_request_of_a_finite_stream_is_answered(self):
        """Fails if its end cancels the handlers after `drain_seconds`."""
        server = Server("s", drain_seconds=0.0)
        server.tool(lambda: time.sleep(0.05), name="slow")
        requests = "".join(
            json.dumps(message(f'{n} tools/call {{"name": "slow"}}', True)) + "\n"
            for n in range(5)).encode()
        with tempfile.TemporaryFile() as file:
            file.write(requests)
            file.seek(0)
            for reader in io.BytesIO(requests), file:
                writer = io.BytesIO()
                server.serve(reader, writer)
                self.assertEqual(writer.getvalue().count(b'"isError":false'), 5)

    def test_a_handler_that_run_handler_calls_twice_runs_once(self):
        server, ran = Server("s", run_handler=lambda job: (job(), job())), []
        server.tool(lambda: ran.append("once"), name="run")
        play(server, '> 1 tools/call {"name": "run"}\n< 1 {"content": []}', "legacy")
        self.assertEqual(ran, ["once"])

    def test_a_wait_without_end_can_be_cancelled(self):
        server, waiting, ended = Server("s"), gate("waiting"), gate("Cancelled")

        @server.tool
        def wait(ctx: Context):
            waiting.set()
            try:
                ctx.wait(math.inf)
            except Cancelled:
                ended.set()

        play(server, """
            > 1 tools/call {"name": "wait"}
            ! waiting
            > notifications/cancelled {"requestId": 1}
            ! ended
            """, era="legacy", waiting=waiting.wait, ended=ended.wait)

    # -- what a handler can do ---------------------------------------------------------

    @clause("2025-11-25/basic/utilities/ping",
            "Either the client or server can initiate a ping by sending a `ping` "
            "request.")
    def test_a_handler_may_ping_its_client(self):
        server = Server("s")

        @server.tool
        def plain(ctx: Context, timeout: float = 10) -> str:
            try:
                return str(ctx.ping(timeout=timeout))
            except RequestTimeout:
                return "gone"

        @server.tool
        async def later(ctx: Context) -> str:
            return str(await ctx.ping())

        play(server, """
            > handshake 2024-11-05
            > 1 tools/call {"name": "plain"}
            < $a ping
            > $a {}
            < 1 {"content": [{"text": "None"}]}
            > 2 tools/call {"name": "later"}
            < $b ping
            > $b -32601 "no pings here"
            < 2 -32601 "no pings here"
            > 3 tools/call {"name": "plain", "arguments": {"timeout": 0.01}}
            < $c ping
            < notifications/cancelled {"requestId": "$c"}
            < 3 {"content": [{"text": "gone"}]}
            > 4 modern tools/call {"name": "plain"}
            < 4 -32601
            """)

    def test_a_notification_of_ones_own(self):
        """It gets the parameters, or all of them as `params`, and a Context that can
        send, but neither ask nor report progress; an error in it harms nothing."""
        server, received = Server("s"), queue.Queue()

        @server.method("notifications/acme/plain")
        def plain(x: int, ctx: Context):
            received.put((x, ctx.request_id, ctx.cancelled, ctx.meta))
            ctx.report_progress(1)
            ctx.notify("notifications/acme/echo", {"x": x})

        @server.method("notifications/acme/later")
        async def later(params: dict):
            await asyncio.sleep(0)
            received.put(params)

        @server.method("notifications/acme/fails")
        def fails(ctx: Context):
            for ask in functools.partial(ctx.elicit, "?", str), ctx.ping:
                received.put(type(raised(ask)))
            raise ValueError("broken")

        for hello in "", "> handshake", "> 1 modern server/discover\n< 1 {}":
            with self.subTest(hello), quiet() as stderr, wire(server) as client:
                play(client, hello + """
                    > notifications/acme/plain {"x": 1}
                    < notifications/acme/echo {"x": 1}
                    > notifications/acme/plain {"x": "not a number"}
                    > notifications/acme/later {"y": [2]}
                    > notifications/acme/fails
                    > notifications/acme/later {"y": 3}
                    > notifications/acme/unknown {}
                    """)
                self.assertEqual([received.get(timeout=PATIENCE) for _ in range(5)], [
                    (1, None, False, {}), {"y": [2]}, McpError, McpError, {"y": 3}])
            self.assertIn("ValueError: broken", stderr.getvalue())

    def test_notifications_whose_handlers_are_behind_are_dropped(self):
        """Fails if they fill memory while a handler runs, threaded or not."""
        def check(threaded):
            server, heard, go = Server("s", threaded=threaded), [], gate("go")

            @server.method("notifications/acme")
            def hear(n: int):
                go.wait()
                heard.append(n)

            with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 10000), (
                    wire(server)) as client:
                for n in range(50):
                    client.say('notifications/acme {"n": %d}' % n)
                client.fence()
                go.set()
                wait_until(lambda: len(heard) > 4)  # so there is room again
                client.say('notifications/acme {"n": 50}')
                wait_until(lambda: heard[-1] == 50)
            self.assertEqual(heard, sorted({*heard}))
            self.assertLess(len(heard), 15)

        for threaded in True, False:
            check(threaded)

    def test_the_error_for_an_unknown_option_lists_the_known_ones(self):
        server = Server("s")
        for register, known in (
                (server.add_tool, "title annotations input_schema output_schema"),
                (server.add_prompt, "name title description icons meta"),
                (functools.partial(server.add_resource, "s://x"), "mime_type size")):
            text = str(raised(register, quiet, labels=1)).partition("labels")[2]
            self.assertLessEqual({*known.split()}, {*re.findall(r"\w+", text)})


SIZE = {"type": "object", "required": ["size"],
        "properties": {"size": {"type": "string", "enum": ["S", "M"]}}}


def shop(name="shop", **options):
    """A server whose handlers ask their client; ``server.done`` lists their effects."""
    server = Server(name, **options)
    server.done = []

    @server.tool
    def order(item: str, ctx: Context, count: int = 1) -> str:
        ctx.once("bill", lambda: server.done.append("bill") or len(server.done))
        bill = ctx.once("bill", lambda: server.done.append("another bill"))
        size = ctx.elicit("Which size?", SIZE, key="size")
        if size.action != "accept":
            return "not sold: " + size.action
        color = ctx.elicit("Which color?", ["red", "blue"], key="color")
        server.done.append("sold")
        return "bill %s: %s %s %s" % (bill, size.content["size"], color.data, item)

    @server.tool
    def survey(ctx: Context) -> dict:
        return ctx.ask({
            "roots": {"method": "roots/list", "params": {}},
            "name": {"method": "elicitation/create", "params": {
                "mode": "form", "message": "Name?", "requestedSchema": {
                    "type": "object", "properties": {"name": {"type": "string"}}}}}})

    @server.tool
    def haiku(ctx: Context) -> str:
        return ctx.sample("Write one.", max_tokens=20, system_prompt="Be brief.",
                          key="poem").text

    @server.tool
    def visit(ctx: Context) -> str:
        return ctx.elicit_url("Sign in", "https://example.com/login").action

    @server.tool
    def roots(ctx: Context) -> list:
        try:
            return [root["uri"] for root in ctx.list_roots()]
        except Exception:  # noqa: BLE001 - must not catch what unwinds a handler
            return ["caught by except Exception"]

    @server.prompt
    def letter(ctx: Context) -> str:
        return "Dear " + ctx.elicit("To whom?", str, key="to").data

    server.resource("shop://door")(lambda: "open")
    return server


OBJECT_OF_OBJECTS = {"type": "object", "properties": {"x": {"type": "object"}}}
RED = '{"color": {"action": "accept", "content": {"value": "red"}}}'
MEDIUM = '{"size": {"action": "accept", "content": {"size": "M"}}}'
ORDER = '"name": "order", "arguments": {"item": "hat", "count": 2}'


class Test10Questions(unittest.TestCase):
    """A handler asks its client: by a request in a session, and without a session by an
    `InputRequiredResult`, after which the handler is replayed."""

    # -- in a session ------------------------------------------------------------------

    @clause("2025-11-25/client/elicitation", "elicitation/create")
    def test_in_a_session_the_server_asks_by_request(self):
        server = shop()
        play(server, """
            > 1 tools/call {%s}
            < $a elicitation/create {"message": "Which size?", "requestedSchema":
                {"type": "object", "properties": {"size": {"type": "string", "enum":
                ["S", "M"]}}, "required": ["size"]}}
            < fence
            > $a {"action": "accept", "content": {"size": "M"}}
            < $b elicitation/create {"message": "Which color?", "requestedSchema":
                {"properties": {"value": {"type": "string", "enum": ["red", "blue"]}}}}
            > $b {"action": "accept", "content": {"value": "red"}}
            < 1 {"content": [{"text": "bill 1: M red hat"}]}
            > 4 tools/call {"name": "visit"}
            < $e elicitation/create {"mode": "url", "url": "https://example.com/login",
                "message": "Sign in", "elicitationId": "..."}
            > $e {"action": "decline"}
            < 4 {"content": [{"text": "decline"}]}
            > 5 tools/call {"name": "survey"}
            <* $h roots/list
            <* $i elicitation/create {"message": "Name?"}
            > $i {"action": "accept", "content": {"name": "Ada"}}
            > $i {"action": "accept", "content": {"name": "Mallory"}}
            > $h {"roots": []}
            < 5 {"structuredContent": {"roots": {"roots": []}, "name": {"action":
                "accept", "content": {"name": "Ada"}}}}
            """ % ORDER, era="legacy")
        self.assertEqual(server.done, ["bill", "sold"])

    @clause("2025-11-25/basic/lifecycle",
            "Implementations **SHOULD** establish timeouts for all sent requests")
    def test_a_question_without_an_answer_times_out(self):
        server = Server("s", max_workers=1)

        @server.tool
        def ask(ctx: Context):
            for question in (
                    ctx.list_roots, functools.partial(ctx.sample, "?"),
                    functools.partial(ctx.elicit, "?", str),
                    functools.partial(ctx.elicit_url, "?", "https://x.io"),
                    functools.partial(ctx.ask, {"r": {"method": "roots/list"}})):
                with self.assertRaisesRegex(RequestTimeout, "no response"):
                    question(timeout=0.01)

        questions = "".join("""
            < $%d %s
            < notifications/cancelled {"requestId": "$%d", "reason": "timed out"}
            """ % (n, method, n) for n, method in enumerate((
                "roots/list", "sampling/createMessage", "elicitation/create",
                "elicitation/create", "roots/list")))
        play(server, '> 1 tools/call {"name": "ask"}\n%s\n< 1 {"isError": false}'
             % questions, era="legacy")

    @clause("2026-07-28/client/elicitation",
            "limited to flat objects with primitive properties only")
    def test_a_form_is_flat(self):
        """What a form cannot ask for, and what is no URL, is an error before anything
        is sent."""
        @dataclasses.dataclass
        class Good:
            name: str
            age: int = 3
            day: Optional[datetime.date] = None
            colors: List[Color] = dataclasses.field(default_factory=list)

        titled = [{"const": "a", "title": "A"}]
        accepted = [
            Good, bool, ["a", 1], Literal["a", "b"], OBJECT, datetime.datetime,
            {"type": "object", "properties": {
                "one": {"type": "string", "oneOf": titled},
                "some": {"type": "array", "items": {"anyOf": titled}},
                "mail": {"type": "string", "format": "email"}}}]
        rejected = [
            (User, "home: "), (List[str], "value: "), (uuid.UUID, "value: "),
            (Level, "value: "), (Any, "value: "),
            (Optional[Union[int, str]], "value: "),
            ({"type": "object", "properties": {"x": True}}, "x: "),
            ({"type": "string"}, "object"), ({"type": "object"}, "properties")]
        server, asked = Server("s"), []

        @server.tool
        def ask(ctx: Context):
            for schema in accepted:
                self.assertEqual(ctx.elicit("?", schema).action, "decline")
            for schema, error in rejected:
                with self.assertRaisesRegex(ValueError, error):
                    ctx.elicit("?", schema)
            for form in {"type": "string"}, OBJECT_OF_OBJECTS:
                with self.assertRaisesRegex(ValueError, "object"):
                    ctx.ask({"q": {"method": "elicitation/create", "params": {
                        "message": "?", "requestedSchema": form}}})
            with self.assertRaisesRegex(ValueError, "not a URL: 'no address'"):
                ctx.elicit_url("?", "no address")

        with quiet(), Client(server, mode=LATEST, elicitation_handler=(
                lambda *question: asked.append(question))) as client:
            client.call_tool("ask")
        self.assertEqual(len(asked), len(accepted))

    def test_errors_declining_and_cancelling_reach_the_handler(self):
        play(shop(), """
            > 1 tools/call {%(order)s}
            < $a elicitation/create {}
            > $a -32042 "go away"
            < 1 -32042 "go away"
            > 2 tools/call {"name": "roots"}
            < $b roots/list
            > $b -1 "no"
            < 2 {"structuredContent": {"result": ["caught by except Exception"]}}
            > 4 tools/call {%(order)s}
            < $d elicitation/create {}
            > $d {"action": "cancel"}
            < 4 {"content": [{"text": "not sold: cancel"}]}
            """ % {"order": ORDER}, era="legacy")

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_a_client_is_asked_only_what_it_declared(self):
        server = shop()
        play(server, """
            > 0 initialize 2025-06-18 {"capabilities": {"elicitation": {}}}
            < 0 {}
            > notifications/initialized
            > 1 tools/call {"name": "haiku"}
            < 1 -32600 "did not declare, or revision 2025-06-18 does not have: sampling"
            > 2 tools/call {"name": "roots"}
            < 2 {"structuredContent": {"result": ["caught by except Exception"]}}
            > 3 tools/call {"name": "visit"}
            < 3 -32600 "elicitation"
            > 4 prompts/get {"name": "letter"}
            < $a elicitation/create {"message": "To whom?"}
            > $a {"action": "accept", "content": {"value": "Ada"}}
            < 4 {}
            # a revision without elicitation
            > handshake 2025-03-26
            > 5 prompts/get {"name": "letter"}
            < 5 -32600 "elicitation"
            """)

    def test_cancelling_a_request_releases_the_handler_that_waits_for_its_client(self):
        server, released = Server("s", max_workers=1), gate("the handler was released")

        @server.tool
        def ask(ctx: Context):
            try:
                ctx.elicit("Well?", str)
            finally:
                released.set()

        play(server, """
            > 1 tools/call {"name": "ask"}
            < $q elicitation/create {}
            > notifications/cancelled {"requestId": 1}
            < notifications/cancelled {"requestId": "$q"}
            ! released
            > 2 tools/call {"name": "ask"}
            < $r elicitation/create {}
            > $q {"action": "decline"}
            > $r {"action": "decline"}
            < 2 {"isError": false}
            """, era="legacy", released=released.wait)

    def test_a_question_to_a_client_that_has_hung_up_fails_at_once(self):
        """The final result of a stream shows that the end of input has been read."""
        server, release = Server("s", drain_seconds=60), gate("release")

        @server.tool
        def ask(ctx: Context):
            release.wait()
            ctx.elicit("Well?", str)

        with quiet():
            play(server, """
                > 1 modern subscriptions/listen {"notifications": {}}
                < notifications/subscriptions/acknowledged {}
                > 2 tools/call {"name": "ask"}
                < fence
                > EOF
                < 1 {"resultType": "complete"}
                ! release
                < 2 {"isError": true}
                """, era="legacy", release=release.set)

    # -- without a session -------------------------------------------------------------

    @clause("2026-07-28/basic/patterns/mrtr",
            "Servers **MAY** respond to any [supported client "
            "request](#supported-requests) with an `InputRequiredResult`.")
    def test_without_a_session_the_handler_is_replayed(self):
        server = shop()
        play(server, """
            > 1 tools/call {%(order)s}
            <= 1 {"resultType": "input_required", "requestState": "$one",
                "inputRequests": {"size": {"method": "elicitation/create", "params":
                {"message": "Which size?", "requestedSchema": {"type":
                "object", "properties": {"size": {"type": "string", "enum": ["S",
                "M"]}}, "required": ["size"]}}}}, "_meta": "..."}
            > 2 tools/call {%(order)s, "requestState": "$one", "inputResponses":
                %(medium)s}
            < 2 {"resultType": "input_required", "requestState": "$two",
                "inputRequests": {"color": {"method": "elicitation/create"}}}
            > 3 tools/call {%(order)s, "requestState": "$two", "inputResponses":
                %(red)s}
            < 3 {"resultType": "complete", "content": [{"text": "bill 1: M red hat"}]}
            """ % {"order": ORDER, "red": RED, "medium": MEDIUM}, era="modern")
        self.assertEqual(server.done, ["bill", "sold"])

    @clause("2026-07-28/basic/transports/stdio",
            "The server **MUST NOT** write JSON-RPC _requests_ to `stdout`.")
    def test_each_kind_of_question_without_a_session(self):
        """Without a key, a question gets one."""
        for tool, key, question, answer, text in (
                ("roots", "...", {"method": "roots/list"},
                 {"roots": [{"uri": "file:///a"}]}, "...file:///a..."),
                ("visit", "...", {"method": "elicitation/create", "params": {
                    "mode": "url"}}, {"action": "accept"}, "accept"),
                ("haiku", "poem", {"method": "sampling/createMessage", "params": {
                    "maxTokens": 20, "systemPrompt": "Be brief."}},
                 {"role": "assistant", "content": Text("A haiku."), "model": "m"},
                 "A haiku.")):
            with self.subTest(tool), wire(shop()) as client:
                response = client.ask('1 tools/call {"name": "%s"}' % tool, "modern")
                result = response["result"]
                (found, request), = result["inputRequests"].items()
                self.assertTrue(matches([key, question], [found, request], {}))
                play(client, """
                    > 2 tools/call {"name": "$tool", "requestState": "$state",
                        "inputResponses": "$answers"}
                    < 2 {"resultType": "complete", "content": [{"text": "%s"}]}
                    """ % text, era="modern", tool=tool,
                     state=result["requestState"], answers={found: answer})

    def test_of_several_questions_only_the_unanswered_one_is_asked_again(self):
        names = play(shop(), """
            > 1 tools/call {"name": "survey"}
            < 1 {"requestState": "$s", "inputRequests": {"roots": "...", "name": "..."}}
            > 2 tools/call {"name": "survey", "requestState": "$s", "inputResponses":
                {"roots": {"roots": []}}}
            < 2 {"requestState": "$s2", "inputRequests": "$again"}
            > 3 tools/call {"name": "survey", "requestState": "$s2", "inputResponses":
                {"name": {"action": "accept", "content": {"name": "Ada"}}}}
            < 3 {"structuredContent": {"roots": {"roots": []}, "name": "..."}}
            """, era="modern")
        self.assertEqual(list(names["again"]), ["name"])

    @clause("2026-07-28/basic/patterns/mrtr",
            "the server **SHOULD** ignore any information it does not recognize or "
            "need.")
    @clause("2026-07-28/basic/patterns/mrtr",
            "the server **SHOULD** respond with a new `InputRequiredResult` "
            "requesting the missing information again")
    def test_answers_that_are_missing_or_come_too_early(self):
        """Those without a state are taken, as the official suite sends them; some, or
        all."""
        play(shop(), """
            > 1 tools/call {%(order)s, "inputResponses": null}
            < 1 {"resultType": "input_required", "requestState": "$s"}
            > 2 tools/call {%(order)s, "requestState": "$s"}
            < 2 {"resultType": "input_required", "inputRequests": {"size": "..."}}
            > 3 tools/call {%(order)s, "requestState": "$s", "inputResponses": {}}
            < 3 {"resultType": "input_required", "inputRequests": {"size": "..."}}
            > 4 tools/call {%(order)s, "inputResponses": %(medium)s}
            < 4 {"resultType": "input_required", "inputRequests": {"color": "..."},
                "requestState": "$s4"}
            > 5 tools/call {%(order)s, "requestState": "$s4", "inputResponses": %(red)s}
            < 5 {"content": [{"text": "bill 2: M red hat"}]}
            > 6 tools/call {%(order)s, "requestState": null, "inputResponses": {"size":
                {"action": "accept", "content": {"size": "S"}}, "color": {"action":
                "accept", "content": {"value": "blue"}}, "zip": 7}}
            < 6 {"content": [{"text": "bill 4: S blue hat"}]}
            """ % {"order": ORDER, "red": RED, "medium": MEDIUM}, era="modern")

    def test_an_invalid_answer_fails_the_request(self):
        """With the field and the issue; the state accepts a valid answer later."""
        for invalid, field in (
                ('{"action": "accept", "content": {"size": "XXL"}}', "size"),
                ('{"action": "accept"}', "size"), ('{"action": "maybe"}', "action"),
                ('{}', "action"), ('7', "size"), ('"M"', "size"), ('["M"]', "size"),
                ('{"action": "accept", "content": [1]}', "size")):
            with self.subTest(invalid):
                play(shop(), ("""
                    > 1 tools/call {ORDER}
                    < 1 {"resultType": "input_required", "requestState": "$state"}
                    """ + self.RETRY + """
                    < 2 -32602 "size" {"field": "%s", "issue": "..."}
                    """ + self.RETRY + """
                    < 2 {"inputRequests": {"color": "..."}}
                    """).replace("ORDER", ORDER) % (
                        ORDER, '{"size": %s}' % invalid, field, ORDER, MEDIUM),
                     era="modern")

    def test_an_invalid_answer_in_a_session(self):
        """It is not asked again; a handler may catch the error.  Several questions are
        checked like single ones."""
        server, wrong = shop(), '{"action": "accept", "content": {"name": 7}}'

        @server.tool
        def careful(ctx: Context) -> str:
            try:
                return ctx.elicit("Name?", OBJECT).action
            except McpError as error:
                return error.data["field"]

        play(server, """
            > 1 tools/call {"name": "careful"}
            < $a elicitation/create {"message": "Name?"}
            > $a WRONG
            < 1 {"content": [{"text": "name"}]}
            > 2 tools/call {"name": "survey"}
            <* $h roots/list
            <* $i elicitation/create {"message": "Name?"}
            > $h {"roots": []}
            > $i WRONG
            < 2 -32602 {"field": "name", "issue": "..."}
            > 3 modern tools/call {"name": "survey", "inputResponses": {"name": WRONG}}
            < 3 -32602 {"field": "name", "issue": "..."}
            # answers and state are of no account here
            > 4 tools/call {"name": "careful", "requestState": "forged",
                "inputResponses": {"elicitation/create-1": {"action": "accept"}}}
            < $b elicitation/create {}
            > $b {"action": "decline"}
            < 4 {"content": [{"text": "decline"}]}
            """.replace("WRONG", wrong), era="legacy")

    def test_an_accepted_form_without_content_is_an_empty_one(self):
        """Missing content, or null."""
        server, form = Server("s"), {"type": "object", "properties": {
            "note": {"type": "string"}}}

        @server.tool
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("Note?", form, key="q").content)

        for answer in '{"action": "accept"}', '{"action": "accept", "content": null}':
            play(server, """
                > 2 tools/call {"name": "ask", "inputResponses": {"q": %s}}
                < 2 {"content": [{"text": "{}"}]}
                """ % answer, era="modern")

    @clause("2026-07-28/basic/index",
            "the server **MUST** return a [`MissingRequiredClientCapabilityError`]")
    @clause("2026-07-28/basic/patterns/mrtr",
            "Servers **MUST NOT** send an `inputRequests` that the client has not "
            "declared support for in its capabilities.")
    def test_a_request_must_declare_the_capability_to_answer(self):
        """Capabilities of another request or of the session do not count."""
        with wire(shop()) as client:
            for hello, (request, declared, outcome) in itertools.product((
                    "> 0 modern tools/call {\"name\": \"haiku\"}\n< 0 {}",
                    "> handshake"), (
                    ('tools/call {"name": "haiku"', {}, '{"sampling": {}}'),
                    ('tools/call {"name": "roots"', {"sampling": {}}, '{"roots": {}}'),
                    ('prompts/get {"name": "letter"', {"elicitation": {"url": {}}},
                     '{"elicitation": {"form": {}}}'),
                    ('tools/call {"name": "visit"', {"elicitation": {}},
                     '{"elicitation": {"url": {}}}'),
                    ('prompts/get {"name": "letter"', {"elicitation": {}}, None))):
                with self.subTest(request, hello=hello):
                    play(client, """
                        %s
                        > 1 modern %s, "_meta":
                            {"io.modelcontextprotocol/clientCapabilities": %s}}
                        < 1 %s
                        """ % (hello, request, json.dumps(declared), (
                            '-32021 {"requiredCapabilities": %s}' % outcome if outcome
                            else '{"resultType": "input_required"}')))

    # -- the signed state --------------------------------------------------------------

    RETRY = '> 2 tools/call {%s, "requestState": "$state", "inputResponses": %s}\n'

    def state(self, client):
        """The state that the server sends with the first question of an order."""
        return client.ask("1 modern tools/call {%s}" % ORDER)["result"]["requestState"]

    @clause("2026-07-28/basic/patterns/mrtr",
            "**MUST** reject state that fails verification.")
    def test_altered_state_is_rejected_before_the_handler_runs(self):
        server = shop()
        with wire(server) as client:
            state = self.state(client)
            server.done.clear()
            step = max(1, len(state) // 40)
            forged = [state[:at] + chr(ord(state[at]) ^ 1) + state[at + 1:]
                      for at in range(0, len(state), step)]
            forged += [state[:cut] for cut in range(0, len(state), step)]
            forged += [state + "A", state + "=", state + " ", " " + state, state * 2,
                       "é", "\ud800", "null", "{}", "x" * 100000, state.swapcase(),
                       state[::-1], state[:-1] + chr(ord(state[-1]) + 1)]
            for altered in forged:
                play(client, self.RETRY % (ORDER, MEDIUM) + '< 2 -32602 "requestState"',
                     era="modern", state=altered)
            self.assertEqual(server.done, [])

    def test_state_is_valid_only_for_the_request_that_it_came_from(self):
        """The order of the keys does not matter, and the state may be used again."""
        server = shop()
        server.add_tool(lambda item, count: server.done.append("other"), name="other")
        with wire(server) as client:
            state = self.state(client)
            server.done.clear()
            for method, params in (
                    ("tools/call", ORDER.replace("hat", "cap")),
                    ("tools/call", ORDER.replace("2", '"2"')),
                    ("tools/call", ORDER.replace(', "count": 2', "")),
                    ("tools/call", ORDER.replace("order", "other")),
                    ("tools/call", '"name": "order"'), ("prompts/get", ORDER),
                    ("prompts/get", '"name": "letter"'),
                    ("resources/read", '"uri": "shop://door"')):
                with self.subTest(params):
                    retry = self.RETRY.replace("tools/call", method) % (params, MEDIUM)
                    play(client, retry + "< 2 -32602", era="modern", state=state)
            self.assertEqual(server.done, [])
            for _ in range(2):
                play(client, """
                    > 3 tools/call {"arguments": {"count": 2, "item": "hat"},
                        "inputResponses": %s, "requestState": "$state", "name": "order"}
                    < 3 {"resultType": "input_required", "inputRequests": {"color":
                        "..."}}
                    """ % MEDIUM, era="modern", state=state)

    @clause("2026-07-28/basic/patterns/mrtr",
            "a short expiry (TTL), rejecting state presented after it lapses")
    def test_state_expires_after_fifteen_minutes(self):
        """Looks inside."""
        retry = self.RETRY % (ORDER, MEDIUM)
        with wire(shop()) as client:
            state, now = self.state(client), time.time
            with mock.patch.object(time, "time", lambda: now() + 14 * 60):
                play(client, retry + '< 2 {"resultType": "input_required"}',
                     era="modern", state=state)
            with mock.patch.object(time, "time", lambda: now() + 16 * 60):
                play(client, retry + '< 2 -32602 "requestState"',
                     era="modern", state=state)

    @clause("2026-07-28/basic/patterns/mrtr",
            "the server processing the retry does not need any information beyond "
            "what is directly present in the retry request.")
    def test_any_server_with_the_same_secret_accepts_the_state(self):
        """And the same name."""
        first, second, other, stranger = [shop(name, state_secret=secret * 32)
            for name, secret in (("shop", b"k"), ("shop", b"k"), ("bank", b"k"),
                                 ("shop", b"x"))]
        answer_size = self.RETRY % (ORDER, MEDIUM)
        with wire(first) as client:
            state = self.state(client)
        for server in other, stranger:
            play(server, answer_size + '< 2 -32602 "requestState"', "modern",
                 state=state)
        state = play(second, answer_size + '< 2 {"requestState": "$next"}', "modern",
                     state=state)["next"]
        play(first, self.RETRY % (ORDER, RED) + '< 2 {"content": [{"text": '
             '"bill 1: M red hat"}]}', "modern", state=state)
        self.assertEqual([server.done for server in (first, second, other, stranger)],
                         [["bill", "sold"], [], [], []])


# ======================================================================================
# Helpers for both ends: a scripted server, a recording relay, a server of all features
# ======================================================================================

FAKE = r"""
import json, os, sys, time
rules, seen, diary = json.loads(sys.argv[1]), [], sys.argv[2:]
id = asked = token = None
tries = probes = 0

def note(word):
    if diary:
        with open(diary[0], "a") as file:
            file.write(word + " ")

def say(text):                                  # one line; latin-1: any bytes
    data = text.encode("latin-1") + b"\n"
    while data:
        data = data[os.write(1, data):]

def err(text):
    os.write(2, text.encode() + b"\n")

def send(**message):
    say(json.dumps(dict(message, jsonrpc="2.0")))

def result(**fields):
    send(id=id, result=fields)

def error(code, message="refused", **data):
    more = {"data": data} if data else {}
    send(id=id, error=dict(code=code, message=message, **more))

OFFERED = {"tools": {}, "completions": {}, "resources": {"subscribe": True}}

def legacy(version="2025-11-25", **capabilities):
    result(protocolVersion=version, serverInfo={"name": "fake", "version": "1"},
           capabilities=dict(OFFERED, **capabilities))

def modern(*versions, **capabilities):
    info = {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}}
    result(resultType="complete", supportedVersions=versions or ["2026-07-28"],
           capabilities=dict(OFFERED, **capabilities), _meta=info,
           ttlMs=0, cacheScope="public")

def die(status):
    os._exit(status)

def text(value):
    result(content=[{"type": "text", "text": value}])

def repeat(lines):
    for line in lines:
        say(line.replace("$id", json.dumps(id)).replace("$token", json.dumps(token)))

def again(rounds):                              # one line per round of a request
    global tries
    tries = tries + 1 if {"inputResponses", "requestState"} & set(params) else 0
    repeat([rounds[min(tries, len(rounds) - 1)]])

RULES = {"discover": "error(-32601)", "initialize": "legacy()", "call": "text('ok')",
         "list": "result(tools=[])", "ping": "result()", "seen": "result(seen=seen)",
         "say": "repeat(params['lines'])", "fence": "result(fence=True)",
         "ask": "asked = id; send(id='s1', **params['request'])",
         "answer": "if asked: send(id=asked, result={'answer': message}); asked = None",
         "pid": "result(pid=os.getpid())", "env": "result(env=dict(os.environ))",
         "listen": "", "start": "", "end": ""}
RULES.update(rules)
note("+")
exec(RULES["start"], globals())
for line in sys.stdin.buffer:
    message = json.loads(line)
    seen.append(message)
    if isinstance(message, list):
        continue
    id, params = message.get("id"), message.get("params") or {}
    method = message.get("method", "answer").rpartition("/")[2]
    token = params.get("_meta", {}).get("progressToken")
    note(method)
    exec(RULES.get(method, ""), globals())
exec(RULES["end"], globals())
os._exit(0)                                     # without waiting for anything
"""


def fake(story=None, **rules):
    """The command of a server that does what ``rules`` say.

    A rule is a line of Python that runs when a message comes.  Its key is the last
    part of the method (``discover``, ``call``, …), or ``start`` or ``end``.  A method
    without a rule is answered as by a minimal server of the handshake era.  For tests:
    ``fake/say`` sends ``lines``, in which "$id" and "$token" are those of the request;
    ``fake/ask`` sends ``request`` to the client and returns its response; ``fake/seen``
    returns every message received so far.  ``story`` gets a "+" for each start and the
    key of each message.
    """
    command = [sys.executable, "-I", "-S", "-c", FAKE, json.dumps(rules)]
    return command + ([story.path] if story else [])


class FakeServers:
    """A mixin for tests of clients: each client has a `fake` server of its own."""

    MODE = "auto"

    def fake(self, options=None, story=None, **rules):
        options = {"timeout": PATIENCE, "mode": self.MODE, **(options or {})}
        client = Client(fake(story, **rules), **options)
        self.addCleanup(client.close)
        return client.connect()

    def fails(self, expected, job, *arguments, **options):
        """Check that ``job(…)`` raises an ``expected`` error, and return that."""
        with self.assertRaises(expected) as caught:
            job(*arguments, **options)
        return caught.exception

    def fence(self, client):
        """Check that the session still works."""
        self.assertEqual(client.request("fake/fence")["fence"], True)

    def seen(self, client):
        """Every message that the server has received so far."""
        return client.request("fake/seen")["seen"]


class Story:
    """What fake servers recorded: "+" for a start, and the key of each message."""

    def __init__(self, test):
        number, self.path = tempfile.mkstemp()
        os.close(number)
        test.addCleanup(os.unlink, self.path)

    def __str__(self):
        with open(self.path) as file:
            return file.read().strip()


def alive(pid):
    """Whether the process ``pid`` still runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return not os.path.isdir("/proc/self")


def gone(pid):
    """Wait until the process ``pid`` has ended."""
    wait_until(lambda: not alive(pid), f"the end of process {pid}")


def quick_probe(seconds):
    """A client waits ``seconds`` for the response to its probe, instead of 20."""
    return mock.patch.object(mcp_min, "PROBE_SECONDS", seconds)


def short_patience(seconds=0.15):
    """Each step of ending a process takes at most this long, instead of 20 s."""
    return mock.patch.object(mcp_min.Process, "PATIENCE", seconds)


class Relay:
    """Two streams of a client that ``server`` serves.  `lines` has every line that
    crosses them, as (">" or "<", bytes)."""

    def __init__(self, server):
        (reader, to_server), (from_server, writer) = os.pipe(), os.pipe()
        self.lines = []
        self.streams = (Recorded(os.fdopen(from_server, "rb"), self.lines),
                        Recorded(os.fdopen(to_server, "wb"), self.lines))
        self._thread = threading.Thread(target=self._serve, daemon=True, args=(
            server, os.fdopen(reader, "rb"), os.fdopen(writer, "wb")))
        self._thread.start()

    @staticmethod
    def _serve(server, reader, writer):
        with reader, contextlib.suppress(OSError), writer:
            server.serve(reader, writer)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for stream in reversed(self.streams):
            with contextlib.suppress(OSError):
                stream.close()
        self._thread.join(PATIENCE)


class Recorded:
    """A stream of a client that notes each line it reads or writes."""

    def __init__(self, stream, lines):
        self.stream, self.lines = stream, lines
        self.fileno, self.flush, self.close = stream.fileno, stream.flush, stream.close

    def read1(self, size):
        line = self.stream.readline()
        if line:
            self.lines.append(("<", line))
        return line

    def write(self, data):
        self.lines.extend((">", line) for line in bytes(data).splitlines(True))
        return self.stream.write(data)


OBJECT = {"type": "object", "properties": {"name": {"type": "string"}},
          "required": ["name"]}


def everything(**options):
    """A server that uses every feature, and the list of its handlers' effects."""
    server = Server("everything", version="3.1", instructions="be kind",
                    **{"page_size": 4, "drain_seconds": 0.05, **options})
    effects = []

    @server.tool
    def add(a: int, b: int = 2) -> int:
        "Add two numbers."
        return a + b

    @server.tool(title="Weather", annotations={"readOnlyHint": True})
    def forecast(city: Annotated[str, "City name"], days: int = 3) -> dict:
        "Forecast for a city."
        return {"city": city, "days": days}

    server.add_tool(lambda text: text.upper(), name="shout")
    server.add_tool(lambda: None, name="nothing")

    @server.tool
    def mixed():
        return [Text("a"), Image(data=b"\x89PNG", mime_type="image/png"),
                ResourceLink("note://x", "x"), EmbeddedResource("note://y", text="y")]

    @server.tool
    def unlucky():
        raise ToolError("out of luck")

    @server.tool
    def picky():
        raise McpError(-31050, "not today", {"why": "monday"})

    @server.tool
    def count(n: int, ctx: Context) -> str:
        for step in range(1, n + 1):
            ctx.report_progress(step, n, f"step {step}")
        return "counted"

    @server.tool
    def tell(ctx: Context, levels: list[str] = []) -> str:  # noqa: B006
        for level in levels:
            ctx.log(level, {"level": level}, "library")
        return "logged"

    @server.tool
    def pay(amount: int, ctx: Context) -> dict:
        name = ctx.elicit("your name?", OBJECT)
        if name.action != "accept":
            return {"action": name.action}
        receipt = ctx.once("charge", lambda: effects.append(amount) or "receipt 1")
        sure = ctx.elicit("sure?", bool)
        return {"name": name.content["name"], "sure": sure.data, "receipt": receipt}

    @server.tool
    def visit(ctx: Context) -> str:
        return ctx.elicit_url("sign in", "https://example.org/in").action

    @server.tool
    def recite(ctx: Context) -> str:
        return ctx.sample("a poem", system_prompt="rhyme", max_tokens=7,
                          temperature=0.5).text

    @server.tool
    def where(ctx: Context) -> list:
        return ctx.list_roots()

    @server.tool
    def several(ctx: Context) -> dict:
        form = {"mode": "form", "message": "your name?", "requestedSchema": OBJECT}
        answers = ctx.ask({"who": {"method": "elicitation/create", "params": form},
                           "dirs": {"method": "roots/list"}})
        return {"who": answers["who"]["content"], "dirs": answers["dirs"]["roots"]}

    @server.tool
    def hang(ctx: Context) -> str:
        effects.append("hanging")
        try:
            ctx.wait(PATIENCE)
        except Cancelled:
            effects.append("cancelled")
            raise
        return "never"

    @server.tool
    def story() -> list:
        return effects

    @server.tool
    def grow(name: str) -> str:
        server.add_tool(lambda: name, name=name)
        return "grown"

    @server.tool
    def shrink(name: str) -> str:
        server.remove_tool(name)
        return "shrunk"

    @server.tool
    def touch(uri: str) -> str:
        server.notify_resource_updated(uri)
        return "touched"

    @server.tool
    def whoami(ctx: Context) -> dict:
        return {"client": ctx.client_info["name"], "version": ctx.protocol_version,
                "able": sorted(ctx.client_capabilities)}

    @server.resource("config://app", mime_type="application/json")
    def config() -> dict:
        effects.append("read config")
        return {"debug": True}

    @server.resource("blob://one", mime_type="application/octet-stream")
    def blob() -> bytes:
        return b"\x00\xff"

    @server.resource("note://{name}", mime_type="text/plain")
    def note(name: str) -> str:
        return "note " + name

    @server.resource("asked://{name}")
    def asked(name: str, ctx: Context) -> str:
        person = ctx.elicit("your name?", OBJECT).content["name"]
        return f"{name} for {person}"

    @server.prompt
    def review(code: str, language: str = "python") -> str:
        "Ask for a review."
        return f"review this {language}: {code}"

    @server.prompt
    def interview(ctx: Context):
        return [Message("assistant", "who are you?"),
                Message("user", ctx.elicit("your name?", OBJECT).content["name"])]

    @server.completion("review", "language")
    def languages(value: str, context: dict):
        known = ["python", "perl", "pascal", "ruby", context.get("code", "")]
        return [word for word in known if word.startswith(value)]

    @server.completion("note://{name}", "name")
    def notes(value: str):
        return [f"{value}{number:03}" for number in range(150)]

    @server.method("acme/echo")
    def echo(params: dict):
        return {"echo": params.get("word")}

    return server, effects


class Session:
    """A Client of `everything` that answers every question and records what it gets."""

    def __init__(self, mode="auto", server=None, target=None, **options):
        self.server, self.effects = (server, []) if server else everything()
        self.asked, self.logs, self.notes, self.progress = [], [], [], []
        self.name = {"name": "Ann"}
        self.client = Client(target or self.server, mode=mode, **{
            "sampling_handler": self.sample, "elicitation_handler": self.elicit,
            "url_handler": self.visit,
            "roots": [{"uri": "file:///a", "name": "a"}],
            "message_handler": self.notes.append,
            "log_handler": lambda params: self.logs.append(
                (params["level"], params.get("data"))),
            "progress_handler": lambda *step: self.progress.append(step), **options})

    def sample(self, messages, params):
        self.asked.append(("sampling", messages[0]["role"], params["maxTokens"]))
        return "roses are red"

    def visit(self, message, url, params):
        self.asked.append((message, url))
        return True

    def elicit(self, message, schema, params):
        self.asked.append((message, params.get("url")))
        return {"value": True} if "value" in schema["properties"] else self.name

    def received(self, method):
        """The notifications of this method received so far; waits for the first."""
        return wait_until(lambda: [note for note in self.notes
                                   if note["method"] == method], method)

    def __enter__(self):
        self.client.connect()
        return self

    def __exit__(self, *exc):
        self.client.close()


# ======================================================================================
# 11  Client
# ======================================================================================

class Test11Client(unittest.TestCase):
    """The methods of a client, with client and server in one process."""

    def test_a_traced_response_names_the_method_of_its_request(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            with mock.patch.dict(os.environ, MCP_MIN_TRACE=path), Client(
                    everything()[0]) as client:
                client.request("acme/echo")
            with open(path) as file:
                self.assertRegex(file.read(),
                                 r'"result":\{.*"echo":.*  # acme/echo \d+\.\d ms\n')

    def test_close_closes_the_writer_of_two_streams(self):
        """Fails (by hanging) if `close` leaves it open, or waits for the reader."""
        (reader, other_end), (rest, writer) = os.pipe(), os.pipe()
        streams = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
        client = Client(streams, mode="legacy", timeout=0.05)
        self.assertIsInstance(raised(client.connect), RequestTimeout)
        self.assertEqual(together(client.close), [None])
        with os.fdopen(rest, "rb") as lines:
            self.assertIn(b"initialize", together(lines.read)[0])
        os.close(other_end)

    def setUp(self):
        self.session = Session().__enter__()
        self.addCleanup(self.session.__exit__)
        self.client = self.session.client

    @both_eras
    def test_data_and_text_of_every_form_of_result(self, era):
        oslo = {"city": "Oslo", "days": 3}
        with Session(era) as session:
            for tool, arguments, data, text, structured in (
                    ("add", {"a": 1}, 3, "3", {"result": 3}),
                    ("forecast", {"city": "Oslo"}, oslo, json.dumps(oslo), oslo),
                    ("shout", {"text": "hi"}, "HI", "HI", None),
                    ("nothing", None, "", "", None), ("mixed", {}, "a", "a", None)):
                result = session.client.call_tool(tool, arguments)
                with self.subTest(tool):
                    self.assertEqual(
                        (result.data, result.text, result.structured_content,
                         result.is_error), (data, text, structured, False))
        self.assertEqual(result.content, [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "note://x", "name": "x"},
            {"type": "resource", "resource": {
                "uri": "note://y", "mimeType": "text/plain", "text": "y"}}])

    def test_an_error_result_raises_tool_error_by_default(self):
        with self.assertRaisesRegex(ToolError, "out of luck"):
            self.client.call_tool("unlucky")
        result = self.client.call_tool("unlucky", raise_on_error=False)
        self.assertEqual((result.is_error, result.text), (True, "out of luck"))
        error = raised(self.client.call_tool, "picky")
        self.assertEqual((error.code, error.message, error.data),
                         (-31050, "not today", {"why": "monday"}))

    def test_submit_tool_returns_a_future(self):
        calls = [self.client.submit_tool("add", {"a": a, "b": 0}) for a in range(20)]
        self.assertFalse(concurrent.futures.wait(calls, PATIENCE).not_done)
        self.assertEqual([call.result().data for call in calls], list(range(20)))
        self.assertFalse(calls[0].cancel())
        called_back = []
        calls[0].add_done_callback(called_back.append)
        self.assertEqual(called_back, calls[:1])
        call = self.client.submit_tool("unlucky")
        self.assertIsInstance(call.exception(PATIENCE), ToolError)

    def test_the_reference_of_a_completion_is_a_name_a_dict_or_a_uri_template(self):
        values = self.client.complete("review", "language", "p")["values"]
        self.assertEqual(values, ["python", "perl", "pascal"])
        prompt = {"type": "ref/prompt", "name": "review"}
        result = self.client.complete(prompt, "language", "x", context={"code": "xy"})
        self.assertEqual(result["values"], ["xy"])
        result = self.client.complete("note://{name}", "name", "n")
        self.assertEqual((len(result["values"]), result["total"], result["hasMore"]),
                         (100, 150, True))

    def test_callbacks_run_in_order_on_one_thread_and_may_call_the_client(self):
        """Also where that reports progress, to the handler of the client."""
        steps, threads = [], set()

        def on_progress(progress, total, message):
            self.client.call_tool("count", {"n": 1})
            threads.add(threading.get_ident())
            steps.append(progress)

        self.client.call_tool("count", {"n": 20}, progress_handler=on_progress)
        self.assertEqual(steps, list(range(1, 21)))
        self.assertEqual(len(threads - {threading.get_ident()}), 1)
        wait_until(lambda: self.session.progress == [(1, 1, "step 1")] * 20)

    def test_a_callback_that_raises_is_logged_and_the_session_continues(self):
        def broken(*arguments):
            raise ValueError("broken callback")

        with quiet() as stderr, Client(
                self.session.server, progress_handler=broken, log_handler=broken,
                log_level="info") as client:
            self.assertEqual(client.call_tool("count", {"n": 2}).text, "counted")
            client.call_tool("tell", {"levels": ["info"]})
            self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
            wait_until(lambda: stderr.getvalue().count("broken callback\n") == 3)

    def test_a_capability_is_declared_exactly_when_its_handler_is_given(self):
        extra = {"sampling": {"tools": {}}, "extensions": {"x/y": {}}}
        for mode, (options, declared) in itertools.product(("legacy", "modern"), [
                ({}, []), ({"sampling_handler": print}, ["sampling"]),
                ({"elicitation_handler": print}, ["elicitation"]),
                ({"roots": []}, ["roots"]),
                ({"sampling_handler": print, "capabilities": extra}, [*extra])]):
            with self.subTest(mode=mode, declared=declared), Client(
                    everything()[0], mode=mode, **options,
                    client_info={"name": "mine", "version": "1"}) as client:
                client_seen = client.call_tool("whoami").data
                self.assertEqual((client_seen["able"], client_seen["client"]),
                                 (sorted(declared), "mine"))

    @clause("2026-07-28/client/elicitation",
            "clearly display the target domain/host and "
            "gather user consent before navigation to the target URL")
    @clause("2025-11-25/client/elicitation",
            "a mode not declared in client capabilities: `-32602` (Invalid params)")
    def test_each_elicitation_mode_needs_a_handler_of_its_own(self):
        forms, urls = [], []
        form = {"elicitation_handler": lambda *question: forms.append(question) or {}}
        url = {"url_handler": lambda message, url, params: urls.append(url) or True}

        def connect(options, modes):
            with Client(fake(), mode="legacy", **options) as client:
                seen = client.request("fake/seen")["seen"]
                self.assertEqual(seen[0]["params"]["capabilities"],
                                 {"elicitation": modes})
                for mode in "form", "url", "voice":
                    answer = ask(client, "elicitation/create", mode=mode, message="?",
                                 url="https://x.io")
                    if mode in modes:
                        self.assertEqual(answer["result"], {"action": "accept"})
                    else:
                        self.assertEqual(answer["error"]["code"], -32602)

        run_together(self, connect, [(form, {"form": {}}), (url, {"url": {}}),
                                     ({**form, **url}, {"form": {}, "url": {}})])
        self.assertEqual((len(forms), urls), (2, ["https://x.io"] * 2))

    def test_a_url_is_accepted_only_if_its_handler_returns_true(self):
        values = []
        for mode in "legacy", "modern":
            with Client(everything()[0], mode=mode,
                        url_handler=lambda *_: values[-1]) as client:
                for value, action in (
                        (True, "accept"), (False, "decline"), (None, "decline"),
                        ("yes", "decline"), (Elicited("cancel"), "cancel")):
                    with self.subTest(value=value, mode=mode):
                        values.append(value)
                        self.assertEqual(client.call_tool("visit").text, action)

    @clause("2026-07-28/client/elicitation",
            "Clients **SHOULD** validate all responses against the provided schema")
    @both_eras
    def test_content_that_is_invalid_for_the_form_is_not_sent(self, era):
        with quiet() as stderr, Session(era) as session:
            session.name = {"name": 7}
            error = raised(session.client.call_tool, "pay", {"amount": 1})
            self.assertIsInstance(error, (McpError, ToolError))
            self.assertIn("name: expected string, got 7", stderr.getvalue())
            self.assertEqual(session.effects, [])

    def test_a_sampling_handler_returns_text_a_result_or_none(self):
        values, result = [], {
            "role": "assistant", "model": "m", "stopReason": "endTurn",
            "content": {"type": "text", "text": "a poem"}}
        for mode in "legacy", "modern":
            with self.subTest(mode), Client(
                    everything()[0], mode=mode,
                    sampling_handler=lambda *_: values.pop()) as client:
                values.extend([None, "a poem", result])
                self.assertEqual(client.call_tool("recite").text, "a poem")
                self.assertEqual(client.call_tool("recite").text, "a poem")
                self.assertEqual(raised(client.call_tool, "recite").code, -1)

    def test_a_root_is_a_path_or_a_file_uri(self):
        for root in "http://x/", {"uri": "ftp://y"}, {}:
            with self.assertRaisesRegex(ValueError, "a root is a path or a file URI"):
                Client(everything()[0], roots=[root])
        roots = ["/a b", {"uri": "file:///c", "name": "c"}]
        with Client(everything()[0], roots=roots) as client:
            self.assertEqual(client.call_tool("where").structured_content["result"], [
                {"uri": pathlib.Path("/a b").absolute().as_uri()}, roots[1]])

    def test_an_elicitation_handler_declines_cancels_or_accepts(self):
        server = Server("s")

        @server.tool
        def ask(kind: str, ctx: Context) -> list:
            schema = {"form": OBJECT, "bool": bool, "choice": (1, 2), "": None}[kind]
            answer = ctx.elicit("?", schema) if schema else ctx.elicit("?")
            return [answer.action, answer.data if schema else None]

        values = []
        for mode in "legacy", "modern":
            with Client(server, mode=mode,
                        elicitation_handler=lambda *_: values[-1]) as client:
                for kind, value, outcome in (
                        ("form", None, ["decline", None]),
                        ("form", Elicited("cancel", None), ["cancel", None]),
                        ("form", Elicited("accept", {"name": "B"}),
                         ["accept", {"name": "B"}]),
                        ("bool", False, ["accept", False]),
                        ("choice", {"value": "2"}, ["accept", 2]),
                        ("", True, ["accept", None]), ("", False, ["decline", None]),
                        ("", None, ["decline", None]), ("", {}, ["accept", None]),
                        ("", {"action": "cancel"}, ["cancel", None])):
                    with self.subTest(kind, mode=mode, value=value):
                        values.append(value)
                        result = client.call_tool("ask", {"kind": kind})
                        self.assertEqual(result.data, outcome)

    def test_calls_after_close_raise_connection_closed(self):
        client = Client(everything()[0])
        self.assertIsNotNone(raised(client.list_tools))  # not yet connected
        client.connect().close()
        client.close()
        for method, *arguments in ((client.call_tool, "add", {"a": 1}),
                                   (client.list_tools,), (client.notify, "acme/x")):
            self.assertIsInstance(raised(method, *arguments), ConnectionClosed)

    def test_a_timeout_may_be_infinite(self):
        for mode in "auto", "legacy", "modern":
            for timeout in math.inf, None:
                with self.subTest(mode, timeout=timeout), Client(
                        everything()[0], mode=mode, timeout=timeout) as client:
                    client.subscribe("note://x")
                    tools = client.submit("tools/list").result()["tools"]
                    self.assertEqual(client.list_tools()[0]["name"], tools[0]["name"])

    def test_the_timeout_is_suspended_while_the_user_is_asked(self):
        def think(*question):
            time.sleep(2.2)  # longer than the timeout of the call
            return {"value": True}

        server = Server("s")

        @server.tool
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("Well?", bool).data)

        def call(mode):
            with Client(server, mode=mode, elicitation_handler=think) as client:
                self.assertEqual(client.call_tool("ask", timeout=2).text, "True")

        run_together(self, call, [["legacy"], ["modern"]])

    def test_invalid_registrations_and_options_raise_at_once(self):
        server = Server("s")

        def menu(day: str):
            return day

        for error, register, *arguments in [
                (TypeError, server.tool, menu, {"labels": {"a"}}),
                (TypeError, server.tool, menu, {"meta": {"a": object()}}),
                (ValueError, server.tool, menu, {"input_schema": {}}),
                (ValueError, server.tool, menu, {"name": "no spaces"}),
                (TypeError, server.resource, menu, {}),
                (TypeError, server.resource("menu://{week}"), menu, {}),
                (TypeError, server.method, "tools/list", {}),
                (ValueError, Server, "s", {"page_size": 0}),
                (ValueError, Server, "s", {"drain_seconds": -1}),
                (ValueError, Server, "s", {"cache_scope": "everybody"}),
                (TypeError, Server, "s", {"capabilities": {"tasks": True}})]:
            with self.subTest(arguments), self.assertRaises(error):
                register(arguments[0], **arguments[1])
        with Client(server) as client:
            self.assertEqual(client.server_capabilities, {"logging": {}})

    @both_eras
    def test_a_handler_may_change_its_arguments_before_it_asks(self, era):
        """Fails if the state is bound to the arguments that the handler has changed,
        and not to those that were received."""
        server = Server("s")

        @server.tool
        def buy(items: List[str], ctx: Context) -> str:
            items.sort()
            return " ".join([*items, str(ctx.elicit("Well?", bool).data)])

        with Session(era, server) as session:
            self.assertEqual(session.client.call_tool("buy", {
                "items": ["b", "a"]}).text, "a b True")

    def test_a_completion_function_can_ask_the_user_only_in_the_legacy_era(self):
        server = Server("s")
        server.prompt(lambda word: word, name="p")

        @server.completion("p", "word")
        def complete_word(value: str, ctx: Context):
            return [str(ctx.elicit("Well?", bool).data)]

        with Session("legacy", server) as session:
            self.assertEqual(session.client.complete("p", "word", "")["values"],
                             ["True"])
        with Session("modern", server) as session, self.assertRaisesRegex(
                McpError, "completion/complete cannot ask"):
            session.client.complete("p", "word", "")

    def test_what_a_client_cannot_connect_to_is_refused(self):
        client_end, server_end = socket.socketpair()
        with client_end, server_end:
            for target, mode, error, text in (
                    ({"cwd": "x"}, "auto", ValueError, "needs a command"),
                    ("https://x.org", "auto", ValueError, "proxy"),
                    ({"url": "https://x.org"}, "auto", ValueError, "is not stdio"),
                    ((client_end, server_end), "auto", TypeError, "two binary streams"),
                    (Server("s"), "medieval", ValueError, "mode.*" + LATEST)):
                with self.subTest(text), self.assertRaisesRegex(error, text):
                    Client(target, mode=mode).connect()

    def test_a_client_connects_to_the_streams_of_a_socket(self):
        client_end, server_end = socket.socketpair()

        def serve():
            with server_end, server_end.makefile("rwb") as stream:
                everything()[0].serve(stream, stream)

        def connect():
            with client_end, Client((client_end.makefile("rb"),
                                     client_end.makefile("wb"))) as client:
                self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
                client_end.shutdown(socket.SHUT_WR)

        self.assertEqual(together(serve, connect), [None, None])

    def test_a_client_connects_to_streams_without_a_descriptor(self):
        """Fails (UnsupportedOperation) if every stream is expected to be a file."""
        class Pipe(io.RawIOBase):
            def __init__(self):
                self.chunks = queue.SimpleQueue()
                self.read = lambda size: self.chunks.get()

            def write(self, data):
                if data:
                    self.chunks.put(bytes(data))
                return len(data)

            def close(self):
                self.chunks.put(b"")
                super().close()

        requests, responses = Pipe(), Pipe()
        threading.Thread(target=everything()[0].serve, daemon=True,
                         args=(requests, responses)).start()
        with Client((responses, requests)) as client:
            for _ in range(20):
                self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
            responses.close()

    def test_close_in_a_callback_does_not_deadlock(self):
        closed = gate("close() in a callback")

        def on_progress(*step):
            self.client.close()
            closed.set()

        error = raised(self.client.call_tool, "count", {"n": 3},
                       progress_handler=on_progress)
        self.assertIsInstance(error, (ConnectionClosed, type(None)))
        closed.wait()


# ======================================================================================
# 11  Client: servers that misbehave
# ======================================================================================

OK = '{"jsonrpc":"2.0","id":$id,"result":{"ok":true}}'
NOTIFICATION = '{"jsonrpc":"2.0","method":"notifications/%s"%s}'
ERROR_WITHOUT_ID = (
    '{"jsonrpc":"2.0",%s"error":{"code":-32700,"message":"cannot parse that"}}')
PROGRESS = NOTIFICATION % ("progress", ',"params":{"progressToken":%s,"progress":%s}')


def say(client, *lines, **options):
    """Have the fake server answer with exactly these lines."""
    return client.request("fake/say", {"lines": lines}, **options)


def ask(client, method, **params):
    """Have the fake server send this request; return the client's response."""
    return client.request("fake/ask", {"request": {
        "method": method, "params": params}})["answer"]


IGNORED_LINES = [  # lines that a client ignores when they come before a response
    ("a banner", "Welcome to my server v1.0!"), ("a blank line", " \t\r"),
    ("invalid UTF-8", '{"jsonrpc":"2.0","id":$id,"result":{"x":"\xff\xfe"}}'),
    ("NaN", '{"jsonrpc":"2.0","id":$id,"result":{"x":NaN}}'),
    ("100,000 open brackets", "[" * 100000),
    ("100,000 nested arrays", "[" * 100000 + "]" * 100000),
    ("an integer of 5,000 digits", OK.replace("true", "9" * 5000)),
    ("half a message", '{"jsonrpc":"2.0","id":$id,"resu'),
    ("two messages on a line", OK + OK.replace("true", "false")),
    ("a number", "7"), ("an empty object", "{}"), ("an empty batch", "[]"),
    ("a response with an unknown id", '{"jsonrpc":"2.0","id":987654,"result":{}}'),
    *[("a response with the id " + id,
       '{"jsonrpc":"2.0","id":%s,"result":{"ok":false}}' % id)
      for id in ('"0$id"', "$id.5", '" $id "', "true", "[$id]")],
    ("an error with an id of null", ERROR_WITHOUT_ID % '"id":null,'),
    ("an error without an id", ERROR_WITHOUT_ID % ""),
    ("progress with an unknown token", PROGRESS % ('"unknown"', 1)),
    ("progress with a token of true", PROGRESS % ("true", 1)),
    ("progress with an object as token", PROGRESS % ("{}", 1)),
    ("progress that is text", PROGRESS % ("$token", '"lots"')),
    *[("params of %s: %s" % (name, params),
       NOTIFICATION % (name, ',"params":%s' % params if params else ""))
      for name, params in (
          ("progress", ""), ("progress", "[1]"), ("x", ""), ("message", ""),
          ("tools/list_changed", "7"), ("resources/updated", "{}"),
          ("cancelled", ""), ("cancelled", '{"requestId":"x"}'),
          ("cancelled", '{"requestId":$id}'), ("subscriptions/acknowledged", "{}"))],
]

MALFORMED = [  # members of a response with a known id: only that request fails
    '"result":{},"error":{"code":1,"message":""}', '"x":0', '"result":[]',
    '"result":null', '"error":"x"', '"error":null',
    *['"error":{%s"message":"no disk left"}' % code
      for code in ('"code":"1",', '"code":1.5,', "")]]

INPUT = '{"jsonrpc":"2.0","id":$id,"result":{"resultType":"input_required"%s}}'
QUESTION = (
    ',"inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form",'
    '"message":"name?","requestedSchema":{"type":"object","properties":{}}}}}')
DONE = ('{"jsonrpc":"2.0","id":$id,"result":{"resultType":"complete",'
        '"content":[{"type":"text","text":"done"}]}}')

ACKNOWLEDGE = """
send(method="notifications/subscriptions/acknowledged", params={
    "_meta": {"io.modelcontextprotocol/subscriptionId": id},
    "notifications": params["notifications"]})
"""
UPDATE = """
def update(uri, stream):
    send(method="notifications/resources/updated", params={"uri": uri, "_meta": {
        "io.modelcontextprotocol/subscriptionId": stream}})
"""
ACCEPT = {"elicitation_handler": lambda message, schema, params: {}}
MODERN_FAKE = {"discover": "modern()", "call": "again(params['arguments']['rounds'])"}
LISTENING = {"discover": "modern(tools={'listChanged': True})", "listen": ACKNOWLEDGE}

ROUNDS = [  # (label, a result of the server for each round of one call, the text of
    # the final result, the text of an error, or McpError)
    ("no resultType", [DONE.replace('"resultType":"complete",', "")], "done"),
    ("complete", [DONE], "done"),
    ("a number as resultType", [DONE.replace('"complete"', "7")], McpError),
    ("neither inputRequests nor requestState", [INPUT % ""], McpError),
    ("a list as inputRequests", [INPUT % ',"inputRequests":[]'], McpError),
    ("a number as requestState", [INPUT % ',"requestState":7'], McpError),
    ("two rounds", [INPUT % QUESTION, INPUT % (QUESTION + ',"requestState":"s"'), DONE],
     "done"),
    ("state only", [INPUT % ',"requestState":"s"', DONE], "done"),
    ("a question in every round", [INPUT % QUESTION], McpError),
    ("an unknown question",
     [INPUT % QUESTION.replace("elicitation/create", "acme/ask"), DONE], McpError),
    ("a question without a handler", [INPUT % (',"inputRequests":{"q":{"method":'
     '"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}'), DONE],
     McpError),
    ("a number as question", [INPUT % ',"inputRequests":{"q":7}', DONE], McpError),
    ("an error after a question",
     [INPUT % QUESTION,
      '{"jsonrpc":"2.0","id":$id,"error":{"code":-32602,"message":"refused"}}'],
     "refused"),
]


class Test11Faults(FakeServers, unittest.TestCase):
    """The client and servers that send invalid messages, or none at all."""

    def methods(self, client):
        """The last words of the methods that the server got after the handshake."""
        methods = [message["method"].rpartition("/")[2]
                   for message in self.seen(client) if "method" in message]
        return methods[methods.index("discover") + 1:-1]

    def filters(self, client):
        """What the client wants to hear of, for each stream that it opened."""
        return [message["params"]["notifications"] for message in self.seen(client)
                if message["method"] == "subscriptions/listen"]

    def cancelled(self, client):
        """The methods of the requests that the client has cancelled."""
        received = self.seen(client)
        requests = {message["id"]: message["method"] for message in received
                    if "id" in message}
        return [requests[message["params"]["requestId"]] for message in received
                if message["method"] == "notifications/cancelled"]

    def slow_user(self):
        """An elicitation_handler that waits, its questions, and what releases it."""
        asked, release = [], gate("the release")
        self.addCleanup(release.set)

        def answer(message, schema, params):
            asked.append(message)
            release.wait()
            return {}

        return {"elicitation_handler": answer}, asked, release

    # -- lines and responses

    def test_invalid_and_unexpected_lines_before_a_response_are_ignored(self):
        steps = []
        for version, rules in ((LATEST, {}), (MODERN, MODERN_FAKE)):
            client = self.fake({
                "message_handler": str, "log_handler": str, "stderr": None,
                "progress_handler": lambda *step: steps.append(step)}, **rules)
            self.assertEqual(client.protocol_version, version)
            for label, line in IGNORED_LINES:
                with self.subTest(label, version=version):
                    self.assertIs(say(client, line, OK)["ok"], True)
            self.fence(client)
        self.assertEqual(steps, [])

    def test_notifications_during_the_handshake_do_not_disturb_it(self):
        notify = "".join(f"say({NOTIFICATION % (name, '')!r}); " for name in (
            "message", "tools/list_changed", "resources/updated", "x"))
        options = {"message_handler": str, "log_level": "info"}
        for rules in (
                {"discover": notify + "error(-32601)", "initialized": notify,
                 "initialize": notify + "legacy(logging={})",
                 "setLevel": notify + "result()"},
                {**LISTENING, "discover": notify + LISTENING["discover"]}):
            self.fence(self.fake(options, **rules))

    def test_a_malformed_response_fails_only_its_own_call(self):
        """The message of an error without a usable code is kept."""
        for rules in ({}, MODERN_FAKE):
            client = self.fake(**rules)
            for members in MALFORMED:
                with self.subTest(members):
                    error = raised(
                        say, client, '{"jsonrpc":"2.0","id":$id,%s}' % members)
                    self.assertEqual(error.code, -32603)
                    if "disk" in members:
                        self.assertIn("no disk left", str(error))
            self.fence(client)

    def test_a_response_that_is_too_long_or_too_deep_fails_its_call(self):
        start = '{"jsonrpc":"2.0","id":%d,"result":{"x":'
        client = self.fake(
            call=f"say({start!r} % id + '[' * 300 + ']' * 300 + '}}}}')",
            read=f"say({start!r} % id + '\"' + 'x' * (16 << 20) + '\"}}}}')")
        self.assertEqual(raised(client.call_tool, "f").code, -32700)
        self.assertEqual(raised(client.read_resource, "x://y").code, -32801)
        self.fence(client)

    def test_a_second_response_to_the_same_request_is_ignored(self):
        """The first has a decimal string as id, or an error of null beside a result."""
        client = self.fake()
        for first in OK, OK.replace("$id", '"$id"'), OK[:-1] + ',"error":null}':
            for second in OK.replace("true", "false"), '{"jsonrpc":"2.0","id":$id}':
                self.assertIs(say(client, first, second)["ok"], True)
                self.fence(client)

    def test_a_capability_that_is_true_is_declared(self):
        client = self.fake(initialize="legacy(tools=True, prompts=False)")
        self.assertEqual(client.list_tools(), [])
        self.assertEqual(raised(client.list_prompts).code, -32601)

    def test_call_tool_returns_no_result_of_an_extension(self):
        client = self.fake({"capabilities": {"extensions": {"acme/tasks": {}}}},
                           **MODERN_FAKE)
        rounds = [INPUT.replace("input_required", "task") % ""]
        self.assertEqual(raised(client.call_tool, "f", {"rounds": rounds}).code, -32603)

    def test_a_result_without_a_required_field_is_an_mcp_error(self):
        client = self.fake(read="result(contents={})", complete="result()",
                           list="result(tools=[1])")
        for method, *arguments in ((client.read_resource, "note://x"),
                                   (client.complete, "p", "word", "x"),
                                   (client.list_tools,)):
            error = raised(method, *arguments)
            self.assertEqual(error.code, -32603)
            self.assertIn("Malformed response", str(error))

    def test_results_of_other_implementations(self):
        client = self.fake(call="result(**params['arguments']['result'])")
        wrapped = {"content": [], "structuredContent": {"result": 1}}
        for result, data, is_error in (
                ({}, "", False), ({"content": [{"type": "odd"}]}, "", False),
                ({"content": [Text("x")], "isError": True}, "x", True),
                (wrapped, {"result": 1}, False),
                ({**wrapped, "_meta": {"fastmcp": {"wrap_result": True}}}, 1, False)):
            received = client.call_tool("f", {"result": result}, raise_on_error=False)
            with self.subTest(result=result):
                self.assertEqual((received.data, received.is_error), (data, is_error))

    @clause("2025-03-26/basic/index", "**MUST** support receiving JSON-RPC batches")
    def test_a_client_of_2025_03_26_accepts_batches(self):
        ping = '{"jsonrpc":"2.0","id":"s1","method":"ping"}'
        received = queue.Queue()
        client = self.fake({"message_handler": received.put},
                           initialize="legacy('2025-03-26')")
        batch = "[%s,%s,7,%s]" % (NOTIFICATION % ("x", ""), ping, OK)
        self.assertIs(say(client, batch)["ok"], True)
        self.assertEqual(received.get(timeout=PATIENCE)["method"], "notifications/x")
        self.assertEqual([message for message in self.seen(client)
                          if isinstance(message, list)],
                         [[{"jsonrpc": "2.0", "id": "s1", "result": {}}]])

    def test_notifications_without_the_usual_prefix_are_understood(self):
        notifications, steps = [], []
        client = self.fake({"message_handler": notifications.append,
                            "progress_handler": lambda *step: steps.append(step)})
        step = PROGRESS % ("$token", 1)
        for line in ('{"jsonrpc":"2.0","method":"tools/list_changed"}',
                     step.replace("notifications/", ""),
                     step.replace("notifications/", "$/")):
            say(client, line, OK)
        self.assertEqual(wait_until(lambda: notifications)[0]["method"],
                         "notifications/tools/list_changed")
        wait_until(lambda: len(steps) == 2)

    # -- lists, capabilities, settings

    def test_a_cursor_that_repeats_ends_the_list_with_an_error(self):
        page = "result(nextCursor=%s, tools=[{'name': 't', 'inputSchema': {}}])"
        for cursor in "'again'", "'x' if params.get('cursor') == 'y' else 'y'":
            client = self.fake(list=page % cursor)
            self.fails(McpError, client.list_tools)
            self.fence(client)

    @clause("2026-07-28/server/utilities/caching", "the client **SHOULD** discard all "
            "cached pages and re-fetch from the beginning")
    def test_a_list_whose_cursor_has_expired_is_read_again_once(self):
        """And only if a cursor was sent."""
        page = ("tries += 1; cursor = params.get('cursor'); "
                "error(-32602, 'Invalid cursor') if cursor and tries < %d else result("
                "tools=[{'name': 't'}], **({} if cursor else {'nextCursor': 'c'}))")
        client = self.fake(start="tries = 0", list=page % 4)
        self.assertEqual(names(client.list_tools()), ["t", "t"])
        for rule, requests in (page % 99, 4), ("error(-32602)", 1):
            client = self.fake(start="tries = 0", list=rule)
            self.assertEqual(raised(client.list_tools).code, -32602)
            self.assertEqual(self.methods(client).count("list"), requests)

    def test_the_number_of_entries_and_pages_of_a_list_is_limited(self):
        for size in 20, 0:
            client = self.fake(start=f"n = 0; size = {size}", list="""n += 1; result(
                tools=[{"name": f"t{n}-{i}"} for i in range(size)], nextCursor=str(n))
                """)
            with mock.patch.object(mcp_min, "MAX_ENTRIES", 100):
                self.assertIn("do not end", str(raised(client.list_tools)))

    def test_results_are_not_cached(self):
        """Another process may change the list before its `ttlMs` has passed."""
        client = self.fake(discover="modern()", list="result(resultType='complete', "
                           "tools=[], ttlMs=60000, cacheScope='public')")
        client.list_tools()
        client.list_tools()
        self.assertEqual(self.methods(client), ["list", "list"])

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_a_request_that_needs_a_missing_capability_is_not_sent(self):
        for rules in ({"initialize": "OFFERED.clear(); legacy()"},
                      {"discover": "OFFERED.clear(); modern()"}):
            client = self.fake(**rules)
            before = self.methods(client)
            for name, *arguments in (
                    ["list_prompts"], ["get_prompt", "x"], ["read_resource", "x://y"],
                    ["subscribe", "x://y"], ["complete", "p", "a", "v"],
                    ["set_logging_level", "info"], ["call_tool", "f"]):
                with self.subTest(name, rules=rules):
                    error = raised(getattr(client, name), *arguments)
                    self.assertEqual(error.code, -32601)
            self.assertEqual(self.methods(client), [*before, "seen"])

    def test_completion_before_2025_03_26_needs_no_capability(self):
        """In 2024-11-05 a server cannot declare completions."""
        client = self.fake(initialize="OFFERED.clear(); legacy('2024-11-05')",
                           complete="result(completion={'values': ['x']})")
        self.assertEqual(client.complete("p", "a", "v")["values"], ["x"])

    def test_every_request_has_a_timeout_and_a_progress_token_of_its_own(self):
        client = self.fake(
            list="", read="", get="", complete="", unsubscribe="", ping="", setLevel="",
            subscribe="'/x' in params['uri'] and result()",
            initialize="legacy(logging={}, prompts={})")
        client.subscribe("x://x")
        for name, *arguments in (
                ["list_tools"], ["list_prompts"], ["list_resources"], ["ping"],
                ["list_resource_templates"], ["read_resource", "x://y"],
                ["get_prompt", "p"], ["complete", "p", "a", "v"],
                ["subscribe", "x://y"], ["unsubscribe", "x://x"],
                ["set_logging_level", "info"]):
            with self.subTest(name):
                self.fails(RequestTimeout, getattr(client, name), *arguments,
                           timeout=0.01)
        requests = [message["params"]["_meta"]["progressToken"]
                    for message in self.seen(client)[3:] if "id" in message]
        self.assertEqual(len({*requests}), 13)

    def test_a_change_of_the_roots_is_announced_to_a_legacy_server_only(self):
        for rules, announced in ({}, True), (MODERN_FAKE, False):
            client = self.fake({"roots": ["file:///a"]}, **rules)
            client.set_roots(["file:///b"])
            self.assertEqual("notifications/roots/list_changed" in names(
                self.seen(client), "method"), announced)

    def test_the_log_level_is_set_only_if_the_server_offers_logging(self):
        for capabilities, expected in (("", 0), ("logging={}", 1)):
            client = self.fake({"log_level": "info"}, setLevel="result()",
                               initialize=f"legacy({capabilities})")
            self.assertEqual(self.methods(client).count("setLevel"), expected)

    # -- input required

    def test_a_call_whose_results_require_input(self):
        client = self.fake(ACCEPT, **MODERN_FAKE)
        with mock.patch.object(mcp_min, "EMPTY_ROUND_SECONDS", 0.01):
            for label, rounds, expected in ROUNDS:
                with self.subTest(label):
                    call = functools.partial(client.call_tool, "f", {"rounds": rounds})
                    if expected == "done":
                        self.assertEqual(call().text, "done")
                    else:
                        error = self.fails(McpError, call)
                        self.assertIn("" if expected is McpError else expected,
                                      str(error))
                    self.fence(client)

    def test_request_state_is_returned_unchanged_under_a_new_id(self):
        state = "\\u00e9 \\ud83d\\ude00 \\\"x\\\" \\\\ "
        client = self.fake(ACCEPT, **MODERN_FAKE)
        rounds = [INPUT % (QUESTION + f',"requestState":"{state}"'),
                  INPUT % QUESTION, DONE]
        client.call_tool("f", {"rounds": rounds})
        client.call_tool("f", {"rounds": [DONE]})
        calls = [message for message in self.seen(client)
                 if message["method"] == "tools/call"]
        self.assertEqual(len({call["id"] for call in calls}), 4)
        more = [{key: call["params"][key] for key in ("inputResponses", "requestState")
                 if key in call["params"]} for call in calls]
        accepted = {"inputResponses": {"q": {"action": "accept", "content": {}}}}
        self.assertEqual(more, [
            {}, {**accepted, "requestState": json.loads(f'"{state}"')}, accepted, {}])
        self.assertEqual([call["params"]["arguments"] for call in calls[:3]],
                         [{"rounds": rounds}] * 3)

    @clause("2026-07-28/basic/patterns/mrtr",
            "the client **MAY** retry the original request immediately")
    def test_input_required_without_a_question_is_retried_with_growing_pauses(self):
        state = INPUT % ',"requestState":"s"'
        with mock.patch.object(mcp_min, "EMPTY_ROUND_SECONDS", 0.01):
            client = self.fake(ACCEPT, **MODERN_FAKE)
            rounds = [state] * 3 + [INPUT % QUESTION] + [state] * 2 + [DONE]
            self.assertEqual(client.call_tool("f", {"rounds": rounds}).text, "done")
            self.fails(RequestTimeout, client.call_tool, "f", {"rounds": [state]},
                       timeout=1)
        # After pauses of 0.01, 0.02, 0.03 and 0.04 s, all take 0.05 s: 22 in a second.
        self.assertIn(len(self.methods(client)[7:]), range(2, 24))

    def test_a_call_cancelled_between_two_rounds_is_not_sent_again(self):
        """The second call waits as long as the first would, so its second round comes
        later."""
        rounds = {"rounds": [INPUT % ',"requestState":"s"', DONE]}
        client = self.fake(**MODERN_FAKE)
        first = client.submit_tool("f", rounds)
        wait_until(lambda: "call" in self.methods(client))
        self.assertTrue(first.cancel())
        self.assertEqual(client.call_tool("f", rounds).text, "done")
        self.assertEqual(self.methods(client).count("call"), 3)

    def test_a_call_cancelled_while_it_is_sent_again_is_cancelled_on_the_server(self):
        calls = []

        class Arguments(dict):
            """Cancels the call while the request of its second round is encoded."""

            def items(self):
                for call in calls:
                    call.cancel()
                return super().items()

        options, _, release = self.slow_user()
        client = self.fake(options, **MODERN_FAKE)
        calls.append(client.submit_tool("f", Arguments(rounds=[INPUT % QUESTION, ""])))
        release.set()
        wait_until(lambda: "cancelled" in self.methods(client))
        self.assertTrue(calls[0].cancelled())
        sent = [message for message in self.seen(client)
                if message["method"].endswith(("/call", "/cancelled"))]
        self.assertEqual(names(sent, "method"), [
            "tools/call", "tools/call", "notifications/cancelled"])
        self.assertEqual(sent[2]["params"]["requestId"], sent[1]["id"])

    def test_a_call_that_waits_for_its_user_ends_after_max_timeout(self):
        def wait(rules, submits):
            options, _, _ = self.slow_user()
            client = self.fake({**options, "max_timeout": 0.3}, **rules)
            call = "f", {"rounds": [INPUT % QUESTION, DONE]}
            if submits:
                self.fails(RequestTimeout, client.submit_tool(*call).result, PATIENCE)
            else:
                self.fails(RequestTimeout, client.call_tool, *call)

        asks = "send(id='s1', method='elicitation/create', params={})"
        run_together(self, wait, [*itertools.product(({"call": asks}, MODERN_FAKE),
                                                     (False, True))])

    def test_a_call_that_has_ended_no_longer_asks_the_user(self):
        options, asked, release = self.slow_user()
        client = self.fake(options, **MODERN_FAKE)

        def call(name):
            return client.submit_tool("f", {"rounds": [
                INPUT % QUESTION.replace("name?", name), DONE]})

        calls = [call("name?") for _ in range(8)]
        wait_until(lambda: len(asked) == 8)
        ninth, tenth = call("ninth?"), call("tenth?")
        wait_until(lambda: self.methods(client).count("call") == 10)
        self.assertTrue(ninth.cancel())
        release.set()
        for waiting in (*calls, tenth):
            self.assertEqual(waiting.result(PATIENCE).text, "done")
        self.assertEqual(asked[8:], ["tenth?"])

    # -- requests of the server

    def test_responses_to_the_requests_of_a_legacy_server(self):
        client = self.fake()
        for method in ("ping", "acme/ask", "sampling/createMessage",
                       "elicitation/create", "roots/list", "tools/list"):
            with self.subTest(method):
                response = ask(client, method, messages=[])
                self.assertEqual(response["id"], "s1")
                if method == "ping":
                    self.assertEqual(response["result"], {})
                else:
                    self.assertEqual(response["error"]["code"], -32601)

    def test_requests_of_a_modern_server_get_no_response(self):
        client = self.fake({"sampling_handler": lambda *a: "x"}, **MODERN_FAKE)
        for method in ("ping", "sampling/createMessage", "roots/list", "acme/ask"):
            say(client, json.dumps({"jsonrpc": "2.0", "id": "s1", "method": method,
                                    "params": {"messages": [], "maxTokens": 1}}), OK)
        self.fence(client)
        self.assertTrue(all("method" in message for message in self.seen(client)))

    def test_an_exception_of_a_handler_is_an_error_response(self):
        """McpError as it is; the text of any other is logged, and never sent in a
        session."""
        class Mute(Exception):
            def __str__(self):
                raise ValueError("no text")

        failed = {"code": -32603, "message": "The client failed to answer"}
        for error, expected in (
                (McpError(-1, "rejected"), {"code": -1, "message": "rejected"}),
                (RuntimeError("key sk-SECRET"), failed), (Mute(), failed)):
            options = {"elicitation_handler": mock.Mock(side_effect=error)}
            with self.subTest(error=type(error)), quiet() as stderr:
                answer = ask(self.fake(options), "elicitation/create", message="?",
                             requestedSchema=OBJECT)
                self.assertEqual(answer["error"], expected)
                self.assertEqual("SECRET" in stderr.getvalue(),
                                 isinstance(error, RuntimeError))
                call = self.fake(options, **MODERN_FAKE).submit_tool(
                    "f", {"rounds": [INPUT % QUESTION, ""]})
                self.assertEqual(raised(call.result, PATIENCE).code, expected["code"])

    def test_only_a_question_to_the_user_suspends_the_timeout(self):
        """Fails (by hanging) if any other request of the server suspends it."""
        def call(method, options):
            client = self.fake(options, call=(
                f"[(time.sleep(0.02), send(id='p', method={method!r}))"
                "for _ in range(200)]; text('late')"))
            self.fails(RequestTimeout, client.call_tool, "f", timeout=0.2)
            client.close()

        with short_patience():
            run_together(self, call, [("ping", {}), ("roots/list", {"roots": ["/"]})])

    def test_questions_beyond_eight_wait_for_their_turn(self):
        options, asked, release = self.slow_user()
        client = self.fake(options, call="""
[send(id=f"q{n}", method="elicitation/create", params={"message": "?",
    "requestedSchema": {"type": "object", "properties": {}}}) for n in range(20)]
text("done")""")
        client.call_tool("f")
        wait_until(lambda: len(asked) == 8)
        self.assertEqual((ask(client, "ping")["result"], len(asked)), ({}, 8))
        release.set()
        accepted = {"action": "accept", "content": {}}
        wait_until(lambda: {f"q{n}" for n in range(20)} == {
            message["id"] for message in self.seen(client)
            if message.get("result") == accepted})

    def test_a_question_that_is_refused_is_answered(self):
        """Fails (by hanging) if the server waits for an answer in vain."""
        options, _asked, release = self.slow_user()
        client = self.fake(options, call="""
[send(id=f"q{n}", method="elicitation/create", params={"message": "?",
    "requestedSchema": {"type": "object", "properties": {}}}) for n in range(20)]
text("done")""")
        with mock.patch.object(mcp_min, "MAX_REQUESTS", 9):
            client.call_tool("f")
            wait_until(lambda: {f"q{n}" for n in range(9, 20)} == {
                message["id"] for message in self.seen(client)
                if message.get("error", {}).get("code") == -32603})
        release.set()

    # -- results that do not fit, callbacks that are slow

    def test_a_result_that_does_not_fit_its_output_schema_keeps_its_content(self):
        tool = {"name": "f", "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object", "required": ["x"]}}
        client = self.fake(list=f"result(tools=[{tool!r}])",
                           call="result(content=[Text], **params['arguments'])",
                           start="Text = {'type': 'text', 'text': 'done'}")
        client.list_tools()
        for structured in {}, {"structuredContent": {"y": 1}}:
            with self.assertWarnsRegex(RuntimeWarning, "tool f: .* output schema"):
                self.assertEqual(client.call_tool("f", structured).text, "done")

    def test_the_schema_of_a_result_costs_no_more_than_it_may(self):
        """Without limits these never end.  The patterns of a server are not run."""
        bomb = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2 * (n < 99)}
                for n in range(100)}
        tools = [{"name": name, "inputSchema": {"type": "object"},
                  "outputSchema": {"type": "object", **schema}} for name, schema in (
            ("pattern", {"properties": {"x": {"pattern": "^(a+)+$"}}}),
            ("name", {"patternProperties": {"^(a+)+$": False}}),
            ("bomb", {"$ref": "#/$defs/0", "$defs": bomb}))]
        client = self.fake(list=f"result(tools={tools!r})", call=(
            "a = 'a' * 40 + '!'; result(content=[], structuredContent={'x': a, a: 1})"))
        client.list_tools()
        with warnings.catch_warnings(), \
                mock.patch.object(mcp_min, "MAX_STEPS", 5_000):
            warnings.simplefilter("ignore")
            for name in names(tools):
                self.assertTrue(client.call_tool(name).structured_content)

    def test_waiting_callbacks_are_limited_by_their_size(self):
        received, release = [], gate("the release")
        self.addCleanup(release.set)
        client = self.fake(
            {"log_handler": lambda params: (release.wait(), received.append(params))},
            call="""[send(method="notifications/message", params={
                "level": "info", "data": "x" * 100000})
                for _ in range(50)]; text("")""")
        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 1 << 20):
            client.call_tool("f")
            release.set()
            wait_until(lambda: len(received) >= 10)
            client.close()
        self.assertLess(len(received), 15)

    def test_a_flood_neither_delays_nor_drops_a_response(self):
        """The result of the call waits behind its progress, which is being handled."""
        reported, release = gate("the first progress"), gate("the release")
        notification = NOTIFICATION % ("x", "")

        def on_progress(*step):
            reported.set()
            release.wait()

        client = self.fake(
            {"message_handler": lambda notification: None},
            call=f"repeat([{PROGRESS % ('$token', 1)!r}]); text('ok'); "
                 f"say(({notification!r} + chr(10)) * 5000 + {notification!r})")
        call = client.submit_tool("f", progress_handler=on_progress)
        reported.wait()
        self.fence(client)  # now the whole flood has been read
        release.set()
        self.assertEqual(call.result(PATIENCE).text, "ok")

    def test_progress_of_a_finished_call_is_dropped(self):
        step = PROGRESS % ("$token", "%s")
        client, steps = self.fake(call="repeat(params['arguments']['lines'])"), []
        for lines in ([step % 1, step % 2, DONE, step % 3], [step % 1, DONE]):
            client.call_tool("f", {"lines": lines},
                             progress_handler=lambda *step: steps.append(step))
        wait_until(lambda: len(steps) == 3)
        self.assertEqual([progress for progress, _, _ in steps], [1, 2, 1])

    # -- timeouts

    def test_a_timeout_names_the_request_and_cancels_it(self):
        """It quotes what the server has written to stderr, and an error without id."""
        client = self.fake({"stderr": None}, call=(
            f"err('news'); say({ERROR_WITHOUT_ID % ''!r})"))
        error = self.fails(RequestTimeout, client.call_tool, "spin", timeout=1.5)
        for text in ("tools/call spin: no response or progress within 1.5 s", "news",
                     "cannot parse that"):
            self.assertIn(text, str(error))
        self.assertEqual(self.cancelled(client), ["tools/call"])

    def test_progress_that_increases_extends_a_timeout_up_to_max_timeout(self):
        def call(progress, options, timeout, ends):
            client = self.fake(options, call=(
                "[(time.sleep(0.3), send(method='notifications/progress', params={"
                f"'progressToken': token, 'progress': {progress}}}))"
                "for n in range(6)]; text('slow')"))
            if ends:
                self.fails(RequestTimeout, client.call_tool, "f", timeout=timeout)
            else:
                self.assertEqual(client.call_tool("f", timeout=timeout).text, "slow")

        run_together(self, call, [
            ("n", {}, 1.6, False), ("1", {}, 1.2, True),
            ("n", {"max_timeout": 0.5}, 1.6, True)])

    def test_an_unfinished_line_does_not_delay_a_timeout(self):
        client = self.fake(call="os.write(1, b'Loading... ')")
        with short_patience():
            self.fails(RequestTimeout, client.call_tool, "f", timeout=0.1)
            client.close()

    def test_a_full_pipe_that_cannot_be_polled_does_not_delay_a_timeout(self):
        """A pipe cannot be polled on Windows.  Fails, by blocking in `write`, if a
        thread that must not wait writes to it.  Looks inside."""
        with mock.patch.object(mcp_min, "make_poll", lambda stream, event, otherwise:
                               lambda seconds: otherwise):
            client = self.fake(call="time.sleep(600)")
            for _ in range(30):
                self.fails(RequestTimeout, client.call_tool, "f", {"x": "x" * 4000},
                           timeout=0.005)
            with short_patience():
                client.close()

    def test_a_server_that_does_not_read_delays_no_timeout(self):
        release = Story(self)
        client = self.fake(deaf="result(); [time.sleep(0.01) for _ in range(1000)"
                                f" if not os.path.getsize({release.path!r})]")
        client.request("fake/deaf")
        big = {"blob": "x" * 1_000_000}
        errors = together(*[lambda: client.request("fake/fence", big, timeout=0.1)] * 2,
                          *[lambda: client.request("fake/fence", timeout=0.1)] * 2)
        self.assertEqual([type(error) for error in errors], [RequestTimeout] * 4)
        with open(release.path, "w") as file:
            file.write("read on")
        self.fence(client)

    def test_close_while_the_server_does_not_read(self):
        client = self.fake(deaf="result(); time.sleep(60)")
        client.request("fake/deaf")
        call = client.submit("fake/fence", {"blob": "x" * 1_000_000})
        with short_patience():
            self.assertEqual(together(client.close), [None])
        self.assertIsInstance(call.exception(PATIENCE), ConnectionClosed)

    # -- subscriptions

    def test_a_stream_is_opened_only_if_something_is_wanted(self):
        for options, discover, filters in (
                ({"log_handler": print}, LISTENING["discover"], []),
                ({"message_handler": print}, "modern()", []),
                ({"message_handler": print}, LISTENING["discover"],
                 [{"toolsListChanged": True}])):
            client = self.fake(options, discover=discover, listen=ACKNOWLEDGE)
            with self.subTest(options=options, discover=discover):
                self.assertEqual(self.filters(client), filters)

    def test_one_stream_carries_all_subscriptions_to_a_modern_server(self):
        client = self.fake(discover="modern()", listen=ACKNOWLEDGE)
        client.subscribe("note://x")
        client.subscribe("note://y")
        client.unsubscribe("note://x")
        client.unsubscribe("note://y")
        client.unsubscribe("note://y")
        self.assertEqual(self.filters(client), [{"resourceSubscriptions": uris} for uris
            in (["note://x"], ["note://x", "note://y"], ["note://y"])])
        self.assertEqual(self.cancelled(client), ["subscriptions/listen"] * 3)
        self.assertEqual([method for method in self.methods(client)
                          if method != "seen"], [
            "listen", "listen", "cancelled", "listen", "cancelled", "cancelled"])

    def test_updates_are_neither_doubled_nor_lost_while_a_stream_is_replaced(self):
        received = queue.Queue()
        client = self.fake(
            {"message_handler": lambda message: received.put(message["params"]["uri"])},
            discover="modern()", start=UPDATE + "streams = [0]",
            listen="streams.append(id); "
                   "[update('note://before', stream) for stream in streams[-2:]]"
                   + ACKNOWLEDGE +
                   "[update('note://after', stream) for stream in streams[-2:]]",
            update="update('note://end', streams[-1]); result()")
        for uri, updates in ("note://x", ["after"]), ("note://y", ["before", "after"]):
            client.subscribe(uri)
            client.request("fake/update")
            self.assertEqual([received.get(timeout=PATIENCE) for _ in [*updates, 0]],
                             [f"note://{name}" for name in (*updates, "end")])

    @clause("2026-07-28/basic/patterns/subscriptions",
            "clients **MUST** use this field to "
            "correlate notifications with their originating subscription")
    def test_updates_that_belong_to_no_open_subscription_are_dropped(self):
        received = queue.Queue()
        client = self.fake(
            {"message_handler": received.put}, discover="modern()", start=UPDATE,
            listen=ACKNOWLEDGE + "stream = id",
            say="update('note://unknown', 999); update('note://text', '1'); "
                "update('note://open', stream); result()")
        client.subscribe("note://open", timeout=1.5)
        time.sleep(1.6)  # its timeout ends with the acknowledgement
        client.request("fake/say")
        self.assertEqual(received.get(timeout=PATIENCE)["params"]["uri"], "note://open")
        client.unsubscribe("note://open")
        client.request("fake/say")
        self.fence(client)
        self.assertTrue(received.empty())

    def test_a_cancellation_that_comes_too_late_is_no_end_of_a_subscription(self):
        received = []
        for discover in "error(-32601)", "modern()":
            client = self.fake({"message_handler": received.append}, discover=discover)
            say(client, NOTIFICATION % ("cancelled", ',"params":{"requestId":"s1"}'),
                NOTIFICATION % ("fence", ""), OK)
            wait_until(lambda: received)
            self.assertEqual(received.pop(0)["method"], "notifications/fence")

    @clause("2026-07-28/basic/patterns/cancellation",
            "A server **MUST** send `notifications/cancelled`")
    @clause("2026-07-28/basic/patterns/subscriptions", "A client that receives this "
            "response knows the subscription closed cleanly")
    def test_the_end_of_a_subscription_is_reported_to_the_message_handler(self):
        def end(rule):
            received, wanted = queue.Queue(), [
                {"resourceSubscriptions": [uri]} for uri in ("note://x", "note://y")]
            client = self.fake(
                {"message_handler": received.put}, discover="modern()",
                listen=ACKNOWLEDGE + "stream = id", end=rule + "; result()")
            client.subscribe("note://x")
            client.request("fake/end")
            notification = received.get(timeout=PATIENCE)
            self.assertEqual(notification["method"], "notifications/cancelled")
            self.assertEqual(notification["params"]["notifications"], wanted[0])
            client.subscribe("note://y")
            client.unsubscribe("note://x")
            self.assertEqual(self.filters(client), wanted)
            self.assertEqual(self.cancelled(client), [])

        run_together(self, end, [
            ["send(id=stream, result={'resultType': 'complete'})"],
            ["send(method='notifications/cancelled', params={'requestId': stream})"],
            ["send(id=stream, error={'code': -32603, 'message': 'no more'})"]])

    def test_the_death_of_the_server_is_reported_to_the_message_handler(self):
        def end(rules, uri, dies):
            received, ended = queue.Queue(), {"toolsListChanged": True}
            client = self.fake(
                {"message_handler": received.put}, call="die(5)", **rules)
            if uri:
                client.subscribe(uri)
                ended["resourceSubscriptions"] = [uri]
            if dies:
                self.fails(ConnectionClosed, client.call_tool, "f")
                notification = received.get(timeout=PATIENCE)
                self.assertEqual(notification["method"], "notifications/cancelled")
                self.assertEqual(notification["params"]["notifications"], ended)
            client.close()
            self.assertTrue(received.empty())

        legacy = {"initialize": "legacy(tools={'listChanged': True})",
                  "subscribe": "result()"}
        run_together(self, end, [
            (legacy, "note://x", True), (legacy, None, True), (legacy, None, False),
            (LISTENING, "note://x", True), (LISTENING, None, True),
            (LISTENING, "note://x", False)])

    def test_a_server_may_have_one_stream_at_a_time(self):
        """It ends the first when a second one comes.  Fails if this counts as the end
        of the subscriptions, which the second stream goes on with."""
        received = queue.Queue()
        end = "send(id=stream, result={'resultType': 'complete'})"
        client = self.fake(
            {"message_handler": received.put}, discover="modern()", start="stream = 0",
            listen=f"stream and {end}; stream = id" + ACKNOWLEDGE,
            end=end + "; result()")
        client.subscribe("note://x")
        client.subscribe("note://y")
        client.request("fake/end")
        self.assertEqual(received.get(timeout=PATIENCE)["params"]["notifications"],
                         {"resourceSubscriptions": ["note://x", "note://y"]})

    def test_a_subscription_that_the_server_refuses_is_an_error(self):
        """A modern server also refuses by an acknowledgement that does not name it; a
        missing one is no refusal."""
        def subscribe(rules, error=McpError):
            client = self.fake(**rules)
            timeout = 0.3 if error is RequestTimeout else PATIENCE
            self.fails(error, client.subscribe, "note://x", timeout=timeout)
            self.assertEqual(self.cancelled(client), [
                "subscriptions/listen"] * (error is RequestTimeout))

        others = [ACKNOWLEDGE.replace('params["notifications"]', notifications)
                  for notifications in ("{}", "{'resourceSubscriptions': 5}",
                                        "{'resourceSubscriptions': 'note://x'}")]
        run_together(self, subscribe, [
            [{"subscribe": "error(-32601)"}],
            [{"discover": "modern()", "listen": ""}, RequestTimeout],
            *[[{"discover": "modern()", "listen": listen}]
              for listen in ("error(-32601)", *others)]])

    # -- diagnoses, and what is different on Windows

    def test_a_connection_error_quotes_the_output_that_is_no_message(self):
        """With its control characters escaped."""
        for write in "say('\\x1b[2Jhalf a li')", "os.write(1, b'\\x1b[2Jhalf a li')":
            client = self.fake({"stderr": None},
                               call=f"err('\\x1b[31mred'); {write}; die(3)")
            error = self.fails(ConnectionClosed, client.call_tool, "f")
            self.assertRegex(str(error), "(?s)red.*half a li|half a li.*red")
            self.assertNotIn("\x1b", str(error))
            self.assertEqual(error.exit_code, 3)

    def test_a_server_that_exits_at_once_raises_a_single_exception(self):
        """If the server wrote nothing, the error says what may be missing."""
        for code, text in (("import sys; sys.exit('no!')", "no!"),
                           ("pass", "did it call server.run()?")):
            client = Client([sys.executable, "-I", "-S", "-c", code], stderr=None)
            error = raised(client.connect)
            shown = "".join(traceback.format_exception(type(error), error, None))
            self.assertEqual(shown.count(text), 1)

    def test_a_wait_in_steps_returns_the_result(self):
        """On Windows no signal interrupts a wait, so a client waits in steps.  Looks
        inside."""
        future = concurrent.futures.Future()
        threading.Timer(0.01, future.set_result, [5]).start()
        with mock.patch.object(mcp_min.os, "name", "nt"):
            self.assertEqual(mcp_min.wait_for(future), 5)

    def test_windows_line_ends_of_stderr_become_newlines(self):
        received = []
        client = self.fake({"stderr": received.append}, call="err('one\\r'); die(1)")
        self.assertEqual(raised(client.call_tool, "f").stderr, "one\n")
        wait_until(lambda: received)
        self.assertEqual(received, ["one\n"])

    def test_arguments_that_a_windows_shell_would_interpret_are_refused(self):
        """Looks inside."""
        with mock.patch("shutil.which", lambda name, path: name + ".cmd"):
            self.assertEqual(mcp_min.windows_argv([pathlib.Path("x"), b"a"], {}),
                             ["x.cmd", "a"])
            for argv in (["x", b"a&b"], ["R&D\\x", "a"]):
                self.assertRaises(ValueError, mcp_min.windows_argv, argv, {})


# ======================================================================================
# 7, 11  Which era a server speaks
# ======================================================================================

# A row of PROBES is: label, the rule of the server for `server/discover`, its rule for
# `initialize`, the expected story, the expected revision (None: either).  The story has
# a "+" for each start of the server and a word for each message; a call is made at the
# end, and "call" must stand there once (a regular expression).  Where connecting fails
# there is no story, and a tuple of texts of the error instead of the revision.
HANDSHAKE = r"\+ discover initialize initialized call"
RESTART = r"\+ discover \+ initialize initialized call"
SILENT = "silent = True; "  # marks a rule that answers the probe late, or never
LATER = SILENT + "asked = id"
ANSWER_LATE = "id, mine = asked, id; modern(); id = mine; "
PROBES = [
    *[(rule, rule, "legacy()", HANDSHAKE, LATEST) for rule in (
        "error(-32601)", "error(-32602, data='')", "error(0)", SILENT,
        SILENT + "id = None; error(-32600)", "send(id=id, error='no')", "result()",
        "modern('2025-11-25')", "result(supportedVersions='2026-07-28')",
        "result(resultType='odd', supportedVersions=['2026-07-28'])",
        "error(-32022, supported=['2025-11-25'])")],
    *[(rule, rule, "error(-32022)", r"\+ discover call", MODERN) for rule in (
        "modern()", "modern('2026-07-28', '2025-11-25')",
        "modern('2099-01-01', '2026-07-28')")],
    ("exit on the probe", "die(1)", "legacy()", RESTART, LATEST),
    ("stdout closed on the probe", "os.close(1); time.sleep(0.05); die(0)", "legacy()",
     RESTART, LATEST),
    *[(rule, rule, "die(1) if probes else legacy()",
       r"\+ discover initialize \+ initialize initialized call", LATEST)
      for rule in (SILENT + "probes = 1", "probes = 1; error(-32602)")],
    ("error -32022 naming a legacy and the modern version",
     "error(-32022, supported=['2025-11-25', '2026-07-28'])", "legacy()",
     r"\+ (discover )+call", MODERN),
    ("a future version only", "modern('2099-01-01')", "legacy()", None,
     ("2099-01-01", MODERN)),
    ("error -32022 without data", "error(-32022)", "legacy()", None, (MODERN,)),
    ("error -32021", "error(-32021, 'you need roots')", "legacy()", None,
     ("need roots",)),
    ("error -32022 naming another version, though initialize would be accepted",
     "error(-32022, supported=['2099-01-01'])", "legacy()", None,
     ("2099-01-01", MODERN)),
    ("a late DiscoverResult, then error 0", LATER, ANSWER_LATE + "error(0)",
     r"\+ discover initialize call", MODERN),
    ("a late DiscoverResult, then error -32022", LATER,
     ANSWER_LATE + "error(-32022, supported=['2026-07-28'])",
     r"\+ discover initialize call", MODERN),
    ("a late DiscoverResult, then a good handshake", LATER,
     ANSWER_LATE + "legacy()",
     r"\+ discover initialize (initialized )?call", None),
    ("silence, then error -32022 to initialize",
     SILENT + "probes += 1; modern() if probes > 1 else None",
     "error(-32022, supported=['2026-07-28'])",
     r"\+ discover initialize (discover )?call", MODERN),
    ("an older version", "error(-32601)", "legacy('2024-11-05')", HANDSHAKE,
     "2024-11-05"),
    ("an unknown version", "error(-32601)", "legacy('1999-01-01')", None,
     ("1999-01-01", LATEST)),
    ("initialize refused", "error(-32601)", "error(-32602, 'no such client')", None,
     ("no such client",)),
    ("a banner before every response", "say('hello'); error(-32601)",
     "say('hello'); legacy()", HANDSHAKE, LATEST),
]

PINNED = [  # the same, with the mode in place of the label
    ("legacy", "modern()", "legacy()", r"\+ initialize initialized call", LATEST),
    *[(asked, "modern()", f"legacy({selected})", r"\+ initialize initialized call",
       agreed) for asked, selected, agreed in (
        *[(version, "params['protocolVersion']", version) for version in LEGACY],
        ("2024-11-05", "'2025-11-25'", "2025-11-25"))],
    *[(mode, "modern()", "legacy('1999-01-01')", None, ("1999-01-01", LATEST))
      for mode in ("legacy", "2025-06-18")],
    ("modern", "modern()", "legacy()", r"\+ (discover )?call", MODERN),
    ("modern", "error(-32601, 'no such thing')", "legacy()", None,
     ("no such thing", MODERN, 'mode="auto"')),
    ("modern", "error(-32022, supported=['2025-11-25'])", "legacy()", None,
     ("2025-11-25", MODERN)),
    ("modern", "time.sleep(0.1); modern()", "legacy()", r"\+ (discover )?call", MODERN),
    ("legacy", "modern()", "error(-32022, 'modern only', supported=['2026-07-28'])",
     None, ("modern only",)),
]


class Test11Probe(unittest.TestCase):
    """How a client finds the era of a server: with one probe, and without a second
    start or a second call of a server that needs none."""

    def connect(self, mode, discover, initialize, expected_story, expected):
        story = Story(self)
        command = fake(story, discover=discover, initialize=initialize)
        client = Client(command, mode=mode, timeout=PATIENCE, stderr=None)
        self.addCleanup(client.close)
        if isinstance(expected, tuple):
            error = str(raised(client.connect))
            self.assertEqual([text for text in expected if text not in error], [])
            return
        client.connect()
        self.assertEqual(client.call_tool("f").text, "ok")
        self.assertEqual(client.protocol_version, expected or client.protocol_version)
        self.assertEqual(client.server_info.get("name", "fake"), "fake")
        client.close()
        self.assertRegex(str(story), f"^{expected_story}$")

    def test_every_response_to_the_probe(self):
        silent = [row for row in PROBES if row[1].startswith(SILENT)]
        others = [row for row in PROBES if row not in silent]
        connect = functools.partial(self.connect, "auto")
        with short_patience(), quick_probe(0.2):
            run_together(self, lambda _, *row: connect(*row), silent)
        with short_patience():
            for first in range(0, len(others), 9):
                run_together(self, lambda _, *row: connect(*row),
                             others[first:first + 9])

    def test_a_pinned_mode_does_not_negotiate(self):
        with quick_probe(0.02):
            run_together(self, self.connect, PINNED)

    def test_one_timeout_is_the_limit_for_all_steps_of_connecting(self):
        def connect(mode, rules):
            client = Client(fake(**rules), mode=mode, log_level="info", timeout=4)
            text = str(raised(client.connect))
            self.assertIn("connecting took over 4 s: ", text)
            self.assertLess(float(re.findall(r"([\d.]+) s", text)[1]), 3.6)

        slow = "time.sleep(0.5); "
        with short_patience():
            run_together(self, connect, [
                ("legacy", {"initialize": slow + "legacy(logging={})", "setLevel": ""}),
                ("auto", {"discover": slow + "error(-32601)", "initialize": ""})])
        # A silent server keeps half of it for the handshake.
        rules = {"discover": "", "initialize": "time.sleep(0.1); legacy()"}
        with Client(fake(**rules), timeout=4) as client:
            self.assertEqual(client.protocol_version, LATEST)

    def test_stderr_of_a_legacy_server_during_the_probe_is_only_in_stderr_tail(self):
        warn = "[err('warning %d' % n + 60 * 'x') for n in range(90)]; "
        for response, passed_on in ("error(-32602)", False), ("modern()", True):
            received = []
            with self.subTest(response), Client(
                    fake(discover=warn + response, pid="err('serving'); result()"),
                    stderr=received.append) as client:
                client.request("fake/pid")
                wait_until(lambda received=received: "serving" in "".join(received))
                self.assertIn("warning 89", client.stderr_tail)
                self.assertEqual("warning" in "".join(received), passed_on)
        # If connecting fails, it shows why.
        client = Client(fake(discover=warn + "error(-32601)", initialize="error(0)"),
                        stderr=received.append)
        self.assertIsInstance(raised(client.connect), McpError)
        wait_until(lambda: "".join(received).count("warning 89") == 2)


# ======================================================================================
# 6, 11  The client of a real process
# ======================================================================================

class Test11Process(FakeServers, unittest.TestCase):
    """The client and a real process: its start, its end and its stderr."""

    MODE = "legacy"

    def test_every_way_to_name_a_server(self):
        """The values of an entry may be null, and its variables numbers."""
        with tempfile.TemporaryDirectory() as folder:
            path, config = (os.path.join(folder, name)
                            for name in ("our server.py", "mcp.json"))
            entry = {"command": sys.executable, "args": [path], "env": {"WHO": 7},
                     "cwd": None}
            with open(path, "w") as file:
                file.write("import sys; sys.argv[1:] = ['{}']\n" + FAKE)
            with open(config, "w") as file:
                json.dump({"mcpServers": {"ours": entry, "relative": {
                    "command": sys.executable, "args": ["our server.py"],
                    "cwd": folder, "env": None}}}, file)
            loaded = load_config(config)

            def connect(label, target, who):
                with Client(target, mode="legacy") as client:
                    env = client.request("fake/env")["env"]
                    self.assertEqual(env.get("WHO"), who)

            run_together(self, connect, [
                ("argv", [sys.executable, path], None), ("a file", path, None),
                ("an entry", entry, "7"), ("load_config", loaded["ours"], "7"),
                ("an entry with cwd", loaded["relative"], None)])

    @UNIX
    def test_the_error_names_a_command_that_cannot_be_started(self):
        with tempfile.TemporaryDirectory() as folder:
            flat = os.path.join(folder, "flat")
            open(flat, "w").close()
            none = os.path.join(folder, "none")
            rows = [("a missing name", ["no-such-mcp-server"], {}, FileNotFoundError),
                    ("a missing path", [none], {}, FileNotFoundError),
                    ("not executable", [flat], {}, PermissionError),
                    ("a folder", [folder], {}, PermissionError),
                    ("not on its own PATH", [os.path.basename(sys.executable)],
                     {"env": {"PATH": folder}}, FileNotFoundError),
                    ("a missing cwd", [sys.executable], {"cwd": none}, OSError)]
            for label, command, options, expected in rows:
                with self.subTest(label):
                    error = raised(Client(command, **options).connect)
                    self.assertIsInstance(error, expected)
                    self.assertIn(os.path.basename(command[0]), str(error))

    def test_a_trace_that_cannot_be_written_leaves_no_process(self):
        client = Client(fake(), mode="legacy")
        with short_patience(), mock.patch.dict(os.environ, MCP_MIN_TRACE="/nowhere/x"):
            self.assertIsInstance(raised(client.connect), FileNotFoundError)
        self.assertIsNotNone(client.exit_code)  # it was started, and has ended

    def test_the_error_for_a_server_that_exits_at_once_has_its_stderr_and_status(self):
        for mode, starts in (("legacy", 1), ("auto", 2)):
            story = Story(self)
            with self.subTest(mode):
                error = self.fails(
                    ConnectionClosed, self.fake, {"mode": mode, "stderr": None}, story,
                    start="err('no API key'); die(7)")
                self.assertRegex(str(error), "(?s)7.*no API key|no API key.*7")
                self.assertEqual((error.exit_code, error.stderr), (7, "no API key\n"))
                self.assertEqual(str(story).count("+"), starts)

    @UNIX
    def test_a_server_that_does_not_answer_initialize_is_terminated(self):
        """And gets no `cancelled` before."""
        def wait(mode):
            story = Story(self)
            error = self.fails(
                RequestTimeout, self.fake, {"mode": mode, "timeout": 4,
                                            "stderr": None}, story,
                discover="", initialize="",
                start="note(str(os.getpid())); err('loading')")
            self.assertIn("loading", str(error))
            self.assertNotIn("cancelled", str(story))
            gone(int(str(story).split()[1]))

        run_together(self, wait, [["legacy"], ["auto"]])

    def test_a_megabyte_of_stderr_without_a_newline(self):
        client = self.fake(call="os.write(2, b'x' * 1000000); err('end'); text('ok')",
                           options={"stderr": None})
        self.assertEqual(client.call_tool("f").text, "ok")
        wait_until(lambda: client.stderr_tail.endswith("end\n"))
        self.assertLessEqual(len(client.stderr_tail), 8192)

    def test_stderr_goes_to_a_stream_a_function_or_nowhere(self):
        """By default to the sys.stderr of when it connects, which may be None."""
        written, stream, chunks = "one\ntwo \u00e9\n", io.StringIO(), []
        shown, nowhere = io.StringIO(), io.StringIO()
        for options, sys_stderr, received in (
                ({"stderr": stream}, nowhere, stream.getvalue),
                ({"stderr": chunks.append}, nowhere, lambda: "".join(chunks)),
                ({"stderr": None}, nowhere, lambda: written),
                ({}, None, lambda: written), ({}, shown, shown.getvalue)):
            with self.subTest(options=options), mock.patch("sys.stderr", sys_stderr):
                client = self.fake(
                    options, call="err('one'); err('two \u00e9'); text('ok')")
                client.call_tool("f")
                wait_until(lambda client=client, received=received:
                           client.stderr_tail == written == received())
                client.close()
        self.assertEqual(nowhere.getvalue(), "")
        self.assertTrue(all(chunk.endswith("\n") for chunk in chunks))

    def test_a_slow_or_broken_stderr_function_does_not_delay_the_server(self):
        """Fails (the call times out) if the thread that reads the pipe also calls the
        function."""
        release, received = gate("the release"), []
        broken = mock.Mock(side_effect=ValueError("broken"))
        for function in (lambda text: (received.append(text), release.wait())), broken:
            with self.subTest(function=function), quiet() as sys_stderr:
                client = self.fake({"stderr": function}, call="err('x' * 100); "
                                   "[err('y' * 60000) for _ in range(20)]; text('ok')")
                for _ in range(2):
                    self.assertEqual(client.call_tool("f").text, "ok")
                wait_until(lambda: received)
                release.set()
                client.close()
        broken.assert_called_once()
        self.assertIn("ValueError: broken", sys_stderr.getvalue())

    def test_a_client_without_threads_says_so_at_once(self):
        """Looks inside."""
        for target in Server("s"), fake():
            with at_most_threads(0), self.assertRaisesRegex(RuntimeError, "thread"):
                Client(target).connect()

    def test_the_environment_of_the_server(self):
        def connect(options, secret, mine):
            env = self.fake(options).request("fake/env")["env"]
            self.assertEqual((env.get("MCP_MIN_SECRET"), env.get("MINE"), env["PATH"]),
                             (secret, mine, os.environ["PATH"]))
            self.assertEqual("HOSTILE" in env, "inherit_env" in options)

        with mock.patch.dict(os.environ, MCP_MIN_SECRET="s", HOSTILE="() { :; }"):
            run_together(self, connect, [
                ({}, None, None), ({"env": {"MINE": "1"}}, None, "1"),
                ({"inherit_env": True}, "s", None),
                ({"inherit_env": True, "env": {"MCP_MIN_SECRET": "t"}}, "t", None)])

    @UNIX
    def test_the_command_is_searched_in_the_path_of_the_child(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "my-mcp-server")
            with open(tool, "w") as file:
                file.write('#!/bin/sh\nexec "$@"\n')
            os.chmod(tool, 0o755)
            for env, cwd, name in (({"PATH": folder + ":/bin:/usr/bin"}, None,
                                    "my-mcp-server"), ({}, folder, "./my-mcp-server")):
                with Client([name, *fake(cwd="result(cwd=os.getcwd())")],
                            env=env, cwd=cwd, mode="legacy") as client:
                    self.assertEqual(client.request("fake/cwd")["cwd"],
                                     os.path.realpath(cwd or os.getcwd()))

    @UNIX
    def test_the_end_of_the_server_fails_its_calls_with_exit_code_and_stderr(self):
        """At once, also if it has only closed its stdout.  Fails if each call waits for
        the exit of the server."""
        def end(rule, code):
            client = self.fake({"stderr": None}, call="err('last line'); " + rule)
            calls = [client.submit("fake/say", {"lines": []}) for _ in range(50)]
            error = self.fails(ConnectionClosed, client.call_tool, "f")
            self.assertEqual((error.exit_code, client.exit_code), (code, code))
            self.assertIn("last line", error.stderr)
            self.assertFalse(concurrent.futures.wait(calls, PATIENCE).not_done)
            self.assertEqual({type(call.exception()) for call in calls},
                             {ConnectionClosed})

        run_together(self, end, [
            ("die(3)", 3), ("die(0)", 0), ("os.kill(os.getpid(), 9)", -9)])
        with short_patience(2):  # of which a call waits for a quarter
            run_together(self, end, [("os.close(1); time.sleep(60)", None)])
            self.doCleanups()

    def test_the_last_response_of_a_server_that_has_ended_is_received(self):
        last = 5_000_000
        client = self.fake(call=f"text('x' * {last}); die(3)")
        self.assertEqual(len(client.call_tool("f").text), last)

    @UNIX
    def test_ctrl_c_while_waiting_cancels_that_call_only(self):
        story = Story(self)
        client = self.fake({}, story, call="note('called')")
        other = client.submit_tool("f")

        def interrupt():
            wait_until(lambda: str(story).count("called") == 2)
            os.kill(os.getpid(), signal.SIGINT)

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        self.fails(KeyboardInterrupt, client.call_tool, "f")
        watcher.join(PATIENCE)
        _, call, cancelled = self.seen(client)[-4:-1]
        self.assertEqual(cancelled["params"]["requestId"], call["id"])
        self.assertFalse(other.done())

    def test_ctrl_c_just_after_sending_cancels_the_call(self):
        server, effects = everything()
        with Relay(server) as relay:
            writer = relay.streams[1]

            def write(data, write=writer.write):
                written = write(data)
                if b"tools/call" in data:
                    writer.flush()
                    raise KeyboardInterrupt
                return written

            writer.write = write
            with Client(relay.streams, mode="legacy") as client:
                self.fails(KeyboardInterrupt, client.call_tool, "hang")
                client.ping()
                wait_until(lambda: effects in ([], ["hanging", "cancelled"]))
        sent = [json.loads(line) for arrow, line in relay.lines if arrow == ">"]
        self.assertEqual(names(sent[2:], "method"), [
            "tools/call", "notifications/cancelled", "ping"])

    @UNIX
    def test_a_server_has_ended_even_if_its_child_keeps_its_stdout_open(self):
        """Fails if only the end of its stdout counts, or is reported, or if the client
        does not subscribe again, once, when it has restarted the server."""
        def end(mode):
            received = queue.Queue()
            client = self.fake(
                {"mode": mode, "auto_restart": True, "message_handler": received.put},
                discover="modern()", listen=ACKNOWLEDGE, subscribe="result()",
                call="import subprocess; subprocess.Popen(['sleep', '20']); die(7)")
            client.subscribe("note://x")
            self.assertEqual(raised(client.call_tool, "f").exit_code, 7)
            self.assertEqual(received.get(timeout=PATIENCE)["method"],
                             "notifications/cancelled")
            self.assertEqual(json.dumps(self.seen(client)).count("note://x"), 1)
            client.close()

        with short_patience():
            run_together(self, end, [["legacy"], ["modern"]])

    @UNIX
    def test_a_server_that_closes_its_stdin_and_stays_counts_as_ended(self):
        def end(auto_restart):
            client = self.fake({"auto_restart": auto_restart}, call=(
                "os.close(0); text('deaf'); time.sleep(60)"))
            self.assertEqual(client.call_tool("f").text, "deaf")
            self.fails(ConnectionClosed, client.request, "fake/fence")
            if not auto_restart:
                client.connect()
            self.fence(client)
            client.close()

        with short_patience():
            run_together(self, end, [[True], [False]])

    def test_a_blocked_stderr_function_does_not_delay_connecting(self):
        release, late = threading.Event(), []
        client = Client(fake(discover="err('hello'); modern()"), timeout=PATIENCE,
                        stderr=lambda text: release.wait(30) or late.append(text))
        with client:
            self.fence(client)
            release.set()
        self.assertEqual(late, [])

    def test_a_done_callback_may_wait_for_another_call_of_the_ended_server(self):
        client, errors = self.fake(call="die(5)", hang=""), []
        first, second = client.submit("fake/hang"), client.submit("fake/hang")
        for call, other in (first, second), (second, first):
            call.add_done_callback(
                lambda _, other=other: errors.append(other.exception(1)))
        raised(client.call_tool, "f")
        wait_until(lambda: len(errors) == 2)

    def test_auto_restart_starts_a_new_process_and_repeats_no_call(self):
        for mode, restarts, words in (
                ("legacy", True, "call + initialize initialized fence"),
                ("auto", True, "discover fence call + discover fence"),
                ("legacy", False, "initialize initialized fence call")):
            story = Story(self)
            client = self.fake({"mode": mode, "auto_restart": restarts}, story,
                               discover="modern()", call="die(5)")
            self.fence(client)
            self.fails(ConnectionClosed, client.call_tool, "f")
            with self.subTest(mode, restarts=restarts):
                if restarts:
                    self.fence(client)
                    self.assertIsNone(client.exit_code)
                else:
                    self.fails(ConnectionClosed, client.call_tool, "f")
                self.assertTrue(str(story).endswith(words), str(story))

    def test_a_server_that_exits_on_a_subscription_is_restarted_once(self):
        exit_if_restarted = "die(5) if open(diary[0]).read().count('+') > 1 else 0"

        def end(discover):
            story = Story(self)
            client = self.fake(
                {"mode": "auto", "auto_restart": True}, story, discover=discover,
                subscribe="result(); " + exit_if_restarted,
                listen=exit_if_restarted + ACKNOWLEDGE, call="die(5)")
            client.subscribe("note://x")
            client.subscribe("note://y")
            raised(client.call_tool, "f")
            self.fails(ConnectionClosed, client.request, "fake/fence")
            self.assertEqual(str(story).count("+"), 2)

        run_together(self, end, [["modern()"], ["error(-32601)"]])

    def test_a_subscription_that_is_refused_after_a_restart_is_only_reported(self):
        client = self.fake({}, Story(self), subscribe=(
            "error(-32002) if open(diary[0]).read().count('+') > 1 else result()"))
        client.subscribe("note://x")
        client.close()
        with quiet() as stderr:
            client.connect()
        self.assertIn("no longer subscribed to note://x", stderr.getvalue())
        self.fence(client)

    @UNIX
    def test_close_ends_every_server(self):
        ignore = "import signal; signal.signal(15, signal.SIG_IGN); "
        child = ("import subprocess; child = subprocess.Popen([sys.executable, '-I',"
                 " '-c', 'import time; time.sleep(60)']%s); note(str(child.pid)); ")

        def close(label, start, end, code):
            story = Story(self)
            client = self.fake({}, story, start=start, end=end)
            client.close()
            self.assertEqual(client.exit_code, code)
            for pid in [int(word) for word in str(story).split() if word.isdigit()]:
                if "start_new_session" in start:
                    os.kill(pid, signal.SIGKILL)
                gone(pid)

        # label, what the server does first, what last, its exit code
        run_together(self, close, [
            ("ends at end of input", "", "", 0), ("with a status", "", "die(9)", 9)])
        with short_patience(1):
            run_together(self, close, [
                ("ignores end of input", "", "time.sleep(60)", -15),
                ("leaves a child", child % "", "", 0),
                ("leaves a child and ignores end of input and SIGTERM",
                 ignore + child % "", "time.sleep(60)", -9),
                ("leaves a child that keeps stdout open, in another session",
                 child % ", start_new_session=True", "", 0)])

    @UNIX
    def test_a_client_that_is_never_closed_does_not_delay_the_exit(self):
        """Nor does it leave its server, which may ignore the end of its input."""
        code = ("import sys; sys.path.insert(0, %r); import mcp_min, os\n"
                "mcp_min.Process.PATIENCE = 0.1\n"
                "client = mcp_min.Client(%r, mode='legacy').connect()\n"
                "print(client.request('fake/pid')['pid'], flush=True)\n%s")
        close = "import atexit; atexit.register(client.close); "
        stubborn = {"start": "import signal; signal.signal(15, signal.SIG_IGN)",
                    "end": "time.sleep(60)"}

        def end(label, last, rules):
            # Python warns of a fork in a process with threads from 3.12 on.
            done = subprocess.run([sys.executable, "-I", "-S", "-W", "ignore", "-c",
                                   code % (HERE, fake(**rules), last)],
                                  capture_output=True, timeout=PATIENCE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            gone(int(done.stdout))

        run_together(self, end, [
            ("the end of the program", "", {}), ("sys.exit", "sys.exit(0)", {}),
            ("closed twice", close * 2, {}), ("a stubborn server", "", stubborn),
            ("the exit of a fork does not end it",
             "os.fork() or sys.exit(); os.wait(); client.request('fake/fence')", {})])

    @UNIX
    def test_no_descriptor_and_no_thread_is_left_after_close(self):
        """Nor after an ended server has been started again."""
        def open_files():
            return set(os.listdir("/dev/fd"))

        def call(target, times=1):
            with contextlib.suppress(OSError, McpError), Client(
                    target, mode="legacy", stderr=None, auto_restart=True) as client:
                for _ in range(times):
                    raised(client.call_tool, "f")

        call(fake())
        before, threads = open_files(), threading.active_count()
        call(fake(call="die(5)"), times=5)
        for target in (fake(), fake(start="die(1)"), ["no-such-server"], Server("x"),
                       fake(initialize="error(1)")):
            call(target)
        wait_until(lambda: open_files() <= before, "closed descriptors")
        wait_until(lambda: threading.active_count() <= threads, "ended threads")


# ======================================================================================
# 12  Familiar names
# ======================================================================================

FAMILIAR_LIFESPAN = "from mcp_min import FastMCP\n" + LIFESPAN_SERVER.replace(
    "Server(", "FastMCP(").replace("return ", """\
assert ctx.request_context.lifespan_context is ctx.lifespan_context
    return """)


class Test12FamiliarNames(unittest.TestCase):
    """Programs for FastMCP and the SDK run when only their imports are changed."""

    def test_the_names_of_fastmcp_and_the_sdk_can_be_imported(self):
        for name in ("FastMCP", "MCPServer", "TextContent", "AudioContent", "Icon",
                     "Annotations", "UserMessage", "AssistantMessage", "ServerSession"):
            self.assertTrue(callable(getattr(mcp_min, name)), name)
        self.assertTrue(issubclass(mcp_min.FastMCP, Server))
        self.assertIs(Context[mcp_min.ServerSession, dict], Context)
        self.assertTrue({"FastMCP", "TextContent"} <= set(mcp_min.__all__))

    def test_a_name_for_http_can_be_imported_and_says_so_when_it_is_called(self):
        for name, text in (("StreamableHttpTransport", "HTTP"), ("sse_client", "HTTP"),
                           ("stdio_client", "Client(["), ("create_proxy", "register"),
                           ("TextResource", "register"), ("CurrentContext", "ctx: "),
                           ("PromptsAsTools", "register")):
            thing = getattr(mcp_min, name)
            self.assertIs(thing, getattr(mcp_min, name))
            with self.subTest(name), self.assertRaisesRegex(
                    NotImplementedError, f"no {name}: .*{re.escape(text)}"):
                type("Sub", (thing,), {})()
        with self.assertRaises(AttributeError):
            mcp_min.FastMPC  # noqa: B018

    def test_configuration_objects_take_any_field(self):
        settings = mcp_min.AuthSettings(issuer_url="a", required_scopes=["b"])
        self.assertEqual((settings.issuer_url, settings.required_scopes, settings.x),
                         ("a", ["b"], None))
        self.assertEqual(mcp_min.get_http_headers(), {})
        self.assertIsNone(mcp_min.get_access_token())

    def test_options_of_the_constructor(self):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            server = mcp_min.FastMCP("s", "Read me.", log_level="DEBUG", host="0.0.0.0",
                             version="1.0 beta", mask_error_details=True, list_page_size=7,
                             tools=[textwrap.dedent])
            server.custom_route("/health", methods=["GET"])(lambda request: None)
        self.assertEqual(stderr.getvalue().splitlines(), [
            "mcp_min: FastMCP(): no effect here: log_level, host",
            "mcp_min: custom_route(): no effect here: /health"])
        self.assertEqual(server.settings.log_level, "DEBUG")
        server.settings.port += 1000
        self.assertEqual(server.settings.port, 9000)
        with Client(server) as client:
            self.assertEqual(
                (client.instructions, client.server_info["version"],
                 client.server_info["name"], names(client.list_tools())),
                ("Read me.", "1.0 beta", "s", ["dedent"]))
        with Client(mcp_min.FastMCP(mask_error_details=False)) as client:
            self.assertEqual(client.server_info["name"], "FastMCP")

    def test_what_would_change_the_behaviour_is_refused_in_words(self):
        for option in "middleware", "transforms", "providers":
            mcp_min.FastMCP("s", **{option: []})
            with self.assertRaisesRegex(NotImplementedError, f"{option}=.*register"):
                mcp_min.FastMCP("s", **{option: [1]})
        for make in "from_openapi", "from_fastapi", "as_proxy":
            with self.assertRaisesRegex(NotImplementedError, f"{make}.*one server here"):
                getattr(mcp_min.FastMCP, make)({}, name="s")
        for name, text in (("mount", "register"), ("add_middleware", "@server"),
                           ("_tool_manager", "list_tools"), ("_mcp_server", "add_tool"),
                           ("run_http_async", "HTTP"), ("call_tool", "Client"),
                           ("nonsense", "no such")):
            with self.assertRaisesRegex(AttributeError, f"{name}: .*{text}"):
                getattr(mcp_min.FastMCP("s"), name)
        for transport in "sse", "http", "streamable-http":
            server = mcp_min.FastMCP("s")
            self.assertRaisesRegex(ValueError, "stdio only", server.run, transport)
            self.assertRaisesRegex(ValueError, "stdio only", asyncio.run,
                                   server.run_async(transport))

    def test_a_server_takes_no_familiar_words(self):
        """DESIGN 2: `Server` itself is strict, as Python is."""
        server = Server("s")
        for refused in (lambda: Server("s", host="x"), lambda: Server("s", tools=[]),
                        lambda: server.run("stdio"), lambda: server.completion(),
                        lambda: server.tool(len, tags={"a"}),
                        lambda: server.tool(len, enabled=False),
                        lambda: server.tool(len, structured_output=False),
                        lambda: server.prompt(len, tags={"a"})):
            self.assertRaises(TypeError, refused)
        for name in "http_app", "settings", "run_async", "custom_route", "list_tools":
            self.assertFalse(hasattr(server, name), name)
        with Client(Server("s", version="1.0 beta", instructions="Read.")) as client:
            self.assertEqual((client.server_info["version"], client.instructions),
                             ("1.0 beta", "Read."))

    @both_eras
    def test_any_handler_finds_its_context(self, era):
        """`def` too, and whatever it calls; each its own."""
        server, found = mcp_min.FastMCP("s"), []

        def note():
            self.assertIs(mcp_min.get_context(), server.get_context())
            found.append(mcp_min.get_context())

        @server.tool
        def plain(ctx: Context):
            found.append(ctx)
            note()

        @server.tool
        async def later(ctx: Context):
            await asyncio.sleep(0)
            found.append(ctx)
            note()

        @server.tool
        async def reading(ctx: Context):
            found.append(ctx)
            await ctx.read_resource("s://x")

        server.resource("s://x")(lambda: note() or "")
        server.prompt(name="p")(lambda: note() or "")
        server.completion("p", "x")(lambda value: note())
        server.completion()(lambda ref, argument, context: note())
        server.method("acme/x")(note)
        server.method("notifications/acme")(note)
        with Client(server, mode=era) as client:
            for tool in "plain", "later", "reading":
                client.call_tool(tool)
            self.assertEqual([found[n] is found[n + 1] for n in (0, 2, 4)], [True] * 3)
            del found[:]
            client.read_resource("s://x")
            client.get_prompt("p")
            client.complete("p", "x", "")
            client.complete("p", "other", "")
            client.request("acme/x")
            client.notify("notifications/acme")
            wait_until(lambda: len(found) == 6)
        self.assertEqual(len(set(map(id, found))), 6)
        self.assertIsInstance(raised(mcp_min.get_context), LookupError)

    @both_eras
    def test_one_function_completes_all_arguments_that_have_none(self, era):
        """With what a middleware made of the request; also where a host runs it."""
        host, run_handler = host_thread(self)
        server, called = mcp_min.FastMCP("s", run_handler=run_handler), []
        server.prompt(name="p")(lambda x: "")
        server.completion("p", "own")(lambda value: ["its own"])

        @server.middleware
        def change(ctx, method, params, call_next):
            if params.get("argument", {}).get("value") == "sent":
                params = {**params, "argument": {"name": "x", "value": "changed"},
                          "context": {"arguments": {"y": "1"}}}
            return call_next(ctx, method, params)

        @server.completion()
        def complete(ref, argument, context):
            called.append(threading.current_thread())
            if argument.value and isinstance(ref, mcp_min.PromptReference):
                return mcp_min.Completion(values=[
                    ref.name, argument.name, argument.value, context.arguments["y"]])

        play(server, """
            > 1 completion/complete {"ref": {"type": "ref/prompt", "name": "p"},
                "argument": {"name": "a", "value": "sent"}}
            < 1 {"completion": {"values": ["p", "x", "changed", "1"]}}
            > 2 completion/complete {"ref": {"type": "ref/prompt", "name": "p"},
                "argument": {"name": "a", "value": ""}}
            < 2 {"completion": {"values": []}}
            > 3 completion/complete {"ref": {"type": "ref/prompt", "name": "p"},
                "argument": {"name": "own", "value": ""}}
            < 3 {"completion": {"values": ["its own"]}}
            """, era=era)
        self.assertEqual(called, [host, host])

    def test_the_library_works_without_the_section(self):
        with open(mcp_min.__file__, encoding="utf-8") as file:
            source = file.read()
        start, end = (source.index(f"# -- {title}") for title in (
            "12. Familiar names", "13. Command line"))
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(__file__, folder)
            with open(f"{folder}/mcp_min.py", "w", encoding="utf-8") as file:
                file.write(source[:start] + source[end:])
            done = subprocess.run(
                [sys.executable, "test_mcp_min.py", "Test10Tools"],
                cwd=folder, capture_output=True, text=True, timeout=PATIENCE * 4)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_an_application_for_http_can_be_prepared_and_not_served(self):
        """Also with the routes of its authorization."""
        auth = mcp_min.GitHubProvider(client_id="x", base_url="http://localhost")
        verifier = type("Verifier", (mcp_min.TokenVerifier,), {})()
        with contextlib.redirect_stderr(io.StringIO()):
            server = mcp_min.FastMCP("s", auth=auth, token_verifier=verifier)
        self.assertIs(server.settings.token_verifier, verifier)
        for make in "http_app", "sse_app", "streamable_http_app":
            app = getattr(server, make)(path="/mcp")
            app.add_middleware(dict, allow_origins=["*"])
            app.router.routes.extend([*auth.get_well_known_routes(mcp_path="/mcp")])
            with self.assertRaisesRegex(NotImplementedError, "HTTP"):
                app({}, None, None)
        server.tool(lambda: "served", name="t")
        with Client(server) as client:
            self.assertEqual(client.call_tool("t").text, "served")

    def test_run_async_shares_the_loop_of_the_application(self):
        with process(FAMILIAR_LIFESPAN + textwrap.dedent("""
            async def main():
                application_loop = asyncio.get_running_loop()
                @server.tool
                async def shared() -> bool:
                    return application_loop is asyncio.get_running_loop()
                await server.run_stdio_async()
                print("after", file=sys.stderr)
            asyncio.run(main())
            """), "-I") as server:
            play(server, """
                > handshake
                > 1 tools/call {"name": "same"}
                < 1 {"structuredContent": {"result": true}}
                > 2 tools/call {"name": "shared"}
                < 2 {"structuredContent": {"result": true}}
                """)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr.split(), ["enter", "leave", "after"])

    def test_run_async_ends_when_it_is_cancelled(self):
        with process(FAMILIAR_LIFESPAN + textwrap.dedent("""
            async def main():
                serving = asyncio.ensure_future(server.run_async("stdio"))
                await asyncio.sleep(0.05)
                serving.cancel()
                try:
                    await serving
                except asyncio.CancelledError:
                    print("cancelled", file=sys.stderr)
            asyncio.run(main())
            """), "-I") as server:
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr.split(), ["enter", "leave", "cancelled"])

    def test_lists_of_the_server_are_data_plain_or_awaited(self):
        server = mcp_min.FastMCP("s", tools=[
            mcp_min.Tool.from_function(textwrap.dedent, name="size")])
        server.add_prompt(mcp_min.Prompt.from_function(lambda a: a, name="p"))
        server.add_resource(mcp_min.Resource.from_function(
            lambda: b"data", "s://x", name="x", tags={"a"}))
        server.add_resource("s://{y}", lambda y: y, name="y")

        async def awaited():
            return await server.list_tools()

        self.assertEqual([tool.inputSchema["type"] for tool in server.list_tools()],
                         ["object"])
        self.assertEqual(asyncio.run(awaited()), server.list_tools())
        self.assertTrue(asyncio.run(server.list_tools()))
        self.assertEqual([server.list_prompts()[0].name, server.list_resources()[0].uri,
                          server.list_resource_templates()[0].uriTemplate],
                         ["p", "s://x", "s://{y}"])
        with Client(server) as client:
            self.assertEqual(client.read_resource("s://x")[0].data, b"data")

    def test_each_item_of_a_list_is_a_block(self):
        """As in the SDK 1.x; a Server sends one JSON text."""
        def items() -> List[str]:
            return ["a", "b"]

        def nested():
            return [1, ["x", {"y": 2}], mcp_min.Text("t")]

        for make, tool, expected in (
                (Server, items, ['["a", "b"]']), (mcp_min.FastMCP, items, ["a", "b"]),
                (mcp_min.FastMCP, nested, ["1", "x", '{"y": 2}', "t"])):
            server = make("s")
            server.tool(tool)
            with Client(server) as client:
                result = client.call_tool(tool.__name__)
            self.assertEqual([block.text for block in result.content], expected)
            if tool is items:
                self.assertEqual(result.data, ["a", "b"])

    def test_options_of_the_decorators(self):
        server = mcp_min.FastMCP("s")
        server.tool(lambda: None, name="off", enabled=False)

        @server.tool(tags={"b", "a"}, structured_output=False, icons=[mcp_min.Icon(
            src="data:,x")], annotations=mcp_min.ToolAnnotations(readOnlyHint=True))
        def on() -> Dict[str, int]:
            return {"x": 1}

        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            @server.tool(exclude_args=["user"], timeout=5)
            def greet(name: str, user: str = "me") -> str:
                return name + user

        @server.resource("s://{path*}")
        async def path(path: str) -> str:
            return path

        @server.prompt
        async def ask(what: str) -> list:
            return [mcp_min.UserMessage(what), mcp_min.AssistantMessage("ok")]

        server.add_resource("s://fixed", lambda: "r", name="fixed")
        with Client(server) as client:
            shown, greet = client.list_tools()
            self.assertEqual([*greet["inputSchema"]["properties"]], ["name"])
            self.assertEqual(client.call_tool("greet", {"name": "a"}).text, "ame")
            self.assertEqual(shown, {
                "name": "on", "annotations": {"readOnlyHint": True},
                "icons": [{"src": "data:,x"}],
                "_meta": {"fastmcp": {"tags": ["a", "b"]}},
                "inputSchema": {"type": "object", "properties": {}, **CLOSED}})
            result = client.call_tool("on")
            self.assertEqual((result.text, result.structured_content),
                             ('{"x": 1}', None))
            self.assertEqual(client.read_resource("s://a/b")[0].text, "a/b")
            self.assertEqual(client.read_resource("s://fixed")[0].text, "r")
            self.assertEqual([m["role"] for m in client.get_prompt(
                "ask", {"what": "x"})["messages"]], ["user", "assistant"])
        self.assertIn("no effect here: timeout", stderr.getvalue())

    def test_the_context_has_the_attributes_of_fastmcp_and_the_sdk(self):
        server, logs, steps = mcp_min.FastMCP("s"), [], []

        @server.tool
        async def low(ctx: Context[dict, dict]) -> list:
            session = ctx.request_context.session
            await ctx.session.send_log_message(level="info", data="hi", logger="l")
            await ctx.session.send_progress_notification(
                progress_token=ctx.request_context.meta.progressToken, progress=1.0)
            await session.send_resource_updated("s://x")
            await session.send_tool_list_changed()
            sampled = await session.create_message(
                messages=[mcp_min.SamplingMessage(
                    role="user", content=mcp_min.TextContent(type="text", text="?"))],
                max_tokens=5)
            answer = await session.elicit(message="?", requestedSchema={
                "type": "object", "properties": {"value": {"type": "boolean"}}})
            assert answer.content == {"value": True} and mcp_min.get_context() is ctx
            await ctx.set_state("k", await ctx.get_state("k") or 7)
            assert await mcp_min.get_context().get_state("k") == 7
            for roots in (await session.list_roots()).roots, await ctx.list_roots():
                assert roots[0].uri.endswith("/a")
            assert session.client_params.clientInfo.name == "mcp_min"
            assert ctx.session_id and ctx.request_context.request is None
            return [sampled.content.text,
                    isinstance(answer, mcp_min.AcceptedElicitation),
                    isinstance(answer, mcp_min.DeclinedElicitation),
                    ctx.fastmcp is server, ctx.client_id,
                    ctx.request_id == ctx.request_context.request_id]

        with Client(server, mode=LATEST, roots=["/a"],
                    log_handler=lambda params: logs.append(
                        (params["logger"], params["data"])),
                    progress_handler=lambda *step: steps.append(step[0]),
                    sampling_handler=lambda messages, params: "an answer",
                    elicitation_handler=lambda message, schema, params: {
                        "value": bool(schema["properties"])}) as client:
            self.assertEqual(client.call_tool("low").data,
                             ["an answer", True, False, True, None, True])
            wait_until(lambda: logs)
        self.assertEqual((logs, steps), ([("l", "hi")], [1]))

    def test_messages_take_the_arguments_of_either_library(self):
        server, logs = mcp_min.FastMCP("s"), []

        @server.tool
        async def talk(ctx: Context) -> None:
            ctx.debug("z")  # before a level was set
            await asyncio.create_task(ctx.info(message="a"))
            loop = asyncio.get_running_loop()
            sent = asyncio.run_coroutine_threadsafe(ctx.report_progress(1), loop)
            await asyncio.wrap_future(sent)
            await ctx.warning("b", logger_name="l", extra={"x": 1})
            await ctx.log("error", "c")
            await ctx.log("d", level="debug")
            await ctx.log("info", message="e")
            await ctx.log(message="f", level="info")
            await ctx.log("g", "info")

        with Client(server, mode=LATEST, log_handler=lambda params: logs.append(
                (params["level"], params["data"]))) as client:
            client.call_tool("talk")
            wait_until(lambda: len(logs) == 8)
        self.assertEqual(logs, [("debug", "z"), ("info", "a"), ("warning", "b"), ("error", "c"),
                                ("debug", "d"), ("info", "e"), ("info", "f"),
                                ("info", "g")])

    def test_text_between_the_arguments_of_a_docstring_is_kept(self):
        def view(name: str, depth: int):
            """Show a view.

            Args:
                name: Which one.
                The following views are available:
                - "Front"
                - "Back"
                depth: How deep.

            Returns:
                A picture.
            """

        signature = Signature(view)
        self.assertEqual(signature.schema["properties"]["depth"]["description"],
                         "How deep.")
        for text in "Show a view.", '- "Front"', '- "Back"', "A picture.":
            self.assertIn(text, signature.description)
        self.assertNotIn("How deep", signature.description)

    def test_run_accepts_the_name_of_the_transport(self):
        with process('mcp_min.FastMCP("s").run(transport="stdio", show_banner=False)'
                     ) as server:
            play(server, "> 1 ping\n< 1 {}")
            server.hang_up()
            self.assertEqual(server.exit(), 0)

    def test_content_has_both_spellings(self):
        png = base64.b64encode(b"\x89PNG").decode()
        for familiar, equivalent in (
                (mcp_min.TextContent(type="text", text="x"), mcp_min.Text("x")),
                (mcp_min.ImageContent(type="image", data=png, mimeType="image/png"),
                 mcp_min.Image(b"\x89PNG")),
                (mcp_min.Image(data=b"x", format="jpeg"),
                 mcp_min.Image(b"x", mime_type="image/jpeg")),
                (mcp_min.EmbeddedResource(
                    type="resource", resource=mcp_min.TextResourceContents(
                        uri="a:b", text="x", mimeType="text/plain")),
                 mcp_min.EmbeddedResource("a:b", "x")),
                (mcp_min.BlobResourceContents(uri="a:b", blob=png),
                 mcp_min.ResourceContents(data=b"\x89PNG", uri="a:b")),
                (mcp_min.ToolAnnotations(title="T", readOnlyHint=True),
                 {"title": "T", "readOnlyHint": True}),
                (mcp_min.CallToolResult(content=[], structuredContent={"a": 1},
                                        _meta={"b": 2}, isError=False),
                 mcp_min.ToolResult([], {"a": 1}, meta={"b": 2})),
                (mcp_min.UserMessage("x"), mcp_min.Message("user", "x")),
                (mcp_min.Message("hi"), mcp_min.Message("user", "hi")),
                (mcp_min.Message("hi", "user"), mcp_min.Message(content="hi")),
                (mcp_min.AssistantMessage(content="x"), mcp_min.Message("x", "assistant")),
                (mcp_min.Message("x", role="assistant"),
                 mcp_min.Message("assistant", "x"))):
            self.assertEqual(familiar, equivalent)
        block = mcp_min.Image(b"x", annotations={"priority": 1})
        self.assertEqual((block.type, block.data, block.mimeType, block.mime_type),
                         ("image", "eA==", "image/png", "image/png"))
        self.assertIs(block.to_image_content(), block)
        self.assertIsNone(mcp_min.Text("x").annotations)
        self.assertEqual(mcp_min.Text("x").model_dump(exclude_none=True),
                         {"type": "text", "text": "x"})
        params = mcp_min.ElicitRequestURLParams(elicitation_id="1", url="a:b")
        self.assertEqual((params, params.elicitation_id, params.elicitationId),
                         ({"elicitationId": "1", "url": "a:b"}, "1", "1"))
        error = mcp_min.MCPError(mcp_min.ErrorData(code=-32602, message="no"))
        self.assertEqual((error.code, error.message, error.data), (-32602, "no", None))
        self.assertEqual((error.error.code, error.error.message), (-32602, "no"))

    def test_invalid_content_is_refused(self):
        for error, make in ((TypeError, lambda: mcp_min.Text("x", colour="red")),
                            (ValueError, lambda: mcp_min.Text("x", type="image")),
                            (ValueError, lambda: mcp_min.Image("chart.png")),
                            (TypeError, lambda: mcp_min.Message("user", "x", name="y")),
                            (TypeError, lambda: mcp_min.Message(role="user")),
                            (AttributeError, lambda: mcp_min.Image(b"x").text)):
            self.assertRaises(error, make)

    def test_the_type_of_audio_is_guessed_from_the_path_or_the_data(self):
        """Whatever table of types the system has."""
        for name, data, expected in (
                ("a.mp3", b"", "audio/mpeg"), ("a.wav", b"RIFF1234WAVE", "audio/wav"),
                ("notes.txt", b"no audio", "application/octet-stream")):
            with tempfile.TemporaryDirectory() as folder, self.subTest(name):
                path = pathlib.Path(folder, name)
                path.write_bytes(data)
                self.assertEqual(mcp_min.Audio(path=path)["mimeType"], expected)

    def test_what_read_resource_returns_has_content_and_mime_type(self):
        server = mcp_min.FastMCP("s")
        server.resource("s://text", mime_type="text/markdown")(lambda: "# Title")
        server.resource("s://data")(lambda: b"data")

        @server.tool
        async def read(ctx: Context) -> list:
            [text], [data] = [await ctx.read_resource(f"s://{name}")
                              for name in ("text", "data")]
            return [text.content, text.mime_type, data.content.decode(), data.mime_type]

        with Client(server) as client:
            self.assertEqual(client.call_tool("read").data, [
                "# Title", "text/markdown", "data", "application/octet-stream"])

    def test_a_tool_may_require_a_visit_to_a_url_by_an_error(self):
        server = Server("s")

        @server.tool
        def visit():
            raise mcp_min.UrlElicitationRequiredError([mcp_min.ElicitRequestURLParams(
                mode="url", message="m", url="https://a/b", elicitationId="1")])

        play(server, """
            > 1 tools/call {"name": "visit"}
            < 1 -32042 {"elicitations": [{"url": "https://a/b"}]}
            """, era="legacy")


# The import lines by which each library runs the same program
IMPORTS = {
    "mcp": "from mcp.server.fastmcp import Context, FastMCP\n"
           "from mcp.types import ImageContent, TextContent, ToolAnnotations\n"
           "from mcp.server.fastmcp.prompts.base import (\n"
           "    AssistantMessage, UserMessage)\n",
    "fastmcp": "from fastmcp import Context, FastMCP\n"
               "from mcp.types import ImageContent, TextContent, ToolAnnotations\n"
               "from fastmcp.prompts import Message\n"
               "UserMessage = Message\n"
               "def AssistantMessage(text): return Message(text, role='assistant')\n",
    "mcp_min": "from mcp_min import (Context, FastMCP, ImageContent, TextContent,\n"
               "    ToolAnnotations, AssistantMessage, UserMessage)\n",
}
SHARED_PROGRAM = """
import asyncio
from contextlib import asynccontextmanager
from typing import Annotated, Literal, Optional
from pydantic import BaseModel, Field

class Address(BaseModel):
    street: str
    code: str = Field(description="Postal code", pattern="^[0-9]+$")

class Person(BaseModel):
    name: str = Field(description="Full name", min_length=2)
    age: Optional[int] = None
    home: Address

class Report(BaseModel):
    text: str
    score: float = 0.5

@asynccontextmanager
async def lifespan(server):
    yield {"loop": asyncio.get_running_loop()}

mcp = FastMCP("shared", instructions="Be kind.", lifespan=lifespan)

@mcp.tool(annotations=ToolAnnotations(title="Greet", readOnlyHint=True))
async def greet(person: Person, ctx: Context, loud: bool = False) -> str:
    "Greet somebody."
    await ctx.info("greeting")
    await ctx.report_progress(1, 2)
    life = ctx.request_context.lifespan_context
    return f"{person.name} of {person.home.code} {loud} {bool(life['loop'])}"

@mcp.tool()
def find(text: Annotated[str, Field(description="What", max_length=5)],
         limit: int = Field(default=10, ge=1, le=50, description="How many"),
         shelf: Literal["a", "b"] = "a") -> Report:
    return Report(text=f"{text} {limit} {shelf}")

@mcp.tool()
async def show() -> list[TextContent | ImageContent]:
    return [TextContent(type="text", text="hi"),
            ImageContent(type="image", data="eA==", mimeType="image/png")]

@mcp.tool()
def fail():
    raise ValueError("broken")

@mcp.resource("note://{name}")
async def note(name: str) -> str:
    return f"a note on {name}"

@mcp.prompt()
def review(code: str) -> list:
    return [UserMessage("look at " + code), AssistantMessage("I do")]

if __name__ == "__main__":
    mcp.run(transport="stdio")
"""


@unittest.skipIf(sys.version_info < (3, 10), "the libraries are for Python 3.10")
class TestImportLine(unittest.TestCase):
    """One program behaves the same with each library; only its import lines differ."""

    def behaviour(self, library):
        """All that a client receives from the program."""
        env = {"PYTHONPATH": HERE} if library == "mcp_min" else {}
        steps, logs = [], []
        with Client([sys.executable, "-c", IMPORTS[library] + SHARED_PROGRAM], env=env,
                    stderr=None, mode=LATEST,
                    progress_handler=lambda *step: steps.append(step[:2]),
                    log_handler=lambda params: logs.append(params["level"])) as client:
            received = [
                client.instructions, client.server_info["name"],
                self.tools(client), self.calls(client), logs, steps,
                client.read_resource("note://x")[0].text,
                [(message["role"], message["content"]["text"]) for message in
                 client.get_prompt("review", {"code": "x"})["messages"]],
                names(client.list_resource_templates(), "uriTemplate"),
                [(prompt["name"], names(prompt["arguments"]))
                 for prompt in client.list_prompts()]]
            wait_until(lambda: logs and steps)
        return received

    def tools(self, client):
        # mcp_min has no schema for a result of text or of blocks, on purpose: only that
        # of `find` is compared.
        return {tool["name"]: (
            tool.get("description") or "", tool.get("annotations"),
            self.simplified(tool["inputSchema"]),
            tool["name"] == "find" and [*tool["outputSchema"]["properties"]])
            for tool in client.list_tools()}

    def calls(self, client):
        """Of each call whether it fails, or else its content."""
        results = []
        person = {"name": "Ann", "home": {"street": "x", "code": "12"}}
        for name, arguments in (
                ("greet", {"person": person, "loud": True}), ("show", {}),
                ("find", {"text": "ab"}), ("find", {"text": "ab", "limit": 5}),
                ("fail", {}), ("find", {}), ("find", {"text": "too long"}),
                ("find", {"text": "a", "limit": 99}),
                ("greet", {"person": {**person, "name": "A"}})):
            result = client.call_tool(name, arguments, raise_on_error=False)
            # Libraries write structured content as different text.
            keys = ("type",) if name == "find" else ("type", "text", "data")
            results.append(result.is_error or (
                [{key: block[key] for key in keys if key in block}
                 for block in result.content],
                result.structured_content if name == "find" else None))
        return results

    def simplified(self, schema, definitions=None):
        """A schema with its definitions in place, without the keywords that differ."""
        if isinstance(schema, list):
            return [self.simplified(part, definitions) for part in schema]
        if not isinstance(schema, dict):
            return schema
        definitions = schema.get("$defs", definitions)
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        return {key: self.simplified(value, definitions)
                for key, value in schema.items()
                if key not in ("$defs", "additionalProperties", "title")}

    def compare(self, library):
        try:
            __import__({"mcp": "mcp.server.fastmcp"}.get(library, library))
        except ImportError:
            missing(self, f"the package {library}", always=True)
        self.maxDiff = None
        self.assertEqual(self.behaviour("mcp_min"), self.behaviour(library))

    def test_as_with_the_sdk_1(self):
        self.compare("mcp")

    def test_as_with_fastmcp(self):
        self.compare("fastmcp")


# ======================================================================================
# 13  Command line
# ======================================================================================

FILE = os.path.join(HERE, "mcp_min.py")
# The same program, but started so that Python keeps the compiled file.
PROGRAM = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, %r); "
           "import mcp_min; sys.exit(mcp_min.main())" % HERE]


def cli(*args):
    """Run a command line here: what goes to stdout and stderr, and the exit status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = mcp_min.main(list(args))
        except SystemExit as end:
            status = end.code
    return out.getvalue(), err.getvalue(), status


class Terminal:
    """The command line at a terminal, to `type` at and to `expect` text from."""

    def __init__(self, *args, stdout=subprocess.PIPE, **options):
        self._master, slave = os.openpty()
        self.child = subprocess.Popen([*PROGRAM, *args], stdin=slave, stderr=slave,
                                      stdout=stdout or slave, **options)
        os.close(slave)
        self._unread = ""

    def expect(self, text):
        """Wait for this text, which must come after the text expected before."""
        end = time.monotonic() + PATIENCE
        while text not in self._unread:
            left = max(0, end - time.monotonic())
            assert select.select([self._master], [], [], left)[0], self._unread
            self._unread += os.read(self._master, 65536).decode()
        self._unread = self._unread.partition(text)[2]

    def answer(self, text):
        """Type this at the next prompt."""
        self.expect("decline: ")
        os.write(self._master, text.encode())

    def result(self):
        return self.child.stdout.read()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.child.kill()
        self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()
        os.close(self._master)


TERMINAL = unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")

SAID = {  # a part of a sentence of the demo: what must be true of the line below it
    "The tool is done": lambda m: (
        m["result"]["content"] and not m["result"]["isError"]
        and m["result"].get("resultType", "complete") == "complete"),
    "it has a question": lambda m: (
        m["result"]["resultType"] == "input_required" and m["result"]["inputRequests"]),
    "The same call again": lambda m: (
        m["method"] == "tools/call" and m["params"]["inputResponses"]
        and m["params"]["requestState"]),
    "says hello": lambda m: (
        m["method"] == "initialize" and m["params"]["protocolVersion"]
        and m["params"]["clientInfo"]),
    "agrees to the revision": lambda m: (
        m["result"]["protocolVersion"] == LATEST and m["result"]["capabilities"]),
    "The client is ready": lambda m: (
        m["method"] == "notifications/initialized" and "id" not in m),
    "asks what the server is": lambda m: (
        m["method"] == "server/discover" and len(m["params"]["_meta"]) == 3),
    "says who it is": lambda m: (
        m["result"]["capabilities"] and m["result"]["supportedVersions"]
        and m["result"]["_meta"]),
    "to run a tool": lambda m: (
        m["method"] == "tools/call" and "inputResponses" not in m["params"]),
    "reports how far": lambda m: m["method"] == "notifications/progress",
    "so the server asks": lambda m: m["method"] == "elicitation/create",
    "the user has answered": lambda m: m["result"]["action"] == "accept",
}
FROM_SERVER = {"The tool is done", "it has a question", "agrees to the revision",
               "says who it is", "reports how far", "so the server asks"}


class Test13CommandLine(unittest.TestCase):
    """Results go to stdout, other text to stderr.  The
    exit status is 0 for success, 1 for a failure, 2 for wrong usage."""

    SERVER = (*PROGRAM, "serve")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return path

    def fails(self, text, status, *args):
        out, err, actual = cli(*args)
        with self.subTest(args):
            self.assertEqual((out, actual), ("", status))
            self.assertRegex(err, text)
        return err

    # -- demo

    def test_each_line_of_the_demo_is_what_the_sentence_above_it_says(self):
        with mock.patch.dict(os.environ):
            out, err, status = cli("demo")
        self.assertEqual((err, status), ("", 0))
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        _, *eras = out.split("\nRevision ")
        self.assertEqual([era[:10] for era in eras], [LATEST, MODERN])
        for era in eras:
            self.assertLess(era.count("\n"), 60)  # so it fits a screen
        lines = out.splitlines()
        explained = set()
        for number, line in enumerate(lines):
            if line.startswith(("  -->", "  <--")):
                below = itertools.takewhile(lambda x: x[:6] == " " * 6, lines[number + 1:])
                message = checked("".join(x[6:] for x in below).encode() + b"\n")
                [said] = [key for key in SAID if key in line]
                with self.subTest(line):
                    self.assertTrue(SAID[said](message), message)
                    self.assertEqual("<--" in line[:5], said in FROM_SERVER)
                explained.add(said)
        self.assertEqual(explained, set(SAID))

    # -- list, call, read, prompt

    def test_list_prints_what_a_server_offers_as_text_or_as_json(self):
        out, err, status = cli("list", *self.SERVER)
        self.assertEqual((err, status), ("", 0))
        for line in ("demo %s, revision 2026-07-28" % mcp_min.__version__, "tools (1)",
                     "  order", "    Order a dish; asks what should be on it.",
                     "      dish: string",
                     "  demo://hello/{name}", "  review", "      language: string"):
            self.assertIn(line, out.splitlines())
        self.assertNotIn("(0)", out)  # it has no resources, only a template
        about = json.loads(
            cli("list", "--mode", "2025-06-18", "--json", "--", *self.SERVER)[0])
        self.assertEqual(about["protocolVersion"], "2025-06-18")
        self.assertEqual([tool["name"] for tool in about["tools"]], ["order"])

    def test_list_shows_and_call_converts_what_a_tool_needs(self):
        """And logs, progress and stderr have labels."""
        server = "--", *PROGRAM, "run", self.file("typed.py", """
            import sys
            from dataclasses import dataclass
            from typing import Annotated, List
            from mcp_min import Context

            @dataclass
            class Item:
                name: str
                price: float = 1.0

            def types(item: Item, text: str, n: Annotated[int, {"minimum": 1}],
                      many: List[int], ctx: Context, real: float = 3, yes: bool = False,
                      ) -> str:
                ctx.info("a remark")
                ctx.report_progress(1, 2, "half")
                sys.stderr.write("a murmur\\n")
                return repr((item, text, n, many, real, yes))
            """)
        lines = cli("list", *server)[0].splitlines()
        for line in (('item: object {"properties": {"name": {"type": "string"}, '
                      '"price": {"type": "number", "default": 1.0}}, '
                      '"required": ["name"], "additionalProperties": false}'),
                     'many: array {"items": {"type": "integer"}}',
                     'n: integer {"minimum": 1}', "real?: number = 3"):
            self.assertIn("      " + line, lines)
        out, err, status = cli("call", "types", 'item={"name": "x"}', "text=5", "n=5",
                               "many=[1, 2]", '{"real": 5}', "yes=true", *server)
        self.assertEqual((out, status), (
            "(Item(name='x', price=1.0), '5', 5, [1, 2], 5.0, True)\n", 0))
        self.assertEqual(sorted(err.splitlines()), [
            "log info: a remark", "progress: 1/2 half", "stderr: a murmur"])

    def test_a_malformed_entry_or_a_failing_list_does_not_hide_the_others(self):
        tools = ("result(tools=[5, {'name': 't', 'description': None, 'inputSchema': "
                 "{'type': 'object', 'properties': {'x': True, 'y': 7, 'n': "
                 "{'type': 'integer'}}}}, {'name': 'u', "
                 "'inputSchema': [], 'description': {}}, {'title': 'no name'}])")
        server = "--", *fake(discover="OFFERED.update(prompts={}); error(-32601)", list=(
            f"{tools} if message['method'] != 'prompts/list' else error(-32603)"),
            call="text(str(params['arguments']))")
        out, err, status = cli("list", *server)
        self.assertEqual(status, 0)
        self.assertIn("note: tools/list: Malformed response", err)
        for line in ("tools (4)", "  malformed: 5", "  t", "      x?: any", "  u",
                     '  malformed: {"title": "no name"}'):
            self.assertIn(line, out.splitlines())
        self.assertIn("note: prompts/list: refused (-32603)", err)
        self.assertEqual(cli("call", "t", "x=1", "n=2", *server)[::2],
                         ("{'x': '1', 'n': 2}\n", 0))

    def test_a_cursor_that_comes_again_ends_a_list(self):
        out, err, status = cli("list", "--json", "--", *fake(
            list="result(tools=[{'name': 'x'}], nextCursor='again')"))
        self.assertEqual((len(json.loads(out)["tools"]), status), (1, 0))
        self.assertIn("pages of tools/list do not end", err)

    def test_a_pattern_of_a_server_is_not_run(self):
        """It takes years: Python's `re` tries every way to split the text."""
        field = {"type": "string", "pattern": "^(a+)+$"}
        server = fake(list="result(tools=[{'name': 'f', 'inputSchema': {'properties': "
                           f"{{'x': {field}}}}}}}])")
        done = subprocess.run([*PROGRAM, "call", "f", "x=" + "a" * 60 + "!", "--", *server],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              check=False, timeout=PATIENCE)
        self.assertEqual((done.stdout.strip(), done.returncode), (b"ok", 0))

    def test_results_errors_and_nothing_at_all_are_shown_as_what_they_are(self):
        server = fake(list="result(tools=[])", call="""result(**{
            "colours": {"content": [{"type": "text", "text": "\\33[31mred\\7\\u202e"}]},
            "fails": {"content": [{"type": "text", "text": "no \\33[5mluck\\nmcp_min: x"
                                   }], "isError": True},
            "nothing": {"content": []}}[params["name"]])""")
        self.assertEqual(cli("call", "colours", "--", *server)[0],
                         "\\x1b[31mred\\x07\\u202e\n")
        err = self.fails(r"the tool failed: no \\x1b\[5mluck\n", 1,
                         "call", "fails", "--", *server)
        self.assertNotRegex(err, "\33|(?m:^mcp_min: x)")
        self.assertEqual(cli("call", "nothing", "--", *server), ("", "(no content)\n", 0))

    def test_read_and_prompt_print_what_a_server_returns(self):
        for command, expected in (
                ("read demo://hello/Ada", ("Hello, Ada!\n", "", 0)),
                ("prompt review language=C", ("user: Review this C code.\n", "", 0)),
                ("read --json demo://bye", (
                    "", "mcp_min: McpError: Resource not found: demo://bye (-32602)\n",
                    1))):
            self.assertEqual(cli(*command.split(), "--", *self.SERVER), expected)

    def test_text_of_every_language_is_shown_as_it_is(self):
        text = "東\u3000京 \u00a0\U0001f468\u200d\U0001f469"
        server = "--", *fake(call=f"text({text!r})")
        self.assertEqual(cli("call", "f", *server)[0], text + "\n")

    def test_text_of_a_server_neither_controls_the_terminal_nor_forges_a_line(self):
        evil = "info\x1b]0;owned\x07\x9b2J\u202e\nmcp_min: forged"
        log = ("send(method='notifications/message', params={'level': '%s', 'logger': "
               "'%s', 'data': '%s'}); " % ((evil.replace("\n", "\\n"),) * 3))
        output = {"type": "object", "properties": {evil: {"type": "string"}}}
        tool = {"name": "f", "inputSchema": output, "outputSchema": output,
                "description": evil}
        for command in ("list",), ("call", "f"):
            out, err, _ = cli(*command, "--", *fake(
                list=f"{log}result(tools=[{tool}])",
                call=f"{log}result(content=[], structuredContent={{{evil!r}: 5}})"))
            with self.subTest(command):
                self.assertNotRegex(out + err, "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
                self.assertNotRegex(out + err, "(?m)^mcp_min: forged")
                self.assertIn("owned", out + err)

    @TERMINAL
    def test_at_a_terminal_each_line_of_a_result_is_indented(self):
        server = fake(list="result(tools=[{'name': 'f'}])",
                      call="text('fine\\nmcp_min: forged')")
        with Terminal("call", "f", "--", *server, stdout=None) as screen:
            screen.expect("  fine\r\n  mcp_min: forged")
        self.assertEqual(cli("call", "f", "--", *server)[0], "fine\nmcp_min: forged\n")

    def test_a_server_gets_the_named_variables_or_all_on_request(self):
        server = "--", *fake(
            call="text(str([os.environ.get(key) for key in ('A', 'B', 'SECRET')]))")
        with mock.patch.dict(os.environ, B="b", SECRET="s"):
            for options, expected in (
                    (["--env", "A=1=2", "--env", "B"], "['1=2', 'b', None]\n"),
                    (["--inherit-env"], "[None, 'b', 's']\n")):
                out, _, _ = cli("call", "variables", *options, *server)
                self.assertEqual(out, expected)
            self.fails("C is not set", 2, "call", "variables", "--env", "C", *server)

    @TERMINAL
    def test_ctrl_c_cancels_the_call_and_notifies_the_server(self):
        log = os.path.join(self.folder, "log")
        with Terminal("call", "slow", "--", *fake(call="err('up')"),
                      env={**os.environ, "MCP_MIN_TRACE": log}) as screen:
            screen.expect("stderr: up")
            screen.child.send_signal(signal.SIGINT)
            self.assertEqual(screen.child.wait(PATIENCE), 130)
        with open(log, encoding="utf-8") as file:
            self.assertIn("notifications/cancelled", file.read())

    # -- what is wrong with a server

    def test_garbage_on_stdout_is_reported_when_it_comes(self):
        """Not when the timeout is over, which is a minute."""
        with subprocess.Popen(
                [*PROGRAM, "list", "--", sys.executable, "-S", "-c",
                 "import time; print('Loading', flush=True); time.sleep(60)"],
                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
            self.addCleanup(child.kill)
            line = child.stderr.readline().decode()
            self.assertIsNone(child.poll())
            child.send_signal(signal.SIGTERM)
        self.assertRegex(line, "other than JSON-RPC to stdout: 'Loading'.*"
                               "mcp_min.py run FILE.py")

    def test_a_server_that_is_silent_or_that_ends_is_told_with_the_cause(self):
        python = "--", sys.executable, "-S"
        relative = self.file("relative.py", "from . import mcp_min")
        vendored = self.file("vendored.py", "import mcp_min")
        for text, *args in (
                (r"is running, but has not answered within 0.5 s: is .* server.run\(\)\?",
                 "--timeout", "0.5", *python, "-c", "import sys; sys.stdin.read()"),
                ("(?s)Loading.*RequestTimeout.*no messages: is it an MCP server",
                 "--timeout", "3", *python, "-c",
                 "import sys; print('Loading', flush=True); sys.stdin.read()"),
                (r"exit code 0\): did it call server.run\(\)\?", *python, "-c", ""),
                ("stderr: no licence\nmcp_min: .*exit code 1", *python, "-c",
                 "import sys; sys.exit('no licence')"),
                (r"No module named 'mcp_min'\n(?s:.*)put mcp_min.py beside the server",
                 *python, "-I", vendored),
                (r"start it as a part of its package, with: python3 -m PACKAGE.MODULE",
                 *python, relative),
                ("cannot start .*no-such-program", "no-such-program")):
            err = self.fails(text, 1, "list", *args)
            self.assertNotIn("Traceback (most recent call last)", err.replace(
                "stderr: Traceback", ""))
        with self.assertRaisesRegex(ValueError, r"a list: \['python3', 'srv.py'\]"):
            Client("python3 srv.py").connect()

    # -- questions

    def test_questions_are_answered_by_the_option_answer(self):
        server = "--", *PROGRAM, "run", self.file("ask.py", """
            from dataclasses import dataclass
            from mcp_min import Context

            @dataclass
            class Size:
                width: int
                depth: int

            def one(ctx: Context) -> str:
                return str(ctx.elicit("?", ["red", "blue"]).data)

            def two(ctx: Context) -> str:
                return str(ctx.elicit("?", Size).content)
            """)
        self.assertEqual(cli("call", "one", "--answer", "red", *server), ("red\n", "", 0))
        size = '{"width": 1, "depth": 2}'
        self.assertEqual(cli("call", "two", "--answer", size, *server),
                         ("{'width': 1, 'depth': 2}\n", "", 0))
        for tool, answer, text in (
                ("one", "green", '^.*not fit: value: expected one of "red", "blue".*\n$'),
                ("two", "12", "^.*not fit: .*object.*\n$")):
            self.fails(text, 1, "call", tool, "--answer", answer, *server)

    @TERMINAL
    def test_at_a_terminal_the_user_is_asked_and_only_a_yes_is_consent(self):
        server = self.file("wipe.py", """
            from mcp_min import Context

            def order(ctx: Context) -> str:
                return str(ctx.elicit("What?", ["lemon", "syrup"]).data)

            def wipe(ctx: Context) -> str:
                first = ctx.elicit("Really?").action
                return first + " " + ctx.elicit_url("Sign in", "https://x.io").action
            """)
        for tool, form, first, second, output in (
                ("order", 'value: string {"enum": ["lemon", "syrup"]}', "syrup\n", "", b"syrup\n"),
                ("order", "What?", "\4", "", b"None\n"),  # Ctrl-D
                ("wipe", "yes or no", "yes\n", "yes\n", b"accept accept\n"),
                ("wipe", "Really?", "no\n", "\n", b"decline decline\n")):
            with self.subTest(tool + first), Terminal(
                    "call", tool, "--", *PROGRAM, "run", server) as screen:
                screen.expect(form)
                screen.answer(first)
                if second:
                    screen.expect("open https://x.io: yes or no")
                    screen.answer(second)
                self.assertEqual(screen.result(), output)

    @TERMINAL
    def test_a_question_of_a_server_cannot_forge_a_line(self):
        schema = {"type": "object", "properties": {
            "colour:\n[sudo] password for root": {"type": "string"}}}
        with Terminal("call", "f", "--", *fake(
                list="result(tools=[{'name': 'f', 'inputSchema': {}}])",
                call="asked = id; send(id='q', method='elicitation/create', params="
                     f"{{'message': '?', 'requestedSchema': {schema}}})",
                answer="result(id=asked, content=[])")) as screen:
            screen.expect("the server asks: [sudo] password for root: string")
            screen.child.send_signal(signal.SIGINT)
            screen.child.wait(PATIENCE)

    # -- run

    def test_run_redirects_what_a_file_prints_at_import_to_stderr(self):
        """And imports it as a module of its own name, with this very library."""
        path = self.file("noisy.py", '''
            """Prints at import."""
            import dataclasses, os, sys, mcp_min
            print("a banner")
            os.system("echo a child")

            @dataclasses.dataclass
            class Point:
                x: "Number"

            Number = int

            async def where(point: Point) -> str:
                assert sys.modules["__main__"] is mcp_min
                return f"{type(point.x)} {__name__} {sys.modules[__name__].__file__}"

            def _hidden():
                pass
            ''')
        out, err, _ = cli("list", "--json", "--", *PROGRAM, "run", path)
        about = json.loads(out)
        self.assertEqual([tool["name"] for tool in about["tools"]], ["where"])
        self.assertEqual(about["instructions"], "Prints at import.")
        self.assertEqual(err, "stderr: a banner\nstderr: a child\n")
        self.assertEqual(
            cli("call", "where", 'point={"x": 1}', "--", sys.executable, FILE, "run", path),
            (f"<class 'int'> noisy {path}\n", "stderr: a banner\nstderr: a child\n", 0))

    def test_run_tells_what_is_wrong_with_a_file(self):
        rows = [
            ("x = 1\nimport no_such_thing\n", "ModuleNotFoundError.*"),
            ("import json\njson.loads('x\\ny')\n", "JSONDecodeError.*"),
            ("x = 1\nraise OSError('no luck')\n", "OSError: no luck"),
            ("x = 1\ndef f(:\n", "SyntaxError.*"),
            ("x = 1\nfrom . import y\n", "ImportError.*python3 -m PACKAGE.MODULE.*"),
            ("import mcp_min\nmcp_min.Server('s').run()\n",
             ".*under `if __name__ == '__main__':`.*"),
            (("import mcp_min\nfrom contextlib import contextmanager as c\n"
             "lifespan = c(lambda server: [][0])\n"
             "same = server = mcp_min.Server('s', lifespan=lifespan)\n"), "1"),
            ("import mcp_min\na, b = mcp_min.Server(), mcp_min.Server()", "2"),
            ("x = 5", "2")]
        paths = [self.file(f"file{n}.py", text) for n, (text, _) in enumerate(rows)]
        run = textwrap.dedent("""
            for path in sys.argv[1:]:
                try:
                    mcp_min.main(["run", path])
                except SystemExit as end:
                    print(end.code, end="\\0")
            """)
        done = subprocess.run([sys.executable, "-I", "-S", "-c", process.HEAD + run, *paths],
                              capture_output=True, text=True, check=True, timeout=PATIENCE)
        for path, (_, error), said in zip(paths, rows, done.stdout.split("\0")):
            place = "" if error in "12" else f'File "{re.escape(path)}", line 2(?s:.*)\n'
            self.assertRegex(said, f"{place}.*{error}$")
        for text in "must have one Server", "or public functions", "IndexError: list":
            self.assertIn(text, done.stderr)

    def test_run_with_unthreaded_calls_functions_on_the_thread_of_the_import(self):
        """sqlite3 refuses to use a connection on another thread."""
        server = self.file("base.py", """
            import sqlite3
            base = sqlite3.connect(":memory:")
            def one() -> int:
                return base.execute("select 1").fetchone()[0]
            """)
        out, _, _ = cli("call", "one", "--", *PROGRAM, "run", server, "--unthreaded")
        self.assertEqual(out, "1\n")

    # -- trace

    def test_trace_passes_all_bytes_and_the_exit_status_and_writes_all_down(self):
        log = os.path.join(self.folder, "log")
        echo = "import sys, os; data = sys.stdin.buffer.read(); os.write(1, data); " \
               "sys.stderr.write('beside'); sys.exit(7)"
        data = (b'\xff\xfe{"id": 1\r\n\n{"jsonrpc":"2.0","id":2,"method":"a/b"}\n'
                + b"x" * 70000)
        done = subprocess.run(
            [*PROGRAM, "trace", "--to", log, "--", sys.executable, "-S", "-c", echo],
            input=data, capture_output=True, check=False, timeout=PATIENCE)
        self.assertEqual((done.stdout, done.stderr, done.returncode),
                         (data, b"beside", 7))
        with open(log, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertRegex(
            lines[0],
            r'^\d\d:\d\d:\d\d\.\d{3} > \\xff\\xfe\{"id": 1  # not a message$')
        self.assertEqual(len([line for line in lines if " > " in line]), 4)
        self.assertEqual(len([line for line in lines if " < " in line]), 4)
        self.assertEqual([line.partition(" ! ")[2] for line in lines if " ! " in line],
                         ["beside", "the server's exit code is 7"])
        self.assertIn("exit code is 7", lines[-1])
        if os.name == "posix":
            self.assertEqual(os.stat(log).st_mode & 0o777, 0o600)

    def test_trace_on_stderr_has_the_servers_stderr_and_its_end(self):
        show = "import os, sys; print(*map(os.environ.get, 'ABC')); sys.exit('no luck')"
        done = subprocess.run(
            [*PROGRAM, "trace", "--env", "C=c", "--", sys.executable, "-S", "-c", show],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            env={**os.environ, "A": "a", "B": "b"}, timeout=PATIENCE)
        self.assertEqual((done.stdout.split(), done.returncode), (["a", "b", "c"], 1))
        self.assertEqual(sorted(x.partition(" ")[2] for x in done.stderr.splitlines()), [
            "! no luck", "! the server's exit code is 1", "< a b c  # not a message"])

    @unittest.skipUnless(os.name == "posix", "signals")
    def test_trace_ends_its_server_when_it_is_ended(self):
        server = "import signal, sys, time; print('up', flush=True); time.sleep(60)"
        with subprocess.Popen(
                [*PROGRAM, "trace", "--", sys.executable, "-S", "-c", server],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE) as proxy:
            self.assertEqual(proxy.stdout.readline(), b"up\n")
            proxy.send_signal(signal.SIGTERM)
            self.assertEqual(proxy.wait(PATIENCE), 143)
            self.assertRegex(proxy.stderr.read(), b"exit code is -15\n$")

    # -- the arguments

    def test_wrong_usage_is_one_line_and_status_2(self):
        for args in (["nope"], ["list"], ["call"], ["call", "count"], ["demo", "x"],
                     ["call", "count", "to=1", "--frob", "--", "x"], ["run", "no.py"],
                     ["list", "--mode", "1999-01-01", "x"], ["trace"], ["connect"],
                     ["call", "count", "5", "--", *self.SERVER]):
            self.fails("error: .*\n$", 2, *args)

    def test_each_command_offers_only_its_own_options(self):
        query = {"json", "answer", "env", "inherit-env", "timeout", "mode"}
        for command, options in {
                "demo": set(), "serve": set(), "list": query, "call": query,
                "read": query, "prompt": query, "run": {"unthreaded"},
                "trace": {"env", "to"}, "connect": set()}.items():
            with self.subTest(command), mock.patch.dict(os.environ, COLUMNS="80"):
                out, err, status = cli(command, "-h")
                self.assertEqual((err, status), ("", 0))
                self.assertTrue(out.startswith(f"usage: mcp_min.py {command} [options]"))
                self.assertEqual({*re.findall("^  --([a-z-]+)", out, re.MULTILINE)},
                                 options)
                self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_the_version_and_the_help(self):
        self.assertEqual(cli("--version"), ("mcp_min %s\n" % mcp_min.__version__, "", 0))
        out, err, status = cli()
        self.assertEqual((err, status), ("", 0))
        self.assertIn("exit status", out)


class Test13Connect(unittest.TestCase):
    """`Server.listen`, and the command `connect` that reaches it."""

    APPLICATION = """
        server = Server("application")
        server.tool(lambda text: text, name="echo")
        listener = server.listen(%r)
        print("ready", flush=True)
        sys.stdin.read()
        """

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(os.path.realpath(folder.name), "private", "mcp")
        self.connect = [*PROGRAM, "connect", self.path]

    def application(self, path=None):
        """Start another process that listens."""
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", process.HEAD + textwrap.dedent(
                self.APPLICATION % (path or self.path))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(child.stdin.close)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), b"ready\n")
        return child

    def listen(self, server=None, path=None):
        listener = (server or zoo()).listen(path or self.path)
        self.addCleanup(listener.close)
        return listener

    def port(self):
        with open(self.path, encoding="ascii") as file:
            return int(file.read().split()[0])

    def test_a_host_reaches_a_server_in_another_process(self):
        """Two hosts at once; a message of 10 MB passes in both directions."""
        application, big = self.application(), "x" * 10_000_000
        with Client(self.connect, stderr=None) as one, Client(self.connect) as two:
            self.assertEqual(one.server_info["name"], "application")
            self.assertEqual(one.call_tool("echo", {"text": big}).text, big)
            self.assertEqual(two.call_tool("echo", {"text": "hi"}).text, "hi")
            two.close()
            application.kill()
            with self.assertRaises(ConnectionClosed):
                one.call_tool("echo", {"text": "hi"})
        self.assertEqual(one.exit_code, 1)
        self.assertIn("has closed the connection", one.stderr_tail)

    def test_handlers_run_in_the_main_loop_of_an_application(self):
        jobs = queue.SimpleQueue()
        server = Server("studio", run_handler=jobs.put)
        server.tool(lambda: threading.current_thread().name, name="where")
        self.listen(server)
        with Client(self.connect) as client:
            call = client.submit_tool("where")
            while not call.done():
                with contextlib.suppress(queue.Empty):
                    jobs.get(timeout=0.01)()
            self.assertEqual(call.result().text, threading.current_thread().name)

    @UNIX
    def test_only_the_user_can_read_the_secret(self):
        os.umask(os.umask(0o022))
        self.listen()
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(os.path.dirname(self.path)).st_mode & 0o777, 0o700)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["mcp"])

    def test_who_does_not_know_the_secret_gets_no_word_and_runs_nothing(self):
        called = []
        server = Server("s")
        server.tool(lambda: called.append(1), name="call")
        self.listen(server)
        request = json.dumps(message('1 tools/call {"name": "call"}', True)).encode()
        silent = socket.create_connection(("127.0.0.1", self.port()))
        self.addCleanup(silent.close)
        for first in (b"", b"0" * 64, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"\r" * 50):
            with self.subTest(first), socket.create_connection(
                    ("127.0.0.1", self.port()), PATIENCE) as sock:
                sock.sendall(first + request + b"\n")
                with contextlib.suppress(ConnectionError):
                    self.assertEqual(sock.recv(1), b"")
        with Client(self.connect) as client:  # while another one says nothing
            self.assertEqual(called, [])
            client.call_tool("call")
        self.assertEqual(called, [1])

    def test_who_says_nothing_is_left_after_a_while(self):
        self.addCleanup(setattr, mcp_min, "LISTEN_SECONDS", mcp_min.LISTEN_SECONDS)
        mcp_min.LISTEN_SECONDS = 0.05
        self.listen()
        with socket.create_connection(("127.0.0.1", self.port()), PATIENCE) as sock:
            self.assertEqual(sock.recv(1), b"")

    def test_a_listener_that_cannot_write_its_file_leaves_nothing(self):
        os.makedirs(os.path.join(self.path, "folder"))
        before = {*threading.enumerate()}
        self.assertRaises(OSError, zoo().listen, self.path)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["mcp"])
        self.assertLessEqual({*threading.enumerate()}, before)

    def test_a_stale_file_is_replaced_and_a_live_one_is_not(self):
        application = self.application()
        with self.assertRaisesRegex(OSError, "already listens"):
            zoo().listen(self.path)
        with Client(self.connect) as client:
            self.assertEqual(client.server_info["name"], "application")
        application.kill()
        application.wait()
        self.assertTrue(os.path.exists(self.path))
        self.listen()
        with self.assertRaisesRegex(OSError, "already listens"):
            zoo().listen(self.path)
        with Client(self.connect) as client:
            self.assertEqual(client.server_info["name"], "zoo")

    def test_another_program_on_the_port_of_a_stale_file_is_not_believed(self):
        os.makedirs(os.path.dirname(self.path))
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()

            def answer():
                with other.accept()[0] as sock:
                    sock.sendall(sock.recv(64))

            threading.Thread(target=answer, daemon=True).start()
            pathlib.Path(self.path).write_text(
                f"{other.getsockname()[1]} {os.urandom(64).hex()}\n")
            self.listen()

    def test_close_ends_the_connections_and_removes_the_file(self):
        listener = self.listen()
        with Client(self.connect, stderr=None) as client:
            client.call_tool("echo", {"text": "hi"})
            port = self.port()
            listener.close()
            listener.close()
            with self.assertRaises(ConnectionClosed):
                client.call_tool("echo", {"text": "hi"})
        self.assertFalse(os.path.exists(self.path))
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port))
        self.listen()

    def test_while_nobody_listens_each_request_is_answered_with_an_error(self):
        with process(f"""
                mcp_min.CONNECT_SECONDS = 0.01
                sys.exit(mcp_min.main(["connect", {self.path!r}]))
                """) as relay:
            for number in 1, 2:
                relay.say("notifications/initialized")
                relay.say(f"{number} ping")
                response = relay.recv()
                self.assertEqual((response["id"], response["error"]["code"]),
                                 (number, -32603))
                self.assertIn(f"no server listens at {self.path}: start the application",
                              response["error"]["message"])
            listener = self.listen()
            play(relay, "> 3 ping\n< 3 {}")
            listener.close()
            self.assertIsNone(relay.recv())
            self.assertEqual(relay.exit(), 1)
            self.assertIn("has closed the connection", relay.stderr)

    def test_a_line_that_is_no_request_gets_no_answer_while_nobody_listens(self):
        with process(f"""
                mcp_min.CONNECT_SECONDS = 0.01
                sys.exit(mcp_min.main(["connect", {self.path!r}]))
                """) as relay:
            relay.send(b"noise\n", {"jsonrpc": "2.0", "id": 1, "result": {}}, [])
            relay.say("2 ping")
            self.assertEqual(relay.recv()["id"], 2)
            self.assertEqual(relay.hang_up(), [])
            self.assertEqual(relay.exit(), 1)
            self.assertRegex(relay.stderr, "no server listens at .*mcp: start the")

    def test_connect_waits_for_an_application_that_is_starting(self):
        client = Client(self.connect)
        together(client.connect, self.listen)
        with client:
            self.assertEqual(client.call_tool("echo", {"text": "hi"}).text, "hi")
        self.assertEqual((client.exit_code, client.stderr_tail), (0, ""))


# ======================================================================================
# 7, 11  Every feature in both eras
# ======================================================================================

def names(listed, key="name"):
    return [entry[key] for entry in listed]


def failure(error):
    """The parts of an error that must be the same in both eras."""
    if isinstance(error, McpError):
        return (type(error).__name__, error.data)
    return (type(error).__name__, str(error))


def outcome_of_changes(session):
    session.client.call_tool("grow", {"name": "grown"})
    session.received("notifications/tools/list_changed")
    grown = "grown" in names(session.client.list_tools())
    session.client.call_tool("shrink", {"name": "grown"})
    wait_until(lambda: len(session.received("notifications/tools/list_changed")) == 2)
    return grown, "grown" in names(session.client.list_tools())


def outcome_of_subscription(session):
    client = session.client
    client.call_tool("touch", {"uri": "note://x"})
    client.subscribe("note://x")
    client.call_tool("touch", {"uri": "note://y"})
    client.call_tool("touch", {"uri": "note://x"})
    session.received("notifications/resources/updated")
    client.unsubscribe("note://x")
    client.call_tool("touch", {"uri": "note://x"})
    client.subscribe("note://z")
    client.call_tool("touch", {"uri": "note://z"})

    def updated():
        updates = session.received("notifications/resources/updated")
        return names([update["params"] for update in updates], "uri")

    wait_until(lambda: "note://z" in updated())
    return updated()


def outcome_of_logging(session):
    levels = ["debug", "info", "warning", "critical", "emergency"]
    for level in ("debug", "warning", "emergency"):
        session.client.set_logging_level(level)
        session.client.call_tool("tell", {"levels": levels})
    wait_until(lambda: len(session.logs) >= 9)
    return [level for level, _ in session.logs], session.logs[0][1]


def outcome_of_progress(session):
    session.client.call_tool("count", {"n": 3})
    return wait_until(lambda: len(session.progress) == 3 and session.progress)


def outcome_of_cancelling(session):
    call = session.client.submit_tool("hang")
    wait_until(lambda: session.effects == ["hanging"])
    call.cancel()
    wait_until(lambda: session.effects == ["hanging", "cancelled"])
    (done,), _ = concurrent.futures.wait([call], PATIENCE)  # a cancelled call is done
    return done.cancelled(), session.client.call_tool("add", {"a": 1}).data


def outcome_of_two_questions(session):
    result = session.client.call_tool("pay", {"amount": 7}).data
    return result, session.asked, session.effects


FEATURES = [  # (name, a function that uses the feature, its outcome in both eras)
    ("tools/list, to its last page", lambda s: names(s.client.list_tools())[::6],
     ["add", "picky", "where", "touch"]),
    ("resources/list", lambda s: names(s.client.list_resources(), "uri"),
     ["config://app", "blob://one"]),
    ("resources/templates/list", lambda s: names(s.client.list_resource_templates(),
                                                 "uriTemplate"),
     ["note://{name}", "asked://{name}"]),
    ("prompts/list", lambda s: names(s.client.list_prompts()), ["review", "interview"]),
    ("tools/call", lambda s: s.client.call_tool("add", {"a": 1}).data, 3),
    ("tools/call, lenient", lambda s: s.client.call_tool("add", {"a": "1"}).data, 3),
    ("tools/call, isError", lambda s: failure(raised(s.client.call_tool, "unlucky")),
     ("ToolError", "out of luck")),
    ("tools/call, McpError", lambda s: failure(raised(s.client.call_tool, "picky")),
     ("McpError", {"why": "monday"})),
    ("tools/call, bad arguments", lambda s: type(raised(
        s.client.call_tool, "add", {"a": "x"})), ToolError),
    ("unknown method", lambda s: failure(raised(s.client.request, "acme/no")),
     ("McpError", {"method": "acme/no"})),
    ("resources/read, data", lambda s: json.loads(
        s.client.read_resource("config://app")[0].text), {"debug": True}),
    ("resources/read, bytes", lambda s: s.client.read_resource("blob://one")[0].data,
     b"\x00\xff"),
    ("resources/read, template", lambda s: s.client.read_resource("note://x")[0].text,
     "note x"),
    ("prompts/get",
     lambda s: s.client.get_prompt("review", {"code": "1"})["messages"][0],
     {"role": "user", "content": {"type": "text", "text": "review this python: 1"}}),
    ("prompts/get, unknown", lambda s: failure(raised(s.client.get_prompt, "nope")),
     ("McpError", {"name": "nope"})),
    ("completion/complete",
     lambda s: s.client.complete("review", "language", "p")["values"],
     ["python", "perl", "pascal"]),
    ("ping", lambda s: raised(s.client.ping), None),
    ("custom method", lambda s: s.client.request("acme/echo", {"word": "x"})["echo"],
     "x"),
    ("progress", outcome_of_progress,
     [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]),
    ("log messages", outcome_of_logging,
     (["debug", "info", "warning", "critical", "emergency", "warning", "critical",
       "emergency", "emergency"], {"level": "debug"})),
    ("elicitation, twice, and once()", outcome_of_two_questions,
     ({"name": "Ann", "sure": True, "receipt": "receipt 1"},
      [("your name?", None), ("sure?", None)], [7])),
    ("elicitation, url", lambda s: (s.client.call_tool("visit").data, s.asked),
     ("accept", [("sign in", "https://example.org/in")])),
    ("sampling", lambda s: (s.client.call_tool("recite").data, s.asked),
     ("roses are red", [("sampling", "user", 7)])),
    ("roots", lambda s: s.client.call_tool("where").data,
     [{"uri": "file:///a", "name": "a"}]),
    ("other roots", lambda s: (s.client.set_roots([{"uri": "file:///b"}]),
                               s.client.call_tool("where").data)[1],
     [{"uri": "file:///b"}]),
    ("several questions at once", lambda s: s.client.call_tool("several").data,
     {"who": {"name": "Ann"}, "dirs": [{"uri": "file:///a", "name": "a"}]}),
    ("a resource that asks", lambda s: s.client.read_resource("asked://tea")[0].text,
     "tea for Ann"),
    ("a prompt that asks", lambda s: s.client.get_prompt(
        "interview")["messages"][1]["content"]["text"], "Ann"),
    ("cancellation", outcome_of_cancelling, (True, 3)),
    ("tools/list_changed", outcome_of_changes, (True, False)),
    ("resources/updated", outcome_of_subscription, ["note://x", "note://z"]),
    ("client capabilities", lambda s: s.client.call_tool("whoami").data["able"],
     ["elicitation", "roots", "sampling"]),
    ("server_info", lambda s: (s.client.server_info["name"], s.client.instructions),
     ("everything", "be kind")),
]


class TestBothEras(unittest.TestCase):
    """Every feature has the same outcome in both eras, for the caller and for the
    handlers of the server."""

    def test_every_feature_has_the_same_outcome(self):
        def use_features(mode, version):
            for name, use, expected in FEATURES:
                with Session(mode) as session:
                    self.assertEqual(session.client.protocol_version, version)
                    self.assertEqual(use(session), expected, name)

        run_together(self, use_features, [("legacy", LATEST), ("modern", MODERN)])

    @both_eras
    def test_a_log_handler_receives_info_and_above_by_default(self, era):
        with Session(era) as session:
            session.client.call_tool("tell", {"levels": ["debug", "info", "error"]})
            wait_until(lambda: len(session.logs) == 2)
            self.assertEqual([level for level, _ in session.logs], ["info", "error"])


class Till:
    """A server whose tool asks three questions, each followed by a step that `once`
    runs.

    It stops at one point until `release` is set: in "1", "2" or "3" while the user
    answers, in "a", "b" or "c" in a step.  ``steps`` are those that have begun, and
    ``running`` has an item for each handler that runs.
    """

    def __init__(self, asynchronous=False, stops_at=""):
        self.steps, self.running, self.stops_at = [], [], stops_at
        self.reached, self.release = gate("point " + stops_at), gate("release")
        self.server = Server("till", drain_seconds=0.05)
        self.server.tool(self.order_later if asynchronous else self.order, name="order")

    @contextlib.contextmanager
    def runs(self):
        self.running.append(1)
        try:
            yield
        finally:
            self.running.pop()

    def order(self, ctx: Context) -> str:
        with self.runs():
            for question, step in POINTS:
                ctx.elicit(question, bool)
                ctx.once(step, functools.partial(self.take, step))
            return "sold"

    async def order_later(self, ctx: Context) -> str:
        with self.runs():
            for question, step in POINTS:
                await ctx.elicit(question, bool)
                await ctx.once(step, functools.partial(self.take_later, step))
            return "sold"

    def take(self, step):
        self.steps.append(step)
        self.pause(step)

    async def take_later(self, step):
        self.steps.append(step)
        if self.stops_here(step):
            while not self.release.is_set():
                await asyncio.sleep(0.001)

    def answer(self, message, schema, params):
        self.pause(message)
        return {"value": True}

    def pause(self, point):
        if self.stops_here(point):
            self.release.wait(3 * PATIENCE)  # longer than a test waits for the end

    def stops_here(self, point):
        if point != self.stops_at or self.reached.is_set():
            return False
        self.reached.set()
        return True


POINTS = "1a", "2b", "3c"
EVERYWHERE = [  # (label, era, `async def`?, the point, the steps that have begun there)
    ("%s %s %s" % (era, "async def" if asynchronous else "def", point),
     era, asynchronous, point, list("abc"[:(number + 1) // 2]))
    for era in ("legacy", "modern") for asynchronous in (False, True)
    for number, point in enumerate("1a2b3c")]


class TestInterruptions(unittest.TestCase):
    """A handler that asks three questions, with steps between them that run once, is
    interrupted at each of the six points, in both eras, `def` and `async def`."""

    def test_the_call_is_cancelled(self):
        """The handler ends at once, unless it is inside of a plain function of its own;
        no later step is taken, and the connection goes on."""
        def cancel(label, era, asynchronous, point, steps):
            till = Till(asynchronous, point)
            with Client(till.server, mode=era, elicitation_handler=till.answer) as (
                    client):
                call = client.submit_tool("order")
                till.reached.wait()
                self.assertTrue(call.cancel())
                if point.isalpha() and not asynchronous:
                    till.release.set()
                wait_until(lambda: not till.running, label)
                till.release.set()
                self.assertEqual(till.steps, steps)
                self.assertEqual(client.call_tool("order").text, "sold")
                self.assertEqual(till.steps, [*steps, *"abc"])

        run_together(self, cancel, EVERYWHERE)

    def test_the_client_is_closed(self):
        """The call fails, also while the user answers, and the handler ends."""
        def close(label, era, asynchronous, point, steps):
            till = Till(asynchronous, point)
            client = Client(till.server, mode=era, elicitation_handler=till.answer)
            call = client.connect().submit_tool("order")
            till.reached.wait()
            client.close()
            self.assertIsInstance(raised(call.result, PATIENCE), ConnectionClosed)
            till.release.set()
            wait_until(lambda: not till.running, label)
            self.assertEqual(till.steps, steps)

        run_together(self, close, EVERYWHERE)

    def test_the_server_is_killed(self):
        """The call fails at once, also while the user answers."""
        def kill(label, era, asynchronous, point, steps):
            till, written = Till(asynchronous, point), []

            def answer(message, schema, params):
                if message == point and not till.reached.is_set():
                    os.kill(client.call_tool("pid").data, KILL)
                till.pause(message)
                return {"value": True}

            client = Client([sys.executable, "-I", "-S", "-c", KILLED_TILL, point],
                            mode=era, elicitation_handler=answer, stderr=written.append)
            with client:
                self.assertIsInstance(raised(client.call_tool, "order"),
                                      ConnectionClosed)
                till.release.set()
            self.assertEqual(re.findall("step (.)", "".join(written)), steps)

        run_together(self, kill, [row for row in EVERYWHERE if not row[2]])


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
KILLED_TILL = """
import os, sys; sys.path.insert(0, %r)
from mcp_min import Context, Server
server = Server("till")
server.tool(lambda: os.getpid(), name="pid", output_schema={"type": "integer"})

def take(step):
    os.write(2, ("step %%s\\n" %% step).encode())
    if step == sys.argv[1]:
        os.kill(os.getpid(), %d)

@server.tool
def order(ctx: Context) -> str:
    for question, step in ("1a", "2b", "3c"):
        ctx.elicit(question, bool)
        ctx.once(step, lambda: take(step))

server.run()
""" % (HERE, KILL)


# ======================================================================================
# 5, 11  Races
# ======================================================================================

class CheckedReaderWire(ServingWire):
    """A connection on which reading fails if two threads do it at the same time."""

    def _serve(self, server, reader, writer):
        reading = threading.Lock()

        def read1(size, read1=reader.read1):
            assert reading.acquire(blocking=False), "two threads read"
            try:
                return read1(size)
            finally:
                reading.release()

        stream = mock.Mock(spec=["read1", "fileno", "close"], read1=read1,
                           fileno=reader.fileno, close=reader.close)
        super()._serve(server, stream, writer)


class TestRaces(unittest.TestCase):
    """Each docstring names the mistake in mcp_min that makes the test fail."""

    def setUp(self):
        self.server = Server("echo")
        self.server.add_tool(lambda word: word, name="echo")
        switching = switch_threads_often(1e-5)
        switching.__enter__()
        self.addCleanup(switching.__exit__, None, None, None)

    def test_threads_that_subscribe_at_once_share_one_stream(self):
        """Fails if the stream of a resource is looked up and replaced in two steps."""
        server, _ = everything()
        with mock.patch.object(mcp_min, "MAX_REQUESTS", 20), switch_threads_often(), (
                Client(server, mode="modern")) as client:
            for _ in range(100):  # streams that are left open would fill the table
                self.assertEqual(
                    together(*[lambda: client.subscribe("note://x")] * 3), [None] * 3)
                client.unsubscribe("note://x")

    def test_mixed_requests_are_each_answered_once(self):
        """Calls that return at once, sleep, spin, await or report; pings; and some of
        all these are cancelled.  Fails if a response is lost or sent twice, if two
        threads read, if more handlers run than there are workers, or if a thread that
        is to read or to work is not woken."""
        for limit in 1, 5, 64:
            with self.subTest(limit), switch_threads_often(1e-4):
                self.check_mixed(limit, random.Random(limit))

    def check_mixed(self, limit, rng):
        server = Server("s", max_workers=limit)
        running, most = set(), [0]

        @contextlib.contextmanager
        def counted(ctx):
            running.add(ctx.request_id)
            most.append(len(running))
            try:
                yield
            finally:
                running.discard(ctx.request_id)

        def spin(seconds, ctx):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                ctx.report_progress(time.monotonic())

        ways = {"quick": lambda seconds, ctx: None, "spin": spin,
                "sleep": lambda seconds, ctx: time.sleep(seconds),
                "wait": lambda seconds, ctx: ctx.wait(seconds)}

        @server.tool
        def plain(way: str, seconds: float, ctx: Context):
            with counted(ctx):
                ways[way](seconds, ctx)

        @server.tool
        async def coroutine(way: str, seconds: float, ctx: Context):
            with counted(ctx):
                await asyncio.sleep(seconds)

        def mixed_request(n):
            way = rng.choice(["ping", *ways, "coroutine"])
            if way == "ping":
                return message("%d ping" % n)
            return message(f"{n} tools/call") | {"params": {
                "name": "coroutine" if way == "coroutine" else "plain",
                "arguments": {"way": way, "seconds": rng.random() / 200},
                "_meta": {"progressToken": n}}}

        count = 900 if os.environ.get("MCP_MIN_FUZZ") else 300  # 1000 are refused
        cancelled, answered = set(), collections.Counter()
        with CheckedReaderWire(server) as client:
            play(client, "> handshake")
            for n in range(count):
                client.send(mixed_request(n))
                if rng.random() < 0.3:
                    victim = rng.randrange(max(0, n - 9), n + 1)
                    cancelled.add(victim)
                    client.say('notifications/cancelled {"requestId": %d}' % victim)
            while set(range(count)) - set(answered) - cancelled:
                answered.update([client.recv().get("id")])
            answered.update(received.get("id") for received in client.hang_up())
        del answered[None]  # the notifications
        self.assertEqual({*answered.values()}, {1})
        self.assertLessEqual(set(answered), set(range(count)))
        self.assertLessEqual(max(most), limit)

    def test_threads_that_wait_for_an_unthreaded_server_run_its_jobs_one_by_one(self):
        """Fails if two jobs run at once, or (it hangs) if a thread is not told that its
        result has come, or that there is a job."""
        server, alone = Server("s", threaded=False), threading.Lock()
        every_round = threading.Barrier(3)

        @server.tool
        def note():
            assert alone.acquire(blocking=False)
            time.sleep(0.0001)
            alone.release()

        def call():
            for _ in range(60):
                every_round.wait(PATIENCE)
                client.call_tool("note")

        with mock.patch.object(mcp_min, "STEP_SECONDS", 60), Client(server) as client:
            self.assertEqual(together(call, call, call), [None] * 3)

    def test_a_tool_can_be_called_while_it_is_replaced(self):
        """Fails if the old entry is removed before the new one is added."""
        stop = threading.Event()

        def replace():
            while not stop.is_set():
                self.server.add_tool(lambda word: word, name="echo")

        def call():
            try:
                return [client.ask('1 tools/call {"name": "echo", "arguments": '
                                   '{"word": "x"}}', "modern").keys() for _ in range(400)]
            finally:
                stop.set()

        with quiet(), wire(self.server) as client:
            _, responses = together(replace, call)
        self.assertEqual(responses, [{"jsonrpc", "id", "result"}] * 400)

    def test_several_threads_of_one_handler_ask_at_once(self):
        """Fails if a question is counted and added in two steps."""
        @self.server.tool
        def poll(ctx: Context) -> str:
            return "".join(together(*[lambda: ctx.sample("?").text] * 8))

        with switch_threads_often(), Client(
                self.server, mode="legacy",
                sampling_handler=lambda messages, params: "!") as client:
            for _ in range(20):
                self.assertEqual(client.call_tool("poll").text, "!" * 8)

    def test_each_of_fifty_threads_receives_its_own_results(self):
        """Fails if two threads may write at once, or may take the same id.  The long
        words do not fit into a pipe, so the lines of two writers would be mixed."""
        with Client(self.server) as client:
            def work(thread):
                for call in range(20):
                    word = f"{thread}/{call}" * (1 if call % 10 else 12000)
                    if client.call_tool("echo", {"word": word}).text != word:
                        return word

            self.assertEqual(together(*[functools.partial(work, thread)
                                        for thread in range(50)]), [None] * 50)

    def test_a_call_is_either_cancelled_or_has_a_result(self):
        """Fails (an InvalidStateError on stderr, two callbacks) if the check that the
        future is not cancelled and the setting of its result are two steps."""
        with quiet() as stderr, Client(self.server) as client:
            for turn in range(300):
                ended, call = [], client.submit_tool("echo", {"word": str(turn)})
                call.add_done_callback(ended.append)
                if turn % 3:
                    together(call.cancel)
                accepted = call.cancel()
                wait_until(lambda ended=ended, call=call: ended == [call])
                if accepted or call.cancelled():
                    self.assertTrue(call.cancelled())
                else:
                    self.assertEqual(call.result().text, str(turn))
            self.assertEqual(client.call_tool("echo", {"word": "alive"}).text, "alive")
        self.assertEqual(stderr.getvalue(), "")

    def test_a_call_either_times_out_or_has_a_result(self):
        """Fails if a timeout does not remove the request from the table."""
        with Client(self.server) as client:
            def work(thread):
                for turn in range(60):
                    word = f"{thread}/{turn}"
                    with contextlib.suppress(RequestTimeout):
                        text = client.call_tool("echo", {"word": word},
                                                timeout=turn * 1e-4 + 1e-5).text
                        self.assertEqual(text, word)

            self.assertEqual(together(*[functools.partial(work, thread)
                                        for thread in range(4)]), [None] * 4)
            self.assertEqual(client.call_tool("echo", {"word": "alive"}).text, "alive")

    def test_close_while_other_threads_use_every_method(self):
        """Fails (another exception, a thread that hangs) if a method does not expect
        that the connection may be closed at any moment."""
        def race(turn):
            client = Client(everything(drain_seconds=0.01)[0],
                            message_handler=lambda notification: None).connect()
            started = threading.Barrier(9)

            def close():
                started.wait(PATIENCE)
                time.sleep(turn * 5e-4)
                client.close()

            def cancel():
                call = client.submit_tool("hang")
                call.cancel()
                call.result(PATIENCE)

            def repeat_until_closed(use):
                started.wait(PATIENCE)
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        with contextlib.suppress(concurrent.futures.CancelledError):
                            use()

            return together(close, close, *[functools.partial(repeat_until_closed, use)
                                            for use in (
                client.list_tools, client.ping, cancel,
                lambda: client.call_tool("add", {"a": 1}),
                lambda: client.submit_tool("add", {"a": 1}).result(PATIENCE),
                lambda: client.subscribe("note://x"),
                lambda: client.read_resource("note://x"))])

        for turn in range(15):
            self.assertEqual(race(turn), [None] * 9)

    def test_a_done_callback_may_call_the_client(self):
        """Fails (the second call times out) if it runs on the reading thread."""
        received = gate("the second result")

        def call_again(call):
            self.assertEqual(client.call_tool("echo", {"word": "b"}).text, "b")
            received.set()

        with Client(self.server) as client:
            client.submit_tool("echo", {"word": "a"}).add_done_callback(call_again)
            received.wait()

    def test_close_returns_in_every_thread_that_calls_it(self):
        """Fails if two threads wait for the process, or close the same descriptor."""
        client = Client(fake(), mode="legacy").connect()
        self.assertEqual(together(*[client.close] * 4), [None] * 4)
        self.assertEqual(client.exit_code, 0)

    def test_a_client_whose_server_hangs_up_at_once_closes_its_streams(self):
        """Fails (its reader stays open) if the reading thread, when it starts late,
        finds the connection closed and does not read to the end."""
        for _ in range(10):
            (reader, other_end), (rest, writer) = os.pipe(), os.pipe()
            os.close(rest)
            reader, writer = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
            client = Client((reader, writer), mode="legacy")
            self.assertIsInstance(raised(client.connect), ConnectionClosed)
            os.close(other_end)
            wait_until(lambda reader=reader: reader.closed, "it is closed")

    def test_many_threads_restart_an_ended_server_once(self):
        """Fails if the check for the end and the restart are two steps."""
        story = Story(self)
        with Client(fake(story, call="die(1)"), mode="legacy", auto_restart=True,
                    stderr=None) as client:
            raised(client.call_tool, "f")
            results = together(*[lambda: client.request("fake/fence")["fence"]] * 8)
            self.assertEqual(results, [True] * 8)
        self.assertEqual(str(story).count("+"), 2)

    def test_notifications_are_sent_while_listeners_come_and_go(self):
        """Fails (a missing update, a RuntimeError in the loop) if the set of listeners
        is read without the lock under which it changes."""
        for mode in ("legacy", "modern"):
            stop = threading.Event()
            with self.subTest(mode), quiet(), Session(mode) as session:
                client, server = session.client, session.server

                def until_stopped(use, *arguments, stop=stop, **options):
                    while not stop.is_set():
                        use(*arguments, **options)

                def listen(client=client, session=session, stop=stop):
                    try:
                        for number in range(20):
                            client.subscribe(f"note://{number}")
                        for number in range(20):
                            client.unsubscribe(f"note://{number}")
                        client.subscribe("note://x")
                        session.received("notifications/resources/updated")
                    finally:
                        stop.set()

                self.assertEqual(together(
                    listen, functools.partial(until_stopped, server.add_tool,
                                              lambda: "", name="grown"),
                    *[functools.partial(until_stopped, server.notify_resource_updated,
                                        f"note://{uri}") for uri in ("x", *"????")]),
                    [None] * 7)
                self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)


# ======================================================================================
# Conformance: every message of mcp_min against the schema of its revision
# ======================================================================================

NO_SKIP = os.environ.get("MCP_MIN_NO_SKIP") == "1"
SCHEMAS = os.environ.get("MCP_MIN_SCHEMAS") or os.path.join(
    HERE, os.pardir, "shared", "reference", "schema")


def missing(test, what, always=False):
    """Skip the test; but fail it where CI has installed everything."""
    if NO_SKIP and not always:
        test.fail(what + " is missing, and MCP_MIN_NO_SKIP=1 says it must not be")
    test.skipTest(what + " is missing")


class MessageValidator:
    """Validates single messages with the official schema of one revision.

    `count` holds how many messages were valid for each name of the schema.
    """

    def __init__(self, revision, jsonschema):
        path = os.path.join(SCHEMAS, revision, "schema.json")
        with open(path, encoding="utf-8") as file:
            self.schema = json.load(file)
        self.defs_key = "$defs" if "$defs" in self.schema else "definitions"
        self.defs = self.schema[self.defs_key]
        self.draft = (jsonschema.Draft202012Validator if self.defs_key == "$defs"
                      else jsonschema.Draft7Validator)
        self.by_method = {self.method_of(name): name for name in self.defs
                          if self.method_of(name) and name != "ClientNotification"}
        self.requests = {}  # (sender, id): method
        self.count = collections.Counter()

    def method_of(self, name):
        return self.defs[name].get("properties", {}).get("method", {}).get("const")

    def validate(self, name, value):
        schema = {**self.schema, "$ref": f"#/{self.defs_key}/{name}"}
        if self.defs_key == "definitions":
            schema = {"$schema": self.schema["$schema"], "definitions": self.defs,
                      "allOf": [{"$ref": "#/definitions/" + name}]}
        problems = "; ".join(
            "/".join(map(str, error.absolute_path)) + ": " + error.message
            for error in self.draft(schema).iter_errors(value))
        if problems:
            raise AssertionError(
                f"not a {name}: {problems[:2000]}\n{json.dumps(value)[:2000]}")
        self.count[name] += 1

    def result_of(self, method):
        name = self.by_method[method].replace("Request", "Result")
        return name if name in self.defs else "EmptyResult"

    def check(self, sender, message):
        """Validate a message of ``sender`` (">" or "<"), or each message of a batch."""
        if isinstance(message, list):
            for part in message:
                self.check(sender, part)
        elif "method" in message:
            self.check_method(sender, message)
        elif "error" in message:
            self.check_error(message)
        else:
            self.check_result("<" if sender == ">" else ">", message)

    def check_method(self, sender, message):
        """Validate a request or a notification, and that this side may send it."""
        kind = "Request" if "id" in message else "Notification"
        method = message["method"]
        self.validate("JSONRPC" + kind, message)
        if "id" in message:
            self.requests[sender, message["id"]] = method
        if method in self.by_method:
            self.validate(self.by_method[method], message)
            self.validate(("Client" if sender == ">" else "Server") + kind, message)
        elif not method.startswith(("acme/", "fake/")):
            raise AssertionError(f"{method} is not of this revision")

    def check_error(self, message):
        if message.get("id") is None:
            return  # JSON-RPC requires null for an unknown id; the schemas forbid it
        self.validate("JSONRPCError" if "JSONRPCError" in self.defs else
                      "JSONRPCErrorResponse", message)
        name = {-32021: "MissingRequiredClientCapabilityError",
                -32022: "UnsupportedProtocolVersionError"}.get(
                    message["error"]["code"])
        if name in self.defs:
            self.validate(name, message)

    def check_result(self, receiver, message):
        """Validate a response by the request of ``receiver`` that it belongs to."""
        self.validate("JSONRPCResponse" if "JSONRPCError" in self.defs else
                      "JSONRPCResultResponse", message)
        method = self.requests[receiver, message["id"]]
        if message["result"].get("resultType") == "input_required":
            self.validate("InputRequiredResult", message["result"])
        elif method in self.by_method:
            self.validate(self.result_of(method), message["result"])


SINCE = {  # the first revision of the features that the oldest revision does not have
    "elicitation, twice, and once()": "2025-06-18", "a prompt that asks": "2025-06-18",
    "a resource that asks": "2025-06-18", "several questions at once": "2025-06-18",
    "tools/call, blocks": "2025-06-18", "elicitation, url": "2025-11-25",
    "tools/call, bad arguments": "2025-11-25"}

INVALID_REQUESTS = [  # sent to see that the responses with errors are valid
    ("tools/call", {"name": 7}), ("resources/read", {}),
    ("logging/setLevel", {"level": "loud"}),
    ("completion/complete", {"ref": {"type": "ref/odd"}})]


def use_everything(client, session, revision):
    """Use every feature that a client of this revision has, and send the requests of
    INVALID_REQUESTS."""
    for name, use, _ in FEATURES:
        if revision >= SINCE.get(name, ""):
            use(session)
        for record in (session.effects, session.notes, session.logs, session.progress,
                       session.asked):
            del record[:]
    client.set_roots([{"uri": "file:///b"}])
    if revision >= "2025-06-18":
        session.name = None
        client.call_tool("pay", {"amount": 1})
    client.complete("note://{name}", "name", "x", context={"a": "b"})
    raised(client.request, "tools/list", {"cursor": "none"})
    for method, params in INVALID_REQUESTS:
        raised(client.request, method, params)


class TestConformance(unittest.TestCase):
    """Every message that mcp_min sends is valid in the revision of its session."""

    def setUp(self):
        try:
            import jsonschema
        except ImportError:
            missing(self, "the package jsonschema")
        self.jsonschema = jsonschema
        if not os.path.isdir(SCHEMAS):
            missing(self, "the folder of schemas (MCP_MIN_SCHEMAS)", always=True)

    def check(self, revision, lines):
        """Validate what a Relay has recorded; return the number of each message."""
        validator = MessageValidator(revision, self.jsonschema)
        for sender, line in lines:
            message = json.loads(line)
            if sender == "<" or not self.is_invalid_on_purpose(message):
                validator.check(sender, message)
        return validator.count

    @staticmethod
    def is_invalid_on_purpose(message):
        """Is this a request of INVALID_REQUESTS?"""
        if not isinstance(message, dict):
            return False
        params = {key: value for key, value in message.get("params", {}).items()
                  if key != "_meta"}
        return (message.get("method"), params) in INVALID_REQUESTS

    def record(self, mode, options=(), **server_options):
        server, effects = everything(**server_options)
        with Relay(server) as relay:
            session = Session(mode, server, target=relay.streams, **dict(options))
            session.effects = effects
            with session:
                if mode != "auto":
                    self.assertEqual(session.client.protocol_version, mode)
                use_everything(session.client, session,
                               MODERN if mode == "auto" else mode)
            return relay.lines

    def test_a_full_session_of_every_revision(self):
        def check(revision):
            count = self.check(revision, self.record(revision))
            self.assertGreater(sum(count.values()), 150)
            self.assertLessEqual({
                "CallToolRequest", "CallToolResult", "ProgressNotification",
                "CancelledNotification", "LoggingMessageNotification",
                "ToolListChangedNotification", "ResourceUpdatedNotification",
                "CompleteResult", "GetPromptResult", "ListToolsResult"}, set(count))

        run_together(self, check, [[revision] for revision in (*LEGACY, MODERN)])

    def test_auto_mode_is_the_modern_revision(self):
        """With pages and hints for caches."""
        count = self.check(MODERN, self.record(
            "auto", page_size=2, cache_ttl=60, cache_scope="public"))
        self.assertIn("DiscoverResult", count)
        self.assertIn("InputRequiredResult", count)
        self.assertIn("SubscriptionsListenRequest", count)

    def test_a_client_without_capabilities(self):
        for revision in (LATEST, MODERN):
            server, _ = everything()
            with Relay(server) as relay, Client(relay.streams, mode=revision) as client:
                for tool in ("pay", "recite", "where", "visit", "several"):
                    raised(client.call_tool, tool, {"amount": 1})
            count = self.check(revision, relay.lines)
            if revision == MODERN:
                self.assertIn("MissingRequiredClientCapabilityError", count)

    def test_the_probe_and_the_fallback(self):
        with Client(fake()) as client:
            seen = client.request("fake/seen")["seen"]
        for revision, sent, name in ((MODERN, seen[:1], "DiscoverRequest"),
                                     (LATEST, seen[1:], "InitializeRequest")):
            validator = MessageValidator(revision, self.jsonschema)
            validator.check(">", sent)
            self.assertIn(name, validator.count)


class TestSpecification(FakeServers, unittest.TestCase):
    """Sentences of the specification, and of documents that teach the protocol, on both
    ends."""

    # -- errors that name what is wrong ------------------------------------------------

    @clause("2025-11-25/server/prompts",
            "Missing required arguments: `-32602` (Invalid params)")
    @clause("2025-11-25/server/utilities/completion",
            "Missing required arguments: `-32602` (Invalid params)")
    @both_eras
    def test_invalid_params_name_the_field_and_the_issue(self, era):
        server = zoo()
        server.resource("zoo://cage/{n}")(lambda n: "cage")

        @server.method("acme/feed")
        def feed(amount: int):
            return amount

        complete = 'completion/complete {"ref": {"type": "ref/prompt", "name": "%s"}%s}'
        rows = [
            ('tools/call {}', "name"), ('tools/call {"name": ["echo"]}', "name"),
            ('tools/call {"name": "echo", "arguments": []}', "arguments"),
            ('tools/call {"name": "echo", "arguments": 0}', "arguments"),
            ('prompts/get {"name": 5}', "name"),
            ('prompts/get {"name": "greet"}', "name"),
            ('prompts/get {"name": "greet", "arguments": {"name": 7}}', "name"),
            ('prompts/get {"name": "greet", "arguments": {"name": "", "b": "c"}}', "b"),
            ('prompts/get {"name": "greet", "arguments": 7}', "arguments"),
            ('resources/read {}', "uri"), ('resources/read {"uri": 7}', "uri"),
            ('tools/list {"cursor": "none"}', "cursor"),
            ('tools/list {"cursor": 7}', "cursor"),
            ('completion/complete {}', "ref.type"),
            ('completion/complete {"ref": 7}', "ref"),
            ('completion/complete {"ref": {"type": "ref/prompt"}}', "ref.name"),
            ('completion/complete {"ref": {"type": "ref/resource", "uri": 7}}',
             "ref.uri"),
            (complete % ("greet", ""), "argument.name"),
            (complete % ("greet", ', "argument": {"name": "name"}'), "argument.value"),
            (complete % ("none", ', "argument": {"name": "a", "value": ""}'),
             "ref.name"),
            ('acme/feed {}', "amount"), ('acme/feed {"amount": "much"}', "amount")]
        if era == "legacy":
            rows += [('logging/setLevel {}', "level"),
                     ('logging/setLevel {"level": "loud"}', "level"),
                     ('resources/subscribe {}', "uri"),
                     ('{"id": 1, "method": "tools/list", "params": [1]}', "params"),
                     ('initialize x {"protocolVersion": 7}', "protocolVersion"),
                     ('initialize 2025-11-25 {"capabilities": 7}', "capabilities")]
        else:
            rows += [('tools/call {"name": "echo", "requestState": 7}', "requestState"),
                     ('tools/call {"name": "echo", "inputResponses": 7}',
                      "inputResponses"),
                     ('subscriptions/listen', "notifications"),
                     ('subscriptions/listen {"notifications": {"toolsListChanged": 7}}',
                      "toolsListChanged"),
                     *[('tools/list {"_meta": {"%s": 7}}' % (KEY + key), KEY + key)
                       for key in ("protocolVersion", "clientCapabilities",
                                   "clientInfo", "logLevel")]]
        with wire(server) as client:
            if era == "legacy":
                play(client, "> handshake")
            for request, field in rows:
                with self.subTest(request):
                    play(client, '> %s\n< 1 -32602 {"field": "%s", "issue": "......"}'
                         % (request if request[0] == "{" else "1 " + request, field),
                         None if era == "legacy" else era)

    @clause("2025-06-18/server/tools", "Invalid arguments")
    @clause("2025-11-25/server/tools", "Input validation errors")
    def test_invalid_arguments_of_a_tool_name_the_path_of_the_first_problem(self):
        """They are an error up to 2025-06-18; later a result that the model can read,
        with all problems."""
        server = Server("s")

        @server.tool
        def pay(order: Point, items: List[Point], note: str = "") -> str:
            return "paid"

        good = '"order": {"x": 1, "y": 2}, "items": []'
        for arguments, field in (
                ('"order": {"x": 1, "y": 2}', "items"),
                (good.replace("2", '"far"'), "order.y"),
                (good.replace('"x": 1, ', ""), "order.x"),
                (good.replace("[]", '[{"x": 1, "y": 2}, {"x": 1, "y": []}]'),
                 "items[1].y"),
                (good + ', "note": 7', "note"), (good + ', "b": 7', "b")):
            call = '> 1 tools/call {"name": "pay", "arguments": {%s}}\n' % arguments
            with self.subTest(arguments):
                for revision in LEGACY[:3]:
                    play(server, "> handshake " + revision + "\n" + call +
                         '< 1 -32602 {"field": "%s", "issue": "..."}' % field)
                for era in "legacy", "modern":
                    play(server, call + '< 1 {"isError": true, "content": [{"text": '
                         '"...%s..."}]}' % field, era=era)
        text = play(server, """
            > 1 tools/call {"name": "pay", "arguments": {"order": 7, "b": 7}}
            < 1 {"isError": true, "content": [{"text": "$text"}]}
            """, era="modern")["text"]
        self.assertRegex(text, r"(?s)\bitems\b.*\n.*\border\b.*\n.*\bb\b")

    @both_eras
    def test_null_is_as_good_as_absent(self, era):
        """For every optional member of a message."""
        server = zoo()
        server.add_tool(lambda: "now", name="now")
        play(server, """
            > 1 tools/call {"name": "now", "arguments": null, "_meta":
                {"progressToken": null}, "requestState": null, "inputResponses": null}
            < 1 {"content": [{"text": "now"}]}
            > 2 tools/list {"cursor": null}
            < 2 {"tools": "..."}
            > 3 prompts/get {"name": "greet", "arguments": null}
            < 3 -32602 "name"
            > 4 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "Ad"}, "context": null}
            < 4 {"completion": {"values": ["Ada"]}}
            > 5 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "Ad"}, "context":
                {"arguments": null}}
            < 5 {"completion": {"values": ["Ada"]}}
            """, era=era)
        play(server, """
            > 0 initialize 2025-11-25 {"capabilities": null, "clientInfo": null,
                "_meta": null}
            < 0 {}
            > {"id": 1, "method": "ping", "params": null}
            <= 1 {}
            > 2 modern tools/list {"_meta": {"io.modelcontextprotocol/clientInfo": null,
                "io.modelcontextprotocol/logLevel": null}}
            < 2 {"tools": "..."}
            > 3 modern subscriptions/listen {"notifications": {"toolsListChanged": null,
                "resourceSubscriptions": null}}
            < notifications/subscriptions/acknowledged {"notifications": "$nothing"}
            > notifications/cancelled {"requestId": 3}
            """, nothing={})

    def test_a_client_takes_null_for_the_mode_of_a_question(self):
        client = self.fake({**ACCEPT, "mode": LATEST})
        answer = client.request("fake/ask", {"request": {
            "method": "elicitation/create", "params": {
                "mode": None, "message": "?", "requestedSchema": {
                    "type": "object", "properties": {}}}}})["answer"]
        self.assertEqual(answer["result"], {"action": "accept", "content": {}})

    # -- questions ---------------------------------------------------------------------

    @clause("2025-11-25/basic/utilities/progress",
            "Either side can send progress notifications to provide updates about "
            "operation status.")
    def test_progress_of_a_client_extends_the_timeout_of_a_question(self):
        """Its question stays open longer than one that was asked after it.  Fails if a
        question has no token, or progress no effect."""
        server, timed_out = Server("s"), gate("the other question has timed out")
        asked = gate("the question to `slow` has come")

        @server.tool
        def ask(who: str, ctx: Context) -> str:
            try:
                return ctx.elicit(who, str, timeout=1.5).data
            except RequestTimeout:
                timed_out.set()
                return "too late"

        def answer(message, schema, params):
            if message == "silent":
                timed_out.wait()
                return None
            asked.set()
            for progress in itertools.count(1):
                client.notify("notifications/progress", {
                    "progressToken": params["_meta"]["progressToken"],
                    "progress": progress})
                time.sleep(0.02)
                if timed_out.is_set():
                    return {"value": "in time"}

        with Client(server, mode=LATEST, elicitation_handler=answer) as client:
            slow = client.submit_tool("ask", {"who": "slow"})
            asked.wait()
            silent = client.call_tool("ask", {"who": "silent"})
            self.assertEqual(silent.text, "too late")
            self.assertEqual(slow.result(PATIENCE).text, "in time")

    def test_every_question_of_a_session_has_a_token_of_its_own(self):
        names = play(shop(), """
            > 1 prompts/get {"name": "letter"}
            < $a elicitation/create {"_meta": {"progressToken": "$t1"}}
            > 2 tools/call {"name": "haiku"}
            < $b sampling/createMessage {"_meta": {"progressToken": "$t2"}}
            > 3 tools/call {"name": "roots"}
            < $c roots/list {"_meta": {"progressToken": "$t3"}}
            > EOF
            <* 1 -32603
            <* 2 {"isError": true}
            <* 3 {}
            """, era="legacy")
        self.assertEqual(len({names["t1"], names["t2"], names["t3"]}), 3)

    @clause("2025-11-25/client/elicitation",
            "**MUST** include the `elicitationId` established in the original "
            "`elicitation/create` request.")
    @clause("2026-07-28/changelog", "Remove the `notifications/elicitation/complete` "
            "notification and the `elicitationId` field of URL mode elicitation "
            "requests")
    def test_the_id_that_a_handler_gives_a_url_question_is_the_one_sent(self):
        server = Server("s")

        @server.tool
        def visit(ctx: Context) -> str:
            answer = ctx.elicit_url("Sign in", "https://x.io", elicitation_id="mine",
                                    key="q")
            return f"{answer.action} {answer.elicitation_id}"

        names = play(server, """
            > 1 tools/call {"name": "visit"}
            < $q elicitation/create {"mode": "url", "elicitationId": "mine"}
            > $q {"action": "accept"}
            < 1 {"content": [{"text": "accept mine"}]}
            > 2 modern tools/call {"name": "visit"}
            < 2 {"inputRequests": {"q": {"params": "$params"}}}
            > 3 modern tools/call {"name": "visit", "inputResponses":
                {"q": {"action": "accept"}}}
            < 3 {"content": [{"text": "accept None"}]}
            """, era="legacy")
        self.assertEqual(names["params"], {
            "mode": "url", "message": "Sign in", "url": "https://x.io"})

    TOOLS: ClassVar = {"messages": [], "maxTokens": 1, "tools": [
        {"name": "t", "inputSchema": {"type": "object"}}]}

    @clause("2025-11-25/client/sampling",
            "Clients **MUST** declare support for tool use via the `sampling.tools` "
            "capability to receive tool-enabled sampling requests.")
    def test_a_client_samples_with_tools_only_if_it_has_declared_that(self):
        """Nor with `toolChoice`; in the stateless revision the call fails."""
        choice = {"messages": [], "maxTokens": 1, "toolChoice": {"mode": "none"}}
        for declared, outcome in (None, -32602), ({"tools": {}}, None):
            client = self.fake({"sampling_handler": lambda *_: "ok", "mode": LATEST,
                                "capabilities": declared and {"sampling": declared}})
            for params in self.TOOLS, choice:
                answer = client.request("fake/ask", {"request": {
                    "method": "sampling/createMessage", "params": params}})["answer"]
                self.assertEqual(answer.get("error", {}).get("code"), outcome)
        question = {"q": {"method": "sampling/createMessage", "params": self.TOOLS}}
        rounds = [INPUT % (',"inputRequests":' + json.dumps(question)), DONE]
        client = self.fake({"sampling_handler": lambda *_: "ok"}, **MODERN_FAKE)
        error = raised(client.call_tool, "t", {"rounds": rounds})
        self.assertEqual(error.code, -32602)

    @clause("2025-11-25/client/sampling",
            "Servers **MUST NOT** send tool-enabled sampling requests to Clients that "
            "have not declared support for tool use via the `sampling.tools` "
            "capability.")
    def test_a_server_samples_with_tools_only_if_that_is_declared(self):
        server = Server("s")

        @server.tool
        def dig(ctx: Context):
            ctx.sample("Dig.", tools=self.TOOLS["tools"])

        play(server, """
            > 0 initialize 2025-11-25 {"capabilities": {"sampling": {}}}
            < 0 {}
            > 1 tools/call {"name": "dig"}
            < 1 -32600 "sampling" {"requiredCapabilities": {"sampling": {"tools": {}}}}
            > 2 modern tools/call {"name": "dig", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}}
            < 2 -32021 {"requiredCapabilities": {"sampling": {"tools": {}}}}
            """)

    # -- what a client takes, and what it does not send --------------------------------

    def test_other_spellings_of_a_log_message(self):
        """`logging/message` is one; a bare `message` is not."""
        logs = []
        client = self.fake({"log_handler": lambda params: logs.append(params["data"])})
        line = '{"jsonrpc":"2.0","method":"%s","params":{"level":"info","data":"%s"}}'
        say(client, line % ("logging/message", 1), line % ("message", 2),
            line % ("notifications/message", 3), OK)
        wait_until(lambda: "3" in logs)
        self.assertEqual(logs, ["1", "3"])

    @clause("2026-07-28/basic/index",
            "A `resultType` of any value unrecognized by the client **MUST** be "
            "considered invalid.")
    @clause("2026-07-28/basic/index",
            "include any additional values of supported extensions that are advertised "
            "via capabilities.")
    def test_an_extension_may_have_result_types_of_its_own(self):
        line = ('{"jsonrpc":"2.0","id":$id,"result":{"resultType":"task",'
                '"taskId":"7"}}')
        rules = {"discover": "modern()"}
        client = self.fake(
            {"capabilities": {"extensions": {"acme/tasks": {}}}}, **rules)
        self.assertEqual(say(client, line)["taskId"], "7")
        self.assertIn("task", str(raised(say, self.fake(**rules), line)))

    def test_modern_mode_says_what_to_do_about_a_silent_server(self):
        """As the first ones of the handshake are on what they do not know."""
        client = Client(fake(discover=""), mode="modern", timeout=0.3)
        with self.assertRaises(RequestTimeout) as caught:
            client.connect()
        self.assertIn(MODERN, str(caught.exception))
        self.assertIn('mode="auto"', str(caught.exception))

    # -- messages ----------------------------------------------------------------------

    def test_a_line_that_is_not_read_is_answered_with_its_id(self):
        """If the line begins with it; else with null."""
        for value in '"%s"' % ("x" * 3000), "[" * 60 + "]" * 60:
            play(zoo(max_message_bytes=2000, max_depth=50), """
                >> {"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":%(v)s}}
                < {"id": 7, "error": {}}
                >> {"jsonrpc": "2.0", "id": "seven", "method": "x", "params": [%(v)s]}
                < {"id": "seven", "error": {}}
                >> {"jsonrpc":"2.0","method":"tools/list","params":{"x":%(v)s},"id":7}
                < {"id": null, "error": {}}
                >> {"jsonrpc":"2.0","id":1.5,"method":"x","params":{"x":%(v)s}}
                < {"id": null, "error": {}}
                """ % {"v": value})

    # -- an extension, made of what is there -------------------------------------------

    def test_skills(self):
        """The recipe in the documentation of `Server.method`, for the extension
        `io.modelcontextprotocol/skills` (SEP-2640)."""
        skills = {uri: {"uri": uri, "frontmatter": {"name": "brew"}} for uri in (
            "skill://brew-%03d/SKILL.md" % n for n in range(120))}
        server = Server("tea", cache_ttl=60, cache_scope="public", capabilities={
            "extensions": {"io.modelcontextprotocol/skills": {}}})
        _, start, rest = inspect.getdoc(Server.method).partition(
            '    @server.method("skills/list"')
        recipe = textwrap.dedent("\n".join(itertools.takewhile(
            lambda line: not line or line[0] == " ", (start + rest).splitlines())))
        self.assertLessEqual(len(list(filter(str.strip, recipe.splitlines()))), 10)
        module = {"server": server, "SKILLS": skills, "McpError": McpError}
        exec(recipe, module)  # noqa: S102
        for mode, hints in (LATEST, {}), (MODERN, {
                "ttlMs": 60000, "cacheScope": "public"}):
            with self.subTest(mode), Client(server, mode=mode) as client:
                self.assertIn("io.modelcontextprotocol/skills",
                              client.server_capabilities["extensions"])
                page = client.request("skills/list")
                found, pages = page["skills"], 1
                while "nextCursor" in page:
                    page = client.request("skills/list", {"cursor": page["nextCursor"]})
                    found, pages = found + page["skills"], pages + 1
                self.assertEqual((found, pages), ([*skills.values()], 3))
                one = client.request("skills/get", {"uri": found[7]["uri"]})
                self.assertEqual(one["skill"], found[7])
                for result in page, one:
                    self.assertLessEqual(hints.items(), result.items())
                error = raised(client.request, "skills/get", {"uri": "skill://none"})
                self.assertEqual(error.code, -32602)


# ======================================================================================
# Interoperability: the official SDK at the other end
# ======================================================================================

SDK_COMMON = """
class Person(BaseModel):
    name: str

@server.tool()
def add(a: int, b: int = 2) -> int:
    return a + b

@server.tool()
async def count(n: int, ctx: Context) -> str:
    for step in range(1, n + 1):
        await ctx.report_progress(step, n, "step %d" % step)
    return "counted"

@server.resource("note://one", mime_type="text/plain")
def note() -> str:
    return "a note"

@server.prompt()
def review(code: str) -> str:
    return "review " + code
"""

SDK_SERVER = """
import anyio
from typing import Annotated
from pydantic import BaseModel
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import (Completion, CreateMessageResult, ListRootsResult,
                       SamplingMessage, TextContent)

server = MCPServer("sdk", version="9.9", instructions="be kind")
events = []
""" + SDK_COMMON + """
def person() -> Elicit[Person]:
    return Elicit("your name?", Person)

def poem() -> Sample:
    text = TextContent(type="text", text="a poem")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=7)

def places() -> ListRoots:
    return ListRoots()

@server.tool()
def unlucky() -> str:
    raise ValueError("no")

@server.tool()
async def log(ctx: Context) -> str:
    await ctx.info({"x": 1})
    return "logged"

@server.tool()
async def hang() -> str:
    events.append("hanging")
    try:
        await anyio.sleep(60)
    finally:
        events.append("cancelled")

@server.tool()
def list_events() -> str:
    return " ".join(events)

@server.tool()
async def greet(person: Annotated[Person, Resolve(person)]) -> str:
    return "hello " + person.name

@server.tool()
async def recite(poem: Annotated[CreateMessageResult, Resolve(poem)]) -> str:
    return poem.content.text

@server.tool()
async def where(roots: Annotated[ListRootsResult, Resolve(places)]) -> str:
    return " ".join(str(root.uri) for root in roots.roots)

@server.tool()
async def visit(ctx: Context) -> str:
    return (await ctx.elicit_url("sign in", "https://example.org/in", "e1")).action

@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    await ctx.notify_resource_updated(uri)
    if ctx.protocol_version < "2026":
        await ctx.session.send_resource_updated(uri)
    return "touched"

@server.tool()
async def grow(ctx: Context) -> str:
    server.add_tool(lambda: "new", name="grown")
    await ctx.notify_tools_changed()
    if ctx.protocol_version < "2026":
        await ctx.session.send_tool_list_changed()
    return "grown"

@server.resource("blob://one", mime_type="application/octet-stream")
def blob() -> bytes:
    return bytes([0, 255])

@server.completion()
async def complete(ref, argument, context):
    return Completion(values=[argument.value + "thon"], total=1, has_more=False)

server.run()
"""

SDK1_SERVER = """
from pydantic import BaseModel
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent

server = FastMCP("sdk", instructions="be kind")
""" + SDK_COMMON + """
@server.tool()
async def greet(ctx: Context) -> str:
    return "hello " + (await ctx.elicit("your name?", Person)).data.name

@server.tool()
async def recite(ctx: Context) -> str:
    text = TextContent(type="text", text="a poem")
    result = await ctx.session.create_message(
        [SamplingMessage(role="user", content=text)], max_tokens=7)
    return result.content.text

@server.tool()
async def where(ctx: Context) -> str:
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)

server.run()
"""
WITH_SDK_1 = ("server_info", "call_tool", "read_resource", "get_prompt", "progress",
              "elicitation", "sampling", "roots", "ping")  # of WITH_SDK_SERVER


def outcome_of_sdk_cancelling(session):
    call = session.client.submit_tool("hang")
    wait_until(lambda: session.client.call_tool("list_events").text == "hanging")
    call.cancel()
    return wait_until(
        lambda: "cancelled" in session.client.call_tool("list_events").text
        and session.client.call_tool("list_events").text)


def outcome_of_sdk_changes(session):
    before = len(session.client.list_tools())
    session.client.call_tool("grow")
    session.received("notifications/tools/list_changed")
    return len(session.client.list_tools()) - before


def outcome_of_sdk_updates(session):
    session.client.subscribe("note://one")
    session.client.call_tool("touch", {"uri": "note://one"})
    return session.received("notifications/resources/updated")[0]["params"]["uri"]


# (name, what a client of mcp_min does with a server of the SDK, the expected outcome)
WITH_SDK_SERVER = [
    ("server_info", lambda s: (s.client.server_info["name"], s.client.instructions),
     ("sdk", "be kind")),
    ("list_tools", lambda s: names(s.client.list_tools())[:2], ["add", "count"]),
    ("call_tool", lambda s: s.client.call_tool("add", {"a": 1}).structured_content,
     {"result": 3}),
    ("isError", lambda s: type(raised(s.client.call_tool, "unlucky")), ToolError),
    ("list_resources", lambda s: names(s.client.list_resources(), "uri"),
     ["note://one", "blob://one"]),
    ("read_resource", lambda s: s.client.read_resource("note://one")[0].text, "a note"),
    ("read a blob", lambda s: s.client.read_resource("blob://one")[0].data,
     b"\x00\xff"),
    ("get_prompt", lambda s: s.client.get_prompt(
        "review", {"code": "1"})["messages"][0]["content"]["text"], "review 1"),
    ("complete", lambda s: s.client.complete("review", "code", "py")["values"],
     ["python"]),
    ("progress", outcome_of_progress,
     [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]),
    ("log", lambda s: (s.client.call_tool("log").text, wait_until(lambda: s.logs)),
     ("logged", [("info", {"x": 1})])),
    ("elicitation", lambda s: s.client.call_tool("greet").text, "hello Ann"),
    ("sampling", lambda s: s.client.call_tool("recite").text, "roses are red"),
    ("url", lambda s: s.client.call_tool("visit").text, "accept"),
    ("roots", lambda s: s.client.call_tool("where").text, "file:///a"),
    ("cancel", outcome_of_sdk_cancelling, "hanging cancelled"),
    ("list_changed", outcome_of_sdk_changes, 1),
    ("ping", lambda s: raised(s.client.ping), None),
    ("updates", outcome_of_sdk_updates, "note://one"),
]


class SdkCallbacks:
    """The callbacks of an SDK client: they answer questions and record what comes.

    `types` is the SDK's module of protocol types, which differs between 1.x and 2.x.
    """

    def __init__(self, types):
        self.types = types
        self.questions, self.notifications, self.logs = [], [], []

    async def elicit(self, context, params):
        self.questions.append(params.message)
        if getattr(params, "mode", "form") == "url":
            return self.types.ElicitResult(action="accept")
        content = {"value": True} if params.message == "sure?" else {"name": "Ann"}
        return self.types.ElicitResult(action="accept", content=content)

    async def sample(self, context, params):
        received = params.model_dump(by_alias=True)
        assert (received["maxTokens"], received["systemPrompt"]) == (7, "rhyme")
        return self.types.CreateMessageResult(role="assistant", model="m", content={
            "type": "text", "text": "roses are red"})

    async def list_roots(self, context):
        return self.types.ListRootsResult(roots=[self.types.Root(uri="file:///a")])

    async def on_message(self, notification):
        self.notifications.append(notification)

    async def on_log(self, params):
        self.logs.append((params.level, params.logger, params.data))

    def received(self, method):
        return [notification for notification in self.notifications
                if getattr(notification, "method", "") == method]


class TestInterop(unittest.TestCase):
    """The official Python SDK as client and as server: 2.x, or 1.x if it is installed.
    """

    def sdk(self, major):
        try:
            import mcp
        except ImportError:
            missing(self, "the package mcp")
        if hasattr(mcp, "Client") != (major == 2):
            missing(self, f"the package mcp, version {major}", always=True)
        return mcp

    def parameters(self, mcp):
        """How the SDK starts `everything`, a server of mcp_min."""
        module = os.path.splitext(os.path.basename(__file__))[0]
        folders = [os.path.dirname(os.path.abspath(__file__)), HERE]
        code = (f"import sys; sys.path[:0] = {folders}; import {module}; "
                f"{module}.everything()[0].run()")
        return mcp.StdioServerParameters(command=sys.executable, args=["-c", code])

    @staticmethod
    def run_async(main):
        import logging
        with warnings.catch_warnings(), mock.patch.object(logging, "lastResort", None):
            warnings.simplefilter("ignore")
            return asyncio.run(asyncio.wait_for(main, 60))

    def use(self, session, version, rows):
        """Use the server of the SDK as those rows of WITH_SDK_SERVER do."""
        self.assertEqual(session.client.protocol_version, version)
        for name, act, expected in WITH_SDK_SERVER:
            if name in rows:
                with self.subTest(name, version=version):
                    self.assertEqual(act(session), expected)

    def test_our_client_with_an_sdk_server(self):
        """MCPServer has no resources/subscribe, and asks for a URL in sessions only."""
        self.sdk(2)
        rows = {name for name, *_ in WITH_SDK_SERVER}
        for mode, version, less in (("auto", MODERN, "url"), ("modern", MODERN, "url"),
                                    ("legacy", LATEST, "updates")):
            with Session(mode, target=[sys.executable, "-c", SDK_SERVER], stderr=None,
                         log_level="debug") as session:
                self.use(session, version, rows - {less})

    def test_our_client_with_an_sdk_1_server(self):
        self.sdk(1)
        stderr = []
        with Session("auto", target=[sys.executable, "-c", SDK1_SERVER],
                     stderr=stderr.append) as session:
            self.use(session, LATEST, WITH_SDK_1)
        self.assertNotIn("validation error", "".join(stderr))

    def test_an_sdk_client_with_our_server(self):
        mcp = self.sdk(2)
        import mcp_types

        async def main(mode, version):
            callbacks = SdkCallbacks(mcp_types)
            async with mcp.Client(
                    self.parameters(mcp), mode=mode,
                    elicitation_callback=callbacks.elicit,
                    sampling_callback=callbacks.sample,
                    list_roots_callback=callbacks.list_roots,
                    message_handler=callbacks.on_message,
                    logging_callback=callbacks.on_log, log_level="info") as client:
                self.assertEqual(client.protocol_version, version)
                changes = (self.check_changes_by_listening if version == MODERN
                           else self.check_changes_by_subscribing)
                for check in (self.check_lists, self.check_tools, self.check_errors,
                              self.check_resources, self.check_prompts_and_completion,
                              self.check_progress, self.check_logs,
                              self.check_questions, self.check_cancel, changes):
                    with self.subTest(check.__name__):
                        await check(client, callbacks)

        for mode, version in (("auto", MODERN), ("legacy", LATEST), (MODERN, MODERN)):
            with self.subTest(mode=mode):
                self.run_async(main(mode, version))

    # Each check_… is a part of the test above: what a client of SDK 2 does with
    # `everything`.  `callbacks` are those of the client.

    async def check_lists(self, client, callbacks):
        """The SDK does not follow the cursors by itself."""
        for list_page, key, first in (
                (client.list_tools, "tools", "add"),
                (client.list_resources, "resources", "config"),
                (client.list_resource_templates, "resource_templates", "note"),
                (client.list_prompts, "prompts", "review")):
            received, cursor = [], None
            while True:
                page = await list_page(cursor=cursor)
                received += [entry.name for entry in getattr(page, key)]
                cursor = page.next_cursor
                if not cursor:
                    break
            self.assertEqual((received[0], len(received)), (first, len(set(received))))

    async def check_tools(self, client, callbacks):
        self.assertEqual(await self.call(client, "forecast", city="Oslo"),
                         {"city": "Oslo", "days": 3})
        self.assertEqual(await self.call(client, "shout", text="hi"), "HI")
        result = await client.call_tool("mixed", {})
        self.assertEqual([block.type for block in result.content],
                         ["text", "image", "resource_link", "resource"])

    async def check_errors(self, client, callbacks):
        result = await client.call_tool("unlucky", {})
        self.assertEqual((result.is_error, result.content[0].text),
                         (True, "out of luck"))
        result = await client.call_tool("add", {"a": "x"})
        self.assertEqual(result.is_error, True)
        for request in (client.call_tool("nope", {}), client.read_resource("none://x"),
                        client.get_prompt("nope")):
            with self.assertRaises(Exception) as caught:
                await request
            self.assertIn(caught.exception.code, (-32602, -32002))

    async def check_resources(self, client, callbacks):
        for uri, part, value in (("config://app", "text", '{"debug": true}'),
                                 ("blob://one", "blob", "AP8="),
                                 ("note://x", "text", "note x")):
            result = await client.read_resource(uri)
            self.assertEqual(getattr(result.contents[0], part), value)
        self.assertEqual(result.contents[0].mime_type, "text/plain")

    async def check_prompts_and_completion(self, client, callbacks):
        result = await client.get_prompt("review", {"code": "1"})
        self.assertEqual((result.messages[0].role, result.messages[0].content.text),
                         ("user", "review this python: 1"))
        template = callbacks.types.ResourceTemplateReference(uri="note://{name}")
        result = await client.complete(template, {"name": "name", "value": "n"})
        self.assertEqual((len(result.completion.values), result.completion.total,
                          result.completion.has_more), (100, 150, True))

    async def check_progress(self, client, callbacks):
        steps = []

        async def on_progress(*step):
            steps.append(step)

        await client.call_tool("count", {"n": 3}, progress_callback=on_progress)
        await self.until(lambda: len(steps) == 3)
        self.assertEqual(steps, [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")])

    async def check_logs(self, client, callbacks):
        await self.call(client, "tell", levels=["debug", "info", "error"])
        await self.until(lambda: len(callbacks.logs) == 2)
        self.assertEqual(callbacks.logs, [(level, "library", {"level": level})
                                          for level in ("info", "error")])

    async def check_questions(self, client, callbacks):
        self.assertEqual(await self.call(client, "pay", amount=7),
                         {"name": "Ann", "sure": True, "receipt": "receipt 1"})
        self.assertEqual(callbacks.questions, ["your name?", "sure?"])
        effects = await self.call(client, "story")
        self.assertEqual(effects["result"].count(7), 1)
        self.assertEqual(await self.call(client, "visit"), "accept")
        self.assertEqual(await self.call(client, "recite"), "roses are red")
        self.assertEqual(await self.call(client, "where"),
                         {"result": [{"uri": "file:///a"}]})
        result = await client.read_resource("asked://tea")
        self.assertEqual(result.contents[0].text, "tea for Ann")
        result = await client.get_prompt("interview")
        self.assertEqual(result.messages[1].content.text, "Ann")

    async def check_cancel(self, client, callbacks):
        task = asyncio.ensure_future(client.call_tool("hang", {}))
        while "hanging" not in (await self.call(client, "story"))["result"]:
            await asyncio.sleep(0.01)
        task.cancel()
        while "cancelled" not in (await self.call(client, "story"))["result"]:
            await asyncio.sleep(0.01)

    async def check_changes_by_listening(self, client, callbacks):
        async with client.listen(tools_list_changed=True,
                                 resource_subscriptions=["note://x"]) as events:
            await self.call(client, "grow", name="grown")
            event = await events.__anext__()
            self.assertEqual(type(event).__name__, "ToolsListChanged")
            await self.call(client, "touch", uri="note://y")
            await self.call(client, "touch", uri="note://x")
            self.assertEqual((await events.__anext__()).uri, "note://x")

    async def check_changes_by_subscribing(self, client, callbacks):
        await client.subscribe_resource("note://x")
        await self.call(client, "grow", name="grown")
        await self.call(client, "touch", uri="note://y")
        await self.call(client, "touch", uri="note://x")
        await self.until(lambda: callbacks.received("notifications/resources/updated"))
        update, = callbacks.received("notifications/resources/updated")
        self.assertEqual(str(update.params.uri), "note://x")
        self.assertTrue(callbacks.received("notifications/tools/list_changed"))
        await client.unsubscribe_resource("note://x")
        await client.send_ping()

    async def call(self, client, tool, **arguments):
        """What the tool returns: the structured content, or else the text."""
        result = await client.call_tool(tool, arguments)
        self.assertFalse(result.is_error, result)
        return result.structured_content or result.content[0].text

    async def until(self, condition):
        for _ in range(PATIENCE * 100):
            if condition():
                return
            await asyncio.sleep(0.01)
        self.fail(f"the condition was still false after {PATIENCE} s")

    def test_an_sdk_1_client_with_our_server(self):
        mcp = self.sdk(1)
        from mcp import types
        from mcp.client.stdio import stdio_client

        async def main():
            callbacks, steps = SdkCallbacks(types), []

            async def on_progress(*step):
                steps.append(step)

            async def structured(tool, **arguments):
                return (await client.call_tool(tool, arguments)).structuredContent

            async with stdio_client(self.parameters(mcp)) as streams, mcp.ClientSession(
                    *streams, elicitation_callback=callbacks.elicit,
                    sampling_callback=callbacks.sample,
                    list_roots_callback=callbacks.list_roots) as client:
                self.assertEqual((await client.initialize()).protocolVersion, LATEST)
                self.assertEqual((await client.list_tools()).tools[0].name, "add")
                self.assertEqual(await structured("pay", amount=7),
                                 {"name": "Ann", "sure": True, "receipt": "receipt 1"})
                result = await client.call_tool("recite", {})
                self.assertEqual(result.content[0].text, "roses are red")
                self.assertEqual(await structured("where"),
                                 {"result": [{"uri": "file:///a"}]})
                await client.call_tool("count", {"n": 2}, progress_callback=on_progress)
                self.assertEqual(steps, [(1, 2, "step 1"), (2, 2, "step 2")])
                result = await client.read_resource("note://x")
                self.assertEqual(result.contents[0].text, "note x")
                result = await client.get_prompt("review", {"code": "1"})
                self.assertEqual(result.messages[0].content.text,
                                 "review this python: 1")
                await client.send_ping()

        self.run_async(main())


# ======================================================================================
# The fuzzer, and the sentences that tests quote from the specification
# ======================================================================================

class TestFuzz(unittest.TestCase):
    """Valid sessions with random changes.

    The server must keep running, write only valid lines, answer each readable id
    exactly once, and answer the ping at the end.
    """

    STRINGS = ("", "x", "é\u2028\ud800", "\0", "a" * 3000, "1", "2026-07-28",
               "2025-03-26", "tools/call", "notifications/cancelled", "../../etc")
    VALUES = (None, True, False, 0, 1, -1, 1.0, 1.5, 10 ** 30, 1e308, [], {}, [[]],
              {"": None}, [None] * 50)
    MESSAGES = (
        "0 initialize 2025-11-25", "1 initialize 2025-03-26",
        "notifications/initialized", "2 ping", "3 tools/list",
        '4 tools/list {"cursor": "x"}',
        '5 tools/call {"name": "echo", "arguments": {"text": "hi"}}',
        '6 tools/call {"name": "same", "arguments": {"value": {"a": [1, {"b": []}]}}}',
        '7 tools/call {"name": "work", "_meta": {"progressToken": "t"}}',
        '8 tools/call {"name": "ask", "inputResponses": {"k": {"action": "accept"}}}',
        '9 prompts/get {"name": "greet", "arguments": {"name": "x"}}',
        "10 prompts/list",
        '11 resources/read {"uri": "zoo://sign"}', "12 resources/list",
        "13 resources/templates/list", '14 resources/subscribe {"uri": "zoo://sign"}',
        '15 resources/unsubscribe {"uri": "zoo://sign"}',
        '16 logging/setLevel {"level": "debug"}',
        ('17 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"}, '
         '"argument": {"name": "name", "value": "A"}, "context": {"arguments": {}}}'),
        'notifications/cancelled {"requestId": 7}', '$/cancelRequest {"id": 8}',
        'notifications/progress {"progressToken": 1, "progress": 1}',
        "notifications/roots/list_changed", "18 server/discover",
        ('19 subscriptions/listen {"notifications": {"toolsListChanged": true, '
         '"resourceSubscriptions": ["zoo://sign"]}}'), "20 change", "21 nope")

    def server(self):
        server = zoo(max_workers=4, max_message_bytes=1 << 16, drain_seconds=PATIENCE)

        @server.tool
        def work(ctx: Context) -> int:
            ctx.info("working")
            for item in ctx.track(range(3)):
                ctx.report_progress(item + 0.5)
                ctx.wait(0.0001)
            return 3

        @server.tool
        def ask(ctx: Context) -> str:
            return ctx.elicit("Well?", str, key="k").action

        @server.method("change")
        def change(params: dict):
            server.add_tool(lambda: None, name="blink")
            server.remove_tool("blink")
            server.notify_resource_updated("zoo://sign")
            return {}
        return server

    def mutated(self, value, rng):
        """A copy of ``value`` with about one thing changed."""
        if rng.random() < 0.12:
            return rng.choice((self.STRINGS, self.VALUES)[rng.random() < 0.5])
        if isinstance(value, dict):
            copy = {key: self.mutated(item, rng) if rng.random() < 0.5 else item
                    for key, item in value.items()}
            if copy and rng.random() < 0.1:
                del copy[rng.choice(list(copy))]
            if rng.random() < 0.1:
                key = rng.choice(["id", "method", "result", "error", "params", "_meta",
                                  KEY + "logLevel", "cursor", "requestState", ""])
                copy[key] = rng.choice(self.VALUES)
            return copy
        if isinstance(value, list):
            return [self.mutated(item, rng) for item in value]
        return value

    def lines(self, rng):
        """One session as lines of bytes."""
        for _ in range(rng.randrange(5, 60)):
            made = message(rng.choice(self.MESSAGES), modern=rng.random() < 0.4)
            if "id" in made and rng.random() < 0.8:
                made["id"] = rng.choice((rng.randrange(30), str(rng.randrange(30))))
            while rng.random() < 0.5:
                made = self.mutated(made, rng)
            if rng.random() < 0.05:
                made = [made] * rng.randrange(4)
            sent = json.dumps(made, ensure_ascii=rng.random() < 0.7).encode(
                "utf-8", "surrogatepass")
            for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 2))):
                at = rng.randrange(len(sent) + 1)
                inserted = rng.choice((b"", b"\xff", b"\0", b"{", b"}", b'"', b"\\",
                                       b"[" * 300, b"NaN", b"\r", b",", b"7", b" "))
                sent = sent[:at] + inserted + sent[at + rng.randrange(3):]
            yield sent.replace(b"\n", b" ") + b"\n"

    def responses_to(self, sent):
        """(id, certain) of each response to this line; one may be missing if not."""
        try:
            parsed = json.loads(sent.decode("utf-8"), parse_constant=int)
        except (ValueError, RecursionError):
            # A line that is too long or too deep is answered with an id at its start.
            start = re.match(rb'\s*{\s*"jsonrpc"\s*:\s*"2.0"\s*,\s*"id"\s*:\s*'
                             rb'("[^"]*"|[^,]*),', sent)
            with contextlib.suppress(ValueError):
                yield json.loads(start[1]) if start else None, False
            return
        small = len(sent) < 1 << 16 and sent.count(b"[") + sent.count(b"{") < 200
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(item, dict):
                continue
            response = "method" not in item and ("result" in item or "error" in item)
            yield item.get("id"), small and item is parsed and not response
            params = item.get("params")
            if "ancel" in str(item.get("method")) and isinstance(params, dict):
                yield from ((cancelled, False) for cancelled in params.values())

    def test_mutated_sessions(self):
        seed = int(os.environ.get("MCP_MIN_SEED") or time.time_ns() % 10 ** 9)
        end = time.monotonic() + float(os.environ.get("MCP_MIN_FUZZ") or 0.4)
        rng, sessions = random.Random(seed), 0
        with quiet():
            while time.monotonic() < end:
                lines = list(self.lines(random.Random(rng.randrange(10 ** 9))))
                try:
                    self.run_session(lines)
                except BaseException:
                    text = b"".join(lines).decode("utf-8", "backslashreplace")
                    sys.__stderr__.write("\nMCP_MIN_SEED=%d, session %d:\n%s\n" % (
                        seed, sessions, text))
                    raise
                sessions += 1

    def run_session(self, lines):
        """Send the lines, and compare the ids of the responses with those expected."""
        expected, received = collections.Counter(), collections.Counter()
        uncertain = set()

        def key(id):
            id = int(id) if isinstance(id, float) and id.is_integer() else id
            valid = isinstance(id, (int, str)) and not isinstance(id, bool)
            return (type(id), id) if valid else None

        for id, certain in itertools.chain.from_iterable(map(self.responses_to, lines)):
            expected[key(id)] += 1
            if not certain:
                uncertain.add(key(id))
        with wire(self.server()) as client:
            client.send(*lines, b"\n", raw('"the fence" ping'))
            for got in client.hang_up():
                received.update(key(item["id"]) for item in (
                    got if isinstance(got, list) else [got]) if "method" not in item)
        expected[str, "the fence"] = 1
        for id in {*received, *expected} - {None}:
            if id in uncertain:
                self.assertLessEqual(received[id], expected[id], id)
            else:
                self.assertEqual(received[id], expected[id], id)


class TestClauses(unittest.TestCase):
    """The sentences given to `clause`."""

    @unittest.skipUnless(os.environ.get("MCP_SPEC"), "MCP_SPEC is not set")
    def test_every_quoted_clause_stands_in_the_specification(self):
        for page, quote in CLAUSES:
            path = os.path.join(os.environ["MCP_SPEC"], page + ".mdx")
            with self.subTest(page), open(path, encoding="utf-8") as text:
                self.assertIn(quote, " ".join(text.read().split()))


# ======================================================================================
# The README
# ======================================================================================

class TestReadme(unittest.TestCase):
    """Every block of the README runs, and prints what the README shows."""

    @classmethod
    def setUpClass(cls):
        path = os.path.join(HERE, "README.md")
        if not os.path.exists(path):
            raise unittest.SkipTest("there is no README.md here")
        cls.text = pathlib.Path(path).read_text(encoding="utf-8")
        cls.blocks = re.findall(r"^```(\S+)\n((?s:.*?))^```$", cls.text, re.MULTILINE)
        cls.programs = {}
        for text in cls.texts("python"):  # the first line of each names its file
            name = re.match(r"# (\w+\.py)(, continued)?\n", text)[1]
            cls.programs[name] = cls.programs.get(name, "") + text
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        shutil.copy(FILE, os.path.join(cls.folder, "mcp_min.py"))
        for name, text in cls.programs.items():
            cls.write(name, text)

    @classmethod
    def write(cls, name, text):
        """Write a file into the folder of the programs; return its path."""
        path = os.path.join(cls.folder, name)
        pathlib.Path(path).write_text(text, encoding="utf-8")
        return path

    @classmethod
    def texts(cls, language):
        """Its blocks in this language."""
        return [text for block, text in cls.blocks if block == language]

    def test_each_block_is_of_a_kind_that_is_tested(self):
        self.assertEqual({language for language, _ in self.blocks},
                         {"python", "console", "json"})
        self.assertEqual(set(self.programs), {
            "weather.py", "tour.py", "ask.py", "test_weather.py", "addon.py"})

    @UNIX
    def test_each_program_prints_what_its_comments_show(self):
        here = os.getcwd()
        os.chdir(self.folder)
        sys.path.insert(0, self.folder)
        self.addCleanup(sys.path.remove, self.folder)
        self.addCleanup(os.chdir, here)
        for name, text in self.programs.items():
            with self.subTest(name):
                expected = re.findall(r"^ *print\(.*\)  +# (.*)$", text, re.MULTILINE)
                self.assertEqual(len(expected), text.count("print("))
                self.assertEqual(self.printed(text), expected)

    def printed(self, text):
        module = self.module(text)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(compile(text, "README.md", "exec"), vars(module))  # noqa: S102
                for name, test in [*vars(module).items()]:
                    if name.startswith("test_"):
                        test()
            finally:
                sys.modules.pop("weather", None)
        return out.getvalue().splitlines()

    def module(self, text):
        module = type(sys)("readme")
        sys.modules["readme"] = module  # dataclasses look there
        self.addCleanup(sys.modules.pop, "readme", None)
        return module

    @unittest.skipUnless(os.name == "posix", "needs a shell")
    def test_each_command_prints_what_the_readme_shows(self):
        """Those of the console blocks, and those that its sentences name."""
        self.write("plain.py", "def add(a: int) -> int:\n    return a + 1\n")
        os.chmod(self.write("python3", '#!/bin/sh\nexec "%s" "$@"\n' % sys.executable),
                 0o755)
        env = {**os.environ, "PATH": self.folder + os.pathsep + os.environ["PATH"]}

        def run(command, _, expected):
            done = subprocess.run(
                command, shell=True, check=False, cwd=self.folder, env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout)
            if expected:
                self.assertEqual(done.stdout.decode(), expected)

        shown = [part.partition("\n") for part in re.split(
            r"^\$ ", "".join(self.texts("console")), flags=re.MULTILINE)[1:]]
        named = re.findall(r"`(python3 mcp_min\.py [^`]+)`", self.text)
        self.assertTrue(shown and named)
        run_together(self, run, [*shown, *((command, "", "") for command in named)])

    @unittest.skipUnless(os.path.exists("/usr/bin/sha256sum"), "needs sha256sum")
    def test_the_sum_that_is_stored_verifies_the_file(self):
        store, check = re.findall("`(sha256sum [^`]+)`", self.text)
        done = subprocess.run(f"{store} && {check}", shell=True, cwd=self.folder,
                              stdout=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (0, b"mcp_min.py: OK\n"))

    def test_the_add_on_serves_a_host_on_the_main_thread_of_its_application(self):
        addon = self.module("addon")
        exec(self.programs["addon.py"], vars(addon))  # noqa: S102
        entry = json.loads(self.texts("json")[-1])["mcpServers"]["studio"]
        command, path = entry["args"][-2:]
        home = mock.patch.dict(os.environ, HOME=self.folder, USERPROFILE=self.folder)
        with home:
            listener = addon.start()
            self.addCleanup(listener.close)
            with Client([*PROGRAM, command, os.path.expanduser(path)]) as client:
                call = client.submit_tool("where")
                while not call.done():  # this is the application's main loop
                    time.sleep(addon.run_jobs() / 50)
                self.assertEqual(call.result().text, threading.current_thread().name)

    def test_the_configuration_it_shows_can_be_loaded(self):
        for text in self.texts("json"):
            for entry in mcp_min.load_config(self.write("mcp.json", text)).values():
                self.assertEqual(entry["command"], "python3")

    def test_the_limits_it_names_are_those_of_the_code(self):
        defaults = inspect.signature(mcp_min.Server).parameters
        self.assertEqual(defaults["max_message_bytes"].default, 16 << 20)
        self.assertIn("| 16 MiB, nested %d deep |" % defaults["max_depth"].default,
                      self.text)
        self.assertIn("| handlers at once | %d |" % defaults["max_workers"].default,
                      self.text)
        defaults = inspect.signature(Client).parameters
        for name, value in re.findall(r"^\| `(\w+)=\"?(\w+)\"?`", self.text,
                                      re.MULTILINE):
            default = defaults[name].default
            self.assertEqual(default, type(default)(value), name)


# ======================================================================================
# The house: how the file is built
# ======================================================================================

def sections(source):
    """{number: (title, first line, last line)} from the banners."""
    found = [(int(m[1]), m[2], source[:m.start()].count("\n") + 1)
             for m in re.finditer(r"^# -- (\d+)\. (.+?) -+$", source, re.MULTILINE)]
    ends = [line for _, _, line in found[1:]] + [source.count("\n") + 2]
    return {number: (title, line, end)
            for (number, title, line), end in zip(found, ends)}


def code_in(doc, first):
    """The indented lines of a docstring from the one that begins with `first` on."""
    lines = inspect.cleandoc(doc).splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith(first))
    indent = len(lines[start]) - len(lines[start].lstrip())
    taken = itertools.takewhile(
        lambda line: not line.strip() or line.startswith(" " * indent), lines[start:])
    return textwrap.dedent("\n".join(taken)) + "\n"


class TestReference(unittest.TestCase):
    """What the docstrings show runs; what they list is what the code has."""

    def test_a_server_behind_http_answers_in_both_eras(self):
        """The recipe of Server.serve."""
        from http.client import HTTPConnection
        weather = types.ModuleType("weather")
        weather.server = Server("weather")
        weather.server.tool(lambda city: "%s: sun" % city, name="forecast")
        recipe, _, last = code_in(Server.serve.__doc__, "import io, json").rpartition(
            "ThreadingHTTPServer(")
        self.assertIn("127.0.0.1", last)
        module = {}
        with mock.patch.dict(sys.modules, weather=weather):
            exec(recipe, module)  # noqa: S102
        module["Handler"].log_message = lambda *_: None
        http = module["ThreadingHTTPServer"](("127.0.0.1", 0), module["Handler"])
        self.addCleanup(http.server_close)
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(http.shutdown)

        def post(text, modern, headers):
            connection = HTTPConnection(*http.server_address, timeout=PATIENCE)
            with contextlib.closing(connection):
                connection.request("POST", "/mcp", json.dumps(message(text, modern)),
                                   headers)
                response = connection.getresponse()
                return response.status, response.read()

        call = '1 tools/call {"name": "forecast", "arguments": {"city": "Oslo"}}'
        version = "MCP-Protocol-Version"
        for text, modern, headers, status, part in (
                (call, True, {version: MODERN}, 200, b"Oslo: sun"),
                (call, False, {version: LATEST}, 200, b"Oslo: sun"),
                ("1 initialize 2025-06-18", False, {}, 200, b'"2025-06-18"'),
                ("notifications/initialized", False, {version: LATEST}, 202, b""),
                (call, True, {"Host": "evil.example"}, 403, b""),
                (call, True, {"Origin": "https://evil.example"}, 403, b"")):
            with self.subTest(text, headers=headers):
                received = post(text, modern, headers)
                self.assertEqual(received[0], status)
                self.assertIn(part, received[1])

    def test_a_lifespan_is_shared_by_the_handlers(self):
        ended = []

        class Database:
            @contextlib.asynccontextmanager
            async def opened(self):
                yield self
                ended.append(True)

            async def count(self, item):
                return len(item)

        module = {"contextlib": contextlib, "Server": Server, "Context": Context,
                  "open_database": lambda: Database().opened()}
        exec(code_in(Server.__doc__, "@contextlib"), module)  # noqa: S102
        with Client(module["server"]) as client:
            self.assertEqual(client.call_tool("stock", {"item": "salt"}).data, 4)
        self.assertEqual(ended, [True])

    def test_schemas_by_hand_and_computed_lists(self):
        module = {"prompts_of": lambda info: [{"name": info["name"]}],
                  "server": Server("raw", capabilities={"prompts": {}})}
        exec(code_in(Server.tool.__doc__, "server.tool(lambda"), module)  # noqa: S102
        exec(code_in(Server.middleware.__doc__, "@server.middleware"), module)  # noqa: S102
        info = {"name": "c", "version": "1"}
        with Client(module["server"], client_info=info) as client:
            self.assertEqual(client.call_tool("raw", {"a": [1]}).data, {"a": [1]})
            self.assertEqual(client.list_prompts(), [{"name": "c"}])

    def test_the_revisions_and_limits_that_are_listed(self):
        doc = " ".join(Server.__doc__.split())
        for number in (mcp_min.MAX_REQUESTS, mcp_min.MAX_ID, mcp_min.MAX_STEPS,
                       mcp_min.MAX_URI):
            self.assertIn(f"{number:,}", doc)
        for size in mcp_min.MAX_BACKLOG_BYTES, mcp_min.MAX_UNREAD_BYTES:
            self.assertIn("%d MiB" % (size >> 20), doc)
        for name, row in mcp_min.METHODS.items():
            until = row.until in mcp_min.REVISIONS and name in doc
            since = row.since and name in doc
            self.assertEqual(bool(until or since), row.since + row.until != "9999" and
                             name != "resources/unsubscribe", name)
        self.assertLessEqual(set(mcp_min.REVISIONS), set(re.findall(r"\d{4}-\d\d-\d\d",
                                                                    doc)))
        doc = " ".join(Client.__doc__.split())
        for number in mcp_min.MAX_ENTRIES, mcp_min.MAX_QUESTIONS, mcp_min.MAX_ROUNDS:
            self.assertIn(f" {number:,}", doc)


PUBLIC_MEMBERS = {
    "Server": "tool resource prompt completion method middleware add_tool remove_tool "
              "add_resource remove_resource add_prompt remove_prompt "
              "notify_resource_updated run serve listen",
    "Context": "request_id meta client_info client_capabilities protocol_version "
               "lifespan_context cancelled cancel_reason check_cancelled wait "
               "report_progress track log debug info notice warning error critical "
               "alert emergency notify elicit elicit_url sample list_roots ask once "
               "ping read_resource",
    "Client": "server_info server_capabilities instructions protocol_version connect "
              "close stderr_tail exit_code request submit notify ping "
              "call_tool submit_tool list_tools list_resources "
              "list_resource_templates list_prompts read_resource subscribe "
              "unsubscribe get_prompt complete set_logging_level set_roots",
}


class TestHouse(unittest.TestCase):
    """The rules of the source: its order, its names, its sizes."""

    @classmethod
    def setUpClass(cls):
        cls.source = pathlib.Path(mcp_min.__file__).read_text(encoding="utf-8")
        cls.tree = ast.parse(cls.source)
        cls.nodes = list(ast.walk(cls.tree))
        cls.sections = sections(cls.source)

    def section_of(self, line):
        return next((number for number, (_, start, end) in self.sections.items()
                     if start <= line < end), 0)

    @classmethod
    def executed_nodes(cls):
        """Every node except annotations, which may name what stands below."""
        notes = [getattr(node, field, None) for node in cls.nodes
                 for field in ("annotation", "returns")]
        excluded = {id(part) for note in notes if note for part in ast.walk(note)}
        return [node for node in cls.nodes if id(node) not in excluded]

    def test_the_docstring_lists_the_sections_in_their_order(self):
        listed = re.findall(r"^    (\d+) +([A-Z][\w, ]+?)  ", mcp_min.__doc__,
                            re.MULTILINE)
        self.assertEqual([(int(n), title) for n, title in listed],
                         [(n, title) for n, (title, _, _) in self.sections.items()])

    def test_the_docstring_tells_how_long_its_reading_paths_are(self):
        """Two paths; the lines of each are given in hundreds."""
        paths = re.findall(r"sections? ([\d, and]+) \((\d,\d00)\s+lines\)",
                           mcp_min.__doc__)
        self.assertEqual(len(paths), 2)
        for numbers, lines in paths:
            spans = [self.sections[int(n)] for n in re.findall(r"\d+", numbers)]
            actual = sum(end - start for _, start, end in spans)
            self.assertEqual(int(lines.replace(",", "")), round(actual, -2), numbers)

    def test_one_function_prints(self):
        """So that what came from the peer is escaped: `cli_print` on the command line,
        `warn` through `write_stderr` in the library."""
        writers = {"print", "sys.stdout.write", "sys.stderr.write", "input"}
        for function in self.nodes:
            if isinstance(function, ast.FunctionDef) and (
                    function.name not in ("cli_print", "write_stderr")):
                called = {ast.unparse(call.func) for call in ast.walk(function)
                          if isinstance(call, ast.Call)}
                self.assertEqual(called & writers, set(), function.name)

    def test_a_section_uses_only_names_of_those_above_it(self):
        defined = {}
        for node in self.tree.body:
            targets = getattr(node, "targets", [getattr(node, "target", node)])
            for target in targets:
                name = getattr(target, "id", None) or getattr(target, "name", None)
                defined[name] = self.section_of(node.lineno)
        self.assertEqual(defined["Server"], 10)
        upward = sorted({
            (node.id, node.lineno) for node in self.executed_nodes()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            and defined.get(node.id, 0) > self.section_of(node.lineno)})
        self.assertEqual(upward, [])

    def test_the_docstring_names_what_exists(self):
        doc = mcp_min.__doc__
        names = {*re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\b[a-z]+_[a-z_]+", doc)}
        names |= {name.rpartition(".")[2] for name in re.findall("`([A-Za-z_.]+)`", doc)}
        code = self.source[self.source.index("from __future__"):]
        self.assertEqual(names - {*re.findall(r"\w+", code)}, set())

    def test_every_method_has_its_handler_and_every_handler_its_row(self):
        self.assertEqual(set(mcp_min.METHOD_HANDLERS), set(mcp_min.METHODS))

    def test_every_public_name_is_documented(self):
        """In whole sentences: each docstring ends its first paragraph with a stop."""
        for name in mcp_min.__all__:
            thing = getattr(mcp_min, name)
            members = vars(thing).items() if isinstance(thing, type) else ()
            documented = [thing] if callable(thing) else []
            documented += [member for key, member in members if key[0] != "_" and (
                callable(member) or isinstance(member, property))]
            for thing in documented:
                first = (thing.__doc__ or "").split("\n\n")[0].rstrip()
                self.assertTrue(first.endswith((".", ":")), (name, thing))

    def test_a_public_class_shows_users_what_is_for_them(self):
        """Whatever else its neighbours in the file use begins with an underscore."""
        for name, members in PUBLIC_MEMBERS.items():
            [body] = [node.body for node in self.tree.body
                      if getattr(node, "name", "") == name]
            found = set()
            for node in body:
                targets = getattr(node, "targets", [getattr(node, "target", node)])
                found |= {getattr(part, "id", getattr(part, "name", "_"))
                          for target in targets
                          for part in getattr(target, "elts", [target])}
            with self.subTest(name):
                self.assertEqual({n for n in found if n[0] != "_"}, {*members.split()})

    @unittest.skipUnless(hasattr(sys, "stdlib_module_names"), "since Python 3.10")
    def test_nothing_but_the_standard_library_is_imported(self):
        imported = [node for node in self.nodes
                    if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {name.split(".")[0] for node in imported for name in (
            [node.module] if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names])}
        self.assertLessEqual(names, {*sys.stdlib_module_names, "annotationlib"})  # 3.14

    def test_importing_loads_only_what_is_used_and_has_no_side_effect(self):
        with process("""
                costly = {'inspect', 'dataclasses', 'logging', 'subprocess', 'asyncio',
                          'socket', 'argparse', 'concurrent.futures', 'base64',
                          'hashlib', 'datetime'} & sys.modules.keys()
                if sys.implementation.name == "pypy":
                    costly -= {"inspect", "dataclasses"}  # its json loads them
                assert not costly, costly
                import signal
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
                Server("idle").add_tool(lambda: None, name="t")
                assert threading.active_count() == 1
                """) as child:
            self.assertEqual((child.exit(), child.stderr), (0, ""))

    def test_it_works_from_a_zip_under_another_name_and_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "vendored.zip")
            with zipfile.ZipFile(path, "w") as bundle:
                bundle.write(mcp_min.__file__, "acme/_vendor/mcp.py")
                for package in "acme/__init__.py", "acme/_vendor/__init__.py":
                    bundle.writestr(package, "")
                bundle.write(mcp_min.__file__, "again.py")
            code = ("import sys; sys.path.insert(0, %r); import again; "
                    "from acme._vendor import mcp; s = mcp.Server('s'); "
                    "s.tool(lambda text: text, name='echo'); "
                    "c = again.Client(s).connect(); "
                    "print(c.call_tool('echo', {'text': 'hi'}).text); c.close()") % path
            done = subprocess.run([sys.executable, "-I", "-S", "-c", code],
                                  capture_output=True)
        self.assertEqual((done.stdout.split(), done.stderr), ([b"hi"], b""))


# ======================================================================================
# Running them
# ======================================================================================

class Parts(unittest.TestSuite):
    """All tests, run by several processes, because most of them wait."""

    PROCESSES = 6

    def run(self, result, debug=False):
        tests = [*self.split()]
        numbers, todo = os.pipe()  # each process takes the next number
        os.write(todo, b"".join(n.to_bytes(2, "big") for n in range(len(tests))))
        os.close(todo)
        children = [run_in_child(tests, numbers, result.failfast)
                    for _ in range(self.PROCESSES - 1)]
        try:
            run_next(tests, numbers, result)
        finally:
            for child, reader in children:
                with open(reader, encoding="utf-8") as report:
                    add_report(result, report.read())
                os.waitpid(child, 0)
        return result

    def split(self):
        """Its tests, but a class whose tests share a fixture as a whole."""
        for suite in self:
            shared = any("setUpClass" in vars(type(test)) for test in suite)
            yield from [suite] if shared else suite


def run_next(tests, numbers, result):
    """Run tests until none is left."""
    for number in iter(lambda: os.read(numbers, 2), b""):
        tests[int.from_bytes(number, "big")].run(result)
        if result.shouldStop:  # --failfast: for the others, too
            os.read(numbers, 2 * len(tests))


def run_in_child(tests, numbers, failfast):
    """Fork a process that runs tests; the outcomes come out of a pipe, as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    try:
        os.close(reader)
        result = unittest.TestResult()
        result.failfast = failfast
        run_next(tests, numbers, result)
        with open(writer, "w", encoding="utf-8") as report:
            json.dump([result.testsRun, *(
                [[str(test), text] for test, text in outcomes] for outcomes in (
                    result.failures, result.errors, result.skipped))], report)
    finally:
        os._exit(0)


def add_report(result, report):
    """Add the outcomes of another process to a result."""
    count, *outcomes = json.loads(
        report or '[1, [], [["a part of the tests", "its process has died"]], []]')
    result.testsRun += count
    lists = result.failures, result.errors, result.skipped
    for outcomes_of_kind, reported in zip(lists, outcomes):
        outcomes_of_kind += [(unittest.FunctionTestCase(print, description=name), text)
                             for name, text in reported]


def load_tests(loader, tests, pattern):
    """What unittest runs if no classes are named (but perhaps patterns, by ``-k``)."""
    return Parts(tests) if hasattr(os, "fork") else tests


if __name__ == "__main__":
    unittest.main()
