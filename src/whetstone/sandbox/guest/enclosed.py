"""How does a foreign program of its own get the one address it may ask? Runs first in its world, and becomes it.

The world has a network with nothing in it. Here a door is opened in it, and who waits behind the door is somebody
outside: a socket that listens stays in the world it was made in, whoever holds it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from whetstone.sandbox.guest import confine, wire


def main() -> None:
    """Hand the door over, wait until somebody stands behind it, give up all the rest, become the program."""
    host = socket.socket(fileno=int(sys.argv[1]))
    asked = wire.receive_packet(host)[0]
    if asked is None:
        return
    with socket.create_server(("127.0.0.1", asked["port"]), backlog=64) as door:
        wire.send_packet(host, {"door": True}, [door.fileno()])
    if wire.receive_packet(host)[0] is None:
        return
    calls = confine.system_call_filters(own_files=True, loopback=True)
    try:
        bounds = confine.Bounds(**asked["bounds"])
        confine.confine(bounds, [], user=asked["user"], calls=calls, landlock=False)
        host.set_inheritable(False)
        os.execvp(asked["argv"][0], asked["argv"])
    except OSError as error:
        sys.exit(f"{json.dumps(asked['argv'][0])}: {error.strerror}")


if __name__ == "__main__":
    main()
