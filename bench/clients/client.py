"""The official Python SDK at the same work as the other clients: `client.py TASK COUNT [FILE]`, one JSON line as answer."""

import asyncio
import json
import os
import sys
import time

from e2b import AsyncSandbox

# Limit of concurrent small files.
WINDOW = 16
SMALL = "x" * 1024
# One sandbox cannot run five hundred shells at once.
SANDBOXES = 5


class Measure:
    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


async def run(box):
    result = await box.commands.run("echo hi")
    assert result.stdout == "hi\n", result


async def commands(count, _):
    box = await AsyncSandbox.create(timeout=600)
    for _ in range(5):
        await run(box)
    samples = []
    with Measure() as measure:
        for _ in range(count):
            started = time.perf_counter()
            await run(box)
            samples.append(time.perf_counter() - started)
    await box.kill()
    return measure, samples


async def concurrent(count, _):
    boxes = [await AsyncSandbox.create(timeout=600) for _ in range(SANDBOXES)]
    for box in boxes:
        await run(box)
    with Measure() as measure:
        await asyncio.gather(*(run(boxes[number % SANDBOXES]) for number in range(count)))
    for box in boxes:
        await box.kill()
    return measure, []


async def upload(_, file):
    box = await AsyncSandbox.create(timeout=600)
    await run(box)
    with Measure() as measure, open(file, "rb") as content:
        await box.files.write("big", content, request_timeout=300, use_octet_stream=True)
    await box.kill()
    return measure, []


async def download(size, file):
    box = await AsyncSandbox.create(timeout=600)
    with open(file, "rb") as content:
        await box.files.write("big", content, request_timeout=300, use_octet_stream=True)
    got = 0
    with Measure() as measure:
        async for chunk in await box.files.read("big", format="stream", request_timeout=300):
            got += len(chunk)
    assert got == size, got
    await box.kill()
    return measure, []


async def files(count, _):
    box = await AsyncSandbox.create(timeout=600)
    await run(box)
    gate = asyncio.Semaphore(WINDOW)

    async def one(number):
        async with gate:
            await box.files.write(f"small/{number}", SMALL)
            assert await box.files.read(f"small/{number}") == SMALL

    with Measure() as measure:
        await asyncio.gather(*(one(number) for number in range(count)))
    await box.kill()
    return measure, []


TASKS = {"commands": commands, "concurrent": concurrent, "upload": upload, "download": download, "files": files}
task, count, *rest = sys.argv[1:]
measure, samples = asyncio.run(TASKS[task](int(count), rest[0] if rest else None))
print(json.dumps({"wall": measure.wall, "cpu": measure.cpu, "samples": samples}), flush=True)
# The client's native threads may abort the interpreter during its shutdown, after the work is done.
os._exit(0)
