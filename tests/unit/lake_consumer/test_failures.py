from __future__ import annotations

from lake_consumer.errors import MessagesMissing, SparkFailed
from lake_consumer.iceberg.failures import translate


def test_an_error_of_ours_comes_back_from_an_executor_as_itself() -> None:
    """The remedy belongs to the error, and Spark only passes text on."""
    text = (
        "Job aborted due to stage failure: Traceback (most recent call last):\n"
        '  File "reader.py", line 1, in _missing\n'
        "lake_consumer.errors.MessagesMissing: stream CDC no longer holds sequence 5-7\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )

    error = translate(text)

    assert isinstance(error, MessagesMissing)
    assert str(error) == "stream CDC no longer holds sequence 5-7"


def test_a_failure_of_spark_is_told_by_its_deepest_cause() -> None:
    """The first line of a Java trace says that something failed, the last cause says what."""
    text = (
        "An error occurred while calling o99.append.\n: java.lang.RuntimeException: outer\n"
        "\tat somewhere\nCaused by: java.io.IOException: disk is full\n\tat deeper\n"
    )

    error = translate(text)

    assert isinstance(error, SparkFailed)
    assert "disk is full" in str(error)


def test_an_exception_of_java_alone_is_named() -> None:
    """py4j's first line only says which call it was."""
    text = (
        "An error occurred while calling o779.createTable.\n"
        ": org.apache.iceberg.exceptions.ForbiddenException: Forbidden: who?\n\tat a.B(B.java:1)\n"
    )

    assert "ForbiddenException: Forbidden: who?" in str(translate(text))
