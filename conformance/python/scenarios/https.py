"""Without any URL: a key, a domain, and TLS, as with E2B's cloud."""

import asyncio
import json
import os
import sys
import urllib.parse
from pathlib import Path

from harness import equal, proves

PROGRAM = Path(__file__).parent.parent / "programs" / "over_https.py"


@proves("https.domain", needs="https", quick=True, deadline=90)
async def scenario_domain(sdk):
    domain = f"localhost:{urllib.parse.urlsplit(sdk.url).port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    environment |= {"E2B_API_KEY": sdk.key, "E2B_DOMAIN": domain}
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), sdk.flavour, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
    equal(program.returncode, 0, f"the program ended with {errors.decode()[-1500:]}")
    seen = json.loads(out)
    equal(seen["host"], f"8000-{seen['id']}.{domain}", "get_host")
    equal((seen["commands"], seen["file"]), (["0", "1", "2", "3", "4"], True), "commands and files")
    equal(seen["port"], "from inside", "a service by its host")
    equal(seen["link"], [f"https://49983-{seen['id']}.{domain}/files", "from inside"], "a signed link")
    equal((seen["killed"], seen["running"]), (True, True), "the command is gone, the sandbox is not")
