"""The bridge: one process per slot and publication, from PostgreSQL's WAL to NATS JetStream."""

from importlib.metadata import version

VERSION = version("walbridge")
