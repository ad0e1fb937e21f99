#!/usr/bin/env python3
"""Tiny random models of every family, and what the reference library computes from them.

Run with a Python that has torch, transformers, safetensors and gguf (made with 2.15, 5.24, 0.8 and 0.18):
    python tests/golden/make_models.py
It writes tests/golden/models/NAME/{config.json, model.safetensors}, NAME.golden.safetensors and, for some, the same weights
as NAME.gguf, or NAME-q8_0.gguf (quantised, with goldens of their own, computed from the dequantised weights).

A golden file: ids, offsets (packed prompts, each run alone through the library in float32, eager attention), logits (T, V),
and per layer l: l.proj.q, l.proj.k, l.rope.q, l.rope.k, l.v, where there is QK-norm l.norm.q, l.norm.k: (T, heads * D).
"""
import importlib
import json
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

OUT = pathlib.Path(__file__).parent / "models"
LENGTHS = [5, 1, 17, 2]
BASE = dict(vocab_size=61, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
            attn_implementation="eager", bos_token_id=0, eos_token_id=0)
GQA = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=16, hidden_size=48)


def rope(theta=10000.0, **more):
    return {"rope_theta": theta, "rope_type": "default", **more}


LLAMA3 = rope(50000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
WINDOW = dict(num_hidden_layers=2, use_sliding_window=True, sliding_window=8, max_window_layers=0,
              layer_types=["sliding_attention", "full_attention"])

# name: model class, config class, changes, dtype of the matrices in the file, GGUF architecture or None, quantised too
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, dict(rope_parameters=rope(), num_hidden_layers=2, max_position_embeddings=16), "f32", "llama", None),
    "llama-bias-gqa": (LlamaForCausalLM, LlamaConfig,
                       dict(rope_parameters=rope(), num_hidden_layers=2, attention_bias=True, mlp_bias=True, **GQA), "bf16", "llama", None),
    "llama-linear": (LlamaForCausalLM, LlamaConfig,
                     dict(rope_parameters=rope(rope_type="linear", factor=4.0), num_key_value_heads=2), "f16", None, None),
    "llama3": (LlamaForCausalLM, LlamaConfig, dict(rope_parameters=LLAMA3, **{**GQA, "hidden_size": 96}), "bf16", "llama", "Q8_0"),
    "smollm": (LlamaForCausalLM, LlamaConfig,
               dict(rope_parameters=rope(100000.0), tie_word_embeddings=True, num_attention_heads=6,
                    num_key_value_heads=2, hidden_size=96), "bf16", "llama", "Q4_1"),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, dict(rope_parameters=rope(1000000.0), num_key_value_heads=2), "bf16", "qwen2",
              None),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, dict(rope_parameters=rope(1000000.0), tie_word_embeddings=True, **GQA), "bf16",
              "qwen3", None),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config, dict(rope_parameters=rope(), num_key_value_heads=2, **WINDOW), "bf16",
                     None, None),
    "qwen3-window": (Qwen3ForCausalLM, Qwen3Config,
                     dict(rope_parameters=rope(), num_key_value_heads=2, head_dim=8, **WINDOW), "bf16", None, None),
}
DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def randomise(model, dtype, seed):
    """Weights that make attention uneven and every bias and norm matter; matrices exactly representable in dtype."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            if name.endswith("q_norm.weight"):
                p.fill_(2.0)
                p.add_(0.1 * x)
            elif name.endswith("k_norm.weight"):
                p.fill_(0.5)
                p.add_(0.1 * x)
            elif p.dim() == 1:
                p.copy_(1 + 0.2 * x if "norm" in name else 0.3 * x)
            else:
                p.copy_((x * (1.0 if "embed" in name else 1.5 / p.shape[1] ** 0.5)).to(dtype).float())


def golden(model, ids, offsets):
    module = importlib.import_module(type(model).__module__)
    out = {"ids": torch.tensor(ids), "offsets": torch.tensor(offsets)}
    pieces = {}
    for begin, end in zip(offsets, offsets[1:]):
        seen, hooks = {}, []
        for n, layer in enumerate(model.model.layers):
            for part in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm"):
                sub = getattr(layer.self_attn, part, None)
                if sub is not None:
                    hooks.append(sub.register_forward_hook(
                        lambda _, __, y, key=(n, part): seen.__setitem__(key, y.detach().reshape(y.shape[1], -1))))
        batch = torch.tensor([ids[begin:end]])
        with torch.no_grad():
            logits = model(batch).logits[0]
            x = model.model.embed_tokens(batch)
            cos, sin = model.model.rotary_emb(x, torch.arange(end - begin)[None])
        for hook in hooks:
            hook.remove()
        new = {"logits": logits}
        for n, layer in enumerate(model.model.layers):
            new[f"{n}.v"] = seen[n, "v_proj"]
            last = {}
            for x in "qk":
                new[f"{n}.proj.{x}"] = last[x] = seen[n, f"{x}_proj"]
                if (n, f"{x}_norm") in seen:
                    new[f"{n}.norm.{x}"] = last[x] = seen[n, f"{x}_norm"]
            D = layer.self_attn.head_dim
            heads = [last[x].reshape(1, end - begin, -1, D).transpose(1, 2) for x in "qk"]
            q, k = module.apply_rotary_pos_emb(*heads, cos, sin)
            new[f"{n}.rope.q"], new[f"{n}.rope.k"] = (y[0].transpose(0, 1).reshape(end - begin, -1) for y in (q, k))
        for key, value in new.items():
            pieces.setdefault(key, []).append(value)
    out.update({key: torch.cat(value).contiguous() for key, value in pieces.items()})
    return out


def permute(w, heads):
    """Rows as llama.cpp's converter stores q and k of architecture llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


