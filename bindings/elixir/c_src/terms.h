// Erlang terms of what Heddle says: {:ok, ...} and {:error, %Heddle.Error{}}.
#pragma once

#include <erl_nif.h>

#include <string>
#include <string_view>
#include <variant>

#include "heddle/heddle.h"

namespace heddle::elixir {

/// A failure: its status, and one sentence that says what was given and what is allowed.
struct Error {
  heddle_status status;
  std::string sentence;
};

template <typename T>
using Result = std::variant<T, Error>;

/// What was given is none that is allowed, in a sentence.
Error invalid(std::string sentence);
/// The library's words for a call that failed in this thread.
Error last_error(heddle_status status);

ERL_NIF_TERM make_string(ErlNifEnv* env, std::string_view text);
/// {:error, %Heddle.Error{status: :invalid_value, message: sentence}}
ERL_NIF_TERM make_error(ErlNifEnv* env, const Error& error);
/// {:ok, value}
ERL_NIF_TERM make_ok(ErlNifEnv* env, ERL_NIF_TERM value);

}  // namespace heddle::elixir
