defmodule Heddle.Devices do
  @moduledoc "Where tensors may lie on this machine."

  alias Heddle.{Error, Tensor}

  @probe %Tensor{data: <<0>>, shape: {1}, type: :u8}

  @doc "`[:cpu]`, with a GPU `[:cpu, :cuda]`."
  def all, do: if(why_no_gpu() == nil, do: [:cpu, :cuda], else: [:cpu])

  @doc "The sentence of a machine without a GPU; nil where there is one."
  def why_no_gpu do
    case Tensor.upload(@probe, :cuda) do
      {:ok, _} -> nil
      {:error, %Error{message: sentence}} -> sentence
    end
  end
end
