"""Lines of logs: complete ones, each once, through rotation, truncation and restarts."""

import logging
import os
from pathlib import Path

import pytest

from holdfast.base.config import LogSource
from holdfast.telemetry.agent import tail
from holdfast.telemetry.agent.tail import CUT, MOST_LINE, PATH, LogFile, Tailer, found_files


class Desk:
    """A log, and an agent that can die."""

    def __init__(self, log: Path, *, from_start: bool = True) -> None:
        self.log = log
        self.source = LogSource(path=str(log), from_start=from_start, attributes={"app": "shop"})
        self.tailer = Tailer([self.source], {})

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def read(self, *, commit: bool = True, most: int = 100) -> list[str]:
        messages: list[str] = []
        while True:
            lines = self.tailer.read(5, most)
            messages += [record.message for record in lines.records]
            if commit:
                self.tailer.commit(lines)
            if not lines.more or not commit:
                return messages

    def die(self) -> None:
        self.tailer = Tailer([self.source], self.tailer.positions(), self.tailer.begun)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "app.log")


def test_complete_lines_are_read_until_they_are_queued(desk: Desk) -> None:
    desk.write("one\ntwo\nthr")
    (record, _) = desk.tailer.read(5, 10).records
    assert (record.attributes, record.time_ns) == ({"app": "shop", PATH: str(desk.log)}, 5)
    assert desk.read(commit=False) == desk.read() == ["one", "two"]
    assert desk.read() == []
    desk.write("ee\r\n")
    assert desk.read() == ["three"]
    with desk.log.open("ab") as file:
        file.write(b"caf\xe9\n\x00\n")
    assert desk.read() == ["caf\ufffd", "\x00"]


def test_a_log_that_was_there_before_is_read_from_its_end_and_later_ones_from_their_beginning(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "*.log", from_start=False)
    (tmp_path / "old.log").write_text("before\n")
    assert desk.read() == []
    (tmp_path / "old.log").write_text("before\nnew\n")
    (tmp_path / "late.log").write_text("first\n")
    assert sorted(desk.read()) == ["first", "new"]
    (tmp_path / "new.log").write_text("meanwhile\n")
    desk.die()
    assert desk.read() == ["meanwhile"]


@pytest.mark.parametrize("dies", [True, False])
def test_rotation_by_renaming_loses_nothing(desk: Desk, dies: bool) -> None:
    desk.write("one\n")
    assert desk.read() == ["one"]
    desk.write("two\n")
    desk.log.rename(desk.log.with_name("app.log.1"))
    if dies:
        desk.die()
    desk.log.touch()
    with desk.log.with_name("app.log.1").open("a") as old:
        old.write("three, by a process that has it open\n")
    assert desk.read() == ["two", "three, by a process that has it open"]
    desk.write("four\n")
    assert desk.read() == ["four"]
    assert desk.read() == []


def test_a_limit_of_lines_loses_none_of_several_rotated_files(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "*.log")
    for name in "abc":
        (tmp_path / f"{name}.log").write_text("one\n")
    assert desk.read() == ["one"] * 3
    for name in "abc":
        with (tmp_path / f"{name}.log").open("a") as log:
            log.write(f"two {name}\nthree {name}\n")
        (tmp_path / f"{name}.log").rename(tmp_path / f"{name}.log.1")
        (tmp_path / f"{name}.log").write_text(f"four {name}\n")
    read = desk.read(most=1)
    assert [line for line in read if line.endswith("a")] == ["two a", "three a", "four a"]
    assert len(set(read)) == len(read) == 9
    assert len(desk.tailer.positions()) == 3


def test_truncation_is_seen_even_if_the_file_has_grown_again(desk: Desk) -> None:
    for text in ("one\ntwo\n", "new\n", "other lines than before\nand longer\n"):
        desk.log.touch()
        os.truncate(desk.log, 0)
        desk.write(text)
        assert desk.read() == text.splitlines()


def test_a_line_that_is_too_long_is_cut_and_marked(desk: Desk) -> None:
    desk.write("x" * (MOST_LINE + 10) + "\nshort\n")
    lines = desk.tailer.read(5, 10)
    assert [len(record.message) for record in lines.records] == [MOST_LINE, 5]
    assert lines.records[0].attributes[CUT] == "true"
    assert CUT not in lines.records[1].attributes
    desk.tailer.commit(lines)
    desk.write("x" * (3 << 20))
    assert [len(message) for message in desk.read()] == [MOST_LINE]
    desk.die()
    desk.write("y" * 1_000 + "\nnext\n")  # the rest of an endless line is passed over
    assert desk.read() == ["next"]


def test_files_that_cannot_be_read_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log")).write_text("hidden\n")
    (tmp_path / "app.log").write_text("one\n")
    desk = Desk(tmp_path / "*.log")
    with caplog.at_level(logging.WARNING, logger="holdfast.agent"):
        assert desk.read() == ["one"]
        assert desk.read() == []
    reasons = sorted(record.message.partition("read: ")[2].partition(";")[0] for record in caplog.records)
    assert reasons == ["it is not a regular file", "its name is not UTF-8"]


def test_a_renamed_file_is_known_by_its_contents_and_not_by_its_name_or_inode(desk: Desk) -> None:
    desk.write("one\n")
    assert desk.read() == ["one"]
    desk.write("two\n")
    desk.log.rename(desk.log.with_name("2024-archived"))
    desk.write("three\n")
    assert desk.read() == ["two", "three"]
    desk.log.rename(desk.log.with_name("other"))
    desk.log.with_name("other").write_text("not a log, and longer than it was\n")
    desk.write("four\n")
    assert desk.read() == ["four"]


def test_a_file_with_two_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("one\n")
    os.link(tmp_path / "app.log", tmp_path / "hard.log")
    (tmp_path / "soft.log").symlink_to(tmp_path / "app.log")
    sources = [LogSource(path=str(tmp_path / name), from_start=True) for name in ("*.log", "app.log")]
    tailer = Tailer(sources, {})
    lines = tailer.read(5, 100)
    tailer.commit(lines)
    assert [record.message for record in lines.records] == ["one"]
    assert tailer.read(5, 100).records == []


def test_positions_of_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "*.log")
    for number in range(20):
        path = tmp_path / f"{number}.log"
        path.write_text("line\n")
        desk.read()
        path.unlink()
    desk.read()
    assert desk.tailer.positions() == {}


@pytest.mark.parametrize("dies", [False, True])
def test_files_that_are_renamed_while_they_are_looked_at_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    desk = Desk(tmp_path / "app.log*")
    written: list[str] = []
    looked = 0

    def write(name: str) -> None:
        written.append(f"line {len(written)}")
        with (tmp_path / name).open("a") as file:
            file.write(f"{written[-1]}\n")

    def rotate() -> None:
        for number in range(len(written), 0, -1):
            if (tmp_path / f"app.log.{number}").exists():
                (tmp_path / f"app.log.{number}").rename(tmp_path / f"app.log.{number + 1}")
        (tmp_path / "app.log").rename(tmp_path / "app.log.1")

    def look(*args: object) -> list[LogFile]:
        nonlocal looked
        found = found_files(*args)  # type: ignore[arg-type]  # passed through
        looked += 1
        if looked % 5 == 0:
            write("app.log")
            rotate()
            write("app.log.1")
            write("app.log")
        return found

    monkeypatch.setattr(tail, "found_files", look)
    read: list[str] = []
    write("app.log")
    for turn in range(30):
        write("app.log")
        read += desk.read()
        if dies and turn % 4 == 0:
            desk.die()
    looked = 0
    read += desk.read() + desk.read()
    assert sorted(read) == sorted(written)
