"""``python -m holdfast.sim.proxy --upstream http://127.0.0.1:9000 --plan lossy --seed 7``

Runs until it is interrupted. ``--plan`` is a preset, a file of JSON, or the JSON itself. Prints where it listens on
the first line; with ``--trace`` one line per request; at the end the counts, as JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.sim.proxy.log import Record
from holdfast.sim.proxy.plan import PRESETS, Plan
from holdfast.sim.proxy.proxy import FaultProxy


def read_plan(text: str | None, seed: int | None) -> Plan:
    """The plan that ``--plan`` and ``--seed`` describe; a seed on the command line wins over the plan's own."""
    if text is None:
        return Plan(seed=seed or 0)
    if text in PRESETS:
        return PRESETS[text](seed or 0)
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            presets = ", ".join(PRESETS)
            raise Invalid(
                f"fault plan {text!r} is no preset, and no file that can be read ({error.strerror})",
                remedy=f"presets: {presets}",
            ) from error
    plan = Plan.parse(text)
    return plan if seed is None else replace(plan, seed=seed)


def read_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise Invalid(f"--listen {text!r} is no host:port", remedy="write 127.0.0.1:9001, or port 0 for a free one")
    return host, int(port)


async def run(proxy: FaultProxy) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with proxy:
        plan = proxy.plan
        _say(f"{proxy.endpoint} -> {proxy.upstream}, {len(plan.rules)} rules, seed {plan.seed}")
        await ended.wait()
    _say(json.dumps(proxy.counts.as_dict()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim.proxy", description="A fault proxy for S3.")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port; port 0 picks a free one (default)")
    parser.add_argument("--upstream", required=True, help="the real server, as http://host:port")
    parser.add_argument("--plan", help=f"{', '.join(PRESETS)}, a file of JSON, or JSON; none forwards everything")
    parser.add_argument("--seed", type=int, help="for everything that is left to chance")
    parser.add_argument("--trace", action="store_true", help="print every request")
    given = parser.parse_args(arguments)
    try:
        host, port = read_address(given.listen)
        plan = read_plan(given.plan, given.seed)
        watch = _trace if given.trace else None
        asyncio.run(run(FaultProxy(given.upstream, plan, host=host, port=port, watch=watch)))
    except HoldfastError as error:
        sys.stderr.write(f"error: {error}" + (f"; {error.remedy}" if error.remedy else "") + "\n")
        return error.exit_code
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.stderr.write(f"error: cannot listen on {given.listen}: {reason}; choose another port\n")
        return 1
    return 0


def _trace(record: Record) -> None:
    _say(record.line)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
