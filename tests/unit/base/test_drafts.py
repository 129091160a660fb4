"""Files are written beside their place, for this writer alone, and renamed into it."""

from pathlib import Path

import pytest

from holdfast.base.drafts import replacing


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with replacing(path) as draft:
        draft.write_text("a", encoding="utf-8")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "a"
    with pytest.raises(UnicodeEncodeError), replacing(path) as draft:
        draft.write_text("b\ud800", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "a"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "rows.csv"
    victim.write_text("mine", encoding="utf-8")
    (tmp_path / ".rows.csv.part").symlink_to(victim)
    path.symlink_to(victim)
    with replacing(path) as draft:
        draft.write_text("theirs", encoding="utf-8")
    assert victim.read_text(encoding="utf-8") == "mine"
    assert not path.is_symlink()
    assert path.read_text(encoding="utf-8") == "theirs"
