"""What a sandbox may reach, by lists of ranges and names. The hosts are those of ../../internet.py."""

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
    # Not even a name gets out: whoever answers for it would hear it.
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


@proves("update_network", needs="update_network")
async def scenario_update(sdk):
    """Whole replacement, at once, for connections that live too."""
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
