"""The code interpreter package: code that keeps its state, gives results, and can be stopped."""

import e2b
from harness import equal, proves, true


def _kind(sdk):
    import e2b_code_interpreter as package

    return package.AsyncSandbox if sdk.is_async else package.Sandbox


async def _box(sdk, **options):
    return await sdk.create(through=_kind(sdk).create, **options)


@proves("code.run", needs="code_interpreter", quick=True, deadline=60)
async def scenario_run(sdk):
    box = await _box(sdk, envs={"WHO": "sandbox"})
    printed, failed, results = [], [], []
    code = "import sys\nx = 41\nprint('ü\\u2028')\nprint('oops', file=sys.stderr)\nx + 1"
    ran = await sdk.do(
        box.run_code, code, on_stdout=lambda line: printed.append(line.line),
        on_stderr=lambda line: failed.append(line.line), on_result=results.append,
    )
    equal((ran.text, ran.execution_count, ran.error), ("42", 1, None), "the last value")
    equal(("".join(printed), "".join(failed), len(results)), ("ü\u2028\n", "oops\n", 1), "what the callbacks heard")
    equal(("".join(ran.logs.stdout), "".join(ran.logs.stderr)), ("ü\u2028\n", "oops\n"), "what was printed")
    ran = await sdk.do(box.run_code, "print(x)\n1 / 0")
    equal((ran.error.name, ran.error.value), ("ZeroDivisionError", "division by zero"), "the error")
    true("1 / 0" in ran.error.traceback, f"the line is shown: {ran.error.traceback}")
    equal(ran.logs.stdout, ["41\n"], "the state is kept")
    rich = "class R:\n  def _repr_html_(self): return '<b>x</b>'\n  def _repr_png_(self): return b'\\x89PNG'\nR()"
    result = (await sdk.do(box.run_code, rich)).results[0]
    equal((result.html, result.png, result.is_main_result), ("<b>x</b>", "iVBORw==", True), "its other forms")
    equal((await sdk.do(box.run_code, "{'a': 1}")).results[0].json, {"a": 1}, "as JSON")
    env = "import os\nos.environ['WHO'], os.environ.get('ONCE')"
    ran = await sdk.do(box.run_code, env, envs={"ONCE": "run"})
    equal(ran.text, "('sandbox', 'run')", "its own variables")
    equal((await sdk.do(box.run_code, env)).text, "('sandbox', None)", "without them")


@proves("code.languages", needs="code_interpreter", deadline=60)
async def scenario_languages(sdk):
    box = await _box(sdk)
    await sdk.do(box.run_code, "const a = 40; let b = 2", language="js")
    equal((await sdk.do(box.run_code, "a + b", language="javascript")).text, "42", "JavaScript keeps its state")
    ran = await sdk.do(box.run_code, "await Promise.resolve(7)", language="javascript")
    equal(ran.text, "7", "JavaScript waits")
    await sdk.do(box.run_code, "cd /usr; x=5", language="bash")
    ran = await sdk.do(box.run_code, "pwd; echo $x", language="bash")
    equal("".join(ran.logs.stdout), "/usr\n5\n", "bash keeps its state")
    equal((await sdk.do(box.run_code, "(exit 3)", language="bash")).error.value, "3", "how a command ended")
    error = await sdk.raises(e2b.SandboxException, box.run_code, "1", language="cobol")
    true("cobol" in str(error), f"what was wrong is named: {error}")


@proves("code.contexts", needs="code_interpreter", deadline=60)
async def scenario_contexts(sdk):
    box = await _box(sdk)
    context = await sdk.do(box.create_code_context, cwd="/usr", language="python")
    equal((context.cwd, context.language), ("/usr", "python"), "the new context")
    await sdk.do(box.run_code, "x = 1", context=context)
    equal((await sdk.do(box.run_code, "x")).error.name, "NameError", "contexts are apart")
    ran = await sdk.do(box.run_code, "import os\nx, os.getcwd()", context=context)
    equal(ran.text, "(1, '/usr')", "its state and directory")
    true(context.id in [row.id for row in await sdk.do(box.list_code_contexts)], "it is listed")
    await sdk.do(box.restart_code_context, context)
    equal((await sdk.do(box.run_code, "x", context=context)).error.name, "NameError", "after a restart")
    await sdk.do(box.remove_code_context, context)
    await sdk.raises(e2b.NotFoundException, box.run_code, "1", context=context)


@proves("code.timeout", needs="code_interpreter", deadline=60)
async def scenario_timeout(sdk):
    box = await _box(sdk)
    await sdk.do(box.run_code, "x = 1")
    await sdk.raises(e2b.TimeoutException, box.run_code, "import time\nwhile True: time.sleep(1)", timeout=1)
    # The code was interrupted when its client left, and its interpreter goes on.
    equal((await sdk.do(box.run_code, "x", timeout=20)).text, "1", "after it was stopped")
