"""A lease that changes hands while its old owner sleeps."""

import asyncio

from holdfast.base.errors import Conflict, Fenced
from holdfast.cli.acts.stage import Stage, prove
from holdfast.objects.lease import Grant, Held, Lease

KEY = "demo/lease"
TERM_MS = 1_000


async def old_owner_fenced(stage: Stage) -> str:
    async with stage.open() as store:
        alice = Lease(store, KEY, "alice", stage.ambient, ttl_ms=TERM_MS)
        bob = Lease(store, KEY, "bob", stage.ambient, ttl_ms=TERM_MS)
        first = await alice.acquire()
        alice.guard(first, margin_ms=0)
        stage.status = f"alice has the lease (epoch {first.epoch}); bob has to wait"
        answer = await bob.try_acquire()
        prove(isinstance(answer, Held) or _expired(stage, first), f"bob was given a lease that alice holds: {answer}")

        stage.status = "alice is paused and does not renew"
        await asyncio.sleep(TERM_MS / 1000)
        second = answer if isinstance(answer, Grant) else await bob.acquire()
        prove(second.epoch > first.epoch, f"the epoch went from {first.epoch} to {second.epoch}")

        stage.status = f"bob has the lease (epoch {second.epoch}); alice wakes up"
        prove(await _fenced(alice, first), "alice renewed a lease that bob holds")
        prove(_stopped(alice, first), "alice's guard let her work on")
    return f"epoch {first.epoch} to {second.epoch}; the old owner was fenced and its guard says no"


def _expired(stage: Stage, grant: Grant) -> bool:
    """On a machine that is this slow alice's term was over before bob asked."""
    return stage.ambient.clock.wall_ns() >= grant.expires_ns


async def _fenced(lease: Lease, grant: Grant) -> bool:
    try:
        await lease.renew(grant)
    except Fenced:
        return True
    return False


def _stopped(lease: Lease, grant: Grant) -> bool:
    try:
        lease.guard(grant)
    except Conflict:
        return True
    return False
