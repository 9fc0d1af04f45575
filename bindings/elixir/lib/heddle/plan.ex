defmodule Heddle.Plan do
  @moduledoc """
  A graph made ready to run, on any number of processes at once. Plans are kept by their graph's text: the next call with
  the same one plans nothing.
  """

  alias Heddle.{Error, Graph, Native, Options, Tensor}

  @typedoc "A tensor that the plan binds: its uid, name, type and dims, of an output as they lie in memory."
  @type port_tensor :: %{uid: integer, name: String.t(), type: Tensor.type(), shape: tuple}
  @type t :: %__MODULE__{
          native: Native.plan(),
          device: Tensor.device(),
          inputs: [port_tensor],
          outputs: [port_tensor]
        }

  @enforce_keys [:native, :device, :inputs, :outputs]
  defstruct [:native, :device, :inputs, :outputs]

  @doc """
  The plan of a graph, or of its text form. Option: `device`, `:cpu` by default or `:cuda`.

      iex> {:error, error} = Heddle.Plan.new("{")
      iex> error.status
      :malformed_input
  """
  @spec new(Graph.t() | String.t(), device: Tensor.device()) :: {:ok, t} | {:error, Error.t()}
  def new(graph, options \\ []) do
    with :ok <- Options.known(options, [:device]),
         device = Keyword.get(options, :device, :cpu),
         :ok <- Tensor.check_device(device),
         {:ok, text} <- text(graph),
         {:ok, native} <- Native.plan(text, device),
         {:ok, {inputs, outputs}} <- Native.plan_ports(native) do
      {:ok,
       %__MODULE__{
         native: native,
         device: device,
         inputs: Enum.map(inputs, &named/1),
         outputs: Enum.map(outputs, &named/1)
       }}
    end
  end

  @doc "As `new/2`; raises the error."
  @spec new!(Graph.t() | String.t(), device: Tensor.device()) :: t
  def new!(graph, options \\ []), do: Error.bang(new(graph, options))

  @doc """
  Runs the plan: `inputs` is a map of uid to tensor, in memory as the graph's dims and strides say, and so is the result.

  Resident tensors have to be on the plan's device, and if any is given, results are resident; other tensors are brought
  there. A tensor's type has to be the graph's and its size that of the graph's dims; its own shape is not looked at, as the
  memory of a tensor with strides has dims in another order.
  """
  @spec run(t, %{integer => Tensor.t()}) :: {:ok, %{integer => Tensor.t()}} | {:error, Error.t()}
  def run(%__MODULE__{} = plan, inputs) when is_map(inputs) do
    with {:ok, given} <- given(plan.inputs, inputs),
         place =
           if(Enum.any?(given, fn {_uid, data} -> is_reference(data) end), do: :memory, else: :binaries),
         {:ok, made} <- Tensor.collecting(fn -> Native.execute(plan.native, given, place) end) do
      {:ok,
       plan.outputs
       |> Enum.zip_with(made, fn port, data ->
         {port.uid, %Tensor{data: data, shape: port.shape, type: port.type}}
       end)
       |> Map.new()}
    end
  end

  def run(%__MODULE__{}, inputs),
    do: Error.invalid("The inputs are #{Tensor.brief(inputs)}, expected a map of uids to tensors.")

  @doc "As `run/2`; raises the error."
  @spec run!(t, %{integer => Tensor.t()}) :: %{integer => Tensor.t()}
  def run!(plan, inputs), do: Error.bang(run(plan, inputs))

  @doc "The plan for people: a line for each step."
  @spec description(t) :: String.t()
  def description(%__MODULE__{native: native}), do: Error.bang(Native.plan_description(native))

  defp text(%Graph{} = graph) do
    {:ok, Graph.text(graph)}
  rescue
    error in Error -> {:error, error}
  end

  defp text(text) when is_binary(text), do: {:ok, text}

  defp text(other),
    do: Error.invalid("The graph is #{Tensor.brief(other)}, expected a Heddle.Graph or its text form.")

  defp named({uid, name, type, shape}), do: %{uid: uid, name: name, type: type, shape: shape}

  defp given(ports, inputs) do
    Enum.reduce_while(ports, {:ok, []}, fn %{uid: uid} = port, {:ok, found} ->
      case inputs do
        %{^uid => tensor} ->
          case checked(port, tensor) do
            {:ok, data} -> {:cont, {:ok, [{uid, data} | found]}}
            error -> {:halt, error}
          end

        _ ->
          # The library says what is missing.
          {:cont, {:ok, found}}
      end
    end)
  end

  defp checked(port, tensor) do
    with {:ok, tensor} <- Tensor.from(tensor, "The input '#{port.name}'") do
      if tensor.type == port.type,
        do: {:ok, tensor.data},
        else: Error.invalid("The input '#{port.name}' is of type #{tensor.type}, expected #{port.type}.")
    end
  end
end
