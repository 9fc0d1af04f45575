// A host that stands in for ONNX Runtime: as much of it as a library of operators calls. It counts
// what it lends out, and fails at the call it is told to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "onnxruntime/abi.h"

namespace heddle::onnxruntime::abi {

struct Value {
  ElementType type = ElementType::f32;
  std::vector<int64_t> dims;
  std::vector<char> owned;
  void* data = nullptr;
  int gpu =
      -1;  ///< whose memory it is, by the driver that runs nothing the host's own; -1: the host's
};

struct KernelInfo {
  std::map<std::string, std::variant<int64_t, float, std::string>> attributes;
  std::vector<std::string> outputs;
  std::string name;
  int gpu = -1;  ///< of the kernel's provider; -1: the CPU's
};

struct KernelContext {
  std::vector<Value*> inputs;   ///< null: the node has none
  std::vector<Value*> outputs;  ///< given beforehand, whose dims a kernel has to ask for
  void* stream = nullptr;       ///< of a provider for GPUs
};

}  // namespace heddle::onnxruntime::abi

namespace heddle::onnxruntime {

/// What is lent out and not given back yet.
struct Lent {
  int statuses = 0, infos = 0, allocators = 0, blocks = 0, blocks_of_streams = 0;
  bool operator==(const Lent&) const = default;
};

class Host {
 public:
  /// One at a time: the functions of a host have no other way to find it.
  Host();

  const abi::ApiBase& base() const { return base_; }
  const abi::Api& api() const { return api_; }
  const std::vector<const abi::CustomOp*>& operators() const { return operators_; }
  const std::string& domain() const { return domain_; }
  const Lent& lent() const { return lent_; }

  /// The n-th call from now on that can fail does, from 1 on; 0: none.
  void fail_at(int n) { calls_ = 0, failing_ = n; }
  bool has_failed() const { return failing_ != 0 && calls_ >= failing_; }
  void be_out_of_memory(bool value) { out_of_memory_ = value; }
  /// Blocks that were lent for what is queued on a stream, since it began.
  int blocks_for_streams() const { return blocks_for_streams_; }

  /// The sentence of a failure, which is given back; "" for null.
  std::string sentence(abi::Status* status);

 private:
  friend struct HostFunctions;

  abi::Api api_{};
  abi::ApiBase base_{};
  std::vector<const abi::CustomOp*> operators_;
  std::string domain_;
  Lent lent_;
  int calls_ = 0, failing_ = 0;
  bool out_of_memory_ = false;
  int blocks_for_streams_ = 0;
};

}  // namespace heddle::onnxruntime
