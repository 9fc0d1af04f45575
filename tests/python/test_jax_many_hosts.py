"""The ops over two hosts joined by jax.distributed: two processes, whose collectives go over the loopback."""

import socket
import subprocess
import sys
from pathlib import Path

HOST = Path(__file__).parent / "many_hosts" / "host.py"


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % listener.getsockname()[1]


def test_two_hosts():
    address = free_address()
    hosts = [subprocess.Popen([sys.executable, HOST, address, "2", str(host)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True) for host in range(2)]
    try:
        said = [process.communicate(timeout=240)[0] for process in hosts]
    finally:
        for process in hosts:
            process.kill()
    for host, (process, text) in enumerate(zip(hosts, said)):
        assert process.returncode == 0, text
        assert f"host {host} of 2: all parts agree" in text
