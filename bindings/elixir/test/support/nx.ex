unless Code.ensure_loaded?(Nx) do
  defmodule Nx.Tensor do
    @moduledoc "Stands in for Nx's where Nx is not: what Heddle asks of a tensor, and nothing else."
    defstruct [:data, :type, :shape, vectorized_axes: []]
  end

  defmodule Nx.Pointer do
    @moduledoc "See `Nx.Tensor`."
    defstruct [:kind, :address, :data_size, :handle]
  end

  defmodule EXLA.Backend do
    @moduledoc "See `Nx.Tensor`."
    defstruct [:buffer]
  end

  defmodule EXLA.DeviceBuffer do
    @moduledoc "See `Nx.Tensor`."
    defstruct [:ref, :client_name, :device_id, :typespec]
  end

  defmodule Nx.Defn.Expr do
    @moduledoc "What a tensor holds while `defn` traces; here its elements nevertheless."
    defstruct [:data]
  end

  defmodule Nx.Defn do
    @moduledoc "See `Nx.Tensor`."
    defmacro deftransform(head, do: body), do: quote(do: def(unquote(head), do: unquote(body)))
  end

  defmodule Nx.Defn.Kernel do
    @moduledoc "See `Nx.Tensor`. A gradient is kept beside its expression, for tests to call."
    def custom_grad(expression, inputs, fun), do: {:custom_grad, expression, inputs, fun}
  end

  defmodule Nx do
    @moduledoc "See `Nx.Tensor`. Functions are written for results, not for speed: elements are lists of numbers."

    @own %{
      {:f, 32} => :f32,
      {:f, 64} => :f64,
      {:bf, 16} => :bf16,
      {:f, 16} => :f16,
      {:s, 64} => :i64,
      {:s, 32} => :i32,
      {:u, 8} => :u8
    }
    @short %{f32: {:f, 32}, u8: {:u, 8}, s64: {:s, 64}}

    def from_binary(data, {_, bits} = type),
      do: %Nx.Tensor{data: data, type: type, shape: {div(8 * byte_size(data), bits)}}

    def to_binary(%{data: %Nx.Defn.Expr{data: data}}), do: data
    def to_binary(%{data: %EXLA.Backend{}}), do: raise("a tensor of EXLA was copied")
    def to_binary(tensor), do: tensor.data

    # As EXLA does it, over memory of Heddle's; of a client of another name it has no pointer.
    def to_pointer(%{data: %EXLA.Backend{buffer: %{ref: memory, client_name: client}}}, mode: :local) do
      if client not in [:host, :cuda], do: raise(ArgumentError, "no pointer of #{client}")
      {:ok, {_device, bytes}} = Heddle.Native.memory(memory)
      {:ok, address} = Heddle.Native.address(memory)
      %Nx.Pointer{kind: :local, address: address, data_size: bytes}
    end

    def type(tensor), do: tensor.type
    def shape(tensor), do: tensor.shape

    def reshape(tensor, shape) do
      true = Tuple.product(tensor.shape) == Tuple.product(shape)
      %{tensor | shape: shape}
    end

    def template(shape, type), do: %Nx.Tensor{shape: shape, type: type}
    def tensor(number, type: type), do: of([number], {}, Map.get(@short, type, type))
    def as_type(tensor, type), do: of(elements(tensor), tensor.shape, Map.get(@short, type, type))

    def iota({rows, columns}, axis: axis),
      do:
        of(
          for(i <- 0..(rows - 1), j <- 0..(columns - 1), do: Enum.at([i, j], axis)),
          {rows, columns},
          {:s, 64}
        )

    def add(a, b), do: zip(a, b, &(&1 + &2))
    def subtract(a, b), do: zip(a, b, &(&1 - &2))
    def multiply(a, b), do: zip(a, b, &(&1 * &2))
    def divide(a, b), do: zip(a, b, &(&1 / &2))
    def greater_equal(a, b), do: compare(a, b, &(&1 >= &2))
    def less_equal(a, b), do: compare(a, b, &(&1 <= &2))
    def logical_and(a, b), do: compare(a, b, &(&1 != 0 and &2 != 0))
    def exp(a), do: map(a, &:math.exp(min(&1, 80)))
    def log(a), do: map(a, &:math.log/1)
    def tanh(a), do: map(a, &:math.tanh/1)

    def select(pred, on_true, on_false) do
      [a, b] = for x <- [on_true, on_false], do: elements(broadcast(as_tensor(x, {:f, 32}), pred.shape))

      of(
        Enum.zip_with([elements(pred), a, b], fn [p, a, b] -> if p != 0, do: a, else: b end),
        pred.shape,
        {:f, 32}
      )
    end

    def broadcast(tensor, shape) do
      pad = tuple_size(shape) - tuple_size(tensor.shape)
      dims = List.duplicate(1, pad) ++ Tuple.to_list(tensor.shape)
      true = Enum.all?(Enum.zip(dims, Tuple.to_list(shape)), fn {dim, full} -> dim in [1, full] end)
      strides = Enum.zip_with(dims, strides(dims), fn dim, stride -> if dim == 1, do: 0, else: stride end)
      gather(tensor, Tuple.to_list(shape), strides)
    end

    def transpose(tensor, axes: axes) do
      dims = Tuple.to_list(tensor.shape)
      strides = strides(dims)
      gather(tensor, Enum.map(axes, &Enum.at(dims, &1)), Enum.map(axes, &Enum.at(strides, &1)))
    end

    def sum(tensor, axes: [axis], keep_axes: true), do: reduce(tensor, axis, &Enum.sum/1)
    def reduce_max(tensor, axes: [axis], keep_axes: true), do: reduce(tensor, axis, &Enum.max/1)

    # Of two tensors of four dims, the first two of which are the batch.
    def dot(a, [contract_a], [0, 1], b, [contract_b], [0, 1]) do
      [a, b] =
        for {x, axis} <- [{a, contract_a}, {b, contract_b}],
            do: if(axis == 3, do: x, else: transpose(x, axes: [0, 1, 3, 2]))

      {b0, b1, m, k} = a.shape
      {^b0, ^b1, n, ^k} = b.shape

      [a, b] =
        for {x, rows} <- [{a, m}, {b, n}],
            do: x |> elements() |> Enum.chunk_every(k) |> Enum.chunk_every(rows)

      products =
        for {left, right} <- Enum.zip(a, b),
            x <- left,
            y <- right,
            do: Enum.zip_with(x, y, &(&1 * &2)) |> Enum.sum()

      of(products, {b0, b1, m, n}, {:f, 32})
    end

    # As EXLA does it if the process asks for its platform, else as other compilers do.
    def block(block, inputs, output, fun) do
      case Process.get(:exla_platform) do
        nil -> apply(fun, [block | inputs])
        platform -> Heddle.StandInXla.run(block, inputs, output, platform) || apply(fun, [block | inputs])
      end
      |> checked(output)
    end

    defp checked(results, output) do
      kinds = fn tuple -> for x <- Tuple.to_list(tuple), do: {x.shape, x.type} end
      true = kinds.(results) == kinds.(output)
      results
    end

    defp elements(tensor),
      do:
        Heddle.Tensor.to_list(%Heddle.Tensor{
          data: to_binary(tensor),
          shape: tensor.shape,
          type: @own[tensor.type]
        })

    defp of(list, shape, type) do
      encoded = Heddle.Tensor.from_list!(list, if(shape == {}, do: {1}, else: shape), @own[type])
      %Nx.Tensor{data: encoded.data, shape: shape, type: type}
    end

    defp as_tensor(number, type) when is_number(number), do: of([number], {}, type)
    defp as_tensor(tensor, _type), do: tensor

    defp map(tensor, function), do: of(Enum.map(elements(tensor), function), tensor.shape, tensor.type)

    defp zip(a, b, function, type \\ nil) do
      [a, b] = [as_tensor(a, is_struct(b) && b.type), as_tensor(b, is_struct(a) && a.type)]
      rank = max(tuple_size(a.shape), tuple_size(b.shape))
      padded = for x <- [a, b], do: List.duplicate(1, rank - tuple_size(x.shape)) ++ Tuple.to_list(x.shape)
      shape = List.to_tuple(Enum.zip_with(padded, &Enum.max/1))

      of(
        Enum.zip_with(elements(broadcast(a, shape)), elements(broadcast(b, shape)), function),
        shape,
        type || a.type
      )
    end

    defp compare(a, b, function), do: zip(a, b, &if(function.(&1, &2), do: 1, else: 0), {:u, 8})

    # Along the last axis.
    defp reduce(tensor, axis, function) do
      true = axis == tuple_size(tensor.shape) - 1
      rows = tensor |> elements() |> Enum.chunk_every(elem(tensor.shape, axis))
      of(Enum.map(rows, function), put_elem(tensor.shape, axis, 1), tensor.type)
    end

    defp strides(dims),
      do: dims |> Enum.reverse() |> Enum.map_reduce(1, &{&2, &1 * &2}) |> elem(0) |> Enum.reverse()

    defp gather(tensor, dims, strides) do
      all = List.to_tuple(elements(tensor))

      places =
        Enum.zip(dims, strides)
        |> Enum.reduce([0], fn {dim, stride}, places ->
          for(at <- places, i <- 0..(dim - 1), do: at + i * stride)
        end)

      of(Enum.map(places, &elem(all, &1)), List.to_tuple(dims), tensor.type)
    end
  end
