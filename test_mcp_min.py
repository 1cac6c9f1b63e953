"""The tests of mcp_min: ``python3 test_mcp_min.py``, with the standard library alone.

Most tests are transcripts, which `play` reads: ``>`` is a line that the client sends,
``<`` is the message that must come next, and after the last line nothing more may come.
No test sleeps to prove that nothing comes: it sends one more request, a *fence*, and
requires that the next message is the response to it.

* The classes carry the numbers of the sections of mcp_min.py.
* ``@clause(page, quote)`` names the sentence of the specification that a test proves;
  with ``MCP_SPEC=docs/specification`` one test checks that the page contains it.
* ``MCP_MIN_FUZZ=SECONDS`` makes the fuzz tests run longer, ``MCP_MIN_SEED=N`` repeats
  a run of them.
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
    NamedTuple,
    NewType,
    Optional,
    Set,
    Tuple,
    TypedDict,
    Union,
)
from unittest import mock

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
PATIENCE = 10  # seconds after which a test stops waiting, and fails

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

    def recv(self, timeout=PATIENCE):
        """The next message, or None at the end of the stream."""
        try:
            line = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError("no message within %s s" % timeout) from None
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


def wire(server):
    """A connection to ``server``, which serves it in a thread over a pair of pipes."""
    return ServingWire(server)


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

    def exit(self, timeout=PATIENCE):
        """Wait until the process has ended; return its exit status."""
        return self.child.wait(timeout)

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
    that contains x, and ``"$x"`` is the value that first matched this name.  Names are
    also replaced in what is sent.  With ``era`` "legacy" the handshake comes first,
    with "modern" every request gets the `_meta`.  After the last line nothing more may
    come: not before a fence and, with a Server, not until `serve` returns.  Returns the
    named values.
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
    def run_in_both(self):
        for era in ("legacy", "modern"):
            with self.subTest(era=era):
                test(self, era)
    run_in_both.__name__, run_in_both.__doc__ = test.__name__, test.__doc__
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
        ("blank line", b"  \t \n", ""),
        ("CRLF alone", b"\r\n", ""),
        ("CRLF ends a line", PING + b"\r\n", "<= 1 {}"),
        ("CR does not end a line", PING + b"\r" + PING + b"\n", PARSE_ERROR),
        ("U+2028, U+2029 and U+0085 are text",
         echo_line(6, "a\u2028b\u2029c\u0085d".encode()) + b"\n",
         '< 6 {"content": [{"type": "text", "text": "a\\u2028b\\u2029c\\u0085d"}]}'),
        ("not UTF-8", echo_line(3, b"\xff\xfe") + b"\n", PARSE_ERROR),
        ("encoded surrogate", echo_line(3, b"\xed\xa0\x80") + b"\n", PARSE_ERROR),
        ("overlong encoding", echo_line(3, b"\xc0\xaf") + b"\n", PARSE_ERROR),
        ("escaped lone surrogate", echo_line(9, b"\\ud800") + b"\n",
         '< 9 {"content": [{"text": "\\ud800"}]}'),
        ("truncated message", PING[:-1] + b"\n", PARSE_ERROR),
        ("two messages on a line", PING + PING + b"\n", PARSE_ERROR),
        ("garbage behind a message", PING + b" x\n", PARSE_ERROR),
        ("a word", b"hello\n", PARSE_ERROR),
        ("a banner", b"Welcome to bash 5.2!\n", PARSE_ERROR),
        ("a header of another framing", b"Content-Length: 52\n", PARSE_ERROR),
        ("NaN", line(1, "ping", x=float("nan")) + b"\n", PARSE_ERROR),
        ("Infinity", line(1, "ping", x=float("inf")) + b"\n", PARSE_ERROR),
        ("-Infinity", line(1, "ping", x=-float("inf")) + b"\n", PARSE_ERROR),
        ("number of 5,000 digits",
         line(1, "ping", x=7)[:-2] + b"7" * 4999 + b"}}\n", PARSE_ERROR),
        ("id of 5,000 digits",
         b'{"jsonrpc":"2.0","method":"ping","id":' + b"7" * 5000 + b"}\n", PARSE_ERROR),
        ("deep lists", b"[" * 100000 + b"\n", PARSE_ERROR),
        ("deep lists, closed", b"[" * 100000 + b"]" * 100000 + b"\n", PARSE_ERROR),
        ("deep objects", b'{"a":' * 100000 + b"\n", PARSE_ERROR),
        ("deep arguments", nested_line(1, b"[", b"]", 100000) + b"\n", PARSE_ERROR),
        ("deep arguments, mixed", nested_line(1, b'{"a":[', b"]}", 50000) + b"\n",
         PARSE_ERROR),
        ("deep nesting behind a quoted bracket",
         nested_line(1, b'{"\\"]]}":[', b"]}", 1000) + b"\n", PARSE_ERROR),
        ("100 levels are allowed", nested_line(17, b"[", b"]", 100) + b"\n", "< 17 {}"),
        ("brackets in a string are not levels",
         echo_line(17, b"[{" * 2000) + b"\n", "< 17 {}"),
        ("brackets behind an escaped quote are not levels",
         echo_line(17, b'\\"' + b"[{" * 2000) + b"\n", "< 17 {}"),
        ("unescaped tab in a string", echo_line(1, b"\t") + b"\n", PARSE_ERROR),
        ("unescaped NUL in a string", echo_line(1, b"\0") + b"\n", PARSE_ERROR),
        ("UTF-16", PING.decode().encode("utf-16-le") + b"\n", PARSE_ERROR),
        ("the last of duplicate keys counts",
         b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}\n', "<= 2 {}"),
        ("single quotes", PING.replace(b'"', b"'") + b"\n", PARSE_ERROR),
        ("a comment", PING + b" // ping\n", PARSE_ERROR),
        ("trailing comma", PING[:-1] + b",}\n", PARSE_ERROR),
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

    def test_a_number_too_big_for_a_float_gets_a_response(self):
        with quiet(), wire(zoo()) as client:
            play(client, "> handshake")
            huge = line(14, "tools/call", name="same", arguments={"value": {"x": 7}})
            client.send(huge.replace(b"7}", b"1e999}") + b"\n")
            self.assertIn(client.recv()["id"], (14, None))

    def test_a_byte_order_mark_at_the_start_is_ignored(self):
        with wire(zoo()) as client:
            client.send(b"\xef\xbb\xbf" + PING + b"\n")
            play(client, "<= 1 {}")

    def test_deep_nesting_does_not_overflow_a_small_thread_stack(self):
        for size in 256 * 1024, 1024 * 1024:
            normal = threading.stack_size(size)
            try:
                with wire(zoo()) as client:
                    client.send(nested_line(1, b"[", b"]", 100000) + b"\n")
                    client.send(b"[" * 100000 + b"\n")
                    play(client, PARSE_ERROR + "\n" + PARSE_ERROR)
            finally:
                threading.stack_size(normal)

    def test_ten_megabytes_arrive_intact(self):
        with wire(zoo()) as client:
            play(client, "> handshake")
            text = "0123456789abcde\n" * (10 << 16)
            client.say('21 tools/call {"name": "echo", "arguments": {"text": %s}}'
                       % json.dumps(text))
            self.assertEqual(client.recv()["result"]["content"][0]["text"], text)

    def test_a_line_that_is_too_long_is_skipped(self):
        with wire(zoo(max_message_bytes=1000)) as client:
            client.send(b"x" * 5000)
            client.send(b"x" * 5000 + b"\n")
            play(client, "< null -32801")
            client.send(PING + b" " * (1000 - len(PING)) + b"\n")
            play(client, "<= 1 {}")
            client.send(PING + b" " * 1000 + b"\n")
            play(client, "< null -32801")

    def test_a_message_may_arrive_one_byte_at_a_time(self):
        with wire(zoo()) as client:
            for byte in PING + b"\r\n":
                client.send(bytes([byte]))
            play(client, "<= 1 {}")

    def test_a_thousand_messages_may_arrive_in_one_write(self):
        with wire(zoo()) as client:
            client.send(b"\n".join(line(n, "ping") for n in range(1000)) + b"\n")
            ids = [client.recv()["id"] for _ in range(1000)]
            self.assertEqual(sorted(ids), list(range(1000)))

    def test_the_last_line_needs_no_newline(self):
        with wire(zoo()) as client:
            client.send(PING)
            self.assertEqual(client.hang_up(), [message("1 {}")])

    @clause("2025-11-25/basic/transports", "**MUST NOT** contain embedded newlines")
    def test_text_is_escaped_so_that_a_line_is_ascii_without_a_newline(self):
        play(zoo(), r"""
            > 1 tools/call {"name": "echo", "arguments": {"text":
                "a\nb\r\u2028\u0000é😀"}}
            < 1 {"content": [{"text": "a\nb\r\u2028\u0000é😀"}]}
            """, era="modern")

    def test_serve_takes_streams_in_memory(self):
        written = io.BytesIO()
        zoo().serve(io.BytesIO(PING + b"\n"), written)
        self.assertEqual(checked(written.getvalue()), message("1 {}"))

    def test_serve_takes_one_stream_of_a_socket_for_both_directions(self):
        client, server = socket.socketpair()
        with client, server, server.makefile("rwb") as stream:
            client.sendall(PING + b"\n")
            client.shutdown(socket.SHUT_WR)
            zoo().serve(stream, stream)
            self.assertEqual(checked(client.recv(1000)), message("1 {}"))

    def test_serve_takes_unbuffered_pipes(self):
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        os.write(client_writes, PING + b"\n")
        os.close(client_writes)
        with open(server_reads, "rb", 0) as reader, (
                open(server_writes, "wb", 0)) as writer:
            zoo().serve(reader, writer)
            self.assertEqual(checked(os.read(client_reads, 1000)), message("1 {}"))
        os.close(client_reads)

    @unittest.skipIf(os.name == "nt", "a pipe of 4096 bytes")
    def test_a_slow_reader_receives_whole_lines(self):
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        os.write(client_writes, b"\n".join([
            json.dumps(message("0 initialize")).encode(),
            echo_line(1, b"x" * 20000), echo_line(2, b"y" * 3000)]))
        os.close(client_writes)
        with open(server_reads, "rb") as reader, open(server_writes, "wb") as writer:
            serving = threading.Thread(target=zoo().serve, args=(reader, writer))
            serving.start()
            received = bytearray()
            while received.count(b"\n") < 3:
                received += os.read(client_reads, 1)
            serving.join()
        os.close(client_reads)
        messages = [checked(bytes(row)) for row in received.splitlines(True)]
        texts = [response["result"]["content"][0]["text"] for response in messages[1:]]
        self.assertEqual(sorted(map(len, texts)), [3000, 20000])


# ======================================================================================
# 5  Connection
# ======================================================================================

class Test5Connection(unittest.TestCase):
    """One end of a connection: ids, responses, cancellation, progress."""

    def waiter(self, **options):
        """A server whose tool `wait` waits until it is cancelled.

        The gates `began` and `cancelled` open when the tool begins to wait, and when
        the cancellation has reached it.
        """
        server = Server("s", **options)
        server.began, server.cancelled = gate("began"), gate("cancelled")

        @server.tool
        def wait(ctx: Context) -> str:
            server.began.set()
            try:
                ctx.wait(60)
            except Cancelled:
                for use in ctx.check_cancelled, lambda: ctx.report_progress(99):
                    try:
                        use()
                    except Cancelled:
                        assert ctx.cancelled
                server.cancelled.set()
                raise
            return "was not cancelled"
        return server

    def holder(self, **options):
        """A server whose tool `hold` puts its `n` into `ran`, and waits for `go`."""
        server = Server("s", **options)
        server.go, server.ran = gate("go"), queue.Queue()

        @server.tool
        def hold(n: int) -> int:
            server.ran.put(n)
            server.go.wait()
            return n
        return server

    # -- the envelope ------------------------------------------------------------------

    @both_eras
    def test_json_that_is_not_a_message_is_refused(self, era):
        play(zoo(), """
            >> 1
            < null -32600
            >> "x"
            < null -32600
            >> null
            < null -32600
            >> true
            < null -32600
            >> {}
            < null -32600
            """, era=era)

    @both_eras
    def test_an_error_has_the_id_of_its_request(self, era):
        play(zoo(), """
            # "jsonrpc" is missing, or is another version
            >> {"id": 99, "method": "ping"}
            < 99 -32600
            >> {"jsonrpc": "1.0", "id": 7, "method": "ping"}
            < 7 -32600
            >> {"jsonrpc": 2.0, "id": "seven", "method": "ping"}
            < "seven" -32600
            # neither a request nor a response
            > {"id": 8}
            < 8 -32600
            > {"id": 8, "params": {}}
            < 8 -32600
            # both
            > {"id": 22, "method": "ping", "result": {}}
            < 22 -32600
            """, era=era)

    @both_eras
    def test_a_method_must_be_a_string(self, era):
        play(zoo(), """
            > {"id": 9, "method": 1}
            < 9 -32600
            > {"id": 9, "method": null}
            < 9 -32600
            > {"id": 9, "method": {}}
            < 9 -32600
            # the empty string is an unknown method
            > {"id": 10, "method": ""}
            <L 10 -32601 {"method": ""}
            <M 10 -32600
            """, era=era)

    @clause("2025-11-25/basic/index", "the ID **MUST NOT** be `null`")
    @both_eras
    def test_an_id_must_be_a_string_or_an_integer(self, era):
        play(zoo(), """
            > {"id": null, "method": "ping"}
            < null -32600
            > {"id": true, "method": "ping"}
            < null -32600
            > {"id": 1.5, "method": "ping"}
            < null -32600
            > {"id": {}, "method": "ping"}
            < null -32600
            > {"id": [1], "method": "ping"}
            < null -32600
            """, era=era)

    @both_eras
    def test_params_must_be_an_object(self, era):
        play(zoo(), """
            > {"id": 19, "method": "ping", "params": [1]}
            < 19 -32602
            > {"id": 19, "method": "ping", "params": "x"}
            < 19 -32602
            """, era=era)

    @both_eras
    def test_unknown_members_of_a_message_are_ignored(self, era):
        play(zoo(), """
            > {"id": 21, "method": "ping", "lang": "en", "trace": {}}
            <= 21 {}
            """, era=era)

    def test_null_params_count_as_none(self):
        play(zoo(), """
            > {"id": 1, "method": "ping", "params": null}
            <= 1 {}
            > {"id": 2, "method": "tools/list", "params": null}
            < 2 {"tools": "..."}
            """, era="legacy")

    @both_eras
    def test_an_unknown_method_is_named_in_the_error(self, era):
        play(zoo(), """
            > 1 tools/fly {}
            < 1 -32601 {"method": "tools/fly"}
            > 2 notifications/initialized {}
            < 2 -32601 {"method": "notifications/initialized"}
            > 3 notifications/cancelled {"requestId": 2}
            < 3 -32601
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
            > {"method": "notifications/initialized", "params": [1]}
            > {"method": "notifications/progress", "params": {"progressToken": {}}}
            > {"method": "notifications/progress"}
            > {"method": "notifications/roots/list_changed", "params": "x"}
            > {"method": "tools/list"}
            > {"method": "tools/call", "params": {"name": "touch", "arguments": {}}}
            > {"method": "nonsense"}
            """, era=era)
        self.assertEqual(calls, [])

    @both_eras
    def test_a_response_to_no_request_is_ignored(self, era):
        play(zoo(), """
            > {"id": 5, "result": {}}
            > {"id": "fence 1", "result": {"x": 1}}
            > {"id": 5, "error": {"code": -1, "message": "no"}}
            > {"id": null, "error": {"code": -32700, "message": "what?"}}
            > {"error": {"code": -32700, "message": "what?"}}
            """, era=era)

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
        """`1`, `"1"` and other strings that look like numbers are in flight together;
        the cancellation of one does not affect the others."""
        server, go = Server("s"), gate("go")

        @server.tool
        def wait(text: str, ctx: Context) -> str:
            go.wait()
            ctx.check_cancelled()
            return text

        play(server, """
            > 1 tools/call {"name": "wait", "arguments": {"text": "number"}}
            > "1" tools/call {"name": "wait", "arguments": {"text": "string"}}
            > "01" tools/call {"name": "wait", "arguments": {"text": "zero"}}
            > " 1 " tools/call {"name": "wait", "arguments": {"text": "space"}}
            > "1.0" tools/call {"name": "wait", "arguments": {"text": "float"}}
            > notifications/cancelled {"requestId": "1"}
            < fence
            ! go
            <* 1 {"content": [{"text": "number"}]}
            <* "01" {"content": [{"text": "zero"}]}
            <* " 1 " {"content": [{"text": "space"}]}
            <* "1.0" {"content": [{"text": "float"}]}
            """, era=era, go=go.set)

    @clause("2026-07-28/basic/index",
            "The request ID **MUST NOT** match the ID of any other request the sender"
            " has issued and not yet received a response for.")
    @both_eras
    def test_an_id_in_flight_cannot_be_used_again(self, era):
        """Fails (each request gets a result) if the table of requests in flight is not
        checked."""
        server = self.holder()
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
            """, era=era, go=server.go.set)
        self.assertEqual(list(server.ran.queue), [1])

    @both_eras
    def test_a_refused_duplicate_leaves_the_first_request_in_flight(self, era):
        server = self.waiter()
        play(server, """
            > 1 tools/call {"name": "wait"}
            ! began
            > 1 tools/call {"name": "wait"}
            < 1 -32600
            > notifications/cancelled {"requestId": 1}
            ! cancelled
            < fence
            """, era=era, began=server.began.wait, cancelled=server.cancelled.wait)

    @both_eras
    def test_an_id_may_be_used_again_after_the_response(self, era):
        play(zoo(), """
            > 1 tools/list
            < 1 {"tools": "..."}
            > 1 tools/list
            < 1 {"tools": "..."}
            > 1 nope
            < 1 -32601
            > 1 prompts/list
            < 1 {"prompts": "..."}
            """, era=era)

    # -- batches -----------------------------------------------------------------------

    @clause("2025-11-25/basic/transports",
            "individual JSON-RPC requests, notifications, or responses.")
    def test_other_revisions_have_no_batches(self):
        handshakes = ["> handshake " + revision for revision in LEGACY]
        for opening in ["", *handshakes]:
            if "2025-03-26" not in opening:
                with self.subTest(opening):
                    play(zoo(), opening + """
                        > []
                        < null -32600
                        > [{"jsonrpc": "2.0", "id": 1, "method": "ping"}]
                        < null -32600
                        > [{"jsonrpc": "2.0", "method": "notifications/initialized"}]
                        < null -32600
                        """)

    def test_a_batch_of_2025_03_26_gets_one_array_of_responses(self):
        play(zoo(), """
            > handshake 2025-03-26
            > [{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "id":
                "1", "method": "nope"}]
            < [{"id": 1, "result": {}}, {"id": "1", "error": {"code": -32601}}]
            > [{"jsonrpc": "2.0", "method": "notifications/x"}, {"jsonrpc": "2.0", "id":
                9, "result": {}}]
            < fence
            > [{"jsonrpc": "2.0", "method": "notifications/x"}, {"jsonrpc": "2.0", "id":
                2, "method": "ping"}]
            < [{"id": 2, "result": {}}]
            """)

    def test_each_element_of_a_batch_is_a_message_or_gets_an_error(self):
        play(zoo(), """
            > handshake 2025-03-26
            > []
            < null -32600
            > [1, {}, {"id": 3}, {"jsonrpc": "2.0", "id": 4, "method": "ping", "params":
                []}]
            < [{"id": null, "error": {"code": -32600}}, {"id": null, "error": {"code":
                -32600}}, {"id": 3, "error": {"code": -32600}}, {"id": 4, "error":
                {"code": -32602}}]
            > [[]]
            < [{"id": null, "error": {"code": -32600}}]
            > [{"jsonrpc": "2.0", "id": 5, "method": "ping"}, {"jsonrpc": "2.0", "id":
                6, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
                "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}]
            < [{"id": 5, "result": {}}, {"id": 6, "error": {"code": -32600}}]
            """)

    def test_a_batch_without_responses_writes_nothing(self):
        """An empty write would be the end of the stream on a datagram socket."""
        class Writer(io.BytesIO):
            def write(self, data):
                written.append(bytes(data))
                return len(data)

        written = []
        lines = [line(1, "initialize", protocolVersion="2025-03-26", capabilities={},
                      clientInfo={"name": "x", "version": "1"}),
                 b'[{"jsonrpc":"2.0","method":"notifications/x"}]']
        Server("x").serve(io.BytesIO(b"\n".join(lines)), Writer())
        self.assertNotIn(b"", written)

    def test_a_batch_may_cancel_a_request_of_its_own(self):
        """Fails if the reading thread runs the handlers of a batch one by one."""
        play(self.waiter(), """
            > handshake 2025-03-26
            > [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name":
                "wait"}},
                {"jsonrpc": "2.0", "id": 2, "method": "ping"},
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params":
                {"requestId": 1}}]
            < [{"id": 2, "result": {}}]
            """)

    def test_a_batch_waits_for_its_slowest_request_and_delays_no_other_message(self):
        server, go, cancelled = Server("s"), gate("go"), gate("cancelled")
        both_wait = threading.Barrier(3)

        @server.tool
        def wait(ctx: Context) -> str:
            try:
                ctx.wait(0)
                both_wait.wait(PATIENCE)
                go.wait()
                ctx.check_cancelled()
            except Cancelled:
                cancelled.set()
                raise
            return "done"

        call = ('{"jsonrpc": "2.0", "id": %s, "method": "tools/call", '
                '"params": {"name": "wait"}}')
        play(server, """
            > handshake 2025-03-26
            > [%s, %s, {"jsonrpc": "2.0", "id": 3, "method": "ping"}]
            < fence
            ! both_wait
            > 1 ping
            < 1 -32600
            > notifications/cancelled {"requestId": 2}
            < fence
            ! go
            ! cancelled
            < [{"id": 1, "result": {"content": [{"text": "done"}]}}, {"id": 3, "result":
                {}}]
            """ % (call % 1, call % 2), go=go.set, cancelled=cancelled.wait,
             both_wait=lambda: both_wait.wait(PATIENCE))

    def test_a_batch_whose_requests_are_all_cancelled_gets_no_response(self):
        server = self.waiter()
        play(server, """
            > handshake 2025-03-26
            > [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
                {"name": "wait"}}]
            ! began
            > [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params":
                {"requestId": 1}}]
            ! cancelled
            """, began=server.began.wait, cancelled=server.cancelled.wait)

    def test_a_batch_is_sent_when_its_last_request_is_cancelled(self):
        """Fails (nothing comes before the next message) if a cancellation does not
        write the responses of the batch that it completes."""
        running, server = gate("the handler"), Server("s")

        @server.tool
        def slow(ctx: Context):
            running.set()
            ctx.wait(PATIENCE)

        with wire(server) as client:
            client.ask("0 initialize 2025-03-26")
            client.send([
                {"jsonrpc": "2.0", "id": 1, "method": "ping"},
                {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                 "params": {"name": "slow"}}])
            running.wait()
            client.say('notifications/cancelled {"requestId": 2}')
            self.assertEqual(client.recv(), [{"jsonrpc": "2.0", "id": 1, "result": {}}])

    def test_a_batch_may_contain_stateless_requests(self):
        meta = json.dumps(MODERN_META)
        play(zoo(), """
            > handshake 2025-03-26
            > [{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta":
                %s}}, {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {"_meta":
                %s}}]
            < [{"id": 1, "result": {"resultType": "complete"}}, {"id": 2, "error":
                {"code": -32601}}]
            """ % (meta, meta))

    def test_a_batch_cannot_open_a_stream(self):
        """Its responses would have to wait for the end of the stream."""
        meta = json.dumps(MODERN_META)
        play(zoo(), """
            > handshake 2025-03-26
            > [{"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params":
                {"_meta": %s, "notifications": {}}},
                {"jsonrpc": "2.0", "id": 2, "method": "ping"}]
            < [{"id": 1, "error": {"code": -32600}}, {"id": 2, "result": {}}]
            """ % meta)

    # -- cancellation ------------------------------------------------------------------

    @clause("2025-11-25/basic/utilities/cancellation",
            "Not send a response for the cancelled request")
    @clause("2026-07-28/basic/transports/stdio",
            "**MUST NOT** send any further messages for it")
    @both_eras
    def test_a_cancelled_request_gets_no_response(self, era):
        server = self.waiter()
        play(server, """
            > 7 tools/call {"name": "wait", "_meta": {"progressToken": "t"}}
            ! began
            > notifications/cancelled {"requestId": 7, "reason": "changed my mind"}
            ! cancelled
            < fence
            # the id is free again
            > 7 tools/list
            < 7 {"tools": "..."}
            """, era=era, cancelled=server.cancelled.wait, began=server.began.wait)

    @both_eras
    def test_other_spellings_of_a_cancellation_are_understood(self, era):
        """An integer id may also come as the same number with a fraction of 0."""
        for spelling in ['cancelled {"requestId": 7}', '$/cancelRequest {"id": 7}',
                         '$/cancelRequest {"requestId": 7}',
                         'notifications/cancelled {"requestId": 7.0}']:
            server = self.waiter()
            with self.subTest(spelling):
                method, params = spelling.split(" ", 1)
                play(server, """
                    > 7 tools/call {"name": "wait"}
                    ! began
                    > {"method": "%s", "params": %s}
                    ! cancelled
                    """ % (method, params), era=era,
                     began=server.began.wait, cancelled=server.cancelled.wait)

    @clause("2025-11-25/basic/utilities/cancellation",
            "Invalid cancellation notifications **SHOULD** be ignored")
    @both_eras
    def test_an_invalid_cancellation_is_ignored(self, era):
        server = self.holder()
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 7}}
            > notifications/cancelled {"requestId": 2}
            > notifications/cancelled {"requestId": "1"}
            > notifications/cancelled {"requestId": true}
            > notifications/cancelled {"requestId": 1.5}
            > notifications/cancelled {"requestId": null}
            > notifications/cancelled {"requestId": [1]}
            > notifications/cancelled {"requestId": {"id": 1}}
            > notifications/cancelled {"id": 1}
            > notifications/cancelled {}
            > notifications/cancelled
            > {"method": "notifications/cancelled", "params": [1]}
            > {"method": "notifications/cancelled", "params": null}
            > {"method": "notifications/cancelled", "params": 1}
            < fence
            ! go
            < 1 {"content": [{"text": "7"}]}
            > notifications/cancelled {"requestId": 1}
            """, era=era, go=server.go.set)

    @clause("2025-11-25/basic/utilities/cancellation",
            "The `initialize` request **MUST NOT** be cancelled by clients")
    def test_initialize_cannot_be_cancelled(self):
        sent = [json.dumps(message(text)).encode() + b"\n" for text in (
            "1 initialize", 'notifications/cancelled {"requestId": 1}')]
        with wire(zoo()) as client:
            client.send(b"".join(sent))
            play(client, '< 1 {"protocolVersion": "2025-11-25"}')

    @both_eras
    def test_a_request_that_is_cancelled_in_the_queue_never_runs(self, era):
        """Fails if a worker does not check that its request is still in flight."""
        server = self.holder(max_workers=1)
        play(server, """
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            > 2 tools/call {"name": "hold", "arguments": {"n": 2}}
            > 3 tools/call {"name": "hold", "arguments": {"n": 3}}
            > notifications/cancelled {"requestId": 2}
            < fence
            ! go
            <* 1 {}
            <* 3 {}
            """, era=era, go=server.go.set)
        self.assertEqual(list(server.ran.queue), [1, 3])

    @both_eras
    def test_an_async_handler_is_cancelled_too(self, era):
        server, began, cancelled = Server("s"), gate("began"), gate("cancelled")

        @server.tool
        async def wait(ctx: Context):
            began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        @server.tool
        async def add(a: int, b: int) -> int:
            await asyncio.sleep(0)
            return a + b

        play(server, """
            > 1 tools/call {"name": "wait"}
            ! began
            > 2 tools/call {"name": "add", "arguments": {"a": 2, "b": 3}}
            < 2 {"content": [{"text": "5"}]}
            > notifications/cancelled {"requestId": 1}
            ! cancelled
            """, era=era, began=began.wait, cancelled=cancelled.wait)

    def test_except_exception_does_not_catch_a_cancellation(self):
        server, began, steps = Server("s"), gate("began"), []

        @server.tool
        def stubborn(ctx: Context) -> str:
            try:
                began.set()
                ctx.wait(60)
            except Exception:  # noqa: BLE001 - the point of the test
                steps.append("caught")
            steps.append("continued")
            return "done"

        play(server, """
            > 1 tools/call {"name": "stubborn"}
            ! began
            > notifications/cancelled {"requestId": 1}
            """, era="legacy", began=began.wait)
        self.assertEqual(steps, [])

    def test_a_handler_that_ignores_its_cancellation_sends_nothing(self):
        server, began, go, ended = Server("s"), gate("began"), gate("go"), gate("ended")

        @server.tool
        def ignore(ctx: Context) -> str:
            began.set()
            go.wait()
            try:
                ctx.report_progress(1)
            except Cancelled:
                ended.set()
            return "done"

        play(server, """
            > 1 tools/call {"name": "ignore", "_meta": {"progressToken": 1}}
            ! began
            > notifications/cancelled {"requestId": 1}
            < fence
            ! go
            ! ended
            """, era="legacy", began=began.wait, go=go.set, ended=ended.wait)

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

    def test_the_reason_of_a_cancellation_reaches_the_handler(self):
        server, began, reasons = Server("s"), gate("began"), queue.Queue()

        @server.tool
        def wait(ctx: Context):
            began.set()
            try:
                ctx.wait(60)
            finally:
                reasons.put(ctx.cancel_reason)

        for reason, expected in ("changed my mind", "changed my mind"), (7, None):
            began.clear()
            play(server, """
                > 1 tools/call {"name": "wait"}
                ! began
                > notifications/cancelled {"requestId": 1, "reason": "$reason"}
                ! check
                """, era="legacy", reason=reason, began=began.wait,
                 check=lambda expected=expected: self.assertEqual(
                     reasons.get(timeout=PATIENCE), expected))

    # -- the reading thread ------------------------------------------------------------

    def busy_server(self, **options):
        """A `waiter` with two workers, and the messages that make all of them wait.

        Of the five calls, three wait in the queue.
        """
        server = self.waiter(max_workers=2, drain_seconds=0.05, **options)
        server.resource("x://y")(lambda: "")
        calls = [message('%d tools/call {"name": "wait"}' % n) for n in range(1, 6)]
        return server, [message("0 initialize 2025-03-26"),
                        message("notifications/initialized"), *calls]

    def test_reading_goes_on_while_a_lock_blocks_the_reading_thread(self):
        """All workers are busy, and more requests wait in the queue.  Fails (the ping
        gets no result) if the job of the next leader waits behind them."""
        server, opening = self.busy_server()
        with wire(server) as client:
            client.send(*opening)
            server.began.wait()
            self.assertIn("result", client.recv())
            with server.lock:
                client.say('6 resources/subscribe {"uri": "x://y"}')
                client.fence()
                client.say('notifications/cancelled {"requestId": 1}')
                server.cancelled.wait()
            self.assertEqual(client.recv()["id"], 6)

    def test_reading_goes_on_while_the_client_does_not_read(self):
        """All workers are busy, and the pipe is full of results of pings."""
        server, opening = self.busy_server()
        before = set(threading.enumerate())
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        reader = os.fdopen(server_reads, "rb")
        writer = os.fdopen(server_writes, "wb", 0)
        serving = threading.Thread(target=server.serve, args=(reader, writer))
        serving.start()
        pings = [message("%s ping" % json.dumps("x" * 60000)) for _ in range(3)]
        with os.fdopen(client_writes, "wb") as stream:
            def send(*messages):
                for sent in messages:
                    stream.write(json.dumps(sent).encode() + b"\n")
                    stream.flush()

            send(*opening, *pings)
            server.began.wait()
            send(message('notifications/cancelled {"requestId": 1}'))
            server.cancelled.wait()
        os.close(client_reads)
        wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")
        reader.close()
        writer.close()

    def test_a_slow_leader_does_not_change_the_state_of_its_successor(self):
        """A lock blocks the first leader in the first message of a batch, and the pipe
        blocks its successor.  Fails (the cancellation is not read) if the first leader,
        when it continues with its batch, marks the second as idle."""
        server, opening = self.busy_server()
        entered, go = gate("the second leader writes"), gate("go")

        class SlowWriter(io.RawIOBase):
            def write(self, data):
                if b"stuck" in bytes(data):
                    entered.set()
                    go.wait()
                return len(data)

        server_reads, client_writes = os.pipe()
        reader = os.fdopen(server_reads, "rb")
        serving = threading.Thread(target=server.serve, args=(reader, SlowWriter()))
        serving.start()
        with os.fdopen(client_writes, "wb") as stream:
            def send(*messages):
                for sent in messages:
                    stream.write(json.dumps(sent).encode() + b"\n")
                stream.flush()

            send(*opening)
            server.began.wait()
            with server.lock:
                send([message('6 resources/subscribe {"uri": "x://y"}'),
                      message("7 ping")], message('"stuck" ping'))
                entered.wait()
            send(message('notifications/cancelled {"requestId": 1}'))
            server.cancelled.wait()
            go.set()
        serving.join(PATIENCE)
        self.assertFalse(serving.is_alive())
        reader.close()

    def test_a_handler_that_waits_hands_the_reading_over_at_once(self):
        """Fails (the ping gets no result) if only the watchdog replaces the leader."""
        server = self.waiter()
        with mock.patch.object(mcp_min, "READER_STALL_SECONDS", 60):
            play(server, """
                > 1 tools/call {"name": "wait"}
                < fence
                > notifications/cancelled {"requestId": 1}
                ! cancelled
                """, era="legacy", cancelled=server.cancelled.wait)

    def test_a_request_that_comes_while_the_connection_closes_is_not_handled(self):
        session = mcp_min.ServerSession(zoo(), io.BytesIO(), io.BytesIO(), False)
        connection = session.connection

        def close_before_the_request_is_added(method):
            connection.close()
            return True

        with mock.patch.object(session, "handle") as handle, mock.patch.object(
                session, "is_inline", close_before_the_request_is_added):
            connection.receive(json.dumps(message("1 ping")).encode())
        handle.assert_not_called()

    def test_a_sender_waits_while_too_many_bytes_are_queued(self):
        """Fails (the second thread never waits for the right to write) if the queue
        has no limit."""
        blocked, go, lengths = gate("the first write"), gate("go"), []

        class FullPipe(io.RawIOBase):
            def write(self, data):
                lengths.append(len(data))
                if len(lengths) == 1:
                    blocked.set()
                    go.wait()
                return len(data)

        waiting = gate("the second thread waits")
        outbox = mcp_min.Outbox(FullPipe(), True, lambda: None)
        outbox.writing = mock.MagicMock(wraps=outbox.writing)
        outbox.writing.__enter__.side_effect = lambda: (
            waiting.set(), outbox.writing.acquire())
        outbox.writing.__exit__.side_effect = lambda *_: outbox.writing.release()

        def send(*sizes):
            for size in sizes:
                outbox.wait_for_room()
                outbox.put(b"x" * size)
                outbox.flush()

        first, second = (threading.Thread(target=send, args=sizes)
                         for sizes in ([1], [mcp_min.HIGH_WATER_BYTES + 1, 2]))
        first.start()
        blocked.wait()
        second.start()
        waiting.wait()
        go.set()
        first.join(PATIENCE)
        second.join(PATIENCE)
        self.assertEqual(lengths, [1, mcp_min.HIGH_WATER_BYTES + 1, 2])
        outbox.close()

    def test_the_watchdog_looks_less_often_while_no_leader_is_slow(self):
        """Fails if it looks every 2 ms as long as requests come."""
        pauses, wait = set(), threading.Condition.wait

        def recording_wait(condition, timeout=None):
            if threading.current_thread().name == "mcp watchdog":
                pauses.add(timeout)
            return wait(condition, timeout)

        with mock.patch.object(threading.Condition, "wait", recording_wait), (
                wire(zoo())) as client:
            play(client, "> handshake")
            deadline = time.monotonic() + PATIENCE
            while mcp_min.MAX_WATCH_SECONDS not in pauses:
                client.ask('1 tools/call {"name": "echo", "arguments": {"text": "x"}}')
                self.assertLess(time.monotonic(), deadline, pauses)

    # -- results and errors ------------------------------------------------------------

    def test_an_unusable_error_or_result_gets_an_error_response(self):
        """Fails (the session ends) if its exception leaves the code that responds."""
        class ErrorWithoutCode(McpError):
            def __init__(self, what):
                self.what = what

        class BrokenMapping(dict):
            def items(self):
                raise KeyError("no items")

        server = Server("s")

        @server.tool
        def error() -> str:
            raise ErrorWithoutCode("x")

        @server.tool
        def result():
            return mcp_min.ToolResult("x", meta=BrokenMapping(a=1))

        play(server, """
            > 1 tools/call {"name": "error"}
            < 1 -32603
            > 2 tools/call {"name": "result"}
            < 2 -32603 "The result is not JSON"
            """, era="legacy")

    def test_the_structured_content_of_a_tool_result_may_be_a_dataclass(self):
        @dataclasses.dataclass
        class Spot:
            x: int

        server = Server("s")
        server.tool(lambda: mcp_min.ToolResult("spot", Spot(1)), name="spot")
        play(server, """
            > 1 tools/call {"name": "spot"}
            < 1 {"structuredContent": {"x": 1}, "content": [{"text": "spot"}]}
            """, era="legacy")

    def test_responses_and_notifications_pass_while_every_worker_waits(self):
        """Fails (it hangs) if a worker is needed to handle a response, or to write."""
        server = Server("s", max_workers=2)

        @server.tool
        def ask(ctx: Context) -> str:
            return ctx.elicit("Well?", str).data

        with wire(server) as client:
            play(client, """
                > handshake
                > 1 tools/call {"name": "ask"}
                < $a elicitation/create
                > 2 tools/call {"name": "ask"}
                < $b elicitation/create
                ! change
                < notifications/tools/list_changed
                > $a {"action": "accept", "content": {"value": "one"}}
                < 1 {"content": [{"text": "one"}]}
                > $b {"action": "accept", "content": {"value": "two"}}
                < 2 {"content": [{"text": "two"}]}
                """, change=lambda: server.add_tool(lambda: "", name="new"))

    def test_questions_fail_at_the_end_of_input_while_every_worker_waits(self):
        """Fails if a worker is needed to end the waiting of the others."""
        server = Server("s", max_workers=1, drain_seconds=60)

        @server.tool
        def ask(ctx: Context):
            ctx.elicit("Well?", str)

        with quiet() as stderr:
            play(server, """
                > 1 tools/call {"name": "ask"}
                < $q elicitation/create
                > EOF
                < 1 {"isError": true}
                """, era="legacy")
        self.assertEqual(stderr.getvalue(), "")  # this is not an error

    def test_a_writer_that_is_not_a_file_may_return_none(self):
        """Fails (nothing more is written) if None is taken for "would block"."""
        written = []
        writer = mock.Mock(spec=["write", "flush"])
        writer.write.side_effect = lambda data: written.append(bytes(data))
        ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n'
        zoo().serve(io.BytesIO(ping % 1 + ping % 2), writer)
        pong = b'{"jsonrpc":"2.0","id":%d,"result":{}}\n'
        self.assertEqual(written, [pong % 1, pong % 2])

    def test_a_drain_without_limit_loses_no_response(self):
        server = Server("s", drain_seconds=math.inf)

        @server.tool
        def late(ctx: Context) -> str:
            ctx.incoming.connection.eof.wait(PATIENCE)
            time.sleep(0.02)  # a server that does not wait ends meanwhile
            return "late"

        play(server, """
            > 1 tools/call {"name": "late"}
            > EOF
            < 1 {"content": [{"text": "late"}]}
            """, era="legacy")

    def test_a_queued_request_belongs_to_the_session_in_which_it_came(self):
        """Fails if the revision at the time when it runs decides how it is handled."""
        server = self.holder(max_workers=1)
        play(server, """
            > handshake 2025-06-18
            > 1 tools/call {"name": "hold", "arguments": {"n": 1}}
            ! ran
            > 2 tools/call {"name": "hold", "arguments": {"n": "x"}}
            > 3 initialize 2025-11-25
            < 3 {}
            ! go
            <* 1 {}
            <* 2 -32602
            """, ran=server.ran.get, go=server.go.set)

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
    @both_eras
    def test_progress_needs_a_token_that_is_a_string_or_an_integer(self, era):
        server = Server("s")

        @server.tool
        def work(ctx: Context) -> str:
            ctx.report_progress(1, 2, "half way")
            return "done"

        play(server, """
            > 1 tools/call {"name": "work"}
            < 1 {"content": "..."}
            > 2 tools/call {"name": "work", "_meta": {"progressToken": 0}}
            < notifications/progress {"progressToken": 0, "progress": 1, "total": 2,
                "message": "half way"}
            < 2 {}
            > 3 tools/call {"name": "work", "_meta": {"progressToken": ""}}
            < notifications/progress {"progressToken": "", "progress": 1}
            < 3 {}
            > 4 tools/call {"name": "work", "_meta": {"progressToken": "4"}}
            < notifications/progress {"progressToken": "4"}
            < 4 {}
            > 5 tools/call {"name": "work", "_meta": {"progressToken": true}}
            < 5 {}
            > 6 tools/call {"name": "work", "_meta": {"progressToken": 1.5}}
            < 6 {}
            > 7 tools/call {"name": "work", "_meta": {"progressToken": null}}
            < 7 {}
            > 8 tools/call {"name": "work", "_meta": {"progressToken": {}}}
            < 8 {}
            > 9 tools/call {"name": "work", "_meta": {"progressToken": [1]}}
            < 9 {}
            """, era=era)

    @clause("2026-07-28/basic/patterns/progress",
            "The `progress` value **MUST** increase with each notification, even if "
            "the total is unknown.")
    @both_eras
    def test_progress_that_does_not_increase_is_dropped(self, era):
        server = Server("s")

        @server.tool
        def work(ctx: Context):
            for progress in (0.5, 1, 1, 0, -1, 2, 2.0, 2.25, float("nan"), 3):
                ctx.report_progress(progress)

        play(server, """
            > 1 tools/call {"name": "work", "_meta": {"progressToken": 1}}
            < notifications/progress {"progressToken": 1, "progress": 0.5}
            < notifications/progress {"progressToken": 1, "progress": 1}
            < notifications/progress {"progressToken": 1, "progress": 2}
            < notifications/progress {"progressToken": 1, "progress": 2.25}
            < notifications/progress {"progressToken": 1, "progress": 3}
            < 1 {"content": "..."}
            """, era=era)

    @clause("2026-07-28/basic/patterns/progress",
            "Progress notifications **MUST** stop after completion")
    def test_progress_of_several_threads_increases_until_the_response(self):
        """Three threads report progress while the handler returns.  Fails if the
        progress is compared, or queued, outside of the lock under which the request is
        known to be in flight."""
        server, rounds, reporters = Server("s"), 30, []

        @server.tool
        def work(ctx: Context):
            count = iter(range(1, 300))
            running = threading.Semaphore(0)

            def report():
                for progress in count:
                    with contextlib.suppress(Cancelled):
                        ctx.report_progress(progress)
                    running.release()
            for _ in range(3):
                reporter = threading.Thread(target=report)
                reporter.start()
                reporters.append(reporter)
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
    def test_track_reports_progress_of_its_items(self, era):
        server, steps = Server("s"), []

        @server.tool
        def copy(ctx: Context) -> list:
            return list(ctx.track("abc", message="copying"))

        with wire(server) as client:
            if era == "legacy":
                play(client, "> handshake")
            client.say('1 tools/call {"name": "copy", "_meta": {"progressToken": 1}}',
                       era)
            while "id" not in (received := client.recv()):
                steps.append(received["params"]["progress"])
                self.assertEqual(received["params"]["total"], 3)
        text = received["result"]["content"][0]["text"]
        self.assertEqual(json.loads(text), ["a", "b", "c"])
        self.assertEqual(steps, sorted(set(steps)))

    @both_eras
    def test_track_stops_when_the_request_is_cancelled(self, era):
        server, began, stopped = Server("s"), gate("began"), gate("stopped")

        @server.tool
        def forever(ctx: Context):
            try:
                for item in ctx.track(iter(int, 1)):
                    began.set()
            finally:
                stopped.set()

        play(server, """
            > 2 tools/call {"name": "forever"}
            ! began
            > notifications/cancelled {"requestId": 2}
            ! stopped
            """, era=era, began=began.wait, stopped=stopped.wait)

    # -- threads -----------------------------------------------------------------------

    def test_a_closed_pool_runs_a_job_that_is_submitted_later(self):
        """A late response is such a job.  Fails if no thread is left to run it."""
        pool, ran = mcp_min.ThreadPool("short-lived", 1), gate("the late job")
        pool.submit(lambda: None)
        pool.close()
        wait_until(lambda: "short-lived" not in [t.name for t in threading.enumerate()])
        self.assertTrue(pool.submit(ran.set))
        ran.wait()

    def test_a_pool_works_again_after_threads_could_not_be_started(self):
        """As in a container at its limit of threads.  Fails if a job never runs."""
        pool, ran = mcp_min.ThreadPool("late", 1), []
        last = gate("the last job")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError):
            self.assertFalse(pool.submit(lambda: ran.append("first")))
        self.assertTrue(pool.submit(last.set))
        last.wait()
        self.assertEqual(ran, ["first"])
        pool.close()

    def test_an_urgent_job_runs_at_once_and_the_pool_shrinks_again(self):
        """Fails if the job queues behind others, or if the extra thread stays."""
        pool, go, ran = mcp_min.ThreadPool("small", 2), gate("go"), queue.Queue()
        for name in "abc":
            pool.submit(lambda name=name: (ran.put(name), go.wait()))
        self.assertEqual({ran.get(timeout=PATIENCE) for _ in "ab"}, {"a", "b"})
        pool.submit(lambda: ran.put("urgent"), urgent=True)
        self.assertEqual(ran.get(timeout=PATIENCE), "urgent")
        go.set()
        self.assertEqual(ran.get(timeout=PATIENCE), "c")
        wait_until(lambda: [t.name for t in threading.enumerate()].count("small") <= 2)
        pool.close()

    def test_32_tools_run_at_once_and_a_ping_is_handled_meanwhile(self):
        """The tools meet at a barrier.  It opens only when all of them run, and when
        the result of a ping has come."""
        server, barrier = Server("s"), threading.Barrier(33)

        @server.tool
        def meet(n: int) -> int:
            barrier.wait(PATIENCE)
            return n

        with wire(server) as client:
            play(client, "> handshake")
            for n in range(32):
                client.say('%d tools/call {"name": "meet", "arguments": {"n": %d}}'
                           % (n, n))
            client.fence()
            barrier.wait(PATIENCE)
            responses = [client.recv() for _ in range(32)]
        texts = {response["id"]: response["result"]["content"][0]["text"]
                 for response in responses}
        self.assertEqual(texts, {n: str(n) for n in range(32)})

    def test_ten_thousand_requests_need_few_threads(self):
        server, threads = Server("s", max_workers=8), set()
        before = threading.active_count()

        @server.tool
        def count(n: int) -> int:
            threads.add(threading.active_count())
            return n

        texts = {}
        with wire(server) as client:
            play(client, "> handshake")
            for first in range(0, 10000, 1000):  # more at once are refused
                client.send(b"".join(
                    line(n, "tools/call", name="count", arguments={"n": n}) + b"\n"
                    for n in range(first, first + 1000)))
                for _ in range(1000):
                    response = client.recv()
                    texts[response["id"]] = response["result"]["content"][0]["text"]
        self.assertEqual(texts, {n: str(n) for n in range(10000)})
        self.assertLess(max(threads) - before, 16)

    def test_beyond_max_workers_requests_queue_and_reading_goes_on(self):
        server = self.holder(max_workers=3)
        with wire(server) as client:
            play(client, "> handshake")
            for n in range(10):
                client.say('%d tools/call {"name": "hold", "arguments": {"n": %d}}'
                           % (n, n))
            for _ in range(3):
                server.ran.get(timeout=PATIENCE)
            client.fence()
            client.fence()
            self.assertEqual(server.ran.qsize(), 0)
            server.go.set()
            self.assertEqual({client.recv()["id"] for _ in range(10)}, set(range(10)))

    @UNIX
    def test_a_client_that_stops_reading_stops_no_other_connection(self):
        server = zoo()
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        reader, writer = os.fdopen(server_reads, "rb"), os.fdopen(server_writes, "wb")
        serving = threading.Thread(target=server.serve, args=(reader, writer))
        serving.start()
        sent = json.dumps(message("0 initialize")).encode() + b"\n" + b"".join(
            echo_line(n, b"x" * 1000) + b"\n" for n in range(1, 1000))
        sending = threading.Thread(
            target=lambda: (os.write(client_writes, sent), os.close(client_writes)))
        sending.start()
        select.select([client_reads], [], [], PATIENCE)
        play(server, """
            > 1 tools/call {"name": "echo", "arguments": {"text": "still here"}}
            < 1 {"content": [{"text": "still here"}]}
            """, era="legacy")
        with open(client_reads, "rb") as responses:
            ids = {checked(responses.readline())["id"] for _ in range(1000)}
            self.assertEqual(ids, set(range(1000)))
            sending.join(PATIENCE)
            serving.join(PATIENCE)
        self.assertFalse(serving.is_alive())
        reader.close()
        writer.close()


    def test_the_timer_wakes_for_a_request_that_is_parked_while_it_sleeps(self):
        """Fails (the request never expires) if `park` does not wake the timer, which
        found nothing to wait for between the response and the next round."""
        expired = threading.Event()
        requests = mcp_min.OutgoingRequests(
            mcp_min.Outbox(io.BytesIO(), False, print), lambda *_: expired.set())
        request = mcp_min.OutgoingRequest("tools/call", max_timeout=0.2)
        requests.add(request, 1, b"{}\n")
        requests.pop(1)
        with requests._lock:
            requests._earlier.notify()
        wait_until(lambda: requests._wakes_at == float("inf"), "the timer sleeps")
        self.assertTrue(requests.park(request))
        self.assertTrue(expired.wait(PATIENCE))
        requests.close()


    def test_jobs_that_hope_for_one_thread_all_run_when_it_cannot_start(self):
        """Fails if only the job of the thread that fails to start runs."""
        ran, pool = [], mcp_min.ThreadPool("p", 1)

        def fail_after_another_job(name, run):
            self.assertTrue(pool.submit(lambda: ran.append("other")))
            return False

        with mock.patch.object(mcp_min, "start_thread", fail_after_another_job):
            self.assertFalse(pool.submit(lambda: ran.append("own")))
        self.assertEqual(sorted(ran), ["other", "own"])

    def test_a_job_that_cannot_start_leaves_nothing_behind_in_its_pool(self):
        """Fails if the bytes or the urgency of a dropped job are still counted."""
        pool = mcp_min.ThreadPool("p", 1)
        with mock.patch.object(mcp_min, "start_thread", lambda *_: False):
            self.assertFalse(pool.submit(lambda: None, urgent=True, size=7))
            self.assertFalse(pool.submit(lambda: None, size=7))
        self.assertEqual((pool.bytes, pool._urgent, pool.load()), (0, 0, 0))


class Test5Amounts(unittest.TestCase):
    """What one end can make the other end keep in memory is limited."""

    def hold(self, **options):
        """A server whose tool `hold` waits for the gate, which is also returned."""
        server, go = Server("s", drain_seconds=0.05, **options), gate("go")
        server.tool(lambda: go.wait() and "", name="hold")
        self.addCleanup(go.set)
        return server, go

    def test_over_1000_requests_at_once_are_refused(self):
        """A ping and a cancellation are still handled."""
        server, go = self.hold(max_workers=2)
        with wire(server) as client:
            play(client, "> handshake")
            for n in range(1001):
                client.say('%d tools/call {"name": "hold"}' % n)
            refused = client.recv()  # the last, unless the thread that read it was slow
            self.assertIn("Over 1000 requests", refused["error"]["message"])
            client.fence()
            client.say('notifications/cancelled {"requestId": 5}')
            client.say('1001 tools/call {"name": "hold"}')
            client.fence()
            go.set()
            ids = {client.recv()["id"] for _ in range(1000)}
            self.assertEqual(ids, {*range(1002)} - {5, refused["id"]})

    def test_requests_of_many_bytes_at_once_are_refused(self):
        """A single request may be larger."""
        server, go = self.hold()
        server.tool(lambda text: text, name="echo")
        with wire(server) as client, mock.patch.object(
                mcp_min, "MAX_REQUEST_BYTES", 10000):
            play(client, "> handshake")
            for n in range(8):
                client.say('%d tools/call {"name": "hold", "_meta": {"x": "%s"}}' % (
                    n, "x" * 1200))
            play(client, '< 7 -32603 "10000 bytes of them"')
            go.set()
            self.assertEqual({client.recv()["id"] for _ in range(7)}, {*range(7)})
            play(client, """
                > 9 tools/call {"name": "echo", "arguments": {"text": "LONG"}}
                < 9 {"isError": false}
                """.replace("LONG", "x" * 20000))

    def test_slow_leaders_get_only_a_few_successors(self):
        """Fails (with a thread for each line) if every busy leader is replaced."""
        server, go = self.hold(max_workers=2)
        stuck = mock.patch.object(mcp_min.IncomingRequests, "add",
                                  lambda *_: go.wait() and False)
        with stuck, wire(server) as client:
            before = threading.active_count()
            for n in range(50):
                client.say(f"{n} tools/list")
                time.sleep(0.003)  # a leader is replaced after 2 ms
            self.assertLess(threading.active_count() - before, 15)
            go.set()

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

    def test_batches_over_100_messages_are_refused(self):
        pings = [message("%d ping" % n) for n in range(101)]
        results = [message("%d {}" % n) for n in range(100)]
        with wire(zoo()) as client:
            play(client, "> handshake 2025-03-26")
            client.send(pings[:100])
            self.assertCountEqual(client.recv(), results)
            client.send(pings)
            play(client, '< null -32600 "over 100 messages"')

    def test_over_100_streams_are_refused(self):
        with wire(zoo()) as client:
            for n in range(100):
                client.ask('%d modern subscriptions/listen {"notifications": {}}' % n)
            play(client, """
                > 100 modern subscriptions/listen {"notifications": {}}
                < 100 -32603 "Over 100 streams"
                > notifications/cancelled {"requestId": 7}
                > 101 modern subscriptions/listen {"notifications": {}}
                < notifications/subscriptions/acknowledged
                """)
            self.assertEqual(len(client.hang_up()), 100)

    def test_over_10000_subscriptions_of_a_stream_are_refused(self):
        play(zoo(), """
            > 1 modern subscriptions/listen {"notifications": {
                "resourceSubscriptions": "$uris"}}
            < 1 -32603 "Over 10000 subscriptions"
            """, uris=[f"zoo://{n}" for n in range(10001)])

    def test_the_subscriptions_of_a_session_are_limited(self):
        with mock.patch.object(mcp_min, "MAX_SUBSCRIPTIONS", 1):
            play(zoo(), """
                > 1 resources/subscribe {"uri": "zoo://1"}
                < 1 {}
                > 2 resources/subscribe {"uri": "zoo://1"}
                < 2 {}
                > 3 resources/subscribe {"uri": "zoo://2"}
                < 3 -32603 "Over 1 subscriptions"
                """, era="legacy")

    def test_the_connection_of_a_client_that_never_reads_is_closed(self):
        """Fails (the server keeps all results of pings) if there is no limit."""
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        reader = os.fdopen(server_reads, "rb")
        writer = os.fdopen(server_writes, "wb", 0)
        before = set(threading.enumerate())
        ping = b'{"jsonrpc":"2.0","id":"%s","method":"ping"}\n' % (b"i" * 60000)

        def send():
            with contextlib.suppress(BrokenPipeError):
                while True:
                    os.write(client_writes, ping)

        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 1 << 20):
            serving = threading.Thread(target=zoo().serve, args=(reader, writer))
            serving.start()
            sending = threading.Thread(target=send)
            sending.start()
            serving.join(PATIENCE)
            self.assertFalse(serving.is_alive())
        reader.close()
        sending.join(PATIENCE)
        os.close(client_reads)
        os.close(client_writes)
        wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")
        writer.close()

    def test_an_http_request_closes_the_connection(self):
        """A web page must not call tools.  Fails if the body is still handled."""
        called = []
        server = Server("s")
        server.tool(lambda: called.append(1), name="run")
        call = json.dumps(message('1 modern tools/call {"name": "run"}')).encode()
        with wire(server) as client:
            with contextlib.suppress(OSError):
                client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + call + b"\n")
            self.assertIsNone(client.recv())
        self.assertEqual(called, [])

    def test_an_http_request_line_over_the_limit_closes_the_connection(self):
        with wire(Server("s", max_message_bytes=100)) as client:
            with contextlib.suppress(OSError):
                client.send(b"GET /%s HTTP/1.1\r\nHost: x\r\n" % (b"x" * 200))
            self.assertIsNone(client.recv())

    SMALL_LIMITS = """
        mcp_min.MAX_UNREAD_BYTES = mcp_min.MAX_REQUEST_BYTES = 1 << 20
        mcp_min.MAX_CALLBACK_BYTES = 1 << 20
        """
    FLOODED_SERVER = SMALL_LIMITS + """
        server = Server("s", max_workers=4, drain_seconds=0.01)
        server.tool(lambda: time.sleep(60), name="sleep")
        server.tool(lambda: "x" * 1000, name="echo")
        server.method("notifications/x")(lambda params: time.sleep(60))
        server.run()
        """
    FLOODED_CLIENT = SMALL_LIMITS + """
        handler = lambda *params: time.sleep(60)
        mcp_min.Client(
            (os.fdopen(0, "rb"), os.fdopen(1, "wb", 0)), mode="2025-11-25",
            elicitation_handler=handler, sampling_handler=handler,
            log_handler=handler, message_handler=handler).connect()
        time.sleep(60)
        """
    TO_SERVER = "1 initialize 2025-11-25"
    TO_CLIENT = """1 {"protocolVersion": "2025-11-25", "capabilities": {},
        "serverInfo": {"name": "s", "version": "1"}}"""

    def send_flood(self, child, method, params, make_id):
        """Send a message over and over: 50 MB, or 10,000 messages, but for 5 s at most
        and only while the process runs."""
        pipe, sent, deadline = child.stdin.fileno(), 0, time.monotonic() + 5
        os.set_blocking(pipe, False)
        for _ in range(10000):
            id = {"id": make_id()} if make_id else {}
            unsent = json.dumps(
                {"jsonrpc": "2.0", **id, "method": method, "params": params}
            ).encode() + b"\n"
            while unsent:
                if sent > 50e6 or time.monotonic() > deadline:
                    return
                select.select([], [pipe], [], 0.1)
                try:
                    count = os.write(pipe, unsent)
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    return
                sent, unsent = sent + count, unsent[count:]

    def peak_megabytes(self, code, opening, *flood):
        """The peak of the memory of a process that was flooded; 0 if it has ended."""
        program = process.HEAD + textwrap.dedent(code)
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", program],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as child:
            line = json.dumps(message(opening)).encode() + b"\n"
            os.write(child.stdin.fileno(), line)
            child.stdout.readline()
            self.send_flood(child, *flood)
            with open(f"/proc/{child.pid}/status") as status:
                peak = re.search(r"VmHWM:\s+(\d+)", status.read())
            child.kill()
            return int(peak[1]) // 1024 if peak else 0

    @unittest.skipUnless(
        sys.platform == "linux" and sys.implementation.name == "cpython",
        "reads /proc; PyPy frees memory later")
    def test_a_flood_of_messages_does_not_fill_the_memory(self):
        """Each kind of message, in each direction, as fast as it can be sent, from an
        end that reads nothing.  Fails (with over 60 MB) if the messages are kept."""
        big, numbers = "x" * 60000, itertools.count(2)
        question = {"message": big, "requestedSchema": {
            "type": "object", "properties": {"x": {"type": "string"}}}}
        sampling = {"maxTokens": 1, "messages": [
            {"role": "user", "content": {"type": "text", "text": big}}]}

        def number():
            return next(numbers)

        def long_id():
            return f"{next(numbers)}{big}"

        to_server = [
            ("ping, long ids", "ping", {}, long_id),
            ("tool with a result", "tools/call", {"name": "echo"}, number),
            ("tool that waits", "tools/call", {"name": "sleep"}, number),
            ("unknown method", big, {}, number),
            ("notification with a handler", "notifications/x", {"x": big}, None),
            ("cancellation", "notifications/cancelled", {"requestId": big}, None)]
        to_client = [
            ("ping, long ids", "ping", {}, long_id),
            ("elicitation", "elicitation/create", question, number),
            ("sampling", "sampling/createMessage", sampling, number),
            ("unknown method", big, {}, number),
            ("log message", "notifications/message", {"level": "error", "data": big},
             None),
            ("list change", "notifications/tools/list_changed", {"x": big}, None),
            ("progress", "notifications/progress", {"progressToken": 1, "progress": 1},
             None)]

        def check(name, *flood):
            self.assertLess(self.peak_megabytes(*flood), 48, name)

        run_together(self, check, [
            *(("to a server: " + name, self.FLOODED_SERVER, self.TO_SERVER, *flood)
              for name, *flood in to_server),
            *(("to a client: " + name, self.FLOODED_CLIENT, self.TO_CLIENT, *flood)
              for name, *flood in to_client)])


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
        for version in "1999-01-01", "9999-99-99", MODERN, "2025-11-25 ", "latest", "":
            with self.subTest(version):
                play(zoo(), """
                    > 1 initialize 2025-11-25 {"protocolVersion": "%s"}
                    < 1 {"protocolVersion": "2025-11-25"}
                    """ % version)

    def test_an_invalid_initialize_is_refused_and_may_be_sent_again(self):
        play(zoo(), """
            > {"id": 1, "method": "initialize"}
            < 1 -32602 "protocolVersion"
            > {"id": 2, "method": "initialize", "params": {}}
            < 2 -32602 "protocolVersion"
            > 3 initialize 2025-11-25 {"protocolVersion": 7}
            < 3 -32602 "protocolVersion"
            > 4 initialize 2025-11-25 {"protocolVersion": null}
            < 4 -32602 "protocolVersion"
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

    def test_a_second_initialize_does_not_change_requests_in_flight(self):
        server, go = Server("s"), gate("go")

        @server.tool
        def wait(ctx: Context) -> str:
            go.wait()
            return ctx.protocol_version

        play(server, """
            > 0 initialize 2024-11-05
            < 0 {"protocolVersion": "2024-11-05"}
            > 1 tools/call {"name": "wait"}
            > 2 initialize 2025-06-18
            < 2 {"protocolVersion": "2025-06-18"}
            ! go
            < 1 {"content": [{"text": "2024-11-05"}]}
            > 3 tools/call {"name": "wait"}
            < 3 {"content": [{"text": "2025-06-18"}]}
            """, go=go.set)

    @clause("2025-11-25/basic/lifecycle",
            "The initialization phase **MUST** be the first interaction between "
            "client and server.")
    def test_before_initialize_only_a_ping_gets_a_result(self):
        play(zoo(), """
            > 1 ping
            <= 1 {}
            > 2 tools/list
            < 2 -32600 "initialize"
            > 3 nope
            < 3 -32600 "initialize"
            > 4 tools/call {"name": "echo", "arguments": {"text": "x"}}
            < 4 -32600 "initialize"
            > 5 subscriptions/listen {"notifications": {}}
            < 5 -32600 "initialize"
            > 6 tools/list {"_meta": {"progressToken": 1}}
            < 6 -32600 "initialize"
            > 7 server/discover
            < 7 -32602 "io.modelcontextprotocol/protocolVersion"
            > 8 server/discover {"_meta": {}}
            < 8 -32602 "io.modelcontextprotocol/clientCapabilities"
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
        received = play(server, """
            > 1 initialize 2025-11-25
            <= 1 {"protocolVersion": "2025-11-25", "capabilities": "$capabilities",
                "serverInfo": "$info", "instructions": "Be kind."}
            > 2 modern server/discover
            < 2 {"instructions": "Be kind.", "_meta":
                {"io.modelcontextprotocol/serverInfo": "$info"}}
            """)
        self.assertEqual(received["info"], {
            "name": "s", "version": "1.2", "title": "The S", "description": "Does s.",
            "icons": icons, "websiteUrl": "https://example.com"})
        self.assertEqual(received["capabilities"],
                         {"logging": {}, "experimental": {"x": {}}})

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_capabilities_follow_from_what_is_registered_at_the_time(self):
        server = Server("s")
        script = """
            > 1 initialize 2025-11-25
            < 1 {"capabilities": "$before"}
            ! register
            > 2 initialize 2025-11-25
            < 2 {"capabilities": "$after"}
            > 3 modern server/discover
            < 3 {"capabilities": "$modern"}
            """

        def register():
            server.add_tool(lambda: None, name="t")
            server.add_resource("s://{x}", lambda x: x)
            server.add_prompt(lambda: "p", name="p")
            server.completion("p", "x")(lambda value: [])

        received = play(server, script, register=register)
        self.assertEqual(received["before"], {"logging": {}})
        self.assertEqual(received["after"], {
            "logging": {}, "completions": {}, "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True}})
        self.assertEqual(received["modern"], received["after"])

    def test_a_capability_that_is_switched_off_is_neither_declared_nor_served(self):
        server = Server("s", capabilities={"resources": {"subscribe": False}})
        server.resource("x://y")(lambda: "")
        play(server, """
            > 0 initialize
            < 0 {"capabilities": {"logging": {}, "resources": "$declared"}}
            > 1 resources/subscribe {"uri": "x://y"}
            < 1 -32601
            ! update
            < fence
            > 2 modern subscriptions/listen {"notifications": {
                "resourceSubscriptions": ["x://y"], "resourcesListChanged": true}}
            < notifications/subscriptions/acknowledged {"notifications": "$accepted"}
            > notifications/cancelled {"requestId": 2}
            """, declared={"listChanged": True},
             accepted={"resourcesListChanged": True},
             update=lambda: server.notify_resource_updated("x://y"))

    @clause("2025-11-25/server/utilities/completion",
            "Method not found: `-32601` (Capability not supported)")
    @both_eras
    def test_methods_of_a_capability_that_is_not_declared_are_unknown(self, era):
        play(Server("empty"), """
            > 1 tools/list
            < 1 -32601
            > 2 tools/call {"name": "x"}
            < 2 -32601
            > 3 resources/list
            < 3 -32601
            > 4 resources/templates/list
            < 4 -32601
            > 5 resources/read {"uri": "x://y"}
            < 5 -32601
            > 6 prompts/list
            < 6 -32601
            > 7 prompts/get {"name": "x"}
            < 7 -32601
            > 8 completion/complete {"ref": {"type": "ref/prompt", "name": "x"},
                "argument": {"name": "a", "value": ""}}
            < 8 -32601
            > 9 resources/subscribe {"uri": "x://y"}
            < 9 -32601
            """, era=era)

    def test_results_of_the_handshake_era_have_no_members_of_the_stateless_era(self):
        play(zoo(page_size=1), """
            > 1 tools/list
            <= 1 {"tools": "...", "nextCursor": "$next"}
            > 2 tools/list {"cursor": "$next"}
            <= 2 {"tools": "..."}
            > 3 prompts/list
            <= 3 {"prompts": "..."}
            > 4 resources/list
            <= 4 {"resources": "..."}
            > 5 resources/templates/list
            <= 5 {"resourceTemplates": []}
            > 6 resources/read {"uri": "zoo://sign"}
            <= 6 {"contents": [{"uri": "zoo://sign", "mimeType": "text/plain", "text":
                "open"}]}
            > 7 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
            < 7 {"messages": [{"role": "user", "content": {"type": "text", "text":
                "Hello, Ada"}}]}
            > 8 tools/call {"name": "echo", "arguments": {"text": "x"}}
            <= 8 {"content": [{"type": "text", "text": "x"}], "isError": false}
            > 9 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "A"}}
            <= 9 {"completion": {"values": ["Ada", "Alan"], "total": 2, "hasMore":
                false}}
            > 10 resources/subscribe {"uri": "zoo://sign"}
            <= 10 {}
            > 11 logging/setLevel {"level": "error"}
            <= 11 {}
            """, era="legacy")


class Test7Stateless(unittest.TestCase):
    """The revision in which each request carries all that it needs."""

    @clause("2026-07-28/server/discover", "Servers **MUST** implement it.")
    def test_discover_describes_the_server(self):
        play(zoo(instructions="Feed them."), """
            > 1 modern server/discover
            <= 1 {"resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": "$capabilities", "instructions": "Feed them.",
                "ttlMs": 0, "cacheScope": "$scope", "_meta":
                {"io.modelcontextprotocol/serverInfo":
                {"name": "zoo", "version": "1"}}}
            """)

    @clause("2026-07-28/basic/index",
            "The `result` **MUST** include a `resultType` field to indicate the type "
            "of the result.")
    @clause("2026-07-28/server/utilities/caching", "`ttlMs`")
    def test_results_have_their_type_and_how_long_they_may_be_cached(self):
        play(zoo(cache_ttl=1.5, cache_scope="private", page_size=1), """
            > 1 tools/list
            < 1 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "zoo"}},
                "nextCursor": "$next"}
            > 2 tools/list {"cursor": "$next"}
            < 2 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private"}
            > 3 prompts/list
            < 3 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private"}
            > 4 resources/list
            < 4 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private"}
            > 5 resources/templates/list
            < 5 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private"}
            > 6 resources/read {"uri": "zoo://sign"}
            < 6 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private",
                "contents": "..."}
            > 7 server/discover
            < 7 {"resultType": "complete", "ttlMs": 1500, "cacheScope": "private"}
            # other results may not be cached
            > 8 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
            < 8 {"resultType": "complete", "_meta":
                {"io.modelcontextprotocol/serverInfo": {"name": "zoo"}}}
            > 9 tools/call {"name": "echo", "arguments": {"text": "x"}}
            <= 9 {"resultType": "complete", "content": [{"type": "text", "text": "x"}],
                "isError": false,
                "_meta": {"io.modelcontextprotocol/serverInfo":
                {"name": "zoo", "version": "1"}}}
            > 10 completion/complete {"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "A"}}
            <= 10 {"resultType": "complete", "completion": "...", "_meta": "..."}
            """, era="modern")

    @clause("2026-07-28/basic/versioning",
            "it **MUST** respond with an [`UnsupportedProtocolVersionError`]")
    def test_the_error_for_an_unsupported_version_lists_the_supported_versions(self):
        for version in "2099-01-01", "2025-11-25", "", "2026-07-28 ":
            play(zoo(), """
                > 1 modern tools/list {"_meta":
                    {"io.modelcontextprotocol/protocolVersion": "$v"}}
                < 1 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > 2 modern server/discover {"_meta":
                    {"io.modelcontextprotocol/protocolVersion": "$v"}}
                < 2 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > 3 initialize 2025-11-25
                < 3 {"protocolVersion": "2025-11-25"}
                """, v=version)

    @clause("2026-07-28/basic/index",
            "A request missing any required field is malformed; the server **MUST** "
            "reject it with JSON-RPC error code `-32602` (Invalid params).")
    def test_the_error_names_the_invalid_metadata(self):
        play(zoo(), """
            > 1 tools/list {"_meta": {"io.modelcontextprotocol/protocolVersion":
                "2026-07-28"}}
            < 1 -32602 "io.modelcontextprotocol/clientCapabilities"
            > 2 modern tools/list {"_meta":
                {"io.modelcontextprotocol/clientCapabilities": []}}
            < 2 -32602 "io.modelcontextprotocol/clientCapabilities"
            > 3 modern tools/list {"_meta":
                {"io.modelcontextprotocol/clientCapabilities": null}}
            < 3 -32602 "io.modelcontextprotocol/clientCapabilities"
            > 4 modern tools/list {"_meta": {"io.modelcontextprotocol/protocolVersion":
                7}}
            < 4 -32602 "io.modelcontextprotocol/protocolVersion"
            > 5 modern tools/list {"_meta": {"io.modelcontextprotocol/protocolVersion":
                null}}
            < 5 -32602 "io.modelcontextprotocol/protocolVersion"
            > 6 modern tools/list {"_meta": {"io.modelcontextprotocol/clientInfo": 42}}
            < 6 -32602 "io.modelcontextprotocol/clientInfo"
            > 7 modern tools/list {"_meta": {"io.modelcontextprotocol/logLevel":
                "loud"}}
            < 7 -32602 "io.modelcontextprotocol/logLevel"
            > 8 modern tools/list {"_meta": {"io.modelcontextprotocol/logLevel": 7}}
            < 8 -32602 "io.modelcontextprotocol/logLevel"
            # clientInfo is optional
            > 9 tools/list {"_meta": {"io.modelcontextprotocol/protocolVersion":
                "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}
            < 9 {"resultType": "complete"}
            > 10 tools/list {"_meta": {"io.modelcontextprotocol/clientCapabilities":
                {}}}
            < 10 -32602 "io.modelcontextprotocol/protocolVersion"
            > 11 initialize 2025-11-25
            < 11 {"protocolVersion": "2025-11-25"}
            """)

    def test_metadata_that_is_not_an_object_gets_a_response(self):
        with wire(zoo()) as client:
            for meta in None, 7, "x", [], True:
                response = client.ask('1 tools/list {"_meta": %s}' % json.dumps(meta))
                self.assertIn(response["error"]["code"], (-32600, -32602))
            play(client, "> handshake")
            for meta in None, 7, "x", [], True:
                client.ask('1 tools/call {"name": "echo", "arguments": {"text": "x"}, '
                           '"_meta": %s}' % json.dumps(meta))
                client.fence()

    def test_methods_of_the_handshake_era_are_unknown(self):
        play(zoo(), """
            > 1 modern initialize 2025-11-25
            < 1 -32601 {"method": "initialize"}
            > 2 modern ping
            < 2 -32601 {"method": "ping"}
            > 3 modern logging/setLevel {"level": "info"}
            < 3 -32601
            > 4 modern resources/subscribe {"uri": "zoo://sign"}
            < 4 -32601
            > 5 modern resources/unsubscribe {"uri": "zoo://sign"}
            < 5 -32601
            > 6 modern nope
            < 6 -32601 {"method": "nope"}
            > 7 modern roots/list
            < 7 -32601
            > 8 tools/list
            < 8 -32600 "initialize"
            """)

    def test_methods_of_the_stateless_era_need_its_metadata(self):
        play(zoo(), """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            < 1 -32601
            > 2 server/discover
            < 2 -32602 "io.modelcontextprotocol/protocolVersion"
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
                    "capabilities": sorted(ctx.client_capabilities)}

        play(server, """
            > 1 modern server/discover
            < 1 {"supportedVersions": ["2026-07-28"]}
            > 2 tools/call {"name": "describe"}
            < 2 -32600 "initialize"
            > 3 initialize 2025-06-18 {"capabilities": {"roots": {}}}
            < 3 {"protocolVersion": "2025-06-18"}
            > 4 modern tools/call {"name": "describe", "_meta":
                {"io.modelcontextprotocol/clientInfo": {"name": "another", "version":
                "2"}}}
            < 4 {"resultType": "complete", "structuredContent": {"version":
                "2026-07-28", "client": {"name": "another"}, "capabilities":
                ["elicitation", "roots", "sampling"]}}
            > 5 tools/call {"name": "describe"}
            <= 5 {"content": "...", "isError": false, "structuredContent": {"version":
                "2025-06-18", "client": {"name": "tester", "version": "1"},
                "capabilities": ["roots"]}}
            > 6 modern tools/call {"name": "describe", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {}}}
            < 6 {"structuredContent": {"capabilities": []}}
            > 7 ping
            <= 7 {}
            > 8 modern ping
            < 8 -32601
            """)

    def test_trace_context_reaches_the_handler_unchanged(self):
        server = Server("s")

        @server.tool
        def meta(ctx: Context) -> dict:
            return ctx.meta

        play(server, """
            > 1 tools/call {"name": "meta", "_meta": {"traceparent": "00-0af7-b7ad-01",
                "tracestate": "a=b", "baggage": "k=v", "com.example/x": [1]}}
            < 1 {"structuredContent": {"traceparent": "00-0af7-b7ad-01", "tracestate":
                "a=b", "baggage": "k=v", "com.example/x": [1]}}
            """, era="modern")

    @clause("2026-07-28/basic/transports/stdio",
            "The server **MUST NOT** write JSON-RPC _requests_ to `stdout`.")
    def test_the_server_never_writes_a_request(self):
        """Every message is the response to the call, whatever the client can do."""
        server = Server("s")

        @server.tool
        def ask(ctx: Context) -> str:
            ctx.info("this log was not requested")
            for question in (
                    lambda: ctx.elicit("Name?", str), lambda: ctx.sample("Hi"),
                    lambda: ctx.elicit_url("Go", "https://x.io"), ctx.list_roots):
                with contextlib.suppress(Exception):
                    question()
            return "done"

        with wire(server) as client:
            for capabilities in {}, {"roots": {}}, {"sampling": {}}, ALL_CAPABILITIES:
                response = client.ask(
                    '1 modern tools/call {"name": "ask", "_meta": {'
                    '"io.modelcontextprotocol/clientCapabilities": %s}}'
                    % json.dumps(capabilities))
                self.assertNotIn("method", response)
                self.assertEqual(response["id"], 1)

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
            < notifications/subscriptions/acknowledged {"_meta":
                {"io.modelcontextprotocol/subscriptionId": 1}, "notifications":
                {"toolsListChanged": true, "resourceSubscriptions": ["zoo://sign",
                "zoo://other"]}}
            > "1" subscriptions/listen {"notifications": {"promptsListChanged": true,
                "toolsListChanged": false}}
            < notifications/subscriptions/acknowledged {"_meta":
                {"io.modelcontextprotocol/subscriptionId": "1"}, "notifications":
                {"promptsListChanged": true}}
            > 3 subscriptions/listen {"notifications": {}}
            < notifications/subscriptions/acknowledged {"_meta":
                {"io.modelcontextprotocol/subscriptionId": 3}}
            ! tool
            < notifications/tools/list_changed {"_meta":
                {"io.modelcontextprotocol/subscriptionId": 1}}
            ! prompt
            < notifications/prompts/list_changed {"_meta":
                {"io.modelcontextprotocol/subscriptionId": "1"}}
            ! resource
            < fence
            ! sign
            < notifications/resources/updated {"uri": "zoo://sign", "_meta":
                {"io.modelcontextprotocol/subscriptionId": 1}}
            ! third_uri
            < fence
            # at the end of input each stream gets its result
            > EOF
            <* 1 {}
            <* "1" {"resultType": "complete", "_meta":
                {"io.modelcontextprotocol/subscriptionId": "1"}}
            <* 3 {"resultType": "complete", "_meta":
                {"io.modelcontextprotocol/subscriptionId": 3}}
            """, era="modern",
             tool=lambda: server.add_tool(lambda: None, name="late"),
             prompt=lambda: server.add_prompt(lambda: "x", name="late"),
             resource=lambda: server.add_resource("zoo://late", lambda: "x"),
             sign=lambda: server.notify_resource_updated("zoo://sign"),
             third_uri=lambda: server.notify_resource_updated("zoo://third"))

    def test_a_cancelled_stream_gets_nothing_more_and_its_id_is_free(self):
        server = zoo()
        play(server, """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            < notifications/subscriptions/acknowledged
            > 2 subscriptions/listen {"notifications": {}}
            < notifications/subscriptions/acknowledged
            > 1 tools/list
            < 1 -32600
            > notifications/cancelled {"requestId": 1}
            < fence
            ! change
            < fence
            > 1 tools/list
            < 1 {"resultType": "complete"}
            > EOF
            < 2 {"resultType": "complete"}
            """, era="modern", change=lambda: server.remove_tool("echo"))

    @clause("2026-07-28/basic/patterns/subscriptions",
            "Notification types the server does not support are omitted.")
    def test_only_supported_notifications_are_acknowledged(self):
        server = Server("s")
        server.add_tool(lambda: None, name="t")
        received = play(server, """
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true,
                "promptsListChanged": true, "resourcesListChanged": true,
                "resourceSubscriptions": ["x://y"], "moonPhase": true}}
            < notifications/subscriptions/acknowledged {"notifications": "$accepted"}
            > notifications/cancelled {"requestId": 1}
            """, era="modern")
        self.assertEqual(received["accepted"], {"toolsListChanged": True})

    def test_an_invalid_filter_of_notifications_is_refused(self):
        play(zoo(), """
            > 1 subscriptions/listen
            < 1 -32602 "notifications"
            > 2 subscriptions/listen {"notifications": []}
            < 2 -32602 "notifications"
            > 3 subscriptions/listen {"notifications": {"toolsListChanged": "yes"}}
            < 3 -32602 "toolsListChanged"
            > 4 subscriptions/listen
                {"notifications": {"resourceSubscriptions": "zoo://sign"}}
            < 4 -32602 "resourceSubscriptions"
            > 5 subscriptions/listen {"notifications": {"resourceSubscriptions": [1]}}
            < 5 -32602 "resourceSubscriptions"
            """, era="modern")

    def test_a_stream_that_opens_at_the_end_of_input_is_ended_too(self):
        """Fails if only the thread that reads the end of input ends the streams: it may
        have looked for them before this one was registered."""
        go = gate("the second request may run")

        class SlowServer(Server):
            def dispatch(self, *request):
                go.wait()
                return super().dispatch(*request)

        server = SlowServer("s", drain_seconds=60)
        server.tool(lambda: "", name="t")
        go.set()
        play(server, """
            > 1 modern subscriptions/listen {"notifications":
                {"toolsListChanged": true}}
            < notifications/subscriptions/acknowledged {}
            ! block
            > 2 modern subscriptions/listen {"notifications":
                {"toolsListChanged": true}}
            > EOF
            < 1 {"resultType": "complete"}
            ! go
            < notifications/subscriptions/acknowledged {}
            < 2 {"resultType": "complete"}
            """, block=go.clear, go=go.set)

    def test_the_end_of_a_connection_removes_its_streams(self):
        """Fails (the server grows with every client) if only a cancellation does."""
        server = Server("s")
        server.tool(lambda: "", name="t")
        for _ in range(3):
            play(server, """
                > 1 modern subscriptions/listen {"notifications":
                    {"toolsListChanged": true}}
                < notifications/subscriptions/acknowledged {}
                > EOF
                < 1 {"resultType": "complete"}
                """)
        self.assertEqual(list(server.subscribers), [])

    def test_a_stream_needs_no_thread(self):
        server = zoo(max_workers=1)
        with wire(server) as client:
            before = threading.active_count()
            for n in range(100):
                client.ask('%d modern subscriptions/listen {"notifications": '
                           '{"toolsListChanged": true}}' % n)
            self.assertLess(threading.active_count() - before, 4)
            server.remove_tool("echo")
            ids = {client.recv()["params"]["_meta"][KEY + "subscriptionId"]
                   for _ in range(100)}
            self.assertEqual(ids, set(range(100)))
            client.fence()
            self.assertEqual({response["id"] for response in client.hang_up()}, ids)

    def test_no_notification_comes_before_the_acknowledgement(self):
        """Tools are added and removed while streams are opened and cancelled.  Fails if
        a stream is registered and acknowledged under two locks, or if a cancelled
        stream is not removed."""
        server, stop = zoo(), threading.Event()

        def change():
            while not stop.is_set():
                server.add_tool(lambda: None, name="new")
                server.remove_tool("new")

        changing = threading.Thread(target=change)
        state = {}
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
                expected = "open"
                if received["method"].endswith("acknowledged"):
                    expected = None
                self.assertEqual(state.get(n), expected, received)
                state[n] = "open"
        self.assertEqual(state, dict.fromkeys(range(100), "cancelled"))

    # -- notifications of changes ------------------------------------------------------

    def test_list_changes_reach_initialized_sessions_and_streams(self):
        server = zoo()
        play(server, """
            > 1 initialize 2025-11-25
            < 1 {}
            > notifications/initialized
            > 2 modern subscriptions/listen {"notifications": {"toolsListChanged":
                true}}
            < notifications/subscriptions/acknowledged {}
            ! change
            <* notifications/tools/list_changed {"_meta":
                {"io.modelcontextprotocol/subscriptionId": 2}}
            <* notifications/tools/list_changed
            > 3 tools/list
            < 3 {"tools": [{"name": "echo"}, {"name": "same"}, {"name": "late"}]}
            > notifications/cancelled {"requestId": 2}
            """, change=lambda: server.add_tool(lambda: None, name="late"))

    def test_no_notification_comes_before_initialized(self):
        server = zoo()

        def change():
            server.remove_tool("echo")
            server.remove_prompt("greet")

        with wire(server) as client:
            play(client, """
                ! change
                < fence
                > 1 initialize 2025-11-25
                < 1 {}
                > 2 resources/subscribe {"uri": "zoo://sign"}
                <= 2 {}
                ! sign
                < fence
                """, change=change,
                 sign=lambda: server.notify_resource_updated("zoo://sign"))
            client.say("notifications/initialized")
            for received in client.hang_up():
                self.assertEqual(received["method"], "notifications/resources/updated")

    def test_an_update_is_kept_once_until_initialized(self):
        """Fails (the server grows with every change) if each update is kept."""
        server = zoo()
        with wire(server) as client:
            play(client, """
                > 1 initialize 2025-11-25
                < 1 {}
                > 2 resources/subscribe {"uri": "zoo://sign"}
                <= 2 {}
                """)
            for _ in range(100):
                server.notify_resource_updated("zoo://sign")
            play(client, """
                > notifications/initialized
                < notifications/resources/updated {"uri": "zoo://sign"}
                < fence
                """)

    def test_a_change_of_a_list_is_sent_only_if_that_was_declared(self):
        declared = {"tools": {"listChanged": True}}
        for capabilities, expected in (
                ({}, []), (declared, ["notifications/tools/list_changed"])):
            server = Server("s", capabilities=capabilities)
            with wire(server) as client:
                play(client, "> handshake")
                client.fence()
                server.add_tool(lambda: None, name="first")
                received = [notification["method"] for notification in client.hang_up()]
                self.assertEqual(received, expected)

    @clause("2025-11-25/server/resources", "notifications/resources/updated")
    def test_updates_reach_only_subscribers(self):
        server = zoo()
        with wire(server) as other:
            play(other, "> handshake")
            play(server, """
                > 1 resources/subscribe {"uri": "zoo://sign"}
                <= 1 {}
                > 2 resources/subscribe {"uri": "zoo://sign"}
                <= 2 {}
                ! sign
                < notifications/resources/updated {"uri": "zoo://sign"}
                < fence
                ! another
                < fence
                > 3 resources/unsubscribe {"uri": "zoo://sign"}
                <= 3 {}
                > 4 resources/unsubscribe {"uri": "zoo://never"}
                <= 4 {}
                ! sign
                < fence
                > 5 resources/subscribe {}
                < 5 -32602 "uri"
                > 6 resources/subscribe {"uri": 7}
                < 6 -32602 "uri"
                """, era="legacy",
                 sign=lambda: server.notify_resource_updated("zoo://sign"),
                 another=lambda: server.notify_resource_updated("zoo://another"))
            other.fence()

    # -- log messages ------------------------------------------------------------------

    def logger(self):
        """A server whose tool `talk` logs once at every level, and once as `db`."""
        server = Server("s")

        @server.tool
        def talk(ctx: Context):
            for level in ("debug", "info", "notice", "warning", "error", "critical",
                          "alert", "emergency"):
                getattr(ctx, level)("to " + level)
            ctx.log("error", {"code": 7}, logger_name="db")
        return server

    @clause("2025-11-25/server/utilities/logging",
            "Invalid log level: `-32602` (Invalid params)")
    def test_a_session_sets_its_log_level(self):
        play(self.logger(), """
            > 1 tools/call {"name": "talk"}
            < notifications/message {"level": "info", "data": "to info"}
            < notifications/message {"level": "notice"}
            < notifications/message {"level": "warning"}
            < notifications/message {"level": "error"}
            < notifications/message {"level": "critical"}
            < notifications/message {"level": "alert"}
            < notifications/message {"level": "emergency"}
            < notifications/message {"level": "error", "data": {"code": 7}, "logger":
                "db"}
            < 1 {"content": "..."}
            > 2 logging/setLevel {"level": "alert"}
            <= 2 {}
            > 3 tools/call {"name": "talk"}
            < notifications/message {"level": "alert", "data": "to alert"}
            < notifications/message {"level": "emergency", "data": "to emergency"}
            < 3 {}
            > 4 logging/setLevel {"level": "loud"}
            < 4 -32602 "level"
            > 5 logging/setLevel {"level": 7}
            < 5 -32602
            > 6 logging/setLevel {}
            < 6 -32602 "level"
            > 7 logging/setLevel {"level": "debug"}
            <= 7 {}
            > 8 tools/call {"name": "talk"}
            < notifications/message {"level": "debug", "data": "to debug"}
            < notifications/message {"level": "info"}
            < notifications/message {"level": "notice"}
            < notifications/message {"level": "warning"}
            < notifications/message {"level": "error"}
            < notifications/message {"level": "critical"}
            < notifications/message {"level": "alert"}
            < notifications/message {"level": "emergency"}
            < notifications/message {"level": "error", "logger": "db"}
            < 8 {}
            """, era="legacy")

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
            > 3 modern tools/call {"name": "talk", "_meta":
                {"io.modelcontextprotocol/logLevel": "alert"}}
            < notifications/message {"level": "alert", "data": "to alert"}
            < notifications/message {"level": "emergency"}
            < 3 {}
            > 4 modern tools/call {"name": "talk"}
            < 4 {}
            """)


# ======================================================================================
# 10  Server
# ======================================================================================

@dataclasses.dataclass
class Point:
    x: int
    y: int


class Test10Tools(unittest.TestCase):
    """tools/list and tools/call."""

    @both_eras
    def test_a_malformed_call_is_an_invalid_params_error(self, era):
        """The name is unknown or no string, or the arguments are no object."""
        play(zoo(), """
            > 1 tools/call {"name": "fly", "arguments": {}}
            < 1 -32602 "fly" {"name": "fly"}
            > 2 tools/call {"arguments": {}}
            < 2 -32602
            > 3 tools/call {"name": 7}
            < 3 -32602
            > 4 tools/call {"name": null}
            < 4 -32602
            > 5 tools/call {"name": ["echo"]}
            < 5 -32602
            > 6 tools/call {"name": "echo", "arguments": ["x"]}
            < 6 -32602 "arguments"
            > 7 tools/call {"name": "echo", "arguments": "x"}
            < 7 -32602 "arguments"
            > 8 tools/call {"name": "echo", "arguments": 0}
            < 8 -32602 "arguments"
            > 9 tools/call {"name": "Echo", "arguments": {"text": "x"}}
            < 9 -32602 {"name": "Echo"}
            > 10 tools/call {}
            < 10 -32602
            """, era=era)

    @both_eras
    def test_arguments_may_be_absent_or_null(self, era):
        server = Server("s")
        server.add_tool(lambda: "hi", name="hi")
        play(server, """
            > 1 tools/call {"name": "hi"}
            < 1 {"content": [{"type": "text", "text": "hi"}]}
            > 2 tools/call {"name": "hi", "arguments": null}
            < 2 {"content": "..."}
            > 3 tools/call {"name": "hi", "arguments": {}}
            < 3 {"content": "..."}
            """, era=era)

    @clause("2025-11-25/server/tools", "Input validation errors")
    def test_invalid_arguments(self):
        """They are a JSON-RPC error up to 2025-06-18.  Later they are a result that the
        model can read, so that it can correct its call."""
        server = Server("s")

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        invalid_call = '{"name": "add", "arguments": {"a": "x", "c": 1}}'
        for revision in LEGACY[:3]:
            play(server, """
                > handshake %s
                > 1 tools/call %s
                < 1 -32602 "a"
                """ % (revision, invalid_call))
        for era in "legacy", "modern":
            names = play(server, """
                > 1 tools/call %s
                < 1 {"isError": true, "content": [{"type": "text", "text":
                    "$problems"}]}
                """ % invalid_call, era=era)
            problems = sorted(names["problems"].splitlines()[-3:])
            for name, problem in zip("abc", problems):
                self.assertRegex(problem, r"\b%s\b" % name)

    def test_an_exception_becomes_an_error_result(self):
        """Whatever a tool raises, the server keeps running, and the client gets no
        traceback."""
        class Unprintable(Exception):
            def __str__(self):
                raise ValueError("no")

        exceptions = {
            "ValueError": ValueError("bad \n value"), "KeyError": KeyError("k"),
            "SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt(),
            "GeneratorExit": GeneratorExit(), "MemoryError": MemoryError(),
            "RecursionError": RecursionError(), "Unprintable": Unprintable(),
            "StopIteration": StopIteration(), "surrogate": Exception("\ud800"),
            "BrokenPipeError": BrokenPipeError(), "OSError": OSError(9, "x"),
        }
        server = Server("s")

        @server.tool
        def fail(how: str):
            raise exceptions[how]

        @server.tool
        def deep() -> int:
            return 1 + deep()

        for era in "legacy", "modern":
            with quiet() as stderr, wire(server) as client:
                if era == "legacy":
                    play(client, "> handshake")
                for how in exceptions:
                    with self.subTest(how, era=era):
                        result = client.ask(
                            '1 tools/call {"name": "fail", "arguments": {"how": "%s"}}'
                            % how, era)["result"]
                        self.assertIs(result["isError"], True)
                        text = result["content"][0]["text"]
                        self.assertNotIn("Traceback", text)
                        self.assertNotIn(__file__, text)
                        client.fence()
                deep = client.ask('2 tools/call {"name": "deep"}', era)
                self.assertIs(deep["result"]["isError"], True)
            self.assertIn("Traceback", stderr.getvalue())
            self.assertIn("bad", stderr.getvalue())

    @both_eras
    def test_a_tool_can_raise_tool_error_or_mcp_error(self, era):
        server = Server("s")

        @server.tool
        def fail(how: str):
            if how == "tool":
                raise ToolError("no such file")
            raise McpError(-32001, "not now", {"retry": 5})

        with quiet() as stderr:
            play(server, """
                > 1 tools/call {"name": "fail", "arguments": {"how": "tool"}}
                < 1 {"isError": true, "content": [{"type": "text", "text": "no such
                    file"}]}
                > 2 tools/call {"name": "fail", "arguments": {"how": "rpc"}}
                < 2 -32001 "not now" {"retry": 5}
                """, era=era)
        self.assertNotIn("Traceback", stderr.getvalue())

    @clause("2026-07-28/basic/index", "Implementations of this protocol version "
            "**MUST NOT** emit these codes")
    def test_error_codes_are_those_of_the_revision(self):
        """A handler raises one code, and each era sends the code that its revision
        defines for the same error."""
        server, code = Server("s"), queue.Queue()

        @server.resource("menu://{day}")
        def menu(day: str):
            raise McpError(code.get(), "closed", {"day": day})

        rows = [  # the code raised, the code sent in the handshake era and after it
            (mcp_min.RESOURCE_NOT_FOUND, -32002, -32602), (-32042, -32042, -32603),
            (-32020, -32020, -32020), (-32055, -32055, -32603),
            (-32099, -32099, -32603), (-32021, -32021, -32021),
            (-32019, -32019, -32019), (-32100, -32100, -32100), (7, 7, 7)]
        for raised, legacy, modern in rows:
            for era, sent in ("legacy", legacy), ("modern", modern):
                with self.subTest(raised=raised, era=era):
                    code.put(raised)
                    play(server, """
                        > 1 resources/read {"uri": "menu://monday"}
                        < 1 %d "closed" {"day": "monday"}
                        """ % sent, era=era)
        with self.assertRaisesRegex(TypeError, "an error code must be an int"):
            McpError("oops", "no")

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
        """From the first bytes of an image; an embedded text is text/plain."""
        rows = [(b"\x89PNG...", "image/png"), (b"\xff\xd8\xff...", "image/jpeg"),
                (b"GIF89a", "image/gif"), (b"RIFF....WEBP", "image/webp"),
                (b"?", "image/png"), (b"RIFF....WAVE", "image/png")]
        for data, mime_type in rows:
            self.assertEqual(Image(data=data)["mimeType"], mime_type)
        self.assertEqual(mcp_min.Audio(data=b"RIFF....WAVE")["mimeType"], "audio/wav")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "scan.png")
            pathlib.Path(path).write_bytes(b"?")
            for options, mime_type in (({}, "image/png"), ({"format": "jpeg"},
                                       "image/jpeg"), ({"mimeType": "a/b"}, "a/b")):
                self.assertEqual(Image(path=path, **options)["mimeType"], mime_type)
        self.assertEqual(Image(data=b"GIF8", mime_type="x/y")["mimeType"], "x/y")
        for options, mime_type in (({"text": "a"}, "text/plain"),
                                   ({"data": b"a"}, "application/octet-stream")):
            resource = EmbeddedResource("x://y", **options)["resource"]
            self.assertEqual(resource["mimeType"], mime_type)

    def test_errors_can_be_masked(self):
        server = Server("s", mask_errors=True)

        @server.tool
        def fail():
            raise ValueError("the password is swordfish")

        @server.tool
        def refuse():
            raise ToolError("on purpose")

        @server.tool
        def encode():
            return mcp_min.ToolResult("x", meta={"swordfish": {1, 2}})

        @server.prompt(name="p")
        def prompt():
            raise ValueError("the password is swordfish")

        with quiet():
            names = play(server, """
                > 1 tools/call {"name": "fail"}
                < 1 {"isError": true, "content": [{"type": "text", "text": "$text"}]}
                > 2 tools/call {"name": "refuse"}
                < 2 {"isError": true, "content": [{"type": "text", "text": "on
                    purpose"}]}
                > 3 prompts/get {"name": "p"}
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
        values = [float("nan"), float("inf"), {1, 2}, b"\xff", object(), circular,
                  10 ** 5000, "\ud800", deep, Point(1, 2), None, {1: 2}, {(1, 2): 3},
                  {"k": {1, 2}}, {"k": b"\0"}, 1 + 2j, Ellipsis, len, int,
                  [float("nan")], range(3), iter([1]), True, 7, 1.5, [], {}, "",
                  ["a", "b"], (1, "x")]
        server = Server("s")

        @server.tool
        def give(n: int):
            return values[n]

        for era in "legacy", "modern":
            with quiet(), wire(server) as client:
                if era == "legacy":
                    play(client, "> handshake")
                for n, value in enumerate(values):
                    with self.subTest(str(type(value)), n=n, era=era):
                        response = client.ask(
                            '%d tools/call {"name": "give", "arguments": {"n": %d}}'
                            % (n, n), era)
                        self.assertEqual(response["id"], n)
                        if "result" in response:
                            result = response["result"]
                            self.assertIsInstance(result["content"], list)
                            self.assertIsInstance(
                                result.get("structuredContent", {}), dict)
                        client.fence()

    @both_eras
    def test_how_a_return_value_becomes_content(self, era):
        server = Server("s")
        values = {
            "text": "plain", "none": None, "dict": {"a": 1}, "point": Point(1, 2),
            "block": Text("hi"), "blocks": [Text("a"), Text("b")],
            "image": Image(data=b"\0\1", mime_type="image/png"),
            "link": ResourceLink("x://y", "y"),
            "embedded": EmbeddedResource("x://y", text="z"),
            "block-like dict": {"type": "text", "text": "just data"}}

        @server.tool
        def give(what: str):
            return values[what]

        play(server, """
            > 1 tools/call {"name": "give", "arguments": {"what": "text"}}
            < 1 {"content": [{"type": "text", "text": "plain"}]}
            > 2 tools/call {"name": "give", "arguments": {"what": "none"}}
            < 2 {"content": []}
            > 3 tools/call {"name": "give", "arguments": {"what": "dict"}}
            < 3 {"content": [{"type": "text", "text": "...\\"a\\"..."}],
                "structuredContent": {"a": 1}}
            > 4 tools/call {"name": "give", "arguments": {"what": "point"}}
            < 4 {"structuredContent": {"x": 1, "y": 2}}
            > 5 tools/call {"name": "give", "arguments": {"what": "block"}}
            < 5 {"content": [{"type": "text", "text": "hi"}]}
            > 6 tools/call {"name": "give", "arguments": {"what": "blocks"}}
            < 6 {"content": [{"type": "text", "text": "a"}, {"type": "text", "text":
                "b"}]}
            > 7 tools/call {"name": "give", "arguments": {"what": "image"}}
            < 7 {"content": [{"type": "image", "data": "AAE=", "mimeType":
                "image/png"}]}
            > 8 tools/call {"name": "give", "arguments": {"what": "link"}}
            < 8 {"content": [{"type": "resource_link", "uri": "x://y", "name": "y"}]}
            > 9 tools/call {"name": "give", "arguments": {"what": "embedded"}}
            < 9 {"content": [{"type": "resource", "resource": {"uri": "x://y", "text":
                "z"}}]}
            > 10 tools/call {"name": "give", "arguments": {"what": "block-like dict"}}
            < 10 {"structuredContent": {"type": "text", "text": "just data"}}
            """, era=era)

    @both_eras
    def test_a_removed_tool_is_no_longer_listed_or_called(self, era):
        server = zoo()
        play(server, """
            > 1 tools/list
            < 1 {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}, {"name":
                "same"}]}
            ! remove
            <L notifications/tools/list_changed
            > 2 tools/list
            < 2 {"tools": [{"name": "same"}]}
            > 3 tools/call {"name": "echo", "arguments": {"text": "x"}}
            < 3 -32602 {"name": "echo"}
            """, era=era, remove=lambda: server.remove_tool("echo"))

    def test_any_callable_can_be_decorated(self):
        class Plane:
            def fly(self, hours: int):
                return hours

            @staticmethod
            def land(hours: int):
                return hours

            def __call__(self, hours: int):
                return hours

        plane = Plane()
        for fn, name in ((plane.fly, "fly"), (Plane.__dict__["land"], "land"),
                         (plane, "Plane"), (functools.partial(plane.fly), "fly"),
                         (functools.partial(plane), "Plane")):
            with self.subTest(fn=fn):
                server = Server("s")
                self.assertIs(server.tool(fn), fn)
                with Client(server) as client:
                    self.assertEqual(client.call_tool(name, {"hours": 2}).data, 2)
        for no_function in (classmethod(Plane.fly), 3, b"name"):
            for decorator in (server.tool, server.prompt, server.resource,
                              server.method):
                with self.subTest(no_function, decorator=decorator), \
                        self.assertRaises(TypeError):
                    decorator(no_function)

    def test_values_between_content_blocks_become_text(self):
        server = Server("s")
        server.add_tool(lambda: [Text("a"), {"b": None}, None, "c"], name="mixed")
        play(server, """
            > 1 tools/call {"name": "mixed"}
            <= 1 {"content": [{"type": "text", "text": "a"},
                {"type": "text", "text": "{\\"b\\": null}"},
                {"type": "text", "text": "null"}, {"type": "text", "text": "c"}],
                "isError": false}
            """, era="legacy")

    def test_everything_declared_about_a_tool_is_listed(self):
        server = Server("s")

        @server.tool(
            name="n", title="T", description="D", annotations={"readOnlyHint": True},
            icons=[{"src": "data:,"}], meta={"k": "v"},
            output_schema={"type": "object"},
            input_schema={"type": "object", "properties": {"x": {"type": "string"}}})
        def tool(**arguments):
            return arguments

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
        server = Server("s", page_size=2)
        for n in range(5):
            server.add_tool(lambda: None, name="t%d" % n)
            server.add_prompt(lambda: "", name="p%d" % n)
            server.add_resource("r://%d" % n, lambda: "")
            server.add_resource("r://%d/{x}" % n, lambda x: "")
        play(server, """
            > 1 tools/list
            < 1 {"tools": [{"name": "t0"}, {"name": "t1"}], "nextCursor": "$two"}
            > 2 tools/list {"cursor": "$two"}
            < 2 {"tools": [{"name": "t2"}, {"name": "t3"}], "nextCursor": "$four"}
            > 3 tools/list {"cursor": "$four"}
            < 3 {"tools": [{"name": "t4"}]}
            > 4 prompts/list
            < 4 {"prompts": [{"name": "p0"}, {"name": "p1"}], "nextCursor": "$prompts"}
            > 5 prompts/list {"cursor": "$prompts"}
            < 5 {"prompts": [{"name": "p2"}, {"name": "p3"}], "nextCursor": "..."}
            > 6 resources/list
            < 6 {"resources": [{"uri": "r://0"}, {"uri": "r://1"}], "nextCursor": "$r"}
            > 7 resources/list {"cursor": "$r"}
            < 7 {"resources": [{"uri": "r://2"}, {"uri": "r://3"}], "nextCursor": "..."}
            > 8 resources/templates/list
            < 8 {"resourceTemplates": [{"uriTemplate": "r://0/{x}"}, "..."],
                "nextCursor": "$t"}
            > 9 resources/templates/list {"cursor": "$t"}
            < 9 {"resourceTemplates": [{"uriTemplate": "r://2/{x}"}, "..."]}
            """, era=era)

    @clause("2025-11-25/server/utilities/pagination",
            "Invalid cursors **SHOULD** result in an error with code -32602 (Invalid "
            "params).")
    @both_eras
    def test_an_invalid_cursor_is_an_error(self, era):
        server = Server("s", page_size=1)
        for name in "ab":
            server.add_tool(lambda: None, name=name)
            server.add_prompt(lambda: "", name=name)
        play(server, """
            > 1 tools/list
            < 1 {"nextCursor": "$tools"}
            # a cursor is valid only for the list that it came from
            > 2 prompts/list {"cursor": "$tools"}
            < 2 -32602 "cursor"
            > 3 tools/list {"cursor": "nonsense"}
            < 3 -32602 "cursor"
            > 4 tools/list {"cursor": 7}
            < 4 -32602 "cursor"
            > 5 tools/list {"cursor": "é\\ud800"}
            < 5 -32602 "cursor"
            > 6 tools/list {"cursor": ""}
            < 6 -32602 "cursor"
            """, era=era)

    def test_a_full_last_page_has_no_cursor(self):
        server = Server("s", page_size=2)
        for n in range(2):
            server.add_tool(lambda: None, name="t%d" % n)
        play(server, '> 1 tools/list\n<= 1 {"tools": ["...", "..."]}', era="legacy")

    def test_a_cursor_survives_additions_and_removals(self):
        server = Server("s", page_size=2)
        for n in range(6):
            server.add_tool(lambda: None, name="t%d" % n)

        def change():
            server.remove_tool("t0")
            server.remove_tool("t1")    # the tool that the cursor points after
            server.remove_tool("t4")
            server.add_tool(lambda: None, name="t6")

        play(server, """
            > 1 tools/list
            < 1 {"tools": [{"name": "t0"}, {"name": "t1"}], "nextCursor": "$next"}
            ! change
            > 2 tools/list {"cursor": "$next"}
            < 2 {"tools": [{"name": "t2"}, {"name": "t3"}], "nextCursor": "$next2"}
            > 3 tools/list {"cursor": "$next2"}
            < 3 {"tools": [{"name": "t5"}, {"name": "t6"}]}
            """, era="modern", change=change)

    def test_a_tool_added_again_keeps_its_place_in_the_list(self):
        server = Server("s", page_size=1)
        for name in "abc":
            server.add_tool(lambda: None, name=name)
        play(server, """
            > 1 tools/list
            < 1 {"tools": [{"name": "a"}], "nextCursor": "$next"}
            ! add_again
            > 2 tools/list {"cursor": "$next"}
            < 2 {"tools": [{"name": "b"}], "nextCursor": "$next2"}
            > 3 tools/list {"cursor": "$next2"}
            <= 3 {"tools": [{"name": "c", "title": "new", "inputSchema": "..."}],
                "resultType": "...", "ttlMs": 0, "cacheScope": "...", "_meta": "..."}
            """, era="modern", add_again=lambda: [
                server.add_tool(lambda: None, name=name, title="new") for name in "ca"])

    @both_eras
    def test_resources(self, era):
        server = Server("s")
        server.resource("r://text", mime_type="text/markdown", title="T", size=5)(
            lambda: "# hi\n")
        server.resource("r://blob", name="blob")(lambda: b"\0\1")
        server.resource("r://data")(lambda: {"a": 1})
        server.resource("r://fails")(lambda: 1 / 0)

        @server.resource("r://{city}/now")
        def now(city: str) -> str:
            return "now in " + city

        with quiet():
            play(server, """
                > 1 resources/list
                < 1 {"resources": [{"uri": "r://text", "mimeType": "text/markdown",
                    "title": "T", "size": 5}, {"uri": "r://blob", "name": "blob"},
                    "...", "..."]}
                > 2 resources/templates/list
                < 2 {"resourceTemplates": [{"uriTemplate": "r://{city}/now", "name":
                    "now"}]}
                > 3 resources/read {"uri": "r://text"}
                < 3 {"contents": [{"uri": "r://text", "mimeType": "text/markdown",
                    "text": "# hi\\n"}]}
                > 4 resources/read {"uri": "r://blob"}
                < 4 {"contents": [{"uri": "r://blob", "blob": "AAE="}]}
                > 5 resources/read {"uri": "r://data"}
                < 5 {"contents": [{"mimeType": "application/json", "text":
                    "...\\"a\\"..."}]}
                > 6 resources/read {"uri": "r://New%20York/now"}
                < 6 {"contents": [{"uri": "r://New%20York/now", "text": "now in New
                    York"}]}
                > 7 resources/read {"uri": "r://nothing"}
                <L 7 -32002 {"uri": "r://nothing"}
                <M 7 -32602 {"uri": "r://nothing"}
                > 8 resources/read {}
                < 8 -32602 "uri"
                > 9 resources/read {"uri": ["r://text"]}
                < 9 -32602 "uri"
                > 10 resources/read {"uri": "r://fails"}
                < 10 -32603
                > 11 resources/read {"uri": ""}
                <L 11 -32002 {"uri": ""}
                <M 11 -32602 {"uri": ""}
                """, era=era)

    def test_a_resource_without_a_name_has_that_of_its_function(self):
        server = Server("s")

        def config():
            return ""

        server.add_resource("r://x", config, name=None)
        play(server, """
            > 1 resources/list
            < 1 {"resources": [{"uri": "r://x", "name": "config"}]}
            """, era="legacy")

    def test_a_resource_needs_a_uri_with_a_scheme(self):
        with self.assertRaisesRegex(ValueError, "needs a URI with a scheme"):
            Server("s").add_resource("no address", lambda: "")

    def test_a_prompt_message_may_be_a_dict(self):
        server = Server("s")
        server.prompt(name="p")(lambda: [{"role": "assistant", "content": "hi"}])
        play(server, """
            > 1 prompts/get {"name": "p"}
            < 1 {"messages": [{"role": "assistant", "content": {"type": "text",
                "text": "hi"}}]}
            """, era="legacy")

    def test_a_prompt_message_needs_a_known_role(self):
        for role in "system", None:
            with self.assertRaisesRegex(ValueError, "role"):
                Message(role, "hi")

    @clause("2025-11-25/server/prompts",
            "Missing required arguments: `-32602` (Invalid params)")
    @both_eras
    def test_prompts(self, era):
        server = Server("s")

        @server.prompt(title="R")
        def review(code: str, language: str = "python") -> list:
            "Review code."
            return ["Review this " + language,
                    mcp_min.Message("assistant", mcp_min.Text(code))]

        server.add_prompt(lambda: 1 / 0, name="fails")
        with quiet():
            play(server, """
                > 1 prompts/list
                < 1 {"prompts": [{"name": "review", "title": "R", "description": "Review
                    code.", "arguments": [{"name": "code", "required": true}, {"name":
                    "language", "required": false}]}, {"name": "fails"}]}
                > 2 prompts/get {"name": "review", "arguments": {"code": "1+1"}}
                < 2 {"messages": [{"role": "user", "content": {"type": "text", "text":
                    "Review this python"}}, {"role": "assistant", "content": {"type":
                    "text", "text": "1+1"}}]}
                > 3 prompts/get {"name": "review"}
                < 3 -32602 "code"
                > 4 prompts/get {"name": "nope"}
                < 4 -32602 {"name": "nope"}
                > 5 prompts/get {"name": 5}
                < 5 -32602
                > 6 prompts/get {"name": "review", "arguments": []}
                < 6 -32602 "arguments"
                > 7 prompts/get {"name": "review", "arguments": {"code": 7}}
                < 7 -32602 "code"
                > 8 prompts/get {"name": "fails"}
                < 8 -32603
                """, era=era)

    def test_completion_for_a_uri_uses_the_template_that_matches_it(self):
        server = Server("s")
        server.resource("note://{name}")(lambda name: "")
        server.completion("note://{name}", "name")(lambda value: [value + "!"])
        play(server, """
            > 1 completion/complete {"ref": {"type": "ref/resource", "uri": "note://x"},
                "argument": {"name": "name", "value": "a"}}
            < 1 {"completion": {"values": ["a!"]}}
            """, era="legacy")

    @clause("2025-11-25/server/utilities/completion", "Maximum 100 items per response")
    @both_eras
    def test_completion(self, era):
        server = Server("s")
        server.add_prompt(lambda language, framework: "", name="review")
        server.resource("r://{city}/now")(lambda city: "")

        @server.completion("review", "language")
        def languages(value: str):
            return [value + str(n) for n in range(250)]

        @server.completion("review", "framework")
        def frameworks(value: str, context: dict):
            return [context["language"] + "-" + value]

        @server.completion("r://{city}/now", "city")
        def cities(value):
            return ("Oslo",)

        names = play(server, """
            > 1 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
                "argument": {"name": "language", "value": "py"}}
            < 1 {"completion": {"values": "$values", "total": 250, "hasMore": true}}
            > 2 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
                "argument": {"name": "framework", "value": "fla"}, "context":
                {"arguments": {"language": "python"}}}
            < 2 {"completion": {"values": ["python-fla"], "total": 1, "hasMore": false}}
            > 3 completion/complete {"ref": {"type": "ref/resource", "uri":
                "r://{city}/now"}, "argument": {"name": "city", "value": ""}}
            < 3 {"completion": {"values": ["Oslo"]}}
            > 4 completion/complete {"ref": {"type": "ref/prompt", "name": "nope"},
                "argument": {"name": "x", "value": ""}}
            < 4 -32602
            > 5 completion/complete {"argument": {"name": "x", "value": ""}}
            < 5 -32602
            > 6 completion/complete {"ref": {"type": "ref/prompt", "name": "review"}}
            < 6 -32602
            > 7 completion/complete {"ref": "review", "argument": {"name": "x", "value":
                ""}}
            < 7 -32602
            > 8 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
                "argument": {"name": "language", "value": 7}}
            < 8 -32602
            """, era=era)
        self.assertEqual(names["values"], ["py%d" % n for n in range(100)])


def host_thread(test):
    """The thread of a host that runs handlers itself, and its ``run_handler``.

    The thread ends with the test.
    """
    jobs = queue.Queue()
    thread = threading.Thread(target=lambda: [job() for job in iter(jobs.get, None)])
    thread.start()
    test.addCleanup(thread.join)
    test.addCleanup(jobs.put, None)
    return thread, jobs.put


class Test10AsyncHandlers(unittest.TestCase):
    """`async def` handlers of a server share one event loop."""

    def test_all_calls_to_a_server_run_on_one_event_loop(self):
        """Calls on another connection do too.  Another server has its own event loop,
        and a server that is served again has a new one."""
        loops = []

        async def note() -> str:
            loops.append(asyncio.get_running_loop())
            return threading.current_thread().name

        first, second = Server("a"), Server("b")
        for server in first, second:
            server.tool(note)
        with Client(first) as client, Client(first) as other, Client(second) as third:
            names = {caller.call_tool("note").text
                     for caller in (client, client, other, third)}
        self.assertEqual(names, {"mcp event loop"})
        self.assertEqual([loops.index(loop) for loop in loops], [0, 0, 0, 3])
        self.assertEqual([loop.is_closed() for loop in loops], [True] * 4)
        with Client(first) as client:  # served again
            client.call_tool("note")
        self.assertNotIn(loops[-1], loops[:-1])

    def test_a_coroutine_that_waits_holds_no_worker(self):
        """Fails (by hanging) if each keeps the thread that called it."""
        server, arrived = Server("s", max_workers=1), []

        @server.tool
        async def meet() -> str:
            arrived.append(asyncio.get_running_loop().create_future())
            if len(arrived) == 50:
                for future in arrived:
                    future.set_result(None)
            await arrived[-1]
            return "met"

        with Client(server) as client:
            calls = [client.submit_tool("meet") for _ in range(50)]
            self.assertEqual({call.result(PATIENCE).text for call in calls}, {"met"})

    def test_subprocesses_executors_and_timeouts_work_in_a_handler(self):
        server = Server("s")

        @server.tool
        async def work() -> list:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", "print(5)",
                stdout=asyncio.subprocess.PIPE)
            out, _ = await child.communicate()
            loop = asyncio.get_running_loop()
            thread = await loop.run_in_executor(None, threading.get_ident)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.sleep(60), 0.001)
            both = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
            return [out.decode().strip(), thread == threading.get_ident(), both]

        with Client(server) as client:
            self.assertEqual(client.call_tool("work").data, ["5", False, [1, 2]])

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
            contents = await ctx.read_resource("s://now")
            await ctx.wait(0.001)
            return contents[0].text + await ctx.once("k", later)

        @server.resource("s://now")
        async def now() -> str:
            return "now"

        async def later():
            return " or later"

        def answer(message, schema, params):
            if message == "One?":
                self.assertEqual(other.call_tool("overtake").text, "now or later")
            return {"value": {"One?": "x", "Two?": 2}[message]}

        with Client(server, mode=era) as other, Client(
                server, mode=era, elicitation_handler=answer) as client:
            self.assertEqual(client.call_tool("ask").text, "x 2")

    @both_eras
    def test_a_question_that_is_not_awaited_is_an_error_that_names_the_fix(self, era):
        server = Server("s")

        @server.tool
        async def look(ctx: Context) -> str:
            return ctx.elicit("?", str).action

        @server.tool
        async def forget(ctx: Context) -> str:
            ctx.elicit("?", str)
            return "done"

        with quiet(), Client(server, mode=era, elicitation_handler=lambda *_: {
                "value": "x"}) as client:
            for tool in "look", "forget":
                text = client.call_tool(tool, raise_on_error=False).text
                self.assertIn("`await ctx.elicit(…)`", text)

    def test_notifications_are_sent_whether_or_not_they_are_awaited(self):
        server, steps, logs = Server("s"), [], []

        @server.tool
        async def work(ctx: Context):
            ctx.report_progress(1)
            await ctx.report_progress(2)
            ctx.info("one")
            await ctx.log("info", "two")
            await ctx.notify("notifications/x")
            assert not ctx.info("three")

        with Client(server, mode=LATEST, log_handler=lambda p: logs.append(p["data"]),
                    progress_handler=lambda *step: steps.append(step[0])) as client:
            client.call_tool("work")
            wait_until(lambda: len(logs) == 3)
        self.assertEqual((steps, logs), ([1, 2], ["one", "two", "three"]))

    def test_with_run_handler_coroutines_run_on_the_thread_of_the_host(self):
        """They run on one event loop, and the lifespan runs on the same one."""
        host, run_handler = host_thread(self)
        loops = []

        @contextlib.asynccontextmanager
        async def lifespan(server):
            loops.append(asyncio.get_running_loop())
            yield
            loops.append(asyncio.get_running_loop())

        server = Server("s", run_handler=run_handler, lifespan=lifespan)

        @server.tool
        async def where(ctx: Context) -> bool:
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0.001)
            return threading.current_thread() is host and (
                (await ctx.elicit("?", bool)).data)

        with Client(server, mode=LATEST,
                    elicitation_handler=lambda *_: {"value": True}) as client:
            calls = [client.submit_tool("where") for _ in range(3)]
            self.assertEqual([call.result().data for call in calls], [True] * 3)
        wait_until(lambda: len(loops) == 5)
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
        assert ctx.request_context.lifespan_context is ctx.lifespan_context
        return ctx.lifespan_context["loop"] is asyncio.get_running_loop()
    """)


class Test10Decorated(unittest.TestCase):
    """Tools inside of decorators, and servers with two kinds of connections."""

    def test_a_decorated_async_tool_that_raises_runs_once(self):
        calls, server = [], Server("s")

        def decorate(function):
            @functools.wraps(function)
            def decorated():
                calls.append(1)
                raise OSError("no luck")
            return decorated

        async def tool():
            """Never reached."""

        server.tool(decorate(tool))
        with Client(server) as client, quiet():
            result = client.call_tool("tool", raise_on_error=False)
        self.assertEqual((result.text, calls), ("OSError: no luck", [1]))

    def test_a_decorator_may_wait_for_an_async_tool(self):
        server = Server("s")

        def decorate(function):
            @functools.wraps(function)
            def decorated():
                return asyncio.run(function())
            return decorated

        async def tool():
            return "done"

        server.tool(decorate(tool))
        with Client(server) as client:
            self.assertEqual(client.call_tool("tool").text, "done")

    def test_an_unthreaded_connection_does_not_change_the_others(self):
        """Fails if both want to run the one event loop, or if a server that has served
        without threads stays so."""
        server = Server("s")

        @server.tool
        async def tool():
            await asyncio.sleep(0)
            return threading.current_thread().name

        def call_unthreaded():
            lines = io.BytesIO()
            request = message('1 modern tools/call {"name": "tool"}', True)
            server.serve(io.BytesIO(json.dumps(request).encode() + b"\n"), lines,
                         threaded=False)
            return json.loads(lines.getvalue())["result"]["content"][0]["text"]

        with Client(server) as client:
            self.assertEqual(client.call_tool("tool").text, "mcp event loop")
            self.assertEqual(call_unthreaded(), "mcp event loop")
            self.assertEqual(client.call_tool("tool").text, "mcp event loop")
        self.assertEqual(call_unthreaded(), threading.current_thread().name)
        with Client(server) as client:
            self.assertEqual(client.call_tool("tool").text, "mcp event loop")

    def test_an_unthreaded_async_tool_may_await_async_steps_and_resources(self):
        """Fails (no response) if the thread that awaits wants to run the loop too."""
        server = Server("s")

        @server.resource("a://b")
        async def read():
            return "text"

        @server.tool
        async def tool(ctx: Context) -> str:
            async def step():
                await asyncio.sleep(0)
                return "step"

            [contents] = await ctx.read_resource("a://b")
            return await ctx.once("k", step) + " " + contents.text

        request = message('1 modern tools/call {"name": "tool"}', True)
        written = io.BytesIO()
        server.serve(io.BytesIO(json.dumps(request).encode() + b"\n"), written,
                     threaded=False)
        [content] = json.loads(written.getvalue())["result"]["content"]
        self.assertEqual(content["text"], "step text")

    def test_the_template_that_is_named_completes_its_arguments(self):
        """Not another one whose URIs match the text of the template."""
        server = Server("s")
        server.resource("a://{x}")(lambda x: "")
        server.resource("a://{x}-{y}")(lambda x, y: "")
        server.completion("a://{x}-{y}", "y")(lambda value: ["found"])
        with Client(server) as client:
            found = client.complete("a://{x}-{y}", "y", "")["values"]
        self.assertEqual(found, ["found"])

    def test_a_tool_and_a_prompt_of_one_name_are_both_warned_of(self):
        server = Server("s")
        with quiet() as stderr:
            for _ in range(2):
                server.add_tool(lambda: None, name="a")
                server.add_prompt(lambda: "", name="a")
        self.assertEqual(stderr.getvalue().count("a is registered again"), 2)


class Test10Diagnostics(unittest.TestCase):
    """What a server reports about mistakes, on stderr or in an error message."""

    def test_a_tool_registered_twice_is_reported(self):
        with quiet() as stderr:
            server = Server("s")
            server.tool(lambda: 1, name="twice")
            self.assertEqual(stderr.getvalue(), "")
            server.tool(lambda: 2, name="twice")
        self.assertEqual(stderr.getvalue(),
                         "mcp_min: twice is registered again: the new one counts\n")

    def test_a_handler_that_ignores_its_cancellation_is_reported_once(self):
        server, started = Server("s", max_workers=2), queue.Queue()
        release = gate("release")
        self.addCleanup(release.set)

        @server.tool
        def spin():
            started.put(1)
            release.wait()  # the line that the report names

        with open(__file__, encoding="utf-8") as file:
            number = 1 + file.read().split("\n").index(
                "            release.wait()  # the line that the report names")
        with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.05), \
                quiet() as stderr, Client(server) as client:
            calls = [client.submit_tool("spin"), client.submit_tool("spin")]
            for call in calls:
                started.get(timeout=PATIENCE)
            for call in calls:
                call.cancel()
            wait_until(lambda: stderr.getvalue().count("still at") == 2)
            release.set()
        report = stderr.getvalue()
        self.assertRegex(report, r"tools/call spin was cancelled 0.05 s ago, and is "
                         r"still at .*test_mcp_min.py:%d\n" % number)
        self.assertEqual(report.count("all 2 workers run calls that nobody waits for: "
                                      "tools/call spin"), 1)

    def test_a_coroutine_that_blocks_the_event_loop_is_reported(self):
        server, started, release = Server("s"), gate("started"), gate("release")

        @server.tool
        async def block():
            started.set()
            release.wait()

        with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.05), \
                quiet() as stderr, Client(server) as client:
            call = client.submit_tool("block")
            started.wait()
            call.cancel()
            wait_until(lambda: "block was cancelled" in stderr.getvalue())
            release.set()
        self.assertIn("test_mcp_min.py:", stderr.getvalue())

    def test_a_traceback_shows_no_frame_of_the_library(self):
        server = Server("s")

        @server.tool
        def fail():
            raise ValueError("broken")

        with quiet() as stderr, Client(server) as client:
            client.call_tool("fail", raise_on_error=False)
        self.assertNotIn('File "' + mcp_min.__file__, stderr.getvalue())
        self.assertIn("in fail\n", stderr.getvalue())

    def test_a_value_that_is_no_json_is_reported_with_its_path(self):
        server = Server("s")
        server.tool(lambda: {"a": [1, {"b": object()}]}, name="f")
        with quiet(), Client(server) as client:
            self.assertIn("a: 1: b: a object cannot be written as JSON",
                          client.call_tool("f", raise_on_error=False).text)

    def test_the_error_says_why_a_client_cannot_be_asked(self):
        server = Server("s")

        @server.tool
        def ask(ctx: Context) -> str:
            return str("elicitation" in ctx.client_capabilities) + (
                str(ctx.elicit("?", str)))

        with Client(server, mode="2025-03-26", elicitation_handler=print) as client:
            self.assertIn("Revision 2025-03-26 has no elicitation",
                          str(raised(client.call_tool, "ask")))
        with Client(server, mode="2025-06-18") as client:
            self.assertIn("did not declare the capability: elicitation",
                          str(raised(client.call_tool, "ask")))

    def test_pydoc_documents_the_public_names(self):
        import pydoc
        text = pydoc.plain(pydoc.render_doc(mcp_min))
        self.assertNotIn(" at 0x", text)
        for name in "Server", "Client", "Context", "load_config":
            self.assertIn(name, text)


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

    def test_an_error_in_it_is_reported_and_ends_the_server(self):
        for before, after in ("1/0", "yield"), ("yield", "1/0"):
            with self.subTest(before), process(f"""
                    async def lifespan(server):
                        {before}
                        {after}
                        yield
                    Server("s", lifespan=lifespan).run()
                    """, "-I") as server:
                server.hang_up()
                self.assertEqual(server.exit(), 1)
                self.assertIn("ZeroDivisionError", server.stderr)

    def test_it_may_be_a_plain_context_manager_or_a_generator(self):
        events = []

        class Plain:
            def __enter__(self):
                events.append("enter")
                return 5

            def __exit__(self, *exc):
                events.append("leave")

        def generator(server):
            with Plain() as value:
                yield value

        async def async_generator(server):
            with Plain() as value:
                yield value

        for lifespan in (lambda server: Plain()), generator, async_generator:
            server = Server("s", lifespan=lifespan)

            @server.tool
            def value(ctx: Context) -> int:
                events.append("call")
                return ctx.lifespan_context

            with Client(server) as client, Client(server) as other:
                self.assertEqual(client.call_tool("value").data, 5)
                self.assertEqual(other.call_tool("value").data, 5)
            wait_until(lambda: len(events) % 4 == 0)
        self.assertEqual(events, ["enter", "call", "call", "leave"] * 3)

    def test_one_that_does_not_end_times_out(self):
        server = Server("s", lifespan=endless)
        with mock.patch.object(mcp_min, "LIFESPAN_SECONDS", 0.01), quiet(), (
                self.assertRaisesRegex(TimeoutError, "lifespan")):
            play(server, "> 1 ping\n< 1 {}", era="legacy")

    def test_run_async_shares_the_loop_of_the_application(self):
        with process(LIFESPAN_SERVER + textwrap.dedent("""
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
        with process(LIFESPAN_SERVER + textwrap.dedent("""
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


async def endless(server):
    """A lifespan that does not end in time."""
    yield
    await asyncio.sleep(600)


class Test10Extras(unittest.TestCase):
    """Custom methods, middleware, and the thread that runs a handler."""

    @both_eras
    def test_custom_methods(self, era):
        server, hints = Server("s"), []

        @server.method("acme/reindex")
        def reindex(params: dict, ctx: Context) -> dict:
            ctx.notify("notifications/acme/step", {"n": 1})
            if params.get("fail"):
                raise ValueError("broken")
            return {"count": params.get("count", 0)}

        @server.method("notifications/acme/hint")
        def hint(params: dict):
            hints.append(params)

        with quiet():
            play(server, """
                > 1 acme/reindex {"count": 7}
                < notifications/acme/step {"n": 1}
                < 1 {"count": 7}
                > notifications/acme/hint {"x": 1}
                > 2 acme/reindex {"fail": true}
                < notifications/acme/step {"n": 1}
                < 2 -32603
                """, era=era)
        self.assertEqual([params.get("x") for params in hints], [1])

    @both_eras
    def test_middleware_wraps_every_handler(self, era):
        server = zoo()
        called = []

        @server.middleware
        def outer(ctx, method, params, call_next):
            called.append(method)
            if params.get("name") == "same":
                raise McpError(-1, "closed")
            return call_next(ctx, method, params)

        @server.middleware
        def inner(ctx, method, params, call_next):
            called.append("inner")
            return call_next(ctx, method, params)

        play(server, """
            > 1 tools/call {"name": "echo", "arguments": {"text": "x"}}
            < 1 {"content": [{"text": "x"}]}
            > 2 tools/call {"name": "same", "arguments": {"value": {}}}
            < 2 -1 "closed"
            """, era=era)
        self.assertEqual([name for name in called if name != "initialize"],
                         ["tools/call", "inner", "tools/call"])

    @both_eras
    def test_middleware_that_forgets_to_return_is_an_error(self, era):
        server = zoo()

        @server.middleware
        def forgetful(ctx, method, params, call_next):
            call_next(ctx, method, params)

        with quiet():
            play(server, """
                > 1 tools/call {"name": "echo", "arguments": {"text": "x"}}
                < 1 -32603 "forgetful"
                """, era=era)

    @unittest.skipIf(os.name == "nt", "there closing a pipe waits for its reader")
    @both_eras
    def test_unthreaded_handlers_run_on_the_calling_thread(self, era):
        """They run one after the other.  Pings, cancellations, progress and answers
        are still handled while one runs."""
        server, threads = Server("s"), []
        started, release = gate("started"), gate("release")

        @server.tool
        def hold(ctx: Context) -> str:
            threads.append(threading.get_ident())
            ctx.report_progress(1)
            started.set()
            release.wait()
            ctx.check_cancelled()
            return "held"

        @server.tool
        def ask(ctx: Context) -> str:
            threads.append(threading.get_ident())
            return ctx.elicit("?", str).data

        @server.tool
        async def later(ctx: Context) -> str:
            threads.append(threading.get_ident())
            await asyncio.sleep(0)
            return (await ctx.elicit("?", str)).data

        (requests, to_server), (responses, to_client) = os.pipe(), os.pipe()
        streams = [os.fdopen(fd, mode, 0) for fd, mode in (
            (responses, "rb"), (to_server, "wb"), (requests, "rb"), (to_client, "wb"))]
        serving = threading.Thread(target=lambda: server.serve(
            *streams[2:], threaded=False))
        serving.start()
        steps = []
        with Client(tuple(streams[:2]), mode=era, timeout=PATIENCE,
                    elicitation_handler=lambda *_: {"value": "yes"}) as client:
            held = client.submit_tool(
                "hold", progress_handler=lambda *step: steps.append(step))
            started.wait()
            wait_until(lambda: steps)
            client.list_tools() if era == MODERN else client.ping()
            queued = client.submit_tool("ask")
            held.cancel()
            release.set()
            self.assertEqual(queued.result(PATIENCE).text, "yes")
            self.assertEqual(client.call_tool("later").text, "yes")
        for stream in streams[:2]:
            stream.close()
        serving.join(PATIENCE)
        self.assertFalse(serving.is_alive())
        self.assertEqual(set(threads), {serving.ident})

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

    def test_run_handler_decides_which_thread_runs_a_handler(self):
        host, run_handler = host_thread(self)
        server, threads = Server("s", run_handler=run_handler), []

        @server.tool
        def where() -> str:
            threads.append(threading.current_thread())
            return "there"

        play(server, """
            > 1 tools/call {"name": "where"}
            < 1 {"content": [{"text": "there"}]}
            """, era="legacy")
        self.assertEqual(threads, [host])

    def test_a_handler_that_run_handler_calls_twice_runs_once(self):
        server = Server("s", run_handler=lambda job: (job(), job()))
        ran = []
        server.tool(lambda: ran.append("once"), name="run")
        play(server, """
            > 1 tools/call {"name": "run"}
            < 1 {"content": []}
            """, era="legacy")
        self.assertEqual(ran, ["once"])

    def test_a_wait_without_end_can_be_cancelled(self):
        server, started, errors = Server("s"), gate("started"), []

        @server.tool
        def wait(ctx: Context):
            started.set()
            try:
                ctx.wait(math.inf)
            except BaseException as error:
                errors.append(type(error))
                raise

        play(server, """
            > 1 tools/call {"name": "wait"}
            ! started
            > notifications/cancelled {"requestId": 1}
            < fence
            """, era="legacy", started=started.wait)
        self.assertEqual(wait_until(lambda: errors), [Cancelled])

    def test_one_server_serves_several_connections(self):
        server = zoo()
        with wire(server) as first, wire(server) as second:
            play(first, "> handshake 2024-11-05")
            play(second, "> 1 tools/list\n< 1 -32600\n> handshake")
            server.remove_tool("echo")
            for client in first, second:
                play(client, "< notifications/tools/list_changed")


SIZE = {"type": "object", "required": ["size"],
        "properties": {"size": {"type": "string", "enum": ["S", "M"]}}}


def shop(name="shop", **options):
    """A server whose handlers ask their client; ``server.done`` lists their effects."""
    server = Server(name, **options)
    server.done = []

    @server.tool
    def order(item: str, ctx: Context, count: int = 1) -> str:
        bill = ctx.once("bill", lambda: server.done.append("bill") or len(server.done))
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

    @server.resource("shop://{room}")
    def room(room: str, ctx: Context) -> str:
        return room + " " + ctx.elicit("Floor?", int, key="floor").data

    @server.resource("shop://door")
    def door(ctx: Context) -> str:
        return "key " + str(ctx.elicit("Key?", int, key="key").data)

    return server


RED = '{"color": {"action": "accept", "content": {"value": "red"}}}'
MEDIUM = '{"size": {"action": "accept", "content": {"size": "M"}}}'
ORDER = '"name": "order", "arguments": {"item": "hat", "count": 2}'


class Test10Questions(unittest.TestCase):
    """A handler asks its client: by a request in a session, and without a session by an
    `InputRequiredResult`, after which the handler is replayed."""

    # -- in a session ------------------------------------------------------------------

    def test_a_notification_handler_cannot_ask_before_the_handshake(self):
        server, errors = Server("s"), []

        @server.method("notifications/acme")
        def acme(ctx: Context):
            errors.append(raised(ctx.elicit, "?", str))

        play(server, "> notifications/acme {}")
        self.assertIsInstance(wait_until(lambda: errors)[0], McpError)

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
            > 2 tools/call {"name": "haiku"}
            < $c sampling/createMessage {"messages": [{"role": "user", "content":
                {"type": "text", "text": "Write one."}}], "maxTokens": 20,
                "systemPrompt": "Be brief."}
            > $c {"role": "assistant", "content": {"type": "text", "text": "A haiku."},
                "model": "m"}
            < 2 {"content": [{"text": "A haiku."}]}
            > 3 tools/call {"name": "roots"}
            < $d roots/list
            > $d {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}
            < 3 {"structuredContent": {"result": ["file:///a", "file:///b"]}}
            > 4 tools/call {"name": "visit"}
            < $e elicitation/create {"mode": "url", "url": "https://example.com/login",
                "message": "Sign in", "elicitationId": "..."}
            > $e {"action": "decline"}
            < 4 {"content": [{"text": "decline"}]}
            > 5 prompts/get {"name": "letter"}
            < $f elicitation/create {"requestedSchema": {"properties": {"value":
                {"type": "string"}}}}
            > $f {"action": "accept", "content": {"value": "Ada"}}
            < 5 {"messages": [{"content": {"text": "Dear Ada"}}]}
            > 6 resources/read {"uri": "shop://door"}
            < $g elicitation/create {"message": "Key?"}
            > $g {"action": "accept", "content": {"value": 7}}
            < 6 {"contents": [{"text": "key 7"}]}
            > 7 tools/call {"name": "survey"}
            <* $h roots/list
            <* $i elicitation/create {"message": "Name?"}
            > $i {"action": "accept", "content": {"name": "Ada"}}
            > $h {"roots": []}
            < 7 {"structuredContent": {"roots": {"roots": []}, "name": {"action":
                "accept", "content": {"name": "Ada"}}}}
            """ % ORDER, era="legacy")
        self.assertEqual(server.done, ["bill", "sold"])

    @clause("2025-11-25/basic/lifecycle",
            "Implementations **SHOULD** establish timeouts for all sent requests")
    def test_a_question_without_an_answer_times_out(self):
        server, timeouts = Server("s", max_workers=1), []

        @server.tool
        def ask(ctx: Context) -> str:
            for question in (
                    ctx.list_roots, functools.partial(ctx.sample, "?"),
                    functools.partial(ctx.elicit, "?", str),
                    functools.partial(ctx.elicit_url, "?", "https://x.io"),
                    functools.partial(ctx.ask, {"r": {"method": "roots/list"}})):
                try:
                    question(timeout=0.01)
                except RequestTimeout as error:
                    timeouts.append(str(error))
            return "gave up"

        questions = "".join("""
            < $%d %s
            < notifications/cancelled {"requestId": "$%d", "reason": "timed out"}
            """ % (n, method, n) for n, method in enumerate((
                "roots/list", "sampling/createMessage", "elicitation/create",
                "elicitation/create", "roots/list")))
        play(server, """
            > 1 tools/call {"name": "ask"}
            %s
            < 1 {"content": [{"text": "gave up"}]}
            """ % questions, era="legacy")
        self.assertEqual(len(timeouts), 5)
        self.assertRegex(timeouts[2], "elicitation/create: no response within")

    @clause("2026-07-28/client/elicitation",
            "limited to flat objects with primitive properties only")
    def test_a_form_is_flat(self):
        """A type that a form cannot ask for is an error before anything is sent."""
        @dataclasses.dataclass
        class Good:
            name: str
            age: int = 3
            day: Optional[datetime.date] = None
            color: Color = Color.RED
            colors: List[Color] = dataclasses.field(default_factory=list)

        titled = [{"const": "a", "title": "A"}]
        accepted = [
            Good, bool, ["a", 1], Literal["a", "b"], OBJECT, datetime.datetime,
            {"type": "object", "properties": {
                "one": {"type": "string", "oneOf": titled},
                "some": {"type": "array", "items": {"anyOf": titled}},
                "mail": {"type": "string", "format": "email"}}}]
        rejected = [
            (User, "home: .*type is object"), (List[str], "value: .*a list without"),
            (uuid.UUID, "value: .*format is uuid"), (Level, "value: .*no text"),
            (Any, "value: .*type is None"), (decimal.Decimal, "value: "),
            (Optional[Union[int, str]], "value: "),
            ({"type": "object", "properties": {"x": True}}, "x: .*type is None")]
        for schema in accepted:
            mcp_min.Form(schema)
        for schema, error in rejected:
            with self.subTest(schema), self.assertRaisesRegex(ValueError, error):
                mcp_min.Form(schema)

    def test_elicit_url_needs_a_url(self):
        with self.assertRaisesRegex(ValueError, "not a URL: 'no address'"):
            mcp_min.Context.elicit_url(mock.Mock(), "?", "no address")

    def test_an_error_from_the_client_reaches_the_handler(self):
        play(shop(), """
            > 1 tools/call {%s}
            < $a elicitation/create {}
            > $a -32042 "go away"
            < 1 -32042 "go away"
            > 2 tools/call {"name": "roots"}
            < $b roots/list
            > $b -1 "no"
            < 2 {"structuredContent": {"result": ["caught by except Exception"]}}
            """ % ORDER, era="legacy")

    def test_decline_and_cancel_reach_the_handler(self):
        play(shop(), """
            > 1 tools/call {%s}
            < $a elicitation/create {}
            > $a {"action": "decline"}
            < 1 {"content": [{"text": "not sold: decline"}]}
            > 2 tools/call {%s}
            < $b elicitation/create {}
            > $b {"action": "cancel"}
            < 2 {"content": [{"text": "not sold: cancel"}]}
            """ % (ORDER, ORDER), era="legacy")

    def test_two_handlers_ask_at_once_and_each_gets_its_own_answer(self):
        """Fails if ids of requests are taken without the lock, or if a response does
        not remove its request from the pending ones."""
        play(shop(), """
            > 1 prompts/get {"name": "letter"}
            < $a elicitation/create {}
            > 2 prompts/get {"name": "letter"}
            < $b elicitation/create {}
            > $b {"action": "accept", "content": {"value": "Bob"}}
            < 2 {"messages": [{"content": {"text": "Dear Bob"}}]}
            > $b {"action": "accept", "content": {"value": "Mallory"}}
            < fence
            > $a {"action": "accept", "content": {"value": "Ada"}}
            < 1 {"messages": [{"content": {"text": "Dear Ada"}}]}
            """, era="legacy")

    def test_an_invalid_answer_is_asked_again_in_a_session(self):
        names = play(shop(), """
            > 1 tools/call {%s}
            < $a elicitation/create {"message": "Which size?"}
            > $a {"action": "accept", "content": {"size": "XXL"}}
            < $b elicitation/create {"message": "Which size?"}
            > $b {"action": "accept", "content": {"size": "M"}}
            < $c elicitation/create {"message": "Which color?"}
            > $c {"action": "decline"}
            < 1 {}
            """ % ORDER, era="legacy")
        self.assertNotEqual(names["a"], names["b"])

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_a_client_is_asked_only_what_it_declared(self):
        server = shop()
        play(server, """
            > 0 initialize 2025-06-18 {"capabilities": {"elicitation": {}}}
            < 0 {}
            > notifications/initialized
            > 1 tools/call {"name": "haiku"}
            < {"id": 1, "error": {"message": "...sampling..."}}
            > 2 tools/call {"name": "roots"}
            < 2 {"structuredContent": {"result": ["caught by except Exception"]}}
            > 3 tools/call {"name": "visit"}
            < {"id": 3, "error": {"message": "...elicitation..."}}
            > 4 prompts/get {"name": "letter"}
            < $a elicitation/create {"message": "To whom?"}
            > $a {"action": "accept", "content": {"value": "Ada"}}
            < 4 {}
            """)

    def test_cancelling_a_request_releases_the_handler_that_waits_for_its_client(self):
        server, released = Server("s", max_workers=1), gate("the handler was released")

        @server.tool
        def ask(ctx: Context):
            try:
                ctx.elicit("Well?", str)
            finally:
                released.set()

        with wire(server) as client:
            names = play(client, """
                > 1 tools/call {"name": "ask"}
                < $q elicitation/create {}
                """, era="legacy")
            client.say('notifications/cancelled {"requestId": 1}')
            released.wait()
            received = client.ask('"late" tools/list')
            if "id" not in received:   # the question itself may be cancelled first
                self.assertEqual(received["params"]["requestId"], names["q"])
                received = client.recv()
            self.assertEqual(received["id"], "late")
            client.say('%s {"action": "decline"}' % json.dumps(names["q"]))

    def test_a_pending_question_fails_at_once_when_the_client_hangs_up(self):
        server = Server("s", drain_seconds=60)

        @server.tool
        def ask(ctx: Context):
            ctx.elicit("Well?", str)

        with quiet():
            play(server, """
                > 1 tools/call {"name": "ask"}
                < $q elicitation/create {}
                > EOF
                < 1 {"isError": true}
                """, era="legacy")

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

    def test_prompts_resources_and_sampling_ask_without_a_session(self):
        play(shop(), """
            > 1 tools/call {"name": "haiku"}
            < 1 {"resultType": "input_required", "requestState": "$s1", "inputRequests":
                {"poem": {"method": "sampling/createMessage", "params": {"messages":
                [{"role": "user", "content": {"type": "text", "text": "Write one."}}],
                "maxTokens": 20, "systemPrompt": "Be brief."}}}}
            > 2 tools/call {"name": "haiku", "requestState": "$s1", "inputResponses":
                {"poem": {"role": "assistant", "content": {"type": "text", "text": "A
                haiku."}, "model": "m"}}}
            < 2 {"resultType": "complete", "content": [{"text": "A haiku."}]}
            > 3 prompts/get {"name": "letter"}
            < 3 {"resultType": "input_required", "requestState": "$s3", "inputRequests":
                {"to": "..."}}
            > 4 prompts/get {"name": "letter", "requestState": "$s3", "inputResponses":
                {"to": {"action": "accept", "content": {"value": "Ada"}}}}
            < 4 {"resultType": "complete", "messages": [{"content": {"text": "Dear
                Ada"}}]}
            > 5 resources/read {"uri": "shop://door"}
            < 5 {"resultType": "input_required", "requestState": "$s5", "inputRequests":
                {"key": "..."}}
            > 6 resources/read {"uri": "shop://door", "requestState": "$s5",
                "inputResponses": {"key": {"action": "accept", "content": {"value":
                7}}}}
            < 6 {"resultType": "complete", "contents": [{"text": "key 7"}]}
            """, era="modern")

    def test_a_question_without_a_key_gets_one(self):
        for tool, answer, text in (
                ("roots", {"roots": [{"uri": "file:///a"}]}, "...file:///a..."),
                ("visit", {"action": "accept"}, "accept")):
            with wire(shop()) as client:
                response = client.ask('1 tools/call {"name": "%s"}' % tool, "modern")
                result = response["result"]
                (key, question), = result["inputRequests"].items()
                self.assertEqual(question["method"], {
                    "roots": "roots/list", "visit": "elicitation/create"}[tool])
                play(client, """
                    > 2 tools/call {"name": "$tool", "requestState": "$state",
                        "inputResponses": "$answers"}
                    < 2 {"resultType": "complete", "content": [{"text": "%s"}]}
                    """ % text, era="modern",
                     tool=tool, state=result["requestState"], answers={key: answer})

    def test_of_several_questions_only_the_unanswered_one_is_asked_again(self):
        names = play(shop(), """
            > 1 tools/call {"name": "survey"}
            < 1 {"resultType": "input_required", "requestState": "$one",
                "inputRequests": {"roots": {"method": "roots/list"}, "name": {"method":
                "elicitation/create"}}}
            > 2 tools/call {"name": "survey", "requestState": "$one", "inputResponses":
                {"roots": {"roots": []}}}
            < 2 {"resultType": "input_required", "requestState": "$two",
                "inputRequests": "$again"}
            > 3 tools/call {"name": "survey", "requestState": "$two", "inputResponses":
                {"name": {"action": "accept", "content": {"name": "Ada"}}}}
            < 3 {"resultType": "complete", "structuredContent": {"roots": {"roots": []},
                "name": {"content": {"name": "Ada"}}}}
            """, era="modern")
        self.assertEqual(list(names["again"]), ["name"])

    @clause("2026-07-28/basic/patterns/mrtr",
            "the server **SHOULD** ignore any information it does not recognize or "
            "need.")
    @clause("2026-07-28/basic/patterns/mrtr",
            "the server **SHOULD** respond with a new `InputRequiredResult` "
            "requesting the missing information again")
    def test_extra_answers_are_ignored_and_missing_ones_asked_again(self):
        server = shop()
        play(server, """
            > 1 tools/call {%(order)s}
            < 1 {"resultType": "input_required", "requestState": "$s"}
            > 2 tools/call {%(order)s, "requestState": "$s"}
            < 2 {"resultType": "input_required", "inputRequests": {"size": "..."}}
            > 3 tools/call {%(order)s, "requestState": "$s", "inputResponses": {}}
            < 3 {"resultType": "input_required", "inputRequests": {"size": "..."}}
            > 4 tools/call {%(order)s, "requestState": "$s", "inputResponses": {"size":
                {"action": "accept", "content": {"size": "S"}}, "color": {"action":
                "decline"}, "zip": 7}}
            < 4 {"resultType": "input_required", "inputRequests": {"color": "..."},
                "requestState": "$s4"}
            > 5 tools/call {%(order)s, "requestState": "$s4", "inputResponses": %(red)s}
            < 5 {"content": [{"text": "bill 1: S red hat"}]}
            """ % {"order": ORDER, "red": RED}, era="modern")
        self.assertEqual(server.done, ["bill", "sold"])

    def test_an_invalid_answer_is_asked_again_twice(self):
        for invalid in ('{"action": "accept", "content": {"size": "XXL"}}',
                       '{"action": "accept"}', '{"action": "maybe"}', '{}', '7', 'null',
                       '"M"', '{"action": "accept", "content": {}}', '["M"]'):
            retry = ('%s tools/call {' + ORDER + ', "requestState": "%s", '
                     '"inputResponses": {"size": ' + invalid + '}}')
            with self.subTest(invalid):
                play(shop(), """
                    > 1 tools/call {%s}
                    < 1 {"resultType": "input_required", "requestState": "$s1"}
                    > %s
                    < 2 {"resultType": "input_required", "requestState": "$s2",
                        "inputRequests": {"size": "..."}}
                    > %s
                    < 3 {"resultType": "input_required", "requestState": "$s3",
                        "inputRequests": {"size": "..."}}
                    > %s
                    < 4 -32602 "size"
                    # the last question still accepts a valid answer
                    > 5 tools/call {%s, "requestState": "$s3", "inputResponses": %s}
                    < 5 {"resultType": "input_required", "inputRequests": {"color":
                        "..."}}
                    """ % (ORDER, retry % (2, "$s1"), retry % (3, "$s2"),
                           retry % (4, "$s3"), ORDER, MEDIUM), era="modern")

    def test_input_responses_and_request_state_have_a_type(self):
        play(shop(), """
            > 1 tools/call {%(order)s}
            < 1 {"resultType": "input_required", "requestState": "$s"}
            > 2 tools/call {%(order)s, "requestState": "$s", "inputResponses": []}
            < 2 -32602 "inputResponses"
            > 3 tools/call {%(order)s, "requestState": "$s", "inputResponses": "x"}
            < 3 -32602 "inputResponses"
            > 4 tools/call {%(order)s, "requestState": 7}
            < 4 -32602 "requestState"
            > 5 tools/call {%(order)s, "requestState": {}, "inputResponses": {}}
            < 5 -32602 "requestState"
            """ % {"order": ORDER}, era="modern")

    @clause("2026-07-28/basic/index",
            "the server **MUST** return a [`MissingRequiredClientCapabilityError`]")
    @clause("2026-07-28/basic/patterns/mrtr",
            "Servers **MUST NOT** send an `inputRequests` that the client has not "
            "declared support for in its capabilities.")
    def test_a_request_must_declare_the_capability_to_answer(self):
        """Capabilities of another request or of the session do not count."""
        play(shop(), """
            > 0 modern tools/call {"name": "haiku"}
            < 0 {"resultType": "input_required"}
            > 1 modern tools/call {"name": "haiku", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {}}}
            < 1 -32021 "sampling" {"requiredCapabilities": {"sampling": {}}}
            > 2 modern tools/call {"name": "roots", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}}
            < 2 -32021 "roots" {"requiredCapabilities": {"roots": {}}}
            > 3 modern prompts/get {"name": "letter", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url":
                {}}}}}
            < 3 -32021 "elicitation" {"requiredCapabilities": {"elicitation": {"form":
                {}}}}
            > 4 modern tools/call {"name": "visit", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}
            < 4 -32021 "elicitation" {"requiredCapabilities": {"elicitation": {"url":
                {}}}}
            > 5 modern prompts/get {"name": "letter", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}
            < 5 {"resultType": "input_required"}
            # the capabilities of the session do not count
            > handshake
            > 6 modern tools/call {"name": "haiku", "_meta":
                {"io.modelcontextprotocol/clientCapabilities": {}}}
            < 6 -32021 {"requiredCapabilities": {"sampling": {}}}
            """)

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
        server = shop()
        server.add_tool(lambda item, count: server.done.append("other"), name="other")
        with wire(server) as client:
            state = self.state(client)
            server.done.clear()
            for method, params in (
                    ("tools/call", ORDER.replace("hat", "cap")),
                    ("tools/call", ORDER.replace("hat", "hat\\u0000")),
                    ("tools/call", ORDER.replace("2", "3")),
                    ("tools/call", ORDER.replace("2", '"2"')),
                    ("tools/call", ORDER.replace(', "count": 2', "")),
                    ("tools/call", ORDER.replace('"hat"', "7")),
                    ("tools/call", ORDER.replace("order", "other")),
                    ("tools/call", '"name": "order"'), ("prompts/get", ORDER),
                    ("prompts/get", '"name": "letter"'),
                    ("resources/read", '"uri": "shop://door"')):
                with self.subTest(params):
                    retry = self.RETRY.replace("tools/call", method) % (params, MEDIUM)
                    play(client, retry + "< 2 -32602", era="modern", state=state)
            self.assertEqual(server.done, [])
            # the order of the keys does not matter, and the state may be used again
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
        first, second, stranger = (shop(state_secret=b"k" * 32),
                                   shop(state_secret=b"k" * 32), shop())
        answer_size = self.RETRY % (ORDER, MEDIUM)
        answer_color = self.RETRY % (ORDER, RED)
        with wire(first) as client:
            state = self.state(client)
        with wire(stranger) as client:
            play(client, answer_size + '< 2 -32602 "requestState"',
                 era="modern", state=state)
        with wire(second) as client:
            names = play(client, answer_size + '< 2 {"requestState": "$next"}',
                         era="modern", state=state)
        with wire(first) as client:
            play(client, answer_color + '< 2 {"content": [{"text": '
                 '"bill 1: M red hat"}]}', era="modern", state=names["next"])
        self.assertEqual([first.done, second.done, stranger.done],
                         [["bill", "sold"], [], []])

    def test_a_server_of_another_name_rejects_the_state(self):
        with wire(shop(state_secret=b"k" * 32)) as client:
            state = self.state(client)
        other = shop("bank", state_secret=b"k" * 32)
        with wire(other) as client:
            play(client, self.RETRY % (ORDER, MEDIUM) + '< 2 -32602 "requestState"',
                 era="modern", state=state)

    def test_a_secret_has_at_least_16_bytes(self):
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            Server("s", state_secret=b"swordfish")

    def test_once_runs_its_function_only_once(self):
        """Neither a replay nor a second `once` with the same key runs it again."""
        server, done = Server("s"), []

        @server.tool
        def pay(ctx: Context) -> str:
            receipt = ctx.once("pay", lambda: done.append("paid") or {"n": len(done)})
            again = ctx.once("pay", lambda: done.append("paid twice"))
            assert receipt == again
            return "%s %s" % (receipt["n"], ctx.elicit("Sure?", bool, key="sure").data)

        play(server, """
            > 1 tools/call {"name": "pay"}
            < 1 {"resultType": "input_required", "requestState": "$s"}
            > 2 tools/call {"name": "pay", "requestState": "$s", "inputResponses":
                {"sure": {"action": "accept", "content": {"value": true}}}}
            < 2 {"content": [{"text": "1 True"}]}
            """, era="modern")
        play(server, """
            > 1 tools/call {"name": "pay"}
            < $q elicitation/create {}
            > $q {"action": "accept", "content": {"value": false}}
            < 1 {"content": [{"text": "2 False"}]}
            """, era="legacy")
        self.assertEqual(done, ["paid", "paid"])

    def test_a_session_ignores_request_state(self):
        play(shop(), """
            > 1 tools/call {%s, "requestState": "forged", "inputResponses": %s}
            < $q elicitation/create {"message": "Which size?"}
            > $q {"action": "decline"}
            < 1 {}
            """ % (ORDER, MEDIUM), era="legacy")


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
                """ % read_end), pass_fds=[read_end]) as server:
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
        server, meeting = Server("s"), threading.Barrier(6)

        @server.tool
        def meet(n: int) -> str:
            meeting.wait(PATIENCE)
            return "x" * 20000 * (n % 2)

        for _ in range(40):
            with wire(server) as client:
                play(client, "> handshake")
                for n in range(6):
                    client.say('%d tools/call {"name": "meet", "arguments": {"n": %d}}'
                               % (n, n))
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

    def test_a_handler_that_runs_longer_than_the_drain_is_cancelled(self):
        server = Server("s", drain_seconds=0.05)
        cancelled = gate("the handler was cancelled")

        @server.tool
        def wait(ctx: Context):
            try:
                ctx.wait(60)
            finally:
                cancelled.set()

        with wire(server) as client:
            client.say('1 modern tools/call {"name": "wait"}')
            client.fence()
        cancelled.wait()

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
    @clause("2026-07-28/basic/patterns/subscriptions", "it **SHOULD** respond to the "
            "original `subscriptions/listen` request with a completion result")
    def test_a_signal_ends_open_streams_with_their_final_result(self):
        for number in signal.SIGINT, signal.SIGTERM:
            with process("Server('s', capabilities={'tools': {}}).run()") as server:
                end = functools.partial(server.child.send_signal, number)
                play(server, """
                    > 1 modern subscriptions/listen {"notifications": {
                        "toolsListChanged": true}}
                    < notifications/subscriptions/acknowledged
                    ! end
                    < 1 {"resultType": "complete", "_meta": {
                        "io.modelcontextprotocol/subscriptionId": 1}}
                    > EOF
                    """, end=end)
                self.assertEqual(server.exit(), 128 + number)

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
        """The handler runs on the main thread, so it can use a connection that the
        module opened there: sqlite3 refuses one of another thread."""
        code = """
            import signal, sqlite3
            base = sqlite3.connect(":memory:")
            server = Server("s")
            @server.tool
            def query() -> int:
                return base.execute("select 1").fetchone()[0]
            @server.tool
            def hang():
                try:
                    print("begun", flush=True)
                    time.sleep(60)
                except Exception:
                    pass
            server.run(threaded=False)
            """
        for number, status in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            with self.subTest(number), process(code, "-I") as server:
                play(server, """
                    > handshake
                    > 1 tools/call {"name": "query"}
                    < 1 {"structuredContent": {"result": 1}}
                    > 2 tools/call {"name": "hang"}
                    """)
                wait_until(lambda: "begun" in server.stderr)
                server.child.send_signal(number)
                self.assertEqual(server.exit(), status)
                self.assertNotIn("Traceback", server.stderr)

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
    def test_a_full_stderr_blocks_no_other_call(self):
        full, stderr = os.pipe()
        os.set_blocking(stderr, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(stderr, b"x" * 1000)
        os.set_blocking(stderr, True)
        with process(self.USES_STDERR, stderr=stderr) as server:
            os.close(stderr)
            play(server, CALL_ADD)
            failed = server.ask(self.CALL_WITH_TEXT % (2, "fail"))
            self.assertIs(failed["result"]["isError"], True)
            server.say(self.CALL_WITH_TEXT % (3, "chatter"))   # may wait for ever
            server.say(self.CALL_WITH_TEXT % (4, "echo"))
            self.assertIn(4, [response["id"] for response in server.hang_up()])
            self.assertEqual(server.exit(), 0)
        os.close(full)

    @UNIX
    def test_a_closed_stderr_fails_no_call(self):
        with process(self.USES_STDERR, preexec_fn=lambda: os.close(2)) as server:
            play(server, CALL_ADD)
            failed = server.ask(self.CALL_WITH_TEXT % (2, "fail"))
            self.assertIs(failed["result"]["isError"], True)
            printed = server.ask(self.CALL_WITH_TEXT % (3, "chatter"))
            self.assertEqual(printed["id"], 3)
            server.hang_up()
            self.assertEqual(server.exit(), 0)

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
                @server.tool
                def run_again() -> str:
                    outcomes = []
                    for other in server, Server("another"):
                        try:
                            other.run()
                        except RuntimeError:
                            outcomes.append("refused")
                    return " ".join(outcomes)
                """)) as server:
            play(server, """
                > 1 modern tools/call {"name": "run_again"}
                < 1 {"content": [{"text": "refused refused"}]}
                """ + CALL_ADD)
            server.hang_up()
            self.ended(server)

    # -- interpreters, locales, threads ------------------------------------------------

    def test_run_and_serve_need_no_sys_stdin_stdout_or_stderr(self):
        def serve(run):
            with process(program("""
                    @server.tool
                    def fail():
                        raise ValueError("x")

                    for name in "stdin", "stdout", "stderr":
                        setattr(sys, name, None)
                        setattr(sys, "__%s__" % name, None)
                    """, run)) as server:
                play(server, CALL_ADD + """
                    > 2 modern tools/call {"name": "fail"}
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

    def test_a_server_works_where_no_thread_can_be_started(self):
        with process("""
                def start(self):
                    raise RuntimeError("can't start new thread")
                threading.Thread.start = start
                server = Server("s")
                @server.tool
                def ask(ctx: Context) -> str:
                    ctx.report_progress(1)
                    server.tool(lambda: None, name="new")
                    return ctx.elicit("?", str).data
                @server.tool
                async def later() -> str:
                    return "later"
                server.method("notifications/x")(
                    lambda: print("received", file=sys.stderr))
                try:
                    mcp_min.Client(server).connect()
                except RuntimeError as error:
                    print("client:", error, file=sys.stderr)
                server.run()
                """, "-I") as server:
            play(server, """
                > 0 initialize 2025-11-25 {"capabilities": {"elicitation": {}}}
                < 0 {}
                > notifications/initialized
                > 1 tools/call {"name": "ask", "_meta": {"progressToken": 1}}
                < notifications/progress {"progressToken": 1, "progress": 1}
                < notifications/tools/list_changed
                < $id elicitation/create
                > 2 tools/call {"name": "later"}
                > 3 ping
                < 3 {}
                > $id {"action": "accept", "content": {"value": "yes"}}
                < 1 {"content": [{"text": "yes"}]}
                < 2 {"content": [{"text": "later"}]}
                > notifications/x
                """)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertRegex(server.stderr, "(?s)client:.*thread.*received")

    def test_importing_has_no_side_effect(self):
        with process("""
        import signal
        assert threading.active_count() == 1
        assert "logging" not in sys.modules and "asyncio" not in sys.modules
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        Server("idle").add_tool(lambda: None, name="t")
        assert threading.active_count() == 1
        """) as server:
            self.ended(server)

    # -- memory, the trace, tracebacks -------------------------------------------------

    @UNIX
    def test_a_line_that_is_too_long_takes_no_memory(self):
        """100 MB in one line, of which 1 MB is allowed."""
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
            for _ in range(100):
                server.send(b"x" * (1 << 20))
            server.send(b"\n")
            play(server, "< null -32801")
            unit = 1 if sys.platform == "darwin" else 1 << 10
            self.assertLess((peak() - before) * unit, 20 << 20)
            server.hang_up()
            self.ended(server)

    @UNIX
    def test_a_trace_on_stderr_has_its_control_characters_escaped(self):
        hostile = b'{"x": "\x1b]0;owned\x07"}\n'
        with process(RUN, "-S", env=dict(os.environ, MCP_MIN_TRACE="stderr")) as server:
            server.send(hostile)
            play(server, "< null -32700\n" + CALL_ADD)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertIn("tools/call", server.stderr)
            self.assertNotRegex(server.stderr, r"[\x00-\x09\x0b-\x1f\x7f]")

    @UNIX
    def test_only_the_owner_can_read_a_trace_file(self):
        """Also if the file exists and others could read it."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            env = dict(os.environ, MCP_MIN_TRACE=path)
            with process(RUN, "-S", env=env) as server:
                play(server, CALL_ADD)
                server.hang_up()
                self.ended(server)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            with open(path) as trace:
                text = trace.read()
            self.assertRegex(text, r'"tools/call"')
            self.assertRegex(text, r'"structuredContent"|"content"')
            os.chmod(path, 0o666)
            with process(RUN, "-S", env=env) as server:
                play(server, "> 1 ping\n< 1 {}")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            with open(path) as trace:
                self.assertIn('"ping"', trace.read())

    @UNIX
    def test_a_trace_file_is_no_symbolic_link(self):
        with tempfile.TemporaryDirectory() as folder:
            path, link = os.path.join(folder, "trace"), os.path.join(folder, "link")
            open(path, "w").close()
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

    def test_a_traceback_on_stderr_has_its_control_characters_escaped(self):
        with process(program("""
                @server.tool
                def fail():
                    raise ValueError("bad \\x1b]0;owned\\x07 news")
                """)) as server:
            play(server, """
                > 1 modern tools/call {"name": "fail"}
                < 1 {"isError": true, "content": [{"text": "...news..."}]}
                """)
            server.hang_up()
            self.assertEqual(server.exit(), 0)
            self.assertIn("Traceback", server.stderr)
            self.assertNotIn("\x1b", server.stderr)


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
        server = zoo(max_workers=4, max_message_bytes=1 << 16)

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
        """(id, certain) of each response to this line.

        A response that is not certain may be missing.
        """
        def refuse(constant):
            raise ValueError(constant)
        try:
            parsed = json.loads(sent.decode("utf-8"), parse_constant=refuse)
        except (ValueError, RecursionError):
            return
        small = len(sent) < 1 << 16 and sent.count(b"[") + sent.count(b"{") < 200
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(item, dict):
                continue
            response = "method" not in item and ("result" in item or "error" in item)
            yield item.get("id"), small and item is parsed and not response
            params = item.get("params")
            if "ancel" in str(item.get("method")) and isinstance(params, dict):
                for cancelled in params.values():
                    yield cancelled, False

    def test_mutated_sessions(self):
        seconds = float(os.environ.get("MCP_MIN_FUZZ") or 0.4)
        seed = int(os.environ.get("MCP_MIN_SEED") or time.time_ns() % 10 ** 9)
        rng, sent, sessions = random.Random(seed), 0, 0
        end = time.monotonic() + seconds
        with quiet():
            while time.monotonic() < end:
                session_seed = rng.randrange(10 ** 9)
                lines = list(self.lines(random.Random(session_seed)))
                try:
                    self.run_session(lines)
                except BaseException:
                    text = b"".join(lines).decode("utf-8", "backslashreplace")
                    sys.__stderr__.write("\nMCP_MIN_SEED=%d, session %d:\n%s\n" % (
                        seed, sessions, text))
                    raise
                sent, sessions = sent + len(lines), sessions + 1
        print("fuzz: seed %d, %d messages in %d sessions, no violation" % (
            seed, sent, sessions))

    def run_session(self, lines):
        """Send the lines, and compare the ids of the responses with those expected."""
        expected, received = collections.Counter(), collections.Counter()
        uncertain = set()

        def key(id):
            id = int(id) if isinstance(id, float) and id.is_integer() else id
            valid = isinstance(id, (int, str)) and not isinstance(id, bool)
            return (type(id), id) if valid else None

        for sent in lines:
            for id, certain in self.responses_to(sent):
                expected[key(id)] += 1
                if not certain:
                    uncertain.add(key(id))
        with wire(self.server()) as client:
            client.send(b"".join(lines))
            client.send(b'\n{"jsonrpc": "2.0", "id": "the fence", "method": "ping"}\n')
            for line_received in client.hang_up():
                batch = isinstance(line_received, list)
                for item in line_received if batch else [line_received]:
                    if "method" not in item:
                        received[key(item["id"])] += 1
        expected[str, "the fence"] = 1
        for id in (set(received) | set(expected)) - {None}:
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
         "pid": "result(pid=os.getpid())", "listen": "", "start": "", "end": ""}
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
    """A client waits ``seconds`` for the response to its probe, instead of 5."""
    return mock.patch.object(mcp_min, "PROBE_SECONDS", seconds)


def short_patience():
    """Each step of ending a process takes at most 0.15 s, instead of 2."""
    return mock.patch.object(mcp_min.Process, "PATIENCE", 0.15)


class Relay:
    """Connects one client with several servers, and records every line.

    The lines of the client go to the ``servers`` in turn.  `lines` has every line as
    (">" or "<", bytes), and `streams` are the two streams of the client.
    """

    def __init__(self, *servers):
        self.lines, self._lock, self._threads = [], threading.Lock(), []
        (reader, to_client), (from_client, writer) = os.pipe(), os.pipe()
        self.streams = os.fdopen(reader, "rb"), os.fdopen(writer, "wb")
        self._to_client = os.fdopen(to_client, "wb")
        self._from_client = os.fdopen(from_client, "rb")
        self._to_servers = []
        for server in servers:
            (reader, to_server), (from_server, writer) = os.pipe(), os.pipe()
            self._to_servers.append(os.fdopen(to_server, "wb"))
            self._spawn(self._serve, server, os.fdopen(reader, "rb"),
                        os.fdopen(writer, "wb"))
            self._spawn(self._forward_to_client, os.fdopen(from_server, "rb"))
        self._spawn(self._forward_to_servers)

    def _spawn(self, job, *args):
        self._threads.append(threading.Thread(target=job, args=args, daemon=True))
        self._threads[-1].start()

    @staticmethod
    def _serve(server, reader, writer):
        with reader, contextlib.suppress(OSError), writer:
            server.serve(reader, writer)

    def _forward_to_client(self, lines):
        with lines:
            for line in lines:
                with self._lock, contextlib.suppress(OSError, ValueError):
                    self.lines.append(("<", line))
                    self._to_client.write(line)
                    self._to_client.flush()

    def _forward_to_servers(self):
        for number, line in enumerate(self._from_client):
            with self._lock:
                self.lines.append((">", line))
            stream = self._to_servers[number % len(self._to_servers)]
            stream.write(line)
            stream.flush()
        for stream in self._to_servers:
            stream.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE)
        with contextlib.suppress(OSError):
            self._to_client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for stream in reversed(self.streams):
            with contextlib.suppress(OSError):
                stream.close()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._from_client.close()


OUR_SERVER = """
import sys; sys.path.insert(0, %r)
import os
from mcp_min import Server
server = Server("ours")

@server.tool
def env(key: str) -> dict:
    return {"value": os.environ.get(key)}

server.run()
"""

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

    @server.tool
    def shout(text: str) -> str:
        return text.upper()

    @server.tool
    def nothing():
        return None

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

    @server.tool
    def traced(ctx: Context) -> dict:
        return {"traceparent": ctx.meta.get("traceparent")}

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


def record_methods(server):
    """The methods of all messages that the server handles from now on."""
    methods = []

    @server.middleware
    def listen(ctx, method, params, call_next):
        methods.append(method)
        return call_next(ctx, method, params)

    return methods


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
        if params.get("tools"):
            use = {"type": "tool_use", "id": "1", "name": "dig", "input": {}}
            return {"role": "assistant", "model": "m", "stopReason": "toolUse",
                    "content": [use]}
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

    def test_a_result_waits_until_its_progress_was_reported(self):
        began, release = gate("the report"), gate("the end of the report")
        server = Server("s")

        @server.tool
        def tool(ctx: Context) -> str:
            ctx.report_progress(1)
            return "done"

        def report(*progress):
            began.set()
            release.wait()

        with Client(server) as client:
            call = client.submit_tool("tool", progress_handler=report)
            began.wait()
            for _ in range(3):  # their responses come after the result
                client.ping()
            self.assertFalse(call.done())
            release.set()
            self.assertEqual(call.result(PATIENCE).text, "done")

    def test_a_traced_response_names_the_method_of_its_request(self):
        lines = []
        trace = mcp_min.Trace(lines.append)
        trace.show(">", b'{"jsonrpc":"2.0","id":1,"method":"a/b"}')
        trace.show("<", b'{"jsonrpc":"2.0","id":1,"result":{}}')
        self.assertRegex(lines[1], r"  # a/b \d+\.\d ms\n$")

    def test_close_ends_the_timer_thread(self):
        """Fails if the thread sleeps on, for as long as a timeout or for ever."""
        def timers():
            return {thread for thread in threading.enumerate()
                    if thread.name == "mcp timer"}

        before = timers()
        with Client(zoo(), timeout=10 * PATIENCE) as client:
            client.ping()
            self.assertGreater(len(timers()), len(before))
        wait_until(lambda: timers() <= before, "the timer ends")

    @UNIX
    def test_close_closes_the_writer_of_two_streams(self):
        reader, writer = mcp_min.pipe_streams()
        with reader:
            mcp_min.StreamPair(io.BytesIO(), writer).close(
                threading.Event(), threading.Lock())
            self.assertEqual(select.select([reader], [], [], PATIENCE)[0], [reader])
            self.assertEqual(reader.read(), b"")

    def setUp(self):
        self.session = Session().__enter__()
        self.addCleanup(self.session.__exit__)
        self.client = self.session.client

    def test_a_list_is_read_to_its_last_page(self):
        server = Server("pages", page_size=2)
        for number in range(5):
            server.add_tool(lambda: "", name=f"t{number}")
            server.add_prompt(lambda: "", name=f"p{number}")
            server.resource(f"r://{number}")(lambda: "")
            server.resource(f"r://{number}/{{x}}")(lambda x: "")
        with Client(server) as client:
            for list_all, key, prefix in ((client.list_tools, "name", "t"),
                                          (client.list_prompts, "name", "p"),
                                          (client.list_resources, "uri", "r://")):
                self.assertEqual(names(list_all(), key),
                                 [f"{prefix}{number}" for number in range(5)])
            self.assertEqual(names(client.list_resource_templates(), "uriTemplate"),
                             [f"r://{number}/{{x}}" for number in range(5)])

    def test_a_cursor_that_repeats_ends_the_list_with_an_error(self):
        page = "result(nextCursor=%s, tools=[{'name': 't', 'inputSchema': {}}])"
        for cursor in ("'again'", "'x' if params.get('cursor') == 'y' else 'y'"):
            with self.subTest(cursor), Client(fake(list=page % cursor)) as client:
                self.assertIsInstance(raised(client.list_tools), McpError)
                self.assertEqual(client.call_tool("f").text, "ok")

    def test_data_and_text_of_every_form_of_result(self):
        rows = [  # tool, arguments, .data, .text, .structured_content
            ("add", {"a": 1}, 3, "3", {"result": 3}),
            ("forecast", {"city": "Oslo"}, {"city": "Oslo", "days": 3}, None,
             {"city": "Oslo", "days": 3}),
            ("shout", {"text": "hi"}, "HI", "HI", None),
            ("nothing", None, "", "", None),
            ("mixed", {}, "a", "a", None),
        ]
        for tool, arguments, data, text, structured in rows:
            with self.subTest(tool):
                result = self.client.call_tool(tool, arguments)
                self.assertEqual(result.data, data)
                if text is not None:
                    self.assertEqual(result.text, text)
                else:
                    self.assertEqual(json.loads(result.text), data)
                self.assertEqual(result.structured_content, structured)
                self.assertEqual(result.content, result["content"])
                self.assertIs(result.is_error, False)

    def test_content_blocks_are_returned_as_sent(self):
        self.assertEqual(self.client.call_tool("mixed").content, [
            {"type": "text", "text": "a"},
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "note://x", "name": "x"},
            {"type": "resource", "resource": {
                "uri": "note://y", "mimeType": "text/plain", "text": "y"}}])

    def test_an_error_result_raises_tool_error_by_default(self):
        with self.assertRaisesRegex(ToolError, "out of luck"):
            self.client.call_tool("unlucky")
        result = self.client.call_tool("unlucky", raise_on_error=False)
        self.assertIs(result.is_error, True)
        self.assertEqual(result.text, "out of luck")

    def test_an_error_response_raises_the_mcp_error_of_the_server(self):
        with self.assertRaises(McpError) as caught:
            self.client.call_tool("picky")
        error = caught.exception
        self.assertEqual((error.code, error.message, error.data),
                         (-31050, "not today", {"why": "monday"}))

    def test_submit_tool_returns_a_future(self):
        call = self.client.submit_tool("add", {"a": 1})
        self.assertIsInstance(call, concurrent.futures.Future)
        self.assertEqual(call.result(PATIENCE).data, 3)
        done = []
        call.add_done_callback(done.append)
        self.assertEqual(done, [call])
        call = self.client.submit_tool("unlucky")
        self.assertIsInstance(call.exception(PATIENCE), ToolError)

    def test_futures_can_be_waited_for_together(self):
        calls = [self.client.submit_tool("add", {"a": a, "b": 0}) for a in range(20)]
        done, not_done = concurrent.futures.wait(calls, PATIENCE)
        self.assertEqual((len(done), not_done), (20, set()))
        self.assertEqual([call.result().data for call in calls], list(range(20)))

    def test_cancelling_a_call_cancels_its_handler(self):
        call, ended = self.client.submit_tool("hang"), gate("the callback")
        call.add_done_callback(lambda call: ended.set())
        wait_until(lambda: self.session.effects == ["hanging"])
        self.assertTrue(call.cancel())
        self.assertTrue(call.cancelled())
        ended.wait()
        with self.assertRaises(concurrent.futures.CancelledError):
            call.result(PATIENCE)
        wait_until(lambda: self.session.effects == ["hanging", "cancelled"])
        self.assertFalse(self.client.submit_tool("add", {"a": 1}).cancelled())

    def test_a_cancelled_call_counts_as_done(self):
        calls = [self.client.submit_tool("hang") for _ in range(2)]
        for call in calls:
            call.cancel()
        done, not_done = concurrent.futures.wait(calls, PATIENCE / 5)
        self.assertEqual((done, not_done), (set(calls), set()))

    def test_a_finished_call_cannot_be_cancelled(self):
        call = self.client.submit_tool("add", {"a": 1})
        call.result(PATIENCE)
        self.assertFalse(call.cancel())
        self.assertEqual(call.result().data, 3)

    def test_a_timeout_also_cancels_the_handler(self):
        with self.assertRaises(TimeoutError) as caught:
            self.client.call_tool("hang", timeout=0.05)
        self.assertIsInstance(caught.exception, RequestTimeout)
        # The handler is cancelled, or was cancelled before it began.
        wait_until(lambda: self.session.effects != ["hanging"])

    def test_progress_goes_to_the_handler_of_the_call_or_of_the_client(self):
        steps = [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        received = []
        self.client.call_tool("count", {"n": 3},
                              progress_handler=lambda *step: received.append(step))
        wait_until(lambda: received == steps)
        self.client.call_tool("count", {"n": 3})
        wait_until(lambda: self.session.progress == steps)
        self.assertEqual(received, steps)

    def test_the_contents_of_a_resource_have_text_and_data(self):
        rows = [("config://app", '{"debug":true}', {"debug": True}),
                ("note://x", "note x", None), ("blob://one", None, b"\x00\xff")]
        for uri, text, data in rows:
            with self.subTest(uri):
                content, = self.client.read_resource(uri)
                self.assertEqual(content["uri"], uri)
                if isinstance(data, dict):
                    self.assertEqual(json.loads(content.text), data)
                else:
                    self.assertEqual((content.text, content.data), (text, data))

    def test_the_reference_of_a_completion_is_a_name_a_dict_or_a_uri_template(self):
        values = self.client.complete("review", "language", "p")["values"]
        self.assertEqual(values, ["python", "perl", "pascal"])
        prompt = {"type": "ref/prompt", "name": "review"}
        result = self.client.complete(prompt, "language", "x", context={"code": "xy"})
        self.assertEqual(result["values"], ["xy"])
        result = self.client.complete("note://{name}", "name", "n")
        self.assertEqual((len(result["values"]), result["total"], result["hasMore"]),
                         (100, 150, True))

    def test_custom_requests_and_notifications(self):
        self.assertEqual(self.client.request("acme/echo", {"word": "x"})["echo"], "x")
        call = self.client.submit("acme/echo", {"word": "y"})
        self.assertEqual(call.result(PATIENCE)["echo"], "y")
        received = []
        self.session.server.method("notifications/acme")(
            lambda params: received.append(params["n"]))
        for n in range(3):
            self.client.notify("notifications/acme", {"n": n})
        wait_until(lambda: received == [0, 1, 2])
        self.assertEqual(raised(self.client.request, "acme/none").code, -32601)

    def test_callbacks_run_in_order_on_one_thread_and_may_call_the_client(self):
        steps, threads = [], set()

        def on_progress(progress, total, message):
            self.client.list_tools()
            threads.add(threading.get_ident())
            steps.append(progress)

        self.client.call_tool("count", {"n": 20}, progress_handler=on_progress)
        wait_until(lambda: len(steps) == 20)
        self.assertEqual(steps, list(range(1, 21)))
        self.assertEqual(len(threads), 1)
        self.assertNotIn(threading.get_ident(), threads)

    def test_a_callback_may_make_a_call_that_reports_progress(self):
        results = []

        def on_message(notification):
            if notification["method"] == "notifications/message":
                results.append(client.call_tool("count", {"n": 3}).text)

        with Client(self.session.server, message_handler=on_message, log_level="info",
                    progress_handler=lambda *step: None) as client:
            client.call_tool("tell", {"levels": ["info"]})
            wait_until(lambda: results == ["counted"])

    def test_a_callback_that_raises_is_logged_and_the_session_continues(self):
        def broken(*arguments):
            raise ValueError("broken callback")

        with quiet() as stderr, Client(
                self.session.server, progress_handler=broken, log_handler=broken,
                message_handler=broken, log_level="info") as client:
            self.assertEqual(client.call_tool("count", {"n": 2}).text, "counted")
            client.call_tool("tell", {"levels": ["info"]})
            self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
            wait_until(lambda: "broken callback" in stderr.getvalue())

    def test_properties_of_a_connected_client(self):
        client = self.client
        self.assertEqual(client.server_info["name"], "everything")
        self.assertEqual(client.server_info["version"], "3.1")
        self.assertEqual(client.instructions, "be kind")
        self.assertEqual(client.protocol_version, MODERN)
        self.assertTrue(client.server_capabilities["tools"])
        self.assertIsNone(client.exit_code)

    def test_a_capability_is_declared_exactly_when_its_handler_is_given(self):
        def handler(*arguments):
            return None

        rows = [({}, []), ({"sampling_handler": handler}, ["sampling"]),
                ({"elicitation_handler": handler}, ["elicitation"]),
                ({"roots": []}, ["roots"]),
                ({"roots": [], "sampling_handler": handler,
                  "elicitation_handler": handler},
                 ["elicitation", "roots", "sampling"])]
        for mode in ("legacy", "modern"):
            for options, declared in rows:
                with self.subTest(mode=mode, declared=declared), Client(
                        everything()[0], mode=mode, **options) as client:
                    self.assertEqual(client.call_tool("whoami").data["able"], declared)

    @clause("2026-07-28/client/elicitation",
            "clearly display the target domain/host and "
            "gather user consent before navigation to the target URL")
    @clause("2025-11-25/client/elicitation",
            "a mode not declared in client capabilities: `-32602` (Invalid params)")
    def test_each_elicitation_mode_needs_a_handler_of_its_own(self):
        forms, urls = [], []
        form = {"elicitation_handler": lambda *question: forms.append(question) or {}}
        url = {"url_handler": lambda message, url, params: urls.append(url) or True}
        rows = [(form, {"form": {}}), (url, {"url": {}}),
                ({**form, **url}, {"form": {}, "url": {}})]
        for options, modes in rows:
            client = Client(everything()[0], **options)
            self.assertEqual(client.declared, {"elicitation": modes})
            for mode in "form", "url", "voice":
                answer = functools.partial(
                    client.answer_question, "elicitation/create", {
                    "mode": mode, "message": "?", "url": "https://x.io"}, MODERN)
                with self.subTest(modes=modes, mode=mode):
                    if mode in modes:
                        self.assertEqual(answer(), {"action": "accept"})
                    else:
                        self.assertEqual(raised(answer).code, -32602)
        self.assertEqual((len(forms), urls), (2, ["https://x.io"] * 2))

    def test_a_url_is_accepted_only_if_its_handler_returns_true(self):
        for value, action in ((False, "decline"), (None, "decline"), ("yes", "decline"),
                              (Elicited("cancel"), "cancel")):
            client = Client(everything()[0], url_handler=lambda *a, value=value: value)
            with self.subTest(value=value):
                self.assertEqual(client.answer_question(
                    "elicitation/create", {"mode": "url", "url": "x://y"}, MODERN),
                    {"action": action})

    def test_further_capabilities_can_be_declared(self):
        extra = {"sampling": {"tools": {}}, "extensions": {"x/y": {}}}
        for mode in ("legacy", "modern"):
            with Client(everything()[0], mode=mode, capabilities=extra,
                        sampling_handler=lambda *a: "hi") as client:
                self.assertEqual(client.call_tool("whoami").data["able"],
                                 ["extensions", "sampling"])
            self.assertEqual(client.declared, extra)

    @clause("2026-07-28/client/elicitation",
            "Clients **SHOULD** validate all responses against the provided schema")
    def test_content_that_is_invalid_for_the_form_is_not_sent(self):
        for mode in ("legacy", "modern"):
            with self.subTest(mode), quiet() as stderr, Session(mode) as session:
                session.name = {"name": 7}
                with self.assertRaises((McpError, ToolError)):
                    session.client.call_tool("pay", {"amount": 1})
                self.assertIn("name: expected string, got 7", stderr.getvalue())
                self.assertEqual(session.effects, [])

    def test_a_sampling_handler_that_returns_none_declines_with_an_error(self):
        for mode in ("legacy", "modern"):
            with self.subTest(mode), Client(
                    everything()[0], mode=mode,
                    sampling_handler=lambda *arguments: None) as client:
                error = raised(client.call_tool, "recite")
                self.assertEqual((type(error), error.code), (McpError, -1))

    @clause("2025-11-25/client/roots", "**MUST** be a `file://` URI")
    def test_a_root_is_a_path_or_a_file_uri(self):
        for root in "http://x/", {"uri": "ftp://y"}, {}:
            with self.assertRaisesRegex(ValueError, "a root is a path or a file URI"):
                Client(everything()[0], roots=[root])
        roots = ["/a b", {"uri": "file:///c", "name": "c"}]
        client = Client(everything()[0], roots=roots)
        self.assertEqual(client._user_handlers["roots"], [
            {"uri": pathlib.Path("/a b").absolute().as_uri()}, roots[1]])

    def test_client_info_reaches_the_server(self):
        for mode in ("legacy", "modern"):
            with Client(everything()[0], mode=mode,
                        client_info={"name": "mine", "version": "1"}) as client:
                self.assertEqual(client.call_tool("whoami").data["client"], "mine")

    def test_an_elicitation_handler_declines_cancels_or_accepts(self):
        def pay(mode, answer):
            def elicit(message, schema, params):
                return {"value": False} if message == "sure?" else answer

            with Client(everything()[0], mode=mode,
                        elicitation_handler=elicit) as client:
                return client.call_tool("pay", {"amount": 1}).data

        for answer, expected in (
                (None, {"action": "decline"}),
                (Elicited("cancel", None), {"action": "cancel"}),
                (Elicited("accept", {"name": "Bo"}),
                 {"name": "Bo", "sure": False, "receipt": "receipt 1"})):
            for mode in ("legacy", "modern"):
                with self.subTest(mode=mode, expected=expected):
                    self.assertEqual(pay(mode, answer), expected)

    def test_a_sampling_handler_may_return_a_complete_result(self):
        result = {"role": "assistant", "model": "m", "stopReason": "endTurn",
                  "content": {"type": "text", "text": "a poem"}}
        for mode in ("legacy", "modern"):
            with Client(everything()[0], mode=mode,
                        sampling_handler=lambda messages, params: result) as client:
                self.assertEqual(client.call_tool("recite").text, "a poem")

    def test_a_question_without_a_handler_is_an_error(self):
        """Fails, by hanging, if a question without a handler gets no answer."""
        for mode in ("legacy", "modern"):
            for tool, arguments in (("pay", {"amount": 1}), ("recite", {}),
                                    ("where", {})):
                with self.subTest(mode=mode, tool=tool), Client(
                        everything()[0], mode=mode) as client:
                    error = raised(client.call_tool, tool, arguments)
                    self.assertIsInstance(error, McpError)
                    self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)

    def test_set_roots_changes_the_answer_to_the_next_question(self):
        for mode in ("legacy", "modern"):
            with self.subTest(mode), Session(mode) as session:
                self.assertEqual(session.client.call_tool("where").data,
                                 [{"uri": "file:///a", "name": "a"}])
                session.client.set_roots([{"uri": "file:///b"}])
                self.assertEqual(session.client.call_tool("where").data,
                                 [{"uri": "file:///b"}])

    def test_calls_after_close_raise_connection_closed(self):
        client = Client(everything()[0]).connect()
        self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
        client.close()
        client.close()
        with self.assertRaises(ConnectionClosed):
            client.call_tool("add", {"a": 1})
        with self.assertRaises(ConnectionError):
            client.list_tools()
        with self.assertRaises(ConnectionClosed):
            client.notify("notifications/acme")

    def test_a_call_before_connect_is_an_error(self):
        client = Client(everything()[0])
        self.assertIsNotNone(raised(client.list_tools))
        client.close()

    def test_a_timeout_may_be_infinite(self):
        for mode in "auto", "legacy", "modern":
            with self.subTest(mode), Client(
                    everything()[0], mode=mode, timeout=math.inf) as client:
                client.subscribe("note://x")
                tools = client.submit("tools/list").result()["tools"]
                self.assertEqual(client.list_tools()[0]["name"], tools[0]["name"])
        self.assertEqual(Client([sys.executable], timeout=None).timeout, math.inf)

    def test_the_timeout_is_suspended_while_the_user_is_asked(self):
        def think(*question):
            time.sleep(0.15)  # longer than the timeout of the call
            return {"value": "yes"}

        server = Server("s")

        @server.tool
        def ask(ctx: Context) -> str:
            return ctx.elicit("Well?", str).data

        def call(mode):
            with Client(server, mode=mode, timeout=0.1,
                        elicitation_handler=think) as client:
                self.assertEqual(client.call_tool("ask").text, "yes")

        run_together(self, call, [["legacy"], ["modern"]])

    def test_elicitation_complete_names_the_url_question_that_has_ended(self):
        notifications, asked = queue.Queue(), []
        server = Server("s")

        @server.tool
        def visit(ctx: Context) -> str:
            answer = ctx.elicit_url("sign in", "https://example.org/in")
            ctx.notify("notifications/elicitation/complete",
                       {"elicitationId": answer.elicitation_id})
            return answer.elicitation_id

        def accept(message, url, params):
            asked.append(params["elicitationId"])
            return True

        with Client(server, mode="2025-11-25", message_handler=notifications.put,
                    url_handler=accept) as client:
            self.assertEqual([client.call_tool("visit").text], asked)
            complete = notifications.get(timeout=PATIENCE)
        self.assertEqual(complete["params"], {"elicitationId": asked[0]})

    def test_a_tool_that_is_annotated_with_list_may_return_content_blocks(self):
        server = Server("s")

        @server.tool
        def chart() -> list:
            return [Text("one"), "two"]

        with Client(server) as client:
            self.assertEqual(client.call_tool("chart").text, "one\ntwo")

    def test_invalid_registrations_and_options_raise_at_once(self):
        server = Server("s")

        def menu(day: str):
            return day

        for mistake, error in [
                (lambda: server.tool(menu, labels={"a"}), TypeError),
                (lambda: server.tool(menu, meta={"a": object()}), TypeError),
                (lambda: server.tool(menu, input_schema={}), ValueError),
                (lambda: server.tool(menu, output_schema={"type": "zzz"}), ValueError),
                (lambda: server.tool(menu, name="no spaces"), ValueError),
                (lambda: server.resource(menu), TypeError),
                (lambda: server.resource("menu://{week}")(menu), TypeError),
                (lambda: server.method("tools/list"), TypeError),
                (lambda: Server("s", page_size=0), ValueError),
                (lambda: Server("s", state_secret=bytes(15)), ValueError),
                (lambda: Server("s", drain_seconds=-1), ValueError),
                (lambda: Server("s", capabilities={"tasks": True}), TypeError),
                (lambda: Server("s", cache_scope="everybody"), ValueError)]:
            with self.subTest(error), self.assertRaises(error):
                mistake()
        self.assertEqual(server.capabilities(), {"logging": {}})

    def test_values_completed_from_an_annotation_are_valid_arguments(self):
        server = Server("s")

        @server.prompt
        def greet(loud: Literal[True, False]):
            return f"loud: {loud}"

        with Client(server) as client:
            offered = client.complete("greet", "loud", "")["values"]
            self.assertEqual(offered, ["true", "false"])
            for loud in offered:
                client.get_prompt("greet", {"loud": loud})

    def test_a_custom_method_may_return_a_meta_of_null(self):
        server = Server("s")
        server.method("acme/x")(lambda: {"_meta": None, "n": 1})
        for mode in "legacy", "modern":
            with Client(server, mode=mode) as client:
                self.assertEqual(client.request("acme/x")["n"], 1)

    def test_a_server_acknowledges_only_the_changes_that_it_advertises(self):
        server = Server("s", capabilities={
            "tools": {"listChanged": False}, "resources": {"subscribe": False}})
        kept = play(server, """
            > 1 modern subscriptions/listen {"notifications": {"toolsListChanged": true,
                "resourcesListChanged": true, "resourceSubscriptions": ["a://b"]}}
            < notifications/subscriptions/acknowledged {"notifications": "$agreed"}
            > notifications/cancelled {"requestId": 1}
            """)
        self.assertEqual(kept["agreed"], {"resourcesListChanged": True})

    def test_the_error_names_every_missing_capability(self):
        server = Server("s")

        @server.tool
        def two(ctx: Context):
            form = {"message": "?", "requestedSchema": {"type": "object"}}
            url = {"message": "?", "mode": "url", "url": "https://x"}
            ctx.ask({"a": {"method": "elicitation/create", "params": form},
                     "b": {"method": "elicitation/create", "params": url}})

        with Client(server, mode="modern", sampling_handler=lambda *a: "") as client:
            error = raised(client.call_tool, "two")
        self.assertEqual(error.data, {"requiredCapabilities": {
            "elicitation": {"form": {}, "url": {}}}})

    def test_a_handler_may_change_its_arguments_before_it_asks(self):
        """Fails if the state is bound to the arguments that the handler has changed,
        and not to those that were received."""
        server = Server("s")

        @server.tool
        def buy(items: List[str], ctx: Context) -> str:
            items.sort()
            return " ".join([*items, ctx.elicit("Well?", str).data])

        for mode in "legacy", "modern":
            with self.subTest(mode), Client(
                    server, mode=mode,
                    elicitation_handler=lambda *question: {"value": "yes"}) as client:
                result = client.call_tool("buy", {"items": ["b", "a"]})
                self.assertEqual(result.text, "a b yes")

    def test_a_completion_function_can_ask_the_user_only_in_the_legacy_era(self):
        server = Server("s")
        server.prompt(lambda word: word, name="p")

        @server.completion("p", "word")
        def complete_word(value: str, ctx: Context):
            return [ctx.elicit("Well?", str).data]

        accept = {"elicitation_handler": lambda *question: {"value": "yes"}}
        with Client(server, mode="legacy", **accept) as client:
            self.assertEqual(client.complete("p", "word", "")["values"], ["yes"])
        with Client(server, mode="modern", **accept) as client, self.assertRaisesRegex(
                McpError, "completion/complete cannot ask"):
            client.complete("p", "word", "")

    def test_a_choice_keeps_its_type(self):
        server = Server("s")

        @server.tool
        def pick(ctx: Context) -> str:
            return repr(ctx.elicit("Which?", (1, 2)).data)

        with Client(server, elicitation_handler=lambda *q: {"value": "2"}) as client:
            self.assertEqual(client.call_tool("pick").text, "2")

    def test_strict_input_applies_to_tools_and_not_to_prompts(self):
        server = Server("s", strict_input=True)

        @server.prompt
        def count(n: int):
            return f"{n + 1}"

        with Client(server) as client:
            result = client.get_prompt("count", {"n": "5"})
        self.assertEqual(result["messages"][0]["content"]["text"], "6")

    def test_a_target_that_is_not_a_stdio_server_is_refused(self):
        for target, text in (({"cwd": "x"}, "needs a command"),
                             ("https://x.org", "proxy"),
                             ({"url": "https://x.org"}, "https://x.org is not stdio")):
            with self.assertRaisesRegex(ValueError, text):
                Client(target).connect()

    def test_a_wait_leaves_no_hook_behind(self):
        server, hooks = Server("s"), []

        @server.tool
        def poll(ctx: Context):
            for _ in range(100):
                ctx.wait(0)
            hooks.append(len(ctx.incoming.hooks))

        with Client(server) as client:
            client.call_tool("poll")
        self.assertEqual(hooks, [1])

    def test_a_client_connects_to_the_streams_of_a_socket(self):
        client_end, server_end = socket.socketpair()

        def serve():
            with server_end, server_end.makefile("rb") as reader, \
                    server_end.makefile("wb") as writer:
                everything()[0].serve(reader, writer)

        with client_end:
            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            streams = client_end.makefile("rb"), client_end.makefile("wb")
            with Client(streams) as client:
                self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)
                client_end.shutdown(socket.SHUT_WR)
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())

    def test_a_client_connects_to_streams_without_a_descriptor(self):
        """Fails (UnsupportedOperation) if every stream is expected to be a file."""
        class Pipe(io.RawIOBase):
            def __init__(self):
                self.chunks = queue.SimpleQueue()

            def write(self, data):
                if data:
                    self.chunks.put(bytes(data))
                return len(data)

            def read(self, size=-1):
                return self.chunks.get()

            def close(self):
                self.chunks.put(b"")
                super().close()

        def serve(reader, writer):
            with writer:
                everything()[0].serve(reader, writer)

        for mode in "legacy", "modern":
            requests, responses = Pipe(), Pipe()
            threading.Thread(
                target=serve, args=(requests, responses), daemon=True).start()
            streams = responses, requests
            with self.subTest(mode), Client(streams, mode=mode) as client:
                for _ in range(20):
                    self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)

    def test_connect_call_and_close_may_run_in_different_threads(self):
        client = Client(everything()[0])
        self.assertEqual(together(client.connect), [client])
        self.assertEqual(together(lambda: client.call_tool("add", {"a": 1}).data), [3])
        self.assertEqual(together(client.close, client.close), [None, None])

    def test_close_in_a_callback_does_not_deadlock(self):
        closed = gate("close() in a callback")

        def on_progress(*step):
            self.client.close()
            closed.set()

        error = raised(self.client.call_tool, "count", {"n": 3},
                       progress_handler=on_progress)
        self.assertIsInstance(error, (ConnectionClosed, type(None)))
        closed.wait()

    def test_a_second_close_does_not_wait(self):
        """Fails, after 5 s, if the second `close` waits for a stream that does not end,
        or (in a callback) for the first `close`, which waits for the callback."""
        (reader, other_end), (_, writer) = os.pipe(), os.pipe()
        streams = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
        client = Client(streams, mode="legacy", timeout=0.05)
        self.assertIsInstance(raised(client.connect), RequestTimeout)
        started = time.monotonic()
        client.close()
        call = self.client.submit_tool("hang")
        call.add_done_callback(lambda call: self.client.close())
        self.client.close()
        self.assertLess(time.monotonic() - started, 3)
        os.close(other_end)

    def test_close_fails_every_pending_call(self):
        calls = [self.client.submit_tool("hang") for _ in range(10)]
        wait_until(lambda: len(self.session.effects) == 10)
        self.client.close()
        for call in calls:
            self.assertIsInstance(call.exception(PATIENCE), ConnectionClosed)

    def test_results_are_not_cached(self):
        """Another process may change the list before its `ttlMs` has passed."""
        server, _ = everything(cache_ttl=60, page_size=1000)
        requests = record_methods(server)
        with Client(server, mode="modern") as client:
            for _ in range(3):
                client.list_tools()
        self.assertEqual(requests.count("tools/list"), 3)

    def test_two_clients_of_one_server_are_independent(self):
        with Client(self.session.server, mode="legacy") as other:
            call = other.submit_tool("hang")
            wait_until(lambda: self.session.effects)
            self.assertEqual(self.client.call_tool("add", {"a": 1}).data, 3)
            call.cancel()

    def test_the_error_for_an_unknown_mode_lists_the_known_modes(self):
        with self.assertRaisesRegex(ValueError, "mode.*" + LATEST):
            Client(everything()[0], mode="medieval")

    def test_trace_context_reaches_the_handler(self):
        parent = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
        for mode in ("legacy", "modern"):
            with Session(mode) as session:
                result = session.client.request("tools/call", {
                    "name": "traced", "_meta": {"traceparent": parent}})
                self.assertEqual(result["structuredContent"], {"traceparent": parent})


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
    return call.cancelled(), session.client.call_tool("add", {"a": 1}).data


def outcome_of_timeout(session):
    error = raised(session.client.call_tool, "hang", timeout=0.05)
    # The handler is cancelled, or was cancelled before it began.
    wait_until(lambda: session.effects != ["hanging"])
    return type(error), session.client.call_tool("add", {"a": 1}).data


def outcome_of_two_questions(session):
    result = session.client.call_tool("pay", {"amount": 7}).data
    return result, session.asked, session.effects


FEATURES = [  # (name, a function that uses the feature, its outcome in both eras)
    ("tools/list", lambda s: names(s.client.list_tools())[:3],
     ["add", "forecast", "shout"]),
    ("tools/list, schema",
     lambda s: s.client.list_tools()[0]["inputSchema"]["required"], ["a"]),
    ("resources/list", lambda s: names(s.client.list_resources(), "uri"),
     ["config://app", "blob://one"]),
    ("resources/templates/list", lambda s: names(s.client.list_resource_templates(),
                                                 "uriTemplate"),
     ["note://{name}", "asked://{name}"]),
    ("prompts/list", lambda s: names(s.client.list_prompts()), ["review", "interview"]),
    ("tools/call", lambda s: s.client.call_tool("add", {"a": 1}).data, 3),
    ("tools/call, lenient", lambda s: s.client.call_tool("add", {"a": "1"}).data, 3),
    ("tools/call, object", lambda s: s.client.call_tool(
        "forecast", {"city": "Oslo"}).structured_content, {"city": "Oslo", "days": 3}),
    ("tools/call, nothing", lambda s: s.client.call_tool("nothing").content, []),
    ("tools/call, blocks", lambda s: [block["type"] for block in s.client.call_tool(
        "mixed").content], ["text", "image", "resource_link", "resource"]),
    ("tools/call, isError", lambda s: failure(raised(s.client.call_tool, "unlucky")),
     ("ToolError", "out of luck")),
    ("tools/call, McpError", lambda s: failure(raised(s.client.call_tool, "picky")),
     ("McpError", {"why": "monday"})),
    ("tools/call, unknown", lambda s: failure(raised(s.client.call_tool, "nope")),
     ("McpError", {"name": "nope"})),
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
    ("resources/read, unknown", lambda s: failure(raised(
        s.client.read_resource, "none://x")), ("McpError", {"uri": "none://x"})),
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
    ("several questions at once", lambda s: s.client.call_tool("several").data,
     {"who": {"name": "Ann"}, "dirs": [{"uri": "file:///a", "name": "a"}]}),
    ("a resource that asks", lambda s: s.client.read_resource("asked://tea")[0].text,
     "tea for Ann"),
    ("a prompt that asks", lambda s: s.client.get_prompt(
        "interview")["messages"][1]["content"]["text"], "Ann"),
    ("cancellation", outcome_of_cancelling, (True, 3)),
    ("timeout", outcome_of_timeout, (RequestTimeout, 3)),
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

    def test_one_server_serves_clients_of_both_eras(self):
        server, _ = everything()
        with Client(server, mode="legacy") as old, Client(server, mode="modern") as new:
            for a in range(20):
                self.assertEqual(old.call_tool("add", {"a": a}).data,
                                 new.call_tool("add", {"a": a}).data)

    def test_a_log_handler_receives_info_and_above_by_default(self):
        for mode in ("legacy", "modern"):
            with self.subTest(mode), Session(mode) as session:
                session.client.call_tool("tell", {"levels": ["debug", "info", "error"]})
                wait_until(lambda session=session: len(session.logs) == 2)
                self.assertEqual([level for level, _ in session.logs],
                                 ["info", "error"])

    def test_servers_that_share_a_secret_continue_the_same_request(self):
        effects = []

        def replica():
            server = Server("replica", state_secret=b"shared" * 6)

            @server.tool
            def pay(ctx: Context) -> str:
                name = ctx.elicit("name?", OBJECT).content["name"]
                receipt = ctx.once("charge", lambda: effects.append(name) or "receipt")
                sure = ctx.elicit("sure?", bool).data
                return f"{receipt} {sure}"
            return server

        def elicit(message, schema, params):
            return {"value": True} if message == "sure?" else {"name": "Ann"}

        with Relay(replica(), replica(), replica()) as relay, Client(
                relay.streams, mode="modern", elicitation_handler=elicit) as client:
            self.assertEqual(client.call_tool("pay").text, "receipt True")
        self.assertEqual(effects, ["Ann"])


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


IGNORED_LINES = [  # lines that a client ignores when they come before a response
    ("a banner", "Welcome to my server v1.0!"),
    ("an npm notice", "npm notice New major version of npm available!"),
    ("a blank line", ""),
    ("spaces", "   \t "),
    ("a carriage return", "\r"),
    ("invalid UTF-8", '{"jsonrpc":"2.0","id":$id,"result":{"x":"\xff\xfe"}}'),
    ("NaN", '{"jsonrpc":"2.0","id":$id,"result":{"x":NaN}}'),
    ("100,000 open brackets", "[" * 100000),
    ("100,000 nested arrays", "[" * 100000 + "]" * 100000),
    ("an integer of 5,000 digits", OK.replace("true", "9" * 5000)),
    ("half a message", '{"jsonrpc":"2.0","id":$id,"resu'),
    ("two messages on a line", OK + OK.replace("true", "false")),
    ("a number", "7"), ("null", "null"), ("an empty object", "{}"),
    ("an empty batch", "[]"),
    ("a response with an unknown id", '{"jsonrpc":"2.0","id":987654,"result":{}}'),
    ("a response with an unknown string id", '{"jsonrpc":"2.0","id":"x","result":{}}'),
    ("an error with an unknown id",
     '{"jsonrpc":"2.0","id":987654,"error":{"code":1,"message":"x"}}'),
    ("an id with a leading zero",
     '{"jsonrpc":"2.0","id":"0$id","result":{"ok":false}}'),
    ("an id with a fraction", '{"jsonrpc":"2.0","id":$id.5,"result":{"ok":false}}'),
    ("an id with spaces", '{"jsonrpc":"2.0","id":" $id ","result":{"ok":false}}'),
    ("an id of true", '{"jsonrpc":"2.0","id":true,"result":{"ok":false}}'),
    ("an id in a list", '{"jsonrpc":"2.0","id":[$id],"result":{"ok":false}}'),
    ("an error with an id of null", ERROR_WITHOUT_ID % '"id":null,'),
    ("an error without an id", ERROR_WITHOUT_ID % ""),
    ("progress with an unknown token", PROGRESS % ('"unknown"', 1)),
    ("progress with a token of true", PROGRESS % ("true", 1)),
    ("progress with an object as token", PROGRESS % ("{}", 1)),
    ("progress without params", NOTIFICATION % ("progress", "")),
    ("progress with a list of params", NOTIFICATION % ("progress", ',"params":[1]')),
    ("progress that is text", PROGRESS % ("$token", '"lots"')),
    ("an unknown notification", NOTIFICATION % ("x", "")),
    ("a log message without params", NOTIFICATION % ("message", "")),
    ("a list change with a number as params",
     NOTIFICATION % ("tools/list_changed", ',"params":7')),
    ("an update without a uri", NOTIFICATION % ("resources/updated", ',"params":{}')),
    ("cancelled with an unknown id",
     NOTIFICATION % ("cancelled", ',"params":{"requestId":"x"}')),
    ("cancelled with the id of the client's request",
     NOTIFICATION % ("cancelled", ',"params":{"requestId":$id}')),
    ("cancelled without params", NOTIFICATION % ("cancelled", "")),
    ("an acknowledgement without a subscription",
     NOTIFICATION % ("subscriptions/acknowledged", ',"params":{}')),
]

MALFORMED = [  # responses with a known id that are invalid: only that request fails
    ("result and error",
     '{"jsonrpc":"2.0","id":$id,"result":{},"error":{"code":1,"message":""}}'),
    ("neither result nor error", '{"jsonrpc":"2.0","id":$id}'),
    ("a list as result", '{"jsonrpc":"2.0","id":$id,"result":[]}'),
    ("null as result", '{"jsonrpc":"2.0","id":$id,"result":null}'),
    ("text as result", '{"jsonrpc":"2.0","id":$id,"result":"x"}'),
    ("text as error", '{"jsonrpc":"2.0","id":$id,"error":"x"}'),
    ("null as error", '{"jsonrpc":"2.0","id":$id,"error":null}'),
    ("text as code", '{"jsonrpc":"2.0","id":$id,"error":{"code":"1","message":"x"}}'),
    ("no code", '{"jsonrpc":"2.0","id":$id,"error":{"message":"x"}}'),
]

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
ACCEPT = {"elicitation_handler": lambda message, schema, params: {}}
MODERN_FAKE = {"discover": "modern()", "call": "again(params['arguments']['rounds'])"}

ROUNDS = [  # (label, a result of the server for each round of one call, the text of
    # the final result, the text of an error, or McpError)
    ("no resultType", [DONE.replace('"resultType":"complete",', "")], "done"),
    ("complete", [DONE], "done"),
    ("an unknown resultType", [DONE.replace("complete", "odd")], "odd"),
    ("a number as resultType", [DONE.replace('"complete"', "7")], McpError),
    ("neither inputRequests nor requestState", [INPUT % ""], McpError),
    ("a list as inputRequests", [INPUT % ',"inputRequests":[]'], McpError),
    ("a number as requestState", [INPUT % ',"requestState":7'], McpError),
    ("a question", [INPUT % QUESTION, DONE], "done"),
    ("a question and state",
     [INPUT % (QUESTION + ',"requestState":"s"'), DONE], "done"),
    ("state only", [INPUT % ',"requestState":"s"', DONE], "done"),
    ("two rounds", [INPUT % QUESTION, INPUT % QUESTION, DONE], "done"),
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

    def methods_received(self, client):
        """The last words of the methods that the server got after `discover`."""
        methods = [message["method"].rpartition("/")[2]
                   for message in self.seen(client)]
        return methods[methods.index("discover") + 1:]

    def notifications_received(self, client):
        """The methods of the notifications that the server got after the handshake."""
        methods = [message["method"].partition("/")[2] for message in self.seen(client)
                   if "id" not in message]
        return [method for method in methods if method != "initialized"]

    def cancelled(self, client):
        """The methods of the requests that the client has cancelled."""
        received = self.seen(client)
        requests = {message["id"]: message["method"] for message in received
                    if "id" in message}
        return [requests[message["params"]["requestId"]] for message in received
                if message["method"] == "notifications/cancelled"]

    def test_invalid_and_unexpected_lines_before_a_response_are_ignored(self):
        steps, notifications = [], []
        for version, rules in ((LATEST, {}), (MODERN, MODERN_FAKE)):
            client = self.fake(options={
                "message_handler": notifications.append,
                "log_handler": notifications.append,
                "progress_handler": lambda *step: steps.append(step)}, **rules)
            self.assertEqual(client.protocol_version, version)
            for label, line in IGNORED_LINES:
                with self.subTest(label, version=version):
                    self.assertIs(say(client, line, OK)["ok"], True)
                    self.fence(client)
        self.assertEqual(steps, [])

    def test_output_that_is_no_message_is_ignored_during_the_handshake(self):
        greeting = "say('Welcome!'); say(''); say('npm notice'); "
        client = self.fake(start=greeting, discover=greeting + "error(-32601)",
                           initialize=greeting + "legacy()")
        self.assertEqual(client.call_tool("f").text, "ok")

    def test_notifications_during_the_handshake_do_not_disturb_it(self):
        notify = "".join(f"say({NOTIFICATION % (name, '')!r}); " for name in (
            "message", "tools/list_changed", "resources/updated", "x"))
        options = {"message_handler": lambda notification: None, "timeout": 3}
        client = self.fake(options={**options, "log_level": "info"},
                           discover=notify + "error(-32601)", initialized=notify,
                           initialize=notify + "legacy(logging={})",
                           setLevel=notify + "result()")
        self.assertEqual(client.call_tool("f").text, "ok")
        client = self.fake(
            options=options, listen=notify + ACKNOWLEDGE,
            discover=notify + "modern(tools={'listChanged': True}, logging={})")
        self.fence(client)

    def test_a_modern_server_may_refuse_to_listen(self):
        client = self.fake(discover="modern(tools={'listChanged': True})",
                           listen="error(-32601)")
        self.fence(client)

    def test_a_connection_error_quotes_output_that_is_no_message(self):
        client = self.fake(call="say('half a li'); die(3)")
        with self.assertRaises(ConnectionClosed) as caught:
            client.call_tool("f")
        self.assertIn("half a li", str(caught.exception))

    def test_a_connection_error_quotes_an_unfinished_last_line(self):
        client = self.fake(call="os.write(1, b'never finis'); os._exit(3)")
        with self.assertRaises(ConnectionClosed) as caught:
            client.call_tool("f")
        self.assertIn("never finis", str(caught.exception))
        self.assertEqual(caught.exception.exit_code, 3)

    def test_a_malformed_response_fails_only_its_own_call(self):
        for rules in ({}, MODERN_FAKE):
            client = self.fake(**rules)
            for label, line in MALFORMED:
                with self.subTest(label):
                    error = raised(say, client, line)
                    self.assertIsInstance(error, McpError)
                    self.assertEqual(error.code, -32603)
                    self.fence(client)

    def test_a_result_without_a_required_field_is_an_mcp_error(self):
        client = self.fake(read="result(contents={})", complete="result()",
                           list="result(tools=[1])")
        for method, arguments in ((client.read_resource, ["note://x"]),
                                  (client.complete, ["p", "word", "x"]),
                                  (client.list_tools, [])):
            error = raised(method, *arguments)
            self.assertIsInstance(error, McpError)
            self.assertEqual(error.code, -32603)
            self.assertIn("Malformed response", str(error))

    def test_the_id_of_a_response_may_be_a_decimal_string(self):
        client = self.fake()
        self.assertEqual(say(client, OK.replace("$id", '"$id"'))["ok"], True)
        self.fence(client)

    def test_a_second_response_to_the_same_request_is_ignored(self):
        client = self.fake()
        for second in (OK, OK.replace("true", "false"), MALFORMED[-1][1]):
            self.assertIs(say(client, OK, second)["ok"], True)
            self.fence(client)

    def test_a_response_after_the_timeout_is_dropped(self):
        client = self.fake(call="asked = id", late="send(id=asked, result={'late': 1});"
                                                   "result(in_time=1)")
        with self.assertRaises(RequestTimeout):
            client.call_tool("f", timeout=0.05)
        result = client.request("fake/late")
        self.assertEqual((result.get("in_time"), result.get("late")), (1, None))
        self.fence(client)

    def test_a_timeout_quotes_an_error_that_came_without_an_id(self):
        client = self.fake()
        for id in ('"id":null,', ""):
            error = raised(say, client, ERROR_WITHOUT_ID % id, timeout=0.05)
            self.assertIsInstance(error, RequestTimeout)
            self.assertIn("cannot parse that", str(error))

    def test_a_call_whose_results_require_input(self):
        client = self.fake(options=ACCEPT, **MODERN_FAKE)
        for label, rounds, expected in ROUNDS:
            with self.subTest(label):
                arguments = {"rounds": rounds}
                if expected == "done":
                    self.assertEqual(client.call_tool("f", arguments).text, "done")
                else:
                    error = raised(client.call_tool, "f", arguments)
                    self.assertIsInstance(error, McpError)
                    if expected is not McpError:
                        self.assertIn(expected, str(error))
                self.fence(client)

    def test_request_state_is_returned_unchanged_under_a_new_id(self):
        """Fails if the state is changed, or sent with any other request."""
        state = "\\u00e9 \\ud83d\\ude00 \\\"x\\\" \\\\ "
        client = self.fake(options=ACCEPT, **MODERN_FAKE)
        rounds = [INPUT % (QUESTION + f',"requestState":"{state}"'),
                  INPUT % QUESTION, DONE]
        client.call_tool("f", {"rounds": rounds})
        client.call_tool("f", {"rounds": [DONE]})
        calls = [message for message in self.seen(client)
                 if message["method"] == "tools/call"]
        self.assertEqual(len({call["id"] for call in calls}), 4)
        first, second, third, other = [call["params"] for call in calls]
        self.assertEqual(second["requestState"], json.loads(f'"{state}"'))
        self.assertEqual(second["inputResponses"], {"q": {"action": "accept",
                                                          "content": {}}})
        self.assertNotIn("requestState", third)
        for params in (first, other):
            self.assertFalse({"requestState", "inputResponses"} & set(params))
        self.assertEqual([call["arguments"] for call in (first, second, third)],
                         [{"rounds": rounds}] * 3)

    def test_a_call_cancelled_while_the_user_is_asked_is_not_sent_again(self):
        """Fails if the request of the second round is sent after the cancellation."""
        asked, answered = gate("the question"), gate("the answer")

        def elicit(*question):
            asked.set()
            answered.wait()
            return {}

        client = self.fake(options={"elicitation_handler": elicit}, **MODERN_FAKE)
        call = client.submit_tool("f", {"rounds": [INPUT % QUESTION, ""]})
        asked.wait()
        self.assertTrue(call.cancel())
        answered.set()
        client.call_tool("f", {"rounds": [DONE]})
        self.assertEqual(self.methods_received(client), ["call", "call", "seen"])

    def test_a_call_cancelled_while_it_is_sent_again_is_cancelled_on_the_server(self):
        """Fails if the server gets `cancelled` before the second request, or never."""
        client = self.fake(options=ACCEPT, **MODERN_FAKE)
        table, put = client._session.connection.requests_out, mcp_min.Outbox.put

        def cancel_first(outbox, line):
            # The caller holds the lock of the table, so `cancel` cannot finish first.
            if b"inputResponses" in line:
                cancelling.start()
                cancelling.join(0.05)
            put(outbox, line)

        call = client.submit_tool("f", {"rounds": ["", ""]})
        self.assertTrue(call.cancel())
        with mock.patch.object(mcp_min.Outbox, "put", cancel_first):
            submitted = gate("submitted")
            cancelling = threading.Thread(
                target=lambda: submitted.wait() and call.cancel())
            call = client.submit_tool("f", {"rounds": [INPUT % QUESTION, ""]})
            submitted.set()
            with self.assertRaises(concurrent.futures.CancelledError):
                call.result(PATIENCE)
            cancelling.join(PATIENCE)
        wait_until(lambda: self.methods_received(client)[2:-1].count("cancelled") == 1)
        self.assertEqual(self.methods_received(client)[:5], [
            "call", "cancelled", "call", "call", "cancelled"])
        self.assertEqual(table._sent, {})

    def test_a_result_is_validated_on_the_thread_that_waits_for_it(self):
        """Fails (the fence gets no response) if the reading thread validates it."""
        tool = {"name": "f", "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object"}}
        client = self.fake(list=f"result(tools=[{tool!r}])")
        client.list_tools()

        def block_validation(call):
            began, release = gate("the validation"), gate("the release")

            def problems(output, value, seconds):
                began.set()
                release.wait()
                return []

            with mock.patch.object(mcp_min.OutputSchema, "problems", problems):
                caller = threading.Thread(target=call)
                caller.start()
                began.wait()
                self.fence(client)
                release.set()
                caller.join(PATIENCE)

        block_validation(lambda: client.call_tool("f"))
        block_validation(lambda: client.submit_tool("f").result(PATIENCE))

    def test_max_timeout_and_the_end_of_the_server_end_a_call_that_asks_the_user(self):
        legacy = {"call": "send(id='s1', method='elicitation/create', params={})"}
        for rules in legacy, MODERN_FAKE:
            for options, fail, error in (
                    ({"max_timeout": 0.1}, lambda pid: None, RequestTimeout),
                    ({}, lambda pid: os.kill(pid, 9), ConnectionClosed)):
                with self.subTest(error=error, rules=[*rules]):
                    asked, decided = gate("the question"), gate("the answer")

                    def think(*question, asked=asked, decided=decided):
                        asked.set()
                        decided.wait()

                    client = self.fake(
                        options={"elicitation_handler": think, **options}, **rules)
                    call = client.submit_tool("f", {"rounds": [INPUT % QUESTION, DONE]})
                    asked.wait()
                    fail(client._session.process._popen.pid)
                    self.assertIsInstance(raised(call.result, PATIENCE), error)
                    decided.set()

    def test_late_messages_of_a_round_are_ignored_while_the_user_is_asked(self):
        """Fails if a second `input_required` asks the user again, or if late progress
        restarts the timeout, which is suspended while the user is asked."""
        asked = []

        def think(*question):
            asked.append(question)
            time.sleep(0.2)  # longer than the timeout of the call
            return {}

        client = self.fake(
            options={"elicitation_handler": think}, discover="modern()",
            call="repeat(params['arguments'][int('inputResponses' in params)])")
        first_round = [INPUT % QUESTION, INPUT % QUESTION, PROGRESS % ("$token", 1)]
        result = client.call_tool("f", [first_round, [DONE]], timeout=0.15)
        self.assertEqual((result.text, len(asked)), ("done", 1))

    def test_input_required_as_the_result_of_a_list_is_an_error(self):
        client = self.fake(options=ACCEPT, discover="modern()",
                           list="repeat([%r])" % (INPUT % QUESTION))
        self.assertIsInstance(raised(client.list_tools), McpError)
        self.fence(client)

    def test_responses_to_the_requests_of_a_legacy_server(self):
        rows = [  # the request, the result or the code of the error
            ({"method": "ping"}, {"result": {}}),
            ({"method": "ping", "params": {}}, {"result": {}}),
            ({"method": "acme/ask"}, {"error": -32601}),
            ({"method": "sampling/createMessage", "params": {
                "messages": [], "maxTokens": 1}}, {"error": -32601}),
            ({"method": "elicitation/create", "params": {
                "message": "?", "requestedSchema": OBJECT}}, {"error": -32601}),
            ({"method": "roots/list"}, {"error": -32601}),
            ({"method": "tools/list"}, {"error": -32601}),
        ]
        client = self.fake()
        for request, expected in rows:
            with self.subTest(request["method"]):
                response = client.request("fake/ask", {"request": request})["answer"]
                self.assertEqual(response["id"], "s1")
                if "error" in expected:
                    self.assertEqual(response["error"]["code"], expected["error"])
                else:
                    self.assertEqual(response["result"], expected["result"])

    def test_an_mcp_error_that_a_handler_raises_is_sent(self):
        def sample(messages, params):
            raise McpError(-1, "user rejected sampling request")

        with quiet():
            client = self.fake(options={"sampling_handler": sample})
            response = client.request("fake/ask", {"request": {
                "method": "sampling/createMessage",
                "params": {"messages": [], "maxTokens": 1}}})["answer"]
        self.assertEqual(response["error"], {
            "code": -1, "message": "user rejected sampling request"})

    def test_the_text_of_any_other_exception_is_logged_and_not_sent(self):
        def elicit(message, schema, params):
            raise RuntimeError("401: key sk-SECRET")

        with quiet() as stderr:
            client = self.fake(options={"elicitation_handler": elicit})
            response = client.request("fake/ask", {"request": {
                "method": "elicitation/create",
                "params": {"message": "?", "requestedSchema": OBJECT}}})["answer"]
        self.assertEqual(response["error"]["code"], -32603)
        self.assertNotIn("SECRET", json.dumps(response))
        self.assertIn("SECRET", stderr.getvalue())

    def test_an_exception_that_cannot_be_shown_as_text_is_an_error_response(self):
        """Fails, by hanging, if the code that logs it does not expect an exception."""
        class Mute(Exception):
            def __str__(self):
                raise ValueError("no text")

        def elicit(message, schema, params):
            raise Mute

        options = {"elicitation_handler": elicit, "max_timeout": 2.0}
        with quiet():
            client = self.fake(options=options)
            result = client.request("fake/ask", {"request": {
                "method": "elicitation/create", "params": {"message": "?"}}})
            self.assertEqual(result["answer"]["error"], {
                "code": -32603, "message": "The client failed to answer"})
            client = self.fake(options=options, **MODERN_FAKE)
            call = client.submit_tool("f", {"rounds": [INPUT % QUESTION, ""]})
            error = raised(call.result, PATIENCE)
            self.assertEqual((error.code, error.message), (-32603, "Mute"))

    def test_only_a_question_to_the_user_suspends_the_timeout(self):
        """Fails (by hanging) if any other request of the server suspends it."""
        for method, options in (("ping", {}), ("roots/list", {"roots": ["/tmp"]})):
            repeat = textwrap.dedent(f"""
                import threading
                def repeat_request():
                    while True:
                        send(id="p", method="{method}")
                        time.sleep(0.02)
                threading.Thread(target=repeat_request, daemon=True).start()
                """)
            client = self.fake(options, call="exec(%r, globals())" % repeat)
            with self.subTest(method), self.assertRaises(RequestTimeout):
                client.call_tool("f", timeout=0.3)

    def test_at_most_8_questions_wait_for_the_user(self):
        asked, release = [], gate("the release")
        self.addCleanup(release.set)
        client = self.fake(
            options={"elicitation_handler": lambda *question: (
                asked.append(question), release.wait())},
            call="""[send(id=f"q{n}", method="elicitation/create", params={"message":
                "?", "requestedSchema": {"type": "object", "properties": {}}})
                for n in range(20)]; text("done")""")
        client.call_tool("f")
        refused = wait_until(lambda: [message for message in self.seen(client)
                                if message.get("error")][11:])
        self.assertIn("Over 8 questions", refused[0]["error"]["message"])
        self.assertLessEqual(len(asked), 8)

    def test_the_number_of_entries_of_a_list_is_limited(self):
        client = self.fake(start="n = 0", list="""n += 1; result(
            tools=[{"name": f"t{n}-{i}"} for i in range(20)], nextCursor=str(n))""")
        with mock.patch.object(mcp_min, "MAX_ENTRIES", 100):
            self.assertIn("after 120 entries", str(raised(client.list_tools)))

    def test_waiting_callbacks_are_limited_by_their_size(self):
        """Fails if the callbacks that wait are limited only by their number."""
        received, release = [], gate("the release")
        self.addCleanup(release.set)
        client = self.fake(
            options={"log_handler": lambda params: (
                release.wait(), received.append(params))},
            call="""[send(method="notifications/message", params={
                "level": "info", "data": "x" * 100000})
                for _ in range(50)]; text("")""")
        with mock.patch.object(mcp_min, "MAX_CALLBACK_BYTES", 1 << 20):
            client.call_tool("f")
            release.set()
            wait_until(lambda: len(received) >= 10)
            client.close()
        self.assertLess(len(received), 15)

    def test_the_time_to_validate_a_result_is_limited(self):
        """Without limits, each of these schemas takes seconds or never ends, and
        neither a timeout nor Ctrl-C stops the validation.  The patterns of a server are
        not run, because Python's `re` cannot be interrupted."""
        for label, schema, value in (
                ("pattern", """{"properties": {"x": {"pattern": "^(a+)+$"}}}""",
                 """{"x": "a" * 40 + "!"}"""),
                ("patternProperties", """{"patternProperties": {"^(a+)+$": False}}""",
                 """{"a" * 40 + "!": 1}"""),
                ("required", """{"properties": {"x": {"items": {
                    "required": [f"n{n}" for n in range(3000)]}}}}""",
                 """{"x": [{}] * 3000}"""),
                ("enum", """{"properties": {"x": {"items": {
                    "enum": [{"a": n} for n in range(20000)]}}}}""",
                 """{"x": [{"a": -1}] * 20000}"""),
                ("references", """{"$ref": "#/$defs/0", "$defs": {
                    n: {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2 * (n < 300)}
                    for n in range(301)}}""", "{}")):
            with self.subTest(label), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                client = self.fake(
                    list="result(tools=[{'name': 'f', 'inputSchema': {'type': 'object'}"
                         f", 'outputSchema': dict({schema}, type='object')}}])",
                    call=f"result(content=[], structuredContent={value})")
                self.assertEqual(client.list_tools()[0]["name"], "f")
                result = client.call_tool("f", timeout=PATIENCE)
                self.assertIsInstance(result.structured_content, dict)

    def test_a_full_pipe_that_cannot_be_polled_does_not_delay_a_timeout(self):
        """A pipe cannot be polled on Windows.  Fails, by blocking in `write`, if a
        thread that must not wait writes to it."""
        with mock.patch.object(mcp_min, "make_poll", side_effect=OSError):
            client = self.fake(call="time.sleep(600)")
            for _ in range(60):
                with self.assertRaises(RequestTimeout):
                    client.call_tool("f", {"x": "x" * 4000}, timeout=0.01)
            with mock.patch.object(client._session.process, "PATIENCE", 0.05):
                client.close()

    def test_a_wait_in_steps_returns_the_result(self):
        """On Windows no signal interrupts a wait, so a client waits in steps."""
        future = concurrent.futures.Future()
        threading.Timer(0.01, future.set_result, [5]).start()
        with mock.patch.object(mcp_min.os, "name", "nt"):
            self.assertEqual(mcp_min.wait_for(future), 5)

    def test_windows_line_ends_of_stderr_become_newlines(self):
        received = []
        client = self.fake(options={"stderr": received.append},
                           call="err('one\\r'); die(1)")
        error = raised(client.call_tool, "f")
        self.assertEqual(error.stderr, "one\n")
        wait_until(lambda: received)
        self.assertEqual(received, ["one\n"])

    def test_arguments_that_a_windows_shell_would_interpret_are_refused(self):
        with mock.patch("shutil.which", lambda name, path: name + ".cmd"):
            self.assertEqual(mcp_min.windows_argv([pathlib.Path("x"), b"a"], {}),
                             ["x.cmd", "a"])
            for argv in (["x", b"a&b"], ["R&D\\x", "a"]):
                self.assertRaises(ValueError, mcp_min.windows_argv, argv, {})

    def test_an_elicitation_handler_may_return_a_bare_value(self):
        server = Server("s")

        @server.tool
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("?", bool).data)

        for mode in "legacy", "modern":
            with Client(server, mode=mode,
                        elicitation_handler=lambda *question: False) as client:
                self.assertEqual(client.call_tool("ask").text, "False")

    def test_the_action_for_each_answer_to_a_question_without_fields(self):
        server = Server("s")

        @server.tool
        def wipe(ctx: Context) -> str:
            return ctx.elicit("Really?").action

        for answer, action in ((True, "accept"), (False, "decline"), (None, "decline"),
                               ({}, "accept"), ({"action": "cancel"}, "cancel")):
            def elicit(*question, answer=answer):
                return answer

            with self.subTest(answer=answer), Client(
                    server, elicitation_handler=elicit) as client:
                self.assertEqual(client.call_tool("wipe").text, action)

    def test_an_async_elicitation_handler_is_refused(self):
        async def later(*question):
            return True

        with self.assertRaisesRegex(TypeError, "later is `async def`"):
            Client(Server("s"), elicitation_handler=later)

    def test_a_timeout_names_the_request_and_cancels_it(self):
        client = self.fake(call="")
        with self.assertRaisesRegex(RequestTimeout, "tools/call spin: no response or "
                                                    "progress within 0.05 s"):
            client.call_tool("spin", timeout=0.05)
        self.assertEqual(self.cancelled(client), ["tools/call"])

    def test_a_timeout_quotes_the_stderr_since_the_start_of_its_call(self):
        client = self.fake(options={"stderr": None}, start="err('old news')",
                           call="err('news')")
        wait_until(lambda: "old news" in client.stderr_tail)
        text = str(raised(client.call_tool, "f", timeout=0.3))
        self.assertEqual(text.count("news"), 1)

    def test_a_server_that_exits_at_once_raises_a_single_exception(self):
        code = "import sys; sys.exit('no!')"
        client = Client([sys.executable, "-I", "-S", "-c", code], stderr=None)
        error = raised(client.connect)
        shown = "".join(traceback.format_exception(type(error), error, None))
        self.assertEqual(shown.count("no!"), 1)

    def test_the_error_for_a_server_that_exits_silently_mentions_run(self):
        client = Client([sys.executable, "-I", "-S", "-c", "pass"], stderr=None)
        self.assertIn("did it call server.run()?", str(raised(client.connect)))

    def test_stray_output_holds_the_lines_that_are_no_message(self):
        client = self.fake(start="say('Loading'); say('50%')")
        client.call_tool("f")
        self.assertEqual(client.stray_output, [b"Loading", b"50%"])

    def test_a_handler_that_is_false_as_a_boolean_is_used(self):
        """Fails if the capability is declared and the handler is not called."""
        class Script(list):
            def __call__(self, messages, params):
                return "hi"

        client = self.fake(options={"sampling_handler": Script()})
        response = client.request("fake/ask", {"request": {
            "method": "sampling/createMessage",
            "params": {"messages": [], "maxTokens": 1}}})["answer"]
        self.assertEqual(response["result"]["content"]["text"], "hi")

    def test_requests_of_a_modern_server_get_no_response(self):
        client = self.fake(options={"sampling_handler": lambda *a: "x"}, **MODERN_FAKE)
        for method in ("ping", "sampling/createMessage", "roots/list", "acme/ask"):
            say(client, json.dumps({"jsonrpc": "2.0", "id": "s1", "method": method,
                                    "params": {"messages": [], "maxTokens": 1}}), OK)
        self.fence(client)
        self.assertEqual([message for message in self.seen(client)
                          if "method" not in message], [])

    def test_an_unfinished_line_does_not_delay_a_timeout(self):
        """Fails (by hanging) if a caller waits for the rest of the line."""
        client = self.fake(
            options={"mode": "legacy"}, start="tries = 0",
            call="tries += 1; os.write(1, b'Loading... ') if tries > 1 else text('ok')")
        with short_patience():
            client.call_tool("f")
            with self.assertRaises(RequestTimeout):
                client.call_tool("f", timeout=0.2)
            client.close()

    def test_progress_of_a_finished_call_is_dropped(self):
        step = PROGRESS % ("$token", "%s")
        client, steps = self.fake(call="repeat(params['arguments']['lines'])"), []
        for lines in ([step % 1, step % 2, DONE, step % 3], [step % 1, DONE]):
            client.call_tool("f", {"lines": lines},
                             progress_handler=lambda *step: steps.append(step))
        wait_until(lambda: len(steps) == 3)
        self.assertEqual([progress for progress, _, _ in steps], [1, 2, 1])

    def test_every_request_has_a_progress_token_of_its_own(self):
        for rules in ({}, MODERN_FAKE):
            client = self.fake(**rules)
            client.list_tools()
            self.fence(client)
            client.call_tool("f", {"rounds": [DONE]})
            requests = [message for message in self.seen(client) if "id" in message
                        and message["method"] not in ("initialize", "server/discover")]
            tokens = {message["params"]["_meta"]["progressToken"]
                      for message in requests}
            self.assertEqual(len(tokens), len(requests))

    def test_a_change_of_the_roots_is_announced_to_a_legacy_server_only(self):
        for rules, expected in (({}, ["roots/list_changed"]), (MODERN_FAKE, [])):
            client = self.fake(options={"roots": ["file:///a"]}, **rules)
            client.set_roots(["file:///b"])
            self.assertEqual(self.notifications_received(client)[-1:], expected)

    def test_the_log_level_is_set_only_if_the_server_offers_logging(self):
        for capabilities, expected in (("", 0), ("logging={}", 1)):
            client = self.fake(options={"log_level": "info"}, setLevel="result()",
                               initialize=f"legacy({capabilities})")
            methods = [message["method"] for message in self.seen(client)]
            self.assertEqual(methods.count("logging/setLevel"), expected)

    @clause("2026-07-28/basic/patterns/cancellation",
            "A server **MUST** send `notifications/cancelled`")
    @clause("2026-07-28/basic/patterns/subscriptions", "A client that receives this "
            "response knows the subscription closed cleanly")
    def test_the_end_of_a_subscription_is_reported_to_the_message_handler(self):
        """The server ends it by a result, by `cancelled` or by an error.  Fails if the
        client keeps the subscription, or does not report its end."""
        ends = ["send(id=stream, result={'resultType': 'complete'})",
                "send(method='notifications/cancelled', params={'requestId': stream})",
                "send(id=stream, error={'code': -32603, 'message': 'no more'})"]
        for end in ends:
            received = queue.Queue()
            client = self.fake(
                {"message_handler": received.put}, discover="modern()",
                listen=ACKNOWLEDGE + "stream = id", end=end + "; result()")
            client.subscribe("note://x")
            with self.subTest(end):
                client.request("fake/end")
                notification = received.get(timeout=PATIENCE)
                self.assertEqual(notification["method"], "notifications/cancelled")
                self.assertEqual(notification["params"]["notifications"],
                                 {"resourceSubscriptions": ["note://x"]})
                self.assertEqual(client._subscribed, {})
                self.assertEqual(client._session.connection.requests_out._sent, {})
                client.unsubscribe("note://x")
                self.assertNotIn("cancelled", self.methods_received(client))

    @clause("2026-07-28/basic/patterns/subscriptions",
            "clients **MUST** use this field to "
            "correlate notifications with their originating subscription")
    def test_updates_that_belong_to_no_open_subscription_are_dropped(self):
        received = queue.Queue()
        update = ("send(method='notifications/resources/updated', "
                  "params={'uri': 'note://%s', '_meta': {"
                  "'io.modelcontextprotocol/subscriptionId': %s, 'x/y': 1}})")
        client = self.fake(
            {"message_handler": received.put}, discover="modern()",
            listen=ACKNOWLEDGE + "stream = id",
            say="; ".join(update % row for row in (
                ("unknown", 999), ("text", "'1'"), ("open", "stream"))) + "; result()")
        client.subscribe("note://open")
        client.request("fake/say")
        notification = received.get(timeout=PATIENCE)
        self.assertEqual(notification["params"],
                         {"uri": "note://open", "_meta": {"x/y": 1}})
        client.unsubscribe("note://open")
        client.request("fake/say")
        client.notify("fake/nothing")
        self.fence(client)
        self.assertTrue(received.empty())

    @clause("2026-07-28/server/utilities/caching", "the client **SHOULD** discard all "
            "cached pages and re-fetch from the beginning")
    def test_a_list_whose_cursor_has_expired_is_read_again_once(self):
        page = ("tries += 1; cursor = params.get('cursor'); "
                "error(-32602, 'Invalid cursor') if cursor and tries < %d else result("
                "tools=[{'name': 't'}], **({} if cursor else {'nextCursor': 'c'}))")
        client = self.fake(start="tries = 0", list=page % 4)
        self.assertEqual(names(client.list_tools()), ["t", "t"])
        client = self.fake(start="tries = 0", list=page % 99)
        self.assertEqual(raised(client.list_tools).code, -32602)
        self.assertEqual(self.methods_received(client).count("list"), 4)

    @clause("2025-03-26/basic/index", "**MUST** support receiving JSON-RPC batches")
    def test_a_client_of_2025_03_26_accepts_batches(self):
        notification = NOTIFICATION % ("x", "")
        ping = '{"jsonrpc":"2.0","id":"s1","method":"ping"}'
        received = queue.Queue()
        client = self.fake({"message_handler": received.put},
                           initialize="legacy('2025-03-26')")
        batch = "[%s,%s,7,%s]" % (notification, ping, OK)
        self.assertIs(say(client, batch)["ok"], True)
        self.assertEqual(received.get(timeout=PATIENCE)["method"], "notifications/x")
        self.assertEqual([message for message in self.seen(client)
                          if isinstance(message, list)],
                         [[{"jsonrpc": "2.0", "id": "s1", "result": {}}]])

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_a_request_that_needs_a_missing_capability_is_not_sent(self):
        for rules in ({"initialize": "OFFERED.clear(); legacy()"},
                      {"discover": "OFFERED.clear(); modern()"}):
            client = self.fake(**rules)
            for method, *arguments in (
                    (client.list_prompts,), (client.get_prompt, "x"),
                    (client.read_resource, "x://y"), (client.subscribe, "x://y"),
                    (client.complete, "p", "a", "v"),
                    (client.set_logging_level, "info"), (client.call_tool, "f")):
                with self.subTest(method.__name__, rules=rules):
                    self.assertEqual(raised(method, *arguments).code, -32601)
            sent = {message["method"].partition("/")[0]
                    for message in self.seen(client)}
            self.assertFalse(sent & {"prompts", "resources", "completion", "logging",
                                     "subscriptions", "tools"})

    def test_completion_before_2025_03_26_needs_no_capability(self):
        """In 2024-11-05 a server cannot declare completions."""
        client = self.fake(initialize="OFFERED.clear(); legacy('2024-11-05')",
                           complete="result(completion={'values': ['x']})")
        self.assertEqual(client.complete("p", "a", "v")["values"], ["x"])

    @clause("2026-07-28/basic/patterns/mrtr",
            "the client **MAY** retry the original request immediately")
    def test_input_required_without_a_question_is_retried_with_growing_pauses(self):
        state = INPUT % ',"requestState":"s"'
        with mock.patch.object(mcp_min, "EMPTY_ROUND_SECONDS", 0.01):
            client = self.fake(options=ACCEPT, **MODERN_FAKE)
            rounds = [state] * 3 + [INPUT % QUESTION] + [state] * 2 + [DONE]
            self.assertEqual(client.call_tool("f", {"rounds": rounds}).text, "done")
            error = raised(client.call_tool, "f", {"rounds": [state]}, timeout=0.2)
        self.assertIsInstance(error, RequestTimeout)
        # In 0.2 s there is time for pauses of 0.01, 0.02, 0.04 and 0.08 s, no more.
        calls = self.methods_received(client)[7:-1]
        self.assertIn(len(calls), range(2, 7), calls)

    def test_only_progress_that_increases_extends_a_timeout(self):
        step = PROGRESS % ("$token", 1)
        client = self.fake(call=f"[(time.sleep(0.05), repeat([{step!r}])) "
                                "for n in range(12)]; text('late')")
        with self.assertRaises(RequestTimeout):
            client.call_tool("f", timeout=0.3)

    def test_every_method_that_sends_a_request_has_a_timeout(self):
        client = self.fake(list="", read="", get="", complete="", subscribe="",
                           unsubscribe="", ping="", setLevel="",
                           initialize="legacy(logging={}, prompts={})")
        for method, *arguments in (
                (client.list_tools,), (client.list_prompts,), (client.list_resources,),
                (client.list_resource_templates,), (client.ping,),
                (client.read_resource, "x://y"), (client.get_prompt, "p"),
                (client.complete, "p", "a", "v"), (client.subscribe, "x://y"),
                (client.unsubscribe, "x://y"), (client.set_logging_level, "info")):
            with self.subTest(method.__name__):
                error = raised(method, *arguments, timeout=0.01)
                self.assertIsInstance(error, RequestTimeout)
        self.assertEqual(client.max_timeout, 3600)

    def test_a_subscription_to_a_modern_server_is_a_listen_request(self):
        client = self.fake(discover="modern(resources={'subscribe': True})",
                           listen=ACKNOWLEDGE)
        client.subscribe("note://x")
        client.subscribe("note://y")
        client.unsubscribe("note://x")
        received = self.seen(client)
        listens = [message for message in received
                   if message["method"] == "subscriptions/listen"]
        self.assertEqual([message["params"]["notifications"] for message in listens], [
            {"resourceSubscriptions": ["note://x"]},
            {"resourceSubscriptions": ["note://y"]}])
        self.assertEqual([message["params"]["requestId"] for message in received
                          if message["method"] == "notifications/cancelled"],
                         [listens[0]["id"]])

    def test_a_subscription_that_the_server_refuses_is_an_error(self):
        """A modern server also refuses by an acknowledgement that does not name it."""
        def subscribe(rules):
            client = self.fake(**rules)
            self.assertIsInstance(raised(client.subscribe, "note://x"), McpError)
            self.fence(client)

        other = [ACKNOWLEDGE.replace('params["notifications"]', acknowledged)
                 for acknowledged in ("{}", "{'resourceSubscriptions': []}",
                                      "{'resourceSubscriptions': 5}",
                                      "{'resourceSubscriptions': 'note://x'}")]
        run_together(self, subscribe, [
            [{"subscribe": "error(-32601)"}],
            *[[{"discover": "modern()", "listen": listen}]
              for listen in ("error(-32601)", *other)]])

    def test_control_characters_of_the_server_are_shown_escaped(self):
        client = self.fake(call="err('\\x1b[31mred'); say('\\x1b[2Jclear'); die(1)",
                           options={"stderr": None})
        with self.assertRaises(ConnectionClosed) as caught:
            client.call_tool("f")
        self.assertIn("red", str(caught.exception))
        self.assertIn("clear", str(caught.exception))
        self.assertNotIn("\x1b", str(caught.exception))

    def test_a_cancellation_is_sent_once(self):
        client = self.fake(call="")
        call = client.submit_tool("f")
        wait_until(lambda: any(message["method"] == "tools/call"
                         for message in self.seen(client)))
        self.assertTrue(call.cancel())
        call.cancel()
        self.assertEqual(self.cancelled(client), ["tools/call"])

    def test_initialize_is_never_cancelled(self):
        def wait(mode):
            story = Story(self)
            error = raised(self.fake, {"mode": mode, "timeout": 0.1}, story,
                           discover="", initialize="")
            self.assertIsInstance(error, RequestTimeout)
            self.assertNotIn("cancelled", str(story))

        run_together(self, wait, [["legacy"], ["auto"]])

    def test_progress_extends_a_timeout_up_to_max_timeout(self):
        steps = ("[(time.sleep(0.12), send(method='notifications/progress', params={"
                 "'progressToken': token, 'progress': n})) for n in range(6)]; ")

        def extended():
            client = self.fake(call=steps + "text('slow')")
            return client.call_tool("f", timeout=0.6).text

        def capped():
            client = self.fake(options={"max_timeout": 0.1}, call=steps)
            started = time.monotonic()
            error = raised(client.call_tool, "f", timeout=0.4)
            return type(error), time.monotonic() - started < 2

        self.assertEqual(together(extended, capped), ["slow", (RequestTimeout, True)])

    def test_a_flood_of_notifications_does_not_delay_a_response(self):
        received, release = [], gate("the release")

        def slow(notification):
            received.append(notification)
            release.wait()

        client = self.fake(options={"message_handler": slow}, flood=(
            f"line = {NOTIFICATION % ('x', '')!r} + chr(10); "
            "os.write(1, line.encode()); say((line * 20000)[:-1]); result(ok=1)"))
        self.assertEqual(client.request("fake/flood")["ok"], 1)
        self.assertEqual(len(received), 1)
        release.set()
        self.fence(client)

    def test_a_flood_does_not_drop_a_response_that_waits_behind_progress(self):
        reported, release = gate("the first progress"), gate("the release")
        notification = NOTIFICATION % ("x", "")

        def on_progress(*step):
            reported.set()
            release.wait()

        client = self.fake(
            options={"message_handler": lambda notification: None},
            call=f"repeat([{PROGRESS % ('$token', 1)!r}]); text('ok'); "
                 f"say(({notification!r} + chr(10)) * 20000 + {notification!r})")
        call = client.submit_tool("f", progress_handler=on_progress)
        reported.wait()
        self.fence(client)  # now the whole flood has been read
        release.set()
        self.assertEqual(call.result(PATIENCE).text, "ok")

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
        self.assertEqual(client.call_tool("f").text, "ok")

    def test_close_while_the_server_does_not_read(self):
        client = self.fake(deaf="result(); time.sleep(60)")
        client.request("fake/deaf")
        call = client.submit("fake/fence", {"blob": "x" * 1_000_000})
        with short_patience():
            self.assertEqual(together(client.close), [None])
        self.assertIsInstance(call.exception(PATIENCE), ConnectionClosed)

    def test_the_version_that_the_server_selects(self):
        rows = [  # mode, the version that the server selects, that of the session
            ("legacy", "2024-11-05", "2024-11-05"),
            ("auto", "2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18", "2025-06-18"),
            ("2025-06-18", "2024-11-05", "2024-11-05"),
            ("2024-11-05", "2025-11-25", "2025-11-25"),
            ("legacy", "1999-01-01", None), ("auto", "1999-01-01", None),
            ("2025-06-18", "1999-01-01", None), ("legacy", "", None),
        ]

        def connect(mode, selected, expected):
            rule = {"initialize": f"legacy({selected!r})"}
            if expected:
                client = self.fake(options={"mode": mode}, **rule)
                self.assertEqual(client.protocol_version, expected)
            else:
                error = raised(self.fake, {"mode": mode}, **rule)
                self.assertIsNotNone(error)
                self.assertIn(selected, str(error))
                self.assertIn(LATEST, str(error))

        run_together(self, connect, rows)

    def test_a_mode_that_is_a_date_requests_that_revision(self):
        def connect(version):
            client = self.fake({"mode": version},
                               initialize="legacy(params['protocolVersion'])")
            self.assertEqual(client.protocol_version, version)

        run_together(self, connect, [[version] for version in LEGACY])

    def test_a_result_that_does_not_fit_its_output_schema_keeps_its_content(self):
        tool = {"name": "f", "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object", "required": ["x"]}}
        for structured in ("", ', "structuredContent": {"y": 1}'):
            line = DONE.replace('}]', '}]' + structured)
            client = self.fake(list=f"result(tools=[{tool!r}])",
                               call=f"repeat([{line!r}])")
            client.list_tools()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.assertEqual(client.call_tool("f").text, "done")

    def test_results_of_other_implementations(self):
        rows = [  # the result of tools/call, .data, .is_error
            ({"content": []}, "", False),
            ({"content": [{"type": "text", "text": "x"}], "isError": True}, "x", True),
            ({}, "", False),
            ({"content": [{"type": "odd"}]}, "", False),
            ({"content": [], "structuredContent": {"result": 1}}, {"result": 1}, False),
            ({"content": [], "structuredContent": {"result": 1},
              "_meta": {"fastmcp": {"wrap_result": True}}}, 1, False),
        ]
        client = self.fake(call="result(**params['arguments']['result'])")
        for result, data, is_error in rows:
            with self.subTest(result=result):
                received = client.call_tool("f", {"result": result},
                                            raise_on_error=False)
                self.assertEqual((received.data, received.is_error), (data, is_error))

    def test_notifications_without_the_usual_prefix_are_understood(self):
        notifications, steps = [], []
        client = self.fake(options={
            "message_handler": notifications.append,
            "progress_handler": lambda *step: steps.append(step)})
        step = PROGRESS % ("$token", 1)
        for line in ('{"jsonrpc":"2.0","method":"tools/list_changed"}',
                     step.replace("notifications/", ""),
                     step.replace("notifications/", "$/")):
            say(client, line, OK)
        self.assertEqual(wait_until(lambda: notifications)[0]["method"],
                         "notifications/tools/list_changed")
        wait_until(lambda: len(steps) == 2)


# ======================================================================================
# 7, 11  Which era a server speaks
# ======================================================================================

# A row of PROBES is: label, the rule of the server for `server/discover`, its rule for
# `initialize`, the expected story, the expected revision (None: either).  The story has
# a "+" for each start of the server and a word for each message; a call is made at the
# end, and "call" must stand there once.  Where connecting fails there is no story, and
# a tuple of texts of the error instead of the revision.
HANDSHAKE = "+ discover initialize initialized call"
RESTART = "+ discover + initialize initialized call"
SILENT = "silent = True; "  # marks a rule that answers the probe late, or never
LATER = SILENT + "asked = id"
ANSWER_LATE = "id, mine = asked, id; modern(); id = mine; "
PROBES = [
    ("error -32601", "error(-32601)", "legacy()", HANDSHAKE, LATEST),
    ("error -32602", "error(-32602, data='')", "legacy()", HANDSHAKE, LATEST),
    ("error -32600", "error(-32600)", "legacy()", HANDSHAKE, LATEST),
    ("error -32002", "error(-32002)", "legacy()", HANDSHAKE, LATEST),
    ("error 0", "error(0)", "legacy()", HANDSHAKE, LATEST),
    ("an error with an id of null", SILENT + "id = None; error(-32600)", "legacy()",
     HANDSHAKE, LATEST),
    ("a malformed error", "send(id=id, error='no')", "legacy()", HANDSHAKE, LATEST),
    ("silence", SILENT, "legacy()", HANDSHAKE, LATEST),
    ("exit on the probe", "die(1)", "legacy()", RESTART, LATEST),
    ("a slow exit on the probe", "time.sleep(0.05); die(0)", "legacy()", RESTART,
     LATEST),
    ("silence, then exit on initialize", SILENT + "probes = 1",
     "die(1) if probes else legacy()",
     "+ discover initialize + initialize initialized call", LATEST),
    ("an error, then exit on initialize", "probes = 1; error(-32602)",
     "die(1) if probes else legacy()",
     "+ discover initialize + initialize initialized call", LATEST),
    ("stdout closed on the probe", "os.close(1); time.sleep(0.05); die(0)", "legacy()",
     RESTART, LATEST),
    ("a DiscoverResult", "modern()", "error(-32022)", "+ discover call", MODERN),
    ("a DiscoverResult with a legacy version too", "modern('2026-07-28', '2025-11-25')",
     "error(0)", "+ discover call", MODERN),
    ("a DiscoverResult with a future version too", "modern('2099-01-01', '2026-07-28')",
     "error(0)", "+ discover call", MODERN),
    ("a DiscoverResult with a legacy version only", "modern('2025-11-25')", "legacy()",
     HANDSHAKE, LATEST),
    ("a DiscoverResult with a future version only", "modern('2099-01-01')", "legacy()",
     None, ("2099-01-01", MODERN)),
    ("a DiscoverResult of an unknown resultType",
     ("result(resultType='odd', supportedVersions=['2026-07-28'])"), "legacy()",
     HANDSHAKE, LATEST),
    ("text as supportedVersions", "result(supportedVersions='2026-07-28')",
     "legacy()", HANDSHAKE, LATEST),
    ("an empty result", "result()", "legacy()", HANDSHAKE, LATEST),
    ("a list as result", "send(id=id, result=[])", "legacy()", HANDSHAKE, LATEST),
    ("error -32022 naming the modern version",
     "error(-32022, supported=['2026-07-28'])", "legacy()",
     r"\+ (discover )+call", MODERN),
    ("error -32022 naming a legacy and the modern version",
     "error(-32022, supported=['2025-11-25', '2026-07-28'])", "legacy()",
     r"\+ (discover )+call", MODERN),
    ("error -32022 naming a legacy version", "error(-32022, supported=['2025-11-25'])",
     "legacy()", HANDSHAKE, LATEST),
    ("error -32022 without data", "error(-32022)", "legacy()", None, (MODERN,)),
    ("error -32021", "error(-32021, 'you need roots')", "legacy()", None,
     ("need roots",)),
    ("error -32022 naming another version, initialize refused",
     "error(-32022, supported=['2099-01-01'], requested='2026-07-28')",
     "error(-32022, supported=['2099-01-01'])", None, ("2099-01-01", MODERN)),
    ("error -32022 naming another version, though initialize would be accepted",
     "error(-32022, supported=['2099-01-01'])", "legacy()", None,
     ("2099-01-01", MODERN)),
    ("a late DiscoverResult, then error 0", LATER, ANSWER_LATE + "error(0)",
     "+ discover initialize call", MODERN),
    ("a late DiscoverResult, then error -32022", LATER,
     ANSWER_LATE + "error(-32022, supported=['2026-07-28'])",
     "+ discover initialize call", MODERN),
    ("a late DiscoverResult, then a good handshake", LATER,
     ANSWER_LATE + "legacy()",
     r"\+ discover initialize (initialized )?call", None),
    ("silence, then error -32022 to initialize",
     SILENT + "probes += 1; modern() if probes > 1 else None",
     "error(-32022, supported=['2026-07-28'])",
     r"\+ discover initialize (discover )?call", MODERN),
    ("initialize refused", "error(-32601)", "error(-32602, 'no such client')", None,
     ("no such client",)),
    ("a banner before every response", "say('hello'); error(-32601)",
     "say('hello'); legacy()", HANDSHAKE, LATEST),
]

PINNED = [  # the same, with the mode in place of the label
    ("legacy", "modern()", "legacy()", "+ initialize initialized call", LATEST),
    ("2025-06-18", "modern()", "legacy('2025-06-18')", "+ initialize initialized call",
     "2025-06-18"),
    ("modern", "modern()", "legacy()", r"\+ (discover )?call", MODERN),
    (MODERN, "modern()", "legacy()", r"\+ (discover )?call", MODERN),
    ("modern", "error(-32601, 'no such thing')", "legacy()", None, ("no such thing",)),
    ("modern", "error(-32022, supported=['2025-11-25'])", "legacy()", None,
     ("2025-11-25", MODERN)),
    ("modern", "time.sleep(0.1); modern()", "legacy()", r"\+ (discover )?call", MODERN),
    ("legacy", "modern()", "error(-32022, 'modern only', supported=['2026-07-28'])",
     None, ("modern only",)),
]


class Test11Probe(unittest.TestCase):
    """How a client finds the era of a server: with one probe, and without a second
    start or a second call of a server that needs none."""

    def connect_automatically(self, label, *row):
        self.connect("auto", *row)

    def connect(self, mode, discover, initialize, expected_story, expected):
        story = Story(self)
        command = fake(story, discover=discover, initialize=initialize)
        client = Client(command, mode=mode, timeout=PATIENCE, stderr=None)
        self.addCleanup(client.close)
        if isinstance(expected, tuple):
            error = raised(client.connect)
            self.assertIsNotNone(error)
            for text in expected:
                self.assertIn(text, str(error))
            return
        client.connect()
        if client.protocol_version != MODERN:  # the probe must not be pending any more
            self.assertEqual(client._session.connection.requests_out._sent, {})
        self.assertEqual(client.call_tool("f").text, "ok")
        if expected:
            self.assertEqual(client.protocol_version, expected)
        self.assertEqual(client.server_info.get("name", "fake"), "fake")
        client.close()
        if expected_story.startswith("\\"):
            self.assertRegex(str(story), f"^{expected_story}$")
        else:
            self.assertEqual(str(story), expected_story)

    def test_every_response_to_the_probe(self):
        silent = [row for row in PROBES if row[1].startswith(SILENT)]
        others = [row for row in PROBES if row not in silent]
        with quick_probe(0.2), short_patience():
            run_together(self, self.connect_automatically, silent)
        with short_patience():
            for first in range(0, len(others), 9):
                run_together(self, self.connect_automatically, others[first:first + 9])

    def test_a_pinned_mode_does_not_negotiate(self):
        with quick_probe(0.02):
            run_together(self, self.connect, PINNED)

    def test_one_timeout_is_the_limit_for_all_steps_of_connecting(self):
        """Fails if a later step has the whole timeout again."""
        refuse = ("silent = len(seen) > 1; time.sleep(0.15); silent or error(-32022, "
                  "supported=['%s'])" % MODERN)

        def connect(mode, rules):
            client = Client(fake(**rules), mode=mode, log_level="info", timeout=0.5)
            error = raised(client.connect)
            self.assertIsInstance(error, RequestTimeout)
            self.assertIn("connecting took over 0.5 s: ", str(error))
            self.assertLess(float(re.findall(r"([\d.]+) s", str(error))[1]), 0.4)

        with short_patience():
            run_together(self, connect, [
                ("legacy", {"initialize": "time.sleep(0.15); legacy(logging={})",
                            "setLevel": ""}),
                ("modern", {"discover": refuse})])

    def test_stderr_of_a_legacy_server_during_the_probe_is_only_in_stderr_tail(self):
        def connect(response, passed_on):
            warn = "[err('warning %d' % n + 60 * 'x') for n in range(90)]; "
            received = []
            with Client(fake(discover=warn + response,
                             pid="err('serving'); result()"),
                        stderr=received.append) as client:
                client.request("fake/pid")
                wait_until(lambda: "serving" in "".join(received))
                self.assertIn("warning 89", client.stderr_tail)
            self.assertEqual("warning" in "".join(received), passed_on)

        for row in (("error(-32602)", False), ("modern()", True)):
            with self.subTest(row[0]):
                connect(*row)


# ======================================================================================
# 6, 11  The client of a real process
# ======================================================================================

class Test11Process(FakeServers, unittest.TestCase):
    """The client and a real process: its start, its end and its stderr."""

    MODE = "legacy"

    def test_every_way_to_name_a_server(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "our server.py")
            with open(path, "w") as file:
                file.write(OUR_SERVER % HERE)
            entry = {"command": sys.executable, "args": [path], "env": {"WHO": "entry"}}
            config = os.path.join(folder, "mcp.json")
            with open(config, "w") as file:
                json.dump({"mcpServers": {"ours": entry, "relative": {
                    "command": sys.executable, "args": ["our server.py"],
                    "cwd": folder}}}, file)
            loaded = load_config(config)
            self.assertEqual(set(loaded), {"ours", "relative"})
            rows = [("argv", [sys.executable, path], None), ("a file", path, None),
                    ("an entry", entry, "entry"),
                    ("load_config", loaded["ours"], "entry"),
                    ("an entry with cwd", loaded["relative"], None)]

            def connect(label, target, who):
                with Client(target) as client:
                    self.assertEqual(client.call_tool("env", {"key": "WHO"}).data,
                                     {"value": who})
                    self.assertEqual(client.protocol_version, MODERN)

            run_together(self, connect, rows)

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
        with mock.patch.dict(os.environ, MCP_MIN_TRACE="/nowhere/at all"):
            self.assertIsInstance(raised(client.connect), FileNotFoundError)
        self.assertIsNotNone(client.exit_code)  # it was started, and has ended

    def test_the_error_for_a_server_that_exits_at_once_has_its_stderr_and_status(self):
        for mode, starts in (("legacy", 1), ("auto", 2)):
            with self.subTest(mode):
                story = Story(self)
                with self.assertRaises(ConnectionClosed) as caught:
                    self.fake({"mode": mode, "stderr": None}, story,
                              start="err('no API key'); die(7)")
                self.assertEqual(caught.exception.exit_code, 7)
                self.assertIn("no API key", caught.exception.stderr)
                self.assertIn("no API key", str(caught.exception))
                self.assertIn("7", str(caught.exception))
                self.assertEqual(str(story).count("+"), starts)

    @UNIX
    def test_a_server_that_does_not_answer_initialize_is_terminated(self):
        story = Story(self)
        with self.assertRaises(RequestTimeout) as caught:
            self.fake({"timeout": 0.2, "stderr": None}, story, initialize="",
                      start="note(str(os.getpid())); err('loading')")
        self.assertIn("loading", str(caught.exception))
        gone(int(str(story).split()[1]))

    def test_a_megabyte_of_stderr_without_a_newline(self):
        client = self.fake(call="os.write(2, b'x' * 1000000); err('end'); text('ok')",
                           options={"stderr": None})
        self.assertEqual(client.call_tool("f").text, "ok")
        wait_until(lambda: client.stderr_tail.endswith("end\n"))
        self.assertLessEqual(len(client.stderr_tail), 8192)

    def test_stderr_goes_to_a_stream_a_function_or_nowhere(self):
        written = "one\ntwo \u00e9\n"

        def connect(target, received):
            with quiet() as sys_stderr:
                client = self.fake({"stderr": target},
                                   call="err('one'); err('two \u00e9'); text('ok')")
                client.call_tool("f")
                wait_until(lambda: client.stderr_tail == written)
                wait_until(lambda: received() == written)
                client.close()
                self.assertEqual(sys_stderr.getvalue(), "")

        stream, chunks = io.StringIO(), []
        rows = [("a stream", stream, stream.getvalue),
                ("a function", chunks.append, lambda: "".join(chunks)),
                ("nowhere", None, lambda: written)]
        for label, target, received in rows:
            with self.subTest(label):
                connect(target, received)
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

    def test_sys_stderr_is_read_when_connecting_and_needs_no_descriptor(self):
        with quiet() as sys_stderr:
            client = self.fake(call="err('hello'); text('ok')")
        client.call_tool("f")
        wait_until(lambda: sys_stderr.getvalue() == "hello\n")

    def test_sys_stderr_may_be_none(self):
        before, sys.stderr = sys.stderr, None
        try:
            client = self.fake(call="err('hello'); text('ok')")
            self.assertEqual(client.call_tool("f").text, "ok")
        finally:
            sys.stderr = before

    def test_a_client_inside_a_running_event_loop(self):
        async def main():
            with Client(fake(), mode="legacy") as client:
                return client.call_tool("f").text

        self.assertEqual(asyncio.run(main()), "ok")
        self.assertEqual(together(lambda: asyncio.run(main())), ["ok"])

    def test_the_environment_of_the_server(self):
        os.environ["MCP_MIN_SECRET"], os.environ["HOSTILE"] = "s", "() { :; }"
        self.addCleanup(os.environ.pop, "MCP_MIN_SECRET")
        self.addCleanup(os.environ.pop, "HOSTILE")
        rows = [({}, None, None), ({"env": {"MINE": "1"}}, None, "1"),
                ({"env": {}}, None, None), ({"inherit_env": True}, "s", None),
                ({"inherit_env": True, "env": {"MCP_MIN_SECRET": "t"}}, "t", None)]

        def connect(options, secret, mine):
            client = self.fake(options, env="result(env=dict(os.environ))")
            env = client.request("fake/env")["env"]
            self.assertEqual((env.get("MCP_MIN_SECRET"), env.get("MINE")),
                             (secret, mine))
            self.assertEqual(env["PATH"], os.environ["PATH"])
            if not options.get("inherit_env"):
                self.assertNotIn("HOSTILE", env)

        run_together(self, connect, rows)

    @UNIX
    def test_the_command_is_searched_in_the_path_of_the_child(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "my-mcp-server")
            with open(tool, "w") as file:
                file.write('#!/bin/sh\nexec "$@"\n')
            os.chmod(tool, 0o755)
            for env, cwd, name in (({"PATH": folder + ":/bin:/usr/bin"}, None,
                                    "my-mcp-server"), ({}, folder, "./my-mcp-server")):
                client = Client([name, *fake(cwd="result(cwd=os.getcwd())")],
                                env=env, cwd=cwd, mode="legacy")
                with client:
                    self.assertEqual(client.request("fake/cwd")["cwd"],
                                     os.path.realpath(cwd or os.getcwd()))

    @UNIX
    def test_the_end_of_the_server_fails_its_calls_with_exit_code_and_stderr(self):
        rows = [("die(3)", 3), ("die(0)", 0), ("os.kill(os.getpid(), 9)", -9),
                ("os.kill(os.getpid(), 11)", -11)]

        def end(rule, code):
            client = self.fake(call="err('last line'); " + rule,
                               options={"stderr": None})
            calls = [client.submit("fake/say", {"lines": []}) for _ in range(3)]
            with self.assertRaises(ConnectionClosed) as caught:
                client.call_tool("f")
            self.assertEqual(caught.exception.exit_code, code)
            self.assertIn("last line", caught.exception.stderr)
            self.assertEqual(client.exit_code, code)
            for call in calls:
                self.assertIsInstance(call.exception(PATIENCE), ConnectionClosed)

        run_together(self, end, rows)

    def test_the_first_call_after_the_end_of_the_server_fails(self):
        client = self.fake(call="text('bye'); os._exit(4)")
        self.assertEqual(client.call_tool("f").text, "bye")
        error = raised(client.call_tool, "f")
        self.assertIsInstance(error, ConnectionClosed)
        self.assertEqual(error.exit_code, 4)

    @UNIX
    def test_a_server_that_closes_its_stdout_counts_as_ended(self):
        client = self.fake(call="os.close(1)")
        with short_patience():
            self.assertIsInstance(raised(client.call_tool, "f"), ConnectionClosed)
            client.close()

    @UNIX
    def test_calls_of_a_server_that_closes_its_stdout_and_stays_fail_together(self):
        """Fails (after 4 s) if every call waits for the exit of the server."""
        client = self.fake(call="os.close(1); time.sleep(60)")
        calls = [client.submit_tool("f") for _ in range(100)]
        with short_patience():
            self.assertFalse(concurrent.futures.wait(calls, 3).not_done)
            for call in calls:
                self.assertIsInstance(call.exception(), ConnectionClosed)
            client.close()

    def test_the_last_response_of_a_server_that_has_ended_is_received(self):
        """Fails if the calls fail while the last response is still decoded."""
        decode = mcp_min.decode

        def decode_slowly(line, max_depth):
            time.sleep(0.3 if b"last result" in line else 0)  # longer than `hurried`
            return decode(line, max_depth)

        with short_patience(), mock.patch.object(mcp_min, "decode", decode_slowly):
            client = self.fake(call="text('last result'); die(3)")
            self.assertEqual(client.call_tool("f").text, "last result")
            client.close()

    @UNIX
    def test_ctrl_c_while_waiting_cancels_that_call_only(self):
        """Fails if the server gets no `cancelled`, or if the connection is lost."""
        if threading.current_thread() is not threading.main_thread():
            self.skipTest("signals go to the main thread")
        story = Story(self)
        client = self.fake({}, story, call="note('called')")
        other = client.submit_tool("f")
        wait_until(lambda: "called" in str(story))

        def interrupt():
            wait_until(lambda: str(story).count("called") == 2)
            os.kill(os.getpid(), signal.SIGINT)

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        with self.assertRaises(KeyboardInterrupt):
            client.call_tool("f")
        watcher.join(PATIENCE)
        received = self.seen(client)
        calls = [message["id"] for message in received
                 if message["method"] == "tools/call"]
        self.assertEqual([message["params"]["requestId"] for message in received
                          if message["method"] == "notifications/cancelled"], calls[1:])
        self.assertFalse(other.done())

    def test_ctrl_c_just_after_sending_cancels_the_call(self):
        """Fails if a call is cancelled only after its thread has begun to wait."""
        client, flush = self.fake(call=""), mcp_min.Outbox.flush

        def interrupted(outbox, **options):
            patch.stop()
            flush(outbox, **options)
            raise KeyboardInterrupt

        patch = mock.patch.object(mcp_min.Outbox, "flush", interrupted)
        patch.start()
        with self.assertRaises(KeyboardInterrupt):
            client.call_tool("f")
        methods = [message["method"] for message in self.seen(client)]
        self.assertEqual(methods[-3:], [
            "tools/call", "notifications/cancelled", "fake/seen"])

    @UNIX
    def test_a_server_has_ended_even_if_its_child_keeps_its_stdout_open(self):
        """Fails, after 20 s, if only the end of its stdout counts."""
        with short_patience():
            client = self.fake(call="import subprocess; "
                                    "subprocess.Popen(['sleep', '20']); die(7)")
            error = raised(client.call_tool, "f")
            self.assertIsInstance(error, ConnectionClosed)
            self.assertEqual(error.exit_code, 7)
            client.close()

    def test_connecting_again_closes_the_pipes_of_the_ended_server(self):
        """Fails if `connect` counts the client as still connected, or keeps the old
        pipes open."""
        client, open_files = self.fake(call="die(5)"), []
        for _ in range(10):
            self.assertIsInstance(raised(client.call_tool, "f"), ConnectionClosed)
            client.connect()
            self.fence(client)
            open_files.append(len(os.listdir("/dev/fd")))
        self.assertLessEqual(open_files[-1], open_files[0])

    def test_a_blocked_stderr_function_does_not_delay_connecting(self):
        """Fails if the thread that connects passes on what came during the probe."""
        release, late = threading.Event(), []
        client = Client(fake(discover="err('hello'); modern()"), timeout=PATIENCE,
                        stderr=lambda text: release.wait(1) or late.append(text))
        with client:
            self.fence(client)
            release.set()
        self.assertEqual(late, [])

    def test_a_done_callback_may_wait_for_another_call_of_the_ended_server(self):
        """Fails if the callbacks of a call run before the other calls have failed."""
        client, errors = self.fake(call="die(5)", hang=""), []
        first, second = client.submit("fake/hang"), client.submit("fake/hang")
        for call, other in (first, second), (second, first):
            call.add_done_callback(
                lambda _, other=other: errors.append(other.exception(1)))
        raised(client.call_tool, "f")
        wait_until(lambda: len(errors) == 2)

    def test_a_config_entry_may_hold_nulls_and_numbers(self):
        self.assertEqual(mcp_min.resolve_command(
            {"command": "x", "args": None, "env": None}, None, None), (["x"], {}, None))
        command, *args = fake(fence="result(port=os.environ['PORT'])")
        entry = {"command": command, "args": args, "env": {"PORT": 80}}
        with Client(entry, mode="legacy") as client:
            self.assertEqual(client.request("fake/fence")["port"], "80")

    def test_a_pair_of_sockets_is_no_pair_of_streams(self):
        client_end, server_end = socket.socketpair()
        with client_end, server_end, self.assertRaisesRegex(
                TypeError, "two binary streams"):
            Client((client_end, server_end)).connect()

    def test_auto_restart_starts_a_new_process_and_repeats_no_call(self):
        for mode in ("legacy", "auto"):
            with self.subTest(mode):
                story = Story(self)
                client = self.fake({"mode": mode, "auto_restart": True}, story,
                                   discover="modern()", call="die(5)")
                self.fence(client)
                self.assertIsInstance(raised(client.call_tool, "f"), ConnectionClosed)
                self.fence(client)
                words = str(story)
                self.assertEqual((words.count("+"), words.count("call")), (2, 1))
                if mode == "legacy":
                    self.assertIn("call + initialize initialized fence", words)
                else:
                    self.assertNotIn("initialize", words)
                self.assertIsNone(client.exit_code)

    def test_subscriptions_are_made_again_after_a_restart(self):
        for mode, rule in (
                ("legacy", {"initialize": "legacy(resources={'subscribe': True})"}),
                ("modern", {"discover": "modern(resources={'subscribe': True})"})):
            with self.subTest(mode):
                story = Story(self)
                client = self.fake(
                    {"mode": mode, "auto_restart": True,
                     "message_handler": lambda notification: None},
                    story, subscribe="result()", call="die(5)", listen=ACKNOWLEDGE,
                    **rule)
                client.subscribe("note://x")
                raised(client.call_tool, "f")
                client.request("fake/fence")
                self.assertEqual(len(wait_until(lambda client=client: [
                    message for message in self.seen(client)
                    if "note://x" in json.dumps(message)])), 1)

    def test_a_subscription_that_is_refused_after_a_restart_is_only_reported(self):
        story = Story(self)
        client = self.fake(
            {"mode": "legacy", "auto_restart": True}, story, call="die(5)",
            subscribe="error(-32002) if 'call' in open(diary[0]).read() else result()")
        client.subscribe("note://x")
        raised(client.call_tool, "f")
        with quiet() as stderr:
            self.fence(client)
        self.assertIn("note://x", stderr.getvalue())

    def test_a_server_that_exits_on_a_subscription_is_restarted_once(self):
        """Fails if subscribing after a restart may restart the server again."""
        story = Story(self)
        exit_if_restarted = "die(5) if open(diary[0]).read().count('+') > 1 else 0"
        client = self.fake({"mode": "legacy", "auto_restart": True}, story,
                           subscribe="result(); " + exit_if_restarted, call="die(5)")
        client.subscribe("note://x")
        client.subscribe("note://y")
        raised(client.call_tool, "f")

        def subscribe_and_wait(policy, *args,
                               subscribe=mcp_min.LegacyClientPolicy.subscribe):
            subscribe(policy, *args)
            wait_until(client._session.is_dead)
            if str(story).count("+") > 3:
                raise AssertionError("started again and again")

        with mock.patch.object(
                mcp_min.LegacyClientPolicy, "subscribe", subscribe_and_wait):
            error = raised(client.request, "fake/fence")
        self.assertIsInstance(error, ConnectionClosed)
        self.assertEqual(str(story).count("+"), 2)

    def test_connect_gives_up_a_subscription_that_is_not_answered_again(self):
        """Fails if `connect` raises and leaves the process running."""
        story = Story(self)
        client = self.fake(
            {"mode": "legacy", "timeout": 0.6}, story,
            subscribe="open(diary[0]).read().count('+') > 1 or result()")
        client.subscribe("note://x")
        client.close()
        with quiet() as stderr:
            client.connect()
        self.assertIn("no longer subscribed to note://x", stderr.getvalue())
        self.fence(client)

    def test_a_subscription_that_is_not_acknowledged_times_out(self):
        """Fails if a missing acknowledgement counts as a refusal."""
        client = self.fake({"mode": "modern"}, discover="modern()", listen="")
        error = raised(client.subscribe, "note://x", timeout=0.2)
        self.assertIsInstance(error, RequestTimeout)
        self.assertEqual(self.seen(client)[-2]["method"], "notifications/cancelled")

    def test_without_auto_restart_every_later_call_fails(self):
        story = Story(self)
        client = self.fake({}, story, call="die(5)")
        for _ in range(3):
            self.assertIsInstance(raised(client.call_tool, "f"), ConnectionClosed)
        self.assertEqual(str(story).count("+"), 1)

    @UNIX
    def test_close_ends_every_server(self):
        ignore = "import signal; signal.signal(15, signal.SIG_IGN); "
        child = ("import subprocess; child = subprocess.Popen([sys.executable, '-I',"
                 " '-c', 'import time; time.sleep(60)']%s); note(str(child.pid)); ")
        rows = [  # label, what the server does first, what last, its exit code
            ("ends at end of input", "", "", 0),
            ("ends with a status", "", "die(9)", 9),
            ("ignores end of input", "", "time.sleep(60)", -15),
            ("ignores end of input and SIGTERM", ignore, "time.sleep(60)", -9),
            ("leaves a child", child % "", "", 0),
            ("leaves a child and ignores end of input and SIGTERM",
             ignore + child % "", "time.sleep(60)", -9),
            ("leaves a child that keeps stdout open, in another session",
             child % ", start_new_session=True", "", 0),
        ]

        def close(label, start, end, code):
            story = Story(self)
            client = self.fake({}, story, start=start, end=end)
            started = time.monotonic()
            client.close()
            elapsed = time.monotonic() - started
            self.assertEqual(client.exit_code, code)
            self.assertLess(elapsed, 5.5)
            children = [int(word) for word in str(story).split() if word.isdigit()]
            for pid in children:
                if "start_new_session" in start:
                    os.kill(pid, signal.SIGKILL)
                gone(pid)

        with short_patience():
            run_together(self, close, rows)

    @UNIX
    def test_a_client_that_is_never_closed_does_not_delay_the_exit(self):
        code = ("import sys; sys.path.insert(0, %r); import mcp_min\n"
                "client = mcp_min.Client(%r, mode='legacy').connect()\n"
                "print(client.request('fake/pid')['pid'], flush=True)\n%s")
        close = "import atexit; atexit.register(client.close); "

        def end(label, last):
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", code % (HERE, fake(), last)],
                capture_output=True, timeout=PATIENCE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            gone(int(done.stdout))

        run_together(self, end, [("the end of the program", ""),
                            ("closed twice by atexit", close * 2),
                            ("sys.exit", "sys.exit(0)")])

    @UNIX
    def test_a_client_that_is_never_closed_kills_its_server(self):
        """The server ignores the end of its input, and SIGTERM."""
        stubborn = fake(start="import signal; signal.signal(15, signal.SIG_IGN)",
                        end="time.sleep(60)")
        code = ("import sys; sys.path.insert(0, %r); import mcp_min, os\n"
                "mcp_min.Process.PATIENCE = 0.1\n"
                "client = mcp_min.Client(%r, mode='legacy').connect()\n"
                "print(client.request('fake/pid')['pid'], flush=True)\n"
                "if os.fork() == 0: sys.exit()\n"  # the exit of a fork does not end it
                "os.wait(); client.request('fake/fence')\n")
        # Python warns of a fork in a process with threads from 3.12 on.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", code % (HERE, stubborn)],
            capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        gone(int(done.stdout))

    @UNIX
    def test_no_descriptor_and_no_thread_is_left_after_close(self):
        def open_files():
            return set(os.listdir("/proc/self/fd"))

        if not os.path.isdir("/proc/self/fd"):
            self.skipTest("no /proc")
        with Client(fake(), mode="legacy"):
            pass
        before, threads = open_files(), threading.active_count()
        for target in (fake(), fake(start="die(1)"), ["no-such-server"], Server("x"),
                       fake(initialize="error(1)")):
            with contextlib.suppress(OSError, McpError), Client(
                    target, mode="legacy", stderr=None) as client:
                client.call_tool("f")
        wait_until(lambda: open_files() == before, "closed descriptors")
        wait_until(lambda: threading.active_count() <= threads, "ended threads")


# ======================================================================================
# 5, 11  Races
# ======================================================================================

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
        with Client(server, mode="modern") as client, switch_threads_often():
            for _ in range(100):
                together(*[lambda: client.subscribe("note://x")] * 3)
                client.unsubscribe("note://x")
            # One stream remains: that for changes, which was opened when connecting.
            wait_until(lambda: len(server.subscribers) == 1, "the other streams end")

    def test_a_tool_can_be_called_while_it_is_replaced(self):
        """Fails if the old entry is removed before the new one is added."""
        stop = threading.Event()

        def replace():
            while not stop.is_set():
                self.server.add_tool(lambda word: word, name="echo")

        writer = threading.Thread(target=replace)
        call = '1 tools/call {"name": "echo", "arguments": {"word": "x"}}'
        with quiet(), switch_threads_often(), wire(self.server) as client:
            writer.start()
            try:
                for _ in range(400):
                    self.assertIn("result", client.ask(call, "modern"))
            finally:
                stop.set()
                writer.join()

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
                for call in range(60):
                    word = f"{thread}/{call}" * (1 if call % 20 else 12000)
                    if client.call_tool("echo", {"word": word}).text != word:
                        return word

            self.assertEqual(together(*[lambda thread=thread: work(thread)
                                        for thread in range(50)]), [None] * 50)

    def test_a_call_is_either_cancelled_or_has_a_result(self):
        """Fails (an InvalidStateError on stderr, two callbacks) if the check that the
        future is not cancelled and the setting of its result are two steps."""
        def race(client, turn):
            ended = []
            call = client.submit_tool("echo", {"word": str(turn)})
            call.add_done_callback(ended.append)
            if turn % 3:
                together(call.cancel)
            accepted = call.cancel()
            wait_until(lambda: ended == [call])
            if accepted or call.cancelled():
                self.assertTrue(call.cancelled())
            else:
                self.assertEqual(call.result().text, str(turn))

        with quiet() as stderr, Client(self.server) as client:
            for turn in range(300):
                race(client, turn)
            self.assertEqual(client.call_tool("echo", {"word": "alive"}).text, "alive")
        self.assertEqual(stderr.getvalue(), "")

    def test_a_call_either_times_out_or_has_a_result(self):
        """Fails if a timeout does not remove the request from the table: the late
        response then finds a future that is done, or is returned as well."""
        with Client(self.server) as client:
            client.call_tool("echo", {"word": "first"})

            def work(thread):
                for turn in range(60):
                    word = f"{thread}/{turn}"
                    try:
                        text = client.call_tool("echo", {"word": word},
                                                timeout=turn * 1e-4 + 1e-5).text
                    except RequestTimeout:
                        continue
                    if text != word:
                        return text

            self.assertEqual(together(*[lambda thread=thread: work(thread)
                                        for thread in range(4)]), [None] * 4)
            self.assertEqual(client.call_tool("echo", {"word": "alive"}).text, "alive")

    def test_close_while_other_threads_use_every_method(self):
        """Fails (another exception, a thread that hangs) if a method does not expect
        that the connection may be closed at any moment."""
        def repeat_until_closed(started, use):
            started.wait(PATIENCE)
            with contextlib.suppress(ConnectionClosed):
                while True:
                    with contextlib.suppress(concurrent.futures.CancelledError):
                        use()

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

            uses = [client.list_tools, client.ping, cancel,
                    lambda: client.call_tool("add", {"a": 1}),
                    lambda: client.submit_tool("add", {"a": 1}).result(PATIENCE),
                    lambda: client.subscribe("note://x"),
                    lambda: client.read_resource("note://x")]
            return together(close, close, *[
                lambda use=use: repeat_until_closed(started, use) for use in uses])

        for turn in range(15):
            self.assertEqual(race(turn), [None] * 9)

    def test_close_while_other_threads_submit_leaves_no_call_pending(self):
        """Fails (a call never ends) if a call can be added to the table after `close`
        has emptied it: the check of "closed" and the addition must share a lock."""
        def submit(client, calls):
            while not (calls and calls[-1].done() and calls[-1].exception()):
                calls.append(client.submit_tool("echo", {"word": ""}))

        def race(client):
            calls_of_threads = [[] for _ in range(4)]
            together(*[lambda calls=calls: submit(client, calls)
                       for calls in calls_of_threads],
                     lambda: (time.sleep(0.005), client.close()))
            for call in itertools.chain(*calls_of_threads):
                error = call.exception(PATIENCE)
                self.assertIsInstance(error, (type(None), ConnectionClosed))

        for _ in range(5):
            race(Client(self.server).connect())

    def test_one_thread_reads_for_a_client(self):
        """Fails if a thread that calls reads lines itself, or if reading passes from
        one thread to another."""
        readers = collections.defaultdict(set)

        def next_line(lines, next=mcp_min.LineReader.next):
            readers[lines].add(threading.current_thread())
            return next(lines)

        for mode in "legacy", "modern":
            with self.subTest(mode), mock.patch.object(
                    mcp_min.LineReader, "next", next_line), Client(
                        self.server, mode=mode) as client:
                together(*[lambda client=client: [
                    client.call_tool("echo", {"word": "a"}) for _ in range(50)]] * 4)
                threads = readers[client._session.connection._lines]
                self.assertEqual([thread.name for thread in threads], ["mcp reader"])

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
        for _ in range(20):
            client = Client(self.server).connect()
            self.assertEqual(together(*[client.close] * 4), [None] * 4)
        client = Client(fake(), mode="legacy").connect()
        self.assertEqual(together(*[client.close] * 4), [None] * 4)
        self.assertEqual(client.exit_code, 0)

    def test_many_threads_restart_an_ended_server_once(self):
        """Fails if the check for the end of the server and the restart are not one step
        under a lock."""
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
        def race(session):
            client, stop = session.client, threading.Event()

            def touch(uri):
                while not stop.is_set():
                    session.server.notify_resource_updated(uri)

            def grow():
                while not stop.is_set():
                    session.server.add_tool(lambda: "", name="grown")

            def listen():
                try:
                    for number in range(20):
                        client.subscribe(f"note://{number}")
                    for number in range(20):
                        client.unsubscribe(f"note://{number}")
                    client.subscribe("note://x")
                    session.received("notifications/resources/updated")
                finally:
                    stop.set()

            self.assertEqual(together(listen, grow, lambda: touch("note://x"), *[
                lambda: touch("note://unknown")] * 3), [None] * 6)
            self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)

        for mode in ("legacy", "modern"):
            with self.subTest(mode), quiet(), Session(mode) as session:
                race(session)


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
        self.by_method = {}
        for name in self.defs:
            method = self.method_of(name)
            if method and name != "ClientNotification":
                self.by_method[method] = name
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
        """Validate a request or a notification."""
        method = message["method"]
        if "id" in message:
            self.requests[sender, message["id"]] = method
            self.validate("JSONRPCRequest", message)
        else:
            self.validate("JSONRPCNotification", message)
        if method in self.by_method:
            self.validate(self.by_method[method], message)
            self.check_direction(sender, method)
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

    def check_direction(self, sender, method):
        """Fail if this side may not send this method."""
        unions = [name for name in (
            ("ClientRequest", "ClientNotification") if sender == ">" else
            ("ServerRequest", "ServerNotification")) if name in self.defs]
        allowed = []
        for name in unions:
            for schema in self.defs[name].get("anyOf", [self.defs[name]]):
                allowed.append(self.method_of(
                    schema["$ref"].rpartition("/")[2] if "$ref" in schema else name))
        if method not in allowed:
            raise AssertionError(f"{sender} sends {method}")


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

    @classmethod
    def setUpClass(cls):
        try:
            import jsonschema
        except ImportError:
            jsonschema = None
        cls.jsonschema = jsonschema

    def setUp(self):
        if not self.jsonschema:
            missing(self, "the package jsonschema")
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
            for name in ("CallToolRequest", "CallToolResult",
                         "ProgressNotification", "CancelledNotification",
                         "LoggingMessageNotification",
                         "ToolListChangedNotification", "CompleteResult",
                         "ResourceUpdatedNotification", "GetPromptResult"):
                self.assertIn(name, count)

        run_together(self, check, [[revision] for revision in (*LEGACY, MODERN)])

    def test_auto_mode_is_the_modern_revision(self):
        count = self.check(MODERN, self.record("auto"))
        self.assertIn("DiscoverResult", count)
        self.assertIn("InputRequiredResult", count)
        self.assertIn("SubscriptionsListenRequest", count)

    def test_paged_and_cached_lists(self):
        def check(revision):
            count = self.check(revision, self.record(
                revision, page_size=2, cache_ttl=60, cache_scope="public"))
            self.assertIn("ListToolsResult", count)

        run_together(self, check, [[LATEST], [MODERN]])

    def test_a_client_without_capabilities(self):
        for revision in (LATEST, MODERN):
            server, _ = everything()
            with Relay(server) as relay, Client(relay.streams, mode=revision) as client:
                for tool in ("pay", "recite", "where", "visit", "several"):
                    raised(client.call_tool, tool, {"amount": 1})
            count = self.check(revision, relay.lines)
            if revision == MODERN:
                self.assertIn("MissingRequiredClientCapabilityError", count)

    def test_a_question_that_the_revision_does_not_have_is_not_sent(self):
        for revision in LEGACY:
            for tool in ("pay", "visit"):
                with self.subTest(revision=revision, tool=tool):
                    server, _ = everything()
                    with Relay(server) as relay, Session(
                            revision, server, target=relay.streams) as session:
                        raised(session.client.call_tool, tool, {"amount": 1}
                               if tool == "pay" else {})
                    self.check(revision, relay.lines)

    def test_the_probe_and_the_fallback(self):
        with Client(fake()) as client:
            probe, *others = client.request("fake/seen")["seen"]
        validator = MessageValidator(MODERN, self.jsonschema)
        validator.check(">", probe)
        self.assertIn("DiscoverRequest", validator.count)
        validator = MessageValidator(LATEST, self.jsonschema)
        for message in others:
            validator.check(">", message)
        self.assertIn("InitializeRequest", validator.count)


# ======================================================================================
# Interoperability: the official SDK at the other end
# ======================================================================================

SDK_SERVER = """
import anyio
from typing import Annotated
from pydantic import BaseModel
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import (Completion, CreateMessageResult, ListRootsResult,
                       CreateMessageResultWithTools, SamplingMessage, TextContent, Tool)

server = MCPServer("sdk", version="9.9", instructions="be kind")
events = []

class Person(BaseModel):
    name: str

def person() -> Elicit[Person]:
    return Elicit("your name?", Person)

def poem() -> Sample:
    text = TextContent(type="text", text="a poem")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=7)

def choice() -> Sample:
    text = TextContent(type="text", text="which tool?")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=7, tools=[
        Tool(name="dig", input_schema={"type": "object"})])

def places() -> ListRoots:
    return ListRoots()

@server.tool()
def add(a: int, b: int = 2) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def unlucky() -> str:
    raise ValueError("no")

@server.tool()
async def count(n: int, ctx: Context) -> str:
    for step in range(1, n + 1):
        await ctx.report_progress(step, n, "step %d" % step)
    return "counted"

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
    return "never"

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
async def choose(
        choice: Annotated[CreateMessageResultWithTools, Resolve(choice)]) -> str:
    return choice.content[0].name if isinstance(choice.content, list) else "none"

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

@server.resource("note://one", mime_type="text/plain")
def note() -> str:
    return "a note"

@server.resource("blob://one", mime_type="application/octet-stream")
def blob() -> bytes:
    return bytes([0, 255])

@server.resource("echo://{word}")
def echo(word: str) -> str:
    return word

@server.prompt()
def review(code: str) -> str:
    return "review " + code

@server.completion()
async def complete(ref, argument, context):
    return Completion(values=[argument.value + "thon"], total=1, has_more=False)

server.run()
"""

SDK1_SERVER = """
from pydantic import BaseModel
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent

server = FastMCP("sdk1", instructions="be kind")

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

@server.resource("note://one", mime_type="text/plain")
def note() -> str:
    return "a note"

@server.prompt()
def review(code: str) -> str:
    return "review " + code

server.run()
"""


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
    ("list_tools", lambda s: names(s.client.list_tools())[:2], ["add", "unlucky"]),
    ("call_tool", lambda s: s.client.call_tool("add", {"a": 1}).structured_content,
     {"result": 3}),
    ("isError", lambda s: type(raised(s.client.call_tool, "unlucky")), ToolError),
    ("list_resources", lambda s: names(s.client.list_resources(), "uri"),
     ["note://one", "blob://one"]),
    ("list_resource_templates", lambda s: names(
        s.client.list_resource_templates(), "uriTemplate"), ["echo://{word}"]),
    ("read_resource", lambda s: s.client.read_resource("note://one")[0].text, "a note"),
    ("read a blob", lambda s: s.client.read_resource("blob://one")[0].data,
     b"\x00\xff"),
    ("read a template", lambda s: s.client.read_resource("echo://x")[0].text, "x"),
    ("list_prompts", lambda s: names(s.client.list_prompts()), ["review"]),
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
    ("sampling with tools", lambda s: s.client.call_tool("choose").text, "dig"),
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

    def methods(self):
        return [getattr(notification, "method", "")
                for notification in self.notifications]

    def updated_uris(self):
        return [str(notification.params.uri) for notification in self.notifications
                if getattr(notification, "method", "")
                == "notifications/resources/updated"]


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return asyncio.run(asyncio.wait_for(main, 60))

    def test_our_client_with_an_sdk_server(self):
        self.sdk(2)
        for mode, version in (("auto", MODERN), ("legacy", LATEST), ("modern", MODERN)):
            with Session(mode, target=[sys.executable, "-c", SDK_SERVER], stderr=None,
                         capabilities={"sampling": {"tools": {}}},
                         log_level="debug") as session:
                self.assertEqual(session.client.protocol_version, version)
                for name, act, expected in WITH_SDK_SERVER:
                    if mode == "legacy" and name == "updates":
                        continue            # MCPServer has no resources/subscribe
                    if mode != "legacy" and name == "url":
                        continue            # MCPServer asks for it in sessions only
                    with self.subTest(name, mode=mode):
                        self.assertEqual(act(session), expected)

    def test_our_client_with_an_sdk_1_server(self):
        self.sdk(1)
        stderr = []
        with Session("auto", target=[sys.executable, "-c", SDK1_SERVER],
                     stderr=stderr.append) as session:
            client = session.client
            self.assertEqual(client.protocol_version, LATEST)
            self.assertEqual((client.server_info["name"], client.instructions),
                             ("sdk1", "be kind"))
            self.assertEqual(client.call_tool("add", {"a": 1}).structured_content,
                             {"result": 3})
            self.assertEqual(client.read_resource("note://one")[0].text, "a note")
            self.assertEqual(outcome_of_progress(session),
                             [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")])
            self.assertEqual(client.call_tool("greet").text, "hello Ann")
            self.assertEqual(client.call_tool("recite").text, "roses are red")
            self.assertEqual(client.call_tool("where").text, "file:///a")
            self.assertIsNone(raised(client.ping))
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
                for check in (self.check_server_info, self.check_lists,
                              self.check_tools, self.check_errors, self.check_resources,
                              self.check_prompts_and_completion, self.check_progress,
                              self.check_logs, self.check_questions, self.check_cancel,
                              changes):
                    with self.subTest(check.__name__):
                        await check(client, callbacks)

        for mode, version in (("auto", MODERN), ("legacy", LATEST), (MODERN, MODERN)):
            with self.subTest(mode=mode):
                self.run_async(main(mode, version))

    # Each check_… is a part of the test above: what a client of SDK 2 does with
    # `everything`.  `callbacks` are those of the client.

    async def check_server_info(self, client, callbacks):
        if client.server_info:       # with a pinned version no request asks for it
            self.assertEqual(client.server_info.name, "everything")
            self.assertEqual(client.instructions, "be kind")

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
        self.assertEqual(await self.call(client, "add", a=1), {"result": 3})
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
        result = await client.read_resource("config://app")
        self.assertEqual(json.loads(result.contents[0].text), {"debug": True})
        result = await client.read_resource("blob://one")
        self.assertEqual(base64.b64decode(result.contents[0].blob), b"\x00\xff")
        result = await client.read_resource("note://x")
        self.assertEqual(result.contents[0].text, "note x")
        self.assertEqual(result.contents[0].mime_type, "text/plain")

    async def check_prompts_and_completion(self, client, callbacks):
        result = await client.get_prompt("review", {"code": "1"})
        self.assertEqual((result.messages[0].role, result.messages[0].content.text),
                         ("user", "review this python: 1"))
        prompt = callbacks.types.PromptReference(name="review")
        result = await client.complete(prompt, {"name": "language", "value": "p"})
        self.assertEqual(result.completion.values, ["python", "perl", "pascal"])
        template = callbacks.types.ResourceTemplateReference(uri="note://{name}")
        result = await client.complete(template, {"name": "name", "value": "n"})
        self.assertEqual((len(result.completion.values), result.completion.total),
                         (100, 150))
        self.assertEqual(result.completion.has_more, True)

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
        await self.until(callbacks.updated_uris)
        self.assertEqual(callbacks.updated_uris(), ["note://x"])
        self.assertIn("notifications/tools/list_changed", callbacks.methods())
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
            callbacks = SdkCallbacks(types)
            async with stdio_client(self.parameters(mcp)) as streams, mcp.ClientSession(
                    *streams, elicitation_callback=callbacks.elicit,
                    sampling_callback=callbacks.sample,
                    list_roots_callback=callbacks.list_roots) as client:
                await self.use_sdk_1(client, types)

        self.run_async(main())

    async def use_sdk_1(self, client, types):
        steps = []

        async def on_progress(*step):
            steps.append(step)

        async def structured(tool, **arguments):
            return (await client.call_tool(tool, arguments)).structuredContent

        self.assertEqual((await client.initialize()).protocolVersion, LATEST)
        self.assertEqual((await client.list_tools()).tools[0].name, "add")
        self.assertEqual(await structured("add", a=1), {"result": 3})
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
        self.assertEqual(result.messages[0].content.text, "review this python: 1")
        result = await client.complete(
            types.PromptReference(type="ref/prompt", name="review"),
            {"name": "language", "value": "p"})
        self.assertEqual(result.completion.values, ["python", "perl", "pascal"])
        await client.send_ping()


# ======================================================================================
# 8, 9  Content and schema
# ======================================================================================

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    NONE = None


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
class Account:
    kind: ClassVar[str] = "account"
    owner: str = dataclasses.field(init=False)
    first: dataclasses.InitVar[str]
    last: dataclasses.InitVar[str] = "Doe"

    def __post_init__(self, first, last):
        assert first, "a first name is missing"
        assert last
        self.owner = {"Jane": "Jane " + last}[first]


@dataclasses.dataclass
class Tree:
    leaf: int
    below: "List[Tree]"


class Spot(NamedTuple):
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
    (list, {"type": "array"}, [([1, "a"], [1, "a"]), ("[1]", [1])],
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
    (tuple, {"type": "array"}, [([1, "a"], (1, "a"))], []),
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
    (Union[int, float], {"anyOf": [{"type": "integer"}, {"type": "number"}]},
     [(5, 5), (5.5, 5.5)], []),
    (Union[datetime.date, str], {"anyOf": [
        {"type": "string", "format": "date"}, {"type": "string"}]},
     [("2024-05-06", datetime.date(2024, 5, 6)), ("soon", "soon")], []),
    (Union[List[int], List[str]], {"anyOf": [
        INTEGERS, {"type": "array", "items": {"type": "string"}}]},
     [(["5"], ["5"]), ([5], [5])], []),
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
    (Mixed, {"enum": [1, None]}, [(None, Mixed.NONE), (1, Mixed.ONE)], []),
    (Optional[Color], {"anyOf": [COLOR, {"type": "null"}]},
     [("red", Color.RED), (None, None)],
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
    (Account, {"type": "object", "properties": {
        "first": {"type": "string"}, "last": {"type": "string", "default": "Doe"}},
        "required": ["first"], **CLOSED},
     [({"first": "Jane"}, Account("Jane", "Doe"))],
     [({"first": ""}, "x: a first name is missing"),
      ({"first": "Jane", "last": ""}, "x: AssertionError"),
      ({"first": "Al"}, "x: 'Al'"),
      ({"first": "Jane", "owner": "Al"}, "x.owner: unknown; known are: first, last")]),
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
        for hint, argument in ((int, "5"), (bool, "true"), (list, "[]"),
                               (List[int], ["5"])):
            with self.subTest(hint=hint), self.assertRaises(ValidationError):
                Signature(function(hint)).bind({"x": argument}, strict=True)
        self.assertEqual(Signature(function(int)).bind({"x": 5.0}, strict=True),
                         {"x": 5})

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
            self.assertEqual(optional.bind({"x": None}, strict), {})
        self.assertEqual(Signature(function(Any, None)).bind({"x": None}), {"x": None})
        with self.assertRaises(ValidationError):
            Signature(function(int, 3)).bind({"x": None})

    def test_a_parameter_without_a_schema_is_refused_by_name(self):
        def with_args(*args): ...
        def with_kwargs(**kwargs): ...
        def with_contexts(one: Context, two: Optional[Context] = None): ...
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
            (with_args, "parameter args: *args and **kwargs cannot be described"),
            (with_kwargs, "parameter kwargs: *args and **kwargs cannot be described"),
            (dict, "parameter list: no signature found"),
            (with_contexts, "parameter two: a second Context")]
        for fn, message in rows:
            with self.subTest(message), self.assertRaises(TypeError) as caught:
                Signature(fn, Context)
            self.assertIn(message, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "x: minimum: expected number, got"):
            Signature(function(Annotated[int, {"minimum": "1"}]))

    def test_an_object_in_annotated_may_hold_the_description(self):
        field = mock.Mock(spec=["description", "ge"], description="How many", ge=1)
        for metadata in ([field], [object(), field], [mock.Mock(description=1), field]):
            self.assertEqual(
                parameter_schema(Annotated[(int, *metadata)]),
                {"type": "integer", "description": "How many", "minimum": 1})

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
                self.assertEqual(parameter_schema(hint), schema)

    def test_the_schema_of_a_result_describes_what_jsonable_returns(self):
        """A result that is no object is wrapped into one; some hints have no schema."""
        address = {"type": "object", "properties": {
            "street": {"type": "string"},
            "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "required": ["street"]}
        objects = [(dict, {"type": "object"}), (Address, address), (Dict[str, int], {
            "type": "object", "additionalProperties": {"type": "integer"}})]
        wrapped = [(int, {"type": "integer"}), (Color, COLOR),
                   (List[Address], {"type": "array", "items": address}),
                   (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]})]
        without_schema = [str, None, Any, object, complex, Annotated[str, "a note"],
                          Tree, Dict[int, str]]
        for hint, schema in objects:
            with self.subTest(hint=hint):
                self.assertEqual(output_schema_of(hint), (schema, False))
        for hint, schema in wrapped:
            with self.subTest(hint=hint):
                self.assertEqual(output_schema_of(hint), ({
                    "type": "object", "properties": {"result": schema},
                    "required": ["result"], "x-fastmcp-wrap-result": True}, True))
        for hint in without_schema:
            with self.subTest(hint=hint):
                self.assertEqual(output_schema_of(hint), (None, False))

    def test_a_dataclass_as_a_result_fits_its_schema(self):
        user = User("Al", Address("a"), ["t"], datetime.date(2000, 1, 2))
        schema, _ = output_schema_of(User)
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
                ({"city": "secret" * 50, "days": []}, [
                    "days: expected integer, got an array"]),
                ({"city": "a", "user": {"name": "Al", "home": {"street": "a"},
                                        "tags": ["a", 2]}},
                 ["user.tags[1]: expected string, got 2"])]
        for arguments, problems in rows:
            with self.subTest(arguments), self.assertRaises(ValidationError) as caught:
                bind(arguments)
            self.assertEqual(caught.exception.problems, problems)

    def test_a_long_value_is_cut_and_only_the_first_problems_are_listed(self):
        with self.assertRaises(ValidationError) as caught:
            Signature(function(List[int])).bind({"x": ["y" * 1000] * 1000})
        problems = caught.exception.problems
        self.assertEqual((len(problems), problems[-1]), (21, "… and 980 more"))
        self.assertLess(max(map(len, problems)), 100)

    def test_a_name_with_a_newline_is_quoted_in_one_line(self):
        with self.assertRaises(ValidationError) as caught:
            Signature(function(int)).bind({"a\nb": 1, "x": 1})
        self.assertEqual(caught.exception.problems, ["a b: unknown; known are: x"])

    def test_of_many_choices_only_the_first_are_listed(self):
        rows = [({"enum": [*range(5000)]},
                 "expected one of 0, 1, 2", "99 and 4900 more"),
                ({"properties": {f"p{n}": True for n in range(5000)},
                  "additionalProperties": False},
                 "known are: p0, p1", "p99 and 4900 more")]
        for schema, start, end in rows:
            (problem,) = validate({"z": 1}, schema)
            self.assertIn(start, problem)
            self.assertIn(end, problem)
            self.assertLess(len(problem), 700)

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
        def positional(a: int, b: str = "x", /): return a, b
        def keyword(*, a: int, b: str = "x"): return a, b
        @functools.wraps(keyword)
        def wrapper(*args, **kwargs): return keyword(*args, **kwargs)
        def three(c, a: int, b: str = "x"): return a, b
        for fn in (Tool().method, Tool.klass, Tool.static, Tool.__dict__["static"],
                   Tool(), positional, keyword, wrapper, functools.partial(three, 1)):
            with self.subTest(fn=fn):
                signature = Signature(fn)
                self.assertEqual([*signature.schema["properties"]], ["a", "b"])
                self.assertEqual(signature.schema["required"], ["a"])
                self.assertEqual(signature.call(signature.bind({"a": "1"})), (1, "x"))
                self.assertEqual(signature.call(signature.bind({"a": 1, "b": "y"})),
                                 (1, "y"))
        self.assertEqual(Signature(Tool().method).description, "A method.")

    def test_a_missing_positional_argument_has_its_default(self):
        def fn(a: int = 1, b: int = 2, /): return a, b
        signature = Signature(fn)
        self.assertEqual(signature.call(signature.bind({"b": 5})), (1, 5))

    def test_the_context_parameter_is_recognized_by_its_annotation(self):
        for hint in (Context, Optional[Context], "Context", "Context | None",
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

    def test_a_hint_may_name_what_is_imported_for_type_checkers_only(self):
        def fn(ctx: "Ctx", n: "Optional[int]" = None) -> "pandas.DataFrame": ...  # noqa
        signature = Signature(fn, type("Ctx", (), {}))
        self.assertEqual((signature.context, signature.returns), ("ctx", object))

    def test_a_given_schema_validates_and_the_hints_convert(self):
        schema = {"type": "object", "properties": {"when": {"$ref": "#/$defs/day"}},
                  "$defs": {"day": {"type": "string", "minLength": 10}}}
        def fn(when: datetime.date, odd: complex = 1j, **more): return when, more
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

    def test_a_given_schema_must_be_usable(self):
        with self.assertRaises(SchemaError):
            mcp_min.Server("s").add_tool(function(int), input_schema={
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
            Signature(function(List[int])).bind({"x": [1] * 1001})
        pattern = Annotated[str, {"pattern": "^a"}]
        with self.assertRaisesRegex(ValidationError, "no pattern is tried on over"):
            Signature(function(pattern)).bind({"x": "a" * 30_000})

    def test_binding_returns_a_new_dict(self):
        """Fails if `bind` returns the arguments of the request: the server adds the
        context to the bound arguments, and a question keeps the request for later."""
        for hint in (int, Optional[int], Any, Literal[1]):
            arguments = {"x": 1}
            with self.subTest(hint=hint):
                self.assertIsNot(Signature(function(hint)).bind(arguments), arguments)

    def test_annotations_that_cannot_be_evaluated_yet_are_read_as_text(self):
        """From Python 3.14 on, reading `__annotations__` may raise (PEP 649, PEP 749).
        """
        class Lazy(type):
            @property
            def __annotations__(cls):
                raise NameError("name 'Later' is not defined")

        class Data(metaclass=Lazy):
            __dataclass_fields__: typing.ClassVar = {}
            __required_keys__ = frozenset({"x"})

        del Data.__dataclass_fields__
        library = types.SimpleNamespace(
            Format=types.SimpleNamespace(STRING=4),
            get_annotations=lambda part, format: {"x": "int"} if part is Data else {})
        with mock.patch.dict(sys.modules, annotationlib=library):
            self.assertEqual(mcp_min.schema_of_hint(Data)["properties"],
                             {"x": {"type": "integer"}})

    # The same documentation in the three common styles, and what is no argument in it.
    DOCSTRINGS = (
        ('''Do a thing.

            More of it: yes.

            Args:
                a (int, optional): The a,
                    continued.
                b: The b: really.

            Returns:
                int: A number.
            ''', "Returns:\n    int: A number."),
        ('''Do a thing.

            More of it: yes.

            Parameters
            ----------
            a : int
                The a,
                continued.
            b
                The b: really.

            Returns
            -------
            int
            ''', "Returns\n-------\nint"),
        ('''Do a thing.

            More of it: yes.

            :param int a: The a,
                continued.
            :param b: The b: really.
            :type b: str
            :returns: A number.
            ''', ":returns: A number."))

    def test_descriptions_come_from_annotated_or_else_from_the_docstring(self):
        for docstring, returns in self.DOCSTRINGS:
            def fn(a: int, b: str, c: Annotated[str, "The c."]): ...
            fn.__doc__ = docstring
            with self.subTest(returns):
                signature = Signature(fn)
                self.assertEqual({name: schema.get("description") for name, schema in
                                  signature.schema["properties"].items()},
                                 {"a": "The a, continued.", "b": "The b: really.",
                                  "c": "The c."})
                self.assertEqual(signature.description.split("\n\n"),
                                 ["Do a thing.", "More of it: yes.", returns])

    def test_a_docstring_without_a_list_of_arguments_is_the_description(self):
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
    ([True], {"const": [1]}, ["expected an array, got an array"]),
    ("soon", {"format": "date"}, []),
    (1.0, {"type": "integer"}, []),
    (1e308, {"multipleOf": 1e-9}, []),
    (0.3, {"multipleOf": 0.1}, []),
    (19.99, {"multipleOf": 0.01}, []),
    (float("inf"), {"type": "number"}, ["expected number, got Infinity"]),
    (2 ** 61, {"enum": [2.0 ** 61]}, []),
    ([2 ** 61, 2 ** 61 - 1], {"uniqueItems": True}, []),
    (10 ** 5000 + 1, {"multipleOf": 2.5},
     ["expected a multiple of 2.5, got a huge integer"]),
    ("a\n", {"pattern": "a$"}, ['expected text like "a$", got "a\\n"']),
    ("\u0665", {"pattern": r"^\d$"},
     [r'expected text like "^\\d$", got "' + "\u0665" + '"']),
    ({"a/b": {"~": {"%": 1}}}, {"$ref": "#/$defs/a~1b/x~0y/%25", "$defs": {
        "a/b": {"x~y": {"%": {"type": "object"}}}}}, []),
    ([1, "a"], {"$schema": "http://json-schema.org/draft-07/schema#",
                "items": [{"type": "string"}], "additionalItems": False},
     ["[0]: expected string, got 1", "[1]: not allowed"]),
    ({"a": 1}, {"$schema": "http://json-schema.org/draft-07/schema#",
                "dependencies": {"a": ["b"]}}, ["b: missing (required with a)"]),
    ({"a": 1}, {"$schema": "http://json-schema.org/draft-07/schema", "definitions": {
        "x": {"$id": "#here", "required": ["z"]}},
        "dependencies": {"a": {"$ref": "#here"}}},
     ["z: missing (required)"]),
]

# (schema, a part of the message)
UNUSABLE_SCHEMAS = [
    (5, "expected object or boolean, got 5"), ("x", "expected object or boolean"),
    ([], "expected object or boolean"), (None, "expected object or boolean"),
    ({"type": "strng"}, 'type: expected one of "null", '),
    ({"type": ["string", 5]}, "type[1]: expected one of"),
    ({"properties": []}, "properties: expected object, got an array"),
    ({"properties": {"a": {"minimum": "1"}}},
     'properties.a.minimum: expected number, got "1"'),
    ({"maxLength": -1}, "maxLength: expected at least 0, got -1"),
    ({"required": "a"}, 'required: expected array, got "a"'),
    ({"allOf": [5]}, "allOf[0]: expected object or boolean, got 5"),
    ({"multipleOf": 0}, "multipleOf: expected more than 0, got 0"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"},
     "$schema: expected text like"),
    ({"$ref": "https://example.com/schema"},
     "is not in the document, and nothing is fetched"),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}},
     '"#/$defs/none" is not in the document'),
    ({"$ref": "http://[bad"}, "is not in the document"),
    ({"$id": "http://x/y", "$defs": {"a": {"$id": "http://[bad"}}, "$ref": "[bad"},
     "is not in the document"),
    ({"$ref": "#/a/b", "a": 1}, "is not in the document"),
    ({"$dynamicRef": "#none"}, "is not in the document"),
    ({"$ref": "#"}, "a $ref loop?"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                     "b": {"$ref": "#/$defs/a"}}}, "a $ref loop?"),
    ({"pattern": "("}, 'pattern "("'),
    ({"patternProperties": {"[": True}}, 'pattern "["'),
    ({"pattern": "a" * 1001}, "longer than 1000 characters"),
    ({"pattern": r"[\p{L}]"}, "bad escape"),
    ({"multipleOf": float("inf")}, "not JSON: "), ({"default": {1}}, "not JSON: "),
    ({"$ref": "#/required/0", "required": ["a"]},
     'expected object or boolean, got "a"'),
    ({"$ref": "#/x", "x": {"multipleOf": 0}},
     "multipleOf: expected more than 0, got 0"),
    ({"$ref": "#/enum/0", "enum": [{"$ref": "#/enum/1"}, {"minimum": "a"}]},
     'minimum: expected number, got "a"'),
]


class Test9Validator(unittest.TestCase):
    """`validate` returns the problems of a value, and refuses an unusable schema."""

    def test_objects_are_compared_by_their_members(self):
        schema = {"uniqueItems": True}
        self.assertEqual(mcp_min.validate([{"a": 1}, {"a": 2}], schema), [])
        self.assertEqual(len(mcp_min.validate([{"a": 1}, {"a": 1.0}], schema)), 1)

    def test_the_outermost_dynamic_anchor_counts(self):
        """JSON Schema 2020-12, core 8.2.3.2; a plain anchor is found like any other."""
        inner = {"$id": "inner", "$dynamicRef": "#item",
                 "$defs": {"usual": {"$dynamicAnchor": "item", "type": "integer"}}}
        outer = {"$id": "https://x.io/outer", "$ref": "inner", "$defs": {
            "inner": inner, "override": {"$dynamicAnchor": "item", "type": "string"}}}
        plain = {"$dynamicRef": "#item", "$defs": {
            "one": {"$anchor": "item", "type": "string"}}}
        for schema, value, problems in (
                (inner, 5, []), (inner, "a", ["expected integer, got \"a\""]),
                (outer, "a", []), (outer, 5, ["expected string, got 5"]),
                (plain, "a", []), (plain, 5, ["expected string, got 5"])):
            self.assertEqual(mcp_min.validate(value, schema), problems)

    def test_names_match_the_patterns_of_a_foreign_schema(self):
        """They are not matched, so no name may count as unevaluated."""
        schema = {"patternProperties": {"^a": {}}, "unevaluatedProperties": False}
        self.assertEqual(
            mcp_min.Validator(schema, foreign=True).problems({"b": 1}), [])

    def test_each_problem_is_one_readable_line(self):
        for value, schema, problems in PROBLEMS:
            with self.subTest(value=value, schema=schema):
                self.assertEqual(validate(value, schema), problems)

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

    def test_a_schema_of_many_keywords_is_usable(self):
        wide = {"allOf": [{"minimum": n} for n in range(2000)]}
        self.assertEqual(validate(2000, wide), [])
        self.assertEqual(len(validate(-1, wide)), 21)

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

    def test_no_pattern_is_tried_on_a_long_text(self):
        """The time of a pattern may grow with the square of the length of its text."""
        with self.assertRaisesRegex(SchemaError, "no pattern is tried on over 20000"):
            validate("a" * 20_001, {"pattern": r"^\s+$"})

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
            ({None: "b", True: "c", Color.RED: "d", (1, 2): "e", 1.5: "f"},
             {"true": "c", "null": "b", "red": "d", "[1, 2]": "e", "1.5": "f"}),
        ]
        for value, form in rows:
            with self.subTest(form=form):
                self.assertEqual(to_json_data(value), form)
                json.dumps(to_json_data(value), allow_nan=False)

    def test_a_value_without_a_json_form_is_refused(self):
        cycle = []
        cycle.append(cycle)
        deep = []
        for _ in range(900):
            deep = [deep]
        number = "NaN, infinity, integers over 4,300 digits are not JSON"
        nesting = "nested over 200 levels, or a part of itself"
        rows = [
            ("an object", object(), TypeError, "a object cannot be written as JSON"),
            ("complex", complex(1), TypeError, "a complex cannot be written as JSON"),
            ("a class", Address, TypeError, "a type cannot be written as JSON"),
            ("NaN", math.nan, ValueError, number),
            ("infinity", [-math.inf], ValueError, number),
            ("a huge integer", 10 ** 5000, ValueError, number),
            ("a cycle", cycle, ValueError, nesting),
            ("deep nesting", deep, ValueError, nesting),
        ]
        for name, value, error, message in rows:
            with self.subTest(name):
                with self.assertRaises(error) as caught:
                    to_json_data(value)
                self.assertEqual((type(caught.exception), str(caught.exception)),
                                 (error, message))


# (template, uri, variables or None)
URIS = [
    ("config://app", "config://app", {}), ("config://app", "config://appp", None),
    ("a.b://x", "aXb://x", None), ("w://{city}/now", "w://Oslo/now", {"city": "Oslo"}),
    ("w://{city}/now", "w://S%C3%A3o%20Paulo/now", {"city": "São Paulo"}),
    ("w://{city}", "w://a/b", None), ("w://{city}", "w://", None),
    ("w://{city}", "w://a%2Fb", None), ("w://{city}", "w://a%5cb", None),
    ("w://{city}", "w://..", None), ("w://{city}", "w://%2e%2E", None),
    ("w://{city}", "w://.", None), ("w://{a}{b}", "w://..", None),
    ("w://{city}", "w://..a", {"city": "..a"}), ("w://{city}", "w://a?b", None),
    ("w://{a,b}", "w://1,2", {"a": "1", "b": "2"}),
    ("w://{a}-{b}", "w://1-2", {"a": "1", "b": "2"}),
    ("w://{a}-{b}.md", "w://1-2.md-3.md", {"a": "1", "b": "2.md-3"}),
    ("w://{+a}-{b}", "w://1-2/3-4", {"a": "1-2/3", "b": "4"}),
    ("w://{a}{+b}-", "w://12/3-4-", {"a": "1", "b": "2/3-4"}),
    ("w://{a}{+b}-", "w://1/2-3-", None),
    ("f:///{+path}", "f:///a/b%20c.txt", {"path": "a/b c.txt"}),
    ("f:///{+path}", "f:///a/../b", None), ("f:///{+path}", "f:///a/%2e%2e/b", None),
    ("f:///{+path}", "f:///a%2f..", None), ("f:///{+path}", "f:///a\\..\\b", None),
    ("f:///{+path}", "f:///a/..b", {"path": "a/..b"}),
    ("f:///a/{+path}", "f:///a/%2E%2E%2Fb", None),
    ("d://x{/a,b}", "d://x/1/2", {"a": "1", "b": "2"}),
    ("d://x{/a,b}", "d://x/1", {"a": "1"}), ("d://x{/a}", "d://x/..", None),
    ("d://x{?a,b}", "d://x?b=2&a=1", {"a": "1", "b": "2"}),
    ("d://x{?a,b}", "d://x", {}), ("d://x{?a,b}", "d://x?b=a%2Fb", {"b": "a/b"}),
    ("d://x{?a}", "d://x?c=1", None), ("d://x{?a}", "d://x?a=1&a=2", {"a": ["1", "2"]}),
    ("d://x?k=1{&a}", "d://x?k=1&a=2", {"a": "2"}),
    ("d://{x}{?q}", "d://a?q=b%26c", {"x": "a", "q": "b&c"}),
    ("d://x{?a}", "d://x?a=../b", None), ("d://x{&a}", "d://x&a=%2e%2e", None),
    ("d://x{?a}", "d://x?a=/etc", None), ("d://x{?a}", "d://x?a=", {"a": ""}),
    ("w://{a,b}", "w://..,b", None), ("f:///{+p}", "f:////etc/passwd", None),
    ("f:///{+p}", "f:///%2Fetc", None), ("f:///{+p}", "f:///C:%5CWindows", None),
    ("f:///{+p}", "f:///a%00.txt", None), ("w://{a}", "w://a%00", None),
    ("w://{a}", "w://12:30", {"a": "12:30"}), ("f:///{p*}", "f:///a/b", {"p": "a/b"}),
    ("f:///{p*}.{e}", "f:///a.b/c.d", {"p": "a.b/c", "e": "d"}),
    ("f:///{p*}", "f:///../b", None), ("w://{a}", "w://" + "a" * 4000, None),
    ("f:///{+p}{?v}", "f:///a/b?v=1", {"p": "a/b", "v": "1"}),
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
        for template in ("w://{y}-{m}-{d}", "w://{y,m,d}", "w://{+y}-{+m}-{+d}#"):
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
                     "{;a}"):
            with self.subTest(text), self.assertRaises(ValueError):
                UriTemplate(text)


class Test9Imports(unittest.TestCase):
    def test_a_plain_tool_imports_neither_typing_nor_inspect(self):
        program = f"""
import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(mcp_min.__file__))!r})
import {mcp_min.__name__} as m
def tool(a: str, b: int = 3, c: list[int] = [], d: dict = {{}}) -> list[str]:
    "Args:\\n  a: b"
s = m.Signature(tool)
s.schema, s.bind({{"a": "x", "c": ["1"]}}), m.output_schema_of(s.returns)
costly = "typing", "inspect", "dataclasses", "ast", "decimal", "base64", "urllib.parse"
print(*{{*costly}} & sys.modules.keys())
"""
        run = subprocess.run([sys.executable, "-I", "-S", "-c", program], text=True,
                             capture_output=True, timeout=20)
        self.assertEqual((run.stdout.strip(), run.stderr), ("", ""))


# ======================================================================================
# 12  Familiar names
# ======================================================================================

class Model:
    """It has the interface of a pydantic model, as far as mcp_min uses it."""

    SCHEMA: typing.ClassVar = {
        "title": "Pizza", "type": "object", "required": ["size"], "properties": {
        "size": {"title": "Size", "$ref": "#/$defs/Size"},
        "note": {"title": "Note", "anyOf": [{"type": "string"}, {"type": "null"}],
                 "default": None}},
        "$defs": {"Size": {"title": "Size", "type": "string", "enum": ["S", "M"]}}}

    def __init__(self, **fields):
        self.__dict__.update(fields)

    @classmethod
    def model_json_schema(cls, mode):
        return json.loads(json.dumps(cls.SCHEMA))

    @classmethod
    def model_validate(cls, value):
        if value.get("note") == "bad":
            error = ValueError("1 validation error")
            error.errors = lambda: [{"loc": ("note",), "msg": "not this"}]
            raise error
        return cls(**value)

    def model_dump(self, mode, by_alias):
        return dict(self.__dict__)


class Loop(Model):
    SCHEMA: typing.ClassVar = {"$ref": "#/$defs/Loop", "$defs": {"Loop": {
        "type": "object", "properties": {"next": {"$ref": "#/$defs/Loop"}}}}}


class Field:
    """It has the interface of pydantic's Field; a default of `...` means required."""

    def __init__(self, default=..., *, default_factory=None, description=None,
                 examples=None, json_schema_extra=None, **constraints):
        self.default, self.default_factory = default, default_factory
        self.description, self.examples = description, examples
        self.json_schema_extra = json_schema_extra
        self.metadata = [types.SimpleNamespace(**{name: value})
                         for name, value in constraints.items()]

    def is_required(self):
        return self.default is ... and not self.default_factory

    def get_default(self, call_default_factory):
        return self.default_factory() if self.default_factory else self.default


class Test12FamiliarNames(unittest.TestCase):
    """Programs for FastMCP and the SDK run when only their imports are changed."""

    def test_the_names_of_fastmcp_and_the_sdk_can_be_imported(self):
        names = """FastMCP MCPServer TextContent ImageContent AudioContent Icon Context
            TextResourceContents BlobResourceContents ToolAnnotations Image Annotations
            UserMessage AssistantMessage ServerSession"""
        for name in names.split():
            self.assertTrue(callable(getattr(mcp_min, name)), name)
        self.assertIs(mcp_min.FastMCP, Server)
        self.assertIs(Context[mcp_min.ServerSession, dict], Context)
        self.assertFalse({"FastMCP", "TextContent"} & set(mcp_min.__all__))
        for refused in (lambda: mcp_min.Message("user", "x", name="y"),
                        lambda: mcp_min.Message(),
                        lambda: mcp_min.Message(role="user")):
            self.assertRaises(TypeError, refused)
        self.assertEqual(mcp_min.UserMessage("x"), mcp_min.Message("user", "x"))
        self.assertEqual(mcp_min.AssistantMessage(content="x").role, "assistant")

    def test_a_name_without_a_counterpart_is_an_error_that_helps(self):
        for name, text in (("AuthSettings", "HTTP"), ("stdio_client", "Client(["),
                           ("NotificationOptions", "@server.tool"),
                           ("CurrentContext", "ctx: Context")):
            with self.assertRaisesRegex(ImportError, re.escape(text)):
                getattr(mcp_min, name)
        with self.assertRaises(AttributeError):
            mcp_min.FastMPC  # noqa: B018

    def test_options_of_the_constructor(self):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            server = mcp_min.FastMCP(log_level="DEBUG", host="0.0.0.0",
                                     mask_error_details=True, list_page_size=7)
            self.assertEqual(server.settings.log_level, "DEBUG")
            self.assertEqual(server.settings.port, 8000)
            server.custom_route("/health", methods=["GET"])(lambda request: None)
        self.assertEqual((server.name, server.mask_errors, server.page_size),
                         ("mcp", True, 7))
        self.assertEqual(stderr.getvalue().splitlines()[0],
                         "mcp_min: Server(): no effect over stdio: log_level, host")
        self.assertRaises(TypeError, Server, "s", colour="red")

    def test_only_the_transport_stdio_is_supported(self):
        server = Server("s")
        self.assertRaisesRegex(NotImplementedError, "HTTP", server.sse_app)
        for transport in "sse", "http", "streamable-http":
            self.assertRaisesRegex(ValueError, "stdio only", server.run, transport)
            self.assertRaisesRegex(ValueError, "stdio only", asyncio.run,
                                   server.run_async(transport))

    def test_run_accepts_the_name_of_the_transport(self):
        for run in 'run("stdio")', 'run(transport="stdio", show_banner=False)':
            with process(f'mcp_min.FastMCP("s").{run}') as server:
                play(server, "> 1 ping\n< 1 {}")
                server.hang_up()
                self.assertEqual(server.exit(), 0)

    def test_content_can_be_constructed_in_both_spellings(self):
        png = base64.b64encode(b"\x89PNG").decode()
        rows = [
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
             {"title": "T", "readOnlyHint": True})]
        for familiar, equivalent in rows:
            self.assertEqual(familiar, equivalent)

    def test_content_has_the_attributes_of_both_spellings(self):
        block = mcp_min.Image(b"x", annotations={"priority": 1})
        self.assertEqual((block.type, block.data, block.mimeType, block.mime_type),
                         ("image", "eA==", "image/png", "image/png"))
        self.assertIsNone(mcp_min.Text("x").annotations)
        self.assertRaises(AttributeError, lambda: block.text)
        server = Server("s")
        server.tool(lambda: [mcp_min.Text("a"), block], name="t")
        with Client(server) as client:
            content = client.call_tool("t").content
            self.assertEqual((content[0].text, content[1].data), ("a", "eA=="))

    def test_invalid_content_is_refused(self):
        self.assertRaises(TypeError, mcp_min.Text, "x", colour="red")
        self.assertRaises(ValueError, mcp_min.Text, "x", type="image")
        self.assertRaisesRegex(ValueError, "path=", mcp_min.Image, "chart.png")

    def test_models_are_arguments_results_and_forms(self):
        server = Server("s")

        @server.tool
        async def order(pizza: Model, many: List[Model], ctx: Context) -> Model:
            wish = await ctx.elicit("?", response_type=Model)
            assert isinstance(many[0], Model) and isinstance(pizza, Model)
            return Model(size=pizza.size, note=wish.data.note)

        inline = {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "string", "enum": ["S", "M"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}}

        def answer(message, schema, params):
            self.assertEqual(schema["properties"]["note"], {"type": "string"})
            return {"size": "M", "note": "hot"}

        with Client(server, elicitation_handler=answer) as client:
            [tool] = client.list_tools()
            self.assertEqual(tool["inputSchema"]["properties"]["pizza"], inline)
            self.assertEqual(tool["outputSchema"], inline)
            arguments = {"pizza": {"size": "S"}, "many": [{"size": "M"}]}
            self.assertEqual(client.call_tool("order", arguments).data,
                             {"size": "S", "note": "hot"})
            for pizza, text in (({"size": "XL"}, "pizza.size: expected one of"),
                                ({"size": "S", "note": "bad"}, "note: not this")):
                result = client.call_tool("order", {**arguments, "pizza": pizza},
                                          raise_on_error=False)
                self.assertIn(text, result.text)

    def test_a_model_of_one_text_is_constructed(self):
        """Fails if its schema, a plain string, is taken for one without constructor."""
        class Tag(Model):
            SCHEMA: typing.ClassVar = {"type": "string"}

            @classmethod
            def model_validate(cls, value):
                return cls(root=value)

        def tool(tag: Tag):
            return tag.root

        server = Server("s")
        tool.__annotations__["tag"] = Tag
        server.tool(tool)
        with Client(server) as client:
            self.assertEqual(client.call_tool("tool", {"tag": "x"}).text, "x")

    def test_the_properties_of_a_model_may_have_names_of_keywords(self):
        names = ("default", "enum", "const", "title", "discriminator", "examples")
        schema = {"type": "object", "properties": {
            name: {"$ref": "#/$defs/Size"} for name in names}}
        inline = mcp_min.inline_definitions(schema, {"Size": {"type": "string"}}, ())
        self.assertEqual(inline["properties"],
                         {name: {"type": "string"} for name in names})

    def test_a_recursive_model_is_refused(self):
        server = Server("s")
        with self.assertRaisesRegex(TypeError, "recursive"):
            server.tool(function(Loop))

    def test_fields_describe_and_constrain(self):
        server = Server("s")

        @server.tool
        def find(
                text: Annotated[str, Field(
                    description="What", min_length=2, pattern="^a")],
                tags: Annotated[list, Field(max_length=1, examples=[["x"]])],
                limit: int = Field(default=10, ge=1, le=50, description="How many"),
                among: List[int] = Field(default_factory=lambda: [1]),  # noqa: B008
                factor: float = Field(gt=0, json_schema_extra={"x": 1})) -> str:
            return f"{text} {limit} {among} {factor}"

        with Client(server) as client:
            schema = client.list_tools()[0]["inputSchema"]
            self.assertEqual(schema["required"], ["text", "tags", "factor"])
            self.assertEqual(schema["properties"], {
                "text": {"type": "string", "description": "What", "minLength": 2,
                         "pattern": "^a"},
                "tags": {"type": "array", "maxItems": 1, "examples": [["x"]]},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50,
                          "description": "How many", "default": 10},
                "among": {"type": "array", "items": {"type": "integer"}},
                "factor": {"type": "number", "exclusiveMinimum": 0, "x": 1}})
            arguments = {"text": "ab", "tags": [], "factor": 2}
            self.assertEqual(client.call_tool("find", arguments).text, "ab 10 [1] 2.0")
            result = client.call_tool("find", {**arguments, "limit": 99},
                                      raise_on_error=False)
            self.assertEqual(result.text, "limit: expected at most 50, got 99")

    def test_a_validator_of_pydantic_in_annotated_is_refused(self):
        class AfterValidator:
            pass

        with self.assertRaisesRegex(TypeError, "check the value in the function"):
            Server("s").tool(function(Annotated[int, AfterValidator()]))

    def test_options_of_the_decorators(self):
        server = Server("s")
        server.tool(lambda: None, name="off", enabled=False)

        @server.tool(tags={"b", "a"}, structured_output=False, icons=[mcp_min.Icon(
            src="data:,x")], annotations=mcp_min.ToolAnnotations(readOnlyHint=True))
        def on() -> Dict[str, int]:
            return {"x": 1}

        @server.resource("s://{path*}")
        async def path(path: str) -> str:
            return path

        @server.prompt
        async def ask(what: str) -> list:
            return [mcp_min.UserMessage(what), mcp_min.AssistantMessage("ok")]

        server.add_resource_fn(lambda: "r", "s://fixed", name="fixed")
        with Client(server) as client:
            self.assertEqual(client.list_tools(), [{
                "name": "on", "annotations": {"readOnlyHint": True},
                "icons": [{"src": "data:,x"}],
                "_meta": {"fastmcp": {"tags": ["a", "b"]}},
                "inputSchema": {"type": "object", "properties": {}, **CLOSED}}])
            self.assertEqual(client.call_tool("on").data, {"x": 1})
            self.assertEqual(client.read_resource("s://a/b")[0].text, "a/b")
            self.assertEqual(client.read_resource("s://fixed")[0].text, "r")
            self.assertEqual([m["role"] for m in client.get_prompt(
                "ask", {"what": "x"})["messages"]], ["user", "assistant"])

    def test_the_context_has_the_attributes_of_fastmcp_and_the_sdk(self):
        server, logs, steps = Server("s"), [], []

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
            answer = await session.elicit(message="?", schema=bool)
            assert mcp_min.get_context() is ctx
            await ctx.set_state("k", await ctx.get_state("k") or 7)
            assert await mcp_min.get_context().get_state("k") == 7
            roots = (await session.list_roots()).roots
            assert roots[0].uri.endswith("/a") and ctx.session_id and (
                session.client_params.clientInfo.name == "mcp_min")
            return [sampled.content.text,
                    isinstance(answer, mcp_min.AcceptedElicitation),
                    isinstance(answer, mcp_min.DeclinedElicitation),
                    ctx.fastmcp is server, ctx.client_id,
                    ctx.request_id == ctx.request_context.request_id]

        with Client(server, mode=LATEST, roots=["/a"],
                    log_handler=lambda params: logs.append(params["data"]),
                    progress_handler=lambda *step: steps.append(step[0]),
                    sampling_handler=lambda messages, params: "an answer",
                    elicitation_handler=lambda *_: {"value": True}) as client:
            self.assertEqual(client.call_tool("low").data,
                             ["an answer", True, False, True, None, True])
            wait_until(lambda: logs)
        self.assertEqual((logs, steps), (["hi"], [1]))

    def test_one_function_can_complete_every_argument(self):
        server = Server("s")
        server.prompt(lambda code, other: "", name="review")

        @server.completion()
        async def values(ref, argument, context):
            if isinstance(ref, mcp_min.PromptReference) and argument.name == "code":
                return mcp_min.Completion(values=[argument.value + ref.name])

        with Client(server) as client:
            def complete(argument):
                return client.complete("review", argument, "p")["values"]

            self.assertEqual(complete("code"), ["preview"])
            self.assertEqual(complete("other"), [])

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

    def test_get_context_returns_the_context_of_the_running_handler(self):
        server = Server("s")

        @server.resource("s://x")
        def version() -> str:
            return server.get_context().protocol_version

        with Client(server, mode=LATEST) as client:
            self.assertEqual(client.read_resource("s://x")[0].text, LATEST)
        self.assertRaises(LookupError, mcp_min.get_context)

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

    def test_a_message_accepts_the_arguments_in_any_spelling(self):
        message = mcp_min.Message("user", "hi")
        for same in (mcp_min.Message("hi"), mcp_min.Message("hi", "user"),
                     mcp_min.Message(content="hi"),
                     mcp_min.Message(role="user", content="hi")):
            self.assertEqual(same, message)
        for other in (mcp_min.Message("hi", "assistant"),
                      mcp_min.Message("hi", role="assistant")):
            self.assertEqual(other, {**message, "role": "assistant"})

    def test_fields_and_results_have_both_spellings(self):
        params = mcp_min.ElicitRequestURLParams(elicitation_id="1", url="a:b")
        self.assertEqual((params, params.elicitation_id, params.elicitationId),
                         ({"elicitationId": "1", "url": "a:b"}, "1", "1"))
        result = mcp_min.CallToolResult(content=[], structuredContent={"a": 1},
                                        _meta={"b": 2}, isError=False)
        self.assertEqual(result, mcp_min.ToolResult([], {"a": 1}, meta={"b": 2}))
        self.assertEqual(mcp_min.Text("x").model_dump(exclude_none=True),
                         {"type": "text", "text": "x"})
        image = mcp_min.Image(b"x")
        self.assertIs(image.to_image_content(), image)

    def test_an_error_accepts_the_error_data_of_the_sdk(self):
        error = mcp_min.MCPError(mcp_min.ErrorData(code=-32602, message="no"))
        self.assertEqual((error.code, error.message, error.data), (-32602, "no", None))


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
        program = IMPORTS[library] + SHARED_PROGRAM
        env = {"PYTHONPATH": HERE} if library == "mcp_min" else {}
        received, steps, logs = {}, [], []
        with Client([sys.executable, "-c", program], env=env, stderr=None, mode=LATEST,
                    progress_handler=lambda *step: steps.append(step[:2]),
                    log_handler=lambda params: logs.append(params["level"])) as client:
            received["server"] = client.instructions, client.server_info["name"]
            received["tools"] = self.tools(client)
            received["calls"] = self.calls(client)
            received["resource"] = client.read_resource("note://x")[0].text
            prompt = client.get_prompt("review", {"code": "x"})
            received["prompt"] = [(message["role"], message["content"]["text"])
                                  for message in prompt["messages"]]
            received["templates"] = names(client.list_resource_templates(),
                                          "uriTemplate")
            received["prompts"] = [(prompt["name"], names(prompt["arguments"]))
                                   for prompt in client.list_prompts()]
            wait_until(lambda: logs and steps)
        return {**received, "logs": logs, "steps": steps}

    def tools(self, client):
        # mcp_min has no schema for a result of text or of blocks, on purpose: only that
        # of `find` is compared.
        return {tool["name"]: (
            tool.get("description") or "", tool.get("annotations"),
            self.simplified(tool["inputSchema"]),
            tool["name"] == "find" and [*tool["outputSchema"]["properties"]])
            for tool in client.list_tools()}

    def calls(self, client):
        """Content of each call that succeeds, and whether each other call fails."""
        results = {}
        person = {"name": "Ann", "home": {"street": "x", "code": "12"}}
        for name, arguments in (
                ("greet", {"person": person, "loud": True}), ("show", {}),
                ("find", {"text": "ab"}), ("find", {"text": "ab", "limit": 5})):
            result = client.call_tool(name, arguments)
            # Libraries write structured content as different text.
            keys = ("type",) if name == "find" else ("type", "text", "data")
            results[name, str(arguments)] = (
                result.is_error,
                [{key: block[key] for key in keys if key in block}
                 for block in result.content],
                result.structured_content if name == "find" else None)
        for name, arguments in (
                ("fail", {}), ("find", {}), ("find", {"text": "too long"}),
                ("find", {"text": "a", "limit": 99}),
                ("greet", {"person": {**person, "name": "A"}})):
            results[name, str(arguments)] = client.call_tool(
                name, arguments, raise_on_error=False).is_error
        return results

    def simplified(self, schema, definitions=None):
        """A schema with its definitions in place, without the keywords that differ."""
        if isinstance(schema, list):
            return [self.simplified(part, definitions) for part in schema]
        if not isinstance(schema, dict):
            return schema
        definitions = schema.get("$defs", definitions)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.simplified(definitions[name], definitions)
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


def cli(*args, **options):
    """Run the command line to its end: stdout, stderr as text, and the exit status."""
    options = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE, **options}
    done = subprocess.run([*PROGRAM, *args], capture_output=True, check=False,
                          **options)
    out, err = (output.decode().replace("\r\n", "\n")
                for output in (done.stdout, done.stderr))
    return out, err, done.returncode


def clis(*commands, **options):
    """The same for several command lines, at the same time."""
    return together(*[functools.partial(cli, *args, **options) for args in commands])


def cli_in_process(*args):
    """The same in this process, for a command line that starts no server."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = mcp_min.main(list(args))
        except SystemExit as end:
            status = end.code
    return out.getvalue(), err.getvalue(), status


class Terminal:
    """The command line at a terminal, to `type` at and to `expect` text from.  Its
    stdout is a pipe, so that results can be read alone."""

    def __init__(self, *args):
        self._master, slave = os.openpty()
        self.child = subprocess.Popen([*PROGRAM, *args], stdin=slave, stderr=slave,
                                      stdout=subprocess.PIPE)
        os.close(slave)
        self._unread = ""

    def expect(self, text):
        """Wait for this text, which must come after the text expected before."""
        end = time.monotonic() + PATIENCE
        while text not in self._unread:
            left = max(0, end - time.monotonic())
            assert select.select([self._master], [], [], left)[0], self._unread
            self._unread += os.read(self._master, 65536).decode()
        before, _, self._unread = self._unread.partition(text)
        return before

    def type(self, text):
        os.write(self._master, text.encode())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()
        os.close(self._master)


class Test13CommandLine(unittest.TestCase):
    """Results go to stdout, other text to stderr, and no error shows a traceback.  The
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

    def test_the_demo_shows_each_step_in_80_columns_and_succeeds(self):
        out, err, status = cli("demo")
        self.assertEqual((err, status), ("", 0))
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        self.assertNotIn("\33", out)
        messages = [(lines[0][:5].strip(), "".join(map(str.strip, lines[1:])))
                    for lines in self.paragraphs(out)]
        for arrow, method in [
                ("-->", "initialize"), ("-->", "notifications/initialized"),
                ("-->", "tools/list"), ("-->", "tools/call"), ("-->", "resources/read"),
                ("<--", "notifications/progress"), ("-->", "notifications/cancelled"),
                ("-->", "prompts/get"), ("-->", "completion/complete"),
                ("<--", "elicitation/create"), ("-->", "logging/setLevel"),
                ("<--", "notifications/message"), ("-->", "server/discover")]:
            with self.subTest(method):
                self.assertTrue(any(direction == arrow
                                    and '"method":"%s"' % method in line
                                    for direction, line in messages))
        text = "".join(line for _, line in messages)
        for name in ("nextCursor", '"isError":true', "requestState", "inputResponses"):
            self.assertIn(name, text)
        # The lines are real messages: each that is not cut can be parsed.
        whole = [line for _, line in messages if "more characters" not in line]
        self.assertGreater(len([checked(line.encode() + b"\n") for line in whole]), 25)

    def paragraphs(self, out):
        """Each narrated message: its heading, and the indented lines below it."""
        found = []
        for line in out.splitlines():
            if line.startswith(("  -->", "  <--")):
                found.append([line])
            elif found and line.startswith("      "):
                found[-1].append(line)
        return found

    def test_the_narration_of_an_unknown_method_and_of_other_output(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            trace = mcp_min.Trace(mcp_min.NarratingClient([])._narrate)
            trace.show(">", b'{"jsonrpc":"2.0","id":1,"method":"acme/do"}\n')
            trace.show("<", b'{"jsonrpc":"2.0","id":1,"result":{}}\n\33noise\n\n')
        self.assertEqual(out.getvalue().splitlines(), [
            "  --> a message", '      {"jsonrpc":"2.0","id":1,"method":"acme/do"}',
            "  <-- the response", '      {"jsonrpc":"2.0","id":1,"result":{}}',
            "  <-- no message", "      \\x1bnoise"])

    def test_lines_of_two_threads_are_narrated_one_after_the_other(self):
        out = io.StringIO()
        line = b'{"jsonrpc":"2.0","method":"acme/%s"}\n' % (b"x" * 200)
        with contextlib.redirect_stdout(out):
            trace = mcp_min.Trace(mcp_min.NarratingClient([])._narrate)
            threads = [threading.Thread(target=lambda: [
                trace.show(">", line) for _ in range(200)]) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        before, *narrated = out.getvalue().split("  --> a message\n")
        self.assertEqual((before, len(narrated), len({*narrated})), ("", 400, 1))

    def test_a_server_that_sends_nulls_is_listed_and_called(self):
        tools = ("result(tools=[{'name': 't', 'description': None, 'inputSchema': "
                 "{'type': 'object', 'properties': {'x': True}}}])")
        server = fake(discover="OFFERED.pop('resources'); error(-32601)", list=tools,
                      call="text(str(params['arguments']))")
        listed, called = clis(["list", "--", *server],
                              ["call", "t", "x=1", "--", *server])
        self.assertEqual(listed[1:], ("", 0))
        self.assertIn("      x?: any\n", listed[0])
        self.assertEqual(called, ("{'x': '1'}\n", "", 0))

    def test_list_prints_what_a_server_offers_as_text_or_as_json(self):
        (out, err, status), as_json = clis(
            ["list", *self.SERVER],
            ["list", "--mode", "2025-06-18", "--json", "--", *self.SERVER])
        self.assertEqual((err, status), ("", 0))
        for line in ("demo %s, revision 2026-07-28" % mcp_min.__version__, "tools (2)",
                     "  count", "    Count, ten numbers a second.", "      to: integer",
                     "  demo://hello/{name}", "  review", "      language: string"):
            self.assertIn(line, out.splitlines())
        about = json.loads(as_json[0])
        self.assertEqual(about["protocolVersion"], "2025-06-18")
        self.assertEqual([tool["name"] for tool in about["tools"]], ["count", "order"])
        self.assertEqual(set(about), {
            "serverInfo", "protocolVersion", "capabilities", "instructions", "tools",
            "resources", "resourceTemplates", "prompts"})

    def test_call_converts_arguments_and_labels_logs_and_stderr(self):
        path = self.file("typed.py", """
            import sys
            from mcp_min import Context

            def types(text: str, whole: int, real: float, yes: bool, many: list[int],
                      ctx: Context, free: object = None) -> str:
                ctx.info("a remark")
                sys.stderr.write("a murmur\\n")
                return repr((text, whole, real, yes, many))
            """)
        out, err, status = cli("call", "types", "text=5", "whole=5", "real=5",
                               "yes=true", "many=[1, 2]", "--", *PROGRAM, "run", path)
        self.assertEqual((out, status), ("('5', 5, 5.0, True, [1, 2])\n", 0))
        self.assertEqual(sorted(err.splitlines()), ["log info: a remark",
                                                    "stderr: a murmur"])

    def test_call_escapes_control_characters_of_results_and_errors(self):
        path = self.file("colours.py", """
            def colours() -> str:
                return "\\33[31mred\\7\\u202e"

            def fails():
                raise ValueError("no \\33[5mluck")
            """)
        server = ("--", *PROGRAM, "run", path)
        colours, fails = clis(["call", "colours", *server], ["call", "fails", *server])
        self.assertEqual(colours[0], "\\x1b[31mred\\x07\\u202e\n")
        out, err, status = fails
        self.assertEqual((out, status), ("", 1))
        self.assertEqual(err.splitlines()[-1], "ValueError: no \\x1b[5mluck")
        self.assertNotIn("\33", err)

    def test_read_and_prompt_print_what_a_server_returns(self):
        self.assertEqual(clis(
            ["read", "demo://hello/Ada", "--", *self.SERVER],
            ["prompt", "review", "language=C", "--", *self.SERVER],
            ["read", "--json", "demo://bye", "--", *self.SERVER],
        ), [("Hello, Ada!\n", "", 0),
            ("user: Review this C code.\n", "", 0),
            ("", "mcp_min: McpError: Resource not found: demo://bye (-32602)\n", 1)])

    def configuration(self):
        """The path of a host's configuration with a stdio server and an HTTP server."""
        return self.file("mcp.json", json.dumps({"mcpServers": {
            "demo": {"command": self.SERVER[0], "args": self.SERVER[1:]},
            "far": {"url": "https://example.org"}}}))

    def test_a_server_of_a_configuration_file_is_used_by_its_name(self):
        path = self.configuration()
        self.assertEqual(cli("read", "demo://hello/Bob", "--config", path, "demo")[0],
                         "Hello, Bob!\n")

    def test_a_server_that_a_configuration_file_lacks_is_wrong_usage(self):
        path = self.configuration()
        for args, text in (((path, "near"), "has no near; it has: demo, far"),
                           ((path, "far"), "https://example.org is not stdio"),
                           ((path + "x", "demo"), path + "x")):
            with self.subTest(text):
                out, err, status = cli_in_process("list", "--config", *args)
                self.assertEqual((out, status), ("", 2))
                self.assertIn(text, err)

    def test_list_prints_the_servers_of_a_configuration_file(self):
        out, _, status = cli_in_process("list", "--config", self.configuration())
        self.assertEqual((out.splitlines()[1], status), ("far: https://example.org", 0))

    def test_wrong_usage_is_one_line_and_status_2(self):
        for args in (["config"], ["nope"], ["list"], ["call"], ["call", "count"],
                     ["demo", "x"], ["call", "count", "to=1", "--frob", "--", "x"],
                     ["run", "no.py"], ["list", "--mode", "1999-01-01", "x"],
                     ["trace"]):
            with self.subTest(args):
                out, err, status = cli_in_process(*args)
                self.assertEqual((out, status), ("", 2))
                self.assertIn("error: ", err.splitlines()[-1])

    def test_an_argument_without_a_name_is_wrong_usage(self):
        out, err, status = cli("call", "count", "5", "--", *self.SERVER)
        self.assertEqual((out, status), ("", 2))
        self.assertIn("5 is no KEY=VALUE", err)

    def test_output_of_a_server_that_is_no_message_causes_a_warning(self):
        server = self.file("noisy.py", """
            import sys
            from mcp_min import Server
            server = Server("noisy")
            server.tool(lambda: "x", name="x")
            print("Loading", flush=True)
            server.run()
            """)
        _, err, status = cli("list", "--env", "PYTHONPATH=" + HERE, "--",
                             sys.executable, server)
        self.assertEqual(status, 0)
        self.assertRegex(err, r"warning: the server wrote to stdout .*Loading")
        self.assertIn("mcp_min.py run FILE.py", err)

    def test_questions_are_answered_by_the_option_answer(self):
        server = self.file("ask.py", """
            from mcp_min import Context, Server
            server = Server("ask")
            @server.tool
            def ask(ctx: Context) -> str:
                ctx.report_progress(1, 2, "half")
                return str(ctx.elicit("?", bool).data)
            """)
        run = "--", *PROGRAM, "run", server
        out, err, status = cli("call", "ask", "--answer", "true", *run)
        self.assertEqual((out, status), ("True\n", 0))
        self.assertIn("progress: 1/2 half", err)
        self.assertEqual(cli("call", "ask", "--answer", "yes", *run)[2], 2)
        out, err, status = cli("call", "ask", *run)
        self.assertEqual(status, 1)
        self.assertIn("only at a terminal, or with --answer JSON", err)

    def test_list_shows_what_a_call_needs(self):
        server = self.file("rich.py", """
            from dataclasses import dataclass
            from typing import Annotated, Dict, List
            @dataclass
            class Item:
                name: str
                price: float = 1.0
            def add(item: Item, tags: List[str],
                    n: Annotated[int, {"minimum": 1}]) -> str:
                return ""
            """)
        out, _, _ = cli("list", "--", *PROGRAM, "run", server)
        for line in ("item: {name: string, price: number = 1.0}",
                     "tags: array of string", "n: integer (minimum 1)"):
            self.assertIn(line, out)

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

    def test_run_explains_how_to_guard_a_server_that_starts_at_import(self):
        server = self.file("unguarded.py", """
            from mcp_min import Server
            server = Server("s")
            server.run()
            """)
        _, err, _ = cli("list", "--", *PROGRAM, "run", server)
        self.assertIn("under `if __name__ == '__main__':`", err)

    def test_run_serves_a_server_of_a_module(self):
        os.mkdir(os.path.join(self.folder, "pkg"))
        self.file("pkg/__init__.py", "")
        self.file("pkg/greeting.py", "text = 'hi'")
        self.file("pkg/srv.py", """
            from mcp_min import Server
            from .greeting import text
            server = Server("in a package")
            server.tool(lambda: text, name="greet")
            """)
        out, err, status = cli("call", "greet", "--cwd", self.folder, "--",
                               *PROGRAM, "run", "pkg.srv:server")
        self.assertEqual((out, status), ("hi\n", 0), err)
        _, err, status = cli("run", "pkg.nowhere:server", cwd=self.folder)
        self.assertIn("pkg.nowhere", err)

    def test_without_a_command_it_prints_its_help(self):
        out, err, status = cli_in_process()
        self.assertEqual((err, status), ("", 0))
        self.assertIn("connect", out)

    def test_config_prints_the_configuration_for_a_host(self):
        path = self.file("food.py", "")
        for args, name in ((path,), "food"), ((path, "dinner"), "dinner"):
            out, _, status = cli_in_process("config", *args)
            self.assertEqual((json.loads(out), status), ({"mcpServers": {name: {
                "command": sys.executable, "args": [path]}}}, 0))
        self.assertEqual(cli_in_process("config", path, "a", "b")[2], 2)
        self.assertIn("there is no file", cli_in_process("config", "nowhere.py")[1])

    def test_a_file_without_a_server_or_functions_is_wrong_usage(self):
        _, err, status = cli("run", self.file("empty.py", "x = 5"))
        self.assertEqual(status, 2)
        self.assertIn("neither a Server nor public functions", err)

    def listen(self, address):
        """Serve at this address in this process, as an application would; return the
        listening socket, and a list to which each connection is added."""
        server = zoo()
        listener = socket.socket(socket.AF_UNIX if type(address) is str
                                 else socket.AF_INET)
        listener.bind(address)
        listener.listen()
        self.addCleanup(listener.close)
        connections = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as sock, sock.makefile(
                            "rwb", buffering=0) as stream:
                        connections.append(sock)
                        server.serve(stream, stream)

        threading.Thread(target=accept, daemon=True).start()
        return listener, connections

    @unittest.skipUnless(hasattr(socket, "AF_UNIX"), "no Unix sockets")
    def test_connect_reaches_a_server_in_an_application(self):
        """By a path or a port.  A message of 10 MB passes in both directions."""
        path = os.path.join(self.folder, "socket")
        listener, _ = self.listen(("127.0.0.1", 0))
        self.listen(path)
        big = "x" * 10_000_000
        for address in path, str(listener.getsockname()[1]):
            with Client([*PROGRAM, "connect", address]) as client:
                self.assertEqual(client.call_tool("echo", {"text": "hi"}).text, "hi")
                self.assertEqual(client.call_tool("echo", {"text": big}).text, big)
            self.assertEqual(client.exit_code, 0)

    @unittest.skipUnless(hasattr(socket, "AF_UNIX"), "no Unix sockets")
    def test_connect_reports_an_application_that_does_not_run_or_that_ends(self):
        path = os.path.join(self.folder, "socket")
        with process(f"""
                mcp_min.CONNECT_SECONDS = 0.01
                sys.exit(mcp_min.main(["connect", {path!r}]))
                """, "-I") as relay:
            for number in 1, 2:
                relay.say("notifications/initialized")
                relay.say(f"{number} ping")
                response = relay.recv()
                self.assertEqual((response["id"], response["error"]["code"]),
                                 (number, -32603))
                self.assertRegex(response["error"]["message"],
                                 f"{path}: start the application")
            _, connections = self.listen(path)
            play(relay, "> 3 ping\n< 3 {}")
            connections[0].shutdown(socket.SHUT_RDWR)
            self.assertIsNone(relay.recv())
            self.assertEqual(relay.exit(), 1)
            self.assertIn("has closed the connection", relay.stderr)

    def test_every_command_has_help(self):
        for command in ("demo", "serve", "list", "call", "read", "prompt", "run",
                        "trace"):
            with self.subTest(command):
                out, err, status = cli_in_process(command, "-h")
                self.assertEqual((err, status), ("", 0))
                self.assertTrue(
                    out.startswith("usage: mcp_min.py %s [options]" % command))
        self.assertIn("exit status", cli_in_process("-h")[0])

    def test_help_is_at_most_80_columns_wide(self):
        out = cli("trace", "-h", env={**os.environ, "COLUMNS": "80"})[0]
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        self.assertIn("copy all variables, as trace does", out)

    def test_a_server_that_cannot_start_is_reported_in_one_line(self):
        program = os.path.join(self.folder, "no-such-program")
        out, err, status = cli_in_process("list", program)
        self.assertEqual((out, status, err.count("\n")), ("", 1, 1))
        self.assertIn("no-such-program", err)

    def test_a_server_that_exits_is_reported_with_its_stderr(self):
        out, err, status = cli_in_process(
            "list", "--mode", "2025-11-25", "--", sys.executable, "-S", "-c",
            "import sys; sys.exit('no licence')")
        self.assertEqual((out, status), ("", 1))
        self.assertEqual(err, "stderr: no licence\nmcp_min: ConnectionClosed: "
                         "The server has closed the connection (exit code 1)\n")

    def test_a_server_gets_the_named_variables_or_all_on_request(self):
        path = self.file("env.py", """
            import json, os

            def variables() -> str:
                return json.dumps([os.environ.get(k) for k in ("A", "B", "SECRET")])
            """)
        env = {**os.environ, "B": "b", "SECRET": "s"}
        server = ("--", *PROGRAM, "run", path)
        named, inherited = clis(
            ["call", "variables", "--env", "A=1=2", "--env", "B", *server],
            ["call", "variables", "--inherit-env", *server], env=env)
        self.assertEqual(named[0], '["1=2", "b", null]\n')
        self.assertEqual(inherited[0], '[null, "b", "s"]\n')

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_at_a_terminal_the_user_is_asked_until_the_answer_is_valid(self):
        with Terminal("call", "order", "dish=pie", "--", *self.SERVER) as screen:
            screen.expect("the server asks: What should be on your pie?")
            screen.expect("value (lemon | syrup): ")
            screen.type("\n")
            screen.expect("once more: value: missing")
            screen.expect("value (lemon | syrup): ")
            screen.type("honey\n")
            screen.expect('once more: value: expected one of "lemon", "syrup"')
            screen.expect("value (lemon | syrup): ")
            screen.type("syrup\n")
            self.assertEqual(screen.child.stdout.read(), b"pie with syrup\n")

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_at_a_terminal_enter_alone_opens_no_url(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "visit.py")
            pathlib.Path(path).write_text(
                "from mcp_min import Context, Server\nserver = Server('s')\n"
                "@server.tool\ndef go(ctx: Context) -> str:\n"
                "    return ctx.elicit_url('Sign in', 'https://x.io').action\n",
                encoding="utf-8")
            with Terminal("call", "go", "--", *PROGRAM, "run", path) as screen:
                screen.expect("open https://x.io (yes): ")
                screen.type("\n")
                screen.expect("once more")
                screen.expect("open https://x.io (yes): ")
                screen.type("yes\n")
                self.assertEqual(screen.child.stdout.read(), b"accept\n")

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_at_a_terminal_the_end_of_input_cancels_a_question(self):
        with Terminal("call", "order", "dish=pie", "--", *self.SERVER) as screen:
            screen.expect("value (lemon | syrup): ")
            screen.type("\4")  # Ctrl-D
            self.assertEqual(screen.child.stdout.read(), b"nothing\n")

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_ctrl_c_cancels_the_call_and_notifies_the_server(self):
        log = os.path.join(self.folder, "log")
        with Terminal("call", "count", "to=1000", "--", *PROGRAM, "trace", "--to",
                      log, "--", *self.SERVER) as screen:
            screen.expect("[" + " " * 30 + "] 1/1000")
            screen.child.send_signal(signal.SIGINT)
            screen.expect("cancelled: ")
            self.assertEqual(screen.child.wait(PATIENCE), 130)
        with open(log, encoding="utf-8") as file:
            self.assertIn("notifications/cancelled", file.read())

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

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_a_confirmation_is_answered_with_yes_or_no(self):
        server = self.file("wipe.py", """
            from mcp_min import Context, Server
            server = Server("wipe")
            @server.tool
            def wipe(ctx: Context) -> str:
                return ctx.elicit("Really?").action + str(ctx.elicit("?", bool).data)
            """)
        for answer, output in ("yes", b"acceptTrue\n"), ("no", b"declineFalse\n"):
            with Terminal("call", "wipe", "--", *PROGRAM, "run", server) as screen:
                screen.expect("accept (yes | no): ")
                screen.type(answer + "\n")
                screen.expect("value (boolean): ")
                screen.type(answer[0] + "\n")
                self.assertEqual(screen.child.stdout.read(), output)

    @unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")
    def test_a_question_of_a_server_is_printed_in_one_line(self):
        schema = {"type": "object", "properties": {
            "colour:\n[sudo] password for root": {"type": "string"}}}
        with Terminal("call", "f", "--", *fake(
                list="result(tools=[{'name': 'f', 'inputSchema': {}}])",
                call="asked = id; send(id='q', method='elicitation/create', params="
                     f"{{'message': '?', 'requestedSchema': {schema}}})",
                answer="result(id=asked, content=[])")) as screen:
            screen.expect("colour: [sudo] password for root (string): ")
            screen.child.send_signal(signal.SIGINT)
            screen.child.wait(PATIENCE)

    def test_run_redirects_what_a_file_prints_at_import_to_stderr(self):
        path = self.file("noisy.py", '''
            """Prints at import."""
            import os, sys, mcp_min
            print("a banner")
            os.system("echo a child")

            async def same() -> bool:
                return sys.modules["__main__"] is mcp_min

            def _hidden():
                pass
            ''')
        (out, err, _), (same, _, _) = clis(
            ["list", "--json", "--", *PROGRAM, "run", path],
            ["call", "same", "--", sys.executable, FILE, "run", path])
        about = json.loads(out)
        self.assertEqual([tool["name"] for tool in about["tools"]], ["same"])
        self.assertEqual(about["instructions"], "Prints at import.")
        self.assertEqual(err, "stderr: a banner\nstderr: a child\n")
        self.assertEqual(same, "true\n")

    def test_run_serves_the_server_that_is_named(self):
        path = self.file("two.py", """
            from mcp_min import Server
            one, two = Server("one"), Server("two")
            if __name__ == "__main__":
                raise SystemExit("must not run")
            """)
        hello = json.dumps(message("1 initialize")).encode() + b"\n"
        out, err, status = cli("run", path + ":two", stdin=None, input=hello)
        self.assertEqual((json.loads(out)["result"]["serverInfo"]["name"], status),
                         ("two", 0))
        out, err, status = cli("run", path)
        self.assertEqual((out, status), ("", 2))
        self.assertIn("one, two", err)

    def test_run_imports_a_file_as_a_module_under_its_own_name(self):
        path = self.file("own.py", """
            import dataclasses, sys

            @dataclasses.dataclass
            class Point:
                x: "Number"

            Number = int

            def where(point: Point) -> str:
                return f"{type(point.x)} {__name__} {sys.modules[__name__].__file__}"
            """)
        self.assertEqual(cli("call", "where", 'point={"x": 1}', "--",
                             *PROGRAM, "run", path),
                         ("<class 'int'> own %s\n" % path, "", 0))

    def test_run_names_the_line_where_a_file_fails(self):
        def run(error, text):
            path = self.file(error.split(":")[0] + ".py", text)
            out, err, status = cli("run", path)
            self.assertEqual((out, status, err.count("\n")), ("", 1, 1))
            self.assertTrue(err.startswith("mcp_min: %s:2: %s" % (path, error)), err)

        run_together(self, run, [
            ("ModuleNotFoundError", "x = 1\nimport no_such_thing\n"),
            ("JSONDecodeError", "import json\njson.loads('x\\ny')\n"),
            ("OSError: no luck", "x = 1\nraise OSError('no\\nluck')\n"),
            ("SyntaxError", "x = 1\ndef f(:\n")])

    def test_trace_passes_all_bytes_and_the_exit_status_and_logs_each_line(self):
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
        if os.name == "posix":
            self.assertEqual(os.stat(log).st_mode & 0o777, 0o600)

    def test_trace_passes_all_variables_and_those_of_its_options(self):
        show = "import os; print(*map(os.environ.get, 'ABC'))"
        out, err, status = cli(
            "trace", "--env", "C=c", "--", sys.executable, "-c", show,
            env={**os.environ, "A": "a", "B": "b"})
        self.assertEqual((out.split(), status), (["a", "b", "c"], 0))
        self.assertRegex(err, r"^\S+ < a b c  # not a message\s$")

    def test_trace_reports_a_program_that_cannot_start(self):
        err = cli("trace", os.path.join(self.folder, "no-such-program"))[1]
        self.assertIn("cannot start", err)

    @unittest.skipUnless(os.name == "posix", "signals")
    def test_trace_passes_signals_on_and_ends_as_its_server_ends(self):
        wait = "import signal, sys, time; %s; print('up', flush=True); time.sleep(60)"

        def end(handler, expected):
            with subprocess.Popen(
                    [*PROGRAM, "trace", "--to", os.devnull, "--",
                     sys.executable, "-S", "-c", wait % handler],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
                self.assertEqual(proxy.stdout.readline(), b"up\n")
                proxy.send_signal(signal.SIGTERM)
                self.assertEqual(proxy.wait(PATIENCE), expected)

        run_together(self, end, [
            ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))", 9),
            ("pass", -signal.SIGTERM)])


# ======================================================================================
# The README
# ======================================================================================

class TestReadme(unittest.TestCase):
    """Every block of the README runs and prints what the README shows."""

    @classmethod
    def setUpClass(cls):
        path = os.path.join(HERE, "README.md")
        if not os.path.exists(path):
            raise unittest.SkipTest("there is no README.md here")
        with open(path, encoding="utf-8") as file:
            cls.text = file.read()
        cls.blocks = re.findall(r"^```(\S+)(?: (\S+))?\n((?s:.*?))^```$", cls.text,
                                re.MULTILINE)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        with open(FILE, encoding="utf-8") as file:
            files = [("mcp_min.py", file.read())]
        for name, text in files + [block[1:] for block in cls.blocks if block[1]]:
            path = os.path.join(cls.folder.name, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def texts(self, language):
        return [text for block, _, text in self.blocks if block == language]

    def test_it_has_fewer_than_400_lines_and_no_block_that_is_not_tested(self):
        self.assertLess(self.text.count("\n"), 400)
        self.assertEqual({language for language, _, _ in self.blocks},
                         {"sh", "python", "console", "json"})

    def test_the_two_commands_are_the_demonstration_and_the_tests(self):
        [text] = self.texts("sh")
        self.assertEqual([line.partition("#")[0].strip() for line in text.splitlines()],
                         ["python3 mcp_min.py demo", "python3 test_mcp_min.py"])

    @UNIX
    def test_each_python_block_runs_alone_and_prints_what_its_comments_show(self):
        here = os.getcwd()
        os.chdir(self.folder.name)
        sys.path.insert(0, self.folder.name)
        self.addCleanup(sys.path.remove, self.folder.name)
        self.addCleanup(os.chdir, here)
        for number, text in enumerate(self.texts("python")):
            with self.subTest(number, text=text.split("\n\n")[0]):
                expected = re.findall(r"^ *print\(.*\) *# (.*)$", text, re.MULTILINE)
                self.assertEqual(len(expected), text.count("print("))
                self.assertEqual(self.printed(text), expected)

    def printed(self, text):
        sys.modules.pop("weather", None)
        module = type(sys)("readme")
        out = io.StringIO()
        sys.modules["readme"] = module  # dataclasses look there
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(text, "README.md", "exec"), vars(module))  # noqa: S102
        finally:
            del sys.modules["readme"]
            sys.modules.pop("weather", None)
        return out.getvalue().splitlines()

    @unittest.skipUnless(os.name == "posix", "needs a shell")
    def test_each_shell_command_prints_what_the_readme_shows(self):
        programs = tempfile.TemporaryDirectory()
        self.addCleanup(programs.cleanup)
        shim = os.path.join(programs.name, "python3")
        with open(shim, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nexec "%s" "$@"\n' % sys.executable)
        os.chmod(shim, 0o755)
        env = {**os.environ, "PATH": programs.name + os.pathsep + os.environ["PATH"]}

        def run(command, _, expected):
            done = subprocess.run(
                command, shell=True, check=False, cwd=self.folder.name, env=env,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
            pattern = re.escape(expected).replace(r"\.\.\.", ".*")
            self.assertRegex(done.stdout.decode(), "^(?s:%s)$" % pattern)

        shown = "".join(self.texts("console"))
        run_together(self, run, [part.partition("\n") for part in
                            re.split(r"^\$ ", shown, flags=re.MULTILINE)[1:]])

    def imported(self, name):
        sys.path.insert(0, self.folder.name)
        self.addCleanup(sys.path.remove, self.folder.name)
        self.addCleanup(sys.modules.pop, name, None)
        self.addCleanup(sys.modules.pop, "weather", None)
        return __import__(name)

    @unittest.skipUnless(hasattr(socket, "AF_UNIX"), "no Unix sockets")
    def test_the_add_on_serves_a_host_on_the_main_thread_of_its_application(self):
        addon = self.imported("addon")
        path = os.path.join(self.folder.name, "private", "socket")
        addon.listen(path)
        with Client([*PROGRAM, "connect", path]) as client:
            call = client.submit_tool("where")
            while not call.done():  # this is the application's main loop
                time.sleep(addon.run_jobs() / 50)
            self.assertEqual(call.result().text, threading.current_thread().name)
        self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)

    @UNIX
    def test_unthreaded_handlers_can_use_a_database_that_is_opened_at_import(self):
        path = os.path.join(self.folder.name, "notes.py")
        with Client([sys.executable, path]) as client:
            client.call_tool("add", {"text": "x"})
            client.call_tool("add", {"text": "y"})

    @UNIX
    def test_a_server_behind_http_answers_in_both_eras(self):
        call = '1 tools/call {"name": "forecast", "arguments": {"city": "Oslo"}}'
        with self.http_server() as post:
            for modern, version in (True, MODERN), (False, LATEST):
                status, data = post(call, modern, MCP_Protocol_Version=version)
                self.assertEqual(status, 200)
                text = json.loads(data)["result"]["content"][0]["text"]
                self.assertIn("Oslo: sun", text)
            status, data = post("1 initialize 2025-06-18", False)
            version = json.loads(data)["result"]["protocolVersion"]
            self.assertEqual(version, "2025-06-18")
            self.assertEqual(post("notifications/initialized", False,
                                  MCP_Protocol_Version=LATEST), (202, b""))
            for header in {"Host": "evil.example"}, {"Origin": "https://evil.example"}:
                self.assertEqual(post(call, True, **header)[0], 403)

    @contextlib.contextmanager
    def http_server(self):
        """Start the server; yield a function that posts a message to it."""
        from http.client import HTTPConnection
        module = self.imported("http_weather")
        module.Handler.log_message = lambda *_: None
        http = module.ThreadingHTTPServer(("127.0.0.1", 0), module.Handler)
        thread = threading.Thread(target=http.serve_forever)
        thread.start()

        def post(text, modern, **headers):
            connection = HTTPConnection(*http.server_address, timeout=PATIENCE)
            connection.request("POST", "/mcp", json.dumps(message(text, modern)),
                               {key.replace("_", "-"): value
                                for key, value in headers.items()})
            response = connection.getresponse()
            data = response.read()
            connection.close()
            return response.status, data

        try:
            yield post
        finally:
            http.shutdown()
            thread.join()
            http.server_close()

    def test_the_configuration_it_shows_can_be_loaded(self):
        for text in self.texts("json"):
            path = os.path.join(self.folder.name, "mcp.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            for entry in mcp_min.load_config(path).values():
                self.assertEqual(entry["command"], "python3")

    def test_the_table_of_the_specification_agrees_with_the_code(self):
        rows = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in self.text.splitlines() if line.startswith("|")]
        head = next(row for row in rows if "2024-11-05" in row)
        self.assertEqual(head[1:], list(mcp_min.REVISIONS))
        documented = {}
        for row in (row for row in rows if len(row) == len(head)):
            for name in re.findall("`([^`]+)`", row[0]):
                documented[name] = [cell[:1] == "✓" for cell in row[1:]]
        for name, method in mcp_min.METHODS.items():
            with self.subTest(name):
                self.assertEqual(documented.pop(name), [
                    method.since <= revision <= method.until
                    for revision in mcp_min.REVISIONS])
        self.assertLessEqual(set(mcp_min.CLIENT_REQUESTS), set(documented))


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


OLD_NAMES = """
    told tell tells swift Incoming Call Peer Link Terms Dialect Workers lane noise claim
    abandon hold _begin _answered _notice _refuse Lines Readiness say report expect
    shape_of read_answer malformed admit introduce dress stamp be_ready _owed feature
    features misfit misfits fitting Misfit Sealer seal Exchange LATER DETACHED words
    want wanted _Step seen judge vouch sound _moved either complain beside must bad
    _Node _part _home _frozen _revived _spelt Entry takes listed run_elsewhere
    run_to_end ANSWERS ANSWERERS _askable QUESTIONS GRACE CROWDED BACKLOG LINGER Visitor
    folded bell aside hear hears ours whole unwinding overview typed"""


class TestHouse(unittest.TestCase):
    """The rules of the source: its order, its names, its sizes."""

    @classmethod
    def setUpClass(cls):
        with open(mcp_min.__file__, encoding="utf-8") as file:
            cls.source = file.read()
        cls.tree = ast.parse(cls.source)
        cls.nodes = list(ast.walk(cls.tree))
        cls.sections = sections(cls.source)
        cls.code = cls.executed_nodes()

    def section_of(self, line):
        return next((number for number, (_, start, end) in self.sections.items()
                     if start <= line < end), 0)

    def nodes_of(self, *types):
        return [node for node in self.nodes if isinstance(node, types)]

    @classmethod
    def executed_nodes(cls):
        """Every node except docstrings and annotations."""
        excluded = set()
        for node in cls.nodes:
            for field in ("annotation", "returns"):
                annotation = getattr(node, field, None)
                if annotation:
                    excluded |= set(map(id, ast.walk(annotation)))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                excluded.add(id(node.value))
        return [node for node in cls.nodes if id(node) not in excluded]

    def defined_at_module_level(self):
        """{name: line} of what the module defines."""
        lines = {}
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                lines[node.name] = node.lineno
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            lines.update((target.id, target.lineno) for target in targets
                         if isinstance(target, ast.Name))
        return lines

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
        """So that what came from the other end is escaped: `cli_print` on the command
        line, `warn` through `write_stderr` in the library."""
        writers = {"print", "sys.stdout.write", "sys.stderr.write", "input"}
        for function in self.nodes_of(ast.FunctionDef):
            if function.name not in ("cli_print", "write_stderr"):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call):
                        self.assertNotIn(ast.unparse(call.func), writers, function.name)

    def test_a_section_uses_only_names_of_those_above_it(self):
        defined = {name: self.section_of(line)
                   for name, line in self.defined_at_module_level().items()}
        loads = [node for node in self.code
                 if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        upward = sorted({(node.id, node.lineno) for node in loads
                         if defined.get(node.id, 0) > self.section_of(node.lineno)})
        self.assertEqual(upward, [])

    def test_eras_and_dates_stand_in_their_sections_only(self):
        allowed = {n for n, (title, _, _) in self.sections.items()
                   if title in ("Vocabulary", "Revisions")}
        strays = []
        for node in self.code:
            text = str(getattr(node, "id", getattr(node, "attr", getattr(
                node, "value", ""))) if not isinstance(node, ast.Expr) else "")
            era = re.search(r"\b20\d\d-\d\d-\d\d\b|^(legacy|modern)$|"
                            r"(Legacy|Modern)[A-Z]", text)
            if era and hasattr(node, "lineno") and (
                    self.section_of(node.lineno) not in allowed):
                strays.append((node.lineno, text[:60]))
        self.assertEqual(strays, [])

    def test_every_method_has_its_handler_and_every_handler_its_row(self):
        self.assertEqual(set(mcp_min.METHOD_HANDLERS), set(mcp_min.METHODS))

    def test_every_public_name_is_documented(self):
        """In whole sentences: each docstring ends its first paragraph with a stop."""
        bare = []
        for name in mcp_min.__all__:
            thing = getattr(mcp_min, name)
            members = vars(thing).items() if isinstance(thing, type) else ()
            documented = {name: thing} if callable(thing) else {}
            documented.update(("%s.%s" % (name, key), member) for key, member in members
                              if not key.startswith("_") and (
                                  callable(member) or isinstance(member, property)))
            bare += [key for key, thing in documented.items()
                     if (thing.__doc__ or "").split("\n\n")[0].rstrip()[-1:] not in ".:"
                     or not thing.__doc__]
        self.assertEqual(bare, [])

    def test_the_words_are_those_of_the_field(self):
        """Names of the first edition that no other code has; what they meant has the
        name of the protocol or of the standard library now."""
        old = OLD_NAMES.split()
        used = {}
        for node in self.nodes:
            for field in ("id", "attr", "arg", "name"):
                name = getattr(node, field, None)
                if name in old:
                    used.setdefault(name, getattr(node, "lineno", 0))
        self.assertEqual(used, {})

    def test_an_underscore_marks_what_only_a_class_itself_uses(self):
        """Of other modules: what the standard library documents."""
        others = {"sys._getframe", "sys._current_frames", "value._asdict",
                  "popen._handle"}
        foreign = {ast.unparse(node) for node in self.nodes_of(ast.Attribute)
                   if re.match("_[^_]", node.attr)
                   and ast.unparse(node.value) not in ("self", "cls", "super()")}
        self.assertEqual(foreign - others, set())
        self.assertEqual([name for name in self.defined_at_module_level()
                          if re.match("_[^_]", name)], [])

    def test_a_name_of_the_command_line_begins_with_cli(self):
        _, start, end = next(span for span in self.sections.values()
                             if span[0] == "Command line")
        functions = [
            node.name for node in self.tree.body
            if isinstance(node, ast.FunctionDef) and start <= node.lineno < end]
        self.assertEqual([name for name in functions if not name.startswith("cli_")],
                         ["demo_server", "main"])

    def test_functions_and_classes_fit_on_a_page_or_ten(self):
        def long(limit, *types):
            return [(node.name, node.end_lineno - node.lineno + 1)
                    for node in self.nodes_of(*types)
                    if node.end_lineno - node.lineno >= limit]

        self.assertEqual(long(40, ast.FunctionDef, ast.AsyncFunctionDef), [])
        self.assertEqual(long(400, ast.ClassDef), [])
        self.assertNotIn("Connection", dict(long(350, ast.ClassDef)))

    def test_the_file_does_not_grow(self):
        """Who adds something takes something away."""
        documented = self.nodes_of(ast.Module, ast.ClassDef, ast.FunctionDef,
                                   ast.AsyncFunctionDef)
        docstrings = {line for node in documented if ast.get_docstring(node) is not None
                      for line in range(node.body[0].lineno,
                                        node.body[0].end_lineno + 1)}
        lines = self.source.splitlines()
        code = [line for number, line in enumerate(lines, 1)
                if line.strip() and not line.strip().startswith("#")
                and number not in docstrings]
        self.assertLessEqual(len(lines), 8750)
        self.assertLessEqual(len(code), 5950)
        self.assertEqual([number for number, line in enumerate(lines, 1)
                          if len(line) > 88], [])

    def test_nothing_but_the_standard_library_is_imported(self):
        names = {alias.name for node in ast.walk(self.tree)
                 if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in ast.walk(self.tree)
                  if isinstance(node, ast.ImportFrom)}
        known = getattr(sys, "stdlib_module_names", None)  # from 3.10
        if known:  # annotationlib: from 3.14
            others = {n for n in names if n.split(".")[0] not in known}
            self.assertEqual(others - {"annotationlib"}, set())

    def test_a_start_does_not_pay_for_what_it_does_not_use(self):
        code = ("import sys; sys.path.insert(0, %r); import mcp_min; "
                "print(*{'typing', 'inspect', 'dataclasses', 'logging', 'subprocess', "
                "'asyncio', 'socket', 'argparse', 'concurrent.futures', 'base64', "
                "'hashlib', 'datetime'} & sys.modules.keys())") % HERE
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code],
                              capture_output=True)
        loaded = set(done.stdout.decode().split())
        if sys.implementation.name == "pypy":
            loaded -= {"inspect", "typing", "dataclasses"}  # its json loads them
        self.assertEqual((loaded, done.stderr), (set(), b""))

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

BESIDE = (  # classes that wait for processes run in two processes beside the others
    ("Test11Faults", "Test11Probe", "Test6Stdio"),
    ("Test11Process", "Test13CommandLine", "TestReadme", "Test10Lifespan"))


class Parts(unittest.TestSuite):
    """All tests, in three processes, see BESIDE."""

    def run(self, result, debug=False):
        parts = {classes: [] for classes in ((), *BESIDE)}
        for suite in self:
            names = {type(test).__name__ for test in suite}
            parts[next((one for one in BESIDE if names & {*one}), ())].append(suite)
        children = []
        for classes in BESIDE:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                run_and_report(unittest.TestSuite(parts[classes]), writer)
            os.close(writer)
            children.append((child, reader))
        try:
            unittest.TestSuite(parts[()]).run(result)
        finally:
            for child, reader in children:
                with open(reader, encoding="utf-8") as report:
                    add_report(result, report.read())
                os.waitpid(child, 0)
        return result


def run_and_report(tests, writer):
    """Run tests, write their outcomes as JSON, and end this process."""
    try:
        result = unittest.TestResult()
        tests.run(result)
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
    """What unittest runs if no names are given."""
    parts = hasattr(os, "fork") and (os.cpu_count() or 1) > 1
    return Parts(tests) if parts else tests


if __name__ == "__main__":
    unittest.main()
