"""Tests of mcp_min: `python3 test_mcp_min.py`, standard library only.

A Wire is a server's client as raw lines.  What is expected may lack members that came,
and "..." stands for anything.  That nothing is sent is shown by a fence: a `ping` whose
response must be the next line.
"""
from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime
import enum
import functools
import gc
import io
import itertools
import json
import operator
import os
import queue
import random
import re
import select
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest
import uuid
from collections import Counter, abc
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import (
    Annotated, Any, ClassVar, Dict, FrozenSet, List, Literal, NamedTuple, Optional,
    Set, Tuple, TypedDict, Union,
)
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for python -I
import mcp_min  # noqa: E402
from mcp_min import (  # noqa: E402
    AsyncContext, Audio, Cancelled, Client, ConnectionClosed, Context, Elicited,
    EmbeddedResource, Field, Image, McpError, Message, RequestTimeout,
    ResourceContents, ResourceLink,
    SchemaError, Server, Text, ToolError, ToolResult, validate,
)

HERE = Path(mcp_min.__file__).resolve().parent
CACHED = Path(mcp_min.__spec__.cached or "none")  # it starts faster
IS_NEW = CACHED.exists() and CACHED.stat().st_mtime > os.stat(mcp_min.__file__).st_mtime
COMMAND = [sys.executable, str(CACHED) if IS_NEW else mcp_min.__file__]
LATEST = "2025-11-25"
SECONDS = 60  # for what must happen; only a failing test takes so long


def initialize(date=LATEST, capabilities=None, id=0):
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
        "protocolVersion": date, "capabilities": capabilities or {},
        "clientInfo": {"name": "test", "version": "1"}}}


def request(id, method, **params):
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def call(id, name, meta=None, **arguments):
    params = {"name": name, "arguments": arguments}
    return request(id, "tools/call", **params, **({"_meta": meta} if meta else {}))


def matches(expected, got):
    """Is everything expected in what came?"""
    if expected == "...":
        return True
    if isinstance(expected, dict) and isinstance(got, dict):
        return all(key in got and matches(part, got[key])
                   for key, part in expected.items())
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(matches, expected, got))
    return type(expected) is type(got) and expected == got


class Pipe:
    """One direction of an in-memory pair: bytes in, chunks out; b"" is the end."""

    def __init__(self):
        self.chunks = queue.SimpleQueue()

    def read(self, size=-1):
        chunk = self.chunks.get(timeout=SECONDS)
        if not chunk:
            self.chunks.put(b"")
        return chunk

    def write(self, data):
        self.chunks.put(bytes(data))
        return len(data)

    def flush(self):
        pass

    def close(self):
        self.chunks.put(b"")


class Wire:
    """The client's end of a server, as raw lines; date=None: without a handshake."""

    def __init__(self, server, date=LATEST, **capabilities):
        self.server, self.date, self.capabilities = server, date, capabilities
        self.input, self.output, self.rest = Pipe(), Pipe(), b""
        self.fences = 0

    def __enter__(self):
        self.thread = threading.Thread(
            target=self.server.serve, args=(self.input, self.output), daemon=True)
        self.thread.start()
        if self.date:
            self.send(initialize(self.date, self.capabilities))
            self.initialized = self.expect({"id": 0, "result": {}})
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *error):
        self.input.close()
        self.thread.join(SECONDS)
        if not error[0]:
            assert not self.thread.is_alive(), "the server did not end"

    def send(self, message):
        """Send a message, or bytes as they are (with a newline)."""
        if not isinstance(message, bytes):
            message = json.dumps(message).encode()
        self.input.write(message + b"\n")

    def line(self):
        """The next line that the server sends, as bytes."""
        while b"\n" not in self.rest:
            chunk = self.output.read()
            assert chunk, "the server hung up"
            self.rest += chunk
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def receive(self):
        return json.loads(self.line())

    def expect(self, expected):
        """The next message, which must match."""
        got = self.receive()
        assert matches(expected, got), f"\nexpected {expected}\ngot      {got}"
        return got

    def ask(self, message):
        """Send a request; the response, which must come next."""
        self.send(message)
        got = self.receive()
        assert got.get("id") == message["id"], got
        return got

    def fence(self):
        """Nothing more has been sent: the response to a ping comes next."""
        self.fences += 1
        self.send(request(f"fence {self.fences}", "ping"))
        self.expect({"id": f"fence {self.fences}", "result": {}})


@contextlib.contextmanager
def captured_stderr():
    """What is written to sys.stderr meanwhile, without a descriptor."""
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        yield stream


def gate():
    """An event whose wait() fails the test instead of hanging."""
    event = threading.Event()
    wait = event.wait

    def checked():
        assert wait(SECONDS), "it did not happen"

    event.wait = checked
    return event


def run_python(code, *args, stdin=b"", **options):
    """Run a program that can import mcp_min; a CompletedProcess with bytes."""
    env = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1",
           **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", code, *args], input=stdin, capture_output=True, env=env,
        timeout=SECONDS, **options)


# -- 3. Messages -----------------------------------------------------------------------

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603


def refused(code, id=None):
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "..."}}


def answered(id, **result):
    return {"jsonrpc": "2.0", "id": id, "result": result}


def text(id, text):
    """The response to a call of a tool that gives this text."""
    return answered(id, isError=False, content=[{"type": "text", "text": text}])


def notify(method, **params):
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancel(id):
    return notify("notifications/cancelled", requestId=id)


def nested(depth):
    return b"[" * depth + b"]" * depth


def echo_server(**options):
    server = Server("test", **options)
    server.method("a/echo")(lambda params: params)
    return server


def in_order(messages):
    return sorted(messages, key=lambda message: repr(message["id"]))


def ids_of(messages):
    return [message["id"] for message in in_order(messages)]


def unread(wire):
    """What a server has sent that was not read, once its session is over."""
    wire.output.close()
    data = wire.rest + b"".join(iter(wire.output.read, b""))
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


class Case(unittest.TestCase):
    def drain(self, seconds):
        """What is in flight at the end of the input has so long to finish."""
        patch = mock.patch.object(mcp_min, "DRAIN_SECONDS", seconds)
        patch.start()
        self.addCleanup(patch.stop)

    def check(self, rows, server=None, **session):
        """Rows of a line and what must come; nothing else does, the session goes on."""
        for line, *expected in rows:
            wire = Wire(server or echo_server(), **session)
            with self.subTest(str(line)[:90]), wire:
                wire.send(line)
                for message in expected:
                    wire.expect(message)
                wire.fence()


class SystemPipe(Pipe):
    """A pipe of the system; the end that the server has does not block."""

    def __init__(self, case, server_has):
        self.ends = [open(fd, mode, buffering=0)
                     for fd, mode in zip(os.pipe(), ("rb", "wb"))]
        for end in self.ends:
            case.addCleanup(end.close)
        os.set_blocking(self.ends[server_has].fileno(), False)
        self.fileno = self.ends[server_has].fileno
        self.write, self.close = self.ends[1].write, self.ends[1].close

    def read(self, size=65536):
        if os.get_blocking(self.ends[0].fileno()):
            assert select.select(self.ends[:1], [], [], SECONDS)[0], "nothing comes"
        return self.ends[0].read(size)


class Test3Framing(Case):
    PING = b'{"jsonrpc": "2.0", "id": 3, "method": "ping"}'
    LIMIT = 1000

    def test_a_blank_line_is_ignored_and_one_that_can_be_read_is_answered(self):
        self.check([
            (b"",), (b" \t ",), (b"\r",), (b"\r\r \n\r",),
            (self.PING + b"\r", answered(3)),
            (b" \t" + self.PING + b" \t", answered(3)),
            (b"\xef\xbb\xbf" + self.PING, answered(3)),
            (b'{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "ping"}', answered(2)),
            (dict(request(1, "ping"), extra={}, _meta=[], Id=2), answered(1)),
        ])

    def test_what_cannot_be_read_is_refused_and_never_handled(self):
        echo = b'{"id":3,"jsonrpc":"2.0","method":"a/echo","params":{"value":%s}}'
        lines = [
            self.PING + b"\r" + self.PING, self.PING * 2, self.PING + b"]",
            self.PING[:-1], self.PING[:-1] + b",}", self.PING + b" // a comment",
            self.PING.decode().encode("utf-16-le"), b"{'id': 3}", b"\x00", b"hello",
            b"bash: no job control in this shell", b"Content-Length: 52\r",
            *(echo % value for value in [
                b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\t"', b'"\x00"',
                b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000,
                b"01", b"'x'", b"[1,]", b'"\\x"', b'"\\ud8"'])]
        self.check([(line, refused(PARSE_ERROR)) for line in lines])

    def test_what_json_can_hold_comes_back_as_it_was(self):
        values = [
            "a\u2028b\u2029c\u0085d", "\U0001f600 \x7f \\ \" / \n \r \0", "\ud800",
            2**53 + 1, 10**30, -1, 1e308, 0.1, [None, True, {}, []], "[{" * 1000,
            '"[' * 1000, "\\", '\\"' + "[" * 300, "x" * 10_000_000,
            # With the message and its params this is 200 deep, which is allowed.
            json.loads(nested(198))]
        with Wire(echo_server()) as wire:
            for value in values:
                message = request(1, "a/echo", value=value)
                with self.subTest(ascii(value)[:20]):
                    is_ascii = value == "\ud800"  # else it is no UTF-8
                    wire.send(json.dumps(message, ensure_ascii=is_ascii).encode())
                    self.assertEqual(wire.receive(), answered(1, value=value))

    def heads(self, value):
        """Messages with a value that is too much, and their responses."""
        rows = [
            (b'{"id":3,"jsonrpc":"2.0","method":"ping","params":{"value":%s}}', 3),
            (b'{"jsonrpc": "2.0", "id": -7, "method": "x", "params": {"a": %s}}', -7),
            (b' { "jsonrpc":"2.0" , "id" : "a b" ,"params":{"a":%s}}', "a b"),
            (b'{"method":"ping","params":{"a":%s},"id":3}', None),
            (b'{"params":{"id":3,"a":%s},"id":4}', None),
            (b'{"id":true,"params":{"a":%s}}', None),
            (b'{"id":null,"params":{"a":%s}}', None),
            (b'[{"id":3,"params":{"a":%s}}]', None)]
        return [(line % value, refused(PARSE_ERROR, id)) for line, id in rows]

    def test_a_line_that_is_too_deep_is_refused_with_the_id_it_begins_with(self):
        deep = [nested(201), b"[" * 100_000, b'{"a":' * 9000, b'[{"a":' * 9000]
        self.check([(line, refused(PARSE_ERROR)) for line in deep])
        self.check(self.heads(nested(199)))

    def test_a_line_that_is_too_long_is_refused_with_the_id_it_begins_with(self):
        for size in (self.LIMIT, 300_000):
            self.check([(b"x" * (size + 1), refused(PARSE_ERROR)),
                        *self.heads(b'"%s"' % (b"x" * size)),
                        (self.PING.ljust(self.LIMIT), answered(3)),
                        (self.PING.ljust(self.LIMIT + 1), refused(PARSE_ERROR, 3))],
                       echo_server(max_message_bytes=self.LIMIT))

    @unittest.skipUnless(sys.implementation.name == "cpython", "it counts bytes")
    def test_of_a_line_that_is_too_long_little_is_kept(self):
        chunks = itertools.chain(itertools.repeat(b"x" * 65536, 1000),
                                 [b"\n" + self.PING], itertools.repeat(b""))
        reader = SimpleNamespace(read=lambda size: next(chunks))
        writer = io.BytesIO()
        tracemalloc = __import__("tracemalloc")  # PyPy has none
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        echo_server(max_message_bytes=self.LIMIT).serve(reader, writer)
        self.assertLess(tracemalloc.get_traced_memory()[1], 8 << 20)
        got = [json.loads(line) for line in writer.getvalue().splitlines()]
        self.assertTrue(matches([refused(PARSE_ERROR), answered(3)], got), got)

    def test_no_line_overflows_a_small_stack_or_takes_for_ever(self):
        code = ("import mcp_min, threading\n"
                "threading.stack_size(256 << 10)\n"
                "mcp_min.Server('test').run()")
        lines = [
            b"[" * 100_000, b'{"a":' * 100_000, nested(100_000),
            # It was cut in the middle of a text that has JSON in it.
            b'{"id":2,"text":"' + b'{\\"text\\": \\"x\\"}' * 20_000,
            self.PING]
        done = run_python(code, stdin=b"\n".join(lines))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(b"-32700"), len(lines) - 1)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), answered(3))

    def test_messages_may_come_byte_by_byte_or_many_at_once(self):
        line = b'{"jsonrpc":"2.0","id":%d,"method":"a/echo","params":{"a":"\xc3\xa9"}}'
        with Wire(echo_server()) as wire:
            for byte in (line % 1 + b"\n") * 3:
                wire.input.write(bytes([byte]))
            for _ in range(3):
                wire.expect(answered(1, a="é"))
            wire.send(b"\n".join(line % id for id in range(1000)))
            got = [wire.receive() for _ in range(1000)]
            self.assertEqual({message["id"] for message in got}, set(range(1000)))

    @unittest.skipIf(os.name == "nt", "pipes there always block")
    def test_streams_that_do_not_block_are_waited_for(self):
        wire = Wire(echo_server())
        wire.input, wire.output = SystemPipe(self, 0), SystemPipe(self, 1)
        with wire:
            wire.send(self.PING + b"\r")
            self.assertEqual(wire.line(), b'{"jsonrpc":"2.0","id":3,"result":{}}')
            wire.send(request(1, "a/echo", value="x" * 500_000))
            wire.expect(answered(1, value="x" * 500_000))


class Test3Envelope(Case):
    def test_what_is_no_message_is_refused_with_its_id(self):
        rows = [(line, None) for line in [
            b"[]", b"1", b'"x"', b"null", b"true", b"{}", b"[[]]",
            b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
            b'[{"jsonrpc":"2.0","method":"notifications/initialized"}]']]
        rows += [(b"{%s}" % members, id) for members, id in [
            (b'"id":99,"method":"ping"', 99), (b'"id":"a","method":"ping"', "a"),
            (b'"jsonrpc":"1.0","id":1,"method":"ping"', 1),
            (b'"jsonrpc":2.0,"id":1,"method":"ping"', 1),
            (b'"jsonrpc":null,"id":1,"method":"ping"', 1)]]
        rows += [(b'{"jsonrpc":"2.0",%s}' % members, id) for members, id in [
            (b'"id":5', 5), (b'"id":1.0', 1), (b'"id":5,"method":null', 5),
            (b'"id":5,"method":1', 5), (b'"id":5,"method":{}', 5),
            (b'"id":5,"method":["ping"]', 5),
            (b'"id":5,"method":"ping","result":{}', 5),
            (b'"id":5,"method":"ping","error":{}', 5),
            *((b'"method":"ping","id":' + id, None)
              for id in (b"null", b"true", b"1.5", b"{}", b"[1]"))]]
        self.check([(line, refused(INVALID_REQUEST, id)) for line, id in rows])

    def test_a_method_that_is_not_known_is_named(self):
        for name in ("", "no/such", "notifications/initialized", "Ping", "\ud800"):
            error = {"code": METHOD_NOT_FOUND, "data": {"method": name}}
            self.check([(request(1, name), {"id": 1, "error": error})])

    def test_params_that_are_no_object_are_refused(self):
        self.check([(dict(request(1, "ping"), params=one), refused(INVALID_PARAMS, 1))
                    for one in ([1], [], "x", "", 1, 0, True, False)])

    def test_an_id_is_echoed_as_it_came(self):
        ids = ["", "1", "007", " 7 ", "1_0", "é\0", "\ud800", "x" * 100_000, 0, -1,
               2**53 + 1, 10**30]
        self.check([(request(id, "ping"), answered(id)) for id in ids])
        line = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}'
        self.check([(line % id, answered(number)) for id, number in [
            (b"1.0", 1), (b"1e2", 100), (b"-0.0", 0)]])

    def test_members_that_are_null_are_absent(self):
        handlers = Handlers()
        first = initialize(id=1)
        first["params"].update(capabilities=None, clientInfo=None, _meta=None)
        listing = request(1, "tools/list", cursor=None, _meta={"progressToken": None})
        self.check([
            (dict(request(1, "ping"), params=None), answered(1)),
            (dict(request(1, "ping"), result=None, error=None), answered(1)),
            (first, answered(1, protocolVersion=LATEST)),
            (listing, answered(1, tools="...")),
            (request(1, "tools/call", name="count", arguments=None, _meta=None),
             text(1, "1")),
            (request(1, "a/echo", value=None), answered(1, value=None)),
        ], handlers.server)

    def test_a_notification_is_never_answered(self):
        methods = ["notifications/initialized", "notifications/cancelled",
                   "notifications/progress", "notifications/message", "$/cancelRequest",
                   "notifications/no/such", "initialized", "no/such", ""]
        params = [None, {}, [1], "x", 1, {"requestId": []}, {"progressToken": {}},
                  {"progressToken": 1, "progress": "x"}]
        for method in methods:
            lines = [json.dumps(dict(notify(method), params=one)) for one in params]
            self.check([("\n".join(lines).encode(),)])

    def test_a_request_without_an_id_is_not_run(self):
        with Wire(Handlers().server) as wire:
            wire.send(notify("tools/call", name="count"))
            wire.send(notify("initialize", protocolVersion="2025-03-26"))
            wire.send([request(1, "ping")])  # as before
            wire.expect(refused(INVALID_REQUEST))
            self.assertEqual(wire.ask(call(1, "count")), text(1, "1"))

    def test_a_response_that_no_one_asked_for_is_ignored(self):
        ids = [b"1", b'"x"', b"null", b"{}", b"[1]", b"true", b"1.5"]
        ends = [b'"result":{}', b'"result":null', b'"result":1', b'"error":{"code":1}',
                b'"error":"x"', b'"result":{},"error":{}']
        self.check([(b'{"jsonrpc":"2.0","id":%s,%s}' % pair,)
                    for pair in itertools.product(ids, ends)])


# -- 4. Connection ---------------------------------------------------------------------


class Handlers:
    """A server whose tools show when they run and let the test say when they end."""

    def __init__(self, **options):
        self.server = server = echo_server(**options)
        self.started, self.ended, self.go = queue.SimpleQueue(), gate(), gate()
        self.lock = threading.Lock()  # guards what follows
        self.running = self.peak = self.calls = 0
        for tool in (self.hold, self.wait, self.count, self.step):
            server.tool(tool)

    @contextlib.contextmanager
    def counted(self):
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1

    def hold(self, ctx: Context) -> str:
        """Runs until the test lets it go; cancelled or not."""
        with self.counted():
            self.started.put(ctx)
            self.go.wait()
        return "held"

    def wait(self, ctx: Context) -> None:
        self.started.put(ctx)
        try:
            ctx.wait(SECONDS)
        except mcp_min.Cancelled:
            self.ended.set()
            raise

    def count(self) -> str:
        with self.lock:
            self.calls += 1
            return str(self.calls)

    def step(self, count: int, ctx: Context) -> int:
        with self.counted():
            for done in range(1, count + 1):
                for progress in (done, done, done - 0.5):  # one of them is an increase
                    ctx.report_progress(progress, 9, "half")
                ctx.wait(0.0005)
        return count

    def await_start(self):
        """The context of the next handler that starts."""
        return self.started.get(timeout=SECONDS)


class Test4Cancellation(Case):
    def test_a_cancelled_request_is_never_answered_and_its_handler_sees_it(self):
        for message in [cancel(1), notify("cancelled", requestId=1, reason="slow"),
                        notify("$/cancelRequest", id=1)]:
            handlers = Handlers()
            with self.subTest(message), Wire(handlers.server) as wire:
                wire.send(call(1, "wait"))
                ctx = handlers.await_start()
                wire.send(message)
                handlers.ended.wait()
                self.assertTrue(ctx.cancelled)
                self.assertEqual(wire.ask(call(2, "count")), text(2, "1"))
            self.assertEqual(unread(wire), [])

    def test_a_cancelled_request_never_runs_or_says_nothing_more(self):
        handlers = Handlers(max_workers=1)
        with Wire(handlers.server) as wire:
            wire.send(call(1, "hold", meta={"progressToken": 1}))
            ctx = handlers.await_start()
            wire.send(call(2, "count"))  # waits for its turn, and never runs
            wire.send(cancel(2))
            wire.send(cancel(1))
            wire.fence()
            with self.assertRaises(mcp_min.Cancelled):
                ctx.report_progress(1)
            wire.send(request(1, "ping"))  # its id is free already
            wire.expect(answered(1))
            wire.send(call(1, "count"))
            handlers.go.set()
            wire.expect(text(1, "1"))  # of the second; the first has returned before

    def test_a_cancellation_is_of_the_request_with_exactly_its_id(self):
        ids, handlers = [1, "1", "01", " 1 ", "1.0", "1_0"], Handlers()
        with Wire(handlers.server) as wire:
            wire.ask(call(7, "count"))
            for id in ids:
                wire.send(call(id, "hold"))
                handlers.await_start()
            for other in (7, 99, "", True, 1.5, None, {}, [1], "1"):
                wire.send(cancel(other))
            wire.fence()
            handlers.go.set()
            left = [request(id, "") for id in ids if id != "1"]
            self.assertEqual(ids_of(wire.receive() for _ in left), ids_of(left))

    def test_initialize_cannot_be_cancelled(self):
        both = "\n".join(map(json.dumps, [initialize(id=1), cancel(1)])).encode()
        self.check([(both, answered(1, protocolVersion=LATEST))], date=None)

    def test_a_second_request_with_an_id_in_use_is_refused_and_the_first_is_not(self):
        for workers, tool in itertools.product((1, 64), ("hold", "wait")):
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers, tool=tool), Wire(handlers.server) as wire:
                wire.send(call(1, tool))
                handlers.await_start()
                for message in (call(1, "count"), request(1, "ping"), initialize(id=1)):
                    wire.send(message)
                    wire.expect(refused(INVALID_REQUEST, 1))
                if tool == "hold":
                    handlers.go.set()
                    wire.expect(text(1, "held"))
                else:
                    wire.send(cancel(1))
                    handlers.ended.wait()
                self.assertEqual(wire.ask(call(1, "count")), text(1, "1"))

    def test_an_id_is_free_when_its_response_is_read(self):
        for workers in (1, 2, 64):
            with Wire(Handlers(max_workers=workers).server) as wire:
                for count in range(300):
                    wire.send(call(1, "count"))
                    wire.expect(text(1, str(count + 1)))

    def test_over_1000_requests_in_flight_are_refused_but_a_ping_is_answered(self):
        handlers = Handlers()
        with Wire(handlers.server) as wire:
            for id in range(1, 1001):
                wire.send(call(id, "hold"))
            wire.fence()
            wire.send(call(1001, "hold"))
            wire.expect({"id": 1001, "error": {"message": "..."}})
            wire.send(cancel(1000))
            wire.send(call(1003, "hold"))
            wire.fence()
            handlers.go.set()
            got = {wire.receive()["id"] for _ in range(1000)}
            self.assertEqual(got, {*range(1, 1000), 1003})
        with Wire(echo_server()) as wire:
            for id in range(1, 1002):
                wire.send(modern(id, "subscriptions/listen", notifications={}))
            for _ in range(1000):
                self.assertIn("acknowledged", wire.receive()["method"])
            wire.expect(refused(INTERNAL_ERROR, 1001))

    def test_each_request_is_answered_once_or_was_cancelled(self):
        self.drain(SECONDS)
        chance, ids = random.Random(54), set(range(1, 121))
        for workers in (1, 2, 64):
            handlers, cancelled = Handlers(max_workers=workers), set()
            with self.subTest(workers), Wire(handlers.server) as wire:
                for id in ids:
                    wire.send(call(id, "step", meta={"progressToken": id},
                                   count=chance.randrange(4)))
                    if chance.random() < 0.4:
                        early = max(1, id - chance.randrange(5))
                        cancelled.add(early)
                        wire.send(cancel(early))
            responses, progress = Counter(), Counter()
            for message in unread(wire):
                if "method" in message:
                    token = message["params"]["progressToken"]
                    self.assertFalse(responses[token], "progress after the response")
                    self.assertGreater(message["params"]["progress"], progress[token])
                    progress[token] = message["params"]["progress"]
                else:
                    self.assertIs(message["result"]["isError"], False)
                    responses[message["id"]] += 1
            self.assertLessEqual(set(responses.values()), {0, 1})
            self.assertLessEqual(ids - cancelled, set(responses.elements()))
            self.assertLessEqual(handlers.peak, workers)


class Test4Batches(unittest.TestCase):
    def check(self, messages, expected):
        """An array gets an array with these responses; if there is none, nothing."""
        for date in ("2024-11-05", "2025-03-26"):
            with self.subTest(date), Wire(echo_server(), date) as wire:
                wire.send(messages)
                if expected:
                    got = in_order(wire.receive())
                    self.assertTrue(matches(in_order(expected), got), got)
                wire.fence()

    def test_an_array_of_requests_gets_one_array_of_responses(self):
        self.check([request(id, "a/echo", value=id) for id in range(20)],
                   [answered(id, value=id) for id in range(20)])
        self.check([request(1, "ping")], [answered(1)])

    def test_what_is_no_request_gets_no_response(self):
        others = [notify("notifications/initialized"), cancel(9),
                  {"jsonrpc": "2.0", "id": 5, "result": {}},
                  {"jsonrpc": "2.0", "id": "1" * 5000, "result": {}}]
        self.check(others, [])
        self.check([request(1, "ping"), *others], [answered(1)])

    def test_what_is_no_message_gets_an_error_of_its_own(self):
        self.check(
            [1, {}, [], {"id": 9}, request(2, "no/such"), request(None, "ping"),
             request(3, "ping"), dict(request(4, "ping"), params=[1])],
            [*[refused(INVALID_REQUEST)] * 4, refused(INVALID_REQUEST, 9),
             refused(METHOD_NOT_FOUND, 2), answered(3), refused(INVALID_PARAMS, 4)])

    def test_initialize_in_an_array_is_refused_and_an_empty_array_is(self):
        with Wire(echo_server(), "2025-03-26") as wire:
            wire.send([initialize(LATEST, id=1), request(2, "ping")])
            wire.expect([refused(INVALID_REQUEST, 1), answered(2)])
            for array in ([], [1] * 1001):
                wire.send(array)
                wire.expect(refused(INVALID_REQUEST))
            wire.send([request(3, "ping")])  # the revision is the same
            wire.expect([answered(3)])

    def test_other_revisions_refuse_an_array_and_run_nothing_of_it(self):
        for date in ("2025-06-18", LATEST, None):
            with self.subTest(date), Wire(Handlers().server, date) as wire:
                for messages in ([call(1, "count")], [initialize(id=1)], [cancel(1)]):
                    wire.send(messages)
                    wire.expect(refused(INVALID_REQUEST))
                wire.fence()
                wire.ask(initialize(id=1))
                self.assertEqual(wire.ask(call(2, "count")), text(2, "1"))

    def test_a_cancelled_request_leaves_its_response_out(self):
        ping, wait = request(1, "ping"), call(2, "wait")
        for messages in ([ping, wait], [wait, ping], [wait, cancel(2), ping], [wait]):
            with self.subTest(messages), Wire(Handlers().server, "2025-03-26") as wire:
                wire.send(messages)
                wire.send(cancel(2))
                if ping in messages:
                    wire.expect([answered(1)])
                wire.fence()

    def test_an_array_holds_up_nobody_and_an_id_is_in_use_until_it_is_answered(self):
        for workers in (1, 64):
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers), Wire(handlers.server, "2025-03-26") as wire:
                wire.send([call(1, "hold"), request(2, "ping"), call(3, "count")])
                handlers.await_start()
                wire.send(request(1, "ping"))
                wire.expect(refused(INVALID_REQUEST, 1))
                wire.send(cancel(2))  # too late: it was answered, though not sent
                wire.fence()
                handlers.go.set()
                self.assertEqual(ids_of(wire.receive()), [1, 2, 3])
                self.assertEqual(wire.ask(call(1, "count")), text(1, "2"))


