"""Read the complete lines of log files, each line once.

A position belongs to a file, which is known by its device and inode: the path where the file was last, the offset after
the last line that was queued, and a checksum of the file's first bytes. It is saved in the same transaction as the
batch with the lines, so both become durable at once.

* Rotation by renaming: a file keeps its position under any name that is also read. Otherwise it is looked for in its
  directory, and read until its successor has bytes: until then the writer may still append to it.
* Truncation: the file is shorter than the offset, or its first bytes have changed. It is read from its beginning.
* A line without a line feed stays in the file. A line longer than ``MOST_LINE`` is cut and marked; its rest is skipped.
* A file is read once, however many names and patterns lead to it.

``read`` returns lines and new positions; the positions take effect with ``commit``. A file that cannot be read or is
not a regular file is reported once and tried again every round.
"""

import glob
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from holdfast.base.codec import MALFORMED, Document
from holdfast.base.config import LogSource
from holdfast.base.telemetry import logger
from holdfast.telemetry.records import Log, Severity

MOST_LINE = 64 << 10
MOST_READ = 512 << 10
"""Bytes per file and round."""
MOST_BYTES = 2 << 20
"""Bytes per round of all files together: a batch must fit into a frame."""
MARK_BYTES = 256
LISTINGS = 8
SCANS = 3
"""How often a directory is listed to find a renamed file: one that is renamed meanwhile can be missed."""
PATH = "log.file.path"
CUT = "log.truncated"
_log = logger("agent")

FileId = str
"""Device and inode, such as ``2049:131``."""
Report = Callable[[str, str], None]
"""Called with a path and the reason why it is not read."""


@dataclass(frozen=True, slots=True)
class Position:
    path: str
    offset: int
    mark_bytes: int = 0
    """How many of the file's first bytes the checksum covers."""
    mark: int = 0
    skipping: bool = False
    """The rest of a line that was too long has still to be skipped."""

    def document(self) -> list[object]:
        return [self.path, self.offset, self.mark_bytes, self.mark, self.skipping]

    @classmethod
    def of(cls, document: Any) -> "Position":
        path, offset, mark_bytes, mark, skipping = document
        return cls(str(path), int(offset), int(mark_bytes), int(mark), bool(skipping))

    def is_of(self, file: int) -> bool:
        """Whether the file still begins with the bytes of the checksum, and has the bytes before the offset."""
        return os.fstat(file).st_size >= self.offset and zlib.crc32(os.pread(file, self.mark_bytes, 0)) == self.mark


@dataclass(frozen=True, slots=True)
class LogFile:
    id: FileId
    path: str
    source: LogSource
    size: int


@dataclass(slots=True)
class Lines:
    """Lines, and the positions after them. The position of a file that is not read any more is None."""

    records: list[Log] = field(default_factory=list)
    positions: dict[FileId, Position | None] = field(default_factory=dict)
    more: bool = False
    """Whether more lines can be read now."""
    bytes: int = 0


def found_files(sources: Sequence[LogSource], report: Report) -> list[LogFile]:
    """The files that match the sources; a file with several names is listed under each."""
    found: dict[str, LogFile] = {}
    for source in sources:
        for path in sorted(glob.glob(source.path)) if glob.has_magic(source.path) else [source.path]:
            file = None if path in found else _look_at(source, path, report)
            if file is not None:
                found[path] = file
    return list(found.values())


def _look_at(source: LogSource, path: str, report: Report) -> LogFile | None:
    try:
        path.encode()
        about = Path(path).stat()
    except UnicodeEncodeError:
        report(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "its name is not UTF-8")
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        report(path, error.strerror or str(error))
        return None
    if stat.S_ISDIR(about.st_mode) and path != source.path:
        return None  # a pattern may match directories, which are not log files
    if not stat.S_ISREG(about.st_mode):
        # Opening a pipe would wait for a writer, and a device may have no end.
        report(path, "it is not a regular file")
        return None
    return LogFile(_id(about), path, source, about.st_size)


