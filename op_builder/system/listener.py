"""Listening at one address of this host.

torch's stores listen on all interfaces unless they get a socket. They have no authentication: whoever can connect can
read and write all keys, and take the place of a rank.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket


def listen(host: str, port: int) -> socket.socket | None:
    """A socket that listens at the address of ``host``; port 0 means any free one.

    Returns:
        None if other hosts may need another address, because this host has no interface with that one (address
        translation) or its name means the loopback interface here (``127.0.1.1`` in /etc/hosts); or if the port is in
        use.
    """
    with contextlib.suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            address = str(place[0])
            if host not in ("localhost", address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                continue
            own = socket.socket(family, kind)
            try:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not refused by closed connections
                own.bind(place)
                own.listen(socket.SOMAXCONN)
                return own
            except OSError:
                own.close()
    return None
