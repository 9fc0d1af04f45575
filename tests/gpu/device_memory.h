// Device memory for tests: a program's buffers copied there and back.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/executable.h"
#include "core/status.h"
#include "support/program.h"

namespace heddle::testing {

/// A context on device 0, current on the calling thread while this lives.
class DeviceContext {
 public:
  DeviceContext();
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  /// What went wrong, if anything did.
  const Status& status() const { return status_; }
  const std::string& device_name() const { return name_; }
  Status synchronise() const;
  /// Of the device's memory.
  int64_t free_bytes() const;
  /// Makes it current on another thread, which may not outlive it.
  Status make_current() const;

 private:
  Status status_;
  std::string name_;
  void* context_ = nullptr;
  int device_ = 0;
};

/// Copies of a program's buffers on the device, poison and all, at the same offsets from 256-byte
/// boundaries as on the host. Scalars passed by value stay on the host.
class DeviceProgram {
 public:
  explicit DeviceProgram(Program& program);
  ~DeviceProgram();
  DeviceProgram(const DeviceProgram&) = delete;
  DeviceProgram& operator=(const DeviceProgram&) = delete;

  /// Pointer to bind for a uid.
  void* pointer(int64_t uid) const { return pointers_.at(uid); }
  /// What an executable of the program's graph binds.
  std::vector<api::Binding> bindings(const api::Executable& executable) const;
  /// Copies every buffer back into the program.
  Status copy_back();
  const Status& status() const { return status_; }

 private:
  Program& program_;
  Status status_;
  std::unordered_map<int64_t, void*> pointers_;
  std::unordered_map<int64_t, uint64_t> allocations_;
};

/// Poisoned device memory.
class DeviceBlock {
 public:
  explicit DeviceBlock(int64_t bytes);
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  void* pointer() const { return reinterpret_cast<void*>(address_); }
  Status copy_to(void* host, int64_t bytes, int64_t offset = 0) const;
  Status copy_from(const void* host, int64_t bytes, int64_t offset = 0) const;

 private:
  uint64_t address_ = 0;
};

}  // namespace heddle::testing
