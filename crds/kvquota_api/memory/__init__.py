"""Memory arithmetic: what a model's weights and KV cache take on a card, by the engine's own rules. Pure.

`models` reads a config into layers and knows no engine; `parameters` counts its weights; one module or package per
engine makes blocks of layers; `planning`, `plan` and `advice` put card, pool and ways out together; `startup_log` reads
what engines say of themselves; `presets` are configs. Imports go in that order, never back.
"""
