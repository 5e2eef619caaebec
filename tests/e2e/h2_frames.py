"""Reads what passes a TCP socket as HTTP/2 frames, gRPC messages and protobuf fields. Written from RFC 9113, the gRPC-over-HTTP/2 note and
the protobuf encoding page; shares no code with the product or with any HTTP/2 library."""
import asyncio
import threading

from protobuf_by_hand import fields

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM = 0x0, 0x1, 0x3
PADDED = 0x8


def frames(stream):
    """(type, flags, stream id, payload) of each complete frame."""
    at = len(PREFACE) if stream.startswith(PREFACE) else 0
    while at + 9 <= len(stream):
        length = int.from_bytes(stream[at:at + 3], "big")
        kind, flags = stream[at + 3], stream[at + 4]
        stream_id = int.from_bytes(stream[at + 5:at + 9], "big") & 0x7FFFFFFF
        if at + 9 + length > len(stream):
            return
        yield kind, flags, stream_id, stream[at + 9:at + 9 + length]
        at += 9 + length


def data_by_stream(stream):
    """The DATA bytes of each HTTP/2 stream, in order."""
    out = {}
    for kind, flags, stream_id, payload in frames(stream):
        if kind != DATA:
            continue
        if flags & PADDED:
            payload = payload[1:len(payload) - payload[0]]
        out[stream_id] = out.get(stream_id, b"") + payload
    return out


def grpc_messages(data):
    """The messages of one direction of a gRPC stream. Compression is not allowed: it would make sizes speak."""
    at = 0
    while at + 5 <= len(data):
        assert data[at] == 0, "a compressed gRPC message"
        length = int.from_bytes(data[at + 1:at + 5], "big")
        if at + 5 + length > len(data):
            return
        yield data[at + 5:at + 5 + length]
        at += 5 + length


def sealed_chunks(messages, chunk_field):
    """(sealed bytes, final) of each message that carries a SealedChunk in `chunk_field`."""
    for message in messages:
        for number, value in fields(message):
            if number == chunk_field:
                inner = dict(fields(value))
                yield inner.get(1, b""), bool(inner.get(2, 0))


class Recorder:
    """A TCP relay on a free loopback port that keeps what passes, by connection and direction."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.connections = []  # (to node, from node) bytearrays
        self.port = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader, writer):
        kept = (bytearray(), bytearray())
        self.connections.append(kept)
        node_reader, node_writer = await asyncio.open_connection("127.0.0.1", self.target_port)

        async def pump(source, sink, keep):
            try:
                while piece := await source.read(65536):
                    keep.extend(piece)
                    sink.write(piece)
                    await sink.drain()
            except ConnectionError:
                pass
            finally:
                sink.close()

        await asyncio.gather(pump(reader, node_writer, kept[0]), pump(node_reader, writer, kept[1]), return_exceptions=True)
