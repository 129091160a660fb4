"""A backend whose answers a test writes down: the next put lands or not, and answers or not, as the test says."""

from holdfast.base.errors import Contended, Denied, NotFound, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Store, Written


class Scripted(Layer):
    """Puts take the next word of the script: ok, lost (lands, no answer), drop (does not land, no answer), late (no
    answer, lands before the next put), twice (lands, second copy answers), busy (503), clash (409), forbidden,
    gone (the bucket)."""

    def __init__(self, *script: str, inner: Store | None = None) -> None:
        super().__init__(inner if inner is not None else MemoryStore())
        self.script = list(script)
        self.puts = 0
        self.reads = 0
        self._late: tuple[str, bytes, Mode] | None = None

    async def get(self, key: str) -> Object:
        self.reads += 1
        return await super().get(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self.puts += 1
        if self._late is not None:
            await self.inner.put(*self._late)
            self._late = None
        match self.script.pop(0) if self.script else "ok":
            case "ok":
                return await self.inner.put(key, body, mode)
            case "lost":
                await self.inner.put(key, body, mode)
                raise Unavailable(f"{key}: response lost", maybe_applied=True)
            case "drop":
                raise Unavailable(f"{key}: request lost", maybe_applied=True)
            case "late":
                self._late = (key, body, mode)
                raise Unavailable(f"{key}: delayed", maybe_applied=True)
            case "twice":
                await self.inner.put(key, body, mode)
                return await self.inner.put(key, body, mode)
            case "busy":
                raise Unavailable(f"{key}: 503")
            case "forbidden":
                raise Denied(f"{key}: the store does not let this be written")
            case "gone":
                raise NotFound(f"{key}: there is no such bucket")
            case "clash":
                raise Contended(f"{key}: 409")
            case word:
                raise ValueError(word)
