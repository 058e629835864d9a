"""Creating, inspecting, listing and killing sandboxes."""

import asyncio
import datetime
import time

import e2b
from harness import equal, proves, true, until


@proves("create", "get_info", "is_running", "kill", quick=True)
async def scenario_create_inspect_kill(sdk):
    before = datetime.datetime.now(datetime.timezone.utc)
    box = await sdk.create(metadata={"purpose": "inspect", "odd key": "ü=&%"}, envs={"GREETING": "hello"}, timeout=90)
    true(box.sandbox_id.isalnum() and box.sandbox_id.lower() == box.sandbox_id, f"id {box.sandbox_id} is not a-z0-9")
    true(await sdk.do(box.is_running), "a new sandbox is running")

    info = await sdk.do(box.get_info)
    equal(info.sandbox_id, box.sandbox_id, "sandbox_id")
    equal(info.metadata, {"mark": sdk.mark, "purpose": "inspect", "odd key": "ü=&%"}, "metadata")
    equal(getattr(info.state, "value", info.state), "running", "state")
    true(info.template_id, "template_id is not empty")
    equal(info.name, "base", "name (the template's alias)")
    true(info.cpu_count >= 1 and info.memory_mb >= 128, f"cpu {info.cpu_count}, memory {info.memory_mb}")
    true(info.envd_version.count(".") == 2, f"envd version {info.envd_version}")
    true(info.started_at.tzinfo is not None and info.end_at.tzinfo is not None, "times carry a zone")
    life = (info.end_at - info.started_at).total_seconds()
    true(88 <= life <= 92, f"a 90 s timeout gives a life of {life} s")
    true(abs((info.started_at - before).total_seconds()) < 20, f"started_at {info.started_at} is not about now")

    equal(await sdk.do(box.kill), True, "kill of a running sandbox")
    equal(await sdk.do(box.is_running), False, "is_running right after kill")
    equal(await sdk.do(box.kill), False, "second kill")
    await sdk.raises(sdk.error("SandboxNotFoundException", "NotFoundException"), sdk.Sandbox.get_info, box.sandbox_id)


@proves("create.defaults", quick=True)
async def scenario_bare_create(sdk):
    """Nothing is set, so the server's own defaults apply from 2.51 on."""
    box = sdk.adopt(await sdk.do(sdk.Sandbox.create))
    info = await sdk.do(box.get_info)
    life = (info.end_at - info.started_at).total_seconds()
    true(298 <= life <= 302, f"the default life is {life} s, not 300")
    true("signature=" in box.download_url("x"), "a sandbox is secured by default")
    equal((await sdk.do(box.commands.run, "echo $E2B_SANDBOX; pwd; whoami")).stdout, "true\n/home/user\nuser\n", "shell")


@proves("create.envs", "commands.run.envs", quick=True)
async def scenario_environment(sdk):
    box = await sdk.create(envs={"CREATED": "at create", "BOTH": "create"})
    run = box.commands.run
    result = await sdk.do(run, 'echo "$CREATED|$BOTH|$ONCE"', envs={"BOTH": "command", "ONCE": "only here"})
    equal(result.stdout, "at create|command|only here\n", "create-time and per-command variables")
    result = await sdk.do(run, 'echo "$CREATED|$BOTH|$ONCE"')
    equal(result.stdout, "at create|create|\n", "a command's variables do not reach the next one")
    result = await sdk.do(run, 'echo "$HOME $USER $LOGNAME $E2B_SANDBOX $E2B_SANDBOX_ID"')
    equal(result.stdout, f"/home/user user user true {box.sandbox_id}\n", "system variables")


@proves("kill.unknown", quick=True)
async def scenario_kill_unknown(sdk):
    equal(await sdk.do(sdk.Sandbox.kill, "nonexistingsandbox"), False, "kill of an unknown sandbox")


