#!/usr/bin/env python3
"""Golden vectors of tests/test_dequant.c: blocks of every stored type and their values by gguf's own numpy code.

Run with a Python that has numpy and gguf (checked with gguf 0.19): python3 tests/golden/make_dequant.py
Writes tests/golden/dequant.bin: for each type  name (8 bytes, zero-padded) | u32 blocks | u32 elements | raw | f32 values.
Blocks are random bytes, with scales that are ordinary, negative, zero or subnormal numbers in turn (no NaN, no infinity).
"""
import os
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKS = 6
# byte positions of the fp16 scales inside a block
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
KINDS = [0.0123, -1.75, 0.0, 3e-7, 61.5, -0.000977]


def main():
    rng = np.random.default_rng(20)
    out = bytearray()
    for name, positions in SCALES.items():
        elements, size = GGML_QUANT_SIZES[T[name]]
        raw = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for b in range(BLOCKS):
            for i, p in enumerate(positions):
                raw[b, p:p + 2] = np.frombuffer(np.float16(KINDS[(b + i) % len(KINDS)]).tobytes(), np.uint8)
        values = dequantize(raw.reshape(-1), T[name]).astype("<f4").reshape(-1)
        assert values.size == BLOCKS * elements and np.isfinite(values).all()
        out += name.encode().ljust(8, b"\0") + struct.pack("<II", BLOCKS, values.size) + raw.tobytes() + values.tobytes()
    f16 = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3555, 0x1234], "<u2")
    bf16 = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x3EAB, 0x1234], "<u2")
    f64 = np.array([0, -0.0, 1 / 3, 1e-40, 1e300, -2.5, 16777217.0, 1e-46, np.pi], "<f8")
    with np.errstate(over="ignore"):
        for name, raw, values in [("F16", f16, f16.view("<f2").astype("<f4")),
                                  ("BF16", bf16, (bf16.astype("<u4") << 16).view("<f4")), ("F64", f64, f64.astype("<f4"))]:
            out += name.encode().ljust(8, b"\0") + struct.pack("<II", raw.size, raw.size) + raw.tobytes() + values.tobytes()
    with open(os.path.join(HERE, "dequant.bin"), "wb") as file:
        file.write(out)
    print(len(out), "bytes")


main()
