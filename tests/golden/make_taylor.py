#!/usr/bin/env python3
"""Makes tests/golden/taylor.h5: keys and queries of the sample model (from a dump) and what an independent implementation
(numpy, double, written from MATH.md section 5 and from no code of ours) makes of them. Needs numpy and h5py. Run it from the
root of the tree, with a dump of the first sample prompts:
  attgeo probe data/sample/softmax data/sample/prompts.jsonl -o build/dump.h5; python3 tests/golden/make_taylor.py build/dump.h5"""
import sys

import h5py
import numpy as np

T, HEADS, AXES = 72, 2, 8
EPS = (0.1, 0.5, 1.0)


def psi(z):
    return np.where(np.abs(z) < 1e-4, 0.5 + z / 6 + z * z / 24, (np.expm1(z) - z) / np.where(z == 0, 1, z) ** 2)


def markov(v, up, down):
    wu, wl = v / (v + up**2), v / (v + down**2)
    hi = np.log(wu * np.exp(up) + (1 - wu) * np.exp(-v / up)) - v / 2
    lo = np.log(wl * np.exp(-down) + (1 - wl) * np.exp(v / down)) - v / 2
    return max(lo, -v / 2), hi


def tilt(x, s):
    """K(s) = log mean e^{s x}"""
    top = (s * x).max()
    return top + np.log(np.exp(s * x - top).mean())


def inside(x, m, v, s, eps):
    c = tilt(x, s) - s * m
    return abs(c - s * s * v / 2) <= eps * c


def radius(x, m, v, eps):
    """First s in (0, 1] where |R| > eps c: a fine grid, then bisection."""
    grid = np.arange(1, 4001) / 4000
    last = 0.01  # below, c is rounding: R/c ~ s there
    for s in grid[grid >= last]:
        if not inside(x, m, v, s, eps):
            lo, hi = last, s
            for _ in range(60):
                mid = (lo + hi) / 2
                if inside(x, m, v, mid, eps): lo = mid
                else: hi = mid
            return lo
        last = s
    return 1.0


def row(k, q, full):
    """k (t, D), q (D) scaled, double."""
    t, x = len(k), k @ q
    mu = k.mean(0)
    y = x - x.mean()
    m, v, a, b = x.mean(), (y**2).mean(), x.min(), x.max()
    w = np.exp(x - b)
    A = b + np.log(w.sum())
    c = np.log((np.exp(y)).mean())
    R = c - v / 2
    p = w / w.sum()
    out = dict(m=m, v=v, a=a, b=b, A=A, c=c, R=R, k3=(y**3).mean(), k4=(y**4).mean() - 3 * v * v, effective=1 / (p**2).sum(), largest=p.max())
    r = b - a
    bounds = [(-r**3 / (36 * np.sqrt(3)), r**3 / (36 * np.sqrt(3))), (v * (psi(-r) - 0.5), v * (psi(b - m) - 0.5)), markov(v, b - m, m - a)]
    q_norm = np.linalg.norm(q)
    ball = q_norm * (np.linalg.norm(k - k[0], axis=1).max() + np.linalg.norm(mu - k[0]))
    box_up = np.maximum(q * k.max(0), q * k.min(0)).sum() - m
    box_down = m - np.minimum(q * k.max(0), q * k.min(0)).sum()
    samuelson = np.sqrt((t - 1) * v)
    up, down = min(ball, box_up, samuelson), min(ball, box_down, samuelson)
    bounds.append(markov(v, up, down))
    if full:
        z = k - mu
        sigma = z.T @ z / t
        s, U = np.linalg.eigh(sigma)
        s, U = s[::-1], U[:, ::-1]
        kept = s > 1e-11 * s[0]
        coordinates = z @ U
        mahalanobis = np.sqrt(((coordinates[:, kept]**2) / s[kept]).sum(1)).max()
        cut = np.sqrt((coordinates[:, ~kept]**2).sum(1)).max() if (~kept).any() else 0
        q_perp = np.linalg.norm((U.T @ q)[~kept])
        exact = min(q_norm * np.linalg.norm(z, axis=1).max(), np.sqrt(v) * mahalanobis + q_perp * cut)
        bounds.append(markov(v, min(up, exact), min(down, exact)))
        g, sq = p @ z, sigma @ q
        out.update(cosine=g @ sq / np.linalg.norm(g) / np.linalg.norm(sq), span=((U[:, :AXES].T @ g)**2).sum() / (g @ g) if t > AXES + 1 else np.nan,
                   gradient=np.linalg.norm(g - sq), gradient_bound=2 * np.linalg.norm(z, axis=1).max() * c)
        for e in EPS: out[f"radius_{e:g}"] = radius(x, m, v, e)
    for i, (lo, hi) in enumerate(bounds):
        out[f"lo{i + 1}"], out[f"hi{i + 1}"] = lo, hi
    return out


with h5py.File(sys.argv[1]) as dump, h5py.File("tests/golden/taylor.h5", "w", track_order=True) as f:
    for layer in (0, 3):
        group = dump[f"layers/{layer}"]
        keys, queries = group["rope/keys"][:HEADS, :T], group["rope/queries"][:HEADS, :T]
        scale = float(group.attrs["scale"])
        every, sample = {}, {}
        at = [1, 2, 5, 9, 10, 31, 50, 71]
        for h in range(HEADS):
            for t in range(1, T):
                for name, value in row(keys[h, :t + 1].astype(float), scale * queries[h, t].astype(float), False).items():
                    every.setdefault(name, []).append(value)
            for t in at:
                for name, value in row(keys[h, :t + 1].astype(float), scale * queries[h, t].astype(float), True).items():
                    sample.setdefault(name, []).append(value)
        out = f.create_group(str(layer))
        out.attrs["scale"] = np.array([scale])
        out["keys"], out["queries"], out["positions"] = keys, queries, np.array(at)
        for name, values in every.items(): out[f"every/{name}"] = np.array(values)
        for name, values in sample.items(): out[f"sample/{name}"] = np.array(values)
