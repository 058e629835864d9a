"""What sandboxes start from: snapshots, forks, and templates built step by step."""

import os
import tempfile
from pathlib import Path

import e2b
from harness import equal, proves, true


def _name(sdk, suffix: str = "") -> str:
    return sdk.mark.replace(".", "-").lower() + suffix


def _builder(sdk):
    return e2b.AsyncTemplate if sdk.is_async else e2b.Template


async def _text(sdk, box, command: str) -> str:
    return (await sdk.do(box.commands.run, command)).stdout


@proves("snapshots", "snapshots.delete", needs="snapshot", quick=True, deadline=90)
async def scenario_snapshots(sdk):
    """A snapshot keeps the files of its moment; sandboxes created from it are independent of it and of each other."""
    box = await sdk.create()
    await sdk.do(box.files.write, "kept.txt", "before")
    await _text(sdk, box, "sudo touch /opt/by-root; ln -s kept.txt link; rm -f .bash_logout")
    snapshot = await sdk.do(box.create_snapshot)
    await sdk.do(box.files.write, "kept.txt", "after")
    equal(await sdk.do(box.is_running), True, "the source runs on")
    one = await sdk.create(template=snapshot.snapshot_id)
    other = await sdk.create(template=snapshot.snapshot_id)
    await sdk.do(one.files.write, "kept.txt", "mine")
    equal(await sdk.do(other.files.read, "kept.txt"), "before", "the file as it was")
    inspect = "cat link; stat -c %U /opt/by-root; ls .bash_logout 2>&1 | grep -c 'No such'"
    equal(await _text(sdk, other, inspect), "beforeroot\n1\n", "links, owners and deletions")
    equal(await sdk.do(box.files.read, "kept.txt"), "after", "the source")
    for made in (one, other):
        await sdk.do(made.kill)
    equal(await sdk.do(sdk.Sandbox.delete_snapshot, snapshot.snapshot_id), True, "the first delete")
    equal(await sdk.do(sdk.Sandbox.delete_snapshot, snapshot.snapshot_id), False, "the second delete")
    await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, snapshot.snapshot_id)


@proves("snapshots.named", "snapshots.list", needs="snapshot", deadline=90)
async def scenario_named_snapshots(sdk):
    """The same name again is a newer state of the same snapshot; lists have filters and pages."""
    box, name = await sdk.create(), _name(sdk)
    await sdk.do(box.files.write, "state", "one")
    first = await sdk.do(box.create_snapshot, name=name)
    await sdk.do(box.files.write, "state", "two")
    second = await sdk.do(box.create_snapshot, name=name)
    equal(first.snapshot_id, second.snapshot_id, "one snapshot")
    true(any(name in known for known in second.names), f"{name} is among {second.names}")
    unnamed = await sdk.do(box.create_snapshot)
    child = await sdk.create(template=name)
    equal(await sdk.do(child.files.read, "state"), "two", "the newest state")
    await sdk.do(child.kill)
    pages = await sdk.pages(box.list_snapshots(limit=1))
    found = [row.snapshot_id for page in pages for row in page]
    equal(sorted(found), sorted([first.snapshot_id, unnamed.snapshot_id]), "snapshots of this sandbox, page by page")
    true(all(len(page) <= 1 for page in pages), "no page is longer than asked")
    named = await sdk.pages(sdk.Sandbox.list_snapshots(name=name))
    equal([row.snapshot_id for page in named for row in page], [first.snapshot_id], "by name")
    for snapshot in (first, unnamed):
        equal(await sdk.do(sdk.Sandbox.delete_snapshot, snapshot.snapshot_id), True, "delete")


