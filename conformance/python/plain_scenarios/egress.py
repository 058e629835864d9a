"""What a sandbox may reach: the older form, name servers, and the log of decisions."""

import os

from harness import equal, proves, true, until

from .control import is_error

PUBLIC, OTHER = os.environ.get("SANDBAR_CONFORMANCE_INTERNET", "203.0.113.130 203.0.113.131").split()


async def _curl(box, url: str) -> int:
    return (await box.run(f"curl -sS -m 10 -o /dev/null {url}"))[1].get("exitCode", 0)


@proves("http.network")
async def scenario_network(http):
    box = await http.create(network={"egressCIDRs": [f"{PUBLIC}/32"]})
    equal(await _curl(box, f"http://{PUBLIC}/"), 0, "egressCIDRs: what is in the list")
    true(await _curl(box, f"http://{OTHER}/") != 0, "egressCIDRs: what is not")

    async def logged():
        answer = await http.api("GET", f"/v2/sandboxes/{box.id}/logs?direction=forward&search=egress")
        fields = [entry["fields"] for entry in answer.json()["logs"] if "egress" in entry["fields"]]
        return {(f["egress"], f["address"]) for f in fields} >= {("allowed", PUBLIC), ("denied", OTHER)}

    await until(logged, 10, "both decisions are in the log")

    answer = await http.api("PUT", f"/sandboxes/{box.id}/network", {"dnsServers": [OTHER]})
    equal(answer.status, 204, "an update")
    network = (await http.api("GET", f"/sandboxes/{box.id}")).json()["network"]
    equal((network.get("dnsServers"), network.get("allowOut")), ([OTHER], None), "the network after the update")
    equal(await _curl(box, f"http://{OTHER}/"), 0, "what was closed is open")
    # There is no name server, so names no longer resolve.
    true(await _curl(box, "http://allowed.test/") != 0, "a name server that is none")
    answer = await http.api("PUT", f"/sandboxes/{box.id}/network", {"denyOut": ["allowed.test"]})
    is_error(answer, 400, "a name that is denied")
    is_error(await http.api("PUT", "/sandboxes/inone/network", {}), 404, "an unknown sandbox")
