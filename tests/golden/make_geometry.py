#!/usr/bin/env python3
"""Makes tests/golden/geometry.h5: keys of a made-up model and what an independent implementation (numpy, double, written from
MATH.md sections 2 to 4 and from no code of ours) makes of them. Needs numpy and h5py. Run it from the root of the tree."""
import itertools

import h5py
import numpy as np

R, SKIP = 4, 1
ROLES = ["haystack", "needle", "distractor", "question", "answer", "special"]
HAY, NEEDLE, DIST, QUESTION, ANSWER, SPECIAL = range(6)
rng = np.random.default_rng(20261129)

lengths = [48, 44, 52, 40, 50, 46, 43, 45]
twin = np.array([1, 0, -1, -1, 6, -1, 4, -1])
unit = np.array([0, 0, 1, 2, 3, 4, 3, 5])
layers = [(2, 12), (3, 9)]  # KV heads, dimensions
P, U = len(lengths), unit.max() + 1

roles = []
for p, T in enumerate(lengths):
    role = np.full(T, HAY)
    role[0] = SPECIAL
    role[T // 3:T // 3 + 4] = NEEDLE
    for start in (5, 10, T // 2 + 2):
        role[start:start + 3] = DIST
    role[T - 9:T - 2] = QUESTION
    role[T - 2:] = ANSWER
    if p == 3: role[role == NEEDLE] = HAY
    roles.append(role)

keys = []
for heads, D in layers:
    mix = rng.normal(size=(heads, D, D)) * np.linspace(3, 0.1, D)
    per_prompt = []
    for p, T in enumerate(lengths):
        x = np.einsum("hde,hte->htd", mix, rng.normal(size=(heads, T, D))) + 4 * rng.normal(size=(heads, 1, D))
        repeated = np.einsum("hde,he->hd", mix, rng.normal(size=(heads, D)))
        x[:, roles[p] == DIST] += repeated[:, None]
        per_prompt.append(x.astype(np.float32))
    keys.append(per_prompt)


def basis_keys(name, layer, head, p):
    """The keys that mu and U come from."""
    prompts = range(P) if name == "pooled" else [p]
    picked = []
    for i in prompts:
        use = roles[i] != ANSWER
        if name == "haystack": use &= roles[i] == HAY
        use[:SKIP] = False
        picked.append(keys[layer][i][head][use])
    return np.concatenate(picked).astype(np.float64)


def head_record(name, layer, head, p):
    k = basis_keys(name, layer, head, p)
    mu = k.mean(0)
    s, U_ = np.linalg.eigh(np.cov(k.T, bias=True))
    s, U_ = np.maximum(s[::-1], 0), U_[:, ::-1]
    all_keys = keys[layer][p][head].astype(np.float64) - mu
    total = (all_keys ** 2).sum(1)
    a = ((all_keys @ U_[:, :R]) ** 2).sum(1) / total
    live = np.arange(len(a)) >= SKIP
    sums = [a[live & (roles[p] == r)].sum() for r in range(6)]
    counts = [(live & (roles[p] == r)).sum() for r in range(6)]
    share = s / s.sum()
    return dict(n=len(k), spectrum=s, mu2=mu @ mu, ev_r=share[:R].sum(), gap=(s[R - 1] - s[R]) / s[R - 1], align_sum=sums,
                align_count=counts, effective_rank=np.exp(-(share * np.log(share)).sum()),
                participation_ratio=s.sum() ** 2 / (s ** 2).sum(), stable_rank=s.sum() / s[0],
                numerical_rank=(s > 1e-11 * s[0]).sum(), condition=s[0] / s[-1],
                mean_dominance=mu @ mu / (mu @ mu + s.sum()), trace=s.sum(), share=share)


def sign_flip(x):
    flips = np.array(list(itertools.product([1, -1], repeat=len(x))))
    return (np.abs(flips @ x) / len(x) >= abs(x.mean()) - 1e-12 * np.abs(x).max()).mean()


def benjamini_hochberg(p):
    order = np.argsort(p)
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate((p[order] * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1], 1)
    return q


def unit_means(per_prompt):
    """Mean over the prompts of a unit that have a value; NaN where none has. per_prompt [P, ...]."""
    out = np.full((U,) + per_prompt.shape[1:], np.nan)
    for u in range(U):
        group = per_prompt[unit == u]
        seen = ~np.isnan(group)
        n = seen.sum(0)
        out[u] = np.where(n > 0, np.where(seen, group, 0).sum(0) / np.maximum(n, 1), np.nan)
    return out


H, DMAX = max(h for h, _ in layers), max(d for _, d in layers)
with h5py.File("tests/golden/geometry.h5", "w", libver=("earliest", "v108")) as f:
    f.attrs.update(r=R, skip=SKIP)
    f["twin"], f["unit"] = twin, unit
    f["offsets"] = np.concatenate(([0], np.cumsum(lengths)))
    f["role"] = np.concatenate(roles).astype(np.uint8)
    for l, (heads, D) in enumerate(layers):
        f[f"keys/{l}"] = np.concatenate([k.transpose(1, 0, 2) for k in keys[l]])  # (T, Hk, D)
    for name in ("prompt", "haystack", "pooled"):
        cells = {}
        layer_align = np.full((P, len(layers), 7), np.nan)
        for l, (heads, D) in enumerate(layers):
            records = [[head_record(name, l, h, p) for h in range(heads)] for p in range(P)]
            for field in ("n", "spectrum", "mu2", "ev_r", "gap", "align_sum", "align_count"):
                f[f"records/{l}/{name}/{field}"] = np.array([[rec[field] for rec in row] for row in records])
            sums = np.array([[rec["align_sum"] for rec in row] for row in records])
            counts = np.array([[rec["align_count"] for rec in row] for row in records])
            with np.errstate(invalid="ignore"):
                means = np.where(counts > 0, sums / counts, np.nan)
            delta = means[..., NEEDLE] - means[..., DIST]
            layer_align[:, l, :6] = means.mean(1)
            layer_align[:, l, 6] = delta.mean(1)
            units = unit_means(delta)
            lacking = np.isnan(units[:, 0])
            for h in range(heads):
                x = units[~lacking, h]
                cell = dict(delta_mu_prompt=x.mean(), delta_mu_prompt_p=sign_flip(x), units=len(x))
                # All n^n resamples: the ends of an interval of 10,000 draws lie between these (4 standard deviations)
                boot = np.array(list(itertools.product(x, repeat=len(x)))).mean(1)
                for field, share in (("lo", 2.5), ("hi", 97.5)):
                    cell[f"{field}_least"], cell[f"{field}_most"] = np.percentile(boot, [share - 0.62, share + 0.62])
                cell["delta_mu_token"] = (sums[:, h, NEEDLE].sum() / counts[:, h, NEEDLE].sum()
                                          - sums[:, h, DIST].sum() / counts[:, h, DIST].sum())
                for field in ("ev_r", "gap", "effective_rank", "participation_ratio", "stable_rank", "numerical_rank",
                              "condition", "mean_dominance", "trace"):
                    cell[field] = np.mean([records[p][h][field] for p in range(P)])
                for key, value in cell.items():
                    cells.setdefault(key, np.full((len(layers), H), np.nan))[l, h] = value
        live = ~np.isnan(cells["delta_mu_prompt"])
        cells["delta_mu_prompt_q"] = np.full((len(layers), H), np.nan)
        cells["delta_mu_prompt_q"][live] = benjamini_hochberg(cells["delta_mu_prompt_p"][live])
        for key, value in cells.items(): f[f"summary/{name}/{key}"] = value
        curve = np.nanmean(unit_means(layer_align), 0)
        f[f"summary/{name}/layer_align"], f[f"summary/{name}/layer_delta"] = curve[:, :6], curve[:, 6]
        f[f"summary/{name}"].attrs["fraction_negative"] = (cells["delta_mu_prompt"][live] < 0).mean()
