import os

os.makedirs(b"project/src")
os.makedirs(b"project/empty/deeper")
names = [
    b"plain", b"with space", b" leading", b"trailing ", b"-dash", b"--help", b"new\nline", b"end\n", b"cr\r", b"tab\t",
    b"back\\slash", b"back\\nslash", b"star*", b"quest?", b"[ab]", b"$(touch x)", b"`id`", b"'quote'", b'"double"', b"~",
    "\u00fcnic\u00f6de \u65e5\u672c\u8a9e \U0001f600".encode(), "e\u0301 and \u00e9".encode(), b"\xff\xfe not utf-8",
    b"x" * 255, b".hidden", b"..dots", b"a -> b", b"#1", b"%41", b"build", b"node_modules", b"name:with:colons",
]
for name in names:
    path = b"project/src/" + name
    with open(path, "wb") as file:
        file.write(b"content of " + name)
    os.symlink(name, path[:240] + b".link")
deep = b"project/" + b"/".join([b"d\n" + b"y" * 100] * 6)
os.makedirs(deep)
with open(deep + b"/f\nile", "wb") as file:
    file.write(b"deep")
os.symlink(b"z\n" * 120, deep + b"/long target")
os.link(deep + b"/f\nile", b"project/far link")
os.symlink(b"/nowhere at all", b"project/dangling")
os.symlink(b"src", b"project/directory link")
os.link(b"project/src/-dash", b"project/-another dash")
os.mkfifo(b"project/fifo")
with open(b"project/none", "wb"):
    pass
with open(b"project/holes", "wb") as file:
    file.truncate(300000)
    file.seek(150000)
    file.write(b"in the middle")
with open(b"project/random", "wb") as file:
    file.write(os.urandom(1 << 20))
for name, mode in [(b"m000", 0), (b"m4755", 0o4755), (b"m2644", 0o2644), (b"m777", 0o777)]:
    with open(b"project/" + name, "wb") as file:
        file.write(name)
    os.chmod(b"project/" + name, mode)
os.mkdir(b"project/sticky")
os.chmod(b"project/sticky", 0o1777)
os.mkdir(b"project/closed")
with open(b"project/closed/inside", "wb") as file:
    file.write(b"closed")
os.setxattr(b"project/none", b"user.note", b"line\nbreak \x00\xff and =")
os.setxattr(b"project/src", b"user.of.directory", b"yes")
for directory, folders, files in os.walk(b"project"):
    for name in folders + files:
        if name != b"plain":
            os.chown(os.path.join(directory, name), 1000, 1000, follow_symlinks=False)
os.chmod(b"project/m4755", 0o4755)
os.chmod(b"project/m2644", 0o2644)
os.chown(b"project/m777", 1234, 4321)
os.chmod(b"project/closed", 0o500)
os.utime(b"project/none", ns=(1, 1234567890123456789))
os.utime(b"project/empty", ns=(1, 1000000000000000001))
