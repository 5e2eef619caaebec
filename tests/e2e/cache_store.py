"""cache_stored's protocol and kvxfer.sock's, by hand, for a test that plays whoever may write the store: src/proto/store.proto, src/proto/kvxfer.proto."""
import array
import fcntl
import hashlib
import os
import socket
import struct

from protobuf_by_hand import field, fields, varint

F_ADD_SEALS, ALL_SEALS = 1033, 1 | 2 | 4 | 8
BIND, PUT, GET, DELETE, SWAP, STATS = 1, 2, 3, 4, 5, 6


class Framed:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(str(path))

    def ask(self, message, fd=None):
        control = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.socket.sendmsg([struct.pack(">I", len(message)) + message], control)
        data, ancillary, _, _ = self.socket.recvmsg(4, socket.CMSG_SPACE(8 * 4))
        fds = array.array("i")
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(value)
        size, data = struct.unpack(">I", data)[0], b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the connection was closed"
            data += part
        return dict(fields(data)), list(fds)

    def close(self):
        self.socket.close()


class Store(Framed):
    def __init__(self, run_dir):
        super().__init__(run_dir / "cache/cache.sock")
        self.ask(field(BIND, field(1, b"t" * 32)))

    def get(self, entry_id):
        """None when there is none."""
        reply, fds = self.ask(field(GET, field(1, entry_id)))
        if 1 in reply:
            return None
        if not fds:
            return reply[3]
        with os.fdopen(fds[0], "rb") as file:
            return file.read()

    def delete(self, entry_id):
        self.ask(field(DELETE, field(1, entry_id)))

    def replace(self, entry_id, value):
        self.delete(entry_id)
        fd = os.memfd_create("entry", os.MFD_ALLOW_SEALING)
        os.write(fd, value)
        fcntl.fcntl(fd, F_ADD_SEALS, ALL_SEALS)
        reply, _ = self.ask(field(PUT, field(1, entry_id) + varint(2 << 3) + varint(len(value))), fd)
        os.close(fd)
        assert 1 not in reply, reply

    def replace_manifest(self, entry_id, value):
        old = self.get(entry_id)
        reply, _ = self.ask(field(SWAP, field(1, entry_id) + field(2, hashlib.sha256(old).digest()) + field(3, value)))
        assert 1 not in reply, reply

    def entries(self):
        return self.ask(field(STATS, b""))[0].get(4, 0)

    def principals(self):
        """How many hold entries; those without a credential are one together."""
        return self.ask(field(STATS, b""))[0].get(8, 0)


def identity(run_dir, model):
    """Model id, release id and layout id of the runtime's KV blocks, as a seal binds them."""
    runtime = Framed(run_dir / f"kvxfer/{model}/kvxfer.sock")
    reply, _ = runtime.ask(field(3, b""))
    runtime.close()
    return reply[2] + reply[3] + reply[4]
