"""Make vLLM's CPU build believe that it runs on one kind of NVIDIA card, as far as its configuration goes.

Imported inside the engine's own environment. What is real: vLLM's CUDA platform class, its defaults, and its choice of
attention backends. What is pretended: that the card is there and that the kernels of FlashAttention 2, 3 and 4,
FlashMLA, DeepGEMM and Triton can be loaded. FlashInfer stays absent. Nothing can be computed in such a process.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from dataclasses import dataclass
from typing import Any

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Card:
    """A card as vLLM asks about it: compute capability, the driver's name of it, memory in bytes."""

    capability: tuple[int, int]
    name: str
    memory_bytes: int
    compute_units: int


CARDS = {
    "cuda-sm90": Card((9, 0), "NVIDIA H100 80GB HBM3", 80 * GIB, 132),
    "cuda-sm80": Card((8, 0), "NVIDIA A100-SXM4-80GB", 80 * GIB, 108),
}

# More than any plan asks for, so that vLLM never looks for further machines.
_CARDS_IN_MACHINE = 128

# Of one thread block on an H100; 163 KiB on an A100. Only kernels' tile sizes depend on it.
_SHARED_MEMORY_BYTES = 227 * 1024

_KERNEL_MODULES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashkda_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.cute_utils",
    "vllm.third_party.deep_gemm",
    "vllm.model_executor.kernels.mhc.tilelang_kernels",
)
# Compilers of kernels and what they compile, found with every module below them.
_KERNEL_PACKAGES = ("cutlass", "deep_gemm", "quack", "tilelang", "vllm.vllm_flash_attn.cute")
# What processors of images and sound are made with; a plan needs their model classes to be importable, no more.
_MEDIA_PACKAGES = ("torchvision", "torchaudio")


def pretend_media() -> None:
    """Let the model classes that also read images be imported, on any platform."""
    sys.meta_path.append(_EmptyPackages(_MEDIA_PACKAGES))


def pretend(card: Card) -> None:
    """Must run before anything else of vLLM is imported."""
    # With no card visible by this variable Triton is taken for usable although no driver of it is active.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Fused collectives, whose kernels are compiled when they are chosen; the cache does not depend on them.
    os.environ["VLLM_KIMI_K3_GEMM_AR"] = "0"
    os.environ["VLLM_ENABLE_GEMM_RS"] = "0"
    for name in _KERNEL_MODULES:
        sys.modules[name] = _EmptyModule(name)
    sys.meta_path.append(_EmptyPackages(_KERNEL_PACKAGES))
    _pretend_torch(card)
    _pretend_triton(card)
    platforms: Any = importlib.import_module("vllm.platforms")
    platforms.vllm_version_matches_substr = lambda _part: False
    platforms._current_platform = _platform(card)
    interface: Any = importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
    interface.FA4_AVAILABLE = True
    operations: Any = importlib.import_module("vllm._custom_ops")
    for name in [name for name in vars(operations) if "_supports_" in name or name.endswith("_quant_supported")]:
        setattr(operations, name, lambda *_capability: True)
    # Only now: where vLLM declares its operations it looks which of them were compiled.
    _pretend_operations()


def _take_anything(*_arguments: Any, **_named: Any) -> None:
    return None


class _EmptyClass(type):
    """A class that has whatever member is looked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Operation(name)


class _EmptyModule(types.ModuleType):
    """A module that has whatever class or function is looked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _EmptyClass(name, (), {"__init__": _take_anything}) if name[0].isupper() else _Operation(name)


class _EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for each of the names and for everything below them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, *_path: Any) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self._names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


class _Operation:
    """A compiled operation that a layer keeps to call later. It is registered and warmed up, and never computes."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, overload: str) -> "_Operation":
        if overload.startswith("__"):
            raise AttributeError(overload)
        return self

    def __call__(self, *_arguments: Any, **_named: Any) -> None:
        return None

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


class _Stream:
    """What a layer keeps to overlap its work with later; nothing is ever queued."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        self.cuda_stream = 0


def _platform(card: Card) -> Any:
    cuda: Any = importlib.import_module("vllm.platforms.cuda")
    interface: Any = importlib.import_module("vllm.platforms.interface")
    capability = interface.DeviceCapability(*card.capability)

    class PretendedCard(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]  # its base is found at run time
        """The real CUDA platform, with the answers of a card."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return card.name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return card.memory_bytes

        @classmethod
        def device_count(cls) -> int:
            return _CARDS_IN_MACHINE

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return card.compute_units

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

    return PretendedCard()


def _pretend_operations() -> None:
    """Let every operation of vLLM's own compiled libraries be found, though none of them is there for a card."""
    namespace: Any = importlib.import_module("torch._ops")._OpNamespace
    real = namespace.__getattr__

    def found(self: Any, name: str) -> Any:
        try:
            return real(self, name)
        except AttributeError:
            if name.startswith("__") or not self.name.endswith("_C"):
                raise
            return _Operation(name)

    namespace.__getattr__ = found


def _pretend_triton(card: Card) -> None:
    """A driver that knows the card's properties, which kernels ask for when they are declared."""
    runtime: Any = importlib.import_module("triton.runtime.driver")
    compiler: Any = importlib.import_module("triton.backends.compiler")
    capability = card.capability[0] * 10 + card.capability[1]
    properties = {"max_shared_mem": _SHARED_MEMORY_BYTES, "multiprocessor_count": card.compute_units}
    runtime.driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: compiler.GPUTarget("cuda", capability, 32),
            get_current_device=lambda: 0,
            get_benchmarker=lambda: _Operation("benchmark"),
            get_active_torch_device=lambda: importlib.import_module("torch").device("cuda", 0),
            utils=types.SimpleNamespace(get_device_properties=lambda _device: properties),
        )
    )


def _pretend_torch(card: Card) -> None:
    torch: Any = importlib.import_module("torch")
    properties = types.SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory_bytes,
        multi_processor_count=card.compute_units,
        is_integrated=False,
        shared_memory_per_block_optin=_SHARED_MEMORY_BYTES,
        warp_size=32,
    )
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: _CARDS_IN_MACHINE
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda *_device: properties
    cuda.get_device_capability = lambda *_device: card.capability
    cuda.get_device_name = lambda *_device: card.name
    cuda.Stream, cuda.Event = _Stream, _Stream
    cuda.current_stream = lambda *_device: _Stream()
    cuda.synchronize = lambda *_device: None
