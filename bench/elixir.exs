# What calls of the Elixir package cost beside their kernels, and how other processes fare meanwhile; nothing is asserted.
#
#     cd bindings/elixir && ERL_FLAGS="+sbwt none +sbwtdcpu none +sbwtdio none" mix run ../../bench/elixir.exs [cpu | cuda]

defmodule Bench do
  alias Heddle.{FlashAttention, Native, Tensor}
  alias Heddle.Defn.Emission

  def main(device) do
    IO.puts("#{device}: microseconds of a call on resident tensors of f32, of 50 in a row the least and the median")

    for shape <- [{1, 16, 1, 64}, {1, 64, 8, 64}] do
      x = zeros(shape) |> Tensor.upload!(device)
      {output, lse} = FlashAttention.forward_with_states!(x, x, x)
      row("forward of #{inspect(shape)}", fn -> FlashAttention.forward_with_states!(x, x, x) end)
      plan = plan(:forward, shape, device)
      row("its plan alone", fn -> {:ok, _} = Native.execute(plan, [{1, x.data}, {2, x.data}, {3, x.data}], :memory) end)
      row("backward", fn -> FlashAttention.backward!(output, x, x, x, output, lse) end)
    end

    x = zeros({1, 4096, 8, 64})
    call = fn -> FlashAttention.forward!(x, x, x, device: device) end
    call.()
    echo = spawn_link(&echo/0)
    sorted = Enum.sort(latencies(echo, Task.async(fn -> for _ <- 1..3, do: call.() end), []))
    [half, most] = for share <- [0.5, 0.99], do: Enum.at(sorted, trunc(share * length(sorted)))

    IO.puts(
      "another process answers while calls of 4096 rows run: #{length(sorted)} times, the median after #{half} us, " <>
        "99 of 100 within #{most} us, all within #{List.last(sorted)} us"
    )
  end

  # That of the graph which a call of the package writes.
  defp plan(pass, shape, device) do
    {:ok, emission} = Emission.new(pass, List.duplicate({shape, :f32}, 3), [], device)
    [{"graph", quoted}] = emission.attributes
    text = Regex.replace(~r/\\([0-9A-F]{2})/, quoted |> String.slice(1..-2//1), fn _, hex -> <<String.to_integer(hex, 16)>> end)
    {:ok, plan} = Native.plan(text, device)
    plan
  end

  defp zeros(shape), do: Tensor.new!(<<0::size(Tuple.product(shape) * 32)>>, shape, :f32)

  defp row(name, call) do
    times =
      for _ <- 1..200 do
        :erlang.garbage_collect()
        {time, _} = :timer.tc(fn -> Enum.each(1..50, fn _ -> call.() end) end)
        time / 50
      end

    sorted = Enum.sort(times)
    IO.puts("#{String.pad_trailing(name, 32)} #{Float.round(hd(sorted), 1)}   #{Float.round(Enum.at(sorted, 100), 1)}")
  end

  defp echo, do: receive(do: ({from, ref} -> send(from, ref) && echo()))

  # Microseconds from a question to its answer, until the task has ended.
  defp latencies(echo, task, found) do
    ref = make_ref()
    {time, ^ref} = :timer.tc(fn -> send(echo, {self(), ref}) && receive(do: (^ref -> ref)) end)
    if Process.alive?(task.pid), do: latencies(echo, task, [time | found]), else: [time | found]
  end
end

Bench.main(System.argv() |> List.first("cpu") |> String.to_atom())
