"""What surrounds the programs: how servers are set up, started and shipped."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
