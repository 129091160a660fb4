"""What keeps Spark from starting is said in one line; without PySpark everything else works."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import Invalid
from holdfast.pipeline.engine.session import _settings, check_master, check_ready, read_conf
from holdfast.pipeline.errors import NoJava, WrongMaster
from tests.integration.servers import free_port


@pytest.mark.parametrize("master", ["nowhere", "local[x]", "local[0]", "spark://host", "http://host:1", "local[2"])
def test_what_can_be_no_master_is_refused_before_anything_starts(master: str) -> None:
    with pytest.raises(WrongMaster, match="is not a Spark master"):
        check_master(master)
    assert check_master("local[2,3]") == "local[2,3]"


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    unreachable = ("127.0.0.1:99999", "no..name:7077", "127.0.0.1:1,127.0.0.1:")
    for master in (f"sc://127.0.0.1:{free_port()}", *(f"spark://{place}" for place in unreachable)):
        with pytest.raises(WrongMaster, match="no Spark master answers there"):
            check_ready(master)


def test_of_several_masters_one_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as standby:
        check_ready(f"sc://127.0.0.1:{free_port()},127.0.0.1:{standby.getsockname()[1]}")
        with standby.accept()[0] as asked:
            assert asked.recv(1) == b""


def test_missing_or_old_java_is_one_line_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="Java cannot be run") as caught:
        check_ready("local[1]")
    assert "JAVA_HOME" in (caught.value.remedy or "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoJava, match="there is none"):
        check_ready("local[1]")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJava, match="17 or newer"):
        check_ready("local[1]")


def test_options_of_java_are_added_to_ours_and_other_settings_replace_them(tmp_path: Path) -> None:
    asked = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.driver.memory": "2g", "spark.x": "y"}
    found = _settings("local[1]", asked, tmp_path, verbose=False)
    options = found["spark.driver.extraJavaOptions"].split()
    assert (options[-1], f"-Djava.io.tmpdir={tmp_path}" in options) == ("-Dmine=1", True)
    assert (found["spark.driver.memory"], found["spark.x"]) == ("2g", "y")


def test_a_setting_of_spark_has_a_name_and_a_value() -> None:
    assert read_conf("spark.speculation=true") == {"spark.speculation": "true"}
    with pytest.raises(Invalid, match="is no setting of Spark"):
        read_conf("speculation")


WITHOUT = """
import sys
sys.modules["pyspark"] = None
import asyncio
import holdfast
from holdfast import pipeline
from holdfast.pipeline.errors import NoSpark
from holdfast.pipeline.engine.session import start

async def main():
    async with holdfast.open("memory:") as hf:
        await pipeline.run(hf.store, ["derive"])
asyncio.run(main())
try:
    start("local[1]")
except NoSpark as error:
    print(error, "|", error.remedy)
"""


def test_without_pyspark_everything_but_spark_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "PySpark is not installed | pip install 'holdfast[spark]', or use --master local\n"