class Test4Turns(unittest.TestCase):
    def test_a_slow_handler_stops_nothing(self):
        for workers in (1, 2, 64):
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers), Wire(handlers.server) as wire:
                wire.send(call(1, "hold"))
                ctx = handlers.await_start()
                wire.fence()
                if workers > 1:
                    self.assertEqual(wire.ask(call(3, "count")), text(3, "1"))
                    wire.send(call(4, "wait"))
                    handlers.await_start()
                    wire.send(cancel(4))
                    handlers.ended.wait()
                wire.send(cancel(1))
                wire.fence()
                self.assertTrue(ctx.cancelled)
                handlers.go.set()

    def test_as_many_handlers_run_at_a_time_as_there_may_be_and_no_more(self):
        for workers in (1, 2, 2, 3, 3, 64):
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers), no_thread_left(), Wire(handlers.server) as wire:
                for id in range(workers + 3):
                    wire.send(call(id, "hold"))
                for _ in range(workers):
                    handlers.await_start()
                wire.fence()
                handlers.go.set()
                for _ in range(workers + 3):
                    wire.receive()
                self.assertEqual(handlers.peak, workers)

    def test_a_request_that_waits_for_its_turn_gets_the_first_that_is_free(self):
        for tools in (("hold", "wait"), ("wait", "hold")):
            handlers = Handlers(max_workers=2)
            with self.subTest(tools), Wire(handlers.server) as wire:
                for id, tool in zip((1, 2, 3), (*tools, "count")):
                    wire.send(call(id, tool))
                handlers.await_start()
                handlers.await_start()
                wire.fence()
                handlers.go.set()
                self.assertEqual(ids_of([wire.receive(), wire.receive()]),
                                 [1 + tools.index("hold"), 3])
                wire.send(cancel(1 + tools.index("wait")))

    def test_what_a_handler_says_comes_in_its_order_before_its_response(self):
        handlers, said = Handlers(), []

        @handlers.server.tool
        def talk(ctx: Context) -> str:
            for number in range(1, 51):
                ctx.info(number)
                ctx.report_progress(number)
                ctx.notify("acme/said", {"number": number})
            return "done"

        for number in range(1, 51):
            said += [{"level": "info", "data": number},
                     {"progressToken": "t", "progress": number}, {"number": number}]
        with Wire(handlers.server) as wire:
            for id in (1, 2):  # on the thread that reads, then on another
                wire.send(call(id, "talk", meta={"progressToken": "t"}))
                self.assertEqual([wire.receive()["params"] for _ in said], said)
                wire.expect(text(id, "done"))
                wire.send(call(f"hold {id}", "hold"))
                handlers.await_start()
            handlers.go.set()

    def test_progress_is_sent_only_with_a_token_and_only_if_it_increases(self):
        for token in (None, True, False, 1.5, {}, [1], 0, "", 7, -1, "7", "t", 10**20):
            with self.subTest(token), Wire(Handlers().server) as wire:
                wire.send(call(1, "step", meta={"progressToken": token}, count=1))
                if type(token) in (int, str):
                    self.assertEqual(wire.receive()["params"], {
                        "progressToken": token, "progress": 1, "total": 9,
                        "message": "half"})
                wire.expect(answered(1))
                wire.ask(call(2, "step", meta={"other": token}, count=1))

    def test_progress_of_several_threads_increases(self):
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        handlers, last = Handlers(), -1
        with Wire(handlers.server) as wire:
            wire.send(call(1, "hold", meta={"progressToken": 1}))
            report = handlers.await_start().report_progress
            self.assertRaises(ValueError, report, float("inf"))  # and nothing else
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                pool.map(report, range(1000))
            handlers.go.set()
            while last < 999:
                progress = wire.receive()["params"]["progress"]
                self.assertGreater(progress, last)
                last = progress
            wire.expect(text(1, "held"))

    def test_nothing_is_said_about_a_request_after_its_response(self):
        def report(ctx):
            for progress in range(500):
                ctx.report_progress(progress)

        handlers, late = Handlers(), None
        with Wire(handlers.server) as wire:
            for _ in range(10):
                handlers.go = gate()
                wire.send(call(1, "hold", meta={"progressToken": 1}))
                ctx = handlers.await_start()
                if late:  # now another request has its id
                    late.report_progress(1000)
                    late.info("late")
                    late.notify("acme/late")
                    wire.fence()
                late, thread = ctx, threading.Thread(target=report, args=[ctx])
                thread.start()
                wire.expect({"method": "notifications/progress"})
                handlers.go.set()
                while "method" in wire.receive():
                    pass
                thread.join(SECONDS)
            wire.fence()

    def test_other_spellings_of_notifications_are_understood(self):
        names = ["tools/list_changed", "prompts/list_changed", "resources/list_changed",
                 "resources/updated", "message"]
        server, seen, progress = Server("test"), queue.SimpleQueue(), []

        @server.tool
        def speak(ctx: Context) -> str:
            token = ctx.meta["progressToken"]
            ctx.notify("progress", {"progressToken": token, "progress": 1})
            ctx.notify("$/progress", {"progressToken": token, "progress": 2})
            for name in [*names, "logging/message"]:
                ctx.notify(name, {"level": "info", "data": None})
            return "done"

        with Client(server, message_handler=seen.put) as client:
            client.call_tool("speak", progress_handler=lambda count, *_:
                             progress.append(count))
            for name in [*names, "message"]:
                method = seen.get(timeout=SECONDS).method
                self.assertEqual(method, f"notifications/{name}")
        self.assertEqual(progress, [1, 2])


class Fragile(Pipe):
    """It takes `size` bytes at a time, none while it has no room, or fails."""

    def __init__(self, size=None):
        super().__init__()
        self.size, self.error = size, None
        self.room, self.tried = gate(), gate()
        self.room.set()

    def read(self, size=-1):
        chunk = super().read(size)
        if self.error:
            raise self.error
        return chunk

    def write(self, data):
        if not self.room.is_set():
            self.tried.set()
            self.room.wait()
        if self.error:
            raise self.error
        return super().write(data[:self.size])


@contextlib.contextmanager
def no_thread_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(SECONDS)
        assert not thread.is_alive(), thread


class Test4Ends(Case):
    def fragile(self, handlers):
        wire = Wire(handlers.server)
        wire.input, wire.output = Fragile(), Fragile(size=7)
        return wire

    def test_what_is_in_flight_at_the_end_of_the_input_may_finish(self):
        self.drain(SECONDS)
        for workers in (1, 64):
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers), Wire(handlers.server) as wire:
                wire.send(call(1, "hold"))
                wire.send(call(2, "hold"))
                wire.fence()
                wire.input.write(json.dumps(call(3, "hold")).encode())
                wire.input.close()  # the last line needs no newline
                handlers.await_start()
                handlers.go.set()
            self.assertEqual(ids_of(unread(wire)), [1, 2, 3])

    def test_notifications_are_handled_in_order_also_those_before_the_end(self):
        self.drain(SECONDS)
        server, seen = echo_server(), []

        @server.method("acme/count")
        def count(params):
            time.sleep(0.001)
            seen.append(params["count"])

        with no_thread_left(), Wire(server) as wire:
            for number in range(20):
                wire.send(notify("acme/count", count=number))
        self.assertEqual(seen, list(range(20)))

    def test_a_handler_that_is_stuck_is_cancelled_and_left_at_the_end(self):
        self.drain(0.02)
        rows = itertools.product(({"max_workers": 1}, {}), ("hold", "wait"))
        for options, tool in [*rows, ({"threaded": False}, "wait")]:
            handlers = Handlers(**options)
            with self.subTest(options, tool=tool), no_thread_left():
                with Wire(handlers.server) as wire:
                    wire.send(call(1, tool))
                    ctx = handlers.await_start()
                self.assertTrue(ctx.cancelled)
                handlers.go.set()
            self.assertEqual(unread(wire), [])

    def test_a_client_that_stops_reading_does_not_stop_the_reading(self):
        wait, ping, count = call(1, "wait"), request(2, "ping"), call(2, "count")
        for workers, first, last in [(2, wait, ping), (2, wait, count), (2, ping, wait),
                                     (64, wait, count), (64, count, wait)]:
            handlers = Handlers(max_workers=workers)
            with self.subTest(workers, first=first), self.fragile(handlers) as wire:
                wire.output.room.clear()
                wire.send(first)
                if first is not wait:
                    wire.output.tried.wait()
                wire.send(last)
                wire.output.tried.wait()
                handlers.await_start()
                for id in range(100, 200):
                    wire.send(request(id, "ping"))
                wire.send(cancel(1))
                handlers.ended.wait()
                wire.output.room.set()
                wire.expect(answered(2))

    def test_a_stream_that_fails_ends_the_session(self):
        self.drain(0.02)
        for error, end in itertools.product(
                (BrokenPipeError(), ValueError("closed"), RuntimeError("odd")),
                ("input", "output")):
            handlers = Handlers()
            with self.subTest(error, end=end), captured_stderr(), no_thread_left():
                with self.fragile(handlers) as wire:
                    wire.send(call(1, "wait"))
                    handlers.await_start()
                    getattr(wire, end).error = error
                    line = json.dumps(request(2, "ping")).encode()
                    wire.input.chunks.put(line + b"\n")
                    wire.thread.join(SECONDS)
                    self.assertFalse(wire.thread.is_alive())
                    handlers.ended.wait()

    def test_whatever_a_handler_raises_or_returns_gives_exactly_one_answer(self):
        unprintable = type("Unprintable", (Exception,), {"__str__": None})
        outcomes = [
            OSError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
            RecursionError(), MemoryError(), StopIteration(), BaseException("odd"),
            unprintable(), AssertionError(), mcp_min.Cancelled(),
            float("nan"), float("-inf"), object(), {object(): 2}]

        def fail():
            if isinstance(outcome, BaseException):
                raise outcome.with_traceback(None)
            return {"value": outcome}

        rows = [call(1, "fail"), request(2, "prompts/get", name="fail"),
                request(3, "resources/read", uri="a://fail"), request(4, "acme/fail")]
        for workers in (1, 64):
            server = Server("test", max_workers=workers)
            server.tool(fail)
            server.prompt(fail)
            server.resource("a://fail")(fail)
            server.method("acme/fail")(fail)
            with captured_stderr(), no_thread_left(), Wire(server) as wire:
                for outcome, message in itertools.product(outcomes, rows):
                    with self.subTest(type(outcome), message=message):
                        got = wire.ask(message)
                        self.assertEqual(len(got), 3)  # no result beside an error
                        if "error" in got:
                            self.assertEqual(got["error"]["code"], INTERNAL_ERROR)
                        else:
                            self.assertIs(got["result"]["isError"], True)
                        if isinstance(outcome, BaseException):
                            self.assertIn(type(outcome).__name__, str(got))
                        wire.fence()


class Test4NoThreads(unittest.TestCase):
    def no_threads(self):
        error = RuntimeError("can't start new thread")
        return mock.patch.object(threading.Thread, "start", side_effect=error)

    def test_a_session_or_a_request_that_no_thread_can_run_gets_an_error_in_words(self):
        with self.no_threads(), self.assertRaisesRegex(RuntimeError, "thread"):
            echo_server().serve(io.BytesIO(), io.BytesIO())
        handlers = Handlers()
        with Wire(handlers.server) as wire, self.no_threads():
            wire.send(call(1, "hold"))
            handlers.await_start()
            wire.send(call(2, "count"))
            self.assertIn("thread", str(wire.expect(refused(INTERNAL_ERROR, 2))))
            handlers.go.set()
            wire.expect(text(1, "held"))
            answers = (wire.ask(call(2, "count")) for _ in range(10_000))
            self.assertIn(text(2, "1"), answers)  # once the job has ended, too

    def test_a_handler_that_asks_gets_its_answer_also_then(self):
        server = echo_server()

        @server.tool
        def roots(ctx: Context) -> str:
            return str(ctx.list_roots())

        with Wire(server, roots={}) as wire, self.no_threads():
            wire.send(call(1, "roots"))
            question = wire.expect({"method": "roots/list"})
            wire.send(answered(question["id"], roots=[]))
            wire.expect(text(1, "[]"))

    def test_a_client_without_threads_leaves_no_process(self):
        popen, started = subprocess.Popen, []
        with mock.patch("subprocess.Popen", lambda *argv, **options: (
                started.append(popen(*argv, **options)) or started[0])):
            with self.no_threads(), self.assertRaisesRegex(RuntimeError, "thread"):
                Client([sys.executable, "-c", "input()"]).connect()
        with started[0]:
            self.assertTrue(started[0].wait(SECONDS))


# -- 5. JSON Schema --------------------------------------------------------------------


def typed(name, **more):
    return {"type": name, **more}


def members(required=None, **properties):
    found = typed("object", properties=properties, additionalProperties=False)
    return {**found, "required": required} if required else found


