"""The Llama family, written for a flat batch over a paged cache: Llama, Mistral, Qwen2, Qwen3.

    token_ids [T]  ->  embed  ->  L x ( RMSNorm, attention, RMSNorm, SwiGLU )  ->  norm, head  ->  logits [rows, vocab]

There is no batch dimension and no padding: the tokens of all sequences lie one after the other, and only attention
knows where one sequence ends. The four architectures differ in two switches: Qwen2 adds a bias to Q, K and V; Qwen3
normalises each head of Q and K.
"""

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pagelens.kernels.layer_ops import LayerOps

from ..attention import Attention, AttentionMetadata
from ..kv_cache import KVCache


class RotaryEmbedding(nn.Module):
    """Rotates pairs (i, i + head_dim / 2) of a head by an angle that grows with the position (Su et al., 2021)."""

    inv_freq: Tensor

    def __init__(self, config: PretrainedConfig, head_dim: int) -> None:
        super().__init__()
        rope = config.rope_parameters
        if rope["rope_type"] == "default":
            inv_freq = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
            self.scaling = 1.0
        else:
            inv_freq, self.scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines, and sines of which the first half is negative, each [num_tokens, head_dim]."""
        angles = positions[:, None].float() * self.inv_freq.float()
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in float32."""

    def __init__(self, size: int, eps: float, ops: LayerOps) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.ops = ops

    def forward(self, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum of `x` and `delta`, which may take the place of `x`, and the normalised sum; [rows, size] each."""
        return self.ops.add_rms_norm(x, delta, self.weight, self.eps)


class LlamaAttention(nn.Module):
    """Q, K, V in one product; rotation; the paged kernel; the output product."""

    def __init__(self, config: PretrainedConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.ops = attention.kernels.layer_ops
        self.layer = layer
        heads, kv_heads, head_dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
        qkv_bias = config.model_type == "qwen2" or getattr(config, "attention_bias", False)
        out_bias = config.model_type != "qwen2" and getattr(config, "attention_bias", False)
        self.qkv_proj = nn.Linear(config.hidden_size, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * head_dim, config.hidden_size, bias=out_bias)
        self.normalised = config.model_type == "qwen3"
        if self.normalised:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, self.ops)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, self.ops)
        self.sliding_window = sliding_window(config, layer)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache, metadata: AttentionMetadata
    ) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        projected = self.qkv_proj(x).unflatten(-1, (-1, self.attention.head_dim))
        query, key, value = projected.split((heads, kv_heads, kv_heads), dim=1)
        if self.normalised:
            for norm, part in ((self.q_norm, query), (self.k_norm, key)):
                part.copy_(norm(part.flatten(0, 1))[1].view(part.shape))
        self.ops.rotate(projected, heads + kv_heads, *rotation)
        kv_layer = cache.layer(self.layer)
        out = self.attention(query, key, value, kv_layer, metadata, self.sliding_window)
        return self.o_proj(out.flatten(1).to(x.dtype))


class LlamaMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, config: PretrainedConfig, ops: LayerOps) -> None:
        super().__init__()
        self.ops = ops
        bias = getattr(config, "mlp_bias", False)
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))


class LlamaLayer(nn.Module):
    """One transformer layer, pre-norm. `x` is the residual stream, `delta` what the half layer before adds to it."""

    def __init__(self, config: PretrainedConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        ops = attention.kernels.layer_ops
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.self_attn = LlamaAttention(config, layer, attention)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ops)
        self.mlp = LlamaMLP(config, ops)

    def forward(
        self,
        x: Tensor,
        delta: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        cache: KVCache,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """x (which may be overwritten) and delta [num_tokens, hidden] -> the same, after this layer."""
        x, normalised = self.input_layernorm(x, delta)
        delta = self.self_attn(normalised, rotation, cache, metadata)
        x, normalised = self.post_attention_layernorm(x, delta)
        return x, self.mlp(normalised)


class LlamaModel(nn.Module):
    """The decoder and its output head. Parameters are named as in the checkpoints, but for the two fused products."""

    def __init__(self, config: PretrainedConfig, attention: Attention) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(config, layer, attention) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, attention.kernels.layer_ops)
        self.rotary = RotaryEmbedding(config, attention.head_dim)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, token_ids: Tensor, positions: Tensor, cache: KVCache, metadata: AttentionMetadata, logit_rows: Tensor
    ) -> Tensor:
        """token_ids and positions int64 [num_tokens] -> logits of the tokens in `logit_rows` [rows, vocab_size]."""
        x = self.embed_tokens(token_ids)
        delta: Tensor | None = None
        rotation = self.rotary(positions, x.dtype)
        for layer in self.layers:
            x, delta = layer(x, delta, rotation, cache, metadata)
        _, normalised = self.norm(x[logit_rows], None if delta is None else delta[logit_rows])
        return self.lm_head(normalised)


def sliding_window(config: PretrainedConfig, layer: int) -> int | None:
    """Tokens that a query of this layer sees, itself included; None: all before it."""
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None and layer_types[layer] == "full_attention":
        return None
    return window
