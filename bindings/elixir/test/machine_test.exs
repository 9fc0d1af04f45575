defmodule Heddle.MachineTest do
  # What the virtual machine does around calls: one test at a time, as they look at memory and schedulers.
  use ExUnit.Case, async: false

  alias Heddle.{Dirty, Draw, FlashAttention, Graph, Native, Plan, Tensor}

  defp graph(name, length \\ 3) do
    Enum.reduce([{1, "q"}, {2, "k"}, {3, "v"}], Graph.new(name, io_dtype: :f32), fn {uid, port}, graph ->
      Graph.tensor(graph, uid, port, dims: [1, 1, length, 4])
    end)
    |> Graph.tensor(4, "o")
    |> Graph.node("sdpa", q: 1, k: 2, v: 3, o: 4)
  end

  defp resident do
    [_, pages | _] = String.split(File.read!("/proc/self/statm"))
    String.to_integer(pages) * 4096
  end

  defp settled?(condition, tries \\ 200) do
    :erlang.garbage_collect()

    cond do
      condition.() -> true
      tries == 0 -> false
      true -> Process.sleep(10) && settled?(condition, tries - 1)
    end
  end

  test "plans are freed when nothing holds them, and kept while something does" do
    most = 1024
    test = self()

    held =
      Task.async(fn ->
        plans = for i <- 1..(most + 500), do: Plan.new!(graph("held #{i}"))
        send(test, :held)
        receive do: (:run -> :ok)
        x = Draw.tensor({1, 1, 3, 4})
        inputs = %{1 => x, 2 => x, 3 => x}
        [first | rest] = Enum.map(plans, &Plan.run!(&1, inputs))
        Enum.all?(rest, &(&1 == first))
      end)

    assert_receive :held, 30_000
    # Other plans come and go from the cache.
    for i <- 1..(most + 1), do: Plan.new!(graph("other #{i}"))
    assert Native.live_plans() > most + 500
    send(held.pid, :run)
    assert Task.await(held)
    assert settled?(fn -> Native.live_plans() <= most end)
  end

  # The least that one of four rounds adds: what leaks is added by each, what the VM's own allocators take is not.
  defp growth(round) do
    for(_ <- 1..5, do: round.() && :erlang.garbage_collect() && resident())
    |> Enum.chunk_every(2, 1, :discard)
    |> Enum.map(fn [before, later] -> later - before end)
    |> Enum.min()
  end

  test "ten thousand calls take no memory with them" do
    x = Draw.tensor({1, 16, 1, 16})

    grown =
      growth(fn ->
        for _ <- 1..10_000, do: FlashAttention.forward!(x, x, x)
        for _ <- 1..10_000, do: {:error, _} = Native.run("{", :cpu, [{1, "x"}], :binaries)
        true
      end)

    # What a call could leave is a kilobyte of outputs, or an allocation of 32 bytes at least.
    assert grown < 10_000 * 32
  end

  test "sizes that keep changing take no memory with them" do
    next = :counters.new(1, [])

    grown =
      growth(fn ->
        for _ <- 1..2000 do
          :counters.add(next, 1, 1)
          Plan.new!(graph("length", :counters.get(next, 1)))
        end
      end)

    # A plan is more than a kilobyte.
    assert grown < 2000 * 1024
  end

  test "processes call at once, each with its own memory" do
    cases =
      for i <- 1..8 do
        [q, k, v, d_out] = for _ <- 1..4, do: Draw.tensor({1, 20 + i, 2, 16})
        {output, lse} = FlashAttention.forward_with_states!(q, k, v)
        {q, k, v, d_out, output, lse, FlashAttention.backward!(d_out, q, k, v, output, lse)}
      end

    cases
    |> Enum.map(fn {q, k, v, d_out, output, lse, gradients} ->
      Task.async(fn ->
        for _ <- 1..100 do
          assert FlashAttention.forward_with_states!(q, k, v) == {output, lse}
          assert FlashAttention.backward!(d_out, q, k, v, output, lse) == gradients
        end
      end)
    end)
    |> Task.await_many(60_000)
  end

  test "a process killed in the middle of a call takes nothing with it" do
    x = Draw.tensor({1, 1500, 2, 64})
    expected = FlashAttention.forward!(x, x, x)

    for _ <- 1..5 do
      {pid, monitor} = spawn_monitor(fn -> for _ <- 1..1000, do: FlashAttention.forward!(x, x, x) end)
      Process.sleep(20)
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}, 30_000
    end

    assert FlashAttention.forward!(x, x, x) == expected
  end

  test "long calls run on dirty schedulers, and the others run on" do
    x = Tensor.new!(:binary.copy(<<0.1::float-32-native>>, 3000 * 4 * 64), {1, 3000, 4, 64}, :f32)
    {output, logsumexp} = FlashAttention.forward_with_states!(x, x, x)
    plan = Plan.new!(graph("dirty", 2000))
    row = Tensor.new!(:binary.copy(<<0.1::float-32-native>>, 2000 * 4), {1, 1, 2000, 4}, :f32)

    [forward, backward] = [
      [x.data, x.data, x.data],
      [x.data, x.data, x.data, x.data, output.data, logsumexp.data]
    ]

    for {function, times, call} <- [
          {:run, 1, fn -> FlashAttention.forward!(x, x, x) end},
          {:forward_with_logsumexp, 1,
           fn -> apply(Native, :forward_with_logsumexp, forward ++ [1, 3000, 4, 64, true]) end},
          {:backward_f32, 1, fn -> apply(Native, :backward_f32, backward ++ [1, 3000, 4, 64, true]) end},
          {:execute, 1, fn -> Plan.run!(plan, %{1 => row, 2 => row, 3 => row}) end},
          {:plan, 200, fn -> for i <- 1..200, do: Plan.new!(graph("planned #{i}")) end}
        ] do
      assert Dirty.calls(call) == List.duplicate(function, times)
    end

    # While a call runs, a process of Erlang's own schedulers is asked and answers again and again.
    echo = spawn_link(fn -> echo() end)
    long = Task.async(fn -> for _ <- 1..3, do: FlashAttention.forward!(x, x, x) end)
    assert answers(echo, long.pid, 0) > 20
    Task.await(long)
  end

  test "short calls run where their caller is" do
    call = fn shape, type, options ->
      x = %Tensor{
        data: :binary.copy(<<0>>, Tuple.product(shape) * Tensor.bytes(type)),
        shape: shape,
        type: type
      }

      {output, lse} = FlashAttention.forward_with_states!(x, x, x, options)
      FlashAttention.backward!(x, x, x, output, output, lse, options)

      {Dirty.calls(fn -> FlashAttention.forward!(x, x, x, options) end),
       Dirty.calls(fn -> FlashAttention.backward!(x, x, x, output, output, lse, options) end)}
    end

    assert call.({1, 16, 1, 64}, :f32, []) == {[], []}
    assert call.({1, 1, 32, 64}, :f32, []) == {[], []}
    assert {[], _} = call.({1, 16, 8, 64}, :bf16, [])
    assert call.({1, 100, 32, 256}, :f32, []) == {[:run], [:run]}
    # A score expression is work for each cell.
    bias = Draw.tensor({1, 1, 40, 40})
    assert call.({1, 40, 32, 128}, :f32, soft_cap: 2, bias: bias) == {[:run], [:run]}
  end

  defp echo, do: receive(do: ({from, ref} -> send(from, ref) && echo()))

  # How many questions are answered until the process has ended.
  defp answers(echo, pid, count) do
    ref = make_ref()
    send(echo, {self(), ref})
    receive do: (^ref -> ref)
    if Process.alive?(pid), do: answers(echo, pid, count + 1), else: count
  end

  test "the library is loaded anew under running code" do
    plan = Plan.new!(graph("from before"))
    x = Draw.tensor({1, 1, 3, 4})
    inputs = %{1 => x, 2 => x, 3 => x}
    expected = Plan.run!(plan, inputs)

    for _ <- 1..3 do
      :code.purge(Native)
      {:module, Native} = :code.load_file(Native)
      assert Plan.run!(plan, inputs) == expected
      assert Plan.run!(Plan.new!(graph("from before")), inputs) == expected
    end

    :code.purge(Native)
    assert Plan.run!(plan, inputs) == expected
  end
end
