"""List log files and match them with the positions of earlier rounds.

A file is identified by device and inode, but positions are stored by name. Before anything is read, the position of a
renamed file moves to its new name: ``app.log`` that is now ``app.log.1`` keeps its position.
"""

import glob
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Self

from holdfast.base.config import LogSource

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
