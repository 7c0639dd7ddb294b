"""Which requests are refused before anything else is done: those of foreign web pages, and those that are too long. Also the
headers of every reply, which tell browsers to keep foreign pages out."""

import re
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

MAX_BODY_BYTES = 1_000_000
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class HostNames:
    """Host names that requests may use. A foreign page whose own name resolves to this machine (DNS rebinding) sends that name.

    A server that listens on a loopback address answers to loopback addresses and `localhost`; any other server also to every
    other IP address, the machine's own names, and the name that it was started with.
    """

    def __init__(self, address: str, given: str = ""):
        """`address` is the one that the server listens on, `given` what its user called it."""
        self._loopback_only = _ip(address).is_loopback
        names = {"localhost"}
        if not self._loopback_only:
            machine = socket.gethostname()
            names |= {given, machine, machine.partition(".")[0], socket.getfqdn()} - {""}
        self._names = {name.lower().removesuffix(".") for name in names}

    def include(self, host: str) -> bool:
        """Whether a request may have this Host header."""
        match = re.fullmatch(r"(?:\[(.*)\]|([^:]*))(?::\d*)?", host.lower())
        name = "" if match is None else match[1] or match[2] or ""
        try:
            return _ip(name).is_loopback or not self._loopback_only
        except ValueError:
            return name.removesuffix(".") in self._names


def _ip(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def refusal(path: str, headers: Mapping[str, str], names: HostNames) -> tuple[int, str] | None:
    """Status and sentence for a request that is refused; None for all others."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not names.include(host):
        return 403, "The explorer does not answer to this host name; use the address that it printed when it started."
    # A foreign page may link to the explorer, and do nothing else. Only some browsers tell, and only on loopback.
    is_link = path == "/" and headers.get("sec-fetch-mode") == "navigate"
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_link
    if is_foreign or origin not in (None, f"http://{host}"):
        return 403, "The explorer does not answer to other web pages; open its own page instead."
    if "transfer-encoding" in headers:
        return 411, "The request has no content-length."
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > MAX_BODY_BYTES:
        return 413, f"The request is longer than {MAX_BODY_BYTES:,} bytes."
    return None