@proves("class.get_info", "class.connect", "class.set_timeout", "class.kill", "connect", quick=True)
async def scenario_class_level_calls(sdk):
    box = await sdk.create(timeout=60)
    await sdk.do(box.files.write, "note.txt", "kept")
    equal((await sdk.do(sdk.Sandbox.get_info, box.sandbox_id)).sandbox_id, box.sandbox_id, "class-level get_info")

    same = await sdk.do(sdk.Sandbox.connect, box.sandbox_id)
    equal(same.sandbox_id, box.sandbox_id, "id after connect")
    equal(await sdk.do(same.files.read, "note.txt"), "kept", "file read through the connected instance")
    again = await sdk.do(box.connect)
    equal(again.sandbox_id, box.sandbox_id, "id after connect on the instance")

    await sdk.do(sdk.Sandbox.set_timeout, box.sandbox_id, 1000)
    info = await sdk.do(box.get_info)
    left = (info.end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    true(980 < left < 1020, f"after set_timeout(1000) {left} s are left")

    equal(await sdk.do(sdk.Sandbox.kill, box.sandbox_id), True, "class-level kill")
    equal(await sdk.do(same.is_running), False, "is_running of another instance after the kill")


@proves("connect.timeout")
async def scenario_connect_with_timeout(sdk):
    """`connect(timeout=)` extends the timeout; a shorter value leaves the end unchanged, to the byte."""
    box = await sdk.create(timeout=200)
    first = (await sdk.do(box.get_info)).end_at
    await sdk.do(box.connect, timeout=20)
    equal((await sdk.do(box.get_info)).end_at, first, "end_at after connect with a shorter timeout")
    await sdk.do(sdk.Sandbox.connect, box.sandbox_id, timeout=20)
    equal((await sdk.do(box.get_info)).end_at, first, "end_at after class-level connect with a shorter timeout")
    await sdk.do(sdk.Sandbox.connect, box.sandbox_id, timeout=900)
    longer = (await sdk.do(box.get_info)).end_at
    true((longer - first).total_seconds() > 600, f"connect(timeout=900) moved the end from {first} to {longer}")


@proves("set_timeout")
async def scenario_expiry(sdk):
    """5 s set: running until then, gone within a second of it. (The second one of the bound is for a busy machine.)"""
    box = await sdk.create(timeout=60)
    asked = time.monotonic()
    await sdk.do(box.set_timeout, 5)
    answered = time.monotonic()

    async def gone():
        return not await sdk.do(box.is_running)

    await until(gone, 15, "not running after 5 s")
    ended = time.monotonic()
    true(ended - asked >= 5, f"the 5 s ended after {ended - asked:.2f} s")
    true(ended - answered <= 7, f"the 5 s ended after {ended - answered:.2f} s")
    await sdk.raises(sdk.error("SandboxNotFoundException", "NotFoundException"), box.get_info)


@proves("set_timeout")
async def scenario_shorten_then_lengthen(sdk):
    box = await sdk.create(timeout=60)
    await sdk.do(box.set_timeout, 3)
    await sdk.do(box.set_timeout, 60)
    await asyncio.sleep(4.5)
    equal(await sdk.do(box.is_running), True, "is_running after the first, shorter deadline passed")


@proves("beta_create", needs="beta_create")
async def scenario_beta_create(sdk):
    box = await sdk.create(through=sdk.Sandbox.beta_create, timeout=60)
    equal((await sdk.do(box.commands.run, "echo made")).stdout, "made\n", "command in a beta_create sandbox")


@proves("create.idempotency_key", needs="idempotency_key")
async def scenario_idempotency_key(sdk):
    key = f"key-{sdk.mark}".replace("_", "-").replace(".", "-").lower()
    first = await sdk.create(idempotency_key=key)
    second = await sdk.create(idempotency_key=key)
    equal(second.sandbox_id, first.sandbox_id, "the same key gives the same sandbox")
    other = await sdk.create(idempotency_key=key + "-2")
    true(other.sandbox_id != first.sandbox_id, "another key gives another sandbox")


@proves("client", needs="client")
async def scenario_bound_client(sdk):
    client = e2b.E2B(api_key=sdk.key)
    bound = client.AsyncSandbox if sdk.is_async else client.Sandbox
    box = await sdk.create(through=bound.create, timeout=60)
    equal((await sdk.do(box.commands.run, "echo bound")).stdout, "bound\n", "command through a bound client")
    equal(await sdk.do(bound.kill, box.sandbox_id), True, "class-level kill of a bound client")


@proves("create.template")
async def scenario_named_templates(sdk):
    for template in ("base", "code-interpreter-v1"):
        box = await sdk.create(template=template)
        equal((await sdk.do(box.commands.run, "echo $0; python3 -c 'print(6*7)'")).stdout, "/bin/bash\n42\n", template)


@proves("tools")
async def scenario_tools_of_the_base_template(sdk):
    box = await sdk.create()
    tools = "bash sudo git python3 python node curl tput"
    script = f"for tool in {tools}; do command -v $tool >/dev/null || echo missing: $tool; done"
    equal((await sdk.do(box.commands.run, script)).stdout, "", "tools on the path")
    equal((await sdk.do(box.commands.run, "node -e 'console.log(1+1)'", timeout=30)).stdout, "2\n", "node")
    roots = await sdk.do(box.commands.run, "test -s /etc/ssl/certs/ca-certificates.crt && echo roots")
    equal(roots.stdout, "roots\n", "TLS roots")


@proves("git")
async def scenario_git_helper(sdk):
    box = await sdk.create()
    await sdk.do(box.git.init, "/home/user/repo")
    await sdk.do(box.files.write, "/home/user/repo/a.txt", "one")
    status = await sdk.do(box.git.status, "/home/user/repo")
    equal([file.name for file in status.file_status], ["a.txt"], "untracked files")
    await sdk.do(box.git.add, "/home/user/repo")
    await sdk.do(box.git.commit, "/home/user/repo", "first", author_name="A", author_email="a@example.com")
    true((await sdk.do(box.git.status, "/home/user/repo")).is_clean, "the tree is clean after the commit")


@proves("kill")
async def scenario_gone_within_a_second(sdk):
    box = await sdk.create()
    other = await sdk.do(sdk.Sandbox.connect, box.sandbox_id)
    await sdk.do(box.kill)

    async def gone():
        return not await sdk.do(other.is_running)

    await until(gone, 1.0, "not running")
