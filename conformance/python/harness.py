"""Scenarios, and the loop that runs them in one child process.

A scenario is an `async def scenario_…(sdk)` marked with `@proves(…)`: the rows of the compatibility table (calls.json)
that hold when it passes. It runs once per SDK version and flavour. Reports go to the runner as JSON lines.
Invariants: every scenario has a deadline; the sandboxes it started are killed when it ends, passed or not.
"""

import asyncio
import concurrent.futures
import gc
import importlib
import json
import os
import pkgutil
import time
import traceback
from dataclasses import dataclass
from typing import Awaitable, Callable

DEFAULT_DEADLINE = 40.0


class Absent(Exception):
    """The SDK under test has no such call."""


@dataclass(frozen=True)
class Scenario:
    run: Callable[..., Awaitable[None]]
    rows: tuple[str, ...]
    needs: tuple[str, ...]
    deadline: float
    quick: bool

    @property
    def name(self) -> str:
        module = self.run.__module__.rsplit(".", 1)[-1]
        return f"{module}.{self.run.__name__.removeprefix('scenario_')}"


def proves(*rows: str, needs: tuple[str, ...] | str = (), deadline: float = DEFAULT_DEADLINE, quick: bool = False):
    """Marks a scenario. `needs` names the SDK features without which the rows do not exist for that SDK."""
    needs = (needs,) if isinstance(needs, str) else tuple(needs)

    def mark(function):
        function.scenario = Scenario(function, tuple(rows), needs, deadline, quick)
        return function

    return mark


def collect(package: str) -> list[Scenario]:
    """Every scenario of a package, in file and line order."""
    found = []
    root = importlib.import_module(package)
    for module_info in sorted(pkgutil.iter_modules(root.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{module_info.name}")
        members = [value for key, value in vars(module).items() if key.startswith("scenario_")]
        members.sort(key=lambda function: function.__code__.co_firstlineno)
        found += [member.scenario for member in members]
    # Long scenarios first, so that they overlap with the many short ones.
    return sorted(found, key=lambda scenario: -scenario.deadline)


async def until(check: Callable[[], Awaitable], deadline: float, what: str, pause: float = 0.1):
    """Repeats `check` until it gives something true; fails with `what` after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = await check()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"after {deadline:g} s still not: {what}")
        await asyncio.sleep(pause)


def equal(got, expected, what: str):
    if got != expected:
        raise AssertionError(f"{what}: expected {_short(expected)}, got {_short(got)}")


def true(condition, what: str):
    if not condition:
        raise AssertionError(what)


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "…"


def run_all(scenarios: list[Scenario], sdk, concurrency: int) -> None:
    """Runs the scenarios and writes one JSON line each to the real standard output."""
    # The SDKs may print; only our lines may reach the runner's pipe.
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def write(**fields):
        report.write(json.dumps(fields) + "\n")
        report.flush()

    # httpcore guards its pool by a lock that is not reentrant, and closes a stream under it. A collection that starts
    # while a thread holds the lock and finds a dropped stream closes it there: that thread deadlocks on its own lock,
    # and every other one for it. So the cycles are collected between scenarios, where no lock is held.
    gc.disable()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(max_workers=64))
        loop.set_exception_handler(lambda *_: None)  # Streams of killed sandboxes fail without an awaiting task.
        gate = asyncio.Semaphore(concurrency)

        async def one(scenario: Scenario):
            async with gate:
                write(**await _outcome(scenario, sdk))
                gc.collect()

        write(total=len(scenarios))
        await asyncio.gather(*(one(scenario) for scenario in scenarios))
        write(finished=True)
        # `asyncio.run` would join threads that a timed-out scenario left blocked on a socket.
        os._exit(0)

    asyncio.run(main())


async def _outcome(scenario: Scenario, sdk) -> dict:
    fields = {"scenario": scenario.name, "rows": scenario.rows, "reason": ""}
    missing = [feature for feature in scenario.needs if not sdk.has(feature)]
    if missing:
        return {**fields, "outcome": "absent", "seconds": 0.0}
    started = time.monotonic()
    scope = sdk.scope(scenario.name)
    try:
        async with asyncio.timeout(scenario.deadline):
            await scenario.run(scope)
        outcome = "passed"
    except Absent:
        outcome = "absent"
    except TimeoutError:
        outcome, fields["reason"] = "failed", f"no end within {scenario.deadline:g} s"
    except Exception as error:
        outcome = "failed"
        fields["reason"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        fields["trace"] = traceback.format_exc()[-6000:]
    seconds = round(time.monotonic() - started, 2)
    await scope.close()
    return {**fields, "outcome": outcome, "seconds": seconds}
