"""The official Python SDK behind one interface, so that a scenario is written once for every version, sync and async.

The interface is thin: `await sdk.do(function, …)` calls an SDK function of either flavour, and a few classes even out where
the flavours truly differ (callbacks of background commands, terminals, watches, streams). What a version lacks is
found by looking at the installed package, never by its number.
"""

import asyncio
import importlib.util
import inspect
import os
import time
import typing
import uuid

import e2b
import wire
from harness import Absent, until

# Whether names under `localhost` resolve here, and their certificates are trusted.
HTTPS = bool(os.environ.get("SANDBAR_CONFORMANCE_HTTPS"))
RUN_ID = uuid.uuid4().hex[:10]


def _parameters(function) -> set[str]:
    return set(inspect.signature(function).parameters)


def _reads_is_symlink() -> bool:
    """Whether links are distinguished from their targets; older wire schemas have no field for it."""
    try:
        from e2b.envd.filesystem import filesystem_pb
    except ImportError:
        return False
    return hasattr(filesystem_pb.EntryInfo, "is_symlink")


def _network_options() -> set[str]:
    from e2b.sandbox import sandbox_api

    options = getattr(sandbox_api, "SandboxNetworkOpts", None)
    return set(typing.get_type_hints(options)) if options else set()


def _reaches_interpreter() -> bool:
    """The oldest ones go by the sandbox's host name and TLS only, whatever URL they are given."""
    if importlib.util.find_spec("e2b_code_interpreter") is None:
        return False
    import e2b_code_interpreter

    return HTTPS or "get_host" not in inspect.getsource(e2b_code_interpreter.Sandbox._jupyter_url.fget)


class Sdk:
    """One installed SDK in one flavour; `scope` gives each scenario its own view of it."""

    def __init__(self, flavour: str):
        self.flavour = flavour
        self.is_async = flavour == "async"
        self.Sandbox = e2b.AsyncSandbox if self.is_async else e2b.Sandbox
        self.url = os.environ["SANDBAR_CONFORMANCE_URL"].rstrip("/")
        self.sandbox_url = os.environ["SANDBAR_CONFORMANCE_SANDBOX_URL"].rstrip("/")
        self.key = os.environ["E2B_API_KEY"]
        self.cycles = int(os.environ.get("SANDBAR_CONFORMANCE_CYCLES", "20"))
        self._features = self._detect_features()

    def _detect_features(self) -> set[str]:
        if self.is_async:
            from e2b.sandbox_async.commands.command import Commands
            from e2b.sandbox_async.filesystem.filesystem import Filesystem
        else:
            from e2b.sandbox_sync.commands.command import Commands
            from e2b.sandbox_sync.filesystem.filesystem import Filesystem

        create, write = _parameters(self.Sandbox.create), _parameters(Filesystem.write)
        query = _parameters(e2b.SandboxQuery)
        pause = _parameters(self.Sandbox.pause) if hasattr(self.Sandbox, "pause") else set()
        found = {
            "beta_create": hasattr(self.Sandbox, "beta_create"),
            "beta_pause": hasattr(self.Sandbox, "beta_pause"),
            "pause": hasattr(self.Sandbox, "pause"),
            "pause.filesystem": bool({"mode", "keep_memory"} & pause),
            "pause.strict": "strict" in pause,
            "connect.on_resume": "on_resume" in _parameters(self.Sandbox.connect),
            "lifecycle": "lifecycle" in create,
            "idempotency_key": "idempotency_key" in create,
            "client": hasattr(e2b, "E2B"),
            "close_stdin": hasattr(Commands, "close_stdin"),
            "stream_input": hasattr(Commands, "stream_input"),
            "retain_output": "retain_output" in _parameters(Commands.run),
            "gzip": "gzip" in write,
            "octet_stream": "use_octet_stream" in write,
            "metadata": "metadata" in write,
            "iterable_upload": hasattr(e2b, "WriteData"),
            # Before this option, `format="stream"` gave an iterator over a body read whole.
            "true_stream": "stream_idle_timeout" in _parameters(Filesystem.read),
            "include_entry": "include_entry" in _parameters(Filesystem.watch_dir),
            "symlink_type": _reads_is_symlink(),
            # Google's protobuf, of the oldest versions, gives times in UTC that do not say so.
            "zoned_times": importlib.util.find_spec("e2b.envd.filesystem.filesystem_pb2") is None,
            "list.order": "order" in _parameters(self.Sandbox.list),
            "list.started_after": "started_after" in query,
            "list.template": "template" in query,
            "fork": hasattr(self.Sandbox, "fork"),
            "snapshot": hasattr(self.Sandbox, "create_snapshot"),
            "update_network": hasattr(self.Sandbox, "update_network"),
            "volume": hasattr(e2b, "Volume"),
            "secret": hasattr(e2b, "Secret"),
            "code_interpreter": _reaches_interpreter(),
            "network.mask": "mask_request_host" in _network_options(),
            "network.https_ports": "https_ports" in _network_options(),
            "https": HTTPS,
        }
        return {name for name, there in found.items() if there}

    def has(self, feature: str) -> bool:
        return feature in self._features

    def scope(self, name: str) -> "Scope":
        return Scope(self, name)


