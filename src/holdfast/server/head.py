"""The parser of requests, with two things that h11 leaves out.

A head longer than ``most`` is refused however it comes: h11 measures only what it has to wait for, so that one that
came in a single read could be of any size. And a request may name its target in absolute form (``POST http://host/path``),
which RFC 9112 demands of servers to take: what it says of the host is not looked at, here as elsewhere.
"""

import re

import h11

_ABSOLUTE = re.compile(rb"https?://[^/?#@]+(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)


class Connection(h11.Connection):
    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._most = most

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        begins = self.their_state is h11.IDLE
        before = len(self.trailing_data[0]) if begins else 0
        event = super().next_event()
        if not begins or not isinstance(event, h11.Request):
            return event
        if before - len(self.trailing_data[0]) > self._most:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        target = origin_form(event.target)
        if target == event.target:
            return event
        return h11.Request(
            method=event.method, target=target, headers=list(event.headers), http_version=event.http_version
        )


def origin_form(target: bytes) -> bytes:
    """Path and query of an absolute target; any other as it is."""
    found = _ABSOLUTE.fullmatch(target)
    return target if found is None else (found[1] or b"/") + (found[2] or b"")
