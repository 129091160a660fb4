"""Settling done wrong: what corrections 1 to 3 are there for."""

from contextlib import suppress

from holdfast.base import codec
from holdfast.base.errors import Contended, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import OVERWRITE, Create, IfMatch, Lost, Mode, Store, Written
from holdfast.sim.scenarios.register import RegisterForeign
from holdfast.sim.scenarios.store import StoreCas
from tests.sim.naive import first_broken, rules

SEEDS = range(1, 400)


class NoReadBack(Client):
    """412 is a lost race and an open outcome is tried again: the classic retry loop around a conditional write."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        for _ in range(20):
            with suppress(Unavailable):
                return await self._send(key, body, mode)
        raise Unavailable(f"{key}: gave up", maybe_applied=True)


class TokenOnly(Client):
    """Our write id is in there, so the object must be ours."""

    async def _read_back(self, key: str, body: bytes, mode: Create | IfMatch) -> Written | Lost | None:
        verdict = await super()._read_back(key, body, mode)
        if isinstance(verdict, Lost) and verdict.current is not None:
            theirs = codec.decode(verdict.current.body, key=key)["write_id"]
            if theirs == codec.decode(body, key=key)["write_id"]:
                return Written(verdict.current.version)
        return verdict


class ContendedMeansTaken(Client):
    """409 says that somebody else is writing, so the race is lost."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        try:
            return await self._send(key, body, mode)
        except Contended:
            return Lost()
        except Unavailable:
            return await super().put(key, body, mode)


class ContendedMeansUntouched(Client):
    """409 says that nothing was written, so giving up is safe."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        try:
            return await self._send(key, body, mode)
        except Contended as error:
            raise Unavailable(f"{key}: nothing was written") from error
        except Unavailable:
            return await super().put(key, body, mode)


def test_without_read_back_an_own_write_is_reported_as_lost() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return NoReadBack(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))


def test_a_write_id_over_foreign_bytes_is_not_our_write() -> None:
    class Naive(RegisterForeign):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return TokenOnly(backend, ambient=ambient, retry=self.retry)

    assert "no lost update" in rules(first_broken(Naive, SEEDS))


def test_without_a_write_id_equal_bytes_are_mistaken_for_the_same_write() -> None:
    class Naive(StoreCas):
        def body(self, value: int, ambient: Ambient) -> bytes:
            return codec.encode({"value": value})

    assert "linearizable" in rules(first_broken(Naive, SEEDS))


def test_409_is_no_lost_race() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return ContendedMeansTaken(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))


def test_409_is_no_proof_that_nothing_was_written() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return ContendedMeansUntouched(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))