class Scope:
    """What one scenario uses. Sandboxes made through it are killed when the scenario ends."""

    def __init__(self, sdk: Sdk, name: str):
        self._sdk = sdk
        self._made: list[str] = []
        self.mark = f"{RUN_ID}-{sdk.flavour}-{name}"

    def __getattr__(self, name):
        return getattr(self._sdk, name)

    def need(self, feature: str):
        if not self.has(feature):
            raise Absent(feature)

    async def close(self):
        for sandbox_id in self._made:
            try:
                async with asyncio.timeout(10):
                    await self.http("DELETE", f"/sandboxes/{sandbox_id}")
            except Exception:
                pass  # The server ends with the run; a leftover costs nothing but memory until then.

    async def do(self, function, *args, **options):
        """Calls an SDK function of either flavour."""
        if self.is_async:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result
        return await asyncio.to_thread(function, *args, **options)

    async def create(self, metadata=None, timeout=120, through=None, **options):
        """`Sandbox.create`, marked so that listings can tell this scenario's sandboxes from all others."""
        metadata = {"mark": self.mark, **(metadata or {})}
        box = await self.do(through or self.Sandbox.create, metadata=metadata, timeout=timeout, **options)
        return self.adopt(box)

    def adopt(self, box):
        self._made.append(box.sandbox_id)
        return box

    async def raises(self, kind, function, *args, **options):
        """Calls and returns the expected exception; fails otherwise, and names the actual result."""
        try:
            result = await self.do(function, *args, **options)
        except kind as error:
            return error
        except Exception as error:
            raise AssertionError(f"expected {_name(kind)}, got {type(error).__name__}: {error}") from error
        raise AssertionError(f"expected {_name(kind)}, got the answer {result!r}")

    def error(self, *names: str):
        """The first exception class of these that this version has: the newer, more exact ones come first."""
        for name in names:
            if hasattr(e2b, name):
                return getattr(e2b, name)
        raise AssertionError(f"this SDK has none of {names}")

    async def http(self, method: str, path: str, headers=None, body=None, **options) -> wire.Answer:
        """A plain control-plane request with the key."""
        headers = {"X-API-Key": self.key, **(headers or {})}
        return await asyncio.to_thread(wire.request, method, self.url + path, headers, body, **options)

    async def fetch(self, method: str, url: str, headers=None, body=None, **options) -> wire.Answer:
        """A plain request to any URL, with nothing added."""
        return await asyncio.to_thread(wire.request, method, url, headers, body, **options)

    async def port(self, box, port: int, path: str = "/", headers=None, **options) -> wire.Answer:
        """A request to a port of a sandbox, by the routing headers."""
        routing = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port)}
        return await self.fetch("GET", self.sandbox_url + path, {**routing, **(headers or {})}, **options)

    async def pause(self, box, **options):
        """`pause`, or `beta_pause` where the version has only that."""
        return await self.do(box.pause if self.has("pause") else box.beta_pause, **options)

    async def state(self, box) -> str:
        info = await self.do(self.Sandbox.get_info, box.sandbox_id)
        return getattr(info.state, "value", info.state)

    async def start(self, box, command: str, **options) -> "Running":
        """A background command."""
        output = Output()
        if self.is_async:
            options |= {"on_stdout": output.out.append, "on_stderr": output.err.append}
        handle = await self.do(box.commands.run, command, background=True, **options)
        return Running(self, handle, output)

    async def reconnect(self, box, pid: int, **options) -> "Running":
        output = Output()
        if self.is_async:
            options |= {"on_stdout": output.out.append, "on_stderr": output.err.append}
        return Running(self, await self.do(box.commands.connect, pid, **options), output)

    async def terminal(self, box, cols=80, rows=24, pid: int | None = None, **options) -> "Terminal":
        """A new terminal, or with `pid` a connection to one that runs."""
        output = Output()
        size = e2b.PtySize(rows=rows, cols=cols)
        if self.is_async:
            options["on_data"] = output.out.append
        if pid is None:
            handle = await self.do(box.pty.create, size, **options)
        else:
            handle = await self.do(box.pty.connect, pid, **options)
        return Terminal(self, box, handle, output)

    async def watch(self, box, path: str, **options) -> "Watch":
        seen: list = []
        if self.is_async:
            options["on_event"] = seen.append
        return Watch(self, await self.do(box.files.watch_dir, path, **options), seen)

    async def read_stream(self, box, path: str, **options) -> list[bytes]:
        """The chunks of a streamed read."""
        stream = await self.do(box.files.read, path, format="stream", **options)
        if self.is_async:
            return [bytes(chunk) async for chunk in stream]
        return await asyncio.to_thread(lambda: [bytes(chunk) for chunk in stream])

    async def pages(self, paginator) -> list[list]:
        """All pages of a listing."""
        pages = []
        while paginator.has_next:
            pages.append(await self.do(paginator.next_items))
            if len(pages) > 500:
                raise AssertionError("the listing does not end")
        return pages


