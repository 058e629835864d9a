"""Resource use over time."""

import datetime

from harness import equal, proves, true, until


@proves("get_metrics", deadline=60)
async def scenario_metrics(sdk):
    box = await sdk.create()
    await sdk.do(box.commands.run, "python3 -c 'x = bytearray(30_000_000)'")

    async def points():
        return await sdk.do(box.get_metrics)

    found = await until(points, 30, "a point within 30 s", pause=1)
    point = found[-1]
    true(point.cpu_count >= 1 and 0 <= point.cpu_used_pct <= 100 * point.cpu_count, f"processor: {point}")
    true(0 < point.mem_used <= point.mem_total, f"memory: {point}")
    true(0 <= point.disk_used <= point.disk_total and point.disk_total > 0, f"disk: {point}")
    true(point.timestamp.tzinfo is not None, "time with a zone")
    info = await sdk.do(box.get_info)
    equal(point.mem_total // (1024 * 1024), info.memory_mb, "memory total is the sandbox's own limit")

    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
    end = begin + datetime.timedelta(hours=1)
    equal(await sdk.do(box.get_metrics, begin, end), [], "a range before creation")
    true(len(await sdk.do(sdk.Sandbox.get_metrics, box.sandbox_id)) >= 1, "class-level get_metrics")