NULL, TEXT = typed("null"), typed("string")
INTEGER, NUMBER = typed("integer"), typed("number")
NAMES = {"properties": {"a": TEXT}}
KEYWORDS = [  # a schema, what fits it, what does not
    (True, [None, {}], []), (False, [], [None, {}]), ({}, [None, 1, {}], []),
    (NULL, [None], [0, False, "null", []]),
    (typed("boolean"), [True, False], [0, 1, "true", None]),
    (INTEGER, [5, -5, 5.0, 10 ** 30], [5.5, True, "5", None]),
    (NUMBER, [5, 5.5], [True, "5", (1, 2), b"5", object()]),
    (TEXT, ["", "a"], [1, None, [], b"a"]), (typed("array"), [[], [1]], [{}, "[]"]),
    (typed(["object", "null"]), [{}, {"a": 1}, None], [[], "{}", 1]),
    ({"enum": [0, "a", None, [2]]}, [0, 0.0, "a", None, [2]], [False, "0", [], [3]]),
    ({"const": {"a": [1, {"b": 2}]}}, [{"a": [1.0, {"b": 2}]}], [{"a": [1]}, {}, None]),
    ({"const": None}, [None], [0, False, ""]),
    ({"minimum": 2, "maximum": 2.5}, [2, 2.5, "a"], [1.9, 3, 2.6]),
    ({"exclusiveMinimum": 2, "exclusiveMaximum": 3}, [2.1, "a"], [2, 3]),
    ({"multipleOf": 3}, [0, -3, 9.0, 3 * 10 ** 400, "a"], [1, 4.5, 10 ** 400]),
    ({"multipleOf": 0.01}, [19.99, 4.35, 1, 10 ** 400], [19.995]),
    ({"minLength": 1, "maxLength": 1.0}, ["a", "\U0001f600", 12], ["", "ab"]),
    ({"pattern": "^a|b$"}, ["ax", "xb", 1], ["xax"]),
    ({"minItems": 1, "maxItems": 1}, [[1], {}, "ab"], [[], [1, 2]]),
    ({"uniqueItems": True}, [[1, True, "1"], [[1], [True]], "aa"],
     [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
    ({"items": INTEGER}, [[], [1, 2], {}], [[1, "2"]]),
    ({"prefixItems": [INTEGER], "items": NULL}, [[], [1], [1, None]], [["a"], [1, 1]]),
    ({"contains": NULL}, [[1, None], {}], [[], [1]]),
    ({"contains": NULL, "minContains": 0, "maxContains": 1}, [[]], [[None, None]]),
    ({"contains": NULL, "minContains": 2}, [[None, 1, None]], [[None]]),
    (NAMES, [{}, {"a": "b"}, {"c": 1}, [1]], [{"a": 1}]),
    ({"required": ["a", "b"]}, [{"a": 1, "b": None}, [], "a"], [{}, {"a": 1}]),
    ({**NAMES, "additionalProperties": False}, [{"a": "b"}, {}], [{"b": 1}]),
    ({"patternProperties": {"^n": {}}, "additionalProperties": NULL},
     [{"na": 1, "a": None}], [{"a": 1}]),
    ({**NAMES, "patternProperties": {"a": {"minLength": 2}}}, [{"a": "bb"}],
     [{"a": "b"}, {"ba": "b"}]),
    ({"propertyNames": {"maxLength": 1}}, [{"a": 1}, [], "abc"], [{"ab": 1}]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}, []], [{}, {"a": 1, "b": 2}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, [{"b": 1}, ["a"]], [{"a": 1}]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
    ({"anyOf": [NULL, {"minimum": 2}]}, [None, 2, "a"], [1]),
    ({"oneOf": [INTEGER, {"minimum": 2}]}, [1, 2.5, "a"], [2, 1.5]),
    ({"not": NULL}, [1], [None]), ({"then": False, "else": False}, [1], []),
    ({"if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"minimum": 1}},
     [5, 10, 1], [6, 0]), (typed("string", format="date", title="t"), ["no date"], [1]),
    ({"properties": {"$id": NAMES, "$ref": NULL}}, [{"$ref": None}], [{"$ref": 1}]),
]
REFERENCES = [
    ({"$defs": {"a": NULL}, "items": {"$ref": "#/$defs/a"}}, [[None]], [[1]]),
    ({"prefixItems": [NULL, {"$ref": "#/prefixItems/0"}]}, [[None, None]], [[None, 1]]),
    ({"$ref": "#/definitions/a", "definitions": {
        "a": {"$ref": "#/definitions/b"}, "b": NULL}}, [None], [1]),
    ({"$id": "https://x/y", "$defs": {"a": NULL}, "allOf": [{"$ref": "#/$defs/a"}]},
     [None], [1]),
    ({"properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
     [{}, {"next": {"next": {}}}], [{"next": {"last": {}}}]),
]
UNREADABLE = [
    {"type": "text"}, {"type": 5}, {"type": ["null", 5]}, {"enum": 5}, {"minimum": "1"},
    {"uniqueItems": "yes"}, {"pattern": "("}, {"properties": []}, {"enum": "abc"},
    {"patternProperties": {"(": {}}}, {"properties": {"a": 5}}, {"items": [{}]},
    {"prefixItems": [5]}, {"allOf": 5}, {"anyOf": [5]}, {"oneOf": ["a"]}, {"not": 5},
    {"if": 5}, {"contains": 5}, {"$ref": 5}, {"propertyNames": 5}, 5, "string",
    {"additionalProperties": 5}, {"unevaluatedItems": 5}, {"unevaluatedProperties": 5},
    {"dependentRequired": []}, {"dependentRequired": {"a": 5}},
    {"dependentSchemas": [5]}, {"required": "name"},
    {"properties": {"a": typed("string", required=True)}},
    {"contains": {}, "minContains": "1"}, {"contains": {}, "maxContains": [1]},
    # Not supported.
    {"$ref": "#/x/A", "x": {"A": {}}}, {"$ref": "#/components/A", "components": {}},
    {"$ref": "#/nowhere"}, {"$ref": "#nowhere"}, {"$ref": "https://example.com/schema"},
    {"$ref": "other.json#/a"}, {"$id": "https://x/y", "$ref": "https://x/y#"},
    {"$dynamicRef": "#a"}, {"$recursiveRef": "#"},
    {"properties": {"a": {"$id": "b"}}}, {"items": {"anyOf": [{"$dynamicRef": "#a"}]}},
]
SCHEMAS = [schema for schema, *_ in KEYWORDS
           if isinstance(schema, dict) and "multipleOf" not in schema]
VALUES = [value for _, *values in KEYWORDS for value in sum(values, [])
          if type(value) in (type(None), bool, float, str, list, dict)]
LISTS = ["allOf", "anyOf", "oneOf", "prefixItems"]
SINGLE = ["not", "if", "then", "else", "items", "additionalProperties",
          "propertyNames"]


def deep_list(depth):
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


class Session(Wire):
    """A session with a server of these tools, whose names are t0, t1 …"""

    def __init__(self, *tools, date=LATEST, options=None, **settings):
        super().__init__(Server("test", max_workers=1, **settings), date)
        for number, tool in enumerate(tools):
            self.server.add_tool(tool, name=f"t{number}", **(options or {}))

    def __exit__(self, *error):
        if not error[0]:
            self.listed()  # the only worker has also logged what came before
        super().__exit__(*error)

    def result(self, number=0, **arguments):
        answer = self.ask(call(number, f"t{number}", **arguments))
        return answer.get("result", answer)

    def listed(self):
        return self.ask(request(-1, "tools/list"))["result"]["tools"]

    def schemas(self):  # of the parameter x of each tool
        return [tool["inputSchema"]["properties"]["x"] for tool in self.listed()]


def results_of(*tools, **settings):
    with captured_stderr(), Session(*tools, **settings) as wire:
        return [wire.result(number) for number in range(len(tools))]


def returning(value):
    return lambda: value


def raising(error):
    def tool():
        raise error
    return tool


# What is refused, rather than given a wrong verdict.
NOT_HERE = {"contains", "dependentSchemas", "dependentRequired", "unevaluatedItems",
            "unevaluatedProperties"}


class Test5Schema(unittest.TestCase):
    def check(self, table):
        for schema, fitting, others in table:
            if NOT_HERE & set(re.findall(r'"(\w+)"', json.dumps(schema))):
                self.assertRaises(SchemaError, validate, 1, schema)
                continue
            for number, value in enumerate(fitting + others):
                with self.subTest(schema=schema, value=value):
                    fits = validate(value, schema) == []
                    self.assertEqual(fits, number < len(fitting))

    def test_each_keyword_takes_what_fits_and_nothing_else(self):
        self.check(KEYWORDS + REFERENCES)

    @unittest.skipUnless(find_spec("jsonschema"), "jsonschema is not installed")
    def test_verdicts_are_those_of_the_package_jsonschema(self):
        from jsonschema import Draft202012Validator
        for seed in range(400):
            chance = random.Random(seed)
            one, two, three = ({**chance.choice(SCHEMAS), **chance.choice(SCHEMAS)}
                               for _ in range(3))
            one = {**one, chance.choice(SINGLE): two, chance.choice(SINGLE): three}
            schema = {"$defs": {"n": NAMES}, chance.choice(LISTS): [one, two, three]}
            value = chance.choice(VALUES)
            if NOT_HERE & set(re.findall(r'"(\w+)"', json.dumps(schema))):
                continue
            verdict = Draft202012Validator(schema).is_valid(value)
            with self.subTest(seed=seed, schema=schema, value=value):
                self.assertEqual(validate(value, schema) == [], verdict)

    def test_a_problem_says_where_what_was_expected_and_what_came(self):
        one = members(["amount"], amount={**NUMBER, "minimum": 1}, unit={"const": "kg"})
        schema = {"properties": {"orders": {"items": one}}}
        for value, expected in [
                ({"amount": "much"}, r'\.amount: .*number.*"much"'),
                ({"amount": 0}, r"\.amount: .*least 1"), ({}, r"\.amount: .*missing"),
                ({"amount": 1, "unit": "g"}, r'\.unit: .*"kg".*"g"'),
                ({"amount": 1, "price": 2}, r"\.price: .*unknown.*amount.*unit"),
                ("long" * 10 ** 5, ": .*object")]:
            [problem] = validate({"orders": [{"amount": 1}, value]}, schema)
            self.assertRegex(problem, r"^orders\[1\]" + expected)
            self.assertLess(len(problem), 200)

    def test_the_twentieth_problem_ends_a_validation(self):
        many = {str(number): number for number in range(100)}
        closed = {"additionalProperties": False}
        for value, schema in [
                (["x"] * 200_000, {"items": INTEGER}), (many, closed),
                (many, {"propertyNames": {"minLength": 3}}),
                ({}, {"required": [*many]}), (many, {"allOf": [closed] * 30}),
                ({**many, **dict.fromkeys("x%d" % number for number in range(9999))},
                 {**closed, "patternProperties": {"^x": {}}})]:
            with self.subTest([*schema]):
                found = validate(value, schema)
                self.assertEqual(len(found), 20)
                self.assertLess(len("".join(found)), 30_000)

    def test_a_check_that_would_not_end_is_a_problem(self):
        definitions = {str(number): {"anyOf": [{"$ref": f"#/$defs/{number - 1}"}] * 2}
                       for number in range(60)}
        definitions["-1"] = TEXT
        for schema in [{"$defs": definitions, "$ref": "#/$defs/59"}, {"$ref": "#"},
                       {"not": {"$ref": "#"}}, {"anyOf": [{"$ref": "#"}]}]:
            with self.subTest([*schema]):
                self.assertEqual(len(validate(5, schema)), 1)

    def test_a_large_value_is_checked_and_one_that_is_too_deep_is_a_problem(self):
        self.assertEqual(validate([1] * 200_000, {"items": {"anyOf": [INTEGER]}}), [])
        self.assertEqual(validate(deep_list(50), {"items": {"$ref": "#"}}), [])
        for schema in [{"items": {"$ref": "#"}}, {"enum": [1]}, {"uniqueItems": True}]:
            with self.subTest(schema):
                self.assertNotEqual(validate(deep_list(100_000), schema), [])

    def test_a_schema_that_cannot_be_read_is_a_SchemaError_when_decorated(self):
        for schema in UNREADABLE:
            for kind in ("input_schema", "output_schema"):
                with self.subTest(schema, kind=kind), self.assertRaises(SchemaError):
                    Session(lambda: "", options={kind: schema})

    def test_a_given_input_schema_is_listed_as_it_is_and_applied(self):
        with Session(lambda: "", options={"input_schema": {}}) as wire:
            self.assertEqual(wire.listed()[0]["inputSchema"], {"type": "object"})
        schema = {"type": "object", "properties": {"when": TEXT, "n": INTEGER},
                  "minProperties": 1, "x-mine": True}
        with Session(lambda **values: values, options={"input_schema": schema}) as wire:
            self.assertEqual(wire.listed()[0]["inputSchema"], schema)
            for sent, data in [({"when": "now", "more": [2]},) * 2,
                               ({"n": "1"}, {"n": 1}), ({"n": "a"}, None), ({}, None)]:
                result = wire.result(**sent)
                self.assertEqual(result.get("structuredContent"), data)
                self.assertEqual(result["isError"], data is None)

    def test_a_result_fits_the_given_output_schema_or_is_an_error(self):
        for schema, fitting, others in [
                (members(["n"], n=INTEGER), [{"n": 1}],
                 [{"n": "1"}, {}, None, "text", ToolResult("no data")]),
                (typed("array", items=INTEGER), [[1, 2]], [["1"]]),
                (TEXT, ["text"], []), (typed(["integer", "null"]), [5, None], []),
                ({"enum": [1, 2]}, [2], []),
                ({"anyOf": [typed("object"), typed("array")]}, [{"a": 1}, [1]], [])]:
            tools = [returning(value) for value in fitting + others]
            with self.subTest(schema), captured_stderr(), Session(
                    *tools, options={"output_schema": schema}) as wire:
                listed = wire.listed()[0]["outputSchema"]
                self.assertEqual(listed["type"], "object")
                # What is no object goes wrapped, and marked as FastMCP marks it.
                is_marked = "x-fastmcp-wrap-result" in listed
                for number, value in enumerate(fitting):
                    result = wire.result(number)
                    self.assertIs(result["isError"], False)
                    data, meta = result["structuredContent"], result.get("_meta")
                    self.assertEqual(data, {"result": value} if is_marked else value)
                    self.assertEqual(validate(data, listed), [])
                    self.assertEqual(ToolResult("", data, meta=meta).data, value)
                for number in range(len(fitting), len(tools)):
                    result = wire.result(number)
                    self.assertIs(result["isError"], True)
                    self.assertNotIn("structuredContent", result)


# -- 6. Content ------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str = "r"


Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})
Level = enum.IntEnum("Level", "LOW HIGH")
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
DAY, HOUR, ID = datetime.date(2024, 5, 1), datetime.time(12, 30), uuid.UUID(int=5)
PNG = {"type": "image", "data": "AAE=", "mimeType": "image/png"}
CIRCULAR: List[Any] = []
CIRCULAR.append(CIRCULAR)
CONSTRUCTED = [
    (Text("a", meta={"k": 1}), {"type": "text", "text": "a", "_meta": {"k": 1}}),
    (Image(data=b"\0\1"), PNG), (Audio(data=b"\0\1"), {
        "type": "audio", "data": "AAE=", "mimeType": "audio/wav"}),
    (ResourceLink("a://b", "b", mime_type="text/plain"),
     {"type": "resource_link", "uri": "a://b", "name": "b", "mimeType": "text/plain"}),
    (EmbeddedResource("a://b", "t", annotations={"priority": 1}),
     {"type": "resource", "resource": {"uri": "a://b", "text": "t"},
      "annotations": {"priority": 1}}),
    (ResourceContents("a://b", data=b"\0\1"), {"uri": "a://b", "blob": "AAE="}),
    (Message("user", "a"), {"role": "user", "content": {"type": "text", "text": "a"}}),
    (Message("assistant", Image(data=b"\0\1")), {"role": "assistant", "content": PNG}),
    (ToolResult(["a", Image(data=b"\0\1")], {"n": 1}, is_error=True, meta={"k": 1}),
     {"content": [{"type": "text", "text": "a"}, PNG], "isError": True,
      "structuredContent": {"n": 1}, "_meta": {"k": 1}}),
]
CONTENT = [  # what a tool returns, and its content; there is nothing else
    ("", [Text("")]), (None, []), ("l\u2028\0\ud800", [Text("l\u2028\0\ud800")]),
    (Text("a"), [Text("a")]), (ToolResult("a"), [Text("a")]),
    (["a", Text("b"), {"n": 1}], [Text("a"), Text("b"), Text('{"n": 1}')]),
    ((Image(data=b"\0\1"),), [PNG]),
]
DATA = [  # what a tool returns, and its data as JSON
    (5, 5), (1.5, 1.5), (True, True), ([1, "a", None], [1, "a", None]), ((1,), [1]),
    ({}, {}), ({"type": "text", "text": "no block"},) * 2, ({"lone": "\ud800"},) * 2,
    ({"isError": 1},) * 2,
    ([{"type": "text", "text": "no block"}],) * 2, ({3, 1, 2}, [1, 2, 3]),
    (frozenset("ba"), ["a", "b"]), ([Point(1)], [{"x": 1, "y": 0.0}]),
    (Pair(1), {"left": 1, "right": "r"}), (Color.RED, "red"), (Level.HIGH, 2),
    ({1: 2}, {"1": 2}), ({Color.RED: Color.BLUE}, {"red": "blue"}),
    (NOON, "2024-05-01T12:00:00+00:00"), (DAY, "2024-05-01"), (HOUR, "12:30:00"),
    (Decimal("1.10"), "1.10"),
    (ID, str(ID)), (Path("a", "b"), str(Path("a", "b"))), (b"\0\1", "AAE="),
]
NO_JSON = [float("nan"), float("inf"), {"deep": [float("-inf")]}, object(), CIRCULAR,
           deep_list(5000), {object(): 1}, 1j, iter("a")]
if hasattr(sys, "get_int_max_str_digits"):
    NO_JSON.append(10 ** 5000)
RAISED = [  # what a tool raises, and its text for the model
    (ToolError("no city"), "no city"), (ValueError("bad"), "ValueError: bad"),
    (KeyError("k"), "KeyError: 'k'"), (OSError(), "OSError"),
    (SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt(), "KeyboardInterrupt"),
]


class Test6Content(unittest.TestCase):
    def test_content_is_a_dict_of_the_protocol(self):
        for made, expected in CONSTRUCTED:
            with self.subTest(made):
                self.assertEqual(json.loads(json.dumps(made)), expected)
        for make in [Image, lambda: Text("a", mime="x"), lambda: ResourceContents("b"),
                     lambda: ResourceContents("a://b", "a", data=b"a")]:
            self.assertRaises(TypeError, make)

    def test_an_image_or_sound_is_read_from_a_file_and_its_name_tells_the_type(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind, name, mime_type in [
                    (Image, "a.png", "image/png"), (Image, "a.JPG", "image/jpeg"),
                    (Image, "a.svg", "image/svg+xml"), (Audio, "a.mp3", "audio/mpeg")]:
                Path(folder, name).write_bytes(b"\0\1")
                block = kind(Path(folder, name))
                self.assertEqual((block.data, block.mime_type), ("AAE=", mime_type))

    def test_a_field_is_an_attribute_none_if_absent_and_a_typo_an_AttributeError(self):
        block = Text("a", annotations={"audience": ["user"]})
        embedded = EmbeddedResource("a://b", data=b"\0\1")
        result = ToolResult(["a", "b"], {"n": 1})
        for value, path, expected in [
                (block, "type", "text"), (block, "meta", None),
                (block, "mime_type", None), (block, "annotations.audience", ["user"]),
                (block, "annotations.last_modified", None),
                (embedded, "resource.data", b"\0\1"), (embedded, "resource.text", None),
                (result, "data", {"n": 1}), (result, "text", "a\nb"),
                (result.content[1], "text", "b"), (ToolResult(), "data", None),
                (ToolResult(), "structured_content", None),
                (Message("user", "a"), "content.text", "a")]:
            with self.subTest(path):
                self.assertEqual(operator.attrgetter(path)(value), expected)
        for value in (block, block.annotations, result, embedded.resource):
            for name in ("txet", "is_eror", "structured_contents", "_private"):
                self.assertFalse(hasattr(value, name), name)

    def test_texts_and_blocks_are_content_as_they_are(self):
        results = results_of(*[returning(value) for value, _ in CONTENT])
        for (value, content), result in zip(CONTENT, results):
            with self.subTest(value):
                self.assertEqual(result, {"content": content, "isError": False})

    def test_anything_else_is_a_json_text_and_structured_content(self):
        results = results_of(*[returning(value) for value, _ in DATA])
        for (value, data), result in zip(DATA, results):
            with self.subTest(value):
                [block] = result["content"]
                self.assertEqual(json.loads(block["text"]), data)
                self.assertIs(result["isError"], False)
                if not isinstance(data, dict):  # so that FastMCP's clients unwrap it
                    self.assertIs(result["_meta"]["fastmcp"]["wrap_result"], True)
                    data = {"result": data}
                self.assertEqual(result["structuredContent"], data)

    def test_what_has_no_json_form_is_an_error_of_the_tool(self):
        for value, result in zip(NO_JSON, results_of(*map(returning, NO_JSON))):
            with self.subTest(type(value)):
                self.assertIs(result["isError"], True)

    def test_exceptions_of_a_tool_are_texts_for_the_model(self):
        results = results_of(*[raising(error) for error, _ in RAISED])
        for (error, text), result in zip(RAISED, results):
            with self.subTest(error):
                self.assertEqual(result, {"content": [Text(text)], "isError": True})

    @unittest.skipIf(sys.version_info < (3, 11), "no ExceptionGroup")
    def test_a_group_of_exceptions_is_told_by_its_leaves(self):
        inner = ExceptionGroup("inner", [ValueError("a"), KeyError("b")])
        group = ExceptionGroup("outer", [OSError("silent"), inner])
        [result] = results_of(raising(group))
        text = result["content"][0]["text"]
        self.assertRegex(text, "OSError: silent.*ValueError: a.*KeyError: 'b'")
        self.assertNotIn("Group", text)
        [result] = results_of(raising(ExceptionGroup("g", [ToolError("no luck")])))
        self.assertEqual(result["content"], [Text("no luck")])

    def test_a_traceback_goes_to_stderr_and_not_to_the_client(self):
        wire = Session(raising(ValueError("bad")))
        wire.server.add_resource("a://b", raising(ValueError("worse")), name="b")
        with captured_stderr() as stderr, wire:
            self.assertEqual(wire.result()["content"], [Text("ValueError: bad")])
            answer = wire.ask(request(2, "resources/read", uri="a://b"))
        self.assertEqual(answer["error"],
                         {"code": -32603, "message": "ValueError: worse"})
        self.assertEqual(stderr.getvalue().count("Traceback"), 2)

    def test_mask_errors_hides_unexpected_exceptions_and_nothing_else(self):
        secret, told, failed = results_of(
            raising(ValueError("/etc/secret")), raising(ToolError("told")),
            raising(McpError(-5, "m", {"a": 1})), mask_errors=True)
        self.assertIs(secret["isError"], True)
        self.assertNotRegex(str(secret), "secret|ValueError")
        self.assertEqual(told["content"], [Text("told")])
        self.assertTrue(matches({"message": "m", "data": {"a": 1}}, failed["error"]))


# -- 7. Signatures ---------------------------------------------------------------------

Required = getattr(typing, "Required", None)
NotRequired = getattr(typing, "NotRequired", None)


class Marked(TypedDict, total=False):
    a: Required[int]
    b: NotRequired[int]


@dataclass
class Goods:
    amount: int
    note: Optional[str] = None
    tags: List[str] = field(default_factory=list)
    total: int = field(init=False, default=7)
    kind: ClassVar[str] = "order"


@dataclass
class Limited:
    a: int = Field(ge=1)
    b: int = Field(9, le=10)
    seed: InitVar[int] = 0


Tree = TypedDict("Tree", {"children": "List[Tree]"})


@dataclass
class Adder:
    step: int

    def __call__(self, n: int) -> int:
        return n + self.step


def greet(who: str, greeting: str = "hi", *, end: str = ".") -> str:
    return f"{greeting} {who}{end}"


@functools.wraps(greet)
def decorated(*args, **kwargs):
    return greet(*args, **kwargs).upper()


def of(text_format):
    return {**TEXT, "format": text_format}


ANYTHINGS, INTEGERS = typed("array", items={}), typed("array", items=INTEGER)
UNIQUE = {**INTEGERS, "uniqueItems": True}
TEXTS, COLOR = typed("array", items=TEXT), typed("string", enum=["red", "blue"])
FREE = typed("object", additionalProperties=True)
POINT = members(["x"], x=INTEGER, y={**NUMBER, "default": 0.0})
PAIR = members(["left"], left=INTEGER, right={**TEXT, "default": "r"})
GOODS = members(["amount"], amount=INTEGER, note=TEXT, tags=TEXTS)
TWO_ITEMS = typed("array", minItems=2, maxItems=2)
HINTS = [  # a hint, its schema, a value on the wire, what arrives
    (str, TEXT, "5", "5"), (int, INTEGER, 5.0, 5), (float, NUMBER, 5, 5.0),
    (bool, typed("boolean"), True, True), (None, NULL, None, None), (Any, {}, [1], [1]),
    (list, ANYTHINGS, [1, "a"], [1, "a"]), (List[int], INTEGERS, [1.0], [1]),
    (tuple, ANYTHINGS, [1], (1,)), (Tuple[int, ...], INTEGERS, [1, 2], (1, 2)),
    (Tuple[int, str], {**TWO_ITEMS, "prefixItems": [INTEGER, TEXT], "items": {
        "anyOf": [INTEGER, TEXT]}}, [1, "a"], (1, "a")), (Tuple[float, float], {
            **TWO_ITEMS, "prefixItems": [NUMBER, NUMBER], "items": NUMBER},
     [1, 2], (1.0, 2.0)),
    (set, {**ANYTHINGS, "uniqueItems": True}, [1], {1}), (Set[int], UNIQUE, [1], {1}),
    (FrozenSet[int], UNIQUE, [1], frozenset([1])), (abc.Iterable, ANYTHINGS, [1], [1]),
    (typing.Sequence[int], INTEGERS, [1], [1]), (dict, FREE, {"a": 1}, {"a": 1}),
    (typing.AbstractSet[int], UNIQUE, [1], {1}), (abc.Mapping, FREE, {}, {}),
    (Dict[str, float], typed("object", additionalProperties=NUMBER), {"a": 1},
     {"a": 1.0}),
    (Optional[int], {"anyOf": [INTEGER, NULL]}, None, None),
    (Union[int, str], {"anyOf": [INTEGER, TEXT]}, "5", "5"),
    (Union[Point, Pair], {"anyOf": [POINT, PAIR]}, {"left": 1}, Pair(1)),
    (Literal["a", "b"], typed("string", enum=["a", "b"]), "b", "b"),
    (Literal[1, "a", None], {"enum": [1, "a", None]}, None, None),
    (Color, COLOR, "red", Color.RED), (Pair, PAIR, {"left": 1}, Pair(1)),
    (Level, typed("integer", enum=[1, 2]), 2, Level.HIGH),
    (Point, POINT, {"x": 1, "y": 2}, Point(1, 2.0)),
    (Goods, GOODS, {"amount": 1}, Goods(1)),
    (datetime.datetime, of("date-time"), "2024-05-01T12:00:00Z", NOON),
    (datetime.date, of("date"), "2024-05-01", DAY), (Path, TEXT, "a", Path("a")),
    (datetime.time, of("time"), "12:30", HOUR), (uuid.UUID, of("uuid"), str(ID), ID),
    (Decimal, {"type": ["string", "number"],
                       "pattern": "^[-+0-9.]+([eE].{1,4})?$"}, 1.1, Decimal("1.1")),
    (bytes, typed("string", contentEncoding="base64"), "AAE=", b"\0\1"),
    (Annotated[int, "how many"], typed("integer", description="how many"), 1, 1),
    (List[Annotated[int, Field(ge=1), {"multipleOf": 2}]], typed("array", items=typed(
        "integer", minimum=1, multipleOf=2)), [2], [2]),
]
if sys.version_info >= (3, 10):
    HINTS.append(("int | None", {"anyOf": [INTEGER, NULL]}, None, None))
if sys.version_info >= (3, 11):  # before, these hints cannot be texts
    HINTS += [
        (Marked, members(["a"], a=INTEGER, b=INTEGER), {"a": 1}, {"a": 1}),
        (Limited, members(["a"], a={**INTEGER, "minimum": 1}, b={
            **INTEGER, "maximum": 10, "default": 9}), {"a": 1}, Limited(1, 9))]
FIELDS = [  # a hint, what Field gets, and what that adds to the schema
    (int, dict(description="d", title="t", examples=[1], ge=1, gt=0, le=8, lt=9,
               multiple_of=2),
     dict(description="d", title="t", examples=[1], minimum=1, exclusiveMinimum=0,
          maximum=8, exclusiveMaximum=9, multipleOf=2)),
    (str, dict(min_length=0, max_length=2, pattern="^a"),
     dict(minLength=0, maxLength=2, pattern="^a")),
    (List[int], dict(min_length=1, max_length=2), dict(minItems=1, maxItems=2)),
    (dict, dict(min_length=1), dict(minProperties=1)),
    (str, dict(json_schema={"format": "email"}), dict(format="email")),
]
BAD = object()
DEFAULTS = [  # a hint, a default, what is sent, what arrives
    (int, 5, None, 5), (List[int], (), None, ()), (Color, Color.RED, None, Color.RED),
    (Optional[str], None, None, None), (Optional[str], None, "null", "null"),
    (Annotated[Optional[int], "n"], None, None, None), (int, Field(5, ge=1), None, 5),
    (int, Field(5, ge=1), 0, BAD), (int, 5, "x", BAD), (Optional[int], None, "x", BAD),
    (Optional[int], None, "null", None), (int, 5, "null", 5),
    (Goods, None, {"amount": 1, "note": None, "tags": None}, Goods(1)),
    (List[Point], None, [{"x": 1, "y": None}], [Point(1)]),
    (dict, {"a": BAD}, None, {"a": BAD}),  # which has no JSON form; nor has inf
    (float, float("inf"), None, float("inf")),
]
LENIENT = [  # a hint, what is sent, what arrives
    (int, "5", 5), (int, "-3", -3), (int, " 5", 5), (int, "5.0", 5),
    (int, 5.5, BAD), (int, True, BAD), (int, "", BAD), (int, "1_000", BAD),
    (int, "\u0665", BAD), (int, None, BAD), (int, [5], BAD), (float, "5.5", 5.5),
    (float, "5", 5.0), (float, "NaN", BAD), (float, "1e999", BAD), (bool, "true", True),
    (bool, "True", BAD), (bool, 1, BAD), (List[int], "[1, 2]", [1, 2]),
    (List[int], ["1", 2], [1, 2]), (List[int], "1", BAD), (List[int], "[1", BAD),
    (List[int], ["1"] * 50, [1] * 50),
    (Dict[str, int], '{"a": 1}', {"a": 1}), (Point, '{"x": 1}', Point(1)),
    (Point, {"x": "1"}, Point(1)), (str, '["a"]', '["a"]'), (str, 5, BAD),
    (str, None, BAD), (Union[int, str], "5", "5"), (Optional[int], "5", 5),
    (Union[List[str], str], '["a"]', '["a"]'), (Any, "5", "5"), (Level, "2", Level(2)),
    # Each part of a union is tried, with what is made of the value.
    (Union[datetime.date, str], "hello", "hello"),
    (Union[datetime.date, str], "2024-05-01", DAY), (datetime.date, "tomorrow", BAD),
    (Union[uuid.UUID, datetime.date, int], "2024-05-01", DAY), (bytes, "?", BAD),
    (Union[Color, int, None], "green", BAD), (Decimal, "NaN", BAD),
    (Decimal, "1e99999", BAD), (Decimal, "-1.5E+3", Decimal(-1500)),
    (Annotated[Decimal, Field(ge=0)], "-5", BAD),
    (Annotated[Optional[Decimal], Field(ge=0)], "-5", BAD),
    (Annotated[Decimal, Field(ge=0)], "5.1", Decimal("5.1")),
    (Set[int], [1, 1], BAD), (Tuple[int, str], [1], BAD), (Point, {}, BAD),
    (Point, {"x": 1, "z": 2}, BAD),
]
NO_SCHEMA = [  # a hint, and a default
    (Wire,), (List[Wire],), (Optional[Wire],), (Dict[int, str],), (Tree,), (complex,),
    (typing.Callable[[], int],), (Literal[b"a"],), (int, Field(min_length=1)),
]
Page = dataclasses.make_dataclass("Page", [("next", str, None)], **(
    {} if sys.version_info < (3, 10) else {"slots": True}))
OUTPUTS = [  # a return hint, what is returned, and the outputSchema
    (Goods, Goods(1), members(["amount", "note", "tags", "total"], amount=INTEGER,
                              note={"anyOf": [TEXT, NULL]}, tags=TEXTS, total=INTEGER)),
    (Pair, Pair(1), members(["left", "right"], left=INTEGER, right=TEXT)),
    (str, "a", None), (None, None, None), (Any, 5, None), (Text, Text("a"), None),
    (Dict[str, int], {"a": 1}, typed("object", additionalProperties=INTEGER)),
    (List[Text], [Text("a")], None), (list, [Text("a")], None),
    (ToolResult, ToolResult("a"), None), (Union[str, Image], "a", None),
    (list[Union[Text, Image]], [Text("a")], None), (list[Image], [], None),
    (Optional[list[Text]], [Text("a")], None),
    (Annotated[list[Text], "texts"], [Text("a")], None),
    (Union[str, list[Text]], [Text("a")], None),
    (Page, Page(), members(["next"], next={"anyOf": [TEXT, NULL]})),
]
OUTPUTS += [(hint, value, {
    **typed("object", properties={"result": schema}, required=["result"]),
    "x-fastmcp-wrap-result": True}) for hint, value, schema in [
        (int, 5, INTEGER), (Set[int], {1}, UNIQUE), (Color, Color.RED, COLOR),
        (datetime.date, DAY, of("date")), (datetime.time, datetime.time(), TEXT),
        (Optional[int], None, {"anyOf": [INTEGER, NULL]})]]


def taking(hint, *default, returned=None, hint_of_result=Any):
    """A function with a parameter x, and a list of what arrives there."""
    def tool(x):
        received.append(x)
        return returned

    received = []
    tool.__annotations__ = {"x": hint, "return": hint_of_result}
    tool.__defaults__ = default
    return tool, received


class Test7Signatures(unittest.TestCase):
    def arrives(self, table):
        """Check what arrives for a value, or that it is refused."""
        for hint, *default, sent, expected in table:
            tool, received = taking(hint, *default)
            wanted = [] if expected is BAD else [expected]
            with self.subTest(hint=hint, sent=sent), Session(tool) as wire:
                result = wire.result(x=sent)
                self.assertEqual(result["isError"], expected is BAD, result)
                self.assertEqual(received, wanted)
                self.assertEqual([*map(type, received)], [*map(type, wanted)])
                if expected is BAD:
                    self.assertIn("\nx", result["content"][0]["text"])

    def test_each_hint_has_a_schema_and_its_object_arrives(self):
        with Session(*[taking(hint)[0] for hint, *_ in HINTS]) as wire:
            for (hint, expected, *_), schema in zip(HINTS, wire.schemas()):
                with self.subTest(hint):
                    self.assertEqual(schema, expected)
        self.arrives([(hint, sent, got) for hint, _, sent, got in HINTS])

    def test_arguments_are_repaired_only_where_they_do_not_fit(self):
        self.arrives(LENIENT)
        self.arrives(DEFAULTS)  # for which null is absent

    def test_a_default_is_listed_but_none_and_without_it_a_parameter_is_required(self):
        def tool(a, b: int, c=3, d: Color = Color.RED, e: Point = Point(1), *,
                 f: int = None, g: Annotated[Optional[int], "n"] = None):
            pass

        with Session(tool) as wire:
            schema = wire.listed()[0]["inputSchema"]
        self.assertEqual(schema, members(
            ["a", "b"], a={}, b=INTEGER, c={"default": 3}, f=INTEGER,
            d={**COLOR, "default": "red"}, g={**INTEGER, "description": "n"},
            e={**POINT, "default": {"x": 1, "y": 0.0}}))

    def test_field_describes_a_parameter_in_annotated_or_as_its_default(self):
        for hint, keywords, added in FIELDS:
            with self.subTest(keywords), Session(
                    taking(hint)[0], taking(Annotated[hint, Field(**keywords)])[0],
                    taking(hint, Field(**keywords))[0]) as wire:
                bare, *schemas = wire.schemas()
                self.assertEqual(schemas, [{**bare, **added}] * 2)
                for tool in wire.listed():
                    self.assertEqual(tool["inputSchema"]["required"], ["x"])

        with self.assertRaisesRegex(TypeError, "alias"):
            Field(alias="from")

    def test_what_has_no_schema_is_a_TypeError_that_names_the_parameter(self):
        for hint, *default in NO_SCHEMA:
            tool, _ = taking(hint, *default)
            with self.subTest(hint), self.assertRaisesRegex(TypeError, "x:"):
                Session(tool)
        with self.assertRaisesRegex(NameError, "Nowhere"):
            Session(taking("Nowhere")[0])

    def test_a_return_hint_is_the_output_schema_and_results_fit_it(self):
        for hint, value, schema in OUTPUTS:
            tool = taking(int, 0, returned=value, hint_of_result=hint)[0]
            with self.subTest(hint), Session(tool) as wire:
                self.assertEqual(wire.listed()[0].get("outputSchema"), schema)
                result = wire.result()
                self.assertFalse(result["isError"], result)
                if schema:
                    self.assertEqual(validate(result["structuredContent"], schema), [])
                elif isinstance(value, list):  # of blocks
                    self.assertEqual(result, {"content": value, "isError": False})

    def test_bad_arguments_are_an_error_up_to_2025_06_18_and_later_a_result(self):
        def order(order: Goods, n: int = 1):
            pass

        bad, issue = {"order": {"amount": "x"}, "m": 1}, 'must be integer, got "x"'
        for date in ("2024-11-05", "2025-03-26", "2025-06-18"):
            with self.subTest(date), Session(order, date=date) as wire:
                error = wire.result(**bad)["error"]
                self.assertIn("order.amount: " + issue, error.pop("message"))
                self.assertEqual(error, {
                    "code": -32602, "data": {"field": "order.amount", "issue": issue}})
        with Session(order) as wire:
            result = wire.result(**bad)
        self.assertIs(result["isError"], True)
        self.assertEqual(result["content"][0]["text"].splitlines()[1:], [
            "order.amount: " + issue, "m: is unknown; known are n, order"])

    def test_what_cannot_be_made_is_named_with_its_path(self):
        Trip = dataclasses.make_dataclass("Trip", [("when", Dict[str, datetime.date])])
        with Session(taking(Trip)[0]) as wire:
            result = wire.result(x={"when": {"start": "tomorrow"}})
        self.assertIn("x.when.start: ValueError", result["content"][0]["text"])

    def test_anything_that_can_be_called_by_name_is_a_tool(self):
        for tool, names, arguments, text in [
                (greet, "who greeting end", {"who": "A"}, "hi A."),
                (decorated, "who greeting end", {"who": "A"}, "HI A."),
                (functools.partial(greet, greeting="yo"), "who end",
                 {"who": "A"}, "yo A."), (Adder(1).__call__, "n", {"n": "1"}, "2"),
                (functools.partial(greet, "A"), "greeting end", {}, "hi A.")]:
            with self.subTest(tool), captured_stderr(), Session(tool) as wire:
                [listed] = wire.listed()
                self.assertEqual(" ".join(listed["inputSchema"]["properties"]), names)
                self.assertEqual(wire.result(**arguments)["content"], [Text(text)])

    def test_what_cannot_be_called_by_name_is_refused(self):
        for tool in (lambda a, /: 1, lambda *a: 1, lambda **a: 1, 5):
            with self.subTest(tool), self.assertRaises((TypeError, ValueError)):
                Session(tool)
        with self.assertRaises(ValueError):
            Server("test").tool(lambda: 1)  # which has no name


ONE, TWO = (lambda x="-": f"{x}"), (lambda x="-", y="-": f"{x} {y}")
TEMPLATES = [  # a template, a URI, what its function gets; None: the URI is unknown
    ("a://{x}/b", "a://1/b", "1"), ("a://{x}/b", "a:///b", None),
    ("a://{x}", "a://1/2", None), ("a://{x}", "a://1%2F2", "1/2"),
    ("a://{x}", "a://1?q", None), ("a://{x}.b", "a://1xb", None),
    ("a://{x}-{y}", "a://1-2", "1 2"), ("a://{x*}", "a://1/2", "1/2"),
    ("a://{+x}/{y}", "a://1/2/3", "1/2 3"), ("a://s{?x,y}", "a://s?x=1&y=2", "1 2"),
    ("a://s{?x,y}", "a://s?y=2", "- 2"), ("a://s{?x,y}", "a://s", "- -"),
    ("a://s{?x}", "a://s?z=1&x=", ""), ("a://{x}{?y}", "a://1?y=2&x=3", "1 2"),
    # Decoded once.
    ("a://s{?x}", "a://s?x=R%26D", "R&D"), ("a://s{?x}", "a://s?x=%2526", "%26"),
    ("a://{x}", "a://R%26D", "R&D"), ("a://{x}", "a://%2541", "%41"),
    ("a://{x}", "a://100%25", "100%"), ("a://{x}", "a://caf%c3%a9", "caf\xe9"),
    # A model may have made it: no way up, no absolute path.
    ("a://{x}", "a://%2e%2E", None), ("a://{+x}", "a://b%5C..%5Cc", None),
    ("a://{x*}", "a://b/..", None), ("a://s{?x}", "a://s?x=..%2Fb", None),
    ("a://{+x}", "a:///etc", None), ("a://{x}", "a://%2Fetc", None),
    ("a://{+x}", "a://%5Cetc", None), ("a://{+x}", "a://C:b", None),
    ("a://{x}", "a://[1,2]", None), ("a://{+x}", "a://" + "b" * 9000, "b" * 9000),
    ("a://{+x}", "a://b..c/.d/...", "b..c/.d/..."), ("a://{+x}", "a://./b", None),
]
BAD_TEMPLATES = [
    "a://{x", "a://{}", "a://{#x}", "a://{x:3}", "a://{/x}", "a://{{x}}", "a://{x-y}",
    "a://{&x}", "a://{1}", "a://{x,y}", "a://{?x}/b", "a://{?x}{?y}", "a://{x}/{z}"]
SPELLINGS = [  # a URI, what is asked for, that is the same
    ("docs://\xdcbersicht", "docs://%C3%9Cbersicht"), ("a://\xe9", "a://%c3%a9"),
    ("WordPress://site/posts", "wordpress://site/posts"),
    ("https://Example.com/A", "HTTPS://example.com/A"),
    ("a://%7Eb%20c", "a://~b c"), ("WordPress://{x}", "wordpress://7"),
    ("notes://shared drawer/{x}", "notes://shared%20drawer/7"),
    ("notes://shared drawer/{x}", "notes://shared drawer/7"),
    ("file:///fiches/\xe9l\xe8ve/{x}", "file:///fiches/%C3%A9l%C3%A8ve/7"),
]


def server_of(uri, fn):
    server = Server("test")
    server.add_resource(uri, fn, name="r")
    return server


def read(wire, uri):
    answer = wire.ask(request(1, "resources/read", uri=uri))
    return answer.get("error") or answer["result"]["contents"][0]["text"]


class Test7Templates(unittest.TestCase):
    def test_a_template_gives_the_values_in_a_uri_or_does_not_fit(self):
        for template, uri, expected in TEMPLATES:
            server = server_of(template, TWO if "y" in template else ONE)
            with self.subTest(template=template, uri=uri), Wire(server) as wire:
                if expected is not None:
                    self.assertEqual(read(wire, uri), expected)
                else:
                    self.assertEqual(read(wire, uri), {
                        "code": -32002, "message": f"Unknown resource {uri}",
                        "data": {"uri": uri}})

    def test_values_are_converted_by_the_hints(self):
        def numbered(n: int, color: Color = Color.RED) -> str:
            return f"{n + 1} {color.name}"

        with Wire(server_of("a://{n}{?color}", numbered)) as wire:
            for uri, expected in [
                    ("a://5", "6 RED"), ("a://5?color=blue", "6 BLUE"),
                    ("a://a", {"code": -32602, "data": {"field": "n"}}),
                    ("a://5?color=a", {"code": -32602, "data": {"field": "color"}})]:
                self.assertTrue(matches(expected, read(wire, uri)), uri)

    def test_a_template_with_bad_or_unknown_placeholders_is_refused(self):
        for template in BAD_TEMPLATES:
            with self.subTest(template), self.assertRaises((TypeError, ValueError)):
                server_of(template, TWO)
        for fn in (lambda: "", lambda y: y, lambda x, y: x):
            with self.assertRaisesRegex(TypeError, "a://{x}"):
                server_of("a://{x}", fn)

    def test_each_spelling_of_a_uri_is_read_subscribed_and_completed(self):
        for listed, uri in SPELLINGS:
            server = server_of(listed, ONE if "{" in listed else lambda: "7")
            server.completion(listed, "x")(lambda value: [value + "7"])
            with self.subTest(listed=listed, uri=uri), Wire(server) as wire:
                kind = "resources/templates/list" if "{" in listed else "resources/list"
                [[entry]] = wire.ask(request(1, kind))["result"].values()
                self.assertIn(listed, entry.values())
                self.assertEqual(read(wire, uri), "7")
                wire.ask(request(2, "resources/subscribe", uri=uri))
                own = listed.replace("{x}", "7")
                server.notify_resource_updated(own)
                wire.expect(notify("notifications/resources/updated", uri=own))
                wire.ask(request(3, "resources/unsubscribe", uri=own))
                server.notify_resource_updated(uri)
                wire.fence()
                if "{" in listed:
                    ref = {"type": "ref/resource", "uri": uri[:-1] + "{x}"}
                    answer = wire.ask(request(4, "completion/complete", ref=ref,
                                              argument={"name": "x", "value": "a"}))
                    self.assertEqual(answer["result"]["completion"]["values"], ["a7"])


OLD = "2024-11-05"
CAN_ALL = dict(elicitation={"form": {}, "url": {}}, sampling={"tools": {}}, roots={})
THREE = {key: {"method": "roots/list", "params": {}} for key in "abc"}
IMAGE = {"type": "image", "data": "eA==", "mimeType": "image/png"}
HI, HO = ({"role": role, "content": {"type": "text", "text": text}}
          for role, text in [("user", "Hi"), ("assistant", "Ho")])
ODD = {"tools": ["a"], "structuredContent": [1]}  # as results of MCP have, too
Trip = dataclasses.make_dataclass("Trip", [("city", str), ("days", int, 1)])
Order = typing.TypedDict("Order", {"item": str})
note = notify


def echo(x: str):
    return x


def add_one(n: int) -> int:
    return n + 1


def text_in(response):
    return response["result"]["content"][0]["text"]


def password(ctx: Context):
    return "password " + ctx.elicit("Password?", str).data


def serving(handler, date=LATEST, workers=64, **capabilities):
    """A Wire to a server whose only tool `run` gives handler(ctx)."""
    server = Server("test", max_workers=workers)
    server.add_resource("data://password", password)

    @server.tool
    def run(ctx: Context):
        return handler(ctx)

    return Wire(server, date, **capabilities)


def recording(handler, outcome):
    """The handler, but what it gives or raises is appended to outcome."""
    def run(ctx):
        try:
            outcome.append(handler(ctx))
        except BaseException as error:
            outcome.append(error)
    return run


def asking(handler, *answers):
    """Call handler(ctx) and answer its questions: these, and what it gave or raised."""
    questions, outcome = [], []
    with serving(recording(handler, outcome), **CAN_ALL) as wire:
        wire.send(call(1, "run"))
        for answer in answers:
            questions.append(wire.expect({"method": "..."}))
            wire.send({"jsonrpc": "2.0", "id": questions[-1]["id"], **answer})
        wire.expect({"id": 1, "result": {"isError": False}})
    return questions, outcome[0]


def elicits(schema, **options):
    return lambda ctx: ctx.elicit("Which?", schema, **options)


def gives(**result):
    return {"result": result}


def accepts(**content):
    return gives(action="accept", content=content)


class ServerCase(unittest.TestCase):
    def check(self, target, *rows, date=LATEST):
        """Rows of method, params, and the result, or the error's code and data."""
        if isinstance(target, Server):
            with Wire(target, date) as wire:
                return self.check(wire, *rows)
        for method, params, *expected in rows:
            with self.subTest(method, params=params):
                got = target.ask(request(1, method, **params))
                wanted = {"result": expected[0]}
                if isinstance(expected[0], int):
                    wanted = {"error": dict(zip(("code", "data"), expected))}
                self.assertTrue(matches(wanted, got), got)


# -- 8. Eras

class Test8Eras(ServerCase):
    def test_a_known_revision_is_echoed_and_any_other_gets_the_latest(self):
        known = [OLD, "2025-03-26", "2025-06-18", LATEST]
        for asked in [*known, "2026-07-28", "1999-01-01", "9999-99-99", ""]:
            self.check(Server("s"), ("initialize", initialize(asked)["params"], {
                "protocolVersion": asked if asked in known else LATEST}), date=None)

    def test_the_result_says_who_serves(self):
        server = Server("weather", "1.2", title="Weather", instructions="Ask away.")
        with Wire(server) as wire:
            self.assertEqual(wire.initialized["result"], {
                "protocolVersion": LATEST, "capabilities": {"logging": {}},
                "serverInfo": {"name": "weather", "version": "1.2", "title": "Weather"},
                "instructions": "Ask away."})

    def test_before_initialize_only_ping_is_served(self):
        with serving(echo, date=None) as wire:
            wire.fence()
            for method in ("tools/list", "acme/x"):
                with self.subTest(method):
                    wire.send(request(1, method))
                    got = wire.expect(refused(INVALID_REQUEST, 1))
                    self.assertIn("initialize", got["error"]["message"])

    def test_a_malformed_initialize_is_refused_and_a_later_one_suffices(self):
        good = initialize()["params"]
        self.check(
            Server("s"), ("initialize", {}, -32602, {"field": "protocolVersion"}), *[
                ("initialize", {**good, field: 42}, -32602, {"field": field})
                for field in ("protocolVersion", "capabilities", "clientInfo")],
            ("logging/setLevel", {"level": "info"}, -32600),
            ("initialize", good, {"protocolVersion": LATEST}),
            ("logging/setLevel", {"level": "info"}, {}), date=None)

    def test_a_second_initialize_is_answered_afresh_and_leaves_calls_alone(self):
        go = gate()
        with serving(lambda ctx: go.wait() or [
                ctx.protocol_version, sorted(ctx.client_capabilities)]) as wire:
            wire.send(call(1, "run"))
            again = wire.ask(initialize(OLD, {"roots": {}}))
            self.assertEqual(again["result"]["protocolVersion"], OLD)
            go.set()
            wire.expect({"id": 1, "result": {"isError": False}})
            self.check(wire, ("tools/call", {"name": "run"}, {
                "structuredContent": {"result": [OLD, ["roots"]]}}))


# -- 9. Context

class Test9Context(Case):
    def test_it_knows_the_request_and_the_session(self):
        server = Server("s", lifespan=lambda server: contextlib.nullcontext("db"))
        found = []

        @server.tool
        def look(ctx: Context):
            found.extend([
                ctx.request_id, ctx.meta, ctx.client_info.name, ctx.client_capabilities,
                ctx.protocol_version, ctx.server, ctx.lifespan_context, ctx.cancelled])

        with Wire(server, roots={"listChanged": True}) as wire:
            wire.ask(call("a", "look", meta={"traceparent": "00-1"}))
        self.assertEqual(found, ["a", {"traceparent": "00-1"}, "test", {
            "roots": {"listChanged": True}}, LATEST, server, "db", False])

    def test_a_change_is_not_told_before_initialize_is_answered(self):
        def encode(message):
            if "serverInfo" in message.get("result", {}):
                server.tool(lambda: "", name="t")
            return mcp_min.dumps(message).encode()

        server = Server("s")
        with mock.patch.object(mcp_min, "encode", encode):
            with Wire(server) as wire:  # which expects the response as the first
                wire.fence()

    def test_track_yields_and_reports_progress(self):
        with serving(lambda ctx: "".join(ctx.track("abc"))) as wire:
            wire.send(call(1, "run", meta={"progressToken": "t"}))
            for count in (1, 2, 3):
                self.assertEqual(wire.receive()["params"], {
                    "progressToken": "t", "progress": count, "total": 3})
            self.assertEqual(text_in(wire.receive()), "abc")

    def test_read_resource_runs_its_function_which_asks_questions_of_its_own(self):
        questions, found = asking(
            lambda ctx: [ctx.elicit("Name?", str).data,
                         ctx.read_resource("data://password")[0].text],
            accepts(value="Ann"), accepts(value="x"))
        self.assertEqual([question["params"]["message"] for question in questions],
                         ["Name?", "Password?"])
        self.assertEqual(found, ["Ann", "password x"])
        error = asking(lambda ctx: ctx.read_resource("data://no"))[1]
        self.assertEqual((error.code, error.data), (-32002, {"uri": "data://no"}))

    def test_ping_and_list_roots_ask_the_client(self):
        (question,), found = asking(Context.ping, gives())
        self.assertEqual((question["method"], found), ("ping", None))
        self.assertEqual(asking(Context.list_roots, gives(roots=None))[1], [])
        (question,), (root,) = asking(Context.list_roots, gives(roots=[{"uri": "x:"}]))
        self.assertEqual((question["method"], root.uri, root.name),
                         ("roots/list", "x:", None))

    def test_elicit_asks_with_a_form_and_gives_data_of_its_type(self):
        whole = {"type": "object", "properties": {"n": {"type": "integer"}}}
        for schema, fields, content, data in [
                (bool, {"value": {"type": "boolean"}}, {"value": True}, True),
                (float, {"value": {"type": "number"}}, {"value": 5}, 5.0),
                (str, {"value": {"type": "string"}}, {"value": "5"}, "5"),
                (["a", "b"], {"value": {"type": "string", "enum": ["a", "b"]}},
                 {"value": "b"}, "b"),
                (Trip, {"city": {"type": "string"}, "days": {"default": 1}},
                 {"city": "Oslo"}, Trip("Oslo", 1)),
                (Order, {"item": {"type": "string"}}, {"item": "x"}, {"item": "x"}),
                (whole, whole["properties"], {"n": 1}, {"n": 1}),
                ({"properties": {"n": INTEGER}}, {"n": INTEGER}, {"n": 1}, {"n": 1})]:
            with self.subTest(schema):
                (question,), found = asking(elicits(schema), accepts(**content))
                form = question["params"]["requestedSchema"]
                self.assertTrue(matches(fields, form["properties"]), form)
                self.assertEqual(form["type"], "object")
                self.assertLessEqual(form.keys(), {"type", "properties", "required"})
                self.assertEqual(question["params"]["message"], "Which?")
                self.assertEqual(found, ("accept", content, data))
                self.assertIs(type(found.data), type(data))

    def test_who_declines_or_cancels_is_no_error(self):
        actions = ("accept", "decline", "cancel")
        for act, yes in itertools.product(actions, (True, False)):
            found = asking(elicits(bool), gives(action=act, content={"value": yes}))[1]
            self.assertEqual((found[0], bool(found)), (act, yes and act == "accept"))

    def test_an_error_of_the_client_reaches_the_handler_and_withdraws_the_rest(self):
        error = {"code": -1, "message": "not now", "data": 5}
        with serving(lambda ctx: ctx.ask(THREE), **CAN_ALL) as wire:
            wire.send(call(1, "run"))
            first, *ids = [wire.expect({"method": "roots/list"})["id"] for _ in THREE]
            wire.send({"jsonrpc": "2.0", "id": first, "error": error})
            for id in ids:
                wire.expect(cancel(id))
            wire.expect({"id": 1, "error": error})

    def test_an_answer_that_does_not_fit_is_an_mcp_error(self):
        sure = elicits(bool)
        for ask, answer in [
                (sure, accepts(value="perhaps")), (sure, accepts()), (sure, gives()),
                (sure, gives(action="accept")), (sure, gives(action="maybe")),
                (sure, gives(action="accept", content=[True])),
                (elicits(int), accepts(value=.5)), (elicits(["a"]), accepts(value="c")),
                (elicits(Trip), accepts(days=1)),
                (elicits(Order), accepts(item="x", more=1)),
                (elicits(datetime.date), accepts(value="soon")),
                (lambda ctx: ctx.sample("Hi"), gives(role="assistant")),
                (lambda ctx: ctx.sample("Hi"), gives(role="assistant", content="text")),
                (Context.list_roots, gives()),
                (Context.list_roots, gives(roots=[{"name": "no uri"}]))]:
            with self.subTest(answer):
                error = asking(ask, answer)[1]
                self.assertIsInstance(error, McpError)
                self.assertEqual(error.code, -32602)

    def test_elicit_url_asks_to_visit_it(self):
        questions, found = asking(
            lambda ctx: [ctx.elicit_url("Log in", "https://x").action for _ in "ab"],
            gives(action="accept"), gives(action="decline"))
        self.assertEqual(found, ["accept", "decline"])
        ids = set()
        for params in (question["params"] for question in questions):
            ids.add(params.pop("elicitationId"))
            self.assertEqual(
                params, {"mode": "url", "message": "Log in", "url": "https://x"})
        self.assertEqual(len(ids), 2)

    def test_sample_takes_a_text_a_message_or_a_list(self):
        answer = gives(model="m", stopReason="endTurn", role="assistant", content=[
            {"type": "text", "text": text} for text in "ab"])
        options = {"temperature": 0.5, "metadata": {"my_key": 1}, "tools": []}
        for messages, sent in [
                ("Hi", [HI]), (Message("assistant", "Ho"), [HO]), ([HI, HO], [HI, HO]),
                (["Hi", Message("assistant", "Ho")], [HI, HO]),
                (Image(data=b"x"), [{"role": "user", "content": IMAGE}])]:
            (question,), found = asking(lambda ctx: ctx.sample(
                messages, system_prompt="Be brief", stop_sequences=["."], **options),
                answer)
            self.assertEqual(question["method"], "sampling/createMessage")
            self.assertEqual(question["params"], {
                "messages": sent, "maxTokens": 512, "systemPrompt": "Be brief",
                "stopSequences": ["."], **options})
            self.assertEqual((found.text, found.stop_reason), ("a\nb", "endTurn"))

    def test_several_questions_are_asked_at_once(self):
        answers = {key: {"roots": [{"uri": key}]} for key in THREE}
        found = asking(lambda ctx: ctx.ask(THREE), *[
            gives(**answer) for answer in answers.values()])[1]
        self.assertEqual(found, answers)

    def test_what_the_client_does_not_declare_is_not_asked(self):
        mixed = {**THREE, "d": {"method": "sampling/createMessage", "params": {}}}
        for ask, capabilities, word in [
                (elicits(bool), {}, "elicitation"),
                (elicits(bool), {"elicitation": {"url": {}}}, "elicitation"),
                (lambda ctx: ctx.elicit_url("Log in", "https://x"), {"elicitation": {}},
                 "elicitation.url"),
                (lambda ctx: ctx.sample("Hi"), {"roots": {}}, "sampling"),
                (lambda ctx: ctx.sample("Hi", tools=[]), {"sampling": {}}, "tools"),
                (Context.list_roots, {"roots": None}, "roots"),
                (lambda ctx: ctx.ask(mixed), {"roots": {}}, "sampling")]:
            with self.subTest(word, declared=capabilities), \
                    serving(ask, **capabilities) as wire:
                wire.send(call(1, "run"))
                got = wire.expect({"id": 1, "error": {}})
                self.assertIn(word, got["error"]["message"])

    def test_a_question_that_takes_too_long_is_withdrawn(self):
        seen = []
        ask = recording(elicits(bool, timeout=0.01), seen)
        with serving(ask, **CAN_ALL) as wire:
            wire.send(call(1, "run"))
            id = wire.expect({"method": "elicitation/create"})["id"]
            wire.expect(cancel(id))
            wire.expect({"id": 1, "result": {}})
            wire.send({"jsonrpc": "2.0", "id": id, **accepts(value=True)})
            wire.fence()
        self.assertIsInstance(seen[0], mcp_min.RequestTimeout)

    def test_a_question_ends_when_the_client_hangs_up(self):
        self.drain(2 * SECONDS)
        for workers in (1, 64):
            seen = []
            ask = recording(elicits(bool), seen)
            wire = serving(lambda ctx: [ask(ctx), ask(ctx)], workers=workers, **CAN_ALL)
            with self.subTest(workers), captured_stderr() as stderr, wire:
                wire.send(call(1, "run"))
                wire.expect({"method": "elicitation/create"})  # and is never answered
            self.assertEqual([type(error) for error in seen], [Cancelled] * 2)
            self.assertEqual(stderr.getvalue(), "")

    def cancel_in(self, wait, sent=0):
        """Cancel a call in wait(ctx), which has asked so much: all is withdrawn."""
        ended, seen = gate(), []

        def run(ctx):
            ctx.notify("acme/begun")
            recording(wait, seen)(ctx)
            ended.set()

        with serving(run, **CAN_ALL) as wire:
            wire.send(call(1, "run", meta={"progressToken": 1}))
            wire.expect({"method": "acme/begun"})
            questions = [wire.expect({"method": "..."})["id"] for _ in range(sent)]
            wire.send(cancel(1))
            ended.wait()
            withdrawn = [wire.expect({"method": "notifications/cancelled"})["params"][
                "requestId"] for _ in range(sent)]
            wire.fence()
        self.assertIsInstance(seen[0], Cancelled)
        self.assertEqual(sorted(withdrawn), questions)

    def test_what_waits_ends_and_questions_are_withdrawn(self):
        def spin(ctx):
            while True:
                ctx.check_cancelled()

        for wait, count in [
                (spin, 0), (lambda ctx: ctx.wait(2 * SECONDS), 0), (elicits(bool), 1),
                (lambda ctx: ctx.sample("Hi"), 1), (Context.list_roots, 1),
                (lambda ctx: ctx.ask(THREE), 3), (lambda ctx: ctx.ping(timeout=5), 1)]:
            self.cancel_in(wait, count)

    def test_once_cancelled_every_method_raises(self):
        acts = {
            "report_progress": [1], "track": ["abc"], "log": ["info", "x"],
            "debug": ["x"], "elicit": ["Sure?", bool], "elicit_url": ["Log in", "x:"],
            "sample": ["Hi"], "list_roots": [], "ask": [{}],
            "read_resource": ["data://password"], "wait": [9e9], "notify": ["acme/x"],
            "ping": [], "check_cancelled": []}
        raised = []

        def run(ctx):
            with contextlib.suppress(Cancelled):
                ctx.wait(2 * SECONDS)
            for name, arguments in acts.items():
                try:
                    list(getattr(ctx, name)(*arguments) or ())
                except Cancelled:
                    raised.append(name)
            raised.append(ctx.cancelled)
            raise Cancelled

        self.cancel_in(run)
        self.assertEqual(raised, [*acts, True])


# -- 10. stdin and stdout

PROGRAM = """
import contextlib, os, types, warnings
from mcp_min import Context, Server, stdio_server

tidy = types.SimpleNamespace(close=lambda: sys.stderr.write("tidy"))
server = Server("s", max_workers=workers,
                lifespan=lambda server: contextlib.closing(tidy))
go, held = threading.Event(), threading.Event()
server.method("acme/go")(lambda params: go.set())

def noisy():
    import subprocess
    print("from print", flush=True)
    os.write(1, b"from os.write\\n")
    read = "import sys; print('from a child'); sys.exit(len(sys.stdin.read()))"
    child = subprocess.run([sys.executable, "-c", read])
    null = os.stat(os.devnull).st_rdev
    return [child.returncode, sys.stdin.read(), os.fstat(0).st_rdev == null]

def wait_for_go(n: int) -> int:
    go.wait(60)
    return n

def wait(seconds: float, ctx: Context):
    ctx.info("hold")
    ctx.wait(seconds)
    if seconds:
        raise ValueError("x")

def fork() -> int:
    warnings.simplefilter("ignore")
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(5)
        sys.exit(3)
    status = os.waitpid(child, 0)[1]
    go.set()
    return status

list(map(server.add_tool, [noisy, wait_for_go, wait, fork]))
"""

SERVE_TWICE = """
stdin = os.fstat(0)
sys.stdout.write("from before\\n")
server.run()
print("between", os.path.samestat(os.fstat(0), stdin), flush=True)
reader, writer = os.pipe()
os.write(writer, b'{"jsonrpc":"2.0","id":7,"method":"ping"}\\n')
os.close(writer)
os.dup2(reader, 0)
thread = threading.Thread(target=server.run)
thread.start()
thread.join()
"""

SERVE_HELD = """
def write(data):
    if b'"hold"' in bytes(data):
        held.set()
        go.wait(60)
    return writer.write(data)

with stdio_server() as (reader, writer):
    server.serve(reader, types.SimpleNamespace(write=write, flush=list))
"""


def python(code):
    code = f"import signal, sys, threading\nsys.path.insert(0, sys.argv[1])\n{code}"
    return [sys.executable, "-I", "-S", "-W", "error", "-c", code, str(HERE)]


def program(main="server.run()", workers=64):
    return python(f"workers = {workers}\n{PROGRAM}\n{main}")


class Test10Stdio(unittest.TestCase):
    def run_program(self, argv, *messages, is_file=False, stderr=b"tidy"):
        """Its lines, and the responses by their ids, of which none came twice."""
        with tempfile.TemporaryFile() as file:
            for message in (initialize(), *messages) if messages else ():
                file.write(json.dumps(message).encode() + b"\n")
            file.seek(0)
            stdin = {"stdin": file} if is_file else {"input": file.read()}
            done = subprocess.run(argv, capture_output=True, timeout=SECONDS, **stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, b"^" + stderr + b"$")
        lines = done.stdout.splitlines()
        answers = [json.loads(line) for line in lines if b'"id"' in line]
        by_id = {got["id"]: got for got in answers if "result" in got}
        self.assertEqual(len(by_id), len(answers))
        return lines, by_id

    def test_what_is_printed_stays_off_the_wire(self):
        lines, answers = self.run_program(
            program(SERVE_TWICE), call(1, "noisy"), is_file=True,
            stderr=b"from before\nfrom print\nfrom os.write\nfrom a child\ntidytidy")
        # A child that reads stdin, and the handler itself, found it empty.
        self.assertEqual(json.loads(text_in(answers[1])), [0, "", True])
        # Afterwards stdin and stdout are what they were, and can be served again.
        self.assertEqual(lines[2], b"between True")
        self.assertEqual(answers[7]["result"], {})

    def test_what_was_asked_is_answered_before_the_exit(self):
        calls = [call(id, "wait", seconds=0.02) for id in range(1, 5)]
        no_stderr = program("os.close(2); server.run()")
        answers = self.run_program(no_stderr, *calls, stderr=b"")[1]
        self.assertEqual({*answers}, {*range(5)})
        self.assertEqual(text_in(answers[4]), "ValueError: x")
        self.assertEqual(self.run_program(program()), ([], {}))

    def test_an_import_has_no_side_effect_and_is_light(self):
        (modules,), _ = self.run_program(python(
            "before = [*sys.modules]; import mcp_min\n"
            "assert threading.active_count() == 1\n"
            "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
            "print(*sys.modules.keys() - before)"), stderr=b"")
        self.assertFalse({*modules.decode().split()}.intersection([
            "asyncio", "subprocess", "inspect", "dataclasses", "urllib", "logging",
            "concurrent.futures", "socket", "hmac", "base64", "traceback"]))

    def test_all_requests_of_a_file_are_answered(self):
        calls = [call(n, "wait_for_go", n=n) for n in range(1, 3001)]
        answers = self.run_program(
            program(workers=1), *calls, note("acme/go"), is_file=True)[1]
        self.assertEqual({*answers}, {*range(3001)})

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_child_that_a_handler_forks_neither_answers_nor_reads(self):
        # Meanwhile another thread is writing, and holds what it needs for that.
        for main in (SERVE_HELD, "server.threaded = False; held.set(); server.run()"):
            answers = self.run_program(program(main), call(1, "wait", seconds=0), call(
                2, "fork"), is_file=True)[1]
            self.assertEqual({*answers}, {0, 1, 2})
            status = int(text_in(answers[2]))
            self.assertTrue(os.WIFEXITED(status), "it hung")
            self.assertEqual(os.WEXITSTATUS(status), 3)

    def check_end(self, status, act):
        with subprocess.Popen(program(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, bufsize=0) as process:
            for message in (initialize(), call(1, "wait", seconds=SECONDS)):
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdout.readline()
            act(process)
            self.assertEqual(process.wait(SECONDS), status)
            self.assertEqual(process.stderr.read(), b"tidy")

    @unittest.skipIf(os.name == "nt", "needs signals")
    def test_sigterm_and_ctrl_c_end_it_with_a_status_and_no_traceback(self):
        for number, status in [(signal.SIGTERM, 143), (signal.SIGINT, 130)]:
            self.check_end(status, lambda process: process.send_signal(number))

    def test_it_ends_quietly_when_nobody_reads_its_answers(self):
        def hang_up(process):
            process.stdout.close()
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')

        self.check_end(0, hang_up)


# -- 11. Server

def review(lines: int, style: typing.Annotated[str, "Tone"] = ""):
    return json.dumps([lines, style])


def shout(text: str):
    raise McpError(-5, "no", {"why": text})


def example(**options):
    server = Server("s", **options)
    server.add_tool(shout)
    server.add_prompt(review)
    server.add_resource("data://bad", lambda: 1 / 0, name="bad")
    server.add_resource("data://n/{n}", add_one)
    server.add_resource("Notes://my drawer/{x}", echo)
    server.completion("review", "style")(lambda value: [value + "1", value + "2"])
    server.completion("review", "text")(lambda value: list(range(101)))
    server.completion("Notes://my drawer/{x}", "x")(
        lambda value, others: [f"{value} {others.get('y')}"])
    for name, value in [("acme/none", None), ("acme/odd", ODD), ("acme/list", [1])]:
        server.method(name)(lambda params, value=value: value)
    server.method("acme/add")(lambda params: {"sum": params["a"] + params["b"]})
    return server


def completing(ref, name, **more):
    ref = {"type": "ref/resource", "uri": ref} if "://" in ref else {
        "type": "ref/prompt", "name": ref}
    return {"ref": ref, "argument": {"name": name, "value": "a"}, **more}


class Test11Server(ServerCase):
    def test_errors_say_what_is_wrong(self):
        tool, prompt, read, complete = (
            "tools/call", "prompts/get", "resources/read", "completion/complete")
        no, bad_lines = {"uri": "data://no"}, {"lines": "many"}
        with captured_stderr(), Wire(example()) as wire:
            self.check(wire, *[
                (method, params, -32602, {"field": name}) for method, params, name in [
                    (tool, {}, "name"), (tool, {"name": 5}, "name"),
                    (tool, {"name": "shout", "arguments": []}, "arguments"),
                    (prompt, {}, "name"),
                    (prompt, {"name": "review", "arguments": bad_lines}, "lines"),
                    (read, {}, "uri"), (read, {"uri": "data://n/x"}, "n"),
                    (complete, completing("shout", "x"), "ref"),
                    (complete, completing("no://{x}", "x"), "ref"),
                    (complete, {**completing("review", "x"), "argument": {}}, "name"),
                    ("logging/setLevel", {"level": "loud"}, "level"),
                    *[("tools/list", {"cursor": cursor}, "cursor")
                      for cursor in ("", "x", "-1", "9" * 5000, 5)]]])
            self.check(
                wire, (tool, {"name": "no"}, -32602, {"name": "no"}),
                (prompt, {"name": "no"}, -32602, {"name": "no"}),
                (read, no, -32002, no), ("resources/subscribe", no, -32002, no),
                (read, {"uri": "data://bad"}, -32603), ("acme/list", {}, -32603),
                ("acme/add", {}, -32603), ("acme/x", {}, -32601, {"method": "acme/x"}),
                (tool, {"name": "shout", "arguments": {"text": "x"}}, -5, {"why": "x"}))
            self.assertEqual(wire.ask(request(1, read, **no))["error"]["data"], no)
            for name, kind in (("name", "a string"), ("arguments", "an object")):
                bad = {"name": "shout", name: 5}
                error = wire.ask(request(1, tool, **bad))["error"]
                self.assertEqual(error["message"], f"{name} must be {kind}, not 5")

    def test_what_a_resource_gives_becomes_contents(self):
        both = [ResourceContents(text="a", mime_type="text/x-a"),
                ResourceContents("data://other", data=b"x")]
        for value, kind, contents in [
                ("hé", None, [{"mimeType": "text/plain", "text": "hé"}]),
                (b"\0", None, [
                    {"mimeType": "application/octet-stream", "blob": "AA=="}]),
                (b"x", "image/png", [{"mimeType": "image/png", "blob": "eA=="}]),
                ([1], None, [{"mimeType": "application/json", "text": "[1]"}]),
                (both, "b/c", [
                    {"uri": "data://x", "text": "a", "mimeType": "text/x-a"},
                    {"uri": "data://other", "blob": "eA==", "mimeType": "b/c"}])]:
            server = Server("s")
            server.add_resource("data://x", lambda: value, name="x", mime_type=kind)
            self.check(server, ("resources/read", {"uri": "data://x"}, {
                "contents": [{"uri": "data://x", **one} for one in contents]}))

    def test_what_a_prompt_gives_becomes_messages(self):
        image = [{"role": "user", "content": IMAGE}]
        for value, messages in [
                ("Hi", [HI]), (Message("assistant", "Ho"), [HO]), ([HI, HO], [HI, HO]),
                (["Hi", Message("assistant", "Ho")], [HI, HO]), ([], []),
                ({"role": "assistant", "content": "Ho"}, [HO]),
                (Image(data=b"x"), image), (Message("user", Image(data=b"x")), image)]:
            server = Server("s")
            server.add_prompt(lambda: value, name="p")
            self.check(server, ("prompts/get", {"name": "p"}, {"messages": messages}))
        # Arguments are texts that become what the hints say.
        given, content = {"lines": "5", "style": "6"}, {"text": '[5, "6"]'}
        self.check(example(), ("prompts/get", {"name": "review", "arguments": given}, {
            "messages": [{"role": "user", "content": content}]}))

    def test_completions_are_100_values_at_most(self):
        context, hundred = {"arguments": {"y": "b"}}, [*map(str, range(100))]
        self.check(example(), *[
            ("completion/complete", completing(ref, name, context=context), {
                "completion": {"values": values, "total": total, "hasMore": has_more}})
            for ref, name, values, total, has_more in [
                ("review", "style", ["a1", "a2"], 2, False),
                ("review", "text", hundred, 101, True), ("review", "x", [], 0, False),
                ("notes://my%20drawer/{x}", "x", ["a b"], 1, False)]])

    def test_a_method_of_your_own_is_served_and_its_result_left_as_it_is(self):
        self.check(example(), ("acme/add", {"a": 1, "b": 2}, {"sum": 3}),
                   ("acme/none", {}, {}), ("acme/odd", {}, ODD))

    def test_what_is_registered_or_named_is_declared_and_nothing_else_is_served(self):
        change = {"listChanged": True}
        more = {"experimental": {"acme": {"n": 1}}, "tools": {"acme": True}}
        with Wire(example(capabilities=more)) as wire:
            self.assertEqual(wire.initialized["result"]["capabilities"], {
                "logging": {}, "tools": {"acme": True, **change}, "prompts": change,
                "resources": {"subscribe": True, **change}, "completions": {},
                "experimental": {"acme": {"n": 1}}})
        named = Server("s", capabilities={"prompts": {}})
        self.check(named, ("prompts/list", {}, {"prompts": []}))
        self.check(Server("s"), *[(name, {}, -32601, {"method": name}) for name in (
            "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list",
            "resources/templates/list", "resources/read", "resources/subscribe",
            "resources/unsubscribe", "completion/complete", "server/discover",
            "subscriptions/listen")])

    def test_what_is_added_later_is_served_and_what_is_removed_is_gone(self):
        server = Server("s")
        self.assertIs(server.tool(echo), echo)
        with Wire(server) as wire:
            server.remove_tool("echo")
            self.assertIs(server.prompt(title="Echo")(echo), echo)
            for kind in ("tools", "prompts"):
                wire.expect({"method": f"notifications/{kind}/list_changed"})
            # What was declared stays served, with nothing in it.
            self.check(wire, ("tools/list", {}, {"tools": []}),
                       ("tools/call", {"name": "echo"}, -32602, {"name": "echo"}),
                       ("prompts/list", {}, {"prompts": [{"name": "echo"}]}))

    def test_lists_come_in_pages(self):
        server = Server("s", page_size=2)
        for n in "12345":
            server.add_tool(echo, name=n)
            server.add_prompt(echo, name=n)
            server.add_resource(f"data://{n}", password, name=n)
            server.add_resource(f"data://{n}/{{x}}", echo, name=n)
        with Wire(server) as wire:
            for kind in ("tools", "prompts", "resources", "resources/templates"):
                pages, cursor = [], None
                while cursor or not pages:
                    page = wire.ask(request(1, f"{kind}/list", cursor=cursor))["result"]
                    cursor = page.pop("nextCursor", None)
                    (entries,) = page.values()
                    pages.append("".join(entry["name"] for entry in entries))
                self.assertEqual(pages, ["12", "34", "5"])

    def test_a_docstring_is_the_description_with_its_lines_as_they_stand(self):
        for text, expected in [
                (None, None), (" One.", "One."),
                ("\n    One.\n    Two.\n    ", "One.\nTwo."),
                ("One.\n\n        Two:\n          - a\n\n            b\n        ",
                 "One.\n\nTwo:\n  - a\n\n    b")]:
            tool = returning(1)
            tool.__doc__ = text
            with self.subTest(text), Session(tool) as wire:
                self.assertEqual(wire.listed()[0].get("description"), expected)

    def test_entries_carry_their_metadata(self):
        server = Server("s")
        common = {"title": "Title", "description": "About", "icons": [{"src": "i.png"}]}
        notes, meta = {"annotations": {"audience": ["user"]}}, {"acme/x": 1}
        options = {"name": "n", "meta": meta, **common}
        server.tool(password, **notes, **options)
        server.prompt(review, **options)
        server.resource("data://x", password, mime_type="text/html", size=5, **notes,
                        **options)
        server.resource("data://{x}", echo, **notes, **options)
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        with Wire(server) as wire:
            for kind, more in [
                    ("tools", {**notes, "inputSchema": schema}),
                    ("prompts", {"arguments": [{"name": "lines", "required": True}, {
                        "name": "style", "required": False, "description": "Tone"}]}),
                    ("resources", {**notes, "uri": "data://x", "mimeType": "text/html",
                                   "size": 5}),
                    ("resources/templates", {**notes, "uriTemplate": "data://{x}"})]:
                (entries,) = wire.ask(request(1, f"{kind}/list"))["result"].values()
                self.assertEqual(
                    entries, [{"name": "n", "_meta": meta, **common, **more}])

    def test_sessions_after_initialize_are_told_of_each_change(self):
        server = Server("s")
        with Wire(server) as wire, Wire(server, date=None) as early:
            for kind, act, *arguments in [
                    ("tools", server.add_tool, echo),
                    ("tools", server.remove_tool, "echo"),
                    ("prompts", server.add_prompt, echo),
                    ("prompts", server.remove_prompt, "echo"),
                    ("resources", server.add_resource, "Data://x y", password),
                    ("resources", server.remove_resource, "DATA://x y"),
                    ("resources", server.add_resource, "data://{x}", echo)]:
                act(*arguments)
                wire.expect({"method": f"notifications/{kind}/list_changed"})
                wire.fence()
                early.fence()

    def test_log_messages_below_the_level_are_not_sent(self):
        levels = "debug info notice warning error critical alert emergency".split()
        with serving(lambda ctx: [
                getattr(ctx, level)(None, "acme") for level in levels]) as wire:
            for least in (None, *levels):
                if least:
                    wire.ask(request(1, "logging/setLevel", level=least))
                wire.send(call(2, "run"))
                for level in levels[levels.index(least or "info"):]:
                    wire.expect(notify("notifications/message", level=level,
                                       logger="acme", data=None))
                wire.expect({"id": 2})

    def test_a_handler_of_a_notification_can_notify_log_and_ask(self):
        server = Server("s")

        @server.method("acme/note")
        def handle(params, ctx: Context):
            ctx.notify("acme/seen", params)
            ctx.info(1 / ctx.elicit("How many?", int).data)

        with captured_stderr() as stderr, Wire(server, **CAN_ALL) as wire:
            for number in (0, 1):
                wire.send(notify("acme/note", n=number))
                wire.expect({"method": "acme/seen", "params": {"n": number}})
                id = wire.expect({"method": "elicitation/create"})["id"]
                wire.send({"jsonrpc": "2.0", "id": id, **accepts(value=number)})
            wire.expect({"params": {"level": "info", "data": 1.0}})
            wire.send(notify("acme/unknown"))
            wire.fence()
        self.assertIn("ZeroDivisionError", stderr.getvalue())

    def test_no_exception_makes_a_server_deaf(self):
        class Odd(Exception):
            exceptions = None

        class Mute(ToolError):
            def __init__(self):
                """Without a text."""

            def __str__(self):
                raise ValueError

        class Careless(McpError):
            def __init__(self):
                """Without super()."""

        def trace(line):
            raise ValueError(line)

        for settings in ({}, {"max_workers": 1}, {"trace": trace}):
            server = Server("s", **settings)
            server.add_tool(raising(Odd()), name="odd", input_schema={"type": "object"})
            server.add_tool(raising(Mute()), name="mute")
            server.method("acme/careless")(lambda: raising(Careless())())
            server.add_tool(lambda: time.sleep(0.01), name="long")
            with self.subTest(settings), captured_stderr(), Wire(server) as wire:
                for number in range(3):
                    self.assertTrue(wire.ask(call(1, "odd"))["result"]["isError"])
                    error = wire.ask(call(1, "mute"))["error"]
                    self.assertEqual(error["code"], -32603)
                    self.assertEqual(wire.ask(request(2, "acme/careless"))["error"], {
                        "code": -32603, "message": "Internal error"})
                    wire.ask(call(3, "long"))

    def test_nothing_is_written_after_the_end(self):
        reader, writer = Pipe(), Fragile(size=1)
        writer.room.clear()
        reader.write(json.dumps(initialize()).encode() + b"\n")
        reader.close()
        with no_thread_left(), mock.patch.object(mcp_min, "DRAIN_SECONDS", 0):
            Server("s").serve(reader, writer)
            writer.room.set()
        self.assertLessEqual(writer.chunks.qsize(), 1)

    def test_a_resource_is_read_by_a_handler_on_the_only_thread(self):
        def read(ctx: Context) -> str:
            return ctx.read_resource("data://x")[0].text

        for settings in ({"threaded": False}, {"max_workers": 1}):
            server = Server("s", **settings)
            server.add_resource("data://x", lambda: "hi")
            server.add_tool(read)
            with self.subTest(settings), Client(server) as client:
                self.assertEqual(client.call_tool("read").text, "hi")

    def test_what_a_client_got_can_be_passed_on(self):
        inner, outer, content = Server("inner"), Server("outer"), [Text("a"), IMAGE]
        inner.add_tool(lambda: ["a", Image(data=b"x")], name="t")
        with Client(inner) as behind, Scripted(
                lambda m: [ok(m, content=content)]) as fake:  # without isError
            outer.add_tool(lambda: behind.call_tool("t"), name="result")
            outer.add_tool(lambda: behind.call_tool("t").content, name="blocks")
            outer.add_tool(lambda: ToolResult(behind.call_tool("t").content), name="x")
            outer.add_tool(lambda: fake.client.call_tool("t"), name="bare")
            with Client(outer) as client:
                for name in ("result", "blocks", "x", "bare"):
                    result = client.call_tool(name)
                    self.assertEqual([result.content, result.data], [content, None])

    def test_a_text_where_another_type_was_possible_stays_as_it_is(self):
        say, _ = taking(str, "", returned="sunny", hint_of_result=Optional[str])
        [result] = results_of(say)
        self.assertEqual((result["content"], result["structuredContent"]),
                         ([Text("sunny")], {"result": "sunny"}))

    def test_an_error_in_the_lifespan_ends_the_session(self):
        server = Server("s", lifespan=lambda server: open("/no/database"))
        self.assertRaises(OSError, server.serve, Pipe(), Pipe())

    def test_misuse_is_told_in_words(self):
        server = example()
        for act, kind, words in [
                (lambda: server.tool(shout), ValueError, "shout already"),
                (lambda: server.resource("DATA://bad", password), ValueError, "alr"),
                (lambda: server.tool("t"), TypeError, "callable"),
                (lambda: server.tool(echo, name="a b"), ValueError, "'a b'"),
                (lambda: server.tool(echo, titel="x"), TypeError, "titel"),
                (lambda: server.prompt(shout, schema={}), TypeError, "schema"),
                (lambda: server.resource(echo), TypeError, "URI"),
                (lambda: server.resource("data://{m}", echo), TypeError, "data://{m}")]:
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                act()


# -- Servers for the client's tests ----------------------------------------------------


HANDS = {"protocolVersion": LATEST, "serverInfo": {"name": "fake", "version": "1"},
         "capabilities": {"tools": {}, "resources": {"subscribe": True}, "prompts": {},
                          "completions": {}, "logging": {}}}
SAMPLE = "sampling/createMessage"
ELICIT = "elicitation/create"


Legacy = functools.partial(Client, mode="legacy")


def ok(message, **result):
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def notice(name, **params):
    return {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}


def progress(message, value):
    token = message["params"]["_meta"]["progressToken"]
    return notice("progress", progressToken=token, progress=value)


class Scripted:
    """A server that is a function: answer(request) gives a list of messages and of
    bytes (none: it hangs up), or None for the result {}; initialize(request) likewise.
    """

    def __init__(self, answer=lambda m: None, initialize=lambda m: [ok(m, **HANDS)],
                 **options):
        self.answer, self.initialize = answer, initialize
        self.input, self.output, self.received = Pipe(), Pipe(), queue.SimpleQueue()
        self.client = Legacy((self.output, self.input), **options)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self):
        self.client.connect()
        return self

    def __exit__(self, *error):
        self.client.close()

    def run(self):
        rest = b""
        while chunk := self.input.read():
            *lines, rest = (rest + chunk).split(b"\n")
            for message in map(json.loads, lines):
                self.received.put(message)
                if isinstance(message, dict) and {"id", "method"} <= message.keys():
                    self.reply(message)
        self.output.close()

    def reply(self, message):
        is_first = message["method"] == "initialize"
        replies = (self.initialize if is_first else self.answer)(message)
        for reply in [ok(message)] if replies is None else replies:
            self.output.write(reply if isinstance(reply, bytes) else
                              json.dumps(reply).encode() + b"\n")

    def next(self, method=None):
        """The next message with this method that the client sends; None: a response."""
        while True:
            message = self.received.get(timeout=SECONDS)
            if message.get("method") == method:
                return message

    def sent(self):
        """What came after the handshake and was not looked at; after the end."""
        self.thread.join(SECONDS)
        found = [self.received.get() for _ in range(self.received.qsize())]
        return [m for m in found if "initialize" not in m.get("method", "")]


def asked(method, params=None, **options):
    """What a client responds to a request of its server."""
    question = {**request("q", method), "params": params}
    with Scripted(lambda m: [question], **options) as fake:
        fake.client.submit("go")
        response = fake.next()
    assert response["id"] == "q", response
    return response.get("error") or response["result"]


CHILD = r'''
import os, select, signal, sys, time
def request():
    for line in iter(sys.stdin.readline, ""):
        _, found, rest = line.partition('"id":')
        if found:
            return rest.split(",")[0].strip("} \n")
    sys.exit()
def answer(result="{}"):
    print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (request(), result), flush=True)
def shake_hands(more=""):
    answer('{"protocolVersion":"2025-11-25","serverInfo":{"name":"child"}%s}' % more)
def say(text):
    print(text, file=sys.stderr, flush=True)
'''
REPORT = r'''
import json
facts = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
shake_hands(',"instructions":' + json.dumps(json.dumps(facts)))
request()
'''
posix = unittest.skipIf(os.name == "nt", "there are no signals and process groups")


def child(code):
    """The command of a server; the end of input ends it in `request`."""
    return [sys.executable, "-I", "-S", "-c", CHILD + code]


def eventually(holds):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


# -- 12. The process of a server -------------------------------------------------------


class Test12Process(unittest.TestCase):
    def test_a_target_is_started_with_its_arguments_environment_and_folder(self):
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        self.addCleanup(os.environ.clear)
        os.environ["MCP_SECRET"] = "x"
        safe = {"PATH": before["PATH"], "MCP_SECRET": None}
        given = {"KEY": "1", "ABSENT": None}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "a server.py")
            script.write_text(CHILD + REPORT)
            entry = {"command": sys.executable, "args": ["-S", str(script), "-v"],
                     "cwd": folder, "env": {**given, "KEY": 1}}
            for target, options, argv, cwd, env in [
                ([sys.executable, "-S", script, "-v"], {}, ["-v"], ".", safe),
                (str(script), {"env": given}, [], ".", {**safe, **given}),
                (entry, {"env": {"MORE": "2"}}, ["-v"], folder, {**given, "MORE": "2"}),
                (child(REPORT), {"inherit_env": True, "cwd": folder}, [], folder,
                 {"MCP_SECRET": "x"}),
            ]:
                with self.subTest(target), Legacy(target, **options) as client:
                    facts = json.loads(client.instructions)
                    self.assertEqual(facts["argv"], argv)
                    self.assertTrue(os.path.samefile(facts["cwd"], cwd))
                    self.assertEqual({key: facts["env"].get(key) for key in env}, env)

    def test_what_cannot_be_started_is_refused_in_words(self):
        for target, options, error, words in [
            ({"url": "https://example.com/mcp"}, {}, ValueError, "stdio"),
            ("python3 a.py -v", {}, OSError, "python3 a.py -v"),
            ([], {}, ValueError, ""),
            (["no-such"], {}, OSError, "no-such"),
            ([sys.executable], {"cwd": "/no/such/folder"}, OSError, "/no/such/folder"),
        ]:
            with self.subTest(target):
                self.assertRaisesRegex(error, words, Client(target, **options).connect)

    def test_the_end_of_a_process_fails_calls_with_its_code_and_stderr(self):
        for what, code in [
            ("at once", "say('no key'); sys.exit(3)"),
            ("in a call", "shake_hands(); say('no key'); request(); os._exit(3)"),
            ("deaf", "shake_hands(); os.close(0); say('no key'); time.sleep(0.05)\n"
                     "os._exit(3)"),
        ]:
            client = Legacy(child(code), stderr=None)
            with self.subTest(what):
                with self.assertRaisesRegex(ConnectionClosed, "no key") as caught:
                    client.connect()
                    eventually(lambda: "no key" in client.stderr_tail)
                    client.ping(timeout=None)
                found = caught.exception
                self.assertRaises(ConnectionClosed, client.ping, timeout=None)
                self.assertEqual([found.exit_code, found.stderr, client.exit_code],
                                 [3, "no key\n", 3])
            client.close()

    def test_stderr_is_read_kept_and_passed_to_ours_a_stream_or_a_function(self):
        code = ("sys.stderr.write('x' * 1000000); say('one'); shake_hands(); answer()\n"
                "say('two'); request(); request()")
        both = "xone\ntwo\n"
        for what, end in [("ours", both), ("stream", both), ("function", both),
                          ("error", "division by zero"), ("none", "")]:
            with self.subTest(what), captured_stderr() as stream:
                options = {"stream": {"stderr": stream}, "none": {"stderr": None},
                           "function": {"stderr": stream.write},
                           "error": {"stderr": lambda text: 1 / 0}}.get(what, {})
                with Legacy(child(code), **options) as client:
                    client.ping()
                    eventually(lambda: client.stderr_tail.endswith(both))
                    eventually(lambda: end in stream.getvalue())
                    self.assertRaisesRegex(
                        RequestTimeout, "ping.*one\ntwo", client.ping, timeout=0.01)
                self.assertLess(len(client.stderr_tail), 100_000)
                self.assertTrue(end or "one" not in stream.getvalue())

    @posix
    @mock.patch.object(mcp_min, "PATIENCE", 0.05)
    def test_no_process_is_left_whatever_it_ignores(self):
        orphan = ("import subprocess; subprocess.Popen(['sleep', '99'], stdin=-3, "
                  "stdout=-3, stderr=-3, pass_fds=[held.fileno()])")
        for what, code in [
            ("the client's revision", "answer('{}'); request()"),
            ("the end of input", "shake_hands(); time.sleep(99)"),
            ("SIGTERM", "signal.signal(signal.SIGTERM, signal.SIG_IGN); shake_hands()\n"
                        "time.sleep(99)"),
            ("its child", "os.fork() or time.sleep(99); shake_hands(); request()"),
            ("who has none of its pipes",
             f"{orphan}; shake_hands(); sys.stdin.read(); os._exit(0)"),
            ("the same, and it has ended", f"{orphan}; shake_hands(); os._exit(3)"),
        ]:
            with self.subTest(what), tempfile.TemporaryDirectory() as folder:
                fifo = os.path.join(folder, "held by each process")
                os.mkfifo(fifo)
                end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
                self.addCleanup(os.close, end)
                client = Legacy(child(f"held = open({fifo!r}, 'w')\n{code}"))
                with contextlib.suppress(McpError, ConnectionClosed), client:
                    if "it has ended" in what:
                        client.ping()
                self.assertIsNotNone(client.exit_code)
                self.assertEqual(select.select([end], [], [], SECONDS)[0], [end])
                self.assertEqual(os.read(end, 1), b"")

    @posix
    @mock.patch.object(mcp_min, "PATIENCE", 0.05)
    def test_a_look_at_the_exit_code_ends_no_child_that_serves(self):
        code = "shake_hands(); answer()\nos.fork() and os._exit(0)\nwhile 1: answer()"
        with Legacy(child(code)) as client:
            for _ in range(3):
                client.ping()
                self.assertIsNone(client.exit_code)
        self.assertEqual(client.exit_code, 0)

    @mock.patch.object(mcp_min, "PATIENCE", 0.05)
    def test_a_server_that_stops_reading_holds_up_neither_calls_nor_close(self):
        with Legacy(child("shake_hands(); time.sleep(99)"), stderr=None) as client:
            for params in ({"text": "x" * 10_000_000}, {}):
                self.assertRaises(
                    RequestTimeout, client.request, "x", params, timeout=0.05)
        self.assertIsNotNone(client.exit_code)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_forked_child_leaves_the_server_to_its_parent(self):
        done = run_python(r'''
import os, sys, mcp_min
client = mcp_min.Client(sys.argv[1:], mode="legacy").connect()
for end in (client.close, sys.exit):
    if not os.fork():
        end()
        os._exit(0)
    os.wait()
    client.ping()
client.close()
print("alive", client.exit_code)
''', *child("shake_hands()\nwhile True:\n    answer()"))
        self.assertEqual(done.stdout, b"alive 0\n", done.stderr.decode())

    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "it looks into /proc")
    def test_twenty_clients_in_a_row_leave_no_thread_no_descriptor_and_no_warning(self):
        import warnings
        server = ["sed", "-un", r's/.*"id":\([0-9]*\).*/{"jsonrpc":"2.0","id":\1,'
                  r'"result":{"protocolVersion":"2025-11-25"}}/p']  # it starts fast
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for target in [server, Server("here")] * 20:
                with Legacy(target) as client:
                    client.submit("ping").result(SECONDS)
            eventually(lambda: not set(threading.enumerate()) - threads)
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), files)
            gc.collect()
        self.assertEqual([str(one.message) for one in warned], [])

    @posix
    def test_ctrl_c_in_a_call_cancels_it_and_leaves_a_client_that_can_be_closed(self):
        done = run_python(r'''
import signal, sys, mcp_min
def interrupt(number, frame):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # once
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
with mcp_min.Client(sys.argv[1:], mode="legacy", timeout=None) as client:
    try:
        client.ping()
    except KeyboardInterrupt:
        client.ping()
print(client.exit_code)
''', *child(r'''
shake_hands()
request()
while not select.select([0], [], [], 0.01)[0]:
    os.kill(os.getppid(), signal.SIGINT)  # the first may come before the call waits
assert "cancelled" in sys.stdin.readline()
answer()
request()
'''))
        self.assertEqual(done.stdout, b"0\n", done.stderr.decode())


