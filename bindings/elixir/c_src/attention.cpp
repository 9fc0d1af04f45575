#include "attention.h"

#include <cmath>
#include <cstdio>
#include <initializer_list>

namespace heddle::elixir {
namespace {

struct Name {
  AttentionUid uid;
  const char* port;
};

std::string row_tensor(const AttentionSizes& s, Name name) {
  const std::string batch = std::to_string(s.batch), length = std::to_string(s.seq_len),
                    heads = std::to_string(s.num_heads), dim = std::to_string(s.head_dim),
                    row = std::to_string(s.num_heads * s.head_dim),
                    entry = std::to_string(s.seq_len * s.num_heads * s.head_dim);
  return "{\"uid\":" + std::to_string(name.uid) + ",\"name\":\"" + name.port + "\",\"dims\":[" +
         batch + "," + heads + "," + length + "," + dim + "],\"strides\":[" + entry + "," + dim +
         "," + row + ",1]}";
}

std::string statistics_tensor(const AttentionSizes& s, Name name) {
  return "{\"uid\":" + std::to_string(name.uid) + ",\"name\":\"" + name.port +
         "\",\"dtype\":\"f32\",\"dims\":[" + std::to_string(s.batch) + "," +
         std::to_string(s.num_heads) + "," + std::to_string(s.seq_len) + ",1]}";
}

std::string text(const AttentionSizes& s, const char* op, std::initializer_list<Name> rows,
                 Name statistics) {
  std::string tensors = statistics_tensor(s, statistics);
  std::string ports = "\"" + std::string(statistics.port) + "\":" + std::to_string(statistics.uid);
  for (const Name& name : rows) {
    tensors += "," + row_tensor(s, name);
    ports += ",\"" + std::string(name.port) + "\":" + std::to_string(name.uid);
  }
  char scale[40];
  std::snprintf(scale, sizeof scale, "%.17g", 1 / std::sqrt(static_cast<double>(s.head_dim)));
  return "{\"heddle_graph\":1,\"io_dtype\":\"f32\",\"intermediate_dtype\":\"f32\",\"tensors\":[" +
         tensors + "],\"nodes\":[{\"op\":\"" + op + "\"," + ports + ",\"attn_scale\":" + scale +
         (s.causal ? ",\"right_bound\":0" : "") + "}]}";
}

}  // namespace

std::string attention_text(const AttentionSizes& s) {
  return text(s, "sdpa", {{kQ, "q"}, {kK, "k"}, {kV, "v"}, {kOutput, "o"}},
              {kOutputLogSumExp, "stats"});
}

std::string attention_backward_text(const AttentionSizes& s) {
  return text(s, "sdpa_backward",
              {{kQ, "q"},
               {kK, "k"},
               {kV, "v"},
               {kO, "o"},
               {kDO, "d_o"},
               {kDQ, "d_q"},
               {kDK, "d_k"},
               {kDV, "d_v"}},
              {kLogSumExp, "stats"});
}

}  // namespace heddle::elixir
