"""Running commands: results, streams, background, signals, users, limits."""

import asyncio
import time

import e2b
from harness import equal, proves, true, until


@proves("commands.run", quick=True)
async def scenario_run(sdk):
    box = await sdk.create()
    result = await sdk.do(box.commands.run, "echo out; echo err >&2")
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0), "result")
    true(not result.error, f"error of a successful command: {result.error!r}")
    equal((await sdk.do(box.commands.run, "printf '%s' 'žluťoučký 🐎'")).stdout, "žluťoučký 🐎", "text beyond ASCII")
    multi = await sdk.do(box.commands.run, "cat <<'X'\na 'b' \"c\" $d\nX")
    equal(multi.stdout, "a 'b' \"c\" $d\n", "quotes and lines survive")


@proves("commands.run.exit_code", quick=True)
async def scenario_exit_code(sdk):
    box = await sdk.create()
    error = await sdk.raises(e2b.CommandExitException, box.commands.run, "echo before; echo why >&2; exit 3")
    equal((error.exit_code, error.stdout, error.stderr), (3, "before\n", "why\n"), "kept in the error")
    equal(error.error, "exit status 3", "error text")
    error = await sdk.raises(e2b.CommandExitException, box.commands.run, "no-such-command-here")
    equal(error.exit_code, 127, "exit code of an unknown command")
    error = await sdk.raises(e2b.CommandExitException, box.commands.run, "kill -9 $$")
    equal((error.exit_code, error.error), (-1, "signal: killed"), "ended by a signal")


@proves("commands.run.callbacks", quick=True)
async def scenario_callbacks(sdk):
    """Output arrives while the command runs, in order, and is also in the result."""
    box = await sdk.create()
    seen, errors = [], []
    started = time.monotonic()
    result = await sdk.do(
        box.commands.run,
        "echo one; echo bad >&2; sleep 2; echo two",
        on_stdout=lambda text: seen.append((time.monotonic() - started, text)),
        on_stderr=errors.append,
    )
    equal("".join(text for _, text in seen), "one\ntwo\n", "text given to on_stdout")
    equal("".join(errors), "bad\n", "text given to on_stderr")
    equal(result.stdout, "one\ntwo\n", "result")
    true(seen[-1][0] - seen[0][0] > 0.5, f"chunks came together: {seen}")


@proves("commands.run.background", quick=True)
async def scenario_background(sdk):
    box = await sdk.create()
    running = await sdk.start(box, "sleep 0.3; echo done")
    true(running.pid > 0, f"pid {running.pid}")
    equal((await running.wait()).stdout, "done\n", "result of wait")

    failing = await sdk.start(box, "exit 7")
    try:
        await failing.wait()
        raise AssertionError("wait on a failing command gave no error")
    except e2b.CommandExitException as error:
        equal(error.exit_code, 7, "exit code from wait")


@proves("commands.list", "commands.kill", "commands.kill.unknown")
async def scenario_list_and_kill(sdk):
    box = await sdk.create()
    running = (await sdk.start(box, "sleep 1234", envs={"MARK": "x"}, cwd="/tmp")).follow()
    listed = {process.pid: process for process in await sdk.do(box.commands.list)}
    true(running.pid in listed, f"pid {running.pid} is not among {sorted(listed)}")
    process = listed[running.pid]
    equal((process.cmd, list(process.args)), ("/bin/bash", ["-l", "-c", "sleep 1234"]), "command of the listed process")
    equal((process.envs.get("MARK"), process.cwd), ("x", "/tmp"), "variables and directory of the listed process")
    alive = await sdk.do(box.commands.run, f"kill -0 {running.pid} && echo alive", user="root")
    equal(alive.stdout, "alive\n", "the pid is the sandbox's own")

    equal(await sdk.do(box.commands.kill, running.pid), True, "kill of a running command")
    try:
        await running.wait()
        raise AssertionError("wait on a killed command gave no error")
    except e2b.CommandExitException as error:
        equal(error.exit_code, -1, "exit code of a killed command")

    async def unlisted():
        return running.pid not in [process.pid for process in await sdk.do(box.commands.list)]

    await until(unlisted, 5, "killed process is no longer listed")
    equal(await sdk.do(box.commands.kill, 999999), False, "kill of an unknown pid")
    handle = await sdk.start(box, "sleep 1234")
    equal(await handle.kill(), True, "kill through the handle")


