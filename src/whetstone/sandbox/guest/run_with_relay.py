"""First process of a sandboxed agent program: opens a listening socket, drops privileges, and executes the program.

The network namespace contains only the loopback interface. A listening socket remains in the namespace in which it was
created, whichever process holds it; the host therefore accepts connections from inside.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from whetstone.sandbox.guest import confine, wire


def run_program() -> None:
    """Open the listening socket, drop all privileges, and execute the requested program.

    The socket is passed to the host, and the program starts when the host confirms that it accepts connections.
    `sandboxed_process.start_program` runs this function inside bubblewrap.
    """
    host = socket.socket(fileno=int(sys.argv[1]))
    request = wire.receive_packet(host)[0]
    if request is None:
        return
    with socket.create_server(("127.0.0.1", request["port"]), backlog=64) as door:
        wire.send_packet(host, {"door": True}, [door.fileno()])
    if wire.receive_packet(host)[0] is None:
        return
    calls = confine.system_call_filters(own_files=True, loopback=True)
    try:
        bounds = confine.Bounds(**request["bounds"])
        confine.drop_privileges(bounds, [], user=request["user"], calls=calls, landlock=False)
        host.set_inheritable(False)
        os.execvp(request["argv"][0], request["argv"])
    except OSError as error:
        sys.exit(f"{json.dumps(request['argv'][0])}: {error.strerror}")


if __name__ == "__main__":
    run_program()
