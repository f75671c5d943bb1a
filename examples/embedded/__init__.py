"""Real servers for the demo, the tests and the benchmarks: PostgreSQL and NATS from Python wheels.

A server lives in the folder it is given and is a child of this process. It is ready when `start`
returns, it keeps its port and its data over `stop`, `kill` and `restart`, and it goes when the
`with` block ends. On Linux it also goes when the thread that started it dies in any way, `kill -9`
included; so start it from a thread that outlives it. The folder is left to the caller.
"""

from examples.embedded.nats import EmbeddedNats
from examples.embedded.postgres import EmbeddedPostgres
from examples.embedded.server import EmbeddedServer, ServerDied, free_port, temporary_folder

__all__ = [
    "EmbeddedNats",
    "EmbeddedPostgres",
    "EmbeddedServer",
    "ServerDied",
    "free_port",
    "temporary_folder",
]
