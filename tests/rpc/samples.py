"""One sample of every message and of every error, with a distinct value in every field."""

from __future__ import annotations

import inspect

from varlog.model.cluster import (
    ClusterView,
    Grouping,
    LogStream,
    NamedReader,
    NamedWriter,
    Ordering,
    StorageNode,
    StreamState,
    Topic,
)
from varlog.model.commit import CommitRow, OrderAdoption, Report, TopicMark
from varlog.model.epoch import Epoch
from varlog.model.errors import VarlogError
from varlog.model.events import Event, EventKind
from varlog.model.ids import ClusterID, LogStreamID, NodeID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Proposal, Range, SequencerID, Stripe
from varlog.model.status import (
    ClusterStatus,
    NodeHealth,
    NodeStatus,
    ReplicaState,
    ReplicaStatus,
    SyncState,
    SyncStatus,
    Traffic,
    UnitStatus,
)
from varlog.rpc import messages as m
from varlog.rpc.error_codes import ERROR_CODES
from varlog.rpc.messages import Message

TOPIC = Topic(TopicID(3), "orders", Ordering.SEQUENCED, GLSN(9), GLSN(4), 16, Grouping.NODE)
SEQUENCER = SequencerID("127.0.0.1:7102", 991)
PROJECTION = Projection(
    TopicID(3),
    Epoch(4),
    GLSN(141),
    (Range(GLSN(4), (Stripe(LogStreamID(5), LLSN(1)), Stripe(LogStreamID(6), LLSN(2))), 16),),
    (
        Chain(LogStreamID(5), (NodeID(1), NodeID(2)), (NodeID(3),)),
        Chain(LogStreamID(6), (NodeID(2), NodeID(1))),
    ),
    SEQUENCER,
)
STREAM = LogStream(
    LogStreamID(5), TopicID(3), (NodeID(1), NodeID(2)), StreamState.RUNNING, Epoch(4), LLSN(70), True
)
VIEW = ClusterView(
    ClusterID(6),
    41,
    (StorageNode(NodeID(1), "127.0.0.1:7110", ("/data/a",)),),
    (TOPIC,),
    (STREAM,),
    "h:7101",
    True,
    ("h:7100", "i:7100"),
    (PROJECTION,),
    (SEQUENCER,),
)
SYNC = SyncStatus(SyncState.ERROR, NodeID(2), LLSN(40), LLSN(70), 8192, "the source is gone", True)
TRAFFIC = Traffic(3, 30, 4096, 0.75, (0, 2, 1, *[0] * 24), 4, 40, 8192)
STATUS = NodeStatus(
    ClusterID(6),
    NodeID(1),
    "127.0.0.1:7110",
    ("/data/a",),
    (
        ReplicaStatus(
            LogStreamID(5),
            TopicID(3),
            ReplicaState.FROZEN,
            Epoch(4),
            LLSN(70),
            LLSN(72),
            GLSN(9),
            GLSN(140),
            "/data/a/x",
            4096,
            True,
            "a disk error",
            True,
            SYNC,
            ((LLSN(11), LLSN(13)),),
            True,
            TRAFFIC,
        ),
    ),
    1_700_000_000_000_000,
    500,
    (
        UnitStatus(
            LogStreamID(6),
            TopicID(3),
            Epoch(4),
            LLSN(72),
            LLSN(70),
            LLSN(3),
            "/data/a/y",
            4096,
            "a disk error",
            SYNC,
            ((LLSN(11), LLSN(13)),),
            True,
            TRAFFIC,
        ),
    ),
    True,
)
ADDRESS = m.ReplicaAddress(NodeID(1), "127.0.0.1:7110")
ROW = CommitRow(12, GLSN(140), GLSN(130), GLSN(131), LLSN(61), 10, Epoch(4))
READER = NamedReader(TopicID(3), "nightly", GLSN(120), 1_700_000_000_000_000)
WRITER = NamedWriter(
    TopicID(3), "ingest", 8, GLSN(130), (LogStreamID(5), LogStreamID(6)), True, True, 1_700_000_000_000_000
)
MARK = TopicMark(TopicID(3), GLSN(140), GLSN(9))

