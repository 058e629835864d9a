import hashlib, os, stat

first = {}
lines = []

def describe(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    what = ""
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            what = hashlib.sha256(file.read()).hexdigest()
        what += " same as %r" % first.setdefault(status.st_ino, path)
    elif kind == stat.S_IFLNK:
        what = repr(os.readlink(path))
    attributes = []
    if kind != stat.S_IFLNK:
        attributes = sorted((name, os.getxattr(path, name)) for name in os.listxattr(path) if name.startswith("user."))
    lines.append("%r %o %d:%d %d %s %r" % (path, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, what, attributes))

def walk(directory):
    describe(directory)
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        # The marker of the newest checkpoint, and a folder made only for it, are not compared.
        if path == b"./.sandbar/snapshot" or path == b"./.sandbar" and os.listdir(path) == [b"snapshot"]:
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            walk(path)
        else:
            describe(path)

walk(b".")
print("\n".join(lines))
