"""The Python binding of kvxfer (for the Triton host) between two processes, and the buffer's bytes as docs/kvxfer.md states them."""
import array
import fcntl
import mmap
import os
import pathlib
import signal
import socket
import struct
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("TIE_BUILD", ROOT / "build/release")) / "lib/libtie_kvxfer.so"
sys.path.insert(0, str(ROOT / "src/cache/kvxfer"))
import kvxfer  # noqa: E402

RUNTIME_LOST, OUT_OF_RANGE, PERMISSION_DENIED, DEADLINE, FAILED_PRECONDITION = 10, 17, 20, 11, 14
BLOCK = 10_000


@pytest.fixture(scope="module")
def library():
    assert LIBRARY.exists(), f"{LIBRARY} is missing: build first"
    return kvxfer.load(str(LIBRARY))


def description(blocks=4):
    ids = [(kvxfer.c_uint8 * 32)(*([i] * 32)) for i in (1, 2, 3)]
    return kvxfer.Description(*ids, blocks, 16, BLOCK)


def content(block):
    return bytes((block * 31 + i) % 251 for i in range(BLOCK))


def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def test_blocks_travel_between_two_processes(library):
    ours, theirs = socket.socketpair()

    def produce():
        producer = kvxfer.Producer(library, description())
        socket.send_fds(theirs, [b"x"], [producer.fileno()])
        for block in (2, 0):
            time.sleep(0.02)
            producer.write(block, content(block))
        producer.finish(32)
        theirs.recv(1)  # the payload is zeroed when it lets go

    pid = in_child(produce)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    with kvxfer.Consumer(library, fds[0]) as consumer:
        assert bytes(consumer.description.layout_id) == b"\3" * 32 and consumer.description.block_count == 4
        for block in (0, 2):
            consumer.wait(block, timeout_ms=5000, peer=ours.fileno())
            assert bytes(consumer.block(block)) == content(block)
        assert consumer.wait_finished(5000, ours.fileno()) == 32
        with pytest.raises(kvxfer.KvError) as error:
            consumer.block(1)
        assert error.value.code == FAILED_PRECONDITION
        with pytest.raises(TypeError):
            consumer.block(0)[0] = 1
        ours.send(b"x")
    assert os.waitpid(pid, 0)[1] == 0


def test_the_producers_death_wakes_the_consumer(library):
    ours, theirs = socket.socketpair()

    def produce():
        producer = kvxfer.Producer(library, description())
        socket.send_fds(theirs, [b"x"], [producer.fileno()])
        signal.pause()

    pid = in_child(produce)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    with kvxfer.Consumer(library, fds[0]) as consumer:
        with pytest.raises(kvxfer.KvError) as error:
            consumer.wait(0, timeout_ms=50, peer=ours.fileno())
        assert error.value.code == DEADLINE
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(kvxfer.KvError) as error:
            consumer.wait(0, timeout_ms=10_000, peer=ours.fileno())
        assert error.value.code == RUNTIME_LOST and "died" in str(error.value)
    os.waitpid(pid, 0)


def test_the_bytes_are_those_of_the_document(library):
    producer = kvxfer.Producer(library, description())
    with mmap.mmap(os.dup(producer.fileno()), 0, prot=mmap.PROT_READ) as memory:
        producer.write(2, content(2))
        producer.begin(1)
        assert memory[:8] == b"TIEKVXF1"
        assert memory[8:104] == b"\1" * 32 + b"\2" * 32 + b"\3" * 32
        assert struct.unpack_from("<IIQ", memory, 104) == (4, 16, BLOCK)
        assert struct.unpack_from("<4I", memory, 4096) == (0, 1, 2, 0)
        assert struct.unpack_from("<III", memory, 120) == (0, 0, 1)  # open; one commit
        producer.finish(33)
        assert struct.unpack_from("<III", memory, 120) == (1, 33, 2)
        assert memory[8192 + 2 * BLOCK : 8192 + 3 * BLOCK] == content(2)
        assert len(memory) == 8192 + 4 * BLOCK
        producer.close()
        assert not any(memory[8192:]), "the payload is zeroed before the producer lets go"


def test_wrong_use_is_an_error_with_a_sentence(library):
    with pytest.raises(kvxfer.KvError) as error:
        kvxfer.Producer(library, description(blocks=0))
    assert error.value.code == OUT_OF_RANGE and "blocks" in str(error.value)
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 100_000)
    with pytest.raises(kvxfer.KvError) as error:
        kvxfer.Consumer(library, unsealed)
    assert error.value.code == PERMISSION_DENIED
    with pytest.raises(OSError):
        os.fstat(unsealed)  # taken, also when it fails
    producer = kvxfer.Producer(library, description())
    with pytest.raises(kvxfer.KvError):
        producer.commit(0)
    with pytest.raises(ValueError):
        producer.write(0, b"too short")
    assert library.tie_kv_producer_commit(None, 0) == 1


def test_every_word_of_a_lying_header_is_refused_or_harmless(library):
    producer = kvxfer.Producer(library, description())
    with mmap.mmap(os.dup(producer.fileno()), 0, prot=mmap.PROT_READ) as memory:
        good = memory[:]
    for at in range(0, 160, 4):
        fd = os.memfd_create("lying", os.MFD_ALLOW_SEALING)
        os.write(fd, good[:at] + array.array("I", [0xFFFFFFFF]).tobytes() + good[at + 4 :])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        try:
            consumer = kvxfer.Consumer(library, fd)
        except kvxfer.KvError:
            continue
        assert consumer.description.block_count * consumer.description.block_bytes == 4 * BLOCK, at
        consumer.close()