@proves("commands.connect", "commands.disconnect", "commands.connect.unknown")
async def scenario_disconnect_and_connect(sdk):
    """Leaving a command does not end it; a second client sees only what comes after."""
    box = await sdk.create()
    command = "echo early; until test -e /tmp/go; do sleep 0.05; done; echo late; exit 0"
    running = await sdk.start(box, command)
    await running.disconnect()
    await asyncio.sleep(0.5)
    again = (await sdk.reconnect(box, running.pid)).follow()
    equal(again.pid, running.pid, "pid after connect")
    await sdk.do(box.files.write, "/tmp/go", "")
    result = await again.wait()
    equal(result.exit_code, 0, "exit code seen by the second client")
    equal(result.stdout, "late\n", "only new output after connect")

    await sdk.raises(e2b.NotFoundException, box.commands.connect, 999999)


@proves("commands.connect")
async def scenario_two_listeners(sdk):
    box = await sdk.create()
    first = (await sdk.start(box, "until test -e /tmp/go; do sleep 0.05; done; echo both")).follow()
    second = (await sdk.reconnect(box, first.pid)).follow()
    await asyncio.sleep(0.3)
    await sdk.do(box.files.write, "/tmp/go", "")
    equal((await first.wait()).stdout, "both\n", "first listener")
    equal((await second.wait()).stdout, "both\n", "second listener")


@proves("commands.send_stdin")
async def scenario_stdin(sdk):
    box = await sdk.create()
    running = (await sdk.start(box, "read -r line; echo got $line; read -r line; echo and $line", stdin=True)).follow()
    await sdk.do(box.commands.send_stdin, running.pid, "first\n")
    await running.expect("got first")
    await sdk.do(box.commands.send_stdin, running.pid, "second ✓\n")
    equal((await running.wait()).stdout, "got first\nand second ✓\n", "echoed lines")
    await sdk.raises(e2b.SandboxException, box.commands.send_stdin, 999999, "x")


@proves("commands.close_stdin", needs="close_stdin")
async def scenario_close_stdin(sdk):
    box = await sdk.create()
    running = (await sdk.start(box, "cat; echo end", stdin=True)).follow()
    await sdk.do(box.commands.send_stdin, running.pid, "all of it")
    await running.expect("all of it")
    await sdk.do(box.commands.close_stdin, running.pid)
    result = await running.wait()
    equal((result.stdout, result.exit_code), ("all of itend\n", 0), "cat ends with its input")

    handle = (await sdk.start(box, "wc -c", stdin=True)).follow()
    await sdk.do(handle.handle.send_stdin, "12345")
    await sdk.do(handle.handle.close_stdin)
    equal((await handle.wait()).stdout.strip(), "5", "bytes counted through the handle's own calls")


@proves("commands.stream_input", needs="stream_input")
async def scenario_stream_input(sdk):
    box = await sdk.create()
    running = (await sdk.start(box, "cat", stdin=True)).follow()
    parts = ["one ", "two ", "three"]
    if sdk.is_async:
        stream = await sdk.do(box.commands.stream_input, running.pid)
        for part in parts:
            await stream.send(part)
        await stream.close()
    else:
        await sdk.do(box.commands.stream_input, running.pid, iter(parts))
    await running.expect("one two three")
    await sdk.do(box.commands.close_stdin, running.pid)
    equal((await running.wait()).stdout, "one two three", "streamed input, in order")


@proves("commands.run.retain_output", needs="retain_output")
async def scenario_retain_output(sdk):
    box = await sdk.create()
    seen = []
    result = await sdk.do(box.commands.run, "echo kept", on_stdout=seen.append, retain_output=False)
    equal((result.stdout, "".join(seen)), (None, "kept\n"), "output only through the callback")


@proves("commands.run.cwd")
async def scenario_directory(sdk):
    box = await sdk.create()
    equal((await sdk.do(box.commands.run, "pwd", cwd="/tmp")).stdout, "/tmp\n", "absolute cwd")
    await sdk.do(box.files.make_dir, "deep/er")
    equal((await sdk.do(box.commands.run, "pwd", cwd="deep/er")).stdout, "/home/user/deep/er\n", "relative cwd")
    error = await sdk.raises(e2b.InvalidArgumentException, box.commands.run, "pwd", cwd="/no/such/place")
    true("/no/such/place" in str(error), f"the message names the directory: {error}")


@proves("commands.run.user", "sudo")
async def scenario_users(sdk):
    box = await sdk.create()
    run = box.commands.run
    equal((await sdk.do(run, "whoami; echo $HOME; id -u")).stdout, "user\n/home/user\n1000\n", "default user")
    equal((await sdk.do(run, "whoami; echo $HOME; id -u", user="root")).stdout, "root\n/root\n0\n", "root")
    equal((await sdk.do(run, "sudo whoami")).stdout, "root\n", "sudo without a password")
    await sdk.do(run, "sudo touch /etc/sandbar-was-here && sudo rm /etc/sandbar-was-here")
    await sdk.raises(e2b.CommandExitException, run, "touch /etc/not-for-user")
    await sdk.raises(e2b.AuthenticationException, run, "whoami", user="nobody-of-that-name")


