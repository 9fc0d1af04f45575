defmodule Heddle.PointerTest do
  # It counts what terms hold.
  use ExUnit.Case, async: false

  alias Heddle.{Draw, FlashAttention, Native, RmsNorm, Tensor}

  # A tensor of EXLA's, whose elements lie in memory of the client's device.
  defp of_exla(%Tensor{} = x, client \\ :host, device_id \\ 0) do
    buffer = %EXLA.DeviceBuffer{ref: Tensor.upload!(x, :cpu).data, client_name: client, device_id: device_id}
    %Nx.Tensor{data: %EXLA.Backend{buffer: buffer}, type: Tensor.nx_type(x.type), shape: x.shape}
  end

  defp settled?(condition, tries \\ 200) do
    :erlang.garbage_collect()
    condition.() || (tries > 0 && Process.sleep(10) && settled?(condition, tries - 1))
  end

  test "tensors of EXLA are read where they lie, and results are Nx's" do
    [q, k, v, d_out] = for _ <- 1..4, do: Draw.tensor({2, 5, 2, 8})
    {output, lse} = FlashAttention.forward_with_states!(q, k, v, causal: true)
    # Nx.to_binary of such a tensor raises.
    theirs = Enum.map([q, k, v], &of_exla/1)
    {:ok, of_nx, lse_of_nx} = apply(FlashAttention, :forward_with_states, theirs ++ [[causal: true]])
    assert {Nx.to_binary(of_nx), Nx.shape(of_nx)} == {output.data, output.shape}
    assert Nx.to_binary(lse_of_nx) == lse.data

    {:ok, dq, _dk, _dv} =
      apply(
        FlashAttention,
        :backward,
        [of_exla(d_out)] ++ theirs ++ [of_exla(output), of_exla(lse), [causal: true]]
      )

    assert Nx.to_binary(dq) ==
             elem(FlashAttention.backward!(d_out, q, k, v, output, lse, causal: true), 0).data

    # Beside binaries, and as the lengths, which are looked into.
    lengths = Tensor.from_list!([3, 5], {2}, :i32)
    expected = FlashAttention.forward!(q, k, v, kv_lengths: lengths)
    mixed = FlashAttention.forward!(q, of_exla(k), v, kv_lengths: of_exla(lengths))
    assert mixed == expected
    weight = Draw.tensor({8})
    {:ok, of_norm} = RmsNorm.forward(of_exla(q), of_exla(weight))
    {:ok, own} = RmsNorm.forward(q, weight)
    assert Nx.to_binary(of_norm) == own.data
  end

  test "what another library's memory is uploaded as is Heddle's own" do
    x = Draw.tensor({1, 3, 1, 4})
    assert Tensor.download!(Tensor.upload!(of_exla(x), :cpu)) == x
  end

  test "the tensor is there as long as its memory is read, and no longer" do
    assert settled?(fn -> elem(Native.live_memory(), 0) == 0 end)

    task =
      Task.async(fn ->
        x = Draw.tensor({1, 3, 1, 4})
        {:ok, borrowed} = Tensor.from(of_exla(x), "x")
        :erlang.garbage_collect()
        # The tensor of EXLA is garbage but for what was borrowed of it.
        assert {1, _bytes} = Native.live_memory()

        assert FlashAttention.forward!(borrowed, borrowed, borrowed) |> Tensor.download!() ==
                 FlashAttention.forward!(x, x, x)

        assert Tensor.download!(borrowed) == x
      end)

    Task.await(task)
    assert settled?(fn -> elem(Native.live_memory(), 0) == 0 end)
  end

  test "of tensors that have no pointer Nx is asked" do
    x = Draw.tensor({1, 3, 1, 4})

    for theirs <- [of_exla(x, :rocm), of_exla(x, :host, 1), %{of_exla(x) | shape: {1, 3, 1, 2}}] do
      assert_raise RuntimeError, "a tensor of EXLA was copied", fn ->
        FlashAttention.forward(theirs, theirs, theirs)
      end
    end
  end

  test "addresses that are none are refused" do
    for {address, bytes, device} <- [
          {0, 4, :cpu},
          {8, 0, :cpu},
          {-8, 4, :cpu},
          {0xFFFFFFFFFFFFFFF0, 64, :cpu},
          {"8", 4, :cpu}
        ] do
      assert {:error, %{message: sentence}} = Native.borrow(address, bytes, device, nil)
      assert sentence == "An address and the bytes there are whole numbers above 0, expected such."
    end

    assert {:error, %{message: "The device is neither" <> _}} = Native.borrow(64, 4, :tpu, nil)
  end
end
