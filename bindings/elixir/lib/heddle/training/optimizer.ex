defmodule Heddle.Training.Optimizer do
  @moduledoc """
  How parameters follow their gradients: gradient descent, `{:sgd, learning_rate: 0.1}`, or Adam (Kingma & Ba, 2015),
  `{:adam, learning_rate: 0.001, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8}`. The numbers shown are the defaults.

      iex> {:ok, optimizer} = Heddle.Training.Optimizer.new({:sgd, learning_rate: 0.5})
      iex> {updated, _optimizer} = Heddle.Training.Optimizer.update(optimizer, %{w: [1.0, 2.0]}, %{w: [2.0, -2.0]})
      iex> updated
      %{w: [0.0, 3.0]}
  """

  alias Heddle.{Error, Options, Tensor}

  @defaults %{
    sgd: %{learning_rate: 0.1},
    adam: %{learning_rate: 0.001, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8}
  }

  @type choice :: {:sgd | :adam, keyword(number)}
  @typedoc "`moments` has the running means of each parameter's gradient and of its square."
  @type t :: %__MODULE__{
          kind: :sgd | :adam,
          constants: %{atom => number},
          step: non_neg_integer,
          moments: %{optional(term) => {[float], [float]}}
        }

  @enforce_keys [:kind, :constants]
  defstruct [:kind, :constants, step: 0, moments: %{}]

  @doc "An optimizer that has seen no gradients."
  @spec new(choice) :: {:ok, t} | {:error, Error.t()}
  def new({kind, constants}) when is_map_key(@defaults, kind) do
    defaults = Map.fetch!(@defaults, kind)

    with :ok <- Options.known(constants, Map.keys(defaults)),
         nil <- Enum.find(constants, &(not valid?(&1))) do
      {:ok, %__MODULE__{kind: kind, constants: Map.merge(defaults, Map.new(constants))}}
    else
      {:error, error} ->
        {:error, error}

      wrong ->
        Error.invalid(
          "The optimizer #{kind} is given #{Tensor.brief(wrong)}, expected a number of at least 0, and beta1 and beta2 " <>
            "below 1."
        )
    end
  end

  def new(other),
    do:
      Error.invalid("The optimizer is #{Tensor.brief(other)}, expected {:sgd, options} or {:adam, options}.")

  @doc "New parameters and the optimizer after this step, of maps of lists of floats."
  @spec update(t, %{key => [float]}, %{key => [float]}) :: {%{key => [float]}, t} when key: term
  def update(%__MODULE__{kind: :sgd} = optimizer, parameters, gradients) do
    rate = optimizer.constants.learning_rate

    updated =
      Map.new(parameters, fn {name, p} ->
        {name, Enum.zip_with(p, Map.fetch!(gradients, name), &(&1 - rate * &2))}
      end)

    {updated, %{optimizer | step: optimizer.step + 1}}
  end

  def update(%__MODULE__{kind: :adam} = optimizer, parameters, gradients) do
    %{learning_rate: rate, beta1: beta1, beta2: beta2, epsilon: epsilon} = optimizer.constants
    step = optimizer.step + 1
    # Both means begin at 0; what they lack of a whole mean at this step.
    whole1 = 1 - :math.pow(beta1, step)
    whole2 = 1 - :math.pow(beta2, step)

    moments =
      Map.new(gradients, fn {name, g} ->
        {mean, square} = Map.get_lazy(optimizer.moments, name, fn -> {zeros(g), zeros(g)} end)

        {name,
         {Enum.zip_with(mean, g, &(beta1 * &1 + (1 - beta1) * &2)),
          Enum.zip_with(square, g, &(beta2 * &1 + (1 - beta2) * &2 * &2))}}
      end)

    updated =
      Map.new(parameters, fn {name, p} ->
        {mean, square} = Map.fetch!(moments, name)

        {name,
         Enum.zip_with([p, mean, square], fn [p, mean, square] ->
           p - rate * (mean / whole1) / (:math.sqrt(square / whole2) + epsilon)
         end)}
      end)

    {updated, %{optimizer | step: step, moments: moments}}
  end

  defp valid?({name, value}),
    do:
      match?({:ok, _}, Options.float("", value)) and value >= 0 and
        (name not in [:beta1, :beta2] or value < 1)

  defp zeros(list), do: Enum.map(list, fn _ -> 0.0 end)
end
