// wgmma: D (64 x N, f32 registers) = A (64 x 16) * B (16 x N) + D, issued by a warp group.
// A comes from shared memory (ss) or registers (rs), B from shared memory; 16-bit elements. The
// instruction is asynchronous: between wgmma_fence and wgmma_wait the accumulator and A registers
// belong to the tensor core.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// Which index of an operand is contiguous in shared memory: its k index, or its m (A) / n (B).
enum class Major : int { k = 0, mn = 1 };

/// Orders register accesses before the wgmmas that follow. Once before each batch.
HEDDLE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group of the wgmmas issued so far.
HEDDLE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `kPending` groups are in flight.
template <int kPending>
HEDDLE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving accesses to `values` across this point.
template <int kCount>
HEDDLE_DEVICE void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

/// The instruction for one width N. ss and rs take `accumulate` = 0 to overwrite D.
template <int kN>
struct Wgmma;

// Operand lists are spelled by the preprocessor: %0.. are the N/2 accumulators, the others follow.
#define HEDDLE_WGMMA_D8 "%0,%1,%2,%3"
#define HEDDLE_WGMMA_D16 HEDDLE_WGMMA_D8 ",%4,%5,%6,%7"
#define HEDDLE_WGMMA_D24 HEDDLE_WGMMA_D16 ",%8,%9,%10,%11"
#define HEDDLE_WGMMA_D32 HEDDLE_WGMMA_D24 ",%12,%13,%14,%15"
#define HEDDLE_WGMMA_D40 HEDDLE_WGMMA_D32 ",%16,%17,%18,%19"
#define HEDDLE_WGMMA_D48 HEDDLE_WGMMA_D40 ",%20,%21,%22,%23"
#define HEDDLE_WGMMA_D56 HEDDLE_WGMMA_D48 ",%24,%25,%26,%27"
#define HEDDLE_WGMMA_D64 HEDDLE_WGMMA_D56 ",%28,%29,%30,%31"
#define HEDDLE_WGMMA_D72 HEDDLE_WGMMA_D64 ",%32,%33,%34,%35"
#define HEDDLE_WGMMA_D80 HEDDLE_WGMMA_D72 ",%36,%37,%38,%39"
#define HEDDLE_WGMMA_D88 HEDDLE_WGMMA_D80 ",%40,%41,%42,%43"
#define HEDDLE_WGMMA_D96 HEDDLE_WGMMA_D88 ",%44,%45,%46,%47"
#define HEDDLE_WGMMA_D104 HEDDLE_WGMMA_D96 ",%48,%49,%50,%51"
#define HEDDLE_WGMMA_D112 HEDDLE_WGMMA_D104 ",%52,%53,%54,%55"
#define HEDDLE_WGMMA_D120 HEDDLE_WGMMA_D112 ",%56,%57,%58,%59"
#define HEDDLE_WGMMA_D128 HEDDLE_WGMMA_D120 ",%60,%61,%62,%63"
#define HEDDLE_WGMMA_D136 HEDDLE_WGMMA_D128 ",%64,%65,%66,%67"
#define HEDDLE_WGMMA_D144 HEDDLE_WGMMA_D136 ",%68,%69,%70,%71"
#define HEDDLE_WGMMA_D152 HEDDLE_WGMMA_D144 ",%72,%73,%74,%75"
#define HEDDLE_WGMMA_D160 HEDDLE_WGMMA_D152 ",%76,%77,%78,%79"
#define HEDDLE_WGMMA_D168 HEDDLE_WGMMA_D160 ",%80,%81,%82,%83"
#define HEDDLE_WGMMA_D176 HEDDLE_WGMMA_D168 ",%84,%85,%86,%87"
#define HEDDLE_WGMMA_D184 HEDDLE_WGMMA_D176 ",%88,%89,%90,%91"
#define HEDDLE_WGMMA_D192 HEDDLE_WGMMA_D184 ",%92,%93,%94,%95"
#define HEDDLE_WGMMA_D200 HEDDLE_WGMMA_D192 ",%96,%97,%98,%99"
#define HEDDLE_WGMMA_D208 HEDDLE_WGMMA_D200 ",%100,%101,%102,%103"
#define HEDDLE_WGMMA_D216 HEDDLE_WGMMA_D208 ",%104,%105,%106,%107"
#define HEDDLE_WGMMA_D224 HEDDLE_WGMMA_D216 ",%108,%109,%110,%111"
#define HEDDLE_WGMMA_D232 HEDDLE_WGMMA_D224 ",%112,%113,%114,%115"
#define HEDDLE_WGMMA_D240 HEDDLE_WGMMA_D232 ",%116,%117,%118,%119"
#define HEDDLE_WGMMA_D248 HEDDLE_WGMMA_D240 ",%120,%121,%122,%123"
#define HEDDLE_WGMMA_D256 HEDDLE_WGMMA_D248 ",%124,%125,%126,%127"
#define HEDDLE_WGMMA_IO8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define HEDDLE_WGMMA_IO16 HEDDLE_WGMMA_IO8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define HEDDLE_WGMMA_IO24 HEDDLE_WGMMA_IO16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define HEDDLE_WGMMA_IO32 HEDDLE_WGMMA_IO24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define HEDDLE_WGMMA_IO40 HEDDLE_WGMMA_IO32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define HEDDLE_WGMMA_IO48 HEDDLE_WGMMA_IO40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define HEDDLE_WGMMA_IO56 HEDDLE_WGMMA_IO48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define HEDDLE_WGMMA_IO64 HEDDLE_WGMMA_IO56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define HEDDLE_WGMMA_IO72 HEDDLE_WGMMA_IO64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define HEDDLE_WGMMA_IO80 HEDDLE_WGMMA_IO72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define HEDDLE_WGMMA_IO88 HEDDLE_WGMMA_IO80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define HEDDLE_WGMMA_IO96 HEDDLE_WGMMA_IO88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define HEDDLE_WGMMA_IO104 HEDDLE_WGMMA_IO96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define HEDDLE_WGMMA_IO112 HEDDLE_WGMMA_IO104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define HEDDLE_WGMMA_IO120 HEDDLE_WGMMA_IO112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define HEDDLE_WGMMA_IO128 HEDDLE_WGMMA_IO120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define HEDDLE_WGMMA_IO136 HEDDLE_WGMMA_IO128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define HEDDLE_WGMMA_IO144 HEDDLE_WGMMA_IO136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define HEDDLE_WGMMA_IO152 HEDDLE_WGMMA_IO144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define HEDDLE_WGMMA_IO160 HEDDLE_WGMMA_IO152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define HEDDLE_WGMMA_IO168 HEDDLE_WGMMA_IO160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define HEDDLE_WGMMA_IO176 HEDDLE_WGMMA_IO168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define HEDDLE_WGMMA_IO184 HEDDLE_WGMMA_IO176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define HEDDLE_WGMMA_IO192 HEDDLE_WGMMA_IO184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define HEDDLE_WGMMA_IO200 HEDDLE_WGMMA_IO192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define HEDDLE_WGMMA_IO208 \
  HEDDLE_WGMMA_IO200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define HEDDLE_WGMMA_IO216 \
  HEDDLE_WGMMA_IO208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define HEDDLE_WGMMA_IO224 \
  HEDDLE_WGMMA_IO216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define HEDDLE_WGMMA_IO232 \
  HEDDLE_WGMMA_IO224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define HEDDLE_WGMMA_IO240 \
  HEDDLE_WGMMA_IO232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define HEDDLE_WGMMA_IO248 \
  HEDDLE_WGMMA_IO240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define HEDDLE_WGMMA_IO256 \
  HEDDLE_WGMMA_IO248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define HEDDLE_WGMMA_SS(N, TYPE, I0, I1, I2, I3, I4)                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                  \
               ", 0;\n"                                                                \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE         \
               " {" HEDDLE_WGMMA_D##N "}, " I0 ", " I1 ", p, 1, 1, " I3 ", " I4 ";\n}" \
               : HEDDLE_WGMMA_IO##N                                                    \
               : "l"(a), "l"(b), "r"(accumulate), "n"(int(kA)), "n"(int(kB)))