def _name(kind) -> str:
    return "/".join(k.__name__ for k in kind) if isinstance(kind, tuple) else kind.__name__


class Output:
    """What arrived so far."""

    def __init__(self):
        self.out: list = []
        self.err: list = []


class Running:
    """A background command. The sync SDK reads its stream only inside `wait`, so that runs as a task from the start."""

    def __init__(self, scope: Scope, handle, output: Output):
        self._scope, self._handle, self._output = scope, handle, output
        self._waiting = None

    @property
    def pid(self) -> int:
        return self._handle.pid

    @property
    def handle(self):
        return self._handle

    @property
    def stdout(self) -> str:
        return "".join(self._output.out)

    def follow(self):
        """Starts to read the stream, for scenarios that read `stdout` before the end."""
        if self._waiting is None:
            callbacks = {}
            if not self._scope.is_async:
                callbacks = {"on_stdout": self._output.out.append, "on_stderr": self._output.err.append}
            self._waiting = asyncio.ensure_future(self._scope.do(self._handle.wait, **callbacks))
            self._waiting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self

    async def wait(self):
        self.follow()
        return await self._waiting

    async def expect(self, text: str, deadline: float = 15.0):
        async def there():
            return text in self.stdout

        try:
            await until(there, deadline, f"{text!r} in the output", pause=0.02)
        except AssertionError as error:
            raise AssertionError(f"{error} {self.stdout[-200:]!r}") from None

    async def kill(self) -> bool:
        return await self._scope.do(self._handle.kill)

    async def disconnect(self):
        """Only before `follow` or `wait`: a sync stream that is being read cannot be closed from outside."""
        await self._scope.do(self._handle.disconnect)


class Terminal(Running):
    def __init__(self, scope: Scope, box, handle, output: Output):
        super().__init__(scope, handle, output)
        self._box = box

    def follow(self):
        if self._waiting is None:
            callbacks = {} if self._scope.is_async else {"on_pty": self._output.out.append}
            self._waiting = asyncio.ensure_future(self._scope.do(self._handle.wait, **callbacks))
            self._waiting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self

    @property
    def stdout(self) -> str:
        return b"".join(bytes(chunk) for chunk in self._output.out).decode("utf-8", "replace")

    async def type(self, text: str):
        await self._scope.do(self._box.pty.send_stdin, self.pid, text.encode())

    async def resize(self, cols: int, rows: int):
        await self._scope.do(self._box.pty.resize, self.pid, e2b.PtySize(rows=rows, cols=cols))


class Watch:
    def __init__(self, scope: Scope, handle, seen: list):
        self._scope, self._handle, self._seen = scope, handle, seen

    async def events(self) -> list:
        """Every event so far, oldest first."""
        if not self._scope.is_async:
            self._seen += await self._scope.do(self._handle.get_new_events)
        return self._seen

    async def until(self, check, what: str, deadline: float = 10.0) -> list:
        async def there():
            return check(await self.events())

        try:
            await until(there, deadline, what, pause=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; events: {[(e.type.value, e.name) for e in self._seen]}") from None
        return self._seen

    async def settled(self, quiet: float = 0.5) -> list:
        """All events, once none came for a while: for assertions that nothing more arrives."""
        count, since = -1, time.monotonic()
        while time.monotonic() - since < quiet:
            if len(await self.events()) != count:
                count, since = len(self._seen), time.monotonic()
            await asyncio.sleep(0.05)
        return self._seen

    async def stop(self):
        await self._scope.do(self._handle.stop)
