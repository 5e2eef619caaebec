"""The kernel's part of GPUs that are not there: device nodes that are sockets, in a folder that a node is told is its driver's root. Makes each GPU's memory, lends it to whoever sees
that GPU's node, frees what a process leaves behind, keeps the record. The other half is in every process that opens the driver's library (bones/cuda/testing/fake_nodes.h)."""
import collections
import os
import pathlib
import selectors
import shutil
import socket
import struct
import threading

REQUEST, ANSWER = struct.Struct("<16sQQ"), struct.Struct("<QQ")
Event = collections.namedtuple("Event", "pid what gpu bytes")
Memory = collections.namedtuple("Memory", "gpu bytes fd connection")


class EmulatedGpus:
    """`root` is the driver's root: ROOT/dev/nvidiactl and nvidiaN, ROOT/usr/lib64 with the libraries."""

    def __init__(self, root, count, build):
        self.root = pathlib.Path(root)
        (self.root / "dev").mkdir(parents=True)
        (self.root / "usr/lib64").mkdir(parents=True)
        for source, name in (("testing/libtie_fake_cuda.so", "libcuda.so.1"), ("testing/libtie_fake_nccl.so", "libnccl.so.2"), ("src/supervision/gpuhealthd/libfake_nvml.so", "libnvidia-ml.so.1")):
            shutil.copy(build / source, self.root / "usr/lib64" / name)
        self.events, self.memories, self.attached = [], {}, set()
        self.lock, self.last = threading.Lock(), 0
        self.selector = selectors.DefaultSelector()
        self.quit, quitting = socket.socketpair()
        self.selector.register(quitting, selectors.EVENT_READ, lambda _: False)
        self.listeners = [self._node("nvidiactl", None)] + [self._node(f"nvidia{n}", n) for n in range(count)]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def record(self, what, pids=None, gpu=None):
        """Sizes, in order, of what the processes did."""
        with self.lock:
            return [e.bytes for e in self.events if e.what == what and (pids is None or e.pid in pids) and (gpu is None or e.gpu == gpu)]

    def used_by(self, pids):
        """The GPUs that these processes have opened a context of."""
        with self.lock:
            return {e.gpu for e in self.events if e.what == "device" and e.pid in pids}

    def held(self, gpu=None):
        """Bytes of a GPU, or all, that are in use now."""
        with self.lock:
            return sum(memory.bytes for memory in self.memories.values() if gpu in (None, memory.gpu))

    def close(self):
        self.quit.close()
        self.thread.join(10)
        for listener in self.listeners:
            listener.close()
        for memory in self.memories.values():
            os.close(memory.fd)
        self.memories = {}

    def _node(self, name, gpu):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.root / "dev" / name))
        listener.listen(64)
        self.selector.register(listener, selectors.EVENT_READ, lambda _: self._accept(listener, gpu))
        return listener

    def _accept(self, listener, gpu):
        connection, _ = listener.accept()
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.selector.register(connection, selectors.EVENT_READ, lambda _: self._answer(connection, pid, gpu))
        return True

    def _serve(self):
        while True:
            for key, _ in self.selector.select():
                with self.lock:
                    if not key.data(None):
                        return

    def _answer(self, connection, pid, gpu):
        try:
            message = connection.recv(REQUEST.size)
        except OSError:
            message = b""
        if len(message) != REQUEST.size:
            self._gone(connection, pid, gpu)
            return True
        what, size, memory = REQUEST.unpack(message)
        what = what.rstrip(b"\0").decode()
        refused, fds = 0, []
        if what == "alloc":
            self.last += 1
            memory = self.last
            fd = os.memfd_create("emulated-gpu")
            os.ftruncate(fd, size)
            self.memories[memory] = Memory(gpu, size, fd, connection)
            fds = [fd]
        elif what == "attach":
            there = self.memories.get(memory)
            refused = int(there is None or there.gpu != gpu or there.bytes != size)
            fds = [] if refused else [there.fd]
        elif what == "free":
            refused = int(memory not in self.memories or self.memories[memory].connection is not connection)
            if not refused:
                os.close(self.memories.pop(memory).fd)
        self.events.append(Event(pid, "refused" if refused else what, gpu, size))
        if what in ("alloc", "attach", "free", "detach"):
            try:
                socket.send_fds(connection, [ANSWER.pack(refused, memory)], fds)
            except OSError:
                pass  # it has ended meanwhile: its end is read next
        return True

    def _gone(self, connection, pid, gpu):
        """A process has ended: what it had is free again."""
        self.selector.unregister(connection)
        for number in [n for n, memory in self.memories.items() if memory.connection is connection]:
            memory = self.memories.pop(number)
            os.close(memory.fd)
            self.events.append(Event(pid, "reclaimed", gpu, memory.bytes))
        connection.close()
