"""Every bound in one place: sizes, counts, queue depths and waits.

A bound names its unit last.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# One entry, and one batch: what a client may send in one append.
ENTRY_BYTES_MAX = 8 * MIB
BATCH_BODY_BYTES_MAX = 16 * MIB
BATCH_ENTRIES_MAX = 100_000

# A frame carries a batch, or a chunk of batches, plus its message.
FRAME_BYTES_MAX = BATCH_BODY_BYTES_MAX + 1 * MIB
FRAME_META_BYTES_MAX = 1 * MIB

# What the client gathers into one batch while an append is in flight.
GATHER_ENTRIES_MAX = 4096
GATHER_BYTES_MAX = 1 * MIB
# Requests of gathered appends in flight to one stream: with two the next one travels while the last one is written.
GATHER_REQUESTS_MAX = 2
# Appends of a client that wait to be gathered: above, they are refused. The bytes are those of the callers, not copies.
GATHER_WAITING_ENTRIES_MAX = 1_000_000
GATHER_WAITING_BYTES_MAX = 1 * GIB
# Bytes of the batches a client has sent without an answer: above, callers wait.
SENT_BYTES_MAX = 32 * MIB

# What one replica holds that is not ordered yet. It bounds the memory of the whole append path: the write queue, the
# replication queues and the waiters all hold subsets of it.
UNCOMMITTED_BYTES_MAX = 64 * MIB
UNCOMMITTED_BATCHES_MAX = 16_384

# One group commit: one writev and one fdatasync.
GROUP_BYTES_MAX = 8 * MIB
GROUP_BATCHES_MAX = 512
# Up to here the loop itself may write a group, while the disk is quick: a larger one would delay everything else that
# the loop does.
INLINE_GROUP_BYTES_MAX = 64 * KIB

# A connection stops reading while the requests it brought hold more than this, and a writer waits above the other.
CONNECTION_REQUEST_BYTES_MAX = 32 * MIB
CONNECTION_WRITE_BYTES_MAX = 4 * MIB

# Before a peer is known: a hello, and small requests. A peer that never says hello, or does not finish a frame, is
# disconnected.
UNKNOWN_PEER_FRAME_BYTES_MAX = 64 * KIB
HELLO_TIMEOUT_S = 10.0
FRAME_TIMEOUT_S = 60.0
# Connections that a server has, in total and from one other machine; and what frames may hold, over all of them, that are not
# whole yet.
CONNECTIONS_MAX = 8192
CONNECTIONS_PER_HOST_MAX = 2048
UNREAD_BYTES_MAX = 512 * MIB

# One segment file; also what a closed segment's index covers.
SEGMENT_BYTES = 64 * MIB
# The index has a batch at least every this many bytes: a read scans at most this far for its batch.
INDEX_STRIDE_BYTES = 4 * KIB

# One fetch of a subscriber.
FETCH_BYTES_DEFAULT = 1 * MIB
FETCH_BYTES_MAX = 4 * MIB
FETCH_WAIT_S_MAX = 30.0
FETCHES_WAITING_MAX = 10_000
# What one subscription holds of all its streams together: with many streams its fetches become smaller.
SUBSCRIPTION_BYTES_MAX = 64 * MIB
FETCH_BYTES_MIN = 64 * KIB
# The most points by which a range is described.
MEASURE_POINTS_MAX = 4096

# One piece of a sync. Two are held at a time: one is written while the next is on its way.
COPY_BYTES_MAX = 4 * MIB
SYNC_CONNECT_TIMEOUT_S = 3.0
SYNC_COPY_TIMEOUT_S = 10.0

# What the scrub reads of a node in a second, and at once. The last one is how many ranges of damage a replica distinguishes.
SCRUB_BYTES_PER_S = 8 * MIB
SCRUB_CHUNK_BYTES = 128 * KIB
# The first pass after a start: a node that has just started is busy with more urgent work.
SCRUB_FIRST_PASS_S = 60.0
# A node that has nothing to scrub finishes a pass immediately: it must not start the next one immediately.
SCRUB_INTERVAL_S_MIN = 0.01

# A term is at most this far above the newest one known: terms on etcd are its revisions, which grow with every commit.
# At 30 000 per second for a year they stay below.
TERM_JUMP_MAX = 1 << 40
DAMAGE_RANGES_MAX = 64

# Appends leave this much free on a volume, for what a seal or a trim writes.
DISK_RESERVE_BYTES = 64 * MIB

STREAMS_PER_NODE_MAX = 1_000
REPLICAS_MAX = 16

# How far from true time a clock may run, up or down. Leases allow for it, on both sides (R-SEQ-13).
CLOCK_DRIFT_MAX = 0.05
# A lease of a node with log units, or of a sequencer; it is renewed four times in that time.
LEASE_S = 1.0
