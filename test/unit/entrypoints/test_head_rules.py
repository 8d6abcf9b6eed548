"""A head that two servers could read in two ways is refused, whichever part of it is doubtful."""

import pytest

from mysglang.srt.entrypoints.head_rules import SINGLE, fault_in_head

HOST = (b"host", b"localhost:30000")


def test_what_clients_send_is_fine() -> None:
    assert fault_in_head("1.1", b"/v1/models?a=b", [HOST, (b"accept", b"*/*"), (b"accept", b"text/plain")]) is None
    assert fault_in_head("1.1", b"/", [HOST, (b"transfer-encoding", b"Chunked")]) is None
    assert fault_in_head("1.0", b"/", []) is None


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_what_decides_is_said_once(name: bytes) -> None:
    others = [] if name == b"host" else [HOST]
    fault = fault_in_head("1.1", b"/", [*others, (name, b"a"), (b"accept", b"*/*"), (name, b"a")])
    assert fault is not None and fault.status == 400 and repr(name.decode()) in fault.message


@pytest.mark.parametrize("value", [b"gzip, chunked", b"identity", b"chunked;q=1"])
def test_no_encoding_that_is_not_undone(value: bytes) -> None:
    fault = fault_in_head("1.1", b"/", [HOST, (b"transfer-encoding", value)])
    assert fault is not None and fault.status == 400 and value.decode() in fault.message


def test_old_versions_have_no_encoding() -> None:
    fault = fault_in_head("1.0", b"/", [HOST, (b"transfer-encoding", b"chunked")])
    assert fault is not None and fault.status == 400


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.1"])
def test_other_versions(version: str) -> None:
    fault = fault_in_head(version, b"/", [HOST])
    assert fault is not None and fault.status == 505 and version in fault.message


def test_a_host_there_must_be() -> None:
    fault = fault_in_head("1.1", b"/", [(b"accept", b"*/*")])
    assert fault is not None and fault.status == 400 and "host" in fault.message


@pytest.mark.parametrize(
    ("url", "good"),
    [
        (b"http://localhost:30000/health", True),
        (b"http://LOCALHOST:30000/health", True),
        (b"http://localhost/health", False),
        (b"http://evil.example:30000/health", False),
        (b"http://u:p@localhost:30000/health", False),
        (b"http://localhost:30000", False),
        (b"evil.example:80", False),
        (b"*", False),
        (b"", False),
    ],
)
def test_a_url_with_a_host_names_the_same_one(url: bytes, good: bool) -> None:
    fault = fault_in_head("1.1", url, [HOST])
    assert (fault is None) is good
    assert fault is None or fault.status == 400
