"""Volumes without an SDK: tokens, errors, and what a hostile sandbox puts into one."""

from harness import equal, proves, true

from .control import is_error


@proves("http.volumes", deadline=60)
async def scenario_volumes(http):
    name = http.mark.replace(".", "-")
    answer = await http.api("POST", "/volumes", {"name": name})
    equal(answer.status, 201, f"create: {answer.text[:200]}")
    made = answer.json()
    is_error(await http.api("POST", "/volumes", {"name": name}), 400, "a name that is taken")
    is_error(await http.api("POST", "/volumes", {"name": "a/b"}), 400, "a name that is none")

    async def content(method: str, rest: str, body=None, token: str = made["token"]):
        url = f"{http.url}/volumecontent/{made['volumeID']}/{rest}"
        return await http.fetch(method, url, {"Authorization": f"Bearer {token}"}, body)

    equal((await content("GET", "dir?path=/", token="wrong")).status, 401, "a wrong token")
    equal((await content("GET", "dir?path=/", token=http.key)).status, 401, "the server's key")
    missing = await content("GET", "path?path=/none")
    equal((missing.status, missing.json()["code"]), (404, "not_found"), "an absent path")
    equal((await content("PUT", "file?path=/a", b"1")).status, 201, "a file")
    equal((await content("PUT", "file?path=/a", b"2")).status, 409, "a file that exists")
    equal((await content("PUT", "file?path=/a&force=true", b"2")).status, 201, "a file that is overwritten")
    for path in ("/../x", "/a/../../x", "%00"):
        equal((await content("GET", f"path?path={path}")).status, 400, f"the path {path}")

    box = await http.create(volumeMounts=[{"name": name, "path": "/data"}])
    links = "ln -s /etc/passwd /data/file; ln -s / /data/root; ln -s ../../../../../etc /data/up; mkfifo /data/pipe"
    equal((await box.run(links))[1].get("exitCode", 0), 0, "links are made")
    for path in ("/file", "/root/etc/passwd", "/up/passwd", "/pipe"):
        answer = await content("GET", f"file?path={path}")
        true(answer.status in (400, 404), f"{path} leads out: {answer.status} {answer.text[:80]}")
    equal((await content("GET", "path?path=/file")).json()["type"], "symlink", "a link is one")
    equal((await content("PUT", "file?path=/file&force=true", b"mine")).status, 201, "a link is replaced, not followed")
    equal((await box.run("cat /data/file"))[0], b"mine", "the file in its place")
    is_error(await http.api("DELETE", f"/volumes/{made['volumeID']}"), 409, "a volume that is mounted")
    await http.api("DELETE", f"/sandboxes/{box.id}")
    equal((await http.api("DELETE", f"/volumes/{made['volumeID']}")).status, 204, "delete")
