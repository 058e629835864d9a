"""Volumes: file systems that outlive sandboxes and can be mounted in several at once."""

import e2b
from harness import equal, proves, true


def _kind(sdk):
    return e2b.AsyncVolume if sdk.is_async else e2b.Volume


def _name(sdk) -> str:
    return sdk.mark.replace(".", "-")


async def _listed(sdk) -> list[str]:
    return [row.volume_id for row in await sdk.do(_kind(sdk).list)]


@proves("volumes", needs="volume", quick=True)
async def scenario_volumes(sdk):
    kind = _kind(sdk)
    volume = await sdk.do(kind.create, _name(sdk))
    equal(volume.name, _name(sdk), "the name")
    true(volume.volume_id in await _listed(sdk), "it is listed")
    info = await sdk.do(kind.get_info, volume.volume_id)
    equal((info.name, info.token), (volume.name, volume.token), "what is known of it")
    await sdk.raises(e2b.VolumeException, kind.create, _name(sdk))
    await sdk.do(volume.write_file, "/mark", "one")
    again = await sdk.do(kind.connect, volume.volume_id)
    equal(await sdk.do(again.read_file, "/mark"), "one", "through another handle")
    equal(await sdk.do(kind.destroy, volume.volume_id), True, "the first destroy")
    equal(await sdk.do(kind.destroy, volume.volume_id), False, "the second destroy")
    true(volume.volume_id not in await _listed(sdk), "it is listed no more")
    await sdk.raises(e2b.NotFoundException, kind.get_info, volume.volume_id)


@proves("volumes.content", needs="volume")
async def scenario_content(sdk):
    volume = await sdk.do(_kind(sdk).create, _name(sdk))
    content = bytes(range(256)) * 4096
    entry = await sdk.do(volume.write_file, "/dir/big", content, uid=7, gid=8, mode=0o600)
    equal((entry.name, entry.path, entry.size), ("big", "/dir/big", len(content)), "the new entry")
    equal((entry.uid, entry.gid, entry.mode), (7, 8, 0o600), "owner and mode")
    true(bytes(await sdk.do(volume.read_file, "/dir/big", format="bytes")) == content, "what was written is read")
    await sdk.do(volume.write_file, "/dir/big", "small", force=True)
    equal(await sdk.do(volume.read_file, "/dir/big"), "small", "overwritten")
    await sdk.do(volume.make_dir, "/dir/inner/deep", force=True)
    paths = [entry.path for entry in await sdk.do(volume.list, "/", depth=3)]
    equal(paths, ["/dir", "/dir/big", "/dir/inner", "/dir/inner/deep"], "a deep list")
    equal([entry.path for entry in await sdk.do(volume.list, "/")], ["/dir"], "a list")
    changed = await sdk.do(volume.update_metadata, "/dir/big", uid=5, gid=9, mode=0o640)
    equal((changed.uid, changed.gid, changed.mode), (5, 9, 0o640), "changed owner and mode")
    equal(await sdk.do(volume.exists, "/dir/none"), False, "exists of what does not")
    await sdk.do(volume.remove, "/dir")
    equal(await sdk.do(volume.exists, "/dir"), False, "after it was removed")
    await sdk.raises(e2b.NotFoundException, volume.read_file, "/dir/big")
    await sdk.do(_kind(sdk).destroy, volume.volume_id)


@proves("volumes.mounts", needs="volume", deadline=60)
async def scenario_mounts(sdk):
    volume = await sdk.do(_kind(sdk).create, _name(sdk))
    await sdk.do(volume.write_file, "/before", "from outside")
    one = await sdk.create(volume_mounts={"/mnt/data": volume})
    two = await sdk.create(volume_mounts={"/home/user/data": volume.name})
    equal((await sdk.do(one.commands.run, "cat /mnt/data/before")).stdout, "from outside", "a file of the volume")
    await sdk.do(one.commands.run, "echo shared > /mnt/data/shared")
    equal(await sdk.do(two.files.read, "data/shared"), "shared\n", "what the other sandbox wrote")
    info = await sdk.http("GET", f"/sandboxes/{one.sandbox_id}")
    equal(info.json()["volumeMounts"], [{"name": volume.name, "path": "/mnt/data"}], "what the sandbox has")
    await sdk.raises(e2b.VolumeException, _kind(sdk).destroy, volume.volume_id)
    await sdk.pause(one)
    await sdk.do(one.connect)
    equal((await sdk.do(one.commands.run, "cat /mnt/data/shared")).stdout, "shared\n", "after a pause")
    for box in (one, two):
        await sdk.do(box.kill)
    equal(await sdk.do(volume.read_file, "/shared"), "shared\n", "after its sandboxes")
    equal(await sdk.do(_kind(sdk).destroy, volume.volume_id), True, "destroyed when no sandbox mounts it")
    await sdk.raises(e2b.SandboxException, sdk.Sandbox.create, volume_mounts={"/mnt/data": volume.name})

