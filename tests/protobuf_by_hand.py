"""Protobuf's wire format in a page, for tests that must not share the product's code. Source: protobuf.dev/programming-guides/encoding."""
import struct


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """A length-delimited field: bytes, a string's UTF-8 or a serialized message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """(number, value) pairs of a message in order: integers, floats for 32-bit fields, bytes."""
    at = 0

    def number():
        nonlocal at
        shift = value = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
        elif kind == 5:
            yield key >> 3, struct.unpack_from("<f", data, at)[0]
            at += 4
        elif kind == 2:
            size = number()
            assert at + size <= len(data), "a field runs over the end"
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind}")