#define HEDDLE_WGMMA_RS(N, TYPE, I0, I1, I2, I3, I4, I5, I6)                                 \
  asm volatile(                                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " I5                                                 \
      ", 0;\n"                                                                               \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" HEDDLE_WGMMA_D##N \
      "}, {" I0 "," I1 "," I2 "," I3 "}, " I4 ", p, 1, 1, " I6 ";\n}"                        \
      : HEDDLE_WGMMA_IO##N                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(int(kB)))

#define HEDDLE_WGMMA(N, I0, I1, I2, I3, I4, I5, I6)                               \
  template <>                                                                     \
  struct Wgmma<N> {                                                               \
    template <typename T, Major kA, Major kB>                                     \
    HEDDLE_DEVICE static void ss(float* d, u64 a, u64 b, u32 accumulate) {        \
      if constexpr (is_same<T, bf16>)                                             \
        HEDDLE_WGMMA_SS(N, "bf16", I0, I1, I2, I3, I4);                           \
      else                                                                        \
        HEDDLE_WGMMA_SS(N, "f16", I0, I1, I2, I3, I4);                            \
    }                                                                             \
    template <typename T, Major kB>                                               \
    HEDDLE_DEVICE static void rs(float* d, const u32* a, u64 b, u32 accumulate) { \
      if constexpr (is_same<T, bf16>)                                             \
        HEDDLE_WGMMA_RS(N, "bf16", I0, I1, I2, I3, I4, I5, I6);                   \
      else                                                                        \
        HEDDLE_WGMMA_RS(N, "f16", I0, I1, I2, I3, I4, I5, I6);                    \
    }                                                                             \
  };

HEDDLE_WGMMA(8, "%4", "%5", "%6", "%7", "%8", "%9", "%10")
HEDDLE_WGMMA(16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
HEDDLE_WGMMA(24, "%12", "%13", "%14", "%15", "%16", "%17", "%18")
HEDDLE_WGMMA(32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
HEDDLE_WGMMA(40, "%20", "%21", "%22", "%23", "%24", "%25", "%26")
HEDDLE_WGMMA(48, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
HEDDLE_WGMMA(56, "%28", "%29", "%30", "%31", "%32", "%33", "%34")
HEDDLE_WGMMA(64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
HEDDLE_WGMMA(72, "%36", "%37", "%38", "%39", "%40", "%41", "%42")
HEDDLE_WGMMA(80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
HEDDLE_WGMMA(88, "%44", "%45", "%46", "%47", "%48", "%49", "%50")
HEDDLE_WGMMA(96, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
HEDDLE_WGMMA(104, "%52", "%53", "%54", "%55", "%56", "%57", "%58")
HEDDLE_WGMMA(112, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
HEDDLE_WGMMA(120, "%60", "%61", "%62", "%63", "%64", "%65", "%66")
HEDDLE_WGMMA(128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
HEDDLE_WGMMA(136, "%68", "%69", "%70", "%71", "%72", "%73", "%74")
HEDDLE_WGMMA(144, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
HEDDLE_WGMMA(152, "%76", "%77", "%78", "%79", "%80", "%81", "%82")
HEDDLE_WGMMA(160, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
HEDDLE_WGMMA(168, "%84", "%85", "%86", "%87", "%88", "%89", "%90")
HEDDLE_WGMMA(176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
HEDDLE_WGMMA(184, "%92", "%93", "%94", "%95", "%96", "%97", "%98")
HEDDLE_WGMMA(192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
HEDDLE_WGMMA(200, "%100", "%101", "%102", "%103", "%104", "%105", "%106")
HEDDLE_WGMMA(208, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
HEDDLE_WGMMA(216, "%108", "%109", "%110", "%111", "%112", "%113", "%114")
HEDDLE_WGMMA(224, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
HEDDLE_WGMMA(232, "%116", "%117", "%118", "%119", "%120", "%121", "%122")
HEDDLE_WGMMA(240, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
HEDDLE_WGMMA(248, "%124", "%125", "%126", "%127", "%128", "%129", "%130")
HEDDLE_WGMMA(256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

}  // namespace heddle::ptx
