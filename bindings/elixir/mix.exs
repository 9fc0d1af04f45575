defmodule Heddle.MixProject do
  use Mix.Project

  def project do
    [
      app: :heddle,
      version: "0.1.0",
      elixir: "~> 1.14",
      description: "Attention as one fused kernel, forward and backward",
      elixirc_paths: if(Mix.env() == :test, do: ["lib", "test/support"], else: ["lib"]),
      package: [licenses: ["Apache-2.0"], links: %{}],
      compilers: [:heddle_nif | Mix.compilers()],
      deps: nx()
    ]
  end

  # Nx is optional: where another dependency brings it, its tensors are taken and given. HEDDLE_NX names a checkout of it
  # for this project's own use.
  defp nx do
    case System.get_env("HEDDLE_NX") do
      nil -> []
      checkout -> [{:nx, path: checkout, optional: true}]
    end
  end
end

defmodule Mix.Tasks.Compile.HeddleNif do
  @moduledoc "Builds priv/heddle_nif.so by the Makefile."
  use Mix.Task.Compiler

  @impl true
  def run(_arguments) do
    folder = Path.dirname(Mix.Project.project_file())
    erts = "#{:code.root_dir()}/erts-#{:erlang.system_info(:version)}/include"

    case System.cmd("make", ["-C", folder, "--no-print-directory"],
           env: [{"ERTS_INCLUDE_DIR", erts}],
           stderr_to_stdout: true
         ) do
      {_words, 0} ->
        Mix.Project.build_structure()
        {:ok, []}

      {words, _status} ->
        Mix.shell().error(words)
        {:error, []}
    end
  end

  @impl true
  def clean do
    System.cmd("make", ["-C", Path.dirname(Mix.Project.project_file()), "clean"])
    :ok
  end
end
