"""Namespaces for tests that create networks and mounts: an ordinary user is root there, and nowhere else.

    python3 conformance/machine.py COMMAND …

They are a user namespace (with the user's subordinate ids), a network namespace and a mount namespace. The network namespace has
nothing of the host's network and a loopback of its own. A server that is started there is otherwise an ordinary user's.
"""

import os
import pwd
import sys
from pathlib import Path

IDS = 65536
# `/root` belongs to the host's root and cannot be read.
START = 'mount -t tmpfs none /root && ip link set lo up && exec "$@"'


class NoIds(Exception):
    """The user has no subordinate ids; the text says how to get some."""


def enter(command: list[str]) -> None:
    """Executes the command in the namespaces."""
    users, groups = (f"{_first(Path(file))},1,{IDS}" for file in ("/etc/subuid", "/etc/subgid"))
    unshare = ["unshare", "--user", "--map-root-user", f"--map-users={users}", f"--map-groups={groups}", "--net", "--mount"]
    os.execvp("unshare", [*unshare, "sh", "-c", START, "sh", *command])


def _first(file: Path) -> int:
    """The first of enough ids in a row."""
    name = pwd.getpwuid(os.getuid()).pw_name
    for line in file.read_text().splitlines() if file.exists() else []:
        owner, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        if owner in (name, str(os.getuid())) and count.isdigit() and int(count) >= IDS:
            return int(first)
    raise NoIds(f"{file} gives {name} no {IDS} ids in a row, which these tests need; `sandbar doctor` names the command that does")


if __name__ == "__main__":
    try:
        enter(sys.argv[1:])
    except NoIds as error:
        sys.exit(f"machine: {error}")
