"""Processes of embedded services: whose port it is that answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil

from include.services.process import free_port, listens

LISTEN_BELOW = """
import subprocess, sys
below = '''
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
sys.stdin.read()
'''
subprocess.run([sys.executable, "-c", below, sys.argv[1]])
"""


def test_port_belongs_to_a_process_when_it_or_its_child_listens() -> None:
    port, here = free_port(), psutil.Process(os.getpid())
    started = subprocess.Popen(
        [sys.executable, "-c", LISTEN_BELOW, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        assert listens(psutil.Process(started.pid), port)
        with socket.create_server(("127.0.0.1", free_port())) as own:
            assert listens(here, own.getsockname()[1])
            # Another's process, which is no child of this one's.
            assert not listens(psutil.Process(started.pid), own.getsockname()[1])
    finally:
        started.communicate("")
    assert not listens(here, port)
