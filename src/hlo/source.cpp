#include "hlo/source.h"

#include <map>
#include <optional>
#include <protozero/exception.hpp>
#include <string_view>

#include "hlo/cursor.h"
#include "hlo/module.h"
#include "hlo/proto_fields.h"
#include "hlo/quoting.h"

namespace heddle::hlo {
namespace {

/// A source whose file and line stand in the module's tables, if `frame` is not 0.
struct Told {
  Source source;
  int64_t frame = 0;
};

/// The fields of `{name=value name=value}`.
class TextFields {
 public:
  explicit TextFields(std::string_view text) {
    Cursor in(text, {});
    if (!in.accept("{")) return;
    for (std::string_view name; !(name = in.accept_name()).empty() && in.accept("=");) {
      const auto value = in.expect_verbatim("a value");
      if (!value) return;
      fields_[name] = *value;
    }
  }
  std::string string(std::string_view name) const {
    const auto found = fields_.find(name);
    return found == fields_.end() ? "" : unquote(found->second).value_or("");
  }
  int64_t integer(std::string_view name) const {
    const auto found = fields_.find(name);
    if (found == fields_.end()) return 0;
    const auto value = Cursor(found->second, {}).expect_integer("an integer");
    return value ? *value : 0;
  }

 private:
  std::map<std::string_view, std::string_view> fields_;
};

Told told_by_text(std::string_view metadata) {
  const TextFields fields(metadata);
  return {{fields.string("op_name"), fields.string("source_file"), fields.integer("source_line")},
          fields.integer("stack_frame_id")};
}

/// Entry `number` of a table of Module::tables().
std::string_view text_entry(std::string_view tables, std::string_view table, int64_t number) {
  Cursor in(tables, {});
  for (std::string_view name; !(name = in.accept_name()).empty();)
    while (in.peek() >= '0' && in.peek() <= '9') {
      const auto at = in.expect_integer("a number");
      const auto entry = in.expect_verbatim("an entry");
      if (!at || !entry) return {};
      if (name == table && *at == number) return *entry;
    }
  return {};
}

void follow_text(std::string_view tables, Told& told) {
  const TextFields frame(text_entry(tables, "StackFrames", told.frame));
  const TextFields place(text_entry(tables, "FileLocations", frame.integer("file_location_id")));
  const auto file = unquote(text_entry(tables, "FileNames", place.integer("file_name_id")));
  if (!file) return;
  told.source.file = *file;
  told.source.line = place.integer("line");
}

namespace metadata_field {
enum : uint32_t { op_name = 2, source_file = 3, source_line = 4, stack_frame_id = 15 };
}
namespace stack_frame_index_field {
enum : uint32_t { file_names = 1, file_locations = 3, stack_frames = 4 };
}
namespace file_location_field {
enum : uint32_t { file_name_id = 1, line = 3 };
}
namespace stack_frame_field {
enum : uint32_t { file_location_id = 1 };
}

/// The last field `number` of a message, as what it is asked for.
int64_t integer_field(std::string_view message, uint32_t number) {
  int64_t value = 0;
  for (proto::Message at = proto::message(message); at.next();)
    if (at.tag() == number) {
      value = proto::take_integer(at);
    } else {
      at.skip();
    }
  return value;
}
/// The `count`th field `number` of a message, from 1; empty if there are fewer.
std::string_view bytes_field(std::string_view message, uint32_t number, int64_t count = 1) {
  if (count < 1) return {};
  for (proto::Message at = proto::message(message); at.next();) {
    if (at.tag() != number) {
      at.skip();
      continue;
    }
    const std::string_view value = proto::take_bytes(at);
    if (--count == 0) return value;
  }
  return {};
}

Told told_by_proto(std::string_view instruction) {
  const std::string_view metadata = bytes_field(instruction, proto::instruction_field::metadata);
  return {{std::string(bytes_field(metadata, metadata_field::op_name)),
           std::string(bytes_field(metadata, metadata_field::source_file)),
           integer_field(metadata, metadata_field::source_line)},
          integer_field(metadata, metadata_field::stack_frame_id)};
}

void follow_proto(std::string_view module, Told& told) {
  const std::string_view index = bytes_field(module, proto::module_field::stack_frame_index);
  const std::string_view frame =
      bytes_field(index, stack_frame_index_field::stack_frames, told.frame);
  const std::string_view place =
      bytes_field(index, stack_frame_index_field::file_locations,
                  integer_field(frame, stack_frame_field::file_location_id));
  const std::string_view file =
      bytes_field(index, stack_frame_index_field::file_names,
                  integer_field(place, file_location_field::file_name_id));
  if (file.empty()) return;
  told.source.file = file;
  told.source.line = integer_field(place, file_location_field::line);
}

}  // namespace

Source source_of(const Instruction& instruction) {
  const Module& module = *instruction.module();
  Told told;
  if (instruction.wire().empty()) {
    told = told_by_text(instruction.text("metadata"));
    if (told.frame > 0) follow_text(module.tables(), told);
    return told.source;
  }
  try {
    told = told_by_proto(instruction.wire());
    if (told.frame > 0 && module.wire()) follow_proto(*module.wire(), told);
  } catch (const protozero::exception&) {
    // Reading takes no notice of metadata, so that nothing has checked them.
  }
  return told.source;
}

}  // namespace heddle::hlo
