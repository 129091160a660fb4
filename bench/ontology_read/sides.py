"""What a contender is: it takes every commit in, and then answers questions in sessions."""

from abc import ABC, abstractmethod

import pyarrow as pa

from bench.ontology_read.data import History, Size
from bench.ontology_read.places import Place
from bench.ontology_read.questions import Question


class Session(ABC):
    """A session: what it has learnt stays with it, and every answer is about the newest state there is."""

    @abstractmethod
    async def ask(self, question: Question) -> pa.Table: ...

    async def close(self) -> None:
        """Let go of everything."""
        return


class Side(ABC):
    def __init__(self, place: Place, size: Size) -> None:
        self.place = place
        """Where it writes."""
        self.size = size

    async def begin(self, history: History) -> None:
        """Whatever comes before the first commit."""
        return

    @abstractmethod
    async def commit(self, number: int, customers: pa.Table, history: History) -> None:
        """One commit; the first one has the products and subscriptions too."""

    async def end(self) -> None:
        """Whatever comes after the last commit."""
        return

    async def compact(self) -> bool:
        """Put the files of many commits together; False where there is no such thing."""
        return False

    @abstractmethod
    async def session(self, place: Place) -> Session: ...


class Peer(Side):
    past = 0
    """The version, or snapshot, of the middle."""
