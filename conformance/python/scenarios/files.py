"""Reading, writing and arranging files."""

import datetime
import gzip
import hashlib
import io
import os

import e2b
from harness import equal, proves, true


def _missing(sdk):
    return sdk.error("FileNotFoundException", "NotFoundException")


@proves("files.write", "files.read.text", "files.exists", quick=True)
async def scenario_write_and_read(sdk):
    box = await sdk.create()
    info = await sdk.do(box.files.write, "hello.txt", "Grüße\n")
    equal((info.name, info.path), ("hello.txt", "/home/user/hello.txt"), "answer of write")
    equal(await sdk.do(box.files.read, "hello.txt"), "Grüße\n", "text by relative path")
    equal(await sdk.do(box.files.read, "/home/user/hello.txt"), "Grüße\n", "text by absolute path")
    equal((await sdk.do(box.commands.run, "cat hello.txt")).stdout, "Grüße\n", "seen by a command")
    equal(await sdk.do(box.files.exists, "hello.txt"), True, "exists")
    equal(await sdk.do(box.files.exists, "nothing.txt"), False, "exists of an absent path")
    odd = "odd name +&?#%20 ü.txt"
    await sdk.do(box.files.write, odd, "odd")
    equal(await sdk.do(box.files.read, odd), "odd", "a name with characters special in URLs")
    equal((await sdk.do(box.commands.run, "ls")).stdout, f"hello.txt\n{odd}\n", "names on disk")


@proves("files.read.bytes", quick=True)
async def scenario_bytes(sdk):
    box = await sdk.create()
    content = bytes(range(256)) * 64
    await sdk.do(box.files.write, "data.bin", content)
    equal(bytes(await sdk.do(box.files.read, "data.bin", format="bytes")), content, "bytes")
    await sdk.do(box.files.write, "empty", "")
    equal(bytes(await sdk.do(box.files.read, "empty", format="bytes")), b"", "an empty file as bytes")
    equal(await sdk.do(box.files.read, "empty"), "", "an empty file as text")
    boot = await sdk.do(box.files.read, "/proc/sys/kernel/random/boot_id")
    equal(len(boot.strip()), 36, f"a file of /proc, whose size is reported as 0: {boot!r}")


@proves("files.read.stream")
async def scenario_stream_read(sdk):
    box = await sdk.create()
    content = os.urandom(3 * 1024 * 1024 + 17)
    await sdk.do(box.files.write, "stream.bin", content)
    chunks = await sdk.read_stream(box, "stream.bin")
    true(b"".join(chunks) == content, "streamed bytes are the written ones")
    if sdk.has("true_stream"):
        true(len(chunks) > 1, "a stream comes in several chunks")
    await sdk.do(box.files.write, "empty", "")
    equal(b"".join(await sdk.read_stream(box, "empty")), b"", "stream of an empty file")
    await sdk.raises(_missing(sdk), box.files.read, "absent.bin", format="stream")


@proves("files.write.stream")
async def scenario_file_objects(sdk):
    box = await sdk.create()
    content = os.urandom(2 * 1024 * 1024)
    await sdk.do(box.files.write, "from-file", io.BytesIO(content))
    true(bytes(await sdk.do(box.files.read, "from-file", format="bytes")) == content, "bytes from a file object")
    await sdk.do(box.files.write, "from-text", io.StringIO("Zeilen\n"))
    equal(await sdk.do(box.files.read, "from-text"), "Zeilen\n", "text from a file object")


@proves("files.write.iterable", needs="iterable_upload")
async def scenario_iterable_upload(sdk):
    box = await sdk.create()
    parts = [os.urandom(100_000) for _ in range(20)]

    async def later():
        for part in parts:
            yield part

    await sdk.do(box.files.write, "parts", later() if sdk.is_async else iter(parts))
    got = bytes(await sdk.do(box.files.read, "parts", format="bytes"))
    true(got == b"".join(parts), "an iterable arrives whole")


