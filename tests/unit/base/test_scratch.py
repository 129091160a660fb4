"""A folder lives as long as its owner, or a child to which it was given; then the next one removes it."""

import subprocess
import sys
import time
from pathlib import Path

from holdfast.base.scratch import Scratch, sweep

OWNER = """
import os, signal, subprocess, sys
from pathlib import Path
from holdfast.base.scratch import Scratch
mine = Scratch("room-", Path(sys.argv[1]))
(mine.path / "file").touch()
# The child ends when its standard input does, which is ours.
subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=(mine.descriptor,), stderr=subprocess.DEVNULL)
print(mine.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_scratch_directory_exists_until_it_is_closed(tmp_path: Path) -> None:
    mine, other = Scratch("room-", tmp_path), Scratch("other-", tmp_path)
    (mine.path / "folder").mkdir()
    assert mine.sweep() == other.sweep() == sweep("room-", tmp_path) == []
    mine.close()
    mine.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_killed_process_is_removed_after_its_child_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        owner.wait()
        mine = Scratch("room-", tmp_path)
        assert mine.sweep() == []  # the child lives
        assert owner.stdin is not None
        owner.stdin.close()
        while not (swept := mine.sweep()):
            time.sleep(0.01)  # the child is about to end
        assert (swept, left.exists(), mine.path.exists()) == ([left], False, True)
        mine.close()


def test_a_link_and_a_file_with_such_a_name_are_not_removed(tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.mkdir()
    (aim / "file").touch()
    (tmp_path / "room-link").symlink_to(aim)
    (tmp_path / "room-file").touch()
    assert sweep("room-", tmp_path) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["aim", "room-file", "room-link"]
