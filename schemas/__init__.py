"""The contract: what goes over the wire between the bridge and everything that follows it.

Pure values and functions only. Both programs import this package and it imports neither of them,
no server library and no clock. `json/` states the same payloads for consumers in any language.
"""

CONTRACT_VERSION = 1