@proves("files.write_files", quick=True)
async def scenario_many_files(sdk):
    box = await sdk.create()
    entries = [{"path": f"many/{n}/file {n}.txt", "data": f"content {n}"} for n in range(8)]
    entries += [{"path": "many/bytes", "data": b"\x00\x01"}, {"path": "/tmp/object", "data": io.BytesIO(b"object")}]
    infos = await sdk.do(box.files.write_files, entries)
    expected = [f"/home/user/many/{n}/file {n}.txt" for n in range(8)] + ["/home/user/many/bytes", "/tmp/object"]
    equal([info.path for info in infos], expected, "answer in order")
    for n in range(8):
        equal(await sdk.do(box.files.read, f"many/{n}/file {n}.txt"), f"content {n}", f"file {n}")
    equal(bytes(await sdk.do(box.files.read, "many/bytes", format="bytes")), b"\x00\x01", "bytes among texts")
    equal(await sdk.do(box.files.read, "/tmp/object"), "object", "object among texts")
    equal(await sdk.do(box.files.write_files, []), [], "an empty list")


@proves("files.write.parents", "files.write.overwrite")
async def scenario_parents_and_overwrite(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "a/b/c/deep.txt", "long first content")
    owner = await sdk.do(box.commands.run, "stat -c '%U:%G %a' a a/b a/b/c a/b/c/deep.txt")
    equal(owner.stdout, "user:user 755\n" * 3 + "user:user 644\n", "owner and mode of what was made")
    await sdk.do(box.files.write, "a/b/c/deep.txt", "short")
    equal(await sdk.do(box.files.read, "a/b/c/deep.txt"), "short", "overwritten")
    await sdk.raises(e2b.InvalidArgumentException, box.files.write, "a/b", "a directory is there")
    await sdk.raises(e2b.SandboxException, box.files.write, "a/b/c/deep.txt/below", "a file is there")


@proves("files.user")
async def scenario_as_root(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "mine", "root's", user="root")
    equal((await sdk.do(box.commands.run, "stat -c '%U' /root/mine", user="root")).stdout, "root\n", "owner")
    equal(await sdk.do(box.files.read, "mine", user="root"), "root's", "relative to root's home")
    await sdk.raises(e2b.AuthenticationException, box.files.read, "mine", user="nobody-of-that-name")
    await sdk.do(box.files.make_dir, "made", user="root")
    equal(await sdk.do(box.files.exists, "/root/made", user="root"), True, "directory made as root")


@proves("files.gzip", needs="gzip")
async def scenario_gzip(sdk):
    box = await sdk.create()
    text = "the same line again\n" * 20_000
    await sdk.do(box.files.write, "packed", text, gzip=True)
    true(await sdk.do(box.files.read, "packed") == text, "written with gzip, read plain")
    await sdk.do(box.files.write, "plain", text)
    true(await sdk.do(box.files.read, "plain", gzip=True) == text, "written plain, read with gzip")
    equal((await sdk.do(box.commands.run, "wc -c < packed")).stdout.strip(), str(len(text)), "stored unpacked")
    archive = gzip.compress(b"stays packed")
    await sdk.do(box.files.write, "archive.gz", archive)
    equal(bytes(await sdk.do(box.files.read, "archive.gz", format="bytes")), archive, "a .gz file is left alone")


@proves("files.octet_stream", needs="octet_stream")
async def scenario_octet_stream(sdk):
    box = await sdk.create()
    content = os.urandom(500_000)
    info = await sdk.do(box.files.write, "raw/oct.bin", content, use_octet_stream=True)
    equal(info.path, "/home/user/raw/oct.bin", "answer")
    true(bytes(await sdk.do(box.files.read, "raw/oct.bin", format="bytes")) == content, "bytes")
    entries = [{"path": f"raw/{n}", "data": f"{n}"} for n in range(5)]
    await sdk.do(box.files.write_files, entries, use_octet_stream=True)
    equal([await sdk.do(box.files.read, f"raw/{n}") for n in range(5)], list("01234"), "several at once")


