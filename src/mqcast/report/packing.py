"""Numbers of items as compressed text, which a page's script unpacks when it needs them."""

import base64
import gzip
import json
from typing import Any

import numpy as np

MOST_NAME = 200  # signs of an id


def packed(value: Any) -> str:
    """JSON, compressed, in signs that HTML does not read."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def rounded(values: np.ndarray) -> list[Any]:
    """Four digits, and None for what is missing; rows of a matrix are lists."""
    if not np.size(values):
        return np.asarray(values).tolist()
    values = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.where(values == 0, 0, 3 - np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** np.clip(np.nan_to_num(digits), -300, 300)
        near = np.round(values * scale) / scale
    told = near.astype(object)
    with np.errstate(invalid="ignore"):
        is_whole = np.abs(near) < 2**53
        is_whole[is_whole] = near[is_whole] % 1 == 0
    told[is_whole] = near[is_whole].astype(np.int64)
    told[np.isnan(near)] = None
    return told.tolist()


def changes(values: np.ndarray, first: int) -> list[Any]:
    """Place and value wherever a value is another one than before, from `first` on; None where values end."""
    told = rounded(values[first:])
    found: list[Any] = []
    now: Any = None
    for place, value in enumerate(told, start=first):
        if value != now:
            now = value
            found += [place, now]
    return found
