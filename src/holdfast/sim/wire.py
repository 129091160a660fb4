"""The way between a process and the store: a request hop, a moment on the store, a response hop.

Each of the three can fail by itself, so "it took effect and was not answered" is an ordinary schedule. A request that
was sent takes effect whether or not its sender is still alive or waits.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import Contended, HoldfastError, Unavailable
from holdfast.objects.store import PAGE_SIZE
from holdfast.sim.faults import NO_OUTAGE, Faults, Outage
from holdfast.sim.history import STORE, Trace
from holdfast.sim.loop import SimLoop

WIRE = "wire"
"""Who acts when a fault is drawn for a request."""

REQUEST_LIMIT = 200_000
"""More in one run means that a process retries for ever."""

HOP_S = 0.02
PATIENCE_S = 0.3
LATE_S = 5.0
SLOW = 50
QUIET_S = 2 * (PATIENCE_S + LATE_S + SLOW * HOP_S)
"""After this time nothing that was sent before is still on its way."""


class Runaway(Exception):
    """A run does not come to an end."""


@dataclass(slots=True, eq=False)
class Request:
    number: int
    process: str
    verb: str
    key: str
    effect: Callable[[], Any]
    """What it does to the true store; its value is the answer."""
    answer: asyncio.Future[Any]
    writes: bool
    conditional: bool

    def __str__(self) -> str:
        return f"#{self.number} {self.verb} {self.key}"


class Wire(ABC):
    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.sent = 0
        self.tally: Counter[str] = Counter()

    def send(
        self,
        process: str,
        verb: str,
        key: str,
        effect: Callable[[], Any],
        *,
        detail: object = None,
        writes: bool = False,
        conditional: bool = False,
    ) -> asyncio.Future[Any]:
        self.sent += 1
        if self.sent > REQUEST_LIMIT:
            raise Runaway(f"{process} sent request number {self.sent}: it retries for ever")
        request = Request(
            self.sent, process, verb, key, effect, self.loop.create_future(), writes=writes, conditional=conditional
        )
        self.note(process, "sends", request, detail)
        self.carry(request)
        return request.answer

    @abstractmethod
    def carry(self, request: Request) -> None:
        """See to it that the request lands, is answered, or neither."""

    def land(self, request: Request) -> Any:
        """The request reaches the store and takes effect. Its answer: a value, or the error to be raised."""
        try:
            answer = request.effect()
        except HoldfastError as error:
            answer = error
        self.note(STORE, "serves", request, answer)
        return answer

    def tell(self, request: Request, answer: Any) -> None:
        """The answer reaches the client, which may have stopped waiting."""
        if request.answer.done():
            return
        self.note(request.process, "hears of", request, answer)
        if isinstance(answer, HoldfastError):
            request.answer.set_exception(answer)
        else:
            request.answer.set_result(answer)

    def give_up(self, request: Request) -> None:
        self.tell(request, no_answer(request))

    def page_size(self) -> int:
        """How much of a listing the next page holds."""
        return PAGE_SIZE

    def note(self, who: str, what: str, request: Request, detail: object) -> None:
        self.trace.note(self.loop.time(), who, what, request, detail)


def no_answer(request: Request) -> Unavailable:
    return Unavailable(f"{request.key}: no answer came", maybe_applied=request.writes)


def contended(request: Request) -> Contended:
    return Contended(f"{request.key}: 409, another write goes on")


class TimedWire(Wire):
    """Delays and faults are drawn from the seed."""

    def __init__(
        self,
        loop: SimLoop,
        trace: Trace,
        faults: Faults,
        *,
        schedule: random.Random,
        trouble: random.Random,
        outage: Outage = NO_OUTAGE,
    ) -> None:
        super().__init__(loop, trace)
        self._outage = outage
        self._thresholds = faults.thresholds()
        self._schedule = schedule.random
        self._trouble = trouble.random
        self._courses: dict[str, Callable[[Request], None]] = {
            "lost_request": self._lost_request,
            "lost_response": self._lost_response,
            "late": self._late,
            "duplicate": self._duplicate,
            "contended": self._contended,
            "unavailable": self._unavailable,
            "slow": self._slow,
        }

    def carry(self, request: Request) -> None:
        fault = self._draw(request)
        if fault is None:
            self.loop.after(self._hop(), self._serve, request)
            return
        kind = fault.replace("_", " ")
        self.tally[kind] += 1
        self.note(WIRE, kind, request, None)
        self._courses[fault](request)

    def page_size(self) -> int:
        return int(6 * self._trouble())

    def _draw(self, request: Request) -> str | None:
        if self._outage.goes_on(self.loop.time()):
            return "unavailable"
        number = self._trouble()
        fault = next((fault for threshold, fault in self._thresholds if number < threshold), None)
        if fault in ("late", "duplicate") and not request.writes:
            return None
        if fault == "contended" and not request.conditional:
            return None
        return fault

    def _lost_request(self, request: Request) -> None:
        self.loop.after(self._patience(), self.give_up, request)

    def _lost_response(self, request: Request) -> None:
        hop = self._hop()
        self.loop.after(hop, self.land, request)
        self.loop.after(hop + self._patience(), self.give_up, request)

    def _late(self, request: Request) -> None:
        patience = self._patience()
        self.loop.after(patience, self.give_up, request)
        self.loop.after(patience + LATE_S * self._schedule(), self.land, request)

    def _duplicate(self, request: Request) -> None:
        """One copy answers and the other is silent. They arrive in either order, or meet on the store: then 409."""
        answering, silent = self._hop(), self._hop()
        if self._trouble() < 0.5:
            silent += LATE_S * self._schedule()
        self.loop.after(silent, self.land, request)
        if request.conditional and self._trouble() < 0.3:
            self.loop.after(answering, self._contended, request)
        else:
            self.loop.after(answering, self._serve, request)

    def _contended(self, request: Request) -> None:
        self.loop.after(2 * self._hop(), self.tell, request, contended(request))

    def _unavailable(self, request: Request) -> None:
        self.loop.after(2 * self._hop(), self.tell, request, Unavailable(f"{request.key}: 503, slow down"))

    def _slow(self, request: Request) -> None:
        self.loop.after(SLOW * self._hop(), self._serve, request)

    def _serve(self, request: Request) -> None:
        self.loop.after(self._hop(), self.tell, request, self.land(request))

    def _hop(self) -> float:
        return 0.0005 + HOP_S * self._schedule()

    def _patience(self) -> float:
        return 0.03 + PATIENCE_S * self._schedule()
