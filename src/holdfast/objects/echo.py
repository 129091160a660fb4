"""A fault on purpose: conditional writes that land, and whose answer does not tell.

Used by a law to show that the layers above settle such writes to the truth, on the user's own store.
"""

from typing import Final

from holdfast.base.errors import Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Overwrite, Store, Written


class Echoing(Layer):
    LOSE: Final = "lost-response"
    REPEAT: Final = "delivered-twice"

    def __init__(self, inner: Store, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind
        self._deaf = False

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        first = await self.inner.put(key, body, mode)
        if isinstance(mode, Overwrite):
            return first
        if self._kind == self.REPEAT:
            return await self.inner.put(key, body, mode)
        self._deaf = not self._deaf
        if self._deaf:
            raise Unavailable(f"{key}: the response was dropped on purpose", maybe_applied=True)
        return first
