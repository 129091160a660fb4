"""Read the complete lines of log files, each line once.

A position is a file (device and inode), the offset after the last line that was queued, and a checksum of the file's
first bytes. It is written in the same entry as the batch with the lines (see ``queue``), so both become durable at
once.

* Rotation by renaming: the old file is found by its inode, under another name that is also read or among the files of
  its directory, and read to its end.
* Truncation: the file is shorter than the offset, or its first bytes have changed. It is read from its beginning.
* A line without a line feed stays in the file. A line longer than ``MOST_LINE`` is cut and marked; its rest is skipped.
* A file is read once, however many names and patterns lead to it. Positions are stored by name; before anything is
  read, the position of a renamed file moves to its new name: ``app.log`` that is now ``app.log.1`` keeps its position.

``read`` returns lines and new positions; the positions take effect with ``commit``. A file that cannot be read or is
not a regular file is reported once and tried again every round.
"""

import glob
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Self

from holdfast.base.codec import Document
from holdfast.base.config import LogSource
from holdfast.base.telemetry import logger
from holdfast.telemetry.records import Log, Severity

ABSENT = -1
SCANS = 3
"""How often a directory is listed to find a renamed file: one that is renamed meanwhile can be missed."""


@dataclass(frozen=True, slots=True)
class Place:
    device: int
    inode: int
    offset: int
    mark_bytes: int = 0
    """How many of the file's first bytes the checksum covers."""
    mark: int = 0
    skipping: bool = False
    """The rest of a line that was too long has still to be skipped."""

    def document(self) -> list[int]:
        return [self.device, self.inode, self.offset, self.mark_bytes, self.mark, int(self.skipping)]

    @classmethod
    def of(cls, found: object) -> "Place | None":
        if not isinstance(found, list) or len(found) != 6 or not all(isinstance(each, int) for each in found):
            return None
        device, inode, offset, mark_bytes, mark, skipping = found
        return cls(device, inode, offset, mark_bytes, mark, bool(skipping))


@dataclass(frozen=True, slots=True)
class LogFile:
    source: LogSource
    path: str
    device: int = 0
    inode: int = 0
    size: int = ABSENT

    def holds(self, place: Place) -> bool:
        return (self.device, self.inode) == (place.device, place.inode)


Report = Callable[[str, str], None]
"""Called with a path and the reason why it is not read."""


def found_files(sources: Sequence[LogSource], before: Iterable[str], report: Report) -> list[LogFile]:
    """The files that match the sources, each name once. A name without a pattern, and a name with a position in
    ``before``, is listed even if there is no such file: its size is then ``ABSENT``."""
    found: dict[str, LogFile] = {}
    for source in sources:
        for path in sorted(glob.glob(source.path)) if glob.has_magic(source.path) else [source.path]:
            if path not in found:
                file = _look_at(source, path, report)
                if file is not None:
                    found[path] = file
    for path in before:
        named_by = next((each for each in sources if fnmatch(path, each.path)), None)
        if path not in found and named_by is not None:
            found[path] = LogFile(named_by, path)
    return list(found.values())


def _look_at(source: LogSource, path: str, report: Report) -> LogFile | None:
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError:
            report(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "its name is not UTF-8")
            return None
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return LogFile(source, path)
    except OSError as error:
        report(path, error.strerror or str(error))
        return LogFile(source, path)
    if stat.S_ISDIR(about.st_mode) and path != source.path:
        return None  # a pattern may match directories, which are not log files
    if not stat.S_ISREG(about.st_mode):
        # Opening a pipe would wait for a writer, and a device may have no end.
        report(path, "it is not a regular file")
        return None
    return LogFile(source, path, about.st_dev, about.st_ino, about.st_size)


@dataclass(frozen=True, slots=True)
class CurrentFiles:
    """The files as they are named now, with their positions."""

    places: dict[str, Place]
    files: dict[str, LogFile]
    """The files that exist."""
    order: tuple[tuple[LogSource, str], ...]
    """The order of reading: renamed files first, since their lines are older."""
    moves: dict[str, Place | None]
    """Positions that moved to another name with their file, and None for their old names."""

    @classmethod
    def of(cls, before: Mapping[str, Place], found: Sequence[LogFile]) -> Self:
        there = {file.path: file for file in found if file.size != ABSENT}
        owners = {(place.device, place.inode): path for path, place in before.items()}
        places = dict(before)
        moves: dict[str, Place | None] = {}
        taken: set[tuple[int, int]] = set()
        renamed: list[LogFile] = []
        stayed: list[LogFile] = []
        # A name that still has its file comes first, whatever other names lead to the file.
        for file in sorted(found, key=lambda each: not _kept(each, before)):
            key = file.device, file.inode
            if file.size != ABSENT and key in taken:
                there.pop(file.path)
                continue  # another name of a file that is already listed
            taken.add(key)
            owner = owners.get(key)
            if file.size == ABSENT or owner is None or owner == file.path:
                stayed.append(file)
                continue
            renamed.append(file)
            places[file.path] = moves[file.path] = before[owner]
            moves.setdefault(owner)
        for path, place in moves.items():
            if place is None:
                del places[path]
        return cls(places, there, tuple((each.source, each.path) for each in (*renamed, *stayed)), moves)

    def is_at(self, path: str, place: Place) -> bool:
        return path in self.files and self.files[path].holds(place)


def _kept(file: LogFile, before: Mapping[str, Place]) -> bool:
    place = before.get(file.path)
    return place is not None and file.holds(place)


def renamed_to(path: str, place: Place) -> str | None:
    """The current path, in the same directory, of the file that ``path`` was. The inode may have been reused for
    another file, so the file must still begin with the bytes that were read."""
    for _ in range(SCANS):
        found = _renamed_to(path, place)
        if found is not None:
            return found
    return None


def _renamed_to(path: str, place: Place) -> str | None:
    folder, name = os.path.split(path)
    with suppress(FileNotFoundError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name == name or entry.inode() != place.inode or not entry.is_file(follow_symlinks=False):
                continue
            about = entry.stat(follow_symlinks=False)
            akin = place.mark_bytes > 0 or entry.name.startswith(name)
            if about.st_dev == place.device and about.st_size >= place.offset and akin and _marked(entry.path, place):
                return entry.path
    return None


def _marked(path: str, place: Place) -> bool:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return is_marked(file, place)
    finally:
        os.close(file)


def is_marked(file: int, place: Place) -> bool:
    """Whether the file still begins with the bytes of the checksum."""
    return zlib.crc32(os.pread(file, place.mark_bytes, 0)) == place.mark


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
