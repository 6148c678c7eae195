"""What torch does not offer of the CUDA driver, by ctypes: parts of a GPU, streams, copies.

A GPU is cut by green contexts (cuda.h, "Green Contexts"): one call splits its multiprocessors (SMs)
into disjoint groups, each group becomes a context, and what is launched on a stream of that context
runs on its SMs alone. Contexts and streams are made once for the process and kept until it ends,
since the first launch in each costs some 0.2 s; `take_stream` and `give_stream` lend them out.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch

from doppler.errors import EngineError

_SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
_GREEN_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM: must be given
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads may do as they like
_GRANULE = 8  # SMs, of Hopper: for drivers that do not say (before CUDA 13)

_SIGNATURES: dict[str, tuple[Any, ...]] = {  # symbols as cuda.h 13.0 maps them; all return CUresult
    "cuGetErrorString": (c_int, c_void_p),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuStreamCreateWithPriority": (c_void_p, c_uint, c_int),
    "cuMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_ulonglong),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphUpload": (c_void_p, c_void_p),
    "cuDeviceGetDevResource": (c_int, c_void_p, c_int),
    "cuDevSmResourceSplitByCount": (c_void_p, c_void_p, c_void_p, c_void_p, c_uint, c_uint),
    "cuDevResourceGenerateDesc": (c_void_p, c_void_p, c_uint),
    "cuGreenCtxCreate": (c_void_p, c_void_p, c_int, c_uint),
    "cuGreenCtxStreamCreate": (c_void_p, c_void_p, c_uint, c_int),
}


class Address(NamedTuple):
    """Where a device is: a GPU, or a part of one."""

    gpu: int
    part: int = 0
    parts: int = 0  # 0 = the whole GPU


class _Resource(ctypes.Structure):
    """`CUdevResource`, of type SM: 144 bytes in every version since CUDA 12.4."""

    _fields_ = (
        ("type", c_int),
        ("_internal", c_ubyte * 92),
        ("count", c_uint),
        ("minimum", c_uint),  # of a group, and
        ("alignment", c_uint),  # what its size is a multiple of; 0 from older drivers
        ("_rest", c_ubyte * 36),
    )


def start() -> int:
    """Number of GPUs, with CUDA ready to use."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Streams share hardware queues, of which there are 8 unless this asks for more. One that
        # waits holds up those behind it, so partitions and copies would stop one another.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not torch.cuda.is_available():
        raise EngineError(
            "there is no CUDA GPU that torch can use",
            hint="take another backend, such as `cpu`, or install torch built for CUDA",
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.cuda.device_count()


def sm_count(gpu: int) -> int:
    """Number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(gpu).multi_processor_count)


def partition_sizes(gpu: int, parts: int) -> tuple[int, ...]:
    """Multiprocessors of each part of a GPU cut into `parts`; after `start`."""
    return tuple(group.count for group in _split(gpu, parts))


def share(total: int, parts: int, minimum: int, step: int) -> int:
    """Multiprocessors of each of `parts` equal parts: a multiple of `step`, at least `minimum`."""
    size = total // parts // step * step
    if size < max(minimum, 1):
        raise EngineError(
            f"{total} multiprocessors are too few for {parts} partitions of at least {minimum}"
        )
    return size


def copy(target: int, source: int, size: int, stream: int) -> None:
    """Queue a copy of `size` bytes on a stream; addresses are of device or pinned memory."""
    code = _function("cuMemcpyAsync")(target, source, size, stream)
    if code:
        raise _error("cuMemcpyAsync", code)


class Captured:
    """Work of streams, recorded once: calling it queues all of it on the first stream.

    What was queued as one CUDA graph costs the host about as much as a single copy does.
    """

    def __init__(self, stream: int, calls: Iterable[Callable[[], Any]]) -> None:
        """`calls` queue work on `stream`, and on others only between events of it."""
        _call("cuStreamBeginCapture_v2", stream, _RELAXED)
        graph, found = c_void_p(), c_void_p()
        try:
            for call in calls:
                call()
        finally:
            _call("cuStreamEndCapture", stream, byref(graph))
        try:
            _call("cuGraphInstantiateWithFlags", byref(found), graph, 0)
        finally:
            _call("cuGraphDestroy", graph)
        assert found.value is not None
        self._handle, self._stream = found.value, stream
        self._launch = _function("cuGraphLaunch")
        # If this is refused, the first launch does it.
        _function("cuGraphUpload")(self._handle, stream)

    def __call__(self) -> None:
        """Queue the work."""
        code = self._launch(self._handle, self._stream)
        if code:
            raise _error("cuGraphLaunch", code)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _function("cuGraphExecDestroy")(self._handle)


# Streams: torch has but 32 of its own per GPU, which it hands out again and again.

_idle: dict[tuple[Address, int], list[torch.cuda.Stream]] = {}


def take_stream(address: Address, priority: int = 0) -> torch.cuda.Stream:
    """A stream of a GPU, or of a part of one, that nobody else has; lower priority runs first."""
    idle = _idle.setdefault((address, priority), [])
    return idle.pop() if idle else _new_stream(address, priority)


def give_stream(address: Address, priority: int, stream: torch.cuda.Stream) -> None:
    """Take back a stream from `take_stream`, idle, for the next who asks."""
    _idle[address, priority].append(stream)


def _new_stream(address: Address, priority: int) -> torch.cuda.Stream:
    gpu, handle = address.gpu, c_void_p()
    if address.parts:
        context = _green_contexts(gpu, address.parts)[address.part]
        _call("cuGreenCtxStreamCreate", byref(handle), context, _NON_BLOCKING, priority)
    else:
        with _context_of(gpu):
            _call("cuStreamCreateWithPriority", byref(handle), _NON_BLOCKING, priority)
    assert handle.value is not None
    return torch.cuda.ExternalStream(handle.value, device=gpu)  # type: ignore[no-untyped-call]


@cache
def _green_contexts(gpu: int, parts: int) -> tuple[c_void_p, ...]:
    """The contexts of all parts of a GPU."""
    contexts = []
    with _context_of(gpu):
        for group in _split(gpu, parts):
            description, context = c_void_p(), c_void_p()
            _call("cuDevResourceGenerateDesc", byref(description), byref(group), 1)
            flags = _GREEN_DEFAULT_STREAM
            _call("cuGreenCtxCreate", byref(context), description, _device(gpu), flags)
            contexts.append(context)
    return tuple(contexts)


def _split(gpu: int, parts: int) -> list[_Resource]:
    """Equal groups of a GPU's multiprocessors, as large as can be."""
    whole = _Resource()
    _call("cuDeviceGetDevResource", _device(gpu), byref(whole), _SM_RESOURCE)
    minimum, step = whole.minimum or _GRANULE, whole.alignment or _GRANULE
    size = share(whole.count, parts, minimum, step)
    while size >= minimum:
        groups, found = (_Resource * parts)(), c_uint(parts)
        _call("cuDevSmResourceSplitByCount", groups, byref(found), byref(whole), None, 0, size)
        if found.value == parts:
            return list(groups)
        size -= step  # clusters of multiprocessors are not all of one size
    raise EngineError(f"GPU {gpu} cannot be cut into {parts} partitions")


@contextmanager
def _context_of(gpu: int) -> Iterator[None]:
    """The context that torch uses on a GPU is the thread's current one meanwhile."""
    _call("cuCtxPushCurrent_v2", _primary_context(gpu))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", byref(c_void_p()))


@cache
def _primary_context(gpu: int) -> c_void_p:
    context = c_void_p()
    _call("cuDevicePrimaryCtxRetain", byref(context), _device(gpu))
    return context


@cache
def _device(gpu: int) -> int:
    device = c_int()
    _call("cuDeviceGet", byref(device), gpu)
    return device.value


def _call(name: str, *arguments: Any) -> None:
    code = _function(name)(*arguments)
    if code:
        raise _error(name, code)


def _error(name: str, code: int) -> EngineError:
    text = c_char_p()
    _function("cuGetErrorString")(code, byref(text))
    reason = text.value.decode() if text.value else "unknown error"
    return EngineError(f"CUDA error {code} from {name}: {reason}")


@cache
def _function(name: str) -> Any:
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except OSError as error:
        raise EngineError(f"the library of the NVIDIA driver cannot be loaded: {error}") from error
    except AttributeError as error:
        raise EngineError(
            f"the NVIDIA driver has no `{name}`", hint="it takes driver 555 (CUDA 12.5) or newer"
        ) from error
    function.argtypes, function.restype = _SIGNATURES[name], c_int
    return function


@contextmanager
def as_engine_errors() -> Iterator[None]:
    """Torch's errors become ours."""
    try:
        yield
    except EngineError:
        raise
    except RuntimeError as error:
        raise EngineError(
            f"the GPU cannot be used: {first_line(error)}",
            hint="if CUDA failed before in this process, start a new one",
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says, without where it comes from."""
    return str(error).strip().split("\n")[0]


def where(gpu: int) -> torch.device:
    """A GPU, as torch names it."""
    return torch.device("cuda", gpu)
