defmodule Heddle.Call do
  @moduledoc false
  # A graph being put together with the tensors that its inputs are, and its run: what every op of the package does.

  alias Heddle.{Error, Graph, Native, Tensor}

  defstruct [:graph, op: "", inputs: [], outputs: []]

  @type t :: %__MODULE__{
          graph: Graph.t(),
          op: String.t(),
          inputs: [{integer, binary | Native.memory()}],
          outputs: [{integer, {tuple, Tensor.type()}}]
        }

  @spec new(String.t()) :: t
  def new(op), do: %__MODULE__{graph: Graph.new(op, intermediate_dtype: :f32), op: op}

  @doc "A tensor that is given, or nothing if it is nil. `dims`, `strides` and `more` are how the graph sees it."
  @spec input(t, integer, String.t(), Tensor.t() | nil, [pos_integer], [integer] | nil, keyword) :: t
  def input(call, uid, name, tensor, dims, strides \\ nil, more \\ [])
  def input(call, _uid, _name, nil, _dims, _strides, _more), do: call

  def input(call, uid, name, tensor, dims, strides, more) do
    fields = [dtype: tensor.type, dims: dims, strides: strides || row_major(dims)] ++ more
    %{call | graph: Graph.tensor(call.graph, uid, name, fields), inputs: [{uid, tensor.data} | call.inputs]}
  end

  @doc "A tensor that is made, of a shape as it lies in memory."
  @spec output(t, integer, String.t(), {tuple, Tensor.type()}, [pos_integer], [integer] | nil, keyword) :: t
  def output(call, uid, name, {_shape, type} = like, dims, strides \\ nil, more \\ []) do
    fields = [dtype: type, dims: dims, strides: strides || row_major(dims)] ++ more
    %{call | graph: Graph.tensor(call.graph, uid, name, fields), outputs: [{uid, like} | call.outputs]}
  end

  @spec virtual(t, integer, String.t(), keyword) :: t
  def virtual(call, uid, name, fields),
    do: %{call | graph: Graph.tensor(call.graph, uid, name, [virtual: true] ++ fields)}

  @doc "A number that the graph knows, as a scalar of f32."
  @spec constant(t, integer, number | atom, pos_integer) :: t
  def constant(call, uid, value, rank) do
    fields = [dtype: :f32, dims: List.duplicate(1, rank), constant: value]
    %{call | graph: Graph.tensor(call.graph, uid, "number#{uid}", fields)}
  end

  @spec node(t, String.t(), keyword) :: t
  def node(call, op, fields), do: %{call | graph: Graph.node(call.graph, op, fields)}

  @doc """
  The outputs by ascending uid, as what `model`, an operand of the call, is: resident, a binary, or Nx's. The call runs on
  `device`; nil is where its resident tensors are.
  """
  @spec run(t, Tensor.like(), Tensor.device() | nil) :: {:ok, [Tensor.like()]} | {:error, Error.t()}
  def run(call, model, device) do
    place = if Tensor.resident?(model), do: :memory, else: :binaries
    text = text_of(call.graph)

    with :ok <- Tensor.check_device(device || :cpu),
         {:ok, made} <-
           Tensor.collecting(fn -> Native.run(text, device || device_of(call), call.inputs, place) end) do
      {:ok,
       Enum.zip_with(Enum.sort(call.outputs), made, fn {_uid, {shape, type}}, data ->
         Tensor.like(%Tensor{data: data, shape: shape, type: type}, model)
       end)}
    else
      {:error, error} -> {:error, %{error | message: "#{call.op}: #{error.message}"}}
    end
  end

  # To write a graph's text takes as long as to run a small one: a process keeps those of the graphs that it ran last, which
  # a loop comes back to. `===`, as 1 and 1.0 are written apart.
  @kept_texts 8

  defp text_of(graph) do
    kept = Process.get(__MODULE__, [])

    case Enum.find(kept, fn {one, _text} -> one === graph end) do
      {_graph, text} ->
        text

      nil ->
        text = Graph.text(graph)
        Process.put(__MODULE__, Enum.take([{graph, text} | kept], @kept_texts))
        text
    end
  end

  # What lies in another library's memory of the host is as a binary, wherever the call runs.
  defp device_of(call) do
    Enum.find_value(call.inputs, :cpu, fn {_uid, data} ->
      with true <- is_reference(data),
           {:ok, {device, _bytes}} when device != :host <- Native.memory(data) do
        device
      else
        _ -> nil
      end
    end)
  end

  @spec row_major([pos_integer]) :: [pos_integer]
  def row_major(dims) do
    {strides, _count} = dims |> Enum.reverse() |> Enum.map_reduce(1, &{&2, &1 * &2})
    Enum.reverse(strides)
  end
end
