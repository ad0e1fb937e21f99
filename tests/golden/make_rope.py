#!/usr/bin/env python3
"""Golden vectors of tests/test_model.c: RoPE frequencies as the reference library computes them, in f32.

Run with a Python that has torch and transformers (checked with torch 2.15, transformers 5.24):
python3 tests/golden/make_rope.py        Writes tests/golden/rope.txt: one case a line,
head_dim type theta factor low_freq_factor high_freq_factor original_max_position  bits of inv_freq in hex...
"""
import os

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [(64, "default", 1e5, 1, 0, 0, 0), (128, "default", 1e6, 1, 0, 0, 0), (32, "default", 1e4, 1, 0, 0, 0),
         (80, "default", 1.3e5, 1, 0, 0, 0), (128, "linear", 1e4, 3, 0, 0, 0), (128, "llama3", 5e5, 8, 1, 4, 8192),
         (64, "llama3", 5e5, 32, 1, 4, 8192), (48, "llama3", 1e4, 4, 1, 4, 64)]

with open(os.path.join(HERE, "rope.txt"), "w") as out:
    for D, kind, theta, factor, low, high, M0 in CASES:
        rope = {"rope_type": kind, "rope_theta": theta}
        if kind != "default":
            rope["factor"] = float(factor)
        if kind == "llama3":
            rope.update(low_freq_factor=float(low), high_freq_factor=float(high), original_max_position_embeddings=M0)
        config = LlamaConfig(hidden_size=2 * D, num_attention_heads=2, head_dim=D, max_position_embeddings=131072, rope_parameters=rope)
        bits = LlamaRotaryEmbedding(config).inv_freq.numpy().view("uint32")
        print(D, kind, theta, factor, low, high, M0, *("%08x" % b for b in bits), file=out)