# -- 13. Client ------------------------------------------------------------------------
# Each method of the protocol, and those for any other.
CALLS = [
    ("ping", Client.ping), ("tools/list", Client.list_tools),
    ("tools/list", lambda c, **more: c.list_tools(cursor=None, **more)),
    ("resources/list", Client.list_resources), ("prompts/list", Client.list_prompts),
    ("resources/templates/list", Client.list_resource_templates),
    ("tools/call", lambda c, **more: c.call_tool("t", **more)),
    ("tools/call", lambda c, **more: c.submit_tool("t", **more).result(SECONDS)),
    ("resources/read", lambda c, **more: c.read_resource("a://b", **more)),
    ("resources/subscribe", lambda c, **more: c.subscribe("a://b", **more)),
    ("resources/unsubscribe", lambda c, **more: c.unsubscribe("a://b", **more)),
    ("prompts/get", lambda c, **more: c.get_prompt("p", **more)),
    ("completion/complete", lambda c, **more: c.complete("p", "a", "v", **more)),
    ("logging/setLevel", lambda c, **more: c.set_logging_level("info", **more)),
    ("acme/own", lambda c, **more: c.request("acme/own", **more)),
    ("acme/own", lambda c, **more: c.submit("acme/own", **more).result(SECONDS)),
]


