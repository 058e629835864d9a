"""Watching directories: polled by the sync client, streamed to the async one."""

import e2b
from harness import equal, proves, true


def kinds(events) -> list[tuple[str, str]]:
    return [(event.type.value, event.name) for event in events]


@proves("watch", quick=True)
async def scenario_new_file(sdk):
    """A new file written through the API is exactly three events, in order."""
    box = await sdk.create()
    await sdk.do(box.files.make_dir, "watched")
    watch = await sdk.watch(box, "watched")
    await sdk.do(box.files.write, "watched/new.txt", "content")
    await watch.until(lambda events: len(events) >= 3, "three events")
    expected = [("create", "new.txt"), ("chmod", "new.txt"), ("write", "new.txt")]
    equal(kinds(await watch.settled()), expected, "events of a new file")
    await watch.stop()


@proves("watch.events")
async def scenario_every_kind(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "watched/file", "first")
    watch = await sdk.watch(box, "watched")
    run = box.commands.run
    steps = [
        ("echo more >> watched/file", ("write", "file")),
        ("chmod 600 watched/file", ("chmod", "file")),
        ("mv watched/file watched/other", ("rename", "file")),
        ("rm watched/other", ("remove", "other")),
        ("mkdir watched/folder", ("create", "folder")),
    ]
    for command, expected in steps:
        await sdk.do(run, command)
        await watch.until(lambda events: expected in kinds(events), f"{expected} after `{command}`")
    true(("create", "other") in kinds(await watch.events()), "the new name of a rename is a create")
    await watch.stop()
    seen = len(await watch.events()) if sdk.is_async else None
    await sdk.do(run, "touch watched/after-stop")
    if sdk.is_async:
        equal(len(await watch.settled()), seen, "events after stop")


@proves("watch.recursive")
async def scenario_recursive(sdk):
    box = await sdk.create()
    await sdk.do(box.files.make_dir, "tree/old")
    watch = await sdk.watch(box, "tree", recursive=True)
    await sdk.do(box.files.write, "tree/old/a.txt", "a")
    await watch.until(lambda events: ("write", "old/a.txt") in kinds(events), "write in an old directory")
    await sdk.do(box.files.make_dir, "tree/young")
    await watch.until(lambda events: ("create", "young") in kinds(events), "create of a new directory")
    await sdk.do(box.files.write, "tree/young/b.txt", "b")
    await watch.until(lambda events: ("write", "young/b.txt") in kinds(events), "write in a new directory")
    await watch.stop()

    shallow = await sdk.watch(box, "tree")
    await sdk.do(box.files.write, "tree/old/c.txt", "c")
    await sdk.do(box.files.write, "tree/top.txt", "top")
    await shallow.until(lambda events: ("write", "top.txt") in kinds(events), "write at the top")
    true(all("c.txt" not in event.name for event in await shallow.settled()), "a plain watch stays at the top")
    await shallow.stop()


@proves("watch.entries", needs="include_entry")
async def scenario_entries(sdk):
    box = await sdk.create()
    await sdk.do(box.files.make_dir, "watched")
    watch = await sdk.watch(box, "watched", include_entry=True)
    await sdk.do(box.files.write, "watched/e.txt", "12345")
    events = await watch.until(lambda events: ("write", "e.txt") in kinds(events), "write")
    write = next(event for event in events if event.type.value == "write")
    true(write.entry is not None, "a write carries its entry")
    equal((write.entry.path, write.entry.size), ("/home/user/watched/e.txt", 5), "entry")
    await sdk.do(box.files.remove, "watched/e.txt")
    events = await watch.until(lambda events: ("remove", "e.txt") in kinds(events), "remove")
    equal(next(event for event in events if event.type.value == "remove").entry, None, "a removed path has no entry")
    await watch.stop()


@proves("watch.errors")
async def scenario_errors(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "plain.txt", "")
    options = {"on_event": print} if sdk.is_async else {}
    missing = sdk.error("FileNotFoundException", "NotFoundException")
    await sdk.raises(missing, box.files.watch_dir, "absent", **options)
    await sdk.raises(e2b.InvalidArgumentException, box.files.watch_dir, "plain.txt", **options)
