"""Signed URLs: fetched by plain HTTP clients, with no key, no token and no routing headers."""

import asyncio

import wire
from harness import equal, proves, true


@proves("download_url", quick=True)
async def scenario_download(sdk):
    box = await sdk.create()
    await sdk.do(box.files.write, "shared file.txt", "for download")
    for url in (box.download_url("shared file.txt"), box.download_url("shared file.txt", use_signature_expiration=120)):
        answer = await sdk.fetch("GET", url)
        equal((answer.status, answer.body), (200, b"for download"), f"GET {url.split('?')[0]}")
    answer = await sdk.fetch("GET", box.download_url("shared file.txt", user="root"))
    equal(answer.status, 404, "the same relative path is another file for root")
    await sdk.do(box.files.write, "secret", "root's", user="root")
    answer = await sdk.fetch("GET", box.download_url("secret", user="root"))
    equal((answer.status, answer.body), (200, b"root's"), "as root")


@proves("upload_url", quick=True)
async def scenario_upload(sdk):
    box = await sdk.create()
    body, headers = wire.form_file("ignored-name", b"uploaded")
    answer = await sdk.fetch("POST", box.upload_url("in/coming.txt", use_signature_expiration=120), headers, body)
    equal(answer.status, 200, f"POST by signed URL: {answer.text[:200]}")
    equal(answer.json()[0]["path"], "/home/user/in/coming.txt", "answer")
    equal(await sdk.do(box.files.read, "in/coming.txt"), "uploaded", "content")
    answer = await sdk.fetch("POST", box.upload_url("as-root.txt", user="root"), headers, body)
    equal(answer.status, 200, f"as root: {answer.text[:200]}")
    owner = await sdk.do(box.commands.run, "stat -c %U /root/as-root.txt", user="root")
    equal(owner.stdout, "root\n", "owner")


@proves("signed_urls.refused")
async def scenario_refused(sdk):
    box, other = await sdk.create(), await sdk.create()
    await sdk.do(box.files.write, "a.txt", "a")
    url = box.download_url("a.txt", use_signature_expiration=1)
    await asyncio.sleep(2.2)
    answer = await sdk.fetch("GET", url)
    equal(answer.status, 401, "status of an expired URL")
    equal(answer.json(), {"code": 401, "message": "signature is already expired"}, "body of an expired URL")

    good = box.download_url("a.txt")
    tampered = good.replace("path=a.txt", "path=b.txt")
    true(tampered != good, f"the URL names the path: {good.split('&')[0]}")
    equal((await sdk.fetch("GET", tampered)).status, 401, "signature of another path")
    body, headers = wire.form_file("a.txt", b"overwritten")
    equal((await sdk.fetch("POST", good, headers, body)).status, 401, "a read signature does not write")
    equal(await sdk.do(box.files.read, "a.txt"), "a", "the file is untouched")
    equal((await sdk.fetch("GET", other.download_url("a.txt"))).status, 404, "another sandbox's URL reads its own files")
    await sdk.do(box.kill)
    true((await sdk.fetch("GET", good)).status >= 400, "a killed sandbox's URL is refused")
