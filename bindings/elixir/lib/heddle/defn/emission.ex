defmodule Heddle.Defn.Emission do
  @moduledoc false
  # What attention is in a program of XLA: a custom call of target "heddle", whose attribute `graph` says what it computes.
  # Operands are the graph's inputs and results its outputs by ascending uid, row-major, with one more result, the bytes
  # that it works in.

  alias Heddle.{Error, Graph, Native, Tensor}
  alias Heddle.FlashAttention.{Graphs, Options, Packing, Sizes}

  @options [:causal, :window, :scale, :kv_heads, :soft_cap]

  @enforce_keys [:target, :attributes, :operands, :results]
  defstruct [:target, :attributes, :operands, :results]

  @typedoc "`attributes` are names with values as MLIR writes them; operands and results are shapes and types."
  @type t :: %__MODULE__{
          target: String.t(),
          attributes: [{String.t(), String.t()}],
          operands: [typed],
          results: [typed]
        }
  @type typed :: {tuple, Tensor.type()}

  @doc """
  The call of a pass on a device, for q, k and v of these shapes and types. Operands: q, k and v, of the backward pass then
  output, d_output and logsumexp. Results: output and logsumexp, or dq, dk and dv; then the workspace.
  """
  @spec new(:forward | :backward, [typed], keyword, Tensor.device()) :: {:ok, t} | {:error, Error.t()}
  def new(pass, [q, k, v], options, device) do
    [q, k, v] = Enum.map([q, k, v], &tensor/1)

    with :ok <- Heddle.Options.known(options, @options),
         {:ok, sizes} <- Sizes.new(q, k, v),
         {:ok, sizes} <- Packing.sizes(sizes, nil),
         {:ok, options} <- Options.new(options, sizes, pass),
         # The custom call has no operands for them: the library says where it wants some.
         options = %{options | q_lengths: nil, kv_lengths: nil},
         call = call(pass, %{q: q, k: k, v: v}, sizes, options),
         text = Graph.text(call.graph),
         {:ok, plan} <- Native.plan(text, device),
         {:ok, workspace} <- Native.plan_workspace(plan) do
      {:ok,
       %__MODULE__{
         target: "heddle",
         attributes: [{"graph", mlir_string(text)}],
         operands: operands(pass, q, k, v, sizes),
         # Nx has no tensors without elements.
         results: Enum.map(Enum.sort(call.outputs), &elem(&1, 1)) ++ [{{max(workspace, 1)}, :u8}]
       }}
    end
  end

  defp call(:forward, rows, sizes, options), do: Graphs.forward(rows, sizes, options)

  defp call(:backward, rows, sizes, options) do
    o = tensor({Graphs.out_shape(rows), sizes.type})
    lse = tensor({Graphs.statistics_shape(sizes), :f32})
    Graphs.backward(Map.merge(rows, %{o: o, d_o: o}), sizes, lse, options)
  end

  defp operands(:forward, q, k, v, _sizes), do: Enum.map([q, k, v], &{&1.shape, &1.type})

  defp operands(:backward, q, k, v, sizes) do
    output = {Graphs.out_shape(%{q: q, v: v}), sizes.type}
    operands(:forward, q, k, v, sizes) ++ [output, output, {Graphs.statistics_shape(sizes), :f32}]
  end

  # Of a shape and a type, without data.
  defp tensor({shape, type}), do: %Tensor{data: <<>>, shape: shape, type: type}

  # Printable ASCII but for quotes and backslashes stands for itself, any other byte is two hexadecimal digits.
  defp mlir_string(text) do
    escaped =
      for <<byte <- text>>, into: "" do
        if byte in 0x20..0x7E and byte not in [?", ?\\],
          do: <<byte>>,
          else: "\\" <> Base.encode16(<<byte>>)
      end

    "\"" <> escaped <> "\""
  end
end