class Test13Life(unittest.TestCase):
    def refuses_use(self, client, words):
        for method, use in [*CALLS, ("notify", lambda c: c.notify("x")),
                            ("set_roots", lambda c: c.set_roots([]))]:
            with self.subTest(words, method=method):
                self.assertRaisesRegex(ConnectionClosed, words, use, client)

    def test_a_client_is_new_then_open_then_closed_and_connects_once(self):
        client = Legacy(Server("here"))
        self.refuses_use(client, "connect")
        self.assertIs(client.connect(), client)
        self.assertIs(client.connect(), client)
        client.ping()
        for closed in (client, Legacy(Server("here"))):
            closed.close()
            closed.close()
            self.refuses_use(closed, "closed")
            self.assertRaisesRegex(ConnectionClosed, "closed", closed.connect)
            self.assertEqual([closed.stderr_tail, closed.exit_code], ["", None])

    def test_the_revisions_with_a_handshake_are_spoken_and_no_other(self):
        said = {"serverInfo": {"name": "fake", "version": "1", "title": "Fake"},
                "capabilities": {"logging": {}}, "instructions": "Go on."}
        for date in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
            with Scripted(initialize=lambda m: [ok(m, protocolVersion=date, **said)],
                          client_info={"name": "me"}) as fake:
                client, sent = fake.client, fake.next("initialize")["params"]
                self.assertEqual([sent["protocolVersion"], sent["clientInfo"]["name"]],
                                 [LATEST, "me"])
                fake.next("notifications/initialized")
                self.assertEqual(
                    [client.protocol_version, client.server_info, client.instructions,
                     client.server_info.title, client.server_capabilities.logging],
                    [date, said["serverInfo"], "Go on.", "Fake", {}])
                self.assertIsNone(client.server_capabilities.completions)
        for date, words in [("1999-01-01", f"1999-01-01.*{LATEST}"), (5, "5"),
                            (None, ""), ([LATEST], LATEST), ({}, LATEST)]:
            fake = Scripted(initialize=lambda m: [ok(m, protocolVersion=date)])
            with self.subTest(date):
                self.assertRaisesRegex(McpError, words, fake.client.connect)

    def test_close_fails_what_is_open_and_connect_which_is_never_cancelled(self):
        with Scripted(lambda m: []) as fake:
            futures = [fake.client.submit("x", timeout=None) for _ in range(10)]
            fake.client.close()
            for future in futures:
                self.assertIsInstance(future.exception(SECONDS), ConnectionClosed)
        fake = Scripted(initialize=lambda m: threading.Thread(
            target=fake.client.close).start() or [])
        self.assertRaises(ConnectionClosed, fake.client.connect)
        fake = Scripted(initialize=lambda m: [], timeout=0.01)
        self.assertRaises(RequestTimeout, fake.client.connect)
        self.assertEqual(fake.sent(), [])

    def test_a_handler_may_close_the_client(self):
        def close(*arguments):
            fake.client.close()
            closed.set()

        for name, send in [
            ("message_handler", lambda m: [notice("acme")]),
            ("log_handler", lambda m: [notice("message", level="info", data=1)]),
            ("progress_handler", lambda m: [progress(m, 1)]),
            ("sampling_handler", lambda m: [request(1, SAMPLE, messages=[])]),
        ]:
            closed = gate()
            with self.subTest(name), Scripted(send, **{name: close}) as fake:
                self.assertRaises(ConnectionClosed, fake.client.request, "x")
                closed.wait()

    def test_what_was_said_before_close_is_sent(self):
        with Scripted(lambda m: []) as fake:
            future = fake.client.submit_tool("t")
            fake.next("tools/call")
            self.assertTrue(future.cancel())
            fake.client.notify("acme/event", {"a": 1})
        self.assertEqual([(m["method"], m["params"].get("a")) for m in fake.sent()],
                         [("notifications/cancelled", None), ("acme/event", 1)])


class Test13Messages(unittest.TestCase):
    def test_what_is_no_message_is_skipped_and_not_answered(self):
        for line in [b"npm notice\n", b"\n", b" \t\r\n", b"\xef\xbb\xbf\n", b"\xff{}\n",
                     b'{"a":NaN}\n', b"9" * 5000 + b"\n", b"{}\n", b"1\n", b"null\n",
                     b'"x"\n', b"[]\n", b"[[1]]\n", b'{"jsonrpc":"2.0","method":5}\n',
                     b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n',
                     b'{"id":2,"method":"roots/list"}\n',
                     b'{"jsonrpc":"2.0","method":"x"}' * 2 + b"\n",
                     b'{"jsonrpc":"2.0","method":"many"}\n' * 10_000]:
            with self.subTest(line[:9]), Scripted(lambda m: [line, ok(m, a=1)]) as fake:
                self.assertEqual(fake.client.request("x"), {"a": 1})
            self.assertEqual([m["method"] for m in fake.sent()], ["x"])

    def test_garbage_in_an_array_does_not_hold_back_the_responses_to_the_rest(self):
        question = {"jsonrpc": "2.0", "id": "q", "method": "ping"}
        with Scripted(lambda m: [[question, 5], ok(m)]) as fake:
            fake.client.request("x")
            fake.next("x")
            self.assertEqual(fake.received.get(timeout=SECONDS), [
                {"jsonrpc": "2.0", "id": "q", "result": {}}])

    def test_noise_is_quoted_in_errors(self):
        usage = "usage: server [-h]"
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": usage}}
        for noise, end, kind in [
            (f"{usage}\n".encode(), [], RequestTimeout), (error, [], RequestTimeout),
            (f"{usage}\n".encode(), [b""], ConnectionClosed),
            (b"\n", [usage.encode(), b""], ConnectionClosed),
        ]:
            with self.subTest(noise), Scripted(lambda m: (
                    [noise, ok(m)] if m["method"] == "first" else end)) as fake:
                fake.client.request("first")
                self.assertRaisesRegex(kind, r"server \[-h\]", fake.client.request, "x",
                                       timeout=SECONDS if end else 0.01)

    def test_a_response_that_cannot_be_read_fails_its_call_or_all_in_words(self):
        deep = "[" * 300 + "]" * 300
        for line, is_known in [
            ('{"jsonrpc":"2.0","id":ID,"result":{"x":"LONG"}}\n', True),
            ('{"id":"ID","result":{"x":"LONG"},"jsonrpc":"2.0"}\n', True),
            ('{"jsonrpc":"2.0","id":ID,"result":{"x":%s}}\n' % deep, True),
            ('{"result":{"x":"LONG"},"jsonrpc":"2.0","id":ID}\n', False),
            ('{"jsonrpc":"2.0","id":ID,"result":{"method":"LONG"}}\n', True),
            ("[" * 100_000 + "\n", False), ("LONGLONG\n", False),
        ]:
            def answer(m):
                text = line.replace("ID", str(m["id"])).replace("LONG", "x" * 4000)
                return {"bad": [text.encode()], "other": []}.get(m["method"])

            with self.subTest(line), Scripted(answer, max_message_bytes=4000) as fake:
                other = fake.client.submit("other")
                self.assertRaisesRegex(
                    McpError, "4000 bytes|levels deep", fake.client.request, "bad")
                fake.client.ping()  # the session goes on
                self.assertTrue(other.cancel() if is_known else other.exception())

    def test_a_malformed_response_fails_its_call_naming_what_is_wrong(self):
        error = {"code": 1, "message": "m"}
        for members, words in [
            ({"result": {}, "error": error}, r"m \(1\)"), ({}, "result"),
            ({"result": 5}, "5"), ({"result": None}, "null"), ({"result": []}, r"\[\]"),
            ({"error": "text"}, "text"), ({"error": {**error, "code": "1"}}, '"1"'),
            ({"error": {"code": 1}}, "1"), ({"error": {}}, "[Nn]either"),
            ({"jsonrpc": "1.0", "result": {}}, "json"), ({"result": 1e999}, "Infinity"),
            ({"jsonrpc": "", "error": {"data": {"method": 1}}}, "json"),
            ({"result": None, "error": error}, r"m \(1\)"),  # this one is not
        ]:
            with self.subTest(members), Scripted(lambda m: [
                    {**ok(m, a=1), "error": None, "x": 1} if m["method"] == "good" else
                    {"jsonrpc": "2.0", "id": m["id"], **members}]) as fake:
                self.assertRaisesRegex(McpError, words, fake.client.request, "bad")
                self.assertEqual(fake.client.request("good"), {"a": 1})

    def test_an_id_may_come_back_as_its_decimal_text_and_in_no_other_form(self):
        for change in (str, float, "0{}".format, " {}".format, "{}.0".format, bool,
                       lambda id: [id], lambda id: None, lambda id: id + 0.5):
            with self.subTest(change(7)), Scripted(lambda m: [
                    {**ok(m, taken=True), "id": change(m["id"])}, ok(m)]) as fake:
                self.assertEqual(fake.client.request("x"),
                                 {"taken": True} if change in (str, float) else {})

    def test_responses_may_come_twice_too_late_or_in_an_array(self):
        def answer(m):
            late.append(ok(m, to=m["method"]))
            replies = {"late": [], "twice": [*late, *late], "array": [late, b""]}
            return replies[m["method"]]

        late = []
        with Scripted(answer) as fake:
            self.assertRaises(RequestTimeout, fake.client.request, "late", timeout=0.01)
            for method in ("twice", "twice", "array"):
                self.assertEqual(fake.client.request(method), {"to": method})

    def test_each_of_many_threads_gets_its_own_results(self):
        server, texts = Server("echo"), [str(number) for number in range(1000)]
        server.add_tool(lambda text: text, name="t", input_schema={"type": "object"})
        with Client(server) as c, concurrent.futures.ThreadPoolExecutor(20) as pool:
            found = pool.map(lambda x: c.call_tool("t", {"text": x}).text, texts)
            self.assertEqual(list(found), texts)