@proves("files.list", quick=True)
async def scenario_listing(sdk):
    box = await sdk.create()
    for path in ("d/b.txt", "d/a/one", "d/a/z/two", "d/c/three"):
        await sdk.do(box.files.write, path, path)

    async def names(**options):
        return [entry.path.removeprefix("/home/user/d/") for entry in await sdk.do(box.files.list, "d", **options)]

    equal(await names(), ["a", "b.txt", "c"], "depth 1")
    equal(await names(depth=2), ["a", "a/one", "a/z", "b.txt", "c", "c/three"], "depth 2")
    equal(await names(depth=3), ["a", "a/one", "a/z", "a/z/two", "b.txt", "c", "c/three"], "depth 3")
    kinds = {entry.name: entry.type.value for entry in await sdk.do(box.files.list, "d")}
    equal(kinds, {"a": "dir", "b.txt": "file", "c": "dir"}, "kinds")
    await sdk.raises(_missing(sdk), box.files.list, "absent")
    await sdk.raises(e2b.InvalidArgumentException, box.files.list, "d/b.txt")
    await sdk.raises(e2b.InvalidArgumentException, box.files.list, "d", depth=0)


@proves("files.get_info", quick=True)
async def scenario_entry_fields(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "entry.txt", "12345")
    entry = await sdk.do(box.files.get_info, "entry.txt")
    equal((entry.name, entry.path, entry.type.value), ("entry.txt", "/home/user/entry.txt", "file"), "identity")
    equal((entry.size, entry.mode, entry.permissions), (5, 0o644, "-rw-r--r--"), "size and mode")
    equal((entry.owner, entry.group), ("user", "user"), "owner and group")
    modified = entry.modified_time
    if not sdk.has("zoned_times"):
        modified = modified.replace(tzinfo=datetime.timezone.utc)
    true(modified.tzinfo is not None, "modified_time has a zone")
    age = (datetime.datetime.now(datetime.timezone.utc) - modified).total_seconds()
    true(-5 < age < 60, f"modified {age} s ago")
    equal(entry.symlink_target, None, "no link target")

    await sdk.do(box.files.make_dir, "folder")
    folder = await sdk.do(box.files.get_info, "folder")
    equal((folder.type.value, folder.mode, folder.permissions), ("dir", 0o755, "drwxr-xr-x"), "a directory")
    true(folder.size > 0, f"size of a directory is {folder.size}")
    await sdk.raises(_missing(sdk), box.files.get_info, "absent")


@proves("files.make_dir", quick=True)
async def scenario_directories(sdk):
    box = await sdk.create()
    equal(await sdk.do(box.files.make_dir, "x/y/z"), True, "new directory with parents")
    equal(await sdk.do(box.files.make_dir, "x/y/z"), False, "directory that exists")
    await sdk.do(box.files.write, "plain", "file")
    await sdk.raises(e2b.InvalidArgumentException, box.files.make_dir, "plain")
    equal((await sdk.do(box.commands.run, "stat -c '%U %a' x/y/z")).stdout, "user 755\n", "owner and mode")


@proves("files.rename", "files.remove", quick=True)
async def scenario_rename_and_remove(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "old.txt", "moved")
    entry = await sdk.do(box.files.rename, "old.txt", "new/place.txt")
    equal((entry.path, entry.size), ("/home/user/new/place.txt", 5), "answer of rename")
    equal(await sdk.do(box.files.exists, "old.txt"), False, "the old name is gone")
    equal(await sdk.do(box.files.read, "new/place.txt"), "moved", "content at the new name")
    await sdk.raises(_missing(sdk), box.files.rename, "absent", "anywhere")

    await sdk.do(box.files.remove, "new")
    equal(await sdk.do(box.files.exists, "new"), False, "a directory is removed with its content")
    await sdk.do(box.files.remove, "absent")


@proves("files.not_found")
async def scenario_not_found(sdk):
    box = await sdk.create()
    error = await sdk.raises(_missing(sdk), box.files.read, "absent.txt")
    true("absent.txt" in str(error), f"the message names the path: {error}")
    await sdk.raises(_missing(sdk), box.files.read, "no/such/dir/absent.txt", format="bytes")
    await sdk.raises(e2b.InvalidArgumentException, box.files.read, "/tmp")


