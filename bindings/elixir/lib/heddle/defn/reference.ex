# Where there is an Nx with blocks, 0.12 or later.
if match?({:module, _}, Code.ensure_compiled(Nx)) and function_exported?(Nx, :block, 4) do
  defmodule Heddle.Defn.Reference do
    @moduledoc false
    # Attention written out in Nx, for compilers that do not have Heddle's custom call: all scores at once, in f32. Query
    # heads that share a key head lie below each other as more rows. With these options every row sees a key.

    @lowest -3.4e38

    def forward(options, q, k, v) do
      sizes = sizes(q, k, v)
      {scores, visible} = scores(options, sizes, q, k)
      highest = Nx.reduce_max(Nx.select(visible, scores, @lowest), axes: [3], keep_axes: true)
      weights = Nx.select(visible, Nx.exp(Nx.subtract(scores, highest)), 0.0)
      sum = Nx.sum(weights, axes: [3], keep_axes: true)
      output = weighted(Nx.divide(weights, sum), by_key_head(v))
      lse = Nx.add(highest, Nx.log(sum))

      {Nx.as_type(of_heads(output, sizes, sizes.v_dim), q.type),
       Nx.reshape(lse, {sizes.batch, sizes.heads, sizes.length})}
    end

    def backward(options, q, k, v, output, d_output, lse) do
      sizes = sizes(q, k, v)
      {scores, visible} = scores(options, sizes, q, k)
      lse = Nx.reshape(lse, {sizes.batch, sizes.kv_heads, sizes.group * sizes.length, 1})
      weights = Nx.select(visible, Nx.exp(Nx.subtract(scores, lse)), 0.0)
      d_output = by_group(d_output, sizes, sizes.v_dim)
      sums = Nx.sum(Nx.multiply(d_output, by_group(output, sizes, sizes.v_dim)), axes: [3], keep_axes: true)
      d_weights = Nx.dot(d_output, [3], [0, 1], by_key_head(v), [3], [0, 1])
      d_scores = Nx.multiply(Nx.multiply(weights, Nx.subtract(d_weights, sums)), slope(options, scores))
      d_scores = Nx.multiply(d_scores, scale(options, sizes))
      d_q = weighted(d_scores, by_key_head(k))
      d_k = Nx.dot(d_scores, [2], [0, 1], by_group(q, sizes, sizes.dim), [2], [0, 1])
      d_v = Nx.dot(weights, [2], [0, 1], d_output, [2], [0, 1])

      {Nx.as_type(of_heads(d_q, sizes, sizes.dim), q.type),
       Nx.as_type(Nx.transpose(d_k, axes: [0, 2, 1, 3]), k.type),
       Nx.as_type(Nx.transpose(d_v, axes: [0, 2, 1, 3]), v.type)}
    end

    defp sizes(q, k, v) do
      {batch, length, heads, dim} = q.shape
      {_, kv_length, kv_heads, _} = k.shape

      %{
        batch: batch,
        length: length,
        heads: heads,
        dim: dim,
        kv_length: kv_length,
        kv_heads: kv_heads,
        group: div(heads, kv_heads),
        v_dim: elem(v.shape, 3)
      }
    end

    # Capped scores and which of them count, {batch, kv_heads, group * length, kv_length}.
    defp scores(options, sizes, q, k) do
      scores =
        by_group(q, sizes, sizes.dim)
        |> Nx.dot([3], [0, 1], by_key_head(k), [3], [0, 1])
        |> Nx.multiply(scale(options, sizes))

      capped =
        case options[:soft_cap] do
          nil -> scores
          cap -> Nx.multiply(Nx.tanh(Nx.divide(scores, cap)), cap)
        end

      {capped, visible(options, sizes)}
    end

    # d capped / d score, by the capped one.
    defp slope(options, capped) do
      case options[:soft_cap] do
        nil -> 1.0
        cap -> Nx.subtract(1.0, Nx.multiply(Nx.divide(capped, cap), Nx.divide(capped, cap)))
      end
    end

    defp visible(options, %{length: length, kv_length: kv_length} = sizes) do
      causal = Keyword.get(options, :causal, true)
      {left, right} = pair(options[:window])
      right = if causal, do: 0, else: right
      shift = if causal == :bottom_right, do: kv_length - length, else: 0
      query = Nx.add(Nx.iota({length, kv_length}, axis: 0), shift)
      distance = Nx.subtract(Nx.iota({length, kv_length}, axis: 1), query)

      not_before =
        if left, do: Nx.greater_equal(distance, -left), else: Nx.greater_equal(distance, -length - kv_length)

      not_after =
        if right, do: Nx.less_equal(distance, right), else: Nx.less_equal(distance, length + kv_length)

      Nx.logical_and(not_before, not_after)
      |> Nx.broadcast({sizes.batch, sizes.kv_heads, sizes.group, length, kv_length})
      |> Nx.reshape({sizes.batch, sizes.kv_heads, sizes.group * length, kv_length})
    end

    defp pair(nil), do: {nil, nil}
    defp pair(both) when is_integer(both), do: {both, both}
    defp pair(pair), do: pair

    defp scale(options, sizes), do: options[:scale] || 1 / :math.sqrt(sizes.dim)

    # {batch, length, heads, dim} as {batch, kv_heads, group * length, dim}, and back.
    defp by_group(x, sizes, dim),
      do: Nx.reshape(by_key_head(x), {sizes.batch, sizes.kv_heads, sizes.group * sizes.length, dim})

    defp of_heads(x, sizes, dim),
      do: Nx.transpose(Nx.reshape(x, {sizes.batch, sizes.heads, sizes.length, dim}), axes: [0, 2, 1, 3])

    defp by_key_head(x), do: Nx.transpose(Nx.as_type(x, :f32), axes: [0, 2, 1, 3])
    defp weighted(weights, rows), do: Nx.dot(weights, [3], [0, 1], rows, [2], [0, 1])
  end
end
