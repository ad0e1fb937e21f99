"""Golden files of linear attention: python tests/golden/make_linear.py [FOLDER OF THE SAMPLES]. Needs numpy.

1. With the samples' folder: gla, gdn, ccq-gla, ccq-gdn to tests/golden/linear/NAME, their golden values trimmed to what
   tests/test_linear.c compares (logits of the last 16 tokens; keys and queries of the first and last 8).
2. Always: tiny models with random weights, one for each branch of the reader and the mixer that the samples do not take,
   and what the recurrences below (double, one token after the other, as spec/linear-models.md states them) make of them.
"""
import json, os, shutil, sys
import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "linear")
NAMES = {"float32": "F32", "int64": "I64"}


def save(path, tensors):
    header, at, data = {}, 0, b""
    for name, x in tensors.items():
        x = np.ascontiguousarray(x)
        header[name] = dict(dtype=NAMES[str(x.dtype)], shape=list(x.shape), data_offsets=[at, at + x.nbytes])
        at += x.nbytes
        data += x.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(len(text).to_bytes(8, "little") + text + data)


def load(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
    return {name: np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], kinds[t["dtype"]])
            .reshape(t["shape"]) for name, t in json.loads(raw[8:8 + n]).items() if name != "__metadata__"}


def trim(samples):
    for name in ("gla", "gdn", "ccq-gla", "ccq-gdn"):
        to = os.path.join(HERE, name)
        os.makedirs(to, exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(os.path.join(samples, name, file), os.path.join(to, file))
        golden = load(os.path.join(samples, name, "golden.safetensors"))
        T = len(golden["input_ids"])
        tokens = np.r_[0:8, T - 8:T].astype("int64")
        out = dict(input_ids=golden["input_ids"], tokens=tokens, logits=golden["logits_f64"][-16:].astype("float32"))
        for key, x in golden.items():
            if key.startswith("layers.") and key[-2:] in (".q", ".k"):  # (H, T, D)
                out[key[len("layers."):-1] + "norm" + key[-2:]] = x[:, tokens].astype("float32")
        save(os.path.join(HERE, name + ".golden.safetensors"), out)


sigmoid = lambda x: 1 / (1 + np.exp(-x))
silu = lambda x: x * sigmoid(x)
softplus = lambda x: np.logaddexp(0, x)
MAPS = {None: lambda x: x, "identity": lambda x: x, "silu": silu, "swish": silu, "relu": lambda x: np.maximum(x, 0),
        "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))), "sigmoid": sigmoid,
        "sqrelu": lambda x: np.maximum(x, 0) ** 2}
rms = lambda x, w, eps: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
l2 = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def conv(u, w):
    W = w.shape[-1]
    pad = np.concatenate((np.zeros((W - 1, u.shape[1])), u))
    return sum(pad[j:j + len(u)] * w[:, 0, j] for j in range(W))


def mix(c, p, x):
    """One layer: what it adds to the residual stream, and q and k at every tap, (H, T, D)."""
    T, H, kind = len(x), c["num_heads"], c["model_type"]
    q, k, v = (x @ p[s + "_proj.weight"].T for s in "qkv")
    split = lambda y, n: y.reshape(T, n, -1)
    Hk = c.get("num_kv_heads") or H
    Hv = c.get("num_v_heads") or Hk
    taps = dict(proj=(split(q, H), split(k, Hk)))
    if "q_conv1d.weight" in p: q, k, v = (conv(y, p[s + "_conv1d.weight"]) for y, s in ((q, "q"), (k, "k"), (v, "v")))
    act = kind == "gated_deltanet" or (kind == "gla" and c.get("use_short_conv")) or c.get("qk_activation") == "silu"
    if act: q, k = silu(q), silu(k)
    if act or kind == "delta_net": v = silu(v)
    q, k, v = split(q, H), split(k, Hk), split(v, Hv)
    taps["conv"] = q, k
    feature = MAPS[c.get("feature_map") if kind != "delta_net" else None if act else c["qk_activation"]]
    q, k = feature(q), feature(k)
    if kind == "gated_deltanet" or c.get("qk_norm") == "l2": q, k = l2(q), l2(k)
    if c.get("qk_norm") == "sum": q, k = (y / y.sum(-1, keepdims=True) for y in (q, k))
    if c.get("norm_q"): q = q / (q.sum(-1, keepdims=True) + 1e-4)
    if c.get("norm_k"): k = k / (k.sum(-1, keepdims=True) + 1e-4)
    taps["norm"] = q, k
    K = q.shape[-1]
    delta = kind in ("gated_deltanet", "delta_net")
    g = np.zeros((T, Hk, K))
    if kind == "gla":
        a = x @ p["gk_proj.0.weight"].T @ p["gk_proj.1.weight"].T + p["gk_proj.1.bias"]
        g = split(-softplus(-a) / 16, Hk)
        if c.get("clamp_min") is not None: g = np.maximum(g, c["clamp_min"])
    if kind == "gated_deltanet":
        g = -np.exp(p["A_log"]) * softplus(x @ p["a_proj.weight"].T + p["dt_bias"])
        g = np.repeat(g[:, :, None], K, 2)
    if kind == "delta_net": g = np.zeros((T, Hv, K))
    beta = sigmoid(x @ p["b_proj.weight"].T) if "b_proj.weight" in p else np.ones((T, Hv))
    if c.get("allow_neg_eigval"): beta = 2 * beta
    n = max(H, Hv)  # one state for each output head
    at = lambda y: np.repeat(y, n // y.shape[1], 1)
    qq, kk, vv, gg = at(q), at(k), at(v), at(g)
    S, o = np.zeros((n, K, v.shape[-1])), np.zeros((T, n, v.shape[-1]))
    for t in range(T):
        S = np.exp(gg[t])[:, :, None] * S
        u = beta[t][:, None] * (vv[t] - np.einsum("hkv,hk->hv", S, kk[t])) if delta else vv[t]
        S = S + kk[t][:, :, None] * u[:, None, :]
        o[t] = np.einsum("hkv,hk->hv", S, qq[t]) * K ** -0.5
    norm = next(p[m] for m in ("g_norm_swish_gate.weight", "g_norm.weight", "o_norm.weight", "norm.weight") if m in p)
    o = rms(o, norm, c["norm_eps"])
    if "g_proj.weight" in p: o = o * silu(split(x @ p["g_proj.weight"].T, n))
    return o.reshape(T, -1) @ p["o_proj.weight"].T, taps


def softmax(c, p, x):
    """A softmax layer of a hybrid, as mix."""
    a, T = c["attn"], len(x)
    H, Hk = a["num_heads"], a.get("num_kv_heads") or a["num_heads"]
    q, k, v = (x @ p[s + "_proj.weight"].T + p.get(s + "_proj.bias", 0) for s in "qkv")
    q, k, v = q.reshape(T, H, -1), k.reshape(T, Hk, -1), v.reshape(T, Hk, -1)
    taps = dict(proj=(q, k), conv=(q, k), norm=(q, k))
    D = q.shape[-1]
    angle = np.arange(T)[:, None] * a.get("rope_theta", 1e4) ** (-np.arange(0, D, 2) / D)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    turn = lambda y: np.concatenate((y[..., :D // 2] * cos - y[..., D // 2:] * sin,
                                     y[..., D // 2:] * cos + y[..., :D // 2] * sin), -1)
    q, k = turn(q), turn(k)
    taps["rope"] = q, k
    back = np.arange(T)[:, None] - np.arange(T)
    seen = (back >= 0) & (back < (a.get("window_size") or T))
    z = np.where(seen, np.einsum("thd,jhd->htj", q, np.repeat(k, H // Hk, 1)) * D ** -0.5, -np.inf)
    e = np.exp(z - z.max(-1, keepdims=True))
    o = np.einsum("htj,jhd->thd", e / e.sum(-1, keepdims=True), np.repeat(v, H // Hk, 1))
    return o.reshape(T, -1) @ p["o_proj.weight"].T, taps


def forward(c, w, ids):
    emb, eps = w.get("model.embeddings.weight", w.get("model.embed_tokens.weight")), c["norm_eps"]
    h, taps = emb[ids], []
    for n in range(c["num_hidden_layers"]):
        p = {k[len(f"model.layers.{n}."):]: x for k, x in w.items() if k.startswith(f"model.layers.{n}.")}
        run = softmax if n in (c.get("attn") or {}).get("layers", []) else mix
        y, tap = run(c, {k[5:]: x for k, x in p.items() if k.startswith("attn.")}, rms(h, p["attn_norm.weight"], eps))
        taps.append(tap)
        h = h + y
        x, gate = rms(h, p["mlp_norm.weight"], eps), p["mlp.gate_proj.weight"]
        up = p.get("mlp.up_proj.weight")
        if up is None: gate, up = np.split(gate, 2)
        h = h + (silu(x @ gate.T) * (x @ up.T)) @ p["mlp.down_proj.weight"].T
    return rms(h, w["model.norm.weight"], eps) @ w.get("lm_head.weight", emb).T, taps


def tiny(name, c, fused=False, old=False, norm=None):
    d, V, F = 24, 64, c.get("intermediate_size", 40)
    c = dict(dict(hidden_size=d, vocab_size=V, num_hidden_layers=2, intermediate_size=F, hidden_act="swish", norm_eps=1e-5,
                  tie_word_embeddings=False, num_heads=4), **c)
    r = np.random.default_rng(sum(map(ord, name)))
    m = lambda *shape: (r.standard_normal(shape) * shape[-1] ** -0.5).astype("float32")
    vec = lambda n: (1 + 0.2 * r.standard_normal(n)).astype("float32")
    H, kind = c["num_heads"], c["model_type"]
    Hk = c.get("num_kv_heads") or H
    Hv = c.get("num_v_heads") or Hk
    K = c["head_dim"] if kind == "gated_deltanet" else int(d * c["expand_k"]) // H
    Vw = int(K * c["expand_v"]) if kind == "gated_deltanet" else int(d * c["expand_v"]) // H
    out = max(H, Hv) * Vw
    w = {"model.embed_tokens.weight" if old else "model.embeddings.weight": m(V, d) * 4, "model.norm.weight": vec(d),
         "lm_head.weight": m(V, d)}
    for n in range(c["num_hidden_layers"]):
        a = dict(q=m(H * K, d), k=m(Hk * K, d), v=m(Hv * Vw, d), o=m(d, out))
        if c.get("use_output_gate") or c.get("use_gate"): a["g"] = m(out, d)
        if kind == "gated_deltanet" or c.get("use_beta"): a["b"] = m(Hv, d)
        if kind == "gated_deltanet": a["a"] = m(Hv, d)
        L = f"model.layers.{n}."
        soft = n in (c.get("attn") or {}).get("layers", [])
        if soft:
            k = d // c["attn"]["num_heads"] * c["attn"]["num_kv_heads"]
            a = dict(q=m(d, d), k=m(k, d), v=m(k, d), o=m(d, d))
            for s in "qkv": w[L + f"attn.{s}_proj.bias"] = vec(len(a[s]))
        for s, x in a.items(): w[L + f"attn.{s}_proj.weight"] = x
        if c.get("use_short_conv") and not soft:
            for s in "qkv": w[L + f"attn.{s}_conv1d.weight"] = m(len(a[s]), 1, c.get("conv_size", 4))
        if kind == "gla" and not soft:
            w[L + "attn.gk_proj.0.weight"], w[L + "attn.gk_proj.1.weight"] = m(16, d), 4 * m(Hk * K, 16)
            w[L + "attn.gk_proj.1.bias"] = vec(Hk * K)
        if kind == "gated_deltanet":
            w[L + "attn.A_log"], w[L + "attn.dt_bias"] = vec(Hv) - 1, vec(Hv)
            if old: w[L + "attn.D"] = vec(H)
        if not soft: w[L + "attn." + norm + ".weight"] = vec(Vw)
        w[L + "attn_norm.weight"], w[L + "mlp_norm.weight"] = vec(d), vec(d)
        if fused: w[L + "mlp.gate_proj.weight"] = m(2 * F, d)
        else: w[L + "mlp.gate_proj.weight"], w[L + "mlp.up_proj.weight"] = m(F, d), m(F, d)
        w[L + "mlp.down_proj.weight"] = m(d, F)
    to = os.path.join(HERE, name)
    os.makedirs(to, exist_ok=True)
    json.dump(c, open(os.path.join(to, "config.json"), "w"), indent=1)
    save(os.path.join(to, "model.safetensors"), w)
    ids = r.integers(0, V, 90)
    logits, taps = forward(c, {k: x.astype("float64") for k, x in w.items()}, ids)
    tokens = np.r_[0:8, 82:90].astype("int64")
    golden = dict(input_ids=ids.astype("int64"), tokens=tokens, logits=logits[-16:].astype("float32"))
    for n, layer in enumerate(taps):
        for tap, (q, k) in layer.items():
            for what, x in (("q", q), ("k", k)):
                golden[f"{n}.{tap}.{what}"] = np.moveaxis(x[tokens], 0, 1).astype("float32")
    save(os.path.join(HERE, name + ".golden.safetensors"), golden)


if len(sys.argv) > 1: trim(sys.argv[1])
tiny("gla-old", dict(model_type="gla", expand_k=0.5, expand_v=1.0, use_output_gate=True, num_kv_heads=2, clamp_min=-0.05),
     fused=True, old=True, norm="g_norm_swish_gate")
tiny("gla-map", dict(model_type="gla", expand_k=1.0, expand_v=2.0, use_output_gate=False, feature_map="sigmoid",
                     use_short_conv=True, conv_size=3), norm="g_norm")
tiny("gdn-values", dict(model_type="gated_deltanet", head_dim=10, expand_v=1.5, num_heads=2, num_v_heads=6, use_gate=False,
                        use_short_conv=False, allow_neg_eigval=True), old=True, norm="o_norm")
tiny("delta-silu", dict(model_type="delta_net", expand_k=1.0, expand_v=1.0, use_beta=True, use_gate=True,
                        use_short_conv=True, qk_norm="l2", qk_activation="silu"), norm="o_norm")
tiny("delta-elu", dict(model_type="delta_net", expand_k=2.0, expand_v=1.0, use_beta=False, use_gate=False,
                       use_short_conv=True, qk_norm="sum", qk_activation="elu"), norm="o_norm")
tiny("plain-elu", dict(model_type="linear_attn", expand_k=1.0, expand_v=1.0, feature_map="elu", num_kv_heads=2,
                       norm_q=True, norm_k=True), norm="norm")
tiny("plain-relu", dict(model_type="linear_attn", expand_k=1.0, expand_v=1.0, feature_map="relu"), norm="norm")
tiny("gla-hybrid", dict(model_type="gla", expand_k=0.5, expand_v=1.0, use_output_gate=True, use_short_conv=True,
                        num_hidden_layers=3, attn=dict(layers=[0, 2], num_heads=6, num_kv_heads=2, qkv_bias=True,
                                                       window_size=20, rope_theta=500.0)), norm="g_norm_swish_gate")
