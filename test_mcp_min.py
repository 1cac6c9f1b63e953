"""The tests of mcp_min: ``python3 test_mcp_min.py``, with the standard library alone.

Most tests are transcripts, which `play` reads: ``>`` is a line that the client sends,
``<`` is the message that must come next, and after the last line nothing more may come.
No test sleeps to prove that nothing comes: it sends one more request, a *fence*, and
requires that the next message is the response to it.

* The classes carry the numbers of the sections of mcp_min.py.  A test that replaces a
  part of it, or reads a private field, says so: "Looks inside."
* ``@clause(page, quote)`` names the sentence of the specification that a test proves;
  with ``MCP_SPEC=docs/specification`` one test checks that the page contains it.
* ``--copy FILE [NAMES]`` tests another copy: what it has, the rest is skipped.
  ``--hashes`` prints the rows of README.md that tell the sha256 of copies.
* ``MCP_MIN_LOCKS=1`` checks the order in which locks are taken, in all tests.
* ``MCP_MIN_FUZZ=SECONDS`` makes the fuzz test longer, ``MCP_MIN_SEED=N`` repeats it.
"""
# ruff: noqa: I001, UP006, UP007, UP017, UP031, UP035, UP045, PYI061
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
import hashlib
import importlib.util
import inspect
import io
import itertools
import json
import linecache
import math
import mimetypes
import os
import pathlib
import py_compile
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
import types
import typing
import unittest
import uuid
import warnings
import weakref
import zipfile
from collections.abc import Iterable, Mapping
from typing import (
    Annotated, Any, ClassVar, Dict, FrozenSet, List, Literal, NewType, Optional, Set,
    Tuple, TypedDict, Union)
from unittest import mock

try:
    import sqlite3
except ImportError:  # an optional part of Python
    sqlite3 = None
if sys.implementation.name == "pypy":  # 7.3 may crash when it collects cursors late
    sqlite3 = None

HERE = os.path.dirname(os.path.abspath(__file__))
if "--copy" in sys.argv:
    at = sys.argv.index("--copy")
    COPY = (*sys.argv[at + 1:], "")[0]
    del sys.argv[at:at + 2]
    HERE = os.path.abspath(COPY if os.path.isdir(COPY) else os.path.dirname(COPY))
    if not COPY or not os.path.isfile(os.path.join(HERE, "mcp_min.py")):
        sys.exit(f"--copy needs the path of a copy, not {COPY!r}")
sys.path.insert(0, HERE)

import mcp_min


class Absent:
    """Takes the place of what a copy does not have; a test that uses it is skipped."""

    def __init__(self, name):
        self._name = name

    def __bool__(self):
        return False

    def __call__(self, *_, **__):
        raise unittest.SkipTest(f"this copy has no {self._name}")

    def __getattr__(self, name):
        raise AttributeError(name) if name[:2] == "__" else unittest.SkipTest(
            f"this copy has no {self._name}")


def absent(name):
    if name[:2] == "__":
        raise AttributeError(name)
    return Absent(name)


PARTS = mcp_min.PARTS.split()
if mcp_min.ABSENT:
    mcp_min.__getattr__ = absent
from mcp_min import (
    AsyncClient, AsyncContext, Cancelled, Client, ConnectionClosed, Context, Elicited,
    EmbeddedResource, Field, Image, McpError, Message, RequestTimeout, ResourceLink,
    SchemaError, Server, Signature, Text, ToolError, ValidationError,
    load_config, output_schema_of, to_json_data, validate)

UriTemplate = mcp_min.MoreTemplate if "schemas" in PARTS else mcp_min.UriTemplate
if "schemas" in PARTS:
    Signature = mcp_min.DocumentedSignature

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
# A busy machine may take longer.  Tests of these limits set their own.
if Client:
    mcp_min.PROBE_SECONDS = mcp_min.Process.PATIENCE = 20.0
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a job of a shell script
    signal.signal(signal.SIGINT, signal.default_int_handler)

CLAUSES = []  # (page, quote) of every @clause
WITH_GIL = getattr(sys, "_is_gil_enabled", bool)() or sys.version_info < (3, 13)


def needs(*chapters):
    """For tests of what a copy may not have."""
    absent = [name for name in chapters if name not in PARTS]
    return unittest.skipIf(absent, "this copy is without " + ", ".join(absent))


STATELESS = "stateless" not in mcp_min.ABSENT

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
    on_pypy = sys.implementation.name == "pypy"  # where a switch costs more
    sys.setswitchinterval(1e-4 if on_pypy else seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(normal)


class NewThreads:
    """The threads begun since this was made; another test may have left some."""

    def __init__(self):
        self.before = {*threading.enumerate()}

    def names(self):
        return [thread.name for thread in {*threading.enumerate()} - self.before]


def wait_until(condition, what="the condition"):
    """Wait until ``condition()`` is true, and return its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.002)
    return value


def together(*jobs):
    """Run each job in its own thread; return what each returned or raised."""
    def run(job, outcome):
        try:
            outcome.set_result(job())
        except BaseException as error:  # noqa: BLE001
            outcome.set_exception(error)

    outcomes = [concurrent.futures.Future() for _ in jobs]
    for pair in zip(jobs, outcomes):
        threading.Thread(target=run, args=pair, daemon=True).start()
    return [outcome.exception(PATIENCE) or outcome.result() for outcome in outcomes]


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
    except unittest.SkipTest:  # the copy lacks what the job uses
        raise
    except Exception as error:  # noqa: BLE001
        return error
    return None


def lock_order():
    """The locks that the docstring lists, outermost first; those of a row are equal."""
    table = r"(?m)^Locks of .*\n(?:.+\n)*\n((?:    .*\n)+)"
    tables = re.findall(table, mcp_min.__doc__)
    rows = re.findall(r"(?m)^    ((?:\w+(?:\.\w+)?(?:, )?)+)  ", "".join(tables))
    return {name: rank for rank, row in enumerate(rows) for name in row.split(", ")}


class OrderedLock:
    """A lock of mcp_min that notes when it is taken while a later one is held."""

    wrong: ClassVar = []  # (what was held, what was taken)
    held = threading.local()

    def __init__(self, lock, name, rank):
        self._lock, self.name, self.rank = lock, name, rank
        self.release_save = getattr(lock, "_release_save", lock.release)

    def note(self, waits):
        held = vars(self.held).setdefault("locks", [])
        if waits:  # who does not wait cannot cause a deadlock
            self.wrong.extend((other.name, self.name) for other in held
                              if other is not self and other.rank >= self.rank)
        held.append(self)

    def acquire(self, blocking=True, timeout=-1):
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self.note(blocking)
        return taken

    def release(self):
        locks = vars(self.held).get("locks", [])
        if self in locks:  # else another thread has taken it
            del locks[len(locks) - 1 - locks[::-1].index(self)]  # the last of these
        self._lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exc):
        self.release()

    def __getattr__(self, name):
        return getattr(self._lock, name)

    def _is_owned(self):  # for threading.Condition
        return self in vars(self.held).get("locks", [])

    def _release_save(self):
        locks = self.held.locks
        self.held.locks = [lock for lock in locks if lock is not self]
        return self.release_save(), locks

    def _acquire_restore(self, saved):
        state, self.held.locks = saved
        getattr(self._lock, "_acquire_restore", lambda _: self._lock.acquire())(state)


class OrderedThreading:
    """In the place of `threading` in mcp_min: its locks are OrderedLocks."""

    def __init__(self):
        self.order = lock_order()
        self.made = set()

    def __getattr__(self, name):
        return getattr(threading, name)

    def wrap(self, lock):
        frame = sys._getframe(2)
        line = linecache.getline(mcp_min.__file__, frame.f_lineno)
        attribute = re.search(r"self\.(\w+) = threading", line)
        if not attribute:
            return lock
        owner = next(cls for cls in type(frame.f_locals["self"]).__mro__
                     if "__init__" in vars(cls)
                     and cls.__init__.__code__ is frame.f_code)
        name = f"{owner.__name__}.{attribute[1]}"
        self.made.add(name)
        return OrderedLock(lock, name, self.order[name])

    def Lock(self):
        return self.wrap(threading.Lock())

    def RLock(self):
        return self.wrap(threading.RLock())


# With MCP_MIN_LOCKS=1 the whole suite looks at the order of locks.
if os.environ.get("MCP_MIN_LOCKS"):
    mcp_min.threading = OrderedThreading()


def folder_of(test):
    """The path of a new folder, which is removed after the test."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return os.path.realpath(folder.name)


def quiet():
    """Collect what is written to stderr, instead of showing it."""
    return contextlib.redirect_stderr(io.StringIO())


def checked(line):
    """Parse one line that mcp_min wrote, and check its form: ASCII, strict JSON, a
    known kind of message, one newline at the end."""
    assert line.endswith(b"\n") and b"\r" not in line, "bad line end: %r" % line[-80:]
    message = json.loads(line.decode("ascii"), parse_constant=int)  # NaN is an error
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

    def __init__(self, writer, reader, unread=False):
        """unread: nothing is read before `resume()`."""
        self._writer, self._inbox, self._fences = writer, queue.Queue(), 0
        self._reader = reader
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self.resume = self._thread.start
        if not unread:
            self.resume()

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
        response = self.ask('"fence %d" ping' % self._fences)
        assert response == message('"fence %d" {}' % self._fences), \
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
        if not self._thread.ident:
            self.resume()
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

    def __init__(self, server, **options):
        server_reads, client_writes = os.pipe()
        client_reads, server_writes = os.pipe()
        self.failure = None
        self._serving = threading.Thread(target=self._serve, args=(
            server, os.fdopen(server_reads, "rb"), os.fdopen(server_writes, "wb")))
        self._serving.start()
        super().__init__(os.fdopen(client_writes, "wb"), os.fdopen(client_reads, "rb"),
                         **options)

    def _serve(self, server, reader, writer):
        try:
            server.serve(reader, writer)
        except BaseException as error:  # noqa: BLE001 - raised where the test ends
            self.failure = error
        finally:
            with contextlib.suppress(OSError):
                writer.close()
            reader.close()  # waits for a thread that still reads

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

    def exit(self, hang_up=False):
        """Wait until the process has ended; return its exit status."""
        if hang_up:
            self.hang_up()
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
    """``7 call x`` is the number 7, a bare word and an object."""
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
    if head == "call":
        name, *given = others
        params = {"name": str(name), **dict(zip(["arguments"], given))}
        head, others = "tools/call", [{**params, **dict(*given[1:])}]
    if head == "=":
        result["result"] = {"content": [{"text": others[0]}]}
    elif isinstance(head, dict):
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

        > 1 tools/list {"cursor": "x"}    the client sends a request with id 1
        > 1 call f {"x": 1} {"_meta": …}  `tools/call`, its arguments, other members
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
        < 1 = "text"                      next comes the result of a tool with this text
        < 1 -32601 "text" {"data": 1}     next comes this error, with this text
        < notifications/progress {…}      next comes this notification
        < $q elicitation/create {…}       next comes a request, whose id is named $q
        <* 2 {}                           adjacent lines with <* come in any order
        <L / <M                           only in the legacy / the modern era
        < fence                           no message comes before the result of a ping
        ! name                            call the Python function given as name=…
        # text                            a comment

    A line without a mark continues the line before it.  What comes next may stand on
    the line of its cause, after two spaces.  In a pattern, ``"..."`` is any value (as
    the last item of a list: any further items), ``"...x..."`` is any text that contains
    x, ``"@x"`` is ``"io.modelcontextprotocol/x"``, and ``"$x"`` is the value that first
    matched this name.  Names are also replaced in what is sent.  With ``era`` "legacy"
    the handshake comes first, with "modern" every request gets the `_meta`.  After the
    last line nothing more may come: not before a fence and, with a Server, not until
    `serve` returns.  Returns the named values.
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
    script = re.sub("  +(?=(<[=*LM]?|!) )", "\n", script)
    for line in map(str.strip, script.splitlines()):
        if line.split(" ")[0] in MARKS:
            lines.append(line)
        elif line and not line.startswith("#"):
            lines[-1] += " " + line
    return lines


def run_script(client, lines, era, names):
    expected = []  # marks and patterns of adjacent lines with <*
    for line, next_line in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        mark, _, text = line.partition(" ")
        if mark in ("<L", "<M"):
            if (mark == "<M") != (era == "modern"):
                continue
            mark = "<"
        if (mark, text) == ("<", "fence"):
            client.fence()
        elif mark in ("<", "<=", "<*"):
            expected.append((mark, message(text)))
            while expected and not (mark == "<*" and next_line.startswith("<*")):
                receive_one(client, expected, names, line)
        else:
            perform(client, mark, text, era, names)
    if "> EOF" not in lines:
        client.fence()


def receive_one(client, expected, names, line):
    """Receive a message that matches one of ``expected``, and remove that."""
    received = client.recv()
    for mark, pattern in expected:
        new_names = dict(names)
        if message_matches(pattern, received, new_names, mark == "<="):
            names.update(new_names)
            return expected.remove((mark, pattern))
    raise AssertionError("%s\nexpected  %s\nreceived  %s" % (
        line, json.dumps([pattern for _, pattern in expected]), json.dumps(received)))


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
            if era == "modern" and "stateless" not in PARTS:
                continue
            with self.subTest(era=era):
                test(self, era)
    return run_in_both


def in_event_loop(test):
    """Run a test that is `async def`."""
    @functools.wraps(test)
    def run(*args):
        asyncio.run(asyncio.wait_for(test(*args), PATIENCE))
    return run


# ======================================================================================
# 3  Messages
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

    def names(value: str):
        return [name for name in ("Ada", "Alan") if name.startswith(value)]

    if "more" in PARTS:
        server.completion("greet", "name")(names)
    return server


def server_of(*tools, **options):
    """A server with these tools."""
    server = Server("s", **options)
    for tool in tools:
        server.add_tool(tool)
    return server


def raw(text, modern=False):
    """The bytes of the line that a transcript line stands for."""
    return json.dumps(message(text, modern)).encode() + b"\n"


def echo_line(id, text):
    """A call of the tool `echo`; the bytes ``text`` stand in the line unescaped."""
    return (b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
            b'{"name":"echo","arguments":{"text":"%s"}}}' % (id, text))


def nested_line(id, opening, closing, depth):
    """A call of `same`, its argument nested ``depth`` times; ``id`` is JSON."""
    return (b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"same",'
            b'"arguments":{"value":{"x":' % id + opening * depth + b"0"
            + closing * depth + b"}}}}")


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
PARSE_ERROR = "< null -32700"


class Test3Messages(unittest.TestCase):
    """Each line gets a response or an error, and the session goes on."""

    LINES = (  # the name of the case, the line without its newline, what comes next
        ("empty line", b"", "< fence"),
        ("blank line", b"  \t \r", "< fence"),
        ("CRLF ends a line", PING + b"\r", "<= 1 {}"),
        ("CR does not end a line", PING + b"\r" + PING, PARSE_ERROR),
        ("a byte order mark is ignored", b"\xef\xbb\xbf" + PING, "<= 1 {}"),
        ("newlines are escaped, U+2028, U+2029 and U+0085 are text",
         echo_line(6, rb"\na\r\u2028" + "b\u2029c\u0085é😀".encode()),
         '< 6 = "\\na\\r\\u2028b\\u2029c\\u0085é😀"'),
        ("not UTF-8", echo_line(3, b"\xff\xfe"), PARSE_ERROR),
        ("encoded surrogate", echo_line(3, b"\xed\xa0\x80"), PARSE_ERROR),
        ("escaped lone surrogate", echo_line(9, b"\\ud800"),
         '< 9 = "\\ud800"'),
        ("two messages on a line", PING + PING, PARSE_ERROR),
        ("NaN", PING.replace(b"1", b"NaN"), PARSE_ERROR),
        ("an argument of 5,000 digits", echo_line(7, b"").replace(b'""', b"7" * 5000),
         "< 7 -32700"),
        ("the same, the id behind the method",
         b'{"jsonrpc":"2.0","method":"tools/call","id":7,"params":{"x":%b}}' % (
             b"7" * 5000), "< 7 -32700"),
        ("id of 5,000 digits", PING.replace(b"1", b"7" * 5000), PARSE_ERROR),
        ("deep lists", b"[" * 100000 + b"]" * 100000, PARSE_ERROR),
        ("deep objects", b'{"a":' * 100000, PARSE_ERROR),
        ("deep arguments", nested_line(b"5", b'{"a":[', b"]}", 50000), "< 5 -32700"),
        ("deep nesting behind a quoted bracket",
         nested_line(b"5", b'{"\\"]]}":[', b"]}", 1000), "< 5 -32700"),
        ("deep arguments, an id that is not JSON",
         nested_line(b"007", b"[", b"]", 1000), PARSE_ERROR),
        ("deep arguments, an id with a control character",
         nested_line(b'"\t"', b"[", b"]", 1000), PARSE_ERROR),
        ("100 levels are allowed", nested_line(b"17", b"[", b"]", 100), "< 17 {}"),
        ("brackets in a string are not levels",
         echo_line(17, b'\\"' + b"[{" * 2000), "< 17 {}"),
        ("unescaped tab in a string", echo_line(1, b"\t"), PARSE_ERROR),
        ("the last of duplicate keys counts",
         b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', "<= 2 {}"),
        ("a number too big for a float", nested_line(b"8", b"1e999,", b"", 1)
         .replace(b"1e999,0", b"1e999"), '< 8 {"structuredContent": {"x": null}}'),
    )

    @clause("2025-11-25/basic/transports", "**MUST NOT** contain embedded newlines")
    @both_eras
    def test_a_malformed_line_gets_one_error_and_the_session_goes_on(self, era):
        with quiet(), wire(zoo()) as client:
            play(client, "", era)
            for label, sent, expected in self.LINES:
                if era == "modern" and b"tools/call" in sent:
                    sent = sent.replace(b'"params":{', b'"params":{"_meta":%s,'
                                        % json.dumps(MODERN_META).encode())
                with self.subTest(label):
                    client.send(sent + b"\n")
                    play(client, expected)

    def test_deep_nesting_does_not_overflow_a_small_thread_stack(self):
        self.addCleanup(threading.stack_size, threading.stack_size(256 * 1024))
        with wire(zoo()) as client:
            client.send(nested_line(b"1", b"[", b"]", 100000) + b"\n")
            play(client, "< 1 -32700")

    def test_a_message_of_up_to_16_mib_arrives_intact(self):
        call = '1 call echo {"text": "%s"}'
        length = (16 << 20) - len(raw(call % "").rstrip())
        text = ("0123456789abcdef" * (1 << 20))[:length]
        with wire(zoo()) as client:
            play(client, "> handshake")
            received = client.ask(call % text)["result"]["content"][0]["text"]
            self.assertTrue(received == text)
            client.say(call % (text + "x"))
            play(client, "< 1 -32801")

    @needs("stateless")
    @UNIX
    def test_streams_may_be_unbuffered_and_non_blocking(self):
        """Fails (a line is cut, or the input seems to end) if a short write, or None
        for "not now", is taken for the whole."""
        def serve(reader, writer):
            for stream in reader.raw, writer.raw:
                os.set_blocking(stream.fileno(), False)
            zoo().serve(reader.raw, writer.raw)

        with wire(types.SimpleNamespace(serve=serve)) as client:
            client.fence()
            text = "x" * 1_000_000
            response = client.ask('1 modern call echo {"text": "%s"}' % text)
            self.assertTrue(response["result"]["content"][0]["text"] == text)


# ======================================================================================
# 4  Threads, streams, diagnostics
# ======================================================================================

def at_most_threads(count):
    """mcp_min has at most ``count`` threads at once, as in a small container."""
    free = threading.Semaphore(count)

    def run_and_leave(run):
        try:
            run()
        finally:
            free.release()

    return threads_start_if(lambda name: free.acquire(blocking=False), run_and_leave)


def threads_start_if(condition, run_in_thread=lambda run: run()):
    """mcp_min can start a thread if ``condition(name)`` is true."""
    start_thread = mcp_min.start_thread

    def start(name, run):
        if not condition(name):
            raise RuntimeError("no thread can be started")
        return start_thread(name, lambda: run_in_thread(run))

    return mock.patch.object(mcp_min, "start_thread", start)


class Test4Threads(unittest.TestCase):
    """The pool, and a server with few threads or none.  Looks inside."""

    def test_a_wait_whose_time_is_up_ends(self):
        """Fails (it hangs up to CPython 3.12) without a look before the timed get()."""
        for _ in range(1000):
            self.assertRaises(queue.Empty, mcp_min.Inbox().wait, time.monotonic())

    @needs("turns")
    def test_an_idle_thread_is_woken_for_a_job_but_waits_for_one_run_here(self):
        """Fails if a job that is added, or one run here that ends, wakes no thread; or
        if a thread that is woken exceeds the limit."""
        pool, seen = mcp_min.SharedPool("patient", 1), []

        def run_here():
            wait_until(pool.try_enter, "the job has ended")
            pool.submit(lambda: (seen.append("job"), waited.set()))
            time.sleep(0.0005)
            seen.append("here")
            pool.leave()

        with mock.patch.object(mcp_min, "IDLE_SECONDS", 2 * PATIENCE):
            for _ in range(50):
                ran, waited = gate("the job"), gate("the job that waits")
                pool.submit(ran.set)
                ran.wait()
                run_here()
                waited.wait()
        self.assertEqual(seen, ["here", "job"] * 50)

    @needs("turns")
    def test_no_job_is_lost_while_some_threads_cannot_be_started(self):
        """Three of ten starts fail, threads end at once, jobs run here.  Fails if one
        that was not started is counted, or one that ends does not look for jobs."""
        def check(pool):
            ran = collections.Counter()

            def submit(thread):
                for n in range(300):
                    job = functools.partial(ran.update, [(thread, n)])
                    while raised(pool.submit, job, 5):
                        time.sleep(0)  # there was no thread, and none could be started
                    if n % 10 == 0:
                        time.sleep(0.001)  # so that threads become idle, and end

            def visit():
                for _ in range(300):
                    if pool.try_enter():
                        time.sleep(0)  # a job may come
                        pool.leave()

            submits = [functools.partial(submit, thread) for thread in range(4)]
            self.assertEqual(together(*submits, visit), [None] * 5)
            wait_until(lambda: pool.bytes == 0, "the last job")
            self.assertEqual(ran, collections.Counter(
                itertools.product(range(4), range(300))))

        rng = random.Random(1)
        for limit in 1, 3, 64:
            with self.subTest(limit), mock.patch.object(
                    mcp_min, "IDLE_SECONDS", 0.0005), switch_threads_often(), (
                    threads_start_if(lambda name: rng.random() >= 0.3)):
                check(mcp_min.SharedPool("unlucky", limit))

    @staticmethod
    def all_kinds(**options):
        def plain(n: int) -> int:
            return n

        async def coroutine(n: int) -> int:
            await asyncio.sleep(0)
            return n

        def ask(n: int, ctx: Context) -> str:
            return ctx.elicit("Well?", str).data

        async def ask_async(n: int, ctx: Context) -> str:
            answer = await ctx.elicit("Well?", str)
            await ctx.ping()
            return answer.data

        return server_of(plain, coroutine, ask, ask_async, **options)

    def call_all(self, client, *names, or_error=False):
        """Call these tools at once; answer the questions of the server, but not before
        it has answered a ping; require the right result for each call, or an error that
        says why there is none."""
        calls, answers = dict(enumerate(names)), {}
        for n, name in enumerate(names):
            client.say('%d call %s {"n": %d}' % (n, name, n))
        while calls:
            received = client.recv()
            id = received["id"]
            if "method" in received:  # a question: answered when this ping is
                answers["for %s" % id] = {"jsonrpc": "2.0", "id": id, "result": (
                    {} if received["method"] == "ping" else
                    {"action": "accept", "content": {"value": "x"}})}
                client.say('"for %s" ping' % id)
            elif id in answers:
                client.send(answers.pop(id))
            else:
                text = "x" if "ask" in calls.pop(id) else str(id)
                result = received.get("result", {"isError": True})
                if or_error and result["isError"]:
                    self.assertIn("thread", json.dumps(received))
                else:
                    self.assertEqual(result["content"][0]["text"], text)
        client.fence()

    @needs("asyncio", "inside", "more")
    def test_with_few_threads_each_request_gets_a_result_or_an_error(self):
        """None is silent, in a session and without; pings are answered, and serve()
        ends.  Fails (nothing more comes) if a job waits for a thread that no one can
        start, or a question for an answer that no one reads."""
        burst = ["plain", "coroutine", "ask", "ask_async"] * 5
        for threaded, count in itertools.product((True, False), range(1, 9)):
            server = self.all_kinds(threaded=threaded)
            with self.subTest(threaded=threaded, threads=count), quiet(), (
                    at_most_threads(count)), wire(server) as client:
                play(client, "> handshake")
                for name in sorted(set(burst)):
                    self.call_all(client, name, or_error=count < 8)
                self.call_all(client, *burst, or_error=True)
                client.say('1 call plain {"n": 1}', "modern")
                self.assertEqual(client.recv()["id"], 1)

    @needs("inside")
    def test_without_any_thread_serving_and_connecting_are_refused(self):
        with at_most_threads(0), tempfile.TemporaryDirectory() as folder:
            for serve in (lambda: Server("s").serve(io.BytesIO(), io.BytesIO()),
                          lambda: Server("s", threaded=False).serve(
                              io.BytesIO(), io.BytesIO()),
                          lambda: Server("s").listen(os.path.join(folder, "at")),
                          Client(Server("s")).connect, Client(fake()).connect):
                self.assertRaisesRegex(RuntimeError, "thread", serve)
            self.assertEqual(os.listdir(folder), [])

    @needs("turns")
    def test_a_watcher_that_could_not_be_started_is_tried_again(self):
        """Fails (the fence gets no result) if the thread is tried only once."""
        first, server = iter([False]), lab()
        with threads_start_if(lambda name: name != "mcp watcher" or next(first, True)):
            play(server, """
                > 1 tools/list                                           < 1 {}
                > 2 call hold {"n": 2}   < fence
                ! go
                < 2 {}
                """, era="legacy", **server.steps)

    def test_a_job_is_run_or_refused_where_two_find_no_thread(self):
        """Fails (the second is neither) if it counts a thread that is to be started."""
        pool, outcomes, others = mcp_min.ThreadPool("test", 2), [], []

        def submit():
            outcomes.append(raised(pool.submit, outcomes.clear))

        def fail(*_):
            if not others:
                others.append(threading.Thread(target=submit))
                others[0].start()
                others[0].join(0.1)  # it cannot end before this one has failed
            raise RuntimeError("no thread")

        with mock.patch.object(mcp_min, "start_thread", fail):
            submit()
            others[0].join(PATIENCE)
        self.assertEqual([str(error) for error in outcomes], ["no thread"] * 2)

    @needs("trace")
    def test_a_trace_shows_what_the_server_takes(self):
        """Fails ("not a message") if it looks only as deep as by default."""
        with quiet() as stderr:
            mcp_min.Trace("stderr", 400).show(">", nested_line(b"1", b"[", b"]", 300))
        self.assertNotIn("not a message", stderr.getvalue())

    def test_a_transport_that_fails_in_its_own_way_ends_the_connection(self):
        """Fails (`serve` waits for ever) if only an OSError ends it."""
        class Broken(io.BytesIO):
            def read1(self, size):
                raise EOFError

        with quiet() as stderr:
            zoo().serve(Broken(), io.BytesIO())
        self.assertIn("reading has failed", stderr.getvalue())


# ======================================================================================
# 5  Validation
# ======================================================================================

CLOSED = {"additionalProperties": False}


DRAFT_7 = "http://json-schema.org/draft-07/schema#"
METASCHEMA = "https://json-schema.org/draft/2020-12/schema"

# (value, schema, problems)
PROBLEMS = [
    ("a" * 100, {"type": "integer"}, 'expected integer, got "' + "a" * 58 + "…"),
    ({"a": [0, {"b": None}]}, {"properties": {"a": {"items": {"properties": {
        "b": {"type": "string"}}}}}}, "a[1].b: expected string, got null"),
    ({"a": 1}, {"required": ["b", "c"]},
     "b: missing (required); c: missing (required)"),
    ({"a": 1}, {"dependentRequired": {"a": ["b"]}}, "b: missing (required with a)"),
    ({"a": 1}, {"dependencies": {"a": ["b"]}}, "b: missing (required with a)"),
    ({"a": 1}, {"dependencies": {"a": {"required": ["b"]}}}, "b: missing (required)"),
    ({"citty": 1, "a\nb": 1}, {"properties": {"city": True}, **CLOSED},
     "citty: unknown; known are: city; a b: unknown; known are: city"),
    ({"a": 1}, {"unevaluatedProperties": False}, "a: unknown; known are: none"),
    ({"a": 1}, {"properties": {"a": False}}, "a: not allowed"),
    ([1], {"items": False}, "[0]: not allowed"),
    (1, False, "not allowed"),
    (5, {"maximum": 4}, "expected at most 4, got 5"),
    (5, {"exclusiveMaximum": 5}, "expected less than 5, got 5"),
    ("abc", {"maxLength": 2}, "expected at most 2 characters, got 3"),
    ([{"a": 1}, {"a": 2}], {"uniqueItems": True}, ""),
    ([{"a": 1}, {"a": 1.0}], {"uniqueItems": True},
     "expected items that differ, got an array"),
    (2, {"const": 1}, "expected 1, got 2"),
    ([1], {"contains": {"type": "string"}},
     "expected 1 to 1 items that match `contains`, got 0"),
    (1.5, {"anyOf": [{"type": "string"}, {"maximum": 1}]},
     "expected string or at most 1, got 1.5"),
    (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]},
     "fits 2 alternatives, and must fit one"),
    (1, {"not": {"type": "integer"}}, "not allowed"),
    *[(value, {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {
        "maxLength": 1}}, problem) for value, problem in (
            (1, "expected at least 2, got 1"), (2, ""), ("a", ""),
            ("ab", "expected at most 1 characters, got 2"))],
    ({"bad key!": 1}, {"propertyNames": {"pattern": "^[a-z]+$"}},
     'bad key!: expected text like "^[a-z]+$", got "bad key!"'),
    (True, {"enum": [1]}, "expected 1, got true"),
    ([True], {"const": [1]}, "expected [1], got an array"),
    ("soon", {"format": "date"}, ""),
    (1e308, {"multipleOf": 1e-9}, ""),
    (19.99, {"multipleOf": 0.01}, ""),
    (6, {"multipleOf": 3}, ""),
    (7, {"multipleOf": 3}, "expected a multiple of 3, got 7"),
    (0.35, {"multipleOf": 0.1}, "expected a multiple of 0.1, got 0.35"),
    (float("inf"), {"type": "number"}, "expected number, got Infinity"),
    (2 ** 61, {"enum": [2.0 ** 61]}, ""),
    ([2 ** 61, 2 ** 61 - 1], {"uniqueItems": True}, ""),
    (1.0, {"enum": [1]}, ""), ("abc", {"pattern": "b"}, ""),
    ("a\n", {"pattern": "a$"}, 'expected text like "a$", got "a\\n"'),
    ("\u0665", {"pattern": r"^\d$"}, 'expected text like "^\\\\d$", got "\u0665"'),
    ({"a/b": {"~": {"%": 1}}}, {"$ref": "#/$defs/a~1b/x~0y/%25", "$defs": {
        "a/b": {"x~y": {"%": {"type": "object"}}}}}, ""),
    ({"b": 1}, {"properties": {
        "a": {"items": [{"type": "string"}]}, "b": {"$ref": "#/properties/a/items/0"}}},
     "b: expected string, got 1"),
    # a definition may have the name of a keyword
    *[(5, {"$ref": "#it", "$defs": {name: {"$anchor": "it", "type": "string"}}},
       "expected string, got 5") for name in ("default", "enum", "properties", "$ref")],
    (5, {"$ref": "#/definitions/x", "type": "string", "definitions": {"x": {}}},
     "expected string, got 5"),
    (5, {"$schema": METASCHEMA, "$ref": "#/$defs/x", "maximum": 4, "$defs": {"x": {}}},
     "expected at most 4, got 5"),
    (5, {"$id": "http://x/y#", "$ref": "#/$defs/x", "$defs": {"x": {"minimum": 6}}},
     "expected at least 6, got 5"),
    ([1, "a"], {"$schema": DRAFT_7, "items": [{"type": "string"}],
                "additionalItems": False},
     "[0]: expected string, got 1; [1]: not allowed"),
    (5, {"$schema": DRAFT_7, "$ref": "#/definitions/x", "type": "string",
         "definitions": {"x": {"minimum": 6}}}, "expected at least 6, got 5"),
    ({"a": 1}, {"$schema": DRAFT_7[:-1], "allOf": [{"$ref": "#here"}], "definitions": {
        "x": {"$id": "#here", "required": ["z"]}}}, "z: missing (required)"),
]

# (schema, a part of the message)
UNUSABLE_SCHEMAS = [
    (5, "expected object or boolean, got 5"), (None, "expected object or boolean"),
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
    *[({**schema, "$ref": reference}, "is not in the document, and nothing is fetched")
      for reference, schema in (
        ("https://example.com/schema", {}), ("#/$defs/none", {}), ("http://[bad", {}),
        ("#/a/b", {"a": 1}))],
    ({"$dynamicRef": "#none"}, '"#none" is not in the document'),
    ({"$id": "http://x/y", "$defs": {"a": {"$id": "http://[bad"}}}, "a bad URI"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                     "b": {"$ref": "#/$defs/a"}}}, "$ref is a loop"),
    ({"pattern": "("}, 'pattern "("'), ({"pattern": r"[\p{Lu}]"}, "bad escape"),
    ({"patternProperties": {"[": True}}, 'pattern "["'),
    ({"multipleOf": float("inf")}, "not JSON"), ({"default": {1}}, "not JSON"),
    ({"$ref": "#/required/0", "required": ["a"]},
     'expected object or boolean, got "a"'),
    ({"$ref": "#/x/0", "x": [{"$ref": "#/x/1"}, {"minimum": "a"}]},
     'minimum: expected number, got "a"'),
]


class Test5Validator(unittest.TestCase):
    """`validate` returns the problems of a value, and refuses an unusable schema."""

    @needs("schemas")
    @clause("2025-11-25/basic/index",
            "**MUST** validate schemas according to their declared or default dialect.")
    def test_each_problem_is_one_readable_line(self):
        for value, schema, problems in PROBLEMS:
            with self.subTest(value=value, schema=schema):
                self.assertEqual("; ".join(validate(value, schema)), problems)

    @needs("schemas")
    @clause("2025-11-25/basic/index", "**MUST** handle unsupported dialects gracefully")
    def test_an_unusable_schema_is_refused_whatever_the_value_is(self):
        for schema, message in UNUSABLE_SCHEMAS:
            with self.subTest(schema=schema), self.assertRaises(SchemaError) as caught:
                validate({}, schema)
            self.assertIn(message, str(caught.exception))

    @needs("schemas")
    def test_the_outermost_dynamic_anchor_counts(self):
        """JSON Schema 2020-12, core 8.2.3.2; a plain anchor is found like any other."""
        inner = {"$id": "inner", "$dynamicRef": "#item",
                 "$defs": {"default": {"$dynamicAnchor": "item", "type": "integer"}}}
        text = {"$dynamicAnchor": "item", "type": "string"}
        outer = {"$id": "https://x.io/outer", "$ref": "inner",
                 "$defs": {"inner": inner, "override": text}}
        plain = {"$dynamicRef": "#item", "$defs": {
            "one": {"$anchor": "item", "type": "string"}}}
        for schema, value, other in (inner, 5, "a"), (outer, "a", 5), (plain, "a", 5):
            self.assertEqual(validate(value, schema), [])
            self.assertEqual(len(validate(other, schema)), 1)

    @needs("schemas")
    def test_names_match_the_patterns_of_a_foreign_schema_or_none_of_them(self):
        """They are not run: a value may be what they, or what others, ask for."""
        nulls = {"additionalProperties": {"type": "null"}}
        rows = [
            ({"unevaluatedProperties": False}, {"b": 1}, []),
            (CLOSED, {"b": "x"}, []), (CLOSED, {"b": 1}, ["b: not allowed"]),
            (nulls, {"b": "x", "c": None}, []),
            (nulls, {"b": 1}, ["b: expected string or null, got 1"]),
            ({"dependentRequired": {"b": ["c"]}}, {"b": "x"},
             ["c: missing (required with b)"]),
            ({"properties": {"b": {"$ref": "#/patternProperties/^a"}}}, {"b": 1},
             ["b: expected string, got 1"]),
            ({"dependentSchemas": {"b": {"maxProperties": 0}}}, {"b": "x"},
             ["expected at most 0 properties, got 1"]),
            ({"propertyNames": {"pattern": "("}}, {"b": "x"}, []),
            # A pattern that is not run says nothing, also where not to match is wanted.
            ({"properties": {"b": {"not": {"$ref": "#/$defs/y"}}},
              "$defs": {"y": {"pattern": "y"}}}, {"b": "x"}, []),
            ({"oneOf": [{"properties": {"b": {"pattern": "y"}}}, {}]}, {"b": "x"}, []),
            ({"if": {"properties": {"b": {"pattern": "y"}}}, "then": False},
             {"b": "x"}, []),
            ({"contains": {"pattern": "y"}, "maxContains": 1}, ["x", "z"], [])]
        for keywords, value, problems in rows:
            with self.subTest(keywords, value=value):
                self.assertEqual(mcp_min.ForeignValidator(
                    {"patternProperties": {"^a": {"type": "string"}}, **keywords},
                    ).problems(value), problems)

    @needs("schemas")
    def test_the_work_is_bounded_by_the_size_of_what_is_looked_at(self):
        """Fails if a value is compared, parsed or read without being charged."""
        doubling = {"$ref": "#/$defs/a0", "$defs": {"a60": {}, **{
            f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2}
            for n in range(60)}}}
        deep = {}
        for _ in range(20_000):
            deep = {"not": deep}
        for number, (schema, value) in enumerate((
                ({"allOf": [{"enum": [[n]]} for n in range(20)]}, [*range(1000)]),
                ({"items": {"const": [0]}}, [[0] * 1000] * 20),
                ({"items": {"type": "integer"}}, [1] * 30_000),
                ({"allOf": [{"uniqueItems": True}] * 5}, [*range(1000)]),
                ({"allOf": [{"type": "integer"}] * 20}, "[" + "1," * 30_000 + "1]"),
                ({"patternProperties": {f"^{n}": {} for n in range(100)}},
                 {"x" * 500 + str(n): 1 for n in range(9)}),
                ({"pattern": "^a"}, "a" * 20_001),
                (doubling, 5), ({"allOf": [{"$ref": "#"}] * 1000}, 5), (deep, 5))):
            with self.subTest(number), mock.patch.object(
                    mcp_min, "MAX_STEPS", 1000), self.assertRaisesRegex(
                        SchemaError, "over 1,000 steps|too deeply|over 20000 char"):
                mcp_min.Converter(schema).coerce(value, strict=False)

    @needs("schemas")
    def test_patterns_are_charged_the_time_that_they_take(self):
        """Fails if those of names, or of values, are charged only for their text."""
        for schema, value in (({"items": {"pattern": "a"}}, ["a", "a"]),
                              ({"patternProperties": {"a": {}}}, {"a": 1, "ab": 2})):
            with self.subTest(schema), mock.patch.object(
                    mcp_min, "monotonic", itertools.count(0, 0.6).__next__), (
                    self.assertRaisesRegex(SchemaError, "over 500,000 steps")):
                mcp_min.Converter(schema).coerce(value, strict=False)

    @needs("server")
    def test_arguments_that_take_too_much_work_are_invalid(self):
        numbers = [1] * 30_000
        for hint, value in ((List[int], numbers), (
                Dict[str, List[int]], {"a": numbers, "b": "[1]"})):
            with mock.patch.object(mcp_min, "MAX_STEPS", 1000), self.assertRaisesRegex(
                    ValidationError, "over 1,000 steps"):
                Signature(function(hint)).bind({"x": value})

    @needs("schemas")
    def test_a_recursive_schema_is_applied_down_to_a_bounded_depth(self):
        schema = {"type": "array", "items": {"$ref": "#"}}
        self.assertEqual(validate(json.loads("[" * 80 + "]" * 80), schema), [])
        with self.assertRaisesRegex(SchemaError, "nests too deeply"):
            validate(json.loads("[" * 480 + "]" * 480), schema)

    def test_flat_arguments_are_checked_as_others_are(self):
        """They match at a look at their types, or are applied keyword by keyword."""
        a, b = {"type": "string"}, {"type": "integer", "default": 1}
        flat = {"type": "object", "properties": {"a": a, "b": b}, **CLOSED}
        for more, arguments, problem in (
                ({"required": ["a"]}, {"a": "x", "b": 2}, None), ({}, {"a": "x"}, None),
                ({"required": ["a"]}, {"b": 2}, "a: missing"),
                ({"required": ["a", "c"]}, {"a": "x", "b": 2}, "c: missing"),
                ({}, {"a": "", "c": 1}, "c: unknown"),
                ({}, {"a": "", "b": True}, "b: expected integer"),
                ({"type": "array"}, {"a": "x"}, "expected array")):
            with self.subTest(more, arguments=arguments):
                error = raised(mcp_min.Converter({**flat, **more}).coerce, arguments)
                self.assertIn(problem or "None", str(error))

    def test_the_official_suite_of_json_schema(self):
        root = os.environ.get("JSON_SCHEMA_SUITE")
        if not root:
            self.skipTest("JSON_SCHEMA_SUITE does not name tests/draft2020-12")
        # tests that fetch schemas, or need a vocabulary of their own
        excluded = re.compile("refRemote.json|metaschema-no-validation|detached-dynamic"
                              '|metaschema-optional-voc|"(tree|extendible-.*).json"')
        outcomes = [
            (path.stem, case["description"],
             (validate(case["data"], group["schema"]) == []) == case["valid"])
            for path in sorted(pathlib.Path(root).glob("*.json"))
            for group in json.loads(path.read_text("utf-8"))
            if not excluded.search(path.name + json.dumps(group))
            for case in group["tests"]]
        self.assertGreater(len(outcomes), 1200)
        self.assertEqual([case for case in outcomes if not case[2]], [])


# ======================================================================================
# 6  Content
# ======================================================================================

class Test6Content(unittest.TestCase):
    def test_fields_are_attributes(self):
        """What is assigned is sent; what was not received is None; None is left out."""
        result = mcp_min.ToolResult("x")
        result.structured_content = {"a": 1}
        self.assertEqual(result["structuredContent"], {"a": 1})
        self.assertEqual(result.data, {"a": 1})
        message = Message("user", Text("hello"))
        message.role, message.content.text = "assistant", "bye"
        self.assertEqual(message, Message("assistant", "bye"))
        sampled = mcp_min.Sampled.of({"content": {"type": "text", "text": "x"}})
        self.assertIsNone(sampled.stopReason)
        for block in (sampled.content, mcp_min.ToolResult.of(
                {"content": [sampled["content"]]}).content[0]):
            self.assertIsNone(block.annotations)
        self.assertEqual(repr(Elicited("accept", {})), "Elicited('accept', {})")
        self.assertRaises(AttributeError, getattr, sampled, "colour")
        self.assertEqual(ResourceLink("a:b", "n", mime_type=None, meta={"x": 1}), {
            "type": "resource_link", "uri": "a:b", "name": "n", "_meta": {"x": 1}})

    @needs("server")
    def test_invalid_content_is_refused(self):
        for error, make in (
                ("TypeError: ResourceLink: unknown: colour; known are: type, uri, name",
                 lambda: ResourceLink("a:b", "n", colour="red")),
                ("TypeError: .* not None", lambda: Message("user", None)),
                ("ValueError: role must be one of", lambda: Message("robot", "x")),
                ("ValueError: not base64: .*for a file", lambda: Image("chart.png")),
                ("TypeError: .* is a str", lambda: Text(5)),
                ("TypeError: .* a block, ", lambda: mcp_min.ToolResult([{"foo": 1}])),
                ("TypeError: .* not 7", lambda: mcp_min.ToolResult(["x", 7])),
                ("AttributeError: Image has no", lambda: Image(b"x").text)):
            with self.subTest(error):
                caught = raised(make)
                self.assertRegex(f"{type(caught).__name__}: {caught}", error)

    def test_a_tool_may_return_what_a_client_has_received(self):
        """Fails if an object that is data is taken for a content block."""
        def find() -> List[Dict[str, Dict[str, int]]]:
            return [{"a": {"b": 1}}]

        with Client(server_of(find)) as inner:
            whole = inner.call_tool("find")
            server = Server("proxy")
            for name, value, text, data in (
                    ("list", whole.data, '[{"a": {"b": 1}}]', [{"a": {"b": 1}}]),
                    ("part", whole.data[0].a, '{"b": 1}', {"b": 1}),
                    ("blocks", whole.content, '[{"a": {"b": 1}}]', None),
                    ("whole", whole, '[{"a": {"b": 1}}]', [{"a": {"b": 1}}])):
                server.tool(lambda value=value: value, name=name,
                            input_schema={"type": "object"})
                with self.subTest(name), Client(server) as client:
                    result = client.call_tool(name)
                    self.assertEqual(result.text, text)
                    if data:
                        self.assertEqual(result.data, data)

    @clause("2025-11-25/server/prompts", "include a valid MIME type")
    def test_the_type_of_content_is_inferred(self):
        """From the format, the path, or the first bytes of an image."""
        for data, mime_type in (
                (b"\xff\xd8\xff.", "image/jpeg"), (b"GIF89a", "image/gif"),
                (b"RIFF....WEBP", "image/webp"), (b"?", "image/png")):
            self.assertEqual(Image(data).mime_type, mime_type)
        with tempfile.TemporaryDirectory() as folder:
            path, sound, wave, notes = (
                os.path.join(folder, name) for name in ("scan.png", "a.mp3", "a", "b"))
            for name, data in (
                    (path, "?"), (sound, ""), (wave, "RIFF1234WAVE"), (notes, "x")):
                pathlib.Path(name).write_text(data)
            for block, mime_type in (
                    (mcp_min.Audio(path=sound), "audio/mpeg"),
                    (mcp_min.Audio(path=wave), "audio/wav"),
                    (mcp_min.Audio(path=notes), "application/octet-stream"),
                    (Image(path=path), "image/png"),
                    (Image(path=path, format="jpeg"), "image/jpeg"),
                    (EmbeddedResource("x://y", text="a")["resource"], "text/plain"),
                    (EmbeddedResource("x://y", data=b"a")["resource"],
                     "application/octet-stream")):
                self.assertEqual(block["mimeType"], mime_type)


# ======================================================================================
# 7  Connection
# ======================================================================================

def lab(**options):
    """A server with tools that wait: `hold` for the step `go`, `wait` and `wait_async`
    to be cancelled.  ``server.steps`` are for `play`."""
    server = Server("lab", **options)
    server.go, server.reasons = gate("go"), []
    server.began, server.cancelled = queue.Queue(), queue.Queue()
    server.steps = {
        "go": server.go.set, "began": lambda: server.began.get(timeout=PATIENCE),
        "cancelled": lambda: server.cancelled.get(timeout=PATIENCE)}

    @server.tool
    def hold(n: int) -> int:
        server.began.put(n)
        server.go.wait()
        return n

    @server.tool
    def wait(ctx: Context, late: bool = False) -> str:
        server.began.put("wait")
        if late:
            server.go.wait()
        try:
            ctx.wait(60)
        except Exception:  # noqa: BLE001 - a cancellation is none
            return "caught"
        except Cancelled:
            for use in (ctx.check_cancelled, lambda: ctx.report_progress(99),
                        lambda: ctx.debug("dropped"), lambda: ctx.notify("acme/x"),
                        lambda: ctx.once("step", int), lambda: ctx.elicit("?")):
                with contextlib.suppress(Cancelled):
                    use()
                    return "not a point of cancellation"
            server.reasons.append(ctx.cancelled and ctx.cancel_reason)
            server.cancelled.put(1)
            raise
        return "was not cancelled"

    @server.tool
    def report(times: int, ctx: Context) -> str:
        for n in range(times):
            ctx.report_progress(n)
        return "done"

    if "asyncio" in PARTS:
        @server.tool
        async def wait_async():
            server.began.put("wait")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                server.cancelled.put(1)
                raise

    return server


class Test7Connection(unittest.TestCase):
    """One end of a connection: ids, responses, cancellation, progress."""

    # -- the envelope ------------------------------------------------------------------

    @clause("2025-11-25/basic/index", "the ID **MUST NOT** be `null`")
    @clause("2025-11-25/basic/transports",
            "individual JSON-RPC requests, notifications, or responses.")
    @both_eras
    def test_an_invalid_message_gets_an_error_with_its_id(self, era):
        for id, *lines in (
                ("null", "1", '"x"', "null", "true", "{}", "[]",
                 '[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]'),  # a batch
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
            > 1 tools/fly {}                               < 1 -32601 {"method": "..."}
            > 2 notifications/initialized {}
            < 2 -32601 {"method": "notifications/initialized"}
            > {"id": 3, "method": ""}
            <L 3 -32601 {"method": ""}
            <M 3 -32600
            > {"id": 4, "method": "ping", "params": [1]}   < 4 -32602
            # unknown members are ignored
            > {"id": 5, "method": "ping", "lang": "en"}    <= 5 {}
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

    # -- ids and batches ---------------------------------------------------------------

    @clause("2025-11-25/basic/index", "Result responses **MUST** include the same ID")
    def test_a_response_has_the_id_of_its_request(self):
        ids = ["", "1", -1, 0, 9007199254740993, 10 ** 30, " 7 ", "007", "1_0",
               "é\u2028😀", "x" * 10000, 1.0, -3.0]
        with wire(zoo()) as client:
            for id in ids:
                received = client.ask(json.dumps(id) + " ping")["id"]
                self.assertEqual(received, id)
                self.assertEqual(isinstance(received, str), isinstance(id, str))

    @clause("2026-07-28/basic/index",
            "**MUST NOT** match the ID of any other request the sender has issued")
    @both_eras
    def test_an_id_in_flight_cannot_be_used_again(self, era):
        server = lab()
        play(server, """
            > 1 call hold {"n": 1}
            > "1" call wait
            > "01" call hold {"n": 2}
            > 1 call hold {"n": 4}     < 1 -32600
            > 1.0 call hold {"n": 5}   < 1.0 -32600
            > {"id": 1, "method": "ping"}                              < 1 -32600
            > notifications/cancelled {"requestId": "1"}               < fence
            ! go
            <* 1 = "1"
            <* "01" = "2"
            """, era=era, **server.steps)
        self.assertLessEqual({*server.began.queue}, {1, 2, "wait"})

    @needs("stateless")
    def test_a_batch_of_the_first_revisions_gets_one_array_of_responses(self):
        for revision in LEGACY[:2]:
            with self.subTest(revision):
                play(zoo(), "> handshake " + revision + """
                    > batch 1 ping | "1" nope         < batch 1 {} | "1" -32601
                    > batch notifications/x | 9 {}    < fence
                    > batch notifications/x | 2 ping  < batch 2 {}
                    # each element is a message, or gets an error
                    > []                              < null -32600
                    > [1, {}, [], {"id": 3}]
                    < batch null -32600 | null -32600 | null -32600 | 3 -32600
                    > batch 5 ping | 6 initialize     < batch 5 {} | 6 -32600
                    > batch 1 modern tools/list | 2 modern ping
                    < batch 1 {"resultType": "complete"} | 2 -32601
                    # whose responses would have to wait for the end of the stream
                    > batch 1 modern subscriptions/listen {"notifications": {}} | 2 ping
                    < batch 1 -32600 | 2 {}
                    """)

    def test_a_batch_waits_for_its_slowest_request_and_delays_no_other_message(self):
        """Fails if its handlers run one by one, or a batch that has become complete by
        a cancellation is not sent."""
        server = lab()
        play(server, """
            > handshake 2025-03-26
            > batch 1 call hold {"n": 1} |
                2 call wait | 3 ping |
                notifications/cancelled {"requestId": 2}
            < fence
            > 1 ping                                           < 1 -32600
            ! go
            < batch 1 {"content": [{"text": "1"}]} | 3 {}
            # its last request may be cancelled, or all
            > batch 1 ping | 2 call wait     < fence
            > notifications/cancelled {"requestId": 2}         < batch 1 {}
            > batch 1 call wait
            > batch notifications/cancelled {"requestId": 1}   < fence
            """, **server.steps)

    # -- cancellation ------------------------------------------------------------------

    @needs("asyncio")
    @clause("2025-11-25/basic/utilities/cancellation",
            "Not send a response for the cancelled request")
    @clause("2026-07-28/basic/transports/stdio",
            "**MUST NOT** send any further messages for it")
    @both_eras
    def test_a_cancelled_request_gets_no_response(self, era):
        server = lab()
        play(server, """
            > 7 tools/call {"name": "wait", "_meta": {"progressToken": "t"}}   ! began
            > notifications/cancelled {"requestId": 7, "reason": "$why"}
            ! cancelled
            < fence
            # a handler that waits only after its cancellation ends at once
            > 7 call wait {"late": true}       ! began
            > notifications/cancelled {"requestId": 7, "reason": 7}            < fence
            ! go
            ! cancelled
            """ + "".join("""
            # the id is free again; a coroutine is cancelled too, in other spellings
            > 7 call wait_async   ! began
            > {"method": %s}                        ! cancelled
            < fence
            """ % spelling for spelling in (
                '"cancelled", "params": {"requestId": 7}',
                '"$/cancelRequest", "params": {"id": 7}',
                '"$/cancelRequest", "params": {"requestId": 7}',
                '"notifications/cancelled", "params": {"requestId": 7.0}')),
             era=era, why="changed my mind".ljust(9999), **server.steps)
        self.assertEqual(server.reasons, ["changed my mind".ljust(1000), None])

    @clause("2025-11-25/basic/utilities/cancellation",
            "Invalid cancellation notifications **SHOULD** be ignored")
    @clause("2025-11-25/basic/utilities/cancellation",
            "The `initialize` request **MUST NOT** be cancelled by clients")
    def test_an_invalid_cancellation_is_ignored(self):
        server = lab()
        play(server, """
            > 0 initialize
            > notifications/cancelled {"requestId": 0}
            < 0 {"protocolVersion": "2025-11-25"}
            > 1 call hold {"n": 7}
            """ + "".join("> notifications/cancelled %s\n" % params for params in (
                '{"requestId": 2}', '{"requestId": "1"}', '{"requestId": true}', "{}",
                '{"requestId": 1.5}', '{"requestId": {"id": 1}}', '{"id": 1}')) + """
            > {"method": "notifications/cancelled", "params": [1]}   < fence
            ! go
            < 1 = "7"
            > notifications/cancelled {"requestId": 1}
            """, **server.steps)

    @both_eras
    def test_a_request_that_is_cancelled_in_the_queue_never_runs(self, era):
        """Nor is anything sent for one that runs on: request 1."""
        server = lab(max_workers=1)
        play(server, """
            > 1 call hold {"n": 1}   ! began
            > 2 call hold {"n": 2}
            > 3 call hold {"n": 3}
            > notifications/cancelled {"requestId": 2}
            > notifications/cancelled {"requestId": 1}               < fence
            ! go
            < 3 {}
            """, era=era, **server.steps)
        self.assertEqual(list(server.began.queue), [3])

    @clause("2026-07-28/basic/patterns/cancellation",
            "Both parties **MUST** handle these race conditions gracefully")
    def test_a_cancellation_that_finds_its_request_answered_does_nothing(self):
        """Fails (the connection is closed) if it does not look again.  Looks inside."""
        server, cancel = lab(), mcp_min.IncomingRequest.cancel

        def cancel_too_late(request, reason=None):
            server.go.set()
            wait_until(lambda: not request.connection.incoming.has(request))
            return cancel(request, reason)

        with mock.patch.object(mcp_min.IncomingRequest, "cancel", cancel_too_late):
            play(server, """
                > 1 call hold {"n": 1}   ! began
                > notifications/cancelled {"requestId": 1}   < 1 = "1"
                """, era="legacy", **server.steps)

    # -- the reading thread, deadlines -------------------------------------------------

    def test_a_handler_that_waits_hands_the_reading_over_at_once(self):
        """Fails (the fence gets no result) if only the watcher hands it over."""
        server = lab()
        with mock.patch.object(mcp_min, "HAND_OVER_SECONDS", 60):
            play(server, """
                > 1 call wait {"late": true}   ! began
                ! pause
                ! go
                < fence
                > notifications/cancelled {"requestId": 1}
                """, era="legacy", pause=lambda: time.sleep(0.05), **server.steps)

    @UNIX
    @needs("turns")
    def test_the_watcher_sleeps_until_it_is_needed(self):
        """Fails if it looks again and again though no call begins; or if a call (the
        fence gets no result) does not wake it."""
        import resource

        def switches():
            return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

        def is_quiet():
            before = switches()
            time.sleep(0.2)  # 25 looks
            return switches() - before < 10

        server, before = lab(), set(threading.enumerate())
        play(server, """
            > 1 tools/list                                           < 1 {}
            ! quiet
            > 2 call hold {"n": 2}   < fence
            ! go
            < 2 {}
            ! quiet
            """, era="legacy", quiet=lambda: wait_until(is_quiet), **server.steps)
        wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")

    def test_max_timeout_holds_while_a_slow_handler_is_told_of_progress(self):
        """Fails (each step is told) if only what the handler returns to is timed."""
        steps = []

        def step(progress, *_):
            steps.append(progress)
            time.sleep(0.06)

        with Client(lab(), progress_handler=step) as client:
            raised(client.call_tool, "report", {"times": 500}, max_timeout=0.2)
            self.assertLess(len(steps), 100)

    def test_a_call_neither_waits_for_a_log_handler_nor_fails_by_that_of_progress(self):
        """Fails (the result comes last) if one thread tells progress and the rest."""
        release, steps = gate("the log handler"), []

        def work(ctx: Context) -> str:
            ctx.info("slow")
            ctx.report_progress(1)
            ctx.report_progress(2)
            return "done"

        with quiet() as stderr, Client(
                server_of(work), log_handler=lambda params: release.wait()) as client:
            result = client.call_tool("work", progress_handler=(
                lambda *step: steps.append(step[0]) or 1 / 0))
            self.assertEqual((result.text, steps), ("done", [1, 2]))
            release.set()
        self.assertIn("progress handler of tools/call work failed", stderr.getvalue())

    def test_a_response_in_time_is_no_timeout_however_slow_its_handler_is(self):
        """Fails (with RequestTimeout) if the timeout goes on after the response."""
        passed = []

        def step(*progress):
            client.ping()  # whose response comes after that of the call
            passed.append(2 * PATIENCE)

        with mock.patch.object(
                mcp_min, "monotonic", lambda: time.monotonic() + sum(passed)), Client(
                fake(call="send(method='notifications/progress', params={'progress': 1,"
                          " 'progressToken': token}); text('done')")) as client:
            result = client.call_tool("f", timeout=PATIENCE, progress_handler=step)
        self.assertEqual((result.text, len(passed)), ("done", 1))

    def test_the_earlier_of_two_deadlines_is_kept(self):
        """Fails if the deadline of one call is that of another, too."""
        with Client(lab()) as client:
            first = client.submit_tool("wait", timeout=2 * PATIENCE)
            second = client.submit_tool("wait", timeout=0.2)
            self.assertIsInstance(second.exception(PATIENCE), RequestTimeout)
            self.assertTrue(first.cancel())

    # -- results and errors ------------------------------------------------------------

    @needs("asyncio")
    @UNIX
    def test_who_sends_waits_while_a_client_does_not_read(self):
        """Fails if the queue grows without limit; if a thread waits for each coroutine;
        or (`hello` gets no result) if the event loop waits, which all share."""
        sent, before = collections.Counter(), threading.active_count()

        def send(ctx, times):
            for n in range(times):
                ctx.info("x" * 50000)
                ctx.report_progress(n)
                sent[ctx.request_id] += 1

        def talk(ctx: Context) -> str:
            send(ctx, 200)
            return "said"

        async def talk_async(ctx: Context) -> str:
            send(ctx, 3)
            await ctx.info("the last")  # waits for room
            return "y" * 20000

        async def hello() -> str:
            return "hello"

        server = server_of(talk, talk_async, hello, drain_seconds=PATIENCE)
        with mock.patch.multiple(mcp_min, HIGH_WATER_BYTES=1 << 18, MAX_UNREAD_BYTES=(
                6 << 20)), wire(server, unread=True) as client:
            client.say('"first" initialize')
            for n in range(31):
                name = "talk_async" if n else "talk"
                client.say('%d tools/call {"name": "%s", "_meta": '
                           '{"progressToken": %d}}' % (n, name, n))
            wait_until(lambda: [sent[n] for n in range(1, 31)] == [3] * 30)
            play(server, """
                > 1 call hello   < 1 = "hello"
                """, era="legacy")
            self.assertLess(sent[0], 200)
            workers = [thread for thread in threading.enumerate()
                       if thread.name == "mcp worker"]
            self.assertLess(threading.active_count() - before - len(workers), 10)
            ids = {received.get("id") for received in client.hang_up()}
            self.assertLessEqual({"first", *range(31)}, ids)

    def test_an_unusable_error_or_result_gets_an_error_response(self):
        """Fails (the session ends) if its exception leaves the code that responds."""
        class ErrorWithoutCode(McpError):
            __init__ = Exception.__init__

        class BrokenMapping(dict):
            def items(self):
                raise KeyError("no items")

        def error():
            raise ErrorWithoutCode

        server = server_of(error)
        server.tool(name="result")(
            lambda: mcp_min.ToolResult("x", meta=BrokenMapping(a=1)))
        with quiet() as stderr:
            play(server, """
                > 1 call error     < 1 -32603
                > 2 call result    < 2 -32603 "The result is not JSON"
                """, era="legacy")
        self.assertIn("no items", stderr.getvalue())

    # -- progress ----------------------------------------------------------------------

    @clause("2025-11-25/basic/utilities/progress",
            "Progress tokens **MUST** be a string or integer value")
    @clause("2026-07-28/basic/patterns/progress",
            "The `progress` value **MUST** increase with each notification")
    @both_eras
    def test_progress_increases_and_needs_a_token(self, era):
        def work(ctx: Context):
            ctx.report_progress(0.5, 4, "half way")
            for progress in 1, 1, 0, -1, 2, 2.0, 2.25, float("nan"), 3:
                ctx.report_progress(progress)

        server = server_of(work)
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
        def work(ctx: Context):
            steps, reported = iter(range(1, 300)), threading.Semaphore(0)

            def report():
                for progress in steps:
                    with contextlib.suppress(Cancelled):
                        ctx.report_progress(progress)
                    reported.release()

            for _ in range(3):
                threading.Thread(target=report).start()
            for _ in range(30):
                reported.acquire()

        with switch_threads_often(), wire(server_of(work)) as client:
            play(client, "> handshake")
            for n in range(20):
                client.say('%d tools/call {"name": "work", '
                           '"_meta": {"progressToken": %d}}' % (n, n))
                steps = [one["params"] for one in iter(
                    client.recv, message('%d {"content": [], "isError": false}' % n))]
                progress = sorted({step["progress"] for step in steps})
                self.assertEqual(steps, [
                    {"progressToken": n, "progress": step} for step in progress])

    @both_eras
    def test_track_reports_progress_of_its_items_and_stops_when_cancelled(self, era):
        server = lab()

        @server.tool
        def copy(ctx: Context):
            assert ctx.wait(0) is None and [*ctx.track(iter("a"))] == ["a"]
            assert [*ctx.track("ab", message="copying")] == ["a", "b"]
            ctx.report_progress = mock.Mock()
            assert [*ctx.track("a" * 1000)] and ctx.report_progress.call_count < 500

        @server.tool
        def forever(ctx: Context):
            try:
                for _ in ctx.track(iter(int, 1)):
                    server.began.put(1)
            finally:
                server.cancelled.put(1)

        play(server, """
            > 1 tools/call {"name": "copy", "_meta": {"progressToken": 1}}
            < notifications/progress {"progress": 1}
            < notifications/progress {"progress": 2, "total": 2, "message": "copying"}
            < 1 {"isError": false}
            > 2 call forever           ! began
            > notifications/cancelled {"requestId": 2}   ! cancelled
            """, era=era, **server.steps)


@needs("server")
class Test7Amounts(unittest.TestCase):
    """What one end can make the other end keep in memory is limited."""

    @needs("client")
    def test_marks_within_strings_are_not_charged(self):
        """Fails (from the second call on) if a text of commas counts as a list."""
        server, go = Server("s"), gate("go")

        @server.tool
        def hold(text: str) -> int:
            go.wait()
            return len(text)

        text = "1,2,3," * 170000
        with Client(server) as client:
            calls = [client.submit_tool("hold", {"text": text}) for _ in range(5)]
            go.set()
            self.assertEqual([call.result(PATIENCE).data for call in calls],
                             [len(text)] * 5)

    def test_all_of_a_finite_stream_is_answered(self):
        """Also what would be refused if a client had sent it.  Fails if the reader does
        not wait for room, or if the end cancels the handlers after `drain_seconds`."""
        server = Server("s", drain_seconds=0.0)
        server.tool(lambda: time.sleep(0.05), name="nap")
        lines = raw("0 initialize") + b"".join(
            raw(f"{n} call nap") for n in range(1, 151))
        with tempfile.TemporaryFile() as file, mock.patch.object(
                mcp_min, "MAX_REQUESTS", 100):
            file.write(lines)
            file.seek(0)
            for reader in io.BytesIO(lines), file:
                writer = io.BytesIO()
                server.serve(reader, writer)
                self.assertEqual(writer.getvalue().count(b'"isError":false'), 150)

    def test_each_message_of_a_batch_is_charged_the_whole_line(self):
        """At most 100 are taken.  Fails (all are) if each is charged its share: one may
        be as large as the line."""
        server = lab(max_workers=2)
        call = '%d call hold {"n": 1}'
        with wire(server) as client:
            play(client, "> handshake 2025-03-26")
            client.send([{**message(call % n), "x": "x" * 60000} for n in range(100)])
            client.fence()
            server.go.set()
            errors = sum("error" in response for response in client.recv())
            self.assertIn(errors, range(90, 100))
            client.send([message(call % n) for n in range(100)])
            self.assertTrue(all("result" in response for response in client.recv()))
            client.send([message("%d ping" % n) for n in range(101)])
            play(client, '< null -32600 "over 100 messages"')

    def test_an_answer_is_taken_though_1000_requests_are_in_flight(self):
        """Fails (it is refused) if that limit counts for answers."""
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("?", bool).data)

        with mock.patch.object(mcp_min, "MAX_REQUESTS", 2):
            play(server_of(ask), """
                > 1 call ask      < $a elicitation/create {}
                > 2 call ask      < $b elicitation/create {}
                > 3 call ask      < 3 -32603 "Over 2 requests"
                > $a {"action": "accept", "content": {"value": true}}   < 1 = "True"
                > $b {"action": "accept", "content": {"value": true}}   < 2 = "True"
                """, era="legacy")

    def test_over_1000_requests_at_once_are_refused(self):
        """They need few threads; a ping and a cancellation are still handled."""
        server, before = lab(max_workers=2), threading.active_count()
        call = '%d call hold {"n": %d}'
        with wire(server) as client:
            play(client, "> handshake")
            client.send(b"".join(raw(call % (n, n)) for n in range(1001)))
            refused = client.recv()  # the last, unless the thread that read it was slow
            self.assertIn("Over 1000 requests", refused["error"]["message"])
            client.say('notifications/cancelled {"requestId": 5}')
            client.say(call % (1001, 1001))
            client.fence()
            self.assertLess(threading.active_count() - before, 10)
            server.go.set()
            results = [client.recv() for _ in range(1000)]
        texts = {one["id"]: one["result"]["content"][0]["text"] for one in results}
        self.assertEqual(texts, {
            n: str(n) for n in {*range(1002)} - {5, refused["id"]}})

    def test_requests_of_many_bytes_at_once_are_refused(self):
        """There is room for one, however large.  Fails if only their text counts, or
        each character of it as one byte, or not what the client has said of itself."""
        call = '%d call hold {"n": 1} {"_meta": {"x": %s}}'
        for held, name in (
                (["x" * 900] * 4 + ["x" * 20000], ""), ([[{}] * 250], ""),
                (["x" * 3000 + "\N{GRINNING FACE}"], ""), (["x"], "x" * 12000)):
            server = lab()
            with wire(server) as client, mock.patch.object(
                    mcp_min, "MAX_BACKLOG_BYTES", 10000):
                play(client, "> handshake")
                client.ask('"hello" initialize {"clientInfo": {"name": "%s"}}' % name)
                for n, value in enumerate(held):
                    client.say(call % (n, json.dumps(value)))
                client.say(call % (5, "0"))
                play(client, '< 5 -32603 "10000 bytes of them"')
                server.go.set()
                ids = {client.recv()["id"] for _ in held}
                self.assertEqual(ids, {*range(len(held))})
                self.assertIn("result", client.ask(call % (9, '"%s"' % ("x" * 20000))))

    def test_answers_of_many_bytes_are_refused_while_others_are_held(self):
        """Fails (the second is kept, too) if an answer is charged to no request."""
        def ask(ctx: Context) -> str:
            ctx.elicit("first?", bool)
            return str(ctx.elicit("second?", bool).data)

        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 10000):
            play(server_of(ask), """
                > 1 call ask      < $a elicitation/create {"message": "first?"}
                > 2 call ask      < $c elicitation/create {"message": "first?"}
                > $a {"action": "accept", "content": {"value": true, "x": "$large"}}
                < $b elicitation/create {"message": "second?"}
                > $c {"action": "accept", "content": {"value": true, "x": "$large"}}
                < 2 -32603 "or 10000 bytes of others are in flight"
                > $b {"action": "accept", "content": {"value": true}}   < 1 = "True"
                > 3 call ask      < $d elicitation/create {"message": "first?"}
                > $d {"action": "accept", "content": {"value": true, "x": "$large"}}
                < $e elicitation/create {"message": "second?"}
                > $e {"action": "accept", "content": {"value": true}}   < 3 = "True"
                """, era="legacy", large="x" * 20000)

    def test_of_the_answers_to_a_request_the_largest_is_charged(self):
        """A handler that asks often keeps few.  Fails (the second call is refused) if
        all are charged while it runs."""
        def ask(ctx: Context) -> str:
            ctx.elicit("first?", bool)
            ctx.elicit("second?", bool)
            return str(ctx.elicit("third?", bool).data)

        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 10000):
            play(server_of(ask), """
                > 1 call ask      < $a elicitation/create {"message": "first?"}
                > $a {"action": "accept", "content": {"value": true, "x": "$large"}}
                < $b elicitation/create {"message": "second?"}
                > $b {"action": "accept", "content": {"value": true, "x": "$large"}}
                < $c elicitation/create {"message": "third?"}
                > 2 call ask      < $d elicitation/create {"message": "first?"}
                > $c {"action": "accept", "content": {"value": true}}   < 1 = "True"
                > notifications/cancelled {"requestId": 2}
                < notifications/cancelled {"requestId": "$d"}
                """, era="legacy", large="x" * 5000)

    def test_an_answer_that_comes_after_the_response_is_refused(self):
        """Fails (it is taken, and charged to nobody) if only the room is looked at."""
        def ask(ctx: Context) -> str:
            thread = threading.Thread(target=lambda: errors.append(
                raised(ctx.elicit, "?", bool)))
            threads.append(thread)
            thread.start()
            return asked.wait() and "x"

        threads, errors, asked = [], [], gate("asked")
        play(server_of(ask), """
            > 1 call ask    < $a elicitation/create {}
            ! asked         < 1 {}
            > $a {"action": "accept", "content": {"value": true}}
            ! refused
            """, era="legacy", asked=asked.set,
             refused=lambda: wait_until(lambda: errors))
        self.assertIn("the request has been answered", str(errors[0]))
        threads[0].join(PATIENCE)

    @unittest.skipIf(sys.implementation.name == "pypy", "it counts no references")
    @needs("asyncio")
    def test_a_request_is_freed_when_it_has_been_answered(self):
        """Fails (it waits for the collector of cycles) if contexts keep each other."""
        def plain(x: str, ctx: Context) -> str:
            kept.append(weakref.ref(ctx))
            return "x"

        async def later(x: str, ctx: AsyncContext) -> str:
            kept.append(weakref.ref(ctx))
            return "x"

        kept = []
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        play(server_of(plain, later), """
            > 1 call plain {"x": "y"}   < 1 {}
            > 2 call later {"x": "y"}   < 2 {}
            """, era="legacy")
        wait_until(lambda: [one() for one in kept] == [None] * 2, "both are freed")

    def test_a_line_being_written_does_not_count_as_unread(self):
        """Fails (the connection is closed) if it counts like what waits behind it."""
        def write(outbox, data):
            if len(data) > 100_000:
                begun.set()
            really_write(outbox, data)

        begun, really_write = threading.Event(), mcp_min.Outbox._write
        server = server_of(drain_seconds=PATIENCE)
        server.add_tool(lambda: "x" * 300_000, name="large")
        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 100_000), (
                mock.patch.object(mcp_min.Outbox, "_write", write)), (
                wire(server, unread=True)) as client:
            client.say("0 initialize")
            client.say("1 call large")
            begun.wait(PATIENCE)
            client.say("2 ping")
            client.say("3 ping")
            ids = {received.get("id") for received in client.hang_up()}
        self.assertEqual(ids, {0, 1, 2, 3})

    def test_an_id_or_a_token_over_64_kib_is_invalid(self):
        play(lab(), """
            > {"id": "$fits", "method": "ping"}   < $fits {}
            > {"id": "$long", "method": "ping"}
            < null -32600 "at most 65536 characters"
            > 1 call report {"times": 1} {"_meta": {"progressToken": "$long"}}
            < 1 {"isError": false}
            """, era="legacy", fits="i" * 65536, long="i" * 65537)

    @needs("stateless", "more")
    def test_subscriptions_are_charged_until_they_end(self):
        """Also the values of the URIs of a stream.  Fails (nothing is refused) if a
        subscription or a stream is free, or (the last is refused) if one that has ended
        is still charged."""
        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 9000):
            play(zoo(), """
                > 1 resources/subscribe {"uri": "$uri"}      < 1 {}
                > 2 modern subscriptions/listen {"notifications": "$filter"}
                < 2 -32603 "9000 bytes of them"
                > 3 resources/unsubscribe {"uri": "$uri"}    < 3 {}
                > 4 modern subscriptions/listen {"notifications": "$filter"}
                < notifications/subscriptions/acknowledged
                > 5 resources/subscribe {"uri": "$uri"}
                < 5 -32603 "9000 bytes of them"
                > notifications/cancelled {"requestId": 4}
                > 6 resources/subscribe {"uri": "$uri"}      < 6 {}
                """, era="legacy", uri="zoo://a" + 9000 * "x",
                 filter={"resourceSubscriptions": ["zoo://b" + 9000 * "x"]})
            play(zoo(), """
                > 1 subscriptions/listen {"notifications": "$filter"}
                < notifications/subscriptions/acknowledged
                > 2 subscriptions/listen {"notifications": "$filter"}
                < 2 -32603 "9000 bytes of them"
                > notifications/cancelled {"requestId": 1}
                """, era="modern", filter={
                    "resourceSubscriptions": ["zoo://%d" % n for n in range(9)]})

    def test_the_connection_of_a_client_that_never_reads_is_closed(self):
        """Fails (the server keeps all results of pings) if there is no limit."""
        client_reads, server_writes = os.pipe()
        before = set(threading.enumerate())
        ping = raw('"%s" ping' % ("i" * 60000))
        reader = mock.Mock(spec=["read1"], read1=lambda size: ping)  # for ever
        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 1 << 20), (
                open(server_writes, "wb", 0)) as writer, quiet():
            self.assertEqual(together(lambda: zoo().serve(reader, writer)), [None])
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
        with open(reads, "rb") as reader, open(writes, "wb", 0) as sender, (
                quiet()) as stderr:
            sender.write(raw('1 modern call echo'))
            self.assertEqual(together(lambda: zoo().serve(reader, writer)), [None])
            wait_until(lambda: "RuntimeError: no" in stderr.getvalue())

    @needs("inside")
    def test_an_http_request_closes_the_connection(self):
        """A web page must not call tools.  Fails if the body is still handled, or if
        more is read: the descriptor of a stream that was closed may be used again."""
        happened, before, written = [], set(threading.enumerate()), io.BytesIO()
        server = Server("s", max_message_bytes=1000)
        server.tool(lambda: happened.append("called"), name="run")
        call = raw('1 modern call run')
        for path in b"", b"x" * 2000:
            sent = b"POST /%s HTTP/1.1\r\nHost: x\r\n\r\n" % path + call
            server.serve(mock.Mock(spec=["read1"], read1=lambda size, sent=sent: (
                happened.append("read") or sent)), written)
            wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")
        self.assertEqual((happened, written.getvalue()), (["read"] * 2, b""))

    SMALL_LIMITS = """
        mcp_min.MAX_UNREAD_BYTES = mcp_min.MAX_BACKLOG_BYTES = 1 << 20
        wait = lambda *params: time.sleep(60)
        """
    FLOODED_SERVER = SMALL_LIMITS + """
        import asyncio  # takes 10 MB
        server = Server("s", max_workers=4)
        server.tool(lambda: "x" * 5000, name="echo")
        server.tool(lambda text: wait(), name="deaf")

        @server.tool
        async def wait_async(text: str, ctx: Context):
            await ctx.wait(60)

        server.run()
        """
    FLOODED_CLIENT = SMALL_LIMITS + """
        mcp_min.Client(
            (os.fdopen(0, "rb"), os.fdopen(1, "wb", 0)), mode="2025-11-25",
            elicitation_handler=wait, message_handler=wait).connect()
        wait()
        """
    INITIALIZED = """1 {"protocolVersion": "2025-11-25", "capabilities": {},
        "serverInfo": {"name": "s"}}"""
    DEAF = '777 call deaf {"text": "BIG"}'
    CANCEL = 'notifications/cancelled {"requestId": 777}'
    TO_SERVER = (  # lines: 777 is an id, BIG a long text
        ['"777 BIG" ping'], ['777 call echo'],
        [DEAF], [DEAF, CANCEL], [DEAF.replace("deaf", "wait_async"), CANCEL],
        ['notifications/cancelled {"requestId": "BIG"}'])
    TO_CLIENT = (
        ["""777 elicitation/create {"message": "BIG",
            "requestedSchema": {"type": "object", "properties": {}}}"""],
        ['notifications/tools/list_changed {"x": "BIG"}'],
        ["""notifications/progress {"progressToken": 1, "progress": 1,
            "message": "BIG"}"""])

    @unittest.skipUnless(
        sys.platform == "linux" and sys.implementation.name == "cpython",
        "reads /proc; PyPy frees memory later")
    def test_a_flood_of_messages_does_not_fill_the_memory(self):
        """From an end that reads nothing.  Fails (with 40 MB more) if they are kept, or
        if a cancelled call is charged only until then."""
        def check(lines, code, opening):
            def peak():  # in kB; none if the process has ended
                status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
                return int(*re.findall(r"VmHWM:\s+(\d+)", status))

            def flood():  # 10,000 times, or up to 40 MB
                piece = b"".join(map(raw, lines)).replace(b"BIG", b"x" * 60000)
                with contextlib.suppress(OSError):
                    for n in range(min(10000, 40_000_000 // len(piece))):
                        child.send(piece.replace(b"777", b"%d" % n))

            reads, writes = os.pipe()
            with open(reads, "rb", 0) as reader, process(
                    code, stdout=writes, stderr=subprocess.DEVNULL,
                    env={**os.environ, "MALLOC_ARENA_MAX": "1"}) as child:
                os.close(writes)
                child.say(opening)
                reader.readline()
                before, sender = peak(), threading.Thread(target=flood)
                sender.start()
                sender.join(PATIENCE)
                growth = peak() - before
                child.child.kill()
                sender.join()
            self.assertLess(growth, 26000 if WITH_GIL else 36000)

        run_together(self, check, [
            *((lines, self.FLOODED_SERVER, "0 initialize") for lines in self.TO_SERVER),
            *((lines, self.FLOODED_CLIENT, self.INITIALIZED)
              for lines in self.TO_CLIENT)])

    def test_a_question_keeps_its_timeout_while_nobody_reads(self):
        """Fails (it does not come back) if it blocks in the full pipe."""
        def ask(ctx: Context) -> str:
            errors.put(raised(ctx.elicit, "x" * 1_000_000, bool, timeout=0.1))
            return "asked"

        errors = queue.Queue()
        with wire(server_of(ask), unread=True) as client:
            client.say('0 initialize {"capabilities": {"elicitation": {}}}')
            client.say("1 call ask")
            self.assertIsInstance(errors.get(timeout=PATIENCE), RequestTimeout)
            client.hang_up()

    def test_responses_that_nobody_reads_close_the_connection(self):
        """Fails (`serve` does not return) if handlers that wait for room miss that."""
        server, (client_reads, server_writes) = Server("s"), os.pipe()
        server.tool(lambda: "x" * 100000, name="big")
        lines = iter([raw("0 initialize"), *[
            raw('%d call big' % n) for n in range(1, 60)], *[
            raw('"%d%s" ping' % (n, "x" * 60000)) for n in range(60)]])
        gone_on = threading.Event()

        def read(size):
            line = next(lines, None)
            if line is None:
                gone_on.wait(PATIENCE)
            return line or b""

        with mock.patch.multiple(mcp_min, MAX_UNREAD_BYTES=1 << 20,
                                 HIGH_WATER_BYTES=1 << 16), (
                open(server_writes, "wb", 0)) as writer:
            reader = mock.Mock(spec=["read1", "fileno"], read1=read,
                               fileno=lambda: client_reads)
            with quiet() as stderr:
                self.assertEqual(together(lambda: server.serve(reader, writer)), [None])
            gone_on.set()
            os.close(client_reads)
        self.assertIn("the client has left over", stderr.getvalue())

    def test_a_writer_thread_that_gets_no_time_does_not_lift_the_limit(self):
        """Fails (the queue grows to the end of the input) if only a thread that finds
        another one writing looks at what is unread."""
        reads, writes = os.pipe()
        lines = iter([raw("0 initialize"), *[
            raw('"%d%s" ping' % (n, "x" * 60000)) for n in range(100)]])
        reader = mock.Mock(spec=["read1"], read1=lambda size: next(lines, b""))
        with open(reads, "rb", 0), open(writes, "wb", 0) as writer, mock.patch.object(
                mcp_min, "MAX_UNREAD_BYTES", 1 << 20), mock.patch.object(
                mcp_min.Outbox, "_write_later", lambda outbox: None), (
                quiet()) as stderr:
            Server("s", drain_seconds=0).serve(reader, writer)
        self.assertIn("the client has left over", stderr.getvalue())

    def test_a_client_that_reads_slowly_gets_every_result(self):
        """Fails (the connection is closed) if handlers queue results without limit."""
        def big() -> str:
            at_once.wait()
            return "x" * 100000

        at_once = threading.Barrier(41)
        with mock.patch.multiple(mcp_min, MAX_UNREAD_BYTES=1 << 20,
                                 HIGH_WATER_BYTES=1 << 16), wire(
                server_of(big, drain_seconds=PATIENCE), unread=True) as client:
            client.say("0 initialize")
            for n in range(1, 41):
                client.say(f"{n} call big")
            at_once.wait(PATIENCE)
            time.sleep(0.1)  # for all to have a result
            ids = {received.get("id") for received in client.hang_up()}
        self.assertEqual(ids, {*range(41)})


# ======================================================================================
# 8  Stdio: a server in a real process
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
> 1 modern call add {"a": 2, "b": 3}   < 1 = "5"
"""


@needs("server")
class Test8Stdio(unittest.TestCase):
    """The descriptors, the signals and the end of a server process."""

    def ended(self, server, status=0):
        """The process exits with ``status`` and has written nothing to stderr."""
        self.assertEqual(server.exit(), status, server.stderr)
        self.assertEqual(server.stderr, "")

    # -- the end of input --------------------------------------------------------------

    @needs("stateless")
    @clause("2026-07-28/basic/transports/stdio",
            "Servers **SHOULD** exit promptly when their standard input is closed")
    def test_the_end_of_input_ends_a_server_when_all_calls_are_answered(self):
        with process(RUN, stdin=subprocess.DEVNULL) as server:
            self.ended(server)
        with process(program(drain_seconds=PATIENCE)) as server:
            server.say('1 modern call nap {"seconds": 0.3}')
            server.send(PING.replace(b"1", b"2"))   # without a newline
            play(server, """
                > EOF
                <* 1 = "slept"
                <* 2 {}
                """)
            self.ended(server)

    def test_no_response_is_lost_at_the_end_of_input(self):
        """All handlers return at once, while the input ends.  Fails if the thread that
        closes the connection does not write what was queued while another wrote."""
        meeting = threading.Barrier(6)

        def meet(n: int) -> str:
            meeting.wait(PATIENCE)
            return "x" * 20000 * (n % 2)

        server = server_of(meet, drain_seconds=PATIENCE)
        for _ in range(40):
            with wire(server) as client:
                for n in range(6):
                    client.say('%d modern call meet {"n": %d}' % (n, n))
                self.assertEqual({response["id"] for response in client.hang_up()},
                                 set(range(6)))

    @UNIX
    def test_what_is_not_written_is_told(self):
        """Where a client hangs up, and does not read either."""
        reads, writes = os.pipe()
        with open(reads, "rb"), process(program("""
                server.tool(lambda: "x" * 300_000, name="large")
                """, drain_seconds=0.5), stdout=writes) as server:
            os.close(writes)
            server.say("0 initialize")
            server.say("1 call large")
            server.close_sending()
            self.assertEqual(server.exit(), 0)
            self.assertRegex(server.stderr, r" \d+ bytes were not written; ")

    @needs("asyncio")
    def test_stuck_calls_do_not_prevent_the_end(self):
        """Nor does the process end while cancelled handlers clean up."""
        with process(program("""
                @server.tool
                async def forever():
                    import asyncio
                    await asyncio.sleep(3600)

                @server.tool
                def wait(ctx: Context):
                    try:
                        ctx.info("begun")
                        ctx.wait(3600)
                    finally:
                        time.sleep(0.05)
                        print("cleaned up", file=sys.stderr)
                """, drain_seconds=0.01)) as server:
            play(server, """
                > handshake
                > 1 call nap {"seconds": 3600}
                > 2 call forever
                > 3 call wait   < notifications/message
                < fence
                > EOF
                """)
            self.assertEqual(server.exit(), 0)
            self.assertRegex(server.stderr, "^cleaned up\nmcp_min: .* 3 of its "
                             "requests were cancelled; .*drain_seconds=.*\n$")

    @UNIX
    def test_the_last_line_is_whole_or_absent(self):
        with process(RUN) as server:
            server.send(b"".join(raw("%d ping" % n) for n in range(2000)))
            server.recv()
            os.kill(server.pid, signal.SIGTERM)
            server.hang_up()
            self.ended(server, 143)

    # -- signals and broken pipes ------------------------------------------------------

    STAY = """
        @server.tool
        def stay(ctx: Context):
            ctx.info("here")
            try:
                time.sleep(3600)
            except Exception:
                pass
        """
    IN_A_HANDLER = """
        > handshake
        > 1 call stay   < notifications/message
        """
    CANCELLED = IN_A_HANDLER + '> notifications/cancelled {"requestId": 1}'
    OPEN_STREAM = """
        > 1 modern subscriptions/listen {"notifications": {"toolsListChanged": true}}
        < notifications/subscriptions/acknowledged
        """
    FINAL = '< 1 {"resultType": "complete", "_meta": {"@subscriptionId": 1}}'

    @needs("stateless", "inside")
    @UNIX
    @clause("2026-07-28/basic/patterns/subscriptions", "it **SHOULD** respond to the "
            "original `subscriptions/listen` request with a completion result")
    def test_one_ctrl_c_or_sigterm_ends_the_server_quietly(self):
        """At the same time, because one just before the main thread began to wait was
        sometimes lost.  Fails if one passes for an error of a cancelled handler."""
        def end_by(label, threaded, before, after, number):
            with process(program(self.STAY, f"server.run({threaded=})")) as server:
                play(server, "%s\n< fence\n! end\n%s\n> EOF" % (before, after),
                     end=lambda: os.kill(server.pid, number))
                self.ended(server, 128 + number)

        run_together(self, end_by, [(*row, number) for row in (
            ("idle", True, "", ""), ("in a handler", True, self.IN_A_HANDLER, ""),
            ("a stream is open", True, self.OPEN_STREAM, self.FINAL),
            ("unthreaded", False, self.IN_A_HANDLER, ""),
            ("unthreaded, the call was cancelled", False, self.CANCELLED, ""),
        ) for number in (signal.SIGINT, signal.SIGTERM)])

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

    def test_a_closed_output_ends_the_server_quietly(self):
        reader, writer = os.pipe()
        with process(RUN, stdout=writer) as server:
            os.close(writer)
            os.close(reader)
            with contextlib.suppress(BrokenPipeError):
                for _ in range(3):
                    server.send(PING + b"\n")
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

    @needs("stateless")
    @UNIX
    def test_a_full_or_closed_stderr_blocks_and_fails_no_other_call(self):
        """Fails (by hanging) if a line of the trace or a traceback must be written."""
        unread, stderr = os.pipe()
        call = '%d modern call %s {"text": "%s"}'
        for options in {"stderr": stderr}, {"preexec_fn": lambda: os.close(2)}:
            with self.subTest(options=options), process(
                    self.USES_STDERR, "-S", **options,
                    env=dict(os.environ, MCP_MIN_TRACE="stderr")) as server:
                failed = server.ask(call % (1, "fail", 100_000 * "x"))
                self.assertIs(failed["result"]["isError"], True)
                server.say(call % (2, "chatter", "x"))   # may wait for ever
                server.say(call % (3, "echo", "x"))
                self.assertIn(3, [response["id"] for response in server.hang_up()])
                self.assertEqual(server.exit(), 0)
        os.close(stderr)
        os.close(unread)

    @needs("stateless")
    def test_a_stderr_that_raises_anything_ends_no_connection(self):
        """As what Qt, IDA and Blender put in its place.  Fails (the second call times
        out) if whoever reports does not survive it."""
        class Deleted:
            def write(self, text):
                raise RuntimeError("the C++ object was deleted")

            fileno = flush = write

        def fail():
            raise ValueError("a bug")

        with contextlib.redirect_stderr(Deleted()), Client(server_of(fail)) as client:
            for _ in range(3):
                result = client.call_tool("fail", raise_on_error=False)
                self.assertIn("a bug", result.text)
        with process(program("""
                sys.stderr = type("Deleted", (), {"write": lambda *_: 1 / 0})()
                server.tool(lambda: 1 / 0, name="fail")
                """), "-S") as server:
            play(server, """
                > 1 modern acme/none    < 1 -32601
                > 2 modern call fail    < 2 {"isError": true}
                > 3 modern call fail    < 3 {"isError": true}
                """)

    # -- descriptors, interpreters, locales --------------------------------------------

    @needs("stateless")
    @UNIX
    def test_output_of_handlers_and_child_processes_goes_to_stderr(self):
        with process(program("""
                import subprocess

                @server.tool
                def misbehave() -> str:
                    sys.stdout.write("written")
                    sys.stdout.flush()
                    os.write(1, b"through the descriptor")
                    subprocess.run("echo from a child; cat", shell=True)
                    subprocess.run(["cat"], close_fds=False)
                    read = sys.stdin.read(), os.read(0, 1)
                    sys.stdout.close()
                    os.close(1)
                    os.close(0)
                    os.open(os.devnull, os.O_RDONLY)
                    sys.stdin = sys.stdout = sys.__stdout__ = None
                    os.chdir("/")
                    return repr(read)
                """)) as server:
            play(server, """
                > 1 modern call misbehave   < 1 = "('', b'')"
                """ + CALL_ADD + "> EOF")
            self.assertEqual(server.exit(), 0)
            for text in "written", "through the descriptor", "from a child":
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
            play(server, "> 1 ping\n< 1 {}\n> EOF\n< after/exit")
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr, "a banner\na child\n")

    @needs("stateless", "inside")
    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_tool_may_fork(self):
        """Fails if a child that returns from the handler waits for a connection that it
        has no thread to read, or if one that stays holds a pipe open."""
        with process(program("""
                import warnings
                warnings.simplefilter("ignore")    # 3.12: a fork beside threads

                @server.tool
                def fork(seconds: float) -> int:
                    pid = os.fork()
                    if not pid and seconds:
                        time.sleep(seconds)
                        os._exit(0)
                    return pid

                @server.tool
                async def fork_async() -> int:
                    return os.fork()
                """, "server.run(threaded=False)")) as server:
            pids = play(server, """
                > 0 modern call fork_async
                < 0 {"structuredContent": {"result": "$ends"}}
                > 1 modern call fork {"seconds": 0}
                < 1 {"structuredContent": {"result": "$returns"}}
                > 2 modern call fork {"seconds": 3600}
                < 2 {"structuredContent": {"result": "$stays"}}
                """)
            gone(pids["ends"])
            gone(pids["returns"])
            try:
                self.assertEqual(server.hang_up(), [])   # the stream has ended
                self.ended(server)
            finally:
                os.kill(pids["stays"], signal.SIGKILL)

    @needs("stateless")
    @UNIX
    def test_run_restores_the_descriptors_and_can_be_called_again(self):
        with process(program("""
                def run_with_a_ping(server, id):
                    reader, writer = os.pipe()
                    os.write(writer, b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}'
                             % id)
                    os.close(writer)
                    os.dup2(reader, 0)
                    os.close(reader)
                    server.run()

                server.tool(lambda: server.run(), name="same")
                server.tool(lambda: Server("another").run(), name="another")
                before = os.fstat(0)[:3], os.fstat(1)[:3]
                server.run()
                assert (os.fstat(0)[:3], os.fstat(1)[:3]) == before
                print('{"jsonrpc": "2.0", "method": "printed"}', flush=True)
                os.write(1, b'{"jsonrpc": "2.0", "method": "written"}' + bytes([10]))
                run_with_a_ping(server, 2)
                run_with_a_ping(Server("another"), 3)
                assert sys.stdin.read() == ""
                """, "")) as server:
            play(server, """
                # but not while a server runs
                > 1 modern call same      < 1 {"isError": true}
                > 2 modern call another   < 2 {"isError": true}
                """ + CALL_ADD + "> EOF\n< printed\n< written\n<= 2 {}\n<= 3 {}")
            self.assertEqual(server.exit(), 0)
            self.assertEqual(server.stderr.count("RuntimeError: "), 2)

    @needs("stateless")
    @UNIX
    def test_flags_locales_and_missing_streams_change_nothing(self):
        """Nor does it matter which thread calls `run`."""
        def serve(flags, env=(), setup="", run="server.run()"):
            with process(program(setup, run), *flags.split(),
                         env={**os.environ, **dict(env)}) as server:
                play(server, CALL_ADD + """
                    > 2 modern call echo {"text": "é日😀\\u2028"}   < 2 = "é日😀\\u2028"
                    > 3 modern call nap {"seconds": -1}           < 3 {"isError": true}
                    > EOF
                    """)
                self.assertEqual(server.exit(), 0)
                self.assertNotIn("Warning", server.stderr)

        without_streams = """
            for name in "stdin", "stdout", "stderr":
                setattr(sys, name, None)
                setattr(sys, "__%s__" % name, None)
            """
        run_together(self, serve, [
            ("-S -X utf8=0", {"PYTHONIOENCODING": "cp932", "LC_ALL": "C"}),
            ("-S -OO -B", {"PYTHONIOENCODING": "cp1252:strict", "LC_ALL": "POSIX",
                           "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
            ("-W error -X dev",),
            ("-I", (), without_streams),
            ("-I", (), without_streams,
             "server.serve(os.fdopen(0, 'rb'), os.fdopen(1, 'wb'))"),
            ("-I", (), "thread = threading.Thread(target=server.run)",
             "thread.start(); thread.join()")])

    @UNIX
    def test_a_closed_descriptor_is_an_error(self):
        for fd in 0, 1:
            with self.subTest(fd), process(program("os.close(%d)" % fd)) as server:
                self.assertEqual(server.exit(), 1)
                self.assertIn("%s is closed" % ["stdin", "stdout"][fd], server.stderr)

    # -- memory, the trace, tracebacks -------------------------------------------------

    @needs("stateless")
    @UNIX
    def test_a_line_that_is_too_long_or_too_deep_takes_no_memory(self):
        """50 MB in one line, of which 1 MB is allowed; and 1 MB of strings behind many
        brackets: fails (with 46 MB more) if these are collected."""
        with process(program("""
                import resource

                @server.tool
                def peak() -> int:
                    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                """, max_message_bytes=1 << 20)) as server:
            def peak():
                result = server.ask('1 modern call peak')["result"]
                unit = 1 if sys.platform == "darwin" else 1 << 10
                return result["structuredContent"]["result"] * unit

            before = peak()
            server.send(*[b"x" * (1 << 20)] * 50, b"\n")
            play(server, "< null -32801")
            server.send(b"[" * 201 + b'""' * 500_000 + b"\n")
            play(server, "< null -32700")
            self.assertLess(peak() - before, 20 << 20)
            server.hang_up()
            self.ended(server)

    def test_a_text_of_many_control_characters_is_escaped_once(self):
        """Fails (by hanging) if the text is gone through for each of them."""
        hidden = [char for char in map(chr, range(0xE000, 0x20000))
                  if not char.isprintable()]
        error = mcp_min.McpError(1, "".join(hidden * 3))
        self.assertTrue(str(error).isprintable())

    @needs("stateless", "trace")
    def test_control_characters_on_stderr_are_escaped(self):
        env = dict(os.environ, MCP_MIN_TRACE="stderr")
        with process(self.USES_STDERR, "-S", env=env) as server:
            server.send(b'{"x": "\x1b]0;owned\x07"}\n')
            play(server, """
                < null -32700
                > 1 modern call fail {"text": "bad \\u001b]0;owned\\u0007 news"}
                < 1 {"isError": true, "content": [{"text": "...news..."}]}
                """)
            self.assertEqual(server.exit(hang_up=True), 0)
            self.assertRegex(server.stderr, "(?s)tools/call.*Traceback")
            self.assertNotRegex(server.stderr, r"[\x00-\x09\x0b-\x1f\x7f]")

    @needs("stateless", "asyncio", "client")
    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk_under_the_trace_stops_neither_end(self):
        """Fails (an end goes on for ever, or a server is left) if closing the trace
        raises an error, or a line that cannot be written does."""
        full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n"
        client = """
            with mcp_min.Client(Server("s")) as client:
                os.write(2, client.server_info["name"].encode())
            """
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(
                os.environ, MCP_MIN_TRACE=os.path.join(folder, "trace")):
            with process(full + RUN) as server:
                play(server, CALL_ADD + "> EOF")
                self.ended(server)
            with process(full + textwrap.dedent(client)) as child:
                self.assertEqual((child.exit(), child.stderr), (0, "s"))

    @needs("stateless", "trace")
    @UNIX
    def test_a_trace_goes_only_to_a_file_of_ours_that_only_its_owner_can_read(self):
        """Fails (it hangs, or another's file is written) if what is there is not looked
        at: a FIFO, a link, a device, a file with another name."""
        with tempfile.TemporaryDirectory() as folder:
            path, fifo, link, other = [os.path.join(folder, name)
                                       for name in ("trace", "fifo", "link", "other")]
            for script in "> 1 modern tools/list\n< 1 {}", "> 1 ping\n< 1 {}":
                with mock.patch.dict(os.environ, MCP_MIN_TRACE=path):
                    play(zoo(), script)
                self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
                os.chmod(path, 0o666)
            self.assertRegex(pathlib.Path(path).read_text(),
                             r'(?s)"tools/list".*"result".*"ping"')
            os.mkfifo(fifo)
            os.symlink(os.path.join(folder, "elsewhere"), link)
            os.link(path, other)
            for path in fifo, link, other, "/dev/null":
                with mock.patch.dict(os.environ, MCP_MIN_TRACE=path), (
                        self.subTest(path)), self.assertRaises(OSError):
                    Client(zoo()).connect()
            self.assertFalse(os.path.exists(os.path.join(folder, "elsewhere")))


# ======================================================================================
# 9  Revisions: the server's part
# ======================================================================================

class Test9Handshake(unittest.TestCase):
    """The revisions in which a session begins with `initialize`."""

    @clause("2025-11-25/basic/lifecycle", "it **MUST** respond with the same version")
    @clause("2025-11-25/basic/lifecycle",
            "the server **MUST** respond with another protocol version it supports.")
    def test_the_server_agrees_to_a_known_version_and_else_offers_its_latest(self):
        unknown = "1999-01-01", "9999-99-99", MODERN, "2025-11-25 ", ""
        for asked, agreed in [*zip(LEGACY, LEGACY), *((v, LATEST) for v in unknown)]:
            with self.subTest(asked):
                play(zoo(), """
                    > 1 initialize 2025-11-25 {"protocolVersion": "$asked"}
                    < 1 {"protocolVersion": "$agreed"}
                    # the server does not wait for `initialized`
                    > 2 call echo {"text": "hi"}
                    < 2 {"content": [{"type": "text", "text": "hi"}]}
                    > notifications/initialized
                    """, asked=asked, agreed=agreed)

    def test_a_large_initialize_is_refused(self):
        """Each request in flight keeps what its client has said of itself."""
        play(Server("s"), """
            > 1 initialize 2025-11-25
            < 1 {"protocolVersion": "2025-11-25"}
            > 2 initialize 2025-11-25 {"clientInfo": {"name": "$large"}}
            < 2 -32600
            """ + """
            > 3 initialize 2025-11-25 {"clientInfo": {"name": "$half"}}
            < 3 {"protocolVersion": "2025-11-25"}
            """ * 3, large="x" * (1 << 20), half="x" * (1 << 19))

    @needs("more")
    def test_a_second_initialize_leaves_what_is_in_flight_as_it_was_agreed(self):
        """Fails (the first call has a link, which its revision has not) if both share
        what was agreed.  A bad one changes nothing; changes are told after the next
        `initialized`; batches are of the former revision."""
        server, go, ids = Server("s"), gate("go"), itertools.count()

        @server.prompt
        def first(): ...

        @server.tool
        def link(wait: bool = False):
            if wait:
                go.wait()
            return ResourceLink("x://y", "why")

        play(server, """
            > handshake 2024-11-05
            > 1 call link {"wait": true}
            > 2 initialize 2025-06-18             < 2 {"protocolVersion": "2025-06-18"}
            > {"id": 3, "method": "initialize"}   < 3 -32602
            > 4 call link   < 4 {"content": [{"type": "resource_link"}]}
            > batch 5 ping   < null -32600
            ! go
            < 1 {"content": [{"type": "text", "text": "why: x://y"}]}
            ! add
            < fence
            > notifications/initialized           < fence
            ! add
            < notifications/prompts/list_changed
            """, go=go.set, add=lambda: server.add_prompt(
                lambda: "", name="p%d" % next(ids)))

    @needs("stateless")
    @clause("2025-11-25/basic/lifecycle",
            "The initialization phase **MUST** be the first interaction")
    def test_before_a_valid_initialize_only_a_ping_gets_a_result(self):
        play(zoo(), """
            > 1 ping                                        <= 1 {}
            > 2 nope                                        < 2 -32600 "initialize"
            > 3 call echo                 < 3 -32600 "initialize"
            > 4 tools/list {"_meta": {"progressToken": 1}}  < 4 -32600 "initialize"
            > 5 server/discover                     < 5 -32602 "@protocolVersion"
            > 6 server/discover {"_meta": {}}       < 6 -32602 "@clientCapabilities"
            > {"id": 7, "method": "initialize"}             < 7 -32602 "protocolVersion"
            > 8 initialize 2025-11-25 {"clientInfo": 42}    < 8 -32602 "clientInfo"
            > notifications/initialized
            > 10 tools/list                                 < 10 -32600 "initialize"
            > 11 initialize 2025-11-25    < 11 {"protocolVersion": "2025-11-25"}
            > 12 tools/list                                 < 12 {"tools": "..."}
            """)

    @needs("stateless", "more")
    def test_initialize_and_discover_describe_the_server(self):
        icons = [{"src": "data:,x", "mimeType": "image/png", "sizes": ["any"]}]
        server = Server("s", version="1.2", title="The S", description="Does s.",
                        icons=icons, website_url="https://example.com",
                        instructions="Be kind.",
                        capabilities={"experimental": {"x": {}}})

        def register():
            server.add_tool(lambda: None, name="t")
            server.add_resource("s://{x}", lambda x: x)
            server.add_prompt(lambda: "p", name="p")
            server.completion("p", "x")(lambda value: [])

        always = {"logging": {}, "experimental": {"x": {}}}
        play(server, """
            > 1 initialize 2025-11-25
            <= 1 {"protocolVersion": "2025-11-25", "capabilities": "$before",
                "serverInfo": "$info", "instructions": "Be kind."}
            ! register
            > 2 initialize 2025-11-25   < 2 {"capabilities": "$after"}
            > 3 modern server/discover
            < 3 {"capabilities": "$after", "instructions": "Be kind.", "_meta":
                {"@serverInfo": "$info"}}
            """, register=register, before=always, after={
                **always, "completions": {}, "tools": {"listChanged": True},
                "resources": {"listChanged": True, "subscribe": True},
                "prompts": {"listChanged": True}}, info={
                    "name": "s", "version": "1.2", "title": "The S", "icons": icons,
                    "description": "Does s.", "websiteUrl": "https://example.com"})

    @needs("stateless", "more")
    @clause("2026-07-28/basic/patterns/subscriptions",
            "Notification types the server does not support are omitted.")
    def test_a_capability_that_is_switched_off_is_neither_declared_nor_served(self):
        server = Server("s", capabilities={
            "logging": False, "resources": {"subscribe": False}})
        server.resource("x://y")(lambda: "")

        @server.tool
        def talk(ctx: Context):
            ctx.info("not declared")

        play(server, """
            > 0 initialize
            <= 0 {"capabilities": {"resources": "$declared", "tools": "$declared"},
                "protocolVersion": "...", "serverInfo": "..."}
            > 1 resources/subscribe {"uri": "x://y"}    < 1 -32601
            > 2 logging/setLevel {"level": "info"}      < 2 -32601
            > 4 modern tools/call {"name": "talk", "_meta": {"@logLevel": "debug"}}
            < 4 {}
            > 3 modern subscriptions/listen {"notifications": {"moonPhase": true,
                "promptsListChanged": true, "resourcesListChanged": true,
                "resourceSubscriptions": ["x://y"]}}
            < notifications/subscriptions/acknowledged {"notifications": "$accepted"}
            ! update
            < fence
            > notifications/cancelled {"requestId": 3}
            """, declared={"listChanged": True},
             accepted={"resourcesListChanged": True},
             update=lambda: server.notify_resource_updated("x://y"))

    @clause("2025-11-25/server/utilities/completion",
            "Method not found: `-32601` (Capability not supported)")
    @both_eras
    def test_methods_of_a_capability_that_is_not_declared_are_unknown(self, era):
        play(Server("empty"), "\n".join("> 1 %s\n< 1 -32601" % call for call in (
            "tools/list", 'call x', "resources/list",
            "resources/templates/list", 'resources/read {"uri": "x://y"}',
            "prompts/list", 'prompts/get {"name": "x"}',
            ('completion/complete {"ref": {"type": "ref/prompt", "name": "x"}, '
             '"argument": {"name": "a", "value": ""}}'),
            'resources/subscribe {"uri": "x://y"}')), era=era)


@needs("stateless")
class Test9Stateless(unittest.TestCase):
    """The revision in which each request carries all that it needs."""

    @clause("2026-07-28/server/discover", "Servers **MUST** implement it.")
    @clause("2026-07-28/basic/index",
            "The `result` **MUST** include a `resultType` field")
    @needs("more")
    @clause("2026-07-28/server/utilities/caching", "`ttlMs`")
    @both_eras
    def test_results_have_their_type_and_how_long_they_may_be_cached(self, era):
        """In a session they have neither, but only the members of their own."""
        added = cached = ""
        if era == "modern":
            added = ', "resultType": "complete", "_meta": {"@serverInfo": "$info"}'
            cached = ', "ttlMs": 1500, "cacheScope": "private"'
        complete = ('completion/complete {"ref": {"type": "ref/prompt", "name": '
                    '"greet"}, "argument": {"name": "name", "value": "A"}}')
        rows = [  # (request, members of its result, hints for a cache)
            ("tools/list", '"tools": "...", "nextCursor": "$next"', cached),
            ('tools/list {"cursor": "$next"}', '"tools": "..."', cached),
            ("prompts/list", '"prompts": "..."', cached),
            ("resources/list", '"resources": "..."', cached),
            ("resources/templates/list", '"resourceTemplates": "..."', cached),
            ('resources/read {"uri": "zoo://sign"}', '"contents": "..."', cached),
            ('prompts/get {"name": "greet", "arguments": {"name": "Ada"}}',
             '"messages": "..."', ""),
            ('call echo {"text": "x"}',
             '"content": "...", "isError": false', ""),
            (complete, '"completion": "..."', "")]
        if era == "modern":
            described = '"capabilities": "...", "supportedVersions": ["2026-07-28"]'
            rows.append(("server/discover", described, cached))
        play(zoo(cache_ttl=1.5, cache_scope="private", page_size=1), "".join(
            "> 1 %s\n<= 1 {%s%s}\n" % (request, members + added, hints)
            for request, members, hints in rows), era=era,
             info={"name": "zoo", "version": "1"})

    @clause("2026-07-28/basic/versioning",
            "it **MUST** respond with an [`UnsupportedProtocolVersionError`]")
    def test_the_error_for_an_unsupported_version_lists_the_supported_versions(self):
        for version in "2099-01-01", "2025-11-25", "", "2026-07-28 ":
            play(zoo(), """
                > 1 modern tools/list {"_meta": {"@protocolVersion": "$v"}}
                < 1 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > 2 modern server/discover {"_meta": {"@protocolVersion": "$v"}}
                < 2 -32022 {"supported": ["2026-07-28"], "requested": "$v"}
                > handshake
                """, v=version)

    @clause("2026-07-28/basic/index",
            "the server **MUST** reject it with JSON-RPC error code `-32602`")
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
            > 4 modern tools/list {"_meta": {"@%s": %s}}   < 4 -32602 "@%s"
            """ % (key, value, key) for key, value in (
                ("clientCapabilities", "null"), ("protocolVersion", "null"),
                ("clientInfo", "42"), ("logLevel", '"loud"'))) + "".join("""
            > 5 tools/list {"_meta": %s}   < 5 -32602 "_meta"
            """ % meta for meta in ("7", '"x"', "[]")) + "> handshake")

    def test_methods_of_the_other_era_are_unknown(self):
        play(zoo(), "".join("""
            > 1 modern %s   < 1 -32601 {"method": "%s"}
            """ % (method, method.split()[0]) for method in (
                "initialize", "ping", 'logging/setLevel {"level": "info"}',
                'resources/subscribe {"uri": "zoo://sign"}',
                'resources/unsubscribe {"uri": "zoo://sign"}', "roots/list")) + """
            > handshake
            > 1 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            < 1 -32601
            > 2 server/discover   < 2 -32602 "@protocolVersion"
            """)

    @clause("2026-07-28/basic/versioning",
            "**MAY** serve both eras concurrently on the same endpoint or process.")
    @clause("2026-07-28/basic/index",
            "Servers **MUST NOT** rely on prior requests over the same connection")
    def test_one_connection_may_carry_requests_of_both_eras(self):
        def describe(ctx: Context) -> dict:
            return {"version": ctx.protocol_version, "client": ctx.client_info,
                    "capabilities": sorted(ctx.client_capabilities), "meta": ctx.meta}

        play(server_of(describe), """
            > 2 call describe   < 2 -32600 "initialize"
            > handshake 2025-06-18 {"capabilities": {"roots": {}}}
            > 3 modern tools/call {"name": "describe", "_meta":
                {"@clientInfo": {"name": "another", "version": "2"}}}
            < 3 {"structuredContent": {"version": "2026-07-28", "client":
                {"name": "another"}, "capabilities": ["elicitation", "roots",
                "sampling"]}}
            > 4 tools/call {"name": "describe", "_meta": {"traceparent": "00-0af7-01",
                "com.example/x": [1]}}
            <= 4 {"content": "...", "isError": false, "structuredContent": {"version":
                "2025-06-18", "client": {"name": "tester", "version": "1"},
                "capabilities": ["roots"], "meta": {"traceparent": "00-0af7-01",
                "com.example/x": [1]}}}
            > 5 modern tools/call {"name": "describe", "_meta":
                {"@clientCapabilities": {}}}
            < 5 {"structuredContent": {"capabilities": []}}
            """)

    # -- subscriptions/listen ----------------------------------------------------------

    @clause("2026-07-28/basic/patterns/subscriptions",
            "**MUST** send `notifications/subscriptions/acknowledged` as the first")
    @clause("2026-07-28/basic/patterns/subscriptions",
            "**MUST NOT** send notification types the client has not explicitly")
    @needs("more")
    def test_each_stream_gets_the_notifications_that_it_requested(self):
        """Until it is cancelled; then the server keeps no subscriber.  Looks inside."""
        server = zoo(max_workers=1)
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
            > 4 subscriptions/listen {"notifications": {"resourceSubscriptions": [1]}}
            < 4 -32602 "resourceSubscriptions"
            # its id is in use, but it holds no worker
            > 1 tools/list   < 1 -32600
            > 2 call echo {"text": "x"}   < 2 {"isError": false}
            ! tool
            < notifications/tools/list_changed {"_meta": {"@subscriptionId": 1}}
            ! prompt
            < notifications/prompts/list_changed {"_meta": {"@subscriptionId": "1"}}
            ! resource
            < fence
            ! sign
            < notifications/resources/updated {"uri": "zoo://sign", "_meta":
                {"@subscriptionId": 1}}
            > notifications/cancelled {"requestId": 1}   < fence
            ! change                                     < fence
            ! forgotten
            > 1 tools/list   < 1 {"resultType": "complete"}
            # at the end of input each stream gets its result, also one that opens then
            > 5 subscriptions/listen {"notifications": {"toolsListChanged": true}}
            > EOF
            < notifications/subscriptions/acknowledged {}
            <* 5 {"resultType": "complete"}
            <* "1" {"resultType": "complete", "_meta": {"@subscriptionId": "1"}}
            <* 3 {}
            """, era="modern", change=lambda: server.remove_tool("echo"),
             forgotten=lambda: self.assertEqual(len(server._registry.subscribers), 2),
             tool=lambda: server.add_tool(lambda: None, name="late"),
             prompt=lambda: server.add_prompt(lambda: "x", name="late"),
             resource=lambda: server.add_resource("zoo://late", lambda: "x"),
             sign=lambda: server.notify_resource_updated("zoo://sign"))
        self.assertFalse(server._registry.subscribers)

    def test_no_notification_comes_before_the_acknowledgement(self):
        """Nor after a cancellation.  Fails in some runs if it is registered before."""
        server, stop = zoo(), threading.Event()

        def change():
            while not stop.is_set():
                server.add_tool(lambda: None, name="new")
                server.remove_tool("new")

        def listen():
            try:
                for n in range(100):
                    client.say('%d modern subscriptions/listen {"notifications": '
                               '{"toolsListChanged": true}}' % n)
                    client.say('notifications/cancelled {"requestId": %d}' % n)
                    client.say('"after" ping')
                    methods = [received["method"] for received in iter(
                        client.recv, message('"after" {}'))]
                    self.assertIn("acknowledged", methods[0])
                    self.assertNotIn(methods[0], methods[1:])
            finally:
                stop.set()

        with switch_threads_often(), wire(server) as client:
            self.assertEqual(together(change, listen), [None] * 2)

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

    # -- notifications of changes ------------------------------------------------------

    @needs("more")
    def test_a_change_of_a_list_is_sent_only_if_that_was_declared(self):
        declared = {"tools": {"listChanged": True}}
        for capabilities, expected in (
                ({}, "fence"), (declared, "notifications/tools/list_changed")):
            server = Server("s", capabilities=capabilities)
            play(server, "< fence\n! change\n< " + expected, era="legacy",
                 change=lambda server=server: server.add_tool(lambda: None, name="t"))

    @needs("more")
    @clause("2025-11-25/server/resources", "notifications/resources/updated")
    def test_a_change_is_told_once_to_each_subscriber(self):
        """A session and streams of one connection, also if each has asked twice."""
        server = zoo()
        with wire(server) as other:
            play(other, "> handshake")
            play(server, """
                > 0 initialize 2025-11-25                          < 0 {}
                > 1 resources/subscribe {"uri": "zoo://sign"}      <= 1 {}
                # nothing is told before `initialized`
                ! add
                ! update
                < fence
                > notifications/initialized
                > 2 resources/subscribe {"uri": "zoo://sign"}      <= 2 {}
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
                > 5 resources/unsubscribe {"uri": "zoo://sign"}    <= 5 {}
                > 6 resources/unsubscribe {"uri": "zoo://never"}   <= 6 {}
                ! update
                < notifications/resources/updated {"_meta": {"@subscriptionId": 4}}
                < fence
                # a second handshake ends no subscription
                > 7 resources/subscribe {"uri": "zoo://sign"}      <= 7 {}
                > handshake
                > notifications/cancelled {"requestId": 4}   < fence
                ! update
                < notifications/resources/updated {"uri": "zoo://sign"}
                """, update=lambda: server.notify_resource_updated("zoo://sign"),
                 another=lambda: server.notify_resource_updated("zoo://another"),
                 add=lambda: server.add_tool(lambda: None, name="late"))
            play(other, "< notifications/tools/list_changed")
        self.assertFalse(server._registry.subscribers)

    # -- log messages ------------------------------------------------------------------

    @clause("2025-11-25/server/utilities/logging",
            "Invalid log level: `-32602` (Invalid params)")
    @clause("2026-07-28/server/utilities/logging",
            "**MUST NOT** emit `notifications/message` for a request that does not")
    def test_a_session_sets_its_log_level_and_each_stateless_request_its_own(self):
        def talk(ctx: Context):
            ctx.debug("low")
            ctx.info("middle")
            ctx.log("error", {"code": 7}, logger_name="db")
            ctx.emergency("high")

        play(server_of(talk), """
            > handshake
            > 2 logging/setLevel {"level": "debug"}     <= 2 {}
            > 3 logging/setLevel {"level": 7}           < 3 -32602 "level"
            > 4 call talk   < notifications/message {"level": "debug", "data": "low"}
            < notifications/message {"level": "info", "data": "middle"}
            < notifications/message {"level": "error", "data": {"code": 7},
                "logger": "db"}
            < notifications/message {"level": "emergency", "data": "high"}
            < 4 {}
            > 5 modern call talk      < 5 {}
            > 6 modern tools/call {"name": "talk", "_meta": {"@logLevel": "alert"}}
            < notifications/message {"level": "emergency", "data": "high"}
            < 6 {}
            """)


# ======================================================================================
# 10  Signatures
# ======================================================================================

Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})
Level = enum.IntEnum("Level", ["LOW", "HIGH"])
Movie = TypedDict("Movie", {"title": str, "year": Annotated[int, {"minimum": 1888}]})


@dataclasses.dataclass
class Spot:
    x: int
    y: int = 0


@dataclasses.dataclass
class User:
    name: Annotated[str, "Full name"]
    home: Spot
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

INTEGERS = {"type": "array", "items": {"type": "integer"}}
OPTIONAL_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
DATE = {"type": "string", "format": "date"}
COLOR = {"type": "string", "enum": ["red", "blue"]}
MOVIE = {"type": "object", "properties": {
    "title": {"type": "string"}, "year": {"type": "integer", "minimum": 1888}},
    "required": ["title", "year"], **CLOSED}


def spot_schema(**keywords):
    return {"type": "object", "properties": {"x": {"type": "integer"}, "y": {
        "type": "integer", "default": 0}}, "required": ["x"], **CLOSED, **keywords}


def refused(expected, *values):
    """Rows of JSON that is refused, because something else was expected for x."""
    return [(value, "x: expected %s, got %s" % (expected, {
        list: "an array", dict: "an object"}.get(type(value)) or json.dumps(value)))
        for value in values]


# (hint, schema, [(JSON, the argument of the handler)], [(JSON, the problem)])
HINTS = [
    (str, {"type": "string"}, [("5", "5"), ("", "")], refused("string", 5, None)),
    (int, {"type": "integer"}, [(5, 5), (5.0, 5), ("5", 5), ("-7", -7)],
     refused("integer", " 5", "5.0", 5.5, True, "1_0", "007", "null")),
    (float, {"type": "number"}, [(5, 5.0), (5.5, 5.5), ("5.5", 5.5), ("5", 5.0)],
     [*refused("number", "soon", "NaN"),
      (10 ** 400, "x: int too large to convert to float")]),
    (bool, {"type": "boolean"}, [(True, True), ("true", True), ("false", False)],
     refused("boolean", 1, "yes", "True")),
    (None, {"type": "null"}, [(None, None)], refused("null", 0)),
    (Any, {}, [("5", "5"), (None, None), ([1], [1])], []),
    (list, {"type": "array", "items": {}}, [([1, "a"], [1, "a"]), ("[1]", [1])],
     refused("array", "x", {})),
    (List[int], INTEGERS, [([1, "2", 3.0], [1, 2, 3]), ('["1"]', [1])],
     [([1, "a"], 'x[1]: expected integer, got "a"')]),
    (Iterable[int], INTEGERS, [(["1"], [1])], []),
    (dict, {"type": "object"}, [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1})],
     refused("object", [])),
    (Dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}},
     [({"a": 1, "b": "2"}, {"a": 1.0, "b": 2.0})],
     [({"a": "z"}, 'x.a: expected number, got "z"')]),
    (Mapping[str, Any], {"type": "object"}, [({"a": None}, {"a": None})], []),
    (Dict[Color, int], {"type": "object", "additionalProperties": {"type": "integer"},
                        "propertyNames": COLOR},
     [({"red": "1"}, {Color.RED: 1})],
     [({"pink": 1}, 'x.pink: expected one of "red", "blue", got "pink"')]),
    (tuple, {"type": "array", "items": {}}, [([1, "a"], (1, "a"))], []),
    (Tuple[int, str], {"type": "array", "prefixItems": [
        {"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
     [([1, "a"], (1, "a")), (["1", "a"], (1, "a"))],
     [([1], "x: expected at least 2 items, got 1"),
      ([1, 2], "x[1]: expected string, got 2")]),
    (Tuple[int, ...], INTEGERS, [([1, 2], (1, 2))], []),
    (Set[int], {**INTEGERS, "uniqueItems": True}, [([1, 2], {1, 2})],
     refused("items that differ", [1, 1.0], [1, "1"])),
    (FrozenSet[int], {**INTEGERS, "uniqueItems": True}, [([1], frozenset([1]))], []),
    (Optional[int], OPTIONAL_INTEGER, [(5, 5), (None, None), ("5", 5)],
     refused("integer or null", "a", "null")),
    (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]},
     [(5, 5), ("5", "5")], refused("integer or string", [])),
    (Union[datetime.date, str], {"anyOf": [DATE, {"type": "string"}]},
     [("2024-05-06", datetime.date(2024, 5, 6)), ("soon", "soon")], []),
    (Union[Spot, Movie], {"anyOf": [spot_schema(), MOVIE]},
     [({"x": "1", "y": 2.0}, Spot(1, 2)),
      ({"title": "M", "year": "1931"}, {"title": "M", "year": 1931})],
     [({"x": "a"}, 'x.x: expected integer, got "a"'), *refused("object", 5)]),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}, [(1, 1), ("2", 2), (1.0, 1)],
     [*refused("integer", True), *refused("one of 1, 2", 3)]),
    (Literal[1, "a", None], {"enum": [1, "a", None]}, [(None, None), (1, 1)],
     refused('one of 1, "a", null', True)),
    (Color, COLOR, [("red", Color.RED)], refused('one of "red", "blue"', "RED")),
    (Level, {"type": "integer", "enum": [1, 2]}, [("2", Level.HIGH)], []),
    (Movie, MOVIE, [({"title": "M", "year": "1931"}, {"title": "M", "year": 1931})],
     [({"title": "M", "year": 7}, "x.year: expected at least 1888, got 7"),
      ({"title": "M"}, "x.year: missing (required)"),
      ({"title": "M", "year": 1931, "yaer": 1},
       "x.yaer: unknown; known are: title, year")]),
    (TypedDict("Partial", {"n": int}, total=False), {
        "type": "object", "properties": {"n": {"type": "integer"}}, **CLOSED},
     [({}, {}), ({"n": 5}, {"n": 5})], []),
    (User, {"type": "object", "properties": {
        "name": {"type": "string", "description": "Full name"},
        "home": spot_schema(), "tags": {"type": "array", "items": {"type": "string"}},
        "born": DATE, "color": {**COLOR, "default": "red"}},
        "required": ["name", "home"], **CLOSED},
     [({"name": "Al", "home": {"x": 1}, "born": "2000-01-02", "color": "blue"},
       User("Al", Spot(1), [], datetime.date(2000, 1, 2), Color.BLUE)),
      ({"name": "Al", "home": {"x": 1}, "born": None}, User("Al", Spot(1)))],
     [({"name": "", "home": {"x": 1}}, "x: a user has a name"),
      ({"name": "Al", "home": {"x": "a"}}, 'x.home.x: expected integer, got "a"'),
      ({"name": "Al", "home": {"x": 1}, "born": "soon"},
       'x.born: expected date, got "soon"')]),
    (NewType("UserId", int), {"type": "integer"}, [(5, 5)], []),
    (Annotated[int, "How many", {"minimum": 1}],
     {"type": "integer", "description": "How many", "minimum": 1}, [(1, 1), ("2", 2)],
     refused("at least 1", 0)),
    # a keyword sees what another has converted
    (Annotated[Optional[int], {"minimum": 1}], {**OPTIONAL_INTEGER, "minimum": 1},
     [("2", 2), (None, None)], [("0", "x: expected at least 1, got 0")]),
    # what matches as it is stays, although an earlier type could have it converted
    (Union[Dict[str, int], Dict[str, str]], {"anyOf": [
        {"type": "object", "additionalProperties": {"type": kind}}
        for kind in ("integer", "string")]},
     [({"a": "1"}, {"a": "1"}), ({"a": "1", "b": 2}, {"a": 1, "b": 2})], []),
    (Annotated[Optional[Annotated[int, "inner"]], "outer"],
     {"anyOf": [{"type": "integer", "description": "inner"}, {"type": "null"}],
      "description": "outer"}, [(None, None)], []),
    (datetime.datetime, {"type": "string", "format": "date-time"},
     [("2024-05-06T07:08:09Z", datetime.datetime(
         2024, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)),
      ("2024-05-06T07:08:09.5", datetime.datetime(2024, 5, 6, 7, 8, 9, 500000))],
     refused("date-time", "noon")),
    (datetime.date, DATE, [("2024-05-06", datetime.date(2024, 5, 6))],
     [*refused("date", "2024-13-01"), *refused("string", 5)]),
    (datetime.time, {"type": "string", "format": "time"},
     [("07:08", datetime.time(7, 8))], refused("time", "25:00")),
    (uuid.UUID, {"type": "string", "format": "uuid"},
     [("0" * 31 + "1", uuid.UUID(int=1))], refused("uuid", "x")),
    (pathlib.Path, {"type": "string", "format": "path"},
     [("a/b", pathlib.Path("a/b"))], []),
    (decimal.Decimal, {"type": ["string", "number"], "format": "decimal"},
     [("0.10", decimal.Decimal("0.10")), (0.1, decimal.Decimal("0.1"))],
     [*refused("decimal", "x", "NaN", "Infinity", "1e999999"),
      *refused("string or number", None)]),
    (Annotated[decimal.Decimal, {
        "exclusiveMinimum": 0, "maximum": 100, "multipleOf": 0.01}],
     {"type": ["string", "number"], "format": "decimal", "exclusiveMinimum": 0,
      "maximum": 100, "multipleOf": 0.01},
     [("99.99", decimal.Decimal("99.99")), (100, decimal.Decimal(100))],
     [*refused("more than 0", "-5", 0), *refused("at most 100", "1000000", 1000000),
      *refused("a multiple of 0.01", "1.001", 1.001),
      ("1." + "0" * 400, f"x: expected decimal, got \"1.{'0' * 56}…")]),
    (bytes, {"type": "string", "contentEncoding": "base64"},
     [("aGk=", b"hi"), ("", b"")], refused("base64", "aGk", "!!!!")),
]


def function(hint, *default):
    """A function with one parameter x of that hint."""
    def handler(x):
        return x
    handler.__annotations__, handler.__defaults__ = {"x": hint}, default
    return handler


def parameter_schema(hint, *default):
    """The schema of one parameter with that hint."""
    return Signature(function(hint, *default)).schema["properties"]["x"]


class AnswersAll:
    """It answers every attribute, as a Mock does, and those that Mock does not."""

    def __getattr__(self, name):
        return AnswersAll()

    __str__ = lambda self: "AnswersAll"


@needs("server")
class Test10TypeHints(unittest.TestCase):
    """A hint becomes a JSON Schema, and a JSON argument becomes a Python object."""

    @needs("schemas")
    def test_each_hint_has_its_schema_and_converts_arguments(self):
        for hint, schema, accepted, problems in HINTS:
            signature = Signature(function(hint))
            with self.subTest(hint=hint):
                self.assertEqual(signature.schema, {
                    "type": "object", "properties": {"x": schema}, "required": ["x"],
                    **CLOSED})
                json.dumps(signature.schema)
            for argument, expected in accepted:
                with self.subTest(hint=hint, argument=argument):
                    value = signature.bind({"x": argument})["x"]
                    self.assertEqual((value, type(value)), (expected, type(expected)))
            for argument, problem in problems:
                with self.subTest(hint=hint, argument=argument):
                    with self.assertRaises(ValidationError) as caught:
                        signature.bind({"x": argument})
                    self.assertEqual(str(caught.exception), problem)

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
             {"anyOf": [{"type": "integer"}, {"type": "string"}]})]
        for hint, default, schema in rows:
            with self.subTest(hint=hint, default=default):
                signature = Signature(function(hint, default))
                self.assertEqual(signature.schema, {
                    "type": "object", "properties": {"x": schema}, **CLOSED})
                for strict in False, True:  # null means absent if that is the default
                    error = raised(signature.bind, {"x": None}, strict)
                    self.assertEqual(error is None, default is None or hint in (
                        Any, Optional[int]))

    @needs("schemas")
    def test_a_parameter_without_a_schema_is_refused_by_name(self):
        def by_position(x, /): ...
        def with_args(*args): ...
        def with_kwargs(**kwargs): ...
        rows = [
            (function(complex), "handler(): x: complex cannot be described"),
            (function(Tree), "x: below: Tree is recursive"),
            (function(Dict[int, str]),
             "x: the keys of a JSON object are str"),
            (function(typing.TypeVar("T")), "x: ~T cannot be described"),
            (function("Nowhere"),
             "x: 'Nowhere': name 'Nowhere' is not defined"),
            (function(Annotated[int, {"minimum": "1"}]),
             "x: minimum: expected number, got"),
            (with_args, "args: MCP passes arguments by name: no /, *args"),
            (with_kwargs, "kwargs: MCP passes arguments by name"),
            (by_position, "x: MCP passes arguments by name: no /"),
            (dict, "no signature found"),
            # fails, by endless recursion, if each attribute is followed
            (AnswersAll(), "not a function: <"),
            (mock.Mock(), "MCP passes arguments by name")]
        for fn, message in rows:
            with self.subTest(message), self.assertRaises(TypeError) as caught:
                Signature(fn)
            self.assertIn(message, str(caught.exception))

    @unittest.skipIf(sys.version_info < (3, 11), "Required is of Python 3.11")
    def test_newer_spellings(self):
        book = TypedDict("book", {"title": typing.Required[str],
                                  "year": typing.NotRequired["int"]}, total=False)
        self.assertEqual(parameter_schema(book), {"type": "object", "properties": {
            "title": {"type": "string"}, "year": {"type": "integer"}},
            "required": ["title"], **CLOSED})
        if sys.version_info >= (3, 12) and "schemas" in PARTS:  # by exec, for older versions
            names = {}
            exec("type Ids = list[int]\ntype Nest = list[Nest] | int",  # noqa: S102
                 names)
            self.assertEqual(parameter_schema(names["Ids"]), INTEGERS)
            with self.assertRaisesRegex(TypeError, "x: Nest is recursive"):
                Signature(function(names["Nest"]))

    def test_annotations_may_be_strings(self):
        optional_spot = {"anyOf": [spot_schema(), {"type": "null"}]}
        rows = [("list[int]", INTEGERS), ("'Color'", COLOR),
                ("Optional['int']", OPTIONAL_INTEGER),
                (Optional["Spot"], optional_spot),
                ("list[Spot | None]", {"type": "array", "items": optional_spot}),
                ("Annotated[Literal['a|b'], 'How']",
                 {"type": "string", "enum": ["a|b"], "description": "How"})]
        for hint, schema in rows:
            with self.subTest(hint):
                if sys.version_info < (3, 10) and " | " in str(hint):
                    with self.assertRaisesRegex(TypeError, "x: .* \\|: "):
                        parameter_schema(hint)
                else:
                    self.assertEqual(parameter_schema(hint), schema)

    @needs("schemas")
    def test_the_schema_of_a_result_describes_what_to_json_data_returns(self):
        """A result that is no object is wrapped into one; some hints have no schema."""
        def unknown() -> "pandas.DataFrame": ...  # noqa: F821
        def known() -> "Color": ...
        spot = {"type": "object", "required": ["x"], "properties": {
            "x": {"type": "integer"}, "y": {"type": "integer"}}}
        rows = [(dict, {"type": "object"}), (Spot, spot), (Dict[str, int], {
            "type": "object", "additionalProperties": {"type": "integer"}})]
        rows += [(hint, {
            "type": "object", "properties": {"result": schema}, "required": ["result"],
            "x-fastmcp-wrap-result": True}) for hint, schema in (
                (int, {"type": "integer"}), (Signature(known).returns, COLOR),
                (List[Spot], {"type": "array", "items": spot}),
                (Optional[int], OPTIONAL_INTEGER))]
        rows += [(hint, None) for hint in (
            str, None, Any, object, complex, Tree, Annotated[str, "a note"],
            Dict[int, str], Signature(unknown).returns)]
        for hint, schema in rows:
            with self.subTest(hint=hint):
                self.assertEqual(output_schema_of(hint), schema)
        user = User("Al", Spot(1), ["t"], datetime.date(2000, 1, 2))
        for born in user.born, None:
            user.born = born
            self.assertEqual(validate(to_json_data(user), output_schema_of(User)), [])
        self.assertIn("greeting", output_schema_of(User)["properties"])

    def test_an_object_is_wrapped_if_its_schema_is(self):
        """For a client the schema that it has listed says so, as well as `_meta`."""
        def find() -> Optional[Dict[str, int]]:
            return {"a": 1}

        server = server_of(find)
        server.tool(lambda: mcp_min.ToolResult("one", [1]), name="list",
                    output_schema={"type": "array"})
        with Client(server) as client:
            client.list_tools()
            result = client.call_tool("find")
            self.assertEqual(result.structured_content, {"result": {"a": 1}})
            del result["_meta"]
            self.assertEqual(result.data, {"a": 1})
            result = client.call_tool("list")
            self.assertEqual((result.text, result.data), ("one", [1]))


@needs("server")
class Test10Signature(unittest.TestCase):
    """A signature binds the arguments of a request to the parameters of a handler."""

    def test_what_is_long_is_cut_and_of_many_only_the_first_are_listed(self):
        with self.assertRaises(ValidationError) as caught:
            Signature(function(List[int])).bind({"x": ["y" * 1000] * 1000})
        problems = caught.exception.problems
        self.assertEqual((len(problems), problems[-1]), (21, "… and 980 more"))
        self.assertLess(max(map(len, problems)), 100)
        for schema, start in (
                ({"enum": [*range(5000)]}, "expected one of 0, 1, 2"),
                ({"properties": {f"{n}": True for n in range(5000)}, **CLOSED},
                 "known are: 0, 1, 2")):
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
        def signed(**arguments): return arguments["a"], arguments.get("b", "x")
        signed.__signature__ = inspect.signature(keyword)
        for fn in (Tool().method, Tool.klass, Tool.static, Tool.__dict__["static"],
                   Tool(), keyword, wrapper, functools.partial(three, 1), signed):
            with self.subTest(fn=fn):
                signature = Signature(fn)
                self.assertEqual(signature.schema, {
                    "type": "object", "required": ["a"], "properties": {
                        "a": {"type": "integer"},
                        "b": {"type": "string", "default": "x"}}, **CLOSED})
                self.assertEqual(signature.fn(**signature.bind({"a": "1"})), (1, "x"))
                self.assertEqual(signature.fn(**signature.bind({"a": 1, "b": "y"})),
                                 (1, "y"))
        self.assertEqual(Signature(Tool().method).description, "A method.")

    def test_names_that_look_like_a_mistake_are_told_when_decorated(self):
        class Tools:
            def tool(self, n: int): ...
        def short(ctx, n: int): ...
        def long(context): ...
        def data(context: str): ...
        for fn, text in ((short, "short(): did you mean `ctx: Context`?"),
                         (long, "long(): did you mean `context: Context`?"),
                         (Tools.tool, "tool(): did you mean a method of an object"),
                         (Tools().tool, ""), (data, "")):
            with self.subTest(text), quiet() as stderr:
                Server("s").add_tool(fn)
                self.assertIn(text, stderr.getvalue())
                self.assertEqual(bool(stderr.getvalue()), bool(text))

    def test_the_context_parameter_is_recognized_by_its_annotation(self):
        for hint in (Context, Optional[Context], "Context", "Optional[Context]",
                     Annotated[Context, "the context"]):
            def fn(a: int, ctx, b: int = 1): ...
            fn.__annotations__["ctx"] = hint
            with self.subTest(hint=hint):
                signature = Signature(fn)
                self.assertEqual(signature.context, "ctx")
                self.assertEqual([*signature.schema["properties"]], ["a", "b"])
                self.assertRaises(ValidationError, signature.bind, {"a": 1, "ctx": 1})
        self.assertFalse(Signature(function(int)).context)

    @needs("schemas")
    def test_a_given_schema_validates_and_the_hints_convert(self):
        schema = {"type": "object", "properties": {"when": {"$ref": "#/$defs/day"}},
                  "$defs": {"day": {"type": "string", "minLength": 10}}}
        def fn(when: datetime.date, **more): ...
        signature = Signature(fn, schema=schema)
        self.assertIs(signature.schema, schema)
        self.assertEqual(signature.bind({"when": "2024-05-06", "zz": 1}),
                         {"when": datetime.date(2024, 5, 6), "zz": 1})
        one = Signature(function(int), schema={"type": "object"})
        for bind, arguments, problem in (
                (signature.bind, {"when": "now"}, "when: expected at least 10 char"),
                (signature.bind, {}, "when: missing"),
                (one.bind, {"x": 1, "zz": 1}, "zz: unknown; known are: x")):
            with self.assertRaisesRegex(ValidationError, problem):
                bind(arguments)
        with self.assertRaises(SchemaError):
            Server("s").add_tool(function(int), input_schema={
                "type": "object", "$ref": "https://example.com/x"})

    @needs("schemas")
    def test_conversions_by_several_schemas_are_combined(self):
        """Fails if one of them discards what another has converted."""
        def fn(**arguments): ...
        either = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
        b = {"properties": {"b": {"type": "integer"}}}
        for keywords, bound in ((either, {"a": 1, "b": "2"}),
                                ({"allOf": [b]}, {"a": 1, "b": 2}),
                                ({"oneOf": [b]}, {"a": 1, "b": 2})):
            schema = {"type": "object", "properties": {"a": {"type": "integer"}},
                      **keywords}
            with self.subTest(keywords):
                self.assertEqual(Signature(fn, schema=schema).bind(
                    {"a": "1", "b": "2"}), bound)
        dated = {"anyOf": [{"required": ["name"]}, {"required": ["born"]}]}
        user = {"name": "Al", "home": {"x": 1}, "born": "2000-01-02"}
        bound = Signature(function(Annotated[User, dated])).bind({"x": user})
        self.assertEqual(bound["x"].born, datetime.date(2000, 1, 2))

    def test_binding_returns_a_new_dict(self):
        """The server adds the context to it; a question needs the request unchanged."""
        for hint in int, Any, Literal[1]:
            arguments = {"x": 1}
            self.assertIsNot(Signature(function(hint)).bind(arguments), arguments)
        arguments = {"x": {"x": 1}}
        Signature(function(Spot)).bind(arguments)
        self.assertEqual(arguments, {"x": {"x": 1}})

    @needs("schemas")
    def test_descriptions_come_from_the_docstring_or_else_from_annotated(self):
        def fn(a: int, b: Annotated[str, "B."], c: Annotated[str, "The c."], d: int):
            """Do a thing.

            More of it: yes.

            Args:
                a (int, optional): The a,
                    continued.
                b: The b: really.
                There is more.
                d: One of
                    the following:
                    - 1: the first,
                      of all
                    10. the last

            Returns:
                int: A number.
            """
        signature = Signature(fn)
        self.assertEqual([part.get("description") for part in
                          signature.schema["properties"].values()], [
            "The a,\ncontinued.", "The b: really.", "The c.",
            "One of\nthe following:\n- 1: the first,\n  of all\n10. the last"])
        self.assertEqual(signature.description.split("\n\n"), [
            "Do a thing.", "More of it: yes.", "There is more.",
            "Returns:\n    int: A number."])
        def plain(a: int):
            """Args are not described here."""
        self.assertEqual(Signature(plain).description, "Args are not described here.")


class Test10Field(unittest.TestCase):
    """pydantic's word, without pydantic."""

    @needs("schemas")
    def test_its_keywords_are_those_of_json_schema(self):
        for hint, field, keywords in (
                (int, Field(ge=1, le=9), {"minimum": 1, "maximum": 9}),
                (float, Field(gt=0, lt=1, multiple_of=0.5), {
                    "exclusiveMinimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.5}),
                (str, Field(min_length=1, max_length=9, pattern="^a", title="T"), {
                    "minLength": 1, "maxLength": 9, "pattern": "^a", "title": "T"}),
                (List[int], Field(min_length=1, examples=[[1]]), {
                    "minItems": 1, "examples": [[1]]}),
                (Dict[str, int], Field(max_length=2), {"maxProperties": 2}),
                (Optional[List[int]], Field(max_length=2), {"maxItems": 2}),
                (str, Field(format="email", description="d"), {
                    "format": "email", "description": "d"})):
            with self.subTest(keywords):
                schema = parameter_schema(Annotated[hint, field])
                self.assertEqual({key: schema[key] for key in keywords}, keywords)
                self.assertEqual(parameter_schema(hint, field), schema)
        bad = Annotated[str, Field(pattern="(")]
        self.assertRaises(TypeError, parameter_schema, bad)

    def test_its_default_is_that_of_the_parameter(self):
        """Also of Optional of Annotated, and made anew for each call."""
        def fn(a: int = Field(3, ge=1),
               b: list = Field(default_factory=list),  # noqa: B008
               c: Optional[Annotated[int, Field(ge=1)]] = None,
               d: int = Field(..., ge=1),
               e: Annotated[int, Field(4)] = 5): ...
        signature = Signature(fn)
        self.assertEqual(signature.schema["required"], ["d"])
        self.assertEqual(signature.schema["properties"]["a"],
                         {"type": "integer", "minimum": 1, "default": 3})
        first, second = signature.bind({"d": 1}), signature.bind({"d": 1})
        self.assertEqual({key: first[key] for key in "abd"}, {"a": 3, "b": [], "d": 1})
        self.assertIsNot(first["b"], second["b"])
        self.assertRaisesRegex(ValidationError, "c: expected at least 1",
                               signature.bind, {"d": 1, "c": 0})

    def test_a_dataclass_may_have_it(self):
        @dataclasses.dataclass
        class Order:
            dish: str = Field(min_length=2)
            amount: int = Field(1, ge=1, description="how many")
            tags: List[str] = Field(default_factory=list)  # noqa: RUF009

        self.assertEqual(Order("tea"), Order("tea", 1, []))
        schema = parameter_schema(Order)
        self.assertEqual(schema["required"], ["dish"])
        self.assertEqual(schema["properties"]["amount"], {
            "type": "integer", "minimum": 1, "description": "how many", "default": 1})
        bind = Signature(function(Order)).bind
        self.assertEqual(bind({"x": {"dish": "tea"}})["x"], Order("tea", 1, []))
        self.assertRaisesRegex(ValidationError, "x.dish: expected at least 2 char",
                               bind, {"x": {"dish": "t"}})


@needs("names")
class Test10Pydantic(unittest.TestCase):
    """What pydantic describes and validates, where it is installed."""

    def setUp(self):
        self.pydantic = package(self, "pydantic")

    def test_urls_are_uris_and_a_model_of_one_text_is_constructed(self):
        for cls in (self.pydantic.AnyUrl, self.pydantic.HttpUrl):
            schema = parameter_schema(cls)
            self.assertEqual((schema["type"], schema["format"]), ("string", "uri"))
            bind = Signature(function(cls)).bind
            url = bind({"x": "https://a.b/c"})["x"]
            self.assertEqual((url.host, to_json_data(url)), ("a.b", "https://a.b/c"))
            self.assertRaises(ValidationError, bind, {"x": "no URL"})
        tag = self.pydantic.RootModel[str]  # a plain string in the schema
        self.assertEqual(Signature(function(tag)).bind({"x": "y"})["x"].root, "y")

    def test_models_are_arguments_results_and_forms(self):
        """Their definitions are inline.  A property may have the name of a keyword."""
        def check(note):
            if note == "bad":
                raise ValueError("not this")
            return note

        note = Annotated[Optional[str], self.pydantic.AfterValidator(check)]
        pizza_class = self.pydantic.create_model(
            "Pizza", __doc__="Of any pizza.", enum=(Color, ...), title=(note, None))
        inline = {"type": "object", "description": "Of any pizza.", "properties": {
            "enum": COLOR, "title": {"default": None, "anyOf": [
                {"type": "string"}, {"type": "null"}]}}, "required": ["enum"]}

        def order(pizza, many, ctx: Context):
            """Order.

            Args:
                pizza: The first.
            """
            wish = ctx.elicit("?", pizza_class).data
            assert type(many[0]) is type(pizza) is type(wish) is pizza_class
            return pizza_class(enum=pizza.enum, title=wish.title)

        order.__annotations__.update(
            {"pizza": pizza_class, "many": List[pizza_class], "return": pizza_class})
        server = Server("s")
        server.tool(order)
        with Client(server, elicitation_handler=lambda message, schema, params: {
                "enum": "blue", "title": schema["properties"]["title"]["type"]}
                    ) as client:
            [tool] = client.list_tools()
            self.assertEqual(tool["inputSchema"]["properties"], {
                "pizza": {**inline, "description": "The first."},
                "many": {"type": "array", "items": inline}})
            self.assertEqual(tool["outputSchema"]["properties"], inline["properties"])
            for pizza, text in (
                    ({"enum": "red"}, '{"enum": "red", "title": "string"}'),
                    ({"enum": "XL"}, "pizza.enum: expected one of"),
                    ({"enum": "red", "title": "bad"}, "title: .*not this")):
                result = client.call_tool("order", {
                    "pizza": pizza, "many": [{"enum": "blue"}]}, raise_on_error=False)
                self.assertRegex(result.text, text)

    @needs("schemas")
    def test_the_definitions_of_a_recursive_model_are_at_the_root(self):
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
        field, after = self.pydantic.Field, self.pydantic.AfterValidator

        def find(text, tags, none, even=3, limit=field(  # noqa: B008
                default=10, ge=1, le=50, description="How many"),
                among=field(default_factory=lambda: [1]),  # noqa: B008
                factor=field(gt=0, json_schema_extra={"x": 1})): ...  # noqa: B008
        find.__annotations__ = {
            "text": Annotated[str, field(description="What", min_length=2)],
            "tags": Annotated[list, field(max_length=1, examples=[["x"]]), "Tags"],
            "none": Annotated[Optional[str], field(default=None, description="D."),
                              after(lambda text: text + "!")],
            "even": Annotated[int, after(lambda n: n * 2)],
            "limit": int, "among": List[int], "factor": float}
        signature = Signature(find)
        self.assertEqual(signature.schema["required"], ["text", "tags", "factor"])
        self.assertEqual(signature.schema["properties"], {
            "text": {"type": "string", "description": "What", "minLength": 2},
            "tags": {"type": "array", "items": {}, "maxItems": 1, "examples": [["x"]],
                     "description": "Tags"},
            "none": {"type": "string", "description": "D."},
            "even": {"type": "integer", "default": 3},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50,
                      "description": "How many", "default": 10},
            "among": INTEGERS,
            "factor": {"type": "number", "exclusiveMinimum": 0, "x": 1}})
        arguments = {"text": "ab", "tags": [], "factor": 2}
        self.assertEqual(signature.bind({**arguments, "even": "2"}), {
            **arguments, "even": 4, "none": None, "limit": 10, "among": [1]})
        self.assertEqual(signature.bind({**arguments, "none": "a"})["none"], "a!")
        with self.assertRaisesRegex(ValidationError, "limit: expected at most 50, got"):
            signature.bind({**arguments, "limit": 99})

    def test_the_model_decides_what_it_takes(self):
        """Unless the server is strict; and models of one name are not mixed up."""
        pydantic = self.pydantic

        class Tags(pydantic.BaseModel):
            tags: List[str]
            split = pydantic.field_validator("tags", mode="before")(
                lambda value: value.split(",") if isinstance(value, str) else value)

        signature = Signature(function(Tags))
        described = Annotated[Optional[Tags], pydantic.Field(description="d")]
        for fn in (function(Tags), function(Optional[Tags], None),
                   function(described, None)):
            bound = Signature(fn).bind({"x": {"tags": "a,b"}})
            self.assertEqual(bound["x"].tags, ["a", "b"])
        self.assertRaises(ValidationError, signature.bind, {"x": {"tags": "a,b"}}, True)
        one, two = (pydantic.create_model("Tree", **{
            name: (Optional["Tree"], None)}) for name in ("left", "right"))
        for tree in one, two:
            tree.model_rebuild(_types_namespace={"Tree": tree})
        self.assertRaisesRegex(TypeError, "two recursive models are named Tree",
                               Signature, function(Tuple[one, two]))


class Test10Jsonable(unittest.TestCase):
    """`to_json_data` turns the result of a handler into what JSON can hold."""

    @needs("schemas")
    def test_each_value_has_one_json_form(self):
        plain = type("Plain", (), {  # no dataclass, but it has hints
            "__annotations__": {"a": int, "missing": str}, "a": 1, "_private": 2})
        heir = type("Heir", (plain,), {"__annotations__": {"b": int}, "b": 2})
        rows = [
            (None, None), (True, True), ("\ud800", "\ud800"), (1.5, 1.5),
            (Color.RED, "red"), (Level.HIGH, 2), ([1, (2, "a")], [1, [2, "a"]]),
            ({1}, [1]), (Spot(1), {"x": 1, "y": 0}), (b"hi", "aGk="),
            (datetime.date(2024, 5, 6), "2024-05-06"),
            (datetime.datetime(2024, 5, 6, 7), "2024-05-06T07:00:00"),
            (datetime.time(7, 8), "07:08:00"), (decimal.Decimal("0.10"), "0.10"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (pathlib.PurePosixPath("a/b"), "a/b"),
            ({None: "b", True: "c", 1.5: "f"}, {"true": "c", "null": "b", "1.5": "f"}),
            (range(2), [0, 1]), (iter("ab"), ["a", "b"]), ({"a": 1}.values(), [1]),
            (collections.deque([1]), [1]), (types.MappingProxyType({"a": 1}), {"a": 1}),
            ([math.nan, -math.inf, {"a": math.inf}], [None, None, {"a": None}]),
            (datetime.timedelta(1), "1 day, 0:00:00"), (ValueError("no"), "no"),
            ([complex(1)], ["(1+0j)"]), (Spot, str(Spot)),
            (Spot({(1, 2): {Color.RED: 3}}), {"x": {"[1, 2]": {"red": 3}}, "y": 0}),
            # the items are lost if it is read again for a key that is no text
            ({"a": iter([1]), (1, 2): [iter("x")]}, {"a": [1], "[1, 2]": [["x"]]}),
            (AnswersAll(), "AnswersAll"), (plain(), {"a": 1}),
            (heir(), {"a": 1, "b": 2}),
            (type("Array", (), {"tolist": lambda _: [1, [2.5]]})(), [1, [2.5]])]
        for value, form in rows:
            with self.subTest(form=form):
                self.assertEqual(to_json_data(value), form)
                json.dumps(to_json_data(value), allow_nan=False)

    def test_strictly_only_what_has_a_json_form_is_converted(self):
        """So are options when they are registered, and the results of steps.  What
        cannot be written is refused in any case."""
        cycle, deep = [], []
        cycle.append(cycle)
        for _ in range(20_000):
            deep = [deep]
        for value in cycle, deep:
            self.assertRaises(ValueError, to_json_data, value)
        self.assertEqual(to_json_data({"a": Color.RED, "b": {1}}, strict=True),
                         {"a": "red", "b": [1]})
        for value, text in ((object(), "object cannot be"), ({(1, 2): 3}, "keys of a"),
                            ({"a": complex(1)}, "complex cann"), ([math.nan], "nan c")):
            with self.subTest(text), self.assertRaisesRegex(TypeError, text):
                to_json_data(value, strict=True)

    @needs("schemas")
    def test_a_result_becomes_text_or_is_shown_if_it_does_not_fit_its_hint(self):
        server = Server("s")
        for name, hint, value, is_error, text in (
                ("thing", Any, object, False, str(object)),
                ("data", Any, {"a": math.nan, "b": iter([1])}, False,
                 '{"a": null, "b": [1]}'),
                ("count", int, "Error: no file" + "!" * 1000, True, "Error: no file!!"),
                ("rows", List[int], {"error": "no table"}, True, '{"error": "no table'),
                ("dict", dict, ["Error: no object"], True, '["Error: no object"]')):
            def tool(value=value): return value
            tool.__annotations__ = {"return": hint}
            server.add_tool(tool, name=name, input_schema={"type": "object"})
            with self.subTest(name), quiet(), Client(server) as client:
                result = client.call_tool(name, raise_on_error=False)
                self.assertEqual(result.is_error, is_error)
                self.assertIn(text, result.text)
                self.assertLess(len(result.text), 700)


# (template, URI, variables)
MATCHING_URIS = [
    ("config://app", "config://app", {}), ("w://{a}", "w://..a", {"a": "..a"}),
    ("w://{a}", "w://12:30", {"a": "12:30"}), ("w://{a}", "w://%zz", {"a": "%zz"}),
    ("w://{city}/now", "w://S%C3%A3o%20Paulo/now", {"city": "São Paulo"}),
    ("w://{a}-{b}.md", "w://1-2.md-3.md", {"a": "1", "b": "2.md-3"}),
    ("w://{+a}-{b}", "w://1-2/3-4", {"a": "1-2/3", "b": "4"}),
    ("w://{a}-{+b}.{c}", "w://1-2-3/4.5.6", {"a": "1", "b": "2-3/4.5", "c": "6"}),
    ("f://{+p}", "f://a/b%20c", {"p": "a/b c"}), ("f://{+p}", "f://..b", {"p": "..b"}),
    ("f://{p*}", "f://a/b", {"p": "a/b"}),
    ("f://{p*}.{e}", "f://a.b/c.d", {"p": "a.b/c", "e": "d"}),
    ("f://{+p}{?v}", "f://a/b?v=1", {"p": "a/b", "v": "1"}), ("x{?a,b}", "x", {}),
    ("x{?a,b}", "x?b=2&a=1", {"a": "1", "b": "2"}), ("x{?a}", "x?a=", {"a": ""}),
    ("x{?a,b}", "x?b=a%2Fb", {"b": "a/b"}), ("x{?a}", "x?a=1&a=2", {"a": "2"}),
    ("d://{x}{?q}", "d://a?q=b%26c", {"x": "a", "q": "b&c"})]

UNSAFE = ["C:evil", "%43:evil", "c%3A", "..%20", "..%09", "..%20.", ".. .", "...",
          "a::$DATA", "a%3A%3A%24DATA", "%00", "a%0d%0ab", "%1b", "%7F"]
OTHER_URIS = {  # template: URIs that do not match, or whose variables are unsafe
    "config://app": ["config://appp"], "a.b://x": ["aXb://x"], "d://x": ["d://x\n"],
    "w://{a}": ["w://" + text for text in (
        "a/b", "", "a%2Fb", "a%5cb", "..", "%2e%2E", ".", "a?b", "a%00", "a" * 4000,
        *UNSAFE)],
    "w://{a}-{b}": ["w://-2"], "w://{a}-{+b}.{c}": ["w://1-.6"],
    "f:///{+p}": ["f:///" + text for text in (
        "a/../b", "a/%2e%2e/b", "a%2f..", "a\\..\\b", "a/%2E%2E%2Fb", "/etc/passwd",
        "%2Fetc", "C:%5CWindows", "a%00.txt", "a/..%20/b", "a\\.. /b", *UNSAFE)],
    "f:///{p*}": ["f:///../b"],
    "x{?a}": ["x?c=1", *("x?a=" + text for text in ("../b", "/etc", *UNSAFE))]}


class Test10UriTemplate(unittest.TestCase):
    """A template (a part of RFC 6570) finds the variables of a URI."""

    @needs("schemas")
    def test_a_uri_matches_with_its_variables_or_not_at_all(self):
        rows = [*MATCHING_URIS, *((template, uri, None) for template, uris in
                                  OTHER_URIS.items() for uri in uris)]
        for template, uri, variables in rows:
            with self.subTest(template=template, uri=uri):
                self.assertEqual(UriTemplate(template).match(uri), variables)

    @needs("schemas")
    def test_the_time_to_match_does_not_grow_with_the_number_of_variables(self):
        """Fails if the variables do not match atomically: each takes ten seconds."""
        uri = "w://" + "-," * 1500 + "/"
        for template in ("w://{y}-{m}-{d}", "w://{y}-{+m}-{d}", "w://{+y}-{m},{d}#"):
            started = time.process_time()
            with self.subTest(template):
                self.assertIsNone(UriTemplate(template).match(uri))
                self.assertLess(time.process_time() - started, PATIENCE / 5)

    def test_a_template_knows_its_names_and_how_much_of_it_is_literal(self):
        """The server prefers the template with the most literal text."""
        general, special = map(UriTemplate, ("w://{city}/{when}", "w://{city}/now"))
        self.assertEqual((general.names, special.names), (["city", "when"], ["city"]))
        self.assertGreater(special.literal, general.literal)

    def test_a_malformed_or_unsupported_template_is_refused(self):
        refused = """
            a{ a} {} {a {a}} {{a}} {a:3} {!a} {1a} {a}/{a} {a,} {a,a} {ä} {#a} {.a}
            {;a} {/a} {&a} {a}{b} {a,b} {+a}/{+b} {a*}/{+b} {?a}{?b} {?a}/x
            x{?a}{&b}{&c}"""
        for text in [*refused.split(), "{a b}"]:
            with self.subTest(text), self.assertRaises(ValueError):
                UriTemplate(text)


@needs("server")
class Test10Imports(unittest.TestCase):
    def test_importing_loads_only_what_is_used_and_has_no_side_effect(self):
        """What is slow to import is imported when it is needed."""
        with process("""
                costly = {'inspect', 'dataclasses', 'logging', 'subprocess', 'asyncio',
                          'socket', 'argparse', 'concurrent.futures', 'base64',
                          'hashlib', 'datetime'} & sys.modules.keys()
                if sys.implementation.name == "pypy" or sys.version_info >= (3, 14):
                    costly -= {"inspect", "dataclasses"}  # json, traceback load them
                assert not costly, costly
                import signal
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
                Server("idle").add_tool(lambda: None, name="t")
                assert threading.active_count() == 1
                imported = {*sys.modules}
                def tool(a: str, b: int = 3, c: list[int] = []) -> list[str]:
                    "Args:\\n  a: b"
                s = mcp_min.Signature(tool)
                s.schema, s.bind({"a": "x", "c": ["1"]})
                mcp_min.output_schema_of(s.returns)
                costly = {"dataclasses", "decimal", "base64", "urllib.parse"}
                assert not costly & (sys.modules.keys() - imported)
                """) as child:
            self.assertEqual((child.exit(), child.stderr), (0, ""))


# ======================================================================================
# 11  Handlers
# ======================================================================================

def host_thread(test):
    """A host's thread, which ends with the test, and its ``run_handler``, which calls
    each job twice, as a timer does that repeats."""
    jobs = queue.Queue()
    thread = threading.Thread(
        target=lambda: [(job(), job()) for job in iter(jobs.get, None)])
    thread.start()
    test.addCleanup(thread.join)
    test.addCleanup(jobs.put, None)
    return thread, jobs.put


@needs("asyncio")
class Test11AsyncHandlers(unittest.TestCase):
    """`async def` handlers of a server share one event loop."""

    @needs("inside")
    def test_a_job_of_the_host_within_another_leaves_the_other_on_its_thread(self):
        """A host's loop that runs within a handler.  Fails (it hangs) if the end of the
        inner job is taken for that of the outer one."""
        jobs = queue.SimpleQueue()
        server = Server("s", run_handler=jobs.put)
        server.resource("s://r")(lambda: "text")
        server.tool(lambda: "inner", name="inner")

        @server.tool
        def outer(ctx: Context) -> str:
            calls.append(client.submit_tool("inner"))
            jobs.get(timeout=PATIENCE)()
            return ctx.read_resource("s://r")[0].text

        with Client(server) as client:
            calls = [client.submit_tool("outer")]
            jobs.get(timeout=PATIENCE)()
            self.assertEqual([call.result(PATIENCE).text for call in calls],
                             ["text", "inner"])

    def test_a_server_ends_though_a_handler_blocks_the_loop_with_its_lifespan(self):
        began, release = gate("the call"), gate("the end")

        @contextlib.asynccontextmanager
        async def lifespan(server):
            yield {}

        async def block():
            began.set()
            release.wait()

        server = server_of(block, lifespan=lifespan, drain_seconds=0)
        with quiet() as stderr, mock.patch.multiple(
                mcp_min, LIFESPAN_SECONDS=0.01, CANCEL_SECONDS=0.01):
            with wire(server) as client:
                play(client, '> handshake\n> 1 call block')
                began.wait()
            release.set()
        self.assertIn("a handler blocks the event loop", stderr.getvalue())

    def test_the_connections_of_a_server_share_one_event_loop_and_one_lifespan(self):
        """A server that is served again has new ones.  Fails (a thread stays for ever)
        if a loop is started after the end.  Looks inside."""
        loops, events, threads = [], [], NewThreads()

        @contextlib.contextmanager
        def lifespan(server):
            events.append("enter")
            yield
            events.append("leave")

        async def note() -> str:
            loops.append(asyncio.get_running_loop())
            return threading.current_thread().name

        first, second = server_of(note, lifespan=lifespan), server_of(note)
        with Client(first) as client, Client(first) as other, Client(second) as third:
            for caller in client, client, other, third:
                self.assertEqual(caller.call_tool("note").text, "mcp event loop")
            other.close()
            self.assertEqual(events, ["enter"])
        wait_until(lambda: events == ["enter", "leave"])
        self.assertEqual([loops.index(loop) for loop in loops], [0, 0, 0, 3])
        self.assertEqual([loop.is_closed() for loop in loops], [True] * 4)
        with Client(first) as client:
            client.call_tool("note")
        self.assertNotIn(loops[-1], loops[:-1])
        self.assertRaises(ConnectionClosed, first._lifespan.run, note())
        self.assertNotIn("mcp event loop", threads.names())

    def test_a_handler_gets_the_context_of_its_kind_whatever_it_annotates(self):
        """Also a resource that is awaited: it may be a `def`."""
        server, kinds = Server("s"), []

        def decorated(fn):
            @functools.wraps(fn)
            def wrapper(*args, **kwargs):
                return fn(*args, **kwargs)
            return wrapper

        @server.tool
        @server.resource("s://x")
        def plain(ctx: Context) -> str:
            kinds.append(type(ctx))
            return "x"

        @server.tool
        async def later(ctx: Context):
            kinds.append(type(ctx))
            await ctx.read_resource("s://x")

        @server.tool
        @decorated
        async def wrapped(ctx: AsyncContext):
            kinds.append(type(ctx))

        @server.tool
        def promised(ctx: AsyncContext):
            return later(ctx)

        with Client(server) as client:
            for tool in client.list_tools():
                client.call_tool(tool.name)
        self.assertEqual(kinds, [Context, AsyncContext, Context, AsyncContext,
                                 AsyncContext, Context])

    def test_a_question_of_a_coroutine_ends_with_its_task_or_its_timeout(self):
        """Fails (the client is not told, or the loop blocks) if only an answer does."""
        async def ask(ctx: AsyncContext) -> str:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ctx.elicit("Well?", str), 0.05)
            try:
                return (await ctx.elicit("Now?", str, timeout=0.05)).data
            except RequestTimeout as error:
                return str(error)

        play(server_of(ask), """
            > 1 call ask   < $q elicitation/create {"message": "Well?"}
            < notifications/cancelled {"requestId": "$q"}
            < $r elicitation/create {"message": "Now?"}
            < notifications/cancelled {"requestId": "$r", "reason": "timed out"}
            < 1 = "...no response or progress within 0.05 s..."
            """, era="legacy")

    def test_a_task_that_is_cancelled_before_its_first_step_ends_its_call(self):
        """Fails (no response, and a worker is lost) if only the task's body can tell
        that it has ended; or (a warning) if the coroutine is not closed."""
        began = gate("the sweep")

        async def sweep() -> int:
            began.set()
            while not (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
                await asyncio.sleep(0)
            return len([task.cancel() for task in tasks])

        async def work() -> str:
            return "done"

        with quiet() as stderr, wire(server_of(sweep, work, max_workers=2)) as client:
            play(client, '> handshake\n> 1 call sweep')
            began.wait()
            play(client, """
                > 2 call work
                <* 1 {"structuredContent": {"result": 1}}
                <* 2 {"content": [{"text": "CancelledError"}], "isError": true}
                > 3 call work   < 3 = "done"
                """)
        self.assertNotIn("never awaited", stderr.getvalue())

    def test_a_loop_that_a_handler_stops_or_leaves_goes_on(self):
        """Fails (later calls get no result) if it ends."""
        async def stop():
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.001)

        async def leave():
            async def leave_in_a_task():
                sys.exit(3)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            asyncio.ensure_future(leave_in_a_task())
            await asyncio.sleep(0.001)
            sys.exit(4)

        async def work() -> str:
            await asyncio.sleep(0)
            return "done"

        server = server_of(stop, leave, work)
        with quiet(), Client(server, timeout=PATIENCE) as client:
            for name in "stop", "leave", "stop", "leave":
                error = raised(client.call_tool, name)
                self.assertEqual("SystemExit" in str(error), name == "leave")
                self.assertEqual(client.call_tool("work").text, "done")

    @needs("inside")
    def test_a_resource_is_read_on_a_thread_that_may_block(self):
        """By a coroutine, and by a task that has outlived its handler; where the host
        has a thread, on that.  Fails (the loop is blocked) if it runs on the loop."""
        host, run_handler = host_thread(self)
        threads, tasks = queue.Queue(), []

        def blocking() -> str:
            threads.put(threading.current_thread().name)
            return "x"

        async def read(ctx: AsyncContext) -> str:
            async def later():
                await asyncio.sleep(0.02)
                await ctx.read_resource("s://x")
            tasks.append(asyncio.ensure_future(later()))
            return (await ctx.read_resource("s://x"))[0].text

        for options, name in (({}, "mcp (?!event loop)"),
                              ({"run_handler": run_handler}, re.escape(host.name))):
            server = server_of(read, **options)
            server.resource("s://x")(blocking)
            with Client(server) as client:
                self.assertEqual(client.call_tool("read").text, "x")
                for _ in range(2):
                    self.assertRegex(threads.get(timeout=PATIENCE), name)

    @unittest.skipUnless(hasattr(asyncio, "TaskGroup"), "before Python 3.11")
    def test_a_task_group_may_ask(self):
        """Fails (an internal error) if only a bare Unwind is known."""
        async def ask(ctx: Context) -> str:
            async with asyncio.TaskGroup() as group:
                answer = group.create_task(ctx.elicit("?", str))
            return answer.result().data

        server = server_of(ask)
        with Client(server, elicitation_handler=lambda *_: {"value": "x"}) as client:
            self.assertEqual(client.call_tool("ask").text, "x")

    @needs("inside")
    @both_eras
    def test_steps_resources_and_answers_are_awaited_wherever_it_runs(self, era):
        """Fails (no response) if the thread that awaits wants to run the loop too."""
        async def later() -> str:
            await asyncio.sleep(0)
            return "later"

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

        _, run_handler = host_thread(self)
        for options in {}, {"threaded": False}, {"run_handler": run_handler}:
            server = server_of(work, **options)
            server.resource("s://x")(later)
            server.resource("s://y")(lambda: "now")
            with self.subTest(**options), Client(
                    server, mode=era, elicitation_handler=lambda *_: True) as client:
                self.assertEqual(client.call_tool("work").text,
                                 "step def later now True")

    @needs("inside", "more")
    def test_all_def_handlers_of_a_host_run_on_its_thread(self):
        """One may read a resource; middleware runs there, too; coroutines on the event
        loop.  Fails (by a timeout) if the thread waits for itself."""
        host, run_handler = host_thread(self)
        threads = queue.Queue()

        def read(ctx: Context) -> str:
            return ctx.read_resource("s://x")[0].text

        async def where() -> str:
            await asyncio.sleep(0.001)
            return threading.current_thread().name

        server = server_of(read, where, run_handler=run_handler)
        server.middleware(lambda ctx, method, params, call_next: (
            threads.put(threading.current_thread()) or call_next(ctx, method, params)))
        server.resource("s://x")(lambda: threading.current_thread().name)
        server.method("notifications/acme")(
            lambda: threads.put(threading.current_thread()))
        with Client(server, timeout=PATIENCE) as client:
            calls = {client.submit_tool("read"): host.name,
                     client.submit_tool("where"): "mcp event loop"}
            for call, expected in calls.items():
                self.assertEqual(call.result().text, expected)
            client.notify("notifications/acme")
            for _ in range(3):
                self.assertIs(threads.get(timeout=PATIENCE), host)


@needs("inside")
class Test11Unthreaded(unittest.TestCase):
    """`threaded=False`: all handlers run on the thread that serves; under
    `Client(server)` on the thread that waits for a result."""

    @needs("asyncio", "more")
    @unittest.skipUnless(sqlite3, "this Python has no sqlite3")
    @both_eras
    def test_a_client_of_the_server_needs_nothing_else(self, era):
        """All `def` handlers use one sqlite3 connection, which refuses every thread but
        the one that has opened it."""
        rows, heard = sqlite3.connect(":memory:"), []
        self.addCleanup(rows.close)

        @contextlib.contextmanager
        def lifespan(server):
            rows.execute("create table rows (n)")
            yield
            heard.append(total())

        def add(n: int) -> int:
            return rows.execute("insert into rows values (?)", [n]).lastrowid

        def deposit(ctx: Context) -> int:
            n = ctx.elicit("How much?", int).data
            return ctx.once("add", lambda: add(n))

        async def deposit_later(ctx: Context) -> int:
            return (await ctx.elicit("How much?", int)).data

        def total() -> str:
            return str(rows.execute("select sum(n) from rows").fetchone()[0])

        server = server_of(
            add, deposit, deposit_later, threaded=False, lifespan=lifespan)
        server.resource("bank://total")(total)
        server.prompt(name="report")(lambda: "Report " + total())
        server.completion("report", "n")(lambda value: [total()])
        server.method("acme/total")(lambda: total())
        server.method("notifications/acme")(lambda: heard.append(total()))
        server.middleware(lambda ctx, method, params, call_next: (
            rows.execute("select 1") and call_next(ctx, method, params)))

        with Client(server, mode=era, timeout=PATIENCE,
                    elicitation_handler=lambda *_: {"value": 3}) as client:
            self.assertEqual(client.call_tool("add", {"n": 1}).data, 1)
            self.assertEqual(client.call_tool("deposit").data, 2)
            self.assertEqual(client.call_tool("deposit_later").data, 3)
            submitted = client.submit_tool("add", {"n": 4})
            self.assertEqual(submitted.result(PATIENCE).data, 3)
            self.assertEqual(client.read_resource("bank://total")[0].text, "8")
            self.assertEqual(client.get_prompt("report")["messages"][0]["content"],
                             {"type": "text", "text": "Report 8"})
            self.assertEqual(client.complete("report", "n", "")["values"], ["8"])
            client.notify("notifications/acme")
            while not heard:  # a handler needs a thread that waits for a result
                self.assertEqual(client.request("acme/total")["result"], "8")
            self.assertEqual(heard, ["8"])
        self.assertEqual(heard, ["8"] * 2)

    @needs("stateless")
    def test_it_is_the_default_of_serve_which_may_say_otherwise(self):
        here, reader, names = threading.current_thread().name, "mcp reader", []
        for default, *calls in (
                (False, ({}, here), ({"threaded": True}, reader), ({}, here)),
                (True, ({"threaded": False}, here), ({}, reader))):
            server = Server("s", threaded=default)
            server.tool(lambda: names.append(threading.current_thread().name), name="f")
            for given, expected in calls:
                with self.subTest(default=default, given=given):
                    request = raw('1 modern call f')
                    server.serve(io.BytesIO(request), io.BytesIO(), **given)
                    self.assertEqual(names.pop(), expected)

    @needs("asyncio")
    def test_coroutines_run_where_the_caller_has_a_loop_of_its_own(self):
        """As in a notebook.  Fails (it never ends) if they are to run on that loop."""
        async def later() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        async def main():
            with Client(server_of(later, threaded=False), timeout=PATIENCE) as client:
                return client.call_tool("later").text

        self.assertEqual(asyncio.run(main()), "mcp event loop")

    @both_eras
    def test_a_failing_handler_does_not_end_the_client(self, era):
        server = Server("s", threaded=False)
        server.tool(lambda: 1 / 0, name="fail")
        server.tool(lambda: sys.exit(3), name="leave")
        with quiet(), Client(server, mode=era, timeout=PATIENCE) as client:
            for tool in "fail", "leave", "fail":
                self.assertTrue(client.call_tool(tool, raise_on_error=False).is_error)
            self.assertEqual(len(client.list_tools()), 2)

    def test_pings_cancellations_and_answers_are_read_while_a_handler_runs(self):
        """One after the other, on the calling thread.  A wait may be without end."""
        threads, started = [], gate("started")

        def hold(ctx: Context):
            threads.append(threading.current_thread())
            started.set()
            threads.append(raised(ctx.wait, math.inf))  # unless it is cancelled

        def ask(ctx: Context) -> str:
            threads.append(threading.current_thread())
            return ctx.elicit("?", str).data

        with wire(server_of(hold, ask, threaded=False)) as client:
            play(client, """
                > 1 call hold
                > 2 call ask               ! started
                < fence
                > notifications/cancelled {"requestId": 1}   < $q elicitation/create {}
                < fence
                > $q {"action": "accept", "content": {"value": "yes"}}   < 2 = "yes"
                """, era="legacy", started=started.wait)
            self.assertEqual(threads, [client._serving] * 2)


@needs("server")
class Test11Diagnostics(unittest.TestCase):
    """What a server reports on stderr, and what the program prints while it serves."""

    def reported(self, stderr):
        """The lines of this file that reports name."""
        return [linecache.getline(__file__, int(number)).strip() for number in
                re.findall(r"test_mcp_min\.py:(\d+)", stderr.getvalue())]

    @needs("asyncio", "inside", "turns")
    def test_a_handler_that_ignores_its_cancellation_is_reported_once(self):
        """Where it waits, not inside of `threading`, nor at the line that led there:
        on a worker, on the event loop, or on a host's thread."""
        began, release = queue.Queue(), threading.Event()
        self.addCleanup(release.set)

        def wait_for_it():
            began.put(1)
            release.wait()  # where it waits

        def spin():
            wait_for_it()

        async def block():
            began.put(1)
            release.wait()  # on the loop

        def hold():
            began.put(1)
            release.wait()  # on the host's thread

        _, run_handler = host_thread(self)
        for server, names, lines in (
                (server_of(spin), ["spin", "spin"], ["where it waits"] * 2),
                (server_of(block, hold, run_handler=run_handler), ["block", "hold"],
                 ["on the host's thread", "on the loop"])):
            release.clear()
            with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.4), (
                    quiet()) as stderr, Client(server) as client:
                calls = [client.submit_tool(name) for name in names]
                for _ in calls:
                    began.get(timeout=PATIENCE)
                for call in calls:
                    call.cancel()
                wait_until(lambda stderr=stderr: len(self.reported(stderr)) > 1)
                release.set()
            self.assertEqual(stderr.getvalue().count(" was cancelled"), 2)
            self.assertEqual(sorted(self.reported(stderr)), [
                "release.wait()  # " + line for line in lines])

    @needs("turns", "asyncio", "client")
    def test_a_handler_that_goes_on_after_a_coroutine_is_reported(self):
        """Fails if the thread of the event loop is still taken for its thread."""
        async def later() -> str:
            return "x"

        def read(ctx: Context):
            ctx.read_resource("a://b")
            began.set()
            release.wait()  # after it

        began, release, server = gate("began"), threading.Event(), server_of(read)
        self.addCleanup(release.set)
        server.resource("a://b")(later)
        with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.01), (
                quiet()) as stderr, Client(server) as client:
            call = client.submit_tool("read")
            began.wait()
            call.cancel()
            wait_until(lambda: self.reported(stderr))
            release.set()
        self.assertEqual(self.reported(stderr), ["release.wait()  # after it"])

    @needs("turns")
    def test_a_report_that_blocks_holds_up_no_reader(self):
        """Fails (no pong) if the watcher cannot hand over meanwhile."""
        server, blocked, release = lab(), threading.Event(), gate("release")
        self.addCleanup(release.set)
        threads = NewThreads()

        class Stderr(io.StringIO):
            def write(self, text):
                if "was cancelled" in text:
                    blocked.set()
                    release.wait()
                return super().write(text)

        with mock.patch.object(mcp_min, "STUCK_SECONDS", 0.01), (
                mock.patch.object(sys, "stderr", Stderr())), wire(server) as client:
            play(client, "> handshake")
            client.say('1 call hold {"n": 1}')
            server.began.get(timeout=PATIENCE)
            client.say('notifications/cancelled {"requestId": 1}')
            self.assertTrue(blocked.wait(PATIENCE))
            server.go.set()  # the first ends, so that the reader runs the second
            wait_until(lambda: threads.names().count("mcp reader") == 1, "one reader")
            server.go.clear()
            client.say('2 call hold {"n": 2}')
            client.fence()
            release.set()
            server.go.set()
            play(client, "< 2 {}")

    def test_a_traceback_shows_no_frame_of_the_library(self):
        """An error that a tool reports on purpose has none."""
        def fail(error: str):
            raise {"bug": ValueError, "told": ToolError}[error]("broken")

        with quiet() as stderr, Client(server_of(fail)) as client:
            for error in "bug", "told":
                client.call_tool("fail", {"error": error}, raise_on_error=False)
        self.assertNotIn('File "' + mcp_min.__file__, stderr.getvalue())
        self.assertEqual(stderr.getvalue().count("in fail\n"), 1)

    @needs("stateless")
    def test_what_a_tool_prints_is_on_stderr_at_once(self):
        """Without `flush`.  Fails if it stays in a buffer until the server ends."""
        with process(program("""
                @server.tool
                def talk(ctx: Context):
                    print("printed")
                    ctx.wait(3600)
                """)) as server:
            server.say('1 modern call talk')
            wait_until(lambda: server.stderr == "printed\n", "the line")
            server.say('notifications/cancelled {"requestId": 1}')


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


@needs("asyncio", "server")
class Test11Lifespan(unittest.TestCase):
    """The lifespan: a context manager that is open as long as the server runs."""

    @needs("stateless")
    def test_it_may_set_the_instructions(self):
        """Fails if those of the start are sent."""
        @contextlib.contextmanager
        def lifespan(server):
            server.instructions = "Be quick."
            yield

        for mode in "legacy", "modern":
            with Client(Server("s", lifespan=lifespan), mode=mode) as client:
                self.assertEqual(client.instructions, "Be quick.")

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
                    > 1 call same   < 1 {"structuredContent": {"result": true}}
                    """)
                end(server)
                self.assertEqual(server.exit(), status)
                self.assertEqual(server.stderr.split(), ["enter", "leave"])

    def test_an_error_in_it_ends_the_server(self):
        async def fails_first(server):
            yield 1 / 0

        async def fails_last(server):
            yield 0
            await asyncio.sleep(1 / 0)

        async def endless(server):
            yield
            await asyncio.sleep(600)

        for lifespan, error, seconds in ((fails_first, ZeroDivisionError, 10),
                                         (fails_last, ZeroDivisionError, 10),
                                         (endless, asyncio.TimeoutError, 0.01)):
            server = Server("s", lifespan=contextlib.asynccontextmanager(lifespan))
            with self.subTest(lifespan.__name__), mock.patch.object(
                    mcp_min, "LIFESPAN_SECONDS", seconds), quiet():
                self.assertRaises(error, server.serve, io.BytesIO(), io.BytesIO())


@needs("asyncio", "inside", "server")
class Test11RunAsync(unittest.TestCase):
    """A server within a program whose main thread runs an event loop."""

    @needs("stateless", "schemas", "trace", "names")
    def test_run_would_stop_the_loop_and_names_what_to_await(self):
        async def main(server):
            server.run()

        for make in Server, getattr(mcp_min, "FastMCP", Server):  # a copy may lack it
            with self.assertRaisesRegex(RuntimeError, r"`await server\.run_async\(\)`"):
                asyncio.run(main(make("s")))

    def test_its_coroutines_share_the_loop_of_the_program(self):
        """And with threaded=False `def` handlers its thread."""
        for threaded in True, False:
            with self.subTest(threaded), process(LIFESPAN_SERVER + textwrap.dedent(f"""
                @server.tool
                def on_main_thread() -> bool:
                    return threading.current_thread() is threading.main_thread()
                async def main():
                    loop = asyncio.get_running_loop()
                    from concurrent.futures import ThreadPoolExecutor
                    @server.tool
                    async def shared() -> bool:
                        await loop.run_in_executor(None, int)  # it has a thread
                        return loop is asyncio.get_running_loop()
                    loop.set_default_executor(ThreadPoolExecutor(1))
                    await server.run_async(threaded={threaded})
                    print("after", file=sys.stderr)
                asyncio.run(main())
                """), "-I") as server:
                play(server, """
                    > handshake
                    > 1 call same     < 1 {"structuredContent": {"result": true}}
                    > 2 call shared   < 2 {"structuredContent": {"result": true}}
                    > 3 call on_main_thread
                    < 3 {"structuredContent": {"result": "$on_main"}}
                    """, on_main=not threaded)
                self.assertEqual(server.exit(hang_up=True), 0)
                self.assertEqual(server.stderr.split(), ["enter", "leave", "after"])

    @needs("client")
    def test_it_is_the_first_connection_of_its_server(self):
        """Another may have a loop already."""
        server = Server("s")
        with Client(server), self.assertRaisesRegex(RuntimeError, "before the server"):
            asyncio.run(server.run_async())

    def test_no_handler_is_waited_for_by_its_own_loop(self):
        """Fails (nothing answers any more) if a function on the loop's thread may wait
        for a coroutine of that loop."""
        with process(LIFESPAN_SERVER + textwrap.dedent("""
            @server.resource("a://b")
            async def later() -> str: return "x"
            @server.tool
            def read(ctx: Context): return ctx.read_resource("a://b")
            asyncio.run(server.run_async(threaded=False))
            """), "-I") as server:
            play(server, """
                > handshake
                > 1 call read
                < 1 {"isError": true, "content": [{"text": "...threaded=False..."}]}
                > 2 resources/read {"uri": "a://b"}   < 2 {"contents": [{"text": "x"}]}
                """)

    def test_when_its_task_is_cancelled_so_are_coroutines_and_the_lifespan_ends(self):
        with process(LIFESPAN_SERVER + textwrap.dedent("""
            @server.tool
            async def wait():
                begun.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    print("ended", file=sys.stderr)
            async def main():
                global begun
                begun = asyncio.Event()
                serving = asyncio.ensure_future(server.run_async())
                await begun.wait()
                serving.cancel()
                await asyncio.wait([serving])
            asyncio.run(main())
            """), "-I") as server:
            play(server, "> handshake")
            server.send(raw("1 call wait"))
            self.assertEqual(server.exit(), 0)
            self.assertEqual({*server.stderr.split()}, {"enter", "ended", "leave"})

    @UNIX
    def test_a_signal_ends_it_also_while_a_coroutine_runs(self):
        """Fails (it goes on) if the signal is taken for the coroutine's exception."""
        with process(LIFESPAN_SERVER + textwrap.dedent("""
            @server.tool
            async def leave():
                os.kill(os.getpid(), 15)
                await asyncio.sleep(60)
            asyncio.run(server.run_async())
            """), "-I") as server:
            play(server, "> handshake")
            server.send(raw('1 call leave'))
            self.assertEqual(server.exit(), 143)


SIZE = {"type": "object", "required": ["size"],
        "properties": {"size": {"type": "string", "enum": ["S", "M"]}}}
NOTE = {"type": "object", "properties": {"note": {"type": "string"}}}


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
    def comment(ctx: Context) -> str:
        try:
            return str(ctx.elicit("Note?", NOTE, key="note").content)
        except McpError as error:
            return "invalid: " + error.data["field"]

    @server.tool
    def survey(ctx: Context) -> dict:
        return ctx.ask({
            "roots": {"method": "roots/list", "params": {}},
            "note": {"method": "elicitation/create", "params": {
                "mode": "form", "message": "Note?", "requestedSchema": NOTE}}})

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


RED = '{"color": {"action": "accept", "content": {"value": "red"}}}'
MEDIUM = '{"size": {"action": "accept", "content": {"size": "M"}}}'
ORDER = '"name": "order", "arguments": {"item": "hat", "count": 2}'


class Test11Questions(unittest.TestCase):
    """A handler asks its client: by a request in a session, and without a session by an
    `InputRequiredResult`, after which the handler is replayed."""

    # -- in a session ------------------------------------------------------------------

    @needs("more")
    @clause("2025-11-25/client/elicitation", "elicitation/create")
    def test_in_a_session_the_server_asks_by_request(self):
        server = shop()
        play(server, """
            > 1 tools/call {%(order)s}
            < $a elicitation/create {"message": "Which size?", "requestedSchema":
                {"type": "object", "properties": {"size": {"type": "string", "enum":
                ["S", "M"]}}, "required": ["size"]}}
            < fence
            > $a {"action": "accept", "content": {"size": "M"}}
            < $b elicitation/create {"message": "Which color?", "requestedSchema":
                {"properties": {"value": {"type": "string", "enum": ["red", "blue"]}}}}
            > $b {"action": "accept", "content": {"value": "red"}}
            < 1 = "bill 1: M red hat"
            > 2 call visit
            < $c elicitation/create {"mode": "url", "url": "https://example.com/login",
                "message": "Sign in", "elicitationId": "..."}
            > $c {"action": "decline"}   < 2 = "decline"
            > 3 call survey
            <* $d roots/list
            <* $e elicitation/create {"message": "Note?"}
            > $e {"action": "accept", "content": {"note": "Nice."}}
            > $e {"action": "accept", "content": {"note": "Too late."}}
            > $d {"roots": []}
            < 3 {"structuredContent": {"roots": {"roots": []}, "note": {"action":
                "accept", "content": {"note": "Nice."}}}}
            > 4 tools/call {%(order)s}   < $f elicitation/create {}
            > $f {"action": "cancel"}    < 4 = "not sold: cancel"
            > 5 prompts/get {"name": "letter"}   < $g elicitation/create {}
            > $g -32042 "go away"        < 5 -32042 "go away"
            """ % {"order": ORDER}, era="legacy")
        self.assertEqual(server.done, ["bill", "sold", "bill"])

    @clause("2025-11-25/basic/lifecycle",
            "Implementations **SHOULD** establish timeouts for all sent requests")
    @needs("more")
    def test_a_question_without_an_answer_times_out(self):
        def ask(ctx: Context):
            for question in (
                    ctx.list_roots, functools.partial(ctx.sample, "?"),
                    functools.partial(ctx.elicit, "?", str),
                    functools.partial(ctx.elicit_url, "?", "https://x.io"),
                    functools.partial(ctx.ask, {"r": {"method": "roots/list"}})):
                with self.assertRaisesRegex(RequestTimeout, "no response"):
                    question(timeout=0.01)

        server = server_of(ask, max_workers=1)
        questions = "".join("""
            < $%d %s
            < notifications/cancelled {"requestId": "$%d", "reason": "timed out"}
            """ % (n, method, n) for n, method in enumerate((
                "roots/list", "sampling/createMessage", "elicitation/create",
                "elicitation/create", "roots/list")))
        play(server, '> 1 call ask\n%s\n< 1 {"isError": false}'
             % questions, era="legacy")

    @clause("2026-07-28/client/elicitation",
            "limited to flat objects with primitive properties only")
    @needs("schemas", "more")
    def test_a_form_is_flat(self):
        """What it cannot ask for, and what is no URL, fails before anything is sent."""
        @dataclasses.dataclass
        class Good:
            name: str
            age: int = 3
            day: Optional[datetime.date] = None
            colors: List[Color] = dataclasses.field(default_factory=list)

        accepted = [Good, bool, ["a", 1], Literal["a", "b"], OBJECT, datetime.datetime]
        rejected = [
            (User, "home: "), (List[str], "value: "), (uuid.UUID, "value: "),
            (Level, "value: "), (Any, "value: "),
            (Optional[Union[int, str]], "value: "),
            ({"type": "object", "properties": {"x": True}}, "x: "),
            ({"type": "string"}, "object"), ({"type": "object"}, "properties")]
        asked = []

        def ask(ctx: Context):
            for schema in accepted:
                self.assertEqual(ctx.elicit("?", schema).action, "decline")
            for schema, error in rejected:
                self.assertRaisesRegex(ValueError, error, ctx.elicit, "?", schema)
            for schema in {"type": "string"}, {"type": "object", "properties": {
                    "x": {"type": "object"}}}:
                self.assertRaisesRegex(ValueError, "object", ctx.ask, {"q": {
                    "method": "elicitation/create", "params": {
                        "message": "?", "requestedSchema": schema}}})
            self.assertRaisesRegex(ValueError, "not a URL: 'no address'",
                                   ctx.elicit_url, "?", "no address")

        with Client(server_of(ask), mode=LATEST, elicitation_handler=(
                lambda *question: asked.append(question))) as client:
            client.call_tool("ask")
        self.assertEqual(len(asked), len(accepted))

    @needs("asyncio")
    @both_eras
    def test_questions_at_once_are_answered_though_gather_keeps_their_exceptions(
            self, era):
        async def ask(ctx: AsyncContext) -> list:
            answers = await asyncio.gather(
                ctx.elicit("a?", bool), ctx.elicit("b?", bool), return_exceptions=True)
            return [answer.data for answer in answers]

        with Client(server_of(ask), mode=era,
                    elicitation_handler=lambda *_: True) as client:
            self.assertEqual(client.call_tool("ask").data, [True, True])

    @needs("asyncio")
    @both_eras
    def test_what_once_returns_may_be_changed(self, era):
        def ask(ctx: Context) -> list:
            rows = ctx.once("rows", lambda: [1])
            rows.append(2)
            ctx.elicit("?", bool)
            return rows + ctx.once("rows", list)

        async def ask_later(ctx: AsyncContext) -> list:
            rows = await ctx.once("rows", lambda: [1])
            rows.append(2)
            await ctx.elicit("?", bool)
            return rows + await ctx.once("rows", list)

        with Client(server_of(ask, ask_later), mode=era,
                    elicitation_handler=lambda *_: True) as client:
            for name in "ask", "ask_later":
                self.assertEqual(client.call_tool(name).data, [1, 2, 1])

    @needs("asyncio")
    def test_a_cancellation_that_comes_with_the_answer_is_not_lost(self):
        """Looks inside: both must come between two steps of the loop."""
        async def main():
            asked = mock.Mock(inbox=mcp_min.Inbox(), deadline=lambda: math.inf)
            waiting = asyncio.ensure_future(mcp_min.wait_async(asked))
            await asyncio.sleep(0)
            asked.inbox.finish(lambda: "answer")
            asyncio.get_running_loop().call_soon(waiting.cancel)
            return await asyncio.gather(waiting, return_exceptions=True)

        [outcome] = asyncio.run(main())
        self.assertIsInstance(outcome, asyncio.CancelledError)

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    @needs("more")
    def test_a_client_is_asked_only_what_it_declared(self):
        play(shop(), """
            > 0 initialize 2025-06-18 {"capabilities": {"elicitation": {"x": 1}}}   < 0 {}
            > 1 call haiku
            < 1 -32600 "2025-06-18 it did not declare sampling.  (A handler sees"
            > 2 call roots
            < 2 {"structuredContent": {"result": ["caught by except Exception"]}}
            > 3 call visit
            < 3 -32600 "revision 2025-06-18 it did not declare elicitation.url"
            > 4 prompts/get {"name": "letter"}
            < $a elicitation/create {"message": "To whom?"}
            > $a {"action": "accept", "content": {"value": "Ada"}}            < 4 {}
            # a revision without elicitation
            > handshake 2025-03-26
            > 5 prompts/get {"name": "letter"}
            < 5 -32600 "revision 2025-03-26 it did not declare elicitation.form"
            """)

    @needs("stateless")
    def test_a_question_ends_with_its_request_and_with_the_connection(self):
        """Meanwhile each worker waits.  Fails (it hangs) if one that asks is not
        released, or is needed to handle a response, to write, or to end the waiting; or
        (no response) if a drain without limit waits for nobody."""
        release = gate("release")

        def ask_late(ctx: Context):
            release.wait()
            ctx.elicit("Well?", str)

        server = shop(max_workers=2, drain_seconds=math.inf)
        server.tool(ask_late)
        with quiet() as stderr:
            play(server, """
                > 1 prompts/get {"name": "letter"}   < $q elicitation/create {}
                > notifications/cancelled {"requestId": 1}
                < notifications/cancelled {"requestId": "$q"}
                > 2 call ask_late
                > 3 prompts/get {"name": "letter"}   < $r elicitation/create {}
                ! change
                < notifications/tools/list_changed
                # an answer to the first question is too late
                > $q {"action": "accept", "content": {"value": "Ann"}}
                > $r {"action": "accept", "content": {"value": "Ada"}}
                < 3 {"messages": [{"role": "user", "content": {"text": "Dear Ada"}}]}
                > 4 call comment   < $s elicitation/create {}
                > 5 modern subscriptions/listen {"notifications": {}}
                < notifications/subscriptions/acknowledged {}
                > EOF
                # the result of the stream shows that the end of input has been read
                <* 4 {"isError": true}
                <* 5 {"resultType": "complete"}
                ! release
                < 2 {"isError": true}
                """, era="legacy", release=release.set,
                 change=lambda: server.add_tool(raw, name="new"))
        self.assertEqual(stderr.getvalue(), "")  # this is not an error

    # -- without a session -------------------------------------------------------------

    @needs("stateless", "more")
    @clause("2026-07-28/basic/patterns/mrtr",
            "Servers **MAY** respond to any [supported client request]")
    @clause("2026-07-28/basic/transports/stdio",
            "The server **MUST NOT** write JSON-RPC _requests_ to `stdout`.")
    @clause("2026-07-28/basic/patterns/mrtr",
            "**SHOULD** ignore any information it does not recognize or need.")
    @clause("2026-07-28/basic/patterns/mrtr",
            "**SHOULD** respond with a new `InputRequiredResult` requesting the")
    def test_without_a_session_the_handler_is_replayed_with_the_answers(self):
        """Some may be missing.  Without a state, some or all are taken, as the official
        suite sends them."""
        play(shop(), """
            > 1 tools/call {%(order)s, "inputResponses": null}
            <= 1 {"resultType": "input_required", "requestState": "$s",
                "inputRequests": {"size": {"method": "elicitation/create", "params":
                {"message": "Which size?", "requestedSchema": "..."}}}, "_meta": "..."}
            > 2 tools/call {%(order)s, "requestState": "$s", "inputResponses": {}}
            < 2 {"resultType": "input_required", "inputRequests": {"size": "..."}}
            > 3 tools/call {%(order)s, "inputResponses": %(medium)s}
            < 3 {"resultType": "input_required", "inputRequests": {"color": "..."},
                "requestState": "$s3"}
            > 4 tools/call {%(order)s, "requestState": "$s3", "inputResponses": %(red)s}
            < 4 {"resultType": "complete", "content": [{"text": "bill 2: M red hat"}]}
            > 5 tools/call {%(order)s, "requestState": null, "inputResponses": {"size":
                {"action": "accept", "content": {"size": "S"}}, "color": {"action":
                "accept", "content": {"value": "blue"}}, "zip": 7}}
            < 5 = "bill 4: S blue hat"
            # an accepted form without content is an empty one
            > 6 tools/call {"name": "comment", "inputResponses":
                {"note": {"action": "accept", "content": null}}}
            < 6 = "{}"
            # of several questions only the one without an answer is asked again
            > 7 call survey
            < 7 {"requestState": "$s7", "inputRequests": {"roots": "...", "note":
                "..."}}
            > 8 tools/call {"name": "survey", "requestState": "$s7", "inputResponses":
                {"roots": {"roots": []}}}
            <= 8 {"requestState": "$s8", "inputRequests": {"note": "..."},
                "resultType": "input_required", "_meta": "..."}
            > 9 tools/call {"name": "survey", "requestState": "$s8", "inputResponses":
                {"note": {"action": "accept", "content": {"note": "Nice."}}}}
            < 9 {"structuredContent": {"roots": {"roots": []}, "note": "..."}}
            """ % {"order": ORDER, "red": RED, "medium": MEDIUM}, era="modern")

    @needs("stateless", "more")
    def test_an_invalid_answer_in_a_session(self):
        """It is not asked again; a handler may catch the error."""
        play(shop(), """
            > 1 call comment   < $a elicitation/create {"message": "Note?"}
            > $a INVALID   < 1 = "invalid: note"
            > 2 call survey
            <* $b roots/list
            <* $c elicitation/create {"message": "Note?"}
            > $b {"roots": []}
            > $c INVALID   < 2 -32602 {"field": "note", "issue": "..."}
            > 3 modern tools/call {"name": "survey", "inputResponses":
                {"note": INVALID}}
            < 3 -32602 {"field": "note", "issue": "..."}
            """.replace("INVALID", '{"action": "accept", "content": {"note": 7}}'),
             era="legacy")

    @needs("stateless", "more")
    @clause("2026-07-28/basic/index",
            "the server **MUST** return a [`MissingRequiredClientCapabilityError`]")
    @clause("2026-07-28/basic/patterns/mrtr",
            "**MUST NOT** send an `inputRequests` that the client has not declared")
    def test_a_request_must_declare_the_capability_to_answer(self):
        """Capabilities of another request or of the session do not count.  A question
        without a key gets one."""
        with wire(shop()) as client:
            play(client, "> handshake")
            for request, declared, required, asked in (
                    ('tools/call {"name": "haiku"', {}, {"sampling": {}},
                     {"poem": {"method": "sampling/createMessage", "params": {
                         "maxTokens": 20, "systemPrompt": "Be brief."}}}),
                    ('tools/call {"name": "roots"', {"sampling": {}}, {"roots": {}},
                     {"roots/list-1": {"method": "roots/list"}}),
                    ('tools/call {"name": "visit"', {"elicitation": {}},
                     {"elicitation": {"url": {}}}, {"elicitation/create-1": {
                         "method": "elicitation/create", "params": {"mode": "url"}}}),
                    ('prompts/get {"name": "letter"', {"elicitation": {"url": {}}},
                     {"elicitation": {"form": {}}}, {"to": "..."})):
                with self.subTest(request):
                    play(client, """
                        > 1 modern REQUEST}
                        < 1 {"resultType": "input_required", "inputRequests": %s}
                        > 2 modern REQUEST, "_meta": {"@clientCapabilities": %s}}
                        < 2 -32021 {"requiredCapabilities": %s}
                        """.replace("REQUEST", request) % tuple(
                            map(json.dumps, (asked, declared, required))))
            play(client, """
                > 1 modern prompts/get {"name": "letter", "_meta":
                    {"@clientCapabilities": {"elicitation": {}}}}
                < 1 {"resultType": "input_required"}
                """)

    # -- the signed state --------------------------------------------------------------

    def state(self, client):
        """The state that the server sends with the first question of an order."""
        return client.ask("1 modern tools/call {%s}" % ORDER)["result"]["requestState"]

    def retry(self, peer, state, outcome, params=ORDER, answers=MEDIUM,
              method="tools/call"):
        """Send the answers with the state, and check what comes back."""
        return play(peer, """
            > 2 %s {%s, "requestState": "$state", "inputResponses": %s}   < 2 %s
            """ % (method, params, answers, outcome), era="modern", state=state)

    @needs("stateless")
    def test_an_invalid_answer_fails_the_request(self):
        with wire(shop()) as client:
            state = self.state(client)
            for invalid, field in (
                    ('{"action": "accept", "content": {"size": "XXL"}}', "size"),
                    ('{"action": "accept"}', "size"), ('{"action": "maybe"}', "action"),
                    ('{}', "action"), ('7', "size"), ('"M"', "size"), ('["M"]', "size"),
                    ('{"action": "accept", "content": [1]}', "size")):
                with self.subTest(invalid):
                    self.retry(client, state, '-32602 "size" {"field": "%s", "issue": '
                               '"..."}' % field, answers='{"size": %s}' % invalid)
            self.retry(client, state, '{"inputRequests": {"color": "..."}}')

    @needs("stateless")
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
                with self.subTest(ascii(altered[:99])):
                    self.retry(client, altered, '-32602 "requestState"')
            self.assertEqual(server.done, [])

    @needs("stateless")
    @clause("2026-07-28/basic/patterns/mrtr",
            "a short expiry (TTL), rejecting state presented after it lapses")
    def test_state_is_valid_only_for_its_request_and_for_fifteen_minutes(self):
        server, now = shop(), time.time
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
                    self.retry(client, state, "-32602", params, method=method)
            self.assertEqual(server.done, [])
            same = '"arguments": {"count": 2, "item": "hat"}, "name": "order"'
            for minutes, outcome in (
                    (0, '{"inputRequests": {"color": "..."}}'), (14, "{}"),
                    (16, '-32602 "requestState"')):
                with mock.patch.object(
                        time, "time", lambda minutes=minutes: now() + minutes * 60):
                    self.retry(client, state, outcome, same)

    @needs("stateless")
    @clause("2026-07-28/basic/patterns/mrtr",
            "does not need any information beyond what is directly present in the")
    def test_any_server_with_the_same_secret_accepts_the_state(self):
        first, second, other, stranger = [shop(name, state_secret=secret * 32)
            for name, secret in (("shop", b"k"), ("shop", b"k"), ("bank", b"k"),
                                 ("shop", b"x"))]
        with wire(first) as client:
            state = self.state(client)
        for server in other, stranger:
            self.retry(server, state, '-32602 "requestState"')
        state = self.retry(second, state, '{"requestState": "$next"}')["next"]
        self.retry(first, state, '{"content": [{"text": "bill 1: M red hat"}]}',
                   answers=RED)
        self.assertEqual([server.done for server in (first, second, other, stranger)],
                         [["bill", "sold"], [], [], []])


# ======================================================================================
# 12  Server
# ======================================================================================

class Test12Tools(unittest.TestCase):
    """tools/list and tools/call, and what surrounds them."""

    @both_eras
    def test_what_hosts_add_to_the_arguments_of_any_tool_is_dropped(self, era):
        """Gemini CLI adds wait_for_previous.  A tool may have such a parameter."""
        server = Server("s")
        server.tool(lambda city: city, name="plain")
        server.tool(lambda wait_for_previous: str(wait_for_previous), name="own")
        play(server, """
            > 1 call plain {"city": "Oslo", "wait_for_previous": true, "toolCallId": "7"}
            < 1 = "Oslo"
            > 2 call own {"wait_for_previous": true}    < 2 = "True"
            > 3 call plain {"city": "Oslo", "other": 1}
            < 3 {"isError": true, "content": [{"text": "...other: unknown..."}]}
            """, era=era)

    @both_eras
    def test_whatever_a_tool_raises_or_returns_it_gets_one_valid_response(self, era):
        """An exception is an error result, and only stderr gets the traceback."""
        circular, deep = [], []
        circular.append(circular)
        for _ in range(900):
            deep = [deep]
        outcomes = [
            ValueError("bad \n value"), SystemExit(3), KeyboardInterrupt(),
            GeneratorExit(), MemoryError(), RecursionError(),
            StopIteration(), Exception("\ud800"), BrokenPipeError(), float("nan"),
            {1, 2}, b"\xff", object(), circular, 10 ** 5000, "\ud800", deep,
            {(1, 2): 3}, {"k": b"\0"}, 1 + 2j, len, int, iter([1]), [], "", (1, "x")]

        def act(n: int):
            if isinstance(outcomes[n], BaseException):
                raise outcomes[n]
            return outcomes[n]

        with quiet() as stderr, wire(server_of(act)) as client:
            play(client, "", era)
            for n, outcome in enumerate(outcomes):
                with self.subTest(type(outcome).__name__, n=n):
                    response = client.ask('%d call act {"n": %d}' % (n, n), era)
                    client.fence()
                    self.assertEqual(response["id"], n)
                    result = response.get("result", {"content": []})
                    self.assertIsInstance(result["content"], list)
                    self.assertIsInstance(result.get("structuredContent", {}), dict)
                    if isinstance(outcome, BaseException):
                        self.assertIs(result["isError"], True)
                        self.assertNotRegex(result["content"][0]["text"],
                                            "Traceback|test_mcp_min")
        self.assertRegex(stderr.getvalue(), "(?s)Traceback.*bad")

    @needs("stateless")
    @clause("2026-07-28/basic/index", "Implementations of this protocol version "
            "**MUST NOT** emit these codes")
    def test_error_codes_are_those_of_the_revision(self):
        server = Server("s")

        @server.resource("error://{code}")
        def fail(code: int):
            raise McpError(code, "closed", {"day": "monday"})

        for raised, legacy, modern in [  # the code raised, and sent in each era
                (mcp_min.RESOURCE_NOT_FOUND, -32002, -32602), (-32042, -32042, -32603),
                (-32020, -32020, -32020), (-32055, -32055, -32603),
                (-32021, -32021, -32021), (-32100, -32100, -32100), (7, 7, 7)]:
            with self.subTest(raised):
                for era, sent in ("legacy", legacy), ("modern", modern):
                    play(server, """
                        > 1 resources/read {"uri": "error://%d"}
                        < 1 %d "closed" {"day": "monday"}
                        """ % (raised, sent), era=era)

    @clause("2025-11-25/server/tools", "is returned as a JSON object")
    @both_eras
    def test_structured_content_is_an_object_in_older_revisions(self, era):
        server = Server("s")
        server.add_tool(lambda: mcp_min.ToolResult("x", [1]), name="bare")
        server.add_tool(lambda: [1], name="declared", output_schema={"type": "array"})
        play(server, """
            > 1 call bare
            <M 1 {"structuredContent": [1]}
            <L 1 {"structuredContent": {"result": [1]},
                "_meta": {"fastmcp": {"wrap_result": true}}}
            > 2 call declared
            < 2 {"structuredContent": {"result": [1]},
                "_meta": {"fastmcp": {"wrap_result": true}}}
            > 3 tools/list
            < 3 {"tools": [{"name": "bare"}, {"outputSchema": {"type": "object",
                "properties": {"result": {"type": "array"}}}}]}
            """, era=era)

    def test_errors_can_be_masked(self):
        server = Server("s", mask_errors=True)

        @server.prompt
        @server.tool
        def fail():
            raise ValueError("the password is swordfish")

        @server.tool
        def refuse():
            raise ToolError("on purpose")

        server.add_tool(lambda: mcp_min.ToolResult("x", meta={"swordfish": {1, 2}}),
                        name="encode")
        with quiet():
            names = play(server, """
                > 1 call fail
                < 1 {"isError": true, "content": [{"type": "text", "text": "$text"}]}
                > 2 call refuse
                < 2 {"isError": true, "content": [{"text": "on purpose"}]}
                > 3 prompts/get {"name": "fail"}
                < {"id": 3, "error": {"code": -32603, "message": "$message"}}
                > 4 call encode
                < {"id": 4, "error": {"code": -32603, "message": "$unsent"}}
                """, era="legacy")
        for sent in names.values():
            self.assertNotRegex(sent, "swordfish|TypeError|set")

    @both_eras
    def test_what_has_no_json_form_is_text_and_a_warning_or_an_error(self, era):
        class Thing:
            def __str__(self):
                return "a thing"

        def odd(name: str) -> dict:
            return {"x": {"thing": Thing(), "nan": math.nan, "text": "a"}[name]}

        def items():
            return iter([1, Thing()])

        script = """
            > 1 call odd {"name": "thing"}   < 1 %s
            > 2 call odd {"name": "nan"}     < 2 %s
            > 3 call odd {"name": "text"}   < 3 {"structuredContent": {"x": "a"}}
            > 4 call items                                 < 4 %s
            > 5 resources/read {"uri": "r://items"}                          < 5 %s
            > 1 call odd {"name": "thing"}   < 1 {}
            """
        failed = '{"isError": true, "content": [{"text": "%s"}]}'
        for strict, *expected in (
                (False, '{"structuredContent": {"x": "a thing"}}',
                 '{"structuredContent": {"x": null}}',
                 '{"structuredContent": {"result": [1, "a thing"]}}',
                 r'{"contents": [{"text": "[1, \"a thing\"]"}]}'),
                (True, failed % "TypeError: Thing cannot be written as JSON",
                 failed % "TypeError: nan cannot be written as JSON",
                 '{"isError": true}', '-32603 "Thing cannot be written as JSON"')):
            mcp_min.warn_once.cache_clear()
            with self.subTest(strict), quiet() as stderr:
                server = server_of(odd, items, strict_results=strict)
                server.add_resource("r://items", items)
                play(server, script % tuple(expected), era)
                told = re.findall("mcp_min: (.*?): (Thing|nan) .*; sent as text",
                                  stderr.getvalue())
                self.assertEqual(told, [] if strict else [
                    ("odd", "Thing"), ("odd", "nan"), ("items", "Thing"),
                    ("r://items", "Thing")])

    @both_eras
    def test_blocks_are_content_and_all_else_is_data(self, era):
        for value, result in [
                ({"type": "text", "text": "only data"}, {
                    "structuredContent": {"type": "text", "text": "only data"}}),
                ([Text("a"), ResourceLink("x://y", "y"), {"b": None}, None, "c",
                  EmbeddedResource("x://y", text="z")], {"content": [
                    {"type": "text", "text": "a"},
                    {"type": "resource_link", "uri": "x://y", "name": "y"},
                    {"text": '{"b": null}'}, {"text": "null"}, {"text": "c"},
                    {"type": "resource", "resource": {"uri": "x://y", "text": "z"}}]})]:
            server = Server("s")
            server.add_tool(lambda value=value: value, name="give",
                            input_schema={"type": "object"})
            play(server, '> 1 call give\n< 1 %s' % json.dumps(result), era)

    @needs("more")
    def test_a_decorator_returns_its_function_and_refuses_anything_else(self):
        """An object that can be called has the name of its class."""
        class Plane:
            def __call__(self, hours: int): ...

        server, plane = Server("s"), functools.partial(Plane())
        self.assertEqual([server.tool(plane), Server().middleware(plane)], [plane] * 2)
        with Client(server) as client:
            self.assertEqual(names(client.list_tools()), ["Plane"])
        for no_function, decorate in itertools.product(
                (classmethod(Plane.__call__), 3, b"name"), (
                    server.tool, server.prompt, server.resource, server.method)):
            with self.subTest(no_function, decorate=decorate):
                self.assertRaises(TypeError, decorate, no_function)

    @needs("asyncio", "inside")
    def test_a_lifespan_that_fails_is_raised_by_the_client_of_the_server(self):
        @contextlib.contextmanager
        def sync_lifespan(server):
            raise KeyError("no database")
            yield

        @contextlib.asynccontextmanager
        async def lifespan(server):
            raise KeyError("no database")
            yield

        for manager, threaded in itertools.product(
                (sync_lifespan, lifespan), (True, False)):
            server = Server("s", lifespan=manager, threaded=threaded)
            gc.collect()  # what other tests have left
            with self.assertRaisesRegex(KeyError, "no database"), (
                    warnings.catch_warnings(record=True)) as caught:
                warnings.simplefilter("always")
                try:
                    Client(server).connect()
                finally:
                    gc.collect()
            self.assertEqual(caught, [])  # all ends of its pipes are closed

    @needs("trace")
    def test_a_trace_of_a_server_in_this_process_has_each_line_once(self):
        """A response names the method of its request.  A client may refuse a trace."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(
                os.environ, MCP_MIN_TRACE=os.path.join(folder, "trace")):
            with Client(zoo()) as client:
                client.call_tool("echo", {"text": "once"})
            with Client(zoo(), trace=False) as client:
                client.call_tool("echo", {"text": "never"})
            traced = pathlib.Path(folder, "trace").read_text()
        self.assertEqual(traced.count('"method":"tools/call"'), 1)
        self.assertEqual(traced.count('"text":"once"}]'), 1)
        self.assertNotIn("never", traced)
        self.assertRegex(traced, r'"text":"once"}].*  # tools/call \d+\.\d ms\n')


class Test12Foreigners(unittest.TestCase):
    """Objects of other MCP libraries, in a signature or as a result."""

    @staticmethod
    def foreign(name, bases=(), package="mcp", **members):
        return types.new_class(name, bases, exec_body=lambda namespace: (
            namespace.update({"__module__": package + ".types", **members})))

    @needs("names")
    def test_another_context_is_refused_when_decorated(self):
        other = self.foreign("Context", (typing.Generic[typing.TypeVar("T")],))
        derived = type("Context", (self.foreign("Base", package="fastmcp"),), {})
        for hint in other, other[int], Optional[other], derived:
            def tool(a: int, ctx): ...
            tool.__annotations__["ctx"] = hint
            with self.subTest(hint), self.assertRaisesRegex(
                    TypeError, "ctx: .* another library: import Context from mcp_min"):
                Server("s").add_tool(tool)

    @needs("names")
    def test_content_of_another_library_is_sent_as_what_it_is(self):
        """What cannot be is an error, never its repr."""
        def dumped(name, **data):
            return self.foreign(name, model_dump=lambda self, **_: data)()

        text = dumped("TextContent", type="text", text="hi")
        image = self.foreign("Image", package="fastmcp", to_image_content=(
            lambda self: dumped("ImageContent", type="image", data="eA==",
                                mimeType="image/png")))()
        result = dumped("CallToolResult", content=[{"type": "text", "text": "r"}],
                        isError=True)
        opaque = self.foreign("Thing")()
        server, returned = Server("s"), []
        server.tool(lambda: returned[-1], name="f")
        server.prompt(name="p")(lambda: dumped(
            "PromptMessage", role="assistant", content={"type": "text", "text": "m"}))
        with Client(server) as client:
            def call(value):
                returned.append(value)
                return client.call_tool("f", raise_on_error=False)

            block = {"type": "image", "data": "eA==", "mimeType": "image/png"}
            self.assertEqual(call(text).content, [{"type": "text", "text": "hi"}])
            self.assertEqual(call([image, text]).content,
                             [block, {"type": "text", "text": "hi"}])
            self.assertEqual((call(result).text, call(result).is_error), ("r", True))
            with quiet():
                failed = call([opaque])
            self.assertIn("Thing is of another library", failed.text)
            self.assertTrue(failed.is_error)
            [message] = client.get_prompt("p").messages
            self.assertEqual((message.role, message.content.text), ("assistant", "m"))


class Test12Lists(unittest.TestCase):
    """Pagination, resources, prompts and completion."""

    @clause("2025-11-25/server/utilities/pagination",
            "Invalid cursors **SHOULD** result in an error with code -32602")
    @both_eras
    def test_an_invalid_cursor_is_an_error(self, era):
        server = Server("s", page_size=1)
        for name in "ab":
            server.add_tool(lambda: None, name=name)
            server.add_resource("r://" + name, lambda: "")
        play(server, """
            > 1 tools/list                        < 1 {"nextCursor": "$tools"}
            # a cursor that no list has given, or only another one
            > 2 resources/list {"cursor": "$tools"}
            < 2 -32602 "cursor" {"field": "cursor", "issue": "..."}
            > 3 tools/list {"cursor": ""}         < 3 -32602 "cursor"
            # of an entry that is there no longer, and cannot be called either
            ! remove
            <L notifications/tools/list_changed
            > 4 tools/list {"cursor": "$tools"}   < 4 -32602 "cursor"
            > 5 call a          < 5 -32602 {"name": "a"}
            """, era=era, remove=lambda: server.remove_tool("a"))

    @needs("stateless")
    def test_a_cursor_survives_changes(self):
        """No entry is doubled or left out, because the cursor is no position; a tool
        that is added again keeps its place, which is reported, once for each kind.
        A full last page has no cursor."""
        server = Server("s", page_size=2)
        for n in range(6):
            server.add_tool(lambda: None, name="t%d" % n)

        def change():
            server.remove_tool("t0")
            server.remove_tool("t4")
            for name in "t2", "t6", "t1":
                server.add_tool(lambda: None, name=name, title="new")
            server.add_prompt(lambda: "", name="t2")

        with contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO())) as stderr:
            last = play(server, """
                > 1 tools/list
                < 1 {"tools": [{"name": "t0"}, {"name": "t1"}], "nextCursor": "$next"}
                ! change
                > 2 tools/list {"cursor": "$next"}
                < 2 {"tools": [{"name": "t2", "title": "new"}, {"name": "t3"}],
                    "nextCursor": "$next2"}
                > 3 tools/list {"cursor": "$next2"}   < {"id": 3, "result": "$last"}
                """, era="modern", change=change)["last"]
        self.assertEqual(names(last["tools"]), ["t5", "t6"])
        self.assertNotIn("nextCursor", last)
        warned = re.findall(b"(..) is already registered", stderr.buffer.getvalue())
        self.assertEqual(warned, [b"t2", b"t1"])

    @both_eras
    def test_all_that_is_declared_is_listed_and_served(self, era):
        server = Server("s")
        server.add_tool(
            lambda **arguments: arguments, name="n", title="T", description="D",
            annotations={"readOnlyHint": True}, icons=[{"src": "data:,"}],
            meta={"k": "v"}, output_schema={"type": "object"},
            input_schema={"type": "object", "properties": {"x": {"type": "string"}}})
        server.add_resource("r://text", lambda: "# hi\n", name="t", size=5,
                            mime_type="text/markdown", meta={"ui": 1})
        server.resource("r://many")(lambda: [
            mcp_min.ResourceContents("a", uri="r://a"), b"hi", {"n": 1}])

        @server.resource("r://{city}/now")
        def now(city: str): ...

        @server.prompt(title="R")
        def review(code: str, language: str = "python"):
            "Review code."
            return ["Review this " + language, Message("assistant", Text(code)),
                    {"role": "assistant", "content": "hi"}, Text("bye")]

        play(server, """
            > 1 resources/read {"uri": "r://text"}
            < 1 {"contents": [{"uri": "r://text", "mimeType": "text/markdown",
                "text": "# hi\\n", "_meta": {"ui": 1}}]}
            > 3 resources/read {"uri": "r://nothing"}
            # some clients look for exactly this
            <L {"id": 3, "error": {"code": -32002, "data": "$nothing"}}
            <M {"id": 3, "error": {"code": -32602, "data": "$nothing"}}
            > 5 resources/read {"uri": "r://many"}
            < 5 {"contents": [{"uri": "r://a", "text": "a"}, {"uri": "r://many",
                "blob": "aGk=", "mimeType": "application/octet-stream"}, {"uri":
                "r://many", "text": "{\\"n\\": 1}", "mimeType": "application/json"}]}
            > 4 prompts/get {"name": "review", "arguments": {"code": "1+1"}}
            < 4 {"messages": [
                {"role": "user", "content": {"text": "Review this python"}},
                {"role": "assistant", "content": {"type": "text", "text": "1+1"}},
                {"role": "assistant", "content": {"type": "text", "text": "hi"}},
                {"role": "user", "content": {"type": "text", "text": "bye"}}]}
            """, era=era, nothing={"uri": "r://nothing"})
        with Client(server, mode=era) as client:
            self.assertEqual(client.list_tools(), [{
                "name": "n", "title": "T", "description": "D", "_meta": {"k": "v"},
                "annotations": {"readOnlyHint": True}, "icons": [{"src": "data:,"}],
                "inputSchema": {"type": "object",
                                "properties": {"x": {"type": "string"}}},
                "outputSchema": {"type": "object"}}])
            self.assertEqual(client.list_resources()[0], {
                "uri": "r://text", "name": "t", "mimeType": "text/markdown", "size": 5,
                "_meta": {"ui": 1}})
            self.assertEqual(client.list_resource_templates(), [{
                "uriTemplate": "r://{city}/now", "name": "now"}])
            self.assertEqual(client.list_prompts(), [{
                "name": "review", "title": "R", "description": "Review code.",
                "arguments": [{"name": "code", "required": True},
                              {"name": "language", "required": False}]}])

    @needs("stateless", "inside", "more", "schemas")
    def test_what_cannot_work_is_told_when_it_is_made(self):
        """It leaves nothing behind.  (A capability may be true.)"""
        async def values():
            yield 1

        async def later(ctx, method, params, call_next): ...

        def takes_two(values: types.GenericAlias(list, (int, str))): ...

        def takes_two_contexts(a: Context, b: Context): ...

        def connect(target, **options):
            Client(target, **options).connect()

        async def block():
            async with Client("x.py"): ...

        server = Server("s", capabilities={"tasks": True, "tools": True})
        for text, make, *arguments in (
                ("an async generator", server.tool, values),
                ("middleware, .* are plain functions", server.middleware,
                 functools.wraps(later)(lambda *rest: later(*rest))),
                ("scheme", server.add_resource, "no address", str),
                ("code must be an int", McpError, "oops", "no"),
                ("message must be a str", McpError, -32000, {"a": 1}),
                ("two choices have the same text", mcp_min.form_of, [1, "1"], LATEST),
                ("there are no choices", mcp_min.form_of, [], LATEST),
                ("multiple values", lambda: server.tool("a", name="b")),
                ("not a function: 5", server.tool, 5),
                ("Image needs bytes", mcp_min.Image, pathlib.Path("x.png")),
                ("needs a uri", lambda: mcp_min.EmbeddedResource(text="x")),
                ("lifespan must return a context manager", lambda: Client(
                    Server("s", lifespan=lambda server: iter(()))).connect()),
                ("output_schema is a dict or False",
                 lambda: server.tool(raw, output_schema=True)),
                ("two parameters", server.tool, takes_two_contexts),
                ("name and version must be str", Server, None),
                ("name and version must be str", lambda: Server("s", version=2)),
                ("roots is a list", lambda: Client(server, roots="/tmp")),
                ("16 bytes", lambda: Server("s", state_secret="x" * 16)),
                ("properties", mcp_min.form_of, dict, LATEST),
                ("role must be one of user", Message, None, "hi"),
                ("16 bytes", lambda: Server("s", state_secret=b"swordfish")),
                ("labels.* input_schema, output_schema",
                 lambda: server.add_tool(str, labels=1)),
                ("labels.* name, title, description, icons, meta",
                 lambda: server.add_prompt(str, labels=1)),
                ("labels.* mime_type, size",
                 lambda: server.add_resource("s://x", str, labels=1)),
                ("as JSON", lambda: server.tool(raw, meta={"a": object()})),
                ('needs "type": "object"', lambda: server.tool(raw, input_schema={})),
                ("hosts take", lambda: server.tool(raw, name="no spaces")),
                ("needs a URI", server.resource, raw),
                (r'placeholders \("w", "y"\) .* parameters \("text", "mod.*\) differ',
                 server.resource("menu://{y}/{w}"), raw),
                ("a name of your own", server.method, "tools/list"),
                ("page_size.* 1 or more", lambda: Server("s", page_size=0)),
                ("max_message_bytes", lambda: Server("s", max_message_bytes=-5)),
                ("drain_seconds 0 or more", lambda: Server("s", drain_seconds=-1)),
                ("drain_seconds 0", lambda: Server("s", drain_seconds=math.nan)),
                ("cache_scope must", lambda: Server("s", cache_scope="everybody")),
                ("is a dict, or True", lambda: Server("s", capabilities={"tasks": 5})),
                ("Server: unknown: thread; known are: name, .*threaded.*page_size",
                 lambda: Server("s", thread=False)),
                ("Client: unknown: tiemout; known are: " + ", ".join(
                    Client.__init__.__kwdefaults__ or ()),
                 lambda: Client("x.py", tiemout=5)),
                ("one of debug, info", lambda: Client(["x"], log_level="bogus")),
                ("mode.*" + LATEST, lambda: connect(server, mode="medieval")),
                *[("a root is a path or a file URI",
                   lambda root=root: Client(server, roots=[root]))
                  for root in ("http://x/", {"uri": "ftp://y"}, {})],
                ("needs a command", connect, {"cwd": "x"}),
                ("mcp.json is .* load_config", connect, "mcp.json"),
                *[(f"it has .'{key}'. .* load_config", connect, {key: {"x": {}}})
                  for key in ("mcpServers", "servers")],
                ("proxy", connect, "https://x.org"),
                ("is not stdio", connect, {"url": "https://x.org"}),
                ("two binary streams", connect, (threading, threading)),
                ("async with AsyncClient", lambda: asyncio.run(block())),
                ("elicitation_handler must be `def`", lambda: AsyncClient(
                    Server("s", threaded=False), elicitation_handler=later)),
                (r"values: a list has items of one type; .* list\[int \| str\]",
                 server.tool, takes_two)):
            with self.subTest(text):
                self.assertRaisesRegex((ValueError, TypeError), text, make, *arguments)
        with Client(server) as client:
            self.assertEqual(client.list_tools(), [])
            self.assertEqual(client.server_capabilities, {
                "logging": {}, "tasks": {}, "tools": {"listChanged": True}})

    @unittest.skipUnless(sqlite3, "this Python has no sqlite3")
    @needs("inside")
    def test_common_errors_say_what_to_do(self):
        base, server = sqlite3.connect(":memory:"), Server("s")
        self.addCleanup(base.close)

        server.tool(lambda: base.execute("select 1"), name="select")
        server.tool(lambda: input(), name="ask")
        with Client(server) as client, quiet(), mock.patch.object(
                sys, "stdin", io.StringIO()):
            for tool, hint in (("select", r"Server\(threaded=False\)"),
                               ("ask", "ctx.elicit")):
                result = client.call_tool(tool, raise_on_error=False)
                self.assertRegex(result.text, hint)

    @needs("more")
    @clause("2025-11-25/server/utilities/completion", "Maximum 100 items per response")
    @both_eras
    def test_completion(self, era):
        """Of the template that is named, not of one whose URIs match its text."""
        server = Server("s")
        server.add_prompt(lambda language: "", name="review")
        server.resource("r://{city}")(lambda city: "")
        server.resource("r://{city}-{day}")(lambda city, day: "")
        server.completion("review", "language")(
            lambda value: [value + str(n) for n in range(250)])
        server.completion("review", "author")(
            lambda value: {"values": ["Ada"], "total": 50, "hasMore": True})
        server.completion("r://{city}-{day}", "day")(
            lambda value, context: (context["city"],))
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
            """, era=era)
        self.assertEqual(names["values"], ["py%d" % n for n in range(100)])


class Test12Limits(unittest.TestCase):
    """The rows of the table of limits in Server's docstring, and one beyond each."""

    @needs("schemas")
    def test_texts_of_problems_are_cut_and_charged(self):
        """Fails (each repeats the names of all properties) if they are not."""
        many = {"properties": {"x" * 5000 + str(n): {} for n in range(150)},
                "additionalProperties": False}
        schema = {"type": "array", "items": {"type": "object", **many}}
        [problem] = validate([{"y": 1}], schema)
        self.assertLess(len(problem), mcp_min.MAX_TEXT + 100)
        with self.assertRaisesRegex(SchemaError, "over 500,000 steps"):
            validate([{"y": 1}] * 20_000, schema)
        for schema, value in (({"dependentRequired": {"y": ["z" * 9000]}}, {"y": 1}),
                              ({"type": ["string", "z" * 9000][:1]}, 1)):
            self.assertLess(len(validate(value, schema)[0]), mcp_min.MAX_TEXT + 100)

    @needs("schemas")
    def test_items_with_the_same_hash_are_limited(self):
        """Fails (a second passes for 10,000 of them) if a set is made of any numbers."""
        same = [n * sys.hash_info.modulus for n in range(1, 200)]
        names = [str(uuid.UUID(int=n)) for n in same]
        for hint, value, good in (
                (set[int], same, list(range(200))),
                (dict[uuid.UUID, int], dict.fromkeys(names, 1), {names[0]: 1})):
            with self.subTest(hint):
                signature = Signature(function(hint))
                self.assertEqual(len(signature.bind({"x": good})["x"]), len(good))
                with self.assertRaisesRegex(ValueError, "items with the same hash"):
                    signature.bind({"x": value})

    def test_text_and_numbers_take_no_more_memory_than_is_charged(self):
        """JSON in a text is limited; so is what is written to be compared."""
        server = Server("s")

        @server.tool
        def count(rows: list) -> int:
            return len(rows)

        self.assertEqual(validate([1e308] * 200_000, {"enum": ["x"]}),
                         ['expected "x", got an array'])
        self.assertEqual(validate(1e308, {"const": 1e308}), [])
        with Client(server) as client:
            for size, fails in (20_000, False), (40_000, True):
                result = client.call_tool("count", {"rows": json.dumps([1] * size)},
                                          raise_on_error=False)
                self.assertEqual(result.is_error, fails)

    def test_an_integer_of_many_digits_is_refused_by_every_python(self):
        self.assertEqual(mcp_min.bounded_int("-12"), -12)
        self.assertRaises(ValueError, mcp_min.bounded_int, "9" * 4301)

    def test_the_memory_of_a_message_is_limited(self):
        """By its marks: brackets, commas, colons, quotes; not by those within text."""
        with wire(zoo(max_message_bytes=32_000)) as client:
            play(client, "> handshake")
            for value, count in ((b"[]", 1300), (b"1", 3900), (b'""', 1950),
                                 (b'{"":1}', 780)):
                for wanted, expected in ((count, "< 1 {}"),
                                         (count * 1.05, '< 1 -32700 "once parsed"')):
                    client.send(nested_line(b"1", b"[],", b"", 1).replace(
                        b"[],0", b"[" + b",".join([value] * int(wanted)) + b"]")
                        + b"\n")
                    play(client, expected)
            client.send(echo_line(2, b"[{,," * 6000) + b"\n")
            play(client, "< 2 {}")

    def test_a_million_numbers_pass_in_both_directions(self):
        server, numbers = Server("s"), [[*range(1000)]] * 1000
        server.tool(lambda rows: {"rows": rows}, name="echo")
        with Client(server) as client:
            result = client.call_tool("echo", {"rows": numbers})
            self.assertEqual(result.structured_content, {"rows": numbers})

    def test_results_of_our_own_are_not_counted(self):
        """However many numbers; NaN and infinity are null, which is no number."""
        server = Server("s")
        server.tool(lambda: [0.5] * 6000, name="many", output_schema={
            "type": "array", "items": {"type": "number"}})
        server.tool(lambda: [math.inf], name="odd", output_schema={
            "type": "array", "items": {"type": "number"}})
        with quiet(), mock.patch.object(mcp_min, "MAX_STEPS", 5000), (
                Client(server)) as client:
            self.assertEqual(len(client.call_tool("many").data), 6000)
            odd = client.call_tool("odd", raise_on_error=False)
            self.assertIn("expected number, got null", odd.text)

    def test_the_responses_to_a_batch_are_limited(self):
        server, all_run = Server("s"), threading.Barrier(4)

        @server.tool
        def big():
            all_run.wait(PATIENCE)  # or the results of some refuse the others
            return "x" * 9000

        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 20_000), (
                wire(server)) as client:
            play(client, "> handshake 2025-03-26")
            call = '%d call big'
            client.send([message(call % n) for n in range(4)])
            errors = [response["error"]["message"] for response in client.recv()
                      if "error" in response]
            self.assertIn("The responses to open batches are over", " ".join(errors))

    def test_the_responses_to_all_open_batches_are_limited_together(self):
        """Fails (each may have as much) if they are counted for each batch."""
        def put(batch, *response):
            really_put(batch, *response)
            responses.append(response)

        go, responses = gate("the last of each batch"), []
        really_put = mcp_min.Batch.put
        server = server_of(drain_seconds=PATIENCE)
        server.tool(lambda: "x" * 15_000, name="big")
        server.tool(lambda: go.wait() and "", name="slow")
        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 40_000), (
                mock.patch.object(mcp_min.Batch, "put", put)), (
                wire(server)) as client:
            play(client, "> handshake 2025-03-26")
            for n in range(10, 40, 10):
                client.send([message(f"{n} call slow"), message(f"{n + 1} call big")])
            wait_until(lambda: len(responses) == 3, "all but the last of each")
            go.set()
            errors = [response for _ in range(3) for response in client.recv()
                      if "error" in response]
            self.assertEqual(len(errors), 1)

    def test_a_line_that_waited_does_not_count_as_unread(self):
        """Fails (the connection is closed) if it does, before it is written.  Looks
        inside."""
        connection = mcp_min.ServerConnection(
            mcp_min.BaseServerSession(Server("s"), io.BytesIO(), io.BytesIO()),
            io.BytesIO(), io.BytesIO(), own_input=False, max_workers=1)
        with mock.patch.object(mcp_min, "MAX_UNREAD_BYTES", 1000), connection.lock:
            outbox = connection.outbox
            for size, is_broken in ((5000, False), (900, False), (200, False),
                                    (1, True)):
                outbox.put(b"x" * size)
                self.assertEqual(outbox._broken, is_broken, size)

    @needs("more")
    def test_a_notification_that_waits_is_charged_what_the_client_has_said(self):
        """Fails (all ten are kept, with ten capabilities) if only its line is."""
        go, heard = gate("go on"), []
        server = server_of(drain_seconds=PATIENCE)
        server.method("notifications/acme")(lambda: go.wait() and heard.append(1))
        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 300_000), (
                wire(server)) as client:
            for n in range(10):
                client.ask('%d initialize {"capabilities": {"x": "%s"}}' % (
                    n, "x" * 100_000))
                client.say("notifications/acme")
            play(client, "< fence")
            go.set()
        self.assertLess(len(heard), 6)

    @unittest.skipIf(sys.implementation.name == "pypy", "it counts no references")
    @needs("inside")
    def test_a_host_that_is_busy_keeps_no_call_that_was_cancelled(self):
        """Fails (it is kept, with its arguments) if the job holds it."""
        def requests():
            kind = mcp_min.ServedRequest
            return [one for one in gc.get_objects()
                    if isinstance(one, kind) and one.params.get("host")]

        jobs = queue.SimpleQueue()
        server = server_of(drain_seconds=0, run_handler=jobs.put)
        server.tool(lambda: "x", name="work")
        with wire(server) as client:
            play(client, """
                > handshake
                > 1 tools/call {"name": "work", "host": true}
                """)
            job = jobs.get(timeout=PATIENCE)
            self.assertEqual(len(requests()), 1)
            play(client, """
                > notifications/cancelled {"requestId": 1}
                < fence
                """)
            wait_until(lambda: not requests(), "it is freed")
            job()  # does nothing

    @needs("asyncio")
    def test_a_resource_that_is_read_is_charged_after_its_request_was_cancelled(self):
        """Fails (another goes on, with its arguments, too) if only the request is."""
        go, begun, ended = gate("go on"), gate("begun"), gate("ended")
        server = server_of(drain_seconds=PATIENCE)
        server.resource("slow://")(lambda: begun.set() or go.wait() and "")

        @server.tool
        async def read(text: str, ctx: AsyncContext) -> str:
            try:
                return (await ctx.read_resource("slow://"))[0].text
            finally:
                ended.set()

        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 100_000), (
                wire(server)) as client:
            play(client, "> handshake")
            client.say('1 call read {"text": "%s"}' % ("x" * 100_000))
            begun.wait()
            client.say('notifications/cancelled {"requestId": 1}')
            ended.wait()
            for n in range(2, 100):  # at first the request itself is charged, too
                refused = client.ask('%d call read {"text": "x"}' % n)
                self.assertIn("in flight", refused["error"]["message"])
            go.set()

    @needs("stateless")
    def test_a_state_may_not_take_more_memory_than_a_message(self):
        """Fails (it is parsed) if it is only text, of which each bracket takes more."""
        server = server_of(max_message_bytes=10_000)

        @server.tool
        def ask(ctx: Context) -> str:
            ctx.once("dense", lambda: [[]] * 1200)
            return str(ctx.elicit("?", bool).data)

        with Client(server, mode="modern",
                    elicitation_handler=lambda *_: True) as client:
            self.assertIn("too large", str(raised(client.call_tool, "ask")))

    def test_a_variable_of_a_template_names_no_file_elsewhere_on_windows(self):
        """Streams, devices, and what it cuts off; see also OTHER_URIS."""
        template = UriTemplate("f://{name}")
        for uri, on_windows in (
                ("a.txt", True), ("conundrum", True), ("ab%3Ac", False), ("NUL", False),
                ("con.txt", False), ("COM1", False), ("lpt9%20", False),
                ("AUX.c", False)):
            for system, expected in ("posix", True), ("nt", on_windows):
                with self.subTest(uri, system=system), mock.patch.object(
                        mcp_min.os, "name", system):
                    self.assertEqual(template.match("f://" + uri) is not None, expected)
        self.assertIsNone(template.match("f://" + "x" * mcp_min.MAX_URI))
        self.assertIsNotNone(template.match("f://" + "x" * (mcp_min.MAX_URI - 4)))


class Test12Extras(unittest.TestCase):
    """Middleware and methods of one's own."""

    @needs("more")
    def test_only_a_method_that_is_named_as_one_is_a_notification(self):
        """Fails (it runs without the middleware) if every method may be notified.  One
        that has no function yet is not declared, and a completion neither."""
        server, ran = Server("s"), []
        server.method("acme/wipe")(lambda: ran.append("wiped"))
        server.method("notifications/acme")(lambda: ran.append("told"))
        server.method("acme/unfinished")
        server.completion("prompt", "argument")
        play(server, """
            > handshake
            > acme/wipe
            > notifications/acme
            > 1 acme/wipe                < 1 {}
            > 1 acme/unfinished          < 1 -32601
            > 2 completion/complete {}   < 2 -32601
            """)
        wait_until(lambda: len(ran) == 2)
        self.assertEqual(sorted(ran), ["told", "wiped"])

    @needs("more")
    @both_eras
    def test_middleware_wraps_every_handler(self, era):
        """What it does to a result does not last.  If it forgets to return one, that is
        an error which names it."""
        server, called = zoo(), []
        server.add_tool(lambda: 1, name="one")

        @server.middleware
        def outer(ctx, method, params, call_next):
            called.append(method)
            if params.get("name") == "same":
                raise McpError(-1, "closed")
            result = call_next(ctx, method, params)
            for described in result.get("tools", [result.get("_meta", {})]):
                described["description"] = described.get("description", "") + "!"
            return result

        @server.middleware
        def forgetful(ctx, method, params, call_next):
            called.append("inner")
            result = call_next(ctx, method, params)
            if params.get("name") != "greet":
                return result

        with quiet():
            play(server, """
                > 2 call same {"value": {}}   < 2 -1 "closed"
                > 3 prompts/get {"name": "greet", "arguments": {"name": "Ada"}}
                < 3 -32603 "forgetful"
                """ + """
                > 4 call one   < 4 {"_meta": {"description": "!"}}
                > 5 tools/list              < 5 {"tools": [{"description": "!"}, "..."]}
                """ * 2, era=era)
        self.assertEqual(called, [
            "tools/call", "prompts/get", "inner",
            *["tools/call", "inner", "tools/list", "inner"] * 2])

    @needs("stateless", "more")
    @clause("2025-11-25/basic/utilities/ping",
            "Either the client or server can initiate a ping")
    def test_a_handler_may_ping_its_client(self):
        def check(ctx: Context, timeout: float = 10) -> str:
            error = raised(ctx.ping, timeout=timeout)
            return f"{type(error).__name__} {getattr(error, 'code', None)}"

        play(server_of(check), """
            > handshake 2024-11-05
            > 1 call check   < $a ping
            > $a {}                         < 1 = "NoneType None"
            > 2 call check {"timeout": 0.01}   < $b ping
            < notifications/cancelled {"requestId": "$b"}
            < 2 = "...RequestTimeout..."
            > 3 modern call check   < 3 = "McpError -32601"
            """)

    @needs("stateless", "asyncio", "more")
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

    @needs("inside", "more")
    def test_notifications_whose_handlers_are_behind_are_dropped(self):
        """Fails if they fill memory while a handler runs, threaded or not."""
        def check(threaded):
            server, heard, go = Server("s", threaded=threaded), [], gate("go")

            @server.method("notifications/acme")
            def hear(n: int):
                go.wait()
                heard.append(n)

            with wire(server) as client:
                for n in range(50):
                    client.say('notifications/acme {"n": %d}' % n)
                client.fence()
                go.set()
                wait_until(lambda: len(heard) > 4)  # so there is room again
                client.say('notifications/acme {"n": 50}')
                wait_until(lambda: heard[-1] == 50)
            self.assertEqual(heard, sorted({*heard}))
            self.assertLess(len(heard), 15)

        with mock.patch.object(mcp_min, "MAX_BACKLOG_BYTES", 10000):
            run_together(self, check, [[True], [False]])


# ======================================================================================
# Helpers for both ends: a scripted server, a recording relay, a server of all features
# ======================================================================================

FAKE = r"""
import json, os, sys, time
rules, seen, diary = json.loads(sys.argv[1]), [], sys.argv[2:]
id, asked, token, tries, probes, die = None, None, None, 0, 0, os._exit

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
    send(id=id, error=dict(code=code, message=message, data=data or None))

OFFERED = {"tools": {}, "completions": {}, "resources": {"subscribe": True}}

def legacy(version="2025-11-25", **capabilities):
    result(protocolVersion=version, serverInfo={"name": "fake", "version": "1"},
           capabilities=dict(OFFERED, **capabilities))

def modern(*versions, **capabilities):
    info = {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}}
    result(resultType="complete", supportedVersions=versions or ["2026-07-28"],
           capabilities=dict(OFFERED, **capabilities), _meta=info,
           ttlMs=0, cacheScope="public")

def text(value):
    result(content=[{"type": "text", "text": value}])

def repeat(lines):
    for line in lines:
        say(line.replace("$id", json.dumps(id)).replace("$token", json.dumps(token)))

def again(rounds):                              # one line per round of a request
    global tries
    tries = tries + 1 if {"inputResponses", "requestState"} & set(params) else 0
    repeat([rounds[min(tries, len(rounds) - 1)]])

def notify(name, stream, **params):
    meta = {"io.modelcontextprotocol/subscriptionId": stream}
    send(method="notifications/" + name, params=dict(params, _meta=meta))

def acknowledge(granted=None):
    granted = granted or params["notifications"]
    notify("subscriptions/acknowledged", id, notifications=granted)

def update(name, *streams):
    for stream in streams:
        notify("resources/updated", stream, uri="note://" + name)

RULES = {"discover": "error(-32601)", "initialize": "legacy()", "call": "text('ok')",
         "list": "result(tools=[])", "ping": "result()", "seen": "result(seen=seen)",
         "say": "repeat(params['lines'])", "fence": "result(fence=True)",
         "ask": "asked = id; send(id='s1', **params['request'])",
         "answer": "if asked: send(id=asked, result={'answer': message}); asked = None",
         "pid": "result(pid=os.getpid())", "env": "result(env=dict(os.environ))",
         "listen": "acknowledge()", "start": "", "end": ""}
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


BARE_PYTHON = [sys.executable, "-I", "-S", "-c"]  # the fastest start


def fake(story=None, **rules):
    """The command of a server that does what ``rules`` say.

    A rule is a line of Python that runs when a message comes whose method ends with its
    key (``discover``, ``call``, …), or at the ``start`` or ``end``.  With none it is a
    minimal server of the handshake era.  ``fake/say`` sends ``lines``, in which "$id"
    and "$token" are those of the request; ``fake/ask`` sends ``request`` to the client
    and returns its response.  ``story`` gets a "+" for each start and each key.
    """
    command = [*BARE_PYTHON, FAKE, json.dumps(rules)]
    return command + ([story.path] if story else [])


class FakeServers:
    """A mixin for tests of clients: each client has a `fake` server of its own."""

    MODE = "auto"

    def fake(self, options=None, story=None, **rules):
        options = {"timeout": PATIENCE, "mode": self.MODE, **(options or {})}
        client = Client(fake(story, **rules), **options)
        self.addCleanup(client.close)
        return client.connect()

    def listener(self, options=None, **rules):
        """A client, and a function that waits for its next notification."""
        received = queue.Queue()
        options = {"message_handler": received.put, **(options or {})}
        return self.fake(options, **rules), functools.partial(
            received.get, timeout=PATIENCE)

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
        return pathlib.Path(self.path).read_text().strip()


def gone(pid):
    """Wait until the process ``pid`` has ended; a zombie has."""
    def has_ended():
        try:
            os.kill(pid, 0)
            return ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text()
        except ProcessLookupError:
            return True
        except OSError:  # there is no /proc
            return False

    wait_until(has_ended, f"the end of process {pid}")


def short_patience(seconds=0.15):
    """Each step of ending a process takes at most this long, instead of 20 s."""
    return mock.patch.object(mcp_min.Process, "PATIENCE", seconds)


@contextlib.contextmanager
def relay(server):
    """Two streams of a client that ``server`` serves, and every line that crosses them,
    as (">" or "<", bytes)."""
    def serve():
        with reader, contextlib.suppress(OSError), writer:
            server.serve(reader, writer)

    lines, pipes = [], (*os.pipe(), *os.pipe())
    reader, to_server, from_server, writer = map(os.fdopen, pipes, ("rb", "wb") * 2)
    streams = Recorded(from_server, lines), Recorded(to_server, lines)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield streams, lines
    for stream in reversed(streams):
        with contextlib.suppress(OSError):
            stream.close()
    thread.join(PATIENCE)


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
        for step in range(1, min(n, 1000) + 1):
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

    server.add_tool(server.remove_tool, name="shrink")

    @server.tool
    def touch(uri: str) -> str:
        server.notify_resource_updated(uri)
        return "touched"

    @server.tool
    def whoami(ctx: Context) -> dict:
        return {"client": ctx.client_info["name"], "version": ctx.protocol_version,
                "able": sorted(ctx.client_capabilities)}

    server.resource("config://app", name="config", mime_type="application/json")(
        lambda: {"debug": True})
    server.resource("blob://one", name="blob", mime_type="application/octet-stream")(
        lambda: b"\x00\xff")
    server.resource("note://{name}", name="note", mime_type="text/plain")(
        lambda name: "note " + name)

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

    def languages(value: str, context: dict):
        known = ["python", "perl", "pascal", "ruby", context.get("code", "")]
        return [word for word in known if word.startswith(value)]

    if "more" in PARTS:
        server.completion("review", "language")(languages)
        server.completion("note://{name}", "name")(
            lambda value: [f"{value}{number:03}" for number in range(150)])
        server.method("acme/echo")(lambda params: {"echo": params.get("word")})
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
# 13  Processes: the client of a real process
# ======================================================================================

@needs("client")
class Test13Process(FakeServers, unittest.TestCase):
    """The client and a real process: its start, its end and its stderr."""

    MODE = "legacy"

    def test_every_way_to_name_a_server(self):
        """The values of an entry may be null, and its variables numbers.  A server gets
        a few variables, and no function of bash, or all."""
        ours = {"MCP_MIN_SECRET": "s", "TERM": "() { :; }"}
        inherit = {"inherit_env": True, "env": {"WHO": "me"}}
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ours):
            file, config = (pathlib.Path(folder, name)
                            for name in ("our server.py", "mcp.json"))
            file.write_text("import sys; sys.argv[1:] = ['{}']\n" + FAKE)
            config.write_text(json.dumps({"mcpServers": {
                "ours": {"command": sys.executable, "args": [str(file)],
                         "env": {"WHO": 7}, "cwd": None},
                "relative": {"command": sys.executable, "args": ["our server.py"],
                             "cwd": folder, "env": None}}}))
            entries = load_config(config)

            def connect(label, target, who, options):
                with Client(target, mode="legacy", **options) as client:
                    env = client.request("fake/env")["env"]
                    self.assertEqual((env.get("WHO"), env["PATH"]),
                                     (who, os.environ["PATH"]))
                    self.assertEqual(ours.items() & env.items(),
                                     ours.items() if options else set())

            run_together(self, connect, [
                ("argv", [sys.executable, file], None, {}),
                ("a file", str(file), None, {}), ("an entry", entries["ours"], "7", {}),
                ("an entry with cwd", entries["relative"], None, {}),
                ("all variables", str(file), "me", inherit)])

    @UNIX
    def test_a_command_is_searched_in_the_path_of_the_child(self):
        with tempfile.TemporaryDirectory() as folder:
            tool, flat, none = (pathlib.Path(folder, name) for name in (
                "my-mcp-server", "flat", "none"))
            tool.write_text('#!/bin/sh\nexec "$@"\n')
            tool.chmod(0o755)
            flat.touch()
            path = {"env": {"PATH": folder + ":/bin:/usr/bin"}}
            for command, options in (tool.name, path), ("./" + tool.name, {
                    "cwd": folder}):
                with Client([command, *fake(cwd="result(cwd=os.getcwd())")],
                            mode="legacy", **options) as client:
                    self.assertEqual(client.request("fake/cwd")["cwd"],
                                     os.path.realpath(options.get("cwd", ".")))
            long = {"env": {"PATH": "/a:" * 900}}
            for command, options, expected, reason in (
                    (tool.name, long, FileNotFoundError, "not found in PATH=/a.{198}"),
                    (none, {}, FileNotFoundError, "No such file or directory"),
                    ("./none", {"cwd": folder}, FileNotFoundError, "No such file .*"),
                    (flat, {}, PermissionError, "Permission denied"),
                    (folder, {}, PermissionError, "Permission denied"),
                    (sys.executable, {"cwd": none}, OSError, f".*: {none}")):
                name = os.path.basename(command)
                named = f"^[^:]* cannot start '.*{name}': {reason}$"
                with self.subTest(command), self.assertRaisesRegex(expected, named):
                    Client([command], **options).connect()

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
                    options, call="err('one\\r'); err('two \u00e9'); text('ok')")
                client.call_tool("f")
                wait_until(lambda client=client, received=received:
                           client.stderr_tail == written == received())
                client.close()
        self.assertEqual(nowhere.getvalue(), "")
        self.assertTrue(all(chunk.endswith("\n") for chunk in chunks))

    def test_a_slow_or_broken_stderr_function_does_not_delay_the_server(self):
        """Fails if the reader of the pipe calls the function, or waits for it."""
        release, received = gate("the release"), []
        broken = mock.Mock(side_effect=ValueError("broken"))
        for function in (lambda text: (received.append(text), release.wait())), broken:
            with self.subTest(function=function), quiet() as sys_stderr:
                client = self.fake(
                    {"stderr": function, "mode": "auto"},
                    discover="err('hello'); modern()",
                    call="os.write(2, b'x' * 1000000); err('end'); text('ok')")
                for _ in range(2):
                    self.assertEqual(client.call_tool("f").text, "ok")
                wait_until(lambda client=client: client.stderr_tail.endswith("end\n"))
                self.assertLessEqual(len(client.stderr_tail), 8192)
                wait_until(lambda: received)
                release.set()
                client.close()
            self.assertEqual("Error: " in sys_stderr.getvalue(), function is broken)
        broken.assert_called_once()

    @UNIX
    def test_the_end_of_the_server_fails_its_calls_with_exit_code_and_stderr(self):
        """Also later ones.  Fails if each call waits for an exit, or for a stdout that
        a child holds."""
        def end(rule, code):
            client = self.fake({"stderr": None}, call="err('last line'); " + rule)
            calls = [client.submit("fake/say", {"lines": []}) for _ in range(50)]
            for call, name in (client.call_tool, "f"), (client.request, "fake/fence"):
                error = self.fails(ConnectionClosed, call, name)
                self.assertEqual((error.exit_code, client.exit_code), (code, code))
                self.assertIn("last line", error.stderr)
            self.assertFalse(concurrent.futures.wait(calls, PATIENCE).not_done)
            self.assertEqual({type(call.exception()) for call in calls},
                             {ConnectionClosed})
            client.close()

        run_together(self, end, [
            ("die(3)", 3), ("die(0)", 0), ("os.kill(os.getpid(), 9)", -9)])
        with short_patience(2):  # of which a call waits for a quarter
            run_together(self, end, [("os.close(1); time.sleep(60)", None), (
                "__import__('subprocess').Popen(['sleep', '60']); die(3)", 3)])

    def test_the_last_response_of_a_server_that_has_ended_is_received(self):
        last = 5_000_000
        client = self.fake(call=f"text('x' * {last}); die(3)")
        self.assertEqual(len(client.call_tool("f").text), last)

    @UNIX
    def test_a_server_has_ended_even_if_its_child_keeps_its_stdout_open(self):
        """Fails if only the end of its stdout counts, or is reported; or if the client,
        when it has restarted the server, does not subscribe again, once (by one stream
        for all), or repeats the call."""
        def end(mode):
            client, receive = self.listener(
                {"mode": mode, "auto_restart": True}, discover="modern()",
                subscribe="result()",
                call="import subprocess; subprocess.Popen(['sleep', '20']); die(7)")
            for uri in "note://x", "note://y":
                client.subscribe(uri)
            self.assertEqual(raised(client.call_tool, "f").exit_code, 7)
            self.assertEqual(receive()["method"], "notifications/cancelled")
            seen = json.dumps(self.seen(client))
            self.assertEqual([seen.count(word) for word in (
                "note://x", "note://y", "call")], [1, 1, 0])
            self.assertIsNone(client.exit_code)
            client.close()

        with short_patience():
            run_together(self, end, [["legacy"], ["modern"]][:1 + STATELESS])

    def test_a_subscription_that_fails_after_a_restart_is_reported(self):
        restarted = "open(diary[0]).read().count('+') > 1"

        def end(discover, rule, outcome):
            story, rule = Story(self), f"{rule} if {restarted} else "
            client = self.fake(
                {"mode": "auto", "auto_restart": True}, story, discover=discover,
                subscribe=rule + "result()", listen=rule + "acknowledge()",
                call="die(5)")
            client.subscribe("note://x")
            client.subscribe("note://y")
            raised(client.call_tool, "f")
            self.assertIsInstance(raised(client.request, "fake/fence"), outcome)
            self.assertEqual(str(story).count("+"), 2)

        with quiet() as stderr:
            run_together(self, end, [(discover, *row) for row in (
                ("die(5)", ConnectionClosed), ("error(-32002)", type(None)))
                for discover in ("modern()", "error(-32601)")])
        self.assertIn("no longer subscribed to note://x", stderr.getvalue())

    def test_ctrl_c_just_after_sending_cancels_the_call(self):
        server, effects = everything()
        with relay(server) as ((reader, writer), lines):
            def write(data, write=writer.write):
                written = write(data)
                if b"tools/call" in data:
                    writer.flush()
                    raise KeyboardInterrupt
                return written

            writer.write = write
            with Client((reader, writer), mode="legacy") as client:
                self.fails(KeyboardInterrupt, client.call_tool, "hang")
                client.ping()
                wait_until(lambda: effects in ([], ["hanging", "cancelled"]))
        sent = [json.loads(line) for arrow, line in lines if arrow == ">"]
        self.assertEqual(names(sent[2:], "method"), [
            "tools/call", "notifications/cancelled", "ping"])

    @UNIX
    def test_close_ends_every_server(self):
        ignore = "import signal; signal.signal(15, signal.SIG_IGN); "
        child = ("import subprocess; child = subprocess.Popen([sys.executable, '-I',"
                 " '-c', 'import time; time.sleep(60)']%s); note(str(child.pid)); ")
        silent = child.replace("import time;", "import signal, time; "
                               "signal.signal(15, signal.SIG_IGN);") % (
            ", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL")

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
                ("needs SIGTERM, leaves a silent child that ignores it",
                 silent, "time.sleep(60)", -15),
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
                    "end": "time.sleep(600)"}

        def end(label, last, rules):
            # Python warns of a fork in a process with threads from 3.12 on.
            done = subprocess.run([sys.executable, "-I", "-S", "-W", "ignore", "-c",
                                   code % (HERE, fake(**rules), last)],
                                  capture_output=True, timeout=PATIENCE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            gone(int(done.stdout))

        run_together(self, end, [
            ("the end of the program", "", {}), ("closed twice", close * 2, {}),
            ("a stubborn server", "", stubborn),
            ("the exit of a fork does not end it",
             "os.fork() or sys.exit(); os.wait(); client.request('fake/fence')", {})])

    def test_ctrl_c_while_the_server_is_started_ends_it(self):
        """Fails (it runs on) if it is killed only when a thread cannot be started."""
        processes = []

        def start(name, run):
            if name == interrupted:
                raise KeyboardInterrupt

        def popen(*args, **options):
            processes.append(really_popen(*args, **options))
            return processes[-1]

        really_popen = subprocess.Popen
        for interrupted in "mcp stderr reader", "mcp exit":
            with mock.patch.object(subprocess, "Popen", popen), (
                    mock.patch.object(mcp_min, "start_thread", start)), (
                    self.assertRaises(KeyboardInterrupt)):
                Client(fake(), mode="legacy", stderr=None).connect()
            with processes.pop() as child:
                child.wait(PATIENCE)

    @UNIX
    def test_no_descriptor_and_no_thread_is_left_after_close(self):
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
# 14  Client
# ======================================================================================

class Test14Client(unittest.TestCase):
    """The methods of a client, with client and server in one process."""

    def setUp(self):
        self.session = Session().__enter__()
        self.addCleanup(self.session.__exit__)
        self.client = self.session.client

    @needs("schemas", "more")
    @both_eras
    def test_data_and_text_of_every_form_of_result(self, era):
        oslo = {"city": "Oslo", "days": 3}
        with Session(era, timeout=None) as session:
            session.client.subscribe("note://x")
            for tool, arguments, *expected in (
                    ("add", {"a": 1}, 3, "3", {"result": 3}),
                    ("forecast", {"city": "Oslo"}, oslo, json.dumps(oslo), oslo),
                    ("shout", {"text": "hi"}, "HI", "HI", None),
                    ("nothing", None, "", "", None), ("mixed", {}, "a", "a", None)):
                result = session.client.submit_tool(tool, arguments).result(PATIENCE)
                with self.subTest(tool):
                    self.assertEqual([result.data, result.text,
                                      result.structured_content], expected)
            call = session.client.submit_tool("unlucky")
            self.assertIsInstance(call.exception(PATIENCE), ToolError)

    @needs("asyncio")
    @both_eras
    def test_a_list_comes_whole_or_page_by_page(self, era):
        """A page is the result as it was sent; None is the cursor of the first."""
        server = Server("s", page_size=2)
        for n in range(5):
            server.add_tool(lambda: None, name=f"t{n}")
            server.add_prompt(lambda: "", name=f"p{n}")
            server.add_resource(f"r://{n}", lambda: "")
            server.add_resource(f"r{n}://{{x}}", lambda x: x)
        with Client(server, mode=era) as client:
            face = AsyncClient(server, mode=era)

            async def listed(name, cursor):
                async with face:
                    return await getattr(face, name)(cursor=cursor, timeout=PATIENCE)

            for name, key in (("list_tools", "tools"), ("list_prompts", "prompts"),
                              ("list_resources", "resources"),
                              ("list_resource_templates", "resourceTemplates")):
                cursor, pages = None, []
                while not pages or cursor is not None:
                    page = getattr(client, name)(cursor=cursor)
                    self.assertEqual(page, asyncio.run(listed(name, cursor)))
                    cursor = page.get("nextCursor")
                    pages.append([entry.name for entry in page[key]])
                self.assertEqual([*map(len, pages)], [2, 2, 1])
                self.assertEqual([*itertools.chain(*pages)],
                                 names(getattr(client, name)()))
            with self.assertRaisesRegex(McpError, "cursor"):
                client.list_tools(cursor="")

    def test_close_waits_for_the_callbacks_that_are_due(self):
        """Also in a callback of another client.  Fails (0 of 20) if a thread of the one
        is taken for the other's."""
        def talk(ctx: Context) -> None:
            for n in range(20):
                ctx.info(n)

        def late(params):
            wait_until(lambda: not other.is_connected())
            time.sleep(0.002)
            late_logs.append(params["data"])

        def close(params):
            other.close()
            seen.put(late_logs.copy())

        late_logs, seen = [], queue.Queue()
        with Client(server_of(talk), log_handler=late) as other:
            other.call_tool("talk")
        self.assertEqual(late_logs, [*range(20)])
        late_logs.clear()
        with Client(server_of(talk), log_handler=late) as other:
            other.call_tool("talk")
            with Client(server_of(talk), log_handler=close) as client:
                client.call_tool("talk")
                self.assertEqual(seen.get(timeout=PATIENCE), [*range(20)])

    def test_callbacks_run_in_order_on_one_thread_and_may_call_the_client(self):
        """Those of progress on the thread that waits for the result, before it comes;
        also where they report progress, to the handler of the client, or close it."""
        steps, threads, closed = [], set(), gate("close() in a callback")

        def on_progress(progress, total, message):
            self.client.call_tool("count", {"n": 1})
            threads.add(threading.get_ident())
            steps.append(progress)

        self.client.call_tool("count", {"n": 20}, progress_handler=on_progress)
        self.assertEqual(steps, list(range(1, 21)))
        self.assertEqual(threads, {threading.get_ident()})
        self.assertEqual(self.session.progress, [(1, 1, "step 1")] * 20)
        error = raised(self.client.call_tool, "count", {"n": 3}, progress_handler=(
            lambda *step: (self.client.close(), closed.set())))
        self.assertIsInstance(error, (ConnectionClosed, type(None)))
        closed.wait()

    @clause("2026-07-28/client/elicitation",
            "gather user consent before navigation to the target URL")
    @clause("2025-11-25/client/elicitation",
            "a mode not declared in client capabilities: `-32602` (Invalid params)")
    @both_eras
    def test_a_capability_is_declared_exactly_when_its_handler_is_given(self, era):
        """Each mode of elicitation needs one of its own."""
        server = Server("s")
        extra = {"sampling": {"tools": {}}, "extensions": {"x/y": {}}}

        @server.tool
        def client(ctx: Context) -> dict:
            return {"name": ctx.client_info["name"], **ctx.client_capabilities}

        sampling, roots = {"sampling_handler": print}, {"listChanged": True}
        form = {"elicitation_handler": lambda *question: {}}
        url = {"url_handler": lambda message, url, params: url == "https://x.io"}
        for options, declared in (
                ({}, {}), (sampling, {"sampling": {}}),
                ({"roots": []}, {"roots": roots if era == "legacy" else {}}),
                (form, {"elicitation": {"form": {}}}),
                (url, {"elicitation": {"url": {}}}),
                ({**form, **url}, {"elicitation": {"form": {}, "url": {}}}),
                ({**sampling, "capabilities": extra}, extra)):
            with self.subTest(declared=declared), Client(
                    server, mode=era, client_info={"name": "mine"}, **options) as peer:
                self.assertEqual(peer.call_tool("client").data,
                                 {"name": "mine", **declared})
                modes = declared.get("elicitation", {})
                ask = functools.partial(peer.answer, "elicitation/create")
                for mode in ("form", "url", "voice") if modes else ():
                    question = {"mode": mode, "message": "?", "url": "https://x.io"}
                    if mode in modes:
                        self.assertEqual(ask(question), {"action": "accept"})
                    else:
                        self.assertEqual(raised(ask, question).code, -32602)

    @clause("2026-07-28/client/elicitation",
            "Clients **SHOULD** validate all responses against the provided schema")
    @needs("more")
    @both_eras
    def test_what_a_handler_returns_is_the_answer(self, era):
        """Only True is consent to a URL; content that is invalid is not sent.  The
        state is bound to the arguments received, which the tool may change."""
        server, returned = Server("s"), []
        schemas = {"form": OBJECT, "bool": bool, "choice": (1, 2), "consent": None}

        @server.tool
        def ask(kinds: List[str], ctx: Context) -> list:
            kind = kinds.pop()
            if kind == "sample":
                return [ctx.sample("?").text]
            if kind == "url":
                return [ctx.elicit_url("?", "https://x.io").action]
            answer = ctx.elicit("?", schemas[kind])
            return [answer.action, answer.data if schemas[kind] else None]

        poem = {"role": "assistant", "model": "m", "stopReason": "endTurn",
                "content": {"type": "text", "text": "a poem"}}
        handlers = dict.fromkeys(["elicitation_handler", "url_handler",
                                  "sampling_handler"], lambda *question: returned[-1])
        with quiet() as stderr, Client(server, mode=era, **handlers) as client:
            for kind, value, expected in (
                    ("form", None, ["decline", None]),
                    ("form", Elicited("accept", {"name": "B"}),
                     ["accept", {"name": "B"}]),
                    ("bool", False, ["accept", False]),
                    ("choice", {"value": "2"}, ["accept", 2]),
                    ("consent", True, ["accept", None]),
                    ("consent", False, ["decline", None]),
                    ("consent", {}, ["accept", None]),
                    ("consent", {"action": "cancel"}, ["cancel", None]),
                    ("url", True, ["accept"]), ("url", "yes", ["decline"]),
                    ("url", Elicited("cancel"), ["cancel"]),
                    ("sample", "a poem", ["a poem"]), ("sample", poem, ["a poem"])):
                with self.subTest(kind, value=value):
                    returned.append(value)
                    result = client.call_tool("ask", {"kinds": [kind]})
                    self.assertEqual(result.data, expected)
            wrong = [("sample", [None], -1), ("form", [{"name": 7}], -32603)]
            if "schemas" not in PARTS:
                wrong.pop()
            for kind, returned[:], code in wrong:
                error = raised(client.call_tool, "ask", {"kinds": [kind]})
                self.assertEqual(error.code, code)
            if "schemas" in PARTS:
                self.assertIn("name: expected string, got 7", stderr.getvalue())

    @needs("stateless", "more")
    def test_a_completion_function_can_ask_the_user_only_in_the_legacy_era(self):
        @self.session.server.completion("review", "code")
        def complete_code(value: str, ctx: Context):
            return [str(ctx.elicit("Well?", bool).data)]

        with Session("legacy", self.session.server) as session:
            self.assertEqual(session.client.complete("review", "code", "")["values"],
                             ["True"])
        with self.assertRaisesRegex(McpError, "completion/complete cannot ask"):
            self.client.complete("review", "code", "")

    def test_calls_before_connect_and_after_close_raise_connection_closed(self):
        client = Client(self.session.server)
        self.assertIsInstance(raised(client.list_tools), ConnectionClosed)
        client.connect().close()
        client.close()
        self.assertIsInstance(raised(client.list_tools), ConnectionClosed)
        self.assertIsInstance(raised(client.notify, "acme/x"), ConnectionClosed)

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

    def test_a_writer_that_does_not_say_what_it_has_written_ends_the_connection(self):
        """Fails (it writes the same again, for ever) if that counts as nothing."""
        class Writer:
            def __init__(self, fd):
                self.fileno = lambda: fd

            def write(self, data):
                written.append(data)

            def flush(self): ...
            close = flush

        written, (reader, other_end) = [], os.pipe()
        with os.fdopen(other_end, "wb"):
            client = Client((os.fdopen(reader, "rb", 0), Writer(other_end)),
                            mode="legacy", timeout=PATIENCE)
            self.assertIn("does not say what it has written",
                          str(raised(client.connect)))
        self.assertEqual(len(written), 1)

    def test_without_a_timeout_max_timeout_limits_connecting(self):
        echo = "import sys; sys.stdin.read()"
        client = Client([sys.executable, "-c", echo], timeout=None, max_timeout=0.1)
        self.assertIn("connecting took over 0.1 s", str(raised(client.connect)))

    @needs("more")
    def test_a_subscription_waits_for_another_no_longer_than_its_timeout(self):
        """Fails (it waits for ever) if the lock takes -1 for no limit."""
        subscribe = self.client.subscribe
        for timeout in 0.01, -1:
            with self.client._session.subscriptions.changing:
                [error] = together(functools.partial(
                    raised, subscribe, "x://y", timeout=timeout))
            self.assertIsInstance(error, RequestTimeout)
            self.assertIn("another thread's subscribe", str(error))
        subscribe("note://y")

    def test_the_timeout_of_a_call_that_a_handler_makes_counts(self):
        """Fails (it waits for ever) if no timeout counts while a question is open."""
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("?", bool).data)

        release = threading.Event()
        self.addCleanup(release.set)
        server = server_of(ask)
        server.add_tool(lambda: release.wait() and "x", name="hang")

        def answer(*question):
            error = raised(client.call_tool, "hang", timeout=0.05)
            return isinstance(error, RequestTimeout)

        with Client(server, mode="legacy", elicitation_handler=answer) as client:
            self.assertEqual(client.call_tool("ask").text, "True")

    def test_a_notification_without_a_thread_for_its_handler_is_dropped(self):
        """Fails (the connection is closed) if the error reaches the reader."""
        def chat(ctx: Context) -> str:
            ctx.info("x")
            return "y"

        server = server_of(chat)
        with quiet() as stderr, \
                threads_start_if(lambda name: name != "mcp callbacks"), \
                Client(server, log_handler=print) as client:
            self.assertEqual(client.call_tool("chat").text, "y")
            client.ping()
        self.assertIn("a notification was dropped", stderr.getvalue())

    def test_what_is_not_json_can_be_an_argument_if_it_is_a_model(self):
        """Also while a test has replaced `open`."""
        class Model:
            def model_dump(self, mode, by_alias):
                return {"mode": mode}

        server = Server("s")
        server.tool(lambda x: x["mode"], name="f")
        with mock.patch("builtins.open", mock.mock_open()), Client(server) as client:
            self.assertEqual(client.call_tool("f", {"x": Model()}).text, "json")
            self.assertRaisesRegex(TypeError, "object is not JSON", client.call_tool,
                                   "f", {"x": object()})

    def test_members_of_what_was_received_are_attributes(self):
        server = Server("s")
        server.tool(lambda: {"found": [{"key": 1}]}, name="f",
                    annotations={"readOnlyHint": True})
        server.prompt(name="p")(lambda topic: topic)
        with Client(server) as client:
            [tool], [prompt] = client.list_tools(), client.list_prompts()
            data = client.call_tool("f").data
        self.assertEqual((tool.annotations.readOnlyHint, tool.annotations.idempotentHint,
                          prompt.arguments[0].name, data.found[0].key, data),
                         (True, None, "topic", 1, {"found": [{"key": 1}]}))


@unittest.skipUnless(AsyncClient, "a half without a client")
class Test14AsyncClient(unittest.TestCase):
    """Client's face for asyncio programs."""

    def setUp(self):
        self.server = lab(drain_seconds=0.1)
        self.server.tool(lambda text: text, name="echo")

        @self.server.tool
        async def ask(ctx: AsyncContext) -> str:
            ctx.report_progress(1)
            return (await ctx.elicit("Well?", str)).data

        @self.server.tool
        def talk(ctx: Context) -> None:
            for _ in range(3):
                ctx.info("x")

    @both_eras
    @in_event_loop
    async def test_its_verbs_are_those_of_client_as_coroutines(self, era):
        """With the same arguments and results; handlers may be `async def`."""
        names = {name for name in dir(Client) if name[0] != "_"}
        faces = {name for name in vars(AsyncClient) if name[0] != "_"}
        self.assertEqual(names - faces, {"submit", "submit_tool"})
        steps, threads = [], []

        async def answer(message, schema, params):
            await asyncio.sleep(0)
            threads.append(threading.current_thread())
            return "yes"

        async with AsyncClient(self.server, mode=era, elicitation_handler=answer,
                               progress_handler=lambda *step: steps.append(step),
                               ) as client:
            self.assertEqual((await client.call_tool("ask")).data, "yes")
            results = await asyncio.gather(*[
                client.call_tool("echo", {"text": str(n)}) for n in range(50)])
            self.assertEqual([int(result.text) for result in results], [*range(50)])
            self.assertEqual(client.server_info["name"], "lab")
            with self.assertRaises(McpError):
                await client.read_resource("s://none")
        self.assertEqual(steps, [(1, None, None)] * {"legacy": 1, "modern": 2}[era])
        self.assertEqual(threads, [threading.current_thread()])

    @both_eras
    @in_event_loop
    async def test_a_call_is_cancelled_with_its_task(self, era):
        """Also before it was sent.  Fails (the server goes on) if the thread is not
        told, or if one that has not begun does not look."""
        began, cancelled = self.server.began, self.server.cancelled
        async with AsyncClient(self.server, mode=era) as client:
            loop = asyncio.get_running_loop()
            for first in [began.get], *[[]] * 20:
                task = asyncio.ensure_future(client.call_tool("wait"))
                await asyncio.sleep(0)
                for begin in first:
                    await loop.run_in_executor(None, begin)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.call_tool("wait"), 0.05)
            await client.call_tool("echo", {"text": "x"})
            await loop.run_in_executor(None, cancelled.get)
            await loop.run_in_executor(None, wait_until, lambda: (
                began.qsize() == cancelled.qsize()))

    @in_event_loop
    async def test_a_server_is_ended_if_the_task_that_connects_is_cancelled(self):
        """The loop goes on meanwhile.  (If not, this ends with the timeout.)"""
        story = Story(self)
        silent = fake(story, initialize="", start="note(str(os.getpid()))")
        with short_patience():
            client = AsyncClient(silent, mode="legacy", timeout=PATIENCE)
            task = asyncio.ensure_future(client.connect())
            while "initialize" not in str(story):
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            gone(int(re.findall(r"\d+", str(story))[0]))

    @needs("more")
    @in_event_loop
    async def test_a_subscription_is_cancelled_with_its_task_and_not_by_its_end(self):
        """Fails (the second verb waits for the first) if only calls are cancelled."""
        self.server.resource("s://x")(lambda: "x")
        got = queue.Queue()
        async with AsyncClient(fake(discover="modern()", listen=""),
                               timeout=None) as client:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.subscribe("note://x"), 0.2)
            await asyncio.wait_for(client.unsubscribe("note://x"), PATIENCE / 2)
        async with AsyncClient(self.server, message_handler=got.put) as client:
            await client.subscribe("s://x")
            await client.ping()
            self.server.notify_resource_updated("s://x")
            await asyncio.get_running_loop().run_in_executor(None, got.get)

    @both_eras
    @in_event_loop
    async def test_it_takes_what_tests_for_fastmcp_write(self, era):
        """`transport=`, a nested `async with`, handlers with a context as the last, or
        given to one call as `async def`."""
        steps = []

        async def step(*args):
            steps.append(args)

        async def answer(message, type, params, context):
            return type(value="yes")

        async def answer_as_ours(message, schema, params, loud=False):
            return "yes" if "properties" in schema and loud is False else "no"

        async with AsyncClient(self.server, mode=era,
                               elicitation_handler=answer_as_ours) as client:
            self.assertEqual((await client.call_tool("ask")).data, "yes")
        client = AsyncClient[Any](
            transport=self.server, mode=era, elicitation_handler=answer,
            sampling_handler=lambda messages, params, context: messages[0].content.text)
        async with client:
            async with client:
                result = await client.call_tool("ask", progress_handler=step)
            self.assertEqual(result.data, "yes")
            self.assertIs(await client.ping(), True)
        self.assertFalse(client.is_connected())
        self.assertEqual(steps, [(1, None, None)] * {"legacy": 1, "modern": 2}[era])
        with Client(self.server) as client:
            self.assertRaisesRegex(TypeError, "step is `async def`", client.call_tool,
                                   "ask", progress_handler=step)

    @both_eras
    @in_event_loop
    async def test_a_handler_with_other_parameters_has_failed(self, era):
        """Fails (the call goes on for an hour) if its loop alone hears of that."""
        async def answer(message):
            return "yes"

        with quiet() as stderr:
            async with AsyncClient(self.server, mode=era,
                                   elicitation_handler=answer) as client:
                with self.assertRaisesRegex(McpError, "failed to answer"):
                    await client.call_tool("ask")
        self.assertIn("positional argument", stderr.getvalue())

    @both_eras
    @in_event_loop
    async def test_an_async_handler_is_cancelled_with_the_call_or_the_question(
            self, era):
        """Fails (it goes on, and its thread waits) if nobody tells its task."""
        async def endless(*args):
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                ended.append(args)

        ended = []
        for handlers in ({"elicitation_handler": endless},
                         {"elicitation_handler": lambda *args: "yes",
                          "progress_handler": endless}):
            begun = asyncio.Event()
            async with AsyncClient(self.server, mode=era, **handlers) as client:
                task = asyncio.ensure_future(client.call_tool("ask"))
                await begun.wait()
                task.cancel()
                while not ended:
                    await asyncio.sleep(0.001)
                self.assertEqual(len(ended.pop()), 3)

    @both_eras
    @in_event_loop
    async def test_of_its_async_handlers_nothing_goes_on_after_close(self, era):
        """Nor does a message come that waits for another.  Fails (some go on, or begin)
        if close() only ends the connection."""
        async def endless(*args):
            begun.append(args)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(args)

        begun, ended, threads = [], [], NewThreads()
        client = AsyncClient(self.server, mode=era, elicitation_handler=endless,
                             log_handler=endless)
        with quiet() as stderr, mock.patch.object(mcp_min, "IDLE_SECONDS", 0.05):
            async with client:
                await client.call_tool("talk")
                asking = asyncio.ensure_future(client.call_tool("ask"))
                while len(begun) < 2:
                    await asyncio.sleep(0.001)
            self.assertIsInstance((await asyncio.gather(
                asking, return_exceptions=True))[0], ConnectionClosed)
            self.assertEqual((len(begun), len(ended)), (2, 2))
            while "mcp callbacks" in threads.names():
                self.assertEqual(len(begun), 2)
                await asyncio.sleep(0.01)
        self.assertEqual(stderr.getvalue(), "")

    @both_eras
    def test_the_end_of_its_event_loop_ends_its_handlers_and_another_needs_connect(
            self, era):
        """Fails (tracebacks, a warning, or a thread that waits for ever) if a handler's
        cancellation is an error, or a closed loop is not noticed."""
        async def endless(*args):
            begun.set()
            await asyncio.Event().wait()

        async def first():
            nonlocal begun
            begun = asyncio.Event()
            await client.connect()
            asking.append(asyncio.ensure_future(client.call_tool("ask")))
            await begun.wait()

        async def second():
            with self.assertRaisesRegex(RuntimeError, "loop that connected.*connect()"):
                await client.ping()
            await client.connect()
            await client.ping()
            await client.close()
            self.assertFalse(client.is_connected())

        begun, asking = None, []
        client = AsyncClient(self.server, mode=era, elicitation_handler=endless,
                             message_handler=endless)
        with quiet() as stderr, warnings.catch_warnings():
            warnings.simplefilter("always")
            asyncio.run(first())
            self.server.add_tool(lambda: era, name=era)  # a message, if legacy
            asyncio.run(second())
            gc.collect()  # what asyncio tells of its tasks, it tells here
        self.assertTrue(asking[0].cancelled())
        self.assertNotIn("Traceback", stderr.getvalue())
        # asyncio itself may tell of a task that began while it ended the loop.
        if "Task was destroyed" not in stderr.getvalue():
            self.assertNotIn("never awaited", stderr.getvalue())

    @in_event_loop
    async def test_a_task_that_enters_while_another_leaves_finds_it_open(self):
        """Fails (it is closed) if an entry counts only when it is connected; or if one
        that is cancelled meanwhile closes it for the others."""
        client = AsyncClient(self.server)
        await client.__aenter__()
        entering = asyncio.ensure_future(client.__aenter__())
        await asyncio.sleep(0)
        await client.__aexit__()
        await entering
        nested = asyncio.ensure_future(client.__aenter__())
        await asyncio.sleep(0)
        nested.cancel()
        await asyncio.wait([nested])
        if not nested.cancelled():  # it was faster
            await client.__aexit__()
        await client.ping()
        await client.__aexit__()
        self.assertFalse(client.is_connected())


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
    ("100,000 nested arrays", "[" * 100000 + "]" * 100000),
    ("a number", "7"), ("an empty object", "{}"), ("an empty batch", "[]"),
    ("a response with an unknown id", '{"jsonrpc":"2.0","id":987654,"result":{}}'),
    ("an unknown id alone", '{"jsonrpc":"2.0","id":987654}'),
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
    '"result":null', '"error":"x"', '"error":null', '"result":{},"jsonrpc":"1.0"',
    '"result":{"x":"\xff\xfe"}', '"result":{"x":NaN}', '"result":{}}{"two":{}',
    '"result":{"x":%s}' % ("9" * 5000), '"method":null,"result":[]',
    *['"error":{%s"message":"no disk left"}' % code
      for code in ('"code":"1",', '"code":1.5,', "")]]

REQUESTS = [  # methods of a client that need a capability, and their arguments
    ["list_tools"], ["call_tool", "f"], ["list_prompts"], ["get_prompt", "p"],
    ["list_resources"], ["list_resource_templates"], ["read_resource", "x://y"],
    ["subscribe", "x://y"], ["complete", "p", "a", "v"], ["set_logging_level", "info"]]

INPUT = '{"jsonrpc":"2.0","id":$id,"result":{"resultType":"input_required"%s}}'
QUESTION = (
    ',"inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form",'
    '"message":"name?","requestedSchema":{"type":"object","properties":{}}}}}')
DONE = ('{"jsonrpc":"2.0","id":$id,"result":{"resultType":"complete",'
        '"content":[{"type":"text","text":"done"}]}}')

ACCEPT = {"elicitation_handler": lambda message, schema, params: {}}
MODERN_FAKE = {"discover": "modern()", "call": "again(params['arguments']['rounds'])"}
LISTENING = {"discover": "modern(tools={'listChanged': True})"}

ROUNDS = [  # a result of the server for each round of one call; the text of the final
    # result, "done", or a text of the error
    ([DONE.replace('"resultType":"complete",', "")], "done"), ([DONE], "done"),
    ([DONE.replace('"complete"', "7")], "resultType"),
    ([INPUT % ',"requestState":"s"', DONE], "done"),
    ([INPUT % QUESTION, INPUT % (QUESTION + ',"requestState":"s"'), DONE], "done"),
    ([INPUT % QUESTION], "times in a row"),
    *[([INPUT % members, DONE], "inputRequests") for members in (
        "", ',"requestState":7', ',"inputRequests":[]', ',"inputRequests":{"q":7}',
        QUESTION.replace("elicitation/create", "acme/ask"))],
    ([INPUT % QUESTION.replace("elicitation/create", "sampling/createMessage"), DONE],
     "not found"),  # it has no handler for that
    ([INPUT % QUESTION,
      '{"jsonrpc":"2.0","id":$id,"error":{"code":-32602,"message":"refused"}}'],
     "refused"),
]


class Test14Faults(FakeServers, unittest.TestCase):
    """The client and servers that send invalid messages, or none at all."""

    def methods(self, client):
        """The last words of the methods that the server got after the handshake."""
        methods = [message["method"].rpartition("/")[2]
                   for message in self.seen(client) if "method" in message]
        begin = methods.index("discover") + 1 if "discover" in methods else 0
        return methods[begin:-1]

    def filters(self, client):
        """What the client wants to hear of, for each stream that it opened."""
        return [message["params"]["notifications"] for message in self.seen(client)
                if message["method"] == "subscriptions/listen"]

    def cancelled(self, client):
        """The methods of the requests that the client has cancelled."""
        received = self.seen(client)
        methods = {message.get("id"): message["method"] for message in received}
        return [methods[message["params"]["requestId"]] for message in received
                if message["method"] == "notifications/cancelled"]

    def slow_user(self):
        """An elicitation_handler that waits, its questions, and what releases it."""
        asked, release = [], gate("the release")
        self.addCleanup(release.set)
        return {"elicitation_handler": lambda message, schema, params: (
            asked.append(message) or release.wait() and {})}, asked, release

    # -- lines and responses

    def test_a_bad_question_and_a_bad_answer_get_an_error(self):
        """Fails (no response) if only what was read, or what is JSON, is answered."""
        client = self.fake({"sampling_handler": lambda *_: {"content": object()},
                            "max_message_bytes": 4000}, start="answers = []",
                           answer="answers.append([id, message['error']['code']])",
                           answers="result(answers=answers)")
        question = '{"jsonrpc":"2.0","id":"%s","method":%s}'
        with quiet():
            say(client, nested_line(b'"deep"', b"[", b"]", 300).decode(),
                question % ("long", '"%s"' % ("x" * 5000)), question % ("m", 5),
                '{"jsonrpc":"1.0","id":"v","method":"ping"}',
                question % ("p", '"roots/list","params":[1]'),
                question % ("j", '"sampling/createMessage","params":{"messages":[]}'),
                OK)
            wait_until(lambda: sorted(client.request("fake/answers")["answers"]) == [
                ["deep", -32700], ["j", -32603], ["long", -32801], ["m", -32600],
                ["p", -32602], ["v", -32600]])

    def test_close_while_another_thread_connects_leaves_nothing(self):
        """Fails (a pipe stays open; it takes 4 s) if nobody reads to the end."""
        client = Client(fake())
        start = client._start

        def start_and_close():
            process = start()
            client.close()
            return process

        with mock.patch.object(client, "_start", start_and_close):
            self.fails(ConnectionClosed, client.connect)
        self.assertFalse(client.is_connected())
        self.assertTrue(client._session.process.reader.closed)
        self.assertEqual(client.exit_code, 0)  # no signal was needed

    def test_invalid_and_unexpected_lines_before_a_response_are_ignored(self):
        """A cancellation of what is over is not the end of a subscription."""
        steps = []
        for version, rules in ((LATEST, {}), (MODERN, MODERN_FAKE))[:1 + STATELESS]:
            client, receive = self.listener({
                "log_handler": str, "stderr": None,
                "progress_handler": lambda *step: steps.append(step)}, **rules)
            self.assertEqual(client.protocol_version, version)
            for label, line in IGNORED_LINES:
                with self.subTest(label, version=version):
                    self.assertIs(say(client, line, OK)["ok"], True)
            say(client, NOTIFICATION % ("fence", ""), OK)
            fence = iter(lambda get=receive: get()["method"], "notifications/fence")
            self.assertNotIn("notifications/cancelled", fence)
        self.assertEqual(steps, [])

    def test_a_malformed_response_fails_only_its_own_call(self):
        """The message of an error without a usable code is kept.  A result must have
        what its method returns."""
        for rules in ({}, MODERN_FAKE):
            client = self.fake(**rules)
            for members in MALFORMED:
                with self.subTest(members):
                    error = raised(
                        say, client, '{"jsonrpc":"2.0","id":$id,%s}' % members)
                    other = '{"id":$id,"jsonrpc":"2.0",%s}' % members
                    self.assertEqual(str(raised(say, client, other)), str(error))
                    self.assertEqual(error.code, -32603)
                    if "disk" in members:
                        self.assertIn("no disk left", str(error))
            self.fence(client)
        client = self.fake(read="result(contents={})", complete="result()",
                           list="result(tools=[1])", call="result(resultType='task')",
                           get="result(messages=5)", initialize="legacy(prompts={})")
        for method, *arguments in (
                (client.read_resource, "note://x"), (client.list_tools,),
                (client.complete, "p", "word", "x"), (client.call_tool, "f"),
                (client.get_prompt, "p")):
            error = raised(method, *arguments)
            self.assertEqual(error.code, -32603)
            self.assertIn("Malformed response", str(error))
        self.assertIn('"messages"', str(error))

    def test_a_message_that_is_too_long_or_too_deep_fails_its_call(self):
        """A limit is named with the option that moves it."""
        start = '{"jsonrpc":"2.0","id":%d,"result":{"x":'
        client = self.fake(
            call=f"say({start!r} % id + '[' * 300 + ']' * 300 + '}}}}')",
            read=f"say({start!r} % id + '\"' + 'x' * (16 << 20) + '\"}}}}')")
        error = raised(client.call_tool, "f")
        self.assertEqual((error.code, error.local), (-32700, True))
        error = raised(client.read_resource, "x://y")
        self.assertEqual((error.code, error.local, error.message), (
            -32801, True, ("The response to resources/read x://y has over 16 MiB: "
                           "Client(max_message_bytes=…)")))
        self.fence(client)
        server, size = Server("s", max_message_bytes=3 << 20), 2 << 20
        server.tool(lambda size: "x" * int(size), name="big")
        server.tool(lambda text: str(len(text)), name="length")
        with Client(server, max_message_bytes=1 << 20) as client:
            self.assertEqual(raised(client.call_tool, "big", {"size": size}).code,
                             -32801)
            self.assertEqual(client.call_tool("length", {"text": "x" * size}).text,
                             str(size))
            error = raised(client.call_tool, "length", {"text": "x" * 2 * size})
            self.assertEqual((error.code, error.local, error.message), (
                -32801, False, "A message has over 3 MiB: Server(max_message_bytes=…)"))
        with Client(server, max_message_bytes=3 << 20) as client:
            self.assertEqual(len(client.call_tool("big", {"size": size}).text), size)

    def test_an_answer_that_is_too_long_or_too_deep_fails_its_question(self):
        """Fails (the handler waits until its timeout) if only a client looks for whom
        such a line is; and the client is sent no error under the question's id."""
        deep = functools.reduce(lambda inner, _: {"a": inner}, range(40), {})
        for content, options in (("x" * 5000, {"max_message_bytes": 4000}),
                                 (deep, {"max_depth": 30})):
            server, failed = Server("s", **options), queue.Queue()

            @server.tool
            def ask(ctx: Context, failed=failed):
                try:
                    ctx.sample("?", timeout=2 * PATIENCE)
                except McpError as error:
                    failed.put(error.local)

            answer = {"role": "assistant", "model": "m", "content": {
                "type": "text", "text": "", "_meta": {"content": content}}}
            with Client(server, mode=LATEST,
                        sampling_handler=lambda *_, answer=answer: answer) as client:
                client.call_tool("ask")
            self.assertIs(failed.get(timeout=PATIENCE), True)

    def test_results_of_other_implementations(self):
        client = self.fake(call="result(**params['arguments']['result'])")
        wrapped = {"content": [], "structuredContent": {"result": 1}}
        for result, data in (
                ({}, ""), ({"content": [{"type": "odd"}]}, ""),
                ({"content": [Text("x")], "isError": True}, "x"),
                (wrapped, {"result": 1}),
                ({**wrapped, "_meta": {"fastmcp": {"wrap_result": True}}}, 1)):
            received = client.call_tool("f", {"result": result}, raise_on_error=False)
            with self.subTest(result=result):
                self.assertEqual((received.data, received.is_error),
                                 (data, "isError" in result))
        for response in OK.replace("$id", '"$id"'), OK[:-1] + ',"error":null}':
            received = say(client, response, OK.replace("true", "false"))
            self.assertIs(received["ok"], True)

    @clause("2025-03-26/basic/index", "**MUST** support receiving JSON-RPC batches")
    def test_a_client_of_2025_03_26_accepts_batches(self):
        """However long: the line is limited, and no request is refused by it."""
        client, receive = self.listener(initialize="legacy('2025-03-26')")
        ping = '{"jsonrpc":"2.0","id":"s1","method":"ping"}'
        lines = [NOTIFICATION % ("x", "")] * 150 + [ping, "7", OK]
        self.assertIs(say(client, "[%s]" % ",".join(lines))["ok"], True)
        self.assertEqual(receive()["method"], "notifications/x")
        self.assertIn({"jsonrpc": "2.0", "id": "s1", "result": {}}, self.seen(client))

    def test_notifications_without_the_usual_prefix_are_understood(self):
        """But not a bare `message`."""
        steps, logs = [], []
        client, receive = self.listener({
            "progress_handler": lambda *step: steps.append(step),
            "log_handler": lambda params: logs.append(params["data"])})
        step = PROGRESS % ("$token", 1)
        log = NOTIFICATION % ("message", ',"params":{"level":"info","data":"%s"}')
        for line, prefix in (
                (NOTIFICATION % ("tools/list_changed", ""), ""), (step, ""),
                (step, "$/"), (log % 1, "logging/"), (log % 2, ""),
                (log % 3, "notifications/")):
            say(client, line.replace("notifications/", prefix), OK)
        wait_until(lambda: "3" in logs)
        self.assertEqual((len(steps), logs), (2, ["1", "3"]))
        self.assertEqual(receive()["method"], "notifications/tools/list_changed")

    # -- lists, capabilities, settings

    def test_a_list_that_does_not_end_is_an_error(self):
        """A cursor repeats, or the bytes, the entries or the empty pages are too many;
        or it takes too long.  Fails if each page has its own limits."""
        repeat = "result(nextCursor=%s, tools=[{'name': 't', 'inputSchema': {}}])"
        grow = "n += 1; result(nextCursor=str(n), tools=[{'name': %s}] * %d)"
        swap = repeat % "'x' if params.get('cursor') == 'y' else 'y'"
        with mock.patch.multiple(mcp_min, MAX_ENTRIES=100, MAX_LIST_BYTES=1 << 20):
            for rule, pages in ((repeat % "'again'", 2), (swap, 3),
                                (grow % ("'x' * 100000", 1), 11),
                                (grow % ("'t'", 20), 5), (grow % ("'t'", 0), 102)):
                client = self.fake(start="n = 0", list=rule)
                self.assertIn("do not end", str(raised(client.list_tools)))
                self.assertEqual(self.methods(client)[2:], ["list"] * pages)
        client = self.fake({"max_timeout": 0.3}, start="n = 0",
                           list="time.sleep(0.02); " + grow % ("'t'", 1))
        error = self.fails(RequestTimeout, client.list_tools)
        self.assertIn("no response within max_timeout", str(error))

    @clause("2026-07-28/server/utilities/caching", "the client **SHOULD** discard all "
            "cached pages and re-fetch from the beginning")
    def test_a_list_whose_cursor_has_expired_is_read_again_once(self):
        page = ("tries += 1; cursor = params.get('cursor'); "
                "error(-32602, 'Invalid cursor') if cursor and tries < %d else result("
                "tools=[{'name': 't'}], **({} if cursor else {'nextCursor': 'c'}))")
        client = self.fake(start="tries = 0", list=page % 4)
        self.assertEqual(names(client.list_tools()), ["t", "t"])
        for rule, requests in (page % 99, 4), ("error(-32602)", 1):
            client = self.fake(start="tries = 0", list=rule)
            self.assertEqual(raised(client.list_tools).code, -32602)
            self.assertEqual(self.methods(client)[2:], ["list"] * requests)

    @clause("2025-11-25/basic/lifecycle",
            "Only use capabilities that were successfully negotiated")
    def test_a_request_that_needs_a_missing_capability_is_not_sent(self):
        """One that is true is there.  In 2024-11-05 completions cannot be declared."""
        for rules in ({"initialize": "OFFERED.clear(); legacy(prompts=False)"},
                      {"discover": "OFFERED.clear(); modern()"})[:1 + STATELESS]:
            client = self.fake(**rules)
            before = self.methods(client)
            for name, *arguments in REQUESTS:
                with self.subTest(name, rules=rules):
                    error = raised(getattr(client, name), *arguments)
                    self.assertEqual((error.code, error.local), (-32601, True))
            self.assertEqual(self.methods(client), [*before, "seen"])
        with Client(Server("s")) as client:
            error = raised(client.request, "acme/none")
            self.assertEqual((error.code, error.local), (-32601, False))
        client = self.fake(complete="result(completion={'values': ['x']})", initialize=(
            "OFFERED.clear(); legacy('2024-11-05', tools=True)"))
        self.assertEqual(client.complete("p", "a", "v")["values"], ["x"])
        self.assertEqual(client.list_tools(), [])

    @needs("stateless")
    def test_an_error_that_the_server_did_not_send_is_local(self):
        """Also one with the code of a response, or of our own handler."""
        def ask(ctx: Context):
            ctx.elicit("?")

        options = {"mode": MODERN, "elicitation_handler": lambda *_: 1 / 0}
        with quiet(), Client(server_of(ask), **options) as client:
            for call, arguments, code in (
                    (client.call_tool, ["ask"], -32603),
                    (client.answer, ["roots/list"], -32601),
                    (client.set_logging_level, ["loud"], -32602)):
                error = self.fails(McpError, call, *arguments)
                self.assertEqual((error.code, error.local), (code, True), call)
            self.assertFalse(self.fails(McpError, client.call_tool, "none").local)
        for rule, is_local in (("modern('2099-01-01')", True),
                               ("error(-32021, 'you need roots')", False)):
            for mode in "auto", "modern":
                client = Client(fake(discover=rule), mode=mode, stderr=None)
                self.assertIs(self.fails(McpError, client.connect).local, is_local)

    def test_every_request_has_a_timeout_and_a_progress_token_of_its_own(self):
        client = self.fake(
            list="", call="", read="", get="", complete="", unsubscribe="", ping="",
            setLevel="", subscribe="'/x' in params['uri'] and result()",
            initialize="legacy(logging={}, prompts={})")
        client.subscribe("x://x")
        for name, *arguments in *REQUESTS, ["unsubscribe", "x://x"], ["ping"]:
            with self.subTest(name):
                self.fails(RequestTimeout, getattr(client, name), *arguments,
                           timeout=0.01)
        requests = [message["params"]["_meta"]["progressToken"]
                    for message in self.seen(client)[2 + STATELESS:]
                    if "id" in message]
        self.assertEqual(len({*requests}), 14)

    def test_a_server_is_sent_only_what_it_can_use(self):
        settings = {"log_level": "info", "roots": ["file:///a"]}
        for options, rules, sent in (
                (settings, {}, ["initialize", "initialized", "list_changed"]),
                (settings, {"initialize": "legacy(logging={})", "setLevel": "result()"},
                 ["initialize", "initialized", "setLevel", "list_changed"]),
                (settings, MODERN_FAKE, []), ({"log_handler": print}, LISTENING, []),
                ({"message_handler": print}, MODERN_FAKE, []),
                ({"message_handler": print}, LISTENING, ["listen"]),
        )[:2 + 4 * STATELESS]:
            with self.subTest(rules, options=options):
                client = self.fake(options, **rules)
                client.set_roots(["file:///b"])
                self.assertEqual(self.methods(client), sent)
        client = self.fake({"mode": LATEST})
        for uri in "file:///a", "file:///b":  # which it was not told to ask for
            client.set_roots([uri])
        self.assertEqual(self.methods(client), ["initialize", "initialized"])
        client.close()
        client.set_roots([])

    # -- input required

    @needs("stateless")
    def test_a_call_whose_results_require_input(self):
        client = self.fake(ACCEPT, **MODERN_FAKE)
        with mock.patch.object(mcp_min, "EMPTY_ROUND_SECONDS", 0.01):
            for rounds, expected in ROUNDS:
                with self.subTest(rounds):
                    call = functools.partial(client.call_tool, "f", {"rounds": rounds})
                    if expected == "done":
                        self.assertEqual(call().text, "done")
                    else:
                        self.assertIn(expected, str(self.fails(McpError, call)))
                    self.fence(client)

    @needs("stateless")
    def test_request_state_is_returned_unchanged_under_a_new_id(self):
        state = "\\u00e9 \\ud83d\\ude00 \\\"x\\\" \\\\ "
        client = self.fake(ACCEPT, **MODERN_FAKE)
        sent = {"rounds": [INPUT % (QUESTION + f',"requestState":"{state}"'),
                           INPUT % QUESTION, DONE]}
        client.call_tool("f", sent)
        calls = [message for message in self.seen(client)
                 if message["method"] == "tools/call"]
        self.assertEqual(len({call["id"] for call in calls}), 3)
        accepted = {"q": {"action": "accept", "content": {}}}
        keys = "arguments", "inputResponses", "requestState"
        received = [[call["params"].get(key) for key in keys] for call in calls]
        self.assertEqual(received, [
            [sent, None, None], [sent, accepted, json.loads(f'"{state}"')],
            [sent, accepted, None]])

    @needs("stateless")
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

    @needs("stateless")
    def test_a_call_cancelled_in_a_pause_leaves_nothing_behind(self):
        """Fails if what it waits with stays in the table.  Looks inside."""
        client = self.fake(**MODERN_FAKE)
        outgoing = client._session.connection.outgoing
        with mock.patch.object(mcp_min, "EMPTY_ROUND_SECONDS", PATIENCE):
            call = client.submit_tool("f", {"rounds": [INPUT % ',"requestState":"s"']})
            wait_until(lambda: "call" in self.methods(client))
            wait_until(lambda: [*map(type, [*outgoing])] == [object])
            self.assertTrue(call.cancel())
            wait_until(lambda: not outgoing)

    @needs("stateless")
    def test_a_call_cancelled_between_two_rounds_is_not_sent_again(self):
        """The second call, which pauses as long, comes to its second round later."""
        rounds = {"rounds": [INPUT % ',"requestState":"s"', DONE]}
        client = self.fake(**MODERN_FAKE)
        first = client.submit_tool("f", rounds)
        wait_until(lambda: "call" in self.methods(client))
        self.assertTrue(first.cancel())
        self.assertEqual(client.call_tool("f", rounds).text, "done")
        self.assertEqual(self.methods(client).count("call"), 3)

    @needs("stateless")
    def test_a_call_that_has_ended_no_longer_asks_the_user(self):
        options, asked, release = self.slow_user()
        with mock.patch.object(mcp_min, "MAX_QUESTIONS", 1):
            client = self.fake(options, **MODERN_FAKE)

        def call(name):
            return client.submit_tool("f", {"rounds": [
                INPUT % QUESTION.replace("name?", name), DONE]})

        first = call("first?")
        wait_until(lambda: asked)
        second, third = call("second?"), call("third?")
        wait_until(lambda: self.methods(client).count("call") == 3)
        self.assertTrue(second.cancel())
        release.set()
        for waiting in first, third:
            self.assertEqual(waiting.result(PATIENCE).text, "done")
        self.assertEqual(asked, ["first?", "third?"])

    # -- requests of the server

    def test_requests_of_a_server_get_a_response(self):
        client = self.fake()
        self.assertEqual(ask(client, "ping"),
                         {"jsonrpc": "2.0", "id": "s1", "result": {}})
        methods = ["acme/ask", "sampling/createMessage", "roots/list", "tools/list"]
        for method in methods:
            self.assertEqual(ask(client, method, messages=[])["error"]["code"], -32601)
        self.assertEqual(raised(client.answer, "acme/ask").code, -32601)

    @needs("stateless")
    def test_requests_of_a_stateless_server_get_no_response(self):
        client = self.fake({"sampling_handler": lambda *a: "x"}, **MODERN_FAKE)
        for method in "ping", "sampling/createMessage", "roots/list":
            say(client, json.dumps({"jsonrpc": "2.0", "id": "s1", "method": method,
                                    "params": {"messages": [], "maxTokens": 1}}), OK)
        self.fence(client)
        self.assertTrue(all("method" in message for message in self.seen(client)))

    def test_an_exception_of_a_handler_is_an_error_response(self):
        for error, code, message in (
                (McpError(-1, "rejected"), -1, "rejected"),
                (RuntimeError("SECRET"), -32603, "The client failed to answer")):
            client = self.fake({"elicitation_handler": mock.Mock(side_effect=error)})
            with self.subTest(error=type(error)), quiet() as stderr:
                answer = ask(client, "elicitation/create", message="?",
                             requestedSchema=OBJECT)
                self.assertEqual(answer["error"], {"code": code, "message": message})
                self.assertEqual("SECRET" in stderr.getvalue(), code == -32603)

    def test_a_form_of_several_fields_is_answered_with_all_of_them(self):
        """Fails (content that is no object is sent) if any answer is taken."""
        form = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}}
        for answer in "yes", True, False, ["x"]:
            client = self.fake({"elicitation_handler": lambda *_, it=answer: it})
            with self.subTest(answer), quiet() as stderr:
                response = ask(client, "elicitation/create", message="?",
                               requestedSchema=form)
                self.assertEqual(response["error"]["code"], -32603)
                self.assertIn("form of several fields", stderr.getvalue())

    def test_a_form_may_be_answered_with_any_kind_of_dict(self):
        """Fails (it is nested in itself) if only a plain one is the whole answer."""
        form = {"type": "object", "properties": {"a": {"type": "string"}}}
        answer = collections.OrderedDict(a="x")
        client = self.fake({"elicitation_handler": lambda *_: answer})
        response = ask(client, "elicitation/create", message="?", requestedSchema=form)
        self.assertEqual(response["result"],
                         {"action": "accept", "content": {"a": "x"}})

    def test_a_batch_may_follow_the_response_to_initialize_at_once(self):
        """Fails (the ping is dropped) if it waits for the thread that connects."""
        ping = '[{"jsonrpc":"2.0","id":"p","method":"ping"}]'
        client = self.fake(initialize=f"legacy('2025-03-26'); say({ping!r})")
        pong = {"jsonrpc": "2.0", "id": "p", "result": {}}
        wait_until(lambda: pong in self.seen(client), "the response")

    def test_what_was_sent_just_before_close_arrives(self):
        """Fails if `close` drops what a thread of its own was about to write."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            for _ in range(5):
                client = self.fake(
                    note=f"with open({str(log)!r}, 'a') as file: file.write('.')")
                client.notify("acme/note", {"text": "x" * 5000})
                client.close()
            self.assertEqual(log.read_text(), ".....")

    def test_questions_beyond_eight_wait_and_those_beyond_a_limit_are_refused(self):
        """Fails (by hanging) if a question that is refused gets no response."""
        def responses():
            return {message["id"]: message.get("result") or message["error"]["code"]
                    for message in self.seen(client)
                    if str(message.get("id")).startswith("q")}

        options, asked, release = self.slow_user()
        client = self.fake(options, call="text('done'); [send(id=f'q{n}', params={"
                           "}, method='elicitation/create') for n in range(20)]")
        refused = {f"q{n}": -32603 for n in range(15, 20)}
        with mock.patch.object(mcp_min, "MAX_REQUESTS", 15):
            client.call_tool("f")
            wait_until(lambda: responses() == refused)
        wait_until(lambda: len(asked) == 8)
        self.assertEqual((ask(client, "ping")["result"], len(asked)), ({}, 8))
        release.set()
        accepted = {f"q{n}": {"action": "accept"} for n in range(15)}
        wait_until(lambda: responses() == {**accepted, **refused})

    # -- results that do not fit

    @needs("schemas")
    def test_a_result_that_does_not_fit_its_output_schema_keeps_its_content(self):
        """The patterns of a server are not run: this one would never end."""
        tool = {"name": "f", "inputSchema": {"type": "object"}, "outputSchema": {
            "type": "object", "required": ["x"],
            "patternProperties": {"^(a+)+$": {"pattern": "^(a+)+$"}}}}
        client = self.fake(list=f"result(tools=[{tool!r}])",
                           call="result(content=[Text], **params['arguments'])",
                           start="Text = {'type': 'text', 'text': 'done'}")
        client.list_tools()
        slow = "a" * 40 + "!"
        for structured in {}, {"structuredContent": {slow: slow}}:
            with self.assertWarnsRegex(
                    RuntimeWarning, "tool f: .* output schema") as caught:
                self.assertEqual(client.call_tool("f", structured).text, "done")
            self.assertEqual(os.path.basename(caught.filename),
                             os.path.basename(__file__))

    @needs("schemas")
    def test_pages_of_tools_add_to_the_output_schemas_and_the_first_begins_anew(self):
        tool = {"name": "a", "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object", "required": ["x"]}}
        first = {"tools": [tool], "nextCursor": "2"}
        client = self.fake(call="result(content=[], structuredContent={})", list=(
            f"result(**([{first}, {{'tools': [{ {**tool, 'name': 'b'} }]}}]"
            "['cursor' in params]))"))

        def warned(name):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                client.call_tool(name)
            return len(caught)

        for cursor, expected in ((None, [1, 0]), ("2", [1, 1]), (None, [1, 0])):
            client.list_tools(cursor=cursor)
            self.assertEqual([*map(warned, "ab")], expected)

    # -- timeouts

    def test_what_extends_a_timeout_up_to_max_timeout(self):
        """Increasing progress, and a question to the user, but no other request."""
        def call(label, rules, options, timeout, error):
            client = self.fake(options, **rules)
            self.assertIsInstance(
                raised(client.call_tool, "f", {"rounds": [INPUT % QUESTION, DONE]},
                       timeout=timeout), error)
            client.close()

        progress = {"call": (
            "[(time.sleep(0.3), send(method='notifications/progress', params={"
            "'progressToken': token, 'progress': n})) for n in range(6)]; text('ok')")}
        stuck = {"call": progress["call"].replace("'progress': n", "'progress': 1")}
        ping, roots = ({"call": (
            f"[(time.sleep(0.02), send(id='p', method={method!r}))"
            "for _ in range(200)]; text('late')")} for method in ("ping", "roots/list"))
        refused = {"call": ping["call"].replace("'ping'", "'sampling/createMessage'")}
        asks = {"call": "mine = id; send(id='q', method='elicitation/create', params={"
                        "})", "answer": "id = mine; text('ok')"}
        slow = {"elicitation_handler": lambda *question: time.sleep(1.7) or {}}
        never, limit = self.slow_user()[0], {"max_timeout": 0.5}
        with short_patience():
            run_together(self, call, [
                ("progress", progress, {}, 1.6, type(None)),
                ("progress, max_timeout", progress, limit, 1.6, RequestTimeout),
                ("the same progress", stuck, {}, 1.2, RequestTimeout),
                ("a ping", ping, {}, 0.2, RequestTimeout),
                ("a request", roots, {"roots": ["/"]}, 0.2, RequestTimeout),
                ("a question that is refused", refused, {}, 0.2, RequestTimeout),
                *[row for rules in (asks, MODERN_FAKE)[:1 + STATELESS] for row in (
                    ("a question", rules, slow, 1.5, type(None)),
                    ("max_timeout", rules, {**never, **limit}, 60, RequestTimeout))]])

    def test_a_full_pipe_that_cannot_be_polled_does_not_delay_a_timeout(self):
        """As on Windows.  Fails if a thread that may not wait writes.  Looks inside."""
        with mock.patch.object(mcp_min, "make_poll", lambda stream, event, otherwise:
                               lambda seconds: otherwise):
            client = self.fake(call="time.sleep(600)")
            for _ in range(30):
                self.fails(RequestTimeout, client.call_tool, "f", {"x": "x" * 4000},
                           timeout=0.005)
            with short_patience():
                client.close()

    def test_a_server_that_does_not_read_delays_neither_a_timeout_nor_close(self):
        release, big = Story(self), {"blob": "x" * 1_000_000}
        client = self.fake(deaf="result(); [time.sleep(0.01) for _ in range(6000)"
                                f" if not os.path.getsize({release.path!r})]")
        client.request("fake/deaf")
        errors = together(*[lambda: client.request("fake/fence", big, timeout=0.1)] * 2,
                          *[lambda: client.request("fake/fence", timeout=0.1)] * 2)
        self.assertEqual([type(error) for error in errors], [RequestTimeout] * 4)
        pathlib.Path(release.path).write_text("read on")
        self.fence(client)
        pathlib.Path(release.path).write_text("")
        client.request("fake/deaf")
        call = client.submit("fake/fence", big)
        with short_patience():
            self.assertEqual(together(client.close), [None])
        self.assertIsInstance(call.exception(PATIENCE), ConnectionClosed)

    # -- subscriptions

    @needs("stateless")
    def test_one_stream_carries_all_subscriptions_to_a_modern_server(self):
        """Updates are neither doubled nor lost while it is replaced."""
        client, receive = self.listener(
            discover="modern()", start="streams = [0]",
            listen="streams.append(id); update('before', *streams[-2:]); "
                   "acknowledge(); update('after', *streams[-2:])",
            update="update('end', streams[-1]); result()")
        for uri, updates in (("note://x", ["after", "end"]),
                             ("note://y", ["before", "after", "end"])):
            client.subscribe(uri)
            client.request("fake/update")
            self.assertEqual([receive()["params"]["uri"] for _ in updates],
                             [f"note://{name}" for name in updates])
        for name in "xyy":
            client.unsubscribe("note://" + name)
        self.assertEqual(" ".join(self.methods(client)), "listen update "
                         "listen cancelled update listen cancelled cancelled")
        self.assertEqual(self.filters(client), [{"resourceSubscriptions": uris} for uris
            in (["note://x"], ["note://x", "note://y"], ["note://y"])])
        self.assertEqual(self.cancelled(client), ["subscriptions/listen"] * 3)

    @needs("stateless")
    @clause("2026-07-28/basic/patterns/subscriptions",
            "clients **MUST** use this field to correlate")
    def test_updates_that_belong_to_no_open_subscription_are_dropped(self):
        """The timeout of a subscription ends with the acknowledgement."""
        client, receive = self.listener(
            discover="modern()", listen="acknowledge(); stream = id",
            say="update('unknown', 999); update('text', '1'); "
                "update('open', stream); result(); "
                "send(method='notifications/fence', params={'uri': 'fence'})")
        client.subscribe("note://open", timeout=1.2)
        self.fails(RequestTimeout, client.request, "fake/nothing", timeout=1.2)
        for uris in ["note://open", "fence"], ["fence"]:
            client.request("fake/say")
            self.assertEqual([receive()["params"]["uri"] for _ in uris], uris)
            client.unsubscribe("note://open")

    @needs("stateless")
    def test_streams_may_be_acknowledged_in_another_order(self):
        """Fails (the update is dropped) if the stream acknowledged last is the one that
        counts: the first is for fewer notifications."""
        client, receive = self.listener(
            discover="modern(tools={'listChanged': True})", start="first = None",
            listen="second, first = (id, first) if first else (None, id)\n"
                   "if second: acknowledge(); id = first; acknowledge()",
            say="update('x', second); result()")
        client.subscribe("note://x")
        client.request("fake/say")
        self.assertEqual(receive()["params"]["uri"], "note://x")

    @needs("stateless")
    def test_a_subscription_is_either_cancelled_or_acknowledged(self):
        """Fails (it is Cancelled, though updates come) if both happen to one: others
        may rely on it.  Looks inside, for a cancellation after the acknowledgement."""
        client = self.fake(discover="modern()", listen="acknowledge()")
        client.subscribe("note://x")
        sent, send = [], mcp_min.Stream.send
        before = client._session.subscriptions.current

        def keep(request, *args, **options):
            sent.append(request)
            return send(request, *args, **options)

        with mock.patch.object(mcp_min.Stream, "send", keep), (
                mock.patch.object(before, "cancel", lambda: sent[0].cancel())):
            client.subscribe("note://y")
        self.assertIs(client._session.subscriptions.current, sent[0])
        client.unsubscribe("note://x")
        self.assertEqual(self.filters(client)[-1], {
            "resourceSubscriptions": ["note://y"]})

    def check_end(self, receive, **wanted):
        """The next message is the end of these subscriptions."""
        notification = receive()
        self.assertEqual(notification["method"], "notifications/cancelled")
        self.assertEqual(notification["params"]["notifications"], wanted)

    @needs("stateless")
    @clause("2026-07-28/basic/patterns/cancellation",
            "A server **MUST** send `notifications/cancelled`")
    @clause("2026-07-28/basic/patterns/subscriptions", "A client that receives this "
            "response knows the subscription closed cleanly")
    def test_the_end_of_a_subscription_is_reported_to_the_message_handler(self):
        """But not that of a stream which has been replaced: some servers have one."""
        def end(rule):
            client, receive = self.listener(
                discover="modern()", start="stream = 0",
                listen=f"stream and {rule}; stream = id; acknowledge()",
                end=rule + "; result()")
            for uris in ["note://x", "note://y"], ["note://z"]:
                for uri in uris:
                    client.subscribe(uri)
                client.request("fake/end")
                self.check_end(receive, resourceSubscriptions=uris)
            client.unsubscribe("note://x")
            self.assertEqual(self.filters(client), [{"resourceSubscriptions": uris}
                for uris in (["note://x"], ["note://x", "note://y"], ["note://z"])])
            self.assertEqual(self.cancelled(client), [])

        run_together(self, end, [
            ["send(id=stream, result={'resultType': 'complete'})"],
            ["send(method='notifications/cancelled', params={'requestId': stream})"],
            ["send(id=stream, error={'code': -32603, 'message': 'no more'})"]])

    def test_the_death_of_the_server_is_reported_to_the_message_handler(self):
        def end(rules, wanted, dies):
            received = queue.Queue()
            client = self.fake(
                {"message_handler": received.put}, call="die(5)", **rules)
            for uri in wanted.get("resourceSubscriptions", ()):
                client.subscribe(uri)
            if dies:
                self.fails(ConnectionClosed, client.call_tool, "f")
                self.check_end(functools.partial(received.get, timeout=PATIENCE),
                               toolsListChanged=True, **wanted)
            client.close()
            self.assertTrue(received.empty())

        legacy = {"initialize": "legacy(tools={'listChanged': True})",
                  "subscribe": "result()"}
        run_together(self, end, [*itertools.product(
            (legacy, LISTENING)[:1 + STATELESS],
            ({"resourceSubscriptions": ["note://x"]}, {}), (True, False))])

    @needs("stateless")
    def test_a_subscription_that_the_server_refuses_is_an_error(self):
        """A modern server also refuses by not naming it in the acknowledgement."""
        def subscribe(rules, error=McpError):
            client = self.fake(**rules)
            timeout = 0.3 if error is RequestTimeout else PATIENCE
            self.fails(error, client.subscribe, "note://x", timeout=timeout)
            self.assertEqual(self.cancelled(client), [
                "subscriptions/listen"] * (error is RequestTimeout))

        run_together(self, subscribe, [
            [{"subscribe": "error(-32601)"}],
            [{"discover": "modern()", "listen": ""}, RequestTimeout],
            *[[{"discover": "modern()", "listen": listen}] for listen in (
                "error(-32601)", "acknowledge({'toolsListChanged': True})",
                "acknowledge({'resourceSubscriptions': 5})",
                "acknowledge({'resourceSubscriptions': 'note://x'})")]])

    # -- diagnoses, and what is different on Windows

    def test_the_error_of_a_call_quotes_the_output_that_is_no_message(self):
        """Also an error without id; but no control characters.  A timeout names the
        request, which it cancels, and half a line does not delay it."""
        for write in "say('\\x1b[2Jhalf a li')", "os.write(1, b'\\x1b[2Jhalf a li')":
            client = self.fake({"stderr": None},
                               call=f"err('\\x1b[31mred'); {write}; die(3)")
            error = self.fails(ConnectionClosed, client.call_tool, "f")
            self.assertRegex(str(error), "(?s)red.*half a li|half a li.*red")
            self.assertNotIn("\x1b", str(error))
            self.assertEqual(error.exit_code, 3)
        client = self.fake({"stderr": None}, call=(
            f"err('news'); say({ERROR_WITHOUT_ID % ''!r} + '\\nLoading... ')"))
        error = self.fails(RequestTimeout, client.call_tool, "spin", timeout=1.5)
        for text in ("tools/call spin: no response or progress within 1.5 s", "news",
                     "cannot parse that"):
            self.assertIn(text, str(error))
        self.assertEqual(self.cancelled(client), ["tools/call"])

    def test_arguments_that_a_windows_shell_would_interpret_are_refused(self):
        """Looks inside."""
        with mock.patch("shutil.which", lambda name, path: name + ".cmd"):
            self.assertEqual(mcp_min.windows_argv([pathlib.Path("x"), b"a"], {}),
                             ["x.cmd", "a"])
            for argv in (["x", b"a&b"], ["R&D\\x", "a"]):
                self.assertRaises(ValueError, mcp_min.windows_argv, argv, {})

    def test_stderr_is_read_without_a_thread_to_pass_it_on(self):
        """Fails (the server blocks in a full pipe) if the reader ends, too."""
        with threads_start_if(lambda name: name != "mcp stderr sink"), \
                Client(fake(call="err('x' * 200000); result()")) as client:
            client.call_tool("f")
            wait_until(lambda: client.stderr_tail.rstrip().endswith("x"))

    def test_a_client_that_is_closed_while_it_restarts_stays_closed(self):
        """Fails (it is connected) if the restart undoes `close`."""
        def close_first(name):
            if name == "mcp client":
                client.close()
            return True

        story = Story(self)
        with short_patience(), Client(fake(story, call="os._exit(1)"), stderr=None,
                                      auto_restart=True) as client:
            self.assertIsInstance(raised(client.call_tool, "f"), ConnectionClosed)
            with threads_start_if(close_first):
                self.assertIsInstance(raised(client.list_tools), ConnectionClosed)
            self.assertFalse(client.is_connected())
            starts = str(story).count("+")
            self.assertIsInstance(raised(client.list_tools), ConnectionClosed)
            self.assertEqual(str(story).count("+"), starts)

    @needs("stateless")
    def test_the_end_of_a_stream_that_was_not_replaced_is_told(self):
        """Fails (nobody hears of it) if it counts as that of a stream replaced."""
        client, receive = self.listener(discover="modern()", listen=(
            "if asked: send(id=asked, result={'resultType': 'complete'}); "
            "error(-32603)\nelse: asked = id; acknowledge()"))
        client.subscribe("note://a")
        self.assertEqual(raised(client.subscribe, "note://b").code, -32603)
        self.check_end(receive, resourceSubscriptions=["note://a"])

    def test_progress_without_a_token_extends_no_timeout(self):
        """Fails (it never ends) if a server can keep what has no token waiting."""
        progress = ("import threading\nthreading.Thread(daemon=True, target=lambda: [("
                    "time.sleep(0.05), send(method='notifications/progress', params={"
                    "'progressToken': id, 'progress': n})) for n in range(10**9)]"
                    ").start()")
        with short_patience():
            client = Client(fake(initialize=progress), mode="legacy", timeout=0.5)
            self.addCleanup(client.close)
            [error] = together(lambda: raised(client.connect))
            self.assertIsInstance(error, RequestTimeout)
            with Client(fake(discover="modern()", listen=progress)) as client:
                [error] = together(lambda: raised(
                    client.subscribe, "note://x", timeout=0.3))
                self.assertIsInstance(error, RequestTimeout)

    def test_no_progress_is_told_after_a_call_was_given_up(self):
        """Fails (with many more steps) if the backlog is told first."""
        params = ',"params":{"progressToken":$token,"progress":%d}'
        flood = "repeat([%r %% n for n in range(3000)])" % (
            NOTIFICATION % ("progress", params))
        steps, submitted = [], gate("submitted")

        def step(*args):
            submitted.wait()
            steps.append(args)
            if len(steps) == 3:
                call.cancel()

        with Client(fake(call=flood)) as client:
            call = client.submit_tool("f", progress_handler=step)
            submitted.set()
            wait_until(lambda: len(steps) >= 3)
            client.ping()
        self.assertEqual(len(steps), 3)


# A row is: the rule of the server for `server/discover`, its rule for `initialize`, the
# expected story, a regular expression that ends with the one call, and the revision
# (None: either); or, where connecting fails, a tuple of texts of the error.
HANDSHAKE = r"\+ discover initialize initialized call"
RESTART = r"\+ discover \+ initialize initialized call"
SILENT = "silent = True; "  # marks a rule that answers the probe late, or never
LATER = SILENT + "asked = id"
ANSWER_LATE = "id, mine = asked, id; modern(); id = mine; "
NOISE = "say('a banner'); " + "".join(
    f"say({NOTIFICATION % (name, '')!r}); " for name in (
        "message", "tools/list_changed", "resources/updated", "x"))
PROBES = [
    *[(rule, "legacy()", HANDSHAKE, LATEST) for rule in (
        "error(-32601)", "error(-32602, data='')", "error(0)", SILENT,
        SILENT + "id = None; error(-32600)", "send(id=id, error='no')", "result()",
        "modern('2025-11-25')", "result(supportedVersions='2026-07-28')",
        "result(resultType='odd', supportedVersions=['2026-07-28'])",
        "error(-32022, supported=['2025-11-25'])")],
    *[(rule, "error(-32022)", r"\+ (discover )+call", MODERN) for rule in (
        "modern()", "modern('2026-07-28', '2025-11-25')",
        "modern('2099-01-01', '2026-07-28')",
        ("probes += 1; modern() if probes > 1 else "
         "error(-32022, supported=['2026-07-28'])"),
        "error(-32022, supported=['2025-11-25', '2026-07-28'])")],
    *[(rule, "legacy()", RESTART, LATEST) for rule in (
        "err('no method server/discover'); die(1)",
        "err('expect initialize request'); die(101)",
        "os.close(1); time.sleep(0.05); die(0)")],
    *[(rule, "(err('before initialize'), die(1)) if probes else legacy()",
       r"\+ discover initialize \+ initialize initialized call", LATEST)
      for rule in (SILENT + "probes = 1", "probes = 1; error(-32602)")],
    *[(LATER, ANSWER_LATE + rule, r"\+ discover initialize call", MODERN)
      for rule in ("error(0)", "error(-32022, supported=['2026-07-28'])")],
    (LATER, ANSWER_LATE + "legacy()",
     r"\+ discover initialize (initialized )?call", None),
    (SILENT + "probes += 1; modern() if probes > 1 else None",
     "error(-32022, supported=['2026-07-28'])",
     r"\+ discover initialize (discover )?call", MODERN),
    ("error(-32601)", "legacy('2024-11-05')", HANDSHAKE, "2024-11-05"),
    (NOISE + "error(-32601)", NOISE + "legacy()", HANDSHAKE, LATEST),
    (NOISE + "modern()", "", r"\+ discover call", MODERN),
    # These fail: though `initialize` would be accepted, or because it is refused.
    *[(rule, "legacy()", r"\+ discover", texts) for rule, texts in (
        ("modern('2099-01-01')", ("2099-01-01", MODERN)),
        ("error(-32022)", (MODERN,)),
        ("error(-32022, supported=['2099-01-01'])", ("2099-01-01", MODERN)),
        ("error(-32021, 'you need roots')", ("need roots",)))],
    *[("error(-32601)", rule, r"\+ discover initialize", texts) for rule, texts in (
        ("legacy('1999-01-01')", ("1999-01-01", LATEST)),
        ("error(-32602, 'no such client')", ("no such client",)))],
    # One that ends for another reason is not started twice.
    ("err('no API key'); die(7)", "legacy()", r"\+ discover", ("no API key",)),
    ("die(1)", "legacy()", r"\+ discover", ("closed the connection",)),
]

PINNED = [  # the same, after the mode
    ("legacy", "modern()", "legacy()", r"\+ initialize initialized call", LATEST),
    *[(asked, "modern()", f"legacy({selected})", r"\+ initialize initialized call",
       agreed) for asked, selected, agreed in (
        *[(version, "params['protocolVersion']", version) for version in LEGACY],
        ("2024-11-05", "'2025-11-25'", "2025-11-25"))],
    *[(mode, "modern()", rule, r"\+ initialize", texts) for mode, rule, texts in (
        ("2025-06-18", "legacy('1999-01-01')", ("1999-01-01", LATEST)),
        ("legacy", "error(-32022, 'modern only', supported=['2026-07-28'])",
         ("modern only",)),
        ("legacy", "err('no API key'); die(7)", ("exit code 7", "no API key")))],
    *[("modern", rule, "legacy()", r"\+ (discover )?call", MODERN)
      for rule in ("modern()", "time.sleep(0.1); modern()")],
    *[("modern", rule, "legacy()", r"\+ discover", texts) for rule, texts in (
        ("error(-32601, 'no such thing')", ("no such thing", MODERN, 'mode="auto"')),
        ("error(-32022, supported=['2025-11-25'])", ("2025-11-25", MODERN)))],
]


class Test14LastWords(unittest.TestCase):
    """What a server writes before it ends."""

    LAST_WORDS = """if True:
        import json, os, sys
        def send(*messages):
            sys.stdout.write("".join(json.dumps(m) + "\\n" for m in messages))
            sys.stdout.flush()
        for line in sys.stdin:
            message = json.loads(line)
            answer = {"jsonrpc": "2.0", "id": message.get("id")}
            if message["method"] == "initialize":
                send({**answer, "result": {
                    "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"}}})
            elif message["method"] == "tools/call":
                send({"jsonrpc": "2.0", "method": "notifications/x",
                      "params": {"data": [[1, 2]] * 150000}},
                     {**answer, "result": {"content": [
                         {"type": "text", "text": "done"}]}})
                os._exit(0)
        """

    def test_what_a_server_has_written_before_its_end_is_read(self):
        """Its end is seen while a long line is parsed; or another call cannot be sent.
        Fails if either closes the connection before all was read."""
        for another in False, True:
            client = Client([*BARE_PYTHON, self.LAST_WORDS], mode="legacy")
            with self.subTest(another), client, quiet(), mock.patch.object(
                    mcp_min.Process, "PATIENCE", 2.0 if another else 0.02):
                call = client.submit_tool("last")
                if another:
                    wait_until(lambda client=client: client.exit_code is not None)
                    raised(client.submit_tool, "x")
                self.assertEqual(call.result(PATIENCE).text, "done")

    def test_a_response_over_the_limit_whose_id_comes_last_fails_its_call(self):
        """As the SDK for TypeScript writes it.  Fails (the call waits for its timeout)
        if only the beginning of the line is looked at."""
        program = self.LAST_WORDS.replace('{**answer, "result": {"content": [', (
            '{"result": {"x": "x" * 9999, "content": [')).replace(
            '"text": "done"}]}})', '"text": "done"}]}, **answer})')
        with Client([*BARE_PYTHON, program], mode="legacy",
                    max_message_bytes=5000) as client, self.assertRaisesRegex(
                        McpError, "response to tools/call last has over"):
            client.call_tool("last")


@needs("stateless")
class Test14Probe(unittest.TestCase):
    """How a client finds the era of a server, with no start and no call too many."""

    def connect(self, mode, discover, initialize, expected_story, expected):
        story = Story(self)
        command = fake(story, discover=discover, initialize=initialize)
        client = Client(command, mode=mode, timeout=PATIENCE, stderr=None,
                        message_handler=str)
        self.addCleanup(client.close)
        if isinstance(expected, tuple):
            error = str(raised(client.connect))
            self.assertEqual([text for text in expected if text not in error], [])
        else:
            self.assertEqual(client.connect().call_tool("f").text, "ok")
            self.assertEqual(client.protocol_version,
                             expected or client.protocol_version)
            if discover.startswith((SILENT, "probes += 1")):  # it is asked again
                self.assertEqual(client.server_info, {"name": "fake", "version": "1"})
                self.assertIn("tools", client.server_capabilities)
        client.close()
        self.assertRegex(str(story), f"^{expected_story}$")

    def test_every_response_to_the_probe(self):
        silent = [row for row in PROBES if row[0].startswith(SILENT)]
        slow_to_end = [row for row in PROBES if "os.close(1)" in row[0]]
        others = [row for row in PROBES if row not in silent + slow_to_end]
        connect = functools.partial(self.connect, "auto")
        with short_patience(), mock.patch.object(mcp_min, "PROBE_SECONDS", 0.2):
            run_together(self, connect, silent)
        with short_patience():
            for first in range(0, len(others), 9):
                run_together(self, connect, others[first:first + 9])
        run_together(self, connect, slow_to_end)

    def test_a_program_that_sends_back_what_it_gets_is_no_server(self):
        echo = "import sys; sys.stdout.writelines(iter(sys.stdin.readline, ''))"
        for mode in "auto", "legacy", "modern":
            with self.subTest(mode), self.assertRaisesRegex(
                    McpError, "the server sends our own requests back"):
                Client([sys.executable, "-uc", echo], mode=mode).connect()

    def test_a_pinned_mode_does_not_negotiate(self):
        with mock.patch.object(mcp_min, "PROBE_SECONDS", 0.02):
            run_together(self, self.connect, PINNED)

    def test_one_timeout_is_the_limit_for_all_steps_of_connecting(self):
        """A silent server keeps half of it for the handshake.  Where that fails, the
        server has ended, and was sent no cancellation of `initialize`."""
        def connect(rules, mode, expected="connecting took over 4 s: "):
            story = Story(self)
            client = Client(fake(story, **rules), mode=mode, log_level="info",
                            timeout=4, stderr=None)
            self.addCleanup(client.close)
            error = str(raised(client.connect))
            self.assertIn(expected, error)
            if "took" in error and (mode == "auto" or "setLevel" in error):
                self.assertLess(float(re.findall(r"([\d.]+) s", error)[1]), 3.6)
            self.assertEqual(client.exit_code is None, error == "None")
            self.assertNotIn("initialize cancelled", str(story))

        slow, silent = "time.sleep(0.5); ", {"discover": "", "initialize": ""}
        with short_patience():
            run_together(self, connect, [
                ({"initialize": slow + "legacy(logging={})", "setLevel": ""}, "legacy"),
                ({"discover": slow + "error(-32601)", "initialize": ""}, "auto"),
                ({**silent, "initialize": slow + "legacy()"}, "auto", "None"),
                ({**silent, "start": "err('loading')"}, "auto", "loading"),
                ({**silent, "start": "err('loading')"}, "legacy", "loading"),
                (silent, "modern", MODERN + ': try mode="auto"')])

    def test_stderr_of_a_legacy_server_during_the_probe_is_only_in_stderr_tail(self):
        warn = "[err('warning %d' % n + 60 * 'x') for n in range(90)]; "
        for rule, initialize, shown in (("error(-32602)", "legacy()", False),
                                        ("error(-32602)", "error(0)", True),
                                        ("modern()", "", True)):
            received = []
            client = Client(fake(discover=warn + rule, initialize=initialize,
                                 end="err('end')"), stderr=received.append)
            with self.subTest(rule, initialize=initialize):
                raised(client.connect)
                client.close()
                wait_until(lambda received=received: "end" in "".join(received))
                self.assertRegex(client.stderr_tail, "warning 89x+\nend")
                self.assertEqual("warning" in "".join(received), shown)


# ======================================================================================
# 15  Familiar names
# ======================================================================================

FAMILIAR_LIFESPAN = "from mcp_min import FastMCP\n" + LIFESPAN_SERVER.replace(
    "Server(", "FastMCP(").replace("return ", """\
assert ctx.request_context.lifespan_context is ctx.lifespan_context
    return """)


@needs("names")
class TestFamiliarNames(unittest.TestCase):
    """Programs for FastMCP and the SDK run when only their imports are changed."""

    def test_names_can_be_imported_that_say_something_only_when_they_are_called(self):
        for name in "MCPServer", "AudioContent", "Annotations":
            self.assertTrue(callable(getattr(mcp_min, name)), name)
        self.assertIs(Context[mcp_min.ServerSession, dict], Context)
        for name, text in (("StreamableHttpTransport", "HTTP"), ("sse_client", "HTTP"),
                           ("stdio_client", "Client(["), ("create_proxy", "register"),
                           ("Provider", "register"), ("CurrentContext", "ctx: ")):
            thing = getattr(mcp_min, name)
            self.assertIs(thing, getattr(mcp_min, name))
            with self.subTest(name), self.assertRaisesRegex(
                    NotImplementedError, f"no {name}: .*{re.escape(text)}"):
                type("Sub", (thing,), {})()
        self.assertFalse(hasattr(mcp_min, "FastMPC"))
        self.assertEqual(mcp_min.get_http_headers(), {})
        self.assertIsNone(mcp_min.get_access_token())
        self.assertIs(mcp_min.exceptions.ToolError, ToolError)
        self.assertEqual([mcp_min.parse_scopes(value) for value in (
            None, "a b,c", '["a"]', ["a"])], [None, ["a", "b", "c"], ["a"], ["a"]])
        self.assertEqual(mcp_min.ElicitResult(action="decline").action, "decline")
        self.assertIs(mcp_min.lifespan, contextlib.asynccontextmanager)

    def test_options_of_the_constructor(self):
        with quiet() as stderr:
            server = mcp_min.FastMCP(
                "s", "Read me.", log_level="DEBUG", host="0.0.0.0", version="1.0 beta",
                mask_error_details=True, list_page_size=7, tools=[textwrap.dedent])
            server.custom_route("/health", methods=["GET"])(lambda request: None)
        self.assertEqual(stderr.getvalue().splitlines(), [
            "mcp_min: FastMCP(): no effect here: log_level, host",
            "mcp_min: custom_route(): no effect here: /health"])
        server.settings.port += 1000
        self.assertEqual((server.settings.log_level, server.settings.port),
                         ("DEBUG", 9000))
        with Client(server) as client:
            self.assertEqual(
                (client.instructions, client.server_info, names(client.list_tools())),
                ("Read me.", {"name": "s", "version": "1.0 beta"}, ["dedent"]))

    def test_what_would_change_the_behaviour_is_refused_in_words(self):
        server = mcp_min.FastMCP("s")
        for option in "middleware", "transforms", "providers":
            mcp_min.FastMCP("s", **{option: []})
            with self.assertRaisesRegex(NotImplementedError, f"{option}=.*register"):
                mcp_min.FastMCP("s", **{option: [1]})
        for make in "from_openapi", "from_fastapi", "as_proxy":
            with self.assertRaisesRegex(NotImplementedError, f"{make}.*one server"):
                getattr(mcp_min.FastMCP, make)({}, name="s")
        for name, text in (("mount", "register"), ("add_middleware", "@server"),
                           ("_lowlevel_server", "list_tools"),
                           ("run_http_async", "HTTP"), ("call_tool", "Client"),
                           ("nonsense", "no such")):
            with self.assertRaisesRegex(AttributeError, f"{name}: .*{text}"):
                getattr(server, name)
        low_level = server._mcp_server  # some programs only pass it on
        with self.assertRaisesRegex(NotImplementedError, "add_tool"):
            low_level.run  # noqa: B018
        self.assertRaisesRegex(ValueError, "stdio only", server.run, "sse")
        self.assertRaisesRegex(ValueError, "stdio only", asyncio.run,
                               server.run_async("http"))

    def test_programs_and_their_tests_find_these(self):
        """Seen in public programs for FastMCP and the SDK."""
        with quiet():
            server = mcp_min.FastMCP("s", dependencies=["redis"], lifespan=None)
        mock.MagicMock(spec=mcp_min.FastMCP).tool()
        server._mcp_server.version = "7.7"
        resource = mcp_min.TextResource(uri="a://b", name="n", text="t")
        server.add_resource(resource=resource)
        server.add_tool(tool=mcp_min.Tool.from_function(lambda: 1, name="size"))
        server.add_prompt(prompt=mcp_min.Prompt.from_function(lambda: "p", name="p"))

        @server.tool()
        def push(value: Union[bytes, bytearray, str], raw: memoryview = b"") -> str:
            return f"{value!r}"

        @server.tool()
        def odd(ctx: mcp_min.CallToolResult, real: Context) -> bool:
            return real.session.check_client_capability({"roots": {}})

        @server.tool()
        def file() -> list:
            return [mcp_min.File(data=b"x", format="pdf", name="a.pdf")]

        self.assertEqual((server.dependencies, server.auth, server.settings.lifespan),
                         (["redis"], None, None))
        tools = asyncio.run(server.get_tools())
        self.assertEqual({*tools}, {"size", "push", "odd", "file"})
        tool = asyncio.run(server.get_tool("push"))
        self.assertIs(tool.fn, push)
        self.assertEqual(asyncio.run(tool.run({"value": "x"})), "b'x'")
        self.assertEqual(mcp_min.LATEST_PROTOCOL_VERSION, LATEST)
        with Client(server, roots=[]) as client:
            self.assertEqual(client.server_info["version"], "7.7")
            self.assertEqual(client.read_resource("a://b")[0].text, "t")
            self.assertEqual(client.get_prompt("p").messages[0].content.text, "p")
            self.assertIs(client.call_tool("odd", {"ctx": {}}).data, True)
            block = client.call_tool("file").content[0]
            self.assertEqual(block.resource.mimeType, "application/pdf")

    def test_a_server_takes_no_familiar_words(self):
        server = Server("s")
        for refused in (lambda: Server("s", host="x"), lambda: server.run("stdio"),
                        server.completion, lambda: server.tool(len, tags={"a"}),
                        lambda: server.tool(len, structured_output=False)):
            self.assertRaises(TypeError, refused)

    def test_run_accepts_the_name_of_the_transport(self):
        with process('mcp_min.FastMCP("s").run(transport="stdio", show_banner=False)'
                     ) as server:
            play(server, "> 1 ping\n< 1 {}")
            self.assertEqual(server.exit(hang_up=True), 0)

    def test_run_async_ends_with_its_input_or_its_task(self):
        """What else it does is tested with that of Server."""
        for run, cancel in ("run_stdio_async", False), ("run_async", True):
            with self.subTest(run), process(FAMILIAR_LIFESPAN + textwrap.dedent(f"""
                    @server.tool
                    async def stop():
                        serving.cancel()
                        await asyncio.sleep(60)
                    async def main():
                        global serving
                        serving = asyncio.ensure_future(server.{run}())
                        await asyncio.wait([serving])
                        print(serving.cancelled(), file=sys.stderr)
                    asyncio.run(main())
                    """), "-I") as server:
                play(server, """
                    > handshake
                    > 1 call same   < 1 {"structuredContent": {"result": true}}
                    """)
                if cancel:
                    server.say("2 call stop")
                self.assertEqual(server.exit(hang_up=not cancel), 0)
                self.assertEqual(server.stderr.split(), ["enter", "leave", str(cancel)])

    def test_an_application_for_http_can_be_prepared_and_not_served(self):
        auth = mcp_min.GitHubProvider(client_id="x", base_url="http://localhost")
        verifier = type("Verifier", (mcp_min.TokenVerifier,), {})()
        with quiet():
            server = mcp_min.FastMCP("s", auth=auth, token_verifier=verifier)
        self.assertIs(server.settings.token_verifier, verifier)
        for make in "http_app", "sse_app", "streamable_http_app":
            app = getattr(server, make)(path="/mcp")
            app.add_middleware(dict, allow_origins=["*"])
            app.router.routes.append(auth.get_well_known_routes(mcp_path="/mcp"))
            with self.assertRaisesRegex(NotImplementedError, "HTTP"):
                app({}, None, None)

    def test_text_is_structured_and_bytes_are_the_utf_8_of_a_text(self):
        """As pydantic has it; what a Server makes of them is tested above."""
        server = mcp_min.FastMCP("s")

        @server.tool
        def double(data: bytes, more: List[bytes] = [], end: bytes = b"!",  # noqa: B006
                   odd: bytes = b"\xff") -> str:
            return (data * 2 + b"".join(more) + end).decode()

        server.tool(lambda: "x", name="untyped")
        server.tool(double, name="plain", structured_output=False)
        with Client(server) as client:
            tool, untyped, plain = client.list_tools()
            self.assertEqual(tool.output_schema, {
                "type": "object", "properties": {"result": {"type": "string"}},
                "required": ["result"], "x-fastmcp-wrap-result": True})
            text = {"type": "string", "format": "binary"}
            self.assertEqual(tool.input_schema["properties"], {
                "data": text, "more": {"type": "array", "items": text, "default": []},
                "end": {**text, "default": "!"}, "odd": text})
            self.assertNotIn("outputSchema", {**untyped, **plain})
            given = {"data": "aGk=é", "more": ["b"]}
            result = client.call_tool("double", given)
            self.assertEqual((result.data, result.text, result.structured_content),
                             ("aGk=é" * 2 + "b!",) * 2 + ({"result": result.text},))
            for name in "untyped", "plain":
                result = client.call_tool(name, given if name == "plain" else {})
                self.assertIsNone(result.structured_content)

    def test_options_of_the_decorators(self):
        server = mcp_min.FastMCP("s")
        server.tool(lambda: None, name="off", enabled=False)

        @server.tool(tags={"b", "a"}, structured_output=False, icons=[mcp_min.Icon(
            src="data:,x")], annotations=mcp_min.ToolAnnotations(readOnlyHint=True))
        def on() -> Dict[str, int]:
            return {"x": 1}

        with quiet() as stderr:
            @server.tool(exclude_args=["user"], timeout=5)
            def greet(name: str, user: str = "me") -> str:
                return name + user

        server.resource("s://{path*}")(lambda path: path)
        self.assertIn("no effect here: timeout", stderr.getvalue())
        with Client(server) as client:
            shown, listed = client.list_tools()
            self.assertEqual([*listed["inputSchema"]["properties"]], ["name"])
            self.assertEqual((on(), greet("b")), ({"x": 1}, "bme"))
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

    def test_lists_of_the_server_are_data_plain_or_awaited(self):
        server = mcp_min.FastMCP("s", tools=[
            mcp_min.Tool.from_function(textwrap.dedent, name="size")])
        server.add_prompt(mcp_min.Prompt.from_function(lambda a: a, name="p"))
        server.add_resource(mcp_min.Resource.from_function(
            lambda: b"data", "s://x", name="x", tags={"a"}))
        server.add_resource("s://{y}", lambda y: y, name="y")
        [tool], [prompt] = asyncio.run(server.list_tools()), server.list_prompts()
        [resource], [template] = server.list_resources(), (
            server.list_resource_templates())
        self.assertEqual((tool.inputSchema["type"], prompt.name, resource.uri,
                          template.uriTemplate), ("object", "p", "s://x", "s://{y}"))
        with Client(server) as client:
            self.assertEqual(client.read_resource("s://x")[0].data, b"data")

    @both_eras
    def test_one_function_completes_all_arguments_that_have_none(self, era):
        """With what a middleware made of the request; also where a host runs it."""
        host, run_handler = host_thread(self)
        server = mcp_min.FastMCP("s", run_handler=run_handler)
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
            self.assertIs(threading.current_thread(), host)
            if argument.value and isinstance(ref, mcp_min.PromptReference):
                return mcp_min.Completion(values=[
                    ref.name, argument.name, argument.value, context.arguments["y"]])

        with Client(server, mode=era) as client:
            for argument, value, expected in (("a", "sent", ["p", "x", "changed", "1"]),
                                              ("a", "", []), ("own", "", ["its own"])):
                completion = client.complete("p", argument, value)
                self.assertEqual(completion["values"], expected)
        reference = mcp_min.PromptReference(type="ref/prompt", name="p")
        self.assertIsInstance(reference, mcp_min.PromptReference)
        self.assertEqual((reference.type, reference.name), ("ref/prompt", "p"))

    @both_eras
    def test_any_handler_finds_its_context(self, era):
        """Which is what type checkers are told, whatever a handler annotates."""
        server, found = mcp_min.FastMCP("s"), []

        def note():
            self.assertIs(mcp_min.get_context(), server.get_context())
            found.append(mcp_min.get_context())

        @server.tool
        def plain(ctx: Context):
            note()
            self.assertIs(found[-1], ctx)

        @server.tool
        async def later(ctx: mcp_min.FamiliarContext):
            self.assertIs(type(ctx), mcp_min.FamiliarContext)
            [read] = await ctx.read_resource("s://x")
            self.assertEqual((read.content, read.mime_type), ("# X", "text/x"))
            self.assertEqual(found.pop().request_id, ctx.request_id)
            note()
            self.assertIs(found[-1], ctx)

        server.resource("s://x", mime_type="text/x")(lambda: note() or "# X")
        server.prompt(name="p")(lambda: note() or "")
        server.completion("p", "x")(lambda value: note())
        server.completion()(lambda ref, argument, context: note())
        server.method("acme/x")(note)
        server.method("notifications/acme")(note)
        with Client(server, mode=era) as client:
            for tool in "plain", "later":
                client.call_tool(tool)
            client.read_resource("s://x")
            client.get_prompt("p")
            client.complete("p", "x", "")
            client.complete("p", "other", "")
            client.request("acme/x")
            client.notify("notifications/acme")
            wait_until(lambda: len(found) == 8)
        self.assertEqual(len(set(map(id, found))), 8)
        self.assertIsInstance(raised(mcp_min.get_context), RuntimeError)

    def test_the_context_has_the_attributes_of_fastmcp_and_the_sdk(self):
        server, logs = mcp_min.FastMCP("s"), []

        @server.tool
        async def low(ctx: Context[dict, dict]) -> str:
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
            answer = await session.elicit(message="?", requestedSchema=bool)
            assert answer.content == {"value": True}
            await ctx.set_state("k", await ctx.get_state("k") or 7)
            assert await mcp_min.get_context().get_state("k") == 7
            for roots in (await session.list_roots()).roots, await ctx.list_roots():
                assert roots[0].uri.endswith("/a")
            assert session.client_params.clientInfo.name == "mcp_min"
            assert ctx.request_context.request is ctx.client_id is None
            assert isinstance(answer, mcp_min.AcceptedElicitation)
            assert not isinstance(answer, mcp_min.DeclinedElicitation)
            assert ctx.fastmcp is server and ctx.request_id and ctx.session_id
            return sampled.content.text

        with Session(LATEST, server, log_handler=logs.append) as session:
            self.assertEqual(session.client.call_tool("low").text, "roses are red")
            wait_until(lambda: logs)
        self.assertEqual(logs, [{"level": "info", "logger": "l", "data": "hi"}])
        self.assertEqual(session.progress, [(1, None, None)])

    def test_messages_take_the_arguments_of_either_library(self):
        """And the name of a logger in either order; awaited or not."""
        server, logged = mcp_min.FastMCP("s"), []

        @server.tool
        async def talk(ctx: Context) -> None:
            ctx.debug("z")  # before a level was set
            await asyncio.create_task(ctx.info(message="a"))
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(
                ctx.report_progress(1), asyncio.get_running_loop()))
            await ctx.warning("b", logger_name="l", extra={"x": 1})
            await ctx.log("error", "c")
            await ctx.log("d", level="debug")
            await ctx.log("info", message="e")
            await ctx.log(message="f", level="info")
            await ctx.log("g", "info")

        @server.tool
        def chat(ctx: mcp_min.FamiliarContext):
            ctx.info("a", "x")
            ctx.log("b", "warning", "x")
            ctx.log("warning", "b", "x")
            ctx.log("info", "info", logger="x")
            ctx.info("warning", "x")

        for mode, tool in (LATEST, "talk"), ("auto", "chat"):
            with Client(server, mode=mode, log_handler=logged.append) as client:
                client.call_tool(tool)
        self.assertEqual([" ".join(one.values()) for one in logged], [
            "debug z", "info a", "warning b l", "error c", "debug d", "info e",
            "info f", "info g", "info a x", "warning b x", "warning b x", "info info x",
            "info warning x"])

    def test_each_item_of_a_list_is_a_block(self):
        """As in the SDK 1.x; a Server sends one JSON text."""
        def items() -> List[str]:
            return ["a", "b"]

        def nested():
            return [1, ["x", {"y": 2}], mcp_min.Text("t")]

        for make, tool, blocks, data in (
                (Server, items, ['["a", "b"]'], ["a", "b"]),
                (mcp_min.FastMCP, items, ["a", "b"], ["a", "b"]),
                (mcp_min.FastMCP, nested, ["1", "x", '{"y": 2}', "t"],
                 '1\nx\n{"y": 2}\nt')):
            server = make("s")
            server.tool(tool, name="f")
            with Client(server) as client:
                result = client.call_tool("f")
            self.assertEqual((names(result.content, "text"), result.data),
                             (blocks, data))

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
                (mcp_min.CallToolResult(content=[], structuredContent={"a": 1},
                                        _meta={"b": 2}, isError=False),
                 mcp_min.ToolResult([], {"a": 1}, meta={"b": 2})),
                (mcp_min.UserMessage("x"), mcp_min.Message("user", "x")),
                (mcp_min.Message("hi", "user"), mcp_min.Message(content="hi")),
                (mcp_min.AssistantMessage(content="x"),
                 mcp_min.Message("x", role="assistant"))):
            self.assertEqual(familiar, equivalent)
        block = mcp_min.Image(b"x", annotations={"priority": 1})
        self.assertEqual((block.type, block.data, block.mimeType, block.mime_type),
                         ("image", "eA==", "image/png", "image/png"))
        self.assertIs(block.to_image_content(), block)
        self.assertIsNone(mcp_min.Text("x").annotations)
        self.assertEqual(mcp_min.Text("x").model_dump(exclude_none=True),
                         {"type": "text", "text": "x"})
        params = mcp_min.ElicitRequestURLParams(elicitation_id="1", url="a:b")
        self.assertEqual((params, params.elicitation_id, params.url, params.x),
                         ({"elicitationId": "1", "url": "a:b"}, "1", "a:b", None))
        error = mcp_min.MCPError(mcp_min.ErrorData(code=-32602, message="no")).error
        self.assertEqual((error.code, error.message, error.data), (-32602, "no", None))

    def test_a_tool_may_require_a_visit_to_a_url_by_an_error(self):
        def visit():
            raise mcp_min.UrlElicitationRequiredError([
                mcp_min.ElicitRequestURLParams(url="https://a/b")])

        play(server_of(visit), """
            > 1 call visit   < 1 -32042 {"elicitations": [{"url": "https://a/b"}]}
            """, era="legacy")

    def test_what_tests_of_programs_for_fastmcp_look_at(self):
        server = mcp_min.FastMCP("s")

        async def lists():
            async with AsyncClient(server) as client:
                return [*await client.list_tools(), *await client.list_prompts(),
                        *await client.list_resources()]

        self.assertEqual(asyncio.run(lists()), [])

        @server.tool(annotations={"readOnlyHint": True})
        def fail(x: int):
            raise KeyError("no")

        [tool] = server.list_tools(run_middleware=False)
        self.assertTrue(tool.annotations.readOnlyHint)
        self.assertEqual(tool.parameters["properties"], {"x": {"type": "integer"}})
        self.assertEqual(tool.model_dump()["parameters"], tool.inputSchema)
        for entry in (mcp_min.FunctionTool.from_function(fail),
                      server._tool_manager._tools["fail"]):
            self.assertEqual((entry.name, entry.parameters, entry.fn),
                             ("fail", tool.parameters, fail))
        self.assertEqual((server._prompt_manager._prompts,
                          server._resource_manager._resources,
                          server._resource_manager._templates), ({}, {}, {}))
        with quiet(), Client(server) as client:
            self.assertRaisesRegex(ToolError, "^Error calling tool 'fail': KeyError",
                                   client.call_tool, "fail", {"x": 1})

    def test_resources_of_a_text_of_bytes_and_of_a_file(self):
        server = mcp_min.FastMCP("s")
        with tempfile.TemporaryDirectory() as folder:
            for name, data in ("text", b"a"), ("image", b"\xff"):
                pathlib.Path(folder, name).write_bytes(data)
            resources = [
                mcp_min.TextResource(uri="r://t", text="a", name="T"),
                mcp_min.BinaryResource(uri="r://b", data=b"b"),
                *[mcp_min.FileResource(uri="r://" + name, path=folder + "/" + name)
                  for name in ("text", "image")]]
            for resource in resources:
                server.add_resource(resource)
            with Client(server) as client:
                contents = [client.read_resource(resource.uri)[0]
                            for resource in resources]
        self.assertEqual([one.text or one.data for one in contents],
                         ["a", b"b", "a", b"\xff"])
        self.assertEqual((resources[0].text, resources[0].name), ("a", "T"))


# The import lines by which each library runs the same program
TYPES = "from mcp.types import ImageContent, TextContent, ToolAnnotations\n"
IMPORTS = {
    "mcp": "from mcp.server.fastmcp import Context, FastMCP\n" + TYPES +
           "from mcp.server.fastmcp.prompts.base import (\n"
           "    AssistantMessage, UserMessage)\n",
    "fastmcp": "from fastmcp import Context, FastMCP\n" + TYPES +
               "from fastmcp.prompts import Message\n"
               "UserMessage = Message\n"
               "def AssistantMessage(text): return Message(text, role='assistant')\n",
    "SDK 2": "from mcp.server.mcpserver import Context, MCPServer as FastMCP\n"
             "from mcp.server.mcpserver.prompts.base import (\n"
             "    AssistantMessage, UserMessage)\n"
             "from mcp_types import ImageContent, TextContent, ToolAnnotations\n",
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

class Name(BaseModel):
    name: str

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

@mcp.tool()
async def meet(ctx: Context) -> str:
    return "hello " + (await ctx.elicit("who?", Name)).data.name

@mcp.resource("note://{name}")
async def note(name: str) -> str:
    return f"a note on {name}"

@mcp.prompt()
def review(code: str) -> list:
    return [UserMessage("look at " + code), AssistantMessage("I do")]

"""
RUN_SHARED = """
mcp.run(transport="stdio")
"""
ANN = {"name": "Ann", "home": {"street": "x", "code": "12"}}


@unittest.skipIf(sys.version_info < (3, 10), "the libraries are for Python 3.10")
@needs("names")
class TestImportLine(unittest.TestCase):
    """One program behaves the same with each library; only its import lines differ."""

    def behaviour(self, library):
        """All that a client receives from the program."""
        env = {"PYTHONPATH": HERE} if library == "mcp_min" else {}
        command = [sys.executable, "-c", IMPORTS[library] + SHARED_PROGRAM + RUN_SHARED]
        mode = "auto" if library == "mcp" else LATEST  # the SDK 1 refuses the probe
        with Session(mode, target=command, env=env, stderr=None) as session:
            client = session.client
            calls = [*self.calls(client)]
            wait_until(lambda: session.logs and session.progress)
            # We have no schema for text or blocks: only that of `find` is compared.
            tools = {tool["name"]: (
                tool.get("description") or "", tool.get("annotations"),
                self.simplified(tool["inputSchema"]),
                tool["name"] == "find" and [*tool["outputSchema"]["properties"]])
                for tool in client.list_tools()}
            # fastmcp puts a message into an object, and sends its steps as floats.
            return [
                client.protocol_version, calls, session.asked, tools,
                client.instructions, client.server_info["name"],
                [level for level, _ in session.logs],
                [step[:2] for step in session.progress],
                client.read_resource("note://x")[0].text,
                [(message["role"], message["content"]["text"]) for message in
                 client.get_prompt("review", {"code": "x"})["messages"]],
                names(client.list_resource_templates(), "uriTemplate"),
                [(prompt["name"], names(prompt["arguments"]))
                 for prompt in client.list_prompts()]]

    def calls(self, client):
        """Of each call whether it fails, or else its content."""
        for name, arguments in (
                ("greet", {"person": ANN, "loud": True}), ("show", {}), ("meet", {}),
                ("find", {"text": "ab"}), ("find", {"text": "ab", "limit": 5}),
                ("fail", {}), ("find", {}), ("find", {"text": "too long"}),
                ("find", {"text": "a", "limit": 99}),
                ("greet", {"person": {**ANN, "name": "A"}})):
            result = client.call_tool(name, arguments, raise_on_error=False)
            # Libraries write structured content as different text.
            yield result.is_error or (
                result.structured_content if name == "find" else
                [block.get("text", block.get("data")) for block in result.content])

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
        package(self, {"mcp": "mcp.server.fastmcp"}.get(library, library), always=True)
        self.maxDiff = None
        self.assertEqual(self.behaviour("mcp_min"), self.behaviour(library))

    def test_as_with_the_sdk_1(self):
        self.compare("mcp")

    def test_as_with_fastmcp(self):
        self.compare("fastmcp")


# ======================================================================================
# 16  Command line
# ======================================================================================

FILE = os.path.join(HERE, "mcp_min.py")
# The same program, but started so that Python keeps the compiled file.
IMPORTED = [sys.executable, "-S", "-c", "import sys; sys.path.insert(0, %r); "
            "import mcp_min; sys.exit(mcp_min.main())" % HERE]
PROGRAM = [sys.executable, "-I", *IMPORTED[1:]]


def cli(*args):
    """Run a command line here: what goes to stdout and stderr, and the exit status."""
    out, err, before = io.StringIO(), io.StringIO(), {*threading.enumerate()}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), (
            mock.patch.object(mcp_min, "IDLE_SECONDS", 0.001)):
        try:
            status = mcp_min.main(list(args))
        except SystemExit as end:
            status = end.code
        wait_until(lambda: {*threading.enumerate()} <= before)  # and have logged
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

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.child.kill()
        self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()
        os.close(self._master)


TERMINAL = unittest.skipUnless(hasattr(os, "openpty"), "needs a pseudo-terminal")

SAID = """ part of a sentence of the demo, and what the line below it holds
    The tool is done        < "result":{.*"content":
    it has a question       < "resultType":"input_required"
    The same call again     > "method":"tools/call".*"order"
    says hello              > "method":"initialize"
    agrees to the revision  < "protocolVersion":"2025-11-25"
    The client is ready     > "method":"notifications/initialized"}
    which tools there are   > "method":"tools/list"
    The first page          < "tools":[{"name":"bake"
    the next page           > "method":"tools/list","params":{"cursor":"order"
    The last page           < "tools":[{"name":"ring"
    asks what the server is > "method":"server/discover"
    says who it is          < "supportedVersions"
    to run a tool           > "method":"tools/call"
    reports how far         < "method":"notifications/progress"
    cancels the call  > "method":"notifications/cancelled"
    so the server asks      < "method":"elicitation/create"
    the user has answered   > "result":{"action":"accept"
"""


@needs("cli")
class TestCommandLine(unittest.TestCase):
    """Results go to stdout, other text to stderr.  The exit status is 0 for success, 1
    for a failure, 2 for wrong usage."""

    SERVER = (*PROGRAM, "serve")
    TOOLS = """
        import sys
        from dataclasses import dataclass
        from typing import Annotated, List
        from mcp_min import Context, Image, ResourceLink, Server, ToolResult
        server = Server("tools")

        @dataclass
        class Item:
            name: str
            price: float = 1.0

        @server.tool
        def types(item: Item, text: str, n: Annotated[int, {"minimum": 1}],
                  many: List[int], ctx: Context, yes: bool = False) -> str:
            ctx.info("a remark")
            ctx.report_progress(1, 2, "half")
            sys.stderr.write("a murmur\\n")
            return repr((item.price, text, n, many, yes))

        @server.tool
        def show(ids: List[int] = (), name: str = "") -> str:
            return repr((ids, name))

        @server.tool
        def steps(n: int, ctx: Context, known: bool = True) -> str:
            for step in range(1, n + 1):
                ctx.report_progress(step, n if known else None, "step")
            return "done"

        server.tool(lambda: ["look", Image(b"GIF8")], name="picture")
        server.tool(lambda: [Image(b"GIF8")] * 2, name="pictures")
        server.tool(lambda: ToolResult([
            {"type": "image", "data": "***", "mimeType": "image/gif"}]), name="broken")
        server.tool(lambda: 1 / 0, name="fail")
        server.tool(lambda: ResourceLink("x://y", "y"), name="link")
        server.resource("x://y")(lambda: b"\\0\\xff")
        server.resource("x://text")(lambda: "caf\u00e9")
        server.prompt("review")(lambda language: language)
        server.completion("review", "language")(
            lambda value: [x for x in ("perl", "python", "c") if x.startswith(value)])
        """

    def setUp(self):
        self.folder = folder_of(self)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        pathlib.Path(path).write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def serving(self, name, text):
        """The command of a server that runs this file."""
        return "--", *PROGRAM, "run", self.file(name, text)

    def loaded(self, name, text):
        """The Server that `run` finds in this file."""
        module = mcp_min.cli_load(self.file(name, text))
        self.addCleanup(sys.modules.pop, module.__name__)
        return mcp_min.cli_server(module)

    def within(self, server):
        """The same, but in this process, because a start takes most of the time."""
        patch = mock.patch.object(mcp_min, "cli_target", lambda command: server)
        patch.start()
        self.addCleanup(patch.stop)
        return "--", "a server"

    def fails(self, text, status, *args):
        out, err, actual = cli(*args)
        with self.subTest(args):
            self.assertEqual((out, actual), ("", status))
            self.assertRegex(err, text)
        return err

    def test_each_line_of_the_demo_is_what_the_sentence_above_it_says(self):
        out, err, status = cli("demo")
        self.assertEqual((err, status), ("", 0))
        self.assertLessEqual(max(map(len, out.splitlines())), 81)
        self.assertLessEqual(out.count("\n"), 120)  # more progress if it is slow
        _, *eras = out.split("\nRevision ")
        self.assertEqual([era[:10] for era in eras], [LATEST, MODERN])
        lines = re.findall(r"^  (-->|<--) (.*)\n((?: {6}.*\n)+)", out, re.MULTILINE)
        said = re.findall(r"^    (.*?) +([<>]) (.*)$", SAID, re.MULTILINE)
        self.assertEqual([part for part, _, _ in said if part not in out], [])
        for arrow, sentence, below in lines:
            line = re.sub(r"\n? {6}", "", below)
            with self.subTest(sentence):
                [(direction, pattern)] = [row[1:] for row in said if row[0] in sentence]
                self.assertEqual(arrow.strip("-"), direction)
                if "inputResponses" in line or not line.endswith("..."):
                    pattern = pattern.replace("{", r"\{").replace("[", r"\[")
                    self.assertRegex(line, pattern)
                self.assertTrue(line.startswith('{"jsonrpc":"2.0"'))

    def test_the_demo_needs_no_file_and_writes_none(self):
        """From a zip file, in a folder that cannot be written."""
        archive = os.path.join(self.folder, "app.pyz")
        with zipfile.ZipFile(archive, "w") as file:
            file.write(FILE, "mcp_min.py")
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-m", "mcp_min", "demo"], check=False,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": archive,
                 "TMPDIR": os.path.join(self.folder, "none")})
        self.assertEqual((done.stderr, done.returncode), (b"", 0))
        self.assertEqual(os.listdir(self.folder), ["app.pyz"])

    def test_what_a_server_offers_and_returns_is_text_or_json(self):
        out, err, status = cli("list", *self.SERVER)
        self.assertEqual((err, status), ("", 0))
        for line in ("demo %s, revision 2026-07-28" % mcp_min.__version__, "tools (3)",
                     "  order", "    Order a dish; asks what should be on it.",
                     "      dish: string",
                     "  demo://hello/{name}", "  review", "      language: string"):
            self.assertIn(line, out.splitlines())
        self.assertNotIn("(0)", out)  # it has no resources, only a template
        server = self.within(mcp_min.demo_server())
        about = json.loads(cli("list", "--mode", "2025-06-18", "--json", *server)[0])
        self.assertEqual(about["protocolVersion"], "2025-06-18")
        self.assertEqual(names(about["tools"]), ["bake", "order", "ring"])
        for command, out, err in (
                ("read demo://hello/Ada", "Hello, Ada!\n", ""),
                ("prompt review language=C", "user: Review this C code.\n", ""),
                ("complete review language P", "",
                 "McpError: The server does not offer completion/complete (-32601)"),
                ("read --json demo://bye", "",
                 "McpError: Resource not found: demo://bye (-32602)")):
            expected = (out, f"mcp_min: {err}\n" if err else "", int(bool(err)))
            with self.subTest(command):
                self.assertEqual(cli(*command.split(), *server), expected)

    def test_list_shows_and_call_converts_what_a_tool_needs(self):
        server = self.serving("tools.py", self.TOOLS)
        lines = cli("list", *server)[0].splitlines()
        for line in ("item: object", "  name: string", "  price?: number = 1.0",
                     "many: array of integer", 'n: integer {"minimum": 1}',
                     "yes?: boolean = false"):
            self.assertIn("      " + line, lines)
        out, err, status = cli("call", "types", 'item={"name": "x"}', "text=5", "n=5",
                               '{"many": [1, 2]}', "yes=true", *server)
        self.assertEqual((out, status), ("(1.0, '5', 5, [1, 2], True)\n", 0))
        self.assertEqual(sorted(err.splitlines()), [
            "log info: a remark", "progress: 50% half", "stderr: a murmur"])
        for text, *arguments in (("name is given twice", "name=a", "name=b"),
                                 ("an argument is not JSON: .*line 1", "{bad")):
            self.fails(text, 2, "call", "show", *arguments, *server)

    def test_what_is_shown_of_a_result(self):
        """Repeated arguments are a list; what has no text is named."""
        server = self.within(self.loaded("tools.py", self.TOOLS))
        for command, shown in (
                ("call show ids=1 ids=2", "([1, 2], '')"),
                ("call show ids=1", "([1], '')"),
                ("call show ids=[3,4] name=[x]", "([3, 4], '[x]')"),
                ("call picture", "look\n(image/gif, 4 bytes: --output FILE)"),
                ("call link", "(resource_link x://y)"),
                ("read x://y", "(application/octet-stream, 2 bytes: --output FILE)"),
                ("complete review language p", "perl\npython"),
                ("complete review language=p", "perl\npython"),
                ("complete review language", "perl\npython\nc")):
            with self.subTest(command):
                self.assertEqual(cli(*command.split(), *server), (shown + "\n", "", 0))

    def test_an_argument_that_has_no_values_is_named(self):
        server = self.within(self.loaded("tools.py", self.TOOLS))
        for words in ("language=x", "language x", "lang=p", "lang"):
            argument = re.split("[ =]", words)[0]
            self.fails(fr"\(no values for {argument}.* of review\)\n", 0,
                       "complete", "review", *words.split(), *server)

    def test_a_result_can_be_saved(self):
        server = self.within(self.loaded("tools.py", self.TOOLS))
        path = self.folder + "/saved"
        for command, content in (("call picture", b"GIF8"), ("read x://y", b"\0\xff"),
                                 ("read x://text", "caf\u00e9".encode()),
                                 ("complete review language py", b"python")):
            out, err, status = cli(*command.split(), "--output", path, *server)
            self.assertEqual((out, status), ("", 0))
            self.assertIn("saved: %d bytes" % len(content), err)
            self.assertEqual(pathlib.Path(path).read_bytes(), content)
        out, err, status = cli("call", "picture", "--json", "--output", path, *server)
        self.assertEqual(json.loads(pathlib.Path(path).read_text())["isError"], False)
        pathlib.Path(path).write_text("kept")
        self.fails("2 parts", 1, "call", "pictures", "--output", path, *server)
        self.fails("not base64", 1, "call", "broken", "--output", path, *server)
        self.fails("the tool failed", 1, "call", "fail", "--output", path, *server)
        self.assertEqual(pathlib.Path(path).read_text(), "kept")
        for seconds in "0", "-1", "nan", "inf":
            with self.subTest(seconds), quiet() as stderr, self.assertRaises(SystemExit):
                mcp_min.main(["list", "--timeout", seconds, *server])
            self.assertIn("argument --timeout", stderr.getvalue())

    def test_a_server_is_a_file_an_entry_of_a_configuration_or_a_program(self):
        """After a file our options may follow; after a program they are its own."""
        path = self.file("weather.py", """
            import sys; sys.path.insert(0, %r)
            from mcp_min import Server
            server = Server("weather")
            server.tool(lambda city: f"{city}: sun", name="forecast")
            server.run()
            """ % HERE)
        entry = {"command": sys.executable, "args": ["-S", path], "env": {"KEY": "x"}}
        config = self.file("mcp.json", json.dumps({"mcpServers": {
            "weather": entry, "web": {"url": "https://x.io"}}}))
        for server in (path, "--json"), ("--json", path), (config, "weather", "--json"):
            out, err, status = cli("list", *server)
            self.assertEqual((err, status), ("", 0))
            self.assertEqual(names(json.loads(out)["tools"]), ["forecast"])
        self.assertEqual(cli("call", "forecast", "city=Oslo", "--", config, "weather"),
                         ("Oslo: sun\n", "", 0))
        log = os.path.join(self.folder, "log")
        done = self.trace("--to", log, config, "weather", input=PING)
        self.assertIn(b'"id":1,"result":{}', done.stdout)
        for text, *args in (
                (r"unrecognized: --jsn \(options of a server come after `--`\)",
                 "list", path, "--jsn"),
                (r"weather.py is a server: call TOOL .* -- .*weather.py",
                 "call", path, "forecast"),
                (r"weather.py is a server: call TOOL .* -- .*weather.py",
                 "call", "forecast", "city=Oslo", path),
                ("mcp.json NAME; it has: weather, web", "list", config),
                ("mcp.json NAME; it has: weather, web", "list", config, "wether"),
                ("mcp.json NAME; it has", "call", "forecast", "--", config),
                ("bad.json, line 2: ", "list",
                 self.file("bad.json", '{"mcpServers":\n}')),
                ('has no "mcpServers"', "list", self.file("list.json", "[1]"))):
            self.fails(text, 2, *args)

    def test_a_configuration_may_have_comments_and_variables_of_its_host(self):
        """As VS Code writes it.  A text is kept, whatever looks like a comment in it;
        a variable has to be given, if its entry is used."""
        config = self.file("mcp.json", """
            {   // servers /////////////////////////////
                "servers": {
                    /* this one,
                       and "that", */
                    "fake": {"command": "${python}", // it
                             "args": ["-c", "${config:code:-pass}", /* , */ ],
                             "env": {"A": "x//y /* z */ ,]\\"//", "B": "${env:B}",},
                             "cwd": "${workspaceFolder}"},
                    "next": {"command": "-",},
                },
            }""")
        entries = load_config(config)
        self.assertEqual(entries["fake"]["env"]["A"], 'x//y /* z */ ,]"//')
        self.assertEqual(entries["next"], {"command": "-"})
        given = {"python": sys.executable, "B": "b", "workspaceFolder": self.folder,
                 "code": "import json, sys; sys.argv[1:] = [json.dumps("
                         "{'cwd': 'result(cwd=os.getcwd())'})]\n" + FAKE}
        with Client(entries["fake"], env=given, mode="legacy") as client:
            self.assertEqual(client.request("fake/env")["env"]["B"], "b")
            self.assertEqual(client.request("fake/cwd")["cwd"], self.folder)
        options = [word for name in ("python", "code", "B")
                   for word in ("--env", f"{name}=x")]
        self.fails("knows ..workspaceFolder. .* --env workspaceFolder=", 2, "list",
                   *options, config, "fake")
        self.fails("mcp.json, line 3: ", 2, "list",
                   self.file("mcp.json", "{ // one\n/* two\n*/ 5"))
        with self.assertRaisesRegex(ValueError, r"knows \$\{config:code:-pass\}"):
            Client(entries["fake"], env={"python": "python3"}).connect()

    def test_nested_fields_are_listed_below_each_other(self):
        """A definition where it is used first, also if it is a part of itself."""
        order = {"type": "object", "required": ["dish"], "properties": {
            "dish": {"type": "string"}, "with": {"$ref": "#/$defs/Order"}}}
        schema = {"type": "object", "$defs": {"Order": order}, "properties": {
            "orders": {"type": "array", "items": {"$ref": "#/$defs/Order"},
                       "description": "All of them", "minItems": 1},
            "sizes": {"type": "object", "additionalProperties": {"type": "integer"}}}}
        server = fake(list=f"result(tools=[{{'name': 'f', 'inputSchema': {schema}}}])",
                      call="text(str(params['arguments']))")
        self.assertIn(textwrap.indent(textwrap.dedent("""
            orders?: array of object {"minItems": 1}  All of them
              dish: string
              with?: any {"$ref": "#/$defs/Order"}
            sizes?: object {"additionalProperties": {"type": "integer"}}
            """), "      "), cli("list", "--", *server)[0])
        called = cli("call", "f", 'orders={"dish": "x"}', "--", *server)[0]
        self.assertEqual(called, "{'orders': [{'dish': 'x'}]}\n")

    def test_progress_is_a_line_for_each_tenth(self):
        server = self.within(self.loaded("tools.py", self.TOOLS))
        lines = cli("call", "steps", "n=200", *server)[1].splitlines()
        self.assertEqual(len(lines), 11)
        self.assertEqual(lines[-1], "progress: 100% step")
        lines = cli("call", "steps", "n=200", "known=false", *server)[1].splitlines()
        self.assertEqual(lines[0], "progress: 1 step")  # and one for each second

    @needs("turns")
    def test_a_call_that_hangs_shows_where_its_handler_is(self):
        server = self.serving("hang.py", """
            import time, mcp_min
            mcp_min.STUCK_SECONDS = 0.1

            def hang():
                time.sleep(60)  # here
            """)
        out, err, status = cli("call", "hang", "--timeout", "2", *server)
        self.assertEqual((out, status), ("", 1))
        self.assertRegex(err, r"stderr: .* is still at .*hang.py:6\n")

    def test_a_malformed_entry_or_a_failing_list_does_not_hide_the_others(self):
        tools = [5, {"name": "t", "description": None, "inputSchema": {
                     "type": "object", "properties": {
                         "x": True, "y": 7, "n": {"type": "integer"}}}},
                 {"name": "u", "inputSchema": [], "description": {}},
                 {"title": "no name"}]
        server = "--", *fake(
            discover="OFFERED.update(prompts={}); error(-32601)",
            list="{'tools/list': lambda: result(tools=%r), 'prompts/list': lambda: "
                 "error(-32603)}.get(message['method'], lambda: result(resources=["
                 "{'uri': 'x://y'}], resourceTemplates=[], nextCursor='again'))()"
                 % tools, call="text(str(params['arguments']))")
        out, err, status = cli("list", *server)
        self.assertEqual(status, 0)
        for line in ("tools (4)", "  malformed: 5", "  t", "      x?: any", "  u",
                     '  malformed: {"title": "no name"}', "resources (1)", "  x://y"):
            self.assertIn(line, out.splitlines())
        for note in ("tools/list: Malformed response", "prompts/list: refused (-32603)",
                     "resources/list: Malformed response: the pages of"):
            self.assertIn("note: " + note, err)
        self.assertEqual(cli("call", "t", "x=1", "n=2", *server)[::2],
                         ("{'x': '1', 'n': 2}\n", 0))

    def test_a_list_that_is_refused_is_not_requested_again(self):
        story = Story(self)
        cli("list", "--", *fake(story, list="error(-32603)"))
        self.assertEqual(str(story).split().count("list"), 3)  # of three lists

    def test_a_pattern_of_a_server_is_not_run(self):
        """It takes years: Python's `re` tries every way to split the text."""
        field = {"type": "string", "pattern": "^(a+)+$"}
        server = fake(list="result(tools=[{'name': 'f', 'inputSchema': {'properties': "
                           f"{{'x': {field}}}}}}}])")
        done = subprocess.run(
            [*PROGRAM, "call", "f", "x=" + "a" * 60 + "!", "--", *server], check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual((done.stdout.strip(), done.returncode), (b"ok", 0))

    def test_text_of_every_language_and_nothing_at_all_are_shown_as_they_are(self):
        text = "東\u3000京 \u00a0\U0001f468\u200d\U0001f469\nmcp_min: 2"
        server = "--", *fake(call=f"text({text!r})", read="result(contents=[])")
        self.assertEqual(cli("call", "f", *server), (text + "\n", "", 0))
        self.assertEqual(cli("read", "x://y", *server), ("", "(no content)\n", 0))

    def test_text_of_a_server_neither_controls_the_terminal_nor_forges_a_line(self):
        evil = "info\x1b]0;owned\x07\x9b2J\u202e\nmcp_min: forged"
        log = ("send(method='notifications/message', params={'level': '%s', 'logger': "
               "'%s', 'data': '%s'}); " % ((evil.replace("\n", "\\n"),) * 3))
        output = {"type": "object", "properties": {evil: {"type": "string"}}}
        tool = {"name": "f", "inputSchema": output, "outputSchema": output,
                "description": evil}
        for command, call in (
                ("list", ""),
                ("call f", f"result(content=[], structuredContent={{{evil!r}: 5}})"),
                ("call f", f"result(isError=True, content=[dict(text={evil!r})])")):
            out, err, _ = cli(*command.split(), "--", *fake(
                list=f"{log}result(tools=[{tool}])", call=log + call))
            with self.subTest(command, call=call):
                self.assertNotRegex(out + err, "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
                self.assertNotRegex(out + err, "(?m)^mcp_min: forged")
                self.assertIn(r"info\x1b]0;owned\x07\x9b2J\u202e", out + err)
        self.assertIn("the tool failed: info", err)

    @TERMINAL
    def test_at_a_terminal_no_line_of_a_server_looks_like_one_of_ours(self):
        field = {"colour:\n[sudo] password for root": {"type": "string"}}
        server = self.asking(field, "'fine\\nmcp_min: forged'")
        with Terminal("call", "f", *server, stdout=None) as screen:
            screen.expect("the server asks: [sudo] password for root?: string")
            screen.answer("\4")
            screen.expect("  fine\r\n  mcp_min: forged")

    def test_a_server_gets_the_named_variables_or_all_on_request(self):
        server = "--", *fake(
            call="text(str([os.environ.get(key) for key in ('A', 'B', 'SECRET')]))")
        with mock.patch.dict(os.environ, B="b", SECRET="s"):
            for options, expected in (("--env A=1=2 --env B", "['1=2', 'b', None]\n"),
                                      ("--inherit-env", "[None, 'b', 's']\n")):
                out, _, _ = cli("call", "variables", *options.split(), *server)
                self.assertEqual(out, expected)
            self.fails("C is not set", 2, "call", "variables", "--env", "C", *server)

    @TERMINAL
    def test_ctrl_c_cancels_the_call_and_notifies_the_server(self):
        story = Story(self)
        with Terminal("call", "slow", "--", *fake(story, call="err('up')")) as screen:
            screen.expect("stderr: up")
            screen.child.send_signal(signal.SIGINT)
            self.assertEqual(screen.child.wait(PATIENCE), 130)
        self.assertIn("cancelled", str(story))

    def test_a_server_that_is_silent_or_that_ends_is_told_with_the_cause(self):
        python = "--", sys.executable, "-S"
        relative = self.file("relative.py", "from . import mcp_min")
        vendored = self.file("vendored.py", "import mcp_min")
        silent = self.file("silent.py", "import sys; sys.stdin.read()")
        empty = self.file("empty.py", "")

        for text, *args in (
                (r"connecting took over 0.5 s: initialize: no response", "--timeout", "0.5",
                 *python, silent),
                ("(?s)stdout: '.{60}'.*run FILE.py.*RequestTimeout.*stdout: Loading",
                 "--timeout", "3", *python, "-c",
                 "import sys; print('Loading' * 20, flush=True); sys.stdin.read()"),
                (r"exit code 0\): did it call server.run\(\)\?", *python, empty),
                (r"exit code -6, SIGABRT\)\n", *python, "-c", "import os; os.abort()"),
                ("stderr: no licence\nmcp_min: .*exit code 1\\)\n", *python, "-c",
                 "import sys; sys.exit('no licence')"),
                (r"No module named 'mcp_min'(?s:.*)put mcp_min.py beside the server",
                 *python, "-I", vendored),
                (r"start it as a part of its package, with: python3 -m PACKAGE.MODULE",
                 *python, relative),
                ("cannot start .*no-such-program", "no-such-program")):
            self.assertNotRegex(self.fails(text, 1, "list", *args), "(?m)^Traceback")
        with self.assertRaisesRegex(ValueError, r"a list: \['python3', 'srv.py'\]"):
            Client("python3 srv.py").connect()

    ASKS = """
        from dataclasses import dataclass
        from datetime import date, datetime
        from typing import Annotated, List, Literal, Optional
        from mcp_min import Context

        def order(ctx: Context) -> str:
            return str(ctx.elicit("What?", ["lemon", "syrup"]).data)

        def wipe(ctx: Context) -> str:
            first = ctx.elicit("Really?").action
            return first + " " + ctx.elicit_url("Sign in", "https://x.io").action

        @dataclass
        class Guest:
            name: Annotated[str, {"minLength": 2}]
            tags: List[Literal["a", "b"]]
            seats: int = 2
            sits: Optional[bool] = None

        def book(ctx: Context) -> str:
            guest = ctx.elicit("Who?", Guest).data
            return f"{guest} {ctx.elicit('When?', ['noon', 'night']).data}"

        @dataclass
        class Trip:
            day: date
            begin: datetime
            to: Annotated[str, {"format": "email"}]
            site: Annotated[str, {"format": "uri"}]
            sure: bool = False
            note: Optional[str] = None

        def trip(ctx: Context) -> str:
            trip = ctx.elicit("Where?", Trip).data
            return trip and f"{trip.day} {trip.begin.hour} {trip.site} {trip.sure}"

        def twice(ctx: Context) -> str:
            asked = [{"type": "object", "required": [name], "properties": {
                name: {"type": "string"}, "more": {"type": "string"}}}
                for name in ("first", "second")]
            return " ".join(ctx.elicit("?", form).content[name] for form, name in zip(
                asked, ("first", "second")))

        def part(ctx: Context) -> str:
            return str(ctx.elicit("?", {"type": "object", "required": ["b"],
                "properties": {"a": {"type": "string"},
                               "b": {"type": "integer"}}}).content)
        """

    def test_questions_are_answered_by_the_option_answer(self):
        server = self.within(self.loaded("ask.py", self.ASKS))
        guest = "Guest(name='Ann', tags=['a', 'b'], seats=%s, sits=%s) %s"
        trip = ["day=2026-02-28", "begin=2026-02-28T09:30:00.5Z", "to=a@b",
                "site=x:?a=b"]
        for tool, answers, text in (
                ("order", ["lemon"], "lemon"),
                ("book", ["Ann", "a, b", "4", "true", "noon"],
                 guest % (4, True, "noon")),
                ("book", ["Ann", "a,b", "", "", "night"], guest % (2, None, "night")),
                ("book", ["seats=3", "tags=a,b", "name=Ann", "", "noon"],
                 guest % (3, None, "noon")),
                ("wipe", ["yes", "no"], "accept decline"),
                ("trip", trip, "2026-02-28 9 x:?a=b False"),
                ("trip", [*trip, "true"], "2026-02-28 9 x:?a=b True"),
                ("trip", ["dya=1", *trip[1:]], "not asked for: dya=1, begin="),
                ("trip", [*trip, "srue=true"], "not asked for: srue=true"),
                ("trip", ["true", *trip], "2026-02-28 9 x:?a=b True"),
                ("trip", ["2026-02-30"], 'such as 2026-11-23, got "2026-02-30"'),
                ("trip", [trip[0], "2026-02-28"], "begin: expected a date and a time"),
                ("trip", [*trip[:2], "a"], "to: expected an e-mail address, got"),
                ("trip", [*trip[:3], "a"], "site: expected a URI, such as"),
                ("trip", [*trip, "yes"], 'sure: expected true or false, got "yes"'),
                ("part", ["b=2"], "{'b': 2}"),
                ("order", ["a=b"], "not asked for: a=b"),
                ("twice", ["first=1", "second=2"], "1 2"),
                ("order", ["tea"], 'value: expected one of "lemon", "syrup"'),
                ("order", [""], "value: expected a value")):
            options = [word for answer in answers for word in ("--answer", answer)]
            out, err, status = cli("call", tool, *options, *server)
            with self.subTest(answers):
                self.assertIn(text, err.splitlines()[-1] if status else out)

    @TERMINAL
    def test_at_a_terminal_the_user_is_asked_until_each_answer_fits(self):
        """Only a yes is consent; Ctrl-D declines."""
        server = self.serving("ask.py", self.ASKS)

        def ask(_, tool, steps, output):
            with Terminal("call", tool, *server) as screen:
                for expected, typed in steps:
                    screen.expect(expected)
                    screen.answer(typed)
                self.assertEqual(screen.child.stdout.read().decode(), output + "\n")

        run_together(self, ask, (
            ("form", "book", (
                ('name: string {"minLength": 2}', "A\n"),
                ("again: the answer does not fit: name: expected at", "Ann\n"),
                ("tags: array", "a,c\n"), ("again: ", "a\n"),
                ("seats?: integer = 2", "\n"), ("sits?: boolean", "\n"),
                ('value: string {"enum": ["noon", "night"]}', "night\n")),
             "Guest(name='Ann', tags=['a'], seats=2, sits=None) night"),
            ("formats", "trip", (
                ("a date, such as 2026-11-23, or", "soon\n"),
                ("day: expected a date", "2026-02-28\n"),
                ("such as 2026-11-23T14:30:00Z", "2026-02-28T09:30:00Z\n"),
                ("an e-mail address", "a@b\n"), ("a URI, such", "x:y\n"),
                ("true or false, Enter for false, or", "yes\n"),
                ("again: the answer does not fit: sure: expected true or false", "\n"),
                ("a value, Enter to leave it out, or", "\n")),
             "2026-02-28 9 x:y False"),
            ("Ctrl-D", "order", [("What?", "\4")], "None"),
            ("yes", "wipe", (("yes or no", "yes\n"), ("open https://x.io", "yes\n")),
             "accept accept"),
            ("no", "wipe", (("Really?", "no\n"), ("open https://x.io", "\n")),
             "decline decline")))

    def asking(self, field, answer):
        """The command of a server that asks for a field before it answers a call."""
        schema = {"type": "object", "properties": field}
        return "--", *fake(
            list="result(tools=[{'name': 'f', 'inputSchema': {}}])",
            call="asked = id; send(id='q', method='elicitation/create', params="
                 f"{{'message': '?', 'requestedSchema': {schema}}})",
            answer=f"id = asked; text({answer})")

    def test_a_form_that_cannot_be_used_is_refused_without_a_traceback(self):
        server = self.asking({"x": {"type": 5}}, "message['error']['data']['field']")
        out, err, _ = cli("call", "f", "--answer", "x", *server)
        self.assertEqual(out, "requestedSchema\n")
        self.assertNotIn("Traceback", err)

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
        run, noise = ("--", sys.executable, FILE, "run", path), (
            "stderr: a banner\nstderr: a child\n")
        out, err, _ = cli("list", "--json", *run)
        self.assertEqual(names(json.loads(out)["tools"]), ["where"])
        self.assertEqual(json.loads(out)["instructions"], "Prints at import.")
        self.assertEqual(err, noise)
        self.assertEqual(cli("call", "where", 'point={"x": 1}', *run),
                         (f"<class 'int'> noisy {path}\n", noise, 0))

    def test_run_tells_what_is_wrong_with_a_file(self):
        rows = [
            ("x = 1\nimport no_such_thing\n", "ModuleNotFoundError.*"),
            ("x = 1\ndef f(:\n", "SyntaxError.*"),
            ("x = 1\nfrom . import y\n", "ImportError.*python3 -m PACKAGE.MODULE.*"),
            ("import mcp_min\nmcp_min.Server('s').run()\n",
             ".*under `if __name__ == '__main__':`.*"),
            (("import mcp_min\nfrom contextlib import contextmanager as c\n"
              "same = server = mcp_min.Server(lifespan=c(lambda server: [][0]))"), "1"),
            ("import mcp_min\na, b = mcp_min.Server(), mcp_min.Server()", "2"),
            ("x = 5", "2")]
        paths = [self.file(f"file{n}.py", text) for n, (text, _) in enumerate(rows)]
        with process(f"""
                for path in {paths!r}:
                    try:
                        mcp_min.main(["run", path])
                    except SystemExit as end:
                        os.write(2, b"%s\\0" % str(end.code).encode())
                """) as child:
            self.assertEqual((child.hang_up(), child.exit()), ([], 0))
            stderr = child.stderr
        for path, (_, error), said in zip(paths, rows, stderr.split("\0")):
            path = re.escape(path)
            place = "" if error in "12" else f'File "{path}", line 2(?s:.*)\n'
            with self.subTest(error):
                self.assertRegex(said, f"{place}.*{error}$")
        for text in "must have one Server", "or public functions", "IndexError: list":
            self.assertIn(text, stderr)

    def test_run_with_unthreaded_calls_functions_on_the_thread_of_the_import(self):
        server = self.serving("base.py", """
            import sqlite3
            base = sqlite3.connect(":memory:")
            def one() -> int:
                return base.execute("select 1").fetchone()[0]
            """)
        self.assertEqual(cli("call", "one", *server, "--unthreaded")[0], "1\n")

    def trace(self, *args, **options):
        """Run `trace` with these arguments before the server's command."""
        return subprocess.run([*PROGRAM, "trace", *args], capture_output=True,
                              check=False, timeout=PATIENCE, **options)

    def test_trace_passes_all_bytes_and_the_exit_status_and_writes_all_down(self):
        log = os.path.join(self.folder, "log")
        echo = "import sys; data = sys.stdin.buffer.read(); " \
               "sys.stdout.buffer.write(data); sys.stderr.write('beside'); sys.exit(7)"
        data = (b'\xff\xfe{"id": 1\r\n\n{"jsonrpc":"2.0","id":2,"method":"a/b"}\n'
                + b"x" * (2 << 20))
        done = self.trace("--to", log, "--", sys.executable, "-S", "-c", echo,
                          input=data)
        self.assertEqual((done.stdout, done.stderr, done.returncode),
                         (data, b"beside", 7))
        lines = pathlib.Path(log).read_text(encoding="utf-8").splitlines()
        self.assertRegex(
            lines[0],
            r'^\d\d:\d\d:\d\d\.\d{3} > \\xff\\xfe\{"id": 1  # not a message$')
        marks = collections.Counter(line.split(" ")[1] for line in lines)
        self.assertEqual(marks, {">": 4, "<": 4, "!": 2})
        self.assertGreater(max(map(len, lines)), 2 << 20)  # a large one is whole
        self.assertTrue([line for line in lines if line.endswith("! beside")])
        self.assertIn("! the server's exit code is 7", lines[-1])
        if os.name == "posix":
            self.assertEqual(os.stat(log).st_mode & 0o777, 0o600)

    def test_trace_on_stderr_has_the_servers_stderr_and_its_end(self):
        show = "import os, sys; print(*map(os.environ.get, 'AB')); sys.exit('no luck')"
        with mock.patch.dict(os.environ, A="a"):
            done = self.trace("--env", "B=b", "--", sys.executable, "-S", "-c", show,
                              stdin=subprocess.DEVNULL, text=True)
        self.assertEqual((done.stdout.split(), done.returncode), (["a", "b"], 1))
        lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
        self.assertEqual(sorted(lines), [
            "! no luck", "! the server's exit code is 1", "< a b  # not a message"])

    @UNIX
    def test_trace_ends_with_its_server_though_a_child_holds_its_stdout(self):
        """Fails (it stays) if it waits for the end of that."""
        noted = os.path.join(self.folder, "pid")
        server = ("import subprocess, sys; child = subprocess.Popen([sys.executable, "
                  "'-c', 'import time; time.sleep(60)'], stdin=subprocess.DEVNULL); "
                  f"open({noted!r}, 'w').write(str(child.pid))")
        with process(f"""
                mcp_min.Process.PATIENCE = 0.1
                sys.exit(mcp_min.main(
                    ["trace", "--", sys.executable, "-S", "-c", {server!r}]))
                """, stdin=subprocess.DEVNULL) as relay:
            self.assertEqual(relay.exit(), 0)
        os.kill(int(pathlib.Path(noted).read_text()), signal.SIGKILL)  # it was there

    @UNIX
    def test_a_command_without_stdout_says_so(self):
        done = subprocess.run(
            [*PROGRAM, "list", "--", sys.executable, "-c", ""], check=False,
            stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1), timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stderr),
                         (1, b"mcp_min: OSError: stdout is closed\n"))

    def test_wrong_usage_is_one_line_and_status_2(self):
        self.fails(r"error: no command 'lsit'\n$", 2, "lsit", "x")
        for args in (["nope"], ["list"], ["call"], ["call", "count"], ["demo", "x"],
                     ["call", "count", "to=1", "--frob", "--", "x"], ["run", "no.py"],
                     ["list", "--mode", "1999-01-01", "x"], ["trace"], ["connect"],
                     ["complete", "review", "--", "x"], ["read", "a", "b", "--", "x"],
                     ["call", "count", "5", "--", *self.SERVER]):
            self.fails("error: .*\n$", 2, *args)

    def test_the_version_and_the_options_of_each_command(self):
        self.assertEqual(cli("--version"), (f"mcp_min {mcp_min.__version__}\n", "", 0))
        self.assertIn("exit status", cli()[0])
        query = dict.fromkeys(("list", "call", "read", "prompt", "complete"),
                              "answer env inherit-env json mode output timeout")
        for command, options in {
                "demo": "", "serve": "", **query, "run": "unthreaded", "connect": "",
                "trace": "env to",
                "vendor": "check client core diff force init lean server with without",
                }.items():
            with self.subTest(command):
                out, err, status = cli(command, "-h")
                self.assertEqual((err, status), ("", 0))
                listed = re.findall("^  --([a-z-]+)", out, re.MULTILINE)
                self.assertEqual(sorted(listed), sorted(options.split()))

    @UNIX
    def test_a_trace_that_is_stopped_ends_its_server_and_what_that_has_started(self):
        program = ("import subprocess as s, sys, time; p = s.Popen([sys.executable, "
                   "'-c', 'import time; time.sleep(600)']); print(p.pid, "
                   "file=sys.stderr, flush=True); time.sleep(600)")
        with subprocess.Popen(
                [*PROGRAM, "trace", "--", sys.executable, "-c", program], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE) as trace:
            pid = int(re.search(r"! (\d+)", trace.stderr.readline())[1])
            trace.terminate()
            self.assertRegex(trace.communicate(timeout=PATIENCE)[1],
                             "exit code is -15\n$")
            self.assertEqual(trace.returncode, 143)
        gone(pid)


@needs("cli")
class TestConnect(unittest.TestCase):
    """`Server.listen`, and the command `connect` that reaches it."""

    def setUp(self):
        self.path = os.path.join(folder_of(self), "private", "mcp")
        self.connect = [*PROGRAM, "connect", self.path]

    def application(self):
        """Another process that listens."""
        child = process(f"""
            server = Server("application")
            server.tool(lambda text: text, name="echo")
            listener = server.listen({self.path!r})
            os.write(2, b"ready")
            sys.stdin.read()
            """)
        self.addCleanup(child.__exit__, None, None, None)
        wait_until(lambda: child.stderr == "ready")
        return child

    def listen(self, server=None):
        listener = (server or zoo()).listen(self.path)
        self.addCleanup(listener.close)
        return listener

    def dial(self):
        """A socket to the port that the file names."""
        port = int(pathlib.Path(self.path).read_text(encoding="ascii").split()[0])
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.addCleanup(sock.close)
        return sock

    def stranger(self):
        """Another program that listens on the port that a stale file names."""
        sock = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(sock.close)
        os.makedirs(os.path.dirname(self.path))
        pathlib.Path(self.path).write_text(
            f"{sock.getsockname()[1]} {'0' * 64} {'1' * 64}\n")
        return sock

    def relay(self, **options):
        """The command `connect`, which waits only a moment for a listener."""
        return process(f"""
            mcp_min.CONNECT_SECONDS = 0.01
            sys.exit(mcp_min.main(["connect", {self.path!r}]))
            """, **options)

    def test_strangers_at_a_listener_have_few_threads(self):
        """Fails (a thread for each) if all are admitted."""
        self.listen()
        with mock.patch.multiple(
                mcp_min, MAX_STRANGERS=3, LISTEN_SECONDS=2 * PATIENCE):
            before = threading.active_count()
            strangers = [self.dial() for _ in range(20)]
            wait_until(lambda: len(select.select(strangers, [], [], 0)[0]) == 17,
                       "all but three are closed")
            wait_until(lambda: threading.active_count() <= before + 3, "few threads")
            for stranger in strangers:
                stranger.close()
            wait_until(lambda: threading.active_count() <= before, "no stranger")
            with Client(self.connect, timeout=PATIENCE) as client:
                self.assertEqual(client.call_tool("echo", {"text": "x"}).text, "x")

    @UNIX
    def test_a_listener_is_reached_only_through_a_file_of_ours(self):
        """Fails (it hangs, or trusts another's) if what is there is not looked at."""
        self.listen()
        fifo, link = self.path + "fifo", self.path + "link"
        os.mkfifo(fifo)
        os.symlink(self.path, link)
        for path in fifo, link:
            self.assertIsNone(mcp_min.reach_listener(path))
        if os.getuid() == 0:
            os.chown(self.path, 12345, 12345)
            self.assertIsNone(mcp_min.reach_listener(self.path))
            os.chown(self.path, 0, 0)
        with mcp_min.reach_listener(self.path):
            """It is reached."""

    def test_a_listener_removes_no_file_but_its_own(self):
        listener = self.listen()
        pathlib.Path(self.path).write_text("1 another 2")
        listener.close()
        self.assertEqual(pathlib.Path(self.path).read_text(), "1 another 2")

    def test_a_host_reaches_a_server_in_another_process(self):
        application, big = self.application(), "x" * 2_000_000
        with Client(self.connect, stderr=None) as one, Client(self.connect) as two:
            self.assertEqual(one.server_info["name"], "application")
            self.assertEqual(one.call_tool("echo", {"text": big}).text, big)
            self.assertEqual(two.call_tool("echo", {"text": "hi"}).text, "hi")
            two.close()
            application.child.kill()
            self.assertRaises(ConnectionClosed, one.call_tool, "echo", {"text": "hi"})
        self.assertEqual(one.exit_code, 1)
        self.assertIn("has closed the connection", one.stderr_tail)

    @UNIX
    def test_only_the_user_can_read_the_secret(self):
        os.umask(os.umask(0o022))
        self.listen()
        folder = os.path.dirname(self.path)
        for path, mode in (self.path, 0o600), (folder, 0o700):
            self.assertEqual(os.stat(path).st_mode & 0o777, mode)
        self.assertEqual(os.listdir(folder), ["mcp"])

    def test_who_does_not_know_the_secret_gets_no_word_and_runs_nothing(self):
        called = []
        server = Server("s")
        server.tool(lambda: called.append(1), name="call")
        self.listen(server)
        self.dial()  # says nothing meanwhile
        for first in b"", b"0" * 64, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r" * 50:
            with self.subTest(first):
                sock = self.dial()
                sock.sendall(first + raw('1 call call', True))
                with contextlib.suppress(ConnectionError):
                    self.assertEqual(sock.recv(1), b"")
        with Client(self.connect) as client:
            self.assertEqual(called, [])
            client.call_tool("call")
        self.assertEqual(called, [1])

    def test_who_says_nothing_is_left_after_a_while(self):
        with mock.patch.object(mcp_min, "LISTEN_SECONDS", 0.05):
            self.listen()
            self.assertEqual(self.dial().recv(1), b"")

    def test_a_listener_that_cannot_write_its_file_leaves_nothing(self):
        os.makedirs(os.path.join(self.path, "folder"))
        before = {*threading.enumerate()}
        self.assertRaises(OSError, zoo().listen, self.path)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["mcp"])
        self.assertLessEqual({*threading.enumerate()}, before)

    def test_a_stale_file_is_replaced_and_a_live_one_is_not(self):
        """Nor is another program believed that has got the port of a stale one."""
        stranger = self.stranger()

        def answer():
            with stranger.accept()[0] as sock:
                sock.sendall(sock.recv(64))

        threading.Thread(target=answer, daemon=True).start()
        application = self.application()
        self.check_live("application")
        application.child.kill()
        application.exit()
        self.assertTrue(os.path.exists(self.path))
        self.listen()
        self.check_live("zoo")

    def check_live(self, name):
        with self.assertRaisesRegex(OSError, "already listens"):
            zoo().listen(self.path)
        with Client(self.connect) as client:
            self.assertEqual(client.server_info["name"], name)

    def test_close_ends_the_connections_and_removes_the_file(self):
        listener = self.listen()
        with Client(self.connect, stderr=None) as client:
            client.call_tool("echo", {"text": "hi"})
            port = self.dial().getpeername()
            listener.close()
            listener.close()
            self.assertRaises(
                ConnectionClosed, client.call_tool, "echo", {"text": "hi"})
        self.assertFalse(os.path.exists(self.path))
        self.assertRaises(OSError, socket.create_connection, port)
        self.listen()

    def test_while_nobody_listens_each_request_is_answered_with_an_error(self):
        with self.relay() as relay:
            relay.send(b"noise\n", {"jsonrpc": "2.0", "id": 1, "result": {}}, [])
            relay.say("notifications/initialized")
            for id in 1, 2:
                error = relay.ask(f"{id} ping")
                self.assertEqual((error["id"], error["error"]["code"]), (id, -32603))
                self.assertIn(f"no server listens at {self.path}: start the",
                              error["error"]["message"])
            listener = self.listen()
            play(relay, "> 3 ping\n< 3 {}")
            listener.close()
            self.assertEqual((relay.recv(), relay.exit()), (None, 1))
            self.assertIn("has closed the connection", relay.stderr)
        with self.relay(stdin=subprocess.DEVNULL) as relay:
            self.assertEqual((relay.recv(), relay.exit()), (None, 1))
            self.assertRegex(relay.stderr, "no server listens at .*mcp: start the")

    def test_connect_waits_for_an_application_that_is_starting(self):
        stranger, client = self.stranger(), Client(self.connect)

        def start():
            for _ in range(4):  # that often it has tried in vain
                stranger.accept()[0].close()
            stranger.close()
            self.listen()

        together(client.connect, start)
        with client:
            self.assertEqual(client.call_tool("echo", {"text": "hi"}).text, "hi")
        self.assertEqual((client.exit_code, client.stderr_tail), (0, ""))

    def test_a_listener_hears_after_threads_could_not_be_started(self):
        """Fails (the next is a stranger too many) if those count for ever."""
        with quiet(), mock.patch.object(mcp_min, "MAX_STRANGERS", 1):
            self.listen()
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError):
                self.assertEqual(self.dial().recv(1), b"")
            with Client(self.connect, timeout=PATIENCE) as client:
                client.ping()


# ======================================================================================
# Every feature in both eras
# ======================================================================================

def names(listed, key="name"):
    return [entry[key] for entry in listed]


def outcome_of_changes(session):
    session.client.call_tool("grow", {"name": "grown"})
    session.received("notifications/tools/list_changed")
    grown = "grown" in names(session.client.list_tools())
    session.client.call_tool("shrink", {"name": "grown"})
    wait_until(lambda: len(session.received("notifications/tools/list_changed")) == 2)
    return grown, "grown" in names(session.client.list_tools())


def outcome_of_subscription(session):
    """The updates that come for x, then only for y, then for z."""
    def updates():
        return [update["params"]["uri"] for update in
                session.received("notifications/resources/updated")]

    for uri in "note://x", "note://z":
        session.client.subscribe(uri)
        for touched in "note://x", "note://y", "note://z":
            session.client.call_tool("touch", {"uri": touched})
        wait_until(lambda uri=uri: uri in updates())
        session.client.unsubscribe(uri)
    return updates()


def outcome_of_logging(session):
    """The levels that come by default, and after each change of the level."""
    levels, came = ["debug", "info", "warning", "critical", "emergency"], []
    for level in None, "debug", "warning", "emergency":
        if level:
            session.client.set_logging_level(level)
        del session.logs[:]
        session.client.call_tool("tell", {"levels": levels})
        wait_until(lambda: ("emergency", {"level": "emergency"}) in session.logs)
        came.append(" ".join(level for level, _ in session.logs))
    return ", ".join(came)


def outcome_of_cancelling(session):
    call = session.client.submit_tool("hang")
    wait_until(lambda: session.effects == ["hanging"])
    call.cancel()
    wait_until(lambda: session.effects == ["hanging", "cancelled"])
    (done,), _ = concurrent.futures.wait([call], PATIENCE)  # a cancelled call is done
    return done.cancelled(), session.client.call_tool("add", {"a": 1}).data


CALLS = [  # (method of a client, its arguments, a pattern of the result on the wire)
    ("call_tool", ("forecast", {"city": "Oslo"}),
     {"structuredContent": {"city": "Oslo", "days": 3}}),
    ("call_tool", ("mixed", {}), {"content": [
        {"type": "text"}, {"type": "image"}, {"type": "resource_link"},
        {"type": "resource"}]}),
    ("call_tool", ("unlucky", {}),
     {"isError": True, "content": [{"text": "out of luck"}]}),
    ("call_tool", ("add", {"a": "x"}), {"isError": True}),
    ("call_tool", ("add", {"a": "1"}), {"structuredContent": {"result": 3}}),
    ("call_tool", ("pay", {"amount": 7}),
     {"structuredContent": {"name": "Ann", "sure": True, "receipt": "receipt 1"}}),
    ("call_tool", ("story", {}), {"structuredContent": {"result": [7]}}),
    ("call_tool", ("visit", {}), {"content": [{"text": "accept"}]}),
    ("call_tool", ("recite", {}), {"content": [{"text": "roses are red"}]}),
    ("call_tool", ("where", {}),
     {"structuredContent": {"result": [{"uri": "file:///a"}]}}),
    ("call_tool", ("several", {}), {"structuredContent": {
        "who": {"name": "Ann"}, "dirs": [{"uri": "file:///a"}]}}),
    ("read_resource", ("config://app",), {"contents": [{"text": '{"debug": true}'}]}),
    ("read_resource", ("blob://one",), {"contents": [{"blob": "AP8="}]}),
    ("read_resource", ("note://x",),
     {"contents": [{"text": "note x", "mimeType": "text/plain"}]}),
    ("read_resource", ("asked://tea",), {"contents": [{"text": "tea for Ann"}]}),
    ("get_prompt", ("review", {"code": "1"}), {"messages": [
        {"role": "user", "content": {"text": "review this python: 1"}}]}),
    ("get_prompt", ("interview",),
     {"messages": [{"role": "assistant"}, {"content": {"text": "Ann"}}]})]


def result_on_the_wire(client, method, *arguments):
    """What a client of mcp_min receives for a row of CALLS."""
    options = {"raise_on_error": False} if method == "call_tool" else {}
    result = getattr(client, method)(*arguments, **options)
    return {"contents": result} if method == "read_resource" else result


FEATURES = [  # (name, a function that uses the feature, its outcome in both eras)
    ("tools/list, to its last page", lambda s: names(s.client.list_tools())[::6],
     ["add", "picky", "where", "touch"]),
    ("resources/list", lambda s: names(s.client.list_resources(), "uri"),
     ["config://app", "blob://one"]),
    ("resources/templates/list", lambda s: names(s.client.list_resource_templates(),
                                                 "uriTemplate"),
     ["note://{name}", "asked://{name}"]),
    ("prompts/list", lambda s: names(s.client.list_prompts()), ["review", "interview"]),
    ("tools/call, McpError", lambda s: raised(s.client.call_tool, "picky").data,
     {"why": "monday"}),
    ("completion/complete", lambda s: [
        s.client.complete(reference, name, "p", context={"code": "p"})["values"][-1]
        for reference, name in (("review", "language"), ("note://{name}", "name"), (
            {"type": "ref/prompt", "name": "review"}, "language"))],
     ["p", "p099", "p"]),
    ("ping", lambda s: raised(s.client.ping), None),
    ("custom method", lambda s: s.client.request("acme/echo", {"word": "x"})["echo"],
     "x"),
    ("progress", lambda s: (s.client.call_tool("count", {"n": 3}), wait_until(
        lambda: len(s.progress) == 3 and s.progress))[1],
     [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]),
    ("log messages", outcome_of_logging,
     ("info warning critical emergency, debug info warning critical emergency, "
      "warning critical emergency, emergency")),
    ("other roots", lambda s: (s.client.set_roots([{"uri": "file:///b"}, "/a b"]),
                               s.client.call_tool("where").data)[1],
     [{"uri": "file:///b"}, {"uri": pathlib.Path("/a b").absolute().as_uri()}]),
    ("cancellation", outcome_of_cancelling, (True, 3)),
    ("tools/list_changed", outcome_of_changes, (True, False)),
    ("resources/updated", outcome_of_subscription, ["note://x", "note://z"]),
    ("client capabilities", lambda s: s.client.call_tool("whoami").data["able"],
     ["elicitation", "roots", "sampling"]),
    ("server_info", lambda s: (s.client.server_info["name"], s.client.instructions),
     ("everything", "be kind"))]


class TestBothEras(unittest.TestCase):
    """Every feature has the same outcome in both eras, for the caller and for the
    handlers of the server."""

    @needs("more")
    @both_eras
    def test_every_feature_has_the_same_outcome(self, era):
        for name, use, expected in FEATURES:
            with Session(era) as session, self.subTest(name):
                self.assertEqual(use(session), expected)

    @needs("more")
    @both_eras
    def test_every_call_has_the_same_result(self, era):
        with Session(era) as session:
            for method, arguments, expected in CALLS:
                with self.subTest(method, arguments=arguments):
                    result = result_on_the_wire(session.client, method, *arguments)
                    self.assertTrue(matches(expected, result, {}), result)
            name = ("your name?", None)
            self.assertEqual(session.asked, [
                name, ("sure?", None), ("sign in", "https://example.org/in"),
                ("sampling", "user", 7), name, name, name])


class Till:
    """A server whose tool asks the questions 1, 2 and 3, and takes after each a step
    (a, b, c) that `once` runs.

    It stops at one of these points until `release` is set: while the user answers, or
    in the step.  ``steps`` are those that have begun, and ``running`` has an item for
    each handler that runs.
    """

    def __init__(self, asynchronous, stops_at):
        self.steps, self.running, self.stops_at = [], [], stops_at
        self.reached, self.release = gate("point " + stops_at), gate("release")
        self.server = Server("till", drain_seconds=0.05)
        self.server.tool(self.order_later if asynchronous else self.order, name="order")

    def order(self, ctx: Context) -> str:
        self.running.append(1)
        try:
            for question, step in "1a", "2b", "3c":
                ctx.elicit(question, bool)
                ctx.once(step, functools.partial(self.pause, step))
            return "sold"
        finally:
            self.running.pop()

    async def order_later(self, ctx: Context) -> str:
        self.running.append(1)
        try:
            for question, step in "1a", "2b", "3c":
                await ctx.elicit(question, bool)
                await ctx.once(
                    step, functools.partial(asyncio.to_thread, self.pause, step))
            return "sold"
        finally:
            self.running.pop()

    def answer(self, message, schema, params):
        self.pause(message)
        return {"value": True}

    def pause(self, point):
        if point.isalpha():
            self.steps.append(point)
        if point == self.stops_at and not self.reached.is_set():
            self.reached.set()
            self.release.wait(3 * PATIENCE)  # longer than a test waits for the end


EVERYWHERE = [  # (label, era, `async def`?, the point, the steps that have begun there)
    ("%s %s %s" % (era, "async def" if asynchronous else "def", point),
     era, asynchronous, point, list("abc"[:number // 2]))
    for era in ("legacy", "modern") for asynchronous in (False, True)
    for number, point in enumerate("1a2b3c", 1)]


@needs("stateless")
class TestInterruptions(unittest.TestCase):
    """A handler that asks three questions, with steps between them that run once, is
    interrupted at each of the six points, in both eras, `def` and `async def`."""

    @needs("asyncio")
    def test_the_call_is_cancelled_or_the_client_closed(self):
        """The handler ends at once, unless it is inside of a plain function of its own;
        no later step is taken; and after a cancellation the connection goes on."""
        def interrupt(label, how, era, asynchronous, point, steps):
            till = Till(asynchronous, point)
            with Client(till.server, mode=era, elicitation_handler=till.answer) as (
                    client):
                call = client.submit_tool("order")
                till.reached.wait()
                if how == "closed":
                    client.close()
                    error = raised(call.result, PATIENCE)
                    self.assertIsInstance(error, ConnectionClosed)
                else:
                    self.assertTrue(call.cancel())
                if how == "closed" or point.isalpha() and not asynchronous:
                    till.release.set()
                wait_until(lambda: not till.running, label)
                till.release.set()
                self.assertEqual(till.steps, steps)
                if how == "cancelled":
                    self.assertEqual(client.call_tool("order").text, "sold")
                    self.assertEqual(till.steps, [*steps, *"abc"])

        run_together(self, interrupt, [
            (f"{how}: {label}", how, *row)
            for how in ("cancelled", "closed") for label, *row in EVERYWHERE])

    def test_the_server_is_killed(self):
        def kill(label, era, asynchronous, point, steps):
            till = Till(asynchronous, point)

            def answer(message, schema, params):
                if message == point:
                    os.kill(client.call_tool("pid").data, KILL)
                return till.answer(message, schema, params)

            client = Client([*BARE_PYTHON, KILLED_TILL, point],
                            mode=era, elicitation_handler=answer,
                            stderr=lambda text: till.steps.extend(text.split()))
            with client:
                self.assertIsInstance(raised(client.call_tool, "order"),
                                      ConnectionClosed)
                till.release.set()
            self.assertEqual(till.steps, steps)

        run_together(self, kill, [row for row in EVERYWHERE if not row[2]])


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
KILLED_TILL = process.HEAD + """
server = Server("till")
server.tool(lambda: os.getpid(), name="pid", output_schema={"type": "integer"})

def take(step):
    os.write(2, step.encode() + b"\\n")
    if step == sys.argv[1]:
        os.kill(os.getpid(), %d)

@server.tool
def order(ctx: Context) -> str:
    for question, step in "1a", "2b", "3c":
        ctx.elicit(question, bool)
        ctx.once(step, lambda: take(step))

server.run()
""" % KILL


# ======================================================================================
# Races
# ======================================================================================

@needs("inside")
class TestOwnNotifications(unittest.TestCase):
    """Notifications of the user's own at the end of a connection."""

    @needs("asyncio", "more")
    def test_all_that_came_before_the_end_are_handled_within_the_lifespan(self):
        """On every kind of thread.  Fails if the end of the input overtakes them."""
        line = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"n":%d}}\n'
        lines = b"".join(line % n for n in range(5))
        for kind in "def", "async def", "threaded=False":
            seen = []

            @contextlib.contextmanager
            def lifespan(server, seen=seen):
                yield
                seen.append("left")

            server = Server("s", lifespan=lifespan, threaded=kind != "threaded=False")

            def note(n: int, seen=seen):
                time.sleep(0.01)
                seen.append(n)

            async def note_async(n: int, seen=seen):
                await asyncio.sleep(0.01)
                seen.append(n)

            handler = note_async if kind == "async def" else note
            server.method("notifications/x")(handler)
            with self.subTest(kind):
                server.serve(io.BytesIO(lines), io.BytesIO())
                self.assertEqual(seen, [0, 1, 2, 3, 4, "left"])

    @needs("more")
    def test_one_that_comes_as_the_client_closes_is_handled_too(self):
        """Where its thread is that of the client.  Fails (it waits for ever) if what
        came last is dropped."""
        server, seen = Server("s", threaded=False), []
        threads = NewThreads()
        server.method("notifications/x")(lambda: seen.append(1))
        server.tool(lambda: "x", name="f")
        for _ in range(3):
            with Client(server) as client:
                client.call_tool("f")
                client.notify("notifications/x")
        self.assertEqual(seen, [1, 1, 1])
        wait_until(lambda: "mcp callbacks" not in threads.names())

    @unittest.skipIf(sys.implementation.name == "pypy", "it counts no references")
    @needs("more")
    def test_one_is_freed_when_it_has_been_handled(self):
        """Fails (it waits for the collector of cycles) if its context keeps it."""
        server, kept = Server("s"), []

        @server.method("notifications/x")
        def note(ctx: Context):
            kept.append(weakref.ref(ctx))

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        server.serve(io.BytesIO(b'{"jsonrpc":"2.0","method":"notifications/x"}\n'),
                     io.BytesIO())
        self.assertEqual([one() for one in kept], [None])

    @needs("more")
    def test_its_context_sends_and_cannot_ask(self):
        """What it says belongs to no request, and is never about one."""
        server = Server("s")

        @server.method("notifications/x")
        def note(ctx: Context):
            assert ctx.wait(0) is ctx.cancel_reason is ctx.request_id is None
            assert ctx.meta == {"progressToken": 1} and not ctx.cancelled
            ctx.report_progress(1)
            error = raised(ctx.list_roots)
            ctx.log("error", str(error))

        play(server, """
            > notifications/x {"_meta": {"progressToken": 1}}
            < notifications/message {"level": "error", "data": "%s (-32600)"}
            """ % "The client cannot be asked: the request has been answered, or it is "
            "a notification", era="legacy")


@needs("stateless", "asyncio", "trace", "server", "client")
class TestLocks(unittest.TestCase):
    """The order in which the docstring lists the locks."""

    @needs("more")
    def test_every_lock_is_listed_and_taken_in_that_order(self):
        """While both ends use everything, in both eras.  Fails if the table lacks one,
        or if one is taken while a later one is held.  Looks inside."""
        locks = OrderedThreading()
        made = re.findall(r"(?m)^ +self\.(\w+) = threading\.R?Lock\(\)",
                          pathlib.Path(mcp_min.__file__).read_text(encoding="utf-8"))
        listed = [name.partition(".")[2] for name in locks.order if "." in name]
        self.assertEqual(sorted(made), sorted(listed))
        before = len(OrderedLock.wrong)
        with mock.patch.object(mcp_min, "threading", locks):
            for mode in LATEST, MODERN:
                with self.subTest(mode):
                    use_locks(mode)
        self.assertEqual(OrderedLock.wrong[before:], [])
        self.assertLessEqual(locks.made, {*locks.order})
        self.assertGreater(len(locks.made), 8)


def use_locks(mode):
    """A session in which every kind of lock is taken while others are held."""
    server, changes = Server("s", drain_seconds=0.1), queue.Queue()
    server.resource("note://{name}")(lambda name: name)

    @server.tool
    async def ask(ctx: AsyncContext) -> str:
        return (await ctx.elicit("?", str)).data

    @server.tool
    def report(ctx: Context) -> str:
        for _ in ctx.track(range(3)):
            ctx.info("x")
        server.notify_resource_updated("note://a")
        return "done"

    def wait(ctx: Context):
        ctx.wait(PATIENCE)

    server.tool(wait)
    for threaded in True, False:
        server.threaded = threaded
        with Client(server, mode=mode, elicitation_handler=lambda *_: "yes",
                    log_handler=str, message_handler=changes.put,
                    progress_handler=lambda *_: None) as client:
            client.subscribe("note://a")
            assert client.call_tool("ask").text == "yes"
            assert client.call_tool("report").text == "done"
            server.add_tool(lambda: "", name=f"more{threaded}")
            if threaded:
                raised(client.call_tool, "wait", timeout=0.05)
                calls = [client.submit_tool("wait") for _ in range(2)]
                calls[0].cancel()
                client.unsubscribe("note://a")
            changes.get(timeout=PATIENCE)


class TestRaces(unittest.TestCase):
    """Each docstring names the mistake in mcp_min that makes the test fail."""

    def setUp(self):
        self.server = Server("echo")
        self.server.add_tool(lambda word: word, name="echo")
        switching = switch_threads_often(1e-5)
        switching.__enter__()
        self.addCleanup(switching.__exit__, None, None, None)

    @needs("stateless", "more")
    def test_no_notification_is_lost_while_a_stream_replaces_another(self):
        """Fails (some are lost) if one is sent to the old stream after the new one was
        acknowledged."""
        def churn(name):
            while not ended.is_set():
                client.subscribe(f"r://{name}")
                client.unsubscribe(f"r://{name}")

        server, ended, heard = Server("s"), threading.Event(), []
        server.resource("r://{name}")(lambda name: name)
        with Client(server, mode="modern", message_handler=lambda message: (
                heard.append(message["params"].get("uri")))) as client:
            client.subscribe("r://kept")

            def publish():
                for _ in range(800):
                    server.notify_resource_updated("r://kept")
                    time.sleep(0.0002)  # so that some fall between
                ended.set()

            together(publish, *[functools.partial(churn, name) for name in "abc"])
            wait_until(lambda: heard.count("r://kept") >= 800, "all are heard")
        self.assertEqual(heard.count("r://kept"), 800)

    @needs("stateless", "more")
    def test_threads_that_subscribe_at_once_share_one_stream(self):
        """Fails if the stream of a resource is looked up and replaced in two steps."""
        server, _ = everything()
        with mock.patch.object(mcp_min, "MAX_REQUESTS", 20), switch_threads_often(), (
                Client(server, mode="modern")) as client:
            for _ in range(100):  # streams that are left open would fill the table
                self.assertEqual(
                    together(*[lambda: client.subscribe("note://x")] * 3), [None] * 3)
                client.unsubscribe("note://x")

    @needs("asyncio")
    def test_mixed_requests_are_each_answered_once(self):
        """Calls that return at once, sleep, spin, await or report; pings; and some of
        all these are cancelled.  Fails if a response is lost or sent twice, if two
        threads read, if more handlers run than there are workers, or if a thread that
        is to read or to work is not woken."""
        for limit in 1, 5, 64:
            with self.subTest(limit), switch_threads_often(1e-4):
                self.check_mixed(limit, random.Random(limit))

    def check_mixed(self, limit, rng):
        server, reading = Server("s", max_workers=limit), threading.Lock()
        running, most = set(), [0]

        def serve(reader, writer):
            def read1(size):
                assert reading.acquire(blocking=False), "two threads read"
                try:
                    return reader.read1(size)
                finally:
                    reading.release()

            server.serve(types.SimpleNamespace(
                read1=read1, fileno=reader.fileno, close=reader.close), writer)

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

        count = 200  # 1000 at once are refused
        cancelled, answered = set(), collections.Counter()
        with wire(types.SimpleNamespace(serve=serve)) as client:
            play(client, "> handshake")
            for n in range(count):
                way = rng.choice(["ping", *ways, "coroutine"])
                client.say(f"{n} ping" if way == "ping" else '%d tools/call {"name": '
                           '"%s", "arguments": {"way": "%s", "seconds": %f}, "_meta": '
                           '{"progressToken": %d}}' % (
                               n, "plain" if way in ways else way, way,
                               rng.random() / 200, n))
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

    @needs("inside")
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

    @needs("stateless")
    def test_a_tool_can_be_called_while_it_is_replaced(self):
        """Fails if the old entry is removed before the new one is added."""
        stop = threading.Event()

        def replace():
            while not stop.is_set():
                self.server.add_tool(lambda word: word, name="echo")

        def call():
            try:
                request = '1 call echo {"word": "x"}'
                return [client.ask(request, "modern").keys() for _ in range(400)]
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

    def test_each_of_many_threads_receives_its_own_results(self):
        """Fails if two threads may write at once, or may take the same id.  The long
        words do not fit into a pipe, so the lines of two writers would be mixed."""
        def work(thread):
            for word in "short", "long" * 40000:
                for call in range(4):
                    text = f"{thread}/{call} {word}"
                    if client.call_tool("echo", {"word": text}).text != text:
                        return text

        with Client(self.server) as client:
            self.assertEqual(together(*[functools.partial(work, thread)
                                        for thread in range(20)]), [None] * 20)

    def test_a_call_is_cancelled_or_times_out_or_has_a_result(self):
        """Fails (an InvalidStateError on stderr, two callbacks) if the check that the
        future is not cancelled and the setting of its result are two steps."""
        with quiet() as stderr, Client(self.server) as client:
            for turn in range(300):
                timeout = PATIENCE if turn % 4 else turn * 1e-5 + 1e-5
                ended, call = [], client.submit_tool(
                    "echo", {"word": str(turn)}, timeout=timeout)
                call.add_done_callback(ended.append)
                if turn % 3:
                    together(call.cancel)
                accepted = call.cancel()
                wait_until(lambda ended=ended, call=call: ended == [call])
                if accepted or call.cancelled():
                    self.assertTrue(call.cancelled())
                elif timeout == PATIENCE or not call.exception():
                    self.assertEqual(call.result().text, str(turn))
                else:
                    self.assertIsInstance(call.exception(), RequestTimeout)
            self.assertEqual(client.call_tool("echo", {"word": "alive"}).text, "alive")
        self.assertEqual(stderr.getvalue(), "")

    @needs("more")
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

            uses = (client.list_tools, client.ping, cancel,
                    lambda: client.call_tool("add", {"a": 1}),
                    lambda: client.submit_tool("add", {"a": 1}).result(PATIENCE),
                    lambda: client.subscribe("note://x"),
                    lambda: client.read_resource("note://x"))
            return together(close, close, *[functools.partial(repeat_until_closed, use)
                                            for use in uses])

        for turn in range(0, 15, 2):
            self.assertEqual(race(turn), [None] * 9)

    @needs("inside")
    def test_close_returns_in_every_thread_that_calls_it(self):
        """Fails if two threads wait for the process, or close the same descriptor."""
        for client in Client(fake(), mode="legacy"), Client(Server(threaded=False)):
            self.assertEqual(together(*[client.connect().close] * 4), [None] * 4)
            self.assertFalse(client.exit_code)

    def test_a_client_whose_server_hangs_up_at_once_closes_its_streams(self):
        """Fails (its reader stays open) if the reading thread, when it starts late,
        finds the connection closed and does not read to the end."""
        for _ in range(5):
            (reader, other_end), (rest, writer) = os.pipe(), os.pipe()
            os.close(rest)
            reader, writer = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
            client = Client((reader, writer), mode="legacy")
            self.assertIsInstance(raised(client.connect), ConnectionClosed)
            os.close(other_end)
            wait_until(lambda reader=reader: reader.closed, "it is closed")

    @needs("stateless")
    def test_a_call_that_is_cancelled_as_its_user_is_asked_ends(self):
        """Fails (it waits on) if who cancels looks at its id before it has the lock.
        Looks inside."""
        def ask(ctx: Context) -> str:
            return str(ctx.elicit("?", bool).data)

        def withdraw(call):
            if threading.current_thread() is canceller:
                cancelling.set()
                asked.wait(0.2)  # it is not, while this thread has the lock
            return really_withdraw(call)

        def respond(call, *response):
            cancelling.wait(PATIENCE)
            really_respond(call, *response)

        asked, cancelling, release = (threading.Event() for _ in range(3))
        self.addCleanup(release.set)
        really_respond = mcp_min.BaseCall.respond
        really_withdraw = mcp_min.OutgoingRequest.withdraw
        with Client(server_of(ask), mode="modern", elicitation_handler=lambda *_: (
                asked.set() or release.wait(PATIENCE))) as client:
            call = mcp_min.StatelessCall(client._session, "tools/call", {"name": "ask"})
            canceller = threading.Thread(target=call.cancel)
            with mock.patch.object(mcp_min.OutgoingRequest, "withdraw", withdraw), (
                    mock.patch.object(mcp_min.BaseCall, "respond", respond)):
                call.begin()
                canceller.start()
                [error] = together(call.result)
                self.assertIsInstance(error, Cancelled)
                canceller.join(PATIENCE)
                release.set()

    @UNIX
    def test_a_call_on_an_ended_server_says_so_though_another_restarts_it(self):
        """Fails ("The client is closed") if the restart counts as a close."""
        holder = "[sys.executable, '-c', 'import time; time.sleep(60)']"
        with short_patience(), Client(
                fake(call=f"import subprocess; subprocess.Popen({holder}); die(3)",
                     deaf="pass"), mode="legacy", auto_restart=True,
                stderr=None) as client:
            waiting = client.submit("fake/deaf")
            dying = client.submit("tools/call", {"name": "f"})
            wait_until(lambda: client.exit_code is not None, "the server has ended")
            client.request("fake/fence")
            for call in waiting, dying:
                self.assertIn("exit code 3", str(call.exception(PATIENCE)))

    def test_many_threads_restart_an_ended_server_once(self):
        """Fails if the check for the end and the restart are two steps."""
        story = Story(self)
        with Client(fake(story, call="die(1)"), mode="legacy", auto_restart=True,
                    stderr=None) as client:
            raised(client.call_tool, "f")
            results = together(*[lambda: client.request("fake/fence")["fence"]] * 8)
            self.assertEqual(results, [True] * 8)
        self.assertEqual(str(story).count("+"), 2)

    @needs("more")
    @both_eras
    def test_notifications_are_sent_while_listeners_come_and_go(self, era):
        """Fails (a missing update, a RuntimeError in the loop) if the set of listeners
        is read without the lock under which it changes."""
        stop = threading.Event()
        with quiet(), Session(era) as session:
            client, server = session.client, session.server

            def change_a_list():
                while not stop.is_set():
                    server.add_tool(lambda: "", name="grown")

            def change(uri):
                while not stop.is_set():
                    server.notify_resource_updated(uri)

            def listen():
                try:
                    for act in client.subscribe, client.unsubscribe:
                        for number in range(6):
                            act(f"note://{number}")
                    client.subscribe("note://x")
                    session.received("notifications/resources/updated")
                finally:
                    stop.set()

            changes = [functools.partial(change, f"note://{name}") for name in "x????"]
            self.assertEqual(together(listen, change_a_list, *changes), [None] * 7)
            self.assertEqual(client.call_tool("add", {"a": 1}).data, 3)


# ======================================================================================
# Conformance: every message of mcp_min against the schema of its revision
# ======================================================================================

SCHEMAS = os.environ.get("MCP_MIN_SCHEMAS") or os.path.join(
    HERE, os.pardir, "shared", "reference", "schema")


def missing(test, what, always=False):
    """Skip the test; but fail it where CI has installed everything."""
    if os.environ.get("MCP_MIN_NO_SKIP") == "1" and not always:
        test.fail(what + " is missing, and MCP_MIN_NO_SKIP=1 says it must not be")
    test.skipTest(what + " is missing")


def package(test, name, always=False):
    """Import it, or skip the test."""
    try:
        return __import__(name, fromlist=["the module itself"])
    except ImportError:
        missing(test, f"the package {name}", always)


class MessageValidator:
    """Validates single messages with the official schema of one revision.

    `count` holds how many messages were valid for each name of the schema.
    """

    def __init__(self, revision, jsonschema):
        path = pathlib.Path(SCHEMAS, revision, "schema.json")
        self.schema = json.loads(path.read_text(encoding="utf-8"))
        self.key = "$defs" if "$defs" in self.schema else "definitions"
        draft = jsonschema.validators.validator_for(self.schema)
        self.named = functools.lru_cache(None)(lambda name: draft(
            {**self.schema, "$ref": f"#/{self.key}/{name}"}))
        self.by_method = {
            definition["properties"]["method"].get("const"): name
            for name, definition in self.schema[self.key].items()
            if "method" in definition.get("properties", {})
            and name != "ClientNotification"}
        self.requests = {}  # (sender, id): the name of the request
        self.count = collections.Counter()

    def validate(self, value, *names):
        """Validate a value by those of the names that this revision has."""
        names = [name for name in names if name in self.schema[self.key]]
        assert names, value
        for name in names:
            for error in self.named(name).iter_errors(value):
                raise AssertionError(f"not a {name}: {error.json_path}: {error.message}"
                                     f"\n{json.dumps(value)[:2000]}")
            self.count[name] += 1

    def check(self, sender, message):
        """Validate a message of ``sender`` (">" or "<"), or each message of a batch."""
        if isinstance(message, list):
            for part in message:
                self.check(sender, part)
        elif "method" in message:
            self.check_method(sender, message)
        elif "result" in message:
            self.check_result("<" if sender == ">" else ">", message)
        elif message.get("id") is not None:
            # JSON-RPC requires null for an unknown id; the schemas forbid it.
            self.validate(message, "JSONRPCError", "JSONRPCErrorResponse")

    def check_method(self, sender, message):
        """Validate a request or a notification, and that this side may send it."""
        kind = "Request" if "id" in message else "Notification"
        name = self.by_method.get(message["method"])
        self.requests[sender, message.get("id")] = name
        self.validate(message, "JSONRPC" + kind)
        if name:
            self.validate(message, name)
            self.validate(message, ("Client" if sender == ">" else "Server") + kind)
        elif not message["method"].startswith(("acme/", "fake/")):
            raise AssertionError(f"{message['method']} is not of this revision")

    def check_result(self, receiver, message):
        """Validate a response by the request of ``receiver`` that it belongs to."""
        self.validate(message, "JSONRPCResponse", "JSONRPCResultResponse")
        request = self.requests[receiver, message["id"]]
        if message["result"].get("resultType") == "input_required":
            self.validate(message["result"], "InputRequiredResult")
        elif request:
            name = request.replace("Request", "Result")
            self.validate(message["result"], (
                name if name in self.schema[self.key] else "EmptyResult"))


def use_everything(session, revision):
    """Use every feature that a client of this revision has, and make mistakes."""
    client = session.client
    for method, arguments, _ in CALLS:
        if arguments[0] != "mixed" or revision >= "2025-06-18":  # it returns a link
            raised(result_on_the_wire, client, method, *arguments)
    for _, use, _ in FEATURES:
        for record in (session.effects, session.notes, session.logs, session.progress):
            del record[:]
        use(session)
    session.name = None
    raised(client.call_tool, "pay", {"amount": 1})
    client.complete("note://{name}", "name", "x", context={"a": "b"})
    for method, params in (
            ("tools/list", {"cursor": "none"}), ("tools/call", {"name": "none"}),
            ("resources/read", {"uri": "x:none"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "none"},
                                     "argument": {"name": "x", "value": ""}})):
        error = raised(client.request, method, params)
        assert isinstance(error, McpError), error


class TestConformance(unittest.TestCase):
    """Every message that mcp_min sends is valid in the revision of its session."""

    def setUp(self):
        self.jsonschema = package(self, "jsonschema")
        if not os.path.isdir(SCHEMAS):
            missing(self, "the folder of schemas (MCP_MIN_SCHEMAS)", always=True)

    def test_a_full_session_of_every_revision(self):
        def check(revision, mode):
            validator = MessageValidator(revision, self.jsonschema)
            server, effects = everything(cache_ttl=60, cache_scope="public")
            with relay(server) as (streams, lines):
                session = Session(mode, server, target=streams)
                session.effects = effects
                with session:
                    self.assertEqual(session.client.protocol_version, revision)
                    use_everything(session, revision)
            for sender, line in lines:
                validator.check(sender, json.loads(line))
            self.assertGreater(sum(validator.count.values()), 150)
            self.assertLessEqual({
                "CallToolRequest", "CallToolResult", "ProgressNotification",
                "CancelledNotification", "LoggingMessageNotification",
                "ToolListChangedNotification", "ResourceUpdatedNotification",
                "CompleteResult", "GetPromptResult", "ListToolsResult", *(
                    ["DiscoverResult", "InputRequiredResult",
                     "SubscriptionsListenRequest"] if revision == MODERN else
                    ["InitializeResult"])}, set(validator.count))

        run_together(self, check, [
            *((revision, revision) for revision in LEGACY), (MODERN, "auto")])


INVALID_PARAMS = """ a request, and the field that the error names; L, M: in one era
    tools/call {}                                                      name
    tools/call {"name": "ecco"}                                        name
    tools/call {"name": "echo", "arguments": 0}                        arguments
    prompts/get {"name": "great"}                                      name
    prompts/get {"name": "greet"}                                      name
    prompts/get {"name": "greet", "arguments": {"name": 7}}            name
    prompts/get {"name": "greet", "arguments": {"name": "", "b": "c"}} b
    resources/read {}                                                  uri
    tools/list {"cursor": 7}                                           cursor
    completion/complete {}                                             ref.type
    completion/complete {"ref": 7}                                     ref
    completion/complete {"ref": {"type": "ref/prompt"}}                ref.name
    completion/complete {GREET}                                        argument.name
    completion/complete {GREET, "argument": {"name": "name"}}          argument.value
    completion/complete {NONE, "argument": {"name": "a", "value": ""}} ref.name
    acme/feed {"amount": "much"}                                       amount
  L logging/setLevel {"level": "loud"}                                 level
  L resources/subscribe {}                                             uri
  L initialize x {"protocolVersion": 7}                                protocolVersion
  L initialize 2025-11-25 {"capabilities": 7}                          capabilities
  M tools/call {"name": "echo", "requestState": 7}                     requestState
  M tools/call {"name": "echo", "inputResponses": 7}                   inputResponses
  M subscriptions/listen                                               notifications
  M subscriptions/listen {"notifications": {"toolsListChanged": 7}}    toolsListChanged
  M tools/list {"_meta": {"@logLevel": 7}}                             @logLevel
""".replace("GREET", '"ref": {"type": "ref/prompt", "name": "greet"}').replace(
    "NONE", '"ref": {"type": "ref/prompt", "name": "none"}')


class TestSpecification(FakeServers, unittest.TestCase):
    """Sentences of the specification, and of what teaches it, on both ends."""

    @clause("2025-11-25/server/prompts",
            "Missing required arguments: `-32602` (Invalid params)")
    @clause("2025-11-25/server/utilities/completion",
            "Missing required arguments: `-32602` (Invalid params)")
    @needs("more")
    @both_eras
    def test_invalid_params_name_the_field_and_the_issue(self, era):
        server = zoo()

        @server.method("acme/feed")
        def feed(amount: int):
            return amount

        rows = re.findall(r"^  ([ LM]) (.*?) +(\S+)$", INVALID_PARAMS, re.MULTILINE)
        with wire(server) as client:
            if era == "legacy":
                play(client, "> handshake")
            for only, request, field in rows:
                if only in " " + era[0].upper():
                    with self.subTest(request):
                        play(client, '> 1 %s\n< 1 -32602 {"field": "%s", "issue": '
                             '"......"}' % (request, field),
                             None if era == "legacy" else era)

    @clause("2025-06-18/server/tools", "Invalid arguments")
    @clause("2025-11-25/server/tools", "Input validation errors")
    def test_invalid_arguments_of_a_tool_name_the_path_of_the_first_problem(self):
        """An error up to 2025-06-18; later a result with all problems."""
        def pay(order: Spot, items: List[Spot], note: str = "") -> str:
            return "paid"

        server = server_of(pay)
        good = '"order": {"x": 1, "y": 2}, "items": []'
        for arguments, field in (
                ('"order": {"x": 1, "y": 2}', "items"),
                (good.replace("2", '"far"'), "order.y"),
                (good.replace('"x": 1, ', ""), "order.x"),
                (good.replace("[]", '[{"x": 1, "y": 2}, {"x": 1, "y": []}]'),
                 "items[1].y"),
                (good + ', "note": 7', "note"), (good + ', "b": 7', "b")):
            call = '> 1 call pay {%s}\n' % arguments
            with self.subTest(arguments):
                for revision in LEGACY[:3]:
                    play(server, "> handshake " + revision + "\n" + call +
                         '< 1 -32602 {"field": "%s", "issue": "..."}' % field)
        text = play(server, """
            > 1 call pay {"order": 7, "b": 7}
            < 1 {"isError": true, "content": [{"text": "$text"}]}
            > 2 modern call pay {"order": 7, "b": 7}
            < 2 {"isError": true, "content": [{"text": "$text"}]}
            """, era="legacy")["text"]
        self.assertRegex(text, r"(?s)\bitems\b.*\n.*\border\b.*\n.*\bb\b")

    @needs("stateless", "more")
    def test_null_is_as_good_as_absent(self):
        server = zoo()
        server.add_tool(lambda: "now", name="now")
        server.prompt(lambda: "now", name="now")
        server.method("acme/x")(lambda a=1, b=2: [a, b])
        complete = (
            'completion/complete {"ref": {"type": "ref/prompt", "name": "greet"}, '
            '"argument": {"name": "name", "value": ""}, "context": %s}')
        requests = (
            'tools/call {"name": "now", "arguments": null}',
            'tools/call {"name": "now", "requestState": null, "inputResponses": null}',
            'tools/call {"name": "now", "_meta": {"progressToken": null}}',
            'prompts/get {"name": "now", "arguments": null}',
            'tools/list {"cursor": null}',
            complete % "null", complete % '{"arguments": null}')
        for request in (
                *requests, *("modern " + request for request in requests),
                'modern tools/list {"_meta": {"@clientInfo": null, "@logLevel": null}}',
                'initialize 2025-11-25 {"capabilities": null, "_meta": null}',
                'initialize 2025-11-25 {"clientInfo": null}'):
            with self.subTest(request):
                play(server, f"> 1 {request}\n< 1 {{}}", era="legacy")
        play(server, """
            # a method of one's own ignores unknown members, too
            > 2 modern acme/x {"a": null, "b": 5, "c": 7}   < 2 {"result": [1, 5]}
            > 3 modern subscriptions/listen {"notifications": {"toolsListChanged": null,
                "resourceSubscriptions": null}}
            < notifications/subscriptions/acknowledged {"notifications": "$nothing"}
            > notifications/cancelled {"requestId": 3}
            """, nothing={})
        form = {"type": "object", "properties": {}}
        response = ask(self.fake({**ACCEPT, "mode": LATEST}), "elicitation/create",
                       mode=None, message="?", requestedSchema=form)
        self.assertEqual(response["result"], {"action": "accept", "content": {}})

    @clause("2025-11-25/basic/utilities/progress",
            "Either side can send progress notifications")
    def test_progress_of_a_client_extends_the_timeout_of_a_question(self):
        """Its question stays open longer than one that was asked after it.  Fails if a
        question has no token, or progress no effect."""
        asked, timed_out = gate("`slow` is asked"), threading.Event()

        def ask(who: str, ctx: Context) -> str:
            return ctx.elicit(who, str, timeout=1.5).data

        def answer(message, schema, params):
            asked.set()
            for progress in itertools.count(1):
                if timed_out.wait(0.02):
                    return {"value": "in time"}
                if message == "slow":
                    client.notify("notifications/progress", {
                        **params["_meta"], "progress": progress})

        with quiet(), Client(
                server_of(ask), mode=LATEST, elicitation_handler=answer) as client:
            slow = client.submit_tool("ask", {"who": "slow"})
            asked.wait()
            error = raised(client.call_tool, "ask", {"who": "silent"})
            self.assertIn("no response or progress within 1.5 s", str(error))
            timed_out.set()
            self.assertEqual(slow.result(PATIENCE).text, "in time")

    @needs("stateless", "more")
    @clause("2025-11-25/client/elicitation",
            "**MUST** include the `elicitationId` established in the original")
    @clause("2026-07-28/changelog",
            "the `elicitationId` field of URL mode elicitation requests")
    def test_the_id_that_a_handler_gives_a_url_question_is_the_one_sent(self):
        def visit(ctx: Context) -> str:
            answer = ctx.elicit_url("Sign in", "https://x.io", elicitation_id="mine",
                                    key="q")
            return f"{answer.action} {answer.elicitation_id}"

        play(server_of(visit), """
            > 1 call visit
            < $q elicitation/create {"mode": "url", "elicitationId": "mine"}
            > $q {"action": "accept"}   < 1 = "accept mine"
            > 2 modern call visit   < 2 {"inputRequests": {"q": {"params": "$params"}}}
            > 3 modern tools/call {"name": "visit", "inputResponses":
                {"q": {"action": "accept"}}}
            < 3 = "accept None"
            """, era="legacy",
            params={"mode": "url", "message": "Sign in", "url": "https://x.io"})

    TOOLS: ClassVar = {"messages": [], "maxTokens": 1, "tools": [
        {"name": "t", "inputSchema": {"type": "object"}}]}

    @needs("stateless")
    @clause("2025-11-25/client/sampling",
            "**MUST** declare support for tool use via the `sampling.tools` capability")
    def test_a_client_samples_with_tools_only_if_it_has_declared_that(self):
        """Nor with `toolChoice`; in the stateless revision the call fails."""
        choice = {"messages": [], "maxTokens": 1, "toolChoice": {"mode": "none"}}
        options = {"sampling_handler": lambda *_: "ok"}
        for declared, outcome in (None, -32602), ({"tools": {}}, None):
            client = self.fake({**options, "mode": LATEST, "capabilities": (
                declared and {"sampling": declared})})
            for params in self.TOOLS, choice:
                response = ask(client, "sampling/createMessage", **params)
                self.assertEqual(response.get("error", {}).get("code"), outcome)
        question = {"q": {"method": "sampling/createMessage", "params": self.TOOLS}}
        rounds = [INPUT % (',"inputRequests":' + json.dumps(question)), DONE]
        client = self.fake(options, **MODERN_FAKE)
        error = raised(client.call_tool, "t", {"rounds": rounds})
        self.assertEqual(error.code, -32602)

    @needs("stateless")
    @clause("2025-11-25/client/sampling",
            "Servers **MUST NOT** send tool-enabled sampling requests to Clients that")
    def test_a_server_samples_with_tools_only_if_that_is_declared(self):
        def dig(ctx: Context):
            ctx.sample("Dig.", tools=self.TOOLS["tools"])

        play(server_of(dig), """
            > 0 initialize 2025-11-25 {"capabilities": {"sampling": {}}}   < 0 {}
            > 1 call dig
            < 1 -32600 "sampling" {"requiredCapabilities": {"sampling": {"tools": {}}}}
            > 2 modern tools/call {"name": "dig", "_meta":
                {"@clientCapabilities": {"sampling": {}}}}
            < 2 -32021 {"requiredCapabilities": {"sampling": {"tools": {}}}}
            """)

    def test_a_line_that_is_not_read_is_answered_with_its_id(self):
        """If the line begins or ends with it, as SDKs write; else with null."""
        for value in '"%s"' % ("x" * 3000), "[" * 60 + "]" * 60:
            play(zoo(max_message_bytes=2000, max_depth=50), """
                >> {"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"x":%(v)s}}
                < {"id": 7, "error": {}}
                >> {"jsonrpc": "2.0", "id": "seven", "method": "x", "params": [%(v)s]}
                < {"id": "seven", "error": {}}
                >> {"jsonrpc":"2.0","method":"tools/list","params":{"x":%(v)s},"id":7}
                < {"id": 7, "error": {}}
                >> {"method":"x","params":{"x":%(v)s},"jsonrpc":"2.0","id":8}
                < {"id": 8, "error": {}}
                >> {"jsonrpc":"2.0","params":{"x":%(v)s},"method":"x","id":9}
                < {"id": null, "error": {}}
                >> {"jsonrpc":"2.0","id":1.5,"method":"x","params":{"x":%(v)s}}
                < {"id": null, "error": {}}
                """ % {"v": value})

    @needs("stateless", "more")
    def test_skills(self):
        """The recipe in the documentation of `Server.method`, for the extension
        `io.modelcontextprotocol/skills` (SEP-2640)."""
        server = Server("tea", cache_ttl=60, cache_scope="public", capabilities={
            "extensions": {KEY + "skills": {}}, "resources": {}})
        module = recipe(None, "SKILLS = {}", server=server, Path=pathlib.Path,
                        sha256=hashlib.sha256, guess_type=mimetypes.guess_type)
        with tempfile.TemporaryDirectory() as name:
            for number in range(120):
                folder = pathlib.Path(name, "brew-%03d" % number)
                (folder / "scripts").mkdir(parents=True)
                (folder / "SKILL.md").write_bytes(b"---\nname: brew\n---\n\xc3\xa9")
                (folder / "scripts/x.py").write_bytes(b"1")
                module.add_skill(folder, {"name": folder.name, "description": "Tea"})
            for mode, hints in (LATEST, {}), (MODERN, {
                    "ttlMs": 60000, "cacheScope": "public"}):
                with self.subTest(mode), Client(server, mode=mode) as client:
                    self.check_skills(client, [*module.SKILLS.values()], hints)

    def check_skills(self, client, skills, hints):
        pages = [client.request("skills/list")]
        while "nextCursor" in pages[-1]:
            pages.append(client.request(
                "skills/list", {"cursor": pages[-1]["nextCursor"]}))
        found = [skill for page in pages for skill in page["skills"]]
        self.assertEqual((found, len(pages)), (skills, 3))
        one = client.request("skills/get", {"uri": found[7]["uri"]})
        self.assertEqual((one["skill"], len(one["skill"]["resources"])), (found[7], 2))
        for result in pages[0], one:
            self.assertLessEqual(hints.items(), result.items())
        error = raised(client.request, "skills/get", {"uri": "skill://none"})
        self.assertEqual(error.code, -32602)
        self.assertLessEqual({"extensions", "resources"}, {*client.server_capabilities})
        for file in found[7]["resources"]:
            [content] = client.read_resource(file["uri"])
            digest = hashlib.sha256(content.data).hexdigest()
            self.assertEqual((file["size"], file["digest"]),
                             (len(content.data), "sha256:" + digest))

    @needs("stateless")
    def test_a_key_of_ones_own_in_the_filter_is_granted_by_a_function(self):
        """What it refuses to grant is not told; what does not fit its hints is an
        error; and the connection survives what it raises."""
        server = Server("s")

        @server.subscription("acme/lamps")
        def grant(wanted: List[str]):
            if "broken" in wanted:
                raise RuntimeError
            return [lamp for lamp in wanted if lamp != "secret"]

        self.assertEqual(grant([]), [])

        def switch():
            for lamp in "secret", "hall":
                server.notify_subscribers("acme/lamps", lamp, "acme/lit", {
                    "lamp": lamp, "_meta": {"mine": 1}})

        self.assertIsNotNone(raised(server.subscription("x"), asyncio.sleep))
        with quiet():
            play(server, """
                > 1 modern subscriptions/listen {"notifications": {"acme/lamps": 7}}
                < 1 -32602 {"field": "wanted", "issue": "..."}
                > 1 modern subscriptions/listen {"notifications": {"acme/lamps":
                    ["broken"]}}
                < 1 -32603
                > 1 modern subscriptions/listen {"notifications": {"acme/lamps":
                    ["hall", "secret"], "acme/others": [1]}}
                < notifications/subscriptions/acknowledged {"notifications": "$granted"}
                ! switch
                < acme/lit {"lamp": "hall", "_meta": {"mine": 1, "@subscriptionId": 1}}
                > notifications/cancelled {"requestId": 1}
                """, switch=switch, granted={"acme/lamps": ["hall"]})

    @needs("stateless", "more")
    @clause("2026-07-28/basic/patterns/subscriptions",
            "clients **MUST** use this field to correlate")
    def test_a_stream_of_the_users_own_is_told_to_the_message_handler(self):
        server, told = zoo(), queue.Queue()
        with Client(server, mode=MODERN, message_handler=told.put) as client:
            take = functools.partial(told.get, timeout=PATIENCE)
            wanted = {"notifications": {"resourceSubscriptions": ["zoo://sign"]}}
            stream = client.submit("subscriptions/listen", wanted)
            news = take()
            self.assertEqual(news["method"], "notifications/subscriptions/acknowledged")
            self.assertEqual(news["params"]["notifications"], wanted["notifications"])
            server.notify_resource_updated("zoo://sign")
            self.assertEqual(take()["params"]["uri"], "zoo://sign")
            stream.cancel()
            client.ping()  # a fence: the cancellation was read
            server.notify_resource_updated("zoo://sign")
            server.add_tool(lambda: 1, name="one")
            self.assertEqual(take()["method"], "notifications/tools/list_changed")
        client = self.fake(discover="modern()")
        stream = client.submit("subscriptions/listen", wanted)
        client.notify("fake/say", {"lines": [
            '{"jsonrpc":"2.0","method":"notifications/cancelled",'
            '"params":{"requestId":%d}}' % self.seen(client)[-2]["id"]]})
        self.assertEqual(stream.result(PATIENCE), {})

    @needs("stateless", "more")
    @clause("2025-06-18/client/elicitation",
            "The schema is restricted to these primitive types")
    def test_a_form_asks_only_for_what_its_revision_has(self):
        text, titled = {"type": "string"}, {"const": "x", "title": "X"}
        rows = [  # the first revision that has it, or None; the field
            (LEGACY[2], {**text, "enum": ["a"], "enumNames": ["A"]}),
            (LEGACY[2], {**text, "format": "email", "minLength": 1}),
            (LATEST, {"type": "array", "items": {**text, "enum": ["a"]}}),
            (LATEST, {"type": "array", "items": {"anyOf": [titled]}}),
            (LATEST, {**text, "oneOf": [titled]}),
            (None, {"type": "array", "items": {"enum": [1]}}),
            (None, {"type": "array", "items": {"type": "integer", "enum": [1]}}),
            (None, {"type": "array", "items": {"anyOf": [{"title": "X"}]}}),
            (None, {**text, "oneOf": [{"const": "x"}]}),
            (None, {**text, "oneOf": [{"const": 1, "title": "X"}]}),
            (None, {**text, "anyOf": [titled]}), (None, {**text, "enum": [1]}),
            (None, {**text, "format": "password"}), (None, {"enum": ["a"]}),
            (None, {"type": "integer", "enum": [1]}), (None, {"type": "object"}),
            (None, {"type": "array", "items": text})]

        def ask(field: dict, ctx: Context) -> str:
            ctx.elicit("?", {"type": "object", "properties": {"f": field}})
            return "asked"

        for revision in (*LEGACY[2:], MODERN):
            with Client(server_of(ask), mode=revision,
                        elicitation_handler=lambda *_: None) as client, quiet():
                for since, field in rows:
                    result = client.call_tool(
                        "ask", {"field": field}, raise_on_error=False)
                    with self.subTest(revision, field=field):
                        sent = since is not None and revision >= since
                        self.assertEqual(result.is_error, not sent)
                        self.assertIn("asked" if sent else "f: a form", result.text)

    @needs("stateless")
    @clause("2025-11-25/client/sampling", "it **MUST** contain ONLY tool results")
    def test_a_sampling_message_with_tool_results_has_nothing_else(self):
        result = {"type": "tool_result", "toolUseId": "1", "content": []}
        text, server = {"type": "text", "text": "and?"}, Server("s")
        asked = []

        @server.tool
        def sample(ctx: Context, content: list) -> str:
            return ctx.sample([{"role": "user", "content": content}]).text

        options = {"sampling_handler": (
            lambda messages, _: asked.append(messages) or "ok")}
        for mode in LATEST, MODERN:
            with Client(server, mode=mode, **options) as client, quiet():
                good = client.call_tool("sample", {"content": [result, result]})
                self.assertEqual(good.text, "ok")
                bad = client.call_tool(
                    "sample", {"content": [result, text]}, raise_on_error=False)
                self.assertRegex(bad.text, "ValueError: .*tool results")
        self.assertEqual(len(asked), 2)
        response = ask(self.fake({**options, "mode": LATEST}), "sampling/createMessage",
                       messages=[{"role": "user", "content": [text, result]}])
        self.assertEqual(response["error"]["code"], -32602)
        self.assertEqual(response["error"]["data"]["field"], "messages")
        self.assertEqual(len(asked), 2)

    def test_older_revisions_get_text_for_content_that_they_do_not_have(self):
        """A link is told as text before 2025-06-18, audio before 2025-03-26."""
        server = Server("s")
        blocks = [ResourceLink("s://x", "sign", title="The sign"), Text("t"),
                  mcp_min.Audio(b"RIFF....WAVE", mime_type="audio/wav")]
        server.add_tool(lambda: blocks, name="tool")
        server.add_prompt(lambda: blocks, name="prompt")
        for revision, expected in zip(LEGACY, (
                "text text text", "text text audio", "resource_link text audio")):
            with self.subTest(revision), Client(server, mode=revision) as client:
                content = client.call_tool("tool").content
                self.assertEqual([block.type for block in content], expected.split())
                if content[0].type == "text":
                    self.assertEqual(content[0].text, "The sign: s://x")
                if content[2].type == "text":
                    self.assertEqual(content[2].text, "audio: audio/wav")
                messages = client.get_prompt("prompt").messages
                self.assertEqual([one.content.type for one in messages],
                                 expected.split())

    @clause("2026-07-28/basic/index",
            "any value unrecognized by the client **MUST** be considered invalid.")
    @clause("2026-07-28/basic/index",
            "additional values of supported extensions that are advertised via")
    @needs("stateless")
    def test_only_request_and_submit_hand_over_result_types_of_extensions(self):
        extensions = {"capabilities": {"extensions": {"acme/tasks": {}}}}
        weird = ("result(resultType='weird', tools=[], contents=[], messages=[], "
                 "completion={'values': []})")
        rules = {"discover": "modern(prompts={})", **dict.fromkeys((
            "list", "read", "get", "complete"), weird)}
        self.assertIn("weird", str(raised(self.fake(**rules).request, "tools/list")))
        client = self.fake(extensions, **rules)
        self.assertEqual(client.request("tools/list")["resultType"], "weird")
        for call, arguments in (
                (client.list_tools, ()), (client.read_resource, ("x",)),
                (client.get_prompt, ("x",)), (client.complete, ("x", "y", "z"))):
            with self.subTest(call.__name__):
                error = self.fails(McpError, call, *arguments)
                self.assertRegex(str(error), "resultType 'weird'")
                self.assertTrue(error.local)  # not to be taken for one of the server


@needs("stateless")
class TestTasks(unittest.TestCase):
    """The extension `io.modelcontextprotocol/tasks` (SEP-2663), both its ends, by what
    is public: each call of a client that knows it becomes a task."""

    DECLARED: ClassVar = {"extensions": {KEY + "tasks": {}}}

    def setUp(self):
        self.tasks, self.answers = {}, queue.Queue()
        self.server = Server("oven", capabilities=self.DECLARED)
        self.push = recipe(  # what the file says of extensions
            None, "@server.subscription", server=self.server,
            TASKS=self.tasks, TASKS_EXTENSION=KEY + "tasks").push
        self.server.middleware(self.start)
        self.server.method("tasks/get")(lambda taskId: self.tasks[taskId])
        self.server.method("tasks/update")(self.update)
        self.server.method("tasks/cancel")(self.cancel)
        for tool in self.bake, self.spill, self.quiz:
            self.server.tool(tool)

    def start(self, ctx, method, params, call_next):
        if method != "tools/call" or "extensions" not in ctx.client_capabilities:
            return call_next(ctx, method, params)

        def run():
            try:
                self.change(id, "completed", result=call_next(ctx, method, params))
            except BaseException as error:  # noqa: BLE001 - also what ends `quiz`
                self.change(id, "failed", error=str(error))

        id = str(ctx.request_id)
        created = self.change(id, "working")
        threading.Thread(target=run, daemon=True).start()
        return {"resultType": "task", **created}

    def change(self, id, status, **more):
        if self.tasks.get(id, {}).get("status") != "cancelled":
            self.tasks[id] = {"taskId": id, "status": status, "ttlMs": None, **more}
            self.push(self.tasks[id])
        return self.tasks[id]

    def update(self, taskId: str, inputResponses: dict):
        self.change(taskId, "working")
        self.answers.put(inputResponses["sugar"]["content"]["value"])

    def cancel(self, taskId: str):
        self.change(taskId, "cancelled")
        self.answers.put("cancelled")

    def bake(self, ctx: Context) -> str:
        if str(ctx.request_id) not in self.tasks:
            return "plain"
        form = {"type": "object", "properties": {"value": {"type": "boolean"}}}
        self.change(str(ctx.request_id), "input_required", inputRequests={"sugar": {
            "method": "elicitation/create",
            "params": {"message": "Sugar?", "requestedSchema": form}}})
        return f"sugar: {self.answers.get()}"

    def spill(self):
        raise ToolError("spilt")

    def quiz(self, ctx: Context) -> str:
        return str(ctx.elicit("Sure?", bool).data)  # its request was answered

    def follow(self, client, pushed, tool):
        """As a client: answer the questions of a task; return its last state."""
        task = client.request("tools/call", {"name": tool, "arguments": {}})
        self.assertEqual(task.pop("resultType"), "task")
        known = {"taskId": task["taskId"]}
        stream = client.submit("subscriptions/listen", {
            "notifications": {"taskIds": [*known.values()]}})
        while task["status"] in ("working", "input_required"):
            pushed.get(timeout=PATIENCE)
            task = client.request("tasks/get", known)
            answers = {key: client.answer(**question)
                       for key, question in task.get("inputRequests", {}).items()}
            if answers:
                client.request("tasks/update", {**known, "inputResponses": answers})
        stream.cancel()
        return task

    @needs("more")
    def test_a_call_of_a_client_that_knows_tasks(self):
        pushed = queue.Queue()
        with Client(self.server, mode=MODERN, capabilities=self.DECLARED,
                    message_handler=pushed.put,
                    elicitation_handler=lambda *_: True) as client:
            for tool, expected in (
                    ("bake", {"result": {"content": [{"text": "sugar: True"}]}}),
                    ("spill", {"result": {"isError": True}}),
                    ("quiz", {"status": "failed"})):
                with self.subTest(tool):
                    task = self.follow(client, pushed, tool)
                    self.assertTrue(matches(expected, task, {}), task)
            self.assertRegex(str(raised(client.call_tool, "spill")),
                             "resultType 'task'")
            task = client.request("tools/call", {"name": "bake", "arguments": {}})
            known = {"taskId": task["taskId"]}
            wait_until(lambda: "inputRequests" in client.request("tasks/get", known))
            result = client.request("tasks/cancel", known)
            self.assertEqual(result["resultType"], "complete")
            self.assertEqual(client.request("tasks/get", known)["status"], "cancelled")

    @needs("more")
    def test_a_call_of_a_client_that_does_not(self):
        with Client(self.server, mode=MODERN) as client:
            self.assertEqual(client.call_tool("bake").text, "plain")
            error = raised(client.request, "subscriptions/listen", {
                "notifications": {"taskIds": ["1"]}})
            self.assertEqual((error.code, error.data), (
                -32021, {"requiredCapabilities": self.DECLARED}))


# ======================================================================================
# Interoperability: the official SDK at the other end
# ======================================================================================

SDK_SERVER = IMPORTS["SDK 2"] + SHARED_PROGRAM + """
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import CreateMessageResult, ListRootsResult, SamplingMessage

def name() -> Elicit[Name]:
    return Elicit("your name?", Name)

def poem() -> Sample:
    text = TextContent(type="text", text="a poem")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=7)

def places() -> ListRoots:
    return ListRoots()

@mcp.tool()
async def ask(name: Annotated[Name, Resolve(name)],
              poem: Annotated[CreateMessageResult, Resolve(poem)],
              roots: Annotated[ListRootsResult, Resolve(places)]) -> list[str]:
    return [name.name, poem.content.text, *(str(root.uri) for root in roots.roots)]

@mcp.tool()
async def grow(uri: str, ctx: Context) -> str:
    mcp.add_tool(lambda: "new", name="grown")
    await ctx.notify_tools_changed()
    await ctx.notify_resource_updated(uri)
    if ctx.protocol_version < "2026":
        await ctx.session.send_tool_list_changed()
    return "grown"
""" + RUN_SHARED


def outcome_of_sdk_changes(session):
    before, modern = names(session.client.list_tools()), (
        session.client.protocol_version == MODERN)
    if modern:  # its sessions have no resources/subscribe
        session.client.subscribe("note://x")
    session.client.call_tool("grow", {"uri": "note://x"})
    session.received("notifications/tools/list_changed")
    if modern:
        session.received("notifications/resources/updated")
    return {*names(session.client.list_tools())} - {*before}


WITH_SDK_SERVER = [  # (name, a function that uses the feature, its outcome)
    ("server_info", lambda s: (s.client.server_info["name"], s.client.instructions),
     ("shared", "Be kind.")),
    ("call_tool", lambda s: s.client.call_tool("find", {"text": "a"}).data,
     {"text": "a 10 a", "score": 0.5}),
    ("read_resource", lambda s: s.client.read_resource("note://x")[0].text,
     "a note on x"),
    ("get_prompt", lambda s: s.client.get_prompt(
        "review", {"code": "1"})["messages"][0]["content"]["text"], "look at 1"),
    ("log and progress", lambda s: (
        s.client.call_tool("greet", {"person": ANN}).text,
        wait_until(lambda: s.logs), wait_until(lambda: s.progress)),
     ("Ann of 12 False True", [("info", "greeting")], [(1, 2, None)])),
    ("questions", lambda s: s.client.call_tool("ask").structured_content,
     {"result": ["Ann", "roses are red", "file:///a"]}),
    ("ping", lambda s: raised(s.client.ping), None),
    ("changes", outcome_of_sdk_changes, {"grown"})]


class SdkCallbacks:
    """The callbacks of an SDK client: they answer questions and record what comes.

    `types` is the SDK's module of protocol types, which differs between 1.x and 2.x.
    """

    def __init__(self, types):
        self.types, self.received, self.logs, self.steps = types, [], [], []

    async def elicit(self, context, params):
        content = {"value": True} if params.message == "sure?" else {"name": "Ann"}
        return self.types.ElicitResult(action="accept", content=(
            None if getattr(params, "mode", "form") == "url" else content))

    async def sample(self, context, params):
        received = params.model_dump(by_alias=True)
        assert (received["maxTokens"], received["systemPrompt"]) == (7, "rhyme")
        return self.types.CreateMessageResult(role="assistant", model="m", content={
            "type": "text", "text": "roses are red"})

    async def list_roots(self, context):
        return self.types.ListRootsResult(roots=[self.types.Root(uri="file:///a")])

    async def on_message(self, notification):
        method = getattr(notification, "method", "")
        if method.endswith(("/list_changed", "/updated")):
            uri = getattr(notification.params, "uri", "")
            self.received.append((method, str(uri)))

    async def on_log(self, params):
        self.logs.append((params.level, params.logger, params.data))

    async def on_progress(self, *step):
        self.steps.append(step)


class TestInterop(unittest.TestCase):
    """The official Python SDK at the other end; a server of 1.x is TestImportLine's."""

    def sdk(self, major):
        mcp = package(self, "mcp")
        if hasattr(mcp, "Client") != (major == 2):
            missing(self, f"the package mcp, version {major}", always=True)
        return mcp

    def parameters(self, mcp):
        """How the SDK starts `everything`, a server of mcp_min."""
        code = (f"import sys; sys.path.insert(0, {HERE!r}); import test_mcp_min; "
                "test_mcp_min.everything()[0].run()")
        return mcp.StdioServerParameters(command=sys.executable, args=["-c", code])

    @staticmethod
    def run_async(main):
        import logging
        silent = mock.patch.object(logging, "lastResort", logging.NullHandler())
        with warnings.catch_warnings(), silent:
            warnings.simplefilter("ignore")
            asyncio.run(asyncio.wait_for(main, 60))

    def test_our_client_with_an_sdk_server(self):
        self.sdk(2)
        for mode, version in ("auto", MODERN), ("legacy", LATEST):
            with Session(mode, target=[sys.executable, "-c", SDK_SERVER], stderr=None,
                         log_level="debug") as session:
                self.assertEqual(session.client.protocol_version, version)
                for name, use, expected in WITH_SDK_SERVER:
                    with self.subTest(name, mode=mode):
                        self.assertEqual(use(session), expected)

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
                for check in (self.check_results, self.check_lists, self.check_logs,
                              self.check_cancel, changes):
                    with self.subTest(check.__name__, mode=mode):
                        await check(client, callbacks)

        self.run_async(main("auto", MODERN))
        self.run_async(main("legacy", LATEST))

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
                self.assertEqual((await client.initialize()).protocolVersion, LATEST)
                await self.check_results(client, callbacks)
                self.assertEqual((await client.list_tools()).tools[0].name, "add")
                await client.send_ping()

        self.run_async(main())

    # Each check_… is what a client of the SDK does with `everything`.

    async def check_results(self, client, callbacks):
        template = callbacks.types.ResourceTemplateReference(
            type="ref/resource", uri="note://{name}")
        completion = ("complete", (template, {"name": "name", "value": "n"}), {
            "completion": {"values": ["n000", "..."], "total": 150, "hasMore": True}})
        for method, arguments, expected in [*CALLS, completion]:
            with self.subTest(method, arguments=arguments):
                result = await getattr(client, method)(*arguments)
                result = result.model_dump(mode="json", by_alias=True)
                self.assertTrue(matches(expected, result, {}), result)
        await client.call_tool("count", {"n": 2},
                               progress_callback=callbacks.on_progress)
        await asyncio.to_thread(wait_until, lambda: len(callbacks.steps) == 2)
        self.assertEqual(callbacks.steps, [(1, 2, "step 1"), (2, 2, "step 2")])

    async def check_lists(self, client, callbacks):
        """The SDK does not follow the cursors by itself."""
        received, page = [], await client.list_tools()
        while page.next_cursor:
            received += page.tools
            page = await client.list_tools(cursor=page.next_cursor)
        self.assertEqual(received[0].name, "add")
        with self.assertRaises(Exception) as caught:
            await client.list_prompts(cursor="none")
        self.assertEqual(caught.exception.code, -32602)

    async def check_logs(self, client, callbacks):
        await client.call_tool("tell", {"levels": ["debug", "info", "error"]})
        await asyncio.to_thread(wait_until, lambda: len(callbacks.logs) == 2)
        self.assertEqual(callbacks.logs, [(level, "library", {"level": level})
                                          for level in ("info", "error")])

    async def check_cancel(self, client, callbacks):
        task = asyncio.ensure_future(client.call_tool("hang", {}))
        for effect in "hanging", "cancelled":
            while effect not in str(await client.call_tool("story", {})):
                await asyncio.sleep(0.01)
            task.cancel()

    async def check_changes_by_listening(self, client, callbacks):
        async with client.listen(tools_list_changed=True,
                                 resource_subscriptions=["note://x"]) as events:
            await self.change(client)
            event = await events.__anext__()
            self.assertEqual(type(event).__name__, "ToolsListChanged")
            self.assertEqual((await events.__anext__()).uri, "note://x")

    async def check_changes_by_subscribing(self, client, callbacks):
        await client.subscribe_resource("note://x")
        await self.change(client)
        await asyncio.to_thread(wait_until, lambda: len(callbacks.received) == 2)
        self.assertEqual(callbacks.received, [
            ("notifications/tools/list_changed", ""),
            ("notifications/resources/updated", "note://x")])
        await client.unsubscribe_resource("note://x")
        await client.send_ping()

    async def change(self, client):
        await client.call_tool("grow", {"name": "grown"})
        for uri in "note://y", "note://x":
            await client.call_tool("touch", {"uri": uri})


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
    MESSAGES = script_lines("""
        > 0 initialize 2025-11-25
        > 1 initialize 2025-03-26
        > notifications/initialized
        > 2 ping
        > 4 tools/list {"cursor": "x"}
        > 5 call add {"a": 1}
        > 6 call shout {"text": {"a": [1, {"b": []}]}}
        > 7 call count {"n": 3} {"_meta": {"progressToken": "t"}}
        > 8 tools/call {"name": "visit", "inputResponses": {"k": {"action": "accept"}}}
        > 9 call tell {"levels": ["info"]}
        > 10 prompts/get {"name": "review", "arguments": {"code": "x"}}
        > 12 resources/read {"uri": "config://app"}
        > 13 resources/list
        > 15 resources/subscribe {"uri": "config://app"}
        > 16 resources/unsubscribe {"uri": "config://app"}
        > 17 logging/setLevel {"level": "debug"}
        > 18 completion/complete {"ref": {"type": "ref/prompt", "name": "review"},
            "argument": {"name": "language", "value": "p"},
            "context": {"arguments": {}}}
        > notifications/cancelled {"requestId": 7}
        > $/cancelRequest {"id": 8}
        > notifications/progress {"progressToken": 1, "progress": 1}
        > notifications/roots/list_changed
        > 19 server/discover
        > 20 subscriptions/listen {"notifications": {"toolsListChanged": true,
            "resourceSubscriptions": ["config://app"]}}
        > 21 call grow {"name": "grown"}
        > 22 call touch {"uri": "config://app"}
        > 23 nope
        """)

    KEYS = ("id", "method", "result", "error", "params", "_meta", KEY + "logLevel",
            "cursor", "requestState", "")

    def mutated(self, value, rng):
        """A copy of ``value`` with about one thing changed."""
        if rng.random() < 0.12:
            return rng.choice(rng.choice((self.STRINGS, self.VALUES)))
        if isinstance(value, list):
            return [self.mutated(item, rng) for item in value]
        if not isinstance(value, dict):
            return value
        copy = {key: self.mutated(item, rng) if rng.random() < 0.5 else item
                for key, item in value.items()}
        if copy and rng.random() < 0.1:
            del copy[rng.choice(list(copy))]
        if rng.random() < 0.1:
            copy[rng.choice(self.KEYS)] = rng.choice(self.VALUES)
        return copy

    def lines(self, rng):
        """One session as lines of bytes."""
        for _ in range(rng.randrange(5, 60)):
            made = message(rng.choice(self.MESSAGES)[2:], modern=rng.random() < 0.4)
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
            # A line that is too long or too deep is answered with an id at its start
            # or its end.
            ids = re.findall(rb'"id"\s*:\s*("[^"]*"|[^,{}\[\]]*)\s*[,}]', sent)
            for text in {*ids[:1], *ids[-1:]} or {b"null"}:
                with contextlib.suppress(ValueError):
                    yield json.loads(text), False
            return
        small = len(sent) < 1 << 16 and sent.count(b"[") + sent.count(b"{") < 200
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(item, dict):
                continue
            response = "method" not in item or (
                item["method"] is None and {"result", "error"} & item.keys())
            yield item.get("id"), small and item is parsed and not response
            params = item.get("params")
            if "ancel" in str(item.get("method")) and isinstance(params, dict):
                yield from ((cancelled, False) for cancelled in params.values())

    def test_mutated_sessions(self):
        """MCP_MIN_SEED repeats a session that failed."""
        seed = int(os.environ.get("MCP_MIN_SEED") or time.time_ns() % 10 ** 9)
        end = time.monotonic() + float(os.environ.get("MCP_MIN_FUZZ") or 0.4)
        while time.monotonic() < end:
            lines = list(self.lines(random.Random(seed)))
            with self.subTest(MCP_MIN_SEED=seed, lines=lines), quiet():
                self.run_session(lines)
            seed += 1

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
        server, _ = everything(
            max_workers=4, max_message_bytes=1 << 16, drain_seconds=PATIENCE)
        with wire(server) as client:
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

def run_block(text, **names):
    """Run the code of a document, which may use these names; return its names."""
    module = types.ModuleType("block")
    vars(module).update(names)
    with mock.patch.dict(sys.modules, block=module):  # dataclasses look there
        exec(compile(text, "block", "exec"), vars(module))  # noqa: S102
    return module


def recipe(documented, first, **names):
    """Run the example in a docstring: its indented lines from `first` on.

    documented: None for one in the comments of the file.
    """
    if documented is None:
        comments = re.findall("(?m)^# ?(.*)", pathlib.Path(FILE).read_text("utf-8"))
        lines = [line.rstrip() for line in comments]
    else:
        lines = inspect.cleandoc(documented.__doc__).splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith(first))
    indent = len(lines[start]) - len(lines[start].lstrip())
    taken = itertools.takewhile(
        lambda line: not line.strip() or line.startswith(" " * indent), lines[start:])
    public = {name: getattr(mcp_min, name) for name in mcp_min.__all__}
    return run_block(textwrap.dedent("\n".join(taken)), **{**public, **names})


@needs("cli")
class TestReadme(unittest.TestCase):
    """Every block of the README runs, and prints what the README shows."""

    @classmethod
    def setUpClass(cls):
        path = os.path.join(HERE, "README.md")
        if not os.path.exists(path):
            raise unittest.SkipTest("there is no README.md here")
        cls.text = pathlib.Path(path).read_text(encoding="utf-8")
        cls.blocks, cls.programs = collections.defaultdict(list), {}
        for language, text in re.findall(r"^```(\S+)\n((?s:.*?))^```$", cls.text,
                                         re.MULTILINE):
            cls.blocks[language].append(text)
        for text in cls.blocks["python"]:  # the first line of each names its file
            name = re.match(r"# (\w+\.py)(, continued)?\n", text)[1]
            cls.programs[name] = cls.programs.get(name, "") + text
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        py_compile.compile(shutil.copy(FILE, cls.folder / "mcp_min.py"))
        for name, text in cls.programs.items():
            (cls.folder / name).write_text(text, encoding="utf-8")

    def test_each_block_is_of_a_kind_that_is_tested(self):
        self.assertEqual(set(self.blocks), {"python", "console", "json"})

    @UNIX
    def test_each_program_prints_what_its_comments_show(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for name, text in self.programs.items():
            with self.subTest(name), mock.patch.object(
                    sys, "path", [str(self.folder), *sys.path]), mock.patch.dict(
                    sys.modules), contextlib.redirect_stdout(io.StringIO()) as out:
                expected = re.findall(r"^ *print\(.*\)  +# (.*)$", text, re.MULTILINE)
                for key, test in vars(run_block(text)).items():
                    if key.startswith("test_"):
                        test()
                self.assertEqual(len(expected), text.count("print("))
                self.assertEqual(out.getvalue().splitlines(), expected)

    @unittest.skipUnless(os.name == "posix", "needs a shell")
    def test_each_command_prints_what_the_readme_shows(self):
        """Those of the console blocks, and those that its sentences name."""
        (self.folder / "plain.py").write_text("def add(a: int) -> int:\n    return a\n")
        (self.folder / "mcp.json").write_text(
            '{"mcpServers": {"weather": {"command": "python3", "args": ["weather.py"]}}}')
        python3 = self.folder / "python3"
        python3.write_text(textwrap.dedent(f"""\
            #!/bin/sh
            if [ "$1" = mcp_min.py ]; then  # import it: Python keeps the compiled file
                shift
                set -- -c "import mcp_min, sys; sys.exit(mcp_min.main())" "$@"
            fi
            exec "{sys.executable}" "$@"
            """))
        python3.chmod(0o755)
        env = {**os.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}

        def run(command, _, expected):
            done = subprocess.run(
                command, shell=True, check=False, cwd=self.folder, env=env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout)
            if expected:
                self.assertEqual(done.stdout.decode(), expected)

        shown = [part.partition("\n") for part in re.split(
            r"^\$ ", "".join(self.blocks["console"]), flags=re.MULTILINE)[1:]]
        shown.remove((f"python3 {os.path.basename(__file__)}", "\n", ""))  # runs now
        named = re.findall(r"`(python3 mcp_min\.py [^`]+)`", self.text)
        self.assertTrue(shown and named)
        run_together(self, run, [*shown, *((command, "", "") for command in named)])

    def test_the_server_within_an_asyncio_program_serves_a_host(self):
        with Client([sys.executable, str(self.folder / "ticker.py")]) as client:
            wait_until(lambda: client.call_tool("ticks").data > 0)

    def test_the_add_on_serves_a_host_on_the_main_thread_of_its_application(self):
        addon = run_block(self.programs["addon.py"])
        entries, file = {}, self.folder / "mcp.json"
        for text in self.blocks["json"]:
            file.write_text(text, encoding="utf-8")
            entries.update(load_config(file))
        self.assertEqual({entry["command"] for entry in entries.values()}, {"python3"})
        command, path = entries["studio"]["args"][-2:]
        home = str(self.folder)
        with mock.patch.dict(os.environ, HOME=home, USERPROFILE=home):
            listener = addon.start()
            self.addCleanup(listener.close)
            with Client([*PROGRAM, command, os.path.expanduser(path)]) as client:
                call = client.submit_tool("where")
                while not call.done():  # this is the application's main loop
                    time.sleep(addon.run_jobs() / 50)
                self.assertEqual(call.result().text, threading.current_thread().name)

    def test_the_defaults_it_names_are_those_of_the_code(self):
        defaults = inspect.signature(Client).parameters
        named = re.findall(r"`(\w*timeout)=(\d+)`", self.text)
        self.assertTrue(named)
        for name, value in named:
            self.assertEqual(defaults[name].default, float(value), name)


class TestReference(unittest.TestCase):
    """What the docstrings show runs; what they list is what the code has."""

    @needs("server", "client")
    def test_a_lifespan_is_shared_by_the_handlers(self):
        ended = []

        @contextlib.contextmanager
        def open_database():
            yield types.SimpleNamespace(count=lambda item: 4)
            ended.append(True)

        module = recipe(Server, "@contextlib", contextlib=contextlib,
                        open_database=open_database)
        with Client(module.server) as client:
            self.assertEqual(client.call_tool("stock", {"item": "salt"}).data, 4)
        self.assertEqual(ended, [True])

    @needs("more")
    def test_schemas_by_hand_and_computed_lists(self):
        server = Server("raw", capabilities={"prompts": {}})
        recipe(Server.tool, "server.tool(lambda", server=server)
        recipe(Server.middleware, "@server.middleware", server=server,
               FOLDER=types.SimpleNamespace(iterdir=lambda: [pathlib.Path("c.md")]))
        with Client(server) as client:
            self.assertEqual(client.call_tool("raw", {"a": [1]}).data, {"a": [1]})
            self.assertEqual(client.list_prompts(), [{"name": "c"}])

    @needs("server", "client", "stateless")
    def test_the_revisions_and_limits_that_are_listed(self):
        doc, of_client, of_server = (
            " ".join(thing.__doc__.split()) for thing in (mcp_min, Client, Server))
        for number in (mcp_min.MAX_REQUESTS, mcp_min.MAX_ID, mcp_min.MAX_STEPS,
                       mcp_min.MAX_URI):
            self.assertIn(f"{number:,}", doc)
        for size in mcp_min.MAX_BACKLOG_BYTES, mcp_min.MAX_UNREAD_BYTES:
            self.assertIn("%d MiB" % (size >> 20), doc)
        for number in mcp_min.MAX_ENTRIES, mcp_min.MAX_QUESTIONS, mcp_min.MAX_ROUNDS:
            self.assertIn(f" {number:,}", of_client)
        self.assertLessEqual(set(mcp_min.REVISIONS),
                             {*re.findall(r"\d{4}-\d\d-\d\d", of_server)})


# ======================================================================================
# The house: how the file is built
# ======================================================================================

CONTEXT_MEMBERS = (
    "request_id meta client_info client_capabilities protocol_version lifespan_context "
    "cancelled cancel_reason check_cancelled wait report_progress track log debug info "
    "notice warning error critical alert emergency notify elicit elicit_url sample "
    "list_roots ask once ping read_resource")
PUBLIC_MEMBERS = {
    "Server": "instructions tool resource prompt completion method subscription "
              "middleware notify_subscribers add_tool remove_tool add_resource "
              "remove_resource add_prompt remove_prompt notify_resource_updated run "
              "run_async serve listen",
    "Context": CONTEXT_MEMBERS, "AsyncContext": CONTEXT_MEMBERS,
    "Client": "server_info server_capabilities instructions protocol_version connect "
              "close is_connected stderr_tail exit_code request submit notify answer "
              "ping call_tool submit_tool list_tools list_resources "
              "list_resource_templates list_prompts read_resource subscribe "
              "unsubscribe get_prompt complete set_logging_level set_roots",
}


def names_without_code(source):
    """The names in the docstring of a file that its code does not have."""
    doc = source.split('"""')[1]
    code = source[source.index("from __future__"):]
    named = {*re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\b[a-z]+_[a-z_]+", doc)}
    named |= {text.rpartition(".")[2] for text in re.findall("`([A-Za-z_.]+)`", doc)}
    return named - {*re.findall(r"\w+", code)}


@needs("cli")
class TestHouse(unittest.TestCase):
    """The rules of the source: its order, its names, its imports."""

    @classmethod
    def setUpClass(cls):
        cls.source = pathlib.Path(mcp_min.__file__).read_text(encoding="utf-8")
        cls.tree = ast.parse(cls.source)
        cls.nodes = list(ast.walk(cls.tree))
        cls.sections = [  # (number, title, line of the banner)
            (int(m[1]), m[2], cls.source[:m.start()].count("\n") + 1)
            for m in re.finditer(r"^# -- (\d+)\. (.+?) -+$", cls.source,
                                 re.MULTILINE)]

    def section_of(self, line):
        return max([0, *(
            number for number, _, start in self.sections if start <= line)])

    def defined(self, body):
        """(name, line) of what these statements define."""
        for node in body:
            if isinstance(node, ast.If):
                yield from self.defined(node.body)
            for target in getattr(node, "targets", [getattr(node, "target", node)]):
                for part in getattr(target, "elts", [target]):
                    name = getattr(part, "id", None) or getattr(part, "name", "_")
                    yield name, node.lineno

    def test_the_docstring_lists_the_sections_in_their_order(self):
        listed = re.findall(r"^    (\d+) +([A-Z][\w, ]+?)  ", mcp_min.__doc__,
                            re.MULTILINE)
        self.assertEqual([(int(n), title) for n, title in listed],
                         [(n, title) for n, title, _ in self.sections])

    def test_a_section_exports_its_own_names(self):
        names = {name: self.section_of(line)
                 for name, line in self.defined(self.tree.body)}
        for node in self.tree.body:
            if isinstance(node, ast.AugAssign) and node.target.id == "__all__":
                for part in node.value.elts:
                    self.assertEqual(names[part.value], self.section_of(node.lineno),
                                     part.value)

    def test_a_section_uses_only_names_of_those_above_it(self):
        """Except in annotations.  And parts II and III do not name each other."""
        parts = [self.source[:m.start()].count("\n") for m in re.finditer(
            "^# == Part (I|II|III|IV): ", self.source, re.MULTILINE)]
        self.assertEqual(len(parts), 4)
        notes = [getattr(node, field, None) for node in self.nodes
                 for field in ("annotation", "returns")]
        excluded = {id(part) for note in notes if note for part in ast.walk(note)}

        def place(line):
            return sum(start < line for start in parts), self.section_of(line)

        def allowed(node, part, section):
            here, section_here = place(node.lineno)
            return part <= here and (part, here) != (2, 3) and (
                id(node) in excluded or section <= section_here)

        defined = collections.defaultdict(list)
        for name, line in self.defined(self.tree.body):
            defined[name].append(place(line))
        self.assertEqual(defined["Server"] + defined["Client"], [(4, 32), (4, 33)])
        self.assertEqual([(node.id, node.lineno) for node in self.nodes
                          if isinstance(node, ast.Name) and node.id in defined
                          and not any(allowed(node, *known)
                                      for known in defined[node.id])], [])

    def test_the_cores_name_nothing_of_the_chapters(self):
        """Nor do their comments and docstrings."""
        numbers = {title: number for number, title, _ in self.sections}
        chapters = range(numbers["Stateless"], numbers["The server"])
        start = self.source.index("# == Part I: ")
        core = self.source[start:self.source.index("# == Part IV: ")]
        names = {node.name for node in self.tree.body
                 if self.section_of(node.lineno) in chapters
                 and isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        self.assertGreater(len(names), 30)
        self.assertEqual(names & {*re.findall(r"\w+", core)}, set())

    def test_the_docstring_names_what_exists(self):
        self.assertEqual(names_without_code(self.source), set())

    def test_a_public_class_shows_users_what_is_for_them(self):
        """Whatever else its neighbours in the file use begins with an underscore."""
        for name, members in PUBLIC_MEMBERS.items():
            bases = [cls.__name__ for cls in getattr(mcp_min, name).__mro__]
            found = {name for node in self.tree.body
                     if getattr(node, "name", "") in bases
                     for name, _ in self.defined(node.body)}
            with self.subTest(name):
                self.assertEqual({name for name in found if name[0] != "_"},
                                 {*members.split()})

    @unittest.skipUnless(hasattr(sys, "stdlib_module_names"), "since Python 3.10")
    def test_nothing_but_the_standard_library_is_imported(self):
        imported = {getattr(node, "module", None) or alias.name for node in self.nodes
                    if isinstance(node, (ast.Import, ast.ImportFrom))
                    for alias in node.names}
        self.assertLessEqual({name.split(".")[0] for name in imported},
                             {*sys.stdlib_module_names, "annotationlib"})  # 3.14

    def test_it_works_from_a_zip_under_another_name_and_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "vendored.zip")
            with zipfile.ZipFile(path, "w") as bundle:
                bundle.write(mcp_min.__file__, "acme/_vendor/mcp.py")
                for package in "acme/__init__.py", "acme/_vendor/__init__.py":
                    bundle.writestr(package, "")
            with process(f"""
                    sys.path.insert(0, {path!r})
                    from acme._vendor import mcp
                    server = mcp.Server("s")
                    server.tool(lambda text: text, name="echo")
                    with mcp_min.Client(server) as client:
                        text = client.call_tool("echo", {{"text": "hi"}}).text
                    os.write(2, text.encode())
                    """) as child:
                self.assertEqual((child.exit(), child.stderr), (0, "hi"))


@needs("server")
class TestOtherProcesses(unittest.TestCase):
    """What other people's processes do to it."""

    # A server whose tool leaks descriptors until there is none, and one that fails.
    LEAKS = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        server, leaked = Server("s"), []

        @server.tool
        def leak():
            while True:
                leaked.append(open(os.devnull))

        @server.tool
        def fail(ctx: Context):
            1 / 0

        @server.prompt
        def prompt() -> str:
            raise ValueError("a prompt")

        @server.tool
        async def later():
            1 / 0

        server.tool(lambda: [file.close() for file in leaked] and None, name="release")
        server.run()
        """

    @needs("asyncio")
    @UNIX
    def test_without_a_descriptor_each_call_is_answered_and_logged(self):
        """Fails (the connection closes) if what reports an error imports or opens."""
        with process(self.LEAKS) as server:
            play(server, """
                > handshake
                > 1 call leak
                < 1 {"isError": true, "content": [{"text": "...many open files..."}]}
                > 2 call fail
                < 2 {"isError": true, "content": [{"text": "...division by zero..."}]}
                > 3 prompts/get {"name": "prompt"}   < 3 -32603 "a prompt"
                > 4 call later     < 4 {"isError": true}
                > 6 call release   < 6 {"isError": false}
                > 7 call later
                < 7 {"isError": true, "content": [{"text": "...division by zero..."}]}
                """)
            self.assertEqual(server.exit(hang_up=True), 0)
            for text in ("tool leak failed", "tool fail failed", "prompts/get failed",
                         "Too many open files", "ZeroDivisionError"):
                self.assertIn(text, server.stderr)

    @needs("stateless", "asyncio")
    def test_errors_that_cannot_even_be_written_are_answered(self):
        class Mute(Exception):
            def __str__(self):
                raise KeyboardInterrupt

        def fail():
            raise Mute

        async def fail_later():
            raise Mute

        for function in fail, fail_later:
            server = Server("s")
            server.tool(function, name="f")
            server.prompt(name="f")(function)
            server.resource("s://f")(function)
            with quiet(), wire(server) as client:
                play(client, """
                    > 1 prompts/get {"name": "f"}         < 1 -32603 "Mute"
                    > 2 resources/read {"uri": "s://f"}   < 2 -32603 "Mute"
                    > 3 call f   < 3 {"isError": true, "content": [{"text": "Mute"}]}
                    """, era="modern")

    def test_a_frozen_clock_stops_nothing(self):
        """As freezegun and others do it: they replace the functions of `time` wherever
        a module has them.  Calls, timeouts, the standby and close go on."""
        def sleep(ctx: Context):
            ctx.wait(math.inf)

        release, server = gate("the other call"), server_of(sleep)
        server.tool(lambda: release.wait(), name="hold")
        server.tool(release.set, name="release")
        clocks = {id(getattr(time, name))
                  for name in ("monotonic", "time", "sleep", "perf_counter")}
        with contextlib.ExitStack() as frozen:
            for module in time, mcp_min:
                for name, value in [*vars(module).items()]:
                    if id(value) in clocks:
                        frozen.enter_context(
                            mock.patch.object(module, name, lambda *_: 0.0))
            with Client(server) as client:
                call = client.submit_tool("hold")
                client.call_tool("release")
                call.result(PATIENCE)
                call = "tools/call", {"name": "sleep"}
                for wait in (functools.partial(client.call_tool, "sleep"),
                             functools.partial(client.request, *call),
                             lambda **options: client.submit_tool(
                                 "sleep", **options).result(PATIENCE),
                             lambda **options: client.submit(
                                 *call, **options).result(PATIENCE)):
                    for limit in "timeout", "max_timeout":
                        self.assertIsInstance(
                            raised(wait, **{limit: 0.1}), RequestTimeout)

    def test_a_frozen_program_does_not_start_itself(self):
        with mock.patch.object(sys, "frozen", True, create=True), (
                self.assertRaisesRegex(ValueError, r"frozen.*\['python3', 'x.py'\]")):
            Client("x.py").connect()

    def test_a_stream_that_does_not_say_what_it_has_written_ends(self):
        """It cannot be polled.  Fails (it never ends) if it is tried for ever, or (with
        nothing on stderr) if `serve` returns, and perhaps the process ends, before."""
        class SlowStderr(io.StringIO):
            def write(self, text):
                time.sleep(0.05)
                return super().write(text)

        for returned in None, 0:
            writer = mock.Mock(spec=["write", "flush"])
            writer.write.return_value = returned
            with contextlib.redirect_stderr(SlowStderr()) as stderr:
                Server("s").serve(io.BytesIO(raw("1 initialize")), writer)
            self.assertLess(writer.write.call_count, 5)
            self.assertIn("does not say what it has written", stderr.getvalue())

    @needs("asyncio")
    def test_a_loop_that_fails_again_and_again_is_given_up(self):
        """And replaced.  Fails (it floods stderr for ever) if it is tried again without
        end.  Looks inside."""
        server, new_event_loop = Server("s"), asyncio.new_event_loop

        class Broken(asyncio.SelectorEventLoop):
            def run_forever(self):
                broken.append(1)
                raise RuntimeError("broken")

        async def f() -> str:
            return "done"

        broken = []
        loops = iter([Broken()])
        server.tool(f)
        with quiet(), mock.patch.object(asyncio, "new_event_loop", (
                lambda: next(loops, None) or new_event_loop())), Client(
                server, timeout=PATIENCE) as client:
            call = client.submit_tool("f", timeout=0.5)
            wait_until(lambda: len(broken) >= mcp_min.MAX_LOOP_FAILURES)
            call.exception(PATIENCE)
            # The broken one may still get a call before it is closed.
            wait_until(lambda: raised(client.call_tool, "f", timeout=0.5) is None)


class TestTypes(unittest.TestCase):
    """A type checker approves what is right, and refuses what is wrong: the lines
    marked with `# error`, and no other."""

    PROGRAM = """
        from typing import Annotated, Any
        from mcp_min import (AsyncClient, AsyncContext, Client, Context, Elicited,
                             FamiliarContext, FastMCP, Field, Server, ToolResult)

        server = Server("s")
        Server("s", thread=False)                  # error
        Client(["x"], tiemout=5)                   # error
        server.tool(lambda text: text, name="echo")

        @server.tool
        def plain(n: Annotated[int, Field(ge=1)], ctx: Context, m: int = Field(3)) -> str:
            ctx.info("x", logger_name="l")
            ctx.report_progress(1, 2)
            for item in ctx.track([1, 2]):
                n += item
            answer: Elicited = ctx.elicit("?", str, key="k")
            ctx.wait(1)
            text: str = ctx.read_resource("x://y")[0].text
            roots: list[dict[str, Any]] = ctx.list_roots()
            ctx.info(1, 2, 3)                      # error
            ctx.elicit("?").nothing                # error
            ctx.elicit("?", tiemout=5)             # error
            ctx.nonsense()                         # error
            return text + str(answer.data) + ctx.sample("x").text + str(roots)

        @server.tool(title="Later")
        async def later(ctx: AsyncContext) -> str:
            await ctx.info("x")
            ctx.info("x")
            await ctx.report_progress(1)
            answer = await ctx.elicit("?", str)
            await ctx.wait(1)
            await ctx.once("k", lambda: 1)
            text: str = (await ctx.read_resource("x://y"))[0].text
            ctx.elicit("?").data                   # error
            ctx.read_resource("x://y")[0]          # error
            ctx.wait(1)                            # error
            for root in ctx.list_roots():          # error
                print(root)
            await ctx.info(1, 2, 3)                # error
            return text + str(answer.data) + (await ctx.sample("x")).text

        mcp = FastMCP("ported")

        @mcp.tool()
        async def ported(ctx: FamiliarContext[Any, Any], one: FamiliarContext) -> str:
            await ctx.info("x", extra={})
            life = ctx.request_context.lifespan_context
            return str((await ctx.elicit("?", response_type=str)).data) + str(life)

        with Client(["x"], max_message_bytes=1) as client:
            result: ToolResult = client.call_tool("f", {"a": 1}, max_timeout=9)
            name: str = client.list_tools()[0].name
            page: dict[str, Any] = client.list_tools(cursor=None)
            print(client.list_tools(cursor="x").name)    # error
            client.call_tool("f", tiemout=5)       # error

        async def main() -> None:
            async with AsyncClient(["x"]) as client:
                result = await client.call_tool("f", {"a": 1}, timeout=5)
                text: str = result.text
                prompts = await client.list_prompts(timeout=3)
                page: dict[str, Any] = await client.list_prompts(cursor="x")
                print(text, prompts[0].name)
                client.call_tool("f").text         # error
                await client.call_tool("f", tiemout=5)    # error
                await client.call_tool(5)          # error
                await client.nonsense()            # error
            async with Client(["x"]) as other:     # error
                print(other)
        """

    def test_mypy_strict(self):
        package(self, "mypy")
        program = textwrap.dedent(self.PROGRAM)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(mcp_min.__file__, folder)
            pathlib.Path(folder, "program.py").write_text(program)
            done = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", "program.py"], cwd=folder,
                check=False, capture_output=True, text=True)
        found = {int(line) for line in re.findall(
            r"program\.py:(\d+): error", done.stdout)}
        wrong = {number for number, line in enumerate(program.splitlines(), 1)
                 if "# error" in line}
        self.assertEqual(found, wrong, done.stdout + done.stderr)


COPIES = ("", "--server --core", "--server --core --with stateless", "--server",
          "--client --core", "--lean --core")


def copy_with(*options):
    """The text of the copy that `vendor` makes with these options."""
    args = mcp_min.cli_parse(["vendor", "x", *options])
    source = pathlib.Path(FILE).read_text("utf-8")
    return mcp_min.vendored(source, mcp_min.vendor_choice(args))


def rows_of_copies():
    """The rows of a table of README.md: how a copy is made, its lines, its sha256."""
    for options in COPIES:
        copy = copy_with(*options.split())
        name, lines = options or "the whole file", copy.count("\n")
        yield f"| `{name}` | {lines:,} | `{mcp_min.sha256_of(copy)}` |"


@needs("cli")
class TestVendor(unittest.TestCase):
    """Copies with some of the parts, each alone."""

    def setUp(self):
        self.folder = pathlib.Path(folder_of(self))

    def load(self, *options):
        """A copy made with these options, as a module."""
        path = self.folder / ("".join(options) + ".py")
        path.write_text(copy_with(*options), "utf-8")
        spec = importlib.util.spec_from_file_location("mcp_copy", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_each_copy_calls_a_tool(self):
        """And is called, by the whole file; a half by the other half."""
        for chapter in (None, "stateless", "schemas", "more", "asyncio", "turns",
                        "inside", "trace"):
            options = ["--core", *(["--with", chapter] if chapter else [])]
            with self.subTest(chapter):
                self.check_calls(self.load("--server", *options), mcp_min)
                if chapter not in ("turns", "more", "inside"):
                    self.check_calls(mcp_min, self.load("--client", *options))
        self.check_calls(self.load("--server"), self.load("--client"))

    def check_calls(self, of_server, of_client):
        """With arguments, a structured result, a question, progress and a cancellation,
        in each kind of revision that both ends have."""
        def add(a: int, b: int = 1, more: Dict[str, int] = {}) -> int:  # noqa: B006
            return a + b + sum(more.values())

        def ask(ctx: of_server.Context) -> str:
            answer = ctx.elicit("?", ["tea", "milk"]).data
            ctx.report_progress(1)
            return answer

        def hang(ctx: of_server.Context):
            began.set()
            try:
                ctx.wait(PATIENCE)
            finally:
                ended.set()

        server = of_server.Server("s")
        for tool in add, ask, hang:
            server.tool(tool)
        both = {*of_server.PARTS.split()} & {*of_client.PARTS.split()}
        for mode in ("legacy", "modern")[:1 + ("stateless" in both)]:
            steps, began, ended = [], gate("the call"), gate("its cancellation")
            with relay(server) as (streams, _), of_client.Client(
                    streams, mode=mode, elicitation_handler=lambda *_: "milk",
                    progress_handler=lambda *step, to=steps: to.append(step)) as client:
                result = client.call_tool("add", {"a": "5", "more": {"c": "2"}})
                self.assertEqual(result.structured_content, {"result": 8})
                self.assertEqual(client.call_tool("ask").text, "milk")
                self.assertEqual(steps, [(1, None, None)])
                call = client.submit_tool("hang")
                began.wait()
                self.assertTrue(call.cancel())
                ended.wait()

    def test_a_copy_says_what_it_has_and_names_nothing_else(self):
        for option, parts, missing in (
                ("--server", "server", {"Client", "FastMCP", "main"}),
                ("--client", "client", {"Server", "FastMCP", "main"}),
                ("--lean", "server, client", {"FastMCP", "main"})):
            with self.subTest(option):
                copy = self.load(option)
                source = pathlib.Path(copy.__file__).read_text("utf-8")
                self.assertIn(f"This copy has: {parts}, stateless", copy.__doc__)
                self.assertEqual(
                    missing & {*re.findall(r"\w+", copy.__doc__)} - {"main"}, set())
                self.assertEqual(names_without_code(source), set())
                self.assertNotRegex(source, r"\(chapter:\s*\n|\(chapter: names\)")
                self.assertLessEqual({*copy.__all__}, {*vars(copy)} - missing)
                self.assertIn("Permission is hereby granted", source)
                with self.assertRaisesRegex(
                        SystemExit, "this copy of mcp_min has no command line"):
                    last = source[source.rindex("\nif __name__ =="):]
                    run_block(last, __name__="__main__", sys=sys)

    def test_what_a_copy_lacks_it_refuses_in_words(self):
        core = self.load("--core")

        def refusals(name):
            """What the core says where this is used."""
            kind, _, word = name.rpartition(" ")
            of_kind = {
                "keyword": [lambda: core.validate(0, {word: {}})],
                "dialect": [lambda: core.validate(0, {"items": [], "$schema": (
                    f"http://json-schema.org/{word}/schema#")})]}
            for use in of_kind.get(kind, (
                    lambda: getattr(core, name), lambda: core.Server(**{name: 1}),
                    lambda: getattr(core.Server("s"), name),
                    lambda: core.Server("s").serve(
                        io.BytesIO(), io.BytesIO(), **{name: False}))):
                yield str(raised(use))

        for name, chapter in core.LEFT_OUT.items():
            words = f"{name}: this copy of mcp_min was made without {chapter!r}"
            if name.partition(" ")[0] not in ("hint", "package", "variable"):
                with self.subTest(name):
                    self.assertTrue(any(words in text for text in refusals(name)))

        class Own:
            __module__ = "main"  # a module of the user's, named like a name

        core.Server("s").tool(lambda: Own(), name="own")
        self.assertEqual(core.validate(0, {"main": 1}), [])

    def test_what_the_types_of_a_handler_need_is_refused_too(self):
        """And what a handler returns or asks, a lifespan, and a variable."""
        core = self.load("--core")

        class Content:
            __module__ = "mcp.types"

        class Model:
            __module__ = "pydantic.main"

        class Lifespan:
            def __aenter__(self): ...
            def __aexit__(self, *exc): ...

        async def handler(): ...
        def modelled(model: Model): ...
        def dictionary(keys: Dict[Literal["a"], int]): ...
        def dated(day: datetime.date): ...
        def asking(ctx: core.Context): ctx.ask({})

        server = core.Server("s")
        server.tool(asking)
        server.tool(Content, name="content")
        with core.Client(server) as client:
            for name, use, *arguments in (
                    ("async def", server.tool, handler),
                    ("keyword propertyNames", server.tool, dictionary),
                    ("hint date", server.tool, dated),
                    ("{?x,y}", server.add_resource, "x://{+path}", print),
                    ("ask", client.call_tool, "asking"),
                    ("package pydantic", server.tool, modelled),
                    ("package mcp", client.call_tool, "content"),
                    ("async lifespan", core.Client(core.Server(
                        "s", lifespan=lambda _: Lifespan())).connect)):
                with self.subTest(name), quiet():
                    self.assertIn(f"{name}: this copy of mcp_min was made without",
                                  str(raised(use, *arguments)))
        with quiet() as stderr, mock.patch.dict(os.environ, MCP_MIN_TRACE="stderr"):
            core.Client(server).connect().close()
        self.assertIn("variable MCP_MIN_TRACE: this copy of mcp_min was made without",
                      stderr.getvalue())

    def test_a_half_passes_the_tests_of_what_it_has(self):
        (self.folder / "mcp_min.py").write_text(copy_with("--server"), "utf-8")
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__, "--copy", str(self.folder),
             "Test9Handshake", "Test9Stateless", "Test14Client"],
            check=False, timeout=PATIENCE * 4, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertRegex(done.stderr, r"Ran (\d\d+) tests in .*\n\nOK \(skipped=")

    def test_what_the_core_of_a_client_lacks_it_says(self):
        """Also of a server that knows nothing else."""
        core = self.load("--client", "--core")
        with relay(everything()[0]) as (streams, _), core.Client(streams) as client:
            pings = [client.submit("ping") for _ in range(50)]
            self.assertEqual([ping.result() for ping in pings], [{}] * 50)
            self.assertEqual(client.protocol_version, LATEST)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                client.list_tools()
                client.list_resources()
        lacks = "%s: this copy of mcp_min was made without '%s'"
        self.assertEqual([str(warning.message) for warning in told], [
            "results are not checked against " + lacks % ("output schemas", "schemas")])
        stateless = fake(initialize="error(-32022, 'no', supported=['2026-07-28'])")
        for target, options, error in (
                (["x"], {"mode": "modern"}, lacks % ("modern", "stateless")),
                (["x"], {"mode": MODERN}, lacks % (MODERN, "stateless")),
                (["x"], {"trace": False}, "Client: " + lacks % ("trace", "trace")),
                ({"command": "x"}, {}, lacks % ("mcp.json", "config")),
                (stateless, {}, f"no ({lacks}) (-32022)" % (MODERN, "stateless"))):
            with self.subTest(target, **options):
                self.assertEqual(str(raised(
                    lambda to=target, given=options: core.Client(to, **given).connect(),
                    )), error)

    def test_a_copy_from_a_zip_file_with_a_main_program_of_its_own(self):
        archive, folder = self.folder / "app.pyz", self.folder / "unzipped"
        with zipfile.ZipFile(archive, "w") as file:
            file.write(FILE, "mcp_min.py")
            file.writestr("__main__.py", "print('another program')")
        for _ in "written", "updated":
            subprocess.run([sys.executable, "-m", "mcp_min", "vendor", str(folder)],
                           env={**os.environ, "PYTHONPATH": str(archive)}, check=True,
                           stdout=subprocess.DEVNULL, timeout=PATIENCE)
        self.assertEqual((folder / "mcp_min.py").read_bytes(),
                         pathlib.Path(FILE).read_bytes())

    def vendor(self, *args, status=0):
        """What `vendor` says."""
        out, err, actual = cli("vendor", *map(str, args))
        self.assertEqual(actual, status, err)
        return out + err

    def test_a_copy_replaces_only_what_is_made_again(self):
        """Not what somebody has edited, nor what has other parts."""
        folder = self.folder / "replaced"
        path = folder / "mcp_min.py"
        told = self.vendor(folder)
        self.assertEqual(path.read_bytes(), pathlib.Path(FILE).read_bytes())
        self.assertIn(hashlib.sha256(path.read_bytes()).hexdigest(), told)
        small = "--server", "--core", "--with", "stateless"
        told = self.vendor(folder, *small, status=2)
        for words in ("removed would be: client, schemas, more, asyncio, turns, inside",
                      "added: nothing; to keep them: mcp_min.py vendor FOLDER --core"):
            self.assertIn(words, told)
        self.vendor(folder, *small, "--force")
        again = re.search("(?m)^Made with: mcp_min.py vendor FOLDER (.*)",
                          path.read_text("utf-8"))[1]
        self.assertEqual(again.split(), [*small])
        for version in mcp_min.__version__, "3.9.0":
            made = self.of_version(path.read_text("utf-8"), version)
            path.write_text(made, "utf-8")
            self.vendor(folder, *again.split())  # the same, or an update
            path.write_text(made + "# mine\n", "utf-8")
            told = self.vendor(folder, *again.split(), status=2)
            self.assertIn("was edited", told)
            self.assertIn(f"is not what mcp_min {version} makes",
                          self.vendor("--check", path, status=1))
            self.vendor(folder, *again.split(), "--force")
        newer = self.of_version(path.read_text("utf-8"), "99.0.0")
        path.write_text(newer, "utf-8")
        self.assertIn("99.0.0, which is newer", self.vendor(folder, status=2))
        for text, words in (("# mine", "is not a copy of mcp_min"),
                            ('"""mcp_min 3.0.0: all of it."""', "or is all of")):
            path.write_text(text)
            self.assertIn(words, self.vendor(folder, status=2))
            self.assertEqual(path.read_text(), text)
        self.vendor(folder, "--force")
        self.assertIn("is the file to copy from", self.vendor(HERE, status=2))
        program = folder / "program.py"
        os.link(path, program)  # the same file under another name
        with mock.patch.object(mcp_min, "__file__", str(program)):
            self.assertIn("is the file to copy from",
                          self.vendor(folder, "--force", status=2))
        self.assertIn("--with is for --core",
                      self.vendor(folder, "--with", "trace", status=2))

    def of_version(self, text, version):
        """A copy as another version would have made it."""
        seal = re.search(f"{mcp_min.SEAL}.*\n", text)[0]
        if version == mcp_min.__version__:
            return text
        rest = text.replace(seal, "").replace(mcp_min.__version__, version, 1)
        digest = hashlib.sha256(rest.encode()).hexdigest()
        return rest.replace("\n\nCopy", f"\n{mcp_min.SEAL}{digest}\n\nCopy", 1)

    def test_a_file_is_checked_and_compared_with_what_its_first_lines_say(self):
        path = self.folder / "mcp_min.py"
        self.vendor(self.folder, "--client")
        source = path.read_text("utf-8")
        self.assertIn(f"is what mcp_min {mcp_min.__version__} makes: client, stat",
                      self.vendor("--check", path))
        self.assertIn("no difference", self.vendor("--diff", path))
        edited = self.folder / "edited.py"
        for version in mcp_min.__version__, "3.9.0":
            text = self.of_version(source, version)
            edited.write_text(text.replace("import sys\n", "import sys\nimport this\n"))
            self.vendor("--check", edited, status=1)
            diff = self.vendor("--diff", edited)
            self.assertEqual(re.findall("(?m)^[-+](?!-|[+]|\"|sha256).*", diff),
                             ["-import this"])
            edited.write_text(text)
            same = version == mcp_min.__version__
            told = self.vendor("--check", edited, status=0 if same else 2)
            self.assertIn(" is what mcp_min" if same else "only that version", told)
            edited.write_bytes(text.replace("\n", "\r\n").encode())
            self.vendor("--check", edited, status=0 if same else 2)
            forged = text.replace('PARTS = "client', 'PARTS = "client x"; evil() #')
            edited.write_text(forged)
            self.assertIn("is not what", self.vendor("--check", edited, status=1))

    def test_a_copy_is_the_same_whoever_makes_it(self):
        """Fails if the order of a set decides."""
        made = set()
        for seed in 0, 1:
            folder = self.folder / f"seed{seed}"
            subprocess.run([*IMPORTED, "vendor", str(folder), "--lean", "--without",
                            "inside,trace"], check=True, stdout=subprocess.DEVNULL,
                           env={**os.environ, "PYTHONHASHSEED": str(seed)},
                           timeout=PATIENCE)
            made.add((folder / "mcp_min.py").read_bytes())
        self.assertEqual(len(made), 1)

    def test_a_copy_in_a_package_needs_a_file_beside_it(self):
        outer = self.folder / "acme"
        outer.mkdir()
        inner = outer / "_vendor"
        self.assertNotIn("__init__", self.vendor(inner))
        (outer / "__init__.py").touch()
        self.assertRegex(self.vendor(inner), "if there is .*__init__.py.*find_packages")
        self.assertFalse((inner / "__init__.py").exists())
        self.vendor(inner, "--init")
        self.assertTrue((inner / "__init__.py").exists())

    def test_the_choice_of_parts(self):
        for options, text in (
                ("--without x", "no chapter 'x': there are asyncio, cli, config, in"),
                ("--core --with names", "names and cli need all")):
            told = self.vendor(self.folder / "choice", *options.split(), status=2)
            self.assertIn(text, told)
        for options, has in (
                ("", mcp_min.PARTS), ("--client --core", "client"),
                ("--core --with stateless,trace", "server client stateless trace"),
                ("--without stateless",
                 "server client schemas more asyncio turns inside config trace"),
                ("--without names", mcp_min.PARTS.replace(" names", "")),
                ("--lean", mcp_min.PARTS.replace(" names cli", ""))):
            self.vendor(self.folder / "choice", *options.split(), "--force")
            copy = run_block((self.folder / "choice/mcp_min.py").read_text("utf-8"))
            self.assertEqual(copy.PARTS, has)
        self.assertEqual(mcp_min.PARTS.split(), [*mcp_min.ABOUT][1:])
        self.assertEqual({*mcp_min.ABOUT} - {"both"} - {"server", "client"}, {
            piece.chapter for piece in mcp_min.pieces_of(
                pathlib.Path(FILE).read_text("utf-8"))} - {""})

    def test_the_help_lists_all_parts_and_their_lines(self):
        rows = re.findall(r"(?m)^  (\w+) +(\d+)  ", self.vendor("--help"))
        self.assertEqual([name for name, _ in rows], ["both", *mcp_min.PARTS.split()])
        total = pathlib.Path(FILE).read_text("utf-8").count("\n")
        self.assertTrue(total - 400 < sum(int(lines) for _, lines in rows) < total)

    def test_audit_the_core_of_a_server_reaches_for_nothing_but_its_streams(self):
        """Of all that Python tells an audit hook, from the import to the end."""
        folder = self.folder / "audited"
        self.vendor(folder, "--server", "--core")
        head = textwrap.dedent("""
            import sys
            heard = {}

            def hear(event, args):
                heard[event, str(args[0]) if args else ""] = None

            sys.addaudithook(hear)
            sys.path.insert(0, %r)
            from mcp_min import Context, Server
            """) % str(folder)
        with mock.patch.object(process, "HEAD", head), process("""
                server = Server("s")

                @server.tool
                def ask(n: int, ctx: Context) -> str:
                    for _ in ctx.track(range(n)):
                        ctx.info("x")
                    return ctx.elicit("?", ["tea"]).data

                @server.tool
                def fail():
                    raise KeyError("x")

                @server.tool
                def hold(ctx: Context):
                    ctx.wait(60)

                server.resource("a://{b}")(lambda b: b)
                server.prompt("p")(lambda a: a)
                server.run()
                told = [*heard.copy()]
                import json
                sys.stderr.write("\\n" + json.dumps(told))
                """, "-I", "-S", "-B") as server:
            play(server, """
                > handshake
                > 1 tools/list                                     < 1 {}
                > 2 call ask {"n": 1} {"_meta": {"progressToken": 7}}
                < notifications/message {"data": "x"}
                < notifications/progress {"progress": 1}
                < $q elicitation/create {}
                > $q {"action": "accept", "content": {"value": "tea"}}   < 2 = "tea"
                > 3 call fail                    < 3 {"isError": true}
                > 4 call hold
                > notifications/cancelled {"requestId": 4}
                > 5 resources/read {"uri": "a://x"}                < 5 {}
                > 6 prompts/get {"name": "p", "arguments": {"a": "x"}}   < 6 {}
                """)
            self.assertEqual(server.exit(hang_up=True), 0)
            heard = json.loads(server.stderr.splitlines()[-1])
        library = os.path.dirname(os.__file__)
        opened = {name for event, name in heard if event == "open"}
        self.assertEqual({name for name in opened if not (
            name.startswith((library, str(folder)))  # modules that are imported
            or name.isdigit()  # duplicates of descriptors 0 to 2
            or name[0] == "<"  # the source of a handler, for a traceback
            or name == os.devnull)}, set())
        events = {event for event, _ in heard} - {"open"}
        self.assertEqual({event for event in events if not re.match(
            "import$|exec$|compile$|marshal|os.listdir$"  # modules
            "|sys._getframe|object.__[gs]etattr__$|builtins.id$|(code|function).__new__$"
            "|_thread.start|time.sleep$|cpython", event)}, set())
        imported = {
            name.partition(".")[0] for event, name in heard if event == "import"}
        self.assertEqual(imported & {"socket", "_socket", "subprocess", "ctypes", "ssl",
                                     "asyncio", "http", "pickle"}, set())
        if hasattr(sys, "stdlib_module_names"):
            known = sys.stdlib_module_names | {"_missing_stdlib_info"}  # 3.15 asks it
            self.assertEqual(imported - known, {"mcp_min"})

    def test_words_in_the_code_do_not_decide_what_is_copied(self):
        source = pathlib.Path(FILE).read_text("utf-8")
        place = "\n\n\nclass Node("
        self.assertEqual(source.count(place), 1)
        commented = source.replace(place, "\n\n\n# Read by part IV, too.\n" + place)
        for end in "server", "client":
            self.assertIn("class Outbox", mcp_min.vendored(commented, [end]))
        self.assertIn("\nleft out: server, more, turns, inside, names, cli\n",
                      self.vendor(self.folder / "said", "--client"))

    def test_the_readme_has_the_sha256_of_each_copy(self):
        readme = pathlib.Path(HERE, "README.md")
        text = readme.read_text("utf-8") if readme.exists() else ""
        if not re.search("[0-9a-f]{64}", text):
            self.skipTest("README.md has none")
        self.assertEqual([row for row in rows_of_copies() if row not in text], [])

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
        result.skipped[:] = {  # a test once, however many of its subtests are
            str(test).partition(")")[0]: (test, text)
            for test, text in result.skipped}.values()
        return result

    def split(self):
        """Its tests, but a class whose tests share a fixture as a whole, and first."""
        def is_shared(suite):
            return any("setUpClass" in vars(type(test)) for test in suite)

        suites = [*self]
        yield from filter(is_shared, suites)
        yield from itertools.chain(*itertools.filterfalse(is_shared, suites))


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
        if OrderedLock.wrong:
            result.failures.append(("the order of locks", str({*OrderedLock.wrong})))
        with open(writer, "w", encoding="utf-8") as report:
            json.dump([result.testsRun, *(
                [[str(test), text] for test, text in outcomes] for outcomes in (
                    result.failures, result.errors, result.skipped))], report)
    finally:
        os._exit(0)


class Reported(str):
    """The name of a test that ran in another process."""

    def shortDescription(self):
        return None


def add_report(result, report):
    """Add the outcomes of another process to a result."""
    count, *outcomes = json.loads(
        report or '[1, [], [["a part of the tests", "its process has died"]], []]')
    result.testsRun += count
    lists = result.failures, result.errors, result.skipped
    for outcomes_of_kind, reported in zip(lists, outcomes):
        outcomes_of_kind += [(Reported(name), text) for name, text in reported]


def load_tests(loader, tests, pattern):
    """What unittest runs if no classes are named (but perhaps patterns, by ``-k``)."""
    return Parts(tests) if hasattr(os, "fork") else tests


if __name__ == "__main__":
    if sys.argv[1:] == ["--hashes"]:  # for README.md
        print(*rows_of_copies(), sep="\n")
        sys.exit()
    unittest.main()
