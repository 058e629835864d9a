"""Pause and resume: with memory, with files only, by time-out, by traffic, many times."""

import asyncio
import hashlib
import os

from harness import equal, proves, true, until

BOOT_ID = "/proc/sys/kernel/random/boot_id"


async def _serve(sdk, box, port: int, text: str):
    """A web server on the sandbox's loopback that answers `text`."""
    await sdk.do(box.files.write, "www/index.html", text)
    command = f"cd www && exec python3 -m http.server {port} --bind 127.0.0.1"
    await (await sdk.start(box, command, timeout=0)).disconnect()

    async def answers():
        answer = await sdk.port(box, port)
        return answer.status == 200 and answer.text == text

    await until(answers, 15, f"the server in the sandbox answers on port {port}")


@proves("pause", "connect.resume", quick=True, deadline=60)
async def scenario_memory(sdk):
    """Processes go on where they were: same pid, same boot, a delayed write still happens, a server answers again."""
    box = await sdk.create(timeout=300)
    await _serve(sdk, box, 8000, "still here")
    sleeper = await sdk.start(box, "sleep 3600", timeout=0)
    await sleeper.disconnect()
    writer = await sdk.start(box, "sleep 2; echo written > late.txt", timeout=0)
    await writer.disconnect()
    boot = await sdk.do(box.files.read, BOOT_ID)
    url = box.download_url("late.txt")

    await sdk.pause(box)
    equal(await sdk.do(box.is_running), False, "is_running of a paused sandbox")
    equal(await sdk.state(box), "paused", "state")
    equal((await sdk.port(box, 8000)).status, 502, "traffic to a paused sandbox")

    same = await sdk.do(sdk.Sandbox.connect, box.sandbox_id, timeout=300)
    equal(same.sandbox_id, box.sandbox_id, "id after resume")
    equal(await sdk.state(box), "running", "state after resume")
    equal(await sdk.do(box.is_running), True, "the first instance works on: its token is unchanged")
    equal(await sdk.do(box.files.read, BOOT_ID), boot, "boot id after a resume with memory")
    pids = [process.pid for process in await sdk.do(box.commands.list)]
    true(sleeper.pid in pids, f"pid {sleeper.pid} is not among {pids} after resume")
    again = await sdk.reconnect(box, sleeper.pid)
    equal(again.pid, sleeper.pid, "connect to the process from before the pause")
    await again.kill()

    async def late():
        return await sdk.do(box.files.exists, "late.txt")

    await until(late, 10, "the delayed write")
    equal((await sdk.fetch("GET", url)).text, "written\n", "a URL signed before the pause")
    answer = await sdk.port(box, 8000)
    equal((answer.status, answer.text), (200, "still here"), "the server from before the pause")
    equal((await sdk.do(same.get_info)).metadata["mark"], sdk.mark, "metadata after resume")


@proves("pause.again")
async def scenario_already_paused(sdk):
    box = await sdk.create()
    first = await sdk.pause(box)
    again = await sdk.pause(box)
    if sdk.has("pause"):
        equal((first, again), (True, False), "answers of pause and of a second pause")
    equal(await sdk.state(box), "paused", "state")
    equal(await sdk.do(box.kill), True, "kill of a paused sandbox")
    missing = sdk.error("SandboxNotFoundException", "NotFoundException")
    await sdk.raises(missing, sdk.Sandbox.connect, box.sandbox_id)


@proves("beta_pause", needs="beta_pause")
async def scenario_beta_pause(sdk):
    box = await sdk.create()
    await sdk.do(box.beta_pause)
    equal(await sdk.state(box), "paused", "state after beta_pause")
    await sdk.do(box.connect, timeout=60)
    equal(await sdk.state(box), "running", "state after connect(timeout=)")
    await sdk.do(sdk.Sandbox.beta_pause, box.sandbox_id)
    equal(await sdk.state(box), "paused", "state after the class-level beta_pause")


@proves("class.pause", needs="pause")
async def scenario_class_level_pause(sdk):
    box = await sdk.create()
    equal(await sdk.do(sdk.Sandbox.pause, box.sandbox_id), True, "class-level pause")
    equal(await sdk.state(box), "paused", "state")


@proves("pause.filesystem", needs="pause.filesystem", deadline=60)
async def scenario_filesystem_only(sdk):
    """Files are kept, processes are not: a fresh boot under the same id."""
    box = await sdk.create(timeout=300, envs={"CREATED": "kept"})
    content = os.urandom(300_000)
    await sdk.do(box.files.write, "kept.bin", content)
    await sdk.do(box.commands.run, "sudo sh -c 'echo system > /etc/kept'; chmod 700 kept.bin")
    sleeper = await sdk.start(box, "sleep 3600", timeout=0)
    await sleeper.disconnect()
    boot = await sdk.do(box.files.read, BOOT_ID)

    await sdk.do(box.pause, keep_memory=False)
    equal(await sdk.state(box), "paused", "state")
    await sdk.do(box.connect, timeout=300)
    true(bytes(await sdk.do(box.files.read, "kept.bin", format="bytes")) == content, "the file's bytes")
    shown = await sdk.do(box.commands.run, 'cat /etc/kept; stat -c "%U %a" kept.bin; echo $CREATED')
    equal(shown.stdout, "system\nuser 700\nkept\n", "system file, owner, mode and variables")
    true(await sdk.do(box.files.read, BOOT_ID) != boot, "the boot id is a new one")
    equal([p.pid for p in await sdk.do(box.commands.list)], [], "no process is left from before")


