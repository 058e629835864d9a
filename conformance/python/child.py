"""Runs the scenarios under the SDK of the interpreter that runs this file. Started by run.py, one process per column."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import harness  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavour", choices=["sync", "async", "http"], required=True)
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--filter", default="", help="only scenarios whose name contains this")
    parser.add_argument("--list", action="store_true", help="print names and rows, run nothing")
    arguments = parser.parse_args()

    if arguments.flavour == "http":
        from plain import Plain

        sdk, package = Plain(), "plain_scenarios"
    else:
        from adapter import Sdk

        sdk, package = Sdk(arguments.flavour), "scenarios"
    scenarios = harness.collect(package)
    scenarios = [s for s in scenarios if arguments.filter in s.name and (s.quick or not arguments.quick)]
    if arguments.list:
        for scenario in scenarios:
            absent = [feature for feature in scenario.needs if not sdk.has(feature)]
            print(scenario.name, *scenario.rows, f"(absent: {absent})" if absent else "")
        return
    harness.run_all(scenarios, sdk, arguments.concurrency)


main()
