"""Lines of log files, complete ones only, each once.

A position is a file (device and inode), an offset behind the last line that was queued, and a checksum of the file's
first bytes. It is kept with the batch that holds the lines (see ``queue``), so lines and position are durable at once.

* Rotation by renaming: the old file is found again by its inode, among its siblings, and read to its end first.
* Truncation: the file is shorter than the offset, or its first bytes are others; it is read from its beginning.
* A line without its end stays in the file. One that is longer than ``MOST_LINE`` is cut, marked, and its rest skipped.

``read`` only proposes; what it read counts once ``commit`` was called. A file that cannot be read is reported once, and
tried again every round.
"""

import glob
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.base.codec import Document
from holdfast.base.config import LogSource
from holdfast.base.telemetry import logger
from holdfast.ingest.records import Log, Severity

MOST_LINE = 64 << 10
MOST_READ = 512 << 10
"""Bytes per file and round."""
MOST_BYTES = 2 << 20
"""Bytes per round over all files: a batch must fit into a frame."""
MARK_BYTES = 256
PATH = "log.file.path"
CUT = "log.truncated"
_log = logger("agent")


@dataclass(frozen=True, slots=True)
class Place:
    device: int
    inode: int
    offset: int
    mark_bytes: int = 0
    """How many of the first bytes are in the checksum."""
    mark: int = 0
    skipping: bool = False
    """The rest of a line that was too long is still to be passed over."""

    def document(self) -> list[int]:
        return [self.device, self.inode, self.offset, self.mark_bytes, self.mark, int(self.skipping)]

    @classmethod
    def of(cls, found: object) -> "Place | None":
        if not isinstance(found, list) or len(found) != 6 or not all(isinstance(each, int) for each in found):
            return None
        device, inode, offset, mark_bytes, mark, skipping = found
        return cls(device, inode, offset, mark_bytes, mark, bool(skipping))


@dataclass(slots=True)
class Lines:
    """What was read, and the positions behind it."""

    records: list[Log] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    more: bool = False
    """There is more to read at once."""
    bytes: int = 0

    def note(self) -> Document:
        return {path: place.document() for path, place in self.places.items()}


class Tailer:
    def __init__(self, sources: Sequence[LogSource], known: Mapping[str, object]) -> None:
        """``known`` are the positions of an earlier life."""
        self._sources = tuple(sources)
        self._places = {path: place for path, found in known.items() if (place := Place.of(found)) is not None}
        self._unreadable: set[str] = set()
        self._first_round = True

    def read(self, now_ns: int, most_lines: int) -> Lines:
        """Blocking. At most so many lines, fewer if files are large."""
        lines = Lines()
        for source in self._sources:
            for path in _paths(source.path):
                if len(lines.records) >= most_lines or lines.bytes >= MOST_BYTES:
                    lines.more = True
                    break
                try:
                    self._read_path(source, path, lines, now_ns, most_lines)
                    self._unreadable.discard(path)
                except OSError as error:
                    self._report(path, error)
        self._first_round = False
        return lines

    def commit(self, lines: Lines) -> None:
        """These lines are queued."""
        self._places.update(lines.places)

    def positions(self) -> Document:
        return {path: place.document() for path, place in self._places.items()}

    def _read_path(self, source: LogSource, path: str, lines: Lines, now_ns: int, most: int) -> None:
        place = self._places.get(path)
        if place is not None:
            place = self._finish_rotated(source, path, place, lines, now_ns, most)
            if place is None:
                return
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            if place is None or (place.device, place.inode) != (found.st_dev, found.st_ino):
                fresh = place is None and self._first_round and not source.from_start
                place = Place(found.st_dev, found.st_ino, found.st_size if fresh else 0)
                if fresh:
                    self._places[path] = place
            elif place.offset > found.st_size or not _is_marked(file.fileno(), place):
                _log.info("%s was truncated; it is read from its beginning", path)
                place = replace(place, offset=0, mark_bytes=0, mark=0, skipping=False)
            lines.places[path] = self._take(source, path, file.fileno(), place, lines, now_ns, most)

    def _finish_rotated(
        self, source: LogSource, path: str, place: Place, lines: Lines, now_ns: int, most: int
    ) -> Place | None:
        """The place to go on from; None if the old file is not finished. That is not so before the new one has bytes:
        whoever writes goes on in the old one until it opens the new."""
        begun = False
        with suppress(FileNotFoundError):  # between the renaming and the new file
            found = Path(path).stat()
            if (found.st_dev, found.st_ino) == (place.device, place.inode):
                return place
            begun = found.st_size > 0
        renamed = _sibling(path, place)
        if renamed is not None:
            with Path(renamed).open("rb") as file:
                after = self._take(source, path, file.fileno(), place, lines, now_ns, most)
                if after.offset > place.offset:
                    lines.places[path] = after
                    lines.more = True
                    return None
        return place if begun else None

    def _take(
        self, source: LogSource, path: str, file: int, place: Place, lines: Lines, now_ns: int, most: int
    ) -> Place:
        data = os.pread(file, MOST_READ, place.offset)
        used, skipping = 0, place.skipping
        attributes = {**source.attributes, PATH: path}
        while len(lines.records) < most:
            end = data.find(b"\n", used)
            if end < 0:
                if len(data) - used > MOST_LINE or (skipping and len(data) > used):
                    if not skipping:
                        cut = data[used : used + MOST_LINE]
                        lines.records.append(_line(cut, now_ns, {**attributes, CUT: "true"}))
                    used, skipping = len(data), True
                break
            if not skipping:
                whole = data[used:end].removesuffix(b"\r")
                marks = {**attributes, CUT: "true"} if len(whole) > MOST_LINE else attributes
                lines.records.append(_line(whole[:MOST_LINE], now_ns, marks))
            used, skipping = end + 1, False
        lines.more |= len(data) == MOST_READ or len(lines.records) >= most
        lines.bytes += used
        offset = place.offset + used
        marked = min(offset, MARK_BYTES)
        return Place(place.device, place.inode, offset, marked, zlib.crc32(os.pread(file, marked, 0)), skipping)

    def _report(self, path: str, error: OSError) -> None:
        if path not in self._unreadable and not isinstance(error, FileNotFoundError):
            _log.warning("%s cannot be read: %s; it is tried again every round", path, error.strerror)
        self._unreadable.add(path)


def _paths(pattern: str) -> Iterator[str]:
    """The file, there or not; or the files that a pattern names."""
    if not glob.has_magic(pattern):
        yield pattern
        return
    yield from sorted(glob.glob(pattern))


def _sibling(path: str, place: Place) -> str | None:
    """The file that was at ``path`` before it was renamed."""
    folder, name = os.path.split(path)
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.startswith(name) and entry.name != name and entry.is_file():
                found = entry.stat()
                if (found.st_dev, found.st_ino) == (place.device, place.inode):
                    return entry.path
    return None


def _is_marked(file: int, place: Place) -> bool:
    return zlib.crc32(os.pread(file, place.mark_bytes, 0)) == place.mark


def _line(data: bytes, now_ns: int, attributes: Mapping[str, str]) -> Log:
    return Log(data.decode("utf-8", "replace"), now_ns, Severity.NOT_GIVEN, attributes)