@proves("connect.on_resume", needs="connect.on_resume")
async def scenario_reboot_on_resume(sdk):
    box = await sdk.create(timeout=300)
    await sdk.do(box.files.write, "kept.txt", "kept")
    boot = await sdk.do(box.files.read, BOOT_ID)
    await sdk.do(box.pause)
    await sdk.do(sdk.Sandbox.connect, box.sandbox_id, on_resume="reboot")
    equal(await sdk.do(box.files.read, "kept.txt"), "kept", "file after a reboot")
    true(await sdk.do(box.files.read, BOOT_ID) != boot, "the boot id is a new one")


@proves("pause.strict", needs="pause.strict")
async def scenario_strict(sdk):
    box = await sdk.create()
    equal(await sdk.do(box.pause, strict=True), True, "pause that requires a healthy guest")
    info = await sdk.do(box.get_info)
    true(not info.envd_unresponsive_at_pause, "the guest was healthy")


@proves("auto_pause")
async def scenario_auto_pause(sdk):
    """At its time-out the sandbox is paused instead of killed."""
    if sdk.has("lifecycle"):
        box = await sdk.create(timeout=3, lifecycle={"on_timeout": "pause"})
    else:
        box = await sdk.create(timeout=3, through=sdk.Sandbox.beta_create, auto_pause=True)
    await sdk.do(box.files.write, "kept.txt", "kept")
    if sdk.has("lifecycle"):
        equal((await sdk.do(box.get_info)).lifecycle, {"on_timeout": "pause", "auto_resume": False}, "lifecycle in info")

    async def paused():
        return await sdk.state(box) == "paused"

    await until(paused, 6, "paused by its time-out")
    equal(await sdk.do(box.is_running), False, "is_running after the auto-pause")
    equal((await sdk.port(box, 8000)).status, 502, "traffic does not wake it")
    await sdk.do(box.connect, timeout=60)
    equal(await sdk.do(box.files.read, "kept.txt"), "kept", "file after the auto-pause")


@proves("auto_pause.filesystem", needs=("lifecycle", "pause.filesystem"))
async def scenario_auto_pause_filesystem(sdk):
    box = await sdk.create(timeout=3, lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    await sdk.do(box.files.write, "kept.txt", "kept")
    boot = await sdk.do(box.files.read, BOOT_ID)

    async def paused():
        return await sdk.state(box) == "paused"

    await until(paused, 6, "paused by its time-out")
    await sdk.do(box.connect, timeout=60)
    equal(await sdk.do(box.files.read, "kept.txt"), "kept", "file after a files-only auto-pause")
    true(await sdk.do(box.files.read, BOOT_ID) != boot, "the boot id is a new one")


@proves("auto_resume", needs="lifecycle")
async def scenario_auto_resume(sdk):
    """A request to a port of a paused sandbox wakes it and is answered; so does an SDK call."""
    box = await sdk.create(timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await _serve(sdk, box, 8000, "woken")
    await sdk.pause(box)
    equal(await sdk.state(box), "paused", "state")
    answer = await sdk.port(box, 8000)
    equal((answer.status, answer.text), (200, "woken"), "answer of the woken sandbox")
    equal(await sdk.state(box), "running", "state after the traffic")
    await sdk.pause(box)
    equal((await sdk.do(box.commands.run, "echo awake")).stdout, "awake\n", "a command wakes it too")


@proves("pause.cycles", deadline=240)
async def scenario_many_cycles(sdk):
    """Bytes written between pauses are all there at the end."""
    box = await sdk.create(timeout=600)
    expected = {}
    for n in range(sdk.cycles):
        content = os.urandom(50_000 + n)
        expected[f"cycle/{n}.bin"] = hashlib.sha256(content).hexdigest()
        await sdk.do(box.files.write, f"cycle/{n}.bin", content)
        await sdk.pause(box)
        await sdk.do(box.connect, timeout=600)
    result = await sdk.do(box.commands.run, "sha256sum cycle/*.bin")
    got = {name: digest for digest, name in (line.split() for line in result.stdout.splitlines())}
    equal(got, expected, f"digests after {sdk.cycles} cycles")


@proves("pause")
async def scenario_pause_during_run(sdk):
    """A command that runs while its sandbox is paused goes on afterwards."""
    box = await sdk.create(timeout=300)
    running = await sdk.start(box, "for n in 1 2 3 4 5 6 7 8; do echo $n >> count; sleep 0.4; done", timeout=0)
    await running.disconnect()

    async def begun():
        return await sdk.do(box.files.exists, "count")

    await until(begun, 10, "the count has begun")
    await sdk.pause(box)
    await asyncio.sleep(3.2)  # Were it not paused, it would have counted to the end.
    await sdk.do(box.connect, timeout=300)
    seen = (await sdk.do(box.files.read, "count")).split()
    true(len(seen) < 8, f"the count stood still while paused: {seen}")

    async def finished():
        return (await sdk.do(box.files.read, "count")).split() == list("12345678")

    await until(finished, 10, "the count goes on to 8")
