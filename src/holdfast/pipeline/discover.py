"""Manifests and conflicts in the store's order of keys, and references of a range of time: what the reconciler looks at
when a run does not simply continue from its position (``telemetry.discover``). Reads alone.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.reconcile import Finding, Problem

MOST_FOREIGN = 100
"""Foreign objects that one run reports."""
_LAST = "\U0010ffff"


@dataclass(slots=True)
class Discovered:
    keys: list[str] = field(default_factory=list)
    """References, manifests and conflicts to look at."""
    foreign: list[Problem] = field(default_factory=list)
    listed: int = 0
    next: str | None = None
    """Where the next run continues; None if this is all."""

    def report(self, key: str) -> None:
        if len(self.foreign) < MOST_FOREIGN:
            told = "its name is not that of anything that belongs here"
            self.foreign.append(Problem(Finding.FOREIGN_OBJECT, key, told))


async def scan(store: Store, after: str | None, agents: Sequence[str], limit: int) -> Discovered:
    """Manifests and conflicts after this key; of these agents, if any are given."""
    found = Discovered()
    for prefix in (layout.ACCEPTED, layout.CONFLICTS):
        folders = [f"{prefix}agent={agent.encode().hex()}/" for agent in sorted(set(agents))] or [prefix]
        for folder in sorted(folders):
            if after is not None and after >= f"{folder}{_LAST}":
                continue
            start = after if after is not None and after > folder else None
            async for key in store.keys(folder, after=start):
                found.listed += 1
                if not _is_ours(prefix, key):
                    found.report(key)
                    continue
                if len(found.keys) >= limit:
                    found.next = found.keys[-1]
                    return found
                found.keys.append(key)
    return found


async def between(
    store: Store, since_ns: int, until_ns: int, after: str | None = None, limit: int = sys.maxsize
) -> Discovered:
    """References of the hours from ``since_ns`` to ``until_ns``, after this key, so many."""
    found = Discovered()
    begin = f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(since_ns)}".rstrip("/")
    end = f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(max(since_ns, until_ns - 1))}{_LAST}"
    async for key in store.keys(layout.ACCEPTED_BY_TIME, after=begin if after is None else after):
        if key > end:
            break
        if not layout.is_by_time(key):
            continue
        if len(found.keys) >= limit:
            found.next = found.keys[-1]
            break
        found.keys.append(key)
    return found


def _is_ours(prefix: str, key: str) -> bool:
    identity = layout.identity_in(key)
    if identity is None:
        return False
    if prefix == layout.ACCEPTED:
        return key == layout.accepted_key(identity)
    name = key.rpartition("/")[2].removesuffix(".json")
    return len(name) == 64 and key == f"{layout.conflict_folder(identity)}{name}.json"
