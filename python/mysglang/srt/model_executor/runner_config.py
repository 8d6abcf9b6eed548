"""RunnerConfig: what a launch may say about running a model. Plain values under the names of the server's flags."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.srt.configs.choices import KvCacheDtype, MambaSsmDtype
from mysglang.srt.distributed.ranks import RANKS_OF_ONE, RankContext
from mysglang.srt.kernels.op import Numerics
from mysglang.srt.mem_cache.kv_pool.host import MemLayout
from mysglang.srt.model_executor.page_mover import IoBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTierConfig:
    """Configuration of KV pages in the host's memory, beside those of the device."""

    ratio: float = 2.0
    """Number of host pages as a multiple of the device's."""
    size_gb: float = 0.0
    """Instead of that, what fits into so many GB (10^9 bytes); 0: by the ratio."""
    memory_fraction: float = 0.8
    """Largest share of the host's free memory."""
    io_backend: IoBackend = "kernel"
    mem_layout: MemLayout = "page_first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Options of the executor. None means, unless it says otherwise: chosen here, by the platform and its memory."""

    ranks: RankContext = RANKS_OF_ONE
    device: str = "auto"
    """auto, cpu or cuda."""
    page_size: int = 1
    """Tokens of a page of the KV cache."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """In which numbers pages hold keys and values; auto: those of the model, unless its checkpoint says otherwise."""
    quantization_param_path: str | None = None
    """A file with the scales of stored keys and values; None: those of the checkpoint."""
    mem_fraction_static: float | None = None
    """Share of the device's memory for weights and KV cache."""
    max_total_tokens: int | None = None
    """Tokens that the KV cache holds."""
    disable_hybrid_swa_memory: bool = False
    """True: layers with a window keep keys as long as other layers do."""
    swa_full_tokens_ratio: float | None = None
    """Tokens in the pool of layers with a window, as a part of those that the KV cache holds."""
    max_mamba_cache_size: int | None = None
    """States of layers that keep one for each request: those of requests that run, and checkpoints."""
    mamba_full_memory_ratio: float | None = None
    """Memory of these states, as a multiple of that of the KV cache."""
    mamba_track_interval: int | None = None
    """Tokens between checkpoints of these states."""
    mamba_ssm_dtype: MambaSsmDtype | None = None
    """In which numbers recurrent states are kept between steps; None: in float32."""
    host_tier: HostTierConfig | None = None
    """None: no pages on the host."""
    max_running_requests: int | None = None
    """Requests that hold a row of the page table at once."""
    chunked_prefill_size: int | None = None
    """Most new tokens of one step, which sizes the activations; None: prompts are not cut into chunks."""
    max_prefill_tokens: int = 16384
    """Most new tokens of one step without chunks."""

    @property
    def row_chunk(self) -> int | None:
        """Most new tokens of one row in a step; None: all."""
        chunk = self.chunked_prefill_size
        return None if chunk is None else max(min(chunk, self.max_prefill_tokens), self.page_size)

    def most_tokens(self, max_context: int) -> int:
        """Returns the most new prompt tokens of one step, of rows that hold so many positions."""
        return self.chunked_prefill_size or max(self.max_prefill_tokens, max_context)

    draft_tokens: int = 0
    """Tokens that a decoding row tries behind its newest one in a step, at most."""
    attention_backend: str | None = None
    """Backend for all steps; the next two take precedence, for steps with new prompt tokens and for decode steps."""
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    numerics: Numerics = "fastest"
    """Numerics of ops and attention; the options below must not ask for variants that are not invariant."""
    sampling_backend: str | None = None
    logit_processors: tuple[str, ...] = ()
    """The operator's own, `module:Class` each."""
    disable_cuda_graph: bool = False
    disable_persistent_decode: bool = False
    """True: small decode steps are captured layer by layer, without the whole-step kernel."""
    enable_return_hidden_states: bool = False
    """True: captured steps keep hidden states for requests that ask. Then small steps run layer by layer."""
    cuda_graph_max_bs: int | None = None
    """Largest decode batch that is captured."""
    cuda_graph_bs: tuple[int, ...] | None = None
    """The decode batch sizes to capture, instead of the usual ones."""
    disable_prefill_cuda_graph: bool = False
    cuda_graph_max_bs_prefill: int | None = None
    """Most new tokens of a captured step with prompts."""
    torch_compile_max_bs: int = 0
    """Rows of the largest decode step that runs compiled; 0: none does."""
    torch_compile_backend: str = "inductor"
    """The backend of torch.compile."""
