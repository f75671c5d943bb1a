"""DuckDB's own reader against pyiceberg's: the same rows, or it declines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyroaring import BitMap64

from lake_consumer.iceberg.datasets import LakeDataset
from lake_consumer.query.engine import answer
from lake_consumer.reading.deletions import to_bitmap
from lake_consumer.reading.parquet_scan import (
    ScannedFile,
    duckdb_type,
    local_path,
    names_are_ids,
    plan_parquet_scan,
)
from lake_consumer.reading.relations import (
    ArrowRelation,
    ParquetRelation,
    Relation,
    UpTo,
    open_relation,
)

MOMENT = datetime(2025, 12, 8, 13, 45, 21, 719719)
VALUES: list[tuple[IcebergType, object]] = [
    (BooleanType(), True),
    (IntegerType(), -(2**31)),
    (LongType(), 2**63 - 1),
    (FloatType(), 1.5),
    (DoubleType(), -0.0),
    (DecimalType(38, 10), Decimal("-1234567890123456789012345678.0123456789")),
    (DateType(), date(1, 1, 1)),
    (TimestampType(), MOMENT),
    (TimestamptzType(), MOMENT.replace(tzinfo=UTC)),
    (StringType(), "a\nb\t'\"\0 ü 東"),
    (UUIDType(), UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11").bytes),
    (BinaryType(), b"\x00\xff"),
    (ListType(90, IntegerType(), False), [1, None, 3]),
    (ListType(91, StringType(), False), []),
    (MapType(92, StringType(), 93, StringType(), False), [("until", "infinity")]),
    (StructType(NestedField(94, "Ab", LongType()), NestedField(95, "c", StringType())),
     {"Ab": 1, "c": None}),
]  # fmt: skip


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    made.create_namespace("public")
    yield made
    made.engine.dispose()


def create(catalog: SqlCatalog, *fields: NestedField) -> Table:
    return catalog.create_table("public.t", Schema(*fields))


def append(table: Table, **columns: Sequence[object]) -> None:
    schema = table.schema().as_arrow()
    table.append(pa.table(columns, schema=schema))


def read(relation: Relation, sql: str = "SELECT * FROM t") -> pa.Table:
    with answer(sql, lambda _: ("public", "t"), lambda _: relation) as reader:
        return reader.read_all()


def native(table: Table) -> ParquetRelation:
    found = open_relation(table)
    assert isinstance(found, ParquetRelation)
    return found


def assert_same(table: Table) -> pa.Table:
    ours, theirs = read(native(table)), read(ArrowRelation(LakeDataset(table)))
    assert ours.schema == theirs.schema
    # Nulls and NaN aside, equal values in the same order.
    assert ours.to_pylist() == theirs.to_pylist()
    return ours


def test_values_of_every_type_are_the_same(catalog: SqlCatalog) -> None:
    """With nulls, and under names that need quotes."""
    fields = [
        NestedField(at, f'Column "{at}".', kind, required=False)
        for at, (kind, _) in enumerate(VALUES, start=1)
    ]
    table = create(catalog, *fields)
    columns = {f.name: [value, None] for f, (_, value) in zip(fields, VALUES, strict=True)}
    append(table, **columns)

    assert assert_same(table).num_rows == 2


def test_columns_are_found_by_their_id(catalog: SqlCatalog) -> None:
    """Names that were exchanged, a column that came later, one that left, and wider types."""
    table = create(
        catalog,
        NestedField(1, "a", IntegerType(), required=False),
        NestedField(2, "b", StringType(), required=False),
        NestedField(3, "c", DecimalType(5, 2), required=False),
        NestedField(4, "d", FloatType(), required=False),
        NestedField(5, "e", StringType(), required=False),
    )
    append(table, a=[1], b=["one"], c=[Decimal("1.25")], d=[0.1], e=["gone"])
    with table.update_schema() as change:
        change.rename_column("b", "was_b")
        change.delete_column("e")
        change.update_column("a", LongType())
        change.update_column("c", DecimalType(9, 2))
        change.update_column("d", DoubleType())
    with table.update_schema() as change:
        change.rename_column("a", "b")
        # A new column, not the one of this name that left.
        change.add_column("e", LongType())
        change.move_first("e")
    append(table, e=[7], b=[2**40], was_b=["two"], c=[Decimal("1234567.89")], d=[0.2])

    found = assert_same(table).sort_by("b")

    assert found.schema.names == ["e", "b", "was_b", "c", "d"]
    assert found["e"].to_pylist() == [None, 7]
    assert found["was_b"].to_pylist() == ["one", "two"]


def test_a_struct_may_grow(catalog: SqlCatalog) -> None:
    """As `new` and `old` of a change log do."""
    row = StructType(NestedField(3, "id", IntegerType(), required=False))
    table = create(catalog, NestedField(1, "new", row, required=False))
    append(table, new=[{"id": 1}, None])
    with table.update_schema() as change:
        change.add_column(("new", "v"), StringType())
        change.update_column(("new", "id"), LongType())
    append(table, new=[{"id": 2**40, "v": "x"}])

    found = assert_same(table)["new"].to_pylist()

    assert {"id": 1, "v": None} in found
    assert None in found


def test_a_struct_whose_field_was_renamed_is_left_to_pyiceberg(catalog: SqlCatalog) -> None:
    """DuckDB would look for the new name in old files, and find nothing."""
    row = StructType(NestedField(3, "a", IntegerType(), required=False))
    table = create(catalog, NestedField(1, "new", row, required=False))
    append(table, new=[{"a": 1}])
    with table.update_schema() as change:
        change.rename_column(("new", "a"), "b")

    relation = open_relation(table)

    assert isinstance(relation, ArrowRelation)
    assert read(relation)["new"].to_pylist() == [{"b": 1}]


def test_a_struct_with_odd_names_is_left_to_pyiceberg(catalog: SqlCatalog) -> None:
    """Iceberg's writers spell them in another way in files: `A_x20b`."""
    row = StructType(NestedField(3, "A b", IntegerType(), required=False))
    table = create(catalog, NestedField(1, "new", row, required=False))
    append(table, new=[{"A b": 1}])

    relation = open_relation(table)

    assert isinstance(relation, ArrowRelation)
    assert read(relation)["new"].to_pylist() == [{"A b": 1}]


