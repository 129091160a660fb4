"""Names and ids of steps.

``llm``, ``llm#2``, ``llm#3`` in sequential code; ``fetch[key]`` where the caller gives a key. The marks are therefore
forbidden in names.
"""

from collections import Counter
from functools import lru_cache

from holdfast.base.errors import Invalid
from holdfast.runs.errors import ConcurrentSteps
from holdfast.runs.run import CHILD_EVENT

_FORBIDDEN = frozenset("#[]/")
_MAX_BYTES = 200


def check_name(name: object, what: str = "step") -> str:
    if not isinstance(name, str):
        raise Invalid(f"{what} name {name!r:.40} is a {type(name).__name__}", remedy="give it as text")
    return _checked(name, what)


@lru_cache(maxsize=1024)
def _checked(name: str, what: str) -> str:
    """Remembered: a workflow asks for the same few names over and over."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > _MAX_BYTES:
        raise Invalid(f"{what} name {name[:40]!r} must have 1 to {_MAX_BYTES} bytes")
    if not _FORBIDDEN.isdisjoint(name) or not name.isprintable():
        raise Invalid(
            f"{what} name {name!r} has one of {' '.join(sorted(_FORBIDDEN))} or an unprintable character",
            remedy="choose a plain name; the marks number and key repeated steps",
        )
    return name


def check_event(event: str) -> str:
    check_name(event, "event")
    if event in (".", ".."):
        raise Invalid(f"event name {event!r} cannot be part of a key", remedy="choose another name")
    if event.startswith(CHILD_EVENT):
        raise Invalid(f"event name {event!r} is one that runs use for their children", remedy="choose another name")
    return event


def counted(name: str, occurrence: int) -> str:
    return name if occurrence == 1 else f"{name}#{occurrence}"


def keyed(name: str, key: object) -> str:
    """The id of a step that the caller tells apart by ``key``, which must have a stable text form."""
    if not isinstance(key, str | int):
        raise Invalid(f"step {name}: a key must be text or a whole number, not {type(key).__name__}")
    return f"{name}[{key}]"


class StepIds:
    """Gives out the ids of one pass over a workflow, and refuses where the scheduler would decide on them.

    Counting is only for code that does one thing after the other (correction 9): two steps of one name in flight at
    once, or asked for by several tasks, need keys.
    """

    def __init__(self) -> None:
        self._drawn: Counter[str] = Counter()
        self._in_flight: set[str] = set()
        self._used_aside: set[str] = set()

    def draw(self, name: str, key: str | int | None, *, aside: bool) -> str:
        """The id of the next step of this name. ``aside``: asked for by a task other than the workflow's own."""
        if key is not None:
            ident = keyed(name, key)
            self.claim(ident)
        else:
            if aside or self._in_flight or self._used_aside:
                self._check_order_is_certain(name, aside=aside)
            self._drawn[name] += 1
            ident = counted(name, self._drawn[name])
        self._in_flight.add(ident)
        return ident

    def claim(self, ident: str) -> None:
        """Use an id that has a key in it: once."""
        if self._drawn[ident]:
            raise ConcurrentSteps(f"step {ident} was asked for twice", remedy="give every use a key of its own")
        self._drawn[ident] += 1

    def done(self, ident: str) -> None:
        self._in_flight.discard(ident)

    def _check_order_is_certain(self, name: str, *, aside: bool) -> None:
        running = any(other.partition("#")[0] == name for other in self._in_flight)
        if running or name in self._used_aside or (aside and self._drawn[name] > 0):
            raise ConcurrentSteps(
                f"step {name!r} was asked for by several tasks, so their order would decide which result is whose",
                remedy="give each a key=, or use ctx.parallel",
            )
        if aside:
            self._used_aside.add(name)
