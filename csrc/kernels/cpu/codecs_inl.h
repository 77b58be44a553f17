// States that are stored in fewer bytes than float32 has, and rounded at random: a moment's small
// relative changes would be lost by rounding to nearest, every time. Included between simd_begin.h and
// simd_end.h.
//
// A codec works on one block of kQuantBlock elements; its vectors go through decode, the update in
// float, encode. kNonNegative says that a state is never negative.

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

ACCEL_INLINE U32 lane_numbers() {
  U32 lanes = {};
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = i;
  }
  return lanes;
}

// Random bits that depend on key and position alone: a multiply-xorshift mix of 32 bits (constants of
// Wellons' "lowbias32", 2018), keyed before and in between.
struct RandomBits {
  U32 first_key, second_key, lanes;

  ACCEL_INLINE RandomBits(std::uint64_t key, std::int64_t element) {
    // Blocks never cross a multiple of 2^32, so the upper half of the index goes into the key.
    key += static_cast<std::uint64_t>(element >> 32) * 0x9e3779b97f4a7c15u;
    first_key = broadcast_bits(static_cast<std::uint32_t>(key));
    second_key = broadcast_bits(static_cast<std::uint32_t>(key >> 32));
    lanes = lane_numbers() + static_cast<std::uint32_t>(element);
  }
  ACCEL_INLINE U32 operator()(int offset) const {
    U32 x = (lanes + static_cast<std::uint32_t>(offset)) ^ first_key;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ second_key;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
  }
};

// bfloat16: the dropped 16 bits are the probability of rounding away from zero.
struct StochasticBFloat16 {
  using Element = BFloat16;

  template <bool kNonNegative>
  struct Block {
    ACCEL_INLINE explicit Block(float) {}
    ACCEL_INLINE F32 decode(const BFloat16* codes) const { return load(codes); }
    ACCEL_INLINE void see(F32) {}
    ACCEL_INLINE float finish() { return 0.0f; }
    ACCEL_INLINE void encode(BFloat16* codes, F32 value, U32 random16) const {
      const U32 bits = (U32)value;
      const U32 quiet = bits | 0x00400000u;
      store_bits(codes, narrow((value != value ? quiet : bits + random16) >> 16));
    }
  };
};

// 8 bits: a small floating-point number times the block's scale, without subnormals. With a sign:
// 1 + 4 + 3 bits (sign, exponent, fraction), magnitudes from 2^-15 * 9/8 to 15/8. Without: 5 + 3 bits,
// from 2^-31 * 9/8. Code 0 is zero. Between two codes the distance is the probability. The scale maps
// the block's largest magnitude to 15/8. A non-negative state that is not zero never becomes zero: it
// is a divisor, and a moment over a lost divisor would be a leap. Values that are not finite make the
// whole block NaN; magnitudes below 2^-126 count as zero.
struct Blockwise8Bit {
  using Element = std::uint8_t;

  template <bool kNonNegative>
  struct Block {
    static constexpr std::uint32_t kLowest = (kNonNegative ? 127 - 31 : 127 - 15) << 3;  // float's bits from 20 up

    F32 scale;    // of the codes read
    F32 largest;  // magnitude seen, then the factor for writing
    F32 tainted;  // 0, or NaN once a value was not finite

    ACCEL_INLINE explicit Block(float old_scale) : scale(broadcast(old_scale)), largest(F32{}), tainted(F32{}) {}

    ACCEL_INLINE F32 decode(const std::uint8_t* codes) const {
      const U32 code = load_bytes(codes);
      const U32 magnitude = kNonNegative ? code : code & 0x7fu;
      const U32 bits = magnitude == 0u ? magnitude : (magnitude + kLowest) << 20;
      const U32 sign = kNonNegative ? U32{} : (code & 0x80u) << 24;
      return (F32)(bits | sign) * scale;
    }
    ACCEL_INLINE void see(F32 value) {
      const F32 magnitude = (F32)((U32)value & 0x7fffffffu);
      largest = magnitude > largest ? magnitude : largest;
      tainted += value * 0.0f;
    }
    // After the last see(): the scale to keep; makes ready for encode().
    ACCEL_INLINE float finish() {
      float most = 0.0f;
      float taint = 0.0f;
      for (int i = 0; i < kLanes; ++i) {
        most = largest[i] > most ? largest[i] : most;
        taint += tainted[i];
      }
      const bool is_zero = most < 1.17549435e-38f;
      // Taken as a quotient, not a product, so that 15/8 times the scale is not below the largest.
      const float kept = is_zero ? 0.0f : most / 1.875f;
      largest = broadcast(is_zero ? 0.0f : 1.875f / most);
      return kept + taint;
    }
    ACCEL_INLINE void encode(std::uint8_t* codes, F32 value, U32 random16) const {
      const F32 scaled = value * largest;
      const U32 sign = ((U32)scaled >> 24) & 0x80u;
      U32 bits = (U32)scaled & 0x7fffffffu;
      bits = bits > 0x3ff00000u ? broadcast_bits(0x3ff00000u) : bits;  // 15/8
      const U32 rounded = ((bits + (random16 << 4)) >> 20) - kLowest;
      // Below the smallest code, whose neighbour is zero, magnitude over smallest is the probability.
      const F32 smallest = broadcast(kNonNegative ? 5.23868948e-10f : 3.43322754e-5f);
      const F32 threshold = ((F32)((random16 << 7) | 0x3f800000u) - 1.0f) * smallest;
      const U32 few = kNonNegative ? (bits == 0u ? U32{} : U32{} + 1u)
                                   : ((F32)bits > threshold ? U32{} + 1u : U32{});
      const U32 code = (F32)bits < smallest ? few : rounded;
      store_bytes(codes, kNonNegative ? code : code | sign);
    }
  };
};

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
