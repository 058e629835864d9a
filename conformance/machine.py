"""A machine of one's own, for tests that make networks and mounts: an ordinary user is root there, and nowhere else.

    python3 conformance/machine.py COMMAND …

It is a namespace of users (with the user's subordinate ids), one of networks and one of mounts. Of the host's network nothing is in
it, its loopback is its own. A server that is started there is in all else an ordinary user's.
"""

import os
import pwd
import sys
from pathlib import Path

IDS = 65536
# Root's home is that of the host's root, and closed.
START = 'mount -t tmpfs none /root && ip link set lo up && exec "$@"'


class NoIds(Exception):
    """The user has no subordinate ids; the text says how to get some."""


def enter(command: list[str]) -> None:
    """Becomes the command, on such a machine."""
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
