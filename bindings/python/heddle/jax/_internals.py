"""The one file that uses JAX's private names (as of JAX 0.5.0 to 0.11); everything else goes through it."""

import os

import jax
from jax._src import cache_key, compiler, dispatch
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.lib.mlir.dialects import hlo
from jax._src.sharding_impls import SPMDAxisContext
from jax.interpreters import ad, batching

try:
    from jax._src.lib import _jax
except ImportError:  # before JAX 0.6
    _jax = xla_client._xla
try:
    import jaxlib._hlo as _hlo
except ImportError:  # before JAX 0.10
    _hlo = _jax


def proto_of_text(text):
    """HLO text as a serialized HloModuleProto. Raises one of several types with XLA's complaint."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def text_of_proto(serialized):
    """A serialized HloModuleProto as HLO text, its constants in full."""
    return xla_client.XlaComputation(serialized).as_hlo_text(print_large_constants=True)


def text_with_sources(computation):
    """An XlaComputation as HLO text that names the user's lines, its constants in full."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = True
    serialized = computation.as_serialized_hlo_module_proto()
    return _hlo.HloModule.from_serialized_hlo_module_proto(serialized).to_string(options)


def canonical_text_of_proto(serialized):
    """HLO text with every name taken afresh, without metadata and layouts: equal for modules that say the same."""
    options = _hlo.HloPrintOptions.canonical()
    options.print_large_constants = True
    options.include_layout_in_shapes = False
    return _hlo.HloModule.from_serialized_hlo_module_proto(serialized).to_string(options)


def parameters_of_proto(serialized):
    """The shape and dtype of each entry parameter."""
    shapes = xla_client.XlaComputation(serialized).program_shape().parameter_shapes()
    return [(tuple(shape.dimensions()), shape.numpy_dtype()) for shape in shapes]


def stablehlo_of_proto(serialized):
    """A serialized HloModuleProto as StableHLO (MLIR text, or its bytecode)."""
    return _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(serialized))


def compile_proto(serialized, device):
    """A serialized HloModuleProto compiled by the device's XLA."""
    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo_of_proto(serialized))
        client = device.client
        if not hasattr(client, "compile_and_load"):  # before JAX 0.7
            return client.compile(mlir.module_to_bytecode(module))
        return client.compile_and_load(module, xla_client.DeviceList((device,)), xla_client.CompileOptions())


def inlined(context, stablehlo, name, operands):
    """Calls a StableHLO module's main function from the module being lowered; its results as values."""
    module = context.module_context.module
    table = context.module_context.symbol_table
    source = ir.Module.parse(stablehlo, module.context)
    symbol = mlir.merge_mlir_modules(module, name, source, dst_symtab=table)
    call = func_dialect.CallOp(table[symbol].type.results, ir.FlatSymbolRefAttr.get(symbol), operands)
    results = list(call.results)
    if len(results) == 1 and str(results[0].type).startswith("tuple<"):  # before JAX 0.6
        parts = ir.TupleType(results[0].type).num_types
        results = [hlo.GetTupleElementOp(results[0], ir.IntegerAttr.get(ir.IntegerType.get_signless(32), i)).result
                   for i in range(parts)]
    return results


def lowered_as_written(function, context, operands):
    """What JAX makes of `function` there, as if no primitive were around it."""
    return mlir.lower_fun(function, multiple_results=True)(context, *operands)


def tiles(sharding, rank):
    """(dims, devices) of an XLA sharding of an array: how often each dim is cut, and the place in the mesh of each tile's
    device, in row-major order of the tiles; None if it is not cut. A last dim more counts copies of a tile."""
    xla = sharding._to_xla_hlo_sharding(rank)
    if not xla.is_tiled() or len(xla.subgroup_types()) > 1:
        return None
    return tuple(xla.tile_assignment_dimensions()), tuple(xla.tile_assignment_devices())


def lowering_platforms(context):
    return tuple(context.module_context.platforms)


def devices_partitioned_over(context):
    """How many devices XLA will partition the module being lowered over, at the place of this context: inside of
    shard_map the program is one device's already."""
    axes = context.module_context.axis_context
    if isinstance(axes, SPMDAxisContext):
        return 1 if set(axes.manual_axes) >= set(axes.mesh.axis_names) else axes.mesh.size
    return getattr(axes, "num_devices", None) or 1


def define(primitive, *, lower, batch):
    """Gives a primitive its rules, but for those of derivatives. What it is lowered to may hold primitives that ask for
    the devices, which JAX does not see in its parameters."""
    needs_devices(primitive)
    mlir.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch


def leave_out_hlo_pass(name):
    """From here on, XLA compiles every program without this pass; one that it does not know is no error."""
    original = compiler.get_compile_options

    def get_compile_options(*args, **kwargs):
        options = original(*args, **kwargs)
        debug = options.executable_build_options.debug_options
        debug.xla_disable_hlo_passes = ",".join(filter(None, (debug.xla_disable_hlo_passes, name)))
        return options

    compiler.get_compile_options = get_compile_options


class CacheKeySalt:
    """Adds words to the key of JAX's persistent compilation cache until it is taken out again."""

    def __init__(self, words):
        previous = cache_key.custom_hook
        self._words = words
        self._previous = previous
        self._hook = lambda: previous() + self._words
        cache_key.custom_hook = self._hook

    def clear(self):
        self._words = ""
        if cache_key.custom_hook is self._hook:  # else somebody has built on it
            cache_key.custom_hook = self._previous


def hlo_transformations():
    """JAX's registry of HLO transformations, `jax.extend.xla`; None before JAX 0.10.2."""
    try:
        from jax.extend import xla
    except ImportError:
        return None
    return xla if hasattr(xla, "register_hlo_module_transformation") else None


def is_tracer(value):
    return isinstance(value, jax.core.Tracer)


def varies_over_mesh(value):
    """Whether shard_map tracks mesh axes that a value varies over."""
    aval = getattr(value, "aval", None)
    kind = getattr(aval, "manual_axis_type", None)
    return bool(getattr(aval, "vma", None) or getattr(kind, "varying", None))


def needs_devices(primitive):
    """Has JAX give the devices when it lowers this primitive."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_own_call(eqn):
    """Whether the function that an equation calls, one with a derivative of its own, is JAX's."""
    called = eqn.params.get("call_jaxpr")
    source = getattr(getattr(getattr(called, "jaxpr", called), "debug_info", None), "func_src_info", None) or ""
    return source.rpartition(" at ")[2].startswith(os.path.dirname(jax.__file__) + os.sep)