@proves("fork", needs="fork", quick=True, deadline=90)
async def scenario_fork(sdk):
    """Forks have the files of one moment, and a token and a timeout of their own."""
    box = await sdk.create(metadata={"kind": "source"})
    await sdk.do(box.files.write, "state", "shared")
    children = await sdk.do(box.fork, count=3, timeout=120)
    equal(len(children), 3, "one entry a child")
    for child in children:
        true(not isinstance(child, Exception), f"a child did not start: {child}")
        sdk.adopt(child)
    equal(len({child.sandbox_id for child in children} | {box.sandbox_id}), 4, "ids of their own")
    for number, child in enumerate(children):
        equal(await sdk.do(child.files.read, "state"), "shared", "the files of the source")
        await sdk.do(child.files.write, "state", str(number))
    equal(await sdk.do(box.files.read, "state"), "shared", "the source is as it was")
    equal([await sdk.do(child.files.read, "state") for child in children], ["0", "1", "2"], "apart from each other")


@proves("templates.build", "templates.copy", "templates.exists", quick=True, deadline=180)
async def scenario_build(sdk):
    """Every kind of step, the cache, and sandboxes of the template."""
    name = _name(sdk)
    with tempfile.TemporaryDirectory() as context:
        root = Path(context)
        (root / "app").mkdir()
        (root / "app" / "main.py").write_text("print('built')\n")
        (root / "app" / "link").symlink_to("main.py")
        (root / "one.txt").write_text("one")
        os.chmod(root / "one.txt", 0o600)

        def template(last: str):
            return (
                _builder(sdk)(file_context_path=context)
                .from_base_image()
                .set_envs({"GREETING": "hello", "TWICE": "$GREETING $GREETING"})
                .set_workdir("/srv/app")
                .copy("app", "/srv/app")
                .copy("one.txt", "/etc/one.txt", user="root", mode=0o644)
                .run_cmd(f": {name}; sudo touch /by-root; echo $TWICE > greeting; date +%s%N > stamp")
                .run_cmd(last)
            )

        logs = []
        built = await sdk.do(_builder(sdk).build, template("true"), name, on_build_logs=logs.append)
        true(logs, "a build says what it does")
        equal(await sdk.do(_builder(sdk).exists, name), True, "exists")
        equal(await sdk.do(_builder(sdk).exists, name + "-not"), False, "exists of what does not")
        box = await sdk.create(template=name)
        equal(await _text(sdk, box, "pwd; whoami; cat greeting; python3 main.py; echo $GREETING"),
              "/srv/app\nuser\nhello hello\nbuilt\nhello\n", "the sandbox begins where the build ended")
        equal(await _text(sdk, box, "readlink link; stat -c '%U:%G' link main.py greeting /by-root"),
              "main.py\nuser:user\nuser:user\nuser:user\nroot:root\n", "links and owners")
        equal(await _text(sdk, box, "stat -c '%U %a' /etc/one.txt; cat /etc/one.txt"), "root 644\none", "one file")
        stamp = await _text(sdk, box, "cat stamp")
        await sdk.do(_builder(sdk).build, template("echo changed > last"), name)
        again = await sdk.create(template=name)
        equal(await _text(sdk, again, "cat stamp last"), stamp + "changed\n", "only the changed step ran again")
        equal(await sdk.do(box.files.exists, "/srv/app/last"), False, "the first sandbox is as it was")
        true(built.template_id, "the answer of build names the template")


@proves("templates.start", "templates.from_template", deadline=180)
async def scenario_start(sdk):
    """What a template starts runs in every sandbox of it, and in those of templates on top of it."""
    name = _name(sdk)
    serve = "python3 -m http.server 8000 --bind 127.0.0.1 --directory /srv"
    ready = "curl -sf http://127.0.0.1:8000/page"
    template = _builder(sdk)().from_base_image().run_cmd("echo served > /srv/page", user="root").set_start_cmd(serve, ready)
    await sdk.do(_builder(sdk).build, template, name)
    await sdk.do(_builder(sdk).build, _builder(sdk)().from_template(name).run_cmd("echo more > more"), name + "-2")
    for used in (name, name + "-2"):
        box = await sdk.create(template=used)
        answer = await sdk.port(box, 8000, "/page")
        equal((answer.status, answer.text), (200, "served\n"), f"a server that was started for {used}")


