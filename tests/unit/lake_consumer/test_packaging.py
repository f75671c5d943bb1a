from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from lake_consumer.config import read_config
from lake_consumer.packaging import closure, submit_command, write_code, write_package


def test_the_code_can_be_imported_from_its_zip_alone(tmp_path: Path) -> None:
    """Executors have no checkout."""
    archive = write_code(tmp_path / "code.zip")

    # -I keeps the environment and the folder out; what is installed cannot win over the front.
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r});"
        "import lake_consumer.jetstream.source as a, schemas.events as b;"
        "print(a.__file__, b.__file__)"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert shown.split() == [
        f"{archive}/lake_consumer/jetstream/source.py", f"{archive}/schemas/events.py",
    ]  # fmt: skip


def test_the_same_code_is_the_same_zip(tmp_path: Path) -> None:
    """So that a cluster's cache, and a person, can tell whether anything changed."""
    first, second = write_code(tmp_path / "a.zip"), write_code(tmp_path / "b.zip")

    assert first.read_bytes() == second.read_bytes()


def test_dependencies_are_all_that_executors_import_and_no_more() -> None:
    """Spark is there already, and the driver's own libraries are of no use to executors."""
    found = closure(("nats-py", "msgpack", "zstandard", "pyarrow"))

    assert found == {"nats-py", "msgpack", "zstandard", "pyarrow"}
    assert "numpy" in closure(("pandas",))


def test_the_command_names_what_was_written_and_no_secret(tmp_path: Path) -> None:
    """It is made to be copied into a shell, and from there into a ticket."""
    environ = {
        "LAKE_WAREHOUSE": "s3://b/l", "AWS_SECRET_ACCESS_KEY": "s3cret",
        "LAKE_CATALOG_URI": "postgresql://me:s3cret@db/lake",
    }  # fmt: skip
    config = read_config({"spark_master": "spark://m:7077"}, environ, {})

    written = write_package(tmp_path, dependencies=False)
    command = submit_command(config, tmp_path, dependencies=False)

    assert all(str(path) in command for path in written)
    assert zipfile.is_zipfile(written[0])
    assert "--master spark://m:7077" in command
    assert "iceberg-aws-bundle" in command
    assert "s3cret" not in command
