# Where there is an Nx with blocks, 0.12 or later.
if match?({:module, _}, Code.ensure_compiled(Nx)) and function_exported?(Nx, :block, 4) do
  defmodule Heddle.Defn do
    @moduledoc """
    Attention inside `defn`, differentiable, for Nx 0.12 or later.

        defn loss(q, k, v), do: Nx.sum(Heddle.Defn.attention(q, k, v, causal: true))
        Nx.Defn.grad({q, k, v}, fn {q, k, v} -> loss(q, k, v) end)

    Compiled by EXLA 0.12 or later, for its clients `:host` and `:cuda`, it is a custom call of XLA that reads and writes
    XLA's own buffers, forward and backward. By other compilers it is attention written out in Nx, with all scores in
    memory. Outside `defn` it is `Heddle.FlashAttention`.
    """

    import Nx.Defn

    alias Heddle.Defn.{Block, Emission, Reference}
    alias Heddle.{Error, FlashAttention, Tensor}

    @doc """
    The output of attention, of q's shape with v's dim; shapes and types as `Heddle.FlashAttention` has them.

    Options: `causal`, `window`, `scale`, `kv_heads` and `soft_cap`, as there. What is wrong raises a `Heddle.Error`.
    """
    deftransform attention(q, k, v, options \\ []) do
      if Enum.any?([q, k, v], &traced?/1),
        do: traced(q, k, v, options),
        else: FlashAttention.forward!(q, k, v, options)
    end

    defp traced(q, k, v, options) do
      rows =
        Enum.zip_with([q, k, v], ["q", "k", "v"], fn x, name ->
          {x.shape, Error.bang(Tensor.type_of_nx(x, name))}
        end)

      forward = %Block{pass: :forward, options: options}

      {output, lse, _workspace} =
        Nx.block(forward, [q, k, v], templates(forward, rows), fn block, q, k, v ->
          append(Reference.forward(block.options, q, k, v), workspace(block, rows))
        end)

      Nx.Defn.Kernel.custom_grad(output, [q, k, v], fn d_output ->
        backward = %Block{pass: :backward, options: options}
        # Nx's gradients begin as f32, whatever the expression's type.
        d_output = Nx.as_type(d_output, output.type)

        {d_q, d_k, d_v, _workspace} =
          Nx.block(backward, [q, k, v, output, d_output, lse], templates(backward, rows), fn block,
                                                                                             q,
                                                                                             k,
                                                                                             v,
                                                                                             o,
                                                                                             d_o,
                                                                                             lse ->
            append(Reference.backward(block.options, q, k, v, o, d_o, lse), workspace(block, rows))
          end)

        [d_q, d_k, d_v]
      end)
    end

    defp traced?(%{data: %{__struct__: Nx.Defn.Expr}}), do: true
    defp traced?(_tensor), do: false

    defp templates(block, rows) do
      outputs = Enum.drop(results(block, rows, :cpu), -1)

      List.to_tuple(
        for {shape, type} <- outputs ++ [{workspace_shape(block, rows), :u8}],
            do: Nx.template(shape, Tensor.nx_type(type))
      )
    end

    # Of the platform that needs more: which one it will be is not known yet. Where there is no GPU it is the CPU.
    defp workspace_shape(block, rows) do
      on_cuda = match?({:ok, _}, Emission.new(block.pass, rows, block.options, :cuda))
      devices = if on_cuda, do: [:cpu, :cuda], else: [:cpu]
      {Enum.max(for device <- devices, {{bytes}, :u8} = List.last(results(block, rows, device)), do: bytes)}
    end

    defp results(block, rows, device),
      do: Error.bang(Emission.new(block.pass, rows, block.options, device)).results

    defp workspace(block, rows), do: Nx.broadcast(Nx.tensor(0, type: :u8), workspace_shape(block, rows))
    defp append(tuple, last), do: List.to_tuple(Tuple.to_list(tuple) ++ [last])
  end
end
