"""How fast it is, measured so that the figures mean something on any machine.

Every rate stands beside a ceiling that was measured in the same round on the same data, because
absolute figures move with the machine and with its neighbours, and ratios hardly do. Every round
ends by asking the stream whether it holds exactly what was committed: a fast wrong answer is none.
`python -m benchmarks --help` runs them; `README.md` has the method and the figures.
"""
