defmodule Heddle.FakeGpuTest do
  # Tensors on :cuda without a GPU: in a VM of its own, whose driver copies and launches, and runs no kernel. Results are not
  # looked at, as nothing computes them; HEDDLE_FAKE_CUDA names the folder of that driver (make elixir builds it).
  use ExUnit.Case, async: true

  @moduletag skip:
               !System.get_env("HEDDLE_FAKE_CUDA") && "HEDDLE_FAKE_CUDA names no folder: make elixir sets it"

  # In a VM whose threads have no context; the last line that it says.
  defp run(body, environment \\ []) do
    script = """
    alias Heddle.{Dirty, FlashAttention, Native, Plan, Tensor}
    x = Tensor.from_list!(Enum.to_list(1..512), {1, 16, 2, 16}, :f32)
    sentence = fn {:error, error} -> error.message end
    #{body}
    """

    folder = System.fetch_env!("HEDDLE_FAKE_CUDA")

    environment =
      [
        {"LD_LIBRARY_PATH", folder},
        {"HEDDLE_NVRTC", Path.join(folder, "libfake_nvrtc.so")},
        {"HEDDLE_CACHE_DIR", ""},
        {"FAKE_CUDA_NO_CONTEXT", "1"},
        {"MIX_ENV", "test"}
      ] ++ environment

    {said, status} =
      System.cmd("mix", ["run", "--no-compile", "-e", script], env: environment, stderr_to_stdout: true)

    assert status == 0, said
    said |> String.split("\n", trim: true) |> List.last()
  end

  test "tensors of EXLA's client :cuda are read there, and the call runs there" do
    assert run("""
           of_exla = fn x, device, client ->
             buffer = %EXLA.DeviceBuffer{ref: Tensor.upload!(x, device).data, client_name: client, device_id: 0}
             %Nx.Tensor{data: %EXLA.Backend{buffer: buffer}, type: Tensor.nx_type(x.type), shape: x.shape}
           end

           [there, on_the_host] = [of_exla.(x, :cuda, :cuda), of_exla.(x, :cpu, :host)]
           {:ok, borrowed} = Tensor.from(there, "x")
           :cuda = Tensor.device(borrowed)
           {:ok, output, lse} = FlashAttention.forward_with_states(there, on_the_host, x)
           {{1, 16, 2, 16}, {1, 2, 16}} = {Nx.shape(output), Nx.shape(lse)}
           {:ok, on_cpu} = FlashAttention.forward(on_the_host, x, x)
           {:ok, expected} = FlashAttention.forward(x, x, x)
           IO.inspect(Nx.to_binary(on_cpu) == expected.data)
           """) == "true"
  end

  test "tensors go there, calls run there, and memory comes back" do
    assert run("""
           resident = Tensor.upload!(x, :cuda)
           :cuda = Tensor.device(resident)
           ^x = Tensor.download!(resident)
           {output, lse} = FlashAttention.forward_with_states!(resident, resident, resident)
           {{1, 16, 2, 16}, {1, 2, 16}} = {output.shape, lse.shape}
           [:cuda, :cuda] = Enum.map([output, lse], &Tensor.device/1)
           {dq, _dk, _dv} = FlashAttention.backward!(output, x, resident, resident, output, lse, device: :cuda)
           # q decides.
           false = Tensor.resident?(dq)
           mask = %Tensor{data: <<0::2048>>, shape: {1, 1, 16, 16}, type: :u8}
           true = Tensor.resident?(FlashAttention.forward!(resident, x, x, mask: mask, kv_lengths: [7]))
           false = Tensor.resident?(FlashAttention.forward!(x, x, x, device: :cuda))

           1..4
           |> Enum.map(fn _ -> Task.async(fn -> for _ <- 1..500, do: Tensor.device(FlashAttention.forward!(resident, resident, resident)) end) end)
           |> Task.await_many(60_000)
           |> List.flatten()
           |> Enum.uniq()
           |> then(fn [:cuda] -> :ok end)

           Enum.find(1..200, fn _ -> :erlang.garbage_collect() && elem(Native.live_memory(), 0) < 10 || (Process.sleep(10) && false) end)
           IO.inspect(elem(Native.live_memory(), 0) < 10)
           """) == "true"
  end

  test "calls on resident tensors are launched where the caller is, once there is memory for their results" do
    assert run("""
           resident = Tensor.upload!(x, :cuda)
           call = fn -> FlashAttention.forward!(resident, resident, resident) end
           # The VM frees what was collected some calls later.
           few = fn -> length(Dirty.calls(fn -> Dirty.collecting(100, call) end)) < 10 end
           Dirty.calls(fn -> Dirty.collecting(200, call) end)
           true = few.()
           # Results that stay are of memory that the driver has to give, and copies are waited for.
           held = fn -> for _ <- 1..600, do: call.() end
           true = length(Dirty.calls(held)) > 20
           [:run] = Dirty.calls(fn -> FlashAttention.forward!(resident, x, x) end)
           [:run] = Dirty.calls(fn -> FlashAttention.forward!(x, x, x, device: :cuda) end)
           [:download] = Dirty.calls(fn -> Tensor.download!(resident) end)
           IO.inspect(few.())
           """) == "true"
  end

  test "calls wait for a GPU that is behind, on dirty schedulers" do
    # Two halves of 32 calls may be pending; each that follows waits for the one before the last.
    assert run(
             """
             resident = Tensor.upload!(x, :cuda)
             call = fn -> FlashAttention.forward!(resident, resident, resident) end
             Dirty.calls(fn -> Dirty.collecting(200, call) end)
             started = System.monotonic_time(:millisecond)
             waited = Dirty.calls(fn -> Dirty.collecting(6 * 32, call) end)
             true = System.monotonic_time(:millisecond) - started >= 2 * 200
             IO.inspect({Enum.uniq(waited), length(waited) < 20})
             """,
             [{"FAKE_CUDA_BEHIND", "200"}]
           ) == "{[:run], true}"
  end

  test "memory that is kept is given back to a GPU that has no other" do
    assert run(
             """
             of_length = fn length -> Tensor.upload(Tensor.from_list!(Enum.to_list(1..length), {length}, :f32), :cuda) end
             resident = Tensor.upload!(x, :cuda)
             # The results are garbage, and kept.
             FlashAttention.forward!(resident, resident, resident)
             :erlang.garbage_collect()
             held = for length <- 1..3, do: of_length.(length)
             true = Enum.all?(held, &match?({:ok, _}, &1))
             failed = of_length.(4)
             IO.puts(sentence.(failed))
             true = length(held) == 3
             """,
             [{"FAKE_CUDA_ALLOCATIONS", "4"}]
           ) == "The GPU has no memory for 16 bytes."
  end

  test "tensors of two devices do not meet" do
    for {device, other} <- [cpu: :cuda, cuda: :cpu] do
      assert run("""
             [here, there] = for device <- [:#{device}, :#{other}], do: Tensor.upload!(x, device)
             IO.puts(sentence.(FlashAttention.forward(here, there, here)))
             """) ==
               "attention: The tensor 'k', f32 [1, 2, 16, 16], lies on #{other}, expected tensors on #{device}, where the call " <>
                 "runs, or on the host."
    end
  end

  test "a GPU without memory is said after what the process holds no more was collected" do
    assert run(~s|IO.puts(sentence.(Tensor.upload(x, :cuda)))|, [{"FAKE_CUDA_ALLOCATIONS", "0"}]) ==
             "The GPU has no memory for 2048 bytes."
  end
end