@proves("templates.failure", deadline=120)
async def scenario_failure(sdk):
    """A failed build names its step and leaves nothing that could be used."""
    name = _name(sdk)
    template = _builder(sdk)().from_base_image().run_cmd("true").run_cmd("echo broken >&2; exit 7").run_cmd("true")
    logs = []
    error = await sdk.raises(e2b.BuildException, _builder(sdk).build, template, name, on_build_logs=logs.append)
    true("7" in str(error), f"the exit status is reported: {error}")
    true(any("broken" in entry.message for entry in logs), "the output of the command is reported")
    await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, name)
    ghost = _builder(sdk)().from_base_image().run_cmd("whoami", user="root123")
    refused = await sdk.raises(e2b.BuildException, _builder(sdk).build, ghost, name + "-ghost")
    expected = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    true(expected in str(refused), f"an unknown user in E2B's words: {refused}")
    image = _builder(sdk)().from_image("127.0.0.1:1/none:1")
    refused = await sdk.raises(e2b.BuildException, _builder(sdk).build, image, name + "-image")
    true("cannot be pulled" in str(refused), f"an unknown image is named: {refused}")


@proves("templates.dockerfile", quick=True, deadline=180)
async def scenario_dockerfile(sdk):
    """A Dockerfile as the SDK reads it, and E2B's own image by its name, at any tag."""
    name = _name(sdk)
    with tempfile.TemporaryDirectory() as context:
        (Path(context) / "page.txt").write_text("from the context\n")
        dockerfile = (
            "FROM e2bdev/base:latest\nENV KIND=docker\nWORKDIR /srv/page\nCOPY page.txt ./\n"
            "RUN echo $KIND >> page.txt && \\\n    chmod 644 page.txt\nUSER user\n"
        )
        template = _builder(sdk)(file_context_path=context).from_dockerfile(dockerfile)
        await sdk.do(_builder(sdk).build, template, name)
        box = await sdk.create(template=name)
        equal(await _text(sdk, box, "pwd; whoami; cat page.txt; echo $KIND"),
              "/srv/page\nuser\nfrom the context\ndocker\ndocker\n", "what the Dockerfile says")
    image = _builder(sdk)().from_image("e2bdev/base").run_cmd("echo image > state")
    await sdk.do(_builder(sdk).build, image, name + "-image")
    box = await sdk.create(template=name + "-image")
    equal(await _text(sdk, box, "cat state; python3 -c 'print(1)'"), "image\n1\n", "our base, without a download")


@proves("templates.tags", "templates.background", deadline=120)
async def scenario_tags(sdk):
    name, builder = _name(sdk), _builder(sdk)
    started = await sdk.do(builder.build_in_background, builder().from_base_image().run_cmd("echo 1 > state"), f"{name}:v1")
    status = None
    while status not in ("ready", "error"):
        status = (await sdk.do(builder.get_build_status, started)).status
        status = getattr(status, "value", status)
    equal(status, "ready", "the build's end")
    await sdk.do(builder.assign_tags, f"{name}:v1", ["stable", "default"])
    await sdk.do(builder.build, builder().from_base_image().run_cmd("echo 2 > state"), name)
    for reference, expected in ((f"{name}:v1", "1\n"), (f"{name}:stable", "1\n"), (name, "2\n")):
        box = await sdk.create(template=reference)
        equal(await _text(sdk, box, "cat state"), expected, reference)
    if hasattr(builder, "get_tags"):
        tags = await sdk.do(builder.get_tags, started.template_id)
        equal(sorted(tag.tag for tag in tags), ["default", "stable", "v1"], "tags")
    await sdk.do(builder.remove_tags, name, "stable")
    await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, f"{name}:stable")
