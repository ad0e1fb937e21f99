"""The peer of `make bench`: Hugging Face transformers, torch and h5py at the shape of SmolLM2-135M in f32 (random weights:
speed only). Needs torch, transformers, h5py; build/bench-attgeo starts it and interleaves its runs with ours.

Reads one request a line and answers with seconds: `prefill T` (to the last token's logits), `dump T FILE` (queries and keys
of all layers by hooks, into FILE with h5py), `covariance N T` (N heads of T keys, 64 wide, f64), `eigh N`, `taylor T` (numpy: the
second-order remainder of softmax's log-partition with bounds B1 to B3 at every causal query of one layer); `memory` answers with
this process's peak in MB. The first line it writes names versions and threads.
"""

import os
import sys
import time

import h5py
import numpy as np
import torch
import transformers

threads = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
torch.set_num_threads(threads)
torch.manual_seed(0)
torch.set_grad_enabled(False)
config = transformers.LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, tie_word_embeddings=True, max_position_embeddings=8192, rope_theta=100000.0)
config._attn_implementation = "sdpa"
model = transformers.LlamaForCausalLM(config).float().eval()


def clock(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def forward(tokens):
    model(torch.arange(tokens).remainder(49000)[None], use_cache=False, logits_to_keep=1)


faster = {}


def prefill(tokens):
    """With the attention implementation that is faster at this length, found once."""
    if tokens not in faster:
        times = {}
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            forward(tokens)
            times[name] = min(clock(lambda: forward(tokens)) for _ in range(2))
        faster[tokens] = min(times, key=times.get)
    model.set_attn_implementation(faster[tokens])
    return clock(lambda: forward(tokens))


def dump(tokens, path):
    kept = {}

    def hook(name):
        return lambda module, inputs, output: kept.__setitem__(name, output.detach().clone())

    handles = []
    for i, layer in enumerate(model.model.layers):
        handles.append(layer.self_attn.q_proj.register_forward_hook(hook(f"{i}/queries")))
        handles.append(layer.self_attn.k_proj.register_forward_hook(hook(f"{i}/keys")))

    def work():
        forward(tokens)
        with h5py.File(path, "w") as file:
            for name, value in kept.items():
                file.create_dataset(name, data=value[0].numpy())
            file.flush()

    seconds = clock(work)
    for handle in handles:
        handle.remove()
    os.remove(path)
    return seconds


def covariance(heads, tokens):
    keys = torch.randn(heads, tokens, 64)

    def work():
        x = keys.double()
        x = x - x.mean(1, keepdim=True)
        return x.transpose(1, 2) @ x / tokens

    return clock(work)


def eigh(heads):
    x = torch.randn(heads, 128, 64, dtype=torch.float64)
    s = x.transpose(1, 2) @ x / 128
    return clock(lambda: torch.linalg.eigh(s))


def taylor(tokens, rows=256):
    """Vectorised over the 9 heads and `rows` queries at a time, the size that was fastest here; f64 as ours."""
    rng = np.random.default_rng(0)
    keys, queries = rng.normal(size=(3, tokens, 64)).astype(np.float32), rng.normal(size=(9, tokens, 64)).astype(np.float32)

    def psi(z):
        return np.where(np.abs(z) < 1e-3, 0.5 + z / 6 + z * z / 24, (np.expm1(z) - z) / np.where(z == 0, 1, z) ** 2)

    def work():
        k = np.repeat(keys.astype(np.float64), 3, 0)
        q = queries.astype(np.float64) / 8
        result = []
        for first in range(0, tokens, rows):
            last = min(first + rows, tokens)
            x = q[:, first:last] @ k[:, :last].transpose(0, 2, 1)
            seen = np.arange(last) <= np.arange(first, last)[:, None]
            t = seen.sum(1)
            m = np.where(seen, x, 0).sum(2) / t
            y = np.where(seen, x - m[..., None], 0)
            a, b = np.where(seen, x, np.inf).min(2), np.where(seen, x, -np.inf).max(2)
            y2 = y * y
            v, k3, m4 = y2.sum(2) / t, (y2 * y).sum(2) / t, (y2 * y2).sum(2) / t
            p = np.exp(np.where(seen, x - b[..., None], -np.inf))
            total = p.sum(2)
            A = b + np.log(total)
            R = A - np.log(t) - m - v / 2
            with np.errstate(all="ignore"):
                up, down, r = b - m, m - a, b - a
                wu, wl = v / (v + up * up), v / (v + down * down)
                b3 = np.log(wu * np.exp(up) + (1 - wu) * np.exp(-v / up)) - v / 2, np.log(wl * np.exp(-down) + (1 - wl) * np.exp(v / down)) - v / 2
            result.append((R, A, v, k3, m4 - 3 * v * v, total**2 / (p * p).sum(2), 1 / total, r**3 / (36 * 3**0.5), v * (psi(up) - 0.5), v * (psi(-r) - 0.5), *b3))
        return result

    return clock(work)


def memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


print(f"transformers {transformers.__version__}, torch {torch.__version__}, {threads} threads", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "prefill":
        answer = prefill(int(rest[0]))
    elif word == "dump":
        answer = dump(int(rest[0]), rest[1])
    elif word == "covariance":
        answer = covariance(int(rest[0]), int(rest[1]))
    elif word == "eigh":
        answer = eigh(int(rest[0]))
    elif word == "taylor":
        answer = taylor(int(rest[0]))
    else:
        answer = memory()
    print(answer, flush=True)
