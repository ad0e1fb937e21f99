#!/usr/bin/env python3
"""What the reference library computes for SmolLM2-135M-Instruct (Q4_1, GGUF) from the same dequantised weights.

Run with a Python that has torch, transformers, tokenizers, gguf and numpy (made with 2.15, 5.24, 0.23, 0.18):
    ATTGEO_SMOLLM2=FILE.gguf python tests/golden/make_smollm2.py
It reads tests/golden/text.txt and writes tests/golden/smollm2.safetensors. All in float32, eager attention, on the CPU.

 ids (T)              token ids of the text (the tokenizer of the file, rebuilt from its metadata)
 nll (T - 1)          -log p(ids[t + 1] | ids[0..t]), double
 rows (30, 3, R)      seeded choice of token rows, by layer and key head, of the first 500 tokens (run alone)
 proj, rope (30, 3, R, 64)  keys there
 proj_norm, rope_norm (30, 3)  root mean square of the keys over all 500 tokens
 proj_mean, rope_mean (30, 3, 64) means over the 500 tokens
 logits (8, 49152 / 64) every 64th logit of the last eight of the 500 tokens
"""
import os
import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
N, R = 500, 4


def field(reader, name):
    return reader.fields[name].contents()


def tokenizer(reader):
    tokens, merges = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.merges")
    assert field(reader, "tokenizer.ggml.pre") == "smollm"
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types) if k == 3])
    return tok


def unpermute(w, heads):
    D = w.shape[0] // heads
    return w.reshape(heads, D // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(reader):
    heads, kv = field(reader, "llama.attention.head_count"), field(reader, "llama.attention.head_count_kv")
    layers = field(reader, "llama.block_count")
    w = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1].tolist()) for t in reader.tensors}
    assert "output.weight" not in w
    config = LlamaConfig(
        vocab_size=w["token_embd.weight"].shape[0], hidden_size=field(reader, "llama.embedding_length"),
        intermediate_size=field(reader, "llama.feed_forward_length"), num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, rms_norm_eps=field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field(reader, "llama.rope.freq_base")},
        max_position_embeddings=field(reader, "llama.context_length"), tie_word_embeddings=True, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state = {"model.embed_tokens.weight": w["token_embd.weight"], "model.norm.weight": w["output_norm.weight"]}
    for n in range(layers):
        for ours, theirs in names.items():
            x = w[f"blk.{n}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                x = unpermute(x, heads if ours == "attn_q" else kv)
            state[f"model.layers.{n}.{theirs}.weight"] = x
    state = {k: torch.tensor(np.ascontiguousarray(v, dtype=np.float32)) for k, v in state.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def main():
    reader = gguf.GGUFReader(os.environ["ATTGEO_SMOLLM2"])
    ids = tokenizer(reader).encode((HERE / "text.txt").read_text()).ids
    model = load(reader)
    assert len(ids) > 600
    out = {"ids": torch.tensor(ids)}
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
        out["nll"] = -torch.log_softmax(logits[:-1], -1).gather(1, out["ids"][1:, None])[:, 0].contiguous()
        proj = []
        hooks = [l.self_attn.k_proj.register_forward_hook(lambda _, __, y: proj.append(y[0])) for l in model.model.layers]
        run = model(torch.tensor([ids[:N]]), use_cache=True)
        for hook in hooks:
            hook.remove()
    out["logits"] = run.logits[0, -8:, ::64].contiguous()
    heads = model.config.num_key_value_heads
    keys = {"proj": torch.stack([y.reshape(N, heads, -1).transpose(0, 1) for y in proj]),
            "rope": torch.stack([layer.keys[0] for layer in run.past_key_values.layers])}
    rng = np.random.default_rng(7)
    L, D = len(proj), keys["rope"].shape[-1]
    rows = torch.tensor(np.stack([[np.sort(rng.choice(N, R, replace=False)) for _ in range(heads)] for _ in range(L)]))
    out["rows"] = rows
    for tap, x in keys.items():
        out[tap] = x.gather(2, rows[..., None].expand(L, heads, R, D)).contiguous()
        out[f"{tap}_norm"] = x.double().square().mean((2, 3)).sqrt().float().contiguous()
        out[f"{tap}_mean"] = x.double().mean(2).float().contiguous()
    save_file(out, HERE / "smollm2.safetensors")
    print(len(ids), "tokens, perplexity", out["nll"].mean().exp().item())


main()
