"""Fails unless the ranks' store listens at the loopback address alone."""

import os

import psutil

port = int(os.environ["MASTER_PORT"])
found = {each.laddr.ip for each in psutil.net_connections() if each.status == "LISTEN" and each.laddr.port == port}
assert found == {"127.0.0.1"}, found
