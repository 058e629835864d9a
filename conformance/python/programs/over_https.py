"""A program as users of E2B's cloud write it: it knows a key and a domain, and no URL. Prints what it saw as one JSON line."""

import asyncio
import inspect
import json
import os
import sys
import urllib.request

import e2b


async def do(function, *arguments, **options):
    if sys.argv[1] == "sync":
        return await asyncio.to_thread(function, *arguments, **options)
    result = function(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


async def main() -> None:
    box = await do((e2b.Sandbox if sys.argv[1] == "sync" else e2b.AsyncSandbox).create, timeout=60)
    try:
        seen = {"host": box.get_host(8000), "id": box.sandbox_id}
        runs = [do(box.commands.run, f"sleep 0.2; echo {number}") for number in range(5)]
        seen["commands"] = [run.stdout.strip() for run in await asyncio.gather(*runs)]
        content = "ü" * 500_000
        await do(box.files.write, "big.txt", content)
        seen["file"] = (await do(box.files.read, "big.txt")) == content
        await do(box.files.write, "www/index.html", "from inside")
        server = await do(box.commands.run, "cd www && exec python3 -m http.server 8000", background=True)
        await do(box.commands.run, "for i in $(seq 100); do curl -so /dev/null localhost:8000 && exit; sleep 0.1; done; exit 1")
        with urllib.request.urlopen(f"https://{box.get_host(8000)}/", timeout=20) as answer:
            seen["port"] = answer.read().decode()
        # Signed links have the scheme and the host in them.
        link = box.download_url("www/index.html")
        with urllib.request.urlopen(link, timeout=20) as answer:
            seen["link"] = [link.split("?")[0], answer.read().decode()]
        seen["killed"] = await do(server.kill)
        seen["running"] = await do(box.is_running)
    finally:
        await do(box.kill)
    print(json.dumps(seen), flush=True)
    # pyqwest (0.12.0), beneath the newest SDKs, has threads of its own that abort the process now and then when the
    # interpreter is taken down around them: 3 of 120 runs, each with all of its work done.
    os._exit(0)


asyncio.run(main())
