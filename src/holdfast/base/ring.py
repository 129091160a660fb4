"""Linux's ring of requests (io_uring), as far as forcing files to disk takes it.

A thread that forces a file to disk has to be woken, gives the interpreter's lock away and waits for it again; on a busy
loop that costs more than the call. The kernel has threads of its own for this, which know nothing of that lock: a
request is a number in memory that both share, and so is its answer, of which an event tells the loop.

A request names an open file and no memory of ours, so there is nothing that must outlive it; the kernel holds the file.
Reading an answer without a barrier is right where a processor shows the writes of others in their order, as x86 does.

Kernels have been seen to take requests and begin with none, in every ring of that process from then on. So when the
oldest request has no answer for a while, it is taken back, and the kernel says whether it had begun. If so, the disk is
slow. If not, all are taken back and made by others, and this process has no rings any more. They are not just made by
others as well: a file tells of a write that was lost once only, and that might be to a request which nobody hears of.
"""

import asyncio
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from holdfast.base.telemetry import logger

Ended = Callable[[OSError | None], None]
"""Is told, on the loop, how a request has ended."""

Instead = Callable[[int, Ended], None]
"""Forces an open file in the kernel's place."""

ENTRIES = 256
"""Requests that may be under way at a time."""

TICK_S = 0.5
"""How often it is looked whether the kernel answers."""

DOUBT, DESPAIR = 4, 12
"""Ticks for which the oldest request may wait until it is taken back, and until nothing is hoped for."""

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_EVENT = 4
_REQUESTS_AT = 0x10000000
_FSYNC, _TAKE_BACK = 3, 14
_ABOUT = 1 << 63  # in the number of an answer: it is about taking back the request with the rest of the number
_QUIETLY = 1 << 8  # answers do not interrupt what the loop's thread is doing; kernels before 5.19 do not know it

_PARAMETERS = struct.Struct("<2I32x10I10I")
_REQUEST = struct.Struct("<BBHiQQIIQ24x")
_ANSWER = struct.Struct("<QiI")
_NUMBER = struct.Struct("<I")
_WRAP = 0xFFFFFFFF

