"""Presets: settings that belong together, by name. docs/paper.md has a row for each setting of the preset `paper`."""

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "window": {"batch_size": 256, "aligned": True},
        "scaling": {
            "by": "series",
            "zeros": "demand",
            "zero_when": (),
            "level_steps": 0,
            "echoes": (),
            "raw_calendar": True,
        },
        "model": {
            "hidden_dim": 32,
            "encoder_dilations": (1, 2, 4, 8, 16, 32),
            "position_dilations": None,
            "dropout": 0.15,
            "static_encoding": "embedding",
            "head": "free",
            "members": 1,
            "block": "bare",
            "feedback_heads": "shared",
            "agnostic_context": "future",
            "encoder_attention": False,
            "position_norm": False,
            "horizon_code": False,
            "scale_inputs": False,
            "plain_start": True,
        },
        "train": {
            "learning_rate": 1e-3,
            "alignment_rate": 1.0,
            "betas": (0.9, 0.999),
            "epsilon": 1e-8,
            "weight_decay": 0.0,
            "clip_norm": None,
            "schedule": "constant",
            "warmup_steps": 0,
            "average": None,
            "max_epochs": 100,
            "max_steps": None,
            "patience": 5,
            "refit": False,
            "validate_every": None,
            "max_validation_windows": None,
            "min_gain": 0.0,
        },
    }
}
