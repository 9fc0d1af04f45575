defmodule Heddle.Tensor do
  @moduledoc """
  A tensor: its elements in row-major order, its shape and its type. The elements are a binary, or memory of a device
  (`upload/2`), where a row of calls reads and makes them without copies.

      iex> tensor = Heddle.Tensor.from_list!([1, 2, 3.5, -4], {2, 2}, :f16)
      iex> {byte_size(tensor.data), tensor.shape, Heddle.Tensor.to_list(tensor)}
      {8, {2, 2}, [1.0, 2.0, 3.5, -4.0]}

  A resident tensor is freed when no process holds it any more. The VM does not see how large it is: a process that makes
  many of them without much else to collect may call `:erlang.garbage_collect/0`, and does so by itself, once, where a
  device has no memory left.

      iex> tensor = Heddle.Tensor.from_list!([1, 2, 3], {1, 3}, :f32)
      iex> {:ok, resident} = Heddle.Tensor.upload(tensor, :cpu)
      iex> {Heddle.Tensor.resident?(resident), Heddle.Tensor.device(resident)}
      {true, :cpu}
      iex> Heddle.Tensor.download!(resident) == tensor
      true

  Where Nx is loaded, functions of Heddle also take an `Nx.Tensor`, of any backend, and then give such. EXLA's are read
  where they lie, on its clients `:host` and `:cuda`; of other backends `Nx.to_binary/1` is asked. Vectorized ones are refused.
  """

  alias Heddle.{Error, Native, Pointer}

  @bytes %{
    f64: 8,
    f32: 4,
    bf16: 2,
    f16: 2,
    i64: 8,
    i32: 4,
    i8: 1,
    u64: 8,
    u32: 4,
    u8: 1,
    f8e4m3: 1,
    f8e5m2: 1,
    boolean: 1
  }
  @types Map.keys(@bytes)
  @nx_types %{
    {:f, 64} => :f64,
    {:f, 32} => :f32,
    {:bf, 16} => :bf16,
    {:f, 16} => :f16,
    {:s, 64} => :i64,
    {:s, 32} => :i32,
    {:s, 8} => :i8,
    {:u, 64} => :u64,
    {:u, 32} => :u32,
    {:u, 8} => :u8
  }
  @to_nx Map.new(@nx_types, fn {nx, own} -> {own, nx} end)

  @typedoc "The type of an element; a boolean is a byte, 0 or 1."
  @type type ::
          :f64
          | :f32
          | :bf16
          | :f16
          | :i64
          | :i32
          | :i8
          | :u64
          | :u32
          | :u8
          | :f8e4m3
          | :f8e5m2
          | :boolean
  @type t :: %__MODULE__{data: binary | Native.memory(), shape: tuple, type: type}
  @type device :: Native.device()
  @typedoc "A `Heddle.Tensor`, or an `Nx.Tensor` where Nx is loaded."
  @type like :: t | struct
  @typedoc "An element; the last three are the numbers that a float of Erlang cannot be."
  @type element :: number | :nan | :infinity | :neg_infinity

  @enforce_keys [:data, :shape, :type]
  defstruct [:data, :shape, :type]

  @doc """
  A tensor of a binary in the machine's byte order, whose size has to be that of the shape.

      iex> {:error, error} = Heddle.Tensor.new(<<0::48>>, {2, 2}, :f32)
      iex> error.message
      "The tensor has 6 bytes, expected 16: f32 of {2, 2}."
  """
  @spec new(binary, tuple, type) :: {:ok, t} | {:error, Error.t()}
  def new(data, shape, type) do
    tensor = %__MODULE__{data: data, shape: shape, type: type}
    with :ok <- check(tensor, "The tensor"), do: {:ok, tensor}
  end

  @doc "As `new/3`; raises the error."
  @spec new!(binary, tuple, type) :: t
  def new!(data, shape, type), do: Error.bang(new(data, shape, type))

  @doc "A tensor of a flat list of numbers, in row-major order, each rounded to the nearest of its type."
  @spec from_list([element], tuple, type) :: {:ok, t} | {:error, Error.t()}
  def from_list(elements, shape, type) do
    if is_list(elements) and not List.improper?(elements),
      do: encode_all(elements, shape, type),
      else: Error.invalid("The elements are #{brief(elements)}, expected a list of numbers.")
  end

  defp encode_all(elements, shape, type) do
    if type in @types and type not in [:f8e4m3, :f8e5m2] do
      data = for x <- elements, into: <<>>, do: encode(x, type)
      new(data, shape, type)
    else
      Error.invalid(
        "There is no list of type #{brief(type)}, expected one of #{names(@types)} save those of 8 bits."
      )
    end
  rescue
    ArgumentError ->
      Error.invalid("An element is no number of #{brief(type)}, expected one within its range.")
  end

  @doc "As `from_list/3`; raises the error."
  @spec from_list!([element], tuple, type) :: t
  def from_list!(elements, shape, type), do: Error.bang(from_list(elements, shape, type))

  @doc "The elements as a flat list, in row-major order; a resident tensor is downloaded."
  @spec to_list(t) :: [element]
  def to_list(%__MODULE__{data: data, type: type}) when is_binary(data), do: decode(data, type)
  def to_list(%__MODULE__{} = tensor), do: to_list(download!(tensor))

  @doc """
  The tensor in memory of a device, `:cpu` or `:cuda`, where calls read it without a copy. One that is there already is
  given back; one of another device is refused.

      iex> {:error, error} = Heddle.Tensor.upload(Heddle.Tensor.from_list!([1], {1}, :f32), :tpu)
      iex> error.message
      "The device is :tpu, expected :cpu or :cuda."
  """
  @spec upload(like, device) :: {:ok, t} | {:error, Error.t()}
  def upload(given, device) do
    with :ok <- check_device(device),
         {:ok, tensor} <- from(given, "The tensor"),
         {:ok, tensor} <- own(tensor, given) do
      case device(tensor) do
        ^device when is_reference(tensor.data) ->
          {:ok, tensor}

        other when is_reference(tensor.data) ->
          Error.invalid(
            "The tensor lies on #{other}, expected one on #{device} or on the host: download it first."
          )

        _host ->
          with {:ok, memory} <- collecting(fn -> Native.upload(tensor.data, device) end),
               do: {:ok, %{tensor | data: memory}}
      end
    end
  end

  # What is read where another library has it changes with that.
  defp own(%{data: data} = tensor, %{__struct__: Nx.Tensor}) when is_reference(data), do: download(tensor)
  defp own(tensor, _given), do: {:ok, tensor}

  @doc "As `upload/2`; raises the error."
  @spec upload!(like, device) :: t
  def upload!(tensor, device), do: Error.bang(upload(tensor, device))

  @doc "The tensor as a binary, after everything that computes it; itself if it is one."
  @spec download(t) :: {:ok, t} | {:error, Error.t()}
  def download(%__MODULE__{data: data} = tensor) when is_binary(data), do: {:ok, tensor}

  def download(%__MODULE__{} = tensor) do
    with :ok <- check(tensor, "The tensor"),
         {:ok, data} <- Native.download(tensor.data),
         do: {:ok, %{tensor | data: data}}
  end

  def download(other), do: Error.invalid("The tensor is #{brief(other)}, expected a Heddle.Tensor.")

  @doc "As `download/1`; raises the error."
  @spec download!(t) :: t
  def download!(tensor), do: Error.bang(download(tensor))

  @doc "Whether the tensor's elements are memory of a device."
  @spec resident?(term) :: boolean
  def resident?(%__MODULE__{data: data}), do: is_reference(data)
  def resident?(_other), do: false

  @doc "Where the tensor's elements are; binaries are on `:cpu`."
  @spec device(t) :: device
  def device(%__MODULE__{data: data}) when is_reference(data) do
    case Error.bang(Native.memory(data)) do
      {:host, _bytes} -> :cpu
      {device, _bytes} -> device
    end
  end

  def device(%__MODULE__{}), do: :cpu

  @doc false
  # Memory that other terms of the process held may be garbage that nobody has collected.
  @spec collecting((() -> result)) :: result when result: {:ok, term} | {:error, Error.t()}
  def collecting(function) do
    case function.() do
      {:error, %Error{status: :out_of_memory}} ->
        :erlang.garbage_collect()
        function.()

      result ->
        result
    end
  end

  @doc false
  @spec check_device(term) :: :ok | {:error, Error.t()}
  def check_device(device) when device in [:cpu, :cuda], do: :ok
  def check_device(other), do: Error.invalid("The device is #{brief(other)}, expected :cpu or :cuda.")

  @doc "The bytes of an element of a type."
  @spec bytes(type) :: pos_integer
  def bytes(type), do: Map.fetch!(@bytes, type)

  @doc """
  What `like` is as a `Heddle.Tensor`; `name` begins the sentence if it is none.

      iex> {:error, error} = Heddle.Tensor.from([1, 2], "q")
      iex> error.message
      "q is [1, 2], expected a Heddle.Tensor or an Nx.Tensor."
  """
  @spec from(term, String.t()) :: {:ok, t} | {:error, Error.t()}
  def from(%__MODULE__{} = tensor, name) do
    with :ok <- check(tensor, name), do: {:ok, tensor}
  end

  def from(%{__struct__: Nx.Tensor} = tensor, name) do
    nx = nx()

    with {:ok, type} <- type_of_nx(tensor, name) do
      shape = nx.shape(tensor)
      data = Pointer.memory(tensor, Tuple.product(shape) * bytes(type)) || nx.to_binary(tensor)
      {:ok, %__MODULE__{data: data, shape: shape, type: type}}
    end
  end

  def from(other, name),
    do: Error.invalid("#{name} is #{brief(other)}, expected a Heddle.Tensor or an Nx.Tensor.")

  @doc "The tensor as what `model` is: an `Nx.Tensor` if that is one."
  @spec like(t, like) :: like
  def like(%__MODULE__{} = tensor, %{__struct__: Nx.Tensor}) do
    nx = nx()
    nx.reshape(nx.from_binary(tensor.data, nx_type(tensor.type)), tensor.shape)
  end

  def like(%__MODULE__{} = tensor, _model), do: tensor

  @doc false
  @spec nx_type(type) :: {atom, pos_integer}
  def nx_type(type), do: Map.fetch!(@to_nx, type)

  @doc false
  # A vectorized tensor's shape is that of an entry, its binary that of all.
  @spec type_of_nx(struct, String.t()) :: {:ok, type} | {:error, Error.t()}
  def type_of_nx(%{vectorized_axes: [_ | _] = axes}, name),
    do:
      Error.invalid(
        "#{name} is vectorized along #{inspect(Keyword.keys(axes))}, expected a tensor without vectorized axes, as " <>
          "Nx.devectorize/2 gives it."
      )

  def type_of_nx(tensor, name), do: of_nx_type(tensor.type, name)

  @doc false
  @spec of_nx_type({atom, pos_integer}, String.t()) :: {:ok, type} | {:error, Error.t()}
  def of_nx_type(nx_type, name) do
    case @nx_types do
      %{^nx_type => type} -> {:ok, type}
      _ -> Error.invalid("#{name} is of Nx's type #{inspect(nx_type)}, which Heddle does not have.")
    end
  end

  @doc false
  @spec brief(term) :: String.t()
  def brief(term), do: inspect(term, limit: 5, printable_limit: 60)

  # Nx is there if a tensor of its is; it is no dependency, so the compiler must not look for it.
  defp nx, do: Module.concat([Nx])

  defp check(%__MODULE__{type: type}, name) when type not in @types,
    do: Error.invalid("#{name} is of type #{brief(type)}, expected one of #{names(@types)}.")

  defp check(%__MODULE__{data: data, shape: shape, type: type}, name) do
    cond do
      not (is_tuple(shape) and tuple_size(shape) <= 8 and
               Enum.all?(Tuple.to_list(shape), &(is_integer(&1) and &1 > 0))) ->
        Error.invalid(
          "#{name} has the shape #{brief(shape)}, expected a tuple of up to 8 integers of at least 1."
        )

      is_binary(data) ->
        sized(byte_size(data), shape, type, name)

      true ->
        case is_reference(data) && Native.memory(data) do
          {:ok, {_device, bytes}} ->
            sized(bytes, shape, type, name)

          _ ->
            Error.invalid(
              "#{name} has #{brief(data)} as its data, expected a binary or what Heddle.Tensor.upload/2 gave."
            )
        end
    end
  end

  defp sized(bytes, shape, type, name) do
    case Tuple.product(shape) * bytes(type) do
      ^bytes ->
        :ok

      expected ->
        Error.invalid("#{name} has #{bytes} bytes, expected #{expected}: #{type} of #{inspect(shape)}.")
    end
  end

  defp names(types), do: Enum.join(types, ", ")

  defp encode(x, type) when x in [:nan, :infinity, :neg_infinity] do
    case {x, type} do
      {:nan, :f64} -> <<0x7FF8000000000000::64-native>>
      {:infinity, :f64} -> <<0x7FF0000000000000::64-native>>
      {:neg_infinity, :f64} -> <<0xFFF0000000000000::64-native>>
      {:nan, :f32} -> <<0x7FC00000::32-native>>
      {:infinity, :f32} -> <<0x7F800000::32-native>>
      {:neg_infinity, :f32} -> <<0xFF800000::32-native>>
      {:nan, :bf16} -> <<0x7FC0::16-native>>
      {:infinity, :bf16} -> <<0x7F80::16-native>>
      {:neg_infinity, :bf16} -> <<0xFF80::16-native>>
      {:nan, :f16} -> <<0x7E00::16-native>>
      {:infinity, :f16} -> <<0x7C00::16-native>>
      {:neg_infinity, :f16} -> <<0xFC00::16-native>>
      _ -> raise ArgumentError
    end
  end

  defp encode(x, :f64), do: <<x::float-64-native>>

  defp encode(x, :f32) do
    case <<x::float-32>> do
      <<_::1, 0xFF::8, _::23>> -> raise ArgumentError
      <<bits::32>> -> <<bits::32-native>>
    end
  end

  defp encode(x, :f16) do
    case <<x::float-16>> do
      <<_::1, 0x1F::5, _::10>> -> raise ArgumentError
      <<bits::16>> -> <<bits::16-native>>
    end
  end

  defp encode(x, :bf16), do: <<round_to_bf16(x)::16-native>>
  defp encode(x, :i64) when x in -0x8000000000000000..0x7FFFFFFFFFFFFFFF, do: <<x::64-native>>
  defp encode(x, :i32) when x in -0x80000000..0x7FFFFFFF, do: <<x::32-native>>
  defp encode(x, :i8) when x in -128..127, do: <<x::8>>
  defp encode(x, :u64) when x in 0..0xFFFFFFFFFFFFFFFF, do: <<x::64-native>>
  defp encode(x, :u32) when x in 0..0xFFFFFFFF, do: <<x::32-native>>
  defp encode(x, :u8) when x in 0..255, do: <<x::8>>
  defp encode(x, :boolean) when x in [0, 1], do: <<x::8>>
  defp encode(true, :boolean), do: <<1>>
  defp encode(false, :boolean), do: <<0>>
  defp encode(_x, _type), do: raise(ArgumentError)

  # To nearest, ties to even, of the f64 itself: by way of f32 a number could be rounded twice. An f64 has 45 bits more
  # than a bf16 of the same exponent has.
  defp round_to_bf16(x) when is_number(x) do
    <<sign::1, exponent::11, fraction::52>> = <<x::float-64>>

    cond do
      exponent == 0 ->
        Bitwise.bsl(sign, 15)

      true ->
        Bitwise.bsl(sign, 15) + bf16_magnitude(exponent - 1023, Bitwise.bor(fraction, Bitwise.bsl(1, 52)))
    end
  end

  defp round_to_bf16(_x), do: raise(ArgumentError)

  # `significand` * 2^(exponent - 52), in units of a bf16's last bit.
  defp bf16_magnitude(exponent, significand) do
    least = max(exponent, -126)
    dropped = 45 + least - exponent
    units = if dropped > 60, do: 0, else: halves_to_even(significand, dropped)
    magnitude = if units < 128, do: units, else: units + Bitwise.bsl(least + 126, 7)
    if magnitude >= 0x7F80, do: raise(ArgumentError), else: magnitude
  end

  defp halves_to_even(significand, dropped) do
    kept = Bitwise.bsr(significand, dropped)
    rest = significand - Bitwise.bsl(kept, dropped)
    half = Bitwise.bsl(1, dropped - 1)
    if rest > half or (rest == half and rem(kept, 2) == 1), do: kept + 1, else: kept
  end

  defp decode(data, :f64),
    do: for(<<bits::64-native <- data>>, do: float(bits, 64, 52, fn -> one(<<bits::64>>) end))

  defp decode(data, :f32), do: for(<<bits::32-native <- data>>, do: float32(bits))
  defp decode(data, :bf16), do: for(<<bits::16-native <- data>>, do: float32(Bitwise.bsl(bits, 16)))

  defp decode(data, :f16),
    do: for(<<bits::16-native <- data>>, do: float(bits, 16, 10, fn -> one(<<bits::16>>) end))

  defp decode(data, :i64), do: for(<<x::64-signed-native <- data>>, do: x)
  defp decode(data, :i32), do: for(<<x::32-signed-native <- data>>, do: x)
  defp decode(data, :i8), do: for(<<x::8-signed <- data>>, do: x)
  defp decode(data, :u64), do: for(<<x::64-native <- data>>, do: x)
  defp decode(data, :u32), do: for(<<x::32-native <- data>>, do: x)
  # The upper byte of an f16.
  defp decode(data, :f8e5m2), do: decode(for(<<x::8 <- data>>, into: <<>>, do: <<x * 256::16-native>>), :f16)
  defp decode(data, :f8e4m3), do: for(<<bits::8 <- data>>, do: e4m3(bits))
  defp decode(data, _byte), do: for(<<x::8 <- data>>, do: x)

  # It has no infinity, and one NaN of each sign.
  defp e4m3(bits) when bits in [0x7F, 0xFF], do: :nan

  defp e4m3(bits) do
    <<sign::1, exponent::4, fraction::3>> = <<bits>>
    units = if exponent == 0, do: fraction, else: (8 + fraction) * :math.pow(2, exponent - 1)
    (1.0 - 2 * sign) * units * :math.pow(2, -9)
  end

  defp float32(bits), do: float(bits, 32, 23, fn -> one(<<bits::32>>) end)

  defp one(<<x::float-64>>), do: x
  defp one(<<x::float-32>>), do: x
  defp one(<<x::float-16>>), do: x

  # An exponent of ones is no float of Erlang.
  defp float(bits, width, fraction_bits, finite) do
    <<sign::1, exponent::size(width - 1 - fraction_bits), fraction::size(fraction_bits)>> =
      <<bits::size(width)>>

    ones = Bitwise.bsl(1, width - 1 - fraction_bits) - 1

    cond do
      exponent != ones -> finite.()
      fraction != 0 -> :nan
      sign == 1 -> :neg_infinity
      true -> :infinity
    end
  end
end
