# Where there is an EXLA that has custom calls of others, 0.12 or later.
if match?({:module, _}, Code.ensure_compiled(EXLA.CustomCall)) do
  defimpl EXLA.CustomCall, for: Heddle.Defn.Block do
    alias Heddle.Defn.Emission
    alias Heddle.{Error, Native, Tensor}

    @devices %{host: :cpu, cuda: :cuda}
    @xla "libxla_extension.so"

    def call(block, out, operands, %{platform: platform}) when is_map_key(@devices, platform) do
      rows =
        operands
        |> Enum.take(3)
        |> Enum.map(&{&1.shape, Error.bang(Tensor.of_nx_type(&1.type, "An operand"))})

      emission = Error.bang(Emission.new(block.pass, rows, block.options, @devices[platform]))
      check_workspace(out, emission)

      # What is compiled in its stead takes memory with the square of the length: nobody who asked for this one wants it.
      with {:error, error} <- Native.register_xla(@xla), do: raise(error)

      {:ok, struct!(EXLA.CustomCall.Spec, call_target_name: emission.target, attributes: emission.attributes)}
    end

    def call(_block, _out, _operands, _client), do: :skip

    # The template was made before the platform was known.
    defp check_workspace(out, emission) do
      {{needed}, :u8} = List.last(emission.results)
      %{shape: {given}} = elem(out, tuple_size(out) - 1)

      if given < needed do
        {:error, error} =
          Error.invalid(
            "The workspace has #{given} bytes, expected #{needed}: trace and compile on one machine."
          )

        raise error
      end
    end
  end
end
