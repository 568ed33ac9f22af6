"""A walk through varlog on Spark, cell by cell (`# %%`).

Run it as a script, or in an editor that supports cells. It starts a cluster of its own on this machine, in a directory of
its own, and leaves nothing behind. It needs `pip install 'varlog[spark]'`.

    python examples/spark_walkthrough.py
"""

# %% A cluster on this machine: a metadata repository, a manager and three storage nodes, one process each
import atexit
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import varlog
import varlog.spark


def free(port):
    """Whether no process listens on any of the ports that `varlog up --port` uses."""
    for own in (port, port + 1, *range(port + 10, port + 13)):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", own)) == 0:
                return False
    return True


directory = tempfile.TemporaryDirectory(prefix="varlog-walkthrough-")
work = Path(directory.name)
port = next(port for port in range(7300, 9000, 20) if free(port))
address = f"127.0.0.1:{port}"
cluster = subprocess.Popen(
    [sys.executable, "-m", "varlog.cli", "up", "--data", str(work / "data"), "--port", str(port)],
    stdout=subprocess.PIPE,
    text=True,
)


def end():
    """Stop the cluster and remove its data, however this script ends."""
    if cluster.poll() is None:
        cluster.terminate()
        cluster.communicate()
    directory.cleanup()


atexit.register(end)
while "ready" not in (line := cluster.stdout.readline()):
    assert line, "the cluster did not start"
print("a cluster runs at", address)

# %% A topic with two log streams, and some entries, appended by an application
with varlog.admin(address) as admin:
    admin.create_topic("clicks", streams=2)
    admin.create_topic("visits", streams=2)

with varlog.connect(address, topic="clicks") as log:
    for first in range(0, 5000, 500):
        clicks = [{"user": n % 97, "page": f"/p/{n % 13}"} for n in range(first, first + 500)]
        log.append_batch([json.dumps(click).encode() for click in clicks])
    print("appended", log.tail())

# %% Spark: a session, and the topic as a DataFrame
spark = varlog.spark.session("walk-through", "local[2]")


def read(topic, **options):
    return spark.read.format("varlog").options(address=address, topic=topic, **options).load()


clicks = read("clicks")
clicks.printSchema()
clicks.groupBy("log_stream").count().orderBy("log_stream").show()

# %% Spark parses the contents of the entries
pages = clicks.selectExpr("from_json(cast(data AS string), 'user bigint, page string') AS click").select(
    "click.*"
)
pages.groupBy("page").count().orderBy("page").show(3)

# %% A stream from one topic to another: exactly once, over crashes and restarts, from checkpoint to checkpoint
visits = (
    spark.readStream.format("varlog")
    .options(address=address, topic="clicks", reader="visits", maxRecordsPerTrigger="2000")
    .load()
    .selectExpr("glsn", "from_json(cast(data AS string), 'user bigint, page string') AS click")
    .selectExpr("click.user % 10 AS shard", "to_json(struct(click.user, click.page, glsn)) AS data")
)


def run_stream():
    query = (
        visits.writeStream.format("varlog")
        .options(address=address, topic="visits", log_stream="shard")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return read("visits").count()


written = run_stream()
print("visits written:", written)

# %% Nothing new was appended, so a second run from the same checkpoint writes nothing
again = run_stream()
assert again == written == 5000, (again, written)

# %% The log knows the position of the stream
with varlog.connect(address, topic="clicks") as log:
    for reader in log.readers():
        print("reader", reader.name, "has finished position", reader.position, "of", log.tail())

# %% Jobs are functions: a snapshot of each user's newest visit, and the position it is valid for
from varlog.spark.jobs.compact import compact
from varlog.spark.snapshot import read_snapshot

key = "cast(get_json_object(cast(data AS string), '$.user') AS bigint)"
compact(spark, address, "visits", str(work / "snapshot"), key=key)
print("snapshot good for position", read_snapshot(str(work / "snapshot")).position)
spark.read.parquet(str(work / "snapshot")).selectExpr("key", "cast(value AS string)").orderBy("key").show(
    3, truncate=False
)

# %% Archive the old part of the log to Parquet, then trim it; both together are still one DataFrame
from varlog.spark.jobs.archive import archive

done = archive(
    spark, address, "clicks", str(work / "archive"), range_records=2000, trim=True, keep_records=1000
)
print("archived up to", done.end - 1, "and trimmed up to", done.trimmed)
live, whole = read("clicks").count(), read("clicks", archive=str(work / "archive")).count()
print("in the log", live, "with its archive", whole)
assert (live, whole) == (1000, 5000)

# %% The audit: every replica, every byte
from varlog.spark.jobs.audit import audit

report = audit(spark, address)
for replica in report.replicas:
    print(replica.topic, replica.log_stream, replica.node, replica.entries, replica.result)
assert report.clean, report.findings

# %% The end: nothing is left behind
spark.stop()
end()
print("done")
