"""NUMBERS: the number of each message on the wire."""

from __future__ import annotations

from varlog.rpc.messages import base, lease, log, manager, node, replica, repository, sequencer, session, unit

# Only add: a number is never reused. Retired: 10 (Append before it was split).
NUMBERS: dict[int, type[base.Message]] = {
    1: base.Done, 2: base.Failure,
    115: log.Append, 116: log.AppendIdempotent, 117: log.AppendAt, 11: log.AppendReply, 12: log.ReadAt, 13: log.ReadAtReply,
    14: log.Fetch, 15: log.FetchReply, 16: log.FindAppend, 17: log.FindAppendReply, 18: log.CheckEntries,
    19: log.ListIdempotentBatches, 110: log.ListIdempotentBatchesReply, 111: log.MeasureRange, 112: log.MeasureRangeReply,
    113: log.FindTime, 114: log.FindTimeReply,
    20: replica.ReplicaOpen, 21: replica.Replicate, 22: replica.CopyFrom, 23: replica.CopyFromReply,
    30: session.OpenSession, 31: session.OpenSessionReply, 32: session.Reports, 33: session.Commits, 34: session.ListRows,
    35: session.ListRowsReply, 36: session.KeepView, 37: session.KeepProjection,
    40: node.GetNodeStatus, 41: node.GetNodeStatusReply, 42: node.AddLogStream, 43: node.RemoveLogStream, 44: node.SealReplica,
    45: node.ReplicaStateReply, 46: node.UnsealReplica, 47: node.RebuildReplica, 48: node.SyncReplica, 49: node.SyncReply,
    50: node.RepairReplica, 51: node.GetNodeFacts, 52: node.GetNodeFactsReply,
    60: repository.GetView, 61: repository.GetViewReply, 62: repository.GetTail, 63: repository.GetTailReply,
    64: repository.TrimTopic, 65: repository.RegisterNode, 66: repository.UnregisterNode, 67: repository.RegisterTopic,
    68: repository.TopicReply, 69: repository.UnregisterTopic, 70: repository.NewLogStreamID,
    71: repository.NewLogStreamIDReply, 72: repository.RegisterLogStream, 73: repository.SealStream,
    74: repository.UnsealStream, 75: repository.StreamReply, 76: repository.SetManager, 77: repository.SetSealedByAdmin,
    78: repository.SetReplicas, 79: repository.Suspect, 80: repository.SetReader, 81: repository.ForgetReader,
    82: repository.GetReaders, 83: repository.GetReadersReply, 84: repository.BeginWrite, 85: repository.WriterReply,
    86: repository.EndWrite, 87: repository.ForgetWriter, 88: repository.GetWriters, 89: repository.GetWritersReply,
    160: repository.GetBackup, 161: repository.GetBackupReply,
    90: manager.AddNode, 91: manager.RemoveNode, 92: manager.CreateTopic, 93: manager.DeleteTopic, 94: manager.AddStream,
    95: manager.AdminSealStream, 96: manager.AdminUnsealStream, 97: manager.GetClusterStatus, 98: manager.GetClusterStatusReply,
    99: manager.AdminReplaceReplica, 100: manager.AdminSyncReplica,
    101: repository.AdoptOrder, 102: repository.AdoptOrderReply,
    120: unit.WriteUnit, 121: unit.FillUnit, 122: unit.ReadUnit, 123: unit.ReadUnitReply, 124: unit.FetchUnit,
    125: unit.FetchUnitReply, 126: unit.MeasureUnit, 127: unit.FindUnitTime, 128: unit.SealUnit, 129: unit.SealUnitReply,
    130: unit.ListUnit, 131: unit.ListUnitReply, 132: unit.CopyUnit, 133: unit.CopyUnitReply, 134: unit.SyncUnit,
    140: sequencer.NextTokens, 141: sequencer.NextTokensReply, 142: sequencer.GetSequencer, 143: sequencer.GetSequencerReply,
    150: repository.ProposeProjection, 151: repository.ProposeProjectionReply,
    152: lease.RenewSequencer, 153: lease.RequestLease, 154: lease.LeaseReply, 155: lease.UnitOrder,
}  # fmt: skip
