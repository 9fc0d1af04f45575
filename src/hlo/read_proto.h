// HLO modules in protobuf form (a serialized HloModuleProto), in and out.
//
// The wire format is read and written directly, without generated classes: the bytes of every
// module, computation and instruction stay with it, and what Heddle does not read goes out again
// exactly as it came in. A second libprotobuf beside the one inside XLA could not promise that.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::hlo {

/// Reads a serialized HloModuleProto. Attributes have the names and values of text; metadata,
/// shardings, frontend attributes and the tables of source lines are not read. A failure is
/// malformed_input, or graph_not_supported for a module that has its schedule already. The module
/// has passed verify(), and nothing in it was allocated beyond a small multiple of `bytes`.
Result<std::unique_ptr<Module>> read_proto(std::string_view bytes);

/// The protobuf form of a module that read_proto() gave, or of an edited copy of one; fails for any
/// other. Unread fields are those that were read. Instructions are numbered afresh; the parameters
/// and the root of the entry carry the layouts that the program declares, because the caller of the
/// compiled program counts on them.
Result<std::string> write_proto(const Module& module);

}  // namespace heddle::hlo