class Test13Methods(unittest.TestCase):
    def test_each_call_takes_meta_and_hears_of_its_own_progress(self):
        bad = [notice("progress", progressToken=one, progress=1) for one in (99, [])]
        with Scripted(lambda m: [*bad, notice("progress"), progress(m, "1"),
                                 progress(m, None), progress(m, 5), ok(m)]) as fake:
            for method, call in CALLS:
                with self.subTest(method):
                    seen = []
                    call(fake.client, meta={"trace": method},
                         progress_handler=lambda *report: seen.append(report))
                    self.assertEqual(seen, [(5, None, None)])
                    self.assertEqual(
                        fake.next(method)["params"]["_meta"]["trace"], method)

    def test_each_call_is_cancelled_by_its_time_limits_and_what_hears_progress(self):
        with Scripted(lambda m: None if m["method"] == "last" else [
                progress(m, 1)]) as fake:
            for method, call in CALLS:
                for options in ({"timeout": 0.001}, {"max_timeout": 0.001},
                                {"progress_handler": lambda *_: queue.Queue().get(0)}):
                    with self.subTest(method, options=options):
                        self.assertRaisesRegex((RequestTimeout, queue.Empty),
                                               f"{method}|^$", call, fake.client,
                                               **options)
            fake.client.request("last")
        *sent, _ = fake.sent()
        self.assertEqual([m["id"] for m in sent if "id" in m],
                         [m["params"]["requestId"] for m in sent if "id" not in m])

    def test_progress_that_waits_to_be_heard_does_not_postpone_the_max_timeout(self):
        heard = []
        with Scripted(lambda m: [progress(m, n) for n in range(2000)]) as fake:
            self.assertRaises(
                RequestTimeout, fake.client.request, "x", max_timeout=0.05,
                progress_handler=lambda *_: heard.append(time.sleep(0.01)))
        self.assertLess(len(heard), 2000)

    def test_who_waits_for_a_cancelled_future_is_told(self):
        with Scripted(lambda m: []) as fake:
            future = fake.client.submit("x")
            future.cancel()
            self.assertEqual(concurrent.futures.wait([future], SECONDS).done, {future})
            self.assertRaises(concurrent.futures.CancelledError, future.result)

    def test_what_timed_out_before_its_turn_is_neither_sent_nor_cancelled(self):
        has_room = threading.Event()
        with Scripted() as fake:
            fake.input.flush = lambda: has_room.wait(SECONDS)
            fake.client.submit("first")
            self.assertRaises(RequestTimeout, fake.client.request, "late", timeout=0.01)
            has_room.set()
            fake.client.request("last")
        self.assertEqual([m["method"] for m in fake.sent()], ["first", "last"])

    def test_what_the_server_does_not_declare_is_refused_before_it_is_sent(self):
        offered = {"ping", "acme/own", "resources/list", "resources/read",
                   "resources/templates/list"}
        hands = {**HANDS, "capabilities": {"resources": {}}}
        with Scripted(initialize=lambda m: [ok(m, **hands)], log_level="error") as fake:
            for method, call in CALLS:
                if method not in offered:
                    self.assertRaisesRegex(
                        McpError, f"client.request.*{method}", call, fake.client)
            self.assertEqual(fake.client.request("tools/list"), {})
        self.assertEqual([m["method"] for m in fake.sent()], ["tools/list"])

    def test_progress_postpones_the_timeout(self):
        def answer(m):
            for count in range(int(m["params"]["seconds"] / 0.005)):
                time.sleep(0.005)
                yield progress(m, count)
            yield ok(m)

        with Scripted(answer) as fake:
            for seconds in (0.05, 1, 20):  # the first is enough, unless we are held up
                with contextlib.suppress(RequestTimeout):
                    fake.client.request("x", {"seconds": seconds * 2}, timeout=seconds)
                    break
            else:
                self.fail("it timed out")

    LISTS = [("tools", Client.list_tools), ("prompts", Client.list_prompts),
             ("resources", Client.list_resources),
             ("resourceTemplates", Client.list_resource_templates)]

    def pages(self, *pages, key="tools"):
        """A server with these pages (name, cursor), in turn, for ever."""
        results = itertools.cycle(
            {key: [{"name": name}], "nextCursor": cursor} for name, cursor in pages)
        return Scripted(lambda m: [ok(m, **next(results))])

    def test_all_pages_come_or_with_a_cursor_one(self):
        for key, call in self.LISTS:
            pages = ("a", "x"), ("b", ""), ("b", "y"), ("c", None)
            with self.subTest(key), self.pages(*pages, key=key) as fake:
                self.assertEqual([one.name for one in call(fake.client)], [*"abc"])
                page = call(fake.client, cursor="z")
                self.assertEqual([page[key][0].name, page.next_cursor], ["a", "x"])
            self.assertEqual([m["params"].get("cursor") for m in fake.sent()],
                             [None, "x", "", "y", "z"])

    def test_pages_that_do_not_end_end_with_a_warning(self):
        for pages, names in [
            ([("a", "x")], "a"), ([("a", "")], "a"), ([("a", "x"), ("b", "x")], "ab"),
            ([("a", "x"), ("b", "y")], "ab"),
            ([("a", "x"), ("b", ""), ("c", "")], "abc"),
            ([*(("a", str(number)) for number in range(90)), ("b", None)], "a"),
        ]:
            with self.subTest(pages), captured_stderr() as stderr, mock.patch.object(
                    mcp_min, "MAX_PAGES", 70):
                with self.pages(*pages) as fake:
                    found = fake.client.list_tools()
                self.assertEqual([one.name for one in found], [*names])
                self.assertIn("tools/list", stderr.getvalue())

    def test_null_and_absent_lists_are_empty_and_malformed_ones_mcp_errors(self):
        for key, call in [
            *self.LISTS, ("content", lambda c: c.call_tool("t").content),
            ("contents", lambda c: c.read_resource("a://b")),
            ("messages", lambda c: c.get_prompt("p").messages),
            ("values", lambda c: c.complete("p", "a", "v")["values"]),
        ]:
            for value in (None, ..., "x", 5, [5], [None], {"a": {}}):
                result = {} if value is ... else {key: value}
                result = {**result, "completion": result}
                with self.subTest(key), Scripted(lambda m: [ok(m, **result)]) as fake:
                    if value in (None, ...):
                        self.assertEqual(call(fake.client), [])
                    else:
                        self.assertRaises(McpError, call, fake.client)
        for tool in ({"outputSchema": {}}, {"name": [], "outputSchema": {}}):
            with self.subTest(tool), Scripted(lambda m: [ok(m, tools=[tool])]) as fake:
                with contextlib.suppress(McpError):  # nothing else
                    fake.client.list_tools()

    def test_results_are_json_whose_fields_are_attributes(self):
        every = {
            "tools": [{"name": "add", "inputSchema": {"required": ["a"]},
                       "outputSchema": {"type": "object", "required": ["total"]},
                       "annotations": {"readOnlyHint": True}}],
            "prompts": [{"name": "p", "arguments": [{"description": "of voice"}]}],
            "content": [{"type": "text", "text": "7"}, {"type": "image"}],
            "structuredContent": {"result": 7}, "isError": False,
            "_meta": {"fastmcp": {"wrap_result": True}},
            "contents": [{"uri": "a://b", "text": "hello", "mimeType": "text/x"},
                         {"uri": "a://c", "blob": "eA=="}],
            "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
            "completion": {"values": ["Oslo"], "total": 3, "hasMore": True}}
        with Scripted(lambda m: [ok(m, **every)]) as fake:
            tool, = fake.client.list_tools()
            prompt, = fake.client.list_prompts()
            result = fake.client.call_tool("add", {"a": 5})
            text, data = fake.client.read_resource("a://b")
            message, = fake.client.get_prompt("p").messages
            given = fake.client.complete("p", "city", "O")
            can = fake.client.server_capabilities
        self.assertEqual(
            [tool.input_schema["required"], tool.annotations.read_only_hint, tool.icons,
             tool.title, tool.annotations.destructive_hint, can.resources.subscribe,
             can.resources.list_changed, can.tools.subscribe, can.experimental,
             prompt.arguments[0].description,
             result.text, result.data, result.structured_content, result.is_error,
             result.content[0].text, result["content"][1]["type"],
             text.text, text.mime_type, text.data, data.data, message.role,
             message.content.text, given["values"], given.total, given.has_more],
            [["a"], True, None, None, None, True, None, None, None, "of voice",
             "7", 7, {"result": 7}, False, "7", "image", "hello", "text/x", None, b"x",
             "user", "hi", ["Oslo"], 3, True])
        self.assertRaises(AttributeError, getattr, tool, "inputschema")

    def test_a_tool_that_fails_raises_tool_error_with_its_result(self):
        content = [{"type": "text", "text": "It failed."}]
        with Scripted(lambda m: [ok(m, isError=True, content=content)]) as fake:
            with self.assertRaisesRegex(ToolError, r"^It failed\.$") as caught:
                fake.client.call_tool("t")
            for result in (caught.exception.result,
                           fake.client.call_tool("t", raise_on_error=False),
                           fake.client.submit_tool("t").exception(SECONDS).result):
                self.assertEqual([result.is_error, result.text], [True, "It failed."])

    def test_arguments_of_a_prompt_go_as_texts_and_a_template_is_told_by_its_form(self):
        with Scripted() as fake:
            fake.client.get_prompt("p", {
                "s": "5", "n": 5, "b": True, "l": ["\xe9"], "p": Path("a"), "d": DAY})
            self.assertEqual(fake.next("prompts/get")["params"]["arguments"], {
                "s": "5", "n": "5", "b": "true", "l": '["\xe9"]', "p": "a",
                "d": "2024-05-01"})
            fake.client.complete("a://{b}", "b", "O")
            self.assertEqual(fake.next("completion/complete")["params"]["ref"],
                             {"type": "ref/resource", "uri": "a://{b}"})

    def test_notifications_come_in_order_on_one_thread_also_after_an_error(self):
        def hear(params):
            heard.append((params.data, threading.get_ident()))
            raise OSError("disk full")

        heard, done = [], gate()
        logs = [notice("message", level="info", data=number) for number in range(100)]
        with captured_stderr(), Scripted(
                lambda m: [*logs, notice("acme", a=1), ok(m)], log_level="info",
                log_handler=hear, message_handler=lambda message: (
                    message.method.endswith("acme") and done.set())) as fake:
            self.assertEqual(fake.next("logging/setLevel")["params"]["level"], "info")
            done.wait()
        self.assertEqual(heard, [(number, heard[0][1]) for number in range(100)])


class Test13Handlers(unittest.TestCase):
    FORM = {"message": "Who?", "requestedSchema": {
        "type": "object", "properties": {"name": {"type": "string"}},
        "required": ["name"]}}
    URL = {"mode": "url", "message": "Pay?", "url": "https://x/", "elicitationId": "1"}

    def test_a_capability_is_declared_exactly_when_its_handler_is_given(self):
        both = {"elicitation_handler": print, "url_handler": print}
        more = {"sampling": {"tools": {}}, "experimental": {"acme": {}}}
        for options, expected in [
            ({"log_handler": print, "message_handler": print}, {}),
            ({"roots": []}, {"roots": {"listChanged": True}}),
            ({"sampling_handler": print}, {"sampling": {}}),
            ({"elicitation_handler": print}, {"elicitation": {}}),
            ({"url_handler": print}, {"elicitation": {"url": {}}}),
            (both, {"elicitation": {"form": {}, "url": {}}}),
            ({"sampling_handler": print, "capabilities": more}, more),
        ]:
            with self.subTest(options), Scripted(**options) as fake:
                declared = fake.next("initialize")["params"]["capabilities"]
                self.assertEqual(declared, expected)

    def test_a_request_that_cannot_be_answered_is_an_error(self):
        def refuse(*args):
            raise McpError(-1, "User rejected sampling request")

        for method, params, options, code in [
            ("ping", [1], {}, -32602), ("acme/unknown", {}, {}, -32601),
            ("roots/list", {}, {}, -32601), (SAMPLE, {"messages": []}, {}, -32601),
            (ELICIT, self.FORM, {"url_handler": print}, "..."),
            (ELICIT, self.URL, {"elicitation_handler": print}, "..."),
            (SAMPLE, {"messages": []}, {"sampling_handler": sys.exit}, -32603),
            (SAMPLE, {"messages": []}, {"sampling_handler": lambda *args: 1j}, -32603),
            (SAMPLE, {"messages": []}, {"sampling_handler": refuse}, -1),
            (SAMPLE, {"messages": ["x"]}, {"sampling_handler": print}, "..."),
            (ELICIT, {"requestedSchema": 5}, {"elicitation_handler": print}, "..."),
        ]:
            with self.subTest(method, params=params, code=code), captured_stderr():
                found = asked(method, params, **options)
                self.assertTrue(matches({"code": code, "message": "..."}, found), found)

    def test_roots_are_paths_uris_or_dicts_and_the_server_is_told(self):
        here = {"uri": Path("x").absolute().as_uri()}
        given = ["x", Path("x"), "file:///x", {"uri": "file:///y", "name": "Y"}]
        expected = {"roots": [here, here, {"uri": "file:///x"}, given[-1]]}
        self.assertEqual(asked("roots/list", roots=given), expected)
        with Scripted(lambda m: [request("q", "roots/list")], roots=[]) as fake:
            fake.client.set_roots(given)
            fake.next("notifications/roots/list_changed")
            fake.client.submit("go")
            self.assertEqual(fake.next()["result"], expected)
            fake.client.set_roots("file:///x")  # one
            fake.client.submit("go")
            self.assertEqual(fake.next()["result"], {"roots": [{"uri": "file:///x"}]})

    def test_a_sampling_handler_gives_a_text_a_block_or_a_result(self):
        text, image = mcp_min.Text("hi"), mcp_min.Image(data=b"x")
        whole = {"role": "assistant", "content": text, "model": "m", "stopReason": "x"}
        params = {"messages": [{"role": "user", "content": text}], "maxTokens": 5}
        for answer, content in [("hi", text), (image, image), (whole, text)]:
            with self.subTest(answer):
                heard = []
                result = asked(SAMPLE, params, sampling_handler=lambda *args:
                               heard.append(args) or answer)
                self.assertEqual([result["content"], result["role"], "model" in result],
                                 [content, "assistant", True])
                (first,), got = heard[0]
                self.assertEqual([first.content.text, got.max_tokens], ["hi", 5])

    def test_the_user_fills_in_a_form_declines_or_cancels(self):
        accepted = {"action": "accept", "content": {"name": "Ann"}}
        Name = dataclasses.make_dataclass("N", ["name"])
        for answer, expected in [
            ({"name": "Ann"}, accepted), (Name("Ann"), accepted),
            ("Ann", accepted), (Elicited("accept", {"name": "Ann"}, False), accepted),
            (None, {"action": "decline"}), (Elicited("decline"), {"action": "decline"}),
            (Elicited("cancel"), {"action": "cancel"}),
        ]:
            with self.subTest(answer):
                heard = []
                found = asked(ELICIT, self.FORM, elicitation_handler=lambda *args:
                              heard.append(args) or answer)
                self.assertTrue(matches(expected, found), found)
                self.assertEqual(
                    heard, [("Who?", self.FORM["requestedSchema"], self.FORM)])
        for answer, action in ((True, "accept"), (False, "decline"), (None, "decline")):
            found = asked(ELICIT, self.URL, url_handler=lambda *args:
                          heard.append(args) or answer)
            self.assertEqual([found, heard[-1]],
                             [{"action": action}, ("Pay?", "https://x/", self.URL)])

    def test_handlers_may_use_the_client_and_run_at_once_and_hold_up_no_pong(self):
        def handle(*args):
            with contextlib.suppress(ConnectionClosed):
                fake.client.ping()
                started.release()
            free.wait()

        free, started = gate(), threading.Semaphore(0)
        many = [request(id, SAMPLE, messages=[]) for id in range(100)]
        sent = [notice("acme"), *many, request("ping", "ping")]
        with Scripted(lambda m: None if m["method"] == "ping" else [*sent, ok(m)],
                      sampling_handler=handle, message_handler=handle) as fake:
            fake.client.request("go")
            self.assertTrue(all(started.acquire(timeout=SECONDS) for _ in range(3)))
            self.assertEqual(fake.next()["id"], "ping")
            free.set()


# -- The official SDK ------------------------------------------------------------------

BOTH_SERVERS = r'''
@server.tool()
def add(a: int, b: int = 2) -> int:
    return a + b
@server.resource("data://{name}")
def data(name: str) -> str:
    return name
@server.prompt()
def review(code: str) -> str:
    return f"Review {code}"
server.run()
'''
OUR_SERVER = r'''
from mcp_min import Context, Image, Server
server = Server("ours")
server.completion("review", "code")(lambda value: [value + "!"])
@server.tool
def ask(ctx: Context):
    ctx.report_progress(1, 2, "half")
    ctx.info("working")
    who, root = ctx.elicit("Who?", str).data, ctx.list_roots()[0]
    return [Image(data=b"x"), f"{who} {ctx.sample('hi').text} {root.uri}"]
''' + BOTH_SERVERS
ITS_SERVER = r'''
try:
    from mcp.server.mcpserver import Context, Image, MCPServer as FastMCP
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP, Image
from pydantic import create_model
server = FastMCP("its")
@server.tool()
async def ask(ctx: Context):
    await ctx.report_progress(1, 2, "half")
    await ctx.info("working")
    who = await ctx.elicit("Who?", create_model("Who", value=(str, ...)))
    uri = (await ctx.session.list_roots()).roots[0].uri
    return [Image(data=b"x", format="png"), f"{who.data.value} hi {uri}"]
''' + BOTH_SERVERS


@unittest.skipUnless(find_spec("mcp"), "it needs the package mcp")
class TestInterop(unittest.TestCase):
    def check(self, results, heard):
        for found, expected in zip(results, [
            {"tools": [{"name": "ask"}, {"name": "add"}]},
            {"resourceTemplates": [{"uriTemplate": "data://{name}"}]},
            {"prompts": [{"name": "review"}]}, {"contents": [{"text": "x"}]},
            {"messages": [{"content": {"text": "Review x"}}]},
            {"structuredContent": {"result": 3}, "isError": False}, {"isError": True},
            {"content": [{"type": "image"}, {"text": "Ann hi file:///x"}]},
            {"completion": {"values": ["x!"]}},
        ]):
            self.assertTrue(matches(expected, found), found)
        self.assertIn(heard, ([(1, 2, "half"), "working"],
                              [(1, 2, "half")] * 4))  # it is asked three times

    def test_its_client_uses_our_server(self):
        import mcp

        types = mcp.types
        ref = types.PromptReference(type="ref/prompt", name="review")
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-c", OUR_SERVER],
            env={"PYTHONPATH": str(HERE)})

        def always(result):
            async def answer(*args):
                return result
            return answer

        async def use(mode, heard):
            async def hear(*what):
                heard.append(what if len(what) == 3 else what[0].data)

            handlers = {
                "logging_callback": hear, "sampling_callback": always(
                    types.CreateMessageResult(role="assistant", model="m", content={
                        "type": "text", "text": "hi"})),
                "elicitation_callback": always(types.ElicitResult(
                    action="accept", content={"value": "Ann"})),
                "list_roots_callback": always(types.ListRootsResult(
                    roots=[{"uri": "file:///x"}]))}
            async with contextlib.AsyncExitStack() as stack:
                enter = stack.enter_async_context
                if hasattr(mcp, "Client"):  # version 2
                    c = await enter(mcp.Client(server, mode=mode, **handlers))
                else:
                    streams = await enter(mcp.stdio_client(server))
                    c = await enter(mcp.ClientSession(*streams, **handlers))
                    await c.initialize()
                return [json.loads(one.model_dump_json(by_alias=True)) for one in (
                    await c.list_tools(), await c.list_resource_templates(),
                    await c.list_prompts(), await c.read_resource("data://x"),
                    await c.get_prompt("review", {"code": "x"}),
                    await c.call_tool("add", {"a": 1}), await c.call_tool("add"),
                    await c.call_tool("ask", progress_callback=hear),
                    await c.complete(ref, {"name": "code", "value": "x"}))]

        for mode in ("legacy", "auto") if hasattr(mcp, "Client") else ("legacy",):
            heard = []
            self.check(asyncio.run(use(mode, heard)), heard)

    def test_our_client_finds_out_what_its_server_speaks(self):
        import mcp
        date = "2026-07-28" if hasattr(mcp, "Client") else LATEST
        with Client([sys.executable, "-c", ITS_SERVER], stderr=None) as client:
            self.assertEqual(client.protocol_version, date)
            self.assertEqual(client.call_tool("add", {"a": 1}).data, {"result": 3})

    def test_our_client_uses_its_server(self):
        heard = []
        with Legacy([sys.executable, "-c", ITS_SERVER], stderr=None,
                    roots=["file:///x"],
                    elicitation_handler=lambda *args: "Ann",
                    log_handler=lambda params: heard.append(params.data),
                    progress_handler=lambda *args: heard.append(args)) as c:
            self.check([
                c.list_tools(None), c.list_resource_templates(None),
                c.list_prompts(None), {"contents": c.read_resource("data://x")},
                c.get_prompt("review", {"code": "x"}), c.call_tool("add", {"a": 1}),
                c.call_tool("add", raise_on_error=False), c.call_tool("ask")], heard)


COMMANDED = f"import sys\nsys.path.insert(0, {str(HERE)!r})" + r'''
from mcp_min import Context, Image, Server, ToolError
server = Server("commanded", "1.0")
@server.tool
def kinds(n: int, flag: bool = False, text: str = "", items: list = []) -> list:
    "Says what came."
    return [f"{n!r} {flag!r} {text!r} {items!r}", Image(data=b"x"), "\x1b[31mred"]
@server.tool
def fail() -> str:
    raise ToolError("no luck")
@server.tool
def long() -> str:
    return "line\n" * 100_000
@server.resource("files://{name}")
def file(name: str) -> str:
    return name
@server.resource("data://x", mime_type="a/b")
def data() -> bytes:
    return b"x"
@server.prompt
def hello(name: str = "you") -> str:
    "Greets."
    return f"hi {name}"
@server.tool
def variable(name: str) -> str:
    import os
    return os.environ.get(name, "none")
@server.tool
def sleep(ctx: Context) -> None:
    ctx.wait(60)
@server.tool
def ask(ctx: Context) -> str:
    ctx.info("\x1b[31mred")
    ctx.report_progress(1, 2, "half")
    form = {"properties": {"day": {"type": "string"}, "seats": {"type": "integer"},
                           "note": {"type": "string"}}}
    return str(ctx.elicit("\x1b[31mWhich table?", form).content)
server.run()
'''


