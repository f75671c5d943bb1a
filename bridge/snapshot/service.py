"""Serves snapshots beside the pipeline, for as long as this bridge has the slot.

Equal requests share one snapshot, different ones run side by side up to a limit. A snapshot that
fails says so on `init.error` and never has a meta; its failure is never the pipeline's. What was
begun by a bridge that died is found at the next start, and told as failed then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Mapping
from enum import Enum
from typing import Any

from bridge.errors import BridgeError, Disposition, reason_of
from bridge.jetstream import control
from bridge.jetstream.dictionaries import DictionaryStore
from bridge.jetstream.oversize import OversizeStore
from bridge.jetstream.registry import Registry
from bridge.jetstream.snapshots import Asked, InitStream, StoredRequest
from bridge.postgres import connection, copying
from bridge.snapshot.failures import NOTICE_SECONDS, Failures
from bridge.snapshot.requests import Rejected, SnapshotRequest, new_snapshot_id, parse_request
from bridge.snapshot.taking import Helpers, SnapshotMeans, Taking, plan_table
from bridge.status import SnapshotProgress, Status
from schemas.names import BadToken, TableName
from schemas.positions import Lsn
from schemas.shapes import TableShape
from schemas.snapshots import SnapshotName, failure

WAITING_AT_MOST = 100
RECONNECT_SECONDS = 1.0
TELL_EVERY_SECONDS = 1.0
LOG_EVERY_SECONDS = 15.0
STORED_EVERY_SECONDS = 0.1

UNFORESEEN_AT_MOST = 3
"""How many times a stored request is tried that fails as nobody thought of."""

ASK_AGAIN = "Ask again; a new snapshot has a new id."

_log = logging.getLogger("bridge.snapshot")


async def serve_snapshots(means: SnapshotMeans, status: Status) -> None:
    """Serve until cancelled, over a connection to NATS of its own that is made again when lost."""
    while True:
        try:
            await _serve_connected(means, status)
        except BridgeError as error:
            _log.warning("snapshots are not served: %s", error)
        except Exception:
            # The pipeline goes on whatever this is, and so does the next try.
            _log.exception("snapshots are not served")
        await asyncio.sleep(RECONNECT_SECONDS)


async def _serve_connected(means: SnapshotMeans, status: Status) -> None:
    client = await control.connect(means.nats)
    try:
        js = client.jetstream(timeout=control.REQUEST_TIMEOUT_SECONDS)
        init = InitStream(client, js, means.codec, means.nats)
        oversize = OversizeStore(client, js, means.oversize)
        dictionaries = DictionaryStore(js, means.nats)
        registry = Registry(js, means.codec, oversize, dictionaries, means.source_id)

        async def register(shape: TableShape, lsn: int) -> int:
            with control.translated(means.nats):
                return await registry.register(shape, lsn)

        helpers = Helpers(
            oversize=oversize, dictionaries=dictionaries, register=register, cdc_end=init.cdc_end
        )
        service = SnapshotService(means, helpers, init, status)
        try:
            await service.start()
            await init.until_lost()
        finally:
            await service.close()
    finally:
        await client.close()


class Outcome(Enum):
    """How a snapshot ended, for whoever waits for it."""

    SETTLED = "complete, or failed in a way that trying again would not mend"
    AGAIN = "failed, and worth another try"
    UNFORESEEN = "failed as nobody thought of; tried again a few times, not for ever"


class Running:
    """A snapshot that was asked for and has not ended."""

    def __init__(self, request: SnapshotRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.progress = SnapshotProgress(str(request.table), new_snapshot_id())
        self.opened: asyncio.Future[SnapshotName] = loop.create_future()
        self.ended: asyncio.Future[Outcome] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.is_complete = False
        # Nobody may be waiting, and then nobody needs to hear.
        self.opened.add_done_callback(lambda done: done.cancelled() or done.exception())

    def refuse(self, error: BaseException) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)

    def end(self, outcome: Outcome) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)


class SnapshotService:
    """Takes requests, runs snapshots, tells how they went."""

    def __init__(
        self, means: SnapshotMeans, helpers: Helpers, init: InitStream, status: Status
    ) -> None:
        self._means = means
        self._helpers = helpers
        self._init = init
        self._status = status
        self._failures = Failures(init, status.snapshot_totals)
        self._running: dict[SnapshotRequest, Running] = {}
        self._begun: set[str] = set()
        self._is_closing = False
        self._room = asyncio.Semaphore(means.limits.side_by_side)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._init.listen(self._on_request, self._on_cancel)
        _log.info("serving snapshots")
        self._spawn(self._serve_stored_requests(), "stored requests")
        self._spawn(self._failures.tell_again(), "failures")

    async def close(self) -> None:
        """End what runs, and say so where that is still possible."""
        tasks = [running.task for running in self._running.values() if running.task]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2 * NOTICE_SECONDS)
            # Stored requests are handed back by tasks of their own.
            await asyncio.sleep(0.05)
        self._is_closing = True
        while self._tasks:
            # More than once: nats-py may answer a cancellation with an error of its own.
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=0.5)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.warning("%s: %s", task.get_name(), error)

    async def _on_request(self, asked: Asked) -> None:
        # Not here: answering waits for the export, and the next message must not.
        self._spawn(self._serve(asked), "request")

    async def _serve(self, asked: Asked) -> None:
        try:
            request = parse_request(asked.token, asked.body)
            if request not in self._running and len(self._running) >= WAITING_AT_MOST:
                raise Rejected(f"{len(self._running)} snapshots are waiting already; ask later")
            running = self._begin_or_join(request)
            name = await asyncio.shield(running.opened)
        except (Rejected, BridgeError) as why:
            _log.info("snapshot of %s rejected: %s", asked.token[:200], why)
            await asked.answer(
                {"status": "rejected", "error": str(why), "available_tables": await self._names()}
            )
            return
        await asked.answer(name.accepted())

    async def _names(self) -> list[str]:
        """Give the tokens of the tables that can be asked for."""
        try:
            async with await connection.connect(self._means.postgres) as clerk:
                names = await copying.published_names(clerk, self._means.publication)
        except Exception as error:
            _log.debug("published tables: %s", error)
            return []
        return [name.token for name in names]

    async def _on_cancel(self, asked: Asked) -> None:
        """Cancel every snapshot of a table; ids tell which they were."""
        with contextlib.suppress(BadToken):
            table = TableName.from_token(asked.token)
            cancelled = [r for r in self._running.values() if r.request.table == table]
            for running in cancelled:
                running.is_cancelled = True
                if running.task:
                    running.task.cancel()
            ids = [running.progress.snapshot_id for running in cancelled]
            await asked.answer({"status": "cancelled", "snapshot_ids": ids})

    async def _serve_stored_requests(self) -> None:
        told = ""
        while not self._is_closing:
            try:
                await self._tell_abandoned()
                async for stored in self._init.stored_requests():
                    told = ""
                    self._spawn(self._serve_stored(stored), "stored request")
            except Exception as error:
                # Whatever it is, the next ones must be served; and nobody needs to read it again.
                why = reason_of(error)
                _log.log(logging.DEBUG if why == told else logging.WARNING,
                         "stored requests for snapshots are not served: %s", why)  # fmt: skip
                told = why
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _serve_stored(self, stored: StoredRequest) -> None:
        """Serve a request that is only acknowledged when nothing more can be done for it."""
        working = asyncio.create_task(stored.working(), name="working")
        handed_back = self._status.snapshot_totals.handed_back
        key = (stored.token, stored.body.hex())
        handed_back.discard(key)
        try:
            try:
                request = parse_request(stored.token, stored.body)
            except Rejected as why:
                await self._reject_stored(stored.token, why)
                outcome = Outcome.SETTLED
            else:
                outcome = await asyncio.shield(self._begin_or_join(request, tell=True).ended)
            is_over = outcome is Outcome.UNFORESEEN and stored.tries >= UNFORESEEN_AT_MOST
            if outcome is Outcome.SETTLED or is_over:
                await stored.done()
            else:
                handed_back.add(key)
                await stored.again()
        finally:
            working.cancel()

    async def _reject_stored(self, token: str, why: Rejected) -> None:
        _log.warning("stored request for a snapshot of %s rejected: %s", token[:200], why)
        with contextlib.suppress(BadToken):
            table = TableName.from_token(token)
            fields = failure(new_snapshot_id(), str(why), _advice(why))
            await self._failures.tell(table, fields)

    def _begin_or_join(self, request: SnapshotRequest, *, tell: bool = False) -> Running:
        """Find the snapshot that an equal request has begun, or begin one."""
        running = self._running.get(request)
        if running is None:
            running = self._running[request] = Running(request)
            self._begun.add(running.progress.snapshot_id)
            self._status.snapshots.append(running.progress)
            running.task = self._spawn(self._run(running, tell), f"snapshot of {request.table}")
        return running

    async def _run(self, running: Running, tell: bool) -> None:
        """Take one snapshot; whatever happens ends here and is told."""
        try:
            await self._take_whole(running)
            self._status.snapshot_totals.completed += 1
            running.end(Outcome.SETTLED)
        except asyncio.CancelledError:
            why = "cancelled on request" if running.is_cancelled else "the bridge's session ended"
            await self._fail(running, Rejected(why), tell=True)
            running.end(Outcome.SETTLED if running.is_cancelled else Outcome.AGAIN)
        except Exception as raised:
            error = _first_error(raised)
            await self._fail(running, error, tell=tell or not isinstance(error, Rejected))
            running.end(_outcome(error))
        finally:
            self._running.pop(running.request, None)
            self._status.snapshots.remove(running.progress)

    async def _take_whole(self, running: Running) -> None:
        try:
            await self._take(running)
        except (Exception, asyncio.CancelledError):
            # Behind its meta a snapshot is whole, whatever becomes of the connections it used.
            if not running.is_complete:
                raise

    async def _take(self, running: Running) -> None:
        await self._check(running.request)
        async with self._room:
            progress = running.progress
            progress.started = time.monotonic()
            taking = Taking(running.request, progress, self._means, self._helpers)
            telling = asyncio.create_task(self._tell(running), name="progress")
            try:
                name = await taking.open()
                await self._init.started(name.table, name.start())
                running.opened.set_result(name)
                _log.info("snapshot %s of %s at %s begins", name.snapshot_id, name.table,
                          Lsn(name.lsn))  # fmt: skip
                chunks, checksum = await taking.copy(name)
                meta = name.meta(
                    batch_count=chunks,
                    row_count=progress.rows,
                    checksum=str(checksum),
                    chunks_checksum=checksum.of_chunks,
                    cdc_complete=await self._until_stored(name.lsn),
                    schema_revision=taking.revision,
                    whole=running.request.is_whole,
                )
                await self._complete(running, meta)
            finally:
                telling.cancel()
                await taking.close()
        self._note_complete(progress)

    async def _complete(self, running: Running, meta: Mapping[str, Any]) -> None:
        """Store the meta, whoever wants to end this meanwhile.

        A meta that is stored cannot be taken back: whatever comes behind it is no failure any more.
        """
        storing = asyncio.ensure_future(self._init.completed(running.request.table, meta))
        while not storing.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({storing})
        storing.result()
        running.is_complete = True

    async def _until_stored(self, lsn: int) -> int:
        """Wait until the stream has all that committed below an LSN; give where it then ends.

        The pipeline's position follows keepalives too, so this does not wait for a next change.
        """
        while self._status.acked_lsn < lsn:
            await asyncio.sleep(STORED_EVERY_SECONDS)
        return await self._helpers.cdc_end()

    async def _check(self, request: SnapshotRequest) -> None:
        """Refuse at once what cannot be served, also while others are being served."""
        async with await connection.connect(self._means.postgres) as clerk:
            with connection.translated(self._means.postgres):
                await plan_table(clerk, self._means.publication, request)

    def _note_complete(self, progress: SnapshotProgress) -> None:
        totals = self._status.snapshot_totals
        totals.rows += progress.rows
        totals.bytes += progress.bytes
        _log.info("snapshot %s of %s complete: %s", progress.snapshot_id, progress.table,
                  _how_far(progress))  # fmt: skip

    async def _fail(self, running: Running, error: BaseException, *, tell: bool) -> None:
        """Say that a snapshot is not to be used."""
        running.refuse(error if isinstance(error, BridgeError) else Rejected(str(error)))
        progress = running.progress
        if isinstance(error, Rejected) and not tell:
            return
        self._status.snapshot_totals.failed += 1
        unforeseen = not isinstance(error, BridgeError | Rejected)
        _log.warning("snapshot %s of %s failed: %s", progress.snapshot_id, progress.table,
                     error, exc_info=error if unforeseen else None)  # fmt: skip
        fields = failure(progress.snapshot_id, str(error), _advice(error))
        await self._failures.tell(running.request.table, fields)

    async def _tell(self, running: Running) -> None:
        logged = time.monotonic()
        while True:
            await asyncio.sleep(TELL_EVERY_SECONDS)
            progress = running.progress
            await self._init.tell(running.request.table, progress.to_map())
            if time.monotonic() - logged >= LOG_EVERY_SECONDS:
                logged = time.monotonic()
                _log.info("snapshot %s of %s is %s: %s", progress.snapshot_id, progress.table,
                          progress.state, _how_far(progress))  # fmt: skip

    async def _tell_abandoned(self) -> None:
        """Tell of snapshots that a bridge began and never finished, so that nobody waits."""
        async with await connection.connect(self._means.postgres) as clerk:
            with connection.translated(self._means.postgres):
                names = await copying.published_names(clerk, self._means.publication)
        for snapshot_id, table in (await self._init.unfinished()).items():
            if table in names and snapshot_id not in self._begun:
                _log.warning("snapshot %s of %s was never finished", snapshot_id, table)
                why = "the bridge ended in the middle of it"
                await self._init.failed(table, failure(snapshot_id, why, ASK_AGAIN))


def _advice(error: BaseException) -> str:
    return error.advice if isinstance(error, BridgeError) else ASK_AGAIN


def _how_far(progress: SnapshotProgress) -> str:
    megabytes = progress.bytes / 1e6
    kept = f", {progress.wal_kept_bytes} bytes of WAL kept" if progress.wal_kept_bytes else ""
    return (
        f"{progress.rows} rows, {megabytes:.1f} MB in {progress.chunks} chunks,"
        f" {progress.rows_per_second:.0f} rows/s{kept}"
    )


def _outcome(error: BaseException) -> Outcome:
    match error:
        case Rejected():
            return Outcome.SETTLED
        case BridgeError():
            retry = error.disposition is Disposition.RETRY
            return Outcome.AGAIN if retry else Outcome.SETTLED
        case _:
            return Outcome.UNFORESEEN


def _first_error(error: BaseException) -> BaseException:
    """Find what ended a group of tasks; an error with a name explains more than others."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_first_error(part) for part in error.exceptions]
    return next((part for part in inner if isinstance(part, BridgeError)), inner[0])
