defmodule Heddle.Defn.Block do
  @moduledoc false
  # What `Nx.block/4` is told of a pass of attention.

  @enforce_keys [:pass, :options]
  defstruct [:pass, :options]

  @type t :: %__MODULE__{pass: :forward | :backward, options: keyword}
end
