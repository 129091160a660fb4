"""Which log files there are, and which of them were read before under which name.

A file is its device and inode. Positions are kept by name, so names that have changed hands are sorted out here, before
anything is read: ``app.log`` that is now ``app.log.1`` takes its position with it.
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
"""Times a folder is looked through: a file that is renamed meanwhile can be missed."""


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
"""A path, and why it is not read."""


def found_files(sources: Sequence[LogSource], before: Iterable[str], report: Report) -> list[LogFile]:
    """The files that the sources name, each name once. One that was there before, or is named by itself, is among them
    even if it is not there: then its size is ``ABSENT``."""
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
            report(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "its name is no UTF-8")
            return None
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return LogFile(source, path)
    except OSError as error:
        report(path, error.strerror or str(error))
        return LogFile(source, path)
    if stat.S_ISDIR(about.st_mode) and path != source.path:
        return None  # a pattern meets folders, and does not mean them
    if not stat.S_ISREG(about.st_mode):
        # To open a pipe would wait for whoever writes to it, and a device may have no end.
        report(path, "it is no regular file")
        return None
    return LogFile(source, path, about.st_dev, about.st_ino, about.st_size)


@dataclass(frozen=True, slots=True)
class Known:
    """Positions by the names that files have now."""

    places: dict[str, Place]
    files: dict[str, LogFile]
    """Those that are there."""
    order: tuple[tuple[LogSource, str], ...]
    """What is to be looked at: files that were renamed first, since they are older than what took their names."""
    moves: dict[str, Place | None]
    """Positions that went with their files to other names, and None for the names that they left."""

    @classmethod
    def of(cls, before: Mapping[str, Place], found: Sequence[LogFile]) -> Self:
        there = {file.path: file for file in found if file.size != ABSENT}
        owners = {(place.device, place.inode): path for path, place in before.items()}
        places = dict(before)
        moves: dict[str, Place | None] = {}
        taken: set[tuple[int, int]] = set()
        renamed: list[LogFile] = []
        stayed: list[LogFile] = []
        # A name that kept its file owns it, whatever other names lead there.
        for file in sorted(found, key=lambda each: not _kept(each, before)):
            key = file.device, file.inode
            if file.size != ABSENT and key in taken:
                there.pop(file.path)
                continue  # another name of a file that is read already
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
    """The name beside ``path`` of the file that was there. An inode may have been given to another file since, so what
    was read of it must still be in it."""
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
    """Whether the file still begins as it did."""
    return zlib.crc32(os.pread(file, place.mark_bytes, 0)) == place.mark