GGUF_NAME = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def write_gguf(path, model, arch, dtype, quantised):
    """Returns the weights that a reader of the file gets, under their own names."""
    c = model.config
    w = gguf.GGUFWriter(path, arch)
    w.add_name(path.stem)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    D = model.model.layers[0].self_attn.head_dim
    w.add_key_length(D)
    w.add_value_length(D)
    w.add_rope_dimension_count(D)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    w.add_vocab_size(c.vocab_size)
    if c.rope_parameters["rope_type"] == "llama3":
        base = 1.0 / c.rope_parameters["rope_theta"] ** (torch.arange(0, D, 2).float() / D)
        w.add_tensor("rope_freqs.weight", (base / model.model.rotary_emb.inv_freq).numpy().astype(np.float32))
    got = {}
    for name, p in model.state_dict().items():
        x = p.float().numpy()
        if name == "lm_head.weight":
            if c.tie_word_embeddings:
                continue
            to = "output.weight"
        elif name in ("model.embed_tokens.weight", "model.norm.weight"):
            to = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        else:
            _, _, n, part = name.split(".", 3)
            stem, kind = part.rsplit(".", 1)
            to = f"blk.{n}.{GGUF_NAME[stem]}.{kind}"
        heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(to.split(".")[-2], 0)
        if arch == "llama" and heads:
            x = permute(x, heads)
        if quantised and x.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantised]
            raw = gguf.quants.quantize(x, kind)
            w.add_tensor(to, raw, raw_dtype=kind)
            x = gguf.quants.dequantize(raw, kind)
        else:
            kind = gguf.GGMLQuantizationType[dtype.upper() if x.ndim == 2 else "F32"]
            w.add_tensor(to, gguf.quants.quantize(x, kind), raw_dtype=kind)
        if arch == "llama" and heads:  # back to the library's order
            D_ = x.shape[0] // heads
            x = x.reshape(heads, D_ // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
        got[name] = torch.tensor(x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return got


def main():
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(20260101)
    offsets = [0, *np.cumsum(LENGTHS).tolist()]
    for seed, (name, (cls, config, changes, dtype, arch, quantised)) in enumerate(MODELS.items()):
        c = config(**{**BASE, **changes})
        model = cls(c).eval()
        randomise(model, DTYPE[dtype], seed)
        ids = rng.integers(0, c.vocab_size, offsets[-1]).tolist()
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        weights = {k: (v.to(DTYPE[dtype]) if v.dim() == 2 else v).clone() for k, v in model.state_dict().items()
                   if not (k == "lm_head.weight" and c.tie_word_embeddings)}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        text = {k: v for k, v in json.loads(c.to_json_string(use_diff=False)).items() if k != "transformers_version"}
        text["architectures"] = [cls.__name__]
        (folder / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
        save_file(golden(model, ids, offsets), OUT / f"{name}.golden.safetensors")
        if arch and not quantised:
            write_gguf(OUT / f"{name}.gguf", model, arch, dtype, None)
        if quantised:
            stem = f"{name}-{quantised.lower()}"
            model.load_state_dict(write_gguf(OUT / f"{stem}.gguf", model, arch, dtype, quantised), strict=False)
            save_file(golden(model, ids, offsets), OUT / f"{stem}.golden.safetensors")
        print(name)


main()
