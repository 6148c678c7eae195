"""Numba as this package uses it: its compiler, with a cache that no damage or change upsets.

Everything else takes numba from here. What compiling and loading take is reported to
`doppler.base.compiling`.
"""

import contextlib
import logging
import pickle
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base import compiling

with compiling.preparing():
    import numba
    from numba import uint64
    from numba.core import event
    from numba.core.caching import FunctionCache
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import Compiler
    from numba.core.serialize import dumps
    from numba.extending import register_jitable

    from doppler.base import references
    from doppler.base.references import by_reference

__all__ = ["KERNEL", "by_reference", "compiled", "inlined", "njit", "part", "uint64"]

UNUSED = {  # passes of numba's compiler that change nothing in a kernel
    "annotate_types",
    "dead_branch_prune",
    "find_literally",
    "inline_closure_likes",
    "inline_inlinables",
    "inline_overloads",
    "literal_unroll",
    "nopython_rewrites",
    "rewrite_semantic_constants",
    "with_lifting",
}
DIGEST_BYTES = 32  # of SHA-256
DAMAGED = "the cache of compiled kernels was damaged; compiling again"
NOT_CACHED = (
    "compiled kernels cannot be cached (%s), so every process compiles them again; "
    "set NUMBA_CACHE_DIR to a folder that can be written to"
)
log = logging.getLogger("doppler")
_said: set[str] = set()
_CONSTANTS = (bool, int, float, complex, str, tuple, np.generic)


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's decorator of this name with these options, but for the cache, which is `_Cache`.

    Where there is no place for a cache, there is none, and that is logged once.
    """

    @_metered
    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(pipeline_class=_KernelCompiler, **options)(function)
        if dispatcher is function:  # NUMBA_DISABLE_JIT is set
            return dispatcher
        dispatcher._compile_for_args = _metered(dispatcher._compile_for_args)
        try:
            _source(function.__module__)
            if cache:
                dispatcher._cache = _Cache(function)
        except (OSError, RuntimeError) as error:
            _warn(NOT_CACHED, error)
        return dispatcher

    return decorate


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, the seconds of which are those of preparing kernels."""

    @wraps(function)
    def metered(*arguments: Any, **options: Any) -> Any:
        with compiling.preparing():
            return function(*arguments, **options)

    return metered


def part(*, forceinline: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """The decorator of a helper that becomes part of the kernels that call it.

    It is optimised and turned into machine code with them only: on its own, and again in each of
    its callers, would take twice the time. Python sees the plain function. A large helper that is
    called several times compiles faster where LLVM decides whether to inline it.
    """
    return register_jitable(
        pipeline_class=_PartCompiler,
        forceinline=forceinline,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        **options,
    )


class _KernelCompiler(Compiler):
    """Numba's compiler without the passes that no kernel has a use for, which take time."""

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [each for each in pipeline.passes if each[0]._name not in UNUSED]
        self.state.library = self._library()
        return pipelines

    def _library(self) -> Any:
        library = _Library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        library.enable_object_caching()
        return library


class _PartCompiler(_KernelCompiler):
    """The same, up to code that is not optimised."""

    def _library(self) -> Any:
        return _PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)


class _Library(JITCodeLibrary):
    """Code whose optimiser knows that nothing changes the fields of a NamedTuple."""

    def add_ir_module(self, module: Any) -> None:
        for function in module.functions:
            for argument in function.args:
                if isinstance(getattr(argument.type, "pointee", None), references.Fields):
                    argument.add_attribute("noalias")
        super().add_ir_module(module)


class _PartLibrary(_Library):
    """Code that is only linked into other libraries."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # there is none

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """There is no machine code whose environment could be set; no kernel reads it."""


class _Cache(FunctionCache):
    """Numba's cache of one function, of which a failure costs time and nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folder, name = self._impl.locator.get_cache_path(), self._impl.filename_base
        files: Any = _Files(Path(folder), name, function.__module__)
        self._cache_file = files

    def has_files(self) -> bool:
        """Whether there is a file for some signature."""
        files: Any = self._cache_file
        return any(files.paths())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None: there is none, it is out of date, or it is damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever can be wrong with a file
            log.debug("cannot load %s", self._name, exc_info=True)
            _warn(DAMAGED)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled function if that is possible."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn(NOT_CACHED, error.strerror)


class _Files:
    """The files of one function: one for each signature and kind of processor.

    Each holds a digest of the rest, a tag that says what it was compiled from, and the pickle of
    the compiled function. It is replaced as a whole, so no two files have to agree; code that is
    not what was written would end the process, so the digest is compared first.
    """

    def __init__(self, folder: Path, name: str, module: str) -> None:
        self.folder, self.name, self.module = folder, name, module

    def load(self, key: Any) -> Any:
        """What was saved under a key; None if there is nothing, or nothing up to date."""
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        digest, rest = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if sha256(rest).digest() != digest:
            raise ValueError(f"`{self._path(key)}` is damaged")
        tag, data = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
        return pickle.loads(data) if tag == self._tag(key) else None

    def save(self, key: Any, data: Any) -> None:
        """Save something under a key, whole or not at all."""
        rest = self._tag(key) + dumps(data)
        path = self._path(key)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
        try:
            unfinished.write_bytes(sha256(rest).digest() + rest)
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def paths(self) -> Iterator[Path]:
        """The files there are."""
        return self.folder.glob(f"{self.name}.*.nbc")

    def flush(self) -> None:
        """Remove everything that is saved."""
        for path in self.paths():
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        signature, processor, _ = key
        number = sha256(repr((signature, processor)).encode()).hexdigest()[:16]
        return self.folder / f"{self.name}.{number}.nbc"

    def _tag(self, key: Any) -> bytes:
        """A digest of all that compiled code depends on."""
        compilers = _source(__name__), _source(references.__name__)
        parts = (numba.__version__, key, *compilers, _stamp(self.module))
        return sha256(repr(parts).encode()).digest()


@cache
def _source(module: str) -> bytes:
    """A digest of a module's source as it is when this is first called: when it is imported."""
    return sha256(Path(str(sys.modules[module].__file__)).read_bytes()).digest()


@cache
def _stamp(module: str) -> bytes:
    """A digest of what is compiled into the kernels of a module.

    That is its source, the stamps of other kernels that it uses, the fields of tuples, and the
    values of constants, wherever they come from.
    """
    digest = sha256(_source(module))
    for name, value in vars(sys.modules[module]).items():
        origin = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
        if name.startswith("__") or origin == module:
            continue
        if origin.endswith("kernel"):
            digest.update(_stamp(origin))
        elif isinstance(value, type):
            digest.update(repr((name, getattr(value, "_fields", ()))).encode())
        elif isinstance(value, _CONSTANTS):
            digest.update(repr((name, value)).encode())
    return digest.digest()


def _warn(message: str, *values: object) -> None:
    """Log a warning unless this process has."""
    if message not in _said:
        _said.add(message)
        log.warning(message, *values)


class _Reporter(event.Listener):
    """Passes on when numba begins and ends to compile."""

    def on_start(self, _: Any) -> None:
        compiling.report_compilation(True)

    def on_end(self, _: Any) -> None:
        compiling.report_compilation(False)


event.register("numba:compile", _Reporter())

# Without `_nrt=False` every read of an array in a tuple counts references: 20 times slower. Kernels
# of these options allocate nothing, so there is nothing to count.
KERNEL: Any = {"nogil": True, "_nrt": False}
compiled: Any = njit(cache=True, no_cfunc_wrapper=True, **KERNEL)
inlined: Any = part(**KERNEL)
