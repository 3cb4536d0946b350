# SPDX-License-Identifier: Apache-2.0
"""Prompt material: texts of a given size that differ from the first byte on, and compressed bodies made by hand."""
import gzip
import itertools
import random
import struct
import zlib

WORDS = ("amber basin cedar delta ember fjord grove haven inlet jetty knoll larch marsh north ocean pine quartz ridge "
         "shoal tarn upland vale weir yonder zephyr").split()
_serial = itertools.count(1)


def text(size, seed=None):
    """About `size` characters of words; equal seeds give equal texts, without one every text is new."""
    if seed is None:
        seed = f"once-{next(_serial)}"
    rng = random.Random(f"{seed}")
    words, length = [f"{rng.getrandbits(48):012x}"], 12
    while length < size:
        word = rng.choice(WORDS)
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]


def turns(count, seed, size=400):
    """A conversation: messages of turn 1, of turns 1 and 2, ... each a continuation of the one before."""
    messages = [{"role": "system", "content": text(size, f"{seed}-system")}]
    for turn in range(count):
        messages = messages + [{"role": "user", "content": text(size, f"{seed}-{turn}")}]
        yield messages
        messages = messages + [{"role": "assistant", "content": text(size // 4, f"{seed}-{turn}-answer")}]


# ---- compression ------------------------------------------------------------------------------------------------------


def zstd_store(data, piece=100000):
    """A zstd frame of raw blocks: legal for every decoder, and needs no library to make."""
    out = [struct.pack("<I", 0xFD2FB528), b"\x00\x58"]      # no content size; window of 2 MiB
    blocks = [data[i:i + piece] for i in range(0, len(data), piece)] or [b""]
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        out += [struct.pack("<I", len(block) << 3 | last)[:3], block]
    return b"".join(out)


def zstd_bomb(size):
    """A zstd frame of run-length blocks: four bytes each that unpack to 128 KiB."""
    count = size // 131072
    block, last = struct.pack("<I", 131072 << 3 | 1 << 1)[:3] + b" ", struct.pack("<I", 131072 << 3 | 1 << 1 | 1)[:3] + b" "
    return struct.pack("<I", 0xFD2FB528) + b"\x00\x58" + block * (count - 1) + last


def gzip_bomb(size, start=b""):
    """A gzip member of about size/1000 bytes that unpacks to `start` and `size` spaces (its checksum is wrong at the end)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start + b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + first + again * (size >> 20) + packer.flush(zlib.Z_FINISH) +
            b"\0" * 8)


def packed(data, how):
    """(bytes, content-encoding or None)"""
    if how == "gzip":
        return gzip.compress(data), "gzip"
    if how == "deflate":
        return zlib.compress(data), "deflate"
    if how == "zstd":
        return zstd_store(data), "zstd"
    return data, None
