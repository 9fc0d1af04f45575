# Runs the calls that a Python test wrote: mix run --no-start run_calls.exs FOLDER. calls.exs there is a list of
# {name, function, arguments}; each result's tensors are written to NAME.0, NAME.1, ..., maps by their sorted keys, and
# numbers as tensors of f64.
[folder] = System.argv()

tensor = fn file, shape, type ->
  Heddle.Tensor.new!(File.read!(Path.join(folder, file)), shape, type)
end

{calls, _} = folder |> Path.join("calls.exs") |> File.read!() |> Code.eval_string(tensor: tensor)

parts = fn parts, value ->
  case value do
    %Heddle.Tensor{} = tensor -> [tensor]
    %_{} -> []
    map when is_map(map) -> map |> Enum.sort() |> Enum.flat_map(fn {_, x} -> parts.(parts, x) end)
    number when is_number(number) -> [Heddle.Tensor.from_list!([number], {1}, :f64)]
    list when is_list(list) -> Enum.flat_map(list, &parts.(parts, &1))
  end
end

for {name, function, arguments} <- calls do
  [:ok | results] = Tuple.to_list(apply(function, arguments))

  for {tensor, i} <- results |> Enum.flat_map(&parts.(parts, &1)) |> Enum.with_index() do
    File.write!(Path.join(folder, "#{name}.#{i}"), Heddle.Tensor.download!(tensor).data)
    shape = tensor.shape |> Tuple.to_list() |> Enum.join(" ")
    File.write!(Path.join(folder, "#{name}.#{i}.shape"), "#{tensor.type} #{shape}")
  end
end