class Test14Commands(unittest.TestCase):
    def run_command(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "server.py").write_text(COMMANDED, encoding="utf-8")
            done = subprocess.run(
                [*COMMAND, *words], cwd=folder,
                capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_list_goes_on_where_a_server_has_resources_and_no_templates(self):
        code = (f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
                "import mcp_min; server = mcp_min.Server('s')\n"
                "server.add_resource('a://b', lambda: 'x', name='b')\n"
                "server.add_prompt(lambda: 'x', name='p')\n"
                "del mcp_min.METHODS['resources/templates/list']; server.run()")
        status, out, err = self.run_command("list", sys.executable, "-c", code, "--")
        self.assertEqual((status, out.splitlines()[1:], err), (
            0, ["resource a://b:", "prompt p:"], ""))

    def test_list_shows_what_a_server_offers(self):
        status, out, _ = self.run_command("list", "--", "server.py")
        self.assertEqual((status, out.splitlines()), (0, [
            "commanded 1.0, revision 2026-07-28", "tool kinds: Says what came.",
            '    n: {"type": "integer"}',
            '    flag: {"type": "boolean", "default": false}',
            '    text: {"type": "string", "default": ""}',
            '    items: {"type": "array", "items": {}, "default": []}',
            "tool fail:", "tool long:", "tool variable:",
            '    name: {"type": "string"}', "tool sleep:", "tool ask:",
            "resource data://x:", "resource_template files://{name}:",
            "prompt hello: Greets."]))

    def test_call_reads_values_by_the_schema_and_shows_what_came(self):
        for words in (["n=5", "flag=true", "text=7", "items=[1]"],
                      ['{"n": 5, "flag": true, "text": "7", "items": [1]}']):
            words = ["call", "kinds", *words, "--", "server.py"]
            status, out, _ = self.run_command(*words)
            self.assertEqual((status, out.splitlines()), (0, [
                "5 True '7' [1]",
                '{"type": "image", "data": "...", "mimeType": "image/png"}',
                r"\x1b[31mred"]))

    def test_what_fails_says_so_and_has_the_status_1(self):
        for words, text in [
                (["call", "fail", "--", "server.py"], "no luck"),
                (["call", "none", "--", "server.py"], "Unknown tool none"),
                (["list", "no-such-command"], "no-such-command")]:
            with self.subTest(words):
                status, out, err = self.run_command(*words)
                self.assertEqual(status, 1)
                self.assertIn(text, out + err)
                self.assertNotIn("Traceback", out + err)

    def test_what_is_written_wrong_shows_the_usage_and_has_the_status_2(self):
        for words in ([], ["list"], ["call"], ["call", "kinds"],
                      ["call", "kinds", "--"], ["call", "--", "server.py"],
                      ["call", "kinds", "n", "--", "server.py"], ["other", "x"]):
            with self.subTest(words):
                status, out, err = self.run_command(*words)
                self.assertEqual((status, out), (2, ""))
                self.assertIn("usage: mcp_min.py", err)

    @unittest.skipIf(os.name == "nt", "there are other errors of pipes")
    def test_a_reader_that_has_enough_is_no_error(self):
        command = [*COMMAND, "call", "long", "--", sys.executable, "-c", COMMANDED]
        with subprocess.Popen(command, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.readline(), b"line\n")
            process.stdout.close()
            self.assertEqual(process.stderr.read(), b"")
        self.assertEqual(process.returncode, 0)

    def test_a_server_that_says_nonsense_is_no_traceback(self):
        odd = {"name": "odd", "inputSchema": {"properties": {"x": {"type": [{}]}},
                                              "required": None}}
        hands = {**HANDS, "capabilities": {"tools": {}}}
        unknown = {"code": -32601, "message": "unknown"}
        probed = json.dumps({"jsonrpc": "2.0", "id": 1, "error": unknown})
        shake = json.dumps({"jsonrpc": "2.0", "id": 2, "result": hands})
        for tools, expected in (([{}], 1), ([odd], 0)):
            page = json.dumps({"jsonrpc": "2.0", "id": 3, "result": {"tools": tools}})
            code = (f"import sys; input(); print({probed!r}, flush=True); input()\n"
                    f"print({shake!r}, flush=True); input(); input()\n"
                    f"print({page!r}, flush=True); sys.stdin.read()")
            with self.subTest(tools):
                status, _, err = self.run_command("list", sys.executable, "-c", code)
                self.assertEqual(status, expected, err)
                self.assertRegex(err, r"(?s)^((?!Traceback|usage).)*$")

    def test_the_demo_is_a_session_of_each_era_line_by_line(self):
        status, out, _ = self.run_command("demo")
        self.assertEqual(status, 0)
        legacy, modern = out.split("\n-- ")
        for part, texts in (
                (legacy, ['-> {"jsonrpc":"2.0","id":1,"method":"initialize"',
                          '<- {"jsonrpc":"2.0","id":1,"method":"elicitation/create"']),
                (modern, ['-> {"jsonrpc":"2.0","id":1,"method":"server/discover"',
                          '"resultType":"input_required"', "inputResponses"])):
            for text in [*texts, '"text":"2 seats for Ada"', "[tools/list, "]:
                with self.subTest(text):
                    self.assertIn(text, part)

    def test_read_and_prompt_show_what_came(self):
        for words, expected in (
                (["read", "files://a"], ["a"]),
                (["read", "data://x"],
                 ['{"uri": "data://x", "mimeType": "a/b", "blob": "..."}']),
                (["prompt", "hello"], ["user:", "hi you"]),
                (["prompt", "hello", "name=5"], ["user:", "hi 5"]),
                (["prompt", "hello", '{"name": "Ada"}'], ["user:", "hi Ada"])):
            with self.subTest(words):
                status, out, err = self.run_command(*words, "--", "server.py")
                self.assertEqual((status, out.splitlines()), (0, expected), err)

    def test_variables_and_the_timeout_are_options(self):
        words = ["call", "variable", "name=A", "--", "server.py"]
        for options, expected in (
                ([], "none\n"), (["--env", "A=b=c"], "b=c\n"),
                (["--env", "A=x", "--timeout", "50", "--env", "A="], "\n")):
            with self.subTest(options):
                status, out, err = self.run_command(*options, *words)
                self.assertEqual((status, out[:len(expected)]), (0, expected), err)
        status, out, err = self.run_command(
            "--timeout", "0.1", "call", "sleep", "--", "server.py")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("RequestTimeout", err)
        for words in (["--timeout", "x", "demo"], ["--timeout"], ["--env", "A", "demo"],
                      ["--other", "demo"], ["--env", "A=b"]):
            with self.subTest(words):
                self.assertEqual(self.run_command(*words)[:2], (2, ""))
        self.assertEqual(self.run_command("--version"),
                         (0, f"{mcp_min.__version__}\n", ""))

    def at_terminal(self, code, *dialogue):
        """What is shown, stdout, the status; dialogue: what must be, what is typed."""
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        command = [*COMMAND, "call", "ask", "--", sys.executable, "-c", code]
        shown = b""
        with subprocess.Popen(command, stdin=theirs, stderr=theirs,
                              stdout=subprocess.PIPE) as process:
            self.addCleanup(process.kill)  # before the rest, if a test fails
            for text, typed_then in dialogue:
                while text.encode() not in shown:
                    if not select.select([ours], [], [], SECONDS)[0]:
                        process.kill()
                        self.fail(f"{text} is not in {shown}")
                    shown += os.read(ours, 65536)
                while typed_then is None and process.poll() is None:
                    # Again, because one that comes just before the read is not seen.
                    process.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(2)
                if typed_then is None:
                    break
                os.write(ours, typed_then.encode())
            out = process.stdout.read()
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
        return shown.decode(), out.decode(), process.returncode

    legacy_code = COMMANDED.replace(
        "server.run()",
        "import mcp_min\nmcp_min.METHODS.pop('server/discover')\nserver.run()")

    @unittest.skipIf(os.name == "nt", "there is no pty")
    def test_at_a_terminal_the_user_is_asked_and_sees_logs_and_progress(self):
        for era, code in (("modern", COMMANDED), ("legacy", self.legacy_code)):
            with self.subTest(era):
                shown, out, status = self.at_terminal(
                    code, (r"\x1b[31mred", ""), ("1 2 half", ""),
                    ("[31mWhich table?\r\n(The server asks this.)", ""),
                    ('day {"type": "string"}:', "7\n"),
                    ('seats {"type": "integer"}:', "7\n"), ("note {", "\n"))
                self.assertEqual((out, status), (
                    "{'day': '7', 'seats': 7}\n", 0), shown)
                self.assertNotIn("\x1b", shown)

    @unittest.skipIf(os.name == "nt", "there is no pty")
    def test_ctrl_c_at_a_question_ends_it(self):
        for era, code in (("modern", COMMANDED), ("legacy", self.legacy_code)):
            with self.subTest(era):
                shown, out, status = self.at_terminal(code, ("day {", None))
                self.assertEqual((out, status), ("", 130), shown)
                self.assertNotIn("Traceback", shown)

    def test_without_a_terminal_nobody_is_asked(self):
        status, out, err = self.run_command("call", "ask", "--", "server.py")
        self.assertEqual((status, out), (1, ""))
        self.assertIn("elicitation", err)
        self.assertNotIn("half", err)


META = "io.modelcontextprotocol/"
ELICITATION = {"elicitation": {}}
BOOK = {"name": "book", "arguments": {"day": "Monday"}}


def modern(id, method, caps=None, level=None, **params):
    """A request that says itself who asks."""
    meta = {f"{META}protocolVersion": "2026-07-28",
            f"{META}clientCapabilities": caps or {},
            f"{META}clientInfo": {"name": "test", "version": "1"},
            **params.pop("meta", {})}
    if level:
        meta[f"{META}logLevel"] = level
    return request(id, method, _meta=meta, **params)


def modern_server(**options):
    """A server with a tool that asks, and counts how often what runs."""
    server = Server("modern", **options)
    server.ran = []

    @server.tool
    def book(day: str, ctx: Context) -> str:
        server.ran.append("book")
        table = ctx.once("table", lambda: server.ran.append("once") or 7)
        name = ctx.elicit("Who?", str, key="name")
        hour = ctx.elicit("When?", ["noon", "night"])
        return f"{day} {table} {name.data} {hour.data}"

    @server.tool
    def delete(ctx: Context) -> str:
        what = "backup" if len(server.ran) < 1 else "everything"
        server.ran.append(what)
        return f"{what}: {ctx.elicit(f'Delete {what}?', bool, key='sure').data}"

    @server.tool
    def careful(ctx: Context) -> str:
        try:
            return str(ctx.sample("hi", key="s").text)
        except McpError as error:
            return f"caught {error.code}"

    @server.tool
    def talk(ctx: Context) -> str:
        ctx.info("hello")
        ctx.report_progress(1)
        return "done"

    @server.resource("note://{name}")
    def note(name: str, ctx: Context) -> str:
        return f"{name} {ctx.elicit('Password?', str, key='password').data}"

    @server.prompt
    def hello(ctx: Context) -> str:
        return f"Hello {ctx.elicit('Name?', str, key='name').data}"

    return server


def accept(value):
    return {"action": "accept", "content": {"value": value}}


class Modern(Wire):
    """A session without a handshake."""

    def __init__(self, server=None, **options):
        super().__init__(server or modern_server(**options), date=None)

    def get(self, method, first=None, answers=None, caps=ELICITATION, **params):
        if first is not None:
            params["requestState"] = first["requestState"]
        if answers is not None:
            params["inputResponses"] = answers
        got = self.ask(modern(1, method, caps, **params))
        return got["error"] if "error" in got else got["result"]


class Test8Modern(unittest.TestCase):
    """2026-07-28 on the wire (basic, patterns/mrtr, patterns/subscriptions)."""

    def open(self, *server, **options):
        wire = Modern(*server, **options).__enter__()
        self.addCleanup(wire.__exit__, None, None, None)
        return wire

    def test_discover_says_what_there_is(self):
        got = self.open().get("server/discover")
        self.assertTrue(matches({
            "resultType": "complete", "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "resources": {}, "prompts": {},
                             "logging": {}},
            "ttlMs": 0, "cacheScope": "private",
            "_meta": {f"{META}serverInfo": {"name": "modern"}}}, got), got)

    def test_what_is_wrong_with_meta_is_named(self):
        wire = self.open()
        for key, value, code, word in [
                ("protocolVersion", "2099-01-01", -32022, "2099-01-01"),
                ("protocolVersion", "2025-11-25", -32022, "2025-11-25"),
                ("protocolVersion", 7, -32602, "protocolVersion"),
                ("clientCapabilities", None, -32602, "clientCapabilities"),
                ("clientCapabilities", [], -32602, "clientCapabilities"),
                ("clientInfo", 42, -32602, "clientInfo"),
                ("logLevel", "loud", -32602, "loud")]:
            with self.subTest(key, value=value):
                error = wire.get("tools/list", meta={META + key: value})
                self.assertEqual(error["code"], code)
                self.assertIn(word, error["message"])
                if code == -32022:
                    self.assertEqual(error["data"], {
                        "supported": ["2026-07-28"], "requested": word})
        self.assertIn("result", wire.ask(initialize(id=2)))

    def test_methods_of_the_other_era_are_unknown(self):
        wire = self.open(serving(Context.ping).server)
        for method in ("initialize", "ping", "logging/setLevel", "resources/subscribe",
                       "resources/unsubscribe", "acme/unknown", ""):
            with self.subTest(method):
                self.assertEqual(wire.get(method, uri="note://a")["code"], -32601)
        # Nor is a modern client pinged.
        self.assertEqual(wire.get("tools/call", name="run")["code"], -32601)
        wire.send(request(1, "server/discover"))
        got = wire.expect(refused(INVALID_PARAMS, 1))
        self.assertIn("protocolVersion", got["error"]["message"])
        wire.send(request(1, "subscriptions/listen", notifications={}))
        wire.expect(refused(INVALID_REQUEST, 1))

    def test_results_say_who_answers_and_for_how_long_they_hold(self):
        wire = self.open()
        for kind in ("tools", "resources", "prompts", "resources/templates"):
            got = wire.get(f"{kind}/list")
            self.assertEqual([got["resultType"], got["ttlMs"]], ["complete", 0], kind)
        got = wire.get("tools/call", name="talk")
        self.assertNotIn("ttlMs", got)
        self.assertIs(got["isError"], False)
        self.assertEqual(got["_meta"][f"{META}serverInfo"]["name"], "modern")

    def test_what_does_not_exist_is_invalid_params(self):
        wire = self.open()
        for method, params in [
                ("resources/read", {"uri": "x://y"}), ("tools/call", {"name": "nope"}),
                ("prompts/get", {"name": "nope"})]:
            error = wire.get(method, **params)
            self.assertEqual([error["code"], error["data"]], [-32602, params])

    def test_log_messages_go_to_requests_that_want_them(self):
        wire = self.open()
        wire.get("tools/call", name="talk")
        wire.send(modern(2, "tools/call", level="debug", name="talk",
                         meta={"progressToken": "p"}))
        wire.expect(notify("notifications/message", data="hello"))
        wire.expect(notify("notifications/progress", progressToken="p", progress=1))
        wire.expect(answered(2))

    def test_a_question_ends_the_handler_and_the_answer_runs_it_again(self):
        wire = self.open()
        first = wire.get("tools/call", **BOOK)
        self.assertEqual(first["resultType"], "input_required")
        self.assertEqual([*first["inputRequests"]], ["name"])
        self.assertTrue(matches({"method": "elicitation/create", "params": {
            "message": "Who?", "requestedSchema": {"type": "object", "properties": {
                "value": {"type": "string"}}}}}, first["inputRequests"]["name"]))
        answers = {"name": accept("Ada"), "other": 1}
        second = wire.get("tools/call", first, answers, **BOOK)
        (key, question), = second["inputRequests"].items()
        self.assertEqual(question["params"]["message"], "When?")
        third = wire.get("tools/call", second, {key: accept("noon")}, **BOOK)
        self.assertEqual(third["content"], [Text("Monday 7 Ada noon")])
        self.assertEqual(wire.server.ran, ["book", "once", "book", "book"])

    def test_a_missing_answer_is_asked_for_again(self):
        wire = self.open()
        first = wire.get("tools/call", **BOOK)
        for answers in ({}, {"wrong": accept("x")}):
            again = wire.get("tools/call", first, answers, **BOOK)
            self.assertEqual(again["inputRequests"], first["inputRequests"])

    def test_answers_without_a_state_are_taken(self):
        wire = self.open()
        answers = {"name": accept("Ada"), "password": accept("x")}
        got = wire.get("prompts/get", answers=answers, name="hello")
        self.assertEqual(got["messages"][0]["content"]["text"], "Hello Ada")
        got = wire.get("resources/read", answers=answers, uri="note://a")
        self.assertEqual(got["contents"][0]["text"], "a x")

    def test_an_answer_that_does_not_fit_is_an_error(self):
        wire = self.open()
        for answer in (12345, accept(1), {"action": "maybe"}, None):
            got = wire.get("prompts/get", answers={"name": answer}, name="hello")
            self.assertEqual(got.get("code"), -32602, got)

    def test_an_answer_belongs_to_its_question(self):
        wire = self.open()
        first = wire.get("tools/call", name="delete")
        self.assertIn("backup", str(first["inputRequests"]))
        error = wire.get("tools/call", first, {"sure": accept(True)}, name="delete")
        self.assertEqual(error["code"], -32602)
        self.assertIn("another question", error["message"])

    def test_two_asks_of_one_key_are_two_questions(self):
        def twice(ctx):
            return str([ctx.elicit("More?", bool, key="k").data for _ in range(2)])

        wire, got, answers = self.open(serving(twice).server), None, None
        for answer in (True, False, None):
            got = wire.get("tools/call", got, answers, name="run")
            answers = dict.fromkeys(got.get("inputRequests", ()), accept(answer))
        self.assertEqual(got["content"], [Text("[True, False]")])

    def test_an_answer_is_kept_whatever_is_asked_first_in_the_next_run(self):
        def both(ctx):
            texts = sorted(["One?", "Two?"], reverse=next(runs) % 2)
            return str([ctx.elicit(text, bool).data for text in texts])

        wire, got, answers = self.open(serving(both).server), None, None
        runs = itertools.count()
        for _ in range(3):
            got = wire.get("tools/call", got, answers, name="run")
            answers = dict.fromkeys(got.get("inputRequests", ()), accept(True))
        self.assertEqual(got["content"], [Text("[True, True]")])

    def test_a_state_that_is_not_ours_is_refused_before_the_handler_runs(self):
        wire = self.open()
        first = wire.get("tools/call", **BOOK)
        ran, state = [*wire.server.ran], first["requestState"]
        bad = [(BOOK, state[:i] + ("x" if state[i] != "x" else "y") + state[i + 1:])
               for i in range(0, len(state), 7)]
        bad += [(BOOK, text) for text in (state[:-1], f"{state}-TAMPERED", "é")]
        bad += [({"name": "talk", "arguments": {}}, state), ({"name": "talk"}, state),
                ({"name": "book", "arguments": {"day": "Friday"}}, state)]
        for params, text in bad:
            got = wire.get("tools/call", {"requestState": text},
                           {"name": accept("Eve")}, **params)
            self.assertEqual(got.get("code"), -32602, text)
        other = self.open()  # with another secret
        self.assertEqual(other.get("tools/call", first, **BOOK)["code"], -32602)
        self.assertEqual(wire.server.ran, ran)

    def test_a_state_expires(self):
        wire = self.open()
        with mock.patch.object(mcp_min, "MAX_STATE_AGE", -1):
            first = wire.get("prompts/get", name="hello")
        self.assertEqual(wire.get("prompts/get", first, name="hello")["code"], -32602)

    def test_servers_with_one_secret_take_turns(self):
        with self.assertRaises(ValueError):
            Server("short", state_secret=b"x" * 15)
        one, other = (self.open(state_secret=b"0123456789abcdef") for _ in range(2))
        first = one.get("prompts/get", name="hello")
        got = other.get("prompts/get", first, {"name": accept("Ada")}, name="hello")
        self.assertEqual(got["messages"][0]["content"]["text"], "Hello Ada")

    def test_a_client_is_asked_only_what_it_declares(self):
        wire = self.open()
        error = wire.get("prompts/get", caps={}, name="hello")
        self.assertEqual([error["code"], error["data"]],
                         [-32021, {"requiredCapabilities": {"elicitation": {}}}])
        got = wire.get("tools/call", caps={}, name="careful")
        self.assertEqual(got["content"], [Text("caught -32021")])

    def test_a_stream_is_acknowledged_first_tagged_and_told_what_it_asked_for(self):
        wire, tag = self.open(), {"_meta": {f"{META}subscriptionId": "s"}}
        server, wanted = wire.server, {"toolsListChanged": True,
                                       "resourceSubscriptions": ["note://a"]}
        wire.send(modern("s", "subscriptions/listen", notifications=wanted))
        wire.expect(notify("notifications/subscriptions/acknowledged",
                           notifications=wanted, **tag))
        server.add_prompt(lambda: "", name="p")
        server.notify_resource_updated("note://b")
        server.notify_resource_updated("NOTE://%61")
        wire.expect(notify("notifications/resources/updated", **tag))
        server.add_tool(lambda: "", name="t")
        wire.expect(notify("notifications/tools/list_changed", **tag))
        wire.send(cancel("s"))
        wire.get("server/discover")  # it was read
        server.remove_tool("t")
        wire.get("server/discover")  # nothing came before it

    def test_a_stream_that_is_cancelled_first_is_not_acknowledged(self):
        server, read = modern_server(), gate()
        server.method("notifications/read")(lambda params: read.set())
        wire = Modern(server)
        wire.output = Fragile()
        with wire:
            wire.output.room.clear()
            wire.send(modern(1, "server/discover"))
            wire.send(modern("s", "subscriptions/listen", notifications={}))
            wire.send(cancel("s"))
            wire.send(notify("notifications/read"))
            read.wait()
            wire.output.room.set()
            wire.expect({"id": 1, "result": {}})
            wire.get("server/discover")  # nothing came before it

    def test_a_stream_ends_with_a_result(self):
        wire = self.open()
        wire.send(modern(5, "subscriptions/listen", notifications={}))
        self.assertEqual(wire.receive()["params"]["notifications"], {})
        wire.input.close()
        wire.expect(answered(5, resultType="complete",
                             _meta={f"{META}subscriptionId": 5}))

    def test_both_eras_share_a_pipe(self):
        with Wire(modern_server()) as wire:
            self.assertEqual({*wire.ask(request(1, "tools/list"))["result"]}, {"tools"})
            self.assertIn("resultType", wire.ask(modern(2, "tools/list"))["result"])
            wire.fence()


DISCOVERED = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"],
                         "capabilities": {"tools": {}}, "ttlMs": 0,
                         "cacheScope": "private"}}


def in_turn(*answers, **options):
    """A Scripted that answers with these members, then only the last; None: silence."""
    turns = itertools.chain(answers, itertools.repeat(answers[-1]))

    def answer(m):
        members = next(turns)
        return [{"jsonrpc": "2.0", "id": m["id"], **members}] if members else []

    return Scripted(answer, mode="auto", **options)


class Test13Negotiation(unittest.TestCase):
    def test_a_modern_server_is_not_shaken_hands_with(self):
        with in_turn(DISCOVERED, log_handler=print) as fake:
            self.assertEqual(fake.client.protocol_version, "2026-07-28")
            # The SDK's servers have log messages that they do not declare.
            self.assertRaises(ValueError, fake.client.set_logging_level, "loud")
            fake.client.ping()
            self.assertEqual(fake.received.qsize(), 2)
            _, ping = (fake.next("server/discover") for _ in range(2))
            self.assertEqual(ping["params"]["_meta"][f"{META}logLevel"], "info")

    def test_a_malformed_acknowledgement_offers_nothing(self):
        with in_turn(DISCOVERED, {"result": {"notifications": {
                "resourceSubscriptions": [{}]}}}, message_handler=str) as fake:
            self.assertRaisesRegex(McpError, "offers no", fake.client.subscribe, "a:b")

    def test_any_other_answer_leads_to_a_handshake(self):
        errors = [{"error": {"code": code, "message": ""}}
                  for code in (-32601, -32602, -32600, 0, -32000)]
        results = [{"result": result} for result in (
            {}, {"supportedVersions": 5}, {"supportedVersions": [LATEST]})]
        for answer in errors + results:
            with self.subTest(answer), in_turn(answer) as fake:
                self.assertEqual(fake.client.protocol_version, LATEST)
                fake.next("server/discover")
                meta = fake.next("initialize")["params"]["_meta"]
                self.assertEqual(meta.keys(), {"progressToken"})

    @mock.patch.object(mcp_min, "PROBE_SECONDS", 0.01)
    def test_silence_leads_to_a_handshake(self):
        with in_turn(None) as fake:
            fake.next("server/discover")
            fake.next("initialize")

    @mock.patch.object(mcp_min, "PROBE_SECONDS", 0.01)
    def test_a_late_discovery_and_a_refused_handshake_mean_modern(self):
        with in_turn(None, DISCOVERED, initialize=lambda m: [
                refused(0, m["id"])]) as fake:
            self.assertEqual(fake.client.protocol_version, "2026-07-28")

    def test_a_version_in_common_is_tried_again_and_none_is_an_error(self):
        def refusing(supported):
            return {"error": {"code": -32022, "message": "", "data": {
                "supported": supported, "requested": "2026-07-28"}}}

        twice = ["server/discover"] * 2
        with in_turn(refusing(["2026-07-28"]), DISCOVERED) as fake:
            self.assertEqual(fake.client.protocol_version, "2026-07-28")
        self.assertEqual([m["method"] for m in fake.sent()], twice)
        for supported in (["2099-01-01"], 5, None):
            fake = in_turn(refusing(supported))
            self.assertRaises(McpError, fake.client.connect)
            self.assertEqual([m["method"] for m in fake.sent()], twice)

    def test_a_process_that_dies_of_the_probe_is_started_again(self):
        program = (
            "import sys, json\n"
            "for line in sys.stdin:\n"
            "    m = json.loads(line)\n"
            "    if m['method'] == 'server/discover':\n"
            "        sys.stderr.write('before initialize\\n'); sys.exit(%s)\n"
            "    if m['method'] == 'initialize':\n"
            "        print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': {\n"
            "            'protocolVersion': '2025-06-18', 'capabilities': {}}}),\n"
            "            flush=True)\n")
        for status in (0, 1):
            shown = io.StringIO()
            with self.subTest(status), Client(
                    [sys.executable, "-S", "-c", program % status],
                    stderr=shown) as client:
                self.assertEqual(client.protocol_version, "2025-06-18")
            self.assertEqual(shown.getvalue(), "")

    def test_mode_pins_an_era_or_a_revision(self):
        server = modern_server()
        for mode, date in [("legacy", LATEST), ("modern", "2026-07-28"),
                           ("2025-03-26", "2025-03-26"), ("auto", "2026-07-28")]:
            with Client(server, mode=mode) as client:
                self.assertEqual(client.protocol_version, date)
                client.ping()
        with self.assertRaises(ValueError):
            Client(server, mode="2099-01-01")

    def test_questions_are_answered_and_the_call_sent_again(self):
        for mode in ("legacy", "modern"):
            server = modern_server()
            asked = []
            with Client(server, mode=mode, elicitation_handler=lambda message, schema,
                        params: asked.append(message) or "noon") as client:
                result = client.call_tool("book", {"day": "Monday"})
                self.assertEqual(result.text, "Monday 7 noon noon")
            self.assertEqual(asked, ["Who?", "When?"])
            self.assertEqual(server.ran.count("once"), 1)

    def test_a_state_is_echoed_and_only_if_there_was_one(self):
        asks = {"resultType": "input_required", "inputRequests": {
            "a": {"method": "roots/list"}}}
        waits = {"resultType": "input_required", "requestState": " é"}
        results = [{"result": result} for result in (asks, waits, {"content": None})]
        with in_turn(DISCOVERED, *results, roots=["file:///a"]) as fake:
            self.assertEqual(fake.client.call_tool("t").content, [])
        _, *rounds = fake.sent()
        first, second, third = (message["params"] for message in rounds)
        self.assertEqual(second["inputResponses"], {"a": {"roots": [
            {"uri": "file:///a"}]}})
        self.assertNotIn("requestState", second)
        self.assertEqual(third["requestState"], " é")
        self.assertNotIn("inputResponses", third)
        self.assertEqual(len({message["id"] for message in rounds}), 3)

    def test_a_malformed_or_endless_question_is_an_error(self):
        for kind, questions, calls in [
                ("strange", {}, 1), ("input_required", None, 1),
                ("input_required", [1], 1), ("input_required", {"a": 5}, 1),
                ("input_required", {"a": {"method": "roots/list"}}, 17)]:
            result = {"resultType": kind, "inputRequests": questions}
            with self.subTest(result), in_turn(
                    DISCOVERED, {"result": result}, roots=[]) as fake:
                self.assertRaises(McpError, fake.client.call_tool, "t")
            self.assertEqual([m["method"] for m in fake.sent()], [
                "server/discover", *["tools/call"] * calls])

    def test_a_call_cancelled_while_the_user_is_asked_is_not_sent_again(self):
        server, asked, answer = modern_server(), gate(), gate()

        def ask(message, schema, params):
            asked.set()
            answer.wait()
            return "x"

        with Client(server, mode="modern", elicitation_handler=ask) as client:
            future = client.submit_tool("book", {"day": "Monday"})
            asked.wait()
            self.assertTrue(future.cancel())
            answer.set()
            client.call_tool("talk")
        self.assertEqual(server.ran.count("book"), 1)

    def test_subscriptions_are_one_stream(self):
        server, told = modern_server(), []
        event = threading.Semaphore(0)

        def heard(message):
            told.append((message["method"], message["params"].get("uri")))
            event.release()

        with Client(server, mode="modern", message_handler=heard) as client:
            client.subscribe("note://a")
            client.subscribe("note://a")
            client.subscribe("note://b")
            server.notify_resource_updated("note://b")
            self.assertTrue(event.acquire(timeout=SECONDS))
            client.unsubscribe("note://a")
            server.notify_resource_updated("note://a")
            server.add_tool(lambda: "", name="t")
            self.assertTrue(event.acquire(timeout=SECONDS))
        self.assertEqual(told, [("notifications/resources/updated", "note://b"),
                                ("notifications/tools/list_changed", None)])

    def test_log_messages_come_if_a_level_is_given(self):
        heard, event = [], gate()

        def log(params):
            heard.append(params.data)
            event.set()

        with Client(modern_server(), mode="modern", log_handler=log,
                    log_level="info") as client:
            client.call_tool("talk")
            event.wait()
        self.assertEqual(heard, ["hello"])


class TestListen(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "private", "port")
        self.server = Server("app")
        self.server.add_tool(echo)
        closes_soon = mock.patch.object(
            socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))
        closes_soon.start()
        self.addCleanup(closes_soon.stop)

    def listen(self):
        listener = self.server.listen(self.path)
        self.addCleanup(listener.close)
        return listener

    def connect(self):
        argv = [*COMMAND, "connect", str(self.path)]
        return Client(argv, timeout=SECONDS)

    def door(self):
        port, secret, _ = self.path.read_text().split()
        connection = socket.create_connection(("127.0.0.1", int(port)), SECONDS)
        self.addCleanup(connection.close)
        return connection, secret.encode()

    def test_connect_relays_sessions_at_the_same_time(self):
        self.listen()
        with self.connect() as first, self.connect() as second:
            for client in (first, second, first):
                text = "x" * 300_000 + "\u20ac"
                self.assertEqual(client.call_tool("echo", {"x": text}).text, text)
        self.assertEqual([first.exit_code, second.exit_code], [0, 0])

    def test_connect_waits_for_the_application(self):
        self.path.parent.mkdir()
        self.path.write_text("")  # it is being written
        timer = threading.Timer(0.3, self.listen)
        timer.start()
        with self.connect() as client:
            self.assertEqual(client.call_tool("echo", {"x": "a"}).text, "a")
        timer.join()

    def test_what_was_asked_before_the_end_of_input_is_answered(self):
        def write(data):  # as a pipe takes a part, if the process is stopped meanwhile
            taken.append(bytes(data[:100]))
            return len(taken[-1])

        self.listen()
        taken, asked = [], (initialize(), call(1, "echo", x="a" * 999))
        lines = io.BytesIO(b"\n".join(json.dumps(one).encode() for one in asked))
        streams = lines, SimpleNamespace(write=write, flush=list)
        with mock.patch.object(
                mcp_min, "stdio_server", lambda: contextlib.nullcontext(streams)):
            mcp_min.relay(str(self.path))
        answers = list(map(json.loads, b"".join(taken).splitlines()))
        self.assertEqual([one["id"] for one in answers], [0, 1])

    @mock.patch.object(mcp_min, "PATIENCE", 40 * SECONDS)
    def test_who_does_not_say_the_secret_gets_nothing(self):
        self.listen()
        ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
        secret = self.path.read_bytes().split()[1]
        for start in (b"", b"\n", ping, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                      secret[:-1], secret[:-1] + b"\n", secret, b" " + secret + b"\n",
                      secret[:-1] + b"\xff\n"):
            with self.subTest(start):
                connection, _ = self.door()
                with contextlib.suppress(OSError):  # it may be closed already
                    connection.sendall(start + (ping if start != secret else b""))
                    connection.shutdown(socket.SHUT_WR)
                    self.assertEqual(connection.recv(100), b"")
        connection, secret = self.door()
        connection.sendall(secret + b"\n" + ping)
        said = connection.makefile("rb")
        self.assertEqual(said.readline().strip(), self.path.read_bytes().split()[2])
        self.assertIn(b'"result"', said.readline())

    def test_who_takes_too_long_to_say_it_is_sent_away(self):
        self.listen()
        connection, secret = self.door()
        with contextlib.suppress(OSError):  # it may be closed already
            connection.sendall(secret)  # without its newline
            self.assertEqual(connection.recv(100), b"")

    def test_strangers_get_no_thread_and_an_error_of_the_application_is_shown(self):
        self.server.lifespan = lambda server: raising(OSError("no database"))()
        before = threading.active_count()
        self.listen()
        for connection, _ in [self.door() for _ in range(5)]:
            self.assertEqual(connection.recv(100), b"")
        self.assertLessEqual(threading.active_count(), before + 1)
        with mock.patch.object(mcp_min, "PATIENCE", 40 * SECONDS):
            with captured_stderr() as stderr, contextlib.suppress(OSError):
                connection, secret = self.door()
                connection.sendall(secret + b"\n")
                connection.makefile("rb").read()
        self.assertIn("no database", stderr.getvalue())

    @posix
    def test_a_file_of_another_user_is_not_trusted(self):
        self.listen()
        code = ("import os, sys, mcp_min; mcp_min.range = lambda tries: [1]\n"
                "os.getuid = str; sys.exit(mcp_min.main(['connect', sys.argv[1]]))")
        done = run_python(code, str(self.path), stdin=b"")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"another user", done.stderr)

    @posix
    def test_only_the_user_can_read_the_secret(self):
        self.listen()
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(self.path.parent.stat().st_mode & 0o777, 0o700)

    def test_close_takes_its_own_file_away_but_not_that_of_a_newer_listener(self):
        first, second = self.listen(), self.listen()
        first.close()
        with self.connect() as client:
            client.ping()
        second.close()
        self.assertFalse(self.path.exists())

    def test_a_session_goes_on_when_the_listener_is_closed(self):
        listener = self.listen()
        with self.connect() as client:
            listener.close()
            self.assertEqual(client.call_tool("echo", {"x": "a"}).text, "a")
            self.assertRaises(FileNotFoundError, self.door)

    def test_without_an_application_each_request_is_answered_with_an_error(self):
        code = ("import sys, mcp_min; mcp_min.range = lambda tries: [1]\n"
                "sys.exit(mcp_min.main(['connect', sys.argv[1]]))")
        messages = [request(1, "initialize"), notify("x"), request("b", "ping")]
        lines = [json.dumps(one).encode() for one in messages]
        gone = self.listen()
        stale = self.path.read_text()
        gone.close()
        self.listen()
        port, secret, _ = self.path.read_text().split()
        foreign = f"{port} {secret} {'a' * 64}"  # who has the port now knows no secret
        mute = socket.create_server(("127.0.0.1", 0))  # or says nothing
        self.addCleanup(mute.close)
        silent = f"{mute.getsockname()[1]} a b"
        for content in (None, stale, "nonsense", foreign, silent):
            self.path.unlink()
            if content:
                self.path.write_text(content)
            with self.subTest(content):
                done = run_python(code, str(self.path), stdin=b"\n".join(lines))
                answers = list(map(json.loads, done.stdout.splitlines()))
                self.assertEqual([one["id"] for one in answers], [1, "b"])
                for answer in answers:
                    self.assertIn(str(self.path), answer["error"]["message"])
                self.assertEqual(done.returncode, 1, done.stderr)
            self.path.touch()

    def test_connect_works_where_python_cannot_make_a_pipe_block(self):  # Windows
        self.listen()
        code = ("import os, sys, mcp_min; vars(os).pop('set_blocking', 0)\n"
                "mcp_min.relay(sys.argv[1])")
        target = [sys.executable, "-c", code, str(self.path)]
        with Client(target, cwd=str(HERE)) as client:
            self.assertEqual(client.call_tool("echo", {"x": "a"}).text, "a")


