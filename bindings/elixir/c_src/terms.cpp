#include "terms.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <utility>

namespace heddle::elixir {

Error invalid(std::string sentence) { return {HEDDLE_INVALID_VALUE, std::move(sentence)}; }

Error last_error(heddle_status status) { return {status, heddle_last_error()}; }

ERL_NIF_TERM make_string(ErlNifEnv* env, std::string_view text) {
  ERL_NIF_TERM term;
  unsigned char* const bytes = enif_make_new_binary(env, text.size(), &term);
  std::copy(text.begin(), text.end(), bytes);
  return term;
}

ERL_NIF_TERM make_error(ErlNifEnv* env, const Error& error) {
  std::string status = heddle_status_name(error.status);
  std::transform(status.begin(), status.end(), status.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::array keys{enif_make_atom(env, "__struct__"), enif_make_atom(env, "__exception__"),
                  enif_make_atom(env, "status"), enif_make_atom(env, "message")};
  std::array values{enif_make_atom(env, "Elixir.Heddle.Error"), enif_make_atom(env, "true"),
                    enif_make_atom(env, status.c_str()), make_string(env, error.sentence)};
  ERL_NIF_TERM structure;
  enif_make_map_from_arrays(env, keys.data(), values.data(), keys.size(), &structure);
  return enif_make_tuple2(env, enif_make_atom(env, "error"), structure);
}

ERL_NIF_TERM make_ok(ErlNifEnv* env, ERL_NIF_TERM value) {
  return enif_make_tuple2(env, enif_make_atom(env, "ok"), value);
}

}  // namespace heddle::elixir
