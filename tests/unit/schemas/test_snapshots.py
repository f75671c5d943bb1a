from __future__ import annotations

from schemas.snapshots import Checksum, chunk_digest, combine_digests


def test_digests_of_chunks_read_in_any_order_combine_to_the_checksum_of_chunks() -> None:
    """Tasks hash the chunks they read; the driver puts the digests into chunk order."""
    bodies = [b"", b"a", b"b" * 100]
    digests = {at: chunk_digest(bodies[at]) for at in (2, 0, 1)}

    combined = combine_digests(digests[at] for at in range(3))

    assert combined == Checksum(bodies).of_chunks
    assert combined != combine_digests(digests.values())
    assert combined != str(Checksum(bodies))


def test_chunks_that_moved_their_border_are_another_snapshot() -> None:
    assert Checksum([b"ab", b"c"]).of_chunks != Checksum([b"a", b"bc"]).of_chunks
    assert str(Checksum([b"ab", b"c"])) == str(Checksum([b"a", b"bc"]))
