#include "engine/cuda/device_names.h"

namespace heddle::engine::cuda {

Element element_of(DataType type) {
  switch (type) {
    case DataType::bf16:
      return Element::bf16;
    case DataType::f16:
      return Element::f16;
    case DataType::f32:
      return Element::f32;
    case DataType::f64:
      return Element::f64;
    case DataType::i64:
      return Element::i64;
    case DataType::i32:
      return Element::i32;
    case DataType::u64:
      return Element::u64;
    case DataType::u32:
      return Element::u32;
    case DataType::i8:
      return Element::i8;
    case DataType::f8e4m3:
      return Element::f8e4m3;
    case DataType::f8e5m2:
      return Element::f8e5m2;
    case DataType::u8:
    case DataType::boolean:
      return Element::u8;
  }
  return Element::u8;
}

const char* device_type(Element element) {
  constexpr const char* kTypes[] = {"bf16", "f16", "float", "double", "u8",     "i8",
                                    "i32",  "i64", "u32",   "u64",    "f8e4m3", "f8e5m2"};
  return kTypes[static_cast<int>(element)];
}
const char* device_type(DataType type) { return device_type(element_of(type)); }

attention::Dropout dropout_of(problem::Dropout::Kind kind) {
  return static_cast<attention::Dropout>(kind);
}
attention::RopePairing pairing_of(problem::Rope::Pairing pairing) {
  return static_cast<attention::RopePairing>(pairing);
}

attention::KeyRows rows_of(const problem::Storage& storage) {
  return storage.is_paged()  ? attention::KeyRows::paged
         : storage.is_ring() ? attention::KeyRows::ring
                             : attention::KeyRows::dense;
}

const char* name(Element element) {
  constexpr const char* kNames[] = {"bf16", "f16", "f32", "f64", "u8",     "i8",
                                    "i32",  "i64", "u32", "u64", "f8e4m3", "f8e5m2"};
  return kNames[static_cast<int>(element)];
}
const char* name(attention::Dropout dropout) {
  constexpr const char* kNames[] = {"none", "philox", "threefry", "mask"};
  return kNames[static_cast<int>(dropout)];
}
const char* name(attention::KeyRows rows) {
  constexpr const char* kNames[] = {"dense", "paged", "ring"};
  return kNames[static_cast<int>(rows)];
}
const char* name(attention::RopePairing pairing) {
  return pairing == attention::RopePairing::halves ? "halves" : "interleaved";
}

}  // namespace heddle::engine::cuda
