defmodule Heddle.Options do
  @moduledoc false
  # What every function asks of its options.

  alias Heddle.{Error, Tensor}

  @doc "Whether they are a keyword list of allowed names, each once."
  @spec known(term, [atom]) :: :ok | {:error, Error.t()}
  def known(options, allowed) do
    if Keyword.keyword?(options) do
      case Keyword.keys(options) -- allowed do
        [] ->
          :ok

        [unknown | _] ->
          Error.invalid(
            "There is no option #{inspect(unknown)}, or it is given twice, expected a keyword list of #{inspect(allowed)}."
          )
      end
    else
      Error.invalid(
        "The options are #{Tensor.brief(options)}, expected a keyword list of #{inspect(allowed)}."
      )
    end
  end

  @doc "A number as a float."
  @spec float(String.t(), term) :: {:ok, float} | {:error, Error.t()}
  def float(_name, value) when is_float(value) or (is_integer(value) and abs(value) < 0x10000000000000000),
    do: {:ok, value * 1.0}

  def float(name, value) when is_integer(value),
    do: Error.invalid("#{name} is #{Tensor.brief(value)}, expected a number of less than 2^64.")

  def float(name, value), do: Error.invalid("#{name} is #{Tensor.brief(value)}, expected a number.")
end