@proves("files.metadata", needs="metadata")
async def scenario_metadata(sdk):
    box = await sdk.create()
    info = await sdk.do(box.files.write, "tagged", "x", metadata={"Author": "ada", "purpose": "test"})
    tags = {"author": "ada", "purpose": "test"}
    equal(info.metadata, tags, "answer of write, keys in lower case")
    equal((await sdk.do(box.files.get_info, "tagged")).metadata, tags, "get_info")
    listed = {entry.name: entry.metadata for entry in await sdk.do(box.files.list, "/home/user")}
    equal(listed["tagged"], tags, "list")
    moved = await sdk.do(box.files.rename, "tagged", "renamed")
    equal(moved.metadata, tags, "rename")
    await sdk.do(box.files.write, "renamed", "y")
    true(not (await sdk.do(box.files.get_info, "renamed")).metadata, "a plain overwrite clears them")
    inside = "import os; os.setxattr('renamed', 'user.e2b.inside', b'yes')"
    await sdk.do(box.commands.run, f'python3 -c "{inside}"')
    equal((await sdk.do(box.files.get_info, "renamed")).metadata, {"inside": "yes"}, "set from inside the sandbox")
    await sdk.raises(e2b.InvalidArgumentException, box.files.write, "bad", "x", metadata={"k": "nö"})


@proves("files.symlinks")
async def scenario_symlinks(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "target.txt", "through the link")
    await sdk.do(box.commands.run, "ln -s target.txt link; mkdir real; ln -s real dirlink; touch real/inner")
    equal(await sdk.do(box.files.read, "link"), "through the link", "read follows a link")
    entry = await sdk.do(box.files.get_info, "link")
    equal((entry.name, entry.path), ("link", "/home/user/link"), "the link's own name")
    equal(entry.symlink_target, "/home/user/target.txt", "where it points")
    true(entry.permissions.startswith("L"), f"permissions {entry.permissions}")
    equal(entry.type.value, "symlink" if sdk.has("symlink_type") else "file", "type")
    paths = [entry.path for entry in await sdk.do(box.files.list, "dirlink")]
    equal(paths, ["/home/user/dirlink/inner"], "listing through a link keeps the asked-for prefix")
    await sdk.do(box.files.remove, "dirlink")
    equal(await sdk.do(box.files.exists, "real/inner"), True, "removing a link leaves its target")


@proves("files.paths")
async def scenario_paths(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "~/home.txt", "home")
    equal(await sdk.do(box.files.read, "/home/user/home.txt"), "home", "~ is the user's home")
    await sdk.do(box.files.write, "../../tmp/up.txt", "up")
    equal(await sdk.do(box.files.read, "/tmp/up.txt"), "up", ".. is resolved inside the sandbox")
    await sdk.do(box.files.write, "../../../../../../../../tmp/root.txt", "root")
    equal(await sdk.do(box.files.read, "/tmp/root.txt"), "root", ".. stops at the sandbox's root")
    await sdk.raises(e2b.InvalidArgumentException, box.files.list, "~somebody/x")


@proves("files.large", deadline=90)
async def scenario_large_file(sdk):
    """64 MiB up, digest inside, and down again."""
    box = await sdk.create()
    block = os.urandom(1024 * 1024)
    content = b"".join(n.to_bytes(4, "big") + block[4:] for n in range(64))
    digest = hashlib.sha256(content).hexdigest()
    await sdk.do(box.files.write, "large.bin", content, request_timeout=60)
    inside = await sdk.do(box.commands.run, "sha256sum large.bin | cut -d' ' -f1", timeout=60)
    equal(inside.stdout.strip(), digest, "digest inside the sandbox")
    chunks = await sdk.read_stream(box, "large.bin")
    equal(hashlib.sha256(b"".join(chunks)).hexdigest(), digest, "digest after the download")