def test_deleted_rows_are_left_out(catalog: SqlCatalog) -> None:
    """By file and by row number, under filters, aggregates and limits."""
    table = create(
        catalog,
        NestedField(1, "id", LongType(), required=False),
        # Names that DuckDB uses itself.
        NestedField(2, "file_row_number", StringType(), required=False),
        NestedField(3, "file_index", LongType(), required=False),
    )
    rows = 5_000
    for at in range(3):
        ids = [at * rows + n for n in range(rows)]
        append(table, id=ids, file_row_number=[str(n) for n in ids], file_index=ids)
    plain = native(table)
    first = [read(replace(plain, scan=replace(plain.scan, paths=(path,))))["id"][0].as_py()
             for path in plain.scan.paths]  # fmt: skip
    gone = [BitMap64(range(0, rows, 3)), None, BitMap64([0, rows - 1])]
    bitmaps = tuple(None if one is None else to_bitmap([one], rows) for one in gone)
    left = {
        start + n
        for start, deleted in zip(first, gone, strict=True)
        for n in range(rows)
        if deleted is None or n not in deleted
    }

    relation = replace(plain, bitmaps=bitmaps)

    assert set(read(relation)["id"].to_pylist()) == left
    assert read(relation, "SELECT count(*) AS n FROM t")["n"].to_pylist() == [len(left)]
    assert read(relation, f"SELECT id FROM t WHERE id = {first[0] + 3}").num_rows == 0
    assert read(relation, f"SELECT id FROM t WHERE id = {first[0] + 4}").num_rows == 1
    assert read(relation, "SELECT id FROM t LIMIT 3").num_rows == 3


def test_rows_beyond_a_bound_are_left_out(catalog: SqlCatalog) -> None:
    """As the table of cuts is read at a cut."""
    table = create(catalog, NestedField(1, "n", LongType(), required=False))
    append(table, n=[1, 2, 3])

    assert read(open_relation(table, only=UpTo("n", 2)))["n"].to_pylist() == [1, 2]


