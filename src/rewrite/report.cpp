#include "rewrite/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace heddle::rewrite {

std::string to_json(const Report& report) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["module"] = report.module;
  json["instructions"] = report.instructions;
  json["fusions"] = Json::array();
  for (const Fusion& f : report.fusions)
    json["fusions"].push_back({{"kind", f.kind},
                               {"computation", f.computation},
                               {"batch", f.batch},
                               {"q_heads", f.q_heads},
                               {"kv_heads", f.kv_heads},
                               {"q_len", f.q_len},
                               {"kv_len", f.kv_len},
                               {"head_dim", f.head_dim},
                               {"dtype", f.dtype},
                               {"scale", f.scale},
                               {"mask", f.mask},
                               {"bias", f.bias},
                               {"sink", f.sink},
                               {"dropout", f.dropout},
                               {"score", f.score},
                               {"graph", f.graph}});
  json["refusals"] = Json::array();
  for (const Refusal& r : report.refusals) {
    Json refusal = {
        {"computation", r.computation}, {"instruction", r.instruction}, {"reason", r.reason}};
    if (!r.source.operation.empty()) refusal["operation"] = r.source.operation;
    if (!r.source.file.empty())
      refusal["source"] = fmt::format("{}:{}", r.source.file, r.source.line);
    json["refusals"].push_back(std::move(refusal));
  }
  if (!report.failure.empty()) json["failure"] = report.failure;
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace heddle::rewrite
