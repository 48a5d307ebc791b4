"""All families by the names that a config has for them: its `architectures`, its `model_type`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvquota_api.memory.models.families.dense_table import DENSE
from kvquota_api.memory.models.families.sliding_table import SLIDING_FAMILIES
from kvquota_api.memory.models.families.stack import Family, Wrapper
from kvquota_api.memory.models.families.state_table import LATENT_FAMILIES, STATE_FAMILIES
from kvquota_api.memory.models.families.wrapper_table import WRAPPERS

Entry = Family | Wrapper
ENTRIES: Final[tuple[Entry, ...]] = (*DENSE, *SLIDING_FAMILIES, *LATENT_FAMILIES, *STATE_FAMILIES, *WRAPPERS)
BY_ARCHITECTURE: Final[Mapping[str, Entry]] = {name: entry for entry in ENTRIES for name in entry.architectures}
BY_TYPE: Final[Mapping[str, Entry]] = {name: entry for entry in ENTRIES for name in entry.types}

# Fields that change what is cached: a family that does not know one refuses a config in which it says something.
CACHE_FIELDS: Final = frozenset(
    {
        "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "index_head_dim", "index_topk", "index_kpool",
        "num_kv_shared_layers", "attention_chunk_size", "full_attention_interval", "attn_layer_period",
        "attn_layer_indices", "hybrid_override_pattern", "hybrid_layer_pattern", "layers_block_type", "block_configs",
        "global_head_dim", "num_global_key_value_heads", "per_layer_config", "global_attn_every_n_layers",
        "cross_attention_layers", "is_encoder_decoder", "linear_num_key_heads", "linear_attn_config",
        "layer_group_size",
        "mamba_num_heads", "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "compress_ratios",
        "compress_rates", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "sliding_windows",
        "interleaved_sliding_window", "attention_other_setting", "param_sink_number", "rswa_window",
        "use_cla", "use_bidirectional_attention",
    }
)  # fmt: skip
