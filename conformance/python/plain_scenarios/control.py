"""The control plane without an SDK."""

import datetime

from harness import equal, proves, true, until


def life(detail: dict) -> float:
    start, end = (datetime.datetime.fromisoformat(detail[key]) for key in ("startedAt", "endAt"))
    return (end - start).total_seconds()


def is_error(answer, code: int, what: str):
    """An error body: the code as a number equal to the status, and a text."""
    equal(answer.status, code, f"status of {what}: {answer.text[:120]}")
    body = answer.json()
    equal(body.get("code"), code, f"code in the body of {what}")
    true(isinstance(body.get("message"), str) and body["message"], f"message in the body of {what}: {body}")


@proves("http.health", quick=True)
async def scenario_health(http):
    answer = await http.fetch("GET", http.url + "/health")
    true(answer.status in (200, 204), f"/health without a key answers {answer.status}")


@proves("http.auth", quick=True)
async def scenario_authentication(http):
    is_error(await http.fetch("GET", http.url + "/v2/sandboxes"), 401, "a request without a key")
    is_error(await http.fetch("GET", http.url + "/v2/sandboxes", {"X-API-Key": "e2b_00"}), 401, "a wrong key")
    equal((await http.fetch("GET", http.url + "/v2/sandboxes", {"x-api-key": http.key})).status, 200, "the key")


@proves("http.create.v1", "http.create.v2", quick=True)
async def scenario_both_generations(http):
    """The default timeout is 15 s for v1 and 300 s for v2; both are secured."""
    for path, seconds in (("/sandboxes", 15), ("/v2/sandboxes", 300)):
        box = await http.create(path)
        for field in ("templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken", "domain"):
            true(isinstance(box.made.get(field), str) and box.made[field], f"{field} in the answer of {path}")
        detail = (await http.api("GET", f"/sandboxes/{box.id}")).json()
        true(abs(life(detail) - seconds) < 2, f"default life on {path} is {life(detail)} s")
        for field in ("startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "clientID", "envdVersion"):
            true(field in detail, f"{field} in the detail")
        legacy = await http.api("GET", f"/sandboxes/{box.id}-{box.made['clientID']}")
        equal((legacy.status, legacy.json()["sandboxID"]), (200, box.id), "the legacy id with a client part")


@proves("http.create.refused")
async def scenario_refused_creates(http):
    for body, what in (
        ({}, "no template"),
        ({"templateID": "base", "timeout": 0}, "timeout 0"),
        ({"templateID": "base", "autoPauseMemory": False}, "autoPauseMemory without autoPause"),
        ({"templateID": "not a template!"}, "a bad template reference"),
    ):
        for path in ("/sandboxes", "/v2/sandboxes"):
            is_error(await http.api("POST", path, body), 400, f"{what} on {path}")
    is_error(await http.api("POST", "/v2/sandboxes", {"templateID": "no-such-template"}), 404, "an unknown template")
    answer = await http.fetch("POST", http.url + "/v2/sandboxes", {"X-API-Key": http.key}, b"{ not json")
    is_error(answer, 400, "a body that is no JSON")


@proves("http.connect.v1", "http.connect.v2")
async def scenario_connect(http):
    box = await http.create()
    is_error(await http.api("POST", f"/sandboxes/{box.id}/connect", {}), 400, "v1 connect without a timeout")
    equal((await http.api("POST", f"/sandboxes/{box.id}/connect", {"timeout": 60})).status, 200, "v1, running")
    equal((await http.api("POST", f"/v2/sandboxes/{box.id}/connect", {})).status, 200, "v2, running")
    for path in (f"/sandboxes/{box.id}/connect", f"/v2/sandboxes/{box.id}/connect"):
        equal((await http.api("POST", f"/sandboxes/{box.id}/pause")).status, 204, "pause without a body")
        answer = await http.api("POST", path, {"timeout": 100})
        equal((answer.status, answer.json()["sandboxID"]), (201, box.id), f"resumed by {path}")
        equal(answer.json()["envdAccessToken"], box.token, "token after a resume")
    is_error(await http.api("POST", "/v2/sandboxes/inosuchsandbox/connect", {}), 404, "connect to an unknown id")


@proves("http.resume")
async def scenario_resume(http):
    box = await http.create()
    is_error(await http.api("POST", f"/sandboxes/{box.id}/resume", {"timeout": 60}), 409, "resume of a running one")
    await http.api("POST", f"/sandboxes/{box.id}/pause", {"memory": True})
    is_error(await http.api("POST", f"/sandboxes/{box.id}/pause", {"memory": True}), 409, "second pause")
    detail = (await http.api("GET", f"/sandboxes/{box.id}")).json()
    equal(detail["state"], "paused", "state")
    equal((await http.api("POST", f"/sandboxes/{box.id}/resume", {"timeout": 60})).status, 201, "resume")
    equal((await http.api("GET", f"/sandboxes/{box.id}")).json()["state"], "running", "state after resume")


@proves("http.refreshes")
async def scenario_refreshes(http):
    box = await http.create(timeout=60)
    before = (await http.api("GET", f"/sandboxes/{box.id}")).json()["endAt"]
    equal((await http.api("POST", f"/sandboxes/{box.id}/refreshes", {"duration": 15})).status, 204, "a shorter refresh")
    equal((await http.api("GET", f"/sandboxes/{box.id}")).json()["endAt"], before, "endAt, the same text")
    equal((await http.api("POST", f"/sandboxes/{box.id}/refreshes", {"duration": 600})).status, 204, "a longer refresh")
    true(life((await http.api("GET", f"/sandboxes/{box.id}")).json()) > 500, "the life is longer")
    is_error(await http.api("POST", f"/sandboxes/{box.id}/refreshes", {"duration": 99999}), 400, "duration above 3600")


@proves("http.list.v1")
async def scenario_old_list(http):
    running, paused = await http.create(), await http.create()
    await http.api("POST", f"/sandboxes/{paused.id}/pause")
    answer = await http.api("GET", f"/sandboxes?metadata=mark%3D{http.mark}")
    equal([entry["sandboxID"] for entry in answer.json()], [running.id], "running ones only")


@proves("http.list.headers")
async def scenario_list_headers(http):
    for _ in range(2):
        await http.create()
    answer = await http.api("GET", f"/v2/sandboxes?metadata=mark%3D{http.mark}&limit=1")
    equal(answer.headers.get("x-total-running"), "2", "X-Total-Running")
    true(answer.headers.get("x-next-token"), "X-Next-Token when more rows exist")
    answer = await http.api("GET", f"/v2/sandboxes?metadata=mark%3D{http.mark}&limit=5")
    true(not answer.headers.get("x-next-token"), "no X-Next-Token on the last page")
    is_error(await http.api("GET", "/v2/sandboxes?nextToken=!!"), 400, "a bad token")
    is_error(await http.api("GET", "/v2/sandboxes?limit=0"), 400, "limit 0")


@proves("http.metrics", deadline=60)
async def scenario_metrics_of_many(http):
    box = await http.create()

    async def point():
        answer = await http.api("GET", f"/sandboxes/metrics?sandbox_ids={box.id},inosuchsandbox")
        equal(answer.status, 200, f"status: {answer.text[:200]}")
        return answer.json()["sandboxes"].get(box.id)

    found = await until(point, 30, "a point within 30 s", pause=1)
    needed = "timestamp timestampUnix cpuCount cpuUsedPct memUsed memTotal memCache diskUsed diskTotal".split()
    equal([field for field in needed if field not in found], [], "missing fields")


@proves("http.logs.v1", "http.logs.v2")
async def scenario_logs(http):
    """What the command line tool reads."""
    box = await http.create()
    await box.run("echo noise")
    answer = await http.api("GET", f"/sandboxes/{box.id}/logs?limit=10")
    equal(answer.status, 200, f"v1 logs: {answer.text[:200]}")
    body = answer.json()
    true(isinstance(body["logs"], list) and isinstance(body["logEntries"], list), f"lists in {body}")
    for entry in body["logs"]:
        true({"timestamp", "line"} <= set(entry), f"a v1 line: {entry}")
    answer = await http.api("GET", f"/v2/sandboxes/{box.id}/logs?limit=10&direction=forward")
    equal(answer.status, 200, f"v2 logs: {answer.text[:200]}")
    for entry in answer.json()["logs"] + body["logEntries"]:
        true({"timestamp", "message", "level", "fields"} <= set(entry), f"an entry: {entry}")
        true(entry["level"] in ("debug", "info", "warn", "error"), f"a level: {entry}")
    is_error(await http.api("GET", "/sandboxes/inosuchsandbox/logs"), 404, "logs of an unknown sandbox")


@proves("http.idempotency")
async def scenario_idempotency(http):
    key = {"Idempotency-Key": http.mark.replace("_", "-").replace(".", "-").lower()}
    first = await http.create(headers=key)
    second = await http.create(headers=key)
    equal(second.made, first.made, "the same key and body give the first answer again")
    other = await http.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 77}, key)
    is_error(other, 422, "the same key with another body")


