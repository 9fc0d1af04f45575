// XLA's typed FFI, as far as a handler needs it: the C structs that a host passes, declared here so
// that the library builds without XLA's headers and serves every host from FFI 0.1 on. The layouts
// are the LP64 ones that the hosts of jaxlib 0.4.32 to 0.11 share; structs only grow at their ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::api::xla {

enum class DataType : int32_t {
  pred = 1,
  s8 = 2,
  s32 = 4,
  s64 = 5,
  u8 = 6,
  u32 = 8,
  u64 = 9,
  f16 = 10,
  f32 = 11,
  f64 = 12,
  bf16 = 16,
  f8e5m2 = 19,
  f8e4m3fn = 20,
};

enum class ErrorCode : int32_t {
  invalid_argument = 3,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
};

enum class Stage : int32_t { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };
inline constexpr int32_t kBuffer = 1;                    ///< type of an argument or result
inline constexpr int32_t kString = 4;                    ///< type of an attribute
inline constexpr int32_t kMetadata = 1;                  ///< type of an extension
inline constexpr uint32_t kCommandBufferCompatible = 1;  ///< a trait

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
static_assert(sizeof(Extension) == 24);

struct Header {
  size_t struct_size;
  Extension* extension_start;
};

struct Version {
  Header header;
  int32_t major, minor;
};
static_assert(sizeof(Version) == 24);

struct Error;    // the host's
struct Context;  // the host's
struct Api;
struct CallFrame;
using Handler = Error*(CallFrame*);

struct ByteSpan {
  const char* data;
  size_t size;
};

struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension extension;
  Metadata* metadata;
};
static_assert(sizeof(MetadataExtension) == 32);

struct Buffer {
  Header header;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
static_assert(sizeof(Buffer) == 48);

/// Arguments or results.
struct Values {
  Header header;
  int64_t size;
  int32_t* types;
  void** items;
};
static_assert(sizeof(Values) == 40);

struct Attributes {
  Header header;
  int64_t size;
  int32_t* types;
  ByteSpan** names;
  void** items;
};
static_assert(sizeof(Attributes) == 48);

struct CallFrame {
  Header header;
  const Api* api;
  Context* context;
  Stage stage;
  Values arguments;
  Values results;
  Attributes attributes;
};
static_assert(sizeof(CallFrame) == 168);

struct ErrorCreateArgs {
  Header header;
  const char* message;
  ErrorCode code;
};

struct StreamGetArgs {
  Header header;
  Context* context;
  void* stream;
};

struct HandlerBundle {
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
};

struct HandlerRegisterArgs {
  Header header;
  ByteSpan name;
  ByteSpan platform;
  HandlerBundle bundle;
  uint32_t traits;
};

/// The host's functions; later ones are not used.
struct Api {
  Header header;
  Version api_version;
  void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void* error_get_message;
  void* error_destroy;
  Error* (*handler_register)(HandlerRegisterArgs*);
  Error* (*stream_get)(StreamGetArgs*);
};

}  // namespace heddle::api::xla
