"""The identity of a batch: exactly (agent, boot, first sequence number, last sequence number).

Bounds are inclusive. Two batches whose ranges overlap without being equal are two identities (correction 10): an agent
cuts a batch once and never again, and derived data counts each (agent, boot, sequence number) once.
"""

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from holdfast.base.errors import Invalid

MAX_AGENT_BYTES = 120
"""In hexadecimal, with a label, it is still short enough for a file name."""
MAX_BOOT_BYTES = 64
MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class BatchIdentity:
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    def __post_init__(self) -> None:
        check_name("agent id", self.agent_id, MAX_AGENT_BYTES)
        check_name("boot id", self.boot_id, MAX_BOOT_BYTES)
        if not 0 <= self.seq_start <= self.seq_end <= MAX_SEQ:
            raise Invalid(
                f"batch of {self.agent_id}: sequence numbers {self.seq_start} to {self.seq_end} are not a range",
                remedy=f"number records upwards, from 0 to at most {MAX_SEQ}",
            )

    @property
    def numbers(self) -> int:
        """How many sequence numbers the range has."""
        return self.seq_end - self.seq_start + 1

    @property
    def manifest_id(self) -> str:
        """The name under which derived indexes list the batch."""
        text = "\x00".join((self.agent_id, self.boot_id, str(self.seq_start), str(self.seq_end)))
        return hashlib.sha256(text.encode()).hexdigest()

    def overlaps(self, other: "BatchIdentity") -> bool:
        """Whether the ranges of both have a number in common. An identity overlaps itself."""
        same = (self.agent_id, self.boot_id) == (other.agent_id, other.boot_id)
        return same and self.seq_start <= other.seq_end and other.seq_start <= self.seq_end

    def __str__(self) -> str:
        return f"{self.agent_id}/{self.boot_id} {self.seq_start}-{self.seq_end}"


def check_name(what: str, name: str, limit: int) -> str:
    """The name, if it is printable and its hexadecimal form is short enough for a key."""
    if not name:
        raise Invalid(f"{what}: it is empty", remedy=f"give a name of 1 to {limit} bytes")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise Invalid(f"{what} {name[:40]!r} has {size} bytes; 1 to {limit} are allowed", remedy="use a shorter name")
    if not name.isprintable():
        raise Invalid(f"{what} {name!r} has characters that cannot be printed", remedy="use letters, digits and marks")
    return name


def check_sender(agent_id: str) -> str:
    """The id, if it is valid for an agent. It is sent in a header too, and headers cannot begin or end with a space."""
    if agent_id != agent_id.strip(" "):
        raise Invalid(f"agent id {agent_id!r} begins or ends with a space", remedy="leave the space out")
    return check_name("agent id", agent_id, MAX_AGENT_BYTES)


@lru_cache(maxsize=4096)
def fits(agent_id: str, pattern: str) -> bool:
    """Whether a pattern matches this agent: ``*`` and ``?`` are wildcards, every other character is literal."""
    return fnmatchcase(agent_id, pattern.replace("[", "[[]"))