MESSAGES: list[Message] = [
    m.Done(),
    m.Failure(11, (9, 8)),
    m.Append(LogStreamID(5), Epoch(4), True, LLSN(60), GLSN(90), 1500),
    m.AppendIdempotent(LogStreamID(5), Epoch(4), 0xFEDCBA98, 2**62 + 5, 33, GLSN(90)),
    m.AppendAt(LogStreamID(5), LLSN(61), Epoch(4)),
    m.AppendReply(GLSN(131), LLSN(61)),
    m.ReadAt(TopicID(3), GLSN(131), LogStreamID(5), LLSN(61), 1.5),
    m.ReadAtReply(True, LogStreamID(5), GLSN(131)),
    m.Fetch(LogStreamID(5), LLSN(61), GLSN(131), 1 << 20, 2.5),
    m.FetchReply(((LLSN(61), GLSN(131), 10),), LLSN(71), LLSN(71), GLSN(140), GLSN(9)),
    m.FindAppend(LogStreamID(5), Epoch(4), ProducerID(77), 78, LLSN(60), GLSN(90)),
    m.FindAppendReply(True, GLSN(131), LLSN(61)),
    m.CheckEntries(LogStreamID(5), LLSN(61), LLSN(71)),
    m.ListIdempotentBatches(LogStreamID(5), ProducerID(77), LLSN(60), GLSN(90)),
    m.ListIdempotentBatchesReply(((1, LLSN(61), 10, 0xFEDCBA98),), True),
    m.MeasureRange(LogStreamID(5), GLSN(90), GLSN(140), 16),
    m.MeasureRangeReply(LLSN(61), LLSN(71), 4096, ((LLSN(65), 2048),), True),
    m.FindTime(LogStreamID(5), 1_700_000_000_000_000),
    m.FindTimeReply(LLSN(61), GLSN(131)),
    m.ReplicaOpen(LogStreamID(5), Epoch(4), LLSN(61)),
    m.Replicate(LogStreamID(5), Epoch(4)),
    m.CopyFrom(LogStreamID(5), Epoch(4), LLSN(61), 1 << 20),
    m.CopyFromReply((ROW,), LLSN(71), LLSN(80), GLSN(9), LLSN(3)),
    m.OpenSession(7),
    m.OpenSessionReply(
        NodeID(1),
        (m.ReplicaPoint(LogStreamID(5), Epoch(4), ReplicaState.SEALING, LLSN(61), LLSN(72), LLSN(51)),),
        units=(m.UnitPoint(LogStreamID(6), TopicID(3), Epoch(4), LLSN(9)),),
        copied=((TopicID(3), Epoch(4), 8),),
    ),
    m.Reports((Report(LogStreamID(5), Epoch(4), LLSN(72), LLSN(51)),), 8),
    m.Commits(8, 12, (MARK,), ((LogStreamID(5), (ROW,)),)),
    m.ListRows(LogStreamID(5), LLSN(61)),
    m.ListRowsReply((ROW,), LLSN(71), LLSN(80)),
    m.KeepView(12),
    m.KeepProjection(Proposal(7, 3, PROJECTION)),
    m.GetNodeStatus(),
    m.GetNodeStatusReply(STATUS),
    m.AddLogStream(TopicID(3), LogStreamID(5), "/data/a", Ordering.SEQUENCED),
    m.RemoveLogStream(LogStreamID(5), 4),
    m.SealReplica(LogStreamID(5), Epoch(4), LLSN(70)),
    m.ReplicaStateReply(ReplicaState.SEALED, LLSN(70)),
    m.UnsealReplica(LogStreamID(5), Epoch(4), (m.ReplicaAddress(NodeID(1), "127.0.0.1:7110"),)),
    m.RebuildReplica(TopicID(3), LogStreamID(5), Epoch(4)),
    m.SyncReplica(LogStreamID(5), Epoch(4), m.ReplicaAddress(NodeID(1), "127.0.0.1:7110")),
    m.SyncReply(SYNC),
    m.RepairReplica(LogStreamID(5), (m.ReplicaAddress(NodeID(1), "127.0.0.1:7110"),)),
    m.GetNodeFacts(),
    m.GetNodeFactsReply(
        7,
        True,
        (TopicMark(TopicID(3), GLSN(40), GLSN(10)),),
        ((TopicID(4), Epoch(2)),),
        (Proposal(7, 3, PROJECTION),),
    ),
    m.GetView(41, 2.5),
    m.GetViewReply(VIEW, (NodeID(2),), LogStreamID(6), (LogStreamID(4),)),
    m.GetTail(TopicID(3)),
    m.GetTailReply(GLSN(140), GLSN(9)),
    m.TrimTopic(TopicID(3), GLSN(9), True),
    m.RegisterNode(NodeID(1), "127.0.0.1:7110", ("/data/a",)),
    m.UnregisterNode(NodeID(1)),
    m.RegisterTopic("orders", Ordering.SEQUENCED, GLSN(4), 16, Grouping.NODE),
    m.TopicReply(TOPIC),
    m.UnregisterTopic(TopicID(3)),
    m.NewLogStreamID(),
    m.NewLogStreamIDReply(LogStreamID(5)),
    m.RegisterLogStream(TopicID(3), LogStreamID(5), (NodeID(1), NodeID(2)), 2),
    m.SealStream(LogStreamID(5)),
    m.UnsealStream(LogStreamID(5), Epoch(4)),
    m.StreamReply(STREAM),
    m.SetManager("127.0.0.1:7101", True),
    m.SetSealedByAdmin(LogStreamID(5), True),
    m.SetReplicas(LogStreamID(5), Epoch(4), (NodeID(1), NodeID(2))),
    m.Suspect(NodeID(1), "it does not answer"),
    m.SetReader(TopicID(3), "nightly", GLSN(120), 1_700_000_000_000_000, True),
    m.ForgetReader(TopicID(3), "nightly"),
    m.GetReaders(TopicID(3), (TopicID(3), "hourly")),
    m.GetReadersReply((READER,), True),
    m.BeginWrite(TopicID(3), "ingest", 8, (LogStreamID(5), LogStreamID(6)), True, 1_700_000_000_000_000),
    m.WriterReply(WRITER),
    m.EndWrite(TopicID(3), "ingest", 8, 1_700_000_000_000_000),
    m.ForgetWriter(TopicID(3), "ingest"),
    m.GetWriters(TopicID(3), (TopicID(3), "copy")),
    m.GetWritersReply((WRITER,), True),
    m.GetBackup(4096, 3),
    m.GetBackupReply(3, 8192, 7),
    m.AddNode("127.0.0.1:7110"),
    m.RemoveNode(NodeID(1)),
    m.CreateTopic("orders", 2, 3, Ordering.SEQUENCED, GLSN(4), 16, Grouping.NODE),
    m.DeleteTopic("orders"),
    m.AddStream("orders", 3),
    m.AdminSealStream(LogStreamID(5)),
    m.AdminUnsealStream(LogStreamID(5)),
    m.GetClusterStatus(),
    m.GetClusterStatusReply(
        ClusterStatus(
            VIEW,
            (NodeHealth(NodeID(1), True, STATUS), NodeHealth(NodeID(2), False, None, 2.5)),
            (MARK,),
            (
                Event(
                    EventKind.WAITING_FOR_NODE,
                    0,
                    LogStreamID(5),
                    node=NodeID(2),
                    reason="node 2 is unreachable",
                ),
            ),
            (Event(EventKind.SEAL_STREAM, 1_700_000_000_000_000, LogStreamID(5)),),
            (NodeID(2),),
            (READER,),
        ),
    ),
    m.AdminReplaceReplica(LogStreamID(5), NodeID(1), NodeID(2)),
    m.AdminSyncReplica(LogStreamID(5), NodeID(1)),
    m.AdoptOrder(TopicID(3), False),
    m.AdoptOrderReply(
        OrderAdoption(
            TopicID(3),
            GLSN(131),
            GLSN(141),
            ((NodeID(1), LogStreamID(5), GLSN(131), GLSN(140), LLSN(61)),),
            ((GLSN(140), GLSN(141)),),
            ("one contradicts",),
            (NodeID(2),),
            (LogStreamID(5),),
            GLSN(9),
            True,
            "node 1 knows more",
            Epoch(4),
            NodeID(1),
            Epoch(3),
            (NodeID(2),),
        ),
    ),
    m.WriteUnit(LogStreamID(6), Epoch(4), 800),
    m.FillUnit(LogStreamID(6), Epoch(4), LLSN(61), 3),
    m.ReadUnit(LogStreamID(6), Epoch(4), LLSN(61), True),
    m.ReadUnitReply(),
    m.FetchUnit(LogStreamID(6), Epoch(4), LLSN(61), 1 << 20, 2.5),
    m.FetchUnitReply(LLSN(71), LLSN(72), LLSN(3)),
    m.MeasureUnit(LogStreamID(6), Epoch(4), LLSN(61), LLSN(71), 16),
    m.FindUnitTime(LogStreamID(6), Epoch(4), 1_700_000_000_000_000),
    m.SealUnit(LogStreamID(6), Epoch(4)),
    m.SealUnitReply(LogStreamID(6), Epoch(4), LLSN(72), LLSN(70), "a disk error", True, True),
    m.ListUnit(LogStreamID(6), LLSN(61)),
    m.ListUnitReply(((LLSN(61), 10, 0xFEDCBA98),), LLSN(71), LLSN(72), LLSN(3), Epoch(4)),
    m.CopyUnit(LogStreamID(6), LLSN(61), LLSN(71), 1 << 20),
    m.CopyUnitReply(LLSN(71)),
    m.SyncUnit(LogStreamID(6), ADDRESS, Epoch(4), Epoch(5), True, False),
    m.NextTokens(TopicID(3), Epoch(4), 10, 900, ((GLSN(70), 1500), (GLSN(60), 2500)), (GLSN(80),)),
    m.NextTokensReply(GLSN(141), 6),
    m.GetSequencer(),
    m.GetSequencerReply(SEQUENCER, True),
    m.ProposeProjection(
        PROJECTION, ((LogStreamID(5), (NodeID(1), NodeID(2))), (LogStreamID(6), (NodeID(2),)))
    ),
    m.ProposeProjectionReply(PROJECTION),
    m.RenewSequencer(SEQUENCER, 1_700_000_000),
    m.RequestLease(1_700_000_000, (m.UnitOrder(LogStreamID(6), Epoch(4), LLSN(3)),)),
    m.LeaseReply(
        1_700_000_000, 1.0, (m.UnitOrder(LogStreamID(6), Epoch(4), LLSN(3)),), ((TopicID(3), Epoch(4)),)
    ),
    m.UnitOrder(LogStreamID(6), Epoch(4), LLSN(3), True),
]


def error_sample(kind: type[VarlogError]) -> VarlogError:
    """An error of that class, its facts made up from the constructor's types."""
    facts: list[object] = []
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            facts += ["anything", 7]
        elif parameter.annotation == "str":
            facts.append(f"the {parameter.name}")
        else:
            facts.append(11 * (len(facts) + 1))
    return kind(*facts)


ERROR_SAMPLES: list[VarlogError] = [error_sample(kind) for kind in ERROR_CODES.values()]
