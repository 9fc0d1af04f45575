defmodule Heddle.ResidentTest do
  # Tensors in memory of a device. It counts what is alive, so nothing else runs beside it.
  use ExUnit.Case, async: false

  alias Heddle.{Devices, Draw, Error, FlashAttention, Graph, Native, Plan, RmsNorm, Rope, Tensor, Training}

  defp sentence({:error, %Error{message: message}}), do: message
  defp on(tensor, device), do: Tensor.upload!(tensor, device)

  defp near?(a, b),
    do:
      Enum.zip(Tensor.to_list(a), Tensor.to_list(b))
      |> Enum.all?(fn {x, y} -> abs(x - y) <= 2.0e-5 * (1 + abs(y)) end)

  # Results of the CPU are the same bits wherever they are made; those of a GPU are as near as f32 is.
  defp assert_same(found, expected, device) do
    assert Tensor.resident?(found) and Tensor.device(found) == device
    assert {found.shape, found.type} == {expected.shape, expected.type}

    if device == :cpu,
      do: assert(Tensor.download!(found) == expected),
      else: assert(near?(found, expected))
  end

  test "elements go to a device and back" do
    for device <- Devices.all(),
        {shape, type} <- [{{3, 5}, :f32}, {{1}, :i64}, {{200, 300}, :f16}, {{7}, :u8}] do
      x =
        if type in [:i64, :u8],
          do: Tensor.from_list!(Enum.to_list(1..elem(shape, 0)), shape, type),
          else: Draw.tensor(shape, type)

      resident = on(x, device)
      assert Tensor.resident?(resident) and not Tensor.resident?(x) and not Tensor.resident?(5)
      assert Tensor.device(resident) == device
      assert Tensor.download!(resident) == x
      assert Tensor.to_list(resident) == Tensor.to_list(x)
      # What is there is not copied again.
      assert Tensor.upload!(resident, device) == resident
      assert Tensor.download!(x) == x
    end
  end

  test "a part of a binary is copied from where it begins" do
    <<_, part::binary-size(12), _::binary>> = whole = :rand.bytes(100)

    assert Tensor.download!(on(%Tensor{data: part, shape: {3}, type: :f32}, :cpu)).data ==
             binary_part(whole, 1, 12)
  end

  test "a step of training stays on the device from the forward pass to the backward one" do
    [q, d_out] = for _ <- 1..2, do: Draw.tensor({2, 9, 4, 16})
    [k, v] = for _ <- 1..2, do: Draw.tensor({2, 9, 2, 16})
    bias = Draw.tensor({1, 4, 9, 9})
    options = [bias: bias, kv_lengths: [9, 4], soft_cap: 3, dropout: 0.2, seed: 7, window: {5, nil}]
    {output, lse} = FlashAttention.forward_with_states!(q, k, v, options)

    {dq, dk, dv, more} =
      FlashAttention.backward!(d_out, q, k, v, output, lse, [gradients: [:bias]] ++ options)

    for device <- Devices.all(), asked <- [[], [device: device]] do
      [q, k, v, d_out] = Enum.map([q, k, v, d_out], &on(&1, device))
      # What is not resident, of the options too, is brought there.
      {found, found_lse} = FlashAttention.forward_with_states!(q, k, v, asked ++ options)
      assert_same(found, output, device)
      assert_same(found_lse, lse, device)

      gradients =
        FlashAttention.backward!(d_out, q, k, v, found, found_lse, [gradients: [:bias]] ++ asked ++ options)

      for {x, y} <- Enum.zip(Tuple.to_list(gradients), [dq, dk, dv, more]) do
        if is_map(y) and not is_struct(y),
          do: assert_same(x.bias, y.bias, device),
          else: assert_same(x, y, device)
      end

      resident = on(bias, device)

      assert_same(
        FlashAttention.forward!(q, k, v, Keyword.put(asked ++ options, :bias, resident)),
        output,
        device
      )
    end
  end

  test "without resident tensors a device gives results as q is" do
    x = Draw.tensor({1, 5, 2, 8})
    expected = FlashAttention.forward!(x, x, x)

    for device <- Devices.all() do
      found = FlashAttention.forward!(x, x, x, device: device)
      assert not Tensor.resident?(found) and near?(found, expected)
      # q decides.
      assert not Tensor.resident?(FlashAttention.forward!(x, on(x, device), x))
      assert Tensor.resident?(FlashAttention.forward!(on(x, device), x, x))
    end
  end

  test "RoPE, RMSNorm and plans" do
    x = Draw.tensor({2, 3, 2, 8})
    weight = Draw.tensor({8})
    table = Rope.table!(3, 8)
    turned = Rope.rotate!(x, table)
    {:ok, y, inverse} = RmsNorm.forward_with_states(x, weight)
    {:ok, dx, d_weight} = RmsNorm.backward(x, x, weight, inverse)

    graph =
      Graph.new("plan", io_dtype: :f32)
      |> Graph.tensor(1, "x", dims: [12, 8])
      |> Graph.tensor(2, "weight", dims: [1, 8])
      |> Graph.tensor(3, "epsilon", dims: [1, 1], constant: 1.0e-5)
      |> Graph.tensor(4, "y")
      |> Graph.node("rms_norm", x: 1, scale: 2, epsilon: 3, y: 4)

    for device <- Devices.all() do
      on_device = on(x, device)
      assert_same(Rope.rotate!(on_device, table), turned, device)
      {:ok, found_y, found_inverse} = RmsNorm.forward_with_states(on_device, weight, device: device)
      assert_same(found_y, y, device)
      assert_same(found_inverse, inverse, device)

      {:ok, found_dx, found_d_weight} =
        RmsNorm.backward(on_device, on_device, on(weight, device), found_inverse)

      assert_same(found_dx, dx, device)
      assert_same(found_d_weight, d_weight, device)

      plan = Plan.new!(graph, device: device)
      assert plan.device == device
      %{4 => found} = Plan.run!(plan, %{1 => on_device, 2 => weight})
      assert_same(%{found | shape: {2, 3, 2, 8}}, y, device)
      assert near?(Plan.run!(plan, %{1 => x, 2 => weight})[4], y)
    end
  end

  test "a training step gives what it gives with binaries" do
    {:ok, parameters} = Training.Policy.init(features: 3, width: 4, heads: 2, dim: 4, actions: 3)
    batch = %{states: Draw.tensor({2, 5, 3}), actions: Tensor.from_list!(List.duplicate(1, 10), {2, 5}, :i32)}
    {:ok, training} = Training.new(parameters, heads: 2)
    {:ok, expected, loss} = Training.train_step(training, batch)

    for device <- Devices.all() do
      {:ok, training} = Training.new(parameters, heads: 2, device: device)
      {:ok, found, found_loss} = Training.train_step(training, batch)
      assert_in_delta found_loss, loss, 1.0e-5
      for {name, x} <- expected.parameters, do: assert(near?(found.parameters[name], x))
    end
  end

  test "what no term holds is freed" do
    settled = fn condition ->
      Enum.find(1..200, fn _ ->
        :erlang.garbage_collect()
        condition.(Native.live_memory()) || (Process.sleep(10) && false)
      end)
    end

    nothing = &(&1 == {0, 0})
    assert settled.(nothing)

    for device <- Devices.all() do
      Task.await(
        Task.async(fn ->
          x = on(Draw.tensor({1, 8, 2, 16}), device)
          assert Native.live_memory() == {1, 1024}
          {o, lse} = FlashAttention.forward_with_states!(x, x, x)
          assert Native.live_memory() == {3, 1024 + 1024 + 64}
          # A call that fails leaves nothing.
          assert {:error, _} = FlashAttention.backward(x, x, x, x, o, lse, scale: :no)

          assert {:error, _} =
                   FlashAttention.forward(x, x, x, bias: on(Draw.tensor({1, 1, 1, 8}), device), soft_cap: -1)

          for _ <- 1..1000, do: FlashAttention.forward!(x, x, x)
          assert settled.(fn {count, _bytes} -> count <= 4 end)
        end),
        60_000
      )

      assert settled.(nothing)
    end
  end

  test "a tensor on another device, or none, is refused" do
    x = Draw.tensor({1, 3, 1, 8})
    resident = on(x, :cpu)

    assert sentence(FlashAttention.forward(x, resident, x, device: :cuda)) =~
             if(Devices.why_no_gpu(), do: "NVIDIA driver", else: "lies on cpu, expected tensors on cuda")

    assert sentence(Tensor.upload(resident, :cuda)) ==
             "The tensor lies on cpu, expected one on cuda or on the host: download it first."

    for wrong <- [:tpu, nil, "cpu", 0],
        do: assert(sentence(Tensor.upload(x, wrong)) =~ "expected :cpu or :cuda")

    assert sentence(FlashAttention.forward(x, x, x, device: :tpu)) ==
             "device is :tpu, expected :cpu or :cuda."

    assert sentence(Rope.rotate(x, Rope.table!(3, 8), device: 1)) =~ "expected :cpu or :cuda"
    assert sentence(RmsNorm.forward(x, Draw.tensor({8}), device: "cpu")) =~ "expected :cpu or :cuda"
    assert sentence(Plan.new("{", device: :gpu)) == "The device is :gpu, expected :cpu or :cuda."
    assert sentence(Plan.new("{", gpu: 1)) =~ "expected a keyword list of [:device]"

    # A reference that is no memory, and one of another size than the shape says.
    assert sentence(FlashAttention.forward(%{x | data: make_ref()}, x, x)) =~ "q has #Reference<"
    assert sentence(Tensor.download(%{x | data: make_ref()})) =~ "as its data, expected a binary or what"
    assert sentence(Tensor.download(:x)) == "The tensor is :x, expected a Heddle.Tensor."

    assert sentence(FlashAttention.forward(%{resident | shape: {1, 4, 1, 8}}, x, x)) ==
             "q has 96 bytes, expected 128: f32 of {1, 4, 1, 8}."

    {:ok, plan} = Native.plan(Graph.text(sdpa()), :cpu)
    assert {:ok, {:cpu, 96}} = Native.memory(resident.data)
    short = on(Draw.tensor({1, 2, 1, 8}), :cpu).data

    assert sentence(Native.execute(plan, [{1, short}, {2, x.data}, {3, x.data}], :memory)) ==
             "The tensor 'q', f32 [1, 1, 3, 8], is given memory of 64 bytes, expected 96."

    assert sentence(Native.execute(plan, [{1, resident.data}, {2, plan}, {3, x.data}], :memory)) =~
             "no pair of a uid and a binary"

    assert sentence(Native.execute(plan, [{1, resident.data}, {2, x.data}, {3, x.data}], :host)) =~
             "neither :binaries nor :memory"
  end

  test "a machine without a GPU says so" do
    if why = Devices.why_no_gpu() do
      x = Draw.tensor({1, 3, 1, 8})
      assert why =~ "the NVIDIA driver"
      assert sentence(FlashAttention.forward(x, x, x, device: :cuda)) =~ ~r/^attention: .*the NVIDIA driver/
      assert sentence(Plan.new(sdpa(), device: :cuda)) =~ "the NVIDIA driver"
      {:ok, parameters} = Training.Policy.init(features: 1, width: 1, heads: 1, dim: 2, actions: 1)
      {:ok, training} = Training.new(parameters, heads: 1, device: :cuda)
      batch = %{states: Draw.tensor({1, 1, 1}), actions: Tensor.from_list!([0], {1, 1}, :i32)}
      assert sentence(Training.train_step(training, batch)) =~ "the NVIDIA driver"
    end
  end

  test "scalars passed by value are the host's" do
    graph =
      Graph.new("by value", io_dtype: :f32)
      |> Graph.tensor(1, "x", dims: [2, 8])
      |> Graph.tensor(2, "weight", dims: [1, 8])
      |> Graph.tensor(3, "epsilon", dims: [1, 1], pass_by_value: true)
      |> Graph.tensor(4, "y")
      |> Graph.node("rms_norm", x: 1, scale: 2, epsilon: 3, y: 4)

    x = Draw.tensor({2, 8})
    weight = Draw.tensor({8})
    epsilon = Tensor.from_list!([1.0e-5], {1}, :f32)
    {:ok, expected} = RmsNorm.forward(x, weight)

    for device <- Devices.all() do
      plan = Plan.new!(graph, device: device)
      inputs = %{1 => on(x, device), 2 => weight, 3 => epsilon}
      assert_same(Plan.run!(plan, inputs)[4], expected, device)

      assert sentence(Plan.run(plan, %{inputs | 3 => on(epsilon, device)})) =~
               "is a scalar passed by value, expected a binary"
    end
  end

  defp sdpa do
    Enum.reduce([{1, "q"}, {2, "k"}, {3, "v"}], Graph.new("", io_dtype: :f32), fn {uid, name}, graph ->
      Graph.tensor(graph, uid, name, dims: [1, 1, 3, 8])
    end)
    |> Graph.tensor(4, "o")
    |> Graph.node("sdpa", q: 1, k: 2, v: 3, o: 4)
  end
end
