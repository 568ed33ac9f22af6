"""Options are refused by name, with what is right."""

from __future__ import annotations

import pytest

from varlog.spark.options import OptionError, read_options, write_options

HERE = {"address": "127.0.0.1:7100", "topic": "orders"}


def test_what_is_given_is_what_is_read() -> None:
    given = HERE | {"startingoffsets": '{"orders": 17}', "endingOffsets": "latest", "minPartitions": "4"}
    options = read_options(given, stream=False)
    assert (options.topics, options.starting, options.ending, options.partitions_min) == (
        ("orders",),
        {"orders": 17},
        "latest",
        4,
    )
    assert (
        read_options(HERE | {"startingTimestamp": "1970-01-01T00:00:01Z"}, stream=True).starting_us
        == 1_000_000
    )


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"startingOfsets": "5"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": "0"}, "option 'startingOffsets' is '0'"),
        ({"startingOffsets": "{x"}, "JSON"),
        ({"minPartitions": "none"}, "option 'minPartitions' is 'none'"),
        ({"startingTimestamp": "yesterday"}, "option 'startingTimestamp' is 'yesterday'"),
        ({"startingTimestamp": "5", "startingOffsets": "5"}, "not both"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "'endingTimestamp' is before"),
        ({"topic": ""}, "either option 'topic'"),
        ({"topic": "a b"}, "option 'topic'"),
        ({"topicPattern": "x.*"}, "either option 'topic'"),
        ({"topic": "", "topicPattern": "("}, "option 'topicPattern'"),
        ({"path": "/data"}, "either option 'address'"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"maxRecordsPerTrigger": "5"}, "is not known"),
    ],
)
def test_a_wrong_option_of_a_batch_is_named(extra: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named.replace("(", r"\(")):
        read_options(HERE | extra, stream=False)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"maxRecordPerTrigger": "5"}, "did you mean 'maxRecordsPerTrigger'"),
        ({"maxRecordsPerTrigger": "5", "minRecordsPerTrigger": "6"}, "'minRecordsPerTrigger' is above"),
        ({"maxBytesPerTrigger": "0"}, "option 'maxBytesPerTrigger' is '0'"),
        ({"reader": "a/b"}, "option 'reader' is 'a/b'"),
        ({"endingOffsets": "5"}, "option 'endingoffsets' is not known"),
        ({"address": "", "path": "/data"}, "which a stream cannot follow"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(extra: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        read_options(HERE | extra, stream=True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"path": "/data", "topic": "t"}, "only one process"),
        ({"address": "h:1"}, "option 'topic' is missing"),
        (HERE | {"positions": "same"}, "option 'positions' is 'same'"),
        (HERE | {"positions": "keep", "orderBy": "x"}, "leave out 'orderBy'"),
        (HERE | {"startingOffsets": "1"}, "option 'startingoffsets' is not known"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        write_options(given)
