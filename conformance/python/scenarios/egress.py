"""What a sandbox may reach, by lists of ranges and names. The hosts are those of ../../internet.py."""

import json
import os

import e2b
from harness import equal, proves, true

PUBLIC, OTHER = os.environ.get("SANDBAR_CONFORMANCE_INTERNET", "203.0.113.130 203.0.113.131").split()
EVERYTHING = "0.0.0.0/0"


async def _reaches(sdk, box, url: str, options: str = "") -> bool:
    try:
        await sdk.do(box.commands.run, f"curl -sSk -m 10 -o /dev/null {options} {url}", timeout=20)
    except e2b.CommandExitException:
        return False
    return True


@proves("create.network_rules", quick=True)
async def scenario_ranges(sdk):
    """Allowed wins over denied; what neither list names is open."""
    box = await sdk.create(network={"deny_out": [PUBLIC]})
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), False, "a denied address")
    equal(await _reaches(sdk, box, f"http://{OTHER}/"), True, "another address")
    box = await sdk.create(network={"allow_out": [PUBLIC], "deny_out": [EVERYTHING]})
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), True, "an allowed address")
    equal(await _reaches(sdk, box, f"http://{OTHER}/"), False, "everything else")
    # DNS queries are refused, too: they would leak data to the name server.
    await sdk.raises(e2b.CommandExitException, box.commands.run, "timeout 10 getent hosts other.test", timeout=20)


@proves("create.network_names")
async def scenario_names(sdk):
    """A name allows what it leads to, and a connection for another name at the same address is refused."""
    box = await sdk.create(network={"allow_out": ["allowed.test", "*.allowed.test"], "deny_out": [EVERYTHING]})
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), False, "the address before its name was asked for")
    for scheme in ("http", "https"):
        for name in ("allowed.test", "sub.allowed.test"):
            equal(await _reaches(sdk, box, f"{scheme}://{name}/"), True, f"{scheme} to {name}")
        for name in ("denied.test", "other.test"):
            equal(await _reaches(sdk, box, f"{scheme}://{name}/"), False, f"{scheme} to {name}")
            port = 443 if scheme == "https" else 80
            pinned = f"--resolve {name}:{port}:{PUBLIC}"
            equal(await _reaches(sdk, box, f"{scheme}://{name}/", pinned), False, f"{scheme} to {name} at an allowed address")
    forged = "-H 'Host: denied.test'"
    equal(await _reaches(sdk, box, "http://allowed.test/", forged), False, "a forged Host")


async def _shown(sdk, box, url: str) -> dict:
    """What the server received; the sandbox trusts our authority without configuration."""
    done = await sdk.do(box.commands.run, f"curl -sS -m 10 {url}", timeout=20)
    return json.loads(done.stdout)


@proves("create.network_headers", needs=("secret", "update_network"))
async def scenario_headers(sdk):
    secret, name = e2b.AsyncSecret if sdk.is_async else e2b.Secret, f"{sdk.mark}".replace(".", "-")
    made = await sdk.do(secret.create, name, "value-1")
    try:
        headers = {"Authorization": f"Bearer {secret.fill(name)}", "X-Rule": "yes"}
        rules = {"allowed.test": [{"transform": {"headers": headers}}]}
        box = await sdk.create(network={"rules": rules})
        seen = (await _shown(sdk, box, "https://allowed.test/"))["headers"]
        equal((seen.get("authorization"), seen.get("x-rule")), ("Bearer value-1", "yes"), "with a rule")
        # Plain HTTP would send the secret in the clear.
        done = await sdk.do(box.commands.run, "curl -sS -m 10 -w '%{http_code}' http://allowed.test/", timeout=20)
        true(done.stdout.endswith("403") and "https://" in done.stdout, f"a secret in plain HTTP: {done.stdout}")
        equal("x-rule" in (await _shown(sdk, box, "http://denied.test/"))["headers"], False, "a name without a rule")
        # Without a rule the client sees the server's own certificate, which the sandbox does not trust.
        await sdk.raises(e2b.CommandExitException, box.commands.run, "curl -sS -m 10 https://denied.test/", timeout=20)
        info = (await sdk.http("GET", f"/sandboxes/{box.sandbox_id}")).json()
        equal(info["network"]["rules"], rules, "the rules as they came")
        await sdk.do(secret.update, name, "value-2")
        seen = (await _shown(sdk, box, "https://allowed.test/"))["headers"]
        equal(seen.get("authorization"), "Bearer value-2", "the newest value")
        await sdk.do(box.update_network, {})
        equal("x-rule" in (await _shown(sdk, box, "http://allowed.test/"))["headers"], False, "after all was cleared")
        await sdk.do(box.update_network, {"rules": rules})
        equal((await _shown(sdk, box, "https://allowed.test/"))["headers"].get("x-rule"), "yes", "rules that came later")
        await sdk.do(box.update_network, {"rules": {"allowed.test": [{"transform": {"headers": {"X-Rule": "yes"}}}]}})
        seen = (await _shown(sdk, box, "http://allowed.test/"))["headers"]
        equal(seen.get("x-rule"), "yes", "plain HTTP, by a rule without secrets")
    finally:
        await sdk.do(secret.destroy, made.secret_id)


