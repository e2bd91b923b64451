"""A proxy that causes network faults between a client and a server. Also a program for tests in any language:

python faults.py PORT prints the proxy's port, and obeys each line of its input. A line is `drop`, `stall`,
`resume`, or a switch of `Proxy` and its value: `delay 0.5`, `silent 1`, `match ACQUIRE`, `half_close 1`,
`cut_replies 1`. The answer to the line `lost` is the number of lost replies. The program ends when its
input ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time


class Proxy:
    """Passes bytes on. Every switch can be set at any time, and applies to all connections."""

    def __init__(self, port):
        self.target = port
        self.delay = 0.0  # seconds by which replies are late
        self.silent = False  # no bytes pass; connections stay open
        self.stall_requests = False  # no bytes pass from the client to the server
        self.stalled = 0  # number of times that bytes of a client were held back
        self.refuse = False  # new connections are closed at once
        self.cut_replies = 0  # number of replies to lose, each with its connection
        self.half_close = False  # after a lost reply, only the client sees its connection end
        self.match = b""  # only replies to requests that contain these bytes are lost
        self.lost = 0  # number of lost replies
        self.accepted = 0  # number of accepted connections
        self._pairs = set()
        self._stalled = set()
        self._breaks = False
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self):
        """Closes every connection."""
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def stall(self, *, breaks=False):
        """Stops passing bytes on the connections that are open now. New connections work. With ``breaks``,
        a stalled connection ends for the client once the client has sent bytes over it. The server receives
        these bytes after `resume`."""
        self._breaks = breaks
        self._stalled = set(self._pairs)

    def resume(self):
        """Ends `stall`."""
        self._stalled = set()

    def close(self):
        self._is_closed = True
        # `close` alone would leave the listener open until `accept` has returned in the other thread.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.refuse:
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        pair = (client, server)
        self._pairs.add(pair)
        matched = is_broken = False
        try:
            while not self._is_closed:
                ready, _, _ = select.select(pair, [], [], 0.02)
                if self.silent or pair in self._stalled:
                    self.stalled += client in ready
                    if self._breaks and client in ready and not is_broken:
                        client.shutdown(socket.SHUT_WR)
                        is_broken = True
                    time.sleep(0.01)
                    continue
                for end in ready:
                    if end is client and self.stall_requests:
                        self.stalled += 1
                        time.sleep(0.001)
                        continue
                    data = end.recv(65536)
                    if not data:
                        return
                    if end is client:
                        matched = self.match in data
                        server.sendall(data)
                        continue
                    if self.cut_replies and matched:
                        self.cut_replies -= 1
                        self.lost += 1
                        if not self.half_close:
                            return
                        client.shutdown(socket.SHUT_WR)
                        continue
                    if self.delay:
                        time.sleep(self.delay)
                    client.sendall(data)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            client.close()
            server.close()


def main(port):
    proxy = Proxy(int(port))
    print(proxy.url.rpartition(":")[2], flush=True)
    for line in sys.stdin:
        name, _, value = line.strip().partition(" ")
        if name in ("drop", "stall", "resume"):
            getattr(proxy, name)()
        elif name == "lost":
            print(proxy.lost, flush=True)
        else:
            kind = type(vars(proxy)[name])
            setattr(proxy, name, value.encode() if kind is bytes else kind(float(value)))


if __name__ == "__main__":
    main(*sys.argv[1:])
