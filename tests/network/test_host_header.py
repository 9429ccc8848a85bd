"""The name in a `Host` header, and requests that come from pages of other sites."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whetstone.network.host_header import find_other_site, host_name


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "model.example"])
@pytest.mark.parametrize("port", ["", ":", ":1", ":65535"])
def test_a_name_is_read_without_its_port(name, port):
    assert host_name(f"[{name}]{port}" if ":" in name else f"{name}{port}") == name


@given(rest=st.text(min_size=1, max_size=6))
@example(rest="8000x")
@example(rest="\u0664")
@example(rest="+1")
@example(rest="1_0")
def test_after_the_colon_only_ascii_digits_are_allowed(rest):
    is_port = rest.isascii() and rest.isdigit()
    for name, host in (("localhost", f"localhost:{rest}"), ("::1", f"[::1]:{rest}")):
        assert host_name(host) == (name if is_port else "")
    assert host_name(f"[::1]{rest}") == ("::1" if rest[0] == ":" and all(c in "0123456789" for c in rest[1:]) else "")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("host", "localhost:1")], ""),
        ([("host", "localhost:1"), ("origin", "http://localhost:1")], ""),
        ([], "Host is missing"),
        ([("host", "localhost"), ("host", "localhost")], "Host localhost, localhost"),
        ([("host", "evil.example")], "Host evil.example"),
        ([("host", "localhost:1"), ("origin", "http://localhost:2")], "Origin"),
        ([("host", "localhost:1"), ("origin", "null")], "Origin"),
        ([("host", "localhost"), ("sec-fetch-site", "same-site")], "Sec-Fetch-Site"),
    ],
)
def test_a_request_of_another_site_has_a_reason(headers, reason):
    reason_found = find_other_site([(name.encode(), value.encode()) for name, value in headers])
    assert reason_found.startswith(reason)
    assert bool(reason_found) == bool(reason)
