# The side of the virtual machine of bench/gpu/nif.py, which says what to do in lines:
#
#   load FOLDER DEVICE TYPE BATCH LENGTH HEADS DIM   reads q, k, v and d_out, runs both passes, writes graphs and results
#   forward COUNT, backward COUNT                    microseconds of a call, of so many in a row that are then waited for

defmodule Bench do
  alias Heddle.{FlashAttention, Tensor}

  @options [causal: false]

  def loop(state) do
    case IO.read(:line) do
      :eof -> :ok
      line -> line |> String.split() |> answer(state) |> loop()
    end
  end

  defp answer(["load", folder, device, type | sizes], _state) do
    {device, type} = {String.to_atom(device), String.to_atom(type)}
    shape = sizes |> Enum.map(&String.to_integer/1) |> List.to_tuple()

    [q, k, v, d_out] =
      for name <- ~w(q k v d_out),
          do: folder |> Path.join(name) |> File.read!() |> Tensor.new!(shape, type) |> Tensor.upload!(device)

    for pass <- [:forward, :backward] do
      {:ok, emission} = Heddle.Defn.Emission.new(pass, List.duplicate({shape, type}, 3), @options, device)
      [{"graph", quoted}] = emission.attributes
      File.write!(Path.join(folder, "#{pass}.mlir"), quoted)
    end

    state = %{q: q, k: k, v: v, d_out: d_out, output: nil, lse: nil}
    {output, lse} = run("forward", state)
    state = %{state | output: output, lse: lse}
    {dq, dk, dv} = run("backward", state)

    for {name, tensor} <- [output: output, lse: lse, dq: dq, dk: dk, dv: dv],
        do: File.write!(Path.join(folder, "#{name}"), Tensor.download!(tensor).data)

    IO.puts("ready")
    state
  end

  defp answer([pass, count], state) do
    :erlang.garbage_collect()
    started = System.monotonic_time(:nanosecond)
    last = for _ <- 1..String.to_integer(count), reduce: nil, do: (_ -> run(pass, state))
    # Of what the device does in order the last.
    Tensor.download!(elem(last, tuple_size(last) - 1))
    IO.puts((System.monotonic_time(:nanosecond) - started) / 1000 / String.to_integer(count))
    state
  end

  defp run("forward", s), do: FlashAttention.forward_with_states!(s.q, s.k, s.v, @options)

  defp run("backward", s),
    do: FlashAttention.backward!(s.d_out, s.q, s.k, s.v, s.output, s.lse, @options)
end

Bench.loop(nil)
