defmodule Heddle.Error do
  @moduledoc """
  A failure: `message` is one sentence that says what was given and what is allowed, `status` its kind, a name of
  `include/heddle/heddle.h` as an atom (`:invalid_value`, `:graph_not_supported`, `:malformed_input`, ...).
  """

  @type t :: %__MODULE__{status: atom, message: String.t()}

  @enforce_keys [:status, :message]
  defexception [:status, :message]

  @doc false
  @spec invalid(String.t()) :: {:error, t}
  def invalid(message), do: {:error, %__MODULE__{status: :invalid_value, message: message}}

  @doc false
  @spec bang({:ok, result} | {:error, t}) :: result when result: var
  def bang({:ok, result}), do: result
  def bang({:error, error}), do: raise(error)
end
