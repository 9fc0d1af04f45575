// Types of elements in memory, by name: shared by host and device.
#pragma once

namespace heddle {

enum class Element : int { bf16, f16, f32, f64, u8, i8, i32, i64, u32, u64, f8e4m3, f8e5m2 };

}  // namespace heddle