@proves("create.egress_proxy", needs="update_network")
async def scenario_proxy(sdk):
    proxy = {"address": f"{PUBLIC}:1080", "username": "me", "password": "hunter2"}
    box = await sdk.create(network={"egress_proxy": proxy, "deny_out": [OTHER]})
    # The proxy's connections come from its own address, and it resolves names by itself: to 127.0.0.1.
    equal((await _shown(sdk, box, "http://allowed.test/"))["client"], "127.0.0.1", "through the proxy")
    equal(await _reaches(sdk, box, "http://other.test/"), False, "what is denied does not get to it")
    info = await sdk.http("GET", f"/sandboxes/{box.sandbox_id}")
    equal(info.json()["network"]["egressProxy"], {"address": proxy["address"], "username": "me"}, "what is shown of it")
    await sdk.do(box.update_network, {"egress_proxy": {**proxy, "password": "wrong"}})
    equal(await _reaches(sdk, box, "http://allowed.test/"), False, "with a wrong password nothing goes out")
    log = await sdk.http("GET", f"/v2/sandboxes/{box.sandbox_id}/logs")
    true("does not take the credentials" in log.text, f"the log says why: {log.text}")
    true("hunter2" not in info.text + log.text and "wrong" not in log.text, "credentials are in no response and no log")
    await sdk.do(box.update_network, {})
    equal((await _shown(sdk, box, "http://allowed.test/"))["client"] != "127.0.0.1", True, "directly again")


@proves("update_network", needs="update_network")
async def scenario_update(sdk):
    """An update replaces all rules at once, also for open connections."""
    box = await sdk.create()
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), True, "before any rule")
    live = "exec 3<>/dev/tcp/%s/80; echo open; cat <&3; echo closed" % PUBLIC
    command = await sdk.start(box, f"bash -c '{live}'", timeout=60)
    command.follow()
    await command.expect("open")
    await sdk.do(box.update_network, {"deny_out": [PUBLIC]})
    await command.expect("closed")
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), False, "after it was denied")
    equal(await _reaches(sdk, box, f"http://{OTHER}/"), True, "what is not denied")
    await sdk.do(box.update_network, {"allow_out": [PUBLIC], "deny_out": [EVERYTHING]})
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), True, "after it was allowed")
    equal(await _reaches(sdk, box, f"http://{OTHER}/"), False, "all else")
    await sdk.do(box.update_network, {})
    equal(await _reaches(sdk, box, f"http://{OTHER}/"), True, "after all was cleared")
    await sdk.do(box.update_network, {"allow_internet_access": False})
    equal(await _reaches(sdk, box, f"http://{PUBLIC}/"), False, "after internet was turned off")


@proves("network.kept", needs=("fork", "pause"))
async def scenario_rules_stay(sdk):
    box = await sdk.create(network={"allow_out": [OTHER], "deny_out": [EVERYTHING]})
    children = await sdk.do(box.fork)
    child = children[0] if isinstance(children, list) else children
    sdk.adopt(child)
    await sdk.pause(box)
    await sdk.do(box.connect)
    for one in (box, child):
        equal(await _reaches(sdk, one, f"http://{PUBLIC}/"), False, "what was denied")
        equal(await _reaches(sdk, one, f"http://{OTHER}/"), True, "what was allowed")
    info = await sdk.http("GET", f"/sandboxes/{box.sandbox_id}")
    network = info.json()["network"]
    true(network["allowOut"] == [OTHER] and network["denyOut"] == [EVERYTHING], f"the lists as they came: {network}")
