defmodule Heddle.Rope do
  @moduledoc """
  Rotary position embedding: pairs of columns of q and k are rotated by angles that grow with the position (Su et al.,
  2021). A table of cosines and sines is made once; `rotate/3` turns a tensor by it, the option `rope` of
  `Heddle.FlashAttention` turns queries and keys on their way into attention.

      iex> table = Heddle.Rope.table!(8, 4)
      iex> x = Heddle.Tensor.from_list!(Enum.to_list(1..12), {1, 3, 1, 4}, :f32)
      iex> {:ok, y} = Heddle.Rope.rotate(x, table)
      iex> {:ok, back} = Heddle.Rope.rotate_back(y, table)
      iex> Enum.map(Heddle.Tensor.to_list(back), &Float.round(&1, 3))
      [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]
  """

  alias Heddle.{Call, Error, Options, Tensor}

  @typedoc """
  `cosines` and `sines`, f32 `{positions, rope_dim / 2}`. `pairing` is `:halves`, column j with j + rope_dim / 2, or
  `:interleaved`, 2 j with 2 j + 1, of the last rope_dim columns, of the first where `leading` is true. The other columns
  are not turned.
  """
  @type t :: %__MODULE__{
          cosines: Tensor.t(),
          sines: Tensor.t(),
          pairing: :halves | :interleaved,
          leading: boolean
        }

  @enforce_keys [:cosines, :sines]
  defstruct [:cosines, :sines, pairing: :halves, leading: false]

  @x 1
  @cosines 2
  @sines 3
  @positions 4
  @y 5

  @doc """
  The table of `positions` rows for `rope_dim` columns: angle j of row p is p * base^(-2 j / rope_dim).

  Options: `base`, 10000 by default; `pairing`, `:halves` by default or `:interleaved`; `leading`, false by default, or true
  for the first rope_dim columns, as GPT-NeoX, GPT-J and Phi rotate them, in place of the last.
  """
  @spec table(pos_integer, pos_integer, keyword) :: {:ok, t} | {:error, Error.t()}
  def table(positions, rope_dim, options \\ []) do
    with :ok <- Options.known(options, [:base, :pairing, :leading]) do
      make(
        positions,
        rope_dim,
        Keyword.get(options, :base, 10_000),
        Keyword.get(options, :pairing, :halves),
        Keyword.get(options, :leading, false)
      )
    end
  end

  defp make(positions, rope_dim, base, pairing, leading) do
    cond do
      not (is_integer(positions) and positions > 0) ->
        Error.invalid("positions is #{Tensor.brief(positions)}, expected an integer of at least 1.")

      not (is_integer(rope_dim) and rope_dim > 0 and rem(rope_dim, 2) == 0) ->
        Error.invalid("rope_dim is #{Tensor.brief(rope_dim)}, expected an even integer of at least 2.")

      # Of a smaller one the angles outgrow floats.
      not (is_number(base) and base >= 1.0e-18 and base < 1.0e300) ->
        Error.invalid("base is #{Tensor.brief(base)}, expected a number from 1.0e-18 to less than 1.0e300.")

      pairing not in [:halves, :interleaved] ->
        Error.invalid("pairing is #{Tensor.brief(pairing)}, expected :halves or :interleaved.")

      not is_boolean(leading) ->
        Error.invalid("leading is #{Tensor.brief(leading)}, expected true or false.")

      true ->
        half = div(rope_dim, 2)
        rates = for j <- 0..(half - 1), do: :math.pow(base, -2 * j / rope_dim)
        angles = for p <- 0..(positions - 1), rate <- rates, do: p * rate
        values = fn function -> Tensor.from_list!(Enum.map(angles, function), {positions, half}, :f32) end

        {:ok,
         %__MODULE__{
           cosines: values.(&:math.cos/1),
           sines: values.(&:math.sin/1),
           pairing: pairing,
           leading: leading
         }}
    end
  end

  @doc "As `table/3`; raises the error."
  @spec table!(pos_integer, pos_integer, keyword) :: t
  def table!(positions, rope_dim, options \\ []), do: Error.bang(table(positions, rope_dim, options))

  @doc """
  `x` rotated: `{batch, length, heads, dim}` of f32, bf16 or f16, and so is the result.

  Options: `device`, as that of `Heddle.FlashAttention`; `positions`, i32 `{length}` or `{batch, length}`, the row of the table for each row of `x`, the nearest there
  is; by default 0, 1, 2, ... `output_scale` multiplies the result.
  """
  @spec rotate(Tensor.like(), t, keyword) :: {:ok, Tensor.like()} | {:error, Error.t()}
  def rotate(x, table, options \\ []), do: turn("rope", x, table, options)

  @doc "The gradient of `rotate/3` by its `x`: `dy` rotated back."
  @spec rotate_back(Tensor.like(), t, keyword) :: {:ok, Tensor.like()} | {:error, Error.t()}
  def rotate_back(dy, table, options \\ []), do: turn("rope_backward", dy, table, options)

  @doc "As `rotate/3`; raises the error."
  @spec rotate!(Tensor.like(), t, keyword) :: Tensor.like()
  def rotate!(x, table, options \\ []), do: Error.bang(rotate(x, table, options))

  @doc "As `rotate_back/3`; raises the error."
  @spec rotate_back!(Tensor.like(), t, keyword) :: Tensor.like()
  def rotate_back!(dy, table, options \\ []), do: Error.bang(rotate_back(dy, table, options))

  @doc false
  @spec check(t) :: :ok | {:error, Error.t()}
  def check(%__MODULE__{} = table) do
    with {:ok, cosines} <- Tensor.from(table.cosines, "rope's cosines"),
         {:ok, sines} <- Tensor.from(table.sines, "rope's sines") do
      cond do
        tuple_size(cosines.shape) != 2 or cosines.type != :f32 or sines.shape != cosines.shape or
            sines.type != :f32 ->
          Error.invalid(
            "rope's cosines and sines are #{cosines.type} of #{inspect(cosines.shape)} and #{sines.type} of " <>
              "#{inspect(sines.shape)}, expected f32 of {positions, rope_dim / 2} both."
          )

        table.pairing not in [:halves, :interleaved] ->
          Error.invalid("rope's pairing is #{Tensor.brief(table.pairing)}, expected :halves or :interleaved.")

        not is_boolean(table.leading) ->
          Error.invalid("rope's leading is #{Tensor.brief(table.leading)}, expected true or false.")

        true ->
          :ok
      end
    end
  end

  def check(other), do: Error.invalid("The table is #{Tensor.brief(other)}, expected a Heddle.Rope.")

  defp turn(op, given, table, options) do
    with :ok <- Options.known(options, [:positions, :output_scale, :device]),
         :ok <- check(table),
         {:ok, x} <- Tensor.from(given, "x"),
         {:ok, {batch, length, heads, dim}} <- rows(x),
         {:ok, positions} <- positions(options[:positions], batch, length),
         {:ok, scale} <- Options.float("output_scale", Keyword.get(options, :output_scale, 1)),
         dims = [batch, heads, length, dim],
         strides = [length * heads * dim, dim, heads * dim, 1],
         {table_rows, half} = table.cosines.shape,
         call =
           Call.new(op)
           |> Call.input(@x, "x", x, dims, strides)
           |> Call.input(@cosines, "cosines", table.cosines, [table_rows, 1, 1, half])
           |> Call.input(@sines, "sines", table.sines, [table_rows, 1, 1, half])
           |> Call.input(@positions, "positions", positions, [div_of(positions, length), 1, length, 1])
           |> Call.output(@y, "y", {x.shape, x.type}, dims, strides)
           |> Call.node(op,
             x: @x,
             cosines: @cosines,
             sines: @sines,
             positions: positions && @positions,
             y: @y,
             rope_dim: 2 * half,
             leading: table.leading,
             pairing: table.pairing,
             output_scale: scale
           ),
         {:ok, made} <- Call.run(call, given, options[:device]) do
      [y] = made
      {:ok, y}
    end
  end

  defp rows(%Tensor{shape: {_, _, _, _} = shape, type: type}) when type in [:f32, :bf16, :f16, :f64],
    do: {:ok, shape}

  defp rows(x),
    do:
      Error.invalid(
        "x is #{x.type} of #{inspect(x.shape)}, expected f32, bf16, f16 or f64 of {batch, length, heads, dim}."
      )

  defp positions(nil, _batch, _length), do: {:ok, nil}

  defp positions(given, batch, length) do
    with {:ok, tensor} <- Tensor.from(given, "positions") do
      if tensor.shape in [{length}, {batch, length}] and tensor.type in [:i32, :i64],
        do: {:ok, tensor},
        else:
          Error.invalid(
            "positions is #{tensor.type} of #{inspect(tensor.shape)}, expected i32 or i64 of #{inspect({length})} or " <>
              "#{inspect({batch, length})}."
          )
    end
  end

  defp div_of(nil, _length), do: 1
  defp div_of(positions, length), do: div(Tuple.product(positions.shape), length)
end
