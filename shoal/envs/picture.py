"""Image files, written from NumPy arrays with nothing but the standard library: PNG and animated GIF."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

import numpy as np

_FEWER_BITS = ((8, 8, 8), (6, 6, 6), (5, 5, 5), (4, 4, 4), (3, 3, 3), (3, 3, 2))  # of a channel, until 256 colours do


def png(image: np.ndarray) -> bytes:
    """uint8 [H, W, 3] as a PNG file."""
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # a row begins with its filter: none
    rows[:, 1:] = image.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + chunk(b"IEND", b"")


def gif(frames: list[np.ndarray], frame_s: float) -> bytes:
    """Images uint8 [H, W, 3], all of one size, as a GIF that repeats for ever; ``frame_s`` seconds each.

    After the first, a frame holds only the rectangle that changed.
    """
    height, width, _ = frames[0].shape
    packed = [_packed(frame) for frame in frames]
    colours, palette, index = _palette(packed)
    bits = max(2, int(len(palette) - 1).bit_length())  # the format knows no smaller code
    table = np.zeros((1 << bits, 3), np.uint8)
    table[:len(palette)] = palette
    parts = [b"GIF89a", struct.pack("<HHBBB", width, height, 0xF0 | (bits - 1), 0, 0), table.tobytes(),
             b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"]
    before: np.ndarray | None = None
    for colour in packed:
        picture = index[np.searchsorted(colours, colour)]
        top, bottom, left, right = _changed(before, picture)
        delay = struct.pack("<BBBBHBB", 0x21, 0xF9, 4, 1 << 2, max(2, round(frame_s * 100)), 0, 0)  # stays until it is covered
        place = struct.pack("<BHHHHB", 0x2C, left, top, right - left, bottom - top, 0)
        parts += [delay, place, bytes([bits]), _blocks(lzw(picture[top:bottom, left:right].tobytes(), bits))]
        before = picture
    return b"".join([*parts, b"\x3b"])


def _packed(image: np.ndarray) -> np.ndarray:
    """Colours as single numbers, int32 [H, W]."""
    wide = image.astype(np.int32)
    return wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2]


def _palette(packed: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All colours, sorted; at most 256 to show them with, uint8 [K, 3]; and which of these each colour becomes, uint8."""
    colours = np.unique(np.concatenate([np.unique(frame) for frame in packed]))
    channels = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    for bits in _FEWER_BITS:
        coarse = channels >> (8 - np.array(bits))
        groups, index = np.unique(coarse @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True)
        if len(groups) <= 256:
            break
    sizes = np.bincount(index)
    means = np.stack([np.bincount(index, channels[:, i]) / sizes for i in range(3)], axis=1)
    return colours, np.rint(means).astype(np.uint8), index.astype(np.uint8)


def _changed(before: np.ndarray | None, now: np.ndarray) -> tuple[int, int, int, int]:
    """Top, bottom, left, right of what differs; one pixel where nothing does, for a frame cannot be empty."""
    if before is None:
        return 0, now.shape[0], 0, now.shape[1]
    rows, columns = np.flatnonzero((before != now).any(1)), np.flatnonzero((before != now).any(0))
    if not len(rows):
        return 0, 1, 0, 1
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def lzw(pixels: bytes, bits: int) -> bytes:
    """Indices below ``1 << bits`` as GIF's variant of LZW. Welch (1984), "A technique for high-performance data compression"."""
    clear, end = 1 << bits, (1 << bits) + 1
    width, following, known = bits + 1, end + 1, dict[int, int]()  # known: code and next pixel → code
    out, held, num_held = bytearray(), clear, width  # held: bits that wait, the earliest lowest
    code = pixels[0]
    for pixel in memoryview(pixels)[1:]:
        pair = code << 8 | pixel
        if pair in known:
            code = known[pair]
            continue
        held |= code << num_held
        num_held += width
        known[pair] = following
        if following == 1 << width:
            width += 1
        following += 1
        if following == 4096:  # codes have 12 bits at most: begin again
            held |= clear << num_held
            num_held += width
            width, following, known = bits + 1, end + 1, {}
        code = pixel
        while num_held >= 8:
            out.append(held & 255)
            held >>= 8
            num_held -= 8
    held |= code << num_held
    num_held += width
    if following == 1 << width and width < 12:  # the reader has made one more code from the last
        width += 1
    held |= end << num_held
    num_held += width
    return bytes(out) + held.to_bytes((num_held + 7) // 8, "little")


def _blocks(data: bytes) -> bytes:
    """Data in blocks of up to 255 bytes, each behind its length, and an empty one at the end."""
    return b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b"\x00"
