"""The faults, as data. What each one does to an exchange is in ``perform.py``.

The network's faults leave the server right: a store that is right must stay right under them. The server's faults
(``StripConditions``, ``RaceConditions``, ``StaleList``) make any server one that must be refused.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

FIRST: Final = "first"
SECOND: Final = "second"
CUT: Final = "cut"


@dataclass(frozen=True, slots=True)
class _Fault:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Forward(_Fault):
    """No fault. A rule with it keeps what it matches away from the rules after it."""

    kind: Literal["forward"] = "forward"


@dataclass(frozen=True, slots=True)
class CutResponse(_Fault):
    """The request lands, the connection is cut; ``after_bytes`` of the response get through first."""

    after_bytes: int = 0
    kind: Literal["cut-response"] = "cut-response"


@dataclass(frozen=True, slots=True)
class DelayResponse(_Fault):
    """The request lands at once, its response comes ``ms`` later."""

    ms: float
    kind: Literal["delay-response"] = "delay-response"


@dataclass(frozen=True, slots=True)
class Twice(_Fault):
    """The request is delivered twice; the client gets the first answer, the second, or a cut.

    With ``pause_ms`` the second delivery comes that much later, and only a client that gets the second answer waits
    for it: a write that another believes done, or lost, lands once more behind its back.
    """

    answer: Literal["first", "second", "cut"] = SECOND
    pause_ms: float = 0
    kind: Literal["twice"] = "twice"


@dataclass(frozen=True, slots=True)
class Answer(_Fault):
    """An error from the proxy; the server never sees the request. A 503 says ``SlowDown``."""

    status: int = 503
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, slots=True)
class AnswerAfter(_Fault):
    """The request lands, and the proxy answers an error in place of the server's answer.

    A 503 says ``ServiceUnavailable`` here: ``SlowDown`` would be a promise that nothing was done.
    """

    status: int = 503
    kind: Literal["answer-after"] = "answer-after"


@dataclass(frozen=True, slots=True)
class Stall(_Fault):
    """No answer until the client gives up; ``landed`` says whether the server got the request."""

    landed: bool = False
    kind: Literal["stall"] = "stall"


@dataclass(frozen=True, slots=True)
class LoseRequest(_Fault):
    """The connection is cut after the client has sent everything, and the server gets nothing."""

    kind: Literal["lose-request"] = "lose-request"


@dataclass(frozen=True, slots=True)
class ApplyLater(_Fault):
    """The connection is cut now (or ``status`` answered), and the request lands ``ms`` later."""

    ms: float
    status: int | None = None
    kind: Literal["apply-later"] = "apply-later"


@dataclass(frozen=True, slots=True)
class RefuseConnection(_Fault):
    """A new connection is reset at once. Its rule counts connections and cannot look at requests."""

    kind: Literal["refuse-connection"] = "refuse-connection"


@dataclass(frozen=True, slots=True)
class StaleList(_Fault):
    """A listing is answered as it was ``lag`` listings of the same address ago."""

    lag: int = 1
    kind: Literal["stale-list"] = "stale-list"


@dataclass(frozen=True, slots=True)
class StripConditions(_Fault):
    """The server never sees If-Match or If-None-Match: it ignores conditions."""

    kind: Literal["strip-conditions"] = "strip-conditions"


@dataclass(frozen=True, slots=True)
class RaceConditions(_Fault):
    """A condition is checked by a HEAD, and the write follows unconditionally, up to ``pause_ms`` later."""

    pause_ms: float = 20
    kind: Literal["race-conditions"] = "race-conditions"


Fault = (
    Forward
    | CutResponse
    | DelayResponse
    | Twice
    | Answer
    | AnswerAfter
    | Stall
    | LoseRequest
    | ApplyLater
    | RefuseConnection
    | StaleList
    | StripConditions
    | RaceConditions
)
