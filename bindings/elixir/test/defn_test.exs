defmodule Heddle.DefnTest do
  # It loads what stands in for EXLA's library, once.
  use ExUnit.Case, async: false

  alias Heddle.Defn.{Block, Emission}
  alias Heddle.{Draw, Error, FlashAttention, Native, StandInXla, Tensor}

  @cases [
    {{2, 5, 4, 8}, {2, 5, 2, 8}, 8, [causal: true]},
    {{1, 3, 2, 4}, {1, 6, 2, 4}, 6, [causal: :bottom_right, scale: 0.7, soft_cap: 1.5]},
    {{1, 3, 2, 4}, {1, 6, 1, 4}, 4, [causal: false, window: {1, 2}]},
    {{1, 6, 4, 4}, {1, 3, 1, 4}, 4, [causal: :top_left]},
    {{1, 6, 2, 4}, {1, 6, 2, 4}, 4, [window: 1]},
    {{1, 4, 3, 6}, {1, 4, 3, 6}, 2, [causal: false, kv_heads: 3]}
  ]

  setup_all do
    assert {:error, %Error{status: :handle_error, message: sentence}} =
             Native.register_xla("libxla_extension.so")

    assert sentence ==
             "There is no XLA to register with: libxla_extension.so is not loaded, expected EXLA's NIF to be."

    assert_raise Error, ~r/There is no XLA to register with/, fn -> compile(:host) end

    folder = Path.join(System.tmp_dir!(), "heddle-xla-#{System.unique_integer([:positive])}-#{System.pid()}")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    checkout = Path.expand("../../..", __DIR__)
    erts = "#{:code.root_dir()}/erts-#{:erlang.system_info(:version)}/include"

    {words, 0} =
      System.cmd(
        "g++",
        ~w(-std=c++20 -shared -fPIC -O1 -Wl,-soname,libxla_extension.so -o #{folder}/libxla_extension.so -I #{checkout}/src) ++
          ["-isystem", erts, "#{checkout}/bindings/elixir/test/support/xla/extension.cpp"],
        stderr_to_stdout: true
      )

    assert words == ""
    :ok = :erl_ddll.load_driver(folder, "libxla_extension")
    :ok
  end

  # A pass as EXLA's compiler asks for it.
  defp compile(platform, options \\ []) do
    operands = for _ <- 1..3, do: Nx.template({1, 3, 1, 4}, {:f, 32})
    {:ok, emission} = Emission.new(:forward, List.duplicate({{1, 3, 1, 4}, :f32}, 3), options, :cpu)
    out = for {shape, type} <- emission.results, do: Nx.template(shape, Tensor.nx_type(type))

    EXLA.CustomCall.call(%Block{pass: :forward, options: options}, List.to_tuple(out), operands, %{
      platform: platform
    })
  end

  defp sentence({:error, %Error{message: message}}), do: message
  defp nx(x), do: Nx.reshape(Nx.from_binary(x.data, Tensor.nx_type(x.type)), x.shape)
  defp traced(x), do: %{nx(x) | data: %Nx.Defn.Expr{data: x.data}}

  defp assert_near(found, expected, within) do
    assert {found.shape, found.type} == {expected.shape, Tensor.nx_type(expected.type)}
    {:ok, found} = Tensor.from(found, "found")

    for {x, y} <- Enum.zip(Tensor.to_list(found), Tensor.to_list(expected)), do: assert_in_delta(x, y, within)
  end

  # The output and the gradients by a compiler, beside those of the library.
  defp check({q_shape, k_shape, v_dim, options}, type, within) do
    v_shape = put_elem(k_shape, 3, v_dim)

    [q, k, v, d_output] =
      for shape <- [q_shape, k_shape, v_shape, put_elem(q_shape, 3, v_dim)], do: Draw.tensor(shape, type)

    {output, lse} = FlashAttention.forward_with_states!(q, k, v, options)
    expected = FlashAttention.backward!(d_output, q, k, v, output, lse, options)
    {:custom_grad, found, inputs, gradient} = Heddle.Defn.attention(traced(q), traced(k), traced(v), options)
    assert inputs == [traced(q), traced(k), traced(v)]
    assert_near(found, output, within)
    # Of the output's type, and as Nx itself begins gradients.
    for given <- [nx(d_output), Nx.as_type(nx(d_output), :f32)],
        {x, y} <- Enum.zip(gradient.(given), Tuple.to_list(expected)),
        do: assert_near(x, y, within)
  end

  test "other compilers run what is written out" do
    for c <- @cases, do: check(c, :f32, 2.0e-5)
    check(Enum.at(@cases, 1), :f16, 2.0e-2)
  end

  test "EXLA runs the custom call" do
    Process.put(:exla_platform, :host)
    for c <- @cases, do: check(c, :f32, 1.0e-6)
    for c <- Enum.take(@cases, 2), do: check(c, :bf16, 1.0e-6)
    # Another platform is another compiler.
    Process.put(:exla_platform, :rocm)
    check(hd(@cases), :f32, 2.0e-5)
    assert compile(:rocm) == :skip
  end

  test "outside defn it is the library's attention" do
    x = Draw.tensor({1, 3, 2, 4})
    found = Heddle.Defn.attention(nx(x), nx(x), nx(x))
    assert found == nx(FlashAttention.forward!(x, x, x))
    assert Heddle.Defn.attention(x, x, x, causal: false) == FlashAttention.forward!(x, x, x, causal: false)
  end

  test "the custom call is the graph's" do
    rows = [{{2, 5, 4, 8}, :bf16}, {{2, 7, 2, 8}, :bf16}, {{2, 7, 2, 16}, :bf16}]
    {:ok, forward} = Emission.new(:forward, rows, [causal: :bottom_right], :cpu)
    assert forward.target == "heddle"
    assert forward.operands == rows
    assert [{{2, 5, 4, 16}, :bf16}, {{2, 4, 5}, :f32}, {{workspace}, :u8}] = forward.results
    {:ok, backward} = Emission.new(:backward, rows, [causal: :bottom_right], :cpu)
    output = {{2, 5, 4, 16}, :bf16}
    assert backward.operands == rows ++ [output, output, {{2, 4, 5}, :f32}]
    assert [_, _, _, {{_}, :u8}] = backward.results
    assert Enum.take(backward.results, 3) == rows

    for {emission, names, sizes} <- [
          {forward, ~w(q k v), [320, 224, 448]},
          {backward, ~w(q k v output d_out logsumexp), [320, 224, 448, 640, 640, 40]}
        ] do
      [{"graph", quoted}] = emission.attributes
      assert quoted =~ ~r/^"[ -~]*"$/
      text = StandInXla.unquoted(quoted)
      {:ok, plan} = Native.plan(text, :cpu)
      {:ok, {inputs, outputs}} = Native.plan_ports(plan)
      assert Enum.map(inputs, &elem(&1, 1)) == names
      # Memory of XLA's is row-major, and the graph's tensors lie in it without gaps.
      assert Enum.map(inputs, fn {_, _, _, dims} -> Tuple.product(dims) end) == sizes

      assert Enum.map(outputs, fn {_, _, type, dims} -> {Tuple.product(dims), type} end) ==
               Enum.map(Enum.drop(emission.results, -1), fn {shape, type} -> {Tuple.product(shape), type} end)
    end

    {:ok, plan} = Native.plan(StandInXla.unquoted(elem(hd(forward.attributes), 1)), :cpu)
    assert Native.plan_workspace(plan) == {:ok, workspace}
  end

  test "the handler is registered once, for CPUs and CUDA" do
    assert Native.register_xla("libxla_extension.so") == :ok
    assert Native.register_xla("libxla_extension.so") == :ok
    port = Port.open({:spawn, ~c"libxla_extension"}, [:binary])
    Port.command(port, "")
    assert_receive {^port, {:data, "heddle for CUDA\nheddle for Host\n"}}, 5000
    Port.close(port)

    assert sentence(Native.register_xla("libm.so.6")) ==
             "libm.so.6 has no XLA_FFI_GetApi, expected an XLA with typed custom calls."

    assert sentence(Native.register_xla("/no/such.so")) =~ "/no/such.so is not loaded"
    assert sentence(Native.register_xla(:exla)) =~ "is no binary"
  end

  test "what is wrong is refused in a sentence" do
    x = traced(Draw.tensor({1, 3, 2, 4}))
    attention = fn q, k, v, options -> fn -> Heddle.Defn.attention(q, k, v, options) end end
    assert_raise Error, ~r/There is no option :dropout/, attention.(x, x, x, dropout: 0.1)
    assert_raise Error, ~r/soft_cap is -1/, attention.(x, x, x, soft_cap: -1)
    assert_raise Error, ~r/k is f32 of {1, 3, 2, 5}/, attention.(x, traced(Draw.tensor({1, 3, 2, 5})), x, [])
    assert_raise Error, ~r/q is f64 of/, attention.(traced(Draw.tensor({1, 3, 2, 4}, :f64)), x, x, [])
    assert_raise Error, ~r/v is of Nx's type {:c, 64}/, attention.(x, x, %{x | type: {:c, 64}}, [])
    assert_raise Error, ~r/k is vectorized along/, attention.(x, %{x | vectorized_axes: [a: 1]}, x, [])

    # A template that another machine made.
    [out_of_forward, lse] = for shape <- [{1, 3, 2, 4}, {1, 2, 3}], do: Nx.template(shape, {:f, 32})
    out = {out_of_forward, lse, Nx.template({1}, {:u, 8})}
    block = %Block{pass: :forward, options: []}

    assert_raise Error, ~r/The workspace has 1 bytes, expected/, fn ->
      EXLA.CustomCall.call(block, out, [x, x, x], %{platform: :host})
    end
  end
end
