defmodule Heddle.Pointer do
  @moduledoc false
  # Where an Nx tensor's elements lie. EXLA tells it of its clients :host and :cuda; Nx.BinaryBackend has a binary, which
  # needs no pointer, and what others have is copied by Nx.to_binary.

  alias Heddle.Native

  @doc "The elements where they lie, as memory of the NIF's that keeps the tensor; nil if its backend does not tell."
  @spec memory(struct, non_neg_integer) :: Native.memory() | nil
  def memory(%{data: %{__struct__: EXLA.Backend, buffer: %{client_name: client} = buffer}} = tensor, bytes)
      when client in [:host, :cuda] do
    # Calls run on the machine's first GPU.
    if Map.get(buffer, :device_id, 0) == 0, do: borrow(tensor, bytes, device(client))
  end

  def memory(_tensor, _bytes), do: nil

  defp device(:host), do: :cpu
  defp device(:cuda), do: :cuda

  defp borrow(tensor, bytes, device) do
    nx = Module.concat([Nx])

    with true <- function_exported?(nx, :to_pointer, 2),
         %{kind: :local, address: address, data_size: ^bytes} <- nx.to_pointer(tensor, mode: :local),
         {:ok, memory} <- Native.borrow(address, bytes, device, tensor) do
      memory
    else
      _ -> nil
    end
  rescue
    # A tensor that was donated, or on a device without pointers: Nx.to_binary has the words for it.
    _ -> nil
  end
end