def test_a_column_that_files_lack_has_its_initial_default() -> None:
    """Format v3; the text is cast to the column's type, and nulls stay nulls."""
    fields = (
        NestedField(1, "a", LongType(), initial_default=5),
        NestedField(2, "b", BinaryType(), initial_default=b"\x00'"),
        NestedField(3, "c", BooleanType(), initial_default=False),
        NestedField(4, "d", StringType(), initial_default="it's"),
        NestedField(5, "e", StringType()),
    )

    found = plan_parquet_scan(Schema(*fields), [], [ScannedFile("/lake/x.parquet")])

    assert found is not None
    assert [column.default for column in found.columns] == [
        "5",
        "\\x00\\x27",
        "false",
        "it's",
        None,
    ]
    assert "default_value: 'it''s'" in found.sql()


DEFAULTS: list[tuple[IcebergType, object, object]] = [
    # Type, the default as Iceberg's metadata write it, and the value.
    (LongType(), 5, 5),
    (BooleanType(), False, False),
    (DoubleType(), 1.5, 1.5),
    (DecimalType(9, 2), "1.25", Decimal("1.25")),
    (StringType(), "it's \\x", "it's \\x"),
    (BinaryType(), "006127", b"\x00a'"),
    (DateType(), "2025-12-08", date(2025, 12, 8)),
    (TimestampType(), "2025-12-08T13:45:21.719719", MOMENT),
    (TimestamptzType(), "2025-12-08T13:45:21.719719+00:00", MOMENT.replace(tzinfo=UTC)),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS, ids=str)
def test_old_files_give_the_initial_default_and_new_files_their_nulls(
    catalog: SqlCatalog, kind: IcebergType, default: object, value: object
) -> None:
    """What was stored is stored, a null too."""
    table = create(catalog, NestedField(1, "id", LongType(), required=False))
    append(table, id=[1])
    with table.update_schema() as change:
        change.add_column("n", kind)
    append(table, id=[2], n=[None])
    added = {"id": 2, "name": "n", "type": str(kind), "required": False}
    added["initial-default"] = default
    schema = Schema(table.schema().fields[0], NestedField.model_validate(added))
    files = [ScannedFile(task.file.file_path) for task in table.scan().plan_files()]

    scan = plan_parquet_scan(schema, [schema], files)

    assert scan is not None
    found = read(ParquetRelation(scan), "SELECT n FROM t ORDER BY id")["n"].to_pylist()
    assert found == [value, None]


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///a/b c.parquet", "/a/b c.parquet"),
        ("file:/a/b", "/a/b"),
        ("/a/b", "/a/b"),
        ("s3://bucket/a", None),
        ("/a/*", None),
        ("/a/b[1]", None),
        ("file:///a%20b", None),
    ],
)
def test_only_plain_local_paths_are_read_by_duckdb(address: str, path: str | None) -> None:
    """It takes a list of patterns, and must not read a file that is not meant."""
    assert local_path(address) == path


def test_what_has_no_certain_type_is_declined() -> None:
    """At any depth, and with files that are not Parquet."""
    assert duckdb_type(ListType(2, TimeType(), False)) is None
    column = Schema(NestedField(1, "t", TimeType()))
    assert plan_parquet_scan(column, [column], []) is None
    number = Schema(NestedField(1, "n", LongType()))
    assert plan_parquet_scan(number, [number], [ScannedFile("/a", is_parquet=False)]) is None
    assert plan_parquet_scan(number, [number], [ScannedFile("/a")]) is not None


def test_names_in_structs_must_have_had_one_meaning() -> None:
    """Nor may they differ in case alone, or have a default."""

    def schema(*fields: NestedField) -> Schema:
        return Schema(NestedField(1, "new", StructType(*fields)))

    a, b = NestedField(2, "a", LongType()), NestedField(3, "b", LongType())
    assert names_are_ids([schema(a), schema(a, b), schema(b)])
    assert not names_are_ids([schema(a), schema(NestedField(4, "a", LongType()))])
    assert not names_are_ids([schema(a, NestedField(4, "A", LongType()))])
    assert not names_are_ids([schema(NestedField(2, "a", LongType(), initial_default=1))])
