defmodule Heddle.FlashAttention.Graphs do
  @moduledoc false
  # The graph of a call of attention, forward and backward, with its tensors.

  alias Heddle.{Call, Tensor}
  alias Heddle.FlashAttention.Options

  # Uids. Results come in ascending order.
  @q 1
  @k 2
  @v 3
  @o 4
  @d_o 5
  @lse 6
  @bias 7
  @mask 8
  @q_lengths 9
  @kv_lengths 10
  @sinks 11
  @seed 12
  @offset 13
  @cosines 14
  @sines 15
  @q_offsets 16
  @kv_offsets 17
  @made_o 101
  @made_lse 102
  @d_q 103
  @d_k 104
  @d_v 105
  @d_bias 106
  @d_sinks 107
  @q_turned 201
  @k_turned 202
  @d_q_turned 203
  @d_k_turned 204
  @score 300

  @spec forward(map, map, Options.t()) :: Call.t()
  def forward(rows, sizes, options) do
    call = Call.new("attention") |> operands(rows, sizes, options)
    {q, k, call} = turned(call, options, rows, sizes)
    {attributes, call} = attributes(call, options)
    {dims, strides, more} = statistics_layout(sizes)

    call
    |> row_output(@made_o, "o", out_shape(rows), :q, sizes)
    |> Call.output(@made_lse, "logsumexp", {statistics_shape(sizes), :f32}, dims, strides, more)
    |> Call.node("sdpa", [q: q, k: k, v: @v, o: @made_o, stats: @made_lse] ++ attributes)
  end

  @doc "`rows` has `o` and `d_o` besides."
  @spec backward(map, map, Tensor.t(), Options.t()) :: Call.t()
  def backward(rows, sizes, lse, options) do
    {dims, strides, more} = statistics_layout(sizes)

    call =
      Call.new("attention backward")
      |> operands(rows, sizes, options)
      |> row_input(@o, "output", rows.o, :q, sizes)
      |> row_input(@d_o, "d_out", rows.d_o, :q, sizes)
      |> Call.input(@lse, "logsumexp", lse, dims, strides, more)

    {q, k, call} = turned(call, options, rows, sizes)
    {attributes, call} = attributes(call, options)

    call =
      call
      |> row_output(@d_q, "dq", rows.q.shape, :q, sizes)
      |> row_output(@d_k, "dk", rows.k.shape, :kv, sizes)
      |> row_output(@d_v, "dv", rows.v.shape, :kv, sizes)
      |> more_gradients(options)

    {d_q, d_k, call} = turned_back(call, options, rows, sizes)

    Call.node(
      call,
      "sdpa_backward",
      [q: q, k: k, v: @v, o: @o, d_o: @d_o, stats: @lse, d_q: d_q, d_k: d_k, d_v: @d_v] ++
        [d_bias: if(:bias in options.gradients, do: @d_bias)] ++
        [d_sink: if(:sinks in options.gradients, do: @d_sinks)] ++
        [whole_rows: if(options.whole_rows, do: true)] ++ attributes
    )
  end

  defp operands(call, rows, %{batch: batch} = sizes, options) do
    call
    |> row_input(@q, "q", rows.q, :q, sizes)
    |> row_input(@k, "k", rows.k, :kv, sizes)
    |> row_input(@v, "v", rows.v, :kv, sizes)
    |> Call.input(@q_offsets, "q's offsets", options.offsets && options.offsets.q, [batch + 1, 1, 1, 1])
    |> Call.input(@kv_offsets, "k's offsets", options.offsets && options.offsets.kv, [batch + 1, 1, 1, 1])
    |> cells(@bias, "bias", options.bias)
    |> cells(@mask, "mask", options.mask && %{options.mask | type: :boolean})
    |> Call.input(@q_lengths, "q_lengths", options.q_lengths, [batch, 1, 1, 1])
    |> Call.input(@kv_lengths, "kv_lengths", options.kv_lengths, [batch, 1, 1, 1])
    |> Call.input(@sinks, "sinks", options.sinks, [1, elem(rows.q.shape, 2), 1, 1])
    |> Call.input(@seed, "seed", options.seed, [1, 1, 1, 1])
    |> Call.input(@offset, "offset", options.offset, [1, 1, 1, 1])
    |> rope_tables(options.rope)
  end

  defp rope_tables(call, nil), do: call

  defp rope_tables(call, table) do
    {positions, half} = table.cosines.shape

    call
    |> Call.input(@cosines, "cosines", table.cosines, [positions, 1, 1, half])
    |> Call.input(@sines, "sines", table.sines, [positions, 1, 1, half])
  end

  # The uids of what attention reads as q and k.
  defp turned(call, %{rope: nil}, _rows, _sizes), do: {@q, @k, call}

  defp turned(call, %{rope: table}, rows, sizes) do
    call =
      call
      |> Call.virtual(@q_turned, "q turned", row_fields(rows.q.shape, :q, sizes))
      |> Call.virtual(@k_turned, "k turned", row_fields(rows.k.shape, :kv, sizes))
      |> Call.node("rope", [x: @q, y: @q_turned] ++ rope_fields(table))
      |> Call.node("rope", [x: @k, y: @k_turned] ++ rope_fields(table))

    {@q_turned, @k_turned, call}
  end

  # The uids of what attention writes as dQ and dK.
  defp turned_back(call, %{rope: nil}, _rows, _sizes), do: {@d_q, @d_k, call}

  defp turned_back(call, %{rope: table}, rows, sizes) do
    call =
      call
      |> Call.virtual(@d_q_turned, "dq turned", row_fields(rows.q.shape, :q, sizes))
      |> Call.virtual(@d_k_turned, "dk turned", row_fields(rows.k.shape, :kv, sizes))
      |> Call.node("rope_backward", [x: @d_q_turned, y: @d_q] ++ rope_fields(table))
      |> Call.node("rope_backward", [x: @d_k_turned, y: @d_k] ++ rope_fields(table))

    {@d_q_turned, @d_k_turned, call}
  end

  defp rope_fields(table) do
    {_positions, half} = table.cosines.shape
    [cosines: @cosines, sines: @sines, rope_dim: 2 * half, leading: table.leading, pairing: table.pairing]
  end

  defp more_gradients(call, options) do
    call =
      if :bias in options.gradients,
        do:
          Call.output(call, @d_bias, "dbias", {options.bias.shape, :f32}, Tuple.to_list(options.bias.shape)),
        else: call

    if :sinks in options.gradients,
      do:
        Call.output(call, @d_sinks, "dsinks", {options.sinks.shape, :f32}, [
          1,
          elem(options.sinks.shape, 0),
          1,
          1
        ]),
      else: call
  end

  defp attributes(call, options) do
    {left, right, alignment} = Options.bounds(options)
    {score_mod, call} = score_mod(call, options)

    dropout = options.dropout && [probability: options.dropout, seed: @seed, offset: @offset]

    {[
       attn_scale: options.scale,
       bias: options.bias && @bias,
       sink: options.sinks && @sinks,
       alibi_mask: if(options.alibi, do: true),
       padding_mask: if(options.q_lengths, do: true),
       seq_len_q: options.q_lengths && @q_lengths,
       seq_len_kv: options.kv_lengths && @kv_lengths,
       left_bound: left,
       right_bound: right,
       diagonal_alignment: alignment,
       dropout: dropout,
       score_mod: score_mod
     ], call}
  end

  # cap * tanh(score / cap), and -inf where the mask is 0.
  defp score_mod(call, %{soft_cap: nil, mask: nil}), do: {nil, call}

  defp score_mod(call, options) do
    call = Call.virtual(call, @score, "score", dtype: :f32)
    {capped, call, ops} = soft_cap(call, options.soft_cap)
    {result, call, ops} = hidden(call, options.mask, capped, ops)
    {[score_in: @score, score_out: result, ops: ops], call}
  end

  defp soft_cap(call, nil), do: {@score, call, []}

  defp soft_cap(call, cap) do
    [inverse, limit, scaled, bent, capped] = Enum.map(1..5, &(@score + &1))

    call =
      call
      |> Call.constant(inverse, 1 / cap, 4)
      |> Call.constant(limit, cap, 4)
      |> Call.virtual(scaled, "scaled", [])
      |> Call.virtual(bent, "bent", [])
      |> Call.virtual(capped, "capped", [])

    {capped, call,
     [
       [op: "mul", inputs: [@score, inverse], output: scaled],
       [op: "tanh_fwd", inputs: [scaled], output: bent],
       [op: "mul", inputs: [bent, limit], output: capped]
     ]}
  end

  defp hidden(call, nil, score, ops), do: {score, call, ops}

  defp hidden(call, _mask, score, ops) do
    [lowest, kept] = [@score + 6, @score + 7]
    call = call |> Call.constant(lowest, :neg_infinity, 4) |> Call.virtual(kept, "kept", [])
    {kept, call, ops ++ [[op: "binary_select", inputs: [@mask, score, lowest], output: kept]]}
  end

  defp row_input(call, uid, name, tensor, side, sizes) do
    {dims, strides, more} = row_layout(tensor.shape, side, sizes)
    Call.input(call, uid, name, tensor, dims, strides, more)
  end

  defp row_output(call, uid, name, shape, side, %{type: type} = sizes) do
    {dims, strides, more} = row_layout(shape, side, sizes)
    made = if sizes.packing, do: Tuple.delete_at(shape, 0), else: shape
    Call.output(call, uid, name, {made, type}, dims, strides, more)
  end

  defp row_fields(shape, side, sizes) do
    {dims, strides, more} = row_layout(shape, side, sizes)
    [dtype: sizes.type, dims: dims, strides: strides] ++ more
  end

  # {batch, length, heads, dim} in memory is [batch, heads, length, dim] of a graph. Packed rows begin where their entry does.
  defp row_layout({batch, length, heads, dim}, _side, %{packing: nil}),
    do: {[batch, heads, length, dim], [length * heads * dim, dim, heads * dim, 1], []}

  defp row_layout({1, _tokens, heads, dim}, side, sizes) do
    {length, offsets} = if side == :q, do: {sizes.length, @q_offsets}, else: {sizes.kv_length, @kv_offsets}

    {[sizes.batch, heads, length, dim], [length * heads * dim, dim, heads * dim, 1],
     [ragged_offset: offsets, ragged_offset_multiplier: heads * dim]}
  end

  defp cells(call, _uid, _name, nil), do: call
  defp cells(call, uid, name, tensor), do: Call.input(call, uid, name, tensor, Tuple.to_list(tensor.shape))

  @spec out_shape(map) :: tuple
  def out_shape(rows), do: put_elem(rows.q.shape, 3, elem(rows.v.shape, 3))

  @spec statistics_shape(map) :: tuple
  def statistics_shape(%{packing: nil} = sizes), do: {sizes.batch, sizes.heads, sizes.length}
  def statistics_shape(sizes), do: {sizes.tokens, sizes.heads}

  defp statistics_layout(%{packing: nil} = sizes), do: {[sizes.batch, sizes.heads, sizes.length, 1], nil, []}

  defp statistics_layout(sizes) do
    {[sizes.batch, sizes.heads, sizes.length, 1], [sizes.length * sizes.heads, 1, sizes.heads, 1],
     [ragged_offset: @q_offsets, ragged_offset_multiplier: sizes.heads]}
  end
end
