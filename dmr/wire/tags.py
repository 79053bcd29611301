"""Tags of the library's messages, all on communicators of its own: one number for each kind."""

FROM_ROOT = 71
"""Rank 0 to another rank of its world (:mod:`dmr.wire.ranks`)."""

TO_ROOT = 72
"""Another rank to rank 0 of its world."""

CHUNK = 73
"""Part of a block on its way to another decomposition (:mod:`dmr.data.streams`)."""

OLD_FORM, NEW_FORM = 75, 86
"""How a block of the old decomposition, and of the new one, lies in memory."""

DIGEST = 74
"""Hash of all chunks from one sender to one receiver."""

COUNT = 79
"""Number of list items that follow in chunks; this one and the next take turns
(:mod:`dmr.data.particles`)."""

GATHER = 76
"""Part of a block on its way to rank 0 (:mod:`dmr.data.gather`)."""

OFFER = 81
"""Sender to receiver: where its memory can be read (:mod:`dmr.data.streams`)."""

ANSWER = 82
"""Receiver to sender: whether it will read it."""

READ = 83
"""Receiver to sender: all of it has been read."""

HALO = 100
"""Layers of halo: two numbers for each axis, from here on (:mod:`dmr.data.exchange`)."""