_log = logger("base")


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

    deaf = False
    """Whether the kernel was found not to begin with what rings of this process ask for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, instead: Instead) -> None:
        """Raises ``OSError`` where the system has none, or does not allow it; ``instead`` makes what it cannot."""
        self._ring = self._event = -1
        if Ring.deaf:
            raise OSError("a ring of this process was not answered")
        if platform.machine() != "x86_64":
            raise OSError(f"not on {platform.machine()}")
        self._process = os.getpid()
        self._instead = instead
        self._waiting: dict[int, tuple[int, Ended]] = {}
        """Requests without an answer, by number, oldest first: the file, and who is told."""
        self._written: list[int] = []
        """Requests of which the kernel has not been told: their numbers."""
        self._count = 0
        self._watched = False
        self._begun = 0
        """A request that was to be taken back, and had begun."""
        self._unknown = 0
        """A request that was to be taken back, of which the kernel knows nothing."""
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
        if len(self._waiting) >= ENTRIES or Ring.deaf or self._process != os.getpid():
            return False
        if not self._written:  # the kernel is called once for all who come before the loop's next turn
            loop.call_soon(self.ask)
        self._count += 1
        self._write(len(self._written), _FSYNC, descriptor, 0, self._count)
        self._written.append(self._count)
        self._waiting[self._count] = descriptor, ended
        if not self._watched:
            self._watched = True
            loop.call_later(TICK_S, self._watch, loop, 0, 0)
        return True

    def ask(self) -> None:
        """On the loop: have the kernel take what is written."""
        if not self._written:
            return  # somebody could not wait for the loop's next turn
        written, self._written = self._written, []
        for number in written[self._enter(len(written)) :]:  # it is short of memory, say
            self._instead(*self._waiting.pop(number))

    def _write(self, place: int, deed: int, descriptor: int, target: int, number: int) -> None:
        at = (self._asked + place) & self._ask_mask
        _REQUEST.pack_into(self._requests, at * _REQUEST.size, deed, 0, 0, descriptor, 0, target, 0, 0, number)

    def _enter(self, count: int) -> int:
        """Have the kernel take requests that are written; how many it has taken."""
        _NUMBER.pack_into(self._shared, self._asked_at, (self._asked + count) & _WRAP)
        try:
            taken = _call(_ENTER, self._ring, count, 0, 0, None, 0)
        except OSError:
            taken = 0
        self._asked = (self._asked + taken) & _WRAP
        if taken < count:
            _NUMBER.pack_into(self._shared, self._asked_at, self._asked)
        return taken

    def _look(self) -> None:
        """On the loop: hand out the answers that are there."""
        with suppress(BlockingIOError):  # nothing is there: somebody else has looked
            os.eventfd_read(self._event)
        (last,) = _NUMBER.unpack_from(self._shared, self._tail_at)
        answers: list[tuple[int, int]] = []
        while self._seen != last:
            at = self._answers_at + (self._seen & self._answer_mask) * _ANSWER.size
            number, result, _ = _ANSWER.unpack_from(self._shared, at)
            self._seen = (self._seen + 1) & _WRAP
            answers.append((number, result))
        _NUMBER.pack_into(self._shared, self._head_at, self._seen)
        for number, result in answers:
            if number & _ABOUT:
                self._not_taken_back(number ^ _ABOUT, -result)
            else:
                self._answered(number, -result)

    def _answered(self, number: int, failure: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return  # it was despaired of
        descriptor, ended = waiting
        if failure == errno.ECANCELED:
            self._give_up()
            self._instead(descriptor, ended)
        elif failure == errno.EINTR:  # by being taken back, before it was told of anything
            self._instead(descriptor, ended)
        else:
            _tell(ended, OSError(failure, os.strerror(failure)) if failure > 0 else None)

    def _watch(self, loop: asyncio.AbstractEventLoop, before: int, ticks: int) -> None:
        """On the loop, as long as anybody waits: whether the oldest request is the one of ``before``, for so many
        ticks."""
        if not self._waiting:
            self._watched = False
            return
        oldest = next(iter(self._waiting))
        ticks = ticks + 1 if oldest == before and oldest != self._begun else 0
        self._begun = 0
        if ticks == DOUBT:
            self._take_back([oldest])
        elif ticks >= DESPAIR:
            self._despair()
        loop.call_later(TICK_S, self._watch, loop, oldest, ticks)

    def _take_back(self, numbers: list[int]) -> None:
        self.ask()  # what is written is before it
        for place, number in enumerate(numbers):
            self._write(place, _TAKE_BACK, -1, number, number | _ABOUT)
        self._enter(len(numbers))

    def _not_taken_back(self, number: int, why: int) -> None:
        """If it was (``why`` is 0), the request has an answer of its own, and if it had begun it will have one."""
        if why == errno.EALREADY:
            self._begun = number
        elif why == errno.ENOENT and number in self._waiting:
            if self._unknown == number:
                self._despair()
            self._unknown = self._begun = number  # its answer may be on the way

    def _give_up(self) -> None:
        if Ring.deaf:
            return
        Ring.deaf = True
        _log.warning("the kernel does not begin with what its ring is asked for; threads force files to disk instead")
        self._take_back(list(self._waiting))

    def _despair(self) -> None:
        """What became of requests will never be known: whether one was told of a write that was lost, either."""
        Ring.deaf = True
        _log.error("the kernel does not answer what its ring is asked for; threads force files to disk from now on")
        waiting, self._waiting = self._waiting, {}
        for _, ended in waiting.values():
            _tell(ended, OSError(errno.EIO, "the kernel was asked to force it to disk and does not answer"))

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
