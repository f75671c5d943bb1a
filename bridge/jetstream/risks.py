"""Which settings of an existing stream or bucket weaken a promise: one row each. Pure.

A row says what is risked and the command that mends it. Where a change could be lost the bridge
does not start; everything else it warns of and lives with: an administrator may have reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nats.js.api import (
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from schemas.streams import CDC_STREAM, BucketSpec, StreamSpec


@dataclass(frozen=True, slots=True)
class Risk:
    """A setting that weakens a promise, and how to mend it."""

    where: str
    what: str
    mend: str
    loses_changes: bool = False

    def __str__(self) -> str:
        return f"{self.where} {self.what}: {self.mend}"


@dataclass(frozen=True, slots=True)
class _Row:
    present: Callable[[StreamConfig], bool]
    what: str
    mend: str
    loses: bool = False


def _can_be_full(found: StreamConfig) -> bool:
    return any((limit or 0) > 0 for limit in (found.max_bytes, found.max_msgs))


def _drops_when_full(found: StreamConfig) -> bool:
    return found.discard != DiscardPolicy.NEW and _can_be_full(found)


def _drops_by_subject(found: StreamConfig) -> bool:
    # `discard new` is about the whole stream: a subject's oldest message still makes room.
    refuses = found.discard == DiscardPolicy.NEW and found.discard_new_per_subject
    return (found.max_msgs_per_subject or 0) > 0 and not refuses


def _remembers_longer_than_it_keeps(found: StreamConfig) -> bool:
    return 0 < (found.max_age or 0) < found.duplicate_window


_REMAKE = "let consumers read it to its end, then nats stream rm {name}; the bridge makes it anew"

_STREAM_ROWS = (
    _Row(_drops_when_full, "discards old messages when full, read or not",
         "nats stream edit {name} --discard new", loses=True),
    _Row(lambda f: f.discard != DiscardPolicy.NEW and not _can_be_full(f),
         "would discard old messages if it had a limit", "nats stream edit {name} --discard new"),
    _Row(_drops_by_subject, "keeps only so many messages of a subject, read or not",
         "nats stream edit {name} --max-msgs-per-subject=-1", loses=True),
    _Row(lambda f: f.storage == StorageType.MEMORY,
         "is kept in memory and is gone when nats-server stops",
         _REMAKE, loses=True),
    _Row(lambda f: f.retention == RetentionPolicy.INTEREST,
         "keeps a message only while somebody waits for it",
         "nats stream edit {name} --retention limits", loses=True),
    _Row(lambda f: f.retention == RetentionPolicy.WORK_QUEUE,
         "removes what one consumer has read: others miss it, and the bridge cannot see what it has"
         " stored", "nats stream edit {name} --retention limits", loses=True),
    _Row(lambda f: f.no_ack, "does not say what it has stored",
         "nats stream edit {name} --ack", loses=True),
    _Row(lambda f: f.persist_mode == PersistMode.ASYNC,
         "answers before it has written anything, so a crash of nats-server loses changes",
         _REMAKE, loses=True),
    _Row(lambda f: f.sealed or f.mirror is not None, "takes no messages from the bridge",
         _REMAKE, loses=True),
    _Row(_remembers_longer_than_it_keeps, "remembers message ids longer than messages, so a change"
         " that expired cannot be sent again", "nats stream edit {name} --dupe-window 2m"),
    _Row(lambda f: f.subject_transform is not None,
         "stores messages under other subjects, where neither the bridge nor consumers look",
         "nats stream edit {name} and remove its subject transform", loses=True),
)  # fmt: skip


def stream_risks(spec: StreamSpec, found: StreamConfig) -> list[Risk]:
    """Name every setting of an existing stream that weakens a promise."""
    return [
        Risk(
            f"stream {spec.name}",
            row.what,
            row.mend.format(name=spec.name),
            # INIT holds copies of rows; a snapshot that is lost can be asked for again.
            loses_changes=row.loses and spec.name == CDC_STREAM.name,
        )
        for row in _STREAM_ROWS
        if row.present(found)
    ]


def bucket_risks(spec: BucketSpec, found: StreamConfig) -> list[Risk]:
    """Name every setting of an existing bucket that takes shapes or dictionaries from readers."""
    where, name, risks = f"bucket {spec.name}", f"KV_{spec.name}", []
    if 0 < found.max_msgs_per_subject < spec.history:
        risks.append(
            Risk(
                where,
                f"keeps {found.max_msgs_per_subject} revisions of {spec.history}"
                ", so readers of older changes miss their shape",
                f"nats stream edit {name} --max-msgs-per-subject {spec.history}",
            )
        )
    if found.storage == StorageType.MEMORY:
        risks.append(
            Risk(
                where,
                "is kept in memory and is gone when nats-server stops",
                f"delete it with nats kv del {spec.name}; the bridge makes it anew on disk",
            )
        )
    if found.max_age:
        risks.append(
            Risk(
                where,
                f"forgets its entries after {found.max_age:g} s",
                f"nats stream edit {name} --max-age 0",
            )
        )
    return risks


def uncovered(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Give the subjects that none of a stream's patterns covers."""
    return [subject for subject in wanted if not any(covers(wide, subject) for wide in found)]


def covers(wide: str, narrow: str) -> bool:
    """Say whether every subject that matches `narrow` also matches `wide`."""
    ours, theirs = wide.split("."), narrow.split(".")
    for place, part in enumerate(ours):
        if place >= len(theirs):
            return False
        if part == ">":
            return True
        if theirs[place] == ">" or part not in ("*", theirs[place]):
            return False
    return len(ours) == len(theirs)
