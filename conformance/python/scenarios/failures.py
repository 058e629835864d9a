"""Which error class a caller sees."""

import e2b
from harness import equal, proves, true


@proves("errors.authentication", quick=True)
async def scenario_wrong_key(sdk):
    wrong = "e2b_" + "0" * 40
    await sdk.raises(e2b.AuthenticationException, sdk.Sandbox.create, api_key=wrong)
    box = await sdk.create()
    await sdk.raises(e2b.AuthenticationException, sdk.Sandbox.kill, box.sandbox_id, api_key=wrong)
    equal(await sdk.do(box.is_running), True, "still running after a kill with a wrong key")


@proves("errors.sandbox_not_found", quick=True)
async def scenario_unknown_sandbox(sdk):
    missing = sdk.error("SandboxNotFoundException", "NotFoundException")
    for call, arguments in (
        (sdk.Sandbox.connect, ()),
        (sdk.Sandbox.get_info, ()),
        (sdk.Sandbox.set_timeout, (60,)),
        (sdk.Sandbox.pause if sdk.has("pause") else sdk.Sandbox.beta_pause, ()),
    ):
        await sdk.raises(missing, call, "inonexistingsandbox00", *arguments)


@proves("errors.template_not_found")
async def scenario_unknown_template(sdk):
    error = await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, "no-such-template")
    true("no-such-template" in str(error) and "404" in str(error), f"the message tells which and how: {error}")


@proves("errors.invalid_argument")
async def scenario_invalid_arguments(sdk):
    error = await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, "no/such/grammar/at all!")
    true("400" in str(error), f"a bad template reference is a 400: {error}")
    error = await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, timeout=-5)
    true("400" in str(error), f"a negative timeout is a 400: {error}")


@proves("errors.gone")
async def scenario_calls_on_a_killed_sandbox(sdk):
    box = await sdk.create()
    await sdk.do(box.kill)
    gone = sdk.error("SandboxNotRunningException", "TimeoutException")
    await sdk.raises(gone, box.commands.run, "echo x")
    await sdk.raises(gone, box.commands.list)
    await sdk.raises(gone, box.files.read, "x")
    await sdk.raises(gone, box.files.write, "x", "y")
    await sdk.raises(gone, box.files.list, "/")


@proves("errors.paused")
async def scenario_calls_on_a_paused_sandbox(sdk):
    box = await sdk.create()
    await sdk.pause(box)
    gone = sdk.error("SandboxNotRunningException", "TimeoutException")
    await sdk.raises(gone, box.commands.run, "echo x")
    await sdk.raises(gone, box.files.read, "x")
