"""Terminals."""

import e2b
from harness import equal, proves, true


@proves("pty.create", "pty.send_stdin", quick=True)
async def scenario_terminal(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box, envs={"MARK": "visible"}, cwd="/tmp")).follow()
    true(terminal.pid > 0, f"pid {terminal.pid}")
    await terminal.type('echo "[$MARK $TERM $PWD $(test -t 0 && echo tty)]"\n')
    await terminal.expect("[visible xterm-256color /tmp tty]")
    await terminal.type("exit\n")
    equal((await terminal.wait()).exit_code, 0, "exit code after `exit`")


@proves("pty.resize")
async def scenario_resize(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box, cols=80, rows=24)).follow()
    await terminal.type('echo "<$(tput cols)x$(tput lines)>"\n')
    await terminal.expect("<80x24>")
    await terminal.resize(cols=133, rows=41)
    await terminal.type('echo "<$(tput cols)x$(tput lines)>"\n')
    await terminal.expect("<133x41>")
    await terminal.kill()


@proves("pty.exit_code")
async def scenario_exit_code(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box)).follow()
    await terminal.type("exit 5\n")
    try:
        await terminal.wait()
        raise AssertionError("exit 5 gave no error")
    except e2b.CommandExitException as error:
        equal(error.exit_code, 5, "exit code")


@proves("pty.connect")
async def scenario_reconnect(sdk):
    box = await sdk.create()
    first = await sdk.terminal(box)
    await first.type("STATE=remembered\n")
    await first.disconnect()
    second = (await sdk.terminal(box, pid=first.pid)).follow()
    equal(second.pid, first.pid, "pid after connect")
    await second.type('echo "<$STATE>"\n')
    await second.expect("<remembered>")
    await second.type("exit\n")
    equal((await second.wait()).exit_code, 0, "exit code after reconnect")


@proves("pty.kill", "pty.kill.unknown")
async def scenario_kill(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box)).follow()
    equal(await sdk.do(box.pty.kill, terminal.pid), True, "kill of a terminal")
    try:
        await terminal.wait()
        raise AssertionError("wait on a killed terminal gave no error")
    except e2b.CommandExitException as error:
        equal(error.exit_code, -1, "exit code of a killed terminal")
    equal(await sdk.do(box.pty.kill, 999999), False, "kill of an unknown terminal")


@proves("pty.user")
async def scenario_user(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box, user="root")).follow()
    await terminal.type('echo "<$(whoami):$HOME>"\n')
    await terminal.expect("<root:/root>")
    await terminal.kill()


@proves("pty.control_keys")
async def scenario_interrupt(sdk):
    """Control-C reaches the foreground process as a signal: the terminal is its controlling one."""
    box = await sdk.create()
    terminal = (await sdk.terminal(box)).follow()
    await terminal.type("bash -c 'echo \"<in $((6*7))>\"; sleep 100'\n")
    await terminal.expect("<in 42>")
    await terminal.type("\x03")
    await terminal.type('echo "<code $?>"\n')
    await terminal.expect("<code 130>")
    await terminal.kill()


@proves("pty.stream_input", needs="stream_input")
async def scenario_stream_input(sdk):
    box = await sdk.create()
    terminal = (await sdk.terminal(box)).follow()
    parts = ['echo "<str', 'eamed $((6*7))>"', "\n"]
    if sdk.is_async:
        stream = await sdk.do(box.pty.stream_input, terminal.pid)
        for part in parts:
            await stream.send(part)
        await stream.close()
    else:
        await sdk.do(box.pty.stream_input, terminal.pid, iter(parts))
    await terminal.expect("<streamed 42>")
    await terminal.kill()
