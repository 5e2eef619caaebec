"""kvxfer from Python (ctypes over kvxfer_c.h), for the Triton host: both sides of a KV buffer. Rules: kv_buffer.h; bytes: docs/kvxfer.md.

    producer = Producer(library, Description(..., block_count=4, block_tokens=16, block_bytes=4096))
    send_fd(producer.fileno()); producer.write(0, data); producer.finish(token_count=16)
    consumer = Consumer(library, fd); consumer.wait(0, timeout_ms=1000, peer=socket.fileno()); bytes(consumer.block(0))

`library` is load("…/libtie_kvxfer.so"). Errors are KvError with the product's code. One producer, one consumer; an object belongs to one thread.
"""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_uint8, c_void_p


class Description(ctypes.Structure):
    _fields_ = [("model_id", c_uint8 * 32), ("release_id", c_uint8 * 32), ("layout_id", c_uint8 * 32), ("block_count", c_uint32), ("block_tokens", c_uint32), ("block_bytes", c_uint64)]


class KvError(Exception):
    def __init__(self, code, sentence):
        super().__init__(sentence)
        self.code = code  # number of proto/common.proto's ErrorCode


_SIGNATURES = {
    "producer_create": [POINTER(Description), POINTER(c_void_p)],
    "producer_fd": [c_void_p, POINTER(c_int)],
    "producer_begin": [c_void_p, c_uint32, POINTER(c_void_p)],
    "producer_commit": [c_void_p, c_uint32],
    "producer_finish": [c_void_p, c_uint32],
    "producer_abort": [c_void_p],
    "consumer_attach": [c_int, POINTER(c_void_p)],
    "consumer_description": [c_void_p, POINTER(Description)],
    "consumer_wait_block": [c_void_p, c_uint32, c_int64, c_int],
    "consumer_wait_finished": [c_void_p, c_int64, c_int, POINTER(c_uint32)],
    "consumer_block": [c_void_p, c_uint32, POINTER(c_void_p)],
}


def load(path):
    """The shared library, with every function's types stated."""
    library = ctypes.CDLL(path)
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, "tie_kv_" + name)
        function.argtypes, function.restype = arguments, c_int
    for name in ("producer_destroy", "consumer_destroy"):
        function = getattr(library, "tie_kv_" + name)
        function.argtypes, function.restype = [c_void_p], None
    library.tie_kv_last_error.restype = c_char_p
    return library


class _Side:
    _destroy = ""

    def __init__(self, library):
        self._library, self._object = library, c_void_p()

    def _call(self, name, *arguments):
        code = getattr(self._library, "tie_kv_" + name)(*arguments)
        if code != 0:
            raise KvError(code, self._library.tie_kv_last_error().decode())

    def close(self):
        if self._object:
            getattr(self._library, "tie_kv_" + self._destroy)(self._object)
            self._object = c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


class Producer(_Side):
    _destroy = "producer_destroy"

    def __init__(self, library, description):
        super().__init__(library)
        self.block_bytes = description.block_bytes
        self._call("producer_create", byref(description), byref(self._object))

    def fileno(self):
        """The producer's own descriptor: sending it duplicates it."""
        fd = c_int()
        self._call("producer_fd", self._object, byref(fd))
        return fd.value

    def begin(self, block):
        """A writable view of the block's shared memory (numpy.frombuffer takes it). Invalid after close()."""
        place = c_void_p()
        self._call("producer_begin", self._object, block, byref(place))
        return memoryview((c_uint8 * self.block_bytes).from_address(place.value)).cast("B")

    def commit(self, block):
        self._call("producer_commit", self._object, block)

    def write(self, block, data):
        """begin, one copy, commit."""
        self.begin(block)[:] = data
        self.commit(block)

    def finish(self, token_count):
        self._call("producer_finish", self._object, token_count)

    def abort(self):
        self._call("producer_abort", self._object)


class Consumer(_Side):
    _destroy = "consumer_destroy"

    def __init__(self, library, fd):
        """Takes fd, also when it fails."""
        super().__init__(library)
        self._call("consumer_attach", fd, byref(self._object))
        self.description = Description()
        self._call("consumer_description", self._object, byref(self.description))

    def wait(self, block, timeout_ms, peer=-1):
        self._call("consumer_wait_block", self._object, block, timeout_ms, peer)

    def wait_finished(self, timeout_ms, peer=-1):
        count = c_uint32()
        self._call("consumer_wait_finished", self._object, timeout_ms, peer, byref(count))
        return count.value

    def block(self, block):
        """A read-only view of a committed block's shared memory: read each byte once. Invalid after close()."""
        place = c_void_p()
        self._call("consumer_block", self._object, block, byref(place))
        return memoryview((c_uint8 * self.description.block_bytes).from_address(place.value)).cast("B").toreadonly()
