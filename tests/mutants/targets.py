"""The modules that the promises rest on, each with the tests that have to see a fault in it."""

from __future__ import annotations

_BRIDGE, _LAKE, _SCHEMAS = "tests/unit/bridge", "tests/unit/lake_consumer", "tests/unit/schemas"
_FOLD = (f"{_LAKE}/test_blocks.py", f"{_LAKE}/test_fold.py", "tests/property/test_fold.py")

TARGETS: dict[str, tuple[str, ...]] = {
    "bridge.attnums": (f"{_BRIDGE}/test_attnums.py",),
    "bridge.gaps": (f"{_BRIDGE}/test_gaps.py",),
    "bridge.jetstream.risks": (f"{_BRIDGE}/test_plans.py",),
    "bridge.jetstream.tally": (f"{_BRIDGE}/test_batch.py", f"{_BRIDGE}/test_chain.py"),
    "bridge.progress": (f"{_BRIDGE}/test_progress.py",),
    "bridge.relations": (f"{_BRIDGE}/test_relations.py", f"{_BRIDGE}/test_hotpath.py"),
    "bridge.sources": (f"{_BRIDGE}/test_sources.py",),
    "bridge.supervisor": (f"{_BRIDGE}/test_supervisor.py",),
    "bridge.transactions": (
        f"{_BRIDGE}/test_transactions.py",
        f"{_BRIDGE}/test_pipeline.py",
        f"{_BRIDGE}/test_hotpath.py",
    ),
    "lake_consumer.app": (f"{_LAKE}/test_app.py",),
    "lake_consumer.batches": (f"{_LAKE}/test_batches.py",),
    "lake_consumer.care": (f"{_LAKE}/test_care.py",),
    "lake_consumer.columns": (f"{_LAKE}/test_evolution.py",),
    "lake_consumer.cuts": (f"{_LAKE}/test_cuts.py",),
    "lake_consumer.evolution": (f"{_LAKE}/test_evolution.py", f"{_LAKE}/test_tablestates.py"),
    "lake_consumer.fold": _FOLD,
    "lake_consumer.gaps": (f"{_LAKE}/test_gaps.py",),
    "lake_consumer.iceberg.blocks": _FOLD,
    "lake_consumer.iceberg.facts": _FOLD,
    "lake_consumer.iceberg.finding": (f"{_LAKE}/test_finding.py",),
    "lake_consumer.iceberg.keys": _FOLD,
    "lake_consumer.loads": (f"{_LAKE}/test_loads.py",),
    "lake_consumer.tablestates": (f"{_LAKE}/test_tablestates.py",),
    "lake_consumer.verify.canonical": (f"{_LAKE}/verify/test_parts.py",),
    "lake_consumer.verify.ranges": (f"{_LAKE}/verify/test_parts.py",),
    "lake_consumer.verify.replay": (f"{_LAKE}/verify/test_parts.py",),
    "lake_consumer.verify.rows": (f"{_LAKE}/verify/test_parts.py",),
    "lake_consumer.verify.visibility": (f"{_LAKE}/verify/test_parts.py",),
    "lake_consumer.watermark": (f"{_LAKE}/test_watermark.py",),
    "schemas.names": (f"{_SCHEMAS}/test_names.py",),
    "schemas.positions": (f"{_SCHEMAS}/test_positions.py",),
    "schemas.shapes": (f"{_SCHEMAS}/test_shapes.py",),
    "schemas.subjects": (f"{_SCHEMAS}/test_subjects.py",),
}
