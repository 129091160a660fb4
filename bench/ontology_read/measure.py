"""One size on one store: everybody built, asked in turns, warm and cold, before and after compaction."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import Any

from bench.ontology_read import delta, iceberg
from bench.ontology_read.build import PEERS, stopped
from bench.ontology_read.data import History, Size
from bench.ontology_read.floor import Floor
from bench.ontology_read.ours import Ours
from bench.ontology_read.places import Place
from bench.ontology_read.questions import QUESTIONS, Question, digest
from bench.ontology_read.sides import Session, Side
from tests.fakes.fault_proxy import FaultProxy

PEER_SECONDS = 25.0
"""Within which the peers, side by side, take the whole history in, or are stopped."""
TURNS_SECONDS = 1.2
"""After which no other round of a question begins: large sizes have fewer,"""
LEAST_ROUNDS = 5
"""but the first two contenders, which are compared most closely, have so many, the last ones alone."""
WARMING = 4
"""How often every question was asked before it is asked warm."""
INSTALLED = {"delta-rs": delta.INSTALLED, "pyiceberg": iceberg.INSTALLED}

Work = Callable[[], Awaitable[float]]
"""Does it once, and says how many seconds that took."""


async def built(place: Place, size: Size) -> tuple[dict[str, Side], dict[str, str]]:
    """Every contender with the whole history; and what to say of those that did not get there."""
    sides: dict[str, Side] = {"floor": Floor(place, size), "ours": Ours(place, size)}
    history = History(size)
    for side in sides.values():
        await side.begin(history)
    for number, customers in history.commits():
        for side in sides.values():
            await side.commit(number, customers, history)
    for side in sides.values():
        await side.end()
    peers = {name: kind(place, size) for name, kind in PEERS.items() if INSTALLED[name]}
    answer = await asyncio.gather(
        *(asyncio.to_thread(stopped, name, each, PEER_SECONDS) for name, each in peers.items())
    )
    notes = {name: "not installed" for name in PEERS if name not in peers}
    notes |= {name: note for name, note in zip(peers, answer, strict=True) if note is not None}
    sides |= {name: each for name, each in peers.items() if name not in notes}
    return sides, notes


async def measured(
    sides: Mapping[str, Side], place: Place, counted: Place, proxy: FaultProxy | None, *, warm: int, cold: int
) -> dict[str, Any]:
    """By question, by state: the figures of each contender; the first one is the floor."""
    sessions = {name: await side.session(place) for name, side in sides.items()}
    results: dict[str, Any] = {}
    for number in range(WARMING if warm > 1 else 1):
        for question in QUESTIONS:
            for name, session in sessions.items():
                if number == 0 or name == "ours":
                    await session.ask(question)
    for question in QUESTIONS:
        await _agree(sessions, question)
        warmed = {name: _warm(session, question) for name, session in sessions.items()}
        opened = {name: _cold(side, place, question) for name, side in sides.items()}
        results[question.name] = {
            "warm": await _in_turns(warmed, rounds=warm),
            "cold": await _in_turns(opened, rounds=cold),
        }
    for session in sessions.values():
        await session.close()
    if proxy is not None:
        for name, side in sides.items():
            await _count(name, side, counted, proxy, results)
    return results


async def _agree(sessions: Mapping[str, Session], question: Question) -> None:
    found = {name: digest(await session.ask(question)) for name, session in sessions.items()}
    if len(set(found.values())) != 1:
        raise RuntimeError(f"{question.name}: the answers differ: {found}")


def _warm(session: Session, question: Question) -> Work:
    async def work() -> float:
        began = time.perf_counter()
        await session.ask(question)
        return time.perf_counter() - began

    return work


def _cold(side: Side, place: Place, question: Question) -> Work:
    async def work() -> float:
        began = time.perf_counter()
        session = await side.session(place)
        try:
            await session.ask(question)
            return time.perf_counter() - began
        finally:
            await session.close()

    return work


async def _in_turns(contenders: Mapping[str, Work], *, rounds: int) -> dict[str, dict[str, Any]]:
    """Every round has each of them once, and who begins changes from round to round."""
    names = list(contenders)
    taken: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for number in range(rounds):
        late = number > 0 and time.perf_counter() - began > TURNS_SECONDS
        if late and number >= LEAST_ROUNDS:
            break
        there = names[:2] if late else names
        turn = number % len(there)
        for name in there[turn:] + there[:turn]:
            if rounds > 1:
                gc.collect()
            taken[name].append(await contenders[name]())
    return {name: _figures(taken[name], taken[names[0]][: len(taken[name])]) for name in names}


def _figures(seconds: list[float], floor: list[float]) -> dict[str, Any]:
    return {
        "milliseconds": round(median(seconds) * 1e3, 2),
        "milliseconds_spread": [round(end * 1e3, 2) for end in (min(seconds), max(seconds))],
        "times_floor": round(median(one / other for one, other in zip(seconds, floor, strict=True)), 2),
        "rounds": len(seconds),
    }


async def _count(name: str, side: Side, counted: Place, proxy: FaultProxy, results: dict[str, Any]) -> None:
    """Requests and bytes of each question, cold and then asked again."""
    for question in QUESTIONS:
        session: Session | None = None
        for state in ("cold", "warm"):
            proxy.counts.clear()
            session = session if session is not None else await side.session(counted)
            await session.ask(question)
            figures = results[question.name][state][name]
            figures["requests"] = proxy.counts.asked()
            figures["received_bytes"] = proxy.counts.received_bytes
        if session is not None:
            await session.close()