@proves("commands.run.timeout")
async def scenario_timeout_kills(sdk):
    """2 s on `sleep 10`: a timeout error at about 2 s, and the process is gone."""
    box = await sdk.create()
    pids = []
    started = time.monotonic()
    await sdk.raises(e2b.TimeoutException, box.commands.run, "echo $$; exec sleep 10", timeout=2, on_stdout=pids.append)
    took = time.monotonic() - started
    true(1.8 <= took <= 4, f"the timeout of 2 s came after {took:.2f} s")
    pid = int("".join(pids))

    async def dead():
        result = await sdk.do(box.commands.run, f"kill -0 {pid} 2>/dev/null && echo alive || echo dead", user="root")
        return result.stdout == "dead\n"

    await until(dead, 3, f"process {pid} is gone")


@proves("commands.run.timeout")
async def scenario_no_timeout(sdk):
    box = await sdk.create()
    result = await sdk.do(box.commands.run, "sleep 1; echo slow", timeout=0)
    equal(result.stdout, "slow\n", "timeout 0 means none")


@proves("commands.run.bytes")
async def scenario_broken_utf8(sdk):
    """Bytes pass through as they are; the client replaces what is not text."""
    box = await sdk.create()
    result = await sdk.do(box.commands.run, r"printf 'a\xff\xfeb\n'; printf '\xc3' >&2")
    true(result.stdout.startswith("a\ufffd") and result.stdout.endswith("b\n"), f"stdout {result.stdout!r}")
    equal(result.stderr, "\ufffd", "half a character")


@proves("commands.run.big_output")
async def scenario_big_output(sdk):
    box = await sdk.create()
    script = "python3 -c \"import sys; sys.stdout.write('0123456789abcdef' * 524288)\""
    result = await sdk.do(box.commands.run, script, timeout=30)
    equal(len(result.stdout), 8 * 1024 * 1024, "length of 8 MiB of output")
    true(result.stdout == "0123456789abcdef" * 524288, "8 MiB arrive in order")


@proves("commands.run")
async def scenario_many_at_once(sdk):
    box = await sdk.create()
    results = await asyncio.gather(*(sdk.do(box.commands.run, f"sleep 0.2; echo {n}") for n in range(20)))
    equal([result.stdout for result in results], [f"{n}\n" for n in range(20)], "20 commands side by side")


@proves("commands.run.pipes")
async def scenario_stream_ends_with_last_writer(sdk):
    """A child that keeps the pipe open keeps the stream open; one that does not, does not."""
    box = await sdk.create()
    started = time.monotonic()
    result = await sdk.do(box.commands.run, "(sleep 1; echo child) & echo parent", timeout=20)
    equal(result.stdout, "parent\nchild\n", "output of a child that outlives its parent")
    started = time.monotonic()
    await sdk.do(box.commands.run, "nohup sleep 30 >/dev/null 2>&1 & echo started", timeout=20)
    true(time.monotonic() - started < 10, "a detached child holds the stream")


@proves("kill.during_run")
async def scenario_kill_sandbox_during_run(sdk):
    """The stream breaks at once and the SDK says the sandbox is gone, not that the command ended."""
    box = await sdk.create()
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(
        sdk.do(
            box.commands.run,
            "echo up; sleep 60",
            on_stdout=lambda _: loop.call_soon_threadsafe(ready.set),
        )
    )
    await asyncio.wait_for(ready.wait(), 15)
    started = time.monotonic()
    await sdk.do(box.kill)
    try:
        await asyncio.wait_for(running, 15)
        raise AssertionError("the run ended without an error")
    except AssertionError:
        raise
    except asyncio.TimeoutError:
        raise AssertionError("the run did not end within 15 s of the kill") from None
    except Exception as error:
        took = time.monotonic() - started
        text = f"{type(error).__name__}: {error}"
        true("ended without an end event" not in text, text)
        true(took < 5, f"the error took {took:.1f} s")
        if hasattr(e2b, "SandboxNotRunningException"):
            true(isinstance(error, e2b.SandboxNotRunningException), f"expected SandboxNotRunningException: {text}")
        elif hasattr(e2b, "SandboxNotFoundException"):
            true(isinstance(error, e2b.TimeoutException), f"expected TimeoutException: {text}")
            true("end of life" in str(error), text)
        else:
            # 2.13.2 hands the broken connection through as its HTTP library names it.
            true(type(error).__name__ in ("RemoteProtocolError", "ReadError", "TimeoutException"), text)