end

unless Code.ensure_loaded?(EXLA) do
  defmodule EXLA.CustomCall.Spec do
    @moduledoc "Stands in for EXLA's where EXLA is not: its fields and their defaults."
    @enforce_keys [:call_target_name]
    defstruct [:call_target_name, attributes: [], operand_element_types: :default]
  end

  defprotocol EXLA.CustomCall do
    @moduledoc "See `EXLA.CustomCall.Spec`."
    def call(struct, out, args, client)
  end

  defmodule Heddle.StandInXla do
    @moduledoc "Does with a block what EXLA and XLA do: a custom call of its spec, by Heddle's handler's rules."

    def run(block, inputs, output, platform) do
      templates = for x <- inputs, do: %Nx.Tensor{shape: x.shape, type: x.type}

      with {:ok, spec} <- EXLA.CustomCall.call(block, output, templates, %{platform: platform}) do
        %EXLA.CustomCall.Spec{
          call_target_name: "heddle",
          attributes: [{"graph", quoted}],
          operand_element_types: :default
        } = spec

        {:ok, plan} = Heddle.Native.plan(unquoted(quoted), :cpu)
        {:ok, {ports, _}} = Heddle.Native.plan_ports(plan)
        named = Enum.zip_with(ports, inputs, fn {uid, _, _, _}, x -> {uid, Nx.to_binary(x)} end)
        {:ok, made} = Heddle.Native.execute(plan, named, :binaries)
        true = length(made) == tuple_size(output) - 1
        workspace = elem(output, length(made))
        made = made ++ [:binary.copy(<<0>>, elem(workspace.shape, 0))]

        List.to_tuple(
          Enum.zip_with(made, Tuple.to_list(output), fn data, template -> %{template | data: data} end)
        )
      else
        :skip -> nil
      end
    end

    # A string of MLIR.
    def unquoted(<<?", rest::binary>>), do: unescaped(rest, "")
    defp unescaped(<<?">>, text), do: text

    defp unescaped(<<?\\, hex::binary-size(2), rest::binary>>, text),
      do: unescaped(rest, text <> Base.decode16!(hex))

    defp unescaped(<<byte, rest::binary>>, text), do: unescaped(rest, text <> <<byte>>)
  end
end