class Tailer:
    def __init__(self, sources: Sequence[LogSource], saved: Mapping[str, object], begun: Sequence[str] = ()) -> None:
        """``saved`` and ``begun`` are the positions, and the sources already looked at, of an earlier process."""
        self._sources = tuple(sources)
        self._positions: dict[FileId, Position] = {}
        for name, document in saved.items():
            with suppress(*MALFORMED):
                self._positions[name] = Position.of(document)
        self._begun = {source.path for source in sources if source.path in begun}
        self._reported: set[str] = set()

    @property
    def begun(self) -> list[str]:
        """Sources that were looked at. A file that appears later in one of them is read from its beginning."""
        return sorted(self._begun)

    def read(self, now_ns: int, most_lines: int) -> Lines:
        """At most ``most_lines`` lines, fewer if they are long. Blocks."""
        reading = _Reading(Lines(), now_ns, most_lines)
        files = self._files()
        if files is None:
            return reading.lines
        self._add_new(files)
        unfinished = {
            position.path
            for name, position in self._positions.items()
            if name not in files and self._read_unlisted(name, position, files, reading)
        }
        # Files that were renamed come first, because their lines are older.
        for file in sorted(files.values(), key=lambda file: self._positions[file.id].path == file.path):
            if reading.is_full():
                reading.lines.more = True
                break
            if file.path not in unfinished:
                self._read_file(file, reading)
        return reading.lines

    def positions(self, lines: Lines | None = None) -> Document:
        """The positions, or those after these lines, as they are saved."""
        return {name: position.document() for name, position in self._after(lines or Lines()).items()}

    def commit(self, lines: Lines) -> None:
        """Call this when the lines were queued, or when there were none."""
        self._positions = self._after(lines)

    def _after(self, lines: Lines) -> dict[FileId, Position]:
        after = {**self._positions, **lines.positions}
        return {name: position for name, position in after.items() if position is not None}

    def _files(self) -> dict[FileId, LogFile] | None:
        """Each file once, under the name where it was last if it still has that name. A file that is renamed while the
        list is made may be missing or listed twice, so the list is made until two in a row are equal. None if no two
        are."""
        before: list[tuple[str, FileId]] | None = None
        for _ in range(LISTINGS):
            found = found_files(self._sources, self._report)
            now = [(file.path, file.id) for file in found]
            if now == before:
                files: dict[FileId, LogFile] = {}
                for file in found:
                    position = self._positions.get(file.id)
                    if file.id not in files or (position is not None and position.path == file.path):
                        files[file.id] = file
                return files
            before = now
        return None

    def _add_new(self, files: Mapping[FileId, LogFile]) -> None:
        """A file that exists when its source is first looked at is read from its end, unless the source says so."""
        for file in files.values():
            skips = file.source.path not in self._begun and not file.source.from_start
            self._positions.setdefault(file.id, Position(file.path, file.size if skips else 0))
        self._begun |= {source.path for source in self._sources}

    def _read_file(self, file: LogFile, reading: "_Reading") -> None:
        with self._reporting(file.path), _opened(file.path) as descriptor:
            if _id(os.fstat(descriptor)) != file.id:
                return  # renamed since it was listed; the next round finds it
            position = replace(self._positions[file.id], path=file.path)
            if not position.is_of(descriptor):
                _log.info("%s was truncated; it is read from its beginning", file.path)
                position = Position(file.path, 0)
            reading.lines.positions[file.id] = reading.take(descriptor, position, file.source.attributes)

    def _read_unlisted(
        self, name: FileId, position: Position, files: Mapping[FileId, LogFile], reading: "_Reading"
    ) -> bool:
        """Read more of a file that has none of the names that are read. Returns whether it may have more lines."""
        source = next((each for each in self._sources if fnmatch(position.path, each.path)), None)
        if source is None:
            reading.lines.positions[name] = None  # the settings do not name it any more
            return False
        if reading.is_full():
            reading.lines.more = True
            return True
        more = False
        with self._reporting(position.path):
            path = _renamed_to(name, position)
            if path is None:
                reading.lines.positions[name] = None  # the file does not exist any more
                return False
            with _opened(path) as descriptor:
                if _id(os.fstat(descriptor)) != name:
                    return True  # renamed again; the next round finds it
                after = reading.take(descriptor, position, source.attributes)
            more = after.offset > position.offset
            succeeded = any(file.path == position.path and file.size > 0 for file in files.values())
            reading.lines.positions[name] = None if succeeded and not more else after
            reading.lines.more |= more
        return more

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


@dataclass(slots=True)
class _Reading:
    """One round."""

    lines: Lines
    now_ns: int
    most_lines: int

    def is_full(self) -> bool:
        return len(self.lines.records) >= self.most_lines or self.lines.bytes >= MOST_BYTES

    def take(self, file: int, position: Position, attributes: Mapping[str, str]) -> Position:
        """Add the complete lines after ``position``. Returns the position after them."""
        lines = self.lines
        data = os.pread(file, MOST_READ, position.offset)
        attributes = {**attributes, PATH: position.path}
        used, skipping = 0, position.skipping
        while len(lines.records) < self.most_lines:
            end = data.find(b"\n", used)
            if end < 0:
                if len(data) - used > MOST_LINE or (skipping and len(data) > used):
                    if not skipping:
                        self._add(data[used:], attributes)
                    used, skipping = len(data), True
                break
            if not skipping:
                self._add(data[used:end].removesuffix(b"\r"), attributes)
            used, skipping = end + 1, False
        lines.more |= len(data) == MOST_READ or len(lines.records) >= self.most_lines
        lines.bytes += used
        offset = position.offset + used
        marked = min(offset, MARK_BYTES)
        return Position(position.path, offset, marked, zlib.crc32(os.pread(file, marked, 0)), skipping)

    def _add(self, line: bytes, attributes: Mapping[str, str]) -> None:
        if len(line) > MOST_LINE:
            line, attributes = line[:MOST_LINE], {**attributes, CUT: "true"}
        self.lines.records.append(Log(line.decode("utf-8", "replace"), self.now_ns, Severity.NOT_GIVEN, attributes))


def _renamed_to(name: FileId, position: Position) -> str | None:
    """The path, in the same directory, of a file that was renamed. The inode may have been reused for another file, so
    the file must still begin with the bytes that were read; if none were read, its name must begin as before."""
    folder, own_name = os.path.split(position.path)
    for _ in range(SCANS):
        with suppress(FileNotFoundError), os.scandir(folder or ".") as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None
                if about is None or _id(about) != name:
                    continue
                with _opened(entry.path) as file:
                    if position.is_of(file) and (position.mark_bytes or entry.name.startswith(own_name)):
                        return entry.path
    return None


def _id(about: os.stat_result) -> FileId:
    return f"{about.st_dev}:{about.st_ino}"


@contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("it is not a regular file")
        yield file
    finally:
        os.close(file)