class TestAsync(ServerCase):
    def serving(self, *tools, **options):
        """A Wire to a server with these tools, whose client can do all."""
        server = Server("async", **options)
        for tool in tools:
            server.add_tool(tool)
        wire = Wire(server, **CAN_ALL).__enter__()
        self.addCleanup(wire.__exit__, None, None, None)
        return wire

    def check_both_eras(self, tool, expected):
        """What a tool gives whose questions are answered."""
        server = Server("s")
        server.add_resource("data://password", password)
        server.add_tool(tool, name="run")
        for mode in ("legacy", "modern"):
            with self.subTest(mode), Client(
                    server, mode=mode, roots=["file:///a"],
                    sampling_handler=lambda messages, params: "Ho",
                    elicitation_handler=lambda message, *more: message) as client:
                self.assertEqual(client.call_tool("run").data, expected)

    def test_what_asks_is_awaited_in_both_eras(self):
        async def run(ctx: AsyncContext) -> list[str]:
            name = await ctx.elicit("Name?", str)
            other, sampled = await ctx.elicit("Other?", str), await ctx.sample("Hi")
            contents = await ctx.read_resource("data://password")
            answers = await ctx.ask(THREE)
            root = (await ctx.list_roots())[0].uri
            roots = [answers[key]["roots"][0]["uri"] for key in THREE]
            return [name.data, other.data, sampled.text, root, contents[0].text, *roots]

        self.check_both_eras(run, [
            "Name?", "Other?", "Ho", "file:///a", "password Password?",
            *["file:///a"] * 3])

    @unittest.skipIf(sys.version_info < (3, 11), "there is no TaskGroup")
    def test_a_question_in_a_task_group_is_asked(self):
        async def run(ctx: AsyncContext) -> list[str]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ctx.elicit(f"{n}?", str)) for n in range(3)]
            return [task.result().data for task in tasks]

        self.check_both_eras(run, ["0?", "1?", "2?"])

    def test_reports_may_be_awaited(self):
        async def run(ctx: AsyncContext):
            await ctx.report_progress(1)
            ctx.report_progress(2)
            await ctx.info("a")
            ctx.log("info", "b")
            return await ctx.notify("acme/c")

        wire = self.serving(run)
        wire.send(call(1, "run", meta={"progressToken": "t"}))
        for count in (1, 2):
            wire.expect(notify("notifications/progress", progress=count))
        for data in "ab":
            wire.expect(notify("notifications/message", data=data))
        wire.expect({"method": "acme/c"})
        wire.expect(answered(1, content=[]))

    def test_what_a_resource_says_that_is_read_is_heard(self):
        async def run(ctx: AsyncContext) -> str:
            return (await ctx.read_resource("data://x"))[0].text

        def talk(ctx: Context) -> str:
            ctx.info("hello")
            return "x"

        wire = self.serving(run)
        wire.server.add_resource("data://x", talk)
        wire.expect({"method": "notifications/resources/list_changed"})
        wire.send(call(1, "run"))
        wire.expect(notify("notifications/message", data="hello"))
        wire.expect(text(1, "x"))

    def test_a_cancellation_ends_the_task(self):
        for wait, questions in [
                (lambda ctx: asyncio.sleep(2 * SECONDS), 0),
                (lambda ctx: ctx.wait(2 * SECONDS), 0), (elicits(bool), 1)]:
            ended = gate()

            async def run(ctx: AsyncContext):
                ctx.notify("acme/begun")
                try:
                    await wait(ctx)
                finally:
                    ended.set()

            wire = self.serving(run)
            wire.send(call(1, "run"))
            wire.expect({"method": "acme/begun"})
            ids = [wire.expect({"method": "..."})["id"] for _ in range(questions)]
            wire.send(cancel(1))
            for id in ids:
                wire.expect(cancel(id))
            ended.wait()
            wire.fence()

    def test_who_gives_up_a_question_withdraws_it(self):
        async def run(ctx: AsyncContext) -> str:
            try:
                await asyncio.wait_for(ctx.elicit("Sure?", bool), 0.05)
            except asyncio.TimeoutError:
                return f"late {ctx.cancelled}"

        wire = self.serving(run)
        wire.send(call(1, "run"))
        question = wire.expect({"method": "elicitation/create"})
        wire.expect(cancel(question["id"]))
        wire.expect(text(1, "late False"))

    def test_many_calls_share_a_loop_and_its_thread_and_wait_for_each_other(self):
        async def meet():
            places.append((threading.get_ident(), asyncio.get_running_loop()))
            while len(places) < workers:
                await asyncio.sleep(0.001)

        for workers in (4, 40):
            places, wire = [], self.serving(meet, max_workers=workers)
            for id in range(40):
                wire.send(call(id, "meet"))
            got = [wire.expect({"result": {"isError": False}}) for _ in range(40)]
            self.assertEqual({message["id"] for message in got}, {*range(40)})
            self.assertEqual(len(set(places)), 1)

    def test_what_is_bound_to_the_loop_lives_from_call_to_call(self):
        made = []

        async def begin():
            made.append(asyncio.get_running_loop().create_future())
            made.append(asyncio.ensure_future(made[0]))

        async def end() -> str:
            made[0].set_result("done")
            return await made[1]

        wire = self.serving(begin, end)
        wire.ask(call(1, "begin"))
        self.assertEqual(text_in(wire.ask(call(2, "end"))), "done")

    def test_who_exits_in_a_task_ends_nobody_else(self):
        go, left = gate(), []

        async def wait():
            while not go.is_set():
                await asyncio.sleep(0.001)

        async def leave():
            sys.exit(3)

        async def leave_later():
            left.append(asyncio.ensure_future(leave()))

        wire = self.serving(wait, leave, leave_later)
        wire.send(call(1, "wait"))
        with captured_stderr():
            self.assertIn("SystemExit", text_in(wire.ask(call(2, "leave"))))
            wire.ask(call(3, "leave_later"))
            go.set()
            wire.expect(answered(1, isError=False))
        self.assertIsInstance(left[0].exception(), SystemExit)

    def test_an_exception_is_an_error_of_the_tool(self):
        async def fail():
            await asyncio.sleep(0)
            raise KeyError("x")

        async def stop():
            raise ToolError("no")

        async def give_up():
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

        wire = self.serving(fail, stop, give_up)
        with captured_stderr() as stderr:
            got = wire.ask(call(1, "fail"))
            self.assertTrue(got["result"]["isError"])
            self.assertEqual(text_in(got), "KeyError: 'x'")
            self.assertEqual(text_in(wire.ask(call(2, "stop"))), "no")
            self.assertTrue(wire.ask(call(3, "give_up"))["result"]["isError"])
            eventually(lambda: "KeyError" in stderr.getvalue())

    def test_a_lifespan_may_be_async(self):
        happened = []

        @contextlib.asynccontextmanager
        async def lifespan(server):
            happened.append(asyncio.get_running_loop())
            yield "db"
            happened.append(asyncio.get_running_loop())

        async def run(ctx: AsyncContext) -> str:
            happened.append(asyncio.get_running_loop())
            return ctx.lifespan_context

        server = Server("s", lifespan=lifespan)
        server.add_tool(run)
        with Wire(server) as wire:
            self.assertEqual(text_in(wire.ask(call(1, "run"))), "db")
        self.assertEqual(happened, happened[:1] * 3)

    def test_once_takes_an_async_function(self):
        async def number():
            ran.append("async")
            return 5

        async def run(ctx: AsyncContext) -> list:
            first = await ctx.once("a", number)
            second = await ctx.once("b", lambda: ran.append("plain") or 6)
            name = await ctx.elicit("Name?", str)
            third = await ctx.once("c", lambda: ctx.report_progress(1))
            return [first, second, name.data, await ctx.once("a", number), third]

        ran = []
        self.check_both_eras(run, [5, 6, "Name?", 5, None])
        self.assertEqual(ran, ["async", "plain"] * 2)

    def test_all_kinds_of_handlers_may_be_async(self):
        server = Server("s")

        @server.resource("a://{name}")
        async def named(name: str):
            return name

        @server.prompt
        async def hello(ctx: AsyncContext):
            return f"hello {ctx.request_id}"

        @server.completion("hello", "x")
        async def complete(value):
            return [value]

        @server.method("acme/x")
        async def own(params):
            return params

        self.check(server, *[
            ("resources/read", {"uri": "a://b"}, {"contents": [{"text": "b"}]}),
            ("prompts/get", {"name": "hello"}, {"messages": [
                {"content": {"text": "hello 1"}}]}),
            ("completion/complete", completing("hello", "x"), {
                "completion": {"values": ["a"]}}),
            ("acme/x", {"a": 1}, {"a": 1})])

    def test_run_in_a_running_loop_says_what_to_do(self):
        async def main():
            Server("s").run()

        with self.assertRaisesRegex(RuntimeError, "asyncio.to_thread"):
            asyncio.run(main())


class TestTrace(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("MCP_MIN_TRACE", None)
        self.server = Server("traced")
        self.server.add_tool(lambda: "é", name="f")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "trace")

    def call(self, **options):
        with Legacy(self.server, **options) as client:
            client.call_tool("f")

    def check(self, lines):
        found = [re.fullmatch(
            r"\d\d:\d\d:\d\d (->|<-) (\{.*\})(  \[\S+, \d+\.\d ms\])?", line)
            for line in lines]
        self.assertTrue(all(found), lines)
        self.assertEqual(
            [(match[1], json.loads(match[2]).get("method"),
              (match[3] or "").split(",")[0]) for match in found],
            [("->", "initialize", ""), ("<-", None, "  [initialize"),
             ("->", "notifications/initialized", ""),
             ("->", "tools/call", ""), ("<-", None, "  [tools/call")])

    def written(self):
        return Path(self.path).read_text(encoding="utf-8").splitlines()

    def check_arrows(self, lines):
        self.assertEqual([line.split()[1] for line in lines],
                         ["<-", "->", "<-", "<-", "->"])

    def test_a_function_or_stderr_gets_each_line(self):
        lines = []
        self.call(trace=lines.append)
        self.check(lines)
        with captured_stderr() as stderr:
            self.call(trace="stderr")
        self.check(stderr.getvalue().splitlines())

    def test_a_function_that_fails_harms_nothing(self):
        self.call(trace=raising(ValueError("no")))
        self.assertRaises(TypeError, Client, ["sleep", "9"], trace=5)  # not connected

    def test_of_a_server_the_arrows_point_the_other_way(self):
        lines = []
        self.server.trace = lines.append
        self.call()
        self.check_arrows(lines)
        self.assertIn("  [tools/call, ", lines[-1])

    def test_a_file_is_private_and_appended_to(self):
        self.call(trace=self.path)
        first = self.written()
        self.check(first)
        self.call(trace=self.path)
        both = self.written()
        self.assertEqual(both[:5], first)
        self.check(both[5:])
        if os.name == "posix":
            self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_the_variable_traces_a_server_in_this_process_once(self):
        with mock.patch.dict(os.environ, MCP_MIN_TRACE=self.path):
            self.call()
        self.check(self.written())

    def test_the_variable_traces_a_server_that_runs(self):
        code = ("import mcp_min\nserver = mcp_min.Server('s')\n"
                "server.tool(lambda: 'x', name='f')\nserver.run()")
        with Legacy(python(code), env={"MCP_MIN_TRACE": self.path}) as client:
            client.call_tool("f")
        self.check_arrows(self.written())

    def test_a_line_that_is_no_json_is_shown(self):
        lines = []
        with Wire(Server("s", trace=lines.append)) as wire:
            wire.send(b"no \xff json \x1b[31m")
            self.assertEqual(wire.receive()["error"]["code"], -32700)
            wire.ask(request(1, "a\nb\ud800"))
        self.assertIn("<- no \ufffd json \\x1b[31m", "\n".join(lines))
        self.assertIn("[a\\nb\\ud800, ", lines[-1])


class TestFound(unittest.TestCase):
    def test_a_uri_of_a_model_cannot_freeze_its_server(self):
        server = server_of("log://{y}-{m}-{d}", lambda y, m, d: f"{y} {m} {d}")
        with Wire(server) as wire:
            self.assertEqual(read(wire, "log://2026-1-2"), "2026 1 2")
            uri = "log://" + "-" * 5000 + "/"
            self.assertEqual(read(wire, uri)["code"], -32002)

    def test_a_text_that_is_deep_is_not_parsed(self):
        with Session(taking(list)[0]) as wire:
            self.assertTrue(wire.result(x="[" * 3000 + "]" * 3000)["isError"])

    def test_a_context_may_be_optional(self):
        for hint, *default in [(Context, None), (Optional[Context],)]:
            tool, received = taking(hint, *default)
            with self.subTest(hint), Session(tool) as wire:
                wire.ask(call(7, "t0"))
                self.assertEqual(received[0].request_id, 7)

    def test_a_state_does_not_depend_on_the_order_of_members(self):
        server = modern_server()

        @server.tool
        def two(a: int, b: int, ctx: Context) -> str:
            return f"{a} {b} {ctx.elicit('?', str, key='k').data}"

        with Modern(server) as wire:
            unknown = {"name": "book", "arguments": {"day": "1", "x": 1}}
            self.assertTrue(wire.get("tools/call", **unknown)["isError"])
            first = wire.get("tools/call", name="two", arguments={"a": 1, "b": 2})
            got = wire.get("tools/call", first, {"k": accept("x")}, name="two",
                           arguments={"b": 2, "a": 1})
            self.assertEqual(got["content"], [Text("1 2 x")])

    def test_an_error_out_of_a_task_group_keeps_its_code(self):
        class Group(Exception):
            exceptions = (McpError(-5, "first"), McpError(-6, "second"))

        [answer] = results_of(raising(Group()))
        self.assertEqual(answer["error"], {"code": -5, "message": "first"})

    def of_slow_user(self, server, mode, seconds, wait=0):
        """A client whose clock says that each answer took so many seconds."""
        def answer(*question):
            late.append(seconds)
            time.sleep(wait)
            return "x"

        late = []
        clock = mock.patch.object(
            mcp_min, "monotonic", lambda: time.monotonic() + sum(late))
        clock.start()
        self.addCleanup(clock.stop)
        return Client(server, mode=mode, elicitation_handler=answer)

    def test_the_time_of_our_user_is_not_that_of_a_call(self):
        # It waits, for the call looks at its clock once a second.
        with self.of_slow_user(serving(password).server, "legacy", 100, 1.2) as client:
            self.assertEqual(client.call_tool("run", timeout=50).text, "password x")

    def test_max_timeout_is_for_all_rounds_of_a_call(self):
        with self.of_slow_user(modern_server(), "modern", 20) as client:
            self.assertRaises(RequestTimeout, client.call_tool, "book", {"day": "1"},
                              max_timeout=30)

    def test_what_a_server_writes_at_its_end_does_not_make_us_kill_it(self):
        code = ("shake_hands()\nwhile sys.stdin.readline(): pass\n"
                "for _ in range(3000): print('x' * 400)\n"
                "sys.stdout.flush(); os._exit(0)")
        with Legacy(child(code), stderr=None) as client:
            pass
        self.assertEqual(client.exit_code, 0)

    @posix
    def test_who_holds_nothing_but_stderr_is_told_to_end(self):
        loop = "trap 'echo told >&2; exit' TERM; echo up >&2; while sleep 1; do :; done"
        code = (f"shake_hands()\nimport subprocess\nsubprocess.Popen(['sh', '-c', "
                f"{loop!r}], stdin=-3, stdout=-3)\nsys.stdin.read(); os._exit(0)")
        with mock.patch.object(mcp_min, "PATIENCE", 0.5):
            with Legacy(child(code), stderr=None) as client:
                eventually(lambda: "up" in client.stderr_tail)
        self.assertIn("told", client.stderr_tail)

    def test_a_descriptor_is_not_copied_while_a_thread_reads_it(self):  # Windows waits
        with mock.patch.object(os, "dup2", wraps=os.dup2) as dup2:
            with mcp_min.stdio_server() as (reader, _):
                pass
        self.addCleanup(os.close, reader.fileno())
        self.assertNotIn(reader.fileno(), [made[0][0] for made in dup2.call_args_list])

    def test_a_stream_that_ends_at_once_is_told_and_leaves_no_thread(self):
        heard, ended = queue.SimpleQueue(), {"result": {"resultType": "complete"}}
        with no_thread_left(), in_turn(DISCOVERED, ended, message_handler=heard.put):
            self.assertEqual(heard.get(timeout=SECONDS).method, "subscriptions/listen")

    def test_what_a_partial_gives_is_not_overridden_by_a_model(self):
        def query(q, user):
            return f"{q} as {user}"

        server = Server("s")
        server.add_tool(functools.partial(query, user="guest"), name="query",
                        input_schema={"type": "object"})
        with Client(server) as client:
            result = client.call_tool("query", {"q": "x", "user": "admin"})
        self.assertEqual(result.text, "x as guest")

    def test_what_an_object_of_the_user_raises_is_masked(self):
        Account = dataclasses.make_dataclass("Account", [("name", str)], namespace={
            "__post_init__": lambda self: raising(RuntimeError("db://me:pw@host"))()})
        with captured_stderr(), Session(taking(Account)[0], mask_errors=True) as wire:
            result = wire.result(x={"name": "a"})
        self.assertEqual(result["content"], [Text("Internal error")])
        Account.__post_init__ = lambda self: {}["db://me:pw@host"]
        with Session(taking(Account)[0], mask_errors=True) as wire:
            self.assertNotIn("pw@host", str(wire.result(x={"name": "a"})))

    def test_what_an_exception_of_our_user_says_is_not_for_a_server(self):
        with captured_stderr():
            error = asked(SAMPLE, {"messages": []}, sampling_handler=lambda *args:
                          raising(RuntimeError("401 for key sk-1"))())
        self.assertEqual(error["message"], "Internal error")

    def test_the_end_of_a_pattern_is_not_before_a_newline(self):
        for pattern in ("^abc$", "^(abc$|x)", "^x$|^abc$", r"\\$|abc$", "^[abc$|]+$"):
            self.assertEqual(validate("abc", {"pattern": pattern}), [])
            self.assertEqual(len(validate("abc\n", {"pattern": pattern})), 1, pattern)
        self.assertEqual(validate("5$", {"pattern": r"\$$"}), [])
        closed = {"patternProperties": {"^a$": {}}, "additionalProperties": False}
        self.assertEqual(list(map(len, (validate({key: 1}, closed)
                                        for key in ("a", "a\n")))), [0, 1])
        slow = {"pattern": r"^(\w+\s?)+$", "maxLength": 8}  # the limit protects it
        self.assertEqual(len(validate("a" * 60 + "!", slow)), 1)

    def test_a_state_is_for_all_params_of_a_method_of_ones_own(self):
        server = modern_server()

        @server.method("acme/quote")
        def quote(params, ctx: Context):
            price = ctx.once("price", lambda: params["amount"] * 10)
            return {"sold": ctx.elicit("Buy?", bool, key="k").data, "price": price}

        wire = Modern(server)
        with wire:
            first, yes = wire.get("acme/quote", amount=1), {"k": accept(True)}
            error = wire.get("acme/quote", first, yes, amount=9)
            self.assertEqual(error["code"], -32602)
            got = wire.get("acme/quote", first, yes, amount=1)
        self.assertEqual((got["sold"], got["price"]), (True, 10))

    def test_who_handles_a_notification_sees_that_the_client_has_hung_up(self):
        server, seen, begun = echo_server(), gate(), []

        @server.method("notifications/go")
        def go(params, ctx: Context):
            begun.append(params)
            try:
                ctx.wait(SECONDS)
            except Cancelled:
                self.assertTrue(ctx.cancelled)
                seen.set()
                raise

        with mock.patch.object(mcp_min, "DRAIN_SECONDS", 0.02), captured_stderr():
            with no_thread_left(), Wire(server) as wire:
                for _ in range(1500):  # they wait for the first, and hold up nobody
                    wire.send(notify("notifications/go"))
                self.assertIn("result", wire.ask(request(1, "a/echo")))
        seen.wait()
        self.assertEqual(begun, [{}])

    def test_a_file_whose_answers_nobody_reads_ends(self):
        code = ("import mcp_min\nserver = mcp_min.Server('s')\n"
                "@server.tool\ndef t() -> str:\n"
                "    server.add_tool(lambda: 1, name='late')\n    return 'x'\n"
                "server.run()")
        with tempfile.TemporaryFile() as file:
            for message in (initialize(), call(1, "t")):
                file.write(json.dumps(message).encode() + b"\n")
            file.seek(0)
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run(python(code), stdin=file, stdout=writer,
                                  stderr=subprocess.PIPE, timeout=SECONDS)
            os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_a_subscription_counts_from_its_acknowledgement_on(self):
        server, got, said, post = Server("s"), queue.SimpleQueue(), gate(), (
            mcp_min.ServerSession.post)
        server.add_resource("a://b", lambda: "", name="b")

        def post_and_notify(session, line, *more):
            post(session, line, *more)
            if b"acknowledged" in line:
                said.wait()
                server.notify_resource_updated("a://b")

        def trace(line):
            if "acknowledged" in line:
                said.set()

        server.trace = trace
        with mock.patch.object(mcp_min.ServerSession, "post", post_and_notify), Client(
                server, mode="modern") as client:
            client.message_handler = got.put
            client.subscribe("a://b")
            message = got.get(timeout=SECONDS)
        self.assertEqual(message.method, "notifications/resources/updated")

    def test_a_request_that_comes_just_at_the_end_does_not_run(self):
        handlers = Handlers()
        with Wire(handlers.server) as wire:
            wire.fence()
            [session] = handlers.server._sessions
            take = session._take_request
            with mock.patch.object(session, "_take_request", lambda *arguments: (
                    session.end(ConnectionClosed("just now")), take(*arguments))):
                wire.send(call(1, "count"))
                wire.thread.join(SECONDS)
        self.assertEqual((handlers.calls, session.incoming), (0, {}))

    def test_sixteen_questions_are_answered_and_no_more(self):
        server = Server("s")

        @server.tool
        def ask(times: int, ctx: Context) -> list:
            return [ctx.elicit(f"{number}?", str).data for number in range(times)]

        with Client(server, mode="modern", elicitation_handler=lambda *_: "a") as user:
            self.assertEqual(user.call_tool("ask", {"times": 16}).data, ["a"] * 16)
            self.assertRaisesRegex(McpError, "16", user.call_tool, "ask", {"times": 17})

    def test_who_does_not_read_holds_up_no_async_handler_of_others(self):
        server, began, passed = Server("s"), gate(), gate()

        @server.tool
        async def speak(ctx: AsyncContext) -> None:
            began.set()
            await ctx.info("x")

        @server.tool
        def read(ctx: Context) -> None:  # it waits, also after an async resource
            ctx.read_resource("a://b")
            ctx.info("x")
            passed.set()

        @server.resource("a://b")
        async def resource():
            return "x"

        deaf = Wire(server)
        deaf.output = Fragile()
        with deaf, Wire(server) as other:
            deaf.fence()
            deaf.output.room.clear()
            deaf.send(call(2, "read"))
            deaf.send(call(1, "speak"))
            began.wait()
            other.send(call(1, "speak"))
            other.expect({"method": "notifications/message"})
            other.expect({"id": 1, "result": {}})
            self.assertFalse(passed.is_set())
            deaf.output.room.set()

    def test_what_a_handler_has_read_is_not_kept(self):
        server = Server("s")

        @server.resource("a://b")
        async def resource():
            return "x"

        @server.tool
        def read(ctx: Context) -> int:
            for _ in range(50):
                ctx.read_resource("a://b")
            gc.collect()
            return list(map(type, gc.get_objects())).count(concurrent.futures.Future)

        with Client(server) as client:
            self.assertLess(client.call_tool("read").data, 10)
        eventually(lambda: not server._sessions)

    def test_a_pong_that_is_not_read_postpones_no_timeout(self):
        read, room = gate(), gate()
        messages = [request(1, "ping"), request(2, "ping"), notify("read")]
        with Scripted(lambda m: messages if m["method"] == "ask" else [b"\n"],
                      message_handler=lambda m: read.set()) as fake:
            fake.input.write = lambda data, write=fake.input.write: (
                b'"result"' in bytes(data) and room.wait()) or write(data)
            asked = fake.client.submit("ask")
            read.wait()
            with self.assertRaises(RequestTimeout):
                fake.client.request("more", timeout=0.02, max_timeout=None)
            room.set()
            asked.cancel()

    def test_a_key_from_the_wire_is_no_method_of_python(self):
        message = mcp_min.Wire({"__dataclass_fields__": {}, "_asdict": 1})
        self.assertEqual(mcp_min.plain(message), dict(message))

    def test_a_request_is_in_no_cycle(self):
        gc.disable()
        self.addCleanup(gc.enable)
        server = modern_server()
        server.add_tool(lambda: [][0], name="no")
        with Client(server, mode="modern") as client, captured_stderr():
            before = len(gc.get_objects())
            for _ in range(500):
                client.ping()
                client.call_tool("no", raise_on_error=False)
            self.assertLess(len(gc.get_objects()) - before, 500)

    def test_an_error_that_cannot_be_shown_ends_no_thread(self):
        server = echo_server(max_workers=1, run_handler=lambda job: job())
        server.add_tool(lambda: 1 / 0, name="fail")
        with captured_stderr() as stderr, Wire(server) as wire:
            with mock.patch.dict(sys.modules, traceback=None):  # no descriptor is left
                for id in (1, 2):
                    wire.ask(call(id, "fail"))
        self.assertIn("ZeroDivisionError", stderr.getvalue())

    def test_a_message_for_which_there_is_no_memory_is_an_error(self):
        with Wire(Handlers().server) as wire:
            wire.fence()
            with mock.patch.object(mcp_min, "loads", side_effect=MemoryError):
                wire.send(call(1, "count"))
                wire.expect(refused(PARSE_ERROR))
            with mock.patch.object(mcp_min, "dumps", side_effect=[
                    MemoryError, '{"id":2,"error":{}}']):
                self.assertEqual(wire.ask(call(2, "count")), {"id": 2, "error": {}})

    @posix
    def test_a_text_on_a_nearly_full_stderr_holds_up_nobody(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"x" * 4096)
        os.read(reader, 4096)  # there is room for so many bytes, not characters
        with open(writer, "w", 1, encoding="utf-8") as stderr, mock.patch.object(
                sys, "stderr", stderr):
            stderr.write("\u6f22")  # it is one that writes at once
            mcp_min.warn("\u6f22" * 4000)
            self.assertEqual(stderr.buffer.raw.write(b"x"), 1)  # there was room


class TestReadme(unittest.TestCase):
    """Every block of the README is run."""

    text = (HERE / "README.md").read_text(encoding="utf-8") if (
        HERE / "README.md").exists() else ""

    def setUp(self):
        if not self.text:
            self.skipTest("there is no README beside mcp_min.py")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "mcp_min.py").write_bytes(Path(mcp_min.__file__).read_bytes())
        programs = {}
        for block in self.blocks("python"):
            head, _, body = block.partition("\n")
            name = head[2:].replace(", continued", "")
            programs[name] = programs.get(name, "") + body
        for name, program in programs.items():
            (self.folder / name).write_text(
                f"from __future__ import annotations\n{program}", encoding="utf-8")
        self.programs = programs

    def blocks(self, language):
        parts = self.text.split("```" + language + "\n")[1:]
        return [part.split("```")[0] for part in parts]

    def run_here(self, *command):
        env = {**os.environ, "PYTHONIOENCODING": "utf-8",
               "PATH": os.pathsep.join([os.path.dirname(sys.executable),
                                        os.environ["PATH"]])}
        env.pop("MCP_MIN_TRACE", None)
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode()

    def test_each_program_prints_what_its_comments_say(self):
        for name in ("tour.py", "ask.py", "ask_async.py", "test_weather.py"):
            with self.subTest(name):
                program = self.programs[name]
                lines = [line for line in program.splitlines() if "print(" in line]
                expected = [line.split("  # ")[1].strip() for line in lines]
                out = self.run_here(sys.executable, name)
                self.assertEqual(out.splitlines(), expected)

    def test_each_command_prints_what_follows_it(self):
        for block in self.blocks("console"):
            for part in block.split("$ ")[1:]:
                command, _, expected = part.partition("\n")
                words = command.replace("python3", sys.executable).split()
                if "test_mcp_min.py" in words:
                    continue  # this is it
                with self.subTest(command):
                    out = self.run_here(*words)
                    self.assertTrue(out)
                    if expected:
                        self.assertEqual(out, expected)

    def test_the_addon_runs_handlers_in_its_main_loop(self):
        program = self.programs["addon.py"] + (
            "import threading, time\n"
            "@server.tool\n"
            "def where() -> str:\n"
            "    return threading.current_thread().name\n"
            "listener = start()\n"
            "print(flush=True)\n"
            "while True:\n"
            "    time.sleep(run_jobs() / 10)\n")
        env = {**os.environ, "HOME": str(self.folder), "USERPROFILE": str(self.folder)}
        with subprocess.Popen([sys.executable, "-c", program], cwd=self.folder, env=env,
                              stdout=subprocess.PIPE) as addon:
            addon.stdout.readline()
            with Client([sys.executable, "mcp_min.py", "connect", "~/.studio/mcp"],
                        cwd=self.folder, env={"HOME": env["HOME"]}) as client:
                self.assertEqual(client.call_tool("where").text, "MainThread")
            addon.kill()

    def test_the_configuration_of_a_host_is_json(self):
        for block in self.blocks("json"):
            self.assertIn("mcpServers", json.loads(block))


class TestHouse(unittest.TestCase):
    """How the file is built."""

    source = Path(mcp_min.__file__).read_text(encoding="utf-8")

    @unittest.skipIf(sys.version_info < (3, 10), "it has no list of its modules")
    def test_only_the_standard_library_is_imported(self):
        for node in ast.walk(ast.parse(self.source)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                self.assertIn(name.split(".")[0], sys.stdlib_module_names)

    def test_a_section_names_only_what_stands_above_it(self):
        """Functions, classes and constants; annotations apart."""
        starts = [number for number, line in enumerate(self.source.splitlines(), 1)
                  if line.startswith("# -- ")]
        tree = ast.parse(self.source)

        def section(node):
            return sum(start <= node.lineno for start in starts)

        homes = {}
        for node in tree.body:
            names = [node] if hasattr(node, "name") else getattr(node, "targets", [])
            for name in names:
                homes[getattr(name, "name", getattr(name, "id", ""))] = section(node)
        hints = set()
        for node in ast.walk(tree):
            for name in ("annotation", "returns"):
                part = getattr(node, name, None)
                hints.update(map(id, ast.walk(part) if part else ()))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and id(node) not in hints:
                self.assertLessEqual(homes.get(node.id, 0), section(node), node.id)

    def test_what_is_public_is_documented(self):
        for name in mcp_min.__all__:
            value = getattr(mcp_min, name)
            if name != "Text":
                self.assertTrue(value.__doc__, name)

    def test_each_method_of_the_table_has_a_handler(self):
        for name, row in mcp_min.METHODS.items():
            self.assertTrue(hasattr(mcp_min.ServerSession, row.handler), name)

    def test_revisions_are_named_in_the_table_alone(self):
        import tokenize
        start = self.source.index("# -- 1. ")
        end = self.source.index("# -- 2. ")
        rest = self.source[:start] + "\n" * self.source[start:end].count("\n") + \
            self.source[end:]
        for token in tokenize.generate_tokens(io.StringIO(rest).readline):
            if token.type == tokenize.STRING and not token.string.startswith('"""'):
                self.assertNotRegex(token.string, r"20\d\d-\d\d-\d\d", token)

    def test_it_works_from_a_zip_under_another_name_and_twice(self):
        import zipfile
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "all.zip")
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("vendored/__init__.py", "")
                archive.writestr("vendored/wire.py", self.source)
                archive.writestr("mcp_min.py", self.source)
            code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                    "import mcp_min, vendored.wire as other\n"
                    "server = mcp_min.Server('a')\n"
                    "@server.tool\ndef f() -> str: return 'ok'\n"
                    "assert other.Server is not mcp_min.Server\n"
                    "with mcp_min.Client(server) as c: print(c.call_tool('f').text)\n"
                    "second = other.Server('b'); second.tool(f)\n"
                    "for client in other.Client, mcp_min.Client:\n"
                    "    with client(second) as c: print(c.call_tool('f').text)")
            done = subprocess.run([sys.executable, "-I", "-S", "-c", code, path],
                                  capture_output=True, timeout=SECONDS)
            self.assertEqual(done.stdout.split(), [b"ok"] * 3, done.stderr)


if __name__ == "__main__":
    unittest.main()