@proves("http.not_served", quick=True)
async def scenario_not_served(http):
    """An unimplemented call says why, and that a retry is useless."""
    answer = await http.api("GET", "/api-keys")
    is_error(answer, 501, "GET /api-keys")
    equal(answer.headers.get("should-retry"), "false", "Should-Retry")


@proves("http.resources")
async def scenario_resources(http):
    """Our addition: resources on create, listed under /sandbar/capabilities. They are enforced, or the sandbox's log says that they are not."""
    answer = await http.api("GET", "/sandbar/capabilities")
    equal(answer.status, 200, "capabilities")
    box = await http.create(cpuCount=1, memoryMB=256, diskSizeMB=128)
    detail = (await http.api("GET", f"/sandboxes/{box.id}")).json()
    given = (detail["cpuCount"], detail["memoryMB"], detail["diskSizeMB"])
    equal(given, (1, 256, 128), "resources in the detail")
    block = bytes(200 * 1024 * 1024)
    octets = {"Content-Type": "application/octet-stream"}
    answer = await box.envd("POST", "/files?path=big", octets, block, timeout=30)
    log = (await http.api("GET", f"/sandboxes/{box.id}/logs")).json()
    if not any("what a sandbox writes is not limited" in entry["line"] for entry in log["logs"]):
        is_error(answer, 507, "an upload beyond the disk limit")
    equal((await box.run("rm -f ~/big; echo small > ~/ok && cat ~/ok"))[0], b"small\n", "usable after a full disk")
