"""Linux's ring of requests (io_uring), as far as forcing files to disk takes it.

A thread that forces a file to disk has to be woken, gives the interpreter's lock away and waits for it again; on a busy
loop that costs more than the call. The kernel has threads of its own for this, which know nothing of that lock: a
request is a number in memory that both share, and so is its answer, of which an event tells the loop.

A request names an open file and no memory of ours, so there is nothing that must outlive it; the kernel holds the file.
Reading an answer without a barrier is right where a processor shows the writes of others in their order, as x86 does.
"""

import asyncio
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache

Ended = Callable[[OSError | None], None]
"""Is told, on the loop, how a request has ended."""

ENTRIES = 256
"""Requests that may be under way at a time."""

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_EVENT = 4
_REQUESTS_AT = 0x10000000
_FSYNC = 3
_QUIETLY = 1 << 8  # answers do not interrupt what the loop's thread is doing; kernels before 5.19 do not know it

_PARAMETERS = struct.Struct("<2I32x10I10I")
_REQUEST = struct.Struct("<BBHiQQIIQ24x")
_ANSWER = struct.Struct("<QiI")
_NUMBER = struct.Struct("<I")
_WRAP = 0xFFFFFFFF


@cache
def system() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *args: object) -> int:
    result = int(system().syscall(number, *args))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Ring:
    """Of one loop of one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises ``OSError`` where the system has none, or does not allow it."""
        self._ring = self._event = -1
        if platform.machine() != "x86_64":
            raise OSError(f"not on {platform.machine()}")
        self._process = os.getpid()
        self._waiting: dict[int, Ended] = {}
        self._written: list[tuple[int, int]] = []
        """Requests of which the kernel has not been told: their numbers and files."""
        self._count = 0
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._open()
            loop.add_reader(self._event, self._look)
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        parameters = (ctypes.c_char * _PARAMETERS.size)()
        _PARAMETERS.pack_into(parameters, 0, 0, 0, *([0] * 20))
        self._ring = _set_up(parameters)
        requests, answers, *offsets = _PARAMETERS.unpack_from(parameters)
        to_kernel, from_kernel = offsets[:10], offsets[10:]
        size = max(to_kernel[6] + 4 * requests, from_kernel[5] + _ANSWER.size * answers)
        self._shared = mmap.mmap(self._ring, size)
        self._requests = mmap.mmap(self._ring, _REQUEST.size * requests, offset=_REQUESTS_AT)
        for number in range(requests):
            _NUMBER.pack_into(self._shared, to_kernel[6] + 4 * number, number)
        self._asked_at, self._ask_mask = to_kernel[1], requests - 1
        self._head_at, self._tail_at, self._answers_at = from_kernel[0], from_kernel[1], from_kernel[5]
        self._answer_mask = answers - 1
        self._asked = self._seen = 0
        _call(_REGISTER, self._ring, _EVENT, ctypes.byref(ctypes.c_int(self._event)), 1)

    def force(self, descriptor: int, ended: Ended, loop: asyncio.AbstractEventLoop) -> bool:
        """Have an open file forced to disk; False if it cannot be had here and now. ``loop`` is the ring's."""
        if len(self._waiting) >= ENTRIES or self._process != os.getpid():
            return False
        if not self._written:  # the kernel is called once for all who come before the loop's next turn
            loop.call_soon(self.ask)
        at = (self._asked + len(self._written)) & self._ask_mask
        self._count += 1
        _REQUEST.pack_into(self._requests, at * _REQUEST.size, _FSYNC, 0, 0, descriptor, 0, 0, 0, 0, self._count)
        self._written.append((self._count, descriptor))
        self._waiting[self._count] = ended
        return True

    def ask(self) -> None:
        """On the loop: have the kernel take what is written."""
        if not self._written:
            return  # somebody could not wait for the loop's next turn
        written, self._written = self._written, []
        _NUMBER.pack_into(self._shared, self._asked_at, (self._asked + len(written)) & _WRAP)
        try:
            taken = _call(_ENTER, self._ring, len(written), 0, 0, None, 0)
        except OSError:
            taken = 0
        self._asked = (self._asked + taken) & _WRAP
        if taken < len(written):  # it is short of memory, say
            _NUMBER.pack_into(self._shared, self._asked_at, self._asked)
            for number, descriptor in written[taken:]:
                _tell(self._waiting.pop(number), forced(descriptor))

    def _look(self) -> None:
        """On the loop: hand out the answers that are there."""
        with suppress(BlockingIOError):  # nothing is there: somebody else has looked
            os.eventfd_read(self._event)
        (last,) = _NUMBER.unpack_from(self._shared, self._tail_at)
        answers: list[tuple[Ended, int]] = []
        while self._seen != last:
            at = self._answers_at + (self._seen & self._answer_mask) * _ANSWER.size
            number, result, _ = _ANSWER.unpack_from(self._shared, at)
            self._seen = (self._seen + 1) & _WRAP
            answers.append((self._waiting.pop(number), result))
        _NUMBER.pack_into(self._shared, self._head_at, self._seen)
        for ended, result in answers:
            _tell(ended, None if result >= 0 else OSError(-result, os.strerror(-result)))

    def close(self, close: Callable[[int], None] = os.close) -> None:  # modules may be gone when the interpreter ends
        for descriptor in (self._ring, self._event):
            if descriptor >= 0:
                close(descriptor)
        self._ring = self._event = -1

    def __del__(self) -> None:
        self.close()


def _tell(ended: Ended, error: OSError | None) -> None:
    """If it fails, the others are told all the same."""
    try:
        ended(error)
    except Exception as failure:  # noqa: BLE001  # the loop's to report, like that of any callback
        message = "what was to happen after a file was forced to disk has failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure})


def forced(descriptor: int) -> OSError | None:
    """Force an open file to disk at once; what went wrong."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    return None


def _set_up(parameters: "ctypes.Array[ctypes.c_char]") -> int:
    """The ring's descriptor, which a program that is started in our place does not inherit."""
    try:
        struct.pack_into("<I", parameters, 8, _QUIETLY)
        return _call(_SETUP, ENTRIES, parameters)
    except OSError:
        ctypes.memset(parameters, 0, _PARAMETERS.size)
        return _call(_SETUP, ENTRIES, parameters)
