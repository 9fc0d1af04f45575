defmodule Heddle.Training do
  @moduledoc """
  Training with attention in the native library and everything else in Elixir: gradients are carried by hand from layer to
  layer, loss, head, attention, embedding, and an optimizer follows them. `examples/elixir/policy.exs` trains such a network.

  A function of the native library cannot stand inside `defn`, where Nx differentiates; a step with Nx has the same
  parts, with `Nx.Defn.value_and_grad` for the layers before and after attention.

      iex> :rand.seed(:exsss, 7)
      iex> {:ok, parameters} =
      ...>   Heddle.Training.Policy.init(features: 2, width: 4, heads: 1, dim: 4, actions: 2)
      iex> {:ok, training} = Heddle.Training.new(parameters, heads: 1, optimizer: {:adam, learning_rate: 0.05})
      iex> batch = %{
      ...>   states: Heddle.Tensor.from_list!([1, 0, 0, 1], {1, 2, 2}, :f32),
      ...>   actions: Heddle.Tensor.from_list!([0, 1], {1, 2}, :i32)
      ...> }
      iex> {:ok, training, first} = Heddle.Training.train_step(training, batch)
      iex> {:ok, _training, second} = Heddle.Training.train_step(training, batch)
      iex> second < first
      true
  """

  alias Heddle.{Error, Options, Tensor}
  alias Heddle.Training.{Optimizer, Policy}

  @typedoc "What a training run is at: its parameters, their optimizer, and the network's configuration."
  @type t :: %__MODULE__{parameters: Policy.parameters(), optimizer: Optimizer.t(), config: Policy.config()}

  @enforce_keys [:parameters, :optimizer, :config]
  defstruct [:parameters, :optimizer, :config]

  @doc """
  A training run of a network with these parameters.

  Options: `heads`, how many the query has; `attention`, options of `Heddle.FlashAttention`; `optimizer`, as
  `Heddle.Training.Optimizer` has it, by default `{:adam, []}`; `device`, `:cpu` or `:cuda`, where q, k, v, the output and
  its log-sum-exp stay between the passes of a step, so that each is copied once; by default they are binaries.
  """
  @spec new(Policy.parameters(), keyword) :: {:ok, t} | {:error, Error.t()}
  def new(parameters, options) do
    with :ok <- Options.known(options, [:heads, :attention, :optimizer, :device]),
         {:ok, optimizer} <- Optimizer.new(Keyword.get(options, :optimizer, {:adam, []})) do
      config = %{
        heads: options[:heads],
        attention: Keyword.get(options, :attention, []),
        device: options[:device]
      }

      {:ok, %__MODULE__{parameters: parameters, optimizer: optimizer, config: config}}
    end
  end

  @doc "One step: the run after it, and the loss before it."
  @spec train_step(t, Policy.batch()) :: {:ok, t, float} | {:error, Error.t()}
  def train_step(%__MODULE__{} = training, batch) do
    with {:ok, loss, gradients} <-
           Policy.loss_and_gradients(training.parameters, batch, training.config),
         given = Map.new(gradients, fn {name, _} -> {name, own(Map.fetch!(training.parameters, name))} end),
         flat = Map.new(given, fn {name, tensor} -> {name, Tensor.to_list(tensor)} end),
         {updated, optimizer} = Optimizer.update(training.optimizer, flat, gradients),
         {:ok, parameters} <- tensors_like(updated, given) do
      {:ok, %{training | parameters: parameters, optimizer: optimizer}, loss}
    end
  rescue
    ArithmeticError -> Error.invalid("The step left the range of floats, expected a smaller learning rate.")
  end

  # What the step has read already; those after it are Heddle's own.
  defp own(parameter) do
    {:ok, tensor} = Tensor.from(parameter, "The parameter")
    tensor
  end

  defp tensors_like(lists, given) do
    Enum.reduce_while(lists, {:ok, %{}}, fn {name, list}, {:ok, made} ->
      %Tensor{shape: shape, type: type} = Map.fetch!(given, name)

      case Tensor.from_list(list, shape, type) do
        {:ok, tensor} -> {:cont, {:ok, Map.put(made, name, tensor)}}
        error -> {:halt, error}
      end
    end)
  end
end
