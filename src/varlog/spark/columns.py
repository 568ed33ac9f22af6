"""The columns of a DataFrame that was read from the log, for Spark and for Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

READ_SCHEMA = (
    "topic string not null, glsn bigint not null, llsn bigint not null, log_stream int not null, "
    "timestamp timestamp not null, data binary not null"
)


def arrow_schema() -> pa.Schema:
    """Exactly what Spark expects of a record batch with these columns."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("glsn", pa.int64(), nullable=False),
            pa.field("llsn", pa.int64(), nullable=False),
            pa.field("log_stream", pa.int32(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("data", pa.binary(), nullable=False),
        ]
    )
