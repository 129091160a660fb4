"""Read the complete lines of log files, each line once.

A position is a file (device and inode), the offset after the last line that was queued, and a checksum of the file's
first bytes. It is written in the same entry as the batch with the lines (see ``queue``), so both become durable at
once.

* Rotation by renaming: the old file is found by its inode, under another name that is also read or among the files of
  its directory, and read to its end.
* Truncation: the file is shorter than the offset, or its first bytes have changed. It is read from its beginning.
* A line without a line feed stays in the file. A line longer than ``MOST_LINE`` is cut and marked; its rest is skipped.
* A file is read once, however many names and patterns lead to it.

``read`` returns lines and new positions; the positions take effect with ``commit``. A file that cannot be read or is
not a regular file is reported once and tried again every round.
"""

import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from holdfast.base.codec import Document
from holdfast.base.config import LogSource
from holdfast.base.telemetry import logger
from holdfast.telemetry.agent.logfiles import CurrentFiles, LogFile, Place, found_files, is_marked, renamed_to
from holdfast.telemetry.records import Log, Severity

MOST_LINE = 64 << 10
MOST_READ = 512 << 10
"""Bytes per file and round."""
MOST_BYTES = 2 << 20
"""Bytes per round of all files together: a batch must fit into a frame."""
MARK_BYTES = 256
LOOKS = 8
PATH = "log.file.path"
CUT = "log.truncated"
_log = logger("agent")


@dataclass(slots=True)
class Lines:
    """Lines, and the positions after them. The position of a file that does not exist any more is None."""

    records: list[Log] = field(default_factory=list)
    places: dict[str, Place | None] = field(default_factory=dict)
    more: bool = False
    """Whether more lines can be read now."""
    bytes: int = 0


class Tailer:
    def __init__(self, sources: Sequence[LogSource], known: Mapping[str, object], begun: Sequence[str] = ()) -> None:
        """``known`` and ``begun`` are the positions, and the sources already looked at, of an earlier process."""
        self._sources = tuple(sources)
        self._places = {path: place for path, found in known.items() if (place := Place.of(found)) is not None}
        self._begun = {source.path for source in sources if source.path in begun or self._knows(source)}
        self._unsaved: set[str] = set()
        self._reported: set[str] = set()

    def _knows(self, source: LogSource) -> bool:
        return any(fnmatch(path, source.path) for path in self._places)

    @property
    def begun(self) -> list[str]:
        """Sources that were looked at. A file that appears later in one of them is read from its beginning."""
        return sorted(self._begun)

    def read(self, now_ns: int, most_lines: int) -> Lines:
        """At most ``most_lines`` lines, fewer if they are long. Blocks."""
        lines = Lines()
        found = self._look()
        if found is None:
            return lines
        known = CurrentFiles.of(self._places, found)
        self._skip_what_was_there(known)
        lines.places.update(known.moves)
        for source, path in known.order:
            if len(lines.records) >= most_lines or lines.bytes >= MOST_BYTES:
                lines.more = True
                break
            with self._reporting(path):
                place = known.places.get(path)
                if place is not None and not known.is_at(path, place):
                    place = self._finish_rotated(source, path, place, known, lines, now_ns, most_lines)
                    if place is None:
                        continue
                if path in known.files:
                    self._read_file(source, known.files[path], place, lines, now_ns, most_lines)
        return lines

    def _look(self) -> list[LogFile] | None:
        """A consistent list of the files: a file that is renamed while the list is made may be missing or listed twice,
        so the list is made until two in a row are equal. None if no two are."""
        before: list[tuple[str, int, int]] | None = None
        for _ in range(LOOKS):
            found = found_files(self._sources, self._places, self._report)
            now = [(file.path, file.device, file.inode) for file in found]
            if now == before:
                return found
            before = now
        return None

    def commit(self, lines: Lines) -> None:
        """Call this when the lines were queued, or when there were none."""
        for path, place in lines.places.items():
            if self._places.get(path) == place:
                continue
            self._unsaved.add(path)
            if place is None:
                del self._places[path]
            else:
                self._places[path] = place

    def saved(self) -> None:
        """Call this when what ``changes`` returned is durable."""
        self._unsaved.clear()

    def changes(self, lines: Lines) -> Document:
        """The positions that must become durable with a batch of these lines; None for a file that does not exist."""
        found: dict[str, Place | None] = {path: self._places.get(path) for path in self._unsaved}
        found |= {path: place for path, place in lines.places.items() if self._places.get(path) != place}
        return {path: None if place is None else place.document() for path, place in found.items()}

    def positions(self) -> Document:
        return {path: place.document() for path, place in self._places.items()}

    def _skip_what_was_there(self, known: CurrentFiles) -> None:
        """Of a source that was never looked at, what its files hold by now is not sent, unless it is asked for."""
        for source, path in known.order:
            if source.path not in self._begun and not source.from_start and path in known.files:
                file = known.files[path]
                place = known.places.setdefault(path, Place(file.device, file.inode, file.size))
                if path not in self._places:
                    self._places[path] = place
                    self._unsaved.add(path)
        self._begun |= {source.path for source in self._sources}

    def _read_file(
        self, source: LogSource, found: LogFile, place: Place | None, lines: Lines, now_ns: int, most: int
    ) -> None:
        with _opened(found.path) as file:
            about = os.fstat(file)
            if (about.st_dev, about.st_ino) != (found.device, found.inode):
                return  # renamed since it was listed; the next round finds it
            if place is None or not found.holds(place):
                place = Place(about.st_dev, about.st_ino, 0)
            elif place.offset > about.st_size or not is_marked(file, place):
                _log.info("%s was truncated; it is read from its beginning", found.path)
                place = replace(place, offset=0, mark_bytes=0, mark=0, skipping=False)
            lines.places[found.path] = self._take(source, found.path, file, place, lines, now_ns, most)

    def _finish_rotated(
        self, source: LogSource, path: str, place: Place, known: CurrentFiles, lines: Lines, now_ns: int, most: int
    ) -> Place | None:
        """Read the rest of a rotated file. Returns its position once it is finished, otherwise None. It is not finished
        before the new file has bytes: until then the writer may still append to the old one."""
        renamed = renamed_to(path, place)
        if renamed is not None:
            with _opened(renamed) as file:
                if os.fstat(file).st_ino != place.inode:
                    return None  # renamed again meanwhile
                after = self._take(source, path, file, place, lines, now_ns, most)
            if after.offset > place.offset:
                lines.places[path] = after
                lines.more = True
                return None
            if any(fnmatch(renamed, each.path) for each in self._sources):
                lines.places[renamed] = after  # from now on it is listed under that name, as already read
        elif path not in known.files:
            lines.places[path] = None  # the file does not exist any more
            return None
        begun = path in known.files and known.files[path].size > 0
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

    @contextmanager
    def _reporting(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            return  # removed after it was listed
        except OSError as error:
            self._report(path, error.strerror or str(error))
        else:
            self._reported.discard(path)

    def _report(self, path: str, reason: str) -> None:
        if path not in self._reported:
            _log.warning("%s cannot be read: %s; retried every round", path, reason)
        self._reported.add(path)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("it is not a regular file")
        yield file
    finally:
        os.close(file)


def _line(data: bytes, now_ns: int, attributes: Mapping[str, str]) -> Log:
    return Log(data.decode("utf-8", "replace"), now_ns, Severity.NOT_GIVEN, attributes)
