"""Reaching services inside a sandbox, and what a sandbox may reach."""

import e2b
import wire
from harness import equal, proves, true, until

SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{self.path} host={self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


async def _serve(sdk, box, headers=None, program=SERVER):
    await sdk.do(box.files.write, "server.py", program)
    await (await sdk.start(box, "exec python3 server.py", timeout=0)).disconnect()

    async def answers():
        return (await sdk.port(box, 8000, headers=headers)).status == 200

    await until(answers, 15, "the server in the sandbox answers")


@proves("ports", "get_host", quick=True)
async def scenario_web_server(sdk):
    box = await sdk.create()
    answer = await sdk.port(box, 8000)
    equal(answer.status, 502, "status while nothing listens")
    expected = {
        "sandboxId": box.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 8000,
        "code": 502,
    }
    equal(answer.json(), expected, "body while nothing listens")
    await _serve(sdk, box)
    answer = await sdk.port(box, 8000, "/some/path?x=1&y=%20")
    true(answer.text.startswith("/some/path?x=1&y=%20 "), f"path and query arrive unchanged: {answer.text}")

    host = box.get_host(8000)
    true(host.startswith(f"8000-{box.sandbox_id}."), f"get_host gives {host}")
    answer = await sdk.fetch("GET", f"{sdk.sandbox_url}/by-host", {"Host": host})
    equal(answer.status, 200, "routed by host name")

    await sdk.do(box.kill)
    answer = await sdk.port(box, 8000)
    expected = {"sandboxId": box.sandbox_id, "message": "The sandbox was not found", "code": 502}
    equal((answer.status, answer.json()), (502, expected), "a killed sandbox")


@proves("ports.private")
async def scenario_private_traffic(sdk):
    box = await sdk.create(network={"allow_public_traffic": False})
    token = box.traffic_access_token
    true(token, "a sandbox with private traffic has a traffic token")
    key = {"e2b-traffic-access-token": token}
    await _serve(sdk, box, headers=key)
    equal((await sdk.port(box, 8000)).status, 403, "without the token")
    equal((await sdk.port(box, 8000, headers={"e2b-traffic-access-token": "wrong"})).status, 403, "with a wrong token")
    equal((await sdk.port(box, 8000, headers=key)).status, 200, "with the token")
    equal((await sdk.do(box.commands.run, "echo sdk")).stdout, "sdk\n", "the SDK needs no traffic token")
    public = await sdk.create()
    equal(public.traffic_access_token, None, "token of a public sandbox")


@proves("ports.masked", needs="network.mask")
async def scenario_masked_host(sdk):
    box = await sdk.create(network={"mask_request_host": "${PORT}-app.test"})
    await _serve(sdk, box)
    equal((await sdk.port(box, 8000)).text, "/ host=8000-app.test", "what the service sees")


@proves("ports.https", needs="network.https_ports")
async def scenario_https_ports(sdk):
    """The service has a self-signed certificate."""
    box = await sdk.create(network={"https_ports": [8000]})
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout key.pem -out cert.pem"
    await sdk.do(box.commands.run, make)
    secured = SERVER.replace("http.server.Threading", "server = http.server.Threading").replace(".serve_forever()", "")
    secured += (
        "import ssl\ncontext = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\ncontext.load_cert_chain('cert.pem', 'key.pem')\n"
        "server.socket = context.wrap_socket(server.socket, server_side=True)\nserver.serve_forever()\n"
    )
    await _serve(sdk, box, program=secured)
    true((await sdk.port(box, 8000, "/secured")).text.startswith("/secured "), "it answers through the edge")
    info = await sdk.do(sdk.Sandbox.get_info, box.sandbox_id)
    equal(info.network["https_ports"], [8000], "the configured ports are reported")


@proves("allow_internet_access")
async def scenario_no_internet(sdk):
    """Off: no route, not even for root. On: there is a default route. Nothing is sent in either case."""
    off = await sdk.create(allow_internet_access=False)
    dial = "timeout 5 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>/dev/null"
    await sdk.raises(e2b.CommandExitException, off.commands.run, dial, timeout=20)
    await sdk.raises(e2b.CommandExitException, off.commands.run, dial, user="root", timeout=20)
    await sdk.raises(e2b.CommandExitException, off.commands.run, "timeout 5 getent hosts example.com", timeout=20)
    loopback = "python3 -c 'import socket as s; l = s.create_server((\"127.0.0.1\", 0)); s.create_connection(l.getsockname())'"
    await sdk.do(off.commands.run, loopback)

    on = await sdk.create()
    routes = (await sdk.do(on.commands.run, "cat /proc/net/route")).stdout.splitlines()[1:]
    true(any(line.split()[1] == "00000000" for line in routes), f"a default route when internet is on: {routes}")


@proves("isolation.sandboxes")
async def scenario_sandboxes_do_not_meet(sdk):
    """A service of one sandbox is not reachable from another, nor is the server itself."""
    one, two = await sdk.create(), await sdk.create()
    await _serve(sdk, one)
    probe = "timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000' 2>/dev/null"
    await sdk.do(one.commands.run, probe)
    await sdk.raises(e2b.CommandExitException, two.commands.run, probe)
    port = wire.urllib.parse.urlsplit(sdk.url).port
    if port:
        await sdk.raises(
            e2b.CommandExitException,
            two.commands.run,
            f"timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null",
        )
